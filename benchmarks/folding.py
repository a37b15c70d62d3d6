"""Long tables of a page, folded: a line says what is in them, and a click opens them.

python -m benchmarks.folding docs/gpssm.md docs/images.md   # of pages that are written by hand; scripts fold their own
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

#: rows of a table that stays open
MOST = 9


def folded(text: str) -> str:
    """A page with every table of more than nine rows behind a line; those that are folded already stay as they are.

    text: Markdown, a table's lines beginning with a bar.
    """
    lines: list[str] = []
    for is_table, group in groupby(text.splitlines(), key=lambda line: line.startswith("|")):
        part = list(group)
        if is_table and len(part) - 2 > MOST and not "".join(lines[-2:]).endswith("</summary>"):
            columns = [cell.strip().replace("`", "") for cell in part[0].strip("|").split("|")]
            named = ", ".join([column for column in columns if column][:4])
            summary = f"<summary>Table of {len(part) - 2} rows: {named}, …</summary>"
            part = ['<details markdown="1">', summary, "", *part, "", "</details>"]
        lines += part
    return "\n".join(lines) + ("\n" if text.endswith("\n") else "")


def main() -> None:
    """Fold the pages that are named."""
    for name in sys.argv[1:]:
        Path(name).write_text(folded(Path(name).read_text()))


if __name__ == "__main__":
    main()
