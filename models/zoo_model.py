"""Models as values: their settings are fields, so that a model prints, compares, hashes and pickles as what it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from functools import cached_property
from typing import Any, TypeVar

from jaxtyping import Array

from ppl_dgp.models.settings import checked_settings
from ppl_dgp.models.value import described, is_default, settings_of
from ppl_dgp.numerics.content import content

Other = TypeVar("Other", bound="ZooModel")


class SettledValue:
    """A frozen dataclass of settings of models, or of parts of them, which are checked when it is made.

    Those of equal settings are equal; arrays are compared by their content, functions equal themselves alone.
    """

    def __post_init__(self) -> None:
        self._settle(**checked_settings(self))

    def __repr__(self) -> str:
        shown = [
            f"{setting.name}={described(getattr(self, setting.name))}"
            for setting in settings_of(self)
            if not setting.kw_only or not is_default(setting, getattr(self, setting.name))
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    def __getstate__(self) -> dict[str, Any]:
        return {setting.name: getattr(self, setting.name) for setting in settings_of(self)}

    @cached_property
    def _content(self) -> Hashable:
        return type(self), *(content(getattr(self, setting.name)) for setting in settings_of(self))

    def _settle(self, **settings: Any) -> None:
        """Put what a check has made of settings in their places; to be called by ``__post_init__`` alone."""
        for name, value in settings.items():
            object.__setattr__(self, name, value)


class ZooModel(SettledValue, ABC):
    """A NumPyro model whose settings are the fields of a frozen dataclass.

    Subclasses are named in lower case, as NumPyro's ``plate`` and ``trace`` are, for they are used like functions:
    ``model = deep_gp((2,), 20)``, then ``model(x, y)``. Models of equal settings are equal, so that what is compiled
    for one serves the other.
    """

    @abstractmethod
    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        """Run the program: inputs (B, D) and targets (B, P), rows ``index`` (B,) of a table of ``size`` rows."""

    def _settle_as(self, other: ZooModel, *names: str) -> None:
        """Take over settings that another model has checked."""
        self._settle(**{name: getattr(other, name) for name in names})

    def _with_settings(self, model: type[Other], **others: Any) -> Other:
        """Another model of the zoo under this one's settings, as far as it has them, and others."""
        names = {entry.name for entry in settings_of(model)} & {entry.name for entry in settings_of(self)}
        return model(**{name: getattr(self, name) for name in names - others.keys()}, **others)
