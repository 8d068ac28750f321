"""spherical_harmonics: colors and gradients against the reference."""

import dataclasses
import functools

import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.backends import BACKENDS
from tests.support.closeness import assert_exact, assert_run_exact
from tests.support.training_scenes import make_gaussians, make_views
from tsplat import reference
from tsplat.data import ProjectedGaussians
from tsplat.rendering import render
from tsplat.runtime.autograd import let_gradient_overwrite
from tsplat.stages import shading


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("degree", range(5))
def test_colors_and_gradients_match_reference(backend, degree):
    generator = torch.Generator().manual_seed(degree)
    dirs = torch.randn(3, 5, 3, generator=generator, dtype=torch.float64)
    coeffs = torch.randn(3, 5, (degree + 1) ** 2 + 2, 3, generator=generator, dtype=torch.float64)
    masks = torch.rand(3, 5, generator=generator) < 0.7
    results = []
    for use_reference in (False, True):
        d, c = dirs.clone().requires_grad_(), coeffs.clone().requires_grad_()
        if use_reference:
            colors = reference.spherical_harmonics(degree, d, c) * masks[..., None]
        else:
            colors = tsplat.spherical_harmonics(degree, d, c, masks, backend=backend)
        gradients = torch.autograd.grad(colors, (d, c), scenes.random_like((colors,), 0), allow_unused=True)
        results.append((colors, *gradients))
    for name, found, expected in zip(("colors", "v_dirs", "v_coeffs"), *results):
        assert_exact(name, found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("channels", [1, 2, 4, 7])
def test_any_number_of_channels_matches_reference(backend, channels):
    generator = torch.Generator().manual_seed(channels)
    leaves = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((5, 3), (5, 9, channels))]
    results = []
    for function in (lambda *args: tsplat.spherical_harmonics(*args, backend=backend), reference.spherical_harmonics):
        dirs, coeffs = (leaf.clone().requires_grad_() for leaf in leaves)
        colors = function(2, dirs, coeffs)
        gradients = torch.autograd.grad(colors, (dirs, coeffs), scenes.random_like((colors,), 0))
        results.append((colors, *gradients))
    for name, found, expected in zip(("colors", "v_dirs", "v_coeffs"), *results):
        assert_exact(name, found, expected)


def test_coefficients_without_channels_are_refused():
    with pytest.raises(tsplat.ShapeError, match=r"coeffs: expected at least one channel, found \[5, 9, 0\]"):
        tsplat.spherical_harmonics(2, torch.ones(5, 3), torch.ones(5, 9, 0))


@pytest.mark.parametrize("batch", [(2,), (1, 2)])
def test_batches_share_coefficients(batch):
    """As in gsplat 1.6. Three calls, as later ones are replayed."""
    structure = dict(n=6, sh_degree=1, width=9, height=9, batch=batch)
    for seed in range(3):
        scene = scenes.make(scenes.Structure(**structure, seed=seed), torch.float32)
        scene |= dict(extra_signals_sh_degree=1, backgrounds=None)
        shared = torch.rand(2, 6, 4, 3, generator=torch.Generator().manual_seed(seed)).unbind()
        results = []
        for expand in (False, True):
            leaves = [values.clone().requires_grad_() for values in shared]
            colors, signals = (leaf.expand(*batch, -1, -1, -1) if expand else leaf for leaf in leaves)
            scene |= dict(colors=colors, extra_signals=signals)
            image, _, meta = tsplat.rasterization(**scene)
            loss = image.square().sum() + meta["render_extra_signals"].square().sum()
            results.append((image, meta["render_extra_signals"], *torch.autograd.grad(loss, leaves)))
        for name, found, expected in zip(("colors", "signals", "v_colors", "v_signals"), *results):
            assert torch.equal(found, expected), name


@pytest.mark.parametrize("backend", BACKENDS)
def test_rendered_harmonics_of_five_channels_match_reference(backend):
    structure = scenes.Structure(n=6, sh_degree=2, width=9, height=9, backgrounds=False)
    scene = scenes.make(structure)
    scene["colors"] = scene["colors"].repeat(1, 1, 2)[..., :5]
    assert_run_exact(scene, backend=backend, tile_size=16)


@pytest.mark.parametrize("backend", BACKENDS)
def test_half_precision_coefficients_give_colors_in_fp32_and_gradients_in_half_precision(backend):
    generator = torch.Generator().manual_seed(0)
    dirs, coeffs = torch.randn(6, 3, generator=generator), torch.randn(6, 9, 4, generator=generator).half()
    results = []
    for given in (coeffs, coeffs.float()):
        leaf = given.clone().requires_grad_()
        colors = tsplat.spherical_harmonics(2, dirs, leaf, backend=backend)
        (gradient,) = torch.autograd.grad(colors.sum(), leaf)
        results.append((colors, gradient))
    (colors, gradient), (expected, expected_gradient) = results
    assert colors.dtype == torch.float32
    assert gradient.dtype == torch.float16
    assert torch.equal(colors, expected)
    assert torch.equal(gradient, expected_gradient.half())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sh_degree", range(5))
def test_rendered_harmonics_match_reference(backend, sh_degree):
    structure = scenes.Structure(n=6, sh_degree=sh_degree, spare_bases=1, width=9, height=9, seed=sh_degree)
    assert_run_exact(scenes.make(structure), backend=backend, tile_size=16)


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@pytest.mark.parametrize("sh_degree", [0, 1, 3])
@pytest.mark.parametrize("options", [{}, {"packed": False}, {"with_ut": True, "with_eval3d": True}, {"batch": True}])
def test_coefficients_in_two_tensors_are_those_in_one(backend, sh_degree, options):
    """Images and all gradients have equal bits; four calls, as later ones are replayed."""
    batch, options = (2,) if "batch" in options else (), {n: v for n, v in options.items() if n != "batch"}
    structure = scenes.Structure(n=6, sh_degree=3, width=9, height=9, batch=batch)
    scene = scenes.make(structure, torch.float32) | {"sh_degree": sh_degree, "backend": backend, **options}
    if backend == "reference":
        scene.pop("packed", None)
    shapes = [(*batch, 6, 1, 3), (*batch, 6, 15, 3)]
    names = ("means", "quats", "viewmats")
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        first, higher = (torch.rand(shape, generator=generator) - 0.4 for shape in shapes)
        higher[..., 0, 0, 0] = torch.nan  # the Gaussian is left out
        results = []
        for in_two in (True, False):
            first, higher, *leaves = (t.clone().requires_grad_() for t in (first, higher, *(scene[n] for n in names)))
            colors = {"colors": first, "shN": higher} if in_two else {"colors": torch.cat([first, higher], -2)}
            image, alpha, meta = tsplat.rasterization(**scene | dict(zip(names, leaves)) | colors)
            loss = image.square().sum() + alpha.sum()
            results.append((image, meta["n_invalid"], *torch.autograd.grad(loss, (first, higher, *leaves))))
        for name, found, expected in zip(("image", "n_invalid", "v_colors", "v_shN", *names), *results, strict=True):
            assert torch.equal(found, expected), name
        assert results[0][1] == (2 if batch else 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sh_degree": None}, "shN: requires sh_degree, found sh_degree=None"),
        ({"colors": torch.ones(6, 4, 3)}, r"colors: expected \[6, 1, D\]|colors: expected .* as shN is given"),
        ({"shN": torch.ones(6, 3, 2)}, "shN: expected"),
        ({"shN": torch.ones(6, 2, 3)}, "sh_degree"),
    ],
)
def test_coefficients_in_two_tensors_that_do_not_fit_are_refused(change, message):
    scene = scenes.make(scenes.Structure(n=6, sh_degree=1, width=9, height=9), torch.float32)
    scene |= {"colors": torch.ones(6, 1, 3), "shN": torch.ones(6, 3, 3)} | change
    with pytest.raises(tsplat.ArgumentError, match=message):
        tsplat.rasterization(**scene)


@pytest.mark.parametrize("backend", BACKENDS)
def test_colors_are_shifted_and_clamped_as_pytorch_does(backend):
    """The same bits, with the gradient of clamp_min: one where a color is exactly 0, zero below and for NaN."""
    means = torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0]])[None]
    centers, radii = torch.zeros(1, 1, 3), torch.tensor([[1, 1], [1, 1], [0, 0], [1, 1]], dtype=torch.int32)
    projected = ProjectedGaussians(1, 4, None, radii, means[0, :, :2], means[0, :, 2], means[0], None, None)
    black = -1.7724538  # its color is exactly 0
    coeffs = torch.tensor([[0.3, black, 2 * black], [torch.nan, -9.0, 0.0], [1.0, 1.0, 1.0], [0.1, -0.1, -3.0]])
    leaves = [coeffs[None, :, None].clone().requires_grad_() for _ in range(2)]
    values = tsplat.spherical_harmonics(0, means[0], leaves[0][0], (radii > 0).all(-1), backend=backend)
    assert (values == -0.5).any()
    expected = (values + 0.5).clamp_min(0.0)
    found = shading.find_features(means, leaves[1], centers, projected, 0, backend).values
    visible = (radii > 0).all(-1)
    assert torch.equal(found[visible].view(torch.int32), expected[visible].view(torch.int32))
    for image in (found, expected):
        image[visible].backward(torch.tensor([1.0, 2.0, 3.0]).expand(3, 3))
    gradients = [leaf.grad.view(torch.int32) for leaf in leaves]
    assert torch.equal(*gradients)
    assert (leaves[1].grad[0, 0, 0] != 0).tolist() == [True, True, False]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["means", "opacities", "colors", "viewmats"])
def test_gradient_of_one_input_does_not_depend_on_what_else_has_one(backend, name):
    scene = scenes.make(scenes.Structure(n=6, sh_degree=2, width=9, height=9))
    found = []
    for names in ((name,), ("means", "quats", "scales", "opacities", "colors", "viewmats")):
        leaves = {n: scene[n].clone().requires_grad_() for n in names}
        image, _, _ = tsplat.rasterization(**scene | leaves, backend=backend)
        found.append(torch.autograd.grad(image, leaves[name], scenes.random_like((image,), 0))[0])
    assert torch.equal(*found)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("degree", "refills"), [(0, False), (1, True), (3, False), (3, True)])
def test_gradients_may_overwrite_higher_coefficients(backend, degree, refills):
    """As for copies of coefficients in training. Replays do not overwrite them."""
    gaussians = make_gaussians(50, sh_degree=3)
    generator = torch.Generator().manual_seed(1)
    gaussians = dataclasses.replace(gaussians, shN=torch.randn(gaussians.shN.shape, generator=generator))
    camera = make_views(gaussians, 1)[0].camera
    found = []
    for i, overwrites in enumerate((True, False, True, True)):  # the last two are replayed, unless by PyTorch
        copy = gaussians.map(lambda tensor: tensor.clone().requires_grad_())
        if overwrites:
            refill = functools.partial(copy.shN.detach().copy_, gaussians.shN) if refills else None
            let_gradient_overwrite(copy.shN, refill)
        image = render(copy, camera, sh_degree=degree, backend=backend)
        assert (copy.shN.untyped_storage().nbytes() == 0) == (refills and overwrites and (i == 0 or backend == "torch"))
        image.square().mean().backward()
        shares = copy.shN.grad.data_ptr() == copy.shN.data_ptr()
        assert shares or torch.equal(copy.shN, gaussians.shN)
        found.append((shares, [tensor.grad for tensor in copy.tensors().values()]))
    assert [shares for shares, _ in found[:2]] == [True, False]
    for _, gradients in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(gradients, found[0][1], strict=True))
    assert (found[0][1][-1] != 0).any((0, 2)).tolist() == [k < (degree + 1) ** 2 for k in range(1, 16)]
