r"""Whole paths of a trajectory in one logarithm: only for short series (docs/design.md, 4).

.. math::
    -KL[q(u) \| p(u)] + E_{q(u)} \frac1\alpha \log E_{q(x | u)}\Bigl[\Bigl(\prod_t w_t(x)\Bigr)^\alpha\Bigr]

with w_t the tempered weights of the steps and of what is observed of them. A bound at every α in (0, 1], of the model
in which the f(x_{t−1}) are independent given u (FITC). The weights of long paths differ by so much that one of them is
all the average: at T = 300 and α = 1 an effective sample size of one to three of a thousand.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float
from numpyro.handlers import substitute

from ppl_dgp.gp.wrappers import unwrap
from ppl_dgp.numerics.power_mean import log_power_mean
from ppl_dgp.objectives.divergence import AlphaDivergence
from ppl_dgp.objectives.loss_steps import Probe
from ppl_dgp.objectives.representation import RepresentationHandler
from ppl_dgp.objectives.weights import global_kl, log_weights

#: steps of a series for whose paths a few hundred draws are enough
SHORT = 20


class PathWarning(UserWarning):
    """A series is so long that the weights of its paths say little."""


class Pathwise(AlphaDivergence):
    """Power EP with a trajectory's paths inside the logarithm, where ``PowerEP`` tempers its steps one by one.

    For series of some twenty steps; longer ones are warned of. :meth:`effective_sample_size` says how many of the
    particles count. At α = 0 the ELBO.
    """

    globals_outside_log = True

    def _along(self, probe: Probe) -> Float[Array, ""]:
        kl, log_w = self._weighed(probe)
        return log_power_mean(log_w, self.alpha) - kl

    def effective_sample_size(
        self,
        rng_key: Array,
        param_map: dict[str, Array],
        model: Callable[..., Any],
        guide: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Float[Array, ""]:
        """(Σ w^α)² / Σ w^2α over the particles: from 1, one path being all that counts, to their number.

        :raises ValueError: if the model has no trajectory, or alpha is 0.
        """
        heard: list[Float[Array, " S"]] = []
        inner = _Listening(self, heard)
        inner.loss(rng_key, param_map, model, guide, *args, **kwargs)
        if not heard:
            raise ValueError(
                "model: found no trajectory at a positive alpha, expected one; take gpssm, and alpha > 0"
            )
        log_w = self.alpha * heard[0]
        return jnp.exp(2.0 * logsumexp(log_w) - logsumexp(2.0 * log_w))

    def _weighed(self, probe: Probe) -> tuple[Float[Array, ""], Float[Array, " S"]]:
        """KL of what stands outside, and the log weights of the paths."""
        roles = probe.roles
        name, *others = roles.trajectories
        if others or roles.local_sites:
            raise ValueError(
                f"Pathwise: found {[name, *others, *roles.local_sites]}, expected one trajectory and no other "
                "latents inside the logarithm; take PowerEP"
            )
        steps = unwrap(probe.model[name]["fn"]).event_shape[0] - 1
        if steps > SHORT:
            warnings.warn(
                f"Pathwise: found {steps} steps, beyond {SHORT} of which few paths count, if more than one; take "
                "PowerEP, which tempers the steps one by one, or look at effective_sample_size",
                PathWarning,
                stacklevel=4,
            )
        outside = replace(roles, global_sites=[other for other in roles.global_sites if other != name])
        shared = {other: probe.guide[other]["value"] for other in outside.global_sites}
        kl = global_kl(outside, probe.model, probe.guide, self.alpha)

        representations = self._representations(probe, {}, "above_paths")

        def draw(key: Array) -> Array:
            represented = RepresentationHandler(representations, roles.num_rows, key)
            model, guide = probe.again(key, represented, lambda program: substitute(program, data=shared))
            scale = 1.0 if model[name]["scale"] is None else model[name]["scale"]
            q: Any = unwrap(guide[name]["fn"])
            total = scale * q.log_weight(guide[name]["value"], self.alpha)
            rows = log_weights(roles, model, guide, self.alpha, u_outside=False)
            log_weight: Array = total + sum(
                roles.scales[group] * log_w.sum() for group, log_w in rows.items()
            )
            return log_weight

        return kl, self._over_particles(draw, jax.random.split(probe.particle_key, self.num_particles))


class _Listening(Pathwise):
    """The same, noting the weights."""

    def __init__(self, other: Pathwise, heard: list[Float[Array, " S"]]) -> None:
        super().__init__(cast(float, other.alpha), other.num_particles, other.propagation)
        self.heard = heard

    def _weighed(self, probe: Probe) -> tuple[Float[Array, ""], Float[Array, " S"]]:
        weighed = super()._weighed(probe)
        self.heard.append(weighed[1])
        return weighed
