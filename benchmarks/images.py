"""Images by their patches: accuracy, density and calibration against minutes.

    python -m benchmarks.images --data DIR --set mnist --minutes 60 --run RUN     # goes on where RUN has stopped
    python -m benchmarks.images --data DIR --set mnist --model deep --minutes 60 --run RUN
    python -m benchmarks.images --set rectangles --minutes 10 --run RUN
    python -m benchmarks.images --table

DIR holds ``images/mnist.npz``. Rectangles (Larochelle et al. 2007 describe them) are drawn here: outlines one pixel
wide on 28 × 28, sides from 3 to 28 that differ by 3 at least, anywhere; the class is whether they are taller than wide;
12 000 rows to train on, or of ``rectangles-1000`` a thousand, and 10 000 others to test on. A convolutional GP of
patches of 3 × 3, M = 16, probit; of MNIST patches of 5 × 5 that know their places, at every second place, M = 384,
robust-max, or a deep one with one hidden layer of four channels, M = 192. 32 bits, minibatches of 64 under Adam at a
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

CSV = Path("benchmarks/images.csv")
FIELDS = (
    "set",
    "model",
    "steps",
    "of",
    "minutes",
    "processor_minutes",
    "accuracy",
    "log_density",
    "calibration_error",
    "loss",
)
BATCH, RATE, EVERY = 64, 0.01, 500
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


def loaded(name: str, data: Path | None) -> Split:
    """Training and test images and classes."""
    if name == "mnist":
        if data is None:
            raise SystemExit("data: found none, expected --data DIR with images/mnist.npz")
        file = np.load(data / "images" / "mnist.npz")
        images = [file[f"X_{part}"].reshape(-1, 784).astype(np.float32) / 255.0 for part in ("train", "test")]
        labels = [file[f"y_{part}"].astype(np.int32)[:, None] for part in ("train", "test")]
        return images[0], labels[0], images[1], labels[1]
    count = 1000 if name.endswith("-1000") else 12_000
    return *rectangles(count, 0), *rectangles(10_000, 1)


def calibration_error(probabilities: np.ndarray, right: np.ndarray, bins: int = 15) -> float:
    """The mean distance of confidence and accuracy, over bins of confidence."""
    place = np.minimum((probabilities * bins).astype(int), bins - 1)
    gaps = [
        abs(probabilities[place == b].mean() - right[place == b].mean()) * (place == b).mean()
        for b in range(bins)
        if (place == b).any()
    ]
    return float(sum(gaps))


def model_of(name: str, kind: str) -> convolutional_gp | deep_convolutional_gp:
    """The model of a set."""
    classes = 10 if name == "mnist" else 2
    if kind == "deep":
        return deep_convolutional_gp((28, 28), (4,), (5, 5), (2, 1), classes, 192, located=True)
    if name == "mnist":
        return convolutional_gp((28, 28), (5, 5), classes, 384, located=True, stride=2)
    return convolutional_gp((28, 28), (3, 3), classes, 16)


def main() -> None:
    """Train on, or print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--set", default="rectangles", choices=("mnist", "rectangles", "rectangles-1000"))
    parser.add_argument("--model", default="convolutional", choices=("convolutional", "deep"))
    parser.add_argument("--run", type=Path)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=int, default=EVERY)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        frame = pd.read_csv(CSV)
        print(frame.groupby(["set", "model", "of"], sort=False).tail(1).round(4).to_string(index=False))
        return
    x, y, new, truth = loaded(options.set, options.data)
    model = model_of(options.set, options.model)
    guide, objective = Guide(model), PowerEP(0.0)
    optimizer = optax.adam(optax.cosine_decay_schedule(RATE, options.steps))
    begun = time.perf_counter()
    mine = (options.set, options.model, str(options.steps))
    before = [row for row in rows.read(CSV) if (row["set"], row["model"], row["of"]) == mine]
    done = [int(row["steps"]) for row in before]
    minutes = max((float(row["processor_minutes"] or 0.0) for row in before), default=0.0)
    for steps in range(max(done, default=0) + options.every, options.steps + 1, options.every):
        started = time.process_time()
        fit = fit_svi(
            jax.random.key(0), model, guide, objective, x, y, steps=steps, batch_size=BATCH, optimizer=optimizer,
            checkpoint=options.run, resume=bool(done), checkpoint_every=10**6,
        )  # fmt: skip
        done.append(steps)
        minutes += (time.process_time() - started) / 60.0
        found = fit.predict(jax.random.key(1), new, truth, batch_size=500)
        probabilities = np.asarray(found.mean)
        if probabilities.shape[1] == 1:
            probabilities = np.concatenate([1.0 - probabilities, probabilities], 1)
        chosen = probabilities.argmax(1)
        right = chosen == truth[:, 0]
        density = np.log(probabilities[np.arange(len(new)), truth[:, 0]])
        row = {
            "set": options.set, "model": options.model, "steps": steps, "of": options.steps,
            "minutes": round(fit.seconds / 60.0, 2), "processor_minutes": round(minutes, 2),
            "accuracy": right.mean(), "log_density": density.mean(),
            "calibration_error": calibration_error(probabilities.max(1), right), "loss": fit.losses[0, -200:].mean(),
        }  # fmt: skip
        rows.append_shown(CSV, FIELDS, row)
        if time.perf_counter() - begun > 60.0 * options.minutes:
            return


if __name__ == "__main__":
    main()
