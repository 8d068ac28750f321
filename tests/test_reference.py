"""The reference against closed forms, and its gradients against finite differences."""

import math

import numpy as np
import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.slow import slow_after
from tsplat import reference
from tsplat.config import PRESETS, CameraSettings
from tsplat.data import ProjectionSettings

DTYPE = torch.float64
WIDTH, HEIGHT, FOCAL = 9, 7, 10.0


def front_view(**changes):
    """One camera at the origin, looking along z, with its principal point at a pixel's center."""
    scene = dict(
        viewmats=torch.eye(4, dtype=DTYPE)[None],
        Ks=torch.tensor([[[FOCAL, 0, 4.5], [0, FOCAL, 3.5], [0, 0, 1]]], dtype=DTYPE),
        width=WIDTH,
        height=HEIGHT,
        eps2d=0.3,
    )
    return scene | changes


def ball(*depths, opacities, sigma=0.2):
    """Isotropic Gaussians on the optical axis."""
    n = len(depths)
    means = torch.zeros(n, 3, dtype=DTYPE)
    means[:, 2] = torch.tensor(depths)
    return dict(
        means=means,
        quats=torch.tensor([[1.0, 0, 0, 0]], dtype=DTYPE).expand(n, 4),
        scales=torch.full((n, 3), sigma, dtype=DTYPE),
        opacities=torch.tensor(opacities, dtype=DTYPE),
    )


def alpha_of_ball(depth, opacity, sigma=0.2, eps2d=0.3):
    """The alpha of such a Gaussian at every pixel: its projection has variance (focal sigma / z)^2 + eps2d."""
    variance = (FOCAL * sigma / depth) ** 2 + eps2d
    x = torch.arange(WIDTH, dtype=DTYPE)[None, :] + 0.5 - 4.5
    y = torch.arange(HEIGHT, dtype=DTYPE)[:, None] + 0.5 - 3.5
    alpha = opacity * torch.exp(-(x**2 + y**2) / (2 * variance))
    return torch.where(alpha < 1 / 255, 0.0, alpha)


def test_one_gaussian_matches_closed_form():
    color = torch.tensor([[0.2, 0.5, 0.9]], dtype=DTYPE)
    truth = reference.rasterize(**ball(2.0, opacities=[0.7]), colors=color, **front_view())
    alpha = alpha_of_ball(2.0, 0.7)
    torch.testing.assert_close(truth.alphas[0, ..., 0], alpha, rtol=1e-12, atol=0)
    torch.testing.assert_close(truth.colors[0], alpha[..., None] * color, rtol=1e-12, atol=0)
    assert truth.projection.radii.tolist() == [[[4, 4]]]  # ceil(sqrt(2 ln(255 * 0.7)) * sqrt(1.3)) = ceil(3.67)


def test_two_gaussians_and_background_match_closed_form():
    colors = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=DTYPE)
    background = torch.tensor([[0.25, 0.5]], dtype=DTYPE)
    truth = reference.rasterize(
        **ball(3.0, 2.0, opacities=[0.8, 0.6]), colors=colors, **front_view(backgrounds=background)
    )
    far, near = alpha_of_ball(3.0, 0.8), alpha_of_ball(2.0, 0.6)
    left = (1 - near) * (1 - far)
    expected = torch.stack([(1 - near) * far + left * 0.25, near + left * 0.5], -1)
    torch.testing.assert_close(truth.colors[0], expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(truth.alphas[0, ..., 0], 1 - left, rtol=1e-12, atol=1e-15)


def test_depth_modes_match_closed_form():
    gaussians = ball(3.0, 2.0, opacities=[0.8, 0.6])
    far, near = alpha_of_ball(3.0, 0.8), alpha_of_ball(2.0, 0.6)
    depth = near * 2 + (1 - near) * far * 3
    alpha = 1 - (1 - near) * (1 - far)
    colors = torch.ones(2, 1, dtype=DTYPE)
    background = torch.full((1, 1), 7.0, dtype=DTYPE)
    for mode, expected in (("D", depth), ("ED", torch.where(alpha > 0, depth / alpha, 0.0))):
        truth = reference.rasterize(**gaussians, colors=colors, **front_view(render_mode=mode, backgrounds=background))
        torch.testing.assert_close(truth.colors[0, ..., 0], expected, rtol=1e-12, atol=0)
    both = reference.rasterize(**gaussians, colors=colors, **front_view(render_mode="RGB+D"))
    torch.testing.assert_close(both.colors[0], torch.stack([alpha, depth], -1), rtol=1e-12, atol=1e-15)


def test_alpha_is_clamped_and_opaque_pixels_stop():
    # Alpha is clamped to 0.999. The second would leave a transmittance of 1e-6 <= 1e-4, so the pixel stops before it.
    truth = reference.rasterize(
        **ball(2.0, 3.0, 4.0, opacities=[1.0, 1.0, 1.0], sigma=5.0), colors=torch.eye(3, dtype=DTYPE), **front_view()
    )
    center = truth.colors[0, 3, 4]
    torch.testing.assert_close(center, torch.tensor([0.999, 0.0, 0.0], dtype=DTYPE), rtol=1e-12, atol=1e-15)
    assert math.isclose(float(truth.alphas[0, 3, 4, 0]), 0.999, rel_tol=1e-12)


def test_antialiasing_compensates_opacity_for_blur():
    truth = reference.rasterize(
        **ball(2.0, opacities=[0.9]), colors=torch.ones(1, 1, dtype=DTYPE), **front_view(rasterize_mode="antialiased")
    )
    variance = (FOCAL * 0.2 / 2.0) ** 2
    torch.testing.assert_close(
        truth.projection.opacities[0, 0],
        torch.tensor(0.9 * variance / (variance + 0.3), dtype=DTYPE),
        rtol=1e-12,
        atol=0,
    )


def pixel(camera_model, K):
    """The camera model as a function of a point, from its definition."""

    def project(point):
        x, y, z = point.unbind()
        if camera_model == "pinhole":
            u, v = x / z, y / z
        elif camera_model == "ortho":
            u, v = x, y
        else:
            theta = torch.acos(z / point.norm())
            phi = torch.atan2(y, x)
            u, v = theta * phi.cos(), theta * phi.sin()
        return torch.stack([K[0, 0] * u + K[0, 2], K[1, 1] * v + K[1, 2]])

    return project


@pytest.mark.parametrize("camera_model", ["pinhole", "ortho", "fisheye"])
def test_projection_matches_differentiated_camera(camera_model):
    generator = torch.Generator().manual_seed(0)
    K = torch.tensor([[100.0, 0, 500], [0, 110.0, 480], [0, 0, 1]], dtype=DTYPE)
    directions = torch.randn(60, 3, generator=generator, dtype=DTYPE)
    if camera_model == "pinhole":
        directions[:, 2] = directions[:, 2].abs() + 1.0
    elif camera_model == "fisheye":
        # Within and just outside of the series' range around the axis.
        directions[:8] = torch.tensor([[0.01, 0.02, 1.0], [0.2, 0.2, 1.0], [0.2, 0.25, 1.0], [1.0, 0, 0]]).repeat(2, 1)
    root = 0.1 * torch.randn(60, 3, 3, generator=generator, dtype=DTYPE)
    covars = root @ root.mT
    settings = ProjectionSettings(CameraSettings(1000, 960, camera_model, -10.0), eps2d=0.0)
    projected = reference.project(directions, covars, None, torch.eye(4, dtype=DTYPE)[None], K[None], settings)
    assert projected.visible.sum() > 30
    function = pixel(camera_model, K)
    for i in projected.visible[0].nonzero()[:, 0]:
        jacobian = torch.func.jacrev(function)(directions[i])
        inverse = torch.linalg.inv(jacobian @ covars[i] @ jacobian.T)
        torch.testing.assert_close(projected.means2d[0, i], function(directions[i]), rtol=1e-12, atol=0)
        expected = torch.stack([inverse[0, 0], inverse[0, 1], inverse[1, 1]])
        torch.testing.assert_close(projected.conics[0, i], expected, rtol=1e-7, atol=1e-9 * float(expected.abs().max()))


@pytest.mark.parametrize("direction", [(0.0, 0.0, 2.0), (1e-3, 2e-3, 1.0), (0.4, -0.3, 1.0), (0.5, 0.2, -0.4)])
def test_fisheye_gradients_match_finite_differences(direction):
    """On the axis, close to it, where the series ends, and behind the camera."""
    means = torch.tensor([direction], dtype=DTYPE, requires_grad=True)
    root = 0.1 * torch.randn(3, 3, generator=torch.Generator().manual_seed(1), dtype=DTYPE)
    covars = (root @ root.T)[None].requires_grad_()
    viewmats = torch.eye(4, dtype=DTYPE)[None].requires_grad_()
    Ks = torch.tensor([[[10.0, 0, 40], [0, 11.0, 40], [0, 0, 1]]], dtype=DTYPE)
    settings = ProjectionSettings(CameraSettings(80, 80, "fisheye", -10.0), antialiased=True)

    def outputs(*inputs):
        p = reference.project(inputs[0], inputs[1], None, inputs[2], Ks, settings)
        return p.means2d, p.depths, p.conics, p.compensations

    assert torch.autograd.gradcheck(outputs, (means, covars, viewmats), eps=1e-6, atol=1e-6, rtol=1e-5)


def test_ortho_composites_negative_depths_by_value():
    colors = torch.eye(3, dtype=DTYPE)
    view = front_view(camera_model="ortho", near_plane=-5.0, render_mode="RGB+ED")
    truth = reference.rasterize(**ball(1.0, -2.0, -1.0, opacities=[0.5, 0.5, 0.5], sigma=0.1), colors=colors, **view)
    expected = torch.tensor([0.125, 0.5, 0.25, (0.125 - 1.0 - 0.25) / 0.875], dtype=DTYPE)
    torch.testing.assert_close(truth.colors[0, 3, 4], expected, rtol=1e-12, atol=0)


def test_camera_centers_of_scaled_view_matrix_by_preset():
    viewmat = torch.eye(4, dtype=DTYPE)
    viewmat[:3, :3] *= 2.0
    viewmat[:3, 3] = torch.tensor([2.0, 4.0, 6.0])
    inverse = reference.camera_centers(viewmat, PRESETS["gsplat-1.5"])
    transpose = reference.camera_centers(viewmat, PRESETS["gsplat-1.6"])
    assert inverse.tolist() == [-1.0, -2.0, -3.0]
    assert transpose.tolist() == [-4.0, -8.0, -12.0]


def test_spherical_harmonics_are_orthonormal():
    # Gauss-Legendre quadrature in z and equal steps in longitude are exact for polynomials of degree 8.
    z, weight = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(9))
    longitude = torch.arange(20, dtype=DTYPE) * (2 * math.pi / 20)
    ring = (1 - z**2).sqrt()[:, None]
    directions = torch.stack([ring * longitude.cos(), ring * longitude.sin(), z[:, None].expand(-1, 20)], -1).reshape(
        -1, 3
    )
    area = (weight[:, None] * torch.full((20,), 2 * math.pi / 20, dtype=DTYPE)).reshape(-1)
    basis = reference.sh_basis(4, directions)
    torch.testing.assert_close(basis.T @ (area[:, None] * basis), torch.eye(25, dtype=DTYPE), rtol=0, atol=1e-13)


def test_spherical_harmonics_have_signs_of_3dgs():
    x, y, z = 0.36, 0.48, 0.8
    basis = reference.sh_basis(2, torch.tensor([x, y, z], dtype=DTYPE))
    c1, c2 = 0.4886025119029199, 1.0925484305920792
    expected = [0.28209479177387814, -c1 * y, c1 * z, -c1 * x, c2 * x * y, -c2 * y * z]
    expected += [0.31539156525252005 * (3 * z * z - 1), -c2 * x * z, 0.5462742152960396 * (x * x - y * y)]
    torch.testing.assert_close(basis, torch.tensor(expected, dtype=DTYPE), rtol=1e-13, atol=0)


@pytest.mark.parametrize("rasterize_mode", slow_after(1, ["antialiased", "classic"]))
@pytest.mark.parametrize(
    ("render_mode", "sh_degree"), [("RGB", None), pytest.param("RGB+ED", 3, marks=pytest.mark.slow), ("D", None)]
)
def test_gradients_match_finite_differences(rasterize_mode, render_mode, sh_degree):
    structure = scenes.Structure(n=4, cameras=2, width=5, height=4, size=1.5, sh_degree=sh_degree, seed=3)
    scene = scenes.make(structure)
    names = [name for name in scenes.DIFFERENTIABLE if scene[name] is not None]
    decisions = reference.rasterize(**scene, render_mode=render_mode, rasterize_mode=rasterize_mode).decisions

    channels = 1 if render_mode == "D" else len(render_mode.split("+")) + 2
    weights = torch.randn(3, 2, 4, 5, channels + 1, dtype=DTYPE, generator=torch.Generator().manual_seed(1))

    def images(*tensors):
        """Three random sums of all pixels."""
        # With fixed decisions, finite differences do not cross a threshold.
        truth = reference.rasterize(
            **(scene | dict(zip(names, tensors))),
            render_mode=render_mode,
            rasterize_mode=rasterize_mode,
            decisions=decisions,
        )
        return (torch.cat([truth.colors, truth.alphas], -1) * weights).sum((1, 2, 3, 4))

    inputs = tuple(scene[name].clone().requires_grad_() for name in names)
    assert torch.autograd.gradcheck(images, inputs, eps=1e-6, atol=1e-6, rtol=1e-5)


def test_given_decisions_are_used():
    scene = scenes.make(scenes.Structure(n=10, seed=5))
    free = reference.rasterize(**scene)
    repeated = reference.rasterize(**scene, decisions=free.decisions)
    assert torch.equal(free.colors, repeated.colors)
    none = reference.Decisions(contributes=torch.zeros_like(free.decisions.contributes))
    assert not reference.rasterize(**scene, decisions=none).alphas.any()


def test_margins_match_closed_form():
    truth = reference.rasterize(
        **ball(2.0, opacities=[0.5]), colors=torch.ones(1, 1, dtype=DTYPE), **front_view(near_plane=1.5)
    )
    half_width = math.sqrt(2 * math.log(255 * 0.5) * 1.3)  # 3.55, rounded up to a radius of 4
    assert math.isclose(float(truth.margins.visible), (4 - half_width) / 4, rel_tol=1e-9)
    assert math.isclose(float(truth.margins.alpha[0, 3, 4, 0]), 1 - 1 / 255 / 0.5, rel_tol=1e-9)
    assert math.isclose(float(truth.margins.stop[0, 3, 4, 0]), 1 - 1e-4 / 0.5, rel_tol=1e-9)
    assert math.isclose(float(truth.margins.clamp[0, 3, 4, 0]), 1 - 0.5 / 0.999, rel_tol=1e-9)
    assert torch.isinf(truth.margins.order).all()


def test_the_default_device_and_dtype_do_not_matter():
    """As a program sets them. Centers of pixels beyond 128 are integers in bf16."""
    viewmats, Ks = torch.eye(4)[None], torch.tensor([[[50.0, 0, 100], [0, 50, 2], [0, 0, 1]]])
    means = torch.tensor([[1.5, 0.0, 1.0]], requires_grad=True)
    rest = torch.tensor([[1.0, 0, 0, 0]]), torch.full((1, 3), 0.1), torch.ones(1), torch.ones(1, 3)
    ends = viewmats.clone()
    ends[:, 0, 3] = 0.05
    lens = dict(with_ut=True, rolling_shutter="ROLLING_LEFT_TO_RIGHT", viewmats_rs=ends)

    def rendered():
        images = [
            tsplat.rasterization(
                means, *rest, viewmats, Ks, 200, 4, packed=False, backend="reference", with_eval3d=evaluates, **lens
            )[0]
            for evaluates in (True, False)
        ]
        return [image.detach() for image in images] + [*torch.autograd.grad(sum(map(torch.sum, images)), means)]

    expected = rendered()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            found = rendered()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(map(torch.equal, found, expected)) and all(values.any() for values in expected)
