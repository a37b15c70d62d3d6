# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A tour: declare, guide, fit, compare, inspect
#
# A deep Gaussian process is fitted to a step, a function that a stationary kernel cannot describe. Three choices are
# made, one line each: what is believed (the model), what is approximated and how (the guide), and which divergence is
# minimised (the objective).

# %%
# %matplotlib inline
from tempfile import TemporaryDirectory

import arviz as az
import jax
import jax.numpy as jnp
import numpyro

numpyro.enable_x64()

from ppl_dgp import Conditional, DoublyStochastic, Guide, MeanField, PowerEP, deep_gp, fit_svi
from ppl_dgp.data import Standardiser, load_table, split
from ppl_dgp.diagnostics import compare, load_arviz, plot_fit, plot_layers, save_arviz
from ppl_dgp.models import sparse_gp_regression

table = load_table("step")
train, test = split(table)
inputs, targets = Standardiser.fit(table.X[train]), Standardiser.fit(table.y[train])
x, y = inputs.transform(table.X[train]), targets.transform(table.y[train])
x_test, y_test = inputs.transform(table.X[test]), targets.transform(table.y[test])
key = jax.random.key(0)
x.shape, x_test.shape

# %% [markdown]
# ## Declare
#
# A model is a NumPyro program. This one is `deep_gp`, from the zoo, with one hidden layer of one unit, so that its
# layers can be drawn as lines. Each layer's inducing outputs are a site, `layer1/u`, and so are the hidden values
# `layer1/h`, one row per datum; their `infer` dictionary says which role they play.

# %%
model = deep_gp(widths=(1,), num_inducing=15)
sites = numpyro.handlers.trace(numpyro.handlers.seed(model, key)).get_trace(jnp.asarray(x), jnp.asarray(y))
{name: (site["value"].shape, site["infer"]) for name, site in sites.items() if site["type"] == "sample"}

# %% [markdown]
# ## Guide
#
# A guide is the model run again, with the conditionals of its latents replaced by a rule. `DoublyStochastic` keeps the
# model's own conditional of the hidden layer, `MeanField` takes a Gaussian per datum, `Conditional` mixes the two.

# %%
guide = Guide(model, hidden=DoublyStochastic())

# %% [markdown]
# ## Fit
#
# `PowerEP(alpha=0)` is the evidence lower bound (ELBO); α up to 1 moves towards expectation propagation.

# %%
fit = fit_svi(key, model, guide, PowerEP(alpha=0.0), x, y, steps=2000)
prediction = fit.predict(key, x_test, y_test, num_samples=1000, levels=(0.025, 0.975))
functions = fit.sample_functions(key, jnp.asarray(x_test), num_samples=5)
print(f"test log density {prediction.log_density.mean():.2f} nats per row, standardised")
plot_fit(prediction, x_test, x, y, samples=functions)

# %% [markdown]
# The first layer expands: it stretches the neighbourhood of the step, and stays nearly flat elsewhere. The second
# compresses: what is left of the first layer's uncertainty to either side of the step is squeezed into two plateaus.

# %%
plot_layers(fit.layer_maps(jnp.asarray(x)))

# %% [markdown]
# ## Compare
#
# Which approximation is to be trusted? The same rows and the same model under several guides, beside a sparse GP, each
# judged by the same measures. The ELBO bounds the evidence from below: the higher the nearer, within one model. k-hat
# says whether importance sampling could correct the guide: below 0.7 it could.

# %%
guides = {
    "sparse GP": (lambda: sparse_gp_regression(15), Guide),
    "mean-field": lambda model: Guide(model, hidden=MeanField()),
    "conditional": lambda model: Guide(model, hidden=Conditional()),
    "doubly-stochastic": lambda model: Guide(model, hidden=DoublyStochastic()),
}
comparison = compare(
    key, lambda: deep_gp((1,), 15), guides, x, y, x_test, y_test, steps=1000, target_scale=targets.scale
)
comparison.table.round(3)

# %%
comparison.figure()

# %% [markdown]
# ## Inspect in ArviZ
#
# A fit becomes ArviZ's own container, with named axes; it is written to netCDF and read back.

# %%
idata = fit.to_arviz(key, x, y)
with TemporaryDirectory() as folder:
    save_arviz(idata, f"{folder}/tour.nc")
    idata = load_arviz(f"{folder}/tour.nc")
idata["posterior"]["layer1.u"].dims, idata["log_likelihood"]["y"].sizes

# %%
az.summary(idata, var_names=["layer2.u"], kind="stats").head()

# %% [markdown]
# Each row's likelihood was averaged over the hidden layer, so that leave-one-out cross-validation needs no refitting.
# Rows of a large k would move the posterior too far for that, and their share is uncertain.

# %%
az.loo(idata)

# %% [markdown]
# Draws of y at the training rows, as NumPy or xarray would have them: the share of rows inside their 95 % interval.

# %%
draws = idata["posterior_predictive"]["y"]
low, high = draws.quantile([0.025, 0.975], ["chain", "draw"])
print(f"{float(((low <= y[:, 0]) & (y[:, 0] <= high)).mean()):.2f}")
