"""Names of rules: what estimators, the command line and ``Guide`` take in the place of a rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ppl_dgp.guides.amortised import Amortised
from ppl_dgp.guides.conditional import Conditional, NestedCompression
from ppl_dgp.guides.decoupled import Decoupled
from ppl_dgp.guides.global_inducing import GlobalInducing
from ppl_dgp.guides.hidden import DoublyStochastic, Markov, MeanField, MomentMatched
from ppl_dgp.guides.inducing import (
    AcrossOutputs,
    Coupled,
    Diagonal,
    FullRank,
    InducingRule,
    LayerChain,
    LowRank,
)
from ppl_dgp.guides.rule import HiddenRule
from ppl_dgp.messages import unknown_name

Named = TypeVar("Named")

#: a rule has no state
HIDDEN_RULES: dict[str, HiddenRule] = {
    "mean-field": MeanField(),
    "markov": Markov(),
    "conditional": Conditional(),
    "conditional-markov": Conditional(markov=True),
    "conditional-tied": Conditional(tied=True),
    "conditional-free": Conditional(free=True),
    "conditional-across": Conditional(across_outputs=True),
    "doubly-stochastic": DoublyStochastic(),
    "moment-matched": MomentMatched(),
    "nested-compression": NestedCompression(),
    "amortised": Amortised(),
}
INDUCING_RULES: dict[str, InducingRule] = {
    "full-rank": FullRank(),
    "diagonal": Diagonal(),
    "low-rank": LowRank(10),
    "across-outputs": AcrossOutputs(),
    "layer-chain": LayerChain(),
    "coupled": Coupled(),
    "global": GlobalInducing(),
    "decoupled": Decoupled(),
}


def named(argument: str, value: Any, choices: Mapping[str, Named]) -> Any:
    """What a name stands for; what is no name stands for itself.

    :raises ValueError: for a name that is not among the choices.
    """
    if not isinstance(value, str):
        return value
    if value not in choices:
        raise unknown_name(f"{argument}: found {value!r}", value, choices)
    return choices[value]
