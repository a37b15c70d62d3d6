"""A draw of q of a state space model: the path of its states, the functions at their u, and what q says of u.

Forecasts, filters and pictures begin at it. Shapes: T steps of S sequences, Q state dimensions, C controls, P outputs,
H steps ahead, M inducing points.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int
from numpyro.handlers import seed, substitute, trace

from ppl_dgp.gp.contract import Model, Parameters
from ppl_dgp.gp.emission import Emission, emission_of
from ppl_dgp.gp.representation import replayed
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.guides import EnsembleSmoother
from ppl_dgp.guides.empirical import TrajectoryDraw
from ppl_dgp.guides.trajectory import TrajectoryConditional
from ppl_dgp.numerics.gaussian import moments_of
from ppl_dgp.state_space.ensemble_kalman import (
    ensemble_draws,
    ensemble_filtered,
    ensemble_paths,
    observed_steps,
)
from ppl_dgp.state_space.sequences import check_times
from ppl_dgp.state_space.trajectory import Trajectory


@dataclass(frozen=True)
class PosteriorPath:
    """One draw of q: what it is of the states, their path through the trajectory's f at its u, the emission, all q."""

    q: TrajectoryConditional | TrajectoryDraw
    path: Float[Array, "slots Q"]
    emission: Emission
    sites: dict[str, dist.Distribution]

    @property
    def trajectory(self) -> Trajectory:
        """Of all sequences."""
        return self.q.trajectory

    def last(self, sequence: int) -> Array:
        """The slot of a sequence's last state. Raises ValueError where there is no such sequence."""
        where = self.trajectory.layout
        if not -where.num_sequences <= sequence < where.num_sequences:
            raise ValueError(
                f"sequence: found {sequence}, expected {-where.num_sequences} to {where.num_sequences - 1}: the model "
                f"was trained with {where.num_sequences}"
            )
        return jnp.append(where.initial[1:], self.path.shape[0])[sequence] - 1

    def going_on(self, key: Array, sequence: int | None) -> tuple[Float[Array, " Q"], Int[Array, ""]]:
        """The state that a sequence goes on from, None for a new one, and the regime of the step to come."""
        key_state, key_regimes = jax.random.split(key)
        slot = None if sequence is None else self.last(sequence)
        begin = self.trajectory.prior.sample(key_state)[0] if slot is None else self.path[slot]
        return begin, self.trajectory.regime_ahead(key_regimes, self.path, slot)

    def check_one_function(self) -> None:
        """Refuse regimes: the state after a step of several functions is a mixture."""
        if (regimes := self.trajectory.noises.shape[0]) > 1:
            raise ValueError(
                f"function: found moments, and {regimes} regimes, whose moments are those of a mixture; take 'path' or "
                "'independent'"
            )

    def check_controls(self, controls: Float[Array, "H K"]) -> None:
        """Refuse controls of another number of columns."""
        expected = self.trajectory.controls.shape[1]
        if controls.shape[1] != expected:
            raise ValueError(
                f"controls: found {controls.shape[1]} columns, expected {expected}, one for each control that the "
                "model was trained with"
            )

    def check_held(self) -> None:
        """Refuse a guide that draws more than u and the states: the functions of two draws would differ beyond u."""
        functions = self.trajectory.function, self.emission.marginal.function
        known = [f"{function.name}/u" for function in functions]
        for name, q in self.sites.items():
            if name not in known and q is not self.q:
                raise ValueError(
                    f"guide: found that it draws {name!r}, expected nothing but u and the states; hold it at a value, "
                    "or forecast with function='path'"
                )

    def integrated(self, function: SparseGP) -> SparseGP:
        """A function that offered the moments of q(u) in place of the draw; a linear map as it is."""
        self.check_held()
        site = f"{function.name}/u"
        if site not in self.sites:
            return function
        q = self.sites[site]
        moments = None if getattr(q, "given", ()) else moments_of(q)
        if moments is None:
            raise ValueError(
                f"inducing: found a q(u) at {site!r} with links between outputs or layers, expected moments of u for "
                "itself; take FullRank(), or forecast with function='path'"
            )
        return replace(function, u=moments)


def draw(key: Array, model: Model, guide: Model, params: Parameters, x: Array, y: Array) -> PosteriorPath:
    """One draw of q, given all data as :func:`series` has them.

    :raises ValueError: if the model has no trajectory, or more than one.
    """
    key_guide, key_model = jax.random.split(key)
    drawn = trace(substitute(seed(guide, key_guide), params)).get_trace(x, y)
    samples = {name: site for name, site in drawn.items() if site["type"] == "sample"}
    found = [
        site for site in samples.values() if isinstance(site["fn"], TrajectoryConditional | TrajectoryDraw)
    ]
    for site in found:
        if isinstance(site["fn"], TrajectoryConditional) and site["fn"].pieces is not None:
            site["value"] = site["fn"].trained_path(jax.random.fold_in(key_guide, 0))
    sites = trace(substitute(seed(replayed(model, drawn), key_model), params)).get_trace(x, y)
    emission = emission_of(sites["y"]["fn"]) if "y" in sites else None
    if len(found) != 1 or emission is None or len(emission.parts) != 1:
        raise ValueError(
            f"model: found {len(found)} trajectories, expected one, and y from it by one emission; take a state space "
            "model, such as gpssm"
        )
    q, path = found[0]["fn"], found[0]["value"]
    if isinstance(q, TrajectoryConditional) and isinstance(q.rule, EnsembleSmoother):
        path = _smoothed(jax.random.fold_in(key_guide, 1), q.trajectory, emission, y, q.rule.members)
    return PosteriorPath(q, path, emission, {name: site["fn"] for name, site in samples.items()})


def _smoothed(
    key: Array, trajectory: Trajectory, emission: Emission, y: Array, members: int
) -> Float[Array, "slots Q"]:
    """A member of the ensemble Kalman smoother given u."""
    observed = observed_steps(emission, y, trajectory.controls.shape[0])
    draws = ensemble_draws(key, trajectory, y.shape[1], members)
    # all members are alike
    return ensemble_paths(trajectory, ensemble_filtered(trajectory, observed, draws))[:, 0]


def series(x: Array | None, y: Array) -> tuple[Array, Array]:
    """Controls (T, 0) where there are none, and y (T, P)."""
    rows = jnp.asarray(y)
    rows = rows[:, None] if rows.ndim == 1 else rows
    return jnp.zeros((rows.shape[0], 0)) if x is None else jnp.asarray(x, float), rows


def columns_of(name: str, y: Array, steps: int, outputs: int) -> Array:
    """y of the steps ahead as (H, P). Raises ValueError where it is not."""
    rows = series(None, y)[1]
    if rows.shape != (steps, outputs):
        raise ValueError(
            f"{name}: found shape {rows.shape}, expected ({steps}, {outputs}): a row for each step ahead, NaN where "
            "nothing is known"
        )
    return rows


def check_number(name: str, value: int) -> None:
    """Refuse a number below 1."""
    if value < 1:
        raise ValueError(f"{name}: found {value}, expected at least 1")


def check_ahead(model: Model, name: str, controls: Float[Array, "H K"]) -> None:
    """Refuse, by a ValueError, controls of steps whose model reads their times, where these are not positive."""
    if getattr(model, "timed", False) and controls.shape[1] > 0:
        check_times(name, controls[:, -1])
