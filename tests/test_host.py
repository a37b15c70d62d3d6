"""Functions of NumPy inside compiled programs: their arrays arrive whole, on one core too."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fast import few

from ppl_dgp.numerics import host

#: starts with many rows, each called while the rows are still being found, so that a thread of the pool runs it
ALONE = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import jax, jax.numpy as jnp
from ppl_dgp.models.inducing import initial_inducing
rows = jnp.ones((20_000, 20))
start = jax.jit(lambda key, rows: initial_inducing(key, jnp.sin(jax.random.normal(key, (20_000, 20))) + rows, 3))
busy = jax.jit(lambda a: jax.lax.fori_loop(0, 30, lambda _, b: jnp.tanh(b @ a), a))
a, found = jnp.ones((400, 400)), []
for seed in range(6):
    rows = rows + busy(a)[0, 0]
    found.append(start(jax.random.key(seed), rows))
print(sum(float(each.mean()) < 99 for each in found))
"""


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="the system does not let a process choose cores"
)
def test_a_start_on_one_core_ends():
    found = subprocess.run(
        [sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=300, check=True
    )
    assert found.stdout.strip() == "6"


@pytest.mark.parametrize("cores", few([1, 2], 0))
def test_arrays_arrive_whole(monkeypatch, cores):
    """Of 64 and of 32 bits, of whole numbers, and empty ones; in pieces where there is one core."""
    monkeypatch.setattr(host, "_cores", lambda: cores)
    random = np.random.default_rng(0)
    arrays = (
        random.normal(size=(300, 101)),
        random.normal(size=70_000).astype(np.float32),
        np.arange(5),
        np.zeros((0, 3)),
    )
    seen = []

    def function(*values):
        seen.append(values)
        return values[0].sum(), values[1][::7]

    like = jnp.zeros(()), jnp.zeros(10_000, jnp.float32)
    found = jax.jit(lambda *given: host.on_host(function, like, *given))(*map(jnp.asarray, arrays))
    for expected, value in zip(arrays, seen[0], strict=True):
        assert value.dtype == expected.dtype and value.shape == expected.shape
        np.testing.assert_array_equal(value, expected)
    np.testing.assert_array_equal(found[0], arrays[0].sum())
    np.testing.assert_array_equal(found[1], arrays[1][::7])
