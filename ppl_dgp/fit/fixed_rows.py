"""Sums over rows that no parameter enters, taken once before a fit (:mod:`ppl_dgp.objectives.row_sums`)."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jaxtyping import Array
from numpyro.infer import SVI
from numpyro.infer.svi import SVIState

from ppl_dgp.fit.program import cached_program
from ppl_dgp.numerics.compatibility import compiled
from ppl_dgp.objectives import Collapsed
from ppl_dgp.objectives.row_sums import FixedRows, RowSums, double_sums


def sums_over_rows(svi: SVI, shapes: SVIState, x: Array, y: Array) -> dict[str, RowSums]:
    """The sums over rows that no parameter enters, of ``Collapsed.fixed_rows``; none of other objectives.

    :param shapes: of the state that a fit starts from.
    """
    if not isinstance(svi.loss, Collapsed):
        return {}
    params = jax.eval_shape(svi.get_params, shapes).items()
    known = tuple((name, value.shape, value.dtype.name) for name, value in params)
    return double_sums(cached_program(svi, _build_fixed_rows, known).run(x, y))


def _build_fixed_rows(
    svi: SVI, known: tuple[tuple[str, tuple[int, ...], str], ...]
) -> Callable[..., dict[str, FixedRows]]:
    """``run(x, y)``: ``Collapsed.fixed_rows`` under parameters of known shapes."""
    params = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape, dtype in known}
    return compiled(lambda x, y: svi.loss.fixed_rows(params, svi.model, svi.guide, x, y))
