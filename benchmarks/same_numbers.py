"""Losses and gradients of many programs, to the digit, so that two commits can be held beside one another.

    git worktree add ../before COMMIT
    (cd ../before && python ../ppl_dgp/benchmarks/same_numbers.py ../before.json)   # by its path: of the package there
    python -m benchmarks.same_numbers after.json --against ../before.json

A program is a model, a guide and an objective at parameters that depend on their shapes alone, compiled without most of
XLA's optimisations, whose order of sums may change from one form of a program to another. What is compared is the loss
and the sum of the absolute gradient; the second command ends with 1 where a loss moved by more than rounding.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, os.getcwd())

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpyro  # noqa: E402
import numpyro.distributions as dist  # noqa: E402
from numpyro.infer import SVI  # noqa: E402
from numpyro.infer.autoguide import AutoNormal  # noqa: E402

from ppl_dgp import guides as q  # noqa: E402
from ppl_dgp import models as zoo  # noqa: E402
from ppl_dgp.objectives import (  # noqa: E402
    ApproximatePowerEP,
    BlackBoxAlpha,
    Collapsed,
    ImportanceWeighted,
    Pathwise,
    PowerEP,
)

KEY = jax.random.PRNGKey(3)
ROWS = 12
#: relative, of a loss
ROUNDING = 1e-12

X = jnp.linspace(-1.5, 1.5, ROWS)[:, None]
Y = jnp.sin(3 * X) + 0.1 * jnp.cos(40 * X)
TWO = jnp.concatenate([Y, X**2], 1)
NONE = jnp.zeros((ROWS, 0))
POWER = [PowerEP(0.0), PowerEP(0.0, 3), PowerEP(0.5), PowerEP(0.5, 3), PowerEP(1.0, 2), BlackBoxAlpha(0.5, 2)]
TIED = [ApproximatePowerEP(0.5, 2)]
FEW = [PowerEP(0.0), PowerEP(0.5, 3)]
MOMENTS = [PowerEP(0.0, propagation="moments")]
Program = tuple[str, Any, Any, list[Any], tuple[Any, ...], dict[str, Any]]


def programs() -> Iterator[Program]:
    """Name, model, guide, objectives and what the model is called with."""
    two, three, one = zoo.deep_gp((2,), 5), zoo.deep_gp((1, 2), 4), zoo.deep_gp((), 5)
    part: dict[str, Any] = {"index": jnp.arange(4), "size": ROWS}
    for rule in (q.DoublyStochastic(), q.Conditional(), q.MeanField(), q.Markov()):
        name = type(rule).__name__
        yield f"deep {name}", two, q.Guide(two, rule), [*POWER, *TIED, ImportanceWeighted(3)], (X, Y), {}
    yield "deep, moments along layers", two, q.Guide(two, q.MomentMatched()), [*POWER[:1], *TIED], (X, Y), {}
    yield "free", two, q.Guide(two, q.Conditional(free=True)), FEW, (X, Y), {}
    yield "tied", two, q.Guide(two, q.Conditional(tied=True)), FEW, (X, Y), {}
    yield "chain of layers", three, q.Guide(three, q.MeanField(), q.LayerChain()), FEW, (X, Y), {}
    yield "coupled layers", three, q.Guide(three, q.DoublyStochastic(), q.Coupled()), FEW, (X, Y), {}
    yield "across outputs", two, q.Guide(two, q.MeanField(), q.AcrossOutputs()), FEW, (X, Y), {}
    bounds = [PowerEP(0.0, propagation=how) for how in ("moments", "linearised", "full-moments")]
    yield "closed forms", two, q.Guide(two, q.MeanField()), [*bounds, Collapsed()], (X, Y), {}
    every = [*POWER, *TIED, ImportanceWeighted(3), Collapsed(0.5), Collapsed()]
    yield "one layer", one, q.Guide(one, q.Conditional()), every, (X, Y), {}
    yield "one layer, minibatch", one, q.Guide(one), [*FEW, *TIED], (X[:4], Y[:4]), part
    yield "minibatch", two, q.Guide(two, q.Conditional()), [*FEW, *TIED], (X[:4], Y[:4]), part
    states = zoo.gpssm(1, num_inducing=5)
    for rule in (q.DoublyStochastic(), q.Conditional(), q.MeanField(), q.Markov()):
        along = [*POWER, *(TIED if isinstance(rule, q.MeanField) else [])]
        yield f"gpssm {type(rule).__name__}", states, q.Guide(states, rule), along, (NONE, Y), {}
    followed = [*MOMENTS, Collapsed(), Pathwise(0.5, 3)]
    yield "gpssm, closed forms", states, q.Guide(states, q.MeanField()), followed, (NONE, Y), {}
    latent = zoo.gplvm(2, latent=1, num_inducing=4)
    yield "gplvm", latent, q.Guide(latent, q.MeanField()), [*POWER, *MOMENTS, Collapsed()], (NONE, TWO), {}
    inputs = zoo.latent_input_gp(num_inducing=4)
    yield "latent inputs", inputs, q.Guide(inputs, q.MeanField()), [*FEW, ImportanceWeighted(2)], (X, Y), {}
    mixture = zoo.mixture_of_functions(2, num_inducing=4)
    yield "mixture", mixture, q.Guide(mixture, q.Conditional()), POWER, (X, Y), {}
    prior = dist.LogNormal(0.0, 1.0).expand([1]).to_event(1)
    lifted = numpyro.handlers.lift(one, prior={"layer1/lengthscale": prior})
    yield "priors", lifted, q.Guide(lifted, q.Conditional(), others=AutoNormal), [*FEW, *TIED], (X, Y), {}


def somewhere(params: dict[str, Any]) -> dict[str, Any]:
    """Unconstrained values that depend on nothing but their shapes: where parameters start may change."""
    values = {}
    for name, leaf in params.items():
        waves = 0.1 * jnp.cos(jnp.arange(leaf.size, dtype=leaf.dtype) + leaf.ndim).reshape(leaf.shape)
        if name.endswith("inducing"):
            waves = waves + jnp.linspace(-1.5, 1.5, len(leaf))[:, None]
        values[name] = waves
    return values


def numbers() -> dict[str, list[float]]:
    """Loss and the sum of the absolute gradient of every program."""
    values: dict[str, list[float]] = {}
    for name, model, guide, objectives, args, kwargs in programs():
        svi = SVI(model, guide, numpyro.optim.Adam(0.1), PowerEP())

        state = jax.jit(lambda key, svi=svi, args=args, kwargs=kwargs: svi.init(key, *args, **kwargs))(KEY)
        params = svi.constrain_fn(somewhere(svi.optim.get_params(state.optim_state)))
        for objective in objectives:

            def loss(at: Any, objective: Any = objective, model: Any = model, guide: Any = guide) -> Any:
                return objective.loss(KEY, at, model, guide, *args, **kwargs)  # noqa: B023

            value, slope = jax.jit(jax.value_and_grad(loss))(params)
            total = sum(float(jnp.abs(leaf).sum()) for leaf in jax.tree.leaves(slope))
            how = getattr(objective, "propagation", None) or ""
            values[f"{name} | {objective!r} {how}".strip()] = [float(value), total]
            print(f"{name} | {objective!r} {how}: {float(value):.15g}", flush=True)
    return values


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--against", type=Path)
    given = parser.parse_args()
    numpyro.enable_x64()
    jax.config.update("jax_disable_most_optimizations", True)
    values = numbers()
    given.out.write_text(json.dumps(values, indent=1))
    if given.against is None:
        return 0
    before = json.loads(given.against.read_text())
    both = sorted(values.keys() & before.keys())
    moved = {
        name: (before[name][0], values[name][0])
        for name in both
        if abs(values[name][0] - before[name][0]) > ROUNDING * max(1.0, abs(before[name][0]))
    }
    equal = sum(values[name] == before[name] for name in both)
    print(
        f"{len(both)} programs in both: {equal} equal to the last digit of loss and gradient, {len(moved)} moved"
    )
    for name, (old, new) in moved.items():
        print(f"  {name}: {old!r} -> {new!r}")
    return 1 if moved else 0


if __name__ == "__main__":
    sys.exit(main())
