"""The kernels of `tsplat.kernels`, compiled for the CPU, against the reference: images and all gradients."""

import pytest
import torch

from tests.support import scenes
from tests.support.closeness import assert_run_exact, assert_run_fp32, run
from tsplat.ops.adam import Adam
from tsplat.ops.image_loss import l1_and_ssim
from tsplat.triton_cpu import launch

jit = pytest.importorskip("triton.runtime.jit")
backend = pytest.importorskip("tsplat.stages.backend")

if backend.triton_is_interpreted():
    pytest.skip("kernels are interpreted in this process", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("cpu")


@pytest.fixture(autouse=True)
def _compiled_kernels(monkeypatch):
    def run_kernel(self, *args, grid, warmup, **kwargs):
        launch(self, grid, args, kwargs)

    monkeypatch.setattr(jit.JITFunction, "run", run_kernel)
    monkeypatch.setattr(backend, "triton_is_interpreted", lambda: True)


def _scene(dtype=torch.float64, **structure):
    return scenes.make(scenes.Structure(**{"n": 12, "cameras": 1, "width": 21, "height": 13, **structure}), dtype)


@pytest.mark.parametrize(("channels", "tile_size"), [(1, 4), (3, 16), (4, 8), (16, 4), (17, 16), (17, 8)])
def test_colors_in_fp64(channels, tile_size):
    assert_run_exact(_scene(channels=channels, seed=channels), backend="triton", tile_size=tile_size)


@pytest.mark.parametrize(("channels", "tile_size"), [(3, 4), (3, 16), (16, 8)])
def test_colors_in_fp32(channels, tile_size):
    assert_run_fp32(_scene(torch.float32, channels=channels, seed=1), backend="triton", tile_size=tile_size)


@pytest.mark.parametrize("sh_degree", [0, 2, 4])
def test_spherical_harmonics(sh_degree):
    scene = _scene(cameras=2, sh_degree=sh_degree, seed=sh_degree)
    assert_run_exact(scene, backend="triton", render_mode="RGB+ED", rasterize_mode="antialiased", packed=False)


def test_batches_covariances_and_absgrad():
    scene = _scene(batch=(2,), cameras=2, covars=True, channels=9)
    assert_run_exact(scene, backend="triton", tile_size=8, absgrad=True, channel_chunk=5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("channels", [3, 17])
def test_half_precision_colors(dtype, channels):
    """As if the same colors were given in fp32; gradients come back in half precision."""
    scene = _scene(torch.float32, channels=channels, backgrounds=False)
    half = dict(scene, colors=scene["colors"].to(dtype))
    single = dict(scene, colors=half["colors"].float())
    found, _ = run(half, backend="triton", tile_size=8)
    expected, _ = run(single, backend="triton", tile_size=8)
    assert found["v_colors"].dtype == dtype
    assert torch.equal(found["v_colors"], expected["v_colors"].to(dtype))
    for name in ("colors", "alphas", "v_means", "v_opacities"):
        assert torch.equal(found[name].float(), expected[name].float()), name


def test_same_bits_for_every_number_of_threads(monkeypatch):
    monkeypatch.setattr("tsplat.triton_cpu.launcher.HELPER_SECONDS", 1e-12)
    scene = _scene(torch.float32, n=40, width=64, height=48)
    before = torch.get_num_threads()
    results = []
    for n_threads in (1, 2, 5):
        torch.set_num_threads(n_threads)
        results.append(run(scene, backend="triton", tile_size=8)[0])
    torch.set_num_threads(before)
    for other in results[1:]:
        assert all(
            tensor is other[name] is None or torch.equal(tensor, other[name]) for name, tensor in results[0].items()
        )


def test_same_bits_on_every_cpu_level(monkeypatch, cpu):
    scene = _scene(torch.float32, n=40, channels=3)
    found, _ = run(scene, backend="triton", tile_size=8)
    monkeypatch.delenv("TSPLAT_CPU", raising=False)
    best, _ = run(scene, backend="triton", tile_size=8)
    assert all(tensor is best[name] is None or torch.equal(tensor, best[name]) for name, tensor in found.items())


def test_losses():
    generator = torch.Generator().manual_seed(0)
    image, target = (torch.rand(2, 19, 37, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    results = []
    for name in ("triton", "torch"):
        leaf = image.clone().requires_grad_()
        l1, ssim = l1_and_ssim(leaf, target, backend=name)
        results.append((l1, ssim, *torch.autograd.grad(l1 + ssim, leaf)))
    for found, expected in zip(*results):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_adam_with_visible_rows():
    results = []
    for name in ("triton", "torch"):
        generator = torch.Generator().manual_seed(0)
        parameter = torch.randn(300, 5, generator=generator, dtype=torch.float64).requires_grad_()
        optimizer = Adam([parameter], lr=0.1, backend=name)
        for _ in range(3):
            parameter.grad = torch.randn(300, 5, generator=generator, dtype=torch.float64)
            optimizer.step(visible=torch.rand(300, generator=generator) < 0.5)
        results.append(parameter.detach())
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-14)
