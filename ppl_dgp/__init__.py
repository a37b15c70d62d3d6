"""ppl_dgp: deep Gaussian processes as declarative NumPyro models."""
