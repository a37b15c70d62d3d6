"""Pictures of series: they show the numbers they were given, in the place they say, and refuse what does not fit."""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.quiver import Quiver

from ppl_dgp.diagnostics import plot_series, plot_states, plot_transition, plot_vector_field
from ppl_dgp.gp.means import Linear
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.kernels import RBF
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.linalg import inverse_lower
from ppl_dgp.prediction.forecast import Forecast, Smoothed

RNG = np.random.default_rng(0)
SLOTS, STEPS = 12, 5


def smoothed(width):
    """Two sequences, the second from slot 7."""
    mean, deviation = RNG.normal(size=(SLOTS, width)), 0.1 + RNG.random((SLOTS, width))
    return Smoothed(mean, deviation, mean[None], np.array([0, 7]))


def transition(width, controls=0):
    z = jnp.asarray(RNG.normal(size=(6, width + controls)))
    kernel = RBF(1.0, jnp.ones(width + controls))
    whiten = inverse_lower(jnp.linalg.cholesky(kernel(z, z) + 1e-6 * jnp.eye(6)))
    u = Gaussian(jnp.asarray(RNG.normal(size=(width, 6))), 0.3 * jnp.ones((width, 6)))
    return SparseGP("transition", kernel, z, whiten, Linear(jnp.eye(width + controls, width)), u)


def lines(panel):
    return {found.get_label(): found for found in panel.get_lines()}


def bands(panel):
    """Lower and upper ends by label, in the order of x."""
    found = {}
    for each in panel.collections:
        if isinstance(each, PolyCollection) and not isinstance(each, Quiver):
            x, y = each.get_paths()[0].vertices[:-1].T
            ends = [(y[x == place].min(), y[x == place].max()) for place in np.unique(x)]
            found[each.get_label()] = np.array(ends).T
    return found


def test_states_have_a_panel_each_and_are_cut_between_sequences(tmp_path):
    given, truth = smoothed(3), RNG.normal(size=(SLOTS - 2, 3))
    figure = plot_states(given, truth, names=["a", "b", "c"])
    assert [panel.get_ylabel() for panel in figure.axes] == ["a", "b", "c"]
    for q, panel in enumerate(figure.axes):
        np.testing.assert_array_equal(lines(panel)["mean"].get_data(), [np.arange(7), given.mean[:7, q]])
        edges = bands(panel)["± 2 deviations"]
        np.testing.assert_allclose(
            edges, given.mean[:7, q] + np.array([[-2.0], [2.0]]) * given.deviation[:7, q]
        )
        # of the truth the x_0 is not known
        np.testing.assert_array_equal(lines(panel)["truth"].get_ydata(), [np.nan, *truth[:6, q]])
        assert any(list(line.get_xdata()) == [6.5, 6.5] for line in panel.get_lines())
    second = [line for line in figure.axes[0].get_lines() if list(line.get_xdata()) == list(range(7, 12))]
    np.testing.assert_array_equal(second[1].get_ydata(), [np.nan, *truth[6:, 0]])
    figure.savefig(tmp_path / "states.png")
    assert not plt.get_fignums()


def test_states_refuse_what_does_not_fit():
    with pytest.raises(ValueError, match=r"truth: found shape \(4, 2\), expected \(12, 2\), or 10 rows"):
        plot_states(smoothed(2), np.zeros((4, 2)))
    with pytest.raises(ValueError, match="names: found 1, expected 2"):
        plot_states(smoothed(2), names=["a"])


def forecast():
    samples = RNG.normal(size=(200, STEPS, 2))
    return Forecast(samples.mean(0), samples.var(0), samples, samples)


def test_series_are_followed_by_their_fan(tmp_path):
    y, given, came = RNG.normal(size=(20, 2)), forecast(), RNG.normal(size=(STEPS, 2))
    figure = plot_series(y, given, came, column=1, levels=(0.5, 0.9), shown=8, label="current")
    (panel,) = figure.axes
    drawn, ahead = lines(panel), np.arange(21, 26)
    np.testing.assert_array_equal(drawn["current"].get_data(), [np.arange(13, 21), y[12:, 1]])
    np.testing.assert_array_equal(drawn["what came"].get_data(), [ahead, came[:, 1]])
    np.testing.assert_array_equal(drawn["median"].get_data(), [ahead, np.median(given.samples[:, :, 1], 0)])
    found = bands(panel)
    assert list(found) == ["90 %", "50 %"]
    for label, ends in (("90 %", [0.05, 0.95]), ("50 %", [0.25, 0.75])):
        np.testing.assert_allclose(found[label], np.quantile(given.samples[:, :, 1], ends, axis=0))
    figure.savefig(tmp_path / "series.png")
    own = Figure()
    axes = own.subplots()
    assert plot_series(y, given, axes=axes) is own and axes.get_lines()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"column": 2}, "column: found 2, expected 0 to 1"),
        ({"levels": (1.0,)}, "levels: found"),
        ({"y_future": np.zeros((3, 2))}, "y_future: found 3 rows, expected 5"),
        ({"y_future": np.zeros(STEPS)}, "y_future: found shape"),
    ],
)
def test_series_refuse_what_does_not_fit(settings, message):
    with pytest.raises(ValueError, match=message):
        plot_series(np.zeros((20, 2)), forecast(), **settings)


@pytest.mark.slow
def test_a_transition_shows_f_at_the_controls_and_the_steps_within_sequences(tmp_path):
    f, given = transition(1, 1), smoothed(1)
    figure = plot_transition(f, given, controls=(0.7,), truth=np.cos)
    (panel,) = figure.axes
    drawn = lines(panel)
    line = np.asarray(drawn["mean of f"].get_xdata())
    marginal = f(jnp.stack([jnp.asarray(line), jnp.full(200, 0.7)], 1))
    mean, deviation = np.asarray(marginal.mean)[:, 0], np.sqrt(np.asarray(marginal.variance))[:, 0]
    np.testing.assert_allclose(drawn["mean of f"].get_ydata(), mean)
    np.testing.assert_allclose(
        bands(panel)["± 2 deviations of f"], [mean - 2 * deviation, mean + 2 * deviation]
    )
    np.testing.assert_allclose(drawn["truth"].get_ydata(), np.cos(line))
    np.testing.assert_array_equal(drawn["inducing inputs"].get_xdata(), f.inducing[:, 0])
    # on the curve, whatever the controls of the inducing inputs
    np.testing.assert_allclose(
        drawn["inducing inputs"].get_ydata(), np.interp(f.inducing[:, 0], line, mean), atol=1e-2
    )
    before = np.delete(given.mean[:-1, 0], 6), np.delete(given.mean[1:, 0], 6)
    np.testing.assert_array_equal(drawn["smoothed steps"].get_data(), before)
    figure.savefig(tmp_path / "transition.png")
    alone = plot_transition(transition(1), span=(-2.0, 3.0))
    assert alone.axes[0].get_xlim() == (-2.0, 3.0)


@pytest.mark.slow
def test_a_vector_field_points_where_f_goes(tmp_path):
    f, given = transition(2, 1), smoothed(2)
    figure = plot_vector_field(f, given, controls=(-0.4,), size=7, names=("a", "b"))
    panel = figure.axes[0]
    (arrows,) = [each for each in panel.collections if isinstance(each, Quiver)]
    at = np.stack([arrows.X, arrows.Y], 1)
    marginal = f(jnp.concatenate([jnp.asarray(at), jnp.full((49, 1), -0.4)], 1))
    moves, shown = np.asarray(marginal.mean) - at, np.stack([arrows.U, arrows.V], 1)
    np.testing.assert_allclose(moves[:, 0] * shown[:, 1], moves[:, 1] * shown[:, 0], atol=1e-9)
    assert ((moves * shown).sum(1) > 0).all()
    # the longest crosses one cell
    cells = np.ptp(at, 0) / 6
    lengths, ways = (np.linalg.norm(each / cells, axis=1) for each in (shown, moves))
    np.testing.assert_allclose(lengths, np.sqrt(ways / ways.max()))
    np.testing.assert_allclose(arrows.get_array(), np.sqrt(np.asarray(marginal.variance).mean(1)))
    drawn = lines(panel)
    np.testing.assert_array_equal(drawn["smoothed"].get_data(), given.mean[:7].T)
    np.testing.assert_array_equal(drawn["inducing inputs"].get_data(), f.inducing[:, :2].T)
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("a", "b")
    figure.savefig(tmp_path / "field.png")
    assert plot_vector_field(transition(2)).axes


def test_a_vector_field_of_three_states_holds_one():
    f, given = transition(3, 1), smoothed(3)
    panel = plot_vector_field(f, given, controls=(0.2,), held={1: 0.8}, size=4).axes[0]
    (arrows,) = [each for each in panel.collections if isinstance(each, Quiver)]
    at = np.insert(np.stack([arrows.X, arrows.Y], 1), 1, 0.8, 1)
    marginal = f(jnp.concatenate([jnp.asarray(at), jnp.full((16, 1), 0.2)], 1))
    moves, shown = (np.asarray(marginal.mean) - at)[:, [0, 2]], np.stack([arrows.U, arrows.V], 1)
    np.testing.assert_allclose(moves[:, 0] * shown[:, 1], moves[:, 1] * shown[:, 0], atol=1e-9)
    np.testing.assert_allclose(arrows.get_array(), np.sqrt(np.asarray(marginal.variance)[:, [0, 2]].mean(1)))
    drawn = lines(panel)
    np.testing.assert_array_equal(drawn["smoothed"].get_data(), given.mean[:7, [0, 2]].T)
    np.testing.assert_array_equal(drawn["inducing inputs"].get_data(), f.inducing[:, [0, 2]].T)
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("state 1", "state 3")
    with pytest.raises(ValueError, match=r"held: found dimensions \[3\], expected 1 of 0 to 2"):
        plot_vector_field(f, given, controls=(0.2,), held={3: 0.8})


def test_transitions_refuse_what_does_not_fit():
    with pytest.raises(ValueError, match="f: found 2 state dimensions, expected 1"):
        plot_transition(transition(2))
    with pytest.raises(ValueError, match="f: found 1 state dimensions, expected 2"):
        plot_vector_field(transition(1))
    with pytest.raises(ValueError, match="controls: found 0, expected 1"):
        plot_transition(transition(1, 1))
