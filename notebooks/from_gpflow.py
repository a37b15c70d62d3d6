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
# # From GPflow
#
# What is done in GPflow, as text, and the same done here. GPflow need not be installed: the numbers that both must give
# are closed forms, which a few lines of NumPy write out beside ours. [The page of that name](../docs/from-gpflow.md)
# has the names side by side.

# %%
# %matplotlib inline
import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
from scipy.stats import multivariate_normal

numpyro.enable_x64()

from ppl_dgp import (
    Collapsed,
    Guide,
    Posterior,
    PowerEP,
    exact_gp_regression,
    fit_lbfgs,
    fit_svi,
    natural_adam,
    sparse_gp_regression,
)
from ppl_dgp.diagnostics import plot_fit

key, random = jax.random.key(0), np.random.default_rng(0)
x = np.sort(random.uniform(-2.0, 2.0, (80, 1)), 0)
y = np.sin(3.0 * x) + 0.3 * random.normal(size=x.shape)
line = np.linspace(-3.0, 3.0, 150)[:, None]

# %% [markdown]
# ## Exact regression
#
# ```py
# model = gpflow.models.GPR((x, y), gpflow.kernels.RBF())
# gpflow.optimizers.Scipy().minimize(model.training_loss, model.trainable_variables)
# model.log_marginal_likelihood()
# mean, variance = model.predict_y(line)
# ```
#
# There a model holds its data and its parameters, and changes. Here it holds neither: `fit_lbfgs` returns a fit, which
# has them, and the exact GP needs no guide.

# %%
exact = fit_lbfgs(key, exact_gp_regression(), x, y)
new = exact.predict(key, line)
print(f"converged: {exact.converged}")
exact.summary()

# %% [markdown]
# The evidence is log N(y; 0, K + s²I), and the prediction two lines of linear algebra.

# %%
lengthscale = float(np.ravel(exact.params["gp/lengthscale"])[0])
variance, noise = (float(exact.params[name]) for name in ("gp/variance", "likelihood/noise"))


def rbf(a, b):
    return variance * np.exp(-0.5 * ((a - b.T) / lengthscale) ** 2)


def log_normal(covariance):
    return multivariate_normal(np.zeros(len(y)), covariance).logpdf(y[:, 0])


K = rbf(x, x) + noise * np.eye(len(x))
print(f"log evidence: {exact.energy(key, x, y):.6f} here, {log_normal(K):.6f} by hand")
mean = rbf(line, x) @ np.linalg.solve(K, y)
spread = variance + noise - np.sum(rbf(line, x).T * np.linalg.solve(K, rbf(x, line)), 0)
print(f"prediction: means differ by at most {np.abs(new.mean - mean).max():.0e},")
print(f"            variances by at most {np.abs(new.variance[:, 0] - spread).max():.0e}")
plot_fit(new, line, x, y)

# %% [markdown]
# ## Titsias' bound, and FITC
#
# ```py
# gpflow.models.SGPR((x, y), kernel, z).elbo()
# gpflow.models.GPRFITC((x, y), kernel, z).fitc_log_marginal_likelihood()
# ```
#
# One model, two objectives. A `Posterior` is a model, a guide and values by the names of their sites: that is how
# numbers from elsewhere are put in. Q stands for Kxz Kzz⁻¹ Kzx.

# %%
z = np.linspace(-2.0, 2.0, 8)[:, None]
model = sparse_gp_regression(inducing=z)
held = Posterior(model, Guide(model), exact.params | {"gp/inducing": z})
vfe, fitc = (held.energy(key, x, y, objective=each) for each in (Collapsed.vfe(), Collapsed.fitc()))


def by_hand(z):
    Q = rbf(x, z) @ np.linalg.solve(rbf(z, z), rbf(z, x))
    left = np.diag(rbf(x, x) - Q)
    bound = log_normal(Q + noise * np.eye(len(x))) - left.sum() / (2.0 * noise)
    return bound, log_normal(Q + np.diag(left + noise))


print(f"bound {vfe:.4f} here, {by_hand(z)[0]:.4f} by hand")
print(f"FITC  {fitc:.4f} here, {by_hand(z)[1]:.4f} by hand")

# %% [markdown]
# ## SVGP, one natural step
#
# ```py
# model = gpflow.models.SVGP(kernel, gpflow.likelihoods.Gaussian(noise), z, num_data=80)
# step = gpflow.optimizers.NaturalGradient(gamma=1.0)
# step.minimize(model.training_loss_closure((x, y)), [(model.q_mu, model.q_sqrt)])
# model.elbo((x, y))
# ```
#
# q(u) has parameters now. Under Gaussian noise a natural step of rate 1 leads to its optimum, where SVGP's bound is
# that of SGPR. `natural_adam(1.0, 0.0)` is such a step, and holds all else.

# %%
start = exact.params | {"gp/inducing": z}
stepped = fit_svi(
    key, model, Guide(model), PowerEP(0.0), x, y, steps=1, start=start, optimizer=natural_adam(1.0, 0.0)
)
print(f"after one step {stepped.energy(key, x, y):.4f}, Titsias' bound {vfe:.4f}")

# %% [markdown]
# ## Outliers
#
# ```py
# model = gpflow.models.SVGP(gpflow.kernels.RBF(), gpflow.likelihoods.StudentT(), z, num_data=80)
# ```
#
# and then a loop of Adam, of as many steps as one thinks it takes. Here it goes on until it has converged, unless a
# number of steps is given, and says whether it has. Every tenth row is wrong.

# %%
wrong = np.where(np.arange(80)[:, None] % 10 == 5, y + random.choice([-3.0, 3.0], y.shape), y)
gaussian = fit_lbfgs(key, exact_gp_regression(), x, wrong)
robust = sparse_gp_regression(inducing=z, likelihood="student-t")
student = fit_svi(key, robust, Guide(robust), PowerEP(0.0), x, wrong)
print(f"converged: {student.converged}, after {student.steps} steps; {student.gap:.2g} nats are left to gain")
figure, panels = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
for panel, fit, title in zip(panels, (gaussian, student), ("Gaussian noise", "Student-t noise"), strict=True):
    plot_fit(fit.predict(key, line, levels=(0.025, 0.975), num_samples=4000), line, x, wrong, axes=panel)
    panel.plot(line, np.sin(3.0 * line), "k:", lw=1)
    panel.set_title(title)
plt.show()

# %% [markdown]
# ## How many inducing points?
#
# Both numbers at the hyperparameters of the exact GP, for more and more points on a grid; lines are ours, crosses
# NumPy's. Titsias' bound comes up to the evidence from below; FITC is the evidence of another model, and no bound.
# Right, the fit after one step beside the exact GP.

# %%
counts = [6, 7, 8, 9, 10, 12]
grids = [np.linspace(-2.0, 2.0, count)[:, None] for count in counts]
ours = []
for grid in grids:
    model = sparse_gp_regression(inducing=grid)
    held = Posterior(model, Guide(model), exact.params | {"gp/inducing": grid})
    ours.append([held.energy(key, x, y, objective=each) for each in (Collapsed.vfe(), Collapsed.fitc())])
theirs = np.array([by_hand(grid) for grid in grids])
figure, panels = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
for column, name in enumerate(("Titsias' bound", "FITC")):
    panels[0].plot(counts, np.array(ours)[:, column], color=f"C{column}", label=name)
    panels[0].plot(counts, theirs[:, column], "x", color=f"C{column}")
panels[0].axhline(log_normal(K), color="k", linestyle=":", label="log evidence")
panels[0].set(xlabel="inducing points", ylabel="nats", ylim=(log_normal(K) - 40.0, log_normal(K) + 10.0))
panels[0].legend(frameon=False, loc="lower right")
panels[0].spines[["top", "right"]].set_visible(False)
plot_fit(stepped.predict(key, line), line, x, y, axes=panels[1])
panels[1].plot(line, new.mean, "k:", lw=1, label="exact GP")
panels[1].plot(z[:, 0], np.full(8, -2.4), "|", color="C3", ms=10, label="inducing points")
panels[1].set_ylim(-2.6, 2.6)
panels[1].legend(frameon=False, ncols=3, fontsize="small", loc="upper center")
plt.show()
