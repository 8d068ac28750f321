"""Beams: bounds of the rays of tiles and of their parts, for footprints that are evaluated along rays.

A tile has a *frame*: the mean origin o and the mean direction d of its rays, an axis e perpendicular to d along the
pixel rows, and the largest L1 distance of a ray's origin from o. The third axis is f = d x e. At depth z along d, the
coordinate of a ray on an axis is g + z a, with the slope a, and g where the ray meets the plane through o. A part has a
*box*: the bounds of g and a over the rays of its pixels, on both axes.
"""

import triton
import triton.language as tl
from torch import Tensor

from ...data import Rays
from ..device_math import constant, cross3, dot, load_tuple, normalize3, store_tuple, times
from ..launch import kernel, programs
from .rays import has_ray
from .walk_arguments import BandTask, PartGrid
from .walk_steps import part_pixels

FRAME = tl.constexpr(10)
BOX = tl.constexpr(8)
"""Number of values of a frame, and of a box."""

COSINE_MIN = tl.constexpr(0.1)
"""Minimum cosine of the angle between a ray and d. Frames of tiles with wider angles are NaN and exclude nothing."""


@triton.jit
def _sums(values, kept):
    """Returns the sum of each value over the pixels where ``kept`` is true."""
    sums = ()
    for k in tl.static_range(len(values)):
        sums = sums + (tl.sum(tl.where(kept, values[k], 0.0)),)
    return sums


@triton.jit
def _perpendicular(v, d):
    """Returns the component of v perpendicular to d as a unit vector, and its squared length."""
    along = dot(v, d)
    left = (v[0] - along * d[0], v[1] - along * d[1], v[2] - along * d[2])
    unit, _ = normalize3(left)
    return unit, dot(left, left)


@triton.jit
def _axis(v, w, d):
    """Returns a unit vector perpendicular to d: the component of v, or of w if that of v is too short, or any."""
    unit, square = _perpendicular(v, d)
    second, second_square = _perpendicular(w, d)
    x = tl.abs(d[0]) < 0.5
    any_axis, _ = _perpendicular((tl.where(x, 1.0, 0.0), tl.where(x, 0.0, 1.0), tl.zeros_like(d[2])), d)
    chosen = ()
    for k in tl.static_range(3):
        other = tl.where(second_square > 1e-12, second[k], any_axis[k])
        chosen = chosen + (tl.where(square > 1e-6, unit[k], other),)
    # Orthogonalize again, as the rounding error was relative to v.
    again, _ = _perpendicular(chosen, d)
    return again


@kernel
def _beams_kernel(
    rays: "Rays",
    part_grid: "PartGrid",
    beams,  # [tiles, FRAME + BOX parts], output
    PART: tl.constexpr,
    WHOLE: tl.constexpr,  # the tile as a single part
):
    """Computes the frame of a tile and the boxes of its parts. One program per tile."""
    TILE: tl.constexpr = PART.TILE
    WIDTH: tl.constexpr = PART.WIDTH
    HEIGHT: tl.constexpr = PART.HEIGHT
    ACROSS: tl.constexpr = TILE // WIDTH
    PARTS: tl.constexpr = ACROSS * (TILE // HEIGHT)
    tile = tl.program_id(0)
    dtype = beams.dtype.element_ty
    pixels = part_pixels(tile, 0, part_grid, rays, WHOLE, TILE, dtype)
    ray, part_pixel = pixels.position, pixels.part_index
    valid = has_ray(ray, pixels.inside)
    one = tl.full([TILE, TILE], 1.0, dtype)
    column = (part_pixel % TILE).to(dtype)
    line = part_pixel // TILE
    n, columns = _sums((one, column), valid)
    inverse = 1.0 / tl.maximum(n, 1.0)
    total = _sums((ray[0] * one, ray[1] * one, ray[2] * one, ray[3], ray[4], ray[5]), valid)
    d, _ = normalize3(total[3:])
    o = times(total[:3], inverse)
    from_o = (ray[0] - o[0], ray[1] - o[1], ray[2] - o[2])
    offset = column - columns * inverse
    weighted = ()
    for k in tl.static_range(3):
        weighted = weighted + (offset * ray[3 + k],)
    for k in tl.static_range(3):
        weighted = weighted + (offset * from_o[k],)
    slope = _sums(weighted, valid)
    e = _axis(slope[:3], slope[3:], d)
    f = cross3(d, e)

    cosine = dot(ray[3:], d)
    spread = tl.max(tl.where(valid, (tl.abs(from_o[0]) + tl.abs(from_o[1]) + tl.abs(from_o[2])) * one, 0.0))
    is_wide = tl.max(tl.where(valid & ((cosine > constant(COSINE_MIN, cosine)) == 0), 1, 0)) > 0
    frame = o
    for k in tl.static_range(3):
        frame = frame + (tl.where(is_wide, float("nan"), d[k]),)
    first_out = beams + tile.to(tl.int64) * (FRAME + BOX * PARTS)
    store_tuple(first_out, 1, frame + e + (spread,))
    # If the frame is NaN, boxes only tell whether there are rays. Their values are finite, as minima may ignore NaN.
    safe = tl.where(cosine > constant(COSINE_MIN, cosine), cosine, 1.0)
    depth = dot(from_o, d)
    a = (dot(ray[3:], e) / safe, dot(ray[3:], f) / safe)
    values = (dot(from_o, e) - depth * a[0], a[0], dot(from_o, f) - depth * a[1], a[1])
    for part in tl.static_range(PARTS):
        is_inside_part = valid & (part_pixel % TILE // WIDTH == part % ACROSS) & (line // HEIGHT == part // ACROSS)
        for k in tl.static_range(4):
            tl.store(first_out + (FRAME + BOX * part + 2 * k), tl.min(tl.where(is_inside_part, values[k], 1e30)))
            tl.store(first_out + (FRAME + BOX * part + 2 * k + 1), tl.max(tl.where(is_inside_part, values[k], -1e30)))


@triton.jit
def load_frame(beams, tile, mask, PARTS: tl.constexpr):
    return load_tuple(beams + tile.to(tl.int64) * (FRAME + BOX * PARTS), 1, FRAME, mask)


@triton.jit
def load_box(beams, tile, part: tl.constexpr, mask, PARTS: tl.constexpr):
    return load_tuple(beams + (tile.to(tl.int64) * (FRAME + BOX * PARTS) + (FRAME + BOX * part)), 1, BOX, mask)


def find_beams(band: BandTask) -> Tensor | None:
    """Computes frames and boxes of a band's tiles, [tiles, FRAME + BOX parts]; None if the footprint needs none."""
    if not band.footprint.BEAMS:
        return None
    assert band.rays is not None
    beams = band.rays.per_pixel.new_empty(band.n_tiles, FRAME.value + BOX.value * band.parts_per_tile)
    size = band.settings.tile_size
    _beams_kernel.launch(
        programs(band.n_tiles, 1),
        rays=band.rays_to_read(),
        part_grid=band.part_grid(),
        beams=beams,
        PART=band.part,
        WHOLE=band.part._replace(WIDTH=size, HEIGHT=size),
    )
    return beams
