"""`ppl-dgp fit` of classes and of images: the API's fit, labels of every kind, what is written and what is refused."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import confusion_matrix
from small_images import bars

from ppl_dgp.cli import labelled, main, run_directory
from ppl_dgp.cli.classes import CLASS_LIKELIHOODS, IMAGE_MODELS, TAKE_CLASSES
from ppl_dgp.cli.commands import record_of
from ppl_dgp.cli.comparison import combinations
from ppl_dgp.cli.loading import load_task
from ppl_dgp.cli.names import MODELS
from ppl_dgp.cli.programs import build
from ppl_dgp.cli.settings import Settings
from ppl_dgp.cli.uses import UNUSED
from ppl_dgp.data import DataError, load_rows, load_table
from ppl_dgp.data.labels import encode_labels
from ppl_dgp.diagnostics import class_scores, confusion_counts, plot_confusion, plot_reliability
from ppl_dgp.diagnostics.arviz_api import group, read_netcdf
from ppl_dgp.diagnostics.khat import elbo
from ppl_dgp.fit import fit_table
from ppl_dgp.fit.advice import labels_advice
from ppl_dgp.guides import Guide
from ppl_dgp.models import (
    convolutional_gp,
    deep_convolutional_gp,
    deep_gp_classification,
    sparse_gp_classification,
)
from ppl_dgp.models.classification import OF_CLASSES
from ppl_dgp.objectives import PowerEP
from ppl_dgp.prediction.predict import Prediction, predict

TREES = ("ash", "beech", "oak")
TINY = ["--inducing", "4", "--steps", "10", "--test-fraction", "0.4", "--quiet"]
SPARSE = ["--model", "sparse-gp", "--likelihood", "robust-max"]


def _frame(labels: tuple[object, ...] = TREES, count: int = 30) -> pd.DataFrame:
    """Rows of two features in units far from standard ones, and which third of one of them they are from."""
    rng = np.random.default_rng(0)
    u, v = rng.uniform(100.0, 200.0, (2, count))
    which = np.searchsorted(np.linspace(100.0, 200.0, len(labels) + 1)[1:-1], u)
    return pd.DataFrame({"u": u, "v": v, "kind": [labels[k] for k in which]})


def _write(folder: Path, frame: pd.DataFrame, name: str = "table.csv") -> str:
    frame.to_csv(folder / name, index=False)
    return str(folder / name)


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _write(tmp_path_factory.mktemp("data"), _frame())


@pytest.fixture(scope="module")
def run(trees: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "trees"
    assert main(["fit", trees, *SPARSE, *TINY, "--out", str(folder), "--json"]) == 0
    return folder


def _images() -> pd.DataFrame:
    """Pictures of bars with a rim of pixels that never change, as pixels of 0 to 255."""
    pixels, codes = bars(20, 0)
    inside = 100.0 + 100.0 * pixels.reshape(20, 8, 8)[:, :6, :6]
    framed = np.pad(inside, ((0, 0), (1, 1), (1, 1))).reshape(20, -1)
    frame = pd.DataFrame(framed, columns=[f"p{number}" for number in range(64)])
    return frame.assign(bar=np.array(["upright", "flat"])[codes[:, 0]])


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _write(tmp_path_factory.mktemp("data"), _images())


def _parts(written: pd.DataFrame, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and to test on."""
    test = written["row"].to_numpy()
    return np.setdiff1d(np.arange(count), test), test


def test_a_fit_of_classes_is_that_of_the_api(run: Path) -> None:
    frame, written = _frame(), pd.read_csv(run / "predictions.csv")
    train, test = _parts(written, 30)
    labels, codes = np.unique(frame["kind"], return_inverse=True)
    x = frame[["u", "v"]].to_numpy()
    x = (x - x[train].mean(0)) / x[train].std(0)
    model = sparse_gp_classification(3, 4, likelihood="robust-max")
    fitted = fit_table(
        jax.random.key(0), model, Guide(model), PowerEP(0.0), x[train], codes[train, None], steps=10
    )
    found = predict(jax.random.key(2), fitted, x[test], codes[test, None], num_samples=200)
    shown = written[[f"p({label})" for label in labels]].to_numpy()
    assert_allclose(shown, found.mean, rtol=1e-6)
    assert_allclose(shown.sum(1), 1.0, rtol=1e-6)
    assert_allclose(written["log_density"], found.log_density, rtol=1e-6)
    assert_allclose(written["log_density"], np.log(shown[np.arange(12), codes[test]]), rtol=1e-6)
    assert list(written["kind"]) == list(frame["kind"][test])
    assert list(written["kind_predicted"]) == list(labels[shown.argmax(1)])
    record = run_directory.read(run)
    assert record.labels == TREES and record.num_classes == 3
    result = record.result
    assert_allclose(result["test_accuracy"], (written["kind"] == written["kind_predicted"]).mean())
    assert_allclose(result["test_log_density"], written["log_density"].mean())
    bound, _ = elbo(jax.random.key(1), fitted, jnp.asarray(x[train]), jnp.asarray(codes[train, None]), 100)
    assert_allclose(result["elbo"], bound, rtol=1e-6)
    assert np.isfinite(result["khat"]) and np.isfinite(result["loo"])


def test_a_run_of_classes_shows_and_predicts(
    run: Path, trees: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {path.stem for path in (run / "figures").iterdir()} == {
        "losses", "hyperparameters", "confusion", "calibration", "layers",
    }  # fmt: skip
    assert (run / "posterior.nc").is_file()
    assert main(["show", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "ash, beech, oak" in shown and "test accuracy" in shown and "rmse" not in shown
    assert "widths" not in shown and "image" not in shown and "stride" not in shown
    assert main(["predict", str(run), trees, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    found, written = pd.DataFrame(told["predictions"]), pd.read_csv(run / "predictions.csv")
    names = [f"p({label})" for label in TREES]
    assert_allclose(found.loc[written["row"], names], written[names], rtol=1e-6)
    assert_allclose(told["test_accuracy"], (found["kind"] == found["kind_predicted"]).mean())
    # rows whose labels are not known, and some that are
    source = _write(tmp_path, _frame().drop(columns="kind"))
    assert main(["predict", str(run), source, "--out", str(tmp_path / "p.csv")]) == 0
    capsys.readouterr()
    blind = pd.read_csv(tmp_path / "p.csv")
    assert list(blind) == ["row", "kind_predicted", *names]
    assert_allclose(blind[names], found[names], rtol=1e-6)


def test_an_unseen_label_is_refused(run: Path, tmp_path: Path, refuses) -> None:
    source = _write(tmp_path, _frame(("ash", "elm")))
    refuses(["predict", str(run), source], "'elm'", "'kind'", "ash, beech, oak")
    source = _write(tmp_path, _frame((1, 2)))
    refuses(["predict", str(run), source], "ash, beech, oak")


@pytest.mark.slow
def test_other_names_give_the_same_probabilities(run: Path, tmp_path: Path) -> None:
    # sorted they come in another order: 3 for ash, 1.5 for beech, 20 for oak
    renamed = {"ash": 3, "beech": 1.5, "oak": 20}
    source = _write(tmp_path, _frame(tuple(renamed.values())))
    assert main(["fit", source, *SPARSE, *TINY, "--out", str(tmp_path / "run"), "--json"]) == 0
    assert run_directory.read(tmp_path / "run").labels == (1.5, 3, 20)
    found, known = (pd.read_csv(folder / "predictions.csv") for folder in (tmp_path / "run", run))
    for tree, number in renamed.items():
        assert_allclose(found[f"p({number})"], known[f"p({tree})"], rtol=1e-6)
    assert_array_equal(found["kind_predicted"], known["kind_predicted"].map(renamed))
    assert_allclose(found["log_density"], known["log_density"], rtol=1e-6)


@pytest.mark.slow
def test_a_fit_of_images_is_that_of_the_api(
    pictures: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["fit", pictures, "--model", "convolutional-gp", "--patch", "3,3", "--stride", "2", *TINY]
    assert main([*argv, "--out", str(tmp_path / "run")]) == 0
    written = pd.read_csv(tmp_path / "run" / "predictions.csv")
    train, test = _parts(written, 20)
    frame = _images()
    pixels, codes = frame.iloc[:, :64].to_numpy(), (frame["bar"] == "upright").to_numpy().astype(int)
    x = (pixels - pixels[train].mean()) / pixels[train].std()
    model = convolutional_gp((8, 8), (3, 3), 2, 4, stride=2, likelihood="bernoulli")
    fitted = fit_table(
        jax.random.key(0), model, Guide(model), PowerEP(0.0), x[train], codes[train, None], steps=10
    )
    mean = predict(jax.random.key(2), fitted, x[test], num_samples=200).mean[:, 0]
    assert_allclose(written["p(upright)"], mean, rtol=1e-6)
    assert_allclose(written["p(flat)"], 1.0 - mean, rtol=1e-6)
    record = run_directory.read(tmp_path / "run")
    settings = record.settings
    assert (settings.image, settings.patch, settings.likelihood) == ((8, 8), (3, 3), "bernoulli")
    assert len(record.feature_names) == 64 and len(set(record.x_units.scale)) == 1
    shown = capsys.readouterr().out
    assert "pixels" in shown and "p17" not in shown and "widths" not in shown


@pytest.mark.slow
def test_a_deep_fit_of_images_runs_predicts_and_resumes(
    pictures: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["fit", pictures, "--model", "deep-convolutional-gp", "--located", *TINY]
    assert main([*argv, "--out", str(tmp_path / "run")]) == 0
    record = run_directory.read(tmp_path / "run")
    assert record.settings.widths == (4,) and record.settings.patch == (4, 4)
    assert np.isfinite(record.result["elbo"])
    posterior = group(read_netcdf(tmp_path / "run" / "posterior.nc"), "posterior")
    # 25 places of patches of 4 × 4, four channels
    assert dict(posterior["layer1.h"].sizes)["layer1_pixel"] == 100
    assert posterior["layer1.u"].sizes["layer1_output"] == 4
    longer = ["fit", pictures, "--out", str(tmp_path / "run"), "--resume", "--steps", "15", "--quiet"]
    assert main(longer) == 0
    capsys.readouterr()
    assert run_directory.read(tmp_path / "run").result["steps"] == 15
    assert main(["predict", str(tmp_path / "run"), pictures, "--json"]) == 0
    found = pd.DataFrame(json.loads(capsys.readouterr().out)["predictions"])
    assert_allclose(found["p(flat)"] + found["p(upright)"], 1.0)


CASES = [
    ("deep-gp", "bernoulli", ("no", "yes")),
    ("sparse-gp", "bernoulli-logit", (False, True)),
    ("deep-gp", "softmax", (0.25, 0.5, 4)),
    ("sparse-gp", "ordinal", (1, 2, 3)),
    ("sparse-gp", "ordinal", ("a", "b")),
    ("sparse-gp", "softmax", (7, 8)),
    ("convolutional-gp", "softmax", ("no", "yes")),
]


@pytest.mark.slow
@pytest.mark.parametrize("model, likelihood, labels", CASES)
def test_every_likelihood_of_classes(
    model: str, likelihood: str, labels: tuple[object, ...], tmp_path: Path
) -> None:
    source = _write(tmp_path, _frame(labels))
    shape = ["--image", "1,2"] if model in IMAGE_MODELS else []
    argv = ["fit", source, "--model", model, "--likelihood", likelihood, *shape, *TINY]
    assert main([*argv, "--out", str(tmp_path / "run"), "--json"]) == 0
    written = pd.read_csv(tmp_path / "run" / "predictions.csv")
    shown = written[[f"p({label})" for label in labels]].to_numpy()
    assert_allclose(shown.sum(1), 1.0, rtol=1e-6)
    codes = [labels.index(label) for label in written["kind"]]
    # softmax has its probabilities by quasi-Monte Carlo
    assert_allclose(written["log_density"], np.log(shown[np.arange(12), codes]), atol=0.05)


@pytest.mark.slow
def test_classes_are_compared(trees: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["compare", trees, "--likelihood", "robust-max", "--hidden", "doubly-stochastic", *TINY]
    assert main([*argv, "--out", str(tmp_path / "all"), "--json"]) == 0
    fits = json.loads(capsys.readouterr().out)["fits"]
    assert [row["fit"] for row in fits] == ["sparse-gp", "deep-gp"]
    assert all(0.0 <= row["test_accuracy"] <= 1.0 and "test_rmse" not in row for row in fits)
    assert main([*argv, "--out", str(tmp_path / "all"), "--resume"]) == 0
    assert "accuracy" in capsys.readouterr().out


BAD = [
    ([], ["'kind'", "'", "--likelihood robust-max"]),
    (["--likelihood", "bernoulli"], ["of two labels", "has 3", "robust-max"]),
    (["--likelihood", "bernoulli-logit"], ["of two labels"]),
    (["--likelihood", "robust-max", "--target", "kind,v"], ["one column of labels"]),
    (["--likelihood", "robust-max", "--stream"], ["block by block", "--stream"]),
    (["--likelihood", "robust-max", "--distributed"], ["--likelihood is robust-max", "block by block"]),
    (["--likelihood", "robust-max", "--image", "1,2"], ["--image is 1,2", "convolutional-gp"]),
    (["--patch", "5,5"], ["--patch is 5,5", "no images"]),
    (["--model", "sparse-gp", "--stride", "2"], ["--stride is 2"]),
    (["--model", "sparse-gp", "--located"], ["--located"]),
    (["--model", "gp", "--likelihood", "softmax"], ["a gp takes gaussian", "sparse-gp"]),
    (["--model", "additive-gp", "--likelihood", "softmax"], ["one of numbers", "deep-gp"]),
    (["--model", "gpssm", "--image", "1,2"], ["--image"]),
    (["--model", "convolutional-gp"], ["2 features", "--image"]),
    (["--model", "convolutional-gp", "--image", "2,2"], ["--image is 2,2, 4 numbers", "2 features"]),
    (["--model", "convolutional-gp", "--image", "2"], ["--image is 2", "28,28"]),
    (["--model", "convolutional-gp", "--image", "a"], ["--image is 'a'"]),
    (["--model", "convolutional-gp", "--image", "1,2", "--patch", "2,2"], ["--patch is 2,2", "smaller"]),
    (["--model", "convolutional-gp", "--image", "1,2", "--patch", "1,2,3"], ["--patch is 1,2,3"]),
    (["--model", "convolutional-gp", "--image", "1,2", "--stride", "0"], ["--stride is 0"]),
    (["--model", "convolutional-gp", "--image", "1,2", "--inducing", "99"], ["99", "patches"]),
    (["--model", "convolutional-gp", "--widths", "3"], ["--widths is 3", "makes no use"]),
    (["--model", "convolutional-gp", "--hidden", "markov"], ["--hidden is markov", "makes no use"]),
    (["--model", "deep-convolutional-gp", "--hidden", "markov"], ["--hidden is markov", "makes no use"]),
    (["--model", "convolutional-gp", "--likelihood", "student-t"], ["takes one of classes"]),
    (["--model", "convolutional-gp", "--likelihood", "gaussian"], ["takes one of classes", "softmax"]),
    (["--model", "convolutional-gp", "--image", "1,2", "--likelihood", "bernoulli"], ["has 3"]),
    (["--model", "convolutional-gp", "--stream"], ["block by block"]),
]


@pytest.mark.parametrize("options, words", BAD, ids=[" ".join(options) or "text" for options, _ in BAD])
def test_what_cannot_be_used_is_refused(
    options: list[str], words: list[str], trees: str, tmp_path: Path, refuses
) -> None:
    refuses(["fit", trees, *options, "--out", str(tmp_path / "run"), "--quiet"], *words)
    assert not (tmp_path / "run").exists()


def test_images_are_not_compared(trees: str, refuses) -> None:
    refuses(["compare", trees, "--model", "sparse-gp,convolutional-gp"], "convolutional-gp", "by itself")
    refuses(["compare", trees, "--likelihood", "softmax", "--model", "gp,sparse-gp"], "a gp takes gaussian")
    found = combinations(Settings(likelihood="softmax"), {"model": ["sparse-gp", "deep-gp"]})
    assert [each.likelihood for each in found.values()] == ["softmax", "softmax"]


def test_numbers_that_are_no_classes_are_refused(tmp_path: Path, refuses) -> None:
    source = _write(tmp_path, _frame()[["u", "v"]])
    refuses(["fit", source, *SPARSE, "--out", str(tmp_path / "run")], "'v'", "30 labels in 30 rows")
    assert not (tmp_path / "run").exists()


def test_one_label_is_refused(tmp_path: Path, refuses) -> None:
    frame = _frame().assign(kind="oak")
    refuses(["fit", _write(tmp_path, frame), *SPARSE], "'kind'", "constant")
    arrays = {"X": frame[["u", "v"]].to_numpy(), "y": np.array(["oak"] * 20 + ["ash"] * 10)}
    np.savez(tmp_path / "a.npz", **arrays, train=np.arange(20), test=np.arange(20, 30))
    refuses(["fit", str(tmp_path / "a.npz"), *SPARSE, "--out", str(tmp_path / "r")], "one label", "'oak'")
    refuses(["fit", str(tmp_path / "a.npz")], "'y'", "not numeric", "--likelihood robust-max")
    # with some of each it is a label of the table that rows to test on may have
    np.savez(tmp_path / "b.npz", **arrays, train=np.arange(5, 25), test=np.arange(25, 30))
    task = load_task(str(tmp_path / "b.npz"), Settings(model="sparse-gp", likelihood="bernoulli"))
    assert task.table.labels == ("ash", "oak") and task.notes == ()
    arrays["y"][-1] = "elm"
    np.savez(tmp_path / "c.npz", **arrays, train=np.arange(5, 25), test=np.arange(25, 30))
    task = load_task(str(tmp_path / "c.npz"), Settings(model="sparse-gp", likelihood="softmax"))
    assert task.table.labels == ("ash", "elm", "oak") and "elm" in task.notes[0]


def test_missing_labels_are_as_other_missing_values(trees: str, tmp_path: Path, refuses) -> None:
    frame = _frame()
    frame.loc[frame["kind"] == "oak", "v"] = np.nan
    frame.loc[3, "kind"] = None
    source = _write(tmp_path, frame)
    refuses(["fit", source, *SPARSE], "missing", "--drop-missing")
    # a label that no row has that is kept is none
    table = load_table(source, of_classes=True, drop_missing=True)
    assert table.labels == ("ash", "beech") and set(table.y.ravel()) == {0.0, 1.0}
    _, y, _ = load_rows(source, ("u",), ("kind",), drop_missing=True, labels=TREES)
    assert y is not None and len(y) == 29 and set(y.ravel()) == {0.0, 1.0, 2.0}
    assert load_rows(_write(tmp_path, frame.assign(kind=None)), ("u",), ("kind",), labels=TREES)[1] is None


@pytest.mark.parametrize(
    "values, codes, labels",
    [
        (["oak", "ash", None, "oak"], [1, 0, np.nan, 1], ("ash", "oak")),
        ([10, 2, 1], [2, 1, 0], (1, 2, 10)),
        (["10", "2", "1"], [2, 1, 0], (1, 2, 10)),
        ([2.0, np.nan, 0.5], [1, np.nan, 0], (0.5, 2)),
        ([True, False], [1, 0], ("False", "True")),
        (["1", "a"], [0, 1], ("1", "a")),
        ([2**60 + 1, 2**60], [1, 0], (2**60, 2**60 + 1)),
        ([1.0, np.inf], [0, np.inf], (1,)),
    ],
)
def test_labels_of_every_kind(values: list, codes: list, labels: tuple) -> None:
    found, names = encode_labels(pd.Series(values, name="y"), "table")
    assert_array_equal(found, codes)
    assert names == labels and list(map(type, names)) == list(map(type, labels))
    json.dumps(names)
    # again, as numbers or as the words that a table of them would hold
    assert_array_equal(encode_labels(pd.Series(values, name="y"), "table", labels)[0], codes)
    words = pd.Series([None if value is None else str(value) for value in labels], name="y")
    assert_array_equal(encode_labels(words, "table", labels)[0], np.arange(len(labels)))
    with pytest.raises(DataError, match="row 1 .*'y'.*'zebra'"):
        encode_labels(pd.Series([values[0], "zebra"], name="y"), "table", labels)


def test_settings_make_the_models() -> None:
    settings = Settings(likelihood="softmax", kernel="matern32", inducing=5)
    assert build(settings, 1, 1, 3).model == deep_gp_classification(
        3, (2, 2), 5, likelihood="softmax", kernel="matern32"
    )
    images = Settings(model="deep-convolutional-gp", image=(9, 9, 3), patch=(3, 3), stride=2, inducing=5)
    with pytest.raises(ValueError, match="patch"):
        build(images, 1, 1, 4)
    expected = deep_convolutional_gp((9, 9, 3), (2,), (3, 3), (2, 1), 4, 5, located=True)
    assert build(Settings(**{**vars(images), "widths": (2,), "located": True}), 1, 1, 4).model == expected
    assert [cut.count for cut in labelled.cuts_of(Settings(**{**vars(images), "widths": (2,)}))] == [16, 4]


def test_the_names_are_those_of_the_likelihoods_and_models() -> None:
    assert set(CLASS_LIKELIHOODS) == set(OF_CLASSES)
    assert set(TAKE_CLASSES) <= set(MODELS) == set(UNUSED)


def test_what_many_images_cost_is_not_paid() -> None:
    settings = Settings(model="convolutional-gp", image=(28, 28), patch=(5, 5), inducing=100)
    assert labelled._affordable(settings, 60_000) == (0, 0)
    few_images = Settings(model="convolutional-gp", image=(8, 8), patch=(3, 3), inducing=30)
    assert labelled._affordable(few_images, 100) == (100, 200)


@pytest.mark.parametrize("damage", ["labels", "order", "one", "kinds", "none"])
def test_damaged_labels(damage: str, run: Path, tmp_path: Path, refuses) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    values = json.loads((folder / "config.json").read_text())
    changed = {
        "labels": "ash", "order": ["oak", "ash", "beech"], "one": ["ash"], "kinds": ["ash", 1, None], "none": [],
    }  # fmt: skip
    values["labels"] = changed[damage]
    (folder / "config.json").write_text(json.dumps(values))
    refuses(["show", str(folder)], "damaged")


def test_runs_that_were_written_before_there_were_labels() -> None:
    new = {"image", "patch", "stride", "located"}
    values = {name: value for name, value in Settings().to_json().items() if name not in new}
    assert Settings.from_json(values) == Settings()
    images = Settings(model="convolutional-gp", image=(8, 8, 1), patch=(3, 3), stride=2, located=True)
    assert Settings.from_json(json.loads(json.dumps(images.to_json()))) == images
    for name, value in (("image", 8), ("image", [8, "8"]), ("patch", [0, 1]), ("stride", True)):
        with pytest.raises((TypeError, ValueError)):
            Settings.from_json(images.to_json() | {name: value})


def test_a_run_goes_on_with_the_same_labels_alone(run: Path, tmp_path: Path, refuses) -> None:
    source = _write(tmp_path, _frame(("a", "b", "c")))
    refuses(["fit", source, "--out", str(run), "--resume", "--quiet"], "other data")


def _drawn(rows: int = 500, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and labels that are drawn from them."""
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.full(classes, 0.5), rows)
    return probabilities, np.array([rng.choice(classes, p=each) for each in probabilities], float)


def test_scores_of_classes() -> None:
    probabilities, codes = _drawn()
    counts = confusion_counts(probabilities, codes)
    assert_array_equal(counts, confusion_matrix(codes, probabilities.argmax(1)))
    found = class_scores(probabilities, codes)
    assert_allclose(found["test_accuracy"], np.trace(counts) / 500)
    assert_allclose(
        found["test_log_density"],
        np.mean([np.log(p[int(c)]) for p, c in zip(probabilities, codes, strict=True)]),
    )
    confidence, right, error = probabilities.max(1), probabilities.argmax(1) == codes, 0.0
    for low in np.arange(15) / 15:
        inside = (low <= confidence) & (confidence < low + 1 / 15)
        if inside.any():
            error += abs(confidence[inside].mean() - right[inside].mean()) * inside.mean()
    assert_allclose(found["test_calibration_error"], error)
    # of labels drawn from the probabilities only chance; of certainty that is right half of the time, a half
    assert error < 0.08
    sure = np.tile([1.0, 0.0], (10, 1))
    assert class_scores(sure, np.arange(10) % 2, np.zeros(10))["test_calibration_error"] == 0.5


def test_pictures_of_classes(tmp_path: Path) -> None:
    probabilities, codes = _drawn()
    counts = confusion_counts(probabilities, codes)
    figure = plot_confusion(counts, ["ash", "beech", "oak $2", "a name that is far too long to be shown"])
    written = {text.get_text() for text in figure.axes[0].texts}
    assert written == {str(count) for count in counts.ravel() if count}
    assert figure.axes[0].get_yticklabels()[3].get_text().endswith("…")
    figure.savefig(tmp_path / "confusion.png")
    many = plot_confusion(np.eye(100, dtype=int), range(100))
    assert not many.axes[0].texts and len(many.axes[0].get_xticks()) <= 40
    with pytest.raises(ValueError, match="labels: found 1, expected 4"):
        plot_confusion(counts, ["ash"])
    figure = plot_reliability(probabilities, codes)
    (line,) = [line for line in figure.axes[0].get_lines() if line.get_label() == "this fit"]
    assert np.abs(line.get_xdata() - line.get_ydata()).max() < 0.3
    assert sum(bar.get_height() for bar in figure.axes[1].patches) == 500
    assert len(plot_reliability(probabilities, codes, axes=figure.axes[0]).axes) == 2


def test_probabilities_that_are_worth_less_than_none_are_told_of() -> None:
    (text,) = labels_advice(-1.5, -1.0, 30)
    assert "-1.5" in text and "frequencies" in text
    assert labels_advice(-0.5, -1.0, 30) == labels_advice(-1.5, -1.0, 5) == ()


def test_two_classes_have_two_probabilities() -> None:
    mean = np.array([[0.2], [0.9]])
    found = labelled.class_probabilities(Prediction(mean, mean, mean, mean, ()))
    assert_allclose(found, [[0.8, 0.2], [0.1, 0.9]])


def test_words_under_ordinal_are_told_in_their_order_or_given_one(tmp_path: Path, refuses) -> None:
    source = _write(tmp_path, _frame(("low", "medium", "high")))
    ordinal = Settings(model="sparse-gp", likelihood="ordinal")
    task = load_task(source, ordinal)
    assert task.table.labels == ("high", "low", "medium")
    assert "ordinal takes the labels in this order: high < low < medium;" in task.notes[0]
    given = load_task(source, dataclasses.replace(ordinal, label_order="low, medium,high"))
    assert given.table.labels == ("low", "medium", "high") and given.notes == ()
    words = pd.read_csv(source).kind
    assert [given.table.labels[int(code)] for code in given.table.y[:, 0]] == list(words)
    folder = tmp_path / "run"
    folder.mkdir()
    kept = record_of(source, given, dataclasses.replace(ordinal, label_order="low, medium,high"))
    run_directory.write(folder, kept)
    assert run_directory.read(folder).labels == given.table.labels
    _, again, _ = load_rows(source, ("u",), ("kind",), labels=given.table.labels)
    assert_array_equal(again, given.table.y)
    assert load_task(_write(tmp_path, _frame((1, 2, 10)), "numbers.csv"), ordinal).notes == ()
    fit = ["fit", source, "--model", "sparse-gp", "--label-order"]
    refuses([*fit, "low,high", "--likelihood", "ordinal"], "'low,high'", "high, low, medium", "once")
    refuses([*fit, "low,medium,high", "--likelihood", "softmax"], "knows no order", "--likelihood ordinal")
