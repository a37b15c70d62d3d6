"""Solves for batches of matrices that run at once do not wait for each other."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from ppl_dgp.numerics.compatibility import compiled, shapes_compiled

#: two threads are all that this needs; NPROC is how many XLA takes
PROGRAM = """
import os
os.environ["NPROC"] = "2"
import jax, jax.numpy as jnp
jax.config.update("jax_enable_x64", True)
from ppl_dgp.numerics.compatibility import compiled

factor = jax.grad(lambda matrices: jnp.linalg.cholesky(matrices).sum())

def several(matrices):
    turn = lambda _, total: total + sum(factor(each + 1e-9 * total).sum() for each in matrices)
    return jax.lax.fori_loop(0, 500, turn, 0.0)

matrices = jnp.arange(1.0, 5.0)[:, None, None, None] * jnp.broadcast_to(jnp.eye(100), (4, 2, 100, 100))
print(compiled(several)(matrices).block_until_ready())
"""
FIT = """
import os
os.environ["NPROC"] = "2"
import numpyro
numpyro.enable_x64()
import jax, numpy as np
from ppl_dgp import Guide, PowerEP, fit_lbfgs, sparse_heteroscedastic_gp

x = np.random.default_rng(0).normal(size=(277, 6))
model = sparse_heteroscedastic_gp(100)
about = {"guide": Guide(model), "objective": PowerEP(0.0), "natural": True, "steps": 5}
fit = fit_lbfgs(jax.random.key(0), model, x, np.sin(x[:, :1]), **about)
print(fit.steps)
"""


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="threads of the CPU")
@pytest.mark.parametrize("program", [PROGRAM, FIT], ids=["gradients of factors", "a fit of two functions"])
def test_a_program_of_batched_solves_comes_to_its_end(program):
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()[-2000:]


def test_a_program_may_be_part_of_another():
    inner = compiled(lambda x, scale: scale * x, static_argnums=1)
    outer = compiled(lambda x: inner(x, 2.0) + 1.0)
    assert float(outer(jnp.ones(()))) == 3.0
    assert float(jax.jit(jax.grad(outer))(1.0)) == 2.0
    assert float(inner(jnp.ones(()), 3.0)) == 3.0 and shapes_compiled(inner) == 1
    assert inner.lower(jnp.ones(()), 3.0).compile()(jnp.ones(())) == 3.0
    inner.clear_cache()
    assert shapes_compiled(inner) == 0
