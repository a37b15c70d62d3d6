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
# # Checking a fit
#
# Four questions, in this order: has it converged, is q near the posterior, do rows that were left out bear it out, and
# do data drawn from it look like the data? A later answer means nothing where an earlier one is no.

# %%
# %matplotlib inline
import warnings

import arviz as az
import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import pandas as pd

numpyro.enable_x64()

from ppl_dgp import (
    Diagonal,
    Guide,
    PowerEP,
    fit_lbfgs,
    fit_svi,
    plot_losses,
    sparse_gp_regression,
)

key, random = jax.random.key(0), np.random.default_rng(1)
x = np.sort(random.uniform(0.0, 4.0, (120, 1)), 0)
y = random.poisson(np.exp(1.0 + np.sin(2.0 * x)) * random.gamma(2.0, 0.5, size=x.shape))
poisson = sparse_gp_regression(10, likelihood="poisson")

# %% [markdown]
# ## 1. Has it converged?
#
# Counts in time, under a Poisson. Two hundred steps of Adam, and the curve seems to lie flat; `gap` says otherwise.

# %%
short = fit_svi(key, poisson, Guide(poisson), PowerEP(0.0), x, y, steps=200, learning_rate=0.02)
print("converged:", short.converged)
print(*short.advice, sep="\n")
plot_losses(short)

# %% [markdown]
# The bound of one layer has no draws, so L-BFGS can finish what Adam began.

# %%
fit = fit_lbfgs(key, poisson, x, y, guide=Guide(poisson), objective=PowerEP(0.0), start=short.params)
gained = float(short.losses[0, -1] - fit.losses[0, -1])
print(f"converged: {fit.converged}, {gained:.1f} nats gained, {fit.gap:.2g} to gain")

# %% [markdown]
# ## 2. Is q near the posterior?
#
# k-hat is the shape of the tail of the weights p(y, u) / q(u). Below 0.7 they can correct q: the weighted bound, and a
# LOO made of them, may be believed. A diagonal q(u) is another guide of the same model, at its own optimum.

# %%
narrow = Guide(poisson, inducing=Diagonal())
diagonal = fit_lbfgs(key, poisson, x, y, guide=narrow, objective=PowerEP(0.0))
comparison = fit.compare(key, x, y, {"diagonal": diagonal}, name="full rank")
comparison.table.set_index("fit")[["converged", "elbo", "iw_bound", "khat", "loo"]].round(2)

# %% [markdown]
# The diagonal q loses nearly a nat of the bound. Its weights, whose tail is heavier, give most of it back.
#
# ## 3. Does it hold for rows that were left out?
#
# ArviZ makes leave-one-out cross-validation of the export, without another fit. The rival is another model, a negative
# binomial, which allows for more scatter. The difference of the two is to be seen beside its standard error.

# %%
binomial = sparse_gp_regression(10, likelihood="negative-binomial")
rival = fit_lbfgs(key, binomial, x, y, guide=Guide(binomial), objective=PowerEP(0.0))
print("converged:", rival.converged)
exported = {
    name: each.to_arviz(key, x, y, num_draws=1000)
    for name, each in {"poisson": fit, "negative binomial": rival}.items()
}
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the rows of a large k, which are drawn below
    loo = {name: az.loo(each, pointwise=True) for name, each in exported.items()}
difference = np.asarray(loo["negative binomial"].loo_i - loo["poisson"].loo_i)
print(f"LOO higher by {difference.sum():.0f} ± {difference.std() * len(difference) ** 0.5:.0f} nats")

# %% [markdown]
# Row by row: there are counts that the Poisson does not expect. A row's k says how far the posterior would move without
# it; above the dotted line it would move too far for weights to follow, and all lie below.

# %%
figure, (above, below) = plt.subplots(2, 1, figsize=(8, 4.4), sharex=True, layout="constrained")
for (name, each), colour in zip(loo.items(), ("C1", "C0"), strict=True):
    above.plot(x[:, 0], each.loo_i, ".", color=colour, label=name)
    below.plot(x[:, 0], each.pareto_k, ".", color=colour)
below.axhline(loo["poisson"].good_k, color="grey", linestyle=":")
above.set_ylabel("log p(y | the others)")
below.set(xlabel="x", ylabel="k of the row")
above.legend(frameon=False)
plt.show()

# %% [markdown]
# ## 4. Do its data look like the data?
#
# The export has a thousand data sets that each fit could have made, at the rows of the data: how many counts are 0, how
# large is the largest, how much do they scatter? A fit that could have made the data has them among its own.

# %%
counts = y[:, 0]
made = {name: np.asarray(each["posterior_predictive"]["y"])[0] for name, each in exported.items()}
measures = {
    "share of zeros": lambda counts: (counts == 0).mean(-1),
    "largest count": lambda counts: counts.max(-1),
    "deviation of counts": lambda counts: counts.std(-1),
}
pd.DataFrame(
    {
        name: {measure: (of(each) >= of(counts)).mean() for measure, of in measures.items()}
        for name, each in made.items()
    }
).rename_axis("share of data sets at or above the data").round(3)

# %% [markdown]
# On the right each row's place among its draws, ties broken at random. Along the diagonal they are spread as they
# should be; the Poisson has too many rows below all of its draws, or above.

# %%
figure, panels = plt.subplots(1, 4, figsize=(14, 3.4), layout="constrained")
for (name, each), colour in zip(made.items(), ("C1", "C0"), strict=True):
    for panel, (measure, of) in zip(panels, measures.items(), strict=False):
        panel.hist(of(each), 14, density=True, color=colour, alpha=0.6, label=name)
        panel.axvline(of(counts), color="black")
        panel.set(xlabel=measure, yticks=[])
    place = (each < counts).mean(0) + random.uniform(size=counts.shape) * (each == counts).mean(0)
    panels[3].plot(np.linspace(0.0, 1.0, len(counts)), np.sort(place), color=colour, lw=2)
panels[3].plot([0, 1], [0, 1], "k:")
panels[3].set(xlabel="share of rows", ylabel="place among the draws")
panels[0].legend(frameon=False)
plt.show()
