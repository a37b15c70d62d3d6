"""What may be wrong with a fit, and what to do about it: every text, and when it is said, in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ppl_dgp.fit.convergence import FEWEST_STEPS, LEAST_TOLERANCE, SURELY, Phase, ends_of_parts, is_wild
from ppl_dgp.gp.contract import Parameters
from ppl_dgp.numerics.linalg import first_jitter
from ppl_dgp.objectives.capabilities import capabilities_of

if TYPE_CHECKING:
    from ppl_dgp.fit.chains import Chains
    from ppl_dgp.fit.result import Fit
else:  # they give advice: their files import this one
    Chains = Fit = Any

#: what each piece of advice says, its blanks filled in
ADVICE = {
    "rejected": (
        "rejected steps: found {rejected} of {steps}, whose loss or gradient was not finite; lower the learning rate, "
        "standardise the data, or use 64 bits"
    ),
    "jitter": (
        "covariance matrices were singular to working precision: {found} of the mean diagonal was added, expected "
        "{usual:.0e} to suffice; {remedy}, or check for columns that hardly vary"
    ),
    "gap": (
        "convergence: found up to {largest:.2g} nats yet to gain, {gap:.2g} by how the losses fell and twice "
        "{error:.1g} by their noise, expected at most {tolerance:.2g}; raise {more}, or go on with {onward}, before "
        "comparing this fit with others"
    ),
    "few": "convergence: found too few steps to tell whether converged; raise {more}, before reading anything into it",
    "risen": (
        "losses: found {end:.3g} ± {error:.1g} at the end, above the {begin:.3g} at which they began; it is no result: "
        "lower the learning rate"
    ),
    "shortfall": (
        "path: found a bound {shortfall:.3g} nats below that of a poorer family which this one contains, expected one "
        "no lower; raise steps or budget, or lower the learning rate: it is no result of this family"
    ),
    "noise": (
        "{name}: found {noise:.1e} beside a function of variance {variance:.1e}; the data are followed as if they had "
        "no noise: check for duplicates, or bound it by a prior"
    ),
    "inducing": (
        "{name}: found {count} inducing inputs within a thousandth of a lengthscale of another, which say nothing new; "
        "use fewer"
    ),
    "khat": (
        "k-hat: found {khat:.2f}, expected at most 0.7: q is too narrow somewhere, or far from the posterior, so that "
        "bounds and LOO made by its weights are not to be trusted; judge by held-out data, or take a richer rule"
    ),
    "energy": (
        "energy: found {energy:.6g} nats in training, above {bound:.6g} ± {error:.2g}, the tightest bound of the log "
        "evidence known of this fit: an energy is no bound; compare fits by elbo, or by held-out data"
    ),
    "density": (
        "test log density: found {density:.3g}, expected at least {mean:.3g}, what the training rows' mean and "
        "variance have: its predictions are worth less than none; {remedy}"
    ),
    "frequencies": (
        "log density of test labels: found {density:.3g}, expected at least {mean:.3g}, what the frequencies of the "
        "training rows' labels have: its probabilities are worth less than none; take another model, kernel or "
        "likelihood"
    ),
    "coverage": (
        "coverage: found {coverage:.0%} of what was held out inside its 95 % band, expected {least:.0%} to "
        "{most:.0%}; do not believe its bands: {remedy}"
    ),
    "divergences": "divergences: found {count} in {draws} draws, expected none; raise target_accept_prob",
    "r_hat": (
        "R-hat of {name}: found {r_hat:.3f}, expected at most {most}: the chains do not agree; raise num_warmup and "
        "num_samples, or give start= a fit near the posterior"
    ),
    "overwhelmed": (
        "slopes of minibatches: found {share:.0%} of the numbers whose slopes scatter more than a step allows for, "
        "expected at most {most:.0%}: draws spread too far; take half of step_size, or a larger batch_size"
    ),
}
#: k-hat beyond which importance weights are not to be trusted (Vehtari et al. 2024), and R-hat beyond which chains are
LARGEST_K_HAT, LARGEST_R_HAT = 0.7, 1.01
#: share of numbers whose slopes may scatter more than a step of SGHMC allows for
LARGEST_SHARE = 0.05
#: shares of what was held out that a 95 % band may hold and be believed, and the least number held out to say so
BELIEVED, LEAST_HELD_OUT = (0.85, 0.99), 20
#: the steps by which it is judged where losses began
FIRST_STEPS = 10
#: standard errors beyond which an energy lies above a bound
BOUND_ERRORS = 4.0
#: noise variance beside the function's, and distance of inducing inputs in lengthscales, below which they are none
LEAST_NOISE, LEAST_DISTANCE = 1e-6, 1e-3
#: inducing inputs looked at, of one function
MOST_INDUCING = 1000


def advice_of(
    fit: Fit,
    khat: float | None = None,
    bound: tuple[float, float] | None = None,
    onward: str = "start=fit.params",
) -> tuple[str, ...]:
    """What may be wrong with a fit, a line each with its remedy.

    :param khat: of its global sites, where it is known.
    :param bound: of the log evidence, in the units of the losses, with its standard error; beside an energy, which is
        no bound itself.
    :param onward: what a fit is continued by, where it is made.
    """
    found = []
    if fit.rejected_steps:
        found.append(ADVICE["rejected"].format(rejected=fit.rejected_steps, steps=fit.losses.size))
    dtype = jnp.result_type(*fit.params.values()) if fit.params else float
    found += [text for text in (jitter_advice(fit.jitter, dtype),) if text is not None]
    found += _risen(fit)
    known = fit.convergence
    if known is not None and known.shortfall:
        found.append(ADVICE["shortfall"].format(shortfall=known.shortfall))
    elif known is not None and np.isfinite(known.gap + known.error) and not known.converged:
        more = "steps" if any(phase.kind == "part" for phase in known.phases) else _budget(known.phases)
        about = {
            "largest": known.largest,
            "gap": known.gap,
            "error": known.error,
            "tolerance": known.tolerance,
        }
        found.append(ADVICE["gap"].format(more=more, onward=onward, **about))
    found += _noise(fit.params) + _inducing(fit.params)
    if khat is not None and not khat <= LARGEST_K_HAT:
        found.append(ADVICE["khat"].format(khat=khat))
    if bound is not None and fit.losses.size and not capabilities_of(fit.objective).is_bound:
        energy, (value, error) = -float(np.nanmean(fit.losses[fit.best][-_tenth(fit.losses) :])), bound
        if energy > value + BOUND_ERRORS * error:
            found.append(ADVICE["energy"].format(energy=energy, bound=value, error=error))
    if fit.chains is not None:
        found += chains_advice(fit.chains)
    return tuple(found)


def few_steps_advice(fit: Fit) -> tuple[str, ...]:
    """Where nothing is known of convergence, for those who see no more of a fit than what is printed."""
    known = fit.convergence
    if known is None or np.isfinite(known.gap + known.error):
        return ()
    return (ADVICE["few"].format(more="steps"),)


def held_out_advice(
    coverage: float, density: float, mean_density: float, count: int, remedy: str, too_wide: bool = True
) -> tuple[str, ...]:
    """On predictions of what was held out, or simulations of it: bands that are too narrow or too wide, or no use.

    :param coverage: the share inside a 95 % band, of ``count`` entries; of fewer than twenty nothing is said.
    :param density: the mean log density, and ``mean_density`` that of the training rows' mean and variance.
    :param remedy: what to do.
    :param too_wide: whether bands that hold more than 99 % are a fault.
    """
    found = []
    if count < LEAST_HELD_OUT:
        return ()
    if not density >= mean_density:
        found.append(ADVICE["density"].format(density=density, mean=mean_density, remedy=remedy))
    least, most = BELIEVED
    if not least <= coverage <= (most if too_wide else 1.0):
        found.append(ADVICE["coverage"].format(coverage=coverage, least=least, most=most, remedy=remedy))
    return tuple(found)


def labels_advice(density: float, frequencies: float, count: int) -> tuple[str, ...]:
    """On probabilities of ``count`` held-out labels, their mean log density beside that of the labels' frequencies."""
    if count < LEAST_HELD_OUT or density >= frequencies:
        return ()
    return (ADVICE["frequencies"].format(density=density, mean=frequencies),)


def jitter_advice(jitter: Mapping[str, float], dtype: Any) -> str | None:
    """On the sites that needed more than the usual first jitter of the precision; None without any."""
    usual = first_jitter(dtype)
    # a hair above: the usual one itself is no news
    grown = {name: value for name, value in jitter.items() if value > 1.01 * usual}
    if not grown:
        return None
    remedy = "use fewer inducing points" + (", or 64 bits" if jnp.finfo(dtype).bits < 64 else "")
    listed = ", ".join(f"{value:.0e} at {name}" for name, value in grown.items())
    return ADVICE["jitter"].format(found=listed, usual=usual, remedy=remedy)


def chains_advice(chains: Chains) -> list[str]:
    """On divergences, on chains that do not agree, and on slopes that scatter too much."""
    found = []
    if chains.divergences:
        draws = chains.stats["diverging"].size
        found.append(ADVICE["divergences"].format(count=chains.divergences, draws=draws))
    if chains.overwhelmed > LARGEST_SHARE:
        found.append(ADVICE["overwhelmed"].format(share=chains.overwhelmed, most=LARGEST_SHARE))
    worst = max(chains.r_hat, key=lambda name: chains.r_hat[name])
    if not chains.r_hat[worst] <= LARGEST_R_HAT:
        found.append(ADVICE["r_hat"].format(name=worst, r_hat=chains.r_hat[worst], most=LARGEST_R_HAT))
    return found


def _risen(fit: Fit) -> list[str]:
    """Losses of one objective that have risen since the first steps, by more than their noise, or vary wildly."""
    steps = fit.losses.shape[1]
    if steps < FEWEST_STEPS or _scheduled(fit.objective):
        return []
    losses = fit.losses[fit.best]
    (begin,), (begin_error,) = ends_of_parts(losses[:FIRST_STEPS], [FIRST_STEPS], whole=True)
    (end,), (error,) = ends_of_parts(losses, [steps])
    if not np.isfinite(begin + begin_error + end + error):
        return []
    risen = end - begin > SURELY * np.hypot(error, begin_error) + LEAST_TOLERANCE
    if not risen and not is_wild(end, error, begin, begin_error, LEAST_TOLERANCE):
        return []
    return [ADVICE["risen"].format(end=end, error=error, begin=begin)]


def _budget(phases: Sequence[Phase]) -> str:
    """The budget that holds one cycle more, twice as long as the last; below it a fit ends where it has ended."""
    if not phases or phases[-1].kind != "cycle":
        return "budget"
    last = phases[-1]
    return f"budget to {last.end - phases[0].begin + 2 * (last.end - last.begin)} steps"


def _scheduled(objective: Any) -> bool:
    """Whether an objective, or the one within, is another one at other steps."""
    schedules = (getattr(objective, name, None) for name in ("schedule", "weight"))
    within = getattr(objective, "objective", None)
    return any(map(callable, schedules)) or within is not None and _scheduled(within)


def _tenth(losses: Float[np.ndarray, "R steps"]) -> int:
    steps: int = losses.shape[1]
    return max(1, steps // 10)


def _noise(params: Parameters) -> list[str]:
    """Observation noise that has shrunk to nothing."""
    variances = [np.max(value) for name, value in params.items() if name.endswith("/variance")]
    noise = params.get("likelihood/noise")
    if noise is None or not variances or not np.size(noise):
        return []
    least, variance = float(np.min(noise)), float(max(variances))
    if least > LEAST_NOISE * variance:
        return []
    return [ADVICE["noise"].format(name="likelihood/noise", noise=least, variance=variance)]


def _inducing(params: Parameters) -> list[str]:
    """Inducing inputs that coincide."""
    found = []
    for name, value in params.items():
        layer, _, suffix = name.rpartition("/")
        inputs = np.asarray(value)
        if suffix != "inducing" or inputs.ndim not in (2, 3) or inputs.shape[-2] > MOST_INDUCING:
            continue
        if inputs.ndim == 2:
            count = _coincident(inputs, params.get(f"{layer}/lengthscale", 1.0))
        else:  # each output's own
            lengthscales = [
                params.get(f"{layer}/output{n}/lengthscale", 1.0) for n in range(1, len(inputs) + 1)
            ]
            count = max(map(_coincident, inputs, lengthscales))
        if count:
            found.append(ADVICE["inducing"].format(name=name, count=count))
    return found


def _coincident(inputs: Float[np.ndarray, "M D"], lengthscale: Any) -> int:
    """How many inputs lie where another does, in lengthscales."""
    lengthscale = np.asarray(lengthscale)
    if lengthscale.ndim > 1 or lengthscale.size not in (1, inputs.shape[1]):
        return 0
    scaled = inputs / lengthscale
    squares = np.square(scaled).sum(1)
    distances = squares[:, None] + squares - 2.0 * scaled @ scaled.T
    return int(np.triu(distances < LEAST_DISTANCE**2, 1).any(0).sum())
