"""Packages that not everyone needs: the extra that brings each, and what is said at the point of use without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

#: the extra of ``ppl-dgp`` that brings a package, by the name that is imported
EXTRA_OF = {
    "typer": "cli",
    "rich": "cli",
    "matplotlib": "plots",
    "pandas": "data",
    "pyarrow": "data",
    "xarray": "data",
    "h5netcdf": "data",
    "h5py": "data",
    "openpyxl": "data",
    "sklearn": "estimators",
    "equinox": "networks",
    "blackjax": "samplers",
    "flatbuffers": "export",
}
#: what users know packages by, where it is not what is imported
_KNOWN_AS = {"matplotlib": "Matplotlib", "sklearn": "scikit-learn", "blackjax": "BlackJAX"}


class MissingExtra(ImportError):
    """What was asked for needs a package that is not installed; the message is one line and says how to install it."""


@contextmanager
def needed_for(what: str, extra: str | None = None) -> Iterator[None]:
    """Imports of packages that not everyone has.

    :param what: what they are imported for, as it begins the message: "plotting".
    :param extra: that which brings them; by default the one that ``EXTRA_OF`` has for the package that is missing.
    :raises MissingExtra: in the place of the ``ModuleNotFoundError`` of a package that an extra brings.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = missing_extra(error, what, extra)
        if missing is None:
            raise
        raise missing from None


def missing_extra(error: ModuleNotFoundError, what: str, extra: str | None = None) -> MissingExtra | None:
    """The error in the place of ``error``; None where what is missing is of no extra. See :func:`needed_for`."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRA_OF:
        return None
    return MissingExtra(
        f"{what} needs {_KNOWN_AS.get(package, package)}, which is not installed: "
        f'pip install "ppl-dgp[{extra or EXTRA_OF[package]}]"',
        name=package,
    )
