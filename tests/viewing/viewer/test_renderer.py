"""Renderer of the viewer: the same images as `render`, smaller ones within a time budget."""

import dataclasses
import math

import pytest
import torch

from tests.support.training_scenes import make_gaussians
from tsplat import ArgumentError
from tsplat.scene import Camera, intrinsics, look_at
from tsplat.scene.images import to_bytes
from tsplat.viewing import render
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


def test_warm_renderer_knows_times(renderer):
    renderer.warm_up(POSE, Settings())
    assert [pixels for pixels, _ in renderer._samples] == [8 * 6, 32 * 24]


def test_first_image_within_a_budget_is_small(renderer):
    assert renderer.render(POSE, Settings(), seconds=0.1).divisor == DIVISOR_MAX


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (dict(show="normals"), "show: expected one of"),
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
