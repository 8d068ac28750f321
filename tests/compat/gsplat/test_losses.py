"""Losses and regularizers of gsplat 1.6, against formulas and finite differences."""

import pytest
import torch

from tests.support.closeness import assert_exact
from tsplat import ArgumentError, ShapeError, UnsupportedError, l1_and_ssim
from tsplat.compat import gsplat
from tsplat.compat.gsplat import losses
from tsplat.config import SSIM_K1, SSIM_K2


def random(*shape, low=-1.0, high=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)


def test_elementwise_losses():
    pred, target = random(2, 5), random(2, 5, seed=1)
    assert_exact("l1", losses.l1_loss(pred, target), torch.maximum(pred - target, target - pred))
    assert_exact("mse", losses.mse_loss(pred, target), pred**2 - 2 * pred * target + target**2)


def test_ssim_is_that_of_windows_inside_the_images():
    images = [random(2, 3, 14, 13, low=0.0, seed=seed) for seed in range(2)]
    window = torch.exp(-0.5 * (torch.arange(-5, 6, dtype=torch.float64) / 1.5) ** 2)
    window = torch.outer(window, window) / window.sum() ** 2

    def mean(image):
        return torch.nn.functional.conv2d(image.flatten(0, 1)[:, None], window[None, None])[:, 0]

    x, y = images
    mu_x, mu_y = mean(x), mean(y)
    var_x, var_y, cov = mean(x * x) - mu_x**2, mean(y * y) - mu_y**2, mean(x * y) - mu_x * mu_y
    c1, c2 = SSIM_K1**2, SSIM_K2**2
    ssim = (2 * mu_x * mu_y + c1) * (2 * cov + c2) / ((mu_x**2 + mu_y**2 + c1) * (var_x + var_y + c2))
    assert_exact("loss", losses.ssim_loss(*images), 1 - ssim.mean())
    with pytest.raises(UnsupportedError, match="window_size: only 11"):
        losses.ssim_loss(*images, window_size=7)


def test_maps_of_ssim():
    """They are those of windows that the image ends in, too, whose mean `l1_and_ssim` computes."""
    window = losses.create_ssim_window(11, 3)
    assert (
        window.shape == (3, 1, 11, 11)
        and window.dtype == torch.float32
        and window.flatten(1).sum(-1).sub(1).abs().max() < 1e-6
    )
    assert torch.equal(window, window.flip(-1)) and torch.equal(window, window.mT) and torch.equal(window[0], window[2])
    assert abs(window[0, 0, 5, 5] / window[0, 0, 5, 2] - torch.tensor(2.0).exp()) < 1e-4  # three pixels, two deviations
    images = [random(2, 3, 14, 13, low=0.0, seed=seed) for seed in range(2)]
    found = losses.torch_ssim_loss(*images, window)
    _, mean = l1_and_ssim(*(image.movedim(1, -1) for image in images))
    assert found.shape == (2, 3, 14, 13) and abs(float(found.mean() - mean)) < 1e-6
    assert losses.torch_ssim_loss(images[0], images[0], window).sub(1).abs().max() < 1e-9
    small = [image[:1, :, :4, :4].clone().requires_grad_() for image in images]
    assert torch.autograd.gradcheck(lambda x, y: losses.torch_ssim_loss(x, y, window.double()), small, fast_mode=True)
    for arguments, message in (
        (dict(window=window[:1]), r"window: expected .* found"),
        (dict(window_size=10), "window_size: expected an odd number"),
        (dict(img2=images[1][:1]), r"img2: expected .* found"),
        (dict(channel=2), r"img1: expected .* found"),
    ):
        with pytest.raises(ArgumentError, match=message):
            losses.torch_ssim_loss(**dict(img1=images[0], img2=images[1], window=window) | arguments)


def test_depths_that_are_not_positive_have_no_disparity():
    pred = torch.tensor([2.0, -1.0, 0.0, 4.0], dtype=torch.float64).requires_grad_()
    target = torch.tensor([4.0, 2.0, 0.0, 0.0], dtype=torch.float64)
    loss = losses.depth_l1_loss(pred, target, scene_scale=8.0)
    assert_exact("loss", loss, torch.tensor((0.25 + 0.5 + 0.0 + 0.25) / 4 * 8, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(loss, pred)
    assert_exact("gradient", gradient, torch.tensor([-2 / 4, 0, 0, -2 / 16], dtype=torch.float64))


def test_means_of_activated_parameters():
    values = random(7)
    assert_exact("opacity", losses.opacity_reg_loss(values), (1 / (1 + torch.exp(-values))).sum() / 7)
    assert_exact("scale", losses.scale_reg_loss(values), torch.exp(values).sum() / 7)


def test_total_variation():
    x = random(2, 3, 4, 5)
    rows = sum((x[b, :, i + 1] - x[b, :, i]).square().sum() for b in range(2) for i in range(3)) / (3 * 3 * 5)
    columns = sum((x[b, :, :, i + 1] - x[b, :, :, i]).square().sum() for b in range(2) for i in range(4)) / (3 * 4 * 4)
    assert_exact("loss", losses.total_variation_loss(x), (rows + columns) / 2)
    assert not losses.total_variation_loss(x[:, :, :1, :1])
    with pytest.raises(ArgumentError, match="x: expected"):
        losses.total_variation_loss(x[0, 0])


@pytest.mark.parametrize(
    ("loss", "shapes"),
    [
        (losses.l1_loss, [(2, 5), (2, 5)]),
        (losses.mse_loss, [(2, 5), (2, 5)]),
        (losses.ssim_loss, [(1, 1, 12, 12), (1, 1, 12, 12)]),
        (losses.depth_l1_loss, [(7,), (7,)]),
        (losses.opacity_reg_loss, [(7,)]),
        (losses.scale_reg_loss, [(7, 3)]),
        (losses.total_variation_loss, [(2, 1, 3, 4)]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_gradients_of_losses(loss, shapes):
    inputs = [random(*shape, low=0.1, seed=seed) for seed, shape in enumerate(shapes)]
    # Targets of SSIM and of depths are constants.
    needed = 1 if loss in (losses.ssim_loss, losses.depth_l1_loss) else len(inputs)
    assert torch.autograd.gradcheck(loss, [t.requires_grad_(i < needed) for i, t in enumerate(inputs)])


def regularizer_inputs():
    return random(6, 3), random(6, seed=1), random(6, seed=2), random(6, 3, low=-2, high=2, seed=3), random(6, 3, low=1)


@pytest.mark.parametrize("visibility", [None, random(6, low=0.0, seed=4)], ids=["all", "weighted"])
def test_regularizers(visibility):
    scales, densities, z_scales, positions, dims = regularizer_inputs()
    found = gsplat.FusedGaussianLosses(0.25)(scales, densities, z_scales, positions, dims, visibility)
    weights = [1.0] * 6 if visibility is None else visibility.tolist()
    expected = (
        [[abs(value) * w for value in row] for row, w in zip(scales.tolist(), weights)],
        [abs(value) * w for value, w in zip(densities.tolist(), weights)],
        [max(value - 0.25, 0.0) for value in z_scales.tolist()],
        [[max(abs(p) - d / 2, 0.0) for p, d in zip(*rows)] for rows in zip(positions.tolist(), dims.tolist())],
    )
    for index, (one, other) in enumerate(zip(found, expected)):
        assert_exact(str(index), one, torch.tensor(other, dtype=torch.float64))
    singles = (
        gsplat.gaussian_scale_reg(scales, visibility),
        gsplat.gaussian_density_reg(densities, visibility),
        gsplat.gaussian_z_scale_reg(z_scales, 0.25),
        gsplat.out_of_bound_loss(positions, dims),
    )
    assert all(torch.equal(one, other) for one, other in zip(found, singles))


def test_gradients_of_regularizers():
    inputs = [tensor.requires_grad_() for tensor in (*regularizer_inputs(), random(6, 1, low=0.5))]
    assert torch.autograd.gradcheck(lambda *tensors: gsplat.FusedGaussianLosses(0.25)(*tensors), inputs)


def test_visibility_is_checked():
    with pytest.raises(ShapeError, match=r"visibility: expected \[6\], one value per row of scales, found \[5\]"):
        gsplat.gaussian_scale_reg(random(6, 3), random(5))


IMAGE = torch.full((1, 1, 12, 12), 0.5)
UNIT = torch.eye(3)


@pytest.mark.parametrize(
    ("loss", "valid", "wrong", "message"),
    [
        (losses.ssim_loss, (IMAGE, IMAGE), (IMAGE, 3 * IMAGE), r"img2: values must be in \[0, 1\], found 1.5 to 1.5"),
        (losses.ssim_loss, (IMAGE, IMAGE), (IMAGE - 1, IMAGE), r"img1: values must be in \[0, 1\], found -0.5 to -0.5"),
        (losses.normal_cosine_loss, (UNIT, UNIT), (UNIT, 2 * UNIT), "lengths of gt_normal: values must be unit-norm"),
        (losses.gaussian_scale_reg, (UNIT,), (UNIT - 1,), "scales: values must be post-activation.* found -1 to 0"),
        (losses.gaussian_density_reg, (UNIT[0],), (-UNIT[0],), "densities: values must be post-activation"),
        (losses.gaussian_z_scale_reg, (UNIT[0], 0.3), (-UNIT[0], 0.3), "z_scales: values must be post-activation"),
        (
            losses.out_of_bound_loss,
            (UNIT, UNIT + 1),
            (UNIT, UNIT),
            "cuboid_dims: values must be positive, found 0",
        ),
    ],
)
def test_values_are_checked_if_contracts_are_enforced(loss, valid, wrong, message, monkeypatch):
    loss(*wrong)
    monkeypatch.setattr(losses, "ENFORCE_CONTRACTS", True)
    loss(*valid)
    for error in (ArgumentError, AssertionError):
        with pytest.raises(error, match=message):
            loss(*wrong)
