"""The No-U-Turn sampler on a model as it stands (Hoffman & Gelman 2014): the posterior that guides approximate.

What it samples is the density that NumPyro sees, t_1 for GP sites: the FITC model, whose f_n are independent given u,
with its inducing inputs held.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Num, Shaped
from numpyro.handlers import block, replay, seed, substitute, trace
from numpyro.infer import ELBO, MCMC, NUTS
from numpyro.infer.util import constrain_fn, log_density, potential_energy

from ppl_dgp.fit.arguments import check_counts, check_key, check_programs
from ppl_dgp.fit.chains import SamplingWarning, chains_of
from ppl_dgp.fit.collapsed_density import CollapsedDensity
from ppl_dgp.fit.jitter import warn_of_jitter
from ppl_dgp.fit.result import Fit, FitError, assemble, checked_data, fingerprint
from ppl_dgp.fit.sampled_model import SampledModel, beginnings, check_start_fit
from ppl_dgp.fit.session import one_blas_thread
from ppl_dgp.fit.watching import tell_end
from ppl_dgp.gp.contract import Model, Parameters
from ppl_dgp.guides.empirical import DRAWS_SUFFIX, EmpiricalPosterior
from ppl_dgp.messages import unknown_name
from ppl_dgp.numerics.compatibility import compiled
from ppl_dgp.objectives import Collapsed

CHAIN_METHODS = ("vectorized", "sequential", "parallel")
#: draws of a start's guide that the metric begins with, and how many draws of variance ``LEAST_VARIANCE`` it is
#: averaged with, as in Stan's adaptation of it
METRIC_DRAWS, PRIOR_DRAWS, LEAST_VARIANCE = 200, 5, 1e-3
#: draws that are constrained at a time
DRAWS_AT_ONCE = 50
#: by ArviZ's names, the fields of NumPyro's state
_STATS = {
    "diverging": "diverging",
    "acceptance_rate": "accept_prob",
    "n_steps": "num_steps",
    "energy": "energy",
    "potential_energy": "potential_energy",
    "step_size": "adapt_state.step_size",
}


class JointDensity(ELBO):
    """−log p(y, h, θ) of the model that NumPyro sees, at a run of the guide: no bound, but what NUTS samples from."""

    def __repr__(self) -> str:
        return "JointDensity()"

    def loss(
        self, rng_key: Array, param_map: Parameters, model: Model, guide: Model, *args: Any, **kwargs: Any
    ) -> Float[Array, ""]:
        """The density at one draw of the guide, in nats."""
        latents = trace(substitute(seed(guide, rng_key), data=param_map)).get_trace(*args, **kwargs)
        log_joint, _ = log_density(replay(seed(model, rng_key), latents), args, kwargs, param_map)
        energy: Array = -log_joint
        return energy


def fit_nuts(
    key: Shaped[Array, "..."],
    model: Model,
    x: ArrayLike | None,
    y: ArrayLike,
    *,
    start: Fit | None = None,
    marginal: Collapsed | None = None,
    num_warmup: int = 1000,
    num_samples: int = 1000,
    num_chains: int = 4,
    target_accept_prob: float = 0.9,
    max_tree_depth: int = 10,
    dense_mass: bool = False,
    chain_method: str = "vectorized",
    progress: bool = False,
) -> Fit:
    """Draw from the posterior of a model by NUTS: whitened inducing outputs, hidden layers of every row, latents.

    The density is t_1, that of the FITC model in which the f_n are independent given u (exact where Z = X), not the
    exact GP's, which the ELBO bounds. Every ``numpyro.param`` of the model is held: inducing inputs, and
    hyperparameters without a prior; at its value in ``start``, else where the model begins it (k-means centres of the
    rows for inducing inputs, as ``fit_svi`` begins). To sample hyperparameters give them priors:
    ``numpyro.handlers.lift(model, prior=default_priors(model, x, y))`` (:mod:`ppl_dgp.models.priors`), or
    ``prior={"gp/lengthscale": dist.LogNormal(0.0, 1.0).expand([D]).to_event(1)}``, or ``numpyro.sample`` in a model of
    your own.

    :param key: JAX random key.
    :param model: called as ``model(x, y)``.
    :param x: inputs (N, D), None for none (a latent variable model). y: targets (N, P), or (N,) for one column.
    :param start: a fit of this model, or of this model before ``lift``: its parameters are held, lifted ones begin
        there, every chain's latents begin at a draw from its guide, and the metric (the inverse of NUTS' mass matrix)
        at the variances of such draws, from where it is adapted. Without it inducing outputs begin at draws of the
        scale that guides begin with, all else at draws from the prior, and the metric at 1.
    :param marginal: of a sparse GP under Gaussian noise that ``lift`` gave priors, the energy whose value stands for
        log p(y | θ): u is integrated out, and drawn given each θ. ``Collapsed.fitc()`` is the density above,
        ``Collapsed.exact()`` that of the exact GP. A step costs a factorisation more, and chains mix as those of a few
        numbers do.
    :param num_warmup: steps of adaptation per chain; ``num_samples`` draws kept per chain, at least 4.
    :param num_chains: run side by side on one device; R-hat compares them.
    :param target_accept_prob: nearer 1 for smaller steps, where draws diverge; ``max_tree_depth`` and ``dense_mass``
        as NumPyro's ``NUTS`` has them.
    :param chain_method: "vectorized", "sequential", or "parallel" with a device for each chain.
    :param progress: show NumPyro's bar.
    :returns: a ``Fit`` whose guide is an ``EmpiricalPosterior``: ``params`` hold the draws (C, S, …) of each site,
        named ``<site>_draws``, beside what was held. A run of the guide is one of the draws, so that ``predict``
        averages over them, the hidden layers of new rows from the model's own conditionals. ``chains`` has divergences,
        R-hat and effective sample sizes; ``losses`` (1, S) are minus the log density of the draws, averaged over
        chains.
    :raises ValueError: for data or numbers that cannot be used, a model with discrete latents, with a subsampled plate
        or without latents, a start of another model, or ``marginal`` of a model with hidden layers or latents.
    :raises TypeError: for a start or a ``marginal`` that is none, or of a model that is not lifted or has other noise.
    :raises FitError: if the density is not finite where a chain begins or ends.

    Warns with ``SamplingWarning`` if a draw diverged or R-hat is above 1.01.
    """
    check_counts(num_warmup=(num_warmup, 1), num_samples=(num_samples, 4), num_chains=(num_chains, 1))
    if not 0.0 < target_accept_prob < 1.0:
        raise ValueError(
            f"target_accept_prob: found {target_accept_prob}, expected a number in (0, 1); try 0.9"
        )
    if chain_method not in CHAIN_METHODS:
        raise unknown_name(f"chain_method: found {chain_method!r}", str(chain_method), CHAIN_METHODS)
    check_key(key)
    check_programs(model, None)
    started = time.perf_counter()
    x, y = checked_data(x, y, model)
    check_start_fit(start, model)
    program = SampledModel.of(model, x, y, start)
    key_held, key_begin, key_run = jax.random.split(key, 3)
    held = program.held(key_held, x, y, start)
    conditioned = block(substitute(model, data=held), hide_fn=lambda msg: msg["type"] == "param")

    def joint(values: Parameters) -> Array:
        energy: Array = potential_energy(conditioned, (x, y), {}, values)
        return energy

    def run(
        key: Array, first: Parameters, metric: Float[Array, " L"] | None
    ) -> tuple[Parameters, Parameters]:
        kernel = NUTS(
            potential_fn=joint if density is None else density.potential,
            target_accept_prob=target_accept_prob,
            max_tree_depth=max_tree_depth,
            dense_mass=dense_mass,
            inverse_mass_matrix=jnp.diag(metric) if dense_mass and metric is not None else metric,
        )
        sampler = MCMC(
            kernel, num_warmup=num_warmup, num_samples=num_samples, num_chains=num_chains,
            chain_method=chain_method, progress_bar=progress,
        )  # fmt: skip
        begin = first if num_chains > 1 else {name: value[0] for name, value in first.items()}
        extra = tuple(field for field in _STATS.values() if field != "diverging")
        sampler.run(key, init_params=begin, extra_fields=extra)
        return sampler.get_samples(group_by_chain=True), sampler.get_extra_fields(group_by_chain=True)

    begin = beginnings(program, conditioned, start, x, y)
    density = None
    if marginal is not None:
        if program.local_sites:
            raise ValueError(
                f"marginal: found {', '.join(program.local_sites)}, latents of each row, expected a model of one "
                "layer; leave marginal out"
            )
        density = CollapsedDensity.of(model, marginal, program.global_sites, held, x, y)
        begin = density.beginning(begin)
    with one_blas_thread():
        first, energies = compiled(jax.vmap(begin))(jax.random.split(key_begin, num_chains))
        _check_finite(energies, "begins", "standardise the data, use 64 bits, or give start= a fit")
        metric = None
        if start is not None:
            metric = compiled(lambda keys: _metric(jax.vmap(begin)(keys)[0]))(
                jax.random.split(jax.random.fold_in(key_begin, 1), METRIC_DRAWS)
            )
        # one program, but for a bar that is moved from the host, and for several devices
        whole = not progress and chain_method != "parallel"
        unconstrained, fields = (compiled(run) if whole else run)(key_run, first, metric)
        stats = {name: np.asarray(fields[field]) for name, field in _STATS.items()}
        _check_finite(stats["potential_energy"], "ends", "use 64 bits, or check the priors")
        if density is not None:
            unconstrained = density.with_inducing(jax.random.fold_in(key_run, 1), unconstrained)
        sites = _constrained(conditioned, unconstrained, x, y)
    jitter = {name: float(value.max()) for name, value in sites.items() if name.endswith("/jitter")}
    warn_of_jitter(jitter, x.dtype)
    draws = {name: sites[name] for name in program.global_sites + program.local_sites}
    chains = chains_of({name: np.asarray(value) for name, value in draws.items()}, stats, num_warmup)
    if chains.advice is not None:
        warnings.warn(SamplingWarning(chains.advice), stacklevel=2)
    params = held | {f"{name}{DRAWS_SUFFIX}": value for name, value in draws.items()}
    for name in program.local_sites:
        params[f"{name}_loc"] = unconstrained[name].mean(1)
        params[f"{name}_scale"] = unconstrained[name].std(1)
    guide = EmpiricalPosterior(model, program.global_sites, program.local_sites)
    fit = assemble(
        {name: value[None] for name, value in params.items()}, stats["potential_energy"].mean(0)[None],
        model=model, guide=guide, objective=JointDensity(), fingerprint=fingerprint(x, y), jitter=jitter,
        chains=chains, seconds=time.perf_counter() - started,
    )  # fmt: skip
    tell_end(fit)
    return fit


def _metric(draws: Parameters) -> Float[Array, " L"]:
    """The variances of draws (K, …) of unconstrained values, in the order in which NumPyro has them in a row."""
    rows = jax.vmap(lambda values: ravel_pytree(values)[0])(draws)
    count = len(rows)
    kept = count / (count + PRIOR_DRAWS)
    return kept * rows.var(0, ddof=1) + (1.0 - kept) * LEAST_VARIANCE


def _constrained(
    conditioned: Model, unconstrained: Parameters, x: Float[Array, "N D"], y: Num[Array, "N P"]
) -> Parameters:
    """The values (C, S, …) of latent and deterministic sites."""

    def one(values: Parameters) -> Parameters:
        found: Parameters = constrain_fn(conditioned, (x, y), {}, values, return_deterministic=True)
        return found

    lead = next(iter(unconstrained.values())).shape[:2]
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in unconstrained.items()}
    sites = compiled(lambda values: jax.lax.map(one, values, batch_size=DRAWS_AT_ONCE))(flat)
    return {name: value.reshape(*lead, *value.shape[1:]) for name, value in sites.items()}


def _check_finite(energies: Array | np.ndarray, where: str, remedy: str) -> None:
    finite = np.isfinite(np.asarray(energies)).reshape(len(energies), -1).all(1)
    if not finite.all():
        chain = int(np.argmin(finite))
        raise FitError(
            f"log density: found none that is finite where chain {chain} {where}, expected a finite one; {remedy}"
        )
