"""The trainer on a scene of a few Gaussians."""

import copy
import dataclasses
import functools
import math
import pickle
import random
import signal
import sys

import pytest
import torch

from tests.support.backends import BACKENDS
from tests.support.captures import changed
from tests.support.panoramas import room_capture
from tests.support.slow import slow_after
from tests.support.training_scenes import HEIGHT, WIDTH, gray, make_gaussians, make_views
from tsplat import ArgumentError, MemoryBudgetError, UnsupportedError
from tsplat.ops.adam import step_all
from tsplat.rendering import render, render_views
from tsplat.scene import Camera, Gaussians, View, intrinsics, look_at
from tsplat.scene.capture.image_cache import CachedPixels, ImageCache
from tsplat.scene.capture.views import StoredView
from tsplat.scene.gaussians import FLAT
from tsplat.stages import capacity
from tsplat.strategies import DefaultStrategy, LongAxisStrategy
from tsplat.training import (
    Config,
    DivergedError,
    Trainer,
    evaluate,
    fit,
    gradient_step,
    preset,
    scene_extent,
    view_gradients,
)
from tsplat.training.configuration import TYPICAL_EXTENT
from tsplat.training.presets import PRESETS, for_surfels
from tsplat.training.view_corrections import apply_exposure, apply_motion

SKY = (0.2, 0.4, 0.7)
FROZEN = dict.fromkeys(("means_rate", "scales_rate", "opacities_rate", "quats_rate", "sh0_rate"), 0.0)


@pytest.fixture(scope="module")
def noisy():
    """Gray, noisy Gaussians, and views of the original ones in front of a blue sky."""
    gaussians = make_gaussians(sh_degree=1)
    generator = torch.Generator().manual_seed(6)
    means = gaussians.means + 0.05 * torch.randn(gaussians.means.shape, generator=generator)
    return Gaussians.from_points(means, torch.full_like(means, 0.5), 1), make_views(gaussians, background=SKY)


@pytest.fixture
def adam_steps(monkeypatch):
    """Records (parameter, its gradient, parameter group) of every step of an optimizer. Passes would make no call."""
    steps = []

    def recorded(optimizers, visible):
        for optimizer in optimizers:
            group = dict(optimizer.param_groups[0])
            (parameter,) = group["params"]
            steps.append((parameter, None if parameter.grad is None else parameter.grad.clone(), group))
        step_all(optimizers, visible=visible)

    monkeypatch.setattr(gradient_step, "step_all", recorded)
    monkeypatch.setattr(view_gradients.ViewGradients, "_no_passes_reason", lambda self: "here")
    return steps


@pytest.fixture
def renders(monkeypatch):
    """Records the arguments of every rendering. Passes would render without a call."""
    monkeypatch.setattr(view_gradients.ViewGradients, "_no_passes_reason", lambda self: "here")
    calls = []

    def recorded(gaussians, cameras, **options):
        calls.append({"cameras": cameras, **options})
        return render_views(gaussians, cameras, **options)

    monkeypatch.setattr(view_gradients, "render_views", recorded)
    return calls


@pytest.mark.parametrize("backend", slow_after(1, BACKENDS))
@pytest.mark.parametrize("headroom", slow_after(1, [1, capacity.HEADROOM]))
def test_training_with_a_capacity_gives_the_same_bits(noisy, renders, monkeypatch, backend, headroom):
    gaussians, views = noisy
    monkeypatch.setattr(capacity, "_automatic", {})
    monkeypatch.setattr(capacity, "HEADROOM", headroom)
    monkeypatch.setattr(capacity, "UNCOUNTED", math.ceil(headroom))
    schedule = dict(refine_start_iter=2, refine_every=3, refine_stop_iter=14)
    strategy = DefaultStrategy(grow_grad2d=1e-5, **schedule)
    config = Config(steps=16, views_per_step=2, strategy=strategy, backend=backend, scales_rate=0.1, gains=True)
    trainers = [Trainer(gaussians, views, dataclasses.replace(config, capacity=choice)) for choice in ("off", "on")]
    for trainer in trainers:
        while trainer.step < config.steps:
            trainer.advance()
    (exact, figures), (found, figures_found) = (trainer.state() for trainer in trainers)
    assert figures == figures_found and exact.keys() == found.keys()
    assert all(torch.equal(exact[name], found[name]) for name in exact)
    assert len(exact["params/means"]) > 1.5 * len(gaussians)
    waiting, without = ([call for call in renders if call["capacity"] == choice] for choice in (None, "auto"))
    again = len(waiting) - 2 * config.steps
    assert len(without) == 2 * config.steps
    assert again > config.steps if headroom == 1 else again < 8


def test_images_from_a_cache_give_the_same_bits(noisy):
    """The next ones are read ahead; progress has the seconds that steps waited."""
    gaussians, views = noisy
    cache, read = ImageCache(3 * 4 * WIDTH * HEIGHT), []

    def pixels_of(i):
        return lambda: (read.append(i) or views[i].image, views[i].mask)

    stored = [
        StoredView(CachedPixels(cache, i, (WIDTH, HEIGHT), pixels_of(i)), view.camera) for i, view in enumerate(views)
    ]
    config = Config(steps=13, views_per_step=2, gains=True)
    trainers = [Trainer(gaussians, given, config) for given in (views, stored)]
    for trainer in trainers:
        progress = [trainer.advance() for _ in range(config.steps)]
        assert all((one.waited is None) == (trainer is trainers[0]) for one in progress)
    (expected, figures), (found, figures_found) = (trainer.state() for trainer in trainers)
    assert figures == figures_found
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert 0 <= progress[0].waited <= progress[-1].waited == cache.waited
    assert len(read) > len(views) and len(cache._kept) <= 3


@pytest.fixture(scope="module")
def room():
    """A capture of 12 panoramas, and Gaussians at its points."""
    capture = room_capture(12, 48, n_points=200)
    return capture, Gaussians.from_points(capture.points, capture.colors)


def test_training_on_panoramas_gains_on_others(room):
    capture, gaussians = room
    before = evaluate(gaussians, capture.test)
    trainer = Trainer(gaussians, capture.train, Config(steps=100, strategy=None))
    for _ in range(100):
        trainer.advance()
    after = evaluate(trainer.gaussians, capture.test)
    assert after.psnr > before.psnr + 4
    assert after.ssim > before.ssim + 0.1


def test_panoramas_have_no_lens_to_refine(room):
    capture, gaussians = room
    with pytest.raises(ArgumentError, match="lens_refinement: panoramas have no lens"):
        Trainer(gaussians, capture.train, Config(steps=1, lens_refinement=True))


def test_2d_gaussians_are_not_trained_on_panoramas(room):
    capture, gaussians = room
    with pytest.raises(UnsupportedError, match=r"2D Gaussians are rendered with pinhole cameras .* equirectangular"):
        evaluate(gaussians.as_surfels(), capture.test)


def test_fisheye_views_are_trained_and_evaluated_with_their_camera_model():
    gaussians = make_gaussians(30)
    views = make_views(gaussians, model="fisheye")
    wrong = [changed(view, model="pinhole") for view in views]
    assert evaluate(gaussians, views).psnr > 50
    assert evaluate(gaussians, wrong).psnr < 35
    assert Trainer(gaussians, views, Config(steps=2, **FROZEN)).advance().psnr > 50


@pytest.mark.slow
def test_training_improves_a_held_out_view(noisy):
    start, views = noisy
    config = Config(steps=250, background=SKY, means_rate=2e-3, scales_rate=2e-2, sh0_rate=5e-2)
    result = fit(start, views[1:], config)
    before, after = (evaluate(g, views[:1], background=SKY) for g in (start, result))
    assert after.psnr > before.psnr + 5
    assert after.ssim > before.ssim
    assert not any(tensor.requires_grad for tensor in result.tensors().values())


def test_fit_changes_every_parameter_but_not_its_argument(noisy):
    start, views = noisy
    copy = start.map(torch.clone)
    result = fit(start, views, Config(steps=8, background=SKY))
    for name, tensor in start.tensors().items():
        assert torch.equal(tensor, copy.tensors()[name]), name
        assert not torch.equal(tensor, result.tensors()[name]), name


def test_seed_determines_the_result(noisy):
    start, views = noisy
    a, b, c = (fit(start, views, Config(steps=6, seed=seed, background=SKY)) for seed in (1, 1, 2))
    assert all(torch.equal(x, y) for x, y in zip(a.tensors().values(), b.tensors().values()))
    assert not torch.equal(a.means, c.means)


def test_the_default_device_and_dtype_do_not_matter(noisy):
    """As a program sets them. 1,001 steps of Adam are 1,000 in bf16."""
    strategy = LongAxisStrategy(cap_max=100, refine_start_iter=1, refine_every=3, refine_stop_iter=9)
    config = Config(steps=9, strategy=strategy, backend="torch", random_background=True)
    trainer = Trainer(*noisy, config)
    trainer.advance()
    tensors, figures = trainer.state()
    figures["adam_steps"] = dict.fromkeys(figures["adam_steps"], 1001)

    def continued():
        trainer.restore(tensors, figures)
        while trainer.step < config.steps:
            trainer.advance()
        return trainer.state()

    expected, expected_figures = continued()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            found, found_figures = continued()
    finally:
        torch.set_default_dtype(torch.float32)
    assert found_figures == expected_figures
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_first_step_of_each_parameter_is_its_learning_rate(noisy):
    start, views = noisy
    # Rotations of spheres have no gradient.
    start = dataclasses.replace(start, log_scales=start.log_scales + torch.tensor([0.3, 0.0, -0.3]))
    result = fit(start, views[:3], Config(steps=1, background=SKY, means_rate=2e-4))
    extent = scene_extent(views[:3])
    rates = dict(means=2e-4 * extent, log_scales=5e-3, quats=1e-3, opacity_logits=5e-2, sh0=2.5e-3)
    for name, rate in rates.items():
        change = (result.tensors()[name] - start.tensors()[name]).abs()
        # The first step of Adam is the learning rate, for any gradient.
        assert float(change.max()) == pytest.approx(rate, rel=1e-2), name
    assert torch.equal(result.shN, start.shN)  # only degree 0 is used


def test_learning_rate_of_means_decays(noisy, adam_steps):
    start, views = noisy
    fit(start, views, Config(steps=5, background=SKY))
    # Means and scales are the parameters of this shape.
    rates = [group["lr"] for parameter, _, group in adam_steps if parameter.shape[1:] == (3,)]
    first = 1.6e-4 * scene_extent(views)
    assert rates[::2] == pytest.approx([first * 0.01 ** (i / 5) for i in range(5)])
    assert set(rates[1::2]) == {Config.scales_rate}


def test_other_learning_rates_decay_in_the_last_fifth(noisy, adam_steps):
    start, views = noisy
    fit(start, views, Config(steps=10, background=SKY, rates_decay=0.01))
    scales = [group["lr"] for parameter, _, group in adam_steps if parameter.shape[1:] == (3,)][1::2]
    assert scales == pytest.approx([Config.scales_rate] * 9 + [Config.scales_rate * 0.1])


def test_learning_rates_rise_with_the_cube_of_the_step(noisy, adam_steps):
    start, views = noisy
    fit(start, views, Config(steps=5, background=SKY, warm_up=4))
    scales = [group["lr"] for parameter, _, group in adam_steps if parameter.shape[1:] == (3,)][1::2]
    assert scales == pytest.approx([Config.scales_rate * factor for factor in (1 / 64, 1 / 8, 27 / 64, 1, 1)])


def test_sh_degree_increases_during_training(noisy, renders):
    start, views = noisy
    fit(start, views, Config(steps=7, background=SKY))
    fit(start, views, Config(steps=7, background=SKY, sh_interval=2))
    degrees = [call["sh_degree"] for call in renders]
    assert degrees == [0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1]


def test_each_view_comes_once_per_permutation(noisy, renders):
    start, views = noisy
    fit(start, views, Config(steps=12, background=SKY))
    order = [camera.name for call in renders for camera in call["cameras"]]
    assert sorted(order[:6]) == sorted(order[6:]) == [view.name for view in views]
    assert order[:6] != order[6:]


def test_random_background(scene, renders):
    gaussians, views = scene
    fit(gaussians, views, Config(steps=3, random_background=True))
    backgrounds = [call["background"] for call in renders]
    assert len(set(backgrounds)) == 3
    assert all(0 <= channel <= 1 for color in backgrounds for channel in color)


def test_callback_is_called_after_each_step_and_can_stop(noisy):
    start, views = noisy
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


def test_non_finite_gaussians_end_training(noisy):
    start, views = noisy
    broken = dataclasses.replace(start, sh0=start.sh0.index_fill(0, torch.tensor([1, 2]), math.nan))
    message = rf"at step 0 the loss is .* and 2 of {len(start)} Gaussians are not finite"
    with pytest.raises(DivergedError, match=message):
        fit(broken, views, Config(steps=3))


def test_empty_scene_is_an_error(noisy):
    start, views = noisy
    with pytest.raises(ArgumentError, match="0 views"):
        fit(start, [])
    with pytest.raises(ArgumentError, match="0 Gaussians"):
        fit(start.map(lambda tensor: tensor[:0]), views)


def test_too_large_gaussians_exceed_the_memory_budget(noisy, monkeypatch):
    start, views = noisy
    large = dataclasses.replace(start, log_scales=start.log_scales + 4)
    monkeypatch.setattr("tsplat.runtime.memory.free_memory", lambda device: 2**16)
    monkeypatch.setattr("tsplat.runtime.memory.UNCHECKED_BYTES", 0)
    image = torch.zeros(600, 800, 3, dtype=torch.uint8)
    camera = Camera(views[0].camera.viewmat, intrinsics(800, 600, 45), 800, 600)
    view = dataclasses.replace(views[0], image=image, camera=camera)
    with pytest.raises(MemoryBudgetError, match="scale"):
        Trainer(large, [view], Config(steps=2)).advance()


def test_scene_extent_is_that_of_the_cameras():
    image, K = torch.zeros(2, 2, 3, dtype=torch.uint8), torch.eye(3)
    views = [View(image, Camera(look_at((x, 0, 0), (0, 0, 9)), K, 2, 2)) for x in (-2.0, 2.0)]
    assert scene_extent(views) == pytest.approx(2.2)
    assert scene_extent(views[:1]) > 0


def test_antialiased_mark_is_kept_and_used(noisy):
    start, views = noisy
    marked = dataclasses.replace(start, antialiased=True)
    results = [fit(gaussians, views, Config(steps=2)) for gaussians in (start, marked)]
    assert [result.antialiased for result in results] == [False, True]
    assert not torch.equal(results[0].means, results[1].means)


def test_antialiased_option_marks_the_result(scene):
    gaussians, views = scene
    assert fit(gaussians, views, Config(steps=1, antialiased=True)).antialiased
    assert not fit(gaussians, views, Config(steps=1)).antialiased


@pytest.mark.slow
def test_pose_refinement_corrects_a_camera(scene):
    gaussians, views = scene
    error = torch.tensor([0.02, -0.015, 0.01, 0.02, 0.03, -0.02])
    wrong = [changed(views[0], viewmat=apply_motion(views[0].camera.viewmat, error)), *views[1:]]
    trainer = Trainer(gaussians, wrong, Config(steps=240, pose_refinement=True, pose_rate=3e-3, **FROZEN))
    for _ in range(240):
        trainer.advance()
    motion = trainer.state()[0]["params/motions"][0]
    learned = apply_motion(wrong[0].camera.viewmat, torch.cat([motion[:3], scene_extent(wrong) * motion[3:]]))
    before, after = (float((v - views[0].camera.viewmat).abs().max()) for v in (wrong[0].camera.viewmat, learned))
    assert after < 0.4 * before
    images = (render(gaussians, camera) for camera in (wrong[0].camera, changed(views[0], viewmat=learned).camera))
    before, after = (float((image - views[0].pixels).abs().mean()) for image in images)
    assert after < 0.2 * before
    assert all(torch.equal(a, b) for a, b in zip(trainer.gaussians.tensors().values(), gaussians.tensors().values()))


@pytest.mark.slow
def test_exposures_of_views_are_learned_around_the_identity(scene):
    gaussians, views = scene
    dark, bright = (
        dataclasses.replace(view, image=(gain * view.image.float()).clamp(0, 255).round().to(torch.uint8))
        for gain, view in ((0.7, views[0]), (1.3, views[1]))
    )
    changed = [dark, bright, *views[2:]]
    trainer = Trainer(gaussians, changed, Config(steps=300, exposure=True, exposure_rate=0.02, **FROZEN))
    for _ in range(300):
        trainer.advance()
    exposures = trainer.state()[0]["params/exposures"]
    image = render(gaussians, dark.camera)
    error = (apply_exposure(image, exposures[0]) - dark.pixels).abs().mean()
    assert float(error) < 0.1 * float((image - dark.pixels).abs().mean())
    assert float((exposures[2] - torch.eye(3, 4)).abs().max()) < 0.1
    torch.testing.assert_close(exposures.mean(0), torch.eye(3, 4), rtol=0, atol=1e-6)


def test_gains_of_views_are_estimated_after_the_first_steps(scene):
    gaussians, views = scene
    dark = dataclasses.replace(views[0], image=(0.6 * views[0].image.float()).round().to(torch.uint8))
    trainer = Trainer(gaussians, [dark, *views[1:]], Config(steps=100, gains=True, **FROZEN))
    for _ in range(10):
        trainer.advance()
    assert not trainer.state()[0]["gains/logs"].any()
    for _ in range(90):
        trainer.advance()
    ratios = trainer.state()[0]["gains/logs"].exp()
    torch.testing.assert_close(ratios[0] / ratios[1], torch.full((3,), 0.6), rtol=0.05, atol=0)
    # A step that renders each view six times.
    trainer = Trainer(gaussians, [dark, views[1]], Config(steps=10, views_per_step=12, gains=True, **FROZEN))
    for _ in range(10):
        trainer.advance()
    ratios = trainer.state()[0]["gains/logs"].exp()
    torch.testing.assert_close(ratios[0] / ratios[1], torch.full((3,), 0.6), rtol=0.05, atol=0)


def test_masked_pixels_do_not_count(scene):
    gaussians, views = scene
    mask = torch.ones(30, 40, dtype=torch.bool)
    mask[:, 20:] = False
    image = views[0].image.clone()
    image[:, 20:] = 255
    masked = dataclasses.replace(views[0], image=image, mask=mask)
    assert float(Trainer(gaussians, [masked], Config(steps=10)).advance().loss) < 1e-3
    unmasked = dataclasses.replace(masked, mask=None)
    assert float(Trainer(gaussians, [unmasked], Config(steps=10)).advance().loss) > 0.1


def test_regularization_adds_gradients_of_mean_opacity_and_mean_scale(noisy, adam_steps):
    start, views = noisy
    found = []
    for weights in ({}, dict(opacity_weight=30.0, scale_weight=0.7), dict(scale_weight=0.7)):
        adam_steps.clear()
        Trainer(start, views, Config(steps=1, background=SKY, **weights)).advance()
        found.append([next(g for p, g, _ in reversed(adam_steps) if p.shape == shape) for shape in ((60,), (60, 3))])
    o, s = start.opacities, start.scales
    # Of a scene that is not as large as typical ones.
    expected = [30 / 60 * o * (1 - o), 0.7 * TYPICAL_EXTENT / scene_extent(views) / 180 * s]
    for k in range(2):
        torch.testing.assert_close(found[1][k] - found[0][k], expected[k], rtol=1e-4, atol=1e-6)
    assert torch.equal(found[2][0], found[0][0])
    assert torch.equal(found[2][1], found[1][1])


@pytest.mark.parametrize("primitive", ["3dgs", "2dgs"])
def test_axes_that_few_views_see_are_limited_by_the_second_longest(noisy, primitive):
    initial, views = noisy
    initial = dataclasses.replace(initial, log_scales=initial.log_scales + torch.tensor([[0.0, 3.0, -1.0]]))
    initial = initial if primitive == "3dgs" else initial.as_surfels()
    found = []
    for limit, repetitions in ((0.0, 1), (4.0, 1), (4.0, 100)):
        config = Config(steps=3, scales_rate=0.02, max_elongation=limit)
        trainer = Trainer(initial, [*views] * repetitions, config)
        trainer.advance()
        axes = trainer.gaussians.scales[:, : initial.n_scales].sort(1).values
        found.append(axes[:, -1] / axes[:, -2])
    assert (found[0] > 10).all()
    assert found[1].tolist() == pytest.approx([4.0] * len(initial), rel=1e-5)
    assert (found[2] > 10).all()


def test_views_per_step_averages_gradients(scene, adam_steps):
    gaussians, views = scene
    start = gray(gaussians)

    def first_step_of_sh0(views, **options):
        adam_steps.clear()
        Trainer(start, views, Config(steps=4, **options)).advance()
        return next((gradient, group) for p, gradient, group in adam_steps if p.shape == (60, 1, 3))

    both, group = first_step_of_sh0(views[:2], views_per_step=2)
    single = [first_step_of_sh0([view])[0] for view in views[:2]]
    assert torch.allclose(both, (single[0] + single[1]) / 2, rtol=1e-4, atol=1e-8)
    assert group["lr"] == pytest.approx(math.sqrt(2) * Config.sh0_rate)
    assert group["betas"] == pytest.approx((0.9**2, 0.999**2))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_matches_fp32(scene, precision):
    gaussians, views = scene
    config = Config(steps=60, sh0_rate=2e-2, strategy=DefaultStrategy(grow_grad2d=1e-5, refine_start_iter=10))
    results = []
    for chosen in ("fp32", precision):
        trainer = Trainer(gray(gaussians), views[1:], dataclasses.replace(config, precision=chosen))
        assert not any([trainer.advance().warning for _ in range(60)])
        results.append((evaluate(trainer.gaussians, views[:1]).psnr, len(trainer.gaussians)))
    assert results[0][0] == pytest.approx(results[1][0], abs=0.1)
    assert results[0][1] == results[1][1]


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_2d_gaussians_are_trained_with_every_preset(noisy, name):
    gaussians, views = noisy
    initial = dataclasses.replace(gaussians, quats=make_gaussians().quats + 0.1).as_surfels()
    config = dataclasses.replace(for_surfels(preset(name, 40)), backend="torch", distortion_weight=0.1, background=SKY)
    trainer = Trainer(initial, views, config)
    for _ in range(40):
        trainer.advance()
    found = trainer.gaussians
    assert found.surfels and (found.log_scales[:, 2] == FLAT).all()
    before, after = (evaluate(each, views, background=SKY, backend="torch").psnr for each in (initial, found))
    # The rates of a refinement are lower.
    assert after > before + (0.1 if name == "refine" else 0.3)
    if name in ("mcmc", "standard"):
        assert trainer.n_gaussians > len(initial)


def test_surface_losses_are_added_from_their_step_on(noisy, renders):
    gaussians, views = noisy
    config = Config(steps=30, normal_weight=0.05, distortion_weight=0.1, backend="torch")
    trainer = Trainer(gaussians.as_surfels(), views, config)
    for _ in range(9):
        trainer.advance()
    assert [call["render_mode"] for call in renders] == ["RGB"] * 7 + ["RGB+ED"] * 2


def test_depth_is_rendered_of_all_views_if_one_has_normals(noisy, renders):
    """Ranks that render together must agree."""
    gaussians, views = noisy
    with_prior = dataclasses.replace(views[0], normal_prior=torch.zeros(*views[0].image.shape))
    trainer = Trainer(gaussians, [with_prior, *views[1:]], Config(normal_weight=0.1, backend="torch"))
    for _ in views:
        trainer.advance()
    assert [call["render_mode"] for call in renders] == ["RGB+ED"] * len(views)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(antialiased=True), "antialiased: 2D Gaussians"),
        (dict(strategy=DefaultStrategy()), "use key_for_gradient='gradient_2dgs'"),
        (dict(strategy=DefaultStrategy(key_for_gradient="gradient_2dgs", absgrad=True)), "and absgrad=False"),
    ],
)
def test_settings_that_do_not_fit_2d_gaussians(noisy, changes, message):
    gaussians, views = noisy
    with pytest.raises(ArgumentError, match=message):
        Trainer(gaussians.as_surfels(), views, Config(**changes))
    with pytest.raises(
        ArgumentError, match=r"distortion_weight: only for 2D Gaussians, found 1\.0; use primitive 2dgs"
    ):
        Trainer(gaussians, views, Config(distortion_weight=1.0))


def test_2d_gaussians_are_refused_with_other_cameras(noisy):
    fisheye = make_views(make_gaussians(), model="fisheye")
    with pytest.raises(UnsupportedError, match=r"2D Gaussians are rendered with pinhole .* found a .* fisheye"):
        Trainer(noisy[0].as_surfels(), fisheye, Config()).advance()
    distorted = dataclasses.replace(noisy[1][0].camera, distortion=torch.tensor([-0.1, 0, 0, 0]))
    with pytest.raises(UnsupportedError, match="pinhole camera with distortion; undistort photographs"):
        render(noisy[0].as_surfels(), distorted)


def test_restore_rejects_other_views_and_configurations(scene):
    gaussians, views = scene
    trainer = Trainer(gaussians, views, Config(steps=4, exposure=True))
    tensors, figures = trainer.state()
    with pytest.raises(ArgumentError, match="made with 6 training views, found 5"):
        Trainer(gaussians, views[1:], trainer.config).restore(tensors, figures)
    other = dataclasses.replace(trainer.config, exposure=False)
    with pytest.raises(ArgumentError, match=r"'exposures'.*resume with the configuration"):
        Trainer(gaussians, views, other).restore(tensors, figures)


def take_steps(trainer, n):
    """Takes n steps; returns the state."""
    for _ in range(n):
        trainer.advance()
    return trainer.state()


def assert_same_state(found, expected):
    assert found[1] == expected[1]
    assert found[0].keys() == expected[0].keys()
    assert all(torch.equal(found[0][name], expected[0][name]) for name in expected[0])


def densifying(name, steps=40):
    """The configuration of a preset whose strategy refines every other step."""
    config = preset(name, steps)
    if config.strategy is None:
        return config
    strategy = dataclasses.replace(config.strategy, refine_every=2, refine_start_iter=0)
    if name == "compact":
        strategy = dataclasses.replace(strategy, prune_start_iter=5, prune_stop_iter=11, prunings=3)
    return dataclasses.replace(config, strategy=strategy)


def test_compact_keeps_a_quarter_of_the_gaussians_of_standard(noisy):
    start, views = noisy
    numbers = {}
    for name in ("standard", "compact"):
        trainer = Trainer(start, views, preset(name, 60))
        numbers[name] = []
        for _ in range(60):
            trainer.advance()
            numbers[name].append(trainer.n_gaussians)
    assert numbers["compact"][:18] == numbers["standard"][:18]
    assert (
        numbers["compact"][-1] == round(numbers["standard"][-1] / 4) < numbers["compact"][18] < numbers["standard"][18]
    )
    assert trainer.gaussians.valid.all()


def test_changes_of_the_list_of_views_do_not_matter(noisy):
    start, views = noisy
    given = list(views)
    trainer = Trainer(start, given, Config(steps=9))
    given.reverse()
    assert_same_state(take_steps(trainer, 9), take_steps(Trainer(start, views, Config(steps=9)), 9))


@pytest.mark.parametrize(
    "mode", slow_after(1, [torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu", torch.bfloat16)])
)
def test_modes_of_the_caller_do_not_matter(noisy, mode):
    start, views = noisy
    config = Config(steps=6, exposure=True, pose_refinement=True)
    expected = take_steps(Trainer(start, views, config), 6)
    with mode():
        views = [dataclasses.replace(view, image=view.image.clone()) for view in views]
        trainer = Trainer(dataclasses.replace(start, means=start.means.clone()), views, config)
        assert_same_state(take_steps(trainer, 3), take_steps(Trainer(start, views, config), 3))
        trainer.restore(*copy.deepcopy(trainer.state()))
    assert_same_state(take_steps(trainer, 3), expected)


def read_pixels(pixels):
    return pixels


@pytest.mark.parametrize("copied", slow_after(1, [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))]))
@pytest.mark.parametrize("name", slow_after(1, PRESETS))
def test_copies_of_a_trainer_take_the_same_steps(noisy, name, copied):
    start, views = noisy
    cache = ImageCache()
    views = [
        StoredView(
            CachedPixels(cache, i, (WIDTH, HEIGHT), functools.partial(read_pixels, (view.image, None))), view.camera
        )
        for i, view in enumerate(views)
    ]
    trainer = Trainer(start, views, dataclasses.replace(densifying(name), gains=True), extent=2.5)
    take_steps(trainer, 7)
    other = copied(trainer)
    assert (other.step, other.n_gaussians, other.extent) == (7, trainer.n_gaussians, 2.5)
    assert_same_state(take_steps(other, 7), take_steps(trainer, 7))


def test_trainers_of_several_ranks_are_not_copied(noisy):
    trainer = Trainer(*noisy, Config(steps=2))
    trainer.ranks.world_size = 2
    with pytest.raises(UnsupportedError, match=r"one of 2 ranks is not implemented; use state\(\) and restore\(\)"):
        copy.deepcopy(trainer)


def advance_interrupted(trainer, at):
    """Takes a step in which Ctrl-C is pressed at some function call; returns whether it raised KeyboardInterrupt."""
    n_calls = 0

    def count(_frame, event, _argument):
        nonlocal n_calls
        if event == "call":
            n_calls += 1
            if n_calls == at:
                signal.raise_signal(signal.SIGINT)

    previous = sys.getprofile()
    try:
        sys.setprofile(count)
        trainer.advance()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(previous)
    return False


@pytest.mark.parametrize("name", slow_after(1, PRESETS))
def test_interrupted_trainers_continue_with_the_same_bits(noisy, name):
    start, views = noisy
    config = densifying(name)
    trainer, expected = Trainer(start, views, config), Trainer(start, views, config)
    random.seed(name)
    interrupted = 0
    while trainer.step < 12:
        interrupted += advance_interrupted(trainer, int(2 ** random.uniform(0, 11)))
        while expected.step < trainer.step:
            expected.advance()
        assert_same_state(trainer.state(), expected.state())
    assert interrupted > 4


def test_moments_in_bf16_are_kept_by_refinements_and_states(noisy):
    start, views = noisy
    config = dataclasses.replace(densifying("standard", 12), adam_moments="bf16", pose_refinement=True)
    trainer = Trainer(start, views, config)
    tensors, figures = copy.deepcopy(take_steps(trainer, 7))
    n = len(tensors["params/means"])
    assert n > len(start)
    for name in ("means", "scales", "quats", "opacities", "sh0", "shN", "motions"):
        for moment in ("exp_avg", "exp_avg_sq"):
            values = tensors[f"adam/{name}/{moment}"]
            assert values.dtype == (torch.float32 if name == "motions" else torch.bfloat16)
            assert values.shape == tensors[f"params/{name}"].shape
    other = Trainer(start, views, config)
    other.restore(tensors, figures)
    assert_same_state(take_steps(other, 5), take_steps(trainer, 5))


def test_states_with_moments_of_another_precision_are_converted(noisy):
    start, views = noisy
    configs = {name: Config(steps=6, adam_moments=name) for name in ("fp32", "bf16")}
    states = {name: copy.deepcopy(take_steps(Trainer(start, views, config), 2)) for name, config in configs.items()}
    for name, other in (("fp32", "bf16"), ("bf16", "fp32")):
        trainer = Trainer(start, views, configs[name])
        trainer.restore(*states[other])
        moment, expected = (tensors["adam/shN/exp_avg_sq"] for tensors in (trainer.state()[0], states[other][0]))
        assert moment.dtype == {"fp32": torch.float32, "bf16": torch.bfloat16}[name]
        assert torch.equal(moment, expected.to(moment.dtype))
        take_steps(trainer, 1)


@pytest.mark.parametrize("options", slow_after(1, [dict(gains=True), dict(precision="fp16")]))
def test_trainers_resume_after_an_error_in_mid_step(noisy, monkeypatch, options):
    start, views = noisy
    config = Config(steps=6, backend="torch", **options)
    trainer = Trainer(start, views, config)
    take_steps(trainer, 2)
    state = copy.deepcopy(trainer.state())
    with monkeypatch.context() as patch:
        patch.setattr(gradient_step.GradientStep, "groups", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            trainer.advance()
    trainer.restore(*copy.deepcopy(state))
    assert_same_state(take_steps(trainer, 2), take_steps(Trainer(start, views, config), 4))
