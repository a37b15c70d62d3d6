"""What those see who come to the repository: its checks on every change, forms for issues, citation, promises."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
PYTHONS = [line.rsplit(" ", 1)[1] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    # YAML 1.1 takes "on" for true
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert set(workflow[True]) == {"push", "pull_request"} and workflow["permissions"] == {"contents": "read"}
    return workflow["jobs"]


def commands(job: dict[str, Any]) -> str:
    return "\n".join(step["run"] for step in job["steps"] if "run" in step)


def test_every_change_is_tested_on_each_python(jobs):
    assert jobs["test"]["strategy"]["matrix"]["python"] == PYTHONS == ["3.11", "3.12", "3.13"]
    assert re.match(r"make test PYTHON=python\$\{\{ matrix.python \}\}", commands(jobs["test"]))
    assert "make test-wheel" in commands(jobs["wheels"]) and "-m build" in commands(jobs["wheels"])
    # the wheel is tried on each of them, and the last named is what `python` is
    (setup,) = [step["with"] for step in jobs["wheels"]["steps"] if "setup-python" in step.get("uses", "")]
    assert sorted(setup["python-version"].split()) == PYTHONS
    assert "make docs" in commands(jobs["docs"])


def test_its_steps_are_those_of_the_makefile(jobs):
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    variables = set(re.findall(r"^([A-Z_]+) *[?:]?=", makefile, re.MULTILINE))
    for job in jobs.values():
        assert "timeout-minutes" in job and job["steps"][0]["uses"].startswith("actions/checkout@")
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            assert "uses" not in step or re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"])
            for path in (step.get("with") or {}).get("cache-dependency-path", "").split():
                assert (ROOT / path).exists()
        for target, settings in re.findall(r"^make (\S+)(.*)$", commands(job), re.MULTILINE):
            assert target in targets
            assert set(re.findall(r"([A-Z_]+)=", settings)) <= variables
    for end in ("newest", "lowest"):
        assert end in re.search(r"^ENDS *\?= (.*)$", makefile, re.MULTILINE)[1]


def test_the_forms_ask_for_something():
    """GitHub takes no form whose parts lack one of these."""
    assert len(FORMS) == 3
    for path in FORMS:
        form = yaml.safe_load(path.read_text())
        assert {"name", "description", "body"} <= set(form)
        names = [part["id"] for part in form["body"]]
        assert len(names) == len(set(names)) and all(part["attributes"]["label"] for part in form["body"])
        assert {part["type"] for part in form["body"]} <= {"textarea", "input"}
        assert any((part.get("validations") or {}).get("required") for part in form["body"])


def test_the_version_is_one():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"] and citation["license"] == PROJECT["license"]
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == PROJECT["version"]


def test_the_readme_names_every_extra():
    text = (ROOT / "README.md").read_text()
    for extra in set(PROJECT["optional-dependencies"]) - {"dev", "all"}:
        assert re.search(rf"^\| .*`{extra}`.* \| ", text, re.MULTILINE), extra
    assert "pip install '.[all]'" in text
