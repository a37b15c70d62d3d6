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
# # Layers above latents, and views that share them
#
# A GPLVM has one layer between latents and table, and one table. Here is one with two layers, and one with two tables
# of the same things: which latents do both need, which only one, and what does one table tell of the other? All data
# are synthetic, so that the answers are known.

# %%
# %matplotlib inline
import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro

numpyro.enable_x64()

from ppl_dgp import Collapsed, Guide, MeanField, Optimal, deep_gplvm, fit_lbfgs, gplvm, shared_gplvm
from ppl_dgp.diagnostics import plot_latents, plot_views

key, random = jax.random.key(0), np.random.default_rng(0)


def fitted(model, y, **settings):
    guide = Guide(model, hidden=MeanField(), inducing=Optimal())
    fit = fit_lbfgs(key, model, None, y, guide=guide, objective=Collapsed(), **settings)
    print(
        f"{type(model).__name__}: converged {fit.converged} after {fit.steps} iterations, {fit.gap:.2g} nats to gain"
    )
    return fit


# %% [markdown]
# ## Two layers
#
# Eighty things in three groups, ten measures of each, which bend along a group and jump between groups. One layer, and
# two with two hidden units between; two latents each.

# %%
group = np.repeat([0, 1, 2], [30, 25, 25])
along = random.normal(size=80)
hidden = np.array([[-2.0, 0.0], [2.0, 0.5], [0.0, 2.5]])[group] + 0.4 * np.column_stack(
    [np.sin(along), along]
)
weights, shifts = random.normal(size=(2, 10)), random.uniform(0.0, 6.0, 10)
table = np.sin(hidden @ weights + shifts) + 0.1 * random.normal(size=(80, 10))
table = table - table.mean(0)
one = fitted(gplvm(10, latent=2, num_inducing=20), table)
two = fitted(deep_gplvm(10, latent=2, widths=(2,), num_inducing=20), table)
for name, fit in (("one layer", one), ("two layers", two)):
    noise = float(fit.params["likelihood/noise"])
    print(f"{name:10} bound {fit.energy(key, None, table):.1f} nats, noise {noise:.4f}, truth 0.01")

# %% [markdown]
# Both have converged, and the second layer gains nothing here: its bound is the lower one. Below, the latents of both,
# and the hidden units between the two layers, with an ellipse of one deviation around each row. The latents of the deep
# one have gone most of the way back to their prior; its hidden units, of which each row has a q of its own, have taken
# their place. So begin with one layer.

# %%
figure, panels = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
plot_latents(one.params["x_loc"], one.params["x_scale"], group, axes=panels[0])
plot_latents(two.params["x_loc"], two.params["x_scale"], group, axes=panels[1])
units = ("unit 1", "unit 2")
plot_latents(two.params["layer1/h_loc"], two.params["layer1/h_scale"], group, names=units, axes=panels[2])
for panel, title in zip(
    panels, ("one layer", "two layers: latents", "two layers: hidden units"), strict=True
):
    panel.set_title(title)
    panel.get_legend().remove()
plt.show()

# %% [markdown]
# ## Two views
#
# A lamp moves along a curve. A camera of eight by eight pixels sees where it is, and how wide its beam is; six light
# meters beside the curve feel where it is, and the warmth of the room. So the place is shared, the width is the
# camera's alone, and the warmth the meters'. `shared_gplvm` takes both tables side by side, and is offered four
# latents.

# %%
place, width, warmth = random.random(86), random.uniform(0.7, 1.5, 86), random.normal(size=86)
across, down = np.meshgrid(np.arange(8), np.arange(8))
centre = np.stack([0.8 + 5.4 * place, 3.5 + 2.2 * np.sin(2.0 * np.pi * place)])[..., None, None]
images = np.exp(-0.5 * ((across - centre[0]) ** 2 + (down - centre[1]) ** 2) / width[:, None, None] ** 2)
images = images.reshape(86, 64) + 0.05 * random.normal(size=(86, 64))
meters = np.exp(-0.5 * ((place[:, None] - np.linspace(0.0, 1.0, 6)) / 0.25) ** 2)
meters = meters + 0.2 * warmth[:, None] * np.array([1.0, -1.0, 0.5, 1.0, -0.5, 1.0])
meters = meters + 0.03 * random.normal(size=(86, 6))
images_units = images[:80].mean(0), images[:80].std()
meters_units = meters[:80].mean(0), meters[:80].std(0)
both = np.hstack([(images - images_units[0]) / images_units[1], (meters - meters_units[0]) / meters_units[1]])
shared = fitted(shared_gplvm([64, 6], latent=4, num_inducing=20, missing=True), both[:80])

# %% [markdown]
# A dimension with a short lengthscale in both views is shared, with one in a single view private to it. Of the four
# latents one is off, one is all but the camera's alone, and two are shared. The warmth has found no latent for itself:
# dimensions say what a view depends on, and need not be the causes that we would name.

# %%
uses = np.stack([shared.relevance("view1"), shared.relevance("view2")])
plot_views(uses, ("camera", "meters"), threshold=0.1)

# %% [markdown]
# ## From meters to images
#
# Six more rows, of which the model sees the meters alone: images are NaN. It says where the lamp is, and not how wide,
# for the meters do not know; so the deviation stands around the lamp.

# %%
half = np.where(np.arange(70) < 64, np.nan, both[80:])
found = shared.infer_latents(key, None, half)
guess = shared.predict(key, None, latents=found.sites, num_samples=500)
guessed = guess.mean[:, :64] * images_units[1] + images_units[0]
deviation = np.sqrt(guess.variance[:, :64]) * images_units[1]
for name, image in (
    ("the pixels' means", np.broadcast_to(images_units[0], (6, 64))),
    ("from the meters", guessed),
):
    print(f"{name:17} error {np.sqrt(np.mean((image - images[80:]) ** 2)):.3f}")
figure, panels = plt.subplots(3, 6, figsize=(9, 4.8), layout="constrained")
for column in range(6):
    each = {"truth": images[80 + column], "from meters": guessed[column], "deviation": deviation[column]}
    for panel, (title, image) in zip(panels[:, column], each.items(), strict=True):
        top = 1.0 if title != "deviation" else 0.3
        panel.imshow(image.reshape(8, 8), cmap="inferno", vmin=0.0, vmax=top, interpolation="nearest")
        panel.set(xticks=[], yticks=[])
        if column == 0:
            panel.set_ylabel(title)
plt.show()
