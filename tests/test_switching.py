"""Switching state space models: sums over regimes by brute force and by funsor, Kalman's evidence, one regime alone."""

from dataclasses import replace
from functools import cache
from itertools import permutations, product

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compiled import initial, loss, refuse
from fast import few
from numpyro.contrib.control_flow import scan
from numpyro.contrib.funsor import config_enumerate, enum, log_density
from numpyro.handlers import seed, trace
from numpyro.ops.indexing import Vindex
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from test_gpssm import CONTROLS, KEY, NOISE, NONE, PROCESS, T, Y, mean_of, moved, nearly_nothing, random_walk

from ppl_dgp.fit import Posterior, fit_svi
from ppl_dgp.gp.means import Linear
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.guides import Amortised, Conditional, DoublyStochastic, Guide, Markov, MeanField
from ppl_dgp.guides.trajectory import TrajectoryConditional
from ppl_dgp.kernels import RBF
from ppl_dgp.models import gpssm, switching_gpssm
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.linalg import inverse_lower
from ppl_dgp.objectives import PowerEP
from ppl_dgp.prediction.regimes import regime_probabilities
from ppl_dgp.state_space.hidden_markov import RegimeChain, regime_regressions
from ppl_dgp.state_space.sequences import Layout
from ppl_dgp.state_space.switching_trajectory import SwitchingTrajectory

CHAIN = RegimeChain(jnp.array([0.7, 0.3]), jnp.array([[0.8, 0.2], [0.35, 0.65]]))
#: two sequences of 4 and 2 steps
CUT = 4
FIRST = jnp.isin(jnp.arange(T), jnp.array([0, CUT]))
X = jnp.column_stack([CONTROLS, (jnp.arange(T) >= CUT).astype(float)])


def log_prior(sequence, chain=CHAIN, first=FIRST):
    """log p(s) of all sequences, step by step."""
    total = 0.0
    for t, regime in enumerate(sequence):
        row = chain.initial if first[t] else chain.transition[sequence[t - 1]]
        total += np.log(float(row[regime]))
    return total


def enumerated(weights, chain=CHAIN, first=FIRST):
    """log Σ_s p(s) exp Σ_t w_t(s_t) over all K^T sequences, and the probabilities of each step."""
    weights = np.asarray(weights)
    steps, regimes = weights.shape
    sequences = np.array(list(product(range(regimes), repeat=steps)))
    each = weights[np.arange(steps), sequences].sum(1) + [log_prior(s, chain, first) for s in sequences]
    shares = np.exp(each - logsumexp(each))
    return logsumexp(each), np.stack([shares @ (sequences == k) for k in range(regimes)], 1)


def test_regimes_are_summed_out_exactly():
    """Against all 3^5 sequences, of a whole series and of one cut in two."""
    random = np.random.default_rng(0)
    chain = RegimeChain(*(jnp.asarray(random.dirichlet(np.ones(3), size)) for size in (None, 3)))
    weights = jnp.asarray(3.0 * random.normal(size=(5, 3)))
    summed = jax.jit(lambda chain, *about: (chain.log_evidence(*about), chain.probabilities(*about)))
    for first in (np.arange(5) == 0, np.isin(np.arange(5), [0, 2])):
        total, shares = enumerated(weights, chain, first)
        increments, found = summed(chain, weights, jnp.asarray(first))
        assert float(increments.sum()) == pytest.approx(total, abs=1e-10)
        # what the first steps add is the evidence of these alone
        assert float(increments[:3].sum()) == pytest.approx(
            enumerated(weights[:3], chain, first[:3])[0], abs=1e-10
        )
        np.testing.assert_allclose(found, shares, atol=1e-10)


def test_regimes_that_cannot_be_are_never_taken():
    """Probabilities of 0, with a finite gradient: a cycle of three regimes is known from its first."""
    chain = RegimeChain(jnp.array([0.0, 1.0, 0.0]), jnp.eye(3)[jnp.array([1, 2, 0])])
    first = jnp.arange(5) == 0
    np.testing.assert_array_equal(jax.jit(chain.sample)(KEY, first), [1, 2, 0, 1, 2])
    total = lambda c: c.log_evidence(jnp.zeros((5, 3)), first).sum()
    value, slope = jax.jit(jax.value_and_grad(total))(chain)
    assert float(value) == pytest.approx(0.0, abs=1e-10)
    assert all(np.isfinite(leaf).all() for leaf in slope)


def test_regimes_are_drawn_as_their_chain_says():
    draws = np.asarray(jax.jit(jax.vmap(lambda key: CHAIN.sample(key, FIRST)))(jax.random.split(KEY, 20_000)))
    share = np.asarray(CHAIN.initial)
    for t in range(T):
        share = np.asarray(CHAIN.initial) if FIRST[t] else share @ np.asarray(CHAIN.transition)
        assert abs((draws[:, t] == 0).mean() - share[0]) < 4 * 0.5 / 20_000**0.5


def trajectory(weights, bias, noise, controls, first, variance=1e-12):
    """Two regimes with K·Q outputs about linear means, u a draw."""
    kernel = RBF(variance, jnp.ones(len(weights)))
    z = jax.random.normal(KEY, (3, len(weights)))
    whiten = inverse_lower(jnp.linalg.cholesky(kernel(z, z) + 1e-8 * variance * jnp.eye(3)))
    u = jax.random.normal(jax.random.fold_in(KEY, 1), (noise.size, 3))
    function = SparseGP("f", kernel, z, whiten, Linear(jnp.asarray(weights), jnp.asarray(bias)), u)
    layout = Layout(jnp.asarray(first), int(first.sum()))
    shape = layout.num_sequences, noise.shape[1]
    start = Gaussian(jnp.zeros(shape), jnp.ones(shape))
    return SwitchingTrajectory(function, jnp.asarray(noise), CHAIN, controls, start, layout)


@cache
def parts():
    """A trajectory of two dimensions, its q and a path; and the trajectory with u as moments."""
    random = np.random.default_rng(4)
    noise = random.uniform(0.2, 0.5, size=(2, 2))
    drawn = trajectory(random.normal(size=(3, 4)), random.normal(size=4), noise, CONTROLS, FIRST, 0.7)
    function = replace(drawn.function, u=Gaussian(drawn.function.u, 0.2 * jnp.ones((4, 3))))
    about = drawn.noises, drawn.regimes, drawn.controls, drawn.initial, drawn.layout
    params = {
        "slope": random.normal(size=(T, 2, 3)),
        "loc": random.normal(size=(T, 2)),
        "scale": np.ones((T, 2)),
    }
    begun = {"loc": jnp.ones((2, 2)), "scale": 0.5 * jnp.ones((2, 2))}
    q = TrajectoryConditional(drawn, Markov(), jax.tree.map(jnp.asarray, params), MeanField(), begun)
    return drawn, q, jnp.asarray(random.normal(size=(T + 2, 2))), SwitchingTrajectory(function, *about)


def regime_weights(of, path, alpha):
    """t_α of each step under each regime, (T, K), in NumPy from the marginals of the functions."""
    where = of.layout
    inputs = jnp.concatenate([path[where.after - 1], of.controls], 1)
    marginal, s2 = of.function(inputs), np.asarray(of.noises)
    cut = lambda values: np.broadcast_to(values, (T, 4)).reshape(T, 2, 2)
    mean, residual, from_u = cut(marginal.mean), cut(marginal.residual), cut(marginal.from_u)
    error = np.square(np.asarray(path[where.after])[:, None] - mean)
    penalty = residual / s2 if alpha == 0.0 else np.log1p(alpha * residual / s2) / alpha
    each = -0.5 * np.log(2 * np.pi * s2) - 0.5 * penalty - 0.5 * (error + from_u) / (s2 + alpha * residual)
    return each.sum(-1)


@pytest.mark.parametrize("carried", ["draw", "moments"])
@pytest.mark.parametrize("alpha", few([0.0, 0.5, 1.0], 0, 2))
def test_the_weight_of_a_path_sums_over_all_sequences(alpha, carried):
    """log Σ_s Π p(s_t | s_{t−1}) exp t_α − log q, two sequences, controls, two dimensions; and p(s_t) of each step."""
    drawn, q, path, moments = parts()
    of = drawn if carried == "draw" else moments
    total, shares = enumerated(regime_weights(of, path, alpha))
    begun = float(of.prior.log_prob(path[of.layout.initial]).sum())
    start = {"loc": q.begun.mean, "scale": jnp.sqrt(q.begun.variance)}

    def found(path):
        q_of = TrajectoryConditional(of, q.rule, q.params, MeanField(), start)
        values = q_of.log_weight(path, alpha), q.log_prob(path), of.log_prob(path)
        return values, of.regime_probabilities(path, alpha)

    (weight, log_q, log_p), probabilities = jax.jit(found)(path)
    assert float(weight) == pytest.approx(total + begun - float(log_q), abs=1e-8)
    np.testing.assert_allclose(probabilities, shares, atol=1e-10)
    if alpha == 1.0 and carried == "draw":
        assert float(log_p) == pytest.approx(total + begun, abs=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_funsor_enumerates_the_same(alpha):
    """NumPyro's own scan over a discrete site. (Its TraceEnum_ELBO knows no scan, and sums over something else.)"""
    of, _, path, _ = parts()
    where, noise = of.layout, of.noises
    marginal = of.function(jnp.concatenate([path[where.after - 1], of.controls], 1))
    means = marginal.mean.reshape(T, 2, 2)
    residual = jnp.broadcast_to(marginal.residual[..., None], means.shape)
    # at α = 0 the variance of f given u is a penalty, at 1 a part of the noise
    variance = noise + alpha * residual
    penalty = 0.5 * (1.0 - alpha) * (residual / noise).sum(-1)
    # exp(−penalty) as the density of an observation at 0: of factors the scan loses the axis of time
    distance, unit = jnp.sqrt(penalty / jnp.pi), (2.0 * jnp.pi) ** -0.5

    def model():
        def step(before, turn):
            first, mean, variance, distance, state, zero = turn
            probabilities = jnp.where(first, CHAIN.initial, Vindex(CHAIN.transition)[before])
            regime = numpyro.sample("s", dist.Categorical(probabilities))
            moments = Vindex(mean)[regime], jnp.sqrt(Vindex(variance)[regime])
            numpyro.sample("x", dist.Normal(*moments).to_event(1), obs=state)
            numpyro.sample("penalty", dist.Normal(Vindex(distance)[regime], unit), obs=zero)
            return regime, None

        scan(step, 0, (FIRST, means, variance, distance, path[where.after], jnp.zeros(T)))

    def both():
        evidence = log_density(enum(config_enumerate(model), first_available_dim=-1), (), {}, {})[0]
        return of.steps(path).tempered(of.states(path), alpha).sum(), evidence

    summed, evidence = jax.jit(both)()
    assert float(summed) == pytest.approx(float(evidence), abs=1e-8)


@pytest.mark.slow
def test_one_regime_is_the_gpssm():
    """The same draws, the same number: two sequences, a control."""
    objective, settings = PowerEP(0.5, 1), {"num_inducing": 3, "noise": NOISE, "num_sequences": 2}
    model = switching_gpssm(1, 1, **settings)
    guide = Guide(model, hidden=Markov())
    params = initial(KEY, model, guide, X, Y)
    params = moved(params) | {name: params[name] for name in ("regimes/initial", "regimes/transition")}
    plain = gpssm(1, mean="linear", **settings)
    own = {name: value for name, value in params.items() if not name.startswith("regimes")}
    own |= {name: own[name][0] for name in ("transition/weights", "transition/bias", "transition/noise")}
    expected = loss(objective, own, plain, Guide(plain, hidden=Markov()), X, Y)
    assert loss(objective, params, model, guide, X, Y) == pytest.approx(expected, abs=1e-9)


@cache
def systems():
    """A model of two linear systems, their functions without variance, at a random walk each, q(x) its smoother."""
    settings = {"emission": "identity", "kernel": nearly_nothing, "noise": NOISE}
    model = switching_gpssm(1, 2, num_inducing=3, **settings)
    guide = Guide(model, hidden=Markov())
    params, (chain, _) = initial(KEY, model, guide, NONE, Y), random_walk()
    shape = params["transition/u_scale"].shape
    params |= {"transition/u_scale": jnp.broadcast_to(jnp.eye(shape[-1]), shape)}
    params |= {"transition/u_loc": jnp.zeros(shape[:2]), "transition/noise": jnp.full((2, 1), PROCESS)}
    params |= {"transition/weights": jnp.ones((2, 1, 1)), "transition/bias": jnp.zeros((2, 1))}
    params |= {"regimes/initial": CHAIN.initial, "regimes/transition": CHAIN.transition}
    params |= {"x_0_loc": chain.initial_mean[None], "x_0_scale": jnp.diag(chain.initial_scale_tril)[None]}
    scale = chain.scale_trils[:, 0] / PROCESS**0.5
    return model, guide, params | {"x_slope": chain.slopes, "x_loc": chain.offsets, "x_scale": scale}


@pytest.mark.parametrize("objective", few([PowerEP(0.0), PowerEP(0.5, 2)], 1), ids=repr)
def test_regimes_that_are_alike_reach_kalmans_evidence(objective):
    """Of a random walk, at the smoother's chain, whatever the regimes do."""
    model, guide, params = systems()
    assert -loss(objective, params, model, guide, NONE, Y) == pytest.approx(random_walk()[1], abs=1e-5)


def test_of_regimes_that_are_alike_nothing_is_learnt():
    share = CHAIN.initial
    for probabilities in regime_probabilities(KEY, Posterior(*systems()), None, Y, num_samples=2):
        np.testing.assert_allclose(probabilities, share, atol=1e-4)
        share = share @ CHAIN.transition


#: two linear systems and their noises
SLOPES, SHIFTS, NOISES = np.array([0.9, -0.5]), np.array([0.3, -0.4]), np.array([0.2, 0.4])


def mixture():
    """Weights, means and covariances of a path x_0 … x_T for each of the 2^T sequences of one series."""
    found, first = [], np.arange(T) == 0
    for sequence in product(range(2), repeat=T):
        mean, covariance = np.zeros(1), np.ones((1, 1))
        for k in sequence:
            row = SLOPES[k] * covariance[-1:]
            mean = np.append(mean, SLOPES[k] * mean[-1] + SHIFTS[k])
            covariance = np.block([[covariance, row.T], [row, SLOPES[k] * row[:, -1:] + NOISES[k]]])
        found.append((np.exp(log_prior(sequence, CHAIN, first)), mean, covariance))
    return found


@cache
def two_systems():
    """As above, the systems different; q(x) stays, for the average noise is the same."""
    model, guide, params = systems()
    slopes, shifts, noises = (jnp.asarray(each)[:, None] for each in (SLOPES, SHIFTS, NOISES))
    params |= {"transition/weights": slopes[..., None], "transition/bias": shifts, "transition/noise": noises}
    return model, guide, params


@pytest.mark.slow
def test_the_bound_lies_below_the_exact_evidence():
    """The sum over all sequences of Gaussian evidences; the gap is KL[q(x) ‖ p(x | y)], here from draws of q."""
    model, guide, params = two_systems()
    y = np.asarray(Y)[:, 0]
    parts = mixture()
    each = [
        np.log(w) + multivariate_normal.logpdf(y, m[1:], c[1:, 1:] + NOISE * np.eye(T)) for w, m, c in parts
    ]
    evidence = logsumexp(each)
    value, error = mean_of(PowerEP(0.0), params, model, guide, NONE, Y)
    chain = random_walk()[0]
    drawn = chain.sample(KEY, (4000,))
    paths = np.asarray(drawn)[..., 0]
    joint = logsumexp([np.log(w) + multivariate_normal.logpdf(paths, m, c) for w, m, c in parts], axis=0)
    joint += -0.5 * T * np.log(2 * np.pi * NOISE) - 0.5 * np.square(y - paths[:, 1:]).sum(1) / NOISE
    gaps = evidence - joint + np.asarray(chain.log_prob(drawn))
    assert gaps.mean() > 0.2
    spread = gaps.std() / len(gaps) ** 0.5
    assert abs(evidence - gaps.mean() - value) < 4 * (spread**2 + error**2) ** 0.5


def test_paths_have_the_moments_of_the_mixture():
    of = trajectory(SLOPES[None], SHIFTS, NOISES[:, None], NONE, np.arange(T) == 0)
    draws = np.asarray(jax.jit(lambda key: of.sample(key, (20_000,)))(KEY))[..., 0]
    parts = mixture()
    mean = sum(w * m for w, m, _ in parts)
    covariance = sum(w * (c + np.outer(m - mean, m - mean)) for w, m, c in parts)
    assert (abs(draws.mean(0) - mean) < 4 * np.sqrt(np.diag(covariance) / len(draws))).all()
    fourth = np.einsum("ni,nj->ij", np.square(draws - mean), np.square(draws - mean)) / len(draws)
    error = np.sqrt((fourth - covariance**2) / len(draws))
    assert (abs(np.cov(draws.T) - covariance) < 4.5 * error).all()


@pytest.mark.slow
def test_regressions_that_switch_are_found():
    """Of two noisy lines and of one, which is least squares."""
    random = np.random.default_rng(2)
    inputs, regime = random.normal(size=(120, 1)), np.repeat([0, 1, 0], [50, 40, 30])
    targets = np.array([1.0, -1.5])[regime, None] * inputs + np.array([0.5, 0.0])[regime, None]
    targets += 0.1 * random.normal(size=targets.shape)
    given = jnp.asarray(inputs), jnp.asarray(targets), jnp.arange(120) == 0
    found = regime_regressions(KEY, *given, 2)
    assert (np.asarray(found.probabilities).argmax(1) == regime).mean() > 0.98
    np.testing.assert_allclose(found.weights[:, 0, 0], [1.0, -1.5], atol=0.1)
    np.testing.assert_allclose(found.bias[:, 0], [0.5, 0.0], atol=0.1)
    assert float(found.chain.transition[0, 0]) > 0.9 and float(found.chain.transition[1, 1]) > 0.9
    one = regime_regressions(KEY, *(each[:8] for each in given), 1, iterations=2)
    design = np.concatenate([inputs[:8], np.ones((8, 1))], 1)
    expected, residual, *_ = np.linalg.lstsq(design, targets[:8], rcond=None)
    np.testing.assert_allclose([one.weights[0, 0, 0], one.bias[0, 0]], expected[:, 0], atol=1e-8)
    np.testing.assert_allclose(one.noise[0, 0], residual[0] / 8, rtol=1e-8)
    with pytest.raises(ValueError, match="num_regimes: found 0"):
        regime_regressions(KEY, *given, 0)


@pytest.mark.slow
def test_training_finds_the_regimes():
    """Two nonlinear transitions, switching about every 20 steps: cos 2x and −cos 2x."""
    random, x, regime = np.random.default_rng(1), 0.0, 0
    y, truth = np.zeros((300, 1)), np.zeros(300, int)
    for t in range(300):
        regime = 1 - regime if random.uniform() < 0.05 else regime
        x = (1 - 2 * regime) * np.cos(2 * x) + 0.15 * random.normal()
        truth[t], y[t] = regime, x + 0.05 * random.normal()
    y = jnp.asarray((y - y.mean()) / y.std())
    model = switching_gpssm(1, 2, num_inducing=15)
    guide = Guide(model, hidden=Markov())
    fit = fit_svi(KEY, model, guide, PowerEP(0.0), None, y, steps=800, learning_rate=0.02)
    shares = regime_probabilities(KEY, fit, None, y, num_samples=10)
    np.testing.assert_allclose(shares.sum(1), 1.0, atol=1e-8)
    found = shares.argmax(1)
    assert max((np.array(names)[found] == truth).mean() for names in permutations(range(2))) > 0.95
    assert (np.diagonal(fit.params["regimes/transition"]) > 0.85).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings, rule",
    [
        ({"emission": "gp", "latent": 2}, MeanField()),
        ({"mean": "zero", "num_regimes": 3, "start": "linear"}, Amortised((3,), Markov())),
        ({"missing": True, "mean": "identity"}, Markov(full=True)),
    ],
)
def test_other_settings_have_finite_gradients(settings, rule):
    y = Y.at[2].set(jnp.nan) if settings.get("missing") else Y
    model = switching_gpssm(1, num_inducing=3, num_sequences=2, **settings)
    guide = Guide(model, hidden=rule)
    params = initial(KEY, model, guide, X, y)
    value, slope = jax.jit(jax.value_and_grad(lambda p: PowerEP(0.5).loss(KEY, p, model, guide, X, y)))(
        params
    )
    assert np.isfinite(value) and all(np.isfinite(leaf).all() for leaf in slope.values())
    # without y it draws from the prior, all regimes alike
    draw = trace(seed(model, KEY)).get_trace(X)["y"]["value"]
    assert draw.shape == (T, 1) and np.isfinite(draw).all()


def test_what_regimes_cannot_do_is_said():
    model, guide, params = systems()
    for rule in (
        Conditional(),
        Conditional(markov=True),
        Conditional(free=True),
        Conditional(free=True, across_outputs=True),
        DoublyStochastic(),
    ):
        with pytest.raises(ValueError, match="take hidden=MeanField"):
            jax.eval_shape(lambda: seed(Guide(model, hidden=rule), KEY)(NONE, Y))  # noqa: B023
    with pytest.raises(ValueError, match="take hidden=MeanField"):
        refuse(PowerEP(0.0, propagation="moments"), params, model, guide, NONE, Y)
    with pytest.raises(ValueError, match="index: found a minibatch"):
        model(NONE[:2], Y[:2], index=jnp.arange(2), size=T)
    plain = gpssm(1, num_inducing=3)
    with pytest.raises(ValueError, match="found 0 trajectories with regimes"):
        regime_probabilities(KEY, Posterior(plain, Guide(plain, hidden=MeanField()), {}), CONTROLS, Y)
    with pytest.raises(ValueError, match="num_samples: found 0"):
        regime_probabilities(KEY, Posterior(model, guide, params), NONE, Y, num_samples=0)
    of = parts()[0]
    with pytest.raises(ValueError, match="found 4 outputs, expected 6: those of 3 regimes"):
        SwitchingTrajectory(of.function, jnp.ones((3, 2)), CHAIN, CONTROLS, of.initial)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"num_regimes": 0}, "num_regimes: found 0"),
        ({"num_sequences": 0}, "num_sequences: found 0"),
        ({"latent": 0}, "latent"),
        ({"mean": "cubic"}, "mean: found 'cubic'"),
        ({"emission": "none"}, "emission: found 'none'"),
        ({"start": "none"}, "start: found 'none'"),
        ({"process_noise": 0.0}, "process_noise: found 0.0"),
        ({"initial": (0.0, -1.0)}, "initial"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        switching_gpssm(1, **settings)
