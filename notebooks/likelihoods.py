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
# # Noise that is not Gaussian: outliers, counts, changing scatter
#
# What stands between a function and the data is a choice of its own. The model stays a sparse GP, the guide and the
# objective stay what they are; only `likelihood=` changes. Each choice is judged by rows that were kept back.

# %%
# %matplotlib inline
import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import pandas as pd

numpyro.enable_x64()

from ppl_dgp import (
    Guide,
    PowerEP,
    fit_lbfgs,
    plot_fit,
    scores,
    sparse_gp_regression,
    sparse_heteroscedastic_gp,
)

key, random = jax.random.key(0), np.random.default_rng(0)


def fitted(models, x, y):
    """Of one layer the bound has no draws, so that L-BFGS can go on until it has converged."""
    return {
        name: fit_lbfgs(key, model, x, y, guide=Guide(model), objective=PowerEP(0.0))
        for name, model in models.items()
    }


def tested(fits, x, y):
    """Predictions of rows that were kept back, and a table of what they are worth."""
    told = {
        name: fit.predict(key, x, y, levels=(0.025, 0.975), num_samples=2000) for name, fit in fits.items()
    }
    rows = [{"fit": name, "converged": fits[name].converged, **scores(told[name], y)} for name in fits]
    return told, pd.DataFrame(rows).set_index("fit").round(3)


# %% [markdown]
# ## Outliers
#
# A wave, and one row in eight that went wrong. Under Gaussian noise every row is to be explained: the noise grows until
# it can, and the function follows the outliers. Under Student's t a row far out pulls little.


# %%
def wave(rows):
    x = np.sort(random.uniform(-3.0, 3.0, (rows, 1)), 0)
    wrong = random.uniform(size=(rows, 1)) < 0.125
    y = np.sin(2.0 * x) + 0.1 * random.normal(size=x.shape) + wrong * random.normal(1.0, 1.5, size=x.shape)
    return x, y


x, y = wave(100)
x_test, y_test = wave(300)
robust = fitted({name: sparse_gp_regression(15, likelihood=name) for name in ("gaussian", "student-t")}, x, y)
told, table = tested(robust, x_test, y_test)
table

# %%
figure, panels = plt.subplots(1, 2, figsize=(9.5, 3.4), sharey=True, layout="constrained")
for panel, name in zip(panels, told, strict=True):
    plot_fit(told[name], x_test, x, y, axes=panel)
    panel.plot(x_test, np.sin(2.0 * x_test), "k:")
    error = np.sqrt(np.square(told[name].mean - np.sin(2.0 * x_test)).mean())
    panel.set_title(f"{name}: {error:.2f} from the wave")

# %% [markdown]
# Squared errors are those of the outliers, whatever is fitted; densities tell the two apart. The scale of the t is near
# that of the good rows, 0.1, and its degrees of freedom say how heavy the tails are.

# %%
robust["student-t"].summary()

# %% [markdown]
# ## Counts
#
# Events a day, that come in waves, with more scatter than a Poisson has: some days are simply busier. A negative
# binomial has a number for that, its concentration (3 here). Gaussian noise expects less than nothing on quiet days.


# %%
def days(rows):
    x = np.sort(random.uniform(0.0, 4.0, (rows, 1)), 0)
    rate = np.exp(1.0 + np.sin(2.0 * x)) * random.gamma(3.0, 1.0 / 3.0, size=x.shape)
    return x, random.poisson(rate)


x, y = days(150)
x_test, y_test = days(300)
names = "gaussian", "poisson", "negative-binomial"
counts = fitted({name: sparse_gp_regression(12, likelihood=name) for name in names}, x, y)
told, table = tested(counts, x_test, y_test)
table

# %%
figure, panels = plt.subplots(1, 3, figsize=(12, 3.4), sharey=True, layout="constrained")
for panel, name in zip(panels, told, strict=True):
    plot_fit(told[name], x_test, x, y, axes=panel)
    panel.plot(x_test, np.exp(1.0 + np.sin(2.0 * x_test)), "k:")
    panel.set_title(name)
print("concentration", counts["negative-binomial"].params["likelihood/concentration"].round(1))

# %% [markdown]
# ## Scatter that changes
#
# Noise may be a function too. `sparse_heteroscedastic_gp` has two: f for the mean, g for the logarithm of the variance.


# %%
def deviation(x):
    return 0.05 + 0.35 / (1.0 + np.exp(-4.0 * x))


def fan(rows):
    x = np.sort(random.uniform(-2.0, 2.0, (rows, 1)), 0)
    return x, np.sin(2.0 * x) + deviation(x) * random.normal(size=x.shape)


x, y = fan(200)
x_test, y_test = fan(300)
models = {"one noise": sparse_gp_regression(15), "noise by x": sparse_heteroscedastic_gp(15)}
scatter = fitted(models, x, y)
told, table = tested(scatter, x_test, y_test)
table

# %%
figure, panels = plt.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
for panel, colour, name in zip(panels[:2], ("C1", "C0"), told, strict=True):
    plot_fit(told[name], x_test, x, y, axes=panel)
    panel.set(title=name, ylim=(-2.4, 2.4))
    noise = np.sqrt(told[name].variance - told[name].f_variance[:, :1])
    panels[2].plot(x_test, noise, colour, label=name)
panels[2].plot(x_test, deviation(x_test), "k:", label="truth")
panels[2].set(title="deviation of the noise", xlabel="x", ylim=(0.0, 0.6))
panels[2].legend(frameon=False)
plt.show()
