"""The compiled steps, kept so that fits of equal objects and shapes share one program.

A chunk of steps is one loop whose first and last turns are arguments: it may be run in several pieces, short
enough to answer Ctrl-C and move a progress bar, without compiling again and without changing a bit of the
result.
"""

import operator
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Num, Shaped
from numpyro.infer import SVI
from numpyro.infer.svi import SVIState
from numpyro.optim import optax_to_numpyro

from ppl_dgp.fit.adam import adam_at
from ppl_dgp.fit.kept import keep, kept
from ppl_dgp.fit.rows_at_hand import StandingForAll, update_rows
from ppl_dgp.gp.contract import Parameters
from ppl_dgp.gp.numpyro_internals import bijections_of, svi_with
from ppl_dgp.numerics.compatibility import compiled, compiled_to_run_once, shapes_compiled
from ppl_dgp.objectives.padding import RealRows
from ppl_dgp.objectives.row_sums import KnownSums, RowSums

# tables of so many lengths under one model; beyond them all are compiled anew
SHAPES_KEPT = 16


@dataclass(frozen=True)
class Identity:
    """Stands for an object that cannot be hashed: equal to itself alone."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


@dataclass
class CachedProgram:
    """A compiled function ``run`` of an SVI whose parameters are constrained as ``transforms`` says."""

    svi: SVI
    run: Callable[..., Any]
    transforms: Any


def cached_program(svi: SVI, build: Callable[..., Callable[..., Any]], *settings: Hashable) -> CachedProgram:
    """The program ``build(svi, *settings)``, or an earlier one of an SVI that means the same.

    ``svi`` must be initialised. An SVI means the same if its model, guide, objective and optimiser are the same
    objects (or equal and hashable) and its parameters have the same constraints.
    """
    name = (build, *map(_hashable, (svi.model, svi.guide, svi.loss, svi.optim)), *settings)
    transforms = bijections_of(svi)
    found: CachedProgram | None = kept(name)
    if found is None or not _same(found.transforms, transforms):
        found = CachedProgram(svi, build(svi, *settings), transforms)
        keep(name, found)
    elif shapes_compiled(found.run) >= SHAPES_KEPT:
        found.run.clear_cache()  # type: ignore[attr-defined]
    return found


@contextmanager
def compiled_beside(run: Callable[..., Any], *args: Any) -> Iterator[None]:
    """Trace ``run``, a function of ``jax.jit``, and compile it in a thread while the block does something else.

    What is wrong with the program is said when it is traced, before the block. JAX keeps what is compiled, and a call
    with such arguments finds it.

    :param args: arrays, or their shapes.
    """
    lowered = run.lower(*args)  # type: ignore[attr-defined]
    with ThreadPoolExecutor(1, "compile") as beside:
        compiled = beside.submit(lowered.compile)
        yield
    compiled.result()


def stacked_params(svi: SVI, params: dict[str, Array], stacked: bool) -> dict[str, Array]:
    """The constrained parameters of unconstrained ones, with an axis for restarts in front.

    :param stacked: whether ``params`` have that axis; else one is added.
    """
    constrained: dict[str, Array] = cached_program(svi, _build_constrained, stacked).run(params)
    return constrained


def _build_constrained(svi: SVI, stacked: bool) -> Callable[..., dict[str, Array]]:
    """``run(params)``, as ``stacked_params`` says."""
    if stacked:
        return jax.jit(jax.vmap(svi.constrain_fn), **compiled_to_run_once())
    one = lambda params: {name: value[None] for name, value in svi.constrain_fn(params).items()}
    return jax.jit(one, **compiled_to_run_once())


def build_finish(svi: SVI) -> Callable[..., dict[str, Array]]:
    """``run(params, x, y, sums)``: the parameters, with those of the q(u) that ``Collapsed`` has optimised away."""

    def run(params: Parameters, x: Array, y: Array, sums: dict[str, RowSums]) -> dict[str, Array]:
        with KnownSums(sums):
            finish: dict[str, Array] = svi.loss.finish(params, svi.model, svi.guide, x, y)
        return finish

    return compiled(run)


def build_chunk(
    svi: SVI,
    minibatches: bool,
    chunk: int,
    restarts: int,
    windows: int | None = None,
    drawn_from: int | None = None,
) -> Callable[..., Any]:
    """``chunk_of_steps``, compiled; the state is donated."""
    return compiled(chunk_of_steps(svi, minibatches, chunk, restarts, windows, drawn_from), donate_argnums=0)


def chunk_of_steps(
    svi: SVI,
    minibatches: bool,
    chunk: int,
    restarts: int,
    windows: int | None = None,
    drawn_from: int | None = None,
) -> Callable[..., Any]:
    """``run(state, x, y, indices, begin, end) -> (state, losses)``: turns ``begin`` to ``end`` of a chunk of steps.

    ``indices`` are the rows of the chunk's minibatches, (chunk, B), or of so many ``windows`` the numbers, for a model
    that finds their rows itself; not looked at without ``minibatches``. Minibatches ``drawn_from`` so many rows are
    there already, x (chunk, B, D) and y (chunk, B, P). The losses are (chunk, R), those of other turns NaN. With R > 1
    every leaf of the state has a leading axis R.
    """

    def step(state: Any, x: Float[Array, "_ D"], y: Num[Array, "_ P"], index: Int[Array, " B"]) -> Any:
        now = _at_step(svi, state.optim_state[0])
        if drawn_from is not None:
            with StandingForAll(len(index), drawn_from):
                return _update(now, state, x, y, index=index, size=drawn_from)
        if minibatches and windows is not None:
            return _update(now, state, x, y, index=index, size=windows)
        if minibatches:
            return update_rows(_update, now, state, x[index], y[index], index, x.shape[0])
        return _update(now, state, x, y)

    steps = step if restarts == 1 else jax.vmap(step, in_axes=(0, None, None, None))

    def run(
        state: Any,
        x: Float[Array, "*rows D"],
        y: Num[Array, "*rows P"],
        indices: Int[Array, "chunk B"],
        begin: Int[Array, ""],
        end: Int[Array, ""],
    ) -> tuple[Any, Float[Array, "chunk R"]]:
        def turn(i: Int[Array, ""], carry: Any) -> Any:
            state, losses = carry
            rows = (x, y) if drawn_from is None else (x[i], y[i])
            state, loss = steps(state, *rows, indices[i])
            return state, losses.at[i].set(loss.astype(losses.dtype))

        state_and_losses: tuple[Any, Array] = jax.lax.fori_loop(
            begin, end, turn, (state, jnp.full((chunk, restarts), jnp.nan))
        )
        return state_and_losses

    return run


def build_together(
    svi: SVI,
    minibatches: bool,
    chunk: int,
    padded: int | None,
    axes: tuple[tuple[str, int | None], ...],
    size: int,
    windows: int | None = None,
) -> Callable[..., Any]:
    """``run(state, data, indices, begin, end) -> (state, losses)``: turns ``begin`` to ``end`` of a chunk of steps.

    ``data`` are the tables and what else members have of their own, batched as ``axes`` say; ``indices`` (chunk, K, B),
    of rows or of so many ``windows``.
    The losses are (chunk, K), those of other turns NaN. The state, every leaf with a leading axis K, is donated.
    """

    def step(state: SVIState, data: dict[str, Any], index: Int[Array, " B"]) -> Any:
        now = _at_step(svi, state.optim_state[0])
        if "alpha" in data:
            now = svi_with(now, loss=now.loss.at_alpha(data["alpha"]))
        if "rate" in data:
            now = svi_with(now, optim=optax_to_numpyro(adam_at(data["rate"])))
        if minibatches and windows is not None:
            return _update(now, state, data["x"], data["y"], index=index, size=windows)
        args, kwargs = _called(data, index if minibatches else None, padded)
        with _rows(data, padded):
            if minibatches:
                return update_rows(_update, now, state, *args, **kwargs)
            return _update(now, state, *args, **kwargs)

    steps = jax.vmap(step, in_axes=(0, dict(axes), 0))

    def run(
        state: Any,
        data: dict[str, Any],
        indices: Int[Array, "chunk K B"],
        begin: Int[Array, ""],
        end: Int[Array, ""],
    ) -> tuple[Any, Float[Array, "chunk K"]]:
        def turn(i: Int[Array, ""], carry: Any) -> Any:
            state, losses = carry
            state, loss = steps(state, data, indices[i])
            return state, losses.at[i].set(loss.astype(losses.dtype))

        state_and_losses: tuple[Any, Array] = jax.lax.fori_loop(
            begin, end, turn, (state, jnp.full((chunk, size), jnp.nan))
        )
        return state_and_losses

    return compiled(run, donate_argnums=0)


def build_loss(svi: SVI, minibatches: bool, padded: int | None) -> Callable[..., Float[Array, ""]]:
    """``run(key, params, data, index)``: the loss of one member, at constrained parameters."""

    def run(
        key: Any, params: dict[str, Any], data: dict[str, Any], index: Int[Array, " B"]
    ) -> Float[Array, ""]:
        objective = svi.loss if "alpha" not in data else svi.loss.at_alpha(data["alpha"])
        args, kwargs = _called(data, index if minibatches else None, padded)
        with _rows(data, padded):
            value: Array = objective.loss(key, params, svi.model, svi.guide, *args, **kwargs)
        return value

    return compiled(run)


def _called(
    data: dict[str, Any], index: Array | None, padded: int | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What model and guide are called with."""
    x, y = data["x"], data["y"]
    if index is None:
        return (x, y), {}
    return (x[index], y[index]), {"index": index, "size": padded or x.shape[0]}


def _rows(data: dict[str, Any], padded: int | None) -> AbstractContextManager[Any]:
    """What tells the rows that count from those appended."""
    return nullcontext() if padded is None else RealRows(padded, data["count"])


def _update(svi: SVI, state: SVIState, *args: Any, **kwargs: Any) -> tuple[SVIState, Float[Array, ""]]:
    """``SVI.stable_update``: of a step whose loss or gradient is not finite only the key stays, and its loss is NaN.

    Chosen leaf by leaf, in one pass with the update: NumPyro's branch copies the state.
    """
    if jax.tree.leaves(state.mutable_state):
        updated: tuple[SVIState, Array] = svi.stable_update(state, *args, **kwargs)
        return updated
    key, key_step = jax.random.split(state.rng_key)

    def loss(params: Any) -> Float[Array, ""]:
        value: Array = svi.loss.loss(
            key_step, svi.constrain_fn(params), svi.model, svi.guide, *args, **kwargs
        )
        return value

    value, slope = jax.value_and_grad(loss)(svi.optim.get_params(state.optim_state))
    flags = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((value, slope))])
    # a product, which XLA does not repeat within every loop that looks at it
    finite = flags.astype(value.dtype) @ jnp.ones(len(flags), value.dtype) == len(flags)
    new = svi.optim.update(slope, state.optim_state, value=value)
    optim_state = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, state.optim_state)
    return SVIState(optim_state, state.mutable_state, key), jnp.where(finite, value, jnp.nan)


def _at_step(svi: SVI, step: Int[Array, ""]) -> SVI:
    """The same, with the objective that is in force at a step, where that follows a schedule."""
    at_step = getattr(svi.loss, "at_step", None)
    if at_step is None:
        return svi
    return svi_with(svi, loss=at_step(step))


def key_words(key: Shaped[Array | np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
    """The raw words of a JAX key, typed or not; any other array as it is."""
    return np.asarray(jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key)


def array_bytes(array: Any) -> bytes:
    """The content of an array or a JAX key, its kind of number and shape included."""
    words = key_words(array)
    return f"{words.dtype}{words.shape}".encode() + words.tobytes()


@jax.jit
def fresh_copies(state: Any) -> Any:
    """Fresh, strongly typed copies: their memory is taken over, and their types are those they have after a step."""
    return jax.tree.map(lambda leaf: jnp.array(leaf, dtype=jnp.asarray(leaf).dtype, copy=True), state)


@partial(jax.jit, static_argnums=1)
def split_key(key: Shaped[Array, "..."], number: int) -> tuple[Shaped[Array, "..."], ...]:
    """``jax.random.split``, each key an array of its own."""
    return tuple(jax.random.split(key, number))


@jax.jit
def selected(stacked: Any, place: Int[Array, ""]) -> Any:
    """The leaves at one place of their leading axes."""
    return jax.tree.map(lambda leaf: leaf[place], stacked)


# The same NumPyro optimiser for the same optax transformation, likewise.
as_numpyro = lru_cache(maxsize=64)(optax_to_numpyro)


def _hashable(value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError:
        return Identity(value)
    hashable: Hashable = value
    return hashable


def _same(one: Any, other: Any) -> bool:
    """Whether two trees of transforms agree in structure and values."""
    try:
        ours, structure = jax.tree.flatten(one)
        theirs, other_structure = jax.tree.flatten(other)
        return operator.eq(structure, other_structure) and all(map(np.array_equal, ours, theirs))
    except (TypeError, ValueError):  # constraints that cannot be compared: compile anew
        return False
