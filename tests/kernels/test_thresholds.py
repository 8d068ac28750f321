"""Thresholds in fp64: values within 1e-9 of a threshold, which fp32 cannot tell apart, are on the right side of it."""

import math
import re

import numpy as np
import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.cases import draw_for_tests
from tests.support.closeness import compare, run, run_reference
from tsplat.config import ALPHA_MIN, PRESETS, TRANSMITTANCE_MIN

pytestmark = pytest.mark.triton

ALPHA_MAX = PRESETS["gsplat-1.5"].alpha_max
EXACT = 1e-12
SIDES = (-1e-9, 1e-9)


def composite_pixel(alphas, colors):
    """Composites alphas [n] and colors [n, D] front to back by the rules of the paper. [D]"""
    transmittance, color = alphas.new_ones(()), torch.zeros_like(colors[0])
    for alpha, own in zip(alphas, colors):
        if alpha < ALPHA_MIN:
            continue
        clamped = alpha if alpha <= ALPHA_MAX else torch.full_like(alpha, ALPHA_MAX)
        after = transmittance * (1 - clamped)
        if after <= TRANSMITTANCE_MIN:
            break
        color = color + clamped * transmittance * own
        transmittance = after
    return color


def at_alpha_min(side):
    return [0.3, ALPHA_MIN * (1 + side), 0.2, ALPHA_MIN * (1 - side), 0.4]


def at_opacity_min(side):
    return [0.9, ALPHA_MIN * (1 + side), 0.2, ALPHA_MIN * (1 - side), 0.4]


def at_alpha_max(side):
    return [ALPHA_MAX * (1 + side), 0.5, 0.3]


def at_transmittance_min(side):
    return [0.5, 0.9, 1 - TRANSMITTANCE_MIN / 0.05 * (1 + side), 0.2, 0.5]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("channels", [3, 16])
@pytest.mark.parametrize("alphas", [at_alpha_min, at_opacity_min, at_alpha_max, at_transmittance_min])
def test_compositing(alphas, channels, chunk, side, monkeypatch):
    from tsplat.kernels.compositing import tuning

    if chunk is not None:
        monkeypatch.setattr(tuning, "CPU_CHUNK", chunk)
        monkeypatch.setattr(tuning, "CHUNKS", {math.inf: chunk})
        monkeypatch.setattr(tuning, "AMD_CHUNKS", {math.inf: chunk})
    alphas = torch.tensor(alphas(side), dtype=torch.float64)
    n = len(alphas)
    generator = torch.Generator().manual_seed(0)
    colors = torch.rand(n, channels, generator=generator, dtype=torch.float64)
    # exp(-sigma) at the pixel beside that of the means; 1 where an opacity is to be the threshold or 1.
    shape = 0.7 if alphas.max() < 0.7 else 1.0
    conics = torch.zeros(n, 3, dtype=torch.float64)
    conics[:, ::2] = -2 * math.log(shape)
    opacities = (alphas / shape).requires_grad_()
    images, _ = tsplat.rasterize_to_pixels(
        torch.full((1, n, 2), 0.5, dtype=torch.float64), conics[None], colors[None], opacities[None],
        image_width=4, image_height=4, tile_size=4, isect_offsets=torch.zeros(1, 1, 1, dtype=torch.int32),
        flatten_ids=torch.arange(n, dtype=torch.int32), backend="triton",
    )  # fmt: skip
    pixel = images[0, 0, 1]
    expected_opacities = opacities.detach().clone().requires_grad_()
    expected = composite_pixel(expected_opacities * shape, colors)
    pixel.sum().backward()
    expected.sum().backward()
    compare("colors", pixel, expected, EXACT)
    compare("v_opacities", opacities.grad, expected_opacities.grad, EXACT)


def one_gaussian(scale, opacity):
    """A scene of an isotropic Gaussian whose screen covariance before the blur is scale^2, at the center of a pixel."""
    scene = dict(
        means=[[0.0, 0.0, 3.0]], quats=[[1.0, 0.0, 0.0, 0.0]], scales=[[scale] * 3], opacities=[opacity],
        colors=[[0.2, 0.5, 0.9]], viewmats=[torch.eye(4).tolist()],
        Ks=[[[1.0, 0.0, 2.5], [0.0, 1.0, 2.5], [0.0, 0.0, 1.0]]],
    )  # fmt: skip
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in scene.items()}
    return tensors | dict(width=5, height=5, camera_model="ortho")


@pytest.mark.parametrize("side", SIDES)
def test_lowest_opacity(side):
    images, _, meta = tsplat.rasterization(**one_gaussian(2.0, ALPHA_MIN * (1 + side)), backend="triton", packed=False)
    assert bool(meta["radii"].any()) == (side > 0)
    assert bool(images[0, 2, 2].any()) == (side > 0)
    assert not images[0, 2, 3].any()


@pytest.mark.parametrize("side", SIDES)
def test_lower_bound_of_compensation(side):
    ratio = PRESETS["gsplat-1.6"].compensation_floor * (1 + side)
    scene = one_gaussian(math.sqrt(0.3 * ratio / (1 - ratio)), 1.0)
    options = dict(rasterize_mode="antialiased", numerics="gsplat-1.6")
    found, _ = run(scene, backend="triton", **options)
    truth, _ = run_reference(scene, **options)
    assert truth["alphas"].any()
    for name, expected in truth.items():
        compare(name, found[name], expected, EXACT)


@pytest.mark.long
def test_no_constant_is_rounded_to_fp32(monkeypatch):
    """Constants of fp64 kernels that fp32 can represent are short: 0.5, but not the nearest to 1/255."""
    from tsplat.triton_cpu import launcher

    object_code, texts = launcher.object_code, {}

    def recorded(kernel, signature, constants):
        if "*fp64" in launcher.flat_arguments(tuple(signature.values())):
            texts.setdefault(kernel.__name__, []).append(launcher.make_ttir(kernel, signature, constants))
        return object_code(kernel, signature, constants)

    monkeypatch.setattr(launcher, "object_code", recorded)
    monkeypatch.setattr(launcher, "_launchers", {})
    monkeypatch.setattr("tsplat.kernels.launch.compiled", {})
    for seed in (1, 2, 6):  # with channels=16, all kernels and constants of the first 8
        case = draw_for_tests(seed)
        run(scenes.make(case.structure, torch.float64), **case.mode, **case.layout, backend="triton")
    run(scenes.make(scenes.Structure(channels=16), torch.float64), backend="triton")
    found = {"_composite_bwd_kernel", "_features_bwd_kernel", "_projection_bwd_kernel", "_sh_bwd_kernel"}
    assert found <= texts.keys()
    rounded = set()
    for name in texts:
        for text in texts[name]:
            for digits in re.findall(r"arith\.constant (?:dense<)?([-+.\dE]+)>? : (?:tensor<\w+x)?f64", text):
                value = float(digits)
                if float(np.float32(value)) == value and math.frexp(value)[0] * 2**14 % 1 != 0:
                    rounded.add((name, value))
    assert not rounded
