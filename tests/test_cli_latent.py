"""`ppl-dgp fit --model gplvm`: holes in the table, what is written, what is refused."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ppl_dgp.cli import main
from ppl_dgp.data import DataError, load_columns, load_entries
from ppl_dgp.diagnostics.arviz_api import group, read_netcdf

TINY = ["--model", "gplvm", "--latent", "1", "--inducing", "4", "--steps", "15", "--quiet"]
RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty rows of three columns that move together, in units of their own; four entries missing."""
    t = RANDOM.uniform(-1.0, 1.0, 30)
    columns = {"a": 100.0 + 10.0 * t, "b": 5.0 * t**2, "c": -t + 0.01 * RANDOM.normal(size=30)}
    frame = pd.DataFrame(columns | {"flat": 1.0, "kind": np.where(t > 0, "up", "down")})
    frame.loc[[1, 5], "a"] = np.nan
    frame.loc[[2, 7], "c"] = np.nan
    path = tmp_path_factory.mktemp("data") / "holes.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def run(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "latent"
    assert main(["fit", str(table), *TINY, "--target", "kind", "--out", str(folder), "--json"]) == 0
    return folder


def test_table_with_holes(table: Path) -> None:
    found, labels = load_columns(str(table), "kind")
    assert found.target_names == ("a", "b", "c") and found.X.shape == (30, 0)
    assert np.isnan(found.y).sum() == 4 and set(labels) == {"up", "down"}
    assert "4 of 90 entries are missing (4.4 %)" in found.notes
    assert "dropped constant column 'flat'" in found.notes
    entries = load_entries(str(table), ("c", "gone", "a"))
    assert np.isnan(entries[:, 1]).all() and np.allclose(entries[:, 2], found.y[:, 0], equal_nan=True)


@pytest.mark.slow
def test_run_directory(run: Path, table: Path) -> None:
    result = json.loads((run / "config.json").read_text())
    assert result["status"] == "done" and result["targets"] == ["a", "b", "c"] and result["features"] == []
    assert np.isfinite(result["result"]["elbo"]) and len(result["result"]["relevance"]) == 1
    latents = pd.read_csv(run / "latents.csv")
    assert list(latents.columns) == ["row", "label", "latent1_mean", "latent1_sd"] and len(latents) == 27
    # the one way in which the rows vary
    raw = pd.read_csv(table)
    assert abs(np.corrcoef(latents.latent1_mean, raw.c[latents.row].fillna(raw.c.mean()))[0, 1]) > 0.8
    filled = pd.read_csv(run / "filled.csv").set_index("row")
    gone = raw.a[filled.index].isna().to_numpy()
    assert np.isfinite(filled.a).all() and np.array_equal(filled.a_sd.notna(), gone)
    assert {path.stem for path in (run / "figures").iterdir()} >= {
        "losses",
        "hyperparameters",
        "relevance",
        "latents",
    }
    posterior = group(read_netcdf(run / "posterior.nc"), "posterior")
    assert posterior["x"].dims == ("chain", "draw", "row", "latent")


@pytest.mark.slow
def test_predict_gives_latents_and_entries(
    run: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(run), str(table), "--quiet"]) == 0
    found = pd.read_csv(__import__("io").StringIO(capsys.readouterr().out))
    assert len(found) == 30 and np.isfinite(found[["latent1_mean", "log_density", "a", "b", "c"]]).all().all()
    trained = pd.read_csv(run / "latents.csv").set_index("row")
    assert np.abs(found.latent1_mean[trained.index] - trained.latent1_mean).max() < 0.5
    assert main(["show", str(run)]) == 0


def test_bad_input_is_refused(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*arguments: str) -> str:
        assert main(["fit", *arguments, "--out", str(tmp_path / "out")]) == 2
        said = capsys.readouterr().err.strip()
        assert "\n" not in said and not (tmp_path / "out").exists()
        return said

    assert "'nothing' to be the label" in refused(str(table), *TINY, "--target", "nothing")
    assert "--latent is 0" in refused(str(table), "--model", "gplvm", "--latent", "0")
    assert "choose from mean-field" in refused(str(table), *TINY, "--hidden", "markov")
    assert "trained by its bound" in refused(str(table), *TINY, "--alpha", "0.5")
    assert "'kind' of holes.csv holds words" in refused(str(table), *TINY)
    assert main(["compare", str(table), "--model", "gplvm,deep-gp"]) == 2
    assert "predicts no target" in capsys.readouterr().err
    infinite = tmp_path / "infinite.csv"
    pd.DataFrame({"a": [1.0, np.inf, 2.0], "b": [1.0, 2.0, 4.0]}).to_csv(infinite, index=False)
    assert "infinite" in refused(str(infinite), *TINY)
    with pytest.raises(DataError, match="none of the columns"):
        load_entries(str(table), ("x", "y"))
    np.savez(tmp_path / "other.npz", Z=np.ones((3, 2)))
    assert "no array 'Y' or 'X'" in refused(str(tmp_path / "other.npz"), *TINY)


def test_arrays_and_built_in_tables(tmp_path: Path) -> None:
    np.savez(tmp_path / "some.npz", Y=RANDOM.normal(size=(5, 2)), kind=np.arange(5))
    found, labels = load_columns(str(tmp_path / "some.npz"), "kind")
    assert found.target_names == ("y0", "y1") and np.array_equal(labels, np.arange(5))
    assert load_columns("linnerud")[0].y.shape == (20, 6)
