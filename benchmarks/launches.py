"""Records the kernel launches of tsplat's launchers on tiny inputs, without executing them."""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

from tsplat import kernels as kernels_module
from tsplat.config import DEFAULT_NUMERICS, FEATURES_MIN, CameraSettings, Unscented, UnscentedTransformParameters
from tsplat.data import (
    N_NEEDED,
    Cameras,
    Coefficients,
    CompositingSettings,
    GaussianMajor,
    Gaussians3D,
    Images,
    Intersections,
    IntersectionSettings,
    Limit,
    ProjectedGaussians,
    ProjectedGradients,
    ProjectionSettings,
    SavedImages,
    ScreenGaussians,
    Spans,
    Splats,
    TileGrid,
)
from tsplat.kernels import launch, packed_rows, scans
from tsplat.kernels.compositing import part_lists
from tsplat.kernels.prepare import COMPILER_OPTIONS
from tsplat.triton_cpu.launcher import Launcher

CHANNELS = (1, 3, 4, 8, 16, 64)

N, WIDTH, HEIGHT = 300, 320, 256

IMAGES = (1, 4, 8)
"""Numbers of images for which tiles of 16 pixels are composited in parts of different sizes."""


@dataclasses.dataclass(frozen=True)
class Launch:
    """A kernel call of a launcher.

    Attributes:
        kernel: The kernel.
        signature: Triton types of the arguments.
        constants: Values of constants and None, by their path.
        options: Compiler options.
        arguments: Arguments by name, those in bundles and constants by the names of their fields.
        channel_groups: Number of groups of channels, if it is an argument at run time.
    """

    kernel: JITFunction[Any]
    signature: dict[str, Any]
    constants: dict[tuple[int, ...], Any]
    options: dict[str, Any]
    arguments: dict[str, Any] = dataclasses.field(repr=False, compare=False)
    channel_groups: int = 1


def by_field(arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a launch by name, those in bundles by the names of their fields; the first of each."""
    found: dict[str, Any] = {}
    for name, argument in arguments.items():
        for path, value in launch.named_arguments(name, argument):
            found.setdefault(path.rpartition(".")[2], value)
    return found


@contextlib.contextmanager
def recorded(vendor: str) -> Iterator[list[Launch]]:
    """Context manager that records the kernel calls of launchers for a vendor's GPU, instead of running them."""
    launches: list[Launch] = []

    def record(kernel: JITFunction[Any], *called: Any) -> None:
        arguments: dict[str, Any] = called[-1]
        values = {k: v for k, v in arguments.items() if k in kernel.arg_names}
        options = {k: v for k, v in arguments.items() if k in COMPILER_OPTIONS and v != COMPILER_OPTIONS[k]}
        launcher = Launcher(kernel)
        signature, constants = launcher.signature(launcher.bind((), values))
        channel_groups = 1
        if kernel.__name__.startswith("_features"):
            width = FEATURES_MIN * values.get("BLOCKS", 1)
            channel_groups = -(-(values["n_colors"] + (values["depths"] is not None)) // width)
        launches.append(Launch(kernel, signature, constants, options, by_field(values), channel_groups))

    with (
        mock.patch.object(launch, "launch_on_device", record),
        mock.patch.object(launch, "current_gpu", return_value=0),
        mock.patch.object(launch, "vendor", return_value=vendor),
        # Launchers read counts that no kernel has written, so tensors are initialized.
        mock.patch.object(Tensor, "new_empty", Tensor.new_ones),
        mock.patch.object(torch, "empty_like", torch.ones_like),
    ):
        yield launches


kernels: Any = kernels_module
Labeled = Iterator[tuple[str, Launch]]


def shipped_launches(
    vendor: str, channels: tuple[int, ...] = CHANNELS, tile_sizes: tuple[int, ...] = (16,)
) -> list[tuple[str, Launch]]:
    """Returns all distinct kernel launches, each with a label of its variant."""
    found = itertools.chain(
        _projection(vendor),
        _spherical_harmonics(vendor),
        *(_intersection(vendor, tile_size) for tile_size in tile_sizes),
        *(_compositing(vendor, tile_size, channels) for tile_size in tile_sizes),
        _rows_and_sums(vendor),
        _ops(vendor),
    )
    unique: dict[str, tuple[str, Launch]] = {}
    for label, call in found:
        key = repr((call.kernel.__name__, call.signature, call.constants, call.options, call.channel_groups))
        unique.setdefault(key, (label, call))
    return list(unique.values())


def kernels_are_interpreted() -> bool:
    """Returns whether kernels run in Triton's interpreter, so that nothing can be compiled."""
    return not isinstance(part_lists._part_bits_kernel, JITFunction)


def _gaussians() -> Iterable[tuple[str, Gaussians3D]]:
    means, opacities, valid = torch.ones(1, N, 3), torch.ones(1, N), torch.ones(1, N, dtype=torch.bool)
    yield "", Gaussians3D(means, torch.ones(1, N, 4), torch.ones(1, N, 3), None, opacities, valid)
    yield " covars", Gaussians3D(means, None, None, torch.ones(1, N, 6), opacities, valid)


def _rows() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns radii, means2d, conics, depths."""
    return torch.ones(N, 2, dtype=torch.int32), torch.ones(N, 2), torch.ones(N, 3), torch.ones(N)


def _projection(vendor: str) -> Labeled:
    radii, means2d, conics, depths = _rows()
    cameras = Cameras(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3))
    needs: Any = Cameras(True, False)  # type: ignore[arg-type]
    yield from _unscented(vendor, cameras, needs)
    for name, gaussians in _gaussians():
        others = () if name else ((True, "ortho"), (True, "fisheye"))
        for antialiased, model in ((False, "pinhole"), (True, "pinhole"), *others):
            settings = ProjectionSettings(
                CameraSettings(WIDTH, HEIGHT, model),
                antialiased=antialiased,
                numerics=DEFAULT_NUMERICS,
                backend="triton",
            )
            v = ProjectedGradients(means2d, depths, conics, depths if antialiased else None, depths)
            with recorded(vendor) as launches:
                kernels.projection_fwd(gaussians, cameras, settings)
                kernels.projection_fwd(gaussians, cameras, dataclasses.replace(settings, packed=True))
                row_of = torch.arange(N, dtype=torch.int32)
                kernels.projection_bwd(gaussians, cameras, row_of, radii, v, settings, needs)
            label = f"{'antialiased' if antialiased else 'classic'}{name}"
            label += f" {model}" if model != "pinhole" else ""
            yield from (
                (f"{label} visible" if call.arguments.get("visible_out") is not None else label, call)
                for call in launches
            )
        colors, per_camera = (torch.ones(1, N, 3), False), (torch.ones(1, 1, N, 3), True)
        with recorded(vendor) as launches:
            for signals in ({"colors": colors}, {"colors": per_camera}, {"colors": colors, "extra_signals": colors}):
                kernels.find_valid(gaussians, signals, cameras, DEFAULT_NUMERICS)
            kernels.find_valid(None, {}, cameras, DEFAULT_NUMERICS)
        yield from ((f"validation{name}", call) for call in launches)
        with recorded(vendor) as launches:
            in_two = {"colors": (torch.ones(1, N, 1, 3), False), "shN": (torch.ones(1, N, 15, 3), False)}
            kernels.find_valid(gaussians, in_two, cameras, DEFAULT_NUMERICS)
        yield from ((f"validation{name} in two tensors", call) for call in launches)


def _unscented(vendor: str, cameras: Cameras, needs: Any) -> Labeled:
    """Projects Gaussians by the unscented transform."""
    radii, means2d, conics, depths = _rows()
    (_, gaussians), *_ = _gaussians()
    lens, path = torch.ones(1, 1, 12), torch.ones(1, 1, 20)
    kinds = [(model, "GLOBAL") for model in ("pinhole", "fisheye", "ftheta")]
    for model, readout in [*kinds, ("pinhole", "ROLLING_TOP_TO_BOTTOM")]:
        rolls = readout != "GLOBAL"
        seen_by = cameras._replace(lens=lens, shutter=path if rolls else None)
        settings = ProjectionSettings(
            CameraSettings(WIDTH, HEIGHT, model, readout=readout),  # type: ignore[arg-type]
            numerics=DEFAULT_NUMERICS,
            backend="triton",
            unscented=Unscented.of(UnscentedTransformParameters(), DEFAULT_NUMERICS),
        )
        with recorded(vendor) as launches:
            kernels.projection_fwd(gaussians, seen_by, settings)
            v = ProjectedGradients(means2d, depths, conics, None, depths)
            needed = needs._replace(viewmats=not rolls)
            kernels.projection_bwd(gaussians, seen_by, None, radii, v, settings, needed)
        label = f"distorted {model}" + (" rolling shutter" if rolls else "")
        yield from ((label, call) for call in launches)


def _spherical_harmonics(vendor: str) -> Labeled:
    means, centers, ids, radii = torch.ones(1, N, 3), torch.ones(1, 1, 3), torch.arange(N), _rows()[0]
    in_two = Coefficients(torch.ones(1, N, 1, 3), torch.ones(1, N, 15, 3))
    variants = {f"degree {degree}": Coefficients(torch.ones(1, N, (degree + 1) ** 2, 3)) for degree in range(5)}
    for label, coeffs in {**variants, "degree 3 in two tensors": in_two}.items():
        inputs, v, degree = (means, centers, coeffs), torch.ones(N, 3), math.isqrt(coeffs.n_bases) - 1
        with recorded(vendor) as launches:
            _, clamped = kernels.spherical_harmonics_fwd(*inputs, ids, radii, degree=degree, as_colors=True)
            kernels.spherical_harmonics_bwd(
                *inputs, ids.to(torch.int32), radii, clamped, v, degree=degree, needs_centers=True, v_means_before=means
            )
        yield from ((label, call) for call in launches)


def _intersection(vendor: str, tile_size: int) -> Labeled:
    radii, means2d, conics, opacities = _rows()
    starts, ints = torch.arange(N + 1, dtype=torch.int32), torch.ones(N, dtype=torch.int32)
    grid, settings = TileGrid(1, tile_size, 8, 8), IntersectionSettings(DEFAULT_NUMERICS, "triton")
    ellipses = ScreenGaussians(means2d, radii, conics, opacities, torch.arange(N), None)
    for name, screen in (("ellipse", ellipses), ("rectangle", ellipses._replace(conics=None, opacities=None))):
        with recorded(vendor) as launches:
            kernels.tile_rows(screen, grid, (0, 8), settings)
            kernels.tile_columns(screen, grid, ints, ints, starts, N, settings)
            spans = Spans(ints, ints, starts, ints, ints, starts, N)
            images = screen._replace(image_ids=torch.arange(N))
            kernels.tile_intersections(images, grid, spans, torch.int16, 2**15, 2**15 - 1)
            kernels.tile_lists(ints.to(torch.int16), torch.arange(N), ints, 64, -(2**15))
            kernels.gather_tiles(ints.to(torch.int16), ints, 64, -(2**15))
        yield from ((f"tile {tile_size} {name}", call) for call in launches)


def _rows_and_sums(vendor: str) -> Labeled:
    for label, n in (("", N), (" of several sections", scans.ONE_PROGRAM_MAX + 1)):
        with recorded(vendor) as launches:
            limit = Limit(torch.zeros(N_NEEDED, dtype=torch.int64), 0, n)
            kernels.prefix_sums(torch.ones(n, dtype=torch.int32), limit=limit)
        yield from (("lengths" + label, call) for call in launches)
    radii, means2d, conics, depths = _rows()
    rows = ProjectedGaussians(1, N, None, radii, means2d, depths, conics, None, depths)
    for label, few_max in (("few packed rows", N), ("packed rows", 0)):
        with recorded(vendor) as launches, mock.patch.object(packed_rows, "ONE_PROGRAM_MAX", few_max):
            packed_rows.pack_rows(rows, torch.ones(N, dtype=torch.int32), N)
        yield from ((label, call) for call in launches if "_rows_" in call.kernel.__name__)
    with recorded(vendor) as launches:
        kernels.order_values(depths)
    yield from (("depths", call) for call in launches)


def _compositing(vendor: str, tile_size: int, channels: tuple[int, ...]) -> Labeled:
    for n_images in IMAGES if tile_size == 16 else (1,):
        for d, has_depths in [*((d, False) for d in channels), (0, True), (3, True)]:
            yield from _composited(vendor, n_images, tile_size, d, has_depths)

    with recorded(vendor) as launches:
        ints = torch.ones(N, dtype=torch.int32)
        limit = Limit(torch.zeros(N_NEEDED, dtype=torch.int64), 2, N, 4)
        kernels.prefix_sums(ints, limit=limit, bitmasks=torch.ones_like(ints))
    yield from (("lists of parts", call) for call in launches)
    with mock.patch.object(part_lists, "CUT", 0):
        for d in channels:
            yield from _composited(vendor, 1, tile_size, d, False)


def _composited(vendor: str, n_images: int, tile_size: int, d: int, has_depths: bool) -> Labeled:
    _, means2d, conics, depths = _rows()
    starts = torch.arange(N + 1, dtype=torch.int32)
    ids = starts[:-1]
    grid = TileGrid.cover(n_images, WIDTH, HEIGHT, tile_size)
    lists = Intersections(
        0,
        torch.zeros(grid.n_tiles + 1, dtype=torch.int32),
        torch.ones(N, dtype=torch.int32),
        GaussianMajor(ids, starts, starts, ids, ids),
        torch.ones(N, dtype=torch.int16),
    )
    alphas = torch.ones(n_images, HEIGHT, WIDTH)
    pixel_ends = alphas.to(torch.int32)
    saved = SavedImages(alphas, pixel_ends)
    masks = torch.ones(n_images, grid.n_tiles, dtype=torch.bool)
    colors, backgrounds = (torch.ones(N, d), torch.ones(n_images, d)) if d else (None, None)
    splats = Splats(means2d, conics, depths, colors, depths if has_depths else None)
    image = torch.ones(n_images, HEIGHT, WIDTH, splats.n_features)
    with recorded(vendor) as launches:
        settings = CompositingSettings(CameraSettings(WIDTH, HEIGHT), tile_size, 32, False, DEFAULT_NUMERICS, "triton")
        for output in (None, pixel_ends):
            images = Images(image, alphas, output, alphas=alphas)
            parts = kernels.composite_fwd(splats, backgrounds, masks, lists, images, settings)
        for absgrad in (False, True):
            settings = dataclasses.replace(settings, absgrad=absgrad)
            kernels.composite_bwd(splats, backgrounds, lists, saved, image, alphas, None, settings, parts)
    for call in launches:
        extra = " absgrad" if call.arguments.get("ABSGRAD") else ""
        extra += " image only" if call.arguments.get("pixel_ends", 0) is None else ""
        if call.arguments.get("WIDTH") and call.arguments.get("HEIGHT"):
            extra += f" part {call.arguments.get('WIDTH')}x{call.arguments.get('HEIGHT')}"
        if call.arguments.get("chunk_lists") is not None:
            extra += " chunks"
        yield f"D={d}{' and depth' if has_depths else ''} tile {tile_size}{extra}", call


def _ops(vendor: str) -> Labeled:
    image = torch.ones(1, HEIGHT, WIDTH, 3)
    for valid in (False, True):
        with recorded(vendor) as launches:
            weights = dict(n_windows=image.numel(), ssim_weight=0.2)
            _, kept = kernels.l1_ssim_fwd(image, image, valid=valid, dtype=torch.float32, **weights)
            kernels.l1_ssim_bwd(kept, [None, None, torch.ones(())], **weights)
        yield from (("valid" if valid else "same", call) for call in launches)
    with recorded(vendor) as launches:
        rows, quats = torch.ones(N, 3), torch.ones(N, 4)
        kernels.mcmc_noise(rows, quats, rows, rows[:, 0].contiguous(), rows, 1.0, 1.0, 1.0)
        kernels.mcmc_regularization(rows[:, 0].contiguous(), rows, rows[:, 0].contiguous(), rows, 1.0, 1.0)
    yield from (("every Gaussian", call) for call in launches)
    parameter = torch.ones(N, 3)
    for moment in (parameter, parameter.bfloat16()):
        for visible in (None, torch.ones(N, dtype=torch.bool)):
            with recorded(vendor) as launches:
                kernels.adam_step(*[[parameter]] * 2, *[[moment]] * 2, [[1.0] * 7], visible)
            variant = "exact" if visible is None else "visible only"
            suffix = "" if moment is parameter else ", moments in bf16"
            yield from ((variant + suffix, call) for call in launches)
