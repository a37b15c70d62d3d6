"""A model with a memory: the same NumPyro program, and one observed factor more for each of its GPs."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped
from numpyro.handlers import seed, substitute, trace
from numpyro.primitives import Messenger

from ppl_dgp.fit import Posterior
from ppl_dgp.gp.contract import Model, Parameters
from ppl_dgp.gp.emission import emission_of
from ppl_dgp.gp.features import inducing_points
from ppl_dgp.gp.old_posterior import OldPosterior, recalled, sites
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.guides import Guide
from ppl_dgp.numerics.gaussian import Gaussian, moments_of
from ppl_dgp.numerics.linalg import cholesky
from ppl_dgp.streaming.inducing import InducingChoice


class _Functions(Messenger):
    """Notes the GPs behind hidden and observed sites, by name, in the model's order."""

    def __init__(self) -> None:
        super().__init__()
        self.gps: dict[str, SparseGP] = {}

    def process_message(self, msg: dict[str, Any]) -> None:
        emission = emission_of(msg["fn"]) if msg["type"] == "sample" else None
        if emission is not None:
            for name, function in emission.marginal.functions.items():
                self.gps.setdefault(name, function)


@lru_cache(maxsize=64)
def streamed(model: Model) -> Model:
    """The model with a memory: each GP ``name`` has an observed site ``name/memory`` outside all plates.

    Any guide, objective and fit takes it as it takes the model. Its contents are the parameters ``name/memory/…``,
    none at first: ``fit_svi(key, streamed(model), guide, PowerEP(0.5), x_new, y_new, start=params)`` continues from
    ``params = store_posterior(fit, x_old)`` of a fit of ``streamed(model)``. The same model gives the same object, so
    that compiled fits are found again. Optimisers with weight decay would wear the memory down: take others.

    :param model: a NumPyro model whose GPs are ``sparse_gp`` behind ``noisy`` or ``observe``.
    :raises TypeError: if it is not callable.
    :raises ValueError: when run, if it has no such GP.
    """
    if not callable(model):
        raise TypeError(f"model: found {type(model).__name__}, expected a NumPyro model")

    def with_memory(*args: Any, **kwargs: Any) -> Any:
        functions = _Functions()
        with functions:
            value = model(*args, **kwargs)
        if not functions.gps:
            raise ValueError(
                "model: found no sparse_gp behind a site made by noisy() or observe(), expected one"
            )
        for function in functions.gps.values():
            recalled(function)
        return value

    return with_memory


def functions_of(model: Model, params: Parameters, x: Float[Array, "N D"]) -> dict[str, SparseGP]:
    """The model's GPs at constrained parameters, by name; u is a draw that means nothing."""
    functions = _Functions()
    with functions:
        substitute(seed(model, jax.random.PRNGKey(0)), data=dict(params))(x)
    return functions.gps


def inducing_moments(guide: Model, params: Parameters, x: Float[Array, "N D"], name: str) -> Gaussian:
    """The moments of q(u) of the GP ``name``.

    :raises ValueError: where it links outputs or layers.
    """
    # parameters per datum are of rows that are gone
    rows = guide.with_model_hidden() if isinstance(guide, Guide) else guide
    sites = trace(substitute(seed(rows, jax.random.PRNGKey(0)), data=dict(params))).get_trace(x)
    q = sites[f"{name}/u"]["fn"]
    moments = None if getattr(q, "given", ()) else moments_of(q)
    if moments is None:
        raise ValueError(
            f"guide: found a q(u) at '{name}/u' with links between layers or outputs, expected one for itself to "
            "store its posterior; take inducing=FullRank()"
        )
    return moments


def store_posterior(fit: Posterior, x: Float[Array, "N D"]) -> dict[str, Array]:
    """The parameters with the current q(u), inducing inputs and hyperparameters as their memory.

    What was remembered before is part of q(u), so it is replaced. May be compiled.

    :param fit: of a model that :func:`streamed` returned.
    :param x: any inputs (N, D), one row will do: they tell the model D.
    :raises ValueError: if q(u) links outputs or layers.
    """
    stored = dict(fit.params)
    for name, function in functions_of(fit.model, fit.params, x).items():
        memory = OldPosterior.of(function, inducing_moments(fit.guide, fit.params, x, name))
        stored |= {site: getattr(memory, key) for key, site in sites(name).items()}
    return stored


def move_inducing(
    key: Shaped[Array, "..."],
    fit: Posterior,
    x: Float[Array, "N D"],
    choice: InducingChoice,
) -> dict[str, Array]:
    """The parameters with inducing inputs chosen anew for a batch x; to be called after :func:`store_posterior`.

    It concerns the GP that is given x, the first of the model, and its parameters ``name/inducing``; a full-rank
    q(u) goes on as the old posterior of f at the new inputs. May be compiled.

    :param fit: of a model that :func:`streamed` returned.
    :param x: inputs (B, D) of the batch.
    :param choice: the rule.
    :raises ValueError: if the GP has no parameters ``name/inducing``.
    """
    params = fit.params
    name, old = next(iter(functions_of(fit.model, params, x).items()))
    place, fields = f"{name}/inducing", sites(name)
    if place not in params or fields["shared"] not in params:
        missing = place if place not in params else fields["shared"]
        raise ValueError(
            f"params: found no {missing!r}, expected it; start from store_posterior(), of a model that learns Z"
        )
    inducing, retained = choice(key, old.kernel, inducing_points(old.inducing), x)
    values = dict(params) | {place: inducing}
    values[fields["shared"]] = jnp.diag(retained.astype(inducing.dtype))
    new = functions_of(fit.model, values, x)[name]
    moments = inducing_moments(fit.guide, params, x, name)
    # the old posterior of the new whitened u, given what v and its successor share
    cross = old.kernel(inducing, inducing_points(old.inducing)) + new.nugget * values[fields["shared"]]
    weights = new.whiten @ cross @ old.whiten.T
    identity = jnp.eye(inducing.shape[0], dtype=inducing.dtype)
    loc, scale = f"{name}/u_loc", f"{name}/u_scale"
    if loc in values:
        values[loc] = moments.projected_mean(weights).T
    if scale in values and values[scale].ndim == 3:
        covariance = identity - weights @ weights.T + moments.projected_covariance(weights)
        values[scale] = cholesky(covariance, 0.0)[0]
    return values
