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
# # Which α?
#
# α goes from the variational bound (0) to expectation propagation (1). What it changes is seen on one small data set,
# of which the posterior is known: every fit has converged, and NUTS draws from what they approximate.

# %%
# %matplotlib inline
import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import pandas as pd
from numpyro.handlers import lift

numpyro.enable_x64()

from ppl_dgp import (
    Collapsed,
    Guide,
    Optimal,
    default_priors,
    exact_gp_regression,
    fit_lbfgs,
    fit_nuts,
    sparse_gp_regression,
)

key, random = jax.random.key(0), np.random.default_rng(0)
truth = lambda x: np.sin(3.0 * x) + 0.4 * np.cos(7.0 * x)


def rows(number):
    x = np.sort(random.uniform(-2.0, 2.0, (number, 1)), 0)
    return x, truth(x) + 0.2 * random.normal(size=x.shape)


x, y = rows(40)
x_test, y_test = rows(200)

# %% [markdown]
# ## The reference
#
# Of forty rows the exact GP is at hand: inducing inputs at the rows leave nothing out. NUTS draws its hyperparameters,
# f integrated out. Beside it stands the exact GP at its best hyperparameters.

# %%
whole = sparse_gp_regression(inducing=x)
lifted = lift(whole, prior=default_priors(whole, x, y))
settings = {"num_warmup": 300, "num_samples": 300, "num_chains": 2, "chain_method": "sequential"}
nuts = fit_nuts(key, lifted, x, y, marginal=Collapsed.exact(), **settings)
exact = fit_lbfgs(key, exact_gp_regression(), x, y)
chains = nuts.chains
print("NUTS:", chains.divergences, "divergences; R-hat at most", round(max(chains.r_hat.values()), 3))
print("exact GP converged:", exact.converged, "; log evidence", round(-float(exact.losses[0, -1]), 1))
told = {
    name: fit.predict(key, x_test, y_test, num_samples=300)
    for name, fit in {"NUTS": nuts, "exact": exact}.items()
}

# %% [markdown]
# f, two deviations around its mean: grey is NUTS, black lines the exact GP, dotted is the truth.


# %%
def band(each, measure="f_variance"):
    deviation = np.sqrt(getattr(each, measure)[:, 0])
    return each.mean[:, 0] - 2.0 * deviation, each.mean[:, 0] + 2.0 * deviation


figure, panel = plt.subplots(figsize=(8, 3.2), layout="constrained")
panel.fill_between(x_test[:, 0], *band(told["NUTS"]), color="0.8", lw=0)
panel.plot(x_test, np.transpose(band(told["exact"])), color="black", lw=0.8)
panel.plot(x_test, truth(x_test), "k:")
panel.plot(x, y, "k.", ms=4)
plt.show()

# %% [markdown]
# ## Few inducing points, four α
#
# Eight points are few for this function, so that approximations differ. Of one layer under Gaussian noise power EP is
# known in closed form, `Collapsed(alpha)`, and L-BFGS goes on until it has converged.

# %%
few = sparse_gp_regression(8)
guide = Guide(few, inducing=Optimal())
fits = {
    f"α = {alpha}": fit_lbfgs(key, few, x, y, guide=guide, objective=Collapsed(alpha))
    for alpha in (0.0, 0.5, 0.8, 1.0)
}
told |= {name: fit.predict(key, x_test, y_test) for name, fit in fits.items()}


# %%
def far(name):
    """KL[NUTS ‖ fit] of what is predicted of a row, both as Gaussians, in nats."""
    mean, variance = told["NUTS"].mean, told["NUTS"].variance
    ratio = variance / told[name].variance
    return (
        0.5 * (ratio - 1.0 - np.log(ratio) + np.square(mean - told[name].mean) / told[name].variance).mean()
    )


table = pd.DataFrame(
    {
        name: {
            "energy": np.nan if fit is nuts else -fit.losses[0, -1],
            "noise": fit.params["likelihood/noise_draws" if fit is nuts else "likelihood/noise"].mean(),
            "deviation of f": np.sqrt(told[name].f_variance.mean()),
            "error of f": np.sqrt(np.square(told[name].mean - truth(x_test)).mean()),
            "log density": told[name].log_density.mean(),
            "KL from NUTS": far(name),
        }
        for name, fit in {**fits, "exact": exact, "NUTS": nuts}.items()
    }
).T.astype(float)
print("converged:", {name: fit.converged for name, fit in fits.items()})
table.round(3)

# %% [markdown]
# The bound (α = 0) calls noise what eight points cannot follow: twice what NUTS finds. As α rises the variance of f
# takes its place; at 0.5 the noise is near that of NUTS, at 1 there is none left. The energy rises all the way, past
# the exact GP's evidence, and is highest where log density is worst. Nearest to NUTS is 0.5, with 0.8 beside it, which
# has the best log density.

# %%
alphas = [fit.objective.alpha for fit in fits.values()]
figure, panels = plt.subplots(1, 4, figsize=(14, 3.2), layout="constrained")
for panel, measure in zip(panels, ("energy", "noise", "log density", "KL from NUTS"), strict=True):
    panel.plot(alphas, table[measure][list(fits)], "o-", color="C0", label="eight points")
    panel.axhline(table[measure]["exact"], color="black", linestyle=":", label="exact GP")
    if measure in ("noise", "log density"):
        panel.axhline(table[measure]["NUTS"], color="C1", label="NUTS")
    panel.set(xlabel="α", title=measure)
panels[1].legend(frameon=False)
plt.show()

# %% [markdown]
# ## Beside the posterior
#
# One data set says what can happen, not how often. [Many](../docs/which-alpha.md) say the same: 0.5 if nothing else is
# known, 0.8 for the log density of one layer, 1 not where the noise is to be read off, and the energy chooses nothing;
# of deep GPs, 0.5 at most.
#
# Bands of f above and of what is predicted, y, below: blue is the fit, grey is NUTS, and the ticks are inducing inputs.
# At α = 1 what is said of y is too sure at the rows beside inducing inputs, and too wide between them.

# %%
figure, panels = plt.subplots(2, 4, figsize=(14, 6), sharex=True, sharey=True, layout="constrained")
for row, measure in zip(panels, ("f_variance", "variance"), strict=True):
    for panel, name in zip(row, fits, strict=True):
        panel.fill_between(x_test[:, 0], *band(told["NUTS"], measure), color="0.8", lw=0)
        panel.fill_between(x_test[:, 0], *band(told[name], measure), color="C0", alpha=0.3, lw=0)
        panel.plot(x_test, told[name].mean, color="C0")
        panel.plot(x, y, "k.", ms=3)
        inducing = fits[name].params["gp/inducing"]
        panel.plot(inducing, np.full_like(inducing, -2.3), "|", color="C0", ms=10)
for panel, name in zip(panels[0], fits, strict=True):
    panel.set_title(f"{name}: noise {table['noise'][name]:.2f}")
panels[0, 0].set_ylabel("f")
panels[1, 0].set_ylabel("y")
plt.show()
