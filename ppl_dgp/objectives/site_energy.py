"""The energy of iterated Power EP as an objective: of a model of one layer whose sites are among the parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import ELBO

from ppl_dgp.gp.contract import Model, Parameters, role_of
from ppl_dgp.gp.emission import emission_of
from ppl_dgp.gp.separate import check_shared
from ppl_dgp.gp.wrappers import mask_of
from ppl_dgp.likelihoods import Likelihood
from ppl_dgp.numerics.products import multiplying_in_full
from ppl_dgp.objectives.alpha import checked_alpha
from ppl_dgp.objectives.sites import SiteParameters, SweepRows, energy_of_sites

#: of the parameters that hold ν and τ, after the layer's name
SITE_SUFFIXES = ("/site_location", "/site_precision")


class Layer(NamedTuple):
    """The one layer of a model, as a run of it has it: the inducing site's name, the rows, the likelihood."""

    site: str
    rows: SweepRows
    likelihood: Likelihood

    def tempered(self, alpha: float) -> Callable[[Array, Array, Array], Array]:
        """t_α(y; mean, variance) of each target."""
        return lambda y, mean, variance: self.likelihood.tempered(y, mean, variance, alpha)


def read_layer(model: Model, params: Mapping[str, Array], *args: Any, **kwargs: Any) -> Layer:
    """The layer of a model at given parameters, by running it.

    :raises ValueError: if it has other latents than one layer's inducing outputs, other data than one site, or masks.
    :raises TypeError: if the data are not those of f(x).noisy(...) or f(x).observe(...).
    """
    seeded = substitute(seed(model, jax.random.PRNGKey(0)), data=dict(params))
    run = trace(seeded).get_trace(*args, **kwargs)
    sites = {name: site for name, site in run.items() if site["type"] == "sample"}
    latent = [name for name, site in sites.items() if not site["is_observed"]]
    observed = [name for name, site in sites.items() if site["is_observed"]]
    if [role_of(sites[name]).kind for name in latent] != ["inducing"] or len(observed) != 1:
        raise ValueError(
            f"model: found the latent sites {sorted(latent)} and the data {sorted(observed)}, expected the inducing "
            "outputs of one layer and one site of data; use fit_svi with PowerEP otherwise"
        )
    (name,) = observed
    site = sites[name]
    emission = emission_of(site["fn"])
    if emission is None:
        raise TypeError(
            f"model: found {type(site['fn']).__name__} at {name!r}, expected f(x).noisy(...) or f(x).observe(...)"
        )
    if mask_of(site["fn"]) is not True:
        raise ValueError("model: found masked rows, expected all to count; leave them out of x and y instead")
    plates = {
        plate["name"]: plate["args"][0] / len(plate["value"])
        for plate in run.values()
        if plate["type"] == "plate"
    }
    expected = prod(plates[frame.name] for frame in site["cond_indep_stack"])
    if site["scale"] is not None and not (
        isinstance(site["scale"], int | float) and site["scale"] == expected
    ):
        raise ValueError("model: found y scaled, expected every row to count once; use fit_svi with PowerEP")
    marginal = emission.marginal
    check_shared(marginal.function, f"{marginal.function.name} under Power EP with sites")
    offset = marginal.function.mean(marginal.rows)
    rows = SweepRows(
        marginal.weights, marginal.residual, jnp.broadcast_to(offset, marginal.mean.shape), site["value"]
    )
    return Layer(latent[0], rows, emission.likelihood)


def site_names(inducing: str) -> tuple[str, str]:
    """The parameters that hold ν and τ, (N, F), of the layer whose inducing site is named."""
    layer = inducing.rpartition("/")[0]
    location, precision = SITE_SUFFIXES
    return layer + location, layer + precision


class SiteEnergy(ELBO):
    """Minus the energy of Power EP (Bui 2017, A.103) at sites that are among the parameters, as of ``fit_power_ep``.

    An energy and no bound for α > 0; at α = 0 the variational bound.
    """

    is_stochastic = False
    needs_all_rows = True
    divergence_is_kl = False

    def __init__(self, alpha: float) -> None:
        """
        :param alpha: in [0, 1].
        :raises TypeError: if alpha is not a number.
        :raises ValueError: if alpha is outside [0, 1].
        """
        self.alpha = checked_alpha("SiteEnergy", alpha)
        super().__init__(1)

    @property
    def is_bound(self) -> bool:
        """Whether it lies below the log evidence."""
        return self.alpha == 0.0

    def __repr__(self) -> str:
        return f"SiteEnergy(alpha={self.alpha:g})"

    @multiplying_in_full
    def loss(
        self,
        rng_key: Array,
        param_map: Parameters,
        model: Model,
        guide: Model,
        *args: Any,
        **kwargs: Any,
    ) -> Float[Array, ""]:
        """Minus the energy in total nats, of all rows; takes no random draw.

        :raises ValueError: as :func:`read_layer`, and if the sites are not among the parameters.
        """
        layer = read_layer(model, param_map, *args, **kwargs)
        names = site_names(layer.site)
        if missing := [name for name in names if name not in param_map]:
            raise ValueError(f"params: found no {missing}, expected the sites; take those of fit_power_ep")
        sites = SiteParameters(*(param_map[name] for name in names))
        return -energy_of_sites(layer.tempered(self.alpha), layer.rows, sites, self.alpha)
