"""Notebooks as pages of the site: cells as Markdown, figures as files beside them, and a gallery of them all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nbconvert import MarkdownExporter

#: what pandas writes into its tables: styles of their own, and borders
STYLE = re.compile(r"<style scoped>.*?</style>\s*", re.DOTALL)
#: what cells print, which nbconvert indents
PRINTED = re.compile(r"(?<=\n)\n((?:    .*\n|\n(?=    ))+)")
#: figures of other pages that the gallery shows too: where it leads, the figure, and what it is
ELSEWHERE = (
    ("gplvm.md", "gplvm-oil.png", "Latent variable models", "Real tables in two dimensions."),
    (
        "gpssm.md",
        "identification-drive.png",
        "State space models",
        "Systems found from their controls and outputs.",
    ),
)


@dataclass(frozen=True)
class Notebook:
    """A notebook as a page: name, title, first sentence, Markdown, and figures by their names on the site."""

    name: str
    title: str
    about: str
    text: str
    figures: dict[str, bytes]

    @property
    def page(self) -> str:
        """Where it is on the site."""
        return f"notebooks/{self.name}.md"


def exported(path: Path) -> Notebook:
    """A notebook that was run, as a page.

    path: of an .ipynb.
    """
    name = path.stem
    text, resources = MarkdownExporter().from_filename(str(path), {"output_files_dir": name})
    text = STYLE.sub("", text).replace(' border="1" class="dataframe"', "")
    text = PRINTED.sub(lambda found: fenced(found[1]), text)
    heading, _, rest = text.lstrip().partition("\n")
    about = re.split(r"(?<=[.:])\s", rest.strip().replace("\n", " "), maxsplit=1)[0].rstrip(":.") + "."
    text = f"{heading}\n\nThis page is `notebooks/{name}.ipynb` as it was run.\n\n{rest}"
    figures = {f"notebooks/{figure}": data for figure, data in resources.get("outputs", {}).items()}
    return Notebook(name, heading.removeprefix("# "), about, text, figures)


def fenced(block: str) -> str:
    """Indented lines as a block of plain text; nothing of what is blank, such as a figure's own words."""
    lines = [line.removeprefix("    ") for line in block.strip("\n").splitlines()]
    shown = "\n".join(lines).rstrip()
    return f"\n```text\n{shown}\n```\n" if shown.strip() else "\n"


def gallery(notebooks: Sequence[Notebook]) -> str:
    """The page that shows a figure of each, its last."""
    cards = [
        (each.page, list(each.figures)[-1], each.title, each.about) for each in notebooks if each.figures
    ] + list(ELSEWHERE)
    shown = "\n".join(
        f"- [![{title}]({figure})]({page})\n\n    **[{title}]({page})**\n\n    {about}\n"
        for page, figure, title, about in cards
    )
    return (
        "# Gallery\n\nNotebooks as they were run, figures and all. Each is a pair of files in `notebooks/`, "
        f'an `.ipynb` and a `.py` of the same cells.\n\n<div class="grid cards" markdown>\n\n{shown}\n</div>\n'
    )
