"""Tests run in 64 bits with jaxtyping's shapes checked at every call."""

import jax
import numpyro

numpyro.enable_x64()
# most of a test's time is compilation, of programs that run once
jax.config.update("jax_disable_most_optimizations", True)
