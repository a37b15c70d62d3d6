"""A GP that learns from one batch after another and keeps none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import jax
import numpy as np
import numpyro
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Num, Shaped
from numpyro.infer import SVI

from ppl_dgp.fit import FitError, Posterior, fit_lbfgs, fit_svi
from ppl_dgp.fit.result import checked_data
from ppl_dgp.fit.session import one_blas_thread
from ppl_dgp.gp.contract import Model
from ppl_dgp.guides import DoublyStochastic, Guide
from ppl_dgp.numerics.compatibility import compiled
from ppl_dgp.objectives import AlphaDivergence, Collapsed
from ppl_dgp.objectives.capabilities import capabilities_of
from ppl_dgp.prediction.predict import Prediction, predict
from ppl_dgp.streaming.inducing import Greedy, InducingChoice
from ppl_dgp.streaming.model import move_inducing, store_posterior, streamed


def doubly_stochastic(model: Model) -> Guide:
    """A guide without parameters per datum, which would be those of one batch."""
    return Guide(model, hidden=DoublyStochastic())


_no_optimizer = numpyro.optim.Adam(0.0)  # SVI wants an optimiser to initialise the parameters


class Stream:
    """Streaming inference: the posterior of all rows so far, in memory that does not grow.

    A batch is seen once: the inducing inputs are chosen anew, hyperparameters and q(u) are fitted to the batch and to
    the memory of what was before, and become the memory. With inducing inputs and hyperparameters held, the result is
    that of one fit to all rows, and the energies add up to its energy. Batches of equal sizes share their programs;
    a fit to each (``steps`` > 0) starts outside of these, which takes seconds. Long streams need 64 bits.

    ``state`` is all of it, a flat dictionary of arrays: ``checkpoint.save(directory, stream.state, {})``, and later
    ``Stream(key, ..., start=checkpoint.load(directory)[0])`` goes on with the same numbers.
    """

    def __init__(
        self,
        key: Shaped[Array, "..."],
        model: Model,
        objective: Collapsed | AlphaDivergence,
        *,
        guide: Callable[[Model], Guide] = doubly_stochastic,
        steps: int = 0,
        choice: InducingChoice | None = None,
        start: Mapping[str, Array] | None = None,
        **fitting: Any,
    ) -> None:
        """
        :param key: of the initialisation, the choices and the fits.
        :param model: such as ``sparse_gp_regression(100)``.
        :param objective: ``Collapsed(alpha)`` for Gaussian noise: q(u) in closed form, hyperparameters by L-BFGS.
            Else ``PowerEP(alpha)`` or ``BlackBoxAlpha(alpha)``, by ``fit_svi``.
        :param guide: makes the guide of a model: ``lambda model: Guide(model, inducing=Diagonal())``. One of a deep
            GP should have no parameters per datum: ``DoublyStochastic()``, as if not given, or ``Amortised``.
        :param steps: of the fit to each batch. 0, for ``Collapsed`` only, holds the hyperparameters; to hold them
            under ``fit_svi``, pass ``optimizer=natural_adam(0.1, 0.0)``.
        :param choice: of the inducing inputs before each batch but the first; ``Greedy()`` if not given.
        :param start: the ``state`` of a stream, or constrained parameters; those that are not named start at the
            first batch, as in a fit to it.
        :param fitting: further arguments of ``fit_lbfgs`` or ``fit_svi``, such as ``batch_size`` of minibatches.
        :raises TypeError: for an objective that is none of these.
        :raises ValueError: for ``steps`` that the objective does not allow.
        """
        if not capabilities_of(objective).learns_streams:
            raise TypeError(
                f"objective: found {type(objective).__name__}, expected Collapsed, PowerEP or BlackBoxAlpha"
            )
        least = 1 if capabilities_of(objective).is_stochastic else 0
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < least:
            raise ValueError(
                f"steps: found {steps!r} for {objective!r}, expected a whole number of at least {least}"
            )
        if steps == 0 and fitting:
            raise ValueError(
                f"steps: found 0 with {sorted(fitting)}, expected at least 1 for these to matter"
            )
        self.model, self.objective, self.steps = streamed(model), objective, steps
        self.guide = guide(self.model)
        self.choice = Greedy() if choice is None else choice
        self.fitting = fitting
        start = {} if start is None else dict(start)
        #: rows and batches seen, and the sum of their energies in nats
        self.rows = int(start.pop("stream/rows", 0))
        self.batches = int(start.pop("stream/batches", 0))
        self.energy = float(start.pop("stream/energy", 0.0))
        self.params: dict[str, Array] = start
        self._key = key

    @property
    def state(self) -> dict[str, Any]:
        """The parameters, memory included, and the counts; its size does not depend on the rows seen."""
        counts = {"rows": self.rows, "batches": self.batches, "energy": self.energy}
        return self.params | {f"stream/{name}": np.asarray(value) for name, value in counts.items()}

    def update(self, x: ArrayLike, y: ArrayLike) -> float:
        """Learn from a batch, x (B, D) and y (B, P) or (B,); returns its energy given all before it, in nats.

        For ``Collapsed`` it is that at the end; else the objective's last estimate.

        :raises ValueError: for data that cannot be used.
        :raises FitError: if the energy is not finite.
        """
        x, y = checked_data(x, y)
        init_key, choice_key, fit_key = jax.random.split(jax.random.fold_in(self._key, self.batches), 3)
        started = any("/memory/" in name for name in self.params)
        params = dict(self.params) if started else self._initial(init_key, x, y)
        with one_blas_thread():
            programs = _programs(self.model, self.guide, self.objective, self.choice)
            if started:
                params = programs["move_inducing"](choice_key, params, x)
            if self.steps == 0:
                params, energy = programs["close"](params, x, y)
            else:
                params, energy = self._fit(fit_key, params, x, y)
                params = programs["store_posterior"](params, x[:1])
        energy = float(energy)
        if not np.isfinite(energy):
            raise FitError(
                f"the energy of batch {self.batches} is {energy}, expected a finite one; standardise the data, or use "
                "64 bits (numpyro.enable_x64())"
            )
        self.params, self.rows = params, self.rows + len(x)
        self.batches, self.energy = self.batches + 1, self.energy + energy
        return energy

    def run(self, batches: Iterable[tuple[ArrayLike, ArrayLike]]) -> Stream:
        """Learn from batches (x, y), one after another; returns itself. A batch of another size compiles anew."""
        for x, y in batches:
            self.update(x, y)
        return self

    def predict(self, key: Shaped[Array, "..."], x: Float[Array, "N D"], **settings: Any) -> Prediction:
        """Predict at the rows of x, with the settings of :func:`ppl_dgp.prediction.predict.predict`.

        :raises ValueError: before the first batch.
        """
        if not self.params:
            raise ValueError("stream: found nothing learnt, expected a batch; call update(x, y) first")
        return predict(key, Posterior(self.model, self.guide, self.params), x, **settings)

    def _initial(
        self, key: Shaped[Array, "..."], x: Float[Array, "B D"], y: Num[Array, "B P"]
    ) -> dict[str, Array]:
        svi = SVI(self.model, self.guide, _no_optimizer, self.objective)
        state = svi.init(key, x, y, init_params=dict(self.params))
        return dict(svi.get_params(state))

    def _fit(
        self,
        key: Shaped[Array, "..."],
        params: dict[str, Array],
        x: Float[Array, "B D"],
        y: Num[Array, "B P"],
    ) -> tuple[dict[str, Array], float]:
        settings: dict[str, Any] = {"steps": self.steps, "start": params} | self.fitting
        if not capabilities_of(self.objective).is_stochastic:
            fit = fit_lbfgs(key, self.model, x, y, guide=self.guide, objective=self.objective, **settings)
        else:
            fit = fit_svi(key, self.model, self.guide, self.objective, x, y, **settings)
        return fit.params, -float(fit.losses[fit.best, -1])


@lru_cache(maxsize=32)
def _programs(
    model: Model, guide: Guide, objective: Any, choice: InducingChoice
) -> dict[str, Callable[..., Any]]:
    """The compiled parts of an update that no fit contains."""

    def close(params: dict[str, Array], x: Array, y: Array) -> tuple[dict[str, Array], Array]:
        finished = objective.finish(params, model, guide, x, y)
        energy = -objective.loss(jax.random.PRNGKey(0), params, model, guide, x, y)
        return store_posterior(Posterior(model, guide, finished), x[:1]), energy

    return {
        "close": compiled(close),
        "move_inducing": compiled(
            lambda key, params, x: move_inducing(key, Posterior(model, guide, params), x, choice)
        ),
        "store_posterior": compiled(lambda params, x: store_posterior(Posterior(model, guide, params), x)),
    }
