r"""Discrete latents outside the data plate, summed out over all rows together.

Sites that the model marks with ``infer={"enumerate": "parallel"}``: a change point, the kind of a whole data set, the
regimes of a chain. With θ and u given, and ℓ_n(z) the tempered term of row n at given values,

.. math::
    \log \sum_z p(z) \exp \sum_n \ell_n(z), \qquad \ell_n(z) = \frac1\alpha \log E_{q(h_n)} w_n(h_n, z)^\alpha,

which q(z) would leave at its best. At α = 1 it is exact given u. Below it is a bound: E exp ℓ_n is at most
p(y_n | z, u), for a power mean grows with its order, and rows are independent given z and u. Each row has a power mean
of its own: draws of all rows in one would have hopeless weights. Rows know of each other through z, so u is one draw
for all of them, and a minibatch, whose sum would be scaled inside a logarithm, is refused.

What a site's density and each factor of the data depend on is read off the traced program, as ``markov`` would say it.
Sites that no factor has in common may go through their values together: the sites are coloured so that no two of a
factor have one colour, and the model runs once for each combination of the colours' values under ``vmap``, K² times for
a chain of any length. The sum over the product of the factors is funsor's (Obermeyer et al. 2019), in an order of least
cost, linear in the length of a chain; the enumeration is not ``numpyro.contrib.funsor.enum``'s, whose dimensions in
front of the rows neither emissions nor rules could take. funsor is imported where it is needed: it takes seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from ppl_dgp.gp.contract import Trace
from ppl_dgp.gp.wrappers import mask_of
from ppl_dgp.numerics.compatibility import input_dependencies
from ppl_dgp.objectives.enumeration import MOST_COMBINATIONS, supports_of

#: log weights of a run by group, log q of its rows' own discrete sites, and its traces
Weights = tuple[dict[str, Array], dict[str, Array], tuple[Trace, Trace]]


@dataclass(frozen=True)
class OutsideSum:
    """The sites that are summed, and which of them each factor depends on.

    :param supports: the values of each site, (K,).
    :param shapes: of a value of each site, of one entry.
    :param colours: of each site; those of one factor are all different.
    :param parents: of each factor, by name, the sites that it depends on.
    """

    supports: dict[str, Shaped[Array, " K"]]
    shapes: dict[str, tuple[int, ...]]
    colours: dict[str, int]
    parents: dict[str, set[str]]

    @classmethod
    def of(
        cls, names: list[str], model: Trace, factors: Callable[[dict[str, Array]], dict[str, Array]]
    ) -> OutsideSum:
        """Which sites each factor depends on.

        :param names: of the sites.
        :param model: a run of the model.
        :param factors: the factors at given values of the sites, a site's own density under its name.
        :raises ValueError: for a site with several entries, or too many combinations that one factor depends on.
        """
        for name in names:
            if jnp.size(model[name]["value"]) != 1:
                raise ValueError(
                    f"model: found the discrete site {name!r} of shape {jnp.shape(model[name]['value'])} outside the "
                    "data plate, expected one value; write a site for each, of a chain in a loop: "
                    "for t in markov(range(T))"
                )
        supports = supports_of(names, model)
        shapes = {name: jnp.shape(model[name]["value"]) for name in names}
        parents = input_dependencies(factors, {name: model[name]["value"] for name in names})
        # that of a masked site is a constant, of which there are K
        parents = {factor: found | {factor} & {*names} for factor, found in parents.items()}
        for factor, found in parents.items():
            count = prod(len(supports[name]) for name in found)
            if count > MOST_COMBINATIONS:
                raise ValueError(
                    f"model: found {factor!r} to depend on {count} combinations of {len(found)} discrete sites, "
                    f"expected at most {MOST_COMBINATIONS}; give each step of a chain data of its own, outside the "
                    'plate: numpyro.sample(f"y_{t}", …), or take switching_gpssm'
                )
        colours: dict[str, int] = {}
        for name in names:
            beside = {other for found in parents.values() if name in found for other in found}
            taken = {colours[other] for other in beside & colours.keys()}
            colours[name] = next(colour for colour in range(len(names)) if colour not in taken)
        return cls(supports, shapes, colours, parents)

    @property
    def sizes(self) -> list[int]:
        """K of each colour: the most values of its sites."""
        return [
            max(len(self.supports[name]) for name, colour in self.colours.items() if colour == number)
            for number in range(1 + max(self.colours.values()))
        ]

    def values(self) -> dict[str, Shaped[Array, " L *one"]]:
        """The values of each site in the L runs, one for each combination of the colours' values."""
        grid = jnp.meshgrid(*map(jnp.arange, self.sizes), indexing="ij")
        return {
            name: support[jnp.minimum(grid[self.colours[name]].ravel(), len(support) - 1)].reshape(
                -1, *self.shapes[name]
            )
            for name, support in self.supports.items()
        }

    def first(self) -> dict[str, Shaped[Array, "*one"]]:
        """The first value of each site."""
        return {name: jnp.full(self.shapes[name], support[0]) for name, support in self.supports.items()}

    def weighed(self, weigh: Callable[[dict[str, Array]], Weights]) -> Weights:
        """Log weights and log q of the L runs, side by side, and the traces of one."""
        weights, log_q = jax.vmap(lambda values: weigh(values)[:2])(self.values())
        return weights, log_q, weigh(self.first())[2]

    def log_sum_of_particles(
        self,
        weights: Mapping[str, Float[Array, "S L ..."]],
        log_q: Mapping[str, Float[Array, "S L ..."]],
        power_mean: Callable[[Array, Array | None], Array],
        apart: bool,
    ) -> Float[Array, ""]:
        """log Σ_z p(z) exp Σ_n ℓ_n(z).

        :param power_mean: ℓ_n of the log weights of particles, and of log q of the rows' own discrete sites.
        :param apart: whether each particle has a sum of its own, whose logarithms are averaged.
        """

        def total(weights: Mapping[str, Array], log_q: Mapping[str, Array]) -> Array:
            factors = {}
            for name, log_w in weights.items():
                rows = jax.vmap(power_mean, in_axes=(1, 1 if name in log_q else None))(log_w, log_q.get(name))
                factors[name] = rows.reshape(rows.shape[0], -1).sum(1)
            return self.log_sum(factors)

        if not apart:
            return total(weights, log_q)
        each = jax.tree.map(lambda leaf: leaf[:, None], (dict(weights), dict(log_q)))
        return jax.vmap(total)(*each).mean()

    def log_sum(self, factors: Mapping[str, Float[Array, " L"]]) -> Float[Array, ""]:
        """log Σ_z exp Σ of the factors, given those of the L runs."""
        import funsor

        funsor.set_backend("jax")
        sizes, sites = self.sizes, frozenset(self.supports)
        tensors = []
        for factor, values in factors.items():
            at = {self.colours[name]: name for name in self.parents[factor]}
            take: Any = tuple(
                slice(len(self.supports[at[colour]])) if colour in at else 0 for colour in range(len(sizes))
            )
            inputs = OrderedDict(
                (at[colour], funsor.Bint[len(self.supports[at[colour]])]) for colour in sorted(at)
            )
            tensors.append(funsor.Tensor(values.reshape(sizes)[take], inputs))
        with funsor.interpretations.lazy:
            product = funsor.sum_product.sum_product(
                funsor.ops.logaddexp, funsor.ops.add, tensors, eliminate=sites, plates=frozenset()
            )
        total: Array = funsor.optimizer.apply_optimizer(product).data
        return total


def site_densities(names: list[str], model: Trace) -> dict[str, Float[Array, ""]]:
    """log p(z | what it depends on) of each site; of what is masked the same share of 1 for all values."""
    found = {}
    for name, support in supports_of(names, model).items():
        site, share = model[name], -jnp.log(float(len(support)))
        scale = 1.0 if site["scale"] is None else site["scale"]
        density = scale * site["fn"].log_prob(site["value"])
        found[name] = jnp.where(mask_of(site["fn"]), density, share).sum()
    return found
