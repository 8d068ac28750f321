"""Lists of contributing Gaussians, and compositing of such lists."""

import functools
import math

import pytest
import torch

from tests.support import scenes
from tests.support.closeness import assert_exact
from tsplat import ArgumentError, fully_fused_projection, isect_offset_encode, isect_tiles, rasterize_to_pixels
from tsplat.compat.gsplat import accumulate, rasterize_to_indices_in_range
from tsplat.compat.gsplat.cuda._torch_impl import _isect_offset_encode, _isect_tiles, _rasterize_to_pixels

STRUCTURE = scenes.Structure(n=60, cameras=2, channels=4, width=21, height=19, size=4.0, seed=3)
MANY = scenes.Structure(n=200, cameras=2, channels=4, width=21, height=19, size=4.0, seed=3)
"""More than 64 intersections in some tiles."""
TILE = 8


def project(structure=STRUCTURE):
    """Projected Gaussians and their intersections, as keyword arguments of `rasterize_to_pixels`."""
    scene = scenes.make(structure)
    width, height = scene["width"], scene["height"]
    radii, means2d, depths, conics, _ = fully_fused_projection(
        scene["means"], None, scene["quats"], scene["scales"], scene["viewmats"], scene["Ks"], width, height,
        opacities=scene["opacities"],
    )  # fmt: skip
    tiles = math.ceil(width / TILE), math.ceil(height / TILE)
    _, ids, flatten_ids = isect_tiles(means2d, radii, depths, TILE, *tiles)
    images = means2d.shape[:-2]
    offsets = isect_offset_encode(ids, math.prod(images), *tiles).view(*images, tiles[1], tiles[0])
    return dict(
        means2d=means2d, conics=conics, colors=scene["colors"].expand(*means2d.shape[:-1], -1),
        opacities=scene["opacities"].expand(means2d.shape[:-1]), image_width=width, image_height=height,
        tile_size=TILE, isect_offsets=offsets, flatten_ids=flatten_ids,
    )  # fmt: skip


def list_all(splats, first=0, last=1 << 30, transmittances=None):
    images = splats["means2d"].shape[:-2]
    if transmittances is None:
        transmittances = torch.ones(*images, splats["image_height"], splats["image_width"], dtype=torch.float64)
    arguments = {name: value for name, value in splats.items() if name != "colors"}
    return rasterize_to_indices_in_range(first, last, transmittances, **arguments)


def list_by_loops(splats):
    """The triples of all pixels by the rules of compositing, in Python floats."""
    width, height = splats["image_width"], splats["image_height"]
    tile_height, tile_width = splats["isect_offsets"].shape[-2:]
    bounds = [*splats["isect_offsets"].flatten().tolist(), len(splats["flatten_ids"])]
    n = splats["means2d"].shape[-2]
    means, conics = (splats[name].flatten(0, -2).tolist() for name in ("means2d", "conics"))
    opacities = splats["opacities"].flatten().tolist()
    found = []
    for image in range(math.prod(splats["means2d"].shape[:-2])):
        for pixel in range(width * height):
            y, x = divmod(pixel, width)
            tile = image * tile_height * tile_width + y // TILE * tile_width + x // TILE
            transmittance = 1.0
            for row in splats["flatten_ids"][bounds[tile] : bounds[tile + 1]].tolist():
                dx, dy = x + 0.5 - means[row][0], y + 0.5 - means[row][1]
                a, b, c = conics[row]
                alpha = min(0.999, opacities[row] * math.exp(-(0.5 * (a * dx * dx + c * dy * dy) + b * dx * dy)))
                if alpha < 1 / 255:
                    continue
                if transmittance * (1 - alpha) <= 1e-4:
                    break
                found.append((row % n, pixel, image))
                transmittance *= 1 - alpha
    return torch.tensor(found).T


def test_lists_match_loops():
    splats = project()
    found = list_all(splats)
    assert all(ids.dtype == torch.int64 for ids in found)
    assert torch.equal(torch.stack(found), list_by_loops(splats))


def test_lists_of_packed_gaussians_are_of_rows():
    splats = project()
    rows = {name: splats[name].flatten(0, 1) for name in ("means2d", "conics", "opacities")}
    found = list_all({**splats, **rows}, transmittances=torch.ones(2, 19, 21))
    ids, pixels, images = list_all(splats)
    assert torch.equal(torch.stack(found), torch.stack([images * STRUCTURE.n + ids, pixels, images]))


def test_lists_of_ranges_continue_each_other():
    splats = project(MANY)
    # Faint enough that no pixel stops, which a later range would not know.
    splats["opacities"] = 0.05 * splats["opacities"]
    transmittances, parts = None, []
    lengths = torch.cat([splats["isect_offsets"].flatten(), torch.tensor([len(splats["flatten_ids"])])]).diff()
    n_blocks = -(-int(lengths.max()) // TILE**2)
    assert n_blocks > 1
    for block in range(n_blocks):
        ids = list_all(splats, block, block + 1, transmittances)
        parts.append(torch.stack(ids))
        _, alphas = accumulate(*(splats[k] for k in ("means2d", "conics", "opacities", "colors")), *ids, 21, 19)
        before = 1.0 if transmittances is None else transmittances
        transmittances = before * (1 - alphas[..., 0])
    together = torch.cat(parts, 1)
    order = (together[2] * 1000 + together[1]).sort(stable=True).indices
    assert torch.equal(together[:, order], torch.stack(list_all(splats)))


def test_lists_of_a_pixel_that_has_stopped_are_empty():
    splats = project()
    stopped = torch.full((2, 19, 21), 1e-4, dtype=torch.float64)
    assert all(ids.numel() == 0 for ids in list_all(splats, transmittances=stopped))


def test_accumulated_lists_are_the_rendered_images():
    splats = project()
    colors, alphas = rasterize_to_pixels(**splats)
    names = ("means2d", "conics", "opacities", "colors")
    inputs = {name: splats[name].clone().requires_grad_() for name in names}
    found, found_alphas = accumulate(*inputs.values(), *list_all(splats), 21, 19)
    assert_exact("colors", found, colors)
    assert_exact("alphas", found_alphas, alphas)
    v = scenes.random_like((found, found_alphas), 0)
    gradients = torch.autograd.grad((found, found_alphas), list(inputs.values()), v)
    leaves = {name: splats[name].clone().requires_grad_() for name in names}
    expected = torch.autograd.grad(rasterize_to_pixels(**{**splats, **leaves}), list(leaves.values()), v)
    for name, one, other in zip(names, gradients, expected):
        assert_exact(name, one, other)


def test_accumulate_gradients():
    structure = scenes.Structure(n=4, cameras=1, channels=2, width=5, height=4, size=2.0)
    splats = project(structure)
    ids = list_all(splats)
    # Below the clamp of alpha, where the derivative jumps.
    splats["opacities"] = 0.9 * splats["opacities"]
    inputs = [splats[name].clone().requires_grad_() for name in ("means2d", "conics", "opacities", "colors")]
    assert torch.autograd.gradcheck(lambda *tensors: accumulate(*tensors, *ids, 5, 4), inputs)


def test_lists_without_entries():
    splats = project()
    splats["flatten_ids"] = splats["flatten_ids"][:0]
    splats["isect_offsets"] = torch.zeros_like(splats["isect_offsets"])
    ids = list_all(splats)
    assert all(one.shape == (0,) and one.dtype == torch.int64 for one in ids)
    colors, alphas = accumulate(*(splats[k] for k in ("means2d", "conics", "opacities", "colors")), *ids, 21, 19)
    assert colors.shape == (2, 19, 21, 4)
    assert not colors.any()
    assert not alphas.any()


@pytest.mark.parametrize("batch_per_iter", [1, 100])
def test_rasterization_in_pytorch_matches_the_kernels(batch_per_iter):
    splats = project(MANY)
    # Faint enough that no pixel stops, which a later range would not know.
    splats["opacities"] = 0.05 * splats["opacities"]
    backgrounds = torch.rand(2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    names = ("means2d", "conics", "opacities", "colors")
    results = []
    for function in (functools.partial(_rasterize_to_pixels, batch_per_iter=batch_per_iter), rasterize_to_pixels):
        leaves = {name: splats[name].clone().requires_grad_() for name in names}
        images = function(**{**splats, **leaves}, backgrounds=backgrounds)
        gradients = torch.autograd.grad(images, list(leaves.values()), scenes.random_like(images, 0))
        results.append((*images, *gradients))
    for name, one, other in zip(("image colors", "alphas", *names), *results, strict=True):
        assert_exact(name, one, other)


def test_lists_are_what_is_composited_where_alpha_is_at_the_threshold():
    """In fp32, with opacities that make alpha 1/255 to rounding at one pixel of each Gaussian."""
    generator = torch.Generator().manual_seed(0)
    ids, pixels = torch.arange(256), torch.randperm(256, generator=generator)
    means2d = 16 * torch.rand(1, 256, 2, generator=generator)
    conics = 0.01 * (1 + torch.rand(1, 256, 3, generator=generator)) - torch.tensor([0.0, 0.015, 0.0])
    colors = torch.ones(1, 256, 1)
    exact = [t.double() for t in (means2d, conics, colors[..., 0], colors)]
    _, alphas = accumulate(*exact, ids, pixels, torch.zeros_like(ids), 16, 16)
    opacities = (1 / 255 / alphas.flatten()[pixels][None]).float()
    lists = (torch.zeros(1, 1, 1, dtype=torch.int32), ids.int())
    _, expected = rasterize_to_pixels(means2d, conics, colors, opacities, 16, 16, 16, *lists)
    transmittances = torch.ones(1, 16, 16)
    found = rasterize_to_indices_in_range(0, 9, transmittances, means2d, conics, opacities, 16, 16, 16, *lists)
    _, alphas = accumulate(means2d, conics, opacities, colors, *found, 16, 16)
    assert expected.max() < 0.9  # none of 256 has less than 4e-4
    torch.testing.assert_close(alphas, expected, rtol=0, atol=1e-5)


def test_intersections_are_those_of_the_kernels():
    scene = scenes.make(STRUCTURE)
    radii, means2d, depths, _, _ = fully_fused_projection(
        scene["means"], None, scene["quats"], scene["scales"], scene["viewmats"], scene["Ks"], 21, 19
    )
    found, expected = (function(means2d, radii, depths, TILE, 3, 3) for function in (_isect_tiles, isect_tiles))
    assert all(torch.equal(one, other) for one, other in zip(found, expected))
    assert torch.equal(_isect_offset_encode(found[1], 2, 3, 3), isect_offset_encode(found[1], 2, 3, 3))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"first": -1}, "range_start"),
        ({"last": 1e10}, "range_end"),
        ({"transmittances": torch.ones(2, 18, 21)}, "transmittances"),
    ],
)
def test_arguments_are_checked(change, name):
    with pytest.raises(ArgumentError, match=name):
        list_all(project(), **change)


@pytest.mark.parametrize("name", ["isect_offsets", "flatten_ids"])
def test_lists_out_of_range_raise(name):
    splats = project()
    splats[name] = splats[name] + 2**20
    with pytest.raises(ArgumentError, match=rf"{name}: expected integers from 0 to \d+, found 1048"):
        list_all(splats)


@pytest.mark.parametrize("k", range(3))
def test_ids_out_of_range_raise(k):
    splats = project()
    ids = list(list_all(splats))
    ids[k] = ids[k] - 1
    name = ("gaussian_ids", "pixel_ids", "image_ids")[k]
    with pytest.raises(ArgumentError, match=f"{name}: expected integers from 0 to .*, found -1"):
        accumulate(*(splats[key] for key in ("means2d", "conics", "opacities", "colors")), *ids, 21, 19)
