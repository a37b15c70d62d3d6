"""Restarts of a latent variable model brought into one frame, so that they can be compared: orthogonal Procrustes.

A GPLVM's x_n has the prior N(0, I), which knows no directions: restarts find the same picture turned, mirrored or with
its axes permuted. How much of that is a symmetry depends on the kernel. Under a linear kernel, or an RBF with one
lengthscale, every rotation is one: the chain and its inducing inputs turned together are the same model. Under a kernel
with a lengthscale per dimension (ARD) only permutations and changes of sign are; a chain that needs another rotation is
another optimum, which this lays beside the others without making it equal. Aligned draws tell whether restarts found
the same arrangement of the rows (by eye, by r-hat); they are not to be put back into the model, whose lengthscales and
relevances belong to the dimensions as the chain found them.

Not resolved: scale (which the prior fixes for a dimension in use), shifts, folds and rows that moved alone: r-hat then
shows them. Among dimensions that the fit has switched off, whose means are zero, the turn is arbitrary. Q (Q − 1)/2
angles are fitted to N rows: few rows in many dimensions seem to agree more than they do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import orthogonal_procrustes


def aligned(draws: ArrayLike, reference: int | ArrayLike = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draws of latents with every chain turned by one rotation or reflection towards the reference.

    Chain c becomes ``draws[c] @ transforms[c]``, where the orthogonal R minimises ‖X R − X_ref‖ over the chain's mean
    latents, each centred over the rows. The turn is about the origin, as the prior's symmetry is: a chain that is
    shifted stays so.

    :param draws: (C, S, N, Q), one chain per restart.
    :param reference: the chain whose mean the others are turned to, or (N, Q) latents.
    :return: the draws (C, S, N, Q) and the transforms (C, Q, Q); that of a reference chain is the identity.
    :raises ValueError: if the draws are not finite numbers of that shape, or there is no such reference.
    """
    found = np.asarray(draws)
    if found.ndim != 4 or 0 in found.shape:
        raise ValueError(
            f"draws: found shape {found.shape}, expected (C, S, N, Q), none of them 0; one chain is draws[None]"
        )
    means = found.mean(1)
    if not np.isfinite(means).all():
        chain = int(np.argmin(np.isfinite(means).all((1, 2))))
        raise ValueError(
            f"draws: found values that are not finite in chain {chain}, expected numbers; leave it out"
        )
    target = _target(means, reference)
    turns = [orthogonal_procrustes(_centred(mean), _centred(target))[0] for mean in means]
    if isinstance(reference, int):
        # a dimension that is switched off has no direction of its own, and the reference is to stay as it is
        turns[reference] = np.eye(found.shape[3])
    transforms = np.stack(turns)
    return np.einsum("csnq,cqr->csnr", found, transforms), transforms


def _target(means: np.ndarray, reference: int | ArrayLike) -> np.ndarray:
    if isinstance(reference, int):
        if reference not in range(len(means)):
            raise ValueError(
                f"reference: found {reference}, expected a chain from 0 to {len(means) - 1}; restarts count from 0"
            )
        chosen: np.ndarray = means[reference]
        return chosen
    target = np.asarray(reference)
    if target.shape != means.shape[1:]:
        raise ValueError(
            f"reference: found shape {target.shape}, expected {means.shape[1:]}; give latents of the same rows"
        )
    return target


def _centred(latents: np.ndarray) -> np.ndarray:
    result: np.ndarray = latents - latents.mean(0)
    return result
