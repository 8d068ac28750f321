"""Meshes of a sphere of Gaussians: distances, normals, closedness, colors; bounds, components, decimation, errors."""

import dataclasses
import math
import sys

import pytest
import torch

from tests.support.shapes import cameras_on_sphere, edge_counts, fibonacci_sphere, signed_volume, sphere_of_gaussians
from tsplat import ArgumentError, MemoryBudgetError
from tsplat.errors import MissingExtraError
from tsplat.scene import Gaussians, transform_gaussians
from tsplat.scene.gaussians import concatenate
from tsplat.scene.meshes import extract_mesh
from tsplat.scene.rotation import similarity

pytest.importorskip("skimage", reason="needs scikit-image")
from scipy.spatial import cKDTree

OPTIONS = dict(resolution=24, depth="expected")


@pytest.fixture(scope="module")
def cameras():
    return cameras_on_sphere(14, 64)


@pytest.mark.parametrize(
    ("surfels", "depth"),
    [
        (False, "expected"),
        pytest.param(False, "median", marks=pytest.mark.slow),
        (True, "median"),
        pytest.param(True, "expected", marks=pytest.mark.slow),
    ],
)
def test_a_sphere_is_closed_and_where_it_is(surfels, depth):
    told, cameras = [], cameras_on_sphere(14, 80)
    mesh = extract_mesh(sphere_of_gaussians(surfels=surfels), cameras, resolution=32, depth=depth, tell=told.append)
    assert (edge_counts(mesh) == 2).all()
    radii = mesh.vertices.norm(dim=1)
    assert (radii - 1).abs().mean() < 0.02 and (radii - 1).abs().max() < 0.12  # extent 2
    truth = fibonacci_sphere(500)
    assert cKDTree(mesh.vertices.numpy()).query(truth.numpy())[0].mean() < 0.7 * mesh.voxel
    normals = (mesh.normals * mesh.vertices).sum(1) / radii
    assert normals.mean() > 0.97
    assert 0.9 < signed_volume(mesh) / (4 * math.pi / 3) < 1.1
    expected = (mesh.vertices / radii[:, None] + 1) / 2
    assert (mesh.colors - expected).abs().mean() < 0.05
    assert "fusing 14 views into" in told[0] and "GB of memory" in told[0]


def test_what_no_camera_sees_is_open():
    mesh = extract_mesh(sphere_of_gaussians(), cameras_on_sphere(14, 64)[:5], **OPTIONS)
    counts = edge_counts(mesh)
    assert (counts <= 2).all() and (counts == 1).any()
    assert mesh.vertices[:, 1].min() > -0.9  # the cameras are above


def test_the_unit_and_the_place_of_a_scene_do_not_matter(cameras):
    """Coordinates of thousands with a unit of a hundredth."""
    gaussians = sphere_of_gaussians(600)
    matrix = similarity(translation=(30.0, -20.0, 10.0), scale=0.01)
    moved = transform_gaussians(gaussians, matrix)
    there = cameras_on_sphere(14, 64, distance=0.03, center=(30.0, -20.0, 10.0))
    one = extract_mesh(gaussians, cameras, **OPTIONS)
    other = extract_mesh(moved, there, **OPTIONS)
    assert other.voxel == pytest.approx(0.01 * one.voxel, rel=0.02)
    radii = (other.vertices - torch.tensor([30.0, -20.0, 10.0]).double()).norm(dim=1)
    assert (radii - 0.01).abs().max() < 0.0015


def test_bounds_leave_out_what_is_far_behind(cameras):
    far = sphere_of_gaussians(300)
    far = dataclasses.replace(far, means=400 * far.means, log_scales=far.log_scales + math.log(400))
    mesh = extract_mesh(concatenate([sphere_of_gaussians(), far]), cameras, **OPTIONS)
    assert mesh.voxel < 0.3 and mesh.vertices.abs().max() < 6
    box = ((-1.2, -1.2, -1.2), (1.2, 0.0, 1.2))
    half = extract_mesh(sphere_of_gaussians(), cameras, bounds=box, voxel=0.1, depth="expected")
    assert half.voxel == 0.1
    assert half.vertices[:, 1].max() < 0.0 + 0.1 * 6 and half.vertices[:, 1].min() < -0.9


@pytest.mark.slow
def test_components_of_the_largest_area_are_kept(cameras):
    """A sphere, a moon, and a speck, which is less than 1 % of the area."""
    sphere = sphere_of_gaussians(800)
    moon, speck = (
        transform_gaussians(sphere_of_gaussians(n), similarity(translation=place, scale=scale))
        for n, place, scale in ((300, (1.8, 0.0, 0.0), 0.4), (60, (0.0, -1.7, 0.0), 0.04))
    )
    model = concatenate([sphere, moon, speck])
    wide = cameras_on_sphere(14, 110, distance=4.0, fov=60)
    options = dict(bounds=((-1.3, -2, -1.3), (2.4, 1.3, 1.3)), voxel=0.06, depth="expected")
    default, one, three = (extract_mesh(model, wide, components=n, **options) for n in (None, 1, 3))
    assert default.vertices[:, 0].max() > 2 and default.vertices[:, 1].min() > -1.3
    assert one.vertices[:, 0].max() < 1.3
    assert len(three.faces) > len(default.faces) > len(one.faces)


def test_decimation_keeps_the_shape_and_colors(cameras):
    pytest.importorskip("fast_simplification", reason="needs fast-simplification")
    mesh = extract_mesh(sphere_of_gaussians(), cameras, faces=600, **OPTIONS)
    assert 500 <= len(mesh.faces) <= 600
    radii = mesh.vertices.norm(dim=1)
    assert (radii - 1).abs().max() < 0.1
    assert (mesh.colors - (mesh.vertices / radii[:, None] + 1) / 2).abs().mean() < 0.06


def test_repeated_calls_give_equal_bits(cameras):
    gaussians = sphere_of_gaussians(300)
    first, second = (extract_mesh(gaussians, cameras[:5], resolution=40, depth="expected") for _ in range(2))
    assert torch.equal(first.vertices, second.vertices) and torch.equal(first.colors, second.colors)
    assert torch.equal(first.faces, second.faces)


BALL = sphere_of_gaussians(200)
INVALID = dataclasses.replace(BALL, means=BALL.means * math.nan)


@pytest.mark.parametrize(
    ("gaussians", "options", "message"),
    [
        (BALL.select(slice(0)), {}, "gaussians: expected at least one that is valid, found none"),
        (INVALID, {}, "gaussians: expected at least one that is valid, found none"),
        (sphere_of_gaussians(200, opacity=0.05), {}, "no camera shows a surface, where alpha is at least 0.5"),
        (BALL, dict(bounds=((5, 5, 5), (6, 6, 6))), "bounds: the surface of no view crosses them"),
        (BALL, dict(voxel=5.0), "voxel: expected less than the extent of the surface"),
        (BALL, dict(voxel=0.0), "voxel: expected a positive number"),
        (BALL, dict(voxel=0.1, resolution=5), "resolution: not with voxel"),
        (BALL, dict(resolution=0), "resolution: expected"),
        (BALL, dict(components=0), "components: expected"),
        (BALL, dict(truncation=1.0), "truncation: expected a number of at least 2"),
        (BALL, dict(bounds=((0, 0, 0), (1, -1, 1))), "bounds: expected two corners"),
        (BALL, dict(depth="mean"), "depth: expected"),
    ],
)
def test_what_has_no_surface_is_an_error(gaussians, options, message):
    with pytest.raises(ArgumentError, match=message):
        extract_mesh(gaussians, cameras_on_sphere(3, 32), **{"depth": "expected", **options})


def test_a_single_gaussian_without_cameras_and_too_many_voxels():
    one = Gaussians(**{name: tensor[:1] for name, tensor in BALL.tensors().items()})
    with pytest.raises(ArgumentError, match="cameras: expected at least one"):
        extract_mesh(one, [])
    with pytest.raises(MemoryBudgetError, match=r"voxels of .* need .* of memory"):
        extract_mesh(BALL, cameras_on_sphere(2, 32), voxel=1e-6, depth="expected")


def test_the_extra_is_named_if_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage", None)
    with pytest.raises(MissingExtraError, match=r"scikit-image is not installed; run: pip install 'tsplat\[mesh\]'"):
        extract_mesh(BALL, cameras_on_sphere(2, 32))
