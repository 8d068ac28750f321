"""The footprint of `subpixel_offset`: pixels are evaluated beside their centers, against the dense reference."""

import pytest
import torch

import tsplat
from tests.emulator.targets import needs_emulator
from tests.support import scenes
from tests.support.backends import BACKENDS
from tests.support.closeness import assert_exact, assert_fp32
from tsplat import ArgumentError, ShapeError, reference

SIZE, TILE = (21, 18), 8
BESIDE = "expected offsets of at most 0.5 pixels, found"


def splats(channels=3, n=30, seed=0, extent=(0.3, 4.0)):
    """Gaussians of two images, most of which are smaller than a part of a tile, front to back."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape, low=0.0, high=1.0):
        return low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)

    angle, deviations = uniform(2, n, high=3.14), uniform(2, n, 2, low=extent[0], high=extent[1])
    axes = (
        torch.stack([angle.cos(), angle.sin(), -angle.sin(), angle.cos()], -1).view(2, n, 2, 2) / deviations[..., None]
    )
    conic = axes.transpose(-1, -2) @ axes
    return dict(
        means2d=uniform(2, n, 2) * torch.tensor([SIZE[0] + 4.0, SIZE[1] + 4.0]) - 2,
        conics=torch.stack([conic[..., 0, 0], conic[..., 0, 1], conic[..., 1, 1]], -1),
        colors=uniform(2, n, channels),
        opacities=uniform(2, n, low=0.05),
        backgrounds=uniform(2, channels),
    )  # fmt: skip


def offsets(seed=1):
    """Of two images, some at the corners of pixels."""
    drawn = torch.rand(2, SIZE[1], SIZE[0], 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (3 * drawn - 1.5).clamp(-0.5, 0.5)


def rendered(inputs, radius=40, **options):
    """Images, with lists of all Gaussians within a radius."""
    n, across = inputs["opacities"].shape[1], (-(-SIZE[0] // TILE), -(-SIZE[1] // TILE))
    means2d = inputs["means2d"].detach()
    radii = torch.full((2, n, 2), radius, dtype=torch.int32)
    depths = torch.arange(1.0, n + 1).expand(2, n)
    _, ids, flatten_ids = tsplat.isect_tiles(means2d, radii, depths, TILE, *across)
    starts = tsplat.isect_offset_encode(ids, 2, *across)
    return tsplat.rasterize_to_pixels(
        image_width=SIZE[0], image_height=SIZE[1], tile_size=TILE, isect_offsets=starts, flatten_ids=flatten_ids,
        **inputs, **options,
    )  # fmt: skip


def rendered_by_reference(inputs, offset):
    x, y = ((torch.arange(size) + 0.5).double() for size in SIZE)
    dx = (x + offset[..., 0])[..., None] - inputs["means2d"][:, None, None, :, 0]
    dy = (y[:, None] + offset[..., 1])[..., None] - inputs["means2d"][:, None, None, :, 1]
    a, b, c = (conic[:, None, None] for conic in inputs["conics"].unbind(-1))
    n = inputs["opacities"].shape[1]
    found = reference.composite(
        inputs["means2d"], inputs["conics"], inputs["opacities"], inputs["colors"], inputs["backgrounds"],
        torch.arange(n).expand(2, n), torch.ones(2, n, dtype=torch.bool), *SIZE,
        sigmas=0.5 * (a * dx * dx + c * dy * dy) + b * dx * dy,
    )  # fmt: skip
    return found.colors, found.alphas[..., None]


def with_gradients(render, inputs):
    """Images and gradients, by name."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in inputs.items()}
    images = render(leaves)
    gradients = torch.autograd.grad(images, list(leaves.values()), scenes.random_like(images, 0))
    detached = (image.detach() for image in images)
    return dict(zip(("image", "alpha", *inputs), (*detached, *gradients), strict=True))


def assert_matches_reference(inputs, backend):
    found = with_gradients(lambda leaves: rendered(leaves, subpixel_offset=offsets(), backend=backend), inputs)
    for name, expected in with_gradients(lambda leaves: rendered_by_reference(leaves, offsets()), inputs).items():
        assert_exact(name, found[name], expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("channels", [3, 17])
@pytest.mark.parametrize("extent", [(0.1, 0.5), (0.3, 4.0)])
def test_images_and_gradients_match_reference(backend, channels, extent):
    assert_matches_reference(splats(channels, extent=extent), backend)


@pytest.mark.triton
@pytest.mark.parametrize("channels", [3, 17])
def test_lists_that_are_cut_match_reference(channels, cut_lists):
    counts = cut_lists(3)
    assert_matches_reference(splats(channels, n=60), "triton")
    assert counts[-1] > 0


@needs_emulator
@pytest.mark.long
def test_several_blocks_of_pixels_match_torch_backend(monkeypatch):
    """Programs of GPUs have parts of several blocks of 32 pixels."""
    from emulator.package import tsplat_emulated
    from tsplat.kernels import compositing
    from tsplat.kernels.compositing import tuning

    monkeypatch.setattr(compositing, "part_shape", lambda *arguments: tuning.PartShape(8, 8, 1024))
    results = []
    for backend, dtype in (("triton", torch.float32), ("torch", torch.float64), ("torch", torch.float32)):
        inputs = {name: tensor.to(dtype) for name, tensor in splats(n=14).items()}
        offset = offsets().to(dtype)

        def render(leaves, offset=offset, backend=backend):
            return rendered(leaves, subpixel_offset=offset, backend=backend)

        with tsplat_emulated("cuda:80"):
            results.append(with_gradients(render, inputs))
    for name, found in results[0].items():
        assert_fp32(name, found, results[1][name], results[2][name])


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_offsets_move_gaussians(backend):
    inputs, results = splats(), []
    inputs["means2d"].requires_grad_()
    for offset in (torch.tensor([0.25, -0.375]), torch.zeros(2)):
        moved = {**inputs, "means2d": inputs["means2d"] - offset} if offset.any() else inputs
        others = dict(backend=backend, absgrad=True)
        shifted = rendered(inputs, subpixel_offset=offset.expand(2, SIZE[1], SIZE[0], 2), **others)
        shifted[0].square().sum().backward()
        slopes = inputs["means2d"].absgrad
        moved["means2d"] = moved["means2d"].detach().requires_grad_()
        expected = rendered(moved, **others)
        expected[0].square().sum().backward()
        results += [(*shifted, slopes), (*expected, moved["means2d"].absgrad)]
    for found, expected in zip(results[::2], results[1::2], strict=True):
        for name, one, other in zip(("colors", "alphas", "absgrad"), found, expected, strict=True):
            assert_exact(name, one, other)
    assert not torch.equal(results[0][0], results[2][0])


def test_invalid_offsets_are_refused():
    inputs = splats()
    for value, found in ((0.6, "0.6"), (float("nan"), "nan")):
        with pytest.raises(ArgumentError, match=f"{BESIDE} {found}"):
            rendered(inputs, subpixel_offset=torch.full((2, SIZE[1], SIZE[0], 2), value))
    with pytest.raises(ShapeError, match="subpixel_offset"):
        rendered(inputs, subpixel_offset=torch.zeros(SIZE[1], SIZE[0], 2))
