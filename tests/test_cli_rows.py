"""Rows are told by their number in the file, whatever was left out before them."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ppl_dgp.cli import main

ROWS = 16
TINY = ["--inducing", "4", "--steps", "3", "--quiet", "--test-fraction", "0.3"]


@pytest.mark.parametrize(
    "model, written, y",
    [
        (["gp", "--drop-missing"], "predictions.csv", [3.0 * n % 7 for n in range(ROWS)]),
        pytest.param(
            ["sparse-gp", "--drop-missing", "--likelihood", "bernoulli"],
            "predictions.csv",
            ["no", "yes"] * 8,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["gplvm", "--latent", "1"],
            "filled.csv",
            [3.0 * n % 7 for n in range(ROWS)],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["numbers", "classes", "latents"],
)
def test_rows_are_those_of_the_file(model: list[str], written: str, y: list, tmp_path: Path) -> None:
    frame = pd.DataFrame({"temp": np.linspace(-1.0, 1.0, ROWS) ** 3, "y": y})
    gaps, latent = [0, 3, 4], model[0] == "gplvm"
    frame.loc[gaps, ["temp", "y"] if latent else ["temp"]] = np.nan
    if latent:
        frame.loc[6, "temp"] = np.nan  # to fill in
    frame.to_csv(tmp_path / "t.csv", index=False)
    source, run = str(tmp_path / "t.csv"), tmp_path / "run"
    target = [] if latent else ["--target", "y"]
    assert main(["fit", source, *target, "--model", *model, *TINY, "--out", str(run)]) == 0
    tables = [pd.read_csv(run / written)]
    if target:
        new = tmp_path / "new.csv"
        assert main(["predict", str(run), source, "--drop-missing", "--quiet", "--out", str(new)]) == 0
        tables.append(pd.read_csv(new))
        assert set(tables[-1].row) == set(range(ROWS)) - set(gaps)
    for told in tables:
        assert len(told) and list(told.y) == list(frame.y[told.row])


@pytest.mark.parametrize(
    ("model", "y", "score"),
    [
        (["gp"], [3.0 * n % 7 for n in range(ROWS)], "test_rmse"),
        pytest.param(
            ["sparse-gp", "--likelihood", "bernoulli"],
            ["no", "yes"] * 8,
            "test_accuracy",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["numbers", "classes"],
)
def test_a_row_without_a_target_is_predicted_and_not_scored(
    model: list[str], y: list, score: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.DataFrame({"temp": np.linspace(-1.0, 1.0, ROWS) ** 3, "y": y})
    frame.to_csv(tmp_path / "t.csv", index=False)
    run = tmp_path / "run"
    arguments = ["--target", "y", "--model", *model, *TINY, "--out", str(run)]
    assert main(["fit", str(tmp_path / "t.csv"), *arguments]) == 0

    def predicted(name: str, table: pd.DataFrame) -> tuple[pd.DataFrame, float]:
        table.to_csv(tmp_path / "asked.csv", index=False)
        new = tmp_path / name
        capsys.readouterr()
        assert main(["predict", str(run), str(tmp_path / "asked.csv"), "--json", "--out", str(new)]) == 0
        return pd.read_csv(new), json.loads(capsys.readouterr().out)[score]

    every, _ = predicted("every.csv", frame)
    gaps = [2, 9]
    lacking, found = predicted("lacking.csv", frame.assign(y=frame.y.where(~frame.index.isin(gaps))))
    assert list(np.flatnonzero(lacking.y.isna())) == list(np.flatnonzero(lacking.log_density.isna())) == gaps
    told = [name for name in every if name not in ("y", "log_density")]
    pd.testing.assert_frame_equal(lacking[told], every[told])
    _, scored = predicted("whole.csv", frame.drop(gaps))
    assert found == pytest.approx(scored, rel=1e-9)
