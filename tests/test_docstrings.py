"""Examples in docstrings run."""

import ast
import functools
import textwrap

import pytest

from tests.support.paths import ROOT

DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef)


@functools.cache
def examples():
    """The code of each example, by the place of its docstring."""
    found = {}
    for path in sorted((ROOT / "tsplat").rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "Example::\n\n" in text else ():
            doc = ast.get_docstring(node) if isinstance(node, DEFINITIONS) else None
            if doc and "Example::\n\n" in doc:
                lines = doc.split("Example::\n\n")[1].splitlines()
                code = textwrap.dedent("\n".join(lines))
                found[f"{path.relative_to(ROOT)}:{getattr(node, 'name', '')}"] = code
    return found


@pytest.mark.parametrize("place", examples())
def test_example_runs(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(examples()[place], place, "exec"), {})


def test_main_functions_have_an_example():
    names = {place.partition(":")[2] for place in examples()}
    assert names >= {"rasterization", "rasterize_to_pixels", "l1_ssim_loss", "Gaussians", "render", "fit", "Strategy"}
