"""Invalid values in Gaussians and cameras: cull and count them, or raise an error that names the likely cause."""

from __future__ import annotations

import torch
from torch import Tensor

from ..arguments import is_per_camera
from ..config import MAGNITUDE_MAX, QUAT_NORM_MIN, Backend
from ..data import Cameras, Gaussians3D
from ..errors import InvalidValueError
from .backend import full_precision, launchers

DETERMINANT_MIN, FOCAL_MIN = 1e-12, 1e-12
"""View matrices with a smaller determinant, and smaller focal lengths, are singular."""

AFTER_STEP = "did an optimizer step with a non-finite gradient?"

OVERSIZE = 10.0
"""A median scale of more than this many scene extents is taken for a mistake."""


@torch.no_grad()
def find_valid(gaussians: Gaussians3D, colors: Tensor, *, per_camera: bool, backend: Backend) -> Tensor:
    """Finds Gaussians whose values are finite, at most 1e12 in magnitude, and whose quaternion has a norm. [B, N] bool

    Args:
        gaussians: Gaussians with opacities.
        colors: [B, N, ...], or [B, C, N, ...] if ``per_camera``.
    """
    gaussians = Gaussians3D(*(None if t is None else t.contiguous() for t in gaussians))  # type: ignore[arg-type]
    with full_precision(colors.device):
        valid: Tensor = launchers(colors.device, backend).valid_gaussians(
            gaussians, colors.contiguous(), per_camera=per_camera
        )
    return valid


def replace_invalid_cameras(cameras: Cameras) -> Cameras:
    """Replaces non-finite and singular cameras by cameras that see nothing."""
    viewmats, Ks = cameras
    invalid = _exceeds(viewmats, 2) | _exceeds(Ks, 2) | _is_singular(viewmats) | _has_no_focal_length(Ks)
    valid = ~invalid[..., None, None]
    away = torch.eye(4, dtype=viewmats.dtype, device=viewmats.device)
    # Everything up to MAGNITUDE_MAX is behind this camera.
    away[2, 3] = -4 * MAGNITUDE_MAX
    return Cameras(torch.where(valid, viewmats, away), torch.where(valid, Ks, away[:3, :3]))


def _exceeds(tensor: Tensor, n_own_dims: int) -> Tensor:
    """Finds entries with a value that is not finite or beyond MAGNITUDE_MAX in their trailing dimensions."""
    invalid = ~(tensor.detach().abs() <= MAGNITUDE_MAX)
    return invalid.flatten(invalid.dim() - n_own_dims).any(-1) if n_own_dims else invalid


def _is_singular(viewmats: Tensor) -> Tensor:
    x, y, z = viewmats.detach()[..., :3, :3].unbind(-2)
    return (x.cross(y, -1) * z).sum(-1).abs() < DETERMINANT_MIN


def _has_no_focal_length(Ks: Tensor) -> Tensor:
    return (torch.stack([Ks[..., 0, 0], Ks[..., 1, 1]], -1).abs() < FOCAL_MIN).any(-1)


@torch.no_grad()
def raise_if_invalid(
    gaussians: Gaussians3D,
    cameras: Cameras,
    colors: Tensor,
    sh_degree: int | None,
    colors_name: str = "colors",
) -> None:
    """Raises if values are invalid or likely to be a mistake.

    Checked in this order: non-finite, too large and singular cameras; non-finite and too large Gaussians; quaternions
    of zero norm; negative scales (exp missing); opacities outside [0, 1] (sigmoid missing); scales far larger than the
    scene (exp applied twice).

    Args:
        gaussians: Gaussians with opacities and any batch dimensions; ``covars`` are [..., N, 6].
        cameras: With the batch dimensions of the Gaussians.
        colors: [..., N, D] or [..., C, N, D]; with ``sh_degree``, coefficients [..., N, K, D] or [..., C, N, K, D].
        colors_name: Name of ``colors`` in messages.

    Raises:
        InvalidValueError: The message names the tensor, the number of invalid entries, the first, and the likely cause.
    """
    (means, quats, scales, covars, opacities, _), (viewmats, Ks) = gaussians, cameras
    assert opacities is not None
    per_camera = is_per_camera(colors, sh_degree, means.dim() - 2)
    kinds: tuple[tuple[str, Tensor | None, int, str, str], ...] = (
        ("viewmats", viewmats, 2, "camera", "check the poses"),
        ("Ks", Ks, 2, "camera", "check the intrinsics"),
        ("means", means, 1, "Gaussian", AFTER_STEP),
        ("quats", quats, 1, "Gaussian", AFTER_STEP),
        ("scales", scales, 1, "Gaussian", AFTER_STEP),
        ("covars", covars, 1, "Gaussian", AFTER_STEP),
        ("opacities", opacities, 0, "Gaussian", AFTER_STEP),
        (colors_name, colors, 1 if sh_degree is None else 2, "Gaussian", AFTER_STEP),
    )
    for name, tensor, n_own_dims, noun, cause in kinds:
        if tensor is not None:
            invalid = _exceeds(tensor, n_own_dims)
            if tensor is colors and per_camera:
                invalid = invalid.any(-2)
            what = "are not finite" if not tensor.isfinite().all() else f"exceed {MAGNITUDE_MAX:g} in magnitude"
            _raise_if_any(name, invalid, noun, what, cause)
    _raise_if_any("viewmats", _is_singular(viewmats), "camera", "have a singular rotation", "check the poses")
    _raise_if_any("Ks", _has_no_focal_length(Ks), "camera", "have a focal length of zero", "check the intrinsics")
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


def _raise_if_any(name: str, invalid: Tensor, noun: str, what: str, cause: str) -> None:
    """Raises if any entry of ``invalid``, [...] bool, is true."""
    ids = invalid.flatten().nonzero().squeeze(1)
    if ids.numel():
        raise InvalidValueError(
            f"{name}: {ids.numel()} of {invalid.numel()} {noun}s {what} (first: {noun} {int(ids[0])}); {cause}"
        )


@torch.no_grad()
def measure_sizes(means: Tensor, scales: Tensor | None, covars: Tensor | None) -> tuple[float, float] | None:
    """Measures the median of the largest scales, and the scene extent: twice the median distance from the median mean.

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
    """Returns the likely cause of far too many intersections."""
    sizes = measure_sizes(means, scales, covars)
    if sizes is None:
        return "fewer than two Gaussians are finite"
    found = f"median scale {sizes[0]:.3g}, scene extent {sizes[1]:.3g}"
    if sizes[0] > OVERSIZE * sizes[1]:
        return f"scales: {found}: was exp() applied twice?"
    return f"{found}; lower the resolution, or raise memory_budget"
