"""The optimizer step: clipping, and gradients that are not finite."""

import dataclasses
import math

import pytest
import torch

from tests.support.training_scenes import gray
from tsplat.ops.adam import step_all
from tsplat.training import Config, DivergedError, Trainer, fit, gradient_step


def test_gradients_are_clipped(scene, monkeypatch):
    gaussians, views = scene
    norms = []

    def recording(optimizers, visible):
        norms.extend(float(optimizer.param_groups[0]["params"][0].grad.norm()) for optimizer in optimizers)
        step_all(optimizers, visible=visible)

    monkeypatch.setattr(gradient_step, "step_all", recording)
    fit(gray(gaussians), views, Config(steps=2))
    assert max(norms) > 1e-3
    norms.clear()
    fit(gray(gaussians), views, Config(steps=2, clip_gradients=1e-3))
    assert max(norms) <= 1e-3 * (1 + 1e-4)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("visible_adam", ["off", "on"])
def test_gaussians_out_of_sight_are_updated_only_without_visible_adam(scene, visible_adam, precision):
    """The mean opacity in the loss moves all of them. Poses are updated in any case."""
    gaussians, views = scene
    viewmat, means = views[0].camera.viewmat, gaussians.means.clone()
    means[0] = -viewmat[:3, :3].T @ viewmat[:3, 3]  # the center of the camera
    gaussians = dataclasses.replace(gray(gaussians), means=means)
    config = Config(steps=3, opacity_weight=0.1, visible_adam=visible_adam, precision=precision, pose_refinement=True)
    trainer = Trainer(gaussians, views[:1], config)
    motions = trainer._parameters.params["motions"].detach().clone()
    while trainer.step < config.steps:
        trainer.advance()
    assert not torch.equal(trainer._parameters.params["motions"], motions)
    moved = trainer.gaussians.opacity_logits != gaussians.opacity_logits
    assert bool(moved[0]) is (visible_adam == "off") and moved[1:].sum() > len(moved) / 2
    assert torch.equal(trainer.gaussians.means[0], means[0])


def test_steps_with_non_finite_gradients_are_skipped_and_ten_end_training(scene):
    gaussians, views = scene
    trainer = Trainer(gaussians, views, Config(steps=30))
    trainer._parameters.params["means"].register_hook(lambda gradient: gradient * math.nan)
    progress = trainer.advance()
    assert progress.warning == "step 0 was skipped, as the gradients of means are not finite"
    for name, tensor in progress.gaussians.tensors().items():
        assert torch.equal(tensor, gaussians.tensors()[name])
    for _ in range(8):
        trainer.advance()
    with pytest.raises(DivergedError, match="gradients of means were not finite in 10 consecutive steps"):
        trainer.advance()
