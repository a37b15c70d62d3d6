"""Sums Σ_i c_i f_i(h_i) of sparse GPs, row by row, given their inducing outputs or under the moments of these.

Given u the functions are independent, so that residual variances add, c_i² D_i; the variances that u adds do too where
q(u) has no links between the functions, and where it has links u is drawn (docs/design.md, 1.2 and 4). A function that
comes twice is correlated with itself, by k(h, h') − A(h) A(h')ᵀ given u and by A(h) S A(h')ᵀ through u.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ppl_dgp.gp.features import Functionals
from ppl_dgp.gp.separate import check_shared
from ppl_dgp.numerics.gaussian import Gaussian, beside

if TYPE_CHECKING:
    from ppl_dgp.gp.marginal import Marginal
else:  # marginals add up: their file imports this one
    Marginal = Any


@dataclass(frozen=True, eq=False)
class ScaledMarginal:
    """One term c f(h) of a sum, c a number for each entry, or one that broadcasts to (B, P)."""

    scale: Float[Array, "#B #P"]
    marginal: Marginal


class FunctionSum:
    """What stands for the function of a sum. It is no sparse GP: whatever is read of one is refused.

    :param names: of the functions that are added.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(dict.fromkeys(names))

    def __repr__(self) -> str:
        return f"FunctionSum({', '.join(self._names)})"

    def __call__(self, h: Any) -> Any:
        raise self._refusal("its values at other inputs")

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # protocols of Python and JAX, which ask before they use
            raise AttributeError(attribute)
        raise self._refusal(f"its {attribute!r}")

    def _refusal(self, what: str) -> ValueError:
        return ValueError(
            f"function: found a sum or a multiple of {', '.join(self._names)}, expected one sparse GP as it is, for "
            f"{what}; observe f(x) alone, or take a rule and an objective that read means and variances only: "
            "MeanField, Markov, DoublyStochastic or Conditional() with draws of the layers, and PowerEP"
        )


def per_entry(argument: str, value: Any, mean: Float[Array, "B P"]) -> Float[Array, "#B #P"]:
    """A number, (P,), (B, 1) or (B, P) as a matrix that broadcasts to (B, P); (B,) where there is one output.

    :raises ValueError: if it does not broadcast to (B, P), which must not grow: outputs are independent given u.
    :raises TypeError: if it is no array of numbers.
    """
    if isinstance(value, Gaussian) or not hasattr(value, "shape") and not isinstance(value, int | float):
        raise TypeError(
            f"{argument}: found {type(value).__name__}, expected a number or an array; draw what is uncertain"
        )
    if not hasattr(value, "shape"):
        value = jnp.asarray(value, mean.dtype)
    rows, outputs = mean.shape
    if jnp.shape(value) == (rows,) and outputs == 1:
        return jnp.asarray(value)[:, None]
    matrix = jnp.atleast_2d(jnp.asarray(value))
    if matrix.ndim != 2 or any(
        size not in (1, full) for size, full in zip(matrix.shape, mean.shape, strict=True)
    ):
        raise ValueError(
            f"{argument}: found shape {jnp.shape(value)}, expected a number, (P,), (B, 1) or (B, P) with B = {rows} "
            f"rows and P = {outputs} outputs; write value[:, None] for one number per row"
        )
    return matrix


def added_variances(terms: Sequence[ScaledMarginal]) -> tuple[Float[Array, "B #P"], Float[Array, "B P"]]:
    """Variance of the sum given u, and what the moments of u (or of one uncertain input) add to it.

    :raises ValueError: if two terms share an uncertain input, or one function with other parameters or outputs.
    """
    _check_inputs(terms)
    squares = [jnp.square(term.scale) for term in terms]
    residual: Any = sum(square * term.marginal.residual for square, term in zip(squares, terms, strict=True))
    from_u: Any = sum(square * term.marginal.from_u for square, term in zip(squares, terms, strict=True))
    twice = False
    for left, right in combinations(terms, 2):
        if left.marginal.function.name != right.marginal.function.name:
            continue
        twice = True
        between, through_u = _covariances(left.marginal, right.marginal)
        residual = residual + 2.0 * left.scale * right.scale * between
        from_u = from_u + 2.0 * left.scale * right.scale * through_u
    if twice:  # rounding alone can bring them below 0
        residual, from_u = jnp.maximum(residual, 0.0), jnp.maximum(from_u, 0.0)
    return residual, from_u


def _check_inputs(terms: Sequence[ScaledMarginal]) -> None:
    """Refuse functionals beside others, and functions whose values an uncertain input correlates."""
    inputs = {id(term.marginal.inputs): term.marginal.inputs for term in terms}.values()
    if len(inputs) > 1 and any(isinstance(each, Functionals) for each in inputs):
        raise ValueError(
            "inputs: found functionals beside other inputs in one sum, expected the same ones of all its functions"
        )
    uncertain = [term.marginal for term in terms if isinstance(term.marginal.inputs, Gaussian)]
    first = uncertain[0] if uncertain else None
    for marginal in uncertain:
        assert first is not None
        if marginal.function is not first.function or marginal.inputs is not first.inputs:
            raise ValueError(
                f"inputs: found moments of the inputs of {first.function.name} and of {marginal.function.name} in one "
                "sum, whose values an uncertain input correlates; expected draws: take propagation='draws'"
            )


def _covariances(left: Marginal, right: Marginal) -> tuple[Float[Array, "B 1"], Float[Array, "B #P"]]:
    """Covariance of f(h) and f(h') in each row, given u, and through the moments of u."""
    f, g = left.function, right.function
    check_shared(f, f"{f.name}, which comes twice in one sum")
    _check_whole(left)
    if f.kernel is not g.kernel or f.u is not g.u:
        raise ValueError(
            f"function: found {f.name} twice in one sum, with different parameters; expected the same function"
        )
    if left.inputs is right.inputs:
        return left.residual, left.from_u
    if isinstance(left.inputs, Gaussian) or isinstance(right.inputs, Gaussian):
        raise ValueError(
            f"inputs: found {f.name} at moments and at other inputs in one sum, expected draws; take "
            "propagation='draws'"
        )
    entry = lambda h, other: f.kernel(h[None], other[None])[0, 0]
    prior = jax.vmap(entry)(left.inputs, right.inputs)
    between = (prior - (left.weights * right.weights).sum(1))[:, None]
    if not isinstance(f.u, Gaussian):
        return between, jnp.zeros_like(left.from_u)
    # AᵀSB = ¼ [(A + B)ᵀ S (A + B) − (A − B)ᵀ S (A − B)]
    summed = f.u.projected_variance(left.weights + right.weights)
    return between, 0.25 * (summed - f.u.projected_variance(left.weights - right.weights))


def _check_whole(marginal: Marginal) -> None:
    """Refuse single outputs picked row by row, whose covariances are not known here."""
    u = marginal.function.u
    outputs = (u.mean if isinstance(u, Gaussian) else u).shape[-2]
    if marginal.mean.shape[1] != outputs:
        raise ValueError(
            f"function: found {marginal.mean.shape[1]} of the {outputs} outputs of {marginal.function.name}, expected "
            "all; add the functions first, then take output()"
        )


def added_covariance(terms: Sequence[ScaledMarginal]) -> Float[Array, "P B B"]:
    """Covariance over the rows, of each output."""
    _check_inputs(terms)
    total: Any = 0.0
    groups: dict[str, list[ScaledMarginal]] = {}
    for term in terms:
        groups.setdefault(term.marginal.function.name, []).append(term)
    for group in groups.values():
        first = group[0].marginal
        _check_whole(first)
        if isinstance(first.inputs, Functionals):  # the same for all: no copy of a function says more
            covariance = jnp.tile(first.joint()[1], (1, len(group), len(group)))
        else:
            inputs = jnp.concatenate([term.marginal.rows for term in group])
            _, covariance = first.function.joint(inputs)
        scales = [jnp.broadcast_to(term.scale, first.mean.shape) for term in group]
        # each output's rows, those of all terms one behind the other
        stacked = jnp.concatenate(scales).T
        scaled = stacked[:, :, None] * covariance * stacked[:, None, :]
        outputs, rows = stacked.shape[0], first.mean.shape[0]
        blocks = scaled.reshape(outputs, len(group), rows, len(group), rows)
        total = total + blocks.sum((1, 3))
    return total  # type: ignore[no-any-return]


def distinct_inputs(terms: Sequence[ScaledMarginal]) -> list[Array | Gaussian | Functionals]:
    """The inputs of the terms, each once; those that are uncertain last."""
    inputs: list[Any] = list({id(term.marginal.inputs): term.marginal.inputs for term in terms}.values())
    return sorted(inputs, key=lambda h: isinstance(h, Gaussian))


def inputs_side_by_side(terms: Sequence[ScaledMarginal]) -> Array | Gaussian | Functionals:
    """All inputs of the terms, as the columns of one matrix; functionals, which all terms share, as they are."""
    inputs = distinct_inputs(terms)
    if isinstance(inputs[0], Functionals):
        return inputs[0]
    draws = [h for h in inputs if not isinstance(h, Gaussian | Functionals)]
    matrix = draws[0] if len(draws) == 1 else jnp.concatenate(draws, 1) if draws else None
    *_, last = inputs
    if not isinstance(last, Gaussian):
        assert matrix is not None
        return matrix
    return last if matrix is None else beside(matrix, last)
