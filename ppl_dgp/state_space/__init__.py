"""Trajectories of states: their steps, sequences, windows, and the closed forms of linear and switching ones."""
