"""Sparse GPs in closed form fitted by L-BFGS on many data sets side by side, a row for each in a CSV."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import rows
from sklearn.cluster import KMeans

from ppl_dgp.kernels import RBF
from ppl_dgp.numerics.linalg import cholesky, inverse_lower
from ppl_dgp.objectives import collapsed_energy, collapsed_posterior

Array = jax.Array
ALPHAS = (0.0, 0.2, 0.5, 0.8, 1.0)
#: L-BFGS steps of a fit; the thesis allowed 2000 evaluations
STEPS = 200


def unpacked(params: dict[str, Array]) -> tuple[RBF, Array, Array]:
    """Kernel, inducing inputs and noise of unconstrained parameters."""
    kernel = RBF(jnp.exp(params["variance"]), jnp.exp(params["lengthscale"]))
    return kernel, params["inducing"], 1e-6 + jnp.exp(params["noise"])


def sparse_loss(params: dict[str, Array], x: Array, y: Array, alpha: Array) -> Array:
    kernel, inducing, noise = unpacked(params)
    return -collapsed_energy(kernel, inducing, noise, x, y, alpha, jitter=1e-6)


def exact_loss(params: dict[str, Array], x: Array, y: Array, alpha: Array) -> Array:
    kernel, _, noise = unpacked(params)
    lower, _ = cholesky(kernel(x, x) + noise * jnp.eye(len(x)), 0.0)
    solved = jax.scipy.linalg.solve_triangular(lower, y, lower=True)
    log_det = 2.0 * jnp.log(jnp.diagonal(lower)).sum()
    return 0.5 * (jnp.square(solved).sum() + log_det + len(x) * jnp.log(2.0 * jnp.pi))


def minimised(
    loss: Callable[..., Array], start: dict[str, Array], x: Array, y: Array, alpha: Array
) -> tuple[Any, Array]:
    """L-BFGS from ``start``; the parameters and the value."""
    optimiser = optax.lbfgs(memory_size=20)
    value_and_grad = optax.value_and_grad_from_state(lambda p: loss(p, x, y, alpha))

    def step(_: int, carry: Any) -> Any:
        params, state = carry
        value, gradient = value_and_grad(params, state=state)
        updates, state = optimiser.update(
            gradient, state, params, value=value, grad=gradient, value_fn=lambda p: loss(p, x, y, alpha)
        )
        return optax.apply_updates(params, updates), state

    params, _ = jax.lax.fori_loop(0, STEPS, step, (start, optimiser.init(start)))
    return params, loss(params, x, y, alpha)


def sparse_scores(
    params: dict[str, Array], x: Array, y: Array, new: Array, target: Array, alpha: Array
) -> Array:
    kernel, inducing, noise = unpacked(params)
    q = collapsed_posterior(kernel, inducing, noise, x, y, alpha, jitter=1e-6)
    lower, _ = cholesky(kernel(inducing, inducing), 1e-6)
    phi = kernel(new, inducing) @ inverse_lower(lower).T
    variance = kernel.diag(new) - jnp.square(phi).sum(1) + jnp.square(phi @ q.scale[0]).sum(1) + noise
    return scores(phi @ q.mean[0], variance, y, target)


def exact_scores(
    params: dict[str, Array], x: Array, y: Array, new: Array, target: Array, alpha: Array
) -> Array:
    kernel, _, noise = unpacked(params)
    lower, _ = cholesky(kernel(x, x) + noise * jnp.eye(len(x)), 0.0)
    solve = partial(jax.scipy.linalg.solve_triangular, lower, lower=True)
    phi = solve(kernel(x, new)).T
    return scores(phi @ solve(y)[:, 0], kernel.diag(new) - jnp.square(phi).sum(1) + noise, y, target)


def scores(mean: Array, variance: Array, y: Array, target: Array) -> Array:
    """SMSE and SMLL: errors over the targets' spread, minus log density over that of the training targets' Gaussian."""
    log_p = -0.5 * jnp.log(2 * jnp.pi * variance) - 0.5 * jnp.square(target[:, 0] - mean) / variance
    trivial = -0.5 * jnp.log(2 * jnp.pi * y.var()) - 0.5 * jnp.square(target[:, 0] - y.mean()) / y.var()
    return jnp.stack([jnp.square(target[:, 0] - mean).mean() / target.var(), (trivial - log_p).mean()])


@partial(jax.jit, static_argnums=0)
def fitted(
    kind: str, start: Any, x: Array, y: Array, new: Array, target: Array, alpha: Array
) -> tuple[Array, Array, Any]:
    """Values, scores and parameters of all data sets, (S, …)."""
    loss, judge = (exact_loss, exact_scores) if kind == "exact" else (sparse_loss, sparse_scores)

    def one(start: Any, x: Array, y: Array, new: Array, target: Array) -> tuple[Array, Array, Any]:
        params, value = minimised(loss, start, x, y, alpha)
        return value, judge(params, x, y, new, target, alpha), params

    return jax.vmap(one)(start, x, y, new, target)


def starts(x: np.ndarray, number: int, seed: int) -> dict[str, Array]:
    """Unit kernel, noise 0.1, k-means centres."""
    distinct = np.unique(x, axis=0)
    if len(distinct) <= number:
        # repeated rows have fewer places: the rest stand beside them
        extra = np.random.default_rng(seed).normal(size=(number - len(distinct), x.shape[1]))
        centres = np.concatenate([distinct, extra])
    else:
        centres = KMeans(number, n_init=1, random_state=seed).fit(x).cluster_centers_
    zero = jnp.zeros(())
    # the median distance between rows, as the thesis starts lengthscales
    near = np.median(np.linalg.norm(x[:200, None] - x[None, :200], axis=-1))
    length = jnp.full((x.shape[1],), np.log(near))
    return {
        "variance": zero,
        "lengthscale": length,
        "noise": zero + np.log(0.1),
        "inducing": jnp.asarray(centres),
    }


def stacked(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


SCORES = ["alpha", "smse", "smll", "nlml", "noise"]


def run_closed(
    path: Path, name: str, sets: list[tuple[np.ndarray, ...]], numbers: tuple[int, ...], exact: bool
) -> None:
    """Fit all sets (x, y, new, target) at once for each M and α, and write a row for each."""
    key = ["set", "split", "inducing", "alpha"]
    done = rows.done(path, key)
    data = tuple(jnp.asarray(np.stack(each)) for each in zip(*sets, strict=True))
    for number in (*numbers, *([0] if exact else [])):
        # "0" inducing inputs is the exact GP
        kind = "sparse" if number else "exact"
        for alpha in ALPHAS if number else (1.0,):
            if (name, "0", str(number), f"{alpha:g}") in done:
                continue
            start = stacked([starts(each[0], max(number, 1), seed) for seed, each in enumerate(sets)])
            began = perf_counter()
            values, found, params = jax.block_until_ready(fitted(kind, start, *data, jnp.asarray(alpha)))
            for index in range(len(sets)):
                smse, smll = map(float, found[index])
                noise = 1e-6 + float(jnp.exp(params["noise"][index]))
                measured = [f"{alpha:g}", *(f"{v:.6g}" for v in (smse, smll, float(values[index]), noise))]
                rows.append(path, ["set", "split", "inducing", *SCORES], [name, index, number, *measured])
            print(
                name, number, alpha, np.asarray(found).mean(0), f"{perf_counter() - began:.1f} s", flush=True
            )
