"""F-theta lenses: pixels and rays against closed forms, their domain, gradients, and errors."""

import dataclasses
import math
import re

import numpy as np
import pytest
import torch

import tsplat
from tests.support.backends import BACKENDS
from tests.support.lenses import ftheta, make
from tsplat import BivariateWindshieldModelParameters
from tsplat.config import FThetaCameraDistortionParameters, FThetaPolynomialType
from tsplat.data import Cameras
from tsplat.stages.eval3d import camera_rays
from tsplat.stages.lens_models import LensArguments, add_lens
from tsplat.stages.options import Options, check_options

SIZE = dict(width=400, height=400)
KINDS = ["ftheta", "inverse ftheta"]
REAL = (0.0, 118.43232, -2.562147, 6.317949, -10.41861, 3.6694396)
"""Pixels of angles of a camera of gsplat's tests."""
REAL_INVERSE = (0.0, 8.4335003e-03, 2.3174282e-06, -5.0478608e-08, 6.1392608e-10, -1.7447865e-12)


def lens_of(reference, polynomial, max_angle=1.3, linear=(1.0, 0.0, 0.0)):
    other = (0.0, 1.0, 0.0, 0.0, 0.0, 0.0)  # without effect
    both = (polynomial, other) if reference == "PIXELDIST_TO_ANGLE" else (other, polynomial)
    return FThetaCameraDistortionParameters(FThetaPolynomialType[reference], *both, max_angle, linear)


def at_angles(angles, azimuth=0.7):
    """Points at a distance of 2 on a half plane through the optical axis, [N, 3]."""
    angles = torch.as_tensor(angles, dtype=torch.float64)
    sine = angles.sin()
    return 2 * torch.stack([sine * math.cos(azimuth), sine * math.sin(azimuth), angles.cos()], -1)


def project(points, lens, backend="auto", dtype=torch.float64, **options):
    """Pixels of small Gaussians [N, 3], and whether each is visible; fx and fy have no meaning."""
    n, points = len(points), points.to(dtype)
    Ks = torch.tensor([[[1.0, 0, 210], [0, 7, 190], [0, 0, 1]]], dtype=dtype)
    radii, means2d, *_ = tsplat.fully_fused_projection_with_ut(
        points, torch.tensor([[1.0, 0, 0, 0]]).expand(n, 4), torch.full((n, 3), 1e-7), None, torch.eye(4)[None], Ks,
        **SIZE, camera_model="ftheta", ftheta_coeffs=lens, backend=backend, **options,
    )  # fmt: skip
    return means2d[0], (radii[0] > 0).all(-1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_pixels_are_those_of_the_polynomial_of_angles(backend):
    angles = torch.tensor([0.0, 1e-9, 0.01, 0.5, 1.0], dtype=torch.float64)
    c, d, e = 1.01, 0.02, -0.03
    pixels, visible = project(at_angles(angles), lens_of("ANGLE_TO_PIXELDIST", REAL, linear=(c, d, e)), backend)
    distance = sum(number * angles**degree for degree, number in enumerate(REAL))
    x, y = distance * math.cos(0.7), distance * math.sin(0.7)
    # gsplat counts principal points from the center of the first pixel.
    expected = torch.stack([c * x + d * y + 210.5, e * x + y + 190.5], -1)
    assert visible.all()
    torch.testing.assert_close(pixels, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_pixels_are_those_of_the_inverse_of_the_polynomial_of_distances(backend):
    distance = torch.tensor([0.0, 1e-6, 1.0, 60.0, 130.0], dtype=torch.float64)
    angles = sum(number * distance**degree for degree, number in enumerate(REAL_INVERSE))
    pixels, visible = project(at_angles(angles, azimuth=0.0), lens_of("PIXELDIST_TO_ANGLE", REAL_INVERSE), backend)
    assert visible.all()
    torch.testing.assert_close(pixels[:, 0], distance + 210.5, rtol=0, atol=1e-6)
    assert (pixels[:, 1] - 190.5).abs().max() < 1e-6


def rays_of(lens, dtype):
    _, settings = check_options(Options(**SIZE, camera_model="ftheta", with_ut=True))
    Ks = torch.tensor([[[1.0, 0, 210], [0, 7, 190], [0, 0, 1]]], dtype=dtype)
    cameras = Cameras(torch.eye(4, dtype=dtype)[None], Ks)
    cameras = add_lens(cameras, LensArguments(ftheta_coeffs=lens), settings.projection, torch.Size(), 1)
    return camera_rays(
        Cameras(*(None if t is None else t[None] for t in cameras)), settings.projection.camera
    ).per_pixel[0]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-9), (torch.float32, 0.01)])
@pytest.mark.parametrize(
    "lens",
    [
        lens_of("ANGLE_TO_PIXELDIST", REAL, 1000.0, (9.9968284e-01, 1.8735906e-05, 1.7659619e-05)),
        lens_of("PIXELDIST_TO_ANGLE", REAL_INVERSE, 1.5, (0.98, 0.04, 0.02)),
        ftheta("inverse ftheta", 250.0, 1.5),
    ],
)  # fmt: skip
def test_points_on_the_ray_of_each_pixel_are_projected_to_its_center(lens, dtype, bound):
    rays = rays_of(lens, dtype)
    y, x = ((rays[2] > 0.1) & (rays.norm(dim=0) > 0)).nonzero(as_tuple=True)
    pixels, visible = project(2 * rays[:, y, x].T, lens, dtype=dtype)
    assert len(y) > 30000 and visible.all()
    assert (pixels - torch.stack([x, y], -1) - 0.5).abs().max() < bound


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_beyond_the_largest_angle_is_culled(backend):
    """By ``max_angle``, or where the polynomial stops to grow."""
    for lens, last in (
        (lens_of("ANGLE_TO_PIXELDIST", REAL, 0.9), 0.9),
        (lens_of("PIXELDIST_TO_ANGLE", REAL_INVERSE, 0.9), 0.9),
        (lens_of("ANGLE_TO_PIXELDIST", (0.0, 100.0, 0.0, -100.0 / 3, 0.0, 0.0), 9.0), 1.0),
        (lens_of("PIXELDIST_TO_ANGLE", (0.0, 0.01, 0.0, -1e-6 / 3, 0.0, 0.0), 9.0), 2 / 3),
    ):
        _, visible = project(at_angles([0.2, last - 0.01, last + 0.01, 1.4, 1.6, 3.0]), lens, backend)
        assert visible.tolist() == [True, True, False, False, False, False]
        angles = torch.acos(rays_of(lens, torch.float64)[2].clamp(-1, 1))[190, 210:]
        exists = rays_of(lens, torch.float64).norm(dim=0)[190, 210:] > 0.5
        assert not exists.all() and last - 0.2 < angles[exists].max() < last + 1e-9


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_wide_lenses_see_behind_the_camera_where_depth_is_distance(backend, kind):
    """To the largest angle, and not where there is no azimuth; not by z, nor behind a windshield."""
    lens, around = ftheta(kind, 55.0, 2.9), dict(backend=backend, global_z_order=False)
    rays = rays_of(lens, torch.float64)
    y, x = (rays.norm(dim=0) > 0).nonzero()[::7].T
    behind = rays[2, y, x] < 0
    pixels, visible = project(2 * rays[:, y, x].T, lens, **around)
    assert visible.all() and behind.sum() > 4000
    assert (pixels - torch.stack([x, y], -1) - 0.5).abs().max() < 1e-9
    points = at_angles([1.5, 1.6, 2.89, 2.91, math.pi - 1e-8]), at_angles([math.pi]) * torch.tensor([0.0, 0, 1])
    assert project(torch.cat(points), lens, **around)[1].tolist() == [True, True, True, False, False, False]
    for options in (dict(global_z_order=True), dict(external_distortion_coeffs=BivariateWindshieldModelParameters())):
        assert project(points[0], lens, **around | options)[1].tolist() == [True, False, False, False, False]
    at_most = project(points[0], ftheta(kind, 55.0, math.pi / 2), **around)[1]
    assert at_most.tolist() == [True, False, False, False, False]


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_finite_differences(backend, kind):
    lens = ftheta(kind, 150.0, 1.3)
    points = at_angles([0.02, 0.4, 1.1]) + torch.tensor([0.01, -0.02, 0.0], dtype=torch.float64)
    Ks = torch.tensor([[[1.0, 0, 210], [0, 1, 190], [0, 0, 1]]], dtype=torch.float64)

    def run(points, quats, scales, viewmats):
        outputs = tsplat.fully_fused_projection_with_ut(
            points, quats, scales, None, viewmats, Ks, **SIZE, camera_model="ftheta", ftheta_coeffs=lens,
            backend=backend,
        )  # fmt: skip
        return outputs[1:4]

    quats = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scales = torch.tensor([[0.2, 0.1, 0.05]], dtype=torch.float64).repeat(3, 1)
    inputs = [t.requires_grad_() for t in (points, quats, scales, torch.eye(4, dtype=torch.float64)[None])]
    assert (run(*inputs)[1] > 0).all()
    assert torch.autograd.gradcheck(run, inputs, atol=1e-4)


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
def test_gaussians_on_the_axis_and_invalid_cameras_have_finite_gradients(backend):
    scene = make("inverse ftheta", cameras=2)
    scene["viewmats"][0] = torch.eye(4)
    scene["means"][:2, :2] = 0.0
    scene["viewmats"][1, 0, 0] = torch.nan
    leaves = [scene[name].requires_grad_() for name in ("means", "quats", "scales")]
    colors, alphas, _ = tsplat.rasterization(**scene, backend=backend)
    assert alphas[0].any() and not alphas[1].any()
    gradients = torch.autograd.grad(colors.sum(), leaves)
    assert all(gradient.isfinite().all() for gradient in gradients) and gradients[0][0].any()


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@pytest.mark.parametrize("kind", KINDS)
def test_gaussians_beside_a_camera_have_finite_gradients(backend, kind):
    """Wide lenses see points with a z of exactly 0."""
    means = torch.tensor([[2.0, 0, 0], [0, -2.0, 0]], dtype=torch.float64, requires_grad=True)
    colors, alphas, _ = tsplat.rasterization(
        means, torch.tensor([[1.0, 0, 0, 0]]).expand(2, 4), torch.full((2, 3), 0.2), torch.full((2,), 0.8),
        torch.ones(2, 3), torch.eye(4)[None], torch.tensor([[[1.0, 0, 40], [0, 1, 40], [0, 0, 1]]]), 80, 80,
        camera_model="ftheta", ftheta_coeffs=ftheta(kind, 20.0, 2.0), with_ut=True, global_z_order=False,
        backend=backend,
    )  # fmt: skip
    assert alphas[0, 40, 60:].max() > 0.7 and alphas[0, :20, 40].max() > 0.7
    (gradient,) = torch.autograd.grad((colors * torch.arange(80.0)[:, None]).sum(), means)
    assert gradient.isfinite().all() and gradient.any()


GOOD = lens_of("ANGLE_TO_PIXELDIST", REAL)


@pytest.mark.parametrize(
    ("lens", "words"),
    [
        (None, "ftheta_coeffs: expected an FThetaCameraDistortionParameters, as camera_model is 'ftheta', found None"),
        (
            dict(reference_poly="BOTH"),
            "ftheta_coeffs.reference_poly: expected one of 'PIXELDIST_TO_ANGLE', 'ANGLE_TO_PIXELDIST', found 'BOTH'",
        ),
        (dict(angle_to_pixeldist_poly=REAL[:5]), "ftheta_coeffs.angle_to_pixeldist_poly: expected 6 numbers"),
        (dict(pixeldist_to_angle_poly=None), "ftheta_coeffs.pixeldist_to_angle_poly: expected 6 numbers, found None"),
        (dict(angle_to_pixeldist_poly=(0.0, math.nan, 0, 0, 0, 0)), "expected a finite number, found nan"),
        (dict(angle_to_pixeldist_poly=(0.0, 1e300, 0, 0, 0, 0)), "expected numbers of at most 1e+12"),
        (dict(angle_to_pixeldist_poly=(0.1, *REAL[1:])), "expected 0 and a positive number first"),
        (dict(angle_to_pixeldist_poly=(0.0, -1.0, 0, 0, 0, 0)), "expected 0 and a positive number first"),
        (dict(linear_cde=(1.0, 0.5, 2.0)), "ftheta_coeffs.linear_cde: expected c - d e != 0"),
        (dict(linear_cde=(1.0, 0.0)), "ftheta_coeffs.linear_cde: expected 3 numbers"),
        (dict(linear_cde=torch.tensor(1.0)), "ftheta_coeffs.linear_cde: expected 3 numbers"),
        (dict(max_angle=0.0), "ftheta_coeffs.max_angle: expected a number above 0, found 0.0"),
    ],
)  # fmt: skip
def test_errors(lens, words):
    given = dataclasses.replace(GOOD, **lens) if lens else None
    with pytest.raises(tsplat.ArgumentError, match=re.escape(words)):
        project(at_angles([0.1]), given)


def test_sequences_of_any_kind_are_taken():
    expected, _ = project(at_angles([0.4]), GOOD)
    arrays = dataclasses.replace(GOOD, angle_to_pixeldist_poly=np.array(REAL), linear_cde=[1, 0, 0])
    found, _ = project(at_angles([0.4]), arrays)
    assert torch.equal(found, expected)
    tiny = (*REAL[:5], 5e-324)  # negligible where the domain is searched
    assert project(at_angles([0.4]), lens_of("ANGLE_TO_PIXELDIST", tiny))[1].all()
