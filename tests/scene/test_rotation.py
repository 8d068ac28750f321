"""Rotated models: against images of rotated cameras, there and back, up directions."""

import dataclasses

import pytest
import torch

from tests.support.closeness import assert_exact
from tests.support.model_files import random_gaussians
from tests.support.training_scenes import make_gaussians
from tsplat import ArgumentError
from tsplat.reference import covariances, quaternion_to_rotation, spherical_harmonics
from tsplat.scene.rotation import rotate_gaussians, rotate_upright

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


@pytest.mark.parametrize(
    "up", [(0, -1, 0), (0, 2, 0), (0, 0, 1), (0, 0, -1), (3, 0, 0), (-0.5, 0.2, 0.7), (0.3, -0.5, -0.7)]
)
def test_up_becomes_minus_y(up):
    gaussians = make_gaussians()
    direction = torch.tensor(up, dtype=torch.float32).expand(len(gaussians), 3)
    rotated = rotate_upright(dataclasses.replace(gaussians, means=direction), up).means
    expected = torch.tensor([0.0, -float(direction[0].norm()), 0.0])
    assert torch.allclose(rotated, expected.expand_as(rotated), atol=1e-6)


def test_right_stays_right_where_y_or_z_is_up():
    right = torch.tensor([[1.0, 0, 0]])
    gaussians = dataclasses.replace(random_gaussians(n=1), means=right)
    for up in ((0, -1, 0), (0, 1, 0), (0, 0, 1), (0, 0, -1)):
        assert torch.allclose(rotate_upright(gaussians, up).means, right, atol=1e-6)


@pytest.mark.parametrize("up", [(0, 0, 0), (0, float("nan"), 0)])
def test_invalid_up(up):
    with pytest.raises(ArgumentError, match="up: expected a finite direction that is not zero"):
        rotate_upright(random_gaussians(n=1), up)
