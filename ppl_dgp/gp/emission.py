"""Emissions: the distributions of noisy or observed function values, alone or side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, Num
from numpyro.distributions import constraints
from numpyro.distributions.util import validate_sample

from ppl_dgp import likelihoods
from ppl_dgp.gp.wrappers import unwrap
from ppl_dgp.numerics.power_mean import Alpha, is_number

if TYPE_CHECKING:
    from ppl_dgp.gp.marginal import Marginal
else:  # a marginal makes emissions: its file imports this one
    Marginal = Any

_LogProb = TypeVar("_LogProb", bound=Callable[..., Array])
# NumPyro's decorator, which bears no annotations
_validated: Callable[[_LogProb], _LogProb] = validate_sample


class Emission(dist.Distribution):
    """The distribution of a noisy or observed f(h): batch (B,), event (P,), or (1,) for labels from several functions.

    ``log_prob`` is t_1, the marginal density given u of the model in which the f_n are independent given u (FITC); an
    objective asks :meth:`tempered` for t_α instead. NumPyro's ``Trace_ELBO`` sees t_1 and bounds the FITC model.

    ``correlated`` says whether the outputs of a row are correlated given u.

    :param partly: whether NaN in a value stands for an entry that was not observed, which then counts for nothing.
    """

    correlated = False

    def __init__(self, marginal: Marginal, likelihood: likelihoods.Likelihood, partly: bool = False) -> None:
        self.marginal, self.likelihood, self.partly = marginal, likelihood, partly
        batch, functions = marginal.mean.shape
        super().__init__((batch,), (likelihood.num_targets(functions),), validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.independent(self.likelihood.support, 1)

    @property
    def parts(self) -> tuple[Emission, ...]:
        """The emissions it is made of, of consecutive targets: itself."""
        return (self,)

    def split(self, value: Num[Array, "*S B P"]) -> list[Num[Array, "*S B _"]]:
        """The columns of each part."""
        return [value]

    def partly_observed(self) -> Emission:
        """The same, for values that may lack entries: NaN there."""
        return Emission(self.marginal, self.likelihood, partly=True)

    def tempered(self, value: Array, alpha: Alpha, *, u_outside: bool = False) -> Float[Array, "B"]:
        """t_α of each row, summed over targets; ``u_outside`` averages the variance of q(u) outside the log.

        :raises ValueError: for values of another shape than (…, B, P), which would broadcast.
        """
        check_shape(value, self)
        if not self.partly or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
            return self._tempered(value, alpha, u_outside).sum(-1)
        observed = ~jnp.isnan(value)
        # what stands in for a missing entry must be possible, or its gradient would not be finite
        terms = self._tempered(jnp.where(observed, value, self.likelihood.possible), alpha, u_outside)
        return jnp.where(observed, terms, 0.0).sum(-1)

    def _tempered(self, value: Array, alpha: Alpha, u_outside: bool) -> Float[Array, "B P"]:
        marginal = self.marginal
        if u_outside:
            parts = (marginal.mean, jnp.broadcast_to(marginal.residual, marginal.mean.shape), marginal.from_u)
            return self.likelihood.tempered_outside(value, *parts, alpha)
        return self.likelihood.tempered(value, marginal.mean, marginal.variance, alpha)

    @_validated
    def log_prob(self, value: Array) -> Float[Array, "B"]:
        """t_1(value), (B,)."""
        return self.tempered(value, 1.0)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draws of shape ``sample_shape`` + (B, P)."""
        shape = sample_shape + self.marginal.mean.shape
        mean, variance = (jnp.broadcast_to(a, shape) for a in (self.marginal.mean, self.marginal.variance))
        return self.likelihood.sample(key, mean, variance)

    @property
    def mean(self) -> Float[Array, "B _"]:
        """Of y, (B, P); of several classes the probabilities, (B, C)."""
        return self.likelihood.moments(self.marginal.mean, self.marginal.variance)[0]

    @property
    def variance(self) -> Float[Array, "B _"]:
        """Of y, or of the classes' indicators."""
        return self.likelihood.moments(self.marginal.mean, self.marginal.variance)[1]


class FirstLayer(Emission):
    """The step of a hidden layer whose inputs are data: no latent of the row came before it.

    Rules see it where they declare their parameters.
    """


class JointEmission(Emission):
    """Emissions of several functions side by side, such as the views of one latent: their targets are columns of y.

    Its event is (P,), P the sum of theirs; given the row they are independent.
    """

    def __init__(self, *parts: Emission) -> None:
        """:raises ValueError: if there are none, or their rows are not the same."""
        if not parts or len({part.batch_shape for part in parts}) != 1:
            raise ValueError(
                f"parts: found rows {[part.batch_shape for part in parts]}, expected emissions of the same rows"
            )
        self._parts = parts
        self._widths = [part.event_shape[0] for part in parts]
        dist.Distribution.__init__(self, parts[0].batch_shape, (sum(self._widths),), validate_args=False)

    @property
    def parts(self) -> tuple[Emission, ...]:
        return self._parts

    @property
    def partly(self) -> bool:  # type: ignore[override]
        """Whether any part may lack entries."""
        return any(part.partly for part in self._parts)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.real_vector

    def partly_observed(self) -> Emission:
        return JointEmission(*(part.partly_observed() for part in self._parts))

    def split(self, value: Num[Array, "*S B P"]) -> list[Num[Array, "*S B _"]]:
        """The columns of each part."""
        return jnp.split(value, np.cumsum(self._widths)[:-1], axis=-1)

    def tempered(self, value: Array, alpha: Alpha, *, u_outside: bool = False) -> Float[Array, "B"]:
        check_shape(value, self)
        if not is_number(alpha, 0.0):
            self._check_apart()
        pairs = zip(self._parts, self.split(value), strict=True)
        rows = [part.tempered(columns, alpha, u_outside=u_outside) for part, columns in pairs]
        return jnp.stack(rows).sum(0)

    def _check_apart(self) -> None:
        """Refuse, by a ValueError, mixtures of functions that another part has too: one integral would be of both."""
        parts = [each for part in self._parts for each in part.parts]
        names = [set(part.marginal.functions) for part in parts]
        for place, part in enumerate(parts):
            shared = set().union(*names[:place], *names[place + 1 :]) & names[place]
            if part.correlated and shared:
                raise ValueError(
                    f"alpha: found mixtures of {sorted(shared)} in two emissions side by side, whose outputs are "
                    "correlated given u; take alpha=0, or one mixed(…) of all columns"
                )

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        keys = jax.random.split(key, len(self._parts))
        draws = [part.sample(k, sample_shape) for k, part in zip(keys, self._parts, strict=True)]
        return jnp.concatenate(draws, -1)

    @property
    def mean(self) -> Float[Array, "B _"]:
        return jnp.concatenate([part.mean for part in self._parts], -1)

    @property
    def variance(self) -> Float[Array, "B _"]:
        return jnp.concatenate([part.variance for part in self._parts], -1)


def check_shape(value: Array, emission: Emission) -> None:
    """Refuse values whose last axes are not the rows and columns of an emission.

    :raises ValueError: naming both shapes.
    """
    expected = (*emission.batch_shape, *emission.event_shape)
    if jnp.shape(value)[-2:] != expected:
        raise ValueError(
            f"y: found shape {jnp.shape(value)}, expected {expected}, a row for each input and a column for each "
            "target; reshape it, y[:, None]"
        )


def emission_of(distribution: dist.Distribution) -> Emission | None:
    """The emission inside a site's distribution, None where there is no GP."""
    inner = unwrap(distribution)
    return inner if isinstance(inner, Emission) else None
