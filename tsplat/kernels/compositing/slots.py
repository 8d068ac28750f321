"""Slots: memory for the sums of entries in the backward pass.

An intersection has a slot for each part of its tile that composited it: the list of the part has an entry, and a pixel
had not stopped before it. The gradients of later entries are zero. Slots are numbered in Gaussian-major order, so the
slots of a Gaussian are contiguous. On a GPU, two kernels count the slots of intersections, and write the rows and slots
of entries. On a CPU, the parts of a tile share a slot, the Gaussian-major index of the intersection. Nothing is
counted, a program lists the entries of one part after the other, and slots may be computed in layers
(``slot_layers``). After the walk, ``slot_sums`` adds up the slots of each Gaussian.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...data import GaussianMajor, Intersections, PartLists
from .. import launch
from ..launch import Int, has_ptx, is_compiled_for_cpu, kernel, programs
from ..scans import prefix_sums
from .part_lists import BLOCK, PADDING, entry_indices, number_of_entries, store_padding
from .slot_layers import Layer, Layers, split_slots
from .tuning import longest_first
from .walk_arguments import BandTask, Entries


@triton.jit
def _find_slots(
    keys, bitmasks, bit_counts, walk_ends, n_words, first_key, n_tiles, index, PARTS: tl.constexpr, PTX: tl.constexpr
):
    """Finds the entries of intersections that have a slot.

    Returns:
        The results of ``entry_indices``; for each part, whether its entry has a slot (0 or 1); the number of slots.
    """
    # Intersections past the last one have the key of no tile; if all lists are empty, they are read.
    list_index = tl.minimum(tl.load(keys + index).to(tl.int32) - first_key, n_tiles - 1)
    entry_index, is_listed = entry_indices(bitmasks, bit_counts, n_words, index, PARTS, PTX)
    has_slot = ()
    count = tl.zeros_like(list_index)
    for part in tl.static_range(PARTS):
        is_walked = entry_index[part] < tl.load(walk_ends + list_index)
        has_slot = has_slot + (is_listed[part] & is_walked.to(tl.int32),)
        count += has_slot[part]
        list_index += n_tiles
    return entry_index, is_listed, has_slot, count


@kernel
def _slot_counts_kernel(
    gaussian_major_indices,  # [M] int32, see ``GaussianMajor``
    keys,  # [M] int16 or int32
    bitmasks,  # [parts, n_words] int32, or None if a tile is one part
    bit_counts,  # [parts n_words] int32, or None
    walk_ends,  # [lists] int32
    isect_offsets,  # [tiles + 1] int32, the last one is the number of intersections, at most n
    counts,  # [1 + M] int32, output
    n: "Int", n_words: "Int", first_key: "Int", n_tiles: "Int",
    PARTS: tl.constexpr, BLOCK: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Counts the slots of each intersection, in Gaussian-major order, after a zero. One lane per intersection."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    major_index, n_listed = tl.load(gaussian_major_indices + tl.minimum(index, n - 1)), tl.load(isect_offsets + n_tiles)
    safe = tl.maximum(tl.minimum(index, n_listed - 1), 0)  # loads need no mask
    _, _, _, count = _find_slots(keys, bitmasks, bit_counts, walk_ends, n_words, first_key, n_tiles, safe, PARTS, PTX)
    tl.store(counts + 1 + major_index, tl.where(index < n_listed, count, 0), mask=index < n)
    tl.store(counts + index, index * 0, mask=index == 0)


@kernel
def _part_entries_kernel(
    flatten_ids,  # [M] int32
    gaussian_major_indices,  # [M] int32, see ``GaussianMajor``
    starts,  # [M + 1] int32, first slot of each intersection in Gaussian-major order
    keys,  # [M] int16 or int32
    bitmasks,  # [parts, n_words] int32, or None if a tile is one part
    bit_counts,  # [parts n_words] int32, or None
    walk_ends,  # [lists] int32
    isect_offsets,  # [tiles + 1] int32, the last one is the number of intersections
    isect_starts,  # [S + 1] int32, see ``GaussianMajor``
    entries,  # [PADDING + n_entries + PADDING] int64, output
    slot_starts,  # [S + 1] int32, output, first slot of each span
    n: "Int", n_words: "Int", first_key: "Int", n_tiles: "Int", n_spans: "Int",
    PARTS: tl.constexpr, BLOCK: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Writes the row and the slot of each entry of each list, and the first slot of each span.

    One lane per intersection, and one per span and for the end of the last span. Entries without a slot are written
    with an arbitrary slot, as walks load rows ahead.
    """
    first_index = tl.program_id(0) * BLOCK
    index = first_index + tl.arange(0, BLOCK)
    if first_index < n:
        n_listed = tl.load(isect_offsets + n_tiles)
        safe = tl.maximum(tl.minimum(index, n_listed - 1), 0)  # loads need no mask
        entry_index, is_listed, has_slot, count = _find_slots(
            keys, bitmasks, bit_counts, walk_ends, n_words, first_key, n_tiles, safe, PARTS, PTX
        )
        slot = tl.load(starts + tl.load(gaussian_major_indices + safe), mask=count > 0, other=0)
        entry = slot.to(tl.int64) << 32 | tl.load(flatten_ids + safe).to(tl.int64)
        for part in tl.static_range(PARTS):
            tl.store(entries + PADDING + entry_index[part], entry, mask=(index < n_listed) & (is_listed[part] != 0))
            entry += has_slot[part].to(tl.int64) << 32
        store_padding(entries, index, number_of_entries(isect_offsets, bit_counts, n_words, n_tiles, PARTS))
    is_span = index <= n_spans
    first = tl.load(isect_starts + index, mask=is_span, other=0)
    tl.store(slot_starts + index, tl.load(starts + first, mask=is_span, other=0), mask=is_span)


class PartSlots(NamedTuple):
    """The slots of a band.

    Attributes:
        entries: The entries of all lists.
        slot_starts: [S + 1] int32, first slot of each span, see ``GaussianMajor``.
        v_slots: [slots, columns] of all entries or of a layer. Uninitialized if each slot is written once, else zero.
        launch_order: int64, order in which programs take lists, or tiles if they composite whole tiles; or None.
        parts_per_program, n_programs: Number of parts of a tile per program, and number of programs.
        layers: See :class:`Layers`; None for a single layer.
    """

    entries: Entries
    slot_starts: Tensor
    v_slots: Tensor
    launch_order: Tensor | None
    parts_per_program: int
    n_programs: int
    layers: Layers | None = None

    def back_to_front(self) -> list[Layer]:
        """Returns the layers back to front, the order in which they are computed."""
        if self.layers is None:
            return [Layer()]
        n, size, first_positions, isect_starts, carry = self.layers
        n_pixels = carry[0].numel()
        return [Layer(k, k * size, n_pixels, first_positions, isect_starts, carry) for k in reversed(range(n))]


def assign_slots(lists: PartLists, band: BandTask, records: Tensor, columns: int, n_carry: int | None) -> PartSlots:
    """Assigns slots to entries that a pixel passed, and allocates them. Requires ``gaussian_major`` of intersections.

    If ``lists.walk_ends`` is unknown, all entries get slots. On a CPU, one program composites all parts of a tile,
    which share one slot per intersection.

    Args:
        columns: Number of values of a slot.
        n_carry: Number of values per pixel that a walk stores for the layer in front; None for a single layer.
    """
    intersections = band.intersections
    isect_offsets, gaussian_major = intersections.isect_offsets, intersections.gaussian_major
    assert gaussian_major is not None
    n_lists = lists.offsets.numel() - 1
    parts_per_program = (
        n_lists // (isect_offsets.numel() - 1) if is_compiled_for_cpu(records) and lists.n_chunks == 0 else 1
    )
    layers = None
    if parts_per_program > 1:
        # The Gaussian-major index of an intersection is the slot of its entries.
        rows, indices = intersections.flatten_ids, gaussian_major.indices
        assert lists.bitmasks is not None
        n_words = lists.bitmasks.shape[1]
        entries = Entries(
            listed=torch.empty_like(rows),
            rows=rows,
            slots=indices,
            isect_offsets=isect_offsets,
            bitmasks=lists.bitmasks,
            bit_counts=lists.bit_counts,
            n_words=n_words,
        )
        slot_starts = gaussian_major.isect_starts
        launch_order, allocate = longest_first(isect_offsets), records.new_zeros
        layers, n_slots = split_slots(band, gaussian_major, records, columns, n_carry)
    else:
        walk_ends, launch_order = lists.offsets[1:] if lists.walk_ends is None else lists.walk_ends, lists.launch_order
        values, slot_starts = _entries(lists, intersections, gaussian_major, walk_ends)
        entries = Entries(values)
        allocate = records.new_zeros if lists.walk_ends is None else records.new_empty
        n_slots = lists.n_entries  # an upper bound: only the device knows the number
    n_programs = programs(lists.n_chunks + n_lists // parts_per_program, 1)
    v_slots = allocate(n_slots, columns)
    if launch.slots_hook is not None and parts_per_program == 1 and lists.n_walked is not None:
        launch.slots_hook(v_slots, lists.n_walked)
    return PartSlots(entries, slot_starts, v_slots, launch_order, parts_per_program, n_programs, layers)


def _entries(
    lists: PartLists, intersections: Intersections, gaussian_major: GaussianMajor, walk_ends: Tensor
) -> tuple[Tensor, Tensor]:
    """Assigns slots to the entries before ``walk_ends``, contiguous for each Gaussian.

    Returns:
        ``listed`` of :class:`Entries`, [n_entries] int64, and the first slot of each span [S + 1].
    """
    parts, n_words = (1, 0) if lists.bitmasks is None else lists.bitmasks.shape
    n = gaussian_major.indices.numel()
    counts = walk_ends.new_empty(n + 1)
    arguments = {
        "n": n,
        "gaussian_major_indices": gaussian_major.indices,
        "keys": intersections.tile_keys(),
        "bitmasks": lists.bitmasks,
        "bit_counts": lists.bit_counts,
        "walk_ends": walk_ends,
        "isect_offsets": intersections.isect_offsets,
        "n_words": n_words,
        "first_key": intersections.first_tile - intersections.key_bias,
        "n_tiles": intersections.isect_offsets.numel() - 1,
        "PARTS": parts,
        "PTX": has_ptx(walk_ends),
    }
    _slot_counts_kernel.launch_elementwise(n, BLOCK, counts=counts, **arguments)
    starts = prefix_sums(counts)
    entries = torch.empty(lists.n_entries + 2 * PADDING.value, dtype=torch.int64, device=walk_ends.device)
    isect_starts = gaussian_major.isect_starts
    slot_starts, n_spans = torch.empty_like(isect_starts), isect_starts.numel() - 1
    _part_entries_kernel.launch_elementwise(
        max(n, n_spans + 1),
        BLOCK,
        flatten_ids=intersections.flatten_ids,
        starts=starts,
        isect_starts=isect_starts,
        entries=entries,
        slot_starts=slot_starts,
        n_spans=n_spans,
        **arguments,
    )
    return entries[PADDING.value : -PADDING.value], slot_starts
