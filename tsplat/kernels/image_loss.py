"""L1 and SSIM of two images in one pass, forward and backward.

SSIM (Wang et al., "Image quality assessment: from error visibility to structural similarity", 2004) is a function of
five means under a Gaussian window: of x, y, x^2, y^2 and xy. A program computes a block of rows and columns of one
channel, in a loop over the image rows that its windows cover. Each image row is blurred along x once, and added to each
output row with its weight. Blurred values stay in registers.

The forward pass saves three maps, the derivatives A, B and C of SSIM with respect to the means of x, x^2 and xy, 12
bytes per value. Recomputing them would read both images with twice the margin. The backward pass blurs them, as the
window is symmetric: the gradient of the sum of SSIM is blur(A) + 2 x blur(B) + y blur(C). Each program writes its sums,
and a last program adds them in a fixed order, so results are bit-reproducible.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..config import SSIM_K1, SSIM_K2, SSIM_TAPS
from .launch import Int, block_size, is_compiled_for_cpu, kernel, programs

ROWS, COLUMNS = 16, 64
SUM_BLOCK = 1024
RADIUS = tl.constexpr(len(SSIM_TAPS) // 2)


class Image(NamedTuple):
    """A kernel argument: an image [B, height, width, n_channels] of any float dtype, and its strides."""

    data: Tensor
    batch_stride: int
    row_stride: int
    column_stride: int
    channel_stride: int

    @classmethod
    def of(cls, image: Tensor) -> "Image":
        return cls(image, *image.stride())


@triton.jit
def _plane(image, plane, n_channels, PLANAR: tl.constexpr):
    """Returns a pointer to a channel plane of an image, and the strides of rows and columns."""
    at = image.data + plane // n_channels * image.batch_stride + plane % n_channels * image.channel_stride
    if PLANAR:
        return at, image.row_stride, 1
    else:
        return at, image.row_stride, image.column_stride


@triton.jit
def _block(n_rows, n_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Returns the channel plane, the rows and the columns of this program."""
    across = tl.cdiv(n_columns, COLUMNS)
    down = tl.cdiv(n_rows, ROWS)
    program = tl.program_id(0)
    plane = (program // (across * down)).to(tl.int64)
    rows = program // across % down * ROWS + tl.arange(0, ROWS)
    columns = program % across * COLUMNS + tl.arange(0, COLUMNS)
    return plane, rows, columns


@triton.jit
def _tap(taps, k):
    """Returns tap k of the window; zero unless 0 <= k <= 2 RADIUS."""
    return tl.load(taps + k, mask=(k >= 0) & (k <= 2 * RADIUS), other=0.0)


@kernel(strided=("image.data", "target.data"))
def _l1_ssim_fwd_kernel(
    image: "Image",
    target: "Image",
    taps,  # [2 RADIUS + 1]
    sums,  # [2, programs], output
    maps,  # [3, B, n_channels, height, width], output
    n_channels: "Int", height: "Int", width: "Int", size: "Int",
    VALID: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr,
    PLANAR: tl.constexpr,  # whether the strides of columns are 1
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sums |x - y| and SSIM over a block of a channel plane, and stores the derivatives of SSIM."""
    dtype = maps.dtype.element_ty
    plane, rows, columns = _block(height, width, ROWS, COLUMNS)
    # Windowed means of x, y, x^2, y^2 and xy: blur along rows, then along columns.
    x, x_row, x_column = _plane(image, plane, n_channels, PLANAR)
    y, y_row, y_column = _plane(target, plane, n_channels, PLANAR)
    mean_x = tl.zeros([ROWS, COLUMNS], dtype)
    mean_y = mean_x
    mean_xx = mean_x
    mean_yy = mean_x
    mean_xy = mean_x
    first = tl.min(rows) - RADIUS
    for step in range(ROWS + 2 * RADIUS):
        row = first + step
        zero = tl.zeros([COLUMNS], dtype)
        along_x = zero
        along_y = zero
        along_xx = zero
        along_yy = zero
        along_xy = zero
        for k in tl.static_range(2 * RADIUS + 1):
            column = columns + (k - RADIUS)
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            a = tl.load(x + row * x_row + column * x_column, mask=inside, other=0.0).to(dtype)
            b = tl.load(y + row * y_row + column * y_column, mask=inside, other=0.0).to(dtype)
            weight = tl.load(taps + k)
            along_x += weight * a
            along_y += weight * b
            along_xx += weight * a * a
            along_yy += weight * b * b
            along_xy += weight * a * b
        down = _tap(taps, row - rows + RADIUS)[:, None]
        mean_x += down * along_x[None, :]
        mean_y += down * along_y[None, :]
        mean_xx += down * along_xx[None, :]
        mean_yy += down * along_yy[None, :]
        mean_xy += down * along_xy[None, :]

    r = rows[:, None]
    c = columns[None, :]
    inside = (r < height) & (c < width)
    whole = inside
    if VALID:
        whole = (r >= RADIUS) & (r < height - RADIUS) & (c >= RADIUS) & (c < width - RADIUS)
    # SSIM = luminance * structure, and its derivatives with respect to the means of x, x^2 and xy:
    #   luminance = (2 mx my + C1) / (mx^2 + my^2 + C1),  structure = (2 cov(x, y) + C2) / (var x + var y + C2)
    d_luminance = mean_x * mean_x + mean_y * mean_y + C1
    d_structure = (mean_xx - mean_x * mean_x) + (mean_yy - mean_y * mean_y) + C2
    luminance = (2.0 * mean_x * mean_y + C1) / d_luminance
    structure = (2.0 * (mean_xy - mean_x * mean_y) + C2) / d_structure
    ssim = luminance * structure
    by_mean = 2.0 * structure * (mean_y - mean_x * luminance) / d_luminance
    by_mean += 2.0 * (mean_x * ssim - mean_y * luminance) / d_structure
    out = maps + plane * height * width + r * width + c
    tl.store(out, tl.where(whole, by_mean, 0.0), mask=inside)
    tl.store(out + size, tl.where(whole, -ssim / d_structure, 0.0), mask=inside)
    tl.store(out + size + size, tl.where(whole, 2.0 * luminance / d_structure, 0.0), mask=inside)
    a = tl.load(x + r * x_row + c * x_column, mask=inside, other=0.0).to(dtype)
    b = tl.load(y + r * y_row + c * y_column, mask=inside, other=0.0).to(dtype)
    tl.store(sums + tl.program_id(0), tl.sum(tl.abs(a - b)))
    tl.store(sums + tl.num_programs(0) + tl.program_id(0), tl.sum(tl.where(whole, ssim, 0.0)))


@kernel
def _l1_ssim_means_kernel(
    sums,  # [2, n_programs]
    l1_mean,  # [], output, as the next two
    ssim_mean,
    loss,
    n_programs: "Int", n_values: "Int", n_windows: "Int", ssim_weight: tl.float64,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Computes the loss (1 - w) L1 + w (1 - SSIM) from sums, in one program."""
    dtype = sums.dtype.element_ty
    l1 = tl.zeros([BLOCK], dtype)
    ssim = tl.zeros([BLOCK], dtype)
    for start in range(0, n_programs, BLOCK):
        program = start + tl.arange(0, BLOCK)
        l1 += tl.load(sums + program, mask=program < n_programs, other=0.0)
        ssim += tl.load(sums + n_programs + program, mask=program < n_programs, other=0.0)
    of_l1 = tl.sum(l1) / tl.full([], n_values, dtype)
    of_ssim = tl.sum(ssim) / tl.full([], n_windows, dtype)
    tl.store(l1_mean, of_l1)
    tl.store(ssim_mean, of_ssim)
    weight = tl.full([], ssim_weight, dtype)
    tl.store(loss, tl.full([], 1.0 - ssim_weight, dtype) * of_l1 + weight * (1.0 - of_ssim))


@triton.jit
def _scale(v, v_loss, weight, n):
    """Returns the gradient of a sum from the gradients of its mean over n values, and of a loss with weight * mean.

    Both gradients may be None.
    """
    scale = weight * 0.0
    if v is not None:
        scale = tl.load(v)
    if v_loss is not None:
        scale += tl.load(v_loss) * weight
    return scale / tl.full([], n, weight.dtype)


@kernel(strided=("image.data", "target.data"))
def _l1_ssim_bwd_kernel(
    image: "Image",
    target: "Image",
    taps,  # [2 RADIUS + 1]
    maps,  # [3, B, n_channels, height, width]
    v_l1,  # [] or None
    v_ssim,  # [] or None
    v_loss,  # [] or None
    v_image,  # [B, n_channels, height, width], output
    n_channels: "Int", height: "Int", width: "Int", size: "Int",
    n_windows: "Int", ssim_weight: tl.float64,
    PLANAR: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Computes the gradient of the image over a block of a channel plane."""
    dtype = maps.dtype.element_ty
    plane, rows, columns = _block(height, width, ROWS, COLUMNS)
    # Windowed sums of the derivatives of SSIM: blur along rows, then along columns.
    start = maps + plane * height * width
    by_mean = tl.zeros([ROWS, COLUMNS], dtype)
    by_square = by_mean
    by_product = by_mean
    first = tl.min(rows) - RADIUS
    for step in range(ROWS + 2 * RADIUS):
        row = first + step
        zero = tl.zeros([COLUMNS], dtype)
        along_mean = zero
        along_square = zero
        along_product = zero
        for k in tl.static_range(2 * RADIUS + 1):
            column = columns + (k - RADIUS)
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            here = start + row * width + column
            weight = tl.load(taps + k)
            along_mean += weight * tl.load(here, mask=inside, other=0.0)
            along_square += weight * tl.load(here + size, mask=inside, other=0.0)
            along_product += weight * tl.load(here + size + size, mask=inside, other=0.0)
        down = _tap(taps, row - rows + RADIUS)[:, None]
        by_mean += down * along_mean[None, :]
        by_square += down * along_square[None, :]
        by_product += down * along_product[None, :]
    r = rows[:, None]
    c = columns[None, :]
    inside = (r < height) & (c < width)
    x, x_row, x_column = _plane(image, plane, n_channels, PLANAR)
    y, y_row, y_column = _plane(target, plane, n_channels, PLANAR)
    a = tl.load(x + r * x_row + c * x_column, mask=inside, other=0.0).to(dtype)
    b = tl.load(y + r * y_row + c * y_column, mask=inside, other=0.0).to(dtype)
    sign = tl.where(a > b, 1.0, tl.where(a < b, -1.0, 0.0)).to(dtype)
    # v = v_L1 sign(x - y) + v_SSIM (by_mean + 2 x by_square + y by_product)
    l1_scale = _scale(v_l1, v_loss, tl.full([], 1.0 - ssim_weight, dtype), size)
    ssim_scale = _scale(v_ssim, v_loss, tl.full([], -ssim_weight, dtype), n_windows)
    # An explicit fma, as contraction by the compiler would depend on which gradients are given.
    v = tl.fma(l1_scale, sign, ssim_scale * (by_mean + 2.0 * a * by_square + b * by_product))
    tl.store(v_image + (plane * height + r) * width + c, v, mask=inside)


def l1_ssim_fwd(
    image: Tensor, target: Tensor, *, valid: bool, n_windows: int, ssim_weight: float, dtype: torch.dtype
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Computes the mean of |x - y|, the mean of SSIM, and the loss (1 - w) L1 + w (1 - SSIM).

    Args:
        image, target: [B, H, W, C] of any float dtype and strides.
        valid: Whether the mean of SSIM is over windows inside the image only.
        n_windows: The number of windows of all channels.
        ssim_weight: The weight w.
        dtype: The dtype to compute in.

    Returns:
        L1, SSIM and the loss, [] each; and the tensors saved for the backward pass: image and target, as the kernels
        read them, and maps [3, B, C, H, W], the derivatives of SSIM with respect to the means of x, x^2 and xy.
    """
    n_batch, height, width, n_channels = image.shape
    maps = torch.empty(3, n_batch, n_channels, height, width, dtype=dtype, device=image.device)
    # Three tensors, as autograd takes longer for views of one tensor.
    l1, ssim, loss = (maps.new_empty(()) for _ in range(3))
    planar = is_compiled_for_cpu(image)  # a CPU loads neighboring pixels as vectors
    image, target = (
        t.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1) if planar or _is_wide(t) else t for t in (image, target)
    )
    blocks = _n_programs(image)
    sums = torch.empty(2, blocks, dtype=dtype, device=image.device)
    _l1_ssim_fwd_kernel.launch(
        blocks,
        sums=sums,
        VALID=valid,
        C1=SSIM_K1**2,
        C2=SSIM_K2**2,
        **_arguments(image, target, maps),
    )
    _l1_ssim_means_kernel.launch(
        1,
        sums=sums,
        l1_mean=l1,
        ssim_mean=ssim,
        loss=loss,
        n_programs=blocks,
        n_values=image.numel(),
        n_windows=n_windows,
        ssim_weight=ssim_weight,
        BLOCK=block_size(image, SUM_BLOCK),
    )
    return (l1, ssim, loss), (image, target, maps)


def l1_ssim_bwd(saved: tuple[Tensor, ...], v: Sequence[Tensor | None], *, n_windows: int, ssim_weight: float) -> Tensor:
    """Computes the gradient of the image.

    Args:
        saved: The tensors to save that :func:`l1_ssim_fwd` returned.
        v: Gradients of L1, SSIM and the loss, each [] or None.
        n_windows, ssim_weight: As in :func:`l1_ssim_fwd`.

    Returns:
        [B, H, W, C], channel-major in memory, so that neighboring pixels of a channel are adjacent.
    """
    image, _, maps = saved
    v_image = maps.new_empty(maps.shape[1:])
    v_l1, v_ssim, v_loss = v
    _l1_ssim_bwd_kernel.launch(
        _n_programs(image),
        v_l1=v_l1,
        v_ssim=v_ssim,
        v_loss=v_loss,
        v_image=v_image,
        n_windows=n_windows,
        ssim_weight=ssim_weight,
        **_arguments(*saved),
    )
    return v_image.permute(0, 2, 3, 1)


def _is_wide(image: Tensor) -> bool:
    """Returns whether offsets of pixels exceed int32."""
    return (image.shape[1] - 1) * image.stride(1) + (image.shape[2] - 1) * image.stride(2) >= 2**31


def _n_programs(image: Tensor) -> int:
    n_batch, height, width, n_channels = image.shape
    blocks = -(-height // ROWS) * -(-width // block_size(image, COLUMNS))
    return programs(n_batch * n_channels * blocks, 1)


@functools.cache
def _taps(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns the window of SSIM. [2 RADIUS + 1]"""
    with torch.inference_mode(False):
        return torch.tensor(SSIM_TAPS, dtype=dtype, device=device)


def _arguments(image: Tensor, target: Tensor, maps: Tensor) -> dict[str, Any]:
    """Returns the arguments that the forward and the backward kernel share."""
    _, height, width, n_channels = image.shape
    return dict(
        image=Image.of(image),
        target=Image.of(target),
        taps=_taps(maps.dtype, maps.device),
        maps=maps,
        n_channels=n_channels,
        height=height,
        width=width,
        size=image.numel(),
        PLANAR=is_compiled_for_cpu(image),
        ROWS=ROWS,
        COLUMNS=block_size(image, COLUMNS),
    )
