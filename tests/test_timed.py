"""Steps of different length: equal ones are the plain model, a random walk is Wiener's, f is a rate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import loss
from fast import few
from numpyro.handlers import seed, substitute, trace
from scipy import stats
from test_gpssm import (
    CONTROLS,
    KEY,
    MOMENTS,
    NOISE,
    PROCESS,
    Y,
    begun,
    linear,
    moved,
    nearly_nothing,
    prepared,
    smoothed,
    without_function,
)

from ppl_dgp.fit import Posterior, fit_series
from ppl_dgp.guides import Conditional, DoublyStochastic, EnsembleSmoother, Guide, Markov, MeanField
from ppl_dgp.kernels import RBF, Kernel, Linear
from ppl_dgp.models import gpssm
from ppl_dgp.objectives import ApproximatePowerEP, EnsembleKalman, PowerEP
from ppl_dgp.prediction.forecast import forecast, simulate, transition_function

TIMES = np.array([0.5, 1.0, 2.5, 0.3, 1.2, 4.0])[:, None]
ONES = jnp.ones_like(CONTROLS)
DRAWS = 20_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "objective"),
    few(
        [
            (Conditional(), PowerEP(0.5, 2)),
            (Markov(), MOMENTS),
            (MeanField(), PowerEP(0.0, propagation="linearised")),
            (Markov(), PowerEP(0.0)),
            (Conditional(markov=True), PowerEP(0.0)),
            (DoublyStochastic(), PowerEP(0.0)),
            (Markov(), ApproximatePowerEP(0.5)),
            (Markov(), ApproximatePowerEP(0.5, propagation="moments")),
            (EnsembleSmoother(), EnsembleKalman(6)),
        ],
        2,
    ),
    ids=repr,
)
def test_steps_of_one_unit_are_the_plain_model(rule, objective):
    """The same parameters, and the same loss wherever they are."""
    model, guide, params = prepared(rule, CONTROLS)
    timed, its_guide, others = prepared(rule, jnp.concatenate([CONTROLS, ONES], 1), timed=True)
    assert {name: value.shape for name, value in params.items()} == {
        name: value.shape for name, value in others.items()
    }
    params = moved(params, 0.1)
    plain = loss(objective, params, model, guide, CONTROLS, Y)
    found = loss(objective, params, timed, its_guide, jnp.concatenate([CONTROLS, ONES], 1), Y)
    assert found == pytest.approx(plain, rel=1e-9)


def wiener():
    """The random walk at irregular times with its guide at the smoother, and the smoother."""
    process = PROCESS * TIMES[:, :, None]
    chain, _ = smoothed(
        linear(1, jnp.eye(1), jnp.zeros(1), jnp.zeros((6, 0)), process), Y, jnp.eye(1), jnp.zeros(1)
    )
    model, guide, params = prepared(
        Markov(), jnp.asarray(TIMES), emission="identity", kernel=nearly_nothing, timed=True
    )
    values = {
        "x_slope": chain.slopes,
        "x_loc": chain.offsets,
        "x_scale": chain.scale_trils[:, 0] / np.sqrt(PROCESS * TIMES),
    }
    return model, guide, without_function(params, **values, **begun(chain)), chain.marginals()


@pytest.mark.parametrize("objective", few([MOMENTS, PowerEP(0.0), PowerEP(0.5, 2)], 1), ids=repr)
def test_a_walk_has_the_evidence_of_a_wiener_process(objective):
    """Cov(y_s, y_t) = 1 + Q min(s, t) + R where they are the same."""
    model, guide, params, _ = wiener()
    when = np.cumsum(TIMES)
    covariance = 1.0 + PROCESS * np.minimum(when[:, None], when) + NOISE * np.eye(6)
    evidence = stats.multivariate_normal(np.zeros(6), covariance).logpdf(Y[:, 0])
    assert -loss(objective, params, model, guide, jnp.asarray(TIMES), Y) == pytest.approx(evidence, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("function", few(["moments", "path", "independent"], 2))
def test_its_forecast_spreads_with_time(function):
    model, guide, params, marginals = wiener()
    ahead = np.array([0.1, 3.0, 1.5])
    about = Posterior(model, guide, params), jnp.asarray(TIMES), Y
    found = forecast(KEY, *about, jnp.asarray(ahead[:, None]), function=function, num_samples=DRAWS)
    variance = marginals.covariances[-1, 0, 0] + PROCESS * np.cumsum(ahead) + NOISE
    np.testing.assert_allclose(
        found.variance[:, 0], variance, rtol=1e-6 if function == "moments" else 4 * (2 / DRAWS) ** 0.5
    )
    mean = float(marginals.means[-1, 0])
    assert (abs(found.mean[:, 0] - mean) < 1e-5 + 4 * np.sqrt(variance / DRAWS)).all()


@pytest.mark.slow
def test_it_goes_on_from_rows_that_were_seen():
    """A new record, filtered by particles: Kalman's predictive at irregular times."""
    model, guide, params, _ = wiener()
    about, ahead = (Posterior(model, guide, params), jnp.asarray(TIMES), Y), jnp.array([[2.0]])
    when = np.append(np.cumsum(TIMES[:3]), TIMES[:3].sum() + 2.0)
    covariance = 1.0 + PROCESS * np.minimum(when[:, None], when) + NOISE * np.eye(4)
    gain = np.linalg.solve(covariance[:3, :3], covariance[:3, 3])
    mean, variance = gain @ Y[:3, 0], covariance[3, 3] - gain @ covariance[:3, 3]
    seen = jnp.asarray(TIMES[:3]), Y[:3]
    found = [
        simulate(key, *about, ahead, seen=seen, num_samples=2000, num_particles=2000)
        for key in jax.random.split(KEY, 8)
    ]
    means = np.array([float(each.mean[0, 0]) for each in found])
    assert abs(means.mean() - mean) < 4 * means.std(ddof=1) / 8**0.5
    spread = np.mean([float(each.variance[0, 0]) for each in found])
    assert spread == pytest.approx(variance, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", few([RBF, "matern32 + linear"], 1), ids=str)
def test_f_is_a_rate(kernel):
    """Twice the time moves twice as far, with four times the variance of f and twice that of the noise."""
    model, guide, params = prepared(Markov(), jnp.concatenate([CONTROLS, ONES], 1), timed=True, kernel=kernel)
    sites = trace(substitute(seed(guide, KEY), moved(params, 0.1))).get_trace(
        jnp.concatenate([CONTROLS, ONES], 1), Y
    )
    trajectory, states = sites["x"]["fn"].trajectory, jnp.array([[0.3], [1.7]])
    one, two = (trajectory.at(states, jnp.array([[0.2, length], [-0.4, length]])) for length in (1.0, 2.0))
    np.testing.assert_allclose(two.marginal.mean - states, 2.0 * (one.marginal.mean - states), rtol=1e-9)
    np.testing.assert_allclose(two.marginal.variance, 4.0 * one.marginal.variance, rtol=1e-6)
    np.testing.assert_allclose(two.likelihood.variance, 2.0 * one.likelihood.variance, rtol=1e-12)


@pytest.mark.slow
def test_a_rate_is_learnt_from_steps_of_any_length():
    """x' = 1.5 sin 2x seen at irregular times: f within 0.15 of it, where the plain model's step of 1 is far off."""
    random, x, states = np.random.default_rng(0), 0.2, []
    times = random.uniform(0.05, 0.6, size=(300, 1))
    for length in times[:, 0]:
        x = x + length * 1.5 * np.sin(2.0 * x) + np.sqrt(length) * 0.4 * random.normal()
        states.append(x)
    y = jnp.asarray(np.array(states)[:, None] + 0.02 * random.normal(size=(300, 1)))
    x, grid = jnp.asarray(times), np.quantile(states, np.linspace(0.05, 0.95, 30))
    model = gpssm(1, num_inducing=15, emission="identity", timed=True)
    fit = fit_series(KEY, model, Guide(model, hidden=Markov()), PowerEP(0.0, propagation="moments"), x, y)
    f = transition_function(fit, x, y)
    rate = f(jnp.asarray(np.column_stack([grid, np.ones(30)]))).mean[:, 0] - grid
    error = np.sqrt(np.square(rate - 1.5 * np.sin(2.0 * grid)).mean())
    assert fit.converged and error < 0.25
    assert float(fit.params["transition/noise"][0]) == pytest.approx(0.16, rel=0.25)


class OfAllColumns(Kernel):
    def __call__(self, x, z):
        return x @ z.T

    def diag(self, x):
        return jnp.square(x).sum(1)


def test_what_has_no_meaning_is_refused():
    for settings, message in (
        ({"start": "linear"}, "start: found 'linear' beside timed steps, expected 'outputs'"),
        ({"mean": "zero"}, "mean: found 'zero' beside timed steps, expected 'identity'"),
    ):
        with pytest.raises(ValueError, match=message):
            gpssm(1, **{"timed": True} | settings)
    wrong = jnp.asarray(TIMES).at[2, 0].set(0.0)
    with pytest.raises(ValueError, match="x: found the time 0 of step 2, expected positive numbers"):
        prepared(Markov(), wrong, timed=True)
    two = jnp.concatenate([wrong, jnp.asarray([[0.0]] * 3 + [[1.0]] * 3)], 1)
    with pytest.raises(ValueError, match="x: found the time 0 of step 2"):
        prepared(Markov(), two, timed=True, num_sequences=2)
    with pytest.raises(ValueError, match="x: found no controls beside timed steps"):
        prepared(Markov(), timed=True)
    with pytest.raises(ValueError, match="kernel: found OfAllColumns beside timed steps"):
        prepared(Markov(), jnp.asarray(TIMES), timed=True, kernel=lambda dims: OfAllColumns())
    model, guide, params, _ = wiener()
    with pytest.raises(ValueError, match="controls: found the time -1 of step 1"):
        forecast(KEY, Posterior(model, guide, params), jnp.asarray(TIMES), Y, jnp.array([[1.0], [-1.0]]))
    # a column that a kernel names is its own choice
    assert gpssm(1, kernel=Linear(1.0, active_dims=(0,)), timed=True).timed
