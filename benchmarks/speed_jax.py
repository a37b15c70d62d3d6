"""Contestants of the bench that are written in JAX: this package ("ours") and reference.py ("reference").

Started by speed.py, one process each, which it tells on standard input what to do:

    python -m benchmarks.speed_jax ours dgp2 float64
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.turns import Turns
from benchmarks.works import LATENT, LENGTH, PARTICLES, STATES, TRAINED, batch, data, inducing, window_starts

LIBRARY, WORK, DTYPE = sys.argv[1:4]
turns = Turns()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpyro  # noqa: E402
from threadpoolctl import threadpool_limits  # noqa: E402

jax.config.update("jax_enable_x64", DTYPE == "float64")
# what an earlier process compiled is not to shorten the first step
jax.config.update("jax_enable_compilation_cache", False)
import scipy.linalg  # noqa: E402, F401

CHUNK, BATCH = {"svgp": 200, "large": 2}.get(WORK, 50), batch(WORK)
KEY = jax.random.PRNGKey(0)


def count_compilations() -> None:
    """Every program that XLA compiles from here on, but those of single operations before the first turn."""

    def heard(event: str, seconds: float, **about: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            turns.compiled()

    jax.monitoring.register_event_duration_secs_listener(heard)


def main() -> None:
    count_compilations()
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        turns.held = lambda: (device.memory_stats() or {}).get("peak_bytes_in_use", 0) / 2**20
    given = data(WORK, DTYPE)
    if LIBRARY == "ours" and WORK in TRAINED:
        train(given)
        return
    call = (ours if LIBRARY == "ours" else reference)(given)
    # as the library holds BLAS itself: to one thread but for large dense matrices
    with threadpool_limits(None if WORK == "exact" else 1, user_api="blas"):
        turns.serve(call)


def train(given: Any) -> None:
    """fit_svi itself: a turn is a chunk of its steps."""
    from ppl_dgp.fit import fit_svi
    from ppl_dgp.guides import DoublyStochastic, Guide
    from ppl_dgp.models import deep_gp
    from ppl_dgp.objectives import PowerEP

    model = deep_gp(TRAINED[WORK], inducing(WORK))
    how: dict[str, Any] = {"steps": 1, "batch_size": BATCH, "chunk": CHUNK}
    about = KEY, model, Guide(model, hidden=DoublyStochastic()), PowerEP(0.0), *given
    started = time.perf_counter()
    fit_svi(*about, **how)
    turns.ready(time.perf_counter() - started)
    how |= {"steps": 10**7, "on_chunk": lambda step, losses: turns.done(CHUNK)}
    try:
        fit_svi(*about, **how)
    except EOFError:
        pass


def ours(given: Any) -> Callable[[], None]:
    """One value and gradient, or one step, of this package."""
    from numpyro.infer import SVI, Trace_ELBO

    from ppl_dgp.fit.full_batch import no_latents
    from ppl_dgp.guides import DoublyStochastic, Guide, Markov, MeanField, Optimal
    from ppl_dgp.models import exact_gp_regression, gplvm, gpssm, sparse_gp_regression
    from ppl_dgp.objectives import Collapsed, PowerEP

    objective: Any = Collapsed()
    rows: dict[str, Any] = {}
    if WORK == "collapsed":
        model = sparse_gp_regression(inducing(WORK))
        guide: Any = Guide(model, inducing=Optimal())
    elif WORK == "bgplvm":
        model = gplvm(12, LATENT, inducing(WORK))
        guide = Guide(model, latent=MeanField(), inducing=Optimal())
    elif WORK == "exact":
        model, guide, objective = exact_gp_regression(), no_latents, Trace_ELBO()
    elif WORK == "windows":
        model, objective = gpssm(4, STATES, inducing(WORK), window=LENGTH), PowerEP(0.0, PARTICLES)
        guide = Guide(model, hidden=DoublyStochastic())
        # the first window lies across the first step alone
        rows = {"index": jnp.asarray(window_starts() + LENGTH - 1), "size": len(given.y) + LENGTH - 1}
    else:
        model, objective = gpssm(4, STATES, inducing(WORK)), PowerEP(0.0)
        guide = Guide(model, hidden=Markov())
    x, y = (jnp.asarray(each) for each in given)
    svi = SVI(model, guide, numpyro.optim.Adam(0.01), objective)
    params = svi.optim.get_params(svi.init(KEY, x, y).optim_state)

    def loss(params: Any, key: Any, x: Any, y: Any) -> Any:
        return objective.loss(key, svi.constrain_fn(params), model, guide, x, y, **rows)

    return called(loss, params, x, y)


def reference(given: Any) -> Callable[[], None]:
    """The same by hand."""
    from benchmarks import reference as by_hand

    random, (x, y) = np.random.default_rng(0), (jnp.asarray(each) for each in given)
    raw = by_hand.unsoftplus
    if WORK in TRAINED:
        layers, loss = by_hand.deep_gp(x, TRAINED[WORK], inducing(WORK), DTYPE)
        state, run = by_hand.training(loss, layers, x, y, BATCH, CHUNK)
        held = [state]

        def chunk() -> None:
            epochs = [random.permutation(len(x)) for _ in range(-(-CHUNK * BATCH // len(x)))]
            indices = np.concatenate(epochs)[: CHUNK * BATCH].reshape(CHUNK, BATCH).astype(np.int32)
            held[0], losses = run(held[0], indices)
            np.asarray(losses)

        turns.per_call, turns.moved = CHUNK, moved(loss, state[0], x[:BATCH], y[:BATCH])
        return chunk
    params: dict[str, Any] = {"variance": raw(1.0), "noise": raw(0.1)}
    size = inducing(WORK)
    if WORK in ("collapsed", "exact"):
        params |= {"lengthscale": np.full(8, raw(1.0))}
        if WORK == "collapsed":
            params["z"] = given.x[random.choice(len(x), size, replace=False)]
        which = by_hand.collapsed if WORK == "collapsed" else by_hand.exact
        loss = lambda params, key, x, y: which(params, x, y)
    elif WORK == "bgplvm":
        params |= {"lengthscale": np.full(LATENT, raw(1.0)), "x": random.normal(size=(len(y), LATENT))}
        params |= {"s": np.full((len(y), LATENT), raw(0.1)), "z": random.normal(size=(size, LATENT))}
        loss = lambda params, key, x, y: by_hand.bayesian_gplvm(params, y)
    else:
        params |= {"lengthscale": np.full(STATES, raw(1.0)), "process": np.full(STATES, raw(0.1))}
        params |= {"mean": np.zeros((STATES, size)), "root": 0.1 * np.tile(np.eye(size), (STATES, 1, 1))}
        params |= {"z": random.normal(size=(size, STATES)), "weights": np.eye(STATES), "bias": np.zeros(4)}
        if WORK == "windows":
            params |= {"start": given.y, "begin": np.full(given.y.shape, raw(0.1))}
            starts = jnp.asarray(window_starts())
            loss = lambda params, key, x, y: by_hand.windows(params, key, y, starts, LENGTH, PARTICLES)
            return called(loss, jax.tree.map(lambda leaf: jnp.asarray(leaf, DTYPE), params), x, y)
        params |= {"slope": np.tile(0.5 * np.eye(STATES), (len(y), 1, 1)), "offset": 0.5 * given.y}
        params |= {
            "scale": np.full(given.y.shape, raw(0.1)),
            "start": np.zeros(STATES),
            "begin": np.ones(STATES),
        }
        loss = lambda params, key, x, y: by_hand.state_space(params, key, y)
    return called(loss, jax.tree.map(lambda leaf: jnp.asarray(leaf, DTYPE), params), x, y)


def moved(loss: Any, params: Any, x: Any, y: Any) -> float:
    """Bytes that the operations of a value and its gradient read and write, as XLA counts them."""
    about = jax.jit(jax.value_and_grad(loss)).lower(params, KEY, x, y).compile().cost_analysis()
    return float((about or {}).get("bytes accessed", 0.0))


def called(loss: Any, params: Any, x: Any, y: Any) -> Callable[[], None]:
    """A value and its gradient, compiled."""
    both = jax.jit(jax.value_and_grad(loss))

    def call() -> None:
        value, _ = jax.block_until_ready(both(params, KEY, x, y))
        assert np.isfinite(value)

    return call


if __name__ == "__main__":
    main()
