"""What surrounds the compiled steps: one BLAS thread, Ctrl-C answered between pieces, a progress bar."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType

import jax
import numpy as np
from jaxtyping import Float
from threadpoolctl import threadpool_limits

from ppl_dgp.extras import needed_for

PIECE_SECONDS = 0.5  # that the steps between two looks at Ctrl-C take about


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS to one thread on the CPU, and restore the number it had.

    jaxlib's Cholesky factorisations and triangular solves call SciPy's BLAS, whose threads compete with XLA's
    own: the small matrices of a sparse GP take twice as long with them.
    """
    if jax.default_backend() != "cpu":
        yield
        return
    import scipy.linalg  # noqa: F401  loads the library that is to be limited

    with threadpool_limits(1, user_api="blas"):
        yield


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], int]]:
    """Note Ctrl-C instead of raising, so that no step is torn apart; gives a function that counts presses.

    The second press raises at once. Outside the main thread, where Python delivers no signal, it changes
    nothing.
    """
    presses = 0
    previous = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal presses
        presses += 1
        if presses > 1 and callable(previous):
            previous(number, frame)

    defer = threading.current_thread() is threading.main_thread() and callable(previous)
    if defer:
        signal.signal(signal.SIGINT, note)
    try:
        yield lambda: presses
    finally:
        if defer:
            signal.signal(signal.SIGINT, previous)


def is_shown(show: bool | None) -> bool:
    """Whether a bar is to be shown; None leaves it to standard error, which has to be a terminal, and to rich."""
    return sys.stderr.isatty() and find_spec("rich") is not None if show is None else show


@contextmanager
def progress_bar(
    show: bool | None, done: int, total: int
) -> Iterator[Callable[[int, Float[np.ndarray, " R"]], None]]:
    """A bar on standard error; gives a function of the steps done and the last loss of each restart.

    :param show: None for: where standard error is a terminal and rich is installed.
    :raises MissingExtra: for a bar that was asked for, without rich.
    """
    if not is_shown(show):
        yield lambda step, losses: None
        return
    with needed_for("a progress bar"):
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
    columns = (TextColumn("steps"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]}"))
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=Console(stderr=True)) as bar:
        task = bar.add_task("steps", total=total, completed=done, loss="–")

        def advance(step: int, losses: Float[np.ndarray, " R"]) -> None:
            finite = losses[np.isfinite(losses)]
            bar.update(task, completed=step, loss=f"{finite.min():.5g}" if finite.size else "not finite")

        yield advance
