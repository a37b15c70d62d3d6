"""Advice is said where it is due, once, and nowhere else."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from ppl_dgp.cli.commands import tightest_bound
from ppl_dgp.cli.report import of_held_out
from ppl_dgp.cli.task import Task
from ppl_dgp.data import Standardiser, Table
from ppl_dgp.diagnostics import Comparison, compare_fits
from ppl_dgp.fit import Fit, fit_svi
from ppl_dgp.fit.advice import ADVICE, advice_of, few_steps_advice, held_out_advice
from ppl_dgp.fit.chains import chains_of
from ppl_dgp.fit.convergence import FEWEST_STEPS, convergence_of
from ppl_dgp.guides import Guide
from ppl_dgp.models import sparse_gp_regression
from ppl_dgp.objectives import BlackBoxAlpha, Collapsed, ImportanceWeighted, PowerEP

KEY = jax.random.PRNGKey(0)
X = np.linspace(-1.0, 1.0, 12)[:, None]
Y = np.sin(4.0 * X)
MODEL = sparse_gp_regression(4)
GOOD = {
    "gp/inducing": np.linspace(-1.0, 1.0, 4)[:, None],
    "gp/lengthscale": np.ones(1),
    "gp/variance": np.asarray(1.0),
    "likelihood/noise": np.asarray(0.1),
}


def fit_of(losses=None, *, params=None, **changed):
    """A fit that is at rest, but for what is changed."""
    rng = np.random.default_rng(0)
    losses = 10.0 + rng.normal(size=(1, 200)) if losses is None else np.atleast_2d(losses)
    usual = dict(
        objective=PowerEP(0.5), losses=losses, rejected_steps=0, seconds=1.0, steps=losses.shape[1],
        restart_params={}, best=0, fingerprint="", jitter={"gp/jitter": 1e-8},
        convergence=convergence_of(losses[0], 2.0),
    )  # fmt: skip
    values = {name: jnp.asarray(value) for name, value in {**GOOD, **(params or {})}.items()}
    return Fit(MODEL, Guide(MODEL), values, **{**usual, **changed})


def began(text):
    """The blanks of a text as wildcards."""
    return re.sub(r"\\{.*?\\}", ".*", re.escape(text))


DRAWS = {"u": np.random.default_rng(0).normal(size=(2, 200, 1)) + np.arange(2.0)[:, None, None]}
DIVERGED = {"diverging": np.arange(400).reshape(2, 200) == 7}
CASES = {
    "rejected": (fit_of(rejected_steps=3), {}),
    "jitter": (fit_of(jitter={"gp/jitter": 1e-4}), {}),
    "gap": (fit_of(np.linspace(100.0, 0.0, 200)), {}),
    "risen": (
        fit_of(np.r_[np.zeros(20), np.full(180, 1e6)], convergence=convergence_of(np.zeros(200), 2.0)),
        {},
    ),
    "shortfall": (
        fit_of(convergence=dataclasses.replace(convergence_of(np.zeros(200), 2.0), shortfall=3.0)),
        {},
    ),
    "noise": (fit_of(params={"likelihood/noise": np.asarray(1e-9)}), {}),
    "inducing": (fit_of(params={"gp/inducing": np.array([[-1.0], [0.3], [0.3 + 1e-5], [1.0]])}), {}),
    "khat": (fit_of(), {"khat": 0.9}),
    "energy": (fit_of(objective=BlackBoxAlpha(0.5)), {"bound": (-20.0, 1.0)}),
    "divergences": (fit_of(np.empty((1, 0)), chains=chains_of(DRAWS, DIVERGED, 10)), {}),
    "r_hat": (fit_of(np.empty((1, 0)), chains=chains_of(DRAWS, DIVERGED, 10)), {}),
    "overwhelmed": (fit_of(np.empty((1, 0)), chains=chains_of(DRAWS, DIVERGED, 10, 0.2)), {}),
}


#: said of predictions of what was held out, or on the command line, not of a fit
HELD_OUT = {"density", "coverage", "frequencies", "few"}


def test_every_text_has_a_case():
    assert CASES.keys() == ADVICE.keys() - HELD_OUT


@pytest.mark.parametrize("name", CASES)
def test_it_is_said_where_it_is_due(name):
    fit, known = CASES[name]
    found = advice_of(fit, **known)
    of_chains = {"divergences", "r_hat"}
    expected = of_chains | {name} if name in of_chains | {"overwhelmed"} else {name}
    assert {key for key in ADVICE for text in found if re.fullmatch(began(ADVICE[key]), text)} == expected
    assert len(found) == len(expected) and all("\n" not in text for text in found)


@pytest.mark.parametrize(
    ("losses", "known"),
    [
        (None, {"khat": 0.5, "bound": (-9.0, 1.0)}),
        # noise that is larger than the fall, a fall at the beginning, few steps
        (10.0 + np.random.default_rng(1).normal(size=200) - np.linspace(0.0, 0.5, 200), {}),
        (np.r_[1e4, np.linspace(10.0, 9.5, 199)], {}),
        (np.linspace(100.0, 0.0, FEWEST_STEPS - 1), {}),
        # half of the steps rejected
        (np.where(np.arange(200) % 2, np.nan, 10.0), {}),
    ],
    ids=["at rest", "noise", "begun", "few steps", "gaps"],
)
def test_it_is_said_nowhere_else(losses, known):
    assert advice_of(fit_of(losses), **known) == ()


def test_the_command_line_says_that_steps_were_too_few():
    few = few_steps_advice(fit_of(np.linspace(100.0, 0.0, FEWEST_STEPS - 1)))
    assert few == (ADVICE["few"].format(more="steps"),) and few_steps_advice(fit_of()) == ()


def test_a_bound_is_no_energy_that_lies_too_high():
    """One at a higher α lies above the ELBO, as it should."""
    for objective in (PowerEP(0.5), ImportanceWeighted(3), BlackBoxAlpha(0.0), Collapsed.vfe()):
        assert objective.is_bound and advice_of(fit_of(objective=objective), bound=(-20.0, 1.0)) == ()
    for objective in (BlackBoxAlpha(1.0), PowerEP(lambda step: 0.1), Collapsed.fitc(), Collapsed.dtc()):
        assert not objective.is_bound


@pytest.mark.slow
def test_a_comparison_says_that_an_energy_lies_above_the_bounds():
    fit = fit_svi(KEY, MODEL, Guide(MODEL), BlackBoxAlpha(1.0), X, Y, steps=60)
    higher, lower = (dataclasses.replace(fit, losses=fit.losses + step) for step in (-1000.0, 1000.0))
    table = compare_fits(KEY, higher, X, Y, {"lower": lower}, num_draws=20, num_samples=2)
    assert [text.partition(":")[0] for text in table.advice if "energy: found" in text] == ["this fit, α = 1"]


def test_the_command_line_compares_in_the_units_of_training():
    """log p of data that are 10 times as large is log p − N log 10; entries that are missing have none."""
    y = 10.0 * Y
    table = Table(X, np.where(np.arange(12)[:, None] == 3, np.nan, y), ("x",), ("y",))
    units = Standardiser(np.zeros(1), np.ones(1)), Standardiser(np.zeros(1), np.full(1, 10.0))
    task = Task(table, np.arange(8), np.arange(8, 12), *units)
    for measures in ({"elbo": -30.0, "elbo_se": 0.2, "iw_bound": -31.0}, {"elbo": -30.0, "elbo_se": 0.2}):
        assert tightest_bound(task, measures) == pytest.approx((-30.0 + 7.0 * np.log(10.0), 0.2))
    assert tightest_bound(task, {"elbo": None}) is None


def test_what_is_left_to_gain_is_told_as_it_is_judged():
    known = dataclasses.replace(convergence_of(np.full(200, 10.0), 2.0), gap=0.24, error=0.3, tolerance=0.5)
    assert not known.converged
    (said,) = fit_of(convergence=known).advice
    assert said.startswith(
        "convergence: found up to 0.84 nats yet to gain, 0.24 by how the losses fell and twice 0.3"
    )
    assert fit_of(convergence=dataclasses.replace(known, error=0.1)).advice == ()


def test_a_fit_and_a_comparison_show_it():
    short = fit_svi(KEY, MODEL, Guide(MODEL), PowerEP(0.0), X, Y, steps=100)
    assert len(short.advice) == 1 and short.advice[0].startswith("convergence: found up to")
    assert "advice    convergence, see fit.advice" in repr(short)
    assert "advice" not in repr(fit_of())
    table = compare_fits(KEY, short, X, Y, {"another": short}, num_draws=20, num_samples=2)
    told = [text for text in table.advice if "convergence: found" in text]
    assert len(told) == 1 and told[0].startswith("this fit, α = 0; another, α = 0: ")
    assert "yet to gain" in str(table.to_rich().caption)
    assert Comparison(table.table).advice == ()


def test_held_out_rows_are_predicted_no_worse_than_by_a_mean():
    """Beside the Gaussian of the training rows' mean and variance, in original units, missing entries left out."""
    units = Standardiser(np.array([1.0]), np.array([2.0]))
    y = np.r_[np.linspace(-3.0, 5.0, 30), np.nan][:, None]
    mean = norm(1.0, 2.0).logpdf(y[:30]).mean()
    told = lambda density, coverage: of_held_out(
        y, units, {"test_log_density": density, "coverage95": coverage}, "gpssm"
    )
    assert told(mean + 1e-9, 1.0) == ()
    assert told(-182.0, 0.45) == (
        f"test log density: found -182, expected at least {mean:.3g}, what the training rows' mean and variance "
        "have: its predictions are worth less than none; take another --hidden, or choose_by_simulation",
        "coverage: found 45% of what was held out inside its 95 % band, expected 85% to 99%; do not believe its bands: "
        "take another --hidden, or choose_by_simulation",
    )
    assert of_held_out(y, units, {"test_log_density": None}, "gpssm") == ()
    assert held_out_advice(0.1, -9.0, 0.0, 19, "") == ()
