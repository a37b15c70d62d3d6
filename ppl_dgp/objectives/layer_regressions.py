"""Layers of a model as regressions with u integrated out: of its data on x, and of hidden layers under q(h).

For hidden layers and trajectories the sums are expectations under a q(h) of the form h = slope h⁻ + ε (Damianou &
Lawrence 2013; Chamberlin 2016, 2.5 and 4.6; Bui 2017, 3.24–3.26 and 3.36), the steps of a trajectory being the rows of
one layer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float

from ppl_dgp import likelihoods
from ppl_dgp.expectations import is_rough
from ppl_dgp.gp.contract import SCALE_SUFFIX, Parameters, Propagation, SiteRole, Trace, inducing_site, role_of
from ppl_dgp.gp.convolved import ConvolvedMarginal
from ppl_dgp.gp.emission import Emission, emission_of
from ppl_dgp.gp.marginal import Marginal
from ppl_dgp.gp.old_posterior import OldPosteriorFactor, old_posterior_of
from ppl_dgp.gp.separate import check_shared, first_output, is_separate
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.gp.wrappers import mask_of, unwrap
from ppl_dgp.guides.guide import HiddenConditional
from ppl_dgp.guides.linear_conditional import entropy
from ppl_dgp.guides.rule import knows_states
from ppl_dgp.guides.trajectory import TrajectoryConditional
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.objectives.closed_form import columns_of_noise
from ppl_dgp.objectives.deterministic_inputs import DeterministicInputs
from ppl_dgp.objectives.factors import Factors
from ppl_dgp.objectives.regression import Features, GaussianInputs, Regression, SeparateInputs
from ppl_dgp.objectives.representation import RepresentationHandler, choose_representations
from ppl_dgp.objectives.research.tied_chain import whole, with_columns
from ppl_dgp.objectives.row_sums import SummedInputs
from ppl_dgp.objectives.runs import ProgramRuns
from ppl_dgp.objectives.weights import row_divergence
from ppl_dgp.state_space.trajectory import trajectory_of


class LayerRegressions:
    """The regression of each layer by its inducing site, and the entropy of q(h) with all else that depends on no u.

    :param factors: how the likelihood is cut, and the powers.
    :param params: constrained parameters of model and guide.
    :param runs: of model and guide; the guide is asked for hidden variables alone.
    :raises ValueError: as :meth:`ppl_dgp.objectives.Collapsed.loss`.
    :raises TypeError: as well.
    """

    def __init__(self, factors: Factors, params: Parameters, runs: ProgramRuns, key: Array) -> None:
        self.factors, self.params = factors, params
        self.by_site: dict[str, Regression] = {}
        self.entropy: Float[Array, ""] = jnp.zeros(())
        sites = runs.model_trace(key, params)
        self.roles = _checked_roles(sites)
        hidden = [name for name, role in self.roles.items() if role.hidden]
        self.guide: Trace = {}
        #: moments of the hidden layers, by site
        self.moments: dict[str, Any] = {}
        if hidden:
            sites = self._at_moments(hidden, sites, runs, key)
        observed = [name for name, site in sites.items() if site["type"] == "sample" and site["is_observed"]]
        memories = {
            name: memory for name in observed if (memory := old_posterior_of(sites[name]["fn"])) is not None
        }
        for name in hidden:
            self._add_hidden(name, sites[name])
        for name in observed:
            if name not in memories:
                self._add_site(name, sites[name], False)
        for memory in memories.values():
            self._add_memory(memory)

    def _at_moments(self, hidden: list[str], sites: Trace, runs: ProgramRuns, key: Array) -> Trace:
        """The model's sites where hidden layers and u are carried as moments of q."""
        if self.factors.weights is not None:
            raise ValueError(
                f"Collapsed: weights: found some with the hidden layers {hidden}, expected none; take PowerEP"
            )
        if not self.factors.plain:
            raise ValueError(
                f"alpha: found Collapsed({self.factors}) with the hidden layers {hidden}, whose closed form is that of "
                "alpha=0 with its correction; use Collapsed()"
            )
        guide = runs.guide_trace(key, self.params)
        for name in hidden:
            _check_rule(name, guide, sites[name])
        inducing = {name: role for name, role in self.roles.items() if role.inducing}
        # a point is a draw
        spread = [name for name in hidden if not _is_point(guide, name)]
        propagation: dict[str, Propagation] = dict.fromkeys(spread, "moments")
        representations = choose_representations(inducing, guide, asked="marginal", propagated=True)
        # there are no draws of u for each row
        represented = RepresentationHandler(representations, 0, key, propagation=propagation)
        with represented:
            sites, self.guide = runs.traces(key, self.params)
        represented.check_heard()
        self.moments = represented.store
        return sites

    def _add_hidden(self, name: str, site: dict[str, Any]) -> None:
        """A hidden layer, or a latent without a GP in front with the layer of the trajectory that it may be."""
        if emission_of(site["fn"]) is None:
            self.entropy = self.entropy - _divergence(name, self.guide, site).sum()
            trajectory = trajectory_of(site["fn"])
            if trajectory is None:
                return
            # the steps of a trajectory are rows of a layer
            slots = trajectory.layout.after - 1
            before = Gaussian(self.moments[name].mean[slots], self.moments[name].scale[slots])
            site = {**site, "fn": trajectory.at(before)}
        self._add_site(name, site, True)

    def _add_site(self, name: str, site: dict[str, Any], hidden: bool) -> None:
        """The layers in front of a site."""
        for emission, value in _checked(name, site):
            factors = self.factors
            if isinstance(emission.marginal, ConvolvedMarginal):
                _check_gaussian(name, emission)
                factors = factors.of_entries(value.shape[1])
                emission, value = _entries(emission, emission.marginal), value.reshape(-1, 1)
            marginal = emission.marginal
            inducing = inducing_site(marginal.function.name)
            if inducing not in self.roles:
                # a map without u, of a trajectory's states
                self.entropy = self.entropy + emission.tempered(value, 0.0).sum()
                continue
            _check_gaussian(name, emission)
            if inducing in self.by_site:
                raise ValueError(
                    f"model: found {inducing!r} behind two sites, expected a function for each; use PowerEP"
                )
            _check_full_rank(inducing, self.params)
            noise = columns_of_noise(emission.likelihood.variance, len(marginal.mean))  # type: ignore[attr-defined]
            if hidden:
                q: Any = unwrap(self.guide[name]["fn"])
                form = q.rule.linear(q.params, emission)
                slope, targets = form.previous, form.noise
                self.entropy = self.entropy + entropy(targets).sum()
            else:
                noise, value = _seen(emission, noise, value)
                if SummedInputs.may_sum(marginal.function, noise, factors):
                    summed = SummedInputs.of(marginal.function, marginal.rows, value)
                    self.by_site[inducing] = Regression(summed, noise, factors)
                    continue
                slope, targets = None, Gaussian(value, jnp.zeros_like(marginal.mean))
            self.by_site[inducing] = Regression(_features(marginal, slope, targets), noise, factors)

    def _add_memory(self, memory: OldPosteriorFactor) -> None:
        """What earlier batches of a stream said of a function."""
        inducing = inducing_site(memory.function.name)
        if not isinstance(self.factors.alpha, float) or not self.factors.corrected:
            raise ValueError(
                f"Collapsed: found {self.factors} beside a stream's memory, expected one alpha, and the correction"
            )
        self.by_site[inducing] = replace(self.by_site[inducing], site=memory.site(self.factors.alpha))


def _seen(
    emission: Emission, noise: Float[Array, "#N C"], y: Float[Array, "N P"]
) -> tuple[Float[Array, "#N _"], Float[Array, "N P"]]:
    """The noise, infinite where an entry is missing so that it counts for nothing, and the entries, 0 there."""
    if not emission.partly:
        return noise, y
    missing = jnp.isnan(y)
    return jnp.where(missing, jnp.inf, noise), jnp.where(missing, 0.0, y)


def _entries(emission: Emission, marginal: ConvolvedMarginal) -> Emission:
    """Convolved outputs as rows (x, p) of their function, each with its noise."""
    variance = emission.likelihood.variance  # type: ignore[attr-defined]
    noise = jnp.broadcast_to(variance, marginal.mean.shape).reshape(-1, 1)
    (term,) = marginal.terms
    return Emission(term.marginal, likelihoods.Gaussian(noise), emission.partly)


def _checked_roles(sites: Trace) -> dict[str, SiteRole]:
    """The roles of a model's latents, which must be inducing outputs and hidden layers."""
    latent = [site for site in sites.values() if site["type"] == "sample" and not site["is_observed"]]
    roles = {site["name"]: role_of(site) for site in latent}
    if not roles or any(role.kind is None for role in roles.values()):
        raise ValueError(
            f"model: found the latent sites {sorted(roles)}, expected inducing outputs and hidden layers "
            "alone; use PowerEP otherwise"
        )
    return roles


def _features(marginal: Marginal, slope: Array | None, targets: Gaussian) -> Features:
    """The regression of the targets, slope h⁻ + ε with the moments of ε, on a layer's inputs."""
    f, inputs = marginal.function, marginal.inputs
    if isinstance(inputs, Gaussian):
        _check_kernel(f)
        features = SeparateInputs if is_separate(f) else GaussianInputs
        return features.of(marginal.weights, f, inputs, slope, targets)
    check_shared(f, f"{f.name} at inputs that are known, in closed form")
    inputs = marginal.rows
    mean = targets.mean - f.mean(inputs)
    if slope is not None:
        mean = mean + jnp.einsum("bqp,bp->bq", slope, inputs)
    return DeterministicInputs(f.kernel, f.inducing, f.whiten, inputs, mean, targets.variance)


def _check_full_rank(inducing: str, params: dict[str, Array]) -> None:
    scale = params.get(inducing + SCALE_SUFFIX)
    others = sorted(name for name in params if name.startswith(f"{inducing}_"))
    if scale is None and others:
        raise TypeError(
            f"inducing: found the parameters {', '.join(others)}, expected those of a full-rank q(u), which is what "
            "Collapsed finds; take inducing=Optimal() or FullRank()"
        )
    if scale is not None and jnp.ndim(scale) != 3:
        raise TypeError(
            f"inducing: found parameters {jnp.shape(scale)} at {inducing}_scale, expected those of a full-rank q(u), "
            "which is what Collapsed finds; take inducing=Optimal() or FullRank()"
        )


def _is_point(guide: Trace, name: str) -> bool:
    return name in guide and isinstance(unwrap(guide[name]["fn"]), dist.Delta)


def _divergence(name: str, guide: Trace, site: dict[str, Any]) -> Array:
    """KL[q(x_n)‖p(x_n)] of a latent without a GP in front, as the x_0 of a trajectory."""
    if name not in guide:
        raise TypeError(
            f"guide: found no site {name!r}, a latent of the model; use Guide(model, hidden=MeanField())"
        )
    q, trajectory = guide[name]["fn"], trajectory_of(site["fn"])
    if trajectory is None:
        return row_divergence(q, site["fn"])
    begun: dist.Distribution = unwrap(q).begun
    return row_divergence(begun, whole(trajectory).prior)


def _checked(name: str, site: dict[str, Any]) -> list[tuple[Emission, Array]]:
    """The emissions of a site, each with its columns."""
    emission = emission_of(site["fn"])
    if emission is None:
        raise TypeError(f"model: found {type(site['fn']).__name__} at {name!r}, expected f(x).noisy(...)")
    if site["scale"] is not None and site["scale"] != 1.0:
        raise ValueError(
            "model: found a minibatch, expected all rows; the closed form does not sum over rows"
        )
    if mask_of(site["fn"]) is not True:
        raise ValueError("model: found masked rows, expected all to count; leave them out of x and y instead")
    return with_columns(emission, site["value"])


def _check_gaussian(name: str, emission: Emission) -> None:
    if not isinstance(emission.likelihood, likelihoods.Gaussian):
        kind = type(emission.likelihood).__name__
        raise TypeError(
            f"model: found {kind} behind a GP at {name!r}, expected f(x).noisy(...); use PowerEP for other likelihoods"
        )


def _check_kernel(function: SparseGP) -> None:
    dims = function.num_inputs
    if is_rough((first_output(function) if is_separate(function) else function).kernel, dims):
        raise ValueError(
            f"kernel: found {type(function.kernel).__name__} in {function.name} on {dims} uncertain inputs, where its "
            "expectations are rough and Collapsed no bound; use RBF, Linear, Constant or their sums, or PowerEP"
        )


def _check_rule(name: str, guide: Trace, site: dict[str, Any]) -> None:
    """Refuse a rule whose q is not h = slope h⁻ + ε; a latent without a GP in front has none."""
    if emission_of(site["fn"]) is None and trajectory_of(site["fn"]) is None:
        return
    q = unwrap(guide[name]["fn"]) if name in guide else None
    if not isinstance(q, HiddenConditional | TrajectoryConditional) or not knows_states(q.rule):
        raise TypeError(
            f"guide: found the rule {getattr(q, 'rule', None)} at {name!r}, whose closed form q(u) would enter; use "
            "Guide(model, hidden=MeanField()) or Markov()"
        )
