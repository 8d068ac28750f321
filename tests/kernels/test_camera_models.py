"""Camera models at all angles: accuracy in fp32, the optical axis, negative depths, and invalid cameras."""

import importlib
import math

import mpmath
import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.backends import BACKENDS
from tests.support.closeness import run
from tests.triton_cpu.fit_polynomials import interpolate
from tsplat import reference
from tsplat.config import CAMERA_MODELS, FISHEYE_SERIES, CameraSettings
from tsplat.data import ProjectionSettings
from tsplat.kernels_torch.lenses import LENSES
from tsplat.reference import lens_formulas

ANGLES = (0.0, 1e-30, 1e-12, 1e-7, 1e-4, 1e-2, 1.0, 30.0, 59.0, 61.0, 89.0, 90.0, 91.0, 120.0, 150.0, 165.0)
"""Degrees from the optical axis."""

EPSILON = torch.finfo(torch.float32).eps


def test_series_interpolates_the_hypergeometric_function():
    coefficients = interpolate(
        lambda x: mpmath.mpf(8) / 5 * mpmath.hyp2f1(1, 5, mpmath.mpf(7) / 2, (1 + x) / 4),
        mpmath.mpf(-1), mpmath.mpf(1), len(FISHEYE_SERIES) - 1,
    )  # fmt: skip
    assert [float(c) for c in coefficients] == list(FISHEYE_SERIES)


def test_every_camera_model_has_a_lens_in_each_implementation():
    pytest.importorskip("triton")
    of_kernels = importlib.import_module("tsplat.kernels.projection.lenses").LENSES
    for lenses in (of_kernels, LENSES, lens_formulas.LENSES):
        assert sorted(lenses) == sorted(CAMERA_MODELS)
    for model, lens in LENSES.items():
        assert lens.has_jacobian == (of_kernels[model].project_with_jacobian is not None)
        formulas = lens_formulas.LENSES[model]
        assert lens.culls_by_distance == of_kernels[model].CULLS_BY_DISTANCE == formulas.culls_by_distance
        assert lens.is_parallel == formulas.is_parallel
        assert lens.wraps == of_kernels[model].WRAPS == formulas.wraps


def at_angles(dtype):
    """Gaussians at distances of 0.5 to 2 from a camera at the origin, four for each angle from its axis."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.tensor(ANGLES, dtype=torch.float64).repeat_interleave(4).deg2rad()
    n = len(theta)
    phi = 2 * math.pi * torch.rand(n, generator=generator, dtype=torch.float64)
    means = torch.stack([theta.sin() * phi.cos(), theta.sin() * phi.sin(), theta.cos()], -1)
    means = means * (0.5 + 1.5 * torch.rand(n, 1, generator=generator, dtype=torch.float64))
    means[(theta == math.pi / 2), 2] = 0.0
    quats = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    scales = 0.02 + 0.03 * torch.rand(n, 3, generator=generator, dtype=torch.float64)
    return [t.to(dtype) for t in (means, quats, scales)]


def project(gaussians, backend):
    """Means2d, conics and gradients of a random loss on both, of fisheye cameras."""
    means, quats, scales = (t.clone().requires_grad_() for t in gaussians)
    viewmats = torch.eye(4, dtype=means.dtype)[None].clone().requires_grad_()
    Ks = torch.tensor([[[300.0, 0, 1000], [0, 310, 1010], [0, 0, 1]]], dtype=means.dtype)
    options = dict(near_plane=-10.0, camera_model="fisheye")
    if backend == "reference":
        settings = ProjectionSettings(CameraSettings(2000, 2020, "fisheye", -10.0))
        p = reference.project(means, reference.covariances(quats, scales), None, viewmats, Ks, settings)
        outputs = (p.means2d, p.conics)
    else:
        _, means2d, _, conics, _ = tsplat.fully_fused_projection(
            means, None, quats, scales, viewmats, Ks, 2000, 2020, backend=backend, **options
        )
        outputs = (means2d, conics)
    wanted = (means, quats, scales, viewmats)
    v = scenes.random_like(outputs, 0)
    gradients = torch.autograd.grad(outputs, wanted, (v[0], v[1] * 1e3))
    return [t.detach().double() for t in (*outputs, *gradients)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_fisheye_in_fp32_is_accurate_at_every_angle(backend):
    """Gaussian by Gaussian: 64 epsilons for its projection, 100 for its gradients."""
    gaussians = at_angles(torch.float32)
    exact = project([t.double() for t in gaussians], "reference")
    found = project(gaussians, backend)
    for name, a, b in zip(("means2d", "conics"), found, exact):
        error = (a - b)[0].norm(dim=-1) / b[0].norm(dim=-1)
        assert error.max() < 64 * EPSILON, (name, error.view(-1, 4).amax(1) / EPSILON)
    for name, a, b in zip(("means", "quats", "scales"), found[2:], exact[2:]):
        error = (a - b).norm(dim=-1) / b.norm(dim=-1)
        assert error.max() < 100 * EPSILON, (name, error.view(-1, 4).amax(1) / EPSILON)


@pytest.mark.parametrize("backend", BACKENDS)
def test_fisheye_rounds_pixels_as_little_as_the_arctangent(backend):
    """Root mean square: less than half an epsilon, as differences between sigma points amplify it."""
    random = torch.rand(4096, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theta, phi, distance = (random * torch.tensor([1.3, 1.3, 4.0]) + torch.tensor([0.1, 0.1, 1.0])).unbind(-1)
    means = torch.stack([theta.sin() * phi.cos(), theta.sin() * phi.sin(), theta.cos()], -1) * distance[:, None]
    means, K = means.float(), torch.diag(torch.tensor([300.0, 300, 1]))  # no center, which would round pixels
    quats, scales = torch.eye(4)[:1].expand(4096, 4), torch.full((4096, 3), 0.01)
    options = dict(camera_model="fisheye", backend=backend)
    _, found, *_ = tsplat.fully_fused_projection(
        means, None, quats, scales, torch.eye(4)[None], K[None], 500, 500, **options
    )
    x, y, z = means.double().unbind(-1)
    radius = torch.hypot(x, y)
    exact = 300 * torch.atan2(radius, z)[:, None] / radius[:, None] * means[:, :2].double()
    error = (found[0].double() - exact) / exact.norm(dim=-1, keepdim=True)
    assert error.square().mean().sqrt() < 0.5 * EPSILON


@pytest.mark.parametrize("backend", BACKENDS)
def test_fisheye_in_fp64_is_exact_at_every_angle(backend):
    gaussians = at_angles(torch.float64)
    for found, expected in zip(project(gaussians, backend), project(gaussians, "reference")):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_points_without_a_fisheye_projection_are_culled(backend):
    """On the axis behind the camera, and at its center, nothing is visible, and gradients are zero."""
    means = torch.tensor([[0.0, 0.0, -1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]], requires_grad=True)
    quats, scales = torch.tensor([[1.0, 0, 0, 0]]).repeat(3, 1), torch.full((3, 3), 0.1)
    Ks = torch.tensor([[[10.0, 0, 16], [0, 10, 16], [0, 0, 1]]])
    viewmats = torch.eye(4)[None].requires_grad_()
    for model, visible in (("fisheye", [False, False, True]), ("ortho", [True, True, True])):
        radii, means2d, _, conics, _ = tsplat.fully_fused_projection(
            means, None, quats, scales, viewmats, Ks, 32, 32, near_plane=-2.0, camera_model=model, backend=backend
        )
        assert (radii > 0).all(-1)[0].tolist() == visible
        assert means2d[0][torch.tensor(visible)].eq(16).all()
        v_means, v_viewmats = torch.autograd.grad((means2d.sum() + conics.sum()), (means, viewmats))
        assert v_means.isfinite().all()
        assert v_viewmats.isfinite().all()
        assert v_means.any(-1).tolist() == visible


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("camera_model", ["ortho", "fisheye"])
def test_invalid_cameras_see_nothing(camera_model, backend):
    """Also with the most negative near plane."""
    structure = scenes.Structure(n=6, cameras=4, width=9, height=8, camera_model=camera_model, seed=1)
    scene = scenes.make(structure, torch.float32)
    scene["Ks"][0, 0, 0], scene["Ks"][1, 1, 1], scene["viewmats"][2, 1, 3] = 0.0, math.nan, math.inf
    found, meta = run(scene, backend=backend, near_plane=-math.inf, packed=False)
    visible = (meta["radii"] > 0).all(-1)
    assert not visible[:3].any()
    assert visible[3].any()
    assert all(t.isfinite().all() for t in found.values() if t is not None)
