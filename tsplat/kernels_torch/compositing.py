"""Compositing in vectorized PyTorch, one tile at a time so that the working set stays in cache.

The equations are the same as in ``kernels/compositing``. The backward pass writes the sums of each intersection to its
slot, and adds up the slots of each Gaussian. A tile processes its Gaussians in blocks, large enough for PyTorch to
parallelize each operation. (One thread per tile is slower: many small operations contend for the interpreter's lock.)
The transmittance never increases. So a Gaussian is added if and only if the transmittance behind it exceeds
TRANSMITTANCE_MIN.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..config import ALPHA_MIN, TRANSMITTANCE_MIN
from ..data import (
    CompositingSettings,
    GaussianMajor,
    Images,
    Intersections,
    PartLists,
    Rays,
    SavedImages,
    SplatGradients,
    Splats,
    TileGrid,
)
from ..formulas.pixel_centers import pixel_centers
from .distortion import Behind, InFront
from .footprints import FOOTPRINTS, Local, Pixels

BLOCK = 256
"""Gaussians per block. Large blocks take few operations, and tensors [256 pixels, 256] fit into the cache of a core."""

Block = tuple[Tensor, Tensor, Tensor, Tensor, Local]
"""Rows [K] of a block; their weights [P, K]; how many of them each pixel added [P]; the transmittance behind the block
[P], negative if the pixel has stopped; and the local coordinates of the pixels."""


@dataclasses.dataclass(frozen=True)
class Tile:
    """The image of a tile, its pixels as slices of image rows and columns, and the range of its intersections."""

    image: int
    pixels: tuple[slice, slice]
    start: int
    end: int


def tiles(
    intersections: Intersections, n_images: int, settings: CompositingSettings, unmasked: list[bool] | None
) -> Iterator[Tile]:
    """Iterates over the tiles of a band. The range of intersections is empty for tiles whose mask is false."""
    width, height, size = settings.camera.width, settings.camera.height, settings.tile_size
    grid = TileGrid.cover(n_images, width, height, size)
    bounds = itertools.pairwise(intersections.isect_offsets.tolist())
    for index, (start, end) in enumerate(bounds, start=intersections.first_tile):
        image, tile = divmod(index, grid.tiles_per_image)
        top, left = tile // grid.tile_width * size, tile % grid.tile_width * size
        pixels = slice(top, min(top + size, height)), slice(left, min(left + size, width))
        yield Tile(image, pixels, start, end if unmasked is None or unmasked[index] else start)


class _Features:
    """Colors, followed by depths. ``gather`` returns those of K rows as [channels, K] in the compute dtype."""

    def __init__(self, splats: Splats) -> None:
        self._parts = []
        splats = splats.gather_colors()
        if splats.colors is not None:
            self._parts.append(splats.colors.T.contiguous())
        if splats.depths is not None:
            self._parts.append(splats.depths[None])
        self._dtype = splats.means2d.dtype

    def gather(self, rows: Tensor) -> Tensor:
        parts = [part.index_select(1, rows).to(self._dtype) for part in self._parts]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def tile_pixels(tile: Tile, centers: tuple[Tensor, Tensor], rays: Rays | None) -> Pixels:
    """Returns the pixel centers of a tile, or the rays of its pixels if there are rays."""
    lines, columns = tile.pixels
    if rays is None:
        return centers[0][columns], centers[1][lines]
    values = rays.per_pixel[tile.image][:, lines, columns].flatten(1)
    if rays.origins is None:
        return values
    return torch.cat([rays.origins[tile.image][:, None].expand(3, values.shape[1]), values])


def _alphas(record: Tensor, pixels: Pixels, settings: CompositingSettings) -> tuple[Local, Tensor, Tensor | None]:
    """Returns the local coordinates of pixels, alpha [P, K], and where alpha is clamped [P, K], or None if nowhere.

    alpha = min(alpha_max, opacity * exp(-sigma)), and 0 below ALPHA_MIN.
    """
    clamped_opacity, alpha_max = record[-1], settings.numerics.alpha_max
    local, exponent = FOOTPRINTS[settings.footprint].locate(record, pixels)
    exponent = exponent.view(-1, clamped_opacity.numel())
    clamped = exponent > math.log(alpha_max) if bool((clamped_opacity == alpha_max).any()) else None
    alpha = torch.minimum(exponent.exp_(), clamped_opacity)
    # `threshold` zeros values up to `below`. It is several times faster than a comparison and a product.
    below = math.nextafter(ALPHA_MIN, 0.0) if alpha.dtype == torch.float64 else ALPHA_MIN * (1 - 2**-24)
    return local, torch.threshold_(alpha, below, 0.0), clamped


def locate_rows(records: Tensor, rows: Tensor, pixels: Pixels, settings: CompositingSettings) -> tuple[Local, Tensor]:
    """Returns the local coordinates of pixels in the Gaussians of rows [K], and alpha [P, K]."""
    local, alpha, _ = _alphas(records.index_select(1, rows), pixels, settings)
    return local, alpha


def _blend(alpha: Tensor, transmittance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the weights [P, K], front to back; how many of the K each pixel added [P]; and the transmittance behind
    them [P], negative if the pixel has stopped."""
    # T_k = T_0 (1 - alpha_1) ... (1 - alpha_k);  w_k = alpha_k T_(k - 1)
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


def walk(
    tile: Tile,
    flatten_ids: Tensor,
    transmittance: Tensor,
    locate: Callable[[Tensor], tuple[tuple[Tensor, ...], Tensor]],
) -> Iterator[Block]:
    """Walks the list of a tile front to back, one block of K rows at a time, until all pixels have stopped.

    Args:
        transmittance: The transmittance in front of the list, [P].
        locate: Maps rows [K] to the local coordinates of pixels, and alpha [P, K].
    """
    for start in range(tile.start, tile.end, BLOCK):
        rows = flatten_ids[start : min(start + BLOCK, tile.end)]
        local, alpha = locate(rows)
        weight, passed, transmittance = _blend(alpha, transmittance)
        yield rows, weight, passed, transmittance, local
        if float(transmittance.amax()) <= 0:
            break


def composite_fwd(
    splats: Splats,
    backgrounds: Tensor | None,
    masks: Tensor | None,
    intersections: Intersections,
    images: Images,
    settings: CompositingSettings,
    rays: Rays | None = None,
) -> PartLists | None:
    means2d, channels, footprint = splats.means2d, splats.n_features, FOOTPRINTS[settings.footprint]
    records, features = pack_records(splats, settings), _Features(splats)
    unmasked = None if masks is None else masks.flatten().tolist()
    centers = pixel_centers(settings.camera.width, settings.camera.height, means2d)
    for tile in tiles(intersections, len(images.colors), settings, unmasked):
        here = (tile.image, *tile.pixels)
        shape = images.transmittances[here].shape
        transmittance = means2d.new_ones(shape.numel())
        color = means2d.new_zeros(channels, shape.numel())
        pixel_end = torch.zeros_like(transmittance, dtype=torch.int32)
        in_front = InFront.initial(transmittance)
        pixels = tile_pixels(tile, centers, rays)
        locate = functools.partial(locate_rows, records, pixels=pixels, settings=settings)
        for rows, weight, passed, behind, local in walk(tile, intersections.flatten_ids, transmittance, locate):
            transmittance = behind
            feature = features.gather(rows)
            z = footprint.hits(feature[-1], local) if settings.distortion else None
            if settings.normals or settings.hits:
                color += footprint.pixel_features(feature, weight, local, pixels, settings)
            for first in range(0, channels, settings.channel_chunk):
                part = slice(first, first + settings.channel_chunk)
                color[part].addmm_(feature[part], weight.T)
            if z is not None:
                in_front = in_front.add(weight, z, rows)
            pixel_end += passed
        left = transmittance.abs_()
        if backgrounds is not None:
            color[: backgrounds.shape[1]] += backgrounds[tile.image][:, None] * left
        if images.median_rows is not None:
            color = torch.cat([color, in_front.distortions[None]])
            images.median_rows[here] = in_front.median_rows.view(shape)
        images.colors[here] = color.T.view(*shape, -1)
        images.transmittances[here] = left.view(shape)
        if images.alphas is not None:
            images.alphas[here] = 1 - left.view(*shape, 1)
        if images.pixel_ends is not None:
            images.pixel_ends[here] = pixel_end.view(shape)
    return None


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
    gaussian_major, flatten_ids = intersections.gaussian_major, intersections.flatten_ids
    assert gaussian_major is not None
    means2d, channels, footprint = splats.means2d, splats.n_features, FOOTPRINTS[settings.footprint]
    records, features = pack_records(splats, settings), _Features(splats)
    centers = pixel_centers(settings.camera.width, settings.camera.height, means2d)
    v_slots = means2d.new_zeros(flatten_ids.numel(), _sum_columns(channels, settings))
    for tile in tiles(intersections, len(v_render_colors), settings, None):
        here = (tile.image, *tile.pixels)
        shape = (*images.transmittances[here].shape, -1)
        pixels = tile_pixels(tile, centers, rays)
        v_rays = None
        if rays is not None and rays.v_per_pixel is not None:
            v_rays = rays.v_per_pixel[tile.image][(slice(None), *tile.pixels)]
        transmittance, pixel_end = images.transmittances[here].flatten(), images.pixel_ends[here].flatten()
        # Incoming gradients of pixels without a Gaussian may be NaN, e.g. of 1 / depth. They count as zero.
        covered = transmittance < 1
        # Made contiguous below, because the rounding of matrix products depends on strides.
        v_color = torch.where(covered[:, None], v_render_colors[here].flatten(0, 1), 0.0)
        state = None
        if images.depth_sums is not None:
            state = Behind(2 * v_color[:, -1], 1 + transmittance, -images.depth_sums[here].flatten())
        v_color = v_color[:, :channels].contiguous()
        # dL/d ln(T_end), the gradient with respect to the log transmittance behind all Gaussians.
        rest = torch.zeros_like(transmittance)
        if v_render_alphas is not None:
            rest = -torch.where(covered, v_render_alphas[here].flatten(), 0.0)
        if backgrounds is not None:
            rest = rest + (v_color[:, : backgrounds.shape[1]] * backgrounds[tile.image]).sum(-1)
        rest = rest * transmittance
        for end in range(int(pixel_end.max()), 0, -BLOCK):
            entries = torch.arange(end - 1, max(end - BLOCK, 0) - 1, -1, device=pixel_end.device)  # back to front
            rows = flatten_ids[tile.start + entries]
            record = records.index_select(1, rows)
            local, alpha, clamped = _alphas(record, pixels, settings)
            if int(pixel_end.min()) < end:
                alpha *= entries < pixel_end[:, None]
            # T in front of a Gaussian is T behind it / (1 - alpha).
            inverse = 1 / (1 - alpha)
            weight = inverse.cumprod(-1).mul_(transmittance[:, None])
            front, transmittance = weight, weight[:, -1].clone()
            feature = features.gather(rows)
            v_last = None
            if settings.normals or settings.hits:
                v_weight, flips = footprint.pixel_features_vjp(feature, v_color, local, pixels, settings)
            else:
                v_weight = v_color @ feature
            if state is None:
                weight *= alpha
            else:
                weight = front * alpha
                z = footprint.hits(feature[-1], local)
                state, v_distortion, v_last = state.step(weight, front, front * (1 - alpha), z)
                v_weight += v_distortion
            # g = alpha dL/d alpha = w dL/dw - alpha / (1 - alpha) R, with R = dL/d ln(T) behind the Gaussian:
            # the sum of w dL/dw over the Gaussians behind it, plus dL/d ln(T_end).
            g = v_weight.mul_(weight)
            behind = g.cumsum(-1).add_(rest[:, None])
            odds = alpha.mul_(inverse)
            g[:, 0] -= rest * odds[:, 0]
            g[:, 1:].addcmul_(behind[:, :-1], odds[:, 1:], value=-1)
            rest = behind[:, -1]
            if clamped is not None:
                g *= ~clamped
            v_hits = weight * v_color[:, -1:] if settings.hits else None
            if v_hits is not None and v_last is not None:
                v_hits += weight * v_last
            out = footprint.sums(record, g.view(shape), local, v_hits, v_rays)
            v_features = v_color.T @ weight
            if settings.normals:
                v_features[:3] += v_color[:, :3].T @ (weight * flips)
            if settings.planes:
                assert v_hits is not None
                v_features[-1] = footprint.v_centers(v_hits, local).sum(0)
            elif v_last is not None:
                v_features[-1] += (v_last * weight).sum(0)
            out += [*v_features]
            if settings.absgrad:
                out += footprint.slopes(record, g.view(shape), local)
            v_slots[gaussian_major.indices[tile.start + entries]] = torch.stack(out, -1)
    sums = None if v_splats is None else v_splats.sums
    if sums is None:
        sums = v_slots.new_zeros(splats.opacities.numel(), v_slots.shape[1])
    _sum_slots(v_slots, gaussian_major, sums)
    return _finish(sums, splats, settings)


def pack_records(splats: Splats, settings: CompositingSettings) -> Tensor:
    """Packs the values that compositing reads from each row, as the footprint defines them. [values, nnz]"""
    return FOOTPRINTS[settings.footprint].pack(splats, settings.numerics)


def tile_alphas(splats: Splats, settings: CompositingSettings) -> Callable[[Tensor, tuple[Tensor, Tensor]], Tensor]:
    records = pack_records(splats, settings)
    return lambda rows, centers: locate_rows(records, rows, centers, settings)[1]


def _sum_slots(v_slots: Tensor, gaussian_major: GaussianMajor, sums: Tensor) -> None:
    """Adds slots to sums, span by span, so that the bits of the sums do not depend on the bands."""
    lengths, starts = gaussian_major.isect_starts.diff(), gaussian_major.span_starts
    span_sums = torch.segment_reduce(v_slots, "sum", lengths=lengths, axis=0, unsafe=True)
    counts = starts.diff()
    for k in range(int(counts.max()) if counts.numel() else 0):
        positions = (counts > k).nonzero().squeeze(1)
        sums[gaussian_major.rows[positions]] += span_sums[starts[positions] + k]


def bytes_per_intersection(means: Tensor, grid: TileGrid, n_features: int, settings: CompositingSettings) -> int:
    return _sum_columns(n_features, settings) * means.dtype.itemsize


def _sum_columns(n_features: int, settings: CompositingSettings) -> int:
    return FOOTPRINTS[settings.footprint].SUMS + n_features + 2 * settings.absgrad


def _finish(sums: Tensor, splats: Splats, settings: CompositingSettings) -> SplatGradients:
    footprint = FOOTPRINTS[settings.footprint]
    end = footprint.SUMS + splats.n_features
    absgrad = sums[:, end : end + 2].contiguous() if settings.absgrad else None
    v_means2d, v_shapes, v_opacities = footprint.finish(sums, splats.shapes, splats.opacities)
    return SplatGradients(v_means2d, v_shapes, v_opacities, sums[:, footprint.SUMS : end], absgrad, sums)
