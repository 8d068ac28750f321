"""Lists of parts for discs: nothing that a pixel shows is left out, and little else is listed."""

import dataclasses
import math

import pytest
import torch

import tsplat
from tests.support.slow import slow_after
from tsplat.config import ALPHA_MIN
from tsplat.data import TileGrid

tl = pytest.importorskip("triton.language")

import triton  # noqa: E402

from tsplat.kernels import compositing  # noqa: E402
from tsplat.kernels.compositing.footprints import FOOTPRINTS  # noqa: E402
from tsplat.kernels.compositing.tuning import PartShape  # noqa: E402

pytestmark = pytest.mark.triton

WIDTH, HEIGHT, TILE, N = 40, 35, 16, 60
PART = 8, 4
SHAPES = ("behind", "any", "grazing", "needles", "far", "huge", "tiny", "plain")
"""Those behind reach the plane of the camera, where their edge is a hyperbola; any are not those of a camera."""


@triton.jit
def _all(bound, X: tl.constexpr, Y: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr):
    return (bound[1][2] > 1e30) == 0


ALL = dataclasses.replace(FOOTPRINTS["surfel"], reaches=_all)
"""Discs that are listed for all parts."""


def _discs(seed, shape):
    """Means on the image, ray transforms and opacities of discs. fp64 [1, N, ...]"""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*size):
        return torch.rand(*size, generator=generator, dtype=torch.float64)

    def normal(*size):
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    depth = 1 + 4 * uniform(N)
    pixel = (1.6 * uniform(N, 2) - 0.3) * torch.tensor([WIDTH, HEIGHT])
    if shape == "far":
        pixel = pixel + 10 ** (4 * uniform(N, 1)) * torch.nn.functional.normalize(normal(N, 2), dim=-1)
    focal = float(WIDTH)
    K = torch.tensor([[focal, 0, WIDTH / 2], [0, focal, HEIGHT / 2], [0, 0, 1]], dtype=torch.float64)
    center = depth[:, None] * torch.cat([(pixel - K[:2, 2]) / focal, torch.ones(N, 1)], 1)
    u, v = torch.linalg.qr(normal(N, 3, 2))[0].unbind(-1)
    if shape == "grazing":
        # The ray through the center is in the plane of the disc, or nearly so.
        u = torch.nn.functional.normalize(center + 10 ** (-3 * uniform(N, 1)) * normal(N, 3), dim=-1)
        v = torch.nn.functional.normalize(torch.linalg.cross(u, normal(N, 3)), dim=-1)
    size = depth / focal * (1 + 5 * uniform(N))
    size = size * {"tiny": 0.1, "huge": 30.0, "behind": 80.0, "far": 40.0}.get(shape, 1.0)
    sizes = size[:, None] * torch.exp(0.5 * normal(N, 2))
    if shape == "needles":
        sizes = sizes * torch.stack([torch.full((N,), 5.0), 10 ** (-4 * uniform(N))], 1)
    transforms = K @ torch.stack([sizes[:, :1] * u, sizes[:, 1:] * v, center], -1)
    if shape == "any":
        transforms = normal(N, 3, 3) * 10 ** (2 * normal(N, 3, 3))
    means = pixel + normal(N, 2)
    return means[None], transforms[None], (uniform(N) ** 2)[None]


def _render(discs, dtype):
    """Images and gradients, in each tile of all discs."""
    tiles = TileGrid.cover(1, WIDTH, HEIGHT, TILE)
    offsets = (N * torch.arange(tiles.n_tiles, dtype=torch.int32)).view(1, tiles.tile_height, tiles.tile_width)
    ids = torch.arange(N, dtype=torch.int32).repeat(tiles.n_tiles)
    leaves = [value.to(dtype).requires_grad_() for value in discs]
    means, transforms, opacities = leaves
    features = torch.linspace(0.1, 1.0, 3 * N, dtype=dtype).view(1, N, 3)
    images = tsplat.rasterize_to_pixels_2dgs(
        means, transforms, features, opacities, features, torch.zeros_like(means), WIDTH, HEIGHT, TILE, offsets, ids,
        backend="triton",
    )  # fmt: skip
    weights = torch.linspace(0.5, 1.5, images[0].numel(), dtype=dtype).view(images[0].shape)
    return *images, *torch.autograd.grad((images[0] * weights).sum() + images[1].sum(), leaves)


def _distances(discs):
    """Squared distances of the pixels of parts from discs, by gsplat's cross products. [N, parts, pixels]"""
    means, M, _ = (value[0] for value in discs)
    M = M.flatten(1)
    tiles = TileGrid.cover(1, WIDTH, HEIGHT, TILE)
    y, x = torch.meshgrid(torch.arange(tiles.tile_height * TILE), torch.arange(tiles.tile_width * TILE), indexing="ij")
    x, y = x.double() + 0.5, y.double() + 0.5
    column = [M[:, k, None, None] for k in range(9)]
    h = [x * column[6 + k] - column[k] for k in range(3)], [y * column[6 + k] - column[3 + k] for k in range(3)]
    point = torch.linalg.cross(torch.stack(h[0]), torch.stack(h[1]), dim=0)
    on_disc = ((point[:2] / point[2]) ** 2).sum(0)
    on_image = 2 * ((x - means[:, :1, None]) ** 2 + (y - means[:, 1:, None]) ** 2)
    nearest = torch.minimum(on_disc, on_image).unflatten(1, (-1, PART[1])).unflatten(3, (-1, PART[0]))
    return nearest.transpose(2, 3).flatten(3).flatten(1, 2)


def _bits(discs, dtype):
    """Images and gradients with lists of parts, and without."""
    found = _render(discs, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FOOTPRINTS, "surfel", ALL)
        return zip(found, _render(discs, dtype), strict=True)


@pytest.mark.parametrize("dtype", slow_after(1, [torch.float32, torch.float64]))
@pytest.mark.parametrize("shape", slow_after(1, SHAPES))
def test_parts_do_not_change_the_bits_of_images_and_gradients(shape, dtype, monkeypatch):
    entries, needed, list_parts = [], 0, compositing.list_parts

    def counted(*arguments, **options):
        lists = list_parts(*arguments, **options)
        entries.append(int(lists.offsets[-1]))
        return lists

    monkeypatch.setattr(compositing, "list_parts", counted)
    monkeypatch.setattr(compositing, "part_shape", lambda *_: PartShape(*PART, 2**30))
    for seed in range(4):
        discs = _discs(seed, shape)
        alpha = discs[2][0, :, None, None] * torch.exp(-0.5 * _distances(discs))
        needed += int((alpha >= ALPHA_MIN).any(2).sum())
        for one, other in _bits(discs, dtype):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    # Discs that are thinner than a pixel pass between the centers of pixels.
    most = {"grazing": 2.4, "needles": 1.8, "any": 1.3}.get(shape, 1.1) * needed + math.sqrt(needed)
    assert needed <= sum(entries[::2]) <= most


@pytest.mark.parametrize("shape", slow_after(1, ["any", *sorted({*SHAPES} - {"any"})]))
def test_rounding_at_borders_of_parts_leaves_nothing_out(shape, monkeypatch):
    """Of each disc, one part sees a single pixel, with an alpha of 1/255 but for rounding."""
    monkeypatch.setattr(compositing, "part_shape", lambda *_: PartShape(*PART, 2**30))
    for seed in range(20):
        means, transforms, opacities = _discs(seed, shape)
        nearest = _distances((means, transforms, opacities)).amin(2)
        u = torch.rand(nearest.shape, generator=torch.Generator().manual_seed(seed))
        part = torch.where((nearest > 0.5) & (nearest < 10), u, -1.0).argmax(1, keepdim=True)
        opacities = ALPHA_MIN * torch.exp(0.5 * nearest.gather(1, part)).T.clamp(max=0.99 / ALPHA_MIN)
        for one, other in _bits((means, transforms, opacities), torch.float32):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
