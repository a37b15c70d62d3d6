"""A fit's hyperparameters as a table."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from ppl_dgp.fit import Fit, Posterior
from ppl_dgp.fit.arguments import takes_fit

#: what is larger is left out: inducing inputs, weights, what a row has for itself
MOST_NUMBERS = 100
#: parameters of q are named after the latent they are of: u_loc, h_scale, x_net
OF_GUIDE = re.compile(r"(^|/)[a-z]\d?_")

#: parameters that are places, or that nothing trains: where latents of new rows begin
NO_HYPERPARAMETERS = ("inducing", "components")


@takes_fit
def summary(fit: Posterior) -> pd.DataFrame:
    """The hyperparameters in their constrained units, layer by layer: kernels, noises, means, likelihoods.

    Inducing inputs, the principal components at which latents begin and what q has for parameters are left out, and
    arrays of more than a hundred numbers.

    :param fit: of any model whose parameters are named ``layer/parameter``.
    :return: one column ``value``; the rows are by ``layer``, ``parameter`` and ``dimension``, which counts from 0 and
        is empty for scalars. The last row of a ``Fit`` is its gap, the nats that it has yet to gain, and
        ``attrs["convergence"]`` says whether it has converged.
    """
    rows = []
    for name, value in fit.params.items():
        layer, _, parameter = name.rpartition("/")
        numbers = np.asarray(value)
        if OF_GUIDE.search(name) or parameter in NO_HYPERPARAMETERS or numbers.size > MOST_NUMBERS:
            continue
        for place, number in np.ndenumerate(numbers):
            rows.append((layer, parameter, ", ".join(map(str, place)), float(number)))
    rows.sort(key=lambda row: row[:2])
    known = fit.convergence if isinstance(fit, Fit) else None
    if known is not None:
        rows.append(("training", "gap", "", known.gap))
    table = pd.DataFrame(rows, columns=["layer", "parameter", "dimension", "value"])
    table.attrs["convergence"] = "nothing is known" if known is None else known.shown
    return table.set_index(["layer", "parameter", "dimension"])
