"""Calls with a capacity on a GPU: nothing waits, and CUDA graphs, by hand and by torch.compile, give eager calls' bits.

The emulator has no streams to capture: these tests need a GPU.
"""

import dataclasses

import pytest
import torch
import triton

from tests.support import scenes
from tsplat import check_overflow, graphed, l1_ssim_loss, rasterization, rasterization_2dgs
from tsplat.runtime.cuda_graphs import GraphRecorder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore"),  # torch.compile warns of what it does itself
]

NAMES = ("means", "quats", "scales", "opacities", "colors")
STRUCTURE = scenes.Structure(n=3_000, cameras=1, width=160, height=120, size=4.0, sh_degree=2, seed=5)
CAPACITY = 200_000


def make():
    scene = scenes.make(STRUCTURE, torch.float32, "cuda")
    target = torch.rand(1, STRUCTURE.height, STRUCTURE.width, 3, device="cuda")
    return scene, target


def step(scene, target, *values, **options):
    """The loss of a scene whose parameters are replaced by values."""
    image, _, meta = rasterization(**scene | dict(zip(NAMES, values)), packed=False, **options)
    return l1_ssim_loss(image, target), meta["overflow"] if options else None


def surfel_step(scene, target, *values, **options):
    """The same for 2D Gaussians, with normals and distortion."""
    given = {name: value for name, value in scene.items() if name not in ("covars", "camera_model")}
    images = rasterization_2dgs(
        **given | dict(zip(NAMES, values)), packed=False, render_mode="RGB+ED", distloss=True, **options
    )
    loss = l1_ssim_loss(images[0][..., :3], target) + 0.1 * (images[2].square().mean() + images[4].mean())
    return loss, images[-1]["overflow"] if options else None


def eager(scene, target, values, step=step):
    leaves = [value.clone().requires_grad_() for value in values]
    loss, _ = step(scene, target, *leaves)
    return [loss, *torch.autograd.grad(loss, leaves)]


def moved(scene):
    """Parameters, and others with which Gaussians are elsewhere."""
    values = [scene[name] for name in NAMES]
    yield values
    yield [values[0] + 0.05, *values[1:3], 0.9 * values[3], values[4]]


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_nothing_waits_for_the_device():
    scene, target = make()
    leaves = [scene[name].requires_grad_() for name in NAMES]
    for _ in range(2):  # kernels are compiled, and memory is allocated
        loss, overflow = step(scene, target, *leaves, capacity=CAPACITY)
        loss.backward()
    assert not overflow
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss, _ = step(scene, target, *leaves, capacity=CAPACITY)
        loss.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    check_overflow()


@pytest.mark.parametrize("step", [step, surfel_step])
def test_captured_graph_gives_the_bits_of_eager_calls(step):
    scene, target = make()
    first, second = moved(scene)
    static = [value.clone().requires_grad_() for value in first]

    def run():
        loss, overflow = step(scene, target, *static, capacity=CAPACITY)
        return [loss, *torch.autograd.grad(loss, static)], overflow

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured, overflow = run()
    for values in (first, second, first):
        with torch.no_grad():
            for tensor, value in zip(static, values):
                tensor.copy_(value)
        graph.replay()
        assert_same(captured, eager(scene, target, values, step))
        assert not overflow


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_step_gives_the_bits_of_eager_calls(mode):
    scene, target = make()
    torch.compiler.reset()
    compiled = torch.compile(step, fullgraph=True, mode=mode)
    for values in [*moved(scene)] * 2:
        leaves = [value.clone().requires_grad_() for value in values]
        torch.compiler.cudagraph_mark_step_begin()
        loss, overflow = compiled(scene, target, *leaves, capacity=CAPACITY)
        found = [t.clone() for t in (loss, *torch.autograd.grad(loss, leaves))]
        assert not overflow
        assert_same(found, eager(scene, target, values))


def test_graphed_callables_give_the_bits_of_eager_calls():
    scene, target = make()
    first, second = moved(scene)
    leaves = [value.clone().requires_grad_() for value in first]

    def loss_of(*values):
        return step(scene, target, *values, capacity=CAPACITY)

    graphed = torch.cuda.make_graphed_callables(loss_of, tuple(leaves))
    for values in (second, first):
        leaves = [value.clone().requires_grad_() for value in values]
        loss, overflow = graphed(*leaves)
        assert not overflow
        assert_same([loss, *torch.autograd.grad(loss, leaves)], eager(scene, target, values))


@pytest.mark.parametrize("render", [rasterization, rasterization_2dgs])
def test_graphed_calls_give_the_bits_of_eager_calls(render):
    scene, target = make()
    if render is rasterization_2dgs:
        scene = {name: value for name, value in scene.items() if name not in ("covars", "camera_model")}
    replayed = graphed(render)
    key = "means2d" if render is rasterization else "gradient_2dgs"

    def results(function, values, **options):
        leaves = [value.clone().requires_grad_() for value in values]
        image, alpha, *_, meta = function(**scene | dict(zip(NAMES, leaves)), absgrad=True, **options)
        meta[key].retain_grad()
        (l1_ssim_loss(image, target) + alpha.mean()).backward()
        return [image, alpha, meta["radii"], meta[key].grad, meta[key].absgrad, *(leaf.grad for leaf in leaves)]

    for values in [*moved(scene)] * 3:
        assert_same(results(replayed, values), results(render, values, packed=False))
    (entry,) = replayed._cache._entries.values()
    assert entry.runner is not None


@pytest.mark.parametrize("kind", ["covars", "rolling shutter", "surfels"])
def test_kinds_of_calls_are_captured(kind, caplog):
    scene = scenes.make(dataclasses.replace(STRUCTURE, covars=kind == "covars", cameras=2), torch.float32, "cuda")
    render, options = rasterization, {}
    if kind == "rolling shutter":
        options = dict(viewmats_rs=scene["viewmats"] + 0.01, with_ut=True, rolling_shutter="ROLLING_TOP_TO_BOTTOM")
    if kind == "surfels":
        render, options = rasterization_2dgs, dict(render_mode="RGB+ED", distloss=True)
        del scene["covars"], scene["camera_model"]
    replayed = graphed(render)
    for _ in range(4):
        images = replayed(**scene, **options)[:2]
    assert not caplog.text
    assert all(entry.runner is not None for entry in replayed._cache._entries.values())
    assert_same(images, render(**scene, **options, packed=False)[:2])


def test_pinned_memory_after_a_capture():
    scene, _ = make()
    replayed = graphed(rasterization)
    for _ in range(4):
        replayed(**scene)
        for _ in range(3):
            torch.zeros(5, dtype=torch.int64).pin_memory()


def test_memory_of_graphs_that_are_gone_is_free():
    reserved = []
    for n in range(3_000, 3_008):
        scene = scenes.make(dataclasses.replace(STRUCTURE, n=n), torch.float32, "cuda")
        if n == 3_000:
            replayed = graphed(rasterization)
        for _ in range(3):
            replayed(**scene)
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] < 1.5 * reserved[1]


def test_a_failed_capture_leaves_others_as_they_were():
    ones = torch.ones(3, device="cuda")
    results, replay = GraphRecorder().record(lambda: ones + 1)
    with pytest.raises(RuntimeError, match="captur"):
        GraphRecorder().record(lambda: (ones + 1).tolist())  # waits
    torch.rand(3, device="cuda")
    torch.cuda.empty_cache()
    replay()
    assert results.tolist() == [2, 2, 2]
    results, replay = GraphRecorder().record(lambda: ones + 2)
    replay()
    assert results.tolist() == [3, 3, 3]


def test_hooks_of_profilers_see_launches():
    scene, target = make()
    expected, names = eager(scene, target, next(moved(scene))), []
    hook = triton.knobs.runtime.launch_enter_hook

    def enter(metadata):
        names.append(metadata.get()["name"])

    hook.add(enter)
    try:
        assert_same(eager(scene, target, next(moved(scene))), expected)
    finally:
        hook.remove(enter)
    assert "_composite_fwd_kernel" in names and "_composite_bwd_kernel" in names
