"""Tables of 10⁷ and 10⁸ rows: seconds and memory until next to nothing but noise is left, beside LightGBM.

    python -m benchmarks.scale --folder DIR --rows 1e7 --kinds taxi,year --contestants sparse-gp,deep-gp-2,lightgbm
    python -m benchmarks.scale --folder DIR --rows 1e7 --kinds taxi --contestants steps-1,steps-2
    python -m benchmarks.scale_page                          # docs/scale.md of what the CSV holds

The rows are those of ``benchmarks.scale_rows``; files that DIR lacks are written first, 4 GB for 10⁸ rows of taxi and
for 10⁷ of year. Every contestant is a process of its own, judged now and then on rows that no file has; a row of the
CSV for each look, appended as it comes. Seconds leave imports and judging out, and have what was read, the pass that
finds the units, compilation and training. ``gap`` is how far the log density is below that of the noise itself, as a
share of it. LightGBM has its 31 leaves a tree, or 255. ``steps-1`` and ``steps-2`` train the sparse GP for a number of
steps in one process and in two, which share every minibatch. A contestant that has rows is not run again; ``beside`` is
as in ``benchmarks.tables``, and left out of ``steps-2``, each of whose processes is beside the other.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.cells import as_row, commit, machine
from benchmarks.rows import append_shown, done
from benchmarks.scale_rows import INPUTS, noise_log_density, written
from benchmarks.time_to_quality import PEERS

CSV = Path("benchmarks/scale.csv")
FIELDS = (
    "kind", "rows", "contestant", "length", "seconds", "reading", "gibibytes", "test_log_density", "rmse", "gap",
    "milliseconds", "loss", "converged", "beside", "machine", "commit",
)  # fmt: skip
BUDGETS = {
    "sparse-gp": 25_600,
    "deep-gp-2": 25_600,
    "lightgbm": 400,
    "lightgbm.255": 400,
    "steps-1": 1000,
    "steps-2": 1000,
}


def said_by(module: str, processes: list[list[object]], peer: bool = False) -> Iterator[dict[str, Any]]:
    """What the first of some processes prints, line by line, while all of them run."""
    python = str(PEERS) if peer else sys.executable
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    with ExitStack() as opened:
        running = [
            opened.enter_context(
                subprocess.Popen(
                    [python, "-W", "ignore", "-m", module, *map(str, words)],
                    stdout=subprocess.PIPE if number == 0 else subprocess.DEVNULL,
                    text=True,
                    env=environment,
                )
            )
            for number, words in enumerate(processes)
        ]
        assert running[0].stdout is not None
        for line in running[0].stdout:
            if line.startswith("{"):
                yield json.loads(line)
    for process in running:
        if process.returncode:
            print(f"{module}: ended with {process.returncode}", file=sys.stderr)


def looks(contestant: str, folder: Path, kind: str, most: int) -> Iterator[dict[str, Any]]:
    """A contestant's rows."""
    if contestant.startswith("lightgbm"):
        leaves = contestant.partition(".")[2] or "31"
        return said_by("benchmarks.scale_lightgbm", [[folder, kind, most, leaves]], peer=True)
    if not contestant.startswith("steps"):
        return said_by("benchmarks.scale_ours", [[contestant, folder, kind, most]])
    count = int(contestant.removeprefix("steps-"))
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    each = [["steps", folder, kind, most, count, number, port] for number in range(count)]
    return said_by("benchmarks.scale_ours", each)


def main() -> int:
    """All that the CSV does not hold yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="where the files are, or are to be")
    parser.add_argument("--rows", type=float, default=1e7)
    parser.add_argument("--kinds", default=",".join(INPUTS))
    parser.add_argument("--contestants", default=",".join(BUDGETS))
    parser.add_argument("--most", type=int, help="steps, or trees, at most")
    parser.add_argument("--out", type=Path, default=CSV)
    options = parser.parse_args()
    kinds, contestants = options.kinds.split(","), options.contestants.split(",")
    for name, found, known in (("kinds", kinds, INPUTS), ("contestants", contestants, BUDGETS)):
        if others := [each for each in found if each not in known]:
            parser.error(f"--{name}: found {others[0]!r}, expected some of {', '.join(known)}; choose")
    rows = int(options.rows)
    if rows < 200_000:
        parser.error(
            f"--rows: found {rows}, expected at least 2e5; smaller tables are those of `make tables`"
        )
    about = {"rows": rows, "machine": machine(), "commit": commit()}
    for kind in kinds:
        folder, best = written(options.folder, kind, rows), noise_log_density(kind)
        for contestant in contestants:
            if (kind, str(rows), contestant) in done(options.out, ["kind", "rows", "contestant"]):
                continue
            most = options.most or BUDGETS[contestant]
            for look in looks(contestant, folder, kind, most):
                if "test_log_density" in look:
                    look["gap"] = (best - look["test_log_density"]) / abs(best)
                cell = {"kind": kind, "contestant": contestant}
                append_shown(options.out, FIELDS, as_row(cell | about | look, FIELDS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
