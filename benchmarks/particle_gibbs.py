"""The smooth kink at R = 0.08 by particle Gibbs over (u, hyperparameters, path): the posterior that guides stand for.

    python -m benchmarks.particle_gibbs --data DIR --series 0-4   # appends what benchmarks/particle-gibbs.csv lacks
    python -m benchmarks.particle_gibbs --table

Written from the formulas, with nothing of the library. The model is that of ``gpssm(1, 1, emission="identity")`` with
inducing inputs on a grid: x_t = x_{t−1} + f(x_{t−1}) + ε, f's values independent given u, beside priors on four
hyperparameters, log-normal around 1 (lengthscale, variance), 0.05 (Q) and 0.1 (R). One sweep draws the path given all
else by conditional SMC, fully adapted, with ancestor sampling (Lindsten, Jordan & Schön 2014); lengthscale, variance
and Q by a random walk with u integrated out; u; R. Shapes: T steps, N particles, M inducing inputs.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax.scipy.linalg import solve_triangular
from jax.scipy.stats import norm
from jaxtyping import Array, Float
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

from benchmarks.kinks import smooth_kink
from benchmarks.rows import append, done, numbers, read

CSV = Path("benchmarks/particle-gibbs.csv")
NAMES = ("lengthscale", "variance", "process", "observation")
#: median and standard deviation of the logarithm of each
PRIOR_MEDIAN, PRIOR_SPREAD = np.array([1.0, 1.0, 0.05, 0.1]), np.array([1.0, 1.5, 2.0, 2.0])
FIELDS = (
    "series", "sweeps", *(f"{name}{end}" for name in NAMES for end in ("_mean", "_low", "_high")),
    "r_hat", "ess", "rmse", "log_density", "seconds",
)  # fmt: skip
NUM_INDUCING, NUM_PARTICLES, CHAINS, WALKS, LEVEL = 20, 50, 4, 10, 1
#: of the step of a random walk, in logarithms, and what the diagonal of a covariance matrix gets
STEP, JITTER = np.array([0.12, 0.25, 0.12]), 1e-8


class Function(NamedTuple):
    """f given u, by what does not depend on where it is asked: Z, θ, L⁻¹ of K(Z, Z) = L Lᵀ, and v, u = L v."""

    inputs: Float[Array, " M"]
    theta: Float[Array, " 4"]
    inverse: Float[Array, "M M"]
    v: Float[Array, " M"]

    def features(self, x: Float[Array, " n"]) -> Float[Array, "M n"]:
        """L⁻¹ k(Z, x): f(x) = features · v and what they leave over."""
        return self.inverse @ kernel(self.inputs, x, self.theta)

    def step(self, x: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Mean and variance of the state after x."""
        phi = self.features(x)
        return x + self.v @ phi, jnp.maximum(self.theta[1] - jnp.square(phi).sum(0), 0.0) + self.theta[2]


def kernel(a: Float[Array, " A"], b: Float[Array, " B"], theta: Float[Array, " 4"]) -> Float[Array, "A B"]:
    """Squared exponential."""
    return theta[1] * jnp.exp(-0.5 * jnp.square((a[:, None] - b) / theta[0]))


def function_of(inputs: Array, theta: Array, v: Float[Array, " M"] | None = None) -> Function:
    """f at whitened inducing outputs v, 0 if not given."""
    root = jnp.linalg.cholesky(kernel(inputs, inputs, theta) + JITTER * theta[1] * jnp.eye(inputs.shape[0]))
    inverse = solve_triangular(root, jnp.eye(inputs.shape[0]), lower=True)
    return Function(inputs, theta, inverse, jnp.zeros_like(inputs) if v is None else v)


def draw_path(
    key: Array, f: Function, y: Float[Array, " T"], kept: Float[Array, " T1"], num_particles: int
) -> Float[Array, " T1"]:
    """x_0 … x_T, one step of a Markov chain that leaves p(x | y, u, θ) as it is, from the path ``kept``."""
    key_initial, key_steps, key_last = jax.random.split(key, 3)
    begin = jax.random.normal(key_initial, (num_particles,)).at[-1].set(kept[0])
    noise = f.theta[3]

    def step(x: Array, turn: Any) -> tuple[Array, tuple[Array, Array]]:
        y_t, kept_t, choices, kicks = turn
        mean, variance = f.step(x)
        likely, onward = _log_normal(y_t - mean, variance + noise), _log_normal(kept_t - mean, variance)
        ancestors = jnp.append(chosen(likely, choices[:-1]), chosen(onward, choices[-1:]))
        m, s = mean[ancestors], variance[ancestors]
        gain = s / (s + noise)
        moved = m + gain * (y_t - m) + jnp.sqrt(gain * noise) * kicks
        moved = moved.at[-1].set(kept_t)
        return moved, (moved, ancestors)

    shape, (key_choices, key_kicks) = (y.shape[0], num_particles), jax.random.split(key_steps)
    turns = y, kept[1:], jax.random.uniform(key_choices, shape), jax.random.normal(key_kicks, shape)
    _, (states, ancestors) = jax.lax.scan(step, begin, turns)

    def back(place: Array, turn: Any) -> tuple[Array, Array]:
        states_t, ancestors_t = turn
        return ancestors_t[place], states_t[place]

    last = jax.random.randint(key_last, (), 0, num_particles, int)
    first, path = jax.lax.scan(back, last, (states, ancestors), reverse=True)
    return jnp.concatenate([begin[first][None], path])


def chosen(log_weights: Float[Array, " N"], uniform: Float[Array, " n"]) -> Array:
    """Places drawn by their weights, of uniform numbers."""
    heights = jnp.cumsum(jnp.exp(log_weights - log_weights.max()))
    places = jnp.searchsorted(heights, uniform * heights[-1])
    return jnp.minimum(places, log_weights.shape[0] - 1).astype(int)


def _log_normal(error: Array, variance: Array) -> Array:
    """But for a constant."""
    return -0.5 * jnp.square(error) / variance - 0.5 * jnp.log(variance)


def posterior_of_u(inputs: Array, theta: Array, path: Array) -> tuple[Array, Array, Array]:
    """log p(path | θ) with v integrated out, v's mean, and the root of its precision."""
    f, before, steps = function_of(inputs, theta), path[:-1], jnp.diff(path)
    phi = f.features(before)
    variance = jnp.maximum(theta[1] - jnp.square(phi).sum(0), 0.0) + theta[2]
    root = jnp.linalg.cholesky(jnp.eye(inputs.shape[0]) + (phi / variance) @ phi.T)
    half = solve_triangular(root, phi @ (steps / variance), lower=True)
    quadratic = (jnp.square(steps) / variance).sum() - jnp.square(half).sum()
    volume = jnp.log(2.0 * jnp.pi * variance).sum() + 2.0 * jnp.log(jnp.diagonal(root)).sum()
    return -0.5 * (quadratic + volume), solve_triangular(root, half, lower=True, trans=1), root


def log_prior(theta: Array) -> Array:
    """Of the logarithms."""
    return norm.logpdf(jnp.log(theta), jnp.log(PRIOR_MEDIAN), PRIOR_SPREAD).sum()


def sweep(
    state: tuple[Array, Array, Array], key: Array, inputs: Array, y: Array, num_particles: int
) -> tuple[tuple[Array, Array, Array], tuple[Array, Array]]:
    """All of (path, θ, v) once; θ and v are kept."""
    path, theta, _ = state
    key_path, key_walk, key_u, key_noise = jax.random.split(key, 4)

    def walk(at: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], None]:
        theta, value = at
        key_move, key_accept, key_which = jax.random.split(key, 3)
        alone = jax.nn.one_hot(jax.random.randint(key_which, (), 0, 3), 3)
        moves = jnp.append(alone * STEP * jax.random.normal(key_move, (3,)), 0.0)
        moved = theta * jnp.exp(moves)
        new = posterior_of_u(inputs, moved, path)[0] + log_prior(moved)
        accepted = jnp.log(jax.random.uniform(key_accept)) < new - value
        return (jnp.where(accepted, moved, theta), jnp.where(accepted, new, value)), None

    value = posterior_of_u(inputs, theta, path)[0] + log_prior(theta)
    (theta, _), _ = jax.lax.scan(walk, (theta, value), jax.random.split(key_walk, WALKS))
    _, mean, root = posterior_of_u(inputs, theta, path)
    v = mean + solve_triangular(root, jax.random.normal(key_u, mean.shape), lower=True, trans=1)

    def walk_noise(theta: Array, key: Array) -> tuple[Array, None]:
        density = lambda at: norm.logpdf(y, path[1:], jnp.sqrt(at[3])).sum() + log_prior(at)
        key_move, key_accept = jax.random.split(key)
        moved = theta.at[3].multiply(jnp.exp(0.1 * jax.random.normal(key_move)))
        accepted = jnp.log(jax.random.uniform(key_accept)) < density(moved) - density(theta)
        return jnp.where(accepted, moved, theta), None

    theta, _ = jax.lax.scan(walk_noise, theta, jax.random.split(key_noise, WALKS))
    path = draw_path(key_path, function_of(inputs, theta, v), y, path, num_particles)
    return (path, theta, v), (theta, v)


@partial(jax.jit, static_argnames=("sweeps", "num_particles"))
def chains(
    keys: Array, starts: tuple[Array, Array, Array], inputs: Array, y: Array, sweeps: int, num_particles: int
) -> tuple[tuple[Array, Array, Array], tuple[Array, Array]]:
    """Chains side by side: where they end, and their θ and v, (chains, sweeps, …)."""

    def one(key: Array, start: tuple[Array, Array, Array]) -> Any:
        turn = lambda state, key: sweep(state, key, inputs, y, num_particles)
        return jax.lax.scan(turn, start, jax.random.split(key, sweeps))

    ended: tuple[tuple[Array, Array, Array], tuple[Array, Array]] = jax.vmap(one)(keys, starts)
    return ended


def sampled(y: np.ndarray, states: np.ndarray, sweeps: int, seed: int) -> dict[str, Any]:
    """The posterior of one series: hyperparameters with their 95 % intervals, and f on a grid of where the states were.

    The first third of the sweeps is left out.
    """
    since, key = time.perf_counter(), jax.random.key(seed)
    inputs = jnp.linspace(y.min() - 0.3, y.max() + 0.3, NUM_INDUCING)
    # the chains begin apart, the path at y or smoothed
    pairs = ((0.1, 0.02), (0.05, 0.05), (0.2, 0.01), (0.02, 0.1))
    theta = jnp.stack([jnp.array([1.0, 1.0, *pair]) for pair in pairs])
    rough = jnp.concatenate([y[:1], y])
    smooth = jnp.convolve(jnp.pad(rough, 1, mode="edge"), jnp.ones(3) / 3.0, "valid")
    paths = jnp.stack([rough, smooth, rough, smooth])
    starts = paths, theta, jnp.zeros((CHAINS, NUM_INDUCING))
    _, (theta, v) = chains(
        jax.random.split(key, CHAINS), starts, inputs, jnp.asarray(y), sweeps, NUM_PARTICLES
    )
    theta, v = (np.asarray(each)[:, sweeps // 3 :] for each in (theta, v))
    found: dict[str, Any] = {"sweeps": sweeps}
    for name, values in zip(NAMES, np.moveaxis(theta, -1, 0), strict=True):
        low, high = np.quantile(values, (0.025, 0.975))
        found |= {f"{name}_mean": values.mean(), f"{name}_low": low, f"{name}_high": high}
    log = np.log(theta)
    found["r_hat"] = max(float(split_gelman_rubin(log[..., k])) for k in range(len(NAMES)))
    found["ess"] = min(float(effective_sample_size(log[..., k])) for k in range(len(NAMES)))
    grid = jnp.linspace(*np.quantile(states, [0.01, 0.99]), 200)
    thin = max(1, theta.shape[1] // 250)
    draws = theta[:, ::thin].reshape(-1, 4), v[:, ::thin].reshape(-1, NUM_INDUCING)

    def at_grid(theta: Array, v: Array) -> tuple[Array, Array]:
        mean, variance = function_of(inputs, theta, v).step(grid)
        return mean, variance - theta[2]

    means, left = map(np.asarray, jax.jit(jax.vmap(at_grid))(*draws))
    mean, variance = means.mean(0), means.var(0) + left.mean(0)
    error = smooth_kink(np.asarray(grid)) - mean
    found["rmse"] = float(np.sqrt(np.square(error).mean()))
    found["log_density"] = float(
        (-0.5 * np.log(2.0 * np.pi * variance) - 0.5 * np.square(error) / variance).mean()
    )
    return found | {"seconds": time.perf_counter() - since}


def main() -> int:
    """Run what is left, or print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--series", default="0-4")
    parser.add_argument("--sweeps", type=int, default=9000)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        for row in read(CSV):
            print(*(f"{name} {row[name]}" for name in FIELDS))
        return 0
    if options.data is None:
        parser.error("--data: found none, expected the directory that holds sysid/kink.npz")
    numpyro.enable_x64()
    with np.load(options.data / "sysid" / "kink.npz") as file:
        states, observed = file["x"][LEVEL], file["y"][LEVEL]
    known = done(CSV, FIELDS[:1])
    for number in numbers(options.series):
        if (str(number),) in known:
            continue
        row = {"series": number} | sampled(observed[number][1:], states[number], options.sweeps, number)
        text = [f"{row[field]:.5g}" if isinstance(row[field], float) else row[field] for field in FIELDS]
        append(CSV, FIELDS, text)
        print(*(f"{field}={value}" for field, value in zip(FIELDS, text, strict=True)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
