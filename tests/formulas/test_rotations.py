"""Rotations as quaternions and matrices against rotations of vectors, and against each other."""

import pytest
import torch

from tsplat.formulas.rotations import quaternions, rotation_matrices, rotation_rows


def unit_quaternions(n=500):
    quats = torch.randn(n, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    # Half turns about the axes, and no turn: three entries are zero.
    quats[:4] = torch.eye(4)
    return torch.nn.functional.normalize(quats, dim=-1)


def test_matrices_rotate_vectors():
    quats = unit_quaternions()
    vectors = torch.randn(500, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    w, v = quats[:, :1], quats[:, 1:]
    # Rodrigues' formula, of the half angle.
    expected = vectors + 2 * (w * v.cross(vectors, -1) + v.cross(v.cross(vectors, -1), -1))
    matrices = rotation_matrices(quats)
    torch.testing.assert_close((matrices @ vectors[..., None])[..., 0], expected)
    assert all(torch.equal(matrices[:, i, j], rotation_rows(quats)[i][j]) for i in range(3) for j in range(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quaternions_of_matrices(dtype):
    quats = unit_quaternions().to(dtype)
    found = quaternions(rotation_matrices(quats.view(50, 10, 4)))
    assert found.dtype == dtype
    found = found.view(-1, 4)
    torch.testing.assert_close(found * (found * quats).sum(-1, keepdim=True).sign(), quats)


def test_matrices_are_differentiable():
    assert torch.autograd.gradcheck(rotation_matrices, unit_quaternions(6).requires_grad_())
