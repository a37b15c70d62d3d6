"""Latent variable models: one bound by three routes, golden numbers, missing entries, views, sequences."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from compiled import initial, loss, refuse
from scipy import stats

from ppl_dgp.fit import fit_lbfgs, fit_svi
from ppl_dgp.guides import Amortised, Conditional, DoublyStochastic, Guide, MeanField, PointEstimate
from ppl_dgp.kernels import RBF
from ppl_dgp.models import (
    deep_gplvm,
    dynamical_gplvm,
    gplvm,
    latent_input_gp,
    shared_gplvm,
    sparse_gp_regression,
)
from ppl_dgp.models.latents import components
from ppl_dgp.numerics.gaussian import Gaussian, beside
from ppl_dgp.objectives import (
    ApproximatePowerEP,
    BlackBoxAlpha,
    Collapsed,
    ImportanceWeighted,
    PowerEP,
    collapsed_energy,
)

KEY = jax.random.PRNGKey(0)
# the golden data of methods/tutorial_and_slides.md, section 7
X = jnp.array([-1.0, -0.3, 0.4, 1.2, 2.0])[:, None]
Y = jnp.array([0.5, -0.2, 0.1, 0.9, -0.4])[:, None]
Z = jnp.array([-0.8, 0.5, 1.6])[:, None]
SCALE = jnp.sqrt(jnp.array([0.05, 0.1, 0.2, 0.1, 0.05]))[:, None]
NONE = jnp.zeros((5, 0))
VALUES = {"gp/variance": jnp.array(1.3), "gp/lengthscale": jnp.array([0.7]), "gp/inducing": Z}
VALUES |= {"likelihood/noise": jnp.array(0.1), "x_loc": X, "x_scale": SCALE}
BOUND, DIVERGENCE = -20.810240269095, 7.198036322765
MEAN_FIELD = MeanField()
BLACK_BOX = BlackBoxAlpha(0.5, propagation="moments")


def made(columns=1, rule=MEAN_FIELD, **settings):
    model = gplvm(columns, 1, 3, jitter=1e-14, **settings)
    return model, Guide(model, hidden=rule)


def complete(model, guide, values, y, x=None):
    """The values, and those of other parameters where they start."""
    return initial(KEY, model, guide, jnp.zeros((len(y), 0)) if x is None else x, y) | values


@pytest.fixture(scope="module")
def golden():
    model, guide = made()
    values = complete(model, guide, VALUES, Y)
    return model, guide, Collapsed().finish(values, model, guide, NONE, Y)


def test_collapsed_bound_is_the_published_one(golden):
    model, guide, values = golden
    assert -loss(Collapsed(), values, model, guide, NONE, Y) == pytest.approx(BOUND, abs=1e-9)


@pytest.mark.slow
def test_32_bits_bound_the_same(golden):
    """The bound and its gradient at numbers of 32 bits, the kernel expectations in 64."""
    model, guide = gplvm(1, 1, 3), Guide(gplvm(1, 1, 3), hidden=MEAN_FIELD)
    energy = lambda values, x, y: Collapsed().loss(KEY, values, model, guide, x, y)
    both = jax.jit(jax.value_and_grad(energy))
    value, slope = both(golden[2], NONE, Y)
    narrow = lambda tree: jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)
    with jax.enable_x64(False):
        single, single_slope = both(*narrow((golden[2], NONE, Y)))
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, value, rtol=1e-4)
    for name in ("gp/lengthscale", "gp/inducing", "likelihood/noise", "x_loc", "x_scale"):
        np.testing.assert_allclose(single_slope[name], slope[name], rtol=2e-3, err_msg=name)


def test_three_routes_give_one_number(golden):
    """Collapsed; uncollapsed at the optimal q(u); the mean of draws, within 4 standard errors."""
    model, guide, values = golden
    objective = PowerEP(0.0, propagation="moments")
    assert -loss(objective, values, model, guide, NONE, Y) == pytest.approx(BOUND, abs=1e-8)
    sampled = PowerEP(0.0, num_particles=500)
    one = jax.jit(lambda key: sampled.loss(key, values, model, guide, NONE, Y))
    draws = -np.array([one(key) for key in jax.random.split(KEY, 40)])
    assert abs(draws.mean() - BOUND) < 4.0 * draws.std() / np.sqrt(len(draws))


@pytest.mark.slow
def test_any_other_inducing_posterior_is_below(golden):
    model, guide, values = golden
    worse = values | {"gp/u_loc": values["gp/u_loc"] + 0.1}
    objective = PowerEP(0.0, propagation="moments")
    assert -loss(objective, worse, model, guide, NONE, Y) < BOUND - 1e-4


@pytest.mark.slow
def test_full_covariance_of_a_diagonal_is_the_same():
    model, guide = made(rule=MeanField(full=True))
    values = complete(model, guide, VALUES | {"x_scale": SCALE[:, :, None]}, Y)
    assert -loss(Collapsed(), values, model, guide, NONE, Y) == pytest.approx(BOUND, abs=1e-9)


def test_points_are_a_penalised_likelihood():
    """The GPLVM of 2005: the collapsed bound at x, and log p(x)."""
    model, guide = made(rule=PointEstimate())
    values = {name: value for name, value in VALUES.items() if name != "x_scale"}
    values = complete(model, guide, values, Y)
    inner = collapsed_energy(RBF(1.3, 0.7), Z, 0.1, X, Y, 0.0, jitter=1e-14)
    expected = float(inner) + stats.norm.logpdf(X).sum()
    assert -loss(Collapsed(), values, model, guide, NONE, Y) == pytest.approx(expected, abs=1e-9)
    finished = Collapsed().finish(values, model, guide, NONE, Y)
    assert -loss(PowerEP(0.0), finished, model, guide, NONE, Y) == pytest.approx(expected, abs=1e-8)


@pytest.mark.slow
def test_missing_entries_count_for_nothing():
    """Column by column, on the rows that have an entry, and the divergence of all rows once."""
    y = jnp.column_stack([Y, -2.0 * Y, Y**2])
    gaps = jnp.array([[0, 0], [3, 0], [2, 1], [4, 2], [3, 1], [3, 2]]).T
    y = y.at[gaps[0], gaps[1]].set(jnp.nan)  # row 3 has no entry at all
    model, guide = made(3, missing=True)
    values = complete(model, guide, VALUES, y)
    total = -DIVERGENCE
    for column in range(3):
        there = np.flatnonzero(~np.isnan(y[:, column]))
        alone, alone_guide = made()
        own = VALUES | {"x_loc": X[there], "x_scale": SCALE[there]}
        own = complete(alone, alone_guide, own, y[there, column][:, None])
        variance, mean = np.square(SCALE[there]), np.asarray(X[there])
        divergence = 0.5 * (variance + mean**2 - 1.0 - np.log(variance)).sum()
        rows = jnp.zeros((len(there), 0)), y[there, column][:, None]
        total += -loss(Collapsed(), own, alone, alone_guide, *rows) + divergence
    assert -loss(Collapsed(), values, model, guide, NONE, y) == pytest.approx(total, abs=1e-8)
    values = Collapsed().finish(values, model, guide, NONE, y)
    objective = PowerEP(0.0, propagation="moments")
    assert -loss(objective, values, model, guide, NONE, y) == pytest.approx(total, abs=1e-7)
    slope = jax.jit(jax.grad(lambda p: PowerEP(0.5, 2).loss(KEY, p, model, guide, NONE, y)))(values)
    assert all(np.isfinite(each).all() for each in slope.values())


@pytest.mark.slow
def test_points_with_missing_entries():
    """Certain inputs too: a column without its missing rows, each by the energy of a sparse GP."""
    y = jnp.column_stack([Y, -Y]).at[1, 0].set(jnp.nan)
    model, guide = made(2, rule=PointEstimate(), missing=True)
    values = {name: value for name, value in VALUES.items() if name != "x_scale"}
    values = complete(model, guide, values, y)
    there = np.array([0, 2, 3, 4])
    kernel, settings = RBF(1.3, 0.7), dict(alpha=0.0, jitter=1e-14)
    inner = collapsed_energy(kernel, Z, 0.1, X[there], Y[there], **settings)
    inner = inner + collapsed_energy(kernel, Z, 0.1, X, -Y, **settings)
    expected = float(inner) + stats.norm.logpdf(X).sum()
    assert -loss(Collapsed(), values, model, guide, NONE, y) == pytest.approx(expected, abs=1e-9)


def test_minibatches_are_unbiased(golden):
    model, guide, values = golden
    objective = PowerEP(0.0, propagation="moments")

    @jax.jit
    def part(index):
        return objective.loss(KEY, values, model, guide, NONE[index], Y[index], index=index, size=5)

    parts = [float(part(jnp.array([n]))) for n in range(5)]
    assert -np.mean(parts) == pytest.approx(BOUND, abs=1e-8)


@pytest.mark.slow
def test_noise_of_each_column():
    y = jnp.column_stack([Y, 3.0 * Y])
    model, guide = made(2, noise="per-column")
    values = complete(model, guide, VALUES | {"likelihood/noise": jnp.array([[0.1, 0.4]])}, y)
    found = -loss(Collapsed(), values, model, guide, NONE, y)
    each = []
    for column, noise in enumerate((0.1, 0.4)):
        alone, alone_guide = made(noise=noise)
        own = complete(alone, alone_guide, VALUES, y[:, column : column + 1])
        each.append(-loss(Collapsed(), own, alone, alone_guide, NONE, y[:, column : column + 1]) + DIVERGENCE)
    assert found == pytest.approx(sum(each) - DIVERGENCE, abs=1e-8)


@pytest.mark.slow
def test_two_views_of_one_latent():
    """Each view as if alone, with kernel and noise of its own; the divergence of x once."""
    y = jnp.column_stack([Y, -Y, Y**2])
    model = shared_gplvm((1, 2), 1, 3, jitter=1e-14)
    guide = Guide(model, hidden=MeanField())
    values = {"x_loc": X, "x_scale": SCALE}
    total = -DIVERGENCE
    for view, (columns, noise) in enumerate((([0], 0.1), ([1, 2], 0.3)), start=1):
        own = {"lengthscale": jnp.array([0.5 + 0.2 * view]), "variance": jnp.array(1.3), "inducing": Z}
        values |= {f"view{view}/{name}": value for name, value in own.items()}
        values[f"view{view}/noise"] = jnp.array(noise)
        alone, alone_guide = made(len(columns), noise=noise)
        single = VALUES | {f"gp/{name}": value for name, value in own.items()}
        single = complete(alone, alone_guide, single, y[:, columns])
        total += -loss(Collapsed(), single, alone, alone_guide, NONE, y[:, columns]) + DIVERGENCE
    values = complete(model, guide, values, y)
    assert -loss(Collapsed(), values, model, guide, NONE, y) == pytest.approx(total, abs=1e-8)
    values = Collapsed().finish(values, model, guide, NONE, y)
    objective = PowerEP(0.0, propagation="moments")
    assert -loss(objective, values, model, guide, NONE, y) == pytest.approx(total, abs=1e-7)


@pytest.mark.slow
def test_sequences_share_nothing_but_the_maps():
    """g of one sequence says nothing of another's."""
    times = jnp.column_stack([jnp.array([0.0, 1.0, 2.0, 0.0, 1.0]), jnp.array([0.0, 0.0, 0.0, 4.0, 4.0])])
    y = jnp.column_stack([Y, -Y])
    model = dynamical_gplvm(2, 1, 3, times=3, jitter=1e-12)
    guide = Guide(model, hidden=MeanField())
    values = initial(KEY, model, guide, times, y) | {"prior/lengthscale": jnp.array(0.8)}
    run = numpyro.handlers.substitute(numpyro.handlers.seed(model, KEY), values)
    sites = numpyro.handlers.trace(run).get_trace(times, y)
    g = sites["x"]["fn"].marginal.function
    assert g.inducing.shape == (6, 2)
    covariance = np.asarray(g.kernel(times, times))
    # exp(−½ (1 / 0.8)²) = 0.458 a unit of time apart; 0 exactly between sequences, at inducing times too
    assert covariance[0, 1] == pytest.approx(np.exp(-0.5 / 0.64))
    assert np.abs(covariance[:3, 3:]).max() == 0.0
    assert np.abs(np.asarray(g.kernel(times[:3], g.inducing))[:, g.inducing[:, 1] == 4.0]).max() == 0.0


def test_known_inputs_beside_latents():
    h = Gaussian(jnp.ones((2, 1)), 0.5 * jnp.ones((2, 1)))
    known = jnp.arange(4.0).reshape(2, 2)
    found = beside(known, h)
    assert np.array_equal(found.mean, [[0, 1, 1], [2, 3, 1]])
    assert np.array_equal(found.scale, [[0, 0, 0.5]] * 2)
    full = beside(known, Gaussian(h.mean, h.scale[:, :, None]))
    assert np.array_equal(full.covariance(), found.covariance())


LV = {
    "layer1/variance": jnp.array(1.3),
    "layer1/lengthscale": jnp.array([0.7, 1.1]),
    "layer1/inducing": jnp.array([[-0.8, -0.5], [0.5, 0.3], [1.6, 0.9]]),
    "layer1/u_loc": jnp.array([[0.3, -0.2, 0.5]]),
    "layer1/u_scale": jnp.array([[[0.5, 0, 0], [0.1, 0.6, 0], [-0.2, 0.05, 0.4]]]),
    "likelihood/noise": jnp.array(0.1),
    "z_loc": jnp.array([0.2, -0.3, 0.1, 0.5, -0.4])[:, None],
    "z_scale": jnp.sqrt(jnp.array([0.3, 0.2, 0.4, 0.1, 0.25]))[:, None],
}


def test_latent_inputs_reach_the_golden_numbers():
    """methods/tutorial_and_slides.md, section 7, LV-GP: one draw in closed form."""
    model = latent_input_gp(1, (), 3, jitter=1e-14)
    guide = Guide(model, hidden=DoublyStochastic(), latent=MeanField())
    values = complete(model, guide, LV, Y, X)
    objective = PowerEP(0.0, propagation="moments")
    assert -loss(objective, values, model, guide, X, Y) == pytest.approx(-26.802041005177, abs=1e-8)


def test_principal_components_of_complete_and_of_incomplete_rows():
    random = np.random.default_rng(0)
    scores, axes = random.normal(size=(60, 2)), random.normal(size=(2, 7))
    y = scores @ axes + 1e-3 * random.normal(size=(60, 7)) + 3.0
    find = jax.jit(components, static_argnums=(2, 3, 4))
    whole = find(KEY, jnp.asarray(y), 2)
    # posterior means of unit variance, which reproduce the rows
    found = np.asarray(whole.scores(jnp.asarray(y), False))
    again = np.asarray(whole.centre) + np.asarray(whole.unit) * (found @ np.asarray(whole.axes).T)
    assert np.abs(again - y).max() < 0.02
    assert np.allclose(np.cov(found.T, bias=True), np.eye(2), atol=0.01)
    gaps = np.where(random.random(y.shape) < 0.2, np.nan, y)
    partly = find(KEY, jnp.asarray(gaps), 2, "pca", True)
    found = np.asarray(partly.scores(jnp.asarray(gaps), True))
    again = np.asarray(partly.centre) + np.asarray(partly.unit) * (found @ np.asarray(partly.axes).T)
    # rank two, so that what is missing is known; the mean of columns costs a little
    assert np.sqrt(np.mean((again - y)[np.isnan(gaps)] ** 2)) < 0.15 * y.std()
    mixed = find(KEY, jnp.asarray(y), 9, "random")
    assert mixed.axes.shape == (7, 9)
    assert np.all(np.asarray(whole.lengthscales()) >= 2.0)


def test_an_encoder_starts_at_the_principal_components():
    model, _ = made(2)
    guide = Guide(model, hidden=Amortised((4,), MeanField()))
    y = jnp.column_stack([Y, -(Y**2)])
    values = initial(KEY, model, guide, NONE, y)
    plain = initial(KEY, model, Guide(model, hidden=MeanField()), NONE, y)
    site = numpyro.handlers.trace(
        numpyro.handlers.substitute(numpyro.handlers.seed(guide, KEY), values)
    ).get_trace(NONE, y)["x"]["fn"]
    assert np.allclose(site.mean, plain["x_loc"], atol=1e-6)
    assert "x_loc" not in values


def test_an_encoder_wants_its_mask():
    model, _ = made(2, missing=True)
    guide = Guide(model, hidden=Amortised((4,), MeanField()))
    y = jnp.column_stack([Y, -Y]).at[0, 0].set(jnp.nan)
    with pytest.raises(ValueError, match="missing='mask'"):
        fit_svi(KEY, model, guide, PowerEP(), None, y, steps=1)


def test_rules_are_chosen_apart_for_latents_and_layers():
    model = deep_gplvm(2, 1, (2,), 3)
    assert isinstance(Guide(model, hidden=DoublyStochastic()).latent_rule, MeanField)
    assert isinstance(Guide(model, hidden=Conditional()).latent_rule, type(Conditional()))
    guide = Guide(model, hidden=DoublyStochastic(), latent=PointEstimate())
    values = initial(KEY, model, guide, NONE, jnp.column_stack([Y, -Y]))
    assert "x_loc" in values and "x_scale" not in values and "layer1/h_loc" not in values
    with pytest.raises(ValueError, match="latent=PointEstimate"):
        initial(KEY, model, Guide(model, hidden=PointEstimate()), NONE, jnp.column_stack([Y, -Y]))


def test_bad_input_is_refused():
    model, guide = made()
    with pytest.raises(ValueError, match="row 2, column 0.*missing=True"):
        fit_svi(KEY, model, guide, PowerEP(), None, Y.at[2].set(jnp.nan), steps=1)
    other = sparse_gp_regression(3)
    with pytest.raises(ValueError, match="expected finite"):
        fit_lbfgs(KEY, other, X, Y.at[2].set(jnp.nan), guide=Guide(other), objective=Collapsed())
    gaps, gaps_guide = made(2, missing=True)
    with pytest.raises(ValueError, match="no entry in column 1"):
        fit_svi(KEY, gaps, gaps_guide, PowerEP(), None, jnp.column_stack([Y, Y * jnp.nan]), steps=1)
    with pytest.raises(ValueError, match="latent: found 0"):
        gplvm(2, 0)
    with pytest.raises(ValueError, match="two views"):
        shared_gplvm((3,))
    with pytest.raises(ValueError, match="start: found 'pcs'"):
        refuse(PowerEP(), {}, *made(start="pcs"), NONE, Y)
    with pytest.raises(ValueError, match="per-column"):
        gplvm(2, 1, noise="each")
    with pytest.raises(ValueError, match="whole"):
        model = dynamical_gplvm(1, 1, 3, times=2)
        fit_svi(KEY, model, Guide(model), PowerEP(), jnp.column_stack([X, X]), Y, steps=1)
    with pytest.raises(ValueError, match="alpha=0, ApproximatePowerEP"):
        refuse(BLACK_BOX, *_started(*made()), NONE, Y)


def _started(model, guide):
    return complete(model, guide, VALUES, Y), model, guide


@pytest.mark.slow
def test_importance_weights_tighten_the_bound():
    """LV-GP: the published bound of two draws, within 4 standard errors."""
    model = latent_input_gp(1, (), 3, jitter=1e-14)
    guide = Guide(model, hidden=DoublyStochastic(), latent=MeanField())
    values = complete(model, guide, LV, Y, X)
    one = jax.jit(lambda key: ImportanceWeighted(10).loss(key, values, model, guide, X, Y))
    draws = -np.array([one(key) for key in jax.random.split(KEY, 400)])
    assert draws.mean() > -26.802041005177 + 4.0 * draws.std() / np.sqrt(len(draws))


@pytest.mark.slow
def test_energies_of_alpha_approach_the_bound(golden):
    """Bui 2017, T9: at α = 1e-5 within 1e-3 nats, of the tied factors' energy with the cavities of u and x."""
    model, guide, values = golden
    objective = ApproximatePowerEP(1e-5, 1, propagation="moments")
    assert -loss(objective, values, model, guide, NONE, Y) == pytest.approx(BOUND, abs=1e-3)


@pytest.mark.slow
def test_beside_any_inducing_posterior_the_best_latents_of_a_sequence_factorise():
    """Given u the rows of a dynamical GPLVM are independent, so that its gradient couples no two of them."""
    y = jnp.column_stack([Y, -Y])
    model = dynamical_gplvm(2, 1, 3, times=3, jitter=1e-12)
    guide = Guide(model, hidden=MeanField())
    values = initial(KEY, model, guide, X, y)
    objective = PowerEP(0.0, propagation="moments")

    def bound(loc):
        return objective.loss(KEY, values | {"x_loc": loc}, model, guide, X, y)

    second = jax.jit(jax.hessian(bound))(values["x_loc"])[:, 0, :, 0]
    off = second - jnp.diag(jnp.diag(second))
    assert np.abs(off).max() < 1e-8 * np.abs(second).max()
