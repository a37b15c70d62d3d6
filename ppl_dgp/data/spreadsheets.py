"""Spreadsheets, ``.xlsx``, by openpyxl, which the extra ``data`` brings."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path

import pandas as pd

from ppl_dgp.data.arrays import check_expansion
from ppl_dgp.extras import needed_for


def read_sheet(path: Path) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The columns of the first sheet, and a note where there are others.

    :raises MissingExtra: where openpyxl is not installed.
    :raises ValueError: for a file that is no workbook.
    """
    with needed_for(f"reading {path.name}", "data"):
        import openpyxl  # noqa: F401  by pandas
    with zipfile.ZipFile(path) as archive:
        check_expansion(path, sum(member.file_size for member in archive.infolist()))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of styles and drawings, which are no numbers
            with pd.ExcelFile(path, engine="openpyxl") as book:
                names = [str(name) for name in book.sheet_names]
                frame = book.parse(names[0])
    except (KeyError, TypeError, AttributeError, IndexError, SyntaxError) as error:
        raise ValueError(f"no workbook: {error}") from None
    notes = (f"read {names[0]!r}, the first of {len(names)} sheets",) if len(names) > 1 else ()
    return frame, notes
