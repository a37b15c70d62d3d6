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
# # Which function, which noise, since when
#
# What is not known of a row, or of a data set, may be discrete: whether a row is wrong, which of several functions it
# comes from, since when another one holds. Write it as a NumPyro site; the objectives sum it out exactly, and
# `responsibilities` says what is known of it afterwards.

# %%
# %matplotlib inline
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

numpyro.enable_x64()

from ppl_dgp import (
    Guide,
    PowerEP,
    data_plate,
    fit_svi,
    mixture_of_experts_gp,
    mixture_of_functions,
    predict,
    responsibilities,
    sparse_gp,
)
from ppl_dgp.kernels import RBF

key, random = jax.random.key(0), np.random.default_rng(0)


def fitted(model, x, y, steps=1200):
    return fit_svi(key, model, Guide(model), PowerEP(0.5), x, y, steps=steps, learning_rate=0.03)


def draw(panel, x, y, share, label):
    points = panel.scatter(x[:, 0], y[:, 0], c=share, cmap="coolwarm", vmin=0.0, vmax=1.0, s=14)
    panel.figure.colorbar(points, ax=panel, label=label)


# %% [markdown]
# ## Two functions at once
#
# There are two tracks, and nobody wrote down which row is of which. The z_n are summed out row by row; where the tracks
# come close, a row may be of either. (Tracks that cross may as well be an upper and a lower one that touch.)

# %%
x = np.sort(random.uniform(-2.0, 2.0, (150, 1)), 0)
which = random.integers(2, size=150)
y = np.where(which, 1.6 - 0.5 * x[:, 0], np.sin(3.0 * x[:, 0]))[:, None] + 0.2 * random.normal(size=(150, 1))
tracks = fitted(mixture_of_functions(2, 10), x, y)
share = responsibilities(key, tracks, x, y)["z"][:, 1]
print(f"of their own track {np.mean((share > 0.5) == which):.1%} of the rows")
figure, panel = plt.subplots(figsize=(6, 3))
draw(panel, x, y, share, "p(z = 1 | y)")

# %% [markdown]
# ## Experts, each where its gate says
#
# On the left the data are calm, on the right loud. One function with one noise is wrong about both. The gate is a GP in
# front of z: a hidden layer, drawn once for all values of z.

# %%
calm = x[:, 0] < 0.3
y = np.where(calm, np.sin(2.0 * x[:, 0]), 1.0)[:, None]
y = y + np.where(calm, 0.05, 0.6)[:, None] * random.normal(size=(150, 1))
experts = fitted(mixture_of_experts_gp(2, 12), x, y)
share = responsibilities(key, experts, x, y)["z"]
loud = share[~calm].mean(0).argmax()
new = np.linspace(-2.0, 2.0, 100)[:, None]
predicted = predict(key, experts, new, levels=(0.05, 0.95))
figure, panel = plt.subplots(figsize=(6, 3))
panel.fill_between(new[:, 0], *predicted.quantiles[..., 0], alpha=0.3, label="90 %")
panel.plot(new[:, 0], predicted.mean[:, 0])
draw(panel, x, y, share[:, loud], "p(loud | y)")
panel.legend()


# %% [markdown]
# ## Since when
#
# A site outside the plate is one for all rows: here the row since which another function holds. It is marked
# `infer={"enumerate": "parallel"}`, and summed out over all rows together.


# %%
def change_point(x, y=None):
    rows = x.shape[0]
    positive = lambda name: numpyro.param(name, jnp.asarray(1.0), constraint=constraints.positive)
    noise = numpyro.param("noise", jnp.asarray(0.1), constraint=constraints.positive)
    f = sparse_gp(
        "gp", RBF(positive("variance"), positive("lengthscale")), jnp.linspace(-2.0, 2.0, 12)[:, None], 2
    )
    even = dist.Categorical(jnp.full(rows, 1.0 / rows))
    tau = numpyro.sample("tau", even, infer={"enumerate": "parallel"})
    with data_plate(rows):
        after = (jnp.arange(rows) >= tau).astype(int)
        return numpyro.sample("y", f(x).output(after).noisy(noise), obs=y)


x = np.linspace(-2.0, 2.0, 100)[:, None]
y = np.where(np.arange(100) < 60, np.sin(3.0 * x[:, 0]), -0.2 - 0.5 * x[:, 0])[:, None]
y = y + 0.5 * random.normal(size=(100, 1))
change = fitted(change_point, x, y, steps=800)
shares = responsibilities(key, change, x, y)["tau"]
print(
    f"most probable: row {shares.argmax()}; 90 % within {np.sum(np.cumsum(np.sort(shares)[::-1]) < 0.9) + 1} rows"
)
figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(6, 4))
above.scatter(x[:, 0], y[:, 0], s=10)
above.axvline(x[60, 0], color="grey", linestyle=":")
below.bar(x[:, 0], shares, width=0.03)
below.set(xlabel="x", ylabel="p(tau | y)")
above.set_ylabel("y")
figure.tight_layout()
