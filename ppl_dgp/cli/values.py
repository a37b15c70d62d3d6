"""What is given as text on the command line, as values of settings."""

from __future__ import annotations

from collections.abc import Sequence

from ppl_dgp.cli.errors import BadInput
from ppl_dgp.cli.settings import AUTO


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """``"2,2"`` to ``(2, 2)``. Raises BadInput for anything else."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise BadInput(
            f"{option} is {text!r}", "give whole numbers with commas between, such as 2,2"
        ) from None


def number_of_steps(text: str) -> int | str:
    """``"auto"``, or a number. Raises BadInput for anything else."""
    if text == AUTO:
        return text
    try:
        return int(text)
    except ValueError:
        raise BadInput(f"--steps is {text!r}", f"give a whole number, or {AUTO}") from None


def real_numbers(option: str, text: str) -> tuple[float, ...]:
    """``"0,0.5"`` to ``(0.0, 0.5)``. Raises BadInput for anything else."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise BadInput(f"{option} is {text!r}", "give numbers with commas between, such as 0,0.5") from None


def words(text: str) -> Sequence[str]:
    """A comma list, without blanks and repetitions."""
    return list(dict.fromkeys(part.strip() for part in text.split(",")))
