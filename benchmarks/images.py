"""Images by their patches: accuracy, density and calibration against minutes.

    python -m benchmarks.images --data DIR --set mnist --minutes 60 --run RUN     # goes on where RUN has stopped
    python -m benchmarks.images --data DIR --set mnist --model deep --minutes 60 --run RUN
    python -m benchmarks.images --set rectangles --minutes 10 --run RUN
    python -m benchmarks.images --table

DIR holds ``images/mnist.npz``. Rectangles (Larochelle et al. 2007 describe them) are drawn here: outlines one pixel
wide on 28 × 28, sides from 3 to 28 that differ by 3 at least, anywhere; the class is whether they are taller than wide;
12 000 rows to train on, or of ``rectangles-1000`` a thousand, and 10 000 others to test on. Those of ``backgrounds``
(12 000 rows) are filled, and stand on, pieces of photographs that scikit-learn and matplotlib ship: sides from 10 that
differ by 5 at least, a quarter to three quarters of the area; training images are from the left 60 % of each
photograph, test images from the rest. Of rectangles a convolutional GP takes patches of 3 × 3, M = 16, probit; of
other sets patches of 5 × 5 that know their places, at every ``--stride``-th place, M = ``--inducing``, with MNIST
robust-max, or a deep one with a hidden layer of ``--channels``. 32 bits, minibatches of ``--batch`` under Adam at a
rate that falls by a cosine from 0.01 to 0 over ``--steps``. A row every so many steps; minutes are of training alone:
on the clock, and of processors, which other work on the same cores does not lengthen. RUN is a directory for
checkpoints.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import jax
import numpy as np
import optax
import pandas as pd

from benchmarks import rows
from ppl_dgp import Guide, PowerEP, convolutional_gp, deep_convolutional_gp, fit_svi
from ppl_dgp.diagnostics.class_measures import class_scores

CSV = Path("benchmarks/images.csv")
KEY = ("set", "model", "inducing", "stride", "channels", "batch", "device", "of")
FIELDS = (
    *KEY, "steps", "minutes", "processor_minutes", "accuracy", "log_density", "calibration_error", "loss",
)  # fmt: skip
RATE, EVERY = 0.01, 500
#: numbers of training and test images
SIZES = {"rectangles": (12_000, 10_000), "rectangles-1000": (1000, 10_000), "backgrounds": (12_000, 10_000)}
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def rectangles(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 784) and classes (N, 1)."""
    random, images = np.random.default_rng(seed), np.zeros((count, 28, 28), np.float32)
    labels = np.zeros((count, 1), np.int32)
    for number, image in enumerate(images):
        height, width = 0, 0
        while abs(height - width) < 3:
            height, width = random.integers(3, 29, 2)
        top, left = random.integers(0, 29 - height), random.integers(0, 29 - width)
        bottom, right = top + height - 1, left + width - 1
        image[[top, bottom], left : right + 1] = 1.0
        image[top : bottom + 1, [left, right]] = 1.0
        labels[number] = height > width
    return images.reshape(count, -1), labels


def photographs() -> list[np.ndarray]:
    """Grey photographs that packages ship, numbers from 0 to 1."""
    from matplotlib import cbook, image
    from sklearn.datasets import load_sample_images

    with cbook.get_sample_data("grace_hopper.jpg") as file:
        found = [*load_sample_images().images, image.imread(file, format="jpg")]
    return [picture.mean(2).astype(np.float32) / 255.0 for picture in found]


def backgrounds(count: int, seed: int, *, test: bool) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 784) and classes (N, 1)."""
    random, parts = np.random.default_rng(seed), []
    for picture in photographs():
        edge = int(0.6 * picture.shape[1])
        parts.append(picture[:, edge:] if test else picture[:, :edge])

    def piece() -> np.ndarray:
        part = parts[random.integers(len(parts))]
        top, left = random.integers(0, part.shape[0] - 27), random.integers(0, part.shape[1] - 27)
        return part[top : top + 28, left : left + 28]

    images, labels = np.empty((count, 28, 28), np.float32), np.zeros((count, 1), np.int32)
    for number in range(count):
        height = width = 0
        while abs(height - width) < 5 or not 0.25 <= height * width / 784 <= 0.75:
            height, width = random.integers(10, 29, 2)
        top, left = random.integers(0, 29 - height), random.integers(0, 29 - width)
        inside = slice(top, top + height), slice(left, left + width)
        images[number] = piece()
        images[number][inside] = piece()[inside]
        labels[number] = height > width
    return images.reshape(count, -1), labels


def loaded(name: str, data: Path | None) -> Split:
    """Training and test images and classes."""
    if name == "mnist":
        if data is None:
            raise SystemExit("data: found none, expected --data DIR with images/mnist.npz")
        file = np.load(data / "images" / "mnist.npz")
        images = [file[f"X_{part}"].reshape(-1, 784).astype(np.float32) / 255.0 for part in ("train", "test")]
        labels = [file[f"y_{part}"].astype(np.int32)[:, None] for part in ("train", "test")]
        return images[0], labels[0], images[1], labels[1]
    train, test = SIZES[name]
    if name == "backgrounds":
        return *backgrounds(train, 0, test=False), *backgrounds(test, 1, test=True)
    return *rectangles(train, 0), *rectangles(test, 1)


def model_of(options: argparse.Namespace) -> convolutional_gp | deep_convolutional_gp:
    """The model of a set."""
    classes = 10 if options.set == "mnist" else 2
    size = (28, 28), (5, 5)
    if options.model == "deep":
        channels, strides = (options.channels,), (options.stride, 1)
        return deep_convolutional_gp(
            size[0], channels, size[1], strides, classes, options.inducing, located=True
        )
    if options.set.startswith("rectangles"):
        return convolutional_gp((28, 28), (3, 3), classes, 16)
    return convolutional_gp(*size, classes, options.inducing, located=True, stride=options.stride)


def main() -> None:
    """Train on, or print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--set", default="rectangles", choices=("mnist", *SIZES))
    parser.add_argument("--model", default="convolutional", choices=("convolutional", "deep"))
    parser.add_argument("--run", type=Path)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--inducing", type=int, default=384)
    parser.add_argument("--stride", type=int, default=2)
    parser.add_argument("--channels", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--chunk", type=int, default=100)
    parser.add_argument("--out", type=Path, default=CSV)
    parser.add_argument("--every", type=int, default=EVERY)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        frame = pd.read_csv(options.out)
        print(frame.groupby(list(KEY), sort=False).tail(1).round(4).to_string(index=False))
        return
    if options.set.startswith("rectangles"):  # whose model is of one size
        options.inducing, options.stride, options.model = 16, 1, "convolutional"
    options.channels *= options.model == "deep"
    x, y, new, truth = loaded(options.set, options.data)
    model = model_of(options)
    guide, objective = Guide(model), PowerEP(0.0)
    optimizer = optax.adam(optax.cosine_decay_schedule(RATE, options.steps))
    begun = time.perf_counter()
    about = {name: getattr(options, name) for name in KEY[:-2]}
    about |= {"device": jax.devices()[0].device_kind, "of": options.steps}
    before = [row for row in rows.read(options.out) if all(row[name] == str(about[name]) for name in KEY)]
    done = [int(row["steps"]) for row in before]
    minutes = max((float(row["processor_minutes"] or 0.0) for row in before), default=0.0)
    for steps in range(max(done, default=0) + options.every, options.steps + 1, options.every):
        started = time.process_time()
        fit = fit_svi(
            jax.random.key(0), model, guide, objective, x, y, steps=steps, batch_size=options.batch,
            optimizer=optimizer, checkpoint=options.run, resume=bool(done), checkpoint_every=10**6, chunk=options.chunk,
        )  # fmt: skip
        done.append(steps)
        minutes += (time.process_time() - started) / 60.0
        probabilities = np.asarray(fit.predict(jax.random.key(1), new, batch_size=500).mean)
        if probabilities.shape[1] == 1:
            probabilities = np.concatenate([1.0 - probabilities, probabilities], 1)
        found = class_scores(probabilities, truth[:, 0])
        row = {
            **about, "steps": steps, "minutes": round(fit.seconds / 60.0, 2), "processor_minutes": round(minutes, 2),
            "accuracy": found["test_accuracy"], "log_density": found["test_log_density"],
            "calibration_error": found["test_calibration_error"], "loss": fit.losses[0, -200:].mean(),
        }  # fmt: skip
        rows.append_shown(options.out, FIELDS, row)
        if time.perf_counter() - begun > 60.0 * options.minutes:
            return


if __name__ == "__main__":
    main()
