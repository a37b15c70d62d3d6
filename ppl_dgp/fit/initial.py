"""Where a fit starts: NumPyro's initialisation, as one compiled program."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jaxtyping import Array
from numpyro.infer import SVI
from numpyro.infer.svi import SVIState

from ppl_dgp.fit.kept import keep, kept
from ppl_dgp.fit.program import array_bytes
from ppl_dgp.gp.numpyro_internals import bijections_of
from ppl_dgp.gp.parameters import check_starting_values
from ppl_dgp.guides import Guide
from ppl_dgp.numerics.compatibility import compiled_to_run_once, is_traced, program_identity
from ppl_dgp.numerics.products import multiplying_in_full


@dataclass(frozen=True)
class TracedStart:
    """The state that a fit starts from: its ``shapes``, and what finds it, which is compiled when it is called."""

    shapes: SVIState
    find: Callable[[], SVIState]


def initialise(svi: SVI, key: Any, x: Array, y: Array, start: Mapping[str, Array] | None = None) -> SVIState:
    """The state of :func:`traced_start`."""
    return traced_start(svi, key, x, y, start).find()


def traced_start(
    svi: SVI, key: Any, x: Array, y: Array, start: Mapping[str, Array] | None = None
) -> TracedStart:
    """``svi.init(key, x, y)``, to be compiled whole, without what no parameter starts from.

    NumPyro's own runs model and guide operation by operation, each compiled for itself: ten seconds for three layers.
    It is left to initialise guides that keep arrays of their first call, as AutoGuides do, and models whose start looks
    at values that are drawn; their state is found at once.

    :raises ValueError: for a start with unknown names, other shapes than the program's, or values it cannot have.
    :raises TypeError: for a start that has no names.
    """
    if not isinstance(start, Mapping | None):
        remedy = "pass start=fit.params" if hasattr(start, "params") else "pass the params of a fit"
        raise TypeError(f"start: found {type(start).__name__}, expected parameters by their names; {remedy}")
    warm = None if start is None else dict(start)
    guide = svi.guide
    # of several processes only the first can call the host from a compiled program
    by_numpyro = not isinstance(guide, Guide) or guide.others is not None or jax.process_count() > 1
    if warm is not None:
        usual = lambda key: svi.get_params(svi.init(key, x, y))
        try:
            expected = usual(key) if by_numpyro else jax.eval_shape(usual, key)
        except jax.errors.JAXTypeError:
            expected = usual(key)
        check_starting_values(warm, expected, bijections_of(svi))
    if by_numpyro:
        return _known(svi.init(key, x, y, init_params=warm))
    try:
        # the data stay known while it is traced, so that what is wrong with them is still said
        init = multiplying_in_full(lambda key: svi.init(key, x, y, init_params=warm))
        traced, shapes = jax.make_jaxpr(init, return_shape=True)(key)
    except jax.errors.JAXTypeError:
        return _known(svi.init(key, x, y, init_params=warm))
    if any(map(is_traced, jax.tree.leaves(bijections_of(svi)))):
        return _known(svi.init(key, x, y, init_params=warm))

    def find() -> SVIState:
        # equal programs are compiled once: the arrays that they hold are arguments, but for those of inner programs
        name = program_identity(traced, array_bytes)
        run = kept(name)
        if run is None:
            run = jax.jit(partial(jax.core.eval_jaxpr, traced.jaxpr), **compiled_to_run_once())
            keep(name, run)
        state: SVIState = jax.tree.unflatten(jax.tree.structure(shapes), run(traced.consts, key))
        return state

    return TracedStart(shapes, find)


def _known(state: SVIState) -> TracedStart:
    return TracedStart(jax.eval_shape(lambda: state), lambda: state)
