"""Training against closed forms: Bayesian linear regression, ridge regression, least squares."""

import os
import signal
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
import threadpoolctl
from fast import few
from numpyro.distributions import constraints
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal

from ppl_dgp.checkpoint import CheckpointError
from ppl_dgp.fit import (
    FitError,
    HeldDrawsWarning,
    Interrupted,
    JitterWarning,
    fit_lbfgs,
    fit_svi,
    full_batch,
    training,
)
from ppl_dgp.fit.minibatches import minibatches
from ppl_dgp.numerics.linalg import cholesky

NOISE = 0.3
ROWS = 60
KEY = jax.random.key(3)
ELBO = Trace_ELBO()


@pytest.fixture(scope="module")
def table():
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, 2))
    return x, x @ np.array([1.0, -0.5]) + NOISE * random.normal(size=ROWS)


def bayesian(x, y=None, index=None, size=None):
    """w ~ N(0, I), y_n ~ N(wᵀx_n, 0.3²)."""
    w = numpyro.sample("w", dist.Normal(jnp.zeros((2, 1)), 1.0).to_event(2))
    with numpyro.handlers.scale(scale=(size or len(x)) / len(x)), numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(x @ w, NOISE).to_event(1), obs=y)


def least_squares(x, y=None):
    w = numpyro.param("value", jnp.zeros((2, 1)))
    noise = numpyro.param("noise", 2.0, constraint=constraints.positive)
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(x @ w, noise).to_event(1), obs=y)


def posterior(x, y):
    """Σ = (I + XᵀX/s²)⁻¹, µ = ΣXᵀy/s², and the log evidence log N(y; 0, XXᵀ + s²I)."""
    covariance = np.linalg.inv(np.eye(2) + x.T @ x / NOISE**2)
    evidence = dist.MultivariateNormal(jnp.zeros(len(x)), x @ x.T + NOISE**2 * np.eye(len(x))).log_prob(y)
    return covariance @ x.T @ y / NOISE**2, covariance, float(evidence)


GUIDE = AutoNormal(bayesian)


def short(table, steps=60, **settings):
    settings = {"batch_size": 10, "chunk": 20} | settings
    return fit_svi(KEY, bayesian, GUIDE, ELBO, *table, steps=steps, **settings)


def same_bits(one, other):
    np.testing.assert_array_equal(one.losses, other.losses)
    for name in one.restart_params:
        np.testing.assert_array_equal(one.restart_params[name], other.restart_params[name])


@pytest.mark.parametrize("batch_size", few([None, 20], 1))
def test_posterior_of_linear_regression(table, batch_size):
    # The exact posterior is in the family; the decaying rate takes the gradients' noise away.
    guide = AutoMultivariateNormal(bayesian)
    rate = optax.cosine_decay_schedule(0.03, 4000)
    fit = fit_svi(KEY, bayesian, guide, ELBO, *table, steps=4000, learning_rate=rate, batch_size=batch_size)
    mean, covariance, evidence = posterior(*table)
    np.testing.assert_allclose(fit.params["auto_loc"], mean, atol=0.01)
    found = fit.params["auto_scale_tril"]
    np.testing.assert_allclose(found @ found.T, covariance, rtol=0.15, atol=5e-5)
    if batch_size is None:  # at the optimum every draw of the ELBO is the evidence
        np.testing.assert_allclose(-fit.losses[0, -200:].mean(), evidence, atol=0.02)
    assert fit.rejected_steps == 0 and fit.steps == 4000 and fit.losses.shape == (1, 4000)


@pytest.mark.slow
def test_full_batch_does_not_depend_on_chunks(table):
    same_bits(short(table, batch_size=None, chunk=7), short(table, batch_size=None, chunk=60))


def test_restarts_are_the_single_fits_side_by_side(table):
    fit = fit_svi(KEY, bayesian, AutoNormal(bayesian), ELBO, *table, steps=40, restarts=3, batch_size=10)
    assert fit.losses.shape == (3, 40) and fit.restart_params["w_auto_loc"].shape == (3, 2, 1)
    assert len(np.unique(fit.restart_params["w_auto_loc"][:, 0, 0])) == 3
    assert fit.best == np.argmin(fit.losses[:, -4:].mean(axis=1))
    np.testing.assert_array_equal(fit.params["w_auto_loc"], fit.restart_params["w_auto_loc"][fit.best])


def test_restarts_of_a_guide_that_was_called_begin_apart(table):
    guide = AutoNormal(bayesian)
    fits = [
        fit_svi(KEY, bayesian, guide, ELBO, *table, steps=1, restarts=3, batch_size=10, learning_rate=1e-9)
        for _ in range(2)
    ]
    assert len(np.unique(fits[1].restart_params["w_auto_loc"][:, 0, 0])) == 3
    same_bits(*fits)


def compilations(call):
    """How many programs XLA builds while `call` runs."""
    built = []

    def listen(event: str, duration_secs: float, **_: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            built.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        call()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return len(built)


@pytest.mark.parametrize("settings", few([{}, {"restarts": 2}, {"optimizer": optax.sgd(1e-4)}], 1))
def test_a_second_fit_compiles_nothing(table, settings):
    other = (table[0] + 1.0, 2.0 * table[1])
    assert compilations(lambda: short(table, **settings)) > 0
    assert compilations(lambda: short(other, steps=70, **settings)) == 0
    assert compilations(lambda: short((table[0][1:], table[1][1:]), **settings)) > 0


def test_constraints_of_other_data_are_not_taken_from_the_cache(table):
    def model(x, y=None):
        bound = numpyro.param("m", jnp.max(x) / 2, constraint=constraints.interval(0.0, jnp.max(x)))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(bound, NOISE).expand([1]).to_event(1), obs=y)

    def nothing(x, y=None):
        pass

    for scale in (1.0, 3.0):
        x = np.full((5, 1), scale)
        fit = fit_svi(KEY, model, nothing, ELBO, x, 10 * x, steps=400, learning_rate=0.1)
        np.testing.assert_allclose(fit.params["m"], scale, rtol=0.01)


@pytest.mark.parametrize(
    "settings", [{}, {"restarts": 2}, {"batch_size": None}, {"chunk": 3, "batch_size": 4}]
)
@pytest.mark.parametrize("chunks", [1, 2])
def test_resumed_equals_uninterrupted(table, tmp_path, settings, chunks):
    steps = chunks * settings.get("chunk", 20)

    def stop(done, losses):
        if done == steps:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        short(table, checkpoint=tmp_path, on_chunk=stop, **settings)
    assert caught.value.fit.steps == steps
    whole = short(table, **settings)
    same_bits(short(table, checkpoint=tmp_path, resume=True, **settings), whole)
    np.testing.assert_array_equal(caught.value.fit.losses, whole.losses[:, :steps])
    same_bits(short(table, checkpoint=tmp_path, resume=True, **settings), whole)  # nothing left to do


def test_interrupted_within_a_chunk_and_resumed(table, tmp_path, monkeypatch, ctrl_c):
    @contextmanager
    def press(show, done, total):
        yield lambda step, losses: os.kill(os.getpid(), signal.SIGINT) if step > 25 and done == 0 else None

    monkeypatch.setattr(training, "progress_bar", press)
    monkeypatch.setattr(training, "PIECE_SECONDS", 0.0)  # one step at a time
    with pytest.raises(Interrupted, match="after 26 steps"):
        short(table, checkpoint=tmp_path)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.undo()
    same_bits(short(table, checkpoint=tmp_path, resume=True), short(table))


def test_a_saved_chunk_may_be_resumed_for_longer(table, tmp_path):
    short(table, checkpoint=tmp_path, checkpoint_every=1)
    same_bits(short(table, steps=100, checkpoint=tmp_path, resume=True), short(table, steps=100))


def test_resuming_another_fit_is_an_error(table, tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        short(table, checkpoint=tmp_path, resume=True)
    short(table, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="made with other data"):
        short((table[0], table[1] + 1), checkpoint=tmp_path, resume=True)
    with pytest.raises(CheckpointError, match="made with batch_size 10, found 11"):
        short(table, checkpoint=tmp_path, resume=True, batch_size=11)
    with pytest.raises(CheckpointError, match="is of another fit"):
        guide = AutoMultivariateNormal(bayesian)
        fit_svi(
            KEY,
            bayesian,
            guide,
            ELBO,
            *table,
            steps=60,
            batch_size=10,
            chunk=20,
            checkpoint=tmp_path,
            resume=True,
        )


@pytest.mark.parametrize("bits", [32, 64])
def test_numbers_whose_slopes_would_overflow_are_refused(table, bits):
    x, y = (np.asarray(each, float) for each in table)
    scale = {32: 1e10, 64: 1e77}[bits]
    with jax.enable_x64(bits == 64):
        fits = lambda x, y: fit_svi(KEY, bayesian, GUIDE, ELBO, x, y, steps=1)
        with pytest.raises(ValueError, match=f"x: found .*, expected at most .* in {bits} bits.*standardise"):
            fits(scale * x, y)
        with pytest.raises(ValueError, match=r"y: found .*, expected at most .* standardise"):
            fits(x, scale * y)


class Flaky(Trace_ELBO):
    """Not finite in a share of the steps."""

    def __init__(self, share):
        super().__init__()
        self.share = share

    def loss(self, rng_key, *args, **kwargs):
        bad = jax.random.uniform(rng_key) < self.share
        return jnp.where(bad, jnp.nan, super().loss(rng_key, *args, **kwargs))


def test_steps_that_are_not_finite_are_rejected_and_counted(table):
    fit = fit_svi(KEY, bayesian, GUIDE, Flaky(0.3), *table, steps=300)
    assert fit.rejected_steps == np.isnan(fit.losses).sum()
    assert 50 < fit.rejected_steps < 130  # Binomial(300, 0.3): five standard deviations
    assert np.isfinite(fit.params["w_auto_loc"]).all()
    steady = fit_svi(KEY, bayesian, GUIDE, ELBO, *table, steps=300)  # the same draws, none rejected
    first = np.flatnonzero(np.isnan(fit.losses[0]))[0]
    np.testing.assert_array_equal(fit.losses[0, :first], steady.losses[0, :first])


def test_too_many_rejected_in_a_row_is_an_error(table):
    with pytest.raises(FitError, match="found 50 steps in a row .* lower the learning rate"):
        fit_svi(KEY, bayesian, GUIDE, Flaky(1.0), *table, steps=300)
    short(table, steps=49)  # fewer than the limit
    fit_svi(KEY, bayesian, GUIDE, Flaky(1.0), *table, steps=49)


def test_a_lost_restart_does_not_stop_the_others():
    def model(x, y=None):
        start = numpyro.param("start", lambda key: jax.random.normal(key))
        numpyro.factor("y", jnp.sqrt(start) - start)

    x = np.ones((4, 1))
    fit = fit_svi(KEY, model, lambda x, y=None: None, ELBO, x, x, steps=100, restarts=6)
    lost = np.isnan(fit.losses).all(axis=1)
    assert lost.any() and not lost.all() and not lost[fit.best]
    assert fit.rejected_steps == 100 * lost.sum()


def test_stops_when_the_smoothed_loss_no_longer_falls(table):
    fit = short(table, steps=5000, patience=100, chunk=50)
    assert 200 <= fit.steps < 5000 and fit.steps % 50 == 0 and fit.losses.shape == (1, fit.steps)
    now, before = fit.losses[0, -100:].mean(), fit.losses[0, -200:-100].mean()
    assert now >= before
    assert np.isfinite(fit.losses).all()


@pytest.mark.parametrize(("chunk", "batch", "rows"), [(10, 7, 30), (6, 5, 30), (3, 7, 30), (1, 30, 30)])
def test_minibatches(chunk, batch, rows):
    words = np.array([1, 2], np.uint32)
    drawn = [minibatches(words, number, chunk, batch, rows) for number in range(2000)]
    assert drawn[0].shape == (chunk, batch) and drawn[0].min() >= 0 and drawn[0].max() < rows
    np.testing.assert_array_equal(drawn[1], minibatches(words, 1, chunk, batch, rows))
    assert all(len(set(one)) == batch for each in drawn[:100] for one in each)
    if chunk * batch >= rows:  # epochs without replacement, less what is no minibatch
        epoch = drawn[0].ravel()[: rows // batch * batch]
        assert len(set(epoch)) == len(epoch)
    expected = 2000 * chunk * batch / rows
    counts = np.bincount(np.concatenate(drawn).ravel(), minlength=rows)
    np.testing.assert_allclose(counts, expected, atol=5 * np.sqrt(expected))


def test_raw_keys_and_seconds(table):
    raw = fit_svi(jax.random.key_data(KEY), bayesian, GUIDE, ELBO, *table, steps=60, batch_size=10, chunk=20)
    same_bits(raw, short(table))
    assert 0 < raw.compile_seconds < raw.seconds


def test_progress_goes_to_standard_error_and_threads_are_restored(table, capsys):
    def threads():
        return [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]

    before, during = threads(), []
    short(table, progress=True, on_chunk=lambda step, losses: during.append(threads()))
    out, err = capsys.readouterr()
    assert out == "" and "60/60" in err and "loss" in err
    assert threads() == before and all(set(each) == {1} for each in during) and len(during) == 3


BAD: dict[str, dict[str, object]] = {
    "x: found shape": {"x": np.ones(5)},
    "y: found shape": {"y": np.ones((5, 1, 1))},
    "y: found 4 rows beside 5 of x": {"y": np.ones(4)},
    "x: found nan at row 2, column 0": {"x": np.where(np.arange(5)[:, None] == 2, np.nan, 1.0)},
    "y: found inf at row 0, column 0": {"y": np.full(5, np.inf)},
    "y: found dtype <U1": {"y": np.array(list("abcde"))},
    "batch_size: found 6": {"batch_size": 6},
    "batch_size: found 0": {"batch_size": 0},
    "steps: found 0": {"steps": 0},
    "patience: found -1": {"patience": -1},
    "learning_rate: found 0.0": {"learning_rate": 0.0},
    "learning_rate: found nan": {"learning_rate": float("nan")},
    "checkpoint: found None with resume=True": {"resume": True},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_named_before_anything_runs(message):
    def never(*args, **kwargs):
        raise AssertionError("the model ran")

    settings: dict[str, Any] = {"x": np.ones((5, 1)), "y": np.ones(5), "steps": 10, **BAD[message]}
    with pytest.raises(ValueError, match=message) as caught:
        fit_svi(KEY, never, never, ELBO, **settings)
    assert "\n" not in str(caught.value)


def test_lbfgs_finds_the_least_squares_solution(table):
    x, y = table
    fit = fit_lbfgs(KEY, least_squares, x, y)
    w, residual, *_ = np.linalg.lstsq(x, y, rcond=None)
    np.testing.assert_allclose(fit.params["value"][:, 0], w, rtol=1e-6)
    np.testing.assert_allclose(fit.params["noise"], np.sqrt(residual[0] / ROWS), rtol=1e-6)
    optimum = ROWS / 2 * (np.log(2 * np.pi * residual[0] / ROWS) + 1)
    np.testing.assert_allclose(fit.losses[0, -1], optimum, rtol=1e-9)
    assert (np.diff(fit.losses[0]) <= 0).all() and fit.steps < 60
    assert compilations(lambda: fit_lbfgs(KEY, least_squares, x + 1, y)) == 0


@pytest.mark.slow
def test_lbfgs_under_a_guide_finds_the_most_probable_value(table):
    fit = fit_lbfgs(KEY, bayesian, *table, guide=AutoDelta(bayesian), tolerance=1e-9)
    np.testing.assert_allclose(fit.params["w_auto_loc"][:, 0], posterior(*table)[0], rtol=1e-6)


@pytest.mark.slow
def test_lbfgs_says_what_a_guide_has_learnt_of_its_draws(table):
    """With one draw held, log q is highest where q is widest. The gap is what an independent average adds."""
    guide = AutoNormal(bayesian)
    with pytest.warns(HeldDrawsWarning, match="found that it draws, with a loss of .* train with fit_svi"):
        fit = fit_lbfgs(KEY, bayesian, *table, guide=guide, steps=10)
    one = lambda key: fit.objective.loss(key, fit.params, bayesian, guide, table[0], table[1][:, None])
    losses = jax.vmap(one)(jax.random.split(jax.random.key(9), 20_000))
    worse, noise = losses.mean() - fit.losses[0, -1], losses.std() / np.sqrt(losses.size)
    assert not fit.converged and worse > 10 * noise
    assert abs(fit.gap - worse) < 4 * np.hypot(noise, fit.convergence.error)


def test_lbfgs_resumed_equals_uninterrupted(table, tmp_path, monkeypatch, ctrl_c):
    whole = fit_lbfgs(KEY, least_squares, *table)

    @contextmanager
    def press(show, done, total):
        yield lambda step, losses: os.kill(os.getpid(), signal.SIGINT) if step > 3 and done == 0 else None

    monkeypatch.setattr(full_batch, "progress_bar", press)
    monkeypatch.setattr(full_batch, "PIECE_SECONDS", 0.0)  # one iteration at a time
    with pytest.raises(Interrupted, match="after 4 steps") as caught:
        fit_lbfgs(KEY, least_squares, *table, checkpoint=tmp_path)
    np.testing.assert_array_equal(caught.value.fit.losses, whole.losses[:, :4])
    monkeypatch.undo()
    same_bits(fit_lbfgs(KEY, least_squares, *table, checkpoint=tmp_path, resume=True), whole)
    same_bits(fit_lbfgs(KEY, least_squares, *table, checkpoint=tmp_path, resume=True), whole)  # converged
    with pytest.raises(CheckpointError, match="made with other data"):
        fit_lbfgs(KEY, least_squares, table[0], table[1] + 1, checkpoint=tmp_path, resume=True)
    with pytest.raises(ValueError, match="checkpoint: found None with resume=True"):
        fit_lbfgs(KEY, least_squares, *table, resume=True)


def test_lbfgs_starts_where_it_is_told(table):
    whole = fit_lbfgs(KEY, least_squares, *table)
    again = fit_lbfgs(KEY, least_squares, *table, start=whole.params)
    assert again.steps <= 2
    np.testing.assert_allclose(again.losses[0, -1], whole.losses[0, -1], rtol=1e-12)


def test_jitter_beyond_the_usual_is_reported_with_advice(table):
    def singular(x, y=None):
        rows = numpyro.param("rows", jnp.ones((4, 1)))
        _, used = cholesky(rows @ rows.T, numpyro.param("first", 1e-3))
        numpyro.deterministic("layer/jitter", used)
        least_squares(x, y)

    with pytest.warns(JitterWarning, match=r"1e-03 at layer/jitter .* fewer inducing points"):
        fit = fit_lbfgs(KEY, singular, *table, steps=2)
    np.testing.assert_allclose(fit.jitter["layer/jitter"], 1e-3, rtol=1e-12)
    assert short(table).jitter == {}


def test_lbfgs_stops_at_its_limits_and_says_what_is_wrong(table):
    fit = fit_lbfgs(KEY, least_squares, *table, steps=3)
    assert fit.losses.shape == (1, 3) and fit.steps == 3 and fit.losses[0, 2] < fit.losses[0, 0]
    with pytest.raises(ValueError, match="latent sites w"):
        fit_lbfgs(KEY, bayesian, *table)
    with pytest.raises(ValueError, match="no parameters"):
        fit_lbfgs(
            KEY,
            bayesian,
            *table,
            guide=lambda x, y: numpyro.sample("w", dist.Delta(jnp.zeros((2, 1))).to_event(2)),
        )
    with pytest.raises(ValueError, match="steps: found 0"):
        fit_lbfgs(KEY, least_squares, *table, steps=0)

    def broken(x, y=None):
        numpyro.factor("y", jnp.sum(numpyro.param("a", 1.0) * jnp.nan))

    with pytest.raises(FitError, match="loss: found nan"):
        fit_lbfgs(KEY, broken, *table)


@pytest.mark.slow
def test_lbfgs_in_32_bits(table):
    with jax.enable_x64(False):
        fit = fit_lbfgs(KEY, least_squares, *(each.astype(np.float32) for each in table))
        assert fit.params["value"].dtype == jnp.float32
    w = np.linalg.lstsq(table[0], table[1], rcond=None)[0]
    np.testing.assert_allclose(fit.params["value"][:, 0], w, atol=2e-4)
