"""How rasterization goes together with the rest of PyTorch, and with inputs of unusual size and layout."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import tsplat
from tests.support import scenes
from tests.support.closeness import assert_exact, run, run_reference

STRUCTURE = scenes.Structure(n=12, cameras=2, width=20, height=18, sh_degree=2, seed=7)


def gradients(function, inputs):
    wanted = [t for t in inputs.values() if isinstance(t, torch.Tensor) and t.requires_grad]
    return torch.autograd.grad(function(inputs), wanted)


def loss(inputs, **settings):
    colors, alphas, _ = tsplat.rasterization(**inputs, render_mode="RGB+D", **settings)
    return colors.square().sum() + alphas.sum()


def test_differentiating_twice_is_an_error_that_says_so():
    inputs = scenes.leaves(scenes.make(STRUCTURE))
    (gradient,) = torch.autograd.grad(loss(inputs), inputs["means"], create_graph=True)
    with pytest.raises(tsplat.UnsupportedError, match="second derivatives of rasterization are not implemented"):
        gradient.sum().backward()
    with pytest.raises(tsplat.UnsupportedError, match="second derivatives of rasterization are not implemented"):
        torch.autograd.gradgradcheck(lambda means: loss({**inputs, "means": means}), inputs["means"])


@pytest.mark.parametrize("transform", ["vmap", "grad"])
def test_functional_transforms_are_refused_by_name(transform):
    scene = scenes.make(STRUCTURE)

    def function(means):
        return loss({**scene, "means": means})

    transformed = getattr(torch.func, transform)(function)
    with pytest.raises(tsplat.UnsupportedError, match=r"means: torch.func transforms .* leading batch dimensions"):
        transformed(scene["means"][None])


@pytest.mark.filterwarnings("ignore")  # what the compiler says about its own graph breaks
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_function_that_calls_it_gives_the_same_bits(backend):
    inputs = scenes.leaves(scenes.make(STRUCTURE, torch.float32))

    def function(inputs):
        return loss(inputs) * 2

    torch.compiler.reset()
    compiled = gradients(torch.compile(function, backend=backend), inputs)
    for one, other in zip(gradients(function, inputs), compiled):
        assert torch.equal(one, other)


def test_gradient_checkpointing_gives_the_same_bits():
    inputs = scenes.leaves(scenes.make(STRUCTURE, torch.float32))
    plain = gradients(loss, inputs)
    again = gradients(lambda inputs: checkpoint(loss, inputs, use_reentrant=False), inputs)
    assert all(torch.equal(one, other) for one, other in zip(plain, again))


def test_inputs_and_gradients_of_any_strides():
    scene = scenes.make(STRUCTURE, torch.float32)
    plain, _ = run(scene)

    def scattered(tensor):
        wide = torch.empty(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype)
        wide[..., ::2] = tensor
        return wide[..., ::2]

    other, _ = run({k: scattered(t) if isinstance(t, torch.Tensor) else t for k, t in scene.items()})
    assert all(torch.equal(plain[name], other[name]) for name in plain)
    inputs = scenes.leaves(scene)
    colors, _, _ = tsplat.rasterization(**inputs)
    one = torch.autograd.grad(colors, inputs["means"], torch.ones(1).expand_as(colors), retain_graph=True)
    two = torch.autograd.grad(colors, inputs["means"], torch.ones_like(colors))
    assert torch.equal(*one, *two)


def test_expanded_inputs():
    scene = scenes.make(STRUCTURE, torch.float32)
    shared = {**scene, "viewmats": scene["viewmats"][:1].expand(3, 4, 4), "Ks": scene["Ks"][:1].expand(3, 3, 3)}
    shared |= {"backgrounds": None, "opacities": torch.tensor(0.5).expand(12)}
    colors, _, _ = tsplat.rasterization(**shared)
    assert torch.equal(colors[0], colors[2])


@pytest.mark.parametrize("n", [0, 12])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("size", [(1, 1), (33, 1), (1, 33), (40, 16)])
def test_empty_scenes_and_small_pictures(n, packed, size):
    structure = scenes.Structure(n=n, cameras=2, width=size[0], height=size[1], seed=2)
    scene = scenes.make(structure)
    found, _ = run(scene, packed=packed, render_mode="RGB+ED")
    truth, _ = run_reference(scene, render_mode="RGB+ED")
    for name in truth:
        assert_exact(name, found[name], truth[name])


def test_nothing_visible_shows_the_background_and_has_zero_gradients():
    scene = scenes.make(STRUCTURE)
    scene["means"] = scene["means"] - torch.tensor([0.0, 0.0, 100.0])
    found, meta = run(scene)
    assert torch.equal(found["colors"], scene["backgrounds"][:, None, None].expand_as(found["colors"]))
    assert not found["alphas"].any()
    assert meta["flatten_ids"].numel() == 0
    for name in ("means", "quats", "scales", "opacities", "colors", "viewmats"):
        assert found[f"v_{name}"].shape == scene[name].shape
        assert not found[f"v_{name}"].any()


def test_tied_depths_are_drawn_in_the_order_of_rows():
    scene = scenes.make(STRUCTURE)
    scene["viewmats"] = torch.eye(4, dtype=torch.float64).repeat(2, 1, 1)
    scene["means"][:, 2] = 3.0
    found, _ = run(scene)
    truth, _ = run_reference(scene)
    for name in truth:
        assert_exact(name, found[name], truth[name])


def test_an_image_of_8k():
    scene = scenes.make(scenes.Structure(n=30, cameras=1, width=7680, height=4320, size=20.0, seed=1), torch.float32)
    with torch.no_grad():
        colors, alphas, _ = tsplat.rasterization(**scene)
        # The same Gaussians seen through a window of the image.
        window = scene | dict(width=64, height=48, Ks=scene["Ks"].clone())
        at = (alphas[0, ..., 0] > 0.5).nonzero()[0]
        left, top = int(at[1]) // 16 * 16, int(at[0]) // 16 * 16
        window["Ks"][..., 0, 2] -= left
        window["Ks"][..., 1, 2] -= top
        part, _, _ = tsplat.rasterization(**window)
    torch.testing.assert_close(colors[:, top : top + 48, left : left + 64], part, rtol=1e-3, atol=1e-3)


def test_a_thousand_cameras():
    scene = scenes.make(scenes.Structure(n=5, cameras=1000, width=8, height=8, seed=1), torch.float32)
    found, _ = run(scene)
    one, _ = run({k: t[777:778] if k in ("viewmats", "Ks", "backgrounds") else t for k, t in scene.items()})
    assert torch.equal(found["colors"][777:778], one["colors"])


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_on_a_device_that_is_not_current():
    scene = {k: t.cuda(1) if isinstance(t, torch.Tensor) else t for k, t in scenes.make(STRUCTURE).items()}
    with torch.cuda.device(0):
        found, _ = run(scene)
    truth, _ = run_reference(scene)
    for name in truth:
        assert_exact(name, found[name], truth[name])
