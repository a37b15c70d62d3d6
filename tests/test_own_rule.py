"""Rules of a user's own: what follows from what they depend on, and the classes that are refused."""

import doctest
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from compiled import initial, loss, refuse
from fast import few
from numpyro import handlers
from rules import LEARNT, MODEL, RULES, X, Y
from scipy import stats

from ppl_dgp.gp.emission import Emission
from ppl_dgp.gp.marginal import Marginal
from ppl_dgp.gp.means import Zero
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.guides import (
    Amortised,
    Conditional,
    Containment,
    DependsOn,
    DoublyStochastic,
    Guide,
    HiddenRule,
    LinearConditional,
    Markov,
    MeanField,
    Optimal,
    noise_of,
    per_datum,
    rule,
)
from ppl_dgp.guides.hidden import along_function
from ppl_dgp.guides.nesting import contains, nested_start
from ppl_dgp.guides.rule import knows_states
from ppl_dgp.kernels import RBF
from ppl_dgp.likelihoods import Gaussian as GaussianNoise
from ppl_dgp.models import gpssm
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.objectives import BlackBoxAlpha, PowerEP

KEY = jax.random.PRNGKey(8)


@dataclass(frozen=True)
class Follows(HiddenRule):
    """q(h | f) = N(c f(h⁻) + b, S): at its start the model's own conditional."""

    depends_on = DependsOn.F

    def declare(self, name, size, step, datum=None):
        ones, zeros = (
            (lambda: jnp.ones_like(step.marginal.mean)),
            (lambda: jnp.zeros_like(step.marginal.mean)),
        )
        scale = lambda: jnp.sqrt(noise_of(step))
        starts = {"coupling": ones, "offset": zeros, "scale": scale}
        return {which: per_datum(f"{name}_{which}", start, size, 1) for which, start in starts.items()}

    def linear(self, params, step):
        return LinearConditional(Gaussian(params["offset"], params["scale"]), function=params["coupling"])

    def contains(self, other):
        values = {"coupling": lambda start, step: jnp.ones_like(start)}
        return Containment(values) if type(other) is DoublyStochastic else None


class Union(Follows):
    """Beside f it follows the input too: c f(h⁻) + T h⁻ + b."""

    def declare(self, name, size, step, datum=None):
        start = lambda: jnp.zeros((*step.marginal.mean.shape, step.marginal.rows.shape[1]))
        return super().declare(name, size, step) | {"slope": per_datum(f"{name}_slope", start, size, 2)}

    def linear(self, params, step):
        noise = Gaussian(params["offset"], params["scale"])
        return LinearConditional(noise, previous=params["slope"], function=params["coupling"])


def step_of(mean, variance, noise, at):
    """A step of one row whose f has given moments."""
    function = SparseGP("f", RBF(1.0, 1.0), jnp.zeros((1, 1)), jnp.eye(1), Zero(), jnp.zeros((1, 1)))
    one = jnp.ones((1, 1))
    marginal = Marginal(function, at * one, one, mean * one, variance * one, 0.0 * one)
    return Emission(marginal, GaussianNoise(jnp.asarray(noise)))


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("slope", [None, 0.7])
def test_the_weight_of_a_rule_that_follows_f_is_the_integral_over_f(slope, alpha):
    """(1/α) log ∫ q(f | h) (p(h | f) / q(h | f))^α df, with and without the input; q(h) itself by quadrature."""
    mean, variance, noise, h, at, c, b, deviation = 0.3, 0.5, 0.1, 0.55, 0.4, 0.8, -0.1, 0.3
    cell = lambda number: jnp.full((1, 1), number)
    params = {"coupling": cell(c), "offset": cell(b), "scale": cell(deviation)}
    own, shift = Follows(), b
    if slope is not None:
        own, shift = Union(), b + slope * at
        params["slope"] = jnp.full((1, 1, 1), slope)
    step = step_of(mean, variance, noise, at)
    f = np.linspace(mean - 9, mean + 9, 200_001)
    log_q = stats.norm.logpdf(h, c * f + shift, deviation)
    joint = np.exp(log_q) * stats.norm.pdf(f, mean, variance**0.5)
    evidence = np.trapezoid(joint, f)
    posterior, ratio = joint / evidence, stats.norm.logpdf(h, f, noise**0.5) - log_q
    expected = np.trapezoid(posterior * ratio, f)
    if alpha:
        expected = np.log(np.trapezoid(posterior * np.exp(alpha * ratio), f)) / alpha
    np.testing.assert_allclose(own.log_weight(params, step, cell(h), alpha), [expected], atol=1e-8)
    np.testing.assert_allclose(own.conditional(params, step).log_prob(cell(h)), [np.log(evidence)], atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("objective", few([PowerEP(0.5, 3), BlackBoxAlpha(0.0, 2)], 0), ids=repr)
def test_it_starts_as_the_rule_that_it_contains(objective):
    """The same key, so the same draws: c = 1, b = 0, S = s² is the model's own conditional."""
    poorer, richer = Guide(MODEL, hidden=DoublyStochastic()), Guide(MODEL, hidden=Follows())
    params = initial(KEY, MODEL, poorer, X, Y)
    expected = loss(objective, params, MODEL, poorer, X, Y)
    start = initial(KEY, MODEL, richer, X, Y) | params
    assert loss(objective, start, MODEL, richer, X, Y) == pytest.approx(expected, abs=1e-8)


@pytest.mark.slow
def test_it_takes_part_in_nested_families():
    poorer, richer = Guide(MODEL, hidden=DoublyStochastic()), Guide(MODEL, hidden=Follows())
    params = initial(KEY, MODEL, poorer, X, Y)
    assert contains(richer, poorer) and not contains(poorer, richer)
    start = nested_start(poorer, richer, params, X, Y)
    np.testing.assert_array_equal(start["layer1/h_coupling"], np.ones((6, 2)))
    with pytest.raises(
        ValueError, match=r"does not contain MeanField.*MeanField\(full=True\)|does not contain"
    ):
        nested_start(Guide(MODEL, hidden=MeanField()), richer, params, X, Y)


@pytest.mark.slow
def test_it_is_amortised_and_runs_along_a_trajectory():
    amortised = Guide(MODEL, hidden=Amortised((3,), Follows()))
    assert np.isfinite(loss(PowerEP(0.5, 2), initial(KEY, MODEL, amortised, X, Y), MODEL, amortised, X, Y))
    model, y = gpssm(1, num_inducing=3), Y[:, :1]
    for hidden in (Follows(), Heavy()):
        guide, controls = Guide(model, hidden=hidden), jnp.zeros((6, 0))
        params = initial(KEY, model, guide, controls, y)
        assert np.isfinite(loss(PowerEP(0.0), params, model, guide, controls, y))


class Heavy(HiddenRule):
    """q(h) with the tails of Student's t: no linear map with Gaussian noise."""

    depends_on = DependsOn.NOTHING

    def declare(self, name, size, step, datum=None):
        return {"loc": per_datum(f"{name}_loc", lambda: step.marginal.mean, size, 1)}

    def conditional(self, params, step):
        return dist.StudentT(5.0, params["loc"], 0.2).to_event(1)


def test_the_weight_of_other_rules_is_the_tempered_density_over_q():
    step, params, value = step_of(0.3, 0.5, 0.1, 0.4), {"loc": jnp.full((1, 1), 0.2)}, jnp.full((1, 1), 0.55)
    for alpha in (0.0, 0.5):
        f = np.linspace(-9.0, 9.0, 200_001)
        density, log_p = stats.norm.pdf(f, 0.3, 0.5**0.5), stats.norm.logpdf(0.55, f, 0.1**0.5)
        expected = np.trapezoid(density * log_p, f)
        if alpha:
            expected = np.log(np.trapezoid(density * np.exp(alpha * log_p), f)) / alpha
        expected = expected - stats.t.logpdf(0.55, 5.0, 0.2, 0.2)
        np.testing.assert_allclose(Heavy().log_weight(params, step, value, alpha), [expected], atol=1e-8)
        np.testing.assert_array_equal(DoublyStochastic().log_weight({}, step, value, alpha), [0.0])
    guide = Guide(MODEL, hidden=Heavy())
    params = initial(KEY, MODEL, guide, X, Y)
    assert np.isfinite(loss(PowerEP(0.5, 2), params, MODEL, guide, X, Y))
    with pytest.raises(TypeError, match="Heavy: found no closed form of its moments"):
        refuse(PowerEP(0.0, propagation="moments"), params, MODEL, guide, X, Y)


def test_a_rule_says_what_it_depends_on():
    """Refused where the class is defined, with what is to be written: each would have had a weight that is not its."""
    with pytest.raises(TypeError, match="Undeclared: found depends_on=None.*write depends_on"):

        class Undeclared(HiddenRule):
            pass

    with pytest.raises(TypeError, match=r"Unweighed: found depends_on=F.*give linear\(\)"):

        class Unweighed(HiddenRule):
            depends_on = DependsOn.F

            def conditional(self, params, step):
                return step

    with pytest.raises(TypeError, match="Moved: found depends_on=F"):

        class Moved(Follows):
            def conditional(self, params, step):
                return step

    with pytest.raises(TypeError, match="Shifted: found conditional beside depends_on=MODEL"):

        class Shifted(DoublyStochastic):
            def conditional(self, params, step):
                return step

    with pytest.raises(TypeError, match=r"Twofold: found conditional\(\) beside linear\(\)"):

        class Twofold(Markov):
            def conditional(self, params, step):
                return step

    class Weighed(Heavy):
        def log_weight(self, params, step, value, alpha):
            return super().log_weight(params, step, value, alpha)

    with pytest.raises(TypeError, match=r"Stale: found log_weight\(\) of Weighed beside another q"):

        class Stale(Weighed):
            def conditional(self, params, step):
                return dist.Normal(params["loc"], 1.0).to_event(1)


def test_a_map_that_was_not_declared_is_refused():
    """Before anything is compiled."""

    class Misdeclared(Follows):
        depends_on = DependsOn.PREVIOUS

    class Still(Markov):
        depends_on = DependsOn.NOTHING

    class Unfollowing(Follows):
        def linear(self, params, step):
            return LinearConditional(Gaussian(params["offset"], params["scale"]))

    class Neither(Heavy):
        conditional = HiddenRule.conditional

    for own, message in (
        (Misdeclared(), r"found function in linear\(\).*DependsOn.F"),
        (Still(), r"found previous in linear\(\).*DependsOn.PREVIOUS"),
        (Unfollowing(), "without function"),
        (Neither(), r"found neither conditional\(\) nor linear\(\)"),
    ):
        with pytest.raises(TypeError, match=message):
            handlers.seed(Guide(MODEL, hidden=own), KEY)(X, Y)

    @dataclass(frozen=True)
    class Chosen(Heavy):
        depends_on: DependsOn = DependsOn.NOTHING

    with pytest.raises(TypeError, match="Chosen: found depends_on=F"):
        Guide(MODEL, hidden=Chosen(DependsOn.F))


def test_what_follows_from_it():
    order = [DependsOn.NOTHING, DependsOn.PREVIOUS, DependsOn.U, DependsOn.F]
    assert sorted(reversed(order)) == order and DependsOn.U <= DependsOn.U
    with pytest.raises(TypeError):
        DependsOn.MODEL > DependsOn.F  # noqa: B015
    per_row = {name for name, each in RULES.items() if each.depends_on.representation == "per_datum_sample"}
    assert per_row == {"tied", "free"}
    smoothed = {name for name, each in RULES.items() if knows_states(each)}
    assert smoothed == {"mean-field", "markov"} and not knows_states(Heavy())
    assert {name for name, each in RULES.items() if not along_function(each)} == {"mean-field", "markov"}
    for wrapped in (*LEARNT.values(), Follows(), Heavy()):
        outer = Amortised((3,), wrapped)
        assert outer.depends_on is wrapped.depends_on and outer.propagation == wrapped.propagation
        assert (knows_states(outer), along_function(outer)) == (
            knows_states(wrapped),
            along_function(wrapped),
        )
    for following in (Follows(), Amortised((), Conditional(free=True))):
        with pytest.raises(ValueError, match="where h depends on u"):
            handlers.seed(Guide(MODEL, hidden=following, inducing=Optimal()), KEY)(X, Y)


def test_five_methods_are_all_that_a_rule_may_override():
    public = {name for name, member in vars(HiddenRule).items() if callable(member) and name[0] != "_"}
    assert public == {"declare", "linear", "conditional", "log_weight", "contains"}


def test_the_example_runs():
    assert doctest.testmod(rule) == (0, 4)
