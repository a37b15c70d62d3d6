"""Extras: the core imports nothing of theirs, and where one is missing a sentence says which and how to install it."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ppl_dgp.diagnostics as diagnostics
from ppl_dgp.extras import EXTRA_OF, MissingExtra, needed_for

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
#: what is imported, where it is called otherwise by those who install it
IMPORTED = {"scikit-learn": "sklearn"}
#: what comes with a package of the core or of an extra, and is imported beside it
BESIDE = {"arviz_stats": "arviz"}


def imported(requirements: list[str]) -> set[str]:
    """Names under which the packages of requirements are imported, our own extras left out."""
    names = (re.split(r"[\[<>=;~! ]", each)[0] for each in requirements if not each.startswith("ppl-dgp["))
    return {IMPORTED.get(name, name) for name in names}


def test_what_is_said_is_what_the_extras_bring():
    core = imported(PROJECT["project"]["dependencies"])
    assert core == {
        "jax", "jaxlib", "numpyro", "funsor", "arviz", "numpy", "scipy", "optax", "jaxtyping", "safetensors",
        "threadpoolctl",
    }  # fmt: skip
    for package, extra in EXTRA_OF.items():
        assert package in imported(EXTRAS[extra]) and package not in core
    own = {
        extra: imported(EXTRAS[extra])
        for extra in ("cli", "plots", "data", "estimators", "networks", "samplers", "export")
    }
    assert set().union(*own.values()) == set(EXTRA_OF)
    (everything,) = EXTRAS["all"]
    assert set(everything.removeprefix("ppl-dgp[").rstrip("]").split(",")) == set(own)
    assert {"cuda", "cuda13", "docs", "dev"} <= set(EXTRAS)
    assert EXTRAS["docs"] == PROJECT["dependency-groups"]["docs"]


def test_every_import_is_of_the_core_or_of_an_extra():
    known = (
        imported(PROJECT["project"]["dependencies"])
        | set(EXTRA_OF)
        | set(sys.stdlib_module_names)
        | {"ppl_dgp"}
    )
    for path in [*(ROOT / "ppl_dgp").rglob("*.py*"), *(ROOT / "models").glob("*.py")]:
        if path.suffix not in (".py", ".pyi"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""] if not node.level else []
            else:
                names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                root = name.partition(".")[0]
                assert BESIDE.get(root, root) in known, f"{path.name} imports {root}"


def test_a_package_of_no_extra_is_missed_as_ever():
    with pytest.raises(ModuleNotFoundError, match="no_such_package"), needed_for("this"):
        import no_such_package  # noqa: F401
    with pytest.raises(
        MissingExtra, match=r'^this needs Matplotlib, which is not .*pip install "ppl-dgp\[plots\]"$'
    ):
        with needed_for("this"):
            raise ModuleNotFoundError("No module named 'matplotlib.axes'", name="matplotlib.axes")


@pytest.mark.slow
def test_without_extras_a_fit_runs_and_the_rest_says_what_is_missing():
    hidden = sorted(set(EXTRA_OF) - {"pandas", "xarray"})  # which ArviZ needs itself
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "bare.py"), *hidden],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sorted(found["absent"]) == hidden
    for what, (package, text) in found["said"].items():
        extra = what.partition(":")[0]
        assert package in text.replace("scikit-learn", "sklearn").lower()
        assert text.endswith(f'which is not installed: pip install "ppl-dgp[{extra}]"')
    assert found["said"]["cli"][1].startswith("ppl-dgp: error: ")


def test_a_package_that_a_command_misses_is_one_line(refuses, monkeypatch, tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"none")
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "pyarrow", None)
        patched.delitem(sys.modules, "ppl_dgp.data.parquet", raising=False)
        words = "reading .parquet needs pyarrow", 'pip install "ppl-dgp[data]"'
        refuses(["fit", str(tmp_path / "a.parquet"), "--model", "sparse-gp"], *words)

    def missing(name: str):
        def app(**_):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        return app

    monkeypatch.setattr("ppl_dgp.cli.app.app", missing("pandas"))
    refuses(["models"], 'this command needs pandas, which is not installed: pip install "ppl-dgp[data]"')
    monkeypatch.setattr("ppl_dgp.cli.app.app", missing("ppl_dgp.lost"))
    with pytest.raises(ModuleNotFoundError):  # a fault of ours, and no extra
        refuses(["models"])


def test_the_room_of_diagnostics_knows_where_its_names_are():
    places = {name: file for file, names in diagnostics._FILES.items() for name in names}
    tree = ast.parse(Path(diagnostics.__file__).read_text())
    declared = {
        each.asname or each.name: node.module.rsplit(".", 1)[1]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ppl_dgp.diagnostics.")
        for each in node.names
    }
    eager = {name for name, file in declared.items() if file == "scores"}
    assert declared == places | dict.fromkeys(eager, "scores") and set(declared) == set(diagnostics.__all__)
    # a file of the same name would take the place of a name that is imported later
    files = {path.stem for path in Path(diagnostics.__file__).parent.glob("*.py")}
    assert not files & set(places)
    for name in diagnostics.__all__:
        assert callable(getattr(diagnostics, name))


def test_bounds_import_no_extra_and_pictures_no_arviz():
    """Each takes seconds."""
    program = """
import sys
from ppl_dgp import compare, elbo
assert not {"arviz", "matplotlib", "rich", "sklearn", "xarray"} & sys.modules.keys()
from ppl_dgp import plot_fit
assert "matplotlib" in sys.modules and not {"arviz", "xarray"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
