"""Energies of the literature beside the bounds: tied power EP and whole paths."""
