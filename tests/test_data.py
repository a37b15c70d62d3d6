"""Tables from every source, their splits and the standardiser."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import StandardScaler

from ppl_dgp.data import (
    BUILT_INS,
    DataError,
    Standardiser,
    Table,
    load_rows,
    load_table,
    periodic,
    sinusoids,
    split,
    step,
)

BENCHMARKS = Path(__file__).parents[2] / "shared" / "data"
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(6, 2)), RNG.normal(size=(6, 1))
FRAME = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": Y[:, 0]})


def csv(path: Path, text: str) -> str:
    (path / "t.csv").write_text(text)
    return str(path / "t.csv")


def npz(path: Path, **arrays: Any) -> str:
    np.savez(path / "t.npz", **arrays)
    return str(path / "t.npz")


# --- built-ins


def test_diabetes_is_scikit_learns_in_its_own_units() -> None:
    table = load_table("diabetes")
    data, target = load_diabetes(return_X_y=True, scaled=False)
    np.testing.assert_array_equal(table.X, data)
    np.testing.assert_array_equal(table.y[:, 0], target)
    assert table.num_splits == 0 and table.notes == ()


def test_linnerud_has_three_targets_of_which_some_can_be_chosen() -> None:
    table = load_table("linnerud")
    assert table.X.shape == table.y.shape == (20, 3)
    assert table.target_names == ("Weight", "Waist", "Pulse")
    pair = load_table("linnerud", target="Pulse, Weight")
    assert pair.target_names == ("Pulse", "Weight")
    np.testing.assert_array_equal(pair.y, table.y[:, [2, 0]])
    np.testing.assert_array_equal(pair.X, table.X)


TRUTHS = {
    "step": (step, lambda x: (x > 0) * 1.0, 0.05),
    "sinusoids": (sinusoids, lambda x: np.sin(3 * x) + np.sin(7 * x) / 2, 0.1),
    "periodic": (periodic, lambda x: np.sin(2 * np.pi * x / 0.75), 0.1),
}


@pytest.mark.parametrize("name", TRUTHS)
def test_synthetic_tables_follow_their_docstrings(name: str) -> None:
    make, truth, noise = TRUTHS[name]
    table = make(num_rows=5000, seed=3)
    train, test = split(table)
    np.testing.assert_array_equal(np.concatenate([train, test]), np.arange(5321))
    np.testing.assert_allclose(table.X[test, 0], np.linspace(-1.5, 1.5, 321), atol=1e-15)
    residual = (table.y - truth(table.X))[:, 0]
    # standard error of a standard deviation: noise / sqrt(2N)
    assert abs(residual.std() - noise) < 4 * noise / np.sqrt(2 * 5321)
    assert abs(residual.mean()) < 4 * noise / np.sqrt(5321)
    assert np.abs(table.X[train]).max() <= 1.5
    assert abs(table.X[train].var() - 0.75) < 0.05
    assert make(seed=1).fingerprint() == make(seed=1).fingerprint() != make(seed=2).fingerprint()
    assert load_table(name, seed=2).fingerprint() == make(seed=2).fingerprint()
    assert len(split(make())[0]) == 100


# --- files


@pytest.mark.parametrize("suffix", ["csv", "CSV", "parquet", "npz"])
def test_a_table_is_the_same_in_every_format(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t.{suffix}"
    if suffix.lower() == "csv":
        FRAME.to_csv(path, index=False)
    elif suffix == "parquet":
        FRAME.to_parquet(path)
    else:
        np.savez(path, X=X, y=Y, feature_names=np.array(["a", "b"]), target_name=np.array("c"))
    table = load_table(str(path))
    np.testing.assert_array_equal(table.X, X)
    np.testing.assert_array_equal(table.y, Y)
    assert (table.feature_names, table.target_names) == (("a", "b"), ("c",))
    assert table.X.dtype == table.y.dtype == np.float64
    # the digest by hand: shape, then the values in little-endian order
    by_hand = hashlib.sha256(b"(6, 2)" + X.tobytes() + b"(6, 1)" + Y.tobytes()).hexdigest()
    assert table.fingerprint() == by_hand


def test_target_columns_by_name(tmp_path: Path) -> None:
    source = csv(tmp_path, "a, b ,c\n1,2,3\n4,5,7\n7,8,0\n")
    assert load_table(source).target_names == ("c",)
    table = load_table(source, target="c, a")
    assert (table.feature_names, table.target_names) == (("b",), ("c", "a"))
    np.testing.assert_array_equal(table.y, [[3, 1], [7, 4], [0, 7]])
    FRAME.rename(columns={"a": "a, of b"}).to_csv(source, index=False)
    assert load_table(source, target="a, of b").target_names == ("a, of b",)


def test_a_column_of_row_numbers_is_no_feature(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    FRAME.to_csv(path)
    table = load_table(str(path))
    assert table.feature_names == ("a", "b")
    assert table.notes == ("left out the first column: it has no name and counts the rows",)


def test_number_names_that_count_the_columns_are_names(tmp_path: Path) -> None:
    assert load_table(csv(tmp_path, "0,1\n5,3\n4,5\n")).feature_names == ("0",)


def test_numbers_of_every_kind(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "integer": pd.array([1, 2, 3], dtype="Int64"),
            "truth": [True, False, True],
            "text": ["1", "2.5", "4"],
            "single": np.array([1.5, 2, 3], np.float32),
            "y": [1, 2, 4],
        }
    )
    frame.to_parquet(tmp_path / "t.parquet")
    table = load_table(str(tmp_path / "t.parquet"))
    np.testing.assert_array_equal(table.X, [[1, 1, 1, 1.5], [2, 0, 2.5, 2], [3, 1, 4, 3]])


def test_npz_target_by_name_and_other_arrays_ignored(tmp_path: Path) -> None:
    other = np.array([{"python": "object"}], dtype=object)
    source = npz(tmp_path, X=X, y=Y[:, 0], rates=np.hstack([Y, 2 * Y]), other=other, feature_names=other)
    assert load_table(source).target_names == ("y",)
    table = load_table(source, target="rates")
    assert (table.feature_names, table.target_names) == (("x0", "x1"), ("rates0", "rates1"))
    np.testing.assert_array_equal(table.y, np.hstack([Y, 2 * Y]))
    assert load_table(npz(tmp_path, X=X[:, 0], y=Y)).X.shape == (6, 1)
    names = np.array(["c", "d"])
    clash = load_table(npz(tmp_path, X=X, y=Y, feature_names=names, target_name=np.array("c")))
    assert (clash.feature_names, clash.target_names) == (("x0", "x1"), ("c",))


# --- splits


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_splits_of_an_npz(tmp_path: Path, dtype: type) -> None:
    train: np.ndarray = np.array([[0, 1, 2], [5, 4, 3]], dtype)
    table = load_table(npz(tmp_path, X=X, y=Y, train=train, test=np.array([[3, 4], [0, 1]], dtype)))
    assert table.num_splits == 2
    np.testing.assert_array_equal(split(table)[0], [0, 1, 2])
    np.testing.assert_array_equal(split(table, 1)[0], [5, 4, 3])
    np.testing.assert_array_equal(split(table, 1, test_fraction=0.5, seed=7)[1], [0, 1])
    train_rows, test_rows = split(table, 1, test_fraction=0)
    np.testing.assert_array_equal(train_rows, [5, 4, 3])
    assert len(test_rows) == 0
    for bad in (-1, 2):
        with pytest.raises(DataError, match=f"split {bad} is not one of the 2 .* from 0 to 1"):
            split(table, bad)


@pytest.mark.parametrize("half", ["train", "test"])
def test_one_half_of_a_split_leaves_the_rest_as_the_other(tmp_path: Path, half: str) -> None:
    table = load_table(npz(tmp_path, X=X, y=Y, **{half: np.array([4, 0, 1])}))
    given_half, rest = split(table) if half == "train" else split(table)[::-1]
    np.testing.assert_array_equal(given_half, [4, 0, 1])
    np.testing.assert_array_equal(rest, [2, 3, 5])


@given(
    num_rows=st.integers(4, 200),
    fraction=st.floats(0, 0.6),
    seed=st.integers(0, 2**32),
    number=st.none() | st.integers(0, 3),
)
@settings(max_examples=50, deadline=None)
def test_random_split_is_a_partition(num_rows: int, fraction: float, seed: int, number: int | None) -> None:
    x = np.arange(num_rows, dtype=np.float64)[:, None]
    table = Table(x, x, ("x",), ("y",))
    train, test = split(table, number, fraction, seed)
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(num_rows))
    assert len(test) == (0 if fraction == 0 else max(1, round(fraction * num_rows)))
    again = split(table, number, fraction, seed)
    np.testing.assert_array_equal(train, again[0])


def test_random_splits_differ_by_seed_and_by_number() -> None:
    table = load_table("diabetes")
    tests = [split(table)[1], split(table, 1)[1], split(table, seed=1)[1]]
    assert len({tuple(rows) for rows in tests}) == 3
    np.testing.assert_array_equal(split(table, 0)[1], tests[0])


# --- cleaning


def test_missing_rows_are_dropped_and_the_splits_remapped(tmp_path: Path) -> None:
    holes, target = X.copy(), Y.copy()
    holes[1, 0], target[4, 0] = np.nan, np.inf
    source = npz(
        tmp_path, X=holes, y=target, train=np.array([[5, 1, 0], [2, 3, 4]]), test=np.array([[4, 2], [0, 1]])
    )
    with pytest.raises(
        DataError, match=r"row 1 \(counted from 0\), column 'x0' of t.npz is missing .*--drop-missing"
    ):
        load_table(source)
    table = load_table(source, drop_missing=True)
    keep = [0, 2, 3, 5]
    np.testing.assert_array_equal(table.X, X[keep])
    np.testing.assert_array_equal(table.y, Y[keep])
    assert table.notes == ("dropped 2 rows with missing or infinite values",)
    # each index still means the row that it meant
    np.testing.assert_array_equal(table.X[split(table, 0)[0]], X[[5, 0]])
    np.testing.assert_array_equal(table.X[split(table, 0)[1]], X[[2]])
    np.testing.assert_array_equal(table.X[split(table, 1)[0]], X[[2, 3]])
    np.testing.assert_array_equal(table.X[split(table, 1)[1]], X[[0]])


def test_a_constant_feature_is_dropped_with_a_note(tmp_path: Path) -> None:
    table = load_table(csv(tmp_path, "a,b,c\n0.1,1,3\n0.1,2,4\n0.1,3,6\n"))
    assert table.feature_names == ("b",)
    assert table.notes == ("dropped constant feature 'a'",)
    np.testing.assert_array_equal(table.X, [[1], [2], [3]])


# --- rows to predict at


def test_rows_to_predict_at_need_no_target_and_may_be_one(tmp_path: Path) -> None:
    one, y, notes = load_rows(csv(tmp_path, "b,extra,a\n1,red,2\n"), ("a", "b"), ("c",))
    np.testing.assert_array_equal(one, [[2, 1]])
    assert y is None and notes == ()
    rows, y, _ = load_rows(csv(tmp_path, "c,a,b\n1,2,3\n1,2,3\n"), ["a", "b"], ["c"])
    np.testing.assert_array_equal(rows, [[2, 3], [2, 3]])
    np.testing.assert_array_equal(y, [[1], [1]])
    _, y, _ = load_rows(csv(tmp_path, "c,a,b\n,2,3\n,5,6\n"), ["a", "b"], ["c"])
    assert y is None
    rows, _, notes = load_rows(csv(tmp_path, "a,b\n,3\n5,6\n"), ["a", "b"], drop_missing=True)
    np.testing.assert_array_equal(rows, [[5, 6]])
    assert notes == ("dropped 1 row with missing or infinite values",)
    rows, y, _ = load_rows(npz(tmp_path, X=X[:1]), ["x1"], ["y"])
    np.testing.assert_array_equal(rows, X[:1, 1:])
    assert y is None


@pytest.mark.parametrize("source", BUILT_INS)
def test_rows_of_a_table_are_the_table(source: str) -> None:
    table = load_table(source)
    rows, y, _ = load_rows(source, table.feature_names, table.target_names)
    np.testing.assert_array_equal(rows, table.X)
    np.testing.assert_array_equal(y, table.y)


# --- standardising

columns = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=8),
    elements=st.floats(-1e9, 1e9),
)


@given(columns)
@example(np.array([[0.0], [5e-324], [5e-324], [5e-324]]))
@settings(max_examples=100, deadline=None)
def test_standardising_round_trip(array: np.ndarray) -> None:
    standardiser = Standardiser.fit(array)
    standard = standardiser.transform(array)
    assert np.isfinite(standard).all() and (standardiser.scale > 0).all()
    tolerance = 1e-14 * np.abs(array).max(axis=0)
    assert (np.abs(standardiser.inverse(standard) - array) <= tolerance).all()
    again = Standardiser.from_dict(json.loads(json.dumps(standardiser.to_dict())))
    np.testing.assert_array_equal(again.mean, standardiser.mean)
    np.testing.assert_array_equal(again.scale, standardiser.scale)


def test_standardiser_against_scikit_learn() -> None:
    data = load_table("diabetes").X
    ours, theirs = Standardiser.fit(data), StandardScaler().fit(data)
    np.testing.assert_allclose(ours.mean, theirs.mean_, rtol=1e-13)
    np.testing.assert_allclose(ours.scale, theirs.scale_, rtol=1e-13)
    np.testing.assert_allclose(ours.transform(data[:3]), theirs.transform(data[:3]), rtol=1e-12, atol=1e-13)
    stacked = np.stack([data, data])
    np.testing.assert_array_equal(ours.transform(stacked)[1], ours.transform(data))


def test_a_feature_constant_in_the_training_half_has_scale_one(tmp_path: Path) -> None:
    features = np.column_stack([np.r_[[0.1] * 4, 0.3, 0.4], X[:, 0], np.r_[[1e9] * 3, 1e9 + 1e-7, 2, 3]])
    table = load_table(npz(tmp_path, X=features, y=Y, train=np.arange(4)))
    train, test = split(table)
    standardiser = Standardiser.fit(table.X[train])
    assert standardiser.scale[0] == standardiser.scale[2] == 1
    np.testing.assert_allclose(standardiser.transform(table.X[test])[:, 0], [0.2, 0.3])


@pytest.mark.parametrize("size", [1e-250, 1e250])
def test_extreme_units_neither_overflow_nor_vanish(size: float) -> None:
    standardiser = Standardiser.fit(size * X)
    np.testing.assert_allclose(standardiser.transform(size * X), Standardiser.fit(X).transform(X), rtol=1e-12)


# --- benchmark tables, against the literature's N and D


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "rows", "features", "splits", "train", "constant"),
    [
        ("uci/boston", 506, 13, 20, 455, 0),
        ("uci/energy", 768, 8, 20, 691, 0),
        ("uci/naval", 11934, 14, 20, 10741, 2),
        ("uci/yacht", 308, 6, 20, 277, 0),
        ("classification/banana", 5300, 2, 1, 400, 0),
    ],
)
def test_benchmark_tables(
    name: str, rows: int, features: int, splits: int, train: int, constant: int
) -> None:
    path = BENCHMARKS / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"the benchmark tables are not part of this repository: no {name}.npz")
    table = load_table(str(path))
    assert (table.X.shape, table.y.shape) == ((rows, features), (rows, 1))
    assert (table.num_splits, len(table.notes)) == (splits, constant)
    first, second = split(table)
    assert len(first) == train
    np.testing.assert_array_equal(np.sort(np.concatenate([first, second])), np.arange(rows))
    if (
        name == "uci/boston"
    ):  # median home value, 1000 USD: mean 22.53, standard deviation 9.19 in the literature
        assert table.target_names == ("MEDV",)
        np.testing.assert_allclose([table.y.mean(), table.y.std()], [22.533, 9.188], atol=1e-3)
