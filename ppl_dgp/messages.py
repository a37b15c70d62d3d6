"""The error of data that cannot be used, and how messages name what may be chosen."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import get_close_matches


class DataError(ValueError):
    """The input cannot be used. The message is one line: the cause, then the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def nearest_of(name: str, names: Sequence[str]) -> str:
    """What to do about a name that is none of ``names``: the nearest, if there is one, and all of them."""
    near = get_close_matches(name, names, 1) or get_close_matches(name.lower(), names, 1)
    return f"{f'did you mean {near[0]!r}? ' if near else ''}choose from {listing(list(names))}"


def unknown_name(found: str, name: str, names: Collection[str]) -> ValueError:
    """The error of a name that is none of ``names``, after what was found, such as ``kernel: found 'rfb'``."""
    return ValueError(f"{found}, which is unknown; {nearest_of(name, list(names))}")


def listing(names: list[str], most: int = 20) -> str:
    """Names for a message, at most ``most`` of them."""
    shown = ", ".join(names[:most]) or "nothing"
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def as_found(value: object, most: int = 100) -> str:
    """What was found, for a message: as it prints itself, or what it is where that is longer than ``most``."""
    text = " ".join(repr(value).split())
    if len(text) <= most:
        return text
    kind = f"a {type(value).__name__}"
    return f"{kind} of {len(value)}" if isinstance(value, Collection) else kind
