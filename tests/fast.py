"""Which cases of a parametrisation `make test` runs: some that show the claim, the rest being marked slow."""

from collections.abc import Iterable
from typing import Any

import pytest


def few(cases: Iterable[Any], *fast: int) -> list[Any]:
    """The cases at the positions ``fast`` as they are, all others marked slow."""
    chosen = []
    for position, case in enumerate(cases):
        if position in fast:
            chosen.append(case)
        elif isinstance(case, tuple) and not hasattr(case, "marks"):
            chosen.append(pytest.param(*case, marks=pytest.mark.slow))
        elif hasattr(case, "marks"):
            chosen.append(pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.slow]))
        else:
            chosen.append(pytest.param(case, marks=pytest.mark.slow))
    return chosen


def seldom(cases: Iterable[Any], *positions: int) -> list[Any]:
    """The cases, those at the positions being campaigns: long ones, of whose claim others stay."""
    chosen = list(cases)
    for position in positions:
        case = chosen[position]
        if not hasattr(case, "marks"):
            case = pytest.param(*case) if isinstance(case, tuple) else pytest.param(case)
        marks = [*case.marks, pytest.mark.slow, pytest.mark.campaign]
        chosen[position] = pytest.param(*case.values, id=case.id, marks=marks)
    return chosen
