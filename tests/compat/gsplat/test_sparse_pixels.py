"""Rendering of chosen pixels: their layout, their intersections, and images and contributors as in dense rendering."""

import itertools
import math

import pytest
import torch

from tests.support import scenes
from tests.support.closeness import assert_exact
from tsplat import ArgumentError, fully_fused_projection, isect_offset_encode, isect_tiles, rasterize_to_pixels
from tsplat.compat import gsplat

STRUCTURE = scenes.Structure(n=60, cameras=2, channels=4, width=21, height=19, size=4.0, seed=3)
WIDTH, HEIGHT = 21, 19
INPUTS = ("means2d", "conics", "colors", "opacities")


def grid(tile_size):
    return math.ceil(WIDTH / tile_size), math.ceil(HEIGHT / tile_size)


def choose(n=60, seed=0, n_images=2):
    """Chosen pixels [n, 2], row and column, and their images [n], in random order."""
    flat = torch.randperm(n_images * HEIGHT * WIDTH, generator=torch.Generator().manual_seed(seed))[:n]
    images, places = flat // (HEIGHT * WIDTH), flat % (HEIGHT * WIDTH)
    return torch.stack([places // WIDTH, places % WIDTH], -1).to(torch.int32), images.to(torch.int32)


def project(packed=False):
    """Projected Gaussians with colors, by name; backgrounds; radii; depths; and the image of each packed row."""
    scene = scenes.make(STRUCTURE)
    projected = fully_fused_projection(
        scene["means"], None, scene["quats"], scene["scales"], scene["viewmats"], scene["Ks"], WIDTH, HEIGHT,
        opacities=scene["opacities"], packed=packed,
    )  # fmt: skip
    radii, means2d, depths, conics, _ = projected[-5:]
    colors, opacities = scene["colors"], scene["opacities"]
    own = projected[2] if packed else torch.arange(STRUCTURE.n).expand(2, -1)
    splats = dict(zip(INPUTS, (means2d, conics, colors[own], opacities[own])))
    return splats, scene["backgrounds"], radii, depths, projected[1] if packed else None


def lay_out(pixels, image_ids, tile_size, radii, depths, splats, row_images=None):
    """Arguments of the sparse functions by name."""
    tiles = grid(tile_size)
    active, mask, pixel_mask, cumsum, pixel_map = gsplat.build_sparse_tile_layout(
        pixels, image_ids, 2, tile_size, *tiles
    )
    offsets, flatten_ids = gsplat.isect_tiles_sparse(
        splats["means2d"], radii, depths, mask, active, 2, tile_size, *tiles, image_ids=row_images
    )
    return dict(
        active_tiles=active, tile_offsets=offsets, flatten_ids=flatten_ids, tile_pixel_mask=pixel_mask,
        tile_pixel_cumsum=cumsum, pixel_map=pixel_map, image_width=WIDTH, image_height=HEIGHT, tile_size=tile_size,
        tile_width=tiles[0], tile_height=tiles[1],
    )  # fmt: skip


def dense_isects(tile_size, radii, depths, splats):
    tiles = grid(tile_size)
    _, ids, flatten_ids = isect_tiles(splats["means2d"], radii, depths, tile_size, *tiles)
    return isect_offset_encode(ids, 2, *tiles), flatten_ids


def pick(images, pixels, image_ids):
    return images[image_ids.to(torch.int64), pixels[:, 0].to(torch.int64), pixels[:, 1].to(torch.int64)]


@pytest.mark.parametrize("tile_size", [4, 8, 16])
def test_layout_matches_loops(tile_size):
    pixels, image_ids = choose()
    tile_width, tile_height = grid(tile_size)
    active, mask, pixel_mask, cumsum, pixel_map = gsplat.build_sparse_tile_layout(
        pixels, image_ids, 3, tile_size, tile_width, tile_height
    )
    keys = [
        ((image * tile_height + row // tile_size) * tile_width + column // tile_size,
         row % tile_size * tile_size + column % tile_size)
        for (row, column), image in zip(pixels.tolist(), image_ids.tolist())
    ]  # fmt: skip
    tiles = sorted({tile for tile, _ in keys})
    assert active.dtype == torch.int32
    assert active.tolist() == tiles
    assert mask.shape == (3, tile_height, tile_width)
    assert mask.flatten().nonzero().squeeze(1).tolist() == tiles
    assert pixel_mask.dtype == torch.uint64
    words = math.ceil(tile_size**2 / 64)
    bits = [sum(1 << place for own, place in keys if own == tile) for tile in tiles]
    assert pixel_mask.tolist() == [[value >> 64 * word & (1 << 64) - 1 for word in range(words)] for value in bits]
    assert cumsum.tolist() == [sum(own <= tile for own, _ in keys) for tile in tiles]
    assert pixel_map.tolist() == sorted(range(len(keys)), key=keys.__getitem__)


def test_layout_without_pixels():
    pixels, image_ids = choose(0)
    active, mask, pixel_mask, cumsum, pixel_map = gsplat.build_sparse_tile_layout(pixels, image_ids, 2, 8, 3, 3)
    assert active.shape == (0,)
    assert not mask.any()
    assert pixel_mask.shape == (0, 1)
    assert cumsum.tolist() == [0]
    assert pixel_map.shape == (0,)


@pytest.mark.parametrize("packed", [False, True])
def test_intersections_are_those_of_the_active_tiles(packed):
    splats, _, radii, depths, row_images = project(packed)
    pixels, image_ids = choose(9)
    layout = lay_out(pixels, image_ids, 8, radii, depths, splats, row_images)
    _, ids, flatten_ids = isect_tiles(
        splats["means2d"], radii, depths, 8, 3, 3, packed=packed, n_images=2, image_ids=row_images
    )
    bounds = [*isect_offset_encode(ids, 2, 3, 3).flatten().tolist(), len(flatten_ids)]
    lists = [flatten_ids[bounds[tile] : bounds[tile + 1]].tolist() for tile in layout["active_tiles"].tolist()]
    assert layout["tile_offsets"].dtype == layout["flatten_ids"].dtype == torch.int32
    found = layout["tile_offsets"].tolist()
    assert [layout["flatten_ids"][i:j].tolist() for i, j in itertools.pairwise(found)] == lists
    assert found[-1] == len(layout["flatten_ids"])


@pytest.mark.parametrize("tile_size", [4, 8, 16])
@pytest.mark.parametrize("packed", [False, True])
def test_values_and_gradients_match_dense_rendering(tile_size, packed):
    dense, backgrounds, radii, depths, _ = project()
    pixels, image_ids = choose()
    isects = dense_isects(tile_size, radii, depths, dense)
    leaves = [value.clone().requires_grad_() for value in (*dense.values(), backgrounds)]
    images = rasterize_to_pixels(*leaves[:4], WIDTH, HEIGHT, tile_size, *isects, backgrounds=leaves[4])
    expected = [pick(image, pixels, image_ids) for image in images]
    v = scenes.random_like(tuple(expected), 0)
    gradients = list(torch.autograd.grad(expected, leaves, v))

    splats, _, radii, depths, row_images = project(packed)
    layout = lay_out(pixels, image_ids, tile_size, radii, depths, splats, row_images)
    own = [value.clone().requires_grad_() for value in (*splats.values(), backgrounds)]
    found = gsplat.rasterize_to_pixels_sparse(
        *own[:4], image_ids, **layout, backgrounds=own[4], packed=packed, absgrad=True
    )
    assert found[0].shape == (60, 4)
    assert found[1].shape == (60, 1)
    for name, one, other in zip(("colors", "alphas"), found, expected):
        assert_exact(name, one, other)
    visible = (project()[2] > 0).all(-1)
    for name, one, other in zip((*INPUTS, "backgrounds"), torch.autograd.grad(found, own, v), gradients):
        assert_exact(name, one, other[visible] if packed and name != "backgrounds" else other)
    assert own[0].absgrad.shape == own[0].shape
    assert own[0].absgrad.any()


def test_masked_tiles_show_the_background():
    splats, backgrounds, radii, depths, _ = project()
    pixels, image_ids = choose()
    masks = torch.rand(2, 3, 3, generator=torch.Generator().manual_seed(1)) < 0.5
    isects = dense_isects(8, radii, depths, splats)
    images = rasterize_to_pixels(*splats.values(), WIDTH, HEIGHT, 8, *isects, backgrounds=backgrounds, masks=masks)
    layout = lay_out(pixels, image_ids, 8, radii, depths, splats)
    found = gsplat.rasterize_to_pixels_sparse(
        *splats.values(), image_ids, **layout, backgrounds=backgrounds, masks=masks
    )
    for name, one, other in zip(("colors", "alphas"), found, images):
        assert_exact(name, one, pick(other, pixels, image_ids))


@pytest.mark.parametrize("numerics", ["gsplat-1.5", "gsplat-1.6"])
def test_contributors_match_dense_queries(numerics):
    splats, _, radii, depths, _ = project()
    pixels, image_ids = choose()
    inputs = [splats[name] for name in ("means2d", "conics", "opacities")]
    dense = (*inputs, *dense_isects(8, radii, depths, splats), WIDTH, HEIGHT, 8)
    layout = lay_out(pixels, image_ids, 8, radii, depths, splats)
    images = gsplat.rasterize_num_contributing_gaussians(*dense, numerics=numerics)
    counts, alphas = gsplat.rasterize_num_contributing_gaussians_sparse(*inputs, **layout, numerics=numerics)
    assert counts.dtype == torch.int32
    assert torch.equal(counts, pick(images[0], pixels, image_ids))
    assert_exact("alphas", alphas, pick(images[1], pixels, image_ids))
    images = gsplat.rasterize_contributing_gaussian_ids(*dense, images[0], numerics=numerics)
    ids, weights = gsplat.rasterize_contributing_gaussian_ids_sparse(
        *inputs, **layout, num_contributing_gaussians=counts, numerics=numerics
    )
    n_listed = int(counts.max())
    assert torch.equal(ids, pick(images[0], pixels, image_ids)[:, :n_listed])
    assert_exact("weights", weights, pick(images[1], pixels, image_ids)[:, :n_listed])
    images = gsplat.rasterize_top_contributing_gaussian_ids(*dense, 3, numerics=numerics)
    ids, weights = gsplat.rasterize_top_contributing_gaussian_ids_sparse(
        *inputs, **layout, num_depth_samples=3, numerics=numerics
    )
    assert torch.equal(ids, pick(images[0], pixels, image_ids))
    assert_exact("weights", weights, pick(images[1], pixels, image_ids))


@pytest.mark.parametrize("packed", [False, True])
def test_no_pixels(packed):
    splats, backgrounds, radii, depths, row_images = project(packed)
    pixels, image_ids = choose(0)
    layout = lay_out(pixels, image_ids, 8, radii, depths, splats, row_images)
    colors, alphas = gsplat.rasterize_to_pixels_sparse(
        *splats.values(), image_ids, **layout, backgrounds=backgrounds, packed=packed
    )
    assert colors.shape == (0, 4)
    assert alphas.shape == (0, 1)
    inputs = [splats[name] for name in ("means2d", "conics", "opacities")]
    counts, _ = gsplat.rasterize_num_contributing_gaussians_sparse(*inputs, **layout)
    assert counts.shape == (0,)


@pytest.mark.parametrize(
    ("pixels", "images", "match"),
    [
        ([[0, 0], [0, 0]], [1, 1], "each pixel once"),
        ([[0, 0]], [2], "image_ids: expected 0 to 1, found 2"),
        ([[24, 0]], [0], "pixels: rows: expected 0 to 23, found 24"),
        ([[0, -1]], [0], "pixels: columns: expected 0 to 23, found -1"),
        ([[0, 0]], [0, 1], "image_ids: expected \\[P\\]"),
    ],
)
def test_pixels_are_checked(pixels, images, match):
    with pytest.raises(ArgumentError, match=match):
        gsplat.build_sparse_tile_layout(torch.tensor(pixels), torch.tensor(images), 2, 8, 3, 3)


def test_layouts_are_checked():
    splats, _, radii, depths, _ = project()
    pixels, image_ids = choose()
    layout = lay_out(pixels, image_ids, 8, radii, depths, splats)
    for change, match in (
        (dict(tile_width=4), "tile_width: expected 3×3 tiles"),
        (dict(tile_offsets=layout["tile_offsets"][:-1]), "tile_offsets: expected"),
        (dict(tile_offsets=layout["tile_offsets"].flip(0)), "tile_offsets: expected ascending"),
        (dict(flatten_ids=layout["flatten_ids"][:3]), "tile_offsets: expected integers from 0 to 3"),
        (dict(pixel_map=layout["pixel_map"][:-1]), "pixel_map: expected"),
        (dict(tile_pixel_cumsum=layout["tile_pixel_cumsum"] + 1), "tile_pixel_cumsum: expected"),
        (dict(active_tiles=layout["active_tiles"].flip(0)), "active_tiles: expected ascending tiles"),
        (dict(image_width=18), "tile_pixel_mask: expected pixels inside images of 18×19"),
    ):
        with pytest.raises(ArgumentError, match=match):
            gsplat.rasterize_to_pixels_sparse(*splats.values(), image_ids, **{**layout, **change})
    with pytest.raises(ArgumentError, match="image_ids: expected the image of each chosen pixel"):
        gsplat.rasterize_to_pixels_sparse(*splats.values(), 1 - image_ids, **layout)
    mask = torch.zeros(2, 3, 3, dtype=torch.bool)
    with pytest.raises(ArgumentError, match="active_tiles: expected the indices"):
        gsplat.isect_tiles_sparse(splats["means2d"], radii, depths, mask, layout["active_tiles"], 2, 8, 3, 3)
