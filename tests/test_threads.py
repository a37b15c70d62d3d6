"""Fits in several threads at once are those of one: NumPyro's list of handlers is one for all threads."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.handlers import seed, trace

import ppl_dgp.gp.numpyro_internals  # noqa: F401  # keeps the threads' handlers apart
from ppl_dgp.fit import fit_svi
from ppl_dgp.guides import Guide
from ppl_dgp.models import sparse_gp_regression
from ppl_dgp.objectives import PowerEP

X = np.linspace(-1.0, 1.0, 12)[:, None]
Y = np.sin(4.0 * X)


def test_a_thread_hears_its_own_handlers_alone():
    meet = Barrier(2, timeout=60)

    def program(name):
        with trace() as sites:
            meet.wait()
            seed(lambda: numpyro.sample(name, dist.Normal(0, 1)), 0)()
            meet.wait()
        return list(sites)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(program, "ab")) == [["a"], ["b"]]


@pytest.mark.slow
def test_fits_side_by_side_in_threads_are_the_lone_ones():
    meet = Barrier(2, timeout=60)

    def fit(task):
        size, wide, wait = task
        if wait:
            meet.wait()
        with jax.enable_x64(wide):
            model = sparse_gp_regression(size)
            return fit_svi(jax.random.PRNGKey(0), model, Guide(model), PowerEP(0.0), X, Y, steps=3).params

    tasks = [(4, True), (5, False)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(fit, [(*task, True) for task in tasks]))
    jax.clear_caches()
    for found, task in zip(together, tasks, strict=True):
        alone = fit((*task, False))
        assert found.keys() == alone.keys()
        for name, value in alone.items():
            assert found[name].dtype == value.dtype
            np.testing.assert_array_equal(found[name], value)
