"""Slots of the entries of lists, compiled for the CPU, against brute force."""

import itertools

import pytest
import torch

import tsplat
from tests.kernels.compositing.test_part_lists import HEIGHT, WIDTH, _intersections, _list_parts, _splats
from tests.support import scenes
from tests.support.closeness import assert_same_bits, run
from tsplat.data import TileGrid
from tsplat.passes import replay_cache
from tsplat.stages.compositing import _gaussian_major

pytestmark = pytest.mark.triton


@pytest.mark.parametrize(("tile_size", "width", "height"), [(8, 8, 8), (8, 4, 4), (16, 8, 4), (16, 16, 16)])
@pytest.mark.parametrize("key_bias", [None, -3, 40])
def test_slots_are_those_of_entries_that_pixels_added(tile_size, width, height, key_bias):
    from tsplat.kernels.compositing.slots import _entries

    splats = _splats(60, 2)
    grid = TileGrid.cover(2, WIDTH, HEIGHT, tile_size)
    first_tile = grid.tiles_per_image - 2
    intersections = _intersections(splats, first_tile, [60, 0, 33, 47], 4, key_bias)
    lists = _list_parts(splats, intersections, grid, width, height)
    starts = lists.offsets
    lengths = starts.diff()
    # Some lists end at once, some in the middle, some are composited to their end.
    third = torch.arange(len(lengths)) % 3
    ends = (starts[:-1] + torch.where(third == 0, 0, torch.where(third == 1, lengths // 2, lengths))).to(torch.int32)
    n_slots = int((ends - starts[:-1]).sum())
    assert 0 < n_slots < lists.n_entries

    order = _gaussian_major(intersections.flatten_ids, splats.opacities.numel())
    entries, slot_starts = _entries(lists, intersections, order, ends)
    assert torch.equal(entries.int(), lists.ids)
    rows_of_slots = {}
    for start, end in zip(starts[:-1].tolist(), ends.tolist(), strict=True):
        for entry in entries[start:end].tolist():
            assert rows_of_slots.setdefault(entry >> 32, entry & 0xFFFFFFFF) == entry & 0xFFFFFFFF
    assert sorted(rows_of_slots) == list(range(n_slots))
    assert slot_starts[-1] == n_slots
    for row, (begin, end) in enumerate(itertools.pairwise(slot_starts.tolist())):
        assert {rows_of_slots[slot] for slot in range(begin, end)} <= {row}


def test_more_spans_than_intersections():
    """Faint needles between two columns of pixel centers meet rows of tiles, and no tile."""
    n = 300
    scene = scenes.make(scenes.Structure(n=n, cameras=1, width=20, height=17, seed=2), torch.float32)
    scene |= {"viewmats": torch.eye(4)[None], "Ks": torch.tensor([[[20.0, 0, 10], [0, 20, 8.5], [0, 0, 1]]])}
    scene["means"] = torch.tensor([0.0, 0.0, 5.0]).repeat(n, 1)
    scene["scales"] = torch.full((n, 3), 1e-3)
    scene["opacities"] = torch.full((n,), 1.1 / 255).index_fill(0, torch.tensor([n - 1]), 0.5)
    found, meta = run(scene, backend="triton", tile_size=4)
    assert meta["memory"]["n_intersections"] < 10 and int((meta["radii"] > 0).all(-1).sum()) == n
    expected, _ = run(scene, backend="torch", tile_size=4)
    for name, t in expected.items():
        torch.testing.assert_close(found[name], t, rtol=1e-4, atol=1e-5)


def test_backward_pass_reads_the_records_of_the_forward_pass(monkeypatch):
    from tsplat.kernels import compositing

    packed, original = [], compositing.pack_records
    monkeypatch.setattr(compositing, "pack_records", lambda *inputs: packed.append(inputs) or original(*inputs))
    run(scenes.make(scenes.Structure(n=6, cameras=1, width=9, height=7, seed=1)), backend="triton")
    assert len(packed) == 1


@pytest.mark.parametrize(("tile_size", "channels"), [(4, 3), (16, 3), (16, 17)])
def test_memory_of_entries_without_a_slot_is_not_read(tile_size, channels, monkeypatch):
    from tsplat.kernels import compositing
    from tsplat.kernels.compositing import slot_sums, slots

    for module in (slots, slot_sums):
        monkeypatch.setattr(module, "is_compiled_for_cpu", lambda tensor: False)
    structure = scenes.Structure(n=60, cameras=2, channels=channels, width=21, height=19, size=6.0, seed=6)
    scene = scenes.make(structure, torch.float32)
    scene["opacities"] = 0.99 + 0 * scene["opacities"]
    options = dict(tile_size=tile_size, absgrad=True, backend="triton")
    original, counts = compositing.sum_slots, []

    def recorded(slots, *rest, **options):
        counts.append((int(slots.slot_starts[-1]), len(slots.v_slots)))
        original(slots, *rest, **options)

    monkeypatch.setattr(compositing, "sum_slots", recorded)
    expected, _ = run(scene, **options)
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda tensor, *size, **more: tensor.new_full(*_size(size), **more))
    replay_cache.clear_caches()
    found, _ = run(scene, **options)
    assert_same_bits(expected, found)
    (used, allocated), again = counts
    assert again == (used, allocated)
    assert 0 < used < allocated


@pytest.mark.parametrize(("tile_size", "channels"), [(4, 3), (16, 70)])
def test_spans_of_large_gaussians_give_the_same_sums_in_a_kernel_of_their_own(tile_size, channels, monkeypatch):
    import triton.language as tl

    from tsplat.kernels.compositing import slot_sums

    structure = scenes.Structure(n=40, cameras=2, channels=channels, width=61, height=47, size=2.0, seed=3)
    scene = scenes.make(structure, torch.float32)
    scene["scales"][::3] *= 20
    launched, launch = [], slot_sums._span_sum_kernel.launch
    monkeypatch.setattr(
        slot_sums._span_sum_kernel, "launch", lambda *args, **rest: (launched.append(1), launch(*args, **rest))
    )
    options, found = dict(tile_size=tile_size, absgrad=True, backend="triton"), []
    for tiles, expected in ((0, 1), (10**6, 0)):  # an image with more tiles has the kernel
        monkeypatch.setattr(slot_sums, "LARGE", tl.constexpr(tiles))
        launched.clear()
        found.append(run(scene, **options)[0])
        assert len(launched) == expected
    assert_same_bits(*found)


def _size(size):
    """Arguments of ``new_full`` that fill memory of a size with values that would show."""
    return size[0] if len(size) == 1 and not isinstance(size[0], int) else size, -(2**30)


@pytest.fixture
def in_layers(monkeypatch):
    """Splits slots into layers of about 3000 bytes. Returns the numbers of layers of calls."""
    from tsplat.kernels.compositing import slot_layers

    found, find = [], slot_layers._find_layers
    monkeypatch.setattr(slot_layers, "LAYER_BYTES", 3000)
    monkeypatch.setattr(slot_layers, "LAYERS_MAX", 7)
    monkeypatch.setattr(slot_layers, "_find_layers", lambda n, *rest: (found.append(n), find(n, *rest))[1])
    yield found
    assert min(found) > 2


def _images_and_gradients(function, scene, **options):
    scene = scene | {name: scene[name].clone().requires_grad_() for name in ("means", "quats", "opacities", "colors")}
    images = [t for t in function(**scene, **options)[:-1] if torch.is_tensor(t) and t.requires_grad]
    sum(image.square().sum() for image in images).backward()
    return {i: image for i, image in enumerate(images)} | {n: t.grad for n, t in scene.items() if torch.is_tensor(t)}


LAYERED = {
    "depth": (tsplat.rasterization, dict(render_mode="RGB+D", absgrad=True)),
    "packed": (tsplat.rasterization, dict(packed=True)),
    "spans": (tsplat.rasterization, dict(tile_size=8)),
    "rays": (tsplat.rasterization, dict(with_eval3d=True)),
    "distortion": (tsplat.rasterization_2dgs, dict(render_mode="RGB+D", distloss=True)),
}


def _layered_scene(n=90):
    structure = scenes.Structure(n=n, cameras=2, channels=3, width=53, height=37, size=1.5, seed=4)
    scene = scenes.make(structure, torch.float32)
    scene["scales"][::7] *= 15
    return scene


@pytest.mark.parametrize("case", list(LAYERED))
def test_layers_give_the_same_bits(case, in_layers, monkeypatch):
    from tsplat.kernels.compositing import slot_layers

    function, options = LAYERED[case]
    scene, options = _layered_scene(), dict(packed=False, backend="triton") | options
    if function is tsplat.rasterization_2dgs:
        del scene["covars"], scene["camera_model"]
    with monkeypatch.context() as whole:
        whole.setattr(slot_layers, "LAYERS_MAX", 1)
        expected = _images_and_gradients(function, scene, **options)
        assert not in_layers
    replay_cache.clear_caches()
    for _ in range(3):  # by the stages, traced, and replayed
        assert_same_bits(expected, _images_and_gradients(function, scene, **options))
    assert len(in_layers) == 2


@pytest.mark.parametrize("case", ["depth", "rays"])
def test_walks_read_only_entries_that_their_program_has_listed(case, monkeypatch):
    """Memory beside them may hold anything, which is no index of an intersection."""
    from tsplat.kernels.compositing import slots

    function, options = LAYERED[case]
    scene, options = _layered_scene(), dict(packed=False, backend="triton") | options
    expected = _images_and_gradients(function, scene, **options)
    monkeypatch.setattr(slots.torch, "empty_like", lambda t, **options: torch.full_like(t, -(2**30), **options))
    replay_cache.clear_caches()
    assert_same_bits(expected, _images_and_gradients(function, scene, **options))


@pytest.mark.parametrize("far", [False, True])
def test_gaussians_without_a_slot_have_gradients_of_zero_in_every_layer(far, in_layers, monkeypatch):
    """Some lie behind all that is seen, some between. Memory holds other values before."""
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda t, *size, **o: t.new_full(*_size(size), **o))
    scene = _layered_scene()
    hidden = torch.arange(90) % 3 == 0
    scene["opacities"] = torch.where(hidden, 0.0, scene["opacities"])
    if far:
        scene["means"][hidden] *= 3
    found = _images_and_gradients(tsplat.rasterization, scene, packed=False, backend="triton")
    for name in ("means", "quats", "colors"):
        assert not found[name][hidden].any() and found[name].isfinite().all()
