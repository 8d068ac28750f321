"""Stage: which Gaussians touch which tiles, in depth order. Nothing here is differentiable."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..arguments import (
    INTEGERS,
    check_bool,
    check_devices,
    check_ids,
    check_numerics,
    check_size,
    check_tensor,
    check_tile_size,
)
from ..config import Backend, Capacities, NumericsName
from ..data import Intersections, IntersectionSettings, ProjectedGaussians, ScreenGaussians, TileGrid
from ..errors import ArgumentError, MemoryBudgetError
from .agreement import Ranks
from .capacity import choose_room, fail_together, is_shared
from .compilation import eager, with_plain_tensors
from .listing import TileRows, depth_order, find_spans, list_intersections, list_within
from .memory import INDEX_MAX, MemoryBudget, OverBudgetError, check_tiles


def intersect(
    projected: ProjectedGaussians,
    grid: TileGrid,
    settings: IntersectionSettings,
    budget: MemoryBudget,
    explain: Callable[[], str],
    ranks: Ranks | None = None,
) -> BandedIntersections:
    """Intersects projected Gaussians with tiles.

    Only tiles with a pixel center inside the ellipse where alpha is 1/255 are listed; compositing loses nothing.

    Args:
        projected: With opacities.
        grid: The tiles of the images that the rows belong to.
        settings: See :class:`IntersectionSettings`.
        budget: Memory for the intersections.
        explain: Returns the likely cause if even a single tile row exceeds the budget.
        ranks: Those that render together, or None.

    Raises:
        ArgumentError: There are more rows or tiles than 32-bit indices hold.
        MemoryBudgetError: A single tile row exceeds the budget.
        PeerError: That of another rank.
    """
    with torch.no_grad():  # in half the time of the decorator
        assert projected.opacities is not None
        image_ids = projected.image_ids() if grid.n_images > 1 else None  # rows of a single image are [1, nnz]
        n_segments = grid.n_images if settings.segmented else 1
        screen = ScreenGaussians(
            projected.means2d if projected.means2d.dim() == 2 else projected.means2d.reshape(-1, 2),
            projected.radii,
            None if settings.boxes else projected.conics,
            None if settings.boxes else projected.opacities,
            depth_order(projected.depths, image_ids, n_segments),
            image_ids,
        )
        room = choose_room(settings.capacity, screen.order.device, grid) if screen.order.numel() else None
        if ranks is None:
            return BandedIntersections(screen, grid, settings, budget, explain, room)
        totals = None if ranks.any_capacity else _Totals(ranks, budget)
        try:
            found = BandedIntersections(screen, grid, settings, budget, explain, room, totals)
        except Exception as error:
            if totals is not None:
                totals.share(error)
            elif is_shared(ranks):
                fail_together(ranks, error)
            raise
        if totals is not None:
            totals.share(None)
        return found


class _Totals:
    """The numbers of intersections of all ranks, which each reads with its own, so that it waits no longer.

    Nearly always, all fit surely. If not, the ranks tell each other who failed.
    """

    def __init__(self, ranks: Ranks, budget: MemoryBudget) -> None:
        self._ranks, self._budget = ranks, budget
        self._all_fit: bool | None = None

    def read(self, total: Tensor, n_spans: int) -> int:
        """Returns a number of intersections, and the first time learns of those of the other ranks."""
        if self._all_fit is not None:
            return int(total)
        total = total.to(torch.int64)
        return self._exchange(torch.stack([total, total.new_full((), self._budget.room(n_spans))]))

    def _exchange(self, own: Tensor) -> int:
        found: list[list[int]] = self._ranks.all_gather_stacked(own).tolist()
        self._all_fit = all(total <= room for total, room in found)
        return found[self._ranks.rank][0]

    def share(self, error: Exception | None) -> None:
        """Tells the other ranks of an error of this one. Raises PeerError if only others have one."""
        if self._all_fit is None:
            self._exchange(torch.tensor([1, 0], device=self._budget.device))
        if not self._all_fit:
            self._ranks.tell(error)


class BandedIntersections:
    """The intersections of a call, in bands of tile rows that each fit into the memory budget.

    Iterate for the :class:`Intersections` of each band. A band that does not fit is halved. A single band is kept in
    ``whole``. Several bands do not fit together, so each iteration lists them again, with the same bits. With a
    capacity, there is a single band, listed without waiting for the number of intersections.

    Attributes:
        whole: The intersections, if there is a single band.
        bands: First and end flat tile row of each band.
        n_intersections: M, over all bands; or the capacity.
        budget: The memory budget.
    """

    def __init__(
        self,
        screen: ScreenGaussians,
        grid: TileGrid,
        settings: IntersectionSettings,
        budget: MemoryBudget,
        explain: Callable[[], str],
        room: Capacities | None = None,
        totals: _Totals | None = None,
    ) -> None:
        self.whole: Intersections | None = None
        self.bands: list[TileRows] = []
        self.n_intersections = 0
        self.budget = budget
        self._screen, self._grid, self._settings = screen, grid, settings
        todo = [(0, grid.n_tile_rows)]
        if room is not None:
            self.bands, self.n_intersections = todo, room.intersections
            self.whole = list_within(room, screen, grid, settings, budget)
            return
        while todo:
            begin, end = todo.pop()
            try:
                read = None if totals is None else totals.read
                spans = find_spans(screen, grid, (begin, end), settings, budget, read_total=read)
            except OverBudgetError as error:
                if end - begin == 1:
                    raise MemoryBudgetError(f"{error}; {explain()}") from None
                middle = (begin + end) // 2
                todo += [(middle, end), (begin, middle)]
                continue
            self.bands.append((begin, end))
            self.n_intersections += spans.n_intersections
            if not todo and len(self.bands) == 1:
                self.whole = list_intersections(screen, grid, (begin, end), spans, settings)

    def listed(self) -> Intersections | None:
        """The intersections of a single band. With a capacity, waits for their number and leaves out what is beyond."""
        return None if self.whole is None else without_room(self.whole)

    def overflow(self) -> Tensor | None:
        """Whether more intersections were needed than a capacity has room for, bool []; None without a capacity."""
        if self.whole is None or self.whole.needed is None:
            return None
        return self.whole.needed[-1] != 0

    def __iter__(self) -> Iterator[Intersections]:
        if self.whole is not None:
            yield self.whole
            return
        for band in self.bands:
            spans = find_spans(self._screen, self._grid, band, self._settings, self.budget)
            yield list_intersections(self._screen, self._grid, band, spans, self._settings)


def without_room(whole: Intersections) -> Intersections:
    """Returns intersections without the room for more. Waits for their number."""
    if whole.needed is None:
        return whole
    assert whole.keys is not None and whole.gaussian_major is not None
    n = int(whole.isect_offsets[-1])
    order = whole.gaussian_major._replace(places=whole.gaussian_major.places[:n])
    return whole._replace(flatten_ids=whole.flatten_ids[:n], keys=whole.keys[:n], gaussian_major=order)


def count_tiles(intersections: Intersections) -> Tensor:
    """Counts the intersections of each row. [nnz] int32"""
    order = intersections.gaussian_major
    assert order is not None
    counts = torch.empty(order.rows.numel(), dtype=torch.int32, device=order.places.device)
    counts[order.rows] = order.place_starts[order.span_starts].diff()
    return counts


def encode_ids(intersections: Intersections, depths: Tensor, grid: TileGrid) -> Tensor:
    """Encodes gsplat's 64-bit ids: image | tile | depth, with 32 bits of fp32 depth. [M] int64

    Front to back, the ids of a tile ascend, except where depths are negative: their bits descend.
    """
    assert intersections.keys is not None
    tile_ids = intersections.keys.to(torch.int32) + intersections.key_bias
    if grid.n_images > 1:
        # The tiles of an image take as many ids as the next power of two.
        unused = (1 << _tile_bits(grid.tiles_per_image)) - grid.tiles_per_image
        tile_ids = tile_ids + tile_ids // grid.tiles_per_image * unused
    bits = depths.detach().to(torch.float32).view(torch.int32)[intersections.flatten_ids]
    return torch.stack([bits, tile_ids], -1).view(torch.int64).squeeze(-1)  # the low half comes first


def _tile_bits(n_tiles: int) -> int:
    return math.floor(math.log2(n_tiles)) + 1


@eager
@with_plain_tensors
@torch.no_grad()
def isect_tiles(
    means2d: Tensor,
    radii: Tensor,
    depths: Tensor,
    tile_size: int,
    tile_width: int,
    tile_height: int,
    sort: bool = True,
    segmented: bool = False,
    packed: bool = False,
    n_images: int | None = None,
    image_ids: Tensor | None = None,
    gaussian_ids: Tensor | None = None,
    *,
    conics: Tensor | None = None,
    opacities: Tensor | None = None,
    backend: Backend = "auto",
    numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor, Tensor, Tensor]:
    """Lists the intersections of projected Gaussians and tiles. Same as gsplat 1.5.3; fewer with conics and opacities.

    Args:
        means2d: [..., N, 2] pixels, or [nnz, 2] if packed.
        radii: [..., N, 2] int32 pixels, or [nnz, 2]; zero where culled.
        depths: [..., N] or [nnz].
        tile_size: Edge of a tile in pixels: 4, 8 or 16.
        tile_width, tile_height: Number of tiles along each axis of an image.
        sort: Whether to sort by image, tile and depth, ties by index; otherwise intersections come Gaussian by
            Gaussian.
        segmented: Whether to sort each image on its own. The result is the same.
        packed: Whether inputs are packed; requires ``n_images`` and ``image_ids`` [nnz].
        gaussian_ids: Unused, in gsplat as well.
        conics, opacities: [..., N, 3] and [..., N], or packed. With both, only tiles with a pixel center inside the
            ellipse where alpha is 1/255 are listed (compositing loses nothing); without, tiles that overlap mean +-
            radii.
        backend, numerics: As in :func:`tsplat.rasterization`; the numerics that the radii were computed with.

    Returns:
        ``tiles_per_gauss`` int32 [..., N] or [nnz]; ``isect_ids`` int64 [M], image | tile | depth; ``flatten_ids``
        int32 [M], indices into [I * N] or [nnz].

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid.
        NotImplementedError: A tile size that is not implemented.

    Example::

        import torch
        from tsplat import isect_tiles

        means2d = torch.tensor([[[16.0, 8]]])  # between two tiles
        radii = torch.tensor([[[4, 4]]], dtype=torch.int32)
        tiles_per_gauss, _, _ = isect_tiles(means2d, radii, torch.ones(1, 1), 16, 5, 4)
        assert tiles_per_gauss.item() == 2
    """
    tile_size = check_tile_size(tile_size)
    tile_width, tile_height = check_size("tile_width", tile_width), check_size("tile_height", tile_height)
    sort, segmented, packed = (
        check_bool(name, value) for name, value in (("sort", sort), ("segmented", segmented), ("packed", packed))
    )
    check_tensor("depths", depths, [None] if packed else [...], "[nnz], as packed is True")
    check_tensor("means2d", means2d, [*depths.shape, 2], "[..., N, 2] as depths")
    check_tensor("radii", radii, means2d.shape, "[..., N, 2] as means2d", dtypes=INTEGERS)
    if (conics is None) != (opacities is None):
        raise ArgumentError("conics: pass conics and opacities together, or neither")
    if conics is not None and opacities is not None:
        check_tensor("conics", conics, [*depths.shape, 3], "[..., N, 3] as depths")
        check_tensor("opacities", opacities, list(depths.shape), "[..., N] as depths")
    if packed:
        if n_images is None or image_ids is None:
            raise ArgumentError("image_ids: required with n_images if packed is True")
        n_images = check_size("n_images", n_images)
        check_ids("image_ids", image_ids, n_images, depths.shape, "[nnz] as depths")
    check_devices(
        dict(means2d=means2d, radii=radii, depths=depths, conics=conics, opacities=opacities, image_ids=image_ids)
    )
    if not packed or image_ids is None or n_images is None:
        n_images, image_ids = math.prod(depths.shape[:-1]), None
    else:
        image_ids = image_ids.to(torch.int64).contiguous()
    radii, depths_flat = radii.reshape(-1, 2).to(torch.int32).contiguous(), depths.reshape(-1).contiguous()
    if sort:
        visible_depths = torch.where((radii > 0).all(-1), depths_flat, torch.inf)
        order = depth_order(visible_depths, image_ids, n_images if segmented else 1)
    else:
        order = torch.arange(depths_flat.numel(), device=depths.device)
    screen = ScreenGaussians(
        means2d.reshape(-1, 2).contiguous(),
        radii,
        None if conics is None else conics.reshape(-1, 3).contiguous(),
        None if opacities is None else opacities.reshape(-1).contiguous(),
        order,
        image_ids,
    )
    grid = TileGrid(n_images, tile_size, tile_width, tile_height)
    check_tiles(grid.n_tiles, means2d.device)
    settings = IntersectionSettings(check_numerics(numerics), backend, segmented=segmented)
    band = (0, grid.n_tile_rows)
    spans = find_spans(screen, grid, band, settings)
    found = list_intersections(screen, grid, band, spans, settings, sort=sort)
    return count_tiles(found).view(depths.shape), encode_ids(found, depths_flat, grid), found.flatten_ids


@with_plain_tensors
def isect_offset_encode(isect_ids: Tensor, n_images: int, tile_width: int, tile_height: int) -> Tensor:
    """Finds each tile's first intersection in sorted ids [M] of :func:`isect_tiles`. [I, tile_height, tile_width]"""
    n_images = check_size("n_images", n_images)
    tile_width, tile_height = check_size("tile_width", tile_width), check_size("tile_height", tile_height)
    check_tensor("isect_ids", isect_ids, [None], "[M]", dtypes=INTEGERS)
    n_tiles = tile_width * tile_height
    check_tiles(n_images * n_tiles, isect_ids.device)
    bits = _tile_bits(n_tiles)
    above = isect_ids >> 32
    tile_ids = (above >> bits) * n_tiles + (above & ((1 << bits) - 1))
    tiles, fits = torch.arange(n_images * n_tiles, device=isect_ids.device), isect_ids.numel() <= INDEX_MAX
    starts = torch.searchsorted(tile_ids, tiles, out_int32=fits)  # int32 as in gsplat
    return starts.view(n_images, tile_height, tile_width)
