"""Tables whose columns are of different kinds: a likelihood for each column.

Shapes: y (B, P), a likelihood for each of the P columns; means and variances (B, F), the functions of the first column,
then those of the second, …: one for most, C for classes without order, two for heteroscedastic noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.likelihoods.likelihood import FunctionRows, Likelihood, Targets
from ppl_dgp.numerics.compatibility import is_traced
from ppl_dgp.numerics.power_mean import Alpha


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MixedLikelihood(Likelihood):
    """p(y | f) = Π_p p_p(y_p | the functions of column p).

    Columns whose likelihoods differ in nothing but their values are evaluated together.

    :param parts: a likelihood for each column.
    :raises ValueError: for no parts.
    """

    parts: tuple[Likelihood, ...]

    expects = "in each column what its likelihood may have"

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("parts: found none, expected a likelihood for each column")

    @property
    def unordered(self) -> bool:  # type: ignore[override]
        """Whether any column is."""
        return any(part.unordered for part in self.parts)

    @property
    def possible(self) -> Float[Array, " P"]:  # type: ignore[override]
        """Of each column."""
        # 32 bits hold 0, ½ and 1, and turn no targets of 32 bits into 64
        return jnp.asarray([part.possible for part in self.parts], jnp.float32)

    @property
    def support(self) -> constraints.Constraint:
        """That of all columns, or where they differ the real numbers; :meth:`check` knows each column's own."""
        first, *others = (part.support for part in self.parts)
        return first if all(each == first for each in others) else constraints.real

    def num_functions(self, num_targets: int) -> int:
        if num_targets != len(self.parts):
            raise ValueError(
                f"y: found {num_targets} columns for Mixed of {len(self.parts)} likelihoods, expected one for each"
            )
        return sum(part.num_functions(1) for part in self.parts)

    def num_targets(self, num_functions: int) -> int:
        needed = self.num_functions(len(self.parts))
        if num_functions != needed:
            raise ValueError(
                f"likelihood: found {num_functions} functions for Mixed of {len(self.parts)} columns, expected "
                f"{needed}; make the GP with num_outputs={needed}"
            )
        return len(self.parts)

    def tempered(
        self, y: Targets, mean: FunctionRows, variance: FunctionRows, alpha: Alpha
    ) -> Float[Array, "*#targets"]:
        return self._tempered(lambda part, *given: part.tempered(*given), y, (mean, variance), alpha)

    def tempered_outside(
        self, y: Targets, mean: FunctionRows, inside: FunctionRows, outside: FunctionRows, alpha: Alpha
    ) -> Float[Array, "*#targets"]:
        return self._tempered(
            lambda part, *given: part.tempered_outside(*given), y, (mean, inside, outside), alpha
        )

    def _tempered(
        self, of: Callable[..., Array], y: Array, rows: tuple[Array, ...], alpha: Alpha
    ) -> Float[Array, "*#targets"]:
        rows = tuple(jnp.broadcast_arrays(*rows))
        # a number stays one, for the closed forms that it may have
        alphas = (
            jnp.broadcast_to(alpha, (*jnp.shape(alpha)[:-1], len(self.parts))) if jnp.ndim(alpha) else None
        )

        def of_column(part: Likelihood, own: Array | None, *given: Array) -> Array:
            return of(part, *given, alpha if own is None else own)

        parts = []
        for block in self._blocks():
            powers = None if alphas is None else _split(alphas, block.columns)
            given = (_split(moments, block.functions) for moments in rows)
            parts.append(block.each(of_column, powers, _split(y, block.columns), *given))
        return self._joined(parts)

    def sample(self, key: Array, mean: FunctionRows, variance: FunctionRows) -> Targets:
        mean, variance = jnp.broadcast_arrays(mean, variance)
        keys, draws = jax.random.split(key, len(self.parts)), []
        for block in self._blocks():
            given = (_split(moments, block.functions) for moments in (mean, variance))
            draws.append(
                block.each(lambda part, *given: part.sample(*given), keys[block.columns[:, 0]], *given)
            )
        return self._joined(draws)

    def moments(
        self, mean: FunctionRows, variance: FunctionRows
    ) -> tuple[Float[Array, "*#targets"], Float[Array, "*#targets"]]:
        """Mean and variance of y, (B, P), of classes in an order those of the label.

        Of a column of classes without order, which has neither: the most probable label, and the chance of another.
        """
        mean, variance = jnp.broadcast_arrays(mean, variance)
        moments = [
            block.each(_moments_of_column, *(_split(rows, block.functions) for rows in (mean, variance)))
            for block in self._blocks()
        ]
        means, variances = zip(*moments, strict=True)
        return self._joined(means), self._joined(variances)

    def function_at(self, y: Targets) -> Targets:
        """Each column's own."""
        return jnp.stack([part.function_at(y[..., place]) for place, part in enumerate(self.parts)], -1)

    def check(self, y: Targets) -> None:
        """Refuse targets outside the support of their column, where they are concrete; NaN is a missing entry.

        :raises ValueError: naming the first that is wrong, or where columns are not as many as parts.
        """
        self.num_functions(y.shape[-1])
        if is_traced(y):
            return
        table = np.asarray(y)
        for column, part in enumerate(self.parts):
            values = table[..., column]
            values = np.where(np.isnan(values), part.possible, values) if values.dtype.kind == "f" else values
            with jax.ensure_compile_time_eval():
                wrong = ~np.broadcast_to(np.asarray(part.support(jnp.asarray(values))), values.shape)
            if wrong.any():
                row = np.flatnonzero(wrong)[0]
                raise ValueError(
                    f"y: found {values[row]} at row {row}, column {column}, expected {part.expects} for "
                    f"{type(part).__name__}; encode or remove it"
                )

    def _blocks(self) -> list[_Block]:
        """The columns, those together whose parts differ in nothing but their values."""
        widths = [part.num_functions(1) for part in self.parts]
        begins = np.cumsum([0, *widths[:-1]])
        together: dict[Any, list[int]] = {}
        for column, part in enumerate(self.parts):
            leaves, structure = jax.tree.flatten(part)
            # a likelihood that is no pytree is a leaf itself
            shapes = (id(leaf) if isinstance(leaf, Likelihood) else jnp.shape(leaf) for leaf in leaves)
            together.setdefault((structure, *shapes), []).append(column)
        return [
            _Block(
                [self.parts[column] for column in columns],
                np.asarray(columns)[:, None],
                begins[columns][:, None] + np.arange(widths[columns[0]]),
            )
            for columns in together.values()
        ]

    def _joined(self, blocks: Any) -> Array:
        """The columns of all blocks, (…, P), in the table's order."""
        order = np.argsort(np.concatenate([block.columns[:, 0] for block in self._blocks()]))
        return jnp.concatenate([jnp.moveaxis(part[..., 0], 0, -1) for part in blocks], -1)[..., order]


@dataclass(frozen=True)
class _Block:
    """Likelihoods of k columns that differ in their values alone; indices of columns (k, 1) and functions (k, W)."""

    parts: list[Likelihood]
    columns: np.ndarray
    functions: np.ndarray

    def each(self, of: Callable[..., Any], *values: Any) -> Any:
        """``of(part, …)`` for every column at once, (k, …, 1), from values (k, …)."""
        structure = jax.tree.structure(self.parts[0])
        leaves = list(zip(*(jax.tree.leaves(part) for part in self.parts), strict=True))
        # what columns share needs no copies
        shared = [all(other is leaf[0] for other in leaf) for leaf in leaves]
        stacked = [
            jnp.stack([jnp.asarray(v) for v in leaf])
            for leaf, same in zip(leaves, shared, strict=True)
            if not same
        ]

        def one(stacked: list[Array], values: tuple[Any, ...]) -> Any:
            rest = iter(stacked)
            filled = [leaf[0] if same else next(rest) for leaf, same in zip(leaves, shared, strict=True)]
            return of(jax.tree.unflatten(structure, filled), *values)

        return jax.vmap(one)(stacked, values)


def _split(values: Array, index: np.ndarray) -> Array:
    """(…, n) → (k, …, W), by indices (k, W)."""
    return jnp.moveaxis(values[..., index], -2, 0)


def _moments_of_column(part: Likelihood, mean: FunctionRows, variance: FunctionRows) -> tuple[Array, Array]:
    """Mean and variance of one column, (…, 1)."""
    centre, spread = part.moments(mean, variance)
    if centre.shape[-1] == 1:
        return centre, spread
    # of classes part.moments are those of indicators, so that their means are the probabilities
    p = centre
    if part.unordered:
        return p.argmax(-1, keepdims=True).astype(p.dtype), 1.0 - p.max(-1, keepdims=True)
    labels = jnp.arange(p.shape[-1], dtype=p.dtype)
    centre = (p * labels).sum(-1, keepdims=True)
    return centre, (p * jnp.square(labels - centre)).sum(-1, keepdims=True)
