"""Names, signatures and defaults are those of gsplat 1.5.3, and of the names that gsplat 1.6 adds."""

import enum
import inspect
import json
import pydoc
import re
import typing

import pytest

import tsplat.compat.gsplat
from benchmarks.gpu_timing import gsplat_kernels
from tests.compat.gsplat.signatures import SIGNATURES, SIGNATURES_1_6, describe, find, parameters
from tests.support.paths import ROOT

PACKAGE = "tsplat.compat.gsplat"
FOLLOWS_NUMERICS = ("require_all_sigma_points_valid=True", "require_all_sigma_points_valid=None")
"""A default of gsplat 1.5.3, and ours, which stands for True, or with ``numerics="gsplat-1.6"`` for False, as there."""


@pytest.mark.parametrize("path", [*SIGNATURES, *SIGNATURES_1_6])
def test_signature(path):
    """Parameters beyond gsplat's come last and have defaults."""
    value, expected = find(PACKAGE, path), {**SIGNATURES, **SIGNATURES_1_6}[path]
    expected = expected.replace(*FOLLOWS_NUMERICS)
    is_literal = typing.get_origin(value) is typing.Literal
    if isinstance(value, str) or is_literal or (isinstance(value, type) and issubclass(value, enum.Enum)):
        assert describe(value) == expected
        return
    found = parameters(value)
    counts = [n for n in range(len(found) + 1) if f"({', '.join(found[:n])})" == expected]
    assert counts, f"expected {expected}, found ({', '.join(found)})"
    for parameter in list(inspect.signature(value).parameters.values())[counts[0] :]:
        assert parameter.default is not inspect.Parameter.empty, parameter


def functions():
    """The paths of functions and classes whose parameters the tables have."""
    return [path for path, text in {**SIGNATURES, **SIGNATURES_1_6}.items() if text.startswith("(")]


@pytest.mark.parametrize("path", functions())
def test_help_shows_the_signature_of_the_code_and_its_docstring(path):
    """Signatures stand in the code: none is attached to a function that takes any arguments."""
    value = find(PACKAGE, path)
    signature, doc = inspect.signature(value), inspect.getdoc(value)
    assert "__signature__" not in vars(value)
    assert not any(parameter.kind is parameter.VAR_POSITIONAL for parameter in signature.parameters.values())
    text = pydoc.render_doc(value, renderer=pydoc.plaintext)
    assert doc.splitlines()[0] in text
    if str(signature) != "()":  # a class without a constructor of its own
        assert "".join(str(signature).split()) in "".join(text.split())


def test_public_names():
    public = {path for path in SIGNATURES if "." not in path}
    assert len(SIGNATURES_1_6) == 40
    assert set(tsplat.compat.gsplat.__all__) == public | set(SIGNATURES_1_6) | {"AlreadyImportedError", "install"}


def test_documentation_states_what_is_implemented():
    rows = re.findall(r"^\| (`[^|]*) \| ([^|]*) \|$", (ROOT / "docs" / "from_gsplat.md").read_text(), re.MULTILINE)
    states = {name: state for names, state in reversed(rows) for name in re.findall(r"`(\w+)`", names)}
    for path in [*SIGNATURES, *SIGNATURES_1_6]:
        if "." not in path:
            assert not states[path].startswith("raise"), path


@pytest.mark.slow
def test_table_is_that_of_the_wheel(forks):
    try:
        wheel = gsplat_kernels.find_wheel()
    except gsplat_kernels.UnavailableError as error:
        pytest.skip(str(error))
    # gsplat warns where there is no CUDA toolkit.
    result = forks.run(
        f"""
import json, sys
sys.path.insert(0, {str(wheel)!r})
import gsplat
from tests.compat.gsplat.signatures import SIGNATURES, describe, find
found = {{path: describe(find("gsplat", path)) for path in SIGNATURES}}
print("RESULT", json.dumps([gsplat.__file__, gsplat.all, found]))
"""
    )
    if "No module named" in result.stderr:
        pytest.skip(f"gsplat cannot be imported: {result.stderr.strip().splitlines()[-1]}")
    assert result.returncode == 0, result.stderr[-3000:]
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("RESULT"))
    file, names, found = json.loads(line.removeprefix("RESULT"))
    assert file.startswith(str(wheel))
    assert found == SIGNATURES
    assert len(names) == 27
    assert set(names) <= set(tsplat.compat.gsplat.__all__)


def test_capabilities_are_those_that_work():
    package = tsplat.compat.gsplat
    names = [name for name in package.__all__ if name.startswith("has_")]
    assert {name for name in names if not getattr(package, name)()} == {"has_camera_wrappers"}
