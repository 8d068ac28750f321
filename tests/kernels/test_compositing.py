"""Ways of compositing that must not show: the order of tiles, and channels as products of matrices."""

import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.closeness import assert_exact, assert_run_exact, assert_run_fp32, run
from tsplat import reference

pytestmark = pytest.mark.filterwarnings("ignore:(divide by zero|invalid value|overflow) encountered:RuntimeWarning")


def _offsets(counts):
    return torch.tensor([0, *counts]).cumsum(0)


def test_longest_lists_come_first(monkeypatch):
    launch = pytest.importorskip("tsplat.kernels.launch", reason="needs Triton")
    monkeypatch.setattr(launch, "RESIDENT", 3)
    monkeypatch.setattr(launch, "GRAIN", 10)
    # Lengths within a grain keep the order of tiles.
    order = launch.longest_first(_offsets([5, 31, 0, 200, 39, 9, 10]))
    assert order.tolist() == [3, 1, 4, 6, 0, 2, 5]
    # Beyond what 16 bits can tell apart, all are equally long.
    assert launch.longest_first(_offsets([2**40, 1, 2**20, 2**41])).tolist() == [0, 2, 3, 1]
    assert launch.longest_first(_offsets([1, 2, 3])) is None


@pytest.mark.interpreter
@pytest.mark.parametrize("banded", [False, True])
def test_order_of_tiles_leaves_every_bit(banded, monkeypatch):
    from tsplat.kernels import compositing, launch

    scene = scenes.make(scenes.Structure(n=12, cameras=2, width=20, height=11, size=2.0, seed=3), torch.float32)
    monkeypatch.setattr(launch, "GRAIN", 1)
    kept = launch.longest_first
    orders = []

    def noted(isect_offsets):
        orders.append(kept(isect_offsets))
        return orders[-1]

    monkeypatch.setattr(compositing, "longest_first", noted)
    results, budget = [], {}
    if banded:
        _, meta = run(scene, backend="triton", tile_size=4, absgrad=True, render_mode="RGB+D")
        budget = dict(memory_budget=meta["memory"]["peak_bytes"] // 2)
        orders.clear()
    for resident in (0, 10**6):
        monkeypatch.setattr(launch, "RESIDENT", resident)
        result, meta = run(scene, backend="triton", tile_size=4, absgrad=True, render_mode="RGB+D", **budget)
        assert (meta["memory"]["bands"] > 1) == banded
        results.append(result)
    n_orders = len(orders) // 2
    assert all(order is None for order in orders[n_orders:])
    # The order is one that changes something.
    assert any((order.diff() < 0).any() for order in orders[:n_orders])
    for name, tensor in results[0].items():
        assert tensor is results[1][name] is None or torch.equal(tensor, results[1][name]), name


@pytest.mark.interpreter
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
def test_many_channels(channels, tile_size, per_camera, options):
    structure = scenes.Structure(
        n=6, cameras=1 + per_camera, channels=channels, per_camera_colors=per_camera, width=9, height=7, seed=channels
    )
    assert_run_exact(scenes.make(structure), backend="triton", tile_size=tile_size, **options)


@pytest.mark.interpreter
def test_many_channels_of_saturated_pixels():
    """Clamp, stop rule and lists longer than a group that end early."""
    scene = scenes.make(scenes.Structure(n=50, cameras=1, channels=16, width=8, height=5, size=12.0, seed=2))
    scene["opacities"] = 0.6 + 0.4 * scene["opacities"]
    truth = reference.rasterize(**scene)
    assert (truth.alphas > 0.999).any()
    assert (truth.margins.clamp < 1).any()
    assert_run_exact(scene, backend="triton", tile_size=4)


@pytest.mark.interpreter
def test_many_channels_in_masked_tiles_and_with_absgrad():
    """To the same picture and gradients as channel by channel."""
    from tsplat.kernels import compositing

    scene = scenes.make(scenes.Structure(n=20, cameras=1, channels=18, width=10, height=9, seed=6))
    _, _, meta = tsplat.rasterization(**scene, packed=False, tile_size=4, backend="triton")
    masks = torch.ones(1, 3, 3, dtype=torch.bool)
    masks[0, 0, 1] = False
    results = []
    for many in (16, 10**6):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compositing, "MANY", many)
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
    """Makes the interpreter split matrices as NVIDIA's GPUs need it, and multiply only the bits that they read."""
    from triton.runtime import interpreter

    from tsplat.kernels import compositing_features as features

    multiply, options, products = interpreter.InterpreterBuilder.create_dot, features._options, []

    def split(records, colors, depths, tile_size):
        half = colors.dtype != torch.float32 and depths is None
        return options(records, colors, depths, tile_size) | dict(SPLIT=True, EXACT=half)

    def truncating(self, a, b, *rest):
        for factor in (a, b):
            factor.data = (factor.data.view("int32") & -(2**13)).view("float32")
        products.append(a.data.shape)
        return multiply(self, a, b, *rest)

    monkeypatch.setattr(features, "_options", split)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", truncating)
    return products


@pytest.mark.interpreter
def test_products_of_parts_are_as_good_as_fp32(tensor_cores):
    scene = scenes.make(scenes.Structure(n=20, cameras=1, channels=20, width=9, height=8, seed=1), torch.float32)
    assert_run_fp32(scene, backend="triton", tile_size=4)
    assert tensor_cores


@pytest.mark.interpreter
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_features_in_half_precision_are_read_as_they_are(dtype, tensor_cores):
    """Two products of parts in place of three, and the same bits."""
    scene = scenes.make(scenes.Structure(n=12, cameras=1, channels=16, width=8, height=4, seed=1), torch.float32)
    scene["colors"] = scene["colors"].to(dtype)
    half, _ = run(scene, backend="triton", tile_size=4)
    n_products = len(tensor_cores)
    scene["colors"] = scene["colors"].float()
    whole, _ = run(scene, backend="triton", tile_size=4)
    assert n_products < len(tensor_cores) - n_products
    for name, tensor in whole.items():
        expected = tensor if name != "v_colors" else tensor.to(dtype)
        assert tensor is half[name] is None or torch.equal(half[name], expected), name


@pytest.mark.interpreter
@pytest.mark.parametrize("packed", [False, True])
def test_features_that_are_no_numbers_stay_out_of_the_picture(packed):
    structure = scenes.Structure(n=5, width=12, height=9, channels=16, sh_degree=None, seed=2)
    scene = scenes.make(structure, torch.float64)
    broken = {name: tensor.clone() if torch.is_tensor(tensor) else tensor for name, tensor in scene.items()}
    broken["colors"][0] = float("nan")
    broken["opacities"][0] = 0.5
    results = []
    for backend in ("triton", "torch"):
        colors, alphas, meta = tsplat.rasterization(**broken, backend=backend, packed=packed, tile_size=4)
        assert int(meta["n_invalid"]) == 1
        results.append((colors, alphas))
        assert colors.isfinite().all()
    for found, expected in zip(*results):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.interpreter
def test_no_gradient_of_many_channels_flows_where_alpha_is_clamped():
    scene = scenes.make(scenes.Structure(n=8, cameras=1, channels=16, width=8, height=5, size=12.0, seed=5))
    scene["opacities"][:] = 1.0  # some have their middle close to a pixel's
    assert_run_exact(scene, backend="triton", tile_size=4)
