"""Parts of tiles: which of a tile's Gaussians reach which of its parts, as one list per part.

Compositing renders a tile in parts. Each part has a list of its own: the tile's Gaussians whose alpha may reach
1/255 at one of the part's pixels, front to back as in the tile, so nothing is sorted again. A Gaussian that a
part's list leaves out is below 1/255 on all of its pixels, so images keep their bits.

Three kernels make the lists. The first tests parts and writes one bit per (intersection, part), in words of 32
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

from ...config import ALPHA_MIN
from ...data import CompositingSettings, Intersections, PartLists, TileGrid
from ..device_math import popcount
from ..launch import (
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
from .footprints import FOOTPRINTS
from .pixel_math import OPACITY
from .records import load_record

BLOCK = 128

WORD = tl.constexpr(32)
"""Intersections of a word of bits."""
LOG2_WORD = tl.constexpr(WORD.value.bit_length() - 1)

MARGIN = tl.constexpr(4)
"""Entries of row 0 before and behind all lists. Walks load up to two of them ahead and do not composite them; four of
int32 take 16 bytes, so lists stay aligned."""

CUT = 1.5
"""Lists longer than that many chunks are cut."""


@kernel
def _part_bits_kernel(
    records,  # [nnz, RECORD_WIDTH]
    flatten_ids,  # [M] int32
    keys,  # [M] int16 or int32
    words,  # [parts, n_words] int32, output
    counts,  # [parts, n_words] int32, output
    n: "Int", n_words: "Int", key_bias: "Int", tile_width: "Int", n_tiles: "Int",
    FOOTPRINT: tl.constexpr, RECORD_WIDTH: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr,
    BLOCK: tl.constexpr, LOG2_ALPHA_MIN: tl.constexpr, APPROX: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """One lane per intersection tests which parts of the tile it reaches."""
    ACROSS: tl.constexpr = TILE // WIDTH
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
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
    """Returns the arguments of kernels that composite lists and their chunks."""
    return {
        "offsets": lists.offsets,
        "chunk_starts": lists.chunk_starts,
        "chunk_lists": lists.chunk_lists,
        "chunk_transmittances": lists.chunk_transmittances,
        "chunk_colors": lists.chunk_colors,
        "n_chunks": lists.n_chunks,
    }


def walk_arguments(tensor: Tensor, shape: PartShape, settings: CompositingSettings) -> dict[str, Any]:
    """Returns the arguments, and compiler options, of kernels that walk the lists of parts."""
    return {
        "FOOTPRINT": FOOTPRINTS[settings.footprint],
        "CHUNK": shape.chunk,
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
    settings: CompositingSettings,
    n_features: int,
    has_ends: bool,
) -> PartLists:
    """Lists the Gaussians that reach each part of the tiles of a band. Reads the number of entries from the device.

    Args:
        records: [nnz, width] of ``pack_records``.
        intersections: Of the band.
        grid: The tiles of the images.
        shape: Size of the parts; lists longer than ``CUT`` chunks are cut.
        n_features: D, for the size of ``chunk_colors``.
        has_ends: Whether ``ends`` is allocated, for the forward pass to write.
    """
    isect_offsets, flatten_ids = intersections.isect_offsets, intersections.flatten_ids
    parts = grid.tile_size**2 // (shape.width * shape.height)
    if flatten_ids.numel() == 0:
        offsets = isect_offsets.new_zeros(parts * (isect_offsets.numel() - 1) + 1)
        return PartLists(0, flatten_ids, offsets, ends=torch.zeros_like(offsets[1:]) if has_ends else None)
    if parts == 1:
        lists = PartLists(flatten_ids.numel(), _with_margins(flatten_ids), isect_offsets)
        chunk_starts = _chunk_starts(isect_offsets, shape.chunk)
        n_chunks = int(chunk_starts[-1])
    else:
        words, totals = _part_bits(records, intersections, grid, shape, settings)
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
        chunk_starts = _chunk_starts(offsets, shape.chunk)
        n_entries, n_chunks = torch.stack([offsets[-1], chunk_starts[-1]]).tolist()
        lists = PartLists(n_entries, list_values(flatten_ids, words, totals, n_entries), offsets, words, totals)
    if has_ends:
        lists = lists._replace(ends=torch.empty_like(lists.offsets[1:]))
    if n_chunks == 0:
        return lists
    indices = torch.arange(chunk_starts.numel() - 1, dtype=torch.int32, device=chunk_starts.device)
    pixels = shape.width * shape.height
    return lists._replace(
        chunk_starts=chunk_starts,
        chunk_lists=indices.repeat_interleave(chunk_starts.diff(), output_size=n_chunks),
        chunk_transmittances=records.new_empty(n_chunks, pixels),
        chunk_colors=records.new_empty(n_chunks, n_features, pixels),
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


def _chunk_starts(offsets: Tensor, chunk: int) -> Tensor:
    """First chunk of each list, and the number of chunks; lists that are not cut have none. [lists + 1] int32"""
    lengths = offsets.diff()
    n_chunks = torch.where(lengths > CUT * chunk, (lengths + (chunk - 1)) // chunk, 0)
    return torch.nn.functional.pad(n_chunks.cumsum(0, dtype=torch.int32), (1, 0))


def tile_keys(intersections: Intersections) -> Tensor:
    """``keys`` of :class:`Intersections`; computed if unknown, with the bias that is then given."""
    isect_offsets, flatten_ids = intersections.isect_offsets, intersections.flatten_ids
    if intersections.keys is not None:
        return intersections.keys
    index = torch.arange(flatten_ids.numel(), device=flatten_ids.device)
    keys = torch.searchsorted(isect_offsets, index, right=True, out_int32=True)
    return keys + (intersections.first_tile - 1 - intersections.key_bias)


def _part_bits(
    records: Tensor, intersections: Intersections, grid: TileGrid, shape: PartShape, settings: CompositingSettings
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
        FOOTPRINT=FOOTPRINTS[settings.footprint],
        RECORD_WIDTH=records.shape[1],
        TILE=grid.tile_size,
        WIDTH=shape.width,
        HEIGHT=shape.height,
        LOG2_ALPHA_MIN=math.log2(ALPHA_MIN),
        APPROX=approximate(records),
        PTX=has_ptx(records),
    )
    return words, counts.flatten().cumsum(0, dtype=torch.int32).view_as(counts)
