"""Steps ahead of a switching state space model, against sums over all sequences of regimes."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fast import few
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from test_gpssm import KEY, NOISE, T, Y
from test_switching import CHAIN, NOISES, SHIFTS, SLOPES, mixture, two_systems

from ppl_dgp.fit import Posterior
from ppl_dgp.prediction.forecast import forecast, simulate, smooth
from ppl_dgp.prediction.particle_filter import filter_forward
from ppl_dgp.prediction.regimes import regime_probabilities

DRAWS = 20_000


@pytest.mark.parametrize("function", few(["path", "independent"], 1))
def test_a_simulation_has_the_moments_of_the_mixture(function):
    found = simulate(KEY, Posterior(*two_systems()), None, Y, T, function=function, num_samples=DRAWS)
    parts = mixture()
    mean = sum(w * m for w, m, _ in parts)[1:]
    variance = sum(w * (np.diag(c)[1:] + np.square(m[1:] - mean)) for w, m, c in parts)
    assert (abs(found.mean[:, 0] - mean) < 4 * np.sqrt(variance / DRAWS)).all()
    np.testing.assert_allclose(found.states.var(0)[:, 0], variance, rtol=0.05)
    np.testing.assert_allclose(found.variance[:, 0], variance + NOISE, rtol=0.05)


@pytest.mark.slow
def test_a_forecast_goes_on_from_the_regime_of_the_last_step():
    """q's paths, the regime of each one's last step given that path, and then all there may be."""
    about = Posterior(*two_systems())
    found = forecast(KEY, about, None, Y, 2, num_samples=DRAWS)
    ends = smooth(jax.random.key(1), about, None, Y, num_samples=500).paths
    weights = np.stack([last_regimes(path[:, 0]) for path in ends])
    mean = np.zeros((len(ends), 2))
    for k in range(2):
        for after in range(2):
            share = weights @ np.asarray(CHAIN.transition)[:, k] * float(CHAIN.transition[k, after])
            first = SLOPES[k] * ends[:, -1, 0] + SHIFTS[k]
            mean += share[:, None] * np.stack([first, SLOPES[after] * first + SHIFTS[after]], 1)
    error = np.hypot(mean.std(0) / len(ends) ** 0.5, found.states[..., 0].std(0) / DRAWS**0.5)
    assert (abs(found.states[..., 0].mean(0) - mean.mean(0)) < 4 * error).all()
    shares = regime_probabilities(KEY, about, None, Y, num_samples=500)[-1]
    np.testing.assert_allclose(weights.mean(0), shares, atol=4 * weights.std() * (2 / 500) ** 0.5)
    # had each sequence of regimes begun anew, the first step would lie elsewhere
    anew = SLOPES * ends[:, -1].mean() + SHIFTS
    assert abs(anew @ np.asarray(CHAIN.initial) - mean[:, 0].mean()) > 8 * error[0]


def last_regimes(path):
    """p(s_T | x_0 … x_T), from the forward algorithm in NumPy."""
    share = np.asarray(CHAIN.initial)
    for before, state in zip(path[:-1], path[1:], strict=True):
        density = np.exp(-0.5 * np.square(state - SLOPES * before - SHIFTS) / NOISES) / np.sqrt(NOISES)
        posterior = share * density / (share @ density)
        share = posterior @ np.asarray(CHAIN.transition)
    return posterior


@cache
def exact():
    """log p(y_1 … y_T) of a new sequence, over 2^T Gaussians."""
    y = np.asarray(Y)[:, 0]
    each = [
        np.log(w) + multivariate_normal.logpdf(y, m[1:], c[1:, 1:] + NOISE * np.eye(T))
        for w, m, c in mixture()
    ]
    return logsumexp(each)


@pytest.mark.slow
def test_the_filter_of_a_new_sequence_estimates_the_exact_evidence():
    settings = {"num_particles": 1000, "fresh": True}
    keys = jax.random.split(KEY, 30)
    totals = [
        filter_forward(key, Posterior(*two_systems()), None, Y, None, Y, **settings).log_density.sum()
        for key in keys
    ]
    values = np.exp(np.array(totals) - exact())
    assert abs(values.mean() - 1.0) < 4 * values.std() / len(values) ** 0.5 < 0.2


def test_moments_ahead_are_refused():
    with pytest.raises(ValueError, match="function: found moments, and 2 regimes"):
        forecast(KEY, Posterior(*two_systems()), None, Y, jnp.zeros((2, 0)), function="moments")
