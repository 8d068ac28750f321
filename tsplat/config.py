"""Constants, numerics presets, and the values that options can take.

gsplat 1.5, gsplat 1.6 and Inria's rasterizer differ in a handful of constants. A frozen :class:`Numerics` holds the
constants of one of them. ``ALPHA_MIN`` and ``TRANSMITTANCE_MIN`` are the same in all.
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
"""Depth modes in which the depth of a 2D Gaussian is measured where the ray of the pixel meets its plane."""
DISTANCE_MODES: Final[dict[str, RenderMode]] = {"D": "d", "ED": "Ed", "RGB+D": "RGB-d", "RGB+ED": "RGB-Ed"}
"""Render mode with depths -> the same mode with distances along rays."""
VALIDATE: Final = get_args(Validate)
FRONT_ONLY: Final[tuple[CameraModel, ...]] = ("pinhole",)
"""Camera models that see nothing behind z = 0: dividing by z would mirror it."""
CAMERA_MODELS: Final = tuple(model for model in get_args(CameraModel) if model != "lidar")
"""Camera models that have a lens. A lidar is handled as a panorama whose pixels have other rays."""
TILE_SIZES: Final = (4, 8, 16)


class Capacities(NamedTuple):
    """Numbers of elements that memory is allocated for. The option ``capacity`` sets all of them but ``rows``.

    Attributes:
        spans, intersections: (Gaussian, tile row) and (Gaussian, tile) incidences.
        entries: Entries of the lists of parts, divided by max(1, half the number of parts of a tile). Has no effect if
            a tile is one part.
        chunks: Chunks of long lists.
        rows: Packed rows. Has no effect if there are fewer rows, or if rows are not packed.
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
        """Returns the largest capacity, except ``rows``."""
        return max(self._replace(rows=0))


Capacity = int | Capacities | Literal["auto"] | None
"""The size of lists: one capacity for all, a capacity per list (used by passes only), ``"auto"`` to follow earlier
calls, or None to count intersections first."""


class Size:
    """The index of each size in :class:`Capacities`, and in ``needed`` of :class:`~tsplat.data.Intersections`."""

    SPANS, INTERSECTIONS, ENTRIES, CHUNKS, ROWS = range(len(Capacities._fields))


FEATURES_MIN: Final = 16
"""Number of channels from which compositing by matrix products takes fewer instructions than channel by channel."""

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
"""Number of coefficients of a lens, padded with zeros. The values of a windshield follow them."""

SHUTTER_VALUES: Final = 20
"""Number of values that describe the path of a camera with a rolling shutter."""

LENS_GAIN_MIN: Final = 0.8
"""A point is invalid if radial distortion moves it to this fraction of its distance from the center, or closer."""

SHUTTER_STEPS: Final = 10
"""Iterations that find the time at which a rolling shutter exposes a point."""

AXIS_MIN: Final = 1e-30
"""Squared distance below which a point has no longitude (from the vertical axis), or no direction (from a camera)."""

BEHIND_POLE: Final = 1e4
"""Weight multiplier of a sigma point whose longitude differs by 180 degrees from the mean. The multiplier is 1 up to 90
degrees and grows quadratically beyond, so that gradients are continuous."""

FTHETA_STEPS: Final = 12
"""Newton steps that invert an f-theta polynomial. A step that would leave the interval of the root bisects it."""

BACK_SLOPE_SQUARED: Final = 1e-12
"""A point behind a camera is visible if (x^2 + y^2) / z^2 is larger. On the optical axis, it has no azimuth."""

RADIUS_MAX: Final = 2**30
"""Upper bound of screen radii in pixels: they fit into int32, and squared offsets into fp32."""

FILTER_VARIANCE: Final = 0.5
"""Variance of the low-pass filter around the mean of a 2D Gaussian, pixels^2."""

DISC_EXTENT: Final = 3.33
"""Radius of a 2D Gaussian's disc in standard deviations. Beyond it, only the low-pass filter has an alpha of at least
1/255, and the depth is that of the center."""

BOX_VARIANCE_MIN: Final = 1e-4
"""Lower bound of the squared half extent of the box around the unit circle of a 2D Gaussian, pixels^2."""

DEPTH_ALPHA_MIN: Final = 1e-10
"""Expected depth is depth / max(alpha, DEPTH_ALPHA_MIN)."""

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

_WINDOW: Final = [math.exp(-0.5 * (offset / 1.5) ** 2) for offset in range(-5, 6)]
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
    """Selects which of the two polynomials of an f-theta camera is exact."""

    PIXELDIST_TO_ANGLE = 0
    ANGLE_TO_PIXELDIST = 1


@dataclasses.dataclass
class FThetaCameraDistortionParameters:
    """Parameters of an f-theta camera, ``ftheta_coeffs`` of :func:`tsplat.rasterization`.

    An f-theta lens maps the angle from the optical axis to a distance in the image by a polynomial.

    Attributes:
        reference_poly: The polynomial that defines the lens. The other polynomial is checked but not used: its inverse
            is computed numerically.
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
    """The constants of one rasterizer: gsplat 1.5, gsplat 1.6 or Inria's.

    Attributes:
        name: Name of the preset, as in ``rasterization(numerics=...)``.
        alpha_max: Upper bound of alpha. Where alpha is clamped, geometry and opacity get no gradient.
        compensation_floor: Lower bound of the antialiasing compensation (Mip-Splatting, arXiv 2311.16493).
        camera_center: How to compute the camera center: ``"inverse"`` for -R^-1 t of the view matrix, or
            ``"transpose"`` for -R^T t. They differ if R is not a rotation.
        near_min: Lower bound of ``near_plane``. For :data:`FRONT_ONLY` cameras, 0 is a lower bound, too.
        extend: Radius in standard deviations; an upper bound if ``opacity_aware``.
        opacity_aware: If true, the radius along each axis ends where alpha falls below :data:`ALPHA_MIN` (arXiv
            2402.00525, section B.2). Otherwise both radii follow the larger principal axis.
        all_sigma_points: Whether the unscented transform culls Gaussians with an invalid sigma point.
        scale_min: The unscented transform culls Gaussians with a scale below this magnitude.
        whole_lines: Whether the exposure time of a point under a rolling shutter is that of its pixel row or column,
            instead of being interpolated at its coordinate. Ignored for panoramas and lidars.
        spare_tile_bit: Whether tile ids in ``isect_ids`` have one more bit than necessary if the number of tiles is a
            power of two.
        ray_footprint: The footprint of evaluation in 3D: ``"ray"``, or ``"ray in front"``, which skips Gaussians whose
            maximum along the ray is behind its origin.
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
        """Returns the smallest depth that is not culled."""
        return max(near_plane, self.near_min, 0.0 if model in FRONT_ONLY else -MAGNITUDE_MAX)


class RendererConfig:
    """Base class of gsplat 1.6's kernel configurations for evaluation in 3D."""

    def __init__(self) -> None:
        if type(self) is RendererConfig:
            raise TypeError(
                "RendererConfig: a base class; construct RendererConfig_MixedBatch or RendererConfig_ParallelBatch"
            )


class RendererConfig_MixedBatch(RendererConfig):  # noqa: N801 - gsplat's name
    """The default kernel configuration. tsplat has one kernel, so the image is that of ``renderer_config=None``."""


class RendererConfig_ParallelBatch(RendererConfig):  # noqa: N801 - gsplat's name
    """Requires ``with_eval3d``. tsplat has one kernel, so the image is that of ``renderer_config=None``."""


@dataclasses.dataclass
class UnscentedTransformParameters:
    """Parameters of the unscented transform (Julier and Uhlmann, 1997; as in 3DGUT, arXiv 2412.12507, section 4.1).

    Attributes:
        alpha: Spread of the sigma points: they are sqrt(alpha^2 (3 + kappa)) standard deviations from the mean.
        beta: Prior knowledge of the distribution; 2 is optimal for Gaussians.
        kappa: Secondary spread.
        in_image_margin_factor: Margin around the image in which sigma points are valid, as a fraction of its size.
        require_all_sigma_points_valid: If True, a Gaussian is culled if any of its seven sigma points is invalid; if
            False, only if all are. None follows the numerics preset: False for ``"gsplat-1.6"``, otherwise True.
    """

    alpha: float = 0.1
    beta: float = 2.0
    kappa: float = 0.0
    in_image_margin_factor: float = 0.1
    require_all_sigma_points_valid: bool | None = None


class Unscented(NamedTuple):
    """Weights of the unscented transform, and its rules of visibility.

    Attributes:
        spread: Distance of the sigma points from the mean, in standard deviations.
        weight: Weight of each of the six outer sigma points. For the mean, all weights add up to 1.
        center_weight: Weight of the center in the covariance.
        margin: Margin around the image in which sigma points are valid, as a fraction of the image size.
        all_valid: Whether all sigma points must be valid; otherwise, one suffices.
        radial: Whether depth is the distance from the camera instead of z. F-theta cameras then cull by it.
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
        """Computes the weights (Wan and van der Merwe, 2000, equation 15, for three dimensions)."""
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
        model: The camera model, as in :func:`tsplat.rasterization`.
        near, far: The depth range in world units. Gaussians outside are culled.
        readout: The readout direction: the name of a :class:`RollingShutterType`.
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
        """Makes settings from checked arguments; bounds the planes as the model and the preset require."""
        return cls(width, height, model, numerics.nearest(near, model), min(far, MAGNITUDE_MAX), readout)


class CameraField(NamedTuple):
    """Describes a field of :class:`~tsplat.data.Cameras` to the code that checks, exchanges and flattens cameras.

    Attributes:
        shape: Shape for one camera, with None for any size. It is equal on all ranks.
        remedy: Advice in messages about invalid values.
        differentiable: Whether the field has a gradient.
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
