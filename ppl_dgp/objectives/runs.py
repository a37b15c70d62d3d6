"""Runs of a guide and its model at the same values: one run of the model for both, where the guide is made of it.

A :class:`~ppl_dgp.guides.Guide` runs the model under a handler that puts its own distributions at the latents; what the
model itself says of each site stands in the message before that handler has it. So one run gives both traces, with the
keys and values of two: the guide's, and the model's replayed at it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from jaxtyping import Array
from numpyro.handlers import seed, substitute, trace
from numpyro.primitives import Messenger

from ppl_dgp.gp.contract import Model, Trace
from ppl_dgp.gp.numpyro_internals import forward, handlers_in_force
from ppl_dgp.gp.representation import replayed
from ppl_dgp.gp.wrappers import unwrap
from ppl_dgp.guides import Guide


def traced_run(fn: Model, key: Array, values: dict[str, Any], args: Any, kwargs: Any) -> Trace:
    """A trace of ``fn`` with given values of parameters and sites."""
    sites: Trace = trace(substitute(seed(fn, key), data=values)).get_trace(*args, **kwargs)
    return sites


class ProgramRuns:
    """A model and its guide, called with the same arguments.

    ``guide`` is the program to run, perhaps wrapped in handlers, by :meth:`traces`.
    """

    def __init__(self, model: Model, guide: Model, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.model, self.guide, self.args, self.kwargs = model, guide, args, kwargs
        self._recorder: _ModelRecorder | None = None
        if isinstance(guide, Guide) and guide.model == model:
            self._recorder = _ModelRecorder(model)
            # it shares with the guide what that has learnt of the program
            self.guide = copy.copy(guide)
            self.guide.model = self._recorder

    def model_trace(self, key: Array, values: dict[str, Any]) -> Trace:
        """A trace of the model on its own, its latents at draws from their priors."""
        return traced_run(self.model, key, values, self.args, self.kwargs)

    def guide_trace(self, key: Array, values: dict[str, Any]) -> Trace:
        """A trace of the guide."""
        if self._recorder is not None:
            self._recorder.begin(values)
        return traced_run(self.guide, key, values, self.args, self.kwargs)

    def traces(
        self,
        key: Array,
        values: dict[str, Any],
        guide: Model | None = None,
        around: Callable[[], AbstractContextManager[Any]] = Messenger,
    ) -> tuple[Trace, Trace]:
        """Traces of model and guide.

        :param values: of parameters, plates and sites.
        :param guide: :attr:`guide` in handlers; without them, if not given.
        :param around: makes what each of the programs is run in.
        """
        program = self.guide if guide is None else guide
        if self._recorder is not None:
            with around():
                self._recorder.begin(values)
                guide_trace = traced_run(program, key, values, self.args, self.kwargs)
            return self._recorder.sites, guide_trace
        with around():
            guide_trace = traced_run(program, key, values, self.args, self.kwargs)
        with around():
            model_trace = traced_run(replayed(self.model, guide_trace), key, values, self.args, self.kwargs)
        return model_trace, guide_trace


class _ModelRecorder(Messenger):
    """A model that notes its sites as a run of itself would leave them, while a guide's handler runs it."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.sites: Trace = {}
        self._messages: Trace = {}
        self._values: dict[str, Any] = {}
        self._outside: tuple[Messenger, ...] = ()

    def begin(self, values: dict[str, Any]) -> None:
        """Start a trace, of a run at given values inside the handlers that are now in force."""
        self.sites, self._messages = {}, {}
        self._values, self._outside = values, handlers_in_force()

    def process_message(self, msg: dict[str, Any]) -> None:
        # nobody has changed the model's own distribution yet
        if msg["type"] == "sample":
            self._messages[msg["name"]] = {**msg, "cond_indep_stack": list(msg["cond_indep_stack"])}

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "plate":
            self.sites[msg["name"]] = msg.copy()
        if msg["type"] != "sample":
            return
        name = msg["name"]
        site = self._messages.pop(name)
        if not site["is_observed"]:
            if name in self._values and unwrap(site["fn"]).has_enumerate_support:
                # the guide has no part in a discrete site, and hides it from whoever gives its value
                msg["value"] = self._values[name]
            site["infer"] = dict(msg["infer"])
        site["value"] = msg["value"]
        # whoever stands outside both programs has a say in the model's distributions, as in the guide's
        forward(site, self._outside)
        self.sites[name] = site
