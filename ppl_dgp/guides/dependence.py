"""What q of a step depends on: the one declaration of a rule from which guides and objectives know the rest."""

from __future__ import annotations

from enum import Enum
from functools import total_ordering

from ppl_dgp.gp.contract import Representation


@total_ordering
class DependsOn(Enum):
    """What q of a hidden variable is a function of, beside parameters; each of the first four includes those before it.

    NOTHING < PREVIOUS < U < F are ordered; MODEL, the model's own conditional, stands apart and has no order with them.
    With t_α the tempered density of the model's step (docs/design.md, 4),

    ======== ================================================ ================= ===============================
    .        q(h_n | …)                                       u is carried as   log weight of a draw h
    ======== ================================================ ================= ===============================
    NOTHING  q(h_n)                                           moments           t_α(h) − log q(h)
    PREVIOUS q(h_n | h_n⁻), the preceding layer or state      moments           t_α(h) − log q(h)
    U        q(h_n | h_n⁻, u), u given                        a draw per datum  t_α(h) − log q(h)
    F        ∫ q(h_n | f(h_n⁻)) p(f | u) q(u) df du           moments           of the joint ratio over (f, h)
    MODEL    p(h_n | h_n⁻), of which nothing is learnt        moments           0: p and q cancel at every α
    ======== ================================================ ================= ===============================
    """

    NOTHING = 0
    PREVIOUS = 1
    U = 2
    F = 3
    MODEL = 4

    def __lt__(self, other: object) -> bool:
        """Whether q may be a function of less."""
        if not isinstance(other, DependsOn) or DependsOn.MODEL in (self, other):
            return NotImplemented
        return bool(self.value < other.value)

    @property
    def representation(self) -> Representation:
        """How u is best carried at α = 0: moments where they are exact, else one draw per datum."""
        return "per_datum_sample" if self is DependsOn.U else "marginal"

    @property
    def on_function(self) -> bool:
        """Whether q of a step is a function of u or of f."""
        return self in (DependsOn.U, DependsOn.F, DependsOn.MODEL)

    @property
    def on_model(self) -> bool:
        """Whether q of a step is the model's own conditional, so that p and q cancel."""
        return self is DependsOn.MODEL
