"""The same data and model under several guides and α: one table, one figure (which approximation is to be trusted?)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from ppl_dgp.diagnostics.comparison import Comparison, tabulate
from ppl_dgp.diagnostics.draws import columns, inputs_of, joint_draws
from ppl_dgp.diagnostics.khat import elbo, expected_log_density, importance_weighted, sites_khat
from ppl_dgp.diagnostics.scores import held_out_scores, positive_scale
from ppl_dgp.fit import Fit, Posterior, fit_nuts, fit_sghmc, fit_table
from ppl_dgp.fit.arguments import takes_fit
from ppl_dgp.fit.path import bounds, compared
from ppl_dgp.gp.contract import Model
from ppl_dgp.guides import HIDDEN_RULES, Guide, HiddenRule
from ppl_dgp.guides.names import named
from ppl_dgp.guides.nesting import contains, nested_start
from ppl_dgp.objectives import AlphaDivergence, PowerEP

MakeModel = Callable[[], Model]
#: a guide of a model: what makes it, a rule of the hidden layers, or the name of one
MakeGuide = Callable[[Model], Any] | HiddenRule | str
#: ``fit_nuts`` or ``fit_sghmc``, or a ``functools.partial`` of one
Sampler = Callable[..., Fit]


def compare(
    key: Array,
    model: MakeModel,
    guides: Mapping[str, MakeGuide | Sampler | tuple[MakeModel, MakeGuide]],
    x: ArrayLike,
    y: ArrayLike,
    x_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    alphas: Sequence[float] = (0.0,),
    *,
    steps: int | str = "auto",
    objective: Callable[[float], AlphaDivergence] = PowerEP,
    num_draws: int = 200,
    num_locals: int = 8,
    num_samples: int = 200,
    target_scale: ArrayLike = 1.0,
    starts: Mapping[str, str] | None = None,
    say: Callable[[str], None] | None = None,
    **fit_settings: Any,
) -> Comparison:
    """Fit every guide at every α on the same rows, with the same key, and judge each by the same measures.

    :param model: makes the model, ``lambda: deep_gp((2,), 50)``.
    :param guides: by the name of the row, a rule of the hidden layers, its name (one of ``HIDDEN_RULES``), or what
        makes a guide of the model: ``lambda m: Guide(m, inducing=Diagonal())``; or a pair of makers for a row with a
        model of its own: ``(lambda: sparse_gp_regression(50), Guide)``. Or a sampler: ``fit_nuts``, ``fit_sghmc`` or
        ``partial(fit_sghmc, num_samples=1000)``, which starts at the best fit of the model before it, whose parameters
        NUTS holds: for SGHMC, at each α, by the ELBO; for NUTS, once, by the importance-weighted bound, which is of t_1
        as NUTS is.
    :param x: training inputs (N, D), y targets (N, P) or (N,), as the model is to see them (standardised).
    :param x_test: test inputs, y_test their targets, on the same scale; None where there are no test rows.
    :param alphas: each in [0, 1].
    :param steps: of training each; "auto" goes on until it has converged, or its budget is spent.
    :param objective: ``PowerEP`` or ``BlackBoxAlpha``, called with α.
    :param num_draws: of θ, for ELBO, importance-weighted bound, k-hat and LOO; each with ``num_locals`` of the locals.
    :param num_samples: of the hidden layers, for prediction.
    :param target_scale: standard deviation, scalar or (P,), by which the targets were divided: test figures are
        reported in original units (an offset changes none of them).
    :param starts: for a richer guide the poorer one before it at whose optimum it starts, at the same α, as
        :func:`nested_start` has it: ``{"markov": "mean-field"}``; its ``steps`` and ``seconds`` come on top. If None
        each starts at that of the poorer ones before it whose bound is the highest; ``{}`` for none. One that ends
        below the one it started at has not converged.
    :param say: is told which row is being fitted, ``"2 of 5: markov, α = 0"``.
    :param fit_settings: for ``fit_svi``: ``batch_size``, ``learning_rate``, ``progress`` ….
    :raises ValueError: without guides or alphas, for a scale that is not positive, or a start that is not before.
    :raises TypeError: if a guide in ``starts`` is not made of rules.
    """
    names = list(guides)
    for richer, poorer in (starts or {}).items():
        if richer not in names or poorer not in names[: names.index(richer)]:
            raise ValueError(
                f"starts: found {poorer!r} for {richer!r}, expected a guide listed before it; reorder them"
            )
    for name, given in (("guides", guides), ("alphas", alphas)):
        if not len(given):
            raise ValueError(f"{name}: found none, expected at least one to compare")
    scale = positive_scale(target_scale)
    train = jnp.asarray(x), columns(y)
    key_fit, key_measure, key_test = jax.random.split(key, 3)
    fits: dict[tuple[str, float], Fit] = {}
    measured = _measurements(train, (x_test, y_test), num_draws, num_locals, num_samples, scale)
    measures: dict[tuple[str, float], dict[str, Any]] = {}
    shared = model()
    samplers = {name: maker for name, maker in guides.items() if _is_sampler(maker)}

    def made(name: str) -> tuple[Model, Any]:
        """A row's model and its guide, which is new for each fit."""
        maker: Any = guides[name]
        built, make_guide = (maker[0](), maker[1]) if isinstance(maker, tuple) else (shared, maker)
        if isinstance(make_guide, str):
            make_guide = named("guides", make_guide, HIDDEN_RULES)
        return built, Guide(built, hidden=make_guide) if isinstance(make_guide, HiddenRule) else make_guide(
            built
        )

    for name in dict.fromkeys([*(starts or {}), *(starts or {}).values()]):
        if name in samplers:
            raise TypeError(f"starts: found the sampler {name!r}, expected guides; give it start= by partial")
        kind = type(made(name)[1])
        if not issubclass(kind, Guide):
            raise TypeError(f"starts: found a {kind.__name__} for {name!r}, expected a Guide; leave it out")

    def earlier(name: str) -> list[str]:
        """The rows before it that are guides'."""
        return [each for each in names[: names.index(name)] if each not in samplers]

    @cache
    def bounds_of(name: str, alpha: float) -> np.ndarray:
        return bounds(key_fit, fits[name, alpha], *train)

    def row(name: str, alpha: float) -> dict[str, Any]:
        built, guide = made(name)
        if starts is None:
            before = [each for each in earlier(name) if holds(guide, fits[each, alpha].guide)]
        else:
            before = [starts[name]] if name in starts else []
        poorer = max(before, key=lambda each: bounds_of(each, alpha).mean(), default=None)
        settings: dict[str, Any] = {"steps": steps, "start": None, **fit_settings}
        if poorer is not None:
            at = fits[poorer, alpha]
            settings["start"] = nested_start(at.guide, guide, at.params, *train)  # type: ignore[arg-type]
        fits[name, alpha] = fit = fit_table(key_fit, built, guide, objective(alpha), *train, **settings)
        if poorer is not None:
            fits[name, alpha] = fit = compared(fit, bounds_of(name, alpha), bounds_of(poorer, alpha))
        measures[name, alpha] = found = measured((key_measure, key_test), fit)
        return found

    def sampled(name: str, alpha: float) -> dict[str, Any]:
        of_t_1 = np.isnan(alpha)
        before = [
            each
            for each in measures
            if each[0] in earlier(name) and (of_t_1 or each[1] == alpha) and fits[each].model is shared
        ]
        worth = lambda each: measures[each]["iw_bound" if of_t_1 else "elbo"]
        settings: dict[str, Any] = {"start": fits[max(before, key=worth)]} if before else {}
        settings |= {} if of_t_1 else {"objective": objective(alpha)}
        settings |= getattr(samplers[name], "keywords", {})
        fits[name, alpha] = fit = _verb(samplers[name])(key_fit, shared, *train, **settings)
        return measured((key_measure, key_test), fit)

    rows: dict[tuple[str, float], Callable[[], dict[str, Any]]] = {}
    for name in guides:
        of_t_1 = name in samplers and _verb(samplers[name]) is fit_nuts
        for alpha in [float("nan")] if of_t_1 else map(float, alphas):
            rows[name, alpha] = partial(sampled if name in samplers else row, name, alpha)
    return replace(tabulate(rows, say), fits=fits)


def _verb(maker: Any) -> Any:
    """The function itself, where some of its arguments are given."""
    return maker.func if isinstance(maker, partial) else maker


def _is_sampler(maker: Any) -> bool:
    return _verb(maker) in (fit_nuts, fit_sghmc)


def holds(richer: Any, poorer: Any) -> bool:
    """Whether a guide is known to contain another one, which may be any callable."""
    return isinstance(richer, Guide) and isinstance(poorer, Guide) and contains(richer, poorer)


@takes_fit
def compare_fits(
    key: Array,
    fit: Fit,
    x: ArrayLike | None,
    y: ArrayLike,
    others: Mapping[str, Fit] | Fit,
    x_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    *,
    name: str = "this fit",
    num_draws: int = 200,
    num_locals: int = 8,
    num_samples: int = 200,
    target_scale: ArrayLike = 1.0,
) -> Comparison:
    """Fits of the same rows judged by the same measures, as :func:`compare` judges those that it makes.

    :param fit: the first row of the table, called ``name``.
    :param x: training inputs (N, D), None for none; y targets (N, P) or (N,).
    :param others: further fits by name, or one, called "the other".
    :param x_test: as for :func:`compare`, like all else.
    :raises ValueError: if two fits have one name, or for a scale that is not positive.
    """
    rest = {"the other": others} if isinstance(others, Fit) else dict(others)
    if name in rest:
        raise ValueError(f"name: found {name!r} for two fits, expected distinct names; rename one")
    keys = tuple(jax.random.split(key))
    train = jnp.asarray(inputs_of(x, y)), columns(y)
    test, scale = (x_test, y_test), positive_scale(target_scale)
    measured = _measurements(train, test, num_draws, num_locals, num_samples, scale)
    fits = {(label, _alpha(one)): one for label, one in {name: fit, **rest}.items()}
    rows = {row: partial(measured, keys, one) for row, one in fits.items()}
    return replace(tabulate(rows), fits=fits)


def _alpha(fit: Fit) -> float:
    """The α of a fit's objective, NaN where it has none."""
    alpha = getattr(fit.objective, "alpha", None)
    return float(alpha) if isinstance(alpha, float) else float("nan")


def _measurements(
    train: tuple[Array, Array],
    test: tuple[ArrayLike | None, ArrayLike | None],
    num_draws: int,
    num_locals: int,
    num_samples: int,
    target_scale: np.ndarray,
) -> Callable[[tuple[Array, Array], Fit], dict[str, Any]]:
    """What measures a fit, of the keys for training rows and test rows."""

    def measured(keys: tuple[Array, Array], fit: Fit) -> dict[str, Any]:
        measures: dict[str, Any] = _bounds(keys[0], fit, train, num_draws, num_locals)
        x_test, y_test = test
        if x_test is not None and y_test is not None:
            measures |= held_out_scores(
                keys[1], fit, x_test, y_test, num_samples=num_samples, target_scale=target_scale
            )
        numbers = sum(value.size for value in fit.params.values())
        about = {"gap": fit.gap, "converged": fit.converged}
        return measures | about | {"seconds": fit.seconds, "parameters": numbers}

    return measured


def _bounds(
    key: Array, fit: Posterior, train: tuple[Array, Array], num_draws: int, num_locals: int
) -> dict[str, float]:
    key_elbo, key_draws = jax.random.split(key)
    value, error = elbo(key_elbo, fit, *train, num_draws=num_draws)
    draws = joint_draws(key_draws, fit, *train, num_draws=num_draws, num_locals=num_locals)
    return {
        "elbo": value,
        "elbo_se": error,
        "iw_bound": importance_weighted(draws.log_ratio)[0],
        "khat": sites_khat(draws),
        "loo": expected_log_density(draws.log_likelihood)[0],
    }
