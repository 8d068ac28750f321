"""Spherical harmonics with the signatures of gsplat 1.5.3 and 1.6, and split into degree 0 and all higher degrees."""

import functools
import math
from typing import Any

import torch
from torch import Tensor

from .... import ArgumentError, ShapeError
from ....arguments import BOOLS, check_ids, check_tensor, compute_dtype
from ....config import PRESETS, SH_NORMS
from ....functional import shading
from ....kernels_torch.validation import camera_centers
from ....runtime.compilation import with_plain_tensors

NUMERICS = PRESETS["gsplat-1.6"]
"""Numerics that compute camera centers as -R^T t."""


@with_plain_tensors
def spherical_harmonics_l0(sh0: Tensor) -> Tensor:
    """Evaluates degree 0, which does not depend on the direction.

    Args:
        sh0: [N, 1, D].

    Returns:
        [N, D] in at least fp32. Differentiable.

    Raises:
        ArgumentError: The shape or dtype is invalid.
    """
    check_tensor("sh0", sh0, [None, 1, None], "[N, 1, D]")
    return SH_NORMS[0][0] * sh0[:, 0].to(compute_dtype(sh0))


def spherical_harmonics_l1_plus(
    degrees_to_use: int, means: Tensor, viewmats: Tensor, shN: Tensor, masks: Tensor | None = None,
    batch_ids: Tensor | None = None, camera_ids: Tensor | None = None, gaussian_ids: Tensor | None = None,
    viewmats_rs: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Evaluates degrees 1 and above in the directions from cameras to Gaussians.

    Args:
        degrees_to_use: Highest degree, 0 to 4.
        means: [..., N, 3], world frame.
        viewmats: [..., C, 4, 4] world to camera, with rotations.
        shN: [N, K - 1, D] coefficients from degree 1 on; if packed, the coefficients of each row, [nnz, K - 1, D].
        masks: [..., C, N] or [nnz] bool; where it is False, values and gradients are zero.
        batch_ids, camera_ids, gaussian_ids: [nnz] int64, flat batch index, camera and Gaussian of each row if packed;
            None for all Gaussians and cameras.
        viewmats_rs: [..., C, 4, 4] view matrices at the end of the exposure; directions then start at the mean of both
            camera centers.

    Returns:
        [..., C, N, D] or [nnz, D], in at least fp32. Differentiable with respect to means, viewmats, viewmats_rs and
        shN.

    Raises:
        ArgumentError: A shape, dtype or value is invalid.
    """
    check_tensor("shN", shN, [None, None, None], "[N, K - 1, D]")
    ids = batch_ids, camera_ids, gaussian_ids
    return _from_cameras(
        degrees_to_use, means, viewmats, torch.nn.functional.pad(shN, (0, 0, 1, 0)), masks, *ids, viewmats_rs, "shN"
    )


@with_plain_tensors
def _from_cameras(
    degrees_to_use: int, means: Tensor, viewmats: Tensor, coeffs: Tensor, masks: Tensor | None = None,
    batch_ids: Tensor | None = None, camera_ids: Tensor | None = None, gaussian_ids: Tensor | None = None,
    viewmats_rs: Tensor | None = None, name: str = "coeffs",
) -> Tensor:  # fmt: skip
    """Evaluates all degrees like :func:`spherical_harmonics_l1_plus`; `name` is the name of `coeffs` in messages."""
    check_tensor("means", means, [..., None, 3], "[..., N, 3]")
    check_tensor("viewmats", viewmats, [..., None, 4, 4], "[..., C, 4, 4]")
    batch = means.shape[:-2]
    n_cameras, n_gaussians = viewmats.shape[-3], means.shape[-2]
    check_tensor("viewmats", viewmats, [*batch, n_cameras, 4, 4], "[..., C, 4, 4] with the batch dimensions of means")
    check_tensor("coeffs", coeffs, [None, None, None], "[N, K, D]")
    centers = camera_centers(viewmats, NUMERICS)
    if viewmats_rs is not None:
        check_tensor("viewmats_rs", viewmats_rs, list(viewmats.shape), "[..., C, 4, 4] as viewmats")
        centers = (centers + camera_centers(viewmats_rs, NUMERICS)) / 2
    if batch_ids is not None and camera_ids is not None and gaussian_ids is not None:
        check_ids("batch_ids", batch_ids, math.prod(batch), [None], "[nnz]")
        check_ids("camera_ids", camera_ids, n_cameras, batch_ids.shape, "[nnz] as batch_ids")
        check_ids("gaussian_ids", gaussian_ids, n_gaussians, batch_ids.shape, "[nnz] as batch_ids")
        rows = means.reshape(-1, n_gaussians, 3)[batch_ids, gaussian_ids]
        dirs = rows - centers.reshape(-1, n_cameras, 3)[batch_ids, camera_ids]
    elif batch_ids is None and camera_ids is None and gaussian_ids is None:
        dirs = means[..., None, :, :] - centers[..., :, None, :]
    else:
        raise ArgumentError("batch_ids: expected together with camera_ids and gaussian_ids, or none of them")
    if len(coeffs) != dirs.shape[-2]:
        raise ShapeError(f"{name}: expected coefficients of {dirs.shape[-2]} rows, found {len(coeffs)}")
    if masks is not None:
        check_tensor("masks", masks, dirs.shape[:-1], "[..., C, N] or [nnz]", dtypes=BOOLS)
    coeffs = coeffs.expand(*dirs.shape[:-1], *coeffs.shape[1:])
    return shading.spherical_harmonics(degrees_to_use, dirs, coeffs, masks)


@functools.wraps(shading.spherical_harmonics, assigned=(), updated=())
def spherical_harmonics(*args: Any, **kwargs: Any) -> Tensor:
    """Evaluates spherical harmonics, with the arguments of gsplat 1.5.3 or of 1.6.

    ``spherical_harmonics(degrees_to_use, dirs, coeffs, masks=None)`` is :func:`tsplat.spherical_harmonics`.
    ``spherical_harmonics(degrees_to_use, means, viewmats, coeffs, masks=None, batch_ids=None, camera_ids=None,
    gaussian_ids=None, viewmats_rs=None)`` uses the directions from cameras to Gaussians: its arguments and result are
    those of :func:`spherical_harmonics_l1_plus`, with all coefficients [N, K, D] or, if packed, [nnz, K, D].

    A call uses the second form if its fourth argument contains coefficients instead of a mask, or if it uses argument
    names that 1.5.3 does not have.

    Raises:
        ArgumentError: A shape, dtype or value is invalid.
    """
    fourth = args[3] if len(args) > 3 else None
    from_cameras = isinstance(fourth, Tensor) and fourth.is_floating_point()
    from_cameras = from_cameras or "means" in kwargs or "viewmats" in kwargs or ("coeffs" in kwargs and len(args) > 2)
    return (_from_cameras if from_cameras else shading.spherical_harmonics)(*args, **kwargs)
