"""`ppl-dgp fit --model binned-counts-gp, gp-with-derivatives`: the API's fits, whatever the units; what is refused."""

import json
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from ppl_dgp.cli import main
from ppl_dgp.fit import fit_svi
from ppl_dgp.guides import Guide
from ppl_dgp.models import binned_counts_gp, gp_with_derivatives
from ppl_dgp.objectives import PowerEP
from ppl_dgp.prediction.predict import predict

TINY = ["--inducing", "6", "--steps", "30", "--test-fraction", "0", "--quiet"]


def _counts(unit: float = 1.0) -> pd.DataFrame:
    """Counts in forty bins of two widths that were looked at for different times."""
    random = np.random.default_rng(0)
    ends = np.cumsum(np.append(0.0, np.tile([0.2, 0.3], 20)))
    begin, end, time = ends[:-1], ends[1:], random.uniform(1.0, 3.0, 40)
    counts = random.poisson(time * np.exp(1.0 + np.sin(0.5 * (begin + end))))
    return pd.DataFrame({"begin": unit * begin, "time": time, "end": unit * end, "count": counts})


def _slopes(x_unit: float = 1.0, y_unit: float = 1.0) -> pd.DataFrame:
    """Values and slopes of 5 + sin(a) b."""
    random = np.random.default_rng(1)
    a, b, kind = random.uniform(-2.0, 2.0, 30), random.uniform(0.5, 1.5, 30), np.arange(30) % 3
    found = np.choose(kind, [5.0 + np.sin(a) * b, np.cos(a) * b, np.sin(a)])
    y = y_unit * found / np.where(kind == 1, x_unit, 1.0)
    return pd.DataFrame({"a": x_unit * a, "kind": kind, "b": b, "y": y})


def _fitted(folder: Path, frame: pd.DataFrame, *argv: str) -> tuple[dict, pd.DataFrame]:
    """The results and the predictions of a run."""
    folder.mkdir()
    frame.to_csv(folder / "rows.csv", index=False)
    assert main(["fit", str(folder / "rows.csv"), *argv, *TINY, "--out", str(folder / "run"), "--json"]) == 0
    config = json.loads((folder / "run" / "config.json").read_text())
    return config["result"], pd.read_csv(folder / "run" / "predictions.csv")


COUNTS = ("--model", "binned-counts-gp", "--exposure", "time")
SLOPES = ("--model", "gp-with-derivatives", "--slope-column", "kind")


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict, pd.DataFrame]:
    folder = tmp_path_factory.mktemp("runs") / "counts"
    return folder, *_fitted(folder, _counts(), *COUNTS)


@pytest.fixture(scope="module")
def sloped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict, pd.DataFrame]:
    folder = tmp_path_factory.mktemp("runs") / "slopes"
    return folder, *_fitted(folder, _slopes(), *SLOPES)


def _of_api(model, x, y):
    guide = Guide(model)
    fit = fit_svi(jax.random.key(0), model, guide, PowerEP(0.0), x, y, steps=30)
    return predict(jax.random.key(2), fit, x, y, num_samples=200, levels=(0.025, 0.5, 0.975))


@pytest.mark.slow
def test_counts_are_the_apis(counted) -> None:
    _, result, found = counted
    frame = _counts()
    ends = np.concatenate([frame["begin"], frame["end"]])
    corners = [(frame[name] - ends.mean()) / ends.std() for name in ("begin", "end")]
    x = np.stack([*corners, frame["time"]], 1)
    expected = _of_api(binned_counts_gp(6, exposure=True), x, frame[["count"]].to_numpy(float))
    assert_allclose(found["count_mean"], expected.mean[:, 0], rtol=1e-6)
    assert_allclose(found["log_density"], expected.log_density, rtol=1e-6)
    # log densities of counts are below those of the Poisson with the count for its mean
    assert (
        found["log_density"] < stats.poisson.logpmf(frame["count"], np.maximum(frame["count"], 1e-9)) + 1e-9
    ).all()


def test_units_of_bins_change_nothing(counted, tmp_path: Path) -> None:
    """Those that are a power of two, so that k-means has the very same numbers."""
    _, result, found = counted
    other_result, other = _fitted(tmp_path / "other", _counts(1024.0), *COUNTS)
    assert_allclose(other["count_mean"], found["count_mean"], rtol=1e-6)
    assert_allclose(other_result["elbo"], result["elbo"], rtol=1e-6)


@pytest.mark.slow
def test_values_and_slopes_are_the_apis(sloped) -> None:
    _, result, found = sloped
    frame = _slopes()
    kind, y = frame["kind"].to_numpy(), frame["y"].to_numpy()
    scales = frame["a"].std(ddof=0), frame["b"].std(ddof=0)
    x = np.stack(
        [(frame[name] - frame[name].mean()) / scale for name, scale in zip("ab", scales, strict=True)], 1
    )
    centre, scale = y[kind == 0].mean(), y[kind == 0].std()
    units = scale / np.choose(kind, [1.0, *scales])
    standard = (y - np.where(kind == 0, centre, 0.0)) / units
    expected = _of_api(gp_with_derivatives(6), np.column_stack([x, kind]), standard[:, None])
    assert_allclose(
        found["y_mean"], np.where(kind == 0, centre, 0.0) + units * expected.mean[:, 0], rtol=1e-6
    )
    assert_allclose(found["y_sd"], units * np.sqrt(expected.variance[:, 0]), rtol=1e-6)
    assert_allclose(found["log_density"], expected.log_density - np.log(units), rtol=1e-6)


@pytest.mark.slow
def test_units_of_features_and_targets_go_through(sloped, tmp_path: Path) -> None:
    _, result, found = sloped
    other_result, other = _fitted(tmp_path / "other", _slopes(64.0, 1.0 / 128.0), *SLOPES)
    kind = _slopes()["kind"].to_numpy()
    unit = 1.0 / 128.0 / np.where(kind == 1, 64.0, 1.0)
    assert_allclose(other["y_mean"], unit * found["y_mean"], rtol=1e-6)
    assert_allclose(other["log_density"], found["log_density"] - np.log(unit), rtol=1e-6)
    assert_allclose(other_result["elbo"], result["elbo"] - np.log(unit).sum(), rtol=1e-6)


@pytest.mark.parametrize("name", ["counts", "slopes"])
def test_rows_of_a_file_are_predicted(name: str, counted, sloped, tmp_path: Path) -> None:
    """Those it was trained on, in another order of the columns, are as they were found."""
    folder, _, found = counted if name == "counts" else sloped
    frame = _counts() if name == "counts" else _slopes()
    target = frame.columns[-1]
    frame[list(reversed(frame.columns))].to_csv(tmp_path / "new.csv", index=False)
    out = tmp_path / "predicted.csv"
    assert (
        main(["predict", str(folder / "run"), str(tmp_path / "new.csv"), "--out", str(out), "--quiet"]) == 0
    )
    again = pd.read_csv(out)
    assert_allclose(again[f"{target}_mean"], found[f"{target}_mean"], rtol=1e-6)
    assert_allclose(again["log_density"], found["log_density"], rtol=1e-6)
    assert {"losses.svg", "predicted.svg"} <= {path.name for path in (folder / "run" / "figures").iterdir()}


def _changed(frame: pd.DataFrame, column: str, value: float) -> pd.DataFrame:
    return frame.assign(**{column: np.where(np.arange(len(frame)) == 3, value, frame[column].astype(float))})


@pytest.mark.parametrize(
    ("frame", "argv", "said"),
    [
        (_counts(), (*COUNTS[:2], "--exposure", "times"), "--exposure is 'times', which is no feature"),
        (_counts(), COUNTS[:2], "has 3 features, begin, time, end"),
        (_changed(_counts(), "begin", 99.0), COUNTS, "a bin has begin 99"),
        (_changed(_counts(), "time", 0.0), COUNTS, "--exposure 'time' has 0"),
        (_changed(_counts(), "count", 1.5), COUNTS, "target 'count' of rows.csv has 1.5"),
        (_counts(), (*COUNTS, "--likelihood", "student-t"), "takes poisson or negative-binomial"),
        (_slopes(), SLOPES[:2], "--slope-column is not given"),
        (_slopes(), (*SLOPES[:2], "--slope-column", "b"), "--slope-column 'b' has"),
        (_slopes(), (*SLOPES, "--kernel", "matern12"), "whose functions have no slopes"),
        (_slopes(), (*SLOPES, "--likelihood", "student-t"), "--likelihood is student-t"),
        (_slopes(), ("--model", "sparse-gp", "--slope-column", "kind"), "is of a gp-with-derivatives"),
        (_slopes(), ("--model", "gp", "--exposure", "b"), "is of a binned-counts-gp"),
        (_slopes(), (*SLOPES, "--exposure", "b"), "is of a binned-counts-gp"),
        (_slopes(), (*SLOPES, "--widths", "3"), "makes no use of it"),
        (_slopes(), (*SLOPES, "--stream"), "take sparse-gp or deep-gp"),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_one_line(frame, argv, said, tmp_path: Path, capsys) -> None:
    frame.to_csv(tmp_path / "rows.csv", index=False)
    assert main(["fit", str(tmp_path / "rows.csv"), *argv, "--out", str(tmp_path / "run")]) == 2
    told = capsys.readouterr().err.strip()
    assert said in told and "\n" not in told
    assert not (tmp_path / "run").exists()


def test_they_are_compared_with_no_other_model(tmp_path: Path, capsys) -> None:
    _counts().to_csv(tmp_path / "rows.csv", index=False)
    argv = ["compare", str(tmp_path / "rows.csv"), "--model", "sparse-gp,binned-counts-gp"]
    assert main([*argv, "--out", str(tmp_path / "runs")]) == 2
    assert "whose columns are more than features" in capsys.readouterr().err
