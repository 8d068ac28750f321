"""The options of ``rasterization()``: one table of types, defaults, checks, and values that are not supported."""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple, get_type_hints

from .. import config, output_maps
from ..arguments import check_bool, check_culling, check_numerics, check_tile_size
from ..data import CompositingSettings, IntersectionSettings, ProjectionSettings
from ..errors import ArgumentError, ArgumentTypeError, UnsupportedError
from ..kernels_torch.lenses import LENSES
from ..output_maps import DEPTHS, HITS, OF_SURFELS, PLANE_DEPTHS, Output
from ..scalars import check_choice, check_size, enum_name, equals, to_int
from .eval3d import ray_footprint
from .lens_models import check_camera_model, check_unscented
from .lidars import MARGIN, LidarLayout, check_lidar


class Supported(NamedTuple):
    """The supported values of an option, or their types, and why others are not supported."""

    values: tuple[Any, ...]
    why: str

    def has(self, value: object) -> bool:
        return type(value) in self.values or any([equals(value, other) for other in self.values])

    def __str__(self) -> str:
        return " or ".join("a number" if value is int else repr(value) for value in self.values)


class Option(NamedTuple):
    """Describes an option besides its type and default.

    Attributes:
        check: Checks a value, given the option's name, and converts it to the option's type. The default does nothing:
            :func:`check_options` then checks the value, or only a single value is ``supported``.
        supported: Key of ``WHERE`` -> the values that are supported there. Without a key, all values are.
        is_local: Whether ranks may pass different values.
    """

    check: Callable[[str, Any], Any]
    supported: Mapping[str, Supported]
    is_local: bool


WHERE = {
    "surfels": "`rasterization_2dgs`",
    "reference": '`backend="reference"`',
    "distributed": "`distributed=True`",
    "passes": "replayed and `graphed` calls",
    "graphs": "graphs of `torch.compile`",
}
"""Contexts in which some values of options are not supported -> their names in the documentation."""


def _option(
    check: Callable[[str, Any], Any] = lambda _, value: value, *, is_local: bool = False, **supported: Supported
) -> Option:
    assert supported.keys() <= WHERE.keys()
    return Option(check, supported, is_local)


def _one_of(*choices: object) -> Callable[[str, Any], Any]:
    def check(name: str, value: Any) -> Any:
        check_choice(name, value, choices)
        return value

    return check


def _check_degree(_: str, value: Any) -> Any:
    """Converts integers to int. Other values are returned: checks of the coefficients raise for them."""
    degree = to_int(value)
    return value if degree is None else degree


def _check_bytes(name: str, value: Any) -> int | None:
    return None if value is None else check_size(name, value)


def _check_capacity(name: str, value: Any) -> config.Capacity:
    is_sized = isinstance(value, config.Capacities) or (isinstance(value, str) and value == "auto")
    return value if is_sized else _check_bytes(name, value)


ALONE = Supported((False,), "other ranks take part")
PLAIN_ROWS = Supported((False,), "the number of projected Gaussians depends on values")
NO_WAIT = Supported(("cull", "off"), "the call waits for values")
DENSE = Supported((False,), "gradients are those of autograd")
SEGMENTS = Supported((False,), "segments are counted first")
NO_OBJECTS = Supported((None,), "objects may change between calls")
NOT_COMPARED = Supported((None,), "ranks do not compare objects")
NO_LISTS = Supported((None,), "there are no lists of intersections")
NO_SEGMENTS = NO_LISTS._replace(values=(False,))
KERNELS = ("auto", "triton", "torch")


class Options(NamedTuple):
    """The options of a call; see :func:`tsplat.rasterization`. Ranks must agree on all options that are not local.

    The types are those after the check. ``surfels`` is true for calls of :func:`tsplat.rasterization_2dgs`.
    """

    width: Annotated[int, _option(check_size)]
    height: Annotated[int, _option(check_size)]
    near_plane: Annotated[float, _option()] = 0.01
    far_plane: Annotated[float, _option()] = 1e10
    radius_clip: Annotated[float, _option()] = 0.0
    eps2d: Annotated[float, _option()] = 0.3
    sh_degree: Annotated[int | None, _option(_check_degree)] = None
    extra_signals_sh_degree: Annotated[int | None, _option(_check_degree)] = None
    packed: Annotated[bool, _option(check_bool, graphs=PLAIN_ROWS)] = True
    tile_size: Annotated[int, _option(lambda _, value: check_tile_size(value))] = 16
    render_mode: Annotated[config.RenderMode, _option(_one_of(*config.RENDER_MODES))] = "RGB"
    rasterize_mode: Annotated[config.RasterizeMode, _option(_one_of(*config.RASTERIZE_MODES))] = "classic"
    sparse_grad: Annotated[
        bool, _option(check_bool, is_local=True, reference=DENSE, passes=PLAIN_ROWS, graphs=PLAIN_ROWS)
    ] = False
    absgrad: Annotated[
        bool,
        _option(check_bool, reference=DENSE, graphs=Supported((False,), "it is an attribute of a tensor")),
    ] = False
    channel_chunk: Annotated[int, _option(check_size, is_local=True)] = 32
    segmented: Annotated[bool, _option(check_bool, is_local=True, reference=NO_SEGMENTS, passes=SEGMENTS)] = False
    camera_model: Annotated[config.CameraModel, _option()] = "pinhole"
    with_ut: Annotated[bool, _option(check_bool)] = False
    with_eval3d: Annotated[bool, _option(check_bool)] = False
    ut_params: Annotated[object, _option()] = None
    rolling_shutter: Annotated[str, _option(_one_of(*config.RollingShutterType.__members__))] = "GLOBAL"
    return_normals: Annotated[bool, _option(check_bool)] = False
    global_z_order: Annotated[bool, _option()] = True
    numerics: Annotated[config.NumericsName, _option()] = "gsplat-1.5"
    validate: Annotated[config.Validate, _option(_one_of(*config.VALIDATE), passes=NO_WAIT, graphs=NO_WAIT)] = "cull"
    backend: Annotated[
        config.Backend,
        _option(
            _one_of(*config.BACKENDS),
            surfels=Supported(KERNELS, "the reference has no 2D Gaussians"),
            distributed=Supported(KERNELS, "the reference runs on one rank"),
            passes=Supported(("auto", "triton"), "passes consist of launches"),
            graphs=Supported(KERNELS, "the reference has no capacity"),
        ),
    ] = "auto"
    memory_budget: Annotated[
        int | None,
        _option(
            _check_bytes, is_local=True, reference=NO_LISTS, passes=Supported((None,), "the call may render in bands")
        ),
    ] = None
    capacity: Annotated[
        config.Capacity,
        _option(
            _check_capacity,
            is_local=True,
            reference=NO_LISTS,
            passes=Supported((int, None), "it changes between calls"),
            graphs=Supported((int,), "the number of intersections depends on values"),
        ),
    ] = None
    distributed: Annotated[bool, _option(check_bool, is_local=True, passes=ALONE, graphs=ALONE)] = False
    distloss: Annotated[bool, _option(check_bool, is_local=True)] = False
    depth_mode: Annotated[str, _option(_one_of(*config.DEPTH_MODES), is_local=True)] = "expected"
    surfels: Annotated[bool, _option()] = False
    lidar_coeffs: Annotated[object, _option(distributed=NOT_COMPARED, passes=NO_OBJECTS, graphs=NO_OBJECTS)] = None
    renderer_config: Annotated[object, _option(is_local=True, passes=NO_OBJECTS, graphs=NO_OBJECTS)] = None

    @classmethod
    def of(cls, arguments: Mapping[str, Any], *, surfels: bool) -> "Options":
        """Takes the options from the arguments of a rendering function."""
        given = {name: arguments[name] for name in cls._fields if name in arguments}
        if equals(given.get("camera_model"), "lidar"):
            given |= dict(width=1, height=1)  # the lidar has a size of its own
        if not surfels and given["tile_size"] is None:
            given["tile_size"] = choose_tile_size(given["width"], given["height"], given["with_eval3d"])
        if "rolling_shutter" in given:
            given["rolling_shutter"] = enum_name(given["rolling_shutter"])
        return cls(**given, surfels=surfels)

    @property
    def renders_color(self) -> bool:
        return "RGB" in self.render_mode

    @property
    def renders_depth(self) -> bool:
        return "D" in self.render_mode or self.renders_hits

    @property
    def renders_hits(self) -> bool:
        """Whether depth is the distance along the rays of pixels."""
        return self.render_mode in config.HIT_MODES

    @property
    def expects_depth(self) -> bool:
        """Whether depth is divided by alpha."""
        return "E" in self.render_mode

    @property
    def renders_planes(self) -> bool:
        """Whether the depth of a 2D Gaussian is measured where the ray of the pixel meets its plane."""
        return self.depth_mode in config.PLANE_MODES

    def outputs(self) -> tuple[Output, ...]:
        """Returns the maps to render besides colors and alphas."""
        asked = [output for output in output_maps.ON_REQUEST if getattr(self, output.argument)]
        if self.surfels:
            asked += OF_SURFELS
        if self.renders_depth or self.surfels:
            asked.append(HITS if self.renders_hits else PLANE_DEPTHS if self.renders_planes else DEPTHS)
        return tuple(asked)

    def shared(self) -> dict[str, Any]:
        """Returns the options that must be equal on all ranks."""
        return {name: value for name, value in self._asdict().items() if not OPTIONS[name].is_local}


OPTIONS: dict[str, Option] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Options, include_extras=True).items()
}
SUPPORTED = {
    where: {name: option.supported[where] for name, option in OPTIONS.items() if where in option.supported}
    for where in WHERE
}
"""Key of ``WHERE`` -> the options that support only some values there."""


def unsupported(where: str, arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any, Supported]]:
    """Yields (name, value, supported values) of arguments whose values are not supported in a context."""
    for name, supported in SUPPORTED[where].items():
        if name in arguments and not supported.has(arguments[name]):
            yield name, arguments[name], supported


class Settings(NamedTuple):
    """The settings of the stages, derived from the options. Kernels take them as constants."""

    numerics: config.Numerics
    projection: ProjectionSettings
    intersection: IntersectionSettings
    compositing: CompositingSettings

    @classmethod
    def of(cls, o: Options, numerics: config.Numerics) -> "Settings":
        """Makes the settings of checked options."""
        planes = (o.near_plane, o.far_plane)
        camera = config.CameraSettings.of(o.width, o.height, o.camera_model, *planes, numerics, o.rolling_shutter)
        unscented = check_unscented(o.with_ut, o.ut_params, numerics, o.global_z_order, o.camera_model)
        projected, composited = camera, camera
        if isinstance(o.lidar_coeffs, LidarLayout):
            projected, composited = o.lidar_coeffs.panorama_settings(camera), o.lidar_coeffs.aligned_settings(camera)
            unscented = None if unscented is None else unscented._replace(margin=MARGIN)
        projection = ProjectionSettings(
            camera=projected,
            eps2d=o.eps2d,
            radius_clip=o.radius_clip,
            antialiased=o.rasterize_mode == "antialiased",
            packed=o.packed,
            numerics=numerics,
            backend=o.backend,
            unscented=unscented,
            surfels=o.surfels,
            row_capacity=o.capacity.rows if isinstance(o.capacity, config.Capacities) else None,
        )
        compositing = CompositingSettings(
            camera=composited,
            tile_size=o.tile_size,
            channel_chunk=o.channel_chunk,
            absgrad=o.absgrad,
            numerics=numerics,
            backend=o.backend,
            footprint=_footprint(o, numerics),
            outputs=o.outputs(),
        )
        intersection = IntersectionSettings(
            numerics, o.backend, segmented=o.segmented, capacity=o.capacity, boxes=o.with_eval3d or o.surfels
        )
        return cls(numerics, projection, intersection, compositing)


def _footprint(o: Options, numerics: config.Numerics) -> str:
    if o.surfels:
        return "surfel plane" if o.renders_planes else "surfel"
    if o.with_eval3d:
        return ray_footprint(o.camera_model, numerics)
    return "wrapped ellipse" if LENSES[o.camera_model].wraps else "ellipse"


def with_capacities(arguments: Mapping[str, Any], capacities: config.Capacities) -> dict[str, Any]:
    """Returns the arguments of a call with other capacities, so that no size depends on values."""
    return {**arguments, "capacity": capacities}


def check_renderer_config(given: object, *, with_eval3d: bool) -> None:
    """Checks a kernel configuration of gsplat 1.6. It has no effect, as there is a single kernel."""
    if given is None or isinstance(given, config.RendererConfig_MixedBatch):
        return
    if not isinstance(given, config.RendererConfig):
        raise ArgumentTypeError(
            "renderer_config: expected None, RendererConfig_MixedBatch() or RendererConfig_ParallelBatch(), found "
            f"{type(given).__name__}"
        )
    if not isinstance(given, config.RendererConfig_ParallelBatch):
        raise UnsupportedError(
            f"renderer_config: {type(given).__name__} is not implemented; pass None, or RendererConfig_MixedBatch()"
        )
    if not with_eval3d:
        raise ArgumentError("renderer_config: RendererConfig_ParallelBatch requires with_eval3d=True, found False")


IMMUTABLE_TYPES = {bool, int, float, str, type(None), config.RollingShutterType, config.FThetaPolynomialType}
"""Types of immutable values, which cache keys may contain."""


def choose_tile_size(width: object, height: object, with_eval3d: object) -> int:
    """Returns the default of ``tile_size=None``, as in gsplat 1.6."""
    edge = min(check_size("width", width), check_size("height", height))
    return 8 if with_eval3d and edge < 1080 else 16


def check_options(options: Options, *, sweeps: bool = False) -> tuple[Options, Settings]:
    """Checks options. Returns them, with numbers converted to ints and floats, and the settings of the stages.

    A lidar becomes a panorama, with its layout as ``lidar_coeffs``. ``sweeps`` is whether it moves during a sweep.
    """
    options = Options(*[OPTIONS[name].check(name, value) for name, value in options._asdict().items()])
    if options.lidar_coeffs is not None or options.camera_model == "lidar":
        arguments = options.lidar_coeffs, options.camera_model, options.rolling_shutter
        lidar, readout = check_lidar(*arguments, is_exact=options.with_ut and options.with_eval3d, sweeps=sweeps)
        size: dict[str, Any] = dict(width=lidar.n_columns, height=lidar.n_rows)
        options = options._replace(camera_model="equirectangular", lidar_coeffs=lidar, rolling_shutter=readout, **size)
    check_camera_model(options.camera_model, with_ut=options.with_ut)
    numerics = check_numerics(options.numerics)
    given = options.near_plane, options.far_plane, options.radius_clip, options.eps2d
    culling = check_culling(*given, numerics, options.camera_model)
    numbers: dict[str, Any] = dict(zip(("near_plane", "far_plane", "radius_clip", "eps2d"), culling))
    options = options._replace(**numbers)
    if LENSES[options.camera_model].wraps and options.with_eval3d:
        options = options._replace(render_mode=config.DISTANCE_MODES.get(options.render_mode, options.render_mode))
    if options.backend == "reference":
        for name, _, _ in unsupported("reference", options._asdict()):
            raise UnsupportedError(f"{name}: not implemented with backend='reference'; use another backend")
    if options.surfels:
        for name, supported in SUPPORTED["surfels"].items():
            check_choice(name, getattr(options, name), supported.values)
    if options.distloss and not options.renders_depth:
        raise ArgumentError(f"render_mode: expected one with depth, as distloss is True, found {options.render_mode!r}")
    if options.sparse_grad and not options.packed:
        raise ArgumentError("sparse_grad: requires packed=True, found packed=False")
    for output in options.outputs():
        if output.needs and not getattr(options, output.needs):
            found = f"{output.argument}: {getattr(options, output.argument)!r}"
            raise ArgumentError(f"{found} requires {output.needs}=True, found {output.needs}=False")
    check_renderer_config(options.renderer_config, with_eval3d=options.with_eval3d)
    if options.with_eval3d:
        options = options._replace(absgrad=False)  # as means2d has no gradient
    if options.capacity is not None and options.segmented:
        raise ArgumentError("capacity: requires segmented=False, as segments are counted first; the image is the same")
    return options, Settings.of(options, numerics)
