"""Notebooks: each runs without an error, and its stored outputs, which sites show, are complete and small."""

import ast
import importlib
import json
from importlib.util import find_spec

import pytest

from tests.tools.notebooks import FOLDER, NOTEBOOKS, execute

NAMES = [path.stem for path in NOTEBOOKS]
SIZE_MAX = 300_000

notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)


def cells(path, kind):
    """Returns the cells of a kind, as stored."""
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


@pytest.mark.long
@pytest.mark.every_case
@notebooks
def test_notebook_runs(path):
    missing = [name for name in ("nbclient", "ipykernel", "matplotlib", "PIL", "rich") if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    executed = execute(path)
    kinds = {kind for cell in executed.cells for output in cell.get("outputs", ()) for kind in output.get("data", {})}
    assert "image/png" in kinds


@notebooks
def test_outputs_are_stored(path):
    code = cells(path, "code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), "run tests.tools.notebooks"
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
    assert path.stat().st_size < SIZE_MAX


@notebooks
def test_notebook_starts_with_a_title_and_imports_public_names(path):
    assert cells(path, "markdown")[0]["source"][0].startswith("# ")
    for node in ast.walk(ast.parse("\n".join("".join(cell["source"]) for cell in cells(path, "code")))):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "tsplat":
            public = importlib.import_module(node.module).__all__
            assert {alias.name for alias in node.names} <= set(public)


def test_readme_of_examples_lists_all_notebooks():
    text = (FOLDER.parent / "README.md").read_text()
    assert [name for name in NAMES if f"](notebooks/{name}.ipynb)" not in text] == []
