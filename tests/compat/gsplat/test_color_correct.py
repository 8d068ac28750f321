"""Color correction against NumPy's polynomial fit and PyTorch's least squares."""

import numpy as np
import pytest
import torch

from tests.support.closeness import assert_exact
from tsplat import ShapeError
from tsplat.compat.gsplat import color_correct_affine, color_correct_quadratic


def make_images(low=0.1, high=0.9, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ref = low + (high - low) * torch.rand(6, 7, 3, generator=generator, dtype=torch.float64)
    img = 0.8 * ref + 0.1 * ref.roll(1, -1) + 0.05 * torch.rand(6, 7, 3, generator=generator, dtype=torch.float64)
    return img, ref


def test_affine_inverts_the_fit_of_each_channel():
    img, ref = make_images()
    expected = torch.empty_like(img)
    for channel in range(3):
        slope, offset = np.polyfit(ref[..., channel].flatten().numpy(), img[..., channel].flatten().numpy(), 1)
        expected[..., channel] = ((img[..., channel] - offset) / slope).clamp(0, 1)
    assert_exact("image", color_correct_affine(img, ref), expected)


def test_affine_recovers_an_exposure_and_a_shift():
    _, ref = make_images()
    gains, shifts = torch.tensor([0.5, 0.9, 1.3]), torch.tensor([0.1, -0.05, 0.0])
    assert_exact("image", color_correct_affine(gains * ref + shifts, ref), ref)


def test_affine_of_constant_images_is_finite():
    img = torch.full((2, 2, 3), 0.25, dtype=torch.float64)
    _, ref = make_images()
    assert torch.equal(color_correct_affine(img, 2 * img), torch.zeros_like(img))
    assert color_correct_affine(torch.full_like(ref, 0.5), ref).isfinite().all()


def test_affine_gradients():
    img, ref = (image[:2, :2].clone().requires_grad_() for image in make_images())
    assert torch.autograd.gradcheck(color_correct_affine, (img, ref))


def correct_by_least_squares(img, ref, num_iters, eps):
    first, target = img.reshape(-1, 3), ref.reshape(-1, 3)
    colors = first
    for _ in range(num_iters):
        r, g, b = colors.unbind(-1)
        terms = torch.stack([r * r, r * g, r * b, g * g, g * b, b * b, r, g, b, torch.ones_like(r)], -1)
        columns = []
        for channel in range(3):
            values = torch.stack([first[:, channel], colors[:, channel], target[:, channel]])
            used = ((values >= eps) & (values <= 1 - eps)).all(0)
            columns.append(terms @ torch.linalg.lstsq(terms[used], target[used, channel, None]).solution[:, 0])
        colors = torch.stack(columns, -1).clamp(0, 1)
    return colors.view(img.shape)


@pytest.mark.parametrize(("low", "high"), [(0.1, 0.9), (-0.2, 1.2)], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("num_iters", [1, 5])
def test_quadratic_matches_least_squares(low, high, num_iters):
    img, ref = make_images(low, high)
    if high > 1:
        # More contrast, so that other pixels are clipped than in the reference image.
        img, ref = (1.5 * img - 0.25).clamp(0, 1), ref.clamp(0, 1)
    found = color_correct_quadratic(img, ref, num_iters)
    assert_exact("image", found, correct_by_least_squares(img, ref, num_iters, 0.5 / 255))


def test_quadratic_gradients():
    img, ref = (image[:4].clone().requires_grad_() for image in make_images())
    assert torch.autograd.gradcheck(lambda *images: color_correct_quadratic(*images, num_iters=2), (img, ref))


def test_quadratic_with_other_bounds_of_clipping():
    img, ref = make_images(0.0, 1.0)
    found = color_correct_quadratic(img, ref, 2, eps=0.15)
    assert_exact("image", found, correct_by_least_squares(img, ref, 2, 0.15))


def test_quadratic_of_a_constant_image_is_finite():
    img = torch.full((4, 4, 3), 0.5, dtype=torch.float64)
    _, ref = make_images()
    found = color_correct_quadratic(img, ref[:4, :4])
    assert_exact("image", found, ref[:4, :4].mean((0, 1)).expand(4, 4, 3))


@pytest.mark.parametrize("function", [color_correct_affine, color_correct_quadratic])
def test_shapes_are_checked(function):
    img, ref = make_images()
    with pytest.raises(ShapeError, match=r"ref: expected \[6, 7, 3\] as img, found \[6, 6, 3\]"):
        function(img, ref[:, :6])
