"""The latents that SGHMC moves, and where its chains begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num
from numpyro.handlers import lift, seed, substitute, trace

from ppl_dgp.fit.result import Fit
from ppl_dgp.fit.sampled_model import HYPERPARAMETER_SPREAD, SampledModel
from ppl_dgp.gp.contract import LOC_SUFFIX, Model, Parameters, role_of
from ppl_dgp.gp.emission import emission_of
from ppl_dgp.guides import Guide
from ppl_dgp.numerics.compatibility import compiled

#: what an ``AutoDelta`` calls the value of a site
POINT_SUFFIX = "_auto_loc"


@dataclass(frozen=True)
class SampledSites:
    """The latents of a model that chains move: inducing outputs, and ``others``, hyperparameters with priors.

    ``parameters`` are the model's own, ``hidden`` the layers that are integrated out.
    """

    model: Model
    inducing: tuple[str, ...]
    others: tuple[str, ...]
    hidden: tuple[str, ...]
    parameters: tuple[str, ...]

    @classmethod
    def of(
        cls, model: Model, x: Float[Array, "N D"], y: Num[Array, "N P"], start: Fit | None
    ) -> SampledSites:
        """Read off a run that nothing is computed in; ValueError for latents that are no such."""
        sampled = SampledModel.of(model, x, y, start)
        kinds: dict[str, str | None] = {}
        plain: list[str] = []

        def look(key: Array) -> None:
            sites = trace(seed(model, key)).get_trace(x, y)
            kinds.update({name: role_of(sites[name]).kind for name in sampled.global_sites})
            plain.extend(name for name in sampled.local_sites if emission_of(sites[name]["fn"]) is None)

        jax.eval_shape(look, jax.random.key(0))
        plain += [name for name, kind in kinds.items() if kind == "hidden"]
        if plain:
            raise ValueError(
                f"model: found the latent {plain[0]!r}, expected inducing outputs, hidden layers and hyperparameters "
                "alone, for no minibatch moves it; use fit_nuts"
            )
        inducing = tuple(name for name, kind in kinds.items() if kind == "inducing")
        if not inducing:
            raise ValueError("model: found no inducing outputs, expected some to sample; use fit_nuts")
        others = tuple(name for name in kinds if name not in inducing)
        return cls(model, inducing, others, sampled.local_sites, tuple(sampled.parameters))

    @property
    def points(self) -> dict[str, str]:
        """The sites that are moved, by the parameter of the guide that is their value."""
        points = {name + LOC_SUFFIX: name for name in self.inducing}
        return points | {name + POINT_SUFFIX: name for name in self.others}

    def beginnings(
        self,
        key: Array,
        guide: Guide,
        start: Fit | None,
        chains: int,
        x: Float[Array, "N D"],
        y: Num[Array, "N P"],
        params: Parameters,
        bijections: Any,
    ) -> Parameters:
        """Unconstrained values (C, …) by parameter: of a start's guide, else of this one, around the model's own.

        :param params: of the model.
        """
        begun = start.params if start is not None else self._before_lift(key, x, y)
        around = {name for name in self.others if name in begun}

        def one(key: Array) -> Parameters:
            key_run, key_start, key_spread = jax.random.split(key, 3)
            run = trace(substitute(seed(guide, key_run), data=params)).get_trace(x, y)
            values = {name: run[name]["value"] for name in self.points.values()}
            values |= {name: begun[name] for name in around}
            if start is not None:
                known = trace(substitute(seed(start.guide, key_start), data=start.params)).get_trace(x, y)
                values |= {
                    name: known[name]["value"] for name in values if name in known and name not in around
                }
            found = {}
            for number, (point, name) in enumerate(self.points.items()):
                found[point] = bijections[point].inv(values[name])
                if name in around:
                    noise = jax.random.normal(jax.random.fold_in(key_spread, number), found[point].shape)
                    found[point] = found[point] + HYPERPARAMETER_SPREAD * noise
            return found

        result: Parameters = compiled(jax.vmap(one))(jax.random.split(key, chains))
        return result

    def _before_lift(self, key: Array, x: Float[Array, "N D"], y: Num[Array, "N P"]) -> Parameters:
        """The values at which a lifted model begins its parameters."""
        if not isinstance(self.model, lift) or not self.others:
            return {}
        sites = trace(seed(self.model.fn, key)).get_trace(x, y).values()
        return {site["name"]: jnp.asarray(site["value"]) for site in sites if site["type"] == "param"}
