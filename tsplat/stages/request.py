"""The arguments of ``rasterization()``: checked, agreed on by all ranks, and arranged for the stages."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..arguments import (
    check_backgrounds,
    check_bool,
    check_colors,
    check_devices,
    check_not_implemented,
    compute_dtype,
    is_per_camera,
    kind_of,
)
from ..data import Cameras, Gaussians3D, Rays, TileGrid
from ..errors import ArgumentError
from ..runtime.backend import launchers
from ..runtime.bundles import flatten, restore, structure
from ..runtime.compilation import plain_all, refuse_transforms
from ..runtime.memory import MemoryBudget, check_images
from .agreement import Ranks, agreement, check_distributed, describe, join
from .eval3d import camera_rays, check_rays, given_rays
from .inputs import NO_HARMONICS, Harmonics, check_scene, flatten_batch, flatten_batches, in_dtype
from .lens_models import Lens, add_lens
from .settings import OF_REFERENCE, PLAIN, Options, Settings, check_options
from .sparse_gradients import SparseGradients
from .validation import explain_sizes, prepare, raise_if_invalid, warn_if_nothing_is_visible

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

GEOMETRY = ("means", "quats", "scales", "covars")
"""Fields of :class:`Scene` whose gradients ``sparse_grad`` makes sparse."""


class Scene(NamedTuple):
    """The tensors of a call as the caller passed them; see :func:`tsplat.rasterization`."""

    means: Tensor
    quats: Tensor | None
    scales: Tensor | None
    opacities: Tensor
    colors: Tensor | None
    cameras: Cameras
    backgrounds: Tensor | None
    covars: Tensor | None
    extra_signals: Tensor | None = None
    lens: Lens = Lens()
    rays: Tensor | None = None


class Checked(NamedTuple):
    """What follows from the options of a call, and from the shapes, dtypes and devices of its tensors.

    Attributes:
        options: The options, with numbers as ints and floats.
        settings: What follows from the options.
        batch: The batch dimensions as passed.
        n_cameras, n_features: C, and the number of channels that are rendered.
        dtype: The compute dtype.
        grid: The tiles of this rank's images.
        bytes_per_intersection: By number of features, as far as :meth:`Request.memory_budget` was asked.
    """

    options: Options
    settings: Settings
    batch: torch.Size
    n_cameras: int
    n_features: int
    dtype: torch.dtype
    grid: TileGrid
    bytes_per_intersection: dict[int, int]


class Request(NamedTuple):
    """A checked call. All tensors but colors are in the compute dtype.

    Attributes:
        scene: The tensors as passed, with a stand-in for colors that are None.
        options, settings, batch, n_cameras, grid: Those of ``checked``.
        ranks: The ranks that render together, or None for a single one.
        distributed: Whether the caller asked for it.
        gaussians, cameras: This rank's own. The batch dimensions of cameras are flattened.
        colors: [..., N, ...], or per camera [..., C, N, ...], in their own dtype.
        extra_signals: Like colors, per camera or not; or None.
        backgrounds: [I, D], or None.
        sparse_gradients: What makes the gradients of the Gaussians sparse, or None.
        rays: [I, H, W, 6], or None for those of the cameras.
    """

    scene: Scene
    checked: Checked
    options: Options
    settings: Settings
    batch: torch.Size
    n_cameras: int
    grid: TileGrid
    ranks: Ranks | None
    distributed: bool
    gaussians: Gaussians3D
    cameras: Cameras
    colors: Tensor
    extra_signals: Tensor | None
    backgrounds: Tensor | None
    sparse_gradients: SparseGradients | None
    rays: Tensor | None

    @property
    def device(self) -> torch.device:
        return self.gaussians.means.device

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Leading dimensions of the images, [..., C, H, W]."""
        return (*self.batch, self.n_cameras, self.options.height, self.options.width)

    def split(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Separates rendered channels: colors, with depth as the last channel, and extra signals."""
        assert self.extra_signals is not None
        end = images.shape[-1] - int(self.options.renders_depth)
        begin = end - self.extra_signals.shape[-1]
        return torch.cat([images[..., :begin], images[..., end:]], -1), images[..., begin:end]

    def find_rays(self, cameras: Cameras) -> Rays | None:
        """The rays of this rank's pixels, from the cameras of all ranks; None without evaluation in 3D."""
        if not self.options.with_eval3d:
            return None
        if self.rays is not None:
            return given_rays(self.rays)
        settings = self.settings.compositing
        return camera_rays(self.own(cameras), settings.camera, unit=settings.hits)

    def find_harmonics(self, centers: Tensor | None) -> Harmonics:
        """The spherical harmonics that projection can evaluate: of three channels, the same for all cameras."""
        o = self.options
        # Evaluation in 3D adds to the gradients of means, too: separate, the order of that sum is that of the stages.
        if not o.renders_color or o.sh_degree is None or o.with_eval3d or self.colors.shape[-1] != 3:
            return NO_HARMONICS
        if is_per_camera(self.colors, o.sh_degree, len(self.batch)):
            return NO_HARMONICS
        assert centers is not None
        return Harmonics(o.sh_degree, centers.contiguous(), self.colors.contiguous())

    def own(self, cameras: Cameras) -> Cameras:
        """This rank's cameras among those of all ranks."""
        if self.ranks is None:
            return cameras
        first = sum(self.ranks.n_cameras[: self.ranks.rank])
        rows = slice(first, first + self.n_cameras)
        mine: Cameras = restore(structure(cameras), [None if t is None else t[:, rows] for t in flatten(cameras)])
        return mine

    def reference_arguments(self) -> dict[str, Any]:
        """The arguments of ``reference.rasterize``."""
        o, dtype = self.options, self.gaussians.means.dtype
        tensors = self.scene._asdict() | self.scene.cameras._asdict()  # with the lens as the stages take it
        del tensors["cameras"]
        return {
            **{name: None if tensor is None else tensor.to(dtype) for name, tensor in tensors.items()},
            **{name: getattr(o, name) for name in OF_REFERENCE},
            "numerics": self.settings.numerics,
            "unscented": self.settings.projection.unscented,
            "readout": o.rolling_shutter,
            "cull": o.validate != "off",
        }

    def memory_budget(self, n_features: int) -> MemoryBudget:
        """The budget for the intersections of rows with so many features, depth included."""
        needed = self.checked.bytes_per_intersection.get(n_features)
        if needed is None:
            launch, settings = launchers(self.device, self.options.backend), self.settings.compositing
            needed = launch.bytes_per_intersection(self.gaussians.means, self.grid, n_features, settings)
            self.checked.bytes_per_intersection[n_features] = needed
        return MemoryBudget(self.device, self.options.memory_budget, needed)

    def explain_memory(self) -> str:
        """The likely cause of too many intersections."""
        return explain_sizes(self.gaussians.means, self.gaussians.scales, self.gaussians.covars)

    def prepare(self, cameras: Cameras) -> tuple[Gaussians3D, Cameras, Tensor | None]:
        """The Gaussians with invalid ones marked, the cameras with invalid ones replaced, and the camera centers.

        Centers may be None without spherical harmonics.
        """
        o = self.options
        if o.validate == "off" and o.sh_degree is None and o.extra_signals_sh_degree is None:
            return self.gaussians, cameras, None
        n = len(self.batch)
        signals = [(self.colors, is_per_camera(self.colors, o.sh_degree, n))]
        if self.extra_signals is not None:
            signals.append((self.extra_signals, is_per_camera(self.extra_signals, o.extra_signals_sh_degree, n)))
        return prepare(self.gaussians, signals, cameras, self.settings.numerics, o.backend, check=o.validate != "off")


def check_request(
    scene: Scene,
    options: Options,
    not_implemented: dict[str, tuple[Any, Any]],
    group: ProcessGroup | None,
    distributed: bool,
    check_more: Callable[[Options], None] = lambda _: None,
) -> Request:
    """Checks the arguments of a call on all ranks.

    Args:
        not_implemented: Name -> (value, only implemented value) of options of gsplat.
        check_more: Checks what only some calls have, given the checked options.

    Raises:
        As :func:`tsplat.rasterization`.
    """
    distributed = check_bool("distributed", distributed)
    if group is not None and not distributed:
        raise ArgumentError("group: passed, but distributed is False; pass distributed=True, or no group")
    ranks = join(group, scene.means) if distributed else None
    if ranks is None:
        check_not_implemented(not_implemented)
        scene, checked = _check(scene, options, distributed)
        check_more(checked.options)
        return _arrange(scene, checked, distributed)
    with agreement(ranks, options.shared()) as record:
        check_not_implemented(not_implemented)
        scene, checked = _check(scene, options, distributed)
        check_more(checked.options)
        launchers(scene.means.device, checked.options.backend)  # raises where the backend cannot run
        signals = {"colors": scene.colors, "extra_signals": scene.extra_signals}
        sizes = checked.n_cameras, checked.dtype, options.capacity is not None
        describe(record, ranks, _gaussians(scene), signals, scene.cameras, *sizes)
    return _arrange(scene, checked, distributed, ranks)


_checked: dict[Any, Checked] = {}
"""What :func:`_check` found, by all that it depends on."""

CHECKED_MAX = 256


def _check(scene: Scene, options: Options, distributed: bool) -> tuple[Scene, Checked]:
    """Checks tensors and options. Calls that differ from an earlier one in values only are looked up.

    Returns:
        The scene with plain tensors, with a stand-in for colors that are None, and with the tensors of lenses; and what
        was found.
    """
    types, tensors = tuple(map(type, options)), flatten(scene)
    kinds = [type(None) if t is None else kind_of(t) for t in tensors]
    key = (options, types, distributed, type(scene.cameras), torch.is_grad_enabled(), *kinds)
    is_known = None not in kinds and PLAIN.issuperset(types) and forward_ad._current_level < 0
    checked = _checked.get(key) if is_known else None
    if checked is not None and all([t is None or t.data_ptr() or not t.numel() for t in tensors]):
        refuse_transforms()
    else:
        scene, checked = _check_all(scene, options, distributed)
        if is_known and all(map(operator.is_, flatten(scene), tensors)):
            if len(_checked) >= CHECKED_MAX:
                _checked.clear()
            _checked[key] = checked
    o = checked.options
    check_images(scene.means.device, checked.grid.n_images, o.width, o.height, checked.n_features, checked.dtype)
    if o.validate == "error":
        gaussians = _gaussians(scene)
        assert scene.colors is not None
        raise_if_invalid(gaussians, scene.cameras, scene.colors, o.sh_degree)
        if scene.extra_signals is not None:
            degree = o.extra_signals_sh_degree
            raise_if_invalid(gaussians, scene.cameras, scene.extra_signals, degree, "extra_signals")
        if o.camera_model == "pinhole" and not distributed:
            warn_if_nothing_is_visible(gaussians, scene.cameras, o.near_plane, o.far_plane)
    return scene, checked


def _check_all(scene: Scene, options: Options, distributed: bool) -> tuple[Scene, Checked]:
    options, settings = check_options(options)
    scene = Scene(*plain_all(scene._fields, scene))
    if scene.opacities is None:
        raise ArgumentError("opacities: expected a tensor [..., N], found None")
    batch, n_gaussians, n_cameras = check_scene(
        scene.means, scene.quats, scene.scales, scene.covars, (3, 3), scene.opacities, scene.cameras
    )
    for name in ("with_ut", "with_eval3d"):
        if getattr(options, name) and scene.covars is not None:
            raise ArgumentError(f"covars: expected None, as {name} is True; pass quats and scales")
    rays = _check_rays(scene.rays, options, batch, n_cameras)
    cameras = add_lens(scene.cameras, scene.lens, settings.projection, batch, n_cameras)
    scene = scene._replace(cameras=cameras, rays=rays)
    colors = scene.colors
    if colors is None:
        colors = _stand_in(scene.means, options)
        scene = scene._replace(colors=colors, backgrounds=None)
    sizes = batch, n_cameras, n_gaussians
    channels = check_colors(colors, options.sh_degree, *sizes)
    n_extra = _check_extra_signals(scene, options, *sizes)
    if scene.backgrounds is not None:
        n_channels = channels + n_extra if options.renders_color else 1 if options.surfels else None
        meaning = "[..., C, D] as cameras and colors" if n_channels != 1 else "[..., C, 1], as one channel is rendered"
        backgrounds = check_backgrounds(scene.backgrounds, (*batch, n_cameras), n_channels, meaning)
        scene = scene._replace(backgrounds=backgrounds)
    if options.sparse_grad and batch:
        raise ArgumentError(f"sparse_grad: expected no batch dimensions, found {list(batch)}")
    check_devices(dict(means=scene.means, colors=colors, backgrounds=scene.backgrounds, rays=rays))
    geometry = (scene.means, scene.quats, scene.scales) if scene.covars is None else (scene.means, scene.covars)
    others = (colors, *scene.cameras, scene.backgrounds, scene.extra_signals, rays)
    dtype = compute_dtype(*geometry, scene.opacities, *others)
    n_features = options.renders_color * channels + n_extra + options.renders_depth + 3 * options.return_normals
    if distributed:
        signals = {"colors": (colors, options.sh_degree)}
        if scene.extra_signals is not None:
            signals["extra_signals"] = scene.extra_signals, options.extra_signals_sh_degree
        per_camera = [name for name, (values, degree) in signals.items() if is_per_camera(values, degree, len(batch))]
        check_distributed(batch, options.backend, per_camera)
    grid = TileGrid.cover(math.prod(batch) * n_cameras, options.width, options.height, options.tile_size)
    return scene, Checked(options, settings, batch, n_cameras, n_features, dtype, grid, {})


def _arrange(scene: Scene, checked: Checked, distributed: bool, ranks: Ranks | None = None) -> Request:
    """Arranges the tensors of a checked call for the stages."""
    options, n, dtype = checked.options, len(checked.batch), checked.dtype
    sparse_gradients = SparseGradients() if options.sparse_grad else None
    colors, backgrounds, rays = scene.colors, scene.backgrounds, scene.rays
    assert colors is not None
    if not (options.renders_color or options.surfels):
        backgrounds = None
    return Request(
        scene=scene,
        checked=checked,
        options=options,
        settings=checked.settings,
        batch=checked.batch,
        n_cameras=checked.n_cameras,
        grid=checked.grid,
        ranks=ranks,
        distributed=distributed,
        gaussians=in_dtype(_gaussians(scene, sparse_gradients), dtype),
        cameras=flatten_batches(scene.cameras, n, dtype),
        colors=colors,
        extra_signals=scene.extra_signals,
        backgrounds=None if backgrounds is None else flatten_batch(backgrounds, n, dtype).flatten(0, 1),
        sparse_gradients=sparse_gradients,
        rays=None if rays is None else flatten_batch(rays, n, dtype).flatten(0, 1),
    )


def _stand_in(means: Tensor, options: Options) -> Tensor:
    """Returns valid colors [..., N, 3] for a call without colors, which renders none."""
    if options.renders_color:
        raise ArgumentError(f"colors: found None, but render_mode is {options.render_mode!r}; pass colors, or use 'D'")
    if options.sh_degree is not None:
        raise ArgumentError("sh_degree: expected None, as colors is None")
    return means.detach()


def _check_rays(rays: Tensor | None, options: Options, batch: torch.Size, n_cameras: int) -> Tensor | None:
    """Checks rays and returns them for each pixel."""
    if rays is None:
        return None
    if not options.with_eval3d:
        raise ArgumentError("rays: requires with_eval3d=True, found with_eval3d=False")
    return check_rays(rays, (*batch, n_cameras, options.height, options.width, 6))


def _check_extra_signals(scene: Scene, options: Options, batch: torch.Size, n_cameras: int, n_gaussians: int) -> int:
    """Checks the extra signals and returns the number of their channels, 0 if there are none."""
    extra_signals, sh_degree = scene.extra_signals, options.extra_signals_sh_degree
    if extra_signals is None:
        if sh_degree is not None:
            raise ArgumentError("extra_signals_sh_degree: expected None, as extra_signals is None")
        return 0
    names = ("extra_signals", "extra_signals_sh_degree")
    channels = check_colors(extra_signals, sh_degree, batch, n_cameras, n_gaussians, names)
    check_devices(dict(means=scene.means, extra_signals=extra_signals))
    return channels


def _gaussians(scene: Scene, sparse_gradients: SparseGradients | None = None) -> Gaussians3D:
    """The Gaussians with covariances as upper triangles, which take precedence over quats and scales."""
    if sparse_gradients is not None:
        attached = {name: sparse_gradients.attach(getattr(scene, name)) for name in GEOMETRY}
        scene = scene._replace(**attached)  # type: ignore[arg-type]
    means, opacities, covars = scene.means, scene.opacities, scene.covars
    if covars is None:
        return Gaussians3D(means, scene.quats, scene.scales, None, opacities)
    # By slices: a GPU waits for the copy of a list of indices.
    upper = torch.cat([covars[..., i, i:] for i in range(3)], -1)
    return Gaussians3D(means, None, None, upper, opacities)
