"""How deep a GPLVM pays: digits by one to five layers (Lawrence's slides of 2015), motion by one and two.

    python -m benchmarks.depth digits --data DIR         # some minutes a fit; --depths and --seeds choose
    python -m benchmarks.depth motion --data DIR
    python -m benchmarks.depth motion --data DIR --kept FOLDER --minutes 8    # a fit goes on at the next call
    python -m benchmarks.depth digits --table            # of what the CSV holds; motion too
    python -m benchmarks.depth digits --figure docs/depth-digits.png

DIR holds ``latent/usps_all.npz`` and ``latent/cmu35_walk_jog.npz``. Deep GPLVMs whose layers are all as wide, each
begun at the identity, with RBF kernels, a lengthscale for each dimension, under the mean-field bound in closed form
(Damianou & Lawrence 2013), trained by L-BFGS in 64 bits.

Digits: 150 of USPS, 50 zeros, ones and sixes, of which a seed chooses another 50 each. "errors" are of nearest
neighbours in the mean latents of each layer, from the top down to the data, "dims" the layer's principal components
with at least 2 % of the variance of its first, "bent" the share of the variance of its means that is not linear in
those of the layer before: 0 is a layer that is switched off.

Motion: subject 35's walks and jogs, every eighth frame from the seed's on; legs (14 angles) and the body above them
(42). The 169 frames of two other walks lose one of the two, which is predicted from the other: RMSE in standard
deviations, beside that of the training frame that is nearest in what is there.
"""

from __future__ import annotations

import argparse
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
import pandas as pd
from sklearn.linear_model import LinearRegression
from sklearn.neighbors import KNeighborsRegressor

from benchmarks import rows
from benchmarks.latent_tables import nearest_errors, standard
from benchmarks.paired import more_than_before
from ppl_dgp import Collapsed, Fit, Guide, MeanField, deep_gplvm, fit_lbfgs, infer_latents, predict
from ppl_dgp.fit import Interrupted

KEY = ("depth", "seed", "width", "inducing")
ABOUT = ("bound", "converged", "gap", "steps", "seconds")
FIELDS = {
    "digits": (*KEY, *ABOUT, "errors", "pixel_errors", "dims", "bent"),
    "motion": (*KEY, *ABOUT, "rmse_body", "rmse_legs", "nearest_body", "nearest_legs"),
}
CSV = {name: Path(f"benchmarks/depth-{name}.csv") for name in FIELDS}
DIGITS, EACH = (0, 1, 6), 50
#: columns of the two parts of a walker, the root's six left out
LEGS, BODY = slice(6, 20), slice(20, 62)
EVERY = 8
Array = np.ndarray


def digits(data: Path, seed: int) -> tuple[Array, Array]:
    """Images (150, 256), centred and of unit variance in all, and their classes."""
    file = np.load(data / "latent" / "usps_all.npz")
    random, labels = np.random.default_rng(seed), file["labels"]
    chosen = np.concatenate(
        [random.choice(np.flatnonzero(labels == digit), EACH, replace=False) for digit in DIGITS]
    )
    y = file["Y"][chosen].astype(float)
    return (y - y.mean(0)) / y.std(), labels[chosen]


def frames(data: Path, seed: int) -> tuple[Array, Array, Array]:
    """Training and test frames, standardised by those of training, and which columns are of legs."""
    file = np.load(data / "latent" / "cmu35_walk_jog.npz")
    train = file["Y"][seed % EVERY :: EVERY]
    varies = train.std(0) > 1e-6
    columns = np.concatenate([np.arange(62)[LEGS], np.arange(62)[BODY]])
    columns = columns[varies[columns]]
    y, mean, scale = standard(train[:, columns])
    return y, (file["Y_test"][:, columns] - mean) / scale, columns < LEGS.stop


@lru_cache(maxsize=1)
def contestant(columns: int, depth: int, width: int, inducing: int, missing: bool) -> tuple[Any, Guide, Any]:
    """A deep GPLVM of so many layers with its guide and objective: kept, so that seeds share what is compiled."""
    model = deep_gplvm(columns, width, (width,) * (depth - 1), inducing, missing=missing)
    return model, Guide(model, hidden=MeanField()), Collapsed()


def trained(options: argparse.Namespace, depth: int, seed: int, y: Array, missing: bool = False) -> Fit:
    """The fit of a depth and a seed, from where it stopped if it is kept.

    Raises Interrupted where its minutes are over.
    """
    model, guide, objective = contestant(y.shape[1], depth, options.width, options.inducing, missing)
    settings: dict[str, Any] = {"guide": guide, "objective": objective, "budget": options.budget}
    if options.kept:
        place = options.kept / f"{options.set}-{depth}-{seed}"
        settings |= {"checkpoint": place, "resume": place.exists()}
    if options.minutes:
        end = time.monotonic() + 60.0 * options.minutes
        settings["callback"] = lambda _: time.monotonic() > end
    return fit_lbfgs(jax.random.key(seed), model, None, y, **settings)


def layer_means(fit: Fit) -> list[Array]:
    """Means of the latents and of the hidden layers, (N, Q) each, in the model's order."""
    names = ["x_loc", *sorted(name for name in fit.params if name.endswith("/h_loc"))]
    return [np.asarray(fit.params[name]) for name in names]


def components_kept(means: Array) -> int:
    """Principal components with at least 2 % of the variance of the first."""
    shares = np.square(np.linalg.svd(means - means.mean(0), compute_uv=False))
    return int((shares >= 0.02 * shares[0]).sum())


def not_linear(means: Array, before: Array) -> float:
    """The share of the variance of a layer that regression on the layer before leaves over."""
    left = means - LinearRegression().fit(before, means).predict(before)
    return float(left.var(0).sum() / means.var(0).sum())


def of_digits(fit: Fit, labels: Array, y: Array) -> dict[str, Any]:
    """What a fit makes of the digits, layer by layer."""
    means = layer_means(fit)
    bent = [not_linear(after, before) for before, after in zip(means, means[1:], strict=False)]
    return {
        "errors": ";".join(str(nearest_errors(each, labels)) for each in means),
        "pixel_errors": nearest_errors(y, labels),
        "dims": ";".join(str(components_kept(each)) for each in means),
        "bent": ";".join(f"{each:.4f}" for each in bent),
    }


def of_motion(fit: Fit, y: Array, test: Array, legs: Array) -> dict[str, Any]:
    """Errors of the part that is missing in test frames, by the model and by the nearest training frame."""
    found: dict[str, Any] = {}
    for name, lost in {"body": ~legs, "legs": legs}.items():
        seen = np.where(lost, np.nan, test)
        latents = infer_latents(jax.random.key(1), fit, None, seen)
        filled = predict(jax.random.key(2), fit, None, latents=latents.sites, num_samples=50).mean
        found[f"rmse_{name}"] = root_mean_square(filled[:, lost] - test[:, lost])
        nearest = KNeighborsRegressor(1).fit(y[:, ~lost], y[:, lost]).predict(test[:, ~lost])
        found[f"nearest_{name}"] = root_mean_square(nearest - test[:, lost])
    return found


def root_mean_square(error: Array) -> float:
    """Over all entries."""
    return float(np.sqrt(np.square(error).mean()))


def experiment(options: argparse.Namespace, depth: int, seed: int) -> dict[str, Any]:
    """The row of a depth and a seed."""
    if options.set == "digits":
        y, labels = digits(options.data, seed)
        fit = trained(options, depth, seed, y)
        said = of_digits(fit, labels, y)
    else:
        y, test, legs = frames(options.data, seed)
        fit = trained(options, depth, seed, y, missing=True)
        said = of_motion(fit, y, test, legs)
    about = {"depth": depth, "seed": seed, "width": options.width, "inducing": options.inducing}
    about |= {"bound": -float(fit.losses[0, -1]), "converged": fit.converged, "gap": fit.gap}
    return {**about, "steps": fit.steps, "seconds": fit.seconds, **said}


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """A depth a line, means over seeds; what its bound has more than the line above, with its standard error."""
    numbers = found.select_dtypes("number").drop(columns=["seed", "width", "inducing"])
    depths = sorted(found.depth.unique())
    table = numbers.groupby("depth").mean().join(more_than_before(found, "depth", "bound", depths))
    by_depth = found.groupby("depth")
    table["converged"] = by_depth.converged.sum()
    table["fits"] = by_depth.size()
    for name in {"errors", "dims", "bent"} & set(found):
        table[name] = by_depth[name].apply(
            lambda each: ", ".join(f"{mean:.3g}" for mean in _by_layer(each).mean(0))
        )
    return table


def _by_layer(cells: pd.Series) -> Array:
    """Numbers of the layers, a line for each fit."""
    lines = [str(cell).split(";") if str(cell) != "nan" else [] for cell in cells]
    return np.array(lines, float)


def figure(found: pd.DataFrame, place: Path) -> None:
    """What depth adds to the bound of one layer, and nearest-neighbour errors layer by layer."""
    from matplotlib import pyplot

    drawn, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.4))
    for seed, part in found.groupby("seed"):
        ordered = part.sort_values("depth")
        more = ordered.bound - ordered.bound.iloc[0]
        left.plot(ordered.depth, more, "o-", label=f"digits of seed {seed}")
    left.set(
        xlabel="layers", ylabel="bound less that of one layer (nats)", xticks=sorted(found.depth.unique())
    )
    left.legend(loc="lower left")
    for depth, part in found.groupby("depth"):
        errors = _by_layer(part.errors).mean(0)
        # the layer next to the data at 1
        right.plot(range(len(errors), 0, -1), errors, "o-", label=f"{depth} layer{'s' * (depth > 1)}")
    right.axhline(
        found.groupby("seed").pixel_errors.first().mean(), color="grey", linestyle=":", label="pixels"
    )
    right.set(
        xlabel="layers between the latents and the data", ylabel=f"nearest-neighbour errors of {3 * EACH}"
    )
    right.xaxis.get_major_locator().set_params(integer=True)
    right.legend(fontsize="small")
    drawn.tight_layout()
    drawn.savefig(place, dpi=120)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("set", choices=FIELDS)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--depths", default=None, help="1-5 of digits, 1-2 of motion")
    parser.add_argument("--seeds", default="0-2")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--inducing", type=int, default=25)
    parser.add_argument("--budget", type=int, default=400, help="iterations at most")
    parser.add_argument("--minutes", type=float, help="of a fit at most")
    parser.add_argument("--kept", type=Path, help="folder of what fits have reached, from which they go on")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figure", type=Path, help="drawn of what is there, and no work done")
    parser.add_argument("--table", action="store_true", help="of what the CSV holds, and do no work")
    options = parser.parse_args()
    out = options.out or CSV[options.set]
    if options.table:
        print(summary(pd.read_csv(out)).to_string())
        return
    if options.figure:
        figure(pd.read_csv(out), options.figure)
        return
    numpyro.enable_x64()
    there = rows.done(out, KEY)
    for depth in rows.numbers(options.depths or {"digits": "1-5", "motion": "1-2"}[options.set]):
        for seed in rows.numbers(options.seeds):
            if tuple(map(str, (depth, seed, options.width, options.inducing))) in there:
                continue
            try:
                rows.append_shown(out, FIELDS[options.set], experiment(options, depth, seed))
            except Interrupted as stopped:
                print(f"depth={depth} seed={seed}: {stopped}", flush=True)


if __name__ == "__main__":
    main()
