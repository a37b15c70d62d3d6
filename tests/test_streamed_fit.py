"""Training on rows block by block is training on the same minibatches in memory."""

import itertools
import subprocess
import sys
import threading
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from fast import few
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

from ppl_dgp.checkpoint import CheckpointError
from ppl_dgp.data import DataError, open_rows
from ppl_dgp.fit import Interrupted, fit_stream, fit_svi, stochastic, streamed
from ppl_dgp.fit.prefetch import Waited, prefetched
from ppl_dgp.guides import Amortised, Conditional, DoublyStochastic, Guide, MeanField
from ppl_dgp.models import deep_gp, gpssm
from ppl_dgp.objectives import Collapsed, PowerEP

ROWS, BATCH, CHUNK = 48, 6, 5
KEY = jax.random.key(2)


@pytest.fixture(scope="module")
def table():
    random = np.random.default_rng(1)
    x = random.normal(size=(ROWS, 2))
    return x, np.sin(2.0 * x[:, :1]) + 0.1 * random.normal(size=(ROWS, 1))


MODEL = deep_gp((2,), 5)
GUIDE = Guide(MODEL, hidden=DoublyStochastic())
OBJECTIVE = PowerEP(0.0)


def stream(rows, steps=12, **settings):
    settings = {"batch_size": BATCH, "chunk": CHUNK} | settings
    return fit_stream(KEY, MODEL, GUIDE, OBJECTIVE, rows, steps=steps, **settings)


def same_bits(one, other):
    np.testing.assert_array_equal(one.losses, other.losses)
    for name in one.params:
        np.testing.assert_array_equal(one.params[name], other.params[name])


@pytest.mark.slow
def test_the_same_minibatches_give_the_same_fit(table, monkeypatch):
    rows = open_rows(table, block_rows=10)
    streamed = stream(rows, window=2)

    def drawn(words, number, chunk, batch_size, count):
        batches = rows.batches(
            [*map(int, words)], chunk * batch_size, begin=number * chunk * batch_size, window=2
        )
        return next(batches)[2].reshape(chunk, batch_size).astype(np.int32)

    monkeypatch.setattr(stochastic, "minibatches", drawn)
    whole = fit_svi(KEY, MODEL, GUIDE, OBJECTIVE, *table, steps=12, batch_size=BATCH, chunk=CHUNK)
    np.testing.assert_allclose(streamed.losses, whole.losses, rtol=1e-12)
    for name in whole.params:
        np.testing.assert_allclose(streamed.params[name], whole.params[name], rtol=1e-9, atol=1e-12)
    assert streamed.steps == 12


@pytest.mark.slow
def test_parts_are_laid_side_by_side(table):
    rows = open_rows(table, block_rows=10)
    # two parts of all rows in one window each: what two processes draw
    found = stream(rows, steps=3, parts=2, chunk=3)
    assert np.isfinite(found.losses).all()
    assert (found.losses[0] != stream(rows, steps=3, chunk=3).losses[0]).any()


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", few([5, 10], 0))
def test_resumed_equals_uninterrupted(table, tmp_path, stop_at):
    rows = open_rows(table, block_rows=10).standardised()

    def stop(done, losses):
        if done == stop_at:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        stream(rows, checkpoint=tmp_path, on_chunk=stop)
    assert caught.value.fit.steps == stop_at
    same_bits(stream(rows, checkpoint=tmp_path, resume=True), stream(rows))
    with pytest.raises(CheckpointError, match="made with other data"):
        stream(open_rows(table, block_rows=10), checkpoint=tmp_path, resume=True)
    with pytest.raises(CheckpointError, match="made with parts 1, found 2"):
        stream(rows, checkpoint=tmp_path, resume=True, parts=2)


@pytest.mark.slow
def test_restarts_are_the_single_fits_side_by_side(table):
    found = stream(open_rows(table, block_rows=10), restarts=2, steps=5)
    assert found.losses.shape == (2, 5) and (found.losses[0] != found.losses[1]).any()


def test_the_size_is_that_of_the_rows():
    """A bound of N terms: the scale of a minibatch is N/B, its rows' numbers are those of the source."""
    x = np.arange(20.0)[:, None]
    seen = []

    def model(x, y=None, index=None, size=None):
        a = numpyro.param("a", 0.0)
        with numpyro.plate("data", size or len(x), subsample_size=len(x)):
            numpyro.sample("y", dist.Delta(y[:, 0], log_density=a * 0.0 + 1.0), obs=y[:, 0])
        if index is not None:
            jax.debug.callback(lambda rows, numbers: seen.append((rows, numbers)), x[:, 0], index)

    fit = fit_stream(
        KEY, model, lambda *args, **kwargs: None, Trace_ELBO(), open_rows((x, x), block_rows=3), steps=4, batch_size=5,
        chunk=4,
    )  # fmt: skip
    np.testing.assert_allclose(fit.losses, -20.0)
    jax.effects_barrier()
    for rows, numbers in seen:
        np.testing.assert_array_equal(rows, numbers)
    assert set(np.concatenate([numbers for _, numbers in seen]).tolist()) == set(range(20))


def test_more_rows_than_numbers_are_refused(table, monkeypatch):
    monkeypatch.setattr(streamed, "MOST_ROWS", 7)
    with pytest.raises(ValueError, match="rows: found .* expected at most 7"):
        fit_stream(KEY, MODEL, Guide(MODEL), OBJECTIVE, open_rows(table), steps=2, batch_size=BATCH)


def test_what_grows_with_the_rows_is_refused(table):
    rows = open_rows(table)

    def refused(guide, model=MODEL, objective=OBJECTIVE, message="grow with the rows", **settings):
        settings = {"batch_size": BATCH} | settings
        with pytest.raises(ValueError, match=message) as caught:
            fit_stream(KEY, model, guide, objective, rows, steps=2, **settings)
        assert "\n" not in str(caught.value)

    refused(Guide(MODEL, hidden=MeanField()))
    refused(Guide(MODEL, hidden=Conditional()))

    def local(x, y=None, index=None, size=None):
        with numpyro.plate("data", size or len(x), subsample_size=len(x)):
            z = numpyro.sample("z", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(z, 1.0), obs=None if y is None else y[:, 0])

    refused(AutoNormal(local), model=local, objective=Trace_ELBO())
    refused(GUIDE, objective=Collapsed(), message="needs all rows at once")
    series = gpssm(1, window=8)
    refused(Guide(series), model=series, message="series in windows")
    refused(GUIDE, batch_size=49, message="from 1 to the number of rows, 48")
    refused(GUIDE, parts=4, message="batch_size: found 6 with parts=4")
    refused(GUIDE, window=0, message="window: found 0")


@pytest.mark.slow
def test_amortised_rules_do_not_grow(table):
    guide = Guide(MODEL, hidden=Amortised((4,), MeanField()))
    found = fit_stream(KEY, MODEL, guide, OBJECTIVE, open_rows(table), steps=3, batch_size=BATCH, chunk=3)
    assert np.isfinite(found.losses).all()


def test_errors_of_the_rows_reach_the_caller(table):
    calls = itertools.count()

    def batches():
        bad = next(calls) > 2
        for at in range(0, ROWS, 12):
            x = table[0][at : at + 12].copy()
            x[0, 0] = np.nan if bad and at == 24 else x[0, 0]
            yield x, table[1][at : at + 12]

    with pytest.raises(DataError, match="row 0 .* of block 2 of the batches: found nan"):
        stream(open_rows(batches), steps=60)
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def test_what_is_made_ahead_is_bounded():
    made = []

    def make():
        for number in itertools.count():
            made.append(number)
            yield number

    waited = Waited()
    with prefetched(make(), waited) as take:
        assert [take() for _ in range(5)] == list(range(5))
        threading.Event().wait(0.3)
        assert len(made) <= 5 + 2  # one waits in the queue, one to be put there
    assert waited.seconds >= 0.0
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.mark.slow
def test_rows_come_in_the_precision_of_the_fit():
    """Also where it is that of a context, which a thread does not share.

    In a process of its own: in one that has traced thousands of programs in 64 bits, JAX 0.10 has taken a constant of
    64 bits for one of this context (jnp.bincount, within NumPyro's unconstrained parameters), and warned of it.
    """
    program = "import numpyro; numpyro.enable_x64(); import test_streamed_fit as here; here.fit_in_32_bits()"
    found = subprocess.run(
        [sys.executable, "-W", "error::FutureWarning:jax", "-c", program],
        cwd=Path(__file__).parent, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr


def fit_in_32_bits():
    """What the test before runs."""
    random, seen = np.random.default_rng(1), set()
    x = random.normal(size=(ROWS, 2))

    def model(x, y=None, index=None, size=None):
        seen.add((str(x.dtype), str(y.dtype)))
        return MODEL(x, y, index, size)

    with jax.enable_x64(False):
        guide = Guide(model, hidden=DoublyStochastic())
        found = fit_stream(KEY, model, guide, OBJECTIVE, (x, np.sin(x[:, :1])), steps=2, batch_size=4)
    assert seen == {("float32", "float32")} and found.params["layer1/inducing"].dtype == np.float32
