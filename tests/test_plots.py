"""Pictures: they show the numbers they were given, save without a display, and refuse what does not fit."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure

from ppl_dgp.diagnostics.layer_plots import plot_layers
from ppl_dgp.diagnostics.layers import LayerMap
from ppl_dgp.diagnostics.plots import plot_calibration, plot_fit, plot_losses, plot_predicted
from ppl_dgp.prediction.predict import Prediction

RNG = np.random.default_rng(0)
ROWS = 400
X = np.linspace(-1, 1, ROWS)


def gaussian(mean, deviation, samples=None):
    mean = np.broadcast_to(mean, (ROWS, 1))
    variance = np.full((ROWS, 1), deviation**2)
    return Prediction(mean, variance, mean, variance, levels=(), samples=samples)


def line(figure, label):
    return next(found for found in figure.axes[0].get_lines() if found.get_label() == label)


def layer(inputs, outputs):
    shape = (7, inputs)
    grid = {} if inputs > 1 else dict(grid=X[:, None], grid_mean=np.ones((ROWS, outputs)))
    if grid:
        grid["grid_deviation"] = np.ones((ROWS, outputs))
    rows = RNG.normal(size=(20, outputs))
    inducing = np.ones(shape), np.ones((7, outputs))
    return LayerMap("layer1", RNG.normal(size=(20, inputs)), rows, rows**2, *inducing, **grid)


def test_fit_shows_the_mean_in_order_of_x_and_leaves_pyplot_alone(tmp_path):
    shuffled = RNG.permutation(ROWS)
    prediction = gaussian(np.sin(X[shuffled])[:, None], 0.1)
    figure = plot_fit(prediction, X[shuffled], X, np.sin(X), samples=np.zeros((3, ROWS, 1)))
    shown = line(figure, "mean")
    np.testing.assert_allclose(shown.get_xdata(), X)
    np.testing.assert_allclose(shown.get_ydata(), np.sin(X))
    figure.savefig(tmp_path / "fit.png")
    assert (tmp_path / "fit.png").stat().st_size > 1000
    assert not plt.get_fignums()


def test_fit_draws_into_given_axes():
    figure = Figure()
    panel = figure.subplots()
    assert plot_fit(gaussian(0.0, 1.0), X[:, None], axes=panel) is figure
    assert panel.get_lines()


@pytest.mark.parametrize(
    ("x_new", "message"), [(np.ones((ROWS, 2)), "x_new: found shape"), (X[:5], "found 5 rows")]
)
def test_fit_refuses_inputs_that_do_not_fit(x_new, message):
    with pytest.raises(ValueError, match=message):
        plot_fit(gaussian(0.0, 1.0), x_new)


@pytest.mark.parametrize(("inputs", "outputs", "panels"), [(1, 1, 1), (1, 3, 1), (2, 2, 2), (6, 8, 4)])
def test_layers_have_a_panel_per_input(tmp_path, inputs, outputs, panels):
    figure = plot_layers([layer(inputs, outputs)])
    assert len(figure.axes) == panels
    figure.savefig(tmp_path / "layers.png")


def test_no_layers_is_an_error():
    with pytest.raises(ValueError, match="maps: found none"):
        plot_layers([])


def test_losses_have_a_line_per_restart_and_bear_rejected_steps():
    losses = np.linspace(100.0, 1.0, 500) * np.ones((2, 1))
    losses[0, 100:200] = np.nan
    losses[1, 300] = 1e9
    figure = plot_losses(losses)
    # the median sees past the spike
    assert line(figure, "restart 2").get_ydata().max() < 101
    assert figure.axes[0].get_ylim()[1] < 1000
    assert np.isnan(line(figure, "restart 1").get_ydata()).any()
    with pytest.raises(ValueError, match="at least one step"):
        plot_losses(np.zeros((1, 0)))


def test_the_median_of_falling_losses_lies_on_them():
    shown = line(plot_losses(np.linspace(100.0, 1.0, 500)), "median of 10 steps")
    # a straight line is its own running median
    np.testing.assert_allclose(
        shown.get_ydata(), np.interp(shown.get_xdata(), [1, 500], [100, 1]), rtol=1e-12
    )


def test_layers_of_one_input_mark_their_rows():
    shown = layer(1, 3)
    ticks = line(plot_layers([shown]), "rows")
    np.testing.assert_array_equal(ticks.get_xdata(), shown.inputs[:, 0])


@pytest.mark.parametrize("with_samples", [False, True])
def test_a_calibrated_prediction_lies_on_the_diagonal_and_an_overconfident_one_below(with_samples):
    y = RNG.normal(size=(ROWS, 1))

    def curve(deviation):
        samples = deviation * RNG.normal(size=(2000, ROWS, 1)) if with_samples else None
        return line(plot_calibration(gaussian(0.0, deviation, samples), y), "this fit").get_ydata()

    # Kolmogorov–Smirnov: 1.63/√400 = 0.08 at the 1 % level
    assert np.abs(curve(1.0) - np.linspace(0, 1, 101)).max() < 0.08
    assert curve(0.5)[50] < 0.35


def test_predicted_shows_every_row(tmp_path):
    y = np.cos(X)
    figure = plot_predicted(gaussian(np.cos(X)[:, None], 0.1), y)
    dots = figure.axes[0].get_lines()[-1]
    np.testing.assert_allclose(dots.get_xdata(), dots.get_ydata())
    figure.savefig(tmp_path / "predicted.png")
    with pytest.raises(ValueError, match="y: found shape"):
        plot_predicted(gaussian(0.0, 1.0), y[:3])
