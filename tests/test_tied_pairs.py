"""Tied factors along a Markov chain: every factor as a Gaussian over the whole path, in NumPy; counts; limits."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fast import few
from numpyro import handlers
from test_chain_objectives import GAPS, TWO, drawn, energy_of, four, started
from test_gpssm import CONTROLS, KEY, NOISE, NONE, Y, linear, nearly_nothing, smoothed

from ppl_dgp.guides import Guide, Markov, MeanField
from ppl_dgp.models import gpssm
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.linalg import cholesky
from ppl_dgp.objectives import ApproximatePowerEP
from ppl_dgp.objectives.research.tied_chain import factor_counts
from ppl_dgp.objectives.research.tied_pairs import pair_cavities
from ppl_dgp.state_space.linear_gaussian_chain import LinearGaussianChain
from ppl_dgp.state_space.sequences import Layout, layout


class Factor:
    """exp(k + eᵀx − ½ xᵀPx) over a whole path; a product of powers is a sum."""

    def __init__(self, precision, eta, constant):
        self.precision, self.eta, self.constant = precision, eta, constant

    def __pow__(self, power):
        return Factor(power * self.precision, power * self.eta, power * self.constant)

    def __mul__(self, other):
        return Factor(self.precision + other.precision, self.eta + other.eta, self.constant + other.constant)

    def moments(self):
        covariance = np.linalg.inv(self.precision)
        return covariance @ self.eta, covariance

    def log_integral(self):
        assert np.linalg.eigvalsh(self.precision).min() > 0.0
        fit = 0.5 * self.eta @ np.linalg.solve(self.precision, self.eta)
        return self.constant + fit - 0.5 * np.linalg.slogdet(self.precision / (2 * np.pi))[1]


def normal(rows, mean, covariance):
    """N(R x; mean, covariance) as a factor."""
    inverse, mean = np.linalg.inv(covariance), np.asarray(mean)
    constant = -0.5 * mean @ inverse @ mean - 0.5 * np.linalg.slogdet(2 * np.pi * np.asarray(covariance))[1]
    return Factor(rows.T @ inverse @ rows, rows.T @ inverse @ mean, constant)


def tied(q, where, counts, seen, prior):
    """φ_t of each step and γ_t of each row, None of a row that is missing, whose product with the p(x_0) is q.

    :param where: the slot of x_t for each step; ``prior`` the p(x_0) of each slot that holds one, ``seen`` the rows.
    """
    mean, covariance = q.moments()
    width = len(mean) // len(counts)

    def marginal(*slots):
        at = np.concatenate([np.arange(width) + width * slot for slot in slots])
        return normal(np.eye(len(mean))[at], mean[at], covariance[np.ix_(at, at)])

    share = lambda slot: (
        marginal(slot) * prior[slot] ** -1 if slot in prior else marginal(slot) ** (1 / counts[slot])
    )
    steps = [
        marginal(t - 1, t) * marginal(t - 1) ** -1 * marginal(t) ** -1 * share(t - 1) * share(t)
        for t in where
    ]
    return steps, [share(t) if there else None for t, there in zip(where, seen, strict=True)]


def about(guide, params, x, y):
    """q(x) over all slots and the slots of x_t, and f's kernel, of a guide at parameters."""

    @jax.jit
    def parts(params):
        q = handlers.trace(handlers.substitute(handlers.seed(guide, KEY), params)).get_trace(x, y)["x"]["fn"]
        f, chain = q.trajectory.function, q.chain()
        kernel = {"length": f.kernel.lengthscale[0], "height": f.kernel.variance, "nugget": f.nugget}
        return (*chain.steps, q.trajectory.layout.after, kernel | {"z": f.inducing[:, 0]})

    slopes, offsets, scales, after, kernel = jax.tree.map(np.asarray, parts(params))
    (states, width), q = offsets.shape, 1.0
    pick = lambda slot: np.eye(states * width)[width * slot : width * (slot + 1)]
    parts = [
        normal(pick(t) - (slopes[t] @ pick(t - 1) if t else 0.0), offsets[t], scales[t] @ scales[t].T)
        for t in range(states)
    ]
    q = parts[0]
    for part in parts[1:]:
        q = q * part
    return q, after, pick, kernel


@cache
def linear_dynamics():
    """Two sequences, two states, missing entries, f and the emission linear, q(u) the prior."""
    settings = {"latent": 2, "num_sequences": 2, "missing": True, "mean": "linear", "kernel": nearly_nothing}
    model, guide, params = started(TWO, GAPS, Markov(full=True), **settings)
    u = params["transition/u_scale"]
    params |= {
        "transition/u_loc": jnp.zeros(u.shape[:2]),
        "transition/u_scale": jnp.broadcast_to(jnp.eye(u.shape[-1]), u.shape),
    }
    return energy_of(model, guide, TWO, "full-moments"), about(guide, params, TWO, GAPS), params


@pytest.mark.parametrize("alpha", few([0.6, 0.05, 1.0], 0))
def test_energy_is_that_of_factors_over_the_whole_path(alpha):
    """Σ_j (1/α) log E_q[(p_j / t_j)^α] with all constants, each t_j in full."""
    energy, (q, after, pick, _), params = linear_dynamics()
    given = {name: np.asarray(value) for name, value in params.items()}
    weights, emission, y = given["transition/weights"], given["emission/weights"], np.asarray(GAPS)
    seen = ~np.isnan(y)
    counts = np.array([1, 3, 3, 2, 2, 1, 3, 2])
    prior = {slot: normal(pick(slot), np.zeros(2), np.eye(2)) for slot in (0, 5)}
    steps, rows = tied(q, after, counts, seen.any(1), prior)
    product = prior[0] * prior[5]
    for each in steps + [row for row in rows if row is not None]:
        product = product * each
    np.testing.assert_allclose(product.precision, q.precision, atol=1e-10)
    assert product.constant == pytest.approx(q.constant, abs=1e-9)
    found = 0.0
    for t, slot in enumerate(after):
        centre = CONTROLS[t] @ weights[2:] + given["transition/bias"]
        noise = np.diag(given["transition/noise"])
        p = normal(pick(slot) - weights[:2].T @ pick(slot - 1), centre, noise)
        found += (q * (p * steps[t] ** -1) ** alpha).log_integral() / alpha
        if rows[t] is not None:
            rest = (y[t] - given["emission/bias"])[seen[t]]
            p = normal(emission.T[seen[t]] @ pick(slot), rest, NOISE * np.eye(len(rest)))
            found += (q * (p * rows[t] ** -1) ** alpha).log_integral() / alpha
    assert float(energy(alpha, GAPS, params)) == pytest.approx(found, abs=1e-6)


def one_chain(alpha, about, params, y, projected):
    """The energy of one state and output: each step by quadrature over x_{t−1}, or with f − W x its two moments."""
    q, _, pick, kernel = about
    steps, z, height = len(y), kernel["z"], kernel["height"]
    k = lambda a, b: height * np.exp(-0.5 * np.square((a[:, None] - b) / kernel["length"]))
    kzz = k(z, z) + kernel["nugget"] * np.eye(len(z))
    lower = np.linalg.cholesky(kzz)
    root = lower @ np.asarray(params["transition/u_scale"][0])
    of_u = normal(np.eye(len(z)), lower @ np.asarray(params["transition/u_loc"][0]), root @ root.T)
    of_p = normal(np.eye(len(z)), np.zeros(len(z)), kzz)
    less_u = of_u * (of_u * of_p**-1) ** (-alpha / steps)
    mean_u, covariance_u = less_u.moments()
    process, weight = float(params["transition/noise"][0]), float(params["emission/weights"][0, 0])
    bias, seen = float(params["emission/bias"][0]), ~np.isnan(np.asarray(y)[:, 0])
    counts = np.array([1.0] + [2.0 + seen[t] - (t == steps - 1) for t in range(steps)])
    phi, gamma = tied(q, range(1, steps + 1), counts, seen, {0: normal(pick(0), np.zeros(1), np.eye(1))})
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()

    def log_z(residual, variance, noise):
        """log ∫ N(ε; residual, variance) N(ε; 0, noise)^α."""
        constant = 0.5 * (1 - alpha) * np.log(2 * np.pi * noise) - 0.5 * np.log(alpha)
        total = variance + noise / alpha
        return constant - 0.5 * np.log(2 * np.pi * total) - 0.5 * residual**2 / total

    found = steps / alpha * less_u.log_integral()
    for t in range(1, steps + 1):
        cavity = q * phi[t - 1] ** -alpha
        mean, covariance = (each[t - 1 : t + 1] for each in cavity.moments())
        covariance = covariance[:, t - 1 : t + 1]
        slope = covariance[1, 0] / covariance[0, 0]
        own = covariance[1, 1] - slope * covariance[1, 0]
        at = mean[0] + np.sqrt(covariance[0, 0]) * nodes
        a = np.linalg.solve(kzz, k(z, at)).T
        residual = mean[1] + slope * (at - mean[0]) - at - a @ mean_u
        variance = height - (a * k(at, z)).sum(1) + np.einsum("ni,ij,nj->n", a, covariance_u, a)
        if projected:
            centre = weights @ residual
            of_step = log_z(centre, weights @ (variance + residual**2) - centre**2 + own, process)
        else:
            of_step = np.log(weights @ np.exp(log_z(residual, variance + own, process)))
        found += (of_step + cavity.log_integral()) / alpha
        if seen[t - 1]:
            cavity = q * gamma[t - 1] ** -alpha
            mean, covariance = (each[t] for each in cavity.moments())
            residual = float(y[t - 1, 0]) - bias - weight * mean
            found += (log_z(residual, weight**2 * covariance[t], NOISE) + cavity.log_integral()) / alpha
    return found


@cache
def four_linked():
    """T = 4 steps of one dimension under Markov."""
    x, y = NONE[:4], Y[:4]
    model, guide, params = started(x, y, Markov(), missing=True)
    return energy_of(model, guide, x, "moments"), about(guide, params, x, y), params, (model, guide, x)


@pytest.mark.slow
@pytest.mark.parametrize("gap", [1, None, 3], ids=str)
def test_energy_of_a_curved_function_is_that_of_natural_parameters(gap):
    y = Y[:4] if gap is None else Y[:4].at[gap].set(jnp.nan)
    energy, parts, params, _ = four_linked()
    for alpha in (0.5, 0.9) if gap == 3 else (0.5, 1.0):
        found = float(energy(alpha, y, params))
        assert found == pytest.approx(one_chain(alpha, parts, params, y, True), abs=1e-8)


@pytest.mark.slow
def test_draws_are_the_quadrature():
    """Of the tilted steps themselves, of which moments match two; the logarithm's bias is below a standard error."""
    _, parts, params, (model, guide, x) = four_linked()
    value, error = drawn(model, guide, params, x, Y[:4], 0.7)
    assert abs(one_chain(0.7, parts, params, Y[:4], False) - value) < 4 * error < 0.1


@pytest.mark.slow
def test_a_state_without_a_factor_left_has_no_part_in_it():
    """α = 1 and the last row missing: the limit; q of that state is free."""
    energy, parts, params, _ = four_linked()
    y = Y[:4].at[3].set(jnp.nan)
    found, slope = jax.value_and_grad(lambda p: energy(1.0, y, p))(params)
    assert float(found) == pytest.approx(one_chain(1.0 - 1e-7, parts, params, y, True), abs=1e-5)
    assert all(np.isfinite(each).all() for each in slope.values())
    assert all(slope[name][3] == 0.0 for name in ("x_loc", "x_scale", "x_slope"))


@pytest.mark.slow
def test_at_alpha_one_it_is_the_factorised_q_of_the_same_marginals():
    """Nothing of the dependence is left in a step's cavity, nor of q(x_0)."""
    energy, (q, *_), params, (model, guide, x) = four_linked()
    mean, covariance = q.moments()
    scale = np.sqrt(np.diag(covariance) / float(params["transition/noise"][0]))
    rest = {name: value for name, value in params.items() if not name.startswith("x_")}
    apart = {"x_loc": mean[1:, None], "x_scale": scale[1:, None]}
    apart |= {"x_0_loc": jnp.full((1, 1), 0.7), "x_0_scale": jnp.full((1, 1), 1.3)}
    factorised = four()[0]
    found = [float(energy(alpha, Y[:4], params)) for alpha in (1.0, 0.5)]
    other = [float(factorised(alpha, Y[:4], rest | apart)) for alpha in (1.0, 0.5)]
    assert found[0] == pytest.approx(other[0], abs=1e-9)
    assert abs(found[1] - other[1]) > 1e-3
    with pytest.warns(UserWarning, match="by its marginals"):
        jax.eval_shape(lambda: ApproximatePowerEP(1.0).loss(KEY, params, model, guide, x, Y[:4]))


@pytest.mark.slow
@pytest.mark.parametrize("full", few([False, True], 0), ids=["markov", "full"])
@pytest.mark.parametrize("propagation", few(["moments", "full-moments", "linearised"], 0))
def test_without_dependence_it_is_the_factorised_q(propagation, full):
    """Two states and sequences, missing entries, at every α."""
    settings = {"latent": 2, "num_sequences": 2, "missing": True}
    model, apart, params = started(TWO, GAPS, **settings)
    rule, values = Markov(), {"x_slope": jnp.zeros((len(GAPS), 2, 2))}
    if full:
        matrices = {name: jax.vmap(jnp.diag)(params[name]) for name in ("x_scale", "x_0_scale")}
        rule, values = MeanField(full=True), matrices
    expected = energy_of(model, apart, TWO, propagation)
    found = energy_of(model, Guide(model, hidden=rule), TWO, propagation)
    for alpha in (0.0, 0.4, 1.0):
        value = float(expected(alpha, GAPS, params))
        assert float(found(alpha, GAPS, params | values)) == pytest.approx(value, abs=1e-9)


@cache
def walk(steps):
    """x_t = √(4/3) x_{t−1} + ε, Q = R / 3, of a model without function, and its energy under Markov."""
    model = gpssm(
        1,
        1,
        2,
        mean="linear",
        kernel=nearly_nothing,
        emission="identity",
        noise=NOISE,
        initial=(0.7, NOISE / 2),
    )
    guide, x = Guide(model, hidden=Markov()), jnp.zeros((steps, 0))
    return energy_of(model, guide, x, "moments")


def at_posterior(y):
    """The parameters of that model at the smoother's chain, and the log evidence."""
    process, weight = NOISE / 3, jnp.sqrt(jnp.full((1, 1), 4 / 3))
    prior = linear(1, weight, jnp.zeros(1), jnp.zeros((len(y), 0)), process, (0.7, NOISE / 2))
    chain, evidence = smoothed(prior, y, jnp.eye(1), jnp.zeros(1))
    params = {
        "x_slope": chain.slopes,
        "x_loc": chain.offsets,
        "x_scale": chain.scale_trils[:, 0] / process**0.5,
        "x_0_loc": chain.initial_mean[None],
        "x_0_scale": chain.initial_scale_tril,
        "transition/weights": weight,
        "transition/bias": jnp.zeros(1),
        "transition/u_loc": jnp.zeros((1, 2)),
        "transition/u_scale": jnp.eye(2)[None],
    }
    begin = {"transition/inducing": jnp.array([[-1.0], [1.0]]), "transition/noise": jnp.full(1, process)}
    return params | begin, evidence


@pytest.mark.slow
def test_where_the_tied_factors_are_the_exact_ones_it_is_the_evidence():
    """T = 2, every α: x_1 is told as much by the step in, the step out and y_1, x_2 by the step in and y_2.

    With R = w²s₀² + Q = (R + Q)/w² these are thirds of q(x_1), with w²R/2 + Q = R halves of q(x_2).
    """
    y = 0.7 * jnp.sqrt(4 / 3) ** jnp.arange(1.0, 3.0)[:, None]
    params, evidence = at_posterior(y)
    for alpha in (1e-3, 0.3, 0.7, 1.0):
        assert float(walk(2)(alpha, y, params)) == pytest.approx(evidence, abs=1e-8)


@pytest.mark.slow
def test_elsewhere_it_lies_above_the_evidence_and_grows_with_alpha():
    """(1/α) log E_q w^α does; at α = 0 it is the bound, at the posterior the evidence."""
    params, evidence = at_posterior(Y)
    values = [float(walk(len(Y))(alpha, Y, params)) for alpha in (0.0, 1e-3, 0.1, 0.5, 1.0)]
    assert values[0] == pytest.approx(evidence, abs=1e-8)
    assert values == sorted(values)
    assert evidence < values[1] < evidence + 0.01
    assert values[4] > evidence + 0.1


@pytest.mark.parametrize(
    ("numbers", "missing", "expected"),
    few(
        [
            ([0, 0, 0, 1, 1, 2], [2, 3, 5], [1, 3, 3, 1, 1, 2, 2, 1, 1]),
            ([0, 0, 0, 0], [], [1, 3, 3, 3, 2]),
            ([0, 0, 0, 0], [1], [1, 3, 2, 3, 2]),
            ([0, 0, 0, 0], [3], [1, 3, 3, 3, 1]),
            ([0, 0, 0, 1, 1, 2], [], [1, 3, 3, 2, 1, 3, 2, 1, 2]),
            ([0], [], [1, 2]),
        ],
        0,
        1,
    ),
    ids=["three-gaps", "one", "gap", "last", "three", "step"],
)
def test_how_many_factors_touch_a_state(numbers, missing, expected):
    """3 within, 2 at the end, 1 of x_0; a row that is missing takes one away."""
    where = layout(len(numbers), jnp.array(numbers), len(set(numbers)))
    observed = jnp.asarray(~np.isin(np.arange(len(numbers)), missing))
    counts = jax.jit(lambda first, seen: factor_counts(Layout(first, where.num_sequences), seen))
    np.testing.assert_array_equal(counts(where.first, observed), expected)


def test_cavities_are_proper_where_shares_of_the_joint_are_not():
    """A random walk of variances 1, 1, 0.01, 1: equal parts of its precision would leave no density at α = 0.1."""
    variances, ones = jnp.array([1.0, 1.0, 0.01, 1.0]), jnp.ones((4, 1, 1))
    scales = jnp.sqrt(variances)[:, None, None]
    chain = LinearGaussianChain(jnp.zeros(1), jnp.ones((1, 1)), ones, jnp.zeros((4, 1)), scales)
    q = normal(np.eye(5) - np.eye(5, k=-1), np.zeros(5), np.diag([1.0, *variances]))
    counts = np.array([1.0, 3.0, 3.0, 3.0, 2.0])
    shared = q.precision.copy()
    shared[[1, 2], [1, 2]] *= 1 - 0.1 / 3
    shared[[1, 2], [2, 1]] *= 1 - 0.1
    assert np.linalg.eigvalsh(shared).min() < -0.5

    phi, _ = tied(
        q, range(1, 5), counts, np.ones(4, bool), {0: normal(np.eye(5)[:1], np.zeros(1), np.eye(1))}
    )
    marginals = chain.marginals()
    states = Gaussian(marginals.means, cholesky(marginals.covariances, 0.0)[0])
    prior, given = Gaussian(jnp.zeros((1, 1)), jnp.ones((1, 1))), jnp.asarray(counts)
    cavities = jax.jit(lambda alpha: pair_cavities(layout(4), prior, chain, states, given, alpha))
    for alpha in (0.1, 0.9, 1.0):
        _, pairs = cavities(alpha)
        for t in range(4):
            covariance = (q * phi[t] ** -alpha).moments()[1][t : t + 2, t : t + 2]
            slope, before = float(pairs.slopes[t, 0, 0]), float(pairs.before.scale[t, 0, 0]) ** 2
            own = slope**2 * before + float(pairs.residual[t, 0, 0])
            found = np.array([[before, slope * before], [slope * before, own]])
            # at α = 1 nothing is left between neighbours, beside variances of order 1
            np.testing.assert_allclose(found, covariance, rtol=1e-9, atol=1e-9)
            assert np.linalg.eigvalsh(covariance).min() > 0.0
