"""Seconds to a given quality: test log density along the training of deep GPs, ours and the peers', process by process.

    python -m benchmarks.time_to_quality --data DIR --sets boston,energy --splits 0-4 --contestants auto,adam,gpflux
    python -m benchmarks.time_to_quality --table             # of what the CSV holds

DIR holds ``uci/<set>.npz``. Two layers, hidden width min(30, D), of GPflux D, M = 100, standardised by the training
rows; batches of 1000 where there are more than 2000 rows; 64 bits, of GPyTorch its 32. ``auto`` is ``fit_svi`` without
settings, ``start`` the same stopped after ten steps, where it has not left its shallow start, ``adam`` Adam at 0.01,
``gpflux`` and ``gpytorch`` have the settings of their own tutorials: Adam at 0.01, which GPflux lowers on plateaux;
draws of the hidden layers in training 1, of GPyTorch 10. A process of its own begins each; its seconds are those since
its imports, compilation included, without those of judging. Rows are appended as they come, and a contestant that has
rows for a split is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rows import append, done, numbers, read

CSV = Path("benchmarks/time_to_quality.csv")
FIELDS = (
    "set", "split", "contestant", "steps", "seconds", "bound", "test_log_density", "rmse", "gap", "converged",
)  # fmt: skip
#: of the sources after 20 000 steps (mean over splits, standard deviation)
SOURCES = {
    "boston": (-2.458, 0.237), "energy": (-0.657, 0.124), "kin8nm": (1.364, 0.022), "naval": (6.656, 0.990),
    "protein": (-2.783, 0.012), "wine_red": (-0.951, 0.069),
}  # fmt: skip
CONTESTANTS = ("start", "auto", "adam", "gpflux", "gpytorch")
PEERS = Path(".venv-peers/bin/python")
DRAWS, INDUCING, FULL_BATCH, BATCH = 100, 100, 2000, 1000
#: where quality is looked at, of what has a given number of steps
LOOKS = (250, 500, 1000, 2000, 4000, 8000, 16_000)


def prepared(data: Path, name: str, number: int, place: Path) -> None:
    """A split, standardised by its training rows, in a file that every contestant reads."""
    with np.load(data / "uci" / f"{name}.npz") as file:
        x, y = file["X"].astype(float), file["y"].reshape(len(file["X"]), -1).astype(float)
        train, test = (np.ravel(file[part][number]) for part in ("train", "test"))
    spread = lambda values: np.where(values.std(0) > 1e-12 * (1.0 + abs(values.mean(0))), values.std(0), 1.0)
    means, scales = zip(*((values[train].mean(0), spread(values[train])) for values in (x, y)), strict=True)
    x, y = ((values - mean) / scale for values, mean, scale in zip((x, y), means, scales, strict=True))
    np.savez(place, x=x[train], y=y[train], x_test=x[test], y_test=y[test], scale=scales[1])


def ours(place: Path, seed: int, contestant: str, budget: int) -> Iterator[dict[str, Any]]:
    """Steps, seconds and quality at the ends of phases of "auto", at ``LOOKS`` of Adam."""
    import jax
    import numpyro

    numpyro.enable_x64()
    from ppl_dgp.diagnostics import held_out_scores
    from ppl_dgp.fit import Interrupted, fit_svi
    from ppl_dgp.fit.plan import plan_of
    from ppl_dgp.guides import DoublyStochastic, Guide
    from ppl_dgp.models import deep_gp
    from ppl_dgp.objectives import PowerEP

    rows = np.load(place)
    x, y = rows["x"], rows["y"]
    model = deep_gp((min(30, x.shape[1]),), min(INDUCING, len(x)))
    about = model, Guide(model, DoublyStochastic()), PowerEP(0.0), x, y
    settings: dict[str, Any] = {"batch_size": None if len(x) <= FULL_BATCH else BATCH}
    looks: list[tuple[int, dict[str, Any]]] = [
        (steps, {"steps": steps, "learning_rate": 0.01}) for steps in LOOKS if steps <= budget
    ]
    if contestant == "start":
        # the first steps of "auto" move nothing
        looks, settings["chunk"] = [(10, {"budget": budget})], 10
    if contestant == "auto":
        # at the end of the first trial, and of each cycle
        plan = plan_of("auto", budget, None, None, None, 100, len(x), begin="shallow")
        ends = plan.ends(budget)  # type: ignore[union-attr]
        looks = [(end, {"budget": budget}) for end in (ends[0], *ends[len(plan.trials) :])]  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory() as folder:
        for number, (end, look) in enumerate(looks):

            def stop(step: int, _losses: Any, end: int = end) -> None:
                if step == end < budget:
                    raise KeyboardInterrupt

            kept = {"checkpoint": Path(folder) / "kept", "resume": number > 0, "on_chunk": stop}
            try:
                fit = fit_svi(jax.random.key(seed), *about, **look, **settings, **kept)  # type: ignore[arg-type]
            except Interrupted as stopped:
                fit = stopped.fit
            found = held_out_scores(
                jax.random.key(1),
                fit,
                rows["x_test"],
                rows["y_test"],
                num_samples=DRAWS,
                target_scale=rows["scale"],
            )
            yield {
                "steps": fit.steps, "seconds": fit.seconds, "bound": -float(np.nanmean(fit.losses[0, -100:])),
                "test_log_density": found["test_log_density"], "rmse": found["test_rmse"], "gap": fit.gap,
                "converged": fit.converged,
            }  # fmt: skip
            if contestant == "auto" and fit.converged:
                return


def run(options: argparse.Namespace) -> None:
    """What the CSV does not hold yet, one process after another."""
    known = done(options.out, ["set", "split", "contestant"])
    for name in options.sets.split(","):
        for number in options.numbers:
            for contestant in options.contestants.split(","):
                if (name, str(number), contestant) in known:
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    place = Path(folder) / "split.npz"
                    prepared(options.data, name, number, place)
                    for found in _process(contestant, place, number, options.budget):
                        row = [name, number, contestant, *(found.get(field, "") for field in FIELDS[3:])]
                        text = [f"{each:.6g}" if isinstance(each, float) else each for each in row]
                        append(options.out, FIELDS, text)
                        print(*text, flush=True)


def _process(contestant: str, place: Path, seed: int, budget: int) -> Iterator[dict[str, Any]]:
    """What a process of a contestant prints, line by line."""
    if contestant in ("start", "auto", "adam"):
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.time_to_quality", "--one", contestant]
    else:
        command = [str(PEERS), "-W", "ignore", "-m", "benchmarks.time_to_quality_peers", contestant]
    command += [str(place), str(seed), str(budget)]
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false", "TF_CPP_MIN_LOG_LEVEL": "3"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
    if process.returncode:
        print(f"{contestant}: ended with {process.returncode}", file=sys.stderr)


def table(place: Path) -> str:
    """Markdown: of every set the last quality of each contestant, mean and standard error, and seconds to GPflux's."""
    rows = read(place)
    lines = [
        "| set | contestant | splits | steps | seconds | test log density | converged | seconds to GPflux's last |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["set"] for row in rows):
        for contestant in CONTESTANTS:
            curves = _curves(rows, name, contestant)
            if not curves:
                continue
            last = [curve[-1] for curve in curves.values()]
            density = np.array([float(each["test_log_density"]) for each in last])
            error = f" ± {density.std(ddof=1) / np.sqrt(len(density)):.3f}" if len(density) > 1 else ""
            mean = lambda field, last=last: np.mean([float(each[field]) for each in last])
            reached = _reached(curves, _curves(rows, name, "gpflux"))
            converged = str(sum(each["converged"] == "True" for each in last))
            if contestant != "auto":
                converged = ""
            lines.append(
                f"| {name} | {contestant} | {len(last)} | {mean('steps'):.0f} | {mean('seconds'):.0f} | "
                f"{density.mean():.3f}{error} | {converged} | {reached} |"
            )
    return "\n".join(lines)


def _curves(rows: list[dict[str, str]], name: str, contestant: str) -> dict[str, list[dict[str, str]]]:
    """By split."""
    curves: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        if (row["set"], row["contestant"]) == (name, contestant):
            curves.setdefault(row["split"], []).append(row)
    return curves


def _reached(curves: dict[str, list[dict[str, str]]], peers: dict[str, list[dict[str, str]]]) -> str:
    """The mean of seconds until a look at which the peer's last quality is there."""
    seconds = []
    for split in curves.keys() & peers.keys():
        wanted = float(peers[split][-1]["test_log_density"])
        there = [float(row["seconds"]) for row in curves[split] if float(row["test_log_density"]) >= wanted]
        seconds.append(min(there, default=np.inf))
    return f"{np.mean(seconds):.0f}" if seconds else ""


def main() -> int:
    """One contestant, all that are asked for, or the table."""
    if sys.argv[1:2] == ["--one"]:
        contestant, place, seed, budget = sys.argv[2:6]
        for found in ours(Path(place), int(seed), contestant, int(budget)):
            print(json.dumps(found), flush=True)
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", default=",".join(SOURCES))
    parser.add_argument("--splits", default="0-4")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--budget", type=int, default=14_400, help="steps")
    parser.add_argument("--out", type=Path, default=CSV)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print(table(options.out))
        return 0
    if options.data is None:
        parser.error("--data: found none, expected the folder that holds uci/<set>.npz")
    options.numbers = numbers(options.splits)
    began = time.perf_counter()
    run(options)
    print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
