"""Comparisons over seeds: what one line of a table has more than the line above, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd


def more_than_before(found: pd.DataFrame, by: str, column: str, order: Sequence[Any]) -> pd.DataFrame:
    """Mean over seeds of the differences of ``column`` between neighbours in ``order``, and its standard error.

    :param by: the column of what is compared; ``seed`` pairs the rows, of which one that lacks its partner counts not.
    """
    wide = found.pivot_table(index="seed", columns=by, values=column)[list(order)]
    differences = wide.diff(axis=1)
    return pd.DataFrame({"more": differences.mean(), "error": differences.sem()})
