"""The functions inside a fitted model: each layer's f with its moments under q(u), and where the rows go through it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.handlers import seed, substitute, trace

from ppl_dgp.fit import Posterior
from ppl_dgp.fit.arguments import takes_fit
from ppl_dgp.gp.contract import role_of
from ppl_dgp.gp.emission import emission_of
from ppl_dgp.gp.features import Functionals, places
from ppl_dgp.gp.marginal import Marginal
from ppl_dgp.gp.representation import replayed
from ppl_dgp.gp.smoothing import Convolved
from ppl_dgp.prediction.predictive_trace import global_sites

#: places along each side of the grid of two inputs, and by which share it goes beyond rows and inducing inputs
FIELD_SIDE, FIELD_MARGIN = 48, 0.04


@dataclass(frozen=True, eq=False)
class LayerMap:
    """One layer: N rows of inputs and outputs, the layer on a grid where it has one or two inputs, its inducing points.

    ``mean`` and ``deviation`` (N, P) are those of f under q(u) at ``inputs`` (N, D), which are the mean outputs of the
    layer before. ``inducing`` (M, D) and ``inducing_mean`` (M, P) are Z and E[u]. ``grid`` (G, D) holds the places of a
    line, or of a square of G = S² of them, the second input running fastest. ``input_names`` and ``output_names`` are
    what axes say, where anything is known.
    """

    name: str
    inputs: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    inducing: np.ndarray
    inducing_mean: np.ndarray
    grid: np.ndarray | None = None
    grid_mean: np.ndarray | None = None
    grid_deviation: np.ndarray | None = None
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()


@takes_fit
def layer_maps(
    fit: Posterior,
    x: Float[Array | np.ndarray, "N D"],
    *,
    grid_size: int = 200,
) -> list[LayerMap]:
    """Every layer's input-output map, in the model's order, the rows of x carried by the layers' means.

    :param x: inputs (N, D), in the units of training.
    :param grid_size: points on the grid of a layer with one input; it spans rows and inducing inputs. That of two
        inputs has 48 along each.
    :raises TypeError: if the model has no layer made by ``sparse_gp``.
    """
    maps = []
    for name, marginal in layer_marginals(fit, jnp.asarray(x)).items():
        function = marginal.function
        z = places(function.inducing)
        if isinstance(marginal.inputs, Functionals):  # f is drawn, where they are
            marginal = function(marginal.inputs.places)
        rows = marginal.rows
        arrays: dict[str, Any] = {
            "inputs": rows,
            "mean": marginal.mean,
            "deviation": marginal.variance**0.5,
            "inducing": z,
            "inducing_mean": function(z).mean,
        }
        # behind the inputs of convolved outputs stands the number of an output, between which nothing lies
        drawn = np.ndim(z) == 2 and not isinstance(function.kernel, Convolved)
        if rows.shape[1] <= 2 and drawn:
            ends = np.concatenate([rows, z])
            count = grid_size if rows.shape[1] == 1 else FIELD_SIDE
            low, high = ends.min(0), ends.max(0)
            # what lies at the edge of a field is to be seen whole
            margin = FIELD_MARGIN * (high - low) if rows.shape[1] == 2 else 0.0
            sides = np.linspace(low - margin, high + margin, count).T
            grid = np.stack(np.meshgrid(*sides, indexing="ij"), -1).reshape(-1, len(sides))
            on_grid = function(jax.numpy.asarray(grid))
            arrays |= {"grid": grid, "grid_mean": on_grid.mean, "grid_deviation": on_grid.variance**0.5}
        found: dict[str, Any] = {key: np.asarray(value) for key, value in arrays.items()}
        maps.append(LayerMap(name=name, **found))
    return maps


def layer_marginals(fit: Posterior, x: Float[Array, "N D"]) -> dict[str, Marginal]:
    """Each layer's marginals of f under q(u) at the rows of x, hidden sites held at their means; by layer name."""
    key = jax.random.key(0)  # no draw enters what is returned, unless q(u) has no moments of each layer alone
    globals_, represented = global_sites(key, fit.guide, fit.params, x, draw="shared_sample")

    def at_the_mean(msg: dict[str, Any]) -> Array | None:
        hidden = msg["type"] == "sample" and role_of(msg).hidden
        emission = emission_of(msg["fn"]) if hidden else None
        return None if emission is None else emission.marginal.mean

    program = substitute(seed(replayed(fit.model, globals_), key), substitute_fn=at_the_mean)
    with represented:
        sites = trace(substitute(program, fit.params)).get_trace(x)
    emissions = [emission_of(site["fn"]) for site in sites.values() if site["type"] == "sample"]
    terms = [term.marginal for e in emissions if e is not None for term in e.marginal.terms]
    marginals = {marginal.function.name: marginal for marginal in terms}
    if not marginals:
        raise TypeError(
            "model: found no layer made by sparse_gp, expected at least one; there are no maps to show"
        )
    return marginals


@takes_fit
def explained(fit: Posterior, x: Float[Array, "N D"]) -> dict[str, Float[np.ndarray, " P"]]:
    """Which function explains what: the variance over the rows of each function's mean, by name, of each output.

    Of a sum of functions; what their means have in common, their covariance, belongs to none of them.

    :param x: inputs (N, D), in the units of training.
    """
    return {name: np.var(np.asarray(each.mean), axis=0) for name, each in layer_marginals(fit, x).items()}
