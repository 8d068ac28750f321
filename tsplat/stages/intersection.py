"""Stage: intersection of projected Gaussians with tiles, in depth order. Not differentiable."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..config import Capacities, Numerics
from ..data import Intersections, IntersectionSettings, ProjectedGaussians, ScreenGaussians, TileGrid
from ..errors import MemoryBudgetError
from ..runtime.memory import MemoryBudget, OverBudgetError
from .agreement import Ranks
from .capacity import choose_capacities
from .listing import Band, depth_order, find_spans, list_intersections, list_with_capacities
from .overflow_checks import fail_together, is_shared


def intersect(
    projected: ProjectedGaussians,
    grid: TileGrid,
    settings: IntersectionSettings,
    budget: MemoryBudget,
    explain: Callable[[], str],
    ranks: Ranks | None = None,
    periods: Tensor | None = None,
) -> BandedIntersections:
    """Intersects projected Gaussians with tiles.

    Lists the tiles that have a pixel center inside the ellipse where alpha is 1/255. At other pixels, the Gaussian does
    not contribute.

    Args:
        projected: The projected Gaussians, with opacities.
        grid: The tiles of the images that the rows belong to.
        settings: See :class:`IntersectionSettings`.
        budget: The memory budget of the intersections.
        explain: Returns the likely cause, for messages, if a single tile row exceeds the budget.
        ranks: The ranks that render together, or None.
        periods: See :class:`ScreenGaussians`.

    Raises:
        ArgumentError: There are more rows or tiles than 32-bit indices allow.
        MemoryBudgetError: A single tile row exceeds the budget.
        PeerError: Another rank raised an error.
    """
    with torch.no_grad():  # takes half the time of the decorator
        assert projected.opacities is not None
        image_ids = projected.image_ids() if grid.n_images > 1 else None  # rows of a single image are [1, nnz]
        n_segments = grid.n_images if settings.segmented else 1
        screen = ScreenGaussians(
            projected.means2d if projected.means2d.dim() == 2 else projected.means2d.reshape(-1, 2),
            projected.radii,
            None if settings.boxes else projected.shapes if periods is None else projected.shapes[:, :3].contiguous(),
            None if settings.boxes else projected.opacities,
            depth_order(projected.depths, settings.backend, image_ids, n_segments),
            image_ids,
            periods,
        )
        capacities = None
        if screen.depth_order.numel():
            capacities = choose_capacities(settings.capacity, screen.depth_order.device, grid)
        if ranks is None:
            return BandedIntersections(screen, grid, settings, budget, explain, capacities, projected.needed)
        totals = None if ranks.any_capacity else _RankTotals(ranks, budget)
        try:
            intersections = BandedIntersections(screen, grid, settings, budget, explain, capacities, totals=totals)
        except Exception as error:
            if totals is not None:
                totals.share_error(error)
            elif is_shared(ranks):
                fail_together(ranks, error)
            raise
        if totals is not None:
            totals.share_error(None)
        return intersections


class _RankTotals:
    """Tells each rank whether the intersections of all ranks are sure to fit into memory.

    Each rank waits for its number of intersections anyway, and exchanges it in the same step. Ranks share their errors
    only if the intersections of a rank may not fit.
    """

    def __init__(self, ranks: Ranks, budget: MemoryBudget) -> None:
        self._ranks, self._budget = ranks, budget
        self._all_fit: bool | None = None

    def read(self, total: Tensor, n_spans: int) -> int:
        """Reads this rank's number of intersections [] from the device. The first call exchanges it with all ranks."""
        if self._all_fit is not None:
            return int(total)
        total = total.to(torch.int64)
        return self._exchange(torch.stack([total, total.new_full((), self._budget.surely_fits(n_spans))]))

    def _exchange(self, total_and_bound: Tensor) -> int:
        totals: list[list[int]] = self._ranks.all_gather_stacked(total_and_bound).tolist()
        self._all_fit = all(total <= bound for total, bound in totals)
        return totals[self._ranks.rank][0]

    def share_error(self, error: Exception | None) -> None:
        """Tells the other ranks whether this rank failed. Raises PeerError if only other ranks did."""
        if self._all_fit is None:
            self._exchange(torch.tensor([1, 0], device=self._budget.device))
        if not self._all_fit:
            self._ranks.share_error(error)


class BandedIntersections:
    """The intersections of a call, in bands of tile rows that each fit into the memory budget.

    Iteration yields the :class:`Intersections` of each band. A band that does not fit is halved. A single band is kept
    in ``whole``. Several bands do not fit together: each iteration lists them again, with the same bits. With a
    capacity, there is a single band, and the call does not wait for the number of intersections.

    Attributes:
        whole: The intersections if there is a single band, otherwise None.
        bands: The first flat tile row of each band, and the one after its last.
        n_intersections: M over all bands, or the capacity.
        budget: The memory budget.
    """

    def __init__(
        self,
        screen: ScreenGaussians,
        grid: TileGrid,
        settings: IntersectionSettings,
        budget: MemoryBudget,
        explain: Callable[[], str],
        capacities: Capacities | None = None,
        needed: Tensor | None = None,
        totals: _RankTotals | None = None,
    ) -> None:
        self.whole: Intersections | None = None
        self.bands: list[Band] = []
        self.n_intersections = 0
        self.budget = budget
        self._screen, self._grid, self._settings = screen, grid, settings
        todo = [(0, grid.n_tile_rows)]
        if capacities is not None:
            self.bands, self.n_intersections = todo, capacities.intersections
            self.whole = list_with_capacities(capacities, screen, grid, settings, budget, needed)
            return
        while todo:
            begin, end = todo.pop()
            try:
                read = None if totals is None else totals.read
                spans = find_spans(screen, grid, (begin, end), settings, budget, read_n_intersections=read)
            except OverBudgetError as error:
                if end - begin == 1:
                    raise MemoryBudgetError(f"{error}, in one row of tiles; {explain()}") from None
                middle = (begin + end) // 2
                todo += [(middle, end), (begin, middle)]
                continue
            self.bands.append((begin, end))
            self.n_intersections += spans.n_intersections
            if not todo and len(self.bands) == 1:
                self.whole = list_intersections(screen, grid, (begin, end), spans, settings)

    def trimmed(self) -> Intersections | None:
        """Returns ``whole`` without unused elements, see :func:`trim_to_count`; None if there are several bands."""
        return None if self.whole is None else trim_to_count(self.whole)

    def overflow(self) -> Tensor | None:
        """Returns whether a capacity was exceeded, bool []; None without a capacity."""
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


def trim_to_count(whole: Intersections) -> Intersections:
    """Removes the elements of lists that a capacity allocated but the call did not use. Waits for the device."""
    if whole.needed is None:
        return whole
    assert whole.gaussian_major is not None
    n = int(whole.isect_offsets[-1])
    keys = None if whole.keys is None else whole.keys[:n]
    gaussian_major = whole.gaussian_major._replace(indices=whole.gaussian_major.indices[:n])
    return whole._replace(flatten_ids=whole.flatten_ids[:n], keys=keys, gaussian_major=gaussian_major)


def described_by_meta(whole: Intersections) -> Intersections:
    """Returns intersections without the tensors that ``meta`` does not read or can compute."""
    assert whole.gaussian_major is not None
    return whole._replace(keys=None, gaussian_major=whole.gaussian_major._replace(positions=None))


def count_tiles(intersections: Intersections) -> Tensor:
    """Counts the intersections of each row. [nnz] int32"""
    gaussian_major = intersections.gaussian_major
    assert gaussian_major is not None
    rows, isect_starts = gaussian_major.rows, gaussian_major.isect_starts
    counts = torch.empty(rows.numel(), dtype=torch.int32, device=rows.device)
    counts[rows] = isect_starts[gaussian_major.span_starts].diff()
    return counts


def encode_ids(intersections: Intersections, depths: Tensor, grid: TileGrid, numerics: Numerics) -> Tensor:
    """Encodes gsplat's ``isect_ids``: image | tile | 32 bits of the fp32 depth. [M] int64

    Ids of a tile ascend front to back, except for negative depths, whose bits are in descending order.
    """
    tile_ids = intersections.tile_keys().to(torch.int32) + intersections.key_bias
    if grid.n_images > 1:
        # The number of tile ids of an image is rounded up to a power of two.
        unused = (1 << tile_bits(grid.tiles_per_image, numerics)) - grid.tiles_per_image
        tile_ids = tile_ids + tile_ids // grid.tiles_per_image * unused
    bits = depths.detach().to(torch.float32).view(torch.int32)[intersections.flatten_ids]
    return torch.stack([bits, tile_ids], -1).view(torch.int64).squeeze(-1)  # the low half comes first


def tile_bits(n_tiles: int, numerics: Numerics) -> int:
    """Returns the number of bits of a tile in ``isect_ids``."""
    return (n_tiles if numerics.spare_tile_bit else n_tiles - 1).bit_length()
