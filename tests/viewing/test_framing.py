"""Camera placement for models, checked by projecting their Gaussians."""

import math

import pytest
import torch

from tsplat import ArgumentError
from tsplat.scene import Gaussians, intrinsics, look_at
from tsplat.viewing import framing, guess_up, look_at_all, orbit_around, spiral_at
from tsplat.viewing.framing import cameras_around, place_cameras, weighted_quantile


def project(points, viewmat, K):
    """Pixels [N, 2] and depths [N]."""
    camera = points @ viewmat[:3, :3].T + viewmat[:3, 3]
    pixels = camera @ K.T
    return pixels[:, :2] / pixels[:, 2:], camera[:, 2]


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
def test_look_at_all_fills_the_image_and_ignores_floaters(width, height, up):
    torch.manual_seed(0)
    model = 0.3 * torch.randn(4000, 3).clamp(-2, 2) + torch.tensor([5.0, 1.0, -2.0])
    faint = cloud(300 * torch.randn(200, 3), scale=0.02, opacity=0.02)
    backdrop = cloud(200 * torch.randn(3, 3), scale=50)
    broken = cloud(torch.zeros(2, 3)).map(lambda tensor: torch.full_like(tensor, math.nan))
    viewmat, target = look_at_all(joined(cloud(model), faint, backdrop, broken), width, height, 50, up)
    pixels, depths = project(model, viewmat, intrinsics(width, height, 50))
    inside = (depths > 0) & (pixels >= 0).all(-1) & (pixels <= torch.tensor([width, height])).all(-1)
    assert inside.float().mean() > 0.97
    extent = (pixels.amax(0) - pixels.amin(0)) / torch.tensor([width, height])
    assert extent.max() > 0.7
    assert (target - model.mean(0)).norm() < 0.2


def test_large_models_are_framed_by_a_sample(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    model = cloud(torch.randn(4000, 3, generator=generator))
    everything = look_at_all(model, 80, 60, 50)
    monkeypatch.setattr(framing, "SAMPLE", 1000)
    viewmat, center = look_at_all(model, 80, 60, 50)
    assert (center - everything[1]).norm() < 0.2
    assert (viewmat - everything[0]).norm() < 0.1 * everything[0].norm()
    assert torch.equal(framing.visible_mass(model)[0], model.means[::4].double())
    # Only one Gaussian is visible, and not one of the sample.
    model.opacity_logits.fill_(-math.inf)
    model.opacity_logits[1] = 1.0
    assert look_at_all(model, 80, 60, 50)[1] == pytest.approx(model.means[1], abs=1e-3)


def test_framing_needs_a_visible_gaussian():
    empty = cloud(torch.zeros(2, 3)).map(lambda tensor: tensor[:0])
    for model in (empty, cloud(torch.zeros(2, 3)).map(lambda tensor: torch.full_like(tensor, math.nan))):
        with pytest.raises(ArgumentError, match="no Gaussian"):
            look_at_all(model, 80, 60, 50)
        with pytest.raises(ArgumentError, match="no Gaussian"):
            guess_up(model)


def test_guess_up_points_away_from_the_ground():
    torch.manual_seed(0)
    body = torch.rand(2000, 3) - torch.tensor([0.5, 0.0, 0.5])
    ground = torch.rand(600, 3) * torch.tensor([4.0, 0.02, 4.0]) - torch.tensor([2.0, 0.02, 2.0])
    assert guess_up(cloud(body)) == (0, -1, 0)
    assert guess_up(joined(cloud(body), cloud(ground))) == (0, 1, 0)
    flip = torch.tensor([1.0, -1.0, 1.0])
    assert guess_up(joined(cloud(body * flip), cloud(ground * flip))) == (0, -1, 0)


def test_weighted_quantile():
    values, weights = torch.tensor([3.0, 1.0, 2.0]), torch.tensor([1.0, 8.0, 1.0])
    assert [float(weighted_quantile(values, weights, q)) for q in (0.1, 0.8, 0.85, 0.95, 1.0)] == [1, 1, 2, 3, 3]


def center(viewmat):
    return -viewmat[:3, :3].T @ viewmat[:3, 3]


def ball():
    torch.manual_seed(0)
    return cloud(0.3 * torch.randn(500, 3).clamp(-2, 2) + torch.tensor([5.0, 1.0, -2.0]))


def test_place_cameras_frames_the_whole_model_by_default():
    (camera,) = place_cameras(ball(), 80, 60, 50)
    viewmat, _ = look_at_all(ball(), 80, 60, 50, guess_up(ball()))
    assert torch.allclose(camera.viewmat, viewmat, atol=1e-5)
    assert torch.equal(camera.K, intrinsics(80, 60, 50))
    assert (camera.width, camera.height) == (80, 60)


def test_place_cameras_uses_eye_target_and_up():
    eye, target, up = (1.0, 2.0, -9.0), (5.0, 0.0, -2.0), (0.0, 0.0, 1.0)
    (camera,) = place_cameras(ball(), 80, 60, 50, eye=eye, target=target, up=up)
    assert torch.equal(camera.viewmat, look_at(eye, target, up))


def test_place_cameras_completes_the_eye_or_the_target():
    framed, middle = look_at_all(ball(), 80, 60, 50)
    target = (6.0, 2.0, -1.0)
    (camera,) = place_cameras(ball(), 80, 60, 50, target=target)
    # The framing camera moved by the same offset as its target.
    offset = torch.tensor(target) - middle
    assert torch.allclose(center(camera.viewmat), center(framed) + offset, atol=1e-4)
    assert torch.allclose(camera.viewmat[:3, :3], framed[:3, :3], atol=1e-4)
    eye = (0.0, 1.0, -9.0)
    (camera,) = place_cameras(ball(), 80, 60, 50, eye=eye)
    assert torch.allclose(camera.viewmat, look_at(eye, middle.tolist()), atol=1e-4)


@pytest.mark.parametrize(("name", "trajectory"), [("orbit", orbit_around), ("spiral", spiral_at)])
def test_place_cameras_follows_a_trajectory(name, trajectory):
    eye, target, up = (1.0, 2.0, -9.0), (5.0, 0.0, -2.0), (0.0, -1.0, 0.0)
    options = dict(eye=eye, target=target, up=up, trajectory=name, frames=5)
    cameras = place_cameras(ball(), 80, 60, 50, **options)
    assert torch.equal(torch.stack([camera.viewmat for camera in cameras]), trajectory(eye, target, up, 5))


def test_cameras_around_a_model_see_it_from_everywhere():
    points = torch.randn(400, 3, generator=torch.Generator().manual_seed(0)) + torch.tensor([5.0, 0, 0])
    cameras = cameras_around(cloud(points), n=30, size=100)
    assert len(cameras) == 30
    eyes = torch.stack([camera.position for camera in cameras]).float() - points.mean(0)
    assert eyes.norm(dim=-1).max() < 2.8 * eyes.norm(dim=-1).min()
    assert ((torch.nn.functional.normalize(eyes, dim=-1) @ torch.eye(3)).abs().amax(0) > 0.9).all()
    for i, camera in enumerate(cameras):
        pixels, depths = project(points, camera.viewmat, camera.K)
        inside = ((pixels > 0) & (pixels < 100)).all(-1) & (depths > 0)
        assert inside.float().mean() > (0.95 if i % 3 == 0 else 0.5)
