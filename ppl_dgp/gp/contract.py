"""What a model says to guides and objectives: its call, and the shapes in which its runs are handed about."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array

#: a run of a program: its sites by name, as ``numpyro.handlers.trace`` records them
Trace = dict[str, dict[str, Any]]
#: constrained values of ``numpyro.param`` sites by name, as ``SVI.get_params`` gives them
Parameters = dict[str, Array]


@runtime_checkable
class Model(Protocol):
    """A NumPyro model, or the guide of one: plain calls of ``sample``, ``param`` and ``plate``.

    What the fits call is ``model(x, y=None, index=None, size=None)``: inputs (N, D) and targets (N, P) of the rows at
    hand, their numbers ``index`` (B,) in a data set of ``size`` rows. A model that is never trained on minibatches
    needs no ``index`` and no ``size``.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __hash__(self) -> int: ...
