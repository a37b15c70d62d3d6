"""What the benchmark of depth says of layers: neighbours, dimensions, bends, by hand."""

import numpy as np
import pandas as pd

from benchmarks.depth import components_kept, not_linear, root_mean_square, summary
from benchmarks.depth_page import shown
from benchmarks.latent_tables import nearest_errors, standard


def test_nearest_errors_by_hand():
    # 0 and 1 are each other's nearest, 5's is 4.5, of the other class, and the other way round; 9's is 5
    x = np.array([[0.0], [1.0], [4.5], [5.0], [9.0]])
    assert nearest_errors(x, np.array(["a", "a", "a", "b", "b"])) == 2
    assert nearest_errors(x, np.array(["a", "b", "a", "a", "a"])) == 2
    assert nearest_errors(x, np.array(["a"] * 5)) == 0


def test_standard_leaves_columns_out_that_do_not_vary():
    y = np.array([[1.0, 3.0, 0.0], [3.0, 3.0, np.nan], [5.0, 3.0, 4.0]])
    found, mean, scale = standard(y)
    np.testing.assert_allclose(found, np.column_stack([y[:, 0] - 3.0, y[:, 2] - 2.0]) / scale)
    np.testing.assert_allclose(scale, [np.sqrt(8.0 / 3.0), 2.0])
    np.testing.assert_allclose(mean, [3.0, 2.0])


def test_components_are_counted_from_two_per_cent_on():
    means = np.linalg.qr(np.random.default_rng(0).normal(size=(50, 4)))[0]
    means = np.linalg.qr(means - means.mean(0))[0]
    variances = np.array([1.0, 0.5, 0.021, 0.019])
    assert components_kept(means * np.sqrt(variances) + 3.0) == 3


def test_a_layer_that_is_a_linear_map_is_not_bent():
    before = np.random.default_rng(0).normal(size=(200, 2))
    linear = before @ np.array([[1.0, 0.5, 2.0], [-0.3, 1.0, 0.0]]) + 0.7
    assert not_linear(linear, before) < 1e-12
    # of a square of a symmetric variable nothing is linear; half of the variance here
    even = np.concatenate([before, -before])[:, :1]
    square = np.square(even) - np.square(even).mean()
    both = np.column_stack([even / even.std(), square / square.std()])
    np.testing.assert_allclose(not_linear(both, even), 0.5, atol=1e-12)


def test_root_mean_square():
    assert root_mean_square(np.array([[3.0, 0.0], [0.0, 4.0]])) == 2.5


def test_depths_are_compared_on_the_same_digits():
    found = pd.DataFrame(
        {
            "depth": [1, 1, 2, 2], "seed": [0, 1, 0, 1], "width": 8, "inducing": 25,
            "bound": [-10.0, -20.0, -7.0, -16.0], "converged": [True, False, True, True],
            "errors": ["4", "6", "3;5", "1;5"],
        }
    )  # fmt: skip
    table = summary(found)
    assert table.more[2] == 3.5 and table.error[2] == 0.5
    assert table.converged.tolist() == [1, 2] and table.fits.tolist() == [2, 2]
    assert table.errors[1] == "5" and table.errors[2] == "2, 5"


def test_differences_are_shown_with_their_errors():
    summary = pd.DataFrame({"more": [np.nan, 3.5], "error": [np.nan, 0.51], "bound": [-10.0, -6.5]}, [1, 2])
    found = shown(summary, {"bound": "nats", "more": "difference"})
    assert found.difference.tolist() == ["", "3.5 ± 0.51"] and found.nats.tolist() == [-10.0, -6.5]
