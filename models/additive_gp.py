r"""Additive Gaussian processes (Duvenaud, Nickisch & Rasmussen 2011; Hastie & Tibshirani 1986).

    f_i ~ GP(0, k_i),   y_n = f_1(x_n[D_1]) + … + f_T(x_n[D_T]) + ε_n,   ε_n ~ N(0, s²),   or y_n ~ p(y | Σ_i f_i)

Card. For effects of single inputs, or of a few together, that add up: each term has a kernel, inducing inputs and
inducing outputs of its own, so that what it explains can be drawn with a band, ``plot_layers(layer_maps(fit, x))``, and
said in a number, ``explained(fit, x)``. Guides: ``Guide(model)``; ``Guide(model, inducing=Coupled("full"))`` knows that
what one term has another need not have. Sites ``term1/u``, …, ``y``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax.numpy as jnp
import numpyro
from jaxtyping import Array

from ppl_dgp.gp.marginal import Marginal
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.kernels import RBF
from ppl_dgp.models.checks import checked_groups
from ppl_dgp.models.gp_regression import NUM_INDUCING
from ppl_dgp.models.inducing import inducing_inputs
from ppl_dgp.models.kernel_values import KernelChoice, checked_kernel, kernel_parameters
from ppl_dgp.models.observation import NoiseChoice, Observed, emission, observed_by
from ppl_dgp.models.parts import as_columns, rows_plate
from ppl_dgp.models.settings import checked_settings
from ppl_dgp.models.zoo_model import ZooModel


@dataclass(frozen=True, eq=False, repr=False)
class additive_gp(ZooModel):
    """A sum of functions of some of the inputs each: sites ``term1/u``, …, ``y``.

    :param groups: of each term the columns of x that it is a function of; one term for each column if not given.
    :param num_inducing: M of each term, at most the number of its distinct rows.
    :param num_outputs: P target columns, independent given the kernels.
    :param kernel: for every term: a name, a class, an instance or a function, see
        :mod:`ppl_dgp.models.kernel_values`; or a sequence, one for each. Each term has its own values.
    :param noise, likelihood: as in :func:`ppl_dgp.models.sparse_gp_regression`.
    :param train_inducing: whether the inducing inputs are learnt; they start at k-means centres.
    :param jitter: see :func:`ppl_dgp.gp.sparse_gp.sparse_gp`.
    :raises ValueError: for settings of the wrong kind, a group without columns or with one twice, or, when the model is
        run, columns that x does not have.
    """

    groups: Sequence[Sequence[int]] | None = None
    num_inducing: int = NUM_INDUCING
    _: KW_ONLY
    num_outputs: int = 1
    kernel: KernelChoice | Sequence[KernelChoice] = RBF
    noise: NoiseChoice | None = None
    likelihood: Observed | None = None
    train_inducing: bool = True
    jitter: float | None = None

    def __post_init__(self) -> None:
        several = isinstance(self.kernel, Sequence) and not isinstance(self.kernel, str)
        settings = checked_settings(self, without=("groups", "kernel") if several else ("groups",))
        settings["groups"] = checked_groups("groups", self.groups)
        if several:
            settings["kernel"] = tuple(checked_kernel(each) for each in self.kernel)
            if settings["groups"] is None or len(settings["kernel"]) != len(settings["groups"]):
                terms = "no groups" if settings["groups"] is None else f"{len(settings['groups'])} groups"
                raise ValueError(
                    f"kernel: found {len(settings['kernel'])} for {terms}, expected one for all, or one for each group"
                )
        self._settle(**settings)

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        y = as_columns(x, y, self.num_outputs)
        given = observed_by(self.likelihood, self.noise, y, self.num_outputs)
        groups = self.groups_of(x.shape[1])
        functions = []
        for number, columns in enumerate(groups, start=1):
            name, rows = f"term{number}", x[:, jnp.asarray(columns)]
            inducing = inducing_inputs(name, rows, self.num_inducing, self.train_inducing)
            chosen = self.kernel[number - 1] if isinstance(self.kernel, tuple) else self.kernel
            # the terms share the variance that one function would start with
            kernel = kernel_parameters(name, chosen, len(columns), None, lambda: 1.0 / len(groups))
            outputs = given.num_functions(self.num_outputs)
            functions.append(sparse_gp(name, kernel, inducing, outputs, jitter=self.jitter))
        with rows_plate(x, index, size):
            total: Marginal | None = None
            for f, columns in zip(functions, groups, strict=True):
                term = f(x[:, jnp.asarray(columns)])
                total = term if total is None else total + term
            assert total is not None
            return numpyro.sample("y", emission(total, given, index, y is not None), obs=y)

    def groups_of(self, dims: int) -> tuple[tuple[int, ...], ...]:
        """The columns of each term, of x with so many of them.

        :raises ValueError: for columns that it does not have.
        """
        if self.groups is None:
            return tuple((column,) for column in range(dims))
        groups = tuple(tuple(group) for group in self.groups)
        most = max(max(group) for group in groups)
        if most >= dims:
            raise ValueError(
                f"groups: found the column {most}, expected columns of x, below {dims}; they are counted from 0"
            )
        return groups
