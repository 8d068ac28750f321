"""Metrics of image regions, the worst patches, and floaters."""

import math

import pytest
import torch

from tests.support.training_scenes import make_gaussians, make_views
from tsplat.scene import Camera, Gaussians, intrinsics, transform_gaussians
from tsplat.training import psnr, ssim
from tsplat.training.report.quality import REGIONS, floater_shares, region_masks, score_regions, ssim_map, worst_patches


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(3)
    target = torch.zeros(48, 64, 3, dtype=torch.uint8)
    target[10:30, 20:40] = torch.randint(0, 256, (20, 20, 3), generator=generator, dtype=torch.uint8)
    return target, (target.float() * 0.8 + 20).to(torch.uint8)


def test_regions_part_the_image(images):
    target, _ = images
    found = region_masks(target)
    assert torch.equal(torch.stack(list(found.values())).sum(0), torch.ones(48, 64, dtype=torch.long))
    assert int(found["border"].sum()) == 48 * 64 - 42 * 58
    inside = torch.zeros(48, 64, dtype=torch.bool)
    inside[9:31, 19:41] = True
    assert found["sharp"].any() and not (found["sharp"] & ~inside).any()
    uniform = region_masks(torch.full((20, 20, 3), 7, dtype=torch.uint8))
    assert not uniform["sharp"].any() and int(uniform["flat"].sum()) == 18 * 18


def test_scores_of_regions_add_up_to_those_of_the_image(images):
    target, rendered = images
    x, y = rendered.float() / 255, target.float() / 255
    torch.testing.assert_close(ssim_map(x, y).mean(), ssim(x, y), rtol=1e-5, atol=1e-6)
    scores, parts = score_regions(target, rendered), region_masks(target)
    squares = sum(10 ** (-scores[name].psnr / 10) * int(parts[name].sum()) for name in REGIONS) / parts["flat"].numel()
    assert -10 * math.log10(squares) == pytest.approx(float(psnr(x, y)), abs=1e-4)
    centers = {name: int(part[5:-5, 5:-5].sum()) for name, part in parts.items()}
    assert centers["border"] == 0 and scores["border"].ssim is None
    mean = sum(centers[name] * scores[name].ssim for name in ("sharp", "flat")) / sum(centers.values())
    assert mean == pytest.approx(float(ssim(x, y)), abs=1e-5)
    assert score_regions(target, target)["flat"] == (math.inf, pytest.approx(1.0))


def test_worst_patches_are_where_the_error_is(images):
    target, _ = images
    spoiled = target.clone()
    spoiled[17:30, 33:46] = 255 - spoiled[17:30, 33:46]
    patches = worst_patches([(target, target), (target, spoiled)], 3)
    first = patches[0]
    assert (first.view, first.top, first.left, first.side) == (1, 16, 32, 16)
    assert first.crop(target).shape == (16, 16, 3)
    assert first.psnr == pytest.approx(float(psnr(first.crop(spoiled) / 255, first.crop(target) / 255)), abs=1e-4)
    assert len(patches) == 3 and patches[1].psnr <= patches[2].psnr
    assert len(worst_patches([(target[:12, :12], target[:12, :12])], 5)) == 1


@pytest.mark.parametrize("unit", [1.0, 1e-3, 1e3])
def test_floaters_are_gaussians_in_front_of_the_surface(unit):
    gaussians = Gaussians.from_points(torch.tensor([[0.0, 0, 4], [0, 0, 1]]), torch.ones(2, 3), opacity=0.9)
    wall = Gaussians(**{**gaussians.tensors(), "log_scales": torch.tensor([[2.0, 2, -3], [-2, -2, -2]])})
    wall = transform_gaussians(wall, torch.diag(torch.tensor([unit, unit, unit, 1.0], dtype=torch.float64)))
    camera = Camera(torch.eye(4), intrinsics(16, 16, 60), 16, 16)
    (part,) = floater_shares(wall, [camera])
    assert 0.01 < part < 0.5
    assert floater_shares(wall.map(lambda tensor: tensor[:1]), [camera])[0] < 1e-3


def test_floaters_of_a_scene_are_parts():
    gaussians = make_gaussians()
    parts = floater_shares(gaussians, [view.camera for view in make_views(gaussians, 2)])
    assert len(parts) == 2 and all(0 <= part <= 1 for part in parts)
