"""Layers from images to images, and mixtures over patches: against loops over patches, dense formulas, enumeration."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.handlers import seed, substitute, trace
from small_images import bars

from ppl_dgp.fit import fit_svi
from ppl_dgp.gp.means import Linear
from ppl_dgp.gp.patch_layers import at_patches, centre_filter
from ppl_dgp.gp.patches import Patches
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.guides import Conditional, DoublyStochastic, Guide, MeanField
from ppl_dgp.kernels import RBF
from ppl_dgp.models import convolutional_gp, deep_convolutional_gp
from ppl_dgp.models.parts import rows_plate
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.objectives import PowerEP

KEY = jax.random.key(0)
RANDOM = np.random.default_rng(3)
CUT = Patches((4, 5, 2), (2, 3))
X = jnp.asarray(RANDOM.normal(size=(3, 40)))
Z = jnp.asarray(RANDOM.normal(size=(4, 12)))
LABELS = jnp.array([[0], [1], [1]])


def function(outputs=2, mean=None, kernel=None, name="g", reused=True):
    kernel = RBF(1.3, 2.0) if kernel is None else kernel
    return seed(sparse_gp, KEY)(name, kernel, Z, outputs, mean=mean, reused=reused, jitter=0.0)


def test_strides_leave_out_patches():
    every, some = Patches((6, 7, 1), (2, 2), located=True), Patches((6, 7, 1), (2, 2), located=True, stride=2)
    images = jnp.asarray(RANDOM.normal(size=(2, 42)))
    assert some.grid == (3, 3) and every.grid == (5, 6)
    kept = every.of(images).reshape(2, 5, 6, -1)[:, ::2, ::2].reshape(2, 9, -1)
    np.testing.assert_allclose(some.of(images), kept, rtol=1e-15)


@pytest.mark.slow
def test_a_layer_answers_each_patch():
    """Means, variances and slopes of a function of 12 numbers at each of 9 patches, by a loop."""
    mean = Linear(jnp.asarray(RANDOM.normal(size=(12, 2))), jnp.array([0.3, -0.1]))
    f = function(mean=mean)
    layer = at_patches(f, X, CUT)
    patches = CUT.of(X)
    for place in range(9):
        alone = f(patches[:, place])
        columns = slice(2 * place, 2 * place + 2)
        np.testing.assert_allclose(layer.mean[:, columns], alone.mean, rtol=1e-12)
        np.testing.assert_allclose(layer.variance[:, columns], alone.variance, rtol=1e-12)
        np.testing.assert_allclose(layer.joint()[1][columns], alone.joint()[1], rtol=1e-10, atol=1e-12)
    slope = layer.slope(40)
    assert slope.shape == (3, 18, 40)
    moved = jnp.asarray(RANDOM.normal(size=40))
    of_mean = lambda x: mean(CUT.of(x[None])[0]).ravel()
    np.testing.assert_allclose(
        slope[0] @ moved, of_mean(moved) - of_mean(jnp.zeros(40)), rtol=1e-10, atol=1e-12
    )


def test_a_draw_is_of_one_function():
    """Two images that share a patch share its answer, in draws of f; their other answers differ."""
    images = X.at[1].set(X[0]).at[1, -1].add(1.0)
    found = at_patches(function(1), images, CUT).draw(KEY)
    np.testing.assert_allclose(found[0, :8], found[1, :8], atol=1e-3)  # six deviations of jitter 1e-8
    assert abs(found[0, 8] - found[1, 8]) > 1e-2


@pytest.mark.parametrize("located", [False, True])
def test_the_middle_of_patches_is_a_smaller_image(located):
    cut = Patches((5, 5, 2), (3, 3), located)
    images = jnp.asarray(RANDOM.normal(size=(2, 50)))
    middle = centre_filter(cut, 3)(cut.of(images).reshape(-1, cut.size)).reshape(2, 3, 3, 3)
    np.testing.assert_array_equal(middle[..., :2], images.reshape(2, 5, 5, 2)[:, 1:4, 1:4])
    assert not middle[..., 2].any()


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.0, pytest.param(0.5, marks=pytest.mark.slow), 1.0])
def test_a_mixture_is_what_enumeration_sums(alpha):
    """At one draw of u: a discrete site of the patch's number, summed out by the engine, and the closed mixture."""
    shares = jnp.asarray(RANDOM.dirichlet(np.ones(9)))

    def program(closed):
        def model(x, y=None, index=None, size=None):
            f = sparse_gp("g", RBF(1.3, 2.0), Z, 1, reused=True)
            with rows_plate(x, index, size):
                if closed:
                    emission = at_patches(f, x, CUT).given_any(lambda f: dist.Bernoulli(logits=f), shares)
                else:
                    which = numpyro.sample("p", dist.Categorical(shares), infer={"enumerate": "parallel"})
                    patch = CUT.of(x)[jnp.arange(len(x)), which]
                    emission = f(patch).observe(lambda f: dist.Bernoulli(logits=f))
                return numpyro.sample("y", emission, obs=y)

        return model

    losses = []
    for closed in (True, False):
        model = program(closed)
        guide = Guide(model)
        run = trace(seed(guide, KEY)).get_trace(X, LABELS)
        params = {name: site["value"] for name, site in run.items() if site["type"] == "param"}
        params["g/u_loc"] = params["g/u_loc"] + 0.4
        params["g/u_scale"] = 1e-9 * params["g/u_scale"]  # one u, whoever draws it
        losses.append(PowerEP(alpha).loss(KEY, params, model, guide, X, LABELS))
    np.testing.assert_allclose(*losses, rtol=1e-7)  # u is drawn, with a deviation of 1e-9


@pytest.mark.slow
def test_a_mixture_has_the_moments_of_its_draws():
    """4σ of 20 000 draws: means, variances and probabilities of y."""
    shares = jnp.asarray(RANDOM.dirichlet(np.ones(9)))
    emission = at_patches(function(1), X, CUT).given_any(lambda f: dist.Bernoulli(logits=f), shares)
    draws = emission.sample(KEY, (20_000,))
    assert draws.shape == (20_000, 3, 1)
    np.testing.assert_allclose(emission.mean, draws.mean(0), atol=4 * 0.5 / np.sqrt(20_000))
    np.testing.assert_allclose(emission.variance, emission.mean * (1 - emission.mean), rtol=1e-10)
    both = [jnp.exp(emission.log_prob(jnp.full((3, 1), value))) for value in (0, 1)]
    np.testing.assert_allclose(both[0] + both[1], 1.0, rtol=1e-10)
    np.testing.assert_allclose(both[1], emission.mean[:, 0], rtol=1e-10)


@pytest.mark.slow
def test_a_mixture_has_no_function_of_images():
    model = convolutional_gp((4, 5, 2), (2, 3), 2, 4, mixture=True)
    fit = fit_svi(KEY, model, Guide(model), PowerEP(0.0), np.asarray(X), np.asarray(LABELS), steps=2)
    assert fit.predict(KEY, np.asarray(X)).mean.shape == (3, 1)
    with pytest.raises(ValueError, match="found a mixture over patches"):
        fit.sample_functions(KEY, X)


def loss_of(model, guide, x=X, y=LABELS, alpha=0.0, **changed):
    run = trace(seed(guide, KEY)).get_trace(x, y)
    params = {name: site["value"] for name, site in run.items() if site["type"] == "param"} | changed
    return jax.value_and_grad(lambda p: PowerEP(alpha).loss(KEY, p, model, guide, x, y))(params)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hidden", "alpha"),
    [
        (DoublyStochastic(), 0.0),
        (Conditional(), 0.5),
        pytest.param(DoublyStochastic(), 0.5, marks=pytest.mark.slow),
        pytest.param(MeanField(), 0.0, marks=pytest.mark.slow),
        pytest.param(MeanField(), 0.5, marks=pytest.mark.slow),
        pytest.param(Conditional(), 0.0, marks=pytest.mark.slow),
    ],
    ids=lambda each: str(each) if isinstance(each, float) else type(each).__name__,
)
def test_hidden_images_are_guided(hidden, alpha):
    model = deep_convolutional_gp((4, 5, 2), (2,), (2, 2), (1, 1), 2, 5)
    guide = Guide(model, hidden=hidden)
    loss, slopes = loss_of(model, guide, alpha=alpha)
    assert np.isfinite(loss) and all(np.isfinite(slope).all() for slope in jax.tree.leaves(slopes))
    assert np.abs(slopes["layer1/u_loc"]).max() > 0.0


@pytest.mark.slow
def test_a_layer_without_noise_or_variance_is_a_filter():
    """With a hidden kernel of no variance the deep model is the shallow one of filtered images."""
    deep = deep_convolutional_gp((4, 5, 2), (2,), (2, 2), (1, 1), 2, 5, filters="centre", weighted=False)
    guide = Guide(deep)
    start = trace(seed(guide, KEY)).get_trace(X, LABELS)
    still = {"layer1/variance": jnp.asarray(1e-14), "layer1/noise": jnp.asarray(1e-14)}
    z, u = start["layer2/inducing"]["value"], start["layer2/u_loc"]["value"] + 0.3
    found, _ = loss_of(deep, guide, **still, **{"layer2/u_loc": u})
    shallow = convolutional_gp((3, 4, 2), (2, 2), 2, 5, weighted=False)
    filtered = centre_filter(deep.patches[0], 2)(deep.patches[0].of(X).reshape(-1, 8)).reshape(3, -1)
    expected, _ = loss_of(shallow, Guide(shallow), filtered, **{"gp/inducing": z, "gp/u_loc": u})
    # KL[q(u¹) ‖ p(u¹)], q(u¹) = N(0, 0.01² I) of 2 × 5 whitened values
    inner = 10 * (np.log(100.0) + 0.5e-4 - 0.5)
    np.testing.assert_allclose(found - inner, expected, rtol=1e-6)  # √1e-14 of noise in h


@pytest.mark.slow
def test_whatever_starts_in_32_bits_stays_there():
    with jax.enable_x64(False):
        x = jnp.asarray(np.asarray(X), jnp.float32)
        deep = deep_convolutional_gp((4, 5, 2), (2,), (2, 2), (1, 1), 2, 5, located=True)
        loss, slopes = loss_of(deep, Guide(deep), x)
        assert loss.dtype == jnp.float32 and np.isfinite(loss)
        assert all(leaf.dtype == jnp.float32 and np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("kind", ["deep", "mixture"])
def test_what_is_somewhere_is_learnt(kind):
    """A mixture draws its patch at random, so that one place in 36 tells it: its probabilities are near one half.

    Which side of it they are on takes longer to learn than their order, by which both kinds are judged here.
    """
    model = (
        deep_convolutional_gp((8, 8), (2,), (3, 3), (1, 1), 2, 12)
        if kind == "deep"
        else convolutional_gp((8, 8), (3, 3), 2, 12, mixture=True, weighted=False)
    )
    (x, y), (new, truth) = bars(200, 0), bars(200, 1)
    fit = fit_svi(KEY, model, Guide(model), PowerEP(0.0), x, y, steps=800, learning_rate=0.05)
    probabilities, upright = np.asarray(fit.predict(KEY, new).mean[:, 0]), truth[:, 0] == 1
    in_order = probabilities[upright][:, None] > probabilities[~upright]
    assert in_order.mean() > 0.95


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Patches((4, 5, 2), (2, 3), stride=0), "stride: found 0"),
        (lambda: convolutional_gp((4, 4), (2, 2), stride=0), "stride: found 0"),
        (lambda: deep_convolutional_gp((4, 4), (2,), (2, 2), (1,)), r"strides: found \(1,\), expected 2"),
        (lambda: deep_convolutional_gp((4, 4), (2,), (3, 3), (2, 1)), r"patch: found \(3, 3\)"),
        (lambda: deep_convolutional_gp((4, 4), (2,), (2, 2), filters="blur"), "filters: found 'blur'"),
        (lambda: at_patches(function(reused=False), X, CUT), "f: found g, sampled as a function of one value"),
        (lambda: at_patches(function(), X[:, :3], CUT), r"images: found shape \(3, 3\)"),
        (lambda: at_patches(function(), Gaussian(X, jnp.ones_like(X)), CUT), "expected draws"),
        (lambda: at_patches(function(), X, CUT) + 1.0, "at_patches: found a sum"),
        (lambda: 2.0 * at_patches(function(), X, CUT), "at_patches: found a multiple"),
        (lambda: at_patches(function(), X, CUT).given_any(dist.Poisson, jnp.ones(3)), "weights: found"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(made, message):
    with pytest.raises(ValueError, match=message):
        made()


@pytest.mark.slow
def test_new_images_are_predicted():
    deep = deep_convolutional_gp((4, 5, 2), (2,), (2, 2), (1, 1), 3, 5)
    run = trace(substitute(seed(deep, KEY), {})).get_trace(X)
    assert run["layer1/h"]["value"].shape == (3, 3 * 4 * 2)
    fit = fit_svi(KEY, deep, Guide(deep), PowerEP(0.0), np.asarray(X), np.asarray(LABELS), steps=3)
    found = fit.predict(KEY, np.asarray(X), np.asarray(LABELS))
    np.testing.assert_allclose(found.mean.sum(1), 1.0, rtol=1e-6)
    assert found.log_density.shape == (3,)
