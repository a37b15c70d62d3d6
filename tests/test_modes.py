"""Modes of a transition: a matrix whose eigenvalues are known, a linear system, a GP's Jacobian by differences."""

import jax.numpy as jnp
import numpy as np
import pytest
from test_forecast import linear_system
from test_gpssm import CONTROLS, Y, moved, prepared
from test_switching import two_systems

from ppl_dgp import Modes, transition_modes
from ppl_dgp.fit import Posterior
from ppl_dgp.guides import Conditional
from ppl_dgp.prediction.forecast import transition_moments


def test_a_spiral_and_its_fellows_are_told_apart():
    """A turn in 7 steps that falls to 1/e in 10, a mode that grows by e in 20, one that flips, one of no memory."""
    turn, rho = 2 * np.pi / 7, np.exp(-1 / 10)
    blocks = np.zeros((5, 5))
    blocks[:2, :2] = rho * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    blocks[2, 2], blocks[3, 3] = np.exp(1 / 20), -0.5
    basis = np.random.default_rng(0).normal(size=(5, 5))
    modes = Modes.of(basis @ blocks @ np.linalg.inv(basis))
    expected = [np.exp(1 / 20), rho * np.exp(1j * turn), rho * np.exp(-1j * turn), -0.5, 0.0]
    np.testing.assert_allclose(modes.eigenvalues, expected, atol=1e-12)
    np.testing.assert_allclose(modes.modulus, np.abs(expected), atol=1e-12)
    # no memory has no turn, for rounding decides its sign
    np.testing.assert_allclose(modes.period[:4], [np.inf, 7, 7, 2])
    np.testing.assert_allclose(modes.decay[:4], [-20, 10, 10, 1 / np.log(2)])
    assert not modes.stable and "not stable" in repr(modes)
    assert "modulus 0.9048  period 7 steps  decay 10 steps" in repr(modes)
    walk = Modes.of(np.eye(2))
    assert (walk.decay == np.inf).all() and (walk.period == np.inf).all() and not walk.stable
    with pytest.raises(ValueError, match=r"jacobian: found shape \(3, 2\), expected \(..., Q, Q\)"):
        Modes.of(np.zeros((3, 2)))


def test_the_linear_part_is_that_of_the_states_weights():
    """And far from the data, where nothing is left of f but its mean, the Jacobian is the same."""
    arguments, (weights, *_), _ = linear_system()
    modes = transition_modes(*arguments)
    expected = np.linalg.eigvals(np.asarray(weights)[:2])
    np.testing.assert_allclose(np.sort_complex(modes.eigenvalues), np.sort_complex(expected), atol=1e-12)
    assert modes.stable and modes.eigenvalues[0].imag > 0
    far = transition_modes(*arguments, at=jnp.array([50.0, -50.0]), controls=jnp.zeros(1))
    np.testing.assert_allclose(far.eigenvalues, modes.eigenvalues, atol=1e-9)


@pytest.mark.slow
def test_the_jacobian_of_a_gp_is_that_of_differences():
    """At two states and their controls, of the mean under q(u)."""
    model, guide, params = prepared(Conditional(), CONTROLS, latent=2)
    arguments = Posterior(model, guide, moved(params, 0.4)), CONTROLS, Y
    at, controls, step = jnp.array([[0.3, -0.5], [1.0, 0.2]]), jnp.array([[0.4], [-0.7]]), 1e-5
    modes = transition_modes(*arguments, at, controls)
    ends = np.concatenate([at + sign * step * np.eye(2)[q] for q in range(2) for sign in (1, -1)])
    values = transition_moments(*arguments, jnp.asarray(ends), jnp.tile(controls, (4, 1)))[0]
    values = np.asarray(values).reshape(2, 2, 2, 2)
    # states moved, first by how much; then of which state, and of which output
    jacobian = np.moveaxis((values[:, 0] - values[:, 1]) / (2 * step), 0, -1)
    for found, each in zip(modes.eigenvalues, jacobian, strict=True):
        expected = np.linalg.eigvals(each).astype(complex)
        np.testing.assert_allclose(np.sort_complex(found), np.sort_complex(expected), atol=1e-7)
    alone = transition_modes(*arguments, at[1], controls[1])
    np.testing.assert_allclose(alone.eigenvalues, modes.eigenvalues[1], atol=1e-12)
    # the mean function is the identity
    assert (transition_modes(*arguments).eigenvalues == 1.0).all()
    assert "of (2,) states" in repr(modes)
    with pytest.raises(ValueError, match="at: found 3 states and 0 controls, expected 2 and 1"):
        transition_modes(*arguments, jnp.zeros(3))


@pytest.mark.slow
def test_regimes_have_no_one_jacobian():
    with pytest.raises(ValueError, match="model: found 2 regimes"):
        transition_modes(Posterior(*two_systems()), None, Y)
