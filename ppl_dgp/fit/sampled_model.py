"""What NUTS samples of a model, what it holds, and where chains begin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num
from numpyro.handlers import seed, substitute, trace
from numpyro.infer.util import potential_energy, unconstrain_fn
from numpyro.primitives import Messenger, prng_key

from ppl_dgp.fit.result import Fit, fingerprint
from ppl_dgp.gp.contract import Model, Parameters, role_of
from ppl_dgp.gp.parameters import check_lifted, check_of_model
from ppl_dgp.gp.wrappers import unwrap
from ppl_dgp.numerics.compatibility import compiled

#: deviation, unconstrained, of the chains around the one value that a start has of a hyperparameter
HYPERPARAMETER_SPREAD = 0.1


@dataclass(frozen=True)
class SampledModel:
    """The latents and parameters of a model, by name."""

    model: Model
    global_sites: tuple[str, ...]
    local_sites: tuple[str, ...]
    parameters: dict[str, tuple[int, ...]]

    @classmethod
    def of(
        cls, model: Model, x: Float[Array, "N D"], y: Num[Array, "N P"], start: Fit | None
    ) -> SampledModel:
        """Read off one run, which nothing is computed in; ValueError where NUTS cannot sample from the model."""
        global_sites: list[str] = []
        local_sites: list[str] = []
        shapes: dict[str, tuple[int, ...]] = {}

        def look(key: Array) -> None:
            run = trace(seed(model, key)).get_trace(x, y)
            check_lifted(model, run)
            sites = run.values()
            samples = [site for site in sites if site["type"] == "sample"]
            data = {
                frame.name for site in samples if site["is_observed"] for frame in site["cond_indep_stack"]
            }
            for site in sites:
                if site["type"] == "plate" and site["value"].shape[0] != site["args"][0]:
                    raise ValueError(
                        f"model: found {site['value'].shape[0]} of {site['args'][0]} rows in the plate "
                        f"{site['name']!r}, expected all of them; make the model without subsample_size"
                    )
                if site["type"] == "param":
                    shapes[site["name"]] = jnp.shape(site["value"])
            for site in samples:
                if site["is_observed"]:
                    continue
                if unwrap(site["fn"]).support.is_discrete:
                    raise ValueError(
                        f"model: found the discrete latent {site['name']!r}, which chains cannot move; sum it out in "
                        "the model, or use fit_svi, which does"
                    )
                inside = data & {frame.name for frame in site["cond_indep_stack"]}
                (local_sites if inside else global_sites).append(site["name"])

        jax.eval_shape(look, jax.random.key(0))
        if not (global_sites or local_sites):
            raise ValueError(
                "model: found no latent sites, expected some to sample; give hyperparameters priors by "
                "numpyro.handlers.lift, or use fit_lbfgs"
            )
        begun = {} if start is None else start.params
        for name, shape in shapes.items() if start is not None else ():
            known = jnp.shape(begun[name]) if name in begun else "none"
            if known != shape:
                raise ValueError(
                    f"start: found {known} for the parameter {name!r}, expected shape {shape}; pass a fit of this model"
                )
        return cls(model, tuple(global_sites), tuple(local_sites), shapes)

    def held(self, key: Array, x: Float[Array, "N D"], y: Num[Array, "N P"], start: Fit | None) -> Parameters:
        """The parameters at their values in a fit, or where the model begins them."""
        if start is not None:
            return {name: start.params[name] for name in self.parameters}

        def initial(key: Array) -> Parameters:
            sites = trace(seed(self.model, key)).get_trace(x, y)
            return {name: jnp.asarray(sites[name]["value"]) for name in self.parameters}

        try:
            params: Parameters = compiled(initial)(key)
            return params
        except jax.errors.JAXTypeError:  # a model that looks at values to begin with
            return initial(key)


def check_start_fit(start: Any, model: Model) -> None:
    """Refuse what chains cannot start at: a TypeError for no fit, a ValueError for one of another model."""
    if start is None:
        return
    if not isinstance(start, Fit):
        raise TypeError(f"start: found {type(start).__name__}, expected a Fit such as fit_svi returns")
    check_of_model("start", start.model, model, "pass a fit of this model")


class Beginning(Messenger):
    """Draws inducing outputs and latents where guides begin them."""

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "sample" or msg["is_observed"] or msg["value"] is not None:
            return
        role = role_of(msg)
        if role.kind == "inducing":
            noise = jax.random.normal(prng_key(), msg["fn"].shape())
            msg["value"] = role.initial_scale * noise
        elif role.kind == "hidden" and role.start is not None:
            msg["value"] = role.start().draw(prng_key())


def beginnings(
    program: SampledModel,
    conditioned: Model,
    start: Fit | None,
    x: Float[Array, "N D"],
    y: Num[Array, "N P"],
) -> Callable[[Array], tuple[Parameters, Array]]:
    """What gives the unconstrained values that a chain begins with, by its key, and minus their log density."""
    latents = program.global_sites + program.local_sites
    same_rows = start is not None and start.fingerprint == fingerprint(x, y)

    def begin(key: Array) -> tuple[Parameters, Array]:
        key_guide, key_run, key_spread = jax.random.split(key, 3)
        known: Parameters = {}
        if start is not None:
            known |= {name: start.params[name] for name in latents if name in start.params}
        lifted = set(known)
        if start is not None and same_rows:
            sites = trace(substitute(seed(start.guide, key_guide), data=start.params)).get_trace(x, y)
            known |= {name: sites[name]["value"] for name in latents if name in sites}

        def run(*args: Any) -> Any:
            with Beginning():
                return conditioned(*args)

        sites = trace(substitute(seed(run, key_run), data=known)).get_trace(x, y)
        values = {name: sites[name]["value"] for name in latents}
        free = unconstrain_fn(conditioned, (x, y), {}, values)
        for number, name in enumerate(latents):
            if name in lifted:
                noise = jax.random.normal(jax.random.fold_in(key_spread, number), free[name].shape)
                free[name] = free[name] + HYPERPARAMETER_SPREAD * noise
        return free, potential_energy(conditioned, (x, y), {}, free)

    return begin
