"""Where lengthscales begin: √D, shorter where targets bend, and what a fit gains by it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.handlers import seed, trace
from scipy import stats

from ppl_dgp import Collapsed, Guide, Optimal, default_priors, fit_lbfgs
from ppl_dgp.likelihoods import Gaussian, MixedLikelihood, RobustMax
from ppl_dgp.models import deep_gp, exact_gp_regression, sparse_gp_classification, sparse_gp_regression
from ppl_dgp.models.lengthscales import FEW, LEVEL, bent, lengthscales, where_lengthscales_begin


def bowl(rows, inputs, at=2):
    """A plane of the first input, a bowl along another, the rest in vain."""
    random = np.random.default_rng(rows + inputs)
    x = random.normal(size=(rows, inputs))
    y = x[:, :1] + (x[:, [at]] ** 2 - 1.0) / 2**0.5 + 0.1 * random.normal(size=(rows, 1))
    return x, y


def begun(model, x, y):
    sites = trace(seed(model, jax.random.key(0))).get_trace(jnp.asarray(x), jnp.asarray(y))
    return next(np.asarray(site["value"]) for name, site in sites.items() if name.endswith("lengthscale"))


def test_a_bowl_bends_and_a_plane_does_not():
    x, y = bowl(300, 30)
    assert np.flatnonzero(bent(x, y)).tolist() == [2]
    expected = np.full(30, 30**0.5)
    expected[2] = 2.0 * x[:, 2].std()
    np.testing.assert_allclose(lengthscales(x, y), expected)


def test_it_is_seen_as_an_analysis_of_variance_of_what_a_line_leaves_would():
    random = np.random.default_rng(0)
    x = np.repeat(np.arange(5.0), 40)[:, None]
    for bend in np.linspace(0.0, 0.5, 12):
        y = 2.0 * x + bend * (x - 2.0) ** 2 + random.normal(size=x.shape)
        left = y[:, 0] - np.polyval(np.polyfit(x[:, 0], y[:, 0], 1), x[:, 0])
        chance = stats.f_oneway(*np.split(left, 5)).pvalue
        assert bent(x, y)[0] == (chance < LEVEL), bend


def test_of_tables_of_nothing_no_more_bend_than_the_level_says():
    random = np.random.default_rng(3)
    tables = [(random.normal(size=(100, 6)), random.normal(size=(100, 2))) for _ in range(300)]
    # three tenths of a table are expected
    assert sum(bent(*table).any() for table in tables) <= stats.poisson(0.3).ppf(0.999)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.ones((60, 6)), np.arange(60.0)[:, None]),
        (np.tile([[0.0], [1.0]], (30, 6)), np.arange(60.0)[:, None]),
        (np.random.default_rng(0).normal(size=(20, 6)), np.arange(20.0)[:, None] ** 2),
    ],
    ids=["constants", "two values", "few rows"],
)
def test_what_cannot_be_seen_to_bend_does_not(x, y):
    assert not bent(x, y).any()


def test_many_bends_keep_rows_within_sight():
    random = np.random.default_rng(1)
    x = random.normal(size=(2000, 40))
    found = lengthscales(x, np.square(x))
    # 1/ℓ² by two at most
    np.testing.assert_allclose(found, 20**0.5 * x.std(0))


def test_targets_that_are_missing_say_nothing():
    """Nor does it matter that no row has all targets."""
    x, y = bowl(300, 8)
    y[::3] = np.nan
    assert np.flatnonzero(lengthscales(x, y) < 8**0.5 - 1e-9).tolist() == [2]
    both = np.hstack([y, bowl(300, 8, at=5)[1]])
    both[np.arange(300) % 3 > 0, 1] = np.nan
    assert np.flatnonzero(lengthscales(x, both) < 8**0.5 - 1e-9).tolist() == [2, 5]


def test_classes_of_one_column_beside_numbers_of_another_are_classes():
    """Three classes in the middle and to both sides, the label of the middle one between the others and not."""
    x, y = bowl(400, 8)
    middle = np.abs(x[:, 4]) < 0.7
    for labels in (np.where(middle, 1, np.where(x[:, 4] < 0, 0, 2)), np.where(middle, 2, x[:, 4] < 0)):
        kinds = MixedLikelihood((Gaussian(jnp.asarray(0.1)), RobustMax(3)))
        begin = where_lengthscales_begin(jnp.asarray(x), jnp.asarray(np.hstack([y, labels[:, None]])), kinds)
        assert np.flatnonzero(begin() < 8**0.5 - 1e-9).tolist() == [2, 4]


def test_few_inputs_begin_at_the_root_of_their_number():
    x, y = bowl(100, FEW)
    assert where_lengthscales_begin(jnp.asarray(x), jnp.asarray(y)) == FEW**0.5


@pytest.mark.parametrize(
    "model",
    [sparse_gp_regression(10), exact_gp_regression(), deep_gp((), 10), deep_gp((3,), 10)],
    ids=["sparse", "exact", "one layer", "deep"],
)
def test_models_begin_there_but_priors_do_not(model):
    x, y = bowl(100, 8)
    np.testing.assert_allclose(begun(model, x, y), lengthscales(x, y), rtol=1e-6)
    prior = next(prior for name, prior in default_priors(model, x, y).items() if name.endswith("lengthscale"))
    np.testing.assert_allclose(prior.base_dist.rate, 5.0 * 8**0.5)


def test_a_compiled_start_is_the_same():
    x, y = map(jnp.asarray, bowl(200, 8))
    find = jax.jit(lambda x, y: where_lengthscales_begin(x, y)())
    for targets in (y, (y > 0.0).astype(int)):
        np.testing.assert_array_equal(find(x, targets), where_lengthscales_begin(x, targets)())


def test_a_class_between_others_bends():
    x, _ = bowl(600, 8)
    labels = np.digitize(x[:, 4], [-0.5, 0.5])[:, None]
    # classes without an order: the middle one is where x is small, though numbers of classes lie on a line
    order = np.array([0, 2, 1])[labels]
    for y in (labels, order):
        found = begun(sparse_gp_classification(3, 10), x, y.astype(float))
        assert np.flatnonzero(found < 8**0.5 - 1e-6).tolist() == [4]


def test_a_fit_keeps_an_input_that_is_all_curvature():
    x, y = bowl(400, 30)
    model = sparse_gp_regression(30)
    guide = Guide(model, inducing=Optimal())
    settings = {"guide": guide, "objective": Collapsed(), "budget": 200}
    key = jax.random.key(0)
    usual = {"gp/lengthscale": jnp.full(30, 30**0.5)}
    with_bends = fit_lbfgs(key, model, x, y, **settings)
    without = fit_lbfgs(key, model, x, y, start=usual, **settings)
    # all but the noise, a tenth of a deviation, against all but the plane
    assert -with_bends.losses[0, -1] > -without.losses[0, -1] + 500.0
