"""Our methods of ``benchmarks.tables_classes``: one split of a table of classes, fitted.

    python -m benchmarks.tables_classes_ours METHOD SPLIT.npz LEFT.npz SEED BUDGET

A method's name is a model, sparse-gp or deep-gp-L of L layers, and what departs from the default, behind dots:
``sparse-gp.softmax``, ``deep-gp-2.alpha=0.5``, ``sparse-gp.sites.alpha=1``. The default has the likelihood of its
classes (probit for two, robust-max for more), ``DoublyStochastic`` with ``FullRank`` at α = 0 and ``fit_svi`` without
steps; one layer of at most 2 000 rows, where nothing need be drawn, has natural gradients and L-BFGS; ``softmax`` has
that likelihood, ``held`` a robust-max whose ε stays at 10⁻³, as the sources have it, ``global`` ``GlobalInducing``,
``convolutional``, of digits alone, GPs of their patches, ``tied`` factors in closed form by ``ApproximatePowerEP`` and
L-BFGS, ``sites`` a site for each row by ``fit_power_ep`` from the optimum of tied ones, ``sampled`` hyperparameters
with ``default_priors`` and a normal q of their logarithms, ``float32`` single precision.
"""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
import numpyro
import optax
from numpyro.handlers import lift
from numpyro.infer.autoguide import AutoNormal

numpyro.enable_x64()

from benchmarks.cells import SINGLE, bound_of, in_precision, tell_of_fits  # noqa: E402
from ppl_dgp import default_priors  # noqa: E402
from ppl_dgp.fit import Fit, fit_lbfgs, fit_power_ep, fit_svi  # noqa: E402
from ppl_dgp.guides import DoublyStochastic, FullRank, GlobalInducing, Guide  # noqa: E402
from ppl_dgp.likelihoods import RobustMax  # noqa: E402
from ppl_dgp.models import (  # noqa: E402
    convolutional_gp,
    deep_convolutional_gp,
    deep_gp_classification,
    sparse_gp_classification,
)
from ppl_dgp.objectives import ApproximatePowerEP, PowerEP  # noqa: E402
from ppl_dgp.prediction.predict import predict  # noqa: E402

INDUCING, WIDEST, DRAWS = 100, 30, 200
#: of the convolutional, whose rows are as dear as a hundred others: patches and their sides, channels of hidden
#: layers, rows of a step, draws of a prediction and rows that are predicted at a time
PATCHES, SIDE, CHANNELS, FEW, FEW_DRAWS, FEW_AT_ONCE = 192, 5, 4, 64, 20, 100
#: rows up to which a step looks at all, and at how many it looks beyond; test rows that are predicted at a time
FULL_BATCH, BATCH, AT_ONCE = 2000, 1000, 1000
#: of L-BFGS at most
ITERATIONS = 3000
#: of sites: steps of the hyperparameters, from a rate that falls
SITE_STEPS, SITE_RATE = 300, 0.03
LAYERS = {"sparse-gp": 1} | {f"deep-gp-{layers}": layers for layers in range(2, 6)}
ALPHAS = {"alpha=half": 0.5, "alpha=1": 1.0}
LINKS = "softmax", "robust-max", "held", "bernoulli-logit"
RULES = "global", "tied", "sites", "sampled", "convolutional"


@dataclass(frozen=True)
class ClassMethod:
    """What a name means."""

    layers: int
    alpha: float = 0.0
    link: str | None = None
    rule: str = ""
    bits: int = 64

    @classmethod
    def of(cls, name: str) -> ClassMethod:
        """Raises ValueError for a name that is none."""
        # the dot of alpha=0.5 is no separator
        model, *parts = name.replace("alpha=0.5", "alpha=half").split(".")
        kinds: list[Any] = [
            [part for part in parts if part in kind] for kind in (ALPHAS, LINKS, RULES, (SINGLE,))
        ]
        alphas, links, rules, single = kinds
        known = model in LAYERS and sum(map(len, kinds)) == len(parts) and max(map(len, kinds)) <= 1
        alpha = ALPHAS[alphas[0]] if alphas else 0.0
        rule = rules[0] if rules else ""
        if not known or (rule in ("tied", "sites") and LAYERS[model] > 1) or (rule == "sites" and not alpha):
            raise ValueError(
                f"found {name!r}, expected sparse-gp or deep-gp-2 to -5, then .alpha=0.5 or .alpha=1, one of "
                f"{', '.join(f'.{link}' for link in LINKS)}, .{SINGLE}, .global, .sampled, .convolutional, or of "
                "sparse-gp .tied or, with an alpha, .sites"
            )
        return cls(LAYERS[model], alpha, links[0] if links else None, rule, 32 if single else 64)


def model_of(method: ClassMethod, x: np.ndarray, count: int) -> Any:
    """The model of so many classes."""
    inducing, hidden = min(INDUCING, len(x)), method.layers - 1
    link: Any = method.link if method.link != "held" else partial(RobustMax, count)
    if method.rule == "convolutional":
        image, patch = (math.isqrt(x.shape[1]),) * 2, (SIDE, SIDE)
        given: dict[str, Any] = {"located": True, "likelihood": link}
        if not hidden:
            return convolutional_gp(image, patch, count, PATCHES, stride=2, **given)
        strides = (2,) + (1,) * hidden
        return deep_convolutional_gp(image, (CHANNELS,) * hidden, patch, strides, count, PATCHES, **given)
    if not hidden:
        return sparse_gp_classification(count, inducing, likelihood=link)
    widths = (min(WIDEST, x.shape[1]),) * hidden
    return deep_gp_classification(count, widths, inducing, likelihood=link)


def fitted(method: ClassMethod, x: np.ndarray, y: np.ndarray, key: Any, budget: int) -> Fit:
    """The fit to labels (N,)."""
    model = model_of(method, x, int(y.max()) + 1)
    labels = y[:, None].astype(x.dtype)
    if method.rule in ("tied", "sites"):
        guide = Guide(model)
        closed = ApproximatePowerEP(method.alpha, 1)
        tied = fit_lbfgs(key, model, x, labels, guide=guide, objective=closed, budget=budget)
        if method.rule == "tied":
            return tied
        start = {name: value for name, value in tied.params.items() if "/u_" not in name}
        rate = optax.cosine_decay_schedule(SITE_RATE, SITE_STEPS, 0.01)
        settings: dict[str, Any] = {"hyper_steps": SITE_STEPS, "learning_rate": rate, "start": start}
        return fit_power_ep(key, model, guide, x, labels, alpha=method.alpha, **settings)
    if method.layers == 1 and not method.rule and method.link != "softmax" and len(x) <= FULL_BATCH:
        bound = PowerEP(method.alpha)
        return fit_lbfgs(
            key,
            model,
            x,
            labels,
            guide=Guide(model),
            objective=bound,
            natural=True,
            budget=min(budget, ITERATIONS),
        )
    others = None
    if method.rule == "sampled":
        model, others = lift(model, default_priors(model, x, labels)), AutoNormal
    inducing_rule = GlobalInducing() if method.rule == "global" else FullRank()
    guide = Guide(model, DoublyStochastic(), inducing_rule, others=others)
    few = FEW if method.rule == "convolutional" else BATCH
    settings = {"batch_size": None if len(x) <= FULL_BATCH else few, "budget": budget}
    return fit_svi(key, model, guide, PowerEP(method.alpha), x, labels, **settings)


def main() -> None:
    """One method on one split: probabilities in a file, the rest as a line of JSON."""
    tell_of_fits()
    name, place, left = sys.argv[1:4]
    seed, budget = map(int, sys.argv[4:])
    method = ClassMethod.of(name)
    rows = in_precision(np.load(place), method.bits)
    began = time.perf_counter()
    key = jax.random.key(seed)
    fit = fitted(method, rows["x"], rows["y"], key, budget)
    patches = method.rule == "convolutional"
    many, at_once = (FEW_DRAWS, FEW_AT_ONCE) if patches else (DRAWS, AT_ONCE)
    draws = 1 if method.layers == 1 and method.rule != "sampled" else many
    parts = np.array_split(rows["x_test"], -(-len(rows["x_test"]) // at_once))
    means = [predict(jax.random.fold_in(key, 1), fit, part, num_samples=draws).mean for part in parts]
    mean = np.concatenate([np.asarray(part) for part in means])
    seconds = time.perf_counter() - began
    np.savez(left, probabilities=mean if mean.shape[1] > 1 else np.hstack([1.0 - mean, mean]))
    versions = f"jax {jax.__version__} numpyro {numpyro.__version__}"
    about = {
        "seconds": seconds, "steps": int(fit.steps), "bound": bound_of(fit),
        "gap": fit.gap, "converged": bool(fit.converged), "versions": versions,
    }  # fmt: skip
    print(json.dumps(about), flush=True)


if __name__ == "__main__":
    main()
