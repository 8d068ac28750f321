r"""Front-to-back compositing of the Gaussians of each tile, forward and backward. Read this page first.

**The idea.** Color of a pixel (Kerbl et al., "3D Gaussian Splatting", 2023, equations 2 and 3): sum of w_i c_i + T_end
background, with w_i = alpha_i T_i, alpha_i = min(alpha_max, o exp(-sigma)), T_i the product of 1 - alpha_j over j < i,
and T_end that over all. One program, of one warp, renders one part of a tile, the parts with the longest lists first.
(In the backward pass on a CPU, a program handles all parts of a tile.) Parts fill a GPU where tiles are few, and fewer
Gaussians reach a part than its tile. The program walks the part's list one Gaussian after the other, and loads each
record while it blends the one before. Very long lists are cut into chunks, each with a program of its own: the product
of 1 - alpha over each chunk comes first and gives T where the next one starts; the colors of chunks are added last.

The backward pass walks back to front, starting from the remaining transmittance and dividing 1 - alpha out again. One
recurrence replaces a buffer per channel. With v the gradient of the pixel, let behind_i = (sum over j > i of
w_j (v . c_j) + T_end (v . background - v_alpha)) / T_(i + 1), which is v times the color that shows behind Gaussian i.
Then dL/d alpha_i = T_i (v . c_i - behind_i), and behind_(i - 1) = behind_i + alpha_i (v . c_i - behind_i). (Front to
back, the sum would be a difference of large numbers.) The gradients of a Gaussian are linear in sums over pixels of
g = alpha dL/d alpha times functions of the pixel. A program writes these sums to the slot of the list's entry, and
`slots` adds those of a Gaussian. There are no atomics, so results are bit-reproducible.

**The data**, of one tile with two parts and the intersections A, B and C, front to back:

    rows           A B C           projected Gaussians; a record for each           records
    intersections  A B C           of the tile, sorted by depth                     (made by the stage before)
                   |\ \|
    lists      A B | A C |         of part 0 and part 1; their entries are rows     part_lists
               ----+-----+
    chunks     A,B | A,C |         pieces of a list, if it is long                  chunks
                v     v
    images         pixels, and where the walk of each list ended                    composite_forward
                v     v
    slots      A A | B | C         one per entry, those of a Gaussian side by side  slots, composite_backward
                \/
    sums       A     B   C         added in a fixed order; then gradients           slots

**The words**, each with one meaning:

    row         a projected Gaussian, as an index; rows of tiles or pixels are called tile rows and pixel rows
    record      what compositing reads of a row, side by side in memory: values of its footprint, opacity, features
    footprint   what a kind of splat is at a pixel; the other files know only what a `Footprint` says
    part        rectangle of a tile's pixels, composited by one program
    list        the rows that may reach a part, front to back
    entry       an element of a list; in the backward pass, a row and a slot
    walk        the loop of a program over a list or a chunk
    chunk       piece of a long list, composited by a program of its own
    launch order    in which programs take the lists
    Gaussian-major  order of intersections: by Gaussian, then by span
    span        what a Gaussian intersects of one tile row
    slot        where the backward pass writes the sums of an entry over the part's pixels
    moment      one of the ellipse's sums over pixels of g

**The files**, in the order of a call: the launchers below call `records` and `part_lists`, `chunks` if a list is cut,
and `composite_forward`; then `slots`, `composite_backward`, and `slots` again. From 16 channels on, `features_forward`
and `features_backward`, with `matrices`, take the place of the walks. `walk_steps` has what all walks share,
`pixel_sums` the sums over the pixels of a part, `rays` those of pixels and their gradients, `beams` what bounds the
rays of a part, `distortion` that of a feature, and `footprints` the math of a splat. `tuning` chooses parts, chunks and
compiler options for a device. `kernels/scans.py` keeps lists within memory that was allocated before they were counted,
and `alphas` finds who contributes to a pixel.
"""

import torch
from torch import Tensor

from ...config import FEATURES_MIN
from ...data import CompositingSettings, Intersections, PartLists, Rays, RenderBuffers, SplatGradients, Splats, TileGrid
from .. import launch
from ..launch import is_compiled_for_cpu
from .alphas import tile_alphas
from .chunks import chunk_products, combine_chunks, combine_rays
from .composite_backward import walk_bwd
from .composite_forward import channel_group, walk_fwd
from .features_backward import features_bwd
from .features_forward import features_fwd
from .footprints import FOOTPRINTS
from .part_lists import list_parts
from .records import pack_records
from .slots import assign_slots, sum_slots
from .tuning import part_shape
from .walk_steps import BandTask, Chunks, FinalPixels, ImageGradients, Ranges

__all__ = [
    "bytes_per_intersection",
    "composite_bwd",
    "composite_fwd",
    "tile_alphas",
]


def bytes_per_intersection(means: Tensor, grid: TileGrid, n_features: int, settings: CompositingSettings) -> int:
    """Returns the most bytes of entries, slots and chunks that compositing needs per intersection."""
    shape = part_shape(means, grid.tile_size, grid.n_tiles, n_features)
    size = means.dtype.itemsize
    parts = grid.tile_size**2 // (shape.width * shape.height)
    # For each pixel and chunk: two transmittances, a number of entries, and colors; distortion and the row of a median.
    chunks = shape.width * shape.height * (3 + n_features + 2 * settings.distortion) * size // shape.chunk
    slots = 1 if is_compiled_for_cpu(means) else parts
    columns = FOOTPRINTS[settings.footprint].slot_columns(n_features, settings.absgrad)
    return slots * columns * size + parts * (12 + chunks)


def composite_fwd(
    splats: Splats,
    backgrounds: Tensor | None,
    masks: Tensor | None,
    intersections: Intersections,
    buffers: RenderBuffers,
    settings: CompositingSettings,
    rays: Rays | None = None,
) -> PartLists | None:
    """Writes the pixels of a band of tiles.

    Args:
        backgrounds: [I, D] or None; depth has background 0.
        masks: [I, tiles] bool or None; a tile that is false shows the background.
        intersections: Of the band.
        buffers: Output.
        settings: See :class:`CompositingSettings`.
        rays: Of the pixels, if the footprint is evaluated along them.

    Returns:
        The lists for :func:`composite_bwd`, without ids of entries: that pass lists entries again, with their slots.
        None from `kernels_torch`.
    """
    band = _band(splats, intersections, buffers.colors.shape[0], settings, rays)
    by_matrices = min(splats.n_features, settings.channel_chunk) >= FEATURES_MIN
    if by_matrices:
        splats = splats.gather_colors()
    first_group = _without_features(splats) if by_matrices else channel_group(splats, 0, settings)
    # The backward pass reads the same records if one group has all channels.
    saves_records = first_group is splats and buffers.last_ids is not None
    large = splats.opacities.new_empty(splats.opacities.shape, dtype=torch.bool) if saves_records else None
    records = pack_records(first_group, settings, large)
    lists = list_parts(records, band, buffers.colors.shape[3], has_walk_ends=buffers.last_ids is not None)
    ranges = Ranges.of(lists, lists.launch_order, lists.walk_ends)
    products = chunk_products(records, lists, band)
    last_ids, median_rows = (
        None if products is None or t is None else torch.empty_like(products, dtype=torch.int32)
        for t in (buffers.last_ids, buffers.median_rows)
    )
    chunks = Chunks(
        products=products,
        transmittances=lists.chunk_transmittances,
        last_ids=last_ids,
        colors=lists.chunk_colors,
        median_rows=median_rows,
    )
    assert lists.ids is not None
    forward = features_fwd if by_matrices else walk_fwd
    forward(splats, records, lists.ids, ranges, chunks, backgrounds, masks, buffers, band)
    combine_chunks(ranges, chunks, backgrounds, buffers, band)
    n_walked = None
    if launch.slots_hook is not None and lists.walk_ends is not None and lists.n_entries > launch.UNREAD_MAX:
        n_walked = (lists.walk_ends - lists.offsets[:-1]).sum()
    return lists._replace(ids=None, records=records if saves_records else None, large=large, n_walked=n_walked)


def composite_bwd(
    splats: Splats,
    backgrounds: Tensor | None,
    intersections: Intersections,
    transmittances: Tensor,
    last_ids: Tensor,
    v_render_colors: Tensor,
    v_render_alphas: Tensor | None,
    v_splats: SplatGradients | None,
    settings: CompositingSettings,
    lists: PartLists | None = None,
    rays: Rays | None = None,
    depth_sums: Tensor | None = None,
) -> SplatGradients:
    """Returns the gradients of each row due to a band of tiles.

    Args:
        splats, backgrounds, intersections, settings: As for :func:`composite_fwd`; ``gaussian_major`` is required.
        transmittances, last_ids: [I, H, W] of :func:`composite_fwd`.
        v_render_colors, v_render_alphas: [I, H, W, D], with distortion one more channel, and [I, H, W, 1] or None
            for zero.
        v_splats: Those due to earlier bands, added to and returned; or None.
        lists: What :func:`composite_fwd` returned for the only band; None to make them again, if there may be more.
        rays: As for :func:`composite_fwd`, with ``v_per_pixel``, which is added to.
        depth_sums: [I, H, W], the rendered channel of the last feature; only with distortion.
    """
    gaussian_major = intersections.gaussian_major
    assert gaussian_major is not None
    is_first, n_intersections, n_features = v_splats is None, intersections.flatten_ids.numel(), splats.n_features
    if v_splats is None:
        v_splats = _allocate_gradients(splats, settings, zero=n_intersections == 0, has_sums=lists is None)
    if n_intersections == 0:
        return v_splats
    band = _band(splats, intersections, last_ids.shape[0], settings, rays)
    if lists is None:
        lists = _list_again(splats, band, v_render_colors)
    by_matrices = n_features >= FEATURES_MIN
    if by_matrices:
        splats = splats.gather_colors()
    records, large = lists.records, lists.large
    if records is None or large is None:
        large = torch.empty_like(splats.opacities, dtype=torch.bool)
        records = pack_records(_without_features(splats) if by_matrices else splats, settings, large)
    columns = band.footprint.slot_columns(n_features, settings.absgrad)
    # Matrix products, and the gradients of rays, are not computed in layers.
    is_layered = not by_matrices and (rays is None or rays.v_per_pixel is None)
    slots = assign_slots(lists, band, records, columns, 2 + settings.distortion if is_layered else None)
    ranges = Ranges.of(lists, slots.launch_order)
    v_rays = None if rays is None else rays.v_per_pixel
    chunk_v_rays = None
    if v_rays is not None and lists.chunk_transmittances is not None:
        chunk_v_rays = v_rays.new_empty(lists.n_chunks, 6, band.shape.width * band.shape.height)
    chunks = Chunks(transmittances=lists.chunk_transmittances, colors=lists.chunk_colors, v_rays=chunk_v_rays)
    final_pixels = FinalPixels(transmittances, last_ids, depth_sums)
    v_images = ImageGradients.of(v_render_colors, v_render_alphas)
    for layer in slots.back_to_front():
        backward = features_bwd if by_matrices else walk_bwd
        backward(splats, records, ranges, chunks, slots, layer, backgrounds, final_pixels, v_images, band)
        sum_slots(slots, layer, gaussian_major, large, v_splats, splats, band, accumulate=not is_first)
    if v_rays is not None:
        combine_rays(ranges, chunk_v_rays, v_rays, band)
    return v_splats


def _band(
    splats: Splats, intersections: Intersections, n_images: int, settings: CompositingSettings, rays: Rays | None
) -> BandTask:
    grid = TileGrid.cover(n_images, settings.camera.width, settings.camera.height, settings.tile_size)
    shape = part_shape(splats.means2d, grid.tile_size, grid.n_tiles, splats.n_features)
    return BandTask(intersections, grid, shape, settings, rays)


def _allocate_gradients(splats: Splats, settings: CompositingSettings, *, zero: bool, has_sums: bool) -> SplatGradients:
    """Returns gradients of rows to write, or zeros."""
    n_rows, n_features = splats.opacities.numel(), splats.n_features
    allocate = splats.opacities.new_zeros if zero else splats.opacities.new_empty
    columns = FOOTPRINTS[settings.footprint].slot_columns(n_features, settings.absgrad)
    return SplatGradients(
        v_means2d=allocate(n_rows, 2),
        v_shapes=allocate(splats.shapes.shape),
        v_opacities=allocate(n_rows),
        v_features=allocate(n_rows, n_features),
        absgrad=allocate(n_rows, 2) if settings.absgrad else None,
        sums=allocate(n_rows, -(-columns // 4) * 4) if has_sums else None,  # padded for wide loads
    )


def _without_features(splats: Splats) -> Splats:
    return splats._replace(colors=None, depths=None)


def _list_again(splats: Splats, band: BandTask, image: Tensor) -> PartLists:
    """Returns the lists of a band. The forward pass runs again if lists are cut, for what chunks add.

    Args:
        image: Of the shape and dtype of the pixels [I, H, W, D].
    """
    records = pack_records(_without_features(splats), band.settings)
    lists = list_parts(records, band, image.shape[3], has_walk_ends=False)
    if lists.n_chunks == 0:
        return lists
    medians = image.new_empty(image.shape[:3], dtype=torch.int32) if band.settings.distortion else None
    buffers = RenderBuffers(
        colors=image.new_empty(image.shape),
        transmittances=image.new_empty(image.shape[:3]),
        last_ids=None,
        median_rows=medians,
    )
    lists = composite_fwd(splats, None, None, band.intersections, buffers, band.settings, band.rays)
    assert lists is not None
    return lists
