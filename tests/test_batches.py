"""Rows block by block: each once an epoch, the same from every kind of source, standardised as NumPy would."""

import itertools
import tracemalloc

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ppl_dgp.data import DataError, Standardiser, load_table, open_rows
from ppl_dgp.data.column_statistics import ColumnStatistics

ROWS, BLOCK = 103, 10
NAMES = ("a", "b", "y")


@pytest.fixture(scope="module")
def table():
    return np.random.default_rng(0).normal(size=(ROWS, 3)) * [1.0, 1e6, 0.01] + [5.0, 0.0, -3.0]


def blocks_of(table):
    return [table[at : at + BLOCK] for at in range(0, len(table), BLOCK)]


def write_parquet(path, table, group=BLOCK):
    pq.write_table(pa.table(dict(zip(NAMES, table.T, strict=True))), path, row_group_size=group)


def sources(table, folder):
    """The same rows in the same blocks, from every kind of source."""
    write_parquet(folder / "one.parquet", table)
    (folder / "many").mkdir()
    for number, at in enumerate((0, 40, 60)):
        write_parquet(folder / "many" / f"{number}.parquet", table[at : (40, 60, ROWS)[number]])
    np.save(folder / "all.npy", table)
    np.save(folder / "x.npy", np.asfortranarray(table[:, :2]))
    np.save(folder / "y.npy", table[:, 2])
    fields = np.array([tuple(row) for row in table], [(name, float) for name in NAMES])
    np.save(folder / "named.npy", fields)
    return {
        "file": open_rows(folder / "one.parquet"),
        "directory": open_rows(str(folder / "many"), "y"),
        "npy": open_rows(folder / "all.npy", block_rows=BLOCK),
        "numbered": open_rows(folder / "all.npy", 2, block_rows=BLOCK),
        "named": open_rows(folder / "named.npy", "y", block_rows=BLOCK),
        "pair": open_rows((folder / "x.npy", folder / "y.npy"), block_rows=BLOCK),
        "function": open_rows(lambda: ((block[:, :2], block[:, 2]) for block in blocks_of(table))),
        "list": open_rows([(block[:, :2], block[:, 2:]) for block in blocks_of(table)]),
    }


def first(rows, number, size=7, **settings):
    return list(itertools.islice(rows.batches([1, 2], size, **settings), number))


def equal(one, other):
    for ours, theirs in zip(one, other, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(a, b)


def test_every_source_gives_the_same_numbers(table, tmp_path):
    found = sources(table, tmp_path)
    whole = {name: first(rows, 40, window=11) for name, rows in found.items()}
    for name in found:
        equal(whole[name], whole["file"])
        if not found[name].source.in_order:
            equal([found[name].sample(50)], [found["file"].sample(50)])
    # smaller windows: only what can be read in any order has its blocks shuffled
    apart = {name: first(rows, 40, window=2) for name, rows in found.items()}
    for name in ("directory", "npy", "numbered", "named", "pair"):
        equal(apart[name], apart["file"])
    equal(apart["list"], apart["function"])
    assert np.any(apart["list"][0][2] != apart["file"][0][2])


@pytest.mark.parametrize("window", [1, 2, 11])
@pytest.mark.parametrize("ordered", [False, True])
def test_each_epoch_has_each_row_once(table, window, ordered):
    batches = [(block[:, :2], block[:, 2]) for block in blocks_of(table)]
    rows = open_rows(batches) if ordered else open_rows((table[:, :2], table[:, 2]), block_rows=BLOCK)
    drawn = first(rows, 3 * ROWS, size=5, window=window)
    index = np.concatenate([each[2] for each in drawn])
    epochs = index[: 3 * ROWS].reshape(3, ROWS)
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(ROWS))
    assert (epochs[0] != epochs[1]).any() and (epochs[0][:BLOCK] != np.arange(BLOCK)).any()
    for x, y, numbers in drawn:
        np.testing.assert_array_equal(np.hstack([x, y]), table[numbers])


@pytest.mark.parametrize("begin", [0, 7, 10, 63, 103, 104, 999])
def test_rows_go_on_where_they_stopped(table, begin):
    rows = open_rows(table, block_rows=BLOCK)
    ahead = np.concatenate([each[2] for each in first(rows, 1100, size=1, window=3)])
    later = np.concatenate([each[2] for each in first(rows, 12, begin=begin, window=3)])
    np.testing.assert_array_equal(later, ahead[begin : begin + len(later)])


def test_parts_share_the_rows(table):
    rows = open_rows(table, block_rows=BLOCK)
    seen = []
    for part, count in enumerate((34, 34, 35)):
        seen += [each[2] for each in first(rows, count, size=1, part=part, parts=3)]
    np.testing.assert_array_equal(np.sort(np.concatenate(seen)), np.arange(ROWS))


def test_standardisation_is_that_of_numpy(table, tmp_path):
    for rows in sources(table, tmp_path).values():
        found = rows.standardised()
        for units, columns in ((found.x_units, slice(2)), (found.y_units, slice(2, 3))):
            np.testing.assert_allclose(units.mean, table.mean(0)[columns], rtol=1e-12, atol=1e-9)
            np.testing.assert_allclose(units.scale, table.std(0)[columns], rtol=1e-12)
        x, y, index = first(found, 1, size=ROWS, window=11)[0]
        wanted = Standardiser(table.mean(0), table.std(0)).transform(table[index])
        np.testing.assert_allclose(np.hstack([x, y]), wanted, rtol=1e-9, atol=1e-12)
        part = rows.moments(0, 2).merged(rows.moments(1, 2))
        np.testing.assert_allclose(part.scale, table.std(0), rtol=1e-12)


def test_standardisation_is_guarded():
    values = np.array([[1e200, 7.0, 0.1], [-1e200, 7.0, 0.1 + 1e-17], [3e200, 7.0, 0.1]])
    found = ColumnStatistics.of(values[:2]).merged(ColumnStatistics.of(values[2:])).units()
    alone = Standardiser.fit(values)
    np.testing.assert_allclose(found.scale, alone.scale, rtol=1e-12)
    np.testing.assert_allclose(found.mean, alone.mean, rtol=1e-12)
    assert found.scale[1] == found.scale[2] == 1.0


def test_a_sample_is_rows_of_the_source(table):
    rows = open_rows(table, block_rows=BLOCK)
    equal([rows.sample()], [(table[:, :2], table[:, 2:], np.arange(ROWS))])
    x, y, index = rows.sample(25)
    assert len(x) == 25 and (np.diff(index) > 0).all()
    np.testing.assert_array_equal(np.hstack([x, y]), table[index])


def test_types_are_kept_or_asked_for(table):
    labels = open_rows((table[:, :2], np.arange(ROWS)))
    x, y, _ = first(labels, 1, dtype=np.float32)[0]
    assert x.dtype == np.float32 and y.dtype == np.arange(1).dtype
    assert first(labels.standardised(), 1, dtype=np.float32)[0][1].dtype == np.float32


def test_fingerprints_tell_data_apart(table):
    one, other = open_rows(table, block_rows=BLOCK), open_rows(table + 1e-9, block_rows=BLOCK)
    assert one.fingerprint() == open_rows(table.copy(), block_rows=BLOCK).fingerprint()
    assert len({one.fingerprint(), other.fingerprint(), one.standardised().fingerprint()}) == 3


def holed(table, value):
    table = table.copy()
    table[57, 1] = value
    return table


@pytest.mark.parametrize("kind", ["parquet", "npy", "batches"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_named(table, tmp_path, kind, value):
    bad = holed(table, value)
    if kind == "parquet":
        write_parquet(tmp_path / "t.parquet", bad)
        rows, column = open_rows(tmp_path / "t.parquet"), "'b'"
    elif kind == "npy":
        rows, column = open_rows(bad, block_rows=BLOCK), "'1'"
    else:
        rows, column = open_rows([(block[:, :2], block[:, 2]) for block in blocks_of(bad)]), "1 of x"
    with pytest.raises(
        DataError, match=rf"row 7 \(counted from 0\), column {column} of block 5 .*: found (nan|inf)"
    ):
        rows.standardised()
    with pytest.raises(DataError, match="expected finite"):
        first(rows, 20)


def test_columns_of_parquet_are_chosen(table, tmp_path):
    """As ``load_table`` chooses them; words are no matter where they are left out."""
    frame = pd.DataFrame(table, columns=NAMES).assign(name="red")
    frame.to_parquet(tmp_path / "t.parquet")
    for settings in (
        {"ignore": "name"},
        {"ignore": "name, b"},
        {"features": "b", "target": "y"},
        {"features": "b,a", "ignore": "name"},
    ):
        rows = open_rows(tmp_path / "t.parquet", **settings)
        expected = load_table(str(tmp_path / "t.parquet"), **settings)
        assert rows.source.feature_names == expected.feature_names
        assert rows.source.target_names == expected.target_names
        ((_, x, y),) = rows.source.read()
        np.testing.assert_array_equal(x, expected.X)
        np.testing.assert_array_equal(y, expected.y)
    for settings, message in (
        ({"ignore": "b"}, "column 'name' of t.parquet: found .*string, expected numbers"),
        ({"ignore": "colour"}, "no column 'colour' to be left out"),
        ({"features": "a", "ignore": "a,name"}, "no column 'a' to be a feature"),
        ({"features": "a,y", "ignore": "name"}, "'y' of .* is to be a feature and the target"),
    ):
        with pytest.raises(DataError, match=message):
            open_rows(tmp_path / "t.parquet", **settings)
    with pytest.raises(DataError, match=r"ignore: found 'b', but only of a .parquet"):
        open_rows(table, ignore="b")


def test_bad_sources_are_refused(table, tmp_path):
    folder = tmp_path / "mixed"
    folder.mkdir()
    write_parquet(folder / "0.parquet", table)
    pq.write_table(pa.table({"a": [1.0], "y": [2.0]}), folder / "1.parquet")
    pq.write_table(pa.table({"a": ["red"], "y": [2.0]}), tmp_path / "words.parquet")
    pq.write_table(pa.table({"a": [1.0], "y": [2.0]}), tmp_path / "short.parquet")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no more")
    pair = (table[:, :2], table[:, 2])
    for data, target, message in (
        (folder, None, "1.parquet has no column 'b', which the first file has"),
        (folder / "0.parquet", "z", "no column 'z' to be the target: choose from a, b, y"),
        (folder / "0.parquet", 2, "columns of a .parquet have names"),
        (tmp_path / "words.parquet", None, "column 'a' of words.parquet: found string"),
        (tmp_path / "empty", None, "holds no .parquet file"),
        (tmp_path / "broken.parquet", None, "broken.parquet cannot be read as parquet"),
        (tmp_path / "none.npy", None, "no file"),
        (tmp_path / "t.csv", None, "cannot be read block by block"),
        (table, 7, "no column '7' to be the target"),
        (table[:, 0], None, "expected rows and columns"),
        (pair, 1, "target is 1 beside an array of targets"),
        ((table[1:, :2], table[:, 2]), None, "has 102 rows and y has 103"),
        (iter([pair]), None, "pass a function"),
        (lambda: [pair], 1, "pairs"),
        (3, None, "no source of rows"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            open_rows(data, target)
        assert "\n" not in str(caught.value)
    wide = [pair, (table, table[:, 2])]
    changing = itertools.count(5)
    for data, message in (
        (tmp_path / "short.parquet", "found 1 rows, expected at least 2"),
        ([], "hold no rows"),
        (wide, "has 3 inputs and 1 targets, the blocks before it 2 and 1"),
        ([pair, table], "expected a pair"),
        ([(table[:3, :2], table[:2, 2])], "3 rows of x and 2 of y"),
        (
            lambda: [tuple(array[:n] for array in pair) for n in (next(changing),)],
            "6 rows of x .* expected 5",
        ),
        ((table[:, :2], np.ones(ROWS)), "target '0' of x is constant"),
    ):
        with pytest.raises(DataError, match=message):
            open_rows(data).standardised()
    with pytest.raises(DataError, match="103 rows for 104 parts"):
        first(open_rows(pair), 1, part=0, parts=104)
    with pytest.raises(DataError, match="block_rows: found 0"):
        open_rows(pair, block_rows=0)


def test_an_epoch_needs_the_memory_of_a_window(tmp_path):
    np.save(tmp_path / "big.npy", np.random.default_rng(0).normal(size=(200_000, 5)).astype(np.float32))
    rows = open_rows(tmp_path / "big.npy", block_rows=2000).standardised()
    tracemalloc.start()
    for _ in itertools.islice(rows.batches([1], 1000, dtype=np.float32, window=4), 200):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # a window is 4 * 2000 rows, 28 bytes each with its number: 0.2 MB, of a file of 4 MB
    assert peak < 2e6
