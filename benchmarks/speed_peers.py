"""Contestants of the bench from other libraries, in the environment that `make bench-peers` builds.

.venv-peers/bin/python -m benchmarks.speed_peers gpytorch dgp2 float64
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.turns import Turns
from benchmarks.works import (
    LATENT,
    LENGTH,
    PARTICLES,
    STATES,
    TRAINED,
    Data,
    batch,
    centres,
    data,
    inducing,
    window_starts,
)

LIBRARY, WORK, DTYPE = sys.argv[1:4]
BATCH = batch(WORK)
turns = Turns()


def batches(given: Data) -> Callable[[], np.ndarray]:
    """Rows of the next minibatch, through shuffled epochs."""
    random, left = np.random.default_rng(0), np.zeros(0, int)

    def following() -> np.ndarray:
        nonlocal left
        if len(left) < BATCH:
            left = random.permutation(len(given.x))
        found, left = left[:BATCH], left[BATCH:]
        return found

    return following


def gpflow_call(given: Data) -> Callable[[], None]:
    """GPflow, of deep GPs GPflux."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import gpflow
    import tensorflow as tf

    gpflow.config.set_default_float(np.dtype(DTYPE).type)
    if DTYPE == "float32":
        gpflow.config.set_default_jitter(1e-5)
    kernel = lambda dims=8: gpflow.kernels.SquaredExponential(lengthscales=np.ones(dims))
    if WORK in TRAINED:
        adam, following = tf.keras.optimizers.Adam(0.01), batches(given)
        if TRAINED[WORK]:
            import gpflux.architectures

            config = gpflux.architectures.Config(
                num_inducing=inducing(WORK),
                inner_layer_qsqrt_factor=1e-2,
                likelihood_noise_variance=0.1,
                whiten=True,
            )
            layers = len(TRAINED[WORK]) + 1
            model = gpflux.architectures.build_constant_input_dim_deep_gp(given.x, layers, config)
            loss = lambda rows: -model.elbo(rows)
        else:
            model = gpflow.models.SVGP(
                kernel(),
                gpflow.likelihoods.Gaussian(0.1),
                centres(given, WORK),
                num_data=len(given.x),
                whiten=True,
            )
            loss = lambda rows: -model.elbo(rows)
        variables = model.trainable_variables

        @tf.function
        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                value = loss((x, y))
            adam.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))
            return value

        x, y = tf.constant(given.x), tf.constant(given.y)

        def call() -> None:
            rows = tf.constant(following())
            assert np.isfinite(step(tf.gather(x, rows), tf.gather(y, rows)))

        return call
    if WORK == "collapsed":
        model = gpflow.models.SGPR(tuple(given), kernel(), centres(given, WORK), noise_variance=0.1)
    elif WORK == "exact":
        model = gpflow.models.GPR(tuple(given), kernel(), noise_variance=0.1)
    else:
        random = np.random.default_rng(0)
        model = gpflow.models.BayesianGPLVM(
            given.y,
            X_data_mean=random.normal(size=(len(given.y), LATENT)).astype(DTYPE),
            X_data_var=np.full((len(given.y), LATENT), 0.1, DTYPE),
            kernel=kernel(LATENT),
            inducing_variable=random.normal(size=(inducing(WORK), LATENT)).astype(DTYPE),
        )
    closure, variables = model.training_loss_closure(), model.trainable_variables

    @tf.function
    def both() -> Any:
        with tf.GradientTape() as tape:
            value = closure()
        return value, tape.gradient(value, variables)

    def once() -> None:
        assert np.isfinite(both()[0])

    return once


def gpytorch_call(given: Data) -> Callable[[], None]:
    """GPyTorch; its exact GP by Cholesky, as the others'."""
    import gpytorch
    import torch
    from gpytorch.mlls import DeepApproximateMLL, ExactMarginalLogLikelihood, VariationalELBO
    from gpytorch.models import ApproximateGP, ExactGP
    from gpytorch.models.deep_gps import DeepGP, DeepGPLayer
    from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

    torch.set_default_dtype(getattr(torch, DTYPE))
    if torch.cuda.is_available():
        torch.set_default_device("cuda")
        turns.held = lambda: torch.cuda.max_memory_allocated() / 2**20
    x, y = torch.tensor(given.x), torch.tensor(given.y[:, 0])
    likelihood, following = gpytorch.likelihoods.GaussianLikelihood(), batches(given)
    z, rbf = torch.tensor(centres(given, WORK)) if WORK in TRAINED else None, gpytorch.kernels.RBFKernel

    def moments(self: Any, x: Any) -> Any:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    if WORK == "exact":

        class Exact(ExactGP):
            forward = moments

            def __init__(self) -> None:
                super().__init__(x, y, likelihood)
                self.mean_module = gpytorch.means.ZeroMean()
                self.covar_module = gpytorch.kernels.ScaleKernel(rbf(ard_num_dims=8))

        model: Any = Exact()
        mll: Any = ExactMarginalLogLikelihood(likelihood, model)
        model.train(), likelihood.train()

        def once() -> None:
            model.zero_grad()
            with gpytorch.settings.fast_computations(False, False, False):
                value = -mll(model(x), y)
                value.backward()
            assert np.isfinite(float(value))

        return once

    if WORK == "windows":
        return gpytorch_windows(given)

    class Sparse(ApproximateGP):
        forward = moments

        def __init__(self) -> None:
            q = CholeskyVariationalDistribution(len(z))
            super().__init__(VariationalStrategy(self, z, q, learn_inducing_locations=True))
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(rbf(ard_num_dims=8))

    class Layer(DeepGPLayer):
        forward = moments

        def __init__(self, width: int | None) -> None:
            batch = torch.Size([] if width is None else [width])
            q = CholeskyVariationalDistribution(len(z), batch_shape=batch)
            own = z.expand(*batch, *z.shape)
            strategy = VariationalStrategy(self, own, q, learn_inducing_locations=True)
            super().__init__(strategy, 8, width)
            linear = gpytorch.means.LinearMean(8, batch_shape=batch)
            self.mean_module = gpytorch.means.ZeroMean(batch_shape=batch) if width is None else linear
            kernel = rbf(batch_shape=batch, ard_num_dims=8)
            self.covar_module = gpytorch.kernels.ScaleKernel(kernel, batch_shape=batch)

    class Deep(DeepGP):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([Layer(width) for width in (*TRAINED[WORK], None)])

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x

    model = Deep() if TRAINED[WORK] else Sparse()
    mll = VariationalELBO(likelihood, model, num_data=len(x))
    mll = DeepApproximateMLL(mll) if TRAINED[WORK] else mll
    model.train(), likelihood.train()
    adam = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)

    def call() -> None:
        rows = torch.as_tensor(following())
        adam.zero_grad()
        with gpytorch.settings.num_likelihood_samples(1):
            value = -mll(model(x[rows]), y[rows])
            value.backward()
        adam.step()
        assert np.isfinite(float(value))

    return call


def gpytorch_windows(given: Data) -> Callable[[], None]:
    """PR-SSM's windows, its GPs evaluated at each step by GPyTorch, as the published codes for torch do."""
    import gpytorch
    import torch

    y, starts = torch.tensor(given.y), torch.tensor(window_starts())
    size, states = inducing(WORK), torch.Size([STATES])
    z = torch.tensor(np.random.default_rng(0).normal(size=(STATES, size, STATES)).astype(DTYPE))

    class Transition(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            q = gpytorch.variational.CholeskyVariationalDistribution(size, batch_shape=states)
            strategy = gpytorch.variational.VariationalStrategy(self, z, q, learn_inducing_locations=True)
            super().__init__(strategy)
            self.mean_module = gpytorch.means.ZeroMean(batch_shape=states)
            kernel = gpytorch.kernels.RBFKernel(batch_shape=states, ard_num_dims=STATES)
            self.covar_module = gpytorch.kernels.ScaleKernel(kernel, batch_shape=states)

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    transition = Transition()
    free = lambda value: torch.nn.Parameter(torch.as_tensor(value, dtype=y.dtype))
    begin, spread = free(y.clone()), free(torch.full_like(y, -2.0))
    process, noise = free(torch.full((STATES,), -2.0)), free(torch.full((4,), -2.0))
    weights, bias = free(torch.eye(STATES)), free(torch.zeros(4))
    transition.train()

    def loss() -> Any:
        q = torch.distributions.Normal(begin[starts], spread.exp()[starts])
        state = q.rsample(torch.Size([PARTICLES])).reshape(-1, STATES)
        emitted = 0.0
        for step in range(LENGTH):
            f = transition(state.expand(STATES, *state.shape))
            deviation = (f.variance.T + process.exp()).sqrt()
            state = state + f.mean.T + deviation * torch.randn_like(state)
            found = torch.distributions.Normal(state @ weights + bias, noise.exp().sqrt())
            emitted = emitted + found.log_prob(y[starts + step].repeat(PARTICLES, 1)).sum() / PARTICLES
        first = torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, 1.0)).sum()
        scale = len(y) / (LENGTH * len(starts))
        return transition.variational_strategy.kl_divergence().sum() + scale * (first - emitted)

    parameters = [*transition.parameters(), begin, spread, process, noise, weights, bias]

    def once() -> None:
        for each in parameters:
            each.grad = None
        value = loss()
        value.backward()
        assert np.isfinite(float(value))

    return once


if __name__ == "__main__":
    turns.serve((gpflow_call if LIBRARY == "gpflow" else gpytorch_call)(data(WORK, DTYPE)))
