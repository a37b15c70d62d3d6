"""Many fits at once: each is the fit it would be alone."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from fast import few, seldom
from numpyro.infer import Trace_ELBO
from test_fit import compilations

from ppl_dgp import (
    ApproximatePowerEP,
    BlackBoxAlpha,
    Collapsed,
    Conditional,
    DoublyStochastic,
    FailedFitWarning,
    FitError,
    Guide,
    Interrupted,
    MeanField,
    PowerEP,
    deep_gp,
    exact_gp_regression,
    fit_many,
    fit_svi,
    gpssm,
    sparse_gp_regression,
)
from ppl_dgp.checkpoint import CheckpointError
from ppl_dgp.fit.saving import Saving

KEY, ELBO = jax.random.key(5), Trace_ELBO()
#: rows of the tables
COUNTS = (24, 30)
MODEL = deep_gp((2,), 5)
SHALLOW = sparse_gp_regression(5)


def tables(counts=COUNTS):
    random = np.random.default_rng(1)
    xs = [random.normal(size=(count, 2)) for count in counts]
    return xs, [np.sin(2.0 * x[:, :1]) + 0.1 * random.normal(size=(len(x), 1)) for x in xs]


def assert_same(fit, alone, tolerance=1e-8, beside_zero=1e-8):
    """Losses, parameters and what is said of the data and of q."""
    np.testing.assert_allclose(fit.losses, alone.losses, rtol=tolerance)
    assert set(fit.params) == set(alone.params)
    for name, value in alone.params.items():
        np.testing.assert_allclose(
            fit.params[name], value, rtol=tolerance, atol=max(tolerance, beside_zero), err_msg=name
        )
    assert (fit.fingerprint, fit.steps, fit.rejected_steps) == (
        alone.fingerprint,
        alone.steps,
        alone.rejected_steps,
    )
    assert repr(fit.objective) == repr(alone.objective)
    assert fit.jitter == pytest.approx(alone.jitter)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "objective", "batch_size"),
    seldom(
        [
            # no hidden layer
            (None, PowerEP(0.0), None),
            (None, PowerEP(0.5), 10),
            (DoublyStochastic(), PowerEP(0.0), None),
            (DoublyStochastic(), PowerEP(0.0), 10),
            (MeanField(), PowerEP(0.0, propagation="moments"), None),
            (MeanField(), PowerEP(0.5, num_particles=2), 10),
            (Conditional(), PowerEP(0.5, num_particles=2), None),
            (Conditional(), PowerEP(0.0), 10),
            (DoublyStochastic(), BlackBoxAlpha(1.0, num_particles=2), 10),
            # its prior is divided among N rows
            (DoublyStochastic(), ApproximatePowerEP(0.5, num_particles=2), 10),
        ],
        4,
        5,
        7,
        8,
    ),
)
def test_tables_of_different_length_train_as_each_alone(rule, objective, batch_size):
    xs, ys = tables()
    model = SHALLOW if rule is None else MODEL
    guide = Guide(SHALLOW) if rule is None else Guide(MODEL, rule)
    settings = {"steps": 25, "batch_size": batch_size, "chunk": 10}
    fits = fit_many(KEY, model, guide, objective, xs, ys, **settings)
    # where q(u) begins at its prior the kernel's slopes are 0 but for rounding, 3e-14, of which the size of Adam's eps,
    # 1e-8, makes first steps of 3e-8; padded rows change the rounding
    beside_zero = 1e-7 if objective.propagation == "moments" else 1e-8
    for key, x, y, fit in zip(jax.random.split(KEY, 2), xs, ys, fits, strict=True):
        alone = fit_svi(key, model, guide, objective, x, y, **settings)
        assert_same(fit, alone, beside_zero=beside_zero)


@pytest.mark.slow
def test_orders_of_divergence_and_learning_rates_of_their_own():
    """α = 0 and α > 0 are programs of their own, the members in the order given."""
    xs, ys = tables()
    guide, keys = Guide(SHALLOW), jnp.stack([KEY] * 3)
    alphas, rates = [0.5, 0.0, 1.0], [0.01, 0.02, 0.03]
    shared = {"steps": 15, "batch_size": 8}
    of_three = PowerEP(0.1, num_particles=3)
    fits = fit_many(
        keys, SHALLOW, guide, of_three, xs[0], ys[0], alphas=alphas, learning_rates=rates, **shared
    )
    for alpha, rate, fit in zip(alphas, rates, fits, strict=True):
        objective = PowerEP(alpha, num_particles=3)
        alone = fit_svi(KEY, SHALLOW, guide, objective, xs[0], ys[0], learning_rate=rate, **shared)
        assert_same(fit, alone)
        assert fit.objective == objective


@pytest.mark.parametrize(
    "objective", few([Collapsed(), PowerEP(optax.linear_schedule(0.0, 1.0, 10), num_particles=2)], 1)
)
def test_tables_of_equal_length_train_under_any_objective(objective):
    xs, ys = tables((20, 20))
    guide = Guide(SHALLOW)
    fits = fit_many(KEY, SHALLOW, guide, objective, xs, ys, steps=12)
    for key, x, y, fit in zip(jax.random.split(KEY, 2), xs, ys, fits, strict=True):
        assert_same(fit, fit_svi(key, SHALLOW, guide, objective, x, y, steps=12))


@pytest.mark.slow
def test_labels_and_other_optimisers():
    xs, _ = tables((20, 16))
    model = sparse_gp_regression(5, likelihood="bernoulli")
    guide, ys = Guide(model), [(x[:, 0] > 0).astype(int) for x in xs]
    settings = {"steps": 12, "batch_size": 8, "optimizer": optax.sgd(1e-3)}
    fits = fit_many(KEY, model, guide, PowerEP(0.0), xs, ys, **settings)
    for key, x, y, fit in zip(jax.random.split(KEY, 2), xs, ys, fits, strict=True):
        assert_same(fit, fit_svi(key, model, guide, PowerEP(0.0), x, y, **settings))


@pytest.mark.slow
def test_a_second_call_compiles_nothing():
    guide, objective = Guide(SHALLOW), PowerEP(0.5)
    settings = {"steps": 12, "batch_size": 8, "chunk": 10}

    def many(shift, alphas, **other):
        xs, ys = tables()
        fit_many(
            KEY, SHALLOW, guide, objective, xs, [y + shift for y in ys], alphas=alphas, **settings | other
        )

    assert compilations(lambda: many(0.0, [0.1, 0.2])) > 0
    assert compilations(lambda: many(1.0, [0.3, 1.0], steps=25)) == 0
    assert compilations(lambda: many(1.0, [0.3, 1.0], batch_size=9)) > 0


def test_a_member_that_is_rejected_keeps_its_state_and_leaves_the_others_alone():
    def model(x, y=None, index=None, size=None):
        with numpyro.plate("data", size or x.shape[0], subsample_size=x.shape[0]):
            w = numpyro.param("w", jnp.zeros(()))
            # no gradient where x is large: of one table it is
            f = w * jnp.where(x[:, 0] < 50.0, 1.0, jnp.nan)
            numpyro.sample("y", dist.Normal(f[:, None], 1.0, validate_args=False).to_event(1), obs=y)

    def guide(x, y=None, index=None, size=None):
        pass

    xs = [np.zeros((6, 1)), np.full((6, 1), 100.0)]
    ys = [np.ones((6, 1))] * 2
    with pytest.warns(FailedFitWarning, match="found 1 of 2 .* numbers 1, expected"):
        sound, broken = fit_many(KEY, model, guide, ELBO, xs, ys, steps=30)
    assert (sound.rejected_steps, broken.rejected_steps) == (0, 30)
    assert float(broken.params["w"]) == 0.0
    assert_same(sound, fit_svi(KEY, model, guide, ELBO, xs[0], ys[0], steps=30))
    with pytest.raises(FitError, match="30 steps in a row"):
        fit_many(KEY, model, guide, ELBO, xs[1:] * 2, ys, steps=40, max_rejected_in_a_row=30)
    # of trials and cycles none of a member has a loss
    with pytest.warns(FailedFitWarning, match="numbers 0, expected"):
        broken, _ = fit_many(KEY, model, guide, ELBO, xs[::-1], ys, budget=100, chunk=20)
    assert not broken.converged


@pytest.mark.slow
def test_what_looks_at_rows_together_is_refused():
    xs, ys = tables((8, 9))
    exact = exact_gp_regression()
    with pytest.raises(ValueError, match="looks at rows together"):
        fit_many(KEY, exact, Guide(exact), ELBO, xs, ys, steps=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alphas": [0.1]}, "found 2 xs, 2 ys, 1 alphas, expected as many of each"),
        ({"alphas": [0.1, 1.5]}, r"alpha: found 1.5, expected a number in \[0, 1\]"),
        ({"learning_rates": [0.1, -1.0]}, "learning_rates: found"),
        ({"learning_rates": [0.1] * 2, "optimizer": optax.sgd(0.1)}, "learning_rates: found them beside"),
        (
            {"batch_size": 25},
            "batch_size: found 25, expected a whole number from 1 to the number of rows, 24",
        ),
        ({"steps": 0}, "steps: found 0"),
        ({"objective": ELBO, "alphas": [0.1] * 2}, "found Trace_ELBO, expected an objective"),
        ({"xs": [np.zeros((24, 1)), np.zeros((30, 2))]}, "expected the same of all"),
        ({"xs": []}, "found 0 xs"),
    ],
)
def test_settings_are_refused_in_one_line(change, message):
    xs, ys = tables()
    settings = {"objective": PowerEP(0.5), "xs": xs, "ys": ys, "steps": 3} | change
    with pytest.raises(ValueError, match=message) as raised:
        fit_many(KEY, SHALLOW, Guide(SHALLOW), **settings)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_a_run_that_was_interrupted_goes_on(tmp_path, monkeypatch):
    """Ctrl-C in the second of two programs: what has begun is given, and resuming ends where one run would have."""
    xs, ys = tables()
    settings = {"batch_size": 10, "chunk": 5, "alphas": [0.0, 0.5]}
    about = KEY, SHALLOW, Guide(SHALLOW), PowerEP(0.5), xs, ys
    whole = fit_many(*about, steps=20, **settings)
    with pytest.raises(CheckpointError, match="bound"):
        fit_many(*about, steps=20, checkpoint=tmp_path, resume=True, **settings)
    due, calls = Saving.due, []

    def pressed(self):
        calls.append(self.directory.name)
        if calls.count("power") == 2:
            raise KeyboardInterrupt
        return due(self)

    monkeypatch.setattr(Saving, "due", pressed)
    with pytest.raises(Interrupted) as stopped:
        fit_many(*about, steps=20, checkpoint=tmp_path, **settings)
    assert [fit.steps for fit in stopped.value.fits] == [20, 10]
    monkeypatch.setattr(Saving, "due", due)
    with pytest.raises(CheckpointError, match="other data"):
        fit_many(
            *about[:4], xs, [y + 1.0 for y in ys], steps=20, checkpoint=tmp_path, resume=True, **settings
        )
    for fit, expected in zip(
        fit_many(*about, steps=20, checkpoint=tmp_path, resume=True, **settings), whole, strict=True
    ):
        assert_same(fit, expected, 1e-12)


@pytest.mark.slow
def test_series_are_trained_on_windows_of_their_own():
    """Two series of 20 steps, 2 of 24 windows at a time; of series that differ in length it is refused."""
    random = np.random.default_rng(2)
    xs, ys = ([random.normal(size=(20, 1)) for _ in range(2)] for _ in range(2))
    model = gpssm(1, 2, 4, window=5)
    guide, keys = Guide(model, hidden=MeanField()), jax.random.split(KEY, 2)
    settings = dict(steps=4, batch_size=10, learning_rate=0.05)
    fits = fit_many(keys, model, guide, PowerEP(0.0), xs, ys, **settings)
    alone = fit_svi(keys[1], model, Guide(model, hidden=MeanField()), PowerEP(0.0), xs[1], ys[1], **settings)
    assert_same(fits[1], alone)
    assert not np.allclose(fits[0].losses, fits[1].losses)
    with pytest.raises(ValueError, match="of 18 to 20 steps, whose numbers of windows differ"):
        fit_many(keys, model, guide, PowerEP(0.0), [xs[0], xs[1][:18]], [ys[0], ys[1][:18]], **settings)
    with pytest.raises(ValueError, match="expected a multiple of 5, the model's window, up to 120"):
        fit_many(keys, model, guide, PowerEP(0.0), xs, ys, **{**settings, "batch_size": 7})
