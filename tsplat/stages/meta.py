"""The ``meta`` dictionary of ``rasterization()``: gsplat's keys and tsplat's own."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

from torch import Tensor

from ..config import PRESETS
from ..data import Cameras, Intersections, ProjectedGaussians, TileGrid
from .call import Call
from .intersection import BandedIntersections, count_tiles, encode_ids
from .options import Options


class Meta(dict[str, Any]):
    """A dictionary that computes some values when they are first read. Copying or pickling gives a plain dictionary.

    Args:
        values: The values that are known.
        lazy: Key -> function of ``source`` that computes the value. These values are not differentiable, as they may be
            read in any grad mode.
        source: The argument of these functions.
        first_keys: Keys that come first in the order of iteration.
    """

    def __init__(
        self,
        values: dict[str, Any],
        lazy: Mapping[str, Callable[[Any], Any]],
        source: Any,
        first_keys: Iterable[str] = (),
    ) -> None:
        super().__init__(values)
        self._lazy, self._source, self._first_keys = lazy, source, first_keys

    @property
    def source(self) -> Any:
        """The argument of the functions that compute values."""
        return self._source

    def __missing__(self, key: str) -> Any:
        value = self[key] = self._lazy[key](self._source)
        return value

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self._lazy

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def __iter__(self) -> Iterator[str]:
        return iter(self._plain())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self._plain(),)

    def _plain(self) -> dict[str, Any]:
        """Computes all values, and returns them in a plain dictionary."""
        for key in self._lazy:
            self[key]
        values = {**dict.fromkeys(self._first_keys), **dict(super().items())}
        super().clear()
        super().update(values)
        self._lazy, self._source, self._first_keys = {}, None, ()
        return values


def _complete(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a method of dict, to compute all values first."""

    @functools.wraps(method)
    def run(meta: Meta, *args: Any, **kwargs: Any) -> Any:
        meta._plain()
        return method(meta, *args, **kwargs)

    return run


for _method in (
    dict.__delitem__, dict.__eq__, dict.__ior__, dict.__len__, dict.__ne__, dict.__or__, dict.__repr__,
    dict.__reversed__, dict.__ror__, dict.clear, dict.copy, dict.items, dict.keys, dict.pop, dict.popitem,
    dict.setdefault, dict.values,
):  # fmt: skip
    setattr(Meta, _method.__name__, _complete(_method))


class Rendering(NamedTuple):
    """The results of a call.

    Attributes:
        maps: Images [..., C, H, W, channels] by name, see :func:`composite_maps`. The reference has colors and alphas.
        meta: See :func:`tsplat.rasterization`.
        cameras: The cameras of all ranks, with invalid ones replaced; None for the reference.
    """

    maps: dict[str, Tensor]
    meta: dict[str, Any]
    cameras: Cameras | None = None


_RELEASES_ROWS: ContextVar[bool] = ContextVar("_RELEASES_ROWS", default=False)
"""Whether :func:`released_rows` is active."""


@contextlib.contextmanager
def released_rows() -> Iterator[None]:
    """Leaves rows of projected Gaussians out of ``meta`` of packed distributed calls in the block.

    The memory of rows that were sent is then released before intersection. ``meta["received"]`` is complete.
    """
    token = _RELEASES_ROWS.set(True)
    try:
        yield
    finally:
        _RELEASES_ROWS.reset(token)


def rows_of_meta(call: Call, projected: ProjectedGaussians) -> ProjectedGaussians:
    """Returns the rows of this rank's Gaussians that ``meta`` describes: all, or none in :func:`released_rows`."""
    if call.ranks is None or projected.dense_ids is None or not _RELEASES_ROWS.get():
        return projected
    return projected.map_rows(lambda tensor: tensor.new_empty(0, *tensor.shape[1:]))._replace(row_of=None)


def describe_render(
    call: Call,
    valid: Tensor | None,
    projected: ProjectedGaussians,
    received: ProjectedGaussians,
    intersections: BandedIntersections,
    maps: dict[str, Tensor],
    extra: dict[str, Tensor],
) -> dict[str, Any]:
    """Returns ``meta`` as :func:`tsplat.rasterization` documents it.

    Args:
        valid: [..., N] bool, or None if values were not checked.
        projected: The result of :func:`rows_of_meta`.
        received: The rows that this rank composited, with the shapes of their footprint.
        intersections: The intersections of ``received``.
        maps: Images by name. Those of outputs with a key in ``meta`` are added to it.
        extra: Further values of ``meta``.
    """
    grid, outputs = call.grid, call.settings.compositing.outputs
    values: dict[str, Any] = {
        **_rows(projected),
        "tile_size": grid.tile_size,
        "tile_width": grid.tile_width,
        "tile_height": grid.tile_height,
        "width": call.options.width,
        "height": call.options.height,
        "n_batches": math.prod(call.batch),
        "n_cameras": call.n_cameras,
        **extra,
        **{output.meta: maps[output.name] for output in outputs if output.meta},
    }
    if call.options.distributed:
        _, camera_ids, gaussian_ids = received.ids()
        values["received"] = {"camera_ids": camera_ids, "gaussian_ids": gaussian_ids, **_rows(received)}
        if call.options.with_eval3d:
            del values["received"]["conics"]  # evaluation in 3D has other shapes
        elif not call.options.surfels:
            values["received"]["conics"] = values["received"]["conics"][..., :3]
    if call.options.surfels:
        for rows in (values, *([values["received"]] if call.options.distributed else [])):
            rows["ray_transforms"] = rows.pop("conics").unflatten(-1, (3, 3))
        assert projected.normals is not None
        values["normals"] = projected.normals.view(*projected.means2d.shape[:-1], 3)
    return Meta(
        values, LAZY, MetaInputs(call.options, grid, call.image_shape[:-2], valid, projected, received, intersections)
    )


class MetaInputs(NamedTuple):
    """Inputs of the lazy values of ``meta``; see :func:`describe_render`.

    Attributes:
        options: The options of the call.
        grid: The tiles of this rank's images.
        leading: The leading dimensions [..., C] of images.
    """

    options: Options
    grid: TileGrid
    leading: tuple[int, ...]
    valid: Tensor | None
    projected: ProjectedGaussians
    received: ProjectedGaussians
    intersections: BandedIntersections

    def gaussian_ids(self) -> Tensor | None:
        """Returns the Gaussian ids of ``projected.ids()``, by a single operation."""
        dense_ids, n = self.projected.dense_ids, self.projected.n_gaussians
        return None if dense_ids is None else dense_ids % max(n, 1)

    def memory(self) -> dict[str, int | None]:
        lists = self.intersections.trimmed()
        return {
            "n_intersections": self.intersections.n_intersections if lists is None else lists.flatten_ids.numel(),
            "bands": len(self.intersections.bands),
            "peak_bytes": self.intersections.budget.peak_bytes,
            "budget": self.intersections.budget.limit,
        }

    def offsets(self, lists: Intersections) -> Tensor:
        """Returns the index of the first intersection of each tile. [..., C, tile_height, tile_width]"""
        return lists.isect_offsets[:-1].view(*self.leading, self.grid.tile_height, self.grid.tile_width)


def _of_tiles(function: Callable[[MetaInputs, Intersections], Tensor]) -> Callable[[MetaInputs], Tensor | None]:
    """Wraps a function of intersections, to return None if there are several bands."""

    def compute(inputs: MetaInputs) -> Tensor | None:
        lists = inputs.intersections.trimmed()
        return None if lists is None else function(inputs, lists)

    return compute


LAZY: dict[str, Callable[[MetaInputs], Any]] = {
    "batch_ids": lambda m: m.projected.ids()[0],
    "camera_ids": lambda m: m.projected.ids()[1],
    "gaussian_ids": MetaInputs.gaussian_ids,
    "n_invalid": lambda m: None if m.valid is None else (~m.valid).sum(),
    "memory": MetaInputs.memory,
    "overflow": lambda m: m.intersections.overflow(),
    "flatten_ids": _of_tiles(lambda _, lists: lists.flatten_ids),
    "tiles_per_gauss": _of_tiles(
        # With a row capacity, lists have more rows than `received`.
        lambda m, lists: count_tiles(lists)[: m.received.depths.numel()].view(m.received.means2d.shape[:-1])
    ),
    "isect_ids": _of_tiles(lambda m, lists: encode_ids(lists, m.received.depths, m.grid, PRESETS[m.options.numerics])),
    "isect_offsets": _of_tiles(MetaInputs.offsets),
}
"""Keys of ``meta`` whose values are computed when they are read -> the functions that compute them."""


def describe_reference(call: Call, rendering: Any) -> dict[str, Any]:
    """Returns ``meta`` for a rendering of the reference."""
    options, projection = call.options, rendering.projection
    return {
        "batch_ids": None,
        "camera_ids": None,
        "gaussian_ids": None,
        **{name: getattr(projection, name) for name in ROW_NAMES},
        "width": options.width,
        "height": options.height,
        "n_batches": math.prod(call.batch),
        "n_cameras": call.n_cameras,
        "n_invalid": None if rendering.valid is None else (~rendering.valid).sum(),
        **rendering.outputs,
    }


ROW_NAMES = ("radii", "means2d", "depths", "conics", "opacities")
"""Keys of ``meta`` with one value per projected Gaussian."""


def _rows(projected: ProjectedGaussians) -> dict[str, Tensor]:
    """Returns projected Gaussians in the layout of ``means2d``: packed, or [..., C, N]."""
    radii, depths, conics, opacities = projected.radii, projected.depths, projected.shapes, projected.opacities
    assert opacities is not None
    if projected.dense_ids is None:
        shape = projected.means2d.shape[:-1]
        radii, conics = radii.view(*shape, 2), conics.view(*shape, conics.shape[-1])
        depths, opacities = depths.view(shape), opacities.view(shape)
    return dict(zip(ROW_NAMES, (radii, projected.means2d, depths, conics, opacities)))
