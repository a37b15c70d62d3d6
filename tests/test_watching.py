"""What is said of a fit in progress: reports to a callback, by which it may be ended, and logging."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from fast import few
from numpyro.infer import Trace_ELBO
from test_fit import compilations

from ppl_dgp import (
    ChunkReport,
    Conditional,
    Guide,
    Interrupted,
    MeanField,
    PowerEP,
    deep_gp,
    fit_lbfgs,
    fit_many,
    fit_power_ep,
    fit_series,
    fit_sghmc,
    fit_stream,
    fit_svi,
    fit_table,
    gpssm,
    sparse_gp_regression,
)
from ppl_dgp.fit.annealing import rates

KEY, ELBO = jax.random.key(2), Trace_ELBO()
Y = 0.5 + np.random.default_rng(0).normal(size=(12, 1))
X = np.linspace(-1.0, 1.0, 12)[:, None]


def mean_of_data(x, y=None, index=None, size=None):
    with numpyro.plate("data", size or x.shape[0], subsample_size=x.shape[0]):
        mean = numpyro.param("mean", jnp.ones(())) ** 3 + 0.1
        numpyro.sample("y", dist.Normal(mean, 1.0).expand([1]).to_event(1), obs=y)


def nothing(x, y=None, index=None, size=None):
    pass


def svi(**settings):
    return fit_svi(KEY, mean_of_data, nothing, ELBO, X, Y, **settings)


def test_a_report_after_each_chunk():
    """Its losses are those of the fit, its rate the schedule's; who listens compiles nothing."""
    seen: list[ChunkReport] = []
    schedule = lambda step: 0.1 / (1 + step)
    assert compilations(lambda: svi(steps=50, chunk=20, learning_rate=schedule)) > 0
    settings = {"steps": 50, "chunk": 20, "learning_rate": schedule}
    assert compilations(lambda: svi(callback=seen.append, **settings)) == 0
    fit = svi(**settings)
    assert [report.step for report in seen] == [20, 40, 50]
    for report, begin in zip(seen, (0, 20, 40), strict=True):
        assert report.loss == fit.losses[0, begin : report.step].mean()
        assert report.learning_rate == schedule(report.step - 1)
        assert (report.steps, report.rejected) == (50, 0)
    assert np.isnan(seen[0].slope) and 0.0 < seen[0].seconds < seen[-1].seconds
    # a hundred steps are the fewest by which anything is known
    assert np.isinf(seen[-1].gap)


def test_reports_of_trials_and_cycles():
    """Rates are those of the phases that the fit tells of, the last gap is the fit's, and restarts are given up."""
    seen: list[ChunkReport] = []
    fit = svi(budget=700, chunk=10, tolerance=1e-9, restarts=2, callback=seen.append)
    expected = rates(fit.phases)
    assert len(seen) == fit.steps // 10
    for report in seen:
        assert report.learning_rate == pytest.approx(expected[report.step - 1], rel=1e-6)
    assert len(seen[0].losses) == 2 and len(seen[-1].losses) == 1
    assert seen[-1].gap == fit.gap


def test_a_callback_ends_the_fit_where_it_says_so(tmp_path):
    """The fit that was reached is that of so many steps, and one may go on from it, bit for bit."""
    settings = {"chunk": 10, "learning_rate": 0.05}
    with pytest.raises(Interrupted) as stopped:
        svi(steps=50, checkpoint=tmp_path / "fit", callback=lambda report: report.step == 20, **settings)
    short = svi(steps=20, **settings)
    assert stopped.value.fit.steps == 20
    assert float(stopped.value.fit.params["mean"]) == float(short.params["mean"])
    again, whole = (
        svi(steps=50, checkpoint=tmp_path / "fit", resume=True, **settings),
        svi(steps=50, **settings),
    )
    assert float(again.params["mean"]) == float(whole.params["mean"])
    # at its end there is nothing left to stop
    assert svi(steps=20, callback=lambda report: True, chunk=20).steps == 20


def test_reports_of_many_fits_are_of_each():
    seen: list[ChunkReport] = []
    about = KEY, mean_of_data, nothing, ELBO, X, [Y, 2.0 * Y]
    fits = fit_many(*about, steps=40, chunk=20, learning_rates=[0.01, 0.02], callback=seen.append)
    assert [report.step for report in seen] == [20, 40]
    assert seen[1].rates == (0.01, 0.02)
    np.testing.assert_allclose(seen[1].losses, [fit.losses[0, 20:].mean() for fit in fits])
    with pytest.raises(Interrupted) as stopped:
        fit_many(*about, steps=40, chunk=20, callback=lambda report: True)
    assert [fit.steps for fit in stopped.value.fits] == [20, 20]


def test_a_descent_reports_its_slope():
    """Of y_n ~ N(a³ + 0.1, 1) it is |3a² Σ_n (a³ + 0.1 − y_n)|."""
    seen: list[ChunkReport] = []
    fit = fit_lbfgs(KEY, mean_of_data, X, Y, steps=2, callback=seen.append, start={"mean": jnp.array(1.5)})
    a = float(fit.params["mean"])
    assert seen[-1].slope == pytest.approx(abs(3.0 * a**2 * (a**3 + 0.1 - Y).sum()), rel=1e-9)
    assert seen[-1].slope > 1e-3 and seen[-1].step == fit.steps and seen[-1].gap == fit.gap
    assert len(seen) == 2 and seen[-1].losses == (fit.losses[0, -1],)
    with pytest.raises(Interrupted) as stopped:
        fit_lbfgs(KEY, mean_of_data, X, Y, callback=lambda report: True, start={"mean": jnp.array(1.5)})
    assert stopped.value.fit.steps == 1


SPARSE = sparse_gp_regression(3)
VERBS = {
    "power EP": lambda **how: fit_power_ep(KEY, SPARSE, Guide(SPARSE), X, Y, hyper_steps=30, **how),
    "table": lambda **how: fit_table(KEY, SPARSE, Guide(SPARSE), PowerEP(0.0), X, Y, **how),
    "stream": lambda **how: fit_stream(
        KEY, SPARSE, Guide(SPARSE), PowerEP(0.5), (X, Y), steps=40, batch_size=4, chunk=20, **how
    ),
    "SGHMC": lambda **how: fit_sghmc(
        KEY, SPARSE, X, Y, num_warmup=20, num_samples=5, thinning=2, num_chains=2, **how
    ),
}


@pytest.mark.parametrize("name", few(list(VERBS), 0))
def test_all_verbs_report_and_stop(name):
    seen: list[ChunkReport] = []

    def stop(report: ChunkReport) -> bool:
        seen.append(report)
        return True

    with pytest.raises(KeyboardInterrupt):
        VERBS[name](callback=stop)
    assert len(seen) == 1 and 0 < seen[0].step < seen[0].steps
    assert np.isfinite(seen[0].losses).all()


@pytest.mark.slow
def test_verbs_made_of_several_fits_report_of_each():
    """Trials by which a start is found are not reported; the parts of a path are, and stop all of it."""
    deep, series = deep_gp((1,), 3), gpssm(1, num_inducing=3)
    seen: list[ChunkReport] = []
    about = KEY, deep, Guide(deep, Conditional()), PowerEP(0.0), X, Y
    fit_svi(*about, steps=20, chunk=20, path=[MeanField()], callback=seen.append)
    assert [report.step for report in seen] == [20, 20]
    with pytest.raises(Interrupted) as stopped:
        fit_svi(*about, steps=40, chunk=20, path=[MeanField()], callback=lambda report: True)
    assert stopped.value.fit.guide.hidden == MeanField()
    seen.clear()
    fit_series(KEY, series, Guide(series), PowerEP(0.0), None, Y, steps=40, chunk=20, callback=seen.append)
    assert [report.step for report in seen] == [20, 20]


def test_nothing_is_shown_unless_it_is_asked_for(capfd):
    svi(steps=20)
    assert capfd.readouterr() == ("", "")
    assert [type(each) for each in logging.getLogger("ppl_dgp").handlers] == [logging.NullHandler]
    assert logging.getLogger("ppl_dgp").level == logging.NOTSET


def test_the_log_tells_of_phases_restarts_and_advice(caplog):
    with caplog.at_level(logging.INFO, "ppl_dgp"):
        fit = svi(budget=400, chunk=100, tolerance=1e-12, restarts=2, learning_rate=0.1)
    said = [record.getMessage() for record in caplog.records]
    assert {record.name for record in caplog.records} == {"ppl_dgp.fit"}
    assert {record.levelno for record in caplog.records} == {logging.INFO}
    assert said[0] == "training: 2 side by side, from step 0, at most 300"
    assert sum(" trial of 100 steps to step 100" in each for each in said) == 2
    assert sum(" cycle of 200 steps to step 300" in each for each in said) == 1
    assert said[3] == "numbers that go on: 0"  # of two that are equal
    assert said[-1 - len(fit.advice)].startswith("trained: 300 steps in ")
    assert [each.removeprefix("advice: ") for each in said if each.startswith("advice: ")] == list(fit.advice)
    assert fit.advice


def test_the_log_tells_of_each_chunk_where_it_is_asked_for(caplog):
    with caplog.at_level(logging.DEBUG, "ppl_dgp"):
        fit = svi(steps=60, chunk=20, optimizer=optax.sgd(1e-3))
    chunks = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert len(chunks) == 3
    assert chunks[-1].startswith(f"step 60 of at most 60: loss {fit.losses[0, 40:].mean():.6g}, gap inf, ")
    assert "learning rate nan" in chunks[-1]
