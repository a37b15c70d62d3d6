"""Compiled programs by name, the least recently used dropped and their memory given back.

A compiled fit holds some 30 MB and, of the mappings of memory that Linux allows a process, some hundreds.
"""

import ctypes
import gc
import sys
import threading
from collections import OrderedDict
from collections.abc import Hashable
from pathlib import Path
from typing import Any

# four of each fit; where there are more a quarter is dropped, with the models and guides, for it takes a second
PROGRAMS_KEPT = 64
_MAPPINGS, _MOST_MAPPINGS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")

_programs: OrderedDict[Hashable, Any] = OrderedDict()
_lock = threading.Lock()


def kept(name: Hashable) -> Any:
    """The program of a name, None if there is none."""
    with _lock:
        if name in _programs:
            _programs.move_to_end(name)
        return _programs.get(name)


def keep(name: Hashable, program: Any) -> None:
    """Keep a program, in the place of the one of the same name, and drop others where there are too many."""
    with _lock:
        _programs[name] = program
        _programs.move_to_end(name)
        if len(_programs) <= PROGRAMS_KEPT and not _crowded():
            return
        for oldest in list(_programs)[: max(1, len(_programs) // 4)]:
            if oldest != name:
                del _programs[oldest]
    _give_back()


def _crowded() -> bool:
    """Whether half of the mappings are used that the process may have: at the last XLA ends it."""
    try:
        return 2 * _MAPPINGS.read_bytes().count(b"\n") > int(_MOST_MAPPINGS.read_text())
    except OSError:  # no Linux
        return False


def _give_back() -> None:
    """Free what nothing holds any more: programs hold each other in circles, and glibc keeps what is freed."""
    gc.collect()
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
