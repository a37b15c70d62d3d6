"""The Bayesian GPLVM's bound at given parameters: ours, GPflow's, and in extended precision.

    pip install gpflow tensorflow-cpu tf-keras                     # in an environment of its own
    python -m benchmarks.gplvm_peer oil-peer.npz                   # which benchmarks/gplvm.py oil has written

With tiny noise and jitter 64 bits lose digits in any order of operations: the third number tells whose.
"""

from __future__ import annotations

import sys
from typing import Any

import gpflow
import numpy as np

Array = np.ndarray
LONG = np.longdouble


def peer(y: Array, jitter: float, values: dict[str, Array]) -> float:
    """GPflow's."""
    gpflow.config.set_default_float(np.float64)
    gpflow.config.set_default_jitter(jitter)
    kernel = gpflow.kernels.SquaredExponential(float(values["gp/variance"]), values["gp/lengthscale"])
    model = gpflow.models.BayesianGPLVM(
        y,
        X_data_mean=values["x_loc"],
        X_data_var=values["x_scale"] ** 2,
        kernel=kernel,
        inducing_variable=gpflow.inducing_variables.InducingPoints(values["gp/inducing"]),
    )
    model.likelihood.variance.assign(float(values["likelihood/noise"]))
    return float(model.elbo())


def extended(y: Array, jitter: float, values: dict[str, Array]) -> float:
    """The formula of Titsias & Lawrence (2010) in 80 bits."""
    long: dict[str, Any] = {name: np.asarray(value, LONG) for name, value in values.items()}
    y, mean, variance = y.astype(LONG), long["x_loc"], long["x_scale"] ** 2
    z, v, s2 = long["gp/inducing"], long["gp/variance"], long["likelihood/noise"]
    scaled = 1 / long["gp/lengthscale"] ** 2
    half = LONG(0.5)
    apart = (((z[:, None] - z[None]) ** 2) * scaled).sum(-1)
    lower = _cholesky(v * np.exp(-half * apart) + LONG(jitter) * np.eye(len(z), dtype=LONG))
    spread = scaled * variance + 1
    psi1 = -half * (scaled * (mean[:, None] - z) ** 2 / spread[:, None]).sum(-1)
    psi1 = psi1 - half * np.log(spread).sum(-1)[:, None]
    spread, between = 2 * scaled * variance + 1, (z[:, None] + z[None]) / 2
    psi2 = np.zeros((len(z), len(z)), LONG)
    for centre, wide in zip(mean, spread, strict=True):
        distance = (scaled * (centre - between) ** 2 / wide).sum(-1)
        psi2 += v**2 * np.exp(-apart / 4 - distance - half * np.log(wide).sum())
    gram = _solve(lower, _solve(lower, psi2).T) / s2
    factor = _cholesky(np.eye(len(z), dtype=LONG) + gram)
    found = _solve(factor, _solve(lower, v * np.exp(psi1).T @ y)) / s2
    rows, columns = y.shape
    bound = (
        -rows * columns * half * np.log(2 * LONG(np.pi) * s2)
        - half * (y**2).sum() / s2
        + half * (found**2).sum()
    )
    bound -= columns * (np.log(np.diag(factor)).sum() + half * (rows * v / s2 - np.trace(gram)))
    return float(bound - half * (variance + mean**2 - 1 - np.log(variance)).sum())


def _cholesky(matrix: Array) -> Array:
    lower = np.zeros_like(matrix)
    for j in range(len(matrix)):
        lower[j, j] = np.sqrt(matrix[j, j] - (lower[j, :j] ** 2).sum())
        lower[j + 1 :, j] = (matrix[j + 1 :, j] - lower[j + 1 :, :j] @ lower[j, :j]) / lower[j, j]
    return lower


def _solve(lower: Array, right: Array) -> Array:
    found = np.zeros_like(right)
    for i in range(len(lower)):
        found[i] = (right[i] - lower[i, :i] @ found[:i]) / lower[i, i]
    return found


def main() -> None:
    """Print the three bounds at each set of parameters."""
    data = np.load(sys.argv[1])
    y, jitter = data["y"], float(data["jitter"])
    for when in ("early", "end"):
        values = {
            name.removeprefix(f"{when}/"): data[name] for name in data.files if name.startswith(f"{when}/")
        }
        ours = float(values.pop("bound"))
        theirs, exact = peer(y, jitter, values), extended(y, jitter, values)
        print(f"{when}: ours {ours:.8f}, GPflow {gpflow.__version__} {theirs:.8f}, 80 bits {exact:.8f}")
        print(
            f"  relative: ours to GPflow {abs(ours / theirs - 1):.1e}, ours {abs(ours / exact - 1):.1e}",
            end="",
        )
        print(f" and GPflow {abs(theirs / exact - 1):.1e} to 80 bits")


if __name__ == "__main__":
    main()
