"""What a fit does: ``fit.predict(key, x)`` is ``ppl_dgp.predict(key, fit, x)``, and so for every verb.

Predictions and diagnostics stand above this room, so a verb is looked up among the package's public names when it is
used, and nothing is imported from here. Signatures for type checkers are in ``verbs.pyi``.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any


class Verb:
    """A public function bound to a fit in the place of its argument ``fit``.

    :param function: its name in ``ppl_dgp``; that of the verb if not given.
    """

    def __init__(self, function: str | None = None) -> None:
        self.function = function

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def public(self) -> Callable[..., Any]:
        """The function behind the verb."""
        function: Callable[..., Any] = getattr(
            sys.modules[__name__.partition(".")[0]], self.function or self.name
        )
        return function

    def __get__(self, fit: Any, owner: type | None = None) -> Any:
        if fit is None:
            return self.public()
        function = self.public()
        signature = inspect.signature(function)
        names = list(signature.parameters)
        place = names.index("fit")

        @wraps(function)
        def verb(*args: Any, **settings: Any) -> Any:
            return function(*args[:place], fit, *args[place:], **settings)

        rest = [parameter for name, parameter in signature.parameters.items() if name != "fit"]
        verb.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return verb


class FitVerbs:
    """The verbs of a fit, and of a posterior that was put together by hand."""

    predict = Verb()
    sample_functions = Verb()
    sample_layers = Verb()
    joint_prediction = Verb()
    log_likelihood = Verb()
    smooth = Verb()
    forecast = Verb()
    simulate = Verb()
    simulate_narx = Verb()
    filter_forward = Verb()
    transition_function = Verb()
    transition_moments = Verb()
    transition_modes = Verb()
    expected_information = Verb()
    plan_controls = Verb()
    regime_probabilities = Verb()
    responsibilities = Verb()
    discrete_draws = Verb()
    infer_latents = Verb()
    row_log_density = Verb()
    relevance = Verb()
    layer_maps = Verb()
    explained = Verb()
    partial_dependence = Verb()
    elbo = Verb()
    energy = Verb()
    optimal_inducing = Verb()
    importance_weighted_bound = Verb()
    pareto_k = Verb()
    held_out_scores = Verb()
    horizon_scores = Verb()
    to_arviz = Verb()
    compare = Verb("compare_fits")
    summary = Verb()
