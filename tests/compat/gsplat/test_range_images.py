"""Lidars in functions of stages: angles of Gaussians, and lists of a lidar's own tiles, against the reference."""

import dataclasses
import math

import pytest
import torch

import tsplat
from tests.support.backends import BACKENDS
from tests.support.closeness import assert_exact
from tests.support.lidars import lidar, make
from tests.support.scenes import random_like
from tests.support.slow import slow_after
from tsplat.compat import gsplat
from tsplat.compat.gsplat.cuda._wrapper import rasterize_to_pixels_eval3d_extra
from tsplat.stages.lidars import TABLES

SHAPES = ("means", "quats", "scales")


def with_tiling(params, **options):
    """The lidar with tiles of its own, of up to 16 elements unless told otherwise."""
    options = dict(n_bins_elevation=4, max_pts_per_tile=16, resolution_elevation=200) | options
    given = gsplat.RowOffsetStructuredSpinningLidarModelParameters(**vars(params))
    tiling = gsplat.compute_lidar_tiling(given, **options)
    return gsplat.RowOffsetStructuredSpinningLidarModelParametersExt(given, torch.zeros(1, 1), tiling)


def every_gaussian(scene, params):
    """Lists with every Gaussian in every tile, sorted by distance, and images of two signals more than the colors."""
    points = scene["means"] @ scene["viewmats"][:, :3, :3].mT + scene["viewmats"][:, None, :3, 3]
    order = points.norm(dim=-1).argsort(-1)
    n_cameras, n = order.shape
    tiles = (params.tiling.n_bins_elevation, params.tiling.n_bins_azimuth)
    n_tiles = math.prod(tiles)
    ids = order + n * torch.arange(n_cameras)[:, None]
    offsets = n * torch.arange(n_cameras * n_tiles).view(n_cameras, *tiles)
    return dict(isect_offsets=offsets, flatten_ids=ids.repeat_interleave(n_tiles, 0).flatten())


def stage_arguments(scene, params):
    """Arguments of compositing for those of `rasterization`."""
    cameras = len(scene["viewmats"])
    rows = {name: scene[name].expand(cameras, *scene[name].shape) for name in ("colors", "opacities")}
    kept = {name: scene[name] for name in (*SHAPES, "viewmats", "backgrounds")} | rows
    size = dict(image_width=params.n_columns, image_height=params.n_rows, tile_size=4)
    poses = {name: scene[name] for name in ("viewmats_rs",) if name in scene}
    return kept | size | poses | dict(Ks=None, camera_model="lidar", lidar_coeffs=params)


CASES = {
    "a turn": dict(seed=0),
    "a sector of two lidars, clockwise": dict(seed=3, span=2.5, cameras=2, offsets=0.5),
    "a sweep": dict(seed=4, sweeps=True, n=12),
}


@pytest.mark.parametrize("case", slow_after(1, list(CASES)))
@pytest.mark.parametrize("backend", BACKENDS)
def test_images_and_gradients_match_reference(backend, case):
    """The reference of `rasterization` shows every Gaussian at every element, as these lists do."""
    scene = make(**CASES[case])
    params = with_tiling(scene["lidar_coeffs"])
    names = [name for name, value in scene.items() if isinstance(value, torch.Tensor)]
    leaves = {name: scene[name].clone().requires_grad_() for name in names}
    tables = {name: getattr(params, name).clone().requires_grad_() for name in TABLES}
    wanted = leaves | tables
    moving = dataclasses.replace(scene["lidar_coeffs"], **tables)
    given = gsplat.RowOffsetStructuredSpinningLidarModelParametersExt(moving, torch.zeros(1, 1), params.tiling)

    def with_gradients(images):
        gradients = torch.autograd.grad(images, list(wanted.values()), random_like(images, 0), allow_unused=True)
        return {"colors": images[0], "alphas": images[1]} | dict(zip(wanted, gradients))

    lists = every_gaussian(scene, params)
    call = stage_arguments(scene | leaves, given) | lists | dict(backend=backend, numerics="gsplat-1.6")
    found = with_gradients(gsplat.rasterize_to_pixels_eval3d(**call))
    whole = scene | leaves | dict(lidar_coeffs=moving, backend="reference", numerics="gsplat-1.6")
    expected = with_gradients(tsplat.rasterization(**whole)[:2])
    assert found["alphas"].max() > 0.5 and all(found[name].abs().max() > 1e-4 for name in TABLES)
    for name, tensor in expected.items():
        assert_exact(name, found[name], tensor)


@pytest.mark.parametrize("tile_size", [4, 8])
def test_distances_normals_and_given_rays(tile_size):
    """The last channel is a distance, normals are an image, and rays that are passed are those of elements."""
    scene = make(2, rows=6, columns=30)
    params = with_tiling(scene["lidar_coeffs"])
    lists = every_gaussian(scene, params)
    call = (
        stage_arguments(scene, params) | lists | dict(return_normals=True, numerics="gsplat-1.6", tile_size=tile_size)
    )
    call["colors"] = torch.cat([call["colors"], torch.zeros_like(call["colors"][..., :1])], -1)
    call["backgrounds"] = torch.cat([call["backgrounds"], torch.zeros(1, 1)], -1)
    found, alphas, normals = gsplat.rasterize_to_pixels_eval3d(**call, use_hit_distance=True)
    whole = scene | dict(render_mode="RGB-d", return_normals=True, numerics="gsplat-1.6", backend="reference")
    expected, expected_alphas, meta = tsplat.rasterization(**whole)
    for image, other in ((found, expected), (alphas, expected_alphas), (normals, meta["normals"])):
        torch.testing.assert_close(image, other, rtol=0, atol=1e-9)
    tables = [getattr(params, name) for name in TABLES]
    elevations, azimuths = tables[0][:, None], tables[1] + tables[2][:, None]
    flat = elevations.cos()
    own = torch.stack([azimuths.cos() * flat, azimuths.sin() * flat, elevations.sin().expand_as(azimuths)], -1)
    turned = own @ scene["viewmats"][0, :3, :3]
    origins = -scene["viewmats"][0, :3, 3] @ scene["viewmats"][0, :3, :3]
    rays = torch.cat([origins.expand_as(turned), 3 * turned], -1).requires_grad_()
    for given in (rays[None], rays.view(1, 180, 6)):
        again, *_ = gsplat.rasterize_to_pixels_eval3d(**call, use_hit_distance=True, rays=given)
        torch.testing.assert_close(again, found, rtol=0, atol=1e-9)
        (gradient,) = torch.autograd.grad(again.sum(), rays)
        shown = (alphas[0, ..., 0] > 0.01)[..., None]
        assert gradient.isfinite().all() and gradient[shown.expand_as(gradient)].abs().max() > 1e-3


def test_last_gaussians_and_counts_are_those_of_elements():
    scene = make(5, rows=6, columns=30, n=8)
    params = with_tiling(scene["lidar_coeffs"])
    lists, call = every_gaussian(scene, params), stage_arguments(scene, params)
    masks = torch.ones_like(lists["isect_offsets"], dtype=torch.bool)
    masks[0, 1, 2] = False
    call |= lists | dict(masks=masks, numerics="gsplat-1.6", backend="torch")
    colors, alphas, last, counts, normals = rasterize_to_pixels_eval3d_extra(**call, return_sample_counts=True)
    assert last.shape == counts.shape == (1, 6, 30) and normals is None
    shown = alphas[..., 0] > 0
    assert torch.equal(last >= 0, shown) and torch.equal(counts > 0, shown) and 20 < shown.sum() < 180
    # Of a tile, the lists begin at its offset; a Gaussian alone is the last one where it is seen.
    tiling = params.tiling
    tile_of = torch.empty(180, dtype=torch.int64)
    columns, rows = tiling.tiles_to_elements_map.long().unbind(-1)
    tile_of[rows * 30 + columns] = torch.arange(len(tiling.tiles_pack_info)).repeat_interleave(
        tiling.tiles_pack_info[:, 1].long()
    )
    tile_of = tile_of.view(1, 6, 30)
    assert torch.equal((last // 8)[shown], tile_of[shown].int())
    masked = tile_of == tiling.n_bins_azimuth + 2
    assert masked.sum() > 4 and not shown[masked].any()
    assert torch.equal(colors[masked], call["backgrounds"].expand(int(masked.sum()), 3))
    for i in (0, 5):
        alone = call | dict(opacities=torch.where(torch.arange(8) == i, call["opacities"], 0.0))
        _, alphas, last, counts, _ = rasterize_to_pixels_eval3d_extra(**alone, return_sample_counts=True)
        assert torch.equal(counts, (alphas[..., 0] > 0).int())
        assert (lists["flatten_ids"][last[counts > 0].long()] == i).all()


@pytest.mark.parametrize("seed", [0, 1])
def test_projected_angles_are_those_of_rasterization(seed):
    """Azimuths and elevations, 1,024 per radian; with gradients of all inputs, by finite differences."""
    scene = make(seed, n=12, cameras=2, sweeps=bool(seed))
    params = scene["lidar_coeffs"]
    poses = {name: scene[name] for name in ("viewmats_rs",) if name in scene}
    fixed = dict(Ks=None, width=1, height=1, camera_model="lidar", lidar_coeffs=params, backend="torch")
    inputs = {name: scene[name] for name in (*SHAPES, "opacities", "viewmats")} | poses
    radii, angles, depths, *_ = gsplat.fully_fused_projection_with_ut(**inputs, **fixed)
    _, _, meta = tsplat.rasterization(**scene, packed=False, backend="torch")
    assert torch.equal(radii, meta["radii"]) and torch.equal(depths, meta["depths"])
    seen = (radii > 0).all(-1)
    assert seen.sum() > 4 and not angles[~seen].any()
    if not seed:
        points = (inputs["viewmats"][:, None, :3, :3] @ inputs["means"][:, :, None])[..., 0]
        points = points + inputs["viewmats"][:, None, :3, 3]
        torch.testing.assert_close(depths[seen], points.norm(dim=-1)[seen])
        small = inputs | {"scales": torch.full_like(inputs["scales"], 1e-5)}
        radii, angles, *_ = gsplat.fully_fused_projection_with_ut(**small, **fixed)
        azimuths = torch.atan2(points[..., 1], points[..., 0])
        elevations = torch.atan2(points[..., 2], points[..., :2].norm(dim=-1))
        off = angles / 1024 - torch.stack([azimuths, elevations], -1)
        off[..., 0] -= 2 * math.pi * (off[..., 0] / (2 * math.pi)).round()
        assert off[(radii > 0).all(-1)].abs().max() < 1e-6

    def outputs(*values):
        _, means2d, depths, conics, _ = gsplat.fully_fused_projection_with_ut(**dict(zip(inputs, values)), **fixed)
        return means2d / 1024, depths, conics

    leaves = [tensor.clone().requires_grad_() for name, tensor in inputs.items() if name != "opacities"]
    leaves.insert(3, inputs["opacities"])
    assert torch.autograd.gradcheck(outputs, leaves, eps=1e-7, atol=1e-4, rtol=1e-3, fast_mode=True)


@pytest.mark.parametrize("seed", [0, 1])
def test_ellipses_are_those_of_angles(seed):
    """A conic is that of azimuth and elevation, whichever way the lidar spins."""
    scene = make(seed, n=1)
    direction = torch.tensor([0.8, 0.5, 0.1], dtype=torch.float64)
    scene |= dict(means=10 * direction[None], viewmats=torch.eye(4, dtype=torch.float64)[None])
    scene |= dict(scales=torch.tensor([[0.3, 0.02, 0.02]], dtype=torch.float64), opacities=torch.ones(1))
    params = lidar(seed)
    arguments = [scene[name] for name in (*SHAPES, "opacities", "viewmats")]
    _, _, _, conics, _ = gsplat.fully_fused_projection_with_ut(
        *arguments, None, 1, 1, eps2d=0.0, camera_model="lidar", lidar_coeffs=params
    )
    covar, _ = tsplat.quat_scale_to_covar_preci(scene["quats"], scene["scales"])
    point = scene["means"][0].clone().requires_grad_()
    rows = torch.stack([torch.atan2(point[1], point[0]), torch.atan2(point[2], point[:2].norm())])
    jacobian = 1024 * torch.stack([torch.autograd.grad(row, point, retain_graph=True)[0] for row in rows])
    (a, b), (_, c) = (jacobian @ covar[0] @ jacobian.T).inverse()
    torch.testing.assert_close(conics[0, 0], torch.stack([a, b, c]), rtol=2e-2, atol=2e-2 * float(a.max()))
    assert conics[0, 0, 1] * b > 0 and b.abs() > 0.1 * torch.minimum(a, c)


@pytest.mark.parametrize("seed", [0, 1])
def test_stages_render_what_rasterization_renders(seed):
    """Lists of a lidar's own tiles, of boxes of angles, show the same Gaussians in the same order."""
    scene = make(seed, n=60, rows=20, columns=90, size=0.4, cameras=2)
    del scene["backgrounds"]
    params = with_tiling(scene["lidar_coeffs"])
    radii, angles, depths, _, _ = gsplat.fully_fused_projection_with_ut(
        *(scene[name] for name in (*SHAPES, "opacities", "viewmats")), None, 1, 1, camera_model="lidar",
        lidar_coeffs=params, numerics="gsplat-1.6",
    )  # fmt: skip
    counts, isect_ids, flatten_ids = gsplat.isect_tiles_lidar(params, angles, radii, depths)
    tiles = params.tiling.n_bins_elevation, params.tiling.n_bins_azimuth
    offsets = gsplat.isect_offset_encode(isect_ids, 2, *tiles[::-1])
    call = stage_arguments(scene | {"backgrounds": None}, params)
    call |= dict(isect_offsets=offsets, flatten_ids=flatten_ids, numerics="gsplat-1.6")
    found, alphas = gsplat.rasterize_to_pixels_eval3d(**call)
    expected, expected_alphas, _ = tsplat.rasterization(**scene, numerics="gsplat-1.6")
    assert counts.float().mean() < 0.3 * math.prod(tiles)
    for image, other in ((found, expected), (alphas, expected_alphas)):
        torch.testing.assert_close(image, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(camera_model="pinhole"), "lidar_coeffs: expected None, as camera_model is 'pinhole'; pass 'lidar'"),
        (dict(lidar_coeffs=None), "lidar_coeffs: expected the parameters of a lidar"),
        (dict(lidar_coeffs=lidar(0)), "lidar_coeffs: expected a lidar with a tiling, found a RowOffset"),
        (dict(lidar_coeffs=with_tiling(lidar(0), max_pts_per_tile=25)), "tile_size: expected a square of at"),
        (dict(image_width=41), "image_width: expected 40 as in lidar_coeffs, found 41"),
        (dict(rays=torch.zeros(1, 40, 9, 6)), "rays: expected a shape that broadcasts to"),
        (dict(rolling_shutter="ROLLING_TOP_TO_BOTTOM"), "rolling_shutter: expected GLOBAL or ROLLING_LEFT_TO_RIGHT"),
        (dict(viewmats=torch.zeros(1, 3, 4)), "viewmats: expected"),
        (dict(radial_coeffs=torch.zeros(1, 4)), "radial_coeffs: expected None, as lidars"),
        (dict(isect_offsets=torch.zeros(1, 4, 5, dtype=torch.int32)), "isect_offsets: expected"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    scene = make(0)
    params = with_tiling(scene["lidar_coeffs"])
    call = stage_arguments(scene, params) | every_gaussian(scene, params) | options
    with pytest.raises(tsplat.ArgumentError, match=message):
        gsplat.rasterize_to_pixels_eval3d(**call)
    if "camera_model" in options:
        given = [scene[name] for name in (*SHAPES, "opacities", "viewmats")]
        with pytest.raises(tsplat.ArgumentError, match=message):
            gsplat.fully_fused_projection_with_ut(*given, None, 1, 1, lidar_coeffs=params, **options)


def test_tilings_without_some_elements_are_refused():
    scene = make(0)
    params = with_tiling(scene["lidar_coeffs"])
    call = stage_arguments(scene, params) | every_gaussian(scene, params)
    for name in ("tiles_to_elements_map", "tiles_pack_info"):
        tensor = getattr(params.tiling, name).clone()
        tensor[1] = tensor[0]
        broken = dataclasses.replace(params.tiling, **{name: tensor})
        given = gsplat.RowOffsetStructuredSpinningLidarModelParametersExt(params, torch.zeros(1, 1), broken)
        with pytest.raises(tsplat.ArgumentError, match=r"lidar_coeffs\.tiling: expected every element .* in one tile"):
            gsplat.rasterize_to_pixels_eval3d(**call | {"lidar_coeffs": given})
