"""Renderer of the viewer: the same images as `render`, smaller ones within a time budget."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from tests.support.training_scenes import make_gaussians
from tsplat import ArgumentError
from tsplat.passes.replay_cache import ReplayCache
from tsplat.scene import Camera, Gaussians, intrinsics, look_at
from tsplat.scene.cameras import panorama_intrinsics
from tsplat.scene.culling import CulledModel
from tsplat.scene.images import to_bytes
from tsplat.viewing import render
from tsplat.viewing.colormaps import apply_colormap
from tsplat.viewing.viewer import renderer as renderer_module
from tsplat.viewing.viewer.renderer import COLORMAPS, DIVISOR_MAX, MODES, Pose, Renderer, Settings

FOV = 50.0
VIEWMAT = look_at((0.0, -1.0, -3.0), (0.0, 0.0, 0.0))
POSE = Pose(VIEWMAT, math.radians(FOV), 64, 48)


@pytest.fixture(scope="module")
def gaussians():
    found = make_gaussians(sh_degree=1)
    generator = torch.Generator().manual_seed(0)
    return dataclasses.replace(found, shN=0.3 * torch.randn(found.shN.shape, generator=generator))


@pytest.fixture
def renderer(gaussians):
    return Renderer(gaussians)


def test_full_size_equals_render(renderer, gaussians):
    frame = renderer.render(POSE, Settings(background=(0.1, 0.2, 0.3)))
    expected = render(gaussians, Camera(VIEWMAT, intrinsics(64, 48, FOV), 64, 48), background=(0.1, 0.2, 0.3))
    assert torch.equal(torch.from_numpy(frame.image), to_bytes(expected))
    assert (frame.divisor, frame.visible) == (1, len(gaussians))


def test_small_image_shows_the_same_part_of_the_scene(renderer):
    full = torch.from_numpy(renderer.render(POSE, Settings()).image).double()
    frame = renderer.render(POSE, Settings(), divisor_min=2)
    assert frame.image.shape == (24, 32, 3)
    averaged = full.reshape(24, 2, 32, 2, 3).mean((1, 3))
    error = (torch.from_numpy(frame.image) - averaged).abs().mean()
    assert error < 4
    assert (torch.from_numpy(frame.image).roll(1, 0) - averaged).abs().mean() > 1.5 * error


def test_size_that_the_divisor_does_not_divide(renderer):
    frame = renderer.render(dataclasses.replace(POSE, width=63, height=47), Settings(), divisor_min=4)
    assert frame.image.shape == (12, 16, 3)


@pytest.mark.parametrize("show", MODES)
def test_modes_of_2d_gaussians(gaussians, show):
    surfels = gaussians.as_surfels()
    image = Renderer(surfels).render(POSE, Settings(show=show)).image
    assert image.std() > 5
    if show == "rgb":
        expected = to_bytes(render(surfels, Camera(VIEWMAT, intrinsics(64, 48, FOV), 64, 48)))
        assert torch.equal(torch.from_numpy(image), expected)
        assert (image != Renderer(gaussians).render(POSE, Settings()).image).any()


@pytest.mark.parametrize("show", MODES)
@pytest.mark.parametrize("colormap", COLORMAPS)
def test_modes_and_colormaps(renderer, show, colormap):
    image = renderer.render(POSE, Settings(show=show, colormap=colormap)).image
    assert image.shape == (48, 64, 3)
    assert image.std() > 5
    assert (show == "rgb") == (image == renderer.render(POSE, Settings()).image).all()


@pytest.mark.parametrize(
    "change",
    [
        dict(sh_degree=0), dict(background=(1.0, 0.0, 0.0)), dict(antialiased=True), dict(model="ortho"),
        dict(model="fisheye"), dict(near=3.0), dict(far=3.0), dict(radius_clip=15.0), dict(eps2d=5.0),
        dict(crop=((0.0, -9.0, -9.0), (9.0, 9.0, 9.0))),
    ],
)  # fmt: skip
def test_every_setting_changes_the_image(renderer, change):
    assert (renderer.render(POSE, Settings(**change)).image != renderer.render(POSE, Settings()).image).any()


def test_crop_keeps_centers_in_the_box(renderer, gaussians):
    inside = renderer.cropped(((0.0, -9.0, -9.0), (9.0, 9.0, 9.0)))
    assert 0 < len(inside) < len(gaussians)
    assert torch.equal(inside.means, gaussians.means[gaussians.means[:, 0] >= 0])
    assert len(renderer.cropped(((9.0, 9.0, 9.0), (10.0, 10.0, 10.0)))) == 0
    nothing = renderer.render(POSE, Settings(crop=((9.0, 9.0, 9.0), (10.0, 10.0, 10.0))))
    assert (nothing.visible, nothing.image.max()) == (0, 0)


@pytest.mark.parametrize(
    ("fixed", "slope", "seconds", "divisor"),
    [
        (0.0, 1e-6, 1.0, 1),
        (0.0, 1e-6, 64 * 48 * 1e-6, 1),
        (0.0, 1e-6, 64 * 48 * 1e-6 / 4, 2),
        (0.0, 1e-6, 64 * 48 * 1e-6 / 9, 3),
        (0.0005, 1e-6, 0.0005 + 64 * 48 * 1e-6 / 16, 4),
        (0.002, 1e-6, 0.0001, 3),  # 4 would save less than a fifth
        (0.0, 1e-6, 1e-5, DIVISOR_MAX),
        (0.1, 0.0, 0.05, 1),
    ],
)
def test_size_is_chosen_by_measured_times(renderer, fixed, slope, seconds, divisor):
    """Times are linear in the number of pixels."""
    renderer._samples.extend((pixels, fixed + slope * pixels) for pixels in (100, 400, 3000))
    assert renderer._divisor(POSE, seconds) == divisor


@pytest.mark.parametrize(
    ("small", "full"), [((0.8, 0.01, 0.01), (0.07, 0.07)), ((0.01, 0.01, 0.01), (0.07, 0.5, 0.07))]
)
def test_one_slow_image_does_not_change_the_size(small, full, renderer):
    pixels = POSE.width * POSE.height
    renderer._samples.extend([*((pixels // 64, time) for time in small), *((pixels, time) for time in full)])
    assert renderer._divisor(POSE, 0.1) == 1


def test_slower_images_are_noticed(renderer):
    pixels = POSE.width * POSE.height
    renderer._samples.extend([(pixels // 64, 0.01), *[(pixels, 0.07)] * 3, *[(pixels, 0.4)] * 2])
    assert renderer._divisor(POSE, 0.1) > 1


def test_large_models_show_their_largest_gaussians_in_time(renderer, gaussians, monkeypatch):
    monkeypatch.setattr(renderer_module, "LARGE", 20)
    monkeypatch.setattr(renderer_module, "LARGE_SECONDS", 0.0)
    frame = renderer.render(POSE, Settings(), seconds=1e-9)  # no time is known
    assert (frame.n_largest, frame.divisor, frame.is_full) == (20, 1, False)
    largest = CulledModel(gaussians).seen_by(POSE.camera(64, 48), n_max=20)
    assert np.array_equal(frame.image, Renderer(largest).render(POSE, Settings()).image)
    rest = renderer.render(POSE, Settings())
    assert (rest.n_largest, rest.is_full, rest.visible) == (None, True, len(gaussians))
    # So few are not enough: once their time is known, the image is smaller, too.
    divisors = [renderer.render(POSE, Settings(), seconds=1e-9).divisor for _ in range(5)]
    assert divisors[:4] == [1] * 4
    assert divisors[4] > 1
    assert renderer.render(POSE, Settings(), seconds=1e9).n_largest is None
    # A box that leaves few needs no choice.
    inside = Settings(crop=((1.0, -9.0, -9.0), (9.0, 9.0, 9.0)))
    monkeypatch.setattr(renderer_module, "LARGE", 50)
    assert renderer.render(POSE, inside, seconds=1e-9).is_full


@pytest.mark.parametrize("surfels", [False, True])
def test_images_at_rest_of_large_models_are_not_traced(surfels, gaussians, monkeypatch):
    renderer = Renderer(dataclasses.replace(gaussians, surfels=surfels))
    expected = renderer.render(POSE, Settings()).image
    calls, trace = [], ReplayCache.replay
    monkeypatch.setattr(ReplayCache, "replay", lambda self, *given: (calls.append(trace(self, *given)), calls[-1])[1])
    monkeypatch.setattr(renderer_module, "LARGE", 20)
    for _ in range(3):
        assert np.array_equal(renderer.render(POSE, Settings()).image, expected)
    assert calls == [None] * 3  # the stages run
    monkeypatch.setattr(renderer_module, "available_bytes", lambda: None)
    assert np.array_equal(renderer.render(POSE, Settings()).image, expected)


@pytest.mark.parametrize(
    ("n_max", "taken", "expected"),
    [
        (None, 1.0, None), (None, 1.1, None), (None, 2.1, 28), (None, 100.0, 20), (28, 1.1, 28), (28, 0.7, 28),
        (28, 1.5, 20), (28, 0.5, 40), (28, 0.1, None), (20, 5.0, 20), (40, 0.7, 40),
    ],
)  # fmt: skip
def test_number_of_gaussians_is_chosen_by_measured_times(n_max, taken, expected, renderer, monkeypatch):
    monkeypatch.setattr(renderer_module, "LARGE", 20)  # of 60
    renderer._n_max, renderer._n_settled = n_max, renderer_module.SETTLED_IMAGES - 1
    renderer._samples.extend([(POSE.width * POSE.height, taken)] * 3)
    if n_max is not None:
        assert renderer._number(POSE, 1.0) == n_max
    renderer._n_settled += 1
    assert renderer._number(POSE, 1.0) == expected


def test_warm_renderer_knows_times(renderer):
    renderer.warm_up(POSE, Settings())
    assert [pixels for pixels, _ in renderer._samples] == [8 * 6, 32 * 24]


def test_first_image_within_a_budget_is_small(renderer):
    assert renderer.render(POSE, Settings(), seconds=0.1).divisor == DIVISOR_MAX


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (dict(show="curvature"), "show: expected one of"),
        (dict(colormap="jet"), "colormap: expected one of"),
        (dict(model="ftheta"), "model: expected one of"),
        (dict(sh_degree=5), "sh_degree: expected one of"),
        (dict(near=2.0, far=1.0), "near, far: expected 0 <= near < far, found 2.0 and 1.0"),
        (dict(near=math.nan), "near, far"),
        (dict(radius_clip=-1.0), "radius_clip: expected a number of at least 0, found -1.0"),
        (dict(eps2d=math.inf), "eps2d: expected a number of at least 0, found inf"),
    ],
)
def test_invalid_settings(values, message):
    with pytest.raises(ArgumentError, match=message):
        Settings(**values)


@pytest.mark.parametrize("values", [dict(fov=0.0), dict(fov=4.0), dict(width=0), dict(height=-1)])
def test_invalid_pose(values):
    with pytest.raises(ArgumentError, match=next(iter(values))):
        dataclasses.replace(POSE, **values)


def plane(depth, opacity=0.999):
    """A wall of Gaussians, thin along z, at a depth from a camera at the origin, on the left half of its image."""
    y, x = torch.meshgrid(torch.linspace(-depth, depth, 40), torch.linspace(-depth, -0.1 * depth, 20), indexing="ij")
    points = torch.stack([x, y, torch.full_like(x, depth)], -1).reshape(-1, 3)
    gaussians = Gaussians.from_points(points, torch.full_like(points, 0.5), 0, opacity=opacity)
    log_scales = torch.tensor([0.05 * depth, 0.05 * depth, 1e-4]).log().expand(len(points), 3)
    return dataclasses.replace(gaussians, log_scales=log_scales.contiguous())


def rendered(gaussians, **settings):
    return Renderer(gaussians).render(Pose(torch.eye(4), 0.8, 32, 32), Settings(**settings))


def test_depths_have_a_range_of_the_image_or_a_fixed_one():
    colors = apply_colormap(torch.tensor([[0.0, 0.5, 1.0]]), "viridis")[0].numpy().astype(int)
    frame = rendered(plane(4.0), show="expected depth", colormap="viridis")
    assert frame.depths == pytest.approx((4, 4), rel=1e-3)
    # Inverse depths: 4 is in the middle of 8 / 3 and 8.
    fixed = dict(show="expected depth", colormap="viridis", depths=(8 / 3, 8.0))
    frame = rendered(plane(4.0), **fixed)
    assert frame.depths == (8 / 3, 8.0)
    assert np.abs(frame.image[16, 4] - colors[1]).max() < 6
    for depth, inverted, expected in ((3.0, False, 0.8333), (3.0, True, 0.1667), (2.0, False, 1), (20.0, False, 0)):
        image = rendered(plane(depth), **fixed, inverted=inverted).image
        color = apply_colormap(torch.tensor([[float(expected)]]), "viridis")[0, 0].numpy().astype(int)
        assert np.abs(image[16, 4] - color).max() < 6, depth
    assert rendered(plane(4.0), show="rgb").depths is None
    for depths in ((0.0, 1.0), (2.0, 2.0), (3.0, 1.0), (math.nan, 1.0)):
        with pytest.raises(ArgumentError, match="depths: expected 0 < nearest < farthest"):
            Settings(depths=depths)


@pytest.mark.parametrize("inverted", [False, True])
def test_transparent_is_not_far(inverted):
    """What is transparent shows a checkerboard, in part where it is transparent in part."""
    image = rendered(plane(4.0), show="expected depth", inverted=inverted).image[:, 24:]
    assert {tuple(color) for color in image.reshape(-1, 3)} == {(56,) * 3, (82,) * 3}
    assert (image[0, 0] != image[8, 0]).all()
    assert (image[0, 0] == image[16, 0]).all()
    faint = (
        rendered(plane(4.0, 0.02), show="expected depth", depths=(2.0, 8.0), colormap="gray").image[:, 4].astype(int)
    )
    assert len(np.unique(faint)) > 1


def test_normals_are_those_of_the_shortest_axes():
    frame = rendered(plane(4.0), show="normals")
    assert np.abs(frame.image[16, 4].astype(int) - (128, 128, 0)).max() <= 2  # (0, 0, -1), toward the camera
    gaussians = plane(4.0)
    turn = torch.tensor([math.cos(0.5), 0.0, math.sin(0.5), 0.0]).expand(len(gaussians), 4)  # 1 rad around y
    image = rendered(dataclasses.replace(gaussians, quats=3 * turn), show="normals").image[16, 4]
    normal = -np.array([math.sin(1), 0, math.cos(1)])
    assert np.abs(image - 255 * (0.5 + 0.5 * normal)).max() < 3


def test_centers_and_ellipses():
    gaussians = plane(4.0, 0.05)
    alphas = {}
    for show in ("rgb", "centers", "ellipses"):
        image = rendered(gaussians, show=show, background=(0.0, 0.0, 0.0)).image[4:28, 2:12, 0]
        alphas[show] = image / 127.5
    assert alphas["centers"].max() > 0.6 > alphas["rgb"].max()
    assert alphas["centers"].mean() < alphas["ellipses"].mean() < 1
    assert alphas["ellipses"].max() > 0.9 > alphas["rgb"].max()


@pytest.mark.parametrize(("width", "height"), [(64, 32), (64, 48), (72, 24)])
def test_panoramas_fill_the_width(renderer, gaussians, width, height):
    pose = Pose(VIEWMAT, math.radians(FOV), width, height)
    frame = renderer.render(pose, Settings(model="equirectangular"))
    rows = min(height, width // 2)
    camera = Camera(VIEWMAT, panorama_intrinsics(width, rows), width, rows, "equirectangular")
    first = (height - rows) // 2
    expected = to_bytes(render(gaussians, camera))
    assert (torch.from_numpy(frame.image)[first : first + rows].int() - expected.int()).abs().max() <= 1
    assert not frame.image[:first].any()
