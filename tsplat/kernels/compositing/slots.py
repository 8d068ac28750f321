"""Slots: where the backward pass of compositing writes the gradients of the entries of lists.

An intersection has one slot for each part of its tile that composited it, so the slots of a Gaussian are contiguous.
Entries behind the last one that any pixel of their part added have none, as their gradients are zero. Two kernels
count the slots of each intersection, and write the rows and slots of entries.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...data import GaussianMajor, Intersections, PartLists
from ..launch import (
    Int,
    has_ptx,
    is_compiled_for_cpu,
    kernel,
    launch_elementwise,
    longest_first,
    programs,
)
from .lists import (
    BLOCK,
    MARGIN,
    list_values,
    places_in_lists,
    store_margins,
    tile_keys,
)


@triton.jit
def _find_slots(keys, words, totals, ends, n_words, first_key, tiles, index, PARTS: tl.constexpr, PTX: tl.constexpr):
    """Finds which entries of intersections have a slot.

    Returns:
        What ``places_in_lists`` does; for each part, whether the entry there has a slot (as 0 or 1); their number.
    """
    list_index = tl.load(keys + index).to(tl.int32) - first_key
    places, reached = places_in_lists(words, totals, n_words, index, PARTS, PTX)
    has_slot = ()
    count = tl.zeros_like(list_index)
    for part in tl.static_range(PARTS):
        is_added = places[part] < tl.load(ends + list_index)
        has_slot = has_slot + (reached[part] & is_added.to(tl.int32),)
        count += has_slot[part]
        list_index += tiles
    return places, reached, has_slot, count


@kernel
def _slot_counts_kernel(
    places_by_gaussian,  # [M] int32, see ``GaussianMajor``
    keys,  # [M] int16 or int32
    words,  # [parts, n_words] int32, or None if a tile is one part
    totals,  # [parts, n_words] int32, or None
    ends,  # [parts * tiles] int32
    counts,  # [M] int32, output
    n: "Int", n_words: "Int", first_key: "Int", tiles: "Int",
    PARTS: tl.constexpr, BLOCK: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Counts the slots of each intersection, in Gaussian-major order. One lane per intersection."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = tl.minimum(index, n - 1)  # loads need no mask
    place = tl.load(places_by_gaussian + inside)
    _, _, _, count = _find_slots(keys, words, totals, ends, n_words, first_key, tiles, inside, PARTS, PTX)
    tl.store(counts + place, count, mask=index < n)


@kernel
def _part_entries_kernel(
    flatten_ids,  # [M] int32
    places_by_gaussian,  # [M] int32, see ``GaussianMajor``
    starts,  # [M + 1] int32, first slot of each intersection in Gaussian-major order
    keys,  # [M] int16 or int32
    words,  # [parts, n_words] int32, or None if a tile is one part
    totals,  # [parts, n_words] int32, or None
    ends,  # [parts * tiles] int32
    entries,  # [MARGIN + K + MARGIN] int64, output
    n: "Int", n_words: "Int", n_entries: "Int", first_key: "Int", tiles: "Int",
    PARTS: tl.constexpr, BLOCK: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Writes row and slot of each entry of each list. One lane per intersection.

    Entries without a slot are written as well, as walks load rows ahead. What their slot is does not matter.
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = tl.minimum(index, n - 1)  # loads need no mask
    places, reached, has_slot, count = _find_slots(
        keys, words, totals, ends, n_words, first_key, tiles, inside, PARTS, PTX
    )
    slot = tl.load(starts + tl.load(places_by_gaussian + inside), mask=count > 0, other=0)
    entry = slot.to(tl.int64) << 32 | tl.load(flatten_ids + inside).to(tl.int64)
    for part in tl.static_range(PARTS):
        tl.store(entries + MARGIN + places[part], entry, mask=(index < n) & (reached[part] != 0))
        entry += has_slot[part].to(tl.int64) << 32
    store_margins(entries, index, n_entries)


class PartSlots(NamedTuple):
    """Where the programs of the backward pass write the gradients of the entries of lists.

    Attributes:
        entries: [K] int64, row of each entry in the low 32 bits, slot in the high ones.
        slot_starts: [S + 1] int32, first slot of each span, see ``GaussianMajor``.
        v_slots: [K or M, columns], uninitialized where programs write each slot once, or else zero.
        order: Order of programs, [programs without chunks] int64, or None.
        together: Parts of a tile that a program composites.
        n_programs: Number of programs.
    """

    entries: Tensor
    slot_starts: Tensor
    v_slots: Tensor
    order: Tensor | None
    together: int
    n_programs: int


def assign_slots(lists: PartLists, intersections: Intersections, records: Tensor, columns: int) -> PartSlots:
    """Allocates slots for the entries of the lists of a band, which must have ``gaussian_major``.

    On a GPU, each entry that a pixel added gets a slot. If ``ends`` is unknown, every entry gets a slot. On a CPU, the
    parts of a tile are composited by one program and share slots.

    Args:
        columns: Columns of a slot.
    """
    isect_offsets, flatten_ids = intersections.isect_offsets, intersections.flatten_ids
    order = intersections.gaussian_major
    assert order is not None
    n_lists, n_tiles = lists.offsets.numel() - 1, isect_offsets.numel() - 1
    together = n_lists // n_tiles if is_compiled_for_cpu(records) and lists.n_chunks == 0 else 1
    if together > 1:
        entries, slot_starts = _shared_entries(lists, flatten_ids, order), order.place_starts
        v_slots = records.new_zeros(flatten_ids.numel(), columns)
        lengths = isect_offsets.diff()
    elif lists.ends is None:
        entries, slot_starts = _entries(lists, intersections, order, lists.offsets[1:])
        v_slots = records.new_zeros(lists.n_entries, columns)
        lengths = lists.offsets.diff()
    else:
        entries, slot_starts = _entries(lists, intersections, order, lists.ends)
        v_slots = records.new_empty(lists.n_entries, columns)  # to know that there are fewer takes a synchronization
        lengths = lists.ends - lists.offsets[:-1]
    n_programs = programs(lists.n_chunks + n_lists // together, 1)
    return PartSlots(entries, slot_starts, v_slots, longest_first(lengths), together, n_programs)


def _shared_entries(lists: PartLists, flatten_ids: Tensor, order: GaussianMajor) -> Tensor:
    """Rows and slots of the entries [K], see ``PartSlots``, with one slot for each intersection."""
    entries = order.places.to(torch.int64) << 32 | flatten_ids
    assert lists.words is not None
    assert lists.totals is not None
    return list_values(entries, lists.words, lists.totals, lists.n_entries)


def _entries(
    lists: PartLists, intersections: Intersections, order: GaussianMajor, ends: Tensor
) -> tuple[Tensor, Tensor]:
    """Assigns slots to the entries before ``ends``, those of a Gaussian one after the other.

    Returns:
        Rows and slots of the entries [K], see ``PartSlots``, and the first slot of each span [S + 1].
    """
    parts, n_words = (1, 0) if lists.words is None else lists.words.shape
    n = order.places.numel()
    counts = ends.new_empty(n)
    arguments = {
        "places_by_gaussian": order.places,
        "keys": tile_keys(intersections),
        "words": lists.words,
        "totals": lists.totals,
        "ends": ends,
        "n": n,
        "n_words": n_words,
        "first_key": intersections.first_tile - intersections.key_bias,
        "tiles": intersections.isect_offsets.numel() - 1,
        "PARTS": parts,
        "PTX": has_ptx(ends),
    }
    launch_elementwise(_slot_counts_kernel, n, BLOCK, counts=counts, **arguments)
    starts = torch.nn.functional.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
    entries = torch.empty(lists.n_entries + 2 * MARGIN.value, dtype=torch.int64, device=ends.device)
    launch_elementwise(
        _part_entries_kernel,
        n,
        BLOCK,
        flatten_ids=intersections.flatten_ids,
        starts=starts,
        entries=entries,
        n_entries=lists.n_entries,
        **arguments,
    )
    return entries[MARGIN.value : -MARGIN.value], starts[order.place_starts]
