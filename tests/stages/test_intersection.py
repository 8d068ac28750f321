"""Intersections: the tiles that each Gaussian is listed for, and their order."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tsplat
from tests.support import scenes
from tests.support.backends import BACKENDS
from tests.support.slow import slow_after
from tsplat import reference
from tsplat.config import DEFAULT_NUMERICS, CameraSettings
from tsplat.data import ProjectionSettings


@pytest.mark.parametrize("backend", BACKENDS)
def test_intersections_match_brute_force(backend):
    """Every tile lists the Gaussians whose alpha is at least 1/255 at one of its pixel centers, and few others."""

    @settings(max_examples=12 if backend == "triton" else 20)
    @given(scenes.structures(max_n=12), st.sampled_from([4, 8, 16]), st.booleans())
    def check(structure, tile_size, opaque):
        assert_intersections_match_brute_force(structure, tile_size, opaque, backend)

    check()


def assert_intersections_match_brute_force(structure, tile_size, opaque, backend):
    scene = scenes.make(structure)
    if opaque:
        scene["opacities"] = scene["opacities"] + 0.5  # above 1, where the rectangle would be too small
    options = dict(packed=False, tile_size=tile_size, near_plane=-10.0, backend=backend)
    _, _, meta = tsplat.rasterization(**scene, **options)
    truth = reference.project(
        scene["means"], reference.covariances(scene["quats"], scene["scales"]) if scene["covars"] is None
        else scene["covars"], scene["opacities"], scene["viewmats"], scene["Ks"],
        ProjectionSettings(
            CameraSettings.of(scene["width"], scene["height"], structure.camera_model, -10.0, 1e10, DEFAULT_NUMERICS)
        ),
    )  # fmt: skip
    rows, columns = -(-structure.height // tile_size), -(-structure.width // tile_size)
    x = torch.arange(columns * tile_size, dtype=torch.float64) + 0.5
    y = torch.arange(rows * tile_size, dtype=torch.float64) + 0.5
    dx = x - truth.means2d[..., 0, None]
    dy = y - truth.means2d[..., 1, None]
    a, b, c = (t[..., None, None] for t in truth.conics.unbind(-1))
    sigma = 0.5 * (a * dx[..., None, :] ** 2 + c * dy[..., :, None] ** 2) + b * dx[..., None, :] * dy[..., :, None]
    alpha = truth.opacities[..., None, None] * torch.exp(-sigma) * truth.visible[..., None, None]
    tiles = alpha.unflatten(-1, (columns, tile_size)).unflatten(-3, (rows, tile_size)).amax((-1, -3))
    n_images = math.prod(structure.batch) * structure.cameras
    tiles = tiles.reshape(n_images, structure.n, rows * columns).transpose(1, 2)  # [I, tiles, N]
    listed = torch.zeros_like(tiles, dtype=torch.bool)
    offsets = torch.cat([meta["isect_offsets"].flatten().long(), torch.tensor([meta["flatten_ids"].numel()])])
    for image in range(n_images):
        for tile in range(rows * columns):
            at = image * rows * columns + tile
            ids = meta["flatten_ids"][offsets[at] : offsets[at + 1]].long()
            assert (ids // max(structure.n, 1) == image).all()
            listed[image, tile, ids % max(structure.n, 1)] = True
            depths = meta["depths"].flatten()[ids]
            assert (depths.diff() >= 0).all()
    needed = tiles >= 1 / 255
    assert (listed | ~needed).all(), f"{int((needed & ~listed).sum())} intersections are missing"
    # Other Gaussians are listed because of the margin for rounding, or reach 1/255 only between pixel centers.
    assert int((listed & ~needed).sum()) <= 0.25 * int(needed.sum()) + 4
    assert int(meta["tiles_per_gauss"].sum()) == meta["flatten_ids"].numel()


@pytest.mark.triton
def test_lists_of_more_intersections_than_half_of_int32():
    """Only the keys that the search of a few tiles reads have memory: pages of zeros are not read from memory."""
    from tsplat.kernels.intersection import _tile_lists_kernel

    n = 2**30 + 2
    before = 2**30  # of keys: what a sum of two places would read
    keys = torch.from_numpy(np.zeros(before + n, np.int16))[before:]
    keys[-1] = 5
    values, indices, isect_offsets = torch.zeros(16, dtype=torch.int32), torch.zeros(16).long(), torch.zeros(7).int()
    _tile_lists_kernel.launch(
        1, keys=keys, indices=indices, flatten_ids=values, sorted_ids=values.clone(),
        gaussian_major_indices=values.clone(), isect_offsets=isect_offsets, n=n, n_tiles=6, first_key=0,
        search_steps=n.bit_length(), BLOCK=16,
    )  # fmt: skip
    assert isect_offsets.tolist() == [0, *[n - 1] * 5, n]


@pytest.mark.parametrize("backend", slow_after(1, BACKENDS))
def test_segmented_sort_changes_no_bit(backend):
    """Images, ``meta`` and gradients, packed or not, in one band and in several."""

    @settings(max_examples=12)
    @given(scenes.structures(max_n=12), st.booleans(), st.sampled_from([None, 3000]))
    def check(structure, packed, memory_budget):
        scene = scenes.make(structure, torch.float32)
        results = []
        for segmented in (False, True):
            leaves = scenes.leaves(scene)
            colors, alphas, meta = tsplat.rasterization(
                **leaves, packed=packed, tile_size=4, segmented=segmented, memory_budget=memory_budget, backend=backend
            )
            torch.autograd.backward((colors, alphas), scenes.random_like((colors, alphas), 1))
            gradients = [leaves[name].grad for name in scenes.DIFFERENTIABLE if leaves[name] is not None]
            lists = [meta[name] for name in ("tiles_per_gauss", "isect_ids", "flatten_ids", "isect_offsets")]
            results.append((colors, alphas, *gradients, *lists))
        for plain, segmented in zip(*results, strict=True):
            assert (plain is None) == (segmented is None)
            assert plain is None or torch.equal(plain, segmented)

    check()
