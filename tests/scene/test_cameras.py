"""Cameras and where to stand, checked by projecting points."""

import math

import pytest
import torch

from tsplat import ArgumentError
from tsplat.scene import Gaussians, intrinsics, look_at, orbit
from tsplat.viewing import guess_up, look_at_all
from tsplat.viewing.framing import weighted_quantile


def project(points, viewmat, K):
    """Pixels [N, 2] and depths [N]."""
    camera = points @ viewmat[:3, :3].T + viewmat[:3, 3]
    pixels = camera @ K.T
    return pixels[:, :2] / pixels[:, 2:], camera[:, 2]


@pytest.mark.parametrize("up", [(0, -1, 0), (0, 0, 1), (0.3, 2.0, -0.4)])
def test_look_at_has_the_target_in_the_middle_and_up_upwards(up):
    eye, target = torch.tensor([1.0, -2.0, -5.0]), torch.tensor([0.5, 0.25, 1.0])
    viewmat, K = look_at(eye.tolist(), target.tolist(), up), intrinsics(640, 480, 60)
    rotation = viewmat[:3, :3]
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(3))
    assert float(torch.linalg.det(rotation)) == pytest.approx(1)
    points = torch.stack([target, target + 0.1 * torch.tensor(up, dtype=torch.float32)])
    pixels, depths = project(points, viewmat, K)
    torch.testing.assert_close(pixels[0], torch.tensor([320.0, 240.0]))
    assert float(depths[0]) == pytest.approx(float((target - eye).norm()))
    assert float(pixels[1, 0]) == pytest.approx(320, abs=1e-2)
    assert pixels[1, 1] < 240  # rows count downwards


def test_right_is_right():
    viewmat = look_at((0, 0, -3), (0, 0, 0), up=(0, -1, 0))
    torch.testing.assert_close(viewmat[:3, :3], torch.eye(3))


def test_field_of_view_is_what_the_height_sees():
    K = intrinsics(640, 480, 60)
    edge = torch.tensor([[0.0, math.tan(math.radians(30)), 1.0]])
    pixels, _ = project(edge, torch.eye(4), K)
    assert float(pixels[0, 1]) == pytest.approx(480)
    assert K[0, 0] == K[1, 1]


@pytest.mark.parametrize(
    ("eye", "target", "up", "words"),
    [
        ((1, 2, 3), (1, 2, 3), (0, 1, 0), "eye"),
        ((0, 0, 0), (0, 0, 0), (0, 1, 0), "eye"),
        ((math.nan, 0, 0), (0, 0, 1), (0, 1, 0), "eye"),
        ((0, 0, 0), (0, math.inf, 1), (0, 1, 0), "target"),
        ((0, 0, 0), (0, 0, 1), (0, 0, 0), "up"),
        ((0, 0, 0), (0, 0, 1), (0, 0, -2), "up"),
        ((0, 0), (0, 0, 1), (0, 1, 0), "eye"),
    ],
)
def test_cameras_without_a_meaning(eye, target, up, words):
    with pytest.raises(ArgumentError, match=words):
        look_at(eye, target, up)


@pytest.mark.parametrize("fov", [0, -10, 180, math.nan])
def test_fields_of_view_without_a_meaning(fov):
    with pytest.raises(ArgumentError, match="fov"):
        intrinsics(10, 10, fov)


@pytest.mark.parametrize("up", [(0.0, -1.0, 0.0), (0.0, 0.0, 2.0)])
def test_an_orbit_keeps_its_distance_and_height(up):
    target, elevations = torch.tensor([1.0, 2.0, 3.0]), [10.0, 45.0, -20.0, 0.0]
    viewmats = orbit(target.tolist(), 4.0, [0, 90, 180, 300], elevations, up)
    eyes = torch.linalg.inv(viewmats)[:, :3, 3]
    offsets = (eyes - target) / 4
    torch.testing.assert_close(offsets.norm(dim=-1), torch.ones(4), atol=1e-5, rtol=0)
    axis = torch.tensor(up) / torch.tensor(up).norm()
    torch.testing.assert_close(offsets @ axis, torch.tensor(elevations).deg2rad().sin(), atol=1e-5, rtol=0)
    flat = torch.nn.functional.normalize(offsets - (offsets @ axis)[:, None] * axis, dim=-1)
    torch.testing.assert_close(flat @ flat[0], torch.tensor([0, 90, 180, 300]).deg2rad().cos(), atol=1e-5, rtol=0)


def cloud(points, scale=0.02, opacity=0.8):
    gaussians = Gaussians.from_points(points, torch.full_like(points, 0.5), 0)
    return Gaussians(
        **{
            **gaussians.tensors(),
            "log_scales": torch.full_like(points, math.log(scale)),
            "opacity_logits": torch.full((len(points),), opacity).logit(),
        }
    )


def joined(*parts):
    return Gaussians(*(torch.cat(tensors) for tensors in zip(*(part.tensors().values() for part in parts))))


@pytest.mark.parametrize(("width", "height"), [(800, 600), (200, 600)])
@pytest.mark.parametrize("up", [(0.0, -1.0, 0.0), (0.0, 0.0, 1.0), None])
def test_a_model_fills_the_picture_whatever_floats_around_it(width, height, up):
    torch.manual_seed(0)
    model = 0.3 * torch.randn(4000, 3).clamp(-2, 2) + torch.tensor([5.0, 1.0, -2.0])
    faint = cloud(300 * torch.randn(200, 3), scale=0.02, opacity=0.02)
    backdrop = cloud(200 * torch.randn(3, 3), scale=50)
    broken = cloud(torch.zeros(2, 3)).map(lambda tensor: torch.full_like(tensor, math.nan))
    viewmat, middle = look_at_all(joined(cloud(model), faint, backdrop, broken), width, height, 50, up)
    pixels, depths = project(model, viewmat, intrinsics(width, height, 50))
    inside = (depths > 0) & (pixels >= 0).all(-1) & (pixels <= torch.tensor([width, height])).all(-1)
    assert inside.float().mean() > 0.97
    extent = (pixels.amax(0) - pixels.amin(0)) / torch.tensor([width, height])
    assert extent.max() > 0.7
    assert (middle - model.mean(0)).norm() < 0.2


def test_nothing_to_see_is_an_error():
    empty = cloud(torch.zeros(2, 3)).map(lambda tensor: tensor[:0])
    for model in (empty, cloud(torch.zeros(2, 3)).map(lambda tensor: torch.full_like(tensor, math.nan))):
        with pytest.raises(ArgumentError, match="no Gaussian"):
            look_at_all(model, 80, 60, 50)
        with pytest.raises(ArgumentError, match="no Gaussian"):
            guess_up(model)


def test_up_is_away_from_the_ground_a_model_stands_on():
    torch.manual_seed(0)
    body = torch.rand(2000, 3) - torch.tensor([0.5, 0.0, 0.5])
    ground = torch.rand(600, 3) * torch.tensor([4.0, 0.02, 4.0]) - torch.tensor([2.0, 0.02, 2.0])
    assert guess_up(cloud(body)) == (0, -1, 0)
    assert guess_up(joined(cloud(body), cloud(ground))) == (0, 1, 0)
    flip = torch.tensor([1.0, -1.0, 1.0])
    assert guess_up(joined(cloud(body * flip), cloud(ground * flip))) == (0, -1, 0)


def test_weighted_quantiles():
    values, weights = torch.tensor([3.0, 1.0, 2.0]), torch.tensor([1.0, 8.0, 1.0])
    assert [float(weighted_quantile(values, weights, q)) for q in (0.1, 0.8, 0.85, 0.95, 1.0)] == [1, 1, 2, 3, 3]
