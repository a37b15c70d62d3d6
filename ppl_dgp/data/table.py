"""A table of finite numbers with its splits, and the affine map that standardises its columns."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ppl_dgp.data.encoding import Encoding
from ppl_dgp.messages import DataError

MIN_ROWS = 2


@dataclass(frozen=True, eq=False)
class Table:
    """A table in its own units: N rows, D features, P targets.

    :param X: features, [N D] float64, finite.
    :param y: targets, [N P] float64, finite, or NaN where an entry is missing and the model can do without.
    :param feature_names: D names.
    :param target_names: P names.
    :param train: row indices of the training half of each split that came with the data; None without splits.
    :param test: the same for the test half; ``train`` and ``test`` have one entry per split.
    :param notes: what was left out while reading, one sentence each.
    :param name: where the table came from.
    :param labels: of a single target of classes, whose entries are their positions here; else none.
    :param encoding: which features were words or dates.
    :param source_rows: of each row its number in what was read, [N], counted from 0; None where none was left out.
    """

    X: Float[np.ndarray, "N D"]
    y: Float[np.ndarray, "N P"]
    feature_names: tuple[str, ...]
    target_names: tuple[str, ...]
    train: tuple[Int[np.ndarray, " _"], ...] | None = None
    test: tuple[Int[np.ndarray, " _"], ...] | None = None
    notes: tuple[str, ...] = ()
    name: str = "table"
    labels: tuple[str | int | float, ...] = ()
    encoding: Encoding = field(default_factory=Encoding)
    source_rows: Int[np.ndarray, " N"] | None = None

    def __post_init__(self) -> None:
        if self.X.ndim != 2 or self.y.ndim != 2 or len(self.X) != len(self.y):
            raise DataError(
                f"X {self.X.shape} and y {self.y.shape} of {self.name} must be [N D] and [N P] with the same "
                "N: reshape single columns to [N 1]"
            )
        if (len(self.feature_names), len(self.target_names)) != (self.X.shape[1], self.y.shape[1]):
            raise DataError(
                f"{self.name} has {self.X.shape[1]} features and {self.y.shape[1]} targets but "
                f"{len(self.feature_names)} feature names and {len(self.target_names)} target names: "
                "give one name per column"
            )
        if (self.train is None) != (self.test is None) or len(self.train or ()) != len(self.test or ()):
            raise DataError(f"train and test of {self.name} must have one entry per split, or both be None")

    @property
    def num_splits(self) -> int:
        """Number of splits that came with the data, 0 without."""
        return len(self.train or ())

    @property
    def coords(self) -> dict[str, list[str]]:
        """The names of its columns as ``to_arviz(coords=…)`` takes them."""
        return {"input": list(self.feature_names), "target": list(self.target_names)}

    def row_numbers(self, which: Int[np.ndarray, " K"]) -> Int[np.ndarray, " K"]:
        """The numbers that some of its rows have in what was read, [K], counted from 0, as messages count them."""
        return which if self.source_rows is None else self.source_rows[which]

    def fingerprint(self) -> str:
        """SHA-256 (hex) of the shapes and values of X and y; equal for equal data on any machine."""
        digest = hashlib.sha256()
        for array in (self.X, self.y):
            digest.update(repr(tuple(map(int, array.shape))).encode())
            digest.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
        return digest.hexdigest()


def split(
    table: Table, split: int | None = None, test_fraction: float | int = 0.1, seed: int = 0
) -> tuple[Int[np.ndarray, " train"], Int[np.ndarray, " test"]]:
    """Row indices (train, test) of one split.

    A table that came with splits gives its own number ``split`` (default 0) whatever the ``test_fraction``.
    Any other table is split at random: ``split`` counts the permutations drawn from ``seed`` (default 0), and
    round(``test_fraction`` * N) rows, at least one, are for the test. With ``test_fraction=0`` there are no test
    rows: a table's own are left out, and never trained on.

    :raises DataError: ``split`` out of range, ``test_fraction`` outside [0, 1), fewer than two rows left to train on.

    """
    if not 0.0 <= test_fraction < 1.0:
        raise DataError(
            f"test fraction: found {test_fraction}, expected a number in [0, 1); 0 keeps every row to train on"
        )
    number = 0 if split is None else split
    num_rows = len(table.X)
    if table.train is not None and table.test is not None:
        if not 0 <= number < table.num_splits:
            raise DataError(
                f"split {number} is not one of the {table.num_splits} of {table.name}: "
                f"choose one from 0 to {table.num_splits - 1}"
            )
        train, test = table.train[number], table.test[number]
        return train, test if test_fraction > 0 else test[:0]
    if number < 0 or seed < 0:
        raise DataError(f"split is {number} and seed is {seed}: neither can be negative, use 0 or more")
    if test_fraction == 0:
        return np.arange(num_rows), np.arange(0)
    num_test = max(1, round(test_fraction * num_rows))
    if num_rows - num_test < MIN_ROWS:
        raise DataError(
            f"{table.name}: found {num_rows} rows, which leaves {num_rows - num_test} to train on after "
            f"{num_test} for the test, "
            f"expected at least {MIN_ROWS}; lower the test fraction (0 for none) or give more rows"
        )
    order = np.random.default_rng([seed, number]).permutation(num_rows)
    return np.sort(order[num_test:]), np.sort(order[:num_test])


@dataclass(frozen=True, eq=False)
class Standardiser:
    """The map x -> (x - mean) / scale of each column, and its inverse.

    :param mean: [D], in the units of the data, or [N D] where rows have units of their own.
    :param scale: the same, positive.
    """

    mean: Float[np.ndarray, "*N D"]
    scale: Float[np.ndarray, "*N D"]

    @classmethod
    def fit(
        cls, array: Float[np.ndarray, "N D"], weights: Float[np.ndarray, " N"] | None = None
    ) -> Standardiser:
        """Mean and standard deviation (divisor N) of each column of ``array``; scale 1 where it is constant.

        :param weights: how often each row counts, positive; once if not given.
        """
        array = np.asarray(array, dtype=np.float64)
        if array.ndim != 2 or len(array) == 0:
            raise DataError(f"array: found shape {array.shape}, expected [N D] with N > 0; reshape it")
        if array.shape[1] == 0:  # of which np.average divides by their number
            return cls(np.empty(0), np.empty(0))
        mean = np.average(array, axis=0, weights=weights)
        deviation = array - mean
        # s_d = r_d sqrt(mean((x_nd - m_d)² / r_d²)), r_d = max_n |x_nd - m_d|: no square overflows
        largest = np.abs(deviation).max(axis=0)
        # a spread so small that it has no digits left, or no reciprocal, is none
        info = np.finfo(np.float64)
        rounding = np.maximum(8 * info.eps * np.abs(array).max(axis=0), info.tiny)
        varies = (array != array[0]).any(axis=0) & (largest > rounding)
        unit = np.where(varies, largest, 1.0)
        scale = np.where(
            varies, unit * np.sqrt(np.average((deviation / unit) ** 2, axis=0, weights=weights)), 1.0
        )
        return cls(mean, scale)

    @classmethod
    def fit_alike(
        cls, array: Float[np.ndarray, "N D"], weights: Float[np.ndarray, " N"] | None = None
    ) -> Standardiser:
        """One mean and one standard deviation of all entries, the same for every column: of pixels, say."""
        array = np.asarray(array, dtype=np.float64)
        if array.ndim != 2 or array.size == 0:
            raise DataError(f"array: found shape {array.shape}, expected [N D] with entries; reshape it")
        one = cls.fit(array.reshape(-1, 1), None if weights is None else np.repeat(weights, array.shape[1]))
        return cls(np.full(array.shape[1], one.mean[0]), np.full(array.shape[1], one.scale[0]))

    def transform(self, array: Float[np.ndarray, "*batch D"]) -> Float[np.ndarray, "*batch D"]:
        """Data to standardised units, [... D]."""
        standardised: np.ndarray = (np.asarray(array) - self.mean) / self.scale
        return standardised

    def inverse(self, array: Float[np.ndarray, "*batch D"]) -> Float[np.ndarray, "*batch D"]:
        """Standardised units back to those of the data, [... D]."""
        in_units_of_data: np.ndarray = np.asarray(array) * self.scale + self.mean
        return in_units_of_data

    def to_dict(self) -> dict[str, list[float]]:
        """Plain lists, exact through JSON."""
        return {"mean": self.mean.tolist(), "scale": self.scale.tolist()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Standardiser:
        """The inverse of ``to_dict``; a DataError where the values cannot be a standardiser's."""
        try:
            mean = np.asarray(values["mean"], dtype=np.float64)
            scale = np.asarray(values["scale"], dtype=np.float64)
            sound = mean.ndim == 1 and mean.shape == scale.shape
            sound = sound and bool(np.isfinite(mean).all() and np.isfinite(scale).all() and (scale > 0).all())
        except (KeyError, TypeError, ValueError):
            sound = False
        if not sound:
            raise DataError(
                "a standardiser needs 'mean' and 'scale', lists of equally many finite numbers with positive "
                "scales: the saved one is damaged, fit again"
            )
        return cls(mean, scale)


def standardise(rows: np.ndarray, weights: np.ndarray | None = None) -> Standardiser:
    """Mean and scale of each column, of the entries that are there.

    :param weights: how often each row counts (N,), positive; once if not given.
    :raises ValueError: for a column without any.
    """
    empty = np.isnan(rows).all(0)
    if empty.any():
        raise ValueError(
            f"rows: found no entry in column {int(empty.argmax())}, expected at least one; leave it out"
        )
    each = [
        Standardiser.fit(column[there][:, None], None if weights is None else weights[there])
        for column, there in zip(rows.T, ~np.isnan(rows).T, strict=True)
    ]
    return Standardiser(np.array([one.mean[0] for one in each]), np.array([one.scale[0] for one in each]))
