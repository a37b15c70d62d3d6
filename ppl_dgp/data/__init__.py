"""From a source of data to arrays: loading, splitting and standardising tables.

``load_table`` reads a built-in name, a ``.csv``, a ``.parquet`` or an ``.npz`` into a ``Table`` of finite numbers;
``split`` gives its training and test rows; ``Standardiser`` takes columns to zero mean and unit scale and back;
``open_rows`` gives rows that need not fit in memory.
Whatever is wrong with the input is a ``DataError`` of one line that names the cause and the remedy.
"""

from ppl_dgp.data.batches import RowSource, open_rows
from ppl_dgp.data.columns import load_columns, load_entries
from ppl_dgp.data.load import BUILT_INS, load_table
from ppl_dgp.data.rows import load_rows
from ppl_dgp.data.series import Series, load_series, load_steps
from ppl_dgp.data.series_splits import split_series
from ppl_dgp.data.synthetic import periodic, sinusoids, step
from ppl_dgp.data.table import Standardiser, Table, split
from ppl_dgp.messages import DataError

__all__ = [
    "BUILT_INS",
    "DataError",
    "RowSource",
    "Series",
    "Standardiser",
    "Table",
    "load_columns",
    "load_entries",
    "load_rows",
    "load_series",
    "load_steps",
    "load_table",
    "open_rows",
    "periodic",
    "sinusoids",
    "split",
    "split_series",
    "step",
]
