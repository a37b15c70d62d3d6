"""Bounds with q(u) optimised in closed form: the power-EP energy of one layer, the mean-field bound of a deep GP.

Sources: Bui, Yan & Turner 2017 for one layer (:mod:`ppl_dgp.objectives.closed_form`); Damianou & Lawrence 2013 and
Chamberlin 2016, 2.5 and 4.6, for hidden layers; Bui 2017, 3.24–3.26 and 3.36, for trajectories, whose steps are the
rows of one layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float
from numpyro.infer import ELBO

from ppl_dgp.gp.contract import LOC_SUFFIX, SCALE_SUFFIX, Model, Parameters, Propagation
from ppl_dgp.numerics.compatibility import input_dependencies
from ppl_dgp.numerics.products import multiplying_in_full
from ppl_dgp.objectives.closed_form import Powers
from ppl_dgp.objectives.factors import Blocks, Factors
from ppl_dgp.objectives.layer_regressions import LayerRegressions
from ppl_dgp.objectives.row_sums import FixedRows, SummedInputs
from ppl_dgp.objectives.runs import ProgramRuns


class Collapsed(ELBO):
    """Minus the energy with q(u) optimised away: deterministic, on all rows, for ``fit_lbfgs``.

    For one layer :func:`collapsed_energy` at any α, whatever the guide. For hidden layers and trajectories the bound at
    α = 0 under a guide whose q(h) is ``MeanField`` or ``Markov``, by kernel expectations. The guide's q(u) is ignored,
    so that its parameters have no gradient; :meth:`finish` gives them their optimum, and ``fit_lbfgs`` ends by it.

    ``Collapsed.vfe()``, ``.fitc()``, ``.pitc(blocks)``, ``.dtc()`` and ``.exact()`` are the cases that have names. Only
    ``vfe`` is a bound for every Z; the others may lie above the evidence.
    """

    is_stochastic = False
    optimises_inducing = True
    needs_all_rows = True
    learns_streams = True
    weighs_rows = True
    divergence_is_kl = False
    #: hidden layers are carried as moments
    propagation: Propagation = "moments"

    def __init__(
        self,
        alpha: Powers = 0.0,
        blocks: Blocks | None = None,
        correction: bool = True,
        weights: ArrayLike | None = None,
    ) -> None:
        """
        :param alpha: in [0, 1]; 0 is Titsias' bound, 1 FITC. One for all rows, or an array of one per row or block.
        :param blocks: rows that share a factor; see :func:`collapsed_energy`.
        :param correction: see :func:`collapsed_energy`.
        :param weights: (N,), of one layer without blocks: how often each row counts, as of ``PowerEP``.
        :raises TypeError: if alpha is not a number or an array, blocks not what :func:`collapsed_energy` takes, or
            weights no numbers.
        :raises ValueError: if an alpha is outside [0, 1], blocks have no rows, or a weight is negative.
        """
        self.factors = Factors.checked("Collapsed", alpha, blocks, correction, weights)
        super().__init__(1)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.factors == getattr(other, "factors", None)

    def __hash__(self) -> int:
        return hash((type(self), self.factors))

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

    @property
    def is_bound(self) -> bool:
        """Whether it lies below the log evidence for every Z, as Titsias' bound alone does."""
        return self.correction and not np.any(np.asarray(self.alpha))

    @property
    def blocks(self) -> Blocks | None:
        """The rows that share a factor."""
        return self.factors.blocks

    @property
    def correction(self) -> bool:
        """Whether the energy has the term that makes it power EP's."""
        return self.factors.corrected

    @property
    def weights(self) -> Float[np.ndarray, " N"] | None:
        """How often each row counts; None for once."""
        return self.factors.weights

    def weighted(self, weights: ArrayLike | None) -> Collapsed:
        """This objective with weights of rows (see ``__init__``)."""
        return Collapsed(self.alpha, self.blocks, self.correction, weights)

    def __repr__(self) -> str:
        return f"Collapsed({self.factors})"

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
        """Minus the energy in total nats; takes no random draw.

        :raises ValueError: if the model has other latents than inducing outputs and hidden layers, a minibatch, windows
            or masked rows, hidden layers at α > 0, or a kernel whose expectations are rough.
        :raises TypeError: if its layers are not GPs with Gaussian noise, or q(h) has no closed form.
        """
        layers = LayerRegressions(self.factors, param_map, ProgramRuns(model, guide, args, kwargs), rng_key)
        return -(jnp.stack([layer.energy() for layer in layers.by_site.values()]).sum() + layers.entropy)

    def fixed_rows(
        self, param_map: Mapping[str, Any], model: Model, guide: Model, x: Array | None, y: Array
    ) -> dict[str, FixedRows]:
        """The rows of layers that enter by sums which no parameter changes, by inducing site; none of most models.

        Inside ``KnownSums`` of their sums the loss takes no work that depends on the number of rows. It is so of
        ``Fourier`` features and those of ``reduced_rank_gp``, at α = 0 under one noise on inputs that are not learnt.
        To be compiled: else the model computes all that it says of the rows.

        :param param_map: constrained parameters, or their shapes.
        """

        def rows(values: Parameters) -> dict[str, FixedRows]:
            runs = ProgramRuns(model, guide, (x, y), {})
            layers = LayerRegressions(self.factors, values, runs, jax.random.PRNGKey(0)).by_site
            features = {site: layer.features for site, layer in layers.items()}
            return {site: each.rows for site, each in features.items() if isinstance(each, SummedInputs)}

        def named(values: Parameters) -> dict[str, Array]:
            return {
                f"{site} {number}": leaf
                for site, each in rows(values).items()
                for number, leaf in enumerate(jax.tree.leaves(each))
            }

        if not self.factors.alike:
            return {}
        # what does not depend on the parameters is the same at any
        found = rows({name: jnp.ones(value.shape, value.dtype) for name, value in param_map.items()})
        if not found:  # as of most models, which are traced no second time
            return {}
        learnt = {
            name.rpartition(" ")[0] for name, on in input_dependencies(named, dict(param_map)).items() if on
        }
        return {site: each for site, each in found.items() if site not in learnt}

    def finish(
        self,
        param_map: Parameters,
        model: Model,
        guide: Model,
        *args: Any,
        **kwargs: Any,
    ) -> Parameters:
        """The parameters, with those of a full-rank q(u) (``…/u_loc`` and ``…/u_scale``) at their optimum.

        They are added where ``param_map`` has none.

        :raises TypeError: if it has those of a q(u) that is not full-rank.
        """
        runs = ProgramRuns(model, guide, args, kwargs)
        layers = LayerRegressions(self.factors, param_map, runs, jax.random.PRNGKey(0))
        params = dict(param_map)
        for site, layer in layers.by_site.items():
            optimum = layer.optimum()
            params[site + LOC_SUFFIX], params[site + SCALE_SUFFIX] = optimum.mean, optimum.scale
        return params
