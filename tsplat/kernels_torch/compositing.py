"""Compositing in vectorized PyTorch, a tile at a time so that the working set stays in cache.

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
    """A tile's image, the slices of its rows and columns there, and its pairs."""

    image: int
    pixels: tuple[slice, slice]
    start: int
    end: int


def _tiles(
    isect_offsets: Tensor, first_tile: int, width: int, height: int, tile_size: int, shown: list[bool] | None
) -> Iterator[_Tile]:
    """The tiles of a range; those not shown have no pairs."""
    tile_width, tile_height = -(-width // tile_size), -(-height // tile_size)
    for index, (start, end) in enumerate(itertools.pairwise(isect_offsets.tolist()), start=first_tile):
        image, tile = divmod(index, tile_width * tile_height)
        top, left = (tile // tile_width) * tile_size, (tile % tile_width) * tile_size
        pixels = slice(top, min(top + tile_size, height)), slice(left, min(left + tile_size, width))
        yield _Tile(image, pixels, start, end if shown is None or shown[index] else start)


class _Features:
    """Colors as they are, and depths behind them; blocks of rows become [channels, K] in the compute dtype."""

    def __init__(self, colors: Tensor | None, depths: Tensor | None, dtype: torch.dtype) -> None:
        self._parts = []
        if colors is not None:
            self._parts.append(colors.T.contiguous())
        if depths is not None:
            self._parts.append(depths[None])
        self._dtype = dtype

    def take(self, rows: Tensor) -> Tensor:
        parts = [part.index_select(1, rows).to(self._dtype) for part in self._parts]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _alphas(record: Tensor, xs: Tensor, ys: Tensor, alpha_max: float) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """dx [w, K] and dy [h, K] from the means to pixel centers, alpha [P, K], and where the clamp binds, if anywhere."""
    x, y, a, b, c, log_opacity, most = record
    pixels = (ys.numel() * xs.numel(), x.numel())
    dx, dy = xs[:, None] - x, ys[:, None] - y
    slope = (b * dx)[None] + (c * dy)[:, None]
    exponent = torch.addcmul(torch.addcmul(log_opacity, a * dx, dx)[None], dy[:, None], slope, out=slope)
    clamped = (exponent > math.log(alpha_max)).view(pixels) if bool((most == alpha_max).any()) else None
    alpha = torch.minimum(exponent.exp_(), most)
    # `threshold` keeps what is greater, several times faster than a comparison and a product.
    below = math.nextafter(ALPHA_MIN, 0.0) if alpha.dtype == torch.float64 else ALPHA_MIN * (1 - 2**-24)
    return dx, dy, torch.threshold_(alpha, below, 0.0).view(pixels), clamped


def _blend(alpha: Tensor, transmittance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights [P, K] front to back, how many of the K each pixel passed, and its transmittance, negative if stopped."""
    after = (1 - alpha).cumprod(-1).mul_(transmittance[:, None])
    weight = alpha.clone()
    weight[:, 0] *= transmittance
    weight[:, 1:] *= after[:, :-1]
    left = after[:, -1].clone()
    passed = torch.full_like(left, alpha.shape[1], dtype=torch.int32)
    stopped = left <= TRANSMITTANCE_MIN
    if bool(stopped.any()):
        running = torch.threshold(after, TRANSMITTANCE_MIN, 0.0).sign_()
        weight *= running
        passed = running.sum(-1).to(torch.int32)
        least = torch.where(running > 0, after, transmittance[:, None]).amin(-1)
        left = torch.where(stopped, -least.abs(), left)
    return weight, passed, left


def composite_fwd(
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    colors: Tensor | None,
    depths: Tensor | None,
    backgrounds: Tensor | None,
    masks: Tensor | None,
    isect_offsets: Tensor,
    flatten_ids: Tensor,
    render_colors: Tensor,
    transmittances: Tensor,
    last_ids: Tensor | None,
    *,
    first_tile: int,
    tile_size: int,
    channel_chunk: int,
    numerics: Numerics,
) -> None:
    height, width, channels = render_colors.shape[1:]
    records, features = _pack(means2d, conics, opacities, numerics), _Features(colors, depths, means2d.dtype)
    shown = None if masks is None else masks.flatten().tolist()
    xs, ys = (torch.arange(size, dtype=means2d.dtype, device=means2d.device) + 0.5 for size in (width, height))
    for tile in _tiles(isect_offsets, first_tile, width, height, tile_size, shown):
        here = (tile.image, *tile.pixels)
        tile_ys, tile_xs = ys[tile.pixels[0]], xs[tile.pixels[1]]
        shape = (tile_ys.numel(), tile_xs.numel())
        transmittance = means2d.new_ones(shape[0] * shape[1])
        color = means2d.new_zeros(channels, shape[0] * shape[1])
        last = torch.zeros_like(transmittance, dtype=torch.int32)
        for start in range(tile.start, tile.end, BLOCK):
            rows = flatten_ids[start : min(start + BLOCK, tile.end)]
            _, _, alpha, _ = _alphas(records.index_select(1, rows), tile_xs, tile_ys, numerics.alpha_max)
            weight, passed, transmittance = _blend(alpha, transmittance)
            feature = features.take(rows)
            for first in range(0, channels, channel_chunk):
                part = slice(first, first + channel_chunk)
                color[part].addmm_(feature[part], weight.T)
            last += passed
            if float(transmittance.amax()) <= 0:
                break
        left = transmittance.abs_()
        if backgrounds is not None:
            color[: backgrounds.shape[1]] += backgrounds[tile.image][:, None] * left
        render_colors[here] = color.T.view(*shape, channels)
        transmittances[here] = left.view(shape)
        if last_ids is not None:
            last_ids[here] = last.view(shape)


def composite_bwd(
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    colors: Tensor | None,
    depths: Tensor | None,
    backgrounds: Tensor | None,
    isect_offsets: Tensor,
    flatten_ids: Tensor,
    slots: Tensor,
    slot_starts: Tensor,
    item_starts: Tensor,
    item_rows: Tensor,
    transmittances: Tensor,
    last_ids: Tensor,
    v_render_colors: Tensor,
    v_render_alphas: Tensor,
    sums: Tensor,
    *,
    first_tile: int,
    tile_size: int,
    absgrad: bool,
    numerics: Numerics,
) -> None:
    height, width, channels = v_render_colors.shape[1:]
    records, features = _pack(means2d, conics, opacities, numerics), _Features(colors, depths, means2d.dtype)
    xs, ys = (torch.arange(size, dtype=means2d.dtype, device=means2d.device) + 0.5 for size in (width, height))
    v_slots = means2d.new_zeros(flatten_ids.numel(), sums.shape[1])
    for tile in _tiles(isect_offsets, first_tile, width, height, tile_size, None):
        here = (tile.image, *tile.pixels)
        tile_ys, tile_xs = ys[tile.pixels[0]], xs[tile.pixels[1]]
        shape = (tile_ys.numel(), tile_xs.numel(), -1)
        v_color = v_render_colors[here].reshape(-1, channels)
        transmittance, last = transmittances[here].flatten(), last_ids[here].flatten()
        # What the loss sees behind everything: the gradient by ln(T).
        rest = -v_render_alphas[here].flatten()
        if backgrounds is not None:
            rest = rest + (v_color[:, : backgrounds.shape[1]] * backgrounds[tile.image]).sum(-1)
        rest = rest * transmittance
        for end in range(int(last.max()), 0, -BLOCK):
            # Back to front.
            places = torch.arange(end - 1, max(end - BLOCK, 0) - 1, -1, device=last.device)
            rows = flatten_ids[tile.start + places]
            record = records.index_select(1, rows)
            dx, dy, alpha, clamped = _alphas(record, tile_xs, tile_ys, numerics.alpha_max)
            if int(last.min()) < end:
                alpha *= places < last[:, None]
            inverse = 1 / (1 - alpha)
            weight = inverse.cumprod(-1).mul_(transmittance[:, None])
            transmittance = weight[:, -1].clone()
            weight *= alpha
            gained = (v_color @ features.take(rows)).mul_(weight)
            behind = gained.cumsum(-1).add_(rest[:, None])
            odds = alpha.mul_(inverse)
            g = gained
            g[:, 0] -= rest * odds[:, 0]
            g[:, 1:].addcmul_(behind[:, :-1], odds[:, 1:], value=-1)
            rest = behind[:, -1]
            if clamped is not None:
                g *= ~clamped
            g = g.view(shape)
            columns, columns_dy = g.sum(0), (g * dy[:, None]).sum(0)
            out = [
                columns.sum(0),
                (columns * dx).sum(0),
                columns_dy.sum(0),
                (columns * dx * dx).sum(0),
                (columns_dy * dx).sum(0),
                (g.sum(1) * dy * dy).sum(0),
                *(v_color.T @ weight),
            ]
            if absgrad:
                _, _, a, b, c, _, _ = record
                out.append((g * ((2 * a * dx)[None] + (b * dy)[:, None])).abs_().sum((0, 1)))
                out.append((g * ((2 * c * dy)[:, None] + (b * dx)[None])).abs_().sum((0, 1)))
            v_slots[slots[tile.start + places]] = torch.stack(out, -1)
    # Tile rows of a Gaussian are added one after the other, whatever band they are in.
    items = torch.segment_reduce(v_slots, "sum", lengths=slot_starts.diff(), axis=0, unsafe=True)
    counts = item_starts.diff()
    for item in range(int(counts.max()) if counts.numel() else 0):
        here_rows = (counts > item).nonzero().squeeze(1)
        sums[item_rows[here_rows]] += items[item_starts[here_rows] + item]


def sum_columns(features: int, absgrad: bool) -> int:
    return MOMENTS + features + 2 * absgrad


def composite_gradients(
    sums: Tensor, conics: Tensor, opacities: Tensor, *, features: int, absgrad: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    moment = sums[:, :MOMENTS].unbind(-1)
    a, b, c = conics.unbind(-1)
    return (
        torch.stack([a * moment[1] + b * moment[2], b * moment[1] + c * moment[2]], -1),
        torch.stack([-0.5 * moment[3], -moment[4], -0.5 * moment[5]], -1),
        torch.where(opacities > 0, moment[0] / opacities, 0.0),
        sums[:, MOMENTS : MOMENTS + features],
        sums[:, -2:].contiguous() if absgrad else None,
    )
