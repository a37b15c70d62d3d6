r"""GPs, networks and latents in one stack (Leibfried et al. 2020; Salimbeni et al. 2019; Cutajar et al. 2017).

    h_n⁰ = x_n,   h_n^l = block^l(h_n^{l−1}),   y_n = f^L(h_n^{L−1}) + ε, or y_n ~ p(y | f^L(h_n^{L−1}))

A block is a layer of random functions, h^l = f^l(h^{l−1}) + ε with ε ~ N(0, s_l²), each f^l a sparse GP, a GP of random
features or a Bayesian network's layer; a network of parameters; or latents z_n ~ N(0, I) beside h^{l−1}. All random
functions are sparse GPs to a guide, the weights of a network's layer inducing outputs that leave nothing over, so that
every rule, objective and α applies: ``inducing=Diagonal()`` is a mean-field, ``LowRank(r)`` a low-rank guide of the
weights, and at α = 0 they are integrated out of each row's values, which is local reparameterisation.

Card. Deep kernel learning is [DeterministicNetwork((32, 2)), GPLayer()]; a Bayesian neural network [BayesianLayer(50),
BayesianLayer()]; a latent-variable deep GP [LatentInputs(1), GPLayer(1), GPLayer()]; and there is what lies between.
Guides: ``DoublyStochastic`` first; rules that carry layers as matched moments know GP layers alone. Sites:
``layer1/u``, ``layer1/h`` of the first block, ``layer1/z`` of latents, …, ``y``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax.numpy as jnp
import numpyro
from jaxtyping import Array

from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.likelihoods import Gaussian, Likelihood
from ppl_dgp.models.blocks import FunctionBlock, LatentInputs, Place, StackBlock
from ppl_dgp.models.deep_gp import INNER_NOISE
from ppl_dgp.models.lengthscales import where_lengthscales_begin
from ppl_dgp.models.observation import NoiseChoice, Observed, emission, observed_by
from ppl_dgp.models.parts import as_columns, rows_plate
from ppl_dgp.models.settings import checked_settings
from ppl_dgp.models.zoo_model import ZooModel


@dataclass(frozen=True, eq=False, repr=False)
class stack(ZooModel):
    """Blocks one above the other, as a NumPyro model ``model(x, y=None, index=None, size=None)``.

    :param blocks: from x to y: ``GPLayer``, ``BayesianLayer`` and ``RandomFeaturesLayer`` (see
        :mod:`ppl_dgp.models.function_blocks`), ``DeterministicNetwork`` and ``LatentInputs``
        (:mod:`ppl_dgp.models.blocks`). The last is a layer of functions without a width.
    :param num_outputs: P target columns.
    :param noise, likelihood: see :func:`ppl_dgp.models.deep_gp`.
    :param inner_noise: where the learnt noise variances s_l² of hidden layers start.
    :param missing: whether NaN in y stands for an entry that was not observed.
    :param jitter: of GP layers, see :func:`ppl_dgp.gp.sparse_gp.sparse_gp`.
    :raises TypeError: for what is no block.
    :raises ValueError: for blocks in an order that makes no model, and as :func:`ppl_dgp.models.deep_gp`.

    >>> from ppl_dgp.models.function_blocks import BayesianLayer, GPLayer
    >>> stack([BayesianLayer(20), GPLayer(num_inducing=10)])
    stack(blocks=(BayesianLayer(width=20, activation=None), GPLayer(width=None, num_inducing=10)))
    """

    blocks: Sequence[StackBlock]
    _: KW_ONLY
    num_outputs: int = 1
    noise: NoiseChoice | None = None
    likelihood: Observed | None = None
    inner_noise: float = INNER_NOISE
    missing: bool = False
    jitter: float | None = None

    def __post_init__(self) -> None:
        self._settle(blocks=_checked_blocks(self.blocks), **checked_settings(self))

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        y = as_columns(x, y, self.num_outputs)
        given = observed_by(self.likelihood, self.noise, y, self.num_outputs)
        return self.under(given, x, y, index, size, y if isinstance(given, Gaussian) else None)

    def under(
        self,
        given: Likelihood,
        x: Array,
        y: Array | None,
        index: Array | None,
        size: int | None,
        targets: Array | None,
    ) -> Any:
        """The rest of the program, under a likelihood whose values are sites already.

        :param targets: what the last functions would be if they fitted, (N, F); None where y does not say.
        """
        *hidden, last = self.blocks
        rows, before, steps = x, None, []
        numbers = None if y is None else jnp.asarray(y, float)  # labels too
        if targets is not None and self.missing:
            targets = jnp.where(jnp.isnan(targets), jnp.nanmean(targets, 0), targets)

        def place(number: int) -> Place:
            first = all(isinstance(block, LatentInputs) for block in hidden[: number - 1])
            settings = self.inner_noise, self.missing, self.jitter
            begin = where_lengthscales_begin(rows, numbers, given) if first else None
            return Place(f"layer{number}", rows, x, numbers, before, targets, first, begin, *settings)

        for number, block in enumerate(hidden, start=1):
            begun = block.begin(place(number))
            rows, before = begun.rows, begun.function
            steps.append(begun.through)
        assert isinstance(last, FunctionBlock)
        f: SparseGP = last.function(place(len(self.blocks)), given.num_functions(self.num_outputs), False)[0]
        with rows_plate(x, index, size):
            h: Any = x
            for step in steps:
                h = step(h)
            return numpyro.sample("y", emission(f(h), given, index, y is not None, self.missing), obs=y)


def _checked_blocks(blocks: Any) -> tuple[StackBlock, ...]:
    if isinstance(blocks, StackBlock) or not isinstance(blocks, Sequence) or not blocks:
        raise ValueError(
            f"blocks: found {blocks!r}, expected a sequence of blocks, such as [GPLayer(2), GPLayer()]; write a list"
        )
    for place, block in enumerate(blocks, start=1):
        if isinstance(block, type) and issubclass(block, StackBlock):
            raise TypeError(
                f"blocks: found the class {block.__name__} as block {place}, expected one made by it; call it first, "
                f"{block.__name__}(…)"
            )
        if not isinstance(block, StackBlock):
            raise TypeError(f"blocks: found {block!r} as block {place}, expected one such as GPLayer(2)")
        last = place == len(blocks)
        if last and not isinstance(block, FunctionBlock):
            raise ValueError(
                f"blocks: found {block} as the last, expected a layer of random functions, which y is of; add GPLayer()"
                " or BayesianLayer()"
            )
        if not isinstance(block, FunctionBlock):
            continue
        if last and block.width is not None:
            raise ValueError(
                f"width: found {block.width} in the last block, expected none, for it has as many outputs as y needs; "
                "leave it out"
            )
        if last and isinstance(mean := getattr(block, "mean", None), str):
            raise ValueError(
                f"mean: found {mean!r} in the last block, expected a mean, such as Constant(1.0), or none, which is 0; "
                "leave it out"
            )
        if not last and block.width is None:
            raise ValueError(
                f"width: found none in block {place}, {block}, expected the number of its outputs; give width=2, say"
            )
    return tuple(blocks)
