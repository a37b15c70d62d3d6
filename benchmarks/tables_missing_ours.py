"""Methods of ``benchmarks.tables_missing`` that run here: our latent variable models, and imputers without a GP.

    python -m benchmarks.tables_missing_ours METHOD SPLIT.npz LEFT.npz SEED BUDGET

gplvm: a GPLVM of min(10, P − 1) latents and 50 inducing points, its bound in closed form, by natural gradients
and L-BFGS. gplvm.batches: the same by minibatches of 100 rows, q of the latents a Gaussian for each row;
gplvm.amortised: given by a network that sees which entries are there. deep-gplvm: a layer of as many functions between,
by minibatches too. scaled: variances times the mean square of errors, in their deviations, of a tenth of the entries,
set aside in a fit of its own. The others are those of ``benchmarks.imputers``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import numpyro

numpyro.enable_x64()

from benchmarks import imputers  # noqa: E402
from benchmarks.cells import bound_of, tell_of_fits  # noqa: E402
from ppl_dgp.fit import Fit, fit_lbfgs, fit_svi  # noqa: E402
from ppl_dgp.guides import Amortised, DoublyStochastic, Guide, MeanField, Optimal  # noqa: E402
from ppl_dgp.models import deep_gplvm, gplvm  # noqa: E402
from ppl_dgp.numerics.gaussian import Gaussian  # noqa: E402
from ppl_dgp.objectives import Collapsed, PowerEP  # noqa: E402
from ppl_dgp.prediction.latents import infer_latents  # noqa: E402
from ppl_dgp.prediction.predict import predict  # noqa: E402

LATENT, INDUCING, BATCH, DRAWS = 10, 50, 100, 50
Array = np.ndarray
Filled = tuple[Array, Array, dict[str, Any]]


def by_gplvm(y: Array, seed: int, budget: int, rule: str = "") -> Filled:
    """A GPLVM, or a deep one."""
    key, latent, rows = jax.random.key(seed), min(LATENT, y.shape[1] - 1), min(INDUCING, len(y))
    model: Any
    if rule == "deep":
        model = deep_gplvm(y.shape[1], latent, (latent,), rows, missing=True)
        guide = Guide(model, DoublyStochastic(), latent=MeanField(full=True))
    else:
        model = gplvm(y.shape[1], latent, rows, missing=True)
        # of a row that lacks entries little is known, and its latents hang together: full covariances
        guide = Guide(model, Amortised(missing="mask") if rule == "amortised" else MeanField(full=True))
    if not rule:
        guide = Guide(model, MeanField(full=True), Optimal())
        fit = fit_lbfgs(key, model, None, y, guide=guide, objective=Collapsed(), budget=budget, natural=True)
    else:
        settings: dict[str, Any] = {"batch_size": min(BATCH, len(y)), "budget": budget}
        fit = fit_svi(key, model, guide, PowerEP(0.0), None, y, **settings)
    found = predict(key, fit, None, latents={"x": _latents(key, fit, y, rule)}, num_samples=DRAWS)
    about = {
        "steps": int(fit.steps), "bound": bound_of(fit), "gap": fit.gap,
        "converged": bool(fit.converged),
    }  # fmt: skip
    return np.asarray(found.mean), np.asarray(found.variance), about


def by_scaled_gplvm(y: Array, seed: int, budget: int) -> Filled:
    """A GPLVM whose variances entries that were set aside have scaled."""
    aside = imputers.aside(y)
    centre, variance, _ = by_gplvm(np.where(aside, np.nan, y), seed, budget)
    scale = float(np.mean(np.square(centre - y)[aside] / variance[aside]))
    centre, variance, about = by_gplvm(y, seed, budget)
    return centre, scale * variance, about


def _latents(key: Any, fit: Fit, y: Array, rule: str) -> Gaussian:
    """q of the rows that were trained on."""
    if rule == "amortised":
        return infer_latents(key, fit, None, y).sites["x"]
    return Gaussian(fit.params["x_loc"], fit.params["x_scale"])


def without_gp(impute: Callable[[Array], tuple[Array, Array]]) -> Callable[[Array, int, int], Filled]:
    """An imputer in the form of ours."""
    return lambda y, seed, budget: (*impute(y), {})


def seeded(impute: Callable[[Array, int], tuple[Array, Array]]) -> Callable[[Array, int, int], Filled]:
    """One that draws."""
    return lambda y, seed, budget: (*impute(y, seed), {})


METHODS: dict[str, Callable[[Array, int, int], Filled]] = {
    "gplvm": by_gplvm,
    "gplvm.batches": partial(by_gplvm, rule="batches"),
    "gplvm.amortised": partial(by_gplvm, rule="amortised"),
    "deep-gplvm": partial(by_gplvm, rule="deep"),
    "gplvm.scaled": by_scaled_gplvm,
    "mean": without_gp(imputers.by_means),
    "ppca": seeded(imputers.by_components),
    "neighbours": without_gp(imputers.by_neighbours),
    "iteration": seeded(imputers.by_iteration),
    "forests": seeded(imputers.by_forests),
}


def main() -> None:
    """One method on one split: centres and variances in a file, the rest as a line of JSON."""
    tell_of_fits()
    name, place, left = sys.argv[1:4]
    seed, budget = map(int, sys.argv[4:])
    y = np.load(place)["y"]
    began = time.perf_counter()
    centre, variance, about = METHODS[name](y, seed, budget)
    about["seconds"] = time.perf_counter() - began
    np.savez(left, centre=centre, variance=variance)
    about["versions"] = f"jax {jax.__version__} numpyro {numpyro.__version__}"
    print(json.dumps(about), flush=True)


if __name__ == "__main__":
    main()
