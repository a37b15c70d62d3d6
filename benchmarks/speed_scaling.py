"""What a step's cost grows with: a value and its gradient against N, L, width, particles and M; slopes, a figure."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro

from benchmarks import rows
from benchmarks.works import data

HERE = Path(__file__).parent
CSV, FIGURE = HERE / "speed-scaling.csv", HERE.parent / "docs" / "speed-scaling.png"
#: of each axis its values, the settings beside it, and from where on its slope is fitted
AXES: dict[str, tuple[tuple[int, ...], dict[str, int]]] = {
    "rows": ((1000, 2000, 4000, 8000, 16000), {"layers": 2}),
    "layers": ((2, 4, 8), {}),
    "width": ((4, 8, 16, 32), {"layers": 2}),
    "particles": ((1, 2, 4, 8), {"layers": 2}),
    "inducing": ((25, 50, 100, 200, 400, 800), {"layers": 1}),
}
USUAL = {"rows": 1000, "layers": 3, "width": 8, "particles": 1, "inducing": 100}
NAMES = {"rows": "N", "layers": "L", "width": "width", "particles": "particles", "inducing": "M"}


def scaling() -> None:
    """Measure what the CSV lacks, print the slopes and draw."""
    numpyro.enable_x64()
    found = {(row["axis"], int(row["value"])): float(row["ms"]) for row in rows.read(CSV)}
    for axis, (values, beside) in AXES.items():
        for value in values:
            if (axis, value) not in found:
                found[axis, value] = milliseconds(**{**USUAL, **beside, axis: value})
                rows.append(CSV, ["axis", "value", "ms"], [axis, value, found[axis, value]])
                print(axis, value, f"{found[axis, value]:.2f} ms", flush=True)
    figure, panels = plt.subplots(1, len(AXES), figsize=(15, 3.2), sharey=True, layout="constrained")
    for panel, (axis, (values, _)) in zip(panels, AXES.items(), strict=True):
        ms = np.array([found[axis, value] for value in values])
        # of the larger half, where overheads count less
        last = len(values) // 2
        slope = np.polyfit(np.log(values[last:]), np.log(ms[last:]), 1)[0]
        print(f"{axis}: slope {slope:.2f} from {values[last]} on")
        panel.loglog(values, ms, "o-", base=2)
        panel.set_xticks(values, [str(value) for value in values])
        panel.set_title(f"slope {slope:.2f} from {NAMES[axis]} = {values[last]}", fontsize=10)
        panel.set_xlabel(NAMES[axis])
        panel.minorticks_off()
    panels[0].set_ylabel("ms per value and gradient")
    panels[0].set_yticks([2.0**k for k in range(1, 11, 2)], [str(2**k) for k in range(1, 11, 2)])
    figure.savefig(FIGURE, dpi=110)


def milliseconds(rows: int, layers: int, width: int, particles: int, inducing: int) -> float:
    """The least of some runs, as the library holds BLAS, on the full batch of so many rows."""
    from numpyro.infer import SVI

    from ppl_dgp.fit.initial import initialise
    from ppl_dgp.fit.program import adam, as_numpyro
    from ppl_dgp.fit.session import one_blas_thread
    from ppl_dgp.guides import DoublyStochastic, Guide
    from ppl_dgp.models import deep_gp
    from ppl_dgp.objectives import PowerEP

    x, y = (jnp.asarray(each) for each in data("svgp", "float64", rows))
    model = deep_gp((width,) * (layers - 1), inducing)
    guide, objective = Guide(model, hidden=DoublyStochastic()), PowerEP(0.0, particles)
    svi, key = SVI(model, guide, as_numpyro(adam(0.01)), objective), jax.random.PRNGKey(0)
    params = svi.optim.get_params(initialise(svi, key, x, y).optim_state)

    def loss(params: Any) -> Any:
        return objective.loss(key, svi.constrain_fn(params), model, guide, x, y)

    both, times = jax.jit(jax.value_and_grad(loss)), []
    with one_blas_thread():
        jax.block_until_ready(both(params))
        while len(times) < 5 or (sum(times) < 1.0 and len(times) < 50):
            before = time.perf_counter()
            jax.block_until_ready(both(params))
            times.append(time.perf_counter() - before)
    return 1e3 * min(times)
