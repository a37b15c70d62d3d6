"""The pages "Write your own …" run as they are printed, and print what they say."""

import contextlib
import io
import re
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parent.parent / "docs").glob("write-your-own-*.md"))
BLOCK = re.compile(r"```(python|text)\n(.*?)```", flags=re.DOTALL)


def without_numbers(text: str) -> list[str]:
    """The lines, numbers left out: digits may differ between machines, and what holds may not."""
    lines = [re.sub(r"\s-?\d[\d.e+-]*", " #", " " + line) for line in text.splitlines()]
    return [" ".join(re.sub(r"-{2,}", "", line).split()) for line in lines]


def runs_and_prints(page: Path) -> None:
    """Run the Python of a page, one block after another, and compare what it prints with what the page says."""
    scope: dict[str, object] = {"__name__": "page"}
    printed = io.StringIO()
    for kind, block in BLOCK.findall(page.read_text()):
        if kind == "python":
            with contextlib.redirect_stdout(printed):
                exec(compile(block, str(page), "exec"), scope)
        else:
            assert without_numbers(printed.getvalue()) == without_numbers(block)
            printed = io.StringIO()
    assert not printed.getvalue()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=() if "kernel" in page.stem else pytest.mark.slow)
        for page in PAGES
    ],
)
def test_the_page_prints_what_it_says(page: Path) -> None:
    runs_and_prints(page)
    assert not any("NO" in block for kind, block in BLOCK.findall(page.read_text()) if kind == "text")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_part_of_your_own_is_short(page: Path) -> None:
    """At most 15 lines, imports and blank lines aside."""
    kind, block = BLOCK.findall(page.read_text())[0]
    lines = [line for line in block.splitlines() if line.strip() and not line.startswith(("import", "from"))]
    assert kind == "python" and len(lines) <= 15


def test_there_is_a_page_for_each_of_the_five() -> None:
    parts = {page.stem.removeprefix("write-your-own-") for page in PAGES}
    assert parts == {"kernel", "likelihood", "hidden-rule", "objective", "model"}
