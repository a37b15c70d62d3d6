"""Notebooks: their two halves say the same, what is committed was run, and they still run."""

from pathlib import Path

import jupytext
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
SCRIPTS = sorted(NOTEBOOKS.glob("*.py"))


def cells(path: Path) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source.strip()) for cell in jupytext.read(path).cells]


def test_there_is_a_notebook_for_every_script():
    assert SCRIPTS
    assert [path.stem for path in SCRIPTS] == sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script_and_notebook_agree_cell_by_cell(script):
    notebook = script.with_suffix(".ipynb")
    assert cells(notebook) == cells(script), f"mend it with: jupytext --sync {notebook}"
    assert jupytext.read(script).metadata["jupytext"]["formats"] == "ipynb,py:percent"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_what_is_committed_was_run_in_order_without_errors(script):
    notebook = jupytext.read(script.with_suffix(".ipynb"))
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"execute_result", "display_data", "stream"}
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 3
    # warnings and progress bars would show where it was run
    assert "stderr" not in {output.get("name") for output in outputs}


@pytest.mark.notebook
@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_it_runs(script, tmp_path):
    notebook = jupytext.read(script)
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
