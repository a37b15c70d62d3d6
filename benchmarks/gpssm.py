"""State space models: the own transition on a kink, system identification, Hodgkin-Huxley, cost per step.

    python benchmarks/gpssm.py recurrent --data DIR  # the others: sysid (DIR too), neuron, speed
    python benchmarks/gpssm.py page                  # docs/gpssm.md from the CSVs

DIR holds ``sysid/<set>.npz``. Rows are appended to CSVs as they come, and what these hold is not done again; figures go
to docs/.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import optax
import rows
from gpssm_page import REPORTED, page
from hodgkin_huxley import NOISE, TRAINED, records
from kinks import smooth_kink

numpyro.enable_x64()

from ppl_dgp import (  # noqa: E402
    Amortised,
    ApproximatePowerEP,
    Collapsed,
    Conditional,
    DoublyStochastic,
    Guide,
    Markov,
    MeanField,
    MomentMatched,
    PowerEP,
    PRSSMSurrogate,
    fit_lbfgs,
    fit_series,
    gpssm,
)
from ppl_dgp.guides import DependsOn  # noqa: E402
from ppl_dgp.models.gp_narx import gp_narx  # noqa: E402
from ppl_dgp.prediction.forecast import forecast, transition_moments  # noqa: E402
from ppl_dgp.prediction.narx import lagged, simulate_narx  # noqa: E402
from ppl_dgp.state_space.linear_gaussian_chain import LinearGaussianChain  # noqa: E402

HERE, DOCS = Path("benchmarks"), Path("docs")
Array = np.ndarray
CLOSED = PowerEP(0.0, propagation="moments")
RULES = {
    "mean field": MeanField(),
    "markov": Markov(),
    "coupled": Conditional(),
    "doubly stochastic": DoublyStochastic(),
    "moment matched": MomentMatched(),
}


def decaying(rate: float, steps: int) -> optax.GradientTransformation:
    """Adam whose rate falls to a fiftieth."""
    return optax.adam(optax.cosine_decay_schedule(rate, steps, 0.02))


# --- PR-SSM on the smooth kink


RECURRENT = ["guide", "trained_on", "rmse", "log_density", "process", "observation", "seconds"]


def recurrent(options: argparse.Namespace) -> None:
    """The model's own transition on 300 steps of the smooth kink: open loop, in windows, recognised, begun warm."""
    out = HERE / "gpssm-recurrent.csv"
    found = rows.done(out, RECURRENT[:2])
    data = np.load(options.data / "sysid" / "kink.npz")
    x, y = data["x"][1, 0][:301], data["y"][1, 0][1:301, None]
    recognition, steps = Amortised((32,), MeanField(), around=5), options.steps
    for name, rule in (("PR-SSM surrogate", PRSSMSurrogate()), ("doubly stochastic", DoublyStochastic())):
        for label, window, latent, warm in (
            ("open loop", None, None, 0),
            ("windows", 30, None, 0),
            ("windows, recognised", 30, recognition, 0),
            ("windows, recognised, warm", 30, recognition, steps // 2),
        ):
            if (name, label) in found:
                continue
            started, key = time.perf_counter(), jax.random.key(0)
            model = gpssm(1, 1, 20, emission="identity", window=window)
            guide = Guide(model, hidden=rule, latent=latent)
            batch = None if window is None else 150
            fit = fit_series(key, model, guide, PowerEP(0.0), None, y, steps=steps, warm_steps=warm,
                             batch_size=batch, optimizer=decaying(0.02, steps))  # fmt: skip
            grid = np.linspace(*np.quantile(x, [0.01, 0.99]), 200)[:, None]
            mean, variance = transition_moments(fit, None, y, grid)
            error, spread = smooth_kink(grid) - np.asarray(mean), np.asarray(variance)
            density = (-0.5 * np.log(2 * np.pi * spread) - 0.5 * error**2 / spread).mean()
            noises = [float(np.mean(fit.params[each])) for each in ("transition/noise", "likelihood/noise")]
            row = [
                name,
                label,
                float(np.sqrt(np.mean(error**2))),
                density,
                *noises,
                time.perf_counter() - started,
            ]
            rows.append(out, RECURRENT, row)
            print(*row, flush=True)


# --- system identification

SYSID = ["set", "method", "seed", "rmse", "log_density", "deviation", "noise", "seconds"]
METHODS = {
    "doubly stochastic": DoublyStochastic(),
    "PR-SSM surrogate": PRSSMSurrogate(),
    "markov": Markov(),
    "coupled": Conditional(),
}


def standardised(path: Path) -> tuple[Array, Array, Array, Array]:
    """Controls and outputs by the first half; rows of both halves."""
    data = np.load(path)
    train, test = data["train"], data["test"]
    scaled = [(each - each[train].mean(0)) / each[train].std(0) for each in (data["u"], data["y"])]
    return scaled[0], scaled[1], train, test


def sysid(options: argparse.Namespace) -> None:
    """Free simulation of the second half, under one configuration for all sets."""
    out = HERE / "gpssm-sysid.csv"
    found = rows.done(out, SYSID[:3])
    for seed in range(options.seeds):
        for method in options.methods.split(","):
            for name in options.sets.split(","):
                if (name, method, f"{seed}") in found:
                    continue
                u, y, train, test = standardised(options.data / "sysid" / f"{name}.npz")
                started = time.perf_counter()
                row = simulated(options, jax.random.key(seed), name, method, u, y, train, test, seed == 0)
                rows.append(out, SYSID, [name, method, seed, *row, time.perf_counter() - started])
                print(name, method, seed, *(f"{value:.4g}" for value in row), flush=True)


def simulated(
    options: argparse.Namespace,
    key: Array,
    name: str,
    method: str,
    u: Array,
    y: Array,
    train: Array,
    test: Array,
    shown: bool,
) -> list[float]:
    """RMSE, mean log density and deviation of the simulated second half, and the observation noise learnt."""
    if method == "gp-narx":
        return by_narx(key, u, y, train, test)
    rule = METHODS[method]
    window = None if method == "markov" else options.window
    model = gpssm(1, options.latent, 20, mean="linear", start="linear", emission="identity", window=window,
                  process_noise=1e-3)  # fmt: skip
    guide = Guide(model, hidden=rule)
    batch = None if window is None else options.window * options.windows
    settings: dict[str, Any] = {"steps": options.steps, "optimizer": decaying(options.rate, options.steps)}
    objective = CLOSED if method == "markov" else PowerEP(0.0)
    warm = options.warm if rule.depends_on in (DependsOn.U, DependsOn.F) else 0
    fit = fit_series(
        key, model, guide, objective, u[train], y[train], batch_size=batch, warm_steps=warm, **settings
    )
    found = forecast(
        key, fit, u[train], y[train], u[test], y_future=y[test], function="independent", num_samples=100
    )
    error = float(np.sqrt(np.mean((found.mean - y[test]) ** 2)))
    if shown and options.figures:
        from ppl_dgp.diagnostics import plot_series

        figure = plot_series(y[train], found, y[test], shown=100)
        figure.axes[0].set_title(f"{name}: {method}", loc="left")
        figure.savefig(DOCS / f"gpssm-{name}.png", dpi=100)
    noise = float(np.mean(fit.params["likelihood/noise"]))
    return [error, float(found.log_density.mean()), float(np.sqrt(found.variance.mean())), noise]


# --- Hodgkin-Huxley


NEURON = ["objective", "guide", "alpha", "steps_ahead", "rmse", "log_density", "inside_2sd", "seconds"]


def hodgkin_huxley(options: argparse.Namespace) -> None:
    """Steps and slopes of current to train on; another step, and another slope, to forecast 100 steps under."""
    out = HERE / "gpssm-neuron.csv"
    found = rows.done(out, NEURON[:2])
    data, train = records(), slice(0, TRAINED)
    y, u = data.y["step"][train], data.u
    noisy = y + NOISE * np.random.default_rng(0).normal(size=y.shape)
    for label, rule, objective in (
        ("approximate", MeanField(), ApproximatePowerEP(0.2, propagation="moments")),
        ("elbo", Markov(), CLOSED),
    ):
        guide_name = type(rule).__name__
        if (label, guide_name) in found:
            continue
        model = gpssm(4, 2, 30, emission="gp", noise="per-column", process_noise=0.01)
        guide, started = Guide(model, hidden=rule), time.perf_counter()
        steps = options.steps
        fit = fit_series(jax.random.key(0), model, guide, objective, u["step"][train], noisy, steps=steps,
                         optimizer=decaying(0.02, steps))  # fmt: skip
        from ppl_dgp.diagnostics import plot_series

        for name, path in data.y.items():
            future = path[TRAINED:]
            about = fit, u["step"][train], noisy, u[name][TRAINED:]
            ahead = forecast(
                jax.random.key(1), *about, y_future=future, function="independent", num_samples=100
            )
            error = np.sqrt(np.mean((ahead.mean - future) ** 2))
            inside = np.mean(abs(future - ahead.mean) < 2 * np.sqrt(ahead.variance))
            row = [label, guide_name, 0.2 if label == "approximate" else 0.0, f"{name} 100", error]
            row += [ahead.log_density.mean(), inside, time.perf_counter() - started]
            rows.append(out, NEURON, row)
            print(*row, flush=True)
            figure, axes = plt.subplots(4, 1, figsize=(8, 7), sharex=True, constrained_layout=True)
            for column, axis in enumerate(axes):
                plot_series(noisy, ahead, future, column=column, shown=100, label="Vmhn"[column], axes=axis)
            figure.savefig(DOCS / f"gpssm-neuron-{label}-{name}.png", dpi=100)
            plt.close(figure)


# --- cost


SPEED = ["work", "steps", "milliseconds", "ratio"]


def speed(options: argparse.Namespace) -> None:
    """A gradient step of Markov() at T = 1000 and 4000, in turn; chains in sequence and in parallel."""
    from numpyro.infer import SVI

    out, random = HERE / "gpssm-speed.csv", np.random.default_rng(0)
    work: dict[str, dict[int, Callable[[], Any]]] = {}
    for label, objective in (("markov, drawn", PowerEP(0.0)), ("markov, closed form", CLOSED)):
        work[label] = {}
        for length in (1000, 4000):
            y = np.cumsum(random.normal(size=(length, 4)), 0) * 0.1
            model = gpssm(4, 4, 50)
            svi = SVI(model, Guide(model, hidden=Markov()), numpyro.optim.Adam(1e-3), objective)
            x, y = jnp.zeros((length, 0)), jnp.asarray(y)
            state = svi.init(jax.random.key(0), x, y)
            step = jax.jit(lambda state, svi=svi, x=x, y=y: svi.update(state, x, y)[0])
            work[label][length] = lambda step=step, state=state: jax.block_until_ready(step(state))
    for parallel in (False, True):
        label = f"moments of a chain, {'parallel' if parallel else 'in sequence'}"
        work[label] = {}
        for length in (1000, 4000):
            slopes = 0.9 * jnp.broadcast_to(jnp.eye(4), (length, 4, 4))
            scales = jnp.broadcast_to(jnp.eye(4), (length, 4, 4))
            chain = LinearGaussianChain(jnp.zeros(4), jnp.eye(4), slopes, jnp.zeros((length, 4)), scales)
            run = jax.jit(jax.value_and_grad(lambda c, parallel=parallel: c.marginals(parallel=parallel).means.sum()
                                             + c.marginals(parallel=parallel).covariances.sum()))  # fmt: skip
            work[label][length] = lambda run=run, chain=chain: jax.block_until_ready(run(chain))
    for label, sizes in work.items():
        for call in sizes.values():
            call()
        taken: dict[int, list[float]] = {length: [] for length in sizes}
        for _ in range(options.repeats):
            for length, call in sizes.items():
                started = time.perf_counter()
                call()
                taken[length].append(1e3 * (time.perf_counter() - started))
        median = {length: float(np.median(each)) for length, each in taken.items()}
        ratio = float(np.median(np.array(taken[4000]) / np.array(taken[1000])))
        for length in sizes:
            rows.append(out, SPEED, [label, length, median[length], ratio if length == 4000 else ""])
        print(label, median, f"ratio {ratio:.2f}", flush=True)


def by_narx(key: Array, u: Array, y: Array, train: Array, test: Array) -> list[float]:
    """The baseline: a sparse GP of ten earlier outputs and controls, its predictions fed back."""
    lags = 10
    table = lagged(y[train], u[train], lags=lags)
    model = gp_narx(1, 50, lags=lags)
    guide = Guide(model)
    fit = fit_lbfgs(key, model, table.x, table.y, guide=guide, objective=Collapsed(), steps=300)
    history, controls = y[train][-lags:], np.concatenate([u[train][1 - lags :], u[test]])
    found = simulate_narx(key, fit, history, controls, y_future=y[test], num_samples=100)
    error = float(np.sqrt(np.mean((found.mean - y[test]) ** 2)))
    deviation, noise = np.sqrt(found.variance.mean()), np.mean(fit.params["likelihood/noise"])
    return [error, float(np.mean(found.log_density)), float(deviation), float(noise)]


def main() -> None:
    """Run one of the experiments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    experiments = {
        "recurrent": (recurrent, 800),
        "sysid": (sysid, 800),
        "neuron": (hodgkin_huxley, 800),
        "speed": (speed, 0),
    }
    for name, (experiment, steps) in experiments.items():
        each = commands.add_parser(name, help=experiment.__doc__)
        each.add_argument("--data", type=Path)
        each.add_argument("--steps", type=int, default=steps)
        each.add_argument("--figures", action="store_true", help="draw the fits that the page shows")
        each.set_defaults(run=experiment)
        if name == "sysid":
            each.add_argument("--seeds", type=int, default=5)
            each.add_argument("--sets", default=",".join(REPORTED["set"]))
            each.add_argument("--methods", default="doubly stochastic")
            each.add_argument("--latent", type=int, default=4)
            each.add_argument("--window", type=int, default=50)
            each.add_argument("--windows", type=int, default=5)
            each.add_argument("--rate", type=float, default=0.01)
            each.add_argument("--warm", type=int, default=500)
        elif name == "speed":
            each.add_argument("--repeats", type=int, default=15)
    commands.add_parser("page", help=page.__doc__).set_defaults(run=page)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
