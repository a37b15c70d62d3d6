"""Pictures of latents: they show the numbers they were given, in the place they say, and refuse what does not fit."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.collections import EllipseCollection, LineCollection, PathCollection
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure

from ppl_dgp.diagnostics import plot_grid, plot_latents, plot_relevance, plot_views
from ppl_dgp.diagnostics.figures import COLOURS, FAINT

RNG = np.random.default_rng(0)
ROWS = 30
MEAN = RNG.normal(size=(ROWS, 4))
LABELS = np.arange(ROWS) % 3


def bars(figure):
    return [[bar.get_height() for bar in group] for group in figure.axes[0].containers]


def ticks(figure):
    return [tick.get_text() for tick in figure.axes[0].get_xticklabels()]


def drawn(figure, kind):
    return [found for found in figure.axes[0].collections if isinstance(found, kind)]


def dots(figure):
    return {found.get_label(): np.asarray(found.get_offsets()) for found in drawn(figure, PathCollection)}


def test_relevance_has_a_bar_per_dimension_as_given_and_grey_ones_that_are_off(tmp_path):
    given = [0.3, 2.0, 0.0, 0.019]
    figure = plot_relevance(given)
    assert bars(figure) == [given]
    assert ticks(figure) == ["1", "2", "3", "4"]
    colours = [to_hex(bar.get_facecolor(), keep_alpha=False) for bar in figure.axes[0].patches]
    assert [colour.upper() for colour in colours] == [*[COLOURS[0]] * 2, *[FAINT] * 2]
    (level,) = figure.axes[0].get_lines()
    np.testing.assert_allclose(level.get_ydata(), 0.02)
    figure.savefig(tmp_path / "relevance.png")
    assert not plt.get_fignums()


def test_relevance_takes_names_and_axes():
    figure = Figure()
    panel = figure.subplots()
    assert plot_relevance(np.ones(2), names=["width", "slant of strokes"], axes=panel) is figure
    assert ticks(figure) == ["width", "slant of strokes"]


@pytest.mark.parametrize("labels", [LABELS, np.array(["oil", "water", "gas"])[LABELS]])
def test_latents_are_drawn_by_class(tmp_path, labels):
    figure = plot_latents(MEAN, labels=labels)
    found = dots(figure)
    assert list(found) == [str(name) for name in np.unique(labels)]
    for name, points in found.items():
        np.testing.assert_array_equal(points, MEAN[labels.astype(str) == name][:, :2])
    legend = figure.axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == list(found)
    colours = [to_hex(each.get_facecolor()[0]).upper() for each in drawn(figure, PathCollection)]
    assert colours == list(COLOURS[:3])
    figure.savefig(tmp_path / "latents.png")
    assert not plt.get_fignums()


def test_the_most_relevant_latents_are_drawn_unless_others_are_asked_for():
    relevance = [0.1, 0.9, 0.0, 1.0]
    figure = plot_latents(MEAN, relevance=relevance)
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("latent 4", "latent 2")
    np.testing.assert_array_equal(dots(figure)["rows"], MEAN[:, [3, 1]])
    assert figure.axes[0].get_legend() is None
    figure = plot_latents(MEAN, relevance=relevance, dimensions=(2, 0), names=list("abcd"))
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("c", "a")
    np.testing.assert_array_equal(dots(figure)["rows"], MEAN[:, [2, 0]])


def test_ellipses_of_cholesky_factors_are_contours_of_the_marginal():
    lower = np.tril(RNG.normal(size=(ROWS, 4, 4)))
    figure = plot_latents(MEAN, lower, LABELS, dimensions=(1, 3), deviations=2.0)
    (found,) = drawn(figure, EllipseCollection)
    np.testing.assert_array_equal(found.get_offsets(), MEAN[:, [1, 3]])
    covariance = (lower @ lower.transpose(0, 2, 1))[:, [[1], [3]], [1, 3]]
    angle = np.radians(found.get_angles())
    for at, length in ((angle, found.get_widths()), (angle + np.pi / 2, found.get_heights())):
        ends = np.stack([np.cos(at), np.sin(at)], 1) * length[:, None] / 2
        # the ends of both axes are two standard deviations away: Δᵀ C⁻¹ Δ = 4
        np.testing.assert_allclose(
            np.einsum("ni,nij,nj->n", ends, np.linalg.inv(covariance), ends), 4.0, rtol=1e-8
        )
    colours = [to_rgba(COLOURS[label])[:3] for label in LABELS]
    np.testing.assert_allclose(found.get_facecolor()[:, :3], colours)


def test_ellipses_lie_inside_the_panel_and_are_thinned_out(tmp_path):
    mean, scale = RNG.normal(size=(2000, 2)), np.full((2000, 2), [3.0, 0.1])
    figure = plot_latents(mean, scale)
    (found,) = drawn(figure, EllipseCollection)
    assert len(found.get_offsets()) == 500
    kept = np.asarray(found.get_offsets())
    np.testing.assert_array_equal(kept[[0, -1]], mean[[0, -1]])
    np.testing.assert_allclose(np.sort([found.get_widths(), found.get_heights()], 0)[:, 7], [0.2, 6.0])
    low, high = figure.axes[0].get_xlim()
    assert low < kept[:, 0].min() - 3.0 and high > kept[:, 0].max() + 3.0
    figure.savefig(tmp_path / "many.png")


def test_one_latent_is_drawn_over_the_row_number():
    figure = plot_latents(MEAN[:, :1], 0.5 * np.ones((ROWS, 1)))
    np.testing.assert_array_equal(dots(figure)["rows"], np.stack([np.arange(1, ROWS + 1), MEAN[:, 0]], 1))
    (found,) = drawn(figure, LineCollection)
    ends = np.array([segment[:, 1] for segment in found.get_segments()])
    np.testing.assert_allclose(ends, MEAN[:, :1] + [-0.5, 0.5])
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("row", "latent 1")
    assert plot_latents(MEAN, dimensions=(2,)).axes[0].get_ylabel() == "latent 3"


@pytest.mark.parametrize("count", [6, 7, 10, 20])
def test_classes_have_colours_of_their_own(count):
    figure = plot_latents(MEAN, labels=np.arange(ROWS) % count)
    assert len({tuple(each.get_facecolor()[0]) for each in drawn(figure, PathCollection)}) == count


def test_grid_has_the_first_latent_rightwards_and_the_second_upwards(tmp_path):
    decoded = RNG.normal(size=(3, 2, 20))
    figure = plot_grid(decoded, (4, 5), extent=(-2.0, 2.0, 0.0, 1.0), names=["latent 3", "latent 1"])
    (image,) = figure.axes[0].get_images()
    shown = np.asarray(image.get_array())
    assert shown.shape == (2 * 4, 3 * 5)
    for g in range(3):
        for h in range(2):
            tile = shown[4 * (1 - h) : 4 * (2 - h), 5 * g : 5 * (g + 1)]
            np.testing.assert_array_equal(tile, decoded[g, h].reshape(4, 5))
    panel = figure.axes[0]
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("latent 3, from −2 to 2", "latent 1, from 0 to 1")
    assert not len(panel.get_xticks()) and not len(panel.get_yticks())
    figure.savefig(tmp_path / "grid.png")


def test_grid_of_colours():
    decoded = RNG.uniform(size=(2, 2, 12))
    (image,) = plot_grid(decoded, (2, 2, 3)).axes[0].get_images()
    np.testing.assert_array_equal(np.asarray(image.get_array())[:2, 2:], decoded[1, 1].reshape(2, 2, 3))


def test_views_are_grouped_and_told_shared_private_or_off(tmp_path):
    relevance = np.array([[2.0, 1.0, 0.0, 0.02], [5.0, 0.05, 4.0, 0.0]])
    figure = plot_views(relevance, ["image", "pose"])
    np.testing.assert_allclose(bars(figure), relevance / [[2.0], [5.0]])
    assert ticks(figure) == ["1\nshared", "2\nprivate to\nimage", "3\nprivate to\npose", "4\noff"]
    texts = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert texts == ["image", "pose", "1 % of the largest"]
    assert ticks(plot_views(relevance, threshold=0.005))[1::2] == ["2\nshared", "4\nprivate to\nview 1"]
    figure.savefig(tmp_path / "views.png")


def test_views_may_say_themselves_what_they_use_and_three_may_share_in_part():
    used = [[True, False], [True, True], [False, True]]
    figure = plot_views(np.ones((3, 2)), shared=used)
    assert ticks(figure) == ["1\nshared by\nview 1,\nview 2", "2\nshared by\nview 2,\nview 3"]
    # a view that uses nothing has no largest
    assert bars(plot_views([[1.0, 0.5], [0.0, 0.0]])) == [[1.0, 0.5], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plot_relevance(np.ones((2, 2))), r"relevance: found shape \(2, 2\), expected \(Q,\)"),
        (lambda: plot_relevance([1.0, -0.5]), "relevance: found -0.5"),
        (lambda: plot_relevance([1.0, np.nan]), "relevance: found nan"),
        (lambda: plot_relevance(np.ones(3), names=["a"]), "names: found 1, expected 3"),
        (lambda: plot_latents(MEAN[:, 0]), r"mean: found shape \(30,\), expected \(N, Q\)"),
        (lambda: plot_latents(MEAN, np.ones((ROWS, 3))), r"scale: found shape \(30, 3\)"),
        (lambda: plot_latents(MEAN, labels=LABELS[:5]), r"labels: found shape \(5,\), expected \(30,\)"),
        (lambda: plot_latents(MEAN, labels=np.arange(ROWS)), "labels: found 30 classes"),
        (lambda: plot_latents(MEAN, dimensions=(1, 4)), r"dimensions: found \(1, 4\)"),
        (lambda: plot_latents(MEAN, dimensions=(1, 1)), r"dimensions: found \(1, 1\)"),
        (lambda: plot_latents(MEAN, relevance=[1.0, 2.0]), "relevance: found 2 values, expected 4"),
        (lambda: plot_grid(np.ones((3, 2, 20)), (4, 4)), r"decoded: found shape \(3, 2, 20\)"),
        (lambda: plot_grid(np.ones((6, 20)), (4, 5)), r"expected \(G, H, 20\)"),
        (lambda: plot_grid(np.ones((3, 2, 20)), (20,)), r"image_shape: found \(20,\)"),
        (lambda: plot_views(np.ones(3)), r"relevance: found shape \(3,\), expected \(V, Q\)"),
        (lambda: plot_views(np.ones((2, 3)), ["a"]), "names: found 1, expected 2; give one per view"),
        (lambda: plot_views(np.ones((2, 3)), shared=[True] * 3), r"shared: found shape \(3,\)"),
        (lambda: plot_views(np.ones((2, 3)), threshold=1.5), "threshold: found 1.5"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(draw, message):
    with pytest.raises(ValueError, match=message) as caught:
        draw()
    assert "\n" not in str(caught.value)
    assert ";" in str(caught.value)
