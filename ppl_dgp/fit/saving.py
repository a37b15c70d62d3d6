"""Saved states of a fit in progress: how often they are written, and which fit may be continued from one."""

import math
import os
import time
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from ppl_dgp import checkpoint
from ppl_dgp.checkpoint import LOCK, CheckpointError, alone_in

SAVING_SHARE = 0.05  # of the time, unless told how often to save


class SaveWarning(UserWarning):
    """A state could not be saved, for want of space or of a directory; the one before stands, and training goes on.

    Where training is to stop instead, make it an error: ``warnings.simplefilter("error", SaveWarning)``.
    """


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
        self._held = ExitStack()
        self._lock: IO[str] | None = None

    def due(self) -> bool:
        """Whether saving now keeps it a twentieth of the time."""
        return time.perf_counter() - self._last > self._cost / SAVING_SHARE

    def save(self, state: Any, **meta: Any) -> None:
        """Save a pytree and what describes it, as ``ppl_dgp.checkpoint.save`` does."""
        if self.directory is None or not self.writes:
            return
        before = time.perf_counter()
        try:
            self._hold_again()
            checkpoint.save(self.directory, state, self.identity | meta)
        except (OSError, CheckpointError) as error:
            reason = getattr(error, "strerror", None) or error
            warnings.warn(
                f"checkpoint: could not write to {self.directory} ({reason}); what was saved before "
                "stands, and training goes on",
                SaveWarning,
                stacklevel=2,
            )
        self._last = time.perf_counter()
        self._cost = self._last - before

    def alone(self) -> ExitStack:
        """Hold the directory while training: no other fit writes there.

        :raises CheckpointError: if another fit holds it, or it cannot be written.
        """
        self._held = ExitStack()
        if self.directory is not None and self.writes:
            try:
                self._lock = self._held.enter_context(alone_in(self.directory))
                # a lock that is there already says nothing of the files to come
                with TemporaryFile(dir=self.directory):
                    pass
            except OSError as error:
                self._held.close()
                raise CheckpointError(
                    f"checkpoint: found {self.directory}, which cannot be written ({error.strerror or error}), "
                    "expected a directory for saved states; check its rights and its disk, or name another"
                ) from None
        return self._held

    def _hold_again(self) -> None:
        """Make a directory that has vanished while it was held anew, and say so.

        :raises CheckpointError: if another fit holds what is there now.
        """
        if self.directory is None or self._lock is None:
            return
        there, gone = Path(self.directory) / LOCK, not Path(self.directory).is_dir()
        if there.exists() and os.path.samestat(there.stat(), os.fstat(self._lock.fileno())):
            return
        self._lock = self._held.enter_context(alone_in(self.directory))
        if not gone:
            return
        warnings.warn(
            f"checkpoint: found {self.directory} gone, expected it to stay while a fit saves there; it was made anew, "
            "and what was saved before is lost",
            SaveWarning,
            stacklevel=3,
        )

    def resumable(self, resume: bool) -> dict[str, Any] | None:
        """What describes the saved state, None if none is to be resumed; nothing is compiled before it is asked for.

        :raises CheckpointError: if there is none, or one damaged or made with other data or settings; if the directory
            cannot be written, or another fit holds it.
        :raises ValueError: without a directory.
        """
        meta = self._earlier() if resume else None
        # said before anything is compiled; held from where training begins
        with self.alone():
            return meta

    def restarts_of(self, earlier: Mapping[str, Any], restarts: int) -> list[int]:
        """The restarts that went on when a state was saved, by number.

        :raises CheckpointError: for what is no such list.
        """
        going = earlier.get("going", list(range(restarts)))
        if not (
            isinstance(going, list)
            and going
            and all(checkpoint.is_count(number) and number < restarts for number in going)
            and going == sorted(set(going))
        ):
            raise CheckpointError(
                f"checkpoint {self.directory} is damaged: found the restarts {str(going)[:80]}, expected some of "
                f"{restarts}; restore it from a copy, or start without resuming"
            )
        return going

    def _earlier(self) -> dict[str, Any]:
        """What describes the saved state, which must be of this fit."""
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
        if (
            not checkpoint.is_count(step)
            or not isinstance(seconds, float | int)
            or not 0 <= seconds < math.inf
        ):
            raise CheckpointError(
                f"checkpoint {self.directory} is damaged: found step {str(step)[:80]} after {str(seconds)[:80]} s, "
                "expected numbers of at least 0; restore it from a copy, or start without resuming"
            )
        return meta
