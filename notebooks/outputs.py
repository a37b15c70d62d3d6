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
# # Several outputs, terms that add up, slopes and counts
#
# What is measured need not be one function at points. Here are functions that add up, slopes, counts in bins, and
# outputs that have functions in common: each a model of a few lines in the zoo, under the same guides and objectives.

# %%
# %matplotlib inline
import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro

numpyro.enable_x64()

from ppl_dgp import (
    Guide,
    PowerEP,
    additive_gp,
    binned_counts_gp,
    convolved_gp,
    fit_svi,
    gp_with_derivatives,
    multi_output_gp,
)
from ppl_dgp.diagnostics import plot_fit, plot_layers

key, random = jax.random.key(0), np.random.default_rng(0)


def fitted(model, x, y, steps=1500):
    return fit_svi(key, model, Guide(model), PowerEP(0.0), x, y, steps=steps, learning_rate=0.03)


# %% [markdown]
# ## Which input explains what
#
# Of three inputs the first acts by a wave, the second by a bend, the third not at all. `additive_gp` has a function of
# each; what it says of them can be drawn, with bands, and put in numbers: the variance of each term over the rows.

# %%
x = random.uniform(-2.0, 2.0, (200, 3))
y = np.sin(2.0 * x[:, :1]) + 0.5 * np.abs(x[:, 1:2]) + 0.1 * random.normal(size=(200, 1))
y = y - y.mean()
additive = fitted(additive_gp(num_inducing=15), x, y)
print({name: round(float(share[0]), 3) for name, share in additive.explained(x).items()})
plot_layers(additive.layer_maps(x))

# %% [markdown]
# ## Slopes say as much as values
#
# Four values and four slopes of a wave. The last column of x says what a row is: 0 a value, 1 the slope along the first
# input. Asked with 0 behind the input, the model gives the function.

# %%
places = np.linspace(0.3, 5.7, 4)
values = np.column_stack([places, np.zeros(4)])
slopes = np.column_stack([places, np.ones(4)])
x = np.concatenate([values, slopes])
y = np.concatenate([np.sin(places), np.cos(places)])[:, None] + 0.02 * random.normal(size=(8, 1))
both = fitted(gp_with_derivatives(8), x, y)
alone = fitted(gp_with_derivatives(4), values, y[:4])
line = np.linspace(0.0, 6.0, 120)
asked = np.column_stack([line, np.zeros(120)])
figure, panels = plt.subplots(1, 2, figsize=(9, 3), sharey=True, layout="constrained")
for panel, fit, title in zip(panels, (alone, both), ("values alone", "values and slopes"), strict=False):
    plot_fit(fit.predict(key, asked), line, places, y[:4], axes=panel)
    panel.plot(line, np.sin(line), "k:")
    panel.set_title(title)

# %% [markdown]
# ## Counts in bins of any width
#
# Events at a rate that rises and falls, counted over bins of different widths. A row of x is a bin, from its lower
# corner to its upper one; the rate of narrow bins is predicted.

# %%
edges = np.sort(np.concatenate([[0.0, 10.0], random.uniform(0.0, 10.0, 24)]))
rate = lambda t: np.exp(1.5 + np.sin(t))
bins = np.column_stack([edges[:-1], edges[1:]])
volumes = np.array([np.trapezoid(rate(np.linspace(*each, 50)), np.linspace(*each, 50)) for each in bins])
counts = random.poisson(volumes)[:, None].astype(float)
cox = fitted(binned_counts_gp(12), bins, counts)
narrow = np.linspace(0.0, 10.0, 201)
fine = np.column_stack([narrow[:-1], narrow[1:]])
predicted = cox.predict(key, fine)
figure, panel = plt.subplots(figsize=(7, 3), layout="constrained")
panel.stairs(counts[:, 0] / np.diff(edges), edges, color="0.7", fill=True, label="counts by width")
panel.plot(fine.mean(1), rate(fine.mean(1)), "k:", label="rate")
panel.plot(fine.mean(1), predicted.mean[:, 0] / 0.05, label="predicted")
panel.set(xlabel="time", ylabel="events per unit", ylim=(0.0, 25.0))
panel.legend()
# %% [markdown]
# ## Outputs that have functions in common
#
# Three outputs are mixtures of one wave. The third was not seen after 5, and the others say what it does there: the
# missing entries are NaN. A function for each output knows nothing of them.

# %%
t = np.linspace(0.0, 10.0, 120)[:, None]
wave = np.sin(1.3 * t) + 0.5 * np.sin(2.9 * t)
truth = wave * np.array([1.0, -0.7, 1.5])
table = truth + 0.1 * random.normal(size=truth.shape)
table[t[:, 0] > 5.0, 2] = np.nan
together = fitted(multi_output_gp(3, 1, 30), t, table)
apart = fitted(multi_output_gp(3, 3, 30, weights=np.eye(3)), t, table)
figure, panels = plt.subplots(1, 2, figsize=(9, 3), sharey=True, layout="constrained")
for panel, fit, title in zip(panels, (together, apart), ("mixed", "one function each"), strict=False):
    plot_fit(fit.predict(key, t), t, t[:, 0], table, column=2, axes=panel)
    panel.plot(t, truth[:, 2], "k:")
    panel.set_title(title)

# %% [markdown]
# ## Outputs that smooth and delay
#
# The second sensor is slower: it has the average of what the first sees, a little later. `convolved_gp` finds both, and
# fills in what the fast one missed from the slow one.

# %%
kernel = np.exp(-0.5 * ((np.arange(-30, 31) * (t[1, 0] - t[0, 0]) - 0.3) / 0.5) ** 2)
slow = np.convolve(np.pad(wave[:, 0], 30, mode="edge"), kernel / kernel.sum(), mode="valid")
table = np.column_stack([wave[:, 0], slow]) + 0.05 * random.normal(size=(120, 2))
whole = table[:, 0].copy()
table[(t[:, 0] > 4.0) & (t[:, 0] < 6.0), 0] = np.nan
convolved = fitted(convolved_gp(2, 1, 40, delayed=True), t, table, steps=2500)
print(
    "delay of the second less that of the first:",
    np.round(np.diff(convolved.params["gp/delays"][:, 0, 0])[0], 2),
)
figure, panel = plt.subplots(figsize=(7, 3), layout="constrained")
plot_fit(convolved.predict(key, t), t, t[:, 0], table, axes=panel)
panel.plot(t, wave, "k:")
