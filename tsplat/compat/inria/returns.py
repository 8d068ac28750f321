"""The values that rasterizers return: their names, the values of each fork, and how programs select them."""

import dis
import os
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any, SupportsIndex

from torch import Tensor

from ... import ArgumentError

RETURNS_VARIABLE = "TSPLAT_INRIA_RETURNS"
"""Environment variable with the names of the values that rasterizers return, separated by commas."""

Names = tuple[str, ...]

OUTPUTS = {
    "color": "[C, H, W]",
    "radii": "[N] int32",
    "depth": "[1, H, W], sum of weight * z",
    "median_depth": "[1, H, W], z where transmittance falls to 0.5, or 15",
    "invdepth": "[1, H, W], sum of weight / z",
    "alpha": "[1, H, W]",
    "features": "[F, H, W], of an argument of a fork",
    "plane_depth": "[1, H, W], computed from PGSR's all_map",
    "allmap": "[7, H, W], of diff_surfel_rasterization",
    "is_used": "[N] bool, True for Gaussians that contribute to a pixel",
    "weights": "[N], sums of weights over pixels",
    "count": "[N] int32, numbers of pixels to which the Gaussian contributes",
    "score": "[N], sums of opacity * transmittance over pixels",
    "max_count": "[N], numbers of pixels in which the Gaussian has the largest weight",
    "n_touched": "[N] int32, numbers of pixels with transmittance above 0.5 behind",
    "observed": "[N] int32, numbers of pixels with transmittance above 0.5 in front",
}
"""Name of a returned value -> shape and meaning."""

OF_GENERATIONS: dict[object, Names] = {
    2023: ("color", "radii"),
    2024: ("color", "radii", "invdepth"),
    "mcmc": ("color", "radii", "is_used"),
}

OF_SETTINGS: dict[str, Names] = {
    "projmatrix_raw": ("color", "radii", "depth", "alpha", "n_touched"),
    "include_feature": ("color", "features", "radii"),
    "confidence": ("color", "radii", "depth", "alpha"),
    "do_depth": ("color", "radii", "invdepth"),
    "antialiasing": ("color", "radii", "invdepth"),
}
"""Setting that only programs of a fork pass -> values of the fork."""

OF_ARGUMENTS: dict[str, Names] = {
    "semantic_feature": ("color", "features", "radii", "depth"),
    "language_feature_precomp": ("color", "features", "radii"),
    "sh_objs": ("color", "radii", "features"),
    "mask": ("color", "features", "depth", "radii"),
    "semantics": ("color", "radii", "depth", "alpha", "features"),
    "means2D_densify": ("color", "radii", "depth"),
}
"""Argument that only programs of a fork pass -> values of the fork."""

OF_BATCHED_MATRICES: Names = ("color", "radii", "median_depth")
"""Values of the fork of SplaTAM and Dynamic 3D Gaussians, whose programs pass matrices [1, 4, 4]."""

OF_FORKS: dict[str, Names] = {
    "Inria (2023), SuGaR, Scaffold-GS, Mip-Splatting, pixelSplat, MVSplat": ("color", "radii"),
    "4DGaussians, Deformable-3DGS, GaussianEditor, GaussianDreamer": ("color", "radii", "depth"),
    "SplaTAM, Dynamic 3D Gaussians, Spacetime Gaussians": ("color", "radii", "median_depth"),
    "Inria (2024)": ("color", "radii", "invdepth"),
    "LGM, DreamGaussian, SC-GS, DNGaussian, FSGS": ("color", "radii", "depth", "alpha"),
    "MonoGS, NoPoSplat": ("color", "radii", "depth", "alpha", "n_touched"),
}
"""Programs of forks that cannot be recognized -> values of the fork."""


def parse_returns(text: str, source: str = "returns") -> Names:
    """Parses names in a text like ``color,radii,depth``.

    Raises:
        ArgumentError: A name is unknown, or the text contains none.
    """
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in OUTPUTS:
            raise ArgumentError(
                f"{source}: expected comma-separated names, such as color,radii,depth, of {', '.join(OUTPUTS)}; found "
                f"{name!r}"
            )
    return names


def returns_of_environment() -> Names | None:
    """Returns the names in the environment variable, or None if it is not set."""
    text = os.environ.get(RETURNS_VARIABLE)
    return parse_returns(text, RETURNS_VARIABLE) if text else None


class ReturnsError(ArgumentError, IndexError):
    """A program expects other values than the rasterizer returns."""


class Returned(tuple[Tensor, ...]):
    """The returned values. Unpacking another number of values raises an error that explains how to select them."""

    names: Names

    @classmethod
    def of(cls, values: Mapping[str, Tensor]) -> "Returned":
        returned = cls(values.values())
        returned.names = tuple(values)
        return returned

    def __iter__(self) -> Iterator[Tensor]:
        wanted = _unpacked(sys._getframe(1))
        if wanted not in (None, len(self)):
            raise self._error(f"the program unpacks {wanted} values", wanted)
        return super().__iter__()

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, SupportsIndex) and index.__index__() >= len(self):
            raise self._error(f"the program reads value {index.__index__() + 1}", None)
        return super().__getitem__(index)

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (list(self),)

    def _error(self, what: str, n: int | None) -> ReturnsError:
        fitting = {fork: names for fork, names in OF_FORKS.items() if n in (None, len(names))} or OF_FORKS
        choices = "; ".join(f"{','.join(names)} for {fork}" for fork, names in fitting.items())
        return ReturnsError(
            f"{what}, but the rasterizer returns {len(self)}, {', '.join(getattr(self, 'names', ()))}. The program is "
            "probably written for a fork of Inria's rasterizer. Name the values that the fork returns in the "
            f"environment variable {RETURNS_VARIABLE}, or with python -m tsplat.compat.inria --returns NAMES SCRIPT: "
            f"{choices}. See the table of forks in docs/from_inria.md"
        )


def _unpacked(frame: FrameType) -> int | None:
    """Returns the number of values that a frame is unpacking, as in ``a, b = values``; None if it is not unpacking."""
    code, at = frame.f_code.co_code, frame.f_lasti
    if at < 0 or code[at] != dis.opmap["UNPACK_SEQUENCE"]:
        return None
    return code[at + 1]
