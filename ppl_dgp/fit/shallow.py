"""Begin poor and end rich: a deep GP from the optimum of the sparse GP that it contains.

From its usual start a deep GP is far from the data, and what brings it there, steps of Adam at random draws, often
switches hidden layers off for good. One layer needs no draws: L-BFGS on its bound, collapsed or by natural
gradients of q(u), takes seconds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Num, Shaped
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import SVI, Trace_ELBO

from ppl_dgp.fit.adam import adam
from ppl_dgp.fit.arguments import check_key, check_programs
from ppl_dgp.fit.energy import optimal_inducing
from ppl_dgp.fit.full_batch import fit_lbfgs
from ppl_dgp.fit.initial import initialise
from ppl_dgp.fit.jitter import JitterWarning
from ppl_dgp.fit.plan import Plan, plan_of
from ppl_dgp.fit.program import as_numpyro
from ppl_dgp.fit.pushed_start import pushed_start
from ppl_dgp.fit.result import FitError, Interrupted, checked_data
from ppl_dgp.fit.training import Deepen
from ppl_dgp.gp.contract import Model, Parameters, inducing_site, role_of
from ppl_dgp.gp.shallow import NOISE_OF_Y, Shallow, shallow_of
from ppl_dgp.gp.wrappers import unwrap
from ppl_dgp.guides import Decoupled, GlobalInducing, Guide
from ppl_dgp.numerics.compatibility import compiled
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.objectives import Collapsed, PowerEP
from ppl_dgp.objectives.runs import traced_run

#: rows by which the sparse GP is trained, at most, and iterations
ROWS, ITERATIONS = 10_000, 300
#: rows by which it is asked how steep that is
SLOPE_ROWS = 1000


def shallow_start(
    key: Shaped[Array, "..."], model: Model, guide: Guide, x: ArrayLike, y: ArrayLike
) -> Parameters:
    """Parameters of a deep GP at the optimum of the sparse GP that it is while its hidden layers are linear.

    For ``fit_svi(start=…)`` with a number of steps; with ``steps="auto"`` it is tried without being asked for.

    >>> import jax, jax.numpy as jnp
    >>> from ppl_dgp import Guide, PowerEP, deep_gp, fit_svi, shallow_start
    >>> key, x = jax.random.key(0), jnp.linspace(-1.0, 1.0, 20)[:, None]
    >>> y, model = jnp.sin(3.0 * x), deep_gp((1,), 5)
    >>> guide = Guide(model)
    >>> start = shallow_start(key, model, guide, x, y)
    >>> fit_svi(key, model, guide, PowerEP(0.0), x, y, steps=2, start=start).steps
    2

    :param key: JAX random key of the inducing inputs' start, and of the rows where there are more than 10 000.
    :param model: one with a method ``shallow``, such as ``deep_gp``.
    :param guide: of the model.
    :param x: inputs (N, D).
    :param y: targets (N, P) or (N,).
    :returns: constrained parameters by name, those of the guide's hidden variables left out.
    :raises ValueError: for a model without such a beginning.
    :raises FitError: where the sparse GP's bound is not finite.
    """
    check_key(key)
    check_programs(model, guide)
    rows = checked_data(x, y, model)
    shallow = shallow_of(model, rows[0])
    if shallow is None:
        raise ValueError(
            f"model: found {model!r}, expected one with a method shallow, as deep GPs have; leave start out"
        )
    found = _found_start(shallow, guide, *rows, key, _usual(key, model, guide, *rows))
    if found is None:
        raise FitError(
            "loss: found none that is finite for the sparse GP; standardise the data, or leave start out"
        )
    return found


def _found_start(
    shallow: Shallow,
    guide: Guide,
    rows: Float[Array, "N D"],
    targets: Num[Array, "N P"],
    key: Shaped[Array, "..."],
    usual: Parameters,
) -> Parameters | None:
    """The same from parameters ``usual`` of model and guide; None where the sparse GP cannot be trained."""
    x, y = shallow.inputs, targets
    if len(x) > ROWS:
        chosen = jax.random.choice(key, len(x), (ROWS,), replace=False)
        x, y = x[chosen], y[chosen]
    train = partial(fit_lbfgs, key, shallow.model, x, y, guide=Guide(shallow.model), budget=ITERATIONS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", JitterWarning)  # of a model that is not asked for
            if shallow.closed:
                fitted = optimal_inducing(train(objective=Collapsed()), x, y).params
            else:
                fitted = train(objective=PowerEP(0.0), natural=True).params
    except FitError:
        return None
    except Interrupted:
        raise KeyboardInterrupt from None  # before the first step there is no fit
    if not all(bool(np.isfinite(value).all()) for value in fitted.values()):
        return None
    slope = (
        _slope(shallow.model)(key, fitted, x[:SLOPE_ROWS])
        if shallow.closed and NOISE_OF_Y in fitted
        else None
    )
    found = shallow.deepened(usual, fitted, slope)
    rule = guide.inducing
    if isinstance(rule, Decoupled):
        site, q = inducing_site(shallow.layers[-1]), Gaussian(fitted["gp/u_loc"], fitted["gp/u_scale"])
        gram = role_of(trace(substitute(seed(guide, key), data=found)).get_trace(rows, targets)[site]).gram
        return found | rule.nearest(site, q, None if gram is None else gram())
    if isinstance(rule, GlobalInducing):
        return pushed_start(guide, rule, shallow, rows, targets, key, found, fitted)
    return found


@lru_cache(maxsize=8)
def _slope(model: Model) -> Callable[..., Float[Array, " P"]]:
    """The squared slope of a sparse GP's mean function, its mean over rows."""

    def means(x: Array, key: Array, params: Parameters) -> Array:
        run = traced_run(model, key, {**params, "gp/u": params["gp/u_loc"]}, (x,), {})
        mean: Array = unwrap(run["y"]["fn"]).marginal.mean
        return mean.sum(0)

    def squared(key: Array, params: Parameters, x: Array) -> Array:
        # a row's mean depends on that row alone
        of_rows = jax.jacrev(lambda at: means(at, key, params))(x)
        return jnp.square(of_rows).sum(-1).mean(-1)

    return compiled(squared)


def planned(
    model: Model,
    guide: Any,
    tables: Sequence[tuple[Float[Array, "_ D"], Num[Array, "_ P"]]],
    start: Any,
    steps: int | str,
    *settings: Any,
) -> tuple[Plan, list[Deepen] | None]:
    """The steps of fits side by side, and what finds a shallow start for each, where "auto" has one and none is given.

    :param tables: x and y of each fit.
    :param start: what was given to start from, if anything.
    :param settings: of ``plan_of`` after ``steps``, in order.
    """
    deepens: list[Deepen] = []
    if steps == "auto" and start is None and isinstance(guide, Guide) and guide.others is None:
        offered = [(shallow_of(model, x), x, y) for x, y in tables]
        deepens = [
            partial(_found_start, shallow, guide, x, y) for shallow, x, y in offered if shallow is not None
        ]
    if len(deepens) == len(tables):
        return plan_of(steps, *settings, begin="shallow"), deepens
    return plan_of(steps, *settings, begin="usual" if start is None else "given"), None


def _usual(key: Shaped[Array, "..."], model: Model, guide: Guide, x: Array, y: Array) -> Parameters:
    """The parameters that a fit starts from where nothing is said."""
    svi = SVI(model, guide, as_numpyro(adam(0.01)), Trace_ELBO())
    params: Parameters = svi.get_params(initialise(svi, key, x, y))
    return params
