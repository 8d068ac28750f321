"""Layers of slots, which only the backward pass on a CPU has.

Slots take a lot of memory. A CPU computes them in **layers**, ranges of Gaussians by depth, the last layer first. As
Gaussian-major order is by depth, the slots of a layer are contiguous, and so are its intersections in each tile. A walk
stores the state of its pixels for the walk of the layer in front. Bits are the same as with a single layer.

On a CPU, a program composites the parts of a tile one after the other, and lists the entries of a part in the current
layer before it walks them.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from ...data import GaussianMajor
from ..launch import Int, kernel
from .part_lists import BLOCK, entry_index
from .walk_arguments import BandTask

LIST_BLOCK = tl.constexpr(16)
"""Number of intersections that a program lists at a time."""

LAYER_BYTES, LAYERS_MAX = 2**22, 5
"""On a CPU, size of a layer's slots in bytes, and maximum number of layers: each layer costs 2 to 3 % of the time of a
call. GPUs have one layer, as all programs would wait for the longest list of each layer: four layers were predicted to
double the time of the backward pass."""


@kernel
def _layers_kernel(
    slot_starts,  # [S + 1] int32
    span_starts,  # [nnz + 1] int32
    slots,  # [M] int32, slot of each intersection, ascending in each tile
    isect_offsets,  # [tiles + 1] int32
    first_positions,  # [layers + 1] int32, output
    isect_starts,  # [layers + 1, tiles] int32, output
    n_rows: "Int", n_tiles: "Int", n_layers: "Int", layer_size: "Int",
    row_search_steps: "Int", isect_search_steps: "Int",
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Finds the first Gaussian of each layer, and its first intersection in each tile. One lane per (layer, tile).

    Layer k starts with the first Gaussian whose first slot is at least k * ``layer_size``.
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    layer, tile = index // n_tiles, index % n_tiles
    mask = layer <= n_layers
    low, high = layer * 0, layer * 0 + n_rows
    for _ in range(row_search_steps):
        middle = (low + high) // 2
        start = tl.load(slot_starts + tl.load(span_starts + middle, mask=mask, other=0), mask=mask, other=0)
        is_before = (start < layer * layer_size) & (middle < n_rows)
        low, high = tl.where(is_before, middle + 1, low), tl.where(is_before, high, middle)
    low = tl.where(layer == n_layers, n_rows, low)  # the last layer includes the Gaussians without a slot at the end
    tl.store(first_positions + layer, low, mask=mask & (tile == 0))
    start = tl.load(slot_starts + tl.load(span_starts + low, mask=mask, other=0), mask=mask, other=0)
    low, high = tl.load(isect_offsets + tile), tl.load(isect_offsets + tile + 1)
    end = high
    for _ in range(isect_search_steps):
        middle = (low + high) // 2
        is_before = (tl.load(slots + middle, mask=middle < end, other=0) < start) & (middle < end)
        low, high = tl.where(is_before, middle + 1, low), tl.where(is_before, high, middle)
    tl.store(isect_starts + index, low, mask=mask)


@triton.jit
def list_part(entries, layer, entry_range, part, n_tiles):
    """Lists the intersections of a part that belong to a layer, in the memory of the tile.

    Returns:
        The offset in ``entries.listed`` of entry 0; the first entry of the layer; the one after its last.
    """
    tile = entry_range.list_index - part * n_tiles
    starts = entries.isect_offsets + tile
    first, end = tl.load(starts), tl.load(starts + 1)
    if layer.isect_starts is not None:
        starts = layer.isect_starts + layer.number * n_tiles + tile
        first, end = tl.load(starts), tl.load(starts + n_tiles)
    bitmasks, bit_counts, n_words = entries.bitmasks, entries.bit_counts, entries.n_words
    first_entry, _ = entry_index(bitmasks, bit_counts, part, n_words, first, False)
    end_entry, _ = entry_index(bitmasks, bit_counts, part, n_words, end, False)
    for block in range(first, end, LIST_BLOCK):
        index = block + tl.arange(0, LIST_BLOCK)
        entry, is_listed = entry_index(bitmasks, bit_counts, part, n_words, tl.minimum(index, end - 1), False)
        tl.store(entries.listed + first + (entry - first_entry), index, mask=(index < end) & (is_listed != 0))
    begin = first_entry - entry_range.start.to(tl.int32)
    return (first - begin).to(tl.int64), begin, begin + (end_entry - first_entry)


class Layers(NamedTuple):
    """The layers in which slots are computed.

    Attributes:
        n: The number of layers.
        size: The approximate number of slots of a layer. The memory of layer k starts with slot k * size.
        first_positions: [layers + 1] int32, position in depth order of the first Gaussian of each layer, then nnz.
        isect_starts: [layers + 1, tiles] int32, first intersection of each layer in each tile.
        carry: [values, I, height, width], the pixel state that a walk stores for the layer in front.
    """

    n: int
    size: int
    first_positions: Tensor
    isect_starts: Tensor
    carry: Tensor


class Layer(NamedTuple):
    """A kernel argument: one of the :class:`Layers`. The defaults stand for a single layer.

    Attributes:
        number, first_slot: Index of the layer, and the first slot in its memory.
        n_pixels: Number of pixels of all images.
        first_positions, isect_starts, carry: As in :class:`Layers`.
    """

    number: int = 0
    first_slot: int = 0
    n_pixels: int = 0
    first_positions: Tensor | None = None
    isect_starts: Tensor | None = None
    carry: Tensor | None = None


def split_slots(
    band: BandTask, gaussian_major: GaussianMajor, records: Tensor, columns: int, n_carry: int | None
) -> tuple[Layers | None, int]:
    """Splits slots that are Gaussian-major indices of intersections into layers.

    Args:
        columns, n_carry: As in ``assign_slots``.

    Returns:
        The layers, or None for a single one; and the number of slots of which memory is needed at a time.
    """
    intersections, n_slots = band.intersections, band.intersections.flatten_ids.numel()
    n_layers = min(-(-n_slots * columns * records.itemsize // LAYER_BYTES), LAYERS_MAX)
    slack = band.grid.tiles_per_image  # for the last Gaussian of a layer, which is not split
    size = -(-n_slots // max(n_layers, 1))
    # Lists have keys only if they were made in depth order.
    if n_carry is None or intersections.keys is None or n_slots <= size + slack:
        return None, n_slots
    camera = band.settings.camera
    carry = records.new_empty(n_carry, band.grid.n_images, camera.height, camera.width)
    return _find_layers(n_layers, size, intersections.isect_offsets, gaussian_major, carry), size + slack


def _find_layers(
    n_layers: int,
    size: int,
    isect_offsets: Tensor,
    gaussian_major: GaussianMajor,
    carry: Tensor,
) -> Layers:
    """Finds the starts of layers, for slots that are Gaussian-major indices of intersections."""
    n_tiles, span_starts = isect_offsets.numel() - 1, gaussian_major.span_starts
    first_positions = isect_offsets.new_empty(n_layers + 1)
    isect_starts = isect_offsets.new_empty(n_layers + 1, n_tiles)
    _layers_kernel.launch_elementwise(
        isect_starts.numel(),
        BLOCK,
        slot_starts=gaussian_major.isect_starts,
        span_starts=span_starts,
        slots=gaussian_major.indices,
        isect_offsets=isect_offsets,
        first_positions=first_positions,
        isect_starts=isect_starts,
        n_rows=span_starts.numel() - 1,
        n_tiles=n_tiles,
        n_layers=n_layers,
        layer_size=size,
        row_search_steps=span_starts.numel().bit_length(),
        isect_search_steps=gaussian_major.indices.numel().bit_length(),
    )
    return Layers(n_layers, size, first_positions, isect_starts, carry)
