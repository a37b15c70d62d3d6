"""Guides, α and objectives beside posteriors by NUTS: which approximation, and which diagnostic, is to be trusted?

    python -m benchmarks.trust --data DIR --store STORE [--problems …] [--share 0/8]      # fits what STORE lacks
    python -m benchmarks.trust --data DIR --store STORE --measure        # benchmarks/trust.csv, rows of what STORE has
    python -m benchmarks.trust_page                                      # tables of docs/which-to-trust.md

DIR holds ``uci/boston.npz``. Every fit of a small problem (:mod:`benchmarks.reference_problems`) is trained until it
has converged, or says that it has not; what it says at the problem's places is kept in STORE, a file for each fit, and
set beside the references in ``benchmarks/references``: ``kl_fitc`` and
``kl_dense``, KL[reference‖fit] of predictive densities in nats, the mean over places; ``mean_…``, the root mean square
error of the mean of f in the reference's deviations; ``deviation_…`` and ``spread_…``, that of the logarithm of the
deviation, and its mean (below 0 for a fit that is too sure); ``hyper_…``, error of the logarithms of hyperparameters in
the reference's deviations; ``hidden_…`` and ``hidden_spread_…``, hidden layers likewise, whose signs linear means tell
apart. Beside them what a user without a reference has: ELBO, importance-weighted bound, k-hat, LOO.

"points" learns hyperparameters, "sampled" gives them the references' priors and a normal q of their logarithms, which
the references have in any case. Problems drawn again are asked for by name, such as ``chirp.1``, and their rows go to
a table of their own, ``--out benchmarks/trust-again.csv``.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro

numpyro.enable_x64()

from numpyro.handlers import seed, substitute, trace  # noqa: E402
from numpyro.infer.autoguide import AutoNormal  # noqa: E402

from benchmarks import rows  # noqa: E402
from benchmarks.posterior_at_places import at_draws, held_and_drawn, predictive  # noqa: E402
from benchmarks.reference_problems import Problem, chosen, family, problems  # noqa: E402
from benchmarks.references import FOLDER, KINDS, save  # noqa: E402
from benchmarks.trust_cases import DEEP, INDUCING, KEY, OBJECTIVES, SERIES, Case, cases  # noqa: E402
from ppl_dgp import (  # noqa: E402
    Fit,
    Guide,
    PowerEP,
    default_priors,
    fit_series,
    fit_sghmc,
    fit_svi,
)
from ppl_dgp.diagnostics.draws import joint_draws  # noqa: E402
from ppl_dgp.diagnostics.khat import (  # noqa: E402
    elbo,
    expected_log_density,
    importance_weighted,
    sites_khat,
)

CSV = Path("benchmarks/trust.csv")
ABOUT = ("elbo", "iw_bound", "khat", "loo", "converged", "steps", "seconds", "refused")
MEASURES = ("kl", "mean", "deviation", "spread", "hyper_error", "hidden", "hidden_spread")
FIELDS = (
    *KEY, *(f"{measure}_{kind}" for measure in MEASURES for kind in KINDS), *ABOUT,
)  # fmt: skip
DRAWS, BUDGET, BUDGET_DEEP = 2000, 51_200, 102_400


@lru_cache(maxsize=8)
def _lifted(problem: Problem) -> Any:
    """The model with priors: one, so that what is compiled of it serves all its fits."""
    return problem.lifted("fitc")


def fitted(case: Case, problem: Problem) -> Fit:
    """The fit of a row."""
    deep, key = family(case.problem) in DEEP + SERIES, jax.random.key(case.seed)
    model = _lifted(problem) if case.hyper == "sampled" else problem.fitc
    x = problem.x if problem.x.size else None
    if case.objective == "SGHMC":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return fit_sghmc(key, model, x, problem.y, objective=PowerEP(case.alpha, num_particles=8))
    others = AutoNormal if case.hyper == "sampled" else None
    if not deep:
        guide = Guide(model, inducing=INDUCING[case.rule], others=others)
    elif case.rule.startswith("u: "):
        guide = Guide(model, inducing=INDUCING[case.rule.removeprefix("u: ")], others=others)
    else:
        guide = Guide(model, hidden=case.rule, others=others)
    verb = fit_series if family(case.problem) in SERIES else fit_svi
    budget = BUDGET_DEEP if deep else BUDGET
    objective = OBJECTIVES[case.objective](case.alpha)
    return verb(key, model, guide, objective, x, problem.y, budget=budget)


def at_places(problem: Problem, fit: Fit) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a fit says at the places, as draws, and the draws of its sites (1, S, …), or those of chains (C, S, …)."""
    x, y = jnp.asarray(problem.x), jnp.asarray(problem.y)
    if fit.chains is not None:
        held, draws = held_and_drawn(fit, DRAWS // 4)
        return at_draws(problem, "fitc", fit.model, held, draws, hidden=False), draws
    sampled = _sites(fit.guide)(dict(fit.params), jax.random.split(jax.random.key(2), DRAWS), x, y)
    draws = {name: value[None] for name, value in sampled.items()}
    return at_draws(problem, "fitc", fit.model, fit.params, draws), draws


@lru_cache(maxsize=8)
def _sites(guide: Any) -> Any:
    """Draws of a guide's sites, of parameters, keys, and data."""

    def one(params: dict[str, Any], key: Any, x: Any, y: Any) -> dict[str, Any]:
        sites = trace(substitute(seed(guide, key), data=params)).get_trace(x, y).values()
        wanted = [site for site in sites if site["type"] == "sample" and not site["is_observed"]]
        return {site["name"]: site["value"] for site in wanted if not site["name"].endswith("_unconstrained")}

    return jax.jit(jax.vmap(one, in_axes=(None, 0, None, None)))


def kept(case: Case, problem: Problem) -> dict[str, Any]:
    """What is kept of a fit: arrays by name, and ``about``, numbers by name."""
    about: dict[str, Any] = dict.fromkeys(ABOUT, "")
    began = time.perf_counter()
    try:
        fit = fitted(case, problem)
    except ValueError as refusal:
        about["refused"] = " ".join(str(refusal).split())
        return {"about": json.dumps(about)}
    about |= {"seconds": time.perf_counter() - began, "converged": bool(fit.converged)}
    about["steps"] = "" if fit.chains is not None else int(np.asarray(fit.losses).shape[-1])
    found, draws = at_places(problem, fit)
    arrays = predictive(found)
    for name in default_priors(problem.fitc, problem.x, problem.y):
        arrays[f"hyper/{name}"] = _log_mean(fit, draws, name)
    if "hidden" in found:
        arrays |= {
            "hidden_mean": found["hidden"].mean((0, 1)),
            "hidden_deviation": found["hidden"].std((0, 1)),
        }
    return {**arrays, "about": json.dumps(about | diagnostics(problem, fit))}


def measured(problem: Problem, fit: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a fit beside the references that are there."""
    row: dict[str, Any] = dict.fromkeys(FIELDS, "") | json.loads(str(fit["about"]))
    for kind in KINDS:
        path = FOLDER / f"{problem.name}-{kind}.npz"
        if row["refused"] or not path.exists():
            continue
        reference = {name: value.astype(float) for name, value in np.load(path).items() if name != "about"}
        row |= {f"{name}_{kind}": value for name, value in _beside(problem, reference, fit).items()}
        errors = [
            np.ravel((fit[name] - reference[f"{name}_mean"]) / reference[f"{name}_deviation"])
            for name in fit
            if f"{name}_mean" in reference and name.startswith("hyper/")
        ]
        row[f"hyper_error_{kind}"] = _root_mean_square(np.concatenate(errors))
        if "hidden_mean" in fit and "hidden_mean" in reference:
            there = reference["hidden_deviation"]
            error = (fit["hidden_mean"] - reference["hidden_mean"]) / there
            row[f"hidden_{kind}"] = _root_mean_square(error)
            row[f"hidden_spread_{kind}"] = float(np.log(fit["hidden_deviation"] / there).mean())
    return row


def _beside(problem: Problem, reference: dict[str, Any], said: dict[str, Any]) -> dict[str, float]:
    """Measures of f and of predictive densities."""
    p, q = reference["log_density"], said["log_density"]
    width = 1.0 if problem.values.dtype.kind in "iu" else float(np.diff(problem.values).mean())
    # both add up to 1 but for what lies beyond the values
    normal = lambda each: each - np.log(np.exp(each).sum(1, keepdims=True) * width)
    p, q = normal(p), normal(q)
    ratio = np.log(said["f_deviation"] / reference["f_deviation"])
    return {
        "kl": float((np.exp(p) * (p - q)).sum(1).mean() * width),
        "mean": _root_mean_square((said["f_mean"] - reference["f_mean"]) / reference["f_deviation"]),
        "deviation": _root_mean_square(ratio),
        "spread": float(ratio.mean()),
    }


def _root_mean_square(errors: Any) -> float:
    return float(np.sqrt(np.mean(np.square(errors))))


def _log_mean(fit: Fit, draws: dict[str, Any], name: str) -> Any:
    """E[log θ], of draws, or of a parameter that is a point."""
    return np.log(np.asarray(draws[name])).mean((0, 1)) if name in draws else np.log(fit.params[name])


def diagnostics(problem: Problem, fit: Fit) -> dict[str, Any]:
    """What is known without a reference."""
    x, y = problem.x if problem.x.size else None, problem.y
    train = (jnp.asarray(problem.x) if x is None else x), y
    value, _ = elbo(jax.random.key(3), fit, *train, num_draws=400)
    draws = joint_draws(jax.random.key(4), fit, *train, num_draws=1000, num_locals=16)
    return {
        "elbo": value, "iw_bound": importance_weighted(draws.log_ratio)[0], "khat": sites_khat(draws),
        "loo": expected_log_density(draws.log_likelihood)[0],
    }  # fmt: skip


def measure(wanted: list[Case], made: Callable[[str], Problem], store: Path, out: Path) -> None:
    """The CSV, of all fits that are there; rows of fits that are not are left as they are."""
    before = {tuple(row[name] for name in KEY): row for row in rows.read(out)}
    found: list[Any] = []
    for case in wanted:
        if case.path(store).exists():
            row = measured(made(case.problem), dict(np.load(case.path(store))))
            row |= {name: getattr(case, name) for name in KEY}
            found.append([_short(row[name]) for name in FIELDS])
        elif case.key in before:
            found.append(before[case.key])
    rows.write(out, FIELDS, found)


def _short(value: Any) -> Any:
    return f"{value:.5g}" if isinstance(value, float) else value


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--problems", help="by commas; all but those drawn again if not given")
    parser.add_argument("--rules", help="by commas; all if not given")
    parser.add_argument("--deep-seeds", type=int, default=2, help="of problems with hidden layers")
    parser.add_argument("--share", default="0/1", help="the rows that this process does, such as 2/8")
    parser.add_argument("--store", type=Path, required=True, help="the folder of what fits say")
    parser.add_argument("--measure", action="store_true", help="write the CSV, and fit nothing")
    parser.add_argument("--out", type=Path, default=CSV)
    options = parser.parse_args()
    known = problems(options.data)
    names = chosen(options.problems, known)
    wanted = list(cases(names, dict.fromkeys(DEEP + SERIES, options.deep_seeds)))
    made = cache(lambda name: known[name]())
    if options.measure:
        measure(wanted, made, options.store, options.out)
        return
    if options.rules is not None:
        wanted = [case for case in wanted if case.rule in options.rules.split(",")]
    share, shares = map(int, options.share.split("/"))
    for case in [each for each in wanted if not each.path(options.store).exists()][share::shares]:
        found = kept(case, made(case.problem))
        save(case.path(options.store), found)
        print(*case.key, found["about"], flush=True)


if __name__ == "__main__":
    main()
