"""A run of the model at new rows: its globals from the guide, everything else from the model's own conditionals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jaxtyping import Array
from numpyro.handlers import seed, substitute, trace
from numpyro.primitives import Messenger

from ppl_dgp.gp.contract import DATA_PLATE, INDUCING_SUFFIX, Parameters, Propagation, Representation, role_of
from ppl_dgp.gp.emission import Emission, emission_of
from ppl_dgp.gp.parameters import ParameterCheck
from ppl_dgp.gp.representation import replayed
from ppl_dgp.guides import Guide
from ppl_dgp.likelihoods import Gaussian as GaussianNoise
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.objectives.enumeration import discrete_latents
from ppl_dgp.objectives.representation import RepresentationHandler, choose_representations

SiteValues = dict[str, dict[str, Any]]


def model_sites(
    key: Array,
    model: Callable[..., Any],
    guide: Callable[..., Any],
    params: Parameters,
    x: Array,
    *,
    values: Parameters | None = None,
    shared_sample: bool = False,
    joint_rows: bool = False,
    propagation: Propagation = "draws",
    prior: bool = False,
) -> SiteValues:
    """A run of the model at new rows, its globals from the guide, and sites at ``values`` where they are given.

    :param prior: whether the globals are the model's own draws instead.
    :raises ValueError: for parameters that are missing, unknown, or of other shapes than the programs', or a discrete
        latent that all rows share.
    """
    key_globals, key_model = jax.random.split(key)
    kind: Representation = "shared_sample" if shared_sample else "marginal"
    # rows that are drawn jointly share one function, so where u is drawn it is one draw too
    draw: Representation = "shared_sample" if joint_rows else "per_datum_sample"
    given = ParameterCheck(params)
    params = params | (values or {})
    rows = _JointRows() if joint_rows else Messenger()
    if prior:
        with given:
            own: SiteValues = trace(substitute(_within(seed(model, key_model), rows), params)).get_trace(x)
        return own
    with given:
        globals_, represented = global_sites(key_globals, guide, params, x, kind, draw, propagation)
    program = seed(replayed(model, globals_), key_model)
    with given, represented:
        # seed is the outer handler: the row sampler inside it asks it for keys
        found: SiteValues = trace(substitute(_within(program, rows), params)).get_trace(x)
    represented.check_heard()
    given.check_known()
    for name in discrete_latents(found):
        if not found[name]["cond_indep_stack"]:
            raise ValueError(
                f"model: found the discrete latent {name!r} outside the data plate, whose value new rows share with "
                "the training rows; take responsibilities(key, fit, x, y) and fix it, "
                f"numpyro.handlers.condition(model, {{{name!r}: value}})"
            )
    return found


def global_sites(
    key: Array,
    guide: Callable[..., Any],
    params: Parameters,
    x: Array,
    kind: Representation = "marginal",
    draw: Representation = "per_datum_sample",
    propagation: Propagation = "draws",
) -> tuple[SiteValues, RepresentationHandler]:
    """A run of the guide for new rows: its sites outside the data plate, and the carrier of their inducing outputs.

    :param kind: how u is carried, but for functions used more than once, of which there is one joint draw.
    :param draw: what takes the place of moments where these would be wrong.
    :param propagation: how the hidden layers are carried.
    """
    key_guide, representation_key = jax.random.split(key)
    new_rows = guide.with_model_hidden() if isinstance(guide, Guide) else guide
    run = trace(substitute(seed(new_rows, key_guide), params))
    sites = run.get_trace(x)
    found = {
        name: site
        for name, site in sites.items()
        if site["type"] == "sample"
        and not any(frame.name == DATA_PLATE for frame in site["cond_indep_stack"])
    }
    roles = {
        name: role_of(site)
        for name, site in found.items()
        if role_of(site).inducing or name.endswith(INDUCING_SUFFIX)
    }
    how = {
        name: propagation for name, site in sites.items() if site["type"] == "sample" and role_of(site).hidden
    }
    represented = RepresentationHandler(
        choose_representations(roles, found, asked=kind, draw=draw),
        x.shape[0],
        representation_key,
        propagation=how,
    )
    represented.answer_all(found)
    if represented.propagation:
        with represented:  # the guide's run answers for the model's
            run.get_trace(x)
    return found, represented


class _JointRows(Messenger):
    """Draws each hidden layer's f jointly over the rows."""

    def process_message(self, msg: dict[str, Any]) -> None:
        emission = emission_of(msg["fn"]) if msg["type"] == "sample" else None
        if emission is None or msg["is_observed"] or not role_of(msg).hidden or msg["value"] is not None:
            return
        if not isinstance(emission.likelihood, GaussianNoise):
            raise TypeError(
                f"model: found hidden site {msg['name']!r} whose noise is not Gaussian; use noisy()"
            )
        key_f, key_noise = jax.random.split(numpyro.prng_key())
        noise = jax.random.normal(key_noise, emission.marginal.mean.shape)
        msg["value"] = emission.marginal.draw(key_f) + jnp.sqrt(emission.likelihood.variance) * noise


def _within(fn: Callable[..., Any], messenger: Messenger) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with messenger:
            return fn(*args, **kwargs)

    return run


def blocks(size: int, *arrays: Any) -> Iterator[tuple[int, Any]]:
    """Rows a block at a time, and where it begins; the last is filled up with its first row: one shape is compiled."""
    count = len(arrays[0])
    size = min(size, count)
    for begin in range(0, count, size):
        take = np.arange(begin, begin + size)
        take[take >= count] = begin
        yield begin, jax.tree.map(lambda each: jnp.asarray(np.asarray(each)[take]), arrays)  # noqa: B023


def check_latents(latents: Mapping[str, Gaussian], sites: SiteValues) -> None:
    """Raise ValueError for latents that are no hidden sites of the model, or of other rows."""
    hidden = {
        name: site["value"].shape
        for name, site in sites.items()
        if site["type"] == "sample" and role_of(site).hidden
    }
    for name, moments in latents.items():
        if hidden.get(name) != moments.mean.shape:
            raise ValueError(
                f"latents: found {name!r} of shape {moments.mean.shape}, expected one of the model's hidden sites "
                f"{hidden}"
            )


def drawn(key: Array, latents: Mapping[str, Gaussian], alike: bool = False) -> dict[str, Array]:
    """A draw of each latent, rows independent, or ``alike`` in their noise."""
    keys = jax.random.split(key, max(1, len(latents)))
    return {
        site: known.draw(k, alike) for k, (site, known) in zip(keys, sorted(latents.items()), strict=False)
    }


def target_emission(sites: SiteValues) -> Emission:
    """The distribution of y at new rows given one draw of the globals' rest and of the hidden layers."""
    emission = emission_of(sites["y"]["fn"])
    if emission is None:
        raise TypeError(
            "model: found a site 'y' that is not made by noisy() or observe(); predict needs one that is"
        )
    return emission
