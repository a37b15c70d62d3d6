"""What a step on a minibatch costs beside the number of rows, where each has parameters of its own.

    python -m benchmarks.rows_at_hand --rows 10000,100000,1000000

A two-layer deep GP (8 inputs, 2 hidden outputs, M = 50) with ``MeanField`` and ``Markov`` on 500 rows a step; chunks
of 100 steps, the median of ``--turns``, compiled before. *Dense* is the step of an optimiser that sees all rows, which
take turns with the rows at hand.
"""

from __future__ import annotations

import argparse
import time
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import SVI

from ppl_dgp.fit import program
from ppl_dgp.fit.adam import adam
from ppl_dgp.fit.minibatches import minibatches
from ppl_dgp.guides import Guide, HiddenRule, Markov, MeanField
from ppl_dgp.models import deep_gp
from ppl_dgp.objectives import PowerEP

BATCH, CHUNK = 500, 100


def chunks(rows: int, rule: HiddenRule, local: bool) -> Any:
    """What takes a chunk of steps: ``(state, number) -> state``."""
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, 8)).astype(np.float32)
    y = np.sin(x[:, :1]) + 0.1 * random.normal(size=(rows, 1)).astype(np.float32)
    model = deep_gp((2,), 50)
    svi = SVI(model, Guide(model, hidden=rule), program.as_numpyro(adam(0.01)), PowerEP(0.0))
    # from few rows: k-means of a million is not what is measured
    few = svi.init(jax.random.key(0), jnp.asarray(x[:1000]), jnp.asarray(y[:1000]))
    longer = lambda leaf: jnp.resize(leaf, (rows, *leaf.shape[1:])) if leaf.shape[:1] == (1000,) else leaf
    state = jax.tree.map(longer, few)
    names: Any = mock.patch("ppl_dgp.fit.rows_at_hand.per_datum_names", lambda *args: frozenset())
    index = minibatches(np.array([1, 2], np.uint32), 0, CHUNK, BATCH, rows)
    tables = jnp.asarray(x), jnp.asarray(y), jnp.asarray(index), np.int32(0), np.int32(CHUNK)
    run = program.build_chunk(svi, True, CHUNK, 1)
    if local:
        compiled = run.lower(state, *tables).compile()
    else:
        with names:
            compiled = run.lower(state, *tables).compile()
    return state, lambda state: compiled(state, *tables)[0]


def milliseconds(rows: int, rule: HiddenRule, turns: int) -> list[float]:
    """Of a step on the rows at hand, and of a dense one."""
    both = [chunks(rows, rule, local) for local in (True, False)]
    states, found = [program.fresh_copies(state) for state, _ in both], ([], [])
    for turn in range(turns + 1):
        for way, (_, take) in enumerate(both):
            before = time.perf_counter()
            states[way] = jax.block_until_ready(take(states[way]))
            if turn:
                found[way].append(1e3 * (time.perf_counter() - before) / CHUNK)
    return [float(np.median(each)) for each in found]


def main() -> None:
    """A line for each number of rows and rule."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="10000,100000,1000000")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    print("| rows | rule | rows at hand, ms a step | dense, ms a step |\n|---|---|---|---|")
    for rule in (MeanField(), Markov()):
        for rows in map(int, options.rows.split(",")):
            local, dense = milliseconds(rows, rule, options.turns)
            print(f"| {rows} | {type(rule).__name__} | {local:.2f} | {dense:.2f} |", flush=True)


if __name__ == "__main__":
    main()
