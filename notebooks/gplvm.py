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
# # Tables with holes: GPLVM
#
# A GPLVM takes the rows of a table for functions of a few numbers that nobody has measured. Where these are found,
# missing entries follow from them, with an error bar. Here are images without a third of their pixels, and a table of
# genes in cells, which is synthetic, so that the truth is known.

# %%
# %matplotlib inline
import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
from scipy.stats import spearmanr
from sklearn.datasets import load_digits
from sklearn.impute import KNNImputer

numpyro.enable_x64()

from ppl_dgp import GPLVM, Collapsed, Guide, MeanField, Optimal, fit_lbfgs, gplvm
from ppl_dgp.diagnostics import plot_grid, plot_latents, plot_relevance

key, random = jax.random.key(0), np.random.default_rng(0)

# %% [markdown]
# ## Images
#
# Two hundred of scikit-learn's digits, eight by eight, a 0, 1 or 4. A missing pixel is NaN. `GPLVM` is a scikit-learn
# transformer, so nothing else is to be chosen; it goes on until it has converged, and says so.

# %%
images, digits = load_digits(return_X_y=True)
chosen = np.flatnonzero(np.isin(digits, [0, 1, 4]))[:200]
images, digits = images[chosen], digits[chosen]
lost = random.random(images.shape) < 1 / 3
seen = np.where(lost, np.nan, images)
found = GPLVM(latent=5, num_inducing=25, random_state=0).fit(seen)
print(
    f"converged: {found.converged_}, after {found.n_iter_} iterations; {found.gap_:.2g} nats are left to gain"
)

# %% [markdown]
# What stood in the holes is known here. A pixel is a number from 0 to 16, the error the root of its mean square. Of
# honest deviations two hold some 95 % of the pixels; one set of hyperparameters, held as if it were certain, makes them
# a little too small.

# %%
filled, deviation = found.impute(seen, return_std=True)
ways = {
    "the pixel's mean": np.where(lost, np.nanmean(seen, 0), seen),
    "nearest neighbours": KNNImputer().fit_transform(seen),
    "GPLVM": filled,
}
for name, image in ways.items():
    print(f"{name:20} error {np.sqrt(np.mean((image - images)[lost] ** 2)):.2f}")
varies = lost & (np.nanstd(seen, 0) > 0)
print(f"within two deviations: {np.mean(np.abs(filled - images)[varies] < 2 * deviation[varies]):.1%}")

# %%
figure, panels = plt.subplots(4, 9, figsize=(9, 4.2), layout="constrained")
holes = plt.get_cmap("gray").with_extremes(bad="tab:blue")
for column, row in enumerate(range(9)):
    each = {"seen": seen[row], "filled in": filled[row], "truth": images[row], "deviation": deviation[row]}
    for panel, (title, image) in zip(panels[:, column], each.items(), strict=True):
        panel.imshow(image.reshape(8, 8), cmap=holes, vmin=0.0, vmax=16.0 if title != "deviation" else 6.0)
        panel.set(xticks=[], yticks=[])
        if column == 0:
            panel.set_ylabel(title)

# %% [markdown]
# The rows lie in five dimensions, of which the two that matter most are drawn, with an ellipse for what is not known of
# each. Beside them, what the points of these two decode to: images that nobody has drawn, from one digit to the other.

# %%
first, second = np.argsort(-found.relevance_)[:2]
low, high = np.quantile(found.embedding_, [0.02, 0.98], axis=0)
points = np.zeros((9, 9, 5))
points[..., first] = np.linspace(low[first], high[first], 9)[:, None]
points[..., second] = np.linspace(low[second], high[second], 9)
decoded = found.inverse_transform(points.reshape(-1, 5)).reshape(9, 9, 64).clip(0, 16)
figure, panels = plt.subplots(1, 2, figsize=(10.5, 4.4), layout="constrained")
plot_latents(
    found.embedding_, found.embedding_std_, digits, relevance=found.relevance_, deviations=2.0, axes=panels[0]
)
plot_grid(decoded, (8, 8), names=(f"latent {first + 1}", f"latent {second + 1}"), axes=panels[1])
plt.show()

# %% [markdown]
# ## Genes in cells, synthetic
#
# Cells mature, and halfway they go one of two ways. Each of forty genes rises or falls at its own time, some of them on
# one way only. No real cells: 150 rows are made by the lines below. Three entries of ten are missing, and the order of
# the cells is lost.

# %%
age, way = random.random(150), random.integers(0, 2, 150)
when, steep = random.random(40), random.uniform(6.0, 14.0, 40)
height = random.normal(size=40) + np.sign(random.normal(size=40))
own = np.repeat([0, 1, 2], [20, 10, 10])  # of both ways, of the first, of the second
expression = height / (1 + np.exp(-steep * (age[:, None] - np.where(own, 0.5 + when / 2, when))))
expression = expression * ((own == 0) | (own - 1 == way[:, None])) + 0.15 * random.normal(size=(150, 40))
missing = random.random(expression.shape) < 0.3
table = np.where(missing, np.nan, expression)

# %% [markdown]
# The same model as a program, where each of its parts may be changed: `noise="per-column"` gives each gene a noise of
# its own, and four latents are offered, of which two are used. A program takes numbers as they are: columns are centred
# before.

# %%
model = gplvm(num_outputs=40, latent=4, num_inducing=25, noise="per-column", missing=True)
guide = Guide(model, hidden=MeanField(), inducing=Optimal())
centre = np.nanmean(table, 0)
fit = fit_lbfgs(key, model, None, table - centre, guide=guide, objective=Collapsed())
print(f"converged: {fit.converged}, after {fit.steps} iterations; {fit.gap:.2g} nats are left to gain")
plot_relevance(fit.relevance())

# %% [markdown]
# The cells lie on a fork. Nothing was said of their ways, nor of their age. Which end is the young one, and which side
# of the fork is which, no such table says: signs are turned by the truth.

# %%
cells = fit.infer_latents(key, None, table - centre)
along, across = cells.mean[:, np.argsort(-fit.relevance())[:2]].T
along, across = (
    along * np.sign(np.corrcoef(along, age)[0, 1]),
    across * np.sign(np.corrcoef(across, way)[0, 1]),
)
print(f"rank correlation of the first latent with age: {spearmanr(along, age).statistic:.3f}")
old = age > 0.6
print(
    f"of the cells older than 0.6 on the right side of the fork: {np.mean((across > 0) == way, where=old):.1%}"
)
named = np.where(age < 0.5, "before the fork", np.where(way == 0, "first way", "second way"))
plot_latents(cells.mean, cells.scale, named, relevance=fit.relevance(), deviations=2.0)

# %% [markdown]
# ## The table, put in order and filled
#
# Above, what there was to see. Below, the same table with its holes filled: cells before the fork by the first latent,
# then those of one way, then those of the other, as the latents have it. Genes are in the order in which they were
# made.

# %%
entries = fit.predict(key, None, latents=cells.sites).mean + centre
whole = np.where(missing, entries, table)
for name, guess in (("the gene's mean", np.broadcast_to(centre, table.shape)), ("GPLVM", entries)):
    print(f"{name:16} error {np.sqrt(np.mean((guess - expression)[missing] ** 2)):.3f}, of which noise 0.15")
part = np.where(along < 0.0, 0, np.where(across < 0.0, 1, 2))  # the picture above forks at 0
cell_order, gene_order = np.lexsort([along, part]), np.lexsort([when, own])
figure, panels = plt.subplots(2, 1, figsize=(9, 6), sharex=True, layout="constrained")
colours = plt.get_cmap("coolwarm").with_extremes(bad="white")
for panel, shown, title in (
    (panels[0], table[:, gene_order], "as measured; white is missing"),
    (panels[1], whole[cell_order][:, gene_order], "filled in, in the order that was found"),
):
    picture = panel.imshow(shown.T, cmap=colours, vmin=-1.5, vmax=1.5, aspect="auto", interpolation="nearest")
    panel.set(ylabel="gene", yticks=[])
    panel.set_title(title, loc="left", fontsize=10)
for edge in np.cumsum(np.bincount(part))[:2]:
    panels[1].axvline(edge - 0.5, color="k", lw=1)
panels[1].set_xlabel("cell")
figure.colorbar(picture, ax=panels, shrink=0.6, label="expression")
plt.show()
