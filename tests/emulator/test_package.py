"""tsplat's kernels as compiled GPU code, on tiny scenes: results, options, order of execution, counts."""

import dataclasses

import pytest
import torch

import tsplat
from emulator.counters import total
from emulator.package import tsplat_emulated
from tests.support import scenes
from tests.support.closeness import (
    FP32_EPSILONS,
    assert_fp32,
    assert_run_exact,
    assert_run_fp32,
    assert_same_bits,
    compare,
    run,
)
from tests.tools import fuzz_lenses
from tsplat import kernels_torch
from tsplat.config import PRESETS
from tsplat.ops.adam import Adam
from tsplat.ops.image_loss import l1_and_ssim
from tsplat.runtime.backend import launchers

from .targets import compiles_long, each_target, one_of_nvidia_and_amd, one_target

pytestmark = pytest.mark.slow
STRUCTURE = scenes.Structure(n=40, cameras=1, width=24, height=20, size=4.0, sh_degree=1, seed=0)
TINY = scenes.Structure(n=14, cameras=1, width=13, height=9, seed=3)


@each_target
def test_rasterization_matches_reference(target, code):
    with tsplat_emulated(target, code) as gpu:
        assert_run_fp32(scenes.make(STRUCTURE, torch.float32), backend="triton", render_mode="RGB+ED")
    assert total(gpu.counts)["instructions"] > 10_000


@pytest.mark.long
@one_of_nvidia_and_amd
@pytest.mark.parametrize(
    ("family", "lens"), [("lidar", ""), ("eval3d", "equirectangular"), ("unscented", "equirectangular")]
)
def test_random_lidars_and_panoramas_match_reference(target, code, family, lens):
    """`python -m tests.tools.fuzz_lenses --arch sm_80` tries more, in more kinds of calls."""
    for seed in range(2):
        assert 0 < fuzz_lenses.check(family, seed, kinds=1, arch=target, code=code, lens=lens) <= 1


def test_backends_chosen_on_the_emulator_end_with_it():
    cpu = torch.device("cpu")
    outside = launchers(cpu)
    with tsplat_emulated():
        assert launchers(cpu) is kernels_torch  # as where Triton is interpreted
    assert launchers(cpu) is outside


@compiles_long
@one_target
@pytest.mark.parametrize("numerics", PRESETS)
def test_numerics_match_reference(target, code, numerics):
    scene = scenes.make(TINY, torch.float32)
    scene["scales"][:3] *= 20  # Gaussians that the presets cull and clamp differently
    scene["opacities"][:3] = 1.0
    options = dict(numerics=numerics, rasterize_mode="antialiased", render_mode="RGB+D")
    with tsplat_emulated(target, code):
        assert_run_fp32(scene, backend="triton", **options)


@compiles_long
@one_target
@pytest.mark.parametrize("channels", [1, 3, 4, 15, 16, 17, 32, 33, 64])
def test_numbers_of_channels_match_reference(target, code, channels):
    """Few channels one by one; from 16 on as matrix products."""
    structure = dataclasses.replace(TINY, channels=channels)
    with tsplat_emulated(target, code) as gpu:
        assert_run_fp32(scenes.make(structure, torch.float32), backend="triton", channel_chunk=64)
    kernels = {counts.program.name for counts in gpu.counts.values()}
    assert any("features" in name for name in kernels) == (channels >= 16), kernels


@compiles_long
@one_target
def test_split_operands_are_more_precise_than_tf32(target, code):
    """Matrix units of NVIDIA GPUs read 11 bits of a factor; kernels split factors. AMD GPUs read all bits."""
    scene = scenes.make(dataclasses.replace(TINY, channels=16), torch.float32)
    with tsplat_emulated(target, code) as gpu:
        found, _ = run(scene, backend="triton")
    expected, _ = run({k: v.double() if isinstance(v, torch.Tensor) else v for k, v in scene.items()}, backend="torch")
    assert compare("colors", found["colors"], expected["colors"], 2.0**-18) < 1
    if target.startswith("cuda"):
        assert total(gpu.counts)["matrix"] > 0


@pytest.mark.long
@one_target
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_colors_give_the_bits_of_fp32(target, code, dtype):
    half, full = half_and_full_precision(target, code, dtype, channels=3)
    full["v_colors"] = full["v_colors"].to(dtype)
    assert_same_bits(half, full)


@compiles_long
@one_target
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_features_match_fp32(target, code, dtype):
    """Matrix units may sum in another order, as the layout of operands depends on the dtype in memory."""
    half, full = half_and_full_precision(target, code, dtype, channels=16)
    for name, tensor in full.items():
        eps = torch.finfo(dtype if name == "v_colors" else torch.float32).eps
        compare(name, half[name], tensor, eps if name == "v_colors" else FP32_EPSILONS * eps)


def half_and_full_precision(target, code, dtype, channels):
    """Returns a run with colors in half precision, and one with the same colors in fp32."""
    scene = scenes.make(dataclasses.replace(TINY, channels=channels), torch.float32)
    scene["colors"] = scene["colors"].to(dtype)
    with tsplat_emulated(target, code):
        half, _ = run(scene, backend="triton")
        full, _ = run(scene | dict(colors=scene["colors"].float()), backend="triton")
    return half, full


@compiles_long
@one_target
def test_inputs_of_mixed_precision_give_the_bits_of_fp32(target, code):
    scene = scenes.make(TINY, torch.float32)
    types = dict(means=torch.float16, quats=torch.bfloat16, opacities=torch.float16, colors=torch.bfloat16)
    mixed = scene | {name: scene[name].to(dtype) for name, dtype in types.items()}
    with tsplat_emulated(target, code):
        found, _ = run(mixed, backend="triton")
        upcast = mixed | {name: mixed[name].float() for name in types}
        expected, _ = run(upcast, backend="triton")
    for name, dtype in types.items():
        expected[f"v_{name}"] = expected[f"v_{name}"].to(dtype)
    assert_same_bits(found, expected)


@pytest.mark.long
@one_target
def test_bands_give_the_bits_of_the_whole_image(target, code):
    scene = scenes.make(dataclasses.replace(TINY, n=30, height=30), torch.float32)
    with tsplat_emulated(target, code):
        whole, meta = run(scene, backend="triton", tile_size=4)
        budget = meta["memory"]["peak_bytes"] // 2
        banded, meta = run(scene, backend="triton", tile_size=4, memory_budget=budget)
    assert meta["memory"]["bands"] > 1
    assert_same_bits(whole, banded)


@pytest.mark.long
@one_target
@pytest.mark.parametrize("channels", [3, pytest.param(17, marks=compiles_long)])
def test_masked_tiles_match_torch_backend(target, code, channels):
    scene = scenes.make(dataclasses.replace(TINY, channels=channels), torch.float32)
    results = []
    for backend, dtype in (("triton", torch.float32), ("torch", torch.float64), ("torch", torch.float32)):
        inputs = {name: t.to(dtype) if isinstance(t, torch.Tensor) else t for name, t in scene.items()}
        with tsplat_emulated(target, code):
            results.append(masked(inputs, backend))
    for name, found in results[0].items():
        assert_fp32(name, found, results[1][name], results[2][name])
    assert torch.equal(results[0]["colors"][0, :8, 8:13], scene["backgrounds"].expand(8, 5, channels))


def masked(scene, backend):
    """Renders without the second tile of the first row; returns images and gradients."""
    _, _, meta = tsplat.rasterization(**scene, packed=False, tile_size=8, backend=backend)
    masks = torch.ones(1, 2, 2, dtype=torch.bool)
    masks[0, 0, 1] = False
    inputs = {name: meta[name].detach().clone().requires_grad_() for name in ("means2d", "conics", "opacities")}
    inputs["colors"] = scene["colors"][None].clone().requires_grad_()
    images = tsplat.rasterize_to_pixels(
        image_width=13, image_height=9, tile_size=8, isect_offsets=meta["isect_offsets"], masks=masks,
        flatten_ids=meta["flatten_ids"], backgrounds=scene["backgrounds"], backend=backend, **inputs,
    )  # fmt: skip
    torch.autograd.backward(images, scenes.random_like(images, 0))
    gradients = {f"v_{name}": tensor.grad for name, tensor in inputs.items()}
    return dict(colors=images[0].detach(), alphas=images[1].detach(), **gradients)


@one_target
@pytest.mark.parametrize("visible", [None, torch.arange(37) % 3 == 0], ids=["all", "visible"])
@pytest.mark.parametrize("moments_dtype", [None, torch.bfloat16], ids=["fp32", "bf16"])
def test_adam_matches_torch_backend(target, code, visible, moments_dtype):
    results = []
    for backend in ("triton", "torch"):
        generator = torch.Generator().manual_seed(0)
        parameter = torch.randn(37, 15, generator=generator).requires_grad_()
        optimizer = Adam([parameter], lr=1e-2, eps=1e-15, backend=backend, moments_dtype=moments_dtype)
        with tsplat_emulated(target, code):
            for _ in range(5):
                parameter.grad = torch.randn(37, 15, generator=generator)
                optimizer.step(visible=visible)
        results.append({"parameter": parameter.detach(), **optimizer.state[parameter]})
    compare("parameter", *[result["parameter"] for result in results], 1e-6)
    if moments_dtype is not None:  # rounded by the same random bits; differences in fp32 rarely change a result
        for name in ("exp_avg", "exp_avg_sq"):
            assert (results[0][name] == results[1][name]).float().mean() > 0.995


@one_target
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_image_losses_match_torch_backend(target, code, padding):
    image, reference = torch.rand(2, 2, 19, 23, 3, generator=torch.Generator().manual_seed(0))
    results = []
    for backend, dtype in (("triton", torch.float32), ("torch", torch.float64), ("torch", torch.float32)):
        x = image.to(dtype).requires_grad_()
        with tsplat_emulated(target, code):
            l1, ssim = l1_and_ssim(x, reference.to(dtype), padding=padding, backend=backend)
            (v_image,) = torch.autograd.grad(2 * l1 - ssim, x)
        results.append(dict(l1=l1.detach(), ssim=ssim.detach(), v_image=v_image))
    for name, found in results[0].items():
        assert_fp32(name, found, results[1][name], results[2][name])


@compiles_long
@one_target
def test_fp64_matches_reference(target, code):
    if code == "sass":
        pytest.skip("fp64 machine code of NVIDIA GPUs is not emulated")
    with tsplat_emulated(target, code):
        assert_run_exact(scenes.make(TINY), backend="triton", absgrad=True)


@one_target
def test_order_of_programs_and_warps_does_not_change_bits(target, code):
    scene = scenes.make(TINY, torch.float32)
    results = []
    for options in ({}, {"order": "reverse"}, {"order": "random", "shuffle_warps": True, "seed": 3}):
        with tsplat_emulated(target, code, **options):
            results.append(run(scene, backend="triton")[0])
    for other in results[1:]:
        assert_same_bits(results[0], other)


@one_target
def test_instruction_counts_of_a_scene_repeat(target, code):
    counts = []
    for _ in range(2):
        with tsplat_emulated(target, code) as gpu:
            run(scenes.make(TINY, torch.float32), backend="triton")
        counts.append(gpu.counters)
    assert counts[0] == counts[1]
