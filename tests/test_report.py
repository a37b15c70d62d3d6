"""The page of a run: whole in one file, nobody's text is markup, and a browser shows all of it, on a phone too."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from browser import Browser

from ppl_dgp.cli import html, main, names, run_directory
from ppl_dgp.cli.classes import CLASS_LIKELIHOODS
from ppl_dgp.cli.equations import KERNEL_FORMULAS, LIKELIHOOD_FORMULAS, mathml, model_equations
from ppl_dgp.cli.errors import BadInput
from ppl_dgp.cli.report_page import data_section, figures_of, hyperparameters_section
from ppl_dgp.cli.report_words import CAPTIONS
from ppl_dgp.cli.run_directory import Record
from ppl_dgp.cli.settings import Settings
from ppl_dgp.cli.table_units import named_maps
from ppl_dgp.data import Standardiser
from ppl_dgp.diagnostics import LayerMap, save_figure
from ppl_dgp.diagnostics.hyperparameters import summary
from ppl_dgp.diagnostics.plots import plot_losses
from ppl_dgp.fit import Posterior

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ODD, TARGET = "<img src=x onerror=alert(1)> $a$ & b", "force (N)"
#: of an exact GP, which has no layers
SECTIONS = ["Advice", "Metrics", "Data", "Model", "Convergence", "Figures", "Hyperparameters", "Settings"]


class Page(HTMLParser):
    """Headings, tags, addresses and text of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.names: list[str] = []
        self.headings: list[str] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "xlink:href"):
                self.addresses.append(value or "")
            if name == "id":
                self.names.append(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.tags and self.tags[-1] == "h2":
            self.headings.append(data)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.0, 1.0, (40, 2))
    path = tmp_path_factory.mktemp("data") / "rows <b>.csv"
    y = 100.0 * np.sin(3.0 * x[:, 0]) + rng.normal(size=40)
    pd.DataFrame({ODD: 10.0 * x[:, 0], "mass (kg)": x[:, 1], TARGET: y}).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def run(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exact GP, which compiles little."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert (
        main(["fit", str(table), "--model", "gp", "--out", str(folder), "--quiet", "--figures", "svg, png"])
        == 0
    )
    return folder


@pytest.fixture(scope="module")
def report(run: Path) -> Path:
    assert main(["report", str(run)]) == 0
    return run / "report.html"


def test_a_report_is_one_file_with_every_section(report: Path) -> None:
    page = Page(report)
    assert page.headings == SECTIONS
    assert not {"script", "link", "iframe", "object", "form"} & set(page.tags)
    assert all(each.startswith(("#", "data:image/png;base64,")) for each in page.addresses)
    assert len(page.names) == len(set(page.names))
    assert {"fit", "states"}.isdisjoint(page.names)
    assert {"losses", "predicted", "calibration", "ranking", "prior", "dependence", "hyperparameters"} <= set(
        page.names
    )
    # every address within the page leads somewhere
    assert {each[1:] for each in page.addresses if each.startswith("#")} <= set(page.names)
    assert page.tags.count("math") == len(model_equations(Settings(model="gp")))


def test_nobodys_text_is_markup(report: Path) -> None:
    source = report.read_text(encoding="utf-8")
    assert "<img src=x" not in source and "rows <b>" not in source
    page = Page(report)
    assert ODD in page.text and "rows <b>.csv" in page.text and TARGET in page.text
    assert page.tags.count("img") == 0


def test_a_report_says_what_the_run_has_found(run: Path, report: Path) -> None:
    record, page = run_directory.read(run), Page(report)
    shown = page.text.replace("−", "-")
    for name in ("elbo", "test_rmse", "coverage95", "seconds"):
        assert f"{record.result[name]:.6g}" in shown, name
    params, _ = run_directory.load_parameters(run)
    assert all(f"{float(each):.6g}" in shown for each in np.ravel(params["gp/lengthscale"]))
    assert names.MODELS["gp"] in page.text and names.KERNEL_HELP["rbf"] in page.text
    for each in record.result["advice"]:
        assert each in page.text


def test_a_report_elsewhere_and_its_refusals(run: Path, tmp_path: Path, capsys, refuses) -> None:
    refuses(["report", str(tmp_path)], "is not a run directory")
    there = tmp_path / "there.html"
    there.write_text("mine")
    refuses(["report", str(run), "--out", str(there)], "exists", "name a file that does not")
    begun = tmp_path / "begun"
    shutil.copytree(run, begun)
    values = json.loads((begun / "config.json").read_text())
    (begun / "config.json").write_text(json.dumps(values | {"status": "interrupted"}))
    refuses(["report", str(begun)], "is not done", "--resume")
    (begun / "config.json").write_text(json.dumps(values))
    (begun / "figures" / "losses.svg").write_text("<svg")
    refuses(["report", str(begun)], "figure losses is no SVG", "remove it, or fit again")


def test_figures_are_written_as_asked(run: Path, table: Path, refuses) -> None:
    stems = {path.stem for path in (run / "figures").iterdir()}
    assert {path.name for path in (run / "figures").iterdir()} == {
        f"{s}.{x}" for s in stems for x in ("svg", "png")
    }
    assert "convergence" in stems and stems <= set(CAPTIONS)
    drawn = (run / "figures" / "predicted.svg").read_text(encoding="utf-8")
    assert f"observed {TARGET}" in drawn
    refuses(["fit", str(table), "--figures", "svg,jpg"], "--figures is 'jpg', which is unknown", "png")


def test_a_drawing_from_elsewhere_brings_nothing_but_drawing() -> None:
    source = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="72pt" onload="a()">'
        '<script>alert(1)</script><foreignObject/><a href="https://e.org"><path d="M0 0"/></a><style>*{x:y}</style>'
        '<image href="https://e.org/x.png"/><use xlink:href="#m"/><g id="m" clip-path="url(#c)" style="fill: #ffffff"/>'
        "</svg>"
    )
    drawing, width = html.inline_svg(source, "losses")
    assert width == 96.0
    assert not re.search(r"script|foreign|<a\b|e\.org|onload|x:y", drawing)
    root = ElementTree.fromstring(drawing)
    use, group = (next(root.iter(f"{{{html.SVG}}}{tag}")) for tag in ("use", "g"))
    assert use.get(f"{{{html.XLINK}}}href") == "#losses-m" and group.get("id") == "losses-m"
    assert group.get("clip-path") == "url(#losses-c)" and group.get("style") == "fill: var(--paper)"
    for wrong in ("<svg", "<p/>"):
        with pytest.raises(BadInput, match="figure losses is no SVG"):
            html.inline_svg(wrong, "losses")


def test_figures_come_as_svg_else_as_png_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    for name in ("losses.png", "losses.svg", "own.png", "predicted.svg", "forecast-2.svg"):
        save_figure(plot_losses(np.arange(9.0)), tmp_path / "figures" / name)
    found = figures_of(tmp_path)
    assert list(found) == ["forecast-2", "predicted", "losses", "own"]
    assert "<svg" in found["losses"] and "data:image/png;base64," in found["own"]


def test_text_and_tables_are_escaped_and_numbers_stand_to_the_right() -> None:
    found = html.table(("<a>", "n"), [("x & y", 1.5), ("\n", None)])
    assert "&lt;a&gt;" in found and "x &amp; y" in found and "\\n" in found
    assert (
        '<th class="n">n</th>' in found
        and '<td class="n">1.5</td>' in found
        and '<td class="n">–</td>' in found
    )
    assert html.text(-0.25) == "−0.25" and html.text(True) == "yes" and html.text(1234567.0) == "1.23457e+06"


def test_every_model_kernel_and_likelihood_has_an_equation() -> None:
    assert set(KERNEL_FORMULAS) == set(names.KERNEL_HELP)
    assert set(LIKELIHOOD_FORMULAS) == set(names.LIKELIHOOD_HELP | names.OWN_SCALE | CLASS_LIKELIHOODS)
    for model in names.MODELS:
        settings = Settings(model=model, latent=2, kernel="rbf+linear*periodic", blocks="bayesian:20,gp")
        lines = model_equations(settings)
        for line in lines:
            ElementTree.fromstring(mathml(line))
        assert any("k = k_{1} + k_{2} · k_{3}" in line for line in lines) == (model != "convolved-gp")
    deep = model_equations(Settings(widths=(3, 2)))
    assert [line for line in deep if "h_n^{(2)} = f^{(2)}(h_n^{(1)})" in line] and "f(h_n^{(2)})" in deep[-3]


def test_labels_have_no_mean_their_functions_their_names_and_long_tables_are_folded() -> None:
    settings, one = Settings(model="sparse-gp", likelihood="softmax"), Standardiser(np.zeros(1), np.ones(1))
    labels = ("cat", "dog", "eel")
    record = Record(settings, "t.csv", "0" * 64, ("a",), ("kind",), one, one, 3, 0, labels=labels)
    assert re.search(r"<td>kind</td><td>label</td><td class=.n.>–</td>", data_section(record))
    timed = Record(Settings(model="gpssm", step_column="a"), "t.csv", "", ("a",), ("y",), one, one, 3, 0)
    assert re.search(r"<td>a</td><td>time of a step</td><td class=.n.>1</td>", data_section(timed))
    rows, outputs = np.zeros((4, 1)), np.zeros((4, 3))
    (layer,) = named_maps([LayerMap("gp", rows, outputs, outputs, rows, outputs)], record)
    assert layer.output_names == labels and layer.input_names == ("a",)
    # principal components at which latents begin are no hyperparameters
    params = {"gp/variance": jnp.ones(()), "x/components": jnp.ones((2, 5)), "gp/lengthscale": jnp.ones(40)}
    table = summary(Posterior(jnp.sin, jnp.sin, params))
    assert set(table.index.get_level_values(1)) == {"variance", "lengthscale"}
    assert "<summary>All 41 values</summary>" in hyperparameters_section(table)
    assert "<summary>" not in hyperparameters_section(table[:30])


def test_equations_set_below_and_above_what_the_notation_says() -> None:
    root = ElementTree.fromstring(mathml("h_n^{(1)} = x′_np + 2σ^2 of rows"))
    (both,) = root.iter("msubsup")
    assert ["".join(each.itertext()) for each in both] == ["h", "n", "(1)"]
    (below,) = root.iter("msub")
    assert ["".join(each.itertext()) for each in below] == ["x′", "np"] and len(below[1]) == 2
    assert [each.text for each in root.iter("mn")] == ["1", "2", "2"]
    assert [each.text.strip() for each in root.iter("mtext")] == ["of", "rows"]


@pytest.mark.slow
def test_a_comparison_is_one_page(table: Path, tmp_path: Path, refuses, capsys) -> None:
    out = tmp_path / "page.html"
    fits = ["--model", "gp,sparse-gp", "--inducing", "5", "--steps", "20", "--out", str(tmp_path / "runs")]
    assert main(["compare", str(table), *fits, "--quiet", "--html", str(out)]) == 0
    page = Page(out)
    frame = pd.read_csv(tmp_path / "runs" / "comparison.csv", index_col=0)
    assert page.headings[:2] == ["Comparison", "Advice"] and set(frame.index) == set(page.headings[2:])
    shown = page.text.replace("−", "-")
    assert all(f"{value:.6g}" in shown for value in frame["test_rmse"])
    assert "comparison" in page.names and (tmp_path / "runs" / "comparison.svg").is_file()
    capsys.readouterr()
    refuses(["compare", str(table), *fits, "--html", str(out)], "--html", "exists")
    # a run of it has the comparison in its report
    assert main(["report", str(tmp_path / "runs" / "gp")]) == 0
    assert "Comparison" in Page(tmp_path / "runs" / "gp" / "report.html").headings


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="found no chromium; apt-get install chromium")
def test_chromium_shows_a_report_whole_and_asks_for_nothing(table: Path, tmp_path: Path) -> None:
    deep = ["--model", "deep-gp", "--widths", "2", "--inducing", "8", "--steps", "60", "--restarts", "2"]
    assert main(["fit", str(table), *deep, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")]) == 0
    address = (tmp_path / "page.html").as_uri()
    with Browser(CHROMIUM, tmp_path / "profile") as browser:
        browser.command("Log.enable")
        for width, phone in ((1280, False), (390, True)):
            browser.resize(width, 844, phone=phone)
            browser.requested.clear()
            browser.open(address)
            assert {each for each in browser.requested if not each.startswith("data:")} == {address}
            assert browser.value("document.documentElement.scrollWidth") <= width
            sizes = browser.value(
                "[...document.querySelectorAll('figure')].map(each => { const drawn = each.querySelector('svg, img');"
                "const box = drawn.getBoundingClientRect(); return [each.id, box.width, box.height]; })"
            )
            assert {"layers", "layer-draws", "dependence", "prior", "hyperparameters"} <= {
                each[0] for each in sizes
            }
            assert all(w > 200 and h > 60 for _, w, h in sizes), sizes
            # letters are to be read
            smallest = browser.value(
                "Math.min(...[...document.querySelectorAll('figure svg text')]"
                ".map(each => each.getBoundingClientRect().height))"
            )
            assert smallest >= 6.0
        assert browser.logged == []
        light = browser.value("getComputedStyle(document.body).backgroundColor")
        scheme = {"name": "prefers-color-scheme", "value": "dark"}
        browser.command("Emulation.setEmulatedMedia", features=[scheme])
        assert browser.value("getComputedStyle(document.body).backgroundColor") != light
