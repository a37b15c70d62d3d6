"""Tables of benchmarks/: what is scored, what a method's name means, and that pages say what their CSVs hold."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from benchmarks import (
    cells,
    imputers,
    tables,
    tables_classes,
    tables_classes_page,
    tables_missing,
    tables_missing_page,
    tables_page,
)
from benchmarks.predictive_scores import CENTRAL, of_mixture

ROOT = Path(__file__).parents[1]


def test_a_mixture_is_scored_as_its_density_says():
    random = np.random.default_rng(0)
    means, variances = random.normal(size=(3, 400, 1)), random.uniform(0.1, 2.0, (3, 400, 1))
    y, scale = random.normal(size=(400, 1)), np.array([2.5])
    found = of_mixture(means, variances, y, scale)
    each = stats.norm(means * 2.5, np.sqrt(variances) * 2.5)
    np.testing.assert_allclose(found["test_log_density"], np.log(each.pdf(y * 2.5).mean(0)).mean())
    inside = np.abs(2.0 * each.cdf(y * 2.5).mean(0) - 1.0)
    np.testing.assert_allclose(found["coverage95"], np.mean(inside <= 0.95))
    apart = [abs(np.mean(inside <= level) - level) for level in CENTRAL[:-1]]
    np.testing.assert_allclose(found["calibration"], np.mean(apart))
    np.testing.assert_allclose(found["rmse"], 2.5 * np.sqrt(np.mean((means.mean(0) - y) ** 2)))


def test_the_method_that_made_the_targets_is_calibrated():
    random = np.random.default_rng(1)
    means, deviations = random.normal(size=(1, 100_000, 1)), random.uniform(0.5, 2.0, (1, 100_000, 1))
    y = (means + deviations * random.normal(size=means.shape))[0]
    found = of_mixture(means, deviations**2, y, np.ones(1))
    # a share of 10⁵ has a standard error of at most 0.0016
    assert found["calibration"] < 0.005 and abs(found["coverage95"] - 0.95) < 0.003


def test_what_others_do_meanwhile_is_told_apart_from_ones_own_work(monkeypatch):
    """Thirty seconds of the processors in ten, ten of them one's own: two processors beside."""
    values = {"_busy_seconds": [100.0, 130.0], "_own_seconds": [20.0, 30.0]}
    for name, told in values.items():
        monkeypatch.setattr(cells, name, iter(told).__next__)
    clock = iter([0.0, 10.0])
    monkeypatch.setattr(cells.time, "perf_counter", clock.__next__)
    monkeypatch.setattr(cells.Path, "exists", lambda path: True)
    found: dict[str, float] = {}
    with cells.others_at_work(found):
        pass
    assert found == {"beside": 2.0}


def rows_of(**of_cell):
    return cells.as_row(
        {"set": "a", "split": 0, "method": "deep-gp-2", "budget": 100} | of_cell, tables.FIELDS
    )


@pytest.mark.parametrize(
    ("row", "budget", "done"),
    [
        ({"converged": "True"}, 1000, True),
        ({"converged": "False"}, 1000, False),
        ({"converged": "False"}, 100, True),
        ({"converged": "", "budget": 0}, 0, True),
        ({"method": "svgp"}, 100, False),
    ],
)
def test_a_cell_is_run_again_only_with_more_steps(row, budget, done):
    there = [{name: str(value) for name, value in rows_of(**row).items()}]
    assert cells.is_done(there, "a", 0, "deep-gp-2", budget) == done


@pytest.mark.parametrize(("beside", "done"), [(0.02, True), (1.4, False), ("", False)])
def test_and_where_seconds_must_count_that_were_not_alone(beside, done):
    there = [{name: str(value) for name, value in rows_of(converged="True", beside=beside).items()}]
    assert cells.is_done(there, "a", 0, "deep-gp-2", 100, timed=True) == done


@pytest.mark.parametrize(
    "name",
    ["deep-gp", "deep-gp-9", "sparse-gp.fast", "deep-gp-2.best.global", "gp", "deep-gp-two", "deep-gp-1"],
)
def test_a_name_that_is_no_method_is_refused_before_anything_runs(name, tables_refuse):
    message = f"--methods: found {name!r}, expected sparse-gp or deep-gp-2"
    tables_refuse(message, "uci/a.npz", "--sets", "a", "--methods", name)


@pytest.mark.parametrize("name", ["sparse-gp", "deep-gp-2.best", "linear"])
def test_what_is_not_one_training_of_a_deep_gp_is_not_trained_side_by_side(
    name, tmp_path, monkeypatch, capsys
):
    (tmp_path / "uci").mkdir()
    (tmp_path / "uci" / "a.npz").touch()
    monkeypatch.setattr(tables, "PEERS", tmp_path / "uci" / "a.npz")
    words = ["tables", "--data", str(tmp_path), "--sets", "a", "--methods", name, "--together"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit, match="2"):
        tables.main()
    assert f"--together: found {name}, expected deep GPs of ours" in capsys.readouterr().err


def test_splits_side_by_side_have_a_row_each_and_are_not_run_again(tmp_path, monkeypatch):
    """Two splits, in a process of its own; the second call finds both converged or at the same budget."""
    random = np.random.default_rng(0)
    x = random.normal(size=(40, 2))
    (tmp_path / "uci").mkdir()
    parts = {"train": np.array([np.arange(30), np.arange(10, 40)])}
    parts["test"] = np.array([np.arange(30, 40), np.arange(10)])
    np.savez(tmp_path / "uci" / "a.npz", X=x, y=np.sin(x[:, :1]), **parts)
    out = tmp_path / "tables.csv"
    words = ["tables", "--data", str(tmp_path), "--sets", "a", "--methods", "deep-gp-2", "--splits", "0-1"]
    words += ["--together", "--budget", "500", "--out", str(out)]
    monkeypatch.setattr("sys.argv", words)
    for _ in range(2):
        assert tables.main() == 0
        found = pd.read_csv(out)
        assert list(found.split) == [0, 1] and set(found.method) == {"deep-gp-2"}
        assert np.isfinite(found.test_log_density).all() and found.bound.nunique() == 2
        # seconds of what ran beside each other do not count
        assert found.beside.isna().all()


def test_an_imputer_that_is_none_is_refused(tables_refuse):
    words = ("latent/oil_flow.npz", "--sets", "oil", "--methods")
    tables_refuse("--methods: found 'gplvm.deep', expected some of gplvm, ", *words, "mean,gplvm.deep")
    tables_refuse("--share: found 1.5, expected a number in (0, 1)", *words, "mean", "--share", "1.5")


def test_entries_that_are_held_out_are_unknown_and_scored_in_units_of_what_is_left(tmp_path):
    random = np.random.default_rng(6)
    whole = random.normal(2.0, 3.0, (40, 5))
    whole[:, 3] = 1.0
    (tmp_path / "latent").mkdir()
    np.savez(tmp_path / "latent" / "toy.npz", Y=whole)
    rows = tables_missing.held_out(tmp_path, "toy", 0.3, 0)
    assert rows["y"].shape == (40, 4)  # the column of one value says nothing
    np.testing.assert_array_equal(np.isnan(rows["y"]), rows["gone"])
    np.testing.assert_allclose(rows["truth"][~rows["gone"]], rows["y"][~rows["gone"]])
    np.testing.assert_allclose(np.nanmean(rows["y"], 0), 0.0, atol=1e-12)
    np.testing.assert_allclose(np.nanstd(rows["y"], 0), 1.0)
    again = tables_missing.held_out(tmp_path, "toy", 0.3, 1)
    assert (again["gone"] != rows["gone"]).any()


def test_what_an_imputer_sets_aside_is_of_no_split_what_is_held_out(tmp_path):
    random = np.random.default_rng(8)
    (tmp_path / "latent").mkdir()
    np.savez(
        tmp_path / "latent" / "toy.npz", Y=random.normal(size=(60, 1)) + 0.5 * random.normal(size=(60, 4))
    )
    for number in range(10):
        y = tables_missing.held_out(tmp_path, "toy", 0.3, number)["y"]
        _, variance = imputers.by_neighbours(y)
        # the mean of five that scatter by 0.45 of a unit about it: 0.2 (1 + 1/5), of some seventeen entries
        assert 0.1 < variance[0, 0] < 0.6


def test_gaussian_entries_are_scored_as_their_density_says():
    random = np.random.default_rng(7)
    centre, deviation = random.normal(size=50_000), random.uniform(0.5, 2.0, 50_000)
    truth = centre + deviation * random.normal(size=50_000)
    found = tables_missing.scored(truth, centre, deviation**2)
    np.testing.assert_allclose(found["test_log_density"], stats.norm(centre, deviation).logpdf(truth).mean())
    np.testing.assert_allclose(found["rmse"], np.sqrt(np.mean((truth - centre) ** 2)))
    # a share of 50 000 has a standard error of at most 0.0022
    assert found["calibration"] < 0.007 and abs(found["coverage95"] - 0.95) < 0.005


def test_what_a_name_means():
    from benchmarks.tables_ours import Method

    assert Method.of("sparse-gp") == Method(1)
    assert Method.of("deep-gp-3.alpha=0.5.global") == Method(3, 0.5, "global")
    assert Method.of("deep-gp-2.alpha=1") == Method(2, 1.0)
    assert Method.of("deep-gp-2.float32.alpha=0.5") == Method(2, 0.5, bits=32)
    assert Method.of("sparse-gp.heteroscedastic") == Method(1, rule="heteroscedastic")
    assert Method.of("sparse-gp.nuts") == Method(1, rule="nuts")
    assert Method.of("deep-gp-2.mean") == Method(2, rule="mean")
    with pytest.raises(ValueError, match="mean of more"):
        Method.of("sparse-gp.mean")
    with pytest.raises(ValueError, match="nuts of one layer"):
        Method.of("deep-gp-2.nuts")
    with pytest.raises(ValueError, match="float32.float32"):
        Method.of("deep-gp-2.float32.float32")


def test_numbers_are_of_the_precision_that_a_name_says():
    from benchmarks.cells import in_precision

    before = jax.config.jax_enable_x64
    try:
        found = in_precision({"x": np.ones(2), "labels": np.arange(2)}, 32)
        assert found["x"].dtype == np.float32 and found["labels"].dtype == np.arange(2).dtype
        assert (jnp.ones(1) + found["x"]).dtype == jnp.float32
    finally:
        jax.config.update("jax_enable_x64", before)


@pytest.mark.slow
def test_a_cell_of_ours_is_run_and_kept(tmp_path, monkeypatch):
    random = np.random.default_rng(2)
    x = random.normal(size=(40, 2))
    y = 3.0 * np.sin(x[:, 0]) + 0.1 * random.normal(size=40)
    order = random.permutation(40)
    (tmp_path / "uci").mkdir()
    np.savez(tmp_path / "uci" / "toy.npz", X=x, y=y, train=order[None, :30], test=order[None, 30:])
    monkeypatch.chdir(ROOT)
    out = tmp_path / "found.csv"
    words = ["tables", "--data", str(tmp_path), "--sets", "toy", "--splits", "0", "--methods", "sparse-gp"]
    monkeypatch.setattr("sys.argv", [*words, "--budget", "600", "--out", str(out)])
    tables.main()
    tables.main()
    (row,) = pd.read_csv(out).to_dict("records")
    assert row["method"] == "sparse-gp" and row["seconds"] > 0 and row["budget"] == 600
    # better than the training rows' moments, worse than the noise
    assert (
        -stats.norm(scale=0.1).entropy() + 0.5
        > row["test_log_density"]
        > -stats.norm(scale=y.std()).entropy()
    )


def test_ranks_and_their_critical_difference_are_those_of_their_source():
    """Demšar (2006), section 3.2.2: four methods on 14 sets, 1.25 at 5 % with 2.569."""
    assert tables_page.critical_difference(4, 14) == pytest.approx(
        2.569 * np.sqrt(4 * 5 / (6 * 14)), rel=1e-3
    )
    random = np.random.default_rng(3)
    methods, sets = ("sparse-gp", "b", "c"), ("boston", "energy", "yacht")
    found = pd.DataFrame(
        [
            {
                "set": name,
                "split": split,
                "method": method,
                "test_log_density": -number + 0.1 * random.normal(),
            }
            for name in sets
            for split in range(2)
            for number, method in enumerate(methods)
        ]
    )
    ranks, count = tables_page.mean_ranks(found)
    assert count == 3 and dict(ranks) == {"sparse-gp": 1.0, "b": 2.0, "c": 3.0}
    # a method that lacks a split is not compared
    ranks, _ = tables_page.mean_ranks(found.drop(found.index[-1]))
    assert set(ranks.index) == {"sparse-gp", "b"}
    # nor one that has not converged
    lacking = (found.method == "b") & (found["set"] == "yacht")
    found["converged"] = np.where(lacking, "False", "True")
    ranks, _ = tables_page.mean_ranks(found)
    assert set(ranks.index) == {"sparse-gp", "c"}


def test_a_method_that_ran_on_the_easier_split_alone_does_not_stand_first_for_it():
    rows = [("base", 0, -1.0), ("base", 1, -3.0), ("worse", 0, -1.5), ("better", 1, -2.5)]
    found = pd.DataFrame(rows, columns=["method", "split", "test_log_density"])
    found = found.assign(converged="True", seconds=1.0, beside=0.0)
    lines = tables_page.method_lines("drawn", found, "base", ("measure",), lambda _: ("0",))
    assert [line.split(" | ")[0] for line in lines[4:]] == ["| better", "| base", "| worse"]
    assert "+0.500" in lines[4] and "−0.500" in lines[6]


TABLES = pytest.mark.parametrize(
    ("runner", "pages", "scores"),
    [
        (tables, tables_page, ["rmse", "calibration"]),
        (tables_classes, tables_classes_page, ["error", "calibration_error"]),
        (tables_missing, tables_missing_page, ["rmse", "calibration"]),
    ],
    ids=["numbers", "classes", "missing"],
)


@TABLES
def test_the_page_says_what_the_csv_holds(runner, pages, scores):
    text = (ROOT / pages.PAGE).read_text()
    assert pages.page(text, pd.read_csv(ROOT / runner.CSV)) == text


@TABLES
def test_every_row_says_how_it_came_about(runner, pages, scores):
    table = pd.read_csv(ROOT / runner.CSV)
    assert list(table.columns) == list(runner.FIELDS)
    assert table[["set", "split", "seed", "method", "budget", "machine", "commit"]].notna().all(axis=None)
    assert np.isfinite(table[["test_log_density", "seconds", *scores]]).all(axis=None)


def test_seconds_without_compilation_do_not_count(tmp_path, monkeypatch):
    from argparse import Namespace

    out = tmp_path / "found.csv"
    options = Namespace(sets="a", splits="0", methods="ours,peer", out=out, timed=False)
    versions = {"ours": "jax 0.10 numpyro 0.21", "peer": "lightgbm 4"}
    monkeypatch.setenv(cells.CACHE, str(tmp_path))
    monkeypatch.setattr(cells, "others_since", lambda began: {"beside": 0.01})
    work = lambda method, budget: {"versions": versions[method], "seconds": 1.0}
    cells.run(options, tables.FIELDS, lambda name, number: work, lambda method: 0)
    rows = pd.read_csv(out).set_index("method")
    assert np.isnan(rows.beside["ours"]) and rows.beside["peer"] == 0.01
    assert (
        tables_page.shown_seconds(rows.loc[["ours"]]) == ""
        and tables_page.shown_seconds(rows.loc[["peer"]]) == "1"
    )
