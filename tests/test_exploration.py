"""What controls would tell about f: one step in closed form, several by nested averages over functions, known f."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_gpssm import CONTROLS, KEY, Y, moved, prepared

from ppl_dgp import expected_information
from ppl_dgp.fit import Posterior
from ppl_dgp.guides import MeanField
from ppl_dgp.kernels import RBF
from ppl_dgp.prediction.forecast import smooth, transition_moments

CANDIDATES = jnp.array([[[0.3], [-0.6]], [[2.5], [2.0]], [[0.0], [0.0]]])


def long(dims):
    """So long that a few inducing inputs determine f."""
    return RBF(0.8, jnp.full(dims, 4.0))


@cache
def arguments(scale=1e-7, **settings):
    """A posterior away from its start, whose last state is known as well as ``scale`` says."""
    settings = {"num_inducing": 6, "emission": "identity", "kernel": long} | settings
    model, guide, params = prepared(MeanField(), CONTROLS, **settings)
    params = moved(params, 0.4)
    params |= {
        "x_scale": jnp.full_like(params["x_scale"], scale),
        "transition/u_scale": 6 * params["transition/u_scale"],
    }
    return Posterior(model, guide, params), CONTROLS, Y


@pytest.mark.slow
def test_of_one_step_it_is_that_of_a_gaussian_channel():
    """½ log(1 + v(x, c)/Q), averaged over the last state."""
    given = arguments(scale=1.0)
    found = expected_information(KEY, *given, CANDIDATES[:, :1], num_samples=4000)
    last = jnp.asarray(smooth(KEY, *given, num_samples=4000).paths[:, -1])
    noise = given[0].params["transition/noise"]
    for number, controls in enumerate(CANDIDATES[:, 0]):
        _, variance = transition_moments(*given, last, controls[None])
        each = 0.5 * np.log1p(np.asarray(variance) / np.asarray(noise)).sum(1)
        error = np.hypot(found.error[number], each.std() / np.sqrt(len(each)))
        assert abs(found.nats[number] - each.mean()) < 4 * error
        assert found.nats[number] > 10 * error


def test_of_two_steps_it_is_the_mutual_information_of_functions_and_states():
    """E log p(x | f) / E_f p(x | f) over functions of finitely many weights: no chain rule, no determinant."""
    posterior, *rows = arguments()
    found = expected_information(KEY, posterior, *rows, CANDIDATES, num_samples=2000)
    params = {name: np.asarray(value) for name, value in posterior.params.items()}
    begin = smooth(KEY, posterior, *rows, num_samples=2).paths[0, -1]
    z, noise = params["transition/inducing"], params["transition/noise"]
    rbf = lambda a, b: 0.8 * np.exp(-0.5 * np.square((a[..., None, :] - b) / 4.0).sum(-1))
    lower = np.linalg.cholesky(rbf(z, z) + 1e-6 * 0.8 * np.eye(len(z)))
    random, count = np.random.default_rng(0), 3000
    mean, scale = params["transition/u_loc"][0], params["transition/u_scale"][0]
    u = mean + random.normal(size=(count, len(z))) @ scale.T
    # f of each of the functions (rows) at each of the states (columns)
    f = lambda u, states, control: (
        states + u @ np.linalg.solve(lower, rbf(np.stack([states, np.full_like(states, control)], -1), z).T)
    )
    for number, (first, second) in enumerate(np.asarray(CANDIDATES)[..., 0]):
        mean = f(u, begin, first)[:, 0]
        one = mean + np.sqrt(noise) * random.normal(size=count)
        two = np.diag(f(u, one, second)) + np.sqrt(noise) * random.normal(size=count)
        squares = np.square(one - mean[:, None]) + np.square(two - f(u, one, second))
        density = -0.5 * squares / noise
        told = np.diag(density) - np.log(np.exp(density).mean(0))
        error = np.hypot(found.error[number], told.std() / np.sqrt(count))
        # of finitely many functions the average has a bias of about a part in their number
        assert abs(found.nats[number] - told.mean()) < 4 * error + 0.01
        assert found.nats[number] > 0.3


@pytest.mark.slow
def test_a_function_that_is_known_has_nothing_to_tell():
    """But where inducing inputs are far, which leave a little open; and a path that stays tells less with each step."""
    known, *rows = arguments()
    params = known.params | {"transition/u_scale": 1e-6 * known.params["transition/u_scale"]}
    found = expected_information(KEY, Posterior(known.model, known.guide, params), *rows, CANDIDATES)
    assert (found.nats[[0, 2]] < 1e-3).all() and (found.nats >= 0).all()
    assert found.best == 1 and 1e-3 < found.nats[1] < 1e-2
    more = [
        expected_information(KEY, known, *rows, jnp.zeros((1, steps, 1)), num_samples=200).nats[0]
        for steps in (1, 2, 3)
    ]
    gains = np.diff([0.0, *more])
    assert (gains > 0).all() and gains[2] < gains[0]


@pytest.mark.parametrize(
    "wrong, words",
    [
        (jnp.zeros((2, 3)), r"candidates: found shape \(2, 3\), expected \(K, H, C\)"),
        (jnp.zeros((2, 3, 2)), "controls: found 2 columns, expected 1"),
        (jnp.full((2, 3, 1), jnp.nan), "candidates: found NaN"),
    ],
)
def test_what_it_cannot_do_is_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        expected_information(KEY, *arguments(), wrong)
    with pytest.raises(ValueError, match="num_samples: found 0"):
        expected_information(KEY, *arguments(), CANDIDATES, num_samples=0)


def test_it_is_a_verb_of_the_fit():
    posterior, *rows = arguments()
    found = posterior.expected_information(jax.random.key(0), *rows, CANDIDATES, num_samples=1)
    assert found.nats.shape == (3,) and np.isinf(found.error).all()
