"""Begin poor and end rich: a deep GP from the optimum of the sparse GP that it contains.

From its usual start a deep GP is far from the data, and what brings it there, steps of Adam at random draws, often
switches hidden layers off for good. One layer needs no draws: L-BFGS on its bound, collapsed or by natural
gradients of q(u), takes seconds.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Num, Shaped
from numpyro.infer import SVI, Trace_ELBO

from ppl_dgp.fit.adam import adam
from ppl_dgp.fit.arguments import check_key, check_programs
from ppl_dgp.fit.energy import optimal_inducing
from ppl_dgp.fit.full_batch import fit_lbfgs
from ppl_dgp.fit.initial import initialise
from ppl_dgp.fit.jitter import JitterWarning
from ppl_dgp.fit.program import as_numpyro
from ppl_dgp.fit.result import FitError, Interrupted, checked_data
from ppl_dgp.fit.training import Deepen
from ppl_dgp.gp.contract import Model, Parameters
from ppl_dgp.gp.shallow import Shallow, shallow_of
from ppl_dgp.guides import Guide
from ppl_dgp.objectives import Collapsed, PowerEP

#: rows by which the sparse GP is trained, at most, and iterations
ROWS, ITERATIONS = 10_000, 300


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
    svi = SVI(model, guide, as_numpyro(adam(0.01)), Trace_ELBO())
    usual = svi.get_params(initialise(svi, key, *rows))
    found = deepened_start(key, shallow, usual, rows[1])
    if found is None:
        raise FitError(
            "loss: found none that is finite for the sparse GP; standardise the data, or leave start out"
        )
    return found


def deepened_start(
    key: Shaped[Array, "..."], shallow: Shallow, usual: Parameters, y: Num[Array, "N P"]
) -> Parameters | None:
    """The same from parameters ``usual`` of model and guide; None where the sparse GP cannot be trained."""
    x = shallow.inputs
    if len(x) > ROWS:
        chosen = jax.random.choice(key, len(x), (ROWS,), replace=False)
        x, y = x[chosen], y[chosen]
    guide = Guide(shallow.model)
    svi = SVI(shallow.model, guide, as_numpyro(adam(0.01)), Trace_ELBO())
    start = shallow.begun(_of_model(svi.get_params(initialise(svi, key, x, y))))
    train = partial(fit_lbfgs, key, shallow.model, x, y, guide=guide, budget=ITERATIONS, start=start)
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
    return shallow.deepened(usual, fitted)


def deepening(
    model: Model, guide: Any, x: Float[Array, "N D"], y: Num[Array, "N P"], start: Any, steps: int | str
) -> Deepen | None:
    """What finds a shallow start for trials of "auto", where there is one and no other is given."""
    if steps != "auto" or start is not None or not isinstance(guide, Guide) or guide.others is not None:
        return None
    shallow = shallow_of(model, x)
    return None if shallow is None else lambda key, usual: deepened_start(key, shallow, usual, y)


def begins(deepen: Deepen | None, start: Any) -> str:
    """Where trials begin, in words: one of ``PEAKS_FROM``."""
    if deepen is not None:
        return "shallow"
    return "usual" if start is None else "given"


def _of_model(params: Parameters) -> Parameters:
    return {name: value for name, value in params.items() if "u_" not in name}
