"""2D Gaussians by gsplat's names: listed contributors are what is rendered, and the wrapper of the authors' package."""

import math

import pytest
import torch

import tsplat
from tests.stages.test_surfels import make
from tests.support.closeness import assert_exact
from tsplat.compat.gsplat import (
    accumulate_2dgs,
    fully_fused_projection_2dgs,
    has_2dgs,
    isect_offset_encode,
    isect_tiles,
    rasterization_2dgs,
    rasterization_2dgs_inria_wrapper,
    rasterize_to_indices_in_range_2dgs,
    rasterize_to_pixels_2dgs,
)
from tsplat.compat.gsplat.cuda._torch_impl_2dgs import _fully_fused_projection_2dgs

WIDTH, HEIGHT, TILE = 21, 19, 8


@pytest.fixture
def splats():
    """Projected surfels of two cameras, and their lists of tiles."""
    scene = make(1, n=60)
    given = [scene[name] for name in ("means", "quats", "scales", "viewmats", "Ks")]
    radii, means2d, depths, transforms, normals = fully_fused_projection_2dgs(*given, WIDTH, HEIGHT)
    tiles = (math.ceil(WIDTH / TILE), math.ceil(HEIGHT / TILE))
    _, isect_ids, flatten_ids = isect_tiles(means2d, radii, depths, TILE, *tiles)
    rows = dict(
        means2d=means2d, ray_transforms=transforms, opacities=scene["opacities"].expand(2, -1).contiguous(),
        colors=scene["colors"].expand(2, -1, -1).contiguous(), normals=normals,
    )  # fmt: skip
    return rows, isect_offset_encode(isect_ids, 2, *tiles), flatten_ids


def list_all(rows, offsets, flatten_ids):
    full = torch.ones(2, HEIGHT, WIDTH, dtype=torch.float64)
    given = (rows[name] for name in ("means2d", "ray_transforms", "opacities"))
    return rasterize_to_indices_in_range_2dgs(0, 10**6, full, *given, WIDTH, HEIGHT, TILE, offsets, flatten_ids)


def test_lists_are_what_is_composited_where_alpha_is_at_the_threshold():
    """In fp32, with opacities that make alpha 1/255 to rounding at one pixel of each disc."""
    generator = torch.Generator().manual_seed(0)
    ids, pixels = torch.arange(256), torch.randperm(256, generator=generator)
    transforms = torch.eye(3) * torch.tensor([9.0, 9, 1])
    transforms = transforms + torch.randn(1, 256, 3, 3, generator=generator) * torch.tensor([1.0, 1, 0])
    transforms[..., :2, 2] = 16 * torch.rand(1, 256, 2, generator=generator)
    transforms[..., 2, :2] *= 0.01
    means2d, normals = transforms[..., :2, 2] + 100, torch.zeros(1, 256, 3)  # the low-pass filter is far off
    colors = torch.ones(1, 256, 1)
    exact = [t.double() for t in (means2d, transforms, colors[..., 0], colors, normals)]
    _, alphas, _ = accumulate_2dgs(*exact, ids, pixels, torch.zeros_like(ids), 16, 16)
    opacities = (1 / 255 / alphas.flatten()[pixels][None]).float()
    lists, size = (torch.zeros(1, 1, 1, dtype=torch.int32), ids.int()), (16, 16, 16)
    _, expected, *_ = rasterize_to_pixels_2dgs(
        means2d, transforms, colors, opacities, normals, torch.zeros_like(means2d), *size, *lists
    )
    given = (means2d, transforms, opacities)
    found = rasterize_to_indices_in_range_2dgs(0, 9, torch.ones(1, 16, 16), *given, *size, *lists)
    _, alphas, _ = accumulate_2dgs(*given, colors, normals, *found, 16, 16)
    assert expected.max() < 0.999
    torch.testing.assert_close(alphas, expected, rtol=0, atol=1e-5)


def test_accumulated_lists_are_the_rendered_images(splats):
    rows, offsets, flatten_ids = splats
    ids = list_all(*splats)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in rows.items()}
    found = accumulate_2dgs(*leaves.values(), *ids, WIDTH, HEIGHT)
    densify = torch.zeros_like(rows["means2d"])
    order = ("means2d", "ray_transforms", "colors", "opacities", "normals")
    colors, alphas, normals, _, _ = rasterize_to_pixels_2dgs(
        *(leaves[name] for name in order), densify, WIDTH, HEIGHT, TILE, offsets, flatten_ids
    )
    expected = (colors, alphas, normals)
    assert alphas.max() > 0.9
    for name, one, other in zip(("colors", "alphas", "normals"), found, expected, strict=True):
        assert_exact(name, one, other)
    generator = torch.Generator().manual_seed(0)
    v = [torch.randn(image.shape, generator=generator, dtype=torch.float64) for image in expected]
    gradients = (torch.autograd.grad(images, [*leaves.values()], v) for images in (found, expected))
    for name, one, other in zip(leaves, *gradients, strict=True):
        assert_exact(f"gradient of {name}", one, other)


def test_ranges_continue_each_other(splats):
    rows, offsets, flatten_ids = splats
    given = [rows[name] for name in ("means2d", "ray_transforms", "opacities")]
    assert len(list_all(*splats)[0]) > 1000
    with pytest.raises(tsplat.ArgumentError, match="range_end: expected an int of at least 0, found -1"):
        rasterize_to_indices_in_range_2dgs(
            0, -1, torch.ones(2, HEIGHT, WIDTH), *given, WIDTH, HEIGHT, TILE, offsets, flatten_ids
        )
    with pytest.raises(tsplat.ShapeError, match=r"ray_transforms: expected \[..., N, 3, 3\] as means2d"):
        accumulate_2dgs(given[0], given[1].flatten(-2), *given[2:], *[None] * 5, WIDTH, HEIGHT)


def test_the_wrapper_renders_all_cameras():
    scene = make(2)
    (images, alphas), meta = rasterization_2dgs_inria_wrapper(**scene, depth_ratio=0.25)
    colors, expected_alphas, normals, _, distort, median, native = rasterization_2dgs(
        **scene, render_mode="RGB+ED", numerics="inria", far_plane=100.0
    )
    torch.testing.assert_close(images[..., :3], colors[..., :3])
    torch.testing.assert_close(images[..., 3:], 0.75 * colors[..., 3:] + 0.25 * median)
    assert torch.equal(alphas, expected_alphas) and torch.equal(meta["normals_rend"], normals)
    assert torch.equal(meta["render_distloss"], distort) and torch.equal(meta["radii"], native["radii"])
    assert meta["normals_surf"].shape == normals.shape and meta["gaussian_ids"] is None and meta["n_cameras"] == 2
    given = dict(packed=False, absgrad=False, sparse_grad=False, render_mode="RGB+D", distloss=True)
    assert torch.equal(rasterization_2dgs_inria_wrapper(**scene, **given, depth_ratio=0.25)[0][0], images)
    for refused in (dict(absgrad=True), dict(packed=True), dict(render_mode="RGB"), dict(segmented=False)):
        with pytest.raises(tsplat.ArgumentError, match=f"kwargs: found {next(iter(refused))}; pass them to"):
            rasterization_2dgs_inria_wrapper(**scene, **given | refused)


def test_private_projection_is_the_public_one():
    scene = make(3)
    given = [scene[name] for name in ("means", "quats", "scales", "viewmats", "Ks")]
    found = _fully_fused_projection_2dgs(*given, WIDTH, HEIGHT, near_plane=3.0)
    expected = fully_fused_projection_2dgs(*given, WIDTH, HEIGHT, near_plane=3.0)
    assert has_2dgs() and found[0].any() and not (found[2][found[0][..., 0] > 0] < 3.0).any()
    assert all(torch.equal(one, other) for one, other in zip(found, expected))
