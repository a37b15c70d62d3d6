"""Answers the ``carry`` messages of :mod:`ppl_dgp.gp`: u as moments, one draw per datum, or the joint draw."""

from __future__ import annotations

from typing import Any, Literal

import jax
from jaxtyping import Array
from numpyro.primitives import Messenger

from ppl_dgp.gaussian import moments_of

Carrying = Literal["moments", "local_draw", "joint_draw"]


class Carried(Messenger):
    """Carries each u as asked, the same in guide and model: what the guide's run answers, the model's run hears again.

    :param carrying: by inducing site.
    :param num_rows: B, for draws per datum.
    :param key: for draws per datum.
    :param store: answers known beforehand, by inducing site.
    """

    def __init__(
        self, carrying: dict[str, Carrying], num_rows: int, key: Array, store: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.carrying, self.num_rows, self.key = carrying, num_rows, key
        self.store = {} if store is None else store
        self._distributions: dict[str, Any] = {}

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        # the guide's run comes first: its q(u) is the one to carry
        if msg["type"] == "sample" and msg["name"] in self.carrying:
            self._distributions.setdefault(msg["name"], msg["fn"])

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "carry" and self.carrying.get(msg["carries"], "joint_draw") != "joint_draw":
            msg["value"] = self._answer(msg["carries"])

    def answer_all(self, guide_trace: dict[str, dict[str, Any]]) -> None:
        """Fill the store from a run of the guide."""
        for name, kind in self.carrying.items():
            self._distributions[name] = guide_trace[name]["fn"]
            if kind != "joint_draw":
                self._answer(name)

    def _answer(self, name: str) -> Any:
        if name not in self.store:
            q = self._distributions[name]
            if self.carrying[name] == "moments":
                self.store[name] = moments_of(q)
            else:
                position = sorted(self.carrying).index(name)
                self.store[name] = q.sample(jax.random.fold_in(self.key, position), (self.num_rows,))
        return self.store[name]
