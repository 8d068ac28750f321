"""Replayed calls give the bits of the stages, whatever their kind, their addresses and what happens around them."""

import concurrent.futures
import contextlib
import copy
import dataclasses
import gc
import pickle
import signal
import threading

import pytest
import torch

from tests.support import lenses, scenes
from tests.support.call_kinds import STAGES, CallKind, differences, random_kind
from tsplat import (
    ArgumentError,
    CapacityError,
    UnscentedTransformParameters,
    UnsupportedError,
    rasterization,
    rasterization_2dgs,
)
from tsplat.passes import call_traces, calls, replay_cache
from tsplat.runtime.backend import choose
from tsplat.stages import overflow_checks
from tsplat.triton_cpu import launcher, set_num_threads

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(choose(torch.device("cpu"))[0] != "triton", reason="needs kernels that are compiled for a CPU"),
]

SEEDS = 24
STRUCTURE = scenes.Structure(n=40, cameras=2, width=33, height=21, sh_degree=1, backgrounds=False, seed=4)


@pytest.fixture(autouse=True)
def replays(monkeypatch):
    """Returns a list with an entry for each replayed call."""
    made = []
    original = calls.ReplayedCall.__init__

    def init(self, *args):
        original(self, *args)
        made.append(self)

    monkeypatch.setattr(calls.ReplayedCall, "__init__", init)
    return made


def make(**changes):
    return scenes.leaves(scenes.make(STRUCTURE, torch.float32) | changes)


def render_thrice(scene, **options):
    for _ in range(3):
        result = rasterization(**scene, **options)
    return result


def test_tensors_are_traced_where_they_are_unless_they_share_memory(monkeypatch, replays):
    copied, copy_with_layout = [], call_traces.copy_with_layout

    def noted(tensor, enabled):
        copied.append(tensor.shape)
        return copy_with_layout(tensor, enabled)

    monkeypatch.setattr(call_traces, "copy_with_layout", noted)
    scene = make()
    values = {name: tensor.detach().clone() for name, tensor in scene.items() if isinstance(tensor, torch.Tensor)}
    render_thrice(scene)
    assert replays and not copied
    assert all(torch.equal(scene[name], value) and scene[name].grad is None for name, value in values.items())
    both = torch.cat([scene["means"].detach(), scene["quats"].detach()], 1).contiguous()
    first = both.clone()
    shared = scene | {"means": both[:, :3], "quats": both[:, 3:]}
    n_replays = len(replays)
    image, _, _ = render_thrice(shared)
    assert len(replays) > n_replays and copied == [both[:, :3].shape, both[:, 3:].shape]
    assert torch.equal(both, first) and torch.equal(image, rasterization(**scene)[0])


@pytest.mark.parametrize("seed", [*range(SEEDS), pytest.param(1823, id="colors and normals composited apart")])
def test_replayed_calls_have_the_bits_of_the_stages(seed, replays):
    kind = random_kind(seed)
    stages = STAGES[kind.function]
    try:
        expected = [call.outcome(stages) for call in (kind, kind.moved(1.01))]
    except (ArgumentError, UnsupportedError) as error:
        with pytest.raises(type(error)):
            kind.outcome()
        return
    for call, outcome in zip((kind, kind, kind, kind.moved(1.01)), expected[:1] * 3 + expected[1:], strict=True):
        assert not differences(call.outcome(), outcome)
    assert len(replays) >= 2


@pytest.mark.parametrize(
    ("lens", "readout", "options"),
    [
        ("equirectangular", "GLOBAL", dict(Ks=None)),
        ("equirectangular", "ROLLING_LEFT_TO_RIGHT", dict(with_eval3d=True, packed=False)),
        ("pinhole", "ROLLING_TOP_TO_BOTTOM", dict(with_eval3d=True)),
        ("distorted pinhole", "ROLLING_RIGHT_TO_LEFT", dict(packed=False)),
        ("distorted fisheye", "GLOBAL", dict(ut_params=UnscentedTransformParameters(alpha=0.2))),
        ("ftheta", "GLOBAL", dict(packed=False)),
    ],
)
def test_replayed_calls_of_lenses_have_the_bits_of_the_stages(lens, readout, options, replays):
    scene = lenses.make(lens, readout, dtype=torch.float32) | options
    tensors = {name: value.requires_grad_(name != "Ks") for name, value in scene.items() if torch.is_tensor(value)}
    others = {name: value for name, value in scene.items() if name not in tensors}
    kind = CallKind(rasterization, tensors, others, 0, (True, True, True), centers=False, twice=False, enabled=True)
    for call in (kind, kind, kind, kind.moved(1.01)):
        assert not differences(call.outcome(), call.outcome(STAGES[rasterization]))
    assert len(replays) >= 2


def test_cache_keys_include_fields_of_objects(replays):
    params = UnscentedTransformParameters()
    scene = make(covars=None, with_ut=True, ut_params=params)
    expected = render_thrice(scene)[0]
    params.alpha = 1.0
    changed = STAGES[rasterization](**scene)[0]
    assert not torch.equal(changed, expected)
    assert torch.equal(render_thrice(scene)[0], changed)
    params.alpha = 0.1
    replays.clear()
    assert torch.equal(rasterization(**scene)[0], expected)
    assert replays


def test_more_intersections_than_before(replays):
    scene = make()
    render_thrice(scene)
    replays.clear()
    with torch.no_grad():
        scene["scales"] *= 4
    expected = STAGES[rasterization](**scene)[0]
    for _ in range(3):
        assert torch.equal(rasterization(**scene)[0], expected)
    assert len(replays) == 3 and replays[0].state.needed[-1] and not replays[1].state.needed[-1]


def test_second_image_without_gradients_is_rendered_once(monkeypatch, replays):
    scene = make()
    expected = STAGES[rasterization](**scene)[0]
    replay_cache.clear_caches()
    measure, measured_sizes = replay_cache.ReplayCache._measure, []

    def noted(self, capacities, arguments):
        measured_sizes.append(measure(self, capacities, arguments))
        return measured_sizes[-1]

    monkeypatch.setattr(replay_cache.ReplayCache, "_measure", noted)
    with torch.no_grad():
        for _ in range(4):
            assert torch.equal(rasterization(**scene)[0], expected)
        assert len(replays) == 3 and not measured_sizes
        bounded, *measured = [replay._runner.traced for replay in replays]
        assert measured[0] is measured[1]
        assert all(few <= many for few, many in zip(measured[0].capacities, bounded.capacities, strict=True))
        assert measured[0].forward.saved_arena.size < bounded.forward.saved_arena.size
        scene["scales"] *= 4  # exceeds the capacities, so lists are measured before the next trace
        expected = STAGES[rasterization](**scene)[0]
        for _ in range(3):
            assert torch.equal(rasterization(**scene)[0], expected)
        assert measured_sizes and replays[-1]._runner is replays[-2]._runner
    measured_sizes.clear()
    render_thrice(scene)
    assert measured_sizes


def test_capacity_that_is_too_small():
    scene = make()
    for _ in range(3):
        with pytest.raises(CapacityError, match="at most 20 intersections"):
            rasterization(**scene, capacity=20)


def test_threads_at_once(replays):
    scenes_ = [make(means=make()["means"].detach() + 0.01 * i) for i in range(4)]

    def gradients(i):
        scene = dict(scenes_[i])
        image = rasterization(**scene)[0]
        return image.detach(), *torch.autograd.grad(image.square().sum(), [scene["means"], scene["colors"]])

    expected = [gradients(i) for i in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(gradients, [0, 1, 2, 3] * 12))
    for i, result in enumerate(found):
        assert all(map(torch.equal, result, expected[i % 4]))
    assert len(replays) > 40


def test_backward_in_another_thread():
    scene = make()
    image = render_thrice(scene)[0]
    (expected,) = torch.autograd.grad(image.sum(), scene["means"], retain_graph=True)
    found = []
    thread = threading.Thread(target=lambda: found.extend(torch.autograd.grad(image.sum(), scene["means"])))
    thread.start()
    thread.join()
    assert torch.equal(found[0], expected)


def test_backward_passes_of_several_calls_in_any_order():
    scenes_ = [make(means=make()["means"].detach() + 0.02 * i) for i in range(3)]
    images = [render_thrice(scene)[0] for scene in scenes_]
    for scene, image in zip(reversed(scenes_), reversed(images)):
        expected = torch.autograd.grad(STAGES[rasterization](**scene)[0].square().sum(), scene["quats"])
        assert torch.equal(torch.autograd.grad(image.square().sum(), scene["quats"])[0], expected[0])


def test_inputs_that_change_before_the_backward_pass_raise():
    scene = make()
    image = render_thrice(scene)[0]
    with torch.no_grad():
        scene["scales"].mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        image.sum().backward()


def test_inputs_may_be_freed_and_their_memory_used_again(replays):
    def image():
        scene = make()
        rendered = rasterization(**scene)[0]
        del scene
        gc.collect()
        torch.full((5000,), float("nan"))
        rendered.sum().backward()
        return rendered.detach()

    first = image()
    assert all(torch.equal(image(), first) for _ in range(4)) and len(replays) == 4


@pytest.mark.parametrize("name", ["depths", "conics", "opacities", "means2d"])
@pytest.mark.parametrize("packed", [False, True])
def test_rows_of_meta_are_differentiable(name, packed):
    scene = make()
    meta = render_thrice(scene, packed=packed)[-1]
    expected = STAGES[rasterization](**scene, packed=packed)[-1]
    wanted = [scene["means"], scene["opacities"]]
    gradients = torch.autograd.grad(meta[name].square().sum(), wanted, allow_unused=True)
    for found, right in zip(gradients, torch.autograd.grad(expected[name].square().sum(), wanted, allow_unused=True)):
        assert (found is None or not found.any()) if right is None else torch.equal(found, right)


def test_hooks_of_centers_change_gradients():
    scene = make()
    image, _, meta = render_thrice(scene, packed=False)
    meta["means2d"].register_hook(lambda v: 2 * v)
    found = torch.autograd.grad(image.sum(), scene["means"])[0]
    image, _, meta = STAGES[rasterization](**scene, packed=False)
    meta["means2d"].register_hook(lambda v: 2 * v)
    assert torch.equal(found, torch.autograd.grad(image.sum(), scene["means"])[0])


def test_meta_is_copied_and_pickled():
    meta = render_thrice(make(means=make()["means"].detach()), packed=False)[-1]
    with torch.no_grad():
        meta = render_thrice(make())[-1]
    for other in (copy.copy(meta), pickle.loads(pickle.dumps(meta)), copy.deepcopy(meta)):
        assert type(other) is dict and other.keys() == meta.keys()
        assert torch.equal(other["flatten_ids"], meta["flatten_ids"]) and other["memory"] == meta["memory"]


LAYOUTS = {
    "channels first": lambda v: v.movedim(-1, 1).contiguous().movedim(1, -1),
    "channels last": lambda v: v.contiguous(),
    "one value": lambda v: v[:1, :1, :1, :1].expand(v.shape),
    "not aligned": lambda v: torch.cat([v.new_zeros(1), v.flatten()])[1:].view(v.shape),
}


@pytest.mark.parametrize("options", [dict(), dict(render_mode="RGB+ED", packed=False)])
@pytest.mark.parametrize("first", list(LAYOUTS))
def test_gradients_of_images_of_any_strides(first, options, replays, monkeypatch):
    """Those of a kind that have the strides of its first call are not copied."""
    copied, original = [], calls._flat_with_strides

    def flat_with_strides(v, view):
        found = original(v, view)
        copied.append(found.data_ptr() != v.data_ptr())
        return found

    monkeypatch.setattr(calls, "_flat_with_strides", flat_with_strides)
    results = {}
    for function in (STAGES[rasterization], rasterization):
        for name in (first, first, first, *LAYOUTS):
            scene = make()
            image, alpha, _ = function(**scene, **options)
            v = torch.linspace(-1, 1, image.numel()).view(image.shape)
            torch.autograd.backward([image, alpha], [LAYOUTS[name](v), torch.ones_like(alpha)])
            gradients = [scene[key].grad for key in ("means", "quats", "opacities", "colors")]
            for found, expected in zip(gradients, results.setdefault(name, gradients), strict=True):
                assert torch.equal(found, expected)
    assert len(replays) == 6 and any(copied[:4]) == (first == "one value")
    assert (replays[0]._runner.traced.v_views[0] is not None) == (first == "channels first")


def test_second_derivatives_raise():
    scene = make()
    image = render_thrice(scene)[0]
    (v_means,) = torch.autograd.grad(image.square().sum(), scene["means"], create_graph=True)
    with pytest.raises(UnsupportedError, match="second derivatives"):
        v_means.sum().backward()


def test_an_error_in_the_middle_of_a_call(replays):
    scene = make()
    expected = render_thrice(scene)[0]
    replayed = replays[0]._runner.traced.forward.parts[0]

    def fail(*_):
        raise KeyboardInterrupt

    for i, launches in enumerate(replayed._launches):
        for n in range(len(launches)):
            (buffer,) = replayed._free_buffers
            buffer._launches[i][n] = fail
            with pytest.raises(KeyboardInterrupt):
                rasterization(**scene)
            assert not replayed._free_buffers  # threads may still read them
            assert torch.equal(rasterization(**scene)[0], expected)
    steps = replayed._other_steps
    for n, original in enumerate(steps):
        steps[n] = lambda *_: fail
        with pytest.raises(KeyboardInterrupt):
            rasterization(**scene)
        steps[n] = original
        assert torch.equal(rasterization(**scene)[0], expected)


def test_entries_are_evicted_when_there_are_many(monkeypatch):
    monkeypatch.setattr(replay_cache, "ENTRIES_MAX", 3)
    scene = make()
    with torch.no_grad():
        for i in range(20):
            rasterization(**scene, near_plane=0.01 + 1e-4 * (i % 9))
    (cache,) = [each for each in replay_cache._caches if each._function is STAGES[rasterization]]
    assert len(cache) == 3


def test_cache_keys_include_options_and_modes(replays):
    scene = make()
    with torch.no_grad():
        expected = render_thrice(scene)[0]
    assert len(replays) == 2
    for change in (dict(eps2d=0.2), dict(packed=False), dict(tile_size=8)):
        with torch.no_grad():
            rasterization(**scene, **change)
    rasterization(**scene)  # with gradients
    rasterization(**{**scene, "colors": scene["colors"].detach()})
    assert len(replays) == 2
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(rasterization(**scene)[0], expected)
    assert len(replays) == 3


@pytest.mark.parametrize(
    "options", [dict(validate="error"), dict(backend="torch"), dict(memory_budget=10**9), dict(sparse_grad=True)]
)
def test_calls_that_run_the_stages(options, replays):
    render_thrice(make(backgrounds=None), **options)
    assert not replays


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_surfels_and_anomaly_detection(replays):
    odd = dataclasses.replace(STRUCTURE, n=39)  # between its gradients, the carrier has unused elements
    scene = scenes.leaves(scenes.make(odd, torch.float32))
    del scene["covars"], scene["camera_model"]
    for _ in range(3):
        image = rasterization_2dgs(**scene)[0]
    n_replays = len(replays)  # one less in a new process: the first call checks such tensors, and is not cached
    with torch.autograd.detect_anomaly(check_nan=True):
        image.sum().backward()
        rasterization_2dgs(**scene)[0].sum().backward()
    assert len(replays) == n_replays > 0


def test_launches_on_several_threads(replays, monkeypatch):
    """Threads of the pool may look at a launch that others have completed."""
    monkeypatch.setattr(launcher, "HELPER_SECONDS", 1e-9)
    set_num_threads(3)  # another number than PyTorch's, whose own threads wait for each other
    scene = make()
    expected = torch.autograd.grad(STAGES[rasterization](**scene)[0].square().sum(), scene["means"])[0]
    for _ in range(60):
        assert torch.equal(torch.autograd.grad(rasterization(**scene)[0].square().sum(), scene["means"])[0], expected)
    assert len(replays) == 59


def test_an_interrupt_at_the_end_of_a_measurement_comes_after_it(monkeypatch):
    """Calls of this thread would stay deferred, and not raise CapacityError."""

    class Interrupted(contextlib.AbstractContextManager):
        def __enter__(self):
            self._inner = overflow_checks.deferred()
            return self._inner.__enter__()

        def __exit__(self, *error):
            signal.raise_signal(signal.SIGINT)
            return self._inner.__exit__(*error)

    monkeypatch.setattr(replay_cache, "deferred", Interrupted)
    with pytest.raises(KeyboardInterrupt) as kept:  # as interactive sessions keep the last error
        render_thrice(make(), near_plane=0.0123)
    assert overflow_checks._thread.deferred is None, kept
