"""Inputs of the stages: checks the shapes of Gaussians and cameras, and flattens batch dimensions."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, TypeVar, get_type_hints

import torch
from torch import Tensor

from ..arguments import check_devices, check_no_grad, check_tensor
from ..config import Backend, CameraField
from ..data import Cameras, FeatureIds
from ..errors import ArgumentError
from ..runtime.autograd import apply, once_differentiable
from ..runtime.backend import launchers
from ..runtime.bundles import map_tree, restore, split

Bundle = TypeVar("Bundle", bound=tuple[Any, ...])


def camera_fields(cameras: Cameras) -> dict[str, CameraField]:
    """Returns the :class:`.CameraField` of each field of cameras."""
    cameras_type: Any = type(cameras)
    return _fields_of(cameras_type)


@functools.cache
def _fields_of(cameras_type: Any) -> dict[str, CameraField]:
    hints = get_type_hints(cameras_type, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items()}


def check_scene(
    means: Tensor,
    quats: Tensor | None,
    scales: Tensor | None,
    covars: Tensor | None,
    covars_shape: tuple[int, ...],
    opacities: Tensor | None,
    cameras: Cameras,
) -> tuple[torch.Size, int, int]:
    """Checks that the shapes of Gaussians and cameras match. Returns the batch dimensions, N and C."""
    check_tensor("means", means, [..., None, 3], "[..., N, 3]")
    batch, n_gaussians = means.shape[:-2], means.shape[-2]
    n_cameras = _check_cameras(cameras, batch)
    if covars is not None:
        shape = ", ".join(map(str, covars_shape))
        check_tensor("covars", covars, [*batch, n_gaussians, *covars_shape], f"[..., N, {shape}] as means")
    else:
        for name, tensor, size in (("quats", quats, 4), ("scales", scales, 3)):
            if tensor is None:
                raise ArgumentError(f"{name}: found None; pass both quats and scales, or covars")
            check_tensor(name, tensor, [*batch, n_gaussians, size], f"[..., N, {size}] as means")
    if opacities is not None:
        check_tensor("opacities", opacities, [*batch, n_gaussians], "[..., N] as means")
    tensors: dict[str, Tensor | None] = {"means": means, **cameras._asdict(), "opacities": opacities}
    tensors.update(dict(covars=covars) if covars is not None else dict(quats=quats, scales=scales))
    check_devices(tensors)
    return batch, n_gaussians, n_cameras


def _check_cameras(cameras: Cameras, batch: torch.Size) -> int:
    """Checks that all tensors of cameras have the same C. Returns C."""
    n_cameras: int | None = None
    match = "with the batch dimensions of means"
    for name, field in camera_fields(cameras).items():
        tensor = getattr(cameras, name)
        if tensor is None and name in cameras._field_defaults:
            continue
        meaning = f"[..., C, {', '.join(map(str, field.shape))}] {match}"
        remedy = ""
        if isinstance(tensor, Tensor) and tensor.dim() == len(batch) + len(field.shape):
            colons = ", :" * len(field.shape)
            remedy = f"add a camera dimension: {name}[{f'..., None{colons}' if batch else 'None'}]"
        check_tensor(name, tensor, [*batch, n_cameras, *field.shape], meaning, remedy)
        if not field.differentiable:
            check_no_grad(name, tensor)
        if n_cameras is None:
            n_cameras, match = tensor.shape[len(batch)], f"as {name}"
    return n_cameras or 0


def flatten_batch(tensor: Tensor, n_batch_dims: int, dtype: torch.dtype) -> Tensor:
    """Flattens batch dimensions, [*batch, ...] -> [B, ...], and converts to a dtype."""
    tensor = tensor if tensor.dtype == dtype else tensor.to(dtype)
    return tensor.unsqueeze(0) if n_batch_dims == 0 else tensor.flatten(0, n_batch_dims - 1)


def in_dtype(bundle: Bundle, dtype: torch.dtype) -> Bundle:
    """Converts the tensors of a NamedTuple to a dtype, and makes them contiguous."""
    tensors = [t if t is None or t.dtype == dtype else t.to(dtype) for t in bundle]
    return bundle._make([None if t is None else t.contiguous() for t in tensors])  # type: ignore


def flatten_batches(bundle: Bundle, n_batch_dims: int, dtype: torch.dtype) -> Bundle:
    """Applies :func:`flatten_batch` to each tensor of a NamedTuple."""
    flat = [None if tensor is None else flatten_batch(tensor, n_batch_dims, dtype) for tensor in bundle]
    flattened: Bundle = bundle._make(flat)  # type: ignore[attr-defined]
    return flattened


class _GatherFeatures(torch.autograd.Function):
    """Gathers the features of rows, and sums their gradients over cameras, in the order of cameras."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, ids: FeatureIds, backend: Backend) -> Tensor:
        ctx.ids, tensors = split(ids)
        ctx.save_for_backward(*tensors)
        ctx.n, ctx.backend = len(values), backend
        return values[ids.ids]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, saved: tuple[Tensor, ...], v: Tensor) -> tuple[Tensor, None, None]:
        kernels = launchers(v.device, ctx.backend)
        return kernels.sum_feature_gradients(v.contiguous(), restore(ctx.ids, saved), ctx.n), None, None


def gather_features(values: Tensor, ids: FeatureIds | None, backend: Backend) -> Tensor:
    """Gathers the features [nnz, D] of rows from features [G, D]. Differentiable."""
    rows: Tensor = values if ids is None else apply(_GatherFeatures, values, ids, backend)
    return rows


def contiguous(bundle: Bundle) -> Bundle:
    """Makes the tensors of a NamedTuple contiguous."""
    copied: Bundle = map_tree(bundle, Tensor, Tensor.contiguous)
    return copied


class Harmonics(NamedTuple):
    """Spherical harmonics to evaluate in the projection as max(value + 0.5, 0).

    Attributes:
        degree: The highest degree to evaluate.
        centers: [B, C, 3] camera centers, contiguous; None without spherical harmonics.
        coeffs, higher: Coefficients of any float dtype, see :class:`Coefficients`. Contiguous, or None.
    """

    degree: int
    centers: Tensor | None
    coeffs: Tensor | None
    higher: Tensor | None


NO_HARMONICS = Harmonics(0, None, None, None)
