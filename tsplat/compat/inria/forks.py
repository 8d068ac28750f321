"""Arguments, names and modules of forks of Inria's rasterizer that tsplat does not implement."""

from collections.abc import Iterable
from typing import NoReturn

from ... import UnsupportedError

ARGUMENTS = {
    name: fork
    for fork, names in {
        "4D Gaussian Splatting (fudan-zvg)": "flow_2d force_sh_3d gaussian_dim prefilter_var rot_4d rotations_r "
        "scales_t sh_degree_t time_duration timestamp ts",
        "Gaussian Opacity Fields": "view2gaussian_precomp",
        "Gaussian Surfels": "config patch_bbox prcppoint",
        "GeoGaussian": "gaussian_type",
        "GS-IR": "albedo argmax_depth derive_normal inference metallic normal roughness",
        "hierarchical 3DGS": "interpolation_weights num_node_kids parent_indices render_indices",
        "PGSR": "all_map means2D_abs render_geo",
        "RaDe-GS": "require_coord require_depth",
        "Spacetime Gaussians": "motion trbfcenter trbfscale",
        "Speedy-Splat": "scores",
        "StopThePop": "inv_viewprojmatrix render_depth settings",
        "Street Gaussians": "bg_color bg_depth",
        "Taming 3DGS": "pixel_weights",
    }.items()
    for name in names.split()
}
"""Unsupported argument -> fork."""

INSTEAD = {
    "all_map": "import diff_plane_rasterization", "means2D_abs": "import diff_plane_rasterization",
    "render_geo": "import diff_plane_rasterization",
    "scores": "take sums of weights from diff_gaussian_rasterization_ms",
}  # fmt: skip
"""Unsupported argument -> advice."""

METHODS = {
    "apply_weights": "GaussianEditor", "forward_counter": "LightGaussian", "forward_mask": "SegAnyGAussians",
    "integrate": "Gaussian Opacity Fields and RaDe-GS", "render_depth": "Mini-Splatting",
}  # fmt: skip
"""Unsupported method of a rasterizer -> fork."""

NAMES = {
    "ExtendedSettings": "StopThePop", "GlobalSortOrder": "StopThePop", "SortMode": "StopThePop",
    "SurfaceAlign": "GeoGaussian",
}  # fmt: skip
"""Name that only a fork of ``diff_gaussian_rasterization`` has -> fork."""

MODULES = {
    "forward_full": "Spacetime Gaussians", "forward_lite": "Spacetime Gaussians",
    "gaussian_rasterizer": "Gaussian-SLAM", "r3dg_rasterization": "Relightable 3D Gaussians",
}  # fmt: skip
"""Unsupported module -> fork."""

COMPILED = "_C"
"""Name of the compiled module; some programs call its functions."""


class ForkImportError(UnsupportedError, ImportError):
    """A name of a fork of Inria's rasterizer that is not implemented."""


class ForkAttributeError(UnsupportedError, AttributeError):
    """A method of a fork's rasterizer that is not implemented."""


def refuse_arguments(names: Iterable[str]) -> None:
    """Raises an UnsupportedError that names the first argument and its fork, if there are any arguments."""
    for name in sorted(names):
        fork = f"of the fork {ARGUMENTS[name]}" if name in ARGUMENTS else "not of Inria's rasterizer but of a fork"
        raise UnsupportedError(f"{name}: an argument {fork}; {_advice(name)}")


def refuse_method(name: str) -> None:
    """Raises a ForkAttributeError for a method that only a fork's rasterizer has."""
    if name in METHODS:
        raise ForkAttributeError(f"{name}: a method of the fork {METHODS[name]}; {_advice(name)}")


def refuse_name(name: str, module: str) -> None:
    """Raises a ForkImportError for a name that only a fork's module has."""
    if name in NAMES:
        raise ForkImportError(f"{name}: a name of the fork {NAMES[name]}; {_advice(name)}")
    if name == COMPILED:
        raise ForkImportError(
            f"{module}._C: the compiled module, which tsplat does not have; programs of, for example, the forks GS-IR "
            f"and hierarchical 3DGS call its functions; {_advice(name)}"
        )


def refuse_module(module: str) -> NoReturn:
    """Raises a ForkImportError for a module that only a fork has."""
    raise ForkImportError(f"{module}: a module of the fork {MODULES[module]}; {_advice(module)}")


def _advice(name: str) -> str:
    instead = INSTEAD.get(name, "run the program with the fork's rasterizer")
    return f"tsplat replaces Inria's rasterizer and the forks in docs/from_inria.md, but not this feature; {instead}"
