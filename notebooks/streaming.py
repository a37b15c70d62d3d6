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
# # Rows that do not fit, rows that do not stay
#
# Two kinds of much data. Rows on disk are more than memory should hold: `fit_stream` reads them block by block. Rows of
# a stream come once and are gone: `Stream` keeps what they said of the function, and not them.

# %%
# %matplotlib inline
import resource
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import optax
import pyarrow as pa
import pyarrow.parquet as pq

numpyro.enable_x64()

from ppl_dgp import Collapsed, Guide, PowerEP, Stream, fit_stream, open_rows, sparse_gp_regression
from ppl_dgp.diagnostics import plot_fit

key, random = jax.random.key(0), np.random.default_rng(0)


def peak():
    """The most memory that this process has had so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# %% [markdown]
# ## Rows on disk
#
# A parquet file, written row group by row group, as such files come: four features, of which two matter, and a target.


# %%
def surface(x):
    return np.sin(2.0 * x[:, 0]) + 0.5 * np.abs(x[:, 1])


def write(path, groups, rows=10_000):
    names = [f"x{column}" for column in range(4)] + ["y"]
    schema = pa.schema([(name, pa.float64()) for name in names])
    with pq.ParquetWriter(path, schema) as file:
        for _ in range(groups):
            x = random.uniform(-2.0, 2.0, (rows, 4))
            y = surface(x) + 0.3 * random.normal(size=rows)
            file.write_table(pa.table([*x.T, y], schema=schema))
    return groups * rows * 5 * 8 / 2**20


folder = TemporaryDirectory()
small, large = Path(folder.name, "small.parquet"), Path(folder.name, "large.parquet")
sizes = write(small, 20), write(large, 400)
print(f"small: {sizes[0]:.0f} MiB in memory; large: {sizes[1]:.0f} MiB")

# %% [markdown]
# Both are fitted by the same lines: a first pass standardises, then minibatches are read, shuffled and put on the
# device while the steps before them run. The small file shows what the programs need by themselves, compiler and all;
# what the peak rises by after it is the price of twenty times the rows. A fit is said to have converged if it has a
# thousandth of a nat a row to gain, or less; these 3000 steps end a little short of that, and say so.

# %%
model = sparse_gp_regression(num_inducing=50)
falling = optax.cosine_decay_schedule(0.1, 3000)
fits, peaks = {}, [peak()]
for file in (small, large):
    rows = open_rows(file, target="y").standardised()
    fits[file.stem] = fit = fit_stream(
        key, model, Guide(model), PowerEP(0.0), rows, batch_size=500, steps=3000, learning_rate=falling
    )
    peaks.append(peak())
    print(f"{file.stem}: {rows.count} rows, converged {fit.converged}, {fit.gap:.0f} nats to gain")
folder.cleanup()
print(
    f"peak of memory: {peaks[0]:.0f} MiB before, {peaks[1]:.0f} after the small file, {peaks[2]:.0f} after the large"
)
print(f"the large file added {peaks[2] - peaks[1]:.0f} MiB to the peak; its table has {sizes[1]:.0f}")

# %% [markdown]
# Predictions are in the units of the rows, which `x_units` and `y_units` lead to and back. New rows, without noise:

# %%
x_new = random.uniform(-2.0, 2.0, (2000, 4))
found = fits["large"].predict(key, rows.x_units.transform(x_new))
error = rows.y_units.inverse(found.f_mean)[:, 0] - surface(x_new)
print(f"error {np.sqrt(np.mean(error**2)):.3f} of a function whose deviation is {surface(x_new).std():.2f}")
print(f"noise {np.sqrt(float(fit.params['likelihood/noise'])) * rows.y_units.scale[0]:.3f}, truth 0.3")
figure, panel = plt.subplots(figsize=(6, 3), layout="constrained")
panel.bar(["before", "small file", "large file"], peaks, color=["0.8", "C0", "C0"])
panel.axhline(peaks[1] + sizes[1], color="C3", linestyle="--", label="with the large table in memory")
panel.set(ylabel="peak memory, MiB", ylim=(0.0, 1.3 * peaks[2]))
panel.legend(frameon=False, loc="upper left")
plt.show()

# %%
along = np.column_stack([np.linspace(-2.0, 2.0, 150), np.zeros((150, 3))])
told = fits["large"].predict(key, rows.x_units.transform(along))
figure, panel = plt.subplots(figsize=(6, 3), layout="constrained")
plot_fit(told, along[:, 0], axes=panel)
panel.plot(along[:, 0], rows.y_units.transform(surface(along)[:, None]), "k:", label="truth")
panel.set(xlabel="first feature, the others at 0", ylabel="y, standardised")
panel.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Rows that come once
#
# A sensor walks along a line and sends fifty rows at a time. `Stream` has twenty inducing points, which it moves to
# where rows are; after each batch the rows are forgotten. The first four batches also learn hyperparameters, by thirty
# iterations of L-BFGS each, from the batch and the memory. They are held from then on, which costs no iterations: q(u)
# is in closed form. `state` is all that a stream is, and another goes on from it.

# %%
model = sparse_gp_regression(20)
stream = Stream(key, model, Collapsed(), steps=30)
truth = lambda x: np.sin(2.0 * x) + 0.3 * x
line = np.linspace(-1.0, 11.0, 200)
batches, moments = [], {}
for number in range(10):
    if number == 4:
        stream = Stream(key, model, Collapsed(), start=stream.state)
    x = number + random.uniform(0.0, 1.0, (50, 1))
    y = truth(x) + 0.3 * random.normal(size=x.shape)
    stream.update(x, y)
    batches.append((x, y))  # for the picture alone
    if number in (0, 4, 9):
        moments[50 * (number + 1)] = stream.predict(key, line[:, None])
size = sum(np.asarray(value).nbytes for value in stream.state.values())
print(f"{stream.rows} rows seen; all that is kept is {size / 1024:.0f} KiB")

# %%
figure, panels = plt.subplots(3, 1, figsize=(8, 6), sharex=True, sharey=True, layout="constrained")
for panel, (count, told) in zip(panels, moments.items(), strict=True):
    x, y = (np.concatenate(each)[:count] for each in zip(*batches, strict=True))
    panel.plot(x[:-50], y[:-50], ".", color="0.8", ms=3, label="forgotten")
    plot_fit(told, line, x[-50:], y[-50:], axes=panel)
    panel.plot(line, truth(line), "k:", lw=1, label="truth")
    panel.set(xlabel="", ylim=(-3.0, 6.0))
    panel.set_title(f"after {count} rows", loc="left", fontsize=10)
panels[-1].set_xlabel("x")
for panel in panels[:-1]:
    panel.get_legend().remove()
panels[-1].legend(frameon=False, ncols=5, fontsize="small", loc="lower right")
plt.show()
