"""What the models of the zoo share: kernels with learnt values, inducing inputs, noise, the shape of targets."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Num
from numpyro.distributions import constraints
from sklearn.cluster import KMeans

from ppl_dgp.kernels import (
    KERNELS,
    RBF,
    Constant,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
)

#: where a kernel's values start, on standardised inputs; "lengthscale" is one per input dimension (ARD)
_KERNEL_STARTS: dict[type[Kernel], dict[str, float]] = {
    RBF: {"variance": 1.0, "lengthscale": 1.0},
    Matern12: {"variance": 1.0, "lengthscale": 1.0},
    Matern32: {"variance": 1.0, "lengthscale": 1.0},
    Matern52: {"variance": 1.0, "lengthscale": 1.0},
    RationalQuadratic: {"variance": 1.0, "lengthscale": 1.0, "alpha": 1.0},
    Periodic: {"variance": 1.0, "lengthscale": 1.0, "period": 1.0},
    Linear: {"variance": 1.0},
    Constant: {"variance": 1.0},
}


@dataclass(frozen=True)
class Composed:
    """A sum of kernels, each a product of kernel classes: give it wherever a model takes a kernel class.

    Every factor has its own values, sites ``name/1/…``, ``name/2/…`` in the order written; of a product's variances
    the first alone is learnt, the others being 1, for only their product means anything.
    """

    terms: tuple[tuple[type[Kernel], ...], ...]


def named_kernel(text: str) -> type[Kernel] | Composed:
    """The kernel that ``text`` names: one of ``KERNELS``, or several with + and * between, such as ``rbf+linear``.

    :raises ValueError: for an unknown name.
    """
    terms = [[name.strip() for name in term.split("*")] for term in text.split("+")]
    for name in (name for term in terms for name in term):
        if name not in KERNELS:
            raise ValueError(
                f"kernel: found {name!r} in {text!r}, which is unknown; choose from {', '.join(KERNELS)}, "
                "with + and * between to compose them"
            )
    if len(terms) == len(terms[0]) == 1:
        return KERNELS[terms[0][0]]
    return Composed(tuple(tuple(KERNELS[name] for name in term) for term in terms))


def kernel_parameters(
    name: str,
    kernel: Callable[..., Kernel] | Composed,
    input_dim: int,
    lengthscale: Float[Array, " D"] | Callable[[], Array] | None = None,
    variance: Callable[[], Array] | None = None,
) -> Kernel:
    """The kernel of layer ``name``, its values ``numpyro.param`` sites ``name/variance``, ``name/lengthscale`` ….

    :param kernel: a class of :mod:`ppl_dgp.kernels`, several of them :class:`Composed`, or a function of the input
        dimension D that returns a kernel.
    :param lengthscale: where the lengthscales start, or what gives it when that is asked for; 1 if not given.
    :param variance: what gives where the variance of a single kernel starts; 1 if not given.
    """
    given = {"lengthscale": lengthscale, "variance": variance}
    starts = {name: start for name, start in given.items() if start is not None}
    if isinstance(kernel, Composed):
        return _composed(name, kernel, input_dim, starts)
    if kernel not in _KERNEL_STARTS:
        return kernel(input_dim)
    return _with_values(name, kernel, input_dim, starts, {})


def _composed(name: str, kernel: Composed, input_dim: int, starts: Mapping[str, Any]) -> Kernel:
    # the terms share the variance that one kernel would start with
    shared = {**starts, "variance": 1.0 / len(kernel.terms)}
    number, terms = 0, []
    for term in kernel.terms:
        factors = []
        for position, factor in enumerate(term):
            number += 1
            fixed = {"variance": 1.0} if position else {}
            factors.append(_with_values(f"{name}/{number}", factor, input_dim, shared, fixed))
        terms.append(reduce(operator.mul, factors))
    return reduce(operator.add, terms)


def _with_values(
    name: str,
    kernel: Callable[..., Kernel],
    input_dim: int,
    starts: Mapping[str, Any],
    fixed: dict[str, float],
) -> Kernel:
    """A kernel of one class, its values sites but for those that are ``fixed``."""
    arguments: dict[str, Any] = dict(fixed)
    for argument, usual in _KERNEL_STARTS[kernel].items():  # type: ignore[index]
        if argument in fixed:
            continue
        start = starts.get(argument, usual)
        shape = (input_dim,) if argument == "lengthscale" else ()
        initial = partial(_broadcast, start, shape)
        site = f"{name}/{argument}"
        arguments[argument] = numpyro.param(site, initial, constraint=constraints.softplus_positive)
    return kernel(**arguments)


def _broadcast(start: Any, shape: tuple[int, ...], _key: Array) -> Array:
    return jnp.broadcast_to(jnp.asarray(start() if callable(start) else start, float), shape)


def inducing_inputs(
    name: str, x: Float[Array, "N D"] | Callable[[], Array], num_inducing: int, train: bool = True
) -> Float[Array, "M D"]:
    """The site ``name/inducing``: M inputs, started at k-means centres of x, or of what it returns.

    :raises ValueError: if M is not positive, or exceeds the rows that initialise it.
    """
    if num_inducing < 1:
        raise ValueError(f"num_inducing: found {num_inducing}, expected at least 1")

    def start(key: Array) -> Array:
        rows = x() if callable(x) else x
        if num_inducing > rows.shape[0]:
            raise ValueError(
                f"num_inducing: found {num_inducing} for {rows.shape[0]} rows, expected at most one per row; lower it"
            )
        return initial_inducing(key, rows, num_inducing)

    sites = numpyro.param(f"{name}/inducing", start)
    # a zero gradient leaves Z where it is, and saved parameters hold it all the same
    return sites if train else jax.lax.stop_gradient(sites)


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
    about = rows, others, jax.random.randint(key_means, (), 0, 2**31 - 1, jnp.int32)
    if not any(isinstance(each, jax.core.Tracer) for each in about):
        return jnp.asarray(_centres(*map(np.asarray, about)))
    if rows.dtype.itemsize < 8:
        shape = jax.ShapeDtypeStruct(others.shape, rows.dtype)
        found: Array = jax.pure_callback(_centres, shape, *about, vmap_method="sequential")
        return found
    # as bits, for the thread that calls the host knows nothing of 64 bits enabled in a context, and would halve them
    bits = [jax.lax.bitcast_convert_type(each, jnp.uint32) for each in about[:2]]
    shape = jax.ShapeDtypeStruct(bits[1].shape, jnp.uint32)
    found = jax.pure_callback(_centres_of_bits, shape, *bits, about[2], vmap_method="sequential")
    return jax.lax.bitcast_convert_type(found, rows.dtype)


def _centres_of_bits(rows: ArrayLike, others: ArrayLike, seed: ArrayLike) -> np.ndarray:
    """The same of numbers in 64 bits, each in two words (…, 2)."""
    known, further = (np.ascontiguousarray(each).view(np.float64)[..., 0] for each in (rows, others))
    centres = np.ascontiguousarray(_centres(known, further, seed))
    return centres.view(np.uint32).reshape(*centres.shape, 2)


def _centres(rows: ArrayLike, others: ArrayLike, seed: ArrayLike) -> np.ndarray:
    """As many centres as ``others``; where no more rows are distinct each of these, rare ones too, and others."""
    rows, others = np.asarray(rows), np.asarray(others)
    size = len(others)
    distinct = np.unique(rows, axis=0)
    if len(distinct) <= size:
        return np.concatenate([distinct, others[: size - len(distinct)]])
    centres = (
        KMeans(size, n_init=1, random_state=int(np.asarray(seed))).fit(rows.astype(float)).cluster_centers_
    )
    return centres.astype(rows.dtype)  # type: ignore[no-any-return]


def noise_variance(noise: Any, start: float = 0.1) -> Array:
    """The observation noise: the site ``likelihood/noise`` where it is learnt, else the given number or rows."""
    if noise is None:
        return numpyro.param("likelihood/noise", jnp.asarray(start), constraint=constraints.softplus_positive)
    return jnp.asarray(noise)


def rows_of_noise(variance: Array, index: Array | None, observed: bool) -> Array:
    """Noise for the rows at hand: (N,) given per training row is gathered, and new rows get its mean; else as it is."""
    if variance.ndim != 1:
        return variance
    if not observed:
        return variance.mean()
    return variance[:, None] if index is None else variance[index][:, None]


def as_columns(x: Array, y: Array | None, num_outputs: int | None = None) -> Num[Array, "B P"] | None:
    """Targets as (B, P).

    :raises ValueError: if x is not a matrix, or y does not fit x or ``num_outputs``.
    """
    if jnp.ndim(x) != 2:
        raise ValueError(
            f"x: found shape {jnp.shape(x)}, expected (N, D); give a column per input, x[:, None]"
        )
    if y is None:
        return None
    columns = y[:, None] if jnp.ndim(y) == 1 else y
    if columns.shape[0] != x.shape[0]:
        raise ValueError(
            f"y: found {columns.shape[0]} rows, expected {x.shape[0]} as x has; check how they were cut"
        )
    if num_outputs is not None and columns.shape[1] != num_outputs:
        raise ValueError(
            f"y: found {columns.shape[1]} columns, expected {num_outputs}; make the model with num_outputs="
            f"{columns.shape[1]}"
        )
    return columns
