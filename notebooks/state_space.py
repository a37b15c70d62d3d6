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
# # A tank: identify, forecast, control
#
# A tank has a valve above and a hole below. Nobody wrote down the law of the water that runs out; there is a record of
# valve and level. A GPSSM learns the law from it, says how far ahead it may be trusted, and opens the valve so that the
# level goes where it should.

# %%
# %matplotlib inline
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro

numpyro.enable_x64()

from ppl_dgp import Guide, Markov, PowerEP, Standardiser, fit_series, gpssm
from ppl_dgp.diagnostics import plot_series, plot_transition

key, random = jax.random.key(0), np.random.default_rng(0)


def next_level(level, valve):
    return np.maximum(level + 0.5 * valve - 0.35 * np.sqrt(level), 0.0)


def run(level, valves):
    levels = []
    for valve in valves:
        level = max(next_level(level, valve) + 0.03 * random.normal(), 0.0)
        levels.append(level)
    return np.array(levels)


valves = np.repeat(random.uniform(0.0, 2.0, 26), 10)
levels = run(2.0, valves)
measured = levels + 0.05 * random.normal(size=260)
figure, panels = plt.subplots(2, 1, figsize=(8, 3.6), sharex=True, layout="constrained")
panels[0].plot(measured, ".-", ms=3, lw=0.8)
panels[1].step(np.arange(260), valves, where="post", color="C1")
panels[0].set_ylabel("level")
panels[1].set(ylabel="valve", xlabel="step")
plt.show()

# %% [markdown]
# ## Identify
#
# The first 200 steps are learnt from, the last 60 kept back. With `emission="identity"` the state is the level itself,
# seen through noise. Under `Markov()` the bound is in closed form, and `fit_series` finds its optimum by natural
# gradients.

# %%
u_units, y_units = Standardiser.fit(valves[:200, None]), Standardiser.fit(measured[:200, None])
u, y = u_units.transform(valves[:, None]), y_units.transform(measured[:, None])
model = gpssm(num_outputs=1, num_inducing=20, mean="linear", start="linear", emission="identity")
guide = Guide(model, hidden=Markov())
fit = fit_series(key, model, guide, PowerEP(0.0, propagation="moments"), u[:200], y[:200])
print(f"converged: {fit.converged}, after {fit.steps} updates; {fit.gap:.2g} nats are left to gain")
for name, truth in (("transition/noise", 0.03), ("likelihood/noise", 0.05)):
    print(
        f"deviation of {name}: {float(np.sqrt(fit.params[name]).item() * y_units.scale[0]):.3f}, truth {truth}"
    )

# %% [markdown]
# The law with the valve half open, from an empty tank to a level of 8, in standardised units, beside the true one. Dots
# are steps under all valves. The band opens above the levels that were seen.

# %%
half = u_units.transform(np.array([[1.0]]))[0]


def law(state):
    level = np.maximum(y_units.inverse(state[:, None]), 0.0)
    return y_units.transform(next_level(level, 1.0))[:, 0]


states = fit.smooth(key, u[:200], y[:200])
span = tuple(y_units.transform(np.array([[0.0], [8.0]]))[:, 0])
plot_transition(fit.transition_function(u[:200], y[:200]), states, controls=half, truth=law, span=span)

# %% [markdown]
# ## Forecast
#
# Sixty steps under the valve's openings, nothing seen on the way. Each path holds one draw of the law. And the scores
# by steps ahead, from origins along the record: the last row is the whole run.

# %%
ahead = fit.forecast(key, u[:200], y[:200], u[200:], y_future=y[200:])
print(fit.horizon_scores(key, u[:200], y[:200], u[200:], y[200:], horizons=(1, 5, 20)))
plot_series(y[:200], ahead, y[200:], shown=60, label="level, standardised")

# %% [markdown]
# ## Control
#
# A cost is any function of outputs and controls. Here it is the distance from a level that is wanted, and a little for
# turning the valve. `plan_controls` looks for the openings that cost least under ten draws of the law, forty steps
# ahead; the first ten steps are applied to the tank, the level is read, and the rest is planned anew. The first level
# that is wanted, 6, is higher than any of the record.


# %%
def distance_from(level):
    wanted = float(y_units.transform(np.array([[level]]))[0, 0])

    def cost(outputs, controls):
        return jnp.mean((outputs[:, 0] - wanted) ** 2) + 0.02 * jnp.mean(jnp.diff(controls[:, 0]) ** 2)

    return cost


closed, wide = (float(u_units.transform(np.array([[valve]]))[0, 0]) for valve in (0.0, 2.0))
level, path, openings, plans = 2.0, [], [], []
for goal in (6.0, 1.0, 4.0):
    cost = distance_from(goal)
    for _ in range(4):
        now = y_units.transform(np.array([[level + 0.05 * random.normal()]]))[0]
        plan = fit.plan_controls(
            jax.random.key(len(path)), u[:200], y[:200], cost, 40, (closed, wide), state=now, hold=5
        )
        plans.append((len(path), y_units.inverse(plan.outputs[:, :10].reshape(-1, 1)).reshape(-1, 10)))
        chosen = u_units.inverse(plan.controls[:10])[:, 0]
        path += list(run(level, chosen))
        openings += list(chosen)
        level = path[-1]
reached = [
    np.mean(np.abs(np.array(path[end - 10 : end]) - goal)) for end, goal in ((40, 6.0), (80, 1.0), (120, 4.0))
]
print(f"the highest level of the record: {levels[:200].max():.1f}")
print("distance over the last ten steps of each: " + ", ".join(f"{each:.2f}" for each in reached))

# %%
figure, panels = plt.subplots(2, 1, figsize=(9, 4.6), sharex=True, height_ratios=(3, 1), layout="constrained")
steps = np.arange(1, 121)
for number, (begin, outputs) in enumerate(plans):
    label = "planned, ten draws of the law" if number == 0 else None
    panels[0].plot(begin + np.arange(1, 11), outputs.T, color="C0", alpha=0.25, lw=0.8, label=None)
    panels[0].plot([], [], color="C0", alpha=0.6, lw=0.8, label=label)
panels[0].plot(steps, path, "k.-", ms=4, lw=0.8, label="the tank")
panels[0].step(np.arange(0, 121, 40), [6.0, 6.0, 1.0, 4.0], color="C3", ls="--", label="wanted")
panels[0].set(ylabel="level", xlim=(0, 120))
panels[0].legend(frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0))
panels[1].step(steps, openings, where="mid", color="C1")
panels[1].set(ylabel="valve", xlabel="step", ylim=(-0.1, 2.1))
plt.show()
