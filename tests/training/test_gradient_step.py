"""The optimizer step: clipping, and gradients that are not finite."""

import math

import pytest
import torch

from tests.support.training_scenes import gray
from tsplat.ops.adam import step_all
from tsplat.training import Config, DivergedError, Trainer, fit, gradient_step


def test_gradients_are_clipped(scene, monkeypatch):
    gaussians, views = scene
    norms = []

    def recording(optimizers):
        norms.extend(float(optimizer.param_groups[0]["params"][0].grad.norm()) for optimizer in optimizers)
        step_all(optimizers)

    monkeypatch.setattr(gradient_step, "step_all", recording)
    fit(gray(gaussians), views, Config(steps=2))
    assert max(norms) > 1e-3
    norms.clear()
    fit(gray(gaussians), views, Config(steps=2, clip_gradients=1e-3))
    assert max(norms) <= 1e-3 * (1 + 1e-4)


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
