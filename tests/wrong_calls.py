"""Calls that cannot be right, as a user makes them: prints the error of each, by name, as JSON.

Tests check shapes and types at every call, and would answer before the functions themselves do.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import Predictive
from numpyro.infer.autoguide import AutoNormal

from ppl_dgp.diagnostics import to_arviz
from ppl_dgp.fit import Posterior, fit_svi
from ppl_dgp.guides import Guide, MeanField
from ppl_dgp.models import deep_gp, gpssm, stack
from ppl_dgp.models.function_blocks import GPLayer
from ppl_dgp.objectives import PowerEP
from ppl_dgp.prediction.forecast import smooth
from ppl_dgp.prediction.predict import predict

KEY = jax.random.key(0)
X = np.linspace(-1.0, 1.0, 12)[:, None]
Y = np.sin(4.0 * X)
MODEL, SERIES = deep_gp((1,), 4), gpssm(1, num_sequences=2)
ROWS = Guide(MODEL, hidden=MeanField())
FIT = Posterior(MODEL, Guide(MODEL), {})


def trained(**changed):
    """A fit by two steps, some of its arguments changed."""
    usual = {
        "key": KEY,
        "model": MODEL,
        "guide": Guide(MODEL),
        "objective": PowerEP(),
        "x": X,
        "y": Y,
        "steps": 2,
    }
    return fit_svi(**{**usual, **changed})


def at_new_rows(guide):
    """NumPyro's Predictive at other rows than those of training."""
    params = trained(guide=ROWS).params
    return Predictive(MODEL, guide=guide, params=params, num_samples=2)(KEY, jnp.asarray(X[:5]))["y"].shape


def own_model(x, y=None):
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(numpyro.sample("f", dist.Normal(0, 1)), 1), obs=y)


CALLS = {
    "objective": lambda: trained(objective=PowerEP),
    "no objective": lambda: trained(objective=3),
    "model": lambda: trained(model=deep_gp),
    "guide": lambda: Guide(deep_gp),
    "guide class": lambda: trained(guide=AutoNormal),
    "widths": lambda: deep_gp(2),
    "others": lambda: Guide(MODEL, others=AutoNormal(MODEL)),
    "rule": lambda: Guide(MODEL, hidden="meanfield"),
    "rule class": lambda: Guide(MODEL, hidden=MeanField),
    "seed": lambda: trained(key=7),
    "seed of a verb": lambda: predict(7, FIT, X),
    "another model": lambda: trained(guide=Guide(deep_gp((1,), 5))),
    "a model of other blocks": lambda: trained(
        guide=Guide(stack([GPLayer(1, num_inducing=4), GPLayer(num_inducing=4)]))
    ),
    "swapped": lambda: to_arviz(FIT, KEY, X, Y),
    "data first": lambda: predict(KEY, X, FIT),
    "a dictionary": lambda: smooth(KEY, {}, None, Y),
    "minibatches": lambda: trained(model=own_model, guide=own_model, batch_size=4),
    "sequences": lambda: trained(model=SERIES, guide=Guide(SERIES), x=None),
    "predictive": lambda: at_new_rows(ROWS),
    "predictive of the model": lambda: at_new_rows(ROWS.with_model_hidden()),
}

found = {}
for name, call in CALLS.items():
    try:
        found[name] = "returned", str(call())
    except Exception as error:
        found[name] = type(error).__name__, str(error)
print(json.dumps(found))
