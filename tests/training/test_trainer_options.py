"""What the trainer can be asked for beside plain fitting."""

import dataclasses
import math

import pytest
import torch

from tsplat.scene import Gaussians, View, intrinsics, look_at
from tsplat.scene.images import to_bytes
from tsplat.strategies import DefaultStrategy, MCMCStrategy
from tsplat.training import Config, DivergedError, Progress, Trainer, evaluate, fit, mean_psnr, preset, render
from tsplat.training import trainer as trainer_module
from tsplat.training.adjustments import exposed, moved
from tsplat.training.config import laid_out
from tsplat.training.history import Watch
from tsplat.training.losses import depth_error
from tsplat.viewing.rendering import render_views


def truth(n=60):
    generator = torch.Generator().manual_seed(5)
    points = 0.5 * torch.randn(n, 3, generator=generator)
    gaussians = Gaussians.from_points(points, torch.rand(n, 3, generator=generator), 0)
    scales = math.log(0.15) + 0.3 * torch.randn(n, 3, generator=generator)
    return dataclasses.replace(gaussians, log_scales=scales, opacity_logits=torch.full((n,), 1.0))


@pytest.fixture(scope="module")
def scene():
    gaussians = truth()
    views = []
    for i in range(6):
        angle = 2 * math.pi * i / 6
        viewmat = look_at((3 * math.sin(angle), -1.0, -3 * math.cos(angle)), (0, 0, 0))
        K = intrinsics(40, 30, 45)
        with torch.no_grad():
            image = render(gaussians, viewmat, K, 40, 30)
        views.append(View(f"{i}", to_bytes(image), viewmat, K))
    return gaussians, views


def test_a_motion_is_a_rotation_and_a_translation_in_the_camera_s_frame():
    viewmat = look_at((1, 2, 3), (0, 0, 0))
    assert torch.equal(moved(viewmat, torch.zeros(6)), viewmat)
    motion = torch.tensor([0.0, 0.0, math.pi / 2, 1.0, 2.0, 3.0])
    found = moved(torch.eye(4), motion)
    expected = torch.tensor([[0.0, -1, 0, 1], [1, 0, 0, 2], [0, 0, 1, 3], [0, 0, 0, 1]])
    assert torch.allclose(found, expected, atol=1e-6)
    start = (0.3 * torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))).requires_grad_()
    for x in (start, torch.zeros(6, dtype=torch.float64, requires_grad=True)):
        assert torch.autograd.gradcheck(lambda m: moved(viewmat.double(), m), (x,))


def test_an_exposure_is_an_affine_map_of_colors():
    image = torch.rand(4, 5, 3)
    exposure = torch.rand(3, 4)
    expected = torch.einsum("hwi,ji->hwj", image, exposure[:, :3]) + exposure[:, 3]
    assert torch.allclose(exposed(image, exposure), expected, atol=1e-6)


def test_a_camera_that_is_off_is_put_right(scene):
    gaussians, views = scene
    off = torch.tensor([0.02, -0.015, 0.01, 0.02, 0.03, -0.02])
    wrong = [dataclasses.replace(views[0], viewmat=moved(views[0].viewmat, off)), *views[1:]]
    rates = dict.fromkeys(("means_rate", "scales_rate", "opacities_rate", "quats_rate", "sh0_rate"), 0.0)
    trainer = Trainer(gaussians, wrong, Config(steps=240, pose_refinement=True, pose_rate=3e-3, **rates))
    for _ in range(240):
        trainer.advance()
    motions = trainer.state()[0]["params/motions"]
    learned = moved(wrong[0].viewmat, torch.cat([motions[0, :3], trainer._extent * motions[0, 3:]]))
    assert float((learned - views[0].viewmat).abs().max()) < 0.4 * float(
        (wrong[0].viewmat - views[0].viewmat).abs().max()
    )
    pictures = (render(gaussians, viewmat, wrong[0].K, 40, 30) for viewmat in (wrong[0].viewmat, learned))
    before, after = (float((picture - views[0].pixels).abs().mean()) for picture in pictures)
    assert after < 0.2 * before
    assert all(torch.equal(a, b) for a, b in zip(trainer.gaussians.tensors().values(), gaussians.tensors().values()))


def test_a_view_s_exposure_is_learned(scene):
    gaussians, views = scene
    dark = dataclasses.replace(views[0], image=(0.5 * views[0].image.float()).round().to(torch.uint8))
    rates = dict.fromkeys(("means_rate", "scales_rate", "opacities_rate", "quats_rate", "sh0_rate"), 0.0)
    trainer = Trainer(gaussians, [dark, *views[1:]], Config(steps=300, exposure=True, exposure_rate=0.02, **rates))
    for _ in range(300):
        trainer.advance()
    exposures = trainer.state()[0]["params/exposures"]
    image = render(gaussians, dark.viewmat, dark.K, 40, 30)
    error = (exposed(image, exposures[0]) - dark.pixels).abs().mean()
    assert float(error) < 0.1 * float((image - dark.pixels).abs().mean())
    assert float((exposures[1] - torch.eye(3, 4)).abs().max()) < 0.1


def test_what_a_mask_leaves_out_has_no_say(scene):
    gaussians, views = scene
    mask = torch.ones(30, 40, dtype=torch.bool)
    mask[:, 20:] = False
    image = views[0].image.clone()
    image[:, 20:] = 255
    masked = dataclasses.replace(views[0], image=image, mask=mask)
    trainer = Trainer(gaussians, [masked], Config(steps=10))
    progress = trainer.advance()
    assert float(progress.loss) < 1e-3
    assert mean_psnr(evaluate(gaussians, [masked])) > 50
    without = Trainer(gaussians, [dataclasses.replace(masked, mask=None)], Config(steps=10)).advance()
    assert float(without.loss) > 0.1


def test_sparse_depths_pull_gaussians_to_where_they_are(scene):
    gaussians, views = scene
    view = views[0]
    camera = (view.viewmat[None], view.K[None], 40, 30)
    _, alphas, _ = render_views(gaussians, *camera)
    with torch.no_grad():
        depth, _, _ = render_views(gaussians, *camera, render_mode="ED")
    ys, xs = (alphas[0, ..., 0] > 0.9).nonzero().unbind(-1)
    sparse = torch.stack([xs + 0.5, ys + 0.5, depth[0, ys, xs, 0]], -1)
    assert len(sparse) > 50
    assert float(depth_error(depth[0, ..., 0], sparse)) < 1e-6  # pixel centers lie at +0.5
    shifted = dataclasses.replace(gaussians, means=gaussians.means + 0.3 * view.viewmat[2, :3])
    start = shifted.map(torch.clone)
    seen = dataclasses.replace(view, sparse=sparse)
    config = Config(steps=120, means_rate=5e-3, depth_weight=1.0)
    errors = []
    for result in (start, fit(start, [seen, *views[1:]], config)):
        found, _, _ = render_views(result, *camera, render_mode="ED")
        errors.append(float(depth_error(found[0, ..., 0], sparse)))
    assert errors[1] < 0.3 * errors[0]
    assert depth_error(torch.zeros(30, 40), sparse).isfinite()


def test_several_views_a_step_follow_their_mean(scene):
    _, views = scene
    start = truth()
    start = dataclasses.replace(start, sh0=torch.zeros_like(start.sh0))
    seen = {}

    class Recording(trainer_module.Adam):
        def step(self, *arguments):
            parameter = self.param_groups[0]["params"][0]
            seen.setdefault(tuple(parameter.shape), []).append((parameter.grad.clone(), self.param_groups[0]))
            return super().step(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module, "Adam", Recording)
        Trainer(start, views[:2], Config(steps=4, views_per_step=2)).advance()
        both, group = seen.pop((60, 1, 3))[0]
        singles = []
        for view in views[:2]:
            Trainer(start, [view], Config(steps=4)).advance()
            singles.append(seen.pop((60, 1, 3))[0][0])
    assert torch.allclose(both, (singles[0] + singles[1]) / 2, rtol=1e-4, atol=1e-8)
    assert group["lr"] == pytest.approx(math.sqrt(2) * Config.sh0_rate)
    assert group["betas"] == pytest.approx((0.9**2, 0.999**2))


def test_a_strategy_sees_several_views_as_one_call(scene):
    gaussians, views = scene
    gathered = []
    for n, chosen in ((2, views[:2]), (1, views[:2])):
        strategy = DefaultStrategy(refine_start_iter=100)
        trainer = Trainer(truth(), chosen, Config(steps=4, views_per_step=n, strategy=strategy, sh0_rate=0.0,
                          means_rate=0.0, scales_rate=0.0, opacities_rate=0.0, quats_rate=0.0))  # fmt: skip
        for _ in range(2 // n):
            trainer.advance()
        gathered.append(trainer._strategy_state)
    assert torch.allclose(gathered[0]["grad2d"], gathered[1]["grad2d"], rtol=1e-4, atol=1e-9)
    assert torch.equal(gathered[0]["count"], gathered[1]["count"])
    assert torch.equal(gathered[0]["radii"], gathered[1]["radii"])
    assert len(gaussians) == 60


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_autocast_changes_little_and_stays_finite(scene, precision):
    _, views = scene
    start = truth()
    start = dataclasses.replace(start, sh0=torch.zeros_like(start.sh0))
    config = Config(steps=60, sh0_rate=2e-2, strategy=DefaultStrategy(grow_grad2d=1e-5, refine_start_iter=10))
    scores = []
    for chosen in ("fp32", precision):
        trainer = Trainer(start, views[1:], dataclasses.replace(config, precision=chosen))
        assert not any([trainer.advance().trouble for _ in range(60)])
        result = trainer.gaussians
        scores.append((mean_psnr(evaluate(result, views[:1])), len(result)))
    assert scores[0][0] == pytest.approx(scores[1][0], abs=0.1)
    assert scores[0][1] == scores[1][1]


def test_a_strategy_does_not_see_that_the_loss_was_scaled(scene):
    _, views = scene
    gathered = []
    for precision in ("fp32", "fp16"):
        config = Config(steps=9, precision=precision, strategy=DefaultStrategy())
        trainer = Trainer(truth(), views, config)
        trainer._scaler._growth_interval = 1  # the scale grows with every step
        for _ in range(3):
            trainer.advance()
        gathered.append(trainer._strategy_state["grad2d"])
    torch.testing.assert_close(gathered[1], gathered[0], rtol=1e-3, atol=1e-9)
    assert gathered[0].max() > 0


def test_gradients_are_clipped(scene):
    _, views = scene
    norms = []

    class Recording(trainer_module.Adam):
        def step(self, *arguments):
            norms.extend(float(p.grad.norm()) for group in self.param_groups for p in group["params"])
            return super().step(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module, "Adam", Recording)
        fit(dataclasses.replace(truth(), sh0=torch.zeros(60, 1, 3)), views, Config(steps=2))
        assert max(norms) > 1e-3
        norms.clear()
        fit(dataclasses.replace(truth(), sh0=torch.zeros(60, 1, 3)), views, Config(steps=2, clip_gradients=1e-3))
    assert max(norms) <= 1e-3 * (1 + 1e-4)


def test_backgrounds_are_drawn_anew(scene, monkeypatch):
    gaussians, views = scene
    seen = []

    def recorded(*arguments, background, **options):
        seen.append(background)
        return render_views(*arguments, background=background, **options)

    monkeypatch.setattr(trainer_module, "render_views", recorded)
    fit(gaussians, views, Config(steps=3, random_background=True))
    assert len(set(seen)) == 3
    assert all(0 <= c <= 1 for color in seen for c in color)


def test_antialiased_training_marks_what_comes_of_it(scene):
    gaussians, views = scene
    assert fit(gaussians, views, Config(steps=1, antialiased=True)).antialiased
    assert not fit(gaussians, views, Config(steps=1)).antialiased


@pytest.mark.parametrize("name", ["default", "mcmc"])
def test_there_are_never_more_gaussians_than_allowed_or_than_fit(scene, name, monkeypatch):
    _, views = scene
    start = truth()
    start = dataclasses.replace(start, sh0=torch.zeros_like(start.sh0))
    schedule = dict(refine_start_iter=1, refine_every=2, refine_stop_iter=100)
    strategy = MCMCStrategy(**schedule) if name == "mcmc" else DefaultStrategy(grow_grad2d=1e-9, **schedule)
    assert len(fit(start, views, Config(steps=12, strategy=strategy, max_gaussians=66))) == 66
    free = trainer_module.COPIES * 4 * 14 * 4 / trainer_module.FREE_SHARE  # for four more, of degree 0
    monkeypatch.setattr(trainer_module, "free_memory", lambda device: int(free) + 1)
    assert len(fit(start, views, Config(steps=3, strategy=strategy))) <= 64
    assert len(fit(start, views, Config(steps=4, strategy=strategy))) > 60


def test_a_step_without_finite_gradients_is_left_out_and_ten_end_training(scene):
    gaussians, views = scene
    trainer = Trainer(gaussians, views, Config(steps=30))
    trainer._params["means"].register_hook(lambda gradient: gradient * math.nan)
    progress = trainer.advance()
    assert progress.trouble == "at step 0 the gradients of means are not finite; it was left out"
    for name, tensor in progress.gaussians.tensors().items():
        assert torch.equal(tensor, gaussians.tensors()[name])
    for _ in range(8):
        trainer.advance()
    with pytest.raises(DivergedError, match="gradients of means were not finite in 10 steps in a row"):
        trainer.advance()


def test_a_psnr_that_falls_for_long_is_said_once():
    watch = Watch(400)
    still = truth(4)
    said = []
    for step in range(1, 401):
        psnr = 25.0 if step < 200 else 12.0
        said.append(watch.look(Progress(step, 400, torch.tensor(0.1), torch.tensor(psnr), still, len(still))))
    said = [words for words in said if words]
    assert len(said) == 1
    assert "well below its best of 25.0 dB since step 2" in said[0]
    again = Watch(400)
    again.restore(watch.state())
    assert again.state() == watch.state()


def test_schedules_are_laid_out_for_other_lengths():
    strategy = preset("default", 1000).strategy
    assert isinstance(strategy, DefaultStrategy)
    numbers = (strategy.refine_start_iter, strategy.refine_stop_iter, strategy.refine_every, strategy.reset_every)
    assert numbers == (17, 500, 21, 100)
    assert (strategy.pause_refine_after_reset, strategy.refine_scale2d_stop_iter) == (0, 0)
    for steps in (30_000, 50_000):
        assert preset("mcmc", steps).strategy == MCMCStrategy()
    assert sum(laid_out(MCMCStrategy(), 1500).refines(step) for step in range(1500)) == 24
    assert laid_out(MCMCStrategy(), 1).refine_every == 1
