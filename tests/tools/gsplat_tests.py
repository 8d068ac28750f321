"""Runs the tests of gsplat's main branch on tsplat: `python -m tests.tools.gsplat_tests CHECKOUT --garden FILE`.

Names of `tsplat.compat.gsplat` replace gsplat's, with `numerics="gsplat-1.6"`. gsplat's own code remains where tests
compare with it (`OWN`). Names that exist only in gsplat, such as C++ operators, raise an error when they are called.
The tests run on the CPU; this module provides the functions of nerfacc and pytest-check. Scenes are smaller unless
`--full` is given, because gsplat's PyTorch code is slow. The tool prints how many tests of each file pass, skip
themselves and fail, and how often each error message occurs.

CHECKOUT is a clone of gsplat's repository, of which a copy is tested. `--garden` gives the path of
`assets/test_garden.npz` if the clone does not contain it.
"""

import argparse
import ast
import collections
import functools
import importlib
import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor

import tsplat.compat.gsplat
from tests.support.paths import ROOT

FILES = (
    "test_basic", "test_rasterization", "test_losses", "test_losses_depth", "test_losses_fused",
    "test_sparse_intersect", "test_sparse_tile_layout", "test_sparse_rasterize", "test_sparse_num_contributing",
    "test_sparse_contributing_ids", "test_sparse_top_contributing", "test_external_distortion", "test_2dgs",
    "test_2dgs_scene_integration", "test_compression", "test_ftheta", "test_math", "test_pickle", "test_relocation",
    "test_strategy", "test_mcmc_perturb", "test_cameras", "scene/components/test_gaussian_scene",
    "stage/components/test_stage",
)  # fmt: skip
"""Tests of features that tsplat has. The other tests concern packages that tsplat does not have, or gsplat's test
helpers."""

OWN = ("_helper", "cuda._torch_impl", "cuda._torch_impl_2dgs")
"""Modules for which gsplat's code is used although tsplat has them, because tests compare with them."""

OWN_NAMES = ("cuda._lidar", "rendering")
"""Modules in which gsplat's code is used for names that tsplat does not have."""

COPY = "TSPLAT_GSPLAT_COPY"
FULL = "TSPLAT_GSPLAT_FULL"

SMALLER = {
    "test_rasterization.py": [
        (r"sensor_model\.width, sensor_model\.height = 300, 200", "sensor_model.width, sensor_model.height = 60, 40"),
        (r"focal = 300\.0", "focal = 60.0"),
        (r"\b10_?000\b", "400"),
    ],
    "test_2dgs.py": [(r"W, H = 640, 480", "W, H = 160, 120"), (r"N = 80000", "N = 2000")],
    "test_cameras.py": [(r"n_rows = 128", "n_rows = 32"), (r"n_columns = (3600|1200)", "n_columns = 120")],
}
"""Replacements that make scenes smaller."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--garden", type=Path, help="test_garden.npz (that of the checkout)")
    parser.add_argument("--file", action="append", choices=FILES, help="of tests (all)")
    parser.add_argument("--select", default="", help="tests, as pytest's -k does")
    parser.add_argument("--full", action="store_true", help="scenes of gsplat's size")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which a file is stopped (60)")
    parser.add_argument("--failed", type=Path, help="a file to write the names of failed tests to, with messages")
    arguments = parser.parse_args()
    counts: dict[str, collections.Counter[str]] = {}
    causes: collections.Counter[str] = collections.Counter()
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        copy(arguments.checkout, Path(folder), arguments.garden, arguments.full)
        for name in arguments.file or FILES:
            counts[name] = collections.Counter()
            for test, outcome, message in run(Path(folder), name, arguments):
                counts[name][outcome] += 1
                if outcome in ("failed", "error"):
                    causes[f"{name}: {_shape(message)}"] += 1
                    failed.append(f"{name}::{test}\t{message}")
            print(f"{name}: {dict(counts[name])}", flush=True)
    print("\n| file | pass | skip themselves | fail |\n| --- | ---: | ---: | ---: |")
    for name, count in (*counts.items(), ("all", sum(counts.values(), collections.Counter()))):
        print(f"| {name} | {count['passed']} | {count['skipped']} | {count['failed'] + count['error']} |")
    for cause, n in causes.most_common():
        print(f"{n:4} {cause}")
    if arguments.failed:
        arguments.failed.write_text("\n".join(failed) + "\n")
    return 0


def _shape(message: str) -> str:
    """Returns the first line of a message without its numbers."""
    return re.sub(r"[-+]?\d[\d.e+-]*", "#", message.strip().splitlines()[0])[:200] if message.strip() else ""


def copy(checkout: Path, folder: Path, garden: Path | None, is_full: bool) -> None:
    """Copies gsplat's tests and code, edited for a package with another name and for the CPU."""
    shutil.copytree(checkout / "gsplat", folder / "gsplat_own", ignore=shutil.ignore_patterns("csrc", "include"))
    # gsplat's lidar models set properties of tsplat's parameters.
    lidars = folder / "gsplat_own" / "cuda" / "_torch_lidars.py"
    lidars.write_text(lidars.read_text().replace("object.__setattr__(params,", "object.__setattr__(self,"))
    (folder / "assets").mkdir()
    shutil.copy(garden or checkout / "assets" / "test_garden.npz", folder / "assets" / "test_garden.npz")
    for path in sorted((checkout / "tests").rglob("*.py")):
        relative = path.relative_to(checkout / "tests")
        if relative.name == "conftest.py":
            continue
        text = path.read_text()
        text = re.sub(r"\b(from|import) tests\b", r"\1 gsplat_tests", text)
        text = re.sub(r"(['\"])cuda(:0)?\1", r"\1cpu\1", text)
        text = text.replace("torch.cuda.is_available()", "True").replace(".cuda()", ".cpu()")
        for found, replaced in () if is_full else SMALLER.get(relative.name, ()):
            text = re.sub(found, replaced, text)
        # Other tests import the camera parser from tests that skip themselves.
        text = text.replace("from gsplat_tests.test_cameras import", "from gsplat_tests.parsed_cameras import")
        (folder / "gsplat_tests" / relative).parent.mkdir(parents=True, exist_ok=True)
        (folder / "gsplat_tests" / relative).write_text(text)
        if relative.name == "test_cameras.py":
            text = text.replace("if not has_camera_wrappers():", "if False:")
            (folder / "gsplat_tests" / "parsed_cameras.py").write_text(text)
    (folder / "gsplat_tests" / "__init__.py").touch()


def run(folder: Path, name: str, arguments: argparse.Namespace) -> list[tuple[str, str, str]]:
    """Runs the tests of a file. Returns the name, outcome and message of each test."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "tests.tools.gsplat_tests", "-p", "no:cacheprovider",
        f"--rootdir={folder}", "-c", os.devnull, f"--junitxml={report}", "--tb=line", "-W", "ignore",
        str(folder / "gsplat_tests" / f"{name}.py"), *(["-k", arguments.select] if arguments.select else []),
    ]  # fmt: skip
    environment = os.environ | {COPY: str(folder), "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    if arguments.full:
        environment[FULL] = "1"
    try:
        done = subprocess.run(command, cwd=folder, env=environment, timeout=60 * arguments.minutes, capture_output=True)
    except subprocess.TimeoutExpired:
        return [("", "error", f"took more than {arguments.minutes} minutes")]
    if not report.exists():
        return [("", "error", done.stdout.decode()[-2000:] + done.stderr.decode()[-2000:])]
    outcomes = []
    for case in ElementTree.parse(report).iter("testcase"):
        outcome, message = "passed", ""
        for child in case:
            if child.tag in KINDS:
                outcome, message = KINDS[child.tag], child.get("message", "")
        outcomes.append((case.get("name", ""), outcome, message))
    return outcomes


KINDS = {"failure": "failed", "error": "error", "skipped": "skipped"}


# The rest of this module is a pytest plugin, which runs in the process of the tests.


def pytest_configure() -> None:
    if COPY not in os.environ:
        return
    install(Path(os.environ[COPY]))


def install(folder: Path) -> None:
    """Makes `import gsplat` return tsplat's names, and gsplat's own names where tsplat has none."""
    tsplat.compat.gsplat.install()
    own = folder / "gsplat_own"
    sys.modules["nerfacc"] = _module("nerfacc", render_weight_from_alpha, accumulate_along_rays, pack_info)
    sys.modules["pytest_check"] = _module("pytest_check")
    sys.modules["pytest_check"].check = types.SimpleNamespace(check_func=_check_func)
    sys.modules["gsplat.cuda._backend"] = _module("gsplat.cuda._backend")
    sys.modules["gsplat.cuda._backend"]._C = types.SimpleNamespace()
    torch.cuda.synchronize = lambda *arguments: None
    defaults: dict[int, Any] = {}
    mapped = {
        name.removeprefix("gsplat").removeprefix("."): module
        for name, module in sys.modules.items()
        if name.partition(".")[0] == "gsplat"
    }
    for relative, module in mapped.items():
        path = own / relative.replace(".", "/")
        if path.is_dir():
            module.__path__ = [str(path)]
        if relative in OWN:
            del sys.modules[f"gsplat.{relative}"]
            continue
        for key, value in list(vars(module).items()):
            if callable(value) and not key.startswith("__"):
                setattr(module, key, defaults.setdefault(id(value), _of_1_6(value)))
    for relative, module in mapped.items():
        path = own / relative.replace(".", "/")
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if relative not in OWN and source.is_file():
            _add_missing(module, relative, source)
    helper = importlib.import_module("gsplat._helper")
    for relative in OWN:
        importlib.import_module(f"gsplat.{relative}")
    if FULL not in os.environ:
        helper.load_test_data = _smaller(helper.load_test_data)


def _module(name: str, *functions: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    for function in functions:
        setattr(module, function.__name__, function)
    return module


def _of_1_6(function: Any) -> Any:
    """Returns the function with the constants of gsplat 1.6 if it has the argument `numerics`."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return function
    numerics = parameters.get("numerics")
    if inspect.isclass(function) or numerics is None or numerics.kind is not numerics.KEYWORD_ONLY:
        return function

    @functools.wraps(function)
    def with_constants(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **{"numerics": "gsplat-1.6"} | named)

    return with_constants


def _add_missing(module: types.ModuleType, relative: str, source: Path) -> None:
    """Adds the names that gsplat's module defines but tsplat's does not, as gsplat's own code or as functions that
    raise."""
    missing = [name for name in _defined(ast.parse(source.read_text())) if not hasattr(module, name)]
    own = None
    if relative in OWN_NAMES and missing:
        specification = importlib.util.spec_from_file_location(f"gsplat.{relative}_of_gsplat", source)
        assert specification is not None and specification.loader is not None
        own = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(own)
        # gsplat's code uses tsplat's names, such as enumerations, where they exist.
        shared = [name for name in vars(own) if not name.startswith("__") and hasattr(module, name)]
        vars(own).update({name: getattr(module, name) for name in shared})
    for name in missing:
        setattr(module, name, getattr(own, name) if own is not None else _absent(f"gsplat.{relative}.{name}"))


def _defined(tree: ast.Module) -> list[str]:
    names = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    return names + [target.id for node in assigned for target in node.targets if isinstance(target, ast.Name)]


def _absent(name: str) -> Any:
    def raises(*arguments: Any, **named: Any) -> Any:
        raise NotImplementedError(f"{name} does not exist in tsplat")

    return raises


def _smaller(load: Any) -> Any:
    """Wraps a function that loads test data: keeps every eighth Gaussian and a quarter of the resolution."""

    @functools.wraps(load)
    def smaller(*arguments: Any, **named: Any) -> Any:
        means, quats, scales, opacities, colors, viewmats, Ks, width, height = load(*arguments, **named)
        Ks = torch.cat([Ks[:, :2] / 4, Ks[:, 2:]], 1)
        gaussians = (values[::8].contiguous() for values in (means, quats, scales, opacities, colors))
        return (*gaussians, viewmats, Ks, width // 4, height // 4)

    return smaller


def _check_func(function: Any) -> Any:
    """Replaces pytest-check's decorator: the check fails immediately."""

    @functools.wraps(function)
    def check(*arguments: Any, **named: Any) -> bool:
        function(*arguments, **named)
        return True

    return check


@pytest.fixture(autouse=COPY in os.environ)
def setup_test_environment() -> None:
    torch.manual_seed(42)


@pytest.fixture(scope="session")
def dist_init(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Initializes a process group with one process."""
    store = torch.distributed.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, world_size=1, rank=0)
    yield
    torch.distributed.destroy_process_group()


def render_weight_from_alpha(
    alphas: Tensor, *, packed_info: Tensor | None = None, ray_indices: Tensor | None = None, n_rays: int | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the weight of each sample and the transmittance in front of it. Samples are ordered by ray."""
    if packed_info is None:
        assert ray_indices is not None and n_rays is not None
        packed_info = pack_info(ray_indices, n_rays)
    starts, counts = packed_info.long().unbind(-1)
    rays = torch.repeat_interleave(torch.arange(len(counts)), counts)
    columns = torch.arange(len(alphas)) - starts[rays]
    dense = alphas.new_ones(len(counts), int(counts.max()) + 1 if len(alphas) else 1)
    dense = dense.index_put((rays, columns + 1), 1 - alphas)
    left = dense.cumprod(-1)[rays, columns]
    return left * alphas, left


def accumulate_along_rays(weights: Tensor, values: Tensor | None, *, ray_indices: Tensor, n_rays: int) -> Tensor:
    """Returns the weighted sum of the samples of each ray, [n_rays, D]."""
    weighted = weights[:, None] if values is None else weights[:, None] * values
    return weighted.new_zeros(n_rays, weighted.shape[-1]).index_add(0, ray_indices, weighted)


def pack_info(ray_indices: Tensor, n_rays: int) -> Tensor:
    """Returns the first sample and the number of samples of each ray, [n_rays, 2]."""
    counts = torch.bincount(ray_indices, minlength=n_rays)
    return torch.stack([counts.cumsum(0) - counts, counts], -1)


if __name__ == "__main__":
    raise SystemExit(main())
