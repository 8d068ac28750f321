"""The wheel contains the package and nothing else."""

import shutil
import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from tests.tools.distributions import check_wheel, package_files


@pytest.mark.slow
def test_wheel_contains_the_package(tmp_path):
    source = tmp_path / "source"
    for name in (*package_files(), "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    (source / "tests").mkdir()
    (source / "tests" / "__init__.py").touch()
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, source]
    done = subprocess.run(pip, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    check_wheel(wheel)
