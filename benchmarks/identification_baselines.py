"""What state space models of identification are to be compared with: linear systems, GP-NARX, a small LSTM.

    python -m benchmarks.identification_baselines --data DIR --seeds 0-4    # appends what the CSV lacks
    python -m benchmarks.identification_baselines --table

DIR holds ``sysid/<set>.npz``. All simulate the second half freely, from what they know of the end of the first. Each
has a size, or a number of steps, chosen by simulating the last fifth of the first half: of the linear system (EM from
the states of a subspace method, the transition stable) 1 to 8 states, of GP-NARX (closed-form bound until it
converges, M = 50, draws fed back) 1 to 10 lags, of the LSTM (16 units, the error of its free simulation of the whole
record, Adam with a cosine from 0.01) the steps that it is trained for, on all of the first half then. Its errors are
taken to be normal, with the variance of those of the fifth that was kept back. The validation record of the cascaded
tanks does not go on from the first: there the first twenty rows are seen, and the rest is simulated. RMSE in source
units, log density per step in standardised ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
import pandas as pd

numpyro.enable_x64()

from benchmarks import rows  # noqa: E402
from benchmarks.identification import SEEN, SETS, halves  # noqa: E402
from ppl_dgp import Collapsed, Guide, fit_lbfgs, gp_narx, lagged, simulate_narx  # noqa: E402
from ppl_dgp.state_space.linear_gaussian_em import LinearSeries, linear_dynamics  # noqa: E402
from ppl_dgp.state_space.sequences import Layout  # noqa: E402
from ppl_dgp.state_space.subspace import subspace_states  # noqa: E402

CSV = Path("benchmarks/identification-baselines.csv")
METHODS = ("linear", "narx", "lstm")
FIELDS = ("set", "seed", "method", "chosen", "rmse", "log_density", "coverage95", "seconds")
KEPT_BACK, UNITS, LSTM_STEPS, LOOKS = 0.2, 16, 4000, 20
WIDTHS, LAGS = (1, 2, 3, 4, 6, 8), (1, 2, 3, 5, 10)


class Record(NamedTuple):
    """Controls and outputs, standardised by the first half; of several rows to come the outputs are not looked at."""

    u: np.ndarray
    y: np.ndarray
    #: rows whose outputs are known, and whether a row begins a record
    known: int
    first: np.ndarray


class Simulated(NamedTuple):
    """Means and deviations of the rows to come."""

    mean: np.ndarray
    deviation: np.ndarray


Method = Callable[[int, int, Record], Simulated]


def linear(width: int, seed: int, record: Record) -> Simulated:
    """A linear-Gaussian system of so many states."""
    u, y, known = jnp.asarray(record.u), jnp.asarray(record.y), record.known
    layout = Layout(jnp.asarray(record.first), int(record.first.sum()))
    begun = Layout(layout.first[:known], int(record.first[:known].sum()))
    states = subspace_states(y[:known], u[:known], width, begun)
    system = linear_dynamics(y[:known], u[:known], states, begun, iterations=300, stable=True).system
    given = y.at[known:].set(jnp.nan)
    after = LinearSeries(system, u, layout, partly=True).states_given(given).marginals()
    slots = layout.after[known:]
    mean = after.means[slots] @ system.weights.T + system.offset
    spread = jnp.einsum("pi,tij,pj->tp", system.weights, after.covariances[slots], system.weights)
    return Simulated(np.asarray(mean), np.sqrt(np.asarray(spread + system.observation_noise)))


def narx(lags: int, seed: int, record: Record) -> Simulated:
    """GP-NARX of so many lags, draws fed back."""
    known, outputs = record.known, record.y.shape[1]
    table = lagged(record.y[:known], record.u[:known], record.first[:known], lags=lags)
    model = gp_narx(outputs, min(50, len(table.y)), lags=lags, mean="last")
    fit = fit_lbfgs(
        jax.random.key(seed), model, table.x, table.y, guide=Guide(model), objective=Collapsed(0.0)
    )
    history, controls = record.y[known - lags : known], record.u[known - lags + 1 :]
    found = simulate_narx(jax.random.key(seed), fit, history, controls, num_samples=100)
    return Simulated(found.mean, np.sqrt(found.variance))


def cell(params: Any, state: tuple[jax.Array, jax.Array], u: jax.Array) -> Any:
    """A step of a long short-term memory, and its output."""
    h, c = state
    gates = jnp.concatenate([u, h]) @ params["weights"] + params["bias"]
    enter, forget, leave, candidate = jnp.split(gates, 4)
    c = jax.nn.sigmoid(forget + 1.0) * c + jax.nn.sigmoid(enter) * jnp.tanh(candidate)
    h = jax.nn.sigmoid(leave) * jnp.tanh(c)
    return (h, c), h @ params["out"] + params["offset"]


def driven(params: Any, u: jax.Array, first: jax.Array) -> jax.Array:
    """Outputs under controls, from a state of nothing at the beginning of each record."""
    zeros = jnp.zeros(UNITS), jnp.zeros(UNITS)

    def step(state: Any, turn: Any) -> Any:
        u, begins = turn
        return cell(params, jax.tree.map(lambda value: jnp.where(begins, 0.0, value), state), u)

    return jax.lax.scan(step, zeros, (u, first))[1]


def lstm(steps: int, seed: int, record: Record) -> Simulated:
    """Trained for so many steps; it knows no deviations."""
    mean = trained(seed, record, steps)[-1][record.known :]
    return Simulated(mean, np.ones_like(mean))


def trained(seed: int, record: Record, steps: int, looks: int = 1) -> list[np.ndarray]:
    """Simulations of all rows, looked at so often along the training."""
    u, y, first = map(jnp.asarray, (record.u, record.y, record.first))
    keys, dims = jax.random.split(jax.random.key(seed)), u.shape[1] + UNITS
    params = {
        "weights": jax.random.normal(keys[0], (dims, 4 * UNITS)) / np.sqrt(dims),
        "bias": jnp.zeros(4 * UNITS),
        "out": jax.random.normal(keys[1], (UNITS, y.shape[1])) / np.sqrt(UNITS),
        "offset": jnp.zeros(y.shape[1]),
    }
    adam = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(0.01, LSTM_STEPS, 0.01))
    )

    def loss(params: Any) -> jax.Array:
        return jnp.square(driven(params, u[: record.known], first[: record.known]) - y[: record.known]).mean()

    def step(carried: Any, _: None) -> Any:
        params, state = carried
        updates, state = adam.update(jax.grad(loss)(params), state, params)
        return (optax.apply_updates(params, updates), state), None

    go = jax.jit(partial(jax.lax.scan, step, xs=None, length=steps // looks))
    carried, found = (params, adam.init(params)), []
    for _ in range(looks):
        carried, _ = go(carried)
        found.append(np.asarray(jax.jit(driven)(carried[0], u, first)))
    return found


def chosen(name: str, seed: int, record: Record) -> tuple[int, float]:
    """The size, or number of steps, whose simulation of the last fifth of what is known is best, and its error."""
    known = record.known - int(KEPT_BACK * record.known)
    early = Record(record.u[: record.known], record.y[: record.known], known, record.first[: record.known])
    error = lambda mean: float(np.square(mean - early.y[known:]).mean())
    if name == "lstm":
        simulations = trained(seed, early, LSTM_STEPS, LOOKS)
        errors = {
            (look + 1) * LSTM_STEPS // LOOKS: error(mean[known:]) for look, mean in enumerate(simulations)
        }
    else:
        sizes, method = (WIDTHS, linear) if name == "linear" else (LAGS, narx)
        errors = {size: error(method(size, seed, early).mean) for size in sizes}
    size = min(errors, key=lambda size: np.nan_to_num(errors[size], nan=np.inf))
    return size, errors[size] ** 0.5


def loaded(path: Path) -> tuple[Record, np.ndarray, int]:
    """A set, the deviation of its first half, and how many rows that has."""
    given = halves(path)
    order, half = np.concatenate([given.train, given.test]), len(given.train)
    u, y = given.u[order], given.y[order]
    first = np.arange(len(y)) == 0
    seen = 0
    if path.stem == "cascaded_tanks":
        first[half], seen = True, SEEN
    return Record(u, y, half + seen, first), given.scale, half


def identified(path: Path, seed: int, name: str) -> dict[str, Any]:
    """A method's simulation of the second half, judged."""
    record, scale, half = loaded(path)
    begin = record.known
    since = perf_counter()
    training = Record(record.u[:half], record.y[:half], half, record.first[:half])
    size, error = chosen(name, seed, training)
    found = {"linear": linear, "narx": narx, "lstm": lstm}[name](size, seed, record)
    if name == "lstm":
        found = Simulated(found.mean, error * found.deviation)
    y = record.y[begin:]
    z = (y - found.mean) / found.deviation
    density = (-0.5 * np.square(z) - np.log(found.deviation) - 0.5 * np.log(2.0 * np.pi)).sum(1)
    return {
        "chosen": size,
        "rmse": float(np.sqrt(np.square((y - found.mean) * scale).mean())),
        "log_density": float(density.mean()),
        "coverage95": float((np.abs(z) < 1.96).mean()),
        "seconds": perf_counter() - since,
    }


def main() -> None:
    """Run what is not there yet, or print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument(
        "--seeds", default="0-4", help="of the LSTM; the others have no chance in them but draws"
    )
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--out", type=Path, default=CSV)
    options = parser.parse_args()
    if options.table:
        frame = pd.read_csv(options.out)
        print(frame.groupby(["set", "method"], sort=False).agg(["mean", "sem"]).round(3).to_string())
        return
    there = rows.done(options.out, FIELDS[:3])
    for name in options.sets.split(","):
        for method in options.methods.split(","):
            for seed in rows.numbers(options.seeds) if method == "lstm" else [0]:
                if (name, str(seed), method) in there:
                    continue
                row = identified(options.data / "sysid" / f"{name}.npz", seed, method)
                row |= {"set": name, "seed": seed, "method": method}
                rows.append_shown(options.out, FIELDS, row)


if __name__ == "__main__":
    main()
