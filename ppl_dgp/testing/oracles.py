"""Independent numbers that parts are held against: adaptive quadrature, finite differences, averages of draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ppl_dgp.testing.report import STANDARD_ERRORS

#: Gauss–Legendre nodes of a panel, and panels of one call
NODES, PANELS = 12, 64


def integral(
    log_integrand: Callable[[np.ndarray], Any], low: float, high: float, accuracy: float = 1e-11
) -> float:
    """log ∫ exp(g(z)) dz between two numbers: panels are halved where they and their halves disagree.

    :param log_integrand: g of points (K,), of the same number K in each call; -inf where there is nothing.
    """
    nodes, weights = np.polynomial.legendre.leggauss(NODES)

    def of_panels(edges: np.ndarray) -> np.ndarray:
        """log ∫ over each panel (K, 2)."""
        answers = []
        for start in range(0, len(edges), PANELS):
            block = edges[start : start + PANELS]
            # always as many points, so that the program is compiled once
            padded = np.concatenate([block, np.repeat(block[:1], PANELS - len(block), 0)])
            half = 0.5 * (padded[:, 1] - padded[:, 0])[:, None]
            points = padded[:, :1] + half * (nodes + 1.0)
            logs = np.asarray(log_integrand(points.ravel())).reshape(points.shape)
            with np.errstate(divide="ignore"):
                answers.append(np.logaddexp.reduce(logs + np.log(half * weights), axis=1)[: len(block)])
        return np.concatenate(answers)

    grid = np.linspace(low, high, PANELS + 1)
    panels = np.stack([grid[:-1], grid[1:]], 1)
    wholes = of_panels(panels)
    settled: list[np.ndarray] = []
    for _ in range(48):
        middles = panels.mean(1)
        halves = np.stack([np.stack([panels[:, 0], middles], 1), np.stack([middles, panels[:, 1]], 1)], 1)
        parts = of_panels(halves.reshape(-1, 2)).reshape(-1, 2)
        sums = np.logaddexp(parts[:, 0], parts[:, 1])
        total = np.logaddexp.reduce(np.concatenate([sums, *settled]))
        with np.errstate(over="ignore", invalid="ignore"):
            wrong = np.abs(np.exp(sums - total) - np.exp(wholes - total)) > accuracy / PANELS
        settled.append(sums[~wrong])
        if not wrong.any():
            break
        panels, wholes = halves[wrong].reshape(-1, 2), parts[wrong].ravel()
    else:
        settled.append(wholes)
    return float(np.logaddexp.reduce(np.concatenate(settled)))


def power_mean_over_normal(
    log_density: Callable[[np.ndarray], np.ndarray],
    mean: float,
    variance: float,
    alpha: float,
    reach: float = 14.0,
) -> float:
    """(1/α) log E_{f ~ N(mean, variance)} exp(α log p(f)) by quadrature; its limit E log p(f) at α = 0."""
    spread = np.sqrt(variance)
    low, high = mean - reach * spread, mean + reach * spread
    log_normal = lambda f: -0.5 * np.square((f - mean) / spread) - 0.5 * np.log(2.0 * np.pi * variance)
    if alpha > 0.0:
        return integral(lambda f: log_normal(f) + alpha * log_density(f), low, high) / alpha
    # E log p in two parts, of one sign each, whose logarithms can be integrated
    positive = lambda f: np.log(np.maximum(log_density(f), 0.0)) + log_normal(f)
    negative = lambda f: np.log(np.maximum(-log_density(f), 0.0)) + log_normal(f)
    with np.errstate(divide="ignore"):
        return float(np.exp(integral(positive, low, high)) - np.exp(integral(negative, low, high)))


def slope_and_difference(
    function: Callable[[Any], Array],
    at: Any,
    step: float = 1e-5,
    gradient_of: Callable[[Any], Any] | None = None,
) -> tuple[Float[np.ndarray, " L"], Float[np.ndarray, " L"], Float[np.ndarray, " L"]]:
    """For each array of ``at``, the gradient along a random direction, the central difference, and its error.

    The error is told from a second difference of twice the step, which errs by four times as much.

    :param gradient_of: the gradient of ``function``, where it and the function are compiled already.
    """
    leaves, tree = jax.tree.flatten(jax.tree.map(lambda leaf: jnp.asarray(leaf, float), at))
    if gradient_of is None:
        function, gradient_of = jax.jit(function), jax.jit(jax.grad(function))
    compiled = lambda values: function(jax.tree.unflatten(tree, values))
    gradients = jax.tree.leaves(gradient_of(jax.tree.unflatten(tree, leaves)))
    slopes, differences, errors = [], [], []
    for place, (leaf, gradient) in enumerate(zip(leaves, gradients, strict=True)):
        direction = jax.random.normal(jax.random.PRNGKey(place), leaf.shape, leaf.dtype)
        # what is zero stays so: a Cholesky factor has nothing above its diagonal
        direction = jnp.where((leaf == 0.0) & (gradient == 0.0), 0.0, direction)

        def difference(
            size: float, place: int = place, leaf: Array = leaf, direction: Array = direction
        ) -> float:
            moved = lambda sign: [*leaves[:place], leaf + sign * size * direction, *leaves[place + 1 :]]
            return float((compiled(moved(1.0)) - compiled(moved(-1.0))) / (2.0 * size))

        near, far = difference(step), difference(2.0 * step)
        slopes.append(float((gradient * direction).sum()))
        differences.append(near)
        errors.append(abs(near - far))
    return np.asarray(slopes), np.asarray(differences), np.asarray(errors)


def mean_and_error(values: Any) -> tuple[np.ndarray, np.ndarray]:
    """The average of independent draws (S, …), and as many standard errors of it as a row allows."""
    values = np.asarray(values, float)
    error = STANDARD_ERRORS * values.std(0, ddof=1) / np.sqrt(len(values))
    return np.asarray(values.mean(0)), np.asarray(error)


def in_32_bits(tree: Any) -> Any:
    """The same with its floating arrays and numbers in 32 bits."""
    return jax.tree.map(lambda leaf: _cast(leaf, jnp.float32), tree)


def in_64_bits(tree: Any) -> Any:
    """The same with its floating arrays and numbers as arrays of 64 bits."""
    return jax.tree.map(lambda leaf: _cast(leaf, jnp.float64), tree)


def _cast(leaf: Any, dtype: Any) -> Any:
    if isinstance(leaf, float) or (hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)):
        return jnp.asarray(leaf, dtype)
    return leaf


def is_pytree(part: Any) -> bool:
    """Whether JAX sees the numbers inside a part."""
    return not jax.tree_util.all_leaves([part])
