"""What MkDocs is told of pages that stand elsewhere: the reference, the notebooks, the command line, the changelog.

Called by MkDocs under the names that it knows (``on_…``).
"""

from __future__ import annotations

import ast
import logging
import re
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from formulas import with_formulas  # noqa: E402
from mkdocs.config.defaults import MkDocsConfig  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402
from mkdocs.structure.pages import Page  # noqa: E402
from rooms import PAGES, ROOT, written  # noqa: E402

from notebooks import exported, gallery  # noqa: E402

#: the package laid out as it is installed, the zoo inside it, for mkdocstrings to read
LAID_OUT = ROOT / "build" / "reference"
#: written by `make docs`
COMMANDS = ROOT / "build" / "command-line.md"
#: the tour comes first
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"), key=lambda path: (path.stem != "tour", path.stem))
#: what leads out of docs/, and where it leads on the site
LINKS = [
    (re.compile(r"\]\((?:\.\./)?notebooks/(\w+)\.ipynb"), r"](notebooks/\1.md"),
    (re.compile(r"\]\(\.\./CONTRIBUTING\.md"), "](contributing.md"),
    (re.compile(r"\]\(\.\./CHANGELOG\.md"), "](changelog.md"),
    (re.compile(r"\]\(docs/"), "]("),
    # of a notebook, whose page lies one folder down too
    (re.compile(r"\]\(\.\./docs/"), "](../"),
]
log = logging.getLogger("mkdocs.hooks")


def lay_out() -> None:
    """Copy the package; where a room takes a name from a file of the same name, griffe would see the file alone."""
    shutil.rmtree(LAID_OUT, ignore_errors=True)
    quiet = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "ppl_dgp", LAID_OUT / "ppl_dgp", ignore=quiet)
    shutil.copytree(ROOT / "models", LAID_OUT / "ppl_dgp" / "models", ignore=quiet)
    for room in LAID_OUT.glob("ppl_dgp/**/__init__.py"):
        lines = room.read_text().splitlines()
        for statement in reversed(ast.parse(room.read_text()).body):
            if isinstance(statement, ast.ImportFrom):
                statement.names = [
                    name for name in statement.names if not room.with_name(f"{name.name}.py").exists()
                ]
                kept = [ast.unparse(statement)] if statement.names else []
                lines[statement.lineno - 1 : statement.end_lineno] = kept
        room.write_text("\n".join(lines) + "\n")


def on_startup(command: str, dirty: bool) -> None:
    """Lay the package out before mkdocstrings looks whether its paths are there."""
    lay_out()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every notebook into the gallery."""
    for entry in config.nav or []:
        entry.get("Gallery", []).extend(f"notebooks/{path.stem}.md" for path in NOTEBOOKS)
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are made, or stand outside of docs/."""
    pages: dict[str, str | bytes] = {f"api/{name}.md": written(name) for name in PAGES}
    pages["contributing.md"] = (ROOT / "CONTRIBUTING.md").read_text()
    pages["changelog.md"] = (ROOT / "CHANGELOG.md").read_text()
    notebooks = [exported(path) for path in NOTEBOOKS]
    pages["gallery.md"] = gallery(notebooks)
    for notebook in notebooks:
        pages |= {notebook.page: notebook.text, **notebook.figures}
    if COMMANDS.exists():
        pages["api/command-line.md"] = COMMANDS.read_text()
    else:
        log.warning("build/command-line.md is missing: `make docs` writes it")
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links that leave docs/ to the pages that stand for what they name."""
    for pattern, there in LINKS:
        markdown = pattern.sub(there, markdown)
    return markdown


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show formulas as MathML, which browsers know without a script, and files by where they are installed."""
    return with_formulas(html.replace(f"{LAID_OUT.relative_to(ROOT)}/", ""), page.file.src_uri)
