"""Rows of one layer, their sites swept until they rest, and the energy there, of tests of Power EP by its sites."""

import jax
import jax.numpy as jnp
import numpy as np

from ppl_dgp.fit.site_program import SweepSchedule
from ppl_dgp.kernels import RBF
from ppl_dgp.numerics.linalg import cholesky, inverse_lower
from ppl_dgp.objectives.site_energy import Layer
from ppl_dgp.objectives.sites import SiteParameters, SweepRows, energy_of_sites, of_prior

RANDOM = np.random.default_rng(5)
N = 8
X = jnp.asarray(np.sort(RANDOM.uniform(-2, 2, size=(N, 1)), axis=0))
Y = jnp.asarray(np.sin(2 * X) + 0.2 * RANDOM.normal(size=(N, 1)))
Z = jnp.array([-1.2, 0.9])[:, None]


def rows_at(theta, y, offset=0.0, functions=None):
    """φ and D of a kernel with log variance and log lengthscale theta[:2], its inducing inputs shifted by theta[2].

    :param functions: as many as targets if not given.
    """
    kernel, z = RBF(jnp.exp(theta[0]), jnp.exp(theta[1])), Z + theta[2]
    phi = kernel(X, z) @ inverse_lower(cholesky(kernel(z, z), 0.0)[0]).T
    residual = (kernel.diag(X) - jnp.square(phi).sum(1))[:, None]
    return SweepRows(phi, residual, jnp.full((N, functions or y.shape[1]), offset), y)


THETA = jnp.array([0.3, -0.2, 0.0])


def converged(likelihood, rows, alpha, sequential=False, damping=1.0, sweeps=200, tolerance=1e-12):
    schedule = SweepSchedule(alpha, sequential, sweeps, damping, tolerance)
    zero = SiteParameters(*(jnp.zeros(rows.offset.shape),) * 2)
    start = of_prior(rows.offset.shape[1], rows.phi.shape[1], rows.phi.dtype)
    run = jax.jit(lambda rows: schedule.converge(Layer("gp/u", rows, likelihood), zero, start))
    sites, change, skipped = run(rows)
    return sites, change, skipped


def energy(likelihood, rows, sites, alpha):
    return float(
        jax.jit(lambda rows, sites: energy_of_sites(tempered(likelihood, alpha), rows, sites, alpha))(
            rows, sites
        )
    )


def tempered(likelihood, alpha):
    return lambda y, mean, variance: likelihood.tempered(y, mean, variance, alpha)
