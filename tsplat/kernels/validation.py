"""Valid Gaussians: values within bounds, and a quaternion with a norm. One lane per Gaussian."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..config import MAGNITUDE_MAX, QUAT_NORM_MIN
from ..data import Gaussians3D
from .device_math import constant, load_tuple
from .launch import CPU_LONG_BLOCK, Int, kernel, launch_elementwise

BLOCK = 128


@triton.jit
def _within(pointer, mask, N: tl.constexpr, MAGNITUDE_MAX: tl.constexpr):
    """Whether N consecutive values are within bounds. In a loop, as there can be many features."""
    valid = mask
    for k in range(N):
        # NaN fails the comparison.
        valid = valid & (tl.abs(tl.load(pointer + k, mask=mask, other=0.0).to(tl.float32)) <= MAGNITUDE_MAX)
    return valid


@kernel
def _valid_kernel(
    means,  # [B, N, 3]
    quats,  # [B, N, 4] or None
    scales,  # [B, N, 3] or None
    covars,  # [B, N, 6] or None
    opacities,  # [B, N]
    colors,  # [B, N, COLOR_WIDTH] or [B, C, N, COLOR_WIDTH], any float dtype
    valid_out,  # [B, N] int8, output
    n: "Int", n_gaussians: "Int", n_cameras: "Int",
    COLOR_WIDTH: tl.constexpr, PER_CAMERA: tl.constexpr,
    QUAT_NORM_MIN: tl.constexpr, MAGNITUDE_MAX: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    gaussian = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = gaussian < n
    valid = _within(means + gaussian * 3, mask, 3, MAGNITUDE_MAX)
    if covars is not None:
        valid = valid & _within(covars + gaussian * 6, mask, 6, MAGNITUDE_MAX)
    else:
        valid = valid & _within(scales + gaussian * 3, mask, 3, MAGNITUDE_MAX)
        valid = valid & _within(quats + gaussian * 4, mask, 4, MAGNITUDE_MAX)
        q = load_tuple(quats + gaussian * 4, 1, 4, mask)
        square = q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3]
        valid = valid & (square >= constant(QUAT_NORM_MIN * QUAT_NORM_MIN, square))
    valid = valid & _within(opacities + gaussian, mask, 1, MAGNITUDE_MAX)
    if PER_CAMERA:
        batch = gaussian // n_gaussians
        for camera in range(n_cameras):
            dense_id = (batch * n_cameras + camera) * n_gaussians + gaussian % n_gaussians
            valid = valid & _within(colors + dense_id * COLOR_WIDTH, mask, COLOR_WIDTH, MAGNITUDE_MAX)
    else:
        valid = valid & _within(colors + gaussian * COLOR_WIDTH, mask, COLOR_WIDTH, MAGNITUDE_MAX)
    tl.store(valid_out + gaussian, valid.to(tl.int8), mask=mask)


def valid_gaussians(gaussians: Gaussians3D, colors: Tensor, *, per_camera: bool) -> Tensor:
    """Finds Gaussians whose values are within MAGNITUDE_MAX and whose quaternions have a norm. [B, N] bool

    Args:
        gaussians: With opacities; contiguous.
        colors: [B, N, ...], or [B, C, N, ...] if ``per_camera``, of any float dtype. A Gaussian is invalid if its
            colors are invalid for any camera.
    """
    means = gaussians.means
    n_batches, n_gaussians, _ = means.shape
    n = n_batches * n_gaussians
    valid = torch.empty(n_batches, n_gaussians, dtype=torch.int8, device=means.device)
    launch_elementwise(
        _valid_kernel,
        n,
        BLOCK,
        CPU_LONG_BLOCK,
        means=means,
        quats=gaussians.quats,
        scales=gaussians.scales,
        covars=gaussians.covars,
        opacities=gaussians.opacities,
        colors=colors,
        valid_out=valid,
        n=n,
        n_gaussians=n_gaussians,
        n_cameras=colors.shape[1] if per_camera else 1,
        COLOR_WIDTH=colors[(0,) * (3 if per_camera else 2)].numel() if colors.numel() else 0,
        PER_CAMERA=per_camera,
        QUAT_NORM_MIN=QUAT_NORM_MIN,
        MAGNITUDE_MAX=MAGNITUDE_MAX,
    )
    return valid.bool()
