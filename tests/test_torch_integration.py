"""rasterization() with other features of PyTorch: compile, checkpointing, autocast, strides, dtypes, devices."""

import functools

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import tsplat
from tests.support import scenes
from tests.support.backends import BACKENDS
from tests.support.closeness import assert_exact, run, run_reference

STRUCTURE = scenes.Structure(n=12, cameras=2, width=20, height=18, sh_degree=2, seed=7)


def gradients(function, inputs):
    wanted = [t for t in inputs.values() if isinstance(t, torch.Tensor) and t.requires_grad]
    return torch.autograd.grad(function(inputs), wanted)


def loss(inputs, **settings):
    colors, alphas, _ = tsplat.rasterization(**inputs, render_mode="RGB+D", **settings)
    return colors.square().sum() + alphas.sum()


@pytest.mark.slow
@pytest.mark.xdist_group("dynamo")
@pytest.mark.filterwarnings("ignore")  # torch.compile warns of graph breaks
def test_compiled_function_gives_the_same_bits():
    inputs = scenes.leaves(scenes.make(STRUCTURE, torch.float32))

    def function(inputs):
        return loss(inputs) * 2

    torch.compiler.reset()
    # Dynamo traces the function and AOTAutograd its derivative; neither fuses operations.
    compiled = gradients(torch.compile(function, backend="aot_eager"), inputs)
    for one, other in zip(gradients(function, inputs), compiled):
        assert torch.equal(one, other)


@pytest.mark.slow
@pytest.mark.xdist_group("dynamo")
@pytest.mark.filterwarnings("ignore")
def test_compiled_function_has_one_graph_break():
    inputs = scenes.leaves(scenes.make(STRUCTURE, torch.float32))
    found = torch._dynamo.explain(lambda inputs: loss(inputs) * 2)(inputs)
    assert (found.graph_count, found.graph_break_count) == (2, 1)


def test_gradient_checkpointing_gives_the_same_bits():
    inputs = scenes.leaves(scenes.make(STRUCTURE, torch.float32))
    plain = gradients(loss, inputs)
    again = gradients(lambda inputs: checkpoint(loss, inputs, use_reentrant=False), inputs)
    assert all(torch.equal(one, other) for one, other in zip(plain, again))


def test_strides_of_inputs_and_gradients_do_not_matter():
    scene = scenes.make(STRUCTURE, torch.float32)
    plain, _ = run(scene)

    def strided(tensor):
        wide = torch.empty(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype)
        wide[..., ::2] = tensor
        return wide[..., ::2]

    other, _ = run({k: strided(t) if isinstance(t, torch.Tensor) else t for k, t in scene.items()})
    assert all(torch.equal(plain[name], other[name]) for name in plain)
    inputs = scenes.leaves(scene)
    colors, _, _ = tsplat.rasterization(**inputs)
    one = torch.autograd.grad(colors, inputs["means"], torch.ones(1).expand_as(colors), retain_graph=True)
    two = torch.autograd.grad(colors, inputs["means"], torch.ones_like(colors))
    assert torch.equal(*one, *two)


def test_strided_and_expanded_inputs_match_contiguous():
    scene = scenes.make(scenes.Structure(n=10, cameras=2, seed=5))
    odd = dict(scene)
    odd["means"] = torch.stack([scene["means"], scene["means"]], -1)[..., 0]
    odd["viewmats"] = scene["viewmats"].transpose(-1, -2).contiguous().transpose(-1, -2)
    odd["opacities"] = torch.full((1,), 0.7, dtype=torch.float64).expand(10)
    odd["backgrounds"] = torch.full((3,), 0.2, dtype=torch.float64).expand(2, 3)
    plain = {name: t.contiguous() if isinstance(t, torch.Tensor) else t for name, t in odd.items()}
    found, _ = run(odd)
    expected, _ = run(plain)
    for name in expected:
        assert_exact(name, found[name], expected[name])


def test_expanded_cameras_give_equal_images():
    scene = scenes.make(STRUCTURE, torch.float32)
    shared = {**scene, "viewmats": scene["viewmats"][:1].expand(3, 4, 4), "Ks": scene["Ks"][:1].expand(3, 3, 3)}
    shared |= {"backgrounds": None, "opacities": torch.tensor(0.5).expand(12)}
    colors, _, _ = tsplat.rasterization(**shared)
    assert torch.equal(colors[0], colors[2])


def test_gradients_have_the_dtype_of_their_input():
    scene = scenes.make(scenes.Structure(n=10, seed=2), torch.float32)
    inputs = scenes.leaves(scene | dict(colors=scene["colors"].bfloat16(), opacities=scene["opacities"].half()))
    colors, alphas, _ = tsplat.rasterization(**inputs)
    assert colors.dtype == alphas.dtype == torch.float32
    colors.sum().backward()
    for name in scenes.DIFFERENTIABLE:
        if inputs[name] is not None:
            assert inputs[name].grad.dtype == inputs[name].dtype, name


def test_autocast_gives_the_same_bits():
    for dtype in (torch.bfloat16, torch.float16):
        results = []
        for enabled in (False, True):
            inputs = scenes.leaves(scenes.make(scenes.Structure(n=15, sh_degree=2, seed=9), torch.float32))
            with torch.autocast("cpu", dtype=dtype, enabled=enabled):
                colors, alphas, _ = tsplat.rasterization(**inputs, render_mode="RGB+ED", rasterize_mode="antialiased")
                (colors.sum() + alphas.sum()).backward()
            results.append([colors, alphas] + [t.grad for t in inputs.values() if isinstance(t, torch.Tensor)])
        for found, expected in zip(*results):
            assert found is expected is None or torch.equal(found, expected)


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@pytest.mark.parametrize("packed", [False, True])
def test_default_device_does_not_matter(backend, packed):
    inputs = scenes.leaves(scenes.make(STRUCTURE, torch.float32))
    plain = gradients(functools.partial(loss, backend=backend, packed=packed), inputs)
    with torch.device("meta"):
        other = gradients(functools.partial(loss, backend=backend, packed=packed), inputs)
    assert all(torch.equal(one, two) for one, two in zip(plain, other, strict=True))


def test_no_grad_records_no_graph():
    scene = scenes.leaves(scenes.make(scenes.Structure(n=5)))
    with torch.no_grad():
        colors, alphas, meta = tsplat.rasterization(**scene)
    assert not colors.requires_grad
    assert not alphas.requires_grad
    assert not meta["means2d"].requires_grad


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_on_noncurrent_device():
    scene = {k: t.cuda(1) if isinstance(t, torch.Tensor) else t for k, t in scenes.make(STRUCTURE).items()}
    with torch.cuda.device(0):
        found, _ = run(scene)
    truth, _ = run_reference(scene)
    for name in truth:
        assert_exact(name, found[name], truth[name])
