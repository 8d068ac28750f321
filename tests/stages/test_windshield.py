"""Windshields: projection and rays against the reference, closed forms, their domain, gsplat's coefficients, errors."""

import re
import types

import pytest
import torch

import tsplat
from tests.stages.test_unscented import images_and_gradients
from tests.support.backends import BACKENDS
from tests.support.closeness import assert_exact
from tests.support.lenses import make
from tests.support.slow import slow_after
from tsplat import BivariateWindshieldModelParameters as Windshield
from tsplat.compat import gsplat

NAMES = ["means", "quats", "scales", "viewmats"]
DIRECT, FLAT = (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)


def random_windshield(seed, size=0.1):
    """Four polynomials of degree 5, close to the identity."""
    generator = torch.Generator().manual_seed(seed)
    polynomials = size * (2 * torch.rand(4, 21, generator=generator, dtype=torch.float64) - 1)
    polynomials[::2, 1] += 1
    polynomials[1::2, 6] += 1
    return Windshield(*polynomials)


def project(points, windshield, focal=100.0, backend="auto", **options):
    """Pixels of tiny Gaussians [N, 3], and whether each is visible."""
    points = torch.as_tensor(points, dtype=torch.float64)
    n = len(points)
    Ks = torch.tensor([[[focal, 0, 200], [0, focal, 200], [0, 0, 1]]], dtype=torch.float64)
    radii, means2d, *_ = tsplat.fully_fused_projection_with_ut(
        points, torch.tensor([[1.0, 0, 0, 0]]).expand(n, 4), torch.full((n, 3), 1e-7), None, torch.eye(4)[None], Ks,
        400, 400, external_distortion_coeffs=windshield, backend=backend, **options,
    )  # fmt: skip
    return means2d[0], (radii[0] > 0).all(-1)


@pytest.mark.parametrize("with_eval3d", slow_after(1, [False, True]))
@pytest.mark.parametrize("kind", slow_after(1, ["distorted pinhole", "fisheye"]))
@pytest.mark.parametrize("backend", BACKENDS)
def test_all_coefficients_match_reference(backend, kind, with_eval3d):
    scene = make(kind, seed=1) | dict(external_distortion_coeffs=random_windshield(1), with_eval3d=with_eval3d)
    names = [*NAMES, *(name for name in ("radial_coeffs", "tangential_coeffs") if name in scene)]
    *found, meta = images_and_gradients(scene, names, backend=backend, packed=False)
    *expected, _ = images_and_gradients(scene, names, backend="reference", packed=False)
    *without, _ = images_and_gradients(
        scene | {"external_distortion_coeffs": None}, names, backend=backend, packed=False
    )
    assert (meta["radii"] > 0).all(-1).sum() > 3 and (found[0] - without[0]).abs().max() > 1e-2
    for name, one, other in zip(["colors", "alphas", *names], found, expected):
        assert_exact(name, one, other)


@pytest.mark.parametrize("backend", BACKENDS)
def test_pixels_are_those_of_the_polynomials(backend):
    x, y = torch.tensor([0.0, 0.2, -0.3, 0.0, 0.4]), torch.tensor([0.0, 0.1, 0.2, -0.5, 0.4])
    points = torch.stack([x, y, torch.ones(5)], -1).double()
    windshield = Windshield((0.01, 0.9, 0.2, 0.03, -0.1, 0.04), (-0.02, 0.05, 0.1, 1.1, 0.2, 0.3))
    phi, psi = (points[:, :2] / points.norm(dim=-1, keepdim=True)).asin().unbind(-1)
    h = 0.01 + 0.9 * phi + 0.2 * phi**2 + 0.03 * psi - 0.1 * phi * psi + 0.04 * psi**2
    v = -0.02 + 0.05 * phi + 0.1 * phi**2 + 1.1 * psi + 0.2 * phi * psi + 0.3 * psi**2
    depth = (1 - h.sin() ** 2 - v.sin() ** 2).sqrt()
    pixels, visible = project(points, windshield, backend=backend)
    assert visible.all()
    torch.testing.assert_close(pixels, 200 + 100 * torch.stack([h.sin(), v.sin()], -1) / depth[:, None])


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
def test_without_coefficients_nothing_changes(backend):
    scene = make("fisheye") | dict(backend=backend, packed=False)
    found, expected = (
        tsplat.rasterization(**scene | o)[0] for o in (dict(external_distortion_coeffs=Windshield()), {})
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_windshield_does_not_show_is_culled(backend):
    """h = 4 phi is a right angle at phi = 22.5 degrees; phi - phi^2 turns back at half a radian."""
    points = [[0.3, 0.0, 1.0], [0.5, 0.0, 1.0], [0.7, 0.0, 1.0]]
    beyond = Windshield(horizontal_poly=(0.0, 4.0, 0.0))
    assert project(points, beyond, 10.0, backend)[1].tolist() == [True, False, False]
    folded = Windshield(horizontal_poly=(0.0, 1.0, -1.0, 0.0, 0.0, 0.0))
    assert project(points, folded, 10.0, backend)[1].tolist() == [True, True, False]
    assert not project(points, Windshield(vertical_poly=(0.1,)), 10.0, backend)[1].any()  # all in one direction


def test_pixels_whose_rays_a_windshield_does_not_show_are_background():
    scene = make("pinhole", cameras=1) | dict(with_eval3d=True, backgrounds=None)
    scene["means"][:, 2], scene["scales"][:], scene["opacities"][:] = 3.0, 5.0, 1.0
    shown = tsplat.rasterization(**scene)[1][..., 0]
    folded = Windshield(horizontal_poly_inverse=(0.0, 1.0, -4.0, 0.0, 0.0, 0.0))  # turns back at 1/8 radian
    alphas = tsplat.rasterization(**scene, external_distortion_coeffs=folded)[1][..., 0]
    K = scene["Ks"][0].double()
    x = (torch.arange(scene["width"]) + 0.5 - K[0, 2]) / K[0, 0]
    y = (torch.arange(scene["height"]) + 0.5 - K[1, 2]) / K[1, 1]
    phi = (x / (x**2 + y[:, None] ** 2 + 1).sqrt()).asin()
    assert (shown > 0).all() and torch.equal(alphas[0] > 0, phi < 0.125) and 0.2 < (phi < 0.125).double().mean() < 0.9


def test_invalid_coefficients_show_nothing():
    scene = make("pinhole", cameras=1) | dict(
        backgrounds=None, external_distortion_coeffs=Windshield(torch.tensor([torch.nan, 1.0, 0.0]))
    )
    assert not tsplat.rasterization(**scene)[1].any()
    with pytest.raises(tsplat.InvalidValueError, match="lens: 1 of 1 cameras are not finite"):
        tsplat.rasterization(**scene, validate="error")


def test_parameters_of_gsplat():
    """Its class has attributes that are set later, in fp32, and an enum of its own."""
    own = gsplat.cuda._wrapper.BivariateWindshieldModelParameters()
    assert isinstance(own, gsplat.ExternalDistortionModelParameters) and own.MAX_COEFFS == 21
    wrapper = types.SimpleNamespace(reference_poly=types.SimpleNamespace(name="BACKWARD"))
    for target in (own, wrapper):
        target.horizontal_poly, target.vertical_poly = torch.tensor([0.0, 0.5, 0.0]), torch.tensor(FLAT)
        target.horizontal_poly_inverse, target.vertical_poly_inverse = torch.tensor([0.0, 2.0, 0.0]), torch.tensor(FLAT)
    expected, _ = project([[0.2, 0.1, 1.0]], Windshield((0.0, 0.5, 0.0)))
    for target in (own, wrapper):
        torch.testing.assert_close(project([[0.2, 0.1, 1.0]], target)[0], expected)


@pytest.mark.parametrize(
    ("windshield", "options", "error", "words"),
    [
        (Windshield((1.0, 2.0)), {}, tsplat.ShapeError, "external_distortion_coeffs.horizontal_poly: expected 1, 3, 6"),
        (Windshield(DIRECT, torch.zeros(2, 3)), {}, tsplat.ShapeError, "external_distortion_coeffs.vertical_poly"),
        (Windshield(("a", 1.0, 2.0)), {}, tsplat.ArgumentError, "external_distortion_coeffs.horizontal_poly"),
        (Windshield(None), {}, tsplat.ArgumentError, "external_distortion_coeffs.horizontal_poly"),
        (Windshield(reference_poly=3), {}, tsplat.ArgumentError, "reference_poly: expected one of 'FORWARD', 'BACK"),
        (object(), {}, tsplat.ArgumentError, "external_distortion_coeffs.reference_poly"),
        (Windshield(torch.tensor(DIRECT, requires_grad=True)), {}, tsplat.UnsupportedError, "its gradient is not"),
        (Windshield(), dict(camera_model="ortho"), tsplat.ArgumentError, "expected None for ortho cameras"),
        (Windshield(), dict(with_ut=False), tsplat.ArgumentError, "external_distortion_coeffs: requires with_ut=True"),
    ],
)  # fmt: skip
def test_errors(windshield, options, error, words):
    scene = make("pinhole") | dict(external_distortion_coeffs=windshield) | options
    with pytest.raises(error, match=re.escape(words)):
        tsplat.rasterization(**scene)
