"""Each number by two ways that have nothing but its definition in common, on configurations drawn at random.

    python -m benchmarks.differential --cases 200 --out benchmarks/differential.csv

* ``draws``: a closed form against draws: u carried otherwise than by shared draws, hidden layers by moments, or at
  α = 1 and one draw the bound of NumPyro's own ``Trace_ELBO``, for which f_n are independent given u;
* ``minibatches``: the mean over minibatches that make up the rows, against all rows at once;
* ``precision``: 32 bits against 64;
* ``together``: members of ``fit_many``, of tables of other lengths, against lone fits;
* ``devices``: four (virtual) devices against one.

What is random is compared by as many draws as make a standard error of a hundredth of a nat a row, or 10 000; the
rest by the digits. A row is appended for every case, so that it goes on where it was stopped; combinations that are
refused, or whose standard error is a tenth of a nat a row after a minute, are drawn anew. Exits with 1 if any case
differs.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import Trace_ELBO

from benchmarks import rows as table
from benchmarks.hostile_cases import LATENT, SERIES, Case, data_of, drawn, guide_of, model_of
from ppl_dgp import objectives
from ppl_dgp.fit import fit_many, fit_svi
from ppl_dgp.gp.contract import Representation
from ppl_dgp.objectives import PowerEP
from ppl_dgp.testing.oracles import in_32_bits, in_64_bits
from ppl_dgp.testing.trials import moved_parameters

ROWS, STEPS, DEVICES = 12, 3, 4
#: draws at a time and at most; of a row, the standard error at which they suffice, and from which nothing is compared
BATCH, MOST_DRAWS, WANTED_ERROR, WORST_ERROR = 500, 10_000, 0.01, 0.1
#: of draws; what is not good enough by then is not compared
MOST_SECONDS = 60.0
#: standard errors that a difference may have, of a thousand that are compared
MOST_ERRORS = 4.5
#: a refusal, of a combination that is none
REFUSED = (ValueError, TypeError)
#: outcomes of cases that are drawn anew
SKIPPED = ("refused", "noisy")
FIELDS = ("comparison", "number", "outcome", "difference", "allowed", "errors", "seconds", "what")


class SharedDraws(PowerEP):
    """Power EP with every u drawn, whatever could be integrated out."""

    def _representations(self, probe: Any, *rest: Any) -> dict[str, Representation]:
        return dict.fromkeys(super()._representations(probe, *rest), "shared_sample")


@dataclasses.dataclass(frozen=True)
class Found:
    """A difference, what it may be, and its standard error, 0 where nothing is random."""

    difference: float
    allowed: float
    error: float = 0.0

    @property
    def outcome(self) -> str:
        if self.error > WORST_ERROR * ROWS:
            return "noisy"
        return "equal" if self.difference <= self.allowed else "differs"


def benign(number: int) -> Case:
    """A case of the hostile campaign without the hostility."""
    case = drawn(number)
    rng = np.random.default_rng([number, 21])
    return dataclasses.replace(
        case, trouble="none", rows=ROWS, num_inducing=int(rng.choice([3, 5])), batch_size=None, wide=True
    )


class Trial:
    """A model, its guide and its data, at parameters that are nowhere special."""

    def __init__(self, case: Case) -> None:
        self.case, self.model = case, model_of(case)
        self.guide = guide_of(case, self.model)
        x, y = data_of(case)
        self.x = jnp.zeros((len(y), 0)) if x is None else jnp.asarray(x)
        self.y = jnp.asarray(y)
        self.params = moved_parameters(self.guide, self.model, self.x, self.y, step=0.1)
        self.rng = np.random.default_rng([case.number, 22])

    def mean(
        self, objective: Any, *, params: Any = None, batches: Any = None, wide: bool = True
    ) -> tuple[float, float]:
        """The mean of the loss and its standard error.

        :param batches: numbers of the rows (K, B) whose losses are averaged, all rows at once without.
        """
        with jax.enable_x64(wide):
            x, y = self.x, self.y
            params = self.params if params is None else params
            if not wide:
                narrow = lambda leaf: jnp.asarray(
                    leaf, np.asarray(leaf).dtype if leaf.dtype.kind != "f" else np.float32
                )
                params, x, y = jax.tree.map(narrow, (params, x, y))

            def one(key: Any, params: Any, x: Any, y: Any) -> Any:
                if batches is None:
                    return objective.loss(key, params, self.model, self.guide, x, y)
                each = [
                    objective.loss(
                        jax.random.fold_in(key, k),
                        params,
                        self.model,
                        self.guide,
                        x[i],
                        y[i],
                        index=i,
                        size=ROWS,
                    )
                    for k, i in enumerate(jnp.asarray(batches))
                ]
                return jnp.stack(each).mean()

            run = jax.jit(jax.vmap(one, (0, None, None, None)))
            values: list[np.ndarray] = []
            began = time.perf_counter()
            while True:
                keys = jax.random.split(jax.random.PRNGKey(len(values)), BATCH)
                values.append(np.asarray(run(keys, params, x, y), float))
                every = np.concatenate(values)
                error = float(every.std(ddof=1) / np.sqrt(len(every)))
                hopeless = error * np.sqrt(len(every) / MOST_DRAWS) > WORST_ERROR * ROWS
                late = time.perf_counter() - began > MOST_SECONDS
                if len(every) >= MOST_DRAWS or error < WANTED_ERROR * ROWS or hopeless or late:
                    return float(every.mean()), error


def compared(one: tuple[float, float], other: tuple[float, float], rounding: float) -> Found:
    """Two means with their errors; ``rounding`` is of the larger of the two, and of a nat a row."""
    error, scale = float(np.hypot(one[1], other[1])), max(abs(one[0]), abs(other[0]), float(ROWS))
    difference = abs(one[0] - other[0])
    random = error > 1e-9 * scale
    return Found(difference, MOST_ERRORS * error + rounding * scale, error if random else 0.0)


def objective_of(trial: Trial) -> Any:
    """One whose value is defined without reference to how it is computed."""
    case = trial.case
    name = (
        case.objective if case.objective in ("PowerEP", "BlackBoxAlpha", "ApproximatePowerEP") else "PowerEP"
    )
    return getattr(objectives, name)(case.alpha, num_particles=2)


def by_draws(trial: Trial) -> Found:
    """A closed form against draws."""
    ways: dict[str, Callable[[], tuple[Any, Any]]] = {
        "u": lambda: (
            PowerEP(trial.case.alpha, num_particles=2),
            SharedDraws(trial.case.alpha, num_particles=2),
        ),
        "bound": lambda: (PowerEP(1.0, num_particles=1), Trace_ELBO()),
        "moments": lambda: (PowerEP(0.0, propagation="moments"), PowerEP(0.0)),
    }
    # moments are known of two rules alone
    names = list(ways) if trial.case.hidden in ("mean-field", "markov") else list(ways)[:2]
    one, other = ways[names[trial.rng.integers(len(names))]]()
    return compared(trial.mean(one), trial.mean(other), 1e-9)


def by_minibatches(trial: Trial) -> Found:
    """The mean over minibatches against all rows."""
    size = int(trial.rng.choice([2, 3, 4, 6]))
    batches = trial.rng.permutation(ROWS).reshape(-1, size)
    objective = objective_of(trial)
    return compared(trial.mean(objective), trial.mean(objective, batches=batches), 1e-9)


def by_precision(trial: Trial) -> Found:
    """32 bits against 64, both at parameters that 32 bits have."""
    params = in_32_bits(trial.params)
    wide = in_64_bits(params)
    objective = objective_of(trial)
    # the jitter, larger in 32 bits, is part of the model
    users = "numerics.linalg", "prediction.rollout", "objectives.importance_weighted"
    with ExitStack() as patched:
        for module in users:
            patched.enter_context(patch(f"ppl_dgp.{module}.first_jitter", lambda dtype: 1e-5))
        patched.callback(jax.clear_caches)
        jax.clear_caches()
        narrow = trial.mean(objective, params=params, wide=False)
        return compared(trial.mean(objective, params=wide), narrow, 1e-3)


def alike(one: Any, other: Any) -> Found:
    """Two fits: losses and parameters, to rounding."""
    scale = max(float(np.abs(other.losses).max()), 1.0)
    worst = float(np.abs(one.losses - other.losses).max()) / scale
    for name, value in other.params.items():
        ours, theirs = np.asarray(one.params[name], float), np.asarray(value, float)
        size = max(1.0, float(np.abs(theirs).max(initial=0.0)))
        worst = max(worst, float(np.abs(ours - theirs).max(initial=0.0)) / size)
    return Found(worst, 1e-6)


def by_fits(trial: Trial) -> Found:
    """Two members of a program against lone fits; the second table is shorter where rows are a plate."""
    key, x, y = jax.random.PRNGKey(trial.case.number), np.asarray(trial.x), np.asarray(trial.y)
    fewer = ROWS if trial.case.model in (*SERIES, *LATENT) else ROWS - 2
    xs = None if x.shape[1] == 0 else [x, x[:fewer]]
    batch = None if trial.case.model in SERIES else [None, 4][trial.rng.integers(2)]
    settings: dict[str, Any] = {"steps": STEPS, "batch_size": batch}
    parts = trial.model, trial.guide, objective_of(trial)
    fits = fit_many(key, *parts, xs, [y, y[:fewer]], **settings)
    keys = jax.random.split(key, 2)
    lone = [
        fit_svi(
            keys[k],
            *parts,
            None if xs is None else xs[k],
            y[: (ROWS, fewer)[k]],
            **settings,
        )
        for k in range(2)
    ]
    return max(
        (alike(fit, one) for fit, one in zip(fits, lone, strict=True)), key=lambda found: found.difference
    )


def by_devices(trial: Trial) -> Found:
    """Rows shared by four devices against all on one."""
    key = jax.random.PRNGKey(trial.case.number)
    x = None if trial.x.shape[1] == 0 else np.asarray(trial.x)
    batch = None if trial.case.model in SERIES else [None, 4][trial.rng.integers(2)]
    settings: dict[str, Any] = {"steps": STEPS, "batch_size": batch}
    parts = key, trial.model, trial.guide, objective_of(trial), x, np.asarray(trial.y)
    return alike(fit_svi(*parts, **settings, devices=jax.devices()[:DEVICES]), fit_svi(*parts, **settings))


COMPARISONS: dict[str, Callable[[Trial], Found]] = {
    "draws": by_draws,
    "minibatches": by_minibatches,
    "precision": by_precision,
    "together": by_fits,
    "devices": by_devices,
}


def numbers(comparison: str) -> Iterator[int]:
    """Those of a comparison's cases, no two comparisons the same."""
    place = list(COMPARISONS).index(comparison)
    number = place
    while True:
        yield number
        number += len(COMPARISONS)


def run(comparison: str, wanted: int, path: Path) -> None:
    """Compare until there are so many rows that were not refused."""
    known = {(row["comparison"], int(row["number"])): row["outcome"] for row in table.read(path)}
    made = sum(name == comparison and outcome not in SKIPPED for (name, _), outcome in known.items())
    for number in numbers(comparison):
        if made >= wanted:
            return
        if (comparison, number) in known:
            continue
        case, began = benign(number), time.perf_counter()
        parts = ("model", "hidden", "inducing", "objective", "alpha", "likelihood", "kernel")
        what = " ".join(str(getattr(case, name)) for name in parts)
        try:
            found = COMPARISONS[comparison](Trial(case))
            shown = [found.outcome, f"{found.difference:.3g}", f"{found.allowed:.3g}"]
            shown.append("" if found.error == 0.0 else f"{found.difference / found.error:.2f}")
        except REFUSED as error:
            if "found" not in str(error):  # JAX's, of shapes or types
                raise
            shown = ["refused", "", "", ""]
            what += ": " + " ".join(str(error).split())[:160]
        made += shown[0] not in SKIPPED
        table.append(path, FIELDS, [comparison, number, *shown, f"{time.perf_counter() - began:.1f}", what])
        if number % 50 < len(COMPARISONS):  # programs of other cases are of no use
            jax.clear_caches()


def main() -> int:
    """Run the campaign; 1 if anything differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--comparisons", default=",".join(COMPARISONS))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/differential.csv"))
    settings = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", DEVICES)
    jax.config.update("jax_enable_x64", True)
    # most of a case is compilation
    jax.config.update("jax_disable_most_optimizations", True)
    warnings.simplefilter("ignore")
    for comparison in settings.comparisons.split(","):
        run(comparison, settings.cases, settings.out)
    found = table.read(settings.out)
    for comparison in COMPARISONS:
        ours = [row for row in found if row["comparison"] == comparison and row["outcome"] not in SKIPPED]
        errors = [float(row["errors"]) for row in ours if row["errors"]]
        text = f"{comparison}: {len(ours)} cases, {sum(row['outcome'] == 'differs' for row in ours)} differ"
        if errors:
            squared = np.mean(np.square(errors))
            text += (
                f"; {len(errors)} by draws: at most {max(errors):.1f} standard errors, {squared:.2f} squared"
            )
        print(text)
    wrong = [row for row in found if row["outcome"] == "differs"]
    for row in wrong:
        print(
            f"{row['comparison']} {row['number']}: {row['difference']} beside {row['allowed']}: {row['what']}"
        )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
