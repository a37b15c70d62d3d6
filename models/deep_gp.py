r"""The deep Gaussian process (Damianou & Lawrence 2013; Salimbeni & Deisenroth 2017).

    h_n⁰ = x_n
    f^l ~ GP(m^l, k^l),   h_n^l = f^l(h_n^{l−1}) + ε,   ε ~ N(0, s_l²)        l = 1 … L−1
    f^L ~ GP(0, k^L),     y_n  = f^L(h_n^{L−1}) + ε,    ε ~ N(0, s²)    or y_n ~ p(y | f^L(h_n^{L−1}))

Card. For functions a stationary kernel cannot describe: steps, changing lengthscales, features to be learnt. Hidden
layers have linear means (identity, padded, or leading right-singular vectors; eq. 3.12), the last none. Guides:
``DoublyStochastic`` for speed and as a first try; ``Conditional()`` contains it and ``MeanField``,
``Conditional(markov=True)`` these and ``Markov``. Sites:
``layer1/u``, ``layer1/h``, …, ``y``; parameters ``layer1/lengthscale``, ``layer1/inducing``, ``layer1/noise``, ….
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.gp.contract import hidden_role
from ppl_dgp.gp.marginal import Marginal
from ppl_dgp.gp.means import Linear, layer_map
from ppl_dgp.gp.representation import offer
from ppl_dgp.gp.shallow import Shallow
from ppl_dgp.gp.sparse_gp import SparseGP, sparse_gp
from ppl_dgp.kernels import RBF
from ppl_dgp.likelihoods import Likelihood
from ppl_dgp.models.gp_regression import NUM_INDUCING, sparse_gp_regression
from ppl_dgp.models.inducing import GivenInducing, inducing_inputs
from ppl_dgp.models.kernel_values import KernelChoice, kernel_parameters
from ppl_dgp.models.lengthscales import where_lengthscales_begin
from ppl_dgp.models.observation import NoiseChoice, Observed, emission, observed_by
from ppl_dgp.models.parts import as_columns, rows_plate
from ppl_dgp.models.zoo_model import ZooModel
from ppl_dgp.numerics.gaussian import Gaussian

#: scale at which q(u) of a hidden layer starts: near-deterministic (0.1 cost twenty nats on the step function)
INNER_SCALE = 1e-2
#: where the noise variance of a hidden layer starts
INNER_NOISE = 1e-2


@dataclass(frozen=True, eq=False, repr=False)
class deep_gp(ZooModel):
    """A deep GP with hidden layers of the given widths, as a NumPyro model ``model(x, y=None, index=None, size=None)``.

    :param widths: Q of each hidden layer; () gives a sparse GP.
    :param num_inducing: M per layer, at most the number of rows.
    :param num_outputs: P target columns.
    :param kernel: for every layer: a name, a class, an instance or a function, see
        :mod:`ppl_dgp.models.kernel_values`; each layer has its own values.
    :param noise: variance of y's noise: None to learn it, a number to fix it, or one per training row (N,).
    :param likelihood: instead of Gaussian noise, see :func:`ppl_dgp.models.sparse_gp_regression`.
    :param inner_noise: where the learnt noise variances s_l² of hidden layers start.
    :param inducing: inputs to begin at, a list of (M, Q) for each layer, the hidden ones and the last.
    :param train_inducing: whether the inducing inputs are learnt.
    :param subsample_size: rows per step drawn by the plate, at O(N) per step; ``fit_svi(batch_size=)`` is better.
    :param jitter: see :func:`ppl_dgp.gp.sparse_gp.sparse_gp`.
    :raises ValueError: for settings of the wrong kind, a width below 1, an unknown likelihood, targets it cannot have,
        or where shapes do not fit.
    """

    widths: Sequence[int] = (2,)
    num_inducing: int = NUM_INDUCING
    _: KW_ONLY
    num_outputs: int = 1
    kernel: KernelChoice = RBF
    noise: NoiseChoice | None = None
    likelihood: Observed | None = None
    inner_noise: float = INNER_NOISE
    inducing: Sequence[GivenInducing] | GivenInducing | None = None
    train_inducing: bool = True
    subsample_size: int | None = None
    jitter: float | None = None

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        y = as_columns(x, y, self.num_outputs)
        return self.under(observed_by(self.likelihood, self.noise, y, self.num_outputs), x, y, index, size)

    def under(
        self, given: Likelihood, x: Array, y: Array | None, index: Array | None, size: int | None
    ) -> Any:
        """The rest of the program, under a likelihood whose values are sites already."""
        through = layers(
            x,
            self.widths,
            given.num_functions(self.num_outputs),
            kernel=self.kernel,
            num_inducing=self.num_inducing,
            inner_noise=self.inner_noise,
            inducing=self.inducing,
            train=self.train_inducing,
            jitter=self.jitter,
            begin=where_lengthscales_begin(x, y, given),
        )
        with rows_plate(x, index, size, self.subsample_size) as rows:
            if self.subsample_size is not None:
                x, y, index = x[rows], None if y is None else y[rows], rows
            return numpyro.sample("y", emission(through(x), given, index, y is not None), obs=y)

    def shallow(self, x: Float[Array, "N D"]) -> Shallow | None:
        """The sparse GP that this model is while its hidden layers are linear; None if noises are of rows.

        :param x: the training inputs.
        """
        of_rows = self.noise is not None and np.ndim(self.noise) > 0
        if of_rows or self.subsample_size or not self.widths:
            return None
        inputs = x
        for width in self.widths:
            inputs = inputs @ layer_map(inputs, width)
        own = None if self.inducing is None else self.inducing[-1]
        model = self._with_settings(sparse_gp_regression, inducing=own)
        names = tuple(f"layer{layer}" for layer in range(1, len(self.widths) + 2))
        return Shallow(model, inputs, names, INNER_SCALE, closed=self.likelihood is None)


@dataclass(frozen=True, eq=False)
class Layers:
    """The functions of a deep GP with the noises of its hidden layers; called within the data plate."""

    functions: tuple[SparseGP, ...]
    noises: tuple[Array, ...]

    def __call__(self, h: Float[Array, "B D"] | Gaussian) -> Marginal:
        """Sample the hidden layers ``layer1/h``, …, from inputs h; gives the last function's marginal."""
        for layer, (f, variance) in enumerate(zip(self.functions, self.noises, strict=False), start=1):
            site = f"layer{layer}/h"
            h = offer(site, numpyro.sample(site, f(h).noisy(variance), infer=hidden_role()))
        return self.functions[-1](h)


def layers(
    rows: Float[Array, "N D"],
    widths: Sequence[int],
    num_functions: int,
    *,
    kernel: KernelChoice,
    num_inducing: int,
    inner_noise: float = INNER_NOISE,
    inducing: Sequence[GivenInducing] | GivenInducing | None = None,
    train: bool = True,
    lengthscale: Float[Array, " D"] | None = None,
    jitter: float | None = None,
    begin: Callable[[], Array] | float | None = None,
) -> Layers:
    """Sample the functions ``layer1/u``, …: hidden ones with linear means, the last with none.

    :param rows: inputs that initialise the inducing inputs and the linear maps.
    :param widths: outputs of each hidden layer.
    :param num_functions: outputs of the last.
    :param inner_noise: where the learnt noise variances of hidden layers start.
    :param inducing: inputs that the layers' inducing inputs start at, one matrix for each.
    :param lengthscale: where the first layer's lengthscales start; √D if not given.
    :param begin: the same, but for classes of kernels that say where theirs do.
    """
    functions: list[SparseGP] = []
    noises = []
    pushed = rows  # the rows pushed through the linear means: where each layer's inducing inputs start
    for layer, width in enumerate((*widths, num_functions), start=1):
        name, last = f"layer{layer}", layer > len(widths)
        given = None if inducing is None else inducing[layer - 1]
        sites = inducing_inputs(name, pushed, num_inducing, train, given)
        starts: dict[str, Any] = {"lengthscale": lengthscale, "begin": begin} if layer == 1 else {}
        k = kernel_parameters(name, kernel, pushed.shape[1], **starts)
        mean = None if last else Linear(held_layer_map(name, pushed, width))
        scale = 1.0 if last else INNER_SCALE
        before = functions[-1] if functions else None
        f = sparse_gp(name, k, sites, width, mean=mean, initial_scale=scale, behind=before, jitter=jitter)
        functions.append(f)
        if mean is not None:
            pushed = mean(pushed)
            positive = constraints.positive
            noises.append(numpyro.param(f"{name}/noise", jnp.asarray(inner_noise), constraint=positive))
    return Layers(tuple(functions), tuple(noises))


def held_layer_map(name: str, inputs: Float[Array, "N D"], width: int) -> Float[Array, "D Q"]:
    """Identity or padded identity; where the layer narrows, singular vectors found once and held (zero gradient)."""
    if width >= inputs.shape[1]:
        return layer_map(inputs, width)
    linear_map = numpyro.param(f"{name}/linear_map", lambda _key: layer_map(inputs, width))
    fixed_map: Array = jax.lax.stop_gradient(linear_map)
    return fixed_map
