"""Guides: the model run again, its latents' conditionals replaced by rules."""

from ppl_dgp.guides.amortised import Amortised
from ppl_dgp.guides.conditional import Conditional, NestedCompression
from ppl_dgp.guides.containment import Containment
from ppl_dgp.guides.decoupled import Decoupled
from ppl_dgp.guides.dependence import DependsOn
from ppl_dgp.guides.empirical import EmpiricalPosterior
from ppl_dgp.guides.ensemble import EnsembleSmoother
from ppl_dgp.guides.global_inducing import GlobalInducing
from ppl_dgp.guides.guide import Guide
from ppl_dgp.guides.hidden import (
    DoublyStochastic,
    Markov,
    MeanField,
    MomentMatched,
    PointEstimate,
    PRSSMSurrogate,
)
from ppl_dgp.guides.inducing import (
    AcrossOutputs,
    Coupled,
    Diagonal,
    FullRank,
    InducingRule,
    LayerChain,
    LowRank,
    Optimal,
)
from ppl_dgp.guides.latents import per_datum
from ppl_dgp.guides.linear_conditional import LinearConditional, noise_of
from ppl_dgp.guides.names import HIDDEN_RULES, INDUCING_RULES
from ppl_dgp.guides.rule import HiddenRule

__all__ = [
    "HIDDEN_RULES",
    "INDUCING_RULES",
    "AcrossOutputs",
    "Amortised",
    "Conditional",
    "Containment",
    "Coupled",
    "Decoupled",
    "DependsOn",
    "Diagonal",
    "DoublyStochastic",
    "EmpiricalPosterior",
    "EnsembleSmoother",
    "FullRank",
    "GlobalInducing",
    "Guide",
    "HiddenRule",
    "InducingRule",
    "LayerChain",
    "LinearConditional",
    "LowRank",
    "Markov",
    "MeanField",
    "MomentMatched",
    "NestedCompression",
    "Optimal",
    "PRSSMSurrogate",
    "PointEstimate",
    "noise_of",
    "per_datum",
]
