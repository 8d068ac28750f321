"""Compositing in vectorised PyTorch, a tile at a time so that the working set stays in cache.

The maths is that of `tsplat.kernels.compositing`: moments of g per pair, written to the pair's slot, summed row by row.
A tile takes its Gaussians in blocks; the transmittance never rises, so a Gaussian is added exactly if the transmittance
after it exceeds the limit, whatever stopped the pixel before. Blocks are large enough for PyTorch to share out each
operation over its threads; a thread per tile was slower, as many small operations contend for the interpreter's lock.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..config import ALPHA_MIN, TRANSMITTANCE_MIN, Numerics

BLOCK = 256
"""Gaussians at a time: few operations, whose tensors [256 pixels, 256] still fit into a core's cache."""

MOMENTS = 6


def _pack(means2d: Tensor, conics: Tensor, opacities: Tensor, numerics: Numerics) -> Tensor:
    """What compositing reads of each row: mean x, y; -a/2, -b, -c/2; ln(opacity); clamped opacity. [7, R]"""
    a, b, c = conics.unbind(-1)
    # A conic that is not positive semidefinite beyond rounding, or not a number, is not a Gaussian.
    sound = (a >= 0) & (c >= 0) & (b * b <= a * c * 1.0001) & (opacities >= ALPHA_MIN)
    return torch.stack(
        [
            *means2d.unbind(-1),
            torch.where(sound, -0.5 * a, 0.0),
            torch.where(sound, -b, 0.0),
            torch.where(sound, -0.5 * c, 0.0),
            torch.where(sound, torch.where(sound, opacities, 1.0).log(), -1e4),
            torch.where(sound, opacities.clamp_max(numerics.alpha_max), 0.0),
        ]
    )


@dataclasses.dataclass(frozen=True)
class _Tile:
    """A tile that has pairs; `pixels` are the slices of its rows and columns in image `image`."""

    index: int
    image: int
    pixels: tuple[slice, slice]
    start: int
    end: int


def _tiles(isect_offsets: Tensor, width: int, height: int, tile_size: int, shown: list[bool] | None) -> Iterator[_Tile]:
    tile_width, tile_height = -(-width // tile_size), -(-height // tile_size)
    offsets = isect_offsets.tolist()
    for index, (start, end) in enumerate(itertools.pairwise(offsets)):
        if start == end or (shown is not None and not shown[index]):
            continue
        image, tile = divmod(index, tile_width * tile_height)
        top, left = (tile // tile_width) * tile_size, (tile % tile_width) * tile_size
        pixels = slice(top, min(top + tile_size, height)), slice(left, min(left + tile_size, width))
        yield _Tile(index, image, pixels, start, end)


@dataclasses.dataclass(frozen=True)
class _Block:
    """A block of K Gaussians over a tile of h x w pixels, P in all; [P, K] unless said otherwise."""

    dx: Tensor  # [w, K]
    dy: Tensor  # [h, K]
    alpha: Tensor
    passed: Tensor
    weight: Tensor
    running: Tensor | None  # 1 where not stopped, else 0; None where nothing is
    clamped: Tensor | None  # None where nothing can be
    transmittance: Tensor  # [P], negative where stopped


def _blend(record: Tensor, xs: Tensor, ys: Tensor, transmittance: Tensor, alpha_max: float) -> _Block:
    x, y, a, b, c, log_opacity, most = record
    pixels = (-1, x.numel())
    dx, dy = xs[:, None] - x, ys[:, None] - y
    slope = (b * dx)[None] + (c * dy)[:, None]
    exponent = torch.addcmul(torch.addcmul(log_opacity, a * dx, dx)[None], dy[:, None], slope, out=slope)
    clamped = (exponent > math.log(alpha_max)).view(pixels) if bool((most == alpha_max).any()) else None
    alpha = torch.minimum(exponent.exp_(), most)
    # `threshold` keeps what is greater, several times faster than a comparison and a product.
    below = math.nextafter(ALPHA_MIN, 0.0) if alpha.dtype == torch.float64 else ALPHA_MIN * (1 - 2**-24)
    alpha = torch.threshold_(alpha, below, 0.0).view(pixels)
    passed = 1 - alpha
    after = passed.cumprod(-1).mul_(transmittance[:, None])
    weight = alpha.clone()
    weight[:, 0] *= transmittance
    weight[:, 1:] *= after[:, :-1]
    left, running = after[:, -1].clone(), None
    stopped = left <= TRANSMITTANCE_MIN
    if bool(stopped.any()):
        running = torch.threshold(after, TRANSMITTANCE_MIN, 0.0).sign_()
        weight *= running
        least = torch.where(running > 0, after, transmittance[:, None]).amin(-1)
        left = torch.where(stopped, -least.abs(), left)
    return _Block(dx, dy, alpha, passed, weight, running, clamped, left)


def composite_fwd(
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    colors: Tensor,
    backgrounds: Tensor | None,
    masks: Tensor | None,
    isect_offsets: Tensor,
    flatten_ids: Tensor,
    *,
    width: int,
    height: int,
    tile_size: int,
    channel_chunk: int,
    numerics: Numerics,
) -> tuple[Tensor, Tensor, Tensor]:
    channels = colors.shape[-1]
    records, features = _pack(means2d, conics, opacities, numerics), colors.T.contiguous()
    shown = None if masks is None else masks.flatten().tolist()
    n_tiles = -(-width // tile_size) * -(-height // tile_size)
    n_images = (isect_offsets.numel() - 1) // n_tiles
    render_colors = means2d.new_zeros(n_images, height, width, channels)
    transmittances = means2d.new_ones(n_images, height, width)
    tile_ends = isect_offsets[:-1].clone()
    xs, ys = (torch.arange(size, dtype=means2d.dtype, device=means2d.device) + 0.5 for size in (width, height))

    for tile in _tiles(isect_offsets, width, height, tile_size, shown):
        tile_ys, tile_xs = ys[tile.pixels[0]], xs[tile.pixels[1]]
        shape = (tile_ys.numel(), tile_xs.numel())
        transmittance = means2d.new_ones(shape[0] * shape[1])
        color = means2d.new_zeros(channels, shape[0] * shape[1])
        end = tile.start
        while end < tile.end:
            rows = flatten_ids[end : min(end + BLOCK, tile.end)]
            block = _blend(records.index_select(1, rows), tile_xs, tile_ys, transmittance, numerics.alpha_max)
            feature = features.index_select(1, rows)
            for first in range(0, channels, channel_chunk):
                part = slice(first, first + channel_chunk)
                color[part].addmm_(feature[part], block.weight.T)
            transmittance = block.transmittance
            end += rows.numel()
            if float(transmittance.amax()) <= 0:
                break
        here = (tile.image, *tile.pixels)
        render_colors[here] = color.T.view(*shape, channels)
        transmittances[here] = transmittance.abs().view(shape)
        tile_ends[tile.index] = end

    if backgrounds is not None:
        render_colors += transmittances[..., None] * backgrounds[:, None, None]
    return render_colors, 1 - transmittances, tile_ends


def composite_bwd(
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    colors: Tensor,
    isect_offsets: Tensor,
    flatten_ids: Tensor,
    slots: Tensor,
    segment_starts: Tensor,
    segment_rows: Tensor,
    tile_ends: Tensor,
    render_colors: Tensor,
    render_alphas: Tensor,
    v_render_colors: Tensor,
    v_render_alphas: Tensor,
    *,
    width: int,
    height: int,
    tile_size: int,
    absgrad: bool,
    numerics: Numerics,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    channels = colors.shape[-1]
    records, features = _pack(means2d, conics, opacities, numerics), colors.T.contiguous()
    ends = tile_ends.tolist()
    xs, ys = (torch.arange(size, dtype=means2d.dtype, device=means2d.device) + 0.5 for size in (width, height))
    # What lies behind everything so far, as the loss sees it.
    rests = (v_render_colors * render_colors).sum(-1) - (1 - render_alphas) * v_render_alphas
    v_slots = means2d.new_zeros(flatten_ids.numel(), MOMENTS + channels + 2 * absgrad)

    for tile in _tiles(isect_offsets, width, height, tile_size, None):
        here = (tile.image, *tile.pixels)
        tile_ys, tile_xs = ys[tile.pixels[0]], xs[tile.pixels[1]]
        shape = (tile_ys.numel(), tile_xs.numel(), -1)
        rest = rests[here].flatten()
        v_color = v_render_colors[here].reshape(-1, channels)
        transmittance = torch.ones_like(rest)
        for start in range(tile.start, ends[tile.index], BLOCK):
            stop = min(start + BLOCK, ends[tile.index])
            rows = flatten_ids[start:stop]
            record = records.index_select(1, rows)
            block = _blend(record, tile_xs, tile_ys, transmittance, numerics.alpha_max)
            transmittance = block.transmittance
            gained = (v_color @ features.index_select(1, rows)).mul_(block.weight)
            behind = rest[:, None] - gained.cumsum(-1)
            rest = behind[:, -1]
            g = gained.addcmul_(behind, block.alpha.div_(block.passed), value=-1)
            if block.running is not None:
                g *= block.running
            if block.clamped is not None:
                g *= ~block.clamped
            g = g.view(shape)
            dx, dy = block.dx, block.dy
            columns, columns_dy = g.sum(0), (g * dy[:, None]).sum(0)
            out = [
                columns.sum(0),
                (columns * dx).sum(0),
                columns_dy.sum(0),
                (columns * dx * dx).sum(0),
                (columns_dy * dx).sum(0),
                (g.sum(1) * dy * dy).sum(0),
                *(v_color.T @ block.weight),
            ]
            if absgrad:
                _, _, a, b, c, _, _ = record
                out.append((g * ((2 * a * dx)[None] + (b * dy)[:, None])).abs_().sum((0, 1)))
                out.append((g * ((2 * c * dy)[:, None] + (b * dx)[None])).abs_().sum((0, 1)))
            v_slots[slots[start:stop]] = torch.stack(out, -1)

    sums = v_slots.new_empty(opacities.numel(), v_slots.shape[1])
    sums[segment_rows] = torch.segment_reduce(v_slots, "sum", lengths=segment_starts.diff(), axis=0, unsafe=True)
    moment = sums[:, :MOMENTS].unbind(-1)
    a, b, c = conics.unbind(-1)
    return (
        torch.stack([a * moment[1] + b * moment[2], b * moment[1] + c * moment[2]], -1),
        torch.stack([-0.5 * moment[3], -moment[4], -0.5 * moment[5]], -1),
        torch.where(opacities > 0, moment[0] / opacities, 0.0),
        sums[:, MOMENTS : MOMENTS + channels],
        sums[:, -2:].contiguous() if absgrad else None,
    )
