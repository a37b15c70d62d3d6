"""Rules for the whitened inducing outputs: what q(u) of each layer is, and what it may know of the layers before.

P outputs, M inducing points. ``Diagonal``, ``LowRank`` and ``FullRank`` are products over layers and outputs,
``AcrossOutputs`` over layers; ``LayerChain`` (Chamberlin 2016, 4.5 and A.6) and ``Coupled`` (Lindinger et al. 2020)
correlate the layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from jaxtyping import Array
from numpyro.distributions import constraints

from ppl_dgp.gp.contract import Parameters, SiteRole
from ppl_dgp.guides.containment import Containment
from ppl_dgp.guides.structured import InducingConditional, InducingJoint, LayerLink, LowRankLink
from ppl_dgp.numerics.gaussian import Gaussian, InducingGaussian


@dataclass(frozen=True)
class Earlier:
    """An inducing site that has been sampled before: its q, and the draw."""

    q: InducingGaussian
    value: Array


#: what the factors of a low-rank rule are shrunk to where it is to be a poorer one, of the deviations
SLIGHT = 1e-3


class InducingRule:
    """q(u) of one site of shape (P, M)."""

    #: whether the inducing inputs of a layer are the draw of the layer before at its own
    pushes_inducing = False

    def of_site(
        self, name: str, shape: tuple[int, int], role: SiteRole, earlier: Mapping[str, Earlier]
    ) -> InducingGaussian:
        """The same, of a rule that reads more of the model than ``distribution`` does."""
        return self.distribution(name, shape, role.initial_scale, earlier)

    def distribution(
        self, name: str, shape: tuple[int, int], initial_scale: float, earlier: Mapping[str, Earlier]
    ) -> InducingGaussian:
        """Declare the parameters and return q(u), started at mean 0 and ``initial_scale``.

        :param earlier: the inducing sites before this one, in the model's order.
        """
        raise NotImplementedError

    def contains(self, other: InducingRule) -> Containment | None:
        """Where this rule is ``other``, so that it can begin at its optimum; None where it cannot be it."""
        return None

    def in_full_rank(self) -> Containment | None:
        """Where ``FullRank``, and what contains it, is this rule; None where it is not known."""
        return None


def _full_rank_contains(other: InducingRule) -> Containment | None:
    """What a rule contains that has one full Gaussian for each output."""
    if type(other) is LowRank:
        return Containment(translate=_as_cholesky)
    return Containment() if type(other) in (Diagonal, FullRank, Optimal) else other.in_full_rank()


def _as_cholesky(site: str, before: str | None, params: Parameters) -> Parameters:
    """A low-rank q(u) by the Cholesky factor of its covariance."""
    translated = dict(params)
    covariance = Gaussian(params[f"{site}_loc"], params[f"{site}_scale"], translated.pop(f"{site}_factor"))
    return translated | {f"{site}_scale": jnp.linalg.cholesky(covariance.covariance())}


def _as_full_link(site: str, before: str | None, params: Parameters) -> Parameters:
    """A low-rank link to the layer before, of which the first site has none, written out."""
    if before is None or f"{site}_core" not in params:
        return dict(params)
    translated = dict(params)
    parts = (translated.pop(f"{site}_{part}") for part in ("basis", "core", "source_basis"))
    return translated | {f"{site}_link": jnp.einsum("mr,prqs,ks->pmqk", *parts)}


def _as_coupling(site: str, before: str | None, params: Parameters) -> Parameters:
    """A link to the layer before as one of the links to all earlier ones."""
    translated = _as_full_link(site, before, params)
    if before is None:
        return translated
    return translated | {link_name(site, before): translated.pop(f"{site}_link")}


def _slight(start: Array, params: Parameters) -> Array:
    """Factors that are slight beside the deviations, for at 0 their gradient would vanish."""
    return SLIGHT * params["scale"][..., None] * start / jnp.abs(start).max()


def _full_rank_parameters(name: str, shape: tuple[int, int], initial_scale: float) -> tuple[Array, Array]:
    identity = jnp.broadcast_to(initial_scale * jnp.eye(shape[1]), (*shape, shape[1]))
    scale = numpyro.param(f"{name}_scale", identity, constraint=constraints.lower_cholesky)
    return numpyro.param(f"{name}_loc", jnp.zeros(shape)), scale


@dataclass(frozen=True)
class FullRank(InducingRule):
    """q(u_p) = N(µ_p, L_p L_pᵀ) for each output: O(P M²) parameters."""

    def distribution(
        self, name: str, shape: tuple[int, int], initial_scale: float, earlier: Mapping[str, Earlier]
    ) -> InducingGaussian:
        return InducingGaussian(*_full_rank_parameters(name, shape, initial_scale))

    def contains(self, other: InducingRule) -> Containment | None:
        return _full_rank_contains(other)


@dataclass(frozen=True)
class Optimal(InducingRule):
    """q(u) at its closed-form optimum given q(h): the parameters of ``FullRank``, not trained by gradients.

    ``fit_lbfgs`` with the objective ``Collapsed`` optimises it away and ends by setting it. Offered for ``MeanField``
    and ``Markov``: where h depends on u, the formula is not the optimum of the whole bound (docs/design.md, 4).
    """

    def distribution(
        self, name: str, shape: tuple[int, int], initial_scale: float, earlier: Mapping[str, Earlier]
    ) -> InducingGaussian:
        return InducingGaussian(
            *map(jax.lax.stop_gradient, _full_rank_parameters(name, shape, initial_scale))
        )


@dataclass(frozen=True)
class Diagonal(InducingRule):
    """q(u_pm) = N(µ_pm, s_pm²): O(P M) parameters."""

    def distribution(
        self, name: str, shape: tuple[int, int], initial_scale: float, earlier: Mapping[str, Earlier]
    ) -> InducingGaussian:
        loc = numpyro.param(f"{name}_loc", jnp.zeros(shape))
        start = jnp.full(shape, initial_scale)
        return InducingGaussian(loc, numpyro.param(f"{name}_scale", start, constraint=constraints.positive))


@dataclass(frozen=True)
class LowRank(InducingRule):
    """q(u_p) = N(µ_p, diag(s_p²) + F_p F_pᵀ), F_p of the given rank: O(P M r) parameters.

    Starts as ``Diagonal``, with small random factors (at zero their gradient would vanish).

    :param rank: r, at least 1.
    :raises ValueError: if the rank is not positive.
    """

    rank: int

    def __post_init__(self) -> None:
        _check_rank("LowRank", self.rank)

    def distribution(
        self, name: str, shape: tuple[int, int], initial_scale: float, earlier: Mapping[str, Earlier]
    ) -> InducingGaussian:
        q = Diagonal().distribution(name, shape, initial_scale, earlier)
        start = _random((*shape, self.rank), 0.1 * initial_scale)
        return InducingGaussian(q.loc, q.scale, numpyro.param(f"{name}_factor", start))

    def contains(self, other: InducingRule) -> Containment | None:
        if type(other) is Diagonal:
            return Containment({"factor": _slight})
        return Containment() if type(other) is LowRank and other.rank <= self.rank else None


@dataclass(frozen=True)
class AcrossOutputs(InducingRule):
    """q(vec u) = N(µ, L Lᵀ), one full Gaussian over the outputs of a layer: O(P² M²) parameters (Chamberlin 4.4)."""

    def distribution(
        self, name: str, shape: tuple[int, int], initial_scale: float, earlier: Mapping[str, Earlier]
    ) -> InducingGaussian:
        loc = numpyro.param(f"{name}_loc", jnp.zeros(shape))
        start = initial_scale * jnp.eye(shape[0] * shape[1])
        return InducingJoint(
            loc, numpyro.param(f"{name}_scale", start, constraint=constraints.lower_cholesky)
        )

    def contains(self, other: InducingRule) -> Containment | None:
        return _full_rank_contains(other)


@dataclass(frozen=True)
class LayerChain(InducingRule):
    """q(u^1) Π q(u^l | u^{l−1}), linear Gaussian between neighbouring layers; starts as ``FullRank``.

    With ``MeanField`` hidden variables it gains nothing at its optimum (Chamberlin 4.5); with rules whose q(h | u)
    depends on u it can. O(P P' M²) parameters per pair of layers, or O(M r + P P' r²) with a rank.

    :param rank: of the map between layers, in bases that the outputs share (Chamberlin A.6); None for a full map.
    :raises ValueError: if the rank is not positive.
    """

    rank: int | None = None

    def __post_init__(self) -> None:
        if self.rank is not None:
            _check_rank("LayerChain", self.rank)

    def distribution(
        self, name: str, shape: tuple[int, int], initial_scale: float, earlier: Mapping[str, Earlier]
    ) -> InducingGaussian:
        loc, scale = _full_rank_parameters(name, shape, initial_scale)
        if not earlier:
            return InducingGaussian(loc, scale)
        last = list(earlier)[-1]
        before = earlier[last].q.event_shape
        if self.rank is None:
            link: Any = LayerLink(numpyro.param(f"{name}_link", jnp.zeros((*shape, *before))))
        else:
            link = LowRankLink(
                numpyro.param(f"{name}_basis", _random((shape[1], self.rank), shape[1] ** -0.5)),
                numpyro.param(f"{name}_core", jnp.zeros((shape[0], self.rank, before[0], self.rank))),
                numpyro.param(f"{name}_source_basis", _random((before[1], self.rank), before[1] ** -0.5)),
            )
        return _conditional(loc, scale, {last: link}, earlier)

    def contains(self, other: InducingRule) -> Containment | None:
        if type(other) is not LayerChain:
            return _full_rank_contains(other)
        if self.rank is None:
            return Containment(translate=_as_full_link)
        return Containment() if other.rank is not None and other.rank <= self.rank else None


@dataclass(frozen=True)
class Coupled(InducingRule):
    """One Gaussian over the inducing outputs of all layers, built up layer by layer; starts as ``FullRank``.

    ``structure="full"`` couples every output to all earlier ones. ``structure="stripes"`` couples, between layers of
    equal width, output p to output p alone, and layers of other widths, as the last one usually is, to everything:
    the stripes and arrow of Lindinger et al. (2020), at a fraction of the parameters. No matrix over all layers is
    ever formed.

    :param structure: "stripes" or "full".
    :raises ValueError: for another structure.
    """

    structure: str = "stripes"

    def __post_init__(self) -> None:
        if self.structure not in ("stripes", "full"):
            raise ValueError(f"structure: found {self.structure!r}, expected 'stripes' or 'full'")

    def distribution(
        self, name: str, shape: tuple[int, int], initial_scale: float, earlier: Mapping[str, Earlier]
    ) -> InducingGaussian:
        loc, scale = _full_rank_parameters(name, shape, initial_scale)
        if not earlier:
            return InducingGaussian(loc, scale)
        links = {}
        for k, site in earlier.items():
            before = site.q.event_shape
            stripe = self.structure == "stripes" and before[0] == shape[0]
            start = jnp.zeros((*shape, before[1]) if stripe else (*shape, *before))
            links[k] = LayerLink(numpyro.param(link_name(name, k), start))
        return _conditional(loc, scale, links, earlier)

    def contains(self, other: InducingRule) -> Containment | None:
        if type(other) is LayerChain:
            return Containment(translate=_as_coupling) if self.structure == "full" else None
        if type(other) is Coupled:
            return Containment() if self.structure == "full" else None
        return _full_rank_contains(other)


def link_name(name: str, earlier: str) -> str:
    """The parameter by which the site ``name`` listens to an earlier one under :class:`Coupled`."""
    return f"{name}_link_{earlier.replace('/', '_')}"


def _conditional(
    loc: Array, scale: Array, links: Mapping[str, Any], earlier: Mapping[str, Earlier]
) -> InducingConditional:
    sources = {k: site.q for k, site in earlier.items()}
    return InducingConditional(loc, scale, links, sources, {k: site.value for k, site in earlier.items()})


def _random(shape: tuple[int, ...], scale: float) -> Any:
    return lambda key: scale * jax.random.normal(key, shape)


def _check_rank(name: str, rank: int) -> None:
    if rank < 1:
        raise ValueError(f"{name}: rank: found {rank}, expected at least 1")
