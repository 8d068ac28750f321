"""What the model of many GPUs counts is what is there, and its times go the way they must."""

import pytest
import torch

import tsplat
from benchmarks import scaling
from tests.support import scenes


def test_rows_are_counted_by_owner_and_camera():
    seen = torch.tensor([[1, 1, 0, 0, 0, 1], [0, 0, 0, 1, 1, 1]]).bool()
    traffic = scaling.count(seen, torch.tensor([5, 0, 1, 2, 3, 4]))
    # Rank 0 owns 5, 0, 1 and rank 1 owns 2, 3, 4.
    assert traffic.rows.tolist() == [[3, 1], [0, 2]]
    assert traffic.visible == pytest.approx(0.5)
    assert traffic.leaving == pytest.approx(0.5)
    assert traffic.staying == pytest.approx(5 / 6)
    assert traffic.imbalance == pytest.approx(4 / 3)
    swapped = scaling.count(seen.flip(0), torch.tensor([5, 0, 1, 2, 3, 4]))
    assert swapped.staying == pytest.approx(1 / 6)
    assert swapped.placed().staying == pytest.approx(5 / 6)


def test_what_is_seen_is_what_is_drawn():
    scene = scenes.make(scenes.Structure(n=50, cameras=3, width=64, height=48), torch.float32)
    gaussians = tsplat.scene.Gaussians.from_points(scene["means"], scene["colors"], 0)
    K = scene["Ks"][0]
    seen = scaling.look(gaussians, scene["viewmats"], K)
    _, _, meta = tsplat.rasterization(
        gaussians.means, gaussians.quats, gaussians.scales, gaussians.opacities, scene["colors"], scene["viewmats"],
        K.expand(3, 3, 3), scaling.WIDTH, scaling.HEIGHT,
    )  # fmt: skip
    traffic = scaling.count(seen, scaling.partition(gaussians.means, 3, "Morton"))
    assert int(traffic.rows.sum()) == meta["gaussian_ids"].numel() > 0
    assert torch.equal(traffic.rows.sum(0), torch.bincount(meta["camera_ids"], minlength=3))


def test_the_model_goes_the_way_it_must():
    alone, pair, many = (scaling.model(1e8, ranks, 3e6) for ranks in (1, 8, 64))
    assert alone.exchange == alone.agree == alone.link_bytes == 0
    assert alone.draw == pair.draw == many.draw
    assert alone.optimize == pytest.approx(8 * pair.optimize) == pytest.approx(64 * many.optimize)
    assert many.exchange > pair.exchange > 0
    assert many.memory_bytes < pair.memory_bytes < alone.memory_bytes
    assert scaling.model(1e8, 64, 3e6, tested=0.05).total < many.total
    rows = scaling.model_table().splitlines()[2:]
    assert len({row.count("|") for row in [*rows, *scaling.MODEL_HEAD.splitlines()]}) == 1
