"""Spinning lidars: their parameters, the rays of their elements, and the tiles in which Gaussians are listed.

A range image has an element for each row and column. In the frame of a lidar, x points forward, y left and z up. The
ray of an element is (cos a cos e, sin a cos e, sin e), with the elevation e of its row and the azimuth a, the sum of
the azimuth of its column and the offset of its row.

A lidar is rendered as a panorama with these rays. Gaussians are projected by the equirectangular lens to the *image of
angles*, with ``SCALE`` pixels per radian along both axes: u grows with columns, v with rows. As Gaussians are evaluated
along rays, their projection only selects tiles. :meth:`LidarLayout.boxes` converts its bounds to rows and columns.

The azimuths of a column differ between rows, by the offsets. Compositing therefore uses an *aligned image*, in which
each row is shifted by a whole number of columns, so that a column has about the same azimuth in all rows.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..arguments import FLOATS, check_devices, check_tensor
from ..config import CameraSettings, Numerics, RollingShutterType
from ..data import Cameras, ProjectedGaussians, Rays
from ..errors import ArgumentError, ShapeError, UnsupportedError
from ..kernels_torch.shutters import path_of, pose_at
from ..scalars import check_choice, enum_name
from .eval3d import rays_of, to_world
from .lens_models import LensArguments

SCALE = 1024
"""Pixels per radian of the image of angles, as in gsplat."""

FULL_CIRCLE = 2 * math.pi * SCALE
"""Pixels of 360 degrees in the image of angles."""

SUPPORT = 3.33
"""Distance in standard deviations at which an opaque Gaussian has an alpha of 1/255."""

SLACK = 1.03
"""Factor of half extents, as the ellipse of a Gaussian bounds its angles only to first order."""

MARGIN = 1e6
"""Margin around the image in which sigma points are valid, in image sizes: all of them are."""

TABLES = ("row_elevations_rad", "column_azimuths_rad", "row_azimuth_offsets_rad")


class SpinningDirection(enum.Enum):
    """Direction in which a lidar spins, seen from above."""

    CLOCKWISE = 0
    COUNTER_CLOCKWISE = 1


@dataclasses.dataclass(frozen=True)
class FOV:
    """A field of view in radians: its start, its span, and the direction from start to end."""

    start: float
    span: float
    direction: SpinningDirection

    @property
    def end(self) -> float:
        """The angle at which it ends, radians."""
        return self.start + (self.span if self.direction is SpinningDirection.COUNTER_CLOCKWISE else -self.span)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RowOffsetStructuredSpinningLidarModelParameters:
    """Parameters of a spinning lidar, ``lidar_coeffs`` of :func:`tsplat.rasterization`. Named as in gsplat 1.6.

    The ray of row r and column c has the elevation ``row_elevations_rad[r]`` and the azimuth
    ``column_azimuths_rad[c] + row_azimuth_offsets_rad[r]``, in the frame of the lidar: x forward, y left, z up.

    Attributes:
        row_elevations_rad: [H] angles above the xy plane in radians, descending, with any spacing. Differentiable, as
            are the other two tensors.
        column_azimuths_rad: [W] angles from x to y in radians, in the direction of the spin, spanning less than 360
            degrees.
        row_azimuth_offsets_rad: [H] offsets added to the azimuths of each row, radians.
        spinning_frequency_hz: Revolutions per second. Not read: ``viewmats_rs`` are the poses at the end of a sweep.
        spinning_direction: A :class:`SpinningDirection`.
        fov_eps_factor: As in gsplat; not read.
    """

    row_elevations_rad: Tensor
    column_azimuths_rad: Tensor
    row_azimuth_offsets_rad: Tensor
    spinning_frequency_hz: float
    spinning_direction: SpinningDirection
    fov_eps_factor: float = 4

    @property
    def n_rows(self) -> int:
        """Number of rows, H."""
        return len(self.row_elevations_rad)

    @property
    def n_columns(self) -> int:
        """Number of columns, W."""
        return len(self.column_azimuths_rad)

    @property
    def fov_eps_rad(self) -> float:
        """gsplat's tolerance at the borders of the field of view, ``fov_eps_factor`` * eps of the dtype. Not read."""
        return self.fov_eps_factor * torch.finfo(self.row_elevations_rad.dtype).eps

    @property
    def fov_vert_rad(self) -> FOV:
        """The field of view from the first to the last elevation."""
        first, last = self.row_elevations_rad[[0, -1]].tolist()
        return FOV(first, first - last, SpinningDirection.CLOCKWISE)

    @property
    def fov_horiz_rad(self) -> FOV:
        """The field of view from the first to the last azimuth of any row, at most 360 degrees."""
        direction = direction_of(self, "lidar_coeffs")
        grows = direction is SpinningDirection.COUNTER_CLOCKWISE
        azimuths, offsets = self.column_azimuths_rad.detach(), self.row_azimuth_offsets_rad.detach()
        least, most = offsets.min().item(), offsets.max().item()
        steps = azimuths.double().diff() * (1 if grows else -1)
        span = float(steps.remainder(2 * math.pi).sum()) + most - least
        start = azimuths[0].item() + (least if grows else most)
        return FOV(start, min(span, 2 * math.pi), direction)


def direction_of(lidar: object, name: str) -> SpinningDirection:
    """Returns the spinning direction of a lidar, of tsplat or gsplat, that is passed as the argument `name`."""
    direction = enum_name(getattr(lidar, "spinning_direction", None))
    check_choice(f"{name}.spinning_direction", direction, tuple(SpinningDirection.__members__))
    return SpinningDirection[direction]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LidarLayout:
    """Maps between a lidar's range image, its aligned image and its image of angles.

    Attributes:
        tables: Elevations [H], azimuths [W] and offsets [H] as given.
        n_rows, n_columns: H and W of the range image.
        width: Columns of the aligned image: at least W, and unless W is larger, at most those of 360 degrees.
        period: Columns of 360 degrees in the aligned image; the width if rows wrap around.
        pixels: [H * W] int64, flat pixel in the aligned image of each element of the range image; None if the images
            are the same.
        panorama: Width and height of the image of angles.
        row_v: [H] v of each row in the image of angles, ascending.
        column_u: [W + 1] u of each column, for a row without an offset, relative to the first column, ascending; then
            ``FULL_CIRCLE``.
        first_u, first_column: The first column of a row without an offset: its u, and its column in the aligned image.
        center: cx and cy of the image of angles.
        fx: ``SCALE`` if the lidar spins clockwise, otherwise ``-SCALE``, as longitudes grow clockwise.
        column_errors: Minimum and maximum of (exact column - whole column) of elements in the aligned image.
        time_error: Maximum difference between the time of an element and the time of its u in the image of angles, in
            sweeps.
        offset_max: Maximum magnitude of the offsets, in pixels of the image of angles.
    """

    tables: tuple[Tensor, Tensor, Tensor]
    n_rows: int
    n_columns: int
    width: int
    period: float
    pixels: Tensor | None
    panorama: tuple[int, int]
    row_v: Tensor
    column_u: Tensor
    first_u: float
    first_column: int
    center: tuple[float, float]
    fx: float
    column_errors: tuple[float, float]
    time_error: float
    offset_max: float

    @classmethod
    def of(cls, lidar: object, name: str = "lidar_coeffs") -> LidarLayout:
        """Checks the parameters of a lidar, of tsplat or gsplat, and computes its layout. `name` is the argument
        that holds it, for messages.

        Raises:
            ArgumentError: A field is missing, or the fields do not describe a spinning lidar.
        """
        tables = tuple(check_tensor(f"{name}.{n}", getattr(lidar, n, None), [None], "[n]") for n in TABLES)
        check_devices({f"{name}.{n}": table for n, table in zip(TABLES, tables)})
        direction = direction_of(lidar, name)
        layout = next((known for key, known in _layouts if _is_same(key, direction, tables)), None)
        if layout is None:
            layout = _lay_out(tables, 1 if direction is SpinningDirection.COUNTER_CLOCKWISE else -1, name)
            if all(table.grad_fn is None for table in tables):  # do not keep graphs alive
                copies = tuple(table.detach().clone() for table in tables if table.device.type == "cpu")
                _layouts.append(((direction, tables, _versions(tables), copies), layout))
                del _layouts[:-LAYOUTS_MAX]
        return layout

    def cameras(self, cameras: Cameras) -> Cameras:
        """Returns the cameras of the image of angles. ``viewmats`` of the given cameras map to the frame of the lidar.

        Returns cameras with invalid ``viewmats`` unchanged, for later checks to raise.
        """
        viewmats = self.camera_frame(cameras.viewmats)
        if not isinstance(viewmats, Tensor) or viewmats.dim() < 2:
            return cameras
        dtype = torch.promote_types(torch.float32, viewmats.dtype) if viewmats.dtype in FLOATS else torch.float32
        values = [[self.fx, 0.0, self.center[0]], [0.0, SCALE, self.center[1]], [0.0, 0.0, 1.0]]
        Ks = torch.tensor(values, dtype=dtype, device=viewmats.device)
        return cameras._replace(viewmats=viewmats, Ks=Ks.expand(*viewmats.shape[:-2], 3, 3))

    @staticmethod
    def camera_frame(poses: Any) -> Any:
        """Converts world-to-lidar poses [..., 4, 4] to world-to-camera poses: x right, y down, z forward.

        Returns other values unchanged.
        """
        if not isinstance(poses, Tensor) or poses.shape[-2:] != (4, 4) or poses.dtype not in FLOATS:
            return poses
        x, y, z, last = poses.unbind(-2)
        return torch.stack([-y, -z, x, last], -2)

    def panorama_settings(self, camera: CameraSettings) -> CameraSettings:
        """Returns camera settings for the image of angles."""
        return dataclasses.replace(camera, width=self.panorama[0], height=self.panorama[1])

    def aligned_settings(self, camera: CameraSettings) -> CameraSettings:
        """Returns camera settings for the aligned image."""
        return dataclasses.replace(camera, width=self.width)

    def directions(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the unit directions of elements in the camera frame, [H, W] each, in the dtype of a tensor."""
        elevations, azimuths, offsets = (table.to(like) for table in self.tables)
        azimuth, elevation = azimuths + offsets[:, None], elevations[:, None]
        across = elevation.cos()
        return -azimuth.sin() * across, -elevation.sin().expand_as(azimuth), azimuth.cos() * across

    def rays(self, cameras: Cameras, settings: CameraSettings, *, unit: bool) -> Rays:
        """Returns the rays of the aligned image of all cameras [B, C]; see :func:`camera_rays`."""
        rays = self.element_rays(cameras, settings, unit=unit)
        return rays._replace(per_pixel=self.align(rays.per_pixel))

    def element_rays(self, cameras: Cameras, settings: CameraSettings, *, unit: bool) -> Rays:
        """Returns the rays of the range images of all cameras [B, C]. The size in `settings` is ignored."""
        shape = (cameras.viewmats.shape[:2].numel(), self.n_rows, self.n_columns)
        along = self.directions(cameras.viewmats)
        settings = dataclasses.replace(settings, width=self.n_columns, height=self.n_rows)
        return rays_of(tuple(d.expand(shape) for d in along), cameras, settings, unit=unit)  # type: ignore[arg-type]

    def align(self, values: Tensor) -> Tensor:
        """Moves values [..., H, W] from the range image to the aligned image, zero elsewhere. Differentiable."""
        if self.pixels is None:
            return values
        flat = values.flatten(-2)
        aligned = flat.new_zeros(*flat.shape[:-1], self.n_rows * self.width)
        aligned = aligned.index_copy(-1, self.pixels.to(values.device), flat)
        return aligned.view(*values.shape[:-1], self.width)

    def range_image(self, values: Tensor) -> Tensor:
        """Moves values from aligned images [..., H, width, D] to range images [..., H, W, D]. Differentiable."""
        if self.pixels is None:
            return values
        chosen = values.flatten(-3, -2).index_select(-2, self.pixels.to(values.device))
        return chosen.view(*values.shape[:-2], self.n_columns, values.shape[-1])

    def boxes(
        self, projected: ProjectedGaussians, cameras: Cameras, numerics: Numerics
    ) -> tuple[ProjectedGaussians, Tensor]:
        """Returns means and radii of boxes in the aligned image, to intersect with tiles, and the period [nnz].

        Gaussians without an element inside their bounds get radii of 0. With a rolling shutter, bounds are widened by
        the possible motion between the time of the projection and the times of the elements.
        """
        means, radii = projected.means2d.detach().reshape(-1, 2), projected.radii.reshape(-1, 2)
        seen = (radii > 0).all(-1)
        half = radii.to(means.dtype)
        # If its half height is 90 degrees, the bounding sphere of the Gaussian contains the lidar.
        holds_lidar = half[:, 1] >= FULL_CIRCLE / 4
        half = SLACK * SUPPORT / min(numerics.extend, SUPPORT) * half + 1
        if cameras.shutter is not None:
            half = half + self._motion_bounds(means, half, projected, cameras.shutter)
        half = torch.where(holds_lidar[:, None], FULL_CIRCLE, half)
        low, high = (means - half).unbind(-1), (means + half).unbind(-1)
        row_v = self.row_v.to(means)
        first_row = torch.searchsorted(row_v, low[1].contiguous())
        end_row = torch.searchsorted(row_v, high[1].contiguous(), right=True)
        left = self._columns(low[0]) - self.column_errors[1]
        right = self._columns(high[0]) - self.column_errors[0]
        is_sector = 2 * half[:, 0] < FULL_CIRCLE
        left, right = torch.where(is_sector, left, 0.0), torch.where(is_sector, right, self.period)
        centers = torch.stack([0.5 * (left + right + 1), 0.5 * (first_row + end_row)], -1)
        half_height = (0.5 * (end_row - first_row - 1)).clamp_min(0.5)
        sizes = torch.stack([0.5 * (right - left), half_height], -1).ceil().clamp_min(1)
        sizes = torch.where((seen & (end_row > first_row))[:, None], sizes, 0.0).to(torch.int32)
        boxed = projected._replace(
            means2d=centers.to(means).view_as(projected.means2d), radii=sizes.view_as(projected.radii)
        )
        return boxed, means.new_full((len(means),), self.period)

    def _columns(self, u: Tensor) -> Tensor:
        """Converts u [nnz] of the image of angles to fractional columns of the aligned image."""
        column_u = self.column_u.to(u)
        x = u - self.first_u
        turns = (x / FULL_CIRCLE).floor()
        x = x - FULL_CIRCLE * turns
        i = torch.searchsorted(column_u, x.contiguous(), right=True).clamp(1, self.n_columns) - 1
        # The last interval is the gap between the last column and the first column of the next turn.
        step = torch.where(i == self.n_columns - 1, self.period - (self.n_columns - 1), 1.0)
        fraction = (x - column_u[i]) / (column_u[i + 1] - column_u[i])
        return self.first_column + i + step * fraction + self.period * turns

    def _motion_bounds(self, means: Tensor, half: Tensor, projected: ProjectedGaussians, shutter: Tensor) -> Tensor:
        """Bounds how much the motion during a sweep adds to half extents [nnz, 2], pixels of the image of angles."""
        ids = projected.image_ids()
        flat = shutter.detach().flatten(0, 1)
        poses = flat.repeat_interleave(projected.n_gaussians, 0) if ids is None else flat[ids]
        path, (rows, start) = path_of(poses), pose_at(poses, torch.zeros_like(poses[:, 0]))
        distance = (path.center + torch.stack(to_world(rows, start), -1)).norm(dim=-1)
        rotation, t_max = path.angle[:, 0], torch.maximum(path.t0.norm(dim=-1), path.t1.norm(dim=-1))
        # t(s) is interpolated, so the center -R(s)^T t(s) moves on an arc: add a bound of its sagitta to its distance.
        shift = distance + 0.25 * rotation * (rotation * t_max + 2 * (path.t1 - path.t0).norm(dim=-1))
        depths, size = projected.depths.detach().reshape(-1), half[:, 1] / SCALE
        nearest = depths * (1 - size).clamp_min(0) - shift
        # The angle by which a sweep moves a direction, and the fraction of a sweep inside the bounds of a Gaussian.
        of_sweep = rotation + shift / nearest.clamp_min(1e-9)
        latitude = ((means[:, 1] - self.center[1]) / SCALE).abs()
        u, width = means[:, 0], self.panorama[0]
        fraction = self.time_error + half[:, 0] / max(width - 1, 1)
        # At the seam of the panorama, elements are exposed at the start or at the end of the sweep.
        to_seam = torch.minimum(u, width - u) - half[:, 0] - self.offset_max
        cosine = (latitude + size + of_sweep).clamp_max(0.5 * math.pi).cos()
        at_seam = to_seam < SCALE * of_sweep / cosine.clamp_min(1e-3)
        angle = of_sweep * torch.where(at_seam, 1.0, fraction.clamp_max(1.0))
        angle = torch.where(nearest > 0, angle, math.pi)
        cosine = (latitude + size + angle).clamp_max(0.5 * math.pi).cos()
        return SCALE * torch.stack([(angle / cosine.clamp_min(1e-3)).clamp_max(math.pi), angle.clamp_max(math.pi)], -1)


LAYOUTS_MAX = 8
_layouts: list[tuple[Any, LidarLayout]] = []
"""Cache of recent layouts: (direction, tables, their versions, copies of tables on a CPU) and the layout.

Writes through ``data`` or NumPy do not change versions. On a CPU, values are compared, too; on a GPU, this would wait.
"""


def _versions(tables: tuple[Tensor, ...]) -> list[int] | None:
    return None if any(table.is_inference() for table in tables) else [table._version for table in tables]


def _is_same(key: Any, direction: SpinningDirection, tables: tuple[Tensor, ...]) -> bool:
    versions = _versions(tables)
    is_known = key[0] == direction and all(a is b for a, b in zip(key[1], tables))
    return is_known and versions is not None and versions == key[2] and all(map(torch.equal, tables, key[3]))


def _check_angles(
    elevations: np.ndarray, azimuths: np.ndarray, offsets: np.ndarray, sign: int, name: str
) -> np.ndarray:
    """Checks the angles of a lidar, which is the argument `name`.

    Returns azimuths relative to the first, in the direction of the spin, ascending.
    """
    n_rows, n_columns = len(elevations), len(azimuths)
    if not n_rows or not n_columns or len(offsets) != n_rows:
        found = f"{n_rows} rows, {n_columns} columns and {len(offsets)} offsets"
        raise ShapeError(f"{name}: expected an elevation and an offset for each row, and columns, found {found}")
    for table, values in zip(TABLES, (elevations, azimuths, offsets)):
        if not np.isfinite(values).all():
            raise ArgumentError(
                f"{name}.{table}: expected finite angles in radians, found NaN or infinity; check the lidar"
            )
    if (np.diff(elevations) >= 0).any() or abs(elevations).max() > math.pi / 2 + 1e-6:  # tolerance for pi / 2 in fp32
        raise ArgumentError(
            f"{name}.row_elevations_rad: expected angles between pi / 2 and -pi / 2 in descending order; sort the "
            "rows from top to bottom"
        )
    if abs(offsets).max() > math.pi:
        raise ArgumentError(
            f"{name}.row_azimuth_offsets_rad: expected angles of at most pi in magnitude, found "
            f"{abs(offsets).max():.4g}; convert degrees to radians, or subtract 2 pi"
        )
    from_first = np.concatenate([[0.0], np.cumsum(np.mod(sign * np.diff(azimuths), 2 * math.pi))])
    if (np.diff(from_first) <= 0).any() or from_first[-1] >= 2 * math.pi:
        raise ArgumentError(
            f"{name}.column_azimuths_rad: expected angles in the direction of the spin, less than 2 pi from the "
            "first to the last; sort the columns, or pass the other spinning_direction"
        )
    return from_first


def _lay_out(tables: tuple[Tensor, ...], sign: int, name: str) -> LidarLayout:
    """Checks the angles of a lidar, and computes its layout. ``sign`` is 1 for counterclockwise and -1 for clockwise.

    Angles are in the direction of the spin, relative to the first column of a row without an offset. Element (r, c) is
    at the angle ``from_first[c] + moves[r]``. Its exact column is this angle in columns, interpolated between columns,
    with the average pitch in the gap behind the last column. Its whole column is c plus the shift of its row.
    """
    elevations, azimuths, offsets = (table.detach().cpu().double().numpy() for table in tables)
    from_first = _check_angles(elevations, azimuths, offsets, sign, name)
    n_rows, n_columns = len(elevations), len(azimuths)
    span = from_first[-1]
    gap = 2 * math.pi - span
    pitch = span / (n_columns - 1) if n_columns > 1 else gap
    moves = sign * offsets
    shifts = np.rint(moves / pitch).astype(np.int64)
    # The aligned image has at most the columns of 360 degrees. Rows may wrap around.
    period = n_columns - 1 + gap / pitch
    width, width_max = n_columns + int(np.ptp(shifts)), max(n_columns, round(period))
    wraps_around = width >= width_max
    if wraps_around:
        width, period = width_max, float(width_max)
    first_column = 0 if wraps_around else -int(shifts.min())
    whole_columns = np.arange(n_columns) + (first_column + shifts)[:, None]
    knots = np.append(from_first, 2 * math.pi)
    angles = from_first + moves[:, None]
    turns = np.floor(angles / (2 * math.pi))
    exact = np.interp(angles - 2 * math.pi * turns, knots, np.append(np.arange(n_columns), period)) + period * turns
    column_errors = first_column + exact - whole_columns
    if wraps_around:
        whole_columns = whole_columns % width
    # The image of angles starts before and ends after all elements, but at most in the middle of the gap.
    before, after = (min(max(end, 0.0), 0.5 * gap) for end in (-moves.min(), moves.max()))
    size = math.ceil(SCALE * (before + span + after)) + 1
    times = np.mod(before + angles, 2 * math.pi) * SCALE / max(size - 1, 1)
    time_errors = abs(np.arange(n_columns) / max(n_columns - 1, 1) - times)
    time_errors = np.minimum(time_errors, abs(1 - time_errors))
    pixels = torch.from_numpy((whole_columns + width * np.arange(n_rows)[:, None]).reshape(-1))
    is_aligned = width == n_columns and not shifts.any()
    u = 0.5 + SCALE * before
    # Longitudes grow clockwise.
    return LidarLayout(
        tables=(tables[0], tables[1], tables[2]),
        n_rows=n_rows,
        n_columns=n_columns,
        width=width,
        period=period,
        pixels=None if is_aligned else pixels.to(tables[0].device),
        panorama=(size, math.ceil(SCALE * (elevations[0] - elevations[-1])) + 1),
        row_v=torch.from_numpy(0.5 + SCALE * (elevations[0] - elevations)),
        column_u=torch.from_numpy(SCALE * knots),
        first_u=u,
        first_column=first_column,
        center=(u - sign * SCALE * float(azimuths[0]), 0.5 + SCALE * float(elevations[0])),
        fx=-sign * float(SCALE),
        column_errors=(float(column_errors.min()), float(column_errors.max())),
        time_error=float(time_errors.max()),
        offset_max=SCALE * float(abs(offsets).max()),
    )


def check_no_lens(arguments: Mapping[str, Any]) -> None:
    """Raises ArgumentError if the arguments of a call with a lidar, by name, describe a lens."""
    for name in LensArguments._fields:
        if name != "viewmats_rs" and arguments[name] is not None:
            raise ArgumentError(
                f"{name}: expected None, as lidars have no lens, found a {type(arguments[name]).__name__}; pass None"
            )


def check_lidar(
    lidar: object, camera_model: object, rolling_shutter: str, *, is_exact: bool, sweeps: bool
) -> tuple[LidarLayout, str]:
    """Checks the arguments of a call with a lidar. Returns the layout, and the name of the rolling shutter.

    Args:
        lidar, camera_model, rolling_shutter: The arguments, the last one as a name.
        is_exact: Whether the call has ``with_ut`` and ``with_eval3d``.
        sweeps: Whether the lidar moves during a sweep, that is, whether ``viewmats_rs`` is passed.

    Raises:
        ArgumentError: The arguments contradict each other, or the lidar is invalid.
        UnsupportedError: ``is_exact`` is false.
    """
    if camera_model != "lidar":
        raise ArgumentError(f"lidar_coeffs: expected None, as camera_model is {camera_model!r}; pass 'lidar'")
    if lidar is None:
        raise ArgumentError("lidar_coeffs: expected the parameters of a lidar, as camera_model is 'lidar', found None")
    if not is_exact:
        raise UnsupportedError(
            "camera_model: 'lidar' is not implemented without exact rays; pass with_ut=True and with_eval3d=True"
        )
    by_column = RollingShutterType.ROLLING_LEFT_TO_RIGHT.name
    if rolling_shutter not in (RollingShutterType.GLOBAL.name, by_column):
        raise ArgumentError(
            f"rolling_shutter: expected GLOBAL or {by_column} for lidars, which read columns in their order, found "
            f"{rolling_shutter}"
        )
    return LidarLayout.of(lidar), by_column if sweeps else rolling_shutter
