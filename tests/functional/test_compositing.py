"""rasterize_to_pixels and rasterize_to_pixels_2dgs: masks, absgrad on what the caller passed, invalid lists."""

import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.backends import BACKENDS


def composite_discs(means2d, backend):
    """Of three, by absolute gradients: sums of 2D Gaussians so small that only their blur is seen."""
    rows = torch.full((1, 3, 3), 0.0), torch.zeros_like(means2d, dtype=torch.float32)
    transforms = torch.diag_embed(torch.tensor([0.01, 0.01, 1.0])).repeat(1, 3, 1, 1)
    transforms[..., :2, 2] = means2d.detach().float()
    lists = torch.zeros(1, 1, 1, dtype=torch.int32), torch.arange(3, dtype=torch.int32)
    opacities = torch.full((1, 3), 0.5, requires_grad=True)
    return tsplat.rasterize_to_pixels_2dgs(
        means2d, transforms, torch.eye(3)[None], opacities, *rows, 4, 4, 4, *lists, absgrad=True, backend=backend
    )


def composite_ellipses(means2d, backend, dtype=torch.float32):
    """Of three, by absolute gradients."""
    conics = torch.tensor([0.1, 0.02, 0.1], dtype=dtype).expand(1, 3, 3)
    lists = torch.zeros(1, 1, 1, dtype=torch.int32), torch.arange(3, dtype=torch.int32)
    opacities = torch.full((1, 3), 0.5, requires_grad=True)
    return tsplat.rasterize_to_pixels(
        means2d, conics, torch.eye(3)[None], opacities, 4, 4, 4, *lists, absgrad=True, backend=backend
    )


PASSED = {
    "fp16": lambda t: t.half(),
    "bf16": lambda t: t.bfloat16(),
    "without a gradient": lambda t: t.half().detach(),
    "negative": lambda t: torch._neg_view(-t),
    "negative fp16": lambda t: torch._neg_view(-t.half()),
    "transposed": lambda t: t.mT.contiguous().mT,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("composite", [composite_ellipses, composite_discs])
@pytest.mark.parametrize("kind", PASSED)
def test_absgrad_is_set_on_the_tensor_that_the_caller_passed(backend, composite, kind):
    """Also where kernels take a copy of it."""
    given = torch.tensor([[[2.5, 2.25], [1.5, 1.75], [1.0, 1.0]]], requires_grad=True)
    passed = PASSED[kind](given)
    images, plain = composite(passed, backend), given.detach().clone().requires_grad_()
    expected = composite(plain, backend)
    v = scenes.random_like(expected[:2], 0)
    torch.autograd.backward(images[:2], v)
    torch.autograd.backward(expected[:2], v)
    assert plain.absgrad.all()
    assert passed.absgrad.dtype == passed.dtype
    assert torch.equal(passed.absgrad, plain.absgrad.to(passed.dtype))


def test_absgrad_is_set_on_the_tensor_that_the_caller_passed_with_others_in_fp64():
    given = torch.tensor([[[2.5, 2.25], [1.5, 1.75], [1.0, 1.0]]], requires_grad=True)
    composite_ellipses(given, "torch", torch.float64)[0].sum().backward()
    assert given.absgrad.dtype == torch.float32
    assert given.absgrad.all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_masked_tiles_have_background_and_no_gradient(backend):
    scene = scenes.make(scenes.Structure(n=20, cameras=1, seed=6), torch.float64)
    _, _, meta = tsplat.rasterization(**scene, packed=False, tile_size=8, backend=backend)
    masks = torch.ones(1, 3, 3, dtype=torch.bool)
    masks[0, 0, 1] = False
    inputs = {name: meta[name].clone().requires_grad_() for name in ("means2d", "conics", "opacities")}
    colors = scene["colors"][None].clone().requires_grad_()
    rendered, alphas = tsplat.rasterize_to_pixels(
        image_width=21, image_height=19, tile_size=8, isect_offsets=meta["isect_offsets"], colors=colors,
        flatten_ids=meta["flatten_ids"], backgrounds=scene["backgrounds"], masks=masks, backend=backend, **inputs,
    )  # fmt: skip
    assert torch.equal(rendered[0, :8, 8:16], scene["backgrounds"].expand(8, 8, 3))
    assert not alphas[0, :8, 8:16].any()
    assert alphas[0, :8, :8].any()
    gradients = torch.autograd.grad(rendered[0, :8, 8:16].sum(), [*inputs.values(), colors])
    assert not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("flatten_ids", lambda ids: ids + 2**28, r"flatten_ids: expected integers from 0 to 19, found 2\d+ to 2\d+"),
        ("flatten_ids", lambda ids: ids.long() + 2**32, "flatten_ids: expected integers from 0 to 19, found 4294967"),
        ("flatten_ids", lambda ids: -1 - ids, "flatten_ids: expected integers from 0 to 19, found -"),
        (
            "isect_offsets",
            lambda offsets: offsets + 2**20,
            r"isect_offsets: expected integers from 0 to \d+, found 1048",
        ),
        ("isect_offsets", lambda offsets: offsets.flip(-1), "isect_offsets: expected ascending offsets"),
        (
            "isect_offsets",
            lambda offsets: offsets.clamp_min(2),
            "isect_offsets: expected offsets that begin with 0, found",
        ),
    ],
)
def test_lists_out_of_range_raise(name, change, match):
    """Kernels would read whatever is there, or end the process."""
    scene = scenes.make(scenes.Structure(n=20, cameras=1, seed=6), torch.float32)
    _, _, meta = tsplat.rasterization(**scene, packed=False, tile_size=8)
    inputs = {name: meta[name] for name in ("means2d", "conics", "opacities", "isect_offsets", "flatten_ids")}
    inputs[name] = change(inputs[name])
    with pytest.raises(tsplat.ArgumentError, match=match):
        tsplat.rasterize_to_pixels(colors=scene["colors"][None], image_width=21, image_height=19, tile_size=8, **inputs)


def test_more_intersections_than_32_bits_hold_raise():
    """Eight entries of each must fit. Memory is not allocated."""
    splats = dict(means2d=torch.zeros(1, 1, 2), conics=torch.ones(1, 1, 3), opacities=torch.ones(1, 1))
    with pytest.raises(tsplat.ArgumentError, match="flatten_ids: 268,435,456 intersections"):
        tsplat.rasterize_to_pixels(
            **splats, colors=torch.ones(1, 1, 3), image_width=4, image_height=4, tile_size=4,
            isect_offsets=torch.zeros(1, 1, 1, dtype=torch.int32), flatten_ids=torch.ones(1).int().expand(2**28),
        )  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_rays_of_panoramas_show_what_rasterization_shows(backend):
    """What is behind the origin of a ray is seen by another one, with every preset."""
    generator = torch.Generator().manual_seed(0)
    means, quats, scales, colors = (torch.randn(12, n, generator=generator, dtype=torch.float64) for n in (3, 4, 3, 3))
    means, scales, opacities = 2 * means, 0.2 * scales.abs() + 0.1, torch.full((12,), 0.9, dtype=torch.float64)
    viewmats = torch.eye(4, dtype=torch.float64)[None]
    Ks = torch.tensor([[[16 / torch.pi, 0, 16], [0, 16 / torch.pi, 8], [0, 0, 1]]], dtype=torch.float64)
    shared = dict(camera_model="equirectangular", backend=backend)
    expected, _, _ = tsplat.rasterization(
        means, quats, scales, opacities, colors, viewmats, Ks, 32, 16, with_ut=True, with_eval3d=True, **shared
    )
    ids = means.norm(dim=-1).argsort().repeat(2)
    found, _ = tsplat.rasterize_to_pixels_eval3d(
        means, quats, scales, colors[None], opacities[None], viewmats, Ks, 32, 16, 16, torch.tensor([[[0, 12]]]), ids,
        **shared,
    )  # fmt: skip
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
