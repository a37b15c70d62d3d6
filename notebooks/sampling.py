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
# # Beside the truth: NUTS, SGHMC and guides
#
# A guide is a family of distributions, and its best member may be far from the posterior. A sampler has no family: where
# its chains agree, they are the posterior. On small data that is the truth to judge guides by. Here a sparse GP sees
# thirty labels.

# %%
# %matplotlib inline
import logging
import warnings
from functools import partial

import arviz as az
import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
from numpyro.handlers import lift

numpyro.enable_x64()
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)

from ppl_dgp import (
    Collapsed,
    Diagonal,
    Guide,
    PowerEP,
    compare,
    default_priors,
    fit_nuts,
    fit_sghmc,
    fit_svi,
    predict,
    sparse_gp_classification,
    sparse_gp_regression,
    to_arviz,
)

key, random = jax.random.key(0), np.random.default_rng(0)
x = np.sort(random.uniform(-2.0, 2.0, 30))[:, None]
y = (np.sin(2.0 * x) + 0.5 * random.normal(size=x.shape) > 0).astype(float)
model = sparse_gp_classification(num_inducing=8)

# %% [markdown]
# ## Guides and samplers in one table
#
# `compare` takes samplers as rows. NUTS starts at the guide whose importance-weighted bound is the highest, holds its
# hyperparameters, and draws inducing outputs; of a deep GP the hidden layers of every row too. SGHMC starts there as well, and
# goes on learning hyperparameters while it warms up.

# %%
table = compare(
    key,
    lambda: model,
    {
        "diagonal": lambda model: Guide(model, inducing=Diagonal()),
        "full rank": Guide,
        "NUTS": partial(fit_nuts, num_warmup=500, num_samples=500),
        "SGHMC": partial(fit_sghmc, num_warmup=4000, num_samples=200, thinning=20),
    },
    x,
    y,
    alphas=[1.0],
    steps=3000,
)
shown = table.table.set_index("fit")[["elbo", "iw_bound", "khat", "loo", "seconds"]]
shown["R-hat"] = [max(fit.chains.r_hat.values()) if fit.chains else np.nan for fit in table.fits.values()]
shown.round(2)

# %% [markdown]
# What each says of a label, and how sure it is of f. All start from their own hyperparameters but NUTS, which has those
# of a guide, so that these two can be set beside each other.

# %%
grid = np.linspace(-3.5, 3.5, 200)[:, None]
figure, panels = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
for (name, _), fit in table.fits.items():
    told = predict(key, fit, grid, num_samples=1000)
    panels[0].plot(grid, told.mean, label=name)
    panels[1].plot(grid, np.sqrt(told.f_variance), label=name)
panels[0].plot(x, y, "k.", ms=4)
panels[0].set(xlabel="x", ylabel="probability of a 1")
panels[1].set(xlabel="x", ylabel="standard deviation of f")
panels[1].legend(frameon=False)
plt.show()

# %% [markdown]
# ## Hyperparameters with priors
#
# `lift` gives hyperparameters the priors that `default_priors` suggests. Of one layer under Gaussian noise `marginal=` integrates
# the inducing outputs out, so that chains move in three numbers. They start at a variational fit of the model without
# priors, and the metric starts at its deviations.

# %%
x = np.sort(random.uniform(-2.0, 2.0, 15))[:, None]
y = np.sin(2.0 * x) + 0.3 * random.normal(size=x.shape)
model = sparse_gp_regression(8)
start = fit_svi(key, model, Guide(model), PowerEP(1.0), x, y, steps=3000)
lifted = lift(model, prior=default_priors(model, x, y))
chains = fit_nuts(key, lifted, x, y, start=start, marginal=Collapsed.fitc(), num_warmup=500, num_samples=500)
print(chains.chains.divergences, "divergences; R-hat at most", round(max(chains.chains.r_hat.values()), 3))
az.summary(
    to_arviz(key, chains, x, y), var_names=["gp.lengthscale", "gp.variance", "likelihood.noise"], kind="stats"
)

# %% [markdown]
# Their posterior is wide, and what the variational fit holds is one point of it.

# %%
names = ["gp/lengthscale", "gp/variance", "likelihood/noise"]
figure, panels = plt.subplots(1, 3, figsize=(10, 2.8), layout="constrained")
for panel, name in zip(panels, names, strict=True):
    draws = np.log10(np.asarray(chains.params[f"{name}_draws"])).ravel()
    panel.hist(draws, 40, density=True, color="0.8")
    panel.axvline(float(np.log10(np.asarray(start.params[name])).ravel()[0]), color="C1")
    panel.set(xlabel=f"log₁₀ {name}", yticks=[])
panels[0].set_title("grey: NUTS; line: the variational fit", loc="left", fontsize=10)
plt.show()

# %% [markdown]
# ## What the two say
#
# A fit that holds hyperparameters is too sure where few rows are, and outside them.

# %%
figure, panel = plt.subplots(figsize=(7, 3.4), layout="constrained")
for label, fit, colour in (("variational fit", start, "C1"), ("NUTS, hyperparameters drawn", chains, "C0")):
    told = predict(key, fit, grid, num_samples=1000)
    mean, deviation = np.asarray(told.mean)[:, 0], np.sqrt(np.asarray(told.variance))[:, 0]
    panel.fill_between(grid[:, 0], mean - 2 * deviation, mean + 2 * deviation, alpha=0.2, lw=0, color=colour)
    panel.plot(grid[:, 0], mean, color=colour, label=label)
panel.plot(x, y, "k.", ms=5)
panel.set(xlabel="x", ylabel="y")
panel.legend(frameon=False, loc="upper left")
plt.show()
