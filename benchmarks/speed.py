"""Milliseconds of a training step, or of a value and its gradient, beside code written by hand and other libraries.

    python -m benchmarks.speed                       # every work that speed.csv lacks, each library that is installed
    python -m benchmarks.speed --works dgp2,dgp3 --again --rounds 9
    python -m benchmarks.speed --scaling             # cost against N, L, width and particles, a figure

A contestant is a process of its own (speed_jax.py, speed_peers.py) and takes a turn of about a second where all others
wait, round after round, so that a drift of the machine's speed falls on all of them alike: a ratio is the median over
rounds. The peers' environments are those of `make bench-peers`; peers that neither these nor this environment hold are
left out. On a GPU it is the same command, and `--works large` besides (100 000 rows at a time, M = 500). No other job
should run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import rows
from benchmarks.speed_ceiling import Ceilings, ceilings, floor
from benchmarks.works import OFFERED, USUAL

HERE = Path(__file__).parent
#: where `make bench-peers` puts them, and what runs them there
ENVIRONMENTS = {"gpytorch": ".venv-peers", "gpflow": ".venv-peers", "gpjax": ".venv-gpjax"}
SCRIPTS = {"gpytorch": "speed_peers", "gpflow": "speed_peers", "gpjax": "speed_gpjax"}
CSV = HERE / "speed.csv"
COLUMNS = [
    "device", "work", "dtype", "library", "ms", "low", "high", "ours_over_it", "first", "peak", "compilations", "floor",
    "moved",
]  # fmt: skip


class Contestant:
    """A process that takes turns."""

    def __init__(self, library: str, work: str, dtype: str) -> None:
        self.library, self.ms = library, list[float]()
        script = f"benchmarks.{SCRIPTS.get(library, 'speed_jax')}"
        command = [interpreter(library), "-m", script, library, work, dtype]
        # PYTHONPATH would lend one environment's packages to the other
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        pipes: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }
        self.process = subprocess.Popen(command, text=True, env=env, cwd=HERE.parent, **pipes)
        self.about = self._heard()

    def turn(self) -> None:
        """Take one."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.ms.append(self._heard()["ms"])

    def end(self) -> None:
        """Hear what it held and compiled."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.about |= self._heard()
        self.process.wait()

    def _heard(self) -> dict[str, float]:
        assert self.process.stdout is not None and self.process.stderr is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.library} stopped:\n" + self.process.stderr.read()[-2000:])
        return json.loads(line)  # type: ignore[no-any-return]


def contestants(work: str) -> list[str]:
    """Those that have the work, and are installed."""
    return [
        "ours",
        "reference",
        *(name for name, has in OFFERED.items() if work in has and interpreter(name)),
    ]


def interpreter(library: str) -> str:
    """What runs a library: the peers' environment, or this one if it holds it; "" if neither does."""
    if library not in OFFERED:
        return sys.executable
    own = HERE.parent / ENVIRONMENTS[library] / "bin" / "python"
    return str(own) if own.exists() else sys.executable if find_spec(library) else ""


def race(work: str, dtype: str, rounds: int, rates: Ceilings) -> list[list[Any]]:
    """The rows of one work in one precision. One round is taken beforehand, for what warms up."""
    # one is built after the other, for compiling takes both cores
    entered = [Contestant(library, work, dtype) for library in contestants(work)]
    for _ in range(rounds + 1):
        for each in entered:
            each.turn()
    for each in entered:
        each.end()
    ours, found = np.array(entered[0].ms[1:]), []
    # the operations of the work and the bytes they move are those of the reference
    least = floor(work, rates), entered[1].about["moved"] / 2**20
    for each in entered:
        ms = np.array(each.ms[1:])
        about = [each.about[name] for name in ("first", "peak", "compilations")]
        ratio = float(np.median(ours / ms))
        row = [
            rates.device,
            work,
            dtype,
            each.library,
            np.median(ms),
            ms.min(),
            ms.max(),
            ratio,
            *about,
            *least,
        ]
        found.append(row)
    return found


def show(found: list[dict[str, str]]) -> None:
    """The table, by work and precision."""
    table = Table("work", "precision", "library", "ms", "lowest", "ours / it", "first step, s", "peak, MiB", "compiled",
                  "matmuls alone, ms", "moved, MiB")  # fmt: skip
    for row in found:
        numbers = {name: float(row[name]) for name in COLUMNS[4:]}
        table.add_row(
            row["work"], row["dtype"], row["library"], f"{numbers['ms']:.2f}", f"{numbers['low']:.2f}",
            f"{numbers['ours_over_it']:.2f}", f"{numbers['first']:.1f}", f"{numbers['peak']:.0f}",
            f"{numbers['compilations']:.0f}",
            *(f"{numbers[name]:.2f}" if numbers[name] else "" for name in COLUMNS[-2:]),
            end_section=row["library"] == contestants(row["work"])[-1],
        )  # fmt: skip
    Console(width=150).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--works", default=",".join(USUAL))
    parser.add_argument("--precisions", default="float64,float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--again", action="store_true", help="also what speed.csv holds")
    parser.add_argument("--scaling", action="store_true")
    options = parser.parse_args()
    if options.scaling:
        from benchmarks.speed_scaling import scaling

        scaling()
        return
    for dtype in options.precisions.split(","):
        rates = ceilings(dtype)
        print(dtype, rates, flush=True)
        for work in options.works.split(","):
            held = rows.read(CSV)
            known = [
                row
                for row in held
                if (row["device"], row["work"], row["dtype"]) == (rates.device, work, dtype)
            ]
            if known and not options.again:
                continue
            found = race(work, dtype, options.rounds, ceilings(dtype, work) if work == "large" else rates)
            rows.write(CSV, COLUMNS, [row for row in held if row not in known] + found)
            show([dict(zip(COLUMNS, map(str, row), strict=True)) for row in found])


if __name__ == "__main__":
    main()
