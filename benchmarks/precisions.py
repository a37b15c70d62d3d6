"""Fits of both precisions, interleaved at random in one process and in threads, each equal to a lone one.

What is compiled, or kept, in one precision must never be used in the other. Prints how many fits were made and how
many differ from a lone fit of the same kind; exits with 1 if any does.

    python -m benchmarks.precisions --fits 500 --threads 2 --seed 0
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ppl_dgp.data.batches import open_rows
from ppl_dgp.fit import fit_lbfgs, fit_many, fit_stream, fit_svi
from ppl_dgp.guides import Guide, MeanField
from ppl_dgp.models import deep_gp, gplvm, gpssm, sparse_gp_regression
from ppl_dgp.objectives import Collapsed, PowerEP
from ppl_dgp.prediction.predict import predict

STEPS = 3
X = np.linspace(-1.0, 1.0, 24)[:, None]
Y = np.sin(4.0 * X)
SPARSE, DEEP = sparse_gp_regression(5), deep_gp((1,), 4)
LATENT, SERIES = gplvm(2, 1, 4), gpssm(1, num_inducing=4)
LATENT_GUIDE = Guide(LATENT, hidden=MeanField())


def _stream(key: Any) -> Any:
    rows = open_rows((X, Y), block_rows=6)
    return fit_stream(key, SPARSE, Guide(SPARSE), PowerEP(0.0), rows, steps=STEPS, batch_size=8)


def _resumed(key: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        for steps, resume in ((2, False), (4, True)):
            settings: dict[str, Any] = {"steps": steps, "chunk": 2, "checkpoint": folder, "resume": resume}
            fit = fit_svi(key, SPARSE, Guide(SPARSE), PowerEP(0.5), X, Y, **settings)
    return fit


KINDS: dict[str, Callable[[Any], Any]] = {
    "sparse": lambda key: fit_svi(key, SPARSE, Guide(SPARSE), PowerEP(0.0), X, Y, steps=STEPS),
    "minibatches": lambda key: fit_svi(key, SPARSE, Guide(SPARSE), PowerEP(0.5), X, Y, steps=STEPS, batch_size=6),
    "restarts": lambda key: fit_svi(key, DEEP, Guide(DEEP), PowerEP(0.0), X, Y, steps=STEPS, restarts=2),
    "deep": lambda key: fit_svi(key, DEEP, Guide(DEEP, hidden=MeanField()), PowerEP(0.5, 2), X, Y, steps=STEPS),
    "collapsed": lambda key: fit_lbfgs(key, SPARSE, X, Y, guide=Guide(SPARSE), objective=Collapsed(), steps=STEPS),
    "latents": lambda key: fit_svi(key, LATENT, LATENT_GUIDE, PowerEP(0.0), None, np.hstack([Y, X]), steps=STEPS),
    "series": lambda key: fit_svi(key, SERIES, Guide(SERIES), PowerEP(0.0), None, Y, steps=STEPS),
    "several": lambda key: fit_many(key, SPARSE, Guide(SPARSE), PowerEP(0.0), [X, X[:20]], [Y, Y[:20]], steps=STEPS)[0],
    "rows from outside": _stream,
    "resumed": _resumed,
}  # fmt: skip


def outcome(kind: str, wide: bool) -> dict[str, np.ndarray]:
    """What a fit ends at, in 64 bits or in 32, and what it predicts."""
    with jax.enable_x64(wide):
        key = jax.random.PRNGKey(0)
        fit = KINDS[kind](key)
        found = {name: np.asarray(value) for name, value in fit.params.items()} | {"losses": fit.losses}
        if kind in ("sparse", "deep", "minibatches"):
            found["prediction"] = np.asarray(predict(key, fit, jnp.asarray(X[:5]), num_samples=3).mean)
    return found


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    """To the bit, types included."""
    return found.keys() == expected.keys() and all(
        found[name].dtype == value.dtype and np.array_equal(found[name], value, equal_nan=True)
        for name, value in expected.items()
    )


def main() -> int:
    """Run the campaign; 1 if a fit differs from a lone one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fits", type=int, default=500)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    settings = parser.parse_args()
    cases = list(itertools.product(KINDS, (False, True)))
    started = time.perf_counter()
    lone = {}
    for case in cases:
        # nothing is left of other fits
        jax.clear_caches()
        lone[case] = outcome(*case)
    jax.clear_caches()
    rng = np.random.default_rng(settings.seed)
    order = [cases[place] for place in rng.integers(len(cases), size=settings.fits)]

    def differs(case: tuple[str, bool]) -> str | None:
        try:
            return None if same(outcome(*case), lone[case]) else f"{case}: other numbers than a lone fit"
        except Exception as error:
            return f"{case}: {type(error).__name__}: {error}".splitlines()[0]

    half = len(order) // 2
    wrong = [differs(case) for case in order[:half]]
    with ThreadPoolExecutor(settings.threads) as pool:
        wrong += list(pool.map(differs, order[half:]))
    failures = [text for text in wrong if text is not None]
    for text in sorted(set(failures)):
        print(f"{failures.count(text)} times {text}")
    print(
        f"{len(order)} fits of {len(cases)} kinds, {half} one after another, the rest in {settings.threads} threads: "
        f"{len(failures)} differ from a lone one; {time.perf_counter() - started:.0f} s"
    )
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
