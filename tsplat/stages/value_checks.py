"""Checks of the values of Gaussians and cameras: errors and warnings with the likely cause. Python waits for them."""

import warnings

import torch
from torch import Tensor

from ..arguments import is_per_camera
from ..config import ALPHA_MIN, MAGNITUDE_MAX, QUAT_NORM_MIN
from ..data import Cameras, Gaussians3D
from ..errors import InvalidValueError
from ..kernels_torch.validation import exceeds, has_no_focal_length, is_singular
from .inputs import camera_fields

AFTER_STEP = "did an optimizer step with a non-finite gradient?"

OVERSIZE = 10.0
"""A median scale above this many scene extents is reported as a mistake."""


@torch.no_grad()
def raise_if_invalid(
    gaussians: Gaussians3D, cameras: Cameras, colors: Tensor, sh_degree: int | None, colors_name: str = "colors"
) -> None:
    """Raises InvalidValueError if values are invalid or likely a mistake.

    The message says how many, the index of the first, and the likely cause. Checks, in this order: non-finite or too
    large cameras and Gaussians; singular cameras; quaternions of zero norm; negative scales (exp missing); opacities
    outside [0, 1] (sigmoid missing); scales far larger than the scene (exp applied twice). `colors` are SH coefficients
    if `sh_degree` is given, and may be per camera.
    """
    means, quats, scales = gaussians.means, gaussians.quats, gaussians.scales
    covars, opacities = gaussians.covars, gaussians.opacities
    assert opacities is not None
    per_camera = is_per_camera(colors, sh_degree, means.dim() - 2)
    checks: tuple[tuple[str, Tensor | None, int, str, str], ...] = (
        *(
            (name, getattr(cameras, name), len(field.shape), "camera", field.remedy)
            for name, field in camera_fields(cameras).items()
        ),
        ("means", means, 1, "Gaussian", AFTER_STEP),
        ("quats", quats, 1, "Gaussian", AFTER_STEP),
        ("scales", scales, 1, "Gaussian", AFTER_STEP),
        ("covars", covars, 1, "Gaussian", AFTER_STEP),
        ("opacities", opacities, 0, "Gaussian", AFTER_STEP),
        (colors_name, colors, 1 if sh_degree is None else 2, "Gaussian", AFTER_STEP),
    )
    for name, tensor, n_trailing_dims, noun, cause in checks:
        if tensor is not None:
            invalid = exceeds(tensor, n_trailing_dims)
            if tensor is colors and per_camera:
                invalid = invalid.any(-2)
            what = "are not finite" if not tensor.isfinite().all() else f"exceed {MAGNITUDE_MAX:g} in magnitude"
            _raise_if_any(name, invalid, noun, what, cause)
    _raise_if_any("viewmats", is_singular(cameras.viewmats), "camera", "have a singular rotation", "check the poses")
    _raise_if_any(
        "Ks", has_no_focal_length(cameras.Ks), "camera", "have a focal length of zero", "check the intrinsics"
    )
    if quats is not None:
        zero = quats.square().sum(-1) < QUAT_NORM_MIN**2
        _raise_if_any("quats", zero, "Gaussian", "have zero norm", "remove them, or set them to 1 0 0 0")
    if scales is not None:
        negative = (scales < 0).any(-1)
        _raise_if_any("scales", negative, "Gaussian", "are negative", "is exp() missing?")
    outside = (opacities < 0) | (opacities > 1)
    _raise_if_any("opacities", outside, "Gaussian", "are outside [0, 1]", "is sigmoid() missing?")
    sizes = measure_sizes(means, scales, covars)
    if sizes is not None and sizes[0] > OVERSIZE * sizes[1]:
        raise InvalidValueError(explain_sizes(means, scales, covars))


@torch.no_grad()
def warn_if_nothing_is_visible(gaussians: Gaussians3D, cameras: Cameras, near: float, far: float) -> None:
    """Warns if pinhole cameras see nothing because of depths or opacities, and says why."""
    means, opacities = gaussians.means, gaussians.opacities
    if not means.numel() or not cameras.viewmats.numel() or cameras.shutter is not None:
        return
    x, y, z = means[..., None, :, :].unbind(-1)  # [..., 1, N]
    a, b, c, d = cameras.viewmats[..., 2, :, None].to(means).unbind(-2)  # [..., C, 1]
    depths = a * x + b * y + c * z + d
    reason = ""
    if not ((depths >= near) & (depths <= far)).any():
        ahead = depths[depths > 0]
        if not len(ahead):
            reason = "all Gaussians are behind the cameras; check the poses, which are world to camera, with z forward"
        elif (depth := float(ahead.max())) < near:
            reason = (
                f"all Gaussians ahead are nearer than near_plane, {near:g}, at depths of up to {depth:.3g}; if lengths "
                "are in another unit, pass a smaller near_plane"
            )
        else:
            reason = f"all Gaussians ahead are farther than far_plane, {far:g}, at depths of up to {depth:.3g}"
    elif opacities is not None and float(opacities.max()) < ALPHA_MIN:
        reason = f"all opacities are below 1/255, up to {float(opacities.max()):.3g}"
    if reason:
        warnings.warn(f"nothing is visible: {reason}", stacklevel=5)


def _raise_if_any(name: str, invalid: Tensor, noun: str, what: str, cause: str) -> None:
    """Raises if any entry of ``invalid``, [...] bool, is true."""
    ids = invalid.flatten().nonzero().squeeze(1)
    if ids.numel():
        raise InvalidValueError(
            f"{name}: {ids.numel()} of {invalid.numel()} {noun}s {what} (first: {noun} {int(ids[0])}); {cause}"
        )


@torch.no_grad()
def measure_sizes(means: Tensor, scales: Tensor | None, covars: Tensor | None) -> tuple[float, float] | None:
    """Returns the median of the largest scales, and the scene extent: twice the median distance from the median mean.

    Returns None for fewer than two finite Gaussians.
    """
    if scales is None:
        assert covars is not None
        scales = covars[..., (0, 3, 5)].clamp_min(0).sqrt()
    finite = means.isfinite().all(-1) & scales.isfinite().all(-1)
    if int(finite.sum()) < 2:
        return None
    centers = means[finite]
    distances = (centers - centers.median(0).values).norm(dim=-1)
    return float(scales[finite].amax(-1).median()), 2 * float(distances.median())


def explain_sizes(means: Tensor, scales: Tensor | None, covars: Tensor | None) -> str:
    """Returns the likely cause of too many intersections, for messages."""
    sizes = measure_sizes(means, scales, covars)
    if sizes is None:
        return "fewer than two Gaussians are finite"
    found = f"median scale {sizes[0]:.3g}, scene extent {sizes[1]:.3g}"
    if sizes[0] > OVERSIZE * sizes[1]:
        return f"scales: {found}: was exp() applied twice?"
    return f"{found}; lower the resolution, or raise memory_budget"
