"""The README's example runs as it is printed."""

import re
from pathlib import Path

import numpy as np
import pytest

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.slow
def test_the_example_runs_and_fits_the_step() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    scope: dict[str, object] = {}
    exec(compile(blocks[0], str(README), "exec"), scope)
    # noise of 0.05 has log density 1.58 at best; a constant fits at -0.7
    assert np.mean(scope["new"].log_density) > 0.5  # type: ignore[attr-defined]


def test_the_example_is_short() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len([line for line in blocks[0].splitlines() if line.strip()]) <= 15
