"""The pages of docs/: their code compiles and runs, what they import is there, pages and names have their places."""

import ast
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
from test_write_your_own import runs_and_prints

import ppl_dgp

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("**/*.md"))]
#: blocks of "python" are of this package; those of "py" are another library's, beside ours
CODE = re.compile(r"```(python|py)\n(.*?)```", flags=re.DOTALL)
#: pages whose blocks run one after another, and print what they say
RUN = ["index", "priors-and-nuts", "big-data", "saving-and-serving", "checking-a-fit", "choosing", "plots"]
RUN += ["cross-validation", "estimators", "from-gpflow", "from-gpytorch", "from-gpjax", "from-pymc"]

sys.path.insert(0, str(DOCS / "tools"))
from converted import markdown  # noqa: E402
from rooms import PAGES as REFERENCE  # noqa: E402
from rooms import contents, places, written  # noqa: E402

sys.path.insert(0, str(ROOT))
from benchmarks.folding import MOST, folded  # noqa: E402


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_compiles_and_imports_what_is_there(page: Path) -> None:
    for kind, block in CODE.findall(page.read_text()):
        for statement in ast.walk(ast.parse(block)):
            if kind == "python" and isinstance(statement, ast.ImportFrom):
                if (statement.module or "").split(".")[0] == "ppl_dgp":
                    for name in statement.names:
                        assert hasattr(import_module(statement.module), name.name), name.name


# chains of a page are short
@pytest.mark.filterwarnings("ignore::ppl_dgp.fit.chains.SamplingWarning")
# ArviZ, of LOO by few draws
@pytest.mark.filterwarnings("ignore:Estimated shape parameter")
@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_the_page_runs_and_prints_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs_and_prints(DOCS / f"{name}.md")


def test_every_page_that_is_linked_to_from_the_readme_is_there() -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / "README.md").read_text()):
        assert (ROOT / link).exists(), link


def test_every_page_stands_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    missing = [
        page.relative_to(DOCS).as_posix()
        for page in sorted(DOCS.glob("**/*.md"))
        if page.relative_to(DOCS).as_posix() not in navigation
    ]
    assert not missing
    assert all(f"api/{name}.md" in navigation for name in REFERENCE)


def test_every_public_name_is_on_one_page_of_the_reference() -> None:
    shown = [name for page in REFERENCE for names in contents(page).values() for name in names]
    assert {*ppl_dgp.__all__} - {"__version__"} <= {*shown}
    assert len(shown) == len({*shown})
    for page in REFERENCE:
        for module, names in contents(page).items():
            for own in names.values():
                assert hasattr(import_module(module), own)
                assert f"::: {module}.{own}\n" in written(page)


def test_docstrings_become_markdown() -> None:
    text = markdown(
        "Of :func:`compare`, see :mod:`ppl_dgp.fit.annealing`.\n\n.. math::\n    a \\\\\n    b\n\nAt :math:`x`.\n\n"
        ":param x, y: rows (N, D)\n    and (N, P).\n:raises ValueError: if not.\n\n>>> 1 + 1\n2\n"
    )
    assert f"[`compare`][{places()['compare']}], see `ppl_dgp.fit.annealing`." in text
    assert "$$\n\\begin{aligned}a \\\\\nb\\end{aligned}\n$$" in text and "At $x$." in text
    assert "**Parameters**\n\n- `x`, `y`: rows (N, D) and (N, P).\n" in text
    assert "**Errors**\n\n- `ValueError`: if not.\n" in text
    assert "```pycon\n>>> 1 + 1\n2\n```" in text


def test_long_tables_are_folded_once_and_lose_nothing() -> None:
    head = ["| set | | value |", "|---|---|---|"]
    short, long = ([*head, *(f"| a | | {n} |" for n in range(rows))] for rows in (MOST, MOST + 1))
    text = "\n".join(["# Page", "", *short, "", "words", "", *long, ""])
    once = folded(text)
    assert once.count("<details") == 1 and "Table of 10 rows: set, value" in once
    assert folded(once) == once
    assert re.sub(r"<details.*?</summary>\n\n|\n\n</details>", "", once, flags=re.DOTALL) == text
