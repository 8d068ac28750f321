"""Gradients of views by CUDA graphs. Without a GPU, a graph that computes again stands in for one that is replayed."""

import dataclasses
import gc
import weakref

import pytest
import torch

from tests.support.graphs import FakeRecorder, Forbidden
from tests.support.training_scenes import make_gaussians, make_views
from tsplat import UnsupportedError
from tsplat.stages import capacity
from tsplat.strategies import DefaultStrategy, LongAxisStrategy
from tsplat.training import Config, Trainer, view_graphs
from tsplat.training.view_gradients import ViewGradients

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("frozen_objects")]

REFINED = dict(refine_start_iter=4, refine_every=6, refine_stop_iter=20)
CONFIG = Config(
    steps=30, strategy=LongAxisStrategy(cap_max=100, **REFINED), backend="triton", capacity="on", gains=True,
    scales_rate=0.1, sh_interval=5, scale_weight=0.01, random_background=True,
)  # fmt: skip


class CountingRecorder(FakeRecorder):
    """Counts captures. PyTorch cannot capture into a pool of memory whose last graph is gone."""

    def __init__(self):
        super().__init__()
        self._graphs, self.alive = [], []

    def record(self, function):
        gc.collect()  # what stands in for a graph is part of a cycle
        self.alive.append(sum(graph() is not None for graph in self._graphs))

        def deferred():
            with capacity.deferred():
                return function()

        results, replay = super().record(deferred)
        self._graphs.append(weakref.ref(replay))
        return results, replay


@pytest.fixture
def graphs(monkeypatch):
    """Makes trainers on a CPU use graphs; returns what captures them."""
    made: list[CountingRecorder] = []
    monkeypatch.setattr(capacity, "_automatic", {})
    monkeypatch.setattr(view_graphs, "GraphRecorder", lambda: made.append(CountingRecorder()) or made[-1])
    monkeypatch.setattr(ViewGradients, "_without_graphs", lambda self: "")
    yield made
    assert all(all(capture.alive[1:]) for capture in made), "the pool of memory is gone"


def trained(config, noise=0.05):
    gaussians = make_gaussians(sh_degree=2)
    views = make_views(gaussians)
    start = dataclasses.replace(gaussians, means=gaussians.means + noise * torch.randn(gaussians.means.shape))
    trainer = Trainer(start, views, config)
    while trainer.step < config.steps:
        progress = trainer.advance()
    return trainer.state(), progress


def assert_same(one, other):
    (tensors, figures), progress = one
    (tensors_found, figures_found), progress_found = other
    assert figures == figures_found and tensors.keys() == tensors_found.keys()
    assert all(torch.equal(tensors[name], tensors_found[name]) for name in tensors)
    assert torch.equal(progress.loss, progress_found.loss) and torch.equal(progress.psnr, progress_found.psnr)


def test_training_by_graphs_gives_the_same_bits(graphs):
    torch.manual_seed(0)
    expected = trained(dataclasses.replace(CONFIG, graph="off"))
    assert not graphs
    torch.manual_seed(0)
    assert_same(trained(CONFIG), expected)
    # Each refinement and each degree of spherical harmonics needs another graph.
    assert 4 <= len(graphs[0].replays) <= 12
    assert sum(graphs[0].replays) >= CONFIG.steps - 12


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [dict(), dict(strategy=None, sh_interval=100, gains=False)], ids=["several kinds", "one kind"]
)
def test_a_view_that_needs_more_room_is_computed_again(graphs, monkeypatch, changes):
    config = dataclasses.replace(CONFIG, **changes)
    torch.manual_seed(0)
    expected = trained(dataclasses.replace(config, graph="off"))
    monkeypatch.setattr(capacity, "GRAPH_HEADROOM", 0.9)
    torch.manual_seed(0)
    assert_same(trained(config), expected)
    assert len(graphs[0].replays) > 6


def test_an_error_in_a_capture_ends_the_use_of_graphs(graphs, monkeypatch, caplog):
    def fail(self, function):
        raise RuntimeError("not permitted when stream is capturing")

    monkeypatch.setattr(CountingRecorder, "record", fail)
    torch.manual_seed(0)
    found = trained(CONFIG)
    torch.manual_seed(0)
    assert_same(found, trained(dataclasses.replace(CONFIG, graph="off")))
    assert caplog.text.count("training without CUDA graphs: not permitted") == 1


def test_nothing_waits_in_a_graph(graphs, monkeypatch):
    record = CountingRecorder.record

    def forbidden(self, function):
        def checked():
            with Forbidden():
                return function()

        return record(self, checked)

    monkeypatch.setattr(CountingRecorder, "record", forbidden)
    as_on_a_gpu = lambda values: values.sort(stable=True)  # noqa: E731
    monkeypatch.setattr("tsplat.stages.listing.stable_sort", as_on_a_gpu)
    monkeypatch.setattr("tsplat.stages.listing.stable_argsort", lambda values: as_on_a_gpu(values)[1])
    trained(dataclasses.replace(CONFIG, steps=8))


def test_the_gpu_of_a_view_is_the_current_one_while_it_is_captured(graphs, monkeypatch):
    """Launches on another GPU are on no stream that is captured: a graph would be empty."""
    current, found = [], []

    class DeviceOf:
        def __init__(self, tensor):
            self._device = tensor.device

        def __enter__(self):
            current.append(self._device)

        def __exit__(self, *_):
            current.pop()

    make, record = view_graphs.GraphRecorder, CountingRecorder.record
    monkeypatch.setattr(torch.cuda, "device_of", DeviceOf)
    monkeypatch.setattr(view_graphs, "GraphRecorder", lambda: found.append([*current]) or make())
    monkeypatch.setattr(CountingRecorder, "record", lambda *given: found.append([*current]) or record(*given))
    trained(dataclasses.replace(CONFIG, steps=4))
    assert len(found) >= 2 and all(devices == [torch.device("cpu")] for devices in found)


def test_graphs_that_are_asked_for_without_a_gpu_raise():
    gaussians = make_gaussians()
    with pytest.raises(UnsupportedError, match="graph: not implemented on cpu; use auto or off"):
        Trainer(gaussians, make_views(gaussians), dataclasses.replace(CONFIG, graph="on"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (dict(), ""),
        (dict(views_per_step=2), "for several views"),
        (dict(capacity="off"), "with capacity off"),
        (dict(strategy=DefaultStrategy()), "with DefaultStrategy"),
        (dict(exposure=True), "with exposure"),
        (dict(depth_weight=0.1), "with losses of depths"),
    ],
)
def test_what_graphs_cannot_do_has_a_reason(changes, reason):
    gaussians = make_gaussians()
    trainer = Trainer(gaussians, make_views(gaussians), dataclasses.replace(CONFIG, **changes))
    found = trainer._view_gradients
    found._device = torch.device("cuda")
    assert found._without_graphs().startswith(reason)
