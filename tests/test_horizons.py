"""Scores by the number of steps ahead: Kalman's predictive where the model is linear, closed forms, pairs of draws."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fast import few
from scipy import stats
from test_filtering import within
from test_forecast import linear_system
from test_gpssm import CONTROLS, KEY, NOISE, PROCESS, Y, linear, moved, prepared

from ppl_dgp.diagnostics import HorizonScores, crps, horizon_scores, plot_horizons, scores
from ppl_dgp.diagnostics.figures import COLOURS, FAINT
from ppl_dgp.diagnostics.horizons import score_origins
from ppl_dgp.fit import Posterior
from ppl_dgp.guides import Conditional
from ppl_dgp.prediction.forecast import forecast, simulate
from ppl_dgp.prediction.particle_forecast import OriginForecasts, forecast_origins
from ppl_dgp.prediction.predict import Prediction
from ppl_dgp.state_space.kalman import LinearEmission, filtered

HORIZONS, ROWS, FIRST = (1, 3, 6), 16, 2
KEYS = jax.random.split(KEY, 30)
SCALE = np.array([2.0, 0.5, 3.0])


def normal_crps(y, mean, deviation):
    """Gneiting & Raftery (2007), after their equation 21."""
    z = (y - mean) / deviation
    return deviation * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - np.pi**-0.5)


@cache
def record():
    """Controls and outputs that the linear system made, one row missing and one in part."""
    random, (weights, bias, c, d) = np.random.default_rng(3), map(np.asarray, linear_system()[1])
    u, state, rows = random.normal(size=(ROWS, 1)), np.zeros(2), []
    for control in u:
        state = np.concatenate([state, control]) @ weights + bias + PROCESS**0.5 * random.normal(size=2)
        rows.append(state @ c + d + NOISE**0.5 * random.normal(size=3))
    y = np.array(rows)
    y[7], y[11, 1] = np.nan, np.nan
    return jnp.asarray(u), jnp.asarray(y)


@cache
def exact(fresh):
    """Of each row o of the record and h from 1 the mean (P,) and covariance of y_{o+h} given all rows to o."""
    arguments, (weights, bias, c, d), _ = linear_system()
    u, y = record()
    controls = u if fresh else jnp.concatenate([CONTROLS, u])
    seen = y if fresh else jnp.concatenate([arguments[-1], y])
    known = len(seen) - ROWS
    chain = linear(2, weights, bias, controls)
    padded = jnp.concatenate([jnp.full((1, 3), jnp.nan), seen])
    found = filtered(chain, padded, LinearEmission(c.T, d, jnp.sqrt(NOISE) * jnp.eye(3)))
    weights, bias, c, d = map(np.asarray, (weights, bias, c, d))
    ahead = {}
    for o in range(ROWS):
        mean, covariance = np.asarray(found.means[known + o]), np.asarray(found.covariances[known + o])
        for h in range(1, ROWS - o + 1):
            mean = np.concatenate([mean, u[o + h - 1]]) @ weights + bias
            covariance = weights[:2].T @ covariance @ weights[:2] + PROCESS * np.eye(2)
            ahead[o, h] = mean @ c + d, c.T @ covariance @ c + NOISE * np.eye(3)
    return ahead


def expected(fresh, places):
    """Errors, log densities, p(y < what came), CRPS, means and deviations of places (o, h)."""
    y, found = np.asarray(record()[1]), []
    for o, h in places:
        (mean, covariance), came = exact(fresh)[o, h], y[o + h - 1]
        deviation, there = np.sqrt(np.diag(covariance)), ~np.isnan(came)
        chance = stats.norm.cdf(came, mean, deviation)[there]
        density = 0.0
        if there.any():
            normal = stats.multivariate_normal(mean[there], covariance[np.ix_(there, there)])
            density = normal.logpdf(came[there]) - np.log(SCALE[there]).sum()
        errors = SCALE[there] * (came - mean)[there]
        score = SCALE[there] * normal_crps(came, mean, deviation)[there]
        found.append((errors, density, chance, score, mean[there], deviation[there]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("fresh", few([False, True], 0), ids=["going on", "new sequence"])
def test_scores_of_a_linear_system_are_those_of_kalmans_predictive(fresh):
    """RMSE less what the means' own variance adds, density and CRPS to 4 standard errors; coverage to its ties."""
    arguments, first, draws = linear_system()[0], FIRST if fresh else 0, 200
    settings = {"horizons": HORIZONS, "num_first": first, "num_origins": 6, "function": "independent"}
    settings |= {"num_samples": draws, "num_particles": 400}
    about = settings | {"sequence": None if fresh else -1}
    ahead = [forecast_origins(key, *arguments, *record(), **about) for key in KEYS]
    found = [score_origins(each, np.asarray(arguments[-1]), SCALE) for each in ahead]
    whole = horizon_scores(KEYS[0], *arguments, *record(), fresh=fresh, target_scale=SCALE, **settings)
    np.testing.assert_array_equal(whole.summary(), found[0].summary())
    origins = ahead[0].origins
    assert origins[0] == first and origins[-1] == ROWS - 1 and len(origins) == 6
    for k in range(len(HORIZONS) + 1):
        free = k == len(HORIZONS)
        if free:
            places = [(first, h) for h in range(1, ROWS - first + 1)]
            values = np.array([each.free_mean for each in ahead])
            densities = np.array([each.free_log_density for each in ahead])
            samples = np.array([each.free_samples for each in ahead])
        else:
            rows = [row for row, o in enumerate(origins) if o + HORIZONS[k] <= ROWS]
            places = [(o, HORIZONS[k]) for o in origins[rows]]
            values = np.array([each.mean[rows, k] for each in ahead])
            densities = np.array([each.log_density[rows, k] for each in ahead])
            samples = np.array([each.samples[rows, :, k].swapaxes(0, 1) for each in ahead])
        parts = expected(fresh, places)
        errors, chances, crpses, *normal = (
            np.concatenate([part[i] for part in parts]) for i in (0, 2, 3, 4, 5)
        )
        there = np.array([~np.isnan(np.asarray(record()[1])[o + h - 1]) for o, h in places])
        assert (found[0].entries[k], found[0].free_run) == (len(errors), ROWS - first)
        spread = (SCALE**2 * values.var(0, ddof=1))[there].mean()
        assert within([each.rmse[k] ** 2 - spread for each in found], np.square(errors).mean())
        density = np.array([part[1] for part in parts])[there.any(1)].mean()
        # the logarithm of a mean over draws is too low by half its variance
        lost = 0.5 * densities.var(0, ddof=1)[there.any(1)].mean()
        assert within([each.log_density[k] + lost for each in found], density)
        assert within([each.crps[k] for each in found], crpses.mean())
        # where what came is this near to an end, some draws have it inside and others not
        ends = np.quantile(samples[:, :, there], (0.025, 0.975), axis=1, method="weibull")
        near = 4 * stats.norm.cdf(ends, *normal).std(1)
        ties = (abs(chances - np.array([[0.025], [0.975]])) < near).any(0).mean()
        share = (abs(chances - 0.5) <= 0.475).mean()
        assert abs(np.mean([each.coverage95[k] for each in found]) - share) <= ties


def test_crps_is_that_of_pairs_and_fair():
    random = np.random.default_rng(0)
    samples, y = random.normal(size=(7, 4, 2)), random.normal(size=(4, 2))
    y[1, 1] = np.nan
    pairs = abs(samples[:, None] - samples).sum((0, 1)) / (2 * 7 * 6)
    np.testing.assert_allclose(crps(samples, y), abs(samples - y).mean(0) - pairs, atol=1e-14)
    # of as few draws as two its mean is the normal's own
    y, mean, deviation = np.array([-1.3, 0.2, 2.0]), np.array([0.3, -0.5, 1.0]), np.array([0.5, 1.5, 2.0])
    draws = mean + deviation * random.normal(size=(2, 20_000, 3))
    assert within(crps(draws, np.broadcast_to(y, (20_000, 3))), normal_crps(y, mean, deviation))
    # far from 0 nothing is lost
    np.testing.assert_allclose(crps(draws + 1e6, draws[0] + 1e6), crps(draws, draws[0]), atol=1e-8)
    with pytest.raises(ValueError, match="samples: found 1, expected at least 2"):
        crps(draws[:1], draws[0])


def test_scores_of_a_prediction_with_samples_have_crps():
    random = np.random.default_rng(1)
    samples, y, ones = random.normal(size=(50, 3, 2)), random.normal(size=(3, 2)), np.ones((3, 2))
    found = Prediction(ones, ones, ones, ones, (0.1, 0.9), np.stack([-ones, ones]), samples, np.zeros(3))
    scale = np.array([2.0, 5.0])
    assert scores(found, y, scale)["test_crps"] == pytest.approx((crps(samples, y) * scale).mean())


@pytest.mark.parametrize("draws", [39, 200])
def test_an_interval_of_draws_holds_95_percent_of_further_ones(draws):
    """Of any number of them, whatever the distribution."""
    random, rows = np.random.default_rng(2), 20_000
    samples, y = random.gamma(2.0, size=(draws, rows, 1)), random.gamma(2.0, size=(rows, 1))
    found = OriginForecasts(
        np.arange(rows), (1,), y[:, None], y[:, None], samples[:, :, None].swapaxes(0, 1), np.zeros((rows, 1)),
        y, y, samples, np.zeros(rows),
    )  # fmt: skip
    for share in score_origins(found, y[:100], np.ones(1)).coverage95:
        assert abs(share - 0.95) < 4 * (0.95 * 0.05 / rows) ** 0.5


def test_the_reference_is_the_training_rows_gaussian():
    """In original units, by SciPy; rows in which nothing came count for nothing."""
    random = np.random.default_rng(4)
    training, y = random.normal(1.0, 2.0, size=(30, 2)), random.normal(size=(5, 2))
    training[3, 0], y[2], y[4, 1] = np.nan, np.nan, np.nan
    samples = random.normal(size=(40, 5, 2))
    found = OriginForecasts(
        np.arange(5), (2,), y[:, None], y[:, None], samples[:, :, None].swapaxes(0, 1), np.zeros((5, 1)),
        y, y, samples, np.zeros(5),
    )  # fmt: skip
    scale = np.array([3.0, 0.2])
    reference = score_origins(found, training, scale).reference
    mean, deviation = np.nanmean(training, 0) * scale, np.nanstd(training, 0) * scale
    values, there = y * scale, ~np.isnan(y)
    density = np.where(there, stats.norm.logpdf(values, mean, deviation), 0.0).sum(1)[[0, 1, 3, 4]].mean()
    inside = (abs(values - mean) < stats.norm.ppf(0.975) * deviation)[there].mean()
    rmse = np.sqrt(np.square(values - mean)[there].mean())
    columns = [rmse, density, inside, normal_crps(values, mean, deviation)[there].mean(), 7]
    np.testing.assert_allclose(reference.summary().to_numpy(), [columns] * 2)


@pytest.mark.slow
@pytest.mark.parametrize("fresh", few([True, False], 0), ids=["new sequence", "going on"])
def test_a_simulation_from_first_rows_begins_at_kalmans_state(fresh):
    """Mean, variance and joint log density of the rows behind those that were seen."""
    arguments, (u, y), seen, ahead = linear_system()[0], record(), 9, 4
    rows, future = slice(seen, seen + ahead), y[seen : seen + ahead]
    verb = simulate if fresh else forecast
    settings = {"seen": (u[:seen], y[:seen]), "num_samples": 400, "num_particles": 1000}
    settings |= {"y_future": future, "function": "independent"}
    found = [verb(key, *arguments, u[rows], **settings) for key in KEYS]
    parts = [exact(fresh)[seen, h] for h in range(1, ahead + 1)]
    assert within([each.mean for each in found], np.array([mean for mean, _ in parts]))
    assert within([each.samples.mean(0) for each in found], np.array([mean for mean, _ in parts]))
    variance = np.array([np.diag(covariance) for _, covariance in parts])
    np.testing.assert_allclose(np.mean([each.variance for each in found], 0), variance, rtol=0.05)
    densities = []
    for came, (mean, covariance) in zip(np.asarray(future), parts, strict=True):
        there = ~np.isnan(came)
        normal = stats.multivariate_normal(mean[there], covariance[np.ix_(there, there)])
        densities.append(normal.logpdf(came[there]))
    assert within(np.exp([each.log_density - densities for each in found]), 1.0)
    # what was seen matters: without it the first row lies elsewhere
    plain = verb(KEY, *arguments, u[rows], num_samples=400, function="independent")
    assert abs(plain.mean[0] - parts[0][0]).max() > 10 * plain.samples.std(0).max() / 20


@pytest.mark.slow
@pytest.mark.parametrize("function", ["path", "independent"])
def test_forecasts_from_the_end_of_training_are_those_of_forecast(function):
    """Where f is a GP with a control: the free run, and horizons of the first origin, against draws with no filter."""
    model, guide, params = prepared(Conditional(), CONTROLS, latent=2)
    params = moved(params, 0.4)
    arguments = Posterior(model, guide, params), CONTROLS, Y
    number, came = 3000, Y[:4]
    settings = {"num_samples": number, "function": function}
    plain = forecast(KEY, *arguments, CONTROLS[:4], y_future=came, **settings)
    found = forecast_origins(
        jax.random.key(7), *arguments, CONTROLS[:4], came, horizons=(1, 3), num_particles=number, **settings
    )
    for h, mean, samples, density in [
        *zip(
            range(4), found.free_mean, found.free_samples.swapaxes(0, 1), found.free_log_density, strict=True
        ),
        *zip((0, 2), found.mean[0], found.samples[0].swapaxes(0, 1), found.log_density[0], strict=True),
    ]:
        # particles are drawn from draws of q
        error = 4 * plain.samples[:, h].std(0) * (3 / number) ** 0.5
        assert (abs(mean - plain.mean[h]) < error).all()
        np.testing.assert_allclose(samples.std(0), plain.samples[:, h].std(0), rtol=0.06)
        emitted = plain.states[:, h] @ params["emission/weights"] + params["emission/bias"]
        each = stats.norm.pdf(came[h], emitted, NOISE**0.5)
        assert plain.log_density[h] == pytest.approx(np.log(each.mean()), abs=1e-9)
        assert abs(density - plain.log_density[h]) < 4 * each.std() / each.mean() * (3 / number) ** 0.5
    np.testing.assert_array_equal(found.came[:, 1], [Y[2], Y[3], [np.nan], [np.nan]])
    assert (found.log_density[2:, 1] == 0.0).all()


@pytest.mark.slow
def test_counts_are_scored_as_they_are_forecast():
    """Of any likelihood of numbers: the density of the first row, averaged over draws without a filter."""
    counts, came = jnp.array([0, 1, 3, 2, 5, 4])[:, None], jnp.array([[2], [1], [4]])
    model, guide, params = prepared(
        Conditional(), CONTROLS, counts, latent=1, likelihood="poisson", noise=None
    )
    arguments, number = (Posterior(model, guide, moved(params, 0.2)), CONTROLS, counts), 4000
    settings = {"num_samples": number, "function": "independent"}
    plain = forecast(KEY, *arguments, CONTROLS[:1], y_future=came[:1], **settings)
    about = settings | {"horizons": (1,), "num_origins": 1, "num_particles": number}
    found = horizon_scores(KEY, *arguments, CONTROLS[:3], came, **about)
    # the draws' chances vary less than what is drawn from them
    each = plain.samples[:, 0, 0] == 2
    error = 4 * each.std() / each.mean() * (3 / number) ** 0.5
    assert abs(found.log_density[0] - plain.log_density[0]) < error < 0.5
    assert np.isfinite(found.summary().to_numpy()).all()
    after = forecast(
        KEY, *arguments, CONTROLS[:1], seen=(CONTROLS[:2], came[:2]), y_future=came[2:], **settings
    )
    assert np.isfinite(after.log_density).all()


def test_what_cannot_be_scored_is_said():
    arguments, (u, y) = linear_system()[0], record()
    refused = [
        ({"horizons": (1, 100)}, r"horizons: found \(1, 100\), expected .* from 1 to 16"),
        ({"horizons": (5, 1)}, "horizons: found"),
        ({"horizons": ()}, "horizons: found"),
        ({"horizons": (12,), "num_first": 5}, "from 1 to 11"),
        ({"num_first": 16}, "num_first: found 16, expected 0 to 15"),
        ({"num_origins": 0}, "num_origins: found 0"),
        ({"num_samples": 20}, "num_samples: found 20, expected at least 39"),
        ({"function": "moments"}, "function: found 'moments'"),
        ({"target_scale": 0.0}, "target_scale: found"),
    ]
    for settings, message in refused:
        with pytest.raises(ValueError, match=message):
            horizon_scores(KEY, *arguments, u, y, **{"horizons": (1,), **settings})
    with pytest.raises(ValueError, match="x_new, y_new: found numbers that are not finite"):
        horizon_scores(KEY, *arguments, u, y.at[3].set(jnp.inf), horizons=(1,))
    with pytest.raises(ValueError, match="x_new: found 3 rows, expected 16"):
        horizon_scores(KEY, *arguments, u[:3], y, horizons=(1,))
    with pytest.raises(
        ValueError, match=r"seen\[0\]: found 3 rows, expected 16, one for each row of seen\[1\]"
    ):
        forecast(KEY, *arguments, u, seen=(u[:3], y))
    with pytest.raises(ValueError, match="function: found 'moments' after rows seen"):
        simulate(KEY, *arguments, u, seen=(u, y), function="moments")
    with pytest.raises(ValueError, match="num_particles: found 0"):
        simulate(KEY, *arguments, u, seen=(u, y), num_particles=0)


def some_scores(shift=0.0, entries=(9, 8, 20)):
    values = [shift + np.array(each) for each in ([0.1, 0.3, 0.5], [1.0, 0.2, -0.4], [0.9, 0.95, 1.0])]
    return HorizonScores((1, 5), 20, *values, values[0] / 2, np.array(entries))


def test_scores_are_shown_by_horizon(tmp_path):
    one, other = some_scores(), some_scores(0.1)
    given = replace(one, reference=some_scores(0.3))
    figure = plot_horizons({"a": given, "b": other})
    names = ["rmse", "log_density", "coverage95", "crps"]
    for panel, name in zip(figure.axes, names, strict=True):
        drawn = [(line.get_xdata(), line.get_ydata(), line.get_color()) for line in panel.get_lines()]
        for each, colour in ((given, COLOURS[0]), (other, COLOURS[1])):
            own = [(list(x), list(y)) for x, y, shade in drawn if shade == colour]
            values = list(getattr(each, name))
            assert own == [([0, 1], values[:2]), ([2], values[2:])]
        grey = [list(y) for _, y, shade in drawn if shade == FAINT]
        values = list(getattr(given.reference, name))
        assert grey == [values[:2], values[2:] * 2]
    labels = [tick.get_text() for tick in figure.axes[3].get_xticklabels()]
    assert labels == ["1", "5", "free run,\n20 steps"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "mean of the training rows",
        "a",
        "b",
    ]
    figure.savefig(tmp_path / "horizons.png")
    alone = plot_horizons(given, reference=False)
    assert not any(line.get_color() == FAINT for line in alone.axes[0].get_lines())
    with pytest.raises(ValueError, match="scores: found 0"):
        plot_horizons({})
    with pytest.raises(ValueError, match="scores: found horizons .* in 'b'"):
        plot_horizons({"a": one, "b": some_scores(entries=(9, 8, 19))})


def test_scores_print_as_a_table():
    lines = repr(some_scores()).splitlines()
    assert lines[0] == "HorizonScores, a free run of 20 steps"
    assert lines[-1].split() == ["free", "run", "0.5", "-0.4", "1", "0.25", "20"]
