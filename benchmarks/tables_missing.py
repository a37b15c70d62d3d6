"""The tables of missing entries: latent variable models and what people use instead, on the same held-out entries.

    make tables DATA=DIR SETS=oil,qpcr METHODS=gplvm,forests
    python -m benchmarks.tables_missing --data DIR --sets oil --splits 0-4 --share 0.3 --methods gplvm,deep-gplvm,vae
    python -m benchmarks.tables_missing_page                 # docs/tables-missing.md of what the CSV holds

DIR holds ``latent/<set>.npz``. Of a set at most ``MOST`` rows are taken, evenly spread; of those a ``share`` of the
entries is held out, drawn by the split's number. Columns are standardised by what is left. Every cell is a process of
its own that leaves centres and variances of all entries, which are scored here where they were held out. Methods are
those of ``benchmarks.tables_missing_ours``, which has imputers without a GP too, and vae of
``benchmarks.tables_missing_vae``. Rows are appended as in ``benchmarks.tables``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri

from benchmarks import tables
from benchmarks.latent_tables import standard
from benchmarks.predictive_scores import CENTRAL, of_shares
from benchmarks.rows import append_shown, numbers, read

CSV = Path("benchmarks/tables-missing.csv")
FIELDS = (
    "set", "share", "split", "seed", "method", "budget", "test_log_density", "rmse", "calibration", "coverage95",
    "seconds", "beside", "steps", "bound", "gap", "converged", "versions", "machine", "commit",
)  # fmt: skip
#: file and array of each set
SETS = {
    "oil": "oil_flow", "faces": "frey_faces", "qpcr": "guo_qpcr", "digits": "usps_all", "motion": "cmu35_walk_jog",
    "wireless": "robot_wireless",
}  # fmt: skip
MOST = 500
VAE = "vae"
#: methods that take no steps of ours
STEPLESS = ("mean", "ppca", "neighbours", "iteration", "forests", VAE)
OURS = ("gplvm", "gplvm.batches", "gplvm.amortised", "deep-gplvm")
BUDGET = 14_400


def path_of(data: Path, name: str) -> Path:
    """Where a set lies."""
    return data / "latent" / f"{SETS.get(name, name)}.npz"


def held_out(data: Path, name: str, share: float, number: int) -> dict[str, np.ndarray]:
    """Columns with NaN where entries are held out, standardised by the others, the truth there, and their scale."""
    with np.load(path_of(data, name)) as file:
        whole = file["Y"].astype(float)
    whole = whole[np.linspace(0, len(whole) - 1, min(MOST, len(whole))).astype(int)]
    gone = np.random.default_rng(number).random(whole.shape) < share
    left = np.where(gone, np.nan, whole)
    # a row or column of nothing, or of one value, says nothing of what it lacks
    some = (~gone).any(1)
    y, mean, scale = standard(left[some])
    kept = np.isin(np.arange(whole.shape[1]), _varying(left[some]))
    truth = (whole[some][:, kept] - mean) / scale
    return {"y": y, "truth": truth, "gone": gone[some][:, kept], "scale": scale}


def _varying(y: np.ndarray) -> np.ndarray:
    scale = np.nanstd(y, 0)
    return np.flatnonzero(scale > 1e-6 * max(scale.max(), 1e-12))


def scored(truth: np.ndarray, centre: np.ndarray, variance: np.ndarray) -> dict[str, float]:
    """Of entries that were held out, each a Gaussian: log density and RMSE in standard deviations of their column."""
    error = truth - centre
    density = -0.5 * (np.log(2.0 * np.pi * variance) + np.square(error) / variance)
    apart = np.abs(error) / np.sqrt(variance)
    shares = [float(np.mean(apart <= ndtri(0.5 + 0.5 * level))) for level in CENTRAL]
    found = {"test_log_density": float(density.mean()), "rmse": float(np.sqrt(np.square(error).mean()))}
    return found | of_shares(shares)


def run(options: argparse.Namespace, sets: list[str], methods: list[str]) -> None:
    """What the CSV does not hold yet, one process after another; what fails is said, and the next begun."""
    about = {"machine": tables.machine(), "commit": tables.commit(), "share": f"{options.share:g}"}
    for number in numbers(options.splits):
        for name in sets:
            rows = held_out(options.data, name, options.share, number)
            for method in methods:
                budget = 0 if method in STEPLESS else options.budget
                there = [row for row in read(options.out) if row["share"] == about["share"]]
                if tables.is_done(there, name, number, method, budget, options.timed):
                    continue
                beside: dict[str, Any] = {}
                with tables.others_at_work(beside):
                    found = cell(rows, number, method, budget)
                if found is None:
                    print(f"{name} {number} {method}: ended without a result", file=sys.stderr, flush=True)
                    continue
                cells = {"set": name, "split": number, "seed": number, "method": method, "budget": budget}
                append_shown(options.out, FIELDS, tables.as_row(cells | about | found | beside, FIELDS))


def cell(rows: dict[str, np.ndarray], seed: int, method: str, budget: int) -> dict[str, Any] | None:
    """The scores of what a method's process leaves, and what it says of itself; None if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        place, left = Path(folder) / "split.npz", Path(folder) / "left.npz"
        # what was held out stays here
        np.savez(place, y=rows["y"])
        module = f"benchmarks.tables_missing_{'vae' if method == VAE else 'ours'}"
        command = [str(tables.PEERS) if method == VAE else sys.executable, "-W", "ignore", "-m", module]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        done = subprocess.run(
            [*command, method, str(place), str(left), str(seed), str(budget)],
            stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines or not left.is_file():
            return None
        with np.load(left) as file:
            centre, variance = (file[part][rows["gone"]] for part in ("centre", "variance"))
    about: dict[str, Any] = json.loads(lines[-1])
    return about | scored(rows["truth"][rows["gone"]], centre, variance)


def refusal(data: Path, sets: list[str], methods: list[str]) -> str | None:
    """What cannot run, before any cell does: names that are none, data or an environment that are not there."""
    for name in sets:
        if not path_of(data, name).is_file():
            return f"--sets: found no {path_of(data, name)}, expected the table; name another"
    from benchmarks.tables_missing_ours import METHODS

    for method in methods:
        if method == VAE and not tables.PEERS.is_file():
            return f"--methods: found {method} without its environment; run `make bench-peers`"
        if method != VAE and method not in METHODS:
            return f"--methods: found {method!r}, expected some of {', '.join((*METHODS, VAE))}; choose"
    return None


def main() -> int:
    """All cells that are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds latent/")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--methods", default=",".join((*OURS, *STEPLESS)))
    parser.add_argument("--splits", default="0-4", help="0-4, or 0,3,5; the number is the seed too")
    parser.add_argument("--share", type=float, default=0.3, help="of the entries that is held out")
    parser.add_argument("--budget", type=int, default=BUDGET, help="steps of ours at most")
    parser.add_argument("--timed", action="store_true", help="run cells again whose seconds do not count")
    parser.add_argument("--out", type=Path, default=CSV)
    options = parser.parse_args()
    sets, methods = options.sets.split(","), options.methods.split(",")
    if not 0.0 < options.share < 1.0:
        parser.error(f"--share: found {options.share:g}, expected a number in (0, 1)")
    if (message := refusal(options.data, sets, methods)) is not None:
        parser.error(message)
    run(options, sets, methods)
    return 0


if __name__ == "__main__":
    sys.exit(main())
