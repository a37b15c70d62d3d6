"""Our contestants of ``benchmarks.scale``: heteroscedastic GPs on rows that are streamed from their files.

    python -m benchmarks.scale_ours CONTESTANT FOLDER KIND BUDGET
    python -m benchmarks.scale_ours steps FOLDER KIND STEPS PROCESSES [PROCESS PORT]

``sparse-gp`` has one layer, ``deep-gp-2`` a hidden layer of five functions; f and the logarithm of the noise are its
outputs. ``fit_stream`` without steps; where its plan has reached so many of them, the fit so far is judged. ``steps``
trains the sparse GP for a number of steps, alone or as one of several processes that share every minibatch.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro

numpyro.enable_x64()

from benchmarks.cells import others_since, work_so_far  # noqa: E402
from benchmarks.scale_rows import judged  # noqa: E402
from ppl_dgp.data import RowSource, open_rows  # noqa: E402
from ppl_dgp.diagnostics import held_out_scores  # noqa: E402
from ppl_dgp.fit import Fit, Interrupted, fit_stream  # noqa: E402
from ppl_dgp.guides import DoublyStochastic, Guide  # noqa: E402
from ppl_dgp.models import deep_heteroscedastic_gp, sparse_heteroscedastic_gp  # noqa: E402
from ppl_dgp.objectives import PowerEP  # noqa: E402

INDUCING, BATCH, DRAWS, CHUNK = 200, 2000, 20, 100
WIDTHS = (5,)
LOOKS = (400, 800, 1600, 3200, 6400, 12_800, 25_600)


def program_of(contestant: str) -> tuple[Any, Guide]:
    """A model and its guide."""
    if contestant == "sparse-gp":
        model: Any = sparse_heteroscedastic_gp(INDUCING)
        return model, Guide(model)
    model = deep_heteroscedastic_gp(WIDTHS, INDUCING)
    return model, Guide(model, DoublyStochastic())


def gibibytes() -> float:
    """The most memory that the process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def looks(contestant: str, folder: Path, kind: str, budget: int) -> Iterator[dict[str, Any]]:
    """Seconds, memory and quality where so many steps are done."""
    began, work = time.perf_counter(), work_so_far()
    rows = open_rows(folder, target="y").standardised()
    passed = time.perf_counter() - began
    model, guide = program_of(contestant)
    about = model, guide, PowerEP(0.0), rows
    with tempfile.TemporaryDirectory() as place:
        for number, end in enumerate(look for look in LOOKS if look <= budget):

            def stop(step: int, _losses: Any, end: int = end) -> None:
                if step >= end:
                    raise KeyboardInterrupt

            kept = {"checkpoint": Path(place) / "kept", "resume": number > 0, "on_chunk": stop}
            settings: dict[str, Any] = {"batch_size": BATCH, "budget": budget, "chunk": CHUNK}
            try:
                fit = fit_stream(jax.random.key(0), *about, **settings, **kept)  # type: ignore[arg-type]
            except Interrupted as stopped:
                fit = stopped.fit
            seen = {
                "length": fit.steps, "seconds": passed + fit.seconds, "reading": passed + fit.input_seconds,
                "gibibytes": gibibytes(), "converged": fit.converged,
            }  # fmt: skip
            yield seen | others_since(work) | quality(fit, rows, kind)
            if fit.converged or fit.steps < end:
                return


def quality(fit: Fit, rows: RowSource, kind: str) -> dict[str, float]:
    """Log density and RMSE of the rows that are judged, in the units of the files."""
    x, y, _, _ = judged(kind)
    assert rows.x_units is not None and rows.y_units is not None
    at, targets = rows.x_units.transform(x.astype(float)), rows.y_units.transform(y[:, None].astype(float))
    found = held_out_scores(
        jax.random.key(1), fit, at, targets, num_samples=DRAWS, target_scale=rows.y_units.scale
    )
    return {"test_log_density": found["test_log_density"], "rmse": found["test_rmse"]}


def steps(folder: Path, kind: str, count: int, processes: int) -> dict[str, Any]:
    """Milliseconds a step of the sparse GP, without compilation, and where its loss has come to."""
    work = work_so_far()
    rows = open_rows(folder, target="y").standardised()
    model, guide = program_of("sparse-gp")
    times: list[tuple[int, float]] = []
    fit = fit_stream(
        jax.random.key(0), model, guide, PowerEP(0.0), rows, steps=count, batch_size=BATCH, chunk=CHUNK,
        parts=2, on_chunk=lambda step, _: times.append((step, time.perf_counter())),
    )  # fmt: skip
    (first, began), (last, ended) = times[0], times[-1]
    return {
        "length": fit.steps, "seconds": ended - began, "milliseconds": 1e3 * (ended - began) / (last - first),
        "gibibytes": gibibytes(), "loss": float(np.mean(fit.losses[0, -CHUNK:])) / rows.count,
        **(others_since(work) if processes == 1 else {}),
    }  # fmt: skip


def main() -> None:
    """Print a line of JSON for each look."""
    contestant, folder, kind, budget = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    if contestant != "steps":
        for look in looks(contestant, folder, kind, budget):
            print(json.dumps(look), flush=True)
        return
    processes = int(sys.argv[5])
    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"localhost:{sys.argv[7]}", processes, int(sys.argv[6]))
    found = steps(folder, kind, budget, processes)
    if jax.process_index() == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
