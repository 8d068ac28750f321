"""Rays of pixels and their gradients, for footprints that are evaluated along rays."""

import triton
import triton.language as tl

from ..device_math import load_tuple, store_tuple


@triton.jit
def load_rays(rays, image, pixel, inside, part_grid):
    """Loads origins and directions of the rays of pixels; zero outside of the image."""
    pixels_per_image = part_grid.width.to(tl.int64) * part_grid.height
    if rays.origins is None:
        return load_tuple(rays.per_pixel + pixel + image * (5 * pixels_per_image), pixels_per_image, 6, inside)
    else:
        directions = load_tuple(rays.per_pixel + pixel + image * (2 * pixels_per_image), pixels_per_image, 3, inside)
        return load_tuple(rays.origins + image * 3, 1, 3) + directions


@triton.jit
def has_ray(ray, inside):
    """Returns whether pixels are inside the image and have a ray. ``ray`` may also be the pixel center."""
    if len(ray) == 6:
        return inside & (tl.abs(ray[3]) + tl.abs(ray[4]) + tl.abs(ray[5]) > 0.0)
    else:
        return inside


@triton.jit
def no_gradients(like):
    """Returns gradients of rays that are zero."""
    return (tl.zeros_like(like),) * 6


@triton.jit
def add_pixel_gradients(total, record, g, local, FOOTPRINT: tl.constexpr, GROUPED: tl.constexpr):
    """Adds the gradients of rays due to a Gaussian, or if GROUPED, to a group along the first dimension."""
    v = FOOTPRINT.pixel_gradients(record, g, local)
    added = ()
    for k in tl.static_range(len(v)):
        value = v[k]
        if GROUPED:
            value = tl.sum(value, 0)
        added = added + (total[k] + value,)
    return added


@triton.jit
def store_ray_gradients(rays, chunks, v, program, entry_range, pixels, part_grid, PIXELS: tl.constexpr):
    """Stores the gradients of a part's rays: of a chunk by pixel of the part, of a whole list in the images."""
    pixels_per_image = part_grid.width.to(tl.int64) * part_grid.height
    if chunks.v_rays is not None:
        if entry_range.is_chunk:
            store_tuple(chunks.v_rays + program.to(tl.int64) * (6 * PIXELS) + pixels.part_index, PIXELS, v)
    is_whole = entry_range.first_chunk == entry_range.end_chunk
    store_tuple(
        rays.v_per_pixel + pixels.index + pixels.image * (5 * pixels_per_image),
        pixels_per_image,
        v,
        pixels.inside & is_whole,
    )
