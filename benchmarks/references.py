"""Posteriors of nine small problems by NUTS, which approximations are judged by.

    python -m benchmarks.references --data DIR        # makes those that are not there; --problems, --kinds
    python -m benchmarks.references --table

DIR holds ``uci/boston.npz``. Of each problem (:mod:`benchmarks.reference_problems`) the FITC and the dense model are
sampled by four chains of 2 500 draws or more. What is kept, in ``benchmarks/references/PROBLEM-KIND.npz``: means and
deviations of f at places (``f_mean``, ``f_deviation``), the log predictive density at values there (``log_density``,
(S, G)), means and deviations of the logarithms of hyperparameters (``hyper/…``) and of hidden layers at the training
rows (``hidden``), and how the chains went (``about``: R-hat of f and of hyperparameters, the least effective number of
draws of either, divergences, seconds, versions). Hidden layers have linear means, which tell h from −h. The dense model
of boston is left out where problems are not named: chains stay in several modes.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro

numpyro.enable_x64()

from numpyro.diagnostics import effective_sample_size, split_gelman_rubin  # noqa: E402

from benchmarks.drawn_functions import DrawFunctions  # noqa: E402
from benchmarks.posterior_at_places import at_draws, held_and_drawn, predictive  # noqa: E402
from benchmarks.reference_problems import Problem, chosen, family, problems  # noqa: E402
from ppl_dgp import Fit, fit_nuts  # noqa: E402
from ppl_dgp.fit import SamplingWarning  # noqa: E402

FOLDER = Path("benchmarks/references")
#: last names of sites that are no hyperparameters
LATENTS = {"u", "e", "h", "path", "x"}
KINDS = ("fitc", "dense")
#: beyond which a reference is marked, and draws looked at of each chain
LARGEST_R_HAT, LOOKED_AT = 1.01, 1000
#: in which chains stay in several modes
SEVERAL_MODES = {("boston", "dense")}
#: steps of adaptation, draws of each chain, and the share of trajectories that is accepted; of some problems others
USUAL: dict[str, Any] = {"warmup": 1500, "draws": 2500, "accept": 0.9}
OWN: dict[str, dict[str, Any]] = {
    "step": {"warmup": 800, "draws": 5000, "accept": 0.95},
    "chirp": {"accept": 0.95},
    "kink": {"draws": 4000},
}


def sampled_model(problem: Problem, kind: str) -> Any:
    """What is sampled: f beside u where it has no closed form."""
    return DrawFunctions(problem.lifted(kind), known=kind == "dense")


def sampled(problem: Problem, kind: str, options: argparse.Namespace) -> Fit:
    """The chains."""
    own = USUAL | OWN.get(family(problem.name), {})
    own |= {name: value for name in USUAL if (value := getattr(options, name)) is not None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        return fit_nuts(
            jax.random.key(options.seed), sampled_model(problem, kind), problem.x if problem.x.size else None,
            problem.y, num_warmup=own["warmup"], num_samples=own["draws"], target_accept_prob=own["accept"],
            max_tree_depth=options.depth, dense_mass=True,
        )  # fmt: skip


def summary(problem: Problem, kind: str, fit: Fit) -> dict[str, Any]:
    """What is kept of the chains."""
    found = at_draws(problem, kind, fit.model, *held_and_drawn(fit, LOOKED_AT))
    hyper = {
        name.removesuffix("_draws"): np.log(np.asarray(value))
        for name, value in fit.params.items()
        if name.endswith("_draws") and name.removesuffix("_draws").split("/")[-1] not in LATENTS
    }
    watched = {"f": found["mean"], **hyper}
    r_hat = {name: float(np.max(split_gelman_rubin(value))) for name, value in watched.items()}
    effective = {name: float(np.min(effective_sample_size(value))) for name, value in watched.items()}
    kept: dict[str, Any] = predictive(found)
    watched = {f"hyper/{name}": value for name, value in hyper.items()}
    watched |= {"hidden": found["hidden"]} if "hidden" in found else {}
    for name, value in watched.items():
        kept |= {f"{name}_mean": value.mean((0, 1)), f"{name}_deviation": value.std((0, 1))}
    about = {
        "r_hat": r_hat, "effective": effective, "divergences": fit.chains.divergences,
        "draws": int(fit.chains.stats["diverging"].size), "seconds": fit.seconds,
        "mixes": max(r_hat.values()) <= LARGEST_R_HAT,
        "versions": {name: version(name) for name in ("ppl_dgp", "numpyro", "jax")},
    }  # fmt: skip
    return {**kept, "about": np.asarray(json.dumps(about))}


def save(path: Path, kept: Mapping[str, Any]) -> None:
    """Whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    single = {
        name: value.astype(np.float32) if np.asarray(value).dtype.kind == "f" else value
        for name, value in kept.items()
    }
    with partial.open("wb") as file:
        np.savez_compressed(file, **single)
    os.replace(partial, path)


def table() -> None:
    """How the chains went."""
    for path in sorted(FOLDER.glob("*.npz")):
        about = json.loads(str(np.load(path)["about"]))
        r_hat, effective = max(about["r_hat"].values()), min(about["effective"].values())
        print(
            f"{path.stem:24} R-hat {r_hat:.3f}, effective {effective:.0f} of {about['draws']}, "
            f"{about['divergences']} divergences, {about['seconds']:.0f} s"
            + ("" if about["mixes"] else ", does not mix")
        )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--problems", help="by commas; all but those drawn again if not given")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--warmup", type=int, help="if not given the problem's own")
    parser.add_argument("--draws", type=int, help="the same")
    parser.add_argument("--depth", type=int, default=10, help="largest, of the trees of NUTS")
    parser.add_argument("--accept", type=float, help="the same; more means smaller steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--table", action="store_true", help="of what is there, and do no work")
    options = parser.parse_args()
    if options.table:
        table()
        return
    known = problems(options.data)
    for name in chosen(options.problems, known):
        for kind in options.kinds.split(","):
            path = options.out / f"{name}-{kind}.npz"
            if path.exists() or (not options.problems and (name, kind) in SEVERAL_MODES):
                continue
            problem = known[name]()
            problem = problem.sampled or problem
            kept = summary(problem, kind, sampled(problem, kind, options))
            save(path, kept)
            print(name, kind, kept["about"], flush=True)


if __name__ == "__main__":
    main()
