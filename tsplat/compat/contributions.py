"""Finds the Gaussians that contribute to each pixel, and their weights, by repeating the compositing in PyTorch.

A Gaussian contributes to a pixel if compositing adds it: its alpha is at least 1/255, and the pixel is not opaque yet.
Its weight is alpha times the transmittance in front of it. Alphas have the same bits as in compositing; otherwise, a
Gaussian whose alpha is about 1/255 might count here but not be composited. Nothing here is differentiable.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from ..config import Numerics
from ..data import CompositingSettings, Intersections, Rays, Splats
from ..formulas.pixel_centers import pixel_centers
from ..functional.compositing import RayInputs
from ..functional.tile_lists import TileLists
from ..kernels_torch.compositing import (
    Block,
    locate_rows,
    pack_records,
    tile_pixels,
    tiles,
    walk,
)
from ..runtime.backend import launchers


@dataclasses.dataclass(frozen=True, eq=False)
class Contributions:
    """Finds the contributors of pixels among projected Gaussians.

    Attributes:
        splats: Projected Gaussians without colors and depths.
        intersections: Intersections of the Gaussians with all tiles of the images.
        settings: Sizes of images and tiles, and the compositing rules.
        result_ids: [I, H, W] int64 index of each pixel in the results; -1 for pixels that are not in them.
        shape: Leading dimensions of the results, written as [P] below.
        rays: Rays of the pixels, for footprints that are evaluated along rays. Alphas are then computed by the PyTorch
            backend.
        masks: [I, tiles] bool; no Gaussian contributes to tiles where it is False. None for all tiles.
    """

    splats: Splats
    intersections: Intersections
    settings: CompositingSettings
    result_ids: Tensor
    shape: tuple[int, ...]
    rays: Rays | None = None
    masks: Tensor | None = None

    @classmethod
    def of(
        cls,
        splats: Splats,
        lists: TileLists,
        numerics: Numerics,
        footprint: str = "ellipse",
        chosen: Tensor | None = None,
    ) -> Contributions:
        """Creates the contributions of splats to all pixels [..., H, W], or to the `chosen` pixels.

        Args:
            splats: Projected Gaussians.
            lists: Tile lists of the images.
            numerics: The constants.
            footprint: Name of the footprint.
            chosen: [P] int64 flat indices of pixels, which determine the order of results; None for all pixels.
        """
        _, n_images, (intersections,) = lists.arrange({"means2d": splats.means2d}, 1)
        size, device = (n_images, lists.height, lists.width), splats.means2d.device
        if chosen is None:
            shape, result_ids = lists.size, torch.arange(math.prod(size), device=device)
        else:
            shape, result_ids = tuple(chosen.shape), torch.full((math.prod(size),), -1, device=device)
            result_ids[chosen] = torch.arange(len(chosen), device=device)
        settings = lists.settings(numerics, "auto", footprint=footprint)
        return cls(splats, intersections, settings, result_ids.view(size), shape)

    @classmethod
    def along_rays(cls, inputs: RayInputs) -> Contributions:
        """Creates the contributions of Gaussians that are evaluated along rays to all pixels."""
        masks, n_images, (intersections,) = inputs.arranged
        lists, device = inputs.lists, inputs.splats.means2d.device
        n_pixels = n_images * lists.height * lists.width
        result_ids = torch.arange(n_pixels, device=device).view(n_images, lists.height, lists.width)
        return cls(inputs.splats, intersections, inputs.settings, result_ids, lists.size, inputs.rays, masks)

    def count(self) -> tuple[Tensor, Tensor]:
        """Returns the number of contributors of each pixel, int32, and the rendered alphas, [P] each."""
        counts = torch.zeros(math.prod(self.shape), dtype=torch.int32, device=self.result_ids.device)
        transmittances = self.splats.means2d.new_ones(counts.shape)
        for _, result_ids, chosen, blocks in self.walk_tiles():
            for _, weights, _, transmittance, _ in blocks:
                counts[result_ids] += (weights > 0).sum(-1, dtype=torch.int32)[chosen]
                transmittances[result_ids] = transmittance.abs()[chosen]
        return counts.view(self.shape), 1 - transmittances.view(self.shape)

    def find_last(self) -> Tensor:
        """Returns the last contributor of each pixel as an index into ``flatten_ids``, [P] int32; -1 if there is
        none."""
        last = torch.full((math.prod(self.shape),), -1, dtype=torch.int32, device=self.result_ids.device)
        for start, result_ids, chosen, blocks in self.walk_tiles():
            for _, weights, *_ in blocks:
                indices = torch.arange(start, start + weights.shape[1], dtype=torch.int32, device=last.device)
                own = torch.where(weights[chosen] > 0, indices, -1).amax(-1)
                last[result_ids] = torch.maximum(last[result_ids], own)
                start += weights.shape[1]
        return last.view(self.shape)

    def list_first(self, n_listed: int, *, largest: bool) -> tuple[Tensor, Tensor]:
        """Lists up to `n_listed` contributors of each pixel, front to back: the first, or those with the largest
        weights.

        Returns:
            Rows of Gaussians int64, padded with -1, and weights, padded with 0, [P, n_listed] each.
        """
        rows = torch.full((math.prod(self.shape), n_listed), -1, device=self.result_ids.device)
        weights = self.splats.means2d.new_zeros(rows.shape)
        for _, result_ids, chosen, blocks in self.walk_tiles():
            contributions: Iterable[tuple[Tensor, Tensor]] = (
                (ids.expand(weight.shape)[chosen], weight[chosen]) for ids, weight, *_ in blocks
            )
            if largest:
                contributions = _largest(contributions, n_listed)
            # The last column receives the contributors that are not listed.
            listed_rows = rows.new_full((len(result_ids), n_listed + 1), -1)
            listed_weights = weights.new_zeros(listed_rows.shape)
            n_before = rows.new_zeros(len(result_ids), 1)
            for ids, weight in contributions:
                contributes = weight > 0
                ranks = n_before + contributes.cumsum(-1) - 1
                columns = torch.where(contributes, ranks, n_listed).clamp_max(n_listed)
                listed_rows.scatter_(1, columns, ids.to(torch.int64))
                listed_weights.scatter_(1, columns, weight)
                n_before += contributes.sum(-1, keepdim=True)
            rows[result_ids], weights[result_ids] = listed_rows[:, :-1], listed_weights[:, :-1]
        return rows.view(*self.shape, n_listed), weights.view(*self.shape, n_listed)

    def entries(self, first: int, end: int, transmittances: Tensor) -> tuple[Tensor, Tensor]:
        """Lists all contributors among the intersections ``first`` to ``end`` of each tile.

        Args:
            first, end: Range of the intersections of each tile.
            transmittances: [I, H, W] transmittance in front of the range.

        Returns:
            Result indices of pixels, ascending, and rows of Gaussians, front to back within a pixel, [E] int64 each.
        """
        result_ids, rows = [self.result_ids.new_zeros(0)], [self.result_ids.new_zeros(0)]
        for _, own, chosen, blocks in self.walk_tiles((first, end), transmittances):
            for ids, weights, *_ in blocks:
                pixels, columns = (weights[chosen] > 0).nonzero(as_tuple=True)
                result_ids.append(own[pixels])
                rows.append(ids[columns].to(torch.int64))
        all_result_ids, order = torch.cat(result_ids).sort(stable=True)
        return all_result_ids, torch.cat(rows)[order]

    def walk_tiles(
        self, limits: tuple[int, int] | None = None, transmittances: Tensor | None = None
    ) -> Iterator[tuple[int, Tensor, Tensor, Iterator[Block]]]:
        """Yields for each tile: the start of its list, the result indices of its chosen pixels, their positions in the
        tile, and blocks of the list."""
        camera = self.settings.camera
        x, y = pixel_centers(camera.width, camera.height, self.splats.means2d)
        if self.rays is None:
            find_alphas = launchers(self.result_ids.device).tile_alphas(self.splats, self.settings)
        else:
            records = pack_records(self.splats, self.settings)
        unmasked = None if self.masks is None else self.masks.flatten().tolist()
        for tile in tiles(self.intersections, len(self.result_ids), self.settings, unmasked):
            if limits is not None:
                start, end = (min(tile.start + limit, tile.end) for limit in limits)
                tile = dataclasses.replace(tile, start=start, end=end)
            if tile.start == tile.end:
                continue
            here = (tile.image, *tile.pixels)
            result_ids = self.result_ids[here].flatten()
            chosen = (result_ids >= 0).nonzero().squeeze(1)
            in_front = x.new_ones(len(result_ids)) if transmittances is None else transmittances[here].flatten()
            find: Callable[[Tensor], tuple[tuple[Tensor, ...], Tensor]]
            if self.rays is None:
                centers = x[tile.pixels[1]], y[tile.pixels[0]]
                find = functools.partial(_find, find_alphas, centers)
            else:
                pixels = tile_pixels(tile, (x, y), self.rays)
                find = functools.partial(locate_rows, records, pixels=pixels, settings=self.settings)
            yield tile.start, result_ids[chosen], chosen, walk(tile, self.intersections.flatten_ids, in_front, find)


def _find(
    find_alphas: Callable[[Tensor, tuple[Tensor, Tensor]], Tensor], centers: tuple[Tensor, Tensor], rows: Tensor
) -> tuple[tuple[()], Tensor]:
    """Computes alphas [P, K] in the form that :func:`walk` expects, without positions of pixels in Gaussians."""
    return (), find_alphas(rows, centers)


def _largest(blocks: Iterable[tuple[Tensor, Tensor]], n_kept: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Keeps the largest weights of each pixel in their order; the first of equal weights. [P, K] -> [P, n_kept]"""
    kept: tuple[Tensor, Tensor] | None = None
    for block in blocks:
        rows, weights = block if kept is None else (torch.cat(part, -1) for part in zip(kept, block))
        order = weights.argsort(dim=-1, descending=True, stable=True)[:, :n_kept].sort(dim=-1).values
        kept = rows.gather(-1, order), weights.gather(-1, order)
    if kept is not None:
        yield kept
