"""The hostile campaign: nasty fits, each of which ends in finite and sane numbers or in an error of one line.

    python -m benchmarks.hostile --cases 3000 --out benchmarks/hostile.csv

A case is ``finite``, or ``refused`` before anything is compiled; or, of numbers that no check could foresee,
``rejected``: finite, after steps that were rejected, which its advice says, or ``stopped``, by the ``FitError`` of
steps that were rejected one after another. A row is appended for every case as soon as it is known, and cases that
have a row are left out: it goes on where it was stopped. Each case has a time and a process that can be killed.
Prints how the cases ended; exits with 1 if any ended in anything else.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import resource
import sys
import time
import warnings
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import rows as table
from benchmarks.hostile_cases import CLASSES, COUNTS, LATENT, data_of, drawn, guide_of, model_of

STEPS, MOST_REJECTED, AHEAD, DRAWS, BUDGET = 5, 3, 3, 5, 180.0
#: of one target: a point mass of deviation 10⁻⁶
MOST_DENSITY = float(-np.log(1e-6) - 0.5 * np.log(2.0 * np.pi))
MOST_MEMORY = 4 * 2**30
FINE = ("finite", "refused", "rejected", "stopped")
#: that an error comes too late after; others look at data or keys
PROGRAMS = ("eval_jaxpr", "run", "program", "block", "rows")
DOCUMENTED = ("ValueError", "TypeError", "DataError", "FitError", "CheckpointError")
FIELDS = ("number", "outcome", "detail", "seconds", "model", "hidden", "inducing", "objective", "alpha", "likelihood",
          "kernel", "trouble", "rows", "inputs", "outputs", "num_inducing", "batch_size", "wide")  # fmt: skip


class Compiled(logging.Handler):
    """Whether any of a fit's programs has been compiled: its start, its steps, a prediction."""

    def __init__(self) -> None:
        import jax

        super().__init__()
        self.any = False
        jax.config.update("jax_log_compiles", True)
        for name in ("jax._src.dispatch", "jax._src.interpreters.pxla"):
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = [self], False

    def emit(self, record: logging.LogRecord) -> None:
        if "Finished XLA compilation" in (text := record.getMessage()):
            self.any |= any(f"jit({name})" in text for name in PROGRAMS)


def outcome(number: int, compiled: Compiled) -> tuple[str, str]:
    """How a case ends: one of ``FINE``, or what is wrong with it; and what is said of it."""
    import jax

    case, compiled.any = drawn(number), False
    with jax.enable_x64(case.wide):
        try:
            return _fitted(case)
        except Exception as error:
            kind, text = type(error).__name__, str(error).partition("\n----")[0].strip()
            if kind not in DOCUMENTED or not text or "\n" in text or ":" not in text:
                return "wrong error", f"{kind}: {' '.join(text.split())[:300]}"
            if kind == "FitError" and "in a row" in text:
                return "stopped", text[:300]
            return "refused late" if compiled.any else "refused", f"{kind}: {text[:300]}"


def _fitted(case: Any) -> tuple[str, str]:
    import jax
    from numpyro.infer import Trace_ELBO

    from ppl_dgp import objectives
    from ppl_dgp.fit import fit_lbfgs, fit_svi

    key, (x, y) = jax.random.PRNGKey(case.number), data_of(case)
    model = model_of(case)
    guide = guide_of(case, model)
    if case.objective == "Trace_ELBO":
        objective: Any = Trace_ELBO()
    elif case.objective == "ImportanceWeighted":
        objective = objectives.ImportanceWeighted(3, case.alpha)
    else:
        objective = getattr(objectives, case.objective)(case.alpha)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if case.objective == "Collapsed":
            fit = fit_lbfgs(key, model, x, y, guide=guide, objective=objective, steps=STEPS)
        else:
            fit = fit_svi(
                key, model, guide, objective, x, y,
                steps=STEPS, batch_size=case.batch_size, max_rejected_in_a_row=MOST_REJECTED,
            )  # fmt: skip
    if not np.isfinite(fit.losses).all() and not any(each.startswith("rejected") for each in fit.advice):
        return "loss not finite", str(fit.losses.ravel()[:5])
    wrong = [name for name, value in fit.params.items() if not np.isfinite(np.asarray(value)).all()]
    if wrong:
        return "parameters not finite", ", ".join(wrong)
    sane = ("finite", "") if np.isfinite(fit.losses).all() else ("rejected", fit.advice[0])
    return _unbelievable(case, fit, x, y) or sane


def _unbelievable(case: Any, fit: Any, x: Any, y: Any) -> tuple[str, str] | None:
    """What is wrong with what the fit says of new rows, steps ahead or rows' latents, and of targets that were seen."""
    import jax

    from ppl_dgp.prediction.forecast import forecast
    from ppl_dgp.prediction.latents import infer_latents, row_log_density
    from ppl_dgp.prediction.predict import predict

    key = jax.random.PRNGKey(case.number)
    numbers: dict[str, Any] = {}
    if case.model in LATENT:
        rows = slice(0, 2)
        known = infer_latents(key, fit, None if x is None else x[rows], y[rows], steps=STEPS)
        density = None
        if all(np.asarray(site.scale).any() for site in known.sites.values()):
            inputs = None if x is None else x[rows]
            density = row_log_density(key, fit, inputs, y[rows], latents=known, num_samples=DRAWS)
        numbers = {"mean": known.mean, "variance": known.variance}
    elif case.model in ("gpssm", "switching_gpssm"):
        steps = AHEAD if x is None else np.asarray(x)[:1].repeat(AHEAD, 0)
        future = np.asarray(y)[:1].repeat(AHEAD, 0)
        ahead = forecast(key, fit, x, y, steps, y_future=future, num_samples=DRAWS)
        numbers, density = {"mean": ahead.mean, "variance": ahead.variance}, ahead.log_density
    elif "ssm" not in case.model:
        new = np.concatenate([np.asarray(x)[:1], np.asarray(x)[:1] * 3.0 + 1.0])
        found = predict(key, fit, new, np.asarray(y)[:1].repeat(2, 0), num_samples=DRAWS)
        numbers = {name: getattr(found, name) for name in ("mean", "variance", "f_mean", "f_variance")}
        density = found.log_density
    else:
        return None
    for name, value in numbers.items():
        if not np.isfinite(value).all():
            return "prediction not finite", f"{name} {np.ravel(value)[:3]}"
        if name.endswith("variance") and (value < 0.0).any():
            return "negative variance", f"{name} {np.min(value)}"
    if density is not None and not np.isnan(y.astype(float)).any():
        most = 1e-6 if case.likelihood in (*CLASSES, *COUNTS) else MOST_DENSITY * np.shape(y)[-1]
        if not (density <= most).all():
            return "density not believable", f"{density[:3]}, at most {most:.3g}"
    return None


def _work(numbers: Any, results: Any) -> None:
    """A process that makes cases one after another, within a bound of memory."""
    import jax

    # most of a case is compilation, of programs that run once
    jax.config.update("jax_disable_most_optimizations", True)
    compiled = Compiled()
    while (number := numbers.get()) is not None:
        began = time.perf_counter()
        ended = outcome(number, compiled)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        results.put((number, *ended, time.perf_counter() - began, grown))


def run(todo: list[int], path: Path) -> None:
    """Make the cases, a row each; a process is replaced when it hangs, dies or has grown."""
    context = multiprocessing.get_context("spawn")
    worker, numbers, results = None, context.Queue(), context.Queue()
    for number in todo:
        if worker is None or not worker.is_alive():
            numbers, results = context.Queue(), context.Queue()
            worker = context.Process(target=_work, args=(numbers, results), daemon=True)
            worker.start()
        numbers.put(number)
        began, found = time.perf_counter(), None
        while found is None and worker.is_alive() and time.perf_counter() - began < BUDGET:
            try:
                found = results.get(timeout=1.0)
            except Exception:  # nothing yet
                continue
        if found is None:
            ended = "hang" if worker.is_alive() else f"died with {worker.exitcode}"
            found = number, ended, "", time.perf_counter() - began, 0
            worker.kill()
            worker.join()
        elif found[4] > MOST_MEMORY:
            numbers.put(None)
            worker.join()
        about = asdict(drawn(number)) | {
            "outcome": found[1],
            "detail": found[2],
            "seconds": f"{found[3]:.1f}",
        }
        table.append(path, FIELDS, [about[name] for name in FIELDS])
    if worker is not None:
        numbers.put(None)
        worker.join(10.0)


def main() -> int:
    """Run the campaign; 1 if a case ended in none of ``FINE``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/hostile.csv"))
    settings = parser.parse_args()
    done = {int(number) for (number,) in table.done(settings.out, ["number"])}
    run([n for n in range(settings.first, settings.first + settings.cases) if n not in done], settings.out)
    rows = table.read(settings.out)
    count = Counter(row["outcome"] for row in rows)
    print(f"{len(rows)} cases: " + ", ".join(f"{number} {name}" for name, number in count.most_common()))
    for row in rows:
        if row["outcome"] not in ("finite", "refused"):
            print(f"case {row['number']}: {row['outcome']}: {row['detail']}")
    return int(not count.keys() <= {*FINE})


if __name__ == "__main__":
    sys.exit(main())
