"""The regression tables: our methods, and what people use instead, on the same splits, a row of a CSV for each.

    make tables DATA=DIR SETS=boston,energy METHODS=deep-gp-2,lightgbm
    python -m benchmarks.tables --data DIR --sets boston --splits 0-4 --methods deep-gp-2,deep-gp-2.alpha=0.5,svgp
    python -m benchmarks.tables_page                         # docs/tables.md of what the CSV holds

DIR holds ``uci/<set>.npz``, X, y and the splits' row indices. Every cell is a process of its own, standardised by the
split's training rows, on two threads; peers run in the environment that `make bench-peers` builds, with the settings
that their makers advise. ``beside`` is what else the machine did meanwhile, in processors: seconds count where that is
next to nothing. Methods are those of ``benchmarks.tables_ours`` and ``benchmarks.tables_peers``, and gpflux and
gpytorch with two layers. Rows are appended as they come; what is there is not run again, but for a method of ours that
has not converged and is asked for with a larger --budget, a peer's with larger --peer-steps, or with --timed one whose
seconds do not count. With --together the splits of a set are trained side by side, as one program, of deep GPs, which
pays on a GPU; --minutes ends its training. Sets of classes and of missing entries are those of
``benchmarks.tables_classes`` and ``benchmarks.tables_missing``, which are called in their place.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cells import PEERS, as_row, commit, is_done, machine, parser_of, run, tell_of_fits, told
from benchmarks.rows import append_shown, numbers, read
from benchmarks.time_to_quality import prepared

CSV = Path("benchmarks/tables.csv")
FIELDS = (
    "set", "split", "seed", "method", "budget", "test_log_density", "rmse", "calibration", "coverage95", "seconds",
    "beside", "steps", "bound", "gap", "converged", "versions", "machine", "commit",
)  # fmt: skip
SETS = ("boston", "energy", "kin8nm", "naval", "protein", "wine_red", "yacht")
OURS = ("sparse-gp", "deep-gp-2", "deep-gp-3", "deep-gp-2.alpha=0.5", "deep-gp-3.alpha=0.5")
PEER_METHODS = ("linear", "exact-gp", "sgpr", "svgp", "ngboost", "lightgbm", "deep-ensemble")
DEEP_PEERS = ("gpflux", "gpytorch")
#: steps of ours at most; of GPflux and GPyTorch, which do not say when they have converged
BUDGET, PEER_STEPS = 105_600, 4000


def budget_of(method: str, options: argparse.Namespace) -> int:
    """The most steps that a method may take, 0 where it knows itself."""
    if method in PEER_METHODS:
        return 0
    steps: int = options.peer_steps if method in DEEP_PEERS else options.budget
    return steps


def cell(data: Path, name: str, number: int, method: str, budget: int) -> dict[str, Any] | None:
    """What a method says of a split; None if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "split.npz"
        prepared(data, name, number, place)
        if method in PEER_METHODS:
            return told("benchmarks.tables_peers", method, place, number, peer=True)
        if method in DEEP_PEERS:
            return told("benchmarks.time_to_quality_peers", method, place, number, budget, peer=True)
        return told("benchmarks.tables", "--one", method, place, number, budget)


def together(options: argparse.Namespace) -> None:
    """The splits that lack a row side by side, a program for each set and method."""
    made = {"machine": machine(), "commit": commit()}
    for name in options.sets.split(","):
        for method in options.methods.split(","):
            there, budget = read(options.out), options.budget
            left = [
                each for each in numbers(options.splits) if not is_done(there, name, each, method, budget)
            ]
            if not left:
                continue
            with tempfile.TemporaryDirectory() as folder:
                places = [Path(folder) / f"{number}.npz" for number in left]
                for number, place in zip(left, places, strict=True):
                    prepared(options.data, name, number, place)
                splits = [f"{number}={place}" for number, place in zip(left, places, strict=True)]
                found = told("benchmarks.tables", "--side-by-side", method, budget, options.minutes, *splits)
            for number, cell_found in zip(left, found["splits"] if found else [], strict=found is not None):
                about = {"set": name, "split": number, "seed": number, "method": method, "budget": budget}
                append_shown(options.out, FIELDS, as_row(about | made | cell_found, FIELDS))


def main() -> int:
    """One cell, or all that are asked for."""
    if sys.argv[1:2] == ["--side-by-side"]:
        from benchmarks.tables_ours import side_by_side

        tell_of_fits()
        method, budget, minutes, *splits = sys.argv[2:]
        seeds = [int(split.split("=")[0]) for split in splits]
        rows = [np.load(split.split("=", 1)[1]) for split in splits]
        print(json.dumps({"splits": side_by_side(method, rows, seeds, int(budget), float(minutes))}))
        return 0
    if sys.argv[1:2] == ["--one"]:
        from benchmarks.tables_ours import measured

        tell_of_fits()
        method, place, seed, budget = sys.argv[2:6]
        print(json.dumps(measured(method, np.load(place), int(seed), int(budget))), flush=True)
        return 0
    methods = (*OURS, *PEER_METHODS, *DEEP_PEERS)
    parser = parser_of(__doc__, SETS, methods, "0-4", BUDGET, CSV)
    parser.add_argument("--peer-steps", type=int, default=PEER_STEPS, help="of gpflux and gpytorch")
    parser.add_argument("--together", action="store_true", help="splits of deep GPs side by side")
    parser.add_argument("--minutes", type=float, default=60.0, help="of a program of --together, at most")
    options, _ = parser.parse_known_args()
    # which take this module's cells
    from benchmarks import tables_classes, tables_missing

    others: dict[str, Any] = dict.fromkeys((*tables_classes.SETS, *tables_classes.PIXELS), tables_classes)
    others |= dict.fromkeys(tables_missing.SETS, tables_missing)
    kinds = {others.get(name) for name in options.sets.split(",")}
    if len(kinds) > 1:
        parser.error("--sets: found tables of numbers, classes or missing entries side by side; run one kind")
    (kind,) = kinds
    if kind is not None:
        status: int = kind.main()
        return status
    options = parser.parse_args()
    if (message := refusal(options)) is not None:
        parser.error(message)
    if options.together:
        together(options)
        return 0
    work_of = lambda name, number: partial(cell, options.data, name, number)
    run(options, FIELDS, work_of, partial(budget_of, options=options))
    return 0


def refusal(options: argparse.Namespace) -> str | None:
    """What cannot run, before any cell does: names that are none, data or an environment that are not there."""
    for name in options.sets.split(","):
        if not (options.data / "uci" / f"{name}.npz").is_file():
            return f"--sets: found no {name}.npz in {options.data / 'uci'}, expected the table; name another"
    peers = {*PEER_METHODS, *DEEP_PEERS}
    for method in options.methods.split(","):
        if method in peers and not PEERS.is_file():
            return f"--methods: found {method} without its environment; run `make bench-peers`"
        if method not in peers:
            from benchmarks.tables_ours import TOGETHER, Method

            try:
                known = Method.of(method)
            except ValueError as error:
                return f"--methods: {error}, or one of {', '.join((*PEER_METHODS, *DEEP_PEERS))}"
        if options.together and (method in peers or known.layers == 1 or known.rule not in TOGETHER):
            return (
                f"--together: found {method}, expected deep GPs of ours, trained once; leave --together out"
            )
    return None


if __name__ == "__main__":
    sys.exit(main())
