"""Inducing inputs of the zoo's models: given, or started at k-means centres of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jaxtyping import Array, Float

from ppl_dgp.gp.contract import check_columns
from ppl_dgp.models.checks import frozen_array
from ppl_dgp.numerics.host import on_host

#: inducing inputs (M, D) of one function
GivenInducing = Float[Array, "_ _"] | Float[np.ndarray, "_ _"]


def inducing_inputs(
    name: str,
    x: Float[Array, "N D"] | Callable[[], Array],
    num_inducing: int,
    train: bool = True,
    given: GivenInducing | None = None,
    dims: int | None = None,
    outputs: int | None = None,
) -> Float[Array, "*P M D"]:
    """The site ``name/inducing``: M inputs, started at k-means centres of x, or of what it returns.

    :param given: where they start instead.
    :param outputs: P where each output is to have inputs of its own, which start at the same places.
    :param dims: D, that ``given`` has to have; that of x if not given.
    :raises ValueError: if M is not positive, or exceeds the rows that initialise it, if x has no columns, or other ones
        than ``given`` or trained inducing inputs.
    """
    if num_inducing < 1:
        raise ValueError(f"num_inducing: found {num_inducing}, expected at least 1")
    if given is not None:
        wanted = x.shape[1] if dims is None and not callable(x) else dims
        if wanted is not None and given.shape[1] != wanted:
            raise ValueError(
                f"inducing: found shape {given.shape} for {name!r}, expected (M, {wanted}), as many columns as its "
                "inputs have"
            )

    def start(key: Array) -> Array:
        if given is not None:
            return jnp.asarray(given, float)
        rows = x() if callable(x) else x
        if not rows.shape[1]:
            raise ValueError(
                f"x: found no columns for the function {name!r}, expected inputs (N, D); give x, or take a model of "
                "latents, such as gplvm or gpssm"
            )
        if num_inducing > rows.shape[0]:
            raise ValueError(
                f"num_inducing: found {num_inducing} for {rows.shape[0]} rows, expected at most one per row; lower it"
            )
        return initial_inducing(key, rows, num_inducing)

    def starts(key: Array) -> Array:
        one = start(key)
        return one if outputs is None else jnp.tile(one, (outputs, 1, 1))

    sites: Array = numpyro.param(f"{name}/inducing", starts)
    if not callable(x):
        check_columns(name, x.shape, sites.shape[-1])
    # a zero gradient leaves Z where it is, and saved parameters hold it all the same
    return sites if train else jax.lax.stop_gradient(sites)


def checked_inducing(
    inducing: Any, num_inducing: int, usual: int, dims: int | None = None
) -> tuple[GivenInducing | None, int]:
    """Inducing inputs of one function as a matrix, or None, and M.

    :param usual: the default of ``num_inducing``, beside which any M may be given.
    :param dims: the columns they have to have, where those are known before the data.
    :raises ValueError: for what is no matrix, or another M than asked for.
    """
    if inducing is None:
        return None, num_inducing
    array = frozen_array("inducing", inducing, 2, "None or inputs (M, D), one row each")
    if dims is not None and array.shape[1] != dims:
        raise ValueError(
            f"inducing: found shape {array.shape}, expected (M, {dims}), a column for each dimension"
        )
    return array, _agreed(len(array), num_inducing, usual)


def checked_layers(
    inducing: Any, num_functions: int, num_inducing: int, usual: int
) -> tuple[tuple[GivenInducing, ...] | None, int]:
    """Inducing inputs of several functions, one matrix for each of them, or None, and M of the first.

    :raises ValueError: also where there is not one for each function.
    """
    if inducing is None:
        return None, num_inducing
    if hasattr(inducing, "shape") and len(inducing.shape) == 2 and num_functions == 1:
        inducing = (inducing,)
    if hasattr(inducing, "shape") or not isinstance(inducing, Sequence) or len(inducing) != num_functions:
        count = f"{len(inducing)} of them" if isinstance(inducing, Sequence) else "one array"
        raise ValueError(
            f"inducing: found {count}, expected {num_functions}, inputs (M, D) for each function in turn; give a list"
        )
    expected = "inputs (M, D) for each function"
    arrays = tuple(frozen_array("inducing", array, 2, expected) for array in inducing)
    if len({len(array) for array in arrays}) == 1:
        return arrays, _agreed(len(arrays[0]), num_inducing, usual)
    return arrays, len(arrays[0])


def _agreed(size: int, num_inducing: int, usual: int) -> int:
    if size < 1 or num_inducing not in (size, usual):
        raise ValueError(
            f"inducing: found {size} inputs beside num_inducing={num_inducing}, expected as many; leave num_inducing "
            "out"
        )
    return size


def initial_inducing(
    key: Array, x: Float[Array, "N D"], num_inducing: int, max_rows: int = 20_000
) -> Float[Array, "M D"]:
    """k-means centres of at most ``max_rows`` rows of x, found on the host, from inside a compiled program too."""
    key_rows, key_means = jax.random.split(key)
    rows = x
    if rows.shape[0] > max_rows:
        rows = rows[jax.random.choice(key_rows, rows.shape[0], (max_rows,), replace=False)]
    others = jax.random.permutation(key_rows, rows)[:num_inducing]
    # in 32 bits, so that fits of either precision begin alike
    seed = jax.random.randint(key_means, (), 0, 2**31 - 1, jnp.int32)
    centres: Array = on_host(_centres, others, rows, others, seed)
    return centres


def _centres(rows: np.ndarray, others: np.ndarray, seed: np.ndarray) -> np.ndarray:
    """As many centres as ``others``; where no more rows are distinct each of these, rare ones too, and others."""
    size = len(others)
    distinct = np.unique(rows, axis=0)
    if len(distinct) <= size:
        return np.concatenate([distinct, others[: size - len(distinct)]])
    from scipy.cluster.vq import kmeans, kmeans2  # what a model that is given Z need not import

    numbers = rows.astype(float)
    if size == 1:
        return np.asarray(numbers.mean(0, keepdims=True), rows.dtype)
    # k-means++ seeds, then Lloyd's iterations until they rest; a centre that loses all its rows is left out
    seeds, _ = kmeans2(numbers, spread_out(numbers, size, int(seed)), iter=1, minit="matrix")
    centres = kmeans(numbers, seeds, thresh=1e-4)[0].astype(rows.dtype)
    return np.concatenate([centres, others[: size - len(centres)]])


def spread_out(rows: Float[np.ndarray, "N D"], count: int, seed: int) -> Float[np.ndarray, "M D"]:
    """k-means++ seeds (Arthur & Vassilvitskii 2007), those that SciPy draws.

    SciPy takes the distances to all seeds anew for each, at a cost of N M² D, of which here the nearest is kept.
    """
    from scipy.spatial.distance import cdist

    random = np.random.RandomState(seed)  # SciPy's, of a whole number
    chosen = [int(random.randint(len(rows)))]
    nearest = np.full(len(rows), np.inf)
    while len(chosen) < count:
        nearest = np.minimum(nearest, cdist(rows[chosen[-1:]], rows, "sqeuclidean")[0])
        so_far = np.cumsum(nearest / nearest.sum())
        chosen.append(int(np.searchsorted(so_far, random.uniform())))
    return rows[chosen]
