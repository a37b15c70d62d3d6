"""Parts of NumPyro beyond its documented interface, in one place, so that a new release is met here alone.

* ``numpyro.primitives._PYRO_STACK``, the handlers in force: a message can be forwarded to some of them, which
  ``apply_stack`` cannot (:func:`handlers_in_force`, :func:`forward`). It is one list for all threads, so that programs
  that are traced in two at once hear each other's handlers: here each thread has its own (:class:`_HandlersOfThread`).
* ``SVI.constrain_fn.args[0]``, the bijections of an initialised SVI: two SVIs share a compiled program only if theirs
  are the same, and NumPyro has no accessor (:func:`bijections_of`).
* A copy of an initialised SVI with another objective or optimiser, which its constructor would leave uninitialised
  (:func:`svi_with`).
* What an ``AutoGuide`` remembers of its first call: a copy without it begins at values of its own
  (:func:`uninitialised`).
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpyro.contrib.control_flow
import numpyro.primitives
from numpyro.infer import SVI
from numpyro.infer.autoguide import AutoGuide, AutoGuideList
from numpyro.primitives import Messenger


class _HandlersOfThread(list[Messenger]):
    """A list of handlers of which every thread sees its own."""

    def __init__(self, begun: list[Messenger]) -> None:
        super().__init__()
        self._local = threading.local()
        self._local.handlers = list(begun)

    @property
    def _mine(self) -> list[Messenger]:
        if not hasattr(self._local, "handlers"):
            self._local.handlers = []
        mine: list[Messenger] = self._local.handlers
        return mine

    def append(self, handler: Messenger, /) -> None:
        self._mine.append(handler)

    def pop(self, place: Any = -1, /) -> Messenger:
        return self._mine.pop(place)

    def index(self, handler: Messenger, *bounds: Any) -> int:
        return self._mine.index(handler, *bounds)

    def __getitem__(self, place: Any, /) -> Any:
        return self._mine[place]

    def __len__(self) -> int:
        return len(self._mine)

    def __iter__(self) -> Iterator[Messenger]:
        return iter(self._mine)

    def __reversed__(self) -> Iterator[Messenger]:
        backwards: Iterator[Messenger] = reversed(self._mine)
        return backwards

    def __contains__(self, handler: object, /) -> bool:
        return handler in self._mine


def _keep_threads_apart() -> None:
    """Put a list of each thread's handlers wherever NumPyro has the one of all threads."""
    shared = numpyro.primitives._PYRO_STACK
    if isinstance(shared, _HandlersOfThread):
        return
    apart = _HandlersOfThread(shared)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "numpyro" and getattr(module, "_PYRO_STACK", None) is shared:
            module._PYRO_STACK = apart  # type: ignore[attr-defined]


_keep_threads_apart()


def handlers_in_force() -> tuple[Messenger, ...]:
    """The effect handlers that a message would meet, the outermost first."""
    return tuple(numpyro.primitives._PYRO_STACK)


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


def uninitialised(guide: Any) -> Any:
    """A copy of the guide that has not been called, so that it begins at values of its own key and data.

    The arrays that a called ``AutoGuide`` keeps are forgotten, its own, its parts' and those of the latents without a
    role of a ``ppl_dgp.Guide``.
    """
    if not isinstance(guide, AutoGuide):
        others = getattr(guide, "_others", None)
        return copy.deepcopy(
            guide, {id(others): uninitialised(others)} if isinstance(others, AutoGuide) else None
        )
    twin = copy.copy(guide)
    twin.prototype_trace, twin._prototype_frames, twin._prototype_frame_full_sizes = None, {}, {}
    if isinstance(guide, AutoGuideList):
        twin._guides = [uninitialised(part) for part in guide._guides]
    return twin
