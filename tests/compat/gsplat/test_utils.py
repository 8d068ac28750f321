"""Rotations, logarithmic quantization and PLY files."""

import math

import pytest
import torch

import tsplat
from tests.support.closeness import assert_exact
from tests.support.model_files import random_gaussians
from tsplat.compat.gsplat.utils import (
    depth_to_normal,
    depth_to_points,
    get_projection_matrix,
    inverse_log_transform,
    log_transform,
    normalized_quat_to_rotmat,
    save_ply,
)
from tsplat.scene import read_ply
from tsplat.strategies.operations import rotate


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_rotation_matrices_rotate_as_quaternions():
    quats, vectors = torch.nn.functional.normalize(random(2, 6, 4), dim=-1), random(2, 6, 3, seed=1)
    matrices = normalized_quat_to_rotmat(quats)
    assert matrices.shape == (2, 6, 3, 3)
    expected = rotate(quats.flatten(0, 1), vectors.flatten(0, 1)).view(2, 6, 3)
    assert_exact("rotated", (matrices @ vectors[..., None])[..., 0], expected)


def test_rotation_matrices_gradients():
    assert torch.autograd.gradcheck(normalized_quat_to_rotmat, (random(3, 4).requires_grad_(),))


def test_log_transforms_match_python():
    x = torch.cat([3 * random(20), torch.tensor([0.0, 1e-9, -1e-9, 40.0])])
    expected = [math.copysign(math.log1p(abs(v)), v) for v in x.tolist()]
    assert_exact("log", log_transform(x), torch.tensor(expected, dtype=torch.float64))
    assert_exact("inverse", inverse_log_transform(log_transform(x)), x)
    inputs = (3 * random(20)).requires_grad_()
    assert torch.autograd.gradcheck(log_transform, (inputs,))
    assert torch.autograd.gradcheck(inverse_log_transform, (inputs,))


def test_projection_matrix_maps_the_frustum_to_clip_space():
    near, far, fov_x, fov_y = 0.1, 20.0, 1.2, 0.7
    matrix = get_projection_matrix(near, far, fov_x, fov_y, device="cpu").double()
    for z, depth in ((near, 0.0), (far, 1.0)):
        for sign in (-1, 1):
            corner = torch.tensor([sign * z * math.tan(fov_x / 2), sign * z * math.tan(fov_y / 2), z, 1]).double()
            clip = matrix @ corner
            # The matrix is fp32.
            assert (clip[:3] / clip[3]).tolist() == pytest.approx([sign, sign, depth], abs=1e-5)
            assert float(clip[3]) == pytest.approx(z, rel=1e-6)


def test_depth_maps_are_those_of_tsplat():
    assert depth_to_points is tsplat.depth_to_points
    assert depth_to_normal is tsplat.depth_to_normals


def test_save_ply_writes_coefficients_or_colors(tmp_path):
    gaussians = random_gaussians(n=7, degree=2)
    names = dict(means="means", log_scales="scales", quats="quats", opacity_logits="opacities", sh0="sh0", shN="shN")
    splats = {names[name]: tensor for name, tensor in gaussians.tensors().items()}
    save_ply(splats, str(tmp_path / "model.ply"))
    found = read_ply(tmp_path / "model.ply")
    for name, tensor in gaussians.tensors().items():
        own = getattr(found, name)[:, : tensor.shape[1]] if name == "shN" else getattr(found, name)
        assert torch.equal(own, tensor), name
    colors = torch.rand(7, 3, generator=torch.Generator().manual_seed(0))
    save_ply(splats, str(tmp_path / "colors.ply"), colors)
    found = read_ply(tmp_path / "colors.ply")
    assert (0.5 + found.sh0[:, 0] / math.sqrt(4 * math.pi) - colors).abs().max() < 1e-6
    assert not found.shN.any()
