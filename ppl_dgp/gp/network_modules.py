"""Networks of other libraries, modules of equinox and flax, as functions within NumPyro programs.

Each array of a module's weights is a site of its own, ``name/<path>``, so that a fit's parameters are arrays by name:
a parameter, or with a prior a latent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.contrib.module import eqx_module, flax_module, nnx_module
from numpyro.primitives import Messenger

#: of all weights alike, or of each by its path and shape
WeightPrior: TypeAlias = dist.Distribution | Callable[[str, tuple[int, ...]], dist.Distribution]
#: rows (B, D) to what a module makes of them
OfRows: TypeAlias = Callable[[Array], Array]


class _Keyless(Messenger):
    """Answers whoever asks for a key, so that starts that use none leave the run's keys as they are."""

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "prng_key":
            msg["value"], msg["stop"] = jax.random.PRNGKey(0), True


def initial_value(msg: dict[str, Any]) -> Any:
    """Where a parameter would start."""
    with _Keyless():
        return msg["fn"](*msg["args"], **msg["kwargs"])


class _Leaves(Messenger):
    """Declares each leaf of a module's weights as a site of its own."""

    def __init__(self, name: str, prior: WeightPrior | None) -> None:
        super().__init__()
        self.name, self.prior, self.weights = name, prior, None

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "param" or msg["name"] != f"{self.name}$params":
            return
        start = initial_value(msg)
        if start is not None:
            leaves, structure = jax.tree_util.tree_flatten_with_path(start)
            declared = [
                self.site(jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
                for path, leaf in leaves
            ]
            self.weights = jax.tree.unflatten(structure, declared)
        msg["value"], msg["stop"] = self.weights, True

    def site(self, path: str, leaf: Array) -> Any:
        name = f"{self.name}/{path}"
        if self.prior is None:
            return numpyro.param(name, leaf)
        own = self.prior if isinstance(self.prior, dist.Distribution) else self.prior(path, leaf.shape)
        whole = own.expand(leaf.shape) if own.shape() != leaf.shape else own
        return numpyro.sample(name, whole.to_event(len(whole.batch_shape)))


def _equinox(name: str, module: Any, inputs: Array, leaves: _Leaves) -> OfRows:
    return jax.vmap(eqx_module(name, module))  # type: ignore[no-any-return]


def _flax(name: str, module: Any, inputs: Array, leaves: _Leaves) -> OfRows:
    # the function that comes back is bound to the weights it was started with
    network = flax_module(name, module, inputs).func
    return lambda rows: network(leaves.weights, rows)


def _flax_nnx(name: str, module: Any, inputs: Array, leaves: _Leaves) -> OfRows:
    return nnx_module(name, module)  # type: ignore[no-any-return]


_REGISTRATIONS: dict[str, Callable[..., OfRows]] = {
    "equinox.": _equinox,
    "flax.linen.": _flax,
    "flax.nnx.": _flax_nnx,
}


def _registration(module: Any) -> Callable[..., OfRows] | None:
    """How NumPyro registers a module, told by the package of its base classes; None if it is no module."""
    origins = [f"{base.__module__}." for base in type(module).__mro__]
    for package, register in _REGISTRATIONS.items():
        if any(origin.startswith(package) for origin in origins):
            return register
    return None


def is_module(value: Any) -> bool:
    """Whether it is a module of equinox or flax."""
    return _registration(value) is not None


def of_rows(name: str, module: Any, inputs: Float[Array, "B D"], prior: WeightPrior | None = None) -> OfRows:
    """Declare a module's weights, the sites ``name/<path>``, and return what it makes of rows.

    Weights start where the module has them, those of flax.linen at a draw of its own.

    :param module: of equinox, which is a function of one row, or of flax, of rows.
    :param inputs: rows such as it will see.
    :param prior: with one the weights are latents.
    """
    register = _registration(module)
    assert register is not None  # whoever calls has asked
    leaves = _Leaves(name, prior)
    with leaves:
        return register(name, module, inputs, leaves)
