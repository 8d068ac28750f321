"""A rendering call: checks the arguments, and holds the checked arguments and derived settings for the stages."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from ..arguments import (
    check_backgrounds,
    check_bool,
    check_colors,
    check_devices,
    check_tensor,
    compute_dtype,
    is_per_camera,
)
from ..data import Cameras, Gaussians3D, ProjectedGaussians, Rays, Splats, TileGrid
from ..errors import ArgumentError, UnsupportedError
from ..runtime.backend import launchers
from ..runtime.bundles import flatten, restore, structure
from ..runtime.compilation import plain_all
from ..runtime.memory import MemoryBudget, check_images
from .agreement import Ranks, check_distributed, checks_on_all_ranks, join_ranks
from .eval3d import camera_rays, check_rays, given_rays
from .inputs import NO_HARMONICS, Harmonics, check_scene, flatten_batch, flatten_batches, in_dtype
from .lens_models import LensArguments, add_lens, given_intrinsics, u_periods
from .lidars import LidarLayout, check_no_lens
from .options import Options, Settings, check_options, unsupported
from .sparse_gradients import SparseGradients
from .validation import mark_valid
from .value_checks import explain_sizes, raise_if_invalid, warn_if_nothing_is_visible


@dataclasses.dataclass(eq=False)
class Call:
    """A call of :func:`tsplat.rasterization` or :func:`tsplat.rasterization_2dgs`.

    Apart from ``sparse_gradients``, stages do not change it.

    Attributes:
        means, quats, scales, opacities, colors: The Gaussians as given: [..., N, 3], [..., N, 4], [..., N, 3],
            [..., N], and [..., N, D] or more. If no colors are rendered, ``colors`` may be a placeholder.
        shN: Coefficients of degrees above 0 as given, if ``colors`` holds degree 0 only; or None.
        cameras: ``viewmats`` and ``Ks`` as given. The check adds the tensors of ``lens``.
        lens, covars, backgrounds, extra_signals, rays: As given. The check expands backgrounds and rays to all images.
        options: As given. The check converts numbers to ints and floats.
        ranks: The ranks that render together, or None for a single rank.
        sparse_gradients: Makes the gradients of the Gaussians sparse; or None.
        settings: Settings of the stages, derived from the options.
        batch: The batch dimensions as given.
        n_cameras: C of this rank.
        n_features: The number of channels of all images of the call, for the check of memory.
        dtype: The compute dtype.
        grid: The tiles of this rank's images.
    """

    means: Tensor
    quats: Tensor | None
    scales: Tensor | None
    opacities: Tensor
    colors: Tensor | None
    shN: Tensor | None  # noqa: N815 - the name of the argument
    cameras: Cameras
    lens: LensArguments
    covars: Tensor | None
    backgrounds: Tensor | None
    extra_signals: Tensor | None
    rays: Tensor | None
    options: Options
    ranks: Ranks | None = None
    sparse_gradients: SparseGradients | None = None
    settings: Settings = dataclasses.field(init=False)
    batch: torch.Size = dataclasses.field(init=False)
    n_cameras: int = dataclasses.field(init=False)
    n_features: int = dataclasses.field(init=False)
    dtype: torch.dtype = dataclasses.field(init=False)
    grid: TileGrid = dataclasses.field(init=False)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Leading dimensions of the images, [..., C, H, W]."""
        return (*self.batch, self.n_cameras, self.options.height, self.options.width)

    @property
    def lidar(self) -> LidarLayout | None:
        """The lidar layout of a checked call; None for cameras."""
        lidar = self.options.lidar_coeffs
        return lidar if isinstance(lidar, LidarLayout) else None

    def signals(self) -> dict[str, tuple[Tensor, int | None]]:
        """Returns colors, shN and extra_signals, those that were passed, with their spherical harmonics degrees."""
        o, signals = self.options, {}
        if self.colors is not None:
            signals["colors"] = self.colors, o.sh_degree
        if self.shN is not None:
            signals["shN"] = self.shN, o.sh_degree
        if self.extra_signals is not None:
            signals["extra_signals"] = self.extra_signals, o.extra_signals_sh_degree
        return signals

    def all_colors(self) -> Tensor:
        """Returns the colors, or the spherical harmonics coefficients of all degrees."""
        assert self.colors is not None
        return self.colors if self.shN is None else torch.cat([self.colors, self.shN], -2)

    def gaussians(self) -> Gaussians3D:
        """Returns the Gaussians. Covariances, as upper triangles, take precedence over quats and scales."""
        means, quats, scales, covars = self.means, self.quats, self.scales, self.covars
        if self.sparse_gradients is not None:
            means, quats, scales, covars = map(self.sparse_gradients.attach, (means, quats, scales, covars))  # type: ignore[assignment]
        if covars is None:
            return Gaussians3D(means, quats, scales, None, self.opacities)
        # Slices instead of a list of indices, which would be copied to the GPU synchronously.
        upper = torch.cat([covars[..., i, i:] for i in range(3)], -1)
        return Gaussians3D(means, None, None, upper, self.opacities)

    def local_cameras(self) -> Cameras:
        """Returns this rank's cameras [B, C] in the compute dtype."""
        return flatten_batches(self.cameras, len(self.batch), self.dtype)

    def prepare_inputs(self, gaussians: Gaussians3D, cameras: Cameras) -> tuple[Gaussians3D, Cameras, Tensor | None]:
        """Converts Gaussians to the compute dtype, marks invalid ones, and replaces invalid cameras.

        Returns:
            The Gaussians, the cameras, and the camera centers. These are None if nothing is checked and there are no
            spherical harmonics.
        """
        o, gaussians = self.options, in_dtype(gaussians, self.dtype)
        if o.validate == "off" and o.sh_degree is None and o.extra_signals_sh_degree is None:
            return gaussians, cameras, None
        signals = {name: (t, is_per_camera(t, degree, len(self.batch))) for name, (t, degree) in self.signals().items()}
        return mark_valid(gaussians, signals, cameras, self.settings.numerics, o.backend, check=o.validate != "off")

    def fused_harmonics(self, centers: Tensor | None) -> Harmonics:
        """Returns the spherical harmonics to evaluate in the autograd node of the projection, if there are three
        channels that all cameras share."""
        o, colors = self.options, self.colors
        assert colors is not None
        # Evaluation in 3D adds to v_means, too. A node of its own keeps the order of this sum that of the stages.
        if not o.renders_color or o.sh_degree is None or o.with_eval3d or colors.shape[-1] != 3:
            return NO_HARMONICS
        if is_per_camera(colors, o.sh_degree, len(self.batch)):
            return NO_HARMONICS
        assert centers is not None
        higher = None if self.shN is None else self.shN.contiguous()
        return Harmonics(o.sh_degree, centers.contiguous(), colors.contiguous(), higher)

    def memory_budget(self, splats: Splats) -> MemoryBudget:
        """Returns the memory budget for the intersections of splats."""
        device, settings = splats.means2d.device, self.settings.compositing
        kernels = launchers(device, self.options.backend)
        needed = kernels.bytes_per_intersection(splats.means2d, self.grid, splats.n_features, settings)
        return MemoryBudget(device, self.options.memory_budget, needed)

    def explain_memory(self) -> str:
        """Returns the likely cause of too many intersections, for messages."""
        gaussians = in_dtype(self.gaussians(), self.dtype)
        return explain_sizes(gaussians.means, gaussians.scales, gaussians.covars)

    def image_backgrounds(self) -> Tensor | None:
        """Returns the backgrounds [I, D] in the compute dtype; None if no channel with a background is rendered."""
        if self.backgrounds is None or not (self.options.renders_color or self.options.surfels):
            return None
        return flatten_batch(self.backgrounds, len(self.batch), self.dtype).flatten(0, 1)

    def find_rays(self, cameras: Cameras) -> Rays | None:
        """Computes the rays of this rank's pixels from the cameras of all ranks. Returns None unless with_eval3d."""
        if not self.options.with_eval3d:
            return None
        settings, lidar = self.settings.compositing, self.lidar
        if self.rays is not None:
            rays = flatten_batch(self.rays, len(self.batch), self.dtype).flatten(0, 1)
            return given_rays(rays if lidar is None else lidar.align(rays.movedim(-1, 1)).movedim(1, -1))
        if lidar is not None:
            return lidar.rays(self.select_local(cameras), settings.camera, unit=settings.hits)
        return camera_rays(self.select_local(cameras), settings.camera, unit=settings.hits)

    def tile_inputs(self, received: ProjectedGaussians, cameras: Cameras) -> tuple[ProjectedGaussians, Tensor | None]:
        """Returns the rows to intersect with tiles, and the period of u of each row; None if columns do not wrap.

        Args:
            received: The rows that this rank composites. For a lidar, they are replaced by boxes in its range image.
            cameras: The cameras of all ranks.
        """
        local = self.select_local(cameras)
        if self.lidar is not None:
            return self.lidar.boxes(received, local, self.settings.numerics)
        return received, u_periods(received, local, self.options.camera_model)

    def select_local(self, cameras: Cameras) -> Cameras:
        """Selects this rank's cameras from the cameras of all ranks."""
        if self.ranks is None:
            return cameras
        first = sum(self.ranks.n_cameras[: self.ranks.rank])
        rows = slice(first, first + self.n_cameras)
        local: Cameras = restore(structure(cameras), [None if t is None else t[:, rows] for t in flatten(cameras)])
        return local

    def split_signals(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Splits rendered channels into colors, with depth as the last channel if rendered, and extra signals."""
        assert self.extra_signals is not None
        end = images.shape[-1] - int(self.options.renders_depth)
        begin = end - self.extra_signals.shape[-1]
        return torch.cat([images[..., :begin], images[..., end:]], -1), images[..., begin:end]


ARGUMENTS = (
    "means", "quats", "scales", "opacities", "colors", "shN", "cameras", "lens", "covars", "backgrounds",
    "extra_signals", "rays",
)  # fmt: skip
"""Attributes of a call that are arguments of the caller."""


def check_call(arguments: dict[str, Any], *, surfels: bool = False) -> Call:
    """Checks the arguments of a rendering function on all ranks, and returns them as a :class:`Call`.

    Args:
        arguments: All arguments of the rendering function, by name.
        surfels: Whether the function is :func:`tsplat.rasterization_2dgs`.

    Raises:
        As :func:`tsplat.rasterization`.
    """
    options, group, given = Options.of(arguments, surfels=surfels), arguments["group"], arguments.get
    size, viewmats = (arguments["width"], arguments["height"]), arguments["viewmats"]
    call = Call(
        means=arguments["means"],
        quats=given("quats"),
        scales=given("scales"),
        opacities=arguments["opacities"],
        colors=given("colors"),
        shN=given("shN"),
        cameras=Cameras(viewmats, given_intrinsics(arguments["Ks"], options.camera_model, viewmats, size)),
        lens=LensArguments(*map(given, LensArguments._fields)),
        covars=given("covars"),
        backgrounds=given("backgrounds"),
        extra_signals=given("extra_signals"),
        rays=given("rays"),
        options=options,
    )
    distributed = check_bool("distributed", options.distributed)
    if group is not None and not distributed:
        raise ArgumentError("group: passed, but distributed is False; pass distributed=True, or no group")
    ranks = join_ranks(group, call.means) if distributed else None
    if ranks is None:
        _check_all(call)
        _check_values(call)
    else:
        with checks_on_all_ranks(ranks, options.shared()) as description:
            _check_all(call)
            _check_values(call)
            launchers(call.means.device, call.options.backend)  # raises if the backend cannot run
            ranks.check_device(call.means)
            signals = {"colors": call.colors, "shN": call.shN, "extra_signals": call.extra_signals}
            sizes = call.n_cameras, call.dtype, options.capacity is not None
            description.add_tensors(call.gaussians(), signals, call.cameras, *sizes)
    call.ranks = ranks
    call.sparse_gradients = SparseGradients() if call.options.sparse_grad else None
    return call


def _check_values(call: Call) -> None:
    """Checks that images fit into memory, and with ``validate="error"`` that values are valid."""
    o = call.options
    camera = call.settings.compositing.camera
    check_images(call.means.device, call.grid.n_images, camera.width, camera.height, call.n_features, call.dtype)
    if o.validate == "error":
        gaussians = call.gaussians()
        for name, (values, degree) in call.signals().items():
            raise_if_invalid(gaussians, call.cameras, values, degree, name)
        if o.camera_model == "pinhole" and not o.distributed:
            warn_if_nothing_is_visible(gaussians, call.cameras, o.near_plane, o.far_plane)


def _check_all(call: Call) -> None:
    """Checks the arguments without reading their values, and sets the attributes that follow from them."""
    sweeps = call.lens.viewmats_rs is not None
    call.options, call.settings = options, settings = check_options(call.options, sweeps=sweeps)
    vars(call).update(zip(ARGUMENTS, plain_all(ARGUMENTS, [getattr(call, name) for name in ARGUMENTS])))
    if call.lidar is not None:
        check_no_lens(call.lens._asdict())
        call.cameras = call.lidar.cameras(call.cameras)
        call.lens = call.lens._replace(viewmats_rs=call.lidar.camera_frame(call.lens.viewmats_rs))
    if call.opacities is None:
        raise ArgumentError("opacities: expected a tensor [..., N], found None")
    batch, n_gaussians, n_cameras = check_scene(
        call.means, call.quats, call.scales, call.covars, (3, 3), call.opacities, call.cameras
    )
    for name in ("with_ut", "with_eval3d"):
        if getattr(options, name) and call.covars is not None:
            raise ArgumentError(f"covars: expected None, as {name} is True; pass quats and scales")
    call.batch, call.n_cameras = batch, n_cameras
    if call.rays is not None:
        if not options.with_eval3d:
            raise ArgumentError("rays: requires with_eval3d=True, found with_eval3d=False")
        call.rays = check_rays(call.rays, (*call.image_shape, 6))
    call.cameras = add_lens(call.cameras, call.lens, settings.projection, batch, n_cameras)
    if call.colors is None:
        call.colors, call.backgrounds = _placeholder_colors(call.means, options), None
    sizes = batch, n_cameras, n_gaussians
    call.colors, call.shN = (_per_batch(t, options.sh_degree, batch) for t in (call.colors, call.shN))
    call.extra_signals = _per_batch(call.extra_signals, options.extra_signals_sh_degree, batch)
    channels = _check_colors(call, *sizes)
    n_extra = _check_extra_signals(call, *sizes)
    if call.backgrounds is not None:
        n_channels = channels + n_extra if options.renders_color else 1 if options.surfels else None
        meaning = "[..., C, D] as cameras and colors" if n_channels != 1 else "[..., C, 1], as one channel is rendered"
        call.backgrounds = check_backgrounds(call.backgrounds, (*batch, n_cameras), n_channels, meaning)
    if options.sparse_grad and batch:
        raise ArgumentError(f"sparse_grad: expected no batch dimensions, found {list(batch)}")
    check_devices(
        dict(means=call.means, colors=call.colors, shN=call.shN, backgrounds=call.backgrounds, rays=call.rays)
    )
    geometry = (call.means, call.quats, call.scales) if call.covars is None else (call.means, call.covars)
    others = (call.colors, call.shN, *call.cameras, call.backgrounds, call.extra_signals, call.rays)
    call.dtype = compute_dtype(*geometry, call.opacities, *others)
    call.n_features = options.renders_color * channels + n_extra + sum(output.channels for output in options.outputs())
    if options.distributed:
        per_camera = [name for name, (t, degree) in call.signals().items() if is_per_camera(t, degree, len(batch))]
        check_distributed(batch, per_camera)
        for name, value, supported in unsupported("distributed", options._asdict()):
            found = f"={value!r}" if isinstance(value, str) else ""
            instead = f"use {supported.values[0]!r}, as {supported.why}"
            raise UnsupportedError(f"distributed: {name}{found} is not implemented; {instead}")
    width = settings.compositing.camera.width
    call.grid = TileGrid.cover(math.prod(batch) * n_cameras, width, options.height, options.tile_size)


def _per_batch(values: Tensor | None, sh_degree: int | None, batch: torch.Size) -> Tensor | None:
    """Expands coefficients [N, K, D] to [*batch, N, K, D]. As in gsplat 1.6, all batches may share them."""
    if values is None or sh_degree is None or not batch or values.dim() != 3:
        return values
    return values.expand(*batch, -1, -1, -1)


def _placeholder_colors(means: Tensor, options: Options) -> Tensor:
    """Returns placeholder colors [..., N, 3] for a call that passes no colors and renders none."""
    if options.renders_color:
        raise ArgumentError(f"colors: found None, but render_mode is {options.render_mode!r}; pass colors, or use 'D'")
    if options.sh_degree is not None:
        raise ArgumentError("sh_degree: expected None, as colors is None")
    return means.detach()


def _check_colors(call: Call, batch: torch.Size, n_cameras: int, n_gaussians: int) -> int:
    """Checks colors, or coefficients in one or two tensors. Returns the number of channels."""
    degree, n_higher = call.options.sh_degree, 0
    if call.shN is not None:
        if degree is None:
            raise ArgumentError("shN: requires sh_degree, found sh_degree=None; pass the degree in use")
        first = check_tensor("colors", call.colors, [*batch, n_gaussians, 1, None], "[..., N, 1, D], as shN is given")
        shape = [*batch, n_gaussians, None, first.shape[-1]]
        n_higher = check_tensor("shN", call.shN, shape, "[..., N, K - 1, D] as colors").shape[-2]
    return check_colors(call.colors, degree, batch, n_cameras, n_gaussians, n_higher=n_higher)


def _check_extra_signals(call: Call, batch: torch.Size, n_cameras: int, n_gaussians: int) -> int:
    """Checks extra signals. Returns the number of channels, 0 without extra signals."""
    extra_signals, sh_degree = call.extra_signals, call.options.extra_signals_sh_degree
    if extra_signals is None:
        if sh_degree is not None:
            raise ArgumentError("extra_signals_sh_degree: expected None, as extra_signals is None")
        return 0
    names = ("extra_signals", "extra_signals_sh_degree")
    channels = check_colors(extra_signals, sh_degree, batch, n_cameras, n_gaussians, names)
    check_devices(dict(means=call.means, extra_signals=extra_signals))
    return channels
