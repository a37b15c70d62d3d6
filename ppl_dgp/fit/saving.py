"""Saved states of a fit in progress: how often they are written, and which fit may be continued from one."""

import math
import os
import time
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ppl_dgp import checkpoint
from ppl_dgp.checkpoint import CheckpointError, alone_in

SAVING_SHARE = 0.05  # of the time, unless told how often to save


class SaveWarning(UserWarning):
    """A state could not be saved, for want of space or of a directory; the one before stands, and training goes on."""


class Saving:
    """Saves whole states in a directory, each replacing the one before; without a directory it does nothing.

    ``identity`` are JSON values that a fit which continues from the state must share. Of several processes one
    ``writes``.
    """

    def __init__(
        self, directory: str | os.PathLike[str] | None, identity: Mapping[str, Any], writes: bool = True
    ) -> None:
        self.directory, self.identity, self.writes = directory, dict(identity), writes
        self._cost, self._last = 0.0, time.perf_counter()

    def due(self) -> bool:
        """Whether saving now keeps it a twentieth of the time."""
        return time.perf_counter() - self._last > self._cost / SAVING_SHARE

    def save(self, state: Any, **meta: Any) -> None:
        """Save a pytree and what describes it, as ``ppl_dgp.checkpoint.save`` does."""
        if self.directory is None or not self.writes:
            return
        before = time.perf_counter()
        try:
            checkpoint.save(self.directory, state, self.identity | meta)
        except OSError as error:
            warnings.warn(
                f"checkpoint: could not write to {self.directory} ({error.strerror or error}); what was saved before "
                "stands, and training goes on",
                SaveWarning,
                stacklevel=2,
            )
        self._last = time.perf_counter()
        self._cost = self._last - before

    def alone(self) -> AbstractContextManager[None]:
        """Hold the directory while training: no other fit writes there.

        :raises CheckpointError: if another fit holds it.
        """
        if self.directory is None or not self.writes:
            return nullcontext()
        return alone_in(self.directory)

    def resumable(self, resume: bool) -> dict[str, Any] | None:
        """What describes the saved state, None if none is to be resumed.

        :raises CheckpointError: if there is none, or one damaged or made with other data or settings.
        :raises ValueError: without a directory.
        """
        if not resume:
            return None
        if self.directory is None:
            raise ValueError(
                "checkpoint: found None with resume=True, expected a directory to resume from; pass checkpoint="
            )
        meta = checkpoint.read_meta(self.directory)
        for name, wanted in self.identity.items():
            if meta.get(name) != wanted:
                if name == "data":
                    raise CheckpointError(
                        f"checkpoint {self.directory} was made with other data; resume with the same x and y"
                    )
                raise CheckpointError(
                    f"checkpoint {self.directory} was made with {name} {meta.get(name)}, found {wanted}; "
                    f"resume with the same {name}"
                )
        step, seconds = meta.get("step"), meta.get("seconds")
        counted = isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 2**63
        if not counted or not isinstance(seconds, float | int) or not 0 <= seconds < math.inf:
            raise CheckpointError(
                f"checkpoint {self.directory} is damaged: found step {str(step)[:80]} after {str(seconds)[:80]} s, "
                "expected numbers of at least 0; restore it from a copy, or start without resuming"
            )
        return meta
