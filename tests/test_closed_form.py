"""Power EP in closed form, with powers and blocks of all kinds, against explicit N × N matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import loss, refuse
from fast import few
from jax.test_util import check_grads
from scipy import stats

from ppl_dgp.fit import Posterior, fit_lbfgs
from ppl_dgp.guides import FullRank, Guide
from ppl_dgp.kernels import RBF
from ppl_dgp.models import deep_gp, sparse_gp_regression
from ppl_dgp.numerics.power_mean import log_det_ratio
from ppl_dgp.objectives import Collapsed, PowerEP, collapsed_energy, collapsed_posterior, deterministic_inputs
from ppl_dgp.objectives.factors import Factors
from ppl_dgp.prediction.predict import predict

KEY = jax.random.PRNGKey(3)
RANDOM = np.random.default_rng(3)
N, M = 9, 3
X = jnp.asarray(np.sort(RANDOM.uniform(-2, 2, size=(N, 1)), axis=0))
Y = jnp.asarray(np.sin(2 * X) + 0.2 * RANDOM.normal(size=(N, 1)))
Z = jnp.array([-1.5, 0.1, 1.4])[:, None]
KERNEL, NOISE = RBF(1.3, 0.6), 0.2
LABELS = np.array(
    [4, 0, 4, 4, 0, 7, 7, 4, 0]
)  # blocks of three, four and two rows, none of them in one piece
ROWS = RANDOM.uniform(0.1, 0.5, size=(N, 1))


def dense(alpha, blocks=None, noise=NOISE, z=Z, y=Y, corrected=True):
    """The formula word by word; α per block in the order of the labels, a block per row if there are none."""
    labels = np.arange(N) if blocks is None else blocks
    found, block = np.unique(labels, return_inverse=True)
    powers = np.broadcast_to(alpha, found.shape)
    kxz = KERNEL(X, z)
    low_rank = kxz @ np.linalg.solve(KERNEL(z, z), kxz.T)
    within = np.where(block[:, None] == block, KERNEL(X, X) - low_rank, 0.0)
    variance = np.broadcast_to(np.ravel(noise), (N,))
    covariance = low_rank + powers[block][:, None] * within + np.diag(variance)
    energy = stats.multivariate_normal.logpdf(y[:, 0], None, covariance)
    for b, power in enumerate(powers if corrected else ()):
        here = block == b
        ratio = np.diag(variance[here] ** -0.5) @ within[np.ix_(here, here)] @ np.diag(variance[here] ** -0.5)
        if power == 0.0:
            energy -= 0.5 * np.trace(ratio)
        else:
            energy -= (1 - power) / (2 * power) * np.linalg.slogdet(np.eye(here.sum()) + power * ratio)[1]
    return energy, covariance


def energy(alpha, blocks=None, noise=NOISE, z=Z, **rest):
    found = jax.jit(
        lambda noise: collapsed_energy(KERNEL, z, noise, X, Y, alpha, jitter=0.0, blocks=blocks, **rest)
    )
    return float(found(jnp.asarray(noise)))


EXACT = stats.multivariate_normal.logpdf(Y[:, 0], None, KERNEL(X, X) + NOISE * np.eye(N))
MIXED = np.array([0.0, 0.3, 1.0, 0.5, 0.0, 1.0, 0.2, 0.9, 1e-7])
CASES = {
    "powers per row, zeros among them": (MIXED, None, NOISE),
    "powers and noise per row": (MIXED, None, ROWS),
    "unequal blocks": (0.4, LABELS, NOISE),
    "unequal blocks, noise per row": (0.4, LABELS, ROWS),
    "powers per block, a zero among them": (np.array([0.0, 1.0, 0.3]), LABELS, ROWS),
    "blocks of a variational bound": (0.0, LABELS, ROWS),
    "PITC": (1.0, LABELS, NOISE),
    "the variational bound, one noise": (0.0, None, NOISE),
}


@pytest.mark.parametrize("case", few(CASES, 3))
def test_energy_and_posterior_are_those_of_explicit_matrices(case, monkeypatch):
    alpha, blocks, noise = CASES[case]
    expected, covariance = dense(alpha, blocks, noise)
    assert energy(alpha, blocks, noise) == pytest.approx(expected, abs=1e-9)
    # q(u) = N(Kzx K̄⁻¹ y, Kzz − Kzx K̄⁻¹ Kxz), whitened
    settings = {"jitter": 0.0, "blocks": blocks}
    q = jax.jit(lambda noise: collapsed_posterior(KERNEL, Z, noise, X, Y, alpha, **settings))(
        jnp.asarray(noise)
    )
    lower, kzx = np.linalg.cholesky(KERNEL(Z, Z)), KERNEL(Z, X)
    np.testing.assert_allclose(lower @ q.mean[0], kzx @ np.linalg.solve(covariance, Y[:, 0]), atol=1e-9)
    expected_covariance = KERNEL(Z, Z) - kzx @ np.linalg.solve(covariance, kzx.T)
    np.testing.assert_allclose(lower @ q.covariance()[0] @ lower.T, expected_covariance, atol=1e-9)
    # in pieces of four rows and what remains, with a traced α, which takes no branch of its own
    monkeypatch.setattr(deterministic_inputs, "PIECE_NUMBERS", 4 * len(Z))
    found = jax.jit(lambda a: collapsed_energy(KERNEL, Z, jnp.asarray(noise), X, Y, a, None, 0.0, blocks))(
        jnp.asarray(alpha)
    )
    assert float(found) == pytest.approx(expected, abs=1e-9)
    known = collapsed_energy(KERNEL, Z, jnp.asarray(noise), X, Y, alpha, None, 0.0, blocks)
    assert float(known) == pytest.approx(expected, abs=1e-9)


@pytest.mark.slow
def test_the_corrections_sign_is_that_of_the_variational_limit():
    """Every block structure tends to Titsias' bound, at a rate of first order in α; with a plus none would."""
    bound = dense(0.0)[0]
    for blocks in (None, 4, LABELS, "all"):
        # α as an argument, so that one program serves all
        of = jax.jit(lambda a: collapsed_energy(KERNEL, Z, NOISE, X, Y, a, None, 0.0, blocks))  # noqa: B023
        errors = [float(of(alpha)) - bound for alpha in (1e-3, 1e-4, 1e-6)]
        assert errors[1] / errors[0] == pytest.approx(0.1, rel=0.02)
        assert abs(errors[2]) < 1e-4
        assert energy(0.0, blocks) == pytest.approx(bound, abs=1e-10)
    assert bound < EXACT


def test_cases_with_names():
    named = {
        "vfe": (Collapsed.vfe(), dense(0.0)[0]),
        "fitc": (Collapsed.fitc(), dense(1.0)[0]),
        "pitc": (Collapsed.pitc(LABELS), dense(1.0, LABELS)[0]),
        "dtc": (Collapsed.dtc(), dense(0.0, corrected=False)[0]),
        "exact": (Collapsed.exact(), EXACT),
    }
    model = sparse_gp_regression(M, jitter=0.0)
    params = {"gp/inducing": Z, "gp/variance": jnp.asarray(1.3), "gp/lengthscale": jnp.asarray([0.6])}
    params |= {"likelihood/noise": jnp.asarray(NOISE)}
    for objective, expected in named.values():
        found = -loss(objective, params, model, Guide(model), X, Y)
        assert found == pytest.approx(expected, abs=1e-9)
    # DTC is no bound: it lies above Titsias' by the term it leaves out
    assert named["dtc"][1] > named["vfe"][1]


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_with_inducing_inputs_at_the_data_all_are_exact(alpha):
    for blocks in (None, LABELS):
        assert energy(alpha, blocks, z=X) == pytest.approx(EXACT, abs=1e-8)


def test_one_block_of_all_rows_is_the_exact_evidence_for_any_inducing_inputs():
    for z in (Z, jnp.array([[9.0]])):
        assert energy(1.0, "all", z=z) == pytest.approx(EXACT, abs=1e-9)
        assert energy(1.0, N + 5, z=z) == pytest.approx(EXACT, abs=1e-9)


def test_more_inducing_inputs_never_lower_the_variational_bound():
    bounds = [energy(0.0, z=jnp.concatenate([Z, X[:k]])) for k in (0, 2, 4)]
    assert bounds == sorted(bounds) and bounds[-1] <= EXACT


def test_the_order_of_rows_does_not_matter():
    order = RANDOM.permutation(N)
    alphas = np.array([0.0, 1.0, 0.3])
    for alpha, blocks in ((MIXED, None), (alphas, LABELS)):
        moved = alpha if blocks is not None else alpha[order]
        labels = None if blocks is None else blocks[order]
        noise = jnp.asarray(ROWS[order])
        settings = moved, None, 0.0, labels
        found = jax.jit(lambda x, y: collapsed_energy(KERNEL, Z, noise, x, y, *settings))(X[order], Y[order])  # noqa: B023
        assert float(found) == pytest.approx(energy(alpha, blocks, ROWS), abs=1e-9)


def test_columns_with_noise_of_their_own_are_columns_on_their_own():
    y = jnp.concatenate([Y, jnp.cos(X)], 1)
    for alpha, blocks in ((0.5, None), (0.5, LABELS)):
        of = jax.jit(lambda noise: collapsed_energy(KERNEL, Z, noise, X, y, alpha, None, 0.0, blocks))  # noqa: B023
        both = of(jnp.array([0.2, 0.7]))
        parts = [dense(alpha, blocks, noise, y=y[:, p : p + 1])[0] for p, noise in enumerate((0.2, 0.7))]
        assert float(both) == pytest.approx(sum(parts), abs=1e-9)
        # one noise for both: the factorisation is shared
        both = of(0.2)
        parts = [dense(alpha, blocks, 0.2, y=y[:, p : p + 1])[0] for p in range(2)]
        assert float(both) == pytest.approx(sum(parts), abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    few(
        [
            "powers and noise per row",
            "powers per block, a zero among them",
            "the variational bound, one noise",
        ],
        1,
    ),
)
def test_gradients_are_finite_differences(case, monkeypatch):
    monkeypatch.setattr(deterministic_inputs, "PIECE_NUMBERS", 4 * len(Z))
    alpha, blocks, noise = CASES[case]

    def of(log_scales, z, rows):
        kernel = RBF(jnp.exp(log_scales[0]), jnp.exp(log_scales[1]))
        return collapsed_energy(kernel, z, jnp.exp(rows), X, Y, alpha, None, 0.0, blocks)

    at = (jnp.array([0.2, -0.5]), Z, jnp.log(jnp.asarray(noise)))
    check_grads(jax.jit(of), at, order=1, modes=["rev"], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("alpha", "blocks"), few([(0.0, None), (0.4, None), (0.4, LABELS), (1.0, LABELS)], 2)
)
def test_entries_may_be_missing(alpha, blocks):
    """Infinite noise leaves an entry out of its block, in each column others; as if there were no such rows."""
    y = jnp.concatenate([Y, Y**2], 1)
    gaps = np.zeros((N, 2), bool)
    gaps[[0, 1, 5], [0, 0, 1]] = gaps[LABELS == 7, 0] = True
    own = lambda keep: dict(jitter=0.0, blocks=None if blocks is None else blocks[keep])
    noise, known = jnp.where(gaps, jnp.inf, NOISE), jnp.where(gaps, 0.0, y)
    together = jax.jit(lambda z: collapsed_energy(KERNEL, z, noise, X, known, alpha, **own(slice(None))))
    parts = [
        collapsed_energy(KERNEL, Z, NOISE, X[keep], y[keep, p : p + 1], alpha, **own(keep))
        for p, keep in enumerate(~gaps.T)
    ]
    assert float(together(Z)) == pytest.approx(float(sum(parts)), abs=1e-10)
    assert np.isfinite(jax.grad(together)(Z)).all()


def test_the_log_determinant_over_alpha_is_accurate_at_every_alpha():
    root = RANDOM.normal(size=(4, 4))
    matrix = root @ root.T
    eigenvalues = np.linalg.eigvalsh(matrix)
    for alpha in (0.0, 1e-12, 1e-9, 1e-7, 1e-6, 1e-4, 0.5, 1.0):
        log_det = np.linalg.slogdet(np.eye(4) + alpha * matrix)[1]
        exact = np.log1p(alpha * eigenvalues).sum() / alpha if alpha else np.trace(matrix)
        found = float(log_det_ratio(jnp.asarray(alpha), jnp.asarray(matrix), jnp.asarray(log_det)))
        assert found == pytest.approx(exact, rel=1e-9)


@pytest.mark.slow
def test_a_fit_with_blocks_ends_at_its_posterior_and_predicts():
    model = sparse_gp_regression(M)
    guide = Guide(model, inducing=FullRank())
    objective = Collapsed.pitc(LABELS)
    fit = fit_lbfgs(KEY, model, X, Y, guide=guide, objective=objective, steps=4)
    assert fit.losses[0, -1] < fit.losses[0, 0]
    params = fit.params
    kernel = RBF(params["gp/variance"], params["gp/lengthscale"])
    at = (kernel, params["gp/inducing"], params["likelihood/noise"], X, Y, 1.0)
    value, q = jax.jit(
        lambda *at: (collapsed_energy(*at, blocks=LABELS), collapsed_posterior(*at, blocks=LABELS))
    )(*at)
    assert -float(value) == pytest.approx(fit.losses[0, -1], rel=1e-9)
    np.testing.assert_allclose(params["gp/u_loc"], q.mean, rtol=1e-7)
    # prediction at new rows is the ordinary sparse one, u ~ q(u)
    new, z = jnp.array([[0.3], [2.5]]), params["gp/inducing"]
    lower = np.linalg.cholesky(kernel(z, z) + 1e-8 * params["gp/variance"] * np.eye(M))
    phi = np.linalg.solve(lower, kernel(z, new))
    found = predict(KEY, Posterior(model, guide, params), new)
    np.testing.assert_allclose(found.f_mean, phi.T @ q.mean.T, rtol=1e-6)
    spread = kernel.diag(new) - np.diag(phi.T @ (np.eye(M) - q.covariance()[0]) @ phi)
    np.testing.assert_allclose(found.f_variance[:, 0], spread, rtol=1e-6)


def test_a_power_ep_bound_of_each_row_at_the_posterior_is_the_energy():
    """An objective that knows nothing of this one: its bound at q(u) is the energy (one α for all)."""
    model = sparse_gp_regression(M, jitter=0.0)
    params = {"gp/inducing": Z, "gp/variance": jnp.asarray(1.3), "gp/lengthscale": jnp.asarray([0.6])}
    params |= {"likelihood/noise": jnp.asarray(NOISE)}
    q = jax.jit(lambda noise: collapsed_posterior(KERNEL, Z, noise, X, Y, 0.7, jitter=0.0))(NOISE)
    params |= {"gp/u_loc": q.mean, "gp/u_scale": q.scale}
    found = -loss(PowerEP(0.7), params, model, Guide(model), X, Y)
    assert found == pytest.approx(energy(0.7), abs=1e-9)


def test_refusals_say_what_was_expected():
    with pytest.raises(ValueError, match=r"found 1.5 at position 1, expected numbers in \[0, 1\]"):
        Factors.checked("Collapsed", np.array([0.0, 1.5]))
    with pytest.raises(ValueError, match="expected numbers of shape"):
        Factors.checked("Collapsed", np.ones((2, 2)))
    with pytest.raises(ValueError, match="found 3 powers, expected 9, one per row"):
        energy(np.array([0.0, 0.5, 1.0]))
    with pytest.raises(ValueError, match="found 9 powers, expected 3, one per block"):
        energy(MIXED, LABELS)
    with pytest.raises(ValueError, match="found 8 labels, expected 9"):
        Factors.checked("Collapsed", 0.5, LABELS[1:]).members(N)
    with pytest.raises(ValueError, match="found a block of 6000 rows, expected at most 5000"):
        Factors.checked("Collapsed", 1.0, "all").members(6000)
    with pytest.raises(ValueError, match="found 0, expected at least 1 row"):
        Factors.checked("Collapsed", 1.0, 0)
    with pytest.raises(TypeError, match="found str, expected a number of rows, 'all', or an array"):
        Factors.checked("Collapsed", 1.0, "rows")
    model = deep_gp((1,), M)
    with pytest.raises(ValueError, match="hidden layers"):
        refuse(Collapsed.dtc(), {}, model, Guide(model), X, Y)
