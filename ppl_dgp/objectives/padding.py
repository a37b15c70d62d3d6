"""Tables padded to equal length: an objective is told which rows are real, so that the others count for nothing."""

from __future__ import annotations

from typing import Any

from jaxtyping import Array, Int
from numpyro.primitives import Messenger


class RealRows(Messenger):
    """Of the ``size`` rows of a table the first ``count`` are real: a traced number, which a plate does not take.

    Around an objective's loss, with the model's plates made for ``size`` rows. Where these are all at hand, the others
    are masked; a minibatch, drawn from real rows alone, stands for ``count`` of them.
    """

    def __init__(self, size: int, count: Int[Array, ""]) -> None:
        super().__init__()
        self.size, self.count = size, count
        #: the real ones among the rows at hand, by plate; None where all of them are
        self._real: dict[str, Array | None] = {}

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "plate" and msg["args"][0] == self.size:
            whole = msg["args"][1] in (None, self.size)
            self._real[msg["name"]] = msg["value"] < self.count if whole else None
            if not whole:
                msg["args"] = (self.count, *msg["args"][1:])
        if msg["type"] != "sample":
            return
        for frame in msg["cond_indep_stack"]:
            if frame.name not in self._real:
                continue
            real = self._real[frame.name]
            if real is None:
                # of the plate's N / B, where it has put the N it knows
                msg["scale"] = msg["scale"] * (self.count / self.size)
            else:
                msg["fn"] = msg["fn"].mask(real.reshape(-1, *(1,) * (-frame.dim - 1)))
