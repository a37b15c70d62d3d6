r"""Regression whose noise changes with x (Goldberg et al. 1998; Lázaro-Gredilla & Titsias 2011).

    f, g ~ GP(0, k),   y_n = f(x_n) + ε_n,   ε_n ~ N(0, s² exp(g(x_n)))

Cards: :func:`sparse_heteroscedastic_gp`, and :func:`deep_heteroscedastic_gp` whose f and g share hidden layers; for
data whose scatter is not the same everywhere. f and g have one kernel and one set of inducing inputs; s² is the site
``likelihood/noise``. The bound (α = 0) is closed in f and g. Guides as for ``sparse_gp_regression`` and ``deep_gp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any

from jaxtyping import Array, Float

from ppl_dgp.gp.shallow import Shallow
from ppl_dgp.kernels import RBF
from ppl_dgp.models.deep_gp import INNER_NOISE, deep_gp
from ppl_dgp.models.gp_regression import NUM_INDUCING, sparse_gp_regression
from ppl_dgp.models.inducing import GivenInducing
from ppl_dgp.models.kernel_values import KernelChoice
from ppl_dgp.models.zoo_model import ZooModel


@dataclass(frozen=True, eq=False, repr=False)
class sparse_heteroscedastic_gp(ZooModel):
    """One layer: sites ``gp/u`` (2P, M), ``y``.

    :param num_inducing: M, at most the number of rows.
    :param num_outputs: P target columns.
    :param kernel, inducing, train_inducing, subsample_size, jitter: as in ``sparse_gp_regression``.
    :raises ValueError: where shapes do not fit, naming them.
    """

    num_inducing: int = NUM_INDUCING
    _: KW_ONLY
    num_outputs: int = 1
    kernel: KernelChoice = RBF
    inducing: GivenInducing | None = None
    train_inducing: bool = True
    subsample_size: int | None = None
    jitter: float | None = None

    def __post_init__(self) -> None:
        self._settle_as(self._program, "num_inducing", "kernel", "inducing")

    @cached_property
    def _program(self) -> sparse_gp_regression:
        return self._with_settings(sparse_gp_regression, likelihood="heteroscedastic")

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        return self._program(x, y, index, size)


@dataclass(frozen=True, eq=False, repr=False)
class deep_heteroscedastic_gp(ZooModel):
    """Hidden layers of the given widths below f and g: sites ``layer1/u``, ``layer1/h``, …, ``y``.

    :param widths: Q of each hidden layer.
    :param num_inducing: M per layer, at most the number of rows.
    :param num_outputs: P target columns.
    :param kernel, inner_noise, inducing, train_inducing, subsample_size, jitter: as in ``deep_gp``.
    :raises ValueError: for a width below 1, or where shapes do not fit, naming them.
    """

    widths: Sequence[int] = (2,)
    num_inducing: int = NUM_INDUCING
    _: KW_ONLY
    num_outputs: int = 1
    kernel: KernelChoice = RBF
    inner_noise: float = INNER_NOISE
    inducing: Sequence[GivenInducing] | GivenInducing | None = None
    train_inducing: bool = True
    subsample_size: int | None = None
    jitter: float | None = None

    def __post_init__(self) -> None:
        self._settle_as(self._program, "widths", "num_inducing", "kernel", "inducing")

    @cached_property
    def _program(self) -> deep_gp:
        return self._with_settings(deep_gp, likelihood="heteroscedastic")

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        return self._program(x, y, index, size)

    def shallow(self, x: Float[Array, "N D"]) -> Shallow | None:
        """The sparse model that this one is while its hidden layers are linear, see :meth:`deep_gp.shallow`."""
        found: Shallow | None = self._program.shallow(x)
        return found
