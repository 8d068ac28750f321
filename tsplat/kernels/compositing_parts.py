"""Parts of tiles: which of a tile's Gaussians reach which of its parts, as one list per part.

Compositing renders a tile in parts. Each part has a list of its own: the tile's Gaussians whose ellipse where alpha is
1/255 meets the part's pixel centers, in the order of the tile's list, so nothing is sorted again. A Gaussian that a
part's list leaves out is below 1/255 on all of its pixels, so images keep their bits.

Three kernels make the lists. The first tests ellipses and writes one bit per (intersection, part), in words of 32
intersections. With the running total of set bits at each word, the place of an intersection in a list is known, and the
second and the third write where lists begin and what they hold. Indices are int32, as a band has at most 2^28
intersections.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..config import ALPHA_MIN
from ..data import CompositingSettings, Intersections, PartLists, TileGrid
from .compositing_records import load_record
from .device_math import popcount
from .launch import (
    Int,
    PartShape,
    approximate,
    has_ptx,
    is_amd,
    kernel,
    launch_elementwise,
    walk_options,
    walk_unroll,
)

BLOCK = 128

WORD = tl.constexpr(32)
"""Intersections of a word of bits."""
LOG2_WORD = tl.constexpr(WORD.value.bit_length() - 1)

MARGIN = tl.constexpr(4)
"""Entries of row 0 before and behind all lists. Walks load up to two of them ahead and do not composite them; four of
int32 take 16 bytes, so lists stay aligned."""

CUT = 1.5
"""Lists longer than that many segments are cut."""


@kernel
def _part_bits_kernel(
    records,  # [nnz, RECORD_WIDTH]
    flatten_ids,  # [M] int32
    keys,  # [M] int16 or int32
    words,  # [parts, n_words] int32, output
    counts,  # [parts, n_words] int32, output
    n: "Int", n_words: "Int", key_bias: "Int", tile_width: "Int", n_tiles: "Int",
    RECORD_WIDTH: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr, BLOCK: tl.constexpr,
    LOG2_ALPHA_MIN: tl.constexpr, APPROX: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """One lane per intersection tests the ellipse against all parts of the tile."""
    ACROSS: tl.constexpr = TILE // WIDTH
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
    row = tl.load(flatten_ids + index, mask=mask, other=0)
    tile = (tl.load(keys + index, mask=mask, other=0).to(tl.int32) + key_bias) % n_tiles
    record = load_record(records, row, RECORD_WIDTH, 6, APPROX)
    # log2 of alpha is record[5] - (a x^2 + b x y + c y^2).
    a = -record[2]
    b = -record[3]
    c = -record[4]
    left = (tile % tile_width * TILE).to(a.dtype) + 0.5 - record[0]
    top = (tile // tile_width * TILE).to(a.dtype) + 0.5 - record[1]
    # Room for the rounding of this test and of compositing, which grows with the terms that cancel.
    far_x = tl.maximum(tl.abs(left), tl.abs(left + (TILE - 1)))
    far_y = tl.maximum(tl.abs(top), tl.abs(top + (TILE - 1)))
    terms = a * far_x * far_x + tl.abs(b) * far_x * far_y + c * far_y * far_y
    level = record[5] - LOG2_ALPHA_MIN + 1e-3 + terms * 1e-6
    # Conics that are valid, but indefinite by more than rounding, have no minimum to test.
    level = tl.where(b * b > 4.000002 * a * c, float("inf"), level)
    slope_x = tl.where(a > 0.0, -0.5 * b / tl.where(a > 0.0, a, 1.0), 0.0)
    slope_y = tl.where(c > 0.0, -0.5 * b / tl.where(c > 0.0, c, 1.0), 0.0)
    word = tl.program_id(0) * (BLOCK // WORD) + tl.arange(0, BLOCK // WORD)
    lane = tl.arange(0, WORD)[None, :]
    for part in tl.static_range(ACROSS * (TILE // HEIGHT)):
        low_x = left + part % ACROSS * WIDTH
        high_x = low_x + (WIDTH - 1)
        low_y = top + part // ACROSS * HEIGHT
        high_y = low_y + (HEIGHT - 1)
        # The minimum of the form over a rectangle is on one of the two lines through it nearest to the mean.
        x = tl.minimum(tl.maximum(low_x, 0.0), high_x)
        y = tl.minimum(tl.maximum(x * slope_y, low_y), high_y)
        on_column = (a * x + b * y) * x + c * y * y
        y = tl.minimum(tl.maximum(low_y, 0.0), high_y)
        x = tl.minimum(tl.maximum(y * slope_x, low_x), high_x)
        on_row = (a * x + b * y) * x + c * y * y
        reached = mask & (tl.minimum(on_column, on_row) <= level)
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
    """What ``place_in_list`` returns for each part; a tile that is one part lists all, without ``words``.

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
    values,  # [M] integers
    words,  # [parts, n_words] int32
    totals,  # [parts, n_words] int32
    listed,  # [MARGIN + K + MARGIN] integers, output
    n: "Int", n_words: "Int", n_entries: "Int",
    PARTS: tl.constexpr, BLOCK: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Lists a value of each intersection for each part that it reaches. One lane per intersection."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = tl.minimum(index, n - 1)  # loads need no mask
    value = tl.load(values + inside)
    places, reached = places_in_lists(words, totals, n_words, inside, PARTS, PTX)
    for part in tl.static_range(PARTS):
        tl.store(listed + MARGIN + places[part], value, mask=(index < n) & (reached[part] != 0))
    store_margins(listed, index, n_entries)


def part_arguments(
    intersections: Intersections, grid: TileGrid, shape: PartShape, settings: CompositingSettings
) -> dict[str, int]:
    """Returns the arguments of kernels that say which pixels the parts of a band have."""
    return {
        "tiles": intersections.isect_offsets.numel() - 1,
        "first_tile": intersections.first_tile,
        "width": settings.width,
        "height": settings.height,
        "tile_width": grid.tile_width,
        "n_tiles": grid.tiles_per_image,
        "TILE": grid.tile_size,
        "WIDTH": shape.width,
        "HEIGHT": shape.height,
    }


def list_arguments(lists: PartLists) -> dict[str, Tensor | int | None]:
    """Returns the arguments of kernels that composite lists and their segments."""
    return {
        "offsets": lists.offsets,
        "segment_starts": lists.segment_starts,
        "segment_lists": lists.segment_lists,
        "segment_transmittances": lists.segment_transmittances,
        "segment_colors": lists.segment_colors,
        "n_segments": lists.n_segments,
    }


def walk_arguments(tensor: Tensor, shape: PartShape) -> dict[str, Any]:
    """Returns the arguments, and compiler options, of kernels that walk the lists of parts."""
    return {
        "SEGMENT": shape.segment,
        "UNROLL": walk_unroll(tensor),
        "LOG2_ALPHA_MIN": math.log2(ALPHA_MIN),
        "APPROX": approximate(tensor),
        "AMD": is_amd(tensor),
        **walk_options(tensor),
    }


def list_parts(
    records: Tensor,
    intersections: Intersections,
    grid: TileGrid,
    shape: PartShape,
    n_features: int,
    has_ends: bool,
) -> PartLists:
    """Lists the Gaussians that reach each part of the tiles of a band. Reads the number of entries from the device.

    Args:
        records: [nnz, width] of ``pack_records``.
        intersections: Of the band.
        grid: The tiles of the images.
        shape: Size of the parts; lists longer than ``CUT`` segments are cut.
        n_features: D, for the size of ``segment_colors``.
        has_ends: Whether ``ends`` is allocated, for the forward pass to write.
    """
    isect_offsets, flatten_ids = intersections.isect_offsets, intersections.flatten_ids
    parts = grid.tile_size**2 // (shape.width * shape.height)
    if flatten_ids.numel() == 0:
        offsets = isect_offsets.new_zeros(parts * (isect_offsets.numel() - 1) + 1)
        return PartLists(0, flatten_ids, offsets, ends=torch.zeros_like(offsets[1:]) if has_ends else None)
    if parts == 1:
        lists = PartLists(flatten_ids.numel(), _with_margins(flatten_ids), isect_offsets)
        segment_starts = _segment_starts(isect_offsets, shape.segment)
        n_segments = int(segment_starts[-1])
    else:
        words, totals = _part_bits(records, intersections, grid, shape)
        n_words, tiles = words.shape[1], isect_offsets.numel() - 1
        offsets = isect_offsets.new_empty(parts * tiles + 1)
        launch_elementwise(
            _part_offsets_kernel,
            offsets.numel(),
            BLOCK,
            isect_offsets=isect_offsets,
            words=words,
            totals=totals,
            offsets=offsets,
            n=offsets.numel(),
            n_words=n_words,
            tiles=tiles,
            PTX=has_ptx(records),
        )
        segment_starts = _segment_starts(offsets, shape.segment)
        n_entries, n_segments = torch.stack([offsets[-1], segment_starts[-1]]).tolist()
        lists = PartLists(n_entries, list_values(flatten_ids, words, totals, n_entries), offsets, words, totals)
    if has_ends:
        lists = lists._replace(ends=torch.empty_like(lists.offsets[1:]))
    if n_segments == 0:
        return lists
    indices = torch.arange(segment_starts.numel() - 1, dtype=torch.int32, device=segment_starts.device)
    pixels = shape.width * shape.height
    return lists._replace(
        segment_starts=segment_starts,
        segment_lists=indices.repeat_interleave(segment_starts.diff(), output_size=n_segments),
        segment_transmittances=records.new_empty(n_segments, pixels),
        segment_colors=records.new_empty(n_segments, n_features, pixels),
    )


def list_values(values: Tensor, words: Tensor, totals: Tensor, n_entries: int) -> Tensor:
    """Lists a value [M] of each intersection for each part that it reaches. [K]"""
    listed = values.new_empty(n_entries + 2 * MARGIN.value)
    launch_elementwise(
        _part_lists_kernel,
        values.numel(),
        BLOCK,
        values=values,
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
    """A copy of entries in whose memory ``MARGIN`` entries of row 0 stand before and behind."""
    return torch.nn.functional.pad(entries, (MARGIN.value, MARGIN.value))[MARGIN.value : -MARGIN.value]


def _segment_starts(offsets: Tensor, segment: int) -> Tensor:
    """First segment of each list, and the number of segments; lists that are not cut have none. [lists + 1] int32"""
    lengths = offsets.diff()
    n_segments = torch.where(lengths > CUT * segment, (lengths + (segment - 1)) // segment, 0)
    return torch.nn.functional.pad(n_segments.cumsum(0, dtype=torch.int32), (1, 0))


def tile_keys(intersections: Intersections) -> Tensor:
    """``keys`` of :class:`Intersections`; computed if unknown, with the bias that is then given."""
    isect_offsets, flatten_ids = intersections.isect_offsets, intersections.flatten_ids
    if intersections.keys is not None:
        return intersections.keys
    index = torch.arange(flatten_ids.numel(), device=flatten_ids.device)
    keys = torch.searchsorted(isect_offsets, index, right=True, out_int32=True)
    return keys + (intersections.first_tile - 1 - intersections.key_bias)


def _part_bits(
    records: Tensor, intersections: Intersections, grid: TileGrid, shape: PartShape
) -> tuple[Tensor, Tensor]:
    """``words`` and ``totals`` of :class:`PartLists`."""
    flatten_ids = intersections.flatten_ids
    n = flatten_ids.numel()
    n_words = n // WORD.value + 1  # one more than needed, so that the end of the last list is inside
    words = flatten_ids.new_empty(grid.tile_size**2 // (shape.width * shape.height), n_words)
    counts = torch.empty_like(words)
    launch_elementwise(
        _part_bits_kernel,
        n_words * WORD.value,
        BLOCK,
        WORD.value,
        records=records,
        flatten_ids=flatten_ids,
        keys=tile_keys(intersections),
        words=words,
        counts=counts,
        n=n,
        n_words=n_words,
        key_bias=intersections.key_bias,
        tile_width=grid.tile_width,
        n_tiles=grid.tiles_per_image,
        RECORD_WIDTH=records.shape[1],
        TILE=grid.tile_size,
        WIDTH=shape.width,
        HEIGHT=shape.height,
        LOG2_ALPHA_MIN=math.log2(ALPHA_MIN),
        APPROX=approximate(records),
        PTX=has_ptx(records),
    )
    return words, counts.flatten().cumsum(0, dtype=torch.int32).view_as(counts)
