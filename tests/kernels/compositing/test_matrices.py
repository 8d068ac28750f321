"""Compositing of many channels as matrix products: results, masks, absgrad, half precision, clamped alpha."""

import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.closeness import assert_exact, assert_run_exact, assert_run_fp32, run
from tsplat import reference

pytestmark = pytest.mark.triton


@pytest.mark.parametrize(
    ("channels", "tile_size", "per_camera", "options"),
    [
        (16, 16, False, {}),
        (17, 8, True, dict(render_mode="RGB+ED", rasterize_mode="antialiased")),
        (15, 4, False, dict(render_mode="RGB+D")),
        (33, 4, True, dict(packed=False)),
        (64, 16, False, dict(packed=False)),
    ],
)
def test_numbers_of_channels_match_reference(channels, tile_size, per_camera, options):
    structure = scenes.Structure(
        n=6, cameras=1 + per_camera, channels=channels, per_camera_colors=per_camera, width=9, height=7, seed=channels
    )
    assert_run_exact(scenes.make(structure), backend="triton", tile_size=tile_size, **options)


def test_saturated_pixels_match_reference():
    """Alpha is clamped, and pixels stop before the end of lists that are longer than a group."""
    scene = scenes.make(scenes.Structure(n=50, cameras=1, channels=16, width=8, height=5, size=12.0, seed=2))
    scene["opacities"] = 0.6 + 0.4 * scene["opacities"]
    truth = reference.rasterize(**scene)
    assert (truth.alphas > 0.999).any()
    assert (truth.margins.clamp < 1).any()
    assert_run_exact(scene, backend="triton", tile_size=4)


def test_masks_and_absgrad_match_kernels_for_few_channels():
    from tsplat.kernels import compositing

    scene = scenes.make(scenes.Structure(n=20, cameras=1, channels=18, width=10, height=9, seed=6))
    _, _, meta = tsplat.rasterization(**scene, packed=False, tile_size=4, backend="triton")
    masks = torch.ones(1, 3, 3, dtype=torch.bool)
    masks[0, 0, 1] = False
    results = []
    for features_min in (16, 10**6):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compositing, "FEATURES_MIN", features_min)
            inputs = {name: meta[name].detach().clone().requires_grad_() for name in ("means2d", "conics", "opacities")}
            inputs["colors"] = scene["colors"][None].clone().requires_grad_()
            images = tsplat.rasterize_to_pixels(
                image_width=10, image_height=9, tile_size=4, isect_offsets=meta["isect_offsets"], masks=masks,
                flatten_ids=meta["flatten_ids"], backgrounds=scene["backgrounds"], backend="triton", absgrad=True,
                **inputs,
            )  # fmt: skip
            torch.autograd.backward(images, scenes.random_like(images, 0))
            gradients = {f"v_{name}": tensor.grad for name, tensor in inputs.items()}
            results.append(dict(colors=images[0], alphas=images[1], absgrad=inputs["means2d"].absgrad, **gradients))
    for name, tensor in results[1].items():
        assert tensor.any()
        assert_exact(name, results[0][name], tensor)
    assert torch.equal(results[0]["colors"][0, :4, 4:8], scene["backgrounds"].expand(4, 4, 18))


@pytest.fixture
def tensor_cores(monkeypatch):
    """Makes the interpreter split matrices as for NVIDIA's tensor cores, and multiply only the bits that those read."""
    from triton.runtime import interpreter

    from tsplat.kernels.compositing import matrices

    multiply, products = interpreter.InterpreterBuilder.create_dot, []

    def split(records, splats):
        half = splats.colors.dtype != torch.float32 and splats.depths is None
        return matrices.Products(SPLIT=True, EXACT=half)

    def truncating(self, a, b, *rest):
        for factor in (a, b):
            factor.data = (factor.data.view("int32") & -(2**13)).view("float32")
        products.append(a.data.shape)
        return multiply(self, a, b, *rest)

    monkeypatch.setattr(matrices.Products, "of", split)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", truncating)
    return products


@pytest.mark.long
@pytest.mark.interpreter
def test_split_products_have_fp32_precision(tensor_cores):
    scene = scenes.make(scenes.Structure(n=20, cameras=1, channels=20, width=9, height=8, seed=1), torch.float32)
    assert_run_fp32(scene, backend="triton", tile_size=4)
    assert tensor_cores


@pytest.mark.interpreter
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_colors_give_the_bits_of_fp32(dtype, tensor_cores):
    """With two partial products instead of three."""
    scene = scenes.make(scenes.Structure(n=12, cameras=1, channels=16, width=8, height=4, seed=1), torch.float32)
    scene["colors"] = scene["colors"].to(dtype)
    half, _ = run(scene, backend="triton", tile_size=4)
    n_products = len(tensor_cores)
    scene["colors"] = scene["colors"].float()
    full, _ = run(scene, backend="triton", tile_size=4)
    assert n_products < len(tensor_cores) - n_products
    for name, tensor in full.items():
        expected = tensor if name != "v_colors" else tensor.to(dtype)
        assert tensor is half[name] is None or torch.equal(half[name], expected), name


def test_clamped_alpha_has_no_gradient():
    scene = scenes.make(scenes.Structure(n=8, cameras=1, channels=16, width=8, height=5, size=12.0, seed=5))
    scene["opacities"][:] = 1.0  # so that alpha is clamped where a mean is close to a pixel's center
    assert_run_exact(scene, backend="triton", tile_size=4)
