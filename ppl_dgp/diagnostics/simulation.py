"""Choosing how to train on a series by simulating its last part: which guide, which weight, how many steps.

A bound compares guides of one model under one objective. Across objectives that are no bounds, and for what a user
wants of a state space model, whether its simulations and their bands can be believed, steps that were kept back decide.
Shapes: T steps of S sequences, C controls, P outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from ppl_dgp.diagnostics.candidates import Candidate, trained_on_all
from ppl_dgp.diagnostics.draws import columns, inputs_of
from ppl_dgp.diagnostics.scores import positive_scale
from ppl_dgp.extras import needed_for
from ppl_dgp.fit import Fit, FitError, Posterior
from ppl_dgp.fit.advice import held_out_advice
from ppl_dgp.fit.result import checked_data
from ppl_dgp.prediction.forecast import forecast
from ppl_dgp.prediction.rollout import LONGEST_PATH

if TYPE_CHECKING:
    from rich.table import Table
else:  # an extra
    Table = Any

#: measures by which a candidate may be chosen, and whether more is better
CHOSEN_BY = {"log_density": True, "rmse": False}


@dataclass(frozen=True)
class SimulationScore:
    """What simulating the last part is worth: mean log density per observed step, RMSE and coverage in original units.

    All are NaN where the fit ``failed``, for the reason that is given.
    """

    candidate: str
    steps: int | str
    log_density: float = float("nan")
    rmse: float = float("nan")
    coverage95: float = float("nan")
    seconds: float = float("nan")
    failed: str | None = None


@dataclass(frozen=True, eq=False)
class SimulationChoice:
    """The candidate that was chosen, and what each is worth in simulation.

    ``best`` is one of the ``scores``, which has one for each candidate and number of steps; ``mean`` is that of the
    Gaussian of the first part's mean and variance. ``fit`` is the best trained on all steps, or on the first part;
    ``fits`` are those of the first part by (candidate, steps), ``count`` the simulated entries of y.
    """

    best: SimulationScore
    scores: tuple[SimulationScore, ...]
    mean: SimulationScore
    fit: Fit
    count: int
    fits: dict[tuple[str, int | str], Fit] = field(default_factory=dict)

    @property
    def table(self) -> pd.DataFrame:
        """All scores, a row each, that of the mean last."""
        return pd.DataFrame([asdict(score) for score in (*self.scores, self.mean)])

    @property
    def advice(self) -> tuple[str, ...]:
        """What may be wrong with the simulations of the best, and what to do about it."""
        best, mean = self.best, self.mean.log_density
        return held_out_advice(best.coverage95, best.log_density, mean, self.count, "give other candidates")

    def to_rich(self) -> Table:
        """For the terminal: ``rich.print(choice.to_rich())``; the best in bold."""
        with needed_for("a table for the terminal"):
            from rich.box import SIMPLE_HEAD
            from rich.markup import escape
            from rich.table import Table
        shown = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        shown.add_column("candidate", no_wrap=True)
        for heading in ("steps", "log density", "RMSE", "in 95 %", "s"):
            shown.add_column(heading, justify="right", no_wrap=True)
        for score in (*self.scores, self.mean):
            values = f"{score.log_density:.3f}", f"{score.rmse:.4g}", f"{score.coverage95:.3f}"
            cells = [value.replace("nan", "–") for value in (*values, f"{score.seconds:.1f}")]
            style = "bold" if score is self.best else None
            shown.add_row(escape(score.candidate), str(score.steps), *cells, style=style)
        if self.advice:
            shown.caption, shown.caption_justify = escape("\n".join(self.advice)), "left"
        return shown


def choose_by_simulation(
    key: Array,
    candidates: Mapping[str, Candidate],
    x: ArrayLike | None,
    y: ArrayLike,
    *,
    share: float = 0.2,
    steps: int | str | Sequence[int] = "auto",
    by: str = "log_density",
    refit: bool = True,
    num_samples: int = 200,
    target_scale: ArrayLike = 1.0,
    say: Callable[[str], None] | None = None,
    **settings: Any,
) -> SimulationChoice:
    """Train each candidate on the first part of a series, simulate the rest, and train the best on all of it.

    Each simulation goes on from what q says of the end of the first part, under the controls that came, and sees
    nothing of the outputs that it is judged by (Doerr et al. 2018 judge so, on a test set).

    :param candidates: by name.
    :param x: controls (T, C), of several sequences with their numbers in the last column; None for none.
    :param y: outputs (T, P), NaN where they are missing.
    :param share: of each sequence, the last part that is simulated.
    :param steps: of each fit, as of ``fit_series``; several numbers, such as (500, 1000, 2000), to stop early by the
        same measure, each with a fit of its own.
    :param by: "log_density" of what came, which asks for bands that can be believed, or "rmse".
    :param refit: whether the best is trained once more, on all steps: from the usual start, and where that simulates
        the last part worse than the fit that had not seen it, also from the parameters that were chosen; the better is
        taken.
    :param num_samples: of the simulations.
    :param target_scale: standard deviation, scalar or (P,), by which y was divided: figures are in original units.
    :param say: is told which candidate is being trained.
    :param settings: of ``fit_series``, for all: ``batch_size``, ``learning_rate`` ….
    :returns: the best candidate's fit, and the scores of all; see its ``advice``.
    :raises ValueError: without candidates, for another measure, a share that leaves no step to train on or to
        simulate, or if no candidate's simulation is finite.
    """
    if not candidates:
        raise ValueError("candidates: found none, expected at least one to train")
    if by not in CHOSEN_BY:
        raise ValueError(f"by: found {by!r}, expected one of {', '.join(CHOSEN_BY)}")
    scale, (inputs, outputs) = positive_scale(target_scale), (np.asarray(inputs_of(x, y)), columns(y))
    y_all = np.asarray(outputs)
    sequences = {candidate.num_sequences for candidate in candidates.values()}
    if len(sequences) > 1:
        raise ValueError(
            f"candidates: found models of {sorted(sequences)} sequences, expected one number; set num_sequences alike"
        )
    several = sequences != {1}
    numbers = inputs[:, -1] if several else np.zeros(len(y_all))
    kept_back = last_part(numbers, share)
    first, ahead = (None if x is None else inputs[~kept_back]), inputs[:, :-1] if several else inputs
    key_fit, key_simulation = jax.random.split(key)
    lengths = [steps] if isinstance(steps, int | str) else list(steps)
    scores: list[SimulationScore] = []
    fits: dict[tuple[str, int | str], Fit] = {}
    trials = [
        (name, candidate, length)
        for name, candidate in candidates.items()
        for length in ([candidate.settings["steps"]] if "steps" in candidate.settings else lengths)
    ]
    count_sequences = len(set(numbers.tolist()))

    def judged(name: str, length: int | str, fit: Posterior, seconds: float = 0.0) -> SimulationScore:
        simulated = [
            _simulated(
                key_simulation, fit, (first, y_all), (ahead, kept_back), (numbers, number), num_samples
            )
            for number in range(count_sequences)
        ]
        return SimulationScore(name, length, *_scores(simulated, scale), seconds=seconds)

    for name, candidate, length in trials:
        if say is not None:
            say(f"{name}, {length} steps")
        try:
            fit = candidate.trained(key_fit, first, y_all[~kept_back], length, settings)
        except FitError as failed:
            scores.append(SimulationScore(name, length, failed=str(failed)))
            continue
        fits[name, length] = fit
        scores.append(judged(name, length, fit, fit.seconds))
    sign = 1.0 if CHOSEN_BY[by] else -1.0
    finite = [score for score in scores if np.isfinite(getattr(score, by))]
    if not finite:
        raise ValueError(
            f"candidates: found no {by} that is finite in simulation, expected one; standardise the series, or begin "
            "at dynamics that do not grow (start='linear')"
        )
    best = max(finite, key=lambda score: sign * getattr(score, by))
    fit = fits[best.candidate, best.steps]
    if refit:

        def worth(fit: Posterior) -> float:
            value = sign * getattr(judged(best.candidate, best.steps, fit), by)
            return value if np.isfinite(value) else -np.inf

        train = lambda candidate: candidate.trained(key_fit, x, y_all, best.steps, settings)
        data, least = checked_data(x, y_all, candidates[best.candidate].model), sign * getattr(best, by)
        fit = trained_on_all(
            key_fit, candidates[best.candidate], fit, train, data, ~kept_back, worth=worth, least=least
        )
    mean = SimulationScore("mean and variance", "", *_of_mean(y_all, kept_back, scale))
    count = int((~np.isnan(y_all[kept_back])).sum())
    return SimulationChoice(best, tuple(scores), mean, fit, count, fits)


def last_part(sequence: Float[np.ndarray, " T"], share: float) -> Bool[np.ndarray, " T"]:
    """Which steps are the last ``share`` of their sequence, at least one of each.

    :raises ValueError: for a share that is not inside (0, 1), or leaves a sequence no step to train on.
    """
    if not 0.0 < share < 1.0:
        raise ValueError(f"share: found {share}, expected a number between 0 and 1")
    there = np.zeros(len(sequence), bool)
    for number in dict.fromkeys(sequence.tolist()):
        rows = np.flatnonzero(sequence == number)
        count = max(1, round(share * len(rows)))
        if count >= len(rows):
            raise ValueError(
                f"share: found {share} of a sequence of {len(rows)} steps, expected to leave some to train on; lower it"
            )
        there[rows[len(rows) - count :]] = True
    return there


def _simulated(
    key: Array,
    fit: Posterior,
    data: tuple[np.ndarray | None, np.ndarray],
    held: tuple[np.ndarray, np.ndarray],
    which: tuple[np.ndarray, int],
    num_samples: int,
) -> tuple[np.ndarray, ...]:
    """What came of a sequence (H, P), its simulated mean, 95 % band and log density (H,)."""
    (first, y), (controls, kept_back), (numbers, number) = data, held, which
    begin = y[~kept_back]
    rows = np.flatnonzero(kept_back & (numbers == list(dict.fromkeys(numbers.tolist()))[number]))
    found = forecast(
        key, fit, None if first is None else jnp.asarray(first), jnp.asarray(begin), jnp.asarray(controls[rows]),
        y_future=jnp.asarray(y[rows]), sequence=number, num_samples=num_samples,
        function="path" if len(rows) <= LONGEST_PATH else "independent",
    )  # fmt: skip
    assert found.log_density is not None
    low, high = np.quantile(found.samples, (0.025, 0.975), axis=0)
    return y[rows], found.mean, low, high, found.log_density


def _scores(simulated: Sequence[tuple[np.ndarray, ...]], scale: np.ndarray) -> tuple[float, float, float]:
    """Log density, RMSE and coverage of all sequences, in original units, over the entries that were observed."""
    y, mean, low, high, density = (np.concatenate(each) for each in zip(*simulated, strict=True))
    there = ~np.isnan(y)
    density = density - there @ np.broadcast_to(np.log(scale), y.shape[1:])
    rmse = np.sqrt(np.square((y - mean) * scale)[there].mean())
    return float(density[there.any(1)].mean()), float(rmse), float(((low <= y) & (y <= high))[there].mean())


def _of_mean(
    y: Float[np.ndarray, "T P"], kept_back: Bool[np.ndarray, " T"], scale: np.ndarray
) -> tuple[float, float, float]:
    """The same of the Gaussian that the first part's outputs have, each column its own."""
    mean, deviation = np.nanmean(y[~kept_back], 0), np.nanstd(y[~kept_back], 0)
    low, high = (
        np.broadcast_to(mean + end * 1.959964 * deviation, y[kept_back].shape) for end in (-1.0, 1.0)
    )
    residual = (y[kept_back] - mean) / deviation
    density = np.nansum(-0.5 * np.square(residual) - np.log(deviation * np.sqrt(2.0 * np.pi)), 1)
    return _scores([(y[kept_back], np.broadcast_to(mean, low.shape), low, high, density)], scale)
