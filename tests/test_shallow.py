"""A deep GP begins at the optimum of the sparse GP that it is while its hidden layers are linear."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ppl_dgp import energy
from ppl_dgp.fit import FitError, Interrupted, fit_many, fit_svi, shallow_start
from ppl_dgp.fit import shallow as finding
from ppl_dgp.gp import shallow as shallow_gp
from ppl_dgp.guides import AcrossOutputs, Diagonal, FullRank, Guide, MeanField
from ppl_dgp.kernels import RBF
from ppl_dgp.models import deep_gp, deep_gp_classification, deep_heteroscedastic_gp, sparse_gp_regression
from ppl_dgp.objectives import Collapsed, PowerEP

KEY = jax.random.key(3)
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 2))
Y = np.c_[np.sin(2.0 * X[:, 0]), X[:, 1] * X[:, 0]] + 0.1 * RANDOM.normal(size=(60, 2))


def bound_at(model, guide, start, y=Y, x=X):
    """The bound in nats, of one draw, where the usual start completes another."""
    settings = {"steps": 1, "learning_rate": 1e-12, "start": start}
    return energy(KEY, fit_svi(KEY, model, guide, PowerEP(0.0), x, y, **settings), x, y)


def collapsed_at(shallow, start, y=Y):
    """The collapsed bound of the sparse GP at the hyperparameters of a start of the deep one."""
    last = shallow.layers[-1]
    params = {
        name.replace(last, "gp"): value for name, value in start.items() if last in name or "like" in name
    }
    guide = Guide(shallow.model)
    return -float(Collapsed().loss(KEY, params, shallow.model, guide, shallow.inputs, jnp.asarray(y)))


@pytest.fixture
def briefly(monkeypatch):
    """Few iterations, for what holds wherever the sparse GP has come to."""
    monkeypatch.setattr(finding, "ITERATIONS", 20)


@pytest.mark.slow
@pytest.mark.parametrize("widths", [(2,), pytest.param((1, 3), marks=pytest.mark.slow)])
def test_there_it_has_the_bound_of_the_sparse_gp(widths, monkeypatch):
    """Exactly so in the limit of hidden kernels without variance, on linear features however narrow or wide."""
    monkeypatch.setattr(shallow_gp, "SLIGHT_VARIANCE", 1e-12)
    model = deep_gp(widths, 12, num_outputs=2)
    shallow = model.shallow(jnp.asarray(X))
    start = shallow_start(KEY, model, Guide(model), X, Y)
    value = collapsed_at(shallow, start)
    assert shallow.inputs.shape == (60, widths[-1])
    assert bound_at(model, Guide(model), start) == pytest.approx(value, abs=1e-2)
    # an optimum: well above where training usually starts, and no lower than an independent fit's by much
    assert value > bound_at(model, Guide(model), None) + 100.0


@pytest.mark.slow
def test_what_hidden_layers_add_costs_little():
    """At the variance that is taken the bound is within a few nats of the sparse GP's, and their q(u) at the prior."""
    model = deep_gp((2,), 12, num_outputs=2)
    start = shallow_start(KEY, model, Guide(model), X, Y)
    assert bound_at(model, Guide(model), start) == pytest.approx(
        collapsed_at(model.shallow(jnp.asarray(X)), start), abs=8.0
    )
    np.testing.assert_allclose(start["layer1/u_scale"], np.broadcast_to(np.eye(12), (2, 12, 12)), atol=1e-12)
    np.testing.assert_allclose(start["layer1/u_loc"], 0.0)


@pytest.mark.slow
def test_a_steep_function_with_little_noise():
    """What hidden layers add is by the slope that the function has, here of what two inputs hardly differ by.

    Of values that lie close together the kernel says a slope that is far too low.
    """
    x = np.c_[X[:, 0], X[:, 0] + 0.1 * X[:, 1]]
    y = X[:, 1:] + 1e-3 * RANDOM.normal(size=(60, 1))
    model = deep_gp((2,), 12)
    shallow = model.shallow(jnp.asarray(x))
    start = shallow_start(KEY, model, Guide(model), x, y)
    at_start = bound_at(model, Guide(model), start, y, x)
    assert at_start == pytest.approx(collapsed_at(shallow, start, y), abs=8.0)


@pytest.mark.slow
def test_smaller_families_of_inducing_outputs_get_what_they_can_hold(briefly):
    """The diagonal Gaussian nearest in KL(q‖p) has the precisions' diagonal; one factor of all outputs has blocks."""
    model = deep_gp((2,), 12, num_outputs=2)
    full, diagonal, across = (
        shallow_start(KEY, model, Guide(model, inducing=rule), X, Y)
        for rule in (FullRank(), Diagonal(), AcrossOutputs())
    )
    scale = np.asarray(full["layer2/u_scale"])
    precision = np.linalg.inv(scale @ np.swapaxes(scale, 1, 2))
    np.testing.assert_allclose(
        diagonal["layer2/u_scale"] ** -2.0, np.diagonal(precision, axis1=1, axis2=2), rtol=1e-6
    )
    np.testing.assert_allclose(across["layer2/u_scale"][12:, 12:], scale[1], rtol=1e-9)
    np.testing.assert_allclose(across["layer2/u_scale"][12:, :12], 0.0)


@pytest.mark.slow
def test_auto_tries_it_and_the_usual_start(briefly):
    """The first trials begin there, the last at the usual start, also of several fits, which equal those alone."""
    model = deep_gp((1,), 8, num_outputs=2)
    start = shallow_start(KEY, model, Guide(model), X, Y)
    settings = {"budget": 80, "chunk": 10}
    fit = fit_svi(KEY, model, Guide(model), PowerEP(0.0), X, Y, **settings)
    at_start, usual = (bound_at(model, Guide(model), each) for each in (start, None))
    begins = [phase.begin for phase in fit.phases]
    first, second, last = (-fit.losses[0, begin] for begin in begins[-4:-1])
    assert [phase.kind for phase in fit.phases][-4:] == ["trial"] * 3 + ["cycle"]
    assert [phase.origin for phase in fit.phases][-4:-1] == ["start", "start", "usual"]
    for value, wanted in ((first, at_start), (second, at_start), (last, usual)):
        assert value == pytest.approx(wanted, abs=0.05 * (at_start - usual))
    (together,) = fit_many(KEY[None], model, Guide(model), PowerEP(0.0), [X], [Y], **settings)
    np.testing.assert_allclose(together.losses, fit.losses, rtol=1e-5)
    given = fit_svi(KEY, model, Guide(model), PowerEP(0.0), X, Y, start=start, **settings)
    assert [phase.kind for phase in given.phases].count("trial") == 2


@pytest.mark.slow
def test_a_rule_with_parameters_for_each_row_begins_there_too(briefly):
    model = deep_gp((2,), 8, num_outputs=2)
    guide = Guide(model, hidden=MeanField())
    assert not any("/h_" in name for name in shallow_start(KEY, model, Guide(model), X, Y))
    fit = fit_svi(KEY, model, guide, PowerEP(0.0), X, Y, budget=80, chunk=10)
    assert np.isfinite(fit.losses).all()


@pytest.mark.slow
def test_kernels_keep_the_values_they_are_given(briefly):
    """An instance's lengthscale stays where it was put; a class's begins at √Q."""
    model = deep_gp((2,), 8, num_outputs=2, kernel=RBF(jnp.asarray(1.0), jnp.full(2, 0.7)))
    start = shallow_start(KEY, model, Guide(model), X, Y)
    np.testing.assert_allclose(start["layer1/lengthscale"], 0.7)
    other = deep_gp((2,), 8, num_outputs=2)
    np.testing.assert_allclose(
        shallow_start(KEY, other, Guide(other), X, Y)["layer1/lengthscale"], np.sqrt(2.0)
    )


@pytest.mark.slow
def test_where_there_is_none(monkeypatch):
    """Other models begin as usual; asked for a start they refuse; a sparse GP that cannot be trained is left out."""
    x = jnp.asarray(X)
    for model in (deep_gp((), 8), deep_gp((1,), 8, noise=np.full(60, 0.1)), sparse_gp_regression(8)):
        assert shallow_gp.shallow_of(model, x) is None
        with pytest.raises(ValueError, match="^model: found .*leave start out$"):
            shallow_start(KEY, model, Guide(model), X, Y[:, :1])

    def broken(*args, **settings):
        raise FitError("loss: found none")

    def stopped(*args, **settings):
        raise Interrupted([fit_svi(KEY, model, Guide(model), PowerEP(0.0), X, Y, steps=1)])

    model = deep_gp((1,), 8, num_outputs=2)
    with monkeypatch.context() as patched:
        patched.setattr(finding, "fit_lbfgs", stopped)
        with pytest.raises(KeyboardInterrupt) as pressed:
            fit_svi(KEY, model, Guide(model), PowerEP(0.0), X, Y, budget=80, chunk=10)
        assert not isinstance(pressed.value, Interrupted)
    monkeypatch.setattr(finding, "fit_lbfgs", broken)
    with pytest.raises(FitError, match="sparse GP"):
        shallow_start(KEY, model, Guide(model), X, Y)
    fit = fit_svi(KEY, model, Guide(model), PowerEP(0.0), X, Y, budget=80, chunk=10)
    usual = bound_at(model, Guide(model), None)
    assert -fit.losses[0, 0] == pytest.approx(usual, rel=0.2)


CLASSES = (Y[:, :1] > 0.0).astype(int)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "y"),
    [
        (deep_gp((2,), 8, likelihood="student-t"), Y[:, :1]),
        pytest.param(deep_gp_classification(2, (2,), 8), CLASSES, marks=pytest.mark.slow),
        pytest.param(deep_gp_classification(3, (2,), 8), CLASSES + (X[:, :1] > 1.0), marks=pytest.mark.slow),
        pytest.param(deep_heteroscedastic_gp((2,), 8), Y[:, :1], marks=pytest.mark.slow),
    ],
    ids=["student-t", "classes", "several", "heteroscedastic"],
)
def test_other_likelihoods_begin_there_too(model, y, monkeypatch):
    """The bound of the sparse model at the q(u) and the hyperparameters that natural gradients found."""
    monkeypatch.setattr(shallow_gp, "SLIGHT_VARIANCE", 1e-12)
    shallow = model.shallow(jnp.asarray(X))
    start = shallow_start(KEY, model, Guide(model), X, y)
    last = shallow.layers[-1]
    params = {k.replace(last, "gp"): v for k, v in start.items() if last in k or "likelihood" in k}
    data = shallow.inputs, jnp.asarray(y)
    value = -float(PowerEP(0.0).loss(KEY, params, shallow.model, Guide(shallow.model), *data))
    deep = PowerEP(0.0).loss(KEY, start, model, Guide(model), jnp.asarray(X), jnp.asarray(y))
    assert -float(deep) == pytest.approx(value, abs=1e-2)
    usual = bound_at(model, Guide(model), None, y)
    assert value > usual + 10.0


@pytest.mark.slow
def test_more_rows_than_it_looks_at(monkeypatch):
    monkeypatch.setattr(finding, "ROWS", 40)
    model = deep_gp((2,), 12, num_outputs=2)
    start = shallow_start(KEY, model, Guide(model), X, Y)
    assert bound_at(model, Guide(model), start) > bound_at(model, Guide(model), None) + 100.0
