"""Ways to train on a series, and the fit of the best one to all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array
from numpyro.infer import ELBO

from ppl_dgp.fit import Fit, FitError, Posterior, fit_series
from ppl_dgp.fit.longer import BEGIN, longer_start, shorter_params
from ppl_dgp.gp.contract import Model
from ppl_dgp.guides import Guide


@dataclass(frozen=True, eq=False)
class Candidate:
    """A way to train on a series: a model, a guide, an objective, and its own settings of ``fit_series``.

    These go before those that candidates share; a number of ``steps`` among them is the one it is trained for.
    """

    model: Model
    guide: Guide
    objective: ELBO
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_sequences(self) -> int:
        """S of the model."""
        return int(getattr(self.model, "num_sequences", 1))

    def trained(self, key: Array, x: ArrayLike | None, y: ArrayLike, steps: int | str, shared: Any) -> Fit:
        """Its fit, with the settings that all candidates share."""
        settings: dict[str, Any] = {**shared, "steps": steps, **self.settings}
        return fit_series(key, self.model, self.guide, self.objective, x, y, **settings)


def trained_on_all(
    key: Array,
    candidate: Candidate,
    chosen: Fit,
    train: Callable[[Candidate], Fit],
    data: tuple[Array, Array],
    first: np.ndarray,
    *,
    worth: Callable[[Posterior], float],
    least: float,
) -> Fit:
    """From the usual start, unless that misses what was chosen.

    Then it simulates the last part worse, having seen it, than the fit that had not. The one that goes on from the
    chosen fit's parameters may be better, unless some of these belong to steps.

    :param chosen: the fit to the ``first`` steps.
    :param train: trains on all of them.
    :param worth: of a fit to the first steps, what its simulation of the last part is worth.
    :param least: that of the chosen one.
    """
    judged = lambda fit: worth(replace(fit, params=shorter_params(fit.model, fit.params, data[0], first)))
    anew: Fit | None = None
    failure: FitError | None = None
    try:
        anew = train(candidate)
    except FitError as failed:
        failure = failed
    else:
        params = {name: value for name, value in anew.params.items() if not name.endswith(BEGIN)}
        of_steps = any(np.shape(value) != np.shape(chosen.params[name]) for name, value in params.items())
        if of_steps or (found := judged(anew)) >= least:
            return anew
    onward = longer_start(key, candidate.model, candidate.guide, chosen.params, *data, first)
    if onward is None:
        assert failure is not None
        raise failure
    settings = {**candidate.settings, "start": onward, "restarts": 1}
    try:
        further = train(replace(candidate, settings=settings))
    except FitError:
        if anew is None:
            raise
        return anew
    return further if anew is None or judged(further) > found else anew
