"""What a figure says and where it goes: files by suffix, labels of any text and on every axis, bands in legends."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from fast import few
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from test_training_plots import table

import ppl_dgp
from ppl_dgp.diagnostics.class_plots import plot_confusion, plot_reliability
from ppl_dgp.diagnostics.figures import plain_label, save_figure, shown_names
from ppl_dgp.diagnostics.layer_plots import plot_layer_draws, plot_layers
from ppl_dgp.diagnostics.layers import LayerMap
from ppl_dgp.diagnostics.plots import plot_calibration, plot_fit, plot_losses, plot_predicted
from ppl_dgp.diagnostics.predictive_plots import plot_prior_posterior
from ppl_dgp.diagnostics.sensitivity import Dependence
from ppl_dgp.diagnostics.sensitivity_plots import plot_dependence, plot_ranking
from ppl_dgp.diagnostics.training_plots import plot_convergence, plot_hyperparameters
from ppl_dgp.fit.chains import Chains
from ppl_dgp.fit.convergence import convergence_of
from ppl_dgp.prediction.predict import Prediction

DOCS = Path(__file__).parents[1] / "docs"
RNG = np.random.default_rng(0)
LINE = np.linspace(-1.0, 1.0, 30)
MEAN = np.sin(3.0 * LINE)[:, None]
ODD = "µ_$x^{2}$ <b>&\n温"


def prediction() -> Prediction:
    variance = np.full((30, 1), 0.04)
    return Prediction(MEAN, variance, MEAN, variance, ())


def field() -> LayerMap:
    side = np.linspace(-1.0, 1.0, 5)
    grid = np.stack(np.meshgrid(side, side, indexing="ij"), -1).reshape(-1, 2)
    rows, z = RNG.uniform(-1, 1, (20, 2)), RNG.uniform(-1, 1, (4, 2))

    def f(x: np.ndarray) -> np.ndarray:
        return np.stack([x[:, 0] + 10.0 * x[:, 1], x[:, 0] * x[:, 1]], 1)

    on_grid = f(grid), np.abs(f(grid))
    return LayerMap("layer2", rows, f(rows), np.abs(f(rows)), z, f(z), grid, *on_grid)


def curve() -> LayerMap:
    x = LINE[:, None]
    rest = np.ones((4, 1)), np.ones((4, 2)), x, np.ones((30, 2)), np.ones((30, 2))
    return LayerMap("layer1", x, np.ones((30, 2)), np.ones((30, 2)), *rest)


DEPENDENCE = Dependence(1, LINE, MEAN, np.full((30, 1), 0.1), MEAN + RNG.normal(size=(6, 1, 1)))
DRAWS, TICKS, FIELD = RNG.normal(size=(25, 30, 2)), RNG.normal(size=(20, 2)), field()
CHAINS = Chains(10, {"a/u": 1.02, "b": 1.0}, {"a/u": 30.0, "b": 90.0}, {"diverging": np.zeros((2, 50))})
PROBABILITIES = RNG.dirichlet(np.ones(3), 200)
FIGURES = {
    "fit": lambda: plot_fit(prediction(), LINE, LINE, MEAN, samples=DRAWS[:, :, :1], labels=(ODD, ODD)),
    "losses": lambda: plot_losses(np.linspace(9.0, 1.0, 300)),
    "calibration": lambda: plot_calibration(prediction(), MEAN, label=ODD),
    "predicted": lambda: plot_predicted(prediction(), MEAN, label=ODD),
    "layers": lambda: plot_layers([curve(), FIELD]),
    "layer-draws": lambda: plot_layer_draws(
        {"layer1": DRAWS, "f": DRAWS[..., :1]}, LINE, label=ODD, names=[ODD]
    ),
    "convergence": lambda: plot_convergence(convergence_of(1.0 / np.arange(1.0, 401.0), 0.5)),
    "chains": lambda: plot_convergence(CHAINS),
    "hyperparameters": lambda: plot_hyperparameters(table(), names={"gp/lengthscale": [ODD, "b"]}),
    "prior": lambda: plot_prior_posterior(3 * DRAWS, DRAWS, LINE, LINE, MEAN, labels=(ODD, ODD)),
    "distributions": lambda: plot_prior_posterior(3 * DRAWS, DRAWS, y=MEAN, labels=("", ODD)),
    "ranking": lambda: plot_ranking([0.1, 2.0, 0.0], [ODD, "b", "c"]),
    "dependence": lambda: plot_dependence([DEPENDENCE] * 4, ["a", ODD], label=ODD, x=TICKS),
    "reliability": lambda: plot_reliability(PROBABILITIES, np.arange(200) % 3),
    "confusion": lambda: plot_confusion(np.eye(3, dtype=int), ["a", ODD, "c"], label=ODD),
}


@pytest.mark.parametrize("name", FIGURES)
def test_every_axis_is_labelled_and_every_band_is_in_the_legend(name: str) -> None:
    figure = FIGURES[name]()
    shown = [panel for panel in figure.axes if panel.axison]
    for panel in shown:
        bar = panel.get_label() == "<colorbar>"
        beside = panel.get_shared_y_axes().get_siblings(panel)
        assert figure.get_supylabel() or any(each.get_ylabel() for each in beside), panel
        below = panel.get_shared_x_axes().get_siblings(panel)
        assert bar or any(each.get_xlabel() for each in below), panel
    bands = {
        band.get_label() for panel in shown for band in panel.collections if isinstance(band, PolyCollection)
    }
    legends = [panel.get_legend() for panel in shown] + figure.legends
    said = {text.get_text() for legend in legends if legend is not None for text in legend.get_texts()}
    assert {band for band in bands if not band.startswith("_")} <= said
    # those that repeat a named one have none of their own
    assert not bands or said & bands


@pytest.mark.parametrize("name", few(["fit", "layers", "dependence"], 0))
def test_a_figure_becomes_svg_pdf_and_png_of_200_dpi(name: str, tmp_path) -> None:
    figure = FIGURES[name]()
    for suffix in (".svg", ".pdf", ".png"):
        twice = [tmp_path / f"{number}{suffix}" for number in (1, 2)]
        for path in twice:
            save_figure(FIGURES[name](), path)
        assert twice[0].read_bytes() == twice[1].read_bytes()
    header = (tmp_path / "1.png").read_bytes()
    width, height = (int.from_bytes(header[place : place + 4], "big") for place in (16, 20))
    assert (width, height) == tuple(np.round(200 * figure.get_size_inches()).astype(int))
    assert (tmp_path / "1.pdf").read_bytes().startswith(b"%PDF")
    assert b"<text" in (tmp_path / "1.svg").read_bytes()
    with pytest.raises(ValueError, match=r"path: found suffix '.bmp', expected .svg, .pdf, .png"):
        save_figure(figure, tmp_path / "figure.bmp")


def test_a_name_of_any_characters_is_shown_as_it_is(tmp_path) -> None:
    from xml.etree import ElementTree

    figure = FIGURES["fit"]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_figure(figure, tmp_path / "figure.svg")
    found = ElementTree.parse(tmp_path / "figure.svg").iter()
    texts = ["".join(each.itertext()) for each in found if "text" in each.tag]
    assert "µ_$x^{2}$ <b>&\\n温" in texts
    assert plain_label("a" * 50) == "a" * 39 + "…"
    assert shown_names("names", None, 2, "input") == ["input 1", "input 2"]
    with pytest.raises(ValueError, match="names: found 1, expected 2; give one per input"):
        shown_names("names", ["a"], 2, "input")


def test_a_layer_of_two_inputs_is_a_field_of_its_mean() -> None:
    layer = field()
    figure = plot_layers([layer])
    panel = figure.axes[0]
    (mesh,) = [each for each in panel.collections if hasattr(each, "get_coordinates")]
    places, colours = mesh.get_coordinates().reshape(-1, 2), np.asarray(mesh.get_array()).ravel()
    # as it was made: x₁ + 10 x₂, wherever it is drawn
    np.testing.assert_allclose(colours, places[:, 0] + 10.0 * places[:, 1])
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("input 1 of layer2", "input 2 of layer2")
    said = [each.get_ylabel() for each in figure.axes if each.get_label() == "<colorbar>"]
    assert said == ["mean of output 1 of layer2", "mean of output 2 of layer2"]


def test_draws_through_layers_are_the_draws() -> None:
    shuffled = RNG.permutation(30)
    figure = plot_layer_draws({"layer1": DRAWS[:, shuffled]}, LINE[shuffled])
    lines = figure.axes[1].get_lines()
    np.testing.assert_allclose(lines[0].get_ydata(), DRAWS[0, :, 1])
    np.testing.assert_allclose(lines[-1].get_ydata(), DRAWS[:, :, 1].mean(0))
    assert isinstance(figure, Figure) and len(lines) == 21
    for draws, message in (
        ({}, "draws: found none"),
        ({"a": DRAWS[:, :5]}, re.escape("expected (S, 30, Q)")),
    ):
        with pytest.raises(ValueError, match=message):
            plot_layer_draws(draws, LINE)


def test_prior_and_posterior_have_one_scale() -> None:
    figure = plot_prior_posterior(3 * DRAWS, DRAWS, LINE, column=1)
    left, right = figure.axes
    assert left.get_ylim() == right.get_ylim()
    np.testing.assert_allclose(left.get_lines()[3].get_ydata(), 3.0 * right.get_lines()[3].get_ydata())
    below = plot_prior_posterior(DRAWS, DRAWS, y=MEAN).axes[1].get_lines()[-1]
    # half of the targets lie below their median
    np.testing.assert_allclose(np.interp(np.median(MEAN), *below.get_data()), 0.5, atol=0.02)
    for arguments, message in (
        ((DRAWS, DRAWS[:, :5], LINE), "posterior: found 5 rows, expected 30"),
        ((DRAWS[0], DRAWS), "prior: found shape"),
    ):
        with pytest.raises(ValueError, match=message):
            plot_prior_posterior(*arguments)


def test_a_ranking_is_sorted_and_a_dependence_is_its_mean() -> None:
    panel = plot_ranking([0.1, 2.0, 0.5], ["a", "b", "c"]).axes[0]
    assert [each.get_text() for each in panel.get_yticklabels()] == ["b", "c", "a"]
    np.testing.assert_array_equal(panel.get_lines()[-1].get_xdata(), [2.0, 0.5, 0.1])
    figure = plot_dependence([DEPENDENCE], ["a", "b (m)"])
    (shown,) = [each for each in figure.axes[0].get_lines() if each.get_label() == "average of f"]
    np.testing.assert_array_equal(shown.get_ydata(), MEAN[:, 0])
    assert figure.axes[0].get_xlabel() == "b (m)"
    for wrong, message in (([-1.0], "weights: found shape"), ([], "weights: found shape")):
        with pytest.raises(ValueError, match=message):
            plot_ranking(wrong)
    for arguments, message in ((([],), "dependences: found none"), (([DEPENDENCE],), "output: found 3")):
        with pytest.raises(ValueError, match=message):
            plot_dependence(*arguments, output=3)


def test_the_gallery_has_every_plot_and_every_picture() -> None:
    page = (DOCS / "plots.md").read_text(encoding="utf-8")
    assert {name for name in ppl_dgp.__all__ if name.startswith("plot_")} <= set(
        re.findall(r"\bplot_\w+", page)
    )
    pictures = re.findall(r"!\[[^]]+\]\((plots/[^)]+)\)", page)
    assert {f"plots/{path.name}" for path in (DOCS / "plots").iterdir()} == set(pictures)
