"""`ppl-dgp fit --model additive-gp, multi-output-gp, convolved-gp`: the API's fit, terms, gaps, what is refused."""

import json
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from ppl_dgp.cli import main, run_directory
from ppl_dgp.cli.comparison import combinations
from ppl_dgp.cli.programs import build
from ppl_dgp.cli.report import in_units, metrics
from ppl_dgp.cli.settings import Settings
from ppl_dgp.cli.uses import SEVERAL_TARGETS, STRICT, UNUSED
from ppl_dgp.data import DataError, Standardiser, load_rows, load_table
from ppl_dgp.diagnostics import layer_maps
from ppl_dgp.diagnostics.khat import elbo
from ppl_dgp.fit import fit_svi
from ppl_dgp.guides import Diagonal, Guide
from ppl_dgp.models import additive_gp, convolved_gp, multi_output_gp
from ppl_dgp.objectives import PowerEP
from ppl_dgp.prediction.predict import Prediction, predict

TINY = ["--inducing", "4", "--steps", "10", "--test-fraction", "0", "--quiet"]


def _frame() -> pd.DataFrame:
    """Twenty rows of two features and two targets that go together, in units far from standard ones."""
    rng = np.random.default_rng(0)
    u, v = rng.uniform(100.0, 200.0, (2, 20))
    wave = np.sin(u / 15.0)
    return pd.DataFrame({"u": u, "v": v, "a": 1000.0 + 50.0 * wave + 0.1 * v, "b": 2.0 - 3.0 * wave})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "whole.csv"
    _frame().to_csv(path, index=False)
    return str(path)


@pytest.fixture(scope="module")
def holes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows that lack the first target, the second, and one that lacks both."""
    frame = _frame()
    frame.loc[[1, 7, 12], "a"] = np.nan
    frame.loc[[3, 12], "b"] = np.nan
    path = tmp_path_factory.mktemp("data") / "holes.csv"
    frame.to_csv(path, index=False)
    return str(path)


@pytest.fixture(scope="module")
def additive_run(whole: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "additive"
    argv = ["fit", whole, "--model", "additive-gp", "--target", "a,b", "--inducing-rule", "diagonal"]
    assert main([*argv, *TINY, "--out", str(folder), "--json"]) == 0
    return folder


@pytest.fixture(scope="module")
def several_run(holes: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "several"
    argv = ["fit", holes, "--model", "multi-output-gp", "--target", "a,b", "--latent", "1"]
    assert main([*argv, *TINY, "--out", str(folder), "--json"]) == 0
    return folder


def _standardised(frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets, and the targets' means and scales, of the entries that are there."""
    x, y = frame[["u", "v"]].to_numpy(), frame[["a", "b"]].to_numpy()
    centre, scale = np.nanmean(y, 0), np.nanstd(y, 0)
    return (x - x.mean(0)) / x.std(0), (y - centre) / scale, centre, scale


@pytest.mark.slow
def test_an_additive_fit_is_that_of_the_api_and_its_terms_add_up(additive_run: Path) -> None:
    x, y, centre, scale = _standardised(_frame())
    model = additive_gp(num_inducing=4, num_outputs=2)
    guide = Guide(model, inducing=Diagonal())
    fitted = fit_svi(jax.random.key(0), model, guide, PowerEP(0.0), x, y, steps=10)
    written = pd.read_csv(additive_run / "predictions.csv")
    maps = layer_maps(fitted, jax.numpy.asarray(x))
    terms = sum(layer.mean for layer in maps)
    assert_allclose(written[["a_mean", "b_mean"]], centre + scale * terms, rtol=1e-8)
    params, _ = run_directory.load_parameters(additive_run)
    assert params.keys() == fitted.params.keys()
    for name, value in params.items():
        assert_allclose(value, fitted.params[name], rtol=1e-8, atol=1e-10)
    result = run_directory.read(additive_run).result
    # of standardised targets, whose variance is 1
    assert_allclose(result["explained"], [layer.mean.var(0).mean() for layer in maps], rtol=1e-8)


def test_a_run_of_terms_shows_and_predicts(
    additive_run: Path, whole: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {"losses", "hyperparameters", "calibration", "predicted", "terms"} == {
        path.stem for path in (additive_run / "figures").iterdir()
    }
    assert main(["show", str(additive_run)]) == 0
    shown = capsys.readouterr().out
    assert "explained" in shown and "widths" not in shown and ", v 0." in shown
    assert main(["predict", str(additive_run), whole, "--json"]) == 0
    found = pd.DataFrame(json.loads(capsys.readouterr().out)["predictions"])
    assert_allclose(found["a_mean"], pd.read_csv(additive_run / "predictions.csv")["a_mean"], rtol=1e-10)


def test_a_fit_of_several_targets_is_that_of_the_api(
    several_run: Path, holes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.read_csv(holes).drop(index=12)  # which says nothing
    x, y, centre, scale = _standardised(frame)
    model = multi_output_gp(2, 1, 4)
    fitted = fit_svi(jax.random.key(0), model, Guide(model), PowerEP(0.0), x, y, steps=10)
    mean = predict(jax.random.key(0), fitted, x, num_samples=1).mean
    written = pd.read_csv(several_run / "predictions.csv")
    assert_allclose(written[["a_mean", "b_mean"]], centre + scale * mean, rtol=1e-8)
    # of each row the entries that are there: one that lacks a has the density of b alone
    assert np.isfinite(written["log_density"]).all() and written["a"].isna().sum() == 2
    record = run_directory.read(several_run)
    assert record.settings.latent == 1 and record.num_train == 19
    # the bound of the fit, log p of standardised entries, in the table's units
    lost = (~np.isnan(y) @ np.log(scale)).sum()
    bound, _ = elbo(jax.random.key(1), fitted, jax.numpy.asarray(x), jax.numpy.asarray(y), 100)
    assert_allclose(record.result["elbo"], bound - lost, rtol=1e-6)
    assert main(["predict", str(several_run), holes, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 20 and found["predictions"][12]["log_density"] is None
    assert np.isfinite(found["test_rmse"]) and np.isfinite(found["test_log_density"])


def test_counts_of_several_targets_are_independent_functions(
    tmp_path: Path, refuses, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loss is the sum of those of each target alone, at the same parameters; each is predicted."""
    u = np.linspace(0.0, 3.0, 12)
    counts = np.random.default_rng(3).poisson(np.exp([1.0 + 0.5 * u, 2.0 - 0.5 * u])).T
    frame = pd.DataFrame({"u": u, "boats": counts[:, 0], "fish": counts[:, 1]})
    frame.to_csv(tmp_path / "counts.csv", index=False)
    argv = ["fit", str(tmp_path / "counts.csv"), "--target", "boats,fish", "--model", "sparse-gp", *TINY]
    argv += ["--likelihood", "negative-binomial"]
    assert main([*argv, "--out", str(tmp_path / "run")]) == 0
    record, (params, _) = (
        run_directory.read(tmp_path / "run"),
        run_directory.load_parameters(tmp_path / "run"),
    )
    x = record.x_units.transform(u[:, None])

    def loss(columns: list[int]) -> float:
        program = build(record.settings, len(columns))
        own = {name: jax.numpy.asarray(value) for name, value in params.items()}
        own |= {name: value[np.array(columns)] for name, value in own.items() if "/u_" in name}
        rows = jax.numpy.asarray(x), jax.numpy.asarray(counts[:, columns], float)
        rest = jax.random.key(0), own, program.model, program.guide, *rows
        return float(jax.jit(lambda: program.objective.loss(*rest))())

    assert_allclose(loss([0, 1]), loss([0]) + loss([1]), rtol=1e-10)
    found = pd.read_csv(tmp_path / "run" / "predictions.csv")
    for name in ("boats", "fish"):
        low, middle, high = (found[f"{name}_{level}"] for level in ("lower95", "median", "upper95"))
        assert (found[f"{name}_mean"] > 0.0).all() and (low <= middle).all() and (middle <= high).all()
        assert (low == np.rint(low)).mean() > 0.5
    frame.assign(fish=frame["fish"] - 0.5).to_csv(tmp_path / "bad.csv", index=False)
    capsys.readouterr()
    refuses([argv[0], str(tmp_path / "bad.csv"), *argv[2:]], "target 'fish' of bad.csv", "whole numbers")


def test_figures_of_merit_are_over_the_entries_that_are_there() -> None:
    rng = np.random.default_rng(1)
    y, scale = rng.normal(size=(6, 2)), np.array([3.0, 0.5])
    y[0, 0] = y[2, 1] = y[4] = np.nan
    mean, variance = rng.normal(size=(6, 2)), rng.uniform(0.5, 1.0, (6, 2))
    bands = mean + 1.96 * np.sqrt(variance) * np.array([-1.0, 0.0, 1.0])[:, None, None]
    entries = -0.5 * ((y - mean) ** 2 / variance + np.log(2 * np.pi * variance))
    given = Prediction(
        mean, variance, mean, variance, (0.025, 0.5, 0.975), bands, None, np.nansum(entries, axis=1)
    )
    units = Standardiser(np.array([10.0, -1.0]), scale)
    raw = units.inverse(y)
    found = metrics(in_units(given, units, raw), raw)
    there = ~np.isnan(y)
    # eight entries of five rows
    assert_allclose(found["test_log_density"], (entries - np.log(scale))[there].sum() / 5)
    assert_allclose(found["test_rmse"], np.sqrt(np.mean(((mean - y) * scale)[there] ** 2)))
    assert_allclose(found["coverage95"], (np.abs(y - mean) <= 1.96 * np.sqrt(variance))[there].mean())


def test_gaps_are_of_targets_alone(holes: str, tmp_path: Path) -> None:
    table = load_table(holes, "a,b", target_gaps=True)
    assert table.y.shape == (19, 2) and np.isnan(table.y).sum() == 3
    assert table.notes == ("dropped 1 row without any target", "3 of 38 target entries are missing")
    with pytest.raises(DataError, match="row 1 .*'a'"):
        load_table(holes, "a,b")
    assert load_table(holes, "a,b", drop_missing=True).y.shape == (16, 2)
    frame = _frame()
    frame.loc[2, "u"] = frame.loc[5, "a"] = np.nan
    frame.to_csv(tmp_path / "features.csv", index=False)
    with pytest.raises(DataError, match="row 2 .*'u'"):
        load_table(str(tmp_path / "features.csv"), "a,b", target_gaps=True)
    kept = load_table(str(tmp_path / "features.csv"), "a,b", drop_missing=True, target_gaps=True)
    assert kept.y.shape == (19, 2) and np.isnan(kept.y).sum() == 1
    # new rows of which one target is not known at all
    frame = _frame().assign(b=np.nan)
    frame.to_csv(tmp_path / "new.csv", index=False)
    _, y, _ = load_rows(str(tmp_path / "new.csv"), ("u", "v"), ("a", "b"), target_gaps=True)
    assert y is not None and np.isnan(y[:, 1]).all() and np.isfinite(y[:, 0]).all()
    assert load_rows(str(tmp_path / "new.csv"), ("u", "v"), ("a", "b"))[1] is None


def test_settings_make_the_models() -> None:
    settings = Settings(model="additive-gp", likelihood="student-t", kernel="matern32")
    resolved = settings.resolve(30, 1)
    assert build(resolved, 1).model == additive_gp(None, 30, likelihood="student-t", kernel="matern32")
    for name, kind in (("multi-output-gp", multi_output_gp), ("convolved-gp", convolved_gp)):
        resolved = Settings(model=name, inducing=5).resolve(30, 3)
        assert build(resolved, 3).model == kind(3, 2, 5) and resolved.latent == 2
        assert Settings(model=name, latent=3).resolve(30, 2).latent == 3


@pytest.mark.slow
def test_a_convolved_fit_runs_and_resumes(holes: str, tmp_path: Path) -> None:
    argv = ["fit", holes, "--model", "convolved-gp", "--target", "a,b", *TINY, "--alpha", "0.5"]
    assert main([*argv, "--out", str(tmp_path / "run")]) == 0
    before = run_directory.read(tmp_path / "run").result
    longer = ["fit", holes, "--out", str(tmp_path / "run"), "--resume", "--steps", "15", "--quiet"]
    assert main(longer) == 0
    after = run_directory.read(tmp_path / "run").result
    assert (before["steps"], after["steps"]) == (10, 15) and np.isfinite(after["elbo"])


@pytest.mark.slow
def test_models_of_several_targets_are_compared_on_gaps(
    holes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = ",".join(SEVERAL_TARGETS)
    argv = ["compare", holes, "--target", "a,b", "--model", models, *TINY, "--json"]
    assert main([*argv, "--out", str(tmp_path / "all")]) == 0
    assert [row["fit"] for row in json.loads(capsys.readouterr().out)["fits"]] == list(SEVERAL_TARGETS)


def test_a_comparison_varies_what_a_model_uses() -> None:
    lists = {"model": [*STRICT, "deep-gp"], "hidden": ["markov", "conditional"], "alpha": [0.0, 0.5]}
    found = combinations(Settings(widths=(3,)), lists)
    shallow = [f"{name} alpha={alpha}" for name in STRICT for alpha in ("0", "0.5")]
    assert list(found)[:6] == shallow and len(found) == 10
    for name in shallow:
        assert found[name].widths == Settings().widths and found[name].hidden == Settings().hidden


BAD = [
    (["--model", "additive-gp", "--widths", "3,3"], ["--widths is 3,3, but an additive-gp", "leave it out"]),
    (["--model", "additive-gp", "--hidden", "markov"], ["--hidden is markov"]),
    (["--model", "additive-gp", "--latent", "2"], ["--latent is 2"]),
    (["--model", "additive-gp", "--window", "5"], ["--window", "no time"]),
    (["--model", "additive-gp"], ["row 1", "'a'", "--drop-missing"]),
    (["--model", "multi-output-gp", "--widths", "3"], ["--widths is 3, but a multi-output-gp"]),
    (["--model", "multi-output-gp", "--likelihood", "laplace"], ["--likelihood", "takes gaussian"]),
    (["--model", "multi-output-gp", "--controls", "u"], ["--controls", "no time"]),
    (["--model", "multi-output-gp", "--latent", "0"], ["--latent is 0", "at least 1"]),
    (["--model", "multi-output-gp", "--drop-missing", "--target", "b"], ["several targets", "--target a,b"]),
    (["--model", "multi-output-gp", "--stream"], ["block by block"]),
    (["--model", "convolved-gp", "--kernel", "matern32"], ["--kernel is matern32", "rbf alone"]),
    (["--model", "convolved-gp", "--inducing", "30"], ["--inducing is 30", "lower"]),
    (["--model", "sparse-gp"], ["row 1", "'a'"]),
]


@pytest.mark.parametrize("options, words", BAD, ids=[" ".join(options[1:]) for options, _ in BAD])
def test_what_cannot_be_used_is_refused(
    options: list[str],
    words: list[str],
    holes: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = options if "--target" in options else [*options, "--target", "a,b"]
    assert main(["fit", holes, *given, "--out", str(tmp_path / "run"), "--quiet"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("ppl-dgp: error: ") and err.count("\n") == 1
    for word in words:
        assert word in err
    assert not (tmp_path / "run").exists()


def test_a_target_without_entries_to_train_on_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = _frame()
    frame.loc[1:, "b"] = np.nan
    frame.to_csv(tmp_path / "one.csv", index=False)
    argv = ["fit", str(tmp_path / "one.csv"), "--model", "multi-output-gp", "--target", "a,b"]
    assert main([*argv, "--out", str(tmp_path / "run")]) == 2
    assert "'b'" in capsys.readouterr().err


def test_every_setting_that_is_not_used_has_a_default() -> None:
    names = {name for unused in UNUSED.values() for name in unused}
    assert names <= set(Settings().to_json())


def test_rows_without_a_feature_are_refused(
    additive_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.csv").write_text("u\n1\n")
    assert main(["predict", str(additive_run), str(tmp_path / "other.csv")]) == 2
    assert "'v'" in capsys.readouterr().err
