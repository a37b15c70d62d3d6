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
# # Networks: Bayesian, below a GP, above latents
#
# A `stack` puts layers of GPs and of networks above each other. The weights of a `BayesianLayer` are the inducing
# outputs of a function that is linear in them, so that guides, objectives and predictions are those of deep GPs.

# %%
# %matplotlib inline
import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro

numpyro.enable_x64()

from ppl_dgp import (
    BayesianLayer,
    DeterministicNetwork,
    GPLayer,
    Guide,
    LatentInputs,
    MeanField,
    PowerEP,
    fit_svi,
    sparse_gp_regression,
    stack,
)
from ppl_dgp.diagnostics import plot_fit

key, random = jax.random.key(0), np.random.default_rng(0)


def fitted(model, x, y, steps=1500, rate=0.02, **rules):
    return fit_svi(key, model, Guide(model, **rules), PowerEP(0.0), x, y, steps=steps, learning_rate=rate)


# %% [markdown]
# ## A network of uncertain weights
#
# Forty rows of a wave, and a network of five tanh units, each weight with a prior, beside a GP. Beyond the rows the GP
# goes back to its mean, and its bands open. Those of the network hardly do: a Gaussian q of weights says too little of
# what it has not seen (Foong et al. 2020).

# %%
x = np.linspace(-1.5, 1.5, 40)[:, None]
y = np.sin(3.0 * x) + 0.1 * random.normal(size=x.shape)
network = fitted(stack([BayesianLayer(5), BayesianLayer(activation="tanh")]), x, y)
gp = fitted(sparse_gp_regression(20), x, y)
line = np.linspace(-3.0, 3.0, 150)
figure, panels = plt.subplots(1, 2, figsize=(9, 3), sharey=True, layout="constrained")
for panel, fit, title in zip(panels, (gp, network), ("GP", "Bayesian network"), strict=True):
    plot_fit(fit.predict(key, line[:, None]), line, x[:, 0], y, axes=panel)
    panel.plot(line, np.sin(3.0 * line), "k:")
    panel.set(title=title, ylim=(-3.0, 3.0))

# %% [markdown]
# ## Noise that changes
#
# Under `likelihood="heteroscedastic"` the last layer has two outputs, the mean and the logarithm of the noise. Both are
# functions of the same units.

# %%
x = np.sort(random.uniform(-2.0, 2.0, 150))[:, None]
y = np.sin(1.5 * x) + (0.05 + 0.25 * (x + 2.0) ** 2 / 4.0) * random.normal(size=x.shape)
layers = [BayesianLayer(10), BayesianLayer(activation="tanh")]
figure, panels = plt.subplots(1, 2, figsize=(9, 3), sharey=True, layout="constrained")
for panel, likelihood in zip(panels, (None, "heteroscedastic"), strict=True):
    fit = fitted(stack(layers, likelihood=likelihood), x, y, steps=3000)
    plot_fit(fit.predict(key, line[:, None]), line, x[:, 0], y, axes=panel)
    panel.set(title="one noise" if likelihood is None else "noise as a function of x", ylim=(-4.0, 4.0))

# %% [markdown]
# ## Deep kernel learning over-fits
#
# A network of parameters below a GP is trained by the GP's evidence, which holds the GP back, but not the network: it
# bends its inputs until the GP follows the rows' noise. With Gaussian weights it does not; but of so few rows the bound
# is highest where those layers ignore them, a constant function and noise. Here the GP alone is the remedy.

# %%
x = np.sort(random.uniform(-2.0, 2.0, 30))[:, None]
y = np.sin(2.0 * x) + 0.4 * random.normal(size=x.shape)
below = {
    "GP": [],
    "network of parameters below it": [DeterministicNetwork((20, 20, 2))],
    "Bayesian layers below it": [BayesianLayer(10), BayesianLayer(2, "tanh")],
}
figure, panels = plt.subplots(1, 3, figsize=(12, 3), sharey=True, layout="constrained")
for panel, (title, blocks) in zip(panels, below.items(), strict=True):
    fit = fitted(stack([*blocks, GPLayer(num_inducing=30)]), x, y, steps=3000)
    plot_fit(fit.predict(key, line[:, None]), line, x[:, 0], y, axes=panel)
    panel.plot(line, np.sin(2.0 * line), "k:")
    panel.set(title=f"{title}\nnoise variance {fit.params['likelihood/noise']:.3g}", ylim=(-3.0, 3.0))

# %% [markdown]
# ## Latents below a network of uncertain weights
#
# Without inputs, latents z_n below layers of weights are a GPLVM whose functions are a Bayesian network, or an
# auto-encoder's decoder that knows what it does not know. Four measures of 150 flowers, in two dimensions; the species
# were not seen.

# %%
from sklearn.datasets import load_iris

flowers, species = load_iris(return_X_y=True)
table = (flowers - flowers.mean(0)) / flowers.std(0)
decoder = stack([LatentInputs(2), BayesianLayer(20), BayesianLayer()], num_outputs=4)
latents = fitted(decoder, None, table, steps=3000, latent=MeanField())
z = latents.params["layer1/z_loc"]
figure, panel = plt.subplots(figsize=(5, 4), layout="constrained")
for label, name in enumerate(("setosa", "versicolor", "virginica")):
    panel.scatter(*z[species == label].T, s=15, label=name)
panel.set(xlabel="z₁", ylabel="z₂")
panel.legend()
