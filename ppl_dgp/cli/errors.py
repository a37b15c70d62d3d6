"""Errors of the command line."""

import sys
from collections.abc import Collection, Sequence
from difflib import get_close_matches


class BadInput(ValueError):
    """The command cannot be carried out as given. The message is one line: the cause, then the remedy."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}; {remedy}")


def unknown(option: str, value: object, allowed: Collection[str]) -> BadInput:
    """The error of a name that is none of those ``allowed``, with the nearest of them."""
    near = get_close_matches(str(value), allowed, 1)
    return BadInput(
        f"{option} is {value!r}, which is unknown",
        f"{f'did you mean {near[0]}? ' if near else ''}choose from {', '.join(allowed)}",
    )


class Stopped(Exception):
    """Ctrl-C came; the message says what was kept and how to go on.

    No KeyboardInterrupt: that one never reaches the entry point, typer makes an exit code of it.
    """


def refused(message: str, argv: Sequence[str] | None = None) -> int:
    """Say in one line why nothing can be done, whatever the command; returns the exit code."""
    print(f"ppl-dgp: error: {' '.join(message.split())}", file=sys.stderr)
    return 2
