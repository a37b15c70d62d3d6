"""Inducing features under guides and objectives: dense energies, and points in another guise."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from compiled import initial, loss
from fast import few

from ppl_dgp.fit import fit_lbfgs
from ppl_dgp.gp.contract import hidden_role
from ppl_dgp.gp.eigenfunctions import Eigenfunctions, ReducedRank
from ppl_dgp.gp.features import Joined, Points, cross
from ppl_dgp.gp.fourier import Fourier
from ppl_dgp.gp.functionals import Derivatives
from ppl_dgp.gp.means import Linear
from ppl_dgp.gp.representation import offer
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.windows import GaussianWindows
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import (
    AcrossOutputs,
    Conditional,
    Coupled,
    Decoupled,
    DoublyStochastic,
    Guide,
    LayerChain,
    LowRank,
    Markov,
)
from ppl_dgp.guides.nesting import nested_start
from ppl_dgp.kernels import RBF, Matern32, Matern52
from ppl_dgp.objectives import Collapsed, PowerEP

KEY = jax.random.key(0)
X = jnp.linspace(-1.2, 1.3, 12)[:, None]
Y = jnp.sin(3.0 * X) + 0.1 * jnp.cos(17.0 * X)
NOISE = 0.04
Z = jnp.array([[-0.9], [0.1], [1.1]])
SLOPES = Derivatives(Z, jnp.ones((3, 1)))
BOX = Eigenfunctions((-3.0,), (3.0,), (6,))
CASES = {
    "fourier": (Matern32(1.2, 0.7), Fourier(-2.0, 2.0, 4)),
    "values and slopes": (Matern52(0.9, 0.6), Joined((Points(Z), SLOPES))),
    "windows": (RBF(1.1, 0.6), GaussianWindows(Z, jnp.full((3, 1), 0.3))),
    "eigenfunctions": (ReducedRank(RBF(1.1, 0.6), BOX), BOX),
}


def regression(kernel, inducing):
    """One sparse GP, of which nothing but q(u) is learnt."""

    def model(x, y=None, index=None, size=None):
        f = sparse_gp("f", kernel, inducing, jitter=0.0)
        with data_plate(size or x.shape[0], index):
            return numpyro.sample("y", f(x).noisy(jnp.asarray(NOISE, x.dtype)), obs=y)

    return model


def dense_energy(kernel, inducing, alpha):
    """log N(y; 0, Q + α diag(K − Q) + s² I) and the corrections of power EP (docs/design.md, 4)."""
    kxu, kuu = np.asarray(cross(kernel, X, inducing)), np.asarray(inducing.covariance(kernel))
    q = kxu @ np.linalg.solve(kuu, kxu.T)
    left = np.asarray(kernel.diag(X)) - np.diag(q)
    covariance = q + np.diag(alpha * left + NOISE)
    y = np.asarray(Y[:, 0])
    density = -0.5 * (y @ np.linalg.solve(covariance, y) + np.linalg.slogdet(2.0 * np.pi * covariance)[1])
    if alpha == 0.0:
        return density - 0.5 * left.sum() / NOISE
    return density - 0.5 * (1.0 - alpha) / alpha * np.log1p(alpha * left / NOISE).sum()


@pytest.mark.parametrize("alpha", [0.0, 0.5])
@pytest.mark.parametrize("case", CASES)
def test_the_collapsed_energy_is_that_of_dense_matrices(case, alpha):
    model = regression(*CASES[case])
    guide = Guide(model)
    params = initial(KEY, model, guide, X, Y)
    found = -loss(Collapsed(alpha), params, model, guide, X, Y)
    assert float(found) == pytest.approx(dense_energy(*CASES[case], alpha), abs=1e-8)


@pytest.mark.parametrize("case", CASES)
def test_32_bits(case):
    kernel, inducing = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), CASES[case])
    model = regression(kernel, inducing)
    x, y = X.astype(jnp.float32), Y.astype(jnp.float32)
    guide = Guide(model)
    with jax.enable_x64(False):
        params = initial(KEY, model, guide, x, y)
        found = -loss(Collapsed(), params, model, guide, x, y)
    assert {value.dtype for value in params.values()} == {jnp.dtype("float32")}
    # Kuu has a condition number of 1e3 or so, and rounding of 1e-7
    assert float(found) == pytest.approx(dense_energy(*CASES[case], 0.0), rel=1e-3)


def deep(inducing):
    """Two layers, the first with the inducing outputs in question."""
    kernel = Matern32(1.0, 0.9) if isinstance(inducing, Fourier) else RBF(1.0, 0.9)

    def model(x, y=None, index=None, size=None):
        warp = sparse_gp("warp", kernel, inducing, mean=Linear(jnp.eye(1)))
        f = sparse_gp("f", RBF(1.0, 0.7), Z)
        with data_plate(size or x.shape[0], index):
            h = offer("h", numpyro.sample("h", warp(x).noisy(0.05), infer=hidden_role()))
            return numpyro.sample("y", f(h).noisy(NOISE), obs=y)

    return model


@pytest.mark.parametrize(
    "rule, objective",
    [
        (Conditional(), PowerEP(0.5, 3)),
        (Markov(), PowerEP(0.0, propagation="moments")),
        pytest.param(DoublyStochastic(), PowerEP(0.5, 3), marks=pytest.mark.slow),
        pytest.param(Conditional(free=True), PowerEP(0.0), marks=pytest.mark.slow),
    ],
)
def test_every_rule_takes_values_as_features_for_inducing_points(rule, objective):
    """Whatever a guide makes of u: the same losses, of which closed forms go another way."""
    same_losses(objective, hidden=rule)


@pytest.mark.parametrize(
    "rule",
    [
        Coupled(),
        AcrossOutputs(),
        Decoupled(2, "weights"),
        pytest.param(LayerChain(), marks=pytest.mark.slow),
        pytest.param(LowRank(1), marks=pytest.mark.slow),
        pytest.param(Decoupled(2, "full"), marks=pytest.mark.slow),
    ],
    ids=repr,
)
def test_every_inducing_rule_does_too(rule):
    same_losses(PowerEP(0.5, 3), inducing=rule)


def same_losses(objective, **rules):
    models = deep(Z), deep(Points(Z))
    guides = [Guide(model, **rules) for model in models]
    params = initial(KEY, models[0], guides[0], X, Y)
    ends = [loss(objective, params, model, guide, X, Y) for model, guide in zip(models, guides, strict=True)]
    assert float(ends[1]) == pytest.approx(float(ends[0]), rel=1e-9)


@pytest.mark.parametrize("case", few(CASES, 1))
def test_natural_gradients_find_the_best_q(case):
    """Under Gaussian noise one step of size 1 is there."""
    model = regression(*CASES[case])
    fit = fit_lbfgs(KEY, model, X, Y, guide=Guide(model), objective=PowerEP(0.0), natural=True)
    assert -fit.losses[0, -1] == pytest.approx(dense_energy(*CASES[case], 0.0), abs=1e-6)


@pytest.mark.slow
def test_nested_starts_carry_features_along():
    """A richer rule begins where the poorer one is: q(u) of each layer has the same moments."""
    model = deep(CASES["fourier"][1])
    poorer, richer = Guide(model, hidden=Markov()), Guide(model, hidden=Markov(), inducing=Coupled())
    params = initial(KEY, model, poorer, X, Y)
    params = {name: value + 0.1 if name.endswith("u_loc") else value for name, value in params.items()}
    start = nested_start(poorer, richer, params, X, Y)
    found = [
        -loss(PowerEP(0.0, 400), each, model, guide, X, Y)
        for each, guide in ((params, poorer), (start, richer))
    ]
    # of 400 draws of each: u is drawn by the richer rule, integrated by the poorer
    assert float(found[1]) == pytest.approx(float(found[0]), rel=0.05)
