"""Which inducing inputs to go on with when a batch arrives: some of the old ones, some of its rows."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from ppl_dgp.kernels import Kernel


class InducingChoice:
    """A rule that chooses; it is compiled, so shapes stay as they are."""

    def __call__(
        self, key: Shaped[Array, "..."], kernel: Kernel, inducing: Float[Array, "M D"], x: Float[Array, "B D"]
    ) -> tuple[Float[Array, "M D"], Bool[Array, " M"]]:
        """The new inducing inputs, and which of them are the old ones at their old places.

        :param key: JAX random key.
        :param kernel: at the current hyperparameters.
        :param inducing: the old inputs Z.
        :param x: inputs of the new batch.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Keep(InducingChoice):
    """The old ones."""

    def __call__(
        self, key: Shaped[Array, "..."], kernel: Kernel, inducing: Float[Array, "M D"], x: Float[Array, "B D"]
    ) -> tuple[Float[Array, "M D"], Bool[Array, " M"]]:
        return inducing, jnp.ones(inducing.shape[0], bool)


@dataclass(frozen=True)
class ReplacedAtRandom(InducingChoice):
    """A random part of the old ones gives way to random rows of the batch (Bui, Nguyen & Turner 2017).

    :param new: the part that gives way, in [0, 1].
    :raises ValueError: if it is outside.
    """

    new: float = 0.3

    def __post_init__(self) -> None:
        if not 0.0 <= self.new <= 1.0:
            raise ValueError(f"Mixed: new: found {self.new}, expected a part in [0, 1]")

    def __call__(
        self, key: Shaped[Array, "..."], kernel: Kernel, inducing: Float[Array, "M D"], x: Float[Array, "B D"]
    ) -> tuple[Float[Array, "M D"], Bool[Array, " M"]]:
        size = inducing.shape[0]
        count = min(round(self.new * size), x.shape[0])
        key_old, key_new = jax.random.split(key)
        places = jax.random.permutation(key_old, size)[:count]
        rows = jax.random.choice(key_new, x, (count,), replace=False)
        return inducing.at[places].set(rows), jnp.ones(size, bool).at[places].set(False)


@dataclass(frozen=True)
class Greedy(InducingChoice):
    """One after another, the input at which f is least certain given f at those already chosen.

    This is the pivoted Cholesky factorisation of the kernel over old inputs and batch, O((M + B) M²). To move an
    inducing input forgets a little, so a row of the batch has to be better than the old inputs by a factor.

    :param advantage: this factor between variances, at least 1.
    :raises ValueError: if it is below 1.
    """

    advantage: float = 2.0

    def __post_init__(self) -> None:
        if not self.advantage >= 1.0:
            raise ValueError(f"Greedy: advantage: found {self.advantage}, expected at least 1")

    def __call__(
        self, key: Shaped[Array, "..."], kernel: Kernel, inducing: Float[Array, "M D"], x: Float[Array, "B D"]
    ) -> tuple[Float[Array, "M D"], Bool[Array, " M"]]:
        size = inducing.shape[0]
        candidates = jnp.concatenate([inducing, x])
        prior = kernel.diag(candidates)
        worth = jnp.where(jnp.arange(candidates.shape[0]) < size, 1.0, 1.0 / self.advantage)

        def pick(step: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            factor, residual, chosen = state
            best = jnp.argmax(jnp.where(jnp.isneginf(residual), -jnp.inf, worth * residual))
            pivot = residual[best]
            column = kernel(candidates, candidates[best][None])[:, 0] - factor @ factor[best]
            # where all is known already, further columns say nothing
            column = jnp.where(pivot > 1e-12 * prior[best], column / jnp.sqrt(jnp.abs(pivot)), 0.0)
            residual = jnp.maximum(residual - jnp.square(column), 0.0)
            # a row is chosen once
            residual = jnp.where(chosen_mask(chosen, step, best, residual), -jnp.inf, residual)
            return factor.at[:, step].set(column), residual, chosen.at[step].set(best)

        def chosen_mask(chosen: Array, step: Array, best: Array, residual: Array) -> Array:
            mask = jnp.zeros(residual.shape[0] + 1, bool).at[chosen].set(True)[:-1]
            return mask.at[best].set(True)

        none = jnp.full(size, candidates.shape[0])
        start = (jnp.zeros((candidates.shape[0], size), prior.dtype), prior, none)
        _, _, chosen = jax.lax.fori_loop(0, size, pick, start)
        retained = jnp.zeros(candidates.shape[0], bool).at[chosen].set(True)[:size]
        # the new ones, first chosen first, fill the places that have come free
        arrivals = chosen[jnp.argsort(chosen < size, stable=True)]
        source = jnp.where(retained, jnp.arange(size), arrivals[jnp.cumsum(~retained) - 1])
        return candidates[source], retained
