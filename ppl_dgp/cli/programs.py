"""From settings to a model, guide and objective, their fit, and predictions, all in standardised units."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.infer import ELBO

from ppl_dgp.cli.classes import strides_of
from ppl_dgp.cli.settings import Settings
from ppl_dgp.cli.stack_blocks import blocks_of
from ppl_dgp.cli.stacks import STACK
from ppl_dgp.cli.state_spaces import closed_expectations, state_space
from ppl_dgp.cli.uses import COLLAPSED
from ppl_dgp.estimators.estimator import PREDICTED_AT_ONCE
from ppl_dgp.estimators.latent import fit_latent, latent_program
from ppl_dgp.fit import Fit, Posterior, energy, fit_lbfgs, fit_series, fit_table
from ppl_dgp.fit.full_batch import no_latents
from ppl_dgp.fit.series import CLOSED
from ppl_dgp.fit.table import fit_collapsed
from ppl_dgp.guides import HIDDEN_RULES, INDUCING_RULES, Guide
from ppl_dgp.guides.following import follows
from ppl_dgp.guides.nesting import contains, nested_start
from ppl_dgp.models import (
    additive_gp,
    binned_counts_gp,
    convolutional_gp,
    convolved_gp,
    deep_convolutional_gp,
    deep_gp,
    deep_gp_classification,
    exact_gp_regression,
    gp_with_derivatives,
    multi_output_gp,
    sparse_gp_classification,
    sparse_gp_regression,
    stack,
    stack_classification,
)
from ppl_dgp.models.kernel_values import named_kernel
from ppl_dgp.models.zoo_model import ZooModel
from ppl_dgp.objectives import OBJECTIVES, Collapsed, ImportanceWeighted, PowerEP
from ppl_dgp.prediction.predict import Prediction, predict

LEVELS = (0.025, 0.5, 0.975)
PREDICTION_DRAWS = 200
ELBO_DRAWS = 100
#: of an importance-weighted bound, unless told
SAMPLES = 8


@dataclass(frozen=True, eq=False)
class Program:
    """A model with its guide (None where nothing is latent) and objective, made of resolved settings."""

    settings: Settings
    model: Callable[..., Any]
    guide: Callable[..., Any] | None
    objective: ELBO | None


def build(
    settings: Settings, num_outputs: int, num_sequences: int = 1, num_classes: int | None = None
) -> Program:
    """The model, guide and objective that resolved ``settings`` name, for P = ``num_outputs`` target columns.

    :param num_classes: C, where the target is one of classes.
    """
    if num_classes is not None:
        return _of_classes(settings, num_classes)
    if settings.model == "gpssm":
        return Program(settings, *state_space(settings, num_outputs, num_sequences))
    kernel = named_kernel(settings.kernel)
    if settings.model == "gp":
        return Program(settings, exact_gp_regression(kernel=kernel), None, None)
    assert settings.inducing is not None
    if settings.model == "gplvm":
        assert settings.latent is not None
        rules = settings.kernel, settings.hidden, "shared", "pca"
        latents, rule = latent_program(num_outputs, settings.latent, settings.inducing, *rules)
        return Program(settings, latents, rule, None)
    objective = _objective(settings)
    likelihood = None if settings.likelihood == "gaussian" else settings.likelihood
    choices: dict[str, Any] = {"num_outputs": num_outputs, "kernel": kernel, "likelihood": likelihood}
    if settings.model == STACK:
        mixed = stack(blocks_of(settings), num_outputs=num_outputs, likelihood=likelihood)
        return Program(settings, mixed, _guide(mixed, settings), objective)
    if settings.model == "deep-gp":
        deep = deep_gp(settings.widths, settings.inducing, **choices)
        return Program(settings, deep, _guide(deep, settings), objective)
    model: ZooModel
    if settings.model == "sparse-gp":
        model = sparse_gp_regression(settings.inducing, **choices)
    elif settings.model == "additive-gp":
        model = additive_gp(None, settings.inducing, **choices)
    elif settings.model == "binned-counts-gp":
        exposed = settings.exposure is not None
        model = binned_counts_gp(settings.inducing, exposure=exposed, **choices)
    elif settings.model == "gp-with-derivatives":
        model = gp_with_derivatives(settings.inducing, num_outputs=num_outputs, kernel=kernel)
    elif settings.model == "multi-output-gp":
        model = multi_output_gp(num_outputs, settings.latent, settings.inducing, kernel=kernel)
    else:
        model = convolved_gp(num_outputs, settings.latent, settings.inducing)
    return Program(settings, model, Guide(model, inducing=INDUCING_RULES[settings.inducing_rule]), objective)


def _objective(settings: Settings) -> ELBO:
    if settings.objective == "importance-weighted":
        return ImportanceWeighted(settings.particles or SAMPLES, settings.alpha)
    if settings.objective == COLLAPSED:
        return Collapsed(settings.alpha)
    return OBJECTIVES[settings.objective](settings.alpha, settings.particles)


def _of_classes(settings: Settings, num_classes: int) -> Program:
    assert settings.inducing is not None
    likelihood = None if settings.likelihood == "gaussian" else settings.likelihood
    choices: dict[str, Any] = {"kernel": named_kernel(settings.kernel), "likelihood": likelihood}
    model: ZooModel
    if settings.model == "sparse-gp":
        model = sparse_gp_classification(num_classes, settings.inducing, **choices)
    elif settings.model == STACK:
        model = stack_classification(blocks_of(settings), num_classes, likelihood=likelihood)
    elif settings.model == "deep-gp":
        model = deep_gp_classification(num_classes, settings.widths, settings.inducing, **choices)
    else:
        assert settings.image is not None and settings.patch is not None
        sizes = {"image": settings.image, "patch": settings.patch, "located": settings.located}
        choices |= sizes | {"num_classes": num_classes, "num_inducing": settings.inducing}
        if settings.model == "convolutional-gp":
            model = convolutional_gp(stride=settings.stride, **choices)
        else:
            strides = strides_of(settings)
            model = deep_convolutional_gp(channels=settings.widths, strides=strides, **choices)
    objective = _objective(settings)
    if settings.model in ("deep-gp", STACK):
        return Program(settings, model, _guide(model, settings), objective)
    return Program(settings, model, Guide(model, inducing=INDUCING_RULES[settings.inducing_rule]), objective)


def train(
    program: Program,
    x: Float[np.ndarray, "N D"],
    y: Float[np.ndarray, "N P"],
    *,
    start: dict[str, Array] | None = None,
    checkpoint: Path | None = None,
    resume: bool = False,
    progress: bool = False,
) -> Fit:
    """Fit the program to standardised rows, from ``start`` if given; raises what ``fit_svi`` and ``fit_lbfgs`` do."""
    settings = program.settings
    key = jax.random.key(settings.seed)
    if settings.model == "gplvm":
        assert isinstance(program.guide, Guide)
        how: dict[str, Any] = dict(batch_size=settings.batch, progress=progress, **ending(settings))
        how |= {"learning_rate": settings.learning_rate}
        return fit_latent(key, program.model, program.guide, y, checkpoint=checkpoint, resume=resume, **how)
    if settings.model == "gpssm":
        assert isinstance(program.guide, Guide) and program.objective is not None
        how, warm = ending(settings), None
        if resume and follows(program.guide.hidden):  # what was kept is of the steps after the warm start
            warm = 0
            if not isinstance(settings.steps, str):
                how["steps"] = settings.steps - settings.steps // 2
        how |= {"learning_rate": settings.learning_rate, "restarts": settings.restarts, "progress": progress}
        how |= {"checkpoint": checkpoint, "resume": resume, "warm_steps": warm}
        how |= {"batch_size": settings.batch}
        how["warm_objective"] = CLOSED if closed_expectations(settings) else PowerEP(0.0)
        controls = x if x.shape[1] else None
        found = fit_series(key, program.model, program.guide, program.objective, controls, y, **how)
        # of the warm start and of what follows it, as its losses and seconds are
        return dataclasses.replace(found, steps=found.losses.shape[-1])
    if program.guide is None or program.objective is None:
        return fit_lbfgs(
            key,
            program.model,
            x,
            y,
            **ending(settings),
            progress=progress,
            checkpoint=checkpoint,
            resume=resume,
        )
    of_table = dict(
        batch_size=settings.batch, learning_rate=settings.learning_rate, restarts=settings.restarts
    )
    saved = dict(progress=progress, checkpoint=checkpoint, resume=resume)
    how = ending(settings) | of_table | saved | {"start": start}
    if isinstance(program.objective, Collapsed):
        assert isinstance(program.guide, Guide)
        return fit_collapsed(key, program.model, program.guide, program.objective, x, y, **how)
    return fit_table(key, program.model, program.guide, program.objective, x, y, **how)


def ending(settings: Settings) -> dict[str, Any]:
    """What says when a fit ends, as fits take it."""
    own = {"budget": settings.budget, "tolerance": settings.tolerance}
    return {"steps": settings.steps} | {name: value for name, value in own.items() if value is not None}


def contained(poorer: Settings, richer: Settings) -> bool:
    """Whether the two differ in nothing but their guides, and that of ``richer`` contains that of ``poorer``."""
    alike = dataclasses.replace(poorer, hidden=richer.hidden, inducing_rule=richer.inducing_rule) == richer
    return (
        alike and richer.model == "deep-gp" and contains(_guide(deep_gp(), richer), _guide(deep_gp(), poorer))
    )


def nested_start_of(
    program: Program,
    poorer: Settings,
    params: dict[str, Array],
    x: Float[np.ndarray, "N D"],
    y: Float[np.ndarray, "N P"],
) -> dict[str, Array]:
    """Where the program's guide is the ``poorer`` one at ``params``."""
    assert isinstance(program.guide, Guide)
    guide = _guide(program.model, poorer)
    return nested_start(guide, program.guide, params, jnp.asarray(x), jnp.asarray(y))


def _guide(model: Callable[..., Any], settings: Settings) -> Guide:
    """The guide of a deep GP or a stack."""
    inducing = INDUCING_RULES[settings.inducing_rule]
    return Guide(model, hidden=HIDDEN_RULES[settings.hidden], inducing=inducing)


def program_elbo(
    program: Program, fitted: Fit, x: Float[np.ndarray, "N D"], y: Float[np.ndarray, "N P"]
) -> tuple[float, float]:
    """ELBO and its standard error over ``ELBO_DRAWS`` draws, in nats; the exact log evidence where it is known."""
    from ppl_dgp.diagnostics.khat import elbo as bound

    key = jax.random.key(program.settings.seed + 1)
    inputs = x if x.shape[1] else None
    if program.objective is CLOSED:
        return energy(key, fitted, inputs, y, objective=CLOSED), 0.0
    if program.guide is None:
        return energy(key, fitted, inputs, y), 0.0
    return bound(key, fitted, jnp.asarray(x), jnp.asarray(y), ELBO_DRAWS)


def predict_rows(
    program: Program,
    params: dict[str, Array],
    x: Float[np.ndarray, "N D"],
    y: Float[np.ndarray, "N P"] | None,
    training: tuple[Float[np.ndarray, "K D"], Float[np.ndarray, "K P"]] | None = None,
    levels: Sequence[float] = LEVELS,
    batch_size: int = PREDICTED_AT_ONCE,
) -> Prediction:
    """Prediction at standardised rows; the exact GP needs its ``training`` rows and targets."""
    guide, data = program.guide, None
    if guide is None:
        assert training is not None
        guide, data = no_latents, (jnp.asarray(training[0]), jnp.asarray(training[1]))
    fit = Posterior(program.model, guide, params, data=data)
    key = jax.random.key(program.settings.seed + 2)
    # in the precision asked for
    rows, targets = jnp.asarray(x), None if y is None else jnp.asarray(y)
    how: dict[str, Any] = {"num_samples": PREDICTION_DRAWS, "batch_size": batch_size}
    return predict(key, fit, rows, targets, levels=tuple(levels), **how)
