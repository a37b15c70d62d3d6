"""The one place where ArviZ 0.23 and 1.x differ: the container, netCDF, and where Pareto smoothing lives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import xarray as xr

#: 1.x keeps groups in an ``xarray.DataTree``, 0.23 in its own ``InferenceData``
ONE = int(az.__version__.split(".")[0]) >= 1


def container(groups: dict[str, xr.Dataset], attrs: dict[str, Any]) -> Any:
    """``InferenceData`` (0.23) or ``DataTree`` (1.x) of these groups."""
    if ONE:
        tree = xr.DataTree.from_dict({f"/{name}": group for name, group in groups.items()})
        tree.attrs.update(attrs)
        return tree
    arguments: dict[str, Any] = {"attrs": attrs, **groups}
    return az.InferenceData(**arguments)


def write_netcdf(data: Any, path: str | Path) -> None:
    """Write a container as netCDF, through h5netcdf."""
    if ONE:
        data.to_netcdf(path, engine="h5netcdf")
    else:
        data.to_netcdf(str(path), engine="h5netcdf")


def read_netcdf(path: str | Path) -> Any:
    """Read a container that :func:`write_netcdf` wrote, whole, so that the file is free again."""
    if ONE:
        with xr.open_datatree(path, engine="h5netcdf") as tree:
            return tree.load()
    from arviz.rcparams import rc_context

    with rc_context({"data.load": "eager"}):
        return az.from_netcdf(str(path), engine="h5netcdf")


def group(data: Any, name: str) -> xr.Dataset:
    """One group as a ``Dataset``."""
    result: xr.Dataset = data[name].to_dataset() if ONE else data[name]
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
        smoothed, khat = az.psislw(weights)
    smoothed = np.asarray(smoothed)
    return smoothed - np.logaddexp.reduce(smoothed, axis=-1, keepdims=True), np.asarray(khat)
