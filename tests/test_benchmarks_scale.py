"""Tables of millions of rows in benchmarks/: what the truth says of them, and that the page says what the CSV holds."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from scipy import stats

from benchmarks import scale, scale_page, scale_rows, step_cost
from ppl_dgp import open_rows

ROOT = Path(__file__).parents[1]


def test_rows_are_of_the_function_and_noise_that_are_known():
    x, y, centre, deviation = scale_rows.drawn(3, 200_000, 9)
    assert x.shape == (200_000, 9) and x.dtype == y.dtype == np.float32
    apart = (y - centre) / deviation
    # of 200 000 the mean has a standard error of 0.0022, the deviation one of 0.0016
    assert abs(apart.mean()) < 0.01 and abs(apart.std() - 1.0) < 0.007
    np.testing.assert_allclose(centre[0], 10 * np.sin(np.pi * x[0, 0] * x[0, 1]) + 20 * (x[0, 2] - 0.5) ** 2
                               + 10 * x[0, 3] + 5 * x[0, 4], rtol=1e-6)  # fmt: skip
    found = scale_rows.log_density(y, centre, deviation)
    np.testing.assert_allclose(found, stats.norm(centre, deviation).logpdf(y).mean())
    # −½ log 2πe − E log s of s uniform on (½, 2½)
    expected = -0.5 * np.log(2 * np.pi * np.e) - (2.5 * np.log(2.5) - 0.5 * np.log(0.5) - 2.0) / 2.0
    assert found == pytest.approx(expected, abs=0.01)
    assert scale_rows.noise_log_density("taxi") == pytest.approx(expected, abs=0.02)


def test_files_hold_the_rows_of_their_numbers_and_are_written_once(tmp_path, monkeypatch):
    monkeypatch.setattr(scale_rows, "FILE_ROWS", 40)
    place = scale_rows.written(tmp_path, "taxi", 100)
    files = sorted(place.iterdir())
    assert [pq.read_metadata(file).num_rows for file in files] == [40, 40, 20]
    x, y, _, _ = scale_rows.drawn(1, 40, 9)
    table = pq.read_table(files[1])
    np.testing.assert_array_equal(np.column_stack([table.column(f"x{i}").to_numpy() for i in range(9)]), x)
    np.testing.assert_array_equal(table.column("y").to_numpy(), y)
    written = [file.stat().st_mtime_ns for file in files]
    scale_rows.written(tmp_path, "taxi", 100)
    assert [file.stat().st_mtime_ns for file in files] == written
    assert open_rows(place, target="y").count == 100


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kinds", "bus"], "--kinds: found 'bus', expected some of taxi, year"),
        (["--contestants", "gp"], "--contestants: found 'gp', expected some of sparse-gp"),
        (["--rows", "100"], "--rows: found 100, expected at least 2e5"),
    ],
)
def test_what_cannot_run_is_refused(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["scale", "--folder", str(tmp_path), *words])
    with pytest.raises(SystemExit, match="2"):
        scale.main()
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_page_says_what_the_csv_holds():
    text, found = (ROOT / scale_page.PAGE).read_text(), pd.read_csv(ROOT / scale.CSV)
    assert scale_page.page(text, found) == text
    assert list(found.columns) == list(scale.FIELDS)
    assert (
        found[["kind", "rows", "contestant", "length", "seconds", "machine", "commit"]].notna().all(axis=None)
    )
    judged = found[found.gap.notna()]
    best = judged.kind.map(scale_rows.noise_log_density)
    np.testing.assert_allclose(judged.gap, (best - judged.test_log_density) / best.abs(), atol=1e-5)


@pytest.mark.slow
def test_a_small_table_is_streamed_judged_and_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    out = tmp_path / "found.csv"
    words = [
        "scale",
        "--folder",
        str(tmp_path),
        "--rows",
        "2e5",
        "--kinds",
        "taxi",
        "--most",
        "800",
        "--out",
        str(out),
    ]
    monkeypatch.setattr("sys.argv", [*words, "--contestants", "sparse-gp,steps-2"])
    scale.main()
    scale.main()
    rows = pd.read_csv(out)
    assert list(rows.contestant) == ["sparse-gp", "sparse-gp", "steps-2"]
    # of a plan of 400 steps trials of two rates take half, and the gap is 0.06; of a constant it is 0.77
    assert rows.gap[0] < 0.05 and rows.gap[1] < 0.01 and rows.milliseconds[2] > 0.0


def test_the_plan_says_what_the_csv_holds():
    text = (ROOT / step_cost.PAGE).read_text()
    found = pd.read_csv(ROOT / step_cost.CSV)
    assert step_cost.page(text, found) == text
    small = found[found.set != step_cost.LARGE]
    assert len(small) == len(step_cost.SETS) * len(step_cost.DEPTHS)
    # of each layer at least the products of rows and M × M, forwards and twice backwards
    fewest = 3 * 2 * small.batch * small.inducing**2 * small.depth / 1e9
    assert (small.gflop > fewest).all()


@pytest.mark.parametrize("module", ["scale_lightgbm", "tables_peers", "tables_classes_peers"])
def test_processes_of_peers_need_nothing_of_ours(module):
    # their environment has neither JAX nor NumPyro
    program = (
        "import sys\n"
        "for name in ('jax', 'numpyro', 'ppl_dgp'):\n"
        "    sys.modules[name] = None\n"
        f"import benchmarks.{module}\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
