"""The house itself: what is installed is what stands in the tree, and the table of rooms names every one of them."""

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


@pytest.mark.slow
def test_the_wheel_holds_the_tree(tmp_path):
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in held if name.endswith(".py")} == modules()
    assert "ppl_dgp/py.typed" in held
