"""A directory of one fit at a time, and what happens where it cannot be written: nothing that was saved is lost."""

import errno
import os
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

from ppl_dgp import checkpoint
from ppl_dgp.checkpoint import CheckpointError, alone_in, read_meta
from ppl_dgp.fit import SaveWarning, fit_lbfgs, fit_svi
from ppl_dgp.guides import Guide
from ppl_dgp.models import sparse_gp_regression
from ppl_dgp.objectives import Collapsed, PowerEP

KEY = jax.random.PRNGKey(0)
X = np.linspace(-1.0, 1.0, 12)[:, None]
Y = np.sin(4.0 * X)
MODEL = sparse_gp_regression(4)
HOLDER = """
import sys, time
from ppl_dgp.checkpoint import alone_in
with alone_in(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


def trained(folder, steps=4, **settings):
    return fit_svi(
        KEY, MODEL, Guide(MODEL), PowerEP(0.0), X, Y, steps=steps, chunk=2, checkpoint=folder, **settings
    )


def test_a_directory_in_use_is_refused_until_its_process_has_died(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(
                CheckpointError, match=f"{tmp_path} in use by process {holder.pid}, .*its own directory"
            ):
                trained(tmp_path)
            with pytest.raises(CheckpointError, match="in use"):
                fit_lbfgs(
                    KEY, MODEL, X, Y, guide=Guide(MODEL), objective=Collapsed(), steps=2, checkpoint=tmp_path
                )
        finally:
            # it has no time to give anything back
            holder.send_signal(signal.SIGKILL)
    assert trained(tmp_path).losses.shape == (1, 4)
    # and a fit that has ended gives it back, though what it raised is still held
    with pytest.raises(RuntimeError) as raised:
        trained(tmp_path, on_chunk=lambda *_: (_ for _ in ()).throw(RuntimeError("stop")))
    assert raised.value.args == ("stop",) and trained(tmp_path, 6, resume=True).losses.shape == (1, 6)


def test_the_lock_is_of_one_fit_in_a_process_too(tmp_path):
    with alone_in(tmp_path), pytest.raises(CheckpointError, match=f"in use by process {os.getpid()}"):
        trained(tmp_path)


def test_a_full_disk_costs_no_more_than_the_save(tmp_path, monkeypatch):
    """The fit goes on and is returned, the save before can be resumed, and the numbers are those of a lone fit."""
    whole = trained(tmp_path / "whole", 8)
    trained(tmp_path / "full", 4)
    write = checkpoint.save

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save", full)
    with pytest.warns(SaveWarning, match="No space left on device.*what was saved before stands"):
        fit = trained(tmp_path / "full", 8, resume=True, checkpoint_every=1)
    np.testing.assert_array_equal(fit.losses, whole.losses)
    monkeypatch.setattr(checkpoint, "save", write)
    assert read_meta(tmp_path / "full")["step"] == 4
    np.testing.assert_array_equal(trained(tmp_path / "full", 8, resume=True).losses, whole.losses)
