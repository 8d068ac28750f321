"""Constants and numerics presets: every number that decides what a pixel is.

Three rasterizers disagree in a handful of constants. Each set is a frozen :class:`Numerics`; the stages and
the kernels read their thresholds from it and from nowhere else.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final, Literal

ALPHA_MIN: Final = 1.0 / 255.0
"""A Gaussian whose alpha at a pixel is below this is skipped there."""

TRANSMITTANCE_MIN: Final = 1e-4
"""A Gaussian that would bring a pixel's transmittance to this or below is not added, and ends the pixel."""

FOV_MARGIN: Final = 0.3
"""How far outside the image, in half widths, the perspective Jacobian still follows the mean."""

QUAT_NORM_MIN: Final = 1e-12
"""A quaternion shorter than this is no rotation."""

MAGNITUDE_MAX: Final = 1e12
"""A number beyond this counts as not finite: fp32 products with it overflow."""

RADIUS_MAX: Final = 2**30
"""Half widths on screen end here, so that they fit into int32 and the square of an offset into fp32."""

DEPTH_ALPHA_MIN: Final = 1e-10
"""Expected depth divides by max(alpha, this)."""

SH_DEGREE_MAX: Final = 4

_WINDOW: Final = [math.exp(-0.5 * (place / 1.5) ** 2) for place in range(-5, 6)]
SSIM_TAPS: Final = tuple(value / sum(_WINDOW) for value in _WINDOW)
"""The Gaussian window of SSIM along each axis: 11 taps, standard deviation 1.5 pixels."""

SSIM_K1, SSIM_K2 = 0.01, 0.03
"""What keeps the quotients of SSIM from dividing by zero, squared, for a data range of 1."""

TILE_SIZES: Final = (4, 8, 16)

CameraCenter = Literal["inverse", "transpose"]
NumericsName = Literal["gsplat-1.5", "gsplat-1.6", "inria"]


@dataclasses.dataclass(frozen=True)
class Numerics:
    """The constants in which the field's rasterizers differ.

    Attributes:
        name: The preset's name, as in ``rasterization(numerics=...)``.
        alpha_max: Alpha is clamped to this; where the clamp binds, nothing flows to geometry or opacity.
        compensation_floor: Lower bound of the antialiasing compensation (Mip-Splatting, arXiv 2311.16493).
        camera_center: ``"inverse"`` takes it from the inverse of the view matrix's upper 3x4 part,
            ``"transpose"`` from -R^T t, which differs when R is not a rotation.
        near_min: ``near_plane`` is raised to at least this.
        extend: Half width of the bounding rectangle in standard deviations, an upper bound where
            ``opacity_aware``.
        opacity_aware: Whether the rectangle shrinks with opacity to where alpha falls below
            :data:`ALPHA_MIN` (arXiv 2402.00525, section B.2), axis by axis; otherwise both half widths
            follow the larger principal axis.
    """

    name: str
    alpha_max: float
    compensation_floor: float
    camera_center: CameraCenter
    near_min: float
    extend: float
    opacity_aware: bool


PRESETS: Final[dict[str, Numerics]] = {
    preset.name: preset
    for preset in (
        Numerics(
            name="gsplat-1.5",
            alpha_max=0.999,
            compensation_floor=0.0,
            camera_center="inverse",
            near_min=0.0,
            extend=3.33,
            opacity_aware=True,
        ),
        Numerics(
            name="gsplat-1.6",
            alpha_max=0.99,
            compensation_floor=0.005,
            camera_center="transpose",
            near_min=0.0,
            extend=3.33,
            opacity_aware=True,
        ),
        Numerics(
            name="inria",
            alpha_max=0.99,
            compensation_floor=0.005,
            camera_center="inverse",
            near_min=0.2,
            extend=3.0,
            opacity_aware=False,
        ),
    )
}
DEFAULT_NUMERICS: Final = PRESETS["gsplat-1.5"]

SH_NORMS: Final[tuple[tuple[float, ...], ...]] = (
    (0.28209479177387814,),
    (0.4886025119029199,),
    (1.0925484305920792, 0.31539156525252005, 0.5462742152960396),
    (0.5900435899266435, 2.890611442640554, 0.4570457994644658, 0.3731763325901154, 1.445305721320277),
    (
        2.5033429417967046,
        1.7701307697799304,
        0.9461746957575601,
        0.6690465435572892,
        0.10578554691520431,
        0.47308734787878004,
        0.6258357354491761,
    ),
)
"""Norms of real spherical harmonics by degree: sqrt(1/4pi); sqrt(3/4pi); sqrt(15/4pi), ... (Sloan, JCGT 2013)."""
