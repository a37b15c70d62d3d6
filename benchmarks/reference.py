"""The bench's works written by hand in JAX, without NumPyro and without this package: what speed.py compares with.

Each is what one would write for this work alone, with what is known to be fast on a CPU: the inverse Cholesky factor
formed once per layer and applied by matmul, the gradient of diag(A S Aᵀ) by hand. ``training`` gives a loop of Adam
steps, ``values`` a value and its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.linalg import cho_solve, solve_triangular

Array = Any
softplus = jax.nn.softplus


def unsoftplus(value: float) -> float:
    """softplus⁻¹."""
    return float(np.log(np.expm1(value)))


def jittered(matrix: Array) -> Array:
    """The Cholesky factor of a kernel matrix."""
    relative = 1e-8 if matrix.dtype == jnp.float64 else 1e-5
    nugget = relative * jnp.diagonal(matrix).mean()
    return jnp.linalg.cholesky(matrix + nugget * jnp.eye(len(matrix), dtype=matrix.dtype))


def inverse(lower: Array) -> Array:
    """L⁻¹."""
    return solve_triangular(lower, jnp.eye(len(lower), dtype=lower.dtype), lower=True)


def rbf(x: Array, z: Array, lengthscale: Array, variance: Array) -> Array:
    """k(x, z)."""
    x, z = x / lengthscale, z / lengthscale
    squares = (x**2).sum(1)[:, None] + (z**2).sum(1) - 2.0 * x @ z.T
    return variance * jnp.exp(-0.5 * jnp.maximum(squares, 0.0))


@jax.custom_vjp
def quadratic(a: Array, s: Array) -> Array:
    """diag(A S_p Aᵀ): (B, M), (P, M, M) → (B, P)."""
    return quadratic_forward(a, s)[0]


def quadratic_forward(a: Array, s: Array) -> Any:
    outputs, size, _ = s.shape
    through = (a @ s.transpose(1, 0, 2).reshape(size, outputs * size)).reshape(-1, outputs, size)
    return jnp.einsum("bpm,bm->bp", through, a), (a, through)


def quadratic_backward(saved: Any, w: Array) -> Any:
    a, through = saved
    rows, outputs, size = through.shape
    weighted = (w[:, :, None] * a[:, None, :]).reshape(rows, outputs * size)
    ds = (jax.lax.optimization_barrier(a.T) @ weighted).reshape(size, outputs, size).transpose(1, 0, 2)
    return 2.0 * jnp.einsum("bpm,bp->bm", through, w), ds


quadratic.defvjp(quadratic_forward, quadratic_backward)

# --- doubly stochastic deep GPs; of no hidden layer the SVGP


def deep_gp(
    x: Array, widths: Sequence[int], size: int, dtype: Any
) -> tuple[list[dict[str, Any]], Callable[..., Array]]:
    """Parameters of layers of the given widths, and ``loss(params, key, x, y)``, minus the ELBO of all N rows."""
    rows, layers = len(x), []
    z = np.asarray(x)[np.random.default_rng(0).choice(rows, size, replace=False)]
    for layer, width in enumerate((*widths, 1)):
        scale = 1e-2 if layer < len(widths) else 1.0
        layers.append(
            {
                "z": jnp.asarray(z, dtype),
                "lengthscale": jnp.full(z.shape[1], unsoftplus(1.0), dtype),
                "variance": jnp.asarray(unsoftplus(1.0), dtype),
                "mean": jnp.zeros((width, size), dtype),
                "root": jnp.broadcast_to(scale * jnp.eye(size, dtype=dtype), (width, size, size)),
                "noise": jnp.asarray(unsoftplus(1e-2 if layer < len(widths) else 0.1), dtype),
            }
        )

    def layer_of(own: dict[str, Array], h: Array, linear: bool) -> tuple[Array, Array, Array]:
        lengthscale, variance = softplus(own["lengthscale"]), softplus(own["variance"])
        whiten = inverse(jittered(rbf(own["z"], own["z"], lengthscale, variance)))
        a = rbf(h, own["z"], lengthscale, variance) @ whiten.T
        root = jnp.tril(own["root"])
        mean = a @ own["mean"].T + (h if linear else 0.0)
        spread = variance - (a**2).sum(1)[:, None] + quadratic(a, root @ root.transpose(0, 2, 1))
        log_det = jnp.log(jnp.abs(jnp.diagonal(root, axis1=1, axis2=2))).sum()
        divergence = 0.5 * ((root**2).sum() + (own["mean"] ** 2).sum() - own["mean"].size) - log_det
        return mean, spread, divergence

    def loss(params: list[dict[str, Array]], key: Array, x: Array, y: Array) -> Array:
        h, total = x, 0.0
        for own, key_layer in zip(params[:-1], jax.random.split(key, len(params)), strict=False):
            mean, spread, divergence = layer_of(own, h, True)
            noise = jax.random.normal(key_layer, mean.shape, mean.dtype)
            h, total = mean + jnp.sqrt(spread + softplus(own["noise"])) * noise, total + divergence
        mean, spread, divergence = layer_of(params[-1], h, False)
        s2 = softplus(params[-1]["noise"])
        fit = -0.5 * jnp.log(2.0 * jnp.pi * s2) - 0.5 * ((y - mean) ** 2 + spread) / s2
        return total + divergence - rows / len(x) * fit.sum()

    return layers, loss


def training(
    loss: Callable[..., Array], params: Any, x: Array, y: Array, batch: int, chunk: int
) -> tuple[Any, Callable[[Any, Array], Any]]:
    """A state, and ``run(state, indices)``: a chunk of Adam steps on minibatches, one loop."""
    adam = optax.adam(0.01)

    @partial(jax.jit, donate_argnums=0)
    def run(state: Any, indices: Array) -> Any:
        def step(i: Array, carried: Any) -> Any:
            (params, moments, key), losses = carried
            key, key_loss = jax.random.split(key)
            value, slope = jax.value_and_grad(loss)(params, key_loss, x[indices[i]], y[indices[i]])
            updates, moments = adam.update(slope, moments)
            return (optax.apply_updates(params, updates), moments, key), losses.at[i].set(value)

        return jax.lax.fori_loop(0, chunk, step, (state, jnp.zeros(chunk, x.dtype)))

    return (params, adam.init(params), jax.random.PRNGKey(0)), run


# --- full batch


def collapsed(params: dict[str, Array], x: Array, y: Array) -> Array:
    """Minus the bound of Titsias 2009."""
    lengthscale, variance, s2 = (softplus(params[name]) for name in ("lengthscale", "variance", "noise"))
    lower = jittered(rbf(params["z"], params["z"], lengthscale, variance))
    a = rbf(x, params["z"], lengthscale, variance) @ inverse(lower).T / jnp.sqrt(s2)
    inner = jnp.linalg.cholesky(jnp.eye(a.shape[1], dtype=a.dtype) + a.T @ a)
    c = solve_triangular(inner, a.T @ y, lower=True) / jnp.sqrt(s2)
    fit = len(y) * jnp.log(2.0 * jnp.pi * s2) + 2.0 * jnp.log(jnp.diagonal(inner)).sum()
    return 0.5 * (fit + (y**2).sum() / s2 - (c**2).sum() + len(y) * variance / s2 - (a**2).sum())


def exact(params: dict[str, Array], x: Array, y: Array) -> Array:
    """Minus the log evidence, its gradient through K by ½ (K⁻¹ − ααᵀ)."""
    lengthscale, variance, s2 = (softplus(params[name]) for name in ("lengthscale", "variance", "noise"))
    return evidence(rbf(x, x, lengthscale, variance) + s2 * jnp.eye(len(x), dtype=x.dtype), y[:, 0])


@jax.custom_vjp
def evidence(matrix: Array, y: Array) -> Array:
    return evidence_forward(matrix, y)[0]


def evidence_forward(matrix: Array, y: Array) -> Any:
    lower = jnp.linalg.cholesky(matrix)
    alpha = cho_solve((lower, True), y)
    value = 0.5 * y @ alpha + jnp.log(jnp.diagonal(lower)).sum() + 0.5 * len(y) * jnp.log(2.0 * jnp.pi)
    return value, (lower, alpha)


def evidence_backward(saved: Any, slope: Array) -> Any:
    lower, alpha = saved
    root = inverse(lower)
    return 0.5 * slope * (root.T @ root - jnp.outer(alpha, alpha)), slope * alpha


evidence.defvjp(evidence_forward, evidence_backward)


def bayesian_gplvm(params: dict[str, Array], y: Array) -> Array:
    """Minus the bound of Titsias & Lawrence 2010, its statistics over the distinct pairs of inducing inputs."""
    lengthscale, variance, s2 = (softplus(params[name]) for name in ("lengthscale", "variance", "noise"))
    m, s, z = params["x"] / lengthscale, softplus(params["s"]) / lengthscale**2, params["z"] / lengthscale
    size = len(z)
    first, second = np.tril_indices(size)
    once, twice = 1.0 / (1.0 + s), 1.0 / (1.0 + 2.0 * s)

    def exponent(weight: Array, at: Array) -> Array:
        return (weight * m**2).sum(1)[:, None] - 2.0 * (weight * m) @ at.T + weight @ (at**2).T

    psi1 = variance * jnp.exp(-0.5 * exponent(once, z) + 0.5 * jnp.log(once).sum(1)[:, None])
    between, apart = 0.5 * (z[first] + z[second]), ((z[first] - z[second]) ** 2).sum(1)
    pairs = jnp.exp(-exponent(twice, between) + 0.5 * jnp.log(twice).sum(1)[:, None]).sum(0)
    pairs = variance**2 * pairs * jnp.exp(-0.25 * apart)
    psi2 = jnp.zeros((size, size), z.dtype).at[first, second].set(pairs)
    psi2 = psi2 + jnp.tril(psi2, -1).T
    whiten = inverse(jittered(rbf(z, z, jnp.ones_like(lengthscale), variance)))
    inner = whiten @ psi2 @ whiten.T / s2
    lower = jnp.linalg.cholesky(jnp.eye(size, dtype=z.dtype) + inner)
    c = solve_triangular(lower, whiten @ (psi1.T @ y), lower=True) / s2
    rows, outputs = y.shape
    fit = rows * outputs * jnp.log(2.0 * jnp.pi * s2) + 2.0 * outputs * jnp.log(jnp.diagonal(lower)).sum()
    fit = fit + (y**2).sum() / s2 - (c**2).sum() + outputs * (rows * variance / s2 - jnp.trace(inner))
    spread = softplus(params["s"])
    return 0.5 * fit + 0.5 * (params["x"] ** 2 + spread - jnp.log(spread) - 1.0).sum()


# --- a state space model under a Markov chain, the path drawn


def state_space(params: dict[str, Array], key: Array, y: Array) -> Array:
    """Minus the ELBO of x_t = f(x_{t−1}) + ε, y = C x + d + ε; q(x) a linear-Gaussian chain with diagonal noise."""
    steps, width = params["offset"].shape
    lengthscale, variance = softplus(params["lengthscale"]), softplus(params["variance"])
    process, s2 = softplus(params["process"]), softplus(params["noise"])
    slope, scale = params["slope"], softplus(params["scale"])
    start, begin = params["start"], softplus(params["begin"])
    noise = jax.random.normal(key, (steps + 1, width), y.dtype)

    def step(state: Array, turn: Any) -> tuple[Array, Array]:
        a, b, deviation, shock = turn
        state = a @ state + b + deviation * shock
        return state, state

    first = start + begin * noise[0]
    states = jax.lax.scan(step, first, (slope, params["offset"], scale, noise[1:]))[1]
    before = jnp.concatenate([first[None], states[:-1]])
    whiten = inverse(jittered(rbf(params["z"], params["z"], lengthscale, variance)))
    a = rbf(before, params["z"], lengthscale, variance) @ whiten.T
    root = jnp.tril(params["root"])
    mean = before + a @ params["mean"].T
    spread = variance - (a**2).sum(1)[:, None] + quadratic(a, root @ root.transpose(0, 2, 1))
    log_det = jnp.log(jnp.abs(jnp.diagonal(root, axis1=1, axis2=2))).sum()
    divergence = 0.5 * ((root**2).sum() + (params["mean"] ** 2).sum() - params["mean"].size) - log_det
    gaussian = lambda error, variance: -0.5 * jnp.log(2.0 * jnp.pi * variance) - 0.5 * error**2 / variance
    moves = (gaussian(states - mean, process) - 0.5 * spread / process).sum() + gaussian(first, 1.0).sum()
    entropy = jnp.log(scale).sum() + jnp.log(begin).sum() + 0.5 * (noise**2).sum()
    entropy = entropy + 0.5 * noise.size * jnp.log(2.0 * jnp.pi)
    emitted = gaussian(y - states @ params["weights"] - params["bias"], s2).sum()
    return divergence - moves - entropy - emitted


def windows(
    params: dict[str, Array], key: Array, y: Array, starts: Array, length: int, particles: int
) -> Array:
    """Minus the ELBO of windows of a series, states by the model's own transition; one draw of u for each particle."""
    lengthscale, variance = softplus(params["lengthscale"]), softplus(params["variance"])
    process, s2 = softplus(params["process"]), softplus(params["noise"])
    whiten = inverse(jittered(rbf(params["z"], params["z"], lengthscale, variance)))
    root, count, width = jnp.tril(params["root"]), len(starts), y.shape[1]
    key_u, key_first, key_steps = jax.random.split(key, 3)
    u = params["mean"] + jnp.einsum(
        "pmk,spk->spm", root, jax.random.normal(key_u, (particles, *params["mean"].shape), y.dtype)
    )
    mean, deviation = params["start"][starts], softplus(params["begin"])[starts]
    first = mean + deviation * jax.random.normal(key_first, (particles, count, width), y.dtype)
    shocks = jax.random.normal(key_steps, (length, particles, count, width), y.dtype)
    coefficients = u @ whiten

    def step(state: Array, shock: Array) -> tuple[Array, Array]:
        k = rbf(state.reshape(-1, width), params["z"], lengthscale, variance)
        spread = variance - ((k @ whiten.T) ** 2).sum(1)
        moved = jnp.einsum("scm,spm->scp", k.reshape(particles, count, -1), coefficients)
        noise = jnp.maximum(spread, 0.0).reshape(particles, count, 1) + process
        state = state + moved + jnp.sqrt(noise) * shock
        return state, state

    states = jax.lax.scan(step, first, shocks)[1]
    seen = y[starts[None] + jnp.arange(length)[:, None]][:, None]
    errors = seen - states @ params["weights"] - params["bias"]
    emitted = (-0.5 * jnp.log(2.0 * jnp.pi * s2) - 0.5 * errors**2 / s2).sum((0, 2, 3)).mean()
    log_det = jnp.log(jnp.abs(jnp.diagonal(root, axis1=1, axis2=2))).sum()
    divergence = 0.5 * ((root**2).sum() + (params["mean"] ** 2).sum() - params["mean"].size) - log_det
    begun = (0.5 * (mean**2 + deviation**2 - 1.0) - jnp.log(deviation)).sum()
    return divergence + (len(y) / (length * count)) * (begun - emitted)
