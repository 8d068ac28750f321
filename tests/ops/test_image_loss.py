"""Fused L1 and SSIM against the formula in plain PyTorch, with autograd's gradients."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.gpu_timing import counting
from emulator.package import tsplat_emulated
from tests.emulator.targets import each_target, one_target
from tests.support.backends import BACKENDS
from tests.support.closeness import assert_exact
from tsplat import ArgumentError, ShapeError, UnsupportedError
from tsplat.config import SSIM_TAPS
from tsplat.kernels import launch as launching
from tsplat.ops.image_loss import _l1_ssim_and_loss, l1_and_ssim, l1_ssim_loss


def plain_l1_and_ssim(x, y, padding):
    """The formula with explicit windows: weighted sums of shifted copies of the image."""
    border = 0 if padding == "same" else 10
    height, width = x.shape[-3] - border, x.shape[-2] - border

    def mean(values):
        if padding == "same":
            values = torch.nn.functional.pad(values, (0, 0, 5, 5, 5, 5))
        return sum(
            a * b * values[..., i : i + height, j : j + width, :]
            for i, a in enumerate(SSIM_TAPS)
            for j, b in enumerate(SSIM_TAPS)
        )

    mx, my = mean(x), mean(y)
    vx, vy, covariance = mean(x * x) - mx * mx, mean(y * y) - my * my, mean(x * y) - mx * my
    c1, c2 = 1e-4, 9e-4
    ssim = (2 * mx * my + c1) * (2 * covariance + c2) / ((mx * mx + my * my + c1) * (vx + vy + c2))
    return (x - y).abs().mean(), ssim.mean()


def assert_matches_plain_pytorch(batch, width, height, channels, seed, planar, padding, backend):
    generator = torch.Generator().manual_seed(seed)
    shape = (*batch, channels, height, width) if planar else (*batch, height, width, channels)
    x, y = (torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    if planar:
        x, y = x.movedim(-3, -1), y.movedim(-3, -1)
    x = x.detach().requires_grad_()
    v = torch.randn(2, generator=generator, dtype=torch.float64)
    results = []
    for outputs in (l1_and_ssim(x, y, padding=padding, backend=backend), plain_l1_and_ssim(x, y, padding)):
        results.append((*outputs, *torch.autograd.grad(outputs, x, list(v))))
    for name, found, expected in zip(("l1", "ssim", "v_image"), *results):
        assert_exact(name, found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_losses_and_gradients_match_plain_pytorch(padding):
    least = 11 if padding == "valid" else 1

    @settings(max_examples=60)
    @given(
        st.sampled_from([(), (2,), (2, 1)]), st.integers(least, 75), st.integers(least, 40), st.integers(1, 4),
        st.integers(0, 2**31), st.booleans(),
    )  # fmt: skip
    def check(batch, width, height, channels, seed, planar):
        assert_matches_plain_pytorch(batch, width, height, channels, seed, planar, padding, "torch")

    check()


@pytest.mark.triton
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize(
    ("batch", "width", "height", "channels", "planar"),
    [((), 11, 11, 1, False), ((), 75, 18, 1, True), ((2, 1), 12, 33, 1, False), ((2,), 13, 12, 3, True)],
    ids=["one window", "two blocks of columns", "three blocks of rows", "planar channels"],
)
def test_kernels_match_plain_pytorch(batch, width, height, channels, planar, padding):
    assert_matches_plain_pytorch(batch, width, height, channels, 0, planar, padding, "triton")


@pytest.mark.triton
def test_kernels_match_plain_pytorch_for_images_smaller_than_a_window():
    assert_matches_plain_pytorch((), 3, 1, 2, 0, False, "same", "triton")


@pytest.mark.slow
@each_target
def test_gradients_of_zero_change_no_bit_on_gpus(target, code):
    """Graphs of torch.compile pass zeros for outputs that are not used, and eager calls nothing."""
    generator = torch.Generator().manual_seed(0)
    given, target_image = torch.rand(2, 40, 150, 3, generator=generator)
    zero, one, gradients = torch.zeros(()), torch.ones(()), []
    with tsplat_emulated(target, code):
        for v in ((None, None, one), (zero, zero, one)):
            image = given.clone().requires_grad_()
            outputs = _l1_ssim_and_loss(image, target_image, 0.2, "same", "triton")
            used = [(output, of_output) for output, of_output in zip(outputs, v) if of_output is not None]
            outputs, v = zip(*used)
            gradients += torch.autograd.grad(outputs, image, v)
    assert torch.equal(*gradients)


@pytest.mark.triton
def test_maps_of_more_than_half_of_int32_are_written(tmp_path):
    """Of a large batch; here of one plane, whose maps are that far apart in a file that is mostly a hole."""
    from tsplat.kernels import image_loss

    size, shape = 2**30 + 8, (1, 16, 16, 1)
    image, target = torch.rand(shape), torch.rand(shape)
    _, (image, target, maps) = image_loss.l1_ssim_fwd(
        image, target, valid=False, n_windows=256, ssim_weight=0.2, dtype=torch.float32
    )
    far = torch.from_numpy(np.memmap(tmp_path / "maps", np.float32, "w+", shape=(2 * size + 256,)))
    arguments = image_loss._arguments(image, target, maps) | dict(maps=far, size=size)
    constants = dict(VALID=False, C1=image_loss.SSIM_K1**2, C2=image_loss.SSIM_K2**2)
    image_loss._l1_ssim_fwd_kernel.launch(1, sums=torch.empty(2, 1), **constants, **arguments)
    for k, expected in enumerate(maps):
        assert torch.equal(far[k * size : k * size + 256], expected.flatten())


@pytest.mark.slow
@one_target
def test_pixels_that_are_far_apart_on_gpus(target, code, tmp_path):
    """As the first channels of a large image with many; here of ten rows in a file that is mostly a hole."""
    near, seen = (torch.rand(1, 10, 4, 3).half() for _ in range(2))
    step = 2**28
    memory = torch.from_numpy(np.memmap(tmp_path / "image", np.float16, "w+", shape=(9 * step + 12,)))
    far = memory.as_strided(near.shape, (0, step, 3, 1)).copy_(near)
    with tsplat_emulated(target, code):
        expected, found = ([*l1_and_ssim(image, seen, backend="triton")] for image in (near, far))
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_images_in_bfloat16(backend):
    x = torch.rand(12, 14, 3, dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = l1_ssim_loss(x, x.detach(), backend=backend)
    assert loss.dtype == torch.float32
    assert abs(loss.item()) < 1e-6
    loss.backward()
    assert x.grad.dtype == torch.bfloat16
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_loss_is_weighted_sum_of_l1_and_ssim(padding, backend):
    x, y = torch.rand(2, 40, 150, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x.requires_grad_()
    l1, ssim = l1_and_ssim(x, y, padding=padding, backend=backend)
    loss = l1_ssim_loss(x, y, ssim_weight=0.3, padding=padding, backend=backend)
    expected = 0.7 * l1 + 0.3 * (1 - ssim)
    gradients = [torch.autograd.grad(2 * value, x, retain_graph=True)[0] for value in (loss, expected, l1, ssim)]
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients[0], gradients[1])
    torch.testing.assert_close(gradients[0], 0.7 * gradients[2] - 0.3 * gradients[3])
    together = _l1_ssim_and_loss(x, y, 0.3, padding, backend)
    (v_image,) = torch.autograd.grad(together, x, [torch.tensor(v, dtype=x.dtype) for v in (0.5, -3.0, 2.0)])
    torch.testing.assert_close(v_image, 0.25 * gradients[2] - 1.5 * gradients[3] + gradients[0])


@pytest.mark.triton
def test_loss_takes_three_launches_and_one_operator(monkeypatch):
    """The operator makes the first gradient."""
    launched = []

    monkeypatch.setattr(launching, "observer", lambda *launch: launched.append(launch))
    y, x = torch.rand(2, 3, 20, 30).movedim(1, -1)
    x.requires_grad_()
    l1_ssim_loss(x, y, backend="triton")
    launched.clear()
    with counting.Operators() as operators:
        l1_ssim_loss(x, y, backend="triton").backward()
    assert len(launched) == 3
    assert [operator.name for operator in operators.found] == ["ones_like"]


def test_invalid_arguments_raise():
    x = torch.rand(12, 12, 3)
    with pytest.raises(ShapeError, match=r"target: expected \[12, 12, 3\] as image, found \[12, 3\]"):
        l1_and_ssim(x, x[0])
    with pytest.raises(ShapeError, match="SSIM needs at least 11 pixels along each edge"):
        l1_and_ssim(x[:5], x[:5], padding="valid")
    with pytest.raises(ArgumentError, match=r"image: expected \[..., H, W, C\] with at least one pixel"):
        l1_and_ssim(x[:0], x[:0])
    with pytest.raises(ShapeError, match=r"found \[3, 20, 30\], which looks like .*; pass image.movedim\(-3, -1\)"):
        l1_ssim_loss(torch.rand(3, 20, 30), torch.rand(3, 20, 30))
    with pytest.raises(ArgumentError, match="padding: expected one of 'same', 'valid', found 'reflect'"):
        l1_and_ssim(x, x, padding="reflect")
    with pytest.raises(UnsupportedError, match="target: its gradient is not implemented"):
        l1_and_ssim(x, x.clone().requires_grad_())
