"""The tables of docs/performance.md, from the CSVs of the benches; what stands before its marker is kept."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from benchmarks.folding import folded
from benchmarks.gplvm_page import table
from benchmarks.works import WORKS

HERE, PAGE, MARK = Path("benchmarks"), Path("docs/performance.md"), "<!-- tables -->"


def page() -> None:
    """Write the tables of what has been measured."""
    text = PAGE.read_text() if PAGE.exists() else f"# Performance\n\n{MARK}\n"
    lines = [text.split(MARK)[0].rstrip(), "", MARK, ""]
    if (path := HERE / "speed.csv").exists():
        frame = pd.read_csv(path)
        for (device, dtype), group in frame.groupby(["device", "dtype"], sort=False):
            lines += [f"## {device}, {dtype}, milliseconds", ""]
            known = [work for work in WORKS if work in set(group["work"])]
            wide = group.pivot(index="work", columns="library", values="ms").reindex(known)
            own = group[group["library"] == "ours"].set_index("work")
            first = [name for name in ("ours", "reference", "gpflow", "gpytorch", "gpjax") if name in wide]
            wide = wide[first].join(own[["floor", "moved", "first", "peak", "compilations"]])
            ratios = group.pivot(index="work", columns="library", values="ours_over_it")
            for place, name in enumerate(first[1:], start=len(first)):
                wide.insert(place, f"ours / {name}", ratios[name])
            # of full-batch works they are not counted
            counted = wide[["floor", "moved"]]
            wide[["floor", "moved"]] = counted.where(counted > 0.0)
            names = {
                "floor": "matmuls alone",
                "moved": "moved, MiB",
                "first": "first step, s",
                "peak": "peak, MiB",
            }
            names |= {"compilations": "compiled after"}
            lines += table(wide.reset_index().rename(columns=names))
    if (path := HERE / "step-profile.csv").exists():
        for (device, work, dtype), group in pd.read_csv(path).groupby(
            ["device", "work", "dtype"], sort=False
        ):
            lines += [f"## A step of {work} on {device}, {dtype}", ""]
            shown = group[["what", "calls", "ms", "share"]]
            lines += table(shown.rename(columns={"ms": "ms a step", "calls": "calls a step"}))
    if (path := HERE / "precision.csv").exists():
        lines += ["## 32 bits beside 64", "", *table(beside(pd.read_csv(path)))]
    PAGE.write_text(folded("\n".join(lines).rstrip() + "\n"))


def beside(frame: pd.DataFrame) -> pd.DataFrame:
    """Of each model and set the log density in 64 bits, what 32 bits and another seed are beyond it, rejected steps."""
    frame = frame.assign(run=frame["dtype"] + " " + frame["seed"].astype(str))
    wide = frame.pivot(index=["model", "set", "steps"], columns="run", values="log_density")
    exact, other = wide["float64 0"], wide["float64 1"]
    found = pd.DataFrame({"log density, 64 bits": exact, "32 bits": wide["float32 0"]})
    found["32 − 64 bits, %"] = 100.0 * (wide["float32 0"] - exact) / exact.abs()
    found["another seed, %"] = 100.0 * (other - exact) / exact.abs()
    found["rejected steps"] = frame.groupby(["model", "set", "steps"])["rejected"].sum()
    return found.reset_index()


if __name__ == "__main__":
    page()
