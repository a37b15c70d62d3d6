"""Nine small problems whose posteriors NUTS can draw from, by which approximations are judged.

Each has two models. "fitc" is the zoo's own: NumPyro sees it with f_n independent given u, at inducing inputs that
are held (t_1; what α = 1 and importance-weighted bounds are of). "dense" has the functions joint at all their inputs,
hidden ones too, of at most 60 rows (what α = 0 bounds). Hyperparameters have :func:`ppl_dgp.default_priors` in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from numpyro.distributions import constraints
from numpyro.handlers import lift
from scipy.cluster.vq import kmeans2

from benchmarks.kinks import smooth_kink
from benchmarks.marginal_layers import MarginalLayers
from ppl_dgp import RBF, deep_gp, default_priors, gpssm, sparse_gp
from ppl_dgp.data import Standardiser, load_table
from ppl_dgp.gp.means import layer_map
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.models.classification import class_likelihood, sparse_gp_classification
from ppl_dgp.models.gp_regression import sparse_gp_regression
from ppl_dgp.models.kernel_values import kernel_parameters
from ppl_dgp.models.observation import emission, observed_by
from ppl_dgp.models.parts import as_columns
from ppl_dgp.state_space.trajectory import trajectory_of

Model = Callable[..., Any]
AtPlaces = Callable[[Mapping[str, Any], Any, Any], tuple[Any, Any, Any]]
#: places at which what is known of f is compared, along the range of the inputs; values of y for its density, so many
#: at least, and no further apart
PLACES, VALUES, APART = 24, 161, 0.07


@dataclass(frozen=True, eq=False)
class Problem:
    """Data and the models of them, before priors.

    :param x: inputs (N, D), y: targets (N, P) or labels (N, 1).
    :param places: inputs (S, D) at which posteriors are compared; for a transition, states.
    :param values: of y (G,) whose predictive density is compared at each place; the labels of classes.
    :param fitc, dense: of the same sites, but for the inducing outputs.
    :param hidden: by model, the site whose values are the hidden layer, or the states, at the training rows.
    :param at_places: by model, what it says of f at places, given all its sites in a run at the data: moments of f, and
        the log density of what f is the mean of at values (S, G); what the emission at the places says if not given.
    :param sampled: the problem with models of the same posteriors in which chains mix better, if there are any.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    places: np.ndarray
    values: np.ndarray
    fitc: Model
    dense: Model
    hidden: Mapping[str, str] = field(default_factory=dict)
    at_places: Mapping[str, AtPlaces] = field(default_factory=dict)
    sampled: Problem | None = None

    def lifted(self, kind: str) -> Model:
        """One of its models, hyperparameters with priors.

        :param kind: "fitc" or "dense".
        """
        model: Model = getattr(self, kind)
        lifted: Model = lift(model, prior=default_priors(self.fitc, self.x, self.y))
        return lifted


@dataclass(frozen=True, eq=False)
class DenseGP:
    """A GP whose values are joint at all its inputs: Z is what it is given.

    :param rows: training inputs (N, D).
    :param likelihood: as of ``sparse_gp_regression``; ``num_classes`` of labels.
    """

    rows: np.ndarray
    likelihood: str | None = None
    num_classes: int | None = None

    def __call__(self, x: Any, y: Any = None, index: Any = None, size: Any = None) -> Any:
        y = as_columns(x, y, 1)
        if self.num_classes is not None:
            given = class_likelihood(self.likelihood, self.num_classes, y)
        else:
            given = observed_by(self.likelihood, None, y, 1)
        z, inputs = jnp.asarray(self.rows), jnp.asarray(x)
        g = sparse_gp("gp", kernel_parameters("gp", RBF, z.shape[1]), z, given.num_functions(1))
        with data_plate(len(inputs)):
            return numpyro.sample("y", emission(g(inputs), given, index, y is not None), obs=y)


def dense_transition(x: Any, y: Any = None, index: Any = None, size: Any = None) -> None:
    """A GPSSM of one state that is observed, f joint along its path and integrated out; site ``path`` (T + 1, 1).

    Given the path, x_{t+1} of all t together are N(x_t, K + Q I): the product of what f says of each step given the
    ones before.
    """
    rows = as_columns(x, y, 1)
    kernel = kernel_parameters("transition", RBF, 1)
    q = numpyro.param("transition/noise", jnp.asarray(0.05), constraint=constraints.positive)
    r = numpyro.param("likelihood/noise", jnp.asarray(0.1), constraint=constraints.positive)
    # a draw near what was observed, where chains begin, whose density does not count
    near = dist.Normal(jnp.concatenate([rows[:1], rows]), 0.1).to_event(2)
    path = numpyro.sample("path", near)
    numpyro.factor("flat", -near.log_prob(path))
    before, after = path[:-1], path[1:]
    covariance = kernel(before, before) + q * jnp.eye(len(before))
    numpyro.factor("first", dist.Normal(0.0, 1.0).log_prob(path[0]).sum())
    steps = dist.MultivariateNormal(before[:, 0], covariance)
    numpyro.factor("steps", steps.log_prob(after[:, 0]))
    with data_plate(len(rows)):
        numpyro.sample("y", dist.Normal(after, jnp.sqrt(r)).to_event(1), obs=rows)


def _transition(sites: Mapping[str, Any], places: Any, values: Any) -> tuple[Any, Any, Any]:
    """Of the zoo's model."""
    trajectory = trajectory_of(sites["x"]["fn"])
    marginal = trajectory.function(places)
    return _next_states(marginal.mean, marginal.variance, sites["transition/noise"]["value"], values)


def _dense_transition(sites: Mapping[str, Any], places: Any, values: Any) -> tuple[Any, Any, Any]:
    """f given the path, of which each step is f with noise Q."""
    path, q = sites["path"]["value"], sites["transition/noise"]["value"]
    kernel = RBF(sites["transition/variance"]["value"], sites["transition/lengthscale"]["value"])
    before, after = path[:-1], path[1:]
    factor = jnp.linalg.cholesky(kernel(before, before) + q * jnp.eye(len(before)))
    features = solve_triangular(factor, kernel(before, places), lower=True)
    mean = places + features.T @ solve_triangular(factor, after - before, lower=True)
    variance = (kernel.diag(places) - jnp.square(features).sum(0))[:, None]
    return _next_states(mean, variance, q, values)


def _next_states(mean: Any, variance: Any, q: Any, values: Any) -> tuple[Any, Any, Any]:
    return mean, variance, dist.Normal(mean, jnp.sqrt(variance + q)).log_prob(values)


def family(name: str) -> str:
    """The problem that a name is a draw of: "step" of "step" and of "step.1"."""
    return name.partition(".")[0]


def chosen(names: str | None, known: Mapping[str, Any]) -> list[str]:
    """Problems named by commas; if none is, all that are known but those drawn again."""
    return names.split(",") if names else [name for name in known if name == family(name)]


def problems(data: Path | None = None) -> dict[str, Callable[[], Problem]]:
    """By name; "step.1" is "step" with other rows, drawn with the seed 1.

    :param data: the folder of ``uci/boston.npz``; without it "boston" is not there.
    """
    along = lambda *names: {name: partial(_along_a_line, name, *ALONG[family(name)]) for name in names}
    found: dict[str, Callable[[], Problem]] = {
        **along("regression", "robust", "probit"),
        "classes": _three_classes,
        **along("heteroscedastic", "step", "chirp"),
        "kink": _kink,
        **along(*(f"{name}.1" for name in ALONG)),
    }
    if data is not None:
        found["boston"] = lambda: _boston(data)
    return found


def _along_a_line(
    name: str,
    number: int,
    drawn: Callable[[np.random.Generator, np.ndarray], np.ndarray],
    likelihood: str | None = None,
    num_classes: int | None = None,
    widths: tuple[int, ...] = (),
) -> Problem:
    """A problem of one input in (−2, 2), with M = 8 inducing inputs along it; its name tells which rows are drawn."""
    random = np.random.default_rng(int(name.partition(".")[2] or 0))
    x = np.sort(random.uniform(-2.0, 2.0, number))[:, None]
    y = drawn(random, x)
    z = np.linspace(-2.0, 2.0, 8)[:, None]
    places = np.linspace(-3.0, 3.0, PLACES)[:, None]
    about: dict[str, Any] = {"train_inducing": False}
    fitc: Model
    if widths:
        fitc = deep_gp(widths, 8, inducing=[z] * (len(widths) + 1), likelihood=likelihood, **about)
    elif num_classes is not None:
        fitc = sparse_gp_classification(num_classes, 8, likelihood=likelihood, inducing=z, **about)
    else:
        fitc = sparse_gp_regression(8, inducing=z, likelihood=likelihood, **about)
    if widths:
        return _of_layers(name, x, y, places, fitc, (z, z))
    dense = DenseGP(x, likelihood, num_classes)
    return Problem(name, x, y, places, _values(y, num_classes), fitc, dense)


def _of_layers(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    places: np.ndarray,
    fitc: Model,
    inducing: tuple[np.ndarray, np.ndarray],
) -> Problem:
    """A problem with a hidden layer of one output."""
    models = {"fitc": MarginalLayers(x, inducing), "dense": MarginalLayers(x)}
    at_places = {kind: model.at_places for kind, model in models.items()}
    sampled = Problem(
        name,
        x,
        y,
        places,
        _values(y),
        **models,
        hidden=dict.fromkeys(models, "layer1/hidden"),
        at_places=at_places,
    )
    return replace(
        sampled, fitc=fitc, hidden={**sampled.hidden, "fitc": "layer1/h"}, at_places={"dense": at_places["dense"]},
        sampled=sampled,
    )  # fmt: skip


def _three_classes() -> Problem:
    """Three clouds in the plane that overlap."""
    random = np.random.default_rng(0)
    labels = np.arange(45) % 3
    centres = np.array([[-1.0, -0.6], [1.0, -0.6], [0.0, 1.1]])
    x = centres[labels] + 0.7 * random.normal(size=(45, 2))
    z, _ = kmeans2(x, 8, minit="++", rng=np.random.default_rng(0))
    side = np.linspace(-2.0, 2.0, 5)
    places = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)[:PLACES]
    fitc = sparse_gp_classification(3, 8, likelihood="softmax", inducing=z, train_inducing=False)
    dense = DenseGP(x, "softmax", 3)
    return Problem("classes", x, labels[:, None], places, np.arange(3), fitc, dense)


def _boston(data: Path) -> Problem:
    """Fifty rows of boston, standardised, and a hidden layer of one output."""
    table = load_table(str(data / "uci" / "boston.npz"))
    order = np.random.default_rng(0).permutation(len(table.X))
    rows, rest = order[:50], order[50 : 50 + PLACES]
    inputs, targets = Standardiser.fit(table.X[rows]), Standardiser.fit(table.y[rows])
    x, y = np.asarray(inputs.transform(table.X[rows])), np.asarray(targets.transform(table.y[rows]))
    z, _ = kmeans2(x, 10, minit="++", rng=np.random.default_rng(0))
    hidden, _ = kmeans2(
        np.asarray(x @ layer_map(jnp.asarray(x), 1)), 10, minit="++", rng=np.random.default_rng(0)
    )
    fitc = deep_gp((1,), 10, inducing=[z, hidden], train_inducing=False)
    places = np.asarray(inputs.transform(table.X[rest]))
    return _of_layers("boston", x, y, places, fitc, (z, hidden))


def _kink() -> Problem:
    """Sixty steps of a transition with a kink, which are observed (Ialongo et al. 2019)."""
    random, state, states = np.random.default_rng(0), 0.5, []
    for _ in range(60):
        state = smooth_kink(state) + 0.05**0.5 * random.normal()
        states.append(state)
    y = np.asarray(states)[:, None] + 0.08**0.5 * random.normal(size=(60, 1))
    z = np.linspace(y.min(), y.max(), 12)[:, None]
    fitc = gpssm(1, 1, 12, emission="identity", inducing=z, train_inducing=False)
    places = np.linspace(*np.quantile(y, [0.02, 0.98]), PLACES)[:, None]
    return Problem(
        "kink", np.zeros((60, 0)), y, places, _values(y), fitc, dense_transition, {"fitc": "x", "dense": "path"},
        {"fitc": _transition, "dense": _dense_transition},
    )  # fmt: skip


def _values(y: np.ndarray, num_classes: int | None = None) -> np.ndarray:
    """Where predictive densities are compared."""
    if num_classes is not None:
        return np.arange(num_classes)
    reach = 1.5 * (y.max() - y.min())
    number = max(VALUES, int(np.ceil(4.0 * (y.max() - y.min()) / APART)) + 1)
    return np.linspace(y.min() - reach, y.max() + reach, number)


def _sine(noise: float) -> Callable[[np.random.Generator, np.ndarray], np.ndarray]:
    return lambda random, x: np.sin(2.0 * x) + noise * random.normal(size=x.shape)


def _outliers(random: np.random.Generator, x: np.ndarray) -> np.ndarray:
    y = _sine(0.1)(random, x)
    y[::7] += 3.0 * np.sign(random.normal(size=y[::7].shape))
    return y


def _labels(random: np.random.Generator, x: np.ndarray) -> np.ndarray:
    return (np.sin(2.0 * x) + 0.5 * random.normal(size=x.shape) > 0).astype(int)


def _growing(random: np.random.Generator, x: np.ndarray) -> np.ndarray:
    return np.sin(2.0 * x) + np.exp(0.7 * x - 1.5) * random.normal(size=x.shape)


def _step(random: np.random.Generator, x: np.ndarray) -> np.ndarray:
    return np.sign(x) + 0.1 * random.normal(size=x.shape)


def _chirp(random: np.random.Generator, x: np.ndarray) -> np.ndarray:
    return np.sin(3.0 * np.exp(0.5 * x)) + 0.1 * random.normal(size=x.shape)


#: problems of one input: the number of rows, what draws y, the likelihood, the number of classes, hidden layers
ALONG: dict[str, tuple[Any, ...]] = {
    "regression": (25, _sine(0.2)),
    "robust": (30, _outliers, "student-t"),
    "probit": (40, _labels, "bernoulli", 2),
    "heteroscedastic": (50, _growing, "heteroscedastic"),
    "step": (30, _step, None, None, (1,)),
    "chirp": (40, _chirp, None, None, (1,)),
}
