"""Arguments and results of the stages: settings, and named tuples of tensors.

Sizes: B scenes, N Gaussians each, C cameras each, I = B C images, nnz rows, M intersections, D channels.
A *row* is a Gaussian projected by a camera. Packed tensors have rows for visible Gaussians only, ordered by camera,
then Gaussian. Otherwise there are I N rows, and the rows of culled Gaussians are zero.
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
        camera: Settings that all cameras share.
        eps2d, radius_clip, packed, numerics, backend: As in :func:`tsplat.rasterization`.
        antialiased: Whether to compute compensations (Mip-Splatting, arXiv 2311.16493).
        unscented: Parameters of the unscented transform; None for EWA splatting.
        surfels: Whether Gaussians are 2D.
        row_capacity: Number of packed rows to allocate before they are counted; None to count first.
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
    """Settings of the intersection, as in :func:`tsplat.rasterization`.

    ``boxes`` is whether to intersect the boxes mean +- radii instead of ellipses.
    """

    numerics: Numerics
    backend: Backend
    segmented: bool = False
    capacity: Capacity = None
    boxes: bool = False


@dataclasses.dataclass(frozen=True)
class CompositingSettings:
    """Settings of compositing.

    Attributes:
        camera: Settings that all cameras share.
        tile_size: Side length of a tile in pixels.
        channel_chunk: Number of channels that one walk over lists accumulates, or more if outputs need them.
        absgrad, numerics, backend: As in :func:`tsplat.rasterization`.
        footprint: Name of the footprint, see ``kernels/compositing/footprints``.
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
        """Whether to render the distortion of the last feature, as a channel after it, and its median."""
        return self._has(Rule.DISTORTION)

    @functools.cached_property
    def normals(self) -> bool:
        """Whether the first three features are normals, flipped to face the rays of pixels."""
        return self._has(Rule.FACING)

    @functools.cached_property
    def hits(self) -> bool:
        """Whether the last feature is replaced by distances along rays or by depths of planes."""
        return self._has(Rule.HIT) or self.planes

    @functools.cached_property
    def planes(self) -> bool:
        """Whether the last feature is replaced by the depth at which rays meet the planes of surfels."""
        return self._has(Rule.PLANE)

    def _has(self, rule: Rule) -> bool:
        return any(output.rule is rule for output in self.outputs)


@dataclasses.dataclass(frozen=True)
class TileGrid:
    """The tiles of I images. Flat indices of tile rows are into [I, tile_height], of tiles into [I, tile_height,
    tile_width]."""

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
    """3D Gaussians of B scenes in the world frame, after activation, with either quats and scales or covars.

    Attributes:
        means: [..., N, 3].
        quats, scales: [..., N, 4] wxyz of any norm, and [..., N, 3] standard deviations; or None.
        covars: [..., N, 6] upper triangles of the covariances (00 01 02 11 12 22); or None.
        opacities: [..., N], or None.
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

    ``lens`` holds the distortion coefficients, see ``kernels_torch/lenses/``. ``shutter`` holds the camera's path under
    a rolling shutter, see ``kernels_torch/shutters.py``. A field with a default may be None. General code loops over
    the fields; only code that uses a field names it.
    """

    viewmats: Annotated[Tensor, CameraField((4, 4), "check the poses", differentiable=True)]
    Ks: Annotated[Tensor, CameraField((3, 3), "check the intrinsics")]
    lens: Annotated[Tensor | None, CameraField((None,), "check the coefficients", differentiable=True)] = None
    shutter: Annotated[Tensor | None, CameraField((SHUTTER_VALUES,), "check viewmats_rs", differentiable=True)] = None


class ProjectedGaussians(NamedTuple):
    """Gaussians projected to the image plane, one per row; rows of culled Gaussians are zero.

    Attributes:
        n_cameras, n_gaussians: C and N.
        dense_ids: [nnz] int64, index of each row in [B, C, N], ascending; None if not packed.
        radii: [nnz, 2] int32, half extents in pixels.
        means2d: [nnz, 2] pixels, or with the caller's leading dimensions. ``.absgrad`` is set on this tensor.
        depths: [nnz] camera-space z, or the distance from the camera with ``global_z_order=False``.
        shapes: What the footprint evaluates: [nnz, 3] conics, upper triangles of inverse screen covariances,
            1/pixels^2; for panoramas [nnz, 4], conics and the period in pixels; for surfels [nnz, 9] ray transforms;
            for evaluation in 3D [nnz, 10] means, quaternions and scales.
        compensations, opacities: [nnz] antialiasing factors, and opacities times these factors; or None.
        row_of: [B, C, N] int32, inverse of ``dense_ids``: the row, or -1; or None.
        normals: [nnz, 3] normals of surfels in the camera frame, towards the camera; or None.
        needed: See :class:`Intersections`, if rows are packed with a capacity; otherwise None. nnz is then the
            capacity, and the rows after the visible ones are culled Gaussians with distinct ``dense_ids``.
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
        """Applies a function to each tensor [nnz, ...]."""
        without_rows = {"n_cameras", "n_gaussians", "row_of", "needed"}
        given = self._asdict().items()
        mapped: dict[str, Any] = {
            name: function(tensor) for name, tensor in given if name not in without_rows and tensor is not None
        }
        return self._replace(**mapped)

    def image_ids(self) -> Tensor | None:
        """Returns the image of each packed row, [nnz] int64; None if rows are [I, N]."""
        return None if self.dense_ids is None else self.dense_ids // max(self.n_gaussians, 1)

    def ids(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Returns batch, camera and Gaussian of each packed row, [nnz] int64 each; None if not packed."""
        image_ids = self.image_ids()
        if self.dense_ids is None or image_ids is None:
            return None, None, None
        return image_ids // self.n_cameras, image_ids % self.n_cameras, self.dense_ids % max(self.n_gaussians, 1)

    def feature_ids(self, *, per_camera: bool) -> "FeatureIds | None":
        """Returns the index of each row into features [B N, D], or [B C N, D] if per camera; None for the identity."""
        n_cameras, n_gaussians = 1 if per_camera else self.n_cameras, max(self.n_gaussians, 1)
        ids = self.dense_ids
        if n_cameras != 1:
            dense_ids = torch.arange(self.depths.numel(), device=self.depths.device) if ids is None else ids
            ids = dense_ids // max(n_cameras * n_gaussians, 1) * n_gaussians + dense_ids % n_gaussians
        return None if ids is None else FeatureIds(ids, self.row_of, n_cameras, n_gaussians)


class ProjectedGradients(NamedTuple):
    """Gradients of the outputs of a projection, with the shapes of these; None without a gradient."""

    v_means2d: Tensor | None = None
    v_depths: Tensor | None = None
    v_shapes: Tensor | None = None
    v_compensations: Tensor | None = None
    v_opacities: Tensor | None = None
    v_normals: Tensor | None = None


class Coefficients(NamedTuple):
    """Spherical harmonics coefficients of three channels, of any float dtype, or their gradients.

    Attributes:
        first: [..., N, K, 3] all coefficients, or [..., N, 1, 3] the coefficients of degree 0.
        higher: [..., N, K - 1, 3] the coefficients of degrees above 0; None if ``first`` contains them.
    """

    first: Tensor
    higher: Tensor | None = None

    @property
    def n_bases(self) -> int:
        """The number of basis functions, K."""
        return self.first.shape[-2] + (0 if self.higher is None else self.higher.shape[-2])

    def in_dtypes_of(self, other: "Coefficients") -> "Coefficients":
        """Converts to the dtypes of other coefficients."""
        higher = None if self.higher is None or other.higher is None else self.higher.to(other.higher.dtype)
        return Coefficients(self.first.to(other.first.dtype), higher)


class FeatureIds(NamedTuple):
    """Assigns features [G, D] to projected Gaussians. The rows of a Gaussian on several cameras share its features.

    Attributes:
        ids: [nnz] int64, the index of the features of each row.
        row_of: [B, C, N] int32, see :class:`ProjectedGaussians`; None if not packed.
        n_cameras: The number of cameras that share features: C, or 1 if each camera has its own.
        n_gaussians: N, at least 1.
    """

    ids: Tensor
    row_of: Tensor | None
    n_cameras: int
    n_gaussians: int


class Features(NamedTuple):
    """The features that compositing blends.

    Attributes:
        values: [G, D] of any float dtype; None if only depth is rendered.
        ids: The index of the features of each row; None for the identity.
    """

    values: Tensor | None
    ids: FeatureIds | None


class ScreenGaussians(NamedTuple):
    """The inputs of the intersection with tiles.

    Attributes:
        means2d, radii: [nnz, 2] pixels, [nnz, 2] int32.
        conics, opacities: [nnz, 3] and [nnz], for the ellipse where alpha is 1/255; None to test the box mean +- radii.
        depth_order: [nnz] int64, rows front to back. Intersections in this order need a sort by tile only.
        image_ids: [nnz] int64, image of each row; None if rows are [I, N].
        periods: [nnz] pixels of 360 degrees, for cameras whose columns wrap; or None. Tiles of the copies a period to
            the left and right are then included, up to half a period from the mean.
    """

    means2d: Tensor
    radii: Tensor
    conics: Tensor | None
    opacities: Tensor | None
    depth_order: Tensor
    image_ids: Tensor | None
    periods: Tensor | None = None


class Spans(NamedTuple):
    """Spans: a *span* is the run of tiles that a projected Gaussian intersects in one tile row.

    Attributes:
        rows, first_tile_rows: [nnz] int32, each Gaussian's row and first tile row, in depth order.
        span_starts: [nnz + 1] int32, first span of each Gaussian, then the number of spans S.
        positions: [S] int32, position of each span's Gaussian in depth order.
        first_columns: [S] int32, first tile column of each span. If columns wrap, columns past the last one continue
            with the first.
        isect_starts: [S + 1] int32, first intersection of each span, then M.
        n_intersections: M.
    """

    rows: Tensor
    first_tile_rows: Tensor
    span_starts: Tensor
    positions: Tensor
    first_columns: Tensor
    isect_starts: Tensor
    n_intersections: int


class GaussianMajor(NamedTuple):
    """Intersections ordered by Gaussian, then span. Sums over a Gaussian's tiles follow this order.

    Attributes:
        indices: [M] int32, index of each intersection in this order, the order before the sort by tile.
        isect_starts, span_starts, rows: As in :class:`Spans`; rows are a permutation.
        positions: As in :class:`Spans`; None in ``meta``.
    """

    indices: Tensor
    isect_starts: Tensor
    span_starts: Tensor
    rows: Tensor
    positions: Tensor | None


class Intersections(NamedTuple):
    """Intersections of projected Gaussians with the tiles of a band, tile by tile, front to back.

    Attributes:
        first_tile: Flat index of the band's first tile.
        isect_offsets: [tiles of the band + 1] int32, first intersection of each tile, then M.
        flatten_ids: [M] int32, row of each intersection. If M is a capacity, elements past the last intersection belong
            to no tile.
        gaussian_major: The intersections ordered by Gaussian; None if unknown (the backward pass then computes it).
        keys, key_bias: [M] flat tile of each intersection minus ``key_bias``, which lets keys be int16; None if
            unknown.
        capacities: The capacities of all lists, if M is a capacity; or None.
        needed: [N_NEEDED] int64, the sizes that lists need, in the order of :class:`~tsplat.config.Capacities`, then 1
            if any exceeds its capacity: all lists are then empty. None without capacities.
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
        """Returns ``keys`` [M]; computes them if unknown."""
        if self.keys is not None:
            return self.keys
        index = torch.arange(self.flatten_ids.numel(), device=self.flatten_ids.device)
        keys = torch.searchsorted(self.isect_offsets, index, right=True, out_int32=True)
        return keys + (self.first_tile - 1 - self.key_bias)


OVERFLOW = len(Capacities._fields)
"""Index of the overflow flag in ``needed``, see :class:`Intersections`."""

N_NEEDED = OVERFLOW + 1
"""Number of elements of ``needed``."""


class Limit(NamedTuple):
    """A capacity of a list, and the tensor in which the device records the required size.

    Attributes:
        needed: See :class:`Intersections`; None without a limit. ``needed[element]`` becomes the maximum of itself and
            the required size, as a call may composite twice, with parts of different sizes.
        element: Index into ``needed``, see :class:`~tsplat.config.Size`.
        capacity: The largest total that fits.
        per_unit: The total is divided by this, rounded up, before it is recorded.
        resets: 1 for the first limit of a call: the other elements of ``needed`` become 0; otherwise 0.
    """

    needed: Tensor | None
    element: int = 0
    capacity: int = 0
    per_unit: int = 1
    resets: int = 0


NO_LIMIT = Limit(None)


class PartLists(NamedTuple):
    """The lists of parts: which rows to composite in each part of the band's tiles.

    A tile is composited in one or more parts. List ``part * tiles + tile`` belongs to one part of one tile.

    Attributes:
        n_entries: An upper bound of the number of entries of all lists.
        ids: [n_entries] int32, row of each entry; None in the backward pass.
        offsets: [parts * tiles + 1] int32, first entry of each list, then the number of entries.
        bitmasks: [parts, words] int32, one bit per intersection: whether it reaches the part. None if a tile is one
            part.
        bit_counts: [parts words], number of set bits up to the end of each word. None if a tile is one part.
        walk_ends: [parts * tiles] int32, one past the last entry of each list that a pixel passed, an index into all
            entries; None if unknown.
        n_walked: [] int64, number of entries before ``walk_ends``; None if unknown.
        chunk_starts: [parts * tiles + 1] int32, first chunk of each list, then the number of chunks; None if no list is
            cut.
        chunk_lists: [chunks] int32, the list of each chunk.
        chunk_transmittances: [chunks, pixels of a part], T behind each chunk, negative where a pixel has stopped.
        chunk_colors: [chunks, D, pixels of a part], the contribution of each chunk, with the channels of
            ``Images.colors``.
        records, large: [nnz, width], and [nnz] bool, see ``pack_records``; None if the backward pass packs them again.
        launch_order: [parts * tiles] int64, the order in which programs take the lists; None for ascending order.
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
    """The inputs of compositing, one row per projected Gaussian.

    Attributes:
        means2d: [nnz, 2] pixels.
        shapes: See :class:`ProjectedGaussians`.
        opacities: [nnz].
        colors: [nnz, D] of any float dtype, or [G, D] with ``color_ids``; or None. As in gsplat's stages, any features
            that are blended: those of outputs, such as normals, then colors and extra signals.
        depths: [nnz], blended as one more channel; or None.
        color_ids: The color of each row; None for the identity.
    """

    means2d: Tensor
    shapes: Tensor
    opacities: Tensor
    colors: Tensor | None
    depths: Tensor | None = None
    color_ids: FeatureIds | None = None

    @classmethod
    def of(cls, projected: ProjectedGaussians, features: Features, *, with_depths: bool) -> "Splats":
        """Makes splats from projected Gaussians and features, with depths if these are rendered."""
        assert projected.opacities is not None
        depths = projected.depths if with_depths else None
        return cls(projected.means2d, projected.shapes, projected.opacities, features.values, depths, features.ids)

    def gather_colors(self) -> "Splats":
        """Replaces ``colors`` [G, D] and ``color_ids`` by gathered colors [nnz, D]."""
        if self.color_ids is None or self.colors is None:
            return self
        return self._replace(colors=self.colors[self.color_ids.ids], color_ids=None)

    @property
    def n_colors(self) -> int:
        return 0 if self.colors is None else self.colors.shape[-1]

    @property
    def n_features(self) -> int:
        return self.n_colors + (self.depths is not None)


class Rays(NamedTuple):
    """Rays of pixels in the world frame. A pixel whose direction is zero has no ray and shows the background.

    Attributes:
        per_pixel: [I, 6, H, W] origins and unit directions, or [I, 3, H, W] directions. For the footprint
            ``"shifted"``: directions (x, y, 1), from the origin.
        origins: [I, 3] the common origin of an image's rays; None if ``per_pixel`` holds origins.
        v_per_pixel: [I, 6, H, W] gradients, written by the backward pass; None if not needed.
    """

    per_pixel: Tensor
    origins: Tensor | None
    v_per_pixel: Tensor | None = None


class Images(NamedTuple):
    """The outputs of compositing, written tile by tile.

    Attributes:
        colors: [I, H, W, D], with depth as the last channel if it is rendered, then distortion if it is rendered.
        transmittances: [I, H, W], T behind the last Gaussian.
        pixel_ends: [I, H, W] int32, number of entries of the list that the pixel passed before it stopped; None without
            gradients.
        median_rows: [I, H, W] int32, the last row with T > 1/2 in front of it, or -1; or None.
        alphas: [I, H, W, 1], 1 - T; or None.
    """

    colors: Tensor
    transmittances: Tensor
    pixel_ends: Tensor | None
    median_rows: Tensor | None = None
    alphas: Tensor | None = None


class SavedImages(NamedTuple):
    """The outputs of compositing that the backward pass reads.

    Attributes:
        transmittances, pixel_ends: See :class:`Images`.
        depth_sums: [I, H, W], the channel of the last feature; None without distortion.
    """

    transmittances: Tensor
    pixel_ends: Tensor
    depth_sums: Tensor | None = None


class SplatGradients(NamedTuple):
    """Gradients of :class:`Splats`.

    Attributes:
        absgrad: [nnz, 2] sums of absolute gradients of means2d; or None.
        sums: [nnz, columns] accumulators of several bands. Kernels return None if there is a single band.
    """

    v_means2d: Tensor
    v_shapes: Tensor
    v_opacities: Tensor
    v_features: Tensor
    absgrad: Tensor | None
    sums: Tensor | None


def sum_by_id(values: Tensor, ids: Tensor, n: int) -> Tensor:
    """Sums the rows of values [R, ...] with the same id, in a fixed order. Returns [n, ...]."""
    ids, order = ids.sort(stable=True)
    bounds = torch.searchsorted(ids, torch.arange(n + 1, device=ids.device))
    flat = values[..., None].flatten(1)[order]
    sums = torch.segment_reduce(flat, "sum", lengths=bounds.diff(), axis=0, unsafe=True)
    return sums.view(n, *values.shape[1:])
