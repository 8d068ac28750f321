"""Updates of visible Gaussians only, if views show a small part of the scene."""

import pytest
import torch

from tests.support.thread_ranks import on_ranks
from tsplat.runtime.process_group import RankGroup
from tsplat.scene import Camera, Gaussians, View, intrinsics, look_at
from tsplat.training import Config, Trainer
from tsplat.training.gradient_step import visible_share


@pytest.fixture
def row():
    """A row of 8 Gaussians, a camera above each of the left two, which shows it alone, and one that shows all."""
    means = torch.tensor([[float(x), 0.0, 0.0] for x in range(8)])
    gaussians = Gaussians.from_points(means, torch.full_like(means, 0.5), 0)
    K, up = intrinsics(16, 16, 50.0), (0.0, 1.0, 0.0)
    cameras = [
        Camera(look_at((x, 0.0, -distance), (x, 0.0, 0.0), up), K, 16, 16)
        for x, distance in ((0.0, 1.0), (1.0, 1.0), (3.5, 10.0))
    ]
    views = [View(torch.full((16, 16, 3), 128, dtype=torch.uint8), camera) for camera in cameras]
    return gaussians, views


def test_share_of_gaussians_that_cameras_show(row):
    gaussians, views = row
    cameras = [view.camera for view in views]
    assert visible_share(gaussians.means, cameras, RankGroup()) == pytest.approx((1 + 1 + 8) / 24)
    shares = on_ranks(3, lambda ranks: visible_share(gaussians.means[ranks.shard_rows(8)], cameras, ranks))
    assert shares == pytest.approx([(1 + 1 + 8) / 24] * 3)


@pytest.mark.parametrize(
    ("given", "count", "expected"),
    [("auto", 2, "on"), ("auto", 3, "off"), ("on", 3, "on"), ("off", 2, "off")],
)
def test_auto_is_on_where_views_show_a_small_part(row, given, count, expected):
    gaussians, views = row
    config = Trainer(gaussians, views[:count], Config(visible_adam=given)).config
    assert (config.visible_adam, config.views_per_step) == (expected, 1)


def test_auto_updates_as_what_was_found(row):
    gaussians, views = row
    results = {}
    for visible_adam in ("auto", "on", "off"):
        trainer = Trainer(gaussians, views[:2], Config(steps=4, opacity_weight=0.1, visible_adam=visible_adam))
        while trainer.step < 4:
            trainer.advance()
        results[visible_adam] = trainer.gaussians.opacity_logits
    assert torch.equal(results["auto"], results["on"]) and not torch.equal(results["auto"], results["off"])
