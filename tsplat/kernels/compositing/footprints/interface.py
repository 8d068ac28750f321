"""The interface of footprints: the device functions that evaluate a splat at a pixel, and their gradients.

The kernels of compositing get a footprint as a constexpr and call its functions.
"""

import dataclasses
import math
from typing import Any

import triton
import triton.language as tl

from ...contract import Contract
from ...device_math import where

LOG2_E = tl.constexpr(math.log2(math.e))
"""Alphas are computed by exp2."""
LARGE = tl.constexpr(32)
"""A splat is large if its bounding box may touch more tiles than this."""

HALF_LOG2_E = tl.constexpr(0.5 * math.log2(math.e))


@triton.jit
def _features(record, local, pixel, FIRST: tl.constexpr, N: tl.constexpr, FOOTPRINT: tl.constexpr):
    """Returns N features of a record. They are the same for all pixels."""
    return record[FIRST : FIRST + N]


@triton.jit
def _features_vjp(record, local, pixel, weight, v_features, FIRST: tl.constexpr, FOOTPRINT: tl.constexpr):
    return v_features, local


@triton.jit
def keep_sums(sums, local):
    return sums


@triton.jit
def rendered_shape(sums, shape, N: tl.constexpr):
    """Returns the shape of a row, or ones if its sums are zero: a row that was not rendered may have any shape."""
    has_sums = sums[0] != 0.0
    for k in tl.static_range(1, N):
        has_sums = has_sums | (sums[k] != 0.0)
    return where(has_sums, shape, 1.0)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Footprint(Contract):
    """The device functions of a splat and of its gradients.

    A `record` holds the values of ``pack``, log2(opacity), min(opacity, alpha_max), and features. A `pixel` is its
    center (x, y) in pixels, or its ray (o, d), origin and unit direction in the world frame. `local` is the result of
    ``locate``. g is alpha dL/d alpha at a pixel.

    Attributes:
        SHAPE: Number of values per row of ``Splats.shapes``.
        VALUES: Number of values of ``pack``.
        SUMS: Number of values of ``expand``: the sums over pixels from which gradients are computed.
        BY_COLUMN: Number of the first values of ``add_gradients`` that ``expand`` expects as sums over one column of
            pixels. The others may be sums over all pixels.
        pack: (mean, shape, visible) -> VALUES values of a record; whether the splat is visible and valid.
        is_large: (shape, opacity, TILE, ALPHA_MIN) -> whether the splat may touch more than ``LARGE`` tiles.
        bound: (record, x, y, TILE, LOG2_ALPHA_MIN) -> values for ``reaches``, for the tile with first pixel (x, y).
        reaches: (bound, X, Y, WIDTH, HEIGHT) -> whether alpha reaches ALPHA_MIN at a pixel of a part of the tile, whose
            first pixel is (X, Y) pixels from that of the tile. May be true although alpha does not, never the reverse.
        BEAMS: Whether tiles and parts are bounded by their rays, see `beams`. Then the arguments of ``bound`` are
            (record, frame, LOG2_ALPHA_MIN), and those of ``reaches`` are (bound, box).
        locate: (record, pixel) -> local coordinates of the pixel in the splat, a tuple.
        log2_alpha: (record, local) -> log2 of alpha before it is clamped.
        add_gradients: (sums, g, local) -> sums with the values of a pixel added. Sums are () before the first pixel.
        expand: (sums, local) -> SUMS values, linear in the sums. `local` is that of any pixel of the column.
        slopes: (record, g, local) -> absolute gradients of the mean, times log2(e); None without absgrad.
        finish: (sums, shape, opacity) -> gradients of the mean (a tuple), the shape (a tuple) and the opacity.
        pixel_gradients: (record, g, local) -> gradients of the values of the ray; None for pixel centers.
        features: (record, local, pixel, FIRST, N, footprint) -> N features as the pixel sees them, starting with value
            FIRST of the record.
        features_vjp: (record, local, pixel, weight, v_features, FIRST, footprint) -> gradients of the features of the
            record, divided by the weight; and `local`, extended by values for ``add_gradients`` and
            ``pixel_gradients``.
        NORMALS: Whether the first three features are a normal that faces the pixel.
        WIDE: Whether records with normals and depth are too wide for the scalar registers of AMD GPUs to hold several.
        HITS: Whether the last feature is the distance or the depth at which the ray of the pixel hits the splat.
    """

    SHAPE: int
    VALUES: int
    SUMS: int
    BY_COLUMN: int
    pack: Any
    is_large: Any
    bound: Any
    reaches: Any
    locate: Any
    log2_alpha: Any
    add_gradients: Any
    slopes: Any
    finish: Any
    expand: Any = keep_sums
    pixel_gradients: Any = None
    features: Any = _features
    features_vjp: Any = _features_vjp
    BEAMS: bool = False
    NORMALS: bool = False
    HITS: bool = False
    WIDE: bool = False

    def slot_columns(self, n_features: int, absgrad: bool) -> int:
        """Returns the number of columns of slots: sums of the footprint, features, and two for absgrad."""
        return self.SUMS + n_features + 2 * absgrad
