"""The contestant GPJax of the bench, in the environment that `make bench-peers` builds for it.

.venv-gpjax/bin/python -m benchmarks.speed_gpjax gpjax svgp float64
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.turns import Turns
from benchmarks.works import TRAINED, Data, batch, centres, data

WORK, DTYPE = sys.argv[2:4]
CHUNK = 200
turns = Turns()

import equinox as eqx  # noqa: E402
import gpjax as gpx  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from gpjax.fit import get_batch  # noqa: E402
from gpjax.variational_families import CollapsedVariationalGaussian, WhitenedVariationalGaussian  # noqa: E402

jax.config.update("jax_enable_x64", DTYPE == "float64")


def called(given: Data) -> Callable[[], None]:
    """A value and its gradient, or a chunk of training steps by its own batches, compiled."""
    table = gpx.Dataset(X=jnp.asarray(given.x), y=jnp.asarray(given.y))
    kernel = gpx.kernels.RBF(lengthscale=jnp.ones(8, DTYPE), variance=jnp.ones((), DTYPE))
    prior = gpx.gps.Prior(mean_function=gpx.mean_functions.Zero(), kernel=kernel)
    joint = prior * gpx.likelihoods.Gaussian(obs_stddev=jnp.asarray(0.1**0.5, DTYPE))
    if WORK == "exact":
        model, value = joint, gpx.objectives.conjugate_mll
    elif WORK == "collapsed":
        model = CollapsedVariationalGaussian(joint, jnp.asarray(centres(given, WORK)))
        value = gpx.objectives.collapsed_elbo
    else:
        model = WhitenedVariationalGaussian(joint, jnp.asarray(centres(given, WORK)))
        value = gpx.objectives.elbo
    loss = eqx.filter_value_and_grad(lambda model, rows: -value(model, rows))
    if WORK not in TRAINED:
        both = eqx.filter_jit(loss)

        def once() -> None:
            assert np.isfinite(jax.block_until_ready(both(model, table))[0])

        return once
    arrays, rest = eqx.partition(model, eqx.is_array)
    adam = optax.adam(0.01)

    @jax.jit
    def chunk(carry: Any, keys: Any) -> Any:
        def step(carry: Any, key: Any) -> Any:
            arrays, state = carry
            model = eqx.combine(arrays, rest)
            found, slope = loss(model, get_batch(table, batch(WORK), key))
            updates, state = adam.update(slope, state, arrays)
            return (eqx.filter(eqx.apply_updates(model, updates), eqx.is_array), state), found

        return jax.lax.scan(step, carry, keys)

    carry, turns.per_call, number = (arrays, adam.init(arrays)), CHUNK, 0

    def call() -> None:
        nonlocal carry, number
        number += 1
        carry, found = jax.block_until_ready(chunk(carry, jax.random.split(jax.random.key(number), CHUNK)))
        assert np.isfinite(found).all()

    return call


if __name__ == "__main__":
    turns.serve(called(data(WORK, DTYPE)))
