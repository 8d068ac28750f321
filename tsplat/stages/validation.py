"""What to do about Gaussians that cannot be drawn: cull and count them, or say which they are and why."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..config import MAGNITUDE_MAX, QUAT_NORM_MIN
from ..errors import InvalidValueError
from .backend import full_precision, launchers

Validate = Literal["cull", "error", "off"]
VALIDATE = ("cull", "error", "off")

DETERMINANT_MIN, FOCAL_MIN = 1e-12, 1e-12
"""A view matrix whose rotation, or a focal length, is smaller maps everything to one place."""

STEPPED = "did an optimizer step with a gradient that was not finite?"

OVERSIZE = 10.0
"""Scales whose median exceeds this many times the extent of the scene are taken for a mistake."""


@torch.no_grad()
def find_valid(
    means: Tensor,
    quats: Tensor | None,
    scales: Tensor | None,
    covars: Tensor | None,
    opacities: Tensor,
    colors: Tensor,
    *,
    per_camera: bool,
    backend: str,
) -> Tensor:
    """Gaussians of which no number is beyond 1e12 or not one, nor the quaternion below 1e-12. [B, N] bool

    Args:
        means, quats, scales, covars, opacities: [B, N, 3], [B, N, 4], [B, N, 3], [B, N, 6], [B, N].
        colors: [B, N, ...], or [B, C, N, ...] if `per_camera`.
    """
    inputs = (means, quats, scales, covars, opacities, colors)
    with full_precision(means.device):
        sound: Tensor = launchers(means.device, backend).valid_gaussians(
            *(None if t is None else t.contiguous() for t in inputs), per_camera=per_camera
        )
    return sound


def replace_invalid_cameras(viewmats: Tensor, Ks: Tensor) -> tuple[Tensor, Tensor]:
    """Cameras [B, C, ...]; what is not finite, or maps all to one place, becomes a camera that sees nothing."""
    bad = _exceeds(viewmats, 2) | _exceeds(Ks, 2) | _is_singular(viewmats) | _has_no_focal_length(Ks)
    sound = ~bad[..., None, None]
    nowhere = torch.eye(4, dtype=viewmats.dtype, device=viewmats.device)
    # Everything up to MAGNITUDE_MAX lies behind it.
    nowhere[2, 3] = -4 * MAGNITUDE_MAX
    return torch.where(sound, viewmats, nowhere), torch.where(sound, Ks, nowhere[:3, :3])


def _exceeds(tensor: Tensor, own_dims: int) -> Tensor:
    """Rows with a number beyond MAGNITUDE_MAX or not one, of `own_dims` trailing dimensions each."""
    wrong = ~(tensor.detach().abs() <= MAGNITUDE_MAX)
    return wrong.flatten(wrong.dim() - own_dims).any(-1) if own_dims else wrong


def _is_singular(viewmats: Tensor) -> Tensor:
    """Cameras whose rotation maps space to a plane or less."""
    x, y, z = viewmats.detach()[..., :3, :3].unbind(-2)
    return (x.cross(y, -1) * z).sum(-1).abs() < DETERMINANT_MIN


def _has_no_focal_length(Ks: Tensor) -> Tensor:
    return (torch.stack([Ks[..., 0, 0], Ks[..., 1, 1]], -1).abs() < FOCAL_MIN).any(-1)


@torch.no_grad()
def raise_if_invalid(
    means: Tensor,
    quats: Tensor | None,
    scales: Tensor | None,
    covars: Tensor | None,
    opacities: Tensor,
    colors: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    *,
    per_camera: bool,
    sh: bool,
) -> None:
    """Raises for the first kind of value, in the order below, that cannot be drawn or is likely to be a mistake.

    Cameras that are not finite, or map all to one place; Gaussians that are not finite, or beyond 1e12; quaternions of
    zero norm; negative scales (a missing exp); opacities outside [0, 1] (a missing sigmoid); scales far larger than the
    scene (exp twice).

    Args:
        means, quats, scales, covars, opacities, viewmats, Ks: [..., N, 3], [..., N, 4], [..., N, 3], [..., N, 6],
            [..., N], [..., C, 4, 4], [..., C, 3, 3].
        colors: [..., N, D], with `sh` [..., N, K, 3], and with `per_camera` [..., C, N, ...].

    Raises:
        InvalidValueError: The message names the tensor, how many rows, the first, and the likely cause.
    """
    kinds: tuple[tuple[str, Tensor | None, int, str, str], ...] = (
        ("viewmats", viewmats, 2, "camera", "check the poses"),
        ("Ks", Ks, 2, "camera", "check the intrinsics"),
        ("means", means, 1, "row", STEPPED),
        ("quats", quats, 1, "row", STEPPED),
        ("scales", scales, 1, "row", STEPPED),
        ("covars", covars, 1, "row", STEPPED),
        ("opacities", opacities, 0, "row", STEPPED),
        ("colors", colors, 2 if sh else 1, "row", STEPPED),
    )
    for name, tensor, own_dims, thing, cause in kinds:
        if tensor is not None:
            bad = _exceeds(tensor, own_dims)
            if name == "colors" and per_camera:
                bad = bad.any(-2)
            what = "are not finite" if not tensor.isfinite().all() else f"exceed {MAGNITUDE_MAX:g} in magnitude"
            _reject(name, bad, thing, what, cause)
    _reject(
        "viewmats", _is_singular(viewmats), "camera", "see nothing, as their rotation is singular", "check the poses"
    )
    _reject("Ks", _has_no_focal_length(Ks), "camera", "see nothing, as a focal length is zero", "check the intrinsics")
    if quats is not None:
        zero = quats.square().sum(-1) < QUAT_NORM_MIN**2
        _reject("quats", zero, "row", "have zero norm", "remove them, or set them to 1 0 0 0")
    if scales is not None:
        negative = (scales < 0).any(-1)
        _reject("scales", negative, "row", "are negative", "they are standard deviations: was exp() left out?")
    outside = (opacities < 0) | (opacities > 1)
    _reject("opacities", outside, "row", "lie outside [0, 1]", "was sigmoid() left out?")
    size = describe_sizes(means, scales, covars)
    if size is not None and size[0] > OVERSIZE * size[1]:
        raise InvalidValueError(explain_sizes(means, scales, covars))


def _reject(name: str, bad: Tensor, thing: str, what: str, cause: str) -> None:
    """Raises if any of `bad`, [..., rows] bool, is set."""
    rows = bad.flatten().nonzero().squeeze(1)
    if rows.numel():
        raise InvalidValueError(
            f"{name}: {rows.numel()} of {bad.numel()} {thing}s {what} (first: {thing} {int(rows[0])}); {cause}"
        )


@torch.no_grad()
def describe_sizes(means: Tensor, scales: Tensor | None, covars: Tensor | None) -> tuple[float, float] | None:
    """Median of the largest scales, and extent of the scene, twice the median distance of means from their median."""
    if scales is None:
        assert covars is not None
        scales = covars[..., (0, 3, 5)].clamp_min(0).sqrt()
    known = means.isfinite().all(-1) & scales.isfinite().all(-1)
    if int(known.sum()) < 2:
        return None
    centers = means[known]
    distance = (centers - centers.median(0).values).norm(dim=-1)
    return float(scales[known].amax(-1).median()), 2 * float(distance.median())


def explain_sizes(means: Tensor, scales: Tensor | None, covars: Tensor | None) -> str:
    """The likely cause of lists of pairs that are far too long."""
    size = describe_sizes(means, scales, covars)
    if size is None:
        return "no two Gaussians are finite"
    found = f"median scale {size[0]:.3g} against scene extent {size[1]:.3g}"
    if size[0] > OVERSIZE * size[1]:
        return f"scales: {found}: were the scales exponentiated twice?"
    return f"{found}; lower the resolution, or raise memory_budget"
