"""Gaussians in the frame of a camera and on its image plane."""

import math

import pytest
import torch

from tests.support import scenes
from tests.support.closeness import assert_exact
from tsplat import ArgumentError, UnsupportedError, fully_fused_projection
from tsplat.compat.gsplat import proj, quat_scale_to_covar_preci, world_to_cam
from tsplat.compat.gsplat.cuda._torch_impl import (
    _fisheye_proj,
    _fully_fused_projection,
    _ortho_proj,
    _quat_scale_to_matrix,
    _quat_to_rotmat,
)
from tsplat.compat.gsplat.cuda._wrapper import persp_proj
from tsplat.compat.gsplat.utils import normalized_quat_to_rotmat


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation_of(quat):
    """The rotation matrix of a quaternion, from the angle and the axis, in Python floats."""
    norm = math.sqrt(sum(x * x for x in quat))
    w, *v = (x / norm for x in quat)
    sine = math.sqrt(sum(x * x for x in v))
    angle, (x, y, z) = 2 * math.atan2(sine, w), (a / sine for a in v)
    c, s = math.cos(angle), math.sin(angle)
    matrix = [
        [c + x * x * (1 - c), x * y * (1 - c) - z * s, x * z * (1 - c) + y * s],
        [y * x * (1 - c) + z * s, c + y * y * (1 - c), y * z * (1 - c) - x * s],
        [z * x * (1 - c) - y * s, z * y * (1 - c) + x * s, c + z * z * (1 - c)],
    ]
    return torch.tensor(matrix, dtype=torch.float64)


def test_covariance_and_precision_match_rotated_diagonals():
    quats, scales = random(2, 5, 4), random(2, 5, 3, seed=1).exp()
    rotations = torch.stack([rotation_of(q) for q in quats.reshape(-1, 4).tolist()]).view(2, 5, 3, 3)
    expected = [rotations @ torch.diag_embed(scales**power) @ rotations.mT for power in (2, -2)]
    for name, found, full in zip(("covars", "precis"), quat_scale_to_covar_preci(quats, scales), expected):
        assert_exact(name, found, full)
    upper = quat_scale_to_covar_preci(quats, scales, triu=True)
    for name, found, full in zip(("covars", "precis"), upper, expected):
        assert_exact(name, found, torch.stack([full[..., i, j] for i in range(3) for j in range(i, 3)], -1))
    assert quat_scale_to_covar_preci(quats, scales, compute_covar=False)[0] is None
    assert quat_scale_to_covar_preci(quats, scales, compute_preci=False)[1] is None
    assert_exact("rotations", _quat_to_rotmat(quats), rotations)
    assert_exact("matrices", _quat_scale_to_matrix(quats, scales), rotations @ torch.diag_embed(scales))
    unit = torch.nn.functional.normalize(quats, dim=-1)
    assert_exact("rotations", normalized_quat_to_rotmat(unit), rotations)


@pytest.mark.parametrize("triu", [False, True])
def test_covariance_and_precision_gradients(triu):
    quats, scales = random(3, 4).requires_grad_(), random(3, 3, seed=1).exp().requires_grad_()
    assert torch.autograd.gradcheck(lambda q, s: quat_scale_to_covar_preci(q, s, triu=triu), (quats, scales))


def test_rotation_gradients():
    quats, scales = random(3, 4).requires_grad_(), random(3, 3, seed=1).exp().requires_grad_()
    assert torch.autograd.gradcheck(_quat_to_rotmat, quats)
    assert torch.autograd.gradcheck(_quat_scale_to_matrix, (quats, scales))


def cameras(batch=()):
    """Gaussians [*batch, 4, ...] and view matrices [*batch, 2, 4, 4]."""
    root = random(*batch, 4, 3, 3, seed=2)
    viewmats = torch.eye(4, dtype=torch.float64).expand(*batch, 2, 4, 4).clone()
    viewmats[..., :3, :] += 0.3 * random(*batch, 2, 3, 4, seed=3)
    return random(*batch, 4, 3), root @ root.mT, viewmats


@pytest.mark.parametrize("batch", [(), (2, 1)])
def test_world_to_cam_matches_loops(batch):
    means, covars, viewmats = cameras(batch)
    means_c, covars_c = world_to_cam(means, covars, viewmats)
    assert means_c.shape == (*batch, 2, 4, 3)
    assert covars_c.shape == (*batch, 2, 4, 3, 3)
    n = math.prod(batch)
    views = zip(*(t.reshape(n, *t.shape[len(batch) :]) for t in (means, covars, viewmats, means_c, covars_c)))
    for mean, covar, viewmat, mean_c, covar_c in views:
        for c in range(2):
            for i in range(4):
                R, t = viewmat[c, :3, :3], viewmat[c, :3, 3]
                assert_exact("means", mean_c[c, i], torch.mv(R, mean[i]) + t)
                assert_exact("covars", covar_c[c, i], torch.einsum("ij,jk,lk->il", R, covar[i], R))


def test_world_to_cam_gradients():
    inputs = [tensor.requires_grad_() for tensor in cameras()]
    assert torch.autograd.gradcheck(world_to_cam, inputs)


WIDTH, HEIGHT = 40, 30
KS = torch.tensor([[[35.0, 0, 18], [0, 30, 16], [0, 0, 1]], [[50.0, 0, 20], [0, 45, 12], [0, 0, 1]]]).double()


FUNCTIONS = {"pinhole": persp_proj, "ortho": _ortho_proj, "fisheye": _fisheye_proj}


def in_view():
    """Means [2, 4, 3] within the field of view, camera frame, and covariances."""
    means = torch.rand(2, 4, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    root = random(2, 4, 3, 3, seed=5)
    return (means - 0.5) * 0.5 + torch.tensor([0.0, 0.0, 2.0]), root @ root.mT


@pytest.mark.parametrize("camera_model", FUNCTIONS)
def test_proj_matches_the_differentiated_camera(camera_model):
    means, covars = in_view()
    means2d, covars2d = proj(means, covars, KS, WIDTH, HEIGHT, camera_model)
    for c in range(2):
        for i in range(4):

            def pixel(point, K=KS[c]):
                x, y, z = point.unbind()
                r = (x * x + y * y).sqrt()
                scale = {"pinhole": 1 / z, "ortho": 1.0, "fisheye": torch.atan2(r, z) / r}[camera_model]
                return torch.stack([K[0, 0] * x * scale + K[0, 2], K[1, 1] * y * scale + K[1, 2]])

            jacobian = torch.autograd.functional.jacobian(pixel, means[c, i])
            assert_exact("means2d", means2d[c, i], pixel(means[c, i]))
            assert_exact("covars2d", covars2d[c, i], jacobian @ covars[c, i] @ jacobian.T)
    for found, expected in zip(FUNCTIONS[camera_model](means, covars, KS, WIDTH, HEIGHT), (means2d, covars2d)):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("camera_model", FUNCTIONS)
def test_proj_gradients(camera_model):
    means, covars = (tensor.requires_grad_() for tensor in in_view())
    assert torch.autograd.gradcheck(lambda m, s: proj(m, s, KS, WIDTH, HEIGHT, camera_model), (means, covars))


@pytest.mark.parametrize("camera_model", FUNCTIONS)
def test_proj_without_blur_is_the_inverse_of_the_conics(camera_model):
    """Also for means far outside the image, where a pinhole's Jacobian is taken within 1.3 times the field of view."""
    structure = scenes.Structure(n=40, cameras=2, width=WIDTH, height=HEIGHT, size=12.0, camera_model=camera_model)
    scene = scenes.make(structure)
    scene["means"][:10, 0] *= 2.5
    covars, _ = quat_scale_to_covar_preci(scene["quats"], scene["scales"])
    radii, pixels, _, conics, _ = fully_fused_projection(
        scene["means"], None, scene["quats"], scene["scales"], scene["viewmats"], scene["Ks"], WIDTH, HEIGHT, eps2d=0.0,
        camera_model=camera_model, near_plane=-10.0,
    )  # fmt: skip
    means_c, covars_c = world_to_cam(scene["means"], covars, scene["viewmats"])
    means2d, covars2d = proj(means_c, covars_c, scene["Ks"], WIDTH, HEIGHT, camera_model)
    visible = (radii > 0).all(-1)
    outside = ((means2d < -0.3 * 0.5 * WIDTH) | (means2d > 1.3 * WIDTH)).any(-1)
    assert (visible & outside).any()
    assert_exact("means2d", pixels[visible], means2d[visible])
    inverse = torch.linalg.inv(covars2d[visible])
    assert_exact("conics", conics[visible], torch.stack([inverse[:, 0, 0], inverse[:, 0, 1], inverse[:, 1, 1]], -1))


@pytest.mark.parametrize("camera_model", FUNCTIONS)
def test_projection_of_full_covariances_is_that_of_quats_and_scales(camera_model):
    structure = scenes.Structure(n=20, cameras=2, width=WIDTH, height=HEIGHT, camera_model=camera_model)
    scene = scenes.make(structure)
    covars, _ = quat_scale_to_covar_preci(scene["quats"], scene["scales"])
    views = scene["viewmats"], scene["Ks"], WIDTH, HEIGHT
    options = dict(eps2d=0.1, calc_compensations=True, camera_model=camera_model)
    found = _fully_fused_projection(scene["means"], covars, *views, **options)
    expected = fully_fused_projection(scene["means"], None, scene["quats"], scene["scales"], *views, **options)
    for name, one, other in zip(("radii", "means2d", "depths", "conics", "compensations"), found, expected):
        assert_exact(name, one.double(), other.double())


@pytest.mark.parametrize("camera_model", FUNCTIONS)
def test_projection_of_full_covariances_gradients(camera_model):
    structure = scenes.Structure(n=3, cameras=1, width=WIDTH, height=HEIGHT, camera_model=camera_model, seed=1)
    scene = scenes.make(structure)
    covars, _ = quat_scale_to_covar_preci(scene["quats"], scene["scales"])
    # Only the upper triangles are read.
    upper = covars.triu()
    inputs = [tensor.clone().requires_grad_() for tensor in (scene["means"], upper, scene["viewmats"])]

    def project(means, covars, viewmats):
        # The last row of a view matrix has no gradient.
        viewmats = torch.cat([viewmats[:, :3], viewmats[:, 3:].detach()], 1)
        outputs = _fully_fused_projection(
            means, covars, viewmats, scene["Ks"], WIDTH, HEIGHT, calc_compensations=True, camera_model=camera_model
        )
        return outputs[1:]

    assert (project(*inputs)[1] > 0).any()
    assert torch.autograd.gradcheck(project, inputs)


def test_ftheta_raises():
    means, covars = in_view()
    with pytest.raises(UnsupportedError, match="camera_model: 'ftheta' is not implemented"):
        proj(means, covars, KS, WIDTH, HEIGHT, "ftheta")


def test_shapes_are_checked():
    means, covars = in_view()
    with pytest.raises(ArgumentError, match="covars"):
        proj(means, covars[:, :3], KS, WIDTH, HEIGHT)
    with pytest.raises(ArgumentError, match="means"):
        proj(means[0], covars[0], KS[0], WIDTH, HEIGHT)
    with pytest.raises(ArgumentError, match="viewmats"):
        world_to_cam(means[0], covars[0], torch.eye(4))
