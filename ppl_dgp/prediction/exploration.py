r"""Which controls would teach most about a state space model's transition (Bui 2017, 3.10.2: proposed there).

What the next H states would tell about f, given the data and the state that they go on from, is

.. math::
    I(f; x_{1:H} \mid c) = \mathbb{E}_{x_{1:H} \mid c} \sum_q \tfrac12 \log \det\left(I + K_q(X, X) / Q_q\right),
    \quad X = \{(x_{t-1}, c_t)\}_{t=1}^{H}

by the chain rule: given the states before it f at the next place is Gaussian, K_q its covariance under q(u), and a
step adds noise of variance Q_q (over a step's time, where steps are timed), so that its entropy less that of the
noise is known. Only the paths are drawn; no entropy is estimated from draws, as 3.101–102 there would. What is
observed of the states, with noise, tells no more than they do. Shapes: K candidates, H steps, C controls, D draws, Q
state dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from ppl_dgp.fit.arguments import takes_fit
from ppl_dgp.fit.posterior import Posterior
from ppl_dgp.gp.contract import Model, Parameters
from ppl_dgp.numerics.compatibility import compiled
from ppl_dgp.prediction.posterior_path import check_ahead, check_number, draw, series
from ppl_dgp.prediction.rollout import onward


@dataclass(frozen=True)
class ExpectedInformation:
    """What each of K candidates would tell about f, in nats, and the standard error of that mean over draws: (K,).

    The draws are the same for all candidates, so that their differences are mostly known better than ``error`` says.
    """

    nats: Float[np.ndarray, " K"]
    error: Float[np.ndarray, " K"]

    @property
    def best(self) -> int:
        """The number of the candidate that tells most."""
        return int(np.argmax(self.nats))


@takes_fit
def expected_information(
    key: Array,
    fit: Posterior,
    x: Float[Array, "T C"] | None,
    y: Array,
    candidates: ArrayLike,
    *,
    sequence: int | None = -1,
    num_samples: int = 50,
) -> ExpectedInformation:
    """What the next states under each of several sequences of controls would tell about the transition's f, in nats.

    Take the candidate that tells most, append what it brings to the data, and fit again.

    :param fit: of a state space model, such as ``gpssm``, with one function and controls.
    :param x: as trained on, with the numbers of sequences where there are several.
    :param y: as trained on.
    :param candidates: sequences of controls (K, H, C), such as random ones.
    :param sequence: the one that would go on; None for a new one, from p(x_0).
    :param num_samples: D paths of each candidate; each costs O(H³).
    :raises ValueError: if the model has no trajectory, no controls or not that sequence, for candidates that do not fit
        it; where f switches between regimes, where q(u) links outputs or layers, or where the guide draws anything
        besides u and the states.
    """
    check_number("num_samples", num_samples)
    given = np.asarray(candidates, float)
    if given.ndim != 3 or 0 in given.shape:
        raise ValueError(
            f"candidates: found shape {given.shape}, expected (K, H, C), sequences of controls, none of them empty"
        )
    if not np.isfinite(given).all():
        raise ValueError("candidates: found NaN or infinity, expected finite controls")
    check_ahead(fit.model, "candidates", jnp.asarray(given.reshape(-1, given.shape[2])))
    program = _information(fit.model, fit.guide, num_samples, sequence)
    found = np.asarray(program(key, fit.params, *series(x, y), jnp.asarray(given)))
    error = found.std(0, ddof=1) / np.sqrt(num_samples) if num_samples > 1 else np.full(len(given), np.inf)
    return ExpectedInformation(found.mean(0), error)


@lru_cache(maxsize=32)
def _information(model: Model, guide: Model, num_samples: int, sequence: int | None) -> Model:
    def program(
        key: Array, params: Parameters, x: Array, y: Array, candidates: Float[Array, "K H C"]
    ) -> Float[Array, "D K"]:
        def one(key: Array) -> Float[Array, " K"]:
            key_q, key_state, key_path = jax.random.split(key, 3)
            drawn = draw(key_q, model, guide, params, x, y)
            drawn.check_controls(candidates[0])
            drawn.check_one_function()
            known = drawn.integrated(drawn.trajectory.function)
            begin, regime = drawn.going_on(key_state, sequence)

            def told(controls: Float[Array, "H C"]) -> Float[Array, ""]:
                states = onward(key_path, drawn.trajectory, begin, controls, regime, held=True)
                places = jnp.concatenate([jnp.concatenate([begin[None], states[:-1]]), controls], 1)
                _, covariance = known.joint(places)
                # whitened by what is certain: at least 1 on the diagonal
                noise = jnp.broadcast_to(drawn.trajectory.noise_at(controls), states.shape)
                unit = jax.lax.rsqrt(noise.T)
                ratio = unit[:, :, None] * covariance * unit[:, None, :]
                ratio = ratio + jnp.eye(len(controls), dtype=covariance.dtype)
                result: Array = 0.5 * jnp.linalg.slogdet(ratio)[1].sum()
                return result

            return jax.vmap(told)(candidates)

        found: Array = jax.lax.map(one, jax.random.split(key, num_samples))
        return found

    return compiled(program)
