"""What a contestant of the bench says to speed.py and hears from it, a line of JSON each.

After its first step it says how long that took, then waits; for each line it hears it takes a turn and says how many
milliseconds a step took; at the end of its input it says how much memory it held and what it compiled meanwhile.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

#: a turn of a contestant that is called, rather than calls, takes at least so long
SECONDS = 1.0


class Turns:
    """The contestant's end of the line."""

    def __init__(self) -> None:
        # libraries write to standard output as they like: the line is a copy of it, which they do not know
        self._line = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._before = 0.0
        self._compilations = 0
        self._turn, self._began = 0, False
        #: steps in a call
        self.per_call = 1
        #: MiB held at most so far; and bytes that a step moves, where that is known
        self.held: Callable[[], float] = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self.moved = 0.0

    def compiled(self) -> None:
        """Called where something is compiled."""
        self._compilations += self._began

    def ready(self, seconds: float) -> None:
        """The first step is done: nothing is to be compiled from here on, not by a second fit either."""
        self._began = True
        self._say(first=seconds)

    def done(self, steps: int) -> None:
        """A turn is done, of which the first, uncalled, does not count; waits for the next. EOFError at the end."""
        elapsed = time.perf_counter() - self._before
        if self._turn:
            self._say(ms=1e3 * elapsed / steps)
        self._turn += 1
        if not sys.stdin.readline():
            self._say(peak=self.held(), compilations=self._compilations, moved=self.moved)
            raise EOFError
        self._before = time.perf_counter()

    def serve(self, call: Callable[[], Any]) -> None:
        """Take turns of as many calls as take about a second."""
        before = time.perf_counter()
        call()
        self.ready(time.perf_counter() - before)
        before = time.perf_counter()
        call()
        count = max(1, int(SECONDS / (time.perf_counter() - before)))
        try:
            while True:
                self.done(count * self.per_call)
                for _ in range(count):
                    call()
        except EOFError:
            pass

    def _say(self, **values: float) -> None:
        self._line.write(json.dumps(values) + "\n")
