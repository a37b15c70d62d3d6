"""Bounds, latents of new rows and predictions of latent variable models, beside Gauss–Hermite quadrature over x.

The oracle knows kernel matrices and Gaussians alone: E_q of what a row says is a sum over 40 × 40 nodes of its latents,
f given them having mean φ(x) µ and variance k − φφᵀ + φ S φᵀ in whitened u, φ(x) = k(x, Z) L⁻ᵀ.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import initial, loss
from fast import few
from scipy import optimize

from ppl_dgp.fit import Posterior
from ppl_dgp.guides import Guide, MeanField
from ppl_dgp.kernels import Linear
from ppl_dgp.models import conditioned_gplvm, dynamical_gplvm, gplvm, shared_gplvm
from ppl_dgp.objectives import Collapsed, PowerEP
from ppl_dgp.prediction.latents import infer_latents
from ppl_dgp.prediction.predict import predict

KEY = jax.random.PRNGKey(4)
MOMENTS = PowerEP(0.0, propagation="moments")
RANDOM = np.random.default_rng(4)
N, Q, P, M = 8, 2, 3, 4
Y = RANDOM.normal(size=(N, P))
GAPS = np.where(RANDOM.uniform(size=(N, P)) < 0.2, np.nan, Y)
COVARIATES = RANDOM.normal(size=(N, 2))
NONE = np.zeros((N, 0))


def factors(random, *shape):
    """Lower triangles with positive diagonals, of covariances far from that of a prior."""
    lower = np.tril(0.2 * random.normal(size=(*shape, shape[-1])), -1)
    return lower + random.uniform(0.3, 0.8, size=(*shape, 1)) * np.eye(shape[-1])


def a_function(name, inputs, outputs, inducing):
    """Parameters of a GP and its q(u)."""
    random = np.random.default_rng(len(name))
    return {
        f"{name}/variance": np.asarray(1.3),
        f"{name}/lengthscale": np.linspace(0.8, 1.4, inputs),
        f"{name}/inducing": random.normal(size=(inducing, inputs)),
        f"{name}/u_loc": random.normal(size=(outputs, inducing)),
        f"{name}/u_scale": factors(random, outputs, inducing),
    }


def rbf(values, name, a, b):
    distance = np.square((a[:, None] - b) / values[f"{name}/lengthscale"]).sum(-1)
    return float(values[f"{name}/variance"]) * np.exp(-0.5 * distance)


def weights(values, name, x):
    """φ (K, M) at inputs x (K, Q), and the variance of f that u leaves, (K,)."""
    z = values[f"{name}/inducing"]
    lower = np.linalg.cholesky(rbf(values, name, z, z))
    phi = np.linalg.solve(lower, rbf(values, name, z, x)).T
    return phi, float(values[f"{name}/variance"]) - np.square(phi).sum(1)


def moments_at(values, name, x):
    """Means and variances (K, P) of f under q(u) at inputs."""
    phi, residual = weights(values, name, x)
    from_u = np.square(np.einsum("km,pmj->kpj", phi, values[f"{name}/u_scale"])).sum(-1)
    return phi @ values[f"{name}/u_loc"].T, residual[:, None] + from_u


def divergence(loc, scale):
    """Of Gaussians from N(0, I), by lower factors (…, n, n), summed."""
    log_det = 2.0 * np.log(np.diagonal(scale, axis1=-2, axis2=-1)).sum()
    return 0.5 * (np.square(scale).sum() + np.square(loc).sum() - loc.size - log_det)


def nodes_of(mean, scale, number=40):
    """Nodes (K, Q) of N(mean, scale scaleᵀ), and their weights."""
    nodes, one = np.polynomial.hermite_e.hermegauss(number)
    grid = np.stack(np.meshgrid(*[nodes] * len(mean), indexing="ij"), -1).reshape(-1, len(mean))
    product = np.stack(np.meshgrid(*[one / one.sum()] * len(mean), indexing="ij")).prod(0)
    return mean + grid @ scale.T, product.ravel()


def of_rows(values, name, noise, y, means, scales):
    """Σ_np E log N(y_np; f_p(x_n), noise), missing entries left out."""
    total = 0.0
    for row, mean, scale in zip(y, means, scales, strict=True):
        x, product = nodes_of(mean, scale)
        f, variance = moments_at(values, name, x)
        each = -0.5 * np.log(2.0 * np.pi * noise) - 0.5 * (np.square(row - f) + variance) / noise
        total += np.nansum(product @ each)
    return total


@pytest.fixture(scope="module", params=few(["diagonal", "full"], 1))
def latents(request):
    """Means and lower factors of q(x), and the rule that has them."""
    full = request.param == "full"
    random = np.random.default_rng(0)
    scales = factors(random, N, Q)
    return random.normal(size=(N, Q)), scales if full else scales * np.eye(Q), MeanField(full=full)


def complete(model, guide, values, x, y, means, scales, full):
    """Those of q(x) among all parameters, in the units that the guide keeps them in."""
    start = initial(KEY, model, guide, jnp.asarray(x), jnp.asarray(y))
    own = {"x_loc": means, "x_scale": scales if full else np.diagonal(scales, axis1=1, axis2=2)}
    return start | {name: jnp.asarray(value) for name, value in (values | own).items()}


@pytest.mark.parametrize("y", few([Y, GAPS], 1), ids=["whole", "missing"])
def test_bound_of_a_gplvm_is_the_integral(latents, y):
    """At any q(u); and collapsed, at the best of them."""
    means, scales, rule = latents
    model = gplvm(P, Q, M, jitter=1e-14, missing=bool(np.isnan(y).any()))
    guide = Guide(model, hidden=rule)
    values = a_function("gp", Q, P, M) | {"likelihood/noise": np.asarray(0.15)}
    params = complete(model, guide, values, NONE, y, means, scales, rule.full)

    def bound(values):
        likely = of_rows(values, "gp", 0.15, y, means, scales)
        apart = divergence(values["gp/u_loc"], values["gp/u_scale"]) + divergence(means, scales)
        return likely - apart

    about = model, guide, jnp.asarray(NONE), jnp.asarray(y)
    assert -loss(MOMENTS, params, *about) == pytest.approx(bound(values), abs=1e-8)
    best = dict(values)
    for column in range(P):
        seen = ~np.isnan(y[:, column])
        squares, target = np.zeros((M, M)), np.zeros(M)
        for row in np.flatnonzero(seen):
            x, product = nodes_of(means[row], scales[row])
            phi = weights(values, "gp", x)[0]
            squares += (product[:, None] * phi).T @ phi
            target += y[row, column] * (product @ phi)
        covariance = np.linalg.inv(np.eye(M) + squares / 0.15)
        best["gp/u_loc"] = best["gp/u_loc"].copy()
        best["gp/u_scale"] = best["gp/u_scale"].copy()
        best["gp/u_loc"][column] = covariance @ target / 0.15
        best["gp/u_scale"][column] = np.linalg.cholesky(covariance)
    assert bound(best) > bound(values) + 1.0
    assert -loss(Collapsed(), params, *about) == pytest.approx(bound(best), abs=1e-8)


@pytest.fixture(scope="module")
def conditioned():
    """Latents that depend on covariates: a model, and values of g, f and the noises."""
    model = conditioned_gplvm(P, Q, M, prior_inducing=3, jitter=1e-14)
    values = a_function("prior", 2, Q, 3) | a_function("gp", Q, P, M)
    return model, values | {"likelihood/noise": np.asarray(0.15), "prior/noise": np.asarray(0.4)}


def test_bound_of_latents_that_depend_on_covariates_is_the_integral(conditioned, latents):
    """What a row's latents say of g too: E log N(x; g(c), s²) + H[q(x)], and the divergence of g's inducing outputs."""
    (model, values), (means, scales, rule) = conditioned, latents
    guide = Guide(model, hidden=rule)
    # q(x) is kept in units of the prior's noise
    params = complete(model, guide, values, COVARIATES, Y, means, scales / 0.4**0.5, rule.full)
    g, variance = moments_at(values, "prior", COVARIATES)
    second = np.square(means - g) + np.square(scales).sum(-1) + variance
    expected = of_rows(values, "gp", 0.15, Y, means, scales)
    expected += (-0.5 * np.log(2.0 * np.pi * 0.4) - 0.5 * second / 0.4).sum()
    expected += 0.5 * N * Q * np.log(2.0 * np.pi * np.e) + np.log(np.diagonal(scales, axis1=1, axis2=2)).sum()
    expected -= sum(
        divergence(values[f"{name}/u_loc"], values[f"{name}/u_scale"]) for name in ("prior", "gp")
    )
    about = model, guide, jnp.asarray(COVARIATES), jnp.asarray(Y)
    assert -loss(MOMENTS, params, *about) == pytest.approx(expected, abs=1e-8)


def predictive(values, means, scales, noise=0.15, name="gp"):
    """Means and variances of y, x being N(mean, scale scaleᵀ) in each row."""
    found = []
    for mean, scale in zip(means, scales, strict=True):
        x, product = nodes_of(mean, scale)
        f, variance = moments_at(values, name, x)
        centre = product @ f
        found.append((centre, product @ (variance + np.square(f)) - np.square(centre) + noise))
    return (np.stack(each) for each in zip(*found, strict=True))


def test_prediction_from_covariates_is_the_integral(conditioned):
    model, values = conditioned
    guide = Guide(model, hidden=MeanField())
    params = initial(KEY, model, guide, jnp.asarray(COVARIATES), jnp.asarray(Y))
    fit = Posterior(model, guide, params | {name: jnp.asarray(value) for name, value in values.items()})
    new = np.array([[0.3, -0.2], [-1.0, 0.8], [4.0, 4.0]])
    g, variance = moments_at(values, "prior", new)
    scales = np.sqrt(variance + 0.4)[:, :, None] * np.eye(Q)
    mean, variance = predictive(values, g, scales)
    found = predict(KEY, fit, new, propagation="moments")
    # nodes of these wide latents err by a millionth
    np.testing.assert_allclose(found.mean, mean, atol=1e-5)
    np.testing.assert_allclose(found.variance, variance, atol=1e-5)
    drawn = predict(KEY, fit, new, num_samples=4000)
    assert np.all(np.abs(drawn.mean - mean) < 4.0 * np.sqrt(variance / 4000))
    np.testing.assert_allclose(drawn.variance, variance, rtol=0.08)


class Fitted(Posterior):
    """Parameters as if trained by the bound in closed form, which new rows then are folded in by."""

    objective = MOMENTS


VIEWS = shared_gplvm((2, 2), Q, 2, kernel=Linear, missing=True, jitter=1e-14)


@pytest.mark.slow
def test_a_view_is_predicted_from_another_as_by_gaussian_conditioning():
    """Linear maps that are as good as known: x | y¹ ~ N(S W¹ᵀ y¹ / s₁², S), S⁻¹ = I + W¹ᵀW¹ / s₁²; y² = W² x + ε."""
    random = np.random.default_rng(2)
    maps, noises = random.normal(size=(2, 2, Q)), (0.3, 0.2)
    guide = Guide(VIEWS, hidden=MeanField(full=True))
    params = initial(KEY, VIEWS, guide, jnp.asarray(NONE), jnp.asarray(random.normal(size=(N, 4))))
    for view, (weights, noise) in enumerate(zip(maps, noises, strict=True), start=1):
        # at inducing inputs that are the axes u is the map itself
        own = {"inducing": np.eye(Q), "variance": np.ones(Q), "u_loc": weights, "noise": np.asarray(noise)}
        own["u_scale"] = np.stack([1e-6 * np.eye(Q)] * 2)
        params |= {f"view{view}/{name}": jnp.asarray(value) for name, value in own.items()}
    fit = Fitted(VIEWS, guide, params)
    seen = np.column_stack([random.normal(size=(5, 2)), np.full((5, 2), np.nan)])
    found = infer_latents(KEY, fit, None, seen, steps=1000)
    covariance = np.linalg.inv(np.eye(Q) + maps[0].T @ maps[0] / noises[0])
    mean = seen[:, :2] @ maps[0] @ covariance / noises[0]
    np.testing.assert_allclose(found.mean, mean, atol=1e-5)
    np.testing.assert_allclose(found.scale @ found.scale.swapaxes(1, 2), [covariance] * 5, atol=1e-5)
    other = predict(KEY, fit, None, num_samples=4000, latents=found.sites)
    spread = np.diag(maps[1] @ covariance @ maps[1].T)
    error = np.sqrt(spread / 4000)
    assert np.all(np.abs(other.mean[:, 2:] - mean @ maps[1].T) < 4.5 * error)
    # of a variance from as many draws
    assert np.all(np.abs(other.variance[:, 2:] - spread - noises[1]) < 4.5 * spread * np.sqrt(2.0 / 4000))


@pytest.mark.slow
def test_a_view_is_predicted_from_another_as_by_quadrature():
    """Curved maps of one latent: q(x | y¹) the best Gaussian by SciPy, and what the other view is under it."""
    model = shared_gplvm((2, 2), 1, M, missing=True, jitter=1e-14)
    values = a_function("view1", 1, 2, M) | a_function("second", 1, 2, M)
    values = {name.replace("second", "view2"): value for name, value in values.items()}
    values |= {"view1/noise": np.asarray(0.3), "view2/noise": np.asarray(0.1)}
    guide = Guide(model, hidden=MeanField())
    params = initial(KEY, model, guide, jnp.asarray(NONE), jnp.asarray(np.hstack([Y, Y[:, :1]])))
    fit = Fitted(model, guide, params | {name: jnp.asarray(value) for name, value in values.items()})
    seen = np.column_stack([Y[:4, :2], np.full((4, 2), np.nan)])
    found = infer_latents(KEY, fit, None, seen, steps=1000)
    for row in range(4):

        def minus_bound(q, row=row):
            about = [q[:1]], [np.exp(q[1:])[:, None]]
            return divergence(*map(np.asarray, about)) - of_rows(
                values, "view1", 0.3, seen[row : row + 1, :2], *about
            )

        at = np.array([found.mean[row, 0], np.log(found.scale[row, 0])])
        best = optimize.minimize(minus_bound, at, method="BFGS", options={"gtol": 1e-9})
        np.testing.assert_allclose(at, best.x, atol=1e-4)
    mean, variance = predictive(values, found.mean, found.scale[:, :, None], 0.1, "view2")
    other = predict(KEY, fit, None, num_samples=4000, latents=found.sites)
    assert np.all(np.abs(other.mean[:, 2:] - mean) < 4.5 * np.sqrt(variance / 4000))
    np.testing.assert_allclose(other.variance[:, 2:], variance, rtol=0.08)


@pytest.mark.slow
def test_a_gap_between_times_is_filled_as_by_gaussian_conditioning():
    """A linear map that is as good as known under a smooth prior: x | y is normal, in a gap and far from all."""
    random = np.random.default_rng(3)
    times = np.append(np.linspace(0.0, 4.0, 9), 40.0)[:, None]
    slopes = np.array([[1.2], [-0.7]])
    y = np.sin(times) @ slopes.T + 0.3 * random.normal(size=(10, 2))
    y[[3, 4, 5, 9]] = np.nan
    model = dynamical_gplvm(2, 1, 1, times=4, kernel=Linear, missing=True, jitter=1e-14)
    guide = Guide(model, hidden=MeanField())
    params = initial(KEY, model, guide, jnp.asarray(times[:9]), jnp.asarray(np.nan_to_num(y[:9])))
    f = {"inducing": [[1.0]], "variance": [1.0], "u_loc": slopes, "u_scale": 1e-6 * np.ones((2, 1, 1))}
    g = {
        "lengthscale": 1.2,
        "noise": 0.05,
        "u_loc": random.normal(size=(1, 4)),
        "u_scale": factors(random, 1, 4),
    }
    params |= {f"gp/{name}": jnp.asarray(value) for name, value in f.items()}
    params |= {f"prior/{name}": jnp.asarray(value) for name, value in g.items()}
    params["likelihood/noise"] = jnp.asarray(0.2)
    fit = Fitted(model, guide, params)
    with pytest.raises(ValueError, match="y: found 10 rows, expected at most batch_size=9"):
        infer_latents(KEY, fit, times, y, batch_size=9)
    found = infer_latents(KEY, fit, times, y, steps=3000)
    values = {name: np.asarray(value) for name, value in params.items()} | {"prior/variance": np.asarray(1.0)}
    phi = weights(values, "prior", times)[0]
    root = phi @ values["prior/u_scale"][0]
    covariance = rbf(values, "prior", times, times) - phi @ phi.T + root @ root.T + 0.05 * np.eye(10)
    prior_mean = phi @ values["prior/u_loc"][0]
    seen = ~np.isnan(y[:, 0])
    precision = np.linalg.inv(covariance) + np.diag(seen * np.square(slopes).sum() / 0.2)
    target = np.linalg.solve(covariance, prior_mean) + np.nan_to_num(y) @ slopes[:, 0] / 0.2
    mean, variance = np.linalg.solve(precision, target), np.diag(np.linalg.inv(precision))
    # Adam on four draws a step leaves hundredths of a deviation
    assert np.all(np.abs(found.mean[:, 0] - mean) < 0.05 * np.sqrt(variance))
    np.testing.assert_allclose(found.scale[:, 0], np.sqrt(variance), rtol=0.02)
    # neither the prior's in the gap, nor as certain as beside it
    assert np.abs(mean - prior_mean)[3:6].max() > 0.2
    assert 1.2 * np.sqrt(variance[2]) < np.sqrt(variance[4]) < 0.9 * np.sqrt(covariance[4, 4])
    np.testing.assert_allclose([mean[9], variance[9]], [0.0, 1.05], atol=1e-9)
