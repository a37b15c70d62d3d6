"""Which cases of a parametrisation `make test` runs, some that show the claim, and which are left to campaigns."""

from collections.abc import Iterable
from typing import Any

import pytest


def few(cases: Iterable[Any], *fast: int) -> list[Any]:
    """The cases at the positions ``fast`` as they are, all others marked slow."""
    return [
        case if position in fast else _marked(case, pytest.mark.slow) for position, case in enumerate(cases)
    ]


def seldom(cases: Iterable[Any], *positions: int) -> list[Any]:
    """The cases, those at the positions being campaigns: long ones, of whose claim others stay."""
    return [
        _marked(case, pytest.mark.slow, pytest.mark.campaign) if position in positions else case
        for position, case in enumerate(cases)
    ]


def _marked(case: Any, *marks: pytest.MarkDecorator) -> Any:
    if not hasattr(case, "marks"):
        case = pytest.param(*case) if isinstance(case, tuple) else pytest.param(case)
    return pytest.param(*case.values, id=case.id, marks=[*case.marks, *marks])
