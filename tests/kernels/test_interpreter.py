"""Every kernel once in Triton's interpreter, which is independent of all compilers, on tiny scenes."""

import math

import pytest
import torch

from tests.support import scenes
from tests.support.closeness import assert_exact, assert_run_exact
from tsplat import rasterization_2dgs
from tsplat.config import DEFAULT_NUMERICS, CameraSettings
from tsplat.data import CompositingSettings, Splats
from tsplat.ops.adam import Adam
from tsplat.ops.image_loss import l1_and_ssim
from tsplat.runtime.backend import launchers

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("structure", "options"),
    [
        (dict(channels=3), dict(render_mode="RGB+ED", packed=True)),
        (dict(sh_degree=2), dict(rasterize_mode="antialiased", packed=False)),
        (dict(covars=True, channels=9), dict(absgrad=True, channel_chunk=5)),
        (dict(channels=17), dict(packed=False)),
        (dict(channels=1, camera_model="ortho"), dict(near_plane=-10.0)),
        (dict(channels=1, camera_model="fisheye"), dict(near_plane=-10.0)),
    ],
    ids=["depth", "spherical harmonics", "covariances and absgrad", "many channels", "ortho", "fisheye"],
)
def test_rasterization_matches_reference(structure, options):
    structure = scenes.Structure(**{"n": 6, "cameras": 1, "width": 9, "height": 6, "seed": 4, **structure})
    assert_run_exact(scenes.make(structure), backend="triton", tile_size=8, **options)


@pytest.mark.parametrize("chunk", [None, 2])
def test_surfels_match_reference(chunk, monkeypatch):
    from tests.stages import test_surfels as surfels
    from tsplat.kernels.compositing import tuning

    if chunk is not None:
        monkeypatch.setattr(tuning, "CHUNKS", {math.inf: chunk})
    scene = surfels.make(4, n=8, cameras=1, width=8, height=6)
    found = surfels.images_and_gradients(rasterization_2dgs, scene, surfels.NAMES, backend="triton", tile_size=8)
    expected = surfels.images_and_gradients(surfels.render_reference, scene, surfels.NAMES, tile_size=8)
    surfels.assert_equal(found, expected, surfels.NAMES)


def test_alphas_of_tiles_match_torch():
    generator = torch.Generator().manual_seed(0)
    means2d = 8 * torch.rand(5, 2, generator=generator, dtype=torch.float64)
    conics = torch.rand(5, 3, generator=generator, dtype=torch.float64) + torch.tensor([1.0, 0, 1])
    splats = Splats(means2d, conics, torch.linspace(0.1, 1, 5, dtype=torch.float64), None, None)
    settings = CompositingSettings(CameraSettings(8, 6), 8, 1, False, DEFAULT_NUMERICS, "torch")
    centers = torch.arange(8, dtype=torch.float64) + 0.5, torch.arange(6, dtype=torch.float64) + 0.5
    found = []
    for backend in ("triton", "torch"):
        find_alphas = launchers(means2d.device, backend).tile_alphas(splats, settings)
        found.append(find_alphas(torch.tensor([3, 1, 4, 1]), centers))
    assert 0 < (found[0] > 0).sum() < found[0].numel()
    assert_exact("alphas", *found)


def test_chunks_match_reference(monkeypatch):
    from tsplat.kernels.compositing import tuning

    monkeypatch.setattr(tuning, "CHUNKS", {math.inf: 2})
    structure = scenes.Structure(n=8, cameras=1, width=8, height=6, size=6.0, seed=4)
    assert_run_exact(scenes.make(structure), backend="triton", tile_size=8)


def test_losses_match_torch():
    x, y = torch.rand(2, 12, 14, 1, dtype=torch.float64)
    results = []
    for backend in ("triton", "torch"):
        image = x.clone().requires_grad_()
        l1, ssim = l1_and_ssim(image, y, backend=backend)
        (l1 + ssim).backward()
        results.append((l1, ssim, image.grad))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("moments_dtype", [None, torch.bfloat16])
def test_adam_matches_torch(moments_dtype):
    results = []
    for backend in ("triton", "torch"):
        parameter = torch.linspace(-1, 1, 15, dtype=torch.float64).reshape(5, 3).requires_grad_()
        optimizer = Adam([parameter], lr=0.1, backend=backend, moments_dtype=moments_dtype)
        for _ in range(2):
            parameter.grad = parameter.detach() ** 2
            optimizer.step()
        results.append(parameter.detach())
    torch.testing.assert_close(*results)


def test_steps_of_the_mcmc_strategy_match_torch():
    results = []
    for backend in ("triton", "torch"):
        generator = torch.Generator().manual_seed(0)
        means, scales, samples, v_scales = torch.randn(4, 5, 3, generator=generator, dtype=torch.float64)
        quats = torch.randn(5, 4, generator=generator, dtype=torch.float64)
        logits, v_logits = torch.randn(2, 5, generator=generator, dtype=torch.float64)
        kernels = launchers(means.device, backend)
        kernels.mcmc_noise(means, quats, scales, logits, samples, 2.0, 0.3, 7.0)
        kernels.mcmc_regularization(logits, scales, v_logits, v_scales, 0.3, 0.7)
        results.append((means, v_logits, v_scales))
    torch.testing.assert_close(*results)
