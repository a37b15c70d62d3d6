"""Nothing that was saved is lost: disks that are full, directories that are read-only or vanish, processes killed."""

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import warnings
from contextlib import ExitStack

import jax
import numpy as np
import pytest

from ppl_dgp import checkpoint
from ppl_dgp.checkpoint import INDEX, LOCK, UNFINISHED, CheckpointError, alone_in, read_meta
from ppl_dgp.cli import run_directory
from ppl_dgp.cli.errors import BadInput
from ppl_dgp.cli.main import main
from ppl_dgp.fit import SaveWarning, fit_lbfgs, fit_many, fit_stream, fit_svi
from ppl_dgp.guides import Guide
from ppl_dgp.models import sparse_gp_regression
from ppl_dgp.objectives import Collapsed, PowerEP

KEY = jax.random.PRNGKey(0)
X = np.linspace(-1.0, 1.0, 12)[:, None]
Y = np.sin(4.0 * X)
MODEL = sparse_gp_regression(4)
STEPS = 8
#: dies in the middle of the second of the files that a save writes
TORN = """
import os, pathlib, signal, sys
import numpy as np
from ppl_dgp.checkpoint import save
save(sys.argv[1], {"a": np.zeros(100)}, {"step": 1})
ordinary, opened = pathlib.Path.open, []
class Torn:
    def __init__(self, file): self.file = file
    def __enter__(self): return self
    def __exit__(self, *error): self.file.close()
    def __getattr__(self, name): return getattr(self.file, name)
    def write(self, content):
        self.file.write(content[: len(content) // 2])
        self.file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
def half(path, *mode):
    opened.append(path)
    file = ordinary(path, *mode)
    return Torn(file) if len(opened) == int(sys.argv[2]) else file
pathlib.Path.open = half
save(sys.argv[1], {"a": np.ones(100)}, {"step": 2})
"""


def trained(folder, steps=STEPS, **settings):
    settings = {"checkpoint_every": 1} | settings
    return fit_svi(
        KEY, MODEL, Guide(MODEL), PowerEP(0.0), X, Y, steps=steps, chunk=2, checkpoint=folder, **settings
    )


@pytest.fixture(scope="module")
def whole():
    return trained(None).losses


def stands(folder, step):
    """Whether the state of a step can be read, and nothing lies beside it."""
    checkpoint.load(folder)
    assert read_meta(folder)["step"] == step
    assert len(list(folder.glob("*.safetensors"))) == 1 and not list(folder.glob(f".*{UNFINISHED}"))


def at(step, action):
    """Do something once, after a step."""
    return lambda done, losses: action() if done == step else None


FITS = {
    "svi": lambda model, **how: fit_svi(KEY, model, Guide(model), PowerEP(0.0), X, Y, steps=2, **how),
    "lbfgs": lambda model, **how: fit_lbfgs(
        KEY, model, X, Y, guide=Guide(model), objective=Collapsed(), steps=2, **how
    ),
    "many": lambda model, **how: fit_many(KEY, model, Guide(model), PowerEP(0.0), [X] * 2, Y, steps=2, **how),
    "stream": lambda model, **how: fit_stream(
        KEY, model, Guide(model), PowerEP(0.0), (X, Y), steps=2, batch_size=4, **how
    ),
}


@pytest.mark.parametrize("kind", ["svi", "lbfgs"])
@pytest.mark.parametrize("under", [(), ("below",)])
def test_a_directory_that_cannot_be_written_is_refused_before_anything_is_compiled(
    kind, under, tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("mine")

    def compiled(*args, **settings):
        raise AssertionError("a program was begun")

    monkeypatch.setattr("ppl_dgp.fit.training.traced_start", compiled)
    monkeypatch.setattr("ppl_dgp.fit.full_batch.traced_start", compiled)
    with pytest.raises(CheckpointError, match="which cannot be written .*check its rights") as refused:
        FITS[kind](MODEL, checkpoint=tmp_path.joinpath("file", *under))
    assert "\n" not in str(refused.value) and (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("kind", ["many", "stream"])
def test_others_refuse_it_too(kind, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match="which cannot be written"):
        FITS[kind](MODEL, checkpoint=tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="the rights of directories do not bind root")
def test_a_directory_that_is_read_only_is_refused(tmp_path):
    trained(tmp_path / "run", 4)
    (tmp_path / "run").chmod(0o500)
    try:
        with pytest.raises(CheckpointError, match="Permission denied"):
            trained(tmp_path / "run", resume=True)
    finally:
        (tmp_path / "run").chmod(0o700)
    stands(tmp_path / "run", 4)


def test_a_read_only_file_system_is_refused_though_its_lock_is_there(tmp_path, monkeypatch):
    """As of a directory whose rights were taken away: what is there can be opened, nothing new made."""
    trained(tmp_path, 4)

    def read_only(*args, **settings):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("ppl_dgp.fit.saving.TemporaryFile", read_only)
    with pytest.raises(CheckpointError, match="Read-only file system"):
        trained(tmp_path, resume=True)
    stands(tmp_path, 4)
    with alone_in(tmp_path):
        pass


def test_the_command_line_refuses_it_in_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    command = ["fit", "step", "--model", "sparse-gp", "--out", str(tmp_path / "file" / "run"), "--quiet"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "check the path and its rights" in said


def test_a_quota_reached_in_the_middle_of_a_write_costs_that_save_alone(tmp_path, monkeypatch, whole):
    save, (soft, hard) = checkpoint.save, resource.getrlimit(resource.RLIMIT_FSIZE)

    def limited(folder, state, meta):
        # the kernel writes so many bytes of the state and refuses the rest
        resource.setrlimit(resource.RLIMIT_FSIZE, (500 if meta["step"] > 4 else soft, hard))
        try:
            save(folder, state, meta)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    monkeypatch.setattr(checkpoint, "save", limited)
    with pytest.warns(
        SaveWarning, match="File too large.*what was saved before stands, and training goes on"
    ):
        fit = trained(tmp_path)
    np.testing.assert_array_equal(fit.losses, whole)
    stands(tmp_path, 4)
    monkeypatch.setattr(checkpoint, "save", save)
    np.testing.assert_array_equal(trained(tmp_path, resume=True).losses, whole)


def test_a_disk_that_is_full_when_the_state_is_on_it_leaves_no_state_beside_the_old_one(
    tmp_path, monkeypatch
):
    checkpoint.save(tmp_path, {"a": np.zeros(10)}, {"step": 1})
    sync, synced = os.fsync, []

    def full(number):
        synced.append(number)
        if len(synced) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(number)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(tmp_path, {"a": np.ones(10)}, {"step": 2})
    stands(tmp_path, 1)
    # equal content under the name of what stands is not removed with it
    synced.clear()
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(tmp_path, {"a": np.zeros(10)}, {"step": 2})
    stands(tmp_path, 1)


def test_a_directory_that_vanishes_is_made_anew_and_held_again(tmp_path, whole):
    folder = tmp_path / "run"

    def look(step, losses):
        if step == 4:
            shutil.rmtree(folder)
        elif step > 4:
            with pytest.raises(CheckpointError, match="in use"), alone_in(folder):
                pass

    with pytest.warns(SaveWarning, match="gone, .*made anew") as said:
        fit = trained(folder, on_chunk=look)
    assert len(said) == 1
    np.testing.assert_array_equal(fit.losses, whole)
    stands(folder, STEPS)


def test_a_directory_that_another_fit_has_taken_over_is_left_to_it(tmp_path, whole):
    folder, other = tmp_path / "run", ExitStack()

    def taken():
        shutil.rmtree(folder)
        other.enter_context(alone_in(folder))

    with other, pytest.warns(SaveWarning, match="in use by process"):
        fit = trained(folder, on_chunk=at(4, taken))
    np.testing.assert_array_equal(fit.losses, whole)
    assert [path.name for path in folder.iterdir()] == [LOCK]


def test_where_it_cannot_be_made_anew_training_goes_on_or_stops_as_asked(tmp_path, whole):
    folder = tmp_path / "run"

    def replaced():
        folder.rename(tmp_path / "elsewhere")
        folder.write_text("a file")

    with pytest.warns(SaveWarning, match="could not write") as said:
        fit = trained(folder, on_chunk=at(4, replaced))
    assert {"\n" in str(warning.message) for warning in said} == {False}
    np.testing.assert_array_equal(fit.losses, whole)
    stands(tmp_path / "elsewhere", 4)
    folder.unlink()
    (tmp_path / "elsewhere").rename(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SaveWarning)
        with pytest.raises(SaveWarning, match="could not write"):
            trained(folder, on_chunk=at(6, replaced), resume=True)
    stands(tmp_path / "elsewhere", 6)


@pytest.mark.parametrize("which", [1, 2])
def test_a_process_killed_in_the_middle_of_a_write_leaves_what_was_saved(which, tmp_path):
    died = subprocess.run([sys.executable, "-c", TORN, tmp_path, str(which)])
    assert died.returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob(f".*{UNFINISHED}"))) == 1
    found, meta = checkpoint.load(tmp_path)
    assert meta == {"step": 1} and not np.any(found["a"])
    # and the next save takes its place
    checkpoint.save(tmp_path, {"a": np.full(100, 2.0)}, {"step": 2})
    stands(tmp_path, 2)


@pytest.mark.slow
def test_members_resume_where_the_second_program_had_nothing_saved(tmp_path):
    how = {"steps": 2, "alphas": [0.0, 0.5], "checkpoint": tmp_path}
    expected = fit_many(KEY, MODEL, Guide(MODEL), PowerEP(0.0), X, Y, **how)
    (tmp_path / "power" / INDEX).unlink()
    found = fit_many(KEY, MODEL, Guide(MODEL), PowerEP(0.0), X, Y, **how, resume=True)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.losses, other.losses)


def test_a_run_killed_before_it_was_recorded_can_be_begun_again(tmp_path):
    (tmp_path / LOCK).touch()
    scratch = tmp_path / f".config.json.abc{UNFINISHED}"
    scratch.mkdir()
    assert run_directory.fresh_folder(str(tmp_path), "", "") == tmp_path
    with run_directory.held(tmp_path):
        assert not scratch.exists()
        with pytest.raises(CheckpointError, match="in use"), run_directory.held(tmp_path):
            pass
    (tmp_path / ".mine").touch()
    with pytest.raises(BadInput, match="not empty"):
        run_directory.fresh_folder(str(tmp_path), "", "")
