"""Which Gaussians can be drawn at all: numbers within bounds, and a rotation that is one. One lane per Gaussian."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..config import MAGNITUDE_MAX, QUAT_NORM_MIN
from .device_math import load_tuple
from .launch import guard, programs

BLOCK = 128


@triton.jit
def _within(pointer, mask, N: tl.constexpr, MAGNITUDE_MAX: tl.constexpr):
    """Whether N neighboring values are numbers within bounds; in a loop, as rows of features can be long."""
    sound = mask
    for k in range(N):
        # Not a number fails every comparison.
        sound = sound & (tl.abs(tl.load(pointer + k, mask=mask, other=0.0).to(tl.float32)) <= MAGNITUDE_MAX)
    return sound


@triton.jit
def _sound_kernel(
    means, quats, scales, covars, opacities, colors, sound_out,
    n, n_gaussians, n_cameras,
    COLOR_WIDTH: tl.constexpr, PER_CAMERA: tl.constexpr,
    QUAT_NORM_MIN: tl.constexpr, MAGNITUDE_MAX: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    gaussian = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = gaussian < n
    sound = _within(means + gaussian * 3, mask, 3, MAGNITUDE_MAX)
    if covars is not None:
        sound = sound & _within(covars + gaussian * 6, mask, 6, MAGNITUDE_MAX)
    else:
        sound = sound & _within(scales + gaussian * 3, mask, 3, MAGNITUDE_MAX)
        sound = sound & _within(quats + gaussian * 4, mask, 4, MAGNITUDE_MAX)
        q = load_tuple(quats + gaussian * 4, 1, 4, mask)
        sound = sound & (q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3] >= QUAT_NORM_MIN * QUAT_NORM_MIN)
    sound = sound & _within(opacities + gaussian, mask, 1, MAGNITUDE_MAX)
    if PER_CAMERA:
        batch = gaussian // n_gaussians
        for camera in range(n_cameras):
            pair = (batch * n_cameras + camera) * n_gaussians + gaussian % n_gaussians
            sound = sound & _within(colors + pair * COLOR_WIDTH, mask, COLOR_WIDTH, MAGNITUDE_MAX)
    else:
        sound = sound & _within(colors + gaussian * COLOR_WIDTH, mask, COLOR_WIDTH, MAGNITUDE_MAX)
    tl.store(sound_out + gaussian, sound.to(tl.int8), mask=mask)


def valid_gaussians(
    means: Tensor,
    quats: Tensor | None,
    scales: Tensor | None,
    covars: Tensor | None,
    opacities: Tensor,
    colors: Tensor,
    *,
    per_camera: bool,
) -> Tensor:
    """Whether no number of a Gaussian is beyond `MAGNITUDE_MAX`, nor its quaternion below `QUAT_NORM_MIN`. [B, N] bool

    Args:
        means, quats, scales, covars, opacities: [B, N, 3], [B, N, 4], [B, N, 3], [B, N, 6], [B, N].
        colors: [B, N, ...], or [B, C, N, ...] if `per_camera`, of any float type; one bad camera makes a Gaussian bad.
    """
    n_batches, n_gaussians, _ = means.shape
    n = n_batches * n_gaussians
    sound = torch.empty(n_batches, n_gaussians, dtype=torch.int8, device=means.device)
    if n > 0:
        n_cameras = colors.shape[1] if per_camera else 1
        with guard(means):
            _sound_kernel[(programs(n, BLOCK),)](
                means, quats, scales, covars, opacities, colors, sound, n, n_gaussians, n_cameras,
                COLOR_WIDTH=colors[(0,) * (3 if per_camera else 2)].numel() if colors.numel() else 0,
                PER_CAMERA=per_camera,
                QUAT_NORM_MIN=QUAT_NORM_MIN,
                MAGNITUDE_MAX=MAGNITUDE_MAX,
                BLOCK=BLOCK,
            )  # fmt: skip
    return sound.bool()
