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

import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri

from benchmarks.cells import PEERS, parser_of, run, told
from benchmarks.latent_tables import standard
from benchmarks.predictive_scores import CENTRAL, of_shares

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
OURS = ("gplvm", "gplvm.scaled", "gplvm.batches", "gplvm.amortised", "deep-gplvm")
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


def cell(rows: dict[str, np.ndarray], seed: int, method: str, budget: int) -> dict[str, Any] | None:
    """The scores of what a method's process leaves, and what it says of itself; None if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        place, left = Path(folder) / "split.npz", Path(folder) / "left.npz"
        # what was held out stays here
        np.savez(place, y=rows["y"])
        module = f"benchmarks.tables_missing_{'vae' if method == VAE else 'ours'}"
        about = told(module, method, place, left, seed, budget, peer=method == VAE)
        if about is None:
            return None
        with np.load(left) as file:
            centre, variance = (file[part][rows["gone"]] for part in ("centre", "variance"))
    return about | scored(rows["truth"][rows["gone"]], centre, variance)


def refusal(data: Path, sets: list[str], methods: list[str]) -> str | None:
    """What cannot run, before any cell does: names that are none, data or an environment that are not there."""
    for name in sets:
        if not path_of(data, name).is_file():
            return f"--sets: found no {path_of(data, name)}, expected the table; name another"
    from benchmarks.tables_missing_ours import METHODS

    for method in methods:
        if method == VAE and not PEERS.is_file():
            return f"--methods: found {method} without its environment; run `make bench-peers`"
        if method != VAE and method not in METHODS:
            return f"--methods: found {method!r}, expected some of {', '.join((*METHODS, VAE))}; choose"
    return None


def main() -> int:
    """All cells that are asked for."""
    parser = parser_of(__doc__, tuple(SETS), (*OURS, *STEPLESS), "0-4", BUDGET, CSV)
    parser.add_argument("--share", type=float, default=0.3, help="of the entries that is held out")
    options = parser.parse_args()
    sets, methods = options.sets.split(","), options.methods.split(",")
    if not 0.0 < options.share < 1.0:
        parser.error(f"--share: found {options.share:g}, expected a number in (0, 1)")
    if (message := refusal(options.data, sets, methods)) is not None:
        parser.error(message)
    work_of = lambda name, number: partial(cell, held_out(options.data, name, options.share, number), number)
    budget_of = lambda method: 0 if method in STEPLESS else options.budget
    run(options, FIELDS, work_of, budget_of, {"share": f"{options.share:g}"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
