r"""Tiny models whose evidence is known, that rules and objectives are tried on.

* a toy without GPs, θ → h_n → y_n, all Gaussian: θ ~ N(0, 1), h_n ~ N(θ, A), y_n ~ N(h_n, B), with
  q(θ) = N(M, V), q(h_n | θ) = N(Cθ + D_n, S);
* sparse GP regression of six rows on three inducing inputs, with the exact evidence, that of FITC, and power EP's
  energy, which lies between them and is the greatest that a q(u) can reach;
* a deep GP of two rows with one hidden variable each, its evidence by quadrature.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array
from numpyro.distributions import biject_to, constraints
from numpyro.handlers import seed, trace

from ppl_dgp.gp.contract import Model, Parameters
from ppl_dgp.gp.means import Linear
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import Guide
from ppl_dgp.kernels import RBF

A, B, M, V, C, S = 0.5, 0.3, 0.2, 0.3, 0.4, 0.4
TOY_OFFSETS = np.array([0.6, -0.3, 0.9])
TOY_TARGETS = np.array([1.1, -0.4, 1.6])

#: rows (6, 1) and targets (6, 1) of regression, its inducing inputs, and the variances of kernel and noise
INPUTS = np.array([-1.1, -0.6, -0.1, 0.3, 0.8, 1.3])[:, None]
TARGETS = np.array([0.3, -0.4, 0.2, 0.7, 1.1, 0.6])[:, None]
TRIAL_INDUCING = np.array([-0.9, 0.1, 1.0])[:, None]
KERNEL_VARIANCE, NOISE = 0.8, 0.2

#: two rows of a deep GP, its inducing inputs, and the variance of the hidden layer's noise
CHAIN_INPUTS, CHAIN_TARGETS = np.array([[-0.4], [0.7]]), np.array([[0.5], [-0.1]])
CHAIN_INDUCING, HIDDEN_NOISE = np.array([[-0.8], [0.6]]), 0.1


def toy_model(y: Array, index: Array | None = None) -> None:
    """θ → h_n → y_n."""
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    with data_plate(3, index):
        h = numpyro.sample("h", dist.Normal(theta, A**0.5))
        numpyro.sample("y", dist.Normal(h, B**0.5), obs=y)


def toy_guide(y: Array, index: Array | None = None) -> None:
    """q(θ) Π q(h_n | θ)."""
    loc, scale = numpyro.param("loc", M), numpyro.param("scale", V**0.5, constraint=constraints.positive)
    theta = numpyro.sample("theta", dist.Normal(loc, scale))
    with data_plate(3, index):
        offsets = numpyro.param("d", jnp.asarray(TOY_OFFSETS), event_dim=0)
        numpyro.sample("h", dist.Normal(C * theta + offsets, S**0.5))


def toy_parameters(at_posterior: bool = False) -> Parameters:
    """Of the toy's guide; with q(θ) the posterior of θ, if wanted."""
    variance = 1.0 / (1.0 + 3.0 / (A + B)) if at_posterior else V
    loc = variance * TOY_TARGETS.sum() / (A + B) if at_posterior else M
    return {"loc": jnp.asarray(loc), "scale": jnp.asarray(variance**0.5), "d": jnp.asarray(TOY_OFFSETS)}


def toy_elbo() -> float:
    """The ELBO of the toy at its parameters, in closed form."""
    log_normal = lambda squared, variance: -0.5 * np.log(2 * np.pi * variance) - 0.5 * squared / variance
    # h_n has mean C θ + d_n and deviates from θ by (C − 1) θ + d_n, θ ~ N(M, V)
    emission = log_normal((TOY_TARGETS - C * M - TOY_OFFSETS) ** 2 + C**2 * V + S, B)
    transition = log_normal(((C - 1) * M + TOY_OFFSETS) ** 2 + (C - 1) ** 2 * V + S, A)
    divergence = 0.5 * (V + M**2 - 1.0 - np.log(V))
    return float((emission + transition + 0.5 * np.log(2 * np.pi * np.e * S)).sum() - divergence)


def toy_evidence() -> float:
    """log N(y; 0, 1 1ᵀ + (A + B) I)."""
    return log_normal_density(TOY_TARGETS, np.ones((3, 3)) + (A + B) * np.eye(3))


def log_normal_density(y: np.ndarray, covariance: np.ndarray) -> float:
    """log N(y; 0, covariance), by the plain formula."""
    quadratic = y @ np.linalg.solve(covariance, y)
    return float(-0.5 * quadratic - 0.5 * np.linalg.slogdet(2.0 * np.pi * covariance)[1])


def regression(x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None) -> None:
    """One sparse GP with an identity mean and Gaussian noise."""
    kernel = RBF(jnp.asarray(KERNEL_VARIANCE, x.dtype), jnp.asarray(1.0, x.dtype))
    f = sparse_gp("f", kernel, jnp.asarray(TRIAL_INDUCING, x.dtype), mean=Linear(jnp.eye(1, dtype=x.dtype)))
    with data_plate(size or x.shape[0], index):
        numpyro.sample("y", f(x).noisy(jnp.asarray(NOISE, x.dtype)), obs=y)


def two_layers(x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None) -> None:
    """A deep GP of two layers, 2 and 1 wide."""
    kernel, z = RBF(KERNEL_VARIANCE, 1.0), jnp.asarray(TRIAL_INDUCING)
    first = sparse_gp("layer1", kernel, z, num_outputs=2, mean=Linear(jnp.ones((1, 2))))
    second = sparse_gp("layer2", kernel, jnp.concatenate([z, z[::-1]], 1), mean=Linear(jnp.ones((2, 1))))
    with data_plate(size or x.shape[0], index):
        h = numpyro.sample("layer1/h", first(x).noisy(0.1), infer={"role": "hidden"})
        numpyro.sample("y", second(h).noisy(NOISE), obs=y)


def chain(x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None) -> None:
    """A deep GP of two layers, 1 and 1 wide, identity means: a hidden variable for each row."""
    dtype = x.dtype
    kernel = RBF(jnp.asarray(KERNEL_VARIANCE, dtype), jnp.asarray(1.0, dtype))
    z, identity = jnp.asarray(CHAIN_INDUCING, dtype), Linear(jnp.eye(1, dtype=dtype))
    first, second = (sparse_gp(f"layer{i}", kernel, z, mean=identity) for i in (1, 2))
    with data_plate(size or x.shape[0], index):
        h = numpyro.sample(
            "layer1/h", first(x).noisy(jnp.asarray(HIDDEN_NOISE, dtype)), infer={"role": "hidden"}
        )
        numpyro.sample("y", second(h).noisy(jnp.asarray(NOISE, dtype)), obs=y)


def chain_evidence(alpha: float) -> float:
    """What a bound at α may not exceed, by quadrature over h (exact GPs, α = 0) or over both u and h (FITC)."""
    return _exact_chain_evidence() if alpha == 0.0 else _fitc_chain_evidence()


def _kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    covariance: np.ndarray = KERNEL_VARIANCE * np.exp(-0.5 * np.square(a[..., :, None] - b[..., None, :]))
    return covariance


def _normal_nodes(number: int, dims: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (K, D) of N(0, I) and their log weights."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(number)
    grid = np.stack(np.meshgrid(*[nodes] * dims, indexing="ij"), -1).reshape(-1, dims)
    log_weights = sum(np.meshgrid(*[np.log(weights / weights.sum())] * dims, indexing="ij"))
    return grid, np.ravel(log_weights)


def _exact_chain_evidence() -> float:
    """log ∫ N(h; x, K(x,x) + s₁²I) N(y; h, K(h,h) + s₂²I) dh over the two rows' h."""
    x, y = CHAIN_INPUTS[:, 0], CHAIN_TARGETS[:, 0]
    nodes, log_weights = _normal_nodes(60, 2)
    h = x + nodes @ np.linalg.cholesky(_kernel(x, x) + HIDDEN_NOISE * np.eye(2)).T
    covariance = _kernel(h, h) + NOISE * np.eye(2)
    solved = np.linalg.solve(covariance, (y - h)[..., None])[..., 0]
    log_p = -0.5 * ((y - h) * solved).sum(-1) - 0.5 * np.linalg.slogdet(2.0 * np.pi * covariance)[1]
    return float(np.logaddexp.reduce(log_weights + log_p))


def _fitc_chain_evidence() -> float:
    """log E_{u₁,u₂} Π_n ∫ N(h; f₁(x_n) | u₁) N(y_n; f₂(h) | u₂) dh, rows independent given u."""
    x, y, z = CHAIN_INPUTS[:, 0], CHAIN_TARGETS[:, 0], CHAIN_INDUCING[:, 0]
    lower = np.linalg.cholesky(_kernel(z, z) + 1e-8 * KERNEL_VARIANCE * np.eye(2))
    weights_at = lambda inputs: _kernel(inputs, z) @ np.linalg.inv(lower).T
    u, log_u = _normal_nodes(16, 2)
    nodes, log_h = _normal_nodes(40, 1)
    weights = weights_at(x)
    deviation = np.sqrt(KERNEL_VARIANCE - np.square(weights).sum(-1) + HIDDEN_NOISE)
    # (U, N, K) values of h
    h = (x + u @ weights.T)[..., None] + deviation[:, None] * nodes[:, 0]
    after = weights_at(h.reshape(-1)).reshape(*h.shape, 2)
    variance = KERNEL_VARIANCE - np.square(after).sum(-1) + NOISE
    total = []
    for value, log_weight in zip(u, log_u, strict=True):
        squared = np.square(y[:, None] - h - after @ value) / variance
        log_p = -0.5 * (squared + np.log(2.0 * np.pi * variance))
        rows = np.logaddexp.reduce(log_p + log_h, axis=-1)
        total.append(log_weight + np.logaddexp.reduce(log_u + rows.sum(-1)))
    return float(np.logaddexp.reduce(total))


def dense_matrices() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """K, Q = Kxz Kzz⁻¹ Kzx, and the whitened weights A = Kxz L⁻ᵀ of the regression."""
    kernel = lambda a, b: KERNEL_VARIANCE * np.exp(-0.5 * np.square(a - b.T))
    # as the sparse GP has it: 1e-8 of the variance on the diagonal of Kzz
    gram = kernel(TRIAL_INDUCING, TRIAL_INDUCING) + 1e-8 * KERNEL_VARIANCE * np.eye(len(TRIAL_INDUCING))
    weights = np.linalg.solve(np.linalg.cholesky(gram), kernel(TRIAL_INDUCING, INPUTS)).T
    return kernel(INPUTS, INPUTS), weights @ weights.T, weights


def regression_evidence(alpha: float = 0.0) -> float:
    """What a bound at α may not exceed: the exact evidence at α = 0, that of FITC else."""
    exact, low_rank, _ = dense_matrices()
    covariance = exact if alpha == 0.0 else low_rank + np.diag(np.diag(exact - low_rank))
    return log_normal_density((TARGETS - INPUTS)[:, 0], covariance + NOISE * np.eye(len(INPUTS)))


def regression_energy(alpha: float) -> float:
    """The greatest value over all q(u): Titsias' bound at α = 0, power EP's energy else."""
    exact, low_rank, _ = dense_matrices()
    left = np.diag(exact - low_rank)
    covariance = low_rank + alpha * np.diag(left) + NOISE * np.eye(len(INPUTS))
    fit = log_normal_density((TARGETS - INPUTS)[:, 0], covariance)
    if alpha == 0.0:
        return float(fit - 0.5 * left.sum() / NOISE)
    return float(fit - 0.5 * (1.0 - alpha) / alpha * np.log1p(alpha * left / NOISE).sum())


def moved_parameters(guide: Guide, model: Model, *args: Any, step: float = 0.3) -> Parameters:
    """Parameters of guide and model that are nowhere special: their starts, moved at random where nothing binds."""
    starts: dict[str, Any] = {}
    traced = trace(seed(guide, jax.random.PRNGKey(0))).get_trace(*args)
    for place, (name, site) in enumerate(sorted(traced.items())):
        if site["type"] != "param":
            continue
        transform = biject_to(site["kwargs"].get("constraint", constraints.real))
        free = transform.inv(jnp.asarray(site["value"]))
        noise = jax.random.normal(jax.random.fold_in(jax.random.PRNGKey(1), place), free.shape, free.dtype)
        starts[name] = transform(free + step * noise)
    return starts
