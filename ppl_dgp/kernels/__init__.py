"""Covariance functions as frozen pytrees: call one for the Gram matrix, ask its ``diag`` for the diagonal.

Parameters are leaves of the pytree, so they may be traced, differentiated and mapped over; ``active_dims`` is
static. Source: Rasmussen & Williams (2006), chapter 4.
"""

from ppl_dgp.kernels.kernel import Kernel, Product, Sum
from ppl_dgp.kernels.linear import Constant, Linear, White
from ppl_dgp.kernels.stationary import (
    RBF,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    Stationary,
)

#: the kernels by the names that estimators and the command line give them
KERNELS: dict[str, type[Kernel]] = {
    "rbf": RBF,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "rational-quadratic": RationalQuadratic,
    "periodic": Periodic,
    "linear": Linear,
    "constant": Constant,
}

__all__ = [
    "KERNELS",
    "RBF",
    "Constant",
    "Kernel",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "Product",
    "RationalQuadratic",
    "Stationary",
    "Sum",
    "White",
]
