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
# # Images by their patches
#
# Small images of a horizontal or a vertical bar, somewhere, in noise. A kernel of whole images knows a bar only where it
# has been; one of patches knows it wherever it is. The same models take photographs and digits, see docs/images.md.

# %%
# %matplotlib inline
import jax
import matplotlib.pyplot as plt
import numpy as np

from ppl_dgp import Guide, PowerEP, convolutional_gp, deep_convolutional_gp, fit_svi, sparse_gp_classification

key = jax.random.key(0)


def bars(count, seed):
    random = np.random.default_rng(seed)
    images, labels = 0.2 * random.normal(size=(count, 10, 10)), random.integers(0, 2, count)
    for image, label in zip(images, labels, strict=False):
        i, j = random.integers(0, 8, 2)
        image[(i + 1, slice(j, j + 3)) if label else (slice(i, i + 3), j + 1)] += 1.0
    return images.reshape(count, -1).astype(np.float32), labels[:, None]


(x, y), (new, truth) = bars(150, 0), bars(500, 1)
figure, panels = plt.subplots(1, 6, figsize=(9, 1.8), layout="constrained")
for panel, image, label in zip(panels, x, y, strict=False):
    panel.imshow(image.reshape(10, 10), cmap="gray")
    panel.set(title="horizontal" if label else "vertical", xticks=[], yticks=[])

# %% [markdown]
# ## Three models
#
# `convolutional_gp` adds up the answers to all patches; `deep_convolutional_gp` has a layer before it, whose values are
# images again: at each place the answer to the patch around it. Guide and objective are the usual ones.

# %%
models = {
    "whole images": sparse_gp_classification(2, 60),
    "patches": convolutional_gp((10, 10), (3, 3), 2, 16, weighted=False),
    "layers of patches": deep_convolutional_gp((10, 10), (2,), (3, 3), (1, 1), 2, 16, weighted=False),
}
fits = {
    name: fit_svi(key, model, Guide(model), PowerEP(0.0), x, y, steps=1200, learning_rate=0.03)
    for name, model in models.items()
}
for name, fit in fits.items():
    found = fit.predict(key, new, truth)
    right = (np.asarray(found.mean[:, 0]) > 0.5) == truth[:, 0]
    print(f"{name:18} accuracy {right.mean():.3f}, log density {np.mean(found.log_density):.3f}")

# %% [markdown]
# ## What was learnt
#
# The inducing inputs are patches. Beside each stands what the model takes an image for that has this patch in its
# middle, and nothing else: the probability of a horizontal bar.

# %%
fit = fits["patches"]
patches = np.asarray(fit.params["gp/inducing"]).reshape(-1, 3, 3)
alone = np.zeros((len(patches), 10, 10), np.float32)
alone[:, 4:7, 4:7] = patches
chances = np.asarray(fit.predict(key, alone.reshape(len(alone), -1)).mean[:, 0])
figure, panels = plt.subplots(2, 8, figsize=(9, 2.8), layout="constrained")
for panel, at in zip(panels.flat, np.argsort(chances), strict=False):
    panel.imshow(patches[at], cmap="gray", vmin=-0.5, vmax=1.2)
    panel.set(xticks=[], yticks=[], title=f"{chances[at]:.2f}")

# %% [markdown]
# ## Through the layers
#
# An image, and the two channels of the hidden layer: filters of it, changed where that told the classes apart.

# %%
deep = fits["layers of patches"]
hidden = next(iter(deep.layer_maps(x[:6])))
figure, panels = plt.subplots(3, 6, figsize=(9, 4.4), layout="constrained")
for column in range(6):
    channels = np.asarray(hidden.mean).reshape(6, 8, 8, 2)[column]  # a row for each patch
    panels[0, column].imshow(x[column].reshape(10, 10), cmap="gray")
    for channel in range(2):
        panels[1 + channel, column].imshow(channels[..., channel], cmap="gray")
for panel in panels.flat:
    panel.set(xticks=[], yticks=[])
