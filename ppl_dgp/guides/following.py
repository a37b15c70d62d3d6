r"""Where a guide that follows f begins, once a chain that does not has been fitted to the same trajectory.

.. math::
    N(A_t x_{t-1} + b_t, S_t) \;\to\; N(c_t f(x_{t-1}) + (1 - c_t) M_t, S_t),
    \quad c_t = S_t / Q, \quad M_t = \frac{m_t - c_t f(m_{t-1})}{1 - c_t}

with m_t the chain's means: the posterior of a step is the product of the transition and of what later data say, so that
f counts as much as S_t / Q. Of a linear f this is the chain itself, if it is the smoother. Trained from there, the
coupled rule has no walk through the dark before it (design, section 4).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from numpyro.handlers import seed, substitute, trace

from ppl_dgp.guides.conditional import CoupledConditional, TiedConditional
from ppl_dgp.guides.guide import Guide
from ppl_dgp.guides.hidden import Markov, MeanField, Params
from ppl_dgp.guides.trajectory import TrajectoryConditional

#: c_t at most: M_t has no meaning where f says all
MOST_GAIN = 0.95


def following_start(chain: Guide, coupled: Guide, params: Params, *args: Any, **kwargs: Any) -> Params:
    """Parameters of ``coupled``, a guide with ``Conditional()`` or its tied form, for ``fit_svi(start=…)``.

    :param chain: the guide that was fitted, with ``Markov()`` or ``MeanField()`` and deviations of each dimension.
    :param coupled: a guide of the same model with the same rule for u.
    :param params: constrained parameters of model and chain, as ``Fit.params``; not changed.
    :param args: what the guides are called with, ``x, y``.
    :raises ValueError: if the guides are none of these, or of different models, or the model has no trajectory.
    """
    low, high = chain.hidden, coupled.hidden
    fits = isinstance(low, Markov | MeanField) and not low.full and chain.model is coupled.model
    if not fits or not isinstance(high, CoupledConditional | TiedConditional) or chain.inducing != coupled.inducing:
        raise ValueError(
            f"chain: found {low!r} beside {high!r}, expected Markov() or MeanField() beside Conditional() on one model "
            "and one rule for u; use nested_start for others"
        )
    sites = trace(substitute(seed(chain, jax.random.PRNGKey(0)), params)).get_trace(*args, **kwargs)
    found = dict(params)
    trajectories = {
        name: site["fn"]
        for name, site in sites.items()
        if site["type"] == "sample" and isinstance(site["fn"], TrajectoryConditional)
    }
    if not trajectories:
        raise ValueError("chain: found no trajectory in its model, expected a state space model such as gpssm")
    for name, q in trajectories.items():
        trajectory = q.trajectory
        means = q.moments("moments").mean
        # f at the mean of q(u)
        function = replace(trajectory.function, u=params[f"{trajectory.function.name}/u_loc"])
        towards = _through(trajectory, function).steps(means).marginal.mean
        gain = jnp.minimum(jnp.square(params[f"{name}_scale"]), MOST_GAIN)
        found[f"{name}_pull"] = (1.0 - gain) / jnp.sqrt(trajectory.noise)
        found[f"{name}_loc"] = (trajectory.states(means) - gain * towards) / (1.0 - gain)
        found.pop(f"{name}_slope", None)
    return found


def _through(trajectory: Any, function: Any) -> Any:
    """The same trajectory through another function."""
    about = trajectory.noise, trajectory.controls, trajectory.initial, trajectory.layout
    return type(trajectory)(function, *about)
