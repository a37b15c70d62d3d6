"""The particle filter: Kalman's where the model is linear, plain averages where f is a draw."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import initial
from fast import few
from test_forecast import linear_system
from test_gpssm import CONTROLS, KEY, NOISE, Y, linear, moved, prepared

from ppl_dgp.fit import Posterior
from ppl_dgp.guides import Conditional, Guide, MeanField
from ppl_dgp.models import gpssm
from ppl_dgp.prediction.forecast import forecast
from ppl_dgp.prediction.particle_filter import filter_forward, systematic
from ppl_dgp.state_space.kalman import LinearEmission, filtered

KEYS = jax.random.split(KEY, 30)
#: after a row that leaves most particles as they are, a whole row is missing
CAME = jnp.array([[1.3, 0.4, -0.3], [jnp.nan, jnp.nan, 0.1], [jnp.nan, jnp.nan, jnp.nan], [0.3, 0.8, 0.3]])
AHEAD = CONTROLS[1:5]


def kalman(controls, y):
    """The filter of the rows, by the model's own chain."""
    _, (weights, bias, c, d), _ = linear_system()
    rows = jnp.concatenate([jnp.full((1, 3), jnp.nan), y])
    return filtered(
        linear(2, weights, bias, controls), rows, LinearEmission(c.T, d, jnp.sqrt(NOISE) * jnp.eye(3))
    )


def within(values, expected):
    """Whether the mean of independent estimates is as expected, to 4 standard errors."""
    values = np.asarray(values)
    return (abs(values.mean(0) - expected) < 4 * values.std(0) / len(values) ** 0.5).all()


@pytest.mark.parametrize("fresh", few([False, True], 1), ids=["going on", "new sequence"])
def test_a_linear_system_is_kalmans(fresh):
    """States, one-step predictions and densities; the estimate of p(y_new) is unbiased."""
    arguments, (weights, bias, c, d), chain = linear_system()
    known = 0 if fresh else len(Y)
    before = jnp.zeros((0, 1)) if fresh else CONTROLS
    exact = kalman(jnp.concatenate([before, AHEAD]), jnp.concatenate([arguments[-1][:known], CAME]))
    settings = {"num_particles": 400, "fresh": fresh}
    found = [filter_forward(key, *arguments, AHEAD, CAME, **settings) for key in KEYS]

    densities = np.asarray(exact.log_predictive[known + 1 :])
    total = np.array([each.log_density.sum() for each in found])
    assert within(np.exp(total - densities.sum()), 1.0)
    # of the logarithm to half its variance
    assert abs(total.mean() + 0.5 * total.var() - densities.sum()) < 4 * total.std() / len(KEYS) ** 0.5
    assert all(abs(each.log_density[2]) < 1e-12 for each in found)
    means, covariances = np.asarray(exact.means[known:]), np.asarray(exact.covariances[known:])
    assert within([each.mean for each in found], means[1:])
    deviations = np.sqrt(np.diagonal(covariances[1:], axis1=1, axis2=2))
    np.testing.assert_allclose(np.mean([each.deviation for each in found], 0), deviations, rtol=0.05)
    # one step ahead of the step before
    w, c, controls = np.asarray(weights), np.asarray(c), np.asarray(AHEAD)
    predicted = np.concatenate([means[:-1], controls], 1) @ w + np.asarray(bias)
    assert within([each.predicted_mean for each in found], predicted @ c + np.asarray(d))
    spread = np.einsum("qr,hqs,st->hrt", w[:2], covariances[:-1], w[:2]) + 0.3 * np.eye(2)
    variance = np.einsum("qp,hqr,rp->hp", c, spread, c) + NOISE
    np.testing.assert_allclose(np.mean([each.predicted_variance for each in found], 0), variance, rtol=0.04)
    # the first row has them resampled, the next has not, so that the missing one finds them as they were
    size = np.array([each.effective_size for each in found])
    assert (size[:, [0, 3]] < 200).all() and (size[:, 1] > 200).all()
    np.testing.assert_allclose(size[:, 2], size[:, 1])


@pytest.mark.slow
def test_a_particle_keeps_its_function():
    """p(y_1, y_2) with u drawn once for both, against a plain average over paths with their u."""
    model, guide, params = prepared(MeanField(), CONTROLS, emission="identity", mean="zero")
    params = moved(params, 0.3)
    # q knows the states, and hardly anything of f
    scale = jnp.broadcast_to(jnp.eye(3), params["transition/u_scale"].shape)
    params |= {"transition/u_scale": scale, "transition/noise": jnp.array([0.02])}
    params |= {"transition/lengthscale": 3.0 * jnp.ones(2), "transition/variance": jnp.array(4.0)}
    came, ahead = jnp.array([[1.5], [1.4]]), jnp.zeros((2, 1))
    found = [
        filter_forward(key, Posterior(model, guide, params), CONTROLS, Y, ahead, came, num_particles=400)
        for key in KEYS
    ]
    values = np.exp([each.log_density.sum() for each in found])
    settings = {"function": "independent", "num_samples": 20_000}
    states = forecast(KEY, Posterior(model, guide, params), CONTROLS, Y, ahead, **settings).states
    squares = np.square(states - np.asarray(came)).sum((1, 2)) / NOISE
    plain = np.exp(-0.5 * squares) / (2 * np.pi * NOISE)
    error = np.hypot(values.std() / len(values) ** 0.5, plain.std() / len(plain) ** 0.5)
    assert abs(values.mean() - plain.mean()) < 4 * error < 0.2 * plain.mean()
    # steps that shared no function would make this far less likely
    apart = np.exp(np.mean([each.log_density[0] for each in found])) ** 2
    assert values.mean() > 1.5 * apart


def test_systematic_resampling_keeps_to_the_weights():
    weights = jnp.array([0.02, 0.31, 0.0, 0.42, 0.25])
    number = 5 * np.asarray(weights)
    chosen = jax.vmap(lambda key: systematic(key, weights))(jax.random.split(KEY, 4000))
    counts = np.stack([np.bincount(each, minlength=5) for each in np.asarray(chosen)])
    assert ((counts == np.floor(number)) | (counts == np.ceil(number))).all()
    assert (abs(counts.mean(0) - number) <= 4 * counts.std(0) / len(counts) ** 0.5).all()


@pytest.mark.slow
def test_counts_are_filtered_through_a_gp_emission():
    """Any likelihood: its density of what came, averaged over paths, for the first step."""
    counts = jnp.array([0, 1, 3, 2, 5, 4])[:, None]
    model = gpssm(1, 1, 3, emission="gp", likelihood="poisson")
    guide = Guide(model, hidden=Conditional())
    params = moved(initial(KEY, model, guide, CONTROLS, counts), 0.2)
    arguments, came = (Posterior(model, guide, params), CONTROLS, counts), jnp.array([[2], [1]])
    found = filter_forward(KEY, *arguments, CONTROLS[:2], came, num_particles=10_000)
    settings = {"y_future": came, "function": "independent", "num_samples": 10_000}
    plain = forecast(jax.random.PRNGKey(9), *arguments, CONTROLS[:2], **settings)
    assert found.log_density[0] == pytest.approx(plain.log_density[0], abs=0.03)
    np.testing.assert_allclose(found.predicted_mean[0], plain.mean[0], rtol=0.05)
    assert np.isfinite(found.mean).all() and found.log_density[1] != plain.log_density[1]


def test_what_cannot_be_filtered_is_said():
    arguments, _, _ = linear_system()
    with pytest.raises(ValueError, match=r"y_new: found shape \(4, 2\), expected \(4, 3\)"):
        filter_forward(KEY, *arguments, AHEAD, CAME[:, :2])
    with pytest.raises(ValueError, match="x_new: found 2 rows, expected 4"):
        filter_forward(KEY, *arguments, AHEAD[:2], CAME)
    with pytest.raises(ValueError, match="controls: found 0 columns, expected 1"):
        filter_forward(KEY, *arguments, None, CAME)
    with pytest.raises(ValueError, match="sequence: found 2"):
        filter_forward(KEY, *arguments, AHEAD, CAME, sequence=2)
    with pytest.raises(ValueError, match="num_particles: found 0"):
        filter_forward(KEY, *arguments, AHEAD, CAME, num_particles=0)
