"""Where a fit runs: on the usual device, or over several, of one process or of many.

Rows are shared out over the devices, and parameters are on each of them; what is per datum lies with its datum. One
program serves all devices, and XLA adds the sums between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike
from jaxtyping import Array
from numpyro.infer import SVI

from ppl_dgp.fit import program
from ppl_dgp.numerics.compatibility import compiled

AXIS = "data"


@dataclass(frozen=True)
class Placement:
    """Devices in a row, or None for the usual one."""

    mesh: Mesh | None = None

    @classmethod
    def over(cls, devices: Sequence[jax.Device] | None, shared: int, name: str) -> Placement:
        """The placement on these devices.

        :raises ValueError: for none, for one twice, or if ``shared`` rows are not alike on each.
        """
        if devices is None:
            return cls()
        count = len(devices)
        if count == 0 or len(set(devices)) < count:
            raise ValueError(
                f"devices: found {count}, {len(set(devices))} of them different; pass jax.devices()"
            )
        if shared % count:
            raise ValueError(
                f"{name}: found {shared} over {count} devices, expected as many rows on each; make it a multiple of "
                f"{count}, or pass fewer devices"
            )
        return cls(Mesh(np.array(devices), (AXIS,)))

    @property
    def processes(self) -> int:
        """How many processes the devices are of."""
        return 1 if self.mesh is None else len({device.process_index for device in self.mesh.devices.flat})

    def cached_program(self, svi: SVI, rows: int, *settings: Any) -> program.CachedProgram:
        """``program.cached_program`` of chunks of steps with ``settings``, on a model of that many rows in all."""
        if self.mesh is None:
            return program.cached_program(svi, program.build_chunk, *settings)
        return program.cached_program(svi, _build_over_devices, self, rows, *settings)

    def shared(self, array: ArrayLike, axis: int = 0) -> Array:
        """This process's rows, along an axis, as its share of the array over all devices."""
        if self.mesh is None:
            local: Array = jax.device_put(array)
            return local
        found: Array = jax.make_array_from_process_local_data(self._across(axis), np.asarray(array))
        return found

    def whole(self, array: ArrayLike) -> Array:
        """The same array on every device."""
        return jax.device_put(array) if self.mesh is None else _put(array, self._across())

    def state(self, state: Any, rows: int, restarts: int) -> Any:
        """The state of a fit where its steps expect it."""
        if self.mesh is None:
            return state
        return jax.tree.map(_put, state, self._of_state(state, rows, restarts))

    def gathered(self, values: Any) -> Any:
        """Arrays as they are without a mesh: on the usual device."""
        if self.mesh is None:
            return values
        return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), values)

    def compiled_beside(
        self, run: Any, state: Any, rows: int, restarts: int, *like: Any
    ) -> AbstractContextManager[None]:
        """``program.compiled_beside`` of a state of that shape; over devices it is left to the first step."""
        if self.mesh is None:
            return program.compiled_beside(run, state, *like)
        return nullcontext()

    def _across(self, axis: int | None = None) -> NamedSharding:
        """Whole on every device, or shared out along an axis."""
        assert self.mesh is not None
        return NamedSharding(self.mesh, PartitionSpec(*(() if axis is None else (*[None] * axis, AXIS))))

    def _of_state(self, state: Any, rows: int, restarts: int) -> Any:
        """What has a row for each datum is shared out, where the devices divide them; the rest is on each."""
        assert self.mesh is not None
        axis, divided = int(restarts > 1), rows % self.mesh.size == 0

        def where(leaf: Array) -> NamedSharding:
            per_datum = divided and leaf.ndim > axis and leaf.shape[axis] == rows
            return self._across(axis if per_datum else None)

        return jax.tree.map(where, state)


def _build_over_devices(
    svi: SVI, placement: Placement, rows: int, minibatches: bool, chunk: int, restarts: int, *rest: Any
) -> Any:
    """``program.chunk_of_steps`` over the devices of a mesh: the state stays where it was.

    Nothing compiles twice.
    """
    run = program.chunk_of_steps(svi, minibatches, chunk, restarts, *rest)

    def over_devices(state: Any, *args: Any) -> tuple[Any, Array]:
        after, losses = run(state, *args)
        after = jax.lax.with_sharding_constraint(after, placement._of_state(after, rows, restarts))
        return after, jax.lax.with_sharding_constraint(losses, placement._across())

    return compiled(over_devices, donate_argnums=0)


def _put(leaf: Any, where: NamedSharding) -> Array:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        words = _put(jax.random.key_data(leaf), NamedSharding(where.mesh, PartitionSpec()))
        keys: Array = jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
        return keys
    values = np.asarray(leaf)
    return jax.make_array_from_callback(values.shape, where, lambda place: values[place])
