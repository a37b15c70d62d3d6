"""Which rows of benchmarks/trust.csv diagnostics are judged by, and how well each predicts the error."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

#: what a user has without a reference, and the sign with which more of it should mean less error
PREDICTORS = {"khat": 1.0, "iw_bound": -1.0, "elbo": -1.0, "loo": -1.0}
NAMES = {"khat": "k-hat", "iw_bound": "importance-weighted bound", "elbo": "ELBO", "loo": "LOO"}
FEWEST = 6


def cell(value: float) -> str:
    """Two decimals, or nothing."""
    return "" if pd.isna(value) else f"{value:.2f}"


def converged(table: pd.DataFrame) -> pd.DataFrame:
    """The fits that have converged, where there is a reference to judge them by."""
    return table[(table.converged.astype(str) == "True") & table.kl_fitc.notna()]


def judged(table: pd.DataFrame) -> pd.DataFrame:
    """The fits by which diagnostics are judged."""
    found = converged(table)
    return found[(found.hyper == "points") & (found.objective != "SGHMC")]


def rank_correlations(table: pd.DataFrame) -> pd.DataFrame:
    """Of the KL with each predictor, by problem: 1 where the predictor orders fits as the KL does."""
    found = {}
    for problem, group in judged(table).groupby("problem", sort=False):
        if len(group) >= FEWEST:
            found[problem] = {
                name: spearmanr(sign * group[name].astype(float), group.kl_fitc, nan_policy="omit").statistic
                for name, sign in PREDICTORS.items()
            } | {"fits": len(group)}
    return pd.DataFrame(found).T


def mean_correlations(found: pd.DataFrame) -> pd.DataFrame:
    """Over problems, with their standard errors, by predictor."""
    each = found[list(PREDICTORS)]
    return pd.DataFrame({"mean": each.mean(), "error": each.std(ddof=1) / np.sqrt(len(each))})
