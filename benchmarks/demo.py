"""The main job on real data: which approximation is to be trusted? Figures and files go to ``demo/``.

First the diabetes table (442 patients, 10 features): a sparse GP and a two-layer deep GP under four guides. Then the
step function with 100 points, whose first layer expands and whose second compresses.
"""

from __future__ import annotations

import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from rich.console import Console
from rich.table import Table as RichTable

numpyro.enable_x64()

from ppl_dgp.data import Standardiser, Table, load_table, split  # noqa: E402
from ppl_dgp.diagnostics import plots  # noqa: E402
from ppl_dgp.diagnostics.layers import layer_maps  # noqa: E402
from ppl_dgp.fit import Fit, fit_svi  # noqa: E402
from ppl_dgp.guides import Conditional, DoublyStochastic, Guide, HiddenRule, Markov, MeanField  # noqa: E402
from ppl_dgp.models import deep_gp, sparse_gp_regression  # noqa: E402
from ppl_dgp.objectives import PowerEP  # noqa: E402
from ppl_dgp.predict import Prediction, predict, sample_functions  # noqa: E402

OUT = Path("demo")
RULES: dict[str, HiddenRule] = {
    "mean-field": MeanField(),
    "markov": Markov(),
    "conditional": Conditional(),
    "doubly-stochastic": DoublyStochastic(),
}
console = Console()


class Standardised:
    """A table's first split, standardised with its training rows."""

    def __init__(self, table: Table) -> None:
        train, test = split(table, 0)
        self.inputs, self.targets = Standardiser.fit(table.X[train]), Standardiser.fit(table.y[train])
        self.x, self.y = self.inputs.transform(table.X[train]), self.targets.transform(table.y[train])
        self.x_test, self.y_test = self.inputs.transform(table.X[test]), self.targets.transform(table.y[test])

    def scores(self, found: Prediction) -> list[str]:
        """Test log density, RMSE and coverage of the 95 % interval, in original units."""
        assert found.log_density is not None and found.quantiles is not None
        scale = self.targets.scale
        density = found.log_density.mean() - np.log(scale).sum()
        rmse = np.sqrt(np.mean(((found.mean - self.y_test) * scale) ** 2))
        inside = (found.quantiles[0] <= self.y_test) & (self.y_test <= found.quantiles[1])
        return [f"{density:.3f}", f"{rmse:.3g}", f"{inside.mean():.2f}"]


def train(data: Standardised, rule: HiddenRule | None, num_inducing: int, steps: int) -> Fit:
    """Fit a sparse GP (no rule) or a two-layer deep GP at α = 0."""
    model = sparse_gp_regression(num_inducing) if rule is None else deep_gp((2,), num_inducing)
    guide = Guide(model) if rule is None else Guide(model, hidden=rule)
    key = jax.random.key(0)
    return fit_svi(key, model, guide, PowerEP(), data.x, data.y, steps=steps, progress=console.is_terminal)


def elbo(fit: Fit, data: Standardised, draws: int = 50) -> tuple[float, float]:
    """The α = 0 bound in nats and its standard error."""
    objective, x, y = PowerEP(), jnp.asarray(data.x), jnp.asarray(data.y)
    loss = jax.jit(lambda key: objective.loss(key, fit.params, fit.model, fit.guide, x, y))
    values = -np.array([loss(key) for key in jax.random.split(jax.random.key(1), draws)])
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(draws))


def forecast(fit: Fit, data: Standardised) -> Prediction:
    """Test rows, with the 95 % interval and draws."""
    key, levels = jax.random.key(2), (0.025, 0.975)
    return predict(
        key, fit.model, fit.guide, fit.params, data.x_test, data.y_test, levels=levels, samples=True
    )


def compare_guides() -> None:
    """The table of approximations on the diabetes data, and the figures of the best by its bound."""
    data = Standardised(load_table("diabetes"))
    shown = RichTable(title="diabetes: 398 training rows, 44 test rows, 50 inducing points, 1500 steps")
    for column in ("model", "guide", "ELBO", "test log density", "RMSE", "in 95 %", "seconds"):
        shown.add_column(column, justify="left" if column in ("model", "guide") else "right")
    best: tuple[float, Fit, Prediction] | None = None
    for name, rule in {"sparse": None, **RULES}.items():
        console.print(f"fitting: {'sparse GP' if rule is None else f'deep GP, {name}'}")
        fit = train(data, rule, 50, 1500)
        bound, error = elbo(fit, data)
        found = forecast(fit, data)
        row = ["sparse GP", ""] if rule is None else ["deep GP", name]
        shown.add_row(*row, f"{bound:.1f} ± {error:.1f}", *data.scores(found), f"{fit.seconds:.0f}")
        if best is None or bound > best[0]:
            best = (bound, fit, found)
    console.print(shown)
    assert best is not None
    _, fit, found = best
    plots.plot_calibration(found, data.y_test).savefig(OUT / "diabetes_calibration.png", dpi=120)
    plots.plot_predicted(found, data.y_test).savefig(OUT / "diabetes_predicted.png", dpi=120)
    plots.plot_losses(fit.losses).savefig(OUT / "diabetes_losses.png", dpi=120)


def fit_step() -> None:
    """The step function: a sparse GP beside a deep GP, and the maps of the deep GP's layers."""
    data = Standardised(load_table("step"))
    for name, rule in {"sparse": None, "deep": DoublyStochastic()}.items():
        console.print(f"fitting the step: {name} GP")
        fit = train(data, rule, 20, 4000)
        found = forecast(fit, data)
        density, rmse, inside = data.scores(found)
        console.print(f"  test log density {density}, RMSE {rmse}, {inside} inside the 95 % interval")
        drawn = sample_functions(
            jax.random.key(3), fit.model, fit.guide, fit.params, jnp.asarray(data.x_test), 5
        )
        figure = plots.plot_fit(found, data.x_test, data.x, data.y, samples=drawn)
        figure.savefig(OUT / f"step_{name}.png", dpi=120)
        if rule is not None:
            maps = layer_maps(fit.model, fit.guide, fit.params, jnp.asarray(data.x))
            plots.plot_layers(maps).savefig(OUT / "step_layers.png", dpi=120)


def main() -> None:
    """Both stories."""
    OUT.mkdir(exist_ok=True)
    started = time.perf_counter()
    compare_guides()
    fit_step()
    console.print(f"figures in {OUT}/, {time.perf_counter() - started:.0f} seconds in all")


if __name__ == "__main__":
    main()
