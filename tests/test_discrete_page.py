"""The page of discrete latents runs as it is printed, and prints what it says."""

from pathlib import Path

import pytest
from test_write_your_own import runs_and_prints

PAGE = Path(__file__).parent.parent / "docs" / "discrete.md"


@pytest.mark.slow
def test_the_page_prints_what_it_says():
    runs_and_prints(PAGE)
