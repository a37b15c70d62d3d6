"""A candidate is chosen by what simulating steps that were kept back is worth."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fast import seldom
from scipy.stats import norm

from ppl_dgp.diagnostics import Candidate, choose_by_simulation
from ppl_dgp.diagnostics.simulation import SimulationChoice, SimulationScore, last_part
from ppl_dgp.fit import FitError, fit_series
from ppl_dgp.fit.longer import _onward, longer_start, shorter_params
from ppl_dgp.fit.series import CLOSED
from ppl_dgp.guides import Amortised, DoublyStochastic, Guide, Markov, MeanField
from ppl_dgp.models import gpssm
from ppl_dgp.objectives import PowerEP
from ppl_dgp.prediction.forecast import forecast

KEY = jax.random.key(0)
RANDOM = np.random.default_rng(0)
WAVE = np.sin(0.5 * np.arange(40))[:, None] + 0.1 * RANDOM.normal(size=(40, 1))
CONTROLS = RANDOM.normal(size=(40, 1))
MODEL = gpssm(1, num_inducing=3, mean="linear")
CHAIN = Candidate(MODEL, Guide(MODEL, hidden=Markov()), CLOSED, {"learning_rate": 0.05})
SHORT = replace(CHAIN, settings={"learning_rate": 0.05, "steps": 5})


@pytest.fixture(scope="module")
def chosen():
    candidates = {"chain": CHAIN, "short": SHORT}
    return choose_by_simulation(
        KEY, candidates, CONTROLS, WAVE, steps=(2, 40), num_samples=50, target_scale=3.0
    )


@pytest.mark.slow
def test_scores_are_those_of_forecasts_from_the_end_of_the_first_part(chosen):
    key_fit, key_simulation = jax.random.split(KEY)
    trained = [(score.candidate, score.steps) for score in chosen.scores]
    assert trained == [("chain", 2), ("chain", 40), ("short", 5)]
    for score in chosen.scores:
        fit = chosen.fits[score.candidate, score.steps]
        assert fit.losses.shape == (1, score.steps)
        first = jnp.asarray(CONTROLS[:32]), jnp.asarray(WAVE[:32])
        found = forecast(
            key_simulation,
            fit,
            *first,
            jnp.asarray(CONTROLS[32:]),
            y_future=jnp.asarray(WAVE[32:]),
            num_samples=50,
        )
        low, high = np.quantile(found.samples, (0.025, 0.975), axis=0)
        assert score.log_density == pytest.approx(found.log_density.mean() - np.log(3.0))
        assert score.rmse == pytest.approx(3.0 * np.sqrt(np.square(found.mean - WAVE[32:]).mean()))
        assert score.coverage95 == pytest.approx(((low <= WAVE[32:]) & (WAVE[32:] <= high)).mean())


@pytest.mark.slow
def test_best_has_the_highest_density_and_is_trained_on_all_steps(chosen):
    assert chosen.best == max(chosen.scores, key=lambda score: score.log_density)
    again = fit_series(
        jax.random.split(KEY)[0], MODEL, CHAIN.guide, CLOSED, CONTROLS, WAVE, steps=chosen.best.steps,
        learning_rate=0.05,
    )  # fmt: skip
    np.testing.assert_array_equal(chosen.fit.losses, again.losses)


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("start", seldom(["outputs", "linear"], 1))
def test_a_longer_fit_goes_on_where_one_from_the_usual_start_misses_what_was_chosen(start, monkeypatch):
    """It may end at another optimum than the one that was judged, and then simulates worse what it has seen."""
    model = gpssm(1, num_inducing=3, mean="linear", start=start, window=8)
    guide = Guide(model, hidden=DoublyStochastic(), latent=Amortised((3,), MeanField(), around=2))
    training = {"batch_size": 16, "restarts": 2, "warm_steps": 0}
    plain, asked = Candidate.trained, []

    def trained(self, key, x, y, steps, shared):
        asked.append(self.settings)
        fit = plain(self, key, x, y, steps, shared)
        missed = len(y) == 40 and "start" not in self.settings
        return replace(fit, params=fit.params | {"likelihood/noise": jnp.asarray(1e6)}) if missed else fit

    monkeypatch.setattr(Candidate, "trained", trained)
    candidates = {"recognised": Candidate(model, guide, PowerEP(0.0), training)}
    found = choose_by_simulation(KEY, candidates, CONTROLS, WAVE, steps=3, num_samples=5)
    assert ["start" in settings for settings in asked] == [False, False, True]
    assert asked[-1]["restarts"] == 1
    assert float(found.fit.params["likelihood/noise"]) < 1e3
    first = found.fits["recognised", 3]
    data = jnp.asarray(CONTROLS), jnp.asarray(WAVE)
    begun = longer_start(KEY, model, guide, first.params, *data, np.arange(40) < 32)
    np.testing.assert_array_equal(asked[-1]["start"]["x/begin"], begun["x/begin"])
    back = shorter_params(model, begun, data[0], np.arange(40) < 32)
    assert all(np.array_equal(back[name], value) for name, value in first.params.items())
    np.testing.assert_array_equal(begun["x/begin"][:33], first.params["x/begin"])
    if start == "outputs":
        np.testing.assert_allclose(begun["x/begin"][33:, 0], WAVE[32:, 0], atol=1e-6)
    same = [name for name in first.params if name != "x/begin"]
    assert all(np.array_equal(begun[name], first.params[name]) for name in same)


def test_states_to_begin_at_keep_their_coordinates():
    """Of two sequences, and of a linear model whose states are those of another one turned and moved."""
    states = RANDOM.normal(size=(13, 2))
    turned = states @ np.array([[0.6, -2.0], [1.0, 0.3]]) + np.array([1.0, -3.0])
    slots, earlier = np.array([1, 2, 3, 7, 8, 0, 6]), np.array([1, 2, 3, 5, 6, 0, 4])
    known = np.empty((7, 2))
    known[earlier] = turned[slots]
    np.testing.assert_allclose(_onward(states, known, slots, earlier), turned, atol=1e-12)


def test_a_fit_to_all_steps_of_two_sequences_is_read_at_the_first_of_each():
    """Slots of x_0 and x_1 …: 0 to 3 of the first sequence, 4 to 8 of the second, whose last steps are left out."""
    model = gpssm(1, num_inducing=3, num_sequences=2)
    x, first = (
        jnp.repeat(jnp.array([0.0, 1.0]), jnp.array([3, 4]))[:, None],
        np.array([1, 1, 0, 1, 1, 1, 0], bool),
    )
    params = {"x/begin": jnp.arange(9.0)[:, None], "transition/noise": jnp.ones(1)}
    found = shorter_params(model, params, x, first)
    np.testing.assert_array_equal(found["x/begin"][:, 0], [0, 1, 2, 4, 5, 6, 7])
    assert found["transition/noise"] is params["transition/noise"]


def test_a_chain_starts_anew_on_all_steps(chosen):
    params = chosen.fits["chain", 40].params
    data = jnp.asarray(CONTROLS), jnp.asarray(WAVE)
    assert longer_start(KEY, MODEL, CHAIN.guide, params, *data, np.arange(40) < 32) is None


def test_mean_is_the_gaussian_of_the_first_part(chosen):
    density = norm(WAVE[:32].mean(), WAVE[:32].std()).logpdf(WAVE[32:]).mean() - np.log(3.0)
    assert chosen.mean.log_density == pytest.approx(density)
    assert chosen.mean.rmse == pytest.approx(3.0 * np.sqrt(np.square(WAVE[32:] - WAVE[:32].mean()).mean()))


def test_last_part_of_each_sequence():
    numbers = np.repeat([3.0, 1.0], [10, 5])
    np.testing.assert_array_equal(np.flatnonzero(last_part(numbers, 0.2)), [8, 9, 14])
    with pytest.raises(ValueError, match="share: found 0.8 of a sequence of 2 steps"):
        last_part(np.repeat([0.0, 1.0], [10, 2]), 0.8)


@pytest.mark.slow
def test_several_sequences_with_missing_entries():
    """Those of the second sequence are judged from its own end; a step without any entry counts for nothing."""
    model = gpssm(1, num_inducing=3, num_sequences=2, missing=True)
    y = np.concatenate([WAVE[:20], WAVE[5:30]])
    y[[19, 44]] = np.nan
    x = np.repeat([0.0, 1.0], [20, 25])[:, None]
    candidate = Candidate(model, Guide(model, hidden=Markov()), CLOSED)
    found = choose_by_simulation(
        KEY, {"chain": candidate}, x, y, steps=3, learning_rate=0.01, num_samples=20, refit=False
    )
    assert found.fit is found.fits["chain", 3]
    first = np.r_[:16, 20:40]
    densities = []
    for number, rows in ((0, np.r_[16:20]), (1, np.r_[40:45])):
        ahead = forecast(
            jax.random.split(KEY)[1], found.fit, jnp.asarray(x[first]), jnp.asarray(y[first]),
            jnp.zeros((len(rows), 0)), y_future=jnp.asarray(y[rows]), sequence=number, num_samples=20,
        )  # fmt: skip
        densities.append(ahead.log_density[~np.isnan(y[rows, 0])])
    assert found.best.log_density == pytest.approx(np.concatenate(densities).mean())


def test_a_candidate_that_fails_is_named_and_not_chosen(monkeypatch, chosen):
    def trained(self, key, x, y, steps, shared):
        if self is not CHAIN:
            raise FitError("loss: found 50 steps in a row where it is not finite")
        return chosen.fits["chain", 2]

    monkeypatch.setattr(Candidate, "trained", trained)
    found = choose_by_simulation(
        KEY, {"wild": replace(CHAIN), "chain": CHAIN}, CONTROLS, WAVE, steps=2, num_samples=50, refit=False
    )
    assert found.best.candidate == "chain"
    assert found.table["failed"].tolist()[0].startswith("loss: found 50 steps")
    with pytest.raises(ValueError, match="found no rmse that is finite"):
        choose_by_simulation(KEY, {"wild": replace(CHAIN)}, CONTROLS, WAVE, steps=2, by="rmse")


def test_advice_on_bands_and_on_less_than_the_mean(chosen):
    mean = SimulationScore("mean and variance", "", -1.0, 1.0, 0.95)
    of = lambda *values: SimulationChoice(SimulationScore("a", 2, *values), (), mean, chosen.fit, 30).advice
    assert of(-0.5, 0.5, 0.9) == ()
    assert [text.split(":")[0] for text in of(-182.0, 0.5, 0.45)] == ["test log density", "coverage"]
    assert "45% of what was held out" in of(-0.5, 0.5, 0.45)[0]
    assert [text.split(":")[0] for text in of(-0.5, 0.5, 1.0)] == ["coverage"]
    assert (
        replace(chosen, best=SimulationScore("a", 2, -9.0, 0.5, 0.1)).advice == ()
    )  # of eight steps nothing is said


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"candidates": {}}, "candidates: found none"),
        ({"by": "elbo"}, "by: found 'elbo', expected one of log_density, rmse"),
        ({"share": 1.5}, "share: found 1.5"),
        ({"target_scale": 0.0}, "target_scale"),
    ],
    ids=["candidates", "by", "share", "scale"],
)
def test_refusals(changed, message):
    settings = {"candidates": {"chain": CHAIN}, "steps": 1, **changed}
    with pytest.raises(ValueError, match=message):
        choose_by_simulation(KEY, settings.pop("candidates"), CONTROLS, WAVE, **settings)
