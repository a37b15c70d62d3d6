"""A table cut into rows to train on and rows to test on."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable

import numpy as np

from ppl_dgp.data import Standardiser, Table


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A table cut into rows to train on and rows to test on, each in standardised units."""

    table: Table
    train_rows: np.ndarray
    test_rows: np.ndarray
    x_units: Standardiser
    y_units: Standardiser
    #: of the targets of some rows by their features in their own units, where these are not those of all
    of_rows: Callable[[np.ndarray], Standardiser] | None = dataclasses.field(default=None, kw_only=True)

    def units(self, which: np.ndarray) -> Standardiser:
        """Those of the targets of some rows."""
        return self.y_units if self.of_rows is None else self.of_rows(self.table.X[which])

    def rows(self, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Standardised inputs and targets of some rows."""
        return self.x_units.transform(self.table.X[which]), self.units(which).transform(self.table.y[which])

    def raw(self, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of some rows in their own units."""
        return self.table.X[which], self.table.y[which]

    @property
    def notes(self) -> tuple[str, ...]:
        """How the source was read, and what was left out."""
        return self.table.notes

    def fingerprint(self) -> str:
        """SHA-256 of the table and of which rows are trained on."""
        digest = hashlib.sha256(self.table.fingerprint().encode())
        digest.update(np.ascontiguousarray(self.train_rows, dtype="<i8").tobytes())
        return digest.hexdigest()
