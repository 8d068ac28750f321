"""Lidars by gsplat 1.6's names: what its programs pass, tiles and maps by their definitions, and losses."""

import dataclasses
import sys

import pytest
import torch
from torch.nn import functional

import tsplat
from tests.support.lidars import angular_boxes, lidar, make
from tsplat.compat import gsplat
from tsplat.compat.gsplat import losses
from tsplat.stages.lidars import TABLES


@pytest.mark.parametrize("seed", [0, 1])
def test_programs_render_with_tilings(seed):
    scene = make(seed)
    params = gsplat.RowOffsetStructuredSpinningLidarModelParameters(**vars(lidar(seed)))
    tiling = gsplat.compute_lidar_tiling(params, max_pts_per_tile=16)
    given = gsplat.RowOffsetStructuredSpinningLidarModelParametersExt(params, torch.zeros(36, 160), tiling)
    assert given.tiling is tiling and given.angles_to_columns_map.shape == (36, 160)
    assert (given.n_rows, given.n_columns, given.spinning_frequency_hz) == (9, 40, 10.0)
    found, _, _ = gsplat.rasterization(**scene | {"lidar_coeffs": given, "Ks": torch.eye(3)[None]})
    assert torch.equal(found, tsplat.rasterization(**scene)[0])


@pytest.mark.parametrize("seed", [0, 1])
def test_tiles_hold_every_element_once(seed):
    params = lidar(seed, rows=20, span=None if seed else 2.0, dtype=torch.float32)
    tiling = gsplat.compute_lidar_tiling(params, n_bins_elevation=5, max_pts_per_tile=24, resolution_elevation=200)
    starts, counts = tiling.tiles_pack_info.unbind(-1)
    assert counts.max() <= 24 and counts.sum() == 800 and len(counts) == 5 * tiling.n_bins_azimuth
    assert torch.equal(starts, counts.cumsum(0) - counts)
    columns, rows = tiling.tiles_to_elements_map.unbind(-1)
    assert torch.equal((rows * 40 + columns).sort().values, torch.arange(800))
    bands = (counts.view(5, -1).sum(-1), torch.tensor([160] * 5))
    assert torch.equal(*bands)  # four rows each
    assert tiling.cdf_elevation.shape == (201,) and tiling.cdf_elevation[-1] == 5
    assert (tiling.cdf_elevation.diff() >= 0).all()
    cells = tiling.cdf_dense_ray_mask
    assert cells.shape == (201, 8 * tiling.n_bins_azimuth + 1) and not cells[0].any() and not cells[:, 0].any()
    assert cells.diff(dim=0).diff(dim=1).unique().tolist() == [0, 1]
    # Elements of a tile are in its part of the field of view.
    azimuths = params.column_azimuths_rad + params.row_azimuth_offsets_rad[:, None]
    behind = (-1) ** seed * (azimuths - params.fov_horiz_rad.start)
    parts = behind.remainder(2 * torch.pi) / params.fov_horiz_rad.span * tiling.n_bins_azimuth
    of_tiles = torch.arange(len(counts)).repeat_interleave(counts) % tiling.n_bins_azimuth
    assert (parts[rows, columns] - of_tiles - 0.5).abs().median() <= 0.5


def test_tiles_that_no_azimuths_separate_are_refused():
    params = dataclasses.replace(lidar(0, rows=20), row_azimuth_offsets_rad=torch.zeros(20, dtype=torch.float64))
    tiling = gsplat.compute_lidar_tiling(params, n_bins_elevation=5, max_pts_per_tile=4, resolution_elevation=200)
    assert int(tiling.tiles_pack_info[:, 1].max()) == 4  # a column of four rows
    with pytest.raises(tsplat.ArgumentError, match=r"max_pts_per_tile: expected at least 4, .* found 3; pass more"):
        gsplat.compute_lidar_tiling(params, n_bins_elevation=5, max_pts_per_tile=3, resolution_elevation=200)


def test_the_map_has_the_columns_of_the_nearest_elements():
    pytest.importorskip("scipy")
    params = lidar(3, rows=4, columns=12, span=2.0)
    found = gsplat.compute_lidar_angles_to_columns_map(params, resolution_factor=3, dtype=torch.int16)
    assert found.shape == (12, 36) and found.dtype == torch.int16
    azimuths = params.column_azimuths_rad + params.row_azimuth_offsets_rad[:, None]
    vertical, horizontal = params.fov_vert_rad, params.fov_horiz_rad
    elevation = vertical.start - vertical.span * torch.linspace(0, 1, 12, dtype=torch.float64)[:, None, None, None]
    azimuth = horizontal.start - horizontal.span * torch.linspace(0, 1, 36, dtype=torch.float64)[:, None, None]
    e = params.row_elevations_rad[:, None]
    cosine = elevation.sin() * e.sin() + elevation.cos() * e.cos() * (azimuth - azimuths).cos()
    assert torch.equal(found.long(), cosine.flatten(2).argmax(-1) % 12)


@pytest.mark.parametrize("seed", [0, 1])
def test_directions_may_be_names_and_angles_may_require_gradients(seed):
    pytest.importorskip("scipy")
    params = lidar(seed, rows=4, columns=12)
    tables = {name: getattr(params, name).clone().requires_grad_() for name in TABLES}
    other = dataclasses.replace(params, spinning_direction=params.spinning_direction.name, **tables)
    assert other.fov_horiz_rad == params.fov_horiz_rad
    maps = [gsplat.compute_lidar_angles_to_columns_map(given) for given in (params, other)]
    assert torch.equal(*maps)
    tilings = [
        vars(gsplat.compute_lidar_tiling(given, n_bins_elevation=2, max_pts_per_tile=8)) for given in (params, other)
    ]
    for name, value in tilings[0].items():
        assert torch.equal(value, tilings[1][name]) if isinstance(value, torch.Tensor) else value == tilings[1][name]


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (dict(row_elevations_rad=torch.zeros(3)), {}, "lidar_params: expected an elevation and an offset for each row"),
        (dict(column_azimuths_rad=[0.0, 1.0]), {}, r"lidar_params.column_azimuths_rad: expected a tensor \[n\]"),
        (dict(column_azimuths_rad=torch.arange(12.0)), {}, "lidar_params.column_azimuths_rad: expected angles in the"),
        (dict(spinning_direction="left"), {}, "lidar_params.spinning_direction: expected one of"),
        ({}, dict(n_bins_elevation=0), "n_bins_elevation: expected a positive int, found 0"),
        ({}, dict(max_pts_per_tile="many"), "max_pts_per_tile: expected a positive int, found 'many'"),
        ({}, dict(resolution_elevation=-1), "resolution_elevation: expected a positive int"),
        ({}, dict(densification_factor_azimuth=2.5), "densification_factor_azimuth: expected a positive int"),
        ({}, dict(resolution_factor=0), "resolution_factor: expected a positive int"),
        ({}, dict(dtype="int32"), "dtype: expected a torch.dtype, found str"),
    ],
)
def test_lidars_and_sizes_of_tilings_and_maps_are_checked(change, options, message):
    given = dataclasses.replace(lidar(1, rows=4, columns=12), **change)
    if not options.keys() & {"resolution_factor", "dtype"}:
        with pytest.raises(tsplat.ArgumentError, match=message):
            gsplat.compute_lidar_tiling(given, **options)
    if change or options.keys() & {"resolution_factor", "dtype"}:
        with pytest.raises(tsplat.ArgumentError, match=message.replace("lidar_params", "lidar")):
            gsplat.compute_lidar_angles_to_columns_map(given, **options)


def test_the_map_names_the_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(tsplat.errors.MissingExtraError, match=r"scipy .* pip install 'tsplat\[train\]'"):
        gsplat.compute_lidar_angles_to_columns_map(lidar(0))


def test_lidars_without_tilings_are_in_no_list():
    with pytest.raises(tsplat.ArgumentError, match="lidar: expected a lidar with a tiling, found a RowOffset"):
        gsplat.isect_tiles_lidar(lidar(1, dtype=torch.float32), **angular_boxes(1))


def test_boxes_that_are_not_finite_are_in_no_list():
    params = lidar(1, dtype=torch.float32)
    tiling = gsplat.compute_lidar_tiling(params, max_pts_per_tile=16, n_bins_elevation=4)
    given = gsplat.RowOffsetStructuredSpinningLidarModelParametersExt(params, torch.zeros(36, 160), tiling)
    boxes = angular_boxes(1)
    boxes["means2d"][0, :7] = torch.tensor([torch.nan, torch.inf])
    boxes["means2d"][1, 3, 1] = -torch.inf
    is_finite = boxes["means2d"].isfinite().all(-1, keepdim=True)
    culled = dict(means2d=boxes["means2d"].nan_to_num(0, 0, 0), radii=boxes["radii"] * is_finite)
    for one, other in zip(gsplat.isect_tiles_lidar(given, **boxes), gsplat.isect_tiles_lidar(given, **boxes | culled)):
        assert torch.equal(one, other)


@pytest.mark.parametrize("seed", range(4))
def test_lists_have_the_tiles_of_all_elements_in_boxes(seed):
    """And of the others only those that a box overlaps."""
    params = lidar(seed, rows=20, span=None if seed < 2 else 2.0, dtype=torch.float32)
    tiling = gsplat.compute_lidar_tiling(params, n_bins_elevation=5, max_pts_per_tile=24, resolution_elevation=200)
    given = gsplat.RowOffsetStructuredSpinningLidarModelParametersExt(params, torch.zeros(80, 160), tiling)
    boxes = angular_boxes(seed)
    counts, isect_ids, flatten_ids = gsplat.isect_tiles_lidar(given, **boxes)
    n_columns, n_tiles = tiling.n_bins_azimuth, 5 * tiling.n_bins_azimuth
    assert torch.equal(flatten_ids.long().bincount(minlength=120), counts.flatten().long())
    assert (isect_ids.diff() >= 0).all() and not counts[:, ::7].any()
    keys = boxes["depths"].flatten()[flatten_ids.long()].view(torch.int32)
    assert torch.equal(isect_ids.int(), keys)
    offsets = gsplat.isect_offset_encode(isect_ids, 2, n_columns, 5).flatten().long()
    per_tile = torch.cat([offsets, torch.tensor([len(isect_ids)])]).diff()
    tiles = torch.arange(2 * n_tiles).repeat_interleave(per_tile)
    assert torch.equal(tiles // n_tiles, flatten_ids.long() // 60)
    listed = torch.zeros(120, n_tiles, dtype=torch.bool)
    listed[flatten_ids.long(), tiles % n_tiles] = True
    assert listed.sum() == len(isect_ids)

    def turned(azimuths):
        behind = (-1) ** seed * (azimuths - params.fov_horiz_rad.start)
        return behind.double().remainder(2 * torch.pi)

    azimuths = turned(params.column_azimuths_rad + params.row_azimuth_offsets_rad[:, None]).flatten()
    below = (params.fov_vert_rad.start - params.row_elevations_rad.double())[:, None].expand(20, 40).flatten()
    middle, radii = boxes["means2d"].flatten(0, 1) / 1024, boxes["radii"].flatten(0, 1) / 1024
    across = (azimuths - turned(middle[:, :1]) + torch.pi).remainder(2 * torch.pi) - torch.pi
    along = below - (params.fov_vert_rad.start - middle[:, 1:])
    shown = (radii > 0).all(-1, keepdim=True)
    inside = shown & (across.abs() < radii[:, :1] - 1e-4) & (along.abs() < radii[:, 1:] - 1e-4)
    columns, rows = tiling.tiles_to_elements_map.long().unbind(-1)
    tile_of = torch.empty(800, dtype=torch.int64)
    tile_of[rows * 40 + columns] = torch.arange(n_tiles).repeat_interleave(tiling.tiles_pack_info[:, 1].long())
    assert inside.sum() > 50
    gaussians, elements = inside.nonzero(as_tuple=True)
    assert listed[gaussians, tile_of[elements]].all()
    # The middles of tiles are at most half of a tile away from a box that overlaps them.
    width = params.fov_horiz_rad.span / n_columns
    centers = (torch.arange(n_columns) + 0.5) * width
    apart = (centers - turned(middle[:, :1]) + torch.pi).remainder(2 * torch.pi) - torch.pi
    near = (apart.abs() <= radii[:, :1] + 0.5 * width + 1e-4).repeat(1, 5)
    assert near[listed].all() and not listed.all()


def test_lists_of_packed_boxes_are_those_of_dense_ones():
    params = lidar(1, dtype=torch.float32)
    tiling = gsplat.compute_lidar_tiling(params, max_pts_per_tile=16, n_bins_elevation=4)
    given = gsplat.RowOffsetStructuredSpinningLidarModelParametersExt(params, torch.zeros(36, 160), tiling)
    boxes = angular_boxes(1)
    counts, isect_ids, flatten_ids = gsplat.isect_tiles_lidar(given, **boxes)
    packed = {name: tensor.flatten(0, 1) for name, tensor in boxes.items()} | dict(packed=True, n_images=2)
    images = torch.arange(2).repeat_interleave(60)
    found = gsplat.isect_tiles_lidar(given, **packed, image_ids=images)
    for one, other in zip(found, (counts.flatten(), isect_ids, flatten_ids)):
        assert torch.equal(one, other)
    unsorted = gsplat.isect_tiles_lidar(given, **boxes, sort=False)
    assert (unsorted[2].diff() >= 0).all()
    of_tiles = (unsorted[1] >> 32)[unsorted[2] == unsorted[2].mode().values]
    assert len(of_tiles) > 4 and (of_tiles.diff() > 0).all()
    assert torch.equal(unsorted[1].sort().values, isect_ids)
    with pytest.raises(tsplat.ArgumentError, match="image_ids: required with n_images"):
        gsplat.isect_tiles_lidar(given, **packed)
    with pytest.raises(tsplat.UnsupportedError, match="segmented sort is not supported for packed inputs"):
        gsplat.isect_tiles_lidar(given, **packed, image_ids=images, segmented=True)


def test_losses():
    generator = torch.Generator().manual_seed(0)
    pred, target = torch.rand(2, 3, 4, 1, generator=generator, dtype=torch.float64)
    mask = target > 0.3
    for loss in (losses.lidar_distance_loss, losses.lidar_intensity_loss):
        torch.testing.assert_close(loss(pred, target), (pred - target).abs().mean())
        torch.testing.assert_close(loss(pred, target, mask), (pred - target)[mask].abs().mean())
        torch.testing.assert_close(loss(pred, target, mask, "mse"), (pred - target)[mask].square().mean())
        assert loss(pred, target, loss_fn=lambda a, b: 2 * (a - b).abs()) == 2 * loss(pred, target)
        assert loss(pred, target, torch.zeros_like(mask)) == 0
    dropped = target > 0.6
    expected = -torch.where(dropped, pred.sigmoid().log(), (-pred).sigmoid().log()).mean()
    torch.testing.assert_close(gsplat.lidar_raydrop_loss(pred, dropped), expected)
    expected = -torch.where(mask, (1 - pred).log(), pred.log()).mean()
    torch.testing.assert_close(gsplat.lidar_background_loss(pred, mask), expected)
    clipped = gsplat.lidar_background_loss(torch.ones(4), torch.ones(4, dtype=torch.bool), loss_fn="bce_clipped")
    torch.testing.assert_close(clipped, -torch.tensor(1e-3).log(), rtol=1e-4, atol=0)
    for name in losses.PER_ELEMENT:
        leaf = pred.clone().requires_grad_()
        losses.lidar_distance_loss(leaf, target, mask, name).backward()
        assert leaf.grad[mask].all() and not leaf.grad[~mask].any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(gt_distance=torch.zeros(5)), r"gt_distance: expected the shape \[4\] as pred_distance, found \[5\]"),
        (dict(valid_mask=torch.ones(5)), r"valid_mask: expected the shape \[4\] as pred_distance, found \[5\]"),
        (dict(loss_fn="l3"), "loss_fn: expected one of 'l1', 'mse', .*, or a function, found 'l3'"),
        (dict(loss_fn=functional.l1_loss), r"loss_fn: expected a per-element loss \[4\], found \[\]"),
    ],
)
def test_losses_of_what_does_not_fit_are_refused(arguments, message):
    with pytest.raises(tsplat.ArgumentError, match=message):
        losses.lidar_distance_loss(**dict(pred_distance=torch.zeros(4), gt_distance=torch.zeros(4)) | arguments)
