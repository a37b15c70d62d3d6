"""How u is represented: each rule of the table, by what it protects from."""

import jax.numpy as jnp
import numpyro.distributions as dist
import pytest

from ppl_dgp.gp.contract import SiteRole
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
