"""The tables of classes: our methods and what people use instead, on the same splits, a row of a CSV for each.

    make tables DATA=DIR SETS=glass,vowel METHODS=sparse-gp,logistic
    python -m benchmarks.tables_classes --data DIR --sets glass --splits 0-9 --methods sparse-gp.softmax,svm
    python -m benchmarks.tables_classes_page                 # docs/tables-classes.md of what the CSV holds

DIR holds ``classification/<set>.npz``, X, y and the splits' row indices, of which a set may have fewer than are asked
for; usps and mnist are ``latent/usps_all.npz``, a tenth of it held out by the split's number, and
``images/mnist.npz``, its one split. Inputs are standardised by the training rows, pixels divided by the largest.
Every cell is a process of its own that leaves probabilities of the test rows, which are scored here. Methods are those
of ``benchmarks.tables_classes_ours`` and ``benchmarks.tables_classes_peers``; what is there is not run again, but for
a method of ours that has not converged and is asked for with a larger --budget.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cells import PEERS, Work, parser_of, run, told
from ppl_dgp.diagnostics.class_measures import class_scores

CSV = Path("benchmarks/tables-classes.csv")
FIELDS = (
    "set", "split", "seed", "method", "budget", "test_log_density", "error", "calibration_error", "seconds", "beside",
    "steps", "bound", "gap", "converged", "versions", "machine", "commit",
)  # fmt: skip
SETS = (
    "australian", "banana", "breast", "crabs", "glass", "ionosphere", "new_thyroid", "satellite", "sonar", "svmguide2",
    "vowel", "waveform",
)  # fmt: skip
#: sets of pixels: where their arrays lie
PIXELS = {"usps": "latent/usps_all.npz", "mnist": "images/mnist.npz"}
OURS = ("sparse-gp", "sparse-gp.softmax", "deep-gp-2", "deep-gp-2.alpha=0.5", "sparse-gp.sites.alpha=0.5")
PEER_METHODS = ("logistic", "svm", "boosting")
BUDGET = 105_600


def path_of(data: Path, name: str) -> Path:
    """Where a set lies."""
    return data / PIXELS.get(name, f"classification/{name}.npz")


def prepared(data: Path, name: str, number: int) -> dict[str, np.ndarray] | None:
    """Inputs as methods take them and labels 0 … C − 1, of training and test; None for a split that a set lacks."""
    with np.load(path_of(data, name)) as file:
        if name == "mnist":
            if number:
                return None
            x, y = (np.concatenate([file[f"{part}_train"], file[f"{part}_test"]]) for part in ("X", "y"))
            x, count = x.reshape(len(x), -1), len(file["y_train"])
            train, test = np.arange(count), np.arange(count, len(x))
        elif name == "usps":
            x, y = file["Y"], file["labels"]
            order = np.random.default_rng(number).permutation(len(x))
            train, test = order[len(x) // 10 :], order[: len(x) // 10]
        else:
            x, y = file["X"], file["y"]
            splits = [np.atleast_2d(file[part]) for part in ("train", "test")]
            if number >= len(splits[0]):
                return None
            train, test = (part[number] for part in splits)
    x, labels = x.astype(float), np.unique(y, return_inverse=True)[1].reshape(-1)
    if name in PIXELS:
        x = x / x.max()
    else:
        spread = x[train].std(0)
        x = (x - x[train].mean(0)) / np.where(spread > 0.0, spread, 1.0)
    return {"x": x[train], "y": labels[train], "x_test": x[test], "y_test": labels[test]}


def cell(rows: dict[str, np.ndarray], seed: int, method: str, budget: int) -> dict[str, Any] | None:
    """The scores of the probabilities that a method's process leaves, and what it says of itself; None if it fails."""
    peer = method in PEER_METHODS
    with tempfile.TemporaryDirectory() as folder:
        place, left = Path(folder) / "split.npz", Path(folder) / "left.npz"
        # labels of the test rows stay here
        np.savez(place, **{name: values for name, values in rows.items() if name != "y_test"})
        module = f"benchmarks.tables_classes_{'peers' if peer else 'ours'}"
        about = told(module, method, place, left, seed, budget, peer=peer)
        if about is None:
            return None
        probabilities = np.load(left)["probabilities"]
    # a probability of none is counted as the least that is not
    scores = class_scores(np.clip(probabilities, 1e-12, 1.0), rows["y_test"])
    return about | {
        "test_log_density": scores["test_log_density"],
        "error": 1.0 - scores["test_accuracy"],
        "calibration_error": scores["test_calibration_error"],
    }


def refusal(data: Path, sets: list[str], methods: list[str]) -> str | None:
    """What cannot run, before any cell does: names that are none, data or an environment that are not there."""
    for name in sets:
        if not path_of(data, name).is_file():
            return f"--sets: found no {path_of(data, name)}, expected the table; name another"
    for method in methods:
        if method in PEER_METHODS and not PEERS.is_file():
            return f"--methods: found {method} without its environment; run `make bench-peers`"
        if method not in PEER_METHODS:
            from benchmarks.tables_classes_ours import ClassMethod

            try:
                rule = ClassMethod.of(method).rule
            except ValueError as error:
                return f"--methods: {error}, or one of {', '.join(PEER_METHODS)}"
            if rule == "convolutional" and (others := sorted(set(sets) - set(PIXELS))):
                return (
                    f"--methods: found {method} of {others[0]}, expected pixels; name {' or '.join(PIXELS)}"
                )
    return None


def main() -> int:
    """All cells that are asked for."""
    parser = parser_of(__doc__, SETS, (*OURS, *PEER_METHODS), "0-9", BUDGET, CSV)
    options = parser.parse_args()
    sets, methods = options.sets.split(","), options.methods.split(",")
    if (message := refusal(options.data, sets, methods)) is not None:
        parser.error(message)

    def work_of(name: str, number: int) -> Work | None:
        rows = prepared(options.data, name, number)
        return None if rows is None else partial(cell, rows, number)

    run(options, FIELDS, work_of, lambda method: 0 if method in PEER_METHODS else options.budget)
    return 0


if __name__ == "__main__":
    sys.exit(main())
