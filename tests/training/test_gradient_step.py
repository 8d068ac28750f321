"""The optimizer step: clipping, and gradients that are not finite."""

import math

import pytest
import torch

from tests.support.training_scenes import gray
from tsplat.ops.adam import Adam
from tsplat.training import Config, DivergedError, Trainer, fit
from tsplat.training import parameters as parameters_module


def test_gradients_are_clipped(scene, monkeypatch):
    gaussians, views = scene
    norms = []

    class Recording(Adam):
        def step(self, *arguments):
            norms.extend(float(p.grad.norm()) for group in self.param_groups for p in group["params"])
            return super().step(*arguments)

    monkeypatch.setattr(parameters_module, "Adam", Recording)
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
