"""From ``import ppl_dgp`` to the first picture of a deep GP, in a new process: seconds and memory.

    python -m benchmarks.first_plot            # six processes: three begin with no compiled programs, three with theirs
    python -m benchmarks.first_plot --repeats 5 --steps auto

The five-minute start of docs/index.md: 60 rows of a step, a deep GP of two layers with M = 20, 2 000 steps of
``PowerEP(0.5)`` under ``Conditional``, a prediction at 200 inputs, and ``plot_fit`` as a file of SVG. "cold" has an
empty cache of compiled programs, "warm" what the one before it left there. Seconds are of the wall clock from the first
import on, those of the processor beside them, which other work on the machine hardly changes; memory is the largest
resident set.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STAGES = ("import", "fit", "predict", "plot")
ROWS, PLACES = 60, 200


def first_plot(place: Path, steps: str) -> None:
    """The whole way, whose seconds, stage by stage, and memory are printed as JSON."""
    clock = [time.perf_counter()]
    import jax
    import jax.numpy as jnp

    from ppl_dgp import Conditional, Guide, PowerEP, deep_gp, fit_svi, plot_fit, save_figure

    clock.append(time.perf_counter())
    key = jax.random.key(0)
    x = jnp.linspace(-1.5, 1.5, ROWS)[:, None]
    y = (x > 0) + 0.05 * jax.random.normal(key, x.shape)
    model = deep_gp(widths=(2,), num_inducing=20)
    guide = Guide(model, hidden=Conditional())
    fit = fit_svi(key, model, guide, PowerEP(0.5), x, y, steps="auto" if steps == "auto" else int(steps))
    clock.append(time.perf_counter())
    places = jnp.linspace(-2.0, 2.0, PLACES)[:, None]
    prediction = fit.predict(key, places, levels=(0.025, 0.975))
    clock.append(time.perf_counter())
    save_figure(plot_fit(prediction, places, x=x, y=y), place)
    clock.append(time.perf_counter())
    used = resource.getrusage(resource.RUSAGE_SELF)
    found: dict[str, float] = {
        stage: end - begin for stage, begin, end in zip(STAGES, clock, clock[1:], strict=False)
    }
    found |= {"all": clock[-1] - clock[0], "processor": used.ru_utime + used.ru_stime}
    # kilobytes on Linux, bytes on macOS
    found["gigabytes"] = used.ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)
    print(json.dumps(found))


def measured(cache: Path, steps: str) -> dict[str, float]:
    """The same in a process of its own, with this folder in the place of the user's cache."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, "-m", "benchmarks.first_plot", "--steps", steps]
    command += ["--here", str(cache / "fit.svg")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", default="2000", help="of the fit, or auto")
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here is not None:
        first_plot(options.here, options.steps)
        return
    found: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory() as folder:
            for each in found.values():
                each.append(measured(Path(folder), options.steps))
    for name, each in found.items():
        medians = {key: statistics.median(one[key] for one in each) for key in each[0]}
        print(f"{name}: " + ", ".join(f"{key} {value:.2f}" for key, value in medians.items()))


if __name__ == "__main__":
    main()
