"""Rules for hidden variables: their weights against quadrature, and what a guide refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compiled import initial, loss
from fast import few, seldom
from numpyro import handlers
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from rules import CASES, MODEL, RULES, X, Y
from scipy import stats

from ppl_dgp.gp.emission import Emission
from ppl_dgp.gp.marginal import Marginal
from ppl_dgp.gp.means import Zero
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.guides import Conditional, Diagonal, DoublyStochastic, FullRank, Guide, LowRank, MeanField
from ppl_dgp.kernels import RBF
from ppl_dgp.likelihoods import Gaussian

KEY = jax.random.PRNGKey(3)


def emission(mean, variance, noise):
    """A layer's step with given moments of f."""
    function = SparseGP("f", RBF(1.0, 1.0), jnp.zeros((1, 1)), jnp.eye(1), Zero(), jnp.zeros((1, 1)))
    one = jnp.ones((1, 1))
    marginal = Marginal(function, one, one, mean * one, variance * one, 0.0 * one)
    return Emission(marginal, Gaussian(jnp.asarray(noise)))


@pytest.mark.parametrize("alpha", [0.0, 1e-3, 0.5, 1.0])
@pytest.mark.parametrize("gain, spread", [(0.8, 0.05), (-0.4, 0.3), (1.0, 0.1), (0.0, 0.2)])
def test_coupled_weight_is_the_integral_over_f(gain, spread, alpha):
    """(1/α) log ∫ q(f | h) (p(h | f) / q(h | f))^α df, and its limit E_{q(f|h)} log p/q."""
    mean, variance, noise, h, loc = 0.3, 0.5, 0.1, 0.55, -0.2
    params = {
        "shrinkage": jnp.full((1, 1), (1 - gain) / noise**0.5),
        "loc": jnp.full((1, 1), loc),
        "scale": jnp.full((1, 1), (spread / noise) ** 0.5),
    }
    found = Conditional().log_weight(params, emission(mean, variance, noise), jnp.full((1, 1), h), alpha)
    f = np.linspace(mean - 9, mean + 9, 200_001)
    log_q = stats.norm.logpdf(h, gain * f + (1 - gain) * loc, spread**0.5)
    posterior = np.exp(log_q) * stats.norm.pdf(f, mean, variance**0.5)
    posterior /= np.trapezoid(posterior, f)
    # both factors share q(h), which the rule also draws from: p(h, f)/q(h, f) = p(h|f)/q(h|f)
    ratio = stats.norm.logpdf(h, f, noise**0.5) - log_q
    if alpha == 0.0:
        expected = np.trapezoid(posterior * ratio, f)
    else:
        expected = np.log(np.trapezoid(posterior * np.exp(alpha * ratio), f)) / alpha
    np.testing.assert_allclose(found, [expected], atol=1e-8)


@pytest.mark.parametrize("spread", [1e-12, 1e-40, 1e-120, 1e-200])
def test_coupled_weight_falls_as_the_entropy_where_q_knows_h_given_f(spread):
    """E log p(h|f)/q(h|f) → log N(h; f, s²) + log(2πS)/2 + 1/2 at f = (h − b)/c, or f ~ N(m, v) for c = 0.

    It was found by training to rise without end: rounding of h − c f − b, squared, over S.
    """
    mean, variance, noise, loc = 0.3, 0.5, 0.1, -0.2
    for gain, h in ((0.8, 0.55), (0.0, np.nextafter(loc, 0.0))):
        params = {
            "shrinkage": jnp.full((1, 1), (1 - gain) / noise**0.5),
            "loc": jnp.full((1, 1), loc),
            "scale": jnp.full((1, 1), (spread / noise) ** 0.5),
        }
        found = Conditional().log_weight(params, emission(mean, variance, noise), jnp.full((1, 1), h), 0.0)
        f = (h - (1 - gain) * loc) / gain if gain else mean
        expected = stats.norm.logpdf(h, f, noise**0.5) + 0.5 * np.log(2 * np.pi * spread)
        if gain:
            np.testing.assert_allclose(found, [expected + 0.5], atol=1e-6)
        else:
            np.testing.assert_allclose(found, [expected - 0.5 * variance / noise], atol=0.5)


def test_coupled_weight_in_32_bits():
    """Small α and a near-deterministic q lose no digits: closed forms by log1p and without cancellation."""
    for alpha, spread in [(1e-4, 0.05), (1e-3, 1e-4), (0.5, 1e-4)]:
        results = []
        for dtype in (jnp.float32, jnp.float64):
            cast = lambda a: jnp.full((1, 1), a, dtype)  # noqa: B023, E731
            params = {"shrinkage": cast(1.0), "loc": cast(0.25), "scale": cast(2 * spread**0.5)}
            function = SparseGP("f", RBF(1.0, 1.0), cast(0), cast(1), Zero(), cast(0))
            step = Emission(
                Marginal(function, cast(1), cast(1), cast(0.25), cast(0.5), cast(0)), Gaussian(cast(0.25))
            )
            results.append(float(Conditional().log_weight(params, step, cast(0.25), alpha)[0]))
        assert results[0] == pytest.approx(results[1], rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("inducing", seldom([FullRank(), Diagonal()], 1), ids=["full-rank", "diagonal"])
@pytest.mark.parametrize("name", few(RULES, 0, 3, 6))
def test_every_rule_runs_in_numpyros_own_elbo(name, inducing):
    guide = Guide(MODEL, hidden=RULES[name], inducing=inducing)
    assert np.isfinite(loss(Trace_ELBO(), initial(KEY, MODEL, guide, X, Y), MODEL, guide, X, Y))


def test_latents_without_a_role_need_a_guide():
    def model(x, y=None):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(a, 1.0).expand(x.shape[:1]).to_event(1), obs=y)

    with pytest.raises(ValueError, match="'a' without a role"):
        handlers.seed(Guide(model), KEY)(X, Y[:, 0])
    approximated = handlers.seed(Guide(model, others=AutoNormal), KEY)(X, Y[:, 0])
    assert set(approximated) == {"a"}


def test_bad_arguments_are_named():
    for argument in ("hidden", "inducing", "latent"):
        with pytest.raises(TypeError, match=argument):
            Guide(MODEL, **{argument: FullRank() if argument != "inducing" else MeanField()})
        with pytest.raises(ValueError, match=f"{argument}: found 'no-rule', which is unknown; choose from"):
            Guide(MODEL, **{argument: "no-rule"})
    assert Guide(MODEL, "mean-field", "low-rank") == Guide(MODEL, MeanField(), LowRank(10))
    assert Guide(MODEL) == Guide(MODEL, DoublyStochastic(), FullRank())
    with pytest.raises(TypeError, match="model"):
        Guide(3)


@pytest.mark.parametrize("name", CASES)
def test_parameters_are_linear_in_the_rows(name):
    guide = Guide(MODEL, hidden=CASES[name].rule)

    def number(rows):
        svi = SVI(MODEL, guide, numpyro.optim.Adam(0.01), Trace_ELBO())
        x, y = jnp.zeros((rows, 2)), jnp.zeros((rows, 1))
        shapes = jax.eval_shape(lambda: svi.get_params(svi.init(KEY, x, y)))
        return sum(np.prod(value.shape) for value in shapes.values())

    assert number(40) - number(20) == 20 * CASES[name].values
