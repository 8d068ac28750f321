"""The options of ``rasterization()``: checked, and what follows from them alone: the settings of the stages."""

from __future__ import annotations

import functools
from typing import Annotated, Any, NamedTuple, TypeVar, get_origin, get_type_hints

from ..arguments import (
    check_bool,
    check_choice,
    check_culling,
    check_numerics,
    check_rolling_shutter,
    check_size,
    check_tile_size,
    to_int,
)
from ..config import (
    BACKENDS,
    HIT_MODES,
    RASTERIZE_MODES,
    RENDER_MODES,
    VALIDATE,
    Backend,
    CameraModel,
    CameraSettings,
    Capacities,
    Numerics,
    NumericsName,
    RasterizeMode,
    RenderMode,
    RollingShutterType,
    Validate,
)
from ..data import CompositingSettings, IntersectionSettings, ProjectionSettings
from ..errors import ArgumentError, UnsupportedError
from .capacity import Capacity
from .lens_models import check_camera_model, check_unscented

Value = TypeVar("Value")
Local = Annotated[Value, "local"]
"""The type of a field of :class:`Options` that may differ between ranks."""

NOT_OF_REFERENCE = {"absgrad": False, "memory_budget": None, "sparse_grad": False, "segmented": False, "capacity": None}
"""Options of which ``backend="reference"`` implements this value only."""


class Options(NamedTuple):
    """The options of a call as the caller passed them; see :func:`tsplat.rasterization`. ``surfels`` are 2D Gaussians.

    All but those that are ``Local`` must be equal on all ranks.
    """

    width: int
    height: int
    near_plane: float
    far_plane: float
    radius_clip: float
    eps2d: float
    sh_degree: int | None
    extra_signals_sh_degree: int | None
    packed: bool
    tile_size: int
    render_mode: RenderMode
    absgrad: bool
    rasterize_mode: RasterizeMode
    backend: Backend
    numerics: NumericsName
    camera_model: CameraModel
    validate: Validate
    channel_chunk: Local[int]
    memory_budget: Local[int | None]
    sparse_grad: Local[bool]
    segmented: Local[bool]
    capacity: Local[Capacity]
    with_ut: bool = False
    with_eval3d: bool = False
    ut_params: object = None
    rolling_shutter: str = RollingShutterType.GLOBAL.name
    surfels: bool = False
    return_normals: bool = False
    global_z_order: bool = True

    @property
    def renders_color(self) -> bool:
        return "RGB" in self.render_mode

    @property
    def renders_depth(self) -> bool:
        return "D" in self.render_mode or self.renders_hits

    @property
    def renders_hits(self) -> bool:
        """Whether depth is the distance along the rays of pixels."""
        return self.render_mode in HIT_MODES

    @property
    def expects_depth(self) -> bool:
        """Whether depth is divided by alpha."""
        return "E" in self.render_mode

    def shared(self) -> dict[str, Any]:
        """The options that must be equal on all ranks."""
        return {name: value for name, value in self._asdict().items() if name not in LOCAL}


OF_REFERENCE = (
    "width", "height", "near_plane", "far_plane", "radius_clip", "eps2d", "sh_degree", "extra_signals_sh_degree",
    "render_mode", "rasterize_mode", "camera_model", "with_eval3d", "tile_size", "return_normals",
)  # fmt: skip
"""Options that the reference takes by the same name."""

LOCAL = {name for name, hint in get_type_hints(Options, include_extras=True).items() if get_origin(hint) is Annotated}


class Settings(NamedTuple):
    """What follows from the options alone: the preset, and the settings of the stages."""

    numerics: Numerics
    projection: ProjectionSettings
    intersection: IntersectionSettings
    compositing: CompositingSettings

    @classmethod
    def of(cls, o: Options, numerics: Numerics) -> Settings:
        """Makes the settings of checked options."""
        planes = (o.near_plane, o.far_plane)
        camera = CameraSettings.of(o.width, o.height, o.camera_model, *planes, numerics, o.rolling_shutter)
        projection = ProjectionSettings(
            camera=camera,
            eps2d=o.eps2d,
            radius_clip=o.radius_clip,
            antialiased=o.rasterize_mode == "antialiased",
            packed=o.packed,
            numerics=numerics,
            backend=o.backend,
            unscented=check_unscented(o.with_ut, o.ut_params, numerics, o.global_z_order),
            surfels=o.surfels,
        )
        compositing = CompositingSettings(
            camera=camera,
            tile_size=o.tile_size,
            channel_chunk=o.channel_chunk,
            absgrad=o.absgrad,
            numerics=numerics,
            backend=o.backend,
            footprint="surfel" if o.surfels else numerics.ray_footprint if o.with_eval3d else "ellipse",
            distortion=o.surfels,
            normals=o.return_normals,
            hits=o.renders_hits,
        )
        intersection = IntersectionSettings(
            numerics, o.backend, segmented=o.segmented, capacity=o.capacity, boxes=o.with_eval3d or o.surfels
        )
        return cls(numerics, projection, intersection, compositing)


PLAIN = {bool, int, float, str, type(None)}
"""Types whose values cannot change, so that what follows from them is kept."""


def check_options(options: Options) -> tuple[Options, Settings]:
    """Checks options, and returns them with numbers of any type as ints and floats, and the settings of the stages."""
    types = tuple(map(type, options))
    return _check_once(options, types) if PLAIN.issuperset(types) else _check(options)


@functools.lru_cache(maxsize=256)
def _check_once(options: Options, _types: tuple[type, ...]) -> tuple[Options, Settings]:
    """Checks options once. Options of other types may be equal, such as 1 and True."""
    return _check(options)


def _check(options: Options) -> tuple[Options, Settings]:
    check_choice("render_mode", options.render_mode, RENDER_MODES)
    check_choice("rasterize_mode", options.rasterize_mode, RASTERIZE_MODES)
    check_choice("backend", options.backend, BACKENDS)
    check_choice("validate", options.validate, VALIDATE)
    numbers: dict[str, Any] = {"tile_size": check_tile_size(options.tile_size)}
    check_rolling_shutter(options.rolling_shutter)
    for name in ("packed", "absgrad", "sparse_grad", "segmented", "with_ut", "with_eval3d", "return_normals"):
        numbers[name] = check_bool(name, getattr(options, name))
    check_camera_model(options.camera_model, with_ut=numbers["with_ut"])
    capacity = options.capacity
    is_sized = isinstance(capacity, Capacities) or (isinstance(capacity, str) and capacity == "auto")
    for name in ("width", "height", "channel_chunk", "memory_budget", "capacity"):
        value = getattr(options, name)
        if not (value is None and name in ("memory_budget", "capacity")) and not (name == "capacity" and is_sized):
            numbers[name] = check_size(name, value)
    for name in ("sh_degree", "extra_signals_sh_degree"):
        degree = to_int(getattr(options, name))
        if degree is not None:
            numbers[name] = degree
    numerics, planes = check_numerics(options.numerics), (options.near_plane, options.far_plane)
    culling = check_culling(*planes, options.radius_clip, options.eps2d, numerics, options.camera_model)
    numbers |= dict(zip(("near_plane", "far_plane", "radius_clip", "eps2d"), culling))
    options = options._replace(**numbers)
    if options.backend == "reference":
        for name, implemented in NOT_OF_REFERENCE.items():
            if getattr(options, name) != implemented:
                raise UnsupportedError(f"{name}: not implemented with backend='reference'; use another backend")
    if options.sparse_grad and not options.packed:
        raise ArgumentError("sparse_grad: requires packed=True, found packed=False")
    needed = {"render_mode": options.renders_hits, "return_normals": options.return_normals}
    for name in (name for name, is_needed in needed.items() if is_needed and not options.with_eval3d):
        raise ArgumentError(f"{name}: {getattr(options, name)!r} requires with_eval3d=True, found with_eval3d=False")
    if options.with_eval3d and options.absgrad:
        raise ArgumentError("absgrad: expected False, as with_eval3d is True and means2d then has no gradient")
    if options.capacity is not None and options.segmented:
        raise ArgumentError("capacity: requires segmented=False, as segments are counted first; the image is the same")
    return options, Settings.of(options, numerics)
