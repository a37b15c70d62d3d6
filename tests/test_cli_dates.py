"""Words and dates in the tables of a gplvm and a gpssm."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from ppl_dgp.cli import main, run_directory
from ppl_dgp.data import DataError, load_columns, load_entries, load_series, load_steps
from ppl_dgp.data.step_times import equal_steps, span
from ppl_dgp.diagnostics.arviz_api import group, read_netcdf

RNG = np.random.default_rng(0)
DAYS = pd.date_range("2024-01-30", periods=24, freq="D")
#: each a day or two after the one before
UNEVEN = pd.DatetimeIndex(np.datetime64("2024-01-30") + np.cumsum(RNG.integers(1, 3, 24)))
TINY = ["--inducing", "4", "--steps", "6", "--quiet"]


def _frame(when: pd.DatetimeIndex) -> pd.DataFrame:
    t = np.linspace(0.0, 3.0, 24)
    level = np.sin(t) + 0.1 * RNG.normal(size=24)
    weather = np.where(t % 1.0 < 0.4, "wet", "dry")
    return pd.DataFrame(
        {"when": when.strftime("%Y-%m-%d"), "weather": weather, "level": level, "flow": np.cos(t)}
    )


def _written(folder: Path, frame: pd.DataFrame, name: str = "t.csv") -> str:
    frame.to_csv(folder / name, index=False)
    return str(folder / name)


def test_dates_are_entries_in_days_and_words_are_labels_or_refused(tmp_path: Path, refuses) -> None:
    frame = _frame(DAYS)
    frame.loc[3, "when"] = None
    source = _written(tmp_path, frame)
    table, labels = load_columns(source, "weather")
    assert table.target_names == ("when", "level", "flow") and set(labels) == {"wet", "dry"}
    days = (pd.to_datetime(frame["when"]) - pd.Timestamp("1970-01-01")).dt.days
    assert_allclose(table.y[:, 0], days)
    assert "when is a date, in days since 1970-01-01 (UTC)" in table.notes
    new = _written(tmp_path, pd.DataFrame({"when": ["1970-01-03"]}), "new.csv")
    assert load_entries(new, table.target_names, 0, table.encoding)[0, 0] == 2.0
    refuses(["fit", source, "--model", "gplvm", *TINY], "'weather'", "'wet'", "--target", "--ignore weather")


def test_controls_of_words_and_dates_are_numbers(tmp_path: Path) -> None:
    frame = _frame(DAYS)
    table = load_series(_written(tmp_path, frame), "level", "when,weather,flow").table
    assert table.feature_names == ("when", "weather=dry", "weather=wet", "flow")
    assert_allclose(table.X[:, 2], frame["weather"] == "wet")
    assert_allclose(np.diff(table.X[:, 0]), 1.0)
    shown = ("level",), ("0",), "level", "when,weather,flow"
    u, _, _ = load_steps(_written(tmp_path, frame[5:7]), table.feature_names, *shown, encoding=table.encoding)
    assert_allclose(u, table.X[5:7])
    with pytest.raises(DataError, match=r"row 0 .*'weather'.*'hail'"):
        strange = _written(tmp_path, frame[5:7].assign(weather="hail"))
        load_steps(strange, table.feature_names, *shown, encoding=table.encoding)


def test_dates_tell_how_long_steps_are(tmp_path: Path) -> None:
    even = load_series(_written(tmp_path, _frame(DAYS)), "level", "flow", None, "when")
    assert even.table.feature_names == ("flow",) and np.unique(np.diff(even.days)).tolist() == [1.0]
    assert "the dates of when are 1 day apart: steps are equally long" in even.table.notes
    left = load_series(_written(tmp_path, _frame(DAYS)), "level", "flow").table.notes
    assert any(
        "'when'" in note and "are 1 day apart, and steps count as equally long" in note for note in left
    )
    left = load_series(_written(tmp_path, _frame(UNEVEN)), "level", "flow").table.notes
    assert any("are 1 day to 2 days apart" in note and "--step-column when" in note for note in left)
    frame = _frame(UNEVEN).assign(place=["a"] * 12 + ["b"] * 12)
    source = _written(tmp_path, frame)
    uneven = load_series(source, "level", "flow", "place", "when")
    assert uneven.table.feature_names == ("flow", "when")
    apart = np.diff(UNEVEN.to_numpy()).astype("timedelta64[D]").astype(float)
    found = uneven.table.X[:, 1]
    assert_allclose(np.delete(found, [0, 12]), np.delete(apart, 11))
    assert found[0] == found[12] == np.median(np.delete(apart, 11))
    # what comes after day 100 and day 200 of the two
    new = frame[10:14].assign(when=["1970-04-14", "1970-04-15", "1970-07-21", "1970-07-25"])
    names = ("flow", "when"), ("level",), ("a", "b"), "level", "flow", "place", "when"
    u, _, sequence = load_steps(_written(tmp_path, new), *names, ends=((98.0, 100.0), (200.0,)))
    assert_allclose(u[:, 1], [3.0, 1.0, 1.0, 4.0])
    assert sequence.tolist() == [0, 0, 1, 1]
    with pytest.raises(DataError, match="row 2 .* is not after 1970-07-21, "):
        load_steps(_written(tmp_path, new), *names, ends=((98.0, 100.0), (201.0,)))
    with pytest.raises(DataError, match="row 5 .*'when'.*sort"):
        load_series(
            _written(tmp_path, frame.assign(when=frame["when"].where(frame.index != 5, "2020-01-01"))),
            *names[3:],
        )


@pytest.mark.parametrize(
    "dates, told",
    [
        (["2024-01-31", "2024-02-29", "2024-03-31"], "1 month"),
        (["2023-11-15", "2024-02-15", "2024-05-15"], "3 months"),
        (["2024-01-01", "2024-01-02", "2024-01-04"], None),
        (["2024-01-01T00:00", "2024-01-01T06:00", "2024-01-01T12:00"], "6 hours"),
    ],
)
def test_months_are_equally_long(dates: list[str], told: str | None) -> None:
    days = np.array(dates, "datetime64[s]").astype(float) / 86400.0
    assert equal_steps(days, np.zeros(3, int)) == told
    assert span(1.0 / 1440.0) == "1 minute"


@pytest.mark.parametrize(
    "new, said",
    [
        (["2024-03-31", "2024-04-30"], None),
        (["2024-04-30", "2024-05-31"], "goes on at 2024-04-30 after 2024-02-29"),
        (["2024-02-29", "2024-03-31"], "row 0 .* is not after 2024-02-29"),
    ],
    ids=["next", "a gap", "again"],
)
def test_equally_long_steps_go_on(tmp_path: Path, new: list[str], said: str | None) -> None:
    """Without a gap, which would be forecast as if it were none."""
    source = _written(tmp_path, pd.DataFrame({"when": new, "flow": [1.0, 2.0]}))
    ends = ((np.array(["2024-01-31", "2024-02-29"], "datetime64[D]").astype(float)).tolist(),)
    given = source, ("flow",), ("level",), ("all",), "level", "flow", None, "when"
    if said is None:
        assert load_steps(*given, ends=ends)[0].tolist() == [[1.0], [2.0]]
        return
    with pytest.raises(DataError, match=said):
        load_steps(*given, ends=ends)


def test_a_run_of_dates_goes_on_after_its_last(tmp_path: Path, capsys, refuses) -> None:
    frame, folder = _frame(UNEVEN), tmp_path / "run"
    source = _written(tmp_path, frame)
    named = ["--target", "level", "--controls", "weather", "--step-column", "when"]
    argv = ["fit", source, "--model", "gpssm", *named, *TINY, "--test-fraction", "0", "--out", str(folder)]
    assert main(argv) == 0
    last = (UNEVEN[-2:] - pd.Timestamp("1970-01-01")).days
    assert run_directory.read(folder).ends == (tuple(last),)
    capsys.readouterr()
    refuses(["predict", str(folder), source], f"is not after {UNEVEN[-1]:%Y-%m-%d}")
    new = frame[:3].assign(when=(UNEVEN[:3] + pd.Timedelta(days=100)).strftime("%Y-%m-%d"))
    assert main(["predict", str(folder), _written(tmp_path, new, "new.csv"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["predictions"]) == 3


@pytest.mark.slow
def test_equal_steps_and_a_gplvm_with_dates_are_fitted(tmp_path: Path, capsys, refuses) -> None:
    source, folder = _written(tmp_path, _frame(DAYS)), tmp_path / "series"
    argv = ["fit", source, "--model", "gpssm", "--target", "level", "--step-column", "when", *TINY]
    assert main([*argv, "--out", str(folder)]) == 0 and run_directory.read(folder).feature_names == ()
    assert len(run_directory.read(folder).ends[0]) == 2
    capsys.readouterr()
    refuses(["predict", str(folder), source], "is not after")
    folder = tmp_path / "latent"
    argv = ["fit", source, "--model", "gplvm", "--latent", "1", "--target", "weather", *TINY]
    assert main([*argv, "--out", str(folder)]) == 0
    assert main(["predict", str(folder), source, "--quiet"]) == 0
    data = read_netcdf(folder / "posterior.nc")
    assert group(data, "observed_data")["target"].values.tolist() == ["when", "level", "flow"]
