"""``python -m tsplat.compat.gsplat`` and ``python -m tsplat.compat.inria``: usage and exit status."""

import importlib
import sys

import pytest

PACKAGES = {"tsplat.compat.gsplat": "gsplat", "tsplat.compat.inria": "diff_gaussian_rasterization"}
"""Package -> the first of the packages that it replaces."""


@pytest.mark.parametrize("package", PACKAGES)
def test_runner_passes_the_exit_status_of_the_script(tmp_path, forks, package):
    (tmp_path / "script.py").write_text(f"import sys, {PACKAGES[package]}; sys.exit(7)")
    result = forks.run(f"import runpy; runpy.run_module({package!r}, run_name='__main__')", tmp_path / "script.py")
    assert result.returncode == 7, result.stderr[-3000:]


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        ([], 2, "SCRIPT is missing"),
        (["none.py"], 2, "'none.py' is not a file"),
        (["-m"], 2, "MODULE is missing"),
        (["-m", "no_such_module.part"], 2, "no module is named 'no_such_module.part'"),
        (["--help"], 0, ""),
    ],
)
def test_runner_prints_its_usage(capsys, package, arguments, status, error):
    assert importlib.import_module(f"{package}.__main__").main(arguments) == status
    output = capsys.readouterr()
    assert f"usage: python -m {package} SCRIPT" in (output.err if error else output.out)
    assert error in output.err
    assert PACKAGES[package] not in sys.modules
