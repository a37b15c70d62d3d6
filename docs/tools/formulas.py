"""Formulas as MathML, made when the site is built: no script, no fonts, no network when it is read."""

from __future__ import annotations

import html as escapes
import re

from latex2mathml.converter import convert

MARKED = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def with_formulas(html: str, page: str) -> str:
    """A page with its formulas in MathML.

    html: as Markdown's extension arithmatex leaves it, LaTeX between marks. page: its name, for errors.
    """

    def shown(found: re.Match[str]) -> str:
        tag, opened, latex = found.groups()
        display = "block" if opened == "[" else "inline"
        try:
            inside = convert(escapes.unescape(latex).strip(), display=display)
        except Exception as error:
            raise ValueError(
                f"{page}: found a formula {latex!r}, expected LaTeX that latex2mathml reads"
            ) from error
        return f'<{tag} class="formula">{inside}</{tag}>'

    return MARKED.sub(shown, html)
