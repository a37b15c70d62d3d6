"""What strangers install: wheel and sdist, built, and tried on every Python there is in environments without extras."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from ppl_dgp.extras import EXTRA_OF

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13")
PIP = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet")
#: nothing that conftest.py sets for JAX
STRANGER = {
    name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "PYTHON", "XLA_"))
}
pytestmark = [pytest.mark.wheel, pytest.mark.slow]


def interpreter(version: str) -> str | None:
    """A Python of this version that can make environments, looked for as by `make test-matrix`; None without one."""
    pyenv = shutil.which("pyenv")
    root = subprocess.run([pyenv, "root"], capture_output=True, text=True).stdout.strip() if pyenv else ""
    candidates = [f"python{version}", *(Path(root) / "versions").glob(f"{version}.*/bin/python")]
    probe = f"import sys, venv, ensurepip; assert '%d.%d' % sys.version_info[:2] == '{version}'"
    for candidate in map(str, candidates):
        found = shutil.which(candidate)
        if found and subprocess.run([found, "-c", probe], capture_output=True).returncode == 0:
            return found
    return None


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel, made of the sdist, and the sdist."""
    place = tmp_path_factory.mktemp("built")
    # of a copy: what an earlier build left in the tree would get into this one
    for name in ("ppl_dgp", "models"):
        shutil.copytree(ROOT / name, place / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "CITATION.cff", "CHANGELOG.md", "MANIFEST.in"):
        shutil.copy(ROOT / name, place / "source")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(place), str(place / "source")]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,), (sdist,) = place.glob("*.whl"), place.glob("*.tar.gz")
    return wheel, sdist


def ran(*command: str | Path) -> str:
    """What a command printed, which has to end well; what it said is in the message otherwise."""
    done = subprocess.run([*map(str, command)], env=STRANGER, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr[-3000:]}"
    return done.stdout


def test_the_sdist_holds_what_the_wheel_is_made_of(built: tuple[Path, Path]):
    wheel, sdist = built
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CITATION.cff", "CHANGELOG.md", "pyproject.toml"} <= held
    for name in zipfile.ZipFile(wheel).namelist():
        if ".dist-info/" not in name:
            assert name.replace("ppl_dgp/models/", "models/") in held
    about = zipfile.ZipFile(wheel).read(f"{'-'.join(wheel.name.split('-')[:2])}.dist-info/METADATA").decode()
    for extra in (
        "all",
        "cli",
        "cuda",
        "cuda13",
        "data",
        "docs",
        "estimators",
        "export",
        "networks",
        "plots",
    ):
        assert f"Provides-Extra: {extra}\n" in about


@pytest.mark.parametrize("version", VERSIONS)
def test_it_installs_alone_and_says_what_is_missing(built: tuple[Path, Path], tmp_path: Path, version: str):
    found = interpreter(version)
    if found is None:
        pytest.skip(f"no Python {version} with venv was found")
    wheel, sdist = built
    ran(found, "-m", "venv", tmp_path / "bare")
    python = tmp_path / "bare" / "bin" / "python"
    ran(python, *PIP, wheel)
    # -I: nothing of the tree is seen
    tried = json.loads(ran(python, "-I", ROOT / "tests" / "bare.py"))
    # Matplotlib and what writes netCDF come with ArviZ 0.23, the last for Python 3.11
    brought = {"pandas", "xarray"} | ({"matplotlib", "h5netcdf", "h5py"} if version == "3.11" else set())
    assert set(tried["absent"]) == set(EXTRA_OF) - brought
    for what, heard in tried["said"].items():
        extra = what.partition(":")[0]
        if what in ("plots", "data: netCDF") and version == "3.11":
            assert heard is None
        else:
            assert heard[1].endswith(f'is not installed: pip install "ppl-dgp[{extra}]"')
    command = subprocess.run(
        [python.with_name("ppl-dgp"), "models"], env=STRANGER, capture_output=True, text=True
    )
    assert (
        command.returncode == 2 and command.stdout == "" and command.stderr == tried["said"]["cli"][1] + "\n"
    )

    # and of the sdist the same files come
    files = "import importlib.metadata as m; print(sorted(map(str, m.files('ppl-dgp'))))"
    of_wheel = ran(python, "-I", "-c", files)
    ran(python, *PIP, "--force-reinstall", "--no-deps", sdist)
    of_sdist = ran(python, "-I", "-c", files)
    assert of_sdist == of_wheel and "ppl_dgp/models/deep_gp.py" in of_wheel
    ran(
        python,
        "-I",
        "-c",
        "import ppl_dgp; assert ppl_dgp.__version__ != '0'; ppl_dgp.deep_gp, ppl_dgp.fit_svi",
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_with_all_extras_nothing_is_missing(built: tuple[Path, Path], tmp_path: Path, version: str):
    found = interpreter(version)
    if found is None:
        pytest.skip(f"no Python {version} with venv was found")
    wheel, _ = built
    ran(found, "-m", "venv", tmp_path / "all")
    python = tmp_path / "all" / "bin" / "python"
    ran(python, *PIP, f"{wheel}[all]")
    tried = json.loads(ran(python, "-I", ROOT / "tests" / "bare.py"))
    assert tried["absent"] == [] and set(tried["said"].values()) == {None}
    assert "sparse-gp" in ran(python.with_name("ppl-dgp"), "models")
