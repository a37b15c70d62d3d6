"""How tables are read: separators, decimal commas, spreadsheets, words, dates, and the columns that are chosen."""

import datetime
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fast import few

from ppl_dgp.data import DataError, load_rows, load_table
from ppl_dgp.data.encoding import Encoding
from ppl_dgp.extras import MissingExtra

RNG = np.random.default_rng(3)
NUMBERS = pd.DataFrame(
    {"a": RNG.normal(size=8), "b": 10.0 ** RNG.integers(-12, 12, 8), "y": RNG.normal(size=8)}
)
WRITTEN = [(",", "."), (";", ","), (";", "."), ("\t", "."), ("\t", ","), ("|", ".")]


@pytest.mark.parametrize("separator, decimal", WRITTEN)
def test_separator_and_decimal_sign_are_found(tmp_path: Path, separator: str, decimal: str) -> None:
    NUMBERS.to_csv(tmp_path / "t.csv", sep=separator, decimal=decimal, index=False)
    table = load_table(str(tmp_path / "t.csv"))
    np.testing.assert_allclose(np.hstack([table.X, table.y]), NUMBERS.to_numpy(), rtol=1e-15)
    assert len(table.notes) == (separator != ",") + (decimal == ",")


def test_separators_inside_of_entries_do_not_count(tmp_path: Path) -> None:
    frame = NUMBERS.assign(a=["one; two, three", "four"] * 4)
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert load_table(str(tmp_path / "t.csv")).feature_names == ("a=four", "a=one; two, three", "b")
    frame.to_csv(tmp_path / "t.tsv", sep="\t", index=False)
    assert load_table(str(tmp_path / "t.tsv")).feature_names == ("a=four", "a=one; two, three", "b")


def test_a_thousands_comma_is_no_decimal_comma(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('a,y\n"1,234",1\n"2,000",2\n"3,000",3\n')
    with pytest.raises(DataError, match="column 'a' .* not numeric"):
        load_table(str(tmp_path / "t.csv"))


def test_points_beside_decimal_commas_are_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a;b;y\n1,5;1.234;1\n2,5;2.000;2\n3,5;3.000;3\n")
    with pytest.raises(DataError, match="column 'b' of t.csv holds '1.234', .*thousands"):
        load_table(str(tmp_path / "t.csv"))


def test_a_spreadsheet_is_the_table_that_it_holds(tmp_path: Path) -> None:
    frame = NUMBERS.assign(when=pd.date_range("2024-03-01 12:00", periods=8, freq="D"))[
        ["a", "b", "when", "y"]
    ]
    with pd.ExcelWriter(tmp_path / "t.xlsx") as book:
        frame.to_excel(book, sheet_name="measured", index=False)
        NUMBERS.to_excel(book, sheet_name="other", index=False)
    table = load_table(str(tmp_path / "t.xlsx"))
    np.testing.assert_allclose(table.X[:, :2], NUMBERS[["a", "b"]], rtol=1e-14)
    noon = (datetime.datetime(2024, 3, 1, 12) - datetime.datetime(1970, 1, 1)).total_seconds() / 86400
    np.testing.assert_allclose(table.X[:, 2], noon + np.arange(8.0), rtol=1e-14)
    assert any("'measured', the first of 2 sheets" in note for note in table.notes)


def test_a_spreadsheet_without_its_library_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    NUMBERS.to_excel(tmp_path / "t.xlsx", index=False)
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(MissingExtra, match=r't.xlsx needs openpyxl.*: pip install "ppl-dgp\[data\]"'):
        load_table(str(tmp_path / "t.xlsx"))


@pytest.mark.parametrize("content", [b"no workbook", b"PK\x03\x04 no more"])
def test_a_damaged_spreadsheet_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.xlsx").write_bytes(content)
    with pytest.raises(DataError, match="t.xlsx cannot be read as xlsx"):
        load_table(str(tmp_path / "t.xlsx"))


COLOURS = ["red", "green", None, "red", "blue", "green", "red", "blue"]


def test_words_are_a_column_for_each_category(tmp_path: Path) -> None:
    frame = NUMBERS.assign(a=COLOURS)
    frame.to_csv(tmp_path / "t.csv", index=False)
    table = load_table(str(tmp_path / "t.csv"), drop_missing=True)
    expected = pd.get_dummies(frame.dropna(), columns=["a"], prefix_sep="=")  # pandas puts them last, sorted
    assert set(table.feature_names) == set(expected.columns) - {"y"}
    np.testing.assert_array_equal(table.X, expected[list(table.feature_names)].to_numpy(float))
    with pytest.raises(DataError, match="row 2 .*column 'a=blue' .*missing"):
        load_table(str(tmp_path / "t.csv"))


def test_rows_of_another_file_are_told_in_the_same_columns(tmp_path: Path) -> None:
    frame = NUMBERS.assign(a=COLOURS, when=[f"2024-0{month}-01" for month in range(1, 9)])
    frame[["when", "a", "b", "y"]].to_csv(tmp_path / "t.csv", index=False)
    table = load_table(str(tmp_path / "t.csv"), drop_missing=True)
    encoding = Encoding.from_json(table.encoding.to_json())
    assert encoding == table.encoding
    # one category alone, dates of another form, and other columns around
    frame = pd.DataFrame({"odd": ["?"], "b": [2.0], "a": ["green"], "when": ["31.12.2024"]})
    frame.to_csv(tmp_path / "new.csv", index=False, sep=";")
    x, _, _ = load_rows(str(tmp_path / "new.csv"), table.feature_names, ("y",), encoding=encoding)
    days = (datetime.date(2024, 12, 31) - datetime.date(1970, 1, 1)).days
    assert dict(zip(table.feature_names, x[0], strict=True)) == {
        "when": days, "a=blue": 0.0, "a=green": 1.0, "a=red": 0.0, "b": 2.0,
    }  # fmt: skip
    for column, value, words in (
        ("a", "pink", "row 0 .*'a' .*'pink', but the model knows blue, green, red"),
        ("when", "soon", "'when' .* is not a date .*'soon'"),
    ):
        frame.assign(**{column: value}).to_csv(tmp_path / "new.csv", index=False)
        with pytest.raises(DataError, match=words):
            load_rows(str(tmp_path / "new.csv"), table.feature_names, ("y",), encoding=encoding)


DATES = {
    "iso": ("2024-02-29", "2023-01-31"),
    "iso with time": ("2024-02-29T06:00:00", "2023-01-31T06:00:00"),
    "iso with a zone": ("2024-02-29T08:00:00+02:00", "2023-01-31T06:00:00Z"),
    "points": ("29.02.2024", "31.01.2023"),
    "day first": ("29/02/2024", "31/01/2023"),
    "month first": ("02/29/2024", "01/31/2023"),
    "year first": ("2024/02/29", "2023/01/31"),
}


@pytest.mark.parametrize("case", DATES)
def test_dates_are_days_since_1970(tmp_path: Path, case: str) -> None:
    pd.DataFrame({"when": DATES[case] * 4, "y": NUMBERS["y"]}).to_csv(tmp_path / "t.csv", index=False)
    table = load_table(str(tmp_path / "t.csv"))
    days = [(datetime.date(*day) - datetime.date(1970, 1, 1)).days for day in ((2024, 2, 29), (2023, 1, 31))]
    np.testing.assert_allclose(table.X[:2, 0], np.array(days) + 0.25 * ("T" in DATES[case][0]), rtol=1e-14)
    assert table.encoding.dates == ("when",)
    assert "when is a date, in days since 1970-01-01 (UTC)" in table.notes


REFUSED = {
    "day or month": (
        {"a": ["01/02/2024", "03/04/2024"] * 4},
        r"'a' .*'01/02/2024', .*day and month .*2024-12-31",
    ),
    "names": ({"a": list("abcdefgh")}, "column 'a' .*not numeric .*8 different words in 8 rows .*--ignore a"),
    "a word among numbers": (
        {"a": ["1", "2", "n/a?", "4", "5", "6", "7", "8"]},
        r"'a' .*not numeric \(row 2",
    ),
    "a name taken": (
        {"a": ["u", "v"] * 4, "a=u": range(8)},
        "a column 'a=u', as the category of 'a' is called",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_category_and_no_date_is_refused(tmp_path: Path, case: str) -> None:
    columns, words = REFUSED[case]
    pd.DataFrame({**columns, "y": NUMBERS["y"]}).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match=words):
        load_table(str(tmp_path / "t.csv"))


def test_columns_are_chosen_and_left_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", X=NUMBERS[["a", "b"]], y=NUMBERS["y"], feature_names=np.array(["a", "b"]))
    NUMBERS.assign(note=list("abcdefgh")).to_csv(tmp_path / "t.csv", index=False)
    for source, ignored in (("t.csv", "note"), ("t.npz", None)):
        place = str(tmp_path / source)
        chosen = load_table(place, features="b", ignore=ignored)
        assert chosen.feature_names == ("b",) and chosen.target_names == ("y",)
        left = load_table(place, ignore="a" if ignored is None else f"a, {ignored}")
        assert left.feature_names == ("b",)
        np.testing.assert_array_equal(left.X[:, 0], NUMBERS["b"])


WRONG = {
    "no such feature": (dict(features="a,bb"), "no column 'bb' to be a feature: did you mean 'b'"),
    "nothing to leave out": (dict(ignore="aa"), "no column 'aa' to be left out: did you mean 'a'"),
    "a feature that is the target": (dict(features="a,y"), "'y' .*feature and the target"),
    "a feature that is left out": (dict(features="a", ignore="a"), "no column 'a' to be a feature"),
    "no such target": (dict(target="yy"), "no column 'yy' to be the target: did you mean 'y'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_columns_that_are_not_there_are_refused(tmp_path: Path, case: str) -> None:
    asked, words = WRONG[case]
    NUMBERS.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match=words):
        load_table(str(tmp_path / "t.csv"), **asked)


def test_a_file_of_nearly_that_name_is_named(tmp_path: Path) -> None:
    NUMBERS.to_csv(tmp_path / "table.csv", index=False)
    with pytest.raises(DataError, match="no file .*did you mean 'table.csv'"):
        load_table(str(tmp_path / "tabel.csv"))


@pytest.mark.parametrize("rows", few([1, 40, 4000], 1))
def test_long_files_are_read_by_their_first_lines(tmp_path: Path, rows: int) -> None:
    frame = pd.concat([NUMBERS] * rows)
    frame.to_csv(tmp_path / "t.csv", index=False, sep=";", decimal=",")
    assert len(load_table(str(tmp_path / "t.csv")).X) == 8 * rows
