"""Validation of Gaussians and cameras: marks invalid ones, so that kernels leave them out."""

from typing import Any

import torch
from torch import Tensor

from ..config import Backend, Numerics
from ..data import Cameras, Gaussians3D
from ..kernels_torch.shutters import path_of
from ..kernels_torch.validation import camera_centers, exceeds
from ..precision import full_precision
from ..runtime.autograd import once_differentiable
from ..runtime.backend import launchers
from .inputs import contiguous
from .lens_models import replace_invalid_paths

CHECKED_BY_KERNELS = {"viewmats", "Ks"}
"""Tensors of cameras that the validation kernel checks. PyTorch operators check the others."""


class _Prepared(torch.autograd.Function):
    """Connects prepared view matrices and camera centers to the view matrices that were passed, for gradients."""

    @staticmethod
    def forward(
        ctx: Any, _viewmats: Tensor, viewmats: Tensor, centers: Tensor, valid: Tensor | None, numerics: Numerics
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(viewmats, valid)
        ctx.numerics = numerics
        return viewmats, centers

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, saved: tuple[Tensor, Tensor | None], v_viewmats: Tensor, v_centers: Tensor
    ) -> tuple[Tensor | None, ...]:
        viewmats, valid = saved
        with torch.enable_grad():
            leaf = viewmats.detach().requires_grad_()
            v_viewmats = v_viewmats + torch.autograd.grad(camera_centers(leaf, ctx.numerics), leaf, v_centers)[0]
        if valid is not None:
            v_viewmats = torch.where(valid[..., None, None], v_viewmats, 0.0)
        return v_viewmats, None, None, None, None


def mark_valid(
    gaussians: Gaussians3D,
    signals: dict[str, tuple[Tensor, bool]],
    cameras: Cameras,
    numerics: Numerics,
    backend: Backend,
    *,
    check: bool,
) -> tuple[Gaussians3D, Cameras, Tensor]:
    """Marks valid Gaussians, replaces invalid cameras by cameras that see nothing, and computes camera centers.

    Args:
        gaussians: Contiguous Gaussians with opacities.
        signals: Colors and extra signals by name, see :meth:`.Call.signals`: tensors [..., N, ...] with False, or per
            camera [..., C, N, ...] with True.
        cameras: The cameras. Differentiable.
        check: Whether to check Gaussians and cameras; otherwise all are kept.

    Returns:
        The Gaussians with ``valid``; the cameras; the camera centers [B, C, 3] in the world frame.
    """
    others = {name: t for name, t in cameras._asdict().items() if t is not None and name not in CHECKED_BY_KERNELS}
    with full_precision():
        marked = _invalidate_cameras(cameras, others) if check and others else cameras
        valid, prepared, centers, valid_cameras = launchers(gaussians.means.device, backend).find_valid(
            gaussians if check else None,
            {name: (values.contiguous(), per_camera) for name, (values, per_camera) in signals.items() if check},
            contiguous(marked),
            numerics,
        )
    if cameras.viewmats.requires_grad:
        viewmats, centers = _Prepared.apply(cameras.viewmats, prepared.viewmats, centers, valid_cameras, numerics)  # type: ignore[no-untyped-call]
        prepared = prepared._replace(viewmats=viewmats)
    if others:
        prepared = prepared._replace(**_zero_invalid(others, valid_cameras))
        if "shutter" in others:
            if valid_cameras is not None:
                prepared = prepared._replace(shutter=replace_invalid_paths(others["shutter"], valid_cameras))
            centers = 0.5 * (centers + path_of(prepared.shutter).center)
    return gaussians._replace(valid=valid), prepared, centers


@torch.no_grad()
def _invalidate_cameras(cameras: Cameras, others: dict[str, Tensor]) -> Cameras:
    """Sets the view matrices of cameras to NaN if another tensor of the camera is invalid."""
    invalid = torch.stack([exceeds(tensor, tensor.dim() - 2) for tensor in others.values()]).any(0)
    return cameras._replace(viewmats=torch.where(invalid[..., None, None], torch.nan, cameras.viewmats))


def _zero_invalid(others: dict[str, Tensor], valid: Tensor | None) -> dict[str, Tensor]:
    """Replaces the tensors of invalid cameras by zeros, so that these cameras get no gradient."""
    if valid is None:
        return others
    return {name: torch.where(valid[(..., *[None] * (t.dim() - 2))], t, 0.0) for name, t in others.items()}
