"""Pages that are one file: text escaped, figures within, nothing fetched from anywhere, light or dark as they like."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from xml.etree import ElementTree

from ppl_dgp.cli.errors import BadInput

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
#: of a drawing's width, the share down to which it shrinks with the page: its letters are to be read
SMALLEST = 0.7
#: what a drawing may be made of; scripts, links and foreign pages are left out
PICTURES = {
    *(
        "svg",
        "g",
        "defs",
        "path",
        "use",
        "text",
        "tspan",
        "rect",
        "circle",
        "ellipse",
        "line",
        "polyline",
        "polygon",
    ),
    *(
        "clipPath",
        "image",
        "style",
        "title",
        "desc",
        "symbol",
        "marker",
        "linearGradient",
        "radialGradient",
        "stop",
    ),
}
#: of matplotlib's drawings: the paper and the ink, which are the page's own
OWN_COLOURS = {"#ffffff": "var(--paper)", "#000000": "currentColor", "#333333": "currentColor"}

#: no script runs, and nothing is asked of any other address
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1f2328; --faint: #6a737d; --line: #d8dee4; --box: #f6f8fa;
  --mark: #0b5fa5; --warn: #fff4ce; --warn-line: #d4a72c; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --ink: #e3e6e9; --faint: #9aa3ab; --line: #343b42;
  --box: #1d2227; --mark: #79b8ff; --warn: #33290b; --warn-line: #9e7b1c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem 1rem 3rem; max-width: 62rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0.4rem 0 0.2rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 0.6rem; padding-bottom: 0.2rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.4rem 0 0.4rem; }
p { margin: 0.5rem 0; } .faint, figcaption, caption { color: var(--faint); font-size: 0.9rem; }
a { color: var(--mark); }
nav { display: flex; flex-wrap: wrap; gap: 0.2rem 0.9rem; margin: 0.8rem 0; font-size: 0.9rem; }
.wide { overflow-x: auto; max-width: 100%; }
td:first-child { white-space: nowrap; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; margin: 0.4rem 0; }
th, td { padding: 0.25rem 0.7rem 0.25rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; } td.n, th.n { text-align: right; } td.n { white-space: nowrap; } td.best { font-weight: 700; }
figure { margin: 1rem 0 1.6rem; } figure svg, figure img { display: block; width: 100%; height: auto; }
figcaption { margin-top: 0.3rem; } .tiles { display: flex; flex-wrap: wrap; gap: 0.6rem; margin: 0.6rem 0; }
.tile { border: 1px solid var(--line); background: var(--box); border-radius: 0.4rem; padding: 0.5rem 0.8rem; }
.tile b { display: block; font-size: 1.15rem; } .tile span { color: var(--faint); font-size: 0.82rem; }
.advice { background: var(--warn); border-left: 0.3rem solid var(--warn-line); padding: 0.5rem 0.8rem;
  margin: 0.5rem 0; }
caption { text-align: left; padding: 0.2rem 0; }
math { font-size: 1.05em; } .equation { overflow-x: auto; padding: 0.2rem 0 0.2rem 0.8rem; }
details { margin: 0.6rem 0; } summary { cursor: pointer; font-weight: 600; }
@media print { body { max-width: none; padding: 0; font-size: 10pt; } nav { display: none; }
  figure, table, .tile, .advice { break-inside: avoid; } h2, h3 { break-after: avoid; } .wide { overflow: visible; } }
@media print { :root { --paper: #ffffff; --ink: #000000; --faint: #444444; --line: #bbbbbb; --box: #ffffff; } }
"""


def text(value: object) -> str:
    """A value as it is read: escaped, nothing unprintable, numbers to six figures."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    shown = f"{value:.6g}".replace("-", "−") if isinstance(value, float) else str(value)
    return escape("".join(c if c.isprintable() else repr(c)[1:-1] for c in shown))


def table(head: Sequence[object], rows: Iterable[Sequence[object]], caption: str | None = None) -> str:
    """A table that scrolls by itself where it is wider than the page; columns of numbers stand to the right."""
    cells = [list(row) for row in rows]
    numbers = [
        bool(cells)
        and all(isinstance(row[c], float | int | None) and not isinstance(row[c], bool) for row in cells)
        for c in range(len(head))
    ]

    def line(tag: str, row: Sequence[object]) -> str:
        marks = (' class="n"' if number else "" for number in numbers)
        return (
            "<tr>"
            + "".join(f"<{tag}{m}>{text(v)}</{tag}>" for m, v in zip(marks, row, strict=True))
            + "</tr>"
        )

    said = "" if caption is None else f"<caption>{text(caption)}</caption>"
    body = "".join(line("td", row) for row in cells)
    return (
        f'<div class="wide"><table>{said}<thead>{line("th", head)}</thead><tbody>{body}</tbody></table></div>'
    )


def figure(name: str, drawing: str, caption: str, width: float | None = None) -> str:
    """A drawing with what it shows below it, no larger than it was made; where the page is narrower it scrolls.

    :param width: of the drawing, in CSS pixels.
    """
    most = "" if width is None else f' style="max-width:{width:.0f}px;min-width:{SMALLEST * width:.0f}px"'
    return (
        f'<figure id="{escape(name)}"><div class="wide"><div{most}>{drawing}</div></div>'
        f"<figcaption>{text(caption)}</figcaption></figure>"
    )


def inline_svg(source: str, name: str) -> tuple[str, float | None]:
    """A drawing as a part of a page, and its width in CSS pixels: colours of paper and ink the page's, names its own.

    :param name: before all identifiers, which another drawing may have as well.
    :raises BadInput: if it is none.
    """
    try:
        root = ElementTree.fromstring(source)
    except ElementTree.ParseError as error:
        raise BadInput(f"figure {name} is no SVG ({error})", "remove it, or fit again") from None
    if root.tag != f"{{{SVG}}}svg":
        raise BadInput(f"figure {name} is no SVG", "remove it, or fit again")
    points = re.fullmatch(r"([0-9.]+)pt", root.get("width", ""))
    _clean(root, name)
    for attribute in ("width", "height"):
        root.attrib.pop(attribute, None)
    root.set("role", "img")
    root.set("aria-label", name)
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    drawing = ElementTree.tostring(root, encoding="unicode")
    return drawing, None if points is None else float(points[1]) * 4.0 / 3.0


def image(path: Path) -> str:
    """A PNG as a part of a page."""
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<img alt="{escape(path.stem)}" src="data:image/png;base64,{data}">'


def page(title: str, sections: Sequence[tuple[str, str]], introduction: str) -> str:
    """The whole page: sections by their headings, which are listed first; those that are empty are left out.

    :param introduction: HTML between the title and the list.
    """
    kept = [(heading, body) for heading, body in sections if body]
    links = "".join(f'<a href="#section-{n}">{text(heading)}</a>' for n, (heading, _) in enumerate(kept))
    bodies = "".join(
        f'<section id="section-{n}"><h2>{text(heading)}</h2>{body}</section>'
        for n, (heading, body) in enumerate(kept)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><h1>{text(title)}</h1>{introduction}<nav>{links}</nav>{bodies}</body></html>\n"
    )


def _clean(element: ElementTree.Element, name: str) -> None:
    """Leave out what is no drawing, and make identifiers and colours those of this place."""
    for child in list(element):
        kind = child.tag.rpartition("}")[2] if isinstance(child.tag, str) else ""
        if kind not in PICTURES:
            element.remove(child)
        else:
            _clean(child, name)
    for key, value in list(element.attrib.items()):
        plain = key.rpartition("}")[2]
        if (
            plain == "href"
            and not value.startswith(("#", "data:image/png;base64,"))
            or plain.startswith("on")
        ):
            del element.attrib[key]
        elif plain == "id":
            element.set(key, f"{name}-{value}")
        elif plain == "href" and value.startswith("#"):
            element.set(key, f"#{name}-{value[1:]}")
        else:
            element.set(key, _coloured(value).replace("url(#", f"url(#{name}-"))
    if element.tag == f"{{{SVG}}}style":
        # which would be that of the whole page: matplotlib's says how lines join, and that is all
        element.text = None
        element.set("hidden", "")
    if element.tag == f"{{{SVG}}}text" and "fill" not in element.get("style", ""):
        element.set("fill", "currentColor")
    if element.tag == f"{{{SVG}}}svg":
        element.set("style", "stroke-linejoin:round;stroke-linecap:butt")


def _coloured(value: str) -> str:
    for found, own in OWN_COLOURS.items():
        value = value.replace(found, own)
    return value
