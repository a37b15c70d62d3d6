"""The house itself: what is installed is what stands in the tree, and the table of rooms names every one of them."""

import ast
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def modules() -> set[str]:
    """Every file of the package as it is installed, the zoo inside it."""
    own = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ppl_dgp").rglob("*.py")}
    return own | {f"ppl_dgp/models/{path.name}" for path in (ROOT / "models").glob("*.py")}


def test_every_room_stands_in_the_table_of_contributing():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rooms = {f"ppl_dgp/{path.parent.name}/" for path in (ROOT / "ppl_dgp").glob("*/__init__.py")}
    files = {f"ppl_dgp/{path.name}" for path in (ROOT / "ppl_dgp").glob("*.py")} - {"ppl_dgp/__init__.py"}
    missing = sorted(place for place in rooms | files if f"`{place}`" not in text)
    assert not missing


def test_every_room_is_named_for_installation():
    """setuptools installs the packages that are named, and no others."""
    import tomllib

    named = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    assert named == {name.rsplit("/", 1)[0].replace("/", ".") for name in modules()}


@pytest.mark.wheel
@pytest.mark.slow
def test_the_wheel_holds_the_tree(tmp_path):
    # of a copy: what an earlier build left in the tree would get into this one
    source = tmp_path / "source"
    for name in ("ppl_dgp", "models"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path),
        str(source),
    ]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in held if name.endswith(".py")} == modules()
    assert "ppl_dgp/py.typed" in held


#: the field's words, told apart by their rooms, and commands named after the verb that they call
SHARED = {"Linear", "Constant", "Gaussian", "compare", "fit", "predict", "__all__"}


def test_a_public_name_means_one_thing():
    places: dict[str, list[str]] = {}
    for path in sorted([*(ROOT / "ppl_dgp").rglob("*.py"), *(ROOT / "models").glob("*.py")]):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names = [node.name]
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            else:
                continue
            for name in names:
                places.setdefault(name, []).append(path.name)
    twice = {name: where for name, where in places.items() if len(where) > 1 and not name.startswith("_")}
    assert {name: where for name, where in twice.items() if name not in SHARED} == {}
