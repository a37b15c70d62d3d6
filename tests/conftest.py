"""Tests run in 64 bits with jaxtyping's shapes checked at every call."""

import numpyro

numpyro.enable_x64()
