"""Imports run one way: cli -> training -> rasterization -> stages -> kernels | host -> config."""

import ast

import pytest

from tests.support.paths import ROOT

PACKAGE = ROOT / "tsplat"

STAGES = {"projection", "spherical_harmonics", "distributed", "intersection", "compositing"}
BASE = {"config", "checks", "rows", "backend", "autograd"}
ALLOWED = {
    "config": set(),
    "checks": {"config"},
    "rows": set(),
    "autograd": {"checks"},
    "backend": {"checks"},  # kernels and host by name, at run time
    "kernels": {"config", "kernels"},
    "host": {"config", "host", "rows"},
    **{stage: BASE for stage in STAGES},
    "reference": {"config"},
    "photometric": BASE - {"rows"},
    "optimizer": {"backend", "checks"},
    "morton": {"checks"},
    "memory": {"rows"},
    "validation": {"backend", "checks", "config"},
    "rasterization": BASE | STAGES | {"memory", "reference", "validation"},
    "__init__": {"checks", "memory", "photometric", "rasterization", "validation"} | STAGES,
    "scene": {"checks", "config", "scene"},
    "strategies": {"checks", "projection", "rows", "strategies"},
    "compat": {"backend", "checks", "validation"} | STAGES - {"distributed"},
    "training": {
        "__init__",
        "checks",
        "backend",
        "memory",
        "optimizer",
        "photometric",
        "rasterization",
        "scene",
        "strategies",
        "training",
    },
    "cli": {"__init__", "checks", "backend", "rasterization", "scene", "training"},
    "__main__": {"cli"},
}
EXTRAS = {
    *("pycolmap", "PIL", "rich", "scipy", "matplotlib", "tyro", "safetensors", "tensorboard", "torchmetrics"),
    "zstandard",
}


def room(path):
    """The part of the package a file belongs to."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def imports(path):
    """(room or outside package, whether at the top of the module) of every import of a file."""
    tree = ast.parse(path.read_text())
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = ["tsplat", *path.relative_to(PACKAGE).parts[:-1]]
            base = package[: len(package) - node.level + 1] if node.level else []
            module = base + (node.module.split(".") if node.module else [])
            names = [".".join(module)]
            if module in (["tsplat"], base):  # from . import x
                names = [".".join([*module, alias.name]) for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "tsplat":
                inside = parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).with_suffix(".py").exists() else None
                inside = inside or (parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else "__init__")
                yield inside, id(node) in top
            else:
                yield parts[0], id(node) in top


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_every_arrow_is_in_the_list(path):
    own = room(path)
    rooms = {p.stem for p in PACKAGE.glob("*.py")} | {p.name for p in PACKAGE.iterdir() if p.is_dir()}
    assert own in ALLOWED, f"{own} is a new room: say whom it may import"
    for target, at_top in imports(path):
        if target in rooms and target != own:
            assert target in ALLOWED[own], f"{own} imports {target}"
        if target in EXTRAS:
            assert not at_top, f"{path.name} imports the extra {target} at its top"
            assert own in ("scene", "training", "cli")
        if target == "triton":
            assert own in ("kernels", "backend", "cli"), f"{own} imports triton"


def test_no_stage_imports_another():
    for stage in STAGES:
        assert not STAGES & {target for target, _ in imports(PACKAGE / f"{stage}.py")} - {stage}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_file_is_two(path):
    assert len(path.read_text().splitlines()) <= 520


def test_kernels_and_host_offer_the_same_functions():
    import inspect

    pytest.importorskip("triton")
    from tsplat import kernels
    from tsplat import kernels_torch as host

    assert host.__all__ == kernels.__all__
    for name in host.__all__:
        on_host, in_triton = (inspect.signature(getattr(m, name), eval_str=True) for m in (host, kernels))
        assert on_host == in_triton, name
