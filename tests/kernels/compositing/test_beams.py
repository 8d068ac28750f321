"""Lists of parts along rays: nothing that a pixel shows is left out, and little else is listed."""

import dataclasses
import itertools
import random
import sys

import pytest
import torch

import tsplat
from tests.stages.test_eval3d import own_rays
from tests.support.lenses import CASES, make
from tests.support.slow import slow_after
from tsplat.config import ALPHA_MIN, PRESETS, CameraSettings
from tsplat.data import CompositingSettings, Intersections, Rays, TileGrid
from tsplat.formulas.rotations import rotation_matrices

tl = pytest.importorskip("triton.language")

import triton  # noqa: E402

from tsplat.kernels import compositing  # noqa: E402
from tsplat.kernels.compositing.footprints import FOOTPRINTS  # noqa: E402

pytestmark = pytest.mark.triton

WIDTH, HEIGHT, TILE = 40, 35, 16
SHAPES = ("plain", "needles", "flat", "tiny", "huge", "far", "shifted", "inside", "rays")


@triton.jit
def _all(bound, box):
    """As `_reaches`, but of whatever may be visible anywhere."""
    return bound.is_visible | (box[0] > 1e38)


def _scene(seed, shape):
    """Gaussians around a moving camera with a lens, and in each tile all of them in an order of its own."""
    pick, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    kind, readout = CASES[0] if shape == "rays" else pick.choice(CASES)
    n = pick.choice([8, 40])
    scene = make(kind, readout, seed, n=n, width=WIDTH, height=HEIGHT, cameras=1)
    u = torch.rand(n, 3, generator=generator, dtype=torch.float64)
    powers = {
        "needles": u * torch.tensor([0.0, -7.0, -7.0 * pick.random()]), "flat": u * torch.tensor([0.0, 0.0, -5.0]),
        "tiny": -6 * u[:, :1], "huge": 4 * u[:, :1] - u * torch.tensor([0.0, 0.0, 4.0]), "far": 3 * u[:, :1] - 2 * u,
    }  # fmt: skip
    scene["scales"] = scene["scales"] * 10 ** powers.get(shape, torch.zeros(1))
    if shape == "far":
        scene["means"] = scene["means"] * 10 ** (3 * u[:, :1])
    elif shape == "inside":
        scene["means"] = scene["means"] * 0.02
    elif shape == "shifted":
        shift = 300 * torch.randn(3, generator=generator, dtype=torch.float64)
        scene["means"] = scene["means"] + shift
        for name in {"viewmats", "viewmats_rs"} & scene.keys():
            moved = scene[name].clone()
            moved[..., :3, 3] -= moved[..., :3, :3] @ shift
            scene[name] = moved
    elif shape == "rays":
        rays = own_rays(scene)
        noise = torch.randn(rays.shape, generator=generator, dtype=torch.float64)
        scene["rays"] = rays + pick.choice([1e-3, 0.03, 0.3]) * noise
        scene["rays"][:, 3:9, 5:30, 3:] = 0.0
    tiles = TileGrid.cover(1, WIDTH, HEIGHT, TILE)
    ids = torch.cat([torch.randperm(n, generator=generator) for _ in range(tiles.n_tiles)]).int()
    offsets = (n * torch.arange(tiles.n_tiles, dtype=torch.int32)).view(1, tiles.tile_height, tiles.tile_width)
    scene["opacities"] = 0.5 * torch.rand(1, n, generator=generator, dtype=torch.float64) ** 2
    scene["colors"] = torch.rand(1, n, 3, generator=generator, dtype=torch.float64)
    return scene, offsets, ids


LENS = (
    "camera_model", "radial_coeffs", "tangential_coeffs", "thin_prism_coeffs", "ftheta_coeffs", "rolling_shutter",
    "viewmats_rs", "external_distortion_coeffs", "rays",
)  # fmt: skip


def _images_and_gradients(scene, offsets, ids, dtype):
    scene = {name: value.to(dtype) if isinstance(value, torch.Tensor) else value for name, value in scene.items()}
    leaves = [scene[name].clone().requires_grad_() for name in ("means", "quats", "scales", "colors", "opacities")]
    lens = {name: scene[name] for name in LENS if name in scene}
    images = tsplat.rasterize_to_pixels_eval3d(
        *leaves, scene["viewmats"], scene["Ks"], WIDTH, HEIGHT, TILE, offsets, ids, backend="triton", **lens
    )
    weights = torch.linspace(0.5, 1.5, images[0].numel(), dtype=dtype).view(images[0].shape)
    return *images, *torch.autograd.grad((images[0] * weights).sum() + images[1].sum(), leaves)


@pytest.fixture
def entries(monkeypatch):
    """The number of entries of all lists of each call."""
    found, list_parts = [], compositing.list_parts

    def counted(*arguments, **options):
        lists = list_parts(*arguments, **options)
        found.append(int(lists.offsets[-1]))
        return lists

    monkeypatch.setattr(compositing, "list_parts", counted)
    return found


@pytest.mark.parametrize("dtype", slow_after(1, [torch.float32, torch.float64]))
@pytest.mark.parametrize("shape", slow_after(2, SHAPES))
def test_parts_do_not_change_the_bits_of_images_and_gradients(shape, dtype, entries, monkeypatch):
    for seed in range(32 if dtype == torch.float32 else 8):
        scene = _scene(seed, shape)
        found = _images_and_gradients(*scene, dtype)
        with monkeypatch.context() as patch:
            patch.setitem(FOOTPRINTS, "ray", dataclasses.replace(FOOTPRINTS["ray"], reaches=_all))
            expected = _images_and_gradients(*scene, dtype)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    share = sum(entries[::2]) / sum(entries[1::2])
    assert share < {"huge": 0.8, "inside": 0.8}.get(shape, 0.35)


def test_images_with_one_column_of_pixels(entries, monkeypatch):
    """Their rays have no slope along rows."""
    monkeypatch.setattr(sys.modules[__name__], "WIDTH", 1)
    test_parts_do_not_change_the_bits_of_images_and_gradients("plain", torch.float32, entries, monkeypatch)


def _grazing(shape):
    """Tiny Gaussians which the first row of pixels of a part barely sees or not, from above, through a telescope."""
    scene, _, _ = _scene(0, "inside")
    generator, n = torch.Generator().manual_seed(0), 4000
    u = torch.rand(n, 6, generator=generator, dtype=torch.float64)
    rays = own_rays(make("pinhole", width=WIDTH, height=HEIGHT, cameras=1))
    rays[..., 3:] = torch.lerp(rays[:, 17:18, 20:21, 3:], rays[..., 3:], 5e-4)
    y, x = 4 * (1 + (u[:, 0] * (HEIGHT // 4)).long()), (u[:, 1] * WIDTH).long()
    directions = torch.nn.functional.normalize(rays[0, ..., 3:], dim=-1)
    d, above = directions[y, x], directions[y - 1, x]
    up = torch.nn.functional.normalize(above - (above * d).sum(-1, keepdim=True) * d, dim=-1)
    depth = 2 + 3 * u[:, 2:3]
    longer = torch.tensor({"needles": [0.0, 1.0, 2.0]}.get(shape, [0.0, 0.3, 0.6]))
    scales = depth * 10 ** ((-4.5 if shape == "origins" else -5.0) - 1.5 * u[:, 3:4] + u[:, 3:4] * longer)
    quats = torch.nn.functional.normalize(torch.randn(n, 4, generator=generator, dtype=torch.float64), dim=-1)
    rotations = rotation_matrices(quats)
    whitening = rotations.mT / scales[..., None]
    along, across = (whitening @ v[..., None] for v in (d, up))
    across = across - along * (along * across).sum(1, keepdim=True) / along.square().sum(1, keepdim=True)
    opacities = 0.05 + 0.4 * u[:, 4]
    radius = (2 * (255 * opacities).log()).sqrt() * (1 + 0.1 * (u[:, 5] - 0.5))
    means = rays[0, y, x, :3] + depth * d + (radius[:, None] / across[..., 0].norm(dim=-1, keepdim=True)) * up
    if shape == "origins":
        rays[..., :3] += 300 * (-1.0) ** torch.arange(WIDTH)[:, None] * directions
    tiles = TileGrid.cover(1, WIDTH, HEIGHT, TILE)
    offsets = (n * torch.arange(tiles.n_tiles, dtype=torch.int32)).view(1, tiles.tile_height, tiles.tile_width)
    scene |= dict(
        means=means, quats=quats, scales=scales, opacities=opacities[None], rays=rays,
        colors=torch.rand(1, n, 3, generator=generator, dtype=torch.float64),
    )  # fmt: skip
    kept = {name: scene[name] for name in scene.keys() - set(LENS)} | {"rays": rays}
    return kept, offsets, torch.arange(n, dtype=torch.int32).repeat(tiles.n_tiles)


@pytest.mark.parametrize("shape", ["small", "needles", "origins"])
def test_rounding_at_borders_of_parts_leaves_nothing_out(shape, entries, monkeypatch):
    """Compositing sees some Gaussians only by rounding, and those are listed, too."""
    scene = _grazing(shape)
    found = _images_and_gradients(*scene, torch.float32)
    with monkeypatch.context() as patch:
        patch.setitem(FOOTPRINTS, "ray", dataclasses.replace(FOOTPRINTS["ray"], reaches=_all))
        expected = _images_and_gradients(*scene, torch.float32)
    exact = _images_and_gradients(*scene, torch.float64)
    assert (expected[1] > 0).sum() > 100
    assert (expected[1] - exact[1]).abs().max() > 0.5 * ALPHA_MIN, "no rounding to be seen"
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def _band(rays, tile_size):
    from tsplat.kernels.compositing.tuning import PartShape
    from tsplat.kernels.compositing.walk_arguments import BandTask

    grid = TileGrid.cover(1, WIDTH, HEIGHT, tile_size)
    settings = CompositingSettings(
        CameraSettings(WIDTH, HEIGHT), tile_size, 32, False, PRESETS["gsplat-1.5"], "triton", "ray"
    )
    offsets = torch.zeros(grid.n_tiles, dtype=torch.int32)  # of a band from the second tile on
    intersections = Intersections(1, offsets, torch.zeros(0, dtype=torch.int32), None)
    return BandTask(intersections, grid, PartShape(8, 4, 2**30), settings, rays)


@pytest.mark.parametrize(("kind", "readout"), CASES)
@pytest.mark.parametrize("tile_size", [8, 16])
def test_boxes_hold_the_rays_of_their_parts_and_no_more(kind, readout, tile_size):
    from tests.stages.test_eval3d import rays_of
    from tsplat.kernels.compositing.beams import BOX, FRAME, find_beams

    rays = rays_of(make(kind, readout, width=WIDTH, height=HEIGHT, cameras=1))
    band = _band(rays, tile_size)
    frames, boxes = find_beams(band).split([FRAME.value, BOX.value * band.parts_per_tile], 1)
    boxes = boxes.unflatten(1, (band.parts_per_tile, 2, 4))
    values = rays.per_pixel[0]
    if rays.origins is not None:
        values = torch.cat([rays.origins[0][:, None, None].expand_as(values), values])
    across = tile_size // 8
    for tile, part in itertools.product(range(band.n_tiles), range(band.parts_per_tile)):
        o, d, e, spread = frames[tile].split([3, 3, 3, 1])
        axes = torch.stack([e, torch.linalg.cross(d, e)])
        top, left = ((tile + 1) // band.grid.tile_width * tile_size, (tile + 1) % band.grid.tile_width * tile_size)
        y, x = top + part // across * 4, left + part % across * 8
        own = values[:, y : y + 4, x : x + 8].flatten(1)
        own = own[:, own[3:].abs().sum(0) > 0]
        if own.shape[1] == 0:
            assert (boxes[tile, part, :, 0] > boxes[tile, part, :, 1]).all()
            continue
        torch.testing.assert_close(axes @ axes.T, torch.eye(2).double(), rtol=0, atol=1e-12)
        torch.testing.assert_close(axes @ d, torch.zeros(2).double(), rtol=0, atol=1e-12)
        from_o, direction = own[:3] - o[:, None], own[3:] / (d @ own[3:])
        assert spread >= from_o.abs().sum(0).max() - 1e-12
        start = axes @ (from_o - (d @ from_o) * direction)
        expected = torch.stack([t.amin(1) if low else t.amax(1) for t in (start, axes @ direction) for low in (1, 0)])
        torch.testing.assert_close(boxes[tile, part], expected.T, rtol=0, atol=1e-12)


def test_axes_are_perpendicular_where_origins_differ_along_parallel_rays():
    from tsplat.kernels.compositing.beams import find_beams

    direction = torch.nn.functional.normalize(torch.tensor([0.3, 0.5, 0.8]), dim=0)
    origins = 1000 * torch.arange(WIDTH) * direction[:, None, None].expand(3, HEIGHT, 1)
    rays = Rays(torch.cat([origins, direction[:, None, None].expand_as(origins)])[None].contiguous(), None)
    frames = find_beams(_band(rays, 16))
    assert (frames[:, 3:6] * frames[:, 6:9]).sum(1).abs().max() < 1e-6
    torch.testing.assert_close(frames[:, 6:9].norm(dim=1), torch.ones(len(frames)))


def test_tiles_of_wide_rays_list_everything(entries):
    scene, offsets, ids = _scene(0, "rays")
    scene["rays"][:, ::2, :, 3:] *= -1.0  # rays to the front and to the back
    scene["opacities"].fill_(0.5)
    scene["means"], scene["scales"] = scene["means"] * 0 + 3.0, scene["scales"] * 0 + 1e-3
    _images_and_gradients(scene, offsets, ids, torch.float32)
    parts = 3 * 9  # rows of pixels end in the first part of the last row of tiles
    assert entries == [parts * len(ids) // offsets.numel()]


def test_parts_without_rays_list_nothing(entries):
    scene, offsets, ids = _scene(0, "rays")
    scene["rays"][..., 3:] = 0.0
    assert not _images_and_gradients(scene, offsets, ids, torch.float32)[1].any()
    assert entries == [0]
