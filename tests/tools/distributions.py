"""Checks the wheel and the source distribution: `python -m tests.tools.distributions dist`.

Compares their files with those of the repository. Then installs the wheel into an empty environment, runs the code of
README.md and docs/quickstart.md and the command, checks a program that uses the package with mypy, and resolves all
extras together, also for newer versions of Python.
"""

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import tomllib
import zipfile
from pathlib import Path

from tests.support.markdown import python_blocks
from tests.support.paths import ROOT
from tsplat import __version__

NEWER_PYTHONS = ("3.12", "3.13", "3.14")
"""Python versions for which wheels of all dependencies are resolved but not installed."""

CONSUMER = """
import torch
from typing_extensions import assert_type
from tsplat import rasterization
from tsplat.scene import Gaussians, read_ply

def render(path: str, viewmats: torch.Tensor, Ks: torch.Tensor) -> torch.Tensor:
    gaussians = read_ply(path)
    assert_type(gaussians, Gaussians)
    image, alpha, meta = rasterization(
        gaussians.means, gaussians.quats, gaussians.scales, gaussians.opacities, gaussians.sh0, viewmats, Ks, 64, 48,
        sh_degree=0,
    )
    assert_type(image, torch.Tensor)
    return image + alpha
"""


def package_files() -> set[str]:
    """Returns the paths of the package's files in the repository."""
    names = ["tsplat", "tsplat_command.py"]
    listed = subprocess.run(["git", "ls-files", *names], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {line for line in listed.splitlines() if (ROOT / line).exists()}


def check_wheel(path: Path) -> None:
    """Checks that a wheel contains the package, its license and nothing else."""
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        metadata = wheel.read(f"tsplat-{__version__}.dist-info/METADATA").decode()
    found = {name for name in names if not name.startswith(f"tsplat-{__version__}.dist-info/")}
    assert found == package_files(), found ^ package_files()
    assert f"tsplat-{__version__}.dist-info/licenses/LICENSE" in names
    required = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*(?:;(.*))?$", metadata, re.M)
    assert {name for name, marker in required if "extra" not in marker} == {"torch", "triton", "numpy", "einops"}


def check_source(path: Path) -> None:
    """Checks that a source distribution contains the package and its build files."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = package_files() | {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"}
    assert needed <= names, needed - names
    assert not any(name.startswith("tests") for name in names)


def check_installed(wheel: Path, interpreter: str) -> None:
    """Checks a wheel in an empty environment of a Python interpreter, with the versions of constraints.txt."""
    extras = list(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    extras.remove("trackio")  # requires an older Pillow than constraints.txt
    code = "\n".join(block for page in ("README.md", "docs/quickstart.md") for block in python_blocks(ROOT / page))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder, "environment", "bin", "python")

        def run(what: str, *command: object) -> str:
            print(what, flush=True)
            done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, env=environment)
            if done.returncode:
                sys.exit(f"{what}: failed\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
            return done.stdout

        pip = (python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt")
        run("new environment", interpreter, "-m", "venv", Path(folder, "environment"))
        run("install the wheel, and Pillow for images", *pip, wheel, "pillow")
        run("code of README.md and the quickstart, with the core dependencies and Pillow", python, "-c", code)
        run("install tsplat[train,io,viewer] and mypy", *pip, f"{wheel}[train,io,viewer]", "mypy")
        run("code of README.md and the quickstart", python, "-c", code)
        version = run("tsplat --version", python.with_name("tsplat"), "--version")
        assert version == f"tsplat {__version__}\n", version
        run("tsplat demo", python.with_name("tsplat"), "demo", "--steps", 10, "--out", "demo")
        Path(folder, "consumer.py").write_text(textwrap.dedent(CONSUMER))
        run("mypy of a program that uses the package", python, "-m", "mypy", "--strict", "consumer.py")
        run(f"resolve tsplat[{','.join(extras)}]", *pip, "--dry-run", f"{wheel}[{','.join(extras)}]")
        dry_run = (python, "-m", "pip", "install", "-q", "--dry-run")
        run("resolve tsplat[trackio]", *dry_run, f"{wheel}[trackio]")
        for version in NEWER_PYTHONS:
            options = ("--python-version", version, "--only-binary", ":all:", "--ignore-installed", "--target", version)
            run(f"resolve all extras for Python {version}", *dry_run, *options, f"{wheel}[{','.join(extras)}]")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="contains one wheel and one source distribution")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the environment (this one)")
    options = parser.parse_args()
    folder = options.folder.resolve()
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    check_wheel(wheel)
    check_source(source)
    check_installed(wheel, options.python)


if __name__ == "__main__":
    main()
