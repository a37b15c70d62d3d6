"""Tests run in 64 bits with jaxtyping's shapes checked at every call."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import jax
import numpyro
import pytest

numpyro.enable_x64()
# tests compile anew, and leave nothing behind
jax.config.update("jax_enable_compilation_cache", False)
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
# most of a test's time is compilation, of programs that run once; processes that a test starts inherit the settings
jax.config.update("jax_disable_most_optimizations", True)
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
# the plainer emitter, its code in one piece, takes half the time; XLA ends a process at a flag it does not know
if jax.__version_info__ < (0, 11):
    PLAINER = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {PLAINER}"

#: about three for each program, each program about a megabyte
MOST_MAPPINGS = 10_000
#: the files that take longest come first, so that no process is left alone with one of them at the end
LONGEST = [
    "test_diagnostics", "test_inducing", "test_cli", "test_nested", "test_propagation", "test_gp", "test_collapsed",
    "test_models", "test_gpssm", "test_latents", "test_objectives", "test_natural", "test_amortised", "test_chain",
    "test_guides",
]  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the files; within a file the order is kept."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONGEST)))


@pytest.fixture(autouse=True)
def few_mappings() -> Iterator[None]:
    """Drop compiled programs before they use up memory, or the mappings of it that Linux allows a process, 65530."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPPINGS:
        jax.clear_caches()
        gc.collect()
