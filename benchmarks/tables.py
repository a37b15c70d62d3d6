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
seconds do not count. Sets of classes and of missing entries are those of ``benchmarks.tables_classes`` and
``benchmarks.tables_missing``, which are called in their place.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rows import append_shown, numbers, read
from benchmarks.time_to_quality import PEERS, prepared

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
#: processors that others may use beside a cell whose seconds count
ALONE = 0.1


def budget_of(method: str, options: argparse.Namespace) -> int:
    """The most steps that a method may take, 0 where it knows itself."""
    if method in PEER_METHODS:
        return 0
    steps: int = options.peer_steps if method in DEEP_PEERS else options.budget
    return steps


def is_done(
    there: list[dict[str, str]], name: str, number: int, method: str, budget: int, timed: bool = False
) -> bool:
    """Whether a cell has a row that a further run with this budget could not better.

    :param timed: whether its seconds must count as well.
    """
    return any(
        (row["converged"] == "True" or int(row["budget"]) >= budget)
        and (not timed or float(row["beside"] or "inf") <= ALONE)
        for row in there
        if (row["set"], row["split"], row["method"]) == (name, str(number), method)
    )


@contextmanager
def others_at_work(found: dict[str, Any]) -> Iterator[None]:
    """Keep in ``found`` how many processors, on average, others than this process and its children used meanwhile.

    Nothing is kept where the machine does not tell, as Linux does in /proc/stat.
    """
    if not Path("/proc/stat").exists():
        yield
        return
    busy, own, clock = _busy_seconds(), _own_seconds(), time.perf_counter()
    yield
    lasted = time.perf_counter() - clock
    found["beside"] = max(0.0, (_busy_seconds() - busy) - (_own_seconds() - own)) / lasted


def _busy_seconds() -> float:
    """Of all processors since the machine began: all but idle, waiting and what was taken by other machines."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:8]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def run(options: argparse.Namespace) -> None:
    """What the CSV does not hold yet, one process after another; what fails is said, and the next begun."""
    about = {"machine": machine(), "commit": commit()}
    for number in numbers(options.splits):
        for name in options.sets.split(","):
            for method in options.methods.split(","):
                budget = budget_of(method, options)
                if is_done(read(options.out), name, number, method, budget, options.timed):
                    continue
                beside: dict[str, Any] = {}
                with others_at_work(beside):
                    found = cell(options.data, name, number, method, budget)
                if found is not None:
                    found |= beside
                    cells = {"set": name, "split": number, "seed": number, "method": method, "budget": budget}
                    append_shown(options.out, FIELDS, as_row(cells | about | found))


def as_row(found: Mapping[str, object], fields: Sequence[str] = FIELDS) -> dict[str, object]:
    """A row of the CSV, empty where a method says nothing."""
    shown = lambda value: f"{value:.6g}" if isinstance(value, float) else value
    return {field: shown(found.get(field, "")) for field in fields}


def cell(data: Path, name: str, number: int, method: str, budget: int) -> dict[str, Any] | None:
    """What a process of a method prints last; None if it ends without."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "split.npz"
        prepared(data, name, number, place)
        peers = [str(PEERS), "-W", "ignore", "-m"]
        arguments = [method, str(place), str(number)]
        if method in PEER_METHODS:
            command = [*peers, "benchmarks.tables_peers", *arguments]
        elif method in DEEP_PEERS:
            command = [*peers, "benchmarks.time_to_quality_peers", *arguments, str(budget)]
        else:
            command = [
                sys.executable,
                "-W",
                "ignore",
                "-m",
                "benchmarks.tables",
                "--one",
                *arguments,
                str(budget),
            ]
        # threads that spin while they wait take the cores from whatever runs beside them
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OPENBLAS_NUM_THREADS": "1"}
        environment["OMP_WAIT_POLICY"] = "PASSIVE"
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        print(f"{name} {number} {method}: ended with {done.returncode}", file=sys.stderr, flush=True)
        return None
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def machine() -> str:
    """Kind and number of the processors."""
    return f"{os.cpu_count()} × {platform.machine()}"


def commit() -> str:
    """Of the working tree, with a + where it differs."""
    said = lambda *words: subprocess.run(["git", *words], capture_output=True, text=True).stdout.strip()
    return said("rev-parse", "--short", "HEAD") + (
        "+" if said("status", "--porcelain", "ppl_dgp", "models") else ""
    )


def main() -> int:
    """One cell, or all that are asked for."""
    if sys.argv[1:2] == ["--one"]:
        from benchmarks.tables_ours import measured

        method, place, seed, budget = sys.argv[2:6]
        print(json.dumps(measured(method, np.load(place), int(seed), int(budget))), flush=True)
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds uci/<set>.npz")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--methods", default=",".join((*OURS, *PEER_METHODS, *DEEP_PEERS)))
    parser.add_argument("--splits", default="0-4", help="0-4, or 0,3,5; the number is the seed too")
    parser.add_argument("--budget", type=int, default=BUDGET, help="steps of ours at most")
    parser.add_argument("--peer-steps", type=int, default=PEER_STEPS, help="of gpflux and gpytorch")
    parser.add_argument("--timed", action="store_true", help="run cells again whose seconds do not count")
    parser.add_argument("--out", type=Path, default=CSV)
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
    run(options)
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
            from benchmarks.tables_ours import Method

            try:
                Method.of(method)
            except ValueError as error:
                return f"--methods: {error}, or one of {', '.join((*PEER_METHODS, *DEEP_PEERS))}"
    return None


if __name__ == "__main__":
    sys.exit(main())
