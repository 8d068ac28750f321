"""Arguments and results of the stages: settings, and tensors that belong together.

Sizes: B scenes, N Gaussians each, C cameras each, I = B C images, nnz rows, M intersections, D channels.
A *row* is a Gaussian projected by a camera. Packed tensors have rows for visible Gaussians only, ordered by camera,
then Gaussian. Otherwise there are I N rows, and those of culled Gaussians are zero.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from .config import (
    DEFAULT_NUMERICS,
    SHUTTER_VALUES,
    Backend,
    CameraField,
    CameraSettings,
    Capacities,
    Capacity,
    Numerics,
    Unscented,
)
from .output_maps import Output, Rule


@dataclasses.dataclass(frozen=True)
class ProjectionSettings:
    """Settings of the projection. Lengths in pixels.

    Attributes:
        camera: What the cameras share.
        eps2d, radius_clip, packed, numerics, backend: As in :func:`tsplat.rasterization`.
        antialiased: Whether to compute compensations (Mip-Splatting, arXiv 2311.16493).
        unscented, surfels: Parameters of the unscented transform, None for EWA splatting; whether Gaussians are 2D.
        row_capacity: Packed rows that memory is allocated for before they are counted; None to wait for their number.
    """

    camera: CameraSettings
    eps2d: float = 0.3
    radius_clip: float = 0.0
    antialiased: bool = False
    packed: bool = False
    numerics: Numerics = DEFAULT_NUMERICS
    backend: Backend = "auto"
    unscented: Unscented | None = None
    surfels: bool = False
    row_capacity: int | None = None


@dataclasses.dataclass(frozen=True)
class IntersectionSettings:
    """As in :func:`tsplat.rasterization`. ``boxes``: whether to intersect mean +- radii in place of the ellipse."""

    numerics: Numerics
    backend: Backend
    segmented: bool = False
    capacity: Capacity = None
    boxes: bool = False


@dataclasses.dataclass(frozen=True)
class CompositingSettings:
    """Settings of compositing.

    Attributes:
        camera, tile_size: What the cameras share, and the edge of a tile in pixels.
        channel_chunk: Upper bound of the channels that one walk over lists accumulates.
        absgrad, numerics, backend: As in :func:`tsplat.rasterization`.
        footprint: The kind of splat, see ``kernels/compositing/footprints``.
        outputs: The maps to render besides colors and alphas.
    """

    camera: CameraSettings
    tile_size: int
    channel_chunk: int
    absgrad: bool
    numerics: Numerics
    backend: Backend
    footprint: str = "ellipse"
    outputs: tuple[Output, ...] = ()

    @functools.cached_property
    def distortion(self) -> bool:
        """Whether to render the distortion of the last feature, as a channel after it, and find its median."""
        return self._has(Rule.DISTORTION)

    @functools.cached_property
    def normals(self) -> bool:
        """Whether the first three features are normals, which face rays."""
        return self._has(Rule.FACING)

    @functools.cached_property
    def hits(self) -> bool:
        """Whether distances along rays, or depths of planes, take the place of the last feature."""
        return self._has(Rule.HIT) or self.planes

    @functools.cached_property
    def planes(self) -> bool:
        """Whether depths of where rays meet the planes of surfels take the place of the last feature."""
        return self._has(Rule.PLANE)

    def _has(self, rule: Rule) -> bool:
        return any(output.rule is rule for output in self.outputs)


@dataclasses.dataclass(frozen=True)
class TileGrid:
    """Tiles of I images. Flat tile rows are [I, tile_height], flat tiles [I, tile_height, tile_width]."""

    n_images: int
    tile_size: int
    tile_width: int
    tile_height: int

    @classmethod
    @functools.lru_cache(maxsize=256)
    def cover(cls, n_images: int, width: int, height: int, tile_size: int) -> "TileGrid":
        return cls(n_images, tile_size, math.ceil(width / tile_size), math.ceil(height / tile_size))

    @functools.cached_property
    def tiles_per_image(self) -> int:
        return self.tile_width * self.tile_height

    @functools.cached_property
    def n_tile_rows(self) -> int:
        return self.n_images * self.tile_height

    @functools.cached_property
    def n_tiles(self) -> int:
        return self.n_images * self.tiles_per_image


class Gaussians3D(NamedTuple):
    """3D Gaussians of B scenes in the world frame, after activation; either quats and scales or covars.

    Attributes:
        means, opacities: [..., N, 3], and [..., N] or None.
        quats, scales: [..., N, 4] wxyz, any norm, and [..., N, 3] standard deviations; or None.
        covars: [..., N, 6] upper triangles of the covariances (00 01 02 11 12 22); or None.
        valid: [..., N] bool, false for Gaussians to cull; None to keep all.
    """

    means: Tensor
    quats: Tensor | None
    scales: Tensor | None
    covars: Tensor | None
    opacities: Tensor | None
    valid: Tensor | None = None


class Cameras(NamedTuple):
    """Cameras: ``viewmats`` [B, C, 4, 4] world to camera, ``Ks`` [B, C, 3, 3] intrinsics in pixels.

    ``lens`` are coefficients of the distortion, and ``shutter`` the path of a camera with a rolling shutter; see
    ``kernels_torch/lenses/`` and ``kernels_torch/shutters.py``. A field with a default may be None. Only what uses a
    field names it.
    """

    viewmats: Annotated[Tensor, CameraField((4, 4), "check the poses", differentiable=True)]
    Ks: Annotated[Tensor, CameraField((3, 3), "check the intrinsics")]
    lens: Annotated[Tensor | None, CameraField((None,), "check the coefficients", differentiable=True)] = None
    shutter: Annotated[Tensor | None, CameraField((SHUTTER_VALUES,), "check viewmats_rs", differentiable=True)] = None


class ProjectedGaussians(NamedTuple):
    """Gaussians on the image plane, one row each; zero where culled.

    Attributes:
        n_cameras, n_gaussians: C and N.
        dense_ids: [nnz] int64, index of each row in [B, C, N], ascending; None if not packed.
        radii, depths: [nnz, 2] int32, half extents in pixels, and [nnz], camera-space z, or the distance from
            the camera with ``global_z_order=False``.
        means2d: [nnz, 2] pixels; leading dimensions may be those of the caller. ``.absgrad`` is set on this tensor.
        shapes: [nnz, 3] conics, upper triangles of inverse screen covariances, 1/pixels^2; [nnz, 9] ray transforms of
            surfels; with evaluation in 3D [nnz, 10] means, quaternions and scales; of panoramas [nnz, 4] conics and
            pixels of 360 degrees.
        compensations, opacities: [nnz] antialiasing factors, and opacities times them; or None.
        row_of: [B, C, N] int32, inverse of ``dense_ids``: the row, -1 where there is none; or None.
        normals: [nnz, 3] of surfels, in the camera frame, towards the camera; or None.
        needed: If rows are packed with a capacity, which nnz then is: see :class:`Intersections`. Those after the
            packed rows are culled ones, each with an id of its own in ``dense_ids``. Otherwise None.
    """

    n_cameras: int
    n_gaussians: int
    dense_ids: Tensor | None
    radii: Tensor
    means2d: Tensor
    depths: Tensor
    shapes: Tensor
    compensations: Tensor | None
    opacities: Tensor | None
    row_of: Tensor | None = None
    normals: Tensor | None = None
    needed: Tensor | None = None

    def map_rows(self, function: Callable[[Tensor], Tensor]) -> "ProjectedGaussians":
        """Returns the same with a function applied to each tensor [nnz, ...]."""
        without_rows = {"n_cameras", "n_gaussians", "row_of", "needed"}
        given = self._asdict().items()
        mapped: dict[str, Any] = {
            name: function(tensor) for name, tensor in given if name not in without_rows and tensor is not None
        }
        return self._replace(**mapped)

    def image_ids(self) -> Tensor | None:
        """Image of each packed row, [nnz] int64; None if rows are [I, N]."""
        return None if self.dense_ids is None else self.dense_ids // max(self.n_gaussians, 1)

    def ids(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Batch, camera and Gaussian of each packed row, [nnz] int64 each; None if not packed."""
        image_ids = self.image_ids()
        if self.dense_ids is None or image_ids is None:
            return None, None, None
        return image_ids // self.n_cameras, image_ids % self.n_cameras, self.dense_ids % max(self.n_gaussians, 1)

    def feature_ids(self, *, per_camera: bool) -> Tensor | None:
        """Index of each row's features in [B N, D], or in [B C N, D] if per camera; None for the identity."""
        dense_ids = self.dense_ids
        if per_camera or self.n_cameras == 1:
            return dense_ids
        if dense_ids is None:
            dense_ids = torch.arange(self.depths.numel(), device=self.depths.device)
        n_gaussians = max(self.n_gaussians, 1)
        return dense_ids // (self.n_cameras * n_gaussians) * n_gaussians + dense_ids % n_gaussians


class ProjectedGradients(NamedTuple):
    """Gradients of the outputs of a projection, shaped like them; None where there are none."""

    v_means2d: Tensor | None = None
    v_depths: Tensor | None = None
    v_shapes: Tensor | None = None
    v_compensations: Tensor | None = None
    v_opacities: Tensor | None = None
    v_normals: Tensor | None = None


class Coefficients(NamedTuple):
    """Coefficients of spherical harmonics of three channels, of any float dtype, or their gradients.

    Attributes:
        first: [..., N, K, 3] all of them, or [..., N, 1, 3] those of degree 0.
        higher: [..., N, K - 1, 3] those of higher degrees; None if ``first`` has them.
    """

    first: Tensor
    higher: Tensor | None = None

    @property
    def n_bases(self) -> int:
        """The number of basis functions, K."""
        return self.first.shape[-2] + (0 if self.higher is None else self.higher.shape[-2])

    def in_dtypes_of(self, other: "Coefficients") -> "Coefficients":
        """Returns the same values in the dtypes of other coefficients."""
        higher = None if self.higher is None or other.higher is None else self.higher.to(other.higher.dtype)
        return Coefficients(self.first.to(other.first.dtype), higher)


class Features(NamedTuple):
    """The values that compositing blends: features [G, D] of any float dtype, or None if only depth is rendered, and
    the index of each row's features [nnz] int64, or None for the identity."""

    values: Tensor | None
    ids: Tensor | None


class ScreenGaussians(NamedTuple):
    """Projected Gaussians as the intersection reads them.

    Attributes:
        means2d, radii: [nnz, 2] pixels, [nnz, 2] int32.
        conics, opacities: To test the ellipse where alpha is 1/255; None to test mean +- radii.
        depth_order: [nnz] int64, rows front to back, so that their intersections need a sort by tile only.
        image_ids: [nnz] int64, image of each row; None if rows are [I, N].
        periods: [nnz] pixels of 360 degrees, for a camera that wraps: then tiles are also those of the copies a period
            to the left and to the right, each at most half a period from its mean; or None.
    """

    means2d: Tensor
    radii: Tensor
    conics: Tensor | None
    opacities: Tensor | None
    depth_order: Tensor
    image_ids: Tensor | None
    periods: Tensor | None = None


class Spans(NamedTuple):
    """Runs of tiles: a *span* is what a projected Gaussian intersects of one tile row.

    Attributes:
        rows, first_tile_rows: [nnz] int32, row of each Gaussian, and its first tile row, in depth order.
        span_starts: [nnz + 1] int32, first span of each of them, and the number S of spans.
        positions, first_columns: [S] int32, position of each span's Gaussian in depth order, and first tile column.
            Columns beyond the last are the first ones, if cameras wrap.
        isect_starts, n_intersections: [S + 1] int32, first intersection of each span, and M; M.
    """

    rows: Tensor
    first_tile_rows: Tensor
    span_starts: Tensor
    positions: Tensor
    first_columns: Tensor
    isect_starts: Tensor
    n_intersections: int


class GaussianMajor(NamedTuple):
    """The intersections ordered by Gaussian, then span; sums over a Gaussian's tiles follow this order.

    Attributes:
        indices: [M] int32, index of each intersection in this order, which is that before the sort by tile.
        isect_starts, span_starts, rows: As of :class:`Spans`; rows are a permutation.
        positions: As of :class:`Spans`; None in ``meta``.
    """

    indices: Tensor
    isect_starts: Tensor
    span_starts: Tensor
    rows: Tensor
    positions: Tensor | None


class Intersections(NamedTuple):
    """Intersections of projected Gaussians with the tiles of a band, tile by tile and front to back.

    Attributes:
        first_tile: Flat index of the band's first tile.
        isect_offsets: [tiles of the band + 1] int32, first intersection of each tile, and M.
        flatten_ids: [M] int32, row of each intersection.
        gaussian_major: The same ordered by Gaussian; None if unknown (the backward pass then computes it).
        keys, key_bias: [M] flat tile of each intersection minus ``key_bias``, for int16 keys; None if unknown.
        capacities, needed: If M is a capacity, those of all lists, and [6] int64, the sizes that lists need, and 1 if
            any exceeds its capacity. Then lists are empty. Elements beyond the last intersection are in no tile.
    """

    first_tile: int
    isect_offsets: Tensor
    flatten_ids: Tensor
    gaussian_major: GaussianMajor | None
    keys: Tensor | None = None
    key_bias: int = 0
    capacities: Capacities | None = None
    needed: Tensor | None = None

    def tile_keys(self) -> Tensor:
        """Returns ``keys``, computed with ``key_bias`` if unknown. [M]"""
        if self.keys is not None:
            return self.keys
        index = torch.arange(self.flatten_ids.numel(), device=self.flatten_ids.device)
        keys = torch.searchsorted(self.isect_offsets, index, right=True, out_int32=True)
        return keys + (self.first_tile - 1 - self.key_bias)


OVERFLOW = len(Capacities._fields)
"""The index in ``needed`` (see :class:`Intersections`), after those of sizes, that is 1 if any did not fit."""

N_NEEDED = OVERFLOW + 1
"""The number of elements of ``needed``."""


class Limit(NamedTuple):
    """A capacity of lists, and where the device notes what they need.

    Attributes:
        needed: See :class:`Intersections`; None if there is no limit. Zeros at first. ``needed[element]`` is raised to
            what the lists need, if that is more: a call may composite twice, with parts of different sizes.
        element: An index, see :class:`~tsplat.config.Size`.
        capacity: The largest total that fits.
        per_unit: How much of the total counts as one in ``needed``, rounded up.
    """

    needed: Tensor | None
    element: int = 0
    capacity: int = 0
    per_unit: int = 1


NO_LIMIT = Limit(None)


class PartLists(NamedTuple):
    """Lists of the parts that the tiles of a band are composited in. List ``part * tiles + tile`` is that of one part.

    Attributes:
        n_entries, ids: At least the number of entries; [n_entries] int32, the row of each, None in the backward pass.
        offsets: [parts * tiles + 1] int32, first entry of each list, and their number.
        bitmasks, bit_counts: [parts, words] int32, a bit per intersection: whether it reaches the part, and [parts
            words], the number of set bits up to the end of each word. None if a tile is one part.
        walk_ends: [parts * tiles] int32, one past the last entry of each list that a pixel passed; None if unknown.
        n_walked: [] int64, the number of entries before ``walk_ends``; None if unknown.
        chunk_starts: [parts * tiles + 1] int32, first chunk of each list, and their number; None if no list is cut.
        chunk_lists: [chunks] int32, the list of each chunk.
        chunk_transmittances: [chunks, pixels of a part], T behind each chunk, negative where pixels have stopped.
        chunk_colors: [chunks, D, pixels of a part], what each chunk adds, with channels as in ``RenderBuffers``.
        records, large: [nnz, width], and [nnz] bool, see ``pack_records``; None for the backward pass to pack them.
        launch_order: [parts * tiles] int64, in which programs take the lists; None if it does not matter.
    """

    n_entries: int
    ids: Tensor | None
    offsets: Tensor
    bitmasks: Tensor | None = None
    bit_counts: Tensor | None = None
    walk_ends: Tensor | None = None
    n_walked: Tensor | None = None
    chunk_starts: Tensor | None = None
    chunk_lists: Tensor | None = None
    chunk_transmittances: Tensor | None = None
    chunk_colors: Tensor | None = None
    records: Tensor | None = None
    large: Tensor | None = None
    launch_order: Tensor | None = None

    @property
    def n_chunks(self) -> int:
        return 0 if self.chunk_lists is None else self.chunk_lists.numel()


class Splats(NamedTuple):
    """Projected Gaussians as compositing reads them.

    Attributes:
        means2d, shapes, opacities: [nnz, 2] pixels; see :class:`ProjectedGaussians`; [nnz].
        colors, depths: [nnz, D] of any float dtype, and [nnz], blended as one more channel; or None.
        color_ids: [nnz] int64, row of each Gaussian in colors, which are [G, D] then; or None.
    """

    means2d: Tensor
    shapes: Tensor
    opacities: Tensor
    colors: Tensor | None
    depths: Tensor | None = None
    color_ids: Tensor | None = None

    @classmethod
    def of(cls, projected: ProjectedGaussians, features: Features, *, with_depths: bool) -> "Splats":
        """Projected Gaussians with their features, and depths if they are rendered."""
        assert projected.opacities is not None
        depths = projected.depths if with_depths else None
        return cls(projected.means2d, projected.shapes, projected.opacities, features.values, depths, features.ids)

    def gather_colors(self) -> "Splats":
        """Returns splats whose ``colors`` are gathered, [nnz, D], without ``color_ids``."""
        ids = self.color_ids
        return self if ids is None or self.colors is None else self._replace(colors=self.colors[ids], color_ids=None)

    @property
    def n_colors(self) -> int:
        return 0 if self.colors is None else self.colors.shape[-1]

    @property
    def n_features(self) -> int:
        return self.n_colors + (self.depths is not None)


class Rays(NamedTuple):
    """Rays of pixels, in the world frame. A pixel whose direction is zero has no ray and shows the background.

    Attributes:
        per_pixel: [I, 6, H, W], origins and unit directions, or [I, 3, H, W], directions. Of footprint "shifted":
            directions (x, y, 1), from 0.
        origins: [I, 3], that of all rays of an image; None if each pixel has its own.
        v_per_pixel: [I, 6, H, W], gradients, output of the backward pass; None if not needed.
    """

    per_pixel: Tensor
    origins: Tensor | None
    v_per_pixel: Tensor | None = None


class RenderBuffers(NamedTuple):
    """Output of compositing, written tile by tile.

    Attributes:
        colors: [I, H, W, D], with depth as the last channel if there is depth, and distortion after it.
        transmittances: [I, H, W], remaining behind the last Gaussian.
        last_ids: [I, H, W] int32, one past the last entry of its list that a pixel passed; None without a gradient.
        median_rows, alphas: [I, H, W] int32, last row in front of which T > 1/2, or -1; [I, H, W, 1] 1 - T; or None.
    """

    colors: Tensor
    transmittances: Tensor
    last_ids: Tensor | None
    median_rows: Tensor | None = None
    alphas: Tensor | None = None


class SplatGradients(NamedTuple):
    """Gradients of :class:`Splats`; ``absgrad`` [nnz, 2] is of means2d, or None. ``sums`` [nnz, columns] is what bands
    add to; None if there are no more bands."""

    v_means2d: Tensor
    v_shapes: Tensor
    v_opacities: Tensor
    v_features: Tensor
    absgrad: Tensor | None
    sums: Tensor | None


def sum_by_id(values: Tensor, ids: Tensor, n: int, *, unique: bool = False) -> Tensor:
    """Sums the rows of values [R, ...] that share an id, in a fixed order; none do if ids are unique. [n, ...]"""
    if unique:
        return values.new_zeros(n, *values.shape[1:]).index_copy_(0, ids, values)
    ids, order = ids.sort(stable=True)
    bounds = torch.searchsorted(ids, torch.arange(n + 1, device=ids.device))
    flat = values[..., None].flatten(1)[order]
    sums = torch.segment_reduce(flat, "sum", lengths=bounds.diff(), axis=0, unsafe=True)
    return sums.view(n, *values.shape[1:])
