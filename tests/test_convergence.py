"""Fits end when what steps without end would gain is small, and say so."""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer.svi import SVIState
from sklearn.exceptions import ConvergenceWarning
from test_advice import fit_of

from ppl_dgp.cli import settings
from ppl_dgp.diagnostics import plot_losses, to_arviz
from ppl_dgp.estimators import SparseGPRegressor
from ppl_dgp.fit import FitError, energy, fit_lbfgs, fit_many, fit_svi, full_batch, optimal_inducing
from ppl_dgp.fit.advice import advice_of
from ppl_dgp.fit.annealing import (
    LOWERED,
    LOWEST_RATE,
    NEAR,
    RISING_PART,
    STILL_STEPS,
    UNDONE,
    AutoSteps,
    Trial,
    annealed_adam,
)
from ppl_dgp.fit.convergence import (
    Phase,
    checked_tolerance,
    convergence_at,
    convergence_of,
    ends_of_parts,
    in_order,
)
from ppl_dgp.fit.plan import BUDGET, PEAKS, TRIAL, plan_of
from ppl_dgp.fit.result import best_restart
from ppl_dgp.guides import Guide
from ppl_dgp.models import deep_gp, sparse_gp_regression
from ppl_dgp.objectives import Collapsed, PowerEP

KEY = jax.random.PRNGKey(3)
ENDS = [500 * (2**number - 1) for number in range(1, 7)]


def found_at(losses, ends=ENDS):
    """The convergence of cycles that double."""
    parts = zip([0, *ends], ends, *ends_of_parts(losses, ends), strict=False)
    return convergence_at([Phase("cycle", *part[:2], 0.1, *part[2:], True) for part in parts], 0.5)


def losses_of(power, scale, noise, steps, seed=0):
    """c (t + 50)^−p and noise."""
    times = np.arange(1.0, steps + 1.0)
    return scale * (times + 50.0) ** -power + noise * np.random.default_rng(seed).normal(size=steps)


@pytest.fixture(scope="module")
def converged():
    x = np.linspace(-2.0, 2.0, 30)[:, None]
    y = np.sin(2.0 * x) + 0.1 * np.random.default_rng(0).normal(size=x.shape)
    model = sparse_gp_regression(6)
    return fit_svi(KEY, model, Guide(model), PowerEP(0.0), x, y), x, y


def test_the_rate_rises_and_falls_by_a_cosine():
    adam = annealed_adam(0.1, 500)
    assert annealed_adam(0.1, 500) is adam
    state, rates = adam.init({"a": jnp.zeros(())}), []
    step = jax.jit(adam.update)
    for _ in range(500):
        # of a constant slope Adam's direction is 1
        moves, state = step({"a": jnp.ones(())}, state)
        rates.append(-float(moves["a"]))
    done = np.arange(500) / 500
    falling = np.cos(0.5 * np.pi * (done - RISING_PART) / (1.0 - RISING_PART)) ** 2
    share = np.where(done < RISING_PART, done / RISING_PART, falling)
    expected = 0.1 * (LOWEST_RATE + (1.0 - LOWEST_RATE) * share)
    expected[:STILL_STEPS] = 0.0
    np.testing.assert_allclose(rates, expected, rtol=1e-3)


@pytest.mark.slow
def test_the_start_is_judged_where_it_is():
    """The first losses of "auto" are those at the start, so that one at an optimum is never lost, however narrow."""
    x = np.linspace(-2.0, 2.0, 40)[:, None]
    y = np.sin(2.0 * x) + 1e-4 * np.random.default_rng(0).normal(size=x.shape)
    model = sparse_gp_regression(12)
    best = fit_lbfgs(KEY, model, x, y, guide=Guide(model), objective=Collapsed())
    best = optimal_inducing(best, x, y)
    there = energy(KEY, best, x, y, objective=PowerEP(0.0))
    on = fit_svi(KEY, model, Guide(model), PowerEP(0.0), x, y, start=best.params, budget=800, chunk=20)
    np.testing.assert_allclose(-on.losses[0, :STILL_STEPS], there, atol=0.01 * abs(there))
    assert on.losses[0, STILL_STEPS:400].max() > 100.0 - there  # which steps of any size throw far back
    assert energy(KEY, on, x, y) > there - 1.0


def test_advice_names_the_budget_that_another_cycle_needs():
    """25 000 end where 12 800 do: the next cycle would end beyond them."""
    losses = np.linspace(1e6, 0.0, 25_000)
    plan = plan_of("auto", 25_000, None, None, None, 100, 10)
    known = plan.convergence(losses[: plan.steps])
    for shown in (known, known.after(500)):
        (advice,) = advice_of(fit_of(losses[: plan.steps], convergence=shown))
        needed = int(re.search(r"raise budget to (\d+) steps", advice)[1])
        assert plan_of("auto", needed, None, None, None, 100, 10).steps == needed > 25_000
        assert plan_of("auto", needed - 1, None, None, None, 100, 10).steps == plan.steps


def test_trials_come_first_then_cycles_that_double():
    plan = plan_of("auto", 20_000, None, None, None, 100, 10)
    trials = [TRIAL * (number + 1) for number in range(len(PEAKS))]
    cycles = [trials[-1] + TRIAL * (2**number - 2) for number in range(2, 7)]
    assert plan.ends(20_000) == trials + [end for end in cycles if end <= 20_000]
    assert (
        plan.steps == plan.ends(20_000)[-1]
        and plan.tolerance == 0.5
        and plan.trials == tuple(map(Trial, PEAKS))
    )
    deep = plan_of("auto", BUDGET, None, None, None, 100, 10, begin="shallow")
    assert deep.steps == BUDGET and deep.kept == ("start", "usual", "best")
    assert [trial.start for trial in deep.trials] == ["start", "start", "usual"]
    given = plan_of("auto", BUDGET, None, None, None, 100, 10, begin="given")
    assert max(trial.peak for trial in given.trials) < max(PEAKS) and given.kept == ("start", "best")
    assert plan_of("auto", 2100, None, None, None, 100, 10).ends(2100) == [500, 1000, 2000]
    one = plan_of("auto", 20_000, 2.0, 0.05, None, 100, 10)
    assert one.ends(4 * TRIAL) == [TRIAL, 3 * TRIAL] and one.trials == (Trial(0.05),) and one.tolerance == 2.0


def test_the_best_trial_goes_on_and_a_cycle_that_rose_is_undone():
    plan = AutoSteps((Trial(0.03), Trial(0.1), Trial(0.3)), 10, 200, 0.5)
    levels = {10: 5.0, 20: 2.0, 30: 9.0, 50: 1.0, 90: 4.0, 170: 0.5}
    losses, begin = [], 0
    for end, level in levels.items():
        losses += [level] * (end - begin)
        begin = end
    kept, states = {"start": named("start"), "best": named("start")}, {}
    for end in levels:
        found = plan.turn(end, np.asarray(losses)[None, :end], named(end), kept)
        states[end] = (
            text_of(found[0]),
            int(found[0].optim_state[1][1].length),
            float(found[0].optim_state[1][1].peak),
        )
    went_on = {10: ("start", 10, 0.1), 20: ("start", 10, 0.3), 30: (20, 20, 0.1 * LOWERED)}
    undone = 0.1 * LOWERED**2 * UNDONE
    went_on |= {50: (50, 40, 0.1 * LOWERED**2), 90: (50, 80, undone), 170: (170, 160, LOWERED * undone)}
    for end, (name, length, peak) in went_on.items():
        assert states[end][:2] == (-1 if name == "start" else name, length) and states[end][
            2
        ] == pytest.approx(peak)
    assert plan.turn(95, np.asarray(losses)[None, :95], named(95), kept) is None
    phases = plan.convergence(np.asarray(losses)).phases
    assert [phase.end for phase in phases if phase.kept] == [20, 50, 170]
    assert [phase.peak for phase in phases[1:]] == pytest.approx(
        [went_on[end][2] for end in list(levels)[:-1]]
    )


def named(name):
    """A state that can be told from others."""
    params = {"a": jnp.asarray(-1.0 if name == "start" else float(name))}
    state = annealed_adam(0.03, 10).init(params)
    return SVIState((jnp.asarray(0), (params, state)), None, KEY)


def text_of(state):
    """Its name."""
    return int(state.optim_state[1][0]["a"])


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_gap_is_near_what_is_left_of_a_power_of_the_steps(power):
    """With the steps doubled gains are a geometric series, whose sum is the loss that is left."""
    steps = ENDS[-1]
    found = found_at(losses_of(power, 500.0 * 4000.0**power / 10.0, 0.0, steps))
    left = 50.0 * (4000.0 / steps) ** power
    assert 0.7 * left < found.gap < 1.3 * left
    assert found.converged == (found.gap <= 0.5) and [phase.end for phase in found.phases] == ENDS


def test_noise_alone_is_convergence_where_it_is_small_enough():
    for noise, converged in ((1.0, True), (300.0, False)):
        found = [found_at(losses_of(1.0, 0.0, noise, 7500, seed), ENDS[:4]) for seed in range(200)]
        assert np.mean([each.converged for each in found]) == pytest.approx(float(converged), abs=0.05)
        # the gains that are seen are of the size that their errors say
        ratio = np.mean([each.gap for each in found]) / np.mean([each.error for each in found])
        assert 0.5 < ratio < 1.5


def test_what_is_not_known_is_no_convergence():
    assert not found_at(np.zeros(500), ENDS[:1]).converged
    assert found_at(np.zeros(1500), ENDS[:2]).converged
    assert not found_at(np.full(1500, np.nan), ENDS[:2]).converged
    assert not convergence_of(np.zeros(50), 0.5).converged
    assert not convergence_of(np.linspace(1000.0, 0.0, 1000), 0.5).converged
    assert checked_tolerance(None, 100) == 0.5 and checked_tolerance(None, 10_000) == 10.0


def test_a_fit_ends_at_the_optimum_and_says_so(converged):
    """The bound of one layer, whose optimum over q(u) and hyperparameters L-BFGS finds."""
    fit, x, y = converged
    best = fit_lbfgs(KEY, fit.model, x, y, guide=fit.guide, objective=Collapsed())
    assert fit.converged and fit.gap < 0.5 and fit.phases[-1].end == fit.steps
    assert fit.losses[0, -1] < best.losses[0, -1] + 0.5
    short = fit_svi(KEY, fit.model, fit.guide, fit.objective, x, y, steps=200)
    assert short.converged is False and "not converged, " in repr(short)


def test_what_cannot_be_is_refused():
    x = np.zeros((3, 1))
    model = sparse_gp_regression(2)
    fit = lambda **given: fit_svi(KEY, model, Guide(model), PowerEP(0.0), x, x, **given)
    for given, message in (
        ({"steps": "many"}, "steps: found 'many'"),
        ({"budget": 300}, "budget: found 300"),
        ({"budget": 6000, "chunk": 2000}, "budget: found 6000 with chunks of 2000"),
        ({"patience": 10}, "patience: found one"),
        ({"tolerance": -1.0}, "tolerance: found -1.0"),
        ({"learning_rate": lambda step: 0.1}, "learning_rate: found a schedule"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(**given)


def test_it_is_said_wherever_a_fit_is_shown(converged):
    fit, x, y = converged
    assert f"converged, {fit.gap:.2g} ±" in repr(fit)
    table = fit.summary()
    assert table.loc[("training", "gap", ""), "value"] == fit.gap
    assert table.attrs["convergence"].startswith("converged")
    attributes = to_arviz(KEY, fit, x, y, num_draws=2).attrs
    assert attributes["converged"] == 1 and attributes["gap"] == fit.gap
    figure = plot_losses(fit)
    above, below = figure.axes
    assert below.get_ylabel() == "rate" and len(below.lines[0].get_xdata()) == fit.steps
    assert below.lines[0].get_ydata().max() == pytest.approx(max(PEAKS), rel=0.01)
    assert {text.get_text() for text in above.get_legend().get_texts()} >= {"converged"}
    # trials that were not the best are grey
    assert len(above.patches) == len(PEAKS) - 1


@pytest.mark.slow
def test_a_fit_goes_on_where_it_was_stopped(converged, tmp_path):
    """Also in the middle of a cycle, bit for bit; and with a larger budget."""
    fit, x, y = converged
    never = lambda **given: fit_svi(KEY, fit.model, fit.guide, fit.objective, x, y, tolerance=1e-9, **given)
    kept = {"checkpoint": tmp_path / "kept"}

    def stop(step, losses):
        if step == 2 * TRIAL + 200:
            raise KeyboardInterrupt

    short, whole = never(budget=4 * TRIAL), never(budget=8 * TRIAL)
    assert short.steps == 4 * TRIAL and not short.converged and whole.steps == 8 * TRIAL
    with pytest.raises(KeyboardInterrupt):
        never(budget=4 * TRIAL, on_chunk=stop, checkpoint_every=1, **kept)
    for budget, expected in ((4, short), (8, whole), (8, whole)):
        again = never(budget=budget * TRIAL, resume=True, **kept)
        np.testing.assert_array_equal(again.losses, expected.losses)
        for name, value in expected.params.items():
            np.testing.assert_array_equal(again.params[name], value)


@pytest.mark.slow
def test_restarts_are_rivals_and_members_are_not(converged):
    fit, x, y = converged
    both = fit_svi(KEY, fit.model, fit.guide, fit.objective, x, y, restarts=2, budget=2000)
    # after the trials one of two is left
    assert both.losses.shape == (1, 2000) and both.phases[-1].end == 2000
    assert [len(phase.rivals) for phase in both.phases] == [1, 1, 0]
    assert both.phases[1].rivals[0] > min(phase.loss for phase in both.phases[:2])
    many = fit_many(jax.random.split(KEY, 2), fit.model, fit.guide, fit.objective, x, y, budget=2000)
    assert [each.losses.shape for each in many] == [(1, 2000)] * 2
    assert all(each.convergence is not None for each in many)
    with pytest.raises(ValueError, match="learning_rates: found them with steps='auto'"):
        fit_many(KEY, fit.model, fit.guide, fit.objective, [x, x], [y, y], learning_rates=[0.1, 0.2])


def test_deterministic_objectives_say_it_by_their_slope(converged):
    fit, x, y = converged
    about = {"guide": fit.guide, "objective": Collapsed()}
    best = fit_lbfgs(KEY, fit.model, x, y, **about)
    # it has ended by itself: what is left is what its quadratic foresees
    assert best.converged and best.gap < 1e-3 and "converged" in repr(best)
    short = fit_lbfgs(KEY, fit.model, x, y, steps=10, **about)
    assert short.converged is False and short.gap > 0.5
    left = float(short.losses[0, -1] - best.losses[0, -1])
    assert short.gap > left / 3.0
    assert not fit_lbfgs(KEY, fit.model, x, y, steps=2, **about).converged


def test_the_command_line_knows_the_budgets():
    assert settings.BUDGET == BUDGET and settings.MOST_ITERATIONS == full_batch.BUDGET
    for known, rate in ((True, 0.1), (False, None)):
        fewest = settings.LEAST_BUDGET[known]
        assert plan_of("auto", fewest, None, rate, None, 100, 10, begin="shallow").steps == fewest
        with pytest.raises(ValueError, match="budget"):
            plan_of("auto", fewest - 1, None, rate, None, 100, 10, begin="shallow")


@pytest.mark.slow
def test_estimators_warn_where_the_budget_did_not_suffice(converged):
    _, x, y = converged
    with pytest.warns(ConvergenceWarning, match="after 20 steps; raise budget"):
        found = SparseGPRegressor(num_inducing=6, budget=20, tolerance=1e-6, random_state=0).fit(x, y[:, 0])
    assert not found.converged_ and found.gap_ > 0.0 and found.n_iter_ == 20
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        assert SparseGPRegressor(num_inducing=6, tolerance=30.0, random_state=0).fit(x, y[:, 0]).converged_


def losses_at(fit, end):
    """Those of every restart at the end of a part."""
    return [ends_of_parts(losses, [end])[0][0] for losses in fit.losses]


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_the_better_half_of_the_restarts_goes_on(converged, tmp_path):
    """Five, three, two, after a trial from either start; bit for bit where it was stopped, or has a larger budget."""
    _, x, _ = converged
    y = np.sign(x) + 0.05 * np.random.default_rng(0).normal(size=x.shape)
    model = deep_gp((1,), 5)
    guide = Guide(model)
    fit = lambda **given: fit_svi(
        KEY, model, guide, PowerEP(0.0), x, y, restarts=5, learning_rate=0.05, **given
    )

    def stop(step, losses):
        if step == 2 * TRIAL + 300:
            raise KeyboardInterrupt

    found = fit(budget=4 * TRIAL)
    assert found.losses.shape == (3, 4 * TRIAL) and len(found.restart_params["layer1/inducing"]) == 3
    assert [len(phase.rivals) for phase in found.phases] == [2, 2, 0]
    best = np.minimum(losses_at(found, TRIAL), losses_at(found, 2 * TRIAL))
    assert best.max() <= np.minimum(*(phase.rivals for phase in found.phases[:2])).min()
    with pytest.raises(KeyboardInterrupt):
        fit(budget=4 * TRIAL, on_chunk=stop, checkpoint_every=1, checkpoint=tmp_path / "kept")
    again = fit(budget=4 * TRIAL, resume=True, checkpoint=tmp_path / "kept")
    np.testing.assert_array_equal(again.losses, found.losses)
    for name, value in found.restart_params.items():
        np.testing.assert_array_equal(again.restart_params[name], value)
    longer = fit(budget=8 * TRIAL, resume=True, checkpoint=tmp_path / "kept")
    whole = fit(budget=8 * TRIAL)
    np.testing.assert_array_equal(longer.losses, whole.losses)
    assert whole.losses.shape == (2, 8 * TRIAL) and [len(phase.rivals) for phase in whole.phases] == [
        3,
        3,
        1,
        0,
    ]


def test_rates_that_lead_away_from_a_start_are_undone():
    """Trials that end above the start, or are no numbers: it goes on from there, at lower peaks."""
    plan = AutoSteps((Trial(0.1), Trial(0.3)), 100, 1000, 0.5)
    for away in (50.0, np.nan):
        losses = np.r_[np.full(10, 5.0), np.full(190, away), np.full(200, 4.0), np.full(400, 3.9)]
        phases = plan.convergence(losses).phases
        assert [phase.kind for phase in phases] == ["start", "trial", "trial", "cycle", "cycle"]
        assert [phase.kept for phase in phases] == [True, False, False, True, True]
        assert [phase.peak for phase in phases[3:]] == pytest.approx([0.1 * NEAR, 0.1 * NEAR * LOWERED])
        further = plan.convergence(np.r_[losses[:200], np.full(200, away), np.full(400, 3.9)]).phases
        assert [phase.kept for phase in further[3:]] == [False, True]
        assert further[4].peak == pytest.approx(0.1 * NEAR * NEAR)
        kept = {"start": named("start"), "best": named("start")}
        plan.turn(100, losses[None, :100], named(100), kept)
        turn = plan.turn(200, losses[None, :200], named(200), kept)
        assert text_of(turn.state) == -1 and float(turn.state.optim_state[1][1].peak) == pytest.approx(
            0.1 * NEAR
        )


def test_losses_that_run_away_are_never_the_lower_ones():
    """Draws that run away have means of either sign, by their last outlier: trial, cycle or restart, it is undone."""
    noise = np.random.default_rng(0).normal(size=800)
    calm = np.r_[np.full(10, 50.0), np.full(90, 5.0), np.full(100, 9.0), np.full(600, 5.0)] + noise
    wild = -1e150 * np.random.default_rng(1).standard_cauchy(800) ** 2
    plan = AutoSteps((Trial(0.1), Trial(0.3)), 100, 1000, 0.5)
    for runs, trials, cycles in (
        (slice(0, 100), [False, True], [True, True]),
        (slice(100, 200), [True, False], [True, True]),
        (slice(200, 400), [True, False], [False, True]),
        (slice(400, 800), [True, False], [True, False]),
    ):
        losses = np.where(np.isin(np.arange(800), np.arange(800)[runs]), wild, calm)
        losses[:10] = calm[:10]
        phases = [phase for phase in plan.convergence(losses).phases if phase.kind != "start"]
        assert [phase.kept for phase in phases] == trials + cycles
    assert best_restart(np.stack([wild, calm, calm + 1.0])) == 1
    assert in_order([-1e150, 5.0, 4.0], [1e150, 0.1, 0.1], 0.5) == [2, 1, 0]
    # what is surely lower is so, however it varies; and where all vary alike the mean decides
    assert in_order([-90.0, 5.0], [20.0, 0.1], 0.5) == [0, 1]
    assert in_order([-1e150, -2e150], [1e150, 1e150], 0.5) == [1, 0]


def test_a_fit_whose_losses_are_no_numbers_fails(converged):
    fit, x, y = converged

    class Broken(type(fit.objective)):
        def loss(self, *args, **kwargs):
            return jnp.nan * super().loss(*args, **kwargs)

    with pytest.raises(FitError, match="steps in a row where it or its gradient is not finite"):
        fit_svi(KEY, fit.model, fit.guide, Broken(0.0), x, y, budget=400)
