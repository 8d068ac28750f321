"""Capacity: lists whose size is chosen before they are counted. The image is right, or there is a typed error."""

import dataclasses
import os
import sys
import traceback
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import tsplat
from emulator.shadow import Shadow
from tests.emulator.targets import needs_emulator
from tests.support import scenes
from tests.support.backends import BACKENDS
from tests.support.closeness import run
from tsplat.config import DEFAULT_NUMERICS, Capacities, Size
from tsplat.data import IntersectionSettings, ScreenGaussians, TileGrid
from tsplat.errors import ArgumentError, CapacityError, MemoryBudgetError, UnsupportedError
from tsplat.stages import capacity, overflow_checks

STRUCTURE = scenes.Structure(n=60, cameras=2, width=40, height=36, sh_degree=1, seed=4)
ENOUGH = 4000
OF_LISTS = ("flatten_ids", "isect_ids", "isect_offsets", "tiles_per_gauss")


@pytest.fixture(autouse=True)
def nothing_learned(monkeypatch):
    monkeypatch.setattr(capacity, "_automatic", {})
    monkeypatch.setattr(overflow_checks, "_orphans", [])
    monkeypatch.setattr(overflow_checks, "_thread", overflow_checks._Thread())


def make(structure=STRUCTURE):
    return scenes.make(structure, torch.float32)


def needed(scene, size, **options):
    """The least capacity that the lists of a call fit into, and the number of errors until it was known."""
    for errors in range(10):  # of spans, intersections, lists of parts
        try:
            run(scene, capacity=size, **options)
        except CapacityError as error:
            size = int(str(error).rpartition("capacity=")[2])
        else:
            return size, errors
    raise AssertionError(f"capacity={size} is too small, too")


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=6)
@given(structure=scenes.structures(), render_mode=st.sampled_from(["RGB", "RGB+ED", "D"]), packed=st.booleans())
def test_lists_that_fit_give_the_same_bits_and_others_an_error(backend, structure, render_mode, packed):
    scene, options = make(structure), dict(backend=backend, render_mode=render_mode, packed=packed)
    exact, meta = run(scene, **options)
    count = meta["memory"]["n_intersections"]
    least, _ = needed(scene, 1, **options)
    assert least >= count
    for size in (least, 3 * least + 100):
        found, meta_found = run(scene, capacity=size, **options)
        assert all(torch.equal(exact[name], found[name]) for name in exact if exact[name] is not None)
        assert meta["memory"]["n_intersections"] == meta_found["memory"]["n_intersections"] == count
        assert all(torch.equal(meta[name], meta_found[name]) for name in OF_LISTS)
        assert not meta_found["overflow"]
    for size in {1, least - 1} - {0, least}:
        with pytest.raises(
            CapacityError, match=rf"capacity: expected at most {size:,} intersections, found at least [\d,]+"
        ):
            run(scene, capacity=size, **options)


@pytest.mark.triton
@settings(max_examples=6)
@given(structure=scenes.structures())
def test_each_kind_of_list_has_room_of_its_own(structure):
    scene, options = make(structure), dict(backend="triton", packed=False)
    exact, _ = run(scene, **options)
    least, _ = needed(scene, 1, **options)
    with overflow_checks.deferred() as calls:
        run(scene, capacity=least, **options)
    need = overflow_checks.max_needed(calls)
    fitted = need._replace(
        spans=max(need.spans, 1), intersections=max(need.intersections, 1), entries=max(need.entries, 1)
    )
    found, meta = run(scene, capacity=fitted, **options)
    assert all(torch.equal(exact[name], found[name]) for name in exact) and not meta["overflow"]
    for name, n in need._asdict().items():
        if n > 1:
            less = fitted._replace(**{name: n - 1})
            with pytest.raises(CapacityError, match="capacity: expected at most"):
                run(scene, capacity=less, **options)
            with overflow_checks.deferred():
                assert run(scene, capacity=less, **options)[1]["overflow"]
    more = capacity.capacities_for(need, Capacities(1, 10**6, 1, 0))
    assert more == Capacities(int(1.25 * need.spans) + 1, 10**6, int(1.25 * need.entries) + 1, 0)


@pytest.mark.triton
@pytest.mark.parametrize("chunk", [1, 4])
def test_chunks_have_room_of_their_own(cut_lists, chunk):
    counts = cut_lists(chunk)
    scene, options = make(), dict(backend="triton", packed=False)
    exact, _ = run(scene, **options)
    with overflow_checks.deferred() as calls:
        run(scene, capacity=ENOUGH, **options)
    need = overflow_checks.max_needed(calls)
    found, _ = run(scene, capacity=need, **options)
    assert all(torch.equal(exact[name], found[name]) for name in exact)
    assert counts[-1] == need.chunks > 1
    for chunks in (need.chunks - 1, 0):
        with pytest.raises(CapacityError, match="capacity: expected at most"):
            run(scene, capacity=need._replace(chunks=chunks), **options)
    assert capacity.capacities_for(need).chunks == int(1.0625 * need.chunks) + 1


@pytest.mark.triton
def test_lists_of_both_passes_over_features_have_room(monkeypatch):
    """On a GPU, few features and many are composited in parts of different sizes; here 4 and 13 of 2D Gaussians."""
    from tsplat.kernels import compositing
    from tsplat.kernels.compositing import tuning

    def of_a_gpu(_tensor, _tile_size, _n_tiles, n_features):
        return tuning.PartShape(16, 8, 4) if n_features <= tuning.FEATURES_HELD else tuning.PartShape(8, 8, 8)

    monkeypatch.setattr(compositing, "part_shape", of_a_gpu)
    scene = make(scenes.Structure(n=60, cameras=1, channels=12, width=40, height=36, size=6.0, seed=4))
    arguments = {name: value for name, value in scene.items() if name not in ("covars", "camera_model")}
    arguments |= dict(packed=False, backend="triton")
    exact = tsplat.rasterization_2dgs(**arguments)
    with overflow_checks.deferred() as calls:
        tsplat.rasterization_2dgs(**arguments, capacity=ENOUGH)
    found = tsplat.rasterization_2dgs(**arguments, capacity=overflow_checks.max_needed(calls))
    assert not found[-1]["overflow"]
    assert all(torch.equal(one, other) for one, other in zip(exact[:-1], found[:-1]) if one is not None)


@pytest.mark.triton
def test_spans_behind_the_last_one_have_a_gaussian_and_no_tiles():
    from tsplat import kernels

    screen = ScreenGaussians(
        torch.tensor([[8.0, 16]]), torch.full((1, 2), 9, dtype=torch.int32), torch.tensor([[0.1, 0, 0.1]]),
        torch.tensor([0.9]), torch.zeros(1, dtype=torch.int64), None,
    )  # fmt: skip
    grid, of_triton = TileGrid.cover(1, 32, 32, 16), IntersectionSettings(DEFAULT_NUMERICS, "triton")
    rows, first_tile_rows, counts = kernels.tile_rows(screen, grid, (0, 2), of_triton)
    starts = counts.cumsum(0, dtype=torch.int32)
    assert starts.tolist() == [0, 2]
    with Shadow():  # memory that was not written is not 0
        positions, _, n_columns = kernels.tile_columns(screen, grid, rows, first_tile_rows, starts, 500, of_triton)
    assert not positions.any() and n_columns.tolist() == [0, 2, 2, *[0] * 498]


@pytest.mark.triton
def test_indices_of_sizes_are_those_of_capacities():
    capacities = Capacities(10, 11, 12, 13, 14)
    assert {name: capacities[getattr(Size, name.upper())] for name in Capacities._fields} == capacities._asdict()


def test_a_budget_counts_the_largest_kind_of_list():
    options = dict(backend="triton", memory_budget=10**7)
    run(make(), capacity=Capacities(*[ENOUGH] * 4), **options)
    with pytest.raises(MemoryBudgetError, match=r"^capacity: "):
        run(make(), capacity=Capacities(ENOUGH, ENOUGH, 10**7, 0), **options)


@pytest.mark.triton
@pytest.mark.parametrize("packed", [False, True])
def test_a_replayed_call_whose_lists_do_not_fit_is_an_error(packed):
    """The first calls fit, and are replayed; then the same Gaussians are larger."""
    scene = make() | {"backend": "triton", "packed": packed}
    with torch.no_grad():
        size = needed(scene, 1)[0]
        for _ in range(4):
            tsplat.rasterization(**scene, capacity=size)
        larger = scene | {"scales": 8 * scene["scales"]}
        for _ in range(2):
            with pytest.raises(CapacityError, match=rf"at most {size:,} intersections"):
                tsplat.rasterization(**larger, capacity=size)
        _, alphas, meta = tsplat.rasterization(**scene, capacity=size)
    assert not meta["overflow"]
    assert alphas.any()


@pytest.mark.triton
def test_errors_name_capacities_that_suffice():
    assert needed(make(), 1, backend="triton")[1] <= 3


@pytest.mark.triton
def test_an_image_that_does_not_fit_shows_the_background(monkeypatch):
    monkeypatch.setattr(overflow_checks, "_raise_if_exceeded", lambda check: None)  # a GPU learns of it later
    scene = make()
    found, meta = run(scene, backend="triton", capacity=7)
    assert meta["overflow"]
    assert meta["memory"]["n_intersections"] == 0
    background = scene["backgrounds"][..., None, None, :].expand_as(found["colors"])
    assert torch.equal(found["colors"], background)
    assert found["alphas"].count_nonzero() == 0
    gradients = {name: v for name, v in found.items() if name not in ("colors", "alphas", "v_backgrounds")}
    assert all(v.count_nonzero() == 0 for v in gradients.values() if v is not None)


class Waits(TorchDispatchMode):
    """Records operators that wait for the device, or whose shapes depend on its values."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name in ("_local_scalar_dense", "nonzero", "masked_select", "unique_dim", "_unique2", "bincount", "equal"):
            self.found.append(name)
        return function(*args, **(kwargs or {}))


class Copies(TorchDispatchMode):
    """Notes where tensors are made of Python's numbers, which a GPU copies and waits for."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
        if function.overloadpacket.__name__ == "lift_fresh":
            lines = [line for line in traceback.extract_stack() if f"{os.sep}tsplat{os.sep}" in line.filename]
            self.found.append(str(lines[-1]))
        return function(*args, **(kwargs or {}))


@pytest.mark.triton
@pytest.mark.parametrize("kind", ["covars", "rolling shutter", "f-theta", "surfels", "lens", "windshield"])
def test_nothing_is_copied_to_the_device(kind, monkeypatch):
    monkeypatch.setattr("tsplat.stages.listing.stable_sort", lambda values: values.sort(stable=True))
    monkeypatch.setattr("tsplat.stages.listing.stable_argsort", lambda values: values.argsort(stable=True))
    scene, options = scenes.make(dataclasses.replace(STRUCTURE, covars=kind == "covars"), torch.float32), {}
    if kind == "rolling shutter":
        options = dict(viewmats_rs=scene["viewmats"] + 0.01, with_ut=True, rolling_shutter="ROLLING_TOP_TO_BOTTOM")
    if kind == "f-theta":
        polynomials = (0.0, 0.01, 0.0, 0.0, 0.0, 0.0), (0.0, 100.0, 0.0, 0.0, 0.0, 0.0)
        lens = tsplat.FThetaPolynomialType.ANGLE_TO_PIXELDIST, *polynomials, 1.3, (1.0, 0.0, 0.0)
        scene["camera_model"] = "ftheta"
        options = dict(ftheta_coeffs=tsplat.FThetaCameraDistortionParameters(*lens), with_ut=True)
    if kind == "windshield":
        windshield = tsplat.BivariateWindshieldModelParameters(horizontal_poly=[0.01, 1.0, 0.0])
        options = dict(external_distortion_coeffs=windshield, with_ut=True)
    if kind == "lens":
        options = dict(radial_coeffs=torch.zeros(2, 4), with_ut=True)
        scene["camera_model"] = "fisheye"
    function = tsplat.rasterization
    if kind == "surfels":
        function, options = tsplat.rasterization_2dgs, dict(render_mode="RGB+ED", distloss=True)
        del scene["covars"], scene["camera_model"]
    for name in scenes.DIFFERENTIABLE:
        if scene.get(name) is not None:
            scene[name].requires_grad_()
    for copies in (Copies(), Copies()):  # the first call may copy constants
        with copies:
            images = function(**scene, **options, packed=False, capacity=ENOUGH, backend="triton")
            images[0].sum().backward()
    assert not copies.found


@pytest.mark.triton
@pytest.mark.parametrize(("packed", "expected"), [(False, []), (True, ["nonzero"])])
def test_nothing_waits_for_the_device(packed, expected, monkeypatch):
    monkeypatch.setattr(overflow_checks, "_raise_if_exceeded", lambda check: None)
    as_on_a_gpu = "tsplat.kernels.projection.indices_of", lambda flags: flags.nonzero().squeeze(1)
    monkeypatch.setattr(*as_on_a_gpu)
    scene, options = make(), dict(backend="triton", packed=packed, render_mode="RGB+ED")
    monkeypatch.setattr("tsplat.kernels.intersection.is_compiled_for_cpu", lambda tensor: False)
    with Waits() as exact:
        run(scene, **options)
    assert exact.found == [*expected, "_local_scalar_dense"]  # the number of intersections
    with Waits() as waits:
        run(scene, capacity=ENOUGH, **options)
    assert waits.found == expected


@pytest.mark.triton
def test_automatic_capacity_counts_once_and_then_follows_the_need():
    scene, options = make(), dict(backend="triton", capacity="auto")
    exact, meta = run(scene, **options)
    assert meta["overflow"] is None
    found, meta = run(scene, **options)
    assert not meta["overflow"]
    assert all(torch.equal(exact[name], found[name]) for name in exact)
    (before,) = capacity._automatic.values()
    scene["scales"] = scene["scales"] * 8
    errors = 0
    while errors < 4:
        try:
            _, meta = run(scene, **options)
            break
        except CapacityError:
            errors += 1
    (after,) = capacity._automatic.values()
    assert 1 <= errors <= 3  # of spans, intersections, lists of parts
    assert after > before
    assert not meta["overflow"]


@pytest.mark.triton
def test_automatic_capacity_grows_before_lists_overflow():
    scene, options = make(), dict(backend="triton", capacity="auto")
    for scale in torch.linspace(1.0, 3.0, 25).tolist():
        run(scene | {"scales": scene["scales"] * scale}, **options)


@pytest.mark.triton
def test_images_of_another_size_are_learned_on_their_own():
    options = dict(backend="triton", capacity="auto")
    run(make(), **options)
    assert run(make(dataclasses.replace(STRUCTURE, width=72)), **options)[1]["overflow"] is None
    assert len(capacity._automatic) == 2


class Event:
    """A GPU's event, which happens when the test sets it."""

    def __init__(self):
        self.happened, self.waited = False, False

    def query(self):
        return self.happened

    def synchronize(self):
        self.waited = self.happened = True


def call(needed, event):
    return overflow_checks._Check(
        torch.tensor([needed, 0, 0, 0, needed > 100]), event, Capacities(100, 100, 100, 100), None
    )


def add(*calls):
    """Makes calls of this thread that the device is not done with."""
    pending = overflow_checks._thread.pending.checks
    pending += calls
    overflow_checks._finish_checks(pending, wait=False)


def in_a_thread(function, *args):
    """Calls a function in another thread, which then ends."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()


def test_calls_are_checked_once_the_device_is_done():
    events = [Event() for _ in range(3)]
    add(call(5, events[0]), call(101, events[1]), call(102, events[2]))
    assert len(overflow_checks._thread.pending.checks) == 3
    events[0].happened = events[1].happened = True
    with pytest.raises(CapacityError, match="capacity=101"):
        add()
    assert len(overflow_checks._thread.pending.checks) == 1
    with pytest.raises(CapacityError, match="capacity=102"):
        tsplat.check_overflow()
    assert events[2].waited
    tsplat.check_overflow()


def test_calls_of_other_threads_do_not_raise_here():
    event = Event()
    add(call(101, event))
    event.happened = True
    in_a_thread(add, call(5, None))
    in_a_thread(tsplat.check_overflow)
    with pytest.raises(CapacityError, match="capacity=101"):
        add(call(5, None))
    tsplat.check_overflow()


def test_calls_of_threads_that_have_ended_are_left_to_check_overflow():
    with_capacities, without, unknown = (Event() for _ in range(3))
    in_a_thread(add, call(5, with_capacities), call(101, without), call(6, unknown))
    assert len(overflow_checks._orphans) == 3
    with_capacities.happened = without.happened = True
    in_a_thread(add, call(7, None))  # where another thread ends, what is known to have had room is dropped
    assert [c.needed[0].item() for c in overflow_checks._orphans] == [101, 6]
    add(call(5, None))
    with pytest.raises(CapacityError, match="capacity=101"):
        tsplat.check_overflow()
    tsplat.check_overflow()
    assert unknown.waited and not overflow_checks._orphans


def test_calls_that_are_deferred_may_contain_others():
    with overflow_checks.deferred() as outer:
        with overflow_checks.deferred() as inner:
            pass
        assert overflow_checks._thread.deferred is outer is not inner
    assert overflow_checks._thread.deferred is None


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_threads_get_the_errors_of_their_own_calls(backend):
    scene = make(scenes.Structure(n=20, cameras=1, width=16, height=16))
    options = dict(packed=False, backend=backend)
    expected = tsplat.rasterization(**scene, **options)[0]

    def render(size):
        wrong = 0
        for _ in range(60):
            try:
                colors = tsplat.rasterization(**scene, **options, capacity=size)[0]
                wrong += size == 2 or not torch.equal(colors, expected)
            except CapacityError:
                wrong += size != 2
        return wrong

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(render, (2, ENOUGH, ENOUGH))) == [0, 0, 0]
    finally:
        sys.setswitchinterval(interval)


class Peers:
    """The ranks of a call as one of them sees them: what the others send is known."""

    any_capacity = True

    def __init__(self, rank, others):
        self.rank, self.others, self.sent = rank, others, None

    def gather(self, numbers):
        self.sent = numbers
        return [*self.others[: self.rank], numbers, *self.others[self.rank :]]


def test_ranks_raise_together():
    grid = TileGrid.cover(1, 32, 32, 16)
    lists = types.SimpleNamespace(
        needed=torch.tensor([5, 101, 7, 0, 1]), capacities=Capacities(100, 100, 100, 100), flatten_ids=torch.zeros(3)
    )
    had_none, had_room, had_too_little = [0, 0, 0, 0], [0, 50, 60, 0], [1, 9, 4, 1]
    peers = Peers(1, [had_none, had_room])
    with pytest.raises(
        CapacityError, match=r"^capacity: rank 1: expected at most 100 .* at least 101, .* capacity=101\. All"
    ):
        overflow_checks.check_capacity(lists, 100, grid, peers)
    assert peers.sent == [1, 101, 100, 0]
    for requested in (None, 5):  # without a capacity, and with several bands
        with pytest.raises(CapacityError, match=r'rank 0: expected at most 4 .* at least 9, .* "auto" has raised'):
            overflow_checks.check_capacity(None, requested, grid, Peers(1, [had_too_little, had_room]))
    overflow_checks.check_capacity(None, None, grid, Peers(0, [had_room, had_none]))
    peers = Peers(0, [had_too_little])
    peers.any_capacity = False
    overflow_checks.check_capacity(None, None, grid, peers)  # no rank has a capacity, and none is asked
    assert peers.sent is None


def test_a_need_is_read_from_the_stream_of_its_device(monkeypatch):
    """Also if another device is the current one, or the default of new tensors."""
    made, streams = [], []

    def empty(shape, **options):
        made.append(options)
        return types.SimpleNamespace(copy_=lambda needed, **_options: torch.tensor([1, 1, 1, 0, 0]))

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: ("stream of", device))
    event = types.SimpleNamespace(record=lambda stream=None: streams.append(stream), query=lambda: False)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    needed = types.SimpleNamespace(is_cuda=True, shape=(5,), device=torch.device("cuda:1"))
    lists = types.SimpleNamespace(needed=needed, capacities=Capacities(3, 3, 3, 3), flatten_ids=torch.zeros(3))
    overflow_checks.check_capacity(lists, 3, None)
    assert streams == [("stream of", needed.device)]
    assert made[0]["device"] == "cpu" and made[0]["pin_memory"]
    assert len(overflow_checks._thread.pending.checks) == 1


def test_a_call_that_a_graph_captures_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    needed = types.SimpleNamespace(is_cuda=True)
    lists = types.SimpleNamespace(needed=needed, capacities=Capacities(3, 3, 3, 3), flatten_ids=torch.zeros(3))
    overflow_checks.check_capacity(lists, 3, None)
    assert overflow_checks._thread.pending.checks == []


@pytest.mark.triton
@pytest.mark.parametrize("value", [0, -1, 2.5, "all", True, 2**63])
def test_invalid_capacities_raise(value):
    with pytest.raises(ArgumentError, match=r"^capacity: "):
        run(make(), backend="triton", capacity=value)


@pytest.mark.triton
def test_what_has_no_capacity_raises():
    with pytest.raises(UnsupportedError, match=r"^capacity: "):
        run(make(), backend="reference", capacity=10)
    with pytest.raises(ArgumentError, match=r"^capacity: requires segmented=False"):
        run(make(), backend="triton", capacity=10, segmented=True)
    with pytest.raises(MemoryBudgetError, match=r"^capacity: "):
        run(make(), backend="triton", capacity=2**28 + 1)
    with pytest.raises(MemoryBudgetError, match=r"^capacity: .* budget 1 kB"):
        run(make(), backend="triton", capacity=ENOUGH, memory_budget=1000)


@pytest.mark.triton
@pytest.mark.slow
@needs_emulator
@pytest.mark.parametrize("target", ["cuda:80", "hip:gfx942"])
@pytest.mark.parametrize("n", [20, 90])
def test_gpu_code_gives_the_same_bits(target, n):
    """Lists of few tiles are cut into chunks, of which a capacity has more than there are."""
    from emulator.package import tsplat_emulated

    scene = make(dataclasses.replace(STRUCTURE, n=n, cameras=1, width=24, height=20, size=6.0, sh_degree=None))
    with tsplat_emulated(target):
        exact, _ = run(scene, backend="triton", render_mode="RGB+D")
        found, meta = run(scene, backend="triton", render_mode="RGB+D", capacity=ENOUGH)
        assert not meta["overflow"]
        assert all(torch.equal(exact[name], found[name]) for name in exact)
        with pytest.raises(CapacityError):
            run(scene, backend="triton", capacity=3)
