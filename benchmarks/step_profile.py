"""What a training step spends its time on, by JAX's profiler: kinds of operations, and the operations that take most.

    python -m benchmarks.step_profile                       # dgp3 in 64 bits
    python -m benchmarks.step_profile --work large --dtype float32

The rows go to step-profile.csv, by device. On the CPU times are those of threads, whose sum exceeds the clock's; on a
GPU they are those of kernels, and what is missing to the clock's is waiting.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.profiler import ProfileData
from numpyro.infer import SVI
from rich.console import Console
from rich.table import Table

from benchmarks import rows
from benchmarks.works import TRAINED, batch, data, inducing
from ppl_dgp.fit import program
from ppl_dgp.fit.adam import adam
from ppl_dgp.fit.initial import initialise
from ppl_dgp.fit.session import one_blas_thread
from ppl_dgp.guides import DoublyStochastic, Guide
from ppl_dgp.models import deep_gp
from ppl_dgp.objectives import PowerEP

CSV = Path(__file__).parent / "step-profile.csv"
COLUMNS = ["device", "work", "dtype", "what", "calls", "ms", "share"]
#: what is looked for in an operation and those it fuses, in this order
KINDS = {
    "factorisation": ("potrf", "cholesky"),
    "triangular solve": ("trsm", "triangular"),
    "matrix product": ("dot(", "gemm", "matmul"),
    "random numbers": ("xor(", "threefry"),
    "kernels and densities": ("exponential(", "log("),
    "reductions": ("reduce(",),
    "gather and scatter": ("gather(", "scatter(", "dynamic-update-slice(", "dynamic-slice("),
    "elementwise": ("multiply(", "add(", "subtract(", "divide(", "select("),
    "copies": ("copy(", "transpose(", "concatenate(", "broadcast("),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", choices=list(TRAINED), default="dgp3")
    parser.add_argument("--dtype", choices=["float64", "float32"], default="float64")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", options.dtype == "float64")
    steps = 2 if options.work == "large" else 50
    run, text = compiled(options.work, options.dtype, steps)
    with one_blas_thread(), tempfile.TemporaryDirectory() as folder:
        run()
        started = time.perf_counter()
        run()
        clock = 1e3 * (time.perf_counter() - started) / steps
        with jax.profiler.trace(folder):
            run()
        (path,) = Path(folder).glob("**/*.xplane.pb")
        spent, calls = times(ProfileData.from_file(str(path)), text)
    kinds = kinds_of(text)
    total, by_kind, number = sum(spent.values()), Counter[str](), Counter[str]()
    for name, milliseconds in spent.items():
        by_kind[kinds[name]] += milliseconds
        number[kinds[name]] += calls[name]
    about = [jax.local_devices()[0].device_kind, options.work, options.dtype]
    found = [[*about, "a step, by the clock", 1, clock, ""]]
    found += [
        [*about, kind, number[kind] / steps, part / steps, part / total]
        for kind, part in by_kind.most_common()
    ]
    held = [row for row in rows.read(CSV) if [row[name] for name in COLUMNS[:3]] != about]
    rows.write(CSV, COLUMNS, [*held, *found])
    show(
        found, [(name, kinds[name], part / steps, origin(text, name)) for name, part in spent.most_common(12)]
    )


def compiled(work: str, dtype: str, steps: int) -> tuple[Any, str]:
    """A call that takes so many steps, and the program in the compiler's words."""
    x, y = (jnp.asarray(each) for each in data(work, dtype))
    model = deep_gp(TRAINED[work], inducing(work))
    guide = Guide(model, hidden=DoublyStochastic())
    svi = SVI(model, guide, program.as_numpyro(adam(0.01)), PowerEP(0.0))
    held = [program.fresh_copies(initialise(svi, jax.random.PRNGKey(0), x, y))]
    indices = jnp.asarray(
        np.random.default_rng(0).integers(len(x), size=(steps, batch(work)), dtype=np.int32)
    )
    chunk = program.build_chunk(svi, True, steps, 1).lower(held[0], x, y, indices, 0, steps).compile()

    def run() -> None:
        held[0], losses = chunk(held[0], x, y, indices, 0, steps)
        assert np.isfinite(losses).all()

    return run, chunk.as_text()


def times(profile: ProfileData, text: str) -> tuple[Counter[str], Counter[str]]:
    """Milliseconds and calls of each operation of the program, those that hold others left out."""
    known = set(re.findall(r"^\s*(?:ROOT )?%?([\w.\-]+) = ", text, re.MULTILINE))
    spent, calls = Counter[str](), Counter[str]()
    for plane in profile.planes:
        for line in plane.lines:
            for event in line.events:
                name = next((str(value) for key, value in event.stats if key == "hlo_op"), event.name)
                if name in known and not name.startswith(("while", "conditional", "call")):
                    spent[name] += event.duration_ns * 1e-6
                    calls[name] += 1
    return spent, calls


def kinds_of(text: str) -> dict[str, str]:
    """The kind of each operation, a fusion's by what it fuses."""
    bodies = {
        found[1]: found[2]
        for found in re.finditer(r"^%?([\w.\-]+) [^\n]*\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    }
    kinds = {}
    for found in re.finditer(r"^\s*(?:ROOT )?%?([\w.\-]+) = ([^\n]*)", text, re.MULTILINE):
        name, what = found[1], re.sub(r"metadata=\{[^}]*\}", "", found[2])
        inside = [bodies.get(each, "") for each in re.findall(r"(?:calls|to_apply)=%?([\w.\-]+)", what)]
        inside = [re.sub(r"metadata=\{[^}]*\}", "", each) for each in inside]
        whole = "\n".join([what, *inside])
        kinds[name] = next(
            (kind for kind, marks in KINDS.items() if any(mark in whole for mark in marks)), "other"
        )
    return kinds


def origin(text: str, name: str) -> str:
    """The JAX operation that an operation comes from."""
    found = re.search(rf"^\s*(?:ROOT )?%?{re.escape(name)} = [^\n]*op_name=\"([^\"]*)\"", text, re.MULTILINE)
    return "/".join(found[1].split("/")[-3:]) if found else ""


def show(found: list[list[Any]], largest: list[tuple[str, str, float, str]]) -> None:
    """Both tables."""
    table = Table("kind", "calls a step", "ms a step", "share", title=" ".join(found[0][:3]))
    for *_, what, calls, milliseconds, share in found:
        table.add_row(what, f"{calls:.1f}", f"{milliseconds:.3f}", f"{share:.1%}" if share else "")
    operations = Table("operation", "kind", "ms a step", "from", title="the largest")
    for name, kind, milliseconds, source in largest:
        operations.add_row(name, kind, f"{milliseconds:.3f}", source)
    for each in (table, operations):
        Console(width=150).print(each)


if __name__ == "__main__":
    main()
