"""Tables of classes of benchmarks/: what a method's name means, how splits are made, and how peers choose settings."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import tables_classes, tables_classes_peers

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "name",
    ["sparse-gp.sites", "deep-gp-2.tied", "deep-gp-2.softmax.robust-max", "svm.softmax", "sparse-gp.probit"],
)
def test_a_name_that_is_no_method_of_classes_is_refused(name, tables_refuse):
    tables_refuse(
        f"--methods: found {name!r}, expected sparse-gp or deep-gp-2",
        "classification/glass.npz", "--sets", "glass", "--methods", name,
    )  # fmt: skip
    tables_refuse(
        "--sets: found tables of numbers, classes or missing entries side by side",
        "classification/glass.npz", "--sets", "glass,boston", "--methods", name,
    )  # fmt: skip


def test_what_a_name_of_classes_means():
    from benchmarks.tables_classes_ours import ClassMethod

    assert ClassMethod.of("sparse-gp") == ClassMethod(1)
    assert ClassMethod.of("sparse-gp.sites.alpha=0.5") == ClassMethod(1, 0.5, None, "sites")
    assert ClassMethod.of("sparse-gp.sampled.float32") == ClassMethod(1, rule="sampled", bits=32)
    assert ClassMethod.of("deep-gp-3.softmax.global") == ClassMethod(3, 0.0, "softmax", "global")


def test_a_split_of_classes_is_standardised_by_its_training_rows_and_one_that_lacks_is_none(tmp_path):
    random = np.random.default_rng(5)
    x, y = random.normal(3.0, 2.0, (30, 2)), random.choice([-1.0, 1.0], 30)
    x[:, 1] = 4.0
    (tmp_path / "classification").mkdir()
    place = tmp_path / "classification" / "toy.npz"
    np.savez(place, X=x, y=y[:, None], train=np.arange(20), test=np.arange(20, 30))
    rows = tables_classes.prepared(tmp_path, "toy", 0)
    np.testing.assert_allclose(rows["x"][:, 0].mean(), 0.0, atol=1e-12)
    np.testing.assert_allclose(rows["x"][:, 0].std(), 1.0)
    np.testing.assert_array_equal(rows["x"][:, 1], 0.0)
    np.testing.assert_array_equal(rows["y_test"], y[20:] > 0)
    assert tables_classes.prepared(tmp_path, "toy", 1) is None


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_a_cell_of_classes_is_run_and_kept(tmp_path, monkeypatch):
    random = np.random.default_rng(4)
    x = random.normal(size=(60, 2))
    order = random.permutation(60)
    (tmp_path / "classification").mkdir()
    place = tmp_path / "classification" / "toy.npz"
    np.savez(place, X=x, y=1 + (x[:, :1] > 0), train=order[None, :45], test=order[None, 45:])
    monkeypatch.chdir(ROOT)
    out = tmp_path / "found.csv"
    words = ["tables", "--data", str(tmp_path), "--sets", "toy", "--splits", "0-1", "--out", str(out)]
    monkeypatch.setattr(
        "sys.argv", [*words, "--methods", "sparse-gp,sparse-gp.sites.alpha=1", "--budget", "800"]
    )
    tables_classes.main()
    tables_classes.main()
    rows = pd.read_csv(out)
    assert list(rows.method) == ["sparse-gp", "sparse-gp.sites.alpha=1"] and set(rows.split) == {0}
    # a border that is a line, of 45 rows: all but one or two of 15, and surer than a coin
    assert (rows.error < 0.15).all() and (rows.test_log_density > -0.5 * np.log(2)).all()


def test_a_method_of_patches_is_refused_for_what_is_no_image(tables_refuse):
    tables_refuse(
        "--methods: found deep-gp-2.convolutional of glass, expected pixels",
        "classification/glass.npz", "--sets", "glass", "--methods", "deep-gp-2.convolutional",
    )  # fmt: skip


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_method_of_patches_cuts_them_of_square_images(layers):
    from benchmarks.tables_classes_ours import ClassMethod, model_of

    model = model_of(ClassMethod(layers, rule="convolutional"), np.zeros((500, 784)), 10)
    cuts = model.patches if layers > 1 else (model.patches,)
    # every second place of 5 × 5 in 28 × 28, then every one
    assert cuts[0].image == (28, 28, 1) and len(cuts) == layers
    assert [cut.grid for cut in cuts] == [(12, 12), (8, 8), (4, 4)][:layers]
    assert model.located and model.num_classes == 10


# the peers' environment has an earlier scikit-learn
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("method", ["logistic", "svm"])
def test_settings_are_chosen_on_some_of_many_rows_and_what_is_fitted_knows_all(method, monkeypatch):
    random = np.random.default_rng(8)
    x = random.normal(size=(400, 2))
    y = (x[:, 0] > 0).astype(int)
    monkeypatch.setattr(tables_classes_peers, "LARGE", 100)
    monkeypatch.setattr(tables_classes_peers, "ENOUGH", 60)
    some, labels = tables_classes_peers._to_choose_on(x, y, 0)
    assert len(some) == len(labels) == 60 and abs(labels.mean() - y.mean()) < 0.02
    # a row far from all others that the sixty do not have is known to whoever was fitted to all
    lone = next(row for row in range(400) if not (some == x[row]).all(1).any())
    x[lone], y[lone] = (0.0, 60.0), 1
    near = np.array([[0.0, 60.0], [3.0, 0.0], [-3.0, 0.0]])
    chances = tables_classes_peers.METHODS[method][0](x, y, near, 0)
    np.testing.assert_allclose(chances.sum(1), 1.0)
    assert chances[1, 1] > 0.9 and chances[2, 0] > 0.9
    assert chances[0, 1] > 0.5
