"""Cross-validation: what a model says of rows that it was not trained on, its folds trained side by side.

Unlike LOO by importance sampling it asks nothing of q: each row is predicted by a fit that has not seen it (Vehtari,
Gelman and Gabry 2017). Stacking gives the weights of several models' predictive distributions (Yao et al. 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pandas as pd
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Num
from numpyro.infer import ELBO

from ppl_dgp.data.table import Standardiser, standardise
from ppl_dgp.diagnostics.arviz_api import elpd_data, is_container, pointwise_elpd, stacking_weights
from ppl_dgp.diagnostics.fold_scores import row_scores
from ppl_dgp.diagnostics.folds import Splitter, folds_of
from ppl_dgp.diagnostics.scores import positive_scale, sum_with_error
from ppl_dgp.fit import Fit, fit_lbfgs, fit_many, fit_svi
from ppl_dgp.fit.arguments import check_key
from ppl_dgp.fit.padding import UnequalLengthError
from ppl_dgp.fit.watching import LOG

#: by what share of their deviation targets may differ that are the same, as those kept in 32 bits do
ALIKE = 1e-4
#: trains one fold, as ``fit_svi``, ``fit_table`` and ``fit_series`` do
Train = Callable[..., Fit]


@dataclass(frozen=True, eq=False, repr=False)
class CrossValidation:
    """What K fits say of rows that they have not seen.

    :param log_density: log p(y_n | rows trained on) of each row (N,), in nats and the units of ``cross_validate``; NaN
        of rows that no fold holds out, or of which nothing was observed.
    :param fold: which fold holds a row out (N,), −1 for none.
    :param scores: a row for each fold: how many rows it trains on and holds out, its scores on these, whether its fit
        has ``converged``, and the ``gap`` in nats that it had yet to gain.
    :param fits: those of the folds, in order, in the units of training.
    :param num_samples: draws that predictions are averages of.
    :param targets: y (N, P) in the units of ``log_density``, but for where its zero is.
    """

    log_density: Float[np.ndarray, " N"]
    fold: Int[np.ndarray, " N"]
    scores: pd.DataFrame
    fits: list[Fit]
    num_samples: int
    targets: Num[np.ndarray, "N P"]

    def __repr__(self) -> str:
        about = "all converged" if self.converged else "not all converged"
        counted = f"{self.rows.size} rows in {len(self.fits)} folds"
        return f"CrossValidation: ELPD {self.elpd:.2f} ± {self.se:.2f} nats, {counted}, {about}"

    @property
    def rows(self) -> Int[np.ndarray, " n"]:
        """The rows that were held out and have a log density."""
        return np.flatnonzero((self.fold >= 0) & ~np.isnan(self.log_density))

    @property
    def elpd(self) -> float:
        """The expected log pointwise predictive density: the sum over rows held out, in nats."""
        return float(sum_with_error(self.log_density[self.rows])[0])

    @property
    def se(self) -> float:
        """The standard error of ``elpd``, as if rows were independent: √(n Var)."""
        return float(sum_with_error(self.log_density[self.rows])[1])

    @property
    def converged(self) -> bool:
        """Whether every fold's fit has, of which it is known: of draws by NUTS ``advice`` says what R-hat does."""
        return all(fit.converged is None or bool(fit.converged) for fit in self.fits)

    @property
    def advice(self) -> tuple[str, ...]:
        """What may be wrong with the fits of folds, each said once with the folds of which it is true."""
        found: dict[str, list[str]] = {}
        for number, fit in enumerate(self.fits):
            for text in fit.advice:
                found.setdefault(text, []).append(str(number))
        return tuple(f"folds {', '.join(numbers)}: {text}" for text, numbers in found.items())

    def to_elpd(self) -> Any:
        """As ArviZ's ``ELPDData``, which ``arviz.compare`` takes beside those of ``arviz.loo`` of the same rows."""
        return elpd_data(
            self.log_density[self.rows], self.rows, len(self.fits), self.num_samples, not self.converged
        )


def cross_validate(
    key: Array,
    model: Callable[..., Any],
    guide: Callable[..., Any] | None,
    objective: ELBO | str | None,
    x: ArrayLike | None,
    y: ArrayLike,
    *,
    folds: int | Splitter | Iterable[tuple[ArrayLike, ArrayLike]] = 10,
    standardise: bool = False,
    target_scale: ArrayLike | Standardiser = 1.0,
    num_samples: int = 200,
    train: Train | None = None,
    **settings: Any,
) -> CrossValidation:
    """Train on all rows but those of a fold, for each fold, and predict these.

    All folds train as one program, by :func:`fit_many`, where rows can be appended that do not count; else one after
    another. The same key gives the same folds to every model.

    :param model, guide, objective: as of ``fit_many``; a guide None is for models without latent sites, such as
        ``exact_gp_regression``, whose evidence is maximised by ``fit_lbfgs``.
    :param x: inputs (N, D), None for none; y targets (N, P) or (N,), both as the model is to see them.
    :param folds: K folds drawn by the key (N of them leave one out), one of scikit-learn's splitters, or pairs of row
        numbers to train on and to hold out, such as those of :func:`forward_folds`. Of a model of series, gpssm say,
        each holds out steps after those that it trains on, and predicts each from all steps before it.
    :param standardise: whether each fold brings the columns of x, and of y where it is not of whole numbers, to mean 0
        and deviation 1 of the rows that it trains on, so that nothing is known of those held out. What is returned is
        in the units of x and y.
    :param target_scale: standard deviation, scalar or (P,), by which targets were divided before, or the
        ``Standardiser`` that did: what is returned is in original units.
    :param num_samples: of the hidden layers, for prediction; of a model of series, particles.
    :param train: trains one fold after another in place of ``fit_many``, called as ``train(key, model, guide,
        objective, x, y, **settings)``: ``fit_table``, ``fit_series``, or for a sampler
        ``lambda key, model, guide, objective, x, y: fit_nuts(key, model, x, y)``.
    :param settings: of what trains: ``steps``, ``batch_size``, ``progress``, ``callback`` ….
    :raises ValueError: for folds, scales or settings that cannot be used; for several sequences of a model of series.
    :raises Interrupted: on Ctrl-C, with the fits that were reached.

    Warns as ``fit_many`` does. A fold whose fit has not converged is marked in ``scores`` and ``advice``.
    """
    check_key(key)
    inputs = None if x is None else np.asarray(x)
    targets = np.asarray(y)
    targets = targets[:, None] if targets.ndim == 1 else targets
    if inputs is not None and len(inputs) != len(targets):
        raise ValueError(
            f"y: found {len(targets)} rows beside {len(inputs)} of x, expected as many; pass targets "
            "of the same rows"
        )
    key_folds, key_fit, key_rows = jax.random.split(key, 3)
    pairs = folds_of(key_folds, folds, np.zeros((len(targets), 0)) if inputs is None else inputs, targets)
    given = target_scale.scale if isinstance(target_scale, Standardiser) else target_scale
    scale = positive_scale(given)
    scales, tables = [scale] * len(pairs), [(inputs, targets)] * len(pairs)
    if standardise:
        _check_standardised(model, given)
        tables, scales = map(
            list, zip(*(_in_own_units(inputs, targets, rows) for rows, _ in pairs), strict=True)
        )
    seen = [
        (None if each is None else each[rows], of[rows])
        for (each, of), (rows, _) in zip(tables, pairs, strict=True)
    ]
    fits = _trained(key_fit, model, guide, objective, seen, train, settings)
    log_density, fold = np.full(len(targets), np.nan), np.full(len(targets), -1)
    scores: list[dict[str, Any]] = []
    for number, (fit, (rows, held)) in enumerate(zip(fits, pairs, strict=True)):
        about = {"train": len(rows), "test": len(held)}
        own = jax.random.fold_in(key_rows, number)
        found, measures = row_scores(own, fit, *tables[number], rows, held, num_samples, scales[number])
        log_density[held], fold[held] = found, number
        scores.append(about | measures | {"converged": fit.converged, "gap": fit.gap})
    table = pd.DataFrame(scores, index=pd.RangeIndex(len(fits), name="fold"))
    return CrossValidation(log_density, fold, table, fits, num_samples, targets * scale)


def compare_elpd(results: Mapping[str, Any]) -> pd.DataFrame:
    """A row for each of several models of the same rows, the best first, with the weights of stacking.

    Columns ``elpd`` and its ``se``, ``elpd_diff`` to the best and its ``dse``, in nats over the rows, and ``weight``:
    of all mixtures of their predictive distributions the best has these weights (found by ArviZ).

    :param results: by name, a ``CrossValidation``, ArviZ's ``ELPDData`` with pointwise values, or what ``to_arviz``
        makes, whose LOO is taken. All of the same rows in the same units: LOO is in the units of training.
    :raises ValueError: for fewer than two, or of other rows, units or targets, which ArviZ's ``ELPDData`` do not tell.
    """
    if len(results) < 2:
        raise ValueError(f"results: found {len(results)}, expected at least two to compare")
    known = {name: each for name, each in results.items() if isinstance(each, CrossValidation)}
    values = {
        name: known[name].log_density[known[name].rows] if name in known else pointwise_elpd(each)
        for name, each in results.items()
    }
    counts = {name: len(each) for name, each in values.items()}
    rows = [each.rows for each in known.values()]
    if len(set(counts.values())) > 1 or any(not np.array_equal(each, rows[0]) for each in rows):
        raise ValueError(
            f"results: found those of other rows, in number {counts}, expected the same of all; take the same folds"
        )
    _check_targets(results)
    table = pd.DataFrame(index=pd.Index(values, name="model"))
    pointwise = np.stack(list(values.values()))
    best = pointwise[pointwise.sum(1).argmax()]
    table["elpd"], table["se"] = sum_with_error(pointwise)
    table["elpd_diff"], table["dse"] = sum_with_error(pointwise - best)
    table["weight"] = stacking_weights(pointwise)
    return table.sort_values("elpd", ascending=False)


def _check_targets(results: Mapping[str, Any]) -> None:
    """Refuse densities of other targets: of rows in another order, of another column, or in other units."""
    targets = {}
    for name, each in results.items():
        if isinstance(each, CrossValidation):
            targets[name] = each.targets[each.rows].astype(float)
        elif is_container(each):
            targets[name] = np.asarray(each["observed_data"]["y"], float).reshape(
                len(each["observed_data"]["y"]), -1
            )
    for name, y in targets.items():
        first, one = next(iter(targets.items()))
        apart = ALIKE * np.nanstd(one)
        a, b = (each - np.nanmean(each, 0) for each in (y, one))
        if y.shape != one.shape or not np.allclose(a, b, rtol=0.0, atol=apart, equal_nan=True):
            raise ValueError(
                f"results: found {name!r} of other targets than {first!r}, or of the same in other units or order, "
                "expected densities of the same; predict the same y, and give target_scale where it was divided"
            )


def _trained(
    key: Array,
    model: Callable[..., Any],
    guide: Callable[..., Any] | None,
    objective: Any,
    seen: list[tuple[Any, Any]],
    train: Train | None,
    settings: dict[str, Any],
) -> list[Fit]:
    """The fit of each fold, side by side where that is possible."""
    keys = jax.random.split(key, len(seen))
    if train is None and guide is not None:
        xs = None if seen[0][0] is None else [x for x, _ in seen]
        try:
            return fit_many(keys, model, guide, objective, xs, [y for _, y in seen], **settings)
        except UnequalLengthError as refusal:
            if "checkpoint" in settings:
                raise
            LOG.info("folds are trained one after another: %s", refusal)
    if train is None and guide is None:
        return [
            fit_lbfgs(one, model, x, y, objective=objective, **settings)
            for one, (x, y) in zip(keys, seen, strict=True)
        ]
    each: Train = fit_svi if train is None else train
    return [
        each(one, model, guide, objective, x, y, **settings) for one, (x, y) in zip(keys, seen, strict=True)
    ]


def _check_standardised(model: Callable[..., Any], scale: ArrayLike) -> None:
    if np.any(np.asarray(scale) != 1.0):
        raise ValueError(
            "target_scale: found one beside standardise=True, which has its own; leave one of them out"
        )
    if hasattr(model, "num_sequences"):
        raise ValueError(
            "standardise: found True with a model of series, whose columns may be times; bring them to scale, and give "
            "target_scale"
        )


def _in_own_units(
    x: np.ndarray | None, y: np.ndarray, rows: Int[np.ndarray, " n"]
) -> tuple[tuple[np.ndarray | None, np.ndarray], np.ndarray]:
    """All rows in units of some of them, and the scale of the targets."""
    inputs = None if x is None else Standardiser.fit(x[rows]).transform(x)
    if y.dtype.kind != "f":
        return (inputs, y), np.ones(())
    units = standardise(y[rows])
    return (inputs, units.transform(y)), units.scale
