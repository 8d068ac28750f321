"""Operators in graphs of torch.compile: the bits of eager calls, few compilations, and no tensor that is kept."""

import dataclasses
import gc
import weakref

import pytest
import torch

from tests.support import lenses, scenes
from tests.support.backends import BACKENDS
from tests.tools import compiled_layouts
from tsplat import CapacityError, l1_and_ssim, l1_ssim_loss, rasterization
from tsplat.ops import image_loss
from tsplat.runtime import operators

# Importing torch._dynamo takes seconds, so that one process does, and it warns of what it does itself.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("dynamo"), pytest.mark.filterwarnings("ignore")]

STRUCTURE = scenes.Structure(n=12, cameras=2, width=20, height=18, sh_degree=1, seed=7)
CASES = [
    (STRUCTURE, dict(render_mode="RGB+ED")),
    (dataclasses.replace(STRUCTURE, batch=(2,), covars=True, sh_degree=None, channels=5), dict(eps2d=0.1)),
    (dataclasses.replace(STRUCTURE, backgrounds=False), dict(rasterize_mode="antialiased", validate="off")),
    (dataclasses.replace(STRUCTURE, cameras=1, camera_model="fisheye"), dict(render_mode="D", tile_size=8)),
]


@pytest.fixture(autouse=True)
def _new_compiler():
    torch.compiler.reset()


def make(structure=STRUCTURE, **changes):
    return scenes.make(dataclasses.replace(structure, **changes), torch.float32)


def loss(inputs, **options):
    """A function of all outputs; and ``meta``."""
    options = dict(capacity=4000, packed=False) | options
    colors, alphas, meta = rasterization(**inputs, **options)
    total = (colors * torch.linspace(-1, 1, colors.shape[-2])[:, None]).sum() + alphas.square().sum()
    if "extra_signals" in inputs:
        total = total + meta["render_extra_signals"].square().sum()
    return total, meta


def compiled(function, backend="aot_eager"):
    return torch.compile(function, fullgraph=True, backend=backend)


def differentiate(function, scene, **options):
    """The loss, its gradients, and ``meta``."""
    inputs = scenes.leaves(scene)
    total, meta = function(inputs, **options)
    wanted = [t for t in inputs.values() if isinstance(t, torch.Tensor) and t.requires_grad]
    return [total, *torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)], meta


@pytest.mark.parametrize(
    ("structure", "options", "backend"),
    [
        pytest.param(*case, ("triton", "torch")[i % 2], marks=[pytest.mark.triton] * (1 - i % 2))
        for i, case in enumerate(CASES)
    ],
)
def test_graphs_give_the_bits_of_eager_calls(structure, options, backend):
    scene = make(structure)
    if options.get("render_mode") != "D":
        scene["extra_signals"] = torch.rand(*scene["means"].shape[:-1], 2)
        scene["backgrounds"] = None
    eager, meta = differentiate(loss, scene, backend=backend, **options)
    run = compiled(loss)
    for _ in range(2):  # the second time, autograd's graph is there
        found, meta_found = differentiate(run, scene, backend=backend, **options)
        assert all(torch.equal(one, other) for one, other in zip(eager, found, strict=True))
        for name, value in meta_found.items():
            assert torch.equal(value, meta[name]) if isinstance(value, torch.Tensor) else value == meta[name], name
    assert not meta_found["means2d"].requires_grad
    graphs = dict(operator_of(rasterization)._graphs)
    with torch.no_grad():
        assert torch.equal(run(scenes.leaves(scene), backend=backend, **options)[0], eager[0])
    assert operator_of(rasterization)._graphs == graphs  # none is built without gradients


@pytest.mark.parametrize("backend", BACKENDS)
def test_rolling_shutters_are_part_of_graphs(backend):
    scene = lenses.make("pinhole", "ROLLING_TOP_TO_BOTTOM", dtype=torch.float32) | {"with_eval3d": True}
    eager, _ = differentiate(loss, scene, backend=backend)
    readout = scene["rolling_shutter"]
    for name in (readout, readout.name):
        found, _ = differentiate(compiled(loss), scene | {"rolling_shutter": name}, backend=backend)
        assert all(torch.equal(one, other) for one, other in zip(eager, found, strict=True))


def test_losses_are_part_of_graphs():
    image, target = torch.rand(20, 24, 3), torch.rand(20, 24, 3)

    def both(image):
        l1, ssim = l1_and_ssim(image, target, padding="valid")
        return l1 - 0.3 * ssim + l1_ssim_loss(image.square(), target)

    one, other = image.clone().requires_grad_(), image.clone().requires_grad_()
    both(one).backward()
    compiled(both)(other).backward()
    assert torch.equal(one.grad, other.grad)


def test_training_compiles_once_for_each_number_of_gaussians():
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    scene = make()
    inputs = scenes.leaves(scene)
    target = torch.rand(2, 18, 20, 3)

    def step(inputs, target):
        colors, _, _ = rasterization(**inputs, capacity=4000, packed=False)
        return l1_ssim_loss(colors, target)

    run = compiled(step, counter)
    means = inputs["means"]
    optimizer = torch.optim.Adam([means], 1e-2)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        losses.append(run(inputs, target))
        losses[-1].backward()
        optimizer.step()
    assert counter.frame_count == 1
    assert losses[-1] < losses[0]
    for n in (13, 14, 15):
        run(scenes.leaves(make(n=n)), target).backward()
    assert counter.frame_count <= 4


@pytest.mark.parametrize(
    "options", [dict(packed=True), dict(capacity=None), dict(absgrad=True), dict(validate="error")]
)
def test_other_calls_break_the_graph(options):
    scene = make()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"graphs contain rasterization.. with packed=False"):
        compiled(loss)(scene, **options)
    total, meta = torch.compile(loss, backend="aot_eager")(scene, **options)
    assert torch.equal(total, loss(scene, **options)[0])
    assert type(meta) is dict
    assert "isect_ids" in meta


def test_lists_without_room_raise():
    run = compiled(loss)
    with pytest.raises(CapacityError, match="at most 3 intersections"):
        run(make(), capacity=3)


def test_errors_of_arguments_are_those_of_eager_calls():
    scene = make() | {"quats": torch.rand(5, 4)}
    with pytest.raises(Exception, match=r"quats: expected .* found \[5, 4\]"):
        compiled(loss)(scene)


def test_no_tensor_is_kept():
    run = compiled(loss)
    scene = make()
    differentiate(run, scene)
    inputs = scenes.leaves(scene)
    outputs = run(inputs)
    outputs[0].backward()
    kept = [weakref.ref(t) for t in inputs.values() if isinstance(t, torch.Tensor)]
    del inputs, outputs, scene
    gc.collect()
    assert not any(tensor() is not None for tensor in kept)


def test_graphs_are_told_apart():
    """By which inputs need gradients, and not by where these lie in memory."""
    scene = make()
    run = compiled(loss)
    (_, expected, *_), _ = differentiate(loss, scene)
    for offset in (0, 5, 2):
        means = torch.empty(12 * 3 + offset)[offset:].view(12, 3).copy_(scene["means"]).requires_grad_()
        (found,) = torch.autograd.grad(run({**scene, "means": means})[0], means)
        assert torch.equal(found, expected)
    assert torch.equal(differentiate(run, scene)[0][1], expected)


def test_sizes_may_change():
    run = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=True)
    for width in (20, 24):
        scene = make(width=width)
        assert torch.equal(run(scene)[0], loss(scene)[0])


def test_number_of_graphs_is_bounded(monkeypatch):
    monkeypatch.setattr(operators, "GRAPHS_MAX", 1)
    for n in (3, 4, 5):
        compiled(loss)(scenes.leaves(make(n=n)))
    assert len(operator_of(rasterization)._graphs) <= 1


def test_backward_pass_without_a_graph(monkeypatch):
    scene = make()
    eager, _ = differentiate(loss, scene)
    inputs = scenes.leaves(scene)
    total, _ = compiled(loss)(inputs)
    monkeypatch.setattr(operators, "GRAPHS_MAX", 1)
    compiled(loss)(scenes.leaves(make(n=3)))  # drops the other graph
    wanted = [t for t in inputs.values() if isinstance(t, torch.Tensor) and t.requires_grad]
    found = torch.autograd.grad(total, wanted)
    assert all(torch.equal(one, other) for one, other in zip(eager[1:], found, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_operators_pass_the_checks_of_pytorch(backend):
    image = torch.rand(1, 12, 14, 3)
    tensors, needs, settings = (image, image.square()), [True, False], (0.2, "same", backend)
    check(torch.ops.tsplat.l1_ssim_and_loss, tensors, needs, settings, 3)
    scene = make() | dict(capacity=4000, packed=False, backend=backend, backgrounds=None)
    scene["extra_signals"] = torch.rand(*scene["means"].shape[:-1], 2)
    operator = operator_of(rasterization)
    arguments = operator.bind((), scene)
    tensors = [arguments[name] for name in operator._tensors]
    needs = [
        name in (*scenes.DIFFERENTIABLE, "extra_signals") and t is not None
        for name, t in zip(operator._tensors, tensors)
    ]
    check(torch.ops.tsplat.rasterization, tensors, needs, [arguments[name] for name in operator._settings], 3)


LAYOUTS = [
    ("loss", "target", "channels first", "leaf"),
    ("loss", "image", "negative", "leaf"),
    ("loss", "image", "negative, every other", "view"),
    ("loss", "image", "transposed", "in the graph"),
    ("loss", "v", "negative", "leaf"),
    ("two losses", "shared", "contiguous", "leaf"),
    ("two losses", "target", "behind three values", "parameter"),
    ("rasterization", "means", "transposed", "leaf"),
    ("rasterization", "quats", "columns of a table", "view"),
    ("rasterization", "Ks", "imaginary part of a conjugate", "leaf"),
    ("rasterization", "opacities", "one value", "leaf"),
    ("rasterization", "shared", "contiguous", "view"),
    ("rasterization", "v", "channels first", "leaf"),
    ("harmonics", "colors", "last axes swapped", "in the graph"),
    ("covariances", "covars", "negative of one value", "leaf"),
]


@pytest.mark.parametrize("case", LAYOUTS, ids=", ".join)
def test_layouts_do_not_change_bits_in_graphs(case):
    """Samples of what ``python -m tests.tools.compiled_layouts`` checks."""
    name, tensor, *choice = case
    target = compiled_layouts.targets("torch")[name]
    assert compiled_layouts.check(target, {tensor: tuple(choice)}, "aot_eager") == "equal"


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_have_the_strides_of_eager_calls(backend):
    """On which the order depends in which PyTorch sums what comes back to an image of one color."""
    target = torch.rand(2, 30, 13, 3)

    def run(function):
        color, strides = torch.tensor([0.2, 0.5, 0.9], requires_grad=True), []
        image = color.expand(target.shape)
        image.register_hook(lambda v: strides.append(v.stride()))
        return torch.autograd.grad(function(image, target, backend=backend), color)[0], strides

    (found, strides), (expected, expected_strides) = run(compiled(l1_ssim_loss)), run(l1_ssim_loss)
    assert strides == expected_strides
    assert torch.equal(found, expected)


def test_gradients_of_graphs_have_the_gaps_of_eager_ones():
    """That of colors is a part of wider rows, and PyTorch sums it in another order than one without gaps."""
    target = compiled_layouts.targets("torch")["evaluation in 3D"]

    def run(function):
        leaves = {name: t.clone().requires_grad_(name in target.differentiable) for name, t in target.tensors.items()}
        color, strides = leaves["colors"], []
        leaves["colors"] = shown = color[:1, :1].expand(color.shape)
        shown.register_hook(lambda v: strides.append(v.stride()))
        outputs = function(**leaves | {"quats": torch.rand(1, 4).expand(leaves["quats"].shape)})
        return torch.autograd.grad(outputs, color, scenes.random_like(outputs, 3))[0], strides

    torch.manual_seed(0)
    expected, expected_strides = run(target.function)
    torch.manual_seed(0)
    found, strides = run(compiled(target.function))
    assert expected_strides[0][0] > 3
    assert strides == expected_strides
    assert torch.equal(found, expected)


def test_tensors_that_share_memory_and_others_do_not_mix():
    """In calls of one graph: what autograd saves is found by its place in memory."""
    run = compiled(lambda image, target: l1_ssim_loss(image, target, backend="torch"))
    whole = torch.rand(2 * 20 * 24 * 3)
    shared = [part.view(20, 24, 3) for part in whole.split(20 * 24 * 3)]
    for image, target in (shared, [t.clone() for t in shared], shared[::-1], [shared[0], shared[0]]):
        leaf = image.detach().requires_grad_()
        (found,) = torch.autograd.grad(run(leaf, target), leaf)
        (expected,) = torch.autograd.grad(l1_ssim_loss(leaf, target, backend="torch"), leaf)
        assert torch.equal(found, expected)


def test_memory_of_another_kind_is_refused():
    operator = operator_of(image_loss._l1_ssim_and_loss)
    tensors, needs, settings = [torch.rand(1, 12, 14, 3) for _ in range(2)], [True, False], (0.2, "same", "torch")
    outputs = operator._forward(tensors, needs, *settings)
    with pytest.raises(RuntimeError, match=r"expected tensors .* in the backward pass, found"):
        operator._backward([torch.ones(()), None, None], outputs[:-1], tensors, needs, *settings)


def test_subclasses_break_the_graph():
    class Own(torch.Tensor):
        pass

    image, target = torch.rand(20, 24, 3).as_subclass(Own), torch.rand(20, 24, 3)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="of plain tensors"):
        compiled(l1_ssim_loss)(image, target)
    found = torch.compile(lambda image: l1_ssim_loss(image, target), backend="aot_eager")(image)
    assert torch.equal(found, l1_ssim_loss(image, target))


def operator_of(function):
    (found,) = [c.cell_contents for c in function.__closure__ if isinstance(c.cell_contents, operators.Operator)]
    return found


def check(operator, tensors, needs, settings, n):
    torch.library.opcheck(operator, (tensors, needs, *settings))
    outputs = operator(tensors, needs, *settings)
    assert all(t.is_contiguous() and t.nbytes == t.untyped_storage().nbytes() for t in outputs)
    backward = getattr(torch.ops.tsplat, f"{operator.__name__}_backward")
    v = [torch.rand_like(t) for t in outputs[:n]]
    torch.library.opcheck(backward, (v, outputs, tensors, needs, *settings))
    for gradient in backward([None] * n, outputs, tensors, needs, *settings):
        assert not gradient.any()
