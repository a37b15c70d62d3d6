"""Guides: the model run again, its latents' conditionals replaced by rules."""

from ppl_dgp.guides.guide import Guide
from ppl_dgp.guides.hidden import Conditional, DoublyStochastic, HiddenRule, Markov, MeanField
from ppl_dgp.guides.inducing import Diagonal, FullRank, InducingRule

__all__ = [
    "Conditional",
    "Diagonal",
    "DoublyStochastic",
    "FullRank",
    "Guide",
    "HiddenRule",
    "InducingRule",
    "Markov",
    "MeanField",
]
