"""Latent variable models on real tables: oil flow, missing entries, digits by minibatches, motion, a deep GPLVM.

    python -m benchmarks.gplvm oil --data DIR        # the others: missing, usps, motion, digits (needs no DIR)
    python -m benchmarks.gplvm page                  # docs/gplvm.md from the CSVs

DIR holds ``latent/<set>.npz``. Rows are appended to CSVs as they come, and what these hold is not done again; figures
go to docs/. ``oil`` also writes what ``gplvm_peer.py`` compares with GPflow in an environment of its own.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import numpyro
from sklearn.impute import KNNImputer

from benchmarks import rows
from benchmarks.gplvm_page import page
from benchmarks.imputers import by_components, by_iteration, by_means, by_neighbours
from benchmarks.latent_tables import nearest_errors, standard

numpyro.enable_x64()

from ppl_dgp import (  # noqa: E402
    Amortised,
    Collapsed,
    DoublyStochastic,
    Fit,
    Guide,
    MeanField,
    PowerEP,
    deep_gplvm,
    dynamical_gplvm,
    fit_lbfgs,
    fit_svi,
    gplvm,
    infer_latents,
    relevance,
    row_log_density,
)
from ppl_dgp.diagnostics import plot_grid, plot_latents, plot_relevance  # noqa: E402
from ppl_dgp.numerics.gaussian import Gaussian  # noqa: E402
from ppl_dgp.prediction.predict import predict  # noqa: E402

HERE, DOCS = Path("benchmarks"), Path("docs")
KEY = jax.random.key(0)
Array = np.ndarray


# --- oil flow

JITTER = 1e-6
OIL = ["start", "seed", "latent", "inducing", "steps", "bound", "errors", "kept", "seconds"]


def oil(options: argparse.Namespace) -> None:
    """Ten latents, M = 50; the first row of the CSV is PCA."""
    data = np.load(options.data / "latent" / "oil_flow.npz")
    y, labels = standard(data["Y"])[0], data["labels"]
    out = HERE / "gplvm-oil.csv"
    found = rows.done(out, OIL[:2])
    if ("pca alone", "0") not in found:
        axes = np.linalg.svd(y - y.mean(0), full_matrices=False)[0][:, :2]
        rows.append(out, OIL, ["pca alone", 0, 2, "", "", "", nearest_errors(axes, labels), "", ""])
    for start, seed in [("pca", 0), *(("random", seed) for seed in range(options.seeds))]:
        if (start, str(seed)) in found:
            continue
        model = gplvm(y.shape[1], 10, 50, start=start)
        guide = Guide(model, hidden=MeanField())
        key = jax.random.key(seed)
        fit = fit_lbfgs(key, model, None, y, guide=guide, objective=Collapsed(), steps=options.steps)
        counts = relevance(fit)
        best = np.argsort(-counts)[:2]
        mean, scale = np.asarray(fit.params["x_loc"]), np.asarray(fit.params["x_scale"])
        errors, kept = nearest_errors(mean[:, best], labels), int((counts > 0.02 * counts.max()).sum())
        row = [
            start,
            seed,
            10,
            50,
            fit.steps,
            f"{-fit.losses[0, -1]:.6g}",
            errors,
            kept,
            f"{fit.seconds:.4g}",
        ]
        rows.append(out, OIL, row)
        print(*row, flush=True)
        if start == "pca":
            plot_relevance(counts / counts.max()).savefig(DOCS / "gplvm-oil-relevance.png", dpi=120)
            figure = plot_latents(mean, scale, labels, relevance=counts)
            figure.savefig(DOCS / "gplvm-oil.png", dpi=120)
            early = fit_lbfgs(key, model, None, y, guide=guide, objective=Collapsed(), steps=50)
            np.savez(
                options.peer, y=y, jitter=JITTER, **_for_peer("early", early, y), **_for_peer("end", fit, y)
            )


def _for_peer(when: str, fit: Fit, y: Array) -> dict[str, Array]:
    """Parameters and bound, for benchmarks/gplvm_peer.py."""
    names = ("x_loc", "x_scale", "gp/inducing", "gp/lengthscale", "gp/variance", "likelihood/noise")
    found = {f"{when}/{name}": np.asarray(fit.params[name]) for name in names}
    return {**found, f"{when}/bound": np.asarray(_bound(fit.params, y))}


def _bound(params: dict[str, jax.Array], y: Array) -> float:
    """The collapsed bound with an absolute jitter on Kzz, as GPflow adds it."""
    model = gplvm(y.shape[1], 10, 50, jitter=JITTER / float(params["gp/variance"]))
    guide = Guide(model, hidden=MeanField())
    x = np.zeros((len(y), 0))
    return -float(jax.jit(lambda p: Collapsed().loss(KEY, p, model, guide, x, jax.numpy.asarray(y)))(params))


# --- missing entries

MISSING = ["table", "share", "method", "rmse", "log_density", "seconds"]


def missing(options: argparse.Namespace) -> None:
    """Entries removed at random, and what each method makes of them, in standardised units."""
    out = HERE / "gplvm-missing.csv"
    found = rows.done(out, MISSING[:3])
    tables = {"oil": ("oil_flow", None), "faces": ("frey_faces", 500), "qpcr": ("guo_qpcr", None)}
    for name in options.tables.split(","):
        file, count = tables[name]
        whole = np.load(options.data / "latent" / f"{file}.npz")["Y"].astype(float)[:count]
        for share in map(float, options.shares.split(",")):
            gone = np.random.default_rng(1).random(whole.shape) < share
            y, mean, scale = standard(np.where(gone, np.nan, whole))
            kept = np.nanstd(np.where(gone, np.nan, whole), 0) > 1e-6 * np.nanstd(whole)
            truth, hidden = ((whole[:, kept] - mean) / scale)[gone[:, kept]], gone[:, kept]
            for method, impute in METHODS.items():
                if (name, f"{share:g}", method) in found:
                    continue
                began = time.perf_counter()
                centre, variance = impute(y, options)
                seconds = time.perf_counter() - began
                error = truth - centre[hidden]
                density = -0.5 * (np.log(2 * np.pi * variance[hidden]) + error**2 / variance[hidden])
                numbers = [np.sqrt((error**2).mean()), density.mean(), seconds]
                row = [name, f"{share:g}", method, *(f"{each:.4g}" for each in numbers)]
                rows.append(out, MISSING, row)
                print(*row, flush=True)


def _gplvm(y: Array, options: argparse.Namespace) -> tuple[Array, Array]:
    model = gplvm(y.shape[1], options.latent, 50, missing=True)
    # of a row that lacks entries little is known, and its latents hang together: full covariances
    guide = Guide(model, hidden=MeanField(full=True))
    fit = fit_lbfgs(KEY, model, None, y, guide=guide, objective=Collapsed(), steps=options.steps)
    at = {"x": Gaussian(fit.params["x_loc"], fit.params["x_scale"])}
    found = predict(KEY, fit, None, latents=at, num_samples=50)
    return found.mean, found.variance


METHODS: dict[str, Callable[[Array, argparse.Namespace], tuple[Array, Array]]] = {
    "mean": lambda y, _: by_means(y),
    "PPCA": lambda y, _: by_components(y),
    "kNN": lambda y, _: by_neighbours(y),
    "iterative": lambda y, _: by_iteration(y),
    "GPLVM": _gplvm,
}


# --- minibatches

USPS = [
    "guide",
    "rows",
    "batch",
    "steps",
    "inducing",
    "latent",
    "log_density",
    "seconds",
    "ms_a_step",
    "peak_gib",
]


def usps(options: argparse.Namespace) -> None:
    """All handwritten digits by minibatches of 256: parameters for each row, or an encoder; held-out rows."""
    data = np.load(options.data / "latent" / "usps_all.npz")
    y = data["Y"].astype(float)
    y = (y - y.mean(0)) / y.std()
    order = np.random.default_rng(0).permutation(len(y))[: options.rows + 1000]
    train, test = y[order[1000:]], y[order[:1000]]
    out = HERE / "gplvm-usps.csv"
    model = gplvm(y.shape[1], 10, options.inducing)
    guides = {
        "per datum": Guide(model, hidden=MeanField()),
        "amortised": Guide(model, hidden=Amortised((128, 128), MeanField())),
    }
    for name in options.guides.split(","):
        key = [name, len(train), 256, options.steps, options.inducing]
        if tuple(map(str, key)) in rows.done(out, USPS[:5]):
            continue
        objective = PowerEP(0.0, propagation="moments")
        began = time.perf_counter()
        fit = fit_svi(
            KEY,
            model,
            guides[name],
            objective,
            None,
            train,
            steps=options.steps,
            batch_size=256,
            learning_rate=0.005,
        )
        seconds = time.perf_counter() - began
        density = row_log_density(KEY, fit, None, test).mean()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        pace = 1e3 * (fit.seconds - fit.compile_seconds) / fit.steps
        row = [*key, 10, f"{density:.5g}", f"{seconds:.4g}", f"{pace:.3g}", f"{peak:.3g}"]
        rows.append(out, USPS, row)
        print(*row, flush=True)
        if name == "amortised":
            found = infer_latents(KEY, fit, None, test)
            figure = plot_latents(found.mean, labels=data["labels"][order[:1000]], relevance=relevance(fit))
            figure.savefig(DOCS / "gplvm-usps.png", dpi=120)


# --- motion

MOTION = ["method", "markers", "frames", "rmse", "seconds"]
JOG = 1.3  # units of the root's way a frame; walks go at 0.7, jogs at 2.0
GAP = 30


def motion(options: argparse.Namespace) -> None:
    """Walks and jogs of subject 35: the gaits in the latent space, and markers that are missing for 30 frames."""
    data = np.load(options.data / "latent" / "cmu35_walk_jog.npz")
    sequence = data["sequence"].astype(int)
    whole = data["Y"]
    speed = np.array([np.abs(np.diff(whole[sequence == s, 2])).mean() for s in range(31)])
    jog = speed > JOG
    # where the walker is on the floor says nothing of the pose
    pose = np.delete(whole, [0, 2], axis=1)
    frame = np.concatenate([np.arange((sequence == s).sum()) for s in range(31)])
    x = np.column_stack([frame / 30.0, sequence])
    gone = np.zeros(pose.shape, bool)
    varying = np.flatnonzero(pose.std(0) > 1e-6)
    random = np.random.default_rng(0)
    # in every third sequence half of the channels go missing together for 30 frames
    for s in range(0, 31, 3):
        members = np.flatnonzero(sequence == s)
        if len(members) < GAP + 5:
            continue
        begin = random.integers(2, len(members) - GAP - 2)
        lost = random.permutation(varying)[: len(varying) // 2]
        gone[np.ix_(members[begin : begin + GAP], lost)] = True
    y, mean, scale = standard(np.where(gone, np.nan, pose))
    kept = np.nanstd(np.where(gone, np.nan, pose), 0) > 1e-6 * np.nanstd(pose, 0).max()
    truth, hidden = (pose[:, kept] - mean) / scale, gone[:, kept]
    out = HERE / "gplvm-motion.csv"

    def note(method: str, filled: Array, seconds: float) -> None:
        rmse = np.sqrt(np.square(filled - truth)[hidden].mean())
        row = [method, len(varying) // 2, GAP, f"{rmse:.4g}", f"{seconds:.3g}"]
        rows.append(out, MOTION, row)
        print(*row, flush=True)

    if not rows.done(out, MOTION[:1]):
        note("mean", np.zeros_like(y), 0.0)
        note("linear interpolation", _interpolated(y, sequence), 0.0)
        note("nearest neighbour", KNNImputer(n_neighbors=1).fit_transform(y), 0.0)
    began = time.perf_counter()
    model = dynamical_gplvm(y.shape[1], options.latent, 60, times=15, missing=True)
    guide = Guide(model, hidden=MeanField())
    fit = fit_lbfgs(KEY, model, x, y, guide=guide, objective=Collapsed(), steps=options.steps)
    unit = np.sqrt(np.asarray(fit.params["prior/noise"]))
    loc, deviation = np.asarray(fit.params["x_loc"]), np.asarray(fit.params["x_scale"]) * unit
    at = {"x": Gaussian(jax.numpy.asarray(loc), jax.numpy.asarray(deviation))}
    found = predict(KEY, fit, x, latents=at, num_samples=20)
    note("dynamical GPLVM", found.mean, time.perf_counter() - began)
    gait = np.where(jog[sequence], "jog", "walk")
    counts = relevance(fit)
    best = np.argsort(-counts)[:2]
    print("gait errors", nearest_errors(loc[:, best], gait), "relevance", np.round(counts / counts.max(), 3))
    rows.append(out, MOTION, ["gait errors", "", "", nearest_errors(loc[:, best], gait), ""])
    plot_latents(loc, None, gait, relevance=counts).savefig(DOCS / "gplvm-motion.png", dpi=120)


def _interpolated(y: Array, sequence: Array) -> Array:
    """Linear over the frames of each sequence and channel."""
    filled = y.copy()
    for s in np.unique(sequence):
        members = np.flatnonzero(sequence == s)
        for column in range(y.shape[1]):
            values = y[members, column]
            there = ~np.isnan(values)
            filled[members, column] = np.interp(np.arange(len(members)), np.flatnonzero(there), values[there])
    return filled


# --- a deep GPLVM

DIGITS = ["model", "widths", "steps", "bound", "errors", "seconds"]


def digits(options: argparse.Namespace) -> None:
    """scikit-learn's digits, 8 × 8: two latents, one layer and two, and what they decode to over a grid."""
    from sklearn.datasets import load_digits

    table, labels = load_digits(return_X_y=True)
    centre, scale = table.mean(0), table.std()
    y = (table - centre) / scale
    out = HERE / "gplvm-digits.csv"
    for name, widths in {"GPLVM": (), "deep GPLVM": (5,)}.items():
        if (name,) in rows.done(out, DIGITS[:1]):
            continue
        model = deep_gplvm(y.shape[1], 2, widths, 50)
        guide = Guide(model, hidden=DoublyStochastic(), latent=MeanField())
        objective = PowerEP(0.0, propagation="moments" if not widths else None)
        settings = dict(steps=options.steps, batch_size=300, learning_rate=0.01)
        fit = fit_svi(KEY, model, guide, objective, None, y, **settings)
        bound = -fit.losses[0, -200:].mean()
        loc = np.asarray(fit.params["x_loc"])
        row = [name, widths, options.steps, f"{bound:.6g}", nearest_errors(loc, labels), f"{fit.seconds:.4g}"]
        rows.append(out, DIGITS, row)
        print(*row, flush=True)
        short = name.lower().replace(" ", "-")
        figure = plot_latents(loc, np.asarray(fit.params["x_scale"]), labels)
        figure.savefig(DOCS / f"gplvm-digits-{short}.png", dpi=120)
        sides = [np.linspace(*np.quantile(loc[:, d], [0.02, 0.98]), 15) for d in range(2)]
        at = np.stack(np.meshgrid(*sides, indexing="ij"), -1).reshape(-1, 2)
        points = {"x": Gaussian(jax.numpy.asarray(at), jax.numpy.zeros_like(at))}
        found = predict(KEY, fit, None, latents=points, num_samples=10)
        images = (found.mean * scale + centre).reshape(15, 15, -1)
        extent = (sides[0][0], sides[0][-1], sides[1][0], sides[1][-1])
        plot_grid(images, (8, 8), extent=extent).savefig(DOCS / f"gplvm-digits-{short}-grid.png", dpi=120)


def main() -> None:
    """Run one of the experiments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for name, experiment, steps in (
        ("oil", oil, 1000),
        ("missing", missing, 200),
        ("usps", usps, 8000),
        ("motion", motion, 300),
        ("digits", digits, 4000),
    ):
        each = commands.add_parser(name, help=experiment.__doc__)
        each.add_argument("--data", type=Path)
        each.add_argument("--steps", type=int, default=steps)
        each.set_defaults(run=experiment)
        if name == "oil":
            each.add_argument("--seeds", type=int, default=3, help="random starts beside PCA's")
            each.add_argument("--peer", type=Path, default=Path("oil-peer.npz"))
        elif name == "missing":
            each.add_argument("--tables", default="oil,faces,qpcr")
            each.add_argument("--shares", default="0.1,0.3,0.5")
            each.add_argument("--latent", type=int, default=10)
        elif name == "usps":
            each.add_argument("--guides", default="per datum,amortised")
            each.add_argument("--inducing", type=int, default=50)
            each.add_argument("--rows", type=int, default=10_000)
        elif name == "motion":
            each.add_argument("--latent", type=int, default=8)
    commands.add_parser("page", help=page.__doc__).set_defaults(run=page)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
