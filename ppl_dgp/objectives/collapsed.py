r"""Bounds with q(u) optimised in closed form: the power-EP energy of one layer, the mean-field bound of a deep GP.

.. math::
    \log N(y;\ m,\ Q + \alpha\,\mathrm{diag}(K - Q) + s^2 I)
    - \frac{1 - \alpha}{2\alpha} \sum_n \log\bigl(1 + \alpha (k_{nn} - q_{nn}) / s_n^2\bigr),
    \qquad Q = K_{xz} K_{zz}^{-1} K_{zx}

α → 0 is Titsias' bound (2009), α = 1 FITC (Snelson & Ghahramani 2006); at Z = X it is the exact evidence at every α.
Sources: Bui, Yan & Turner 2017, "A unifying framework for Gaussian process pseudo-point approximations"; Damianou &
Lawrence 2013 and Chamberlin 2016, 2.5 and 4.6, for hidden layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from numpyro.handlers import replay, seed, substitute, trace
from numpyro.infer import ELBO

from ppl_dgp import likelihoods
from ppl_dgp.expectations import is_rough
from ppl_dgp.gaussian import Gaussian
from ppl_dgp.gp import Carrying, Emission, Propagation, SparseGP, bare, emission_of, mask_of
from ppl_dgp.guides.guide import HiddenConditional
from ppl_dgp.guides.hidden import Markov, MeanField, entropy
from ppl_dgp.kernels import Kernel
from ppl_dgp.linalg import cholesky, inverse_lower
from ppl_dgp.means import Mean
from ppl_dgp.memory import recollection_of
from ppl_dgp.objectives.alpha import checked_alpha
from ppl_dgp.objectives.carrying import Carried, checked_moments
from ppl_dgp.objectives.regression import CertainFeatures, Features, Regression, UncertainFeatures


def collapsed_energy(
    kernel: Kernel,
    inducing: Float[Array, "M D"],
    noise: Float[Array, ""] | Float[Array, "N 1"] | Float[Array, "N P"] | Float[Array, " P"] | float,
    x: Float[Array, "N D"],
    y: Float[Array, "N P"],
    alpha: float,
    mean: Mean | None = None,
    jitter: float | None = None,
) -> Float[Array, ""]:
    """The energy in total nats, summed over the P independent columns of y; O(N M² P), never N × N.

    :param noise: variance s²: scalar, per column (P,), or per row (N, 1) or (N, P).
    :param alpha: in [0, 1]; 0 is Titsias' bound.
    :param mean: mean function (N, D) → (N, P); zero if not given.
    :param jitter: see :func:`ppl_dgp.gp.sparse_gp`.
    :raises ValueError: if alpha is outside [0, 1].
    """
    alpha = checked_alpha("collapsed_energy", alpha)
    lower, _ = cholesky(kernel(inducing, inducing), jitter)
    weights = kernel(x, inducing) @ inverse_lower(lower).T  # A = K_xz L⁻ᵀ, Q = A Aᵀ
    residual = jnp.maximum(kernel.diag(x) - jnp.square(weights).sum(1), 0.0)[:, None]
    difference = y if mean is None else y - mean(x)
    return _regression(CertainFeatures(residual, weights, difference), jnp.asarray(noise), *y.shape).energy(
        alpha
    )


class Collapsed(ELBO):
    """Minus the energy with q(u) optimised away: deterministic, on all rows, for ``fit_lbfgs``.

    For one layer :func:`collapsed_energy` at any α, whatever the guide. For hidden layers the bound at α = 0 under a
    guide whose q(h) is ``MeanField`` or ``Markov``, by kernel expectations. The guide's q(u) is ignored, so that its
    parameters have no gradient; :meth:`finish` gives them their optimum, and ``fit_lbfgs`` ends by it.
    """

    def __init__(self, alpha: float = 0.0) -> None:
        """
        :param alpha: in [0, 1]; 0 is Titsias' bound, 1 FITC.
        :raises TypeError: if alpha is not a number.
        :raises ValueError: if alpha is outside [0, 1].
        """
        self.alpha = checked_alpha("Collapsed", alpha)
        super().__init__(1)

    def __repr__(self) -> str:
        return f"Collapsed(alpha={self.alpha:g})"

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

        :raises ValueError: if the model has other latents than inducing outputs and hidden layers, a minibatch or
            masked rows, hidden layers at α > 0, or a kernel whose expectations are rough.
        :raises TypeError: if its layers are not GPs with Gaussian noise, or q(h) has no closed form.
        """
        layers, entropies = self._layers(rng_key, param_map, model, guide, args, kwargs)
        return -(jnp.stack([layer.energy(self.alpha) for layer in layers.values()]).sum() + entropies)

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
            best = layer.optimum(self.alpha)
            loc, scale = found.get(f"{site}_loc"), found.get(f"{site}_scale")
            if loc is not None and scale is not None and scale.shape == best.scale.shape:
                found[f"{site}_loc"], found[f"{site}_scale"] = best.mean, best.scale
        return found

    def _layers(
        self, key: Array, params: dict[str, Array], model: Any, guide: Any, args: Any, kwargs: Any
    ) -> tuple[dict[str, Regression], Array]:
        """Each layer's regression by its inducing site, and the entropy of q(h)."""
        run = lambda fn: trace(substitute(seed(fn, key), data=params)).get_trace(*args, **kwargs)  # noqa: E731
        found = run(model)
        sites = {name: site for name, site in found.items() if site["type"] == "sample"}
        roles = {name: site["infer"].get("role") for name, site in sites.items() if not site["is_observed"]}
        hidden = [name for name, role in roles.items() if role == "hidden"]
        others = [name for name, role in roles.items() if role not in ("hidden", "inducing")]
        if others or not roles:
            raise ValueError(
                f"model: found the latent sites {sorted(roles)}, expected inducing outputs and hidden layers alone; "
                "use PowerEP otherwise"
            )
        approximations: dict[str, Any] = {}
        if hidden:
            if self.alpha > 0.0:
                raise ValueError(
                    f"alpha: found {self.alpha:g} with the hidden layers {hidden}, whose closed form is that of alpha=0"
                )
            approximations = run(guide)
            wishes: dict[str, Carrying] = {
                name: "moments" for name, role in roles.items() if role == "inducing"
            }
            rows = sites[hidden[0]]["fn"].batch_shape[0]
            propagation: dict[str, Propagation] = dict.fromkeys(hidden, "moments")
            carried = Carried(checked_moments(wishes, approximations), rows, key, propagation=propagation)
            with carried:
                approximations = run(guide)
                sites = run(replay(model, approximations))
            carried.check_heard()
        layers: dict[str, Regression] = {}
        entropies = jnp.zeros(())
        observed = [name for name, site in sites.items() if site["type"] == "sample" and site["is_observed"]]
        memories = {
            name: memory for name in observed if (memory := recollection_of(sites[name]["fn"])) is not None
        }
        for name in [*hidden, *(name for name in observed if name not in memories)]:
            site = sites[name]
            emission = _checked(name, site)
            marginal = emission.marginal
            if name in hidden:
                slope, noise = _linear(name, approximations)
                entropies = entropies + entropy(noise).sum()
            else:
                slope, noise = None, Gaussian(site["value"], jnp.zeros_like(marginal.mean))
            features: Features
            if isinstance(marginal.inputs, Gaussian):
                _check_kernel(marginal.function)
                known = marginal.residual, marginal.weights
                features = UncertainFeatures(*known, marginal.function, marginal.inputs, slope, noise)
            else:
                mean = noise.mean - marginal.function.mean(marginal.inputs)
                if slope is not None:
                    mean = mean + jnp.einsum("bqp,bp->bq", slope, marginal.inputs)
                features = CertainFeatures(marginal.residual, marginal.weights, mean, noise.variance)
            variance = emission.likelihood.variance  # type: ignore[union-attr]
            inducing = f"{marginal.function.name}/u"
            if inducing in layers:
                raise ValueError(
                    f"model: found {inducing!r} behind two sites, expected a function for each; use PowerEP"
                )
            layers[inducing] = _regression(features, variance, *marginal.mean.shape)
            scale = params.get(f"{inducing}_scale")
            if scale is not None and jnp.ndim(scale) != 3:
                raise TypeError(
                    f"inducing: found parameters {jnp.shape(scale)} at {inducing}_scale, expected those of a full-rank "
                    "q(u), which is what Collapsed finds; take inducing=Optimal() or FullRank()"
                )
        for memory in memories.values():
            inducing = f"{memory.function.name}/u"
            layers[inducing] = replace(layers[inducing], memory=memory.site(self.alpha))
        return layers, entropies


def _regression(features: Features, noise: Array, rows: int, outputs: int) -> Regression:
    # outputs whose noise is the same share one factorisation
    columns = noise.shape[-1] if noise.ndim else 1
    return Regression(features, jnp.broadcast_to(noise, (rows, columns)), outputs)


def _checked(name: str, site: dict[str, Any]) -> Emission:
    emission = emission_of(site["fn"])
    if emission is None or not isinstance(emission.likelihood, likelihoods.Gaussian):
        raise TypeError(f"model: found {type(site['fn']).__name__} at {name!r}, expected f(x).noisy(...)")
    if site["scale"] is not None and site["scale"] != 1.0:
        raise ValueError(
            "model: found a minibatch, expected all rows; the closed form does not sum over rows"
        )
    if mask_of(site["fn"]) is not True:
        raise ValueError("model: found masked rows, expected all to count; leave them out of x and y instead")
    return emission


def _check_kernel(function: SparseGP) -> None:
    dims = function.inducing.shape[1]
    if is_rough(function.kernel, dims):
        raise ValueError(
            f"kernel: found {type(function.kernel).__name__} in {function.name} on {dims} uncertain inputs, where its "
            "expectations are rough and Collapsed no bound; use RBF, Linear, Constant or their sums, or PowerEP"
        )


def _linear(name: str, guide: dict[str, dict[str, Any]]) -> tuple[Array | None, Gaussian]:
    conditional = bare(guide[name]["fn"]) if name in guide else None
    if not isinstance(conditional, HiddenConditional) or not isinstance(conditional.rule, MeanField | Markov):
        found = getattr(conditional, "rule", None)
        raise TypeError(
            f"guide: found the rule {found} at {name!r}, whose closed form q(u) would enter; use "
            "Guide(model, hidden=MeanField()) or Markov()"
        )
    return conditional.rule.linear(conditional.params, conditional.step)
