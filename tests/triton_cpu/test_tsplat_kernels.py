"""The kernels of `tsplat.kernels`, compiled for the CPU, against the reference: images and all gradients."""

import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.closeness import FP32_EPSILONS, assert_run_fp32, assert_same_bits, compare, run, run_reference
from tsplat.ops.adam import Adam
from tsplat.ops.image_loss import l1_and_ssim

backend = pytest.importorskip("tsplat.runtime.backend")
matrices = pytest.importorskip("tsplat.kernels.compositing.matrices")

if backend.triton_is_interpreted():
    pytest.skip("kernels are interpreted in this process", allow_module_level=True)

slow = pytest.mark.slow
pytestmark = pytest.mark.usefixtures("cpu")


def _scene(dtype=torch.float64, **structure):
    return scenes.make(scenes.Structure(**{"n": 12, "cameras": 1, "width": 13, "height": 9, **structure}), dtype)


def assert_fp64(scene, **settings):
    """Compares images and all gradients with the reference: errors below 1e-12 of the largest entry."""
    found, _ = run(scene, backend="triton", **settings)
    truth, _ = run_reference(scene, **settings)
    for name, expected in truth.items():
        compare(name, found[name], expected, 1e-12)


@pytest.mark.parametrize("channels", [1, 4, 16, *(pytest.param(n, marks=slow) for n in (3, 15, 17, 32, 33, 64))])
def test_colors_in_fp64(channels):
    assert_fp64(_scene(channels=channels, seed=channels), tile_size=4)


@pytest.mark.parametrize("channels", [3, pytest.param(16, marks=slow)])
def test_masked_tiles_in_fp64(channels):
    """Against PyTorch, as the reference has no masks."""
    scene = _scene(channels=channels, width=16, height=12)
    *_, meta = tsplat.rasterization(**scene, tile_size=4, packed=False, backend="torch")
    names = ("means2d", "conics", "colors", "opacities", "backgrounds")
    values = {**meta, "colors": scene["colors"][None], "backgrounds": scene["backgrounds"]}
    masks = torch.arange(12).view(1, 3, 4) % 3 > 0
    results = []
    for name in ("triton", "torch"):
        inputs = {key: values[key].detach().clone().requires_grad_() for key in names}
        images = tsplat.rasterize_to_pixels(
            **inputs, image_width=16, image_height=12, tile_size=4, isect_offsets=meta["isect_offsets"],
            flatten_ids=meta["flatten_ids"], masks=masks, backend=name,
        )  # fmt: skip
        gradients = torch.autograd.grad(images, list(inputs.values()), scenes.random_like(images, 0))
        results.append((*images, *gradients))
    for name, found, expected in zip(("image", "alphas", *names), *results, strict=True):
        compare(name, found, expected, 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["gsplat-1.6", "inria"])
@pytest.mark.parametrize("camera_model", ["fisheye", "ortho"])
def test_camera_models_and_presets_in_fp64(camera_model, numerics):
    scene = _scene(cameras=2, camera_model=camera_model, sh_degree=1, seed=3)
    assert_fp64(scene, tile_size=4, numerics=numerics)


@pytest.mark.parametrize("tile_size", [8, 16])
def test_larger_tiles_in_fp64(tile_size):
    assert_fp64(_scene(width=33), tile_size=tile_size)


@pytest.mark.slow
@pytest.mark.parametrize(("channels", "tile_size"), [(4, 16), (33, 4)])
def test_colors_in_fp32(channels, tile_size):
    assert_run_fp32(_scene(torch.float32, channels=channels, seed=1), backend="triton", tile_size=tile_size)


@pytest.mark.parametrize("sh_degree", [0, pytest.param(4, marks=slow)])
def test_spherical_harmonics(sh_degree):
    scene = _scene(cameras=2, sh_degree=sh_degree, seed=sh_degree)
    assert_fp64(scene, tile_size=4, render_mode="RGB+ED", rasterize_mode="antialiased", packed=False)


@pytest.mark.slow
def test_batches_covariances_and_absgrad():
    assert_fp64(_scene(batch=(2,), cameras=2, covars=True, channels=4), tile_size=4, absgrad=True, channel_chunk=3)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "channels"), [(torch.float16, 17), (torch.bfloat16, 3)], ids=str)
def test_half_precision_colors(dtype, channels):
    """As if the same colors were given in fp32; gradients come back in half precision."""
    scene = _scene(torch.float32, channels=channels, backgrounds=False)
    half = dict(scene, colors=scene["colors"].to(dtype))
    single = dict(scene, colors=half["colors"].float())
    found, _ = run(half, backend="triton", tile_size=4)
    expected, _ = run(single, backend="triton", tile_size=4)
    assert found["v_colors"].dtype == dtype
    assert torch.equal(found["v_colors"], expected["v_colors"].to(dtype))
    for name in ("colors", "alphas", "v_means", "v_opacities"):
        assert torch.equal(found[name].float(), expected[name].float()), name


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_factors_split_into_parts(dtype, monkeypatch):
    """Products as on tensor cores: factors in parts of 11 bits, or one whole factor if its bits fit."""

    def split(records, splats):
        return matrices.Products(SPLIT=True, EXACT=splats.colors.dtype == torch.bfloat16)

    scene = _scene(torch.float32, channels=17, backgrounds=False)
    scene = dict(scene, colors=scene["colors"].to(dtype))
    whole, _ = run(scene, backend="triton", tile_size=4)
    monkeypatch.setattr(matrices.Products, "of", split)
    found, _ = run(scene, backend="triton", tile_size=4)
    assert not torch.equal(found["colors"], whole["colors"])
    for name, expected in whole.items():
        bound = 1e-2 if expected.dtype == torch.bfloat16 else FP32_EPSILONS * torch.finfo(torch.float32).eps
        compare(name, found[name], expected, bound)


@pytest.mark.slow
def test_same_bits_in_bands():
    scene = _scene(torch.float32, cameras=2, n=10, width=6, height=18, size=4.0, seed=2)
    whole, meta = run(scene, backend="triton", tile_size=4)
    bands, meta_of_bands = run(scene, backend="triton", tile_size=4, memory_budget=meta["memory"]["peak_bytes"] // 3)
    assert meta_of_bands["memory"]["bands"] >= 3
    assert_same_bits(whole, bands)


@pytest.mark.slow
def test_same_bits_for_every_number_of_threads(monkeypatch):
    monkeypatch.setattr("tsplat.triton_cpu.launcher.HELPER_SECONDS", 1e-12)
    scene = _scene(torch.float32, n=40, width=64, height=48, cameras=2)
    before = torch.get_num_threads()
    results = []
    try:
        for n_threads in (1, 2, 4):
            torch.set_num_threads(n_threads)
            results.append(run(scene, backend="triton", tile_size=4)[0])
    finally:
        torch.set_num_threads(before)
    assert_same_bits(results[0], results[1])
    assert_same_bits(results[0], results[2])


@pytest.mark.slow
@pytest.mark.parametrize("channels", [3, 17])
def test_same_bits_on_every_cpu_level(channels, monkeypatch):
    scene = _scene(torch.float32, n=40, cameras=2, channels=channels)
    found, _ = run(scene, backend="triton", tile_size=4)
    monkeypatch.delenv("TSPLAT_CPU", raising=False)
    monkeypatch.setattr("tsplat.kernels.launch.compiled", {})
    best, _ = run(scene, backend="triton", tile_size=4)
    assert_same_bits(found, best)


@pytest.mark.slow
def test_losses():
    generator = torch.Generator().manual_seed(0)
    image, target = (torch.rand(2, 19, 37, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    results = []
    for name in ("triton", "torch"):
        leaf = image.clone().requires_grad_()
        l1, ssim = l1_and_ssim(leaf, target, backend=name)
        results.append((l1.detach(), ssim.detach(), *torch.autograd.grad(l1 + ssim, leaf)))
    for part, found, expected in zip(("l1", "ssim", "v_image"), *results):
        compare(part, found, expected, 1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)], ids=str)
def test_adam_with_visible_rows(dtype, tolerance):
    results = []
    for name, kind in (("triton", dtype), ("torch", torch.float64)):
        generator = torch.Generator().manual_seed(0)
        parameter = torch.randn(300, 5, generator=generator).to(kind).requires_grad_()
        optimizer = Adam([parameter], lr=0.1, backend=name)
        for _ in range(3):
            parameter.grad = torch.randn(300, 5, generator=generator).to(kind)
            optimizer.step(visible=torch.rand(300, generator=generator) < 0.5)
        results.append(parameter.detach())
    compare("parameter", *results, tolerance)
