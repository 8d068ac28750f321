"""Lists of the parts of tiles, compiled for the CPU, against brute force."""

import itertools
import math

import pytest
import torch

import tsplat
from tsplat.config import ALPHA_MIN, PRESETS, CameraSettings, Capacities
from tsplat.data import CompositingSettings, Intersections, Splats, TileGrid
from tsplat.stages.compositing import _gaussian_major

pytestmark = pytest.mark.triton

UNCUT = 2**30
FAR = 1e-3, 4e-6
"""How far an ellipse may be outside of a part that lists it, in log2 of alpha: constant, and relative to the terms."""

WIDTH, HEIGHT = 41, 35


def _settings(tile_size):
    return CompositingSettings(CameraSettings(WIDTH, HEIGHT), tile_size, 32, False, PRESETS["gsplat-1.5"], "triton")


def _splats(n, seed, dtype=torch.float32):
    """Gaussians of all shapes: points, large ones, and lines a thousand times as long as wide, some far away."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(low, high, *shape):
        return low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)

    along = uniform(0.0, 1.0, n, 1) * torch.tensor([WIDTH, HEIGHT])
    angle = uniform(0.0, 2 * math.pi, n)
    direction = torch.stack([angle.cos(), angle.sin()], -1)
    thin = uniform(0.3, 3.0, n)
    long = thin * torch.exp(uniform(0.0, math.log(3e3), n))
    # The means of long Gaussians are up to two standard deviations away from the image.
    means = along + direction * (uniform(-2.0, 2.0, n) * long)[:, None]
    p, q = 1 / long**2, 1 / thin**2
    x, y = direction.unbind(-1)
    conics = torch.stack([p * x * x + q * y * y, (p - q) * x * y, p * y * y + q * x * x], -1)
    opacities = uniform(0.0, 1.0, n) ** 2
    return Splats(means.to(dtype), conics.to(dtype), opacities.to(dtype), torch.ones(n, 1, dtype=dtype), None)


def _intersections(splats, first_tile, lengths, seed, key_bias=None):
    """Random Gaussians in random order in each tile of a band."""
    generator = torch.Generator().manual_seed(seed)
    n = splats.opacities.numel()
    offsets = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    ids = torch.cat([torch.randperm(n, generator=generator)[:length] for length in lengths])
    keys = None
    if key_bias is not None:
        tiles = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
        keys = (tiles + first_tile - key_bias).to(torch.int16)
    return Intersections(first_tile, offsets, ids.to(torch.int32), None, keys, key_bias or 0)


def _list_parts(splats, intersections, grid, width, height, chunk=UNCUT, unread=0):
    from tsplat.kernels.compositing import part_lists
    from tsplat.kernels.compositing.records import pack_records
    from tsplat.kernels.compositing.tuning import PartShape
    from tsplat.kernels.compositing.walk_arguments import BandTask

    settings, shape = _settings(grid.tile_size), PartShape(width, height, chunk)
    records = pack_records(splats, settings)
    band = BandTask(intersections, grid, shape, settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_lists, "UNREAD_MAX", unread)
        return part_lists.list_parts(records, band, splats.n_features, has_walk_ends=True)


def _edge_minimum(a, b, c, fixed, low, high):
    """Minimum of a x^2 + 2 b x y + c y^2 over low <= y <= high at x = fixed."""
    y = torch.minimum(torch.maximum(-b * fixed / c, low), high)
    return a * fixed**2 + 2 * b * fixed * y + c * y**2


def _outside(mean, conic, left, top, width, height):
    """Minimum of the conic's form over a rectangle of pixel centers, and the size of its terms. [n], [n]"""
    a, b, c = conic.unbind(-1)
    x0, y0 = left + 0.5 - mean[:, 0], top + 0.5 - mean[:, 1]
    x1, y1 = x0 + (width - 1), y0 + (height - 1)
    columns = [_edge_minimum(a, b, c, x, y0, y1) for x in (x0, x1)]
    rows = [_edge_minimum(c, b, a, y, x0, x1) for y in (y0, y1)]
    nearest = torch.stack([*columns, *rows]).amin(0)
    nearest[(x0 <= 0) & (x1 >= 0) & (y0 <= 0) & (y1 >= 0)] = 0.0
    x, y = torch.maximum(x0.abs(), x1.abs()), torch.maximum(y0.abs(), y1.abs())
    return nearest, a * x * x + 2 * b.abs() * x * y + c * y * y


def _assert_lists(lists, splats, intersections, grid, width, height):
    """Checks every list against alpha at every pixel center and the distance from the part, both in fp64."""
    across, down = grid.tile_size // width, grid.tile_size // height
    tiles = intersections.isect_offsets.numel() - 1
    offsets = lists.offsets.tolist()
    assert len(offsets) == across * down * tiles + 1
    assert offsets[0] == 0
    assert offsets[-1] == lists.ids.numel()
    for part, tile in itertools.product(range(across * down), range(tiles)):
        index = part * tiles + tile
        begin, end = intersections.isect_offsets[tile : tile + 2].tolist()
        rows = intersections.flatten_ids[begin:end].long()
        found = lists.ids[offsets[index] : offsets[index + 1]].tolist()
        place = (intersections.first_tile + tile) % grid.tiles_per_image
        left = place % grid.tile_width * grid.tile_size + part % across * width
        top = place // grid.tile_width * grid.tile_size + part // across * height
        mean, conic, opacity = (t[rows].double() for t in (splats.means2d, splats.shapes, splats.opacities))
        x = left + 0.5 + torch.arange(width) - mean[:, :1]
        y = top + 0.5 + torch.arange(height) - mean[:, 1:]
        form = conic[:, 0, None, None] * x[:, None] ** 2 + conic[:, 2, None, None] * y[..., None] ** 2
        form = form + 2 * conic[:, 1, None, None] * x[:, None] * y[..., None]
        reached = ((opacity[:, None, None] * torch.exp(-0.5 * form)) >= ALPHA_MIN).flatten(1).any(1)
        nearest, terms = _outside(mean, conic, left, top, width, height)
        level = 2 * math.log(2) * ((opacity / ALPHA_MIN).log2() + FAR[0])
        possible = (nearest <= level + FAR[1] * terms) & (opacity >= ALPHA_MIN)
        assert (possible | ~reached).all(), "the two computations in fp64 disagree"
        required, allowed = rows[reached].tolist(), rows[possible].tolist()
        assert [row for row in allowed if row in set(found)] == found, (part, tile)
        assert set(required) <= set(found), (part, tile)


SHAPES = [
    (4, 4, 4), (4, 2, 2), (4, 4, 2), (8, 8, 4), (8, 8, 8), (8, 4, 4), (16, 16, 4), (16, 8, 4), (16, 8, 8), (16, 16, 8),
]  # fmt: skip
"""Tile size, and width and height of parts: those of CPUs and GPUs, and smaller ones."""


@pytest.mark.parametrize(("tile_size", "width", "height"), SHAPES)
def test_lists_hold_what_reaches_a_part_in_the_order_of_the_tile(tile_size, width, height):
    """Two images and a band across both, with empty tiles, and M a multiple of 32 or not."""
    splats = _splats(90, tile_size)
    grid = TileGrid.cover(2, WIDTH, HEIGHT, tile_size)
    first_tile = grid.tiles_per_image - grid.tile_width
    for lengths, key_bias in (([64], None), ([0, 32, 0, 32, 0], 5), ([0, 33, 1, 0, 90, 77, 0], -3), ([90] * 6, None)):
        intersections = _intersections(splats, first_tile, lengths[: 2 * grid.tile_width], tile_size, key_bias)
        lists = _list_parts(splats, intersections, grid, width, height)
        if width * height == tile_size**2:
            assert torch.equal(lists.ids, intersections.flatten_ids)
            assert lists.bitmasks is None
        else:
            _assert_lists(lists, splats, intersections, grid, width, height)
            assert lists.n_chunks == 0


@pytest.mark.parametrize(("tile_size", "width", "height"), [(8, 8, 8), (8, 4, 4), (16, 8, 4)])
@pytest.mark.parametrize("unread", [0, 83 * 8])
def test_lists_stand_between_margins_of_row_0(tile_size, width, height, unread, monkeypatch):
    """Walks load rows of entries that they do not composite, so these must be rows, whatever memory held before."""
    from tsplat.kernels.compositing.part_lists import PADDING
    from tsplat.kernels.compositing.slots import _entries

    def filled(tensor, *size, **options):
        return tensor.new_full(size, 2**31 - 1, **options)

    monkeypatch.setattr(torch.Tensor, "new_empty", filled)
    monkeypatch.setattr(torch, "empty", lambda *size, **options: torch.full(size, -1, **options))
    splats = _splats(50, 1)
    grid = TileGrid.cover(1, WIDTH, HEIGHT, tile_size)
    intersections = _intersections(splats, 0, [50, 0, 33], 1)
    lists = _list_parts(splats, intersections, grid, width, height, unread=unread)
    used = int(lists.offsets[-1])
    order = _gaussian_major(intersections.flatten_ids, splats.opacities.numel())
    with_slots = _entries(lists, intersections, order, lists.offsets[1:])[0]
    for listed, rows in ((lists.ids, lists.ids), (with_slots, with_slots.int())):
        n, margin = listed.numel(), PADDING.value
        assert n == lists.n_entries == (83 * tile_size**2 // (width * height) if unread else used)
        assert listed.is_contiguous()
        whole = listed.as_strided((n + 2 * margin,), (1,), listed.storage_offset() - margin)
        assert whole.untyped_storage().nbytes() == whole.nbytes
        assert not whole[:margin].any()
        assert not whole[margin + used :][:margin].any()
        assert torch.equal(rows[:used], lists.ids[:used])


@pytest.mark.parametrize(("width", "height"), [(8, 8), (4, 4)])
def test_margin_follows_the_last_entry_of_a_capacity(width, height):
    from tsplat.kernels.compositing.part_lists import PADDING

    splats, grid = _splats(50, 1), TileGrid.cover(1, WIDTH, HEIGHT, 8)
    exact = _intersections(splats, 0, [50, 0, 33], 1)
    more = torch.cat([exact.flatten_ids, torch.full((PADDING.value + 9,), 7, dtype=torch.int32)])
    padded = exact._replace(
        flatten_ids=more, capacities=Capacities(1, 1, 2 * len(more), 0), needed=torch.zeros(6, dtype=torch.int64)
    )
    expected, lists = (_list_parts(splats, each, grid, width, height) for each in (exact, padded))
    used = int(expected.offsets[-1])
    assert lists.n_entries == (len(more) if width == 8 else 2 * len(more) * 2)  # one part, or four
    assert torch.equal(lists.offsets, expected.offsets)
    assert torch.equal(lists.ids[:used], expected.ids)
    assert not lists.ids[used : used + PADDING.value].any()


@pytest.mark.parametrize("tile_size", [8, 16])
def test_lists_in_fp64(tile_size):
    splats = _splats(70, 3, torch.float64)
    grid = TileGrid.cover(1, WIDTH, HEIGHT, tile_size)
    intersections = _intersections(splats, 1, [70, 40, 0, 70], 1)
    lists = _list_parts(splats, intersections, grid, 4, 4)
    _assert_lists(lists, splats, intersections, grid, 4, 4)
    assert 0 < lists.ids.numel() < 180 * (tile_size // 4) ** 2


@pytest.mark.parametrize("seed", range(3))
def test_lists_of_thin_gaussians_far_from_the_tile(seed):
    """The terms of the form are a million times as large as their sum."""
    generator = torch.Generator().manual_seed(seed)
    n = 300
    angle = torch.rand(n, generator=generator, dtype=torch.float64) * 2 * math.pi
    x, y = angle.cos(), angle.sin()
    length = 10 ** (3 + torch.rand(n, generator=generator, dtype=torch.float64))
    thin = 0.5 + torch.rand(n, generator=generator, dtype=torch.float64)
    hit = torch.rand(n, 2, generator=generator, dtype=torch.float64) * 24 - 4
    means = hit + torch.stack([x, y], -1) * length[:, None]
    p, q = 1 / length**2, 1 / thin**2
    conics = torch.stack([p * x * x + q * y * y, (p - q) * x * y, p * y * y + q * x * x], -1).float()
    splats = Splats(means.float(), conics, torch.full((n,), 0.9), torch.ones(n, 1), None)
    grid = TileGrid.cover(1, WIDTH, HEIGHT, 16)
    intersections = _intersections(splats, 0, [n], seed)
    lists = _list_parts(splats, intersections, grid, 8, 4)
    assert 0 < lists.ids.numel() < 8 * n
    # Gaussians whose rounded conic is indefinite are negative far from the mean; the rest is compared.
    determinant = conics[:, 0].double() * conics[:, 2].double() - conics[:, 1].double() ** 2
    definite = determinant > 1e-3 * p * q
    kept = definite[intersections.flatten_ids.long()]
    assert kept.sum() > n // 4
    starts = lists.offsets.tolist()
    ids = [lists.ids[a:b][definite[lists.ids[a:b].long()]] for a, b in itertools.pairwise(starts)]
    lists = lists._replace(
        ids=torch.cat(ids),
        offsets=torch.tensor([0, *itertools.accumulate(part.numel() for part in ids)], dtype=torch.int32),
    )
    intersections = intersections._replace(
        flatten_ids=intersections.flatten_ids[kept], isect_offsets=torch.tensor([0, int(kept.sum())], dtype=torch.int32)
    )
    _assert_lists(lists, splats, intersections, grid, 8, 4)


def test_invalid_gaussians_are_not_listed():
    splats = _splats(40, 5)
    splats.opacities.fill_(0.9)
    splats.shapes[3], splats.shapes[4, 1], splats.shapes[5, 0] = math.nan, math.nan, -1.0
    splats.means2d[6], splats.means2d[7, 1] = math.nan, math.nan
    splats.opacities[8], splats.opacities[9] = math.nan, 0.5 * ALPHA_MIN
    splats.shapes[10] = torch.tensor([1.0, 3.0, 1.0])
    invalid = set(range(3, 11))
    grid = TileGrid.cover(1, WIDTH, HEIGHT, 16)
    intersections = _intersections(splats, 2, [40, 40], 0)
    lists = _list_parts(splats, intersections, grid, 8, 8)
    assert lists.ids.numel() > 40
    assert not invalid & set(lists.ids.tolist())


def test_empty_band_has_empty_lists():
    splats = _splats(4, 0)
    grid = TileGrid.cover(1, WIDTH, HEIGHT, 8)
    intersections = Intersections(3, torch.zeros(4, dtype=torch.int32), torch.zeros(0, dtype=torch.int32), None)
    lists = _list_parts(splats, intersections, grid, 8, 4)
    assert lists.offsets.tolist() == [0] * 7
    assert lists.ids.numel() == lists.n_chunks == 0


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
@pytest.mark.parametrize("unread", [0, 106 * 2 - 1, 106 * 2])
def test_chunks_cover_long_lists(chunk, unread):
    from tsplat.kernels.compositing.part_lists import CUT

    splats = _splats(60, 2)
    intersections = _intersections(splats, 0, [60, 0, 5, 40, 1], 4)
    lists = _list_parts(splats, intersections, TileGrid.cover(1, WIDTH, HEIGHT, 8), 8, 4, chunk, unread)
    counts = lists.chunk_starts.diff().tolist()
    for length, count in zip(lists.offsets.diff().tolist(), counts):
        assert count == (math.ceil(length / chunk) if length > CUT * chunk else 0)
    more = [len(counts) - 1] * (lists.n_chunks - sum(counts))
    assert bool(more) == (unread == 106 * 2)
    assert lists.chunk_lists.tolist() == [index for index, count in enumerate(counts) for _ in range(count)] + more
    assert lists.chunk_transmittances.shape == (lists.n_chunks, 32)
    assert lists.chunk_colors.shape == (lists.n_chunks, 1, 32)


def test_the_longest_lists_come_first_on_a_gpu(monkeypatch):
    from tsplat.kernels.compositing import part_lists, tuning

    monkeypatch.setattr(tuning, "RESIDENT", 9)
    monkeypatch.setattr(tuning, "LENGTH_STEP", 5)
    monkeypatch.setattr(tuning, "LENGTH_STEPS_MAX", 4)
    monkeypatch.setattr(part_lists, "is_compiled_for_cpu", lambda tensor: False)
    grid = TileGrid.cover(1, WIDTH, HEIGHT, 8)
    for counts in ([60, 0, 5, 40, 1], [60, 0, 5, 40]):
        lists = _list_parts(_splats(60, 2), _intersections(_splats(60, 2), 0, counts, 4), grid, 8, 4, 4)
        length_steps = (lists.offsets.diff() // 5).clamp_max(4).tolist()
        expected = sorted(range(len(length_steps)), key=lambda i: -length_steps[i])
        assert (
            lists.launch_order.tolist() == expected != sorted(expected)
            if len(counts) == 5
            else lists.launch_order is None
        )


@pytest.mark.parametrize(("tile_size", "width", "height"), [(8, 8, 4), (16, 16, 4), (16, 8, 4), (16, 8, 8)])
def test_parts_do_not_change_the_bits_of_images(tile_size, width, height, monkeypatch):
    from tsplat.kernels import compositing
    from tsplat.kernels.compositing.tuning import PartShape

    splats = _splats(150, 9)
    n = splats.opacities.numel()
    grid = TileGrid.cover(1, WIDTH, HEIGHT, tile_size)
    intersections = _intersections(splats, 0, [n] * grid.n_tiles, 7)
    images = []
    for shape in (PartShape(tile_size, tile_size, UNCUT), PartShape(width, height, UNCUT)):
        monkeypatch.setattr(compositing, "part_shape", lambda *arguments, shape=shape: shape)
        pixels = tsplat.rasterize_to_pixels(
            splats.means2d[None], splats.shapes[None], torch.rand(1, n, 3, generator=torch.manual_seed(0)),
            splats.opacities[None], WIDTH, HEIGHT, tile_size,
            intersections.isect_offsets[:-1].int().view(1, grid.tile_height, grid.tile_width),
            intersections.flatten_ids, backend="triton",
        )  # fmt: skip
        images.append(pixels)
    assert images[0][1].max() > 0.5
    assert all(torch.equal(one, other) for one, other in zip(*images))


def test_slightly_indefinite_conics_are_listed():
    # Valid up to rounding, but 2,000 pixels from its mean such a Gaussian grows.
    means2d, opacities, colors = torch.tensor([[[-2000.0, -2000.0]]]), torch.tensor([[0.9]]), torch.ones(1, 1, 3)
    conics = torch.tensor([[[1.0, -(1.00005**0.5), 1.0]]])
    offsets, ids = torch.arange(4, dtype=torch.int32).view(1, 2, 2), torch.zeros(4, dtype=torch.int32)
    inputs = (means2d, conics, colors, opacities, 32, 32, 16, offsets, ids)
    (_, found), (_, expected) = (tsplat.rasterize_to_pixels(*inputs, backend=name) for name in ("triton", "torch"))
    assert (expected > 0).sum() > 500
    torch.testing.assert_close(found, expected)
