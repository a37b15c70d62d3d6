"""Ten thousand short fits of fifty programs in one process: memory reaches a plateau, and the numbers stay the same.

    python -m benchmarks.plateau --fits 10000 --programs 50 --out plateau.csv
    python -m benchmarks.plateau --fits 78 --programs 78 --block 1

Every program is fitted in its turn, ``--block`` fits in a row, and then programs drawn at random; the last fifth of
the fits is made in two threads at once. What each ends at must be, to the bit, what the first of its program ended at.
Then fits are made in worker processes: forked before JAX had begun and spawned, which must give the same numbers, and
forked after it, which must be refused at once. A row of memory and mappings is written every hundred fits. Exits with 1
where a number differs, a worker is stuck, or the second half of the fits takes a tenth more memory or mappings than the
first.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rows import append

FIELDS = ("fits", "seconds", "megabytes", "mappings", "differ", "threads")
SAMPLED, STUCK, MOST_GROWTH = 100, 900, 1.1
IN_WORKERS = range(5)


def fit_of(number: int) -> Callable[[], Any]:
    """A short fit, of a program of its own for each number."""
    import jax

    from ppl_dgp.fit import fit_lbfgs, fit_svi
    from ppl_dgp.guides import Guide, MeanField
    from ppl_dgp.models import deep_gp, gplvm, sparse_gp_regression
    from ppl_dgp.objectives import Collapsed, PowerEP

    x = np.linspace(-1.0, 1.0, 60)[:, None]
    y = np.sin(4.0 * x)
    kind, size = number % 5, 3 + number // 5
    key, sparse, deep, latent = (
        jax.random.PRNGKey(number),
        sparse_gp_regression(size),
        deep_gp((1,), size),
        gplvm(1, 1, size),
    )
    fits: list[Callable[[], Any]] = [
        lambda: fit_svi(key, sparse, Guide(sparse), PowerEP(0.0), x, y, steps=3),
        lambda: fit_svi(key, sparse, Guide(sparse), PowerEP(0.5), x, y, steps=3, batch_size=10),
        lambda: fit_lbfgs(key, sparse, x, y, guide=Guide(sparse), objective=Collapsed(), steps=3),
        lambda: fit_svi(key, deep, Guide(deep, hidden=MeanField()), PowerEP(0.0), x, y, steps=3),
        lambda: fit_svi(key, latent, Guide(latent, hidden=MeanField()), PowerEP(0.0), None, y, steps=3),
    ]
    return fits[kind]


def numbers_of(number: int) -> str:
    """A digest of what a fit ends at, its model and guide made anew."""
    fit, digest = fit_of(number)(), hashlib.sha256()
    for array in (*(fit.params[name] for name in sorted(fit.params)), fit.losses):
        digest.update(np.asarray(array).tobytes())
    return digest.hexdigest()


def attempted(number: int) -> str:
    """``numbers_of``, or the error in its place."""
    try:
        return numbers_of(number)
    except RuntimeError as error:
        return f"RuntimeError: {error}"


def megabytes() -> float:
    """What this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def mappings() -> int:
    """The mappings of memory that this process has."""
    return Path("/proc/self/maps").read_bytes().count(b"\n")


def in_workers(method: str) -> list[str]:
    """What fits in two processes end at, those that are stuck as "stuck"."""
    context = multiprocessing.get_context(method)
    pool = ProcessPoolExecutor(2, mp_context=context)
    begun = [pool.submit(attempted, number) for number in IN_WORKERS]
    found = []
    for future in begun:
        try:
            found.append(future.result(timeout=STUCK / 3))
        except TimeoutError:
            found.append("stuck")
    if "stuck" in found:
        for process in pool._processes.values():
            process.kill()
    pool.shutdown(wait=True, cancel_futures=True)
    return found


class Watch:
    """Counts fits, compares their numbers, and writes a row of memory every hundred."""

    def __init__(self, out: Path) -> None:
        out.unlink(missing_ok=True)
        self.rows: list[dict[str, Any]] = []
        self.first: dict[int, str] = {}
        self.differ, self.fits, self.threads = 0, 0, 1
        self._out, self._began = out, time.perf_counter()
        self._lock = threading.Lock()

    def fit(self, number: int) -> None:
        """Make a fit and note how it ended."""
        found = attempted(number)
        with self._lock:
            self.fits += 1
            self.differ += found != self.first.setdefault(number, found) or found.startswith("RuntimeError")
            if self.fits % SAMPLED == 0 or self.fits == 1:
                self.sample()

    def sample(self) -> None:
        """Write a row."""
        about = (self.fits, f"{time.perf_counter() - self._began:.0f}", f"{megabytes():.0f}", mappings())
        self.rows.append(dict(zip(FIELDS, (*about, self.differ, self.threads), strict=True)))
        append(self._out, FIELDS, [*self.rows[-1].values()])

    def most(self, name: str, begin: float, end: float) -> float:
        """The largest value of a column in a share of the fits."""
        inside = [
            float(row[name]) for row in self.rows if begin * self.fits <= row["fits"] <= end * self.fits
        ]
        return max(inside, default=0.0)


def main() -> int:
    """Run the campaign; 1 if something grows, differs or is stuck."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fits", type=int, default=10_000)
    parser.add_argument("--programs", type=int, default=50)
    parser.add_argument("--block", type=int, default=50, help="fits of a program in a row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("build/plateau.csv"))
    settings = parser.parse_args()
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(settings.seed)
    blocks = settings.fits // settings.block
    order = [*range(settings.programs), *random.integers(settings.programs, size=blocks).tolist()][:blocks]
    with tempfile.TemporaryDirectory() as compiled:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = compiled
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        many = settings.fits > settings.programs
        forked_before = in_workers("fork") if many else []
        watch = Watch(settings.out)
        alone = blocks - blocks // 5 if many else blocks
        for number in order[:alone]:
            faulthandler.dump_traceback_later(STUCK, exit=True)
            for _ in range(settings.block):
                watch.fit(number)
        watch.threads = 2
        with ThreadPoolExecutor(2) as pool:
            for pair in zip(order[alone::2], order[alone + 1 :: 2], strict=False):
                faulthandler.dump_traceback_later(STUCK, exit=True)
                list(pool.map(watch.fit, pair * settings.block))
        watch.sample()
        faulthandler.cancel_dump_traceback_later()
        wrong = []
        if many:
            expected = [watch.first[number] for number in IN_WORKERS]
            for how, found in {
                "forked before JAX had begun": forked_before,
                "spawned": in_workers("spawn"),
            }.items():
                if found != expected:
                    wrong.append(f"workers {how}: found {found}, expected {expected}")
            if any("forked when JAX had begun" not in text for text in in_workers("fork")):
                wrong.append("workers forked after JAX had begun were not refused")
    if watch.differ:
        wrong.append(f"{watch.differ} fits ended in other numbers than the first of their program")
    told = []
    for name in ("megabytes", "mappings"):
        first, second = watch.most(name, 0.0, 0.5), watch.most(name, 0.5, 1.0)
        told.append(f"{name} at most {first:.0f} in the first half and {second:.0f} in the second")
        if many and second > MOST_GROWTH * first:
            wrong.append(f"{name}: found {second:.0f} in the second half, expected about {first:.0f}")
    for text in wrong:
        print(text)
    print(
        f"{watch.fits} fits of {settings.programs} programs: {'; '.join(told)}; {watch.differ} differ; "
        f"{watch.rows[-1]['seconds']} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
