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
# its chains agree, they are the posterior. On small data that is the truth to judge guides by. Here a deep GP of two
# layers sees a step of thirty noisy rows.

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
    Guide,
    PowerEP,
    compare,
    deep_gp,
    default_priors,
    fit_nuts,
    fit_sghmc,
    fit_svi,
    predict,
    to_arviz,
)

key, random = jax.random.key(0), np.random.default_rng(0)
x = np.sort(random.uniform(-2.0, 2.0, 30))[:, None]
y = np.sign(x) + 0.1 * random.normal(size=x.shape)
model = deep_gp((1,), num_inducing=8)

# %% [markdown]
# ## Guides and samplers in one table
#
# `compare` takes samplers as rows. NUTS starts at the guide whose importance-weighted bound is the highest, holds its
# hyperparameters, and draws inducing outputs and the hidden layer of every row. SGHMC draws inducing outputs and integrates
# hidden layers out.

# %%
table = compare(
    key,
    lambda: model,
    {
        "mean-field": "mean-field",
        "doubly stochastic": "doubly-stochastic",
        "NUTS": partial(fit_nuts, num_warmup=500, num_samples=500),
        "SGHMC": partial(fit_sghmc, num_warmup=3000, num_samples=100, thinning=20),
    },
    x,
    y,
    alphas=[1.0],
    steps=4000,
)
table.table[["fit", "elbo", "iw_bound", "khat", "loo", "seconds"]].round(2)

# %% [markdown]
# Both guides are judged by how near they come to what NUTS says between the steps and outside the data.

# %%
grid = np.linspace(-3.5, 3.5, 200)[:, None]
figure, panels = plt.subplots(1, 4, figsize=(12, 3), sharey=True, layout="constrained")
for panel, ((name, _), fit) in zip(panels, table.fits.items(), strict=True):
    told = predict(key, fit, grid, num_samples=400)
    mean, deviation = np.asarray(told.mean)[:, 0], np.sqrt(np.asarray(told.variance))[:, 0]
    panel.fill_between(grid[:, 0], mean - 2 * deviation, mean + 2 * deviation, alpha=0.25, lw=0)
    panel.plot(grid[:, 0], mean)
    panel.plot(x, y, "k.", ms=4)
    panel.set(title=name, xlabel="x")
panels[0].set_ylabel("y")
plt.show()

# %% [markdown]
# ## Hyperparameters with priors
#
# `lift` gives hyperparameters the priors that `default_priors` suggests. A variational fit of the model without priors is
# where chains start, and its deviations are where the metric does.

# %%
start = fit_svi(key, model, Guide(model), PowerEP(1.0), x, y, steps=3000)
lifted = lift(model, prior=default_priors(model, x, y))
chains = fit_nuts(key, lifted, x, y, start=start, num_warmup=700, num_samples=500)
print(chains.chains.divergences, "divergences; R-hat at most", round(max(chains.chains.r_hat.values()), 3))
posterior = to_arviz(key, chains, x, y)
names = ["layer1/lengthscale", "layer2/lengthscale", "likelihood/noise"]
az.summary(posterior, var_names=names, kind="stats")

# %% [markdown]
# Their posterior is wide, and what the variational fit holds is one point of it.

# %%
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
# Averaging over hyperparameters widens what is said outside the data, which no guide of functions alone can.

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
