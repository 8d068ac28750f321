"""Fusion of exact depth frames: distances of a plane and of a sphere, which blocks a frame reaches, memory."""

import dataclasses
import math

import pytest
import torch

from tests.support.shapes import cameras_on_sphere
from tsplat import ArgumentError, MemoryBudgetError
from tsplat.scene import Camera, intrinsics
from tsplat.scene.meshes.depth_frames import DepthFrame, _weights
from tsplat.scene.meshes.volume import Volume, make_grid
from tsplat.support.free_memory import limit_memory


def frame_of(camera, depths, color=0.5):
    size = camera.height, camera.width
    return DepthFrame(camera, depths, torch.full((*size, 3), color), torch.ones(size))


def sphere_frame(camera):
    """The exact z of a unit sphere around the origin; infinity beside it."""
    K, center = camera.K, camera.viewmat[:3, 3]
    y, x = torch.meshgrid(torch.arange(camera.height) + 0.5, torch.arange(camera.width) + 0.5, indexing="ij")
    rays = torch.stack([(x - K[0, 2]) / K[0, 0], (y - K[1, 2]) / K[1, 1], torch.ones_like(x)], -1)
    along, square = (rays * center).sum(-1), (rays * rays).sum(-1)
    root = along**2 - square * (center @ center - 1)
    depths = torch.where(root > 0, (along - root.clamp_min(0).sqrt()) / square, math.inf)
    return dataclasses.replace(frame_of(camera, depths), weights=_weights(camera, depths))


def positions(grid):
    axes = [o + grid.voxel * torch.arange(n, dtype=torch.float64) for o, n in zip(grid.origin, grid.shape, strict=True)]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)


def test_a_wall_in_front_of_a_wide_camera_is_flat():
    """Depth is z, not the distance along rays, which is 1.7 times as long in the corners here."""
    camera = Camera(torch.eye(4), intrinsics(60, 60, fov=90), 60, 60)
    grid = make_grid((-3, -3, 3.6), (3, 3, 4.4), 0.1, 0)
    volume = Volume(grid, 0.4, torch.device("cpu"))
    volume.fuse(frame_of(camera, torch.full((60, 60), 4.0)))
    distances, seen = map(torch.from_numpy, volume.distances())
    expected = ((4 - positions(grid)[..., 2]) / 0.4).float()
    assert seen.float().mean() > 0.85
    assert torch.allclose(distances[seen], expected[seen].clamp(-1, 1), atol=1e-4)


def test_distances_of_a_sphere():
    grid = make_grid((-1.2,) * 3, (1.2,) * 3, 0.1, 0)
    volume = Volume(grid, 0.4, torch.device("cpu"))
    for camera in cameras_on_sphere(16, 80):
        volume.fuse(sphere_frame(camera))
    distances, seen = map(torch.from_numpy, volume.distances())
    exact = positions(grid).norm(dim=-1) - 1
    near = exact.abs() < 0.1
    assert seen[near].all()
    assert (distances[exact > 0.02] > 0).all()
    assert (distances[seen & (exact < -0.02)] < 0).all()
    assert (0.4 * distances - exact)[near].abs().mean() < 0.1
    assert not seen[exact < -0.6].any()
    colors = volume.colors_at(torch.nn.functional.normalize(torch.randn(50, 3, dtype=torch.float64), dim=1))
    assert torch.allclose(colors, torch.full_like(colors, 0.5), atol=1e-4)


def test_blocks_that_are_left_out_are_those_that_nothing_is_added_to(monkeypatch):
    monkeypatch.setattr("tsplat.scene.meshes.volume.BLOCK", 8)
    grid = make_grid((-2, -2, -2), (2, 2, 2), 0.1, 0)
    camera = cameras_on_sphere(5, 40, distance=2.5, fov=35)[1]
    every, found = (Volume(grid, 0.3, torch.device("cpu")) for _ in range(2))
    monkeypatch.setattr(every, "_find_blocks", lambda frame: torch.ones(len(every._blocks), dtype=torch.bool))
    frame = sphere_frame(camera)
    frame = frame_of(camera, torch.where(frame.depths < math.inf, frame.depths, 0))
    every.fuse(frame)
    found.fuse(frame)
    assert torch.equal(every.sums, found.sums)
    assert 0 < int(found._find_blocks(frame).sum()) < len(found._blocks)


def test_steps_of_depth_are_not_bridged():
    camera = Camera(torch.eye(4), intrinsics(40, 40, fov=50), 40, 40)
    depths = torch.full((40, 40), 3.0)
    depths[:, 20:] = 4.0
    grid = make_grid((-0.5, -0.5, 2.5), (0.5, 0.5, 4.5), 0.05, 0)
    volume = Volume(grid, 0.2, torch.device("cpu"))
    volume.fuse(frame_of(camera, depths))
    distances, seen = map(torch.from_numpy, volume.distances())
    middle = (positions(grid)[..., 2] - 3.5).abs() < 0.2
    left = positions(grid)[..., 0] < 0
    assert (distances[middle & ~left] == 1).all() and seen[middle & ~left].all()
    assert not seen[middle & left].any()


def test_grids_need_memory_and_a_surface_larger_than_a_voxel(monkeypatch):
    grid = make_grid((0, 0, 0), (1, 2, 4), 0.5, 2)
    assert (grid.shape, grid.n_voxels) == ((7, 9, 13), 819)
    assert torch.allclose(positions(grid)[[0, -1], [0, -1], [0, -1]].mean(0), torch.tensor([0.5, 1, 2]).double())
    with pytest.raises(ArgumentError, match="voxel: expected less than the extent of the surface, 1 × 2 × 4, found 4"):
        make_grid((0, 0, 0), (1, 2, 4), 4, 2)
    for free, advice in ((10_000, "voxels of 2 fit; or choose smaller bounds"), (5_000, "choose smaller bounds")):
        monkeypatch.setattr("tsplat.scene.meshes.volume.available_bytes", lambda free=free: free)
        with pytest.raises(MemoryBudgetError, match=rf"7×9×13 voxels of 0\.5 need 3\.11e-05 GB .* are free; {advice}$"):
            grid.check_memory(torch.device("cpu"))
    with pytest.raises(MemoryBudgetError, match=r"are free; choose smaller bounds$"):
        make_grid((0, 0, 0), (1, 2, 4), 1e-300, 2).check_memory(torch.device("cpu"))


@pytest.mark.parametrize("n_bytes", [20_000, 50_000, 10**6, 10**8])
def test_voxels_that_fit_are_told(n_bytes):
    low, high = (0, 0, 0), (1, 2, 4)
    fine = make_grid(low, high, 0.0103, 2)
    voxel = fine.fitting_voxel(n_bytes)
    assert make_grid(low, high, voxel, 2).n_bytes <= n_bytes < make_grid(low, high, 0.75 * voxel, 2).n_bytes
    with limit_memory(n_bytes), pytest.raises(MemoryBudgetError, match=f"may be used; voxels of {voxel:.4g} fit; or"):
        fine.check_memory(torch.device("cpu"))
