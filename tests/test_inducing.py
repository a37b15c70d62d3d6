"""Rules for inducing outputs: densities, closed-form KLs, and the ways u may be carried, against explicit Gaussians."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from compiled import initial, noise_like, on_host
from fast import few, seldom
from numpyro import handlers
from numpyro.distributions.kl import kl_divergence
from numpyro.infer import Trace_ELBO
from rules import INDUCING as RULES
from rules import carried
from scipy import stats

from ppl_dgp.fit import Posterior
from ppl_dgp.guides import (
    AcrossOutputs,
    Conditional,
    Coupled,
    Decoupled,
    Diagonal,
    DoublyStochastic,
    FullRank,
    Guide,
    LayerChain,
    LowRank,
    MeanField,
)
from ppl_dgp.guides.structured import loadings
from ppl_dgp.models import deep_gp
from ppl_dgp.objectives import BlackBoxAlpha, PowerEP
from ppl_dgp.prediction.joint import sample_functions
from ppl_dgp.prediction.predict import predict

KEY = jax.random.PRNGKey(11)
X = jnp.linspace(-1.5, 1.5, 6)[:, None] * jnp.array([[1.0, -0.5]])
Y = jnp.sin(2 * X[:, :1])
MODEL = deep_gp((2, 2), 3, inner_noise=0.05)
OWN = DoublyStochastic()
SITES = ("layer1/u", "layer2/u", "layer3/u")


@cache
def started(rule, hidden=OWN):
    """A guide and parameters that are nowhere special."""
    guide = Guide(MODEL, hidden=hidden, inducing=rule)
    return guide, _moved(initial(KEY, MODEL, guide, X, Y))


def _moved(params):
    moved = {}
    for position, (name, value) in enumerate(sorted(on_host(params).items())):
        step = 0.3 * noise_like(value, position)
        if name.endswith("_scale") and (value.ndim == 3 or value.shape[-1] == value.shape[-2] > 1):
            moved[name] = np.tril(step, -1) + 0.4 * np.eye(value.shape[-1])
        elif "/u_" in name and not name.endswith("_scale"):
            moved[name] = value + step
        else:
            moved[name] = value * np.exp(0.3 * step)
    return {name: jnp.asarray(value) for name, value in moved.items()}


def sites_of(rule, key=KEY):
    guide, params = started(rule)
    found = handlers.trace(handlers.substitute(handlers.seed(guide, key), data=params)).get_trace(X, Y)
    return [found[name]["fn"] for name in SITES], [found[name]["value"] for name in SITES]


def dense(rule):
    """Mean and covariance of all u together, from the loadings of each layer on the independent noise."""
    qs, _ = sites_of(rule)
    if isinstance(rule, AcrossOutputs | Decoupled | Diagonal | LowRank):
        blocks = []
        for q in qs:
            if isinstance(rule, AcrossOutputs):
                blocks.append(np.asarray(q.scale @ q.scale.T))
            else:
                blocks += list(np.asarray(q.moments.covariance()))
        size = sum(len(block) for block in blocks)
        covariance, start = np.zeros((size, size)), 0
        for block in blocks:
            covariance[start : start + len(block), start : start + len(block)] = block
            start += len(block)
    else:
        roots = [np.asarray(loadings(q)).reshape(-1, q.loc.size) for q in qs]
        if not isinstance(rule, LayerChain | Coupled):  # independent layers: each has noise of its own
            rows, seen = [], 0
            total = sum(root.shape[0] for root in roots)
            for root in roots:
                rows.append(np.zeros((total, root.shape[1])))
                rows[-1][seen : seen + root.shape[0]] = root
                seen += root.shape[0]
            roots = rows
        longest = max(root.shape[0] for root in roots)
        root = np.concatenate([np.pad(r, ((0, longest - r.shape[0]), (0, 0))) for r in roots], axis=1)
        covariance = root.T @ root
    return np.concatenate([np.ravel(q.loc) for q in qs]), covariance


@pytest.mark.slow
@pytest.mark.parametrize("name", few(RULES, 3, 7, 8))
def test_density_of_all_layers_is_the_joint_gaussians(name):
    qs, values = sites_of(RULES[name])
    mean, covariance = dense(RULES[name])
    ours = sum(float(q.log_prob(value)) for q, value in zip(qs, values, strict=True))
    expected = stats.multivariate_normal(mean, covariance).logpdf(
        np.concatenate([np.ravel(v) for v in values])
    )
    np.testing.assert_allclose(ours, expected, rtol=1e-9)


@pytest.mark.parametrize("name", few(RULES, 0, 1, 2, 3, 4, 7, 9))
def test_kl_is_the_joint_gaussians(name):
    qs, _ = sites_of(RULES[name])
    mean, covariance = dense(RULES[name])
    prior = [dist.Normal(0.0, 1.0).expand(q.event_shape).to_event(2) for q in qs]
    ours = sum(float(kl_divergence(q, p)) for q, p in zip(qs, prior, strict=True))
    exact = 0.5 * (np.trace(covariance) + mean @ mean - len(mean) - np.linalg.slogdet(covariance)[1])
    np.testing.assert_allclose(ours, exact, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", few(RULES, 2, 4))
def test_kl_against_draws(name):
    """1e5 draws of log q − log p, within four standard errors of the closed form."""
    guide, params = started(RULES[name])
    qs, _ = sites_of(RULES[name])
    prior = [dist.Normal(0.0, 1.0).expand(q.event_shape).to_event(2) for q in qs]
    exact = sum(float(kl_divergence(q, p)) for q, p in zip(qs, prior, strict=True))

    def difference(key):
        found = handlers.trace(handlers.substitute(handlers.seed(guide, key), data=params)).get_trace(X, Y)
        return sum(
            found[s]["fn"].log_prob(found[s]["value"]) - dist.Normal().log_prob(found[s]["value"]).sum()
            for s in SITES
        )

    values = np.asarray(jax.jit(jax.vmap(difference))(jax.random.split(KEY, 100_000)))
    assert abs(values.mean() - exact) < 4.0 * values.std() / np.sqrt(len(values))


@pytest.mark.parametrize(
    "name",
    few(
        [
            "low-rank",
            "across-outputs",
            pytest.param("layer-chain", marks=pytest.mark.slow),
            "coupled-stripes",
        ],
        1,
    ),
)
@pytest.mark.slow
def test_every_way_to_carry_u_has_the_same_expectation(name):
    """Joint draws (NumPyro's own Trace_ELBO would see the FITC model, so α = 0 here), per-datum draws and moments."""
    guide, params = started(RULES[name])
    means, errors = [], []
    for representation in ("marginal", "per_datum_sample", "shared_sample"):
        asking = carried(guide, representation)
        run = jax.jit(jax.vmap(lambda key, g=asking: PowerEP(0.0).loss(key, params, MODEL, g, X, Y)))
        values = np.asarray(run(jax.random.split(KEY, 20_000)))
        means.append(values.mean())
        errors.append(values.std() / np.sqrt(len(values)))
    for i in (1, 2):
        assert abs(means[i] - means[0]) < 4.0 * np.hypot(errors[i], errors[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["layer-chain", "layer-chain-rank", "coupled-stripes", "coupled-full", "low-rank"]
)
def test_a_richer_rule_contains_the_poorer_one(name):
    """Without links (or factors) they are FullRank (or Diagonal): the same bound with the same draws."""
    poorer = Diagonal() if name == "low-rank" else FullRank()
    guide, params = started(poorer)
    rich, start = started(RULES[name])
    extra = {k: jnp.zeros_like(v) for k, v in start.items() if k not in params}
    values = [
        jax.jit(jax.vmap(lambda key, g=g, p=p: PowerEP(0.0).loss(key, p, MODEL, g, X, Y)))(
            jax.random.split(KEY, 4000)
        )
        for g, p in ((guide, params), (rich, {**params, **extra}))
    ]
    error = np.hypot(*(np.std(v) for v in values)) / np.sqrt(4000)
    assert abs(values[0].mean() - values[1].mean()) < 4.0 * error


@pytest.mark.slow  # a minute of compiling
@pytest.mark.parametrize("name", seldom(["across-outputs", "layer-chain", "coupled-full"], 1))
def test_it_serves_every_objective_and_prediction(name):
    guide, params = started(RULES[name], Conditional())
    mean_field, other = started(RULES[name], MeanField())
    for objective in (PowerEP(0.5), BlackBoxAlpha(0.5), Trace_ELBO()):
        loss = jax.jit(jax.value_and_grad(lambda p, o=objective, g=guide: o.loss(KEY, p, MODEL, g, X, Y)))
        value, gradient = loss(params)
        assert np.isfinite(value)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert np.isfinite(PowerEP(0.0).loss(KEY, other, MODEL, mean_field, X, Y))
    found = predict(KEY, Posterior(MODEL, guide, params), X, Y, num_samples=20)
    assert np.isfinite(found.log_density).all()
    assert sample_functions(KEY, Posterior(MODEL, guide, params), X, 2).shape == (2, 6, 1)


@pytest.mark.slow
def test_coupled_predictions_are_those_of_joint_draws():
    """The mixture over per-datum draws has the moments of functions drawn with u as a whole."""
    guide, params = started(RULES["coupled-full"])
    found = predict(KEY, Posterior(MODEL, guide, params), X, num_samples=4000)

    def one(key):
        key_u, key_h = jax.random.split(key)
        traced = handlers.trace(handlers.substitute(handlers.seed(guide, key_u), data=params)).get_trace(X, Y)
        u = {s: traced[s]["value"] for s in SITES}
        run = handlers.seed(handlers.substitute(handlers.substitute(MODEL, data=params), data=u), key_h)
        return handlers.trace(run).get_trace(X)["y"]["fn"].mean

    means = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.PRNGKey(5), 20_000)))
    error = np.hypot(means.std(0) / np.sqrt(len(means)), np.sqrt(found.f_variance / 4000))
    assert (np.abs(means.mean(0) - found.mean) < 4.5 * error).all()


@pytest.mark.parametrize(
    "make",
    [lambda: LowRank(0), lambda: LayerChain(rank=0), lambda: Coupled("arrow")],
    ids=["low", "chain", "coupled"],
)
def test_impossible_settings_are_refused(make):
    with pytest.raises(ValueError, match="expected"):
        make()
