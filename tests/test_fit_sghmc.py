"""SGHMC against posteriors in closed form and NUTS, what it learns against the evidence, and its fit against others."""

import os
import signal
import sys
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from fast import few
from numpyro.diagnostics import summary
from numpyro.handlers import lift
from numpyro.infer import SVI

from ppl_dgp import (
    BlackBoxAlpha,
    Collapsed,
    Fit,
    Guide,
    Interrupted,
    PowerEP,
    compare_fits,
    deep_gp,
    exact_gp_regression,
    fit_lbfgs,
    fit_nuts,
    fit_sghmc,
    fit_svi,
    gplvm,
    gpssm,
    predict,
    sparse_gp_regression,
    to_arviz,
)
from ppl_dgp.diagnostics.arviz_api import group
from ppl_dgp.diagnostics.draws import joint_draws
from ppl_dgp.extras import MissingExtra
from ppl_dgp.fit import SamplingWarning, sghmc
from ppl_dgp.fit.dynamics import Hamiltonian, Langevin, NoseHoover
from ppl_dgp.fit.program import as_numpyro, fresh_copies
from ppl_dgp.fit.sghmc_steps import (
    beginning,
    build_advance,
    largest_step,
    learning_optimizer,
    overwhelmed,
)
from ppl_dgp.guides.point import PointMass

KEY = jax.random.PRNGKey(0)
X = jnp.linspace(-1.5, 1.5, 12)[:, None]
Y = jnp.sin(2 * X) + 0.1 * jax.random.normal(jax.random.PRNGKey(1), X.shape)
NOISE = 0.05
HAMILTONIAN = Hamiltonian()
MODEL = sparse_gp_regression(4, noise=NOISE)
#: short chains: R-hat of some is above 1.01 by chance
FEW = pytest.mark.filterwarnings("ignore::ppl_dgp.fit.SamplingWarning")


def closed(params, alpha):
    """FITC's posterior of v at α = 1, Titsias' best q(v) at α = 0: noise of s² + α (1 − φ_nᵀφ_n) around φ_nᵀv.

    Mean (M,) and covariance (M, M), by NumPy, of a sparse GP with an RBF of unit values.
    """
    z = np.asarray(params["gp/inducing"])
    kernel = lambda a, b: np.exp(-0.5 * np.square(a[:, None] - b[None]).sum(-1))
    lower = np.linalg.cholesky(kernel(z, z) + 1e-8 * np.eye(len(z)))
    phi = np.linalg.solve(lower, kernel(z, np.asarray(X))).T
    spread = NOISE + alpha * (1.0 - np.square(phi).sum(1))
    covariance = np.linalg.inv(np.eye(len(z)) + phi.T @ (phi / spread[:, None]))
    return covariance @ phi.T @ (np.asarray(Y)[:, 0] / spread), covariance


@FEW
@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize(("batch_size", "bias"), few([(None, 0.0), (6, 0.02)], 1))
def test_draws_have_the_posterior_in_closed_form(alpha, batch_size, bias):
    """Half the rows at a time add to variances what the step's size does, relatively.

    Noise of slopes is Gaussian and known in the limit of small steps alone.
    """
    fit = fit_sghmc(
        KEY, MODEL, X, Y, objective=PowerEP(alpha), batch_size=batch_size, learn=False, num_warmup=2000,
        num_samples=600, step_size=None if batch_size is None else 0.03,
    )  # fmt: skip
    check_posterior(fit, alpha, bias)


@FEW
@pytest.mark.parametrize(
    ("dynamics", "batch_size"), few([("sgld", None), ("sgnht", None), ("sgnht", 6), ("sgld", 6)], 0, 2)
)
def test_dynamics_of_blackjax_have_the_same_posterior(dynamics, batch_size):
    """Half the rows at a time add what slopes scatter, a twentieth of the noise of a step of ``sgld`` at most."""
    fit = fit_sghmc(
        KEY, MODEL, X, Y, batch_size=batch_size, learn=False, num_warmup=2000, num_samples=600, dynamics=dynamics,
        step_size=None if batch_size is None else 0.03,
    )  # fmt: skip
    check_posterior(fit, 1.0, 0.0 if batch_size is None else 0.05, 0.2)


def check_posterior(fit, alpha, bias, largest=0.1):
    """Means and second moments within four standard errors, at most ``largest``, and a share of variances."""
    mean, covariance = closed(fit.params, alpha)
    centred = np.asarray(fit.params["gp/u_draws"])[:, :, 0] - mean
    assert centred.shape == (4, 600, 4)
    second = centred[..., :, None] * centred[..., None, :]
    for draws, expected, off in (
        (centred, np.zeros(4), 0.0),
        (second, covariance, bias * np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))),
    ):
        error = draws.std((0, 1)) / np.sqrt(summary({"site": draws}, group_by_chain=True)["site"]["n_eff"])
        assert (np.abs(draws.mean((0, 1)) - expected) < 4 * error + off).all()
        # errors that say something
        assert error.max() < largest


@pytest.fixture(scope="module")
def chains():
    """What the steps of 300 chains of a sparse GP need: its SVI, values, the rest, and the posterior."""
    svi = SVI(MODEL, Guide(MODEL, inducing=PointMass()), as_numpyro(optax.identity()), PowerEP(1.0))
    begun = svi.init(KEY, X, Y)
    rest = dict(svi.optim.get_params(begun.optim_state))
    u = rest.pop("gp/u_loc")
    return svi, {"gp/u_loc": jnp.broadcast_to(u, (300, *u.shape))}, rest, closed(svi.get_params(begun), 1.0)


def advanced(chains, settles, batch_size, step_size, steps, dynamics=HAMILTONIAN):
    svi, values, rest, _ = chains
    optimizer = learning_optimizer(0.01, 1)
    advance = build_advance(svi, len(X), batch_size, dynamics, optimizer, settles, False)
    state = fresh_copies(beginning(values, rest, 0, optimizer))
    return advance(state, KEY, X, Y, jnp.asarray(step_size), jnp.int32(steps))


@pytest.mark.slow
def test_a_unit_that_follows_the_slope_at_hand_has_chains_spread_too_far(chains):
    """The reason for which averages forget slowly from a quarter of the warm-up on."""
    mean, covariance = chains[3]
    spread = []
    for settles in (10**9, 500):
        state = advanced(chains, settles, None, 0.05, 4000)
        centred = state.values["gp/u_loc"][:, 0] - mean
        spread.append(float((jnp.square(centred) / np.diag(covariance)).mean()))
    # 1200 values, a standard error of 0.04
    assert spread[0] > 1.5 and abs(spread[1] - 1.0) < 0.16


@pytest.mark.slow
def test_a_step_that_is_too_large_for_its_minibatch_is_known(chains):
    state = advanced(chains, 100, 1, 0.02, 1000)
    allowed = largest_step(state, HAMILTONIAN, len(X))
    assert 1e-3 <= allowed < 0.05
    # half of the noise may be the slopes': nearly no number has more than all of it
    assert (
        overwhelmed(state, allowed, HAMILTONIAN, len(X))
        <= 0.02
        < overwhelmed(state, 4 * allowed, HAMILTONIAN, len(X))
    )
    full = advanced(chains, 100, None, 0.02, 200)
    assert largest_step(full, HAMILTONIAN, len(X)) == pytest.approx(0.05)
    assert overwhelmed(full, 1.0, HAMILTONIAN, len(X)) == 0.0
    # what Langevin dynamics do not take off has to be less
    assert (
        overwhelmed(state, allowed, Langevin(), len(X)) == 0.0 < overwhelmed(state, 0.2, Langevin(), len(X))
    )


@pytest.mark.slow
def test_the_thermostat_takes_off_what_slopes_scatter(chains):
    """Friction grows by what single rows add to kinetic energy; chains spread as they should."""
    mean, covariance = chains[3]
    for batch_size, least, most in ((None, 0.95, 1.1), (1, 1.2, 1.8)):
        state = advanced(chains, 500, batch_size, 0.05, 6000, NoseHoover())
        assert least < float(state.thermostat.mean()) < most
        centred = state.values["gp/u_loc"][:, 0] - mean
        # 1200 values, a standard error of 0.04
        assert abs(float((jnp.square(centred) / np.diag(covariance)).mean()) - 1.0) < 0.16


@pytest.mark.slow
@FEW
def test_hyperparameters_are_those_of_the_best_evidence():
    """Monte Carlo EM ends within half a nat of the optimum of 100 rows, which L-BFGS finds on the collapsed bound."""
    rows = jnp.linspace(-3.0, 3.0, 100)[:, None]
    targets = jnp.sin(2 * rows) + 0.6 * jax.random.normal(jax.random.PRNGKey(1), rows.shape)
    model = sparse_gp_regression(10, inducing=jnp.linspace(-3.0, 3.0, 10)[:, None], train_inducing=False)
    guide = Guide(model)
    best = fit_lbfgs(KEY, model, rows, targets, objective=Collapsed.fitc(), guide=guide)
    fit = fit_sghmc(KEY, model, rows, targets, num_warmup=8000, num_samples=4)
    first = fit_sghmc(KEY, model, rows, targets, num_warmup=1, num_samples=4)
    energy = lambda found: float(
        Collapsed.fitc().loss(
            KEY,
            {name: found.params.get(name, value) for name, value in best.params.items()},
            model,
            guide,
            rows,
            targets,
        )
    )
    assert -1e-6 < energy(fit) - energy(best) < 0.5 < 10.0 < energy(first) - energy(best)


@FEW
@pytest.mark.slow
def test_priors_of_hyperparameters_are_sampled_beside_u():
    """The mean and deviation of a lengthscale against NUTS on the marginal density, by standard errors of both."""
    lifted = lift(MODEL, prior={"gp/lengthscale": dist.LogNormal(0.0, 0.3).expand([1]).to_event(1)})
    truth = fit_nuts(KEY, lifted, X, Y, marginal=Collapsed.fitc(), num_warmup=300, num_samples=500)
    fit = fit_sghmc(KEY, lifted, X, Y, learn=False, num_warmup=3000, num_samples=500)
    found = [np.log(np.asarray(each.params["gp/lengthscale_draws"])) for each in (fit, truth)]
    for moment in (lambda v: v, lambda v: np.square(v - found[1].mean())):
        values = [moment(each) for each in found]
        errors = [
            value.std() / np.sqrt(summary({"site": value}, group_by_chain=True)["site"]["n_eff"].min())
            for value in values
        ]
        assert abs(values[0].mean() - values[1].mean()) < 4 * np.hypot(*errors)


@pytest.fixture(scope="module")
def step():
    """A deep GP on a step, and its start."""
    rows = jnp.linspace(-1.5, 1.5, 20)[:, None]
    targets = jnp.sign(rows) + 0.1 * jax.random.normal(jax.random.PRNGKey(1), rows.shape)
    model = deep_gp((1,), 6)
    return rows, targets, fit_svi(KEY, model, Guide(model), PowerEP(0.0), rows, targets, steps=3000)


@FEW
@pytest.mark.slow
def test_hidden_layers_are_integrated_out(step):
    """Predictive moments of NUTS, which samples the hidden layers too, within 0.06 of the targets' 1.

    Chains of a few hundred draws have standard errors of a third of that; the start is 0.2 away.
    """
    rows, targets, start = step
    fit = fit_sghmc(
        KEY, start.model, rows, targets, start=start, learn=False, num_warmup=2000, num_samples=250
    )
    truth = fit_nuts(KEY, fit.model, rows, targets, start=start, num_warmup=300, num_samples=300)
    new = jnp.array([[-2.0], [-0.5], [0.0], [0.5], [2.0]])
    found = [predict(KEY, each, new, num_samples=1000) for each in (truth, fit, start)]
    off = [np.abs(found[0].mean - each.mean).max() for each in found[1:]]
    wide = [np.abs(np.sqrt(found[0].variance) - np.sqrt(each.variance)).max() for each in found[1:]]
    assert max(off[0], wide[0]) < 0.06 < 0.12 < max(off[1], wide[1])
    # held where the start has them
    for name in ("layer1/lengthscale", "layer2/inducing"):
        np.testing.assert_array_equal(fit.params[name], start.params[name])


@pytest.mark.slow
@FEW
def test_the_fit_is_a_fit(step, tmp_path):
    """Exported, weighed row by row, compared, saved."""
    rows, targets, start = step
    fit = fit_sghmc(KEY, start.model, rows, targets, start=start, num_warmup=20, num_samples=50, thinning=2)
    data = to_arviz(KEY, fit, rows, targets)
    posterior, stats = group(data, "posterior"), group(data, "sample_stats")
    np.testing.assert_array_equal(posterior["layer2.u"].values, np.asarray(fit.params["layer2/u_draws"]))
    assert {"diverging", "step_size", "lp"} <= set(stats) and "log_q" not in stats
    assert data.attrs["chains"] == "Markov chains"
    # at the training rows hidden layers are the model's own draws, so that weights are those of y alone
    draws = joint_draws(KEY, fit, rows, targets, num_draws=10, num_locals=200)
    assert np.isfinite(draws.log_likelihood).all() and draws.hidden["layer1/h"].shape == (10, 20, 1)
    table = compare_fits(KEY, start, rows, targets, {"sghmc": fit}, name="guide")
    assert {"sghmc", "guide"} <= set(map(str, np.asarray(table.table["fit"])))
    fit.save(tmp_path / "fit")
    again = Fit.load(tmp_path / "fit")
    np.testing.assert_array_equal(predict(KEY, again, rows).mean, predict(KEY, fit, rows).mean)
    assert again.chains.effective_size == fit.chains.effective_size
    assert "EmpiricalPosterior" in repr(fit) and fit.losses.shape == (1, 50)


@pytest.mark.slow
@FEW
def test_the_same_key_gives_the_same_draws_and_another_size_of_pieces_too(monkeypatch):
    settings = {"num_warmup": 60, "num_samples": 4, "thinning": 7, "batch_size": 5, "num_chains": 2}
    one, again = (fit_sghmc(KEY, MODEL, X, Y, **settings) for _ in range(2))
    other = fit_sghmc(jax.random.PRNGKey(1), MODEL, X, Y, **settings)
    np.testing.assert_array_equal(one.params["gp/u_draws"], again.params["gp/u_draws"])
    assert not np.allclose(one.params["gp/u_draws"], other.params["gp/u_draws"])
    assert one.params["gp/inducing"].dtype == X.dtype and one.steps == 4


@pytest.mark.slow
def test_what_may_be_wrong_is_said():
    with pytest.warns(SamplingWarning, match="take half of step_size, or a larger batch_size"):
        fit = fit_sghmc(
            KEY, MODEL, X, Y, batch_size=1, num_warmup=400, num_samples=4, step_size=0.2, learn=False
        )
    assert any("slopes of minibatches" in text for text in fit.advice)


@pytest.mark.slow
@FEW
def test_interrupted_chains_are_a_fit(monkeypatch, ctrl_c):
    """Ctrl-C after six draws."""

    @contextmanager
    def press(show, done, total):
        yield lambda step, losses: os.kill(os.getpid(), signal.SIGINT) if step == 50 + 6 * 5 else None

    monkeypatch.setattr(sghmc, "progress_bar", press)
    with pytest.raises(Interrupted) as error:
        fit_sghmc(KEY, MODEL, X, Y, num_warmup=50, num_samples=100, thinning=5)
    assert error.value.fit.params["gp/u_draws"].shape[:2] == (4, 6)


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"num_samples": 3}, ValueError, "num_samples: found 3, expected a whole number of at least 4"),
        ({"num_warmup": 0}, ValueError, "num_warmup: found 0"),
        ({"thinning": True}, ValueError, "thinning: found True"),
        ({"batch_size": 13}, ValueError, "batch_size: found 13, expected a whole number from 1 to 12"),
        ({"step_size": 0.0}, ValueError, "step_size: found 0.0, expected a positive number"),
        ({"friction": 1.0}, ValueError, r"friction: found 1.0, expected a number in \(0, 1\)"),
        ({"dynamics": "sgdl"}, ValueError, "dynamics: found 'sgdl', which is unknown; did you mean 'sgld'"),
        (
            {"dynamics": "sgld", "friction": 0.1},
            ValueError,
            "friction: found 0.1 with dynamics='sgld', .*leave it out",
        ),
        ({"objective": BlackBoxAlpha(0.5)}, TypeError, "objective: found BlackBoxAlpha, expected PowerEP"),
    ],
)
def test_what_cannot_be_right_is_refused(settings, error, said):
    with pytest.raises(error, match=said):
        fit_sghmc(KEY, MODEL, X, Y, **settings)


def test_dynamics_of_blackjax_need_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "blackjax.sgmcmc", None)
    monkeypatch.setitem(sys.modules, "blackjax", None)
    with pytest.raises(
        MissingExtra, match=r"dynamics='sgnht' needs BlackJAX, .*pip install \"ppl-dgp\[samplers\]\""
    ):
        fit_sghmc(KEY, MODEL, X, Y, dynamics="sgnht")


def test_a_start_of_another_model_is_refused():
    start = fit_svi(KEY, MODEL, Guide(MODEL), PowerEP(0.0), X, Y, steps=2)
    with pytest.raises(ValueError, match="start: found one of sparse_gp.*expected one of the model, deep_gp"):
        fit_sghmc(KEY, deep_gp((1,), 4, noise=NOISE), X, Y, start=start)


@pytest.mark.parametrize(
    ("model", "x", "said"),
    [
        (exact_gp_regression(), X, "found the latent|inducing outputs|no latent sites"),
        (gplvm(1, 1, num_inducing=3), None, "found the latent"),
        (gpssm(1, 1, num_inducing=3), X, "found the latent"),
    ],
)
def test_other_latents_are_refused(model, x, said):
    with pytest.raises(ValueError, match=said):
        fit_sghmc(KEY, model, x, Y)
