"""Calls that cannot be right say so in the caller's words, before anything is traced."""

import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from fast import few

from ppl_dgp.fit import ResumeWarning, fit_svi
from ppl_dgp.guides import Guide
from ppl_dgp.models import deep_gp, gpssm
from ppl_dgp.objectives import PowerEP

KEY = jax.random.key(0)
X = np.linspace(-1.0, 1.0, 12)[:, None]
Y = np.sin(4.0 * X)
MODEL = deep_gp((1,), 4)
ERRORS = {
    "objective": "TypeError: objective: found the class PowerEP, .*PowerEP\\(\\)",
    "no objective": "TypeError: objective: found 3, expected an ELBO, or one of power-ep",
    "model": "TypeError: model: found the class deep_gp, .*call it first",
    "guide": "TypeError: model: found the class deep_gp, .*call it first",
    "guide class": "TypeError: guide: found the class AutoNormal",
    "widths": "ValueError: widths: found 2, .*write \\(2,\\) for one",
    "others": "TypeError: others: .*give others=AutoNormal",
    "rule": "ValueError: hidden: found 'meanfield', which is unknown; did you mean 'mean-field'",
    "rule class": "TypeError: hidden: found .*expected a rule such as MeanField",
    "seed": "TypeError: key: found 7, .*pass jax.random.key\\(7\\)",
    "seed of a verb": "TypeError: key: found 7, .*pass jax.random.key\\(7\\)",
    "another model": "ValueError: guide: found one of deep_gp.*num_inducing=5",
    "a model of other blocks": "ValueError: guide: found one of stack.*expected one of the model, deep_gp",
    "swapped": "TypeError: fit: found an array of shape \\(\\), .*to_arviz\\(key, fit, x, y",
    "data first": "TypeError: fit: found an array of shape \\(12, 1\\), .*predict\\(key, fit, x, y",
    "a dictionary": "TypeError: fit: found dict, expected a Fit",
    "minibatches": "TypeError: model: found no arguments index and size",
    "sequences": "ValueError: x: found no columns, .*leave num_sequences out",
    "predictive": "ValueError: x: found other rows .*at 'layer1/h'; at new rows take ppl_dgp.predict",
    "predictive of the model": "returned: \\(2, 5, 1\\)",
}


@pytest.fixture(scope="module")
def answers():
    script = Path(__file__).with_name("wrong_calls.py")
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


@pytest.mark.parametrize("name", ERRORS)
def test_the_error_names_the_argument_and_the_remedy(answers, name):
    text = ": ".join(answers[name])
    assert re.match(ERRORS[name], text), text
    assert "\n" not in text.partition("\n----")[0]


def trained(**changed):
    """A fit by two steps, some of its arguments changed."""
    usual = {
        "key": KEY,
        "model": MODEL,
        "guide": Guide(MODEL),
        "objective": PowerEP(),
        "x": X,
        "y": Y,
        "steps": 2,
    }
    return fit_svi(**{**usual, **changed})


def test_to_resume_a_longer_fit_is_noted(tmp_path):
    longer = trained(steps=4, checkpoint=tmp_path)
    with pytest.warns(ResumeWarning, match="steps: found 3 to resume a fit of 4 steps"):
        shorter = trained(steps=3, checkpoint=tmp_path, resume=True)
    np.testing.assert_array_equal(shorter.losses, longer.losses)


@pytest.mark.slow
@pytest.mark.parametrize(
    "y", few([np.ones((1, 1)), np.ones((2, 1)), np.arange(3.0)[:, None]], 1), ids=["one", "constant", "line"]
)
def test_a_linear_start_leaves_noise_to_begin_with(y):
    """Few steps are followed exactly by a linear system; a transition without noise had a loss of 10¹⁰ nats."""
    model = gpssm(1, num_inducing=1, start="linear")
    fit = trained(model=model, guide=Guide(model), x=None, y=y, steps=1)
    assert fit.losses[0, 0] < 1e3 and float(fit.params["transition/noise"].min()) > 1e-5
