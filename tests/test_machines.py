"""One fit over several processes: the numbers of one process, and one end for all."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fast import seldom

from ppl_dgp import checkpoint
from ppl_dgp.cli import main
from ppl_dgp.cli.programs import build
from ppl_dgp.cli.settings import Settings
from ppl_dgp.data import open_rows
from ppl_dgp.fit import fit_stream

MODEL = ["--model", "sparse-gp", "--inducing", "5", "--batch", "20"]


@pytest.fixture
def folder(tmp_path):
    random = np.random.default_rng(0)
    (tmp_path / "rows").mkdir()
    for number in range(3):
        x = random.normal(size=(50, 2))
        y = 3.0 + 5.0 * np.sin(2.0 * x[:, 0]) + 0.1 * random.normal(size=50)
        columns = {"a": x[:, 0], "b": x[:, 1], "y": y}
        pq.write_table(pa.table(columns), tmp_path / "rows" / f"{number}.parquet", row_group_size=20)
    return tmp_path


def start(folder, *more, processes=2):
    """The same command in several processes, which meet at a free port."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "ppl_dgp.cli",
        "fit",
        "rows",
        *MODEL,
        "--out",
        "run",
        "--distributed",
        *more,
    ]
    command += ["--coordinator", f"localhost:{port}", "--processes", str(processes)]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": folder}
    paths = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": paths}
    return [
        subprocess.Popen([*command, "--process", str(each)], env=environment, **quiet)
        for each in range(processes)
    ]


def losses(folder):
    return np.asarray(checkpoint.load(folder / "run" / "checkpoint")[0]["losses"])


def of_one_process(folder, steps, parts=2):
    settings = Settings(model="sparse-gp", inducing=5)
    program = build(settings, 1)
    rows = open_rows(folder / "rows").standardised()
    key = jax.random.key(0)
    return fit_stream(
        key, program.model, program.guide, program.objective, rows, steps=steps, batch_size=20, parts=parts
    ).losses


@pytest.mark.slow
def test_two_processes_are_as_one(folder):
    running = start(folder, "--steps", "30", "--json")
    (out, err), (other_out, other_err) = [each.communicate(timeout=240) for each in running]
    assert [each.returncode for each in running] == [0, 0], err + other_err
    np.testing.assert_allclose(losses(folder), of_one_process(folder, 30), rtol=1e-7)
    result = json.loads(out)
    assert result["steps"] == 30 and other_out == ""
    assert (
        main(["predict", str(folder / "run"), str(folder / "rows" / "0.parquet"), "--json", "--quiet"]) == 0
    )


@pytest.mark.slow
@pytest.mark.parametrize("victim", seldom([1, 0], 1))
def test_where_one_dies_the_others_stop_and_all_resume(folder, victim):
    running = start(folder, "--steps", "1000000")
    index = folder / "run" / "checkpoint" / "checkpoint.json"
    deadline = time.monotonic() + 240
    while not index.is_file():
        assert time.monotonic() < deadline and all(each.poll() is None for each in running)
        time.sleep(0.1)
    running[victim].send_signal(signal.SIGKILL)
    _, err = running[1 - victim].communicate(timeout=60)
    running[victim].communicate()
    assert running[1 - victim].returncode not in (0, None)
    if victim == 1:
        assert running[0].returncode == 3
        lines = [line for line in err.splitlines() if line.startswith("ppl-dgp: error: ")]
        assert len(lines) == 1 and "lost another process" in lines[0] and "Traceback" not in err
    before = losses(folder)
    steps = before.shape[1] + 20
    running = start(folder, "--steps", str(steps), "--resume")
    errors = [each.communicate(timeout=240)[1] for each in running]
    assert [each.returncode for each in running] == [0, 0], errors
    after = losses(folder)
    assert after.shape == (1, steps)
    np.testing.assert_array_equal(after[:, : steps - 20], before)
    # long runs drift apart by rounding: the steps that follow the saved state are those of a run never stopped
    whole = of_one_process(folder, min(steps, 120))
    np.testing.assert_allclose(after[:, :120], whole, rtol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--distributed", "--processes", "2"], "of --coordinator, --processes and --process some are given"),
        (["--distributed", *"--coordinator here --processes 2 --process 0".split()], "give HOST:PORT"),
        (
            ["--distributed", *"--coordinator a:1 --processes 2 --process 2".split()],
            "--process is 2 of --processes 2",
        ),
        (["--process", "0"], "add --distributed"),
        (
            ["--stream", "--hidden", "mean-field"],
            "--hidden is mean-field, whose parameters grow with the rows",
        ),
        (["--stream", "--model", "gp"], "take sparse-gp or deep-gp"),
        (["--test-fraction", "0.2"], "--test-fraction is given, but all rows are trained on"),
        (["--drop-missing"], "--drop-missing is given"),
        (["--target", "z"], "no column 'z' to be the target"),
        (["--ignore", "z"], "no column 'z' to be left out"),
        (["--resume"], "--out is not given"),
    ],
)
def test_what_cannot_be_is_one_line(folder, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(folder)
    assert main(["fit", "rows", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.count("\n") == 1
    assert not (folder / "runs").exists()


@pytest.mark.slow
def test_a_directory_is_read_block_by_block(folder, capsys):
    command = ["fit", str(folder / "rows"), *MODEL, "--out", str(folder / "run"), "--quiet"]
    assert main([*command, "--steps", "4", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["config"]["train_rows"] == 150 and result["config"]["test_rows"] == 0
    np.testing.assert_allclose(losses(folder), of_one_process(folder, 4, parts=1), rtol=1e-9)
    assert (folder / "run" / "figures" / "losses.svg").stat().st_size > 0
    assert main([*command, "--steps", "6", "--resume"]) == 0
    assert losses(folder).shape == (1, 6)
    capsys.readouterr()
    assert (
        main(["predict", str(folder / "run"), str(folder / "rows" / "0.parquet"), "--json", "--quiet"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["rows"] == 50
