"""Restarts of a latent variable model in one frame, and their export: turned copies come back, r-hat then sees it."""

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from numpyro.handlers import seed, substitute, trace
from scipy.special import logsumexp
from scipy.stats import norm, ortho_group

from ppl_dgp.diagnostics import aligned, load_arviz, save_arviz, to_arviz
from ppl_dgp.diagnostics.arviz_api import container, group
from ppl_dgp.diagnostics.draws import joint_draws
from ppl_dgp.fit import Posterior, fit_svi
from ppl_dgp.guides import Guide, MeanField
from ppl_dgp.models import gplvm
from ppl_dgp.objectives import PowerEP

KEY = jax.random.key(3)
RNG = np.random.default_rng(0)
ROWS, WIDTH, DRAWS = 20, 3, 50
#: one cloud of rows, well apart for its noise
CHAIN = RNG.normal(size=(ROWS, WIDTH)) * [2.0, 1.0, 0.5] + 0.05 * RNG.normal(size=(DRAWS, ROWS, WIDTH))


def worst_rhat(draws):
    names = ["chain", "draw", "row", "latent"]
    coords = {name: np.arange(size) for name, size in zip(names, draws.shape, strict=True)}
    posterior = xr.Dataset({"x": (names, draws)}, coords)
    return float(az.rhat(container({"posterior": posterior}, {}))["x"].max())


def test_turned_mirrored_and_permuted_copies_come_back_exactly():
    mirror = np.diag([1.0, -1.0, 1.0])
    permutation = np.eye(WIDTH)[[2, 0, 1]]
    turns = [np.eye(WIDTH), ortho_group.rvs(WIDTH, random_state=1), mirror, permutation]
    found, transforms = aligned(np.stack([CHAIN @ turn for turn in turns]))
    np.testing.assert_allclose(found, np.broadcast_to(CHAIN, found.shape), atol=1e-12)
    np.testing.assert_allclose(transforms, [turn.T for turn in turns], atol=1e-12)


def test_a_chain_is_turned_as_a_whole_and_about_the_origin():
    moved = CHAIN @ ortho_group.rvs(WIDTH, random_state=2) + [1.0, 0.0, -3.0]
    found, transforms = aligned(np.stack([CHAIN, moved]))
    np.testing.assert_allclose(transforms @ transforms.transpose(0, 2, 1), [np.eye(WIDTH)] * 2, atol=1e-12)
    # the prior N(0, I) sees no difference
    np.testing.assert_allclose(np.linalg.norm(found[1], axis=-1), np.linalg.norm(moved, axis=-1))
    # the shift was left, and is the same for all rows
    shift = found[1] - CHAIN
    np.testing.assert_allclose(shift, np.broadcast_to(shift[0, 0], shift.shape), atol=1e-12)
    assert np.linalg.norm(shift[0, 0]) == pytest.approx(np.sqrt(10.0))


def test_the_reference_is_a_chain_or_latents():
    turn = ortho_group.rvs(WIDTH, random_state=3)
    draws = np.stack([CHAIN, CHAIN @ turn])
    found, transforms = aligned(draws, 1)
    np.testing.assert_allclose(found, np.stack([draws[1]] * 2), atol=1e-12)
    np.testing.assert_array_equal(transforms[1], np.eye(WIDTH))
    found, _ = aligned(draws, CHAIN.mean(0))
    np.testing.assert_allclose(found, np.stack([CHAIN] * 2), atol=1e-12)


def test_rhat_is_near_one_after_alignment_alone():
    # every chain draws anew from one posterior and is then turned
    chains = [CHAIN.mean(0) + 0.05 * RNG.normal(size=(400, ROWS, WIDTH)) for _ in range(4)]
    draws = np.stack([c @ ortho_group.rvs(WIDTH, random_state=i) for i, c in enumerate(chains)])
    assert worst_rhat(draws) > 1.4
    assert worst_rhat(aligned(draws)[0]) < 1.05
    # another arrangement of the rows is no turn; one chain of four at odds has a rank r-hat of about 1.5
    draws[3] = draws[3][:, ::-1]
    assert worst_rhat(aligned(draws)[0]) > 1.4


@pytest.mark.parametrize(
    ("draws", "reference", "message"),
    [
        (CHAIN, 0, r"draws: found shape \(50, 20, 3\), expected \(C, S, N, Q\)"),
        (np.stack([CHAIN, CHAIN * np.nan]), 0, "not finite in chain 1"),
        (CHAIN[None], 1, "reference: found 1, expected a chain from 0 to 0"),
        (CHAIN[None], CHAIN[0, :5], r"reference: found shape \(5, 3\), expected \(20, 3\)"),
    ],
)
def test_what_cannot_be_aligned_is_refused(draws, reference, message):
    with pytest.raises(ValueError, match=message):
        aligned(draws, reference)


@pytest.fixture(scope="module")
def table():
    z = RNG.normal(size=(ROWS, 2))
    y = np.hstack([np.sin(z), z @ RNG.normal(size=(2, 2))]) + 0.1 * RNG.normal(size=(ROWS, 4))
    y[3, 1] = y[7, [0, 2]] = np.nan
    return y


@pytest.fixture(scope="module")
def fit(table):
    model = gplvm(4, latent=2, num_inducing=6, start="random", missing=True)
    guide = Guide(model, hidden=MeanField())
    return fit_svi(KEY, model, guide, PowerEP(0.0), None, table, steps=30, restarts=2)


@pytest.fixture(scope="module")
def data(fit, table):
    return to_arviz(KEY, fit, None, table, num_draws=10, num_locals=2)


@pytest.mark.slow
def test_latents_are_exported_in_one_frame(fit, table, data, tmp_path):
    save_arviz(data, tmp_path / "gplvm.nc")
    data = load_arviz(tmp_path / "gplvm.nc")
    posterior, constants = group(data, "posterior"), group(data, "constant_data")
    assert dict(posterior["x"].sizes) == dict(chain=2, draw=10, row=ROWS, latent=2)
    np.testing.assert_array_equal(posterior["latent"], [0, 1])
    assert posterior.attrs["aligned"] == f"x: rotated towards chain {fit.best}"
    assert "x" not in constants and constants["x.rotation"].dims == ("chain", "latent_of_chain", "latent")
    plain = to_arviz(KEY, fit, None, table, num_draws=10, num_locals=2, align=False)
    own = group(plain, "posterior")
    assert "aligned" not in own.attrs and "x.rotation" not in group(plain, "constant_data")
    found, turns = aligned(own["x"].values, fit.best)
    np.testing.assert_allclose(posterior["x"], found)
    np.testing.assert_allclose(constants["x.rotation"], turns)
    # and back into the frame of the chain's inducing inputs
    np.testing.assert_allclose(
        posterior["x"].values @ turns[:, None].transpose(0, 1, 3, 2), own["x"], atol=1e-12
    )
    others = [name for name in own if name != "x"]
    assert all(np.array_equal(own[name], posterior[name]) for name in others)


@pytest.mark.slow
def test_missing_entries_stay_missing(table, data):
    np.testing.assert_array_equal(group(data, "observed_data")["y"], table)
    assert np.isfinite(group(data, "log_likelihood")["y"]).all()
    replicated = group(data, "posterior_predictive")["y"]
    assert dict(replicated.sizes) == dict(chain=2, draw=10, row=ROWS, target=4)
    assert np.isfinite(replicated).all()
    assert len(az.summary(data, var_names=["x"])) == 2 * ROWS


@pytest.mark.slow
def test_log_likelihood_is_of_the_entries_that_are_there_x_averaged_out(fit, table):
    # under q(x) = p(x) the weights of the average are p(y_n | x, u), whose variance the square knows too
    prior = {
        "x_loc": jnp.zeros((ROWS, 2)),
        "x_scale": jnp.ones((ROWS, 2)),
        "likelihood/noise": jnp.asarray(1.0),
    }
    assert set(prior) < set(fit.params)
    params = {**fit.params, **prior}
    draws = joint_draws(
        KEY, Posterior(fit.model, fit.guide, params), None, table, num_draws=1, num_locals=20_000
    )
    assert draws.latents == {"x"}
    fixed = {**params, "gp/u": jnp.asarray(draws.sites["gp/u"][0])}
    # ∫ p(y_n | x, u) N(x; 0, I) dx by the trapezium rule on a square
    line, step = np.linspace(-5.0, 5.0, 81, retstep=True)
    grid = np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)

    def at(point):
        values = {**fixed, "x": jnp.broadcast_to(point, (ROWS, 2))}
        model = substitute(seed(fit.model, KEY), values)
        sites = trace(model).get_trace(jnp.zeros((ROWS, 0)), jnp.asarray(table))
        return sites["y"]["fn"].mean, sites["y"]["fn"].variance

    mean, variance = (np.asarray(each) for each in jax.lax.map(at, jnp.asarray(grid)))
    each = np.where(np.isnan(table), 0.0, norm.logpdf(table, mean, np.sqrt(variance)))
    prior_density = norm.logpdf(grid).sum(1)[:, None]
    truth, square = (
        logsumexp(power * each.sum(2) + prior_density, axis=0) + 2 * np.log(step) for power in (1, 2)
    )
    error = np.sqrt(np.expm1(square - 2 * truth) / 20_000)
    assert (abs(draws.log_likelihood[0] - truth) < 4 * error).all() and np.median(error) < 0.02
