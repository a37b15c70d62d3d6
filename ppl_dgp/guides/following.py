r"""Where a guide that follows f begins, once a chain that does not has been fitted to the same trajectory.

.. math::
    N(A_t x_{t-1} + b_t, S_t) \;\to\; N(c_t f(x_{t-1}) + (1 - c_t) M_t, S_t),
    \quad c_t = S_t / Q, \quad M_t = \frac{m_t - c_t f(m_{t-1})}{1 - c_t}

with m_t the chain's means: the posterior of a step is the product of the transition and of what later data say, so that
f counts as much as S_t / Q. Of a linear f this is the chain itself, if it is the smoother. Trained from there, the
coupled rule has no walk through the dark before it (docs/design.md, 4). ``Conditional(markov=True)`` begins there too,
at T = 0: on the smooth kink 3 nats above the chain itself, which it also holds (``nested_start``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from numpyro.handlers import seed, substitute, trace

from ppl_dgp.gp.contract import Parameters, inducing_site
from ppl_dgp.guides.amortised import Amortised
from ppl_dgp.guides.conditional import CoupledConditional, CoupledMarkov, TiedConditional
from ppl_dgp.guides.ensemble import EnsembleSmoother
from ppl_dgp.guides.guide import Guide
from ppl_dgp.guides.hidden import Markov, MeanField
from ppl_dgp.guides.rule import HiddenRule
from ppl_dgp.guides.trajectory import TrajectoryConditional

#: c_t at most: M_t has no meaning where f says all
STRONGEST_COUPLING = 0.95


def follows(rule: HiddenRule) -> bool:
    """Whether a rule draws a trajectory through f, and can begin where a chain has ended."""
    learnt = CoupledConditional | TiedConditional | EnsembleSmoother
    return isinstance(rule, learnt) or rule.depends_on.on_model


def following_start(
    chain: Guide, following: Guide, params: Parameters, *args: Any, **kwargs: Any
) -> Parameters:
    """Parameters of ``following``, a guide with ``Conditional()``, also tied or with markov, ``DoublyStochastic()`` or
    ``EnsembleSmoother()``.

    They are for ``fit_svi(start=…)``. Where a model trains on windows, their first states begin as the chain has them,
    but for those that a network recognises, which begins as it would by itself.

    :param chain: the guide that was fitted, with ``Markov()`` or ``MeanField()`` and deviations of each dimension.
    :param following: a guide of the same model with the same rule for u.
    :param params: constrained parameters of model and chain, as ``Fit.params``; not changed.
    :param args: what the guides are called with, ``x, y``.
    :raises ValueError: if the guides are none of these, or of different models, or the model has no trajectory.
    """
    low, high = chain.hidden, following.hidden
    comparable = isinstance(low, Markov | MeanField) and not low.full and chain.model is following.model
    if not comparable or not follows(high) or chain.inducing != following.inducing:
        raise ValueError(
            f"chain: found {low!r} beside {high!r}, expected Markov() or MeanField() beside Conditional() or "
            "DoublyStochastic() on one model and one rule for u; use nested_start for others"
        )
    sites = trace(substitute(seed(chain, jax.random.PRNGKey(0)), params)).get_trace(*args, **kwargs)
    start = dict(params)
    trajectories = {
        name: site["fn"]
        for name, site in sites.items()
        if site["type"] == "sample" and isinstance(site["fn"], TrajectoryConditional)
    }
    if not trajectories:
        raise ValueError(
            "chain: found no trajectory in its model, expected a state space model such as gpssm"
        )
    for name, q in trajectories.items():
        trajectory = q.trajectory
        moments = q.moments("moments")
        means = moments.mean
        if trajectory.windows is not None:
            before = trajectory.layout.after - 1
            start[f"{name}_0_loc"] = means[before]
            start[f"{name}_0_scale"] = jnp.sqrt(moments.variance)[before]
        scale = start.pop(f"{name}_scale")
        for other in ("loc", "slope"):
            start.pop(f"{name}_{other}", None)
        if isinstance(high, EnsembleSmoother) or isinstance(following.latent_rule, Amortised):
            start = {key: value for key, value in start.items() if not key.startswith(f"{name}_0_")}
        if isinstance(high, EnsembleSmoother):
            continue
        if high.depends_on.on_model:
            continue
        # f at the mean of q(u)
        inducing = inducing_site(trajectory.function.name)
        function = replace(trajectory.function, u=sites[inducing]["fn"].mean)
        towards = _through(trajectory, function).steps(means).marginal.mean
        coupling = jnp.minimum(jnp.square(scale), STRONGEST_COUPLING)
        start[f"{name}_shrinkage"] = (1.0 - coupling) / jnp.sqrt(trajectory.noise_at(trajectory.controls))
        start[f"{name}_loc"] = (trajectory.states(means) - coupling * towards) / (1.0 - coupling)
        start[f"{name}_scale"] = scale
        if isinstance(high, CoupledMarkov):
            start[f"{name}_slope"] = jnp.zeros((*scale.shape, scale.shape[1]), scale.dtype)
    return start


def _through(trajectory: Any, function: Any) -> Any:
    """The same trajectory through another function."""
    about = trajectory.noise, trajectory.controls, trajectory.initial, trajectory.layout
    return type(trajectory)(function, *about, timed=trajectory.timed)
