"""Lenses and rolling shutters: checks their options, and computes the tensors of cameras that describe them.

``Cameras.lens`` [..., C, 12] holds the coefficients of a lens in the order of ``kernels_torch/lenses/``, then zeros.
``Cameras.Ks`` of f-theta cameras have a focal length of 1, and a principal point relative to the corner of the image.

Behind a windshield, 84 values follow these 12: 21 coefficients each of four polynomials of degree 5 in the angles
(phi, psi) of a ray: phi and psi from outside to inside, then phi and psi from inside to outside. The order is that of
phi^0 to phi^5, then psi times phi^0 to phi^4, and so on.

``Cameras.shutter`` [..., C, 20] is a ``Path`` of ``kernels_torch/shutters.py``.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..arguments import FLOATS, check_bool, check_devices, check_no_grad, check_number, check_tensor, plain
from ..config import (
    CAMERA_MODELS,
    LENS_COEFFICIENTS,
    MAGNITUDE_MAX,
    FThetaPolynomialType,
    Numerics,
    RollingShutterType,
    Unscented,
    UnscentedTransformParameters,
)
from ..data import Cameras, ProjectedGaussians, ProjectionSettings
from ..errors import ArgumentError, ShapeError
from ..formulas.panorama_angles import full_panorama
from ..formulas.rotations import quaternions
from ..kernels_torch.lenses import LENSES
from ..kernels_torch.shutters import Path, path_of
from ..kernels_torch.validation import camera_centers, is_singular
from ..runtime.tracing import is_tracing
from ..scalars import check_choice, check_size, describe, enum_name

NEGLIGIBLE = 1e-30
"""Smaller coefficients of an f-theta polynomial do not affect images. The search for its domain takes them as 0."""

RASTERIZATION_ONLY = {
    "lidar": "single stages do not support spinning lidars; use rasterization, or the stages of tsplat.compat.gsplat"
}
"""Camera models that ``rasterization`` supports and single stages do not -> what to do instead."""

REQUIRES_UT = "it requires the unscented transform: with_ut=True, or fully_fused_projection_with_ut"


class ExternalDistortionReferencePolynomial(enum.IntEnum):
    """Selects which polynomials of a windshield are exact: from outside to inside (forward), or the inverse."""

    FORWARD = 1
    BACKWARD = 2


@dataclasses.dataclass
class BivariateWindshieldModelParameters:
    """Parameters of a windshield in front of a camera, ``external_distortion_coeffs`` of :func:`tsplat.rasterization`.

    For a point p = (x, y, z) of the camera frame, let phi = asin(x / ‖p‖) and psi = asin(y / ‖p‖). Behind the
    windshield, the lens sees it in the direction (sin h, sin v, sqrt(1 - sin^2 h - sin^2 v)), where h and v are
    polynomials in phi and psi. Coefficients are ordered 1, phi, ..., phi^n, then psi, phi psi, ..., phi^(n-1) psi, and
    so on: 1, 3, 6, 10, 15 or 21 coefficients for degrees n from 0 to 5, as a sequence or a tensor of any dtype and
    device. Not differentiable.

    Attributes:
        horizontal_poly, vertical_poly: h and v, used to project points.
        horizontal_poly_inverse, vertical_poly_inverse: The inverse, from the directions that the lens sees to the
            directions outside, used to compute the rays of pixels.
        reference_poly: Which polynomials were calibrated. As in gsplat, it is checked and has no effect.
    """

    horizontal_poly: Tensor | Sequence[float] = (0.0, 1.0, 0.0)
    vertical_poly: Tensor | Sequence[float] = (0.0, 0.0, 1.0)
    horizontal_poly_inverse: Tensor | Sequence[float] = (0.0, 1.0, 0.0)
    vertical_poly_inverse: Tensor | Sequence[float] = (0.0, 0.0, 1.0)
    reference_poly: ExternalDistortionReferencePolynomial = ExternalDistortionReferencePolynomial.FORWARD


POLYNOMIALS = ("horizontal_poly", "vertical_poly", "horizontal_poly_inverse", "vertical_poly_inverse")
DEGREES = {1: 0, 3: 1, 6: 2, 10: 3, 15: 4, 21: 5}
"""Number of coefficients of a polynomial in two angles -> its degree."""


class LensArguments(NamedTuple):
    """The arguments of :func:`tsplat.rasterization` about lenses and shutters, as given."""

    radial_coeffs: Tensor | None = None
    tangential_coeffs: Tensor | None = None
    thin_prism_coeffs: Tensor | None = None
    ftheta_coeffs: object | None = None
    external_distortion_coeffs: object | None = None
    viewmats_rs: Tensor | None = None

    def given(self) -> dict[str, Any]:
        """Returns the arguments that are not None, by name."""
        return {name: value for name, value in zip(self._fields, self) if value is not None}


def check_camera_model(camera_model: object, *, with_ut: bool = False) -> None:
    """Raises unless a camera model is supported, with or without the unscented transform."""
    others = {model: REQUIRES_UT for model, lens in LENSES.items() if not (with_ut or lens.has_jacobian)}
    check_choice("camera_model", camera_model, CAMERA_MODELS, RASTERIZATION_ONLY | others)


def given_intrinsics(Ks: Tensor | None, model: object, viewmats: object, size: tuple[Any, Any]) -> Any:
    """Returns Ks, or if it is None and the model is a panorama, the intrinsics [..., C, 3, 3] of a full panorama.

    Returns Ks if ``viewmats`` are invalid, for later checks to raise.
    """
    lens = LENSES.get(model) if isinstance(model, str) else None
    if Ks is not None or lens is None or not lens.wraps or not isinstance(viewmats, Tensor):
        return Ks
    if viewmats.dtype not in FLOATS or viewmats.is_nested or viewmats.dim() < 2:
        return Ks
    width, height = check_size("width", size[0]), check_size("height", size[1])
    fx, fy, cx, cy = full_panorama(width, height)
    values = (fx, 0.0, cx, 0.0, fy, cy, 0.0, 0.0, 1.0)
    dtype = torch.promote_types(torch.float32, viewmats.dtype)
    return _on_device(values, dtype, viewmats.device).view(3, 3).expand(*viewmats.shape[:-2], 3, 3)


def u_periods(projected: ProjectedGaussians, cameras: Cameras, model: str) -> Tensor | None:
    """Returns the period of u for each row [nnz], the pixels of 360 degrees; None if columns do not wrap."""
    if not LENSES[model].wraps:
        return None
    periods, ids = 2 * math.pi * cameras.Ks[..., 0, 0].abs().flatten(), projected.image_ids()
    return periods.repeat_interleave(projected.n_gaussians) if ids is None else periods[ids]


def check_unscented(
    with_ut: bool, ut_params: object, numerics: Numerics, global_z_order: object = True, model: str = "pinhole"
) -> Unscented | None:
    """Checks the parameters of the unscented transform. Returns None without it."""
    radial = not check_bool("global_z_order", global_z_order)
    if with_ut:
        wraps = LENSES[model].wraps
        transform = Unscented.of(check_parameters(ut_params), numerics, radial or wraps)
        # gsplat has no panoramas, and the columns of a lidar differ from the columns of its panorama.
        return transform._replace(whole_lines=transform.whole_lines and not wraps)
    if ut_params is not None:
        raise ArgumentError("ut_params: requires with_ut=True, found with_ut=False")
    if radial:
        raise ArgumentError("global_z_order: False requires with_ut=True, found with_ut=False")
    return None


def check_parameters(given: object) -> UnscentedTransformParameters:
    """Checks the parameters of an unscented transform, of tsplat or gsplat."""
    if given is None:
        return UnscentedTransformParameters()
    numbers = {
        name: check_number(f"ut_params.{name}", getattr(given, name, None), finite=True)
        for name in ("alpha", "beta", "kappa", "in_image_margin_factor")
    }
    require_all = getattr(given, "require_all_sigma_points_valid", None)
    if require_all is not None:
        require_all = check_bool("ut_params.require_all_sigma_points_valid", require_all)
    parameters = UnscentedTransformParameters(**numbers, require_all_sigma_points_valid=require_all)
    if not parameters.alpha**2 * (3 + parameters.kappa) > 0:
        raise ArgumentError(f"ut_params: expected alpha^2 (3 + kappa) above 0, found {describe(given)}")
    return parameters


def add_lens(
    cameras: Cameras, lens: LensArguments, settings: ProjectionSettings, batch: torch.Size, n_cameras: int
) -> Cameras:
    """Adds ``lens`` and ``shutter`` to checked cameras.

    Raises:
        ArgumentError: A shape, dtype or device is invalid, or a tensor does not fit the camera model or the shutter.
    """
    given, model, readout = lens.given(), settings.camera.model, settings.camera.readout
    rolls = readout != RollingShutterType.GLOBAL.name
    if not given and not rolls and model != "ftheta":
        return cameras
    if settings.unscented is None:
        raise ArgumentError(f"{next(iter(given), 'rolling_shutter')}: requires with_ut=True, found with_ut=False")
    if rolls != ("viewmats_rs" in given):
        expected = "the poses at the end of the readout" if rolls else "None"
        raise ArgumentError(f"viewmats_rs: expected {expected}, as rolling_shutter is {readout}")
    windshield = given.pop("external_distortion_coeffs", None)
    if model == "ftheta":
        # A windshield covers the front only. With depths z, points behind the camera are in front of the near plane.
        may_see_behind = settings.unscented.radial and windshield is None
        cameras = _add_ftheta(cameras, given.pop("ftheta_coeffs", None), batch, n_cameras, may_see_behind)
    elif windshield is not None and (LENSES[model].is_parallel or LENSES[model].wraps):
        why = "whose rays are parallel" if LENSES[model].is_parallel else "which see all around; use another model"
        raise ArgumentError(f"external_distortion_coeffs: expected None for {model} cameras, {why}")
    shapes = {name: (n,) for name, n in LENSES[model].arguments.items()} | {"viewmats_rs": (4, 4)}
    for name, tensor in given.items():
        if name not in shapes:
            others = [m for m, other in LENSES.items() if name in other.arguments or name == f"{m}_coeffs"]
            remedy = f"; use camera_model {' or '.join(map(repr, others))}" if others else ""
            raise ArgumentError(f"{name}: expected None for {model} cameras{remedy}")
        meaning = f"[..., C, {', '.join(map(str, shapes[name]))}] as viewmats"
        check_tensor(name, tensor, [*batch, n_cameras, *shapes[name]], meaning)
    check_devices({"viewmats": cameras.viewmats, **given})
    dtype = torch.promote_types(torch.float32, cameras.viewmats.dtype)
    given = {name: tensor.to(torch.promote_types(dtype, tensor.dtype)) for name, tensor in given.items()}
    end = given.pop("viewmats_rs", None)
    if end is not None:
        cameras = cameras._replace(shutter=_path(cameras.viewmats.to(end.dtype), end, settings.numerics))
    if given or (windshield is not None and cameras.lens is None):
        zeros = cameras.viewmats.new_zeros(*batch, n_cameras, LENS_COEFFICIENTS, dtype=dtype)
        cameras = cameras._replace(lens=LENSES[model].pack(given, zeros))
    return cameras if windshield is None else _add_windshield(cameras, windshield)


def _add_windshield(cameras: Cameras, windshield: object) -> Cameras:
    """Appends the polynomials of a windshield, of tsplat or gsplat, to the lens of cameras."""
    assert cameras.lens is not None
    names = tuple(ExternalDistortionReferencePolynomial.__members__)
    reference = enum_name(getattr(windshield, "reference_poly", None))
    check_choice("external_distortion_coeffs.reference_poly", reference, names)
    values = torch.cat([_bivariate(windshield, name, cameras.lens) for name in POLYNOMIALS])
    return cameras._replace(lens=torch.cat([cameras.lens, values.expand(*cameras.lens.shape[:-1], -1)], -1))


def _bivariate(windshield: object, name: str, like: Tensor) -> Tensor:
    """Returns the coefficients of a polynomial in two angles, padded to degree 5, in the dtype of a tensor. [21]"""
    given: Any = getattr(windshield, name, None)
    name = f"external_distortion_coeffs.{name}"
    if isinstance(given, (Sequence, np.ndarray)):
        given = _on_device(tuple([check_number(name, value) for value in given]), like.dtype, like.device)
    check_tensor(name, given, [None], "[n], n coefficients of a polynomial")
    check_no_grad(name, given)
    if len(given) not in DEGREES:
        raise ShapeError(f"{name}: expected 1, 3, 6, 10, 15 or 21 coefficients, found {len(given)}")
    degree = DEGREES[len(given)]
    groups = given.to(like).split([degree + 1 - k for k in range(degree + 1)])
    padded = [torch.nn.functional.pad(group, (0, 6 - k - len(group))) for k, group in enumerate(groups)]
    return torch.nn.functional.pad(torch.cat(padded), (0, 21 - sum(6 - k for k in range(degree + 1))))


def _add_ftheta(cameras: Cameras, ftheta: object, batch: torch.Size, n_cameras: int, may_see_behind: bool) -> Cameras:
    """Adds an f-theta lens, of tsplat or gsplat, to cameras."""
    if ftheta is None:
        raise ArgumentError(
            "ftheta_coeffs: expected an FThetaCameraDistortionParameters, as camera_model is 'ftheta', found None"
        )
    names = tuple(FThetaPolynomialType.__members__)
    reference = enum_name(getattr(ftheta, "reference_poly", None))
    check_choice("ftheta_coeffs.reference_poly", reference, names)
    polynomials = {name: _numbers(ftheta, f"{name.lower()}_poly", 6) for name in names}
    inverts, coefficients = reference == "PIXELDIST_TO_ANGLE", polynomials[reference]
    if coefficients[0] != 0 or coefficients[1] <= 0:
        raise ArgumentError(
            f"ftheta_coeffs.{reference.lower()}_poly: expected 0 and a positive number first, as the image of the "
            f"optical axis is the principal point, found {describe(coefficients[:2])}"
        )
    c, d, e = _numbers(ftheta, "linear_cde", 3)
    if abs(c - d * e) < 1e-8:
        raise ArgumentError(f"ftheta_coeffs.linear_cde: expected c - d e != 0, found {describe([c, d, e])}")
    angle = check_number("ftheta_coeffs.max_angle", getattr(ftheta, "max_angle", None), finite=True)
    if angle <= 0:
        raise ArgumentError(f"ftheta_coeffs.max_angle: expected a number above 0, found {angle}")
    angle, distance = _largest_of_ftheta(coefficients, min(angle, math.pi), inverts)
    around = may_see_behind and angle > math.pi / 2
    values = [*coefficients[1:], angle, distance, c, d, e, float(inverts), float(around)]
    viewmats, Ks = cameras.viewmats, cameras.Ks
    dtype = torch.promote_types(torch.promote_types(torch.float32, viewmats.dtype), Ks.dtype)
    intrinsics = torch.eye(3, dtype=dtype, device=Ks.device).repeat(*batch, n_cameras, 1, 1)
    intrinsics[..., :2, 2] = Ks[..., :2, 2].detach().to(dtype) + 0.5  # gsplat: relative to the center of pixel (0, 0)
    lens = _on_device(tuple(values), dtype, Ks.device)
    return cameras._replace(Ks=intrinsics, lens=lens.repeat(*batch, n_cameras, 1))


def _on_device(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns numbers as a tensor on a device, cached: the copy is synchronous, which a CUDA graph does not allow.

    A trace makes its own tensor, which it then recognizes as a constant.
    """
    make = _on_device_once.__wrapped__ if is_tracing() else _on_device_once
    tensor: Tensor = make(values, dtype, device)
    return tensor


@functools.cache  # unbounded: CUDA graphs may read the tensors
def _on_device_once(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device)


def _numbers(ftheta: object, name: str, n: int) -> list[float]:
    """Checks a field of an f-theta lens, n finite numbers, and returns it as a list."""
    given: Any = getattr(ftheta, name, None)
    if isinstance(given, Tensor):
        given = plain(f"ftheta_coeffs.{name}", given)
    is_sequence = isinstance(given, (Sequence, np.ndarray, Tensor)) and getattr(given, "ndim", 1) == 1
    if not is_sequence or len(given) != n:
        raise ArgumentError(f"ftheta_coeffs.{name}: expected {n} numbers, found {describe(given)}")
    numbers = [check_number(f"ftheta_coeffs.{name}", value, finite=True) for value in given]
    if max(map(abs, numbers)) > MAGNITUDE_MAX:
        raise ArgumentError(
            f"ftheta_coeffs.{name}: expected numbers of at most {MAGNITUDE_MAX:g} in magnitude, found {describe(given)}"
        )
    return numbers


def _largest_of_ftheta(coefficients: list[float], angle: float, inverts: bool) -> tuple[float, float]:
    """Returns the largest angle, up to a bound, below which an f-theta polynomial increases, and its pixel distance."""
    polynomial = np.polynomial.Polynomial([c if abs(c) > NEGLIGIBLE else 0.0 for c in coefficients])

    def first_root(of: np.polynomial.Polynomial) -> float:
        roots = of.roots()
        return min(roots.real[(abs(roots.imag) <= 1e-6 * abs(roots)) & (roots.real > 0)], default=math.inf)

    stop = first_root(polynomial.deriv())
    if not inverts:
        angle = min(angle, stop)
        return angle, float(polynomial(angle))
    distance = first_root(polynomial - angle)
    return (float(polynomial(stop)), float(stop)) if stop < distance else (angle, float(distance))


def _path(start: Tensor, end: Tensor, numerics: Numerics) -> Tensor:
    """Returns the path of a camera between two poses [..., 4, 4], as the 20 values of a `Path`."""
    # Invalid poses are replaced, so that they get no gradient.
    largest = torch.maximum(start.detach().abs().amax((-2, -1)), end.detach().abs().amax((-2, -1)))
    largest = torch.where(is_singular(end.detach()), torch.inf, largest)[..., None]
    valid, still = largest <= MAGNITUDE_MAX, torch.eye(4, dtype=end.dtype, device=end.device)
    start, end = (torch.where(valid[..., None], pose, still) for pose in (start, end))
    q0, q1 = quaternions(start[..., :3, :3]), quaternions(end[..., :3, :3])
    cosine = (q0 * q1).sum(-1, keepdim=True)
    q1 = torch.where(cosine < 0, -q1, q1)
    # angle = 2 atan2(|q1 - q0|, |q1 + q0|), which is precise for small angles. acos(cosine) is not.
    angle = 2 * torch.atan2((q1 - q0).norm(dim=-1, keepdim=True), (q1 + q0).norm(dim=-1, keepdim=True))
    rotates = angle > torch.finfo(start.dtype).eps
    inverse = torch.where(rotates, 1 / torch.where(rotates, angle, 1.0).sin(), 0.0)
    center = camera_centers(end, numerics)
    path = Path(q0, q1, start[..., :3, 3], end[..., :3, 3], angle, inverse, center, unused=0 * angle)
    return torch.where(valid, torch.cat(path, -1), largest)


def replace_invalid_paths(shutter: Tensor, valid: Tensor) -> Tensor:
    """Replaces the paths of invalid cameras by paths on which everything is behind the camera."""
    behind = shutter.new_zeros(shutter.shape[-1])
    path = path_of(behind)
    for q, t in ((path.q0, path.t0), (path.q1, path.t1)):
        q[0].fill_(1.0)
        t[2].fill_(-4 * MAGNITUDE_MAX)
    return torch.where(valid[..., None], shutter, behind)
