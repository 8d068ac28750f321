"""isect_tiles and isect_offset_encode: rectangles as in gsplat, ids of each width, segments, invalid ids."""

import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.backends import BACKENDS


def test_rectangles_match_gsplat():
    """Tiles of mean +- radii, with edges that just touch, against counts made by hand."""
    means2d = torch.tensor([[[8.0, 8.0], [15.9, 8.0], [40.0, 8.0], [8.0, 8.0]]])
    radii = torch.tensor([[[8, 8], [1, 1], [3, 3], [0, 0]]], dtype=torch.int32)
    tiles, ids, flatten_ids = tsplat.isect_tiles(means2d, radii, torch.tensor([[3.0, 2.0, 1.0, 1.0]]), 16, 2, 1)
    assert tiles.tolist() == [[1, 2, 0, 0]]
    assert flatten_ids.tolist() == [1, 0, 1]
    assert (ids >> 32).tolist() == [0, 0, 1]
    assert tsplat.isect_offset_encode(ids, 1, 2, 1).tolist() == [[[0, 2]]]
    _, _, unsorted = tsplat.isect_tiles(means2d, radii, torch.tensor([[3.0, 2.0, 1.0, 1.0]]), 16, 2, 1, sort=False)
    assert unsorted.tolist() == [0, 1, 1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tile_height", [3, 250, 300])
def test_ids_with_16_and_32_bit_keys(backend, tile_height):
    """Sort keys are int16 for up to 65,536 tiles."""
    generator = torch.Generator().manual_seed(0)
    size = torch.tensor([250.0, tile_height]) * 4
    means2d = torch.rand(1, 40, 2, generator=generator) * size
    means2d[0, 0] = size - 1
    radii = torch.full((1, 40, 2), 3, dtype=torch.int32)
    depths = 1 + torch.rand(1, 40, generator=generator)
    _, ids, flatten_ids = tsplat.isect_tiles(means2d, radii, depths, 4, 250, tile_height, backend=backend)
    assert torch.equal(ids, ids.sort().values)
    indices = flatten_ids.long()
    assert torch.equal((ids & 0xFFFFFFFF).int().view(torch.float32), depths[0, indices])
    tiles = ids >> 32
    x, y = tiles % 250, tiles // 250
    reach = (torch.stack([x, y], -1) * 4 + 2 - means2d[0, indices]).abs()
    assert (reach < 3 + 2).all()
    assert len(set(zip(tiles.tolist(), indices.tolist()))) == len(indices)
    offsets = tsplat.isect_offset_encode(ids, 1, 250, tile_height)
    assert offsets.flatten()[int(tiles[-1])] <= len(indices) - 1


@pytest.mark.parametrize("packed", [False, True])
def test_segmented_isect_tiles(packed):
    """Depths overlap between images, and several are equal. Packed rows come in any order of images."""
    generator = torch.Generator().manual_seed(2)
    n_images, n = 3, 17
    means2d = torch.rand(n_images, n, 2, generator=generator) * 32
    radii = torch.randint(0, 9, (n_images, n, 2), generator=generator, dtype=torch.int32)
    depths = torch.randint(1, 6, (n_images, n), generator=generator).float()
    options = {}
    if packed:
        image_ids = torch.randint(0, n_images, (n_images * n,), generator=generator)
        image_ids[image_ids == 1] = 2  # one image without rows
        means2d, radii, depths = means2d.flatten(0, 1), radii.flatten(0, 1), depths.flatten()
        options = dict(packed=True, n_images=n_images, image_ids=image_ids)
    for sort in (True, False):
        expected = tsplat.isect_tiles(means2d, radii, depths, 8, 4, 4, sort=sort, **options)
        found = tsplat.isect_tiles(means2d, radii, depths, 8, 4, 4, sort=sort, segmented=True, **options)
        for one, other in zip(expected, found, strict=True):
            assert torch.equal(one, other)
    assert expected[1].numel() > 50


@pytest.mark.parametrize(("numerics", "bits"), [("gsplat-1.5", (5, 3)), ("gsplat-1.6", (4, 3)), ("inria", (5, 3))])
def test_bits_of_tiles_in_ids(numerics, bits):
    """16 tiles take a bit more than they need, except in gsplat 1.6; 6 tiles take three in all."""
    for (width, height), n_bits in zip(((4, 4), (3, 2)), bits):
        means2d = torch.rand(3, 9, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([width, height]) * 8
        given = dict(means2d=means2d, radii=torch.full((3, 9, 2), 4, dtype=torch.int32), depths=torch.ones(3, 9))
        _, ids, rows = tsplat.isect_tiles(**given, tile_size=8, tile_width=width, tile_height=height, numerics=numerics)
        images, tiles = ids >> 32 >> n_bits, ids >> 32 & (1 << n_bits) - 1
        assert torch.equal(images, rows.long() // 9) and tiles.max() == width * height - 1
        offsets = tsplat.isect_offset_encode(ids, 3, width, height, numerics=numerics)
        counts = (images * width * height + tiles).bincount(minlength=offsets.numel())
        assert torch.equal(offsets.flatten(), (counts.cumsum(0) - counts).int())
    _, ids, _ = tsplat.isect_tiles(
        0 * means2d[:, :1], given["radii"][:, :1], torch.ones(3, 1), 16, 1, 1, numerics=numerics
    )
    assert (ids >> 32).tolist() == ([0, 1, 2] if numerics == "gsplat-1.6" else [0, 2, 4])


@pytest.mark.parametrize("numerics", ["gsplat-1.5", "gsplat-1.6"])
def test_ids_of_meta_follow_the_numerics(numerics):
    scene = scenes.make(scenes.Structure(n=20, width=32, height=32, cameras=3), torch.float32)
    _, _, meta = tsplat.rasterization(**scene, tile_size=8, numerics=numerics)
    found = tsplat.isect_offset_encode(meta["isect_ids"], 3, 4, 4, numerics=numerics)
    assert torch.equal(found, meta["isect_offsets"]) and found.max() > 0


@pytest.mark.parametrize(
    ("image_ids", "match"),
    [
        (torch.tensor([0, 2]), "image_ids: expected integers from 0 to 1, found 0 to 2"),
        (torch.tensor([-1, 1]), "image_ids: expected integers from 0 to 1, found -1 to 1"),
        (torch.tensor([1]), r"image_ids: .* as depths, here \[2\], found \[1\]"),
    ],
)
def test_image_ids_out_of_range_raise(image_ids, match):
    means2d, radii, depths = torch.ones(2, 2), torch.ones(2, 2, dtype=torch.int32), torch.ones(2)
    with pytest.raises(tsplat.ArgumentError, match=match):
        tsplat.isect_tiles(means2d, radii, depths, 8, 4, 4, packed=True, n_images=2, image_ids=image_ids)
