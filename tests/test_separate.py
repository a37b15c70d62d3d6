"""Outputs with kernels and inducing inputs of their own: equal ones are the shared layer, others single functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import loss, noise_like
from fast import few
from numpyro.handlers import seed
from test_gpssm import CONTROLS, MOMENTS, moved, prepared

from ppl_dgp import expectations
from ppl_dgp.diagnostics import plot_vector_field
from ppl_dgp.expectations.nodes import at_nodes
from ppl_dgp.fit import fit_series
from ppl_dgp.fit.advice import _inducing
from ppl_dgp.gp.means import Linear
from ppl_dgp.gp.moment_matching import linearised, matched, matched_covariance
from ppl_dgp.gp.sparse_gp import SparseGP, sparse_gp
from ppl_dgp.guides import Conditional, DoublyStochastic, EnsembleSmoother, Guide, Markov, MeanField
from ppl_dgp.kernels import RBF, Matern52
from ppl_dgp.kernels import Linear as LinearKernel
from ppl_dgp.models import gpssm
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.objectives import ApproximatePowerEP, Collapsed, EnsembleKalman, ImportanceWeighted, PowerEP
from ppl_dgp.prediction.forecast import forecast, transition_function
from ppl_dgp.prediction.rollout import FunctionPath

Y = jnp.array([[0.4, -0.3, 0.5, 1.4, 1.1, 2.0], [1.0, 0.2, -0.4, 0.1, 0.9, 0.3]]).T
P, M, D, B = 3, 5, 2, 4
MEAN = Linear(jnp.asarray(noise_like(np.zeros((D, P)), 7)), jnp.asarray(noise_like(np.zeros(P), 8)))
KERNELS = [
    RBF(0.5 + p, jnp.array([0.7 + 0.3 * p, 1.5 - 0.2 * p])) + LinearKernel(0.2 + 0.1 * p) for p in range(P)
]
PLACES = jnp.asarray(noise_like(np.zeros((P, M, D)), 0))
U = jnp.asarray(noise_like(np.zeros((P, M)), 1))
ROOTS = jnp.asarray(np.tril(0.3 * noise_like(np.zeros((P, M, M)), 2)))
H = jnp.asarray(noise_like(np.zeros((B, D)), 3))
UNCERTAIN = Gaussian(H, jnp.asarray(np.tril(0.4 * noise_like(np.zeros((B, D, D)), 4)) + 0.3 * np.eye(D)))
CARRIED = {"draw": U, "moments": Gaussian(U, ROOTS), "deviations": Gaussian(U, jnp.abs(ROOTS[:, 0] + 0.1))}
CARRIED["low rank"] = Gaussian(U, jnp.abs(ROOTS[:, 0] + 0.1), ROOTS[..., :2])


def function(kernels, places, u, mean=MEAN):
    """A function of given outputs whose u is known."""
    made = seed(
        lambda: sparse_gp("f", kernels, places, len(u.mean if isinstance(u, Gaussian) else u), mean=mean), 0
    )()
    return SparseGP(made.name, made.kernel, made.inducing, made.whiten, made.mean, u, made.nugget)


def single(p, u):
    """The function of one output alone."""
    one = jax.tree.map(lambda leaf: leaf[p : p + 1], u)
    mean = Linear(MEAN.weights[:, p : p + 1], MEAN.bias[p : p + 1])
    return function(KERNELS[p], PLACES[p], one, mean)


@pytest.mark.parametrize("carried", CARRIED)
def test_outputs_are_single_functions(carried):
    u = CARRIED[carried]
    f = function(KERNELS, PLACES, u)
    marginal, (mean, covariance) = f(H), f.joint(H)
    for p in range(P):
        alone = single(p, u)
        expected, (its_mean, its_covariance) = alone(H), alone.joint(H)
        np.testing.assert_allclose(marginal.mean[:, p], expected.mean[:, 0], rtol=1e-12)
        np.testing.assert_allclose(marginal.variance[:, p], expected.variance[:, 0], rtol=1e-11)
        np.testing.assert_allclose(mean[:, p], its_mean[:, 0], rtol=1e-12)
        np.testing.assert_allclose(covariance[p], its_covariance[0], atol=1e-12)


def test_a_draw_for_each_row():
    """u of (B, P, M): each row has the value of its own draw."""
    draws = jnp.asarray(noise_like(np.zeros((B, P, M)), 5))
    found = function(KERNELS, PLACES, draws[0])
    f = SparseGP("f", found.kernel, found.inducing, found.whiten, MEAN, draws)
    for b in range(B):
        np.testing.assert_allclose(f(H).mean[b], function(KERNELS, PLACES, draws[b])(H).mean[b], rtol=1e-12)


@pytest.mark.parametrize(
    "slope", [None, jnp.asarray(noise_like(np.zeros((B, P, D)), 6))], ids=["plain", "slope"]
)
def test_moments_are_those_of_single_functions(slope):
    f = function(KERNELS, PLACES, CARRIED["moments"])
    for moments_of in (matched, lambda *given: linearised(*given)[0]):
        moments = moments_of(f, UNCERTAIN, slope)
        for p in range(P):
            alone = moments_of(
                single(p, CARRIED["moments"]), UNCERTAIN, None if slope is None else slope[:, p : p + 1]
            )
            np.testing.assert_allclose(moments.weights[:, p], alone.weights, rtol=1e-12)
            for name in ("mean", "residual", "beyond"):
                np.testing.assert_allclose(
                    getattr(moments, name)[:, p], getattr(alone, name)[:, 0], rtol=1e-10
                )


def nodes(size=40):
    """Nodes of two uncertain inputs, (B, S, D), and their weights."""
    points, weights = np.polynomial.hermite_e.hermegauss(size)
    grid = np.stack(np.meshgrid(points, points, indexing="ij"), -1).reshape(-1, 2)
    return at_nodes(UNCERTAIN, grid), np.outer(weights, weights).ravel() / weights.sum() ** 2


@pytest.mark.parametrize(
    "slope", [None, jnp.asarray(noise_like(np.zeros((B, P, D)), 6))], ids=["plain", "slope"]
)
def test_covariance_of_outputs(slope):
    """By quadrature over the input: outputs of different kernels are correlated through it."""
    f = function(KERNELS, PLACES, U)
    covariance = matched_covariance(f, UNCERTAIN, slope)
    h, weights = nodes()
    for b in range(B):
        marginal = f(h[b])
        values = marginal.mean if slope is None else marginal.mean - h[b] @ slope[b].T
        centred = values - weights @ values
        expected = centred.T @ (weights[:, None] * centred) + jnp.diag(weights @ marginal.residual)
        np.testing.assert_allclose(covariance[b], expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    "pair", [(KERNELS[0], KERNELS[1]), (Matern52(1.2, 0.9), Matern52(0.7, 2.0))], ids=["sum", "Matern"]
)
def test_products_of_two_kernels(pair):
    one, other = pair
    found = expectations.psi2_between(one, other, UNCERTAIN, PLACES[0], PLACES[1][:3])
    # what has no closed form goes through these nodes itself
    h, weights = nodes(40 if isinstance(one, RBF | type(KERNELS[0])) else 20)
    for b in range(B):
        expected = one(h[b], PLACES[0]).T @ (weights[:, None] * other(h[b], PLACES[1][:3]))
        np.testing.assert_allclose(found[b], expected, rtol=1e-9, atol=1e-10)


def shared_and_separate(rule, **settings):
    """A shared model and the separate one with the same values in every output."""
    model, guide, params = prepared(rule, CONTROLS, Y, latent=2, **settings)
    apart, its_guide, others = prepared(rule, CONTROLS, Y, latent=2, separate=True, **settings)
    params = moved(params)
    for name in others:
        layer, _, last = name.rpartition("/")
        source = params.get(name)
        if "/output" in layer:
            source = params[f"{layer.split('/')[0]}/{last}"]
        elif last == "inducing":
            source = jnp.tile(source, (2, 1, 1))
        others[name] = source
    return (model, guide, params), (apart, its_guide, others)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "objective"),
    few(
        [
            (Conditional(markov=True), PowerEP(0.0)),
            (Markov(), MOMENTS),
            (MeanField(), PowerEP(0.0, propagation="linearised")),
            (Markov(), PowerEP(0.0, propagation="full-moments")),
            (Conditional(), PowerEP(0.0)),
            (Conditional(free=True), PowerEP(0.0)),
            (Conditional(tied=True), PowerEP(0.0)),
            (Conditional(across_outputs=True), PowerEP(0.0)),
            (DoublyStochastic(), PowerEP(0.0)),
            (Markov(), ApproximatePowerEP(0.5, propagation="moments")),
            (Markov(full=True), ApproximatePowerEP(0.5, propagation="full-moments")),
            (EnsembleSmoother(), EnsembleKalman(6)),
        ],
        0,
        3,
        10,
    ),
    ids=repr,
)
def test_equal_outputs_are_the_shared_layer(rule, objective):
    (model, guide, params), (apart, its_guide, others) = shared_and_separate(rule, emission="identity")
    expected = loss(objective, params, model, guide, CONTROLS, Y)
    np.testing.assert_allclose(loss(objective, others, apart, its_guide, CONTROLS, Y), expected, rtol=1e-9)


@pytest.mark.parametrize("emission", few(["identity", "gp"], 0))
def test_the_closed_form_of_u_is_that_of_the_shared_layer(emission):
    (model, guide, params), (apart, its_guide, others) = shared_and_separate(Markov(), emission=emission)
    objective = Collapsed()
    expected = loss(objective, params, model, guide, CONTROLS, Y)
    np.testing.assert_allclose(loss(objective, others, apart, its_guide, CONTROLS, Y), expected, rtol=1e-9)


@pytest.mark.slow
def test_the_optimal_q_is_at_the_closed_form():
    """Outputs that differ: the bound of q(u) at its optimum is the one with u integrated out."""
    model, guide, params = prepared(Markov(), CONTROLS, Y, latent=2, separate=True, emission="identity")
    params = moved(params)
    expected = loss(Collapsed(), params, model, guide, CONTROLS, Y)
    best = Collapsed().finish(params, model, guide, CONTROLS, Y)
    np.testing.assert_allclose(loss(MOMENTS, best, model, guide, CONTROLS, Y), expected, rtol=1e-8)
    assert loss(MOMENTS, params, model, guide, CONTROLS, Y) > expected


@pytest.mark.slow
def test_one_function_along_a_path():
    """Met at a few places, outputs of their own kernels have the joint distribution that they have at once."""
    f = function(KERNELS, PLACES, U)
    z = jnp.asarray(noise_like(np.zeros((B, P)), 9))
    path, values = FunctionPath.empty(f, B, z), []
    for row in H:
        value, path = path.meet(f, row[None])
        values.append(value)
    mean, covariance = f.joint(H)
    for p in range(P):
        expected = mean[:, p] + jnp.linalg.cholesky(covariance[p] + 1e-12 * jnp.eye(B)) @ z[:, p]
        np.testing.assert_allclose(jnp.stack(values)[:, p], expected, atol=1e-5)


def test_what_has_no_meaning_is_refused():
    places = PLACES[0]
    with pytest.raises(ValueError, match="kernel: found 2 of them, expected one, or 3"):
        function(KERNELS[:2], places, U)
    with pytest.raises(ValueError, match="of different structure, RBF, Matern52, RBF"):
        function([RBF(1.0, 1.0), Matern52(1.0, 1.0), RBF(1.0, 1.0)], places, U)
    with pytest.raises(ValueError, match=r"inducing: found shape \(2, 5, 2\)"):
        function(KERNELS, PLACES[:2], U)
    with pytest.raises(ValueError, match="a closed form and|two kernels with a closed form"):
        expectations.psi2_between(KERNELS[0], Matern52(1.0, 1.0), UNCERTAIN, places, places)
    with pytest.raises(ValueError, match="kernels and inducing inputs of each output"):
        function(KERNELS, PLACES, U)(H).output(jnp.zeros(B, int))
    model, guide, params = prepared(DoublyStochastic(), CONTROLS, Y, separate=True, emission="gp")
    with pytest.raises(ValueError, match="kernels and inducing inputs of each output|path"):
        loss(ImportanceWeighted(3), params, model, guide, CONTROLS, Y)


def test_its_sites_have_an_axis_of_outputs():
    _, _, params = prepared(MeanField(), CONTROLS, Y, latent=2, separate=True, emission="gp")
    assert params["transition/inducing"].shape == (2, 3, 3)
    assert params["emission/inducing"].shape == (2, 3, 2)
    assert params["transition/output2/lengthscale"].shape == (3,)
    assert params["transition/u_loc"].shape == (2, 3)
    given = gpssm(2, separate=True, inducing=np.zeros((4, 2)))
    assert given.num_inducing == 4


@pytest.mark.slow
def test_what_is_read_of_a_fit():
    """Its forecasts of every kind, where it is u itself, its picture, and advice on inputs that coincide."""
    draw = np.random.default_rng(0)
    u = jnp.asarray(draw.normal(size=(40, 1)))
    way = jnp.cumsum(u)
    y = jnp.column_stack([way, jnp.sin(way)]) + 0.1 * draw.normal(size=(40, 2))
    model = gpssm(2, num_inducing=5, emission="identity", separate=True)
    fit = fit_series(jax.random.key(0), model, Guide(model, hidden=Markov()), MOMENTS, u, y, steps=5)
    f = transition_function(fit, u, y)
    whole = f.joint(f.inducing.reshape(-1, 3))[0].reshape(2, 5, 2)
    np.testing.assert_allclose(f.at_inducing(), np.stack([whole[0, :, 0], whole[1, :, 1]]), rtol=1e-10)
    for function_kind in ("path", "independent", "moments", "linearised"):
        found = forecast(jax.random.key(1), fit, u, y, u[:4], function=function_kind, num_samples=20)
        assert found.mean.shape == (4, 2) and (found.variance > 0.0).all()
    figure = plot_vector_field(f, controls=(0.0,))
    (circles,) = [line for line in figure.axes[0].lines if line.get_label() == "inducing inputs"]
    assert len(circles.get_xdata()) == 10
    params = dict(fit.params)
    params["transition/inducing"] = (
        params["transition/inducing"].at[1, 1].set(params["transition/inducing"][1, 0])
    )
    assert [text for text in _inducing(params) if "1" in text and "transition/inducing" in text]
