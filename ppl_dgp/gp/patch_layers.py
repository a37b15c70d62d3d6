r"""Functions of an image's patches as images: layers of deep convolutional GPs, and mixtures over patches.

.. math::
    f(X)[p] = g(X[p]), \quad g_c \sim GP(m_c, k_g); \qquad
    p(y \mid X) = \sum_p \pi_p\, p(y \mid g(X[p]))

The answers to an image's patches are an image again, of P places and a channel for each output of g: what comes next is
a function of it (Blomqvist, Kaski & Heinonen 2018; Dutordoir et al. 2020). Given the inducing outputs of g the answers
to different patches are taken for independent, as the steps of a trajectory are, and u is one draw that they share:
say ``sparse_gp(…, reused=True)``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from ppl_dgp import likelihoods
from ppl_dgp.gp.emission import Emission, check_shape
from ppl_dgp.gp.marginal import Marginal
from ppl_dgp.gp.means import Linear
from ppl_dgp.gp.patches import Patches
from ppl_dgp.gp.sums import FunctionSum, ScaledMarginal
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.power_mean import Alpha

if TYPE_CHECKING:
    from ppl_dgp.gp.sparse_gp import SparseGP
else:  # a layer's function is none, but what refuses to be taken for one
    SparseGP = Any


def at_patches(f: SparseGP, images: Float[Array, "B _"] | Gaussian, patches: Patches) -> PatchMarginal:
    """The answers of f to each patch of images: images again, rows (B, P·C) of P places by the C outputs of f.

    As a hidden layer they are made noisy and sampled, ``f.noisy(variance)``; ``given_any(…)`` observes one of them.

    :param f: a function of patches, sampled with ``reused=True``.
    :raises ValueError: for rows that are no such images, images that are carried as moments, or a function whose u an
        objective may take for another at each patch, which would be no bound.
    """
    if not f.reused:
        raise ValueError(
            f"f: found {f.name}, sampled as a function of one value for each image, expected one that all patches "
            "share; say sparse_gp(…, reused=True)"
        )
    if isinstance(images, Gaussian):
        raise ValueError(
            f"propagation: found moments of images before {f.name}, expected draws; take propagation='draws'"
        )
    cut = patches.of(images)
    answers = f.for_several(patches.count)(cut.reshape(-1, patches.size))
    outputs = answers.mean.shape[1]
    as_rows = lambda values: jnp.broadcast_to(values, answers.mean.shape).reshape(len(images), -1)
    function: Any = FunctionSum([f.name])
    nothing = jnp.zeros((len(images), 0), answers.mean.dtype)
    mean, residual, from_u = (as_rows(part) for part in (answers.mean, answers.residual, answers.from_u))
    return PatchMarginal(function, images, nothing, mean, residual, from_u, answers, patches, outputs)


def centre_filter(patches: Patches, outputs: int, dtype: Any = float) -> Linear:
    """The mean function of a patch that gives the pixel in its middle: of each channel in turn, then 0.

    A layer with this mean begins as the identity, less the border (Blomqvist et al. 2018).
    """
    (h, w), channels = patches.patch, patches.image[2]
    weights = np.zeros((patches.size, outputs))
    first = ((h // 2) * w + w // 2) * channels
    for channel in range(min(outputs, channels)):
        weights[first + channel, channel] = 1.0
    return Linear(jnp.asarray(weights, dtype))


@dataclass(frozen=True, eq=False)
class PatchMarginal(Marginal):
    """Marginals of g at the patches of B images, as images: (B, P·C). ``answers`` has them as rows (B·P, C)."""

    answers: Marginal
    patches: Patches
    outputs: int

    @property
    def terms(self) -> tuple[ScaledMarginal, ...]:
        """Those of g."""
        return self.answers.terms

    def joint(self) -> tuple[Float[Array, "B Q"], Float[Array, "Q B B"]]:
        """Means, and covariances of the images' answers at each place."""
        rows, places = self.mean.shape[0], self.patches.count
        function = self.answers.function
        cut = jnp.swapaxes(self.answers.rows.reshape(rows, places, -1), 0, 1)
        covariances = jax.vmap(lambda at: function.joint(at)[1])(cut)
        return self.mean, covariances.reshape(places * self.outputs, rows, rows)

    def draw(self, key: Array) -> Float[Array, "B Q"]:
        return self.answers.draw(key).reshape(self.mean.shape)

    def slope(self, num_inputs: int) -> Float[Array, "B Q D"]:
        """Of the mean function: that of a patch, at the pixels that the patch is cut from."""
        of_patch = self.answers.slope(self.patches.size)[0]
        linear = self.patches.onto_images(of_patch)
        return jnp.broadcast_to(linear, (self.mean.shape[0], *linear.shape))

    def given_any(
        self,
        likelihood: likelihoods.Likelihood | Callable[[Array], dist.Distribution],
        weights: Float[Array, " P"],
    ) -> Emission:
        """y | g(X[p]) of one patch p of each image that is not known: a mixture with these weights, which add up to 1.

        :raises ValueError: for another number of weights than there are patches.
        """
        if jnp.shape(weights) != (self.patches.count,):
            raise ValueError(
                f"weights: found shape {jnp.shape(weights)}, expected one for each of {self.patches.count} patches"
            )
        return PatchMixture(self, self.answers.observe(likelihood), weights)

    def __add__(self, other: Any) -> Any:
        raise _refusal("a sum")

    def __mul__(self, scale: Any) -> Any:
        raise _refusal("a multiple")

    __radd__ = __add__
    __rmul__ = __mul__


class AnyPatchMarginal(PatchMarginal):
    """The first two moments of g at a patch that is drawn, (B, C): no function of whole images has them."""

    def joint(self) -> tuple[Float[Array, "B Q"], Float[Array, "Q B B"]]:
        raise self._refusal()

    def draw(self, key: Array) -> Float[Array, "B Q"]:
        raise self._refusal()

    def slope(self, num_inputs: int) -> Float[Array, "B Q D"]:
        raise self._refusal()

    def _refusal(self) -> ValueError:
        return ValueError(
            f"x: found a mixture over patches, {self.function!r}, expected a function of whole images; take predict(), "
            "which has the moments and draws of y"
        )


class PatchMixture(Emission):
    """y under a mixture over patches, summed out: at every α the logarithm of Σ_p π_p exp t_α(y | g(X[p])).

    That is the bound of a q(p_n) that is the best there is, as of discrete latents in :mod:`ppl_dgp.objectives`.
    """

    def __init__(self, images: PatchMarginal, each: Emission, weights: Float[Array, " P"]) -> None:
        self.images, self.each, self.weights = images, each, weights
        mean, variance = self._moments(images.answers.mean, images.answers.variance)
        nothing = jnp.zeros_like(variance)
        about = images.answers, images.patches, images.outputs
        marginal = AnyPatchMarginal(
            images.function, images.inputs, images.weights, mean, variance, nothing, *about
        )
        super().__init__(marginal, each.likelihood, each.partly)

    def partly_observed(self) -> Emission:
        return PatchMixture(self.images, self.each.partly_observed(), self.weights)

    def tempered(self, value: Array, alpha: Alpha, *, u_outside: bool = False) -> Float[Array, "B"]:
        check_shape(value, self)
        repeated = jnp.repeat(value, len(self.weights), -2)
        terms = self.each.tempered(repeated, alpha, u_outside=u_outside)
        together: Array = logsumexp(
            terms.reshape(*terms.shape[:-1], *self.batch_shape, -1), -1, b=self.weights
        )
        return together

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draws of shape ``sample_shape`` + (B, …): of a patch, then of y."""
        key_patch, key_y = jax.random.split(key)
        rows = self.batch_shape[0]
        shape = (*sample_shape, rows)
        which = jax.random.categorical(key_patch, jnp.log(self.weights), shape=shape)
        marginal = self.images.answers
        as_images = lambda values: values.reshape(rows, len(self.weights), -1)
        pick = lambda values: as_images(values)[jnp.arange(rows), which]
        drawn: Array = self.likelihood.sample(key_y, pick(marginal.mean), pick(marginal.variance))
        return drawn

    @property
    def mean(self) -> Float[Array, "B _"]:
        return self._moments(self.each.mean, self.each.variance)[0]

    @property
    def variance(self) -> Float[Array, "B _"]:
        return self._moments(self.each.mean, self.each.variance)[1]

    def _moments(self, mean: Float[Array, "B_P _"], variance: Float[Array, "B_P _"]) -> tuple[Array, Array]:
        """Of the mixture, from those of its parts."""
        rows = self.images.mean.shape[0]
        average = lambda values: jnp.einsum(
            "bpc,p->bc", values.reshape(rows, len(self.weights), -1), self.weights
        )
        centre = average(mean)
        apart = mean - jnp.repeat(centre, len(self.weights), 0)
        return centre, average(variance + jnp.square(apart))


def _refusal(what: str) -> ValueError:
    return ValueError(
        f"at_patches: found {what} of answers to patches, expected a layer of them; add functions of whole images, or "
        "let an offset be the function's mean"
    )
