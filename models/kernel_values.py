"""The kernel that a model takes: a name, class, instance or function; its values are sites under a layer's name.

"rbf", "rbf + linear*periodic"      of ``KERNELS``
RBF                                 a class: its fields begin at 1 or their defaults, lengthscales one per dimension
RBF(1.0, 0.3) + Constant(2.0)       an instance: its values begin there
f(D) or f(name, D)                  a function of the input dimension, and of the layer's name, that returns a
                                    kernel: plain numbers in it are held, and sites that it declares are learnt
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, is_dataclass
from functools import reduce
from typing import Any

from jaxtyping import Array, Float
from numpyro.handlers import scope, trace

from ppl_dgp.kernels import KERNELS, Kernel, Product, Sum
from ppl_dgp.messages import as_found, unknown_name
from ppl_dgp.models.learnt import (
    check_start,
    class_with_sites,
    instance_with_sites,
    is_per_dimension,
    learnt_fields,
    says_where,
)


@dataclass(frozen=True, repr=False)
class Composed:
    """A sum of kernels, each a product of kernel classes: give it wherever a model takes a kernel class.

    Every factor has its own values, sites ``name/1/…``, ``name/2/…`` in the order written. Of a product's variances
    those of one factor alone are learnt, the others being 1, for only their product means anything: of the first that
    has one for each dimension, else of the first.
    """

    terms: tuple[tuple[type[Kernel], ...], ...]

    def __repr__(self) -> str:
        return " + ".join("*".join(factor.__name__ for factor in term) for term in self.terms)


#: what a model takes for a kernel
KernelChoice = str | Kernel | type[Kernel] | Composed | Callable[..., Kernel]
KERNELS_TAKEN = "a name, a kernel class, a kernel, or a function (D) or (name, D) that returns a kernel"


def named_kernel(text: str) -> type[Kernel] | Composed:
    """The kernel that ``text`` names: one of ``KERNELS``, or several with + and * between, such as ``rbf+linear``.

    :raises ValueError: for an unknown name.
    """
    terms = [[name.strip() for name in term.split("*")] for term in text.split("+")]
    for name in (name for term in terms for name in term):
        if name not in KERNELS:
            error = unknown_name(f"kernel: found {name!r} in {text!r}", name, KERNELS)
            raise ValueError(f"{error}, with + and * between to compose them")
    if len(terms) == len(terms[0]) == 1:
        return KERNELS[terms[0][0]]
    return Composed(tuple(tuple(KERNELS[name] for name in term) for term in terms))


def checked_kernel(kernel: Any, argument: str = "kernel") -> KernelChoice:
    """The choice of a model's author, names replaced by what they name.

    :raises ValueError: for what no kernel can be made of, or an instance whose values cannot be learnt from there on.
    """
    if isinstance(kernel, str):
        return named_kernel(kernel)
    if isinstance(kernel, Kernel):
        for factor in _factors(kernel):
            if not is_dataclass(factor):
                raise ValueError(
                    f"{argument}: found a {type(factor).__name__}, which is no dataclass, so that nobody knows its "
                    "values; decorate it, or give a function that returns it to hold them"
                )
            for entry in learnt_fields(type(factor)):
                start = getattr(factor, entry.name)
                if hasattr(start, "shape") or isinstance(start, int | float):
                    check_start(argument, factor, entry, start)
    elif isinstance(kernel, type):
        _check_class(argument, kernel)
    elif not isinstance(kernel, Composed) and (not callable(kernel) or num_required(kernel) not in (1, 2)):
        raise ValueError(f"{argument}: found {as_found(kernel)}, expected {KERNELS_TAKEN}")
    return kernel  # type: ignore[no-any-return]


def _check_class(argument: str, cls: type) -> None:
    name = cls.__name__
    if not issubclass(cls, Kernel) or cls in (Sum, Product):
        raise ValueError(f"{argument}: found the class {name}, expected {KERNELS_TAKEN}")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise ValueError(f"{argument}: found the class {name}, which lacks {missing}; define it")
    if not is_dataclass(cls):
        raise ValueError(
            f"{argument}: found the class {name}, expected a frozen dataclass, whose fields are the values to learn; "
            "decorate it, or give an instance or a function that returns one"
        )


def num_required(function: Callable[..., Any]) -> int | None:
    """How many arguments a function has to be given by position; None where nobody knows."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters):
        return None
    return sum(p.kind in by_position and p.default is p.empty for p in parameters)


def kernel_parameters(
    name: str,
    kernel: KernelChoice,
    input_dim: int,
    lengthscale: Float[Array, " D"] | Callable[[], Array] | None = None,
    variance: Callable[[], Array] | None = None,
    begin: Callable[[], Array] | float | None = None,
) -> Kernel:
    """The kernel of layer ``name``, its values ``numpyro.param`` sites ``name/variance``, ``name/lengthscale`` ….

    :param kernel: what a model takes, checked by :func:`checked_kernel`; the factors of an instance have their values
        under ``name/1/…``, ``name/2/…`` where there are several.
    :param input_dim: D.
    :param lengthscale: where the lengthscales of classes start, or what gives it when that is asked for; √D if not
        given, of a class's own input dimensions.
    :param variance: what gives where the variance of a single class starts; 1 if not given.
    :param begin: where lengthscales of classes that do not say where they begin start, √D if not given; see
        :func:`ppl_dgp.models.lengthscales.where_lengthscales_begin`.
    :raises ValueError: if a function returns no kernel, or (name, D) declares sites under other names than its layer's.
    """
    given = {"lengthscale": lengthscale, "variance": variance}
    starts = {field: start for field, start in given.items() if start is not None}
    if isinstance(kernel, str):
        kernel = named_kernel(kernel)
    begin = input_dim**0.5 if begin is None else begin
    if isinstance(kernel, Composed):
        return _composed(name, kernel, input_dim, starts, begin)
    if isinstance(kernel, Kernel):
        factors = _factors(kernel)
        prefixes = [name] if len(factors) == 1 else [f"{name}/{n}" for n in range(1, len(factors) + 1)]
        made = (instance_with_sites("kernel", *pair) for pair in zip(prefixes, factors, strict=True))
        return _rebuilt(kernel, made)
    if isinstance(kernel, type):
        return _kernel_of_class(name, kernel, input_dim, starts, {}, begin)
    return _from_function(name, kernel, input_dim)


def kernels_of_outputs(
    outputs: int | None,
    name: str,
    kernel: KernelChoice,
    input_dim: int,
    lengthscale: Callable[[], Array] | None = None,
    variance: Callable[[], Array] | None = None,
    begin: Callable[[], Array] | float | None = None,
) -> Kernel | list[Kernel]:
    """The kernel that a layer's outputs share, or one for each of so many, its values under ``name/output1/…``."""
    if outputs is None:
        return kernel_parameters(name, kernel, input_dim, lengthscale, variance, begin)
    names = [f"{name}/output{n}" for n in range(1, outputs + 1)]
    return [kernel_parameters(each, kernel, input_dim, lengthscale, variance, begin) for each in names]


def _factors(kernel: Kernel) -> list[Kernel]:
    """The kernels that sums and products are made of, from left to right."""
    if isinstance(kernel, Sum | Product):
        return _factors(kernel.left) + _factors(kernel.right)
    return [kernel]


def _rebuilt(kernel: Kernel, factors: Any) -> Kernel:
    """The same sums and products of other factors."""
    if isinstance(kernel, Sum | Product):
        left = _rebuilt(kernel.left, factors)
        return type(kernel)(left, _rebuilt(kernel.right, factors))
    return next(factors)  # type: ignore[no-any-return]


def _composed(
    name: str, kernel: Composed, input_dim: int, starts: Mapping[str, Any], begin: Callable[[], Array] | float
) -> Kernel:
    # the terms share the variance that one kernel would start with
    shared = {**starts, "variance": 1.0 / len(kernel.terms)}
    number, terms = 0, []
    for term in kernel.terms:
        scaled = next((place for place, factor in enumerate(term) if _has_variances(factor)), 0)
        factors = []
        for place, factor in enumerate(term):
            number += 1
            fixed = {} if place == scaled else {"variance": 1.0}
            factors.append(_kernel_of_class(f"{name}/{number}", factor, input_dim, shared, fixed, begin))
        terms.append(reduce(operator.mul, factors))
    return reduce(operator.add, terms)


def _has_variances(cls: type[Kernel]) -> bool:
    return any(entry.name == "variance" and is_per_dimension(entry) for entry in learnt_fields(cls))


def _kernel_of_class(
    name: str,
    cls: type[Kernel],
    input_dim: int,
    starts: Mapping[str, Any],
    fixed: Mapping[str, Any],
    begin: Callable[[], Array] | float,
) -> Kernel:
    active = getattr(cls, "active_dims", None)
    size = input_dim if active is None else len(active)
    # columns of its own are as far apart as there are of them
    own = begin if active is None else size**0.5

    def shape(entry: Field[Any]) -> tuple[int, ...]:
        return (size,) if is_per_dimension(entry) else ()

    silent = any(entry.name == "lengthscale" and not says_where(entry) for entry in learnt_fields(cls))
    where = {"lengthscale": own} if silent else {}
    kernel: Kernel = class_with_sites(name, cls, {**where, **starts}, fixed, shape, lazy=True)
    return kernel


def _from_function(name: str, function: Callable[..., Any], input_dim: int) -> Kernel:
    if num_required(function) == 1:
        # what it declares belongs to this layer, whatever other layers declare under the same names
        with scope(prefix=name, divider="/"):
            kernel = function(input_dim)
    else:
        with trace() as sites:
            kernel = function(name, input_dim)
        for site in sites:
            if not site.startswith(f"{name}/"):
                raise ValueError(
                    f"kernel: found the site {site!r} in the function for {name}, which other layers would share; "
                    f'name it f"{{name}}/{site}"'
                )
    if not isinstance(kernel, Kernel):
        raise ValueError(f"kernel: found {kernel!r} from the function for {name}, expected a kernel")
    return kernel
