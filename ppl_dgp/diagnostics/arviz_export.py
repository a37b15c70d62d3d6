"""A fit as ArviZ sees it: ``InferenceData`` in ArviZ 0.23, ``xarray.DataTree`` in 1.x.

Chains are restarts, or Markov chains; of a single restart, whose draws of q are independent, four parts of them.

netCDF takes '/' in a name for a group, so a site ``layer1/u`` is the variable ``layer1.u`` here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array

from ppl_dgp.diagnostics.alignment import aligned
from ppl_dgp.diagnostics.arviz_api import container
from ppl_dgp.diagnostics.arviz_axes import (
    axes_of,
    check_coords,
    column_names,
    labels_of,
    latent_axes,
    parts_of,
    variable_name,
)
from ppl_dgp.diagnostics.draws import Draws, inputs_of, joint_draws
from ppl_dgp.fit import Fit, Posterior
from ppl_dgp.fit.arguments import takes_fit
from ppl_dgp.fit.chains import Chains
from ppl_dgp.gp.contract import Parameters
from ppl_dgp.guides import EmpiricalPosterior

Variables = dict[str, tuple[list[str], np.ndarray]]

#: hidden layers are exported unasked where they take no more numbers than this
HIDDEN_NUMBERS = 2_000_000
#: draws per restart, where it is not said how many
NUM_DRAWS = 200


@takes_fit
def to_arviz(
    key: Array,
    fit: Fit,
    x: Any,
    y: Any,
    *,
    num_draws: int | None = None,
    num_locals: int = 8,
    hidden: bool | None = None,
    align: bool = True,
    row: Any = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
) -> Any:
    """Draws from every restart's posterior as ArviZ's container: ``InferenceData`` (0.23) or ``DataTree`` (1.x).

    Chains are restarts, so that r-hat says whether they have found the same q, or the Markov chains of ``fit_nuts`` and
    ``fit_sghmc``. Of a single restart the draws, which are independent, are cut into four chains, or three or two if
    their number is no multiple of four: r-hat is 1 but for chance then and says nothing of the optimum, which
    ``fit.converged`` does. The attribute ``chains`` says which it is.

    Groups, with C chains of S draws:

    * posterior: whitened inducing outputs ``layer1.u`` (C, S, P, M) and ``layer1.u_unwhitened``, other global sites,
      and the hidden layers ``layer1.h`` (C, S, N, Q) under q, of images the last axis ``layer1_pixel``; a GPLVM's ``x``
      likewise, its last axis ``latent``;
    * posterior_predictive ``y`` (C, S, N[, P]): replicated at x, hidden layers from the model's own conditionals, so
      that a GPLVM's x comes from its prior and its replicates are rows like these, not the n-th again;
    * log_likelihood ``y`` (C, S, N): log p(y_n | θ), targets of a row together, the locals averaged out over
      ``num_locals`` draws, importance-weighted by p(h_n | θ)/q(h_n | θ): what LOO needs;
    * observed_data ``y``, NaN where an entry is missing; constant_data ``x`` if there is one, ``index``, the model's
      parameters that are not random (``layer1.lengthscale``, inducing inputs; C first), ``x.rotation`` of latents that
      were aligned;
    * sample_stats: ``log_p`` = log p(y, θ) and ``log_q`` = log q(θ) per draw, as ``loo_approximate_posterior`` takes
      them, ``lp`` the same as ``log_p``, and the ``loss`` of every step (C, steps). Of a fit by ``fit_nuts``, whose
      chains and draws are NUTS's own, no ``log_q`` and ``loss`` but ``diverging``, ``acceptance_rate``, ``n_steps``,
      ``energy`` and ``step_size``.

    Densities are of the t_1 (FITC) model and, like all else, in the units of training.

    :param fit: what ``fit_svi`` returned.
    :param x: the training inputs (N, D), all of them, in their order, None for a GPLVM; y (N, P) or (N,) the targets.
        Arrays or DataFrames.
    :param num_draws: per restart, 200 by default, over all its chains; of a fit by ``fit_nuts`` or ``fit_sghmc`` of
        each chain all, or so many evenly spaced ones.
    :param num_locals: K, see above.
    :param hidden: whether to keep the hidden layers; by default where they are at most two million numbers.
    :param align: whether latents without a GP in front are turned, every chain by one rotation or reflection R towards
        the best chain (see :func:`ppl_dgp.diagnostics.aligned`), without which r-hat compares axes that differ. All
        else, such as inducing inputs and lengthscales, stays in the frame of its chain; ``x.rotation`` holds R, so that
        x Rᵀ are the latents there. The posterior's attribute ``aligned`` says so.
    :param row: labels of the N rows, 0 … N − 1 by default.
    :param coords: labels of axes by their names. Those of ``input`` and ``target`` are the names of the columns of x
        and y, by default those of a DataFrame; layers whose inputs are x, and the one whose outputs are y, have them
        too, unless ``coords`` names their axes, ``layer1_input``.
    :raises ValueError: if the rows of x, y and ``row`` do not agree, or labels are of an axis that is not there,
        or not one for each place.
    :raises TypeError: for a model without a data plate (exact GP).
    """
    targets = np.asarray(y)
    inputs = inputs_of(None if x is None else np.asarray(x), targets)
    targets = targets.reshape(targets.shape[0], -1)
    given = dict(coords or {})
    known = column_names(input=x, target=y) | given
    labels = np.arange(inputs.shape[0]) if row is None else np.asarray(row)
    for name, array in (("y", targets), ("row", labels)):
        if array.shape[0] != inputs.shape[0]:
            raise ValueError(f"{name}: found {array.shape[0]} rows, expected {inputs.shape[0]} as x has")
    chains = []
    restarts = _restarts(fit)
    for chain, params in enumerate(restarts):
        chain_key = jax.random.fold_in(key, chain)
        draws = joint_draws(
            chain_key,
            Posterior(fit.model, fit.guide, params, data=fit.data),
            inputs,
            targets,
            num_draws=_draws_per_chain(fit, params) if num_draws is None else num_draws,
            num_locals=num_locals,
        )
        chains.append(draws)
    parts = parts_of(len(chains[0].log_p)) if len(chains) == 1 and fit.chains is None else 1
    if parts > 1:
        chains, restarts = chains[0].split(parts), restarts * parts
    num_draws = len(chains[0].log_p)
    numbers = len(chains) * sum(value.size for value in chains[0].hidden.values())
    keep_hidden = numbers <= HIDDEN_NUMBERS if hidden is None else hidden
    layers = {
        site: np.stack([chain.hidden[site] for chain in chains])
        for site in (chains[0].hidden if keep_hidden else ())
    }
    turns: dict[str, np.ndarray] = {}
    axes = latent_axes(chains[0])
    for site in axes if align and keep_hidden and len(chains) > parts else ():
        layers[site], turns[site] = aligned(layers[site], fit.best)
    rotations: Variables = {
        f"{variable_name(site)}.rotation": (["chain", f"{axes[site]}_of_chain", axes[site]], turn)
        for site, turn in turns.items()
    }
    labelled = labels_of(known, chains[0])
    labelled |= {"chain": np.arange(len(chains)), "draw": np.arange(num_draws), "row": labels}
    target = [] if targets.shape[1] == 1 else ["target"]
    observed = targets[:, 0] if not target else targets
    replicated = _stack(chains, "y")
    log_p = _stack(chains, "log_p") + _stack(chains, "log_likelihood").sum(-1)
    sample = ["chain", "draw"]
    stats = {
        "lp": (sample, log_p),
        "log_p": (sample, log_p),
        "log_q": (sample, _stack(chains, "log_q")),
        "loss": (["chain", "step"], np.repeat(fit.losses, parts, axis=0)),
    }
    if fit.chains is not None:
        stats = {name: stats[name] for name in ("lp", "log_p")} | _sampler_stats(fit.chains, num_draws)
    posterior = _dataset(_posterior(chains, layers), labelled)
    if turns:
        names = ", ".join(variable_name(site) for site in turns)
        posterior.attrs["aligned"] = f"{names}: rotated towards chain {fit.best}"
    groups = {
        "posterior": posterior,
        "posterior_predictive": _dataset(
            {"y": ([*sample, "row", *target], replicated if target else replicated[..., 0])}, labelled
        ),
        "log_likelihood": _dataset({"y": ([*sample, "row"], _stack(chains, "log_likelihood"))}, labelled),
        "observed_data": _dataset({"y": (["row", *target], observed)}, labelled),
        "constant_data": _dataset(
            {**_constants(restarts, inputs, set(chains[0].sites) | set(chains[0].hidden)), **rotations},
            labelled,
        ),
        "sample_stats": _dataset(stats, labelled),
    }
    check_coords(
        given,
        {"input": inputs.shape[1], "target": targets.shape[1]},
        *(group.sizes for group in groups.values()),
    )
    return container(groups, _attributes(fit, parts))


def _restarts(fit: Fit) -> list[Parameters]:
    """The parameters of each chain: a restart, or a Markov chain."""
    if isinstance(fit.guide, EmpiricalPosterior):
        return fit.guide.by_chain(fit.params)
    count = len(next(iter(fit.restart_params.values())))
    return [{name: value[chain] for name, value in fit.restart_params.items()} for chain in range(count)]


def _draws_per_chain(fit: Fit, params: Parameters) -> int:
    return fit.guide.num_draws(params) if isinstance(fit.guide, EmpiricalPosterior) else NUM_DRAWS


def _sampler_stats(chains: Chains, num_draws: int) -> Variables:
    """What the sampler says of the draws, evenly spaced ones if not of all."""
    size = chains.stats["diverging"].shape[1]
    numbers = np.arange(num_draws) * size // num_draws
    names = [name for name in chains.stats if name != "potential_energy"]
    return {name: (["chain", "draw"], chains.stats[name][:, numbers]) for name in names}


def _stack(chains: list[Draws], name: str) -> np.ndarray:
    return np.stack([getattr(chain, name) for chain in chains])


def _posterior(chains: list[Draws], layers: dict[str, np.ndarray]) -> Variables:
    variables: Variables = {}
    latents = latent_axes(chains[0])
    for site in chains[0].sites:
        value = np.stack([chain.sites[site] for chain in chains])
        # a latent outside the data plate is a trajectory
        named = ["slot", "latent"] if site in chains[0].latents else None
        axes = axes_of(
            site, value.ndim - 2, ["output", "inducing"] if site in chains[0].unwhitened else named
        )
        variables[variable_name(site)] = (["chain", "draw", *axes], value)
    for site in chains[0].unwhitened:
        value = np.stack([chain.unwhitened[site] for chain in chains])
        axes = axes_of(site, 2, ["output", "inducing"])
        variables[variable_name(site) + "_unwhitened"] = (["chain", "draw", *axes], value)
    for site, value in layers.items():
        outputs = chains[0].sites.get(site.rpartition("/")[0] + "/u")
        # of images that a layer makes of patches the outputs stand at every place
        last = "output" if outputs is None or value.shape[-1] == outputs.shape[1] else "pixel"
        axes = axes_of(site, value.ndim - 3, [last] if value.ndim == 4 else None)
        axes = [latents[site]] if site in latents else axes
        variables[variable_name(site)] = (["chain", "draw", "row", *axes], value)
    return variables


def _constants(restarts: list[Parameters], x: np.ndarray, sites: set[str]) -> Variables:
    variables: Variables = {"index": (["row"], np.arange(x.shape[0]))}
    if x.shape[1]:
        variables["x"] = (["row", "input"], x)
    for name in restarts[0]:
        # the guide's parameters are named after the sites they approximate
        if any(name.startswith(f"{site}_") for site in sites):
            continue
        value = np.stack([np.asarray(params[name]) for params in restarts])
        named = {"inducing": ["inducing", "input"], "lengthscale": ["input"]}.get(name.rpartition("/")[2])
        axes = axes_of(
            name, value.ndim - 1, named if named is not None and len(named) == value.ndim - 1 else None
        )
        variables[variable_name(name)] = (["chain", *axes], value)
    return variables


def _dataset(variables: Variables, coords: dict[str, np.ndarray]) -> xr.Dataset:
    """A dataset with a coordinate for every axis: those given, else 0, 1, …."""
    lengths = {
        axis: size for axes, value in variables.values() for axis, size in zip(axes, value.shape, strict=True)
    }
    labels = {
        axis: coords[axis] if axis in coords and len(coords[axis]) == size else np.arange(size)
        for axis, size in lengths.items()
    }
    return xr.Dataset(variables, labels)


def convergence_attributes(fit: Fit) -> dict[str, Any]:
    """Whether a fit has converged, as netCDF can hold it; nothing where nothing is known."""
    known = fit.convergence
    if known is None:
        return {}
    numbers = {"gap": known.gap, "gap_error": known.error, "tolerance": known.tolerance}
    return {"converged": int(known.converged), "convergence": known.shown, **numbers}


def _attributes(fit: Fit, parts: int) -> dict[str, Any]:
    chains = "restarts" if parts == 1 else f"{parts} parts of the independent draws of one restart"
    try:
        own = version("ppl-dgp")
    except PackageNotFoundError:
        own = "unknown"
    rules = {
        name: repr(getattr(fit.guide, name)) for name in ("hidden", "inducing") if hasattr(fit.guide, name)
    }
    return {
        "inference_library": "ppl_dgp",
        "inference_library_version": own,
        "created_at": datetime.now(UTC).isoformat(),
        "objective": repr(fit.objective),
        **rules,
        "steps": fit.steps,
        "seconds": fit.seconds,
        "best_chain": fit.best,
        "chains": chains if fit.chains is None else "Markov chains",
        **convergence_attributes(fit),
        "units": "as in training",
    }
