"""The site as a reader sees it: `make docs` builds it, and a headless Chromium opens it."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from browser import Browser

ROOT = Path(__file__).parents[1]
SITE = ROOT / "site"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="found no chromium; apt-get install chromium"),
]


class Quiet(SimpleHTTPRequestHandler):
    """Says nothing of what it serves."""

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where the site is served, built anew."""
    # a make above hands on its jobs and flags
    settings = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    built = subprocess.run(["make", "docs"], cwd=ROOT, capture_output=True, text=True, env=settings)
    assert built.returncode == 0, built.stdout + built.stderr
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert CHROMIUM is not None
    with Browser(CHROMIUM, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(started: Browser) -> Browser:
    started.resize(1280, 900)
    return started


def test_a_search_finds_the_page(address: str, browser: Browser) -> None:
    browser.open(f"{address}/index.html")
    browser.value("document.querySelector('[data-md-toggle=search]').checked = true")
    browser.value("document.querySelector('.md-search__input').focus()")
    browser.command("Input.insertText", text="funnel")
    found = browser.until(
        "document.querySelector('.md-search-result__item a[href*=\"nuts\"]')?.getAttribute('href')"
    )
    browser.value("document.querySelector('.md-search-result__item a[href*=\"nuts\"]').click()")
    browser.until("location.pathname.endsWith('/priors-and-nuts.html')")
    assert "priors-and-nuts.html" in found


def test_navigation_leads_to_a_signature(address: str, browser: Browser) -> None:
    browser.open(f"{address}/index.html")
    for words, title in (("API", "API reference"), ("Objectives", "Objectives")):
        browser.value(
            "[...document.querySelectorAll('.md-tabs__link, .md-nav--primary .md-nav__link')]"
            f".find(link => link.innerText.trim() == '{words}').click()"
        )
        browser.until(f"document.querySelector('h1')?.innerText.startsWith('{title}')")
    shown = browser.value(
        "document.getElementById('ppl_dgp.objectives.closed_form.collapsed_energy').parentElement.innerText"
    )
    # shapes as they are written, errors and source
    assert 'x: Float[Array, "N D"]' in shown and "Errors" in shown
    assert "Source code in ppl_dgp/objectives/closed_form.py" in shown


def test_a_formula_is_drawn(address: str, browser: Browser) -> None:
    browser.open(f"{address}/choosing.html")
    height, fraction = browser.value(
        "(() => { const formula = document.querySelector('math[display=block]');"
        "const part = formula.querySelector('mfrac').getBoundingClientRect();"
        "return [formula.getBoundingClientRect().height, part.height]; })()"
    )
    # a fraction is taller than a line, and no LaTeX is left
    assert height > 25.0 and fraction > 20.0
    assert "\\frac" not in browser.value("document.body.innerText")


def test_dark_mode_can_be_switched_on_and_stays(address: str, browser: Browser) -> None:
    browser.command(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}]
    )
    browser.open(f"{address}/index.html")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = browser.value(colour)
    browser.value("document.querySelector('label[for=__palette_1]').click()")
    browser.until("document.body.getAttribute('data-md-color-scheme') == 'slate'")
    dark = browser.value(colour)
    browser.open(f"{address}/glossary.html")
    assert browser.value(colour) == dark != light
    browser.value("document.querySelector('label[for=__palette_0]').click()")
    browser.until("document.body.getAttribute('data-md-color-scheme') == 'default'")


def test_no_page_is_wider_than_a_phone_or_asks_anything_of_others(address: str, browser: Browser) -> None:
    browser.resize(390, 844, phone=True)
    browser.requested.clear()
    wide = {}
    for path in sorted(SITE.glob("**/*.html")):
        name = path.relative_to(SITE).as_posix()
        browser.open(f"{address}/{name}")
        width = browser.value("document.documentElement.scrollWidth")
        if width > 390:
            wide[name] = width
    assert not wide
    elsewhere = [each for each in browser.requested if not each.startswith((address, "data:", "blob:"))]
    assert browser.requested and not elsewhere
