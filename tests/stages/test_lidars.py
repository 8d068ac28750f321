"""Spinning lidars: the elements of range images, lists that miss nothing, gradients, sweeps, and what is refused."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch

import tsplat
from tests.support.backends import BACKENDS
from tests.support.closeness import assert_exact
from tests.support.lidars import lidar, make
from tests.support.scenes import random_like
from tests.support.slow import slow_after
from tsplat.config import CameraSettings
from tsplat.data import Cameras
from tsplat.stages.lidars import TABLES, LidarLayout

CASES = {
    "a turn": dict(seed=0),
    "a turn, clockwise, in small tiles": dict(seed=1, tile_size=4, packed=False),
    "a sector of two lidars": dict(seed=2, span=1.5, cameras=2, render_mode="Ed"),
    "large offsets and wide Gaussians": dict(seed=3, span=5.9, offsets=2.0, size=4.0, render_mode="RGB+D", tile_size=8),
    "a sweep": dict(seed=4, sweeps=True, tile_size=4, render_mode="RGB-d"),
    "a sweep, clockwise, of a sector": dict(seed=5, sweeps=True, span=2.5, cameras=2, numerics="gsplat-1.6"),
    "very uneven angles": dict(seed=6, unevenness=1.9, offsets=0.0, tile_size=4),
    "both poles": dict(seed=7, poles=True, sweeps=True, size=2.0),
    "offsets that go around": dict(
        seed=20, n=8, rows=17, columns=70, span=5.9, offsets=2.0, unevenness=0.5, size=0.4, tile_size=4
    ),
}
RENDERED = ("tile_size", "render_mode", "packed", "numerics")


def alone(azimuth, elevation, **angles):
    """The element that a small Gaussian at angles, in degrees, is shown at, and all alphas."""
    a, e = math.radians(azimuth), math.radians(elevation)
    given = dict(
        means=3 * torch.tensor([[math.cos(a) * math.cos(e), math.sin(a) * math.cos(e), math.sin(e)]]),
        quats=torch.tensor([[1.0, 0, 0, 0]]), scales=torch.full((1, 3), 0.02), opacities=torch.ones(1),
        colors=torch.ones(1, 1), viewmats=torch.eye(4)[None], Ks=None, width=1, height=1, camera_model="lidar",
        with_ut=True, with_eval3d=True, lidar_coeffs=sensor(**angles), render_mode="RGB-d",
    )  # fmt: skip
    image, alphas, meta = tsplat.rasterization(**given)
    row, column = divmod(int(alphas[0, ..., 0].argmax()), alphas.shape[2])
    assert (meta["width"], meta["height"]) == (alphas.shape[2], alphas.shape[1]) == (90, 3)
    return row, column, alphas[0, ..., 0], image[0, row, column, 1] / alphas[0, row, column, 0]


def sensor(elevations=(10.0, 0.0, -20.0), offsets=(0.0, 0.0, 0.0), start=0.0, clockwise=False):
    """Parameters of another package: 90 columns, 4 degrees apart."""
    step = torch.arange(90) * (-4.0 if clockwise else 4.0)
    return SimpleNamespace(
        row_elevations_rad=torch.tensor(elevations).deg2rad(), column_azimuths_rad=(start + step).deg2rad(),
        row_azimuth_offsets_rad=torch.tensor(offsets).deg2rad(),
        spinning_direction=list(tsplat.SpinningDirection)[0 if clockwise else 1],
    )  # fmt: skip


def test_elements_show_what_is_at_their_angles():
    """Azimuths grow from x to y, elevations to z; alphas elsewhere are 0; a distance is measured along the ray."""
    for azimuth, elevation, angles, expected in (
        (0, 0, {}, (1, 0)),
        (80, 10, {}, (0, 20)),
        (-80, -20, {}, (2, 70)),
        (80, 10, dict(clockwise=True), (0, 70)),
        (172, -20, dict(start=180.0), (2, 88)),
        (188, -20, dict(start=180.0, clockwise=True), (2, 88)),
        (40, 10, dict(offsets=(-12.0, 0.0, 0.0)), (0, 13)),
        (40, 10, dict(offsets=(-12.0, 0.0, 0.0), clockwise=True), (0, 77)),
        (2, 0, dict(offsets=(0.0, 10.0, 0.0)), (1, 88)),
    ):
        row, column, alphas, distance = alone(azimuth, elevation, **angles)
        assert (row, column) == expected and alphas[row, column] > 0.99
        assert (alphas > 0.004).sum() == 1
        assert abs(distance - 3) < 1e-3


@pytest.mark.parametrize("case", slow_after(4, list(CASES)))
@pytest.mark.parametrize("backend", BACKENDS)
def test_images_and_gradients_match_reference(backend, case):
    """The reference shows every Gaussian at every element, so that lists of tiles miss nothing."""
    structure = dict(CASES[case])
    options = {name: structure.pop(name) for name in RENDERED if name in structure}
    scene = make(**structure)
    if options.get("render_mode") == "Ed":
        del scene["backgrounds"]
    names = [name for name, value in scene.items() if isinstance(value, torch.Tensor)]

    def images_and_gradients(backend):
        leaves = {name: scene[name].clone().requires_grad_() for name in names}
        tables = {name: getattr(scene["lidar_coeffs"], name).clone().requires_grad_() for name in TABLES}
        given = scene | leaves | {"lidar_coeffs": dataclasses.replace(scene["lidar_coeffs"], **tables)}
        images = tsplat.rasterization(**given, **options, backend=backend)[:2]
        wanted = {**leaves, **tables}
        gradients = torch.autograd.grad(images, list(wanted.values()), random_like(images, 0), allow_unused=True)
        return {"colors": images[0], "alphas": images[1]} | dict(zip(wanted, gradients))

    found, expected = images_and_gradients(backend), images_and_gradients("reference")
    assert found["alphas"].max() > 0.5
    assert all(found[name].abs().max() > 1e-4 for name in TABLES)
    for name, tensor in expected.items():
        assert_exact(name, found[name], tensor)


@pytest.mark.parametrize("sweeps", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_images_are_those_of_the_rays_of_elements(backend, sweeps):
    """Of a panorama, too, in a single tile: a panorama lists everything in it."""
    scene = make(7, rows=12, columns=16, sweeps=sweeps, span=None if sweeps else 4.0) | {"backend": backend}
    tables = [getattr(scene["lidar_coeffs"], name) for name in TABLES]
    elevations, azimuths = tables[0][:, None], tables[1] + tables[2][:, None]
    flat = elevations.cos()
    own = torch.stack([azimuths.cos() * flat, azimuths.sin() * flat, elevations.sin().expand_as(azimuths)], -1)
    times = torch.arange(16).double() / 15
    start, end = scene["viewmats"][0], scene.get("viewmats_rs", scene["viewmats"])[0]
    poses = torch.stack([_between(start, end, time) for time in times])
    directions = (poses[:, :3, :3].mT @ own[..., None])[..., 0]
    origins = -(poses[:, :3, :3].mT @ poses[:, :3, 3:])[..., 0].expand_as(directions)
    rays = torch.cat([origins, 2 * directions], -1)[None]
    image, _, _ = tsplat.rasterization(**scene)
    found, _, _ = tsplat.rasterization(**scene, rays=rays)
    torch.testing.assert_close(found, image, rtol=0, atol=1e-9)
    if not sweeps:
        panorama = scene | dict(camera_model="equirectangular", lidar_coeffs=None, width=16, height=12, rays=rays)
        found, _, _ = tsplat.rasterization(
            **panorama, ut_params=tsplat.UnscentedTransformParameters(in_image_margin_factor=9.0)
        )
        torch.testing.assert_close(found, image, rtol=0, atol=1e-9)
    single = {name: value.float() if isinstance(value, torch.Tensor) else value for name, value in scene.items()}
    torch.testing.assert_close(tsplat.rasterization(**single)[0].double(), image, rtol=0, atol=2e-5)


def _between(start, end, time):
    """The pose that turns and moves at constant rates from one to another, [4, 4] each."""
    turn = end[:3, :3] @ start[:3, :3].mT
    axis = torch.stack([turn[2, 1] - turn[1, 2], turn[0, 2] - turn[2, 0], turn[1, 0] - turn[0, 1]])
    angle = torch.atan2(axis.norm(), turn.trace() - 1)
    x, y, z = axis / axis.norm().clamp_min(1e-30)
    zero = torch.zeros_like(x)
    generator = torch.stack([torch.stack(row) for row in ((zero, -z, y), (z, zero, -x), (-y, x, zero))])
    pose = torch.eye(4, dtype=start.dtype)
    pose[:3, :3] = torch.linalg.matrix_exp(time * angle * generator) @ start[:3, :3]
    pose[:3, 3] = (1 - time) * start[:3, 3] + time * end[:3, 3]
    return pose


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_maps_are_range_images(backend):
    """Extra signals, normals and distances are those of elements; batches, bands and capacities change nothing."""
    scene = make(8, rows=12, columns=44)
    scene |= dict(backend=backend, tile_size=8, return_normals=True, backgrounds=None)
    scene["extra_signals"] = scene["means"][:, :2]
    image, alphas, meta = tsplat.rasterization(**scene, render_mode="RGB-d")
    assert image.shape == (1, 12, 44, 4) and alphas.shape == (1, 12, 44, 1)
    assert meta["normals"].shape == (1, 12, 44, 3) and meta["render_extra_signals"].shape == (1, 12, 44, 2)
    flat = dict(scene, colors=torch.cat([scene["colors"], scene["extra_signals"]], -1), extra_signals=None)
    expected, *_ = tsplat.rasterization(**flat)
    torch.testing.assert_close(
        torch.cat([image[..., :3], meta["render_extra_signals"]], -1), expected, rtol=0, atol=1e-12
    )
    *_, dense = tsplat.rasterization(**scene | {"backend": "reference", "tile_size": 16})
    torch.testing.assert_close(meta["normals"], dense["normals"], rtol=0, atol=1e-9)
    budget = 2 * meta["memory"]["peak_bytes"] // 3
    for options in (dict(capacity=4000), dict(memory_budget=budget), dict(packed=False), dict(segmented=True)):
        again, _, other = tsplat.rasterization(**scene, **options, render_mode="RGB-d")
        assert torch.equal(again, image) and (other["memory"]["bands"] > 1) == ("memory_budget" in options)
    batched = {
        n: scene[n].expand(2, *scene[n].shape) for n in ("means", "quats", "scales", "opacities", "colors", "viewmats")
    }
    several, *_ = tsplat.rasterization(**scene | batched | {"extra_signals": None}, render_mode="RGB-d")
    torch.testing.assert_close(several, image.expand(2, *image.shape), rtol=0, atol=1e-12)


def test_sizes_of_cameras_are_not_read():
    """Nor do they choose the tile size."""
    scene = make(0) | {"tile_size": None}
    expected, _, meta = tsplat.rasterization(**scene)
    assert meta["tile_size"] == 8
    for width, height in ((2000, 3000), (None, 0)):
        found, _, meta = tsplat.rasterization(**scene | dict(width=width, height=height, Ks=torch.zeros(2)))
        assert torch.equal(found, expected) and meta["tile_size"] == 8


def test_lists_hold_few_tiles():
    """Rows are aligned, so that offsets of many columns do not make lists longer."""
    counts = [
        tsplat.rasterization(**make(9, rows=32, columns=360, offsets=offsets, size=0.3))[2]["tiles_per_gauss"].sum()
        for offsets in (0.0, 0.5)
    ]  # fmt: skip
    assert counts[1] < 1.3 * counts[0]


def test_layouts_are_kept_while_tables_do_not_change():
    given = lidar(0)
    layout = LidarLayout.of(given)
    assert LidarLayout.of(dataclasses.replace(given)) is layout
    for offsets in (given.row_azimuth_offsets_rad, given.row_azimuth_offsets_rad.data):  # the latter has own versions
        layout = LidarLayout.of(given)
        with torch.no_grad():
            offsets.add_(0.5)
        assert LidarLayout.of(given) is not layout
    moved = dataclasses.replace(given, row_elevations_rad=given.row_elevations_rad.requires_grad_() * 1.0)
    assert LidarLayout.of(moved) is not LidarLayout.of(moved)


def test_rows_may_be_at_the_poles_in_fp32():
    """A right angle is larger in fp32 than in fp64."""
    row, _, alphas, distance = alone(0, 90, elevations=(90.0, 0.0, -90.0))
    assert row == 0 and alphas[0].min() > 0.99 and not alphas[1:].any()
    assert abs(distance - 3) < 1e-3


def test_fields_of_view():
    for seed in (0, 1):
        given = lidar(seed, span=2.0, offsets=0.0)
        horizontal, vertical = given.fov_horiz_rad, given.fov_vert_rad
        assert abs(vertical.start - 0.4) < 1e-12 and abs(vertical.end + 0.5) < 1e-12
        assert abs(horizontal.start - 3) < 1e-12 and abs(horizontal.end - given.column_azimuths_rad[-1]) < 1e-12
        assert (given.n_rows, given.n_columns) == (9, 40)
    assert lidar(0).fov_horiz_rad.span == 2 * math.pi
    assert lidar(0, dtype=torch.float32).fov_eps_rad == 2.0**-21  # four epsilons


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(lidar_coeffs=None), "lidar_coeffs: expected the parameters of a lidar"),
        (dict(camera_model="pinhole"), "lidar_coeffs: expected None, as camera_model is 'pinhole'; pass 'lidar'"),
        (dict(rolling_shutter="ROLLING_TOP_TO_BOTTOM"), "rolling_shutter: expected GLOBAL or ROLLING_LEFT_TO_RIGHT"),
        (dict(rolling_shutter="ROLLING_LEFT_TO_RIGHT"), "viewmats_rs: expected the poses at the end"),
        (dict(radial_coeffs=torch.zeros(1, 4)), "radial_coeffs: expected None, as lidars"),
        (dict(external_distortion_coeffs=tsplat.BivariateWindshieldModelParameters()),
         "external_distortion_coeffs: expected None, as lidars"),
        (dict(lidar_coeffs=object()), "lidar_coeffs.row_elevations_rad: expected a tensor"),
        (dict(viewmats=torch.zeros(1, 3, 4)), "viewmats: expected"),
        (dict(rays=torch.zeros(1, 40, 9, 6)), "rays: expected a shape that broadcasts to"),
        (dict(lidar_coeffs=lidar(0, rows=2).__class__(**{**vars(lidar(0)), "row_azimuth_offsets_rad": torch.zeros(3)})),
         "lidar_coeffs: expected an elevation and an offset for each row"),
        (dict(lidar_coeffs=dataclasses.replace(lidar(0), row_elevations_rad=torch.linspace(-1, 1, 9))),
         "lidar_coeffs.row_elevations_rad: expected angles between"),
        (dict(lidar_coeffs=dataclasses.replace(lidar(0), spinning_direction=tsplat.SpinningDirection.CLOCKWISE)),
         "lidar_coeffs.column_azimuths_rad: expected angles in the direction of the spin"),
        (dict(lidar_coeffs=dataclasses.replace(lidar(0), row_elevations_rad=torch.full((9,), torch.nan))),
         "lidar_coeffs.row_elevations_rad: expected finite angles"),
        (dict(lidar_coeffs=dataclasses.replace(lidar(0), row_azimuth_offsets_rad=torch.full((9,), 4.0))),
         "lidar_coeffs.row_azimuth_offsets_rad: expected angles of at most pi"),
        (dict(lidar_coeffs=dataclasses.replace(lidar(0), spinning_direction="left")),
         "lidar_coeffs.spinning_direction: expected one of"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(tsplat.ArgumentError, match=message):
        tsplat.rasterization(**make(0) | options)


def test_what_is_not_implemented_says_what_to_pass():
    scene = make(0)
    for option in ("with_eval3d", "with_ut"):
        with pytest.raises(tsplat.UnsupportedError, match="without exact rays; pass with_ut=True and with_eval3d=True"):
            tsplat.rasterization(**scene | {option: False})
    with pytest.raises(
        tsplat.UnsupportedError, match="single stages do not support spinning lidars; use rasterization"
    ):
        tsplat.fully_fused_projection_with_ut(
            scene["means"], scene["quats"], scene["scales"], None, scene["viewmats"], torch.eye(3)[None], 40, 9,
            camera_model="lidar",
        )  # fmt: skip


def test_a_lidar_is_a_camera_of_angles():
    """Means are pixels of angles, 1,024 per radian, from the first element."""
    scene = make(1, offsets=0.0)
    _, _, meta = tsplat.rasterization(**scene, packed=False)
    layout = LidarLayout.of(scene["lidar_coeffs"])
    settings = layout.panorama_settings(CameraSettings(1, 1))
    points = scene["means"] @ scene["viewmats"][0, :3, :3].T + scene["viewmats"][0, :3, 3]
    seen = (meta["radii"][0] > 0).all(-1)
    azimuths, elevations = (
        torch.atan2(points[:, 1], points[:, 0]),
        torch.atan2(points[:, 2], points[:, :2].norm(dim=-1)),
    )
    across = (1024 * (3 - azimuths) + 0.5 - meta["means2d"][0, :, 0]) / (2048 * math.pi)
    assert (across - across.round())[seen].abs().max() < 1e-9
    assert (1024 * (0.4 - elevations) + 0.5 - meta["means2d"][0, :, 1])[seen].abs().max() < 1e-6
    assert settings.height == math.ceil(1024 * 0.9) + 1 and 0.2 < seen.double().mean() < 1
    cameras = layout.cameras(Cameras(scene["viewmats"], None))
    assert torch.equal(cameras.viewmats[0, 2], scene["viewmats"][0, 0])
