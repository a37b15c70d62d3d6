r"""GPLVMs whose latents depend on something known of each row: time, labels, covariates.

    g_q ~ GP(0, k_c),   x_n = g(c_n) + η,   η ~ N(0, s_x²)
    f_p ~ GP(0, k),     y_np = f_p(x_n) + ε,   ε ~ N(0, s²),   or y_np ~ p(y | f_p(x_n))

Cards. :func:`dynamical_gplvm` (Damianou, Titsias & Lawrence 2011): c_n is the time of a row, and which sequence it is
of; sequences share the maps and nothing else. For motion, video, sensors: latents that move smoothly, gaps filled in
from either side. The GP over time is carried by inducing times, so that cost is linear in rows, and dependence in time
is in q(u): of the rules, ``MeanField()`` (with ``Collapsed()`` or moments) and ``Conditional()``, which follows g. A
chain over time would gain nothing on ``MeanField()``: given u rows are independent, so that beside any q(u) the best
q(x) factorises over rows.
:func:`conditioned_gplvm`: c_n are labels or covariates, and s_x² says how much of a row they leave open. Sites:
``prior/u``, ``x``, ``gp/u``, ``y``; parameters ``prior/lengthscale``, ``prior/noise`` and those of ``gplvm``.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.gp.contract import hidden_role
from ppl_dgp.gp.representation import offer
from ppl_dgp.gp.sparse_gp import SparseGP, sparse_gp
from ppl_dgp.kernels import RBF, Kernel, Stationary
from ppl_dgp.models.gplvm import LATENT_INDUCING
from ppl_dgp.models.inducing import GivenInducing, inducing_inputs
from ppl_dgp.models.kernel_values import KernelChoice, kernel_parameters
from ppl_dgp.models.latents import latents_around, where_latents_begin
from ppl_dgp.models.learnt import learnt_fields
from ppl_dgp.models.observation import NoiseChoice, Observed, emission, observed_by
from ppl_dgp.models.parts import as_columns, rows_plate
from ppl_dgp.models.settings import checked_settings
from ppl_dgp.models.zoo_model import ZooModel

Covariates = Float[Array, "N D"]
#: of the sequence's number as an input: exp(−½ (1/0.02)²) is 0 to machine precision, so that sequences are independent
APART = 0.02


class _LatentsWithPrior(ZooModel):
    """What both models share: a GP prior of the latents, given what is known of each row."""

    num_outputs: int
    latent: int
    num_inducing: int
    prior_noise: float
    kernel: KernelChoice
    noise: NoiseChoice | None
    likelihood: Observed | None
    missing: bool
    inducing: GivenInducing | None
    jitter: float | None

    def __post_init__(self) -> None:
        self._settle(**checked_settings(self, dims=self.latent))

    def _prior(self, c: Covariates) -> SparseGP:
        """g, from what is known of the rows."""
        raise NotImplementedError

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        y = as_columns(x, y, self.num_outputs)
        given = observed_by(self.likelihood, self.noise, y, self.num_outputs)
        scores, lengthscale = where_latents_begin("x", x, y, self.latent, "pca", self.missing)
        g = self._prior(x)
        variance = numpyro.param(
            "prior/noise", jnp.asarray(self.prior_noise), constraint=constraints.positive
        )
        inducing = inducing_inputs("gp", scores, self.num_inducing, given=self.inducing)
        k = kernel_parameters("gp", self.kernel, self.latent, lengthscale)
        f = sparse_gp("gp", k, inducing, given.num_functions(self.num_outputs), jitter=self.jitter)
        with rows_plate(x, index, size):
            infer = hidden_role()
            if y is not None:
                infer = hidden_role(lambda: latents_around(scores))
            h = offer("x", numpyro.sample("x", g(x).noisy(variance), infer=infer))
            return numpyro.sample("y", emission(f(h), given, index, y is not None, self.missing), obs=y)


@dataclass(frozen=True, eq=False, repr=False)
class conditioned_gplvm(_LatentsWithPrior):
    """Latents that depend on labels or covariates, as a NumPyro model ``model(x, y=None, index=None, size=None)``.

    Its x (N, D) are the covariates, standardised, or a column of 0 and 1 for each class.

    :param prior_inducing: inducing points of g, at most the number of rows.
    :param prior_kernel: of g.
    :param prior_noise: where the variance s_x² starts.
    :param inducing: inputs of f (M, Q) to begin at, whose M is the model's.
    :raises ValueError: as :func:`ppl_dgp.models.gplvm`, whose other settings these are.
    """

    num_outputs: int
    latent: int = 2
    num_inducing: int = LATENT_INDUCING
    _: KW_ONLY
    prior_inducing: int = 20
    prior_kernel: KernelChoice = RBF
    prior_noise: float = 0.3
    kernel: KernelChoice = RBF
    noise: NoiseChoice | None = None
    likelihood: Observed | None = None
    missing: bool = False
    inducing: GivenInducing | None = None
    jitter: float | None = None

    def _prior(self, c: Covariates) -> SparseGP:
        inducing = inducing_inputs("prior", c, self.prior_inducing)
        k = kernel_parameters("prior", self.prior_kernel, c.shape[1])
        return sparse_gp("prior", k, inducing, self.latent, jitter=self.jitter)


@dataclass(frozen=True, eq=False, repr=False)
class dynamical_gplvm(_LatentsWithPrior):
    """Latents that move smoothly in time, as a NumPyro model ``model(x, y=None, index=None, size=None)``.

    Its x is (N, 1), times, or (N, 2), times and the whole number of the sequence.

    :param times: inducing times of each sequence, evenly spread and held there.
    :param prior_kernel: over time, a :class:`ppl_dgp.kernels.Stationary` kernel of unit variance, which tells sequences
        apart: its name or class, whose lengthscale starts at twice the distance of inducing times, or an instance,
        whose lengthscale starts at its own.
    :param prior_noise: where the variance s_x² starts.
    :param inducing: inputs of f (M, Q) to begin at, whose M is the model's.
    :raises ValueError: also if x has more than two columns, or a sequence has no whole number.
    """

    num_outputs: int
    latent: int = 2
    num_inducing: int = LATENT_INDUCING
    _: KW_ONLY
    times: int = 20
    prior_kernel: str | type[Kernel] | Kernel = RBF
    prior_noise: float = 1e-2
    kernel: KernelChoice = RBF
    noise: NoiseChoice | None = None
    likelihood: Observed | None = None
    missing: bool = False
    inducing: GivenInducing | None = None
    jitter: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_time_kernel(self.prior_kernel)
        if self.times < 2:
            raise ValueError(
                f"times: found {self.times}, expected at least 2 inducing times for each sequence"
            )

    def _prior(self, c: Covariates) -> SparseGP:
        if c.shape[1] not in (1, 2):
            raise ValueError(
                f"x: found {c.shape[1]} columns, expected times (N, 1), or times and the numbers of sequences (N, 2)"
            )
        times = numpyro.param("prior/inducing", lambda _key: _inducing_times(c, self.times))
        times = jax.lax.stop_gradient(times)
        start: Any = lambda _key: _lengthscale(times)
        if isinstance(self.prior_kernel, Stationary):
            start = jnp.asarray(self.prior_kernel.lengthscale, float)
        lengthscale = numpyro.param("prior/lengthscale", start, constraint=constraints.positive)
        scales = jnp.stack([lengthscale, *([jnp.asarray(APART)] * (c.shape[1] - 1))])
        k: Any = self.prior_kernel
        k = replace(k, variance=1.0, lengthscale=scales) if isinstance(k, Stationary) else k(1.0, scales)
        return sparse_gp("prior", k, times, self.latent, jitter=self.jitter)


def _check_time_kernel(kernel: Any) -> None:
    cls = kernel if isinstance(kernel, type) else type(kernel)
    if not issubclass(cls, Stationary):
        raise ValueError(
            f"prior_kernel: found {kernel!r}, expected a stationary kernel, such as RBF or Matern32"
        )
    if isinstance(kernel, Stationary) and np.ndim(kernel.lengthscale) != 0:
        raise ValueError("prior_kernel: found several lengthscales, expected one, of time")
    more = [entry.name for entry in learnt_fields(cls) if entry.name not in ("variance", "lengthscale")]
    if isinstance(kernel, type) and more:
        raise ValueError(
            f"prior_kernel: found {cls.__name__}, which has {', '.join(more)} besides, expected an instance of it"
        )


def _inducing_times(c: Covariates, number: int) -> Float[Array, "M D"]:
    """Evenly spread over each sequence."""
    rows = np.asarray(c)
    if rows.shape[1] == 1:
        return jnp.linspace(rows.min(), rows.max(), number)[:, None]
    sequences = np.unique(rows[:, 1])
    if not (sequences == np.round(sequences)).all():
        raise ValueError("x: found numbers of sequences in column 1 that are not whole, expected 0, 1, 2, …")
    parts = []
    for sequence in sequences:
        inside = rows[rows[:, 1] == sequence, 0]
        spread = np.linspace(inside.min(), inside.max(), number)
        parts.append(np.column_stack([spread, np.full(number, sequence)]))
    return jnp.asarray(np.concatenate(parts))


def _lengthscale(inducing: Float[Array, "M D"]) -> Float[Array, ""]:
    """Twice the usual distance of inducing times; 1 where no sequence lasts."""
    distances = jnp.diff(inducing[:, 0])
    usual = jnp.nanmedian(jnp.where(distances > 0.0, distances, jnp.nan))
    return jnp.where(jnp.isnan(usual), 1.0, 2.0 * usual)
