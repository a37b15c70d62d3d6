"""The one place where ArviZ 0.23 and 1.x differ: the container, netCDF, Pareto smoothing, ELPD and stacking."""

from __future__ import annotations

import warnings
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ppl_dgp.data.arrays import check_expansion
from ppl_dgp.data.files import reading
from ppl_dgp.diagnostics.scores import sum_with_error
from ppl_dgp.extras import needed_for
from ppl_dgp.messages import DataError

if TYPE_CHECKING:
    import h5py
    from xarray import Dataset
else:  # nothing of xarray is imported before it is needed: it takes a second
    Dataset = Any

#: 1.x keeps groups in an ``xarray.DataTree``, 0.23 in its own ``InferenceData``
ONE = int(version("arviz").split(".")[0]) >= 1
#: groups within groups
DEEPEST = 10


@cache
def _arviz() -> ModuleType:
    """ArviZ, which takes seconds to import: what needs it asks here."""
    with warnings.catch_warnings():
        # once a day 0.23 announces 1.0, which is known here
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    return arviz


def container(groups: dict[str, Dataset], attrs: dict[str, Any]) -> Any:
    """``InferenceData`` (0.23) or ``DataTree`` (1.x) of these groups."""
    if ONE:
        from xarray import DataTree

        tree = DataTree.from_dict({f"/{name}": group for name, group in groups.items()})
        tree.attrs.update(attrs)
        return tree
    arguments: dict[str, Any] = {"attrs": attrs, **groups}
    return _arviz().InferenceData(**arguments)


def write_netcdf(data: Any, path: str | Path) -> None:
    """Write a container as netCDF, through h5netcdf.

    :raises MissingExtra: where it is not installed.
    """
    with needed_for("netCDF", "data"):
        import h5netcdf  # noqa: F401  by xarray
    if ONE:
        data.to_netcdf(path, engine="h5netcdf")
    else:
        data.to_netcdf(str(path), engine="h5netcdf")


def read_netcdf(path: str | Path) -> Any:
    """Read a container that :func:`write_netcdf` wrote, whole, so that the file is free again.

    :raises DataError: for a file that is missing, damaged or of another format, that links to other files, or that is
        out of all proportion smaller than its arrays.
    :raises MissingExtra: where h5netcdf or h5py is not installed.
    """
    with needed_for("netCDF", "data"):
        import h5netcdf  # noqa: F401  by xarray
        import h5py  # noqa: F401
    return reading(Path(path), _read_checked)


def _read_checked(path: Path) -> Any:
    try:
        check_expansion(path, _checked_size(path))
        if ONE:
            from xarray import open_datatree

            with open_datatree(path, engine="h5netcdf") as tree:
                return tree.load()
        from arviz.rcparams import rc_context

        with rc_context({"data.load": "eager"}):
            return _arviz().from_netcdf(str(path), engine="h5netcdf")
    except DataError:
        raise
    # what h5py, h5netcdf, xarray and ArviZ say of structures that do not fit together
    except (KeyError, RuntimeError, TypeError, AttributeError, IndexError, AssertionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _checked_size(path: Path) -> int:
    """Bytes of all arrays of an HDF5 file, of which none is elsewhere and no group within itself.

    :raises ValueError: for any other file.
    """
    import h5py

    size, seen = 0, set()
    with h5py.File(path, "r") as file:
        groups: list[tuple[h5py.Group, int]] = [(file, 0)]
        while groups:
            level, depth = groups.pop()
            for name in level:
                if not isinstance(level.get(name, getlink=True), h5py.HardLink):
                    raise ValueError(f"{name!r} is a link, which ArviZ does not write")
                item = level[name]
                place = h5py.h5o.get_info(item.id).addr
                if place in seen or depth > DEEPEST:
                    raise ValueError(f"group {name!r} is within itself, or too deep")
                seen.add(place)
                if isinstance(item, h5py.Group):
                    groups.append((item, depth + 1))
                elif isinstance(item, h5py.Dataset):
                    if item.external is not None or item.is_virtual:
                        raise ValueError(f"the numbers of {name!r} are in another file")
                    size += item.size * item.dtype.itemsize if item.shape is not None else 0
    return size


def group(data: Any, name: str) -> Dataset:
    """One group as a ``Dataset``."""
    result: Dataset = data[name].to_dataset() if ONE else data[name]
    return result


def pareto_smoothed(log_weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pareto smoothing along the last axis: normalised log weights, and k-hat (Vehtari et al. 2024).

    :param log_weights: (..., S), not normalised.
    """
    weights = np.asarray(log_weights)
    if ONE:
        from arviz_stats.base import array_stats

        # 1.x takes log likelihoods, the negatives of log weights
        smoothed, khat = array_stats.psislw(-weights)
    else:
        smoothed, khat = _arviz().psislw(weights)
    smoothed = np.asarray(smoothed)
    return smoothed - np.logaddexp.reduce(smoothed, axis=-1, keepdims=True), np.asarray(khat)


def elpd_data(
    log_density: np.ndarray, rows: np.ndarray, num_folds: int, num_samples: int, warning: bool = False
) -> Any:
    """A k-fold ELPD as ArviZ has that of LOO, its effective number of parameters not a number.

    :param log_density: log p(y_n | y of other folds), (n,).
    :param rows: labels of these n rows.
    """
    size = len(log_density)
    elpd, error = map(float, sum_with_error(log_density))
    from xarray import DataArray

    pointwise = DataArray(log_density, dims=["row"], coords={"row": rows})
    about: dict[str, Any] = {"se": error, "p": np.nan, "n_samples": num_samples, "n_data_points": size}
    about |= {"warning": warning, "scale": "log"}
    if not ONE:
        elpd_data_of = _arviz().stats.stats_utils.ELPDData

        about = {"elpd_loo": elpd, "se": error, "p_loo": np.nan} | {
            name: about[name] for name in ("n_samples", "n_data_points", "warning")
        }
        about |= {"loo_i": pointwise, "scale": "log"}
        return elpd_data_of(data=list(about.values()), index=list(about))
    from arviz_stats import utils

    about |= {"elpd": elpd, "elpd_i": pointwise, "good_k": None, "n_folds": num_folds}
    if hasattr(utils, "ELPDDataLOOKFold"):
        return utils.ELPDDataLOOKFold(**about)
    return utils.ELPDData(kind="loo_kfold", **about)


def pointwise_elpd(data: Any) -> np.ndarray:
    """log p(y_n | y without n) of each row, of ArviZ's ELPD, or of a container by Pareto-smoothed LOO.

    :raises TypeError: for anything else.
    :raises ValueError: of an ELPD without the values of its rows.
    """
    if is_container(data):
        data = _arviz().loo(data, pointwise=True)
    name = "elpd_i" if ONE else "loo_i"
    if not (hasattr(data, "n_data_points") and hasattr(data, "scale")):
        raise TypeError(
            f"results: found {type(data).__name__}, expected a CrossValidation, ArviZ's ELPD, or what to_arviz makes"
        )
    values = getattr(data, name, None)
    if values is None or data.scale != "log":
        raise ValueError(
            "results: found an ELPD without the values of its rows on the scale log, expected them; call "
            "arviz.loo(…, pointwise=True)"
        )
    return np.asarray(values, float).ravel()


def is_container(data: Any) -> bool:
    """Whether it is what :func:`container` makes."""
    if not ONE:
        return isinstance(data, _arviz().InferenceData)
    from xarray import DataTree

    return isinstance(data, DataTree)


def stacking_weights(log_density: np.ndarray) -> np.ndarray:
    """The weights w of K predictive distributions, ≥ 0 and of sum 1, whose mixture is best: max Σ_n log Σ_k w_k p_nk.

    :param log_density: log p_nk, (K, N) (Yao et al. 2018).
    """
    # what is taken off a row changes no weight, and keeps ArviZ's exponentials from vanishing
    relative = log_density - log_density.max(0)
    rows = np.arange(relative.shape[1])
    named = {str(number): elpd_data(each, rows, 1, 1) for number, each in enumerate(relative)}
    unrounded: dict[str, Any] = {"round_to": "none"} if ONE else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 0.23 calls pandas as 3.1 does not like it
        table = _arviz().compare(named, method="stacking", **unrounded)
    found = np.clip([float(table.loc[name, "weight"]) for name in named], 0.0, 1.0)
    weights: np.ndarray = found / found.sum()
    return weights
