"""Every kind of bad input is a DataError of one line: the cause and the remedy."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ppl_dgp.data import BUILT_INS, DataError, Standardiser, Table, load_rows, load_table, split, step

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(6, 2)), RNG.normal(size=(6, 1))
FRAME = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": Y[:, 0]})


def csv(path: Path, text: str) -> str:
    (path / "t.csv").write_text(text)
    return str(path / "t.csv")


def npz(path: Path, **arrays: Any) -> str:
    np.savez(path / "t.npz", **arrays)
    return str(path / "t.npz")


def _damaged(path: Path) -> str:
    source = npz(path, X=X, y=Y)
    content = Path(source).read_bytes()
    Path(source).write_bytes(content[: len(content) // 2])
    return source


def _bytes(path: Path, name: str, content: bytes) -> str:
    (path / name).write_bytes(content)
    return str(path / name)


def _bare_array(path: Path) -> str:
    with open(path / "t.npz", "wb") as file:
        np.save(file, X)
    return str(path / "t.npz")


def _foreign_member(path: Path) -> str:
    with zipfile.ZipFile(path / "t.npz", "w") as archive:
        archive.writestr("X", "no array")
        archive.writestr("y", "no array")
    return str(path / "t.npz")


def _folder(path: Path) -> str:
    (path / "t.csv").mkdir()
    return str(path / "t.csv")


def _parquet(path: Path, **columns: object) -> str:
    pd.DataFrame(columns).to_parquet(path / "t.parquet")
    return str(path / "t.parquet")


BAD: dict[str, tuple[Callable[[Path], str], str]] = {
    "no file": (lambda p: str(p / "none.csv"), r"no file '.*none.csv': check the path"),
    "no npz": (lambda p: str(p / "none.npz"), r"no file '.*none.npz'"),
    "no parquet": (lambda p: str(p / "none.parquet"), r"no file '.*none.parquet'"),
    "a folder": (_folder, "is not a file"),
    "extension": (lambda p: "t.ods", r"unknown extension '.ods' .*\.xlsx, \.parquet, \.npz .*diabetes"),
    "built-in": (
        lambda p: "bosten",
        "unknown source 'bosten': .*diabetes, linnerud, step, sinusoids, periodic",
    ),
    "nothing": (lambda p: "", "unknown source ''"),
    "text column": (
        lambda p: csv(p, "a,b,c\n1,2,3\n4,red,5\n"),
        r"column 'b' of t.csv is not numeric \(row 1 holds 'red'\): encode",
    ),
    "text target": (lambda p: csv(p, "a,c\n1,x\n4,y\n"), "column 'c' of t.csv is not numeric"),
    "times": (
        lambda p: _parquet(p, a=pd.to_timedelta([1, 2], unit="s"), y=[1.0, 2]),
        "column 'a' .* not numeric",
    ),
    "lists": (lambda p: _parquet(p, a=[[1], [2, 3]], y=[1.0, 2]), "column 'a' .* not numeric"),
    "missing": (
        lambda p: csv(p, "a,b,c\n1,2,3\n4,,5\n6,7,8\n"),
        r"row 1 .*column 'b' of t.csv is missing \(NaN\)",
    ),
    "infinite": (lambda p: csv(p, "a,b,c\n1,2,3\n4,5,-inf\n"), "row 1 .*column 'c' of t.csv is infinite"),
    "constant target": (lambda p: csv(p, "a,c\n1,2\n3,2\n4,2\n"), "target 'c' of t.csv is constant: choose"),
    "constant features": (lambda p: csv(p, "a,b,c\n1,2,1\n1,2,3\n"), "every feature of t.csv is constant"),
    "one row": (lambda p: csv(p, "a,c\n1,2\n"), "t.csv: found 1 row, expected at least 2"),
    "no rows": (lambda p: csv(p, "a,c\n"), "t.csv: found 0 rows, expected at least 2"),
    "one column": (lambda p: csv(p, "c\n1\n2\n"), "no feature left besides the target"),
    "empty csv": (lambda p: csv(p, ""), "t.csv is empty: give"),
    "blank csv": (lambda p: csv(p, "\n\n"), "t.csv is empty"),
    "empty npz": (lambda p: _bytes(p, "t.npz", b""), "t.npz is empty"),
    "empty parquet": (lambda p: _bytes(p, "t.parquet", b""), "t.parquet is empty"),
    "no columns": (lambda p: _parquet(p), "has no columns"),
    "ragged": (lambda p: csv(p, "a,c\n1,2\n1,2,3\n"), "t.csv cannot be read as csv .*damaged"),
    "too wide": (lambda p: csv(p, "a,c\n1,2,3\n4,5,6\n"), "t.csv cannot be read as csv"),
    "not utf-8": (
        lambda p: _bytes(p, "t.csv", "größe;b\n1;2\n".encode("latin-1")),
        "t.csv is not in UTF-8.*save it",
    ),
    "no header": (lambda p: csv(p, "1.5,2,2\n4,5,6\n7,8,8\n"), "numbers where column names should be"),
    "corrupt parquet": (
        lambda p: _bytes(p, "t.parquet", b"PAR1 no more"),
        "t.parquet cannot be read as parquet",
    ),
    "corrupt npz": (lambda p: _bytes(p, "t.npz", b"PK\x03\x04 no more"), "t.npz cannot be read as npz"),
    "not an npz": (lambda p: _bytes(p, "t.npz", b"text"), "t.npz cannot be read as npz"),
    "cut npz": (_damaged, "t.npz cannot be read as npz"),
    "bare array": (_bare_array, "t.npz cannot be read as npz .*numpy.savez"),
    "foreign member": (_foreign_member, "t.npz cannot be read as npz"),
    "no X": (lambda p: npz(p, u=X, y=Y), "no array 'X'; it holds u, y: store"),
    "no X, no y": (lambda p: npz(p, u=X, v=Y), "no array 'X' and no array 'y'; it holds u, v"),
    "objects": (lambda p: npz(p, X=X.astype(object), y=Y), "t.npz cannot be read as npz .*objects"),
    "text array": (lambda p: npz(p, X=X, y=np.array(["a"] * 6)), "'y' of t.npz is not numeric"),
    "complex array": (lambda p: npz(p, X=X + 1j, y=Y), "'X' of t.npz is not numeric"),
    "cube": (lambda p: npz(p, X=X[None], y=Y), r"'X' of t.npz: found shape \(1, 6, 2\)"),
    "lengths": (lambda p: npz(p, X=X, y=Y[:5]), "'X' of t.npz has 6 rows but 'y' has 5"),
    "index above": (
        lambda p: npz(p, X=X, y=Y, train=np.array([0, 6])),
        "'train' .* row 6, out of range: .* 0 to 5",
    ),
    "index below": (lambda p: npz(p, X=X, y=Y, test=np.array([[0, -1]])), "'test' .* row -1, out of range"),
    "mask": (
        lambda p: npz(p, X=X, y=Y, train=np.ones(6, bool)),
        "'train' of t.npz: found bool .*flatnonzero",
    ),
    "index cube": (
        lambda p: npz(p, X=X, y=Y, train=np.zeros((1, 1, 2), int)),
        r"shape \(1, 1, 2\), expected",
    ),
    "split counts": (
        lambda p: npz(p, X=X, y=Y, train=np.array([[0, 1], [1, 2]]), test=np.array([3])),
        "2 splits in 'train' but 1 in 'test'",
    ),
    "leak": (
        lambda p: npz(p, X=X, y=Y, train=np.array([[0, 1], [1, 2]]), test=np.array([[3], [2]])),
        "row 2 of t.npz is both in 'train' and in 'test' of split 1",
    ),
    "split of one": (lambda p: npz(p, X=X, y=Y, train=np.array([1])), "training split of t.npz: found 1 row"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_of_cause_and_remedy(tmp_path: Path, case: str) -> None:
    make, message = BAD[case]
    source = make(tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        load_table(source)
    assert "\n" not in str(caught.value) and ": " in str(caught.value)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("t.csv", "d", "t.csv has no column 'd' to be the target: choose from a, b, c"),
        ("t.csv", "a,d", "no column 'd'"),
        ("t.csv", "a,b,c", "no feature left"),
        ("t.npz", "d", "no array 'd'; it holds X, y, train"),
        ("t.npz", "train", "'train' of t.npz cannot be the target"),
        ("diabetes", "age", "diabetes has no column 'age' to be the target: .*choose from target"),
        ("step", "z", "choose from y"),
    ],
)
def test_unknown_target_lists_what_there_is(tmp_path: Path, source: str, target: str, message: str) -> None:
    FRAME.to_csv(tmp_path / "t.csv", index=False)
    npz(tmp_path, X=X, y=Y, train=np.arange(3))
    where = source if source in BUILT_INS else str(tmp_path / source)
    with pytest.raises(DataError, match=message):
        load_table(where, target=target)


def test_dropping_all_rows_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"found 1 row \(dropped 2 rows with missing or infinite values\), expected"
    ):
        load_table(csv(tmp_path, "a,c\n1,\n2,\n3,4\n"), drop_missing=True)


def test_synthetic_arguments_are_checked() -> None:
    with pytest.raises(DataError, match="num_rows: found 1 for step"):
        step(num_rows=1)
    with pytest.raises(DataError, match="seed: found -1"):
        load_table("step", seed=-1)


def test_a_table_checks_its_shapes() -> None:
    with pytest.raises(DataError, match="give one name per column"):
        Table(X, Y, ("a",), ("c",))
    with pytest.raises(DataError, match="one entry per split"):
        Table(X, Y, ("a", "b"), ("c",), train=(np.arange(2),))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,c\n1,2\n", "no column 'b', which the model was fitted on; it holds a, c"),
        ("a,b\n1,x\n", "column 'b' of t.csv is not numeric"),
        ("a,b\n1,\n", "row 0 .*column 'b' of t.csv is missing"),
        ("a,b\n", "no row to predict at"),
    ],
)
def test_bad_rows_to_predict_at(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_rows(csv(tmp_path, text), ("a", "b"))


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_test_fraction_is_checked(fraction: float) -> None:
    with pytest.raises(DataError, match=r"test fraction: found .* in \[0, 1\)"):
        split(load_table("diabetes"), test_fraction=fraction)


def test_a_split_leaves_rows_to_train_on() -> None:
    with pytest.raises(DataError, match="20 rows, which leaves 1 to train on"):
        split(load_table("linnerud"), test_fraction=0.95)
    with pytest.raises(DataError, match="neither can be negative"):
        split(load_table("linnerud"), split=-1)


@pytest.mark.parametrize(
    "values",
    [{}, {"mean": [0.0]}, {"mean": [0.0], "scale": [0.0]}, {"mean": [0.0], "scale": [1.0, 1.0]},
     {"mean": ["a"], "scale": [1.0]}, {"mean": [None], "scale": [1.0]}, {"mean": 0.0, "scale": 1.0}],
)  # fmt: skip
def test_a_damaged_standardiser_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(DataError, match="'mean' and 'scale'.*fit again"):
        Standardiser.from_dict(values)


def test_standardising_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="N > 0"):
        Standardiser.fit(np.empty((0, 2)))
