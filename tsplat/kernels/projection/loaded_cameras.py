"""Bundles that describe a camera in device functions, and functions that load them.

Bundles are constructed with keyword arguments. Tuples are laid out as in ``device_math.py``.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ...config import LENS_COEFFICIENTS, SHUTTER_VALUES
from ..device_math import load_tuple

POSE_VALUES = tl.constexpr(12)
"""Number of values of a view matrix with gradients: the first three rows."""

N_COEFFICIENTS = tl.constexpr(LENS_COEFFICIENTS)
"""Number of values of a lens with gradients: its coefficients, then zeros."""

PATH_VALUES, PATH_USED, PATH_GRADIENTS = tl.constexpr(SHUTTER_VALUES), tl.constexpr(16), tl.constexpr(15)
"""Number of values of ``Cameras.shutter``; of those, the first 16 are a :class:`Path`, and the first 15 have gradients:
all but ``inverse_sine``. A camera center (3), which kernels do not use, and a padding value follow.
"""


class Intrinsics(NamedTuple):
    """Focal lengths and principal point, pixels."""

    fx: Any
    fy: Any
    cx: Any
    cy: Any


class Pose(NamedTuple):
    """A world-to-camera transform: the nine entries of the rotation, and the translation."""

    rotation: Any
    translation: Any


class Path(NamedTuple):
    """The path of a camera during the readout of a rolling shutter; see ``Path`` of ``kernels_torch/shutters.py``.

    Attributes:
        q0, q1, t0, t1: Unit quaternions wxyz and translations at the start and at the end.
        angle, inverse_sine: The angle between the quaternions, and 1 / sin(angle), or 0 if the quaternions are equal.
    """

    q0: Any
    q1: Any
    t0: Any
    t1: Any
    angle: Any
    inverse_sine: Any


class Camera(NamedTuple):
    """The camera of an image.

    Attributes:
        pose: See :class:`Pose`. With a rolling shutter, the pose at the start of the readout.
        intrinsics: See :class:`Intrinsics`.
        lens: The coefficients of the lens, see ``kernels_torch/lenses/``, or (). With a windshield, a pointer to its
            polynomials follows.
        path: See :class:`Path`; () for a global shutter.
    """

    pose: Any
    intrinsics: Any
    lens: Any
    path: Any


class Screen(NamedTuple):
    """Image size in pixels, and the variance added to screen covariances."""

    width: Any
    height: Any
    eps2d: Any


@triton.jit
def load_camera(cameras, image, N_LENS: tl.constexpr):
    """Loads the :class:`Camera` of an image. N_LENS is the number of values of a lens."""
    v = cameras.viewmats + image * 16
    k = cameras.Ks + image * 9
    rotation = load_tuple(v, 1, 3) + load_tuple(v + 4, 1, 3) + load_tuple(v + 8, 1, 3)
    intrinsics = Intrinsics(fx=tl.load(k), fy=tl.load(k + 4), cx=tl.load(k + 2), cy=tl.load(k + 5))
    lens = _load_lens(cameras.lens, image, N_LENS)
    pose = Pose(rotation=rotation, translation=load_tuple(v + 3, 4, 3))
    return Camera(pose=pose, intrinsics=intrinsics, lens=lens, path=_load_path(cameras.shutter, image))


@triton.jit
def _load_lens(lens, image, N_LENS: tl.constexpr):
    """Loads the values of the lens of an image; () without one."""
    values = ()
    if lens is not None:
        values = load_tuple(lens + image * N_LENS, 1, N_COEFFICIENTS)
        if N_LENS > N_COEFFICIENTS:
            values = values + (lens + image * N_LENS + N_COEFFICIENTS,)
    return values


@triton.jit
def _load_path(shutter, image):
    """Loads the path of the camera of an image; () if it has none."""
    path = ()
    if shutter is not None:
        values = load_tuple(shutter + image * PATH_VALUES, 1, PATH_USED)
        path = Path(
            q0=values[:4], q1=values[4:8], t0=values[8:11], t1=values[11:14], angle=values[14], inverse_sine=values[15]
        )
    return path
