r"""States of a linear system from its inputs and outputs alone, by a subspace method: no iteration, no local optimum.

.. math::
    x_t = A x_{t-1} + B c_t + b + \varepsilon_t, \quad y_t = C x_t + d + \nu_t

The k outputs from step t on are a linear function of x_t and of the controls after t, and x_t in turn one of the k
rows before it: of the regression of the future on the past, beside the controls in between, the part of the past has
the rank of the state. Its leading directions, weighted by canonical correlations (Larimore 1990; Van Overschee & De
Moor 1996, chapter 4, with the weights of their CVA), are the states up to a linear map.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ppl_dgp.state_space.sequences import Layout

#: rows of past and of future, unless fewer are asked for by the length of the series
HORIZON = 10
#: rows of the regression for each of its columns, at least
ROWS_PER_COLUMN = 2
#: directions of less than this share of the variance of the largest are taken not to vary
LEAST_DIRECTION = 1e-9


def horizon_of(num_steps: int, outputs: int, controls: int, width: int, num_sequences: int = 1) -> int:
    """k: ``HORIZON``, fewer where the rows do not bear so many columns, and enough for as many states.

    Of each sequence the first k rows have no past, and the last k − 1 no future.

    :raises ValueError: for a series that is too short for its states.
    """
    least = 1 + (width - 1) // outputs
    columns = lambda k: k * (outputs + controls) + (k - 1) * controls + 1
    horizon = next(
        (
            k
            for k in range(max(HORIZON, least), least - 1, -1)
            if num_steps - num_sequences * (2 * k - 1) >= ROWS_PER_COLUMN * columns(k)
        ),
        None,
    )
    if horizon is None:
        enough = ROWS_PER_COLUMN * columns(least) + num_sequences * (2 * least - 1)
        raise ValueError(
            f"start: found 'subspace' with {num_steps} steps of {outputs} outputs and {controls} controls in "
            f"{num_sequences} sequences, expected at least {enough} for {width} states; take start='outputs' or fewer "
            "states"
        )
    return horizon


def subspace_states(
    y: Float[Array, "T P"],
    controls: Float[Array, "T C"],
    width: int,
    layout: Layout,
) -> Float[Array, "T Q"]:
    """States x_1 … x_T, each dimension of mean 0 and variance 1, those that say most of the future first.

    Steps that have no k rows of their own sequence before or behind them do not enter the regression; the past of the
    first ones is filled with the first row.

    :param y: without missing entries.
    :param controls: C = 0 for none.
    :param width: Q; dimensions beyond the rank of the system are noise.
    :param layout: which steps begin a sequence.
    :raises ValueError: for a series that is too short.
    """
    # so that no unit is small beside another
    y, controls = _standardised(y), _standardised(controls)
    steps, outputs = y.shape
    k = horizon_of(steps, outputs, controls.shape[1], width, layout.num_sequences)
    begins = layout.beginning[layout.sequence]
    ends = jnp.append(layout.beginning[1:], steps)[layout.sequence]
    place = jnp.arange(steps)
    complete = (place - begins >= k) & (place + k <= ends)
    within = lambda rows: jnp.clip(rows, begins, ends - 1)
    earlier = [within(place - lag) for lag in range(1, k + 1)]
    later = [within(place + lead) for lead in range(k)]
    # x_t is what the rows before t and c_t say of it
    past = [y[row] for row in earlier] + [controls[row] for row in (place, *earlier[:-1])]
    given = jnp.concatenate([*(controls[row] for row in later[1:]), jnp.ones((steps, 1), y.dtype)], 1)
    states = _canonical(
        jnp.concatenate(past, 1), jnp.concatenate([y[row] for row in later], 1), given, complete, width
    )
    return _standardised(states)


def _standardised(values: Float[Array, "T K"]) -> Float[Array, "T K"]:
    """Columns of mean 0 and variance 1; what does not vary is 0."""
    centred, deviation = values - values.mean(0), values.std(0)
    there = deviation > jnp.finfo(values.dtype).eps * jnp.abs(values).max(0, initial=0.0)
    return jnp.where(there, centred / jnp.where(there, deviation, 1.0), 0.0)


def _canonical(
    past: Float[Array, "T K"],
    future: Float[Array, "T F"],
    given: Float[Array, "T G"],
    complete: Array,
    width: int,
) -> Float[Array, "T Q"]:
    """Of the past, the directions of the largest canonical correlations with the future, both beside what is given."""
    rows = complete.astype(past.dtype)[:, None]
    weight = rows / jnp.maximum(rows.sum(), 1.0)
    over = lambda left, right: (weight * left).T @ right
    on_given = lambda values: _solve(over(given, given), over(given, values))
    left, right = past - given @ on_given(past), future - given @ on_given(future)
    root_past, root_future = _inverse_root(over(left, left)), _inverse_root(over(right, right))
    _, _, directions = jnp.linalg.svd(root_future @ over(right, left) @ root_past, full_matrices=False)
    return past @ root_past @ directions[:width].T


def _inverse_root(covariance: Float[Array, "K K"]) -> Float[Array, "K K"]:
    """Of a covariance, 0 along what does not vary."""
    values, vectors = jnp.linalg.eigh(covariance)
    kept = values > _least_share(covariance) * jnp.maximum(values[-1], jnp.finfo(values.dtype).tiny)
    roots = jnp.where(kept, jax.lax.rsqrt(jnp.where(kept, values, 1.0)), 0.0)
    inverse: Array = (vectors * roots) @ vectors.T
    return inverse


def _solve(gram: Float[Array, "G G"], across: Float[Array, "G K"]) -> Float[Array, "G K"]:
    coefficients: Array = jnp.linalg.pinv(gram, rtol=_least_share(gram), hermitian=True) @ across
    return coefficients


def _least_share(covariance: Float[Array, "K K"]) -> float:
    """Above the rounding of the type."""
    return max(LEAST_DIRECTION, 10.0 * covariance.shape[0] * float(jnp.finfo(covariance.dtype).eps))
