"""Cells of the tables: what is not in a CSV yet is run, a process for each, and appended with how it came about.

What ``benchmarks.tables``, ``benchmarks.tables_classes`` and ``benchmarks.tables_missing`` have in common.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.rows import append_shown, numbers, read
from benchmarks.time_to_quality import PEERS

if TYPE_CHECKING:
    from ppl_dgp.fit import Fit

#: processors that others may use beside a cell whose seconds count
ALONE = 0.1
#: part of a method's name: everything in single precision
SINGLE = "float32"
#: where programs that are compiled already are kept, if at all; seconds that lack compilation do not count
CACHE = "JAX_COMPILATION_CACHE_DIR"
#: a method's result, of its name and the most steps that it may take; None if it fails
Work = Callable[[str, int], dict[str, Any] | None]


def parser_of(
    doc: str | None, sets: Sequence[str], methods: Sequence[str], splits: str, budget: int, out: Path
) -> argparse.ArgumentParser:
    """The options that all tables have, with these for defaults."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the tables")
    parser.add_argument("--sets", default=",".join(sets))
    parser.add_argument("--methods", default=",".join(methods))
    parser.add_argument("--splits", default=splits, help=f"{splits}, or 0,3,5; the number is the seed too")
    parser.add_argument("--budget", type=int, default=budget, help="steps of ours at most")
    parser.add_argument("--timed", action="store_true", help="run cells again whose seconds do not count")
    parser.add_argument("--out", type=Path, default=out)
    return parser


def run(
    options: argparse.Namespace,
    fields: Sequence[str],
    work_of: Callable[[str, int], Work | None],
    budget_of: Callable[[str], int],
    settings: Mapping[str, str] | None = None,
) -> None:
    """What the CSV does not hold yet, one process after another; what fails is said, and the next begun.

    :param work_of: of a set and the number of its split; None for a split that it lacks.
    :param budget_of: the most steps of a method, 0 where it knows itself.
    :param settings: columns that tell rows of the same cell apart.
    """
    settings = settings or {}
    about = {"machine": machine(), "commit": commit(), **settings}
    for number in numbers(options.splits):
        for name in options.sets.split(","):
            work = work_of(name, number)
            for method in options.methods.split(",") if work is not None else []:
                budget = budget_of(method)
                there = [row for row in read(options.out) if settings.items() <= row.items()]
                if is_done(there, name, number, method, budget, options.timed):
                    continue
                print(f"{name} {number} {method}: begins", file=sys.stderr, flush=True)
                beside: dict[str, Any] = {}
                with others_at_work(beside):
                    found = work(method, budget)
                if found is None:
                    print(f"{name} {number} {method}: ended without a result", file=sys.stderr, flush=True)
                    continue
                if CACHE in os.environ and "jax" in str(found.get("versions")):
                    beside.clear()
                cell = {"set": name, "split": number, "seed": number, "method": method, "budget": budget}
                append_shown(options.out, fields, as_row(cell | about | found | beside, fields))


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


def as_row(found: Mapping[str, object], fields: Sequence[str]) -> dict[str, object]:
    """A row of the CSV, empty where a method says nothing."""
    shown = lambda value: f"{value:.6g}" if isinstance(value, float) else value
    return {field: shown(found.get(field, "")) for field in fields}


def told(module: str, *arguments: object, peer: bool = False) -> dict[str, Any] | None:
    """What a process prints last, as a line of JSON; None if it ends without, or badly.

    :param peer: whether it runs in the environment that `make bench-peers` builds.
    """
    command = [str(PEERS) if peer else sys.executable, "-W", "ignore", "-m", module, *map(str, arguments)]
    # threads that spin while they wait take the cores from whatever runs beside them
    environment = {
        **os.environ,
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return None
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def tell_of_fits() -> None:
    """Have fits of this process say on stderr how each of their phases ends: loss, nats to gain, what goes on."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    fits = logging.getLogger("ppl_dgp.fit")
    fits.setLevel(logging.INFO)
    fits.addHandler(handler)


def in_precision(rows: Mapping[str, np.ndarray], bits: int) -> dict[str, np.ndarray]:
    """The arrays with real numbers of so many bits, 32 or 64, as everything that follows has them."""
    # not above: peers' processes, whose environment has none, import this file too
    import numpyro

    numpyro.enable_x64(bits == 64)
    kind = np.float64 if bits == 64 else np.float32
    real = lambda value: np.issubdtype(value.dtype, np.floating)
    return {name: value.astype(kind) if real(value) else value for name, value in rows.items()}


def bound_of(fit: Fit) -> float:
    """Minus the objective at the end; where steps draw, the mean of the last hundred."""
    exact = fit.convergence is not None and fit.convergence.error == 0.0
    return -float(np.nanmean(fit.losses[0, -1 if exact else -100 :]))


@contextmanager
def others_at_work(found: dict[str, Any]) -> Iterator[None]:
    """Keep in ``found`` how many processors, on average, others than this process and its children used meanwhile.

    Nothing is kept where the machine does not tell, as Linux does in /proc/stat.
    """
    began = work_so_far()
    yield
    found.update(others_since(began))


def work_so_far() -> tuple[float, float, float] | None:
    """Seconds of all processors, of them this process's and its ended children's, and those of the clock."""
    if not Path("/proc/stat").exists():
        return None
    return _busy_seconds(), _own_seconds(), time.perf_counter()


def others_since(began: tuple[float, float, float] | None) -> dict[str, float]:
    """As ``beside``, the processors that others have used since; empty where the machine does not tell."""
    now = work_so_far()
    if began is None or now is None:
        return {}
    busy, own, lasted = (after - before for after, before in zip(now, began, strict=True))
    return {"beside": max(0.0, busy - own) / lasted}


def _busy_seconds() -> float:
    """Of all processors since the machine began: all but idle, waiting and what was taken by other machines."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:8]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def machine() -> str:
    """Kind and number of the processors."""
    return f"{os.cpu_count()} × {platform.machine()}"


def commit() -> str:
    """Of the working tree, with a + where it differs."""
    said = lambda *words: subprocess.run(["git", *words], capture_output=True, text=True).stdout.strip()
    return said("rev-parse", "--short", "HEAD") + (
        "+" if said("status", "--porcelain", "ppl_dgp", "models") else ""
    )
