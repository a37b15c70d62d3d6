"""What fits and their verbs are called with: what cannot be right is refused before anything is traced."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import ELBO

from ppl_dgp.fit.posterior import Posterior
from ppl_dgp.gp.contract import check_made
from ppl_dgp.gp.parameters import check_of_model
from ppl_dgp.guides import Guide, Optimal
from ppl_dgp.numerics.compatibility import lost_its_threads
from ppl_dgp.objectives.capabilities import capabilities_of

P = ParamSpec("P")
R = TypeVar("R")


def takes_fit(function: Callable[P, R]) -> Callable[P, R]:
    """A verb whose ``fit`` is one, and whose ``key``, if it takes any, is a key: their places are easily swapped."""
    signature = inspect.signature(function)
    order = ", ".join(list(signature.parameters)[:4])

    @wraps(function)
    def verb(*args: P.args, **settings: P.kwargs) -> R:
        given = signature.bind_partial(*args, **settings).arguments
        if "fit" in given and not isinstance(given["fit"], Posterior):
            raise TypeError(
                f"fit: found {_kind(given['fit'])}, expected a Fit, or a Posterior; call "
                f"{function.__name__}({order}, …)"
            )
        if "key" in given:
            check_key(given["key"])
        return function(*args, **settings)

    return verb


def check_key(key: Any, several: bool = False) -> None:
    """Refuse, by a TypeError, what is no key of JAX's random numbers, or no array of ``several``.

    :raises RuntimeError: in a process where whatever the key is for would wait for ever.
    """
    if lost_its_threads():
        raise RuntimeError(
            "process: found one that was forked when JAX had begun, whose threads it lacks, expected one that starts "
            'anew; take multiprocessing.get_context("spawn"), or fork before JAX is used'
        )
    dtype = getattr(key, "dtype", None)
    is_key = dtype is not None and (
        jnp.issubdtype(dtype, jax.dtypes.prng_key)
        or (dtype == np.uint32 and np.ndim(key) in ((1, 2) if several else (1,)))
    )
    if not is_key:
        seed = key if isinstance(key, int) else 0
        raise TypeError(
            f"key: found {_kind(key)}, expected a key of random numbers; pass jax.random.key({seed})"
        )


def check_programs(model: Any, guide: Any, in_batches: bool = False) -> None:
    """Refuse a model or guide that cannot be run: a class not called, one of another model, no argument ``index``.

    :param guide: None where there is none.
    :param in_batches: whether the model is to be called with ``index`` and ``size``.
    :raises TypeError: for what is no program.
    :raises ValueError: for a guide of another model.
    """
    for name, program in (("model", model), ("guide", guide)):
        if name == "guide" and program is None:
            continue
        check_made(name, program)
        if not callable(program):
            raise TypeError(f"{name}: found {_kind(program)}, expected a NumPyro program")
    if isinstance(guide, Guide):
        check_of_model("guide", guide.model, model, "make Guide(model)")
    if in_batches and not _takes(model, "index", "size"):
        raise TypeError(
            "model: found no arguments index and size, which minibatches need; write model(x, y=None, index=None, "
            "size=None) with data_plate(size or x.shape[0], index), or leave batch_size out"
        )


def check_inducing(guide: Callable[..., Any] | None, objective: ELBO) -> None:
    """Raise ValueError for a q(u) that the objective leaves untrained, or that it takes for another."""
    if not isinstance(guide, Guide):
        return
    known = capabilities_of(objective)
    if isinstance(guide.inducing, Optimal) and not known.optimises_inducing:
        raise ValueError(
            "guide: found inducing=Optimal(), whose q(u) no gradient trains; use objective=Collapsed(), best with "
            "fit_lbfgs, or inducing=FullRank()"
        )
    if guide.inducing.pushes_inducing and not known.pushes_inducing:
        raise ValueError(
            f"objective: found {type(objective).__name__} with inducing={guide.inducing}, whose inducing inputs it "
            "keeps from the model; take PowerEP(0.0), the same bound, or inducing=FullRank()"
        )


def checked_levels(name: str, values: Any, usual: float) -> list[float]:
    """One number in (0, 1), or several.

    :raises ValueError: for any other, naming ``usual``.
    """
    levels = [float(level) for level in np.atleast_1d(np.asarray(values, float))]
    if wrong := [level for level in levels if not 0.0 < level < 1.0]:
        raise ValueError(f"{name}: found {wrong[0]}, expected numbers in (0, 1), such as {usual}")
    return levels


def check_counts(**least_by_name: tuple[Any, int]) -> None:
    """Raise ValueError for what is no whole number of at least so many: ``name=(value, least)``."""
    for name, (value, least) in least_by_name.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise ValueError(f"{name}: found {value!r}, expected a whole number of at least {least}")


def check_settings(rows: int | None, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for counts that are none, a minibatch of more than all rows, or no learning rate.

    Settings of ``fit_svi`` that are not there are not checked.
    """
    limits = {
        "budget": None,
        "steps": None,
        "chunk": None,
        "restarts": None,
        "max_rejected_in_a_row": None,
        "batch_size": rows,
    }
    limits |= {"patience": None, "checkpoint_every": None}
    optional = {"batch_size", "patience", "checkpoint_every"}
    for name, most in limits.items():
        if name not in settings or (settings[name] is None and name in optional):
            continue
        value = settings[name]
        if name == "steps" and isinstance(value, str):
            if value != "auto":
                raise ValueError(
                    f"steps: found {value!r}, expected a whole number or 'auto'; change it or leave it out"
                )
            continue
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not whole or value < 1 or (most is not None and value > most):
            span = f"from 1 to the number of rows, {most}" if most is not None else "of at least 1"
            raise ValueError(
                f"{name}: found {value!r}, expected a whole number {span}; change it or leave it out"
            )
    rate = settings["learning_rate"]
    if (
        rate is not None
        and not callable(rate)
        and not (np.ndim(rate) == 0 and np.isfinite(rate) and rate > 0)
    ):
        raise ValueError(
            f"learning_rate: found {rate!r}, expected a positive number or an optax schedule; try 0.01"
        )


def _takes(program: Callable[..., Any], *names: str) -> bool:
    try:
        parameters = inspect.signature(program).parameters
    except (TypeError, ValueError):
        return True
    every = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return every or set(names) <= parameters.keys()


def _kind(value: Any) -> str:
    """What a wrong argument is, in a few words."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, bool | int | float | str | None):
        return repr(value)
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"an array of shape {tuple(shape)}"
