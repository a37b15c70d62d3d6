"""Tables of words, dates and decimal commas on the command line: what is fitted, told, predicted and exported."""

import json
import os
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from fast import seldom
from jax import export
from scipy.stats import norm

from ppl_dgp.cli import main, run_directory
from ppl_dgp.cli.settings import Settings
from ppl_dgp.cli.targets import counts_notes
from ppl_dgp.data import load_table

RNG = np.random.default_rng(5)
ROWS = 40
FRAME = pd.DataFrame(
    {
        "when": pd.date_range("2024-01-01", periods=ROWS, freq="D").strftime("%Y-%m-%d"),
        "colour": RNG.choice(["red", "green", "blue"], ROWS),
        "a": RNG.normal(size=ROWS).round(4),
        "note": [f"row {number}" for number in range(ROWS)],
    }
)
FRAME["y"] = (FRAME["a"] ** 2 + 10.0 * (FRAME["colour"] == "red")).round(4)
TINY = ["--inducing", "5", "--steps", "5", "--quiet"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    FRAME.to_csv(folder / "t.csv", sep=";", decimal=",", index=False)
    argv = ["fit", str(folder / "t.csv"), "--ignore", "note", "--model", "sparse-gp", *TINY]
    assert main([*argv, "--out", str(folder / "run")]) == 0
    FRAME[["a", "colour", "when"]][:7].to_csv(folder / "new.tsv", sep="\t", index=False)
    return folder / "run"


def test_what_was_read_is_told_and_kept(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = run_directory.read(run)
    assert record.encoding.categories == {"colour": ("blue", "green", "red")}
    assert record.encoding.dates == ("when",)
    assert record.feature_names == ("when", "colour=blue", "colour=green", "colour=red", "a")
    assert main(["show", str(run)]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for told in (
        "separated by a semicolon",
        "decimals follow a comma",
        "colour has 3 categories",
        "when is a date, in days since 1970-01-01 (UTC)",
    ):
        assert told in shown


def test_an_unknown_category_is_refused(run: Path, tmp_path: Path, refuses) -> None:
    FRAME.assign(colour="pink").to_csv(tmp_path / "new.csv", index=False)
    refuses(
        ["predict", str(run), str(tmp_path / "new.csv")], "row 0", "'colour'", "'pink'", "blue, green, red"
    )


def _exported(path: Path):
    return export.deserialize(bytearray(path.read_bytes()))


def test_an_exported_predictor_says_what_predict_says(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "p.jaxexport"
    assert main(["export", str(run), "--out", str(place), "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "p.json").read_text()).items() <= about.items()
    assert main(["predict", str(run), str(run.parent / "new.tsv"), "--out", str(tmp_path / "p.csv")]) == 0
    expected = pd.read_csv(tmp_path / "p.csv")
    when = (pd.to_datetime(FRAME["when"][:7]) - pd.Timestamp("1970-01-01")).dt.days
    columns = {"when": when, "a": FRAME["a"][:7]}
    columns |= {f"colour={name}": FRAME["colour"][:7] == name for name in about["categories"]["colour"]}
    rows = np.column_stack([columns[name] for name in about["features"]]).astype(float)
    predictor = _exported(place)
    for count in (7, 1):  # any number of rows, and what is said of one depends on no other
        found = predictor.call(rows[:count])
        # no hidden layers: nothing of these two is drawn
        for name in ("mean", "sd"):
            np.testing.assert_allclose(found[name][:, 0], expected[f"y_{name}"][:count], rtol=1e-9)
        # and quantiles are a Gaussian's
        for name, level in (("lower95", 0.025), ("median", 0.5), ("upper95", 0.975)):
            exact = norm.ppf(level, found["mean"], found["sd"])[:, 0]
            np.testing.assert_allclose(found[name][:, 0], exact, rtol=1e-9)
            np.testing.assert_allclose(expected[f"y_{name}"][:count], exact, rtol=1e-9)


def test_export_refuses(run: Path, tmp_path: Path, refuses, monkeypatch: pytest.MonkeyPatch) -> None:
    refuses(["export", str(tmp_path), "--out", str(tmp_path / "p.jaxexport")], "not a run directory")
    refuses(["export", str(run), "--out", str(tmp_path / "p.bin")], "--out", ".jaxexport")
    (tmp_path / "p.json").write_text("{}")
    refuses(["export", str(run), "--out", str(tmp_path / "p.jaxexport")], "p.json", "exists")
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    refuses(["export", str(run), "--out", str(tmp_path / "q.jaxexport")], "ppl-dgp[export]")


#: what the snippet of docs/command-line.md needs, and what these need
BARE = ("jax", "jaxlib", "numpy", "scipy", "ml_dtypes", "opt_einsum", "flatbuffers")
ALONE = """
import importlib.util, json, sys
import numpy as np
import jax
from jax import export
from scipy.stats import norm

jax.config.update("jax_enable_x64", True)
assert not any(map(importlib.util.find_spec, ("ppl_dgp", "numpyro", "pandas")))
with open(sys.argv[1], "rb") as file:
    predictor = export.deserialize(bytearray(file.read()))
found = predictor.call(np.array(json.loads(sys.argv[2])))
print(json.dumps({name: np.asarray(value).tolist() for name, value in found.items()}))
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has JAX, NumPy and what these need alone."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    (home,) = folder.glob("lib/python*/site-packages")
    for name in BARE:
        for file in distribution(name).files or ():
            top = file.parts[0]
            if top != ".." and not (home / top).exists():
                os.symlink(distribution(name).locate_file(top), home / top)
    return folder / "bin" / "python"


EXPORTED = {
    "sparse-gp": ["--model", "sparse-gp"],
    "gp": ["--model", "gp", "--steps", "5"],
    "deep-gp": ["--model", "deep-gp", "--widths", "2", "--float32"],
    "softmax": ["--model", "deep-gp", "--widths", "2", "--likelihood", "softmax", "--target", "colour"],
}


@pytest.mark.slow
@pytest.mark.parametrize("case", seldom(EXPORTED, 3))
def test_an_exported_predictor_needs_jax_alone(bare: Path, case: str, tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "t.csv", index=False)
    argv = ["fit", str(tmp_path / "t.csv"), "--ignore", "note,when", *TINY, *EXPORTED[case]]
    assert main([*argv, "--out", str(tmp_path / "run")]) == 0
    place = tmp_path / "p.jaxexport"
    assert main(["export", str(tmp_path / "run"), "--out", str(place)]) == 0
    about = json.loads((tmp_path / "p.json").read_text())
    rows = np.random.default_rng(0).uniform(size=(3, len(about["features"])))
    done = subprocess.run(
        [str(bare), "-I", "-c", ALONE, str(place), json.dumps(rows.tolist())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {name: np.array(value) for name, value in json.loads(done.stdout).items()}
    assert list(found) == sorted(about["outputs"])
    with jax.enable_x64(True):
        for name, value in _exported(place).call(rows).items():
            np.testing.assert_allclose(found[name], value, rtol=1e-6)
    if case == "softmax":
        assert found["probabilities"].shape == (3, 3)
        np.testing.assert_allclose(found["probabilities"].sum(1), 1.0, rtol=1e-6)
        return
    from ppl_dgp.cli.predicting import predict

    frame = pd.DataFrame(rows, columns=about["features"])
    words = frame.filter(like="colour=")
    frame["colour"] = words.idxmax(axis=1).str.removeprefix("colour=")
    encoded = pd.get_dummies(frame[["a", "colour"]], columns=["colour"], prefix_sep="=")
    encoded = encoded.reindex(columns=about["features"], fill_value=0).astype(float)
    frame[["a", "colour"]].to_csv(tmp_path / "new.csv", index=False)
    expected, _ = predict(tmp_path / "run", str(tmp_path / "new.csv"), None, False, None, print)
    with jax.enable_x64(True):
        again = _exported(place).call(encoded.to_numpy())
    # 200 draws of the hidden layers, others than those of predict
    loose = 0.3 * float(np.max(expected["y_sd"])) if case == "deep-gp" else 1e-8
    np.testing.assert_allclose(again["mean"][:, 0], expected["y_mean"], atol=loose)
    np.testing.assert_allclose(again["sd"][:, 0], expected["y_sd"], atol=loose)


def test_zeros_and_ones_ask_what_is_meant(tmp_path: Path, refuses) -> None:
    FRAME.assign(y=(FRAME["a"] > 0).astype(int)).to_csv(tmp_path / "t.csv", index=False)
    argv = ["fit", str(tmp_path / "t.csv"), "--ignore", "note", "--out", str(tmp_path / "run")]
    for model, words in (
        ("deep-gp", "bernoulli for two classes,"),
        ("gp", "(of a sparse-gp, deep-gp or stack)"),
    ):
        refuses(
            [*argv, "--model", model], "y of t.csv", "--likelihood bernoulli", "--likelihood gaussian", words
        )
    refuses(["compare", *argv[1:]], "y of t.csv", "--likelihood gaussian")
    assert not (tmp_path / "run").exists()


def test_words_to_predict_ask_for_a_likelihood(tmp_path: Path, refuses) -> None:
    FRAME.to_csv(tmp_path / "t.csv", index=False)
    refuses(
        ["fit", str(tmp_path / "t.csv"), "--target", "colour", "--ignore", "note"],
        "'colour'",
        "--likelihood robust-max",
    )


OF_A_KIND = {
    "poisson": (np.round(FRAME["y"] + 1.0), -1.0, "whole numbers"),
    "negative-binomial": (np.round(FRAME["y"] + 1.0), 0.5, "whole numbers"),
    "gamma": (FRAME["y"] + 1.0, 0.0, "positive numbers"),
    "beta": (0.1 + FRAME["y"] / 50.0, 1.0, "between 0 and 1"),
}


@pytest.mark.parametrize("likelihood", OF_A_KIND)
def test_targets_that_a_likelihood_does_not_know_are_refused(
    likelihood: str, tmp_path: Path, refuses
) -> None:
    y, wrong, words = OF_A_KIND[likelihood]
    FRAME[["a"]].assign(y=y.where(y.index != 3, wrong)).to_csv(tmp_path / "t.csv", index=False)
    argv = ["fit", str(tmp_path / "t.csv"), "--likelihood", likelihood]
    refuses(argv, f"target 'y' of t.csv has {wrong:g}", f"--likelihood {likelihood}", words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "likelihood"),
    seldom(
        [
            *(("sparse-gp", likelihood) for likelihood in OF_A_KIND),
            *(("deep-gp", likelihood) for likelihood in OF_A_KIND),
        ],
        4,
        5,
        7,
    ),
)
def test_targets_on_their_own_scale_are_fitted_in_it(
    likelihood: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    y, _, _ = OF_A_KIND[likelihood]
    FRAME[["a"]].assign(y=y).to_csv(tmp_path / "t.csv", index=False)
    argv = ["fit", str(tmp_path / "t.csv"), "--model", model, "--likelihood", likelihood, *TINY]
    assert main([*argv, "--out", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert np.isfinite(found["elbo"]) and np.isfinite(found["test_log_density"])
    record = run_directory.read(tmp_path / "run")
    assert (record.y_units.mean == 0.0).all() and (record.y_units.scale == 1.0).all()
    predictions = pd.read_csv(tmp_path / "run" / "predictions.csv")
    assert (predictions["y_lower95"] >= 0.0).all()


SAYS = {
    "model": (["--model", "deep-pg"], "did you mean deep-gp?"),
    "likelihood": (["--likelihood", "studentt"], "did you mean student-t?"),
    "option": (["--likelyhood", "gaussian"], "Did you mean --likelihood?"),
    "objective at 0": (["--objective", "importance-weighted"], "--alpha 1"),
    "objective of layers": (
        ["--objective", "approximate-power-ep", "--inducing-rule", "coupled"],
        "independent in q(u)",
    ),
    "several targets": (["--model", "multi-output-gp", "--likelihood", "poisson"], "takes gaussian"),
    "a series": (["--model", "gpssm", "--ignore", "x"], "--ignore"),
}


@pytest.mark.parametrize("case", SAYS)
def test_what_cannot_be_right_is_said_before_anything_is_read(case: str, refuses) -> None:
    options, words = SAYS[case]
    refuses(["fit", "diabetes", *options], words)


@pytest.mark.parametrize("objective, alpha", [("importance-weighted", "1"), ("approximate-power-ep", "0.5")])
@pytest.mark.slow
def test_every_objective_is_fitted(
    objective: str, alpha: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    FRAME[["a", "y"]].to_csv(tmp_path / "t.csv", index=False)
    argv = [
        "fit",
        str(tmp_path / "t.csv"),
        "--widths",
        "2",
        "--objective",
        objective,
        "--alpha",
        alpha,
        *TINY,
    ]
    assert main([*argv, "--out", str(tmp_path / "run"), "--json"]) == 0
    assert np.isfinite(json.loads(capsys.readouterr().out)["elbo"])


def test_alone_it_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert all(command in out for command in ("fit", "predict", "export")) and err == ""


def test_help_of_fit_comes_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    from ppl_dgp.cli.options import GROUPS, SETTINGS

    assert sorted(name for names in GROUPS.values() for name in names) == sorted(SETTINGS)
    assert main(["fit", "--help"]) == 0
    out = capsys.readouterr().out
    places = [out.index(f"─ {group} ─") for group in GROUPS]
    assert places == sorted(places)


def test_targets_that_may_be_counts_are_told_of_their_likelihoods(tmp_path: Path) -> None:
    few = np.arange(ROWS) % 5
    targets = {"boats": few, "half": few + 0.5, "both": few % 2, "many": 200 + few, "below": few - 1}
    FRAME[["a"]].assign(**targets).to_csv(tmp_path / "t.csv", index=False)
    table = load_table(str(tmp_path / "t.csv"), ",".join(targets))
    (note,) = counts_notes(Settings(), table, ())
    assert note.startswith("boats of t.csv ")
    assert note.endswith("--likelihood poisson or negative-binomial is of counts")
    assert "sparse-gp" in counts_notes(Settings(model="gp"), table, ())[0]
    assert counts_notes(Settings(), table, ("likelihood",)) == ()
