"""Lists of parts: the Gaussians to composite in each part of a tile.

The list of a part has the Gaussians of the tile whose alpha may reach 1/255 at a pixel of the part. It keeps the order
of the tile, front to back, so nothing is sorted again. The other Gaussians of the tile are below 1/255 at all pixels of
the part, so images have the same bits as without parts.

Two or three kernels make the lists. The first one tests parts, and writes one bit per (intersection, part), in words of
32 intersections. The prefix sum of the number of set bits per word gives the index of each intersection in a list. The
last kernel writes the start and the entries of each list. If lists may be cut, a kernel between them writes the starts,
and the number of chunks of each list. Indices are int32, as a band has at most 2^28 intersections.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...config import ALPHA_MIN, Size
from ...data import NO_LIMIT, Intersections, Limit, PartLists
from ..device_math import popcount, search_starts
from ..launch import UNREAD_MAX, Int, has_fast_fp32, has_ptx, is_compiled_for_cpu, kernel
from ..scans import prefix_sums
from . import tuning
from .beams import find_beams, load_box, load_frame
from .records import OPACITY_VALUES, load_record
from .walk_arguments import BandTask

BLOCK = 128

WORD = tl.constexpr(32)
"""Number of intersections whose bits are in one word."""
LOG2_WORD = tl.constexpr(WORD.value.bit_length() - 1)

CUT = 1.5
"""Lists longer than this many chunks are cut."""

ROUNDED_UP = 1 + 1 / CUT
"""Upper bound of the number of chunks, relative to entries / chunk size: each cut list may round up by one."""

PADDING = tl.constexpr(4)
"""Number of entries of row 0 before the first and after the last list. Walks load up to two entries ahead, and do not
composite these. Four int32 take 16 bytes, so lists stay aligned."""


@kernel
def _part_bits_kernel(
    records,  # [nnz, RECORD_WIDTH]
    flatten_ids,  # [M] int32
    keys,  # [M] int16 or int32
    isect_offsets,  # [tiles + 1] int32, the last one is the number of intersections, at most n
    bitmasks,  # [parts, n_words] int32, output
    counts,  # [parts n_words] int32, output
    beams,  # [tiles, values], see `beams`, or None
    n: "Int", n_words: "Int", key_bias: "Int", tile_width: "Int", tiles_per_image: "Int", n_tiles: "Int",
    FOOTPRINT: tl.constexpr, RECORD_WIDTH: tl.constexpr, PART: tl.constexpr, BLOCK: tl.constexpr,
    LOG2_ALPHA_MIN: tl.constexpr, FAST: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Tests which parts of its tile each intersection reaches. One lane per intersection.

    key + ``key_bias`` is the flat tile in all images, or with beams in the band.
    """
    TILE: tl.constexpr = PART.TILE
    WIDTH: tl.constexpr = PART.WIDTH
    HEIGHT: tl.constexpr = PART.HEIGHT
    ACROSS: tl.constexpr = TILE // WIDTH
    PARTS: tl.constexpr = ACROSS * (TILE // HEIGHT)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < tl.minimum(tl.load(isect_offsets + n_tiles), n)
    row = tl.load(flatten_ids + index, mask=mask, other=0)
    key = tl.load(keys + index, mask=mask, other=0).to(tl.int32) + key_bias
    tile = key % tiles_per_image
    record = load_record(records, row, RECORD_WIDTH, FOOTPRINT.VALUES + OPACITY_VALUES, FAST)
    if FOOTPRINT.BEAMS:
        bound = FOOTPRINT.bound(record, load_frame(beams, key, mask, PARTS), LOG2_ALPHA_MIN)
    else:
        x = (tile % tile_width * TILE).to(record[0].dtype) + 0.5
        y = (tile // tile_width * TILE).to(record[0].dtype) + 0.5
        bound = FOOTPRINT.bound(record, x, y, TILE, LOG2_ALPHA_MIN)
    word = tl.program_id(0) * (BLOCK // WORD) + tl.arange(0, BLOCK // WORD)
    lane = tl.arange(0, WORD)[None, :]
    for part in tl.static_range(PARTS):
        if FOOTPRINT.BEAMS:
            reached = FOOTPRINT.reaches(bound, load_box(beams, key, part, mask, PARTS))
        else:
            reached = FOOTPRINT.reaches(bound, part % ACROSS * WIDTH, part // ACROSS * HEIGHT, WIDTH, HEIGHT)
        reached = mask & reached
        bits = tl.sum(tl.reshape(reached.to(tl.int32), [BLOCK // WORD, WORD]) << lane, 1)
        tl.store(bitmasks + part * n_words + word, bits, mask=word < n_words)
        tl.store(counts + part * n_words + word, popcount(bits, PTX), mask=word < n_words)


@triton.jit
def entry_index(bitmasks, bit_counts, part, n_words, index, PTX: tl.constexpr):
    """Returns the entry of an intersection in the list of a part, an index among all entries, and 1 if it has one.

    If it has none, the second result is 0, and the first is the entry of the next intersection that has one.
    """
    word_index = part * n_words + (index >> LOG2_WORD)
    word = tl.load(bitmasks + word_index).to(tl.uint32, bitcast=True)
    following = (word >> (index & (WORD - 1)).to(tl.uint32)).to(tl.int32, bitcast=True)
    return tl.load(bit_counts + word_index) - popcount(following, PTX), following & 1


@triton.jit
def _first_entry(isect_offsets, bitmasks, bit_counts, index, n_lists, n_words, n_tiles, PTX: tl.constexpr):
    """Returns the first entry of a list, or the number of entries for the index after the last list."""
    index = tl.minimum(index, n_lists)
    part = tl.minimum(index, n_lists - 1) // n_tiles
    first = tl.load(isect_offsets + index - part * n_tiles)
    if bitmasks is not None:
        first, _ = entry_index(bitmasks, bit_counts, part, n_words, first, PTX)
    return first


@kernel
def _list_sizes_kernel(
    isect_offsets,  # [tiles + 1] int32
    bitmasks,  # [parts, n_words] int32, or None if a tile is one part
    bit_counts,  # [parts n_words] int32, or None
    offsets,  # [lists + 1] int32, output, or None if they are isect_offsets
    counts,  # [1 + lists + 1] int32, output: 0, chunks of each list, number of entries
    length_steps,  # [lists] int16, length of each list in steps of LENGTH_STEP, output, or None
    n_lists: "Int", n_words: "Int", n_tiles: "Int",
    CHUNK: tl.constexpr, UNCUT_MAX: tl.constexpr, LENGTH_STEP: tl.constexpr, LENGTH_STEPS_MAX: tl.constexpr,
    BLOCK: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Finds the start of each list, and counts its chunks. Lists of up to UNCUT_MAX entries have no chunks.

    For the prefix sum, the counts are preceded by a zero and followed by the number of entries. One lane per list, and
    one for the end of the last list.
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = _first_entry(isect_offsets, bitmasks, bit_counts, index, n_lists, n_words, n_tiles, PTX)
    if offsets is not None:
        tl.store(offsets + index, first, mask=index <= n_lists)
    length = _first_entry(isect_offsets, bitmasks, bit_counts, index + 1, n_lists, n_words, n_tiles, PTX) - first
    count = tl.where(length > UNCUT_MAX, (length + (CHUNK - 1)) // CHUNK, 0)
    tl.store(counts + 1 + index, tl.where(index < n_lists, count, first), mask=index <= n_lists)
    tl.store(counts + index, index * 0, mask=index == 0)
    if length_steps is not None:
        tl.store(
            length_steps + index, tl.minimum(length // LENGTH_STEP, LENGTH_STEPS_MAX).to(tl.int16), mask=index < n_lists
        )


@triton.jit
def entry_indices(bitmasks, bit_counts, n_words, index, PARTS: tl.constexpr, PTX: tl.constexpr):
    """Returns the results of ``entry_index`` for each part. Without ``bitmasks``, a tile is one part and lists all.

    Everything is computed before anything is stored, so that the loads of all parts overlap.
    """
    if bitmasks is None:
        return (index,), (tl.full(index.shape, 1, tl.int32),)
    else:
        indices = ()
        is_listed = ()
        for part in tl.static_range(PARTS):
            entry, has_entry = entry_index(bitmasks, bit_counts, part, n_words, index, PTX)
            indices = indices + (entry,)
            is_listed = is_listed + (has_entry,)
        return indices, is_listed


@triton.jit
def number_of_entries(isect_offsets, bit_counts, n_words, n_tiles, PARTS: tl.constexpr):
    """Returns the number of entries of all lists."""
    if bit_counts is None:
        return tl.load(isect_offsets + n_tiles)
    else:
        return tl.load(bit_counts + (PARTS * n_words - 1))


@triton.jit
def store_padding(entries, index, n_entries):
    """Stores the PADDING entries of row 0 before and after all lists, in the first program."""
    if tl.program_id(0) == 0:
        padding = tl.where(index < PADDING, index, n_entries + index)
        tl.store(entries + padding, tl.zeros_like(padding).to(entries.dtype.element_ty), mask=index < 2 * PADDING)


@kernel
def _part_lists_kernel(
    rows,  # [M] int32
    bitmasks,  # [parts, n_words] int32, or None if a tile is one part
    bit_counts,  # [parts n_words] int32, or None
    entries,  # [PADDING + n_entries + PADDING] int32, output
    isect_offsets,  # [tiles + 1] int32
    offsets,  # [lists + 1] int32, output, or None if they are known
    chunk_starts,  # [lists + 1] int32, or None if no list is cut
    chunk_lists,  # [n_chunks] int32, output, or None
    n: "Int", n_words: "Int", n_lists: "Int", n_chunks: "Int", n_tiles: "Int", search_steps: "Int",
    PARTS: tl.constexpr, BLOCK: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Writes the row of each intersection to the list of each part that it reaches.

    One lane per intersection. The first lanes also find the start of a list and the list of a chunk each. Chunks beyond
    the last one get the last list.
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    safe = tl.minimum(index, n - 1)  # loads need no mask
    row = tl.load(rows + safe)
    indices, is_listed = entry_indices(bitmasks, bit_counts, n_words, safe, PARTS, PTX)
    n_entries = number_of_entries(isect_offsets, bit_counts, n_words, n_tiles, PARTS)
    mask = index < (n if bitmasks is not None else n_entries)
    for part in tl.static_range(PARTS):
        tl.store(entries + PADDING + indices[part], row, mask=mask & (is_listed[part] != 0))
    store_padding(entries, index, n_entries)
    if offsets is not None:
        if tl.program_id(0) * BLOCK <= n_lists:
            first = _first_entry(isect_offsets, bitmasks, bit_counts, index, n_lists, n_words, n_tiles, PTX)
            tl.store(offsets + index, first, mask=index <= n_lists)
    if chunk_lists is not None:
        if tl.program_id(0) * BLOCK < n_chunks:
            list_index = search_starts(chunk_starts, n_lists, tl.minimum(index, n_chunks - 1), search_steps)
            tl.store(chunk_lists + index, list_index, mask=index < n_chunks)


def list_parts(records: Tensor, band: BandTask, n_features: int, has_walk_ends: bool) -> PartLists:
    """Lists the Gaussians that reach each part of the tiles of a band.

    Without capacities, reads the number of entries from the device if it may exceed ``UNREAD_MAX``. With capacities,
    there are ``entries_per_intersection * capacities.entries`` entries; if there are more, all lists are empty. If the
    capacity of chunks is exceeded, no list is cut.

    Args:
        records: [nnz, width], from ``pack_records``.
        band: The band. Lists longer than ``CUT`` chunks are cut.
        n_features: D, for the size of ``chunk_colors``.
        has_walk_ends: Whether to allocate ``walk_ends``, which the forward pass writes.
    """
    intersections = band.intersections
    offsets, flatten_ids = intersections.isect_offsets, intersections.flatten_ids
    capacities, needed = intersections.capacities, intersections.needed
    n, chunk = flatten_ids.numel(), band.shape.chunk
    if n == 0:
        offsets = offsets.new_zeros(band.parts_per_tile * band.n_tiles + 1)
        return PartLists(0, flatten_ids, offsets, walk_ends=torch.zeros_like(offsets[1:]) if has_walk_ends else None)
    bitmasks, bit_counts = _part_bits(records, band) if band.parts_per_tile > 1 else (None, None)
    counts, n_lists, offsets_known = None, band.parts_per_tile * band.n_tiles, bitmasks is None
    launch_order = tuning.part_order(band.parts_per_tile, offsets) if is_compiled_for_cpu(records) else None
    if n > CUT * chunk:
        offsets, counts, length_steps = _list_sizes(offsets, bitmasks, bit_counts, band)
        launch_order = launch_order if length_steps is None else tuning.order_by_length(length_steps)
        offsets_known = True
    elif bitmasks is not None:
        offsets = offsets.new_empty(n_lists + 1)
    chunk_starts, n_chunks, n_entries = None, 0, n * band.parts_per_tile
    if capacities is not None and bitmasks is not None:
        n_entries = capacities.entries * entries_per_intersection(band.parts_per_tile)
    is_read = capacities is None and n_entries > UNREAD_MAX
    if counts is None:
        n_entries = int(bit_counts[-1]) if is_read and bit_counts is not None else n_entries
    elif is_read:
        sums = prefix_sums(counts)  # ``chunk_starts``, then n_chunks + n_entries
        n_chunks, total = sums[-2:].tolist()
        chunk_starts, n_entries = sums[:-1], (total - n_chunks) % 2**32  # the total may exceed int32
    else:
        n_chunks = max_chunks(n_entries, chunk)
        if capacities is not None:
            n_chunks = min(n_chunks, capacities.chunks)
        limit = NO_LIMIT if capacities is None else Limit(needed, Size.CHUNKS, n_chunks)
        chunk_starts = prefix_sums(counts[:-1], limit=limit)
    chunks: dict[str, Tensor] = {}
    if chunk_starts is not None and n_chunks > 0:
        pixels = band.shape.width * band.shape.height
        chunks["chunk_starts"], chunks["chunk_lists"] = chunk_starts, chunk_starts.new_empty(n_chunks)
        chunks["chunk_transmittances"] = records.new_empty(n_chunks, pixels)
        chunks["chunk_colors"] = records.new_empty(n_chunks, n_features, pixels)
    walk_ends = offsets.new_empty(n_lists) if has_walk_ends else None
    lists = PartLists(n_entries, None, offsets, bitmasks, bit_counts, walk_ends, **chunks, launch_order=launch_order)
    return lists._replace(ids=_list_rows(lists, intersections, offsets_known=offsets_known))


def max_chunks(n_entries: int, chunk: int) -> int:
    """Returns an upper bound of the number of chunks of lists with ``n_entries`` in total."""
    return int(n_entries / chunk * ROUNDED_UP)


def entries_per_intersection(parts: int) -> int:
    """Returns the number of entries to allocate per intersection of a capacity."""
    return max(parts // 2, 1)


def _list_rows(lists: PartLists, intersections: Intersections, *, offsets_known: bool) -> Tensor:
    """Writes the entries of all lists, ``ids`` of :class:`PartLists`, and returns them. [n_entries] int32

    Also writes ``chunk_lists`` if lists are cut, and ``offsets`` unless they are known.
    """
    n, n_lists = intersections.flatten_ids.numel(), lists.offsets.numel() - 1
    entries = lists.offsets.new_empty(lists.n_entries + 2 * PADDING.value)
    n_parts, n_words = (1, 0) if lists.bitmasks is None else lists.bitmasks.shape
    _part_lists_kernel.launch_elementwise(
        max(n, lists.n_chunks, 0 if offsets_known else n_lists + 1),
        BLOCK,
        rows=intersections.flatten_ids,
        bitmasks=lists.bitmasks,
        bit_counts=lists.bit_counts,
        entries=entries,
        isect_offsets=intersections.isect_offsets,
        offsets=None if offsets_known else lists.offsets,
        chunk_starts=lists.chunk_starts,
        chunk_lists=lists.chunk_lists,
        n=n,
        n_words=n_words,
        n_lists=n_lists,
        n_chunks=lists.n_chunks,
        n_tiles=n_lists // n_parts,
        search_steps=n_lists.bit_length(),
        PARTS=n_parts,
        PTX=has_ptx(entries),
    )
    return entries[PADDING.value : -PADDING.value]


def _part_bits(records: Tensor, band: BandTask) -> tuple[Tensor, Tensor]:
    """Returns ``bitmasks`` and ``bit_counts`` of :class:`PartLists`."""
    intersections = band.intersections
    flatten_ids = intersections.flatten_ids
    n = flatten_ids.numel()
    n_words = n // WORD.value + 1  # includes a word for the end of the last list
    bitmasks = flatten_ids.new_empty(band.parts_per_tile, n_words)
    counts = flatten_ids.new_empty(band.parts_per_tile * n_words)
    beams = find_beams(band)
    _part_bits_kernel.launch_elementwise(
        n_words * WORD.value,
        BLOCK,
        WORD.value,
        records=records,
        flatten_ids=flatten_ids,
        keys=intersections.tile_keys(),
        isect_offsets=intersections.isect_offsets,
        bitmasks=bitmasks,
        counts=counts,
        beams=beams,
        n=n,
        n_words=n_words,
        key_bias=intersections.key_bias - (0 if beams is None else intersections.first_tile),
        tile_width=band.grid.tile_width,
        tiles_per_image=band.grid.tiles_per_image,
        n_tiles=band.n_tiles,
        FOOTPRINT=band.footprint,
        RECORD_WIDTH=records.shape[1],
        PART=band.part,
        LOG2_ALPHA_MIN=math.log2(ALPHA_MIN),
        FAST=has_fast_fp32(records),
        PTX=has_ptx(records),
    )
    limit = NO_LIMIT
    if intersections.capacities is not None:
        entries = entries_per_intersection(band.parts_per_tile)
        limit = Limit(intersections.needed, Size.ENTRIES, intersections.capacities.entries * entries, entries)
    return bitmasks, prefix_sums(counts, limit=limit, bitmasks=bitmasks)


def _list_sizes(
    isect_offsets: Tensor, bitmasks: Tensor | None, bit_counts: Tensor | None, band: BandTask
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns ``offsets`` of :class:`PartLists`; ``counts`` of ``_list_sizes_kernel``; and the lengths of lists for
    ``order_by_length``, or None if their order does not matter."""
    n_lists, chunk = band.parts_per_tile * band.n_tiles, band.shape.chunk
    offsets = isect_offsets if bitmasks is None else isect_offsets.new_empty(n_lists + 1)
    counts, length_steps = isect_offsets.new_empty(n_lists + 2), None
    if n_lists > tuning.RESIDENT and not is_compiled_for_cpu(isect_offsets):
        length_steps = torch.empty(n_lists, dtype=torch.int16, device=isect_offsets.device)
    _list_sizes_kernel.launch_elementwise(
        n_lists + 1,
        BLOCK,
        isect_offsets=isect_offsets,
        bitmasks=bitmasks,
        bit_counts=bit_counts,
        offsets=None if bitmasks is None else offsets,
        counts=counts,
        length_steps=length_steps,
        n_lists=n_lists,
        n_words=0 if bitmasks is None else bitmasks.shape[1],
        n_tiles=band.n_tiles,
        CHUNK=chunk,
        UNCUT_MAX=int(CUT * chunk),
        LENGTH_STEP=tuning.LENGTH_STEP,
        LENGTH_STEPS_MAX=tuning.LENGTH_STEPS_MAX,
        PTX=has_ptx(isect_offsets),
    )
    return offsets, counts, length_steps
