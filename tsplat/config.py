"""Constants, numerics presets and the values that options can take: every number that decides what a pixel is.

The field's rasterizers differ in a handful of constants. Each set is a frozen :class:`Numerics`, from which stages and
kernels read these. ``ALPHA_MIN`` and ``TRANSMITTANCE_MIN`` are the same in all of them.
"""

import dataclasses
import enum
import math
from typing import Final, Literal, NamedTuple, get_args

Backend = Literal["auto", "triton", "torch", "reference"]
NumericsName = Literal["gsplat-1.5", "gsplat-1.6", "inria"]
RasterizeMode = Literal["classic", "antialiased"]
RenderMode = Literal["RGB", "d", "Ed", "D", "ED", "RGB-d", "RGB-Ed", "RGB+D", "RGB+ED"]
Validate = Literal["cull", "error", "off"]
CameraModel = Literal["pinhole", "ortho", "fisheye", "ftheta", "equirectangular", "lidar"]
CameraCenter = Literal["inverse", "transpose"]

BACKENDS: Final = get_args(Backend)
RASTERIZE_MODES: Final = get_args(RasterizeMode)
RENDER_MODES: Final = get_args(RenderMode)
HIT_MODES: Final = ("d", "Ed", "RGB-d", "RGB-Ed")
"""Render modes whose last channel is a distance along the rays of pixels."""
DepthMode = Literal["expected", "median", "ray", "ray-median"]
DEPTH_MODES: Final = get_args(DepthMode)
PLANE_MODES: Final = ("ray", "ray-median")
"""Depth modes in which the depth of a 2D Gaussian is that of its plane where the ray of the pixel meets it."""
DISTANCE_MODES: Final[dict[str, RenderMode]] = {"D": "d", "ED": "Ed", "RGB+D": "RGB-d", "RGB+ED": "RGB-Ed"}
"""The render mode with distances along rays, in place of each one with depths."""
VALIDATE: Final = get_args(Validate)
FRONT_ONLY: Final[tuple[CameraModel, ...]] = ("pinhole",)
"""Camera models that see nothing behind z = 0, which a division by z would mirror."""
CAMERA_MODELS: Final = tuple(model for model in get_args(CameraModel) if model != "lidar")
"""Camera models that have a lens. A lidar is a panorama whose pixels have other rays."""
TILE_SIZES: Final = (4, 8, 16)


class Capacities(NamedTuple):
    """Sizes of lists that memory is allocated for. A ``capacity`` stands for all but rows.

    Attributes:
        spans, intersections: What Gaussians intersect of tile rows, and of tiles.
        entries: Entries of the lists of parts, divided by half the number of parts of a tile, but at least by 1.
            Without effect if a tile is one part.
        chunks: Chunks of long lists.
        rows: Packed rows. Without effect if there are fewer rows, or if they are not packed.
    """

    spans: int
    intersections: int
    entries: int
    chunks: int
    rows: int = 2**31 - 1

    @classmethod
    def of_lists(cls, capacity: int) -> "Capacities":
        """Returns the same capacity for all lists."""
        return cls(capacity, capacity, capacity, capacity)

    def largest_list(self) -> int:
        """Returns the largest of the sizes of lists."""
        return max(self._replace(rows=0))


Capacity = int | Capacities | Literal["auto"] | None
"""How lists are sized: by a capacity for all, of each list, by what earlier calls needed, or by counting them. Only
passes have a `Capacities`."""


class Size:
    """The index of each size in :class:`Capacities`, and in ``needed`` of :class:`~tsplat.data.Intersections`."""

    SPANS, INTERSECTIONS, ENTRIES, CHUNKS, ROWS = range(len(Capacities._fields))


FEATURES_MIN: Final = 16
"""Number of channels from which matrix products cost fewer instructions than channels one by one."""

ALPHA_MIN: Final = 1.0 / 255.0
"""A Gaussian with a smaller alpha at a pixel does not contribute to it."""

TRANSMITTANCE_MIN: Final = 1e-4
"""A pixel stops before the Gaussian that would bring its transmittance to this value or below."""

FOV_MARGIN: Final = 0.3
"""Margin around the image, in half widths, to which the mean is clamped in the perspective Jacobian."""

QUAT_NORM_MIN: Final = 1e-12
"""Quaternions with a smaller norm are invalid."""

DETERMINANT_MIN: Final = 1e-12
"""Cameras whose view matrix has a smaller determinant, in magnitude, are singular."""

FOCAL_MIN: Final = 1e-12
"""Cameras with a smaller focal length, in magnitude, are invalid."""

MAGNITUDE_MAX: Final = 1e12
"""Values of larger magnitude are invalid, because their fp32 products overflow."""

LENS_COEFFICIENTS: Final = 12
"""Number of values of a lens before those of a windshield: its coefficients, then zeros."""

SHUTTER_VALUES: Final = 20
"""Number of values that describe the path of a camera with a rolling shutter."""

LENS_GAIN_MIN: Final = 0.8
"""Pinhole lenses see points that radial distortion moves to more than this part of their distance from the center."""

SHUTTER_STEPS: Final = 10
"""Iterations that find the time at which a rolling shutter exposes a point."""

AXIS_MIN: Final = 1e-30
"""Squared distance below which a point has no longitude (from the vertical axis), or no direction (from a camera)."""

BEHIND_POLE: Final = 1e4
"""Weight of a sigma point whose longitude is two right angles from the center's, as a multiple of that of others. Up to
a right angle the multiple is 1, and beyond it grows as a square, so that gradients are continuous."""

FTHETA_STEPS: Final = 12
"""Steps of Newton's method that invert an f-theta polynomial, each within an interval that is halved otherwise."""

BACK_SLOPE_SQUARED: Final = 1e-12
"""A point behind a camera is shown if (x^2 + y^2) / z^2 is larger: opposite to the optical axis, it has no azimuth."""

RADIUS_MAX: Final = 2**30
"""Upper bound of screen radii in pixels: they fit into int32, and squared offsets into fp32."""

FILTER_VARIANCE: Final = 0.5
"""Variance of the low-pass filter around the mean of a 2D Gaussian, pixels^2."""

DISC_EXTENT: Final = 3.33
"""Distance from the center of a 2D Gaussian, in standard deviations, up to which its plane has a depth. Farther away,
alpha is below 1/255, but for the low-pass filter."""

BOX_VARIANCE_MIN: Final = 1e-4
"""Least squared half extent of the box around the unit circle of a 2D Gaussian, pixels^2."""

DEPTH_ALPHA_MIN: Final = 1e-10
"""Expected depth divides by max(alpha, this)."""

SH_DEGREE_MAX: Final = 4

FISHEYE_SERIES: Final = (
    2.4490644061661078, 1.2515593230562816, 0.5807344615724495, 0.2536384204801607, 0.10625988382956976,
    0.04318192461049334, 0.017145004353215573, 0.006683535245959919, 0.0025669986181389463, 0.0009738879539913036,
    0.0003656989608249821, 0.00013617784345265344, 5.030464885246822e-05, 1.8342848580000943e-05,
    6.693803662747518e-06, 2.582602705341621e-06, 9.320486887863393e-07, 2.139805398351034e-07,
    7.72424979292881e-08, 8.157016908645434e-08, 2.894833238403237e-08,
)  # fmt: skip
"""Coefficients, constant term first, of the polynomial in x = 1 - 2 cos(theta) in [-1, 1] that replaces
8/5 F(1, 5; 7/2; (1 + x) / 4) in the fisheye projection; F is the hypergeometric function.

It interpolates at Chebyshev nodes, to a relative error of 5e-15."""

_WINDOW: Final = [math.exp(-0.5 * (place / 1.5) ** 2) for place in range(-5, 6)]
SSIM_TAPS: Final = tuple(value / sum(_WINDOW) for value in _WINDOW)
"""Gaussian window of SSIM along each axis: 11 taps, standard deviation 1.5 pixels."""

SSIM_K1, SSIM_K2 = 0.01, 0.03
"""Stabilizers of SSIM for a data range of 1 (K1 and K2 of Wang et al., 2004)."""


class RollingShutterType(enum.Enum):
    """Readout direction of the camera's shutter. ``GLOBAL`` exposes all pixels at the same time."""

    ROLLING_TOP_TO_BOTTOM = 0
    ROLLING_LEFT_TO_RIGHT = 1
    ROLLING_BOTTOM_TO_TOP = 2
    ROLLING_RIGHT_TO_LEFT = 3
    GLOBAL = 4


class FThetaPolynomialType(enum.Enum):
    """Selects the exact one of the two polynomials of an f-theta camera."""

    PIXELDIST_TO_ANGLE = 0
    ANGLE_TO_PIXELDIST = 1


@dataclasses.dataclass
class FThetaCameraDistortionParameters:
    """An f-theta camera, ``ftheta_coeffs`` of :func:`tsplat.rasterization`: distances in the image as a polynomial.

    Attributes:
        reference_poly: The polynomial that defines the lens. The other one, which approximates its inverse, is checked
            and has no effect, as the inverse is computed.
        pixeldist_to_angle_poly, angle_to_pixeldist_poly: Coefficients from degree 0, which must be 0, to degree 5,
            pixels and radians.
        max_angle: Largest angle from the optical axis that the lens sees, radians.
        linear_cde: The map from distorted coordinates to pixels, [[c, d], [e, 1]].
    """

    reference_poly: FThetaPolynomialType
    pixeldist_to_angle_poly: tuple[float, float, float, float, float, float]
    angle_to_pixeldist_poly: tuple[float, float, float, float, float, float]
    max_angle: float
    linear_cde: tuple[float, float, float]


@dataclasses.dataclass(frozen=True)
class Numerics:
    """The constants in which the field's rasterizers differ.

    Attributes:
        name: Name of the preset, as in ``rasterization(numerics=...)``.
        alpha_max: Upper bound of alpha. Where it applies, geometry and opacity get no gradient.
        compensation_floor: Lower bound of the antialiasing compensation (Mip-Splatting, arXiv 2311.16493).
        camera_center: ``"inverse"``: -R^-1 t of the view matrix; ``"transpose"``: -R^T t. They differ where R is not
            a rotation.
        near_min: Lower bound of ``near_plane``, which cameras that are :data:`FRONT_ONLY` bound by 0 as well.
        extend: Radius in standard deviations; an upper bound if ``opacity_aware``.
        opacity_aware: If true, radii per axis end where alpha falls below :data:`ALPHA_MIN` (arXiv 2402.00525, section
            B.2). Otherwise both radii follow the larger principal axis.
        all_sigma_points: Whether the unscented transform culls Gaussians with an invalid sigma point.
        scale_min: The unscented transform culls Gaussians with a scale below this magnitude.
        whole_lines: Whether a rolling shutter exposes a point at the time of the row or column that shows it, not at
            that of its coordinate. Not of panoramas and lidars.
        spare_tile_bit: Whether tiles in ``isect_ids`` take a bit more than they need if their number is a power of two.
        ray_footprint: The footprint of evaluation in 3D: ``"ray"``, or ``"ray in front"`` without Gaussians that are
            highest behind the origin of a ray.
    """

    name: str
    alpha_max: float
    compensation_floor: float
    camera_center: CameraCenter
    near_min: float
    extend: float
    opacity_aware: bool
    all_sigma_points: bool = True
    scale_min: float = 0.0
    whole_lines: bool = False
    spare_tile_bit: bool = True
    ray_footprint: str = "ray in front"

    def nearest(self, near_plane: float, model: CameraModel) -> float:
        """Returns the smallest depth that is projected."""
        return max(near_plane, self.near_min, 0.0 if model in FRONT_ONLY else -MAGNITUDE_MAX)


class RendererConfig:
    """Base class of gsplat 1.6's choices of a kernel for evaluation in 3D."""

    def __init__(self) -> None:
        if type(self) is RendererConfig:
            raise TypeError(
                "RendererConfig: a base class; construct RendererConfig_MixedBatch or RendererConfig_ParallelBatch"
            )


class RendererConfig_MixedBatch(RendererConfig):  # noqa: N801 - gsplat's name
    """The default. As tsplat has one kernel, images are those of ``renderer_config=None``."""


class RendererConfig_ParallelBatch(RendererConfig):  # noqa: N801 - gsplat's name
    """Requires ``with_eval3d``. As tsplat has one kernel, images are those of ``renderer_config=None``."""


@dataclasses.dataclass
class UnscentedTransformParameters:
    """Parameters of the unscented transform (Julier and Uhlmann, 1997; as in 3DGUT, arXiv 2412.12507, section 4.1).

    Attributes:
        alpha: Spread of the sigma points: they lie sqrt(alpha^2 (3 + kappa)) standard deviations from the mean.
        beta: Prior knowledge of the distribution; 2 is optimal for Gaussians.
        kappa: Secondary spread.
        in_image_margin_factor: Sigma points are valid up to this part of the image size outside of the image.
        require_all_sigma_points_valid: Whether a Gaussian is culled if any of its seven sigma points is invalid;
            otherwise if all are. None for that of the numerics preset: True, and False in ``"gsplat-1.6"``.
    """

    alpha: float = 0.1
    beta: float = 2.0
    kappa: float = 0.0
    in_image_margin_factor: float = 0.1
    require_all_sigma_points_valid: bool | None = None


class Unscented(NamedTuple):
    """Weights of the unscented transform, and what makes a Gaussian visible.

    Attributes:
        spread: Distance of the sigma points from the mean, in standard deviations.
        weight: Of each of the six outer sigma points. The weights of the mean add to 1.
        center_weight: Of the center in the covariance.
        margin: Part of the image size that sigma points may lie outside of the image.
        all_valid: Whether all sigma points must be valid, rather than one.
        radial: Whether depth is the distance from the camera, which f-theta cameras then cull by, instead of z.
        whole_lines: As in :class:`Numerics`.
    """

    spread: float
    weight: float
    center_weight: float
    margin: float
    all_valid: bool
    radial: bool = False
    whole_lines: bool = False

    @classmethod
    def of(cls, parameters: UnscentedTransformParameters, numerics: Numerics, radial: bool = False) -> "Unscented":
        """The weights of parameters (Wan and van der Merwe, 2000, equation 15, for three dimensions)."""
        square = parameters.alpha**2 * (3 + parameters.kappa)
        all_valid = parameters.require_all_sigma_points_valid
        return cls(
            spread=math.sqrt(square),
            weight=0.5 / square,
            center_weight=2 - 3 / square - parameters.alpha**2 + parameters.beta,
            margin=parameters.in_image_margin_factor,
            all_valid=numerics.all_sigma_points if all_valid is None else all_valid,
            radial=radial,
            whole_lines=numerics.whole_lines,
        )


@dataclasses.dataclass(frozen=True)
class CameraSettings:
    """Settings that all cameras of a call share.

    Attributes:
        width, height: Image size in pixels.
        model: How points are projected, as in :func:`tsplat.rasterization`.
        near, far: Gaussians outside these depths are culled, in world units.
        readout: Of a rolling shutter, the name of a :class:`RollingShutterType`.
    """

    width: int
    height: int
    model: CameraModel = "pinhole"
    near: float = 0.01
    far: float = 1e10
    readout: str = RollingShutterType.GLOBAL.name

    @classmethod
    def of(
        cls,
        width: int,
        height: int,
        model: CameraModel,
        near: float,
        far: float,
        numerics: Numerics,
        readout: str = RollingShutterType.GLOBAL.name,
    ) -> "CameraSettings":
        """The settings of checked arguments, with planes that the model and the preset allow."""
        return cls(width, height, model, numerics.nearest(near, model), min(far, MAGNITUDE_MAX), readout)


class CameraField(NamedTuple):
    """Describes a field of :class:`~tsplat.data.Cameras` for all code that handles cameras.

    Attributes:
        shape: Sizes for one camera, None for any. They are equal on all ranks; the number of cameras and the values may
            differ.
        remedy: What to do about invalid values.
        differentiable: Whether there is a gradient.
    """

    shape: tuple[int | None, ...]
    remedy: str
    differentiable: bool = False


PRESETS: Final[dict[str, Numerics]] = {
    preset.name: preset
    for preset in (
        Numerics(
            name="gsplat-1.5",
            ray_footprint="ray",
            alpha_max=0.999,
            compensation_floor=0.0,
            camera_center="inverse",
            near_min=-math.inf,
            extend=3.33,
            opacity_aware=True,
        ),
        Numerics(
            name="gsplat-1.6",
            alpha_max=0.99,
            compensation_floor=0.005,
            camera_center="transpose",
            near_min=-math.inf,
            extend=3.33,
            opacity_aware=True,
            all_sigma_points=False,
            scale_min=2**-23,
            whole_lines=True,
            spare_tile_bit=False,
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
        2.5033429417967046, 1.7701307697799304, 0.9461746957575601, 0.6690465435572892, 0.10578554691520431,
        0.47308734787878004, 0.6258357354491761,
    ),
)  # fmt: skip
"""Norms of real spherical harmonics by degree: sqrt(1/4pi); sqrt(3/4pi); sqrt(15/4pi), ... (Sloan, JCGT 2013)."""
