"""Contributors of each pixel against the weights of the dense reference, and against the rendered images."""

import math

import pytest
import torch

from tests.support import scenes
from tests.support.closeness import assert_exact
from tsplat import (
    ArgumentError,
    fully_fused_projection,
    isect_offset_encode,
    isect_tiles,
    rasterize_to_pixels,
    reference,
)
from tsplat.compat import gsplat
from tsplat.config import PRESETS
from tsplat.kernels_torch import compositing

STRUCTURE = scenes.Structure(n=60, cameras=2, channels=4, width=21, height=19, size=4.0, seed=3, backgrounds=False)
TILE = 8
SIZE = (21, 19)


def project(numerics="gsplat-1.5", packed=False, opacity=1.0):
    """A scene; projected Gaussians with colors, by name; their intersections; and the ids of each row's image."""
    scene = scenes.make(STRUCTURE)
    scene["opacities"] = opacity * scene["opacities"]
    projected = fully_fused_projection(
        scene["means"], None, scene["quats"], scene["scales"], scene["viewmats"], scene["Ks"], *SIZE,
        opacities=scene["opacities"], numerics=numerics, packed=packed,
    )  # fmt: skip
    camera_ids, gaussian_ids = (projected[1], projected[2]) if packed else (None, None)
    radii, means2d, depths, conics, _ = projected[-5:]
    colors, opacities = scene["colors"], scene["opacities"]
    if packed:
        splats = dict(means2d=means2d, conics=conics, colors=colors[gaussian_ids], opacities=opacities[gaussian_ids])
    else:
        splats = dict(
            means2d=means2d, conics=conics, colors=colors.expand(2, *colors.shape), opacities=opacities.expand(2, -1)
        )
    tiles = math.ceil(SIZE[0] / TILE), math.ceil(SIZE[1] / TILE)
    _, ids, flatten_ids = isect_tiles(
        means2d, radii, depths, TILE, *tiles, packed=packed, n_images=2, image_ids=camera_ids
    )
    return scene, splats, (isect_offset_encode(ids, 2, *tiles), flatten_ids), gaussian_ids


def query(name, splats, isects, *extra, **options):
    inputs = [splats[key] for key in ("means2d", "conics", "opacities")]
    return getattr(gsplat, f"rasterize_{name}")(*inputs, *isects, *SIZE, TILE, *extra, **options)


def gather(ids, weights, values):
    """Sums weights times values of the listed Gaussians. [C, H, W, K], [C, N, D] -> [C, H, W, D]"""
    own = torch.stack([image[index.clamp_min(0).to(torch.int64)] for image, index in zip(values, ids)])
    return (weights[..., None] * own).sum(-2)


def by_gaussian(ids, weights, n):
    """Weights in the order of Gaussians. [C, H, W, K] -> [C, H, W, n]"""
    assert ((weights > 0) == (ids >= 0)).all()
    found = weights.new_zeros(*ids.shape[:-1], n + 1)
    return found.scatter(-1, torch.where(ids < 0, n, ids).to(torch.int64), weights)[..., :-1]


@pytest.mark.parametrize("numerics", list(PRESETS))
def test_contributors_match_reference(numerics):
    scene, splats, isects, _ = project(numerics)
    rendering = reference.rasterize(**scene, numerics=PRESETS[numerics])
    expected = rendering.weights
    counts, alphas = query("num_contributing_gaussians", splats, isects, numerics=numerics)
    assert counts.dtype == torch.int32
    assert torch.equal(counts, (expected > 0).sum(-1).to(torch.int32))
    assert_exact("alphas", alphas, rendering.alphas[..., 0])
    ids, weights = query("contributing_gaussian_ids", splats, isects, counts, numerics=numerics)
    assert ids.dtype == torch.int32
    assert ids.shape == weights.shape == (2, 19, 21, int(counts.max()))
    assert_exact("weights", by_gaussian(ids, weights, STRUCTURE.n), expected)


def test_listed_weights_give_the_rendered_images():
    _, splats, isects, _ = project()
    colors, alphas = rasterize_to_pixels(*splats.values(), *SIZE, TILE, *isects)
    counts, found_alphas = query("num_contributing_gaussians", splats, isects)
    assert_exact("alphas", found_alphas, alphas[..., 0])
    ids, weights = query("contributing_gaussian_ids", splats, isects, counts)
    assert_exact("sums", weights.sum(-1), alphas[..., 0])
    assert_exact("colors", gather(ids, weights, splats["colors"]), colors)


def test_contributors_are_listed_front_to_back_and_padded():
    scene, splats, isects, _ = project()
    depths = reference.rasterize(**scene).projection.depths
    counts, _ = query("num_contributing_gaussians", splats, isects)
    ids, weights = query("contributing_gaussian_ids", splats, isects, counts)
    listed = torch.arange(ids.shape[-1]) < counts[..., None]
    assert ((ids >= 0) == listed).all()
    assert (ids[~listed] == -1).all()
    assert not weights[~listed].any()
    own = torch.stack([image[index.clamp_min(0).to(torch.int64)] for image, index in zip(depths, ids)])
    own = torch.where(listed, own, torch.inf)
    assert (own[..., 1:] >= own[..., :-1]).all()


def test_fewer_contributors_than_there_are_can_be_listed():
    _, splats, isects, _ = project()
    counts, _ = query("num_contributing_gaussians", splats, isects)
    ids, weights = query("contributing_gaussian_ids", splats, isects, counts)
    fewer = query("contributing_gaussian_ids", splats, isects, counts.clamp_max(3))
    assert torch.equal(fewer[0], ids[..., :3])
    assert torch.equal(fewer[1], weights[..., :3])


@pytest.mark.parametrize("k", [1, 3, 100])
def test_largest_contributors(k):
    _, splats, isects, _ = project()
    counts, _ = query("num_contributing_gaussians", splats, isects)
    all_ids, all_weights = query("contributing_gaussian_ids", splats, isects, counts)
    ids, weights = query("top_contributing_gaussian_ids", splats, isects, k)
    assert ids.shape == weights.shape == (2, 19, 21, k)
    lists = zip(*(tensor.flatten(0, 2).tolist() for tensor in (all_ids, all_weights, ids, weights)))
    for pixel_ids, pixel_weights, found_ids, found_weights in lists:
        # Sorting is stable, so that of equal weights the nearer one comes first.
        places = sorted(range(len(pixel_ids)), key=lambda place: -pixel_weights[place])[:k]
        chosen = [place for place in sorted(places) if pixel_ids[place] >= 0]
        padding = k - len(chosen)
        assert found_ids == [pixel_ids[place] for place in chosen] + [-1] * padding
        assert found_weights == [pixel_weights[place] for place in chosen] + [0.0] * padding


def test_of_equal_weights_the_nearer_ones_are_kept():
    # Alphas of 1/4, 1/3 and 1/2 give weights of 1/4 each.
    n = 3
    splats = dict(
        means2d=torch.full((1, n, 2), 2.5, dtype=torch.float64),
        conics=torch.tensor([0.0, 0.0, 0.0], dtype=torch.float64).expand(1, n, 3),
        opacities=torch.tensor([[0.25, 1 / 3, 0.5]], dtype=torch.float64),
    )
    inputs = (*splats.values(), torch.zeros(1, 1, 1, dtype=torch.int32), torch.arange(n, dtype=torch.int32))
    ids, weights = gsplat.rasterize_contributing_gaussian_ids(*inputs, 4, 4, 4, torch.full((1, 4, 4), n))
    assert_exact("weights", weights, torch.full((1, 4, 4, n), 0.25, dtype=torch.float64))
    equal = torch.equal(weights[..., 0], weights[..., 1]) and torch.equal(weights[..., 1], weights[..., 2])
    assert equal
    for k in (1, 2):
        ids, _ = gsplat.rasterize_top_contributing_gaussian_ids(*inputs, 4, 4, 4, k)
        assert torch.equal(ids, torch.arange(k, dtype=torch.int32).expand(1, 4, 4, k))


def test_packed_ids_are_rows():
    _, splats, isects, _ = project()
    counts, alphas = query("num_contributing_gaussians", splats, isects)
    ids, weights = query("contributing_gaussian_ids", splats, isects, counts)
    _, packed, packed_isects, gaussian_ids = project(packed=True)
    found_counts, found_alphas = query("num_contributing_gaussians", packed, packed_isects)
    assert torch.equal(found_counts, counts)
    assert torch.equal(found_alphas, alphas)
    rows, found_weights = query("contributing_gaussian_ids", packed, packed_isects, found_counts)
    assert torch.equal(found_weights, weights)
    assert int(rows.max()) >= STRUCTURE.n
    gaussians = torch.where(rows < 0, -1, gaussian_ids[rows.clamp_min(0).to(torch.int64)])
    assert torch.equal(gaussians.to(torch.int32), ids)
    _, top = query("top_contributing_gaussian_ids", splats, isects, 2)
    _, packed_top = query("top_contributing_gaussian_ids", packed, packed_isects, 2)
    assert torch.equal(packed_top, top)


@pytest.mark.parametrize("size", [1, 100, 3000])
def test_batches_change_nothing(monkeypatch, size):
    """Several tiles at a time, or some pixels of one tile."""
    _, splats, isects, _ = project()

    def results():
        counts, alphas = query("num_contributing_gaussians", splats, isects)
        listed = query("contributing_gaussian_ids", splats, isects, counts)
        return counts, alphas, *listed, *query("top_contributing_gaussian_ids", splats, isects, 3)

    expected = results()
    monkeypatch.setattr(compositing, "BLOCK", size)
    for one, other in zip(results(), expected):
        assert_exact("results", one, other)


def test_pixels_without_contributors():
    _, splats, (offsets, flatten_ids), _ = project()
    isects = torch.zeros_like(offsets), flatten_ids[:0]
    counts, alphas = query("num_contributing_gaussians", splats, isects)
    assert not counts.any()
    assert not alphas.any()
    ids, weights = query("contributing_gaussian_ids", splats, isects, counts)
    assert ids.shape == weights.shape == (2, 19, 21, 0)
    ids, weights = query("top_contributing_gaussian_ids", splats, isects, 2)
    assert (ids == -1).all()
    assert not weights.any()


def test_arguments_are_checked():
    _, splats, isects, _ = project()
    with pytest.raises(ArgumentError, match="tile_offsets: expected"):
        query("num_contributing_gaussians", splats, (isects[0][:, :2], isects[1]))
    with pytest.raises(ArgumentError, match="num_contributing_gaussians: expected a count per pixel"):
        query("contributing_gaussian_ids", splats, isects, torch.zeros(2, 19, 20, dtype=torch.int32))
    with pytest.raises(ArgumentError, match="num_depth_samples: expected a positive int"):
        query("top_contributing_gaussian_ids", splats, isects, 0)
    with pytest.raises(ArgumentError, match="numerics"):
        query("num_contributing_gaussians", splats, isects, numerics="gsplat")
