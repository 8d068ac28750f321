"""Training on several ranks gives the results of a single process."""

import pytest
import torch.distributed as dist

from tests.support.train_worker import KINDS, capture, is_sharded, start
from tsplat.errors import UnsupportedError
from tsplat.runtime.process_group import RankGroup
from tsplat.training import Config, Trainer

pytestmark = pytest.mark.long

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_train_as_a_single_process(rank_results, kind, world_size):
    (single,) = rank_results.of("train", 1)
    expected = single[kind]
    assert expected["counts"][-1] > expected["counts"][0]
    ranks = [result[kind] for result in rank_results.of("train", world_size)]
    for rank in ranks:
        assert rank["counts"] == expected["counts"]
        # A single bit can change which Gaussian is sampled.
        assert rank["psnr"] == pytest.approx(expected["psnr"], abs=0.05 if kind in ("mcmc", "long-axis") else 1e-4)
    sizes = [rank["own"] for rank in ranks]
    n = expected["counts"][-1]
    if is_sharded(kind, world_size):
        assert sum(sizes) == n
        assert max(sizes) - min(sizes) <= world_size
    else:
        assert sizes == [n] * world_size


@pytest.mark.parametrize("world_size", [2, 4])
def test_fp16_with_ranks_that_have_no_view(rank_results, world_size):
    (single,) = rank_results.of("train", 1)
    for result in rank_results.of("train", world_size):
        assert result["fp16"] == pytest.approx(single["fp16"], rel=1e-5)


def test_ranks_agree_to_render_again_if_a_capacity_was_too_small(rank_results):
    for is_equal, waiting, without in rank_results.of("train_with_capacity", 2):
        assert is_equal
        assert without < waiting < 2 * without  # without a capacity, and again after overflows of either rank


def test_overflows_discard_the_gradients_of_what_views_show(rank_results):
    for is_equal, capacities in rank_results.of("train_selected_with_capacity", 2):
        assert is_equal
        assert "auto" in capacities and capacities.count(None) > capacities.count("auto")  # some are rendered again


def test_sharded_scene_of_degree_zero_is_refined(rank_results):
    assert rank_results.of("train_degree_zero", 2) == [213, 213]


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_train_on_what_views_show_with_the_same_bits(rank_results, world_size):
    for result in rank_results.of("train_selected", world_size):
        for is_equal, shares in result:
            assert is_equal and shares and max(shares) <= 0.5


@pytest.mark.parametrize("world_size", [2, 4])
def test_views_of_several_sizes(rank_results, world_size):
    (single,) = rank_results.of("train_sizes", 1)
    for result in rank_results.of("train_sizes", world_size):
        for (counts, losses), (expected_counts, expected_losses) in zip(result, single, strict=True):
            assert counts == expected_counts
            assert losses == pytest.approx(expected_losses, rel=1e-4)


@pytest.mark.parametrize(("world_size", "steps"), [(1, 16), (2, 8)])
def test_time_of_the_slowest_rank_counts_and_extended_runs_are_bit_exact(rank_results, world_size, steps):
    for planned, differ, last in rank_results.of("train_timed_and_extended", world_size):
        assert abs(planned - steps) <= 1
        assert differ == [[], []]
        assert last == 24


def test_no_rank_of_a_run_has_a_row_for_each_gaussian(rank_results):
    for counts in rank_results.of("run_within_shards", 2):
        for n, n_of_model in counts:
            assert n == n_of_model > 2435


def test_fp16_is_not_implemented_for_sharded_scenes():
    scene = capture()
    ranks = RankGroup()
    ranks.world_size = 3
    with pytest.raises(UnsupportedError, match="fp16"):
        Trainer(start(scene), scene.train, Config(precision="fp16"), ranks)
