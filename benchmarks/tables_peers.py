"""The peers of ``benchmarks.tables``, in the environment that `make bench-peers` builds, each as its makers advise.

    .venv-peers/bin/python -m benchmarks.tables_peers METHOD SPLIT.npz SEED

exact-gp: GPflow's GPR, RBF-ARD, L-BFGS; up to 8 000 rows. sgpr: its SGPR with 100 inducing inputs, L-BFGS. svgp: its
SVGP, natural gradients of 0.1 for q(u) beside Adam at 0.01, minibatches of 1 000, until 2 000 steps gain nothing.
gpflux and gpytorch are those of ``benchmarks.time_to_quality_peers``. ngboost: Gaussians, trees chosen on a tenth of
the rows (Duan et al. 2020). lightgbm: five models, each stopped on its own fifth of the rows, and five that fit the
logarithm of their squared errors there; the least rows of a leaf chosen by those fifths. deep-ensemble: five networks
of 50 units, adversarial, 40 epochs at a rate of 0.1 (Lakshminarayanan et al. 2017), or 0.01 where a tenth of the rows
prefers it. linear: least squares with its noise, for scale.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.predictive_scores import of_mixture

INDUCING, BATCH, FULL_BATCH = 100, 1000, 2000
LARGEST_EXACT = 8000
#: of svgp: losses that are compared, and the most steps
LOOK, MOST = 2000, 20_000
TREES, PATIENCE = 5000, 50
#: of lightgbm: its own least number of rows of a leaf, a smaller one, and rows from which two threads are the faster
LEAVES, THREADED = (20, 5), 5000
#: of deep-ensemble: epochs, and rates that are tried; its authors' own, the first, diverges on some tables
EPOCHS, RATES = 40, (0.1, 0.01)
Moments = tuple[np.ndarray, np.ndarray]
About = dict[str, Any]


def linear(x: np.ndarray, y: np.ndarray, at: np.ndarray, seed: int) -> tuple[Moments, About]:
    """Least squares and the deviation of what it leaves."""
    ones = lambda values: np.column_stack([values, np.ones(len(values))])
    weights, *_ = np.linalg.lstsq(ones(x), y, rcond=None)
    variance = np.square(y - ones(x) @ weights).sum() / max(1, len(x) - x.shape[1] - 1)
    mean = ones(at) @ weights
    return (mean[None], np.full((1, *mean.shape), variance)), {}


def exact_gp(x: np.ndarray, y: np.ndarray, at: np.ndarray, seed: int) -> tuple[Moments, About]:
    """GPflow's GPR."""
    if len(x) > LARGEST_EXACT:
        raise SystemExit(f"exact-gp: found {len(x)} rows, expected at most {LARGEST_EXACT}; take sgpr")
    import gpflow

    model = gpflow.models.GPR((x, y), _kernel(x))
    return _by_lbfgs(model, at)


def sgpr(x: np.ndarray, y: np.ndarray, at: np.ndarray, seed: int) -> tuple[Moments, About]:
    """GPflow's SGPR."""
    import gpflow

    model = gpflow.models.SGPR((x, y), _kernel(x), inducing_variable=_centres(x, seed))
    return _by_lbfgs(model, at)


def svgp(x: np.ndarray, y: np.ndarray, at: np.ndarray, seed: int) -> tuple[Moments, About]:
    """GPflow's SVGP."""
    # its variables are not those of Keras 3
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import gpflow
    import tensorflow as tf

    tf.random.set_seed(seed)
    likelihood = gpflow.likelihoods.Gaussian(0.1)
    model = gpflow.models.SVGP(_kernel(x), likelihood, _centres(x, seed), num_data=len(x))
    for each in (model.q_mu, model.q_sqrt):
        gpflow.set_trainable(each, False)
    size = len(x) if len(x) <= FULL_BATCH else BATCH
    rows = tf.data.Dataset.from_tensor_slices((x, y)).repeat().shuffle(len(x), seed=seed).batch(size)
    loss = model.training_loss_closure(iter(rows), compile=True)
    natural, adam = gpflow.optimizers.NaturalGradient(0.1), tf.optimizers.Adam(0.01)

    @tf.function
    def step() -> Any:
        adam.minimize(loss, model.trainable_variables)
        natural.minimize(loss, [(model.q_mu, model.q_sqrt)])
        return loss()

    losses: list[float] = []
    while len(losses) < MOST:
        losses.append(float(step()))
        if len(losses) % LOOK == 0 and not _gains(losses):
            break
    mean, variance = model.predict_y(at)
    return (mean.numpy()[None], variance.numpy()[None]), {
        "steps": len(losses), "bound": -float(np.mean(losses[-LOOK:])), "converged": not _gains(losses),
    }  # fmt: skip


def _gains(losses: list[float]) -> bool:
    """Whether the last ``LOOK`` steps are better than those before by more than the noise of their means."""
    if len(losses) < 2 * LOOK:
        return True
    last, before = (np.array(losses[begin:][:LOOK]) for begin in (-LOOK, -2 * LOOK))
    error = np.sqrt((last.var() + before.var()) / LOOK)
    return bool(before.mean() - last.mean() > max(0.5, 2.0 * error))


def _kernel(x: np.ndarray) -> Any:
    import gpflow

    return gpflow.kernels.SquaredExponential(lengthscales=np.ones(x.shape[1]))


def _centres(x: np.ndarray, seed: int) -> np.ndarray:
    from scipy.cluster.vq import kmeans

    centres: np.ndarray = kmeans(x, min(INDUCING, len(x)), rng=seed)[0]
    return centres


def _by_lbfgs(model: Any, at: np.ndarray) -> tuple[Moments, About]:
    import gpflow

    options = {"maxiter": 5000}
    found = gpflow.optimizers.Scipy().minimize(
        model.training_loss, model.trainable_variables, options=options
    )
    mean, variance = model.predict_y(at)
    return (mean.numpy()[None], variance.numpy()[None]), {
        "steps": int(found.nit), "bound": -float(found.fun), "converged": bool(found.success),
    }  # fmt: skip


def ngboost(x: np.ndarray, y: np.ndarray, at: np.ndarray, seed: int) -> tuple[Moments, About]:
    """As many trees as are best on a tenth of the rows, then all rows."""
    from ngboost import NGBRegressor

    random = np.random.default_rng(seed)
    order = random.permutation(len(x))
    held, kept = order[: len(x) // 10], order[len(x) // 10 :]
    settings: dict[str, Any] = {"learning_rate": 0.01, "verbose": False, "random_state": seed}
    first = NGBRegressor(n_estimators=TREES, **settings).fit(
        x[kept], y[kept, 0], X_val=x[held], Y_val=y[held, 0], early_stopping_rounds=PATIENCE
    )
    trees = int(first.best_val_loss_itr or TREES) + 1
    found = NGBRegressor(n_estimators=trees, **settings).fit(x, y[:, 0]).pred_dist(at)
    mean, deviation = (np.asarray(found.params[name])[None, :, None] for name in ("loc", "scale"))
    return (mean, np.square(deviation)), {"steps": trees}


def lightgbm(x: np.ndarray, y: np.ndarray, at: np.ndarray, seed: int) -> tuple[Moments, About]:
    """Means of five models; the noise from their errors on the rows that each has not seen."""
    from lightgbm import LGBMRegressor, early_stopping

    folds = np.random.default_rng(seed).permutation(len(x)) % 5
    settings: dict[str, Any] = {"n_estimators": TREES, "learning_rate": 0.02, "verbose": -1}
    settings["n_jobs"] = 1 if len(x) < THREADED else 2

    def ensemble(target: np.ndarray, leaf: int) -> tuple[list[Any], np.ndarray]:
        models, apart = [], np.empty(len(x))
        for fold in range(5):
            inside, out = folds != fold, folds == fold
            model = LGBMRegressor(random_state=seed + fold, min_child_samples=leaf, **settings).fit(
                x[inside], target[inside], eval_set=[(x[out], target[out])],
                callbacks=[early_stopping(PATIENCE, verbose=False)],
            )  # fmt: skip
            models.append(model)
            apart[out] = model.predict(x[out])
        return models, apart

    def best(target: np.ndarray) -> tuple[list[Any], np.ndarray]:
        found = [ensemble(target, leaf) for leaf in LEAVES]
        return min(found, key=lambda each: float(np.square(target - each[1]).mean()))

    means, apart = best(y[:, 0])
    errors = np.square(y[:, 0] - apart)
    noises, said = best(np.log(errors + 1e-6 * errors.mean()))
    # E[log χ²] is no log of an expectation: scaled so that errors are, on average, what is said of them
    scale = np.mean(errors / np.exp(said))
    mean = np.mean([model.predict(at) for model in means], 0)
    variance = scale * np.exp(np.mean([model.predict(at) for model in noises], 0))
    return (mean[None, :, None], variance[None, :, None]), {}


def deep_ensemble(x: np.ndarray, y: np.ndarray, at: np.ndarray, seed: int) -> tuple[Moments, About]:
    """One Gaussian with the mixture's moments, as its authors predict; the rate that does best on a tenth."""
    order = np.random.default_rng(seed).permutation(len(x))
    held, kept = order[: len(x) // 10], order[len(x) // 10 :]

    def of_rate(rate: float) -> float:
        moments = _networks(x[kept], y[kept], x[held], seed, rate)
        found: float = of_mixture(*moments, y[held], np.ones(1))["test_log_density"]
        return found

    rate = max(RATES, key=of_rate)
    return _networks(x, y, at, seed, rate), {"steps": EPOCHS}


def _networks(x: np.ndarray, y: np.ndarray, at: np.ndarray, seed: int, rate: float) -> Moments:
    import torch

    size, apart, networks = 100, 0.01, 5
    spread = torch.tensor(x.max(0) - x.min(0)).float()
    inputs, targets = (torch.tensor(values).float() for values in (x, y))
    means, variances = [], []
    for number in range(networks):
        torch.manual_seed(networks * seed + number)
        network = torch.nn.Sequential(
            torch.nn.Linear(x.shape[1], 50), torch.nn.ReLU(), torch.nn.Linear(50, 2)
        )

        def moments(at: Any, network: Any = network) -> tuple[Any, Any]:
            mean, raw = network(at).split(1, 1)
            return mean, torch.nn.functional.softplus(raw) + 1e-6

        def loss(at: Any, there: Any, moments: Callable[..., Any] = moments) -> Any:
            mean, variance = moments(at)
            return 0.5 * (variance.log() + (there - mean) ** 2 / variance).mean()

        adam = torch.optim.Adam(network.parameters(), lr=rate)
        for _ in range(EPOCHS):
            for batch in torch.randperm(len(x)).split(size):
                near = inputs[batch].requires_grad_()
                (slope,) = torch.autograd.grad(loss(near, targets[batch]), near)
                moved = near.detach() + apart * spread * slope.sign()
                adam.zero_grad()
                (loss(near.detach(), targets[batch]) + loss(moved, targets[batch])).backward()
                adam.step()
        with torch.no_grad():
            mean, variance = moments(torch.tensor(at).float())
        means.append(mean.double().numpy())
        variances.append(variance.double().numpy())
    together = np.mean(means, 0)
    variance = np.mean(np.array(variances) + np.square(means), 0) - np.square(together)
    return together[None], variance[None]


#: and what each imports, which its seconds leave out
METHODS: dict[str, tuple[Callable[..., tuple[Moments, About]], tuple[str, ...]]] = {
    "linear": (linear, ()),
    "exact-gp": (exact_gp, ("gpflow",)),
    "sgpr": (sgpr, ("gpflow", "scipy.cluster.vq")),
    "svgp": (svgp, ("gpflow", "scipy.cluster.vq")),
    "ngboost": (ngboost, ("ngboost",)),
    "lightgbm": (lightgbm, ("lightgbm",)),
    "deep-ensemble": (deep_ensemble, ("torch",)),
}


def main() -> None:
    """One method on one split, as a line of JSON."""
    name, place, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
    rows = np.load(place)
    method, libraries = METHODS[name]
    versions = {library.partition(".")[0]: import_module(library) for library in libraries}
    began = time.perf_counter()
    moments, about = method(rows["x"], rows["y"], rows["x_test"], seed)
    about |= {"seconds": time.perf_counter() - began}
    about["versions"] = " ".join(
        f"{name} {module.__version__}" for name, module in versions.items() if name != "scipy"
    )
    print(json.dumps(of_mixture(*moments, rows["y_test"], rows["scale"]) | about), flush=True)


if __name__ == "__main__":
    main()
