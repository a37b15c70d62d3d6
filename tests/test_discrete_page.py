"""The page of discrete latents runs as it is printed, and prints what it says."""

import contextlib
import io
from pathlib import Path

import pytest
from test_write_your_own import BLOCK, without_numbers

PAGE = Path(__file__).parent.parent / "docs" / "discrete.md"


@pytest.mark.slow
def test_the_page_prints_what_it_says():
    scope: dict[str, object] = {"__name__": "page"}
    printed = io.StringIO()
    for kind, block in BLOCK.findall(PAGE.read_text()):
        if kind == "python":
            with contextlib.redirect_stdout(printed):
                exec(compile(block, str(PAGE), "exec"), scope)
        else:
            assert without_numbers(printed.getvalue()) == without_numbers(block)
            printed = io.StringIO()
    assert not printed.getvalue()
