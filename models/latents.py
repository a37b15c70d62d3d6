r"""Where the latents of a table begin: probabilistic principal components, tolerant of missing entries.

    y_n = µ + s ⊙ (W x_n + ε),   x_n ~ N(0, I),   ε ~ N(0, v I)

(Tipping & Bishop 1999; with missing entries W and v by EM, their appendix B). A model holds µ, s, v and W as the
columns of a parameter that no gradient moves, ``x/components`` (P, 3 + Q), so that new rows begin where training rows
began.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float

from ppl_dgp.gp.contract import hidden_role
from ppl_dgp.gp.representation import offer
from ppl_dgp.numerics.gaussian import Gaussian

#: variance of q(x_n) at the start, where the prior's is 1
START_VARIANCE = 0.01
EM_STEPS = 50
#: rows that EM looks at, about: it holds Q × Q numbers for each
EM_ROWS = 20_000
#: of the columns, standardised
SMALLEST_SPREAD = 1e-3
#: the shortest lengthscale at the start, and how much longer the longest may be
SHORTEST, LONGEST = 2.0, 10.0
LATENT_STARTS = ("pca", "random")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Components:
    """µ, s (P,), W (P, Q) and v."""

    centre: Float[Array, " P"]
    unit: Float[Array, " P"]
    axes: Float[Array, "P Q"]
    spread: Float[Array, ""]

    def scores(self, y: Float[Array, "B P"], missing: bool) -> Float[Array, "B Q"]:
        """E[x_n | the entries of y_n that are there]; NaN are not, where ``missing`` allows them."""
        identity = self.spread * jnp.eye(self.axes.shape[1], dtype=self.axes.dtype)
        rows = (y - self.centre) / self.unit
        scores: Array
        if not missing:
            scores = jnp.linalg.solve(self.axes.T @ self.axes + identity, self.axes.T @ rows.T).T
            return scores
        there = ~jnp.isnan(y)
        seen = there.astype(self.axes.dtype)
        gram = jnp.einsum("bp,pq,pr->bqr", seen, self.axes, self.axes) + identity
        projected = jnp.where(there, rows, 0.0) @ self.axes
        scores = jnp.linalg.solve(gram, projected[..., None])[..., 0]
        return scores

    def lengthscales(self) -> Float[Array, " Q"]:
        """Of an RBF over x whose dimensions count as they do in W, the first ``SHORTEST``."""
        share = jnp.sqrt(jnp.square(self.axes).sum(0))
        return SHORTEST * jnp.clip(share.max() / jnp.maximum(share, 1e-8), 1.0, LONGEST)


def components(
    key: Array, y: Float[Array, "N P"], width: int, start: str = "pca", missing: bool = False
) -> Components:
    """Principal components of y, the strongest first, or at "random" a random mixture of all of them.

    Where there are fewer than ``width``, the rest are small random directions.
    """
    key_mixing, key_rest = jax.random.split(key)
    there = ~jnp.isnan(y) if missing else jnp.ones(y.shape, bool)
    rows = jnp.where(there, y, 0.0).astype(float)
    count = jnp.maximum(there.sum(0), 1)
    centre = rows.sum(0) / count
    unit = jnp.sqrt(jnp.where(there, jnp.square(rows - centre), 0.0).sum(0) / count)
    unit = jnp.where(unit > 0.0, unit, 1.0)
    standard = jnp.where(there, (rows - centre) / unit, 0.0)
    kept = min(width, *standard.shape) if start == "pca" else min(standard.shape)
    axes, spread = _principal(standard, kept)
    if missing and start == "pca":
        some = slice(None, None, -(-len(standard) // EM_ROWS))
        axes, spread = _em(standard[some], there[some].astype(standard.dtype), axes, spread)
    if start == "random":
        mixing = jax.random.normal(key_mixing, (kept, min(width, kept)), axes.dtype)
        axes = axes @ jnp.linalg.qr(mixing)[0]
    rest = jax.random.normal(key_rest, (axes.shape[0], max(width - axes.shape[1], 0)), axes.dtype)
    return Components(centre, unit, jnp.hstack([axes, 1e-3 * rest]), spread)


def _principal(standard: Float[Array, "N P"], kept: int) -> tuple[Float[Array, "P Q"], Float[Array, ""]]:
    """W and v of most likelihood for complete rows."""
    rows, columns = standard.shape
    tall = rows >= columns
    variances, vectors = jnp.linalg.eigh((standard.T @ standard if tall else standard @ standard.T) / rows)
    # from the smallest
    variances, vectors = variances[::-1], vectors[:, ::-1][:, :kept]
    if not tall:
        vectors = standard.T @ vectors
        vectors = vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=0), 1e-30)
    spread = jnp.maximum(variances[kept:].sum() / max(columns - kept, 1), SMALLEST_SPREAD)
    return _signed(vectors) * jnp.sqrt(jnp.maximum(variances[:kept] - spread, 1e-6)), spread


def _em(
    standard: Float[Array, "N P"], seen: Float[Array, "N P"], axes: Float[Array, "P Q"], spread: Array
) -> tuple[Float[Array, "P Q"], Float[Array, ""]]:
    """W and v of incomplete rows, the columns of W at right angles and the strongest first."""
    eye = jnp.eye(axes.shape[1], dtype=axes.dtype)
    products = standard.T

    def turn(_: Any, now: tuple[Array, Array]) -> tuple[Array, Array]:
        axes, spread = now
        pairs = jnp.einsum("pq,pr->pqr", axes, axes).reshape(len(axes), -1)
        gram = (seen @ pairs).reshape(-1, *eye.shape) + spread * eye
        inverse = jnp.linalg.inv(gram)
        mean = jnp.einsum("nqr,nr->nq", inverse, standard @ axes)
        second = spread * inverse + mean[:, :, None] * mean[:, None, :]
        left = (seen.T @ second.reshape(len(second), -1)).reshape(-1, *eye.shape)
        axes = jnp.linalg.solve(left + 1e-8 * eye, (products @ mean)[..., None])[..., 0]
        # E|y − W x|² over the entries that are there
        squares = jnp.square(standard).sum() - 2.0 * (axes * (products @ mean)).sum()
        squares = squares + jnp.einsum("pqr,pq,pr->", left, axes, axes)
        return axes, jnp.maximum(squares / seen.sum(), SMALLEST_SPREAD)

    axes, spread = jax.lax.fori_loop(0, EM_STEPS, turn, (axes, spread))
    directions, scale, _ = jnp.linalg.svd(axes, full_matrices=False)
    return _signed(directions) * scale, spread


def _signed(vectors: Float[Array, "P Q"]) -> Float[Array, "P Q"]:
    """Each with its largest entry positive."""
    largest = jnp.take_along_axis(vectors, jnp.argmax(jnp.abs(vectors), 0, keepdims=True), 0)
    return vectors * jnp.sign(largest)


def fixed_components(
    name: str, y: Float[Array, "N P"], width: int, start: str, missing: bool = False
) -> Components:
    """The components as parameters of the site ``name``, found from the rows that initialise the model.

    :raises ValueError: for an unknown start.
    """
    if start not in LATENT_STARTS:
        raise ValueError(f"start: found {start!r}, expected one of {', '.join(LATENT_STARTS)}")

    def begin(key: Array) -> Float[Array, "P Q3"]:
        principal = components(key, y, width, start, missing)
        spread = jnp.full_like(principal.centre, principal.spread)
        return jnp.column_stack([principal.centre, principal.unit, spread, principal.axes])

    columns = jax.lax.stop_gradient(numpyro.param(f"{name}/components", begin))
    return Components(columns[:, 0], columns[:, 1], columns[:, 3:], columns[0, 2])


def where_latents_begin(
    name: str,
    x: Float[Array, "N D"],
    y: Float[Array, "N P"] | None,
    latent: int,
    start: str,
    missing: bool = False,
) -> tuple[Float[Array, "N Q"], Float[Array, " Q"] | None]:
    """Means of the latents ``name`` and lengthscales over them at the start; 0 and None where there is no y.

    :raises ValueError: for an unknown start.
    """
    if y is None:
        return jnp.zeros((x.shape[0], latent)), None
    principal = fixed_components(name, y, latent, start, missing)
    return principal.scores(y, missing), principal.lengthscales()


def standard_normal(name: str, latent: int, start: Callable[[], Gaussian]) -> Any:
    """x_n ~ N(0, I_Q), a draw or moments; inside the data plate.

    :param start: where q(x_n) begins.
    """
    prior = dist.Normal(0.0, 1.0).expand([latent]).to_event(1)
    return offer(name, numpyro.sample(name, prior, infer=hidden_role(start)))


def latents_around(scores: Float[Array, "B Q"]) -> Gaussian:
    """q(x_n) around given means."""
    return Gaussian(scores, jnp.full_like(scores, START_VARIANCE**0.5))
