"""Capabilities of objectives and of rules: what they declare is asked for here, so that nobody asks for a type."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ppl_dgp.gp.contract import Propagation


@dataclass(frozen=True)
class Capabilities:
    """Attributes that an objective may declare; of those that it does not the defaults hold.

    :param is_stochastic: whether its loss is estimated by draws, so that it is trained by stochastic gradients.
    :param optimises_inducing: whether q(u) is at its optimum in it; then ``finish`` gives the guide's parameters of it.
    :param needs_all_rows: whether its loss is no sum over rows, which minibatches estimate.
    :param pushes_inducing: whether the model hears of inducing inputs that a guide puts in the place of its own.
    :param is_bound: whether it lies below the log evidence, at its α; else it is an energy, which may lie above.
    :param takes_alpha: whether ``at_alpha`` gives it with another α.
    :param learns_streams: whether it knows what is left of earlier batches of a stream.
    :param weighs_rows: whether ``weighted`` gives it with weights of rows.
    :param divergence_is_kl: whether KL[q(u)‖p(u)] is a term of it.
    :param propagation: how it has hidden layers carried, if it asks for one.
    """

    is_stochastic: bool = True
    optimises_inducing: bool = False
    pushes_inducing: bool = False
    needs_all_rows: bool = False
    is_bound: bool = True
    takes_alpha: bool = False
    learns_streams: bool = False
    weighs_rows: bool = False
    divergence_is_kl: bool = True
    propagation: Propagation | None = None


def capabilities_of(objective: Any) -> Capabilities:
    """What an objective declares, one of NumPyro's or a user's own too."""
    declared: dict[str, Any] = {
        field.name: getattr(objective, field.name, field.default) for field in fields(Capabilities)
    }
    return Capabilities(**declared)
