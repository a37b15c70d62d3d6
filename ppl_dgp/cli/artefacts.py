"""The netCDF file, the figures and k-hat of a fit, through the diagnostics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ppl_dgp.cli.programs import Program
from ppl_dgp.fit import Fit
from ppl_dgp.predict import Prediction


def khat_of(program: Program, fitted: Fit, x: np.ndarray, y: np.ndarray) -> float | None:
    """Pareto k-hat of the guide; None where nothing is latent."""
    return None


def write_artefacts(
    folder: Path, program: Program, fitted: Fit, task: Any, prediction: Prediction, rows: np.ndarray
) -> None:
    """`posterior.nc` and `figures/*.png`."""
