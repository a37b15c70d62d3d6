"""The README's example runs as it is printed."""

import re
from pathlib import Path

import numpy as np
import pytest

README = Path(__file__).parent.parent / "README.md"


def test_the_example_runs_and_fits_the_step() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    scope: dict[str, object] = {}
    exec(compile(blocks[0], str(README), "exec"), scope)
    # noise of 0.05 has log density 1.58 at best; a constant fits at -0.7
    assert np.mean(scope["new"].log_density) > 0.5  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("needed", ["GPLVM(", "gplvm("])
def test_the_latent_examples_run(needed: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    (block,) = [each for each in blocks if needed in each]
    scope: dict[str, object] = {}
    exec(compile(block, str(README), "exec"), scope)
    if needed == "GPLVM(":
        # sepals of that flower are 3.1 wide; their mean is 3.06, their standard deviation 0.43
        assert scope["filled"][3, 1] == pytest.approx(3.1, abs=0.5)  # type: ignore[index]
    else:
        assert scope["latents"].mean.shape == (10, 2)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_example_of_many_rows_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    (block,) = [each for each in blocks if "open_rows(" in each]
    scope: dict[str, object] = {}
    exec(compile(block, str(README), "exec"), scope)
    losses = scope["fit"].losses[0] / 100_000  # type: ignore[attr-defined]
    # standardised noise-free rows: nothing learnt is at 1.4 nats a row
    assert losses[-50:].mean() < 0.7


@pytest.mark.slow
def test_the_example_of_an_estimator_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    (block,) = [each for each in blocks if "SparseGPRegressor(" in each]
    scope: dict[str, object] = {}
    exec(compile(block, str(README), "exec"), scope)
    # a linear regression explains half of the variance
    assert scope["model"].score(scope["X"], scope["y"]) > 0.4  # type: ignore[attr-defined]


def test_the_example_is_short() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len([line for line in blocks[0].splitlines() if line.strip()]) <= 15
