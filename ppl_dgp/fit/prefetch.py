"""The next of something is made in a thread while the present one is in use."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

AHEAD = 1  # made and waiting, beside the one in use and the one being made


class Waited:
    """Seconds that the user of ``prefetched`` waited for what was not ready, the first left out."""

    def __init__(self) -> None:
        self.seconds = 0.0


@contextmanager
def prefetched(make: Iterator[Any], waited: Waited) -> Iterator[Callable[[], Any]]:
    """A function that gives what ``make`` yields, one after another, made in a thread that runs ahead of it.

    An error of ``make`` is raised where its value was asked for. On the way out the thread is stopped and joined.
    """
    ready: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(AHEAD)
    stopped = threading.Event()

    def put(item: tuple[Any, BaseException | None]) -> None:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return

    def work() -> None:
        try:
            for value in make:
                put((value, None))
                if stopped.is_set():
                    return
        except BaseException as error:
            put((None, error))

    thread = threading.Thread(target=work, name="prefetch", daemon=True)
    given = 0

    def take() -> Any:
        nonlocal given
        before = time.perf_counter()
        value, error = ready.get()
        waited.seconds += (time.perf_counter() - before) * (given > 0)
        given += 1
        if error is not None:
            raise error
        return value

    thread.start()
    try:
        yield take
    finally:
        stopped.set()
        thread.join()
