"""Compiled kernels on a GPU: fp32 and fp64 against the reference, repeatability, and the torch backend."""

import pytest
import torch
from hypothesis import given, settings

import tsplat
from tests.support import lenses, scenes
from tests.support.closeness import (
    assert_decisions,
    assert_exact,
    assert_run_exact,
    assert_run_fp32,
    assert_same_bits,
    run,
)

pytestmark = pytest.mark.gpu

DEVICE = "cuda"


@settings(max_examples=100)
@given(scenes.structures(max_pixels=70, max_n=60, channels=12), scenes.modes(), scenes.layouts())
def test_random_scenes_in_fp32_match_reference(structure, mode, layout):
    scene = scenes.make(structure, torch.float32, DEVICE)
    assert_run_fp32(scene, seed=structure.seed, backend="triton", **mode, **layout)


@settings(max_examples=30)
@given(scenes.structures(max_pixels=40, max_n=40), scenes.modes(), scenes.layouts())
def test_random_scenes_in_fp64_match_reference(structure, mode, layout):
    scene = scenes.make(structure, torch.float64, DEVICE)
    assert_run_exact(scene, seed=structure.seed, backend="triton", **mode, **layout)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rasterize_mode", ["classic", "antialiased"])
def test_crowded_scenes_match_reference(seed, rasterize_mode):
    structure = scenes.Structure(n=400, cameras=1, width=64, height=48, size=5.0, sh_degree=3, seed=seed)
    scene = scenes.make(structure, torch.float32, DEVICE)
    assert_run_fp32(scene, seed=seed, backend="triton", rasterize_mode=rasterize_mode, render_mode="RGB+ED")


@pytest.mark.parametrize("channels", [1, 3, 6, 7, 8, 9, 40])
def test_numbers_of_channels_match_reference(channels):
    structure = scenes.Structure(n=100, cameras=2, channels=channels, width=50, height=40, seed=channels)
    assert_run_fp32(scenes.make(structure, torch.float32, DEVICE), backend="triton")


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


def test_tensors_on_noncurrent_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    scene = scenes.make(scenes.Structure(n=50), torch.float32, "cuda:1")
    with torch.cuda.device(0):
        assert_run_fp32(scene, backend="triton")
