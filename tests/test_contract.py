"""Roles of sites: as constructors make them, as strings write them, and what objectives read of them."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Trace_ELBO

from ppl_dgp.gp.contract import (
    INDUCING_SUFFIX,
    Model,
    Objective,
    SiteRole,
    hidden_role,
    inducing_role,
    inducing_site,
    role_of,
    with_request,
)
from ppl_dgp.guides.rule import knows_states
from ppl_dgp.objectives import Collapsed, PowerEP, SiteEnergy
from ppl_dgp.objectives.capabilities import Capabilities, capabilities_of


def start():
    return jnp.zeros((1, 3))


@pytest.mark.parametrize(
    "made, written",
    [
        (hidden_role(), {"role": "hidden"}),
        (hidden_role(start), {"role": "hidden", "start": start}),
        (inducing_role(), {"role": "inducing"}),
        (
            inducing_role(start, initial_scale=0.1, reused=True),
            {"role": "inducing", "start": start, "initial_scale": 0.1, "reused": True},
        ),
    ],
)
def test_a_role_may_be_made_or_written(made, written):
    role = role_of({"infer": made})
    assert role == role_of({"infer": written}) and role.hidden != role.inducing


def test_what_numpyro_reads_stays_beside_a_role():
    infer = {**hidden_role(), "enumerate": "parallel"}
    asked = with_request({"infer": infer}, propagation="moments")
    assert asked["enumerate"] == "parallel" and role_of({"infer": asked}).propagation == "moments"
    written = with_request({"infer": {"role": "inducing", "reused": True}}, representation="marginal")
    assert role_of({"infer": written}) == SiteRole("inducing", reused=True, representation="marginal")


@pytest.mark.parametrize("site", [{}, {"infer": {}}, {"infer": None}, {"infer": {"enumerate": "parallel"}}])
def test_a_site_without_a_role_has_none(site):
    assert role_of(site).kind is None and not role_of(site).hidden and not role_of(site).inducing


@pytest.mark.parametrize(
    "infer, known",
    [({"role": "hiden"}, "inducing, hidden"), ({"role": "hidden", "strat": start}, "initial_scale, .*start")],
)
def test_an_unknown_role_or_key_is_refused(infer, known):
    with pytest.raises(ValueError, match=f"infer: found .* at 'h', expected .*{known}"):
        role_of({"name": "h", "infer": infer})


def test_an_unknown_role_is_refused_where_a_guide_meets_it():
    from ppl_dgp.guides import Guide

    def model(y):
        with numpyro.plate("data", 2):
            numpyro.sample("h", dist.Normal(0.0, 1.0), infer={"role": "latent"})

    with pytest.raises(ValueError, match="'latent' at 'h'"):
        numpyro.handlers.seed(Guide(model), jax.random.PRNGKey(0))(jnp.ones(2))


def test_protocols_hold_for_what_is_used():
    assert isinstance(lambda x: x, Model)
    for objective in (PowerEP(), Collapsed(), SiteEnergy(0.5), Trace_ELBO()):
        assert isinstance(objective, Objective)
    assert not isinstance(object(), Objective)
    assert inducing_site("layer1") == f"layer1{INDUCING_SUFFIX}"


def test_objectives_declare_what_they_can_do():
    assert capabilities_of(Trace_ELBO()) == Capabilities()
    power = capabilities_of(PowerEP(0.5, propagation="linearised"))
    assert power == Capabilities(
        takes_alpha=True,
        learns_streams=True,
        pushes_inducing=True,
        weighs_rows=True,
        propagation="linearised",
    )
    closed = capabilities_of(Collapsed())
    assert closed.optimises_inducing and closed.needs_all_rows and not closed.is_stochastic

    class Users:
        is_stochastic = False

    assert capabilities_of(Users()) == Capabilities(is_stochastic=False)


def test_rules_are_asked_for_what_q_depends_on():
    from ppl_dgp.guides import Amortised, Conditional, DoublyStochastic, Markov, MeanField, PointEstimate

    for rule in (MeanField(), Markov(), Amortised((), MeanField())):
        assert knows_states(rule) and not rule.depends_on.on_function
    for rule in (Conditional(), DoublyStochastic(), Amortised((), Conditional())):
        assert not knows_states(rule) and rule.depends_on.on_function
    assert not PointEstimate().depends_on.on_function
