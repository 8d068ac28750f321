"""Records and lists: what walks read of a projected Gaussian, and which Gaussians a part of a tile has to composite.

A record holds what compositing reads of a row, side by side in memory.

Each part of a tile has a list of its own: the tile's Gaussians whose alpha may reach 1/255 at one of the part's
pixels, front to back as in the tile, so nothing is sorted again. A Gaussian that a part's list leaves out is below
1/255 on all of its pixels, so images keep their bits.

Three kernels make the lists. The first tests parts and writes one bit per (intersection, part), in words of 32
intersections. With the running total of set bits at each word, the place of an intersection in a list is known, and the
second and the third write where lists begin and what they hold. Indices are int32, as a band has at most 2^28
intersections.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...config import ALPHA_MIN
from ...data import CompositingSettings, Intersections, PartLists, Splats
from ..device_math import constant, element, load4, load_tuple, popcount, store_tuple
from ..launch import Int, approximate, has_ptx, kernel, launch_elementwise
from .footprints import FOOTPRINTS
from .sizes import CUT, count_chunks, cut_lists, limit_starts, most_chunks
from .walk_steps import OPACITY, Band

BLOCK = 128

WORD = tl.constexpr(32)
"""Intersections whose bits are in one word."""
LOG2_WORD = tl.constexpr(WORD.value.bit_length() - 1)

MARGIN = tl.constexpr(4)
"""Entries of row 0 before and behind all lists. Walks load up to two of them ahead and do not composite them; four of
int32 take 16 bytes, so lists stay aligned."""


@triton.jit
def _store_record(out, values, mask, WIDE: tl.constexpr):
    """Stores the values of records, with 16-byte stores if WIDE."""
    if WIDE:
        for k in tl.static_range(0, len(values), 4):
            even = tl.join(values[k], values[k + 2])
            odd = tl.join(values[k + 1], values[k + 3])
            four = tl.reshape(tl.join(even, odd), [out.shape[0], 4])
            tl.store(out[:, None] + k + tl.arange(0, 4)[None, :], four, mask=mask[:, None])
    else:
        store_tuple(out, 1, values, mask)


@kernel(strided=("colors",))
def _pack_kernel(
    means2d,  # [nnz, 2]
    shapes,  # [nnz, FOOTPRINT.SHAPE]
    opacities,  # [nnz]
    colors,  # [nnz, COLORS] with rows of any stride, any float dtype; or None
    depths,  # [nnz] or None
    records,  # [nnz, WIDTH], output
    large,  # [nnz] bool, output, or None
    n_rows: "Int", color_stride: "Int",
    FOOTPRINT: tl.constexpr, COLORS: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
    ALPHA_MAX: tl.constexpr, ALPHA_MIN: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = row < n_rows
    mean = load_tuple(means2d + row * 2, 1, 2, mask)
    SHAPE: tl.constexpr = FOOTPRINT.SHAPE
    shape = load_tuple(shapes + row * SHAPE, 1, SHAPE, mask)
    opacity = tl.load(opacities + row, mask=mask, other=0.0)
    values, valid = FOOTPRINT.pack(mean, shape, opacity >= constant(ALPHA_MIN, opacity))
    values = values + (
        tl.where(valid, tl.log2(tl.where(valid, opacity, 1.0)), -1e4),
        tl.where(valid, tl.minimum(opacity, constant(ALPHA_MAX, opacity)), 0.0),
    )
    for k in tl.static_range(COLORS):
        color = tl.load(colors + row * color_stride + k, mask=mask, other=0.0)
        values = values + (color.to(mean[0].dtype),)
    if depths is not None:
        values = values + (tl.load(depths + row, mask=mask, other=0.0),)
    for _ in tl.static_range(FOOTPRINT.VALUES + OPACITY + COLORS + (depths is not None), WIDTH):
        values = values + (tl.zeros_like(opacity),)
    _store_record(records + row * WIDTH, values, mask, WIDE)
    if large is not None:
        tl.store(large + row, FOOTPRINT.is_large(shape, opacity, TILE, ALPHA_MIN), mask=mask)


@triton.jit
def load_record(records, row, WIDTH: tl.constexpr, VALUES: tl.constexpr, WIDE: tl.constexpr):
    """The first VALUES values of a row's record. If WIDE, by 16-byte loads, which may load up to three more."""
    at = element(records, row, WIDTH, WIDE)
    if WIDE:
        values = ()
        for k in tl.static_range(0, VALUES, 4):
            values = values + load4(at + k)
        return values
    else:
        return load_tuple(at, 1, VALUES)


@kernel
def _part_bits_kernel(
    records,  # [nnz, RECORD_WIDTH]
    flatten_ids,  # [M] int32
    keys,  # [M] int16 or int32
    end,  # [1] int32, number of intersections, at most n
    words,  # [parts, n_words] int32, output
    counts,  # [parts, n_words] int32, output
    n: "Int", n_words: "Int", key_bias: "Int", tile_width: "Int", n_tiles: "Int",
    FOOTPRINT: tl.constexpr, RECORD_WIDTH: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr,
    BLOCK: tl.constexpr, LOG2_ALPHA_MIN: tl.constexpr, APPROX: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """One lane per intersection tests which parts of the tile it reaches."""
    ACROSS: tl.constexpr = TILE // WIDTH
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < tl.minimum(tl.load(end), n)
    row = tl.load(flatten_ids + index, mask=mask, other=0)
    tile = (tl.load(keys + index, mask=mask, other=0).to(tl.int32) + key_bias) % n_tiles
    record = load_record(records, row, RECORD_WIDTH, FOOTPRINT.VALUES + OPACITY, APPROX)
    x = (tile % tile_width * TILE).to(record[0].dtype) + 0.5
    y = (tile // tile_width * TILE).to(record[0].dtype) + 0.5
    bound = FOOTPRINT.bound(record, x, y, TILE, LOG2_ALPHA_MIN)
    word = tl.program_id(0) * (BLOCK // WORD) + tl.arange(0, BLOCK // WORD)
    lane = tl.arange(0, WORD)[None, :]
    for part in tl.static_range(ACROSS * (TILE // HEIGHT)):
        reached = FOOTPRINT.reaches(bound, part % ACROSS * WIDTH, part // ACROSS * HEIGHT, WIDTH, HEIGHT)
        reached = mask & reached
        bits = tl.reshape(reached.to(tl.int32), [BLOCK // WORD, WORD]) << lane
        found = tl.sum(bits, 1)
        tl.store(words + part * n_words + word, found, mask=word < n_words)
        tl.store(counts + part * n_words + word, popcount(found, PTX), mask=word < n_words)


@triton.jit
def place_in_list(words, totals, part, n_words, index, PTX: tl.constexpr):
    """Place of an intersection in the lists of a part, and whether it is in one (as 0 or 1)."""
    at = part * n_words + (index >> LOG2_WORD)
    word = tl.load(words + at).to(tl.uint32, bitcast=True)
    following = (word >> (index & (WORD - 1)).to(tl.uint32)).to(tl.int32, bitcast=True)
    return tl.load(totals + at) - popcount(following, PTX), following & 1


@kernel
def _part_offsets_kernel(
    isect_offsets,  # [tiles + 1] int32
    words,  # [parts, n_words] int32
    totals,  # [parts, n_words] int32
    offsets,  # [parts * tiles + 1] int32, output
    n: "Int", n_words: "Int", tiles: "Int",
    BLOCK: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """One lane per list, and one for the end of the last."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.minimum(index, n - 2) // tiles
    first = tl.load(isect_offsets + tl.minimum(index, n - 1) - part * tiles)
    place, _ = place_in_list(words, totals, part, n_words, first, PTX)
    tl.store(offsets + index, place, mask=index < n)


@triton.jit
def places_in_lists(words, totals, n_words, index, PARTS: tl.constexpr, PTX: tl.constexpr):
    """What ``place_in_list`` returns, for each part. A tile that is one part lists all, and has no ``words``.

    Computed before anything is stored, so that the loads of all parts overlap.
    """
    if words is None:
        return (index,), (tl.full(index.shape, 1, tl.int32),)
    else:
        places = ()
        reached = ()
        for part in tl.static_range(PARTS):
            place, is_listed = place_in_list(words, totals, part, n_words, index, PTX)
            places = places + (place,)
            reached = reached + (is_listed,)
        return places, reached


@triton.jit
def store_margins(entries, index, n_entries):
    """Stores entries of row 0 before and behind all lists, in the first program."""
    if tl.program_id(0) == 0:
        place = tl.where(index < MARGIN, index, n_entries + index)
        tl.store(entries + place, tl.zeros_like(place).to(entries.dtype.element_ty), mask=index < 2 * MARGIN)


@kernel
def _part_lists_kernel(
    values,  # [M] int32
    places_by_gaussian,  # [M] int32, see ``GaussianMajor``, or None
    words,  # [parts, n_words] int32
    totals,  # [parts, n_words] int32
    listed,  # [MARGIN + K + MARGIN] int32, or with places int64, output
    n: "Int", n_words: "Int", n_entries: "Int",
    PARTS: tl.constexpr, BLOCK: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Lists a value of each intersection, below its place, for each part that it reaches. One lane per intersection."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = tl.minimum(index, n - 1)  # loads need no mask
    value = tl.load(values + inside)
    if places_by_gaussian is not None:
        value = tl.load(places_by_gaussian + inside).to(tl.int64) << 32 | value.to(tl.int64)
    places, reached = places_in_lists(words, totals, n_words, inside, PARTS, PTX)
    for part in tl.static_range(PARTS):
        tl.store(listed + MARGIN + places[part], value, mask=(index < n) & (reached[part] != 0))
    store_margins(listed, index, n_entries)


def pack_records(splats: Splats, settings: CompositingSettings, large: Tensor | None = None) -> Tensor:
    """Packs projected Gaussians with their colors and depths.

    Args:
        large: [nnz] bool, output: whether a Gaussian may touch more than ``LARGE`` tiles. It does not depend on bands.

    Returns:
        [nnz, width], see ``Footprint``; ``width`` is a multiple of 4, so that rows are aligned.
    """
    footprint = FOOTPRINTS[settings.footprint]
    n_rows, n_colors = splats.opacities.numel(), splats.n_colors
    width = -(-(footprint.VALUES + OPACITY.value + splats.n_features) // 4) * 4
    records = splats.means2d.new_empty(n_rows, width)
    launch_elementwise(
        _pack_kernel,
        n_rows,
        BLOCK,
        means2d=splats.means2d,
        shapes=splats.conics,
        opacities=splats.opacities,
        colors=splats.colors,
        depths=splats.depths,
        records=records,
        large=large,
        n_rows=n_rows,
        color_stride=0 if splats.colors is None else splats.colors.stride(0),
        FOOTPRINT=footprint,
        COLORS=n_colors,
        WIDTH=width,
        TILE=settings.tile_size,
        ALPHA_MAX=settings.numerics.alpha_max,
        ALPHA_MIN=ALPHA_MIN,
        WIDE=approximate(records),
    )
    return records


def list_parts(records: Tensor, band: Band, n_features: int, has_ends: bool) -> PartLists:
    """Lists the Gaussians that reach each part of the tiles of a band.

    Reads the number of entries from the device, unless intersections have a capacity. Then there is room for
    ``entries_per_intersection`` entries for each, and lists are empty if they need more.

    Args:
        records: [nnz, width] of ``pack_records``.
        band: Its lists longer than ``CUT`` chunks are cut.
        n_features: D, for the size of ``chunk_colors``.
        has_ends: Whether ``ends`` is allocated, for the forward pass to write.
    """
    intersections, chunk = band.intersections, band.shape.chunk
    offsets, flatten_ids, needed = intersections.isect_offsets, intersections.flatten_ids, intersections.needed
    n = flatten_ids.numel()
    if n == 0:
        offsets = offsets.new_zeros(band.parts * band.n_tiles + 1)
        return PartLists(0, flatten_ids, offsets, ends=torch.zeros_like(offsets[1:]) if has_ends else None)
    words, totals = None, None
    if band.parts > 1:
        words, totals = _part_bits(records, band)
        offsets = _part_offsets(offsets, words, totals, band)
    chunk_starts, totals_of_chunks = count_chunks(offsets, chunk) if n > CUT * chunk else (None, None)
    n_entries, n_chunks = n, 0
    if needed is not None:
        n_entries = n * entries_per_intersection(band.parts)
        n_chunks = most_chunks(n_entries, chunk)
    elif totals_of_chunks is not None:
        n_chunks, together = totals_of_chunks.tolist()
        n_entries = (together - n_chunks) % 2**32  # the sum may exceed int32
    elif band.parts > 1:
        n_entries = int(offsets[-1])
    if words is None or totals is None:
        ids = _with_margins(flatten_ids)
    else:
        ids = list_values(flatten_ids, None, words, totals, n_entries, padded=needed is not None)
    ends = None
    if has_ends:
        # What is behind the last intersection has a tile behind the last one, whose end is read and not used.
        allocate = torch.empty_like if needed is None else torch.zeros_like
        ends = allocate(offsets)[:-1]
    lists = PartLists(n_entries, ids, offsets, words, totals, ends)
    return lists if chunk_starts is None else cut_lists(lists, chunk_starts, n_chunks, records, n_features, band.shape)


def entries_per_intersection(parts: int) -> int:
    """Returns the entries of lists that there is room for per intersection of a capacity."""
    return max(parts // 2, 1)


def list_values(
    values: Tensor, places: Tensor | None, words: Tensor, totals: Tensor, n_entries: int, *, padded: bool
) -> Tensor:
    """Lists a value [M] of each intersection for each part that it reaches. [K] int32

    Args:
        values: [M] int32, not negative.
        places: [M] int32, or None. With places, results are int64, with the place in the high 32 bits.
        n_entries: K, or more if padded: then zeros follow.
    """
    allocate = torch.zeros if padded else torch.empty
    dtype = torch.int32 if places is None else torch.int64
    listed = allocate(n_entries + 2 * MARGIN.value, dtype=dtype, device=values.device)
    launch_elementwise(
        _part_lists_kernel,
        values.numel(),
        BLOCK,
        values=values,
        places_by_gaussian=places,
        words=words,
        totals=totals,
        listed=listed,
        n=values.numel(),
        n_words=words.shape[1],
        n_entries=n_entries,
        PARTS=words.shape[0],
        PTX=has_ptx(values),
    )
    return listed[MARGIN.value : -MARGIN.value]


def _with_margins(entries: Tensor) -> Tensor:
    """A copy of entries, with ``MARGIN`` entries of row 0 before and after it in memory."""
    return torch.nn.functional.pad(entries, (MARGIN.value, MARGIN.value))[MARGIN.value : -MARGIN.value]


def tile_keys(intersections: Intersections) -> Tensor:
    """``keys`` of :class:`Intersections`; computed with its ``key_bias`` if unknown."""
    isect_offsets, flatten_ids = intersections.isect_offsets, intersections.flatten_ids
    if intersections.keys is not None:
        return intersections.keys
    index = torch.arange(flatten_ids.numel(), device=flatten_ids.device)
    keys = torch.searchsorted(isect_offsets, index, right=True, out_int32=True)
    return keys + (intersections.first_tile - 1 - intersections.key_bias)


def _part_bits(records: Tensor, band: Band) -> tuple[Tensor, Tensor]:
    """``words`` and ``totals`` of :class:`PartLists`."""
    intersections = band.intersections
    flatten_ids = intersections.flatten_ids
    n = flatten_ids.numel()
    n_words = n // WORD.value + 1  # one more than needed, so that the end of the last list is inside
    words = flatten_ids.new_empty(band.parts, n_words)
    counts = torch.empty_like(words)
    launch_elementwise(
        _part_bits_kernel,
        n_words * WORD.value,
        BLOCK,
        WORD.value,
        records=records,
        flatten_ids=flatten_ids,
        keys=tile_keys(intersections),
        end=intersections.isect_offsets[-1:],
        words=words,
        counts=counts,
        n=n,
        n_words=n_words,
        key_bias=intersections.key_bias,
        tile_width=band.grid.tile_width,
        n_tiles=band.grid.tiles_per_image,
        FOOTPRINT=band.footprint,
        RECORD_WIDTH=records.shape[1],
        TILE=band.grid.tile_size,
        WIDTH=band.shape.width,
        HEIGHT=band.shape.height,
        LOG2_ALPHA_MIN=math.log2(ALPHA_MIN),
        APPROX=approximate(records),
        PTX=has_ptx(records),
    )
    totals = counts.flatten().cumsum(0, dtype=torch.int32)
    if intersections.needed is not None:
        entries = entries_per_intersection(band.parts)
        totals = limit_starts(totals, n * entries, intersections.needed, 2, words, entries)
    return words, totals.view_as(counts)


def _part_offsets(isect_offsets: Tensor, words: Tensor, totals: Tensor, band: Band) -> Tensor:
    """``offsets`` of :class:`PartLists`."""
    offsets = isect_offsets.new_empty(band.parts * band.n_tiles + 1)
    launch_elementwise(
        _part_offsets_kernel,
        offsets.numel(),
        BLOCK,
        isect_offsets=isect_offsets,
        words=words,
        totals=totals,
        offsets=offsets,
        n=offsets.numel(),
        n_words=words.shape[1],
        tiles=band.n_tiles,
        PTX=has_ptx(words),
    )
    return offsets
