"""The density of hyperparameters alone, inducing outputs integrated out: what NUTS samples where noise is Gaussian."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num
from numpyro.distributions import biject_to
from numpyro.handlers import lift, seed, trace

from ppl_dgp.gp.contract import LOC_SUFFIX, SCALE_SUFFIX, Model, Parameters, role_of
from ppl_dgp.guides import Guide
from ppl_dgp.numerics.compatibility import compiled
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.objectives import Collapsed


@dataclass(frozen=True, eq=False)
class CollapsedDensity:
    """p(θ) p(y | θ) of a lifted model, by a ``Collapsed`` energy, and draws of u given θ and y.

    :param base: the model before ``lift``.
    :param priors: of θ, by site.
    :param inducing: the sites of u.
    """

    base: Model
    guide: Guide
    energy: Collapsed
    priors: dict[str, Any]
    inducing: tuple[str, ...]
    held: Parameters
    x: Float[Array, "N D"]
    y: Num[Array, "N P"]

    @classmethod
    def of(
        cls, model: Model, energy: Any, latents: Sequence[str], held: Parameters, x: Any, y: Any
    ) -> CollapsedDensity:
        """Read off a lifted model.

        :param latents: the sites of all its latents outside the data plate.
        :raises TypeError: for another energy, or a model that is not lifted.
        :raises ValueError: for a model without hyperparameters that have priors, or with other latents.
        """
        if not isinstance(energy, Collapsed):
            raise TypeError(
                f"marginal: found {type(energy).__name__}, expected a Collapsed energy such as Collapsed.fitc()"
            )
        if not isinstance(model, lift):
            raise TypeError(
                f"model: found {type(model).__name__} beside marginal, expected one that is lifted; give its "
                "hyperparameters priors by numpyro.handlers.lift"
            )
        roles: dict[str, Any] = {}

        def look(key: Array) -> None:
            sites = trace(seed(model, key)).get_trace(x, y)
            roles.update({name: role_of(sites[name]).kind for name in latents})

        jax.eval_shape(look, jax.random.key(0))
        inducing = tuple(name for name, role in roles.items() if role == "inducing")
        prior = model.prior if isinstance(model.prior, Mapping) else dict.fromkeys(roles, model.prior)
        priors = {name: prior[name] for name in roles if name not in inducing and name in prior}
        if not priors or len(priors) + len(inducing) < len(roles):
            others = (
                ", ".join(name for name in roles if name not in inducing and name not in priors) or "none"
            )
            raise ValueError(
                f"model: found the latents {others} beside inducing outputs, expected hyperparameters with priors "
                "alone; name them to lift, or leave marginal out"
            )
        return cls(model.fn, Guide(model.fn), energy, priors, inducing, held, x, y)

    def potential(self, free: Parameters) -> Array:
        """Minus the log density of unconstrained θ, up to a constant, in nats."""
        values, log_prior = self._constrained(free)
        arguments = self.held | values, self.base, self.guide, self.x, self.y
        energy: Array = self.energy.loss(jax.random.key(0), *arguments) - log_prior
        return energy

    def beginning(
        self, begin: Callable[[Array], tuple[Parameters, Array]]
    ) -> Callable[[Array], tuple[Parameters, Array]]:
        """What gives the unconstrained θ that a chain begins with, and their energy, of what gives all latents."""

        def alone(key: Array) -> tuple[Parameters, Array]:
            free = {name: value for name, value in begin(key)[0].items() if name in self.priors}
            return free, self.potential(free)

        return alone

    def with_inducing(self, key: Array, free: Parameters) -> Parameters:
        """Unconstrained draws (C, S, …) of θ, and with them one of u from its posterior given θ and y."""

        def one(known: tuple[Array, Parameters]) -> Parameters:
            key, free = known
            values, _ = self._constrained(free)
            params = self.energy.finish(self.held | values, self.base, self.guide, self.x, self.y)
            drawn = {}
            for number, name in enumerate(self.inducing):
                q = Gaussian(params[name + LOC_SUFFIX], params[name + SCALE_SUFFIX])
                drawn[name] = q.draw(jax.random.fold_in(key, number))
            return drawn

        lead = next(iter(free.values())).shape[:2]
        flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in free.items()}
        keys = jax.random.split(key, lead[0] * lead[1])
        drawn = compiled(lambda *known: jax.lax.map(one, known))(keys, flat)
        return free | {name: value.reshape(*lead, *value.shape[1:]) for name, value in drawn.items()}

    def _constrained(self, free: Parameters) -> tuple[Parameters, Array]:
        """θ, and log p(θ) with the logarithm of the map's Jacobian."""
        values, total = {}, jnp.zeros(())
        for name, prior in self.priors.items():
            bijection = biject_to(prior.support)
            values[name] = bijection(free[name])
            jacobian = bijection.log_abs_det_jacobian(free[name], values[name])
            total = total + prior.log_prob(values[name]).sum() + jnp.sum(jacobian)
        return values, total
