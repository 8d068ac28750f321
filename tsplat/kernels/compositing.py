"""Front-to-back compositing of the Gaussians of a tile, forward and backward.

Color of a pixel (Kerbl et al., "3D Gaussian Splatting", 2023, equations 2 and 3): sum of w_i c_i + T background, with
w_i = alpha_i T_i, alpha_i = min(alpha_max, o exp(-sigma)) and T_i the product of 1 - alpha_j over j < i.

One program, of one warp, renders one part of a tile; parts with the longest lists come first. It walks the part's list
(see ``compositing_parts``) one Gaussian after the other, and loads each record while it blends the one before. Very
long lists are cut into segments, each with a program of its own: the product of 1 - alpha over each segment comes first
and gives T where the next one starts; the colors of segments are added in the end.

The backward pass walks back to front, starting from the remaining transmittance and dividing 1 - alpha out again. One
recurrence replaces a buffer per channel. With v the gradient of the pixel, let behind_i = (sum over j > i of
w_j (v . c_j) + T_end (v . background - v_alpha)) / T_(i + 1), which belongs to the color that shows behind Gaussian i.
Then dL/d alpha_i = T_i (v . c_i - behind_i), and behind_(i - 1) = behind_i + alpha_i (v . c_i - behind_i). (Front to
back, the sum would be a difference of large numbers.) With g = alpha dL/d alpha, the gradients of mean, conic and
opacity are linear in six moments: the sums over pixels of g, g dx, g dy, g dx^2, g dx dy and g dy^2. A program writes
them and the color gradients to the slot of the list's entry, and `compositing_sums` adds the slots of a Gaussian. There
are no atomics, so results are bit-reproducible.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..data import CompositingSettings, Intersections, PartLists, RenderBuffers, Splats, TileGrid
from .compositing_backward import walk_bwd
from .compositing_features_backward import features_bwd
from .compositing_features_forward import features_fwd
from .compositing_forward import walk_fwd
from .compositing_parts import list_parts
from .compositing_records import pack_records
from .compositing_sums import slot_columns, sum_slots
from .launch import FEATURES_MIN, PartShape, is_compiled_for_cpu, part_shape


def bytes_per_intersection(means: Tensor, grid: TileGrid, n_features: int, absgrad: bool) -> int:
    """Returns the bytes of rows, slots and segments that compositing needs at most for an intersection."""
    shape = part_shape(means, grid.tile_size, grid.n_tiles, n_features)
    size = means.dtype.itemsize
    parts = grid.tile_size**2 // (shape.width * shape.height)
    # For each pixel and segment: two transmittances, a number of entries, and colors.
    segments = shape.width * shape.height * (3 + n_features) * size // shape.segment
    slots = 1 if is_compiled_for_cpu(means) else parts
    return slots * slot_columns(n_features, absgrad) * size + parts * (12 + segments)


def composite_fwd(
    splats: Splats,
    backgrounds: Tensor | None,
    masks: Tensor | None,
    intersections: Intersections,
    buffers: RenderBuffers,
    settings: CompositingSettings,
) -> PartLists | None:
    """Writes the pixels of a band of tiles.

    Args:
        splats: With gathered colors [nnz, D].
        backgrounds: [I, D] or None; depth has background 0.
        masks: [I, tiles] bool or None; a tile that is false shows the background.
        intersections: Of the band.
        buffers: Output.
        settings: See :class:`CompositingSettings`.

    Returns:
        Lists that :func:`composite_bwd` would make again; not None.
    """
    grid = TileGrid.cover(len(buffers.colors), settings.width, settings.height, settings.tile_size)
    shape = part_shape(splats.means2d, grid.tile_size, grid.n_tiles, splats.n_features)
    forward = _forward(splats, settings)
    return forward(splats, backgrounds, masks, intersections, buffers, shape, settings)


def _forward(splats: Splats, settings: CompositingSettings) -> Callable[..., PartLists]:
    """Returns the function that composites a band, by the number of channels."""
    return features_fwd if min(splats.n_features, settings.channel_chunk) >= FEATURES_MIN else walk_fwd


def composite_bwd(
    splats: Splats,
    backgrounds: Tensor | None,
    intersections: Intersections,
    transmittances: Tensor,
    last_ids: Tensor,
    v_render_colors: Tensor,
    v_render_alphas: Tensor,
    sums: Tensor,
    settings: CompositingSettings,
    lists: PartLists | None = None,
) -> None:
    """Adds the contribution of a band of tiles to the moments and feature gradients of each row.

    Args:
        splats, backgrounds, intersections, settings: As for :func:`composite_fwd`; ``gaussian_major`` is required.
        transmittances, last_ids: [I, H, W] of :func:`composite_fwd`.
        v_render_colors, v_render_alphas: [I, H, W, D], [I, H, W].
        sums: [nnz, columns of ``sum_columns``], added to.
        lists: What :func:`composite_fwd` returned for the band; None to make them again.
    """
    order = intersections.gaussian_major
    assert order is not None
    if intersections.flatten_ids.numel() == 0:
        return
    columns = slot_columns(splats.n_features, settings.absgrad)
    large = torch.empty_like(splats.opacities, dtype=torch.bool)
    pixels = (transmittances, last_ids, v_render_colors, v_render_alphas)
    grid = TileGrid.cover(len(last_ids), settings.width, settings.height, settings.tile_size)
    shape = part_shape(splats.means2d, grid.tile_size, grid.n_tiles, splats.n_features)
    if lists is None:
        lists = _list_again(splats, intersections, v_render_colors, grid, shape, settings)
    backward = features_bwd if splats.n_features >= FEATURES_MIN else walk_bwd
    v_slots, slot_starts = backward(splats, backgrounds, intersections, lists, *pixels, columns, large, shape, settings)
    sum_slots(v_slots, order._replace(slot_starts=slot_starts), large, sums)


def _list_again(
    splats: Splats,
    intersections: Intersections,
    image: Tensor,
    grid: TileGrid,
    shape: PartShape,
    settings: CompositingSettings,
) -> PartLists:
    """Returns the lists of a band. The forward pass runs again if lists are cut, for what segments add."""
    records = pack_records(splats._replace(colors=None, depths=None), settings)
    lists = list_parts(records, intersections, grid, shape, splats.n_features, has_ends=False)
    if lists.n_segments > 0:
        buffers = RenderBuffers(image.new_empty(image.shape), image.new_empty(image.shape[:3]), None)
        lists = _forward(splats, settings)(splats, None, None, intersections, buffers, shape, settings)
    return lists
