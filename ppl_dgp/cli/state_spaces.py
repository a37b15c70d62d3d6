"""The model, guide and objective of a gpssm, made of settings."""

from __future__ import annotations

from numpyro.infer import ELBO

from ppl_dgp.cli.settings import Settings
from ppl_dgp.fit.series import CLOSED
from ppl_dgp.guides import HIDDEN_RULES, Amortised, Guide, MeanField
from ppl_dgp.guides.rule import knows_states
from ppl_dgp.models import gpssm
from ppl_dgp.models.kernel_values import named_kernel
from ppl_dgp.models.zoo_model import ZooModel
from ppl_dgp.objectives import PowerEP

#: rows before and after the first of a window, from which the state there is recognised
RECOGNISED_FROM = 8


def state_space(settings: Settings, num_outputs: int, num_sequences: int) -> tuple[ZooModel, Guide, ELBO]:
    """What resolved ``settings`` name, for P = ``num_outputs`` target columns."""
    assert settings.inducing is not None
    timed = settings.step_column is not None
    model = gpssm(
        num_outputs,
        settings.latent,
        settings.inducing,
        mean="identity" if timed else "linear",
        start="outputs" if timed else "linear",
        timed=timed,
        kernel=named_kernel(settings.kernel),
        noise="per-column",
        num_sequences=num_sequences,
        missing=True,
        window=settings.window,
        emission=settings.emission,
        separate=settings.separate,
    )
    closed = (
        closed_expectations(settings)
        and settings.alpha == 0.0
        and settings.hidden in ("mean-field", "markov")
    )
    objective = CLOSED if closed else PowerEP(settings.alpha, settings.particles)
    rule = HIDDEN_RULES[settings.hidden]
    # of rules that do not know the state before a window it is recognised from the rows around
    recognised = settings.window is not None and not knows_states(rule)
    first = Amortised((32,), MeanField(), missing="mask", around=RECOGNISED_FROM)
    guide = Guide(model, hidden=rule, latent=first) if recognised else Guide(model, hidden=rule)
    return model, guide, objective


def closed_expectations(settings: Settings) -> bool:
    """Whether the kernel's expectations have a closed form."""
    # over a step's time, itself a linear function, a linear kernel has none
    known = {"rbf", "constant"} if settings.step_column is not None else {"rbf", "linear", "constant"}
    return {name.strip() for name in settings.kernel.split("+")} <= known
