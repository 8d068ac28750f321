"""Updates of parameters by passes: the same bits as by calls of the optimizers and of the strategy."""

import dataclasses

import pytest
import torch

from benchmarks.gpu_timing import host
from tests.support.slow import slow_after
from tests.support.training_scenes import make_gaussians, make_views
from tsplat.strategies import LongAxisStrategy, MCMCStrategy
from tsplat.training import Config, RunConfig, Trainer
from tsplat.training.presets import for_surfels
from tsplat.training.update_pass import UpdatePass
from tsplat.training.view_gradients import ViewGradients

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("frozen_objects")]

REFINED = dict(cap_max=70, refine_start_iter=4, refine_every=6, refine_stop_iter=20)
CONFIG = Config(
    steps=24, strategy=LongAxisStrategy(**REFINED), backend="triton", gains=True, opacity_weight=0.01, scale_weight=0.01
)  # fmt: skip


@pytest.fixture
def replays(monkeypatch):
    """Returns whether each update by a pass was replayed, and not traced."""
    found, step = [], UpdatePass.step
    monkeypatch.setattr(
        UpdatePass, "step", lambda self, scaler: found.append(self._run is not None) or step(self, scaler)
    )
    return found


def make_trainer(config, n=60):
    """A trainer whose Gaussians are half so faint that noise moves them."""
    gaussians = make_gaussians(n, sh_degree=1)
    views = make_views(gaussians)
    logits = torch.where(torch.arange(n) % 2 == 0, -5.0, 1.0)
    start = dataclasses.replace(gaussians, opacity_logits=logits, means=gaussians.means + 0.05)
    return Trainer(start.as_surfels() if isinstance(config, RunConfig) else start, views, config)


def states(config):
    """The state after each step."""
    trainer, found = make_trainer(config), []
    while trainer.step < config.steps:
        trainer.advance()
        tensors, figures = trainer.state()
        found.append(({name: tensor.clone() for name, tensor in tensors.items()}, figures))
    return found


def assert_same(found, expected):
    for (tensors, figures), (tensors_expected, figures_expected) in zip(found, expected, strict=True):
        assert figures == figures_expected and tensors.keys() == tensors_expected.keys()
        assert all(torch.equal(tensors[name], tensors_expected[name]) for name in tensors)


CONFIGS = {
    "long axis": CONFIG,
    "visible and clipped": dataclasses.replace(
        CONFIG, strategy=MCMCStrategy(**REFINED), visible_adam="on", clip_gradients=1e-3
    ),
    "noise ends": dataclasses.replace(CONFIG, strategy=MCMCStrategy(**REFINED, noise_injection_stop_iter=10)),
    "moments in bf16": dataclasses.replace(CONFIG, adam_moments="bf16"),
    "frozen colors": dataclasses.replace(CONFIG, strategy=None, max_elongation=2.0, freeze=("colors",)),
    "2D Gaussians": dataclasses.replace(for_surfels(RunConfig(**vars(CONFIG))), normal_weight=0.0),
}


@pytest.mark.parametrize("name", slow_after(1, CONFIGS))
def test_updates_by_passes_give_the_same_bits(replays, monkeypatch, name):
    config = CONFIGS[name]
    found = states(config)
    assert sum(replays) >= 4
    monkeypatch.setattr(ViewGradients, "update_pass", lambda self, adds_noise: None)
    n = len(replays)
    assert_same(found, states(config))
    assert len(replays) == n


def test_noise_moves_gaussians_in_these_tests():
    found = []
    for noise in (5e5, 0.0):
        strategy = LongAxisStrategy(**REFINED, noise_lr=noise)
        found.append(states(dataclasses.replace(CONFIG, steps=3, strategy=strategy))[-1][0]["params/means"])
    assert not torch.equal(*found)


def test_an_update_is_traced_again_when_moments_are_others(replays):
    """As after a restored checkpoint."""
    config = dataclasses.replace(CONFIG, strategy=None, gains=False)
    trainer, other = make_trainer(config), make_trainer(config)
    for _ in range(8):
        trainer.advance()
        other.advance()
    replays.clear()
    for optimizer in trainer._parameters.optimizers.values():
        (state,) = optimizer.state.values()
        state["exp_avg"] = state["exp_avg"].clone()
    for _ in range(3):
        trainer.advance()
        other.advance()
    assert replays == [False, True, True, True, True, True]
    assert_same([trainer.state()], [other.state()])


def test_strategies_with_steps_of_their_own_are_called():
    class Own(MCMCStrategy):
        calls = 0

        def step_post_backward(self, *args, **options):
            Own.calls += 1
            super().step_post_backward(*args, **options)

    trainer = make_trainer(dataclasses.replace(CONFIG, strategy=Own()))
    for _ in range(6):
        trainer.advance()
    assert Own.calls == 6


@pytest.mark.long
def test_updates_on_an_emulated_gpu(replays, monkeypatch):
    """The emulator follows the addresses in Adam's table."""
    config = dataclasses.replace(CONFIG, steps=8, strategy=MCMCStrategy(), gains=False, sh_interval=8, capacity="on")
    with host.emulated_gpu():
        found = states(config)
        assert sum(replays) >= 2
        monkeypatch.setattr(ViewGradients, "update_pass", lambda self, adds_noise: None)
        assert_same(found, states(config))
