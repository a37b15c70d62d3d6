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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.kernels import RBF, Kernel
from ppl_dgp.models.gplvm import checked_latent
from ppl_dgp.models.latents import latents_around, where_latents_begin
from ppl_dgp.models.observation import Observed, checked_columns, emission, observed_by
from ppl_dgp.models.parts import Composed, as_columns, inducing_inputs, kernel_parameters

Covariates = Float[Array, "N D"]
#: of the sequence's number as an input: exp(−½ (1/0.02)²) is 0 to machine precision, so that sequences are independent
APART = 0.02


def conditioned_gplvm(
    num_outputs: int,
    latent: int = 2,
    num_inducing: int = 50,
    *,
    prior_inducing: int = 20,
    prior_kernel: Callable[..., Kernel] | Composed = RBF,
    prior_noise: float = 0.3,
    kernel: Callable[..., Kernel] | Composed = RBF,
    noise: float | str | None = None,
    likelihood: Observed | Sequence[Observed] | None = None,
    missing: bool = False,
    jitter: float | None = None,
) -> Callable[..., Any]:
    """Latents that depend on labels or covariates, as a NumPyro model ``model(x, y=None, index=None, size=None)``.

    Its x (N, D) are the covariates, standardised, or a column of 0 and 1 for each class.

    :param prior_inducing: inducing points of g, at most the number of rows.
    :param prior_kernel: of g.
    :param prior_noise: where the variance s_x² starts.
    :raises ValueError: as :func:`ppl_dgp.models.gplvm`, whose other settings these are.
    """

    def prior(c: Covariates) -> SparseGP:
        inducing = inducing_inputs("prior", c, prior_inducing)
        return sparse_gp(
            "prior", kernel_parameters("prior", prior_kernel, c.shape[1]), inducing, latent, jitter=jitter
        )

    settings = _Settings(num_outputs, latent, num_inducing, kernel, missing, jitter, prior_noise)
    return settings.model(checked_columns(likelihood, noise, num_outputs), prior)


def dynamical_gplvm(
    num_outputs: int,
    latent: int = 2,
    num_inducing: int = 50,
    *,
    times: int = 20,
    prior_kernel: Callable[..., Kernel] = RBF,
    prior_noise: float = 1e-2,
    kernel: Callable[..., Kernel] | Composed = RBF,
    noise: float | str | None = None,
    likelihood: Observed | Sequence[Observed] | None = None,
    missing: bool = False,
    jitter: float | None = None,
) -> Callable[..., Any]:
    """Latents that move smoothly in time, as a NumPyro model ``model(x, y=None, index=None, size=None)``.

    Its x is (N, 1), times, or (N, 2), times and the whole number of the sequence.

    :param times: inducing times of each sequence, evenly spread and held there.
    :param prior_kernel: ``RBF`` or a Matérn kernel over time, of unit variance, which tell sequences apart; its
        lengthscale starts at twice the distance of inducing times.
    :param prior_noise: where the variance s_x² starts.
    :raises ValueError: also if x has more than two columns, or a sequence has no whole number.
    """
    if times < 2:
        raise ValueError(f"times: found {times}, expected at least 2 inducing times for each sequence")

    def prior(c: Covariates) -> SparseGP:
        if c.shape[1] not in (1, 2):
            raise ValueError(
                f"x: found {c.shape[1]} columns, expected times (N, 1), or times and the numbers of sequences (N, 2)"
            )
        held = jax.lax.stop_gradient(numpyro.param("prior/inducing", lambda _key: _inducing_times(c, times)))
        lengthscale = numpyro.param(
            "prior/lengthscale", lambda _key: _lengthscale(held), constraint=constraints.softplus_positive
        )
        scales = jnp.stack([lengthscale, *([jnp.asarray(APART)] * (c.shape[1] - 1))])
        return sparse_gp("prior", prior_kernel(1.0, scales), held, latent, jitter=jitter)

    settings = _Settings(num_outputs, latent, num_inducing, kernel, missing, jitter, prior_noise)
    return settings.model(checked_columns(likelihood, noise, num_outputs), prior)


def _inducing_times(c: Covariates, number: int) -> Float[Array, "M D"]:
    """Evenly spread over each sequence."""
    rows = np.asarray(c)
    if rows.shape[1] == 1:
        return jnp.linspace(rows.min(), rows.max(), number)[:, None]
    sequences = np.unique(rows[:, 1])
    if not (sequences == np.round(sequences)).all():
        raise ValueError("x: found numbers of sequences in column 1 that are not whole, expected 0, 1, 2, …")
    each = []
    for sequence in sequences:
        inside = rows[rows[:, 1] == sequence, 0]
        spread = np.linspace(inside.min(), inside.max(), number)
        each.append(np.column_stack([spread, np.full(number, sequence)]))
    return jnp.asarray(np.concatenate(each))


def _lengthscale(inducing: Float[Array, "M D"]) -> Float[Array, ""]:
    """Twice the usual distance of inducing times; 1 where no sequence lasts."""
    distances = jnp.diff(inducing[:, 0])
    usual = jnp.nanmedian(jnp.where(distances > 0.0, distances, jnp.nan))
    return jnp.where(jnp.isnan(usual), 1.0, 2.0 * usual)


@dataclass(frozen=True)
class _Settings:
    num_outputs: int
    latent: int
    num_inducing: int
    kernel: Any
    missing: bool
    jitter: float | None
    prior_noise: float

    def __post_init__(self) -> None:
        checked_latent(self.latent)

    def model(self, observed: Observed, prior: Callable[[Covariates], SparseGP]) -> Callable[..., Any]:
        """The model, its prior's function a given one of the covariates."""

        def model(
            x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
        ) -> Any:
            y = as_columns(x, y, self.num_outputs)
            given = observed_by(observed, y)
            scores, lengthscale = where_latents_begin("x", x, y, self.latent, "pca", self.missing)
            g = prior(x)
            variance = numpyro.param(
                "prior/noise", jnp.asarray(self.prior_noise), constraint=constraints.softplus_positive
            )
            inducing = inducing_inputs("gp", scores, self.num_inducing)
            k = kernel_parameters("gp", self.kernel, self.latent, lengthscale)
            f = sparse_gp("gp", k, inducing, given.num_functions(self.num_outputs), jitter=self.jitter)
            with data_plate(size or x.shape[0], index):
                infer = hidden_role()
                if y is not None:
                    infer = hidden_role(lambda: latents_around(scores))
                h = offer("x", numpyro.sample("x", g(x).noisy(variance), infer=infer))
                return numpyro.sample("y", emission(f(h), given, index, y is not None, self.missing), obs=y)

        return model
