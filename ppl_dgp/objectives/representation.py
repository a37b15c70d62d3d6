"""Answers the ``carry`` messages of a sparse GP: u as moments, one draw per datum, or the joint draw."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
from jaxtyping import Array
from numpyro.primitives import Messenger

from ppl_dgp.gp.representation import Propagation, Representation
from ppl_dgp.gp.wrappers import unwrap
from ppl_dgp.numerics.gaussian import moments_of


def feasible_representations(
    wishes: dict[str, Representation],
    guide: dict[str, dict[str, Any]],
    draw: Representation = "per_datum_sample",
) -> dict[str, Representation]:
    """The wishes, but draws where moments would be wrong: outputs that are correlated, layers that others depend on.

    :param wishes: by inducing site, in the model's order.
    :param guide: a run of the guide.
    :param draw: the kind of draw that takes the place of moments.
    """
    depended_on = {earlier for name in wishes for earlier in getattr(guide[name]["fn"], "given", ())}
    return {
        name: draw
        if wish == "marginal" and (name in depended_on or moments_of(guide[name]["fn"]) is None)
        else wish
        for name, wish in wishes.items()
    }


def require_marginals(
    wishes: dict[str, Representation], guide: dict[str, dict[str, Any]]
) -> dict[str, Representation]:
    """Moments of every u, for hidden layers that are carried as moments.

    :raises ValueError: where q(u) links outputs or layers, or a function is used more than once.
    """
    for name, wish in wishes.items():
        q = guide[name]["fn"]
        if getattr(q, "given", ()) or moments_of(q) is None or wish == "shared_sample":
            raise ValueError(
                f"propagation: found a q(u) at {name!r} with links between layers or outputs, or a function that needs "
                "one draw, expected moments of u for itself; take inducing=FullRank(), or propagation='draws'"
            )
    return dict.fromkeys(wishes, "marginal")


class RepresentationHandler(Messenger):
    """Carries each u as asked, the same in guide and model: what the guide's run answers, the model's run hears again.

    :param representations: by inducing site.
    :param num_rows: B, for draws per datum.
    :param key: for draws per datum.
    :param store: answers known beforehand, by inducing site.
    :param propagation: how each hidden layer is carried, by its site; draws if not named.
    """

    def __init__(
        self,
        representations: dict[str, Representation],
        num_rows: int,
        key: Array,
        store: dict[str, Any] | None = None,
        propagation: dict[str, Propagation] | None = None,
    ) -> None:
        super().__init__()
        self.representations, self.num_rows, self.key = representations, num_rows, key
        self.propagation = {name: how for name, how in (propagation or {}).items() if how != "draws"}
        self.store = {} if store is None else store
        self._distributions: dict[str, Any] = {}
        self._values: dict[str, Array] = {}

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        # the guide's run comes first: its q(u) is the one to carry
        if msg["type"] == "sample" and (
            msg["name"] in self.representations or msg["name"] in self.propagation
        ):
            self._distributions.setdefault(msg["name"], msg["fn"])
            self._values.setdefault(msg["name"], msg["value"])

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "offer" and msg["offered"] in self.propagation:
            msg["value"] = self._moments(msg["offered"])
        elif (
            msg["type"] == "offer"
            and self.representations.get(msg["offered"], "shared_sample") != "shared_sample"
        ):
            msg["value"] = self._answer(msg["offered"])

    def answer_all(self, guide_trace: dict[str, dict[str, Any]]) -> None:
        """Fill the store from a run of the guide."""
        for name, kind in self.representations.items():
            self._distributions[name] = guide_trace[name]["fn"]
            self._values[name] = guide_trace[name]["value"]
            if kind != "shared_sample":
                self._answer(name)

    def check_heard(self) -> None:
        """Refuse a model that does not offer its hidden layers, so that they were drawn against the wish.

        :raises ValueError: naming the layer.
        """
        for name in self.propagation:
            if name not in self.store:
                raise ValueError(
                    f"propagation: found {name!r} drawn, expected the model to offer it; write "
                    f"h = offer({name!r}, numpyro.sample({name!r}, ...)), or draw the layers"
                )

    def _moments(self, name: str) -> Any:
        if name not in self.store:
            q = self._distributions[name]
            own = getattr(unwrap(q), "moments", None)
            if own is not None:
                moments = own(self.propagation[name])
            else:  # a plain latent, a vector for each row
                moments = moments_of(q) if len(q.shape()) == 2 else None
            if moments is None:
                raise TypeError(
                    f"propagation: found no moments of {name!r}; draw it, or guide it by a rule that has them"
                )
            self.store[name] = replace(moments, linearise=self.propagation[name] == "linearised")
        return self.store[name]

    def _answer(self, name: str) -> Any:
        if name not in self.store:
            q = self._distributions[name]
            if given := getattr(q, "given", ()):
                # a layer that depends on earlier ones follows their draws, each datum its own
                q = q.at({earlier: self._answer_or_draw(earlier) for earlier in given})
            if self.representations[name] == "marginal":
                self.store[name] = moments_of(q)
            else:
                position = sorted(self.representations).index(name)
                self.store[name] = q.sample(jax.random.fold_in(self.key, position), (self.num_rows,))
        return self.store[name]

    def _answer_or_draw(self, name: str) -> Any:
        return self._values[name] if self.representations[name] == "shared_sample" else self._answer(name)
