"""The one table of rules: a new rule enters here, and every test that goes through rules takes it up.

Beside it a small deep GP of six rows that they are tried on, and what asks for another representation of u than theirs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from numpyro.primitives import Messenger

from ppl_dgp.gp.contract import Representation, role_of, with_request
from ppl_dgp.guides import (
    AcrossOutputs,
    Conditional,
    Coupled,
    Decoupled,
    Diagonal,
    DoublyStochastic,
    FullRank,
    GlobalInducing,
    Guide,
    HiddenRule,
    InducingRule,
    LayerChain,
    LowRank,
    Markov,
    MeanField,
)
from ppl_dgp.models import deep_gp


@dataclass(frozen=True)
class Case:
    """A rule for hidden variables, and what holds of it.

    :param values: it keeps for each row of ``MODEL``, over hidden layers 2 and 1 wide on 2 and 2 inputs, M = 3.
    :param moments: whether h can be carried as moments, in closed form at α = 0, its q(h) Gaussian at every layer.
    :param chain: whether it holds any Gaussian chain over layers exactly, in the linear-Gaussian limit.
    :param wide: whether its noise has covariances between outputs.
    """

    rule: HiddenRule
    values: int
    moments: bool = False
    chain: bool = False
    wide: bool = False


CASES = {
    # means and scales; then maps of inputs or of u; then what ties them to f
    "mean-field": Case(MeanField(), 6, moments=True),
    "mean-field-full": Case(MeanField(full=True), 8, moments=True, wide=True),
    "markov": Case(Markov(), 6 + 6, moments=True, chain=True),
    "markov-full": Case(Markov(full=True), 8 + 6, moments=True, wide=True),
    "coupled": Case(Conditional(), 9, chain=True),
    "coupled-markov": Case(Conditional(markov=True), 9 + 2, chain=True),
    "tied": Case(Conditional(tied=True), 12, chain=True),
    "free": Case(Conditional(free=True), 6 + 9, moments=True),
    "across": Case(Conditional(across_outputs=True), 8 + 15, moments=True, wide=True),
    "doubly-stochastic": Case(DoublyStochastic(), 0),
}
#: the rules whose noise is independent over outputs
RULES = {name: case.rule for name, case in CASES.items() if not case.wide}
#: those that carry h as moments in closed form
CLOSED = {name: case.rule for name, case in CASES.items() if case.moments}
#: those that hold a chain over layers exactly, the posterior of the linear-Gaussian limit
CHAINS = tuple(name for name, case in CASES.items() if case.chain)
#: those with parameters of each row, which a network can give
LEARNT = {name: case.rule for name, case in CASES.items() if case.values}
INDUCING: dict[str, InducingRule] = {
    "diagonal": Diagonal(),
    "full-rank": FullRank(),
    "low-rank": LowRank(2),
    "across-outputs": AcrossOutputs(),
    "layer-chain": LayerChain(),
    "layer-chain-rank": LayerChain(rank=2),
    "coupled-stripes": Coupled(),
    "coupled-full": Coupled("full"),
    "decoupled": Decoupled(2),
    "decoupled-diagonal": Decoupled(2, "diagonal"),
    "decoupled-full": Decoupled(1, "full"),
    "decoupled-weights": Decoupled(2, "weights"),
    "global": GlobalInducing(),
    "global-diagonal": GlobalInducing("diagonal"),
}
X = jnp.linspace(-1.5, 1.5, 6)[:, None] * jnp.array([[1.0, -0.5]])
Y = jnp.sin(2 * X[:, :1])
MODEL = deep_gp((2, 1), 3, inner_noise=0.05)


class _Carried(Messenger):
    def __init__(self, representation: Representation) -> None:
        super().__init__()
        self.representation = representation

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and role_of(msg).inducing:
            msg["infer"] = with_request(msg, representation=self.representation)


def carried(guide: Guide, representation: Representation) -> Callable[..., Any]:
    """A guide that asks for another representation of u than its rule does."""

    def asking(*args: Any, **kwargs: Any) -> Any:
        with _Carried(representation):
            return guide(*args, **kwargs)

    return asking
