"""The command line: what it writes, what it prints, and every way of refusing bad input."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fast import seldom
from numpy.testing import assert_allclose
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from ppl_dgp.checkpoint import read_meta
from ppl_dgp.cli import classes, commands, main, run_directory, settings, uses
from ppl_dgp.cli.comparison import combinations
from ppl_dgp.cli.programs import build
from ppl_dgp.cli.settings import Settings
from ppl_dgp.diagnostics.arviz_api import group, read_netcdf
from ppl_dgp.estimators.latent import LATENT_RULES
from ppl_dgp.fit import Interrupted
from ppl_dgp.guides import HIDDEN_RULES, INDUCING_RULES
from ppl_dgp.kernels import KERNELS
from ppl_dgp.likelihoods import LIKELIHOODS
from ppl_dgp.models import sparse_gp_regression
from ppl_dgp.models.observation import is_of_real_targets
from ppl_dgp.objectives import OBJECTIVES

KEYS = {
    "elbo",
    "elbo_se",
    "test_log_density",
    "test_rmse",
    "coverage95",
    "khat",
    "seconds",
    "steps",
    "steps_per_second",
    "rejected_steps",
    "config",
}
SPARSE = ["--model", "sparse-gp", "--inducing", "5", "--steps", "20", "--quiet"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty rows of a smooth function of one input, in units far from standard ones."""
    rng = np.random.default_rng(0)
    x = rng.uniform(100.0, 200.0, 30)
    path = tmp_path_factory.mktemp("data") / "smooth.csv"
    y = 1000.0 + 50.0 * np.sin(x / 15.0) + rng.normal(0.0, 5.0, 30)
    pd.DataFrame({"x": x, "flat": 3.0, "y": y}).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def sparse_run(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "sparse"
    assert main(["fit", str(table), *SPARSE, "--out", str(folder), "--json"]) == 0
    return folder


@pytest.mark.slow
def test_exact_gp_agrees_with_scikit_learn_in_original_units(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", str(table), "--model", "gp", "--out", str(tmp_path / "run"), "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert KEYS <= found.keys() and out.count("\n") == 1
    assert "dropped constant feature 'flat'" in err
    frame = pd.read_csv(table)
    predictions = pd.read_csv(tmp_path / "run" / "predictions.csv")
    test = predictions["row"].to_numpy()
    train = np.setdiff1d(np.arange(30), test)
    x, y = frame[["x"]].to_numpy(), frame["y"].to_numpy()
    x = (x - x[train].mean()) / x[train].std()
    centre, scale = y[train].mean(), y[train].std()
    kernel = ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(0.1)
    oracle = GaussianProcessRegressor(kernel, alpha=0.0).fit(x[train], (y[train] - centre) / scale)
    mean, deviation = oracle.predict(x[test], return_std=True)
    evidence = oracle.log_marginal_likelihood_value_ - len(train) * np.log(scale)
    assert_allclose(found["elbo"], evidence, rtol=1e-5)
    assert_allclose(predictions["y_mean"], centre + scale * mean, rtol=1e-4)
    assert_allclose(predictions["y_sd"], scale * deviation, rtol=1e-3)
    density = norm.logpdf(y[test], centre + scale * mean, scale * deviation)
    assert_allclose(found["test_log_density"], density.mean(), rtol=1e-3)
    assert_allclose(found["test_rmse"], np.sqrt(np.mean((centre + scale * mean - y[test]) ** 2)), rtol=1e-3)
    inside = np.abs(y[test] - centre - scale * mean) <= 1.96 * scale * deviation
    assert_allclose(found["coverage95"], inside.mean())
    # the loaded model predicts the same at the same rows
    assert (
        main(["predict", str(tmp_path / "run"), str(table), "--out", str(tmp_path / "p.csv"), "--json"]) == 0
    )
    again = pd.read_csv(tmp_path / "p.csv")
    assert_allclose(again["y_mean"].iloc[test], predictions["y_mean"], rtol=1e-10)


def test_run_directory_holds_everything(sparse_run: Path) -> None:
    assert (sparse_run / "config.json").is_file()
    assert list((sparse_run / "parameters").glob("*.safetensors"))
    assert {
        "losses.svg",
        "fit.svg",
        "layers.svg",
        "predicted.svg",
        "calibration.svg",
        "hyperparameters.svg",
    } <= {path.name for path in (sparse_run / "figures").iterdir()}
    data = read_netcdf(sparse_run / "posterior.nc")
    # the draws of the one restart, as four chains
    assert group(data, "posterior")["gp.u"].shape[:2] == (4, 50)
    assert group(data, "log_likelihood")["y"].shape == (4, 50, 27)
    assert group(data, "constant_data")["input"].values.tolist() == ["x"]
    assert not list(sparse_run.rglob(".*")), "scratch files are left behind"
    record = run_directory.read(sparse_run)
    assert record.status == "done" and record.feature_names == ("x",)
    assert record.settings.precision == "float64"


def test_show_prints_the_results_of_the_fit(sparse_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(sparse_run), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["steps"] == 20 and shown["status"] == "done" and KEYS <= shown.keys()
    assert main(["show", str(sparse_run)]) == 0
    assert "sparse-gp" in capsys.readouterr().out


def test_predict_at_rows_without_targets(
    sparse_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pd.DataFrame({"x": [120.0, 150.0]}).to_csv(tmp_path / "new.csv", index=False)
    assert main(["predict", str(sparse_run), str(tmp_path / "new.csv"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["test_rmse"] is None and len(found["predictions"]) == 2
    row = found["predictions"][0]
    assert row["y_lower95"] < row["y_median"] < row["y_upper95"]
    assert main(["predict", str(sparse_run), str(tmp_path / "new.csv")]) == 0
    assert capsys.readouterr().out.startswith("row,y_mean,")


def test_models_lists_every_choice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    others = {*uses.STRICT, *uses.OWN_ROWS, *classes.IMAGE_MODELS}
    assert {"gp", "sparse-gp", "deep-gp", "stack", "gplvm", "gpssm", *others} == set(found["models"])
    assert set(classes.CLASS_LIKELIHOODS) == set(found["likelihoods_of_classes"])
    assert {"diabetes", "linnerud", "step", "sinusoids", "periodic"} <= set(found["sources"])
    assert main(["models"]) == 0
    assert "doubly-stochastic" in capsys.readouterr().out


def test_the_names_in_the_help_are_those_of_the_rules() -> None:
    assert settings.HIDDEN.keys() == HIDDEN_RULES.keys()
    assert settings.LATENTS.keys() == LATENT_RULES.keys()
    assert settings.STATES.keys() <= HIDDEN_RULES.keys()
    assert settings.INDUCING.keys() == INDUCING_RULES.keys()
    assert settings.OBJECTIVE_HELP.keys() == OBJECTIVES.keys() | {"importance-weighted", "collapsed"}
    assert settings.KERNEL_HELP.keys() == KERNELS.keys()
    likelihoods = settings.LIKELIHOOD_HELP | settings.OWN_SCALE | classes.CLASS_LIKELIHOODS
    assert likelihoods.keys() == LIKELIHOODS.keys()
    assert not any(map(is_of_real_targets, settings.OWN_SCALE))
    assert all(map(is_of_real_targets, settings.LIKELIHOOD_HELP))


def test_help_tells_every_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    steps = "(default auto)"
    for told in ("(default deep-gp)", steps, "--drop-missing", "(default runs/NAME-NUMBER)"):
        assert told in shown


RULES = [
    ("conditional-across", "low-rank", "0"),
    ("moment-matched", "low-rank", "0"),
    ("moment-matched", "full-rank", "0.5"),
    ("nested-compression", "full-rank", "0"),
    ("doubly-stochastic", "across-outputs", "0"),
    ("conditional-across", "layer-chain", "0"),
    ("conditional", "coupled", "0.5"),
    ("amortised", "full-rank", "0"),
]


@pytest.mark.slow
@pytest.mark.parametrize("hidden, inducing, alpha", seldom(RULES, 0, 2, 4))
def test_fit_runs_with_every_rule(
    hidden: str, inducing: str, alpha: str, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = ["--widths", "2", "--inducing", "4", "--steps", "5", "--objective", "black-box-alpha", "--json"]
    rules = ["--hidden", hidden, "--inducing-rule", inducing, "--alpha", alpha]
    assert main(["fit", str(table), *tiny, *rules, "--out", str(tmp_path / "run")]) == 0
    found = json.loads(capsys.readouterr().out)
    for figure in ("elbo", "test_log_density", "loo"):
        assert np.isfinite(found[figure])


@pytest.mark.slow
def test_no_test_rows_give_null_figures(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [
        "fit",
        str(table),
        *SPARSE,
        "--test-fraction",
        "0",
        "--out",
        str(tmp_path / "run"),
        "--json",
        "--float32",
    ]
    assert main(argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["test_log_density"] is None and found["coverage95"] is None
    assert found["config"]["train_rows"] == 30 and found["config"]["settings"]["precision"] == "float32"


@pytest.mark.slow
def test_interrupted_run_is_saved_and_resumes_to_the_same_numbers(
    table: Path,
    sparse_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = commands.train

    def stopped(program, x, y, **options):
        short = commands.dataclasses.replace(program.settings, steps=10)
        raise Interrupted(whole(commands.dataclasses.replace(program, settings=short), x, y, **options))

    folder = tmp_path / "run"
    argv = ["fit", str(table), *SPARSE, "--out", str(folder)]
    monkeypatch.setattr(commands, "train", stopped)
    assert main(argv) == 130
    assert "--resume" in capsys.readouterr().err
    assert run_directory.read(folder).status == "interrupted"
    assert main(["predict", str(folder), str(table), "--quiet"]) == 0
    monkeypatch.setattr(commands, "train", whole)
    capsys.readouterr()
    assert main(["fit", str(table), "--out", str(folder), "--resume", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    uninterrupted = run_directory.read(sparse_run).result
    assert found["steps"] == 20 and found["elbo"] == uninterrupted["elbo"]
    assert found["test_log_density"] == uninterrupted["test_log_density"]


#: the command line; where tests run in the background of a shell, they and what they start ignore Ctrl-C
HEARS_CTRL_C = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("ppl_dgp.cli", run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize("model", seldom(["gp", "sparse-gp"], 0))
def test_ctrl_c_saves_the_fit_and_resuming_continues_it(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # a dense fit of fewer rows ends before it can be stopped
    rng, rows = np.random.default_rng(0), {"gp": 1500, "sparse-gp": 500}[model]
    x = rng.uniform(-2.0, 2.0, (rows, 2))
    y = np.sin(3.0 * x[:, 0]) * x[:, 1] + rng.normal(0.0, 0.1, rows)
    source, folder = str(tmp_path / "data.csv"), tmp_path / "run"
    pd.DataFrame(x, columns=["a", "b"]).assign(y=y).to_csv(source, index=False)
    steps = {"gp": ["--steps", "60"], "sparse-gp": ["--steps", "1000000", "--inducing", "20"]}[model]
    argv = ["fit", source, "--model", model, *steps]
    with subprocess.Popen(
        [sys.executable, "-c", HEARS_CTRL_C, *argv, "--out", str(folder)],
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        text=True,
    ) as process:
        try:
            while not (folder / "checkpoint" / "checkpoint.json").is_file() and process.poll() is None:
                time.sleep(0.005)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 130 and "--resume" in err and "Traceback" not in err
    assert run_directory.read(folder).status == "interrupted"
    done = read_meta(folder / "checkpoint")["step"]
    assert done >= 1 and f"interrupted after {done} steps" in err
    # the parameters so far predict
    assert main(["predict", str(folder), source, "--quiet", "--out", str(tmp_path / "p.csv")]) == 0
    more = [] if model == "gp" else ["--steps", str(done + 20)]
    assert main(["fit", source, "--out", str(folder), "--resume", "--quiet", *more]) == 0
    resumed = run_directory.read(folder)
    assert resumed.status == "done" and resumed.result["steps"] > done
    whole = tmp_path / "whole"
    argv = ["fit", source, "--model", model, *(steps if model == "gp" else [*more, *steps[2:]])]
    assert main([*argv, "--quiet", "--out", str(whole)]) == 0
    assert run_directory.read(whole).result["elbo"] == resumed.result["elbo"]


def _table(folder: Path, **columns: object) -> str:
    frame = pd.DataFrame({"x": np.arange(8.0), "z": np.arange(8.0) ** 2, "y": np.arange(8.0) % 3} | columns)
    frame.to_csv(folder / "bad.csv", index=False)
    return str(folder / "bad.csv")


def _hole(value: object) -> list[object]:
    return [0.0, 1.0, 2.0, value, 4.0, 5.0, 6.0, 7.0]


BAD_TABLES = {
    "non-numeric column": ({"z": list("abcdefgh")}, [], ["'z'", "not numeric"]),
    "missing value": ({"z": _hole(None)}, [], ["row 3", "'z'", "--drop-missing"]),
    "infinite value": ({"z": _hole(np.inf)}, [], ["row 3", "'z'", "infinite"]),
    "constant target": ({"y": 1.0}, [], ["'y'", "constant"]),
    "unknown target": ({}, ["--target", "w"], ["'w'", "choose from"]),
    "inducing points above rows": ({}, ["--inducing", "9"], ["--inducing", "lower"]),
    "batch above rows": ({}, ["--batch", "9"], ["--batch", "lower"]),
    "width 0": ({}, ["--widths", "2,0"], ["--widths", "width 0"]),
    "widths that are no numbers": ({}, ["--widths", "a"], ["--widths", "2,2"]),
    "alpha above 1": ({}, ["--alpha", "1.5"], ["--alpha", "[0, 1]"]),
    "alpha below 0": ({}, ["--alpha", "-0.1"], ["--alpha", "[0, 1]"]),
    "alpha that is no number": ({}, ["--alpha", "nan"], ["--alpha", "[0, 1]"]),
    "zero steps": ({}, ["--steps", "0"], ["--steps", "at least 1"]),
    "steps that are no number": ({}, ["--steps", "many"], ["--steps"]),
    "zero inducing points": ({}, ["--inducing", "0"], ["--inducing", "at least 1"]),
    "zero particles": ({}, ["--particles", "0"], ["--particles", "at least 1"]),
    "zero restarts": ({}, ["--restarts", "0"], ["--restarts", "at least 1"]),
    "zero learning rate": ({}, ["--learning-rate", "0"], ["--learning-rate", "positive"]),
    "negative seed": ({}, ["--seed", "-1"], ["--seed"]),
    "unknown model": ({}, ["--model", "dgp"], ["--model", "deep-gp"]),
    "unknown hidden rule": ({}, ["--hidden", "free"], ["--hidden", "conditional-free"]),
    "unknown inducing rule": ({}, ["--inducing-rule", "full"], ["--inducing-rule", "full-rank"]),
    "unknown objective": ({}, ["--objective", "elbo"], ["--objective", "power-ep"]),
    "unknown kernel": ({}, ["--kernel", "cosine"], ["--kernel", "rbf"]),
    "unknown kernel in a sum": ({}, ["--kernel", "rbf+cosine"], ["--kernel", "'cosine'", "rbf"]),
    "kernel that ends in a sign": ({}, ["--kernel", "rbf*"], ["--kernel", "rbf"]),
    "unknown likelihood": ({}, ["--likelihood", "cauchy"], ["--likelihood", "student-t"]),
    "likelihood of a gp": ({}, ["--model", "gp", "--likelihood", "laplace"], ["--likelihood", "sparse-gp"]),
    "unknown option": ({}, ["--depth", "3"], ["--depth"]),
    "test fraction 1": ({}, ["--test-fraction", "1"], ["test fraction"]),
    "negative split": ({}, ["--split", "-1"], ["split"]),
    "moments with Power EP": (
        {},
        ["--hidden", "moment-matched", "--alpha", "0.5"],
        ["--alpha 0,", "black-box-alpha"],
    ),
    "nested compression with an energy": (
        {},
        ["--hidden", "nested-compression", "--alpha", "0.5", "--objective", "black-box-alpha"],
        ["--alpha 0", "--hidden"],
    ),
    "moments with coupled layers": (
        {},
        ["--hidden", "moment-matched", "--inducing-rule", "coupled"],
        ["--inducing-rule", "full-rank, diagonal or low-rank"],
    ),
    "two precisions": ({}, ["--float32", "--float64"], ["--float32"]),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_tables_and_settings(case: str, tmp_path: Path, refuses) -> None:
    columns, options, words = BAD_TABLES[case]
    source = _table(tmp_path, **columns)
    refuses(["fit", source, *options, "--out", str(tmp_path / "run"), "--quiet"], *words)
    assert not (tmp_path / "run").exists()


def test_compare_tabulates_every_combination_and_resumes(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], refuses
) -> None:
    folder = tmp_path / "all"
    argv = ["compare", str(table), "--model", "gp,sparse-gp", *SPARSE[2:], "--json"]
    assert main([*argv, "--out", str(folder)]) == 0
    fits = {row["fit"]: row for row in json.loads(capsys.readouterr().out)["fits"]}
    assert list(fits) == ["gp", "sparse-gp"]
    # the exact evidence is above the bound of it
    assert fits["gp"]["elbo"] > fits["sparse-gp"]["elbo"]
    assert {"comparison.csv", "comparison.svg", "gp"} <= {path.name for path in folder.iterdir()}
    refuses([*argv, "--out", str(folder)], "not empty")
    refuses([*argv, "--out", str(folder), "--resume", "--seed", "1"], "other data or settings")
    assert main([*argv, "--out", str(folder), "--resume"]) == 0
    assert json.loads(capsys.readouterr().out)["fits"][1] == fits["sparse-gp"]


def test_compare_varies_what_a_model_uses_and_refuses_before_it_fits(table: Path, refuses) -> None:
    lists = {
        "model": ["gp", "sparse-gp", "deep-gp"],
        "hidden": ["markov", "conditional"],
        "alpha": [0.0, 0.5],
    }
    assert list(combinations(settings.Settings(), lists)) == [
        "gp",
        "sparse-gp alpha=0",
        "sparse-gp alpha=0.5",
        "deep-gp markov alpha=0",
        "deep-gp markov alpha=0.5",
        "deep-gp conditional alpha=0",
        "deep-gp conditional alpha=0.5",
    ]
    refuses(["compare", str(table), "--alpha", "0,2"], "--alpha")
    refuses(["compare", str(table), "--alpha", "0,a"], "--alpha")
    refuses(["compare", str(table), "--hidden", "markov,none"], "--hidden", "'none'")
    refuses(["compare", str(table), "--inducing", "28"], "--inducing")


@pytest.mark.slow
def test_compare_begins_a_richer_guide_at_the_optimum_of_a_poorer(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [
        "compare",
        str(table),
        "--model",
        "deep-gp",
        "--hidden",
        "conditional,mean-field",
        "--widths",
        "1",
    ]
    settings = [
        "--inducing",
        "5",
        "--steps",
        "100",
        "--learning-rate",
        "0.05",
        "--out",
        str(tmp_path / "all"),
    ]
    assert main([*argv, *settings]) == 0
    out, err = capsys.readouterr()
    assert "deep-gp conditional begins at the optimum of deep-gp mean-field" in err and "ELBO" in out
    losses = {
        name: group(read_netcdf(tmp_path / "all" / f"deep-gp_{name}" / "posterior.nc"), "sample_stats")[
            "loss"
        ].values.ravel()
        for name in ("conditional", "mean-field")
    }
    poorer = losses["mean-field"]
    assert abs(losses["conditional"][:5].mean() - poorer[-5:].mean()) < 0.3 * (poorer[0] - poorer[-5:].mean())


@pytest.mark.parametrize(
    "argv, words",
    [
        (["fit"], ["source"]),
        (["train", "step"], ["train"]),
        (["fit", "nowhere.csv"], ["nowhere.csv", "check the path"]),
        (["fit", "nowhere"], ["built-in"]),
        (["predict", "nowhere", "step"], ["not a run directory"]),
        (["show", "nowhere"], ["not a run directory"]),
        (["fit", "step", "--resume"], ["--out"]),
    ],
)
def test_bad_commands(argv: list[str], words: list[str], tmp_path: Path, monkeypatch, refuses) -> None:
    monkeypatch.chdir(tmp_path)
    refuses(argv, *words)
    assert not list(tmp_path.iterdir())


def test_two_rows_are_the_least(tmp_path: Path, refuses) -> None:
    (tmp_path / "one.csv").write_text("x,y\n1,2\n")
    refuses(["fit", str(tmp_path / "one.csv")], "1 row", "at least 2")


def test_npz_without_its_arrays_lists_what_it_holds(tmp_path: Path, refuses) -> None:
    np.savez(tmp_path / "a.npz", inputs=np.eye(3), y=np.arange(3.0))
    refuses(["fit", str(tmp_path / "a.npz")], "'X'", "inputs")


def test_directories_that_cannot_be_used(sparse_run: Path, table: Path, tmp_path: Path, refuses) -> None:
    refuses(["fit", str(table), "--out", str(sparse_run)], "not empty", "--resume")
    refuses(["fit", str(table), "--out", str(table)], "is a file")
    refuses(["fit", "step", "--out", str(sparse_run), "--resume", "--quiet"], "other data")
    refuses(["fit", str(table), "--out", str(sparse_run), "--resume", "--seed", "1"], "--seed")
    refuses(["fit", str(table), "--out", str(tmp_path), "--resume"], "not a run directory")
    refuses(["predict", str(sparse_run), "step", "--out", str(table)], "exists")
    (tmp_path / "other.csv").write_text("w\n1\n")
    refuses(["predict", str(sparse_run), str(tmp_path / "other.csv")], "'x'")


@pytest.mark.parametrize("damage", ["config", "values", "parameters", "no parameters"])
def test_damaged_run_directories(damage: str, sparse_run: Path, tmp_path: Path, refuses) -> None:
    folder = tmp_path / "run"
    shutil.copytree(sparse_run, folder)
    if damage == "config":
        (folder / "config.json").write_text("{")
    elif damage == "values":
        values = json.loads((folder / "config.json").read_text())
        values["settings"]["widths"] = [0]
        (folder / "config.json").write_text(json.dumps(values))
    elif damage == "parameters":
        (state,) = (folder / "parameters").glob("*.safetensors")
        state.write_bytes(state.read_bytes()[:-8])
    else:
        shutil.rmtree(folder / "parameters")
    word = "no parameters" if damage == "no parameters" else "damaged"
    refuses(["show", str(folder)], word)
    refuses(["predict", str(folder), "step"], word)


def test_a_run_that_cannot_be_resumed_is_left_as_it_was(
    sparse_run: Path, table: Path, tmp_path: Path, refuses
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(sparse_run, folder)
    (state,) = (folder / "checkpoint").glob("*.safetensors")
    state.write_bytes(b"")
    before = run_directory.read(folder).to_json()
    refuses(["fit", str(table), "--out", str(folder), "--resume", "--steps", "30", "--quiet"], "damaged")
    assert run_directory.read(folder).to_json() == before and before["status"] == "done"


def test_training_that_diverges_leaves_nothing(table: Path, tmp_path: Path, refuses) -> None:
    argv = [
        "fit",
        str(table),
        *SPARSE,
        "--steps",
        "200",
        "--learning-rate",
        "1e300",
        "--out",
        str(tmp_path / "run"),
    ]
    refuses(argv, "learning rate")
    assert not (tmp_path / "run").exists()


def test_the_likelihood_reaches_the_model():
    settings = Settings(model="sparse-gp", likelihood="student-t", inducing=5)
    assert build(settings, 2).model == sparse_gp_regression(5, num_outputs=2, likelihood="student-t")
    # runs that were written before there was a choice
    values = {name: value for name, value in Settings().to_json().items() if name != "likelihood"}
    assert Settings.from_json(values) == Settings()
