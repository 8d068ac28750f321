"""Losses and image metrics, compared with closed forms and with SSIM computed window by window."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from tsplat import ArgumentError, ShapeError, depth_to_normals
from tsplat.rendering import render_views
from tsplat.scene import Camera, View, intrinsics, look_at
from tsplat.training import Config, fit, loss, psnr, ssim
from tsplat.training.losses import depth_error, prior_depth_error, view_losses


def ssim_by_windows(x, y, pad=0):
    """SSIM (Wang et al., 2004) in NumPy and fp64, one window and channel at a time."""
    weights = np.exp(-0.5 * ((np.arange(11) - 5) / 1.5) ** 2)
    window = np.outer(weights, weights) / np.outer(weights, weights).sum()
    values = []
    for channel in range(x.shape[-1]):
        a, b = (np.pad(i[..., channel].double().numpy(), pad) for i in (x, y))
        for top in range(a.shape[0] - 10):
            for left in range(a.shape[1] - 10):
                p, q = (i[top : top + 11, left : left + 11] for i in (a, b))
                mean_p, mean_q = (window * p).sum(), (window * q).sum()
                var_p, var_q = (window * (p - mean_p) ** 2).sum(), (window * (q - mean_q) ** 2).sum()
                cov = (window * (p - mean_p) * (q - mean_q)).sum()
                c1, c2 = 0.01**2, 0.03**2
                numerator = (2 * mean_p * mean_q + c1) * (2 * cov + c2)
                values.append(numerator / ((mean_p**2 + mean_q**2 + c1) * (var_p + var_q + c2)))
    return np.mean(values)


@pytest.fixture
def images():
    torch.manual_seed(1)
    x = torch.rand(17, 23, 3)
    return x, (x + 0.2 * torch.randn(17, 23, 3)).clamp(0, 1)


@pytest.mark.parametrize(("padding", "pad"), [("valid", 0), ("same", 5)])
def test_ssim_matches_the_definition(images, padding, pad):
    assert float(ssim(*images, padding=padding)) == pytest.approx(ssim_by_windows(*images, pad), abs=1e-5)


def test_ssim_of_uniform_images():
    a, b = torch.full((20, 20, 3), 0.4), torch.full((20, 20, 3), 0.7)
    expected = (2 * 0.4 * 0.7 + 1e-4) / (0.4**2 + 0.7**2 + 1e-4)
    assert float(ssim(a, b)) == pytest.approx(expected, abs=1e-4)


def test_equal_images(images):
    x, _ = images
    for padding in ("valid", "same"):
        assert float(ssim(x, x, padding=padding)) == pytest.approx(1, abs=1e-6)
    assert float(loss(x, x)) == pytest.approx(0, abs=1e-6)
    assert float(psnr(x, x)) == math.inf


def test_psnr_of_a_constant_error():
    x = torch.rand(4, 5, 3) * 0.5
    assert float(psnr(x, x + 0.1)) == pytest.approx(20, abs=1e-4)


def test_loss_is_the_sum_of_l1_and_ssim(images):
    expected = 0.8 * float((images[0] - images[1]).abs().mean()) + 0.2 * (1 - ssim_by_windows(*images, 5))
    assert float(loss(*images)) == pytest.approx(expected, abs=1e-5)


def test_ssim_gradient_reaches_every_pixel(images):
    x = images[0].requires_grad_()
    (1 - ssim(x, images[1], padding="same")).backward()
    assert (x.grad != 0).float().mean() > 0.99


def test_ssim_gradient_matches_finite_differences(images):
    torch.manual_seed(2)
    x, y = images
    x.requires_grad_()
    ssim(x, y, padding="same").backward()
    direction = torch.randn_like(x)
    step = 1e-3
    with torch.no_grad():
        forward, backward = (ssim(x + s * direction, y, padding="same") for s in (step, -step))
        slope = float(forward - backward) / (2 * step)
    assert float((x.grad * direction).sum()) == pytest.approx(slope, rel=0.02)


def test_ssim_of_a_batch_is_the_mean(images):
    x, y = images
    both = ssim(torch.stack([x, x]), torch.stack([x, y]))
    assert float(both) == pytest.approx(0.5 + 0.5 * float(ssim(x, y)), abs=1e-6)


def test_ssim_is_computed_in_fp32_for_half_precision_and_under_autocast(images):
    x, y = (i.bfloat16() for i in images)
    expected = ssim(x.float(), y.float())
    assert ssim(x, y).dtype == torch.float32
    assert torch.equal(ssim(x, y), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(ssim(x, y), expected)


def test_invalid_images(images):
    for measure in (psnr, ssim, loss):
        with pytest.raises(ShapeError, match="target"):
            measure(images[0], images[1][:-1])
    with pytest.raises(ShapeError, match="11 pixels"):
        ssim(torch.zeros(10, 40, 3), torch.zeros(10, 40, 3))
    with pytest.raises(ArgumentError, match="padding"):
        ssim(*images, padding="full")


def render_depth(gaussians, view):
    """Expected depth [H, W], and sparse points [P, 3] at the centers of opaque pixels."""
    with torch.no_grad():
        images, alphas, _ = render_views(gaussians, [view.camera], render_mode="ED")
    depth = images[0, ..., 0]
    ys, xs = (alphas[0, ..., 0] > 0.9).nonzero().unbind(-1)
    return depth, torch.stack([xs + 0.5, ys + 0.5, depth[ys, xs]], -1)


def test_depth_error_uses_pixel_centers_at_one_half(scene):
    gaussians, views = scene
    view = views[0]
    depth, sparse = render_depth(gaussians, view)
    assert len(sparse) > 50
    assert float(depth_error(depth, sparse)) < 1e-6
    assert float(depth_error(torch.zeros(view.height, view.width), sparse)) == pytest.approx(
        float((1 / sparse[:, 2]).mean())
    )


@pytest.mark.slow
def test_depth_weight_moves_gaussians_to_sparse_depths(scene):
    gaussians, views = scene
    view = views[0]
    _, sparse = render_depth(gaussians, view)
    start = dataclasses.replace(gaussians, means=gaussians.means + 0.3 * view.camera.viewmat[2, :3])
    config = Config(steps=120, means_rate=5e-3, depth_weight=1.0)
    result = fit(start, [dataclasses.replace(view, sparse=sparse), *views[1:]], config)
    before, after = (float(depth_error(render_depth(g, view)[0], sparse)) for g in (start, result))
    assert after < 0.3 * before


@pytest.fixture
def rendered():
    """A view, and random images of it as `render_views` returns them, in fp64."""
    generator = torch.Generator().manual_seed(2)
    shapes = dict(images=(1, 5, 4, 4), alphas=(1, 5, 4, 1), render_normals=(1, 5, 4, 3), surf_normals=(5, 4, 3))
    shapes["render_distort"] = (1, 5, 4, 1)
    meta = {name: torch.rand(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    viewmat = look_at((1.0, -2.0, -3.0), (0.0, 0.0, 0.0)).double()
    camera = Camera(viewmat, intrinsics(4, 5, 50).double(), 4, 5)
    return View(torch.zeros(5, 4, 3, dtype=torch.uint8), camera), meta.pop("images"), meta.pop("alphas"), meta


def add(progress, images, alphas, meta, view, surfels, **weights):
    """The sum of the losses of a view after a fraction of the run, and whether they need depth."""
    losses = [loss for loss in view_losses(Config(**weights), 1.0, surfels, {}) if progress >= loss.start]
    return sum(loss(images, alphas, meta, view) for loss in losses), any(loss.needs_depth for loss in losses)


def test_losses_of_2d_gaussians_are_those_of_the_paper(rendered):
    view, images, alphas, meta = rendered
    normals, surface = meta["render_normals"][0], meta["surf_normals"]
    cosines = [[alphas[0, i, j, 0] * (normals[i, j] @ surface[i, j]) for j in range(4)] for i in range(5)]
    by_normals, by_distortion = 0.05 * (1 - torch.tensor(cosines)), 0.2 * meta["render_distort"][0, ..., 0]
    weights = dict(surfels=True, normal_weight=0.05, distortion_weight=0.2)
    assert add(0.05, images, alphas, meta, view, **weights) == (0, False)
    expected = {0.2: (by_distortion.mean(), False), 0.24: ((by_normals + by_distortion).mean(), True)}
    for progress, (value, needs_depth) in expected.items():
        found, is_needed = add(progress, images, alphas, meta, view, **weights)
        torch.testing.assert_close(found, value)
        assert is_needed == needs_depth
    masked = dataclasses.replace(view, mask=normals[..., 0] > 0.3)
    found, _ = add(1.0, images, alphas.requires_grad_(), meta, masked, **weights)
    torch.testing.assert_close(found, ((by_normals + by_distortion) * masked.mask).mean())
    assert not found.requires_grad and not view_losses(Config(), 1.0, True, {})


def _prior_error(*arguments):
    return prior_depth_error(*arguments)[0]


def test_a_depth_prior_is_fitted_by_least_squares(rendered):
    view, images, alphas, meta = rendered
    images[0, ..., 3] += 1
    depth = images[0, ..., 3].clone()
    prior = (1 / depth - 0.3) / 0.7
    covered = alphas[0, ..., 0] > 0.5
    assert 3 < covered.sum() < 17
    torch.testing.assert_close(_prior_error(depth, prior, covered).item(), 0.0, atol=1e-15, rtol=0)
    noisy = prior + 0.1 * meta["surf_normals"][..., 0]
    noisy[tuple(covered.nonzero()[0])], noisy[~covered] = torch.nan, 5.0
    known = covered & noisy.isfinite()
    assert known.sum() == covered.sum() - 1
    columns = torch.stack([noisy[known], torch.ones_like(noisy[known])], 1)
    fitted = columns @ torch.linalg.lstsq(columns, 1 / depth[known][:, None]).solution
    expected = (1 / depth[known] - fitted[:, 0]).abs().mean()
    torch.testing.assert_close(_prior_error(depth, noisy, covered), expected)
    with_prior = dataclasses.replace(view, depth_prior=noisy)
    weights = dict(surfels=False, depth_weight=0.4)
    torch.testing.assert_close(add(0.0, images, alphas, meta, with_prior, **weights)[0], 0.4 * expected)
    assert add(0.0, images, alphas, meta, view, **weights) == (0, True)
    mask = torch.rand(5, 4, generator=torch.Generator().manual_seed(0)) > 0.4
    masked = dataclasses.replace(with_prior, mask=mask)
    expected = 0.4 * _prior_error(depth, noisy, covered & mask)
    torch.testing.assert_close(add(0.0, images, alphas, meta, masked, **weights)[0], expected)
    depth.requires_grad_()
    gradient = torch.autograd.grad(_prior_error(depth, noisy, covered), depth)[0]
    assert gradient.isfinite().all() and not gradient[~known].any() and gradient[known].any()
    nothing = _prior_error(depth, noisy, torch.zeros_like(covered))
    assert nothing == 0 and torch.autograd.grad(nothing, depth)[0].isfinite().all()


def test_priors_of_disparity_have_a_scale_and_metric_ones_none():
    generator = torch.Generator().manual_seed(0)
    depth = 1 + torch.rand(5, 4, generator=generator).double()
    prior = 3 / depth + 0.2 * torch.rand(5, 4, generator=generator)
    weights = torch.rand(5, 4, generator=generator).double()
    covered = torch.ones(5, 4, dtype=torch.bool)
    scale = (weights * prior / depth).sum() / (weights * prior.square()).sum()
    expected = (weights * (1 / depth - scale * prior).abs()).mean()
    torch.testing.assert_close(_prior_error(depth, prior, covered, "disparity", weights), expected)
    torch.testing.assert_close(_prior_error(depth, prior, covered, "metric"), (1 / depth - prior).abs().mean())
    root = weights.sqrt().flatten()[:, None]
    columns = root * torch.stack([prior.flatten(), torch.ones(20, dtype=torch.float64)], 1)
    fitted = torch.linalg.lstsq(columns, root / depth.flatten()[:, None]).solution
    expected = (weights * (1 / depth - fitted[0] * prior - fitted[1]).abs()).mean()
    torch.testing.assert_close(_prior_error(depth, prior, covered, "inverse", weights), expected)


@pytest.mark.parametrize("surfels", [False, True])
def test_a_normal_prior_is_in_the_camera_frame(rendered, surfels):
    view, images, alphas, meta = rendered
    images[0, ..., 3] += 1
    R = view.camera.viewmat[:3, :3]
    generator = torch.Generator().manual_seed(3)
    prior = torch.nn.functional.normalize(torch.randn(5, 4, 3, generator=generator, dtype=torch.float64), dim=-1)
    prior[2] = 0
    with_prior = dataclasses.replace(view, normal_prior=prior)
    to_world = torch.linalg.inv(view.camera.viewmat)
    by_depth = depth_to_normals(images[0, ..., 3:], to_world, view.camera.K) * alphas[0]
    normals = meta["render_normals"][0] if surfels else by_depth
    expected = sum(1 - (R @ normals[i, j]) @ prior[i, j] for i in range(5) for j in range(4) if i != 2) / 20
    weights = dict(surfels=surfels, normal_weight=0.5)
    torch.testing.assert_close(add(0.1, images, alphas, meta, with_prior, **weights)[0], 0.5 * expected)
    assert add(0.1, images, alphas, meta, view, **weights) == (0, not surfels)
