"""The structure of the package: which module may import which, and how many parameters a function takes.

A module is a file or folder directly in tsplat/. `MODULES` lists all of them from bottom to top, each with the modules
that it may import. Every allowed import points downwards, so there is no cycle.
"""

import ast
import functools
import inspect
import itertools
from collections import defaultdict

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.xdist_group("imports")

PACKAGE = ROOT / "tsplat"
FILES = sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")])

STAGES_USE = {
    "arguments",
    "config",
    "data",
    "errors",
    "formulas",
    "kernels_torch",
    "output_maps",
    "precision",
    "runtime",
    "scalars",
}
SCENE = {
    "arguments",
    "config",
    "errors",
    "formulas",
    "functional",
    "ops",
    "precision",
    "rasterization",
    "scalars",
    "support",
}
VIEWING = {
    "arguments", "config", "errors", "formulas", "precision", "rendering", "runtime", "scalars", "scene", "support",
}  # fmt: skip
TRAINING = VIEWING | {"__init__", "ops", "passes", "stages", "strategies", "viewing"}
MODULES = {
    "config": set(),
    "precision": set(),
    "errors": set(),
    "output_maps": set(),
    "data": {"config", "output_maps"},
    "scalars": {"errors"},
    "arguments": {"config", "errors", "scalars"},
    "support": {"errors"},
    "triton_cpu": set(),
    "gpu_driver": set(),
    "kernels": {"config", "data", "errors", "gpu_driver", "triton_cpu"},
    "formulas": set(),
    "kernels_torch": {"config", "data", "formulas"},
    "reference": {"config", "data", "precision"},
    "runtime": {
        "arguments",
        "config",
        "data",
        "errors",
        "gpu_driver",
        "kernels",
        "precision",
        "scalars",
        "support",
        "triton_cpu",
    },
    "stages": STAGES_USE,
    "functional": STAGES_USE | {"stages"},
    "ops": {"arguments", "config", "errors", "formulas", "precision", "runtime", "scalars"},
    "passes": {
        "arguments",
        "config",
        "data",
        "errors",
        "gpu_driver",
        "kernels",
        "output_maps",
        "precision",
        "runtime",
        "scalars",
        "stages",
        "support",
    },
    "rasterization": {"config", "data", "passes", "precision", "reference", "runtime", "stages"},
    "__init__": {"config", "errors", "functional", "ops", "passes", "rasterization", "stages", "support"},
    "scene": SCENE,
    "strategies": {"arguments", "config", "data", "errors", "formulas", "precision", "runtime", "scalars", "support"},
    "rendering": {"scene"},
    "viewing": VIEWING,
    "training": TRAINING,
    "compat": {
        "__init__",
        "arguments",
        "config",
        "data",
        "formulas",
        "functional",
        "kernels_torch",
        "output_maps",
        "precision",
        "runtime",
        "scalars",
        "scene",
        "stages",
        "strategies",
        "support",
    },
    "cli": {"__init__", "errors", "runtime", "scene", "support", "training", "viewing"},
    "__main__": {"cli"},
}
STAGES = ("projection", "shading", "exchange", "intersection", "compositing")
OPTIONAL = {
    "fast_simplification", "huggingface_hub", "imageio_ffmpeg", "matplotlib", "OpenEXR", "PIL", "pxr", "pycolmap",
    "rich", "safetensors", "scipy", "skimage", "tensorboard", "torchmetrics", "torchvision", "trackio", "wandb",
    "zstandard",
}  # fmt: skip
USES_TRITON = {"gpu_driver", "kernels", "passes", "runtime", "triton_cpu", "cli"}

MAX_PARAMETERS, MAX_KERNEL_PARAMETERS = 12, 20
DROP_IN = {
    "tsplat/rasterization.py": {"rasterization", "rasterization_2dgs"},
    "tsplat/reference/__init__.py": {"rasterize"},
    "tsplat/functional/projection.py": {
        "fully_fused_projection",
        "fully_fused_projection_with_ut",
        "fully_fused_projection_2dgs",
    },
    "tsplat/functional/intersection.py": {"isect_tiles"},
    "tsplat/functional/compositing.py": {
        "rasterize_to_pixels",
        "rasterize_to_pixels_2dgs",
        "rasterize_to_pixels_eval3d",
    },
}
"""Functions whose parameters are those of gsplat or of Inria's rasterizer. compat/ holds nothing else."""

MIRRORED = {"formulas", "functional", "kernels", "kernels_torch", "stages", "ops"}
"""Modules whose files are named after the same steps of the pipeline."""


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


def name(path):
    return str(path.relative_to(ROOT))


def module_of(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@functools.cache
def imports(path):
    """Lists (line, dotted name, whether at the top of the file) of every import, with relative names resolved."""
    tree, found = tree_of(path), []
    top = {id(node) for node in tree.body}
    package = ["tsplat", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            targets = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        found += [(node.lineno, target, id(node) in top) for target in targets]
    return found


@functools.cache
def exported_names():
    """The names in tsplat's `__all__`."""
    (names,) = (
        ast.literal_eval(node.value)
        for node in tree_of(PACKAGE / "__init__.pyi").body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return frozenset(names)


def imported_module(target):
    """The module of a dotted name in tsplat; None for other packages."""
    root, _, rest = target.partition(".")
    if root != "tsplat":
        return None
    if rest in exported_names():
        return "__init__"
    first = rest.split(".")[0]
    exists = first and ((PACKAGE / first).is_dir() or (PACKAGE / f"{first}.py").exists())
    return first if exists else "__init__"


def imports_between_modules():
    """Maps (importing, imported) modules to the places of the imports."""
    found = defaultdict(list)
    for path in FILES:
        for line, target, _ in imports(path):
            module = imported_module(target)
            if module is not None and module != module_of(path):
                found[module_of(path), module].append(f"{name(path)}:{line}")
    return found


@functools.cache
def functions():
    """Lists (path, node, whether compiled by Triton) of every function of the package."""
    found = []
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
                is_kernel = any("jit" in decorator or "kernel" in decorator for decorator in decorators)
                found.append((path, node, is_kernel))
    return found


def fail_if_any(problems):
    problems = list(problems)
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


def test_imports_are_allowed():
    order = list(MODULES)
    for module, allowed in MODULES.items():
        fail_if_any(
            [f"MODULES: {module} lies below {other}" for other in allowed if order.index(other) >= order.index(module)]
        )
    problems = [
        f"{name(path)}:1: new module: add its allowed imports" for path in FILES if module_of(path) not in order
    ]
    for (module, target), places in imports_between_modules().items():
        if target not in MODULES.get(module, ()):
            problems += [f"{place}: {module} imports {target}" for place in places]
    fail_if_any(problems)


def imported_file(target):
    """The file of the package that a dotted name is in: the longest part of the name that is one."""
    parts = target.split(".")
    for n in range(len(parts), 1, -1):
        path = PACKAGE.joinpath(*parts[1:n])
        if path.with_suffix(".py").exists() or (path / "__init__.py").exists():
            return path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
    return None


def test_files_import_in_one_direction():
    """Imports for types only count, too. A package's own `__init__` may name what is in it."""
    left = {path: {imported_file(target) for _, target, _ in imports(path)} - {path, None} for path in FILES}
    left = {path: {file for file in found if file.name != "__init__.py"} for path, found in left.items()}
    while free := [path for path, found in left.items() if not found & left.keys()]:
        for path in free:
            del left[path]
    circles = {name(path): sorted(name(file) for file in found & left.keys()) for path, found in left.items()}
    assert not circles, f"these files import each other: {circles}"


def test_stages_do_not_import_each_other():
    problems = []
    for stage in STAGES:
        path = PACKAGE / "stages" / f"{stage}.py"
        for line, target, _ in imports(path):
            for other in STAGES:
                if other != stage and f"{target}.".startswith(f"tsplat.stages.{other}."):
                    problems.append(f"{name(path)}:{line}: {stage} imports {other}")
    fail_if_any(problems)


def test_optional_packages_are_not_imported_at_module_level():
    problems = []
    for path in FILES:
        for line, target, at_top in imports(path):
            package = target.split(".")[0]
            if package in OPTIONAL and at_top:
                problems.append(f"{name(path)}:{line}: imports {package} at module level")
            if package == "triton" and module_of(path) not in USES_TRITON:
                problems.append(f"{name(path)}:{line}: imports triton")
    fail_if_any(problems)


@pytest.fixture
def run_python(forks):
    def run(code):
        result = forks.run(code)
        assert result.returncode == 0, result.stderr[-3000:]

    return run


@pytest.mark.slow
def test_training_step_does_not_import_dynamo(run_python):
    # The import takes seconds.
    run_python("""
import sys
import torch
from tsplat.ops.adam import Adam
parameter = torch.nn.Parameter(torch.ones(2, 3))
optimizer = Adam([parameter], lr=0.1)
parameter.sum().backward()
optimizer.step()
optimizer.zero_grad()
assert "torch._dynamo" not in sys.modules
""")


@pytest.mark.slow
def test_import_without_triton_and_optional_packages(run_python):
    run_python(f"""
import sys
for name in {sorted(OPTIONAL | {"triton"})}:
    sys.modules[name] = None
import torch, tsplat
colors, _, _ = tsplat.rasterization(
    torch.tensor([[0.0, 0.0, 2.0]]), torch.tensor([[1.0, 0, 0, 0]]), torch.full((1, 3), 0.1), torch.ones(1),
    torch.ones(1, 3), torch.eye(4)[None], torch.tensor([[[10.0, 0, 4], [0, 10, 4], [0, 0, 1]]]), 8, 8,
)
assert float(colors.max()) > 0.5
""")


@pytest.mark.slow
def test_imports_load_neither_triton_nor_optional_packages_nor_training(run_python):
    run_python(f"""
import sys, torch
before = set(sys.modules)
from tsplat import *
loaded = {{name.split(".")[0] for name in set(sys.modules) - before}} & {OPTIONAL | {"triton"}}
assert not loaded, loaded
from tsplat.scene import *
loaded = [name for name in sys.modules if name.startswith("tsplat.training")]
assert not loaded, f"tsplat.scene: {{loaded}}"
from tsplat.viewing import *
loaded = [name for name in sys.modules if name.startswith("tsplat.training")]
assert not loaded, f"tsplat.viewing: {{loaded}}"
""")


@pytest.mark.slow
def test_submodules_do_not_hide_functions_of_their_name(run_python):
    run_python("""
import types
from tsplat.rasterization import render
import tsplat
assert isinstance(tsplat.rasterization, types.FunctionType), tsplat.rasterization
""")


def test_rendering_a_model_loads_nothing_of_training(tmp_path, run_python):
    pytest.importorskip("PIL")
    run_python(f"""
import sys, torch
from tsplat.scene import Gaussians, write_ply
write_ply({str(tmp_path / "model.ply")!r}, Gaussians.from_points(torch.eye(3), torch.eye(3), 0))
from tsplat.cli import main
status = main(["render", {str(tmp_path / "model.ply")!r}, "--out", {str(tmp_path / "image.png")!r}, "--width", "16",
               "--height", "16"])
assert status == 0, status
loaded = [name for name in sys.modules if name.startswith("tsplat.training")]
assert not loaded, loaded
""")


def test_kernel_packages_offer_the_same_functions():
    pytest.importorskip("triton")
    from tsplat import kernels, kernels_torch

    assert kernels.__all__ == kernels_torch.__all__
    for function in kernels.__all__:
        ours, theirs = (inspect.signature(getattr(m, function), eval_str=True) for m in (kernels, kernels_torch))
        assert ours == theirs, function


def test_file_names_are_unique():
    """Files of different modules have different names, except for the mirrored modules.

    triton_cpu knows nothing of tsplat and could be a package of its own. compat/gsplat has gsplat's names of files.
    """
    paths = defaultdict(list)
    for path in FILES:
        if not path.stem.startswith("__") and module_of(path) not in ("triton_cpu", "compat"):
            paths[path.stem].append(path)
    fail_if_any(
        f"{name(one)}:1: has the same name as {name(other)}"
        for stem in paths
        for one, other in itertools.combinations(paths[stem], 2)
        if module_of(one) != module_of(other) and not {module_of(one), module_of(other)} <= MIRRORED
    )


def test_numbers_of_parameters():
    problems = []
    for path, node, is_kernel in functions():
        a = node.args
        parameters = [p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs) if p.arg not in ("self", "cls", "ctx")]
        drop_in = module_of(path) == "compat" or node.name in DROP_IN.get(name(path), ())
        most = MAX_KERNEL_PARAMETERS if is_kernel else MAX_PARAMETERS
        if len(parameters) > most and not drop_in:
            problems.append(f"{name(path)}:{node.lineno}: {node.name}() has {len(parameters)} parameters")
    fail_if_any(problems)
