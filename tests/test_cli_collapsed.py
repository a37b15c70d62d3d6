"""`--objective collapsed`: the bound of Titsias (2009) at its own q(u), and what it is not of."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal

from ppl_dgp.cli import main, run_directory

RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, (20, 2))
FRAME = pd.DataFrame(X, columns=["a", "b"]).assign(y=5.0 + 3.0 * np.sin(2.0 * X[:, 0]) + 0.3 * X[:, 1])
TINY = ["--inducing", "5", "--objective", "collapsed", "--steps", "10", "--quiet"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "t.csv"
    FRAME.to_csv(path, index=False)
    return str(path)


def test_a_run_ends_at_the_bound_of_titsias(table: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert (
        main(["fit", table, "--model", "sparse-gp", *TINY, "--test-fraction", "0", "--out", str(folder)]) == 0
    )
    record, (params, _) = run_directory.read(folder), run_directory.load_parameters(folder)
    x, y = record.x_units.transform(X), record.y_units.transform(FRAME[["y"]].to_numpy())[:, 0]

    def kernel(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        apart = (left[:, None] - right) / params["gp/lengthscale"]
        return params["gp/variance"] * np.exp(-0.5 * np.square(apart).sum(-1))

    z, noise = params["gp/inducing"], float(params["likelihood/noise"])
    cross = kernel(x, z)
    q = cross @ np.linalg.solve(kernel(z, z) + 1e-8 * np.eye(5), cross.T)
    evidence = multivariate_normal(cov=q + noise * np.eye(20)).logpdf(y)
    bound = evidence - 0.5 * (20 * params["gp/variance"] - np.trace(q)) / noise
    # that of the run is made of the q(u) that it keeps
    assert_allclose(record.result["elbo"], bound - 20 * np.log(record.y_units.scale[0]), rtol=1e-6)
    assert record.result["steps"] <= 10 and record.settings.batch is None


@pytest.mark.slow
def test_runs_of_it_predict_and_are_compared_and_reported(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, page = tmp_path / "all", tmp_path / "all.html"
    rules = ["--model", "sparse-gp,convolved-gp,deep-gp", "--hidden", "mean-field,markov", "--widths", "1"]
    more = FRAME.assign(z=FRAME["y"] ** 2)
    more.to_csv(tmp_path / "two.csv", index=False)
    argv = ["compare", str(tmp_path / "two.csv"), "--target", "y,z", *rules, *TINY, "--out", str(folder)]
    assert main([*argv, "--html", str(page), "--json"]) == 0
    fits = {row["fit"]: row for row in json.loads(capsys.readouterr().out)["fits"]}
    assert list(fits) == ["sparse-gp", "convolved-gp", "deep-gp mean-field", "deep-gp markov"]
    # which contains the mean field, and begins at its optimum
    assert fits["deep-gp markov"]["elbo"] > fits["deep-gp mean-field"]["elbo"] - 0.5
    run = folder / "deep-gp_markov"
    assert main(["report", str(run)]) == 0 and "q(u) in closed form" in (run / "report.html").read_text()
    capsys.readouterr()
    assert main(["predict", str(run), str(tmp_path / "two.csv"), "--json"]) == 0
    assert np.isfinite(json.loads(capsys.readouterr().out)["test_rmse"])


REFUSED = [
    ([], "--hidden mean-field or markov"),
    (["--hidden", "markov", "--alpha", "0.5"], "--alpha 0"),
    (["--hidden", "markov", "--kernel", "matern32", "--widths", "3"], "rbf, linear, constant"),
    (["--model", "additive-gp"], "--model sparse-gp or convolved-gp or deep-gp"),
    (["--model", "gplvm"], "trained by its bound"),
    (["--model", "sparse-gp", "--likelihood", "poisson"], "Gaussian noise"),
    (["--model", "sparse-gp", "--inducing-rule", "diagonal"], "--inducing-rule is diagonal"),
    (["--model", "sparse-gp", "--batch", "5"], "--batch is 5"),
    (["--model", "sparse-gp", "--learning-rate", "0.1"], "--learning-rate is 0.1"),
    (["--model", "sparse-gp", "--restarts", "2"], "--restarts is 2"),
    (["--model", "sparse-gp", "--stream"], "--stream"),
]


@pytest.mark.parametrize("options, words", REFUSED, ids=[" ".join(options) for options, _ in REFUSED])
def test_what_it_is_not_of_is_refused(
    options: list[str], words: str, table: str, tmp_path: Path, refuses
) -> None:
    refuses(["fit", table, *options, *TINY[2:4], "--out", str(tmp_path / "run")], words)
    assert not (tmp_path / "run").exists()
