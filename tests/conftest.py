"""Tests run in 64 bits with jaxtyping's shapes checked at every call."""

import os

import jax
import numpyro
import pytest

numpyro.enable_x64()
# most of a test's time is compilation, of programs that run once; processes that a test starts inherit the setting
jax.config.update("jax_disable_most_optimizations", True)
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"

#: the files that take longest come first, so that no process is left alone with one of them at the end
LONGEST = [
    "test_diagnostics", "test_inducing", "test_cli", "test_nested", "test_propagation", "test_gp", "test_collapsed",
    "test_models", "test_objectives", "test_natural", "test_amortised", "test_chain", "test_guides",
]  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the files; within a file the order is kept."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONGEST)))
