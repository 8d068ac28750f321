"""Functions of the unscented transform and of evaluation in 3D, with the arguments of gsplat 1.6."""

import pytest
import torch

import tsplat
from tests.support import scenes
from tsplat import isect_offset_encode, isect_tiles
from tsplat.compat.gsplat import (
    RendererConfig,
    RendererConfig_MixedBatch,
    RendererConfig_ParallelBatch,
    fully_fused_projection_with_ut,
    rasterize_to_pixels_eval3d,
)
from tsplat.compat.gsplat.cuda._wrapper import UnscentedTransformParameters, rasterize_to_pixels_eval3d_extra

TILE = 8
STRUCTURE = scenes.Structure(n=40, cameras=2, width=30, height=20, seed=4, size=3.0)


def make_lists():
    """Arguments of compositing, by name. The first tile of the first camera is not shown."""
    scene = scenes.make(STRUCTURE, torch.float32)
    shapes = [scene[name] for name in ("means", "quats", "scales")]
    views, size = (scene["viewmats"], scene["Ks"]), (scene["width"], scene["height"])
    radii, means2d, depths, _, _ = fully_fused_projection_with_ut(
        *shapes, scene["opacities"], *views, *size, lidar_coeffs=None
    )
    _, isect_ids, flatten_ids = isect_tiles(means2d, radii, depths, TILE, 4, 3)
    isect_offsets = isect_offset_encode(isect_ids, 2, 4, 3)
    masks = torch.ones_like(isect_offsets, dtype=torch.bool)
    masks[0, 0, 0] = False
    names = ("means", "quats", "scales", "colors", "opacities", "viewmats", "Ks", "image_width", "image_height")
    rows = scene["colors"].expand(2, -1, -1), scene["opacities"].expand(2, -1)
    return dict(zip(names, (*shapes, *rows, *views, *size))) | dict(
        tile_size=TILE, isect_offsets=isect_offsets, flatten_ids=flatten_ids, masks=masks
    )


@pytest.mark.parametrize("numerics", ["gsplat-1.5", "gsplat-1.6"])
def test_extra_tells_which_gaussians_pixels_show(numerics):
    """Adds the intersections of the tile with the most, one by one, and observes which alphas grow."""
    given = make_lists() | {"numerics": numerics, "backend": "torch"}
    colors, alphas, last_ids, counts, normals = rasterize_to_pixels_eval3d_extra(
        **given, return_sample_counts=True, return_normals=True, lidar_coeffs=None
    )
    expected = rasterize_to_pixels_eval3d(**given, return_normals=True)
    for found, image in zip((colors, alphas, normals), expected):
        assert torch.equal(found, image)
    assert counts.dtype == last_ids.dtype == torch.int32 and counts.shape == alphas.shape[:-1]
    assert counts.max() > 5 and (counts == 0).any()
    assert torch.equal(counts == 0, alphas[..., 0] == 0) and torch.equal(counts == 0, last_ids == -1)
    assert not counts[0, :TILE, :TILE].any() and counts[1, :TILE, :TILE].any()
    offsets, ids = given["isect_offsets"].flatten(), given["flatten_ids"]
    tile = int(offsets.diff().argmax())
    image, row, column = tile // 12, tile % 12 // 4 * TILE, tile % 4 * TILE
    here = image, slice(row, row + TILE), slice(column, column + TILE)
    start, end = offsets[tile : tile + 2].tolist()
    counted = torch.zeros_like(counts[here])
    before = torch.zeros_like(alphas[here][..., 0])
    last = torch.full_like(counted, -1)
    for stop in range(start + 1, end + 1):
        cut = torch.where(torch.arange(len(offsets)) > tile, stop, offsets.clamp_max(stop)).view_as(
            given["isect_offsets"]
        )
        shown = given | dict(isect_offsets=cut, flatten_ids=ids[:stop])
        alpha = rasterize_to_pixels_eval3d(**shown)[1][here][..., 0]
        counted += alpha > before
        last[alpha > before] = stop - 1
        before = alpha
    assert torch.equal(counted, counts[here]) and torch.equal(last, last_ids[here])


def test_extra_returns_what_is_asked_for():
    given = make_lists()
    leaves = {name: given[name].clone().requires_grad_() for name in ("means", "colors")}
    found = rasterize_to_pixels_eval3d_extra(
        **given | leaves, return_last_ids=False, renderer_config=RendererConfig_ParallelBatch()
    )
    expected = rasterize_to_pixels_eval3d(**given | leaves, renderer_config=RendererConfig_MixedBatch())
    assert found[2:] == (None, None, None) and torch.equal(found[0], expected[0])
    one, other = (torch.autograd.grad(images[0].square().sum(), leaves.values()) for images in (found, expected))
    assert all(map(torch.equal, one, other))
    flat = tsplat.rasterize_to_pixels_eval3d(
        **given, rays=torch.rand(2, 20, 30, 6, generator=torch.Generator().manual_seed(0))
    )
    pixels = torch.rand(2, 20, 30, 6, generator=torch.Generator().manual_seed(0)).flatten(1, 2)
    assert torch.equal(rasterize_to_pixels_eval3d_extra(**given, rays=pixels)[0], flat[0])
    assert rasterize_to_pixels_eval3d_extra(**given)[2] is not None


def test_unknown_kernels_are_refused():
    given = make_lists()
    with pytest.raises(TypeError, match="renderer_config: expected None"):
        rasterize_to_pixels_eval3d(**given, renderer_config=object())
    with pytest.raises(TypeError, match="construct RendererConfig_MixedBatch"):
        RendererConfig()


def test_default_parameters_follow_the_numerics():
    """One of seven sigma points is outside of the margin: culled, unless one valid point is enough."""
    given = (
        torch.tensor([[0.0, 0, 1]]), torch.tensor([[1.0, 0, 0, 0]]), torch.tensor([[4.0, 0.1, 0.1]]), None,
        torch.eye(4)[None], torch.tensor([[[100.0, 0, 50], [0, 100, 50], [0, 0, 1]]]), 100, 100,
    )  # fmt: skip
    for numerics, sees in (("gsplat-1.5", False), ("gsplat-1.6", True)):
        for options in ({}, {"ut_params": None}, {"ut_params": UnscentedTransformParameters()}):
            radii, *_ = fully_fused_projection_with_ut(*given, numerics=numerics, **options)
            assert radii.any() == sees
    strict = UnscentedTransformParameters(require_all_sigma_points_valid=True)
    assert not fully_fused_projection_with_ut(*given, numerics="gsplat-1.6", ut_params=strict)[0].any()
