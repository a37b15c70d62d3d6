"""The checks of ppl_dgp.testing: our own parts pass all of them, and a part that is wrong fails the right row."""

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.tree_util import register_dataclass
from numpyro.distributions import constraints
from rules import RULES

from ppl_dgp.guides import (
    AcrossOutputs,
    Containment,
    Coupled,
    Decoupled,
    Diagonal,
    FullRank,
    InducingRule,
    LayerChain,
    LowRank,
    Markov,
    MeanField,
    Optimal,
)
from ppl_dgp.guides.containment import at_one
from ppl_dgp.kernels import (
    RBF,
    Constant,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    White,
)
from ppl_dgp.likelihoods import (
    Bernoulli,
    Beta,
    Gamma,
    Gaussian,
    Heteroscedastic,
    Laplace,
    MixedLikelihood,
    NegativeBinomial,
    Ordinal,
    Poisson,
    RobustMax,
    Scalar,
    Softmax,
    StudentT,
)
from ppl_dgp.numerics.gaussian import InducingGaussian
from ppl_dgp.objectives import ApproximatePowerEP, BlackBoxAlpha, ImportanceWeighted, PowerEP
from ppl_dgp.testing import (
    CheckFailed,
    CheckReport,
    CheckRow,
    check_inducing_rule,
    check_kernel,
    check_likelihood,
    check_objective,
    check_rule,
)
from ppl_dgp.testing.oracles import integral, power_mean_over_normal
from ppl_dgp.testing.report import at_most_row, collected, equal_row, finite_row, skipped_row

slow = pytest.mark.slow
KERNELS = {
    "rbf": RBF(1.3, jnp.array([0.7, 1.2])),
    "matern12": Matern12(1.3, 0.7),
    "matern32": Matern32(1.3, 0.7),
    "matern52": Matern52(1.3, 0.7),
    "rational quadratic": RationalQuadratic(1.3, 0.7, 0.6),
    "periodic": Periodic(1.0, 0.7, 1.9),
    "linear": Linear(0.6),
    "constant": Constant(0.6),
    "white": White(0.6),
    "sum": RBF(1.0, 0.5) + White(0.1),
    "product": Matern32(1.0, 0.5) * Linear(2.0),
}
# likelihood, the accuracy that it promises
LIKELIHOODS = {
    "gaussian": (Gaussian(jnp.asarray(0.3)), 1e-6),
    "poisson": (Poisson(), 1e-5),
    "bernoulli": (Bernoulli(), 1e-5),
    "bernoulli-logit": (Bernoulli("logit"), 1e-5),
    "student-t": (StudentT(8.0, 0.8), 1e-5),
    "laplace": (Laplace(0.7), 1e-6),
    "negative-binomial": (NegativeBinomial(2.5), 1e-5),
    "gamma": (Gamma(20.0), 1e-5),
    "beta": (Beta(20.0), 1e-5),
    "ordinal": (Ordinal(jnp.array([-1.0, 0.2, 1.0])), 1e-5),
    "scalar": (Scalar(lambda f: dist.Normal(f, 0.3)), 1e-6),
    "softmax": (Softmax(3), 4e-2),
    "robust-max": (RobustMax(3), 1e-4),
    "heteroscedastic": (Heteroscedastic(0.3), 1e-5),
    "mixed": (MixedLikelihood((Gaussian(jnp.asarray(0.3)), Poisson())), 1e-5),
}
INDUCING = {
    "full-rank": FullRank(),
    "diagonal": Diagonal(),
    "low-rank": LowRank(2),
    "across-outputs": AcrossOutputs(),
    "layer-chain": LayerChain(),
    "layer-chain-rank": LayerChain(rank=2),
    "coupled-stripes": Coupled(),
    "coupled-full": Coupled("full"),
    "decoupled": Decoupled(2),
    "decoupled-diagonal": Decoupled(2, "diagonal"),
    "decoupled-full": Decoupled(1, "full"),
    "decoupled-weights": Decoupled(2, "weights"),
    "optimal": Optimal(),
}
OBJECTIVES = {
    "elbo": PowerEP(0.0),
    "power-ep": PowerEP(0.5),
    "power-ep-1": PowerEP(1.0),
    "black-box": BlackBoxAlpha(0.5),
    "approximate": ApproximatePowerEP(0.5),
    "importance": ImportanceWeighted(4),
}


def fails(report, row):
    """Whether a row fails by what it found, and not by an error on the way."""
    assert "Error:" not in report[row].note
    return report.failures == (row,)


def cases(table, *fast):
    """The names of a table, all slow but some."""
    return [pytest.param(name, marks=() if name in fast else slow) for name in table]


@pytest.mark.slow
@pytest.mark.parametrize("name", cases(KERNELS, "rbf"))
def test_our_kernels_pass(name):
    check_kernel(KERNELS[name]).raise_for_failure()


@pytest.mark.parametrize("name", cases(LIKELIHOODS, "gaussian"))
def test_our_likelihoods_pass(name):
    check_likelihood(*LIKELIHOODS[name]).raise_for_failure()


@pytest.mark.parametrize("name", cases(INDUCING))
def test_our_inducing_rules_pass(name):
    check_inducing_rule(INDUCING[name]).raise_for_failure()


@pytest.mark.parametrize("name", cases(OBJECTIVES))
def test_our_objectives_pass(name):
    check_objective(OBJECTIVES[name]).raise_for_failure()


def of(**methods) -> Kernel:
    """An RBF with other methods."""

    @register_dataclass
    @dataclass(frozen=True, eq=False)
    class Wrong(Kernel):
        variance: float = 1.3
        lengthscale: float = 0.7

        @property
        def right(self):
            return RBF(self.variance, self.lengthscale)

        def __call__(self, x, z):
            return methods.get("call", lambda k, x, z: k(x, z))(self.right, x, z)

        def diag(self, x):
            return methods.get("diag", lambda k, x: k.diag(x))(self.right, x)

    return Wrong()


def distance(x, z):
    return jnp.sqrt(jnp.square(x[:, None] - z[None]).sum(-1))


class CubedRBF(RBF):
    """A subclass whose closed forms are those of its parent, and wrong."""

    def correlation(self, r2):
        return jnp.exp(-0.5 * 3.0 * r2)


register_dataclass(CubedRBF, ["variance", "lengthscale"], ["active_dims"])


@pytest.mark.parametrize(
    "kernel, row",
    [
        (of(call=lambda k, x, z: k(x, z) * (1 + 0.1 * jnp.tanh(x[:, :1]))), "symmetric"),
        # a ball's indicator is no covariance in the plane
        (of(call=lambda k, x, z: 1.3 * (distance(x, z) < 1.0)), "positive semidefinite"),
        (of(call=lambda k, x, z: -k(x, z), diag=lambda k, x: -k.diag(x)), "positive semidefinite"),
        (of(diag=lambda k, x: 2.0 * k.diag(x)), "diag is the diagonal"),
        (of(call=lambda k, x, z: k(x - x.mean(0), z - z.mean(0))), "rows do not know of each other"),
        (of(call=lambda k, x, z: 1.3 * jnp.exp(-distance(x, z))), "gradients finite, equal rows too"),
        (
            of(call=lambda k, x, z: k(jax.lax.stop_gradient(x), z)),
            "gradient in x and z",
        ),
        (
            of(call=lambda k, x, z: RBF(jax.lax.stop_gradient(k.variance), k.lengthscale)(x, z)),
            "gradient in the parameters",
        ),
        (
            of(call=lambda k, x, z: k(x, z).astype(jnp.float16).astype(x.dtype) if x.dtype == "float32" else k(x, z)),
            "32 bits near 64",
        ),
        (of(call=lambda k, x, z: k(x, z).T), "shape and dtype"),
        (CubedRBF(1.3, 0.7), "psi1 = ⟨k(h,z)⟩ of draws"),
        (CubedRBF(1.3, 0.7), "psi2 = ⟨k(h,z) k(h,z')⟩ of draws"),
    ],
)  # fmt: skip
def test_a_wrong_kernel_fails_its_row(kernel, row):
    report = check_kernel(kernel, only=[row])
    assert fails(report, row)
    with pytest.raises(CheckFailed, match="NO"):
        report.raise_for_failure()


def test_a_kernel_that_jax_does_not_see_into_is_told_why():
    class Opaque(Kernel):
        def __call__(self, x, z):
            return RBF(1.0, 1.0)(x, z)

        def diag(self, x):
            return RBF(1.0, 1.0).diag(x)

    report = check_kernel(Opaque(), only=["gradient in the parameters"])
    assert report.passed and "register_dataclass" in report["gradient in the parameters"].note


@register_dataclass
@dataclass(frozen=True)
class Noisy(Gaussian):
    """Gaussian noise but for what a test changes."""

    variance: jax.Array = dataclasses.field(default_factory=lambda: jnp.asarray(0.3))


class OffByConstant(Noisy):
    def tempered(self, y, mean, variance, alpha):
        return super().tempered(y, mean, variance, alpha) + 0.1


class Forgetful(Noisy):
    """The variance of f forgotten at α = 0."""

    def tempered(self, y, mean, variance, alpha):
        at_zero = super().tempered(y, mean, 0.0 * variance, 0.0)
        return jnp.where(jnp.asarray(alpha) == 0.0, at_zero, super().tempered(y, mean, variance, alpha))


class Untempered(Noisy):
    def tempered(self, y, mean, variance, alpha):
        return super().tempered(y, mean, variance, jnp.asarray(alpha) ** 2)


class FactorTwo(Noisy):
    def tempered(self, y, mean, variance, alpha):
        return super().tempered(y, mean, 2.0 * variance, alpha)


class Inside(Noisy):
    def tempered_outside(self, y, mean, inside, outside, alpha):
        return self.tempered(y, mean, inside + outside, alpha)


class TwiceTheSpread(Noisy):
    def moments(self, mean, variance):
        return mean, 2.0 * variance + 0.3


class Shifted(Noisy):
    def sample(self, key, mean, variance):
        return super().sample(key, mean, variance) + 0.05


class Positive(Noisy):
    support = constraints.positive


class Stopped(Noisy):
    def tempered(self, y, mean, variance, alpha):
        return super().tempered(y, jax.lax.stop_gradient(mean), variance, alpha)


class Rooted(Noisy):
    def tempered(self, y, mean, variance, alpha):
        return super().tempered(y, mean, jnp.square(jnp.sqrt(variance)), alpha)


class Mixing(Noisy):
    def tempered(self, y, mean, variance, alpha):
        return super().tempered(y, mean - 0.1 * mean.mean(), variance, alpha)


for kind in (OffByConstant, Forgetful, Untempered, FactorTwo, Inside, TwiceTheSpread, Shifted, Positive, Stopped, Rooted, Mixing):  # fmt: skip  # noqa: E501
    register_dataclass(kind, ["variance"], [])


@pytest.mark.parametrize(
    "kind, row",
    [
        (OffByConstant, "density sums to 1"),
        (Forgetful, "t_0 = E log p(y|f)"),
        (Forgetful, "t_α → t_0 as α → 0"),
        (Untempered, "t_½ by quadrature"),
        (FactorTwo, "t_1 = log E p(y|f)"),
        (Inside, "variance outside the logarithm"),
        (TwiceTheSpread, "variance of y, of draws"),
        (Shifted, "mean of y, of draws"),
        (Positive, "draws lie in the support"),
        (Stopped, "gradient in mean and variance"),
        (Rooted, "gradients finite, known f too"),
        (Mixing, "rows alone, and axes in front"),
    ],
)
def test_a_wrong_likelihood_fails_its_row(kind, row):
    assert fails(check_likelihood(kind(), 1e-6, only=[row]), row)


@pytest.mark.parametrize("name", cases(RULES))
def test_our_hidden_rules_pass(name):
    check_rule(RULES[name]).raise_for_failure()


class WrongRule(InducingRule):
    """A full-rank q(u) with a density or moments of its own."""

    def __init__(self, kind):
        self.kind = kind

    def distribution(self, name, shape, initial_scale, earlier):
        q = FullRank().distribution(name, shape, initial_scale, earlier)
        return self.kind(q.loc, q.scale)


class OffDensity(InducingGaussian):
    def log_prob(self, value):
        return super().log_prob(value) + 0.2


class Transposed(InducingGaussian):
    def noise(self, key, sample_shape=()):
        noise = jax.random.normal(key, sample_shape + self.event_shape)
        return jnp.einsum("pkm,...pk->...pm", self.scale, noise)


class WrongMean(InducingGaussian):
    @property
    def mean(self):
        return -self.loc


class OffKL(InducingGaussian):
    def log_det(self):
        return super().log_det() + 1.0


class NegativeKL(InducingGaussian):
    def log_det(self):
        return super().log_det() + 100.0


@pytest.mark.parametrize(
    "kind, row",
    [
        (OffDensity, "log q is a density"),
        (Transposed, "covariance of u, of draws"),
        (Transposed, "variance of u, of draws"),
        (WrongMean, "mean of u, of draws"),
        (OffKL, "KL = E log q/p of draws"),
        (NegativeKL, "KL ≥ 0"),
        pytest.param(NegativeKL, "bound ≤ Titsias' bound", marks=slow),
        pytest.param(NegativeKL, "bound at α = ½ ≤ power EP's energy", marks=slow),
        pytest.param(OffKL, "bound = its average over u", marks=slow),
    ],
)
def test_a_wrong_inducing_rule_fails_its_row(kind, row):
    assert fails(check_inducing_rule(WrongRule(kind), only=[row]), row)


def test_layers_that_would_share_a_parameter_are_found():
    class Sharing(InducingRule):
        def distribution(self, name, shape, initial_scale, earlier):
            scale = numpyro.param("scale", 1.0, constraint=constraints.positive)
            return InducingGaussian(numpyro.param(f"{name}_loc", jnp.zeros(shape)), scale * jnp.ones(shape))

    row = "parameters bear the site's name"
    assert fails(check_inducing_rule(Sharing(), only=[row]), row)


class OffByATenth(MeanField):
    def log_weight(self, params, step, value, alpha):
        return super().log_weight(params, step, value, alpha) + 0.1


class Generous(MeanField):
    """Three nats a row for free."""

    def log_weight(self, params, step, value, alpha):
        return super().log_weight(params, step, value, alpha) + 3.0


class Fitc(MeanField):
    """t_1 in place of t_α: a bound of another model."""

    def log_weight(self, params, step, value, alpha):
        return super().log_weight(params, step, value, 1.0)


class WrongSign(MeanField):
    """log q − t_α."""

    def log_weight(self, params, step, value, alpha):
        return -super().log_weight(params, step, value, alpha)


class Elsewhere(Markov):
    """Says that it is a mean field where its slopes are 1."""

    def contains(self, other):
        return Containment({"slope": at_one}) if isinstance(other, MeanField) else None


@pytest.mark.parametrize(
    "rule, row",
    [
        (OffByATenth(), "log weight by quadrature"),
        pytest.param(OffByATenth(), "E w = 1 at α = 1", marks=slow),
        pytest.param(WrongSign(), "E log w ≤ 0 at α = 0", marks=slow),
        pytest.param(Fitc(), "log weight by quadrature", marks=slow),
        pytest.param(Generous(), "trained: below the evidence", marks=slow),
        pytest.param(Generous(), "α = ½: below FITC's evidence", marks=slow),
        pytest.param(Elsewhere(), "contains MeanField", marks=slow),
    ],
    ids=lambda part: part if isinstance(part, str) else type(part).__name__,
)
@pytest.mark.slow
def test_a_wrong_hidden_rule_fails_its_row(rule, row):
    assert fails(check_rule(rule, only=[row]), row)


class Doubled(PowerEP):
    """A loss with a factor 2."""

    def loss(self, *args, **kwargs):
        return 2.0 * super().loss(*args, **kwargs)


class Better(PowerEP):
    """Nine nats for free."""

    def loss(self, *args, **kwargs):
        return super().loss(*args, **kwargs) - 9.0


class Unscaled(PowerEP):
    """Minibatches counted as if they were all rows."""

    def loss(self, key, params, model, guide, *args, index=None, size=None):
        if index is None:
            return super().loss(key, params, model, guide, *args)
        kwargs = {"index": index} if size is None else {"index": index, "size": size}
        return 0.5 * super().loss(key, params, model, guide, *args, **kwargs)


class Weighted(PowerEP):
    """Rows that count by their place."""

    def loss(self, key, params, model, guide, x, *args, **kwargs):
        return super().loss(key, params, model, guide, x, *args, **kwargs) + x[0].sum()


class Stuck(PowerEP):
    """No gradient reaches the parameters."""

    def loss(self, key, params, *args, **kwargs):
        stopped = jax.tree.map(jax.lax.stop_gradient, params)
        return super().loss(key, stopped, *args, **kwargs) + 0.0 * sum(v.sum() for v in params.values())


@pytest.mark.parametrize(
    "objective, row",
    [
        (Doubled(0.0), "α = 0 is the ELBO"),
        pytest.param(Doubled(0.5), "α → 0 tends to the ELBO", marks=slow),
        (Better(0.5), "toy: below the evidence"),
        pytest.param(Better(0.5), "regression: below the evidence", marks=slow),
        (Unscaled(0.0), "toy: minibatches at α = 0"),
        pytest.param(Unscaled(0.0), "regression: minibatches", marks=slow),
        pytest.param(Weighted(0.0), "rows in another order", marks=slow),
        (Stuck(0.0), "toy: gradient at a fixed key"),
        pytest.param(Stuck(0.0), "regression: gradient at a fixed key", marks=slow),
    ],
    ids=lambda part: part if isinstance(part, str) else type(part).__name__,
)
def test_a_wrong_objective_fails_its_row(objective, row):
    assert fails(check_objective(objective, only=[row]), row)


@slow
def test_an_energy_that_claims_to_be_a_bound_is_found_out():
    row = "toy: below it at the posterior of θ"
    assert fails(check_objective(BlackBoxAlpha(1.0, 400), is_bound=True, only=[row]), row)
    assert "is_bound=True" in check_objective(BlackBoxAlpha(1.0, 4), only=[row])[row].note


@pytest.mark.parametrize(
    "check, part, words",
    [
        (check_kernel, 3.0, "ppl_dgp.kernels.Kernel"),
        (check_likelihood, lambda f: f, "Scalar"),
        (check_inducing_rule, "full-rank", "InducingRule"),
        (check_objective, "elbo", "loss"),
        (check_rule, "markov", "HiddenRule"),
    ],
)
def test_parts_of_another_kind_are_refused(check, part, words, monkeypatch):
    # the package's own messages, which users see, rather than those of the shape checker in tests
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(TypeError, match=words):
        check(part)


def test_the_table_says_what_holds():
    def broken() -> CheckRow:
        raise RuntimeError("no such thing")

    report = collected(
        "part",
        [
            ("equal", lambda: equal_row("equal", [1.0, 2.5], [1.0, 2.0], 0.1)),
            ("nan", lambda: equal_row("nan", np.nan, 1.0, 10.0)),
            ("shapes", lambda: equal_row("shapes", np.ones(2), np.ones(3), 1.0)),
            ("at most", lambda: at_most_row("at most", 1.0, 2.0)),
            ("finite", lambda: finite_row("finite", {"a": jnp.array([jnp.inf, 1.0])})),
            ("raises", broken),
            ("not made", lambda: skipped_row("not made", "there is no such thing")),
        ],
    )
    assert isinstance(report, CheckReport) and not report.passed
    assert report.failures == ("equal", "nan", "shapes", "finite", "raises")
    assert report["equal"].value == 2.5 and report.not_made == ("not made",)
    text = str(report)
    assert text.startswith("part: 1 of 6 checks hold, 1 not made")
    assert "RuntimeError: no such thing" in text and "not made: there is no such thing" in text
    with pytest.raises(KeyError, match="equal"):
        report["other"]
    with pytest.raises(ValueError, match="only"):
        collected("part", [("equal", broken)], ["other"])


def test_quadrature_finds_narrow_peaks_and_heavy_tails():
    peak = lambda z: -0.5 * np.square((z - 0.3) / 1e-4) - np.log(1e-4 * np.sqrt(2 * np.pi))
    assert integral(peak, -5.0, 5.0) == pytest.approx(0.0, abs=1e-10)
    cauchy = lambda t: -np.log(np.pi) - np.log1p(np.sinh(t) ** 2) + np.log(np.cosh(t))
    assert integral(cauchy, -30.0, 30.0) == pytest.approx(0.0, abs=1e-10)
    # log N(1; f, 0.3) under f ~ N(0.2, 0.4), in closed form
    log_p = lambda f: -0.5 * np.log(2 * np.pi * 0.3) - 0.5 * np.square(1.0 - f) / 0.3
    for alpha in (0.0, 0.5, 1.0):
        exact = float(
            Gaussian(jnp.asarray(0.3)).tempered(
                jnp.ones((1, 1)), *map(jnp.full, ((1, 1),) * 2, (0.2, 0.4)), alpha
            )[0, 0]
        )
        assert power_mean_over_normal(log_p, 0.2, 0.4, alpha) == pytest.approx(exact, abs=1e-9)
