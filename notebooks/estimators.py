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
# # GPs in a scikit-learn pipeline
#
# The estimators of `ppl_dgp` stand at the end of a pipeline, or inside one, and are cross-validated and searched over
# like scikit-learn's own. What they add is a deviation to every prediction, and word of whether they have converged.

# %%
# %matplotlib inline
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from ppl_dgp import GPLVM, AdditiveGPRegressor, SparseGPRegressor

random = np.random.default_rng(0)

# %% [markdown]
# ## A table of numbers and words
#
# Bicycles hired in an hour, synthetic: it depends on the hour in a wave, on the temperature in a bend, on the weather,
# which is a word, and not on the wind. A `ColumnTransformer` makes columns of the words; numbers need no scaling, for
# that is done inside.

# %%
count = 300
table = pd.DataFrame(
    {
        "hour": random.uniform(6.0, 22.0, count),
        "temperature": random.uniform(-5.0, 35.0, count),
        "wind": random.exponential(10.0, count),
        "weather": random.choice(["sun", "cloud", "rain"], count, p=[0.4, 0.4, 0.2]),
    }
)


def expected(table):
    daily = 50.0 * np.cos(2.0 * np.pi * (table["hour"] - 8.0) / 10.0)
    warmth = -0.2 * (table["temperature"] - 22.0) ** 2
    return 200.0 + daily + warmth + table["weather"].map({"sun": 20.0, "cloud": 0.0, "rain": -60.0})


bicycles = expected(table) + 15.0 * random.normal(size=count)
columns = ColumnTransformer(
    [("words", OneHotEncoder(drop=["sun"], sparse_output=False), ["weather"])],
    remainder="passthrough",
    verbose_feature_names_out=False,
)
train, test, y, y_test = train_test_split(table, bicycles, test_size=100, random_state=0)
model = make_pipeline(columns, SparseGPRegressor(num_inducing=60, random_state=0)).fit(train, y)
gp = model[-1]
print(f"converged: {gp.converged_}, after {gp.n_iter_} iterations; {gp.gap_:.2g} nats are left to gain")
print(f"R² of new rows {model.score(test, y_test):.3f}")

# %% [markdown]
# Each prediction has a deviation, noise included: some 95 % of new rows should lie within two of them.

# %%
mean, deviation = model.predict(test, return_std=True)
print(f"within two deviations: {np.mean(np.abs(y_test - mean) < 2.0 * deviation):.0%} of {len(test)} rows")
figure, panel = plt.subplots(figsize=(5, 3.6), layout="constrained")
panel.errorbar(mean, y_test, xerr=2.0 * deviation, fmt=".", color="C0", ecolor="0.8")
panel.plot([-50, 300], [-50, 300], "k:", lw=1)
panel.set(xlabel="predicted, ± 2 deviations", ylabel="bicycles")
plt.show()

# %% [markdown]
# ## Cross-validation and a search
#
# `cross_val_score` on five folds; a linear model for comparison. A fit that had not converged would warn.

# %%
folds = KFold(5, shuffle=True, random_state=0)
linear = make_pipeline(columns, StandardScaler(), RidgeCV())
for name, each in (("ridge", linear), ("sparse GP", model)):
    scores = cross_val_score(each, train, y, cv=folds)
    print(f"{name:10} R² {scores.mean():.3f} ± {scores.std() / np.sqrt(5):.3f}")

# %%
search = GridSearchCV(model, {"sparsegpregressor__kernel": ["rbf", "matern52"]}, cv=folds).fit(train, y)
found = pd.DataFrame(search.cv_results_)
found[["param_sparsegpregressor__kernel", "mean_test_score", "std_test_score"]].round(4)

# %% [markdown]
# ## A step before others: GPLVM
#
# The GPLVM is a transformer. Two latents of thirteen measures of a wine are found without its maker, and a linear
# classifier stands above them. New wines are placed by what was learnt.

# %%
wine, maker = load_wine(return_X_y=True)
seen, new, seen_maker, new_maker = train_test_split(wine, maker, test_size=50, random_state=0)
placed = make_pipeline(GPLVM(latent=2, num_inducing=20, random_state=0), LogisticRegression())
placed.fit(seen, seen_maker)
print(f"converged: {placed[0].converged_}, after {placed[0].n_iter_} iterations")
print(f"of {len(new)} new wines {placed.score(new, new_maker):.0%} are given to their maker")
figure, panel = plt.subplots(figsize=(5, 3.8), layout="constrained")
for number in range(3):
    panel.scatter(
        *placed[0].embedding_[seen_maker == number].T, s=14, color=f"C{number}", label=f"maker {number + 1}"
    )
panel.scatter(
    *placed[0].transform(new).T, s=30, c=[f"C{each}" for each in new_maker], marker="x", label="new"
)
panel.set(xlabel="latent 1", ylabel="latent 2")
panel.legend(frameon=False)
plt.show()

# %% [markdown]
# ## What it has learnt
#
# `AdditiveGPRegressor` in the same place has a term for each column, and says how much each explains. What a column
# does is drawn by moving it, at the medians of the others and in the sun; the dotted line is the truth.

# %%
additive = make_pipeline(columns, AdditiveGPRegressor(num_inducing=15, random_state=0)).fit(train, y)
print(f"converged: {additive[-1].converged_}; R² of new rows {additive.score(test, y_test):.3f}")
names = additive[0].get_feature_names_out()
figure, panels = plt.subplots(1, 4, figsize=(11, 3), layout="constrained")
panels[0].barh(names[::-1], additive[-1].explained_[::-1, 0], color="C0")
panels[0].set(xlabel="variance explained", title="terms")
typical = train[["hour", "temperature", "wind"]].median()
for panel, column in zip(panels[1:], typical.index, strict=True):
    grid = pd.DataFrame({name: np.full(80, value) for name, value in typical.items()} | {"weather": "sun"})
    grid[column] = np.linspace(train[column].min(), train[column].max(), 80)
    panel.plot(grid[column], additive.predict(grid), color="C0", lw=2)
    panel.plot(grid[column], expected(grid), "k:")
    panel.plot(train[column], np.full(len(train), 15.0), "|", color="0.6", ms=6)
    panel.set(xlabel=column, ylim=(0.0, 320.0))
panels[1].set_ylabel("bicycles")
plt.show()
