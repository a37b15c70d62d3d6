"""One run of a model for model and guide: how often a user's model runs in a loss, and that nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compiled import initial
from fast import few
from numpyro import handlers

from ppl_dgp.gp.contract import hidden_role
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import Conditional, DoublyStochastic, Guide, MeanField
from ppl_dgp.kernels import RBF
from ppl_dgp.models import deep_gp, gpssm, mixture_of_functions
from ppl_dgp.objectives import ApproximatePowerEP, BlackBoxAlpha, PowerEP
from ppl_dgp.objectives.padding import RealRows
from ppl_dgp.objectives.runs import ProgramRuns, traced_run

KEY = jax.random.PRNGKey(2)
X = jnp.linspace(-1.0, 1.0, 6)[:, None]
Y = jnp.sin(3.0 * X)
NONE = jnp.zeros((6, 0))


class Counted:
    """A model that counts its runs."""

    def __init__(self, model):
        self.model, self.runs = model, 0

    def __call__(self, *args, **kwargs):
        self.runs += 1
        return self.model(*args, **kwargs)


@pytest.mark.parametrize(
    "objective", few([PowerEP(0.0), PowerEP(0.5), PowerEP(0.5, 3), PowerEP(0.0, 3)], 2), ids=repr
)
@pytest.mark.parametrize("family", ["deep_gp", "gpssm"])
def test_a_users_model_runs_twice_in_a_traced_loss(objective, family):
    model = Counted(deep_gp((1,), 3) if family == "deep_gp" else gpssm(1, num_inducing=3))
    guide, x = Guide(model, hidden=Conditional()), X if family == "deep_gp" else NONE
    params = initial(KEY, model, guide, x, Y)
    model.runs = 0
    jax.make_jaxpr(jax.value_and_grad(lambda p: objective.loss(KEY, p, model, guide, x, Y)))(params)
    # the probe, and a batch of particles
    assert model.runs <= 2


def test_a_guide_by_hand_leaves_the_model_two_runs():
    @Counted
    def model(y):
        with numpyro.plate("data", 3):
            h = numpyro.sample("h", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(h, 0.5), obs=y)

    def guide(y):
        with numpyro.plate("data", 3):
            numpyro.sample("h", dist.Normal(0.2, 0.7))

    jax.make_jaxpr(lambda: PowerEP(0.5, 3).loss(KEY, {}, model, guide, jnp.ones(3)))()
    assert model.runs == 2


def same(site, other):
    assert site["is_observed"] == other["is_observed"] and site["infer"].keys() == other["infer"].keys()
    assert site["cond_indep_stack"] == other["cond_indep_stack"]
    for one, two in ((site["value"], other["value"]), (site["scale"], other["scale"])):
        np.testing.assert_array_equal(np.asarray(one, float), np.asarray(two, float))
    assert type(site["fn"]) is type(other["fn"])
    np.testing.assert_array_equal(site["fn"].log_prob(site["value"]), other["fn"].log_prob(other["value"]))


def masked(x, y=None, index=None, size=None):
    f = sparse_gp("layer1", RBF(1.0, 0.7), jnp.array([[-0.5], [0.4]]), 1)
    g = sparse_gp("gp", RBF(1.0, 0.9), jnp.array([[-0.6], [0.3]]), 1)
    with data_plate(size or x.shape[0], index):
        h = numpyro.sample("layer1/h", f(x).noisy(0.1), infer=hidden_role())
        with handlers.mask(mask=x[:, 0] > -0.5):
            numpyro.sample("y", g(h).noisy(0.2), obs=y)


@pytest.mark.parametrize("hidden", few([DoublyStochastic(), MeanField(), Conditional()], 1, 2), ids=repr)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("rows", [6, 3])
@pytest.mark.slow
def test_one_run_leaves_the_traces_of_two(hidden, padded, rows):
    guide = Guide(masked, hidden=hidden)
    index = None if rows == 6 else jnp.arange(rows)
    args, kwargs = (X[:rows], Y[:rows]), {"index": index, "size": 6}
    params = {}
    sites = traced_run(guide, KEY, {}, args, kwargs)
    params = {name: site["value"] for name, site in sites.items() if site["type"] == "param"}
    real = RealRows(6, jnp.asarray(4)) if padded else numpyro.primitives.Messenger()
    with real:
        model_trace, guide_trace = ProgramRuns(masked, guide, args, kwargs).traces(KEY, params)
    with real:
        guide_alone = traced_run(guide, KEY, params, args, kwargs)
        model_alone = traced_run(handlers.replay(masked, guide_alone), KEY, params, args, kwargs)
    for both, alone in ((model_trace, model_alone), (guide_trace, guide_alone)):
        names = [name for name, site in alone.items() if site["type"] == "sample"]
        assert names == [name for name, site in both.items() if site["type"] == "sample"]
        for name in names:
            same(both[name], alone[name])


class Elsewhere:
    """The same model behind another object, so that model and guide are run one after the other."""

    def __init__(self, model):
        self.model = model

    def __call__(self, *args, **kwargs):
        return self.model(*args, **kwargs)


@pytest.mark.parametrize(
    "objective",
    few([PowerEP(0.0), PowerEP(0.5, 2), BlackBoxAlpha(0.5, 2), ApproximatePowerEP(0.5, 2)], 1),
    ids=repr,
)
@pytest.mark.parametrize("family", ["deep_gp", "mixture"])
def test_a_loss_is_that_of_two_runs(objective, family):
    model = deep_gp((1,), 3) if family == "deep_gp" else mixture_of_functions(2, num_inducing=3)
    guide = Guide(model, hidden=MeanField())
    params = initial(KEY, model, guide, X, Y)
    one, two = (
        jax.jit(jax.value_and_grad(lambda p, m=m: objective.loss(KEY, p, m, guide, X, Y)))(params)
        for m in (model, Elsewhere(model))
    )
    assert float(one[0]) == pytest.approx(float(two[0]), rel=1e-13)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11), one[1], two[1])


@pytest.mark.slow
def test_moments_of_hidden_layers_reach_both_traces():
    model = deep_gp((1,), 3)
    guide = Guide(model, hidden=MeanField())
    params = initial(KEY, model, guide, X, Y)
    objective = PowerEP(0.0, propagation="moments")
    one, two = (float(objective.loss(KEY, params, m, guide, X, Y)) for m in (model, Elsewhere(model)))
    assert one == pytest.approx(two, rel=1e-13)
