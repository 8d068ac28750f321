"""`install()` and ``python -m tsplat.compat.gsplat``."""

import re
import sys

import pytest

from tsplat.compat.gsplat import __main__ as runner

SCRIPT = """
import sys
import gsplat
from gsplat.rendering import rasterization
from gsplat.strategy.ops import relocate
from gsplat.cuda._torch_impl import _eval_sh_bases_fast
import helper
if __name__ == "__main__":
    print(gsplat.__version__, rasterization.__module__, relocate.__name__, helper.NAME, sys.argv)
"""

RUN = "import runpy; runpy.run_module('tsplat.compat.gsplat', run_name='__main__')"
"""As ``python -m tsplat.compat.gsplat``."""


def test_modules_are_imported_under_the_name_gsplat(forks):
    result = forks.run("""
from tsplat.compat.gsplat import install
install()
install()
import gsplat, gsplat.cuda._wrapper, gsplat.strategy.default
from gsplat import rasterization
from gsplat.strategy import DefaultStrategy
from gsplat.utils import depth_to_normal
import tsplat, tsplat.compat.gsplat, tsplat.strategies
assert gsplat is tsplat.compat.gsplat
assert rasterization is tsplat.rasterization
assert gsplat.strategy.default.DefaultStrategy is DefaultStrategy is tsplat.strategies.DefaultStrategy
assert gsplat.cuda._wrapper is tsplat.compat.gsplat.cuda._wrapper
assert gsplat.__version__ == "1.5.3"
try:
    import gsplat.nothing
except ModuleNotFoundError:
    print("no gsplat.nothing")
""")
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout == "no gsplat.nothing\n"


def test_importing_the_package_installs_nothing(forks):
    result = forks.run("import sys, tsplat.compat.gsplat; assert 'gsplat' not in sys.modules")
    assert result.returncode == 0, result.stderr[-3000:]


@pytest.mark.parametrize("imported", ["gsplat", "gsplat.utils"])
def test_install_raises_after_gsplat_was_imported(forks, imported):
    result = forks.run(
        """
import sys, types
name = sys.argv[1]
sys.modules[name] = types.ModuleType(name)
before = dict(sys.modules)
from tsplat.compat.gsplat import AlreadyImportedError, install
try:
    install()
except AlreadyImportedError as error:
    assert isinstance(error, RuntimeError)
    print(error)
names = [name for name in sys.modules if name.split(".")[0] == "gsplat"]
assert names == [name] and sys.modules[name] is before[name], names
""",
        imported,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert re.match(r"gsplat: 1 of its modules are imported already; call .*install\(\) before", result.stdout)


def test_runner_runs_a_script_with_its_arguments(tmp_path, forks):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("NAME = 'helper'")
    arguments = [str(tmp_path / "script.py"), "--steps", "3"]
    result = forks.run(RUN, *arguments)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout == f"1.5.3 tsplat.rasterization relocate helper {arguments}\n"


def test_runner_passes_the_exit_status_of_the_script(tmp_path, forks):
    (tmp_path / "script.py").write_text("import sys, gsplat; sys.exit(7)")
    result = forks.run(RUN, tmp_path / "script.py")
    assert result.returncode == 7, result.stderr[-3000:]


@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [([], 2, "SCRIPT is missing"), (["none.py"], 2, "'none.py' is not a file"), (["--help"], 0, "")],
)
def test_runner_prints_its_usage(capsys, arguments, status, error):
    assert runner.main(arguments) == status
    output = capsys.readouterr()
    assert "usage: python -m tsplat.compat.gsplat SCRIPT" in (output.err if error else output.out)
    assert error in output.err
    assert "gsplat" not in sys.modules
