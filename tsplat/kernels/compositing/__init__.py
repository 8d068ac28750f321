r"""Front-to-back compositing of the Gaussians of each tile, forward and backward. Read this page first.

**The algorithm.** The color of a pixel (Kerbl et al., "3D Gaussian Splatting", 2023, equations 2 and 3) is the sum of
w_i c_i + T_end background, with w_i = alpha_i T_i, alpha_i = min(alpha_max, o exp(-sigma)), T_i the product of
1 - alpha_j over j < i, and T_end the product over all j. One program, of one warp, renders one part of a tile; parts
with the longest lists are launched first. (In the backward pass on a CPU, a program handles all parts of a tile.) Parts
keep a GPU busy if there are few tiles, and fewer Gaussians reach a part than its tile. The program walks the list of
the part Gaussian by Gaussian, and loads the next record while it blends the current one. Very long lists are cut into
chunks, which are composited by separate programs: a first kernel computes the product of 1 - alpha over each chunk,
which gives T at the start of the next one; a last kernel adds up the colors of chunks.

A pixel stops before the Gaussian that would reduce T to TRANSMITTANCE_MIN or less. In the forward pass, a negative T
means that the pixel has stopped: its transmittance is |T|, and no later Gaussian changes it. Pixels outside the image
or without a ray begin with T = -1.

The backward pass walks back to front, starting from the remaining transmittance and dividing 1 - alpha out again. One
recurrence replaces a buffer per channel. With v the gradient of the pixel, let behind_i = (sum over j > i of
w_j (v . c_j) + T_end (v . background - v_alpha)) / T_(i + 1): v times the color that is visible behind Gaussian i.
Then dL/d alpha_i = T_i (v . c_i - behind_i), and behind_(i - 1) = behind_i + alpha_i (v . c_i - behind_i). (Front to
back, the sum would be a difference of large numbers.) The gradients of a Gaussian are linear in sums over pixels of
g = alpha dL/d alpha times functions of the pixel. A program writes these sums to the slot of the list entry, and
`slot_sums` adds up the slots of each Gaussian. There are no atomics, so results are bit-reproducible.

**The data** of a tile with two parts and three intersections A, B and C, front to back:

    rows           A B C           projected Gaussians, with one record each        records
    intersections  A B C           of the tile, sorted by depth                     (from the intersect stage)
                   |\ \|
    lists      A B | A C |         of parts 0 and 1; an entry is a row              part_lists
               ----+-----+
    chunks     A,B | A,C |         pieces of a list, if it is long                  chunks
                v     v
    images         pixels, and the end of the walk of each list                     composite_forward
                v     v
    slots      A A | B | C         one per entry, grouped by Gaussian               slots, composite_backward
                \/
    sums       A     B   C         added in a fixed order; then gradients           slot_sums

**The terms**:

    row         a projected Gaussian, as an index; rows of tiles or pixels are called tile rows and pixel rows
    record      the inputs of compositing for a row, contiguous in memory: values of the footprint, opacity, features
    footprint   evaluates a splat at a pixel; the other files use the interface `Footprint`
    part        rectangle of a tile's pixels, composited by one program
    list        the rows that may reach a part, front to back
    entry       an element of a list; in the backward pass, a row and a slot
    walk        the loop of a program over a list or a chunk
    chunk       piece of a long list, composited by a separate program
    launch order    the order in which programs take the lists
    Gaussian-major  order of intersections: by Gaussian, then by span
    span        the run of tiles that a Gaussian intersects in one tile row
    slot        where the backward pass writes the sums of an entry over the part's pixels
    moment      one of the sums over pixels from which the gradients of an ellipse are computed

**The files**, in the order of a call: the launchers below call `records` and `part_lists`, `chunks` if a list is cut,
and `composite_forward`; then `slots` (with `slot_layers` on a CPU), `composite_backward`, and `slot_sums`. From 16
channels on, `features_forward` (if ``channel_chunk`` is at least 16, too) and `features_backward`, with `matrices`,
replace the walks. `walk_steps` has the steps that walks share, `walk_arguments` their arguments and constants,
`pixel_sums` the sums over the pixels of a part, `rays` the rays of pixels and their gradients, `beams` the bounds of
the rays of a part, `distortion` the distortion of a feature, and `footprints` the math of a splat. `tuning` chooses
parts, chunks and compiler options for a device. `kernels/scans.py` keeps lists within preallocated memory, and `alphas`
finds the Gaussians that contribute to a pixel.
"""

import torch
from torch import Tensor

from ...config import FEATURES_MIN
from ...data import (
    CompositingSettings,
    Images,
    Intersections,
    PartLists,
    Rays,
    SavedImages,
    SplatGradients,
    Splats,
    TileGrid,
)
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
from .slot_sums import sum_slots
from .slots import assign_slots
from .tuning import part_shape
from .walk_arguments import BandTask, Chunks, ImageGradients, Ranges

__all__ = [
    "bytes_per_intersection",
    "composite_bwd",
    "composite_fwd",
    "tile_alphas",
]


def bytes_per_intersection(means: Tensor, grid: TileGrid, n_features: int, settings: CompositingSettings) -> int:
    """Returns an upper bound of the bytes of entries, slots and chunks per intersection."""
    shape = part_shape(means, grid.tile_size, grid.n_tiles, n_features)
    size = means.dtype.itemsize
    parts = grid.tile_size**2 // (shape.width * shape.height)
    # Per pixel and chunk: two transmittances, a number of entries, colors, distortion and the row of the median.
    chunks = shape.width * shape.height * (3 + n_features + 2 * settings.distortion) * size // shape.chunk
    slots = 1 if is_compiled_for_cpu(means) else parts
    columns = FOOTPRINTS[settings.footprint].slot_columns(n_features, settings.absgrad)
    return slots * columns * size + parts * (12 + chunks)


def composite_fwd(
    splats: Splats,
    backgrounds: Tensor | None,
    masks: Tensor | None,
    intersections: Intersections,
    images: Images,
    settings: CompositingSettings,
    rays: Rays | None = None,
) -> PartLists | None:
    """Composites the pixels of a band of tiles.

    Args:
        backgrounds: [I, D] or None; depth has background 0.
        masks: [I, tiles] bool or None; a false tile shows the background.
        intersections: The intersections of the band.
        images: Output, see :class:`Images`.
        settings: See :class:`CompositingSettings`.
        rays: The rays of pixels, if the footprint is evaluated along rays.

    Returns:
        The lists for :func:`composite_bwd`, without ids of entries: the backward pass lists entries again, with their
        slots. `kernels_torch` returns None.
    """
    band = _band(splats, intersections, images.colors.shape[0], settings, rays)
    by_matrices = min(splats.n_features, settings.channel_chunk) >= FEATURES_MIN
    if by_matrices:
        splats = splats.gather_colors()
    first_group = _without_features(splats) if by_matrices else channel_group(splats, 0, settings)
    # The backward pass reuses the records if a single group has all channels.
    saves_records = first_group is splats and images.pixel_ends is not None
    large = splats.opacities.new_empty(splats.opacities.shape, dtype=torch.bool) if saves_records else None
    records = pack_records(first_group, settings, large)
    lists = list_parts(records, band, images.colors.shape[3], has_walk_ends=images.pixel_ends is not None)
    ranges = Ranges.of(lists, lists.launch_order, lists.walk_ends)
    products = chunk_products(records, lists, band)
    pixel_ends, median_rows = (
        None if products is None or t is None else torch.empty_like(products, dtype=torch.int32)
        for t in (images.pixel_ends, images.median_rows)
    )
    chunks = Chunks(
        products=products,
        transmittances=lists.chunk_transmittances,
        pixel_ends=pixel_ends,
        colors=lists.chunk_colors,
        median_rows=median_rows,
    )
    assert lists.ids is not None
    forward = features_fwd if by_matrices else walk_fwd
    forward(splats, records, lists.ids, ranges, chunks, backgrounds, masks, images, band)
    combine_chunks(ranges, chunks, backgrounds, images, band)
    n_walked = None
    if launch.slots_hook is not None and lists.walk_ends is not None and lists.n_entries > launch.UNREAD_MAX:
        n_walked = (lists.walk_ends - lists.offsets[:-1]).sum()
    return lists._replace(ids=None, records=records if saves_records else None, large=large, n_walked=n_walked)


def composite_bwd(
    splats: Splats,
    backgrounds: Tensor | None,
    intersections: Intersections,
    images: SavedImages,
    v_render_colors: Tensor,
    v_render_alphas: Tensor | None,
    v_splats: SplatGradients | None,
    settings: CompositingSettings,
    lists: PartLists | None = None,
    rays: Rays | None = None,
) -> SplatGradients:
    """Computes the gradients of splats from a band of tiles.

    Args:
        splats, backgrounds, intersections, settings: As in :func:`composite_fwd`; ``gaussian_major`` is required.
        images: Outputs of :func:`composite_fwd`, see :class:`SavedImages`.
        v_render_colors, v_render_alphas: [I, H, W, D], with distortion one more channel; and [I, H, W, 1], or None for
            zero.
        v_splats: Gradients from earlier bands, which are added to and returned; or None.
        lists: The result of :func:`composite_fwd` if there is a single band; None to compute the lists again.
        rays: As in :func:`composite_fwd`. Gradients are written to ``v_per_pixel``.
    """
    gaussian_major = intersections.gaussian_major
    assert gaussian_major is not None
    is_first, n_intersections, n_features = v_splats is None, intersections.flatten_ids.numel(), splats.n_features
    if v_splats is None:
        v_splats = _allocate_gradients(splats, settings, zero=n_intersections == 0, has_sums=lists is None)
    if n_intersections == 0:
        return v_splats
    band = _band(splats, intersections, images.transmittances.shape[0], settings, rays)
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
    # Matrix products and gradients of rays do not support layers.
    is_layered = not by_matrices and (rays is None or rays.v_per_pixel is None)
    slots = assign_slots(lists, band, records, columns, 2 + settings.distortion if is_layered else None)
    ranges = Ranges.of(lists, slots.launch_order)
    v_rays = None if rays is None else rays.v_per_pixel
    chunk_v_rays = None
    if v_rays is not None and lists.chunk_transmittances is not None:
        chunk_v_rays = v_rays.new_empty(lists.n_chunks, 6, band.shape.width * band.shape.height)
    chunks = Chunks(transmittances=lists.chunk_transmittances, colors=lists.chunk_colors, v_rays=chunk_v_rays)
    v_images = ImageGradients.of(v_render_colors, v_render_alphas)
    for layer in slots.back_to_front():
        backward = features_bwd if by_matrices else walk_bwd
        backward(splats, records, ranges, chunks, slots, layer, backgrounds, images, v_images, band)
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
    """Allocates the gradients of rows, set to zero if `zero`."""
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
    """Computes the lists of a band again. If lists are cut, runs the forward pass again, for the results of chunks.

    Args:
        image: Any tensor with the shape and dtype of the pixels [I, H, W, D].
    """
    records = pack_records(_without_features(splats), band.settings)
    lists = list_parts(records, band, image.shape[3], has_walk_ends=False)
    if lists.n_chunks == 0:
        return lists
    medians = image.new_empty(image.shape[:3], dtype=torch.int32) if band.settings.distortion else None
    images = Images(
        colors=image.new_empty(image.shape),
        transmittances=image.new_empty(image.shape[:3]),
        pixel_ends=None,
        median_rows=medians,
    )
    lists = composite_fwd(splats, None, None, band.intersections, images, band.settings, band.rays)
    assert lists is not None
    return lists
