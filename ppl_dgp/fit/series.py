"""Training on series: a guide that follows f begins where a chain that does not has ended (docs/design.md, 4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Shaped
from numpyro.infer import ELBO

from ppl_dgp.fit.closed_bound import CHAINS, OF_DESCENT, descended, may_descend
from ppl_dgp.fit.result import Fit, checked_data
from ppl_dgp.fit.stochastic import fit_svi
from ppl_dgp.guides import Amortised, EnsembleSmoother, Guide, Markov, MeanField
from ppl_dgp.guides.following import following_start, follows
from ppl_dgp.objectives import PowerEP

#: what a chain is trained with: the bound in closed form
CLOSED = PowerEP(0.0, propagation="moments")


def fit_series(
    key: Shaped[Array, "..."],
    model: Callable[..., Any],
    guide: Guide,
    objective: ELBO,
    x: ArrayLike | None,
    y: ArrayLike,
    *,
    steps: int | str = "auto",
    warm_steps: int | None = None,
    warm_objective: ELBO = CLOSED,
    **settings: Any,
) -> Fit:
    """As :func:`ppl_dgp.fit.fit_svi`, with a warm start for guides that draw the trajectory through f.

    From their own start ``Conditional()`` and ``DoublyStochastic()`` are a walk through the dark, which ends below what
    ``Markov()`` finds. So half of the steps train ``Markov()``; the rest goes on from its parameters, of a coupled rule
    from :func:`ppl_dgp.guides.following.following_start`, of ``EnsembleSmoother()`` from its q(u). Other guides are
    trained as they are. With "auto" a chain whose bound is in closed form is trained by ``fit_lbfgs(natural=True)``, in
    tens of updates.

    :param steps: of both parts together; of "auto" each goes on until it has converged.
    :param warm_steps: those of the first; half of them if not given, with "auto" 0 for none.
    :param warm_objective: of the first; the bound in closed form, which needs Gaussian noise and a kernel with closed
        expectations; take ``PowerEP(0.0)`` for others.
    :param settings: of :func:`ppl_dgp.fit.fit_svi`, for both parts; a checkpoint is of the second.
    :returns: the fit of the second part, the losses of both behind each other, of different objectives.
    :raises ValueError: as :func:`ppl_dgp.fit.fit_svi`; or for ``warm_steps`` outside 0 … ``steps``.
    """
    begin, rest = _parts(steps, warm_steps)
    train = partial(_trained, key, model)
    if begin == 0 or not follows(guide.hidden) or "start" in settings:
        return train(guide, objective, x, y, steps=steps, **settings)
    latent = guide.latent_rule
    if isinstance(latent, Amortised | EnsembleSmoother):
        latent = MeanField()
    chain = Guide(model, hidden=Markov(), inducing=guide.inducing, latent=latent, others=guide.others)
    once = {
        name: value
        for name, value in settings.items()
        if name not in ("checkpoint", "checkpoint_every", "resume")
    }
    first = train(chain, warm_objective, x, y, steps=begin, **once)
    start = following_start(chain, guide, first.params, *checked_data(x, y, model))
    second = train(guide, objective, x, y, steps=rest, start=start, **settings)
    before = first.losses
    if len(before) != len(
        second.losses
    ):  # as many restarts are left of one part as of the other only by chance
        before = np.repeat(before[[first.best]], len(second.losses), axis=0)
    return replace(
        second,
        losses=np.concatenate([before, second.losses], axis=-1),
        convergence=None if second.convergence is None else second.convergence.after(before.shape[-1]),
        seconds=first.seconds + second.seconds,
        compile_seconds=first.compile_seconds + second.compile_seconds,
    )


def _trained(
    key: Shaped[Array, "..."],
    model: Callable[..., Any],
    guide: Guide,
    objective: ELBO,
    x: ArrayLike | None,
    y: ArrayLike,
    *,
    steps: int | str,
    **settings: Any,
) -> Fit:
    """By ``fit_svi``; where nothing is drawn and nothing else is asked for, by natural gradients and L-BFGS.

    These need tens of updates where Adam needs thousands, with q(u) at its optimum in closed form.
    """
    if objective != CLOSED or guide.hidden not in CHAINS or not may_descend(guide, steps, settings):
        return fit_svi(key, model, guide, objective, x, y, steps=steps, **settings)
    kept = {name: value for name, value in settings.items() if name in OF_DESCENT}
    return descended(key, model, guide, objective, x, y, natural=True, **kept)


def _parts(steps: int | str, warm_steps: int | None) -> tuple[int | str, int | str]:
    """The steps of the warm start and of what follows it."""
    if isinstance(steps, str):
        if warm_steps not in (None, 0):
            raise ValueError(
                f"warm_steps: found {warm_steps} with steps={steps!r}, expected None or 0; leave it out, or give a "
                "number of steps"
            )
        return 0 if warm_steps == 0 else steps, steps
    begin = steps // 2 if warm_steps is None else warm_steps
    if not 0 <= begin <= steps:
        raise ValueError(
            f"warm_steps: found {warm_steps}, expected from 0 to steps, {steps}; change it or leave it out"
        )
    return begin, steps - begin
