"""Guides: the model run again, its latents' conditionals replaced by rules."""

from ppl_dgp.guides.guide import Guide
from ppl_dgp.guides.hidden import Conditional, DoublyStochastic, HiddenRule, Markov, MeanField
from ppl_dgp.guides.inducing import Diagonal, FullRank, InducingRule

#: the rules by the names that estimators and the command line give them; a rule has no state
HIDDEN_RULES: dict[str, HiddenRule] = {
    "mean-field": MeanField(),
    "markov": Markov(),
    "conditional": Conditional(),
    "conditional-tied": Conditional(tied=True),
    "conditional-free": Conditional(free=True),
    "doubly-stochastic": DoublyStochastic(),
}
INDUCING_RULES: dict[str, InducingRule] = {"full-rank": FullRank(), "diagonal": Diagonal()}

__all__ = [
    "HIDDEN_RULES",
    "INDUCING_RULES",
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
