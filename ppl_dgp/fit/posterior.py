"""What predictions, diagnostics and files need of a trained model: the model, its guide and their parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any

from jaxtyping import Array

from ppl_dgp.fit.verbs import FitVerbs

#: of a setting's description
LONGEST_LINE = 90


@dataclass(frozen=True, eq=False, repr=False)
class Posterior(FitVerbs):
    """A model and its guide at constrained parameters: every verb of a :class:`Fit` takes one in the place of a fit.

    ``Posterior(model, guide, params)`` is what parameters that came from elsewhere are used through. ``data`` are the
    training rows, inputs and targets, where the posterior is not made of parameters alone, as an exact GP's.
    """

    model: Callable[..., Any]
    guide: Callable[..., Any]
    params: dict[str, Array]
    data: tuple[Array, Array] | None = field(default=None, kw_only=True)

    def __repr__(self) -> str:
        numbers = sum(value.size for value in self.params.values())
        about = {
            "model": shortened(self.model),
            "guide": shortened(self.guide, without="model"),
            "params": f"{numbers} numbers in {len(self.params)} arrays",
        }
        return "\n".join([type(self).__name__, *(f"  {name:<10}{text}" for name, text in about.items())])


def shortened(thing: Any, without: str = "") -> str:
    """What a thing is, on one line: of a dataclass the fields that differ from their defaults."""
    text = repr(thing)
    if is_dataclass(thing) and not isinstance(thing, type):
        shown = [
            f"{each.name}={shortened(getattr(thing, each.name))}"
            for each in fields(thing)
            if each.repr and each.init and each.name != without and not _has_default(thing, each)
        ]
        text = f"{type(thing).__name__}({', '.join(shown)})"
    elif callable(thing) and hasattr(thing, "__qualname__"):
        text = thing.__qualname__.removesuffix(".<locals>.model")
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…"


def _has_default(thing: Any, setting: Field[Any]) -> bool:
    value = getattr(thing, setting.name)
    return value is setting.default or (
        type(value) is type(setting.default) and repr(value) == repr(setting.default)
    )
