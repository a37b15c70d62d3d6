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
