"""Our methods of ``benchmarks.tables``: one split of a regression table, fitted and judged.

A method's name is a model, sparse-gp or deep-gp-L of L layers, and what departs from the default, behind dots:
``deep-gp-2``, ``deep-gp-3.alpha=0.5``, ``deep-gp-2.global``, ``deep-gp-3.sghmc``. The default is ``DoublyStochastic``
with ``FullRank`` at α = 0, ``fit_svi`` without steps, and for one layer, whose energy is closed at any α, ``Collapsed``
by ``fit_lbfgs``; ``global`` has ``GlobalInducing``; ``mean``, of tables of at most 2 000 rows, has ``MeanField``, whose
bound is closed, by ``fit_table``; ``best`` is ``Conditional`` from the optimum of the mean field or
from the default's, whichever has the higher bound; ``sources`` has 20 000 steps of Adam at 0.01, as the sources train;
``sghmc`` has chains at α = 1 that begin at the default's fit; ``heteroscedastic`` has noise that is a function of the
inputs too, one layer by natural gradients and L-BFGS; ``nuts``, of one layer, draws hyperparameters with
``default_priors``, u integrated out and Z that of the default's fit. ``float32`` does all of it in single precision,
whose steps cost less than half.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.handlers import lift

numpyro.enable_x64()

from benchmarks.cells import SINGLE, bound_of, in_precision  # noqa: E402
from benchmarks.predictive_scores import CENTRAL, of_shares  # noqa: E402
from ppl_dgp import default_priors  # noqa: E402
from ppl_dgp.diagnostics import elbo, scores  # noqa: E402
from ppl_dgp.fit import Fit, Interrupted, fit_lbfgs, fit_many, fit_nuts, fit_sghmc, fit_svi, fit_table  # noqa: E402
from ppl_dgp.fit.chains import SamplingWarning  # noqa: E402
from ppl_dgp.guides import (  # noqa: E402
    Conditional,
    DoublyStochastic,
    FullRank,
    GlobalInducing,
    Guide,
    MeanField,
    Optimal,
)
from ppl_dgp.models import deep_gp, deep_heteroscedastic_gp, sparse_heteroscedastic_gp  # noqa: E402
from ppl_dgp.objectives import Collapsed, PowerEP  # noqa: E402
from ppl_dgp.prediction.predict import predict  # noqa: E402

INDUCING, WIDEST, DRAWS = 100, 30, 200
#: rows up to which a step looks at all, and at how many it looks beyond
FULL_BATCH, BATCH = 2000, 1000
#: of the sources: steps of Adam, and rows of a step at most
SOURCES_STEPS, SOURCES_BATCH = 20_000, 10_000
#: of L-BFGS at most
ITERATIONS = 10_000
#: particles, steps of adaptation, draws of each chain and steps between them, of SGHMC
SGHMC: dict[str, Any] = {"num_warmup": 10_000, "num_samples": 100, "thinning": 50}
SGHMC_PARTICLES = 8
#: of NUTS
NUTS: dict[str, Any] = {"num_warmup": 500, "num_samples": 500, "num_chains": 2}
#: outer quantiles of the central intervals
LEVELS = tuple(sorted({0.5 + sign * 0.5 * level for level in CENTRAL for sign in (-1.0, 1.0)}))
LAYERS = {"sparse-gp": 1} | {f"deep-gp-{layers}": layers for layers in range(2, 6)}
ALPHAS = {"alpha=half": 0.5, "alpha=1": 1.0}
#: of deep GPs that differ in nothing but the model, the guide and the objective
TOGETHER = ("", "global", "heteroscedastic")
RULES = ("global", "mean", "best", "sources", "sghmc", "heteroscedastic", "nuts")


@dataclass(frozen=True)
class Method:
    """What a name means."""

    layers: int
    alpha: float = 0.0
    rule: str = ""
    bits: int = 64

    @classmethod
    def of(cls, name: str) -> Method:
        """Raises ValueError for a name that is none."""
        # the dot of alpha=0.5 is no separator
        model, *parts = name.replace("alpha=0.5", "alpha=half").split(".")
        alphas = [ALPHAS[part] for part in parts if part in ALPHAS]
        rules = [part for part in parts if part not in (*ALPHAS, SINGLE)]
        known = model in LAYERS and all(rule in RULES for rule in rules)
        known &= "nuts" not in rules or LAYERS[model] == 1
        known &= "mean" not in rules or LAYERS[model] > 1
        if not known or len(rules) > 1 or len(alphas) > 1 or parts.count(SINGLE) > 1:
            raise ValueError(
                f"found {name!r}, expected sparse-gp or deep-gp-2 to -5, then .alpha=0.5 or .alpha=1, .{SINGLE}, "
                f"and one of {', '.join(f'.{rule}' for rule in RULES)}, .nuts of one layer alone, .mean of more"
            )
        return cls(LAYERS[model], *alphas or [0.0], *rules or [""], 32 if SINGLE in parts else 64)


def measured(name: str, rows: Any, seed: int, budget: int) -> dict[str, Any]:
    """A method on a split, standardised by its training rows, and what it is worth on the others.

    :param rows: ``x``, ``y``, ``x_test``, ``y_test`` and the ``scale`` of y.
    """
    method = Method.of(name)
    rows = in_precision(rows, method.bits)
    began = time.perf_counter()
    fit = fitted(method, rows["x"], rows["y"], jax.random.key(seed), budget)
    return {**judged(method, fit, rows, seed), "seconds": time.perf_counter() - began}


def side_by_side(
    name: str, splits: Sequence[Any], seeds: Sequence[int], budget: int, minutes: float
) -> list[dict[str, Any]]:
    """A deep GP on several splits, trained as one program, and what each of its fits is worth.

    :param splits: of each, what ``measured`` takes; equally many training rows.
    :param minutes: of training at most.
    """
    method = Method.of(name)
    rows = [in_precision(each, method.bits) for each in splits]
    model, guide, objective, settings = contestant(method, *rows[0]["x"].shape)
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    began = time.monotonic()
    try:
        fits = fit_many(
            keys, model, guide, objective, [each["x"] for each in rows], [each["y"] for each in rows],
            budget=budget, callback=lambda _: time.monotonic() > began + 60.0 * minutes, **settings,
        )  # fmt: skip
    except Interrupted as stopped:
        fits = stopped.fits
    about = {"seconds": (time.monotonic() - began) / len(fits)}
    if jax.default_backend() != "cpu":
        about["machine"] = jax.devices()[0].device_kind
    return [
        judged(method, fit, each, seed) | about for fit, each, seed in zip(fits, rows, seeds, strict=True)
    ]


def judged(method: Method, fit: Fit, rows: Any, seed: int) -> dict[str, Any]:
    """What a fit is worth on the rows held out, and how it went."""
    y, scale = rows["y_test"], rows["scale"]
    settings: dict[str, Any] = {"num_samples": 500 if method.rule == "sghmc" else DRAWS, "levels": LEVELS}
    prediction = predict(jax.random.key(seed + 1), fit, rows["x_test"], y, **settings)
    assert prediction.quantiles is not None
    below = prediction.quantiles
    count = len(LEVELS)
    pairs = [(count // 2 - 1 - at, (count + 1) // 2 + at) for at in range(len(CENTRAL))]
    shares = [float(np.mean((below[low] <= y) & (y <= below[high]))) for low, high in pairs]
    found = scores(prediction, y, scale)
    versions = f"jax {jax.__version__} numpyro {numpyro.__version__}"
    return {
        "test_log_density": found["test_log_density"], "rmse": found["test_rmse"], **of_shares(shares),
        "steps": fit.steps, "bound": bound_of(fit), "gap": fit.gap, "converged": fit.converged,
        "versions": versions,
    }  # fmt: skip


def contestant(method: Method, count: int, inputs: int) -> tuple[Any, Guide, Any, dict[str, Any]]:
    """A model of so many rows and inputs with its guide, its objective and the rows of a step."""
    make: Any = deep_heteroscedastic_gp if method.rule == "heteroscedastic" else deep_gp
    model = make((min(WIDEST, inputs),) * (method.layers - 1), min(INDUCING, count))
    guide = Guide(model, DoublyStochastic(), GlobalInducing() if method.rule == "global" else FullRank())
    return model, guide, PowerEP(method.alpha), {"batch_size": None if count <= FULL_BATCH else BATCH}


def fitted(method: Method, x: np.ndarray, y: np.ndarray, key: Any, budget: int) -> Fit:
    """The fit."""
    if method.rule == "heteroscedastic" and method.layers == 1:
        one = sparse_heteroscedastic_gp(min(INDUCING, len(x)))
        noisy: dict[str, Any] = {"guide": Guide(one), "objective": PowerEP(method.alpha), "natural": True}
        return fit_lbfgs(key, one, x, y, budget=min(budget, ITERATIONS), **noisy)
    model, guide, objective, settings = contestant(method, *x.shape)
    if method.layers == 1 and method.rule in ("", "nuts"):
        collapsed: dict[str, Any] = {
            "guide": Guide(model, inducing=Optimal()),
            "objective": Collapsed(method.alpha),
        }
        fit = fit_lbfgs(key, model, x, y, budget=min(budget, ITERATIONS), **collapsed)
        return fit if not method.rule else sampled(key, model, fit, x, y)
    settings["budget"] = budget
    if method.rule == "mean":
        return fit_table(key, model, Guide(model, MeanField()), objective, x, y, **settings)
    if method.rule == "best":
        paths = [MeanField()], [DoublyStochastic()]
        fits = [
            fit_svi(key, model, Guide(model, Conditional()), objective, x, y, path=path, **settings)
            for path in paths
        ]
        bounds = [elbo(key, fit, x, y)[0] for fit in fits]
        return fits[int(np.argmax(bounds))]
    if method.rule == "sources":
        settings = {"steps": SOURCES_STEPS, "learning_rate": 0.01}
        settings["batch_size"] = None if len(x) <= SOURCES_BATCH else SOURCES_BATCH
    fit = fit_svi(key, model, guide, objective, x, y, **settings)
    if method.rule != "sghmc":
        return fit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        particles = PowerEP(1.0, num_particles=SGHMC_PARTICLES)
        return fit_sghmc(key, model, x, y, objective=particles, start=fit, **SGHMC)


def sampled(key: Any, model: Any, start: Fit, x: np.ndarray, y: np.ndarray) -> Fit:
    """Chains of hyperparameters from a fit of points, under FITC at its inducing inputs."""
    lifted = lift(model, prior=default_priors(model, x, y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        return fit_nuts(key, lifted, x, y, start=start, marginal=Collapsed.fitc(), **NUTS)
