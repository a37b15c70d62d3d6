"""Energies and collapsed bounds along a trajectory: natural parameters spelt out in NumPy, limits, draws."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compiled import loss, refuse
from fast import few
from numpyro import handlers
from numpyro.infer import SVI
from numpyro.infer.autoguide import AutoNormal
from test_gpssm import CONTROLS, KEY, MOMENTS, NOISE, NONE, Y, nearly_nothing

from ppl_dgp.fit import fit_lbfgs
from ppl_dgp.guides import Conditional, Coupled, DoublyStochastic, Guide, Markov, MeanField, Optimal
from ppl_dgp.likelihoods import Poisson
from ppl_dgp.likelihoods.gaussian import tempered_jointly
from ppl_dgp.models import gpssm
from ppl_dgp.objectives import ApproximatePowerEP, Collapsed, PowerEP
from ppl_dgp.prediction.forecast import forecast, smooth

TWO = jnp.column_stack([CONTROLS, jnp.array([0, 0, 0, 0, 1, 1])])
GAPS = jnp.column_stack([Y, 0.5 * Y]).at[jnp.array([2, 2, 3]), jnp.array([0, 1, 1])].set(jnp.nan)


def shapes(model, guide, x, y):
    """The shapes of the parameters."""
    svi = SVI(model, guide, numpyro.optim.Adam(0.1), PowerEP())
    return jax.eval_shape(lambda: svi.get_params(svi.init(KEY, x, y)))


def started(x, y, rule=MeanField(), **settings):  # noqa: B008
    """A model, its guide, and parameters at drawn values, near no optimum."""
    model = gpssm(y.shape[1], **{"num_inducing": 3, "noise": NOISE} | settings)
    guide, random, params = Guide(model, hidden=rule), np.random.default_rng(7), {}
    for name, like in sorted(shapes(model, guide, x, y).items()):
        value = 0.3 * random.normal(size=like.shape)
        if name.endswith("_scale") and value.ndim == 3:
            value = np.tril(value, -1) + 0.5 * np.eye(value.shape[-1])
        elif name.endswith(("scale", "noise", "variance")):
            value = 0.7 * np.exp(value)
        elif name.endswith("weights"):
            value = value + np.eye(*value.shape)
        elif name.endswith("inducing"):
            value = 3.0 * value
        params[name] = jnp.asarray(value)
    return model, guide, params


def energy_of(model, guide, x, propagation, particles=None):
    """The energy as one compiled function of α, y and the parameters."""

    def energy(alpha, y, params, key=KEY):
        objective = ApproximatePowerEP(lambda _: alpha, particles, propagation).at_step(0)
        return -objective.loss(key, params, model, guide, x, y)

    return jax.jit(energy)


def one_dimension(alpha, about, params, y):
    """Bui 2017, 3.79–3.82 from natural parameters, Φ without 2π and the constant ½ T log 2π, for Q = P = 1."""
    steps, z, length, height = len(y), about["z"], about["length"], about["height"]
    k = lambda a, b: height * np.exp(-0.5 * np.square((a[:, None] - b) / length))
    kzz = k(z, z) + about["nugget"] * np.eye(len(z))
    lower = np.linalg.cholesky(kzz)
    root = lower @ np.asarray(params["transition/u_scale"][0])
    mean_u, precision_u = lower @ np.asarray(params["transition/u_loc"][0]), np.linalg.inv(root @ root.T)
    process, weight = float(params["transition/noise"][0]), float(params["emission/weights"][0, 0])
    m, v, bias = about["mean"], about["variance"], float(params["emission/bias"][0])
    seen = ~np.isnan(np.asarray(y)[:, 0])
    copies = np.array([1.0] + [2.0 + seen[t] - (t == steps - 1) for t in range(steps)])
    priors = np.array([1.0] + [0.0] * steps)

    def phi(precision, eta):
        precision, eta = np.atleast_2d(precision), np.atleast_1d(eta)
        return 0.5 * eta @ np.linalg.solve(precision, eta) - 0.5 * np.linalg.slogdet(precision)[1]

    def less(share, precision, eta, prior):
        return precision - share * (precision - prior), eta - share * eta

    of_u, of_x = (precision_u, precision_u @ mean_u), [(1.0 / v[t], m[t] / v[t]) for t in range(steps + 1)]
    cavity_u = less(alpha / steps, *of_u, np.linalg.inv(kzz))
    cavity_x = [less(alpha / copies[t], *of_x[t], priors[t]) for t in range(steps + 1)]
    gain_u, gain_x = (
        phi(*cavity_u) - phi(*of_u),
        [phi(*a) - phi(*b) for a, b in zip(cavity_x, of_x, strict=True)],
    )

    mean_c, cov_c = np.linalg.solve(*cavity_u), np.linalg.inv(cavity_u[0])
    c, h = np.array([b / a for a, b in cavity_x]), np.array([1.0 / a for a, _ in cavity_x])
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()

    def log_z(target, mean, variance, noise):
        """log of C_α N(target; mean, variance + noise/α)."""
        constant = (
            0.5 * (1 - alpha) * np.log(2 * np.pi) + 0.5 * np.log(noise / alpha) - 0.5 * alpha * np.log(noise)
        )
        total = variance + noise / alpha
        return constant - 0.5 * np.log(2 * np.pi * total) - 0.5 * (target - mean) ** 2 / total

    found = (
        phi(*of_u)
        + sum(phi(*each) for each in of_x)
        - phi(np.linalg.inv(kzz), np.zeros(len(z)))
        - phi(1.0, 0.0)
    )
    found += 0.5 * steps * np.log(2 * np.pi)
    for t in range(1, steps + 1):
        at = c[t - 1] + np.sqrt(h[t - 1]) * nodes
        a = np.linalg.solve(kzz, k(z, at)).T
        centre, own = at + a @ mean_c, height - (a * k(at, z)).sum(1) + np.einsum("ni,ij,nj->n", a, cov_c, a)
        mean = weights @ centre
        variance = weights @ (own + centre**2) - mean**2
        found += (log_z(c[t], mean, variance + h[t], process) + gain_u + gain_x[t - 1] + gain_x[t]) / alpha
        if seen[t - 1]:
            emitted = log_z(float(y[t - 1, 0]), weight * c[t] + bias, weight**2 * h[t], NOISE)
            found += (emitted + gain_x[t]) / alpha
    return found


@cache
def four():
    """T = 4 steps of one dimension: the energy by moments, and all that it needs to be computed again."""
    x, y = NONE[:4], Y[:4]
    model, guide, params = started(x, y, missing=True)

    @jax.jit
    def about(params):
        q = handlers.trace(handlers.substitute(handlers.seed(guide, KEY), params)).get_trace(x, y)["x"]["fn"]
        f, states = q.trajectory.function, q.moments("moments")
        kernel = {"length": f.kernel.lengthscale[0], "height": f.kernel.variance, "nugget": f.nugget}
        return kernel | {"z": f.inducing[:, 0], "mean": states.mean[:, 0], "variance": states.variance[:, 0]}

    found = {name: np.asarray(value) for name, value in about(params).items()}
    return energy_of(model, guide, x, "moments"), found, params


@pytest.mark.parametrize("gap", [None, 1, 3], ids=["seen", "inside", "last"])
def test_energy_is_that_of_the_natural_parameters(gap):
    """T = 4, all constants; a state whose data are missing has one factor fewer."""
    y = Y[:4] if gap is None else Y[:4].at[gap].set(jnp.nan)
    energy, about, params = four()
    for alpha in (0.5, 0.9) if gap == 3 else (0.5, 1.0):
        assert float(energy(alpha, y, params)) == pytest.approx(
            one_dimension(alpha, about, params, y), abs=1e-8
        )


@pytest.mark.slow
def test_a_state_without_a_factor_left_has_no_part_in_it():
    """α = 1 and the last row missing: the limit, and of the sequence without its last step but for n_T and T."""
    energy, about, params = four()
    y = Y[:4].at[3].set(jnp.nan)
    found, slope = jax.value_and_grad(lambda p: energy(1.0, y, p))(params)
    assert float(found) == pytest.approx(one_dimension(1.0 - 1e-7, about, params, y), abs=1e-5)
    assert all(np.isfinite(each).all() for each in slope.values())
    # q of that state is free
    assert slope["x_loc"][3] == 0.0 and slope["x_scale"][3] == 0.0
    assert slope["x_loc"][2] != 0.0


CASES = {
    "gaps": {"missing": True},
    "gp": {"emission": "gp"},
    "chain": {"missing": True, "rule": Markov(full=True)},
    "chain-gp": {"emission": "gp", "rule": Markov()},
}


@cache
def two(case):
    """Two sequences with controls and two state dimensions."""
    y = GAPS if "missing" in CASES[case] else Y
    model, guide, params = started(TWO, y, latent=2, num_sequences=2, **CASES[case])
    return model, guide, params, y, -loss(MOMENTS, params, model, guide, TWO, y)


@pytest.mark.slow
@pytest.mark.parametrize("case", few(CASES, 0))
def test_it_tends_to_the_bound_in_proportion_to_alpha(case):
    """T9 and T12, at a q that is no optimum; at α = 0 itself it is the bound."""
    model, guide, params, y, bound = two(case)
    energy = energy_of(model, guide, TWO, "moments")
    errors = [float(energy(alpha, y, params)) - bound for alpha in (1e-3, 1e-4, 1e-5)]
    np.testing.assert_allclose(np.divide(errors[:2], errors[1:]), 10.0, rtol=0.02)
    assert float(energy(0.0, y, params)) == pytest.approx(bound, abs=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("propagation", [None, "moments", "full-moments", "linearised"])
def test_gradients_are_finite(case, propagation):
    model, guide, params, y, _ = two(case)
    energy = energy_of(model, guide, TWO, propagation, 3)
    slope = jax.grad(lambda p: energy(0.5, y, p))(params)
    for name, each in slope.items():
        assert np.isfinite(each).all(), name
        # where the states begin is no parameter of the energy
        assert np.abs(each).max() > 0.0 or name.endswith("/begin"), name


def test_at_alpha_zero_it_is_the_exact_branch():
    model, guide, params, y, bound = two("gaps")
    objective = ApproximatePowerEP(0.0, propagation="moments")
    assert -loss(objective, params, model, guide, TWO, y) == pytest.approx(bound, abs=1e-10)


def test_linearised_steps_do_not_tend_to_the_bound():
    """T13: the function's own variance is frozen at the mean of x_{t−1}."""
    model, guide, params, y, bound = two("gaps")
    found = float(energy_of(model, guide, TWO, "linearised")(1e-6, y, params))
    assert abs(found - bound) > 0.05


def drawn(model, guide, params, x, y, alpha, draws=4000, keys=25):
    """The energy by draws of the states, averaged over keys, and its standard error."""
    energy = energy_of(model, guide, x, "draws", draws)
    values = jax.jit(lambda keys: jax.lax.map(lambda key: energy(alpha, y, params, key), keys))
    found = np.asarray(values(jax.random.split(KEY, keys)))
    return found.mean(), found.std() / np.sqrt(keys)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [MeanField(), Markov(full=True)], ids=["apart", "chain"])
def test_draws_are_moments_where_the_function_is_linear(rule):
    """Outputs that share a state are correlated, within the logarithm; moments of each on its own lose that."""
    alpha, y = 0.7, jnp.column_stack([Y, 0.5 * Y])
    model, guide, params = started(
        CONTROLS, y, rule, latent=2, mean="linear", kernel=nearly_nothing, noise=0.5
    )
    # transition and emission mix the two dimensions
    params |= {"transition/weights": jnp.array([[1.0, 0.9], [0.6, 0.9], [0.5, -0.2]])}
    params |= {
        "emission/weights": jnp.array([[1.0, 0.8], [-0.3, 1.0]]),
        "transition/noise": jnp.array([0.5, 0.6]),
    }
    value, error = drawn(model, guide, params, CONTROLS, y, alpha)
    each, full = (
        float(energy_of(model, guide, CONTROLS, how)(alpha, y, params)) for how in ("moments", "full-moments")
    )
    assert abs(full - value) < 4 * error < 0.1
    assert abs(each - value) > 20 * error


@pytest.mark.slow  # the nodes of a quadrature
def test_any_likelihood_by_draws_is_its_quadrature():
    counts = jnp.array([0, 1, 3, 2, 5, 4])[:, None]
    settings = {"noise": None, "likelihood": Poisson(), "kernel": nearly_nothing}
    model, guide, params = started(NONE, counts, **settings)
    params |= {"x_loc": jnp.log(counts + 0.7), "emission/weights": jnp.eye(1)}
    value, error = drawn(model, guide, params, NONE, counts, 0.6, 400, 16)
    found = float(energy_of(model, guide, NONE, "moments")(0.6, counts, params))
    assert abs(found - value) < 4 * error < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("rule", [MeanField(), Markov()], ids=["apart", "chain"])
def test_sequences_add_up(rule):
    """With q(u) the prior, whose cavity it is whatever the number of steps."""
    settings = {"emission": "identity"}
    model, guide, params = started(TWO, Y, rule, num_sequences=2, **settings)
    scale = params["transition/u_scale"]
    prior = {
        "transition/u_loc": 0.0 * params["transition/u_loc"],
        "transition/u_scale": jnp.eye(scale.shape[-1])[None],
    }
    params |= prior
    whole = float(energy_of(model, guide, TWO, "moments")(0.5, Y, params))
    total = 0.0
    for number, rows in enumerate((slice(0, 4), slice(4, 6))):
        alone, alone_guide, own = started(CONTROLS[:3], Y[:3], rule, **settings)
        cuts = {"x_0_loc": slice(number, number + 1), "x_0_scale": slice(number, number + 1)}
        own = {
            name: params[name][cuts.get(name, rows)] if name.startswith("x_") else params[name]
            for name in own
        }
        total += float(energy_of(alone, alone_guide, CONTROLS[rows], "moments")(0.5, Y[rows], own))
    assert whole == pytest.approx(total, abs=1e-8)


@pytest.mark.parametrize("alpha", [1e-6, 0.5])
def test_correlated_outputs_are_those_of_dense_algebra(alpha):
    """(1/α) log ∫ N(f; m, V) N(y; f, R)^α df with N^α = C_α N(·; R/α); an output that is missing is left out."""
    random = np.random.default_rng(3)
    root, residual, noise = random.normal(size=(3, 3)), random.normal(size=3), random.uniform(0.1, 0.5, 3)
    covariance = root @ root.T
    for there in (np.arange(3), np.array([0, 2])):
        given = np.full(3, np.inf)
        given[there] = noise[there]
        found = jax.jit(tempered_jointly)(*(each[None] for each in (residual, covariance, given)), alpha)
        r, total = noise[there], covariance[np.ix_(there, there)] + np.diag(noise[there] / alpha)
        constant = 0.5 * ((1 - alpha) * np.log(2 * np.pi) - np.log(alpha) + (1 - alpha) * np.log(r)).sum()
        density = -0.5 * np.linalg.slogdet(2 * np.pi * total)[1] - 0.5 * residual[there] @ np.linalg.solve(
            total, residual[there]
        )
        assert float(found[0]) == pytest.approx(
            (constant + density) / alpha, rel=1e-9 if alpha > 0.1 else 1e-3
        )


def test_what_has_no_cavity_is_refused():
    model = gpssm(1, num_inducing=3)
    for rule in (Conditional(), Conditional(free=True), DoublyStochastic()):
        guide = Guide(model, hidden=rule)
        with pytest.raises(ValueError, match="neither u nor f"):
            refuse(ApproximatePowerEP(0.5), {}, model, guide, CONTROLS, Y)
    guide = Guide(model, hidden=MeanField(), inducing=Coupled())
    with pytest.warns(UserWarning, match="x_0"):
        refuse(ApproximatePowerEP(1.0), {}, model, guide, CONTROLS, Y)

    def twice(x, y):
        model(x, y)
        with numpyro.plate("more", 2):
            numpyro.sample("z", dist.Normal(0.0, 1.0), obs=jnp.zeros(2))

    guide = Guide(twice, hidden=MeanField())
    with pytest.raises(ValueError, match="one plate of 6 rows"):
        refuse(ApproximatePowerEP(0.5), {}, twice, guide, CONTROLS, Y)

    def lifted(x, y):
        numpyro.sample("bias", dist.Normal(0.0, 1.0))
        model(x, y)

    guide = Guide(lifted, hidden=MeanField(), others=AutoNormal)
    with pytest.raises(ValueError, match="latents \\['bias'\\]"):
        refuse(ApproximatePowerEP(0.5), {}, lifted, guide, CONTROLS, Y)


def collapsed_at(params, model, guide, x, y):
    """The collapsed bound, and the parameters with q(u) at its optimum."""
    both = lambda p: (Collapsed().loss(KEY, p, model, guide, x, y), Collapsed().finish(p, model, guide, x, y))
    value, best = jax.jit(both)(params)
    return -float(value), best


SETTINGS = {
    "mean-field": (MeanField(), {"latent": 2}),
    "markov": (Markov(full=True), {"latent": 2, "missing": True}),
    "gp": (Markov(), {"latent": 2, "emission": "gp"}),
}


def at_optimum(name):
    rule, settings = SETTINGS[name]
    y = GAPS if settings.get("missing") else Y
    model, guide, params = started(TWO, y, rule, num_sequences=2, **settings)
    collapsed, best = collapsed_at(params, model, guide, TWO, y)
    return params, best, collapsed, lambda p: -MOMENTS.loss(KEY, p, model, guide, TWO, y)


@pytest.mark.slow
@pytest.mark.parametrize("name", few([*SETTINGS][:2] + [pytest.param("gp", marks=pytest.mark.slow)], 1))
def test_collapsed_is_the_bound_at_the_optimal_q_of_u(name):
    """T11, two sequences with controls; another q(u) lies below."""
    params, best, collapsed, bound = at_optimum(name)
    bound = jax.jit(bound)
    assert float(bound(best)) == pytest.approx(collapsed, abs=1e-8)
    assert float(bound(params)) < collapsed - 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_collapsed_is_stationary_in_q_of_u(name):
    params, best, _, bound = at_optimum(name)
    slope = jax.jit(jax.grad(bound))(best)
    for site in [each for each in params if each.endswith("/u_loc")]:
        np.testing.assert_allclose(slope[site], 0.0, atol=1e-6)
        # a Cholesky factor has a lower triangle only
        np.testing.assert_allclose(jnp.tril(slope[site.replace("loc", "scale")]), 0.0, atol=1e-6)


@pytest.mark.slow
def test_it_is_fitted_by_it():
    """Its gradient is that of the bound at the optimum; a few steps go further than with q(u) among the parameters."""
    model = gpssm(1, 1, 4, emission="identity")
    x, y = jnp.zeros((20, 0)), jnp.sin(jnp.arange(20.0))[:, None]
    optimal, free = Guide(model, hidden=Markov(), inducing=Optimal()), Guide(model, hidden=Markov())
    found = fit_lbfgs(KEY, model, None, y, guide=optimal, objective=Collapsed(), steps=15)
    trained = fit_lbfgs(KEY, model, None, y, guide=free, objective=MOMENTS, steps=15)
    assert found.losses[0, -1] < trained.losses[0, -1] - 0.1
    # it ends at a q(u) that all else can use
    assert loss(MOMENTS, found.params, model, free, x, y) == pytest.approx(found.losses[0, -1], abs=1e-7)
    slopes = [
        jax.jit(jax.grad(lambda p, each=each: each.loss(KEY, p, model, free, x, y)))(found.params)
        for each in (Collapsed(), MOMENTS)
    ]
    for name in (name for name in slopes[0] if "/u_" not in name):
        np.testing.assert_allclose(slopes[0][name], slopes[1][name], atol=1e-6)
        assert np.isfinite(slopes[0][name]).all()
    smoothed = smooth(KEY, found, None, y, num_samples=200)
    assert abs(smoothed.mean[1:] - y).max() < 0.5
    ahead = forecast(KEY, found, None, y, 2, num_samples=200)
    assert abs(ahead.mean[0, 0] - np.sin(20.0)) < 4 * np.sqrt(ahead.variance[0, 0])


@pytest.mark.slow
def test_any_likelihood_of_a_linear_map_of_the_states_is_collapsed():
    counts = jnp.array([0, 1, 3, 2, 5, 4])[:, None]
    model, guide, params = started(NONE, counts, noise=None, likelihood=Poisson())
    collapsed, best = collapsed_at(params, model, guide, NONE, counts)
    assert -loss(MOMENTS, best, model, guide, NONE, counts) == pytest.approx(collapsed, abs=1e-8)


@pytest.mark.slow
def test_what_cannot_be_collapsed_is_refused():
    model = gpssm(1, num_inducing=3, emission="gp", noise=None, likelihood=Poisson())
    counts = jnp.array([0, 1, 3, 2, 5, 4])[:, None]
    guide = Guide(model, hidden=MeanField(), inducing=Optimal())
    with pytest.raises(TypeError, match="found Poisson behind a GP"):
        refuse(Collapsed(), {}, model, guide, CONTROLS, counts)
    model = gpssm(1, num_inducing=3, window=2)
    guide = Guide(model, hidden=MeanField(), inducing=Optimal())
    index = {"index": jnp.arange(2), "size": 3}
    for objective in (Collapsed(), ApproximatePowerEP(0.5)):
        with pytest.raises(ValueError, match="steps of some windows"):
            # b: of one loop round
            jax.eval_shape(lambda: objective.loss(KEY, {}, model, guide, CONTROLS, Y, **index))  # noqa: B023
    for rule in (Conditional(), DoublyStochastic()):
        guide = Guide(model, hidden=rule)
        with pytest.raises(TypeError, match="closed form q"):
            refuse(Collapsed(), {}, model, guide, CONTROLS, Y)
    with pytest.raises(ValueError, match="Collapsed"):
        guide = Guide(model, hidden=MeanField())
        refuse(Collapsed(0.5), {}, model, guide, CONTROLS, Y)
