"""Representation of the inducing outputs u: integrated out, one draw per datum, or one draw for all."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal

import jax
from jaxtyping import Array
from numpyro.primitives import Messenger

from ppl_dgp.gp.contract import Propagation, Representation, SiteRole, Trace
from ppl_dgp.gp.wrappers import unwrap
from ppl_dgp.numerics.gaussian import moments_of

#: where an objective's logarithm stands: there is none, or it is outside u, below u, or above all rows or whole paths
Logarithm = Literal["none", "above_u", "below_u", "above_rows", "above_paths"]


def choose_representations(
    roles: Mapping[str, SiteRole],
    guide: Trace,
    *,
    asked: Representation | None = None,
    draw: Representation = "per_datum_sample",
    one_plate: bool = True,
    local_sites: bool = False,
    summed: bool = False,
    added: Collection[str] = (),
    logarithm: Logarithm = "none",
    propagated: bool = False,
) -> dict[str, Representation]:
    """How each u is represented (docs/design.md, 1.2, 1.4, 1.5 and 4, "Variance of the estimator").

    The first line that holds decides what is wished for, and each line below the rule may still change it:

    ====================================================  ======================================================
    paths, or all rows, are inside one logarithm          ``shared_sample``
    its draw is the inducing inputs of another            ``shared_sample``
    q(u) is a single value, hidden layers are drawn       ``shared_sample``
    hidden layers are carried as moments                  ``marginal``, or an error where the rest would not be
    a prediction asks for it                              as asked; ``shared_sample`` of a function that is reused
    a guide asks for it                                   as asked; ``shared_sample`` of a function that is reused,
                                                          if q of a step depends on the function
    a guide written by hand does not                      ``shared_sample`` of a function that is reused, beside
                                                          local latents, without moments, or where functions add
                                                          up; else ``marginal``
    ----------------------------------------------------  ------------------------------------------------------
    data in several plates, or in none                    ``shared_sample``
    ``marginal``, but q(u) links outputs or layers        ``draw``
    ``marginal``, but local latents stand in a logarithm  ``per_datum_sample``
    below u, or discrete ones in one of their own
    ====================================================  ======================================================

    Moments of u and one draw per datum have the same expectation where no logarithm is around them, and much less
    variance than one draw for all. A function that is used more than once per datum is one function: integrated out
    at each use it would be several, and where p and q cancel step by step this is no bound.

    :param roles: of the inducing sites in the model's order, with what the guide asks.
    :param guide: a run of the guide.
    :param asked: what a caller asks for instead of the guide.
    :param draw: the kind of draw that takes the place of moments where these would be wrong.
    :param one_plate: whether all data are in one plate.
    :param local_sites: whether rows have latents.
    :param summed: whether discrete latents are summed inside a logarithm that the objective's does not contain.
    :param added: inducing sites of functions that add up: a guide written by hand may link their u, and moments miss
        that.
    :param logarithm: where the objective's logarithm stands.
    :param propagated: whether hidden layers are carried as moments, which need moments of every u.
    :raises ValueError: where they are, and q(u) links outputs or layers or a function needs one draw.
    """
    pushed = {role.pushed_from for role in roles.values()}
    depended_on = {earlier for name in roles for earlier in getattr(guide[name]["fn"], "given", ())}
    chosen: dict[str, Representation] = {}
    for name, role in roles.items():
        q = guide[name]["fn"]
        linked = name in depended_on or moments_of(q) is None
        value = getattr(q, "is_value", False) and not propagated
        if logarithm in ("above_rows", "above_paths") or name in pushed or value:
            if propagated:
                _check_moments(name, q, "shared_sample")
            chosen[name] = "shared_sample"
            continue
        wish = _wish(role, asked, propagated, local_sites or moments_of(q) is None or name in added)
        if not one_plate and asked is None:
            wish = "shared_sample"
        if propagated:
            _check_moments(name, q, wish)
            wish = "marginal"
        elif wish == "marginal" and linked:
            wish = draw
        elif wish == "marginal" and (summed or (local_sites and logarithm == "below_u")):
            wish = "per_datum_sample"
        chosen[name] = wish
    return chosen


def _wish(role: SiteRole, asked: Representation | None, propagated: bool, drawn: bool) -> Representation:
    """What is wished for before q(u) and the objective are looked at."""
    if asked is not None:
        return "shared_sample" if role.reused and not propagated else asked
    if role.representation is not None:
        return "shared_sample" if role.reused and role.follows_function else role.representation
    return "shared_sample" if role.reused or drawn else "marginal"


def _check_moments(name: str, q: Any, wish: Representation) -> None:
    if getattr(q, "given", ()) or moments_of(q) is None or wish == "shared_sample":
        raise ValueError(
            f"propagation: found a q(u) at {name!r} with links between layers or outputs, or a function that needs "
            "one draw, expected moments of u for itself; take inducing=FullRank(), or propagation='draws'"
        )


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
            rule_moments = getattr(unwrap(q), "moments", None)
            if rule_moments is not None:
                moments = rule_moments(self.propagation[name])
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
