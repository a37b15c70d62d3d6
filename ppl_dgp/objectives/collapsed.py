"""Bounds with q(u) optimised in closed form: the power-EP energy of one layer, the mean-field bound of a deep GP.

Sources: Bui, Yan & Turner 2017 for one layer (:mod:`ppl_dgp.objectives.closed_form`); Damianou & Lawrence 2013 and
Chamberlin 2016, 2.5 and 4.6, for hidden layers; Bui 2017, 3.24–3.26 and 3.36, for trajectories, whose steps are the
rows of one layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.handlers import replay, seed, substitute, trace
from numpyro.infer import ELBO

from ppl_dgp import likelihoods
from ppl_dgp.expectations import is_rough
from ppl_dgp.gp.emission import Emission, emission_of
from ppl_dgp.gp.marginal import Marginal
from ppl_dgp.gp.old_posterior import old_posterior_of
from ppl_dgp.gp.representation import Propagation, Representation
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.gp.wrappers import mask_of, unwrap
from ppl_dgp.guides.guide import HiddenConditional
from ppl_dgp.guides.hidden import Markov, MeanField, entropy
from ppl_dgp.guides.trajectory import TrajectoryConditional
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.objectives.closed_form import Powers, columns_of_noise
from ppl_dgp.objectives.deterministic_inputs import DeterministicInputs
from ppl_dgp.objectives.factors import Blocks, Factors
from ppl_dgp.objectives.regression import Features, GaussianInputs, Regression
from ppl_dgp.objectives.representation import RepresentationHandler, require_marginals
from ppl_dgp.objectives.research.tied_chain import whole, with_columns
from ppl_dgp.objectives.weights import row_divergence
from ppl_dgp.state_space.trajectory import trajectory_of


class Collapsed(ELBO):
    """Minus the energy with q(u) optimised away: deterministic, on all rows, for ``fit_lbfgs``.

    For one layer :func:`collapsed_energy` at any α, whatever the guide. For hidden layers and trajectories the bound at
    α = 0 under a guide whose q(h) is ``MeanField`` or ``Markov``, by kernel expectations. The guide's q(u) is ignored,
    so that its parameters have no gradient; :meth:`finish` gives them their optimum, and ``fit_lbfgs`` ends by it.

    ``Collapsed.vfe()``, ``.fitc()``, ``.pitc(blocks)``, ``.dtc()`` and ``.exact()`` are the cases that have names. Only
    ``vfe`` is a bound for every Z; the others may lie above the evidence.
    """

    def __init__(self, alpha: Powers = 0.0, blocks: Blocks | None = None, correction: bool = True) -> None:
        """
        :param alpha: in [0, 1]; 0 is Titsias' bound, 1 FITC. One for all rows, or an array of one per row or block.
        :param blocks: rows that share a factor; see :func:`collapsed_energy`.
        :param correction: see :func:`collapsed_energy`.
        :raises TypeError: if alpha is not a number or an array, or blocks not what :func:`collapsed_energy` takes.
        :raises ValueError: if an alpha is outside [0, 1], or blocks have no rows.
        """
        self.factors = Factors.checked("Collapsed", alpha, blocks, correction)
        super().__init__(1)

    @classmethod
    def vfe(cls) -> Collapsed:
        """Titsias' variational bound (2009): a lower bound of the evidence for every Z."""
        return cls(0.0)

    @classmethod
    def fitc(cls) -> Collapsed:
        """The evidence of FITC (Snelson & Ghahramani 2006): f_n independent given u. An energy, no bound."""
        return cls(1.0)

    @classmethod
    def pitc(cls, blocks: Blocks) -> Collapsed:
        """The evidence of PITC: blocks of f independent of each other given u. An energy, no bound."""
        return cls(1.0, blocks)

    @classmethod
    def dtc(cls) -> Collapsed:
        """The evidence of DTC (Seeger et al. 2003): f known given u.

        q(u) is that of ``vfe``, but this is no bound, and Z that maximises it overfits: the term that would tell how
        badly u stands for f is left out.
        """
        return cls(0.0, correction=False)

    @classmethod
    def exact(cls) -> Collapsed:
        """The exact GP's evidence, whatever Z, and its q(u): one block at α = 1, O(N³), for 5000 rows at most."""
        return cls(1.0, "all")

    @property
    def alpha(self) -> float | Array:
        """The power, or the powers of the factors."""
        return self.factors.alpha

    def __repr__(self) -> str:
        return f"Collapsed({self.factors})"

    def loss(
        self,
        rng_key: Array,
        param_map: dict[str, Array],
        model: Callable[..., Any],
        guide: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Float[Array, ""]:
        """Minus the energy in total nats; takes no random draw.

        :raises ValueError: if the model has other latents than inducing outputs and hidden layers, a minibatch, windows
            or masked rows, hidden layers at α > 0, or a kernel whose expectations are rough.
        :raises TypeError: if its layers are not GPs with Gaussian noise, or q(h) has no closed form.
        """
        layers, entropies = self._layers(rng_key, param_map, model, guide, args, kwargs)
        return -(jnp.stack([layer.energy() for layer in layers.values()]).sum() + entropies)

    def finish(
        self,
        param_map: dict[str, Array],
        model: Callable[..., Any],
        guide: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> dict[str, Array]:
        """The parameters, those of a full-rank q(u) (``…/u_loc`` and ``…/u_scale``) at their optimum."""
        layers, _ = self._layers(jax.random.PRNGKey(0), param_map, model, guide, args, kwargs)
        found = dict(param_map)
        for site, layer in layers.items():
            best = layer.optimum()
            loc, scale = found.get(f"{site}_loc"), found.get(f"{site}_scale")
            if loc is not None and scale is not None and scale.shape == best.scale.shape:
                found[f"{site}_loc"], found[f"{site}_scale"] = best.mean, best.scale
        return found

    def _layers(
        self, key: Array, params: dict[str, Array], model: Any, guide: Any, args: Any, kwargs: Any
    ) -> tuple[dict[str, Regression], Array]:
        """Each layer's regression by its inducing site, and the entropy of q(h)."""
        run = lambda fn: trace(substitute(seed(fn, key), data=params)).get_trace(*args, **kwargs)
        found = run(model)
        sites = {name: site for name, site in found.items() if site["type"] == "sample"}
        role_by_site = {
            name: site["infer"].get("role") for name, site in sites.items() if not site["is_observed"]
        }
        hidden = [name for name, role in role_by_site.items() if role == "hidden"]
        others = [name for name, role in role_by_site.items() if role not in ("hidden", "inducing")]
        if others or not role_by_site:
            raise ValueError(
                f"model: found the latent sites {sorted(role_by_site)}, expected inducing outputs and hidden layers "
                "alone; use PowerEP otherwise"
            )
        approximations: dict[str, Any] = {}
        if hidden:
            if not self.factors.plain:
                raise ValueError(
                    f"alpha: found {self!r} with the hidden layers {hidden}, whose closed form is that of alpha=0 with "
                    "its correction; use Collapsed()"
                )
            approximations = run(guide)
            for name in hidden:
                _check_rule(name, approximations, sites[name])
            wishes: dict[str, Representation] = {
                name: "marginal" for name, role in role_by_site.items() if role == "inducing"
            }
            # a point is a draw
            spread = [name for name in hidden if not _is_point(approximations, name)]
            propagation: dict[str, Propagation] = dict.fromkeys(spread, "moments")
            # there are no draws of u for each row
            represented = RepresentationHandler(
                require_marginals(wishes, approximations), 0, key, propagation=propagation
            )
            with represented:
                approximations = run(guide)
                sites = run(replay(model, approximations))
            represented.check_heard()
        layers: dict[str, Regression] = {}
        # with all else that depends on no u
        entropies = jnp.zeros(())
        observed = [name for name, site in sites.items() if site["type"] == "sample" and site["is_observed"]]
        memories = {
            name: memory for name in observed if (memory := old_posterior_of(sites[name]["fn"])) is not None
        }
        for name in [*hidden, *(name for name in observed if name not in memories)]:
            site = sites[name]
            if name in hidden and emission_of(site["fn"]) is None:
                entropies = entropies - _divergence(name, approximations, site).sum()
                trajectory = trajectory_of(site["fn"])
                if trajectory is None:
                    continue
                # the steps of a trajectory are rows of a layer
                slots = trajectory.layout.after - 1
                before = Gaussian(represented.store[name].mean[slots], represented.store[name].scale[slots])
                site = {**site, "fn": trajectory.at(before)}
            for emission, value in _checked(name, site):
                marginal = emission.marginal
                inducing = f"{marginal.function.name}/u"
                if inducing not in role_by_site:
                    # a map without u, of a trajectory's states
                    entropies = entropies + emission.tempered(value, 0.0).sum()
                    continue
                _check_gaussian(name, emission)
                if inducing in layers:
                    raise ValueError(
                        f"model: found {inducing!r} behind two sites, expected a function for each; use PowerEP"
                    )
                _check_full_rank(inducing, params)
                rows = columns_of_noise(emission.likelihood.variance, len(marginal.mean))  # type: ignore[attr-defined]
                if name in hidden:
                    q: Any = unwrap(approximations[name]["fn"])
                    slope, targets = q.rule.linear(q.params, emission)
                    entropies = entropies + entropy(targets).sum()
                else:
                    rows, value = self._seen(emission, rows, value)
                    slope, targets = None, Gaussian(value, jnp.zeros_like(marginal.mean))
                layers[inducing] = Regression(_features(marginal, slope, targets), rows, self.factors)
        for memory in memories.values():
            inducing = f"{memory.function.name}/u"
            if not isinstance(self.alpha, float) or not self.factors.corrected:
                raise ValueError(
                    f"Collapsed: found {self.factors} beside a stream's memory, expected one alpha, and the correction"
                )
            layers[inducing] = replace(layers[inducing], site=memory.site(self.alpha))
        return layers, entropies

    def _seen(
        self, emission: Emission, noise: Float[Array, "#N C"], y: Float[Array, "N P"]
    ) -> tuple[Float[Array, "#N _"], Float[Array, "N P"]]:
        """The noise, infinite where an entry is missing so that it counts for nothing, and the entries, 0 there."""
        if not emission.partly:
            return noise, y
        if self.factors.blocks is not None:
            raise ValueError("blocks: found entries that may be missing, expected none; leave blocks out")
        missing = jnp.isnan(y)
        return jnp.where(missing, jnp.inf, noise), jnp.where(missing, 0.0, y)


def _features(marginal: Marginal, slope: Array | None, targets: Gaussian) -> Features:
    """The regression of the targets, slope h⁻ + ε with the moments of ε, on a layer's inputs."""
    f, inputs = marginal.function, marginal.inputs
    if isinstance(inputs, Gaussian):
        _check_kernel(f)
        return GaussianInputs.of(marginal.weights, f, inputs, slope, targets)
    mean = targets.mean - f.mean(inputs)
    if slope is not None:
        mean = mean + jnp.einsum("bqp,bp->bq", slope, inputs)
    return DeterministicInputs(f.kernel, f.inducing, f.whiten, inputs, mean, targets.variance)


def _check_full_rank(inducing: str, params: dict[str, Array]) -> None:
    scale = params.get(f"{inducing}_scale")
    if scale is not None and jnp.ndim(scale) != 3:
        raise TypeError(
            f"inducing: found parameters {jnp.shape(scale)} at {inducing}_scale, expected those of a full-rank q(u), "
            "which is what Collapsed finds; take inducing=Optimal() or FullRank()"
        )


def _is_point(guide: dict[str, dict[str, Any]], name: str) -> bool:
    return name in guide and isinstance(unwrap(guide[name]["fn"]), dist.Delta)


def _divergence(name: str, guide: dict[str, dict[str, Any]], site: dict[str, Any]) -> Array:
    """KL[q(x_n)‖p(x_n)] of a latent without a GP in front, as the x_0 of a trajectory."""
    if name not in guide:
        raise TypeError(
            f"guide: found no site {name!r}, a latent of the model; use Guide(model, hidden=MeanField())"
        )
    q, trajectory = guide[name]["fn"], trajectory_of(site["fn"])
    if trajectory is None:
        return row_divergence(q, site["fn"])
    begun: dist.Distribution = unwrap(q).begun  # type: ignore[attr-defined]
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
        found = type(emission.likelihood).__name__
        raise TypeError(
            f"model: found {found} behind a GP at {name!r}, expected f(x).noisy(...); use PowerEP for other likelihoods"
        )


def _check_kernel(function: SparseGP) -> None:
    dims = function.inducing.shape[1]
    if is_rough(function.kernel, dims):
        raise ValueError(
            f"kernel: found {type(function.kernel).__name__} in {function.name} on {dims} uncertain inputs, where its "
            "expectations are rough and Collapsed no bound; use RBF, Linear, Constant or their sums, or PowerEP"
        )


def _check_rule(name: str, guide: dict[str, dict[str, Any]], site: dict[str, Any]) -> None:
    """Refuse a rule whose q is not h = slope h⁻ + ε; a latent without a GP in front has none."""
    if emission_of(site["fn"]) is None and trajectory_of(site["fn"]) is None:
        return
    q = unwrap(guide[name]["fn"]) if name in guide else None
    if not isinstance(q, HiddenConditional | TrajectoryConditional) or not isinstance(
        q.rule, MeanField | Markov
    ):
        found = getattr(q, "rule", None)
        raise TypeError(
            f"guide: found the rule {found} at {name!r}, whose closed form q(u) would enter; use "
            "Guide(model, hidden=MeanField()) or Markov()"
        )
