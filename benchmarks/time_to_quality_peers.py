"""Peers of ``benchmarks.time_to_quality``, in the environment that `make bench-peers` builds.

.venv-peers/bin/python -m benchmarks.time_to_quality_peers gpflux SPLIT.npz SEED BUDGET
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.predictive_scores import of_mixture

LIBRARY, PLACE, SEED, BUDGET = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
DRAWS, INDUCING, FULL_BATCH, BATCH = 100, 100, 2000, 1000
LOOKS = (250, 500, 1000, 2000, 4000, 8000, 16_000)
rows = np.load(PLACE)
X, Y, X_TEST, Y_TEST, SCALE = (rows[name] for name in ("x", "y", "x_test", "y_test", "scale"))
SIZE = len(X) if len(X) <= FULL_BATCH else BATCH


def minibatches() -> Callable[[], np.ndarray]:
    """Rows of the next, through shuffled epochs."""
    random, left = np.random.default_rng(SEED), np.zeros(0, int)

    def following() -> np.ndarray:
        nonlocal left
        if len(left) < SIZE:
            left = random.permutation(len(X))
        found, left = left[:SIZE], left[SIZE:]
        return found

    return following


def tell(steps: int, seconds: float, bound: float, means: np.ndarray, variances: np.ndarray) -> None:
    """Print quality by the moments of y under each draw of the hidden layers, (draws, N, P)."""
    found = {"steps": steps, "seconds": seconds, "bound": bound}
    print(json.dumps(found | of_mixture(means, variances, Y_TEST, SCALE)), flush=True)


def gpflux() -> None:
    """The settings of its tutorial on deep GPs, the rate lowered on plateaux of epochs."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import gpflow
    import gpflux.architectures
    import tensorflow as tf

    gpflow.config.set_default_float(np.float64)
    tf.random.set_seed(SEED)
    np.random.seed(SEED)
    began, judged = time.perf_counter(), 0.0
    config = gpflux.architectures.Config(
        num_inducing=min(INDUCING, len(X)),
        inner_layer_qsqrt_factor=1e-5,
        likelihood_noise_variance=1e-2,
        whiten=True,
    )
    model = gpflux.architectures.build_constant_input_dim_deep_gp(X, 2, config)
    variables, adam = model.trainable_variables, tf.keras.optimizers.Adam(0.01)
    following, x, y = minibatches(), tf.constant(X), tf.constant(Y)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = -model.elbo((x, y))
        adam.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))
        return value

    @tf.function
    def moments(x: Any) -> Any:
        outputs = model.f_layers[-1]
        h = x
        for layer in model.f_layers[:-1]:
            h = layer(h)
        mean, variance = outputs.predict(h)
        return mean, variance + model.likelihood_layer.likelihood.variance

    per_epoch, losses, best, waited = max(1, len(X) // SIZE), [], np.inf, 0
    for count in range(1, BUDGET + 1):
        batch = tf.constant(following())
        losses.append(float(step(tf.gather(x, batch), tf.gather(y, batch))))
        if count % per_epoch == 0:
            # Keras' ReduceLROnPlateau("loss", factor=0.95, patience=3, min_lr=1e-6)
            loss = float(np.mean(losses[-per_epoch:]))
            best, waited = (loss, 0) if loss < best - 1e-4 else (best, waited + 1)
            if waited >= 3:
                adam.learning_rate.assign(max(0.95 * float(adam.learning_rate), 1e-6))
                waited = 0
        if count in LOOKS or count == BUDGET:
            seconds, before = time.perf_counter() - began - judged, time.perf_counter()
            found = [moments(tf.constant(X_TEST)) for _ in range(DRAWS)]
            means, variances = (np.stack([each[part].numpy() for each in found]) for part in (0, 1))
            tell(count, seconds, -float(np.mean(losses[-100:])), means, variances)
            judged += time.perf_counter() - before


def gpytorch() -> None:
    """The settings of its tutorial on deep GPs, in 32 bits, with the hidden width of the others."""
    import gpytorch
    import torch
    from gpytorch.mlls import DeepApproximateMLL, VariationalELBO
    from gpytorch.models.deep_gps import DeepGP, DeepGPLayer
    from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

    torch.manual_seed(SEED)
    began, judged = time.perf_counter(), 0.0
    x, y, dims = torch.tensor(X).float(), torch.tensor(Y[:, 0]).float(), X.shape[1]
    size, width = min(INDUCING, len(X)), min(30, dims)

    class Layer(DeepGPLayer):
        def __init__(self, inputs: int, outputs: int | None) -> None:
            batch = torch.Size([] if outputs is None else [outputs])
            z = torch.randn(*batch, size, inputs)
            q = CholeskyVariationalDistribution(size, batch_shape=batch)
            super().__init__(VariationalStrategy(self, z, q, learn_inducing_locations=True), inputs, outputs)
            constant, linear = gpytorch.means.ConstantMean(), gpytorch.means.LinearMean(inputs)
            self.mean_module = constant if outputs is None else linear
            kernel = gpytorch.kernels.MaternKernel(nu=2.5, batch_shape=batch, ard_num_dims=inputs)
            self.covar_module = gpytorch.kernels.ScaleKernel(kernel, batch_shape=batch)

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    class Deep(DeepGP):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.last = Layer(dims, width), Layer(width, None)

        def forward(self, x: Any) -> Any:
            return self.last(self.hidden(x))

    model, likelihood = Deep(), gpytorch.likelihoods.GaussianLikelihood()
    bound = DeepApproximateMLL(VariationalELBO(likelihood, model, num_data=len(x)))
    adam = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)
    following, losses = minibatches(), []
    for count in range(1, BUDGET + 1):
        batch = torch.as_tensor(following())
        adam.zero_grad()
        with gpytorch.settings.num_likelihood_samples(10):
            value = -bound(model(x[batch]), y[batch])
        value.backward()
        adam.step()
        losses.append(float(value) * len(x))
        if count in LOOKS or count == BUDGET:
            seconds, before = time.perf_counter() - began - judged, time.perf_counter()
            with torch.no_grad(), gpytorch.settings.num_likelihood_samples(DRAWS):
                found = likelihood(model(torch.tensor(X_TEST).float()))
            means, variances = (
                each.numpy()[..., None].astype(float) for each in (found.mean, found.variance)
            )
            tell(count, seconds, -float(np.mean(losses[-100:])), means, variances)
            judged += time.perf_counter() - before


if __name__ == "__main__":
    {"gpflux": gpflux, "gpytorch": gpytorch}[LIBRARY]()
