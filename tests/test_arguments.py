"""Invalid and unsupported arguments: typed errors with the argument, the expected and the found value, and a remedy."""

import copy
import math

import numpy as np
import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.identity import assert_identical
from tsplat import ArgumentError, ArgumentTypeError, DeviceError, DtypeError, ShapeError, UnsupportedError
from tsplat.arguments import check_devices
from tsplat.compat import gsplat
from tsplat.config import RendererConfig, RendererConfig_ParallelBatch
from tsplat.data import Cameras
from tsplat.scalars import to_float
from tsplat.stages.inputs import check_scene


class Future(RendererConfig):
    """A choice of a kernel that there may be one day."""


INVALID = [
    (dict(means=torch.zeros(12, 2)), ShapeError, r"means: expected \[..., N, 3\], here \[\?, 3\], found \[12, 2\]"),
    (dict(means=torch.zeros(3)), ShapeError, r"means: .*found \[3\]"),
    (dict(opacities=None), ArgumentError, r"opacities: expected a tensor \[..., N\], found None"),
    (dict(means=None), ArgumentTypeError, "means: expected a tensor .*found NoneType"),
    (dict(renderer_config="fast"), ArgumentTypeError, "renderer_config: expected None, RendererConfig_.*found str"),
    (dict(renderer_config=RendererConfig_ParallelBatch()), ArgumentError, ".*: RendererConfig_ParallelBatch requires"),
    (
        dict(means=torch.zeros(12, 3, dtype=torch.int64)),
        DtypeError,
        r"means: .*torch.int64; convert it with .float\(\)",
    ),
    (dict(quats=torch.zeros(11, 4)), ShapeError, r"quats: expected .* here \[12, 4\], found \[11, 4\]"),
    (dict(quats=None), ArgumentError, "quats: found None; pass both quats and scales, or covars"),
    (dict(scales=torch.zeros(12)), ShapeError, r"scales: .*found \[12\]"),
    (dict(covars=torch.zeros(12, 6)), ShapeError, r"covars: expected .* here \[12, 3, 3\], found \[12, 6\]"),
    (dict(opacities=torch.zeros(12, 1)), ShapeError, r"opacities: expected .* here \[12\], found \[12, 1\]"),
    (dict(colors=torch.zeros(12, 0)), ShapeError, "colors: expected at least one channel"),
    (dict(colors=torch.zeros(5, 3)), ShapeError, r"colors: .*\[12, \?\], found \[5, 3\]$"),
    (dict(colors=torch.zeros(12, 4, 3)), ShapeError, r"colors: .*here \[2, 12, \?\], found \[12, 4, 3\]; for SH"),
    (dict(sh_degree=2, colors=torch.zeros(12, 4, 3)), ShapeError, "sh_degree: degree 2 needs 9 bases, but .* have 4"),
    (
        dict(sh_degree=5, colors=torch.zeros(12, 36, 3)),
        ArgumentError,
        "sh_degree: expected an int from 0 to 4, found 5",
    ),
    (dict(sh_degree=True, colors=torch.zeros(12, 4, 3)), ArgumentError, "sh_degree: .*found True"),
    (dict(colors=torch.zeros(2, 12, 4, 3)), ShapeError, r"colors: .*; for SH coefficients pass sh_degree$"),
    (
        dict(viewmats=torch.zeros(4, 4)),
        ShapeError,
        r"viewmats: expected .*here \[\?, 4, 4\], found \[4, 4\]; add a camera dimension: viewmats\[None\]$",
    ),
    (dict(Ks=torch.zeros(3, 3)), ShapeError, r"Ks: .*found \[3, 3\]; add a camera dimension: Ks\[None\]$"),
    (dict(Ks=torch.zeros(1, 3, 3)), ShapeError, r"Ks: expected .* here \[2, 3, 3\], found \[1, 3, 3\]"),
    (dict(backgrounds=torch.zeros(3)), ShapeError, r"backgrounds: expected .* here \[2, 3\], found \[3\]"),
    (dict(width=0), ArgumentError, "width: expected a positive int, found 0"),
    (dict(height=2.5), ArgumentError, "height: expected a positive int, found 2.5"),
    (dict(width=10**400), ArgumentError, r"width: expected an int below 2\^63, found 10+\.\.\.$"),
    (dict(channel_chunk=0), ArgumentError, "channel_chunk: expected a positive int, found 0"),
    (dict(near_plane="0.1"), ArgumentError, "near_plane: expected a number, found '0.1'"),
    (dict(eps2d=torch.ones(2)), ArgumentError, r"eps2d: expected a finite number of at least 0, found Tensor \[2\]"),
    (dict(far_plane=None), ArgumentError, "far_plane: expected a number, found None"),
    (dict(near_plane=math.nan), ArgumentError, "near_plane: expected a number, found nan"),
    (dict(near_plane=10**400), ArgumentError, r"near_plane: expected a number, found 10+\.\.\.$"),
    (dict(far_plane=math.nan), ArgumentError, "far_plane: expected a number, found nan"),
    (dict(near_plane=2.0, far_plane=1.0), ArgumentError, "far_plane: expected at least near_plane, 2, found 1"),
    (
        dict(far_plane=0.1, numerics="inria"),
        ArgumentError,
        "far_plane: expected at least 0.2, the least depth of pinhole cameras with numerics='inria', found 0.1",
    ),
    (dict(near_plane=-2.0, far_plane=-1.0), ArgumentError, "far_plane: expected at least 0, .*found -1"),
    (dict(radius_clip=math.nan), ArgumentError, "radius_clip: expected a finite number, found nan"),
    (dict(radius_clip=math.inf), ArgumentError, "radius_clip: expected a finite number, found inf"),
    (dict(eps2d=math.nan), ArgumentError, "eps2d: expected a finite number of at least 0, found nan"),
    (dict(eps2d=-0.3), ArgumentError, "eps2d: expected a finite number of at least 0, found -0.3"),
    (dict(packed="no"), ArgumentError, "packed: expected True or False, found 'no'"),
    (dict(packed=None), ArgumentError, "packed: expected True or False, found None"),
    (dict(absgrad=2), ArgumentError, "absgrad: expected True or False, found 2"),
    (dict(segmented=torch.ones(3)), ArgumentError, r"segmented: .*found Tensor \[3\] of torch.float32"),
    (dict(distributed="yes"), ArgumentError, "distributed: expected True or False, found 'yes'"),
    (dict(render_mode="rgb"), ArgumentError, "render_mode: expected one of 'RGB', .*found 'rgb'"),
    (dict(rasterize_mode="fast"), ArgumentError, "rasterize_mode: expected one of 'classic', 'antialiased'"),
    (dict(camera_model="panoramic"), ArgumentError, "camera_model: expected one of 'pinhole'"),
    (dict(numerics="gsplat"), ArgumentError, "numerics: expected one of 'gsplat-1.5', 'gsplat-1.6', 'inria'"),
    (dict(backend="cuda"), ArgumentError, "backend: expected one of 'auto', 'triton', 'torch', 'reference'"),
    (
        dict(distributed=True),
        ArgumentError,
        "distributed: no process group is initialized; .* call torch.distributed.init",
    ),
    (dict(opacities=torch.zeros(12, device="meta")), DeviceError, "opacities: is on meta, which holds no"),
    (dict(colors=torch.zeros(12, 3, device="meta")), DeviceError, "colors: is on meta, which holds no"),
]

UNSUPPORTED = [
    (dict(camera_model="ftheta"), "camera_model"),
    (dict(camera_model="lidar", lidar_coeffs=object()), "camera_model"),
    (dict(renderer_config=Future(), with_eval3d=True), "renderer_config"),
    (dict(tile_size=32), "tile_size"),
    (dict(Ks=torch.eye(3).expand(2, 3, 3).clone().requires_grad_()), "Ks"),
    (dict(absgrad=True, backend="reference"), "absgrad"),
    (dict(sparse_grad=True, backend="reference"), "sparse_grad"),
    (dict(segmented=True, backend="reference"), "segmented"),
]


@pytest.fixture
def scene():
    return scenes.make(scenes.Structure(n=12, cameras=2), torch.float32)


def _id(value):
    """The same in every process: the names of changed arguments, the message, the class."""
    if isinstance(value, dict):
        return "-".join(value)
    return value.__name__ if isinstance(value, type) else str(value)[:40]


def assert_refused(arguments, error, message):
    """Asserts that a call raises and changes no tensor, gradient or random number; returns the error."""
    arguments = dict(arguments)
    for name in scenes.DIFFERENTIABLE:
        if isinstance(arguments[name], torch.Tensor) and arguments[name].is_floating_point():
            arguments[name] = arguments[name].clone().requires_grad_()
            arguments[name].grad = torch.ones_like(arguments[name])
    tensors = [value for value in arguments.values() if isinstance(value, torch.Tensor)]

    def state():
        return [(t.detach(), t.grad, t.requires_grad, t._version) for t in tensors], torch.get_rng_state()

    before = copy.deepcopy(state())
    with pytest.raises(error, match=message) as caught:
        tsplat.rasterization(**arguments)
    assert_identical(state(), before)
    return caught.value


@pytest.mark.parametrize(("change", "error", "message"), INVALID, ids=_id)
def test_invalid_argument_raises(scene, change, error, message):
    assert isinstance(assert_refused(scene | change, error, message), ValueError)


@pytest.mark.parametrize(("change", "name"), UNSUPPORTED, ids=_id)
def test_unsupported_option_raises(scene, change, name):
    error = assert_refused(scene | change, NotImplementedError, f"^{name}: ")
    assert isinstance(error, UnsupportedError)
    assert "tensor(" not in str(error)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            dict(absgrad=True, backend="reference"),
            "absgrad: not implemented with backend='reference'; use another backend",
        ),
        (
            dict(camera_model="lidar", lidar_coeffs=object()),
            "camera_model: 'lidar' is not implemented without exact rays; pass with_ut=True and with_eval3d=True",
        ),
        (dict(renderer_config=Future()), "renderer_config: Future is not implemented; pass None, or .*"),
    ],
    ids=_id,
)
def test_messages_about_unsupported_options_say_what_to_pass(scene, change, message):
    assert_refused(scene | change, UnsupportedError, f"^{message}$")


def test_a_batch_of_single_cameras_raises(scene):
    batched = {name: scene[name][None] for name in ("means", "quats", "scales", "opacities", "colors")}
    change = dict(viewmats=torch.zeros(1, 4, 4), backgrounds=None)
    message = r"viewmats: .*; add a camera dimension: viewmats\[..., None, :, :\]$"
    assert_refused(scene | batched | change, ShapeError, message)


def test_invalid_arguments_of_stages_raise():
    f = torch.zeros
    with pytest.raises(ShapeError, match="coeffs: expected"):
        tsplat.spherical_harmonics(1, f(5, 3), f(4, 4, 3))
    with pytest.raises(ShapeError, match="degrees_to_use: degree 1 needs 4 bases"):
        tsplat.spherical_harmonics(1, f(5, 3), f(5, 3, 3))
    with pytest.raises(ArgumentError, match="degrees_to_use: expected an int from 0 to 4, found -1"):
        tsplat.spherical_harmonics(-1, f(5, 3), f(5, 3, 3))
    with pytest.raises(ShapeError, match="scales: expected"):
        tsplat.quat_scale_to_covar_preci(f(5, 4), f(5, 4))
    with pytest.raises(ShapeError, match="radii: expected"):
        tsplat.isect_tiles(f(1, 5, 2), torch.zeros(1, 5, dtype=torch.int32), f(1, 5), 16, 2, 2)
    with pytest.raises(ArgumentError, match="image_ids: required with n_images"):
        tsplat.isect_tiles(f(5, 2), torch.zeros(5, 2, dtype=torch.int32), f(5), 16, 2, 2, packed=True)
    with pytest.raises(ArgumentError, match="conics: pass both conics and opacities"):
        tsplat.isect_tiles(f(1, 5, 2), torch.zeros(1, 5, 2, dtype=torch.int32), f(1, 5), 16, 2, 2, opacities=f(1, 5))
    with pytest.raises(ShapeError, match=r"isect_offsets: expected \[..., 2, 3\] tiles of 8"):
        tsplat.rasterize_to_pixels(
            f(1, 5, 2),
            f(1, 5, 3),
            f(1, 5, 3),
            f(1, 5),
            20,
            16,
            8,
            torch.zeros(1, 2, 2).int(),
            torch.zeros(0, dtype=torch.int32),
        )


@pytest.mark.parametrize("builtin", [ValueError, RuntimeError])
def test_invalid_arguments_are_errors_of_both_kinds(scene, builtin):
    """gsplat 1.6 raises one or the other."""
    with pytest.raises(builtin, match="means: expected") as found:
        tsplat.rasterization(**scene | {"means": torch.zeros(12, 2)})
    assert found.type is ShapeError


def test_invalid_settings_of_operations_raise(scene):
    f, image = torch.zeros, torch.zeros(12, 12, 3)
    names = ("quats", "scales", "viewmats", "Ks", "width", "height")
    camera = dict(covars=None) | {name: scene[name] for name in ("means", *names)}
    with pytest.raises(ArgumentError, match="sort: expected True or False, found 'no'"):
        tsplat.isect_tiles(f(1, 5, 2), f(1, 5, 2).int(), f(1, 5), 16, 2, 2, sort="no")
    with pytest.raises(ArgumentError, match="calc_compensations: expected True or False, found 2"):
        tsplat.fully_fused_projection(**camera, calc_compensations=2)
    with pytest.raises(ArgumentError, match=r"far_plane: expected at least 0.2, .*found 0.1"):
        tsplat.fully_fused_projection(**camera, far_plane=0.1, numerics="inria")
    for weight in (math.nan, math.inf, "0.2", torch.zeros(2)):
        with pytest.raises(ArgumentError, match="ssim_weight: expected a finite number, found"):
            tsplat.l1_ssim_loss(image, image, ssim_weight=weight)


def test_tensors_on_different_devices_raise():
    here, there = torch.zeros(2), torch.zeros(2, device="meta")
    check_devices(dict(means=here, masks=None, colors=here))
    check_devices(dict(means=there, colors=there))
    with pytest.raises(DeviceError, match=r"^colors: is on meta, but means is on cpu; use colors.to\(means.device\)$"):
        check_devices(dict(means=here, masks=None, colors=there))


@pytest.mark.parametrize("integer", [np.int64, np.uint8, torch.tensor], ids=lambda integer: integer.__name__)
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_integers_of_any_type(scene, backend, integer):
    coefficients = torch.rand(12, 4, 3, generator=torch.Generator().manual_seed(0))
    scene |= dict(colors=coefficients, backend=backend, extra_signals=coefficients, backgrounds=None)
    sizes = dict(width=21, height=19, sh_degree=1, extra_signals_sh_degree=1, tile_size=8, channel_chunk=2)
    expected, _, meta = tsplat.rasterization(**scene | sizes)
    found, _, found_meta = tsplat.rasterization(**scene | {name: integer(size) for name, size in sizes.items()})
    assert torch.equal(found, expected)
    assert torch.equal(found_meta["render_extra_signals"], meta["render_extra_signals"])
    assert type(found_meta["width"]) is int


def test_integers_of_any_type_in_stages(scene):
    def run(integer):
        """The outputs of all stages."""
        size = integer(21), integer(19)
        splats = tsplat.fully_fused_projection(
            scene["means"], None, scene["quats"], scene["scales"], scene["viewmats"], scene["Ks"], *size
        )
        radii, means2d, depths, conics, _ = splats
        colors = tsplat.spherical_harmonics(integer(1), scene["means"], torch.ones(12, 4, 3)).expand(2, 12, 3)
        grid = integer(8), integer(3), integer(3)
        _, isect_ids, flatten_ids = tsplat.isect_tiles(means2d, radii, depths, *grid)
        # Tensors of integers, too.
        isects = tsplat.isect_offset_encode(isect_ids, integer(2), *grid[1:]), flatten_ids
        isects = [tensor if integer is int else tensor.to(torch.int64) for tensor in isects]
        opacities = scene["opacities"].expand(2, 12)
        images = tsplat.rasterize_to_pixels(means2d, conics, colors, opacities, *size, grid[0], *isects)
        counts = gsplat.rasterize_num_contributing_gaussians(means2d, conics, opacities, *isects, *size, grid[0])
        return *splats[:4], colors, isect_ids, *isects, *images, *counts

    for found, expected in zip(run(np.int64), run(int), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("number", [np.float64, torch.tensor], ids=lambda number: number.__name__)
@pytest.mark.parametrize("backend", ["auto", "torch", "reference"])
def test_numbers_of_any_type(scene, backend, number):
    numbers = dict(near_plane=2.5, far_plane=5.5, radius_clip=1.0, eps2d=0.25)
    expected, _, _ = tsplat.rasterization(**scene | numbers, backend=backend)
    changed = {name: number(value) for name, value in numbers.items()}
    assert torch.equal(tsplat.rasterization(**scene | changed, backend=backend)[0], expected)
    assert not torch.equal(tsplat.rasterization(**scene, backend=backend)[0], expected)
    if backend != "reference":
        inputs = [scene[name] for name in ("quats", "scales", "viewmats", "Ks", "width", "height")]
        outputs = (
            tsplat.fully_fused_projection(scene["means"], None, *inputs, **own, backend=backend)
            for own in (numbers, changed)
        )
        assert all(one is other is None or torch.equal(one, other) for one, other in zip(*outputs))


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_backgrounds_of_a_single_image_need_no_camera(backend):
    scene = scenes.make(scenes.Structure(n=12, cameras=1)) | dict(backend=backend)
    expected, _, meta = tsplat.rasterization(**scene)
    found, _, _ = tsplat.rasterization(**scene | dict(backgrounds=scene["backgrounds"][0]))
    assert torch.equal(found, expected)
    assert found.isfinite().all()
    if backend == "auto":
        row_colors = scene["colors"][meta["gaussian_ids"]]
        inputs = [meta["means2d"], meta["conics"], row_colors, meta["opacities"], 21, 19, 16]
        isects = meta["isect_offsets"], meta["flatten_ids"]
        composited, _ = tsplat.rasterize_to_pixels(*inputs, *isects, backgrounds=scene["backgrounds"][0], packed=True)
        assert torch.equal(composited, expected)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("render_mode", ["D", "ED"])
def test_backgrounds_have_any_number_of_channels_if_only_depth_is_rendered(scene, backend, render_mode):
    scene |= dict(backend=backend, render_mode=render_mode)
    expected, _, _ = tsplat.rasterization(**scene | dict(backgrounds=None))
    for backgrounds in (torch.ones(2, 1), torch.ones(2, 3)):
        assert torch.equal(tsplat.rasterization(**scene | dict(backgrounds=backgrounds))[0], expected)


def test_options_that_compare_equal_are_checked_on_their_own():
    """A degree of 1 is kept with its settings; True is not a degree, though it equals 1."""
    scene = scenes.make(scenes.Structure(n=3, sh_degree=1), torch.float32)
    for _ in range(2):
        tsplat.rasterization(**scene, backend="torch")
        with pytest.raises(ArgumentError, match=r"sh_degree: .*found True"):
            tsplat.rasterization(**(scene | dict(sh_degree=True)), backend="torch")


def test_a_scene_that_passed_is_checked_again_when_a_gradient_is_needed():
    scene = (torch.ones(2, 3), torch.ones(2, 4), torch.ones(2, 3), None, (3, 3), torch.ones(2))
    viewmats = torch.eye(4)[None]
    for _ in range(2):
        assert check_scene(*scene, Cameras(viewmats, torch.eye(3)[None])) == ((), 2, 1)
        with pytest.raises(UnsupportedError, match="Ks: its gradient"):
            check_scene(*scene, Cameras(viewmats, torch.eye(3)[None].requires_grad_()))
        with torch.no_grad():
            check_scene(*scene, Cameras(viewmats, torch.eye(3)[None].requires_grad_()))
        with pytest.raises(DtypeError, match="Ks"):
            check_scene(*scene, Cameras(viewmats, torch.ones(1, 3, 3, dtype=torch.int32)))


@pytest.mark.parametrize("value", [True, None, "1", [1.0], math.nan, -math.inf, 10**400])
def test_to_float_takes_finite_numbers_only(value):
    assert to_float(value) is None
    assert to_float(3) == 3.0 and isinstance(to_float(3), float) and to_float(-0.5) == -0.5
