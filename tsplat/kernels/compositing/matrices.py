"""Compositing of many channels: the products of weights and features are matrix products.

Lists and device functions are those of walks, for Gaussians in groups of ``GROUP``. With the weights W [pixels, GROUP]
of a group, computed one Gaussian after the other, the features F [GROUP, channels] and the gradient V [pixels,
channels] of the image:

    image += W F    v_F = W^T V    v_W = V F^T

NVIDIA's tensor cores read 11 bits of the mantissa of an fp32 number. Each number is split into 11 high bits and the
remainder. Three products of these are accurate to 2^-22 (two if features are in half precision, which has no
remainder). Tensor cores truncate sums instead of rounding them, so each sum is over one group, or the pixels of one
warp, only. See docs/decisions/0006 for the cost.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...config import FEATURES_MIN
from ...data import Splats
from ..launch import has_fast_fp32

GROUP = tl.constexpr(16)
"""Number of Gaussians of a group; the minimum size of ``tl.dot``."""

CHANNELS = tl.constexpr(FEATURES_MIN)
"""Number of channels of a block, whose features are a matrix."""


@triton.jit
def set_kth(group, k: tl.constexpr, values):
    """Replaces group[k] of group [GROUP, HEIGHT, WIDTH] by values. Free if a thread holds all values of a pixel."""
    return tl.where(tl.arange(0, GROUP)[:, None, None] == k, values[None], group)


@triton.jit
def _bitwise_or(a, b):
    return a | b


@triton.jit
def kth(group, k: tl.constexpr):
    """Returns group[k] of group [GROUP, HEIGHT, WIDTH], by a bitwise or that compilers remove, as k is constant."""
    int_type: tl.constexpr = tl.int64 if group.dtype == tl.float64 else tl.int32
    bits = tl.where(tl.arange(0, GROUP)[:, None, None] == k, group.to(int_type, bitcast=True), 0)
    return tl.reduce(bits, 0, _bitwise_or).to(group.dtype, bitcast=True)


@triton.jit
def lanes_last(x):
    """Returns x, gathered from itself. This makes the compiler lay out the last dimension along the lanes of a warp.

    A thread then holds all values of a pixel. A matrix product would distribute them over threads, and warps would
    compute the same column sums.
    """
    last: tl.constexpr = len(x.shape) - 1
    index = tl.arange(0, x.shape[last])
    index = index[None, None, :] if last == 2 else index[None, :]
    return tl.gather(x, tl.broadcast_to(index, x.shape), last)


@triton.jit
def _split(x):
    """Splits x into x rounded to the 11 bits that tensor cores read, and the remainder."""
    high = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return high, x - high


@triton.jit
def product(a, b, dtype: tl.constexpr, SPLIT: tl.constexpr, EXACT: tl.constexpr):
    """Returns a @ b in the precision of dtype.

    With SPLIT, a is split, see ``_split``, and so is b unless EXACT: unless b has at most 11 bits.
    """
    if SPLIT:
        a_high, a_low = _split(a)
        if EXACT:
            total = tl.dot(a_low, b, input_precision="tf32")
            return tl.dot(a_high, b, total, input_precision="tf32")
        else:
            b_high, b_low = _split(b)
            total = tl.dot(a_low, b_high, input_precision="tf32")
            total = tl.dot(a_high, b_low, total, input_precision="tf32")
            return tl.dot(a_high, b_high, total, input_precision="tf32")
    else:
        return tl.dot(a, b, input_precision="ieee", out_dtype=dtype)


@triton.jit
def load_features(colors, depths, rows, channel, n_colors, dtype: tl.constexpr):
    """Loads colors of rows [GROUP, 1] at channels [1, N], then depth if there are depths, then zeros."""
    values = tl.load(colors + rows * n_colors + channel, mask=channel < n_colors, other=0.0).to(dtype)
    if depths is not None:
        values = tl.where(channel == n_colors, tl.load(depths + rows), values)
    return values


class Products(NamedTuple):
    """Constants of matrix products with features: SPLIT and EXACT of ``product``."""

    SPLIT: bool
    EXACT: bool

    @classmethod
    def of(cls, records: Tensor, splats: Splats) -> "Products":
        colors = splats.colors
        half = colors is not None and colors.dtype in (torch.float16, torch.bfloat16) and splats.depths is None
        return cls(SPLIT=has_fast_fp32(records), EXACT=has_fast_fp32(records) and half)
