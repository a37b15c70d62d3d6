"""A guide that follows f begins where the chain before it ended, and ends above it."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from fast import seldom
from numpyro.handlers import lift
from numpyro.infer.autoguide import AutoNormal
from test_gpssm import CONTROLS, KEY, Y, prepared

from ppl_dgp.diagnostics import plot_losses
from ppl_dgp.fit import energy, fit_series
from ppl_dgp.fit.series import CLOSED
from ppl_dgp.guides import Conditional, DoublyStochastic, Guide, Markov, MeanField
from ppl_dgp.models import gpssm
from ppl_dgp.objectives import PowerEP


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule", seldom([Conditional(), Conditional(markov=True), DoublyStochastic()], 2), ids=repr
)
def test_second_part_begins_at_the_chain(rule):
    """With a rate of 0 its parameters are the chain's; a window's first state is smoothed by the chain."""
    model = gpssm(1, num_inducing=3, window=3)
    settings = {"steps": 6, "warm_steps": 3, "batch_size": 3}
    fit = fit_series(
        KEY, model, Guide(model, hidden=rule), PowerEP(0.0), CONTROLS, Y, learning_rate=1e-9, **settings
    )
    assert fit.losses.shape == (1, 6) and np.isfinite(fit.losses).all()
    # a window may begin at any row; before the fourth is the third state, as the data have it
    assert fit.params["x_0_loc"].shape == (len(Y), 1)
    assert float(fit.params["x_0_loc"][3, 0]) == pytest.approx(float(Y[2, 0]), abs=1e-5)
    assert ("x_shrinkage" in fit.params) == (rule != DoublyStochastic())
    assert ("x_slope" in fit.params) == (rule == Conditional(markov=True))


def test_chains_are_trained_as_they_are():
    _, guide, _ = prepared(MeanField())
    with pytest.raises(ValueError, match="warm_steps"):
        fit_series(KEY, guide.model, guide, CLOSED, None, Y, steps=2, warm_steps=3)


@pytest.mark.slow
def test_hyperparameters_with_priors_are_drawn_in_both_parts():
    """The chain before a guide that follows f has a q of them too."""
    model = gpssm(1, num_inducing=3, emission="identity")
    lifted = lift(model, prior={"likelihood/noise": dist.LogNormal(-2.0, 1.0)})
    guide = Guide(lifted, hidden=DoublyStochastic(), others=AutoNormal)
    fit = fit_series(KEY, lifted, guide, PowerEP(0.0), None, Y, steps=4, warm_steps=2, learning_rate=1e-9)
    assert fit.losses.shape == (1, 4) and np.isfinite(fit.losses).all()
    assert np.isfinite(fit.params["likelihood/noise_auto_loc"]) and "likelihood/noise" not in fit.params


@pytest.mark.slow
def test_coupled_ends_above_the_family_it_contains():
    """Mean field, on a sine of states, at a rate that falls; both bounds averaged over the last hundred steps.

    Markov it does not contain, and may end below.
    """
    rng = np.random.default_rng(0)
    x = [0.0]
    for _ in range(60):
        x.append(2.0 * np.sin(1.3 * x[-1]) + 0.5 + 0.1 * rng.normal())
    y = jnp.asarray(np.array(x[1:])[:, None] + 0.3 * rng.normal(size=(60, 1)))
    model = gpssm(1, num_inducing=12, emission="identity")
    bounds, falling = {}, optax.adam(optax.cosine_decay_schedule(0.02, 1500, 0.01))
    for rule, objective in ((MeanField(), CLOSED), (Conditional(), PowerEP(0.0))):
        guide = Guide(model, hidden=rule)
        fit = fit_series(KEY, model, guide, objective, None, y, steps=1500, warm_steps=300, optimizer=falling)
        bounds[type(rule).__name__] = -fit.losses[0, -100:].mean()
    assert bounds["CoupledConditional"] > bounds["MeanField"]


@pytest.mark.slow
def test_chains_converge_by_natural_gradients():
    """In fewer updates than one trial of Adam, no lower than its bound, and with what a full-rank q(u) has."""
    rng = np.random.default_rng(0)
    x = [0.0]
    for _ in range(30):
        x.append(2.0 * np.sin(1.3 * x[-1]) + 0.5 + 0.1 * rng.normal())
    y = jnp.asarray(np.array(x[1:])[:, None] + 0.3 * rng.normal(size=(30, 1)))
    model = gpssm(1, num_inducing=6, emission="identity")
    guide = Guide(model, hidden=Markov())
    fit = fit_series(KEY, model, guide, CLOSED, None, y)
    assert fit.converged and fit.steps < 400 and fit.guide == guide and fit.objective == CLOSED
    (scale,) = (value for name, value in fit.params.items() if name.endswith("u_scale"))
    assert scale.shape == (1, 6, 6)
    again = energy(KEY, fit, None, y)
    assert again == pytest.approx(-fit.losses[0, -1], abs=1e-3)
    adam = fit_series(KEY, model, guide, CLOSED, None, y, steps=1000)
    assert again > -float(adam.losses[0, -100:].mean()) - 0.1


@pytest.mark.slow
def test_parts_that_go_on_until_they_have_converged():
    """Restarts that are left of one part and of the other may differ; the phases are of the second, where it is."""
    model = gpssm(1, num_inducing=3)
    guide = Guide(model, hidden=Conditional())
    fit = fit_series(
        KEY, model, guide, PowerEP(0.0), CONTROLS, Y, restarts=3, budget=400, warm_objective=CLOSED
    )
    assert fit.losses.shape[1] == 800 and np.isfinite(fit.losses).all()
    # of those that take steps: from a start at its optimum trials lead away, and it is kept as a phase
    taken = [phase for phase in fit.phases if phase.kind != "start"]
    assert [phase.end for phase in taken] == [500, 600, 800] and fit.phases[0].begin == 400
    above, below = plot_losses(fit).axes
    assert below.lines[0].get_xdata()[0] == 401 and above.get_xlim() == (0, 800)
    alone = fit_series(KEY, model, guide, PowerEP(0.0), CONTROLS, Y, budget=400)
    # the chain by natural gradients
    assert alone.phases[0].begin <= 400 and alone.losses.shape == (1, alone.phases[-1].end)
