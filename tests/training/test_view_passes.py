"""Gradients of views by passes and by CUDA graphs of these. Without a GPU, what replays a pass stands for a graph."""

import dataclasses
import gc
import weakref

import pytest
import torch

from tests.support.graphs import FakeRecorder, Forbidden
from tests.support.training_scenes import make_gaussians, make_views
from tsplat import UnsupportedError
from tsplat.config import Capacities
from tsplat.passes.traced_functions import TracedFunction
from tsplat.stages import capacity
from tsplat.strategies import DefaultStrategy, LongAxisStrategy
from tsplat.training import Config, Trainer, view_passes
from tsplat.training.densification import Densification
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
        results, replay = super().record(function)
        self._graphs.append(weakref.ref(replay))
        return results, replay


@pytest.fixture
def graphs(monkeypatch):
    """Makes trainers on a CPU use graphs; returns what captures them."""
    made: list[CountingRecorder] = []
    monkeypatch.setattr(capacity, "_automatic", {})
    monkeypatch.setattr(view_passes, "GraphRecorder", lambda: made.append(CountingRecorder()) or made[-1])
    monkeypatch.setattr(ViewGradients, "_no_graphs_reason", lambda self: "")
    yield made
    assert all(all(capture.alive[1:]) for capture in made), "the pool of memory is gone"


@pytest.fixture
def replays(monkeypatch):
    """Returns the kinds of views that are replayed, one for each replay."""
    found, results = [], view_passes._Replay.results
    monkeypatch.setattr(
        view_passes._Replay, "results", lambda self, inputs: found.append(len(inputs)) or results(self, inputs)
    )
    return found


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


def by_stages(config, **options):
    """Trains without passes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ViewGradients, "_no_passes_reason", lambda self: "here")
        torch.manual_seed(0)
        return trained(dataclasses.replace(config, graph="auto"), **options)


@pytest.mark.parametrize(("size", "n_views"), [("auto", 1), ("off", 1), ("off", 3)])
def test_training_by_passes_gives_the_same_bits(replays, size, n_views):
    config = dataclasses.replace(CONFIG, capacity=size, views_per_step=n_views)
    expected = by_stages(config)
    assert not replays
    torch.manual_seed(0)
    assert_same(trained(config), expected)
    assert len(replays) >= CONFIG.steps - 14


def test_first_views_whose_lists_exceed_the_capacity_are_rendered_again(monkeypatch):
    config = dataclasses.replace(CONFIG, steps=8, sh_interval=2)
    expected = by_stages(dataclasses.replace(config, capacity="off"))
    monkeypatch.setattr(capacity, "_automatic", {})
    monkeypatch.setattr(capacity, "UNCOUNTED", 0)
    torch.manual_seed(0)
    assert_same(trained(config), expected)


def test_memory_of_passes_is_free_while_gaussians_are_added(replays, monkeypatch):
    kept, update = {True: set(), False: set()}, Densification.after_update

    def noted(self, step, *given):
        kept[self.strategy.refines(step)].add(len(trainer._view_gradients._passes._replays))
        return update(self, step, *given)

    monkeypatch.setattr(Densification, "after_update", noted)
    gaussians = make_gaussians(sh_degree=0)
    trainer = Trainer(gaussians, make_views(gaussians), dataclasses.replace(CONFIG, capacity="off"))
    for _ in range(20):
        trainer.advance()
    assert kept[True] == {0} and max(kept[False]) > 0 and replays


def test_updates_use_the_memory_of_the_rendering_before_them(replays, monkeypatch):
    n, allocated, allocate = 2000, [], TracedFunction.allocate_scratch

    def noted(self):
        allocated.append(allocate(self))
        return allocated[-1]

    monkeypatch.setattr(TracedFunction, "allocate_scratch", noted)
    gaussians = make_gaussians(n, sh_degree=0)
    config = dataclasses.replace(CONFIG, capacity="off", gains=False, strategy=LongAxisStrategy())
    trainer = Trainer(gaussians, make_views(gaussians), config)
    for _ in range(6):
        trainer.advance()
    (replay,) = trainer._view_gradients._passes._replays.values()
    assert replay.update is not None and replay.update._run is not None and len(replays) >= 3
    assert len(allocated) == 1 and len(allocated[0]) > 12 * n


def test_training_by_graphs_gives_the_same_bits(graphs):
    expected = by_stages(CONFIG)
    assert not graphs
    torch.manual_seed(0)
    assert_same(trained(CONFIG), expected)
    # Each refinement and each degree of spherical harmonics needs another graph.
    assert 3 <= len(graphs[0].replays) <= 12
    assert sum(graphs[0].replays) >= CONFIG.steps - 14


def test_parameters_that_were_replaced_are_read_where_they_are(replays):
    gaussians = make_gaussians(sh_degree=1)
    start = dataclasses.replace(gaussians, means=gaussians.means + 0.05)
    trainer = Trainer(start, make_views(gaussians), Config(steps=40, backend="triton", strategy=None))
    for _ in range(6):
        trainer.advance()
    tensors, figures = trainer.state()
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    losses = []
    for _ in range(2):
        losses.append(torch.stack([trainer.advance().loss for _ in range(6)]))
        trainer.restore(tensors, figures)
    assert torch.equal(*losses) and len(replays) >= 14


@pytest.mark.parametrize("threads", [1, 2])
def test_views_of_several_sizes_have_passes_of_their_own(replays, threads):
    gaussians = make_gaussians(sh_degree=1)
    views = make_views(gaussians)[:4]
    views[2:] = [
        view.replaced(
            image=view.image[:20, :24].contiguous(), camera=dataclasses.replace(view.camera, width=24, height=20)
        )
        for view in views[2:]
    ]
    config = Config(steps=24, backend="triton", strategy=None, gains=True)
    torch.manual_seed(0)
    start = dataclasses.replace(gaussians, means=gaussians.means + 0.05 * torch.randn(gaussians.means.shape))
    found = []
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for reason in ("", "here"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ViewGradients, "_no_passes_reason", lambda self, reason=reason: reason)
                trainer = Trainer(start, views, config)
                found.append([trainer.advance().loss for _ in range(config.steps)])
                found.append(trainer.state()[0])
    finally:
        torch.set_num_threads(before)
    assert len(replays) >= 12
    assert torch.equal(torch.stack(found[0]), torch.stack(found[2]))
    assert all(torch.equal(found[1][name], found[3][name]) for name in found[3])


@pytest.mark.slow
@pytest.mark.parametrize("by_graphs", [True, False], ids=["graphs", "passes"])
@pytest.mark.parametrize(
    "changes",
    [dict(), dict(strategy=None, sh_interval=100, gains=False), dict(views_per_step=2)],
    ids=["several kinds", "one kind", "two views"],
)
def test_a_view_that_needs_more_room_is_computed_again(request, replays, monkeypatch, changes, by_graphs):
    graphs = request.getfixturevalue("graphs") if by_graphs else None
    config = dataclasses.replace(CONFIG, **changes)
    expected = by_stages(config)
    enough = view_passes.capacities_for
    too_little = lambda needed, varies: Capacities(*[max(9 * n // 10, 1) for n in needed])  # noqa: E731
    monkeypatch.setattr(
        view_passes, "capacities_for", lambda *given, **kind: (enough if given[1:] else too_little)(*given, **kind)
    )
    torch.manual_seed(0)
    assert_same(trained(config), expected)
    assert len(replays) > 6 and (graphs is None or graphs[0].replays)


def test_an_error_in_a_trace_ends_the_use_of_passes(replays, monkeypatch, caplog):
    def fail(*_, **__):
        raise UnsupportedError("a result is a view")

    monkeypatch.setattr(view_passes, "TracedFunction", fail)
    torch.manual_seed(0)
    found = trained(CONFIG)
    assert_same(found, by_stages(CONFIG))
    assert caplog.text.count("training without passes: a result is a view") == 1 and not replays


def test_an_error_in_a_capture_ends_the_use_of_graphs(graphs, monkeypatch, caplog):
    def fail(self, function):
        raise RuntimeError("not permitted when stream is capturing")

    monkeypatch.setattr(CountingRecorder, "record", fail)
    torch.manual_seed(0)
    found = trained(CONFIG)
    assert_same(found, by_stages(CONFIG))
    assert caplog.text.count("training without passes: not permitted") == 1


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

    make, record = view_passes.GraphRecorder, CountingRecorder.record
    monkeypatch.setattr(torch.cuda, "device_of", DeviceOf)
    monkeypatch.setattr(view_passes, "GraphRecorder", lambda: found.append([*current]) or make())
    monkeypatch.setattr(CountingRecorder, "record", lambda *given: found.append([*current]) or record(*given))
    trained(dataclasses.replace(CONFIG, steps=12, gains=False))
    assert len(found) >= 2 and all(devices == [torch.device("cpu")] for devices in found)


def test_graphs_that_are_asked_for_without_a_gpu_raise():
    gaussians = make_gaussians()
    with pytest.raises(UnsupportedError, match="graph: not implemented on cpu; use auto or off"):
        Trainer(gaussians, make_views(gaussians), dataclasses.replace(CONFIG, graph="on"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (dict(), ""),
        (dict(backend="torch"), "with another backend"),
        (dict(strategy=DefaultStrategy()), "with DefaultStrategy"),
        (dict(exposure=True), "with exposure"),
        (dict(depth_weight=0.1), "with losses of depths"),
    ],
)
def test_what_passes_cannot_do_has_a_reason(changes, reason):
    gaussians = make_gaussians()
    trainer = Trainer(gaussians, make_views(gaussians), dataclasses.replace(CONFIG, **changes))
    found = trainer._view_gradients
    assert found._no_passes_reason().startswith(reason) and bool(reason) == (found._passes is None)


def test_steps_of_several_views_have_passes_on_a_cpu_only():
    gaussians = make_gaussians()
    trainer = Trainer(gaussians, make_views(gaussians), dataclasses.replace(CONFIG, views_per_step=2))
    found = trainer._view_gradients
    assert found._passes is not None
    found._device = torch.device("cuda")
    assert found._no_passes_reason() == "for several views in a step"


def test_graphs_need_a_capacity():
    gaussians = make_gaussians()
    trainer = Trainer(gaussians, make_views(gaussians), dataclasses.replace(CONFIG, capacity="off"))
    found = trainer._view_gradients
    found._device = torch.device("cuda")
    assert found._no_graphs_reason() == "with capacity off"
