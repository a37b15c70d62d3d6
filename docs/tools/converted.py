"""Docstrings in Markdown: formulas between dollars, fields as lists, roles as links, sessions fenced."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile

from rooms import places

ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):`~?([^`]*)`")
FORMULA = re.compile(r":math:`([^`]*)`")
FIELD = re.compile(r"^\s*:(param|ivar|returns?|raises)\s*([^:]*):\s*(.*)$")
TITLES = {
    "param": "Parameters",
    "ivar": "Attributes",
    "returns": "Returns",
    "return": "Returns",
    "raises": "Errors",
}
DISPLAYED = re.compile(r"^(\s*)\.\. math::\s*(.*)$")


def link(role: re.Match[str]) -> str:
    """A role as a link where the site shows what it names, else as code."""
    name = role[1].rsplit(".", 1)[-1]
    where = places().get(name)
    return f"[`{name}`][{where}]" if where else f"`{role[1]}`"


def fields(lines: list[str]) -> Iterator[str]:
    """The lines, what is said of parameters, attributes, results and errors as lists of their own."""
    title = None
    while lines:
        line = lines.pop(0)
        field = FIELD.match(line)
        if not field:
            title = title if not line.strip() else None
            yield line
            continue
        if TITLES[field[1]] != title:
            title = TITLES[field[1]]
            yield from ("", f"**{title}**", "")
        said = [field[3], *takewhile(lambda each: each.strip() and not FIELD.match(each), lines)]
        del lines[: len(said) - 1]
        names = ", ".join(f"`{name.strip()}`" for name in field[2].split(",") if name.strip())
        yield f"- {names}{': ' if names else ''}{' '.join(each.strip() for each in said)}"


def lines_of(text: str) -> Iterator[str]:
    """The lines, displayed formulas between dollars, sessions of the interpreter fenced."""
    lines = text.splitlines()
    while lines:
        line = lines.pop(0)
        if formula := DISPLAYED.match(line):
            indent = formula[1]
            deeper = re.compile(rf"$|{indent} ")
            inside = [formula[2], *takewhile(deeper.match, lines)]
            del lines[: len(inside) - 1]
            shown = "\n".join(each.strip() for each in inside if each.strip())
            shown = rf"\begin{{aligned}}{shown}\end{{aligned}}" if r"\\" in shown else shown
            yield from ("", f"{indent}$$", *(indent + each for each in shown.splitlines()), f"{indent}$$", "")
        elif line.lstrip().startswith(">>>"):
            indent = line[: len(line) - len(line.lstrip())]
            inside = [line, *takewhile(lambda each: each.strip(), lines)]
            del lines[: len(inside) - 1]
            yield from (f"{indent}```pycon", *inside, f"{indent}```")
        else:
            yield line


def markdown(text: str) -> str:
    """A docstring in Markdown.

    :param text: the docstring, its indentation removed.
    """
    return ROLE.sub(link, FORMULA.sub(r"$\1$", "\n".join(fields(list(lines_of(text))))))
