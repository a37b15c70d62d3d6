"""Gaussian factors of a guide's q: which there are, and where their natural steps lead, such as Kalman's smoother."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
import pytest
from numpyro.distributions import biject_to, constraints
from numpyro.infer import SVI
from numpyro.infer.autoguide import AutoNormal
from scipy.optimize import minimize
from test_fit import compilations

from ppl_dgp.checkpoint import CheckpointError
from ppl_dgp.fit import fit_lbfgs, fit_svi, gaussian_factors, natural_adam
from ppl_dgp.fit.factor_kinds import ChainFactor, FullRankFactor, RowsFactor
from ppl_dgp.guides import (
    AcrossOutputs,
    Conditional,
    Diagonal,
    DoublyStochastic,
    Guide,
    LowRank,
    Markov,
    MeanField,
    Optimal,
)
from ppl_dgp.kernels import RBF
from ppl_dgp.models import deep_gp, gplvm, gpssm
from ppl_dgp.numerics.natural_gaussian import natural_step
from ppl_dgp.objectives import Collapsed, PowerEP
from ppl_dgp.state_space.kalman import LinearEmission, smoothed_posterior
from ppl_dgp.state_space.linear_gaussian_chain import LinearGaussianChain

KEY = jax.random.key(0)
MOMENTS = PowerEP(0.0, propagation="moments")
NOISE, PROCESS = 0.1, 0.3
#: two sequences of 5 and 7 steps, one control
LENGTHS = 5, 7
RANDOM = np.random.default_rng(0)
X = np.column_stack([RANDOM.normal(size=12), np.repeat([0, 1], LENGTHS)])
Y = np.concatenate([np.cumsum(RANDOM.normal(size=(length, 2)), 0) for length in LENGTHS])


def nearly_nothing(dims):
    return RBF(1e-12, jnp.ones(dims))


def walk(num_sequences=2, **settings):
    """A random walk of two states, both observed, which the control does not move: the model without its GP."""
    return gpssm(
        2, 2, 3, kernel=nearly_nothing, emission="identity", noise=NOISE, process_noise=PROCESS,
        num_sequences=num_sequences, **settings,
    )  # fmt: skip


def smoothed(y, process=PROCESS):
    """Kalman's smoother of one sequence of the walk, and its log evidence."""
    steps, eye = len(y), jnp.eye(2)
    many = lambda matrix: jnp.broadcast_to(matrix, (steps, 2, 2))
    chain = LinearGaussianChain(jnp.zeros(2), eye, many(eye), jnp.zeros((steps, 2)), many(process**0.5 * eye))
    rows = jnp.concatenate([jnp.full((1, 2), jnp.nan), y])
    return smoothed_posterior(chain, rows, LinearEmission(eye, jnp.zeros(2), NOISE**0.5 * eye))


def pieces(*process):
    """Those of both sequences."""
    return [smoothed(rows, *process) for rows in jnp.split(jnp.asarray(Y), [LENGTHS[0]])]


PIECES = jax.jit(pieces)()
EVIDENCE = float(sum(evidence for _, evidence in PIECES))


@pytest.mark.slow
@pytest.mark.parametrize("full", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_one_step_on_a_linear_system_of_several_sequences_is_kalmans_smoother(full):
    model = walk()
    guide = Guide(model, hidden=Markov(full=full))
    factors = gaussian_factors(guide, X, Y)
    assert factors.factors == (FullRankFactor("transition/u"), ChainFactor("x", (0, 5), "x"))
    fit = fit_svi(KEY, model, guide, MOMENTS, X, Y, steps=2, optimizer=natural_adam(1.0, 0.0, factors))
    # the posterior's two states are independent of each other: a chain with independent noise is enough
    np.testing.assert_allclose(-fit.losses[0, 1], EVIDENCE, rtol=1e-7)
    assert -fit.losses[0, 0] < EVIDENCE - 1.0
    slopes = np.concatenate([chain.slopes for chain, _ in PIECES])
    np.testing.assert_allclose(fit.params["x_slope"], slopes, atol=1e-5)


@pytest.mark.slow
def test_mean_field_steps_end_at_the_diagonal_of_the_smoothers_precision():
    model = walk()
    guide = Guide(model, hidden=MeanField())
    factors = gaussian_factors(guide, X, Y)
    assert factors.factors[1:] == (RowsFactor("x", False, "x"), RowsFactor("x_0"))
    fit = fit_svi(KEY, model, guide, MOMENTS, X, Y, steps=300, optimizer=natural_adam(0.5, 0.0, factors))
    means = np.concatenate([chain.marginals().means[1:] for chain, _ in PIECES])
    np.testing.assert_allclose(fit.params["x_loc"], means, atol=1e-6)
    # J_tt = 2/Q + 1/R, of the last of a sequence 1/Q + 1/R
    precision = np.full(12, 2.0 / PROCESS + 1.0 / NOISE)
    precision[[LENGTHS[0] - 1, -1]] -= 1.0 / PROCESS
    deviations = fit.params["x_scale"] * PROCESS**0.5
    np.testing.assert_allclose(deviations, np.repeat(precision[:, None] ** -0.5, 2, 1), rtol=1e-6)


@pytest.mark.slow
def test_lbfgs_by_natural_gradients_finds_the_noises_of_the_largest_evidence():
    model = walk()
    guide = Guide(model, hidden=Markov(full=True), inducing=Optimal())
    fit = fit_lbfgs(KEY, model, X, Y, guide=guide, objective=Collapsed(), steps=100, natural=True)
    loss = lambda logs: -sum(piece for _, piece in pieces(jnp.exp(logs)))
    best = minimize(jax.jit(jax.value_and_grad(loss)), np.log([PROCESS, PROCESS]), jac=True)
    np.testing.assert_allclose(fit.losses[0, -1], best.fun, rtol=1e-6)
    np.testing.assert_allclose(fit.params["transition/noise"], np.exp(best.x), rtol=1e-3)
    assert fit.steps < 60


def test_every_factor_of_a_guide_is_found():
    x, y = RANDOM.normal(size=(12, 3)), RANDOM.normal(size=(12, 1))
    deep = deep_gp((2,), 4)
    of = lambda guide, x=x: gaussian_factors(guide, x, y).factors
    layers = "layer1", "layer2"
    assert of(Guide(deep)) == tuple(FullRankFactor(f"{layer}/u") for layer in layers)
    diagonal = of(Guide(deep, hidden=MeanField(full=True), inducing=Diagonal()))
    rows = RowsFactor("layer1/h", True, "layer1/h")
    assert set(diagonal) == {*(RowsFactor(f"{layer}/u") for layer in layers), rows}
    joint = of(Guide(deep, hidden=Conditional(), inducing=AcrossOutputs()))
    assert joint == tuple(FullRankFactor(f"{layer}/u", True) for layer in layers)
    latent = gplvm(1, 2, 4)
    assert RowsFactor("x") in gaussian_factors(Guide(latent, hidden=MeanField()), None, y).factors
    # the model's own steps have no parameters, and x_0 alone has a q of its own
    series = gpssm(1, 1, 4, emission="identity")
    found = gaussian_factors(Guide(series, hidden=DoublyStochastic()), None, y).factors
    assert not any(isinstance(factor, ChainFactor) for factor in found)


def test_equal_guides_have_equal_factors_and_the_same_optimiser():
    y = RANDOM.normal(size=(12, 1))
    one, other = (
        gaussian_factors(Guide(gpssm(1, 1, 4), hidden=Markov()), None, data) for data in (y, y + 1.0)
    )
    assert one == other and hash(one) == hash(other)
    assert natural_adam(factors=one) is natural_adam(factors=other)
    assert one != gaussian_factors(Guide(gpssm(1, 1, 4), hidden=MeanField()), None, y)


def of_steps():
    model = gpssm(1, 1, 3, emission="identity", timed=True)
    return model, Guide(model, hidden=Markov(), inducing=Optimal())


@pytest.mark.slow
def test_factors_at_any_controls_go_by_those_of_the_table_at_hand():
    model, guide = of_steps()
    lengths, y = jnp.asarray(RANDOM.uniform(0.5, 1.5, (6, 1))), jnp.asarray(RANDOM.normal(size=(6, 1)))
    one, other = (gaussian_factors(guide, x, y) for x in (lengths, 2.0 * lengths))
    assert one != other and one.at_any() == other.at_any() and hash(one.at_any()) == hash(other.at_any())
    assert one.at_any() != gaussian_factors(guide, lengths[1:], y[1:]).at_any()
    svi = SVI(model, guide, numpyro.optim.Adam(0.1), Collapsed())
    params = svi.optim.get_params(svi.init(KEY, lengths, y).optim_state)
    of = lambda factors: np.asarray(factors.units(params)[0])
    # of twice the steps' lengths noise has twice the variance
    np.testing.assert_array_equal(of(one.at_any().at(2.0 * lengths, y)), of(other))
    np.testing.assert_allclose(of(other), 2.0**0.5 * of(one), rtol=1e-12)


@pytest.mark.slow
def test_natural_descent_at_other_controls_compiles_nothing():
    model, guide = of_steps()
    y = RANDOM.normal(size=(6, 1))
    by = lambda x: fit_lbfgs(KEY, model, x, y, guide=guide, objective=Collapsed(), steps=2, natural=True)
    by(np.full((6, 1), 1.0))
    assert compilations(lambda: by(np.full((6, 1), 0.5))) == 0


def test_rows_take_the_steps_of_independent_gaussians_and_of_minibatches_their_own():
    loc, scale = RANDOM.normal(size=(4, 2)), 0.3 * RANDOM.normal(size=(4, 2))
    slopes = {"h_loc": RANDOM.normal(size=(4, 2)), "h_scale": 0.4 * RANDOM.normal(size=(4, 2))}
    params, unit = {"h_loc": jnp.asarray(loc), "h_scale": jnp.asarray(scale)}, jnp.array([0.5, 2.0])
    step = jax.jit(lambda slopes: RowsFactor("h").step(params, slopes, jnp.asarray(0.3), jnp.inf, unit))
    found = step(slopes)
    flat = lambda values: jnp.asarray(values).reshape(8, 1)
    one = jax.jit(jax.vmap(natural_step, in_axes=(0, 0, 0, 0, None)))(
        flat(loc / unit), flat(scale), flat(slopes["h_loc"] * unit), flat(slopes["h_scale"]), jnp.asarray(0.3)
    )
    np.testing.assert_allclose(found.params["h_loc"], one.loc.reshape(4, 2) * unit, rtol=1e-10)
    np.testing.assert_allclose(found.params["h_scale"], one.scale.reshape(4, 2), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.divergence, one.divergence.sum(), rtol=1e-8)
    # half of the rows at hand, each for two
    held = np.array([1.0, 0.0, 1.0, 0.0])[:, None]
    batch = step({name: 2.0 * held * slope for name, slope in slopes.items()})
    for name, before in params.items():
        expected = np.where(held > 0, found.params[name], before)
        np.testing.assert_allclose(batch.params[name], expected, rtol=1e-12)


@pytest.mark.parametrize("noise", [0.0, 3.0])
def test_a_rate_that_adapts_grows_where_steps_agree_and_falls_where_they_are_noise(noise):
    """KL to a fixed Gaussian, its gradient exact or with noise: ρ = 1 is exact, and only ρ → 0 averages noise out."""
    size, bijection = 5, biject_to(constraints.lower_cholesky)
    target = RANDOM.normal(size=size)

    def loss(params, key):
        lower = bijection(params["u_scale"][0])
        difference = params["u_loc"][0] - target
        drawn = noise * jax.random.normal(key, (size,)) @ params["u_loc"][0]
        covariance = 0.5 * jnp.square(lower).sum() - jnp.log(jnp.diagonal(lower)).sum()
        return 0.5 * jnp.square(difference).sum() + drawn + covariance

    optimizer = natural_adam("auto")
    start = {"u_loc": jnp.zeros((1, size)), "u_scale": jnp.zeros((1, size * (size + 1) // 2)) - 0.5}

    @jax.jit
    def run(key):
        def turn(carry, key):
            params, state = carry
            updates, state = optimizer.update(jax.grad(loss)(params, key), state, params)
            return (optax.apply_updates(params, updates), state), state.rates[0]

        return jax.lax.scan(turn, (start, optimizer.init(start)), jax.random.split(key, 2000))

    (params, state), rates = run(KEY)
    error = np.sqrt(np.mean((params["u_loc"][0] - target) ** 2))
    if noise == 0.0:
        assert rates[60] > 0.5 and error < 1e-8
    else:
        # at a constant ρ of 0.1 the means would be off by 3 √(ρ / 2) = 0.7
        assert rates[-1] < 0.05 and error < 0.4
    assert state.steps == 2000


def test_refusals_say_what_was_expected():
    y = RANDOM.normal(size=(12, 1))
    deep = deep_gp((1,), 4)
    with pytest.raises(TypeError, match="guide: found function, expected a Guide of this package"):
        gaussian_factors(lambda x, y: None, None, y)
    with pytest.raises(ValueError, match="guide: found others=AutoNormal, expected none"):
        gaussian_factors(Guide(deep, others=AutoNormal), y, y)
    with pytest.raises(ValueError, match="guide: found no Gaussian factor in q"):
        gaussian_factors(Guide(deep, inducing=LowRank(1)), y, y)
    with pytest.raises(ValueError, match="reach: found 0.0, expected a positive number of nats"):
        natural_adam(reach=0.0)
    factors = gaussian_factors(Guide(deep, hidden=MeanField()), y, y)
    with pytest.raises(ValueError, match="factors: found those of another guide, with layer1/h_loc"):
        fit_svi(KEY, deep, Guide(deep), MOMENTS, y, y, steps=1, optimizer=natural_adam(factors=factors))
    with pytest.raises(TypeError, match="guide: found function, expected a Guide"):
        fit_lbfgs(KEY, deep, y, y, guide=lambda x, y: None, natural=True)


@pytest.mark.slow
def test_lbfgs_by_natural_gradients_resumed_equals_uninterrupted(tmp_path):
    model = walk()
    settings = {
        "guide": Guide(model, hidden=Markov(), inducing=Optimal()),
        "objective": Collapsed(),
        "natural": True,
    }
    whole = fit_lbfgs(KEY, model, X, Y, steps=22, **settings)
    # within the first steps, and within those of L-BFGS
    for steps in (7, 18, 22):
        fit = fit_lbfgs(
            KEY, model, X, Y, steps=steps, checkpoint=tmp_path / "saved", resume=steps > 7, **settings
        )
    np.testing.assert_array_equal(fit.losses, whole.losses)
    for name, value in whole.params.items():
        np.testing.assert_array_equal(fit.params[name], value)
    with pytest.raises(CheckpointError):
        fit_lbfgs(
            KEY,
            model,
            X,
            Y,
            steps=30,
            checkpoint=tmp_path / "saved",
            resume=True,
            **settings | {"natural": False},
        )
