"""Pictures of convergence and hyperparameters show the numbers of the fit, and the limit that its gap speaks of."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from ppl_dgp.diagnostics.training_plots import plot_convergence, plot_hyperparameters
from ppl_dgp.fit import Posterior
from ppl_dgp.fit.chains import Chains
from ppl_dgp.fit.convergence import Convergence, convergence_of
from ppl_dgp.guides import EmpiricalPosterior


def table() -> pd.DataFrame:
    rows = [
        ("gp", "lengthscale", "0", 0.5),
        ("gp", "lengthscale", "1", 20.0),
        ("likelihood", "offset", "", -1.0),
    ]
    frame = pd.DataFrame(
        [*rows, ("training", "gap", "", 3.0)], columns=["layer", "parameter", "dimension", "value"]
    )
    return frame.set_index(["layer", "parameter", "dimension"])


def test_convergence_shows_where_steps_without_end_would_lead() -> None:
    # gains that halve each time the steps double: the rest is as much as the last gain
    known = convergence_of(np.repeat([80.0, 40.0, 20.0], [100, 100, 200]), 0.5)
    panel = plot_convergence(known).axes[0]
    losses = panel.get_lines()[0]
    np.testing.assert_array_equal(losses.get_data(), [[100, 200, 400], [80.0, 40.0, 20.0]])
    heights = {
        round(float(each.get_ydata()[0]), 9) for each in panel.get_lines() if len(each.get_xdata()) == 2
    }
    assert heights == {0.0, 0.5}
    with pytest.raises(ValueError, match="fit: found nothing of its convergence"):
        plot_convergence(Convergence(np.inf, np.inf, 0.5, ()))


def test_convergence_of_chains_shows_which_site_disagrees() -> None:
    chains = Chains(9, {"a": 1.2, "b": 1.0}, {"a": 4.0, "b": 80.0}, {"diverging": np.ones((2, 50))})
    agreement, worth = plot_convergence(chains).axes
    assert [each.get_text() for each in agreement.get_yticklabels()] == ["b", "a"]
    np.testing.assert_array_equal(worth.get_lines()[0].get_xdata(), [80.0, 4.0])
    assert "100 drawn, 100 divergent" in [each.get_text() for each in worth.get_legend().get_texts()]


def test_hyperparameters_stand_at_their_values_on_the_scale_of_their_sign() -> None:
    positive, others = plot_hyperparameters(table(), names={"gp/lengthscale": ["height (m)", "b"]}).axes
    assert positive.get_xscale() == "log" and others.get_xscale() == "linear"
    assert [each.get_text() for each in positive.get_yticklabels()] == [
        "gp/lengthscale, height (m)",
        "gp/lengthscale, b",
    ]
    assert [float(each.get_xdata()[0]) for each in positive.get_lines()[:2]] == [0.5, 20.0]
    # 0.5 to 20 are less than two decades
    assert {"1", "2", "5", "10", "20"} <= {each.get_text() for each in positive.get_xticklabels()}
    with pytest.raises(ValueError, match="fit: found no hyperparameter"):
        plot_hyperparameters(table().iloc[3:])


def test_hyperparameters_of_draws_are_their_median_and_95_percent() -> None:
    draws = np.exp(np.linspace(-2.0, 2.0, 400)).reshape(4, 100)
    guide = EmpiricalPosterior(lambda x, y=None: None, ("gp/variance", "gp/u"))
    fit = Posterior(
        guide.model, guide, {"gp/variance_draws": jnp.asarray(draws), "gp/u_draws": jnp.ones((4, 100, 1, 3))}
    )
    (panel,) = plot_hyperparameters(fit).axes
    ((begin, _), (end, _)) = panel.collections[0].get_segments()[0]
    np.testing.assert_allclose([begin, end], np.quantile(draws, (0.025, 0.975)))
    np.testing.assert_allclose(panel.get_lines()[0].get_xdata(), np.median(draws))
    assert [each.get_text() for each in panel.get_yticklabels()] == ["gp/variance"]
