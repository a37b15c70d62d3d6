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
# # Classes, and whether their probabilities are to be believed
#
# A classifier that says 90 % should be right nine times in ten. Here are two classes that overlap, and three of which
# some labels are wrong: what a GP says of them, and how that is checked.

# %%
# %matplotlib inline
import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import pandas as pd
from sklearn.datasets import load_iris, make_moons
from sklearn.neural_network import MLPClassifier

numpyro.enable_x64()

from ppl_dgp import (
    RBF,
    Guide,
    PowerEP,
    class_scores,
    confusion_counts,
    fit_lbfgs,
    plot_confusion,
    plot_reliability,
    sparse_gp_classification,
)

key, random = jax.random.key(0), np.random.default_rng(0)


def fitted(model, x, y):
    """Of one layer the bound has no draws, so that L-BFGS can go on until it has converged."""
    return fit_lbfgs(key, model, x, y, guide=Guide(model), objective=PowerEP(0.0))


# %% [markdown]
# ## Two classes
#
# Two moons that overlap. A fit that has converged is at an optimum, and there may be others: the GP is begun at a long
# lengthscale and at a short one, and ends at the same bound. Beside it stands a neural network, trained as scikit-learn
# trains it. `class_scores` and `plot_reliability` take a column of probabilities for each class, whoever made them.

# %%
x, y = make_moons(200, noise=0.25, random_state=0)
x_test, y_test = make_moons(2000, noise=0.25, random_state=1)
begun = {
    lengthscale: fitted(sparse_gp_classification(2, 25, kernel=RBF(1.0, lengthscale)), x, y)
    for lengthscale in (1.5, 0.5)
}
for lengthscale, fit in begun.items():
    print(f"begun at lengthscale {lengthscale}: converged {fit.converged}, bound {-fit.losses[0, -1]:.1f}")
moons = max(begun.values(), key=lambda fit: -fit.losses[0, -1])

# %%
network = MLPClassifier((100, 100), alpha=0.0, max_iter=3000, random_state=0).fit(x, y)
print("the network converged:", network.n_iter_ < network.max_iter)
one = moons.predict(key, x_test).mean[:, 0]
said = {"GP": np.column_stack([1.0 - one, one]), "network": network.predict_proba(x_test)}
pd.DataFrame({name: class_scores(p, y_test) for name, p in said.items()}).T.round(3)

# %% [markdown]
# What lies above the diagonal is too modest, what lies below it too sure; the bars are where chance alone would leave a
# calibrated one.

# %%
figure, panels = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
for panel, (name, p) in zip(panels, said.items(), strict=True):
    plot_reliability(p, y_test, axes=panel)
    panel.set_title(name)

# %% [markdown]
# Where no data are, nothing is known: far away the GP comes back to one half, the network does not.

# %%
side = np.linspace(-4.0, 5.0, 80)
grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
maps = {"GP": moons.predict(key, grid).mean[:, 0], "network": network.predict_proba(grid)[:, 1]}
figure, panels = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
for panel, (name, p) in zip(panels, maps.items(), strict=True):
    shades = panel.pcolormesh(side, side, p.reshape(80, 80), cmap="RdBu_r", vmin=0.0, vmax=1.0)
    panel.scatter(*x.T, c=y, cmap="RdBu_r", s=12, edgecolor="white", linewidth=0.4)
    panel.set(title=name, aspect="equal")
figure.colorbar(shades, ax=panels, label="probability of a 1")
plt.show()

# %% [markdown]
# ## Three classes, some labels wrong
#
# The irises, by the length and the width of their petals; one label in eight is made another one. `softmax` can only be
# less sure of everything. `robust-max` has a number for wrong labels: with probability ε, which is learnt, a label is
# one of the others, wherever it is. Labels of the rows that are kept back are right, and both are more modest than
# these deserve: they speak of labels as they were seen.

# %%
flowers = load_iris()
petals = (flowers.data[:, 2:] - flowers.data[:, 2:].mean(0)) / flowers.data[:, 2:].std(0)
rows = random.permutation(150)
train, test = rows[:100], rows[100:]
labels = flowers.target.copy()
wrong = train[random.uniform(size=100) < 0.125]
labels[wrong] = (labels[wrong] + random.integers(1, 3, len(wrong))) % 3
irises = {
    name: fitted(sparse_gp_classification(3, num_inducing=12, likelihood=name), petals[train], labels[train])
    for name in ("softmax", "robust-max")
}
told = {name: fit.predict(key, petals[test], flowers.target[test]) for name, fit in irises.items()}
table = pd.DataFrame(
    {name: class_scores(each.mean, flowers.target[test], each.log_density) for name, each in told.items()}
).T
table["converged"] = [fit.converged for fit in irises.values()]
print(
    f"{len(wrong)} of 100 labels are wrong; epsilon is {irises['robust-max'].params['likelihood/epsilon']:.2f}"
)
table.round(3)

# %%
figure, panels = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
for panel, (name, each) in zip(panels, told.items(), strict=True):
    plot_confusion(confusion_counts(each.mean, flowers.target[test]), flowers.target_names, axes=panel)
    panel.set_title(name)
plt.show()

# %% [markdown]
# The probabilities of the three as the shares of three colours. Circled are rows whose labels are wrong.

# %%
side = np.linspace(-3.0, 3.0, 100)
grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
colours = np.array([[0.0, 0.45, 0.7], [0.84, 0.37, 0.0], [0.0, 0.62, 0.45]])
figure, panels = plt.subplots(1, 2, figsize=(10, 4.6), sharey=True, layout="constrained")
for panel, (name, fit) in zip(panels, irises.items(), strict=True):
    p = fit.predict(key, grid).mean
    panel.imshow(
        (p @ colours).reshape(100, 100, 3).clip(0, 1), origin="lower", extent=(-3, 3, -3, 3), alpha=0.75
    )
    panel.scatter(*petals[train].T, c=colours[labels[train]], s=22, edgecolor="white", linewidth=0.6)
    panel.scatter(*petals[wrong].T, s=70, facecolor="none", edgecolor="black")
    panel.set(title=name, xlabel="length of petals", aspect="equal")
panels[0].set_ylabel("width of petals")
plt.show()
