"""Moved models: against images of moved cameras, there and back, up directions."""

import dataclasses

import pytest
import torch

from tests.support.closeness import assert_exact
from tests.support.model_files import random_gaussians
from tests.support.slow import slow_after
from tests.support.training_scenes import make_gaussians, make_views
from tsplat import ArgumentError
from tsplat.reference import covariances, quaternion_to_rotation, spherical_harmonics
from tsplat.rendering import render
from tsplat.scene import rotate_gaussians, transform_gaussians
from tsplat.scene.cameras import move_camera
from tsplat.scene.rotation import axis_rotations, positive_quaternions, rotation_matrix, similarity, upright

QUAT = (0.4, -1.1, 0.3, 0.7)


@pytest.mark.parametrize("degree", [0, 1, 2, 3, 4])
def test_rotated_models_have_rotated_shapes_and_colors(degree):
    gaussians = random_gaussians(n=30, degree=degree, antialiased=True).map(torch.Tensor.double)
    rotated = rotate_gaussians(gaussians, QUAT)
    R = quaternion_to_rotation(torch.tensor(QUAT, dtype=torch.float64))
    assert_exact("means", rotated.means, gaussians.means @ R.T)
    shapes = covariances(gaussians.quats, gaussians.scales)
    assert_exact("covariances", covariances(rotated.quats, rotated.scales), R @ shapes @ R.T)
    directions = torch.randn(30, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    before = spherical_harmonics(degree, directions, gaussians.sh_coeffs(degree))
    assert_exact("colors", spherical_harmonics(degree, directions @ R.T, rotated.sh_coeffs(degree)), before)
    assert rotated.antialiased


def test_rotations_there_and_back():
    gaussians = random_gaussians(n=50, degree=3)
    w, *xyz = QUAT
    back = rotate_gaussians(rotate_gaussians(gaussians, QUAT), (w, *(-value for value in xyz)))
    for name, tensor in gaussians.tensors().items():
        assert (getattr(back, name) - tensor).abs().max() < 1e-5, name


def random_similarity(seed, mirrored=False, scale=None):
    generator = torch.Generator().manual_seed(seed)
    angles = (360 * torch.rand(3, generator=generator)).tolist()
    rotation = axis_rotations(angles) * (-1 if mirrored else 1)
    shift = torch.randn(3, generator=generator, dtype=torch.float64).tolist()
    return similarity(rotation, shift, 0.2 + 3 * float(torch.rand((), generator=generator)))


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("antialiased", [False, True])
@pytest.mark.parametrize("seed", slow_after(1, range(4)))
def test_a_moved_camera_sees_the_same_image(seed, antialiased, mirrored):
    gaussians = dataclasses.replace(make_gaussians(sh_degree=3), antialiased=antialiased)
    gaussians.shN[:] = 0.3 * torch.randn(gaussians.shN.shape, generator=torch.Generator().manual_seed(seed))
    matrix = random_similarity(seed, mirrored)
    moved = transform_gaussians(gaussians, matrix)
    for view in make_views(gaussians, n=3):
        one, other = (
            render(model, camera, backend="torch")
            for model, camera in ((gaussians, view.camera), (moved, move_camera(view.camera, matrix)))
        )
        assert one.std() > 0.05
        assert (one - other).abs().max() < 1e-4


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_a_transform_and_its_inverse_cancel(seed, mirrored):
    gaussians, matrix = random_gaussians(n=200, degree=3), random_similarity(seed, mirrored)
    back = transform_gaussians(transform_gaussians(gaussians, matrix[:3]), torch.linalg.inv(matrix).float())
    assert (covariances(back.quats, back.scales) - covariances(gaussians.quats, gaussians.scales)).abs().max() < 1e-5
    for name in ("means", "log_scales", "opacity_logits", "sh0", "shN"):
        assert (getattr(back, name) - getattr(gaussians, name)).abs().max() < 1e-5, name


def test_a_translation_keeps_rotations_and_colors():
    gaussians = random_gaussians(n=20, degree=2)
    moved = transform_gaussians(gaussians, similarity(translation=(1, 2, 3), scale=2))
    assert torch.equal(moved.quats, gaussians.quats)
    assert torch.equal(moved.shN, gaussians.shN)
    assert torch.allclose(moved.means, 2 * gaussians.means + torch.tensor([1.0, 2, 3]), atol=1e-6)


def test_rotations_are_about_x_then_y_then_z():
    assert torch.allclose(
        axis_rotations((90, 0, 90)) @ torch.tensor([0.0, 1, 0]).double(), torch.tensor([0.0, 0, 1]).double()
    )
    assert torch.allclose(
        axis_rotations((0, 90, 90)) @ torch.tensor([0.0, 0, 1]).double(), torch.tensor([0.0, 1, 0]).double()
    )


def test_quaternions_of_rotations():
    quats = torch.nn.functional.normalize(torch.randn(500, 4, generator=torch.Generator().manual_seed(0)), dim=-1)
    quats[:10] = torch.eye(4)[torch.arange(10) % 4]
    quats[10:20, 0] = 1e-9
    quats = torch.nn.functional.normalize(quats.double(), dim=-1)
    found = positive_quaternions(torch.stack([rotation_matrix(quat) for quat in quats.tolist()]))
    assert torch.minimum((found - quats).norm(dim=-1), (found + quats).norm(dim=-1)).max() < 1e-7


@pytest.mark.parametrize(
    ("matrix", "problem"),
    [
        (torch.eye(3), r"found \[3, 3\]"),
        (torch.zeros(4, 4), "found"),
        (torch.diag(torch.tensor([1.0, 1, 2, 1])), "which stretches by 2, 1, 1"),
        (torch.full((4, 4), torch.nan), "found"),
        (torch.eye(4) + torch.eye(4)[[3, 0, 1, 2]], "found"),
    ],
)
def test_invalid_matrices(matrix, problem):
    with pytest.raises(ArgumentError, match=f"matrix: expected a rotation or reflection .*{problem}"):
        transform_gaussians(random_gaussians(), matrix)


@pytest.mark.parametrize(
    "up", [(0, -1, 0), (0, 2, 0), (0, 0, 1), (0, 0, -1), (3, 0, 0), (-0.5, 0.2, 0.7), (0.3, -0.5, -0.7)]
)
def test_up_becomes_minus_y(up):
    gaussians = make_gaussians()
    direction = torch.tensor(up, dtype=torch.float32).expand(len(gaussians), 3)
    rotated = transform_gaussians(dataclasses.replace(gaussians, means=direction), upright(up)).means
    expected = torch.tensor([0.0, -float(direction[0].norm()), 0.0])
    assert torch.allclose(rotated, expected.expand_as(rotated), atol=1e-6)


def test_right_stays_right_where_y_or_z_is_up():
    right = torch.tensor([[1.0, 0, 0]])
    gaussians = dataclasses.replace(random_gaussians(n=1), means=right)
    for up in ((0, -1, 0), (0, 1, 0), (0, 0, 1), (0, 0, -1)):
        assert torch.allclose(transform_gaussians(gaussians, upright(up)).means, right, atol=1e-6)


@pytest.mark.parametrize("up", [(0, 0, 0), (0, float("nan"), 0)])
def test_invalid_up(up):
    with pytest.raises(ArgumentError, match="up: expected a finite direction that is not zero"):
        upright(up)


def test_moved_2d_gaussians_stay_flat():
    flat = random_gaussians(n=9).as_surfels()
    moved = transform_gaussians(flat, similarity(rotation_matrix((0.6, 0.0, -0.8, 0.0)), scale=3.0))
    assert moved.surfels
    assert torch.equal(moved.log_scales[:, 2], flat.log_scales[:, 2])
    assert torch.allclose(moved.scales[:, :2], 3 * flat.scales[:, :2])


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (similarity(scale=1e-45), "wide, which torch.float32 cannot represent"),
        (similarity(scale=1e39), "coordinates exceed 3.4e"),
        (similarity(translation=(1e39, 0, 0)), "coordinates exceed 3.4e"),
        (similarity(translation=(1e30, 1e30, 1e30)), "wide, which torch.float32 cannot represent there"),
    ],
)
def test_models_that_leave_the_range_of_floats_are_errors(matrix, words):
    with pytest.raises(ArgumentError, match=words):
        transform_gaussians(random_gaussians(20), matrix)


@pytest.mark.parametrize("scale", [1e-25, 1e-6, 1e6, 1e25])
def test_models_within_the_range_of_floats_are_scaled(scale):
    gaussians = random_gaussians(20)
    gaussians.means[0] = 0
    gaussians.log_scales[1] = -torch.inf
    moved = transform_gaussians(gaussians, similarity(scale=scale))
    torch.testing.assert_close(moved.means.double() / scale, gaussians.means.double())
    assert len(transform_gaussians(gaussians.select(slice(0, 1)), similarity(scale=1e-6))) == 1


def test_scales_that_leave_the_range_of_floats_are_errors():
    gaussians = random_gaussians(20)
    one = gaussians.select(slice(0, 1)).map(torch.zeros_like)
    with pytest.raises(ArgumentError, match="most scales times 1e-45 leave the range"):
        transform_gaussians(one, similarity(scale=1e-45))
