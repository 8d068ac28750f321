"""Graphed calls give the bits of eager calls. On a CPU, bound passes stand for CUDA graphs."""

import concurrent.futures
import copy
import dataclasses
import functools
import gc
import pickle
import re
import sys
import threading

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from tests.support import scenes
from tests.support.graphs import FakeRecorder
from tsplat import ArgumentError, UnsupportedError, graphed, rasterization, rasterization_2dgs
from tsplat.arguments import plain
from tsplat.passes import graphed_calls as graphs

launch = pytest.importorskip("tsplat.kernels.launch", reason="needs Triton")

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("frozen_objects")]

ROWS = ("radii", "means2d", "depths", "conics", "opacities")
STRUCTURE = scenes.Structure(n=60, cameras=2, width=40, height=30, sh_degree=2, seed=1)


@pytest.fixture(autouse=True)
def captures(monkeypatch):
    """Returns what recorded each call."""
    made: list[FakeRecorder] = []
    plain("a tensor", torch.zeros(1))  # which the first call of the function finds, before one is captured
    monkeypatch.setitem(graphs.RECORDERS, "cpu", lambda: made.append(FakeRecorder()) or made[-1])
    return made


def make(structure=STRUCTURE, **changes):
    """A scene of which the tensors that may require gradients do."""
    scene = scenes.make(structure, torch.float32)
    return {
        name: value.requires_grad_() if name in scenes.DIFFERENTIABLE and value is not None else value
        for name, value in (scene | changes).items()
    }


def moved(scene, shift):
    """Another scene of the same kind."""
    return {
        name: (value.detach() + shift * (name == "means")).requires_grad_(value.requires_grad)
        if isinstance(value, torch.Tensor)
        else value
        for name, value in scene.items()
    }


def differentiated(render, scene, weights=(1.0, 0.5), **options):
    """Images, tensors of `meta` and all gradients of a call."""
    *images, meta = render(**scene, **options)
    centers = meta["gradient_2dgs" if "gradient_2dgs" in meta else "means2d"]
    if centers.requires_grad:
        centers.retain_grad()
    generator = torch.Generator().manual_seed(3)
    loss = 0
    for weight, image in zip(weights, images):
        loss = loss + weight * (image * torch.rand(image.shape, generator=generator)).sum()
    leaves = {name: t for name, t in scene.items() if isinstance(t, torch.Tensor) and t.requires_grad}
    for leaf in leaves.values():
        leaf.grad = None
    loss.backward()
    found = {f"image {i}": image for i, image in enumerate(images)}
    found |= {f"v_{name}": leaf.grad for name, leaf in leaves.items()}
    found |= {name: meta[name] for name in (*ROWS, "n_invalid") if name in meta}
    found |= {"v_centers": centers.grad, "absgrad": getattr(meta["means2d"], "absgrad", None)}
    return {name: None if t is None else t.detach().clone() for name, t in found.items()}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, t in expected.items():
        assert (t is None and found[name] is None) or torch.equal(found[name], t), name


SURFELS = {"covars": None, "camera_model": None}


@pytest.mark.parametrize(
    ("structure", "options"),
    [
        (STRUCTURE, {}),
        (STRUCTURE, {"absgrad": True, "render_mode": "RGB+ED"}),
        (scenes.Structure(n=40, channels=20, batch=(2,), per_camera_colors=True), {"rasterize_mode": "antialiased"}),
        (scenes.Structure(n=40, covars=True, camera_model="fisheye"), {"render_mode": "D"}),
        (STRUCTURE, {"with_eval3d": True, "with_ut": True, "return_normals": True, "validate": "off"}),
    ],
)
def test_same_bits_as_eager_calls(captures, structure, options):
    render = graphed(rasterization)
    for i in range(5):
        scene = moved(make(structure), 0.02 * i)
        expected = differentiated(rasterization, scene, packed=False, **options)
        assert_same(differentiated(render, scene, **options), expected)
    assert [capture.replays[:2] for capture in captures] == [[4, 4]]


@pytest.mark.long
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(structure=scenes.structures(), options=scenes.modes(), seed=st.integers(0, 2**16))
def test_random_scenes(structure, options, seed):
    render = graphed(rasterization)
    for i in range(3):
        scene = moved(make(dataclasses.replace(structure, seed=seed)), 0.02 * i)
        assert_same(
            differentiated(render, scene, **options), differentiated(rasterization, scene, packed=False, **options)
        )


def test_same_bits_as_eager_calls_of_2d_gaussians(captures):
    render = graphed(rasterization_2dgs)
    for i in range(4):
        scene = {name: t for name, t in moved(make(), 0.02 * i).items() if name not in SURFELS}
        arguments = dict(weights=(1.0, 0.5, 0.3, 0.0, 0.2), render_mode="RGB+ED", distloss=True, absgrad=True)
        expected = differentiated(rasterization_2dgs, scene, packed=False, **arguments)
        assert_same(differentiated(render, scene, **arguments), expected)
    assert [capture.replays for capture in captures] == [[3, 3, 0]]


def test_kinds_of_calls_have_graphs_of_their_own(captures):
    render, scene = graphed(rasterization), make()
    frozen = scene | {"means": scene["means"].detach(), "scales": scene["scales"].detach()}
    variants = [(scene, {}), (scene, {"near_plane": 3.0}), (frozen, {}), (scene, {"sh_degree": 1})]
    for _ in range(3):
        for changed, options in variants:
            given = changed | options
            assert_same(differentiated(render, given), differentiated(rasterization, given, packed=False))
    assert [capture.replays for capture in captures] == [[2, 2, 0]] * 4
    with torch.no_grad():
        for _ in range(3):
            image = render(**scene)[0]
            assert torch.equal(image, rasterization(**scene)[0]) and not image.requires_grad
    with torch.inference_mode():
        for _ in range(2):
            assert torch.equal(render(**scene)[0], rasterization(**scene)[0])
    assert [capture.replays for capture in captures[4:]] == [[2], [1]]


def test_values_of_other_types_are_other_kinds():
    render, scene = graphed(rasterization), make() | {"sh_degree": 1}
    for _ in range(2):
        render(**scene)
    with pytest.raises(ArgumentError, match="sh_degree"):
        render(**scene | {"sh_degree": True})


def test_kinds_used_least_recently_go(captures):
    render, scene = graphed(rasterization), make()
    for _ in range(2):
        render(**scene)
    for i in range(graphs.ENTRIES_MAX + 2):
        render(**scene, near_plane=0.02 * (i + 1))
        render(**scene)
        gc.collect()
    assert len(render._cache) == graphs.ENTRIES_MAX


@pytest.mark.parametrize("sh_degree", [None, 1])
def test_only_colors_require_gradients(captures, sh_degree):
    scene = make(scenes.Structure(n=30, sh_degree=sh_degree))
    scene |= {name: t.detach() for name, t in scene.items() if isinstance(t, torch.Tensor) and name != "colors"}
    render = graphed(rasterization)
    expected = differentiated(rasterization, scene, packed=False)
    for _ in range(3):
        assert_same(differentiated(render, scene), expected)
    assert captures[0].replays[0] == 2


def test_several_calls_wait_for_their_backward_passes(captures):
    """Each later call takes memory, which the others get a copy of."""
    render = graphed(rasterization)
    several = [moved(make(), 0.02 * i) for i in range(4)]
    expected = [differentiated(rasterization, scene, packed=False) for scene in several]
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)):
        losses = []
        for scene in several:
            generator = torch.Generator().manual_seed(3)
            images = zip((1.0, 0.5), render(**scene)[:2])
            losses.append(sum(w * (i * torch.rand(i.shape, generator=generator)).sum() for w, i in images))
        for i in order:
            found = torch.autograd.grad(losses[i], several[i]["means"], retain_graph=i % 2 == 0)
            assert torch.equal(found[0], expected[i]["v_means"])
        for i in (0, 2):
            assert torch.equal(torch.autograd.grad(losses[i], several[i]["means"])[0], expected[i]["v_means"])
    assert len(captures) == 1


def test_one_backward_pass_of_several_calls():
    several = [moved(make(), 0.02 * i) for i in range(3)]
    found = []
    for render in (graphed(rasterization), functools.partial(rasterization, packed=False)):
        for _ in range(3):
            loss = sum((i + 1) * render(**scene)[0].square().sum() for i, scene in enumerate(several))
        found.append(torch.autograd.grad(loss, [scene["means"] for scene in several]))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_results_are_kept_by_later_calls(captures):
    render, kept = graphed(rasterization), []
    several = [moved(make(), 0.02 * i) for i in range(5)]
    for scene in several:
        image, alpha, meta = render(**scene)
        (v_means,) = torch.autograd.grad(image.sum() + alpha.sum(), scene["means"], retain_graph=True)
        kept.append((image, alpha, meta["means2d"], v_means))
    for scene, results in zip(several, kept):
        image, alpha, meta = rasterization(**scene, packed=False)
        expected = (image, alpha, meta["means2d"], torch.autograd.grad(image.sum() + alpha.sum(), scene["means"])[0])
        for one, other in zip(results, expected, strict=True):
            assert torch.equal(one, other)
    assert sum(capture.replays[0] for capture in captures) == 4


def test_images_without_room_are_rendered_again(captures):
    render, scene = graphed(rasterization), make(scenes.Structure(n=60, width=40, height=30, size=0.5))
    for scale in (1.0, 1.0, 1.0, 20.0, 20.0, 20.0):
        given = scene | {"scales": (scale * scene["scales"].detach()).requires_grad_()}
        assert_same(differentiated(render, given), differentiated(rasterization, given, packed=False))
    # The fourth call has no room, the fifth is captured again.
    assert [capture.replays for capture in captures] == [[3, 2, 0], [2, 2, 0]]


def test_tensors_that_stay_where_they_are_are_read_there(captures, monkeypatch):
    copied = []
    copy = torch._foreach_copy_
    monkeypatch.setattr(torch, "_foreach_copy_", lambda own, given: copied.extend(map(id, given)) or copy(own, given))
    render, scene = graphed(rasterization), make()
    for _ in range(4):
        assert_same(differentiated(render, scene), differentiated(rasterization, scene, packed=False))
        with torch.no_grad():
            scene["means"].add_(0.02)  # as an optimizer does
    assert not {id(t) for t in scene.values()} & set(copied)
    # A tensor that moves is copied from then on, by new graphs.
    for _ in range(3):
        scene["scales"] = scene["scales"].detach().clone().requires_grad_()
        assert_same(differentiated(render, scene), differentiated(rasterization, scene, packed=False))
    assert id(scene["scales"]) in copied and id(scene["means"]) not in copied
    assert [capture.replays for capture in captures] == [[3, 3, 0]] * 2


def test_what_is_read_in_place_must_not_change_before_the_backward_pass():
    render, scene = graphed(rasterization), make()
    for _ in range(3):
        image = render(**scene)[0]
    with torch.no_grad():
        scene["means"].add_(0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        image.sum().backward()


def test_slices_are_copied(captures):
    render, scene = graphed(rasterization), make()
    wide = torch.rand(300).requires_grad_()
    for i in range(4):
        scene["scales"] = wide.as_strided((60, 3), (4, 1), i)
        (found,) = torch.autograd.grad(render(**scene)[0].sum(), wide)
        (expected,) = torch.autograd.grad(rasterization(**scene, packed=False)[0].sum(), wide)
        assert torch.equal(found, expected)
    assert captures[0].replays[0] > 1


def test_graphs_do_not_keep_what_they_read(monkeypatch):
    class Nothing:  # recordings keep it
        def warm_up(self, function):
            function()

        def record(self, function):
            return function(), lambda: None

    monkeypatch.setitem(graphs.RECORDERS, "cpu", Nothing)
    render, scene = graphed(rasterization), make()
    storages = [t.untyped_storage() for t in scene.values() if isinstance(t, torch.Tensor)]

    def uses():
        return [torch._C._storage_Use_Count(storage._cdata) for storage in storages]

    before = uses()
    for _ in range(4):
        render(**scene)[0].sum().backward()
    gc.collect()
    assert uses() == before


def test_another_number_of_gaussians_releases_graphs(captures):
    render = graphed(rasterization)
    for n in (60, 50, 60):
        scene = make(scenes.Structure(n=n))
        for _ in range(2):
            assert_same(differentiated(render, scene), differentiated(rasterization, scene, packed=False))
        assert len(render._cache) == 1
    assert len(captures) == 3
    render.clear()
    assert not len(render._cache)


def test_an_error_in_a_capture_gives_eager_calls(captures, monkeypatch, caplog):
    def fail(self, function):
        raise RuntimeError("not permitted when stream is capturing")

    monkeypatch.setattr(FakeRecorder, "record", fail)
    render, scene = graphed(rasterization), make()
    for _ in range(4):
        assert_same(differentiated(render, scene), differentiated(rasterization, scene, packed=False))
    assert caplog.text.count("rendering without a graph: not permitted") == 1
    assert len(captures) == 1


def test_meta_is_that_of_the_function():
    render, scene = graphed(rasterization), make()
    expected = rasterization(**scene, packed=False)[2].copy()
    metas = [render(**scene)[2] for _ in range(5)]
    for found in [meta.copy() for meta in metas]:  # also those of earlier calls
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            same = torch.equal(found[name], value) if isinstance(value, torch.Tensor) else found[name] == value
            assert same or name == "memory", name


@pytest.mark.parametrize("name", [*ROWS[1:], "hook", "hook in place"])
def test_gradients_of_meta(name):
    render, scene, found = graphed(rasterization), make(), []
    for function in (render, functools.partial(rasterization, packed=False)):
        for _ in range(3):
            image, _, meta = function(**scene)
            loss = image.sum()
            if "hook" in name:
                meta["means2d"].register_hook((lambda v: 2 * v) if name == "hook" else (lambda v: v.mul_(2)))
            else:
                loss = loss + meta[name].sum()
        render(**scene)  # takes memory of the call before
        found.append(torch.autograd.grad(loss, scene["means"])[0])
    assert torch.equal(*found)


@pytest.mark.parametrize("options", [{"packed": True}, {"packed": True, "absgrad": True}, {"capacity": 60_000}])
def test_packed_calls_and_capacities(captures, options):
    render = graphed(rasterization)
    for i in range(4):
        scene = moved(make(), 0.02 * i)
        assert_same(
            differentiated(render, scene, **options),
            differentiated(rasterization, scene, packed=False)
            | (differentiated(rasterization, scene, **({"packed": False} | options))),
        )
    assert [capture.replays[:2] for capture in captures] == [[3, 3]]


def test_a_loss_of_centers_without_a_gradient(captures):
    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, x):
            return x.sum()

        @staticmethod
        def backward(_ctx, _v):
            return None

    render, scene = graphed(rasterization), make()
    for _ in range(3):
        render(**scene)[0].sum().backward()
    _, _, meta = render(**scene)
    found = torch.autograd.grad(Nothing.apply(meta["means2d"]), scene["means"], allow_unused=True)
    assert not found[0].any()


def test_gradients_with_a_graph_of_their_own():
    render, scene = graphed(rasterization), make()
    for _ in range(3):
        (found,) = torch.autograd.grad(render(**scene)[0].square().sum(), scene["means"], create_graph=True)
    image = rasterization(**scene, packed=False)[0]
    assert torch.equal(found, torch.autograd.grad(image.square().sum(), scene["means"])[0])


def test_autocast(captures):
    render, scene = graphed(rasterization_2dgs), {k: t for k, t in make().items() if k not in SURFELS}
    for _ in range(4):
        found = []
        for function, options in ((render, {}), (rasterization_2dgs, {"packed": False})):
            with torch.autocast("cpu"):
                *images, _ = function(**scene, render_mode="RGB+ED", distloss=True, **options)
            found.append(
                [*images, *torch.autograd.grad(images[2].sum() + images[0].sum(), [scene["means"], scene["quats"]])]
            )
        for one, other in zip(*found, strict=True):
            assert torch.equal(one, other)
    assert captures[0].replays == [3, 3, 0]


def test_hooks_of_saved_tensors(captures):
    render, scene, packed = graphed(rasterization), make(), []
    for _ in range(4):
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: packed.append(t.detach().numpy()) or packed[-1], torch.from_numpy
        ):
            image, _, _ = render(**scene)
        image.sum().backward()
    assert packed and not captures


def test_gradient_checkpointing(captures):
    render, scene = graphed(rasterization), make()
    expected = torch.autograd.grad(rasterization(**scene, packed=False)[0].sum(), scene["means"])
    for _ in range(4):
        loss = torch.utils.checkpoint.checkpoint(lambda: render(**scene)[0].sum(), use_reentrant=False)
        assert torch.equal(torch.autograd.grad(loss, scene["means"])[0], expected[0])


@pytest.mark.parametrize("make_copy", [copy.copy, copy.deepcopy, lambda render: pickle.loads(pickle.dumps(render))])
def test_copies_have_graphs_of_their_own(captures, make_copy):
    render, scene = graphed(rasterization), make()
    for _ in range(2):
        render(**scene)
    other = make_copy(render)
    assert not len(other._cache) and len(render._cache)
    assert torch.equal(other(**scene)[0], render(**scene)[0])


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomaly_detection(captures, caplog):
    render, scene = graphed(rasterization), make()
    with torch.autograd.detect_anomaly(check_nan=True):
        for _ in range(4):
            render(**scene)[0].sum().backward()
    assert not captures and not caplog.text


def dual(render, scene):
    with forward_ad.dual_level():
        render(**scene | {"means": forward_ad.make_dual(scene["means"], torch.ones_like(scene["means"]))})


def fake(render, scene):
    with FakeTensorMode(allow_non_fake_inputs=True):
        render(**scene)


REFUSED = {
    "forward mode": dual,
    "torch.func": lambda render, scene: torch.func.grad(lambda x: x * render(**scene)[0].sum())(torch.ones(())),
    "a batch": lambda render, scene: torch.func.vmap(lambda x: render(**scene | {"means": x})[0])(scene["means"][None]),
    "fake tensors": fake,
    "make_fx": lambda render, scene: make_fx(lambda x: render(**scene | {"means": x})[0])(scene["means"]),
    "jit.trace": lambda render, scene: torch.jit.trace(lambda x: render(**scene | {"means": x})[0], scene["means"]),
    "sparse": lambda render, scene: render(**scene | {"colors": scene["colors"].to_sparse()}),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_what_the_function_refuses_is_not_replayed(call):
    render, scene = graphed(rasterization), scenes.make(STRUCTURE, torch.float32)
    for _ in range(3):
        render(**scene)
    with pytest.raises(UnsupportedError) as error:
        call(render, scene)
    with pytest.raises(UnsupportedError, match=re.escape(str(error.value))):
        call(rasterization, scene)


def test_2d_gaussians_without_gradients_of_inputs():
    scene = {k: t.detach() if isinstance(t, torch.Tensor) else t for k, t in make().items() if k not in SURFELS}
    render = graphed(rasterization_2dgs)
    for _ in range(3):
        image, *_, meta = render(**scene)
        image.sum().backward()
    *_, expected = images = rasterization_2dgs(**scene, packed=False)
    images[0].sum().backward()
    assert torch.equal(meta["gradient_2dgs"].grad, expected["gradient_2dgs"].grad)


def test_numbers_in_tensors(captures):
    render, scene = graphed(rasterization), make()
    for near in (0.1, 3.0, 4.0):
        given = scene | {"near_plane": torch.tensor(near)}
        assert torch.equal(render(**given)[0], rasterization(**given)[0])
    assert not captures


def test_threads():
    """Each with a function of its own, as recordings observe all launches."""
    several = [moved(make(), 0.02 * i) for i in range(3)]
    expected = [differentiated(rasterization, scene, packed=False) for scene in several]
    barrier = threading.Barrier(3, timeout=20)

    def work(i):
        for _ in range(8):
            render = graphed(rasterization)
            for _ in range(3):
                barrier.wait()
                assert_same(differentiated(render, several[i]), expected[i])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            list(pool.map(work, range(3)))
    finally:
        sys.setswitchinterval(interval)
    assert launch.observer is None and launch.launch_hook is None


def test_freed_memory_is_refused():
    render, scene = graphed(rasterization), make()
    for _ in range(3):
        render(**scene)
    scene["quats"] = scene["quats"].detach().clone().requires_grad_()
    scene["quats"].untyped_storage().resize_(0)
    with pytest.raises(ArgumentError, match=r"quats: .*freed"):
        render(**scene)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"capacity": "auto"}, "capacity: expected a number or None in a graphed call, found 'auto'"),
        ({"distributed": True}, "distributed: expected False in a graphed call, found True"),
        ({"sparse_grad": True}, "sparse_grad: expected False in a graphed call, found True"),
        ({"validate": "error"}, "validate: expected 'cull' or 'off' in a graphed call, found 'error'"),
        ({"backend": "torch"}, "backend: expected 'auto' or 'triton' in a graphed call, found 'torch'"),
        ({"lidar_coeffs": object()}, "lidar_coeffs: expected None in a graphed call, found a object; call"),
        (
            {"ftheta_coeffs": [1.0]},
            "ftheta_coeffs: expected a number, a string, a tensor or None in a graphed call, found a list",
        ),
        (
            {"ftheta_coeffs": object()},
            "ftheta_coeffs: expected a number, a string, a tensor or None in a graphed call, found a obj",
        ),
    ],
)
def test_what_graphs_cannot_do_raises(argument, message):
    with pytest.raises(UnsupportedError, match=message):
        graphed(rasterization)(**make(), **argument)


def test_wrong_calls_raise_as_the_function_does():
    render, scene = graphed(rasterization), make()
    with pytest.raises(TypeError, match="multiple values"):
        render(scene["means"], **scene)
    with pytest.raises(TypeError, match="missing"):
        render()
    with pytest.raises(TypeError, match="unexpected keyword"):
        render(**scene, color=1)
    with pytest.raises(TypeError, match="positional"):
        render(*range(100))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo looks at what a call returns
def test_parts_of_compiled_functions(captures):
    scene = make(scenes.Structure(n=20, backgrounds=False))
    torch.compiler.reset()
    render = graphed(rasterization)
    compiled = torch.compile(lambda **given: render(**given)[0].square(), backend="eager")
    for _ in range(3):
        assert torch.equal(compiled(**scene), rasterization(**scene, packed=False)[0].square())
    assert not captures


def test_nothing_is_captured_on_a_cpu(captures, monkeypatch):
    monkeypatch.delitem(graphs.RECORDERS, "cpu")
    render, scene = graphed(rasterization), make()
    for _ in range(3):
        render(**scene)
    assert not captures and not len(render._cache)
