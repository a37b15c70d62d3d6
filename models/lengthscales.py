"""Where lengthscales begin: at √D, shorter for inputs along which the targets are seen to bend.

Rows in D dimensions, each of a spread of 1, are √D apart: with lengthscales of 1 none would know of another. But over
√D deviations a function is next to a plane. An input whose effect is all curvature, such as a bowl's, then has nothing
to say of the targets at the start, the bound gains by taking its lengthscale to infinity, where it stays, and its
effect is lost. Of few inputs √D is short enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Num

from ppl_dgp.likelihoods import Likelihood
from ppl_dgp.likelihoods.mixed import MixedLikelihood
from ppl_dgp.likelihoods.several import Multiclass
from ppl_dgp.numerics.host import on_host

#: inputs up to which all begin at √D
FEW = 4
#: where those begin along which targets bend, in their standard deviations, and the most that a sum of 1/ℓ² has by them
SHORT, MOST = 2.0, 2.0
#: the share of tables without a bend in which one is seen
LEVEL = 1e-3
#: groups into which an input's values are cut, and rows of one at least; rows that are looked at
GROUPS, GROUP_ROWS, MAX_ROWS = 10, 10, 20_000


@dataclass(frozen=True)
class ByTargets:
    """What gives lengthscales by inputs (N, D) and targets (N, P) once it is asked for.

    :param usual: √D, where they would begin without targets, which priors are told.
    :param classes: of each column, how many without an order, each of which is a target; 0 of numbers.
    """

    x: Float[Array, "N D"]
    y: Num[Array, "N P"]
    usual: float
    classes: tuple[int, ...]

    def __call__(self) -> Float[Array, " D"]:
        some = slice(None, None, -(-len(self.x) // MAX_ROWS))
        like = jnp.zeros(self.x.shape[1], jnp.result_type(float))
        targets = self.y[some].astype(float)
        if any(self.classes):
            columns = zip(targets.T, self.classes, strict=True)
            targets = jnp.concatenate([_indicators(y, count) for y, count in columns], 1)
        found: Array = on_host(lengthscales, like, self.x[some], targets)
        return found


def where_lengthscales_begin(
    x: Float[Array, "N D"], y: Num[Array, "N P"] | None, given: Likelihood | None = None
) -> ByTargets | float:
    """√D for each input, or what gives less for some by the targets, once it is asked for; x is standardised.

    :param given: the likelihood of the targets, if not Gaussian: of classes without an order each is a target.
    """
    usual: float = x.shape[1] ** 0.5
    if y is None or x.shape[1] <= FEW or len(y) != len(x):
        return usual
    parts = given.parts if isinstance(given, MixedLikelihood) else [given] * y.shape[1]
    return ByTargets(
        x, y, usual, tuple(each.num_classes if isinstance(each, Multiclass) else 0 for each in parts)
    )


def _indicators(y: Float[Array, " N"], classes: int) -> Float[Array, "N _"]:
    """Of labels, one column for each class; numbers as they are. NaN stays."""
    column = y[:, None]
    return jnp.where(jnp.isnan(column), jnp.nan, column == jnp.arange(classes)) if classes else column


def lengthscales(x: Float[np.ndarray, "N D"], y: Num[np.ndarray, "N P"]) -> Float[np.ndarray, " D"]:
    """The same of arrays."""
    usual = x.shape[1] ** 0.5
    x, y = x.astype(float), y.astype(float)
    # targets that are there in the same rows together
    patterns, which = np.unique(np.isfinite(y), axis=1, return_inverse=True)
    parts = [y[:, which.reshape(-1) == number] for number in range(patterns.shape[1])]
    each = [bent(x[seen], part[seen], y.shape[1]) for seen, part in zip(patterns.T, parts, strict=True)]
    bends = np.any(each, axis=0)
    short = max(SHORT, (bends.sum() / MOST) ** 0.5)
    found: Float[np.ndarray, " D"] = np.where(bends, np.minimum(short * x.std(0), usual), usual)
    return found


def bent(
    x: Float[np.ndarray, "N D"], y: Float[np.ndarray, "N P"], targets: int | None = None
) -> Bool[np.ndarray, " D"]:
    """Whether what a line along an input leaves of some target has other means in some groups of its values.

    An analysis of variance (Fisher's F) for each input and target, at a level that all of them share.

    :param targets: how many share the level, if y has some of them alone.
    """
    from scipy.special import fdtrc  # as k-means, what a model that begins elsewhere need not import

    count = min(GROUPS, len(x) // GROUP_ROWS)
    found = np.zeros(x.shape[1], bool)
    if count < 3:
        return found
    centred = y - y.mean(0)
    for column, values in enumerate(x.T):
        edges = np.unique(np.quantile(values, np.linspace(0.0, 1.0, count + 1)[1:-1]))
        group = np.searchsorted(edges, values, side="right")
        rows = np.bincount(group)
        if (rows > 0).sum() < 3:  # two values bend nothing
            continue
        line = values - values.mean()
        left = centred - np.outer(line, line @ centred / (line @ line))
        sums = np.stack([np.bincount(group, weights) for weights in left.T], 1)
        between = (np.square(sums) / np.maximum(rows, 1)[:, None]).sum(0)
        within = np.maximum(np.square(left).sum(0) - between, np.finfo(float).tiny)
        groups = int((rows > 0).sum())
        ratio = (between / (groups - 1)) / (within / (len(x) - groups))
        chance = fdtrc(groups - 1, len(x) - groups, ratio)
        found[column] = chance.min() < LEVEL / (x.shape[1] * (targets or y.shape[1]))
    return found
