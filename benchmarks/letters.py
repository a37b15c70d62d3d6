"""The letters DGP as a table of (x, y): how much of their density a GP, a deep GP and latents beside x can say.

    python -m benchmarks.letters --models GP,DGP         # three seeds; minutes on a GPU
    python -m benchmarks.letters --models LV-GP,LV-DGP --bits 64 --rate 0.005 --minutes 1.6
    python -m benchmarks.letters --table
    python -m benchmarks.letters --figure docs/letters.png

Figure 7 of Leibfried et al. (2020). 14 000 points, uniform in the ink of the letters as matplotlib's DejaVu Sans Bold
draws them, both columns stretched to [−3, 3]; a seed chooses its tenth that is held out, and draws all else. GP and DGP
(a hidden layer of one output) are trained by the ELBO, LV-GP and LV-DGP (one latent z ~ N(0, 1) beside x, a hidden
layer of two outputs) by the importance-weighted bound of ``--particles``, q(z) from a network of (x, y). RBF kernels,
M = 100 for each layer, minibatches of 1000. Log densities of held-out points are logarithms of means over ``--draws``
of z and the hidden layers from the model; "fewer" is what a quarter of the draws says. "ink" is the density of the
points themselves, one over the ink above x, which no model can beat but by chance. Bounds are of the objective, in nats
a row. Samples of y, one at each x of the table, lie beside the CSV as .npz.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
import pandas as pd
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path as Outline
from matplotlib.textpath import TextPath

from benchmarks import rows
from benchmarks.paired import more_than_before
from ppl_dgp import (
    Amortised,
    DoublyStochastic,
    Fit,
    Guide,
    ImportanceWeighted,
    MeanField,
    PowerEP,
    deep_gp,
    fit_many,
    held_out_scores,
    latent_input_gp,
    predict,
)
from ppl_dgp.fit import Interrupted

CSV = Path("benchmarks/letters.csv")
KEY = ("model", "seed", "rows", "inducing", "particles", "batch", "bits")
FIELDS = (
    *KEY, "test_log_density", "fewer", "ink", "test_rmse", "coverage95", "bound", "noise", "converged", "gap",
    "steps", "seconds", "device",
)  # fmt: skip
MODELS = ("GP", "DGP", "LV-GP", "LV-DGP")
ROWS, SIDE = 14_000, 3.0
Array = np.ndarray


@lru_cache(maxsize=1)
def outlines() -> list[Outline]:
    """Closed lines around the letters and around their holes, stretched to [−3, 3] both ways."""
    drawn = TextPath((0, 0), "DGP", size=100, prop=FontProperties(family="DejaVu Sans", weight="bold"))
    box = drawn.get_extents()
    stretched = (drawn.vertices - box.min) / box.size * 2.0 * SIDE - SIDE
    return [Outline(line) for line in Outline(stretched, drawn.codes).to_polygons()]


def in_ink(at: Array) -> Array:
    """Which places (N, 2) have ink: those within an odd number of lines."""
    return np.logical_xor.reduce([line.contains_points(at) for line in outlines()])


def points(count: int, seed: int = 0) -> Array:
    """So many points (N, 2), uniform in the ink."""
    random, found = np.random.default_rng(seed), np.empty((0, 2))
    while len(found) < count:
        tried = random.uniform(-SIDE, SIDE, (count, 2))
        found = np.concatenate([found, tried[in_ink(tried)]])
    return found[:count]


def ink_above(x: Array, places: int = 1200) -> Array:
    """Lengths (N,) of the ink over x, a column each, by so many places in it."""
    y = (np.arange(places) + 0.5) / places * 2.0 * SIDE - SIDE
    share = [in_ink(np.column_stack([np.full(places, each), y])).mean() for each in x.ravel()]
    return 2.0 * SIDE * np.array(share)


def parts(table: Array, seed: int) -> tuple[Array, Array]:
    """Rows to train on, and a tenth that is held out."""
    order = np.random.default_rng(seed).permutation(len(table))
    aside = len(table) // 10
    return table[order[aside:]], table[order[:aside]]


def contestant(name: str, inducing: int, particles: int) -> tuple[Any, Guide, Any]:
    """A model with its guide and objective."""
    deep = name.endswith("DGP")
    if not name.startswith("LV"):
        model = deep_gp((1,) if deep else (), inducing)
        return model, Guide(model), PowerEP(0.0)
    latent = latent_input_gp(1, (2,) if deep else (), inducing)
    guide = Guide(latent, hidden=DoublyStochastic(), latent=Amortised((32, 32), MeanField()))
    return latent, guide, ImportanceWeighted(particles)


def trained(options: argparse.Namespace, name: str, seeds: list[int]) -> None:
    """The rows of a model's seeds, which are trained side by side."""
    table = points(options.rows).astype(float)
    split = [parts(table, seed) for seed in seeds]
    keys = jax.numpy.stack([jax.random.key(seed) for seed in seeds])
    steps = {"steps": options.steps} if options.steps else {"budget": options.budget}
    if options.minutes:
        # as Ctrl-C, after which a fit returns what it has
        signal.signal(signal.SIGINT, signal.default_int_handler)
        timer = threading.Timer(60.0 * options.minutes, os.kill, (os.getpid(), signal.SIGINT))
        timer.daemon = True
        timer.start()
    try:
        fits = fit_many(
            keys, *contestant(name, options.inducing, options.particles),
            [train[:, :1] for train, _ in split], [train[:, 1:] for train, _ in split],
            batch_size=options.batch, learning_rate=options.rate, **steps,
        )  # fmt: skip
    except Interrupted as stopped:
        fits = stopped.fits
    if options.minutes:
        timer.cancel()
    for seed, fit, (_, test) in zip(seeds, fits, split, strict=True):
        rows.append_shown(options.out, FIELDS, judged(options, name, seed, fit, test))
    _keep(options.out, name, fits[0], table)


def judged(options: argparse.Namespace, name: str, seed: int, fit: Fit, test: Array) -> dict[str, Any]:
    """The row of a fit."""
    x, y, key = test[:, :1], test[:, 1:], jax.random.key(9)
    scores = held_out_scores(key, fit, x, y, num_samples=options.draws)
    fewer = held_out_scores(jax.random.key(8), fit, x, y, num_samples=max(options.draws // 4, 1))
    return {
        "model": name, "seed": seed, "rows": options.rows, "inducing": options.inducing,
        "particles": options.particles if name.startswith("LV") else "", "batch": options.batch,
        "bits": options.bits, **scores, "fewer": fewer["test_log_density"],
        "ink": -float(np.log(ink_above(x)).mean()), "bound": -fit.losses[0, -100:].mean() / (options.rows - len(x)),
        "noise": float(fit.params["likelihood/noise"].squeeze()), "converged": fit.converged, "gap": fit.gap,
        "steps": fit.steps, "seconds": fit.seconds, "device": jax.devices()[0].device_kind,
    }  # fmt: skip


def _keep(out: Path, name: str, fit: Fit, table: Array) -> None:
    """Samples of y at the table's x, among those that are there."""
    place = out.with_suffix(".npz")
    there = dict(np.load(place)) if place.exists() else {}
    found = predict(jax.random.key(7), fit, table[:, :1], samples=True, num_samples=1).samples
    assert found is not None
    np.savez_compressed(
        place, **{**there, "table": table.astype(np.float32), name: found[0].astype(np.float32)}
    )


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """A model a line, means over seeds; what it has more than the line above, with its standard error, by seeds."""
    names = [name for name in MODELS if name in set(found.model)]
    kept = [
        "test_log_density",
        "fewer",
        "ink",
        "coverage95",
        "bound",
        "noise",
        "gap",
        "converged",
        "steps",
        "seconds",
    ]
    means = found.groupby("model")[kept].mean().loc[names]
    means["converged"] = found.groupby("model").converged.sum()
    means["fits"] = found.groupby("model").size()
    return means.join(more_than_before(found, "model", "test_log_density", names))


def figure(found: pd.DataFrame, samples: dict[str, Array], place: Path) -> None:
    """The points and samples of each model."""
    from matplotlib import pyplot

    names = [name for name in MODELS if name in samples]
    said = {"points": found.ink.mean(), **found.groupby("model").test_log_density.mean()}
    drawn, axes = pyplot.subplots(1, len(names) + 1, figsize=(3.2 * (len(names) + 1), 2.4), sharey=True)
    table = samples["table"]
    shown: Iterable[tuple[str, Array]] = [
        ("points", table[:, 1:]),
        *((name, samples[name]) for name in names),
    ]
    for axis, (name, y) in zip(axes, shown, strict=True):
        axis.plot(table[:, 0], y[:, 0], ".", markersize=0.6, color="black", alpha=0.6)
        axis.set(title=f"{name}: {said[name]:.3f}", ylim=(-5, 5), xticks=[], yticks=[])
    drawn.tight_layout()
    drawn.savefig(place, dpi=120)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--seeds", default="0-2", help="of a model, trained side by side")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--inducing", type=int, default=100)
    parser.add_argument("--particles", type=int, default=5)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--steps", type=int, help="so many; else until converged, within --budget")
    parser.add_argument("--budget", type=int, default=27_200)
    parser.add_argument("--rate", type=float, help="the first peak; several are tried if not given")
    parser.add_argument("--minutes", type=float, help="at most, of a model's training")
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--bits", type=int, choices=(32, 64), default=32)
    parser.add_argument("--out", type=Path, default=CSV)
    parser.add_argument("--figure", type=Path, help="drawn of what is there, and no work done")
    parser.add_argument("--table", action="store_true", help="of what the CSV holds, and do no work")
    options = parser.parse_args()
    if options.table:
        print(summary(pd.read_csv(options.out)).to_string())
        return
    if options.figure:
        figure(pd.read_csv(options.out), dict(np.load(options.out.with_suffix(".npz"))), options.figure)
        return
    if options.bits == 64:
        numpyro.enable_x64()
    there = rows.done(options.out, KEY)
    about = tuple(map(str, (options.rows, options.inducing)))
    for name in options.models.split(","):
        settings = (*about, str(options.particles) if name.startswith("LV") else "", str(options.batch))
        wanted = rows.numbers(options.seeds)
        left = [seed for seed in wanted if (name, str(seed), *settings, str(options.bits)) not in there]
        if left:
            trained(options, name, left)


if __name__ == "__main__":
    main()
