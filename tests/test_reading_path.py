"""The reading path of docs/architecture.md leads from file to file, and leaves none out."""

import ast
import functools
import re

import pytest

from tests.support.paths import ROOT
from tests.test_imports import PACKAGE, imported_file, imports, tree_of

PAGE = ROOT / "docs" / "architecture.md"

GENERAL = {"kernels/launch.py", "kernels/device_math.py", "kernels/compositing/footprints/interface.py"}
"""Files of kernels/ that every kernel needs, whatever it computes."""

ASIDE = {f"stages/{name}.py" for name in ("agreement", "inputs", "validation", "value_checks", "shading", "meta")}
"""Files that name ``means``, but are not on its path: they check it, describe it, or take directions from it."""


def read_page():
    """Returns the steps each a file and the names in backticks, and the files of the branches."""
    section = PAGE.read_text().split("## Reading path\n")[1].split("\n## ")[0]
    *steps, last = re.split(r"^\d+\. ", section, flags=re.MULTILINE)[1:]
    last, _, branches = last.partition("\n\n")
    return [parse_step(step) for step in [*steps, last]], [path for path, _ in links(branches)]


def links(text):
    found = re.findall(r"\[`(.*?)`\]\((.*?)\)", text)
    return [(PAGE.parent.joinpath(target).resolve(), label) for label, target in found]


def parse_step(text):
    (path, label), *_ = links(text)
    assert str(path).endswith(label), f"{label} links to {path}"
    return path, re.findall(r"`(\w+)`", text.split(")", 1)[1])


def short(path):
    return str(path.relative_to(PACKAGE))


@functools.cache
def names_in(path):
    """All identifiers of a file: of variables, attributes, parameters, functions, classes and imports."""
    found = set()
    for node in ast.walk(tree_of(path)):
        found |= {getattr(node, field, None) for field in ("id", "attr", "arg", "name")}
    return found


def definitions_in(path):
    found = set()
    for node in tree_of(path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


@functools.cache
def imported_files(path):
    """The files that a file imports, and those that the ``__init__`` of a package imports for it."""
    found = {imported_file(target) for _, target, _ in imports(path)} - {None, path}
    packages = {file for file in found if file.name == "__init__.py" and file.parent != PACKAGE}
    return found | {imported_file(target) for package in packages for _, target, _ in imports(package)} - {None, path}


def problems(steps, branches):
    paths = [path for path, _ in steps]
    found = [f"{short(path)} is there twice" for path in paths if paths.count(path) > 1]
    for n, (path, names) in enumerate(steps):
        found += [f"{short(path)} does not contain {name}" for name in names if name not in names_in(path)]
        defined = definitions_in(path).intersection(names)
        before = {file for earlier in paths[:n] for file in [earlier, *imported_files(earlier)]}
        before = {file for file in before if file in paths[:n] or file.name == "__init__.py"}
        if n > 0 and not any(name in names_in(file) for name in defined for file in before):
            found.append(f"no file before {short(path)} uses what it defines: {sorted(defined)}")
        for file in imported_files(path) - {*paths, *branches}:
            is_step = short(file).startswith("kernels/") or (
                short(file).startswith("stages/") and "means" in names_in(file)
            )
            if is_step and file.name != "__init__.py" and short(file) not in GENERAL | ASIDE:
                found.append(f"{short(path)} imports {short(file)}, which is missing")
    return found


def test_reading_path():
    steps, branches = read_page()
    assert short(steps[0][0]) == "rasterization.py"
    assert not problems(steps, branches)
    assert "v_means2d" in steps[-1][1]


@pytest.mark.parametrize("n", range(1, len(read_page()[0])))
def test_path_without_a_step_has_problems(n):
    steps, branches = read_page()
    assert problems(steps[:n] + steps[n + 1 :], branches)


def test_path_with_a_name_that_moved_has_problems():
    (path, names), *steps = read_page()[0]
    assert problems([(path, [*names, "moved_away"]), *steps], [])
