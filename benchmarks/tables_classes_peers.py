"""The peers of ``benchmarks.tables_classes``, in the environment that `make bench-peers` builds.

    .venv-peers/bin/python -m benchmarks.tables_classes_peers METHOD SPLIT.npz LEFT.npz SEED BUDGET

logistic: scikit-learn's, its penalty chosen by log loss on five folds. svm: a support vector machine with an RBF
kernel, penalty and width chosen by accuracy on five folds, and Platt's scaling on five others (Platt 1999). boosting:
five LightGBM models, each stopped by the log loss of its own fifth of the rows, their probabilities averaged; the
least rows of a leaf chosen by those fifths. Of more than 10 000 rows settings are chosen on 5 000, and boosting has the
rate that LightGBM itself has.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.tables_peers import LEAVES, PATIENCE, THREADED, TREES

#: of the support vector machine, as its makers' guide searches: a coarse grid of powers
PENALTIES, WIDTHS = 10.0 ** np.arange(-1, 4), 10.0 ** np.arange(-3, 1)
#: of its kernel's values that are kept
CACHE_MB = 2000
#: rows beyond which settings are chosen on fewer, how many, and rates of boosting up to there and beyond
LARGE, ENOUGH, RATES = 10_000, 5000, (0.02, 0.1)


def _to_choose_on(x: np.ndarray, y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows, or where they are many some of them, as many of each class."""
    if len(x) <= LARGE:
        return x, y
    from sklearn.model_selection import train_test_split

    some, _ = train_test_split(np.arange(len(x)), train_size=ENOUGH, stratify=y, random_state=seed)
    return x[some], y[some]


def _folds(y: np.ndarray, seed: int) -> Any:
    from sklearn.model_selection import StratifiedKFold

    # a class of fewer rows than folds is in as many of them
    return StratifiedKFold(5, shuffle=True, random_state=seed)


def logistic(x: np.ndarray, y: np.ndarray, at: np.ndarray, seed: int) -> np.ndarray:
    """Logistic regression with a ridge."""
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV

    model = LogisticRegressionCV(
        Cs=10, cv=_folds(y, seed), scoring="neg_log_loss", max_iter=5000, random_state=seed
    )
    some = _to_choose_on(x, y, seed)
    model.fit(*some)
    if len(some[0]) < len(x):
        # one penalty, for all classes together
        model = LogisticRegression(C=float(model.C_[0]), max_iter=5000, random_state=seed).fit(x, y)
    found: np.ndarray = model.predict_proba(at)
    return found


def svm(x: np.ndarray, y: np.ndarray, at: np.ndarray, seed: int) -> np.ndarray:
    """A support vector machine and Platt's scaling."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC

    widths = WIDTHS if x.shape[1] > 10 else 10.0 * WIDTHS
    search = GridSearchCV(SVC(), {"C": PENALTIES, "gamma": widths / x.shape[1]}, cv=_folds(y, seed))
    chosen = SVC(cache_size=CACHE_MB, **search.fit(*_to_choose_on(x, y, seed)).best_params_)
    model = CalibratedClassifierCV(chosen, method="sigmoid", cv=_folds(y, seed + 1), ensemble=False)
    found: np.ndarray = model.fit(x, y).predict_proba(at)
    return found


def boosting(x: np.ndarray, y: np.ndarray, at: np.ndarray, seed: int) -> np.ndarray:
    """Means of five models' probabilities."""
    from lightgbm import LGBMClassifier, early_stopping

    settings: dict[str, Any] = {"n_estimators": TREES, "learning_rate": RATES[len(x) > LARGE], "verbose": -1}
    settings["n_jobs"] = 1 if len(x) < THREADED else 2

    def ensemble(leaf: int, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
        loss, chances = 0.0, []
        for inside, out in _folds(y, seed).split(x, y):
            model = LGBMClassifier(random_state=seed, min_child_samples=leaf, **settings).fit(
                x[inside], y[inside], eval_set=[(x[out], y[out])],
                callbacks=[early_stopping(PATIENCE, verbose=False)],
            )  # fmt: skip
            said = np.asarray(model.predict_proba(x[out]))
            loss -= float(np.log(np.clip(said[np.arange(len(out)), y[out]], 1e-12, 1.0)).sum())
            chances.append(np.asarray(model.predict_proba(at)))
        return loss, np.mean(chances, 0)

    some = _to_choose_on(x, y, seed)
    tried = {leaf: ensemble(leaf, *some) for leaf in LEAVES}
    best = min(tried, key=lambda leaf: tried[leaf][0])
    return tried[best][1] if len(some[0]) == len(x) else ensemble(best, x, y)[1]


METHODS: dict[str, tuple[Callable[..., np.ndarray], tuple[str, ...]]] = {
    "logistic": (logistic, ("sklearn.linear_model",)),
    "svm": (svm, ("sklearn.svm",)),
    "boosting": (boosting, ("lightgbm",)),
}


def main() -> None:
    """One method on one split: probabilities in a file, the rest as a line of JSON."""
    name, place, left, seed = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    rows = np.load(place)
    method, libraries = METHODS[name]
    for library in libraries:
        import_module(library)
    began = time.perf_counter()
    probabilities = method(rows["x"], rows["y"], rows["x_test"], seed)
    seconds = time.perf_counter() - began
    np.savez(left, probabilities=probabilities)
    packages = [import_module(library.partition(".")[0]) for library in libraries]
    versions = " ".join(f"{package.__name__} {package.__version__}" for package in packages)
    print(json.dumps({"seconds": seconds, "versions": versions}), flush=True)


if __name__ == "__main__":
    main()
