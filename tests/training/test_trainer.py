"""The trainer on a scene of a few Gaussians."""

import dataclasses
import math

import pytest
import torch

from tsplat import ArgumentError
from tsplat.scene import Gaussians, View, intrinsics, look_at
from tsplat.scene.images import to_bytes
from tsplat.strategies import DefaultStrategy, MCMCStrategy
from tsplat.training import Config, DivergedError, evaluate, fit, mean_psnr, mean_ssim, render, scene_extent
from tsplat.training import trainer as trainer_module
from tsplat.viewing.rendering import render_views

SKY = (0.2, 0.4, 0.7)


def truth(n=60):
    generator = torch.Generator().manual_seed(5)
    points = 0.5 * torch.randn(n, 3, generator=generator)
    gaussians = Gaussians.from_points(points, torch.rand(n, 3, generator=generator), 1)
    return dataclasses.replace(
        gaussians, log_scales=torch.full((n, 3), math.log(0.15)), opacity_logits=torch.full((n,), 1.0)
    )


def pictures(gaussians, n=6, width=40, height=30):
    views = []
    for i in range(n):
        angle = 2 * math.pi * i / n
        viewmat = look_at((3 * math.sin(angle), -1.0, -3 * math.cos(angle)), (0, 0, 0))
        K = intrinsics(width, height, 45)
        with torch.no_grad():
            image = render(gaussians, viewmat, K, width, height, background=SKY)
        views.append(View(f"{i}", to_bytes(image), viewmat, K))
    return views


@pytest.fixture(scope="module")
def scene():
    gaussians = truth()
    generator = torch.Generator().manual_seed(6)
    start = Gaussians.from_points(
        gaussians.means + 0.05 * torch.randn(gaussians.means.shape, generator=generator),
        torch.full_like(gaussians.means, 0.5),
        1,
    )
    return start, pictures(gaussians)


def test_pictures_of_gaussians_are_fitted_and_so_is_a_view_held_out(scene):
    start, views = scene
    config = Config(steps=250, background=SKY, means_rate=2e-3, scales_rate=2e-2, sh0_rate=5e-2)
    result = fit(start, views[1:], config)
    before, after = (evaluate(g, views[:1], background=SKY) for g in (start, result))
    assert mean_psnr(after) > mean_psnr(before) + 5
    assert mean_ssim(after) > mean_ssim(before)
    assert not any(tensor.requires_grad for tensor in result.tensors().values())


def test_the_start_is_not_changed_and_every_parameter_moves(scene):
    start, views = scene
    copy = start.map(torch.clone)
    result = fit(start, views, Config(steps=8, background=SKY))
    for name, tensor in start.tensors().items():
        assert torch.equal(tensor, copy.tensors()[name]), name
        assert not torch.equal(tensor, result.tensors()[name]), name


def test_antialiased_gaussians_stay_so_and_are_rendered_so(scene):
    start, views = scene
    marked = dataclasses.replace(start, antialiased=True)
    results = [fit(gaussians, views, Config(steps=2)) for gaussians in (start, marked)]
    assert [result.antialiased for result in results] == [False, True]
    assert not torch.equal(results[0].means, results[1].means)


def test_a_seed_decides_everything(scene):
    start, views = scene
    a, b, c = (fit(start, views, Config(steps=6, seed=seed, background=SKY)) for seed in (1, 1, 2))
    assert all(torch.equal(x, y) for x, y in zip(a.tensors().values(), b.tensors().values()))
    assert not torch.equal(a.means, c.means)


def test_adam_moves_each_parameter_by_its_rate_in_the_first_step(scene):
    start, views = scene
    # Round ones have no gradient with respect to their rotation.
    start = dataclasses.replace(start, log_scales=start.log_scales + torch.tensor([0.3, 0.0, -0.3]))
    config = Config(steps=1, background=SKY, means_rate=2e-4)
    result = fit(start, views[:3], config)
    extent = scene_extent(views[:3])
    rates = dict(means=2e-4 * extent, log_scales=5e-3, quats=1e-3, opacity_logits=5e-2, sh0=2.5e-3)
    for name, rate in rates.items():
        moved = (result.tensors()[name] - start.tensors()[name]).abs()
        # Adam's first step is the rate, whatever the gradient.
        assert float(moved.max()) == pytest.approx(rate, rel=1e-2), name
    assert torch.equal(result.shN, start.shN)  # degree 0 is in use


def test_the_rate_of_means_decays_to_a_hundredth(scene, monkeypatch):
    start, views = scene
    rates = []

    class Recording(trainer_module.Adam):
        def step(self, *arguments):
            if self.param_groups[0]["params"][0].shape[1:] == (3,):
                rates.append(self.param_groups[0]["lr"])
            return super().step(*arguments)

    monkeypatch.setattr(trainer_module, "Adam", Recording)
    fit(start, views, Config(steps=5, background=SKY))
    first = 1.6e-4 * scene_extent(views)
    assert rates[::2] == pytest.approx([first * 0.01 ** (i / 5) for i in range(5)])
    assert set(rates[1::2]) == {Config.scales_rate}


def test_degrees_come_into_use_one_by_one(scene, monkeypatch):
    start, views = scene
    degrees = []

    def recorded(*arguments, sh_degree, **options):
        degrees.append(sh_degree)
        return render_views(*arguments, sh_degree=sh_degree, **options)

    monkeypatch.setattr(trainer_module, "render_views", recorded)
    fit(start, views, Config(steps=7, background=SKY))
    fit(start, views, Config(steps=7, background=SKY, sh_interval=2))
    assert degrees == [0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1]


def test_every_view_comes_once_before_any_comes_again(scene, monkeypatch):
    start, views = scene
    seen = []

    def recorded(gaussians, viewmats, *arguments, **options):
        seen.append(next(view.name for view in views if torch.equal(view.viewmat, viewmats[0])))
        return render_views(gaussians, viewmats, *arguments, **options)

    monkeypatch.setattr(trainer_module, "render_views", recorded)
    fit(start, views, Config(steps=12, background=SKY))
    assert sorted(seen[:6]) == sorted(seen[6:]) == [view.name for view in views]
    assert seen[:6] != seen[6:]


def test_a_callback_sees_every_step_and_can_end_it(scene):
    start, views = scene
    steps = []

    def on_step(progress):
        steps.append(progress.step)
        assert progress.steps == 50
        assert float(progress.loss) > 0
        assert 5 < float(progress.psnr) < 60
        assert not torch.equal(progress.gaussians.means, start.means)
        return progress.step == 4

    result = fit(start, views, Config(steps=50, background=SKY), on_step)
    assert steps == [1, 2, 3, 4]
    assert not torch.equal(result.means, start.means)


def test_gaussians_that_are_no_numbers_end_training(scene):
    start, views = scene
    broken = dataclasses.replace(start, sh0=start.sh0.index_fill(0, torch.tensor([1, 2]), math.nan))
    with pytest.raises(
        DivergedError, match=rf"at step 0 the loss is .* and 2 of {len(start)} Gaussians are not finite"
    ):
        fit(broken, views, Config(steps=3))


def test_nothing_to_train(scene):
    start, views = scene
    with pytest.raises(ArgumentError, match="0 views"):
        fit(start, [])
    with pytest.raises(ArgumentError, match="0 Gaussians"):
        fit(start.map(lambda tensor: tensor[:0]), views)
    with pytest.raises(ArgumentError, match="steps"):
        Config(steps=0)


def test_the_extent_of_a_scene_is_that_of_its_cameras():
    image, K = torch.zeros(2, 2, 3, dtype=torch.uint8), torch.eye(3)
    views = [View("a", image, look_at((x, 0, 0), (0, 0, 9)), K) for x in (-2.0, 2.0)]
    assert scene_extent(views) == pytest.approx(2.2)
    assert scene_extent(views[:1]) > 0


def test_scores_are_of_the_picture_as_it_is_shown(scene):
    start, views = scene
    bright = dataclasses.replace(start, sh0=start.sh0 + 100)
    (score,) = evaluate(bright, views[:1], background=SKY)
    assert score.image.amax() == 1
    mse = float((score.image - views[0].pixels).square().mean())
    assert score.psnr == pytest.approx(-10 * math.log10(mse), abs=1e-3)


def test_views_that_cannot_be_trained_on():
    image, K = torch.zeros(2, 2, 3, dtype=torch.uint8), torch.eye(3)
    for arguments, words in (
        ((image.float(), torch.eye(4), K), "uint8"),
        ((image[..., :1], torch.eye(4), K), "image"),
        ((image, torch.eye(3), K), "viewmat"),
        ((image, torch.full((4, 4), math.nan), K), "viewmat.*'a'"),
        ((image, torch.eye(4), -K), "focal"),
    ):
        with pytest.raises(ArgumentError, match=words):
            View("a", *arguments)


@pytest.mark.parametrize("name", ["default", "mcmc"])
def test_a_strategy_changes_the_number_of_gaussians_alike_each_time(scene, name):
    start, views = scene
    results = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(5)
        schedule = dict(refine_start_iter=2, refine_every=3, refine_stop_iter=20, generator=generator)
        strategy = (
            MCMCStrategy(cap_max=len(start) + 4, **schedule)
            if name == "mcmc"
            else DefaultStrategy(grow_grad2d=1e-9, **schedule)
        )
        results.append(fit(start, views, Config(steps=8, background=SKY, strategy=strategy)))
    assert len(results[0]) == len(start) + 4 if name == "mcmc" else len(results[0]) > len(start)
    for one, other in zip(*(result.tensors().values() for result in results)):
        assert torch.equal(one, other)
        assert one.isfinite().all()
