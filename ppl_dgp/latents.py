"""Latents of new rows: q of their own, the rest of a fit frozen; densities of rows; which dimensions count.

The posterior of a new row's latents is found by its network where the guide has one (``Amortised``), else by optimising
the row's own parameters under the fitted q(u) (Titsias & Lawrence 2010, section 3; Bui 2017, 3.7): rows may lack
entries, and many are found at once, for under q(u) they do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
from jax.scipy.special import logsumexp
from jax.typing import ArrayLike
from jaxtyping import Array, Float
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import Transform
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import ELBO

from ppl_dgp.fit import Fit
from ppl_dgp.fit.result import checked_data
from ppl_dgp.fit.session import one_blas_thread
from ppl_dgp.gaussian import Gaussian, moments_of
from ppl_dgp.gp import Carrying, bare
from ppl_dgp.guides import Amortised, Guide
from ppl_dgp.guides.guide import HiddenConditional
from ppl_dgp.guides.hidden import gaussian
from ppl_dgp.objectives import Collapsed, PowerEP
from ppl_dgp.objectives.carrying import Carried, possible_carrying
from ppl_dgp.objectives.divergence import AlphaDivergence
from ppl_dgp.predict import drawn, model_sites, predict

Program = Callable[..., Any]
Parameters = dict[str, Array]
#: training rows whose latents a new row may start at
CANDIDATES = 2000
#: draws of the moments of a latent whose q is no Gaussian of its own
DRAWS = 100


def _above(site: str) -> tuple[bool, str]:
    """Sorts a row's own latents before the layers above them."""
    return "/" in site, site


@dataclass(frozen=True)
class Latents:
    """q of the hidden sites at K rows: ``sites`` by name, and the rows' own parameters.

    ``mean`` (K, Q) and ``scale`` (K, Q), or lower factors (K, Q, Q), NumPy arrays, are those of the row's own latent,
    ``x`` or ``z``; layers above it have paths for names, ``layer1/h``.
    """

    sites: Mapping[str, Gaussian]
    params: Mapping[str, Array]

    @property
    def mean(self) -> Float[np.ndarray, "K Q"]:
        return np.asarray(self._first.mean)

    @property
    def scale(self) -> np.ndarray:
        return np.asarray(self._first.scale)

    @property
    def variance(self) -> Float[np.ndarray, "K Q"]:
        """Of each coordinate."""
        # NumPy, for JAX would round to 32 bits where these are its default
        squares = np.square(self.scale)
        return squares if squares.ndim == 2 else squares.sum(-1)

    @property
    def _first(self) -> Gaussian:
        return self.sites[min(self.sites, key=_above)]


def infer_latents(
    key: Array,
    fit: Fit,
    y: ArrayLike,
    x: ArrayLike | None = None,
    *,
    steps: int = 300,
    learning_rate: float = 0.05,
    batch_size: int = 500,
) -> Latents:
    """q of the latents of K rows given what is observed of them, NaN where nothing is.

    An encoder answers at once; otherwise the rows' own parameters are trained by Adam under the bound (α = 0), q(u) and
    all else as fitted, from the better of where the model starts its latents and the latents of the training row that
    explains the row best.

    :param fit: of a model with latents, its guide a ``Guide``.
    :param y: (K, P), in the units of training; NaN for missing entries where the model was made with ``missing=True``.
    :param x: inputs (K, D) where the model has any.
    :param steps: of Adam, its rate falling to 0.
    :param batch_size: rows at a time.
    :raises TypeError: if the guide is not a ``Guide``.
    :raises ValueError: for rows that cannot be used, or a model without hidden sites.
    """
    if not isinstance(fit.guide, Guide):
        raise TypeError(f"fit: found the guide {type(fit.guide).__name__}, expected a Guide, whose rules know new rows")
    for name, value in (("steps", steps), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name}: found {value}, expected at least 1")
    rows, targets = _new_rows(x, y, fit)
    rule = fit.guide.latent_rule
    if isinstance(rule, Amortised) and not rule.missing and np.isnan(targets.astype(float)).any():
        raise ValueError("y: found missing entries, NaN, but the encoder was made without missing='mask'; fill them in")
    program = _fold_in(fit.model, fit.guide, _objective(fit.objective), steps, learning_rate)
    candidates = _candidates(key, fit, rows.shape[1])
    with one_blas_thread():
        found = [
            program(key, fit.params, candidates, *block) for block in _blocks(batch_size, rows, targets)
        ]
    return Latents(*_joined(found, len(targets)))


def row_log_density(
    key: Array,
    fit: Fit,
    y: ArrayLike,
    x: ArrayLike | None = None,
    *,
    latents: Latents | None = None,
    num_samples: int = 200,
    batch_size: int = 500,
) -> Float[np.ndarray, " K"]:
    """log p(y_n) of each row, missing entries left out, in nats: the log of the mean of p(y|x) p(x)/q(x) over draws.

    A lower bound in expectation, tight where q(x_n) is the posterior; u is integrated out for each draw by itself.
    Layers above the latents are drawn from the model's own conditionals.

    :param latents: of these rows; found by :func:`infer_latents` if not given.
    :raises ValueError: as :func:`infer_latents` does.
    """
    rows, targets = _new_rows(x, y, fit)
    known = infer_latents(key, fit, y, x) if latents is None else latents
    points = [name for name, site in known.sites.items() if "/" not in name and not np.asarray(site.scale).any()]
    if points:
        raise ValueError(f"latents: found points at {points}, which have no density; take MeanField() for the latents")
    program = _density(fit.model, fit.guide, num_samples)
    own = {name: site for name, site in known.sites.items() if "/" not in name} or dict(known.sites)
    blocks = _blocks(batch_size, rows, targets, own)
    return np.asarray(_joined([program(key, fit.params, *block) for block in blocks], len(targets)))


def relevance(
    params: Mapping[str, ArrayLike],
    layer: str = "gp",
    site: str = "x",
    means: Float[np.ndarray, "N Q"] | None = None,
) -> Float[np.ndarray, " Q"]:
    """How much each latent dimension matters to a layer: the spread of its values in lengthscales.

    The standard deviation over rows of E[x_nq], divided by ℓ_q; a dimension that is switched off has a long
    lengthscale, or values that are all alike. Of a composed kernel ℓ is that of the first factor that has any.

    :param means: E[x_n] where rows have no parameters of their own (an encoder); 1/ℓ_q if there are neither.
    :raises KeyError: if the layer has no lengthscales.
    """
    names = sorted(n for n in params if n.startswith(f"{layer}/") and n.endswith("/lengthscale"))
    if not names:
        raise KeyError(f"layer: found no lengthscale of {layer!r} among {', '.join(sorted(params))}")
    lengthscale = np.asarray(params[names[0]])
    loc = params.get(f"{site}_loc") if means is None else means
    if loc is None:
        return np.asarray(1.0 / lengthscale)
    spread = np.asarray(loc).std(0)
    # inputs that are known stand in front of latents
    return np.asarray(spread / lengthscale[-len(spread) :])


def _new_rows(x: ArrayLike | None, y: ArrayLike, fit: Fit) -> tuple[np.ndarray, np.ndarray]:
    targets = np.asarray(y)
    if targets.ndim != 2 or len(targets) == 0:
        raise ValueError(f"y: found shape {targets.shape}, expected (K, P) with at least one row")
    # with its parameters, which few rows could not start
    rows, _ = checked_data(x, targets, substitute(fit.model, fit.params), empty_columns=True)
    return np.asarray(rows), targets


def _objective(trained: ELBO) -> ELBO:
    """The bound that rows are folded in by: carried as the fit carried them."""
    if isinstance(trained, Collapsed):
        return PowerEP(0.0, propagation="moments")
    if isinstance(trained, AlphaDivergence):
        return PowerEP(0.0, propagation=trained.propagation)
    return PowerEP(0.0)


def _blocks(size: int, *arrays: Any) -> Iterator[Any]:
    """Rows a block at a time; the last is filled up with its first row, so that one shape is compiled."""
    count = len(arrays[0])
    size = min(size, count)
    for begin in range(0, count, size):
        take = np.arange(begin, begin + size)
        take[take >= count] = begin
        yield jax.tree.map(lambda each: jnp.asarray(np.asarray(each)[take]), arrays)  # noqa: B023


def _joined(blocks: list[Any], count: int) -> Any:
    return jax.tree.map(lambda *parts: jnp.concatenate(parts)[:count], *blocks)


def _candidates(key: Array, fit: Fit, num_inputs: int) -> dict[str, tuple[Array, Array]]:
    """Of latents whose training rows have means of their own: some of these, and the y that each stands for."""
    if num_inputs or "x_loc" not in fit.params:
        return {}
    loc = np.asarray(fit.params["x_loc"])
    rows = np.random.default_rng(0).permutation(len(loc))[:CANDIDATES]
    at = Gaussian(jnp.asarray(loc[rows]), jnp.zeros((len(rows), loc.shape[1])))
    decoded = predict(key, fit.model, fit.guide, fit.params, None, num_samples=1, latents={"x": at})
    return {"x": (at.mean, jnp.asarray(decoded.mean))}


@lru_cache(maxsize=16)
def _fold_in(
    model: Program, guide: Guide, objective: ELBO, steps: int, learning_rate: float
) -> Callable[..., tuple[dict[str, Gaussian], Parameters]]:
    """The rows' own parameters trained, as one compiled program; then q of the hidden sites."""
    optimiser = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))

    def program(
        key: Array, params: Parameters, candidates: dict[str, tuple[Array, Array]], x: Array, y: Array
    ) -> tuple[dict[str, Gaussian], Parameters]:
        own, bijections = _own_parameters(guide, params, x, y)
        known = {name: value for name, value in params.items() if name not in own}
        if own:
            for site, (at, decoded) in candidates.items():
                if f"{site}_loc" in own:
                    start = own[f"{site}_loc"]
                    if decoded.shape[1] != y.shape[1]:  # probabilities of classes
                        continue
                    mine = model_sites(key, model, guide, known | {site: start}, x)["y"]["fn"].mean
                    own[f"{site}_loc"] = _better(y, start, mine, at, decoded)
            free = {name: bijections[name].inv(value) for name, value in own.items()}
            constrain = lambda free: {name: bijections[name](value) for name, value in free.items()}  # noqa: E731

            def loss(free: Parameters, key: Array) -> Array:
                value: Array = objective.loss(key, known | constrain(free), model, guide, x, y)
                return value

            def step(state: Any, key: Array) -> tuple[Any, None]:
                free, memory = state
                updates, memory = optimiser.update(jax.grad(loss)(free, key), memory)
                return (optax.apply_updates(free, updates), memory), None

            (free, _), _ = jax.lax.scan(step, (free, optimiser.init(free)), jax.random.split(key, steps))
            own = constrain(free)
        return _hidden_sites(key, guide, known | own, x, y), own

    return jax.jit(program)


def _better(y: Array, start: Array, mine: Array, at: Array, decoded: Array) -> Array:
    """Of each row's own start and the training latents, what explains its entries best in squares."""
    there = ~jnp.isnan(y)
    seen, filled = there.astype(decoded.dtype), jnp.where(there, y, 0.0)
    # |m (y − d)|² less |m y|², for all pairs of rows and candidates
    distances = seen @ jnp.square(decoded).T - 2.0 * filled @ decoded.T
    own = (seen * (jnp.square(mine) - 2.0 * filled * mine)).sum(1)
    best = distances.argmin(1)
    return jnp.where((distances.min(1) < own)[:, None], at[best], start)


def _own_parameters(
    guide: Guide, params: Parameters, x: Array, y: Array
) -> tuple[Parameters, dict[str, Transform]]:
    """Where the parameters that rows have for themselves start at new rows, and the bijections to them.

    They are declared inside the data plate and say the dimension of a row.
    """

    def is_own(site: dict[str, Any]) -> bool:
        inside = site["type"] == "param" and bool(site["cond_indep_stack"])
        return inside and site["kwargs"].get("event_dim") is not None

    def known(site: dict[str, Any]) -> Array | None:
        return None if is_own(site) else params.get(site["name"])

    sites = trace(substitute(seed(guide, jax.random.PRNGKey(0)), substitute_fn=known)).get_trace(x, y)
    own = {name: site for name, site in sites.items() if is_own(site)}
    bijections = {
        name: biject_to(site["kwargs"].get("constraint", constraints.real)) for name, site in own.items()
    }
    return {name: site["value"] for name, site in own.items()}, bijections


def _hidden_sites(key: Array, guide: Guide, params: Parameters, x: Array, y: Array) -> dict[str, Gaussian]:
    """Mean and scale of each hidden site under q, in closed form or by draws under moments of u."""
    key_run, key_draws = jax.random.split(key)

    def run(key: Array) -> dict[str, Any]:
        return trace(substitute(seed(guide, key), params)).get_trace(x, y)  # type: ignore[no-any-return]

    sites = run(key_run)
    of_role = lambda role: {  # noqa: E731
        name: site
        for name, site in sites.items()
        if site["type"] == "sample" and site["infer"].get("role") == role
    }
    hidden = of_role("hidden")
    if not hidden:
        raise ValueError("model: found no hidden site, expected latents of rows; use predict()")
    found = {name: _moments(site["fn"]) for name, site in hidden.items()}
    if any(value is None for value in found.values()):
        wishes: dict[str, Carrying] = {
            name: site["infer"].get("carry", "moments") for name, site in of_role("inducing").items()
        }
        carrying = possible_carrying(wishes, sites)

        def draw(key: Array) -> Parameters:
            key_run, key_carry = jax.random.split(key)
            with Carried(carrying, x.shape[0], key_carry):
                drawn_sites = run(key_run)
            return {name: drawn_sites[name]["value"] for name in hidden}

        draws = jax.lax.map(draw, jax.random.split(key_draws, DRAWS))
        for name, value in found.items():
            if value is None:
                found[name] = Gaussian(draws[name].mean(0), draws[name].std(0))
    return found  # type: ignore[return-value]


def _moments(q: dist.Distribution) -> Gaussian | None:
    """Of a q that depends on no other draw."""
    inner = bare(q)
    if isinstance(inner, dist.Delta):
        point = jnp.broadcast_to(inner.v, q.shape())
        return Gaussian(point, jnp.zeros_like(point))
    if isinstance(inner, HiddenConditional):
        try:
            slope, around = inner.rule.linear(inner.params, inner.step)
        except TypeError:  # no closed form
            return None
        return around if slope is None else None
    return moments_of(q)


@lru_cache(maxsize=16)
def _density(model: Program, guide: Program, num_samples: int) -> Callable[..., Array]:
    def program(key: Array, params: Parameters, x: Array, y: Array, latents: dict[str, Gaussian]) -> Array:
        def one(key: Array) -> Array:
            key_run, key_latents = jax.random.split(key)
            # a row's density must not depend on the rows beside it
            values = drawn(key_latents, latents, alike=True)
            sites = model_sites(key_run, model, guide, params | values, x)
            total = sites["y"]["fn"].log_prob(y)
            for name, value in values.items():
                total = total + sites[name]["fn"].log_prob(value) - gaussian(latents[name]).log_prob(value)
            return total

        return logsumexp(jax.lax.map(one, jax.random.split(key, num_samples)), 0) - jnp.log(float(num_samples))

    return jax.jit(program)
