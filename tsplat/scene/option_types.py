"""Types and names of options of scenes. The command line reads them, so this file imports no PyTorch."""

from typing import Literal, get_args

from ..errors import ArgumentError
from ..scalars import check_size

Color = tuple[float, float, float]
"""RGB in [0, 1]."""

Corner = tuple[float, float, float]
Box = tuple[Corner, Corner]
"""Two opposite corners of an axis-aligned box, world frame."""

CameraKind = Literal["undistorted", "native"]
"""Cameras to read: ``"undistorted"`` with resampled photographs, or ``"native"`` with distortion."""

FittedModel = Literal["SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV", "EQUIRECTANGULAR"]
"""A lens model that COLMAP fits to photographs."""

FITTED_MODELS: tuple[FittedModel, ...] = get_args(FittedModel)

Matching = Literal["exhaustive", "sequential", "vocabulary-tree"]
MATCHINGS = ("auto", *get_args(Matching))

ModelFrame = Literal["local", "files"]
FRAMES: tuple[ModelFrame, ...] = get_args(ModelFrame)
"""Names of the frames: that of the model, and that of its scene's files."""

Format = Literal[
    "ply", "compressed-ply", "splat", "spz", "spz4", "sog", "streamed-sog", "glb", "gltf", "usda", "usdc", "usdz"
]
FORMATS: tuple[Format, ...] = get_args(Format)
"""Formats of models that can be written."""

DepthKind = Literal["expected", "median"]

MeshEnding = Literal[".ply", ".obj", ".glb"]
MESH_ENDINGS: tuple[MeshEnding, ...] = get_args(MeshEnding)

TRUNCATION = 4.0
"""Distance from a surface up to which depths are averaged into a mesh, in voxels."""


def check_test_every(test_every: int) -> None:
    """Raises ArgumentError if no views would be left for training."""
    if test_every == 1:
        raise ArgumentError(
            "test_every: 1 holds out every view, so that none is left for training; expected 0 for no held-out views, "
            "or at least 2"
        )
    check_size("test_every", test_every, or_zero=True)
