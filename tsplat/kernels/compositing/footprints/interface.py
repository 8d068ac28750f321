"""Footprints: what a kind of splat is at a pixel. The rest of compositing knows only what a `Footprint` says.

A kernel gets a footprint as a constexpr and calls its device functions.
"""

import dataclasses
import math
from typing import Any

import triton
import triton.language as tl

from ...contract import Contract
from ...device_math import where

LOG2_E = tl.constexpr(math.log2(math.e))
"""Alphas are exponentials with base 2."""
LARGE = tl.constexpr(32)
"""Number of tiles that the bounding box of a splat may touch before it is large."""

HALF_LOG2_E = tl.constexpr(0.5 * math.log2(math.e))


@triton.jit
def _features(record, local, pixel, FIRST: tl.constexpr, N: tl.constexpr, FOOTPRINT: tl.constexpr):
    """Returns N features of a record, which are the same for all pixels."""
    return record[FIRST : FIRST + N]


@triton.jit
def _features_vjp(record, local, pixel, weight, v_features, FIRST: tl.constexpr, FOOTPRINT: tl.constexpr):
    return v_features, local


@triton.jit
def keep_sums(sums, local):
    return sums


@triton.jit
def rendered_shape(sums, shape, N: tl.constexpr):
    """Returns the shape of a row with sums; ones for a row that was not rendered, which has none, and any shape."""
    has_sums = sums[0] != 0.0
    for k in tl.static_range(1, N):
        has_sums = has_sums | (sums[k] != 0.0)
    return where(has_sums, shape, 1.0)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Footprint(Contract):
    """A kind of splat, by device functions that are differentiated by hand.

    A `record` holds the values of ``pack``, log2 of the opacity, the opacity clamped to alpha_max, and features. A
    `pixel` is its center (x, y), in pixels, or its ray (o, d), origin and unit direction in the world frame; `local` is
    what ``locate`` returned for it. g is alpha dL/d alpha at pixels.

    Attributes:
        SHAPE: Values of a row's shape, ``Splats.shapes``.
        VALUES: Values of ``pack``.
        SUMS: Values of ``expand``: the sums over pixels that gradients are made of.
        BY_COLUMN: How many of the first values of ``add_gradients`` are sums over one column of pixels when ``expand``
            gets them. The others may be sums over all pixels.
        pack: (mean, shape, visible) to VALUES values of a record, and whether the splat is rendered, if it is visible.
        is_large: (shape, opacity, TILE, ALPHA_MIN) to whether it may touch more than ``LARGE`` tiles.
        bound: (record, x, y, TILE, LOG2_ALPHA_MIN) to what ``reaches`` needs for a tile; x and y are its first pixel.
        reaches: (bound, X, Y, WIDTH, HEIGHT) to whether alpha reaches ALPHA_MIN at a pixel of a part of the tile, X and
            Y pixels from its first. It may be true if alpha does not, but not false if alpha does.
        BEAMS: Whether tiles and parts are known by their rays, see `beams`: then ``bound`` is (record, frame,
            LOG2_ALPHA_MIN), and ``reaches`` (bound, box).
        locate: (record, pixel) to the local coordinates of the pixel in the splat: a tuple.
        log2_alpha: (record, local) to log2 of alpha before it is clamped.
        add_gradients: (sums, g, local) to the sums with those of a pixel added; the sums are () before the first pixel.
        expand: (sums, local) to SUMS sums, linear in the sums. `local` is that of any pixel of the column.
        slopes: (record, g, local) to absolute gradients of the mean, times log2(e); None if there is no absgrad.
        finish: (sums, shape, opacity) to gradients of the mean, the shape and the opacity: a tuple, a tuple, a value.
        pixel_gradients: (record, g, local) to the gradients of a ray's values; None for centers.
        features: (record, local, pixel, FIRST, N, the footprint) to the N features from a record's value FIRST on, as
            pixels see them.
        features_vjp: (record, local, pixel, weight, v_features, FIRST, the footprint) to the gradients of the record's
            features, over the weight, and `local` with what ``add_gradients`` and ``pixel_gradients`` need of these.
        NORMALS: Whether the first three features are a normal, which faces the pixel.
        WIDE: Whether the scalar registers of AMD GPUs do not hold several records with normals and depth.
        HITS: Whether the last feature is the distance, or the depth, at which the pixel's ray hits the splat.
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
        """Returns the columns of slots: sums of the footprint, features, and two for absgrad."""
        return self.SUMS + n_features + 2 * absgrad
