"""KL[q(u)‖p(u)] counts as often as it is said to: where the optimum then is, schedules, and what has no such term."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from fast import few
from numpyro.distributions.kl import kl_divergence
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import SVI, Trace_ELBO

from ppl_dgp import ApproximatePowerEP, Collapsed, Guide, Markov, PowerEP, SiteEnergy, WeightedKL, fit_svi
from ppl_dgp.models import deep_gp, gpssm, sparse_gp_regression
from ppl_dgp.objectives import BlackBoxAlpha, capabilities_of

KEY = jax.random.PRNGKey(5)
RANDOM = np.random.default_rng(0)
X = jnp.asarray(RANDOM.uniform(-1.0, 1.0, (25, 1)))
Y = jnp.sin(3.0 * X) + 0.1 * jnp.asarray(RANDOM.normal(size=(25, 1)))
SERIES = jnp.asarray(np.cumsum(RANDOM.normal(size=(12, 1)), 0))
CASES = {
    "regression": (sparse_gp_regression(6), None, X, Y, ["gp/u"]),
    "deep": (deep_gp((1,), 5), None, X, Y, ["layer1/u", "layer2/u"]),
    "series": (gpssm(1, num_inducing=5), Markov(), jnp.zeros((12, 0)), SERIES, ["transition/u"]),
}


def started(name):
    model, rule, x, y, sites = CASES[name]
    guide = Guide(model) if rule is None else Guide(model, hidden=rule)
    svi = SVI(model, guide, optax.adam(0.01), Trace_ELBO())
    params = svi.get_params(svi.init(KEY, x, y))
    # away from the start, where q(u) may be the prior
    moved = {key: 0.5 * value if key.endswith("u_scale") else value for key, value in params.items()}
    return model, guide, moved, (x, y), sites


@pytest.mark.parametrize("name", few(CASES, 0))
@pytest.mark.parametrize(
    "objective",
    few([PowerEP(0.0), PowerEP(0.5, 2), BlackBoxAlpha(0.5, 2), Trace_ELBO()], 1),
    ids=["PowerEP(0)", "PowerEP(0.5)", "BlackBoxAlpha", "Trace_ELBO"],
)
def test_the_divergence_counts_so_often(name, objective):
    """Beside the objective's own loss at the same draws, and NumPyro's closed form of the divergence."""
    if name == "series" and isinstance(objective, BlackBoxAlpha):
        pytest.skip("refused along a trajectory")
    model, guide, params, rows, sites = started(name)
    q = trace(substitute(seed(guide, KEY), data=params)).get_trace(*rows)
    p = trace(substitute(seed(model, KEY), data=params)).get_trace(*rows)
    divergence = sum(float(kl_divergence(q[site]["fn"], p[site]["fn"]).sum()) for site in sites)
    assert divergence > 0.1
    plain = float(objective.loss(KEY, params, model, guide, *rows))
    for weight in (0.0, 0.1, 1.0, 2.0):
        value = float(WeightedKL(objective, weight).loss(KEY, params, model, guide, *rows))
        assert value == pytest.approx(plain + (weight - 1.0) * divergence, rel=1e-5)


@pytest.mark.slow
def test_where_its_optimum_is():
    """With weight w data count 1/w times: q(u) is the posterior under a noise variance of w s²."""
    weight, variance = 0.2, 0.05
    model = sparse_gp_regression(5, noise=variance, train_inducing=False)
    guide = Guide(model)
    svi = SVI(model, guide, optax.adam(0.01), Trace_ELBO())
    params = svi.get_params(svi.init(KEY, X, Y))
    colder = sparse_gp_regression(5, noise=weight * variance, train_inducing=False)
    best = Collapsed().finish(params, colder, Guide(colder), X, Y)
    objective = WeightedKL(PowerEP(0.0), weight)

    def loss(of_u):
        return objective.loss(KEY, {**best, **of_u}, model, guide, X, Y)

    of_u = {name: value for name, value in best.items() if "/u_" in name}
    slopes = jax.grad(loss)(of_u)
    elsewhere = jax.grad(loss)({name: 1.05 * value for name, value in of_u.items()})
    for name, slope in slopes.items():
        assert (
            jnp.abs(jnp.tril(slope) if slope.ndim == 3 else slope).max()
            < 0.01 * jnp.abs(elsewhere[name]).max()
        )


@pytest.mark.slow
def test_schedules_and_alphas():
    """A schedule may return to 1, and so to the objective; without a step it has no loss."""
    schedule = optax.linear_schedule(0.02, 1.0, 10)
    model, guide, params, rows, _ = started("regression")
    value = lambda objective: float(objective.loss(KEY, params, model, guide, *rows))
    weighted = WeightedKL(PowerEP(optax.constant_schedule(0.5), 2), schedule)
    for step, weight in ((0, 0.02), (5, 0.51), (10, 1.0)):
        assert value(weighted.at_step(step)) == pytest.approx(
            value(WeightedKL(PowerEP(0.5, 2), weight)), rel=1e-5
        )
    assert value(WeightedKL(PowerEP(0.0, 2), 0.3).at_alpha(0.5)) == pytest.approx(
        value(WeightedKL(PowerEP(0.5, 2), 0.3)), rel=1e-6
    )
    with pytest.raises(ValueError, match="^weight: found a schedule without a step"):
        value(weighted)
    fit = fit_svi(KEY, model, guide, WeightedKL(PowerEP(0.0), schedule), *rows, steps=12)
    assert np.isfinite(fit.losses).all()


def test_what_it_promises():
    assert capabilities_of(WeightedKL(PowerEP(0.0), 1.5)).is_bound
    assert not capabilities_of(WeightedKL(PowerEP(0.0), 0.5)).is_bound
    assert not capabilities_of(WeightedKL(PowerEP(0.0), lambda step: 1.0)).is_bound
    assert not capabilities_of(WeightedKL(PowerEP(0.0), 1.0)).learns_streams
    assert WeightedKL(PowerEP(0.0), 0.1) == WeightedKL(PowerEP(0.0), 0.1)
    assert hash(WeightedKL(PowerEP(0.0), 0.1)) == hash(WeightedKL(PowerEP(0.0), 0.1))
    assert WeightedKL(PowerEP(0.0), 0.1) != WeightedKL(PowerEP(0.5), 0.1) != PowerEP(0.5)
    assert repr(WeightedKL(PowerEP(0.5, 3), 0.1)) == "WeightedKL(PowerEP(alpha=0.5, num_particles=3), 0.1)"


@pytest.mark.parametrize("objective", [ApproximatePowerEP(0.5), Collapsed(), SiteEnergy(0.5)], ids=repr)
def test_objectives_without_the_term(objective):
    with pytest.raises(ValueError, match=r"^objective: found .* is no term; take PowerEP"):
        WeightedKL(objective, 0.5)


@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf")])
def test_weights_that_are_none(weight):
    with pytest.raises(ValueError, match=f"^weight: found {weight}, expected a number from 0 on"):
        WeightedKL(PowerEP(0.0), weight)


@pytest.mark.parametrize(
    ("objective", "weight"), [(PowerEP, 0.5), ("power-ep", 0.5), (PowerEP(0.0), "small")]
)
def test_arguments_of_other_kinds(objective, weight):
    with pytest.raises(TypeError):
        WeightedKL(objective, weight)
