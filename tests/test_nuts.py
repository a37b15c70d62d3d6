"""The models under NUTS, their parameters lifted to random variables."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import MCMC, NUTS

from ppl_dgp.models import deep_gp, exact_gp_regression, sparse_gp_regression

X = jnp.linspace(-1.5, 1.5, 8)[:, None]
Y = jnp.sin(2 * X)

pytestmark = pytest.mark.slow


def positive(shape=()):
    return dist.LogNormal(0.0, 0.5).expand(shape).to_event(len(shape))


CASES = {
    "exact": (exact_gp_regression(), {"gp/lengthscale": positive((1,)), "likelihood/noise": positive()}),
    "sparse": (sparse_gp_regression(3), {"gp/lengthscale": positive((1,)), "likelihood/noise": positive()}),
    "deep": (
        deep_gp((1,), 3, inner_noise=0.05),
        {"layer1/lengthscale": positive((1,)), "likelihood/noise": positive()},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_lifted_models_run_under_nuts(name):
    model, priors = CASES[name]
    # what has no prior stays where it starts
    sites = handlers.trace(handlers.seed(model, 0)).get_trace(X, Y)
    held = {k: s["value"] for k, s in sites.items() if s["type"] == "param" and k not in priors}
    lifted = handlers.lift(handlers.substitute(model, data=held), prior=priors)
    mcmc = MCMC(NUTS(lifted), num_warmup=100, num_samples=100, progress_bar=False)
    mcmc.run(jax.random.PRNGKey(0), X, Y)
    samples = mcmc.get_samples()
    assert set(priors) <= set(samples)
    assert all(np.isfinite(value).all() for value in samples.values())
    assert all((samples[site] > 0).all() and samples[site].std() > 0 for site in priors)
    # a smooth sine without noise: what is learnt of it is that there is little
    assert float(samples["likelihood/noise"].mean()) < 1.0
