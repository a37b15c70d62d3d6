"""Layers and dependences in the units and names of the table: what Standardiser undoes, and nothing hidden."""

import numpy as np
import pytest

from ppl_dgp.cli.run_directory import Record
from ppl_dgp.cli.settings import Settings
from ppl_dgp.cli.table_units import lengthscales_of_features, named_dependence, named_maps, ranking
from ppl_dgp.data import Standardiser
from ppl_dgp.diagnostics import Dependence, LayerMap

RNG = np.random.default_rng(0)
X, Y = (
    Standardiser(np.array([5.0, -1.0]), np.array([2.0, 10.0])),
    Standardiser(np.array([100.0]), np.array([7.0])),
)


def record(**settings: object) -> Record:
    names = ("depth (m)", "mass (kg)"), ("force (N)",)
    return Record(Settings(**settings), "rows.csv", "0", *names, X, Y, 9, 0)


def layer(name: str, inputs: int, outputs: int) -> LayerMap:
    rows, z = RNG.normal(size=(4, inputs)), RNG.normal(size=(3, inputs))
    return LayerMap(name, rows, rows @ np.ones((inputs, outputs)), np.ones((4, outputs)), z, z[:, :outputs])


def test_the_first_layer_has_the_features_and_the_last_the_targets() -> None:
    first, last = layer("layer1", 2, 2), layer("layer2", 2, 1)
    features, targets = named_maps([first, last], record())
    np.testing.assert_allclose(X.transform(features.inputs), first.inputs)
    np.testing.assert_allclose(X.transform(features.inducing), first.inducing)
    np.testing.assert_array_equal(features.mean, first.mean)
    np.testing.assert_allclose(Y.transform(targets.mean), last.mean)
    np.testing.assert_allclose(targets.deviation, 7.0 * last.deviation)
    np.testing.assert_array_equal(targets.inputs, last.inputs)
    assert (features.input_names, features.output_names) == (("depth (m)", "mass (kg)"), ())
    assert (targets.input_names, targets.output_names) == ((), ("force (N)",))


@pytest.mark.parametrize("settings", [{"likelihood": "poisson"}, {"model": "stack", "blocks": "gp"}], ids=str)
def test_functions_on_another_scale_stay_as_they_are(settings: dict[str, str]) -> None:
    last = layer("layer1", 2, 1)
    (shown,) = named_maps([last], record(**settings))
    np.testing.assert_array_equal(shown.mean, last.mean)
    assert shown.output_names == ()


def test_a_dependence_is_of_the_feature_and_the_target() -> None:
    values = np.linspace(-1.0, 1.0, 5)
    found = Dependence(1, values, values[:, None], np.ones((5, 1)), RNG.normal(size=(3, 5, 1)))
    shown = named_dependence(found, record())
    np.testing.assert_allclose(shown.values, 10.0 * values - 1.0)
    np.testing.assert_allclose(shown.mean[:, 0], 7.0 * values + 100.0)
    np.testing.assert_allclose(shown.deviation, 7.0)
    np.testing.assert_allclose(Y.transform(shown.rows), found.rows)
    np.testing.assert_allclose(shown.importance, 7.0 * found.importance)


def test_a_ranking_is_of_one_layer_with_a_lengthscale_for_each_feature() -> None:
    params = {"gp/lengthscale": np.array([0.5, 4.0]), "gp/variance": 1.0}
    np.testing.assert_allclose(ranking(params, 2), [2.0, 0.25])
    assert lengthscales_of_features(params, 2) == ["gp/lengthscale"]
    assert ranking(params, 3) is None and ranking({"gp/lengthscale": np.ones(1)}, 1) is None
    deep = {"layer1/lengthscale": np.ones(2), "layer2/lengthscale": np.ones(2)}
    # what the first layer has made of a feature the next may leave out again
    assert lengthscales_of_features(deep, 2) == ["layer1/lengthscale"] and ranking(deep, 2) is None
