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
# # A model of your own: effects, groups, priors, curves that add up
#
# A model is a NumPyro program, so it may say what is believed of the data at hand. Here plants grow on five plots, in
# beds with and without fertiliser: one curve for all, one of each plot around it, a level of each plot, and an effect.

# %%
# %matplotlib inline
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.handlers import lift
from numpyro.infer import Predictive
from numpyro.infer.autoguide import AutoNormal

numpyro.enable_x64()

from ppl_dgp import Guide, PowerEP, data_plate, default_priors, fit_svi, sparse_gp
from ppl_dgp.kernels import RBF

key, random = jax.random.key(0), np.random.default_rng(0)
PLOTS = 6  # of the last there are no rows yet

# %% [markdown]
# Each row is a week, a plot, and whether the bed is fertilised: that is worth 0.6. Weeks are in units of ten, around
# the middle of the season.

# %%
week = random.uniform(-1.5, 1.5, 60)
plot = np.repeat(np.arange(5), 12)
fed = random.integers(0, 2, 60)
level = 0.5 * random.normal(size=5)
phase = random.uniform(0.0, 6.0, 5)
curve = lambda week: 1.5 * np.tanh(1.5 * week)
height = (
    curve(week)
    + level[plot]
    + 0.25 * np.sin(2.5 * week + phase[plot])
    + 0.6 * fed
    + 0.15 * random.normal(size=60)
)
x, y = np.column_stack([week, plot, fed]), height[:, None]

# %% [markdown]
# ## The model
#
# `f(x) + g(x)` adds functions, `.output(plot)` picks of several the one that a row is of, and numbers add up with them:
# an effect is a coefficient with a prior, a level a draw for each plot. What is a `param` may get a prior later.


# %%
def growth(x, y=None, index=None, size=None):
    positive = lambda name, start: numpyro.param(name, start, constraint=constraints.positive)
    time, plot, fed = x[:, :1], x[:, 1].astype(int), x[:, 2]

    effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
    level = positive("level/scale", 0.5) * numpyro.sample("level", dist.Normal().expand([PLOTS]).to_event(1))
    inducing = jnp.linspace(-1.6, 1.6, 6)[:, None]
    common = RBF(positive("common/variance", 1.0), positive("common/lengthscale", 1.0))
    common = sparse_gp("common", common, inducing)
    own = RBF(positive("own/variance", 0.1), positive("own/lengthscale", 1.0))
    own = sparse_gp("own", own, inducing, num_outputs=PLOTS)

    noise = positive("noise", 0.1)
    with data_plate(size or x.shape[0], index):
        mean = common(time) + own(time).output(plot) + level[plot] + effect * fed
        return numpyro.sample("y", mean.noisy(noise), obs=y)


# %% [markdown]
# ## Priors by `lift`
#
# `default_priors` looks at the names: lengthscales, variances, noises and scales have weakly informative ones. Any may
# be replaced.

# %%
priors = default_priors(growth, x, y)
priors["own/variance"] = dist.HalfNormal(0.2)  # plots are much alike
lifted = lift(growth, prior=priors)
sorted(priors)

# %% [markdown]
# ## Fit
#
# The functions have the guide's q(u); for all other latents, hyperparameters among them, one of NumPyro's guides is
# named. They are drawn at every step, four times here, and `tolerance=` is how many nats may be left to gain: to half a
# nat, the usual one, it could not be told from the noise of the draws.

# %%
guide = Guide(lifted, others=AutoNormal)
objective = PowerEP(0.0, num_particles=4)
fit = fit_svi(key, lifted, guide, objective, x, y, tolerance=1.0, learning_rate=0.01)
print(f"converged: {fit.converged}, {fit.gap:.2g} nats to gain, {fit.losses.shape[1]} steps")
print({name: round(float(share[0]), 2) for name, share in fit.explained(jnp.asarray(x)).items()})

# %% [markdown]
# A guide is a NumPyro program too, so that NumPyro draws from it. What is known of the effect, of how much levels
# differ, and of the noise; dotted is the truth. The levels are the lesson: a level is nothing that data could tell from
# a curve of the plot that hardly bends, and a q of independent latents settles for one of the two. It has left the
# levels near 0 and given all to the curves, as the next picture shows. Predictions are right all the same; a question
# about levels alone would need curves whose mean over the season is 0, or another q.

# %%
draws = Predictive(guide, params=fit.params, num_samples=2000)(key, jnp.asarray(x), jnp.asarray(y))
truths = {"effect": 0.6, "level/scale": 0.5, "noise": 0.15**2}
figure, panels = plt.subplots(1, 3, figsize=(11, 2.8), layout="constrained")
for panel, (name, truth) in zip(panels, truths.items(), strict=True):
    known = np.ravel(draws[name])
    panel.hist(known, 40, density=True, color="0.8")
    panel.axvline(truth, color="black", linestyle=":")
    panel.set(title=f"{name}: {known.mean():.2g} ± {known.std():.1g}", yticks=[])
plt.show()

# %% [markdown]
# ## What adds up
#
# `layer_maps` has the functions apart, at one draw of the hyperparameters: the one that is common, and each plot's.

# %%
common, own = fit.layer_maps(jnp.asarray(x))
figure, panels = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
for panel, each in zip(panels, (common, own), strict=True):
    for column in range(each.grid_mean.shape[1] - (each is own)):
        mean, band = each.grid_mean[:, column], 2.0 * each.grid_deviation[:, column]
        panel.fill_between(each.grid[:, 0], mean - band, mean + band, color=f"C{column}", alpha=0.15, lw=0)
        panel.plot(each.grid[:, 0], mean, color=f"C{column}")
    panel.set(title=each.name, xlabel="week / 10")
panels[0].set_ylabel("height")
panels[0].plot(np.sort(week), curve(np.sort(week)), "k:")
plt.show()

# %% [markdown]
# ## What is to be expected of each plot
#
# In beds without fertiliser, bands of 95 %. The sixth plot has not been seen: the common curve is known, its own
# level and its own curve are not, and the band says how much plots differ. Dotted is the truth.

# %%
line = np.linspace(-1.5, 1.5, 60)
figure, panels = plt.subplots(2, 3, figsize=(11, 5.5), sharex=True, sharey=True, layout="constrained")
for number, panel in enumerate(panels.flat[:PLOTS]):
    new = np.column_stack([line, np.full(60, number), np.zeros(60)])
    told = fit.predict(key, new, num_samples=1000, levels=(0.025, 0.975))
    panel.fill_between(line, *told.quantiles[..., 0], color="C0", alpha=0.2, lw=0)
    panel.plot(line, told.mean[:, 0], color="C0")
    for bed, mark in enumerate(("o", "^")):
        rows = (plot == number) & (fed == bed)
        panel.plot(
            week[rows], height[rows], mark, color=f"C{2 * bed + 1}", ms=4, label=("plain", "fertilised")[bed]
        )
    if number < 5:
        panel.plot(line, curve(line) + level[number] + 0.25 * np.sin(2.5 * line + phase[number]), "k:")
    panel.set_title(f"plot {number + 1}" if number < 5 else "a plot never seen")
panels[0, 0].legend(frameon=False, fontsize="small")
figure.supxlabel("week / 10, from the middle of the season")
figure.supylabel("height")
plt.show()
