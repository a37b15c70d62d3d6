"""`ppl-dgp fit --model stack --blocks …`: the API's models, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ppl_dgp import (
    BayesianLayer,
    DeterministicNetwork,
    GPLayer,
    LatentInputs,
    RandomFeaturesLayer,
    stack,
    stack_classification,
)
from ppl_dgp.cli import main
from ppl_dgp.cli.comparison import combinations
from ppl_dgp.cli.programs import build
from ppl_dgp.cli.settings import Settings
from ppl_dgp.guides import Conditional, Diagonal


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = np.random.default_rng(0)
    u, v = rng.uniform(100.0, 200.0, (2, 20))
    frame = pd.DataFrame({"u": u, "v": v, "y": 1000.0 + 50.0 * np.sin(u / 15.0)})
    path = tmp_path_factory.mktemp("data") / "table.csv"
    frame.to_csv(path, index=False)
    return str(path)


def test_settings_make_the_blocks() -> None:
    settings = Settings(
        model="stack",
        blocks="latent:1, network:4:3,bayesian:2,random-features:2,gp",
        hidden="conditional",
        inducing_rule="diagonal",
        kernel="matern32",
        inducing=5,
    )
    settings.check()
    program = build(settings, 2)
    blocks = [
        LatentInputs(1),
        DeterministicNetwork((4, 3)),
        BayesianLayer(2),
        RandomFeaturesLayer(2, kernel="matern32"),
        GPLayer(None, 5, kernel="matern32"),
    ]
    assert program.model == stack(blocks, num_outputs=2)
    assert (program.guide.hidden, program.guide.inducing) == (Conditional(), Diagonal())
    labelled = Settings(model="stack", blocks="gp:2,bayesian", likelihood="softmax", inducing=5)
    labelled.check()
    expected = stack_classification([GPLayer(2, 5), BayesianLayer()], 3, likelihood="softmax")
    assert build(labelled, 1, 1, 3).model == expected
    assert Settings.from_json(settings.to_json()) == settings
    earlier = {name: value for name, value in Settings().to_json().items() if name != "blocks"}
    assert Settings.from_json(earlier) == Settings()


def test_a_stack_is_fitted_shown_and_predicts(table: str, tmp_path: Path, capsys) -> None:
    run = str(tmp_path / "run")
    argv = ["fit", table, "--model", "stack", "--blocks", "bayesian:2,gp", "--inducing", "4", "--steps", "10"]
    assert main([*argv, "--test-fraction", "0", "--quiet", "--out", run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run_directory"] == run
    assert main(["show", run]) == 0
    assert "bayesian:2,gp" in capsys.readouterr().out
    assert main(["predict", run, table]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 21 and rows[0].startswith("row,y,y_mean,")


def test_a_comparison_gives_blocks_to_stacks_alone() -> None:
    lists = {"model": ["stack", "deep-gp", "sparse-gp"], "hidden": ["markov", "conditional"]}
    found = combinations(Settings(blocks="bayesian:2,gp", widths=(3,)), lists)
    assert list(found) == [
        "stack markov",
        "stack conditional",
        "deep-gp markov",
        "deep-gp conditional",
        "sparse-gp",
    ]
    assert {name: each.blocks for name, each in found.items() if each.blocks} == dict.fromkeys(
        ["stack markov", "stack conditional"], "bayesian:2,gp"
    )
    assert found["deep-gp markov"].widths == (3,) and found["stack markov"].widths == Settings().widths


BAD = [
    ([], ["--blocks is not given", "bayesian:20,gp"]),
    (["--blocks", "bayesian:20,gpp"], ["'gpp'", "choose from gp, bayesian"]),
    (["--blocks", "bayesian:0,gp"], ["'bayesian:0'", "at least 1"]),
    (["--blocks", "bayesian:x,gp"], ["'bayesian:x'"]),
    (["--blocks", "bayesian,gp"], ["'bayesian' without a width"]),
    (["--blocks", "gp:2:3,gp"], ["'gp:2:3' of several widths"]),
    (["--blocks", "gp:2"], ["ends in 'gp:2', with a width"]),
    (["--blocks", "gp:2,latent"], ["ends in 'latent', no layer"]),
    (["--blocks", ""], ["''", "choose from"]),
    (["--blocks", "gp:2,gp", "--widths", "3"], ["--widths is 3, but a stack"]),
    (["--blocks", "gp:2,gp", "--stride", "2"], ["--stride is 2", "no images"]),
    (["--blocks", "gp:2,gp", "--hidden", "moment-matched", "--alpha", "0.5"], ["--alpha is 0.5"]),
    (["--blocks", "gp:2,gp", "--likelihood", "poisson"], ["--likelihood poisson is of whole numbers"]),
    (["--model", "deep-gp", "--blocks", "gp:2,gp"], ["--blocks is gp:2,gp, but is of a stack"]),
    (["--model", "gpssm", "--blocks", "gp"], ["--blocks is gp, but is of a stack"]),
]


@pytest.mark.parametrize("options, words", BAD, ids=[" ".join(options) for options, _ in BAD])
def test_what_makes_no_stack_is_refused(options, words, table: str, tmp_path: Path, capsys) -> None:
    given = options if "--model" in options else ["--model", "stack", *options]
    assert main(["fit", table, *given, "--out", str(tmp_path / "run"), "--quiet"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("ppl-dgp: error: ") and err.count("\n") == 1
    for word in words:
        assert word in err
    assert not (tmp_path / "run").exists()
