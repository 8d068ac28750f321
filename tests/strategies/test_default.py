"""The default strategy."""

import math

import pytest
import torch

from tests.support.strategy_models import check_moments, make_info, make_model
from tsplat import ArgumentError
from tsplat.strategies import DefaultStrategy


def test_small_gaussians_are_cloned_large_ones_split_and_transparent_ones_pruned():
    params, optimizers = make_model(6)
    with torch.no_grad():
        params["scales"][:] = math.log(0.005)
        params["scales"][1] = math.log(0.05)
        params["opacities"][:] = 2.0
        params["opacities"][4] = -8.0
    strategy = DefaultStrategy(reset_every=700)
    strategy.check_sanity(params, optimizers)
    state = strategy.initialize_state(scene_scale=1.0)
    gradients = torch.zeros(6, 2)
    gradients[0, 0] = gradients[1, 1] = gradients[5, 0] = 1e-5
    gradients[2, 0] = 1e-7
    radii = torch.full((6, 2), 3, dtype=torch.int32)
    radii[5] = 0
    # A gradient of 1e-5 per pixel is 1e-3 along x and 5e-4 along y for coordinates from -1 to 1. The last Gaussian is
    # not visible.
    strategy.step_post_backward(params, optimizers, state, 599, make_info(gradients, radii))
    assert len(params["means"]) == 6
    strategy.step_post_backward(params, optimizers, state, 600, make_info(gradients, radii))
    assert params["ids"].tolist() == [1, 3, 4, 6, 1, 2, 2]
    check_moments(params, optimizers)
    assert all(state[name].tolist() == [0] * 7 for name in ("grad2d", "count", "radii"))
    gradients, radii = torch.zeros(7, 2), torch.full((7, 2), 3, dtype=torch.int32)
    strategy.step_post_backward(params, optimizers, state, 700, make_info(gradients, radii))
    assert (params["opacities"].detach().sigmoid() <= 0.01 + 1e-6).all()


def test_nothing_changes_after_the_last_refinement():
    params, optimizers = make_model(3)
    strategy = DefaultStrategy()
    state = strategy.initialize_state()
    strategy.step_post_backward(params, optimizers, state, 20_000, {})
    assert len(params["means"]) == 3


def test_absgrad_and_packed_info():
    params, optimizers = make_model(4)
    with torch.no_grad():
        params["opacities"][:] = 2.0
        params["scales"][:] = -6.0
    strategy = DefaultStrategy(absgrad=True)
    state = strategy.initialize_state()
    means2d = torch.zeros(2, 2)
    means2d.absgrad = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    rows = dict(means2d=means2d, radii=torch.ones(2, 2, dtype=torch.int32), width=10, height=10, n_cameras=1)
    rows["gaussian_ids"] = torch.tensor([3, 1])
    strategy.step_post_backward(params, optimizers, state, 600, rows, packed=True)
    assert params["ids"].tolist() == [1, 2, 3, 4, 4]
    del means2d.absgrad
    with pytest.raises(ArgumentError, match=r"means2d has no absgrad; .* absgrad=True; .*3DGUT.* use MCMCStrategy"):
        strategy.step_post_backward(params, optimizers, state, 601, rows, packed=True)
    with pytest.raises(ArgumentError, match="info: expected means2d, found"):
        strategy.step_pre_backward(params, optimizers, state, 0, {})


def test_pruning_all_gaussians_is_an_error():
    params, optimizers = make_model(3)
    with torch.no_grad():
        params["opacities"][:] = -9.0
    unchanged = make_info(torch.zeros(3, 2), torch.ones(3, 2, dtype=torch.int32))
    with pytest.raises(ArgumentError, match="prune_opa: all 3 Gaussians would be pruned at step 600"):
        DefaultStrategy().step_post_backward(params, optimizers, DefaultStrategy().initialize_state(), 600, unchanged)


def test_screen_gradients_are_per_camera_and_for_coordinates_from_minus_one_to_one():
    params = {"means": torch.zeros(2, 3)}
    means2d = torch.zeros(2, 2, 2)  # two cameras, two Gaussians
    means2d.grad = torch.tensor([[[3.0, 0.0], [0.0, 1.0]], [[0.0, 4.0], [9.0, 9.0]]])
    radii = torch.tensor([[[2, 2], [1, 1]], [[6, 5], [0, 0]]], dtype=torch.int32)
    info = {"means2d": means2d, "radii": radii, "n_cameras": 2, "width": 40, "height": 20}
    strategy = DefaultStrategy()
    state = strategy.initialize_state()
    strategy.step_post_backward(params, {}, state, 1, info)
    # Half the width is 20 pixels. Gradients of a mean over two cameras count twice. Invisible Gaussians do not count.
    assert state["grad2d"].tolist() == [3 * 20 * 2 + 4 * 10 * 2, 1 * 10 * 2]
    assert state["count"].tolist() == [2, 1]
    torch.testing.assert_close(state["radii"], torch.tensor([6 / 40, 1 / 40]))


def test_pause_after_reset_keeps_statistics():
    params, optimizers = make_model(4)
    strategy = DefaultStrategy(reset_every=200, pause_refine_after_reset=50, refine_start_iter=100, grow_grad2d=1e9)
    params["opacities"].data[:] = 2.0
    state = strategy.initialize_state(scene_scale=100.0)
    gradients, radii = torch.ones(4, 2), torch.full((4, 2), 3, dtype=torch.int32)
    for step, count in ((398, 1), (399, 2), (400, 3), (401, 4), (500, 0), (501, 1)):
        strategy.step_post_backward(params, optimizers, state, step, make_info(gradients, radii))
        assert state["count"].tolist() == [count] * 4
        assert state["grad2d"].tolist() == pytest.approx([count * math.hypot(100, 50)] * 4)
        assert state["radii"].tolist() == pytest.approx([3 / 200 if count else 0] * 4)
        # Resets are not paused.
        assert (float(params["opacities"].detach().max()) < 0) == (step >= 400)


@pytest.mark.parametrize("cap", [10, 13, 14, 25, 100])
def test_cap_holds_for_gaussians_that_are_cloned_and_split(cap):
    params, optimizers = make_model(10)
    with torch.no_grad():
        params["opacities"][:] = 2.0
        params["scales"][:] = -6.0
    strategy = DefaultStrategy(cap_max=cap, refine_scale2d_stop_iter=1000)
    gradients = torch.linspace(1.0, 2.0, 10)[:, None].expand(10, 2)
    radii = torch.full((10, 2), 40, dtype=torch.int32)
    strategy.step_post_backward(params, optimizers, strategy.initialize_state(), 600, make_info(gradients, radii))
    # All ten are small, with large gradients and radii: cloned and split, those with the largest gradients first.
    n_grown = min(cap - 10, 20) // 2
    assert len(params["means"]) == 10 + 2 * n_grown
    clones = params["ids"].detach()[10 - n_grown : 10]
    assert sorted(clones.tolist()) == list(range(11 - n_grown, 11))


def test_state_without_radii():
    params, optimizers = make_model(4)
    params["opacities"].data[:] = 2.0
    info = make_info(torch.ones(4, 2), torch.full((4, 2), 3, dtype=torch.int32))
    state = {"grad2d": None, "count": None, "scene_scale": 1.0}
    DefaultStrategy().step_post_backward(params, optimizers, state, 600, info)
    assert len(params["means"]) == 8
    assert set(state) == {"grad2d", "count", "scene_scale"}
