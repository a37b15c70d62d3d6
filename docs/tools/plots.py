"""Makes the pictures of docs/plots.md anew, by the code that stands above each: `python docs/tools/plots.py`."""

from __future__ import annotations

import re
from pathlib import Path

from ppl_dgp import save_figure

PAGE = Path(__file__).parents[1] / "plots.md"
#: a block of code, or a picture
PART = re.compile(r"```python\n(.*?)```|!\[[^]]+\]\((plots/[^)]+)\)", flags=re.DOTALL)
#: small enough for a page
DPI = 90


def pictures(page: str, folder: Path) -> list[Path]:
    """Run the blocks one after another, and save what each has called ``figure`` as the picture below it."""
    values: dict[str, object] = {}
    made = []
    for block, name in PART.findall(page):
        if name:
            (folder / name).parent.mkdir(exist_ok=True)
            save_figure(values.pop("figure"), folder / name, dpi=DPI)
            made.append(folder / name)
        else:
            exec(block, values)
    return made


if __name__ == "__main__":
    for path in pictures(PAGE.read_text(encoding="utf-8"), PAGE.parent):
        print(path.relative_to(PAGE.parent))
