"""The two passes over a band of tiles: the order of the kernels. See the package's docstring."""

from collections.abc import Callable

import torch
from torch import Tensor

from ...data import CompositingSettings, Intersections, PartLists, RenderBuffers, Splats, TileGrid
from ..launch import FEATURES_MIN, PartShape, is_compiled_for_cpu, part_shape
from .backward import walk_bwd
from .footprints import FOOTPRINTS
from .forward import walk_fwd
from .lists import list_parts
from .matrices_backward import features_bwd
from .matrices_forward import features_fwd
from .records import pack_records
from .sums import slot_columns, sum_slots


def bytes_per_intersection(means: Tensor, grid: TileGrid, n_features: int, absgrad: bool) -> int:
    """Returns the bytes of rows, slots and chunks that compositing needs at most for an intersection."""
    shape = part_shape(means, grid.tile_size, grid.n_tiles, n_features)
    size = means.dtype.itemsize
    parts = grid.tile_size**2 // (shape.width * shape.height)
    # For each pixel and chunk: two transmittances, a number of entries, and colors.
    chunks = shape.width * shape.height * (3 + n_features) * size // shape.chunk
    slots = 1 if is_compiled_for_cpu(means) else parts
    return slots * slot_columns(FOOTPRINTS["ellipse"], n_features, absgrad) * size + parts * (12 + chunks)


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
    columns = slot_columns(FOOTPRINTS[settings.footprint], splats.n_features, settings.absgrad)
    large = torch.empty_like(splats.opacities, dtype=torch.bool)
    pixels = (transmittances, last_ids, v_render_colors, v_render_alphas)
    grid = TileGrid.cover(len(last_ids), settings.width, settings.height, settings.tile_size)
    shape = part_shape(splats.means2d, grid.tile_size, grid.n_tiles, splats.n_features)
    if lists is None:
        lists = _list_again(splats, intersections, v_render_colors, grid, shape, settings)
    backward = features_bwd if splats.n_features >= FEATURES_MIN else walk_bwd
    v_slots, slot_starts = backward(splats, backgrounds, intersections, lists, *pixels, columns, large, shape, settings)
    sum_slots(v_slots, slot_starts, order, large, sums)


def _list_again(
    splats: Splats,
    intersections: Intersections,
    image: Tensor,
    grid: TileGrid,
    shape: PartShape,
    settings: CompositingSettings,
) -> PartLists:
    """Returns the lists of a band. The forward pass runs again if lists are cut, for what chunks add."""
    records = pack_records(splats._replace(colors=None, depths=None), settings)
    lists = list_parts(records, intersections, grid, shape, settings, splats.n_features, has_ends=False)
    if lists.n_chunks > 0:
        buffers = RenderBuffers(image.new_empty(image.shape), image.new_empty(image.shape[:3]), None)
        lists = _forward(splats, settings)(splats, None, None, intersections, buffers, shape, settings)
    return lists
