"""A footprint is a file: another kind of splat, composited without a change to lists, walks, chunks or sums."""

import dataclasses
import functools
import math

import pytest
import torch

from emulator.package import tsplat_emulated
from tests.emulator.targets import needs_emulator
from tests.kernels.compositing.test_part_lists import UNCUT
from tests.support.closeness import EXACT, compare
from tests.support.scenes import random_like
from tsplat.config import ALPHA_MIN, PRESETS, TRANSMITTANCE_MIN, CameraSettings
from tsplat.data import CompositingSettings, Images, Intersections, SavedImages, Splats, TileGrid
from tsplat.stages.compositing import _gaussian_major

tl = pytest.importorskip("triton.language")

import triton  # noqa: E402

from tsplat.kernels import compositing  # noqa: E402
from tsplat.kernels.compositing import tuning  # noqa: E402
from tsplat.kernels.compositing.footprints import FOOTPRINTS, Footprint  # noqa: E402

LOG2_E = tl.constexpr(math.log2(math.e))
WIDTH, HEIGHT, N = 21, 18, 30


@triton.jit
def _pack(mean, shape, visible):
    valid = (shape[0] > 0.0) & visible
    return (mean[0], mean[1], tl.where(valid, 1.0 / tl.where(valid, shape[0], 1.0), 0.0)), valid


@triton.jit
def _is_large(shape, opacity, TILE: tl.constexpr, ALPHA_MIN: tl.constexpr):
    return shape[0] > 2 * TILE


@triton.jit
def _bound(record, x, y, TILE: tl.constexpr, LOG2_ALPHA_MIN: tl.constexpr):
    return x - record[0], y - record[1], record[2]


@triton.jit
def _reaches(bound, X: tl.constexpr, Y: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr):
    x = tl.minimum(tl.maximum(bound[0] + X, 0.0), bound[0] + (X + WIDTH - 1))
    y = tl.minimum(tl.maximum(bound[1] + Y, 0.0), bound[1] + (Y + HEIGHT - 1))
    return (x * x + y * y) * bound[2] * bound[2] < 1.0


@triton.jit
def _locate(record, pixel):
    """Offsets over the radius, and 1 - their squared length, or a tiny number outside."""
    x = (pixel[0] - record[0]) * record[2]
    y = (pixel[1] - record[1]) * record[2]
    return x, y, tl.maximum(1.0 - x * x - y * y, 1e-30), record[2]


@triton.jit
def _log2_alpha(record, at):
    return record[3] + 2.0 * tl.log2(at[2])


@triton.jit
def _add_gradients(sums, g, at):
    """Gradients with respect to log(opacity), x, y and log(radius)."""
    slope = 4.0 * g / at[2]
    own = (g, slope * at[0] * at[3], slope * at[1] * at[3], slope * (1.0 - at[2]))
    if len(sums) == 0:
        return own
    else:
        return sums[0] + own[0], sums[1] + own[1], sums[2] + own[2], sums[3] + own[3]


@triton.jit
def _slopes(record, g, at):
    slope = LOG2_E * 4.0 * g * record[2] / at[2]
    return tl.abs(slope * at[0]), tl.abs(slope * at[1])


@triton.jit
def _finish(sums, shape, opacity):
    return (sums[1], sums[2]), (sums[3] / shape[0],), sums[0] / opacity


DISC = Footprint(1, 3, 4, 0, _pack, _is_large, _bound, _reaches, _locate, _log2_alpha, _add_gradients, _slopes, _finish)


def _reference(means, radii, opacities, colors, backgrounds):
    """Images of discs with alpha = o (1 - r^2)^2, in the order of rows, and their absolute slopes' positions."""
    y, x = torch.meshgrid(torch.arange(HEIGHT) + 0.5, torch.arange(WIDTH) + 0.5, indexing="ij")
    image, transmittance = torch.zeros(HEIGHT, WIDTH, colors.shape[1], dtype=means.dtype), torch.ones_like(x).double()
    stopped = torch.zeros_like(x, dtype=torch.bool)
    own_means = means[:, None, None].expand(N, HEIGHT, WIDTH, 2).clone()
    own_means.retain_grad()
    for mean, radius, opacity, color in zip(own_means, radii[:, 0], opacities, colors):
        inside = (1 - ((x - mean[..., 0]) ** 2 + (y - mean[..., 1]) ** 2) / radius**2).clamp_min(0)
        alpha = (opacity * inside**2).clamp_max(PRESETS["gsplat-1.5"].alpha_max)
        alpha = torch.where(alpha >= ALPHA_MIN, alpha, 0.0)
        after = transmittance * (1 - alpha)
        stopped = stopped | (after <= TRANSMITTANCE_MIN)
        image = image + torch.where(stopped, 0.0, alpha * transmittance)[..., None] * color
        transmittance = torch.where(stopped, transmittance, after)
    return image + transmittance[..., None] * backgrounds[0], 1 - transmittance, own_means


def _composite(inputs, v_colors, v_alphas, chunk, patch):
    means, radii, opacities, colors, backgrounds = (tensor.detach() for tensor in inputs)
    patch.setitem(FOOTPRINTS, "disc", DISC)
    for name, lengths in (("CPU_CHUNK", chunk), ("CHUNKS", {math.inf: chunk}), ("AMD_CHUNKS", {math.inf: chunk})):
        patch.setattr(tuning, name, lengths)
    settings = CompositingSettings(CameraSettings(WIDTH, HEIGHT), 8, 32, True, PRESETS["gsplat-1.5"], "triton", "disc")
    grid = TileGrid.cover(1, WIDTH, HEIGHT, 8)
    offsets = torch.arange(grid.n_tiles + 1, dtype=torch.int32) * N
    ids = torch.arange(N, dtype=torch.int32).repeat(grid.n_tiles)
    intersections = Intersections(0, offsets, ids, _gaussian_major(ids, N))
    splats = Splats(means, radii, opacities, colors, None)
    images = Images(v_colors.new_empty(v_colors.shape), v_alphas.new_empty(v_alphas.shape), None)
    images = images._replace(pixel_ends=torch.empty_like(v_alphas, dtype=torch.int32))
    lists = compositing.composite_fwd(splats, backgrounds, None, intersections, images, settings)
    assert (lists.n_chunks > 0) == (chunk != UNCUT)
    saved = SavedImages(images.transmittances, images.pixel_ends)
    found = compositing.composite_bwd(
        splats, backgrounds, intersections, saved, v_colors, v_alphas, None, settings, lists
    )
    return images.colors, 1 - images.transmittances, found


@pytest.mark.parametrize("channels", [3, pytest.param(17, marks=pytest.mark.slow)])
@pytest.mark.parametrize("chunk", [UNCUT, 4])
@pytest.mark.triton
def test_discs_match_reference(channels, chunk, monkeypatch):
    _assert_discs_match_reference(channels, chunk, monkeypatch)


@needs_emulator
@pytest.mark.long
def test_discs_on_a_gpu_match_reference(monkeypatch):
    with tsplat_emulated("cuda:80"):
        _assert_discs_match_reference(3, UNCUT, monkeypatch)


def _assert_discs_match_reference(channels, chunk, monkeypatch):
    random = functools.partial(torch.rand, generator=torch.manual_seed(1), dtype=torch.float64)
    means, radii = random(N, 2) * torch.tensor([WIDTH, HEIGHT]), 2 + 8 * random(N, 1)
    inputs = [means, radii, 0.1 + 0.9 * random(N), random(N, channels), random(1, channels)]
    inputs = [tensor.requires_grad_() for tensor in inputs]
    image, alphas, own_means = _reference(*inputs)
    v_image, v_alphas = random_like((image, alphas), 0)
    torch.autograd.backward((image, alphas), (v_image, v_alphas))
    colors, found_alphas, v = _composite(inputs, v_image[None], v_alphas[None], chunk, monkeypatch)
    found = (colors[0], found_alphas[0], v.v_means2d, v.v_shapes, v.v_opacities, v.v_features, v.absgrad)
    expected = (image.detach(), alphas.detach(), *(t.grad for t in inputs[:4]), own_means.grad.abs().sum((1, 2)))
    names = ("image", "alphas", "v_means", "v_radii", "v_opacities", "v_colors", "absgrad")
    for name, one, other in zip(names, found, expected, strict=True):
        compare(name, one, other, EXACT)


@pytest.mark.triton
def test_keys_of_caches_depend_on_the_source_of_a_footprint():
    from triton.compiler import ASTSource

    from tsplat.kernels.compositing.records import _pack_kernel
    from tsplat.triton_cpu.launcher import _constant_key

    footprints = (DISC, dataclasses.replace(DISC, pack=_bound), dataclasses.replace(DISC, SUMS=5))
    assert len({_constant_key(footprint) for footprint in footprints}) == 3
    signature = dict.fromkeys(_pack_kernel.arg_names, "constexpr")
    assert len({ASTSource(_pack_kernel, signature, {"FOOTPRINT": footprint}).hash() for footprint in footprints}) == 3
