"""`ppl-dgp fit --model gpssm`: sequences, gaps and controls, what is written, what is refused."""

import dataclasses
import io
import json
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from fast import seldom
from numpy.testing import assert_allclose, assert_array_equal

from ppl_dgp.cli import main
from ppl_dgp.cli.commands import program_of, record_of
from ppl_dgp.cli.programs import build, train
from ppl_dgp.cli.series import forecasts, load_series_task
from ppl_dgp.cli.settings import Settings
from ppl_dgp.data import DataError, load_series, split_series
from ppl_dgp.estimators.latent import as_fit
from ppl_dgp.fit import Fit
from ppl_dgp.objectives import PowerEP
from ppl_dgp.prediction.forecast import Forecast

TINY = ["--model", "gpssm", "--inducing", "5", "--steps", "60", "--learning-rate", "0.05", "--quiet"]
SERIES = ["--controls", "flow", "--sequence-column", "id", "--target", "level"]
RANDOM = np.random.default_rng(0)


def tank(steps: int, sequence: str) -> pd.DataFrame:
    """A level that follows what flows in, in units of its own."""
    flow, levels = RANDOM.normal(size=steps), [0.0]
    for inflow in flow:
        levels.append(0.8 * levels[-1] + 0.5 * inflow)
    level = 100.0 + 10.0 * (np.array(levels[1:]) + 0.05 * RANDOM.normal(size=steps))
    return pd.DataFrame({"id": sequence, "clock": np.arange(steps), "flow": 3.0 + 2.0 * flow, "level": level})


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """Twenty steps and ten; two levels were not observed, one of them at the end."""
    frame = pd.concat([tank(20, "north"), tank(10, "south")], ignore_index=True)
    frame.loc[[4, 29], "level"] = np.nan
    return frame


@pytest.fixture(scope="module")
def source(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "tanks.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def run(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tanks"
    asked = ["--test-fraction", "0.2", "--out", str(folder), "--json"]
    assert main(["fit", str(source), *TINY, *SERIES, *asked]) == 0
    return folder


def test_the_last_steps_of_each_sequence_are_held_out(source: Path) -> None:
    series = load_series(str(source), "level", "flow", "id")
    assert series.labels == ("north", "south") and series.table.feature_names == ("flow",)
    assert "left out column 'clock', which is no target, control or sequence" in series.table.notes
    assert "2 of 30 entries are missing (6.7 %)" in series.table.notes
    train, test = split_series(series, None, 0.2)
    assert_array_equal(test, [16, 17, 18, 19, 28, 29])
    assert_array_equal(np.sort(np.append(train, test)), np.arange(30))
    assert len(split_series(series, None, 0)[1]) == 0
    with pytest.raises(DataError, match="which leaves 1 to train on"):
        split_series(series, None, 0.9)


@pytest.mark.slow
def test_run_directory(run: Path, frame: pd.DataFrame) -> None:
    config = json.loads((run / "config.json").read_text())
    found = config["result"]
    assert config["sequences"] == ["north", "south"] and config["settings"]["latent"] == 1
    assert found["missing"] == 1 and len(found["process_noise"]) == len(found["observation_noise"]) == 1
    assert np.isfinite([found["elbo"], found["test_log_density"]]).all() and found["elbo_se"] == 0.0
    assert (run / "posterior.nc").stat().st_size > 0
    states = pd.read_csv(run / "states.csv")
    assert list(states.columns) == ["sequence", "step", "state1_mean", "state1_sd"] and len(states) == 24
    levels = frame.level[[*range(16), *range(20, 28)]].to_numpy()
    seen = ~np.isnan(levels)
    # the state after a step, not before it
    assert np.corrcoef(states.state1_mean[seen], levels[seen])[0, 1] > 0.95
    ahead = pd.read_csv(run / "predictions.csv")
    assert ahead.sequence.tolist() == ["north"] * 4 + ["south"] * 2
    assert ahead.step.tolist() == [16, 17, 18, 19, 8, 9]
    assert_allclose(ahead.level, frame.level[[16, 17, 18, 19, 28, 29]])
    assert ahead.log_density.isna().tolist() == [False] * 5 + [True]
    assert_allclose(found["test_log_density"], ahead.log_density.mean())
    assert_allclose(found["test_rmse"], np.sqrt(np.square(ahead.level_mean - ahead.level).mean()))
    # levels are around 100, and follow the flow
    assert found["test_rmse"] < 0.7 * frame.level.std()
    assert {path.stem for path in (run / "figures").iterdir()} >= {
        "losses",
        "hyperparameters",
        "states",
        "forecast-1",
    }


def test_predict_goes_on_from_the_training_steps(
    run: Path, frame: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = frame.iloc[[28, 29, 16, 17, 18, 19]][["flow", "id", "level"]]
    new.to_csv(tmp_path / "new.csv", index=False)
    assert main(["predict", str(run), str(tmp_path / "new.csv"), "--quiet"]) == 0
    found = pd.read_csv(io.StringIO(capsys.readouterr().out)).set_index(["sequence", "step"]).sort_index()
    # the same steps under the same controls, whatever the order of the sequences
    before = pd.read_csv(run / "predictions.csv").set_index(["sequence", "step"]).sort_index()
    pd.testing.assert_frame_equal(found, before)
    new[new.id == "south"].drop(columns="level").to_csv(tmp_path / "new.csv", index=False)
    assert main(["predict", str(run), str(tmp_path / "new.csv"), "--json"]) == 0
    unknown = json.loads(capsys.readouterr().out)
    assert unknown["test_rmse"] is None and unknown["rows"] == 2
    assert_allclose(unknown["predictions"][0]["level_mean"], found.level_mean["south", 8])

    def refused(text: str) -> str:
        (tmp_path / "bad.csv").write_text(text)
        assert main(["predict", str(run), str(tmp_path / "bad.csv")]) == 2
        return capsys.readouterr().err

    assert "'east', which the model was not fitted to: choose from north, south" in refused(
        "id,flow\neast,1\n"
    )
    assert "no column 'flow', a control" in refused("id,level\nnorth,1\n")
    assert "no column 'id' to name the sequences" in refused("flow,level\n1,1\n")


def test_show(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "gpssm" in shown and "sequence column" in shown and "controls" in shown and "batch" not in shown


def test_forecasts_are_told_in_the_units_of_the_source(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean, sd, interval and density of a known forecast; the density loses log s for each entry that was observed."""
    settings = Settings(model="gpssm", target="level", controls="flow", sequence_column="id", hidden="markov")
    task = load_series_task(str(source), settings)
    record = record_of(str(source), task, settings)
    normal = RANDOM.normal(size=(4001, 2, 1))

    def known(*args: object, **settings: object) -> Forecast:
        assert_allclose(settings["y_future"], record.y_units.transform(y))
        return Forecast(
            np.ones((2, 1)), np.full((2, 1), 4.0), normal, 1.0 + 2.0 * normal, np.array([-1.0, 0.0])
        )

    monkeypatch.setattr("ppl_dgp.cli.series.forecast", known)
    y = np.array([[120.0], [np.nan]])
    with jax.enable_x64(True):
        data = task.rows(task.train_rows)
        assert_array_equal(data[0][:, 1], task.series.sequence[task.train_rows])
        rows = (np.ones((2, 1)), y, np.array([1, 1]))
        frame, measures, _ = forecasts(record, program_of(record), {}, data, *rows)
    mean, scale = record.y_units.mean[0], record.y_units.scale[0]
    assert_allclose(frame.level_mean, mean + scale)
    assert_allclose(frame.level_sd, 2.0 * scale)
    assert_allclose(frame.level_upper95, mean + scale * (1.0 + 2.0 * 1.96), rtol=0.02)
    assert_allclose(frame.log_density, [-1.0 - np.log(scale), np.nan])
    assert_allclose(measures["test_rmse"], abs(120.0 - mean - scale))
    assert frame.step.tolist() == [9, 10] and set(frame.sequence) == {"south"}


def test_an_npz_is_one_sequence(tmp_path: Path) -> None:
    path, u, y = tmp_path / "system.npz", RANDOM.normal(size=(9, 2)), RANDOM.normal(size=9)
    np.savez(path, u=u, y=y, train=np.arange(5), test=np.arange(5, 8))
    series = load_series(str(path))
    assert series.table.feature_names == ("u0", "u1") and series.table.target_names == ("y",)
    train, test = split_series(series)
    assert_array_equal(train, np.arange(5))
    assert_array_equal(test, np.arange(5, 8))
    np.savez(path, y=y)
    assert load_series(str(path)).table.X.shape == (9, 0)
    for train, test in (([0, 1, 2], [5, 6]), ([1, 0, 2], [3, 4]), ([4, 5, 6], [0, 1])):
        np.savez(path, u=u, y=y, train=np.array(train), test=np.array(test))
        with pytest.raises(DataError, match="'test' those that follow"):
            split_series(load_series(str(path)))


@pytest.mark.parametrize("resume, expected", [(False, (41, None)), (True, (21, 0))])
def test_what_is_resumed_has_its_warm_start_behind_it(
    resume: bool, expected: tuple[int, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, object] = {}

    def fitted(key: object, model: object, guide: object, *args: object, **settings: object) -> Fit:
        asked.update(settings)
        return as_fit(model, guide, {})

    monkeypatch.setattr("ppl_dgp.cli.programs.fit_series", fitted)
    settings = Settings(
        model="gpssm", hidden="conditional", inducing=3, latent=1, steps=41, kernel="matern52"
    )
    train(build(settings, 1), np.ones((5, 0)), np.ones((5, 1)), resume=resume)
    assert (asked["steps"], asked["warm_steps"]) == expected
    # expectations of this kernel have no closed form
    assert asked["warm_objective"] == PowerEP(0.0)


def test_bad_input_is_refused(
    source: Path, frame: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: str, of: Path = source) -> str:
        assert main(["fit", str(of), *arguments, "--out", str(tmp_path / "out")]) == 2
        said = capsys.readouterr().err.strip()
        assert "\n" not in said and not (tmp_path / "out").exists()
        return said

    def changed(**columns: object) -> Path:
        frame.assign(**columns).to_csv(tmp_path / "changed.csv", index=False)
        return tmp_path / "changed.csv"

    assert "'clok' to be a control: did you mean 'clock'? choose from id, clock, flow, level" in refused(
        *TINY, "--controls", "clok"
    )
    assert "'place' to name the sequences" in refused(*TINY, "--sequence-column", "place")
    assert "asked to be target and control" in refused(*TINY, "--controls", "level", "--target", "level")
    mixed = changed(id=np.where(np.arange(30) % 15 < 10, "north", "south"))
    assert "'north' of changed.csv is in 2 pieces: sort the rows" in refused(*TINY, *SERIES, of=mixed)
    gaps = changed(flow=frame.flow.where(frame.index != 3))
    assert "row 3 (counted from 0), control 'flow' of changed.csv is missing" in refused(
        *TINY, *SERIES, of=gaps
    )
    assert "'level' of changed.csv has no two different values" in refused(
        *TINY, *SERIES, of=changed(level=1.0)
    )
    assert "has a target named 'step'" in refused(*TINY, "--target", "step", of=changed(step=frame.level))
    assert "--controls is 'flow', but a gp has no time" in refused("--model", "gp", "--controls", "flow")
    assert "choose from markov" in refused(*TINY, "--hidden", "amortised")
    for option, value in (
        ("--batch", "5"),
        ("--window", "0"),
        ("--emission", "cubic"),
        ("--objective", "black-box-alpha"),
        ("--inducing-rule", "diagonal"),
    ):
        assert f"{option} is " in refused(*TINY, option, value)
    assert "--batch is 7 rows, which are no whole number" in refused(*TINY, "--window", "5", "--batch", "7")
    assert "--batch is 900, more than all windows of the 27 rows" in refused(
        *TINY, *SERIES, "--window", "5", "--batch", "900"
    )
    assert "17 steps, more than the 16 to train on of the longest" in refused(
        *TINY, *SERIES, "--window", "17", "--test-fraction", "0.2"
    )
    assert "--window is 5, but a sparse-gp has no time" in refused("--model", "sparse-gp", "--window", "5")
    assert "--split out" in refused(*TINY, *SERIES, "--split", "1")
    np.savez(tmp_path / "system.npz", u=np.ones((5, 1)), z=np.ones(5))
    assert "no array 'y'; it holds u, z" in refused(*TINY, of=tmp_path / "system.npz")
    assert main(["compare", str(source), "--model", "gpssm,deep-gp"]) == 2
    assert "steps of a series" in capsys.readouterr().err


def test_windows_are_ten_a_step_unless_told() -> None:
    settings = Settings(model="gpssm", hidden="markov", window=5)
    assert settings.resolve(100).batch == 50
    assert settings.resolve(6).batch == 50 and settings.resolve(5).batch == 45
    assert dataclasses.replace(settings, batch=20).resolve(100).batch == 20
    assert Settings(model="gpssm", hidden="markov").resolve(9000).batch is None


@pytest.mark.slow
@pytest.mark.parametrize("rule", seldom(["markov", "conditional"], 1))
def test_fit_on_windows(rule: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of two sequences with gaps; the other rule's first states are recognised by a network."""
    asked = [*SERIES, "--latent", "2", "--window", "4", "--emission", "gp", "--hidden", rule]
    folder = tmp_path / "run"
    assert main(["fit", str(source), *TINY, *asked, "--out", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert np.isfinite([found["elbo"], found["test_log_density"]]).all()
    assert found["config"]["settings"]["batch"] == 40
    assert main(["show", str(folder)]) == 0
    assert "emission" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "rules",
    seldom(
        [
            ["mean-field"],
            ["conditional"],
            ["markov", "--separate"],
            ["doubly-stochastic", "--alpha", "0.5", "--kernel", "matern52"],
        ],
        1,
    ),
    ids=str,
)
def test_fit_runs_with_every_rule(
    rules: list[str], source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = [*TINY, "--steps", "10", "--latent", "2", "--target", "level,clock", "--hidden", *rules]
    assert main(["fit", str(source), *short, "--out", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert np.isfinite([found["elbo"], found["test_log_density"]]).all() and found["steps"] == 10


@pytest.mark.slow
def test_rows_that_are_not_equally_far_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The times of steps are the last control, in units of their mean over training; what is no time is refused."""
    random, level, levels = np.random.default_rng(2), 3.0, []
    waits = random.uniform(10.0, 90.0, size=30)
    for wait in waits:
        level = level * np.exp(-0.02 * wait) + 0.05 * np.sqrt(wait) * random.normal()
        levels.append(level)
    frame = pd.DataFrame({"wait": waits, "level": levels})
    path, folder = tmp_path / "decay.csv", tmp_path / "run"
    frame.to_csv(path, index=False)
    asked = ["--step-column", "wait", "--target", "level"]
    assert main(["fit", str(path), *TINY, *asked, "--test-fraction", "0.1", "--out", str(folder)]) == 0
    capsys.readouterr()
    settings = Settings(model="gpssm", target="level", step_column="wait")
    task = load_series_task(str(path), settings)
    assert task.table.feature_names == ("wait",)
    inputs, _ = task.rows(task.train_rows)
    assert_allclose(inputs[:, 0], waits[:27] / waits[:27].mean())
    assert main(["predict", str(folder), str(path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["predictions"]) == 30

    def refused(column: np.ndarray, *arguments: str) -> str:
        frame.assign(wait=column).to_csv(tmp_path / "bad.csv", index=False)
        assert main(["fit", str(tmp_path / "bad.csv"), *TINY, *asked, *arguments]) == 2
        return capsys.readouterr().err

    assert "step column 'wait' of bad.csv is 0 in row 7 (counted from 0)" in refused(
        np.where(np.arange(30) == 7, 0.0, waits)
    )
    assert "is 1 in every row: leave --step-column out" in refused(np.ones(30))
    for option, value in (("--step-column", "wait"), ("--separate", True)):
        assert main(["fit", str(path), option, *([value] if isinstance(value, str) else [])]) == 2
        assert f"{option} is {value!r}, but a deep-gp has no time" in capsys.readouterr().err
