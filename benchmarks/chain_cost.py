"""What a gradient step of a chain costs as its series gets longer, and its moments in sequence and in parallel.

    python -m benchmarks.chain_cost    # appends to benchmarks/chain-cost.csv

T = 1 000 and 4 000 in turn, 64 bits; ratios are medians over rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.infer import SVI

numpyro.enable_x64()

from benchmarks import rows  # noqa: E402
from ppl_dgp import Guide, Markov, PowerEP, gpssm  # noqa: E402
from ppl_dgp.fit.series import CLOSED  # noqa: E402
from ppl_dgp.state_space.linear_gaussian_chain import LinearGaussianChain  # noqa: E402

CSV = Path("benchmarks/chain-cost.csv")
FIELDS = "work", "steps", "milliseconds", "ratio"


def measured(rounds: int) -> None:
    """A gradient step of Markov() at T = 1000 and 4000, in turn; chains in sequence and in parallel."""
    random = np.random.default_rng(0)
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
        for _ in range(rounds):
            for length, call in sizes.items():
                started = time.perf_counter()
                call()
                taken[length].append(1e3 * (time.perf_counter() - started))
        median = {length: float(np.median(each)) for length, each in taken.items()}
        ratio = float(np.median(np.array(taken[4000]) / np.array(taken[1000])))
        for length in sizes:
            rows.append(CSV, FIELDS, [label, length, median[length], ratio if length == 4000 else ""])
        print(label, median, f"ratio {ratio:.2f}", flush=True)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    measured(parser.parse_args().rounds)


if __name__ == "__main__":
    main()
