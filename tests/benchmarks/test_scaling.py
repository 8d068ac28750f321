"""The counts and predictions of the multi-GPU cost model."""

import pytest
import torch

import tsplat
from benchmarks import scaling
from tests.support import scenes


def test_count_traffic_counts_rows_by_rank_of_gaussian_and_camera():
    visible = torch.tensor([[1, 1, 0, 0, 0, 1], [0, 0, 0, 1, 1, 1]]).bool()
    traffic = scaling.count_traffic(visible, torch.tensor([5, 0, 1, 2, 3, 4]))
    # Rank 0 owns 5, 0, 1 and rank 1 owns 2, 3, 4.
    assert traffic.rows.tolist() == [[3, 1], [0, 2]]
    assert traffic.visible == pytest.approx(0.5)
    assert traffic.leaving == pytest.approx(0.5)
    assert traffic.staying == pytest.approx(5 / 6)
    assert traffic.imbalance == pytest.approx(4 / 3)
    swapped = scaling.count_traffic(visible.flip(0), torch.tensor([5, 0, 1, 2, 3, 4]))
    assert swapped.staying == pytest.approx(1 / 6)
    assert swapped.placed().staying == pytest.approx(5 / 6)


def test_find_visible_agrees_with_rasterization():
    scene = scenes.make(scenes.Structure(n=50, cameras=3, width=64, height=48), torch.float32)
    gaussians = tsplat.scene.Gaussians.from_points(scene["means"], scene["colors"], 0)
    K = scene["Ks"][0]
    visible = scaling.find_visible(gaussians, scene["viewmats"], K)
    _, _, meta = tsplat.rasterization(
        gaussians.means, gaussians.quats, gaussians.scales, gaussians.opacities, scene["colors"], scene["viewmats"],
        K.expand(3, 3, 3), scaling.WIDTH, scaling.HEIGHT,
    )  # fmt: skip
    traffic = scaling.count_traffic(visible, scaling.partition(gaussians.means, "Morton"))
    assert int(traffic.rows.sum()) == meta["gaussian_ids"].numel() > 0
    assert torch.equal(traffic.rows.sum(0), torch.bincount(meta["camera_ids"], minlength=3))


def test_predictions_scale_with_the_number_of_ranks():
    alone, eight, many = (scaling.predict(1e8, ranks, 3e6) for ranks in (1, 8, 64))
    assert alone.exchange == alone.metadata == alone.link_bytes == 0
    assert alone.composite == eight.composite == many.composite
    assert alone.optimize == pytest.approx(8 * eight.optimize) == pytest.approx(64 * many.optimize)
    assert many.exchange > eight.exchange > 0
    assert many.memory_bytes < eight.memory_bytes < alone.memory_bytes
    assert scaling.predict(1e8, 64, 3e6, tested=0.05).total < many.total
    rows = scaling.prediction_table().splitlines()[2:]
    assert len({row.count("|") for row in [*rows, *scaling.PREDICTION_HEAD.splitlines()]}) == 1
