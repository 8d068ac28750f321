"""rasterize_to_pixels: images and gradients against the reference, channels, image sizes, absgrad."""

import math

import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.backends import BACKENDS
from tests.support.closeness import assert_exact, assert_run_exact, leaves
from tsplat import reference


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 8, 9, 17])
def test_numbers_of_channels_match_reference(backend, channels):
    scene = scenes.make(scenes.Structure(n=8, cameras=1, channels=channels, width=10, height=9, seed=channels))
    assert_run_exact(scene, backend=backend, tile_size=8, channel_chunk=5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [(1, 1), (1, 17), (16, 16), (17, 15), (33, 4)])
@pytest.mark.parametrize("tile_size", [4, 16])
def test_image_sizes_off_the_tile_grid_match_reference(backend, size, tile_size):
    structure = scenes.Structure(n=5, cameras=1, width=size[0], height=size[1], size=2.0, seed=1)
    assert_run_exact(scenes.make(structure), backend=backend, tile_size=tile_size)


@pytest.mark.parametrize("backend", BACKENDS)
def test_saturated_pixels_match_reference(backend):
    """Many opaque Gaussians in one tile: alpha is clamped, and pixels stop before the end of the list."""
    scene = scenes.make(scenes.Structure(n=70, cameras=1, width=8, height=8, size=12.0, seed=2))
    scene["opacities"] = 0.6 + 0.4 * scene["opacities"]
    truth = reference.rasterize(**scene)
    assert (truth.alphas > 0.999).any()
    assert (truth.margins.clamp < 1).any()
    assert_run_exact(scene, backend=backend, tile_size=8)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n_intersections", [0, 1, 15, 16, 17, 33])
def test_numbers_of_intersections_around_the_step_match_reference(backend, n_intersections, monkeypatch):
    """M in {0, 1, step - 1, step, step + 1, 2 step + 1} intersections in one tile."""
    if backend == "torch":
        from tsplat.kernels_torch import compositing

        monkeypatch.setattr(compositing, "BLOCK", 16)
    generator = torch.Generator().manual_seed(n_intersections)

    def uniform(*shape, low, high):
        return low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)

    n = max(n_intersections, 1)
    inputs = dict(
        means2d=uniform(1, n, 2, low=-2.0, high=10.0),
        conics=torch.cat([uniform(1, n, 1, low=0.02, high=0.4), uniform(1, n, 1, low=-0.01, high=0.01),
                          uniform(1, n, 1, low=0.02, high=0.4)], -1),
        colors=uniform(1, n, 3, low=0.0, high=1.0),
        opacities=uniform(1, n, low=0.01, high=0.6),
        backgrounds=uniform(1, 3, low=0.0, high=1.0),
    )  # fmt: skip
    flatten_ids = torch.arange(n_intersections, dtype=torch.int32)
    offsets = torch.zeros(1, 1, 1, dtype=torch.int32)
    results = []
    for which in (backend, "reference"):
        leaves = {name: t.clone().requires_grad_() for name, t in inputs.items()}
        if which == "reference":
            contributes = torch.arange(n)[None] < n_intersections
            truth = reference.composite(
                leaves["means2d"], leaves["conics"], leaves["opacities"], leaves["colors"], leaves["backgrounds"],
                torch.arange(n)[None], contributes, 8, 7,
            )  # fmt: skip
            images = (truth.colors, truth.alphas[..., None])
        else:
            images = tsplat.rasterize_to_pixels(
                image_width=8, image_height=7, tile_size=8, isect_offsets=offsets, flatten_ids=flatten_ids,
                backend=backend, **leaves,
            )  # fmt: skip
        gradients = torch.autograd.grad(images, list(leaves.values()), scenes.random_like(images, 0))
        results.append((*images, *gradients))
    for name, found, expected in zip(("colors", "alphas", *inputs), *results):
        assert_exact(name, found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_means_that_are_not_finite_are_not_rendered(backend, value):
    means2d = torch.tensor([[[2.5, 2.5], [value, 1.0], [1.0, 1.0]]])
    conics = torch.tensor([0.1, 0.02, 0.1]).expand(1, 3, 3)
    offsets = torch.zeros(1, 1, 1, dtype=torch.int32)
    results = []
    for listed in ([0, 1, 2], [0, 2]):
        leaves = [tensor.clone().requires_grad_() for tensor in (means2d, conics, torch.eye(3)[None])]
        images = tsplat.rasterize_to_pixels(
            *leaves, torch.full((1, 3), 0.5), 4, 4, 4, offsets, torch.tensor(listed, dtype=torch.int32),
            backend=backend,
        )  # fmt: skip
        results.append((*images, *torch.autograd.grad(images, leaves, scenes.random_like(images, 0))))
    for name, found, expected in zip(("colors", "alphas", "means2d", "conics", "colors"), *results):
        assert_exact(name, found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("channels", [3, 17])
@pytest.mark.parametrize("conic", [(math.nan,) * 3, (math.inf, 0.0, math.inf), (math.inf,) * 3, (1.0, math.nan, 1.0)])
def test_conics_that_are_not_finite_are_not_rendered(backend, channels, conic):
    """Whether they are in a list or not; the shapes of culled Gaussians may be anything."""
    means2d, offsets = torch.tensor([[[2.5, 2.5], [1.5, 1.5], [1.0, 1.0]]]), torch.zeros(1, 1, 1, dtype=torch.int32)
    colors, opacities = torch.rand(1, 3, channels), torch.full((1, 3), 0.5)
    results = []
    for own, listed in ((conic, [0, 1, 2]), (conic, [0, 2]), ((0.1, 0.02, 0.1), [0, 2])):
        conics = torch.tensor([[(0.1, 0.02, 0.1), own, (0.1, 0.02, 0.1)]])
        leaves = [tensor.clone().requires_grad_() for tensor in (means2d, conics, colors, opacities)]
        images = tsplat.rasterize_to_pixels(
            *leaves, 4, 4, 4, offsets, torch.tensor(listed, dtype=torch.int32), absgrad=True, backend=backend
        )
        torch.autograd.backward(images, scenes.random_like(images, 0))
        results.append((*images, *(leaf.grad for leaf in leaves), leaves[0].absgrad))
    for *found, expected in zip(*results, strict=True):
        assert all(torch.equal(one, expected) for one in found)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [(1, 4), (4, 1)])
def test_gradients_of_means_on_a_line_of_pixels(backend, size):
    """One of the two sums that they are made of is zero."""
    width, height = size
    rows = torch.tensor([[[0.1, 0.02, 0.1]]]).double(), torch.ones(1, 1, 1).double(), torch.full((1, 1), 0.5).double()
    lists = torch.zeros(1, 1, 1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    means2d = torch.tensor([[[0.5 if width == 1 else 1.7, 0.5 if height == 1 else 1.7]]]).double().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda means2d: tsplat.rasterize_to_pixels(means2d, *rows, *size, 4, *lists, backend=backend)[0], means2d
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_absgrad_sums_absolute_gradients_over_pixels(backend):
    """Against one backward pass of the reference per pixel."""
    for channels in (3, 11):
        structure = scenes.Structure(n=4, cameras=1, channels=channels, width=6, height=5, size=1.5, seed=channels)
        scene = scenes.make(structure)
        for packed in (True, False):
            inputs = scenes.leaves(scene)
            colors, alphas, meta = tsplat.rasterization(
                **inputs, absgrad=True, packed=packed, backend=backend, tile_size=4
            )
            v_colors, v_alphas = scenes.random_like((colors, alphas), 0)
            torch.autograd.backward((colors, alphas), (v_colors, v_alphas))
            truth = reference.rasterize(**scenes.leaves(scene))
            loss = (truth.colors * v_colors).sum(-1) + (truth.alphas * v_alphas).sum(-1)
            expected = torch.zeros_like(truth.projection.means2d)
            for pixel in loss.flatten():
                (gradient,) = torch.autograd.grad(pixel, truth.projection.means2d, retain_graph=True)
                expected += gradient.abs()
            if packed:
                expected = expected[truth.projection.visible]
            assert_exact("absgrad", meta["means2d"].absgrad, expected)


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@pytest.mark.parametrize("channels", [3, 17])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_gradients_at_uncovered_pixels_reach_no_gaussian(backend, channels, value):
    """The gradient of 1 / depth is NaN where nothing was rendered, though a loss leaves those pixels out."""
    structure = scenes.Structure(n=6, cameras=2, channels=channels, width=40, height=32, size=2.0)
    scene = scenes.make(structure, torch.float32)
    gradients = []
    for at_uncovered in (0.0, value):
        leaves = scenes.leaves(scene | {"backgrounds": scene["backgrounds"]})
        absgrad = backend != "reference"
        colors, alphas, meta = tsplat.rasterization(**leaves, backend=backend, absgrad=absgrad, render_mode="RGB+ED")
        v_images = scenes.random_like((colors, alphas), 3)
        for v in v_images:
            v[(alphas == 0).expand_as(v)] = at_uncovered
        torch.autograd.backward((colors, alphas), v_images)
        names = ("means", "quats", "scales", "opacities", "colors", "viewmats")
        gradients.append([leaves[name].grad for name in names] + ([meta["means2d"].absgrad] if absgrad else []))
    assert 100 < (alphas == 0).sum() < alphas.numel() - 100
    for expected, found in zip(*gradients, strict=True):
        assert expected.any()
        assert torch.equal(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_a_loss_on_inverse_depths_match_reference(backend):
    structure = scenes.Structure(n=6, cameras=2, width=40, height=32, size=2.0, backgrounds=False)
    gradients = []
    for own in (backend, "reference"):
        leaves = scenes.leaves(scenes.make(structure))
        depths, alphas, _ = tsplat.rasterization(**leaves, backend=own, render_mode="ED")
        torch.where(alphas > 0, 1 / depths, 0.0).sum().backward()
        gradients.append([leaves[name].grad for name in ("means", "quats", "scales", "opacities", "viewmats")])
    assert (alphas == 0).any()
    for found, expected in zip(*gradients, strict=True):
        assert expected.any()
        assert_exact("gradient", found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("channels", [3, 17])
@pytest.mark.parametrize("used", [0, 1])
def test_images_without_a_loss_count_as_zero_gradients(backend, channels, used):
    structure = scenes.Structure(n=40, cameras=2, channels=channels, width=37, height=29, seed=5)
    scene = scenes.make(structure, torch.float32)
    gradients = []
    for is_explicit in (False, True):
        inputs = leaves(scene)
        images = tsplat.rasterization(**inputs, backend=backend)[:2]
        weights = [torch.linspace(-1, 1, image.numel()).view(image.shape) for image in images]
        weights[1 - used] = torch.zeros_like(images[1 - used])
        kept = slice(None) if is_explicit else slice(used, used + 1)
        wanted = [tensor for tensor in inputs.values() if isinstance(tensor, torch.Tensor) and tensor.requires_grad]
        gradients.append(torch.autograd.grad(images[kept], wanted, weights[kept]))
    assert all(torch.equal(found, expected) for found, expected in zip(*gradients, strict=True))
    assert any(found.any() for found in gradients[0])
