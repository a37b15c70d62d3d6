"""Why the model's own transition (PR-SSM) is not trained on the smooth kink, whatever KL[q(u)] weighs: a figure.

    python -m benchmarks.kink_own_transition --data DIR        # docs/gpssm-own-transition.png, and a table

DIR holds ``sysid/kink.npz`` (Ialongo et al. 2019, R = 0.08). Under this rule the expected log likelihood of a window is
that of states simulated from its first one, of the observations to come not a word. Here no GP is fitted: f is the
true function, or one between it and the constant m, f_s = m + s (f − m), each with the noise R that is best for it.
What the data say of these is all that a weight of KL[q(u)] leaves to be said. Beside it fits by ``DoublyStochastic()``
on windows of a length, begun where ``Markov()`` is after 1 500 steps, 4 000 steps in all, T = 599.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
import optax
from matplotlib import pyplot as plt

from benchmarks.kinks import scores_of_function, smooth_kink
from ppl_dgp.fit import Fit, fit_series
from ppl_dgp.guides import DoublyStochastic, Guide
from ppl_dgp.models import gpssm
from ppl_dgp.objectives import PowerEP
from ppl_dgp.prediction.forecast import transition_moments

FIGURE = Path("docs/gpssm-own-transition.png")
LEVEL, LENGTHS, DRAWS = 1, (1, 2, 3, 5, 10, 30), 100
SHARES = np.linspace(0.0, 1.0, 21)
FITTED, STEPS, ROWS = (3, 5, 10, 30), 4000, 600


def simulated(
    first: np.ndarray, share: float, process: float, steps: int, random: np.random.Generator
) -> np.ndarray:
    """Draws of the states after each step, (steps, DRAWS, windows), from given ones."""
    x, path, middle = np.repeat(first[None], DRAWS, 0), [], smooth_kink(first).mean()
    for _ in range(steps):
        x = middle + share * (smooth_kink(x) - middle) + process**0.5 * random.normal(size=x.shape)
        path.append(x)
    return np.array(path)


def squared_errors(states: np.ndarray, y: np.ndarray, share: float, process: float) -> np.ndarray:
    """Mean squared errors of the observations, by steps ahead, of simulations from the true states: E_q (y − x)²."""
    steps, random = max(LENGTHS), np.random.default_rng(0)
    starts = np.arange(len(y) - steps)
    path = simulated(states[starts], share, process, steps, random)
    seen = y[starts[None] + 1 + np.arange(steps)[:, None] - 1]
    return np.square(path - seen[:, None]).mean((1, 2))


def objective(errors: np.ndarray, length: int) -> float:
    """Expected log likelihood of a step of windows of a length, R at its best."""
    return float(-0.5 * np.log(2.0 * np.pi * np.e * errors[:length].mean()))


def fitted(y: np.ndarray, length: int) -> Fit:
    """The model's own transition, trained on windows of a length."""
    model = gpssm(1, 1, 20, emission="identity", window=length, process_noise=1e-2)
    adam = optax.adam(optax.cosine_decay_schedule(0.02, STEPS, 0.02))
    training = {"steps": STEPS, "warm_steps": 1500, "batch_size": ROWS // length * length, "optimizer": adam}
    guide = Guide(model, hidden=DoublyStochastic())
    return fit_series(jax.random.key(0), model, guide, PowerEP(0.0), None, y[:, None], **training)


def shade_of(length: int) -> Any:
    """The colour of a length, in every panel."""
    return plt.get_cmap("viridis")(LENGTHS.index(length) / len(LENGTHS))


def main() -> None:
    """Compute, print and draw."""
    numpyro.enable_x64()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    with np.load(parser.parse_args().data / "sysid" / "kink.npz") as file:
        states, y = file["x"][LEVEL, 0], file["y"][LEVEL, 0][1:]
    values: dict[float, np.ndarray] = {}
    # the true process noise, and as little as a fit might take
    for process in (0.0025, 1e-6):
        errors = [squared_errors(states, y, share, process) for share in SHARES]
        values[process] = np.array([[objective(each, length) for length in LENGTHS] for each in errors])
        if process == 0.0025:
            by_steps = errors[-1], errors[0]
    print(
        "| steps of a window | Q | best share of f | nats a step, of the true f | of the best | of a constant |"
    )
    print("|---" * 6 + "|")
    for process, table in values.items():
        for place, length in enumerate(LENGTHS):
            column = table[:, place]
            cells = [
                f"{SHARES[column.argmax()]:.2f}",
                *(f"{each:.3f}" for each in (column[-1], column.max(), column[0])),
            ]
            print(f"| {length} | {process:g} | " + " | ".join(cells) + " |")
    figure, axes = plt.subplots(1, 3, figsize=(13.5, 3.6), layout="constrained")
    ahead = np.arange(1, max(LENGTHS) + 1)
    axes[0].plot(ahead, by_steps[0], color="C0", label="simulated by the true f")
    axes[0].plot(ahead, by_steps[1], color="C1", label="a constant")
    axes[0].axhline(0.08, color="0.5", linestyle=":", label="R, of the observations")
    axes[0].set(xlabel="steps ahead of the true state", ylabel="expected squared error", ylim=(0.0, None))
    axes[0].legend(frameon=False, fontsize="small")
    for place, length in enumerate(LENGTHS):
        column = values[0.0025][:, place]
        shade = shade_of(length)
        axes[1].plot(SHARES, column, color=shade, label=f"{length}")
        axes[1].plot(SHARES[column.argmax()], column.max(), "o", color=shade, markersize=5)
    axes[1].set(
        xlabel="share of the true f, the rest a constant", ylabel="expected log likelihood, nats a step"
    )
    axes[1].legend(frameon=False, fontsize="small", title="steps of a window")
    grid = np.linspace(*np.quantile(states, [0.01, 0.99]), 200)[:, None]
    axes[2].plot(grid[:, 0], smooth_kink(grid[:, 0]), color="0.5", linestyle=":", label="true f")
    print("\n| windows of | RMSE of f | log density of f | Q | R |\n|---|---|---|---|---|")
    for length in FITTED:
        fit = fitted(y, length)
        process, noise = (np.mean(fit.params[name]) for name in ("transition/noise", "likelihood/noise"))
        error, density = scores_of_function(smooth_kink, fit, y[:, None], states)
        print(f"| {length} | {error:.3f} | {density:.1f} | {process:.4f} | {noise:.3f} |", flush=True)
        mean, _ = transition_moments(fit, None, y[:, None], grid)
        shade = shade_of(length)
        axes[2].plot(grid[:, 0], np.asarray(mean)[:, 0], color=shade, label=f"{length}")
    axes[2].set(xlabel="$x_{t-1}$", ylabel="mean of f, fitted")
    axes[2].legend(frameon=False, fontsize="small", title="steps of a window")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(FIGURE, dpi=110)


if __name__ == "__main__":
    main()
