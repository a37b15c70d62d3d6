"""Sparse GPs in closed form (``Collapsed``) trained until they converge, and exact ones; a row for each in a CSV."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import jax
import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from benchmarks import rows
from ppl_dgp.diagnostics import held_out_scores
from ppl_dgp.fit import fit_lbfgs
from ppl_dgp.guides import Guide, Optimal
from ppl_dgp.models import sparse_gp_regression
from ppl_dgp.objectives import Collapsed

ALPHAS = (0.0, 0.2, 0.5, 0.8, 1.0)
FIELDS = ["set", "split", "inducing", "alpha", "smse", "smll", "nlml", "noise", "gap", "converged"]
Sets = list[tuple[np.ndarray, ...]]


def scores(log_density: float, rmse: float, y: np.ndarray, target: np.ndarray) -> tuple[float, float]:
    """SMSE and SMLL: errors over the targets' spread, minus log density over that of the training targets' Gaussian."""
    trivial = -0.5 * np.log(2 * np.pi * y.var()) - 0.5 * np.square(target - y.mean()).mean() / y.var()
    return rmse**2 / target.var(), trivial - log_density


def exact(x: np.ndarray, y: np.ndarray, new: np.ndarray, target: np.ndarray) -> list[float | str]:
    """Scores, minus the log evidence and the noise variance of scikit-learn's exact GP."""
    kernel = ConstantKernel(1.0) * RBF(np.ones(x.shape[1]), (1e-3, 1e4)) + WhiteKernel(0.1, (1e-8, 1e2))
    gp = GaussianProcessRegressor(kernel, alpha=0.0, n_restarts_optimizer=2, random_state=0).fit(x, y[:, 0])
    mean, deviation = gp.predict(new, return_std=True)
    errors = target[:, 0] - mean
    density = np.mean(-0.5 * np.log(2 * np.pi * deviation**2) - 0.5 * np.square(errors / deviation))
    smse, smll = scores(float(density), float(np.sqrt(np.square(errors).mean())), y, target)
    return [smse, smll, -gp.log_marginal_likelihood_value_, float(gp.kernel_.k2.noise_level), 0.0, "True"]


def run_closed(path: Path, name: str, sets: Sets, numbers: tuple[int, ...], with_exact: bool) -> None:
    """Fit all sets (x, y, new, target) for each M and α, and write a row for each; "0" inducing inputs: exact."""
    done = rows.done(path, FIELDS[:4])
    for number in (*([0] if with_exact else []), *numbers):
        # one model and one guide: sets of equal shapes share what is compiled
        model = sparse_gp_regression(number or 1)
        guide = Guide(model, inducing=Optimal())
        for alpha in ALPHAS if number else (1.0,):
            objective = Collapsed(alpha)
            for index, (x, y, new, target) in enumerate(sets):
                if (name, str(index), str(number), f"{alpha:g}") in done:
                    continue
                began = perf_counter()
                if number:
                    key = jax.random.key(index)
                    fit = fit_lbfgs(key, model, x, y, guide=guide, objective=objective)
                    found = held_out_scores(key, fit, new, target)
                    smse, smll = scores(found["test_log_density"], found["test_rmse"], y, target)
                    noise = float(fit.params["likelihood/noise"])
                    measured = [smse, smll, float(fit.losses[0, -1]), noise, fit.gap, fit.converged]
                else:
                    measured = exact(x, y, new, target)
                text = [f"{each:.6g}" if isinstance(each, float) else each for each in measured]
                rows.append(path, FIELDS, [name, index, number, f"{alpha:g}", *text])
                print(name, index, number, alpha, *text, f"{perf_counter() - began:.1f} s", flush=True)
        jax.clear_caches()
