"""The tables of docs/performance.md, from the CSVs of the benches; what stands before its marker is kept."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from gplvm_page import table
from works import WORKS

HERE, PAGE, MARK = Path("benchmarks"), Path("docs/performance.md"), "<!-- tables -->"


def page() -> None:
    """Write the tables of what has been measured."""
    text = PAGE.read_text() if PAGE.exists() else f"# Performance\n\n{MARK}\n"
    lines = [text.split(MARK)[0].rstrip(), "", MARK, ""]
    if (path := HERE / "speed.csv").exists():
        frame = pd.read_csv(path)
        for dtype, group in frame.groupby("dtype", sort=False):
            lines += [f"## {dtype}, milliseconds", ""]
            known = [work for work in WORKS if work in set(group["work"])]
            wide = group.pivot(index="work", columns="library", values="ms").reindex(known)
            own = group[group["library"] == "ours"].set_index("work")
            first = [name for name in ("ours", "reference", "gpflow", "gpytorch") if name in wide]
            wide = wide[first].join(own[["floor", "first", "peak", "compilations"]])
            ratios = group.pivot(index="work", columns="library", values="ours_over_it")
            for place, name in enumerate(first[1:], start=len(first)):
                wide.insert(place, f"ours / {name}", ratios[name])
            # of full-batch works they are not counted
            wide["floor"] = wide["floor"].where(wide["floor"] > 0.0)
            names = {"floor": "matmuls alone", "first": "first step, s", "peak": "peak, MiB"}
            names |= {"compilations": "compiled after"}
            lines += table(wide.reset_index().rename(columns=names))
    if (path := HERE / "precision.csv").exists():
        frame = pd.read_csv(path)
        wide = frame.pivot(index=["model", "set", "steps"], columns="dtype", values=["log_density", "rejected"])
        wide.columns = [f"{name}, {dtype}" for name, dtype in wide.columns]
        lines += ["## 32 bits beside 64", "", *table(wide.reset_index())]
    PAGE.write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    page()
