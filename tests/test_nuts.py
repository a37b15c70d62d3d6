"""The models under NUTS: with parameters lifted to random variables, and as the measure of a guide's prediction."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from fast import few
from numpyro import handlers
from numpyro.infer import MCMC, NUTS, Predictive

from ppl_dgp.fit import fit_nuts, fit_svi
from ppl_dgp.gp.means import Linear
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import DoublyStochastic, Guide
from ppl_dgp.kernels import RBF
from ppl_dgp.models import deep_gp, exact_gp_regression, sparse_gp_regression
from ppl_dgp.objectives import PowerEP
from ppl_dgp.prediction.predict import predict

X = jnp.linspace(-1.5, 1.5, 8)[:, None]
Y = jnp.sin(2 * X)


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


@pytest.mark.slow
@pytest.mark.parametrize("name", few(CASES, 1))
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


TINY_X = jnp.linspace(-1.4, 1.4, 12)[:, None]
TINY_Y = jnp.tanh(3 * TINY_X) + 0.15 * jax.random.normal(jax.random.PRNGKey(2), (12, 1))


def tiny(x, y=None, index=None, size=None):
    """Two layers, one hidden unit, five inducing inputs that leave next to nothing of the kernels; all values fixed."""
    inducing = jnp.linspace(-2.2, 2.2, 5)[:, None]
    f1 = sparse_gp("layer1", RBF(0.3, 1.5), inducing, mean=Linear(jnp.eye(1)), initial_scale=0.01)
    f2 = sparse_gp("layer2", RBF(1.0, 1.2), inducing)
    with data_plate(size or x.shape[0], index):
        h = numpyro.sample("layer1/h", f1(x).noisy(0.02), infer={"role": "hidden"})
        numpyro.sample("y", f2(h).noisy(0.04), obs=y)


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ppl_dgp.fit.SamplingWarning")
def test_guide_and_fit_nuts_predict_as_plain_nuts_does():
    """The same model by both; the tolerance is that of the approximation, not of the draws.

    q(u¹) q(u²) is Gaussian and independent between layers, and q(h) is the model's own conditional, which y does not
    move: minimising KL[q‖p], such a q finds the posterior's centre and loses part of its spread. So the predictive mean
    is to lie within a third of NUTS' standard deviation of y, and the standard deviation between 0.8 and 1.1 of it.
    NUTS' own error is checked to be a tenth of that, and ``fit_nuts``, of other draws, to differ by no more.
    """
    mcmc = MCMC(
        NUTS(tiny, target_accept_prob=0.9), num_warmup=1000, num_samples=2000, num_chains=2,
        chain_method="vectorized", progress_bar=False,
    )  # fmt: skip
    mcmc.run(jax.random.PRNGKey(0), TINY_X, TINY_Y)
    # new rows have hidden variables of their own
    functions = {name: u for name, u in mcmc.get_samples().items() if name.endswith("/u")}
    new = jnp.linspace(-1.6, 1.6, 9)[:, None]
    draws = np.asarray(Predictive(tiny, functions)(jax.random.PRNGKey(1), new)["y"])[..., 0]
    mean, deviation = draws.mean(0), draws.std(0)
    by_chain = draws.reshape(2, 2000, 9).mean(1)
    assert (np.abs(by_chain[0] - by_chain[1]) < 0.1 * deviation).all()

    drawn = fit_nuts(
        jax.random.PRNGKey(3), tiny, TINY_X, TINY_Y, num_warmup=1000, num_samples=2000, num_chains=2
    )
    found = predict(jax.random.PRNGKey(1), drawn, new, num_samples=4000)
    assert (np.abs(found.mean[:, 0] - mean) < 0.1 * deviation).all()
    np.testing.assert_allclose(np.sqrt(found.variance[:, 0]), deviation, rtol=0.1)

    guide = Guide(tiny, hidden=DoublyStochastic())
    fit = fit_svi(jax.random.PRNGKey(0), tiny, guide, PowerEP(0.0, 10), TINY_X, TINY_Y, steps=3000)
    found = predict(jax.random.PRNGKey(1), fit, new, num_samples=4000)
    assert (np.abs(found.mean[:, 0] - mean) < deviation / 3).all()
    ratio = np.sqrt(found.variance[:, 0]) / deviation
    assert ratio.min() > 0.8 and ratio.max() < 1.1
