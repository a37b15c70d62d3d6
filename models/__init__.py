"""The zoo: one file per model family, each a NumPyro program to read against its equation."""
