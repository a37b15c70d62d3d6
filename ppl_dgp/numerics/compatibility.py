"""Parts of JAX beyond its documented interface, in one place, so that a new release is met here alone.

* ``jax.extend.core`` (``Jaxpr``, ``ClosedJaxpr``, ``Literal``): a program's equations, to follow which inputs each of
  its outputs depends on (:func:`input_dependencies`), and the arrays that programs inside it hold.
* ``str(jaxpr)``: a program's text with the arrays it holds is what makes two programs one (:func:`program_identity`).
* ``jax.core.Tracer``: whether a value is known while a program is traced (:func:`is_traced`).
* ``jax._src.xla_bridge.backends_are_initialized``: whether JAX's threads run, which a forked process does not inherit
  (:func:`lost_its_threads`).
* compiler options of XLA on the CPU, which it calls by other names as it changes (:func:`compiled_to_run_once`).
* the order in which XLA on the CPU runs a program's parts, and ``jax._src.core.trace_state_clean``: whether another
  program is traced, which alone may ask for it (:func:`compiled`).
* ``_cache_size`` of what ``jax.jit`` gives: for how many shapes it is compiled (:func:`shapes_compiled`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator
from functools import wraps
from typing import Any, TypeVar

import jax
from jax._src import core, xla_bridge
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from ppl_dgp.numerics.products import multiplying_in_full

Names = frozenset[str]
#: of XLA on the CPU: what :func:`compiled` says
IN_TURN = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
_Program = TypeVar("_Program", bound=Callable[..., Any])
#: calls of a program, through which dependencies are followed; of loops and branches all depends on all
CALLS = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call")

_forked_from_threads = False


def _note_fork() -> None:
    global _forked_from_threads
    _forked_from_threads = _forked_from_threads or xla_bridge.backends_are_initialized()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def lost_its_threads() -> bool:
    """Whether this process was forked from one in which JAX had begun, whose threads compile and run its programs."""
    return _forked_from_threads


def is_traced(value: Any) -> bool:
    """Whether a value is traced, so that it is not known yet."""
    return isinstance(value, jax.core.Tracer)


def compiled_to_run_once() -> dict[str, Any]:
    """Options of ``jax.jit`` for a program that runs once: on the CPU it is better not optimised at all.

    What a release does not know is left out: it would be an error.
    """
    if jax.default_backend() != "cpu" or jax.__version_info__ >= (0, 11):
        return {}
    return {
        "compiler_options": {
            "xla_cpu_use_fusion_emitters": False,
            "xla_backend_optimization_level": 0,
            **IN_TURN,
        }
    }


def compiled(function: _Program, **settings: Any) -> _Program:
    """``jax.jit`` of a program that multiplies in full, its parts in the order of the least memory on the CPU.

    jaxlib 0.10 hands the matrices of a batch that it solves for to its threads, and waits for them on one of these. In
    the order that XLA takes by default several such solves run at once, and where they are as many as there are
    threads, two on a machine of two cores, they wait for each other for ever; in this order none was seen to. What a
    release does not know is left out.
    """
    function = multiplying_in_full(function)
    inner: Any = jax.jit(function, **settings)
    if jax.default_backend() != "cpu" or jax.__version_info__ >= (0, 11):
        return inner  # type: ignore[no-any-return]
    outer: Any = jax.jit(function, compiler_options=IN_TURN, **settings)

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        # options are the outermost program's alone
        return (outer if core.trace_state_clean() else inner)(*args, **kwargs)

    def clear_cache() -> None:
        for each in (outer, inner):
            each.clear_cache()

    known: Any = run
    known.trace, known.lower = outer.trace, outer.lower
    known._cache_size, known.clear_cache = outer._cache_size, clear_cache
    same: _Program = known
    return same


def shapes_compiled(run: Any) -> int:
    """For how many shapes of its arguments a function of ``jax.jit`` is compiled."""
    count: int = run._cache_size()
    return count


def program_identity(program: ClosedJaxpr, array_bytes: Callable[[Any], bytes]) -> tuple[Hashable, ...]:
    """What two traced programs have in common if they differ in nothing but the arrays that the outer one holds.

    :param program: as ``jax.make_jaxpr`` returns it.
    :param array_bytes: gives an array's content; those inside inner programs do not show in the text.
    """
    return str(program.jaxpr), *(array_bytes(array) for array in _inner_arrays(program.jaxpr))


def _inner_arrays(program: Jaxpr) -> Iterator[Any]:
    """The arrays that the programs inside one hold."""
    inner = ClosedJaxpr, Jaxpr
    for equation in program.eqns:
        for part in jax.tree.leaves(equation.params, is_leaf=lambda value: isinstance(value, inner)):
            if isinstance(part, ClosedJaxpr):
                yield from part.consts
            if isinstance(part, inner):
                yield from _inner_arrays(part.jaxpr if isinstance(part, ClosedJaxpr) else part)


def input_dependencies(
    fn: Callable[[dict[str, Any]], dict[str, Any]], inputs: dict[str, Any]
) -> dict[str, set[str]]:
    """The inputs of a function that each of its outputs depends on, by name, read off its traced program.

    :param fn: of a dictionary of arrays to one.
    :param inputs: arrays, or their shapes.
    """
    program, outputs = jax.make_jaxpr(fn, return_shape=True)(inputs)
    # a dictionary's leaves are in the order of its names
    reached = _followed(program.jaxpr, [frozenset({name}) for name in sorted(inputs)])
    return {name: set(names) for name, names in zip(sorted(outputs), reached, strict=True)}


def _followed(program: Jaxpr, inputs: list[Names]) -> list[Names]:
    """What each output of a program depends on, given that of its inputs."""
    known: dict[Any, Names] = dict(zip(program.invars, inputs, strict=True))
    nothing: Names = frozenset()

    def of(variable: Any) -> Names:
        return nothing if isinstance(variable, Literal) else known.get(variable, nothing)

    for step in program.eqns:
        given = [of(variable) for variable in step.invars]
        inner = step.params.get("jaxpr", step.params.get("call_jaxpr"))
        inner = inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner
        if step.primitive.name in CALLS and isinstance(inner, Jaxpr) and len(inner.invars) == len(given):
            reached = _followed(inner, given)
        else:
            reached = [nothing.union(*given)] * len(step.outvars)
        known.update(zip(step.outvars, reached, strict=True))
    return [of(variable) for variable in program.outvars]
