"""Compiled kernels on a GPU against the reference and the backend `torch`; `test_property_on_gpu` has random scenes."""

import pytest
import torch

import tsplat
from tests.support import lenses, scenes
from tests.support.closeness import (
    assert_decisions,
    assert_exact,
    assert_run_fp32,
    assert_same_bits,
    run,
)
from tsplat import l1_and_ssim, ops
from tsplat.config import FEATURES_MIN

pytestmark = pytest.mark.gpu

DEVICE = "cuda"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rasterize_mode", ["classic", "antialiased"])
def test_crowded_scenes_match_reference(seed, rasterize_mode):
    structure = scenes.Structure(n=400, cameras=1, width=64, height=48, size=5.0, sh_degree=3, seed=seed)
    scene = scenes.make(structure, torch.float32, DEVICE)
    assert_run_fp32(scene, seed=seed, backend="triton", rasterize_mode=rasterize_mode, render_mode="RGB+ED")


@pytest.mark.parametrize("channels", [1, 3, 6, 7, 8, 9, 16, 17, 32, 40, 64])
def test_numbers_of_channels_match_reference(channels):
    structure = scenes.Structure(n=100, cameras=2, channels=channels, width=50, height=40, seed=channels)
    assert_run_fp32(scenes.make(structure, torch.float32, DEVICE), backend="triton")


@pytest.mark.parametrize("sh_degree", [0, 1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_coefficients_in_two_tensors_give_the_bits_of_one(sh_degree, dtype):
    structure = scenes.Structure(n=100, cameras=2, width=30, height=20, sh_degree=3, seed=4)
    scene = scenes.make(structure, torch.float32, DEVICE) | {"sh_degree": sh_degree, "backend": "triton"}
    given, results = scene["colors"].to(dtype).split([1, 15], -2), []
    for in_two in (True, False):
        first, higher, means = (t.contiguous().clone().requires_grad_() for t in (*given, scene["means"]))
        colors = {"colors": first, "shN": higher} if in_two else {"colors": torch.cat([first, higher], -2)}
        image, *_ = tsplat.rasterization(**scene | {"means": means} | colors)
        results.append((image, *torch.autograd.grad(image.square().sum(), (first, higher, means))))
    for name, found, expected in zip(("image", "v_colors", "v_shN", "v_means"), *results, strict=True):
        assert torch.equal(found, expected), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("channels", [4, 20])
def test_features_of_half_precision_give_what_their_values_give(channels, dtype):
    structure = scenes.Structure(n=100, cameras=1, channels=channels, width=50, height=40, sh_degree=None, seed=2)
    scene = scenes.make(structure, torch.float32, DEVICE)
    features, results = scene["colors"].to(dtype), []
    for colors in (features, features.float()):
        leaves = scene | {"means": scene["means"].clone().requires_grad_(), "colors": colors.clone().requires_grad_()}
        image, _, _ = tsplat.rasterization(**leaves, backend="triton")
        image.square().sum().backward()
        results.append((image, leaves["means"].grad, leaves["colors"].grad.to(dtype)))
    for found, expected in zip(*results):
        # Products of matrices have no remainder of features that are in half precision.
        bound = torch.finfo(found.dtype).eps * (0 if channels < FEATURES_MIN else 16)
        assert ((found - expected).abs() <= bound * expected.abs().max()).all()


@pytest.mark.parametrize(("kind", "readout"), lenses.CASES)
def test_lenses_and_shutters_match_reference(kind, readout):
    scene = lenses.make(kind, readout, seed=3, device=DEVICE, n=12, cameras=1)
    names = ["means", "quats", "scales", "opacities", *["viewmats"] * (readout == "GLOBAL")]
    results = []
    for backend in ("triton", "reference"):
        leaves = scene | {name: scene[name].clone().requires_grad_() for name in names}
        outputs = tsplat.rasterization(**leaves, packed=False, backend=backend)[:2]
        gradients = torch.autograd.grad(outputs, [leaves[name] for name in names], scenes.random_like(outputs, 0))
        results.append((*outputs, *gradients))
    for name, found, expected in zip(["colors", "alphas", *names], *results):
        assert_exact(name, found, expected)


def test_decisions_differ_from_reference_only_near_thresholds():
    differing = pixels = 0
    for seed in range(12):
        structure = scenes.Structure(n=200, cameras=1, width=40, height=32, size=4.0, seed=seed)
        found = assert_decisions(scenes.make(structure, torch.float32, DEVICE), backend="triton")
        differing, pixels = differing + found[0], pixels + found[1]
    assert pixels > 0
    assert differing <= 0.005 * pixels


def test_repeated_calls_give_the_same_bits():
    structure = scenes.Structure(n=20_000, cameras=3, width=500, height=301, size=4.0, sh_degree=3, seed=0)
    scene = scenes.make(structure, torch.float32, DEVICE)
    first, _ = run(scene, backend="triton", absgrad=True, render_mode="RGB+ED")
    for _ in range(3):
        again, _ = run(scene, backend="triton", absgrad=True, render_mode="RGB+ED")
        assert_same_bits(first, again)


def test_kernels_match_torch_backend():
    structure = scenes.Structure(n=5_000, cameras=2, width=200, height=150, size=4.0, sh_degree=2, seed=1)
    scene = scenes.make(structure, torch.float64, DEVICE)
    a, _ = run(scene, backend="triton")
    b, _ = run({k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in scene.items()}, backend="torch")
    for name in a:
        assert_exact(name, None if a[name] is None else a[name].cpu(), b[name])


@pytest.mark.parametrize("seed", range(3))
def test_surfels_match_the_backend_torch(seed):
    structure = scenes.Structure(n=40, cameras=2, width=50, height=40, sh_degree=seed, seed=seed)
    scene = scenes.make(structure, torch.float64)
    del scene["covars"], scene["camera_model"]
    names, results = ["means", "quats", "scales", "opacities", "colors"], []
    for device, backend in ((DEVICE, "triton"), ("cpu", "torch")):
        leaves = {name: t.to(device) if isinstance(t, torch.Tensor) else t for name, t in scene.items()}
        leaves |= {name: leaves[name].requires_grad_() for name in names}
        images = tsplat.rasterization_2dgs(**leaves, render_mode="RGB+D", backend=backend)[:6]
        outputs = [images[i] for i in (0, 1, 2, 4, 5)]  # normals of depths amplify rounding
        v = [t.to(device) for t in scenes.random_like([t.cpu() for t in outputs], 0)]
        gradients = torch.autograd.grad(outputs, [leaves[name] for name in names], v)
        results.append([t.detach().cpu() for t in (*outputs, *gradients)])
    for name, found, expected in zip(["colors", "alphas", "normals", "distort", "median", *names], *results):
        assert_exact(name, found, expected)


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_image_loss_matches_the_backend_torch(padding):
    generator, results = torch.Generator().manual_seed(0), []
    given, target = torch.rand(2, 2, 40, 75, 3, generator=generator, dtype=torch.float64)
    for device, backend in ((DEVICE, "triton"), ("cpu", "torch")):
        image = given.to(device, copy=True).requires_grad_()
        outputs = l1_and_ssim(image, target.to(device), padding=padding, backend=backend)
        v = [torch.tensor(v, dtype=torch.float64, device=device) for v in (0.8, -0.2)]
        results.append([t.detach().cpu() for t in (*outputs, *torch.autograd.grad(outputs, image, v))])
    for name, found, expected in zip(("l1", "ssim", "v_image"), *results):
        assert_exact(name, found, expected)


def test_adam_matches_torch_adam():
    torch.manual_seed(0)
    start = [torch.randn(shape) for shape in ((337, 3), (337,), (337, 15, 3))]
    gradients = [[torch.randn_like(t) * 10.0 ** (-step % 7) for t in start] for step in range(20)]
    results = []
    for adam in (ops.Adam, torch.optim.Adam):
        tensors = [t.to(DEVICE, copy=True).requires_grad_() for t in start]
        optimizer = adam([{"params": [t], "lr": 1e-2} for t in tensors], eps=1e-15)
        for values in gradients:
            for tensor, gradient in zip(tensors, values):
                tensor.grad = gradient.to(DEVICE)
            optimizer.step()
        results.append(tensors)
    for one, other in zip(*results):
        assert ((one - other).abs() <= 1e-6 * other.abs().max()).all()


def test_tensors_on_noncurrent_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    scene = scenes.make(scenes.Structure(n=50), torch.float32, "cuda:1")
    with torch.cuda.device(0):
        assert_run_fp32(scene, backend="triton")
