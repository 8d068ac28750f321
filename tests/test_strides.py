"""Tensors of any strides and lazy views give the bits of contiguous ones, as arguments and as gradients of outputs."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad

import tsplat
from tests.support import lenses, scenes
from tests.support.autocast_cases import CASES
from tests.support.backends import BACKENDS
from tests.support.layouts import LAYOUTS, MORE, with_layout
from tests.support.slow import slow_after
from tests.test_autocast import matrix, values_of
from tsplat.ops.adam import Adam


def _projected(n=14):
    scene = scenes.make(scenes.Structure(n=n, cameras=2, width=19, height=13, channels=3, seed=2), torch.float32)
    _, _, meta = tsplat.rasterization(**scene, packed=False, tile_size=4, backend="torch")
    return scene, meta


def _rasterization(backend, lay_out):
    scene, _ = _projected()
    inputs = {name: lay_out(value) if isinstance(value, Tensor) else value for name, value in scene.items()}
    inputs["extra_signals"] = lay_out(scene["means"].sin())
    inputs["backgrounds"] = lay_out(torch.ones(2, 6))
    differentiable = ("means", "quats", "scales", "opacities", "colors", "viewmats", "backgrounds", "extra_signals")
    leaves = {name: inputs[name].requires_grad_() for name in differentiable}
    colors, alphas, meta = tsplat.rasterization(**(inputs | leaves), backend=backend, render_mode="RGB+D")
    images = (colors, alphas, meta["render_extra_signals"])
    v = [lay_out(t) for t in scenes.random_like(images, 1)]
    return [*images, meta["radii"], *torch.autograd.grad(images, list(leaves.values()), v)]


def _projection(backend, lay_out):
    scene, _ = _projected()
    tensors = [scene[name] for name in ("means", "quats", "scales", "viewmats", "Ks")]
    means, quats, scales, viewmats, Ks = map(lay_out, tensors)
    opacities = lay_out(scene["opacities"])
    leaves = [tensor.requires_grad_() for tensor in (means, quats, scales, viewmats)]
    outputs = tsplat.fully_fused_projection(
        means, None, quats, scales, viewmats, Ks, 19, 13, opacities=opacities, packed=True, calc_compensations=True,
        backend=backend,
    )  # fmt: skip
    v = [lay_out(t) for t in scenes.random_like(outputs[4:], 1)]
    return [*outputs, *torch.autograd.grad(outputs[4:], leaves, v)]


def _lenses(backend, lay_out):
    scene = lenses.make("distorted pinhole", "ROLLING_TOP_TO_BOTTOM", dtype=torch.float32, n=14, sh_degree=1)
    inputs = {name: lay_out(value) if isinstance(value, Tensor) else value for name, value in scene.items()}
    leaves = {name: inputs[name].requires_grad_() for name in ("means", "quats", "scales", "opacities", "colors")}
    images = tsplat.rasterization(**(inputs | leaves), backend=backend)[:2]
    v = [lay_out(t) for t in scenes.random_like(images, 1)]
    return [*images, *torch.autograd.grad(images, list(leaves.values()), v)]


def _eval3d(backend, lay_out):
    scene, meta = _projected()
    given = {name: scene[name] for name in ("means", "quats", "scales")}
    given |= {"colors": scene["colors"].expand(2, -1, -1), "opacities": scene["opacities"].expand(2, -1)}
    given["rays"] = torch.rand(2, 13, 19, 6, generator=torch.Generator().manual_seed(0)) + torch.eye(6)[5]
    leaves = {name: lay_out(tensor.contiguous()).requires_grad_() for name, tensor in given.items()}
    images = tsplat.rasterize_to_pixels_eval3d(
        **leaves, viewmats=lay_out(scene["viewmats"]), Ks=lay_out(scene["Ks"]), image_width=19, image_height=13,
        tile_size=4, isect_offsets=meta["isect_offsets"], flatten_ids=meta["flatten_ids"], backend=backend,
    )  # fmt: skip
    v = [lay_out(t) for t in scenes.random_like(images, 1)]
    return [*images, *torch.autograd.grad(images, list(leaves.values()), v)]


def _intersection(backend, lay_out):
    _, meta = _projected()
    seen = (meta["radii"] > 0).all(-1)
    packed = {name: lay_out(meta[name][seen]) for name in ("means2d", "radii", "depths", "conics", "opacities")}
    image_ids = lay_out(seen.nonzero()[:, 0])
    counts, ids, rows = tsplat.isect_tiles(
        packed["means2d"], packed["radii"], packed["depths"], 4, 5, 4, packed=True, n_images=2, image_ids=image_ids,
        conics=packed["conics"], opacities=packed["opacities"], backend=backend,
    )  # fmt: skip
    return [counts, ids, rows, tsplat.isect_offset_encode(lay_out(ids), 2, 5, 4)]


def _compositing(backend, lay_out, repeats=1):
    scene, meta = _projected()
    names = ("means2d", "conics", "opacities")
    inputs = {name: lay_out(meta[name].detach()).requires_grad_() for name in names}
    inputs["colors"] = lay_out(scene["colors"].repeat(1, repeats).expand(2, -1, -1)).requires_grad_()
    masks = torch.ones(meta["isect_offsets"].shape, dtype=torch.bool)
    masks[:, 1, 2] = False
    inputs["backgrounds"] = lay_out(scene["backgrounds"].repeat(1, repeats)).requires_grad_()
    offsets = lay_out(meta["isect_offsets"])
    if not torch.equal(offsets, meta["isect_offsets"]):  # descending ones are refused
        offsets = meta["isect_offsets"]
    images = tsplat.rasterize_to_pixels(
        image_width=19, image_height=13, tile_size=4, isect_offsets=offsets,
        flatten_ids=lay_out(meta["flatten_ids"]), masks=lay_out(masks),
        backend=backend, **inputs,
    )  # fmt: skip
    v = [lay_out(t) for t in scenes.random_like(images, 1)]
    return [*images, *torch.autograd.grad(images, list(inputs.values()), v)]


def _spherical_harmonics(backend, lay_out):
    generator = torch.Generator().manual_seed(0)
    dirs, coeffs = torch.randn(7, 3, generator=generator), torch.randn(7, 9, 3, generator=generator)
    masks = torch.arange(7) % 3 > 0
    inputs = [lay_out(dirs).requires_grad_(), lay_out(coeffs).requires_grad_()]
    colors = tsplat.spherical_harmonics(2, *inputs, masks=lay_out(masks), backend=backend)
    return [colors, *torch.autograd.grad(colors, inputs, lay_out(torch.randn(7, 3, generator=generator)))]


def _loss(backend, lay_out):
    x, y = torch.rand(2, 13, 12, 3, generator=torch.Generator().manual_seed(0))
    image = lay_out(x).requires_grad_()
    loss = tsplat.l1_ssim_loss(image, lay_out(y), backend=backend)
    return [loss, torch.autograd.grad(loss, image, lay_out(torch.tensor(0.7)))[0]]


def _adam(backend, lay_out):
    parameter = torch.linspace(-1, 1, 21).reshape(7, 3).requires_grad_()
    optimizer = Adam([parameter], lr=0.1, backend=backend)
    for _ in range(2):
        parameter.grad = lay_out(parameter.detach() ** 2)
        optimizer.step(visible=lay_out(torch.arange(7) % 3 > 0))
    return [parameter.detach()]


FUNCTIONS = (
    _rasterization,
    _projection,
    _lenses,
    _eval3d,
    _intersection,
    _compositing,
    _spherical_harmonics,
    _loss,
    _adam,
)


def assert_layouts_do_not_change_bits(function, backend, layouts):
    """Compares with contiguous copies, as some layouts have other values."""

    def run(change):
        remaining = iter(layouts)
        return function(backend, lambda tensor: change(with_layout(tensor, next(remaining))))

    plain = run(lambda tensor: tensor.clone(memory_format=torch.contiguous_format))
    for i, (one, other) in enumerate(zip(run(lambda tensor: tensor), plain, strict=True)):
        assert (one is other is None) or torch.equal(one, other), f"result {i} differs"


@pytest.mark.parametrize("backend", slow_after(1, BACKENDS))
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__.removeprefix("_"))
def test_layouts_do_not_change_bits(function, backend):
    @settings(max_examples=6)
    @given(layouts=st.lists(st.sampled_from(LAYOUTS), min_size=20, max_size=20))
    @example(layouts=["negative"] * 20)
    @example(layouts=["transposed"] + ["contiguous"] * 19)
    @example(layouts=["contiguous"] * 5 + ["expanded"] + ["contiguous"] * 14)
    def check(layouts):
        assert_layouts_do_not_change_bits(function, backend, layouts)

    check()


GRADIENTS = {
    "channel-major": lambda v: v.movedim(-1, 1).contiguous().movedim(1, -1),
    "some of more channels": lambda v: pad(v, (1, 2), value=7.0)[..., 1:-2],
    "some of more columns": lambda v: pad(v, (0, 0, 0, 1), value=7.0)[:, :, :-1],
    "some of more rows": lambda v: pad(v, (0, 0, 0, 0, 2, 1), value=7.0)[:, 2:-1],
    "column by column": lambda v: v.transpose(1, 2).contiguous().transpose(1, 2),
    "one image": lambda v: v[:1].expand_as(v),
    "one row": lambda v: v[:, :1].expand_as(v),
    "one pixel": lambda v: v[:, :1, :1].expand_as(v),
    "one value": lambda v: v[:1, :1, :1, :1].expand_as(v),
}


def _results_of_layouts(backend, repeats, name):
    """Results of compositing with gradients of images in a layout, and with contiguous ones."""
    lay_out = GRADIENTS[name]
    return (
        _compositing(backend, lambda t, own=own: own(t) if t.shape[1:3] == (13, 19) else t, repeats)
        for own in (lay_out, lambda t: lay_out(t).contiguous())
    )


@pytest.mark.parametrize("backend", slow_after(1, BACKENDS))
@pytest.mark.parametrize("repeats", slow_after(1, [1, 6]), ids=["3 channels", "18 channels"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_layouts_of_gradients_of_images_do_not_change_bits(name, repeats, backend):
    """Pixels that are evenly spaced in memory, and others, which are copied."""
    for i, (one, other) in enumerate(zip(*_results_of_layouts(backend, repeats, name), strict=True)):
        assert torch.equal(one, other), f"result {i} differs"


def _lazily_negated(tensor):
    """The values of a tensor whose axes are in the opposite order in memory, as a lazily negated view."""
    return MORE["negative, transposed"](tensor) if tensor.is_floating_point() else with_layout(tensor, "transposed")


@pytest.mark.parametrize(("name", "backend"), list(matrix()))
def test_public_functions_take_lazy_views_of_any_strides(name, backend):
    """Functions of PyTorch's operators sum in another order there, so that results are close and not equal."""

    def results(lay_out):
        function, arguments, fixed = CASES[name](backend)
        given = {n: lay_out(value.detach()) for n, value in arguments.items() if isinstance(value, Tensor)}
        leaves = [given[n].requires_grad_() for n in given if given[n].is_floating_point() and n not in fixed]
        outputs = [value for value in values_of(function(**(arguments | given))) if isinstance(value, Tensor)]
        roots = [t for t in outputs if t.grad_fn is not None]
        v = [lay_out(t) for t in scenes.random_like(roots, 1)]
        gradients = torch.autograd.grad(roots, leaves, v, allow_unused=True) if roots else ()
        return [*outputs, *gradients]

    for one, other in zip(results(_lazily_negated), results(torch.clone), strict=True):
        assert one is other is None or torch.allclose(one, other, rtol=1e-4, atol=1e-4, equal_nan=True)
