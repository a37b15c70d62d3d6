"""How u is represented: each rule of the table, by what it protects from."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.handlers import seed, substitute, trace

from ppl_dgp import Guide, PowerEP, sparse_gp_regression
from ppl_dgp.gp.contract import SiteRole
from ppl_dgp.gp.wrappers import unwrap
from ppl_dgp.guides.point import Point, PointMass
from ppl_dgp.likelihoods import Bernoulli
from ppl_dgp.numerics.gaussian import InducingGaussian
from ppl_dgp.objectives.representation import choose_representations

Q = InducingGaussian(jnp.zeros((1, 2)), jnp.broadcast_to(jnp.eye(2), (1, 2, 2)))


class Following(dist.Distribution):
    """A q(u) that follows the one of an earlier layer, and has no moments of its own."""

    given = ("layer1/u",)


LINKED = Following(event_shape=(1, 2))
ASKED = SiteRole("inducing", representation="marginal")
CHAIN = SiteRole("inducing", reused=True, representation="marginal", follows_function=True)


def chosen(role, q=Q, **about):
    return choose_representations({"u": role}, {"u": {"fn": q}}, **about)["u"]


@pytest.mark.parametrize(
    "role, about, expected",
    [
        (ASKED, {}, "marginal"),
        (SiteRole("inducing", representation="per_datum_sample"), {}, "per_datum_sample"),
        # by hand
        (SiteRole("inducing"), {}, "marginal"),
        (SiteRole("inducing"), {"local_sites": True}, "shared_sample"),
        (SiteRole("inducing", reused=True), {}, "shared_sample"),
        # one function along a trajectory, and one whose p and q have nothing to cancel
        (CHAIN, {}, "shared_sample"),
        (SiteRole("inducing", reused=True, representation="marginal"), {}, "marginal"),
        # the logarithm
        (ASKED, {"local_sites": True, "logarithm": "below_u"}, "per_datum_sample"),
        (ASKED, {"local_sites": True, "logarithm": "above_u"}, "marginal"),
        (ASKED, {"logarithm": "below_u"}, "marginal"),
        (ASKED, {"local_sites": True, "logarithm": "none"}, "marginal"),
        (ASKED, {"logarithm": "above_paths"}, "shared_sample"),
        (CHAIN, {"local_sites": True, "logarithm": "below_u"}, "shared_sample"),
        # data in several plates
        (ASKED, {"one_plate": False}, "shared_sample"),
        # predictions
        (ASKED, {"asked": "shared_sample"}, "shared_sample"),
        (SiteRole("inducing", reused=True), {"asked": "marginal"}, "shared_sample"),
        (SiteRole("inducing"), {"asked": "marginal"}, "marginal"),
        # hidden layers as moments
        (ASKED, {"propagated": True, "local_sites": True}, "marginal"),
        (CHAIN, {"propagated": True, "asked": "marginal"}, "marginal"),
    ],
)
def test_the_table(role, about, expected):
    assert chosen(role, **about) == expected


def test_linked_functions_are_drawn():
    roles = {"layer1/u": ASKED, "layer2/u": ASKED}
    guide = {"layer1/u": {"fn": Q}, "layer2/u": {"fn": LINKED}}
    assert set(choose_representations(roles, guide).values()) == {"per_datum_sample"}
    together = choose_representations(roles, guide, asked="marginal", draw="shared_sample")
    assert set(together.values()) == {"shared_sample"}
    with pytest.raises(ValueError, match="'layer2/u' with links"):
        choose_representations(roles, guide, propagated=True)
    with pytest.raises(ValueError, match="one draw"):
        chosen(CHAIN, propagated=True)


@pytest.mark.parametrize(
    "about, expected",
    [
        ({}, "shared_sample"),
        ({"local_sites": True, "logarithm": "below_u"}, "shared_sample"),
        ({"propagated": True, "local_sites": True}, "marginal"),
    ],
)
def test_a_single_value_is_one_draw_for_all(about, expected):
    assert chosen(ASKED, Point(jnp.zeros((1, 2))), **about) == expected


class NoMeanOutside(Bernoulli):
    """A likelihood that has no mean outside the logarithm."""

    def tempered_outside(self, *args):
        raise AssertionError("found a mean over u outside the logarithm")


def test_where_u_is_drawn_no_quadrature_is_over_it():
    """The energy at a point is −log p(u) less the sum over rows of log E[p^α | u]/α."""
    key, x = jax.random.key(0), jnp.linspace(-1.0, 1.0, 6)[:, None]
    y = (x > 0.1).astype(float)
    plain = sparse_gp_regression(3, likelihood=Bernoulli())
    guide = Guide(plain, inducing=PointMass())
    runs = trace(seed(guide, key)).get_trace(x, y) | trace(seed(plain, key)).get_trace(x, y)
    params = {name: site["value"] for name, site in runs.items() if site["type"] == "param"}
    model = sparse_gp_regression(3, likelihood=NoMeanOutside())
    found = PowerEP(0.5).loss(key, params, model, guide, x, y)
    u = params["gp/u_loc"]
    given = trace(substitute(seed(plain, key), data={**params, "gp/u": u})).get_trace(x, y)
    prior = given["gp/u"]["fn"].log_prob(u).sum()
    expected = -prior - unwrap(given["y"]["fn"]).tempered(y, 0.5).sum()
    np.testing.assert_allclose(found, expected, rtol=1e-6)
