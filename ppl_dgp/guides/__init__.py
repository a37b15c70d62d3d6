"""Approximate posteriors: one handler and the rules it composes."""
