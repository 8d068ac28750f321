"""rasterization(): extra signals against the reference, and calls without colors."""

import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.backends import BACKENDS
from tests.support.closeness import assert_exact
from tsplat import ArgumentError, InvalidValueError, reference
from tsplat.config import PRESETS

N, CAMERAS, E = 12, 2, 2
STRUCTURE = scenes.Structure(n=N, cameras=CAMERAS, sh_degree=1, width=13, height=11, backgrounds=False, seed=5)
NUMERICS = PRESETS["gsplat-1.5"]


def random(*shape, seed=9):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(extra_sh_degree=None, extra_per_camera=False, backgrounds=False, **structure):
    """A scene with extra signals, and backgrounds of all channels."""
    scene = scenes.make(scenes.Structure(**{**vars(STRUCTURE), **structure}))
    leading = (CAMERAS, N) if extra_per_camera else (N,)
    bases = () if extra_sh_degree is None else ((extra_sh_degree + 1) ** 2,)
    scene["extra_signals"] = random(*leading, *bases, E)
    scene["extra_signals_sh_degree"] = extra_sh_degree
    if backgrounds:
        scene["backgrounds"] = random(CAMERAS, 3 + E, seed=10)
    return {name: value for name, value in scene.items() if value is not None}


def leaves(scene):
    own = scenes.leaves(scene)
    own["extra_signals"] = own["extra_signals"].clone().requires_grad_()
    return own


def shade(scene, name, degree, clamp):
    """Features of every Gaussian on every camera, by the reference. [C, N, D]"""
    values = scene[name]
    if degree is not None:
        dirs = scene["means"] - reference.camera_centers(scene["viewmats"], NUMERICS)[:, None]
        values = reference.spherical_harmonics(degree, dirs, values) + 0.5
        values = values.clamp_min(0) if clamp else values
    return values.expand(CAMERAS, N, values.shape[-1])


def render_reference(scene, render_mode):
    """Colors, alphas and extra signals from one rendering of all channels."""
    extra = shade(scene, "extra_signals", scene.get("extra_signals_sh_degree"), False)
    names = ("sh_degree", "extra_signals", "extra_signals_sh_degree")
    rest = {name: value for name, value in scene.items() if name not in names}
    depth_only = render_mode in ("D", "ED")
    if not depth_only:
        extra = torch.cat([shade(scene, "colors", scene.get("sh_degree"), True), extra], -1)
    with_colors = {"D": "RGB+D", "ED": "RGB+ED"}.get(render_mode, render_mode)
    rendering = reference.rasterize(**{**rest, "colors": extra}, render_mode=with_colors)
    n_colors = 0 if depth_only else extra.shape[-1] - E
    channels = rendering.colors
    return (
        torch.cat([channels[..., :n_colors], channels[..., n_colors + E :]], -1),
        rendering.alphas,
        channels[..., n_colors : n_colors + E],
    )


def render(scene, **options):
    colors, alphas, meta = tsplat.rasterization(**scene, **options)
    return colors, alphas, meta["render_extra_signals"]


def assert_same(scene, render_mode="RGB", **options):
    found_leaves, expected_leaves = leaves(scene), leaves(scene)
    found = render(found_leaves, render_mode=render_mode, **options)
    expected = render_reference(expected_leaves, render_mode)
    for name, one, other in zip(("colors", "alphas", "extra signals"), found, expected):
        assert_exact(name, one, other)
    v = scenes.random_like(expected, 0)
    for images in (found, expected):
        torch.autograd.backward(images, v)
    for name, leaf in found_leaves.items():
        if isinstance(leaf, torch.Tensor):
            assert_exact(name, leaf.grad, expected_leaves[name].grad)


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("render_mode", ["RGB", "D", "RGB+ED"])
@pytest.mark.parametrize("sh_degree", [None, 2])
def test_extra_signals_match_reference(backend, packed, render_mode, sh_degree):
    scene = make(sh_degree, backgrounds=render_mode == "RGB+ED")
    assert_same(scene, render_mode, backend=backend, packed=packed)


@pytest.mark.parametrize(("backend", "packed"), [("auto", True), ("auto", False), ("reference", False)])
@pytest.mark.parametrize("sh_degree", [None, 1])
@pytest.mark.parametrize("per_camera", [(True, False), (False, True), (True, True)], ids=str)
def test_colors_and_extra_signals_per_camera(backend, packed, sh_degree, per_camera):
    scene = make(sh_degree, per_camera[0], sh_degree=None, per_camera_colors=per_camera[1])
    assert_same(scene, "ED", backend=backend, packed=packed)
    assert_same(scene, "RGB+D", backend=backend, packed=packed)


def test_extra_signals_have_a_gradient_of_their_own_dtype():
    scene = make(1)
    scene = {name: v.float() if isinstance(v, torch.Tensor) else v for name, v in scene.items()}
    scene["extra_signals"] = scene["extra_signals"].half().requires_grad_()
    _, _, extra = render(scene)
    extra.sum().backward()
    assert extra.dtype == torch.float32
    assert scene["extra_signals"].grad.dtype == torch.float16


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast_changes_nothing(dtype):
    """Forward and backward, with float16 coefficients while autocast uses bfloat16."""
    scene = make(1)
    scene = {name: v.to(dtype) if isinstance(v, torch.Tensor) else v for name, v in scene.items()}
    results = []
    for enabled in (False, True):
        own = leaves({**scene, "colors": scene["colors"].half(), "extra_signals": scene["extra_signals"].half()})
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            images = render(own, render_mode="RGB+ED")
            torch.autograd.backward(images, scenes.random_like(images, 0))
        results.append([*images, *(v.grad for v in own.values() if isinstance(v, torch.Tensor))])
    for one, other in zip(*results):
        assert one is other is None or torch.equal(one, other)


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@pytest.mark.parametrize("per_camera", [False, True])
@pytest.mark.parametrize("sh_degree", [None, 1])
def test_invalid_extra_signals_are_culled(backend, per_camera, sh_degree):
    scene = make(sh_degree, per_camera)
    expected = render({**scene, "opacities": scene["opacities"] * (torch.arange(N) != 3)})
    # Of one camera if they are per camera.
    scene["extra_signals"][(1, 3) if per_camera else 3][..., 1] = torch.nan
    colors, alphas, meta = tsplat.rasterization(**scene, backend=backend)
    assert int(meta["n_invalid"]) == 1
    for name, one, other in zip(
        ("colors", "alphas", "extra"), (colors, alphas, meta["render_extra_signals"]), expected
    ):
        assert_exact(name, one, other)
    with pytest.raises(InvalidValueError, match="extra_signals: 1 of 12 Gaussians are not finite"):
        tsplat.rasterization(**scene, validate="error")


def test_extra_signals_are_checked():
    scene = make()
    for change, match in (
        (dict(extra_signals=random(N + 1, E)), r"extra_signals: expected \[..., N, D\]"),
        (dict(extra_signals=random(N, 0)), "extra_signals: expected at least one channel"),
        (dict(extra_signals_sh_degree=1), r"extra_signals: expected \[..., N, K, D\]"),
        (
            dict(extra_signals=random(N, 3, E), extra_signals_sh_degree=1),
            "extra_signals_sh_degree: degree 1 needs 4 bases",
        ),
        (dict(extra_signals=None, extra_signals_sh_degree=1), "extra_signals_sh_degree: expected None"),
        (dict(backgrounds=random(CAMERAS, 3)), "backgrounds: expected"),
    ):
        with pytest.raises(ArgumentError, match=match):
            tsplat.rasterization(**{**scene, **change})


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@pytest.mark.parametrize("render_mode", ["D", "ED"])
def test_depth_needs_no_colors(backend, render_mode):
    scene = scenes.make(STRUCTURE)
    expected = reference.rasterize(**scene, render_mode=render_mode)
    scene.update(colors=None, sh_degree=None, backgrounds=random(CAMERAS, 3))
    colors, alphas, _ = tsplat.rasterization(**scene, render_mode=render_mode, backend=backend)
    assert_exact("depth", colors, expected.colors)
    assert_exact("alphas", alphas, expected.alphas)


def test_colors_may_be_none_for_depth_only():
    scene = {**scenes.make(STRUCTURE), "colors": None}
    with pytest.raises(ArgumentError, match="sh_degree: expected None"):
        tsplat.rasterization(**scene, render_mode="D")
    scene["sh_degree"] = None
    with pytest.raises(ArgumentError, match="colors: found None, but render_mode is 'RGB\\+D'"):
        tsplat.rasterization(**scene, render_mode="RGB+D")


def test_tile_size_none_is_that_of_gsplat():
    scene = scenes.make(STRUCTURE)
    for _ in range(3):  # replayed, too
        assert tsplat.rasterization(**scene, tile_size=None)[2]["tile_size"] == 16
        assert tsplat.rasterization(**scene, tile_size=None, with_eval3d=True)[2]["tile_size"] == 8
    large = scenes.make(scenes.Structure(n=1, width=1080, height=1200), torch.float32)
    assert tsplat.rasterization(**large, tile_size=None, with_eval3d=True)[2]["tile_size"] == 16
    with pytest.raises(ArgumentError, match="width: expected a positive int, found 'wide'"):
        tsplat.rasterization(**scene | {"width": "wide"}, tile_size=None, with_eval3d=True)
    with pytest.raises(ArgumentError, match="tile_size: expected a positive int, found 0"):
        tsplat.rasterization(**scene, tile_size=0)


@pytest.mark.slow
@pytest.mark.parametrize("signals", ["colors", "extra_signals"])
def test_gradients_of_shared_rows_have_equal_bits(signals):
    """PyTorch's indexing adds with atomics in several threads, unless a mode of debugging is on, as in other tests."""
    n, cameras = 4000, 6  # enough for two threads
    values = dict(means=random(n, 3).float(), quats=random(n, 4, seed=1).float(), scales=torch.full((n, 3), 0.1))
    viewmats = torch.eye(4).repeat(cameras, 1, 1)
    viewmats[:, 2, 3] = 8 + torch.arange(cameras) / 10
    values |= dict(opacities=torch.full((n,), 0.1), viewmats=viewmats)
    values |= dict(Ks=torch.tensor([[20.0, 0, 8], [0, 20, 8], [0, 0, 1]]).repeat(cameras, 1, 1), width=16, height=16)
    values |= dict(colors=random(n, 3).float(), extra_signals=random(n, 3, seed=2).float())
    leaf = values[signals].requires_grad_()
    threads = torch.get_num_threads()
    torch.set_deterministic_debug_mode("default")
    torch.set_num_threads(2)
    try:
        found = []
        for _ in range(6):
            colors, _, meta = tsplat.rasterization(**values)
            images = torch.cat([colors, meta["render_extra_signals"]], -1)
            (gradient,) = torch.autograd.grad(
                (images * torch.linspace(-1, 1, images.numel()).view_as(images)).sum(), leaf
            )
            found.append(gradient)
    finally:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode("warn")
    assert found[0].abs().max() > 0
    assert all(torch.equal(found[0], other) for other in found[1:])
