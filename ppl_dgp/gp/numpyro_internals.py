"""Parts of NumPyro beyond its documented interface, in one place, so that a new release is met here alone.

* ``numpyro.primitives._PYRO_STACK``, the handlers in force: a message can be forwarded to some of them, which
  ``apply_stack`` cannot (:func:`handlers_in_force`, :func:`forward`).
* ``SVI.constrain_fn.args[0]``, the bijections of an initialised SVI: two SVIs share a compiled program only if theirs
  are the same, and NumPyro has no accessor (:func:`bijections_of`).
* A copy of an initialised SVI with another objective or optimiser, which its constructor would leave uninitialised
  (:func:`svi_with`).
"""

from __future__ import annotations

import copy
from typing import Any

from numpyro.infer import SVI
from numpyro.primitives import _PYRO_STACK, Messenger


def handlers_in_force() -> tuple[Messenger, ...]:
    """The effect handlers that a message would meet, the outermost first."""
    return tuple(_PYRO_STACK)


def forward(message: dict[str, Any], handlers: tuple[Messenger, ...]) -> None:
    """Have a message that has a value processed by some handlers, as ``apply_stack`` does by all that are in force."""
    met = len(handlers)
    for place in reversed(range(len(handlers))):
        met = place
        handlers[place].process_message(message)
        if message.get("stop"):
            break
    for handler in handlers[met:]:
        handler.postprocess_message(message)


def bijections_of(svi: SVI) -> dict[str, Any]:
    """The bijection of each parameter of an SVI that has been initialised, by name."""
    bijections: dict[str, Any] = svi.constrain_fn.args[0]
    return bijections


def svi_with(svi: SVI, **parts: Any) -> SVI:
    """The same initialised SVI with another ``loss`` or ``optim``."""
    other = copy.copy(svi)
    for name, part in parts.items():
        setattr(other, name, part)
    return other
