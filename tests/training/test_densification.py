"""Densification during training: determinism, limits, and what strategies receive."""

import dataclasses

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tests.support.allocations import LiveBytes
from tests.support.training_scenes import gray, make_gaussians, make_views
from tsplat import UnsupportedError
from tsplat.scene import View
from tsplat.scene.gaussians import concatenate
from tsplat.strategies import DefaultStrategy, LongAxisStrategy, MCMCStrategy, Strategy
from tsplat.strategies.operations import remove
from tsplat.training import Config, Trainer, fit
from tsplat.training import densification as densification_module

LIMITED = dict(refine_start_iter=1, refine_every=2, refine_stop_iter=12)


@pytest.mark.parametrize("name", ["default", "mcmc"])
def test_densification_is_deterministic(scene, name):
    gaussians, views = scene
    start = gray(gaussians)
    results = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(5)
        schedule = dict(refine_start_iter=2, refine_every=3, refine_stop_iter=20, generator=generator)
        strategy = (
            MCMCStrategy(cap_max=len(start) + 4, **schedule)
            if name == "mcmc"
            else DefaultStrategy(grow_grad2d=1e-9, **schedule)
        )
        results.append(fit(start, views, Config(steps=8, strategy=strategy)))
    assert len(results[0]) == len(start) + 4 if name == "mcmc" else len(results[0]) > len(start)
    for one, other in zip(*(result.tensors().values() for result in results)):
        assert torch.equal(one, other)
        assert one.isfinite().all()


def bytes_of(n, n_more, bytes_of_moments=4):
    """Memory for a step of n Gaussians of degree 0 and for n_more Gaussians."""
    step = 4 * densification_module.STEP_COPIES
    per_number = n * step + n_more * (4 + 2 * bytes_of_moments + step)
    return 14 * per_number / densification_module.FREE_SHARE


def test_memory_of_a_step_and_of_a_refinement_is_as_estimated():
    """With Gaussians that take much more memory than images, and steps that update all of them."""
    n = 4000
    gaussians = dataclasses.replace(make_gaussians(n, sh_degree=3), log_scales=torch.full((n, 3), -5.0))
    schedule = dict(refine_start_iter=2, refine_every=2, refine_stop_iter=9)
    config = Config(steps=9, strategy=LongAxisStrategy(growth=1.5, **schedule), visible_adam="off")
    trainer = Trainer(gaussians, make_views(gaussians), config)
    parameters, peaks = trainer._parameters, {True: [], False: []}
    for _ in range(6):
        kept = [tensor for name, tensor in parameters.state()[0].items() if name.startswith(("params", "adam"))]
        n_bytes, before = sum(tensor.nbytes for tensor in kept) / len(kept[0]), len(kept[0])
        live = LiveBytes(kept)
        del kept
        with live:
            trainer.advance()
        n_more = len(trainer.gaussians) - before
        n_expected = before * n_bytes / 3 * densification_module.STEP_COPIES + n_more * n_bytes
        peaks[n_more > 0].append(live.peak / n_expected)
    assert peaks[True] and min(peaks[True]) > 0.5 and max(peaks[True]) < 1
    assert min(peaks[False][1:]) > 0.5 and max(peaks[False][1:]) < 1  # the first step creates the moments


@pytest.mark.parametrize("moments", ["fp32", "bf16"])
def test_memory_for_more_gaussians_counts_moments_as_they_are_stored(scene, moments, monkeypatch):
    gaussians, views = scene
    free = bytes_of(len(gaussians), 40, {"fp32": 4, "bf16": 2}[moments])
    monkeypatch.setattr(densification_module, "free_memory", lambda device: int(free) + 1)
    config = Config(steps=4, strategy=MCMCStrategy(**LIMITED), adam_moments=moments)
    trainer = Trainer(gray(gaussians), views, config)
    for _ in range(3):
        trainer.advance()
    assert trainer._densification.strategy.cap_max == len(gaussians) + 40


@pytest.mark.parametrize(
    "strategy", [MCMCStrategy(**LIMITED), LongAxisStrategy(**LIMITED)], ids=lambda s: type(s).__name__
)
def test_refinement_keeps_no_second_copy_of_parameters(scene, strategy, monkeypatch):
    gaussians, views = scene
    trainer = Trainer(concatenate([gray(gaussians)] * 2), views, Config(steps=9, strategy=strategy))
    trainer.advance()
    trainer.advance()
    tensors, _ = trainer.state()
    storages = [
        StorageWeakRef(t.untyped_storage()) for name, t in tensors.items() if name.startswith(("params", "adam"))
    ]
    del tensors
    alive, cat = [], torch.cat

    def counted(tensors, *args, **kwargs):
        alive.append(sum(not storage.expired() for storage in storages))
        return cat(tensors, *args, **kwargs)

    monkeypatch.setattr(torch, "cat", counted)
    n = len(trainer.gaussians)
    trainer.advance()
    assert len(trainer.gaussians) > n
    assert set(range(1, len(storages) + 1)) <= set(alive)


@pytest.mark.parametrize(
    "strategy",
    [DefaultStrategy(grow_grad2d=1e-9, **LIMITED), MCMCStrategy(**LIMITED), LongAxisStrategy(growth=2.0, **LIMITED)],
    ids=lambda strategy: type(strategy).__name__,
)
def test_number_of_gaussians_is_limited_by_configuration_and_memory(scene, strategy, monkeypatch):
    gaussians, views = scene
    start = gray(gaussians)
    assert len(fit(start, views, Config(steps=12, strategy=strategy, max_gaussians=66))) == 66
    # Memory for four more Gaussians, which have 14 numbers of 4 bytes at degree 0.
    free = bytes_of(60, 4)
    monkeypatch.setattr(densification_module, "free_memory", lambda device: int(free) + 1)
    assert len(fit(start, views, Config(steps=3, strategy=strategy))) <= 64
    assert len(fit(start, views, Config(steps=4, strategy=strategy))) > 60


def strategy_state(trainer):
    return {name: tensor for name, tensor in trainer.state()[0].items() if name.startswith("strategy/")}


def test_checkpoints_hold_no_table_of_binomials_and_accept_empty_statistics(scene):
    gaussians, views = scene
    trainer = Trainer(gaussians, views, Config(steps=4, strategy=MCMCStrategy()))
    trainer.advance()
    tensors, figures = trainer.state()
    assert not strategy_state(trainer)
    assert figures["strategy"] == {}
    trainer.restore(tensors, figures)
    assert trainer._densification.strategy_state["binoms"].shape == (51, 51)
    trainer = Trainer(gaussians, views, Config(steps=4, strategy=DefaultStrategy()))
    trainer.advance()
    tensors, figures = trainer.state()
    # As after a refinement by version 0.1.
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("strategy/")}
    figures["strategy"] |= {"grad2d": None, "count": None, "radii": None}
    other = Trainer(gaussians, views, Config(steps=4, strategy=DefaultStrategy()))
    other.restore(tensors, figures)
    other.advance()
    assert float(strategy_state(other)["strategy/count"].max()) == 1


@pytest.mark.parametrize("sizes", ["equal", "mixed"])
def test_several_views_per_step_are_merged_into_one_info(scene, sizes):
    gaussians, views = scene
    if sizes == "mixed":
        camera = dataclasses.replace(views[1].camera, width=views[1].width // 2, height=views[1].height // 2)
        views = [views[0], View(views[1].image[: camera.height, : camera.width].contiguous(), camera)]
    rates = dict.fromkeys(("sh0_rate", "means_rate", "scales_rate", "opacities_rate", "quats_rate"), 0.0)
    states = []
    for views_per_step in (2, 1):
        strategy = DefaultStrategy(refine_start_iter=100)
        config = Config(steps=4, views_per_step=views_per_step, strategy=strategy, **rates)
        trainer = Trainer(gaussians, views[:2], config)
        for _ in range(2 // views_per_step):
            trainer.advance()
        states.append(strategy_state(trainer))
    torch.testing.assert_close(*(state["strategy/grad2d"] for state in states), rtol=1e-4, atol=1e-9)
    assert torch.equal(*(state["strategy/count"] for state in states))
    assert torch.equal(*(state["strategy/radii"] for state in states))


@pytest.mark.parametrize(("strategy", "keeps"), [(MCMCStrategy(), False), (DefaultStrategy(), True), (None, False)])
def test_what_several_views_rendered_is_kept_only_for_strategies_that_read_it(scene, strategy, keeps):
    """It holds the memory of their calls."""
    gaussians, views = scene
    trainer = Trainer(gaussians, views, Config(steps=4, views_per_step=2, strategy=strategy))
    kept, update = [], trainer._update
    trainer._update = lambda metas, *args, **options: (kept.extend(metas), update(metas, *args, **options))
    trainer.advance()
    assert [meta["n_cameras"] for meta in kept] == [1, 1]
    assert ["means2d" in meta for meta in kept] == [keeps, keeps]


def test_loss_scale_is_divided_out(scene):
    gaussians, views = scene
    gradients = []
    for precision in ("fp32", "fp16"):
        trainer = Trainer(gaussians, views, Config(steps=9, precision=precision, strategy=DefaultStrategy()))
        trainer._gradient_step.scaler._growth_interval = 1  # the scale grows with every step
        for _ in range(3):
            trainer.advance()
        gradients.append(strategy_state(trainer)["strategy/grad2d"])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-9)
    assert gradients[0].max() > 0


class Pruning(Strategy):
    """A strategy with the hooks of gsplat's base class only."""

    def __init__(self):
        self.received = []

    def refines(self, step):
        return step == 2

    def step_post_backward(self, params, optimizers, state, step, info):
        self.received.append((step, set(info) >= {"radii", "means2d"}))
        if self.refines(step):
            remove(params, optimizers, state, torch.arange(len(params["means"])) == 0)


class Listening(MCMCStrategy):
    """A strategy that overrides a hook of one that reads nothing."""

    def step_post_backward(self, params, optimizers, state, step, info, **others):
        self.received.append((step, set(info) >= {"radii", "means2d"}))
        super().step_post_backward(params, optimizers, state, step, info, **others)


@pytest.mark.parametrize("cls", [Pruning, Listening])
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_hooks_of_own_strategies_are_called_in_every_step_with_what_was_rendered(scene, cls, backend):
    gaussians, views = scene
    strategy = cls()
    strategy.received = []
    trainer = Trainer(gray(gaussians), views, Config(steps=4, strategy=strategy, backend=backend))
    for _ in range(4):
        trainer.advance()
    assert strategy.received == [(step, True) for step in range(4)]
    assert trainer.n_gaussians == len(trainer.gaussians) == len(gaussians) - (cls is Pruning)


def test_own_strategies_that_take_no_shard_are_refused_where_scenes_are_sharded(scene):
    trainer = Trainer(*scene, Config())
    arguments = (trainer._parameters, Config(strategy=Pruning()), 1.0, trainer.ranks)
    densification_module.Densification(*arguments, sharded=False)
    with pytest.raises(UnsupportedError, match=r"strategy: Pruning does not take a shard .* parallel='replicate'"):
        densification_module.Densification(*arguments, sharded=True)
