r"""An objective in which the divergence of q(u) from its prior counts more or less than once.

.. math::
    L(q) - (w - 1)\, KL[q(u) \| p(u)]

with L the objective that is given. Below w = 1 it lies above the evidence's bound: what data say of a function counts
1/w times, as in "cold" posteriors. The published codes of PR-SSM (Doerr et al. 2018) and its successors train so, with
w from 0.01 to 0.1, where their papers write a bound.
"""

from __future__ import annotations

import copy
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float
from numpyro.infer import ELBO

from ppl_dgp.gp.contract import Model, Propagation
from ppl_dgp.numerics.power_mean import Alpha
from ppl_dgp.numerics.products import multiplying_in_full
from ppl_dgp.objectives.alpha import AlphaSchedule
from ppl_dgp.objectives.capabilities import capabilities_of
from ppl_dgp.objectives.runs import ProgramRuns
from ppl_dgp.objectives.site_roles import SiteRoles, classify_sites
from ppl_dgp.objectives.weights import global_kl


class WeightedKL(ELBO):
    """An objective whose KL[q(u)‖p(u)] counts ``weight`` times; no other divergence is touched.

    A bound where the objective is one and the weight is at least 1; with less it is named for what it is. Its values
    compare with nothing but values at the same weight: choose a weight by held-out rows or by simulation.

    >>> from ppl_dgp import PowerEP, WeightedKL
    >>> WeightedKL(PowerEP(0.0), 0.02)
    WeightedKL(PowerEP(alpha=0, num_particles=1), 0.02)

    :param objective: an ``ELBO`` that has that divergence as a term.
    :param weight: w, at least 0, or a schedule of the step, such as ``optax.linear_schedule(0.02, 1.0, 2000)``, which
        may return to 1 and so to the objective.
    :raises TypeError: for what has no loss, or a weight that is neither a number nor a schedule.
    :raises ValueError: for a negative weight, or an objective without the term.
    """

    #: as of the objective
    propagation: Propagation | None

    def __init__(self, objective: ELBO, weight: float | AlphaSchedule) -> None:
        if isinstance(objective, type) or not callable(getattr(objective, "loss", None)):
            raise TypeError(f"objective: found {objective!r}, expected an ELBO, such as PowerEP(0.0)")
        known = capabilities_of(objective)
        if not known.divergence_is_kl:
            raise ValueError(
                f"objective: found {objective!r}, in which KL[q(u)‖p(u)] is no term; take PowerEP, BlackBoxAlpha or "
                "Trace_ELBO"
            )
        if not callable(weight):
            weight = _checked_weight(weight)
        self.objective, self.weight = objective, weight
        self.is_stochastic, self.needs_all_rows = known.is_stochastic, known.needs_all_rows
        self.takes_alpha, self.propagation = known.takes_alpha, known.propagation
        self.pushes_inducing = known.pushes_inducing
        super().__init__(getattr(objective, "num_particles", 1))

    def __repr__(self) -> str:
        weight = "schedule" if callable(self.weight) else f"{self.weight:g}"
        return f"WeightedKL({self.objective!r}, {weight})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WeightedKL) and (self.objective, self.weight) == (
            other.objective,
            other.weight,
        )

    def __hash__(self) -> int:
        return hash((WeightedKL, self.objective, self.weight))

    @property
    def is_bound(self) -> bool:
        """Whether it lies below the log evidence; a schedule promises nothing."""
        return not callable(self.weight) and self.weight >= 1.0 and capabilities_of(self.objective).is_bound

    @property
    def alpha(self) -> Any:
        """α of the objective."""
        return getattr(self.objective, "alpha", 0.0)

    @property
    def can_infer_discrete(self) -> bool:
        """Whether the objective sums discrete latents out."""
        return bool(getattr(self.objective, "can_infer_discrete", False))

    def at_step(self, step: Any) -> WeightedKL:
        """The same with the weight, and the α, that are in force at a step."""
        inner = getattr(self.objective, "at_step", None)
        objective = self.objective if inner is None else inner(step)
        return self._with(objective, jnp.asarray(self.weight(step)) if callable(self.weight) else self.weight)

    def at_alpha(self, alpha: Alpha) -> WeightedKL:
        """The same with another α."""
        return self._with(self.objective.at_alpha(alpha), self.weight)

    @multiplying_in_full
    def loss(
        self,
        rng_key: Array,
        param_map: dict[str, Array],
        model: Model,
        guide: Model,
        *args: Any,
        **kwargs: Any,
    ) -> Float[Array, ""]:
        """The objective's loss plus (w − 1) KL[q(u)‖p(u)], in nats over all N rows.

        :raises ValueError: if the weight is a schedule, which :meth:`at_step` resolves.
        """
        if callable(self.weight):
            raise ValueError(
                "weight: found a schedule without a step; train with fit_svi, or take at_step(step)"
            )
        whole = self.objective.loss(rng_key, param_map, model, guide, *args, **kwargs)
        runs = ProgramRuns(model, guide, args, kwargs)
        traces = runs.traces(rng_key, param_map)
        inducing = SiteRoles(global_sites=list(classify_sites(*traces, False).inducing))
        divergence: Array = whole + (self.weight - 1.0) * global_kl(inducing, *traces)
        return divergence

    def _with(self, objective: ELBO, weight: Any) -> WeightedKL:
        other = copy.copy(self)
        other.objective, other.weight = objective, weight
        return other


def _checked_weight(weight: Any) -> float:
    if isinstance(weight, bool) or jnp.ndim(weight) != 0 or not isinstance(weight, int | float):
        raise TypeError(f"weight: found {weight!r}, expected a number from 0 on, or a schedule of the step")
    if not 0.0 <= weight < float("inf"):
        raise ValueError(f"weight: found {weight}, expected a number from 0 on; 1 is the objective itself")
    return float(weight)
