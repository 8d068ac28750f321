"""What forks of Inria's rasterizer have besides, called as their programs do."""

import dataclasses

import pytest
import torch

from tests.compat.inria.clients import camera_settings
from tests.support import scenes
from tests.support.closeness import assert_exact
from tsplat import ArgumentError, UnsupportedError, reference, strategies
from tsplat.compat import inria
from tsplat.compat.inria import GaussianRasterizationSettings, GaussianRasterizer
from tsplat.config import PRESETS
from tsplat.strategies.relocation import binomial_table

STRUCTURE = scenes.Structure(n=25, cameras=1, width=40, height=30, size=3.0, seed=11)
SCENE = scenes.make(STRUCTURE)
SIZE = SCENE["width"], SCENE["height"]
MODEL = dict(
    means3D=SCENE["means"], means2D=None, colors_precomp=SCENE["colors"], opacities=SCENE["opacities"][:, None],
    scales=SCENE["scales"], rotations=SCENE["quats"],
)  # fmt: skip


def rasterizer(scene=SCENE, **others):
    camera = camera_settings(scene["viewmats"][0], scene["Ks"][0], *SIZE)
    settings = dict(bg=scene["backgrounds"][0], scale_modifier=1.0, sh_degree=1, prefiltered=False, debug=False)
    return GaussianRasterizer(raster_settings=GaussianRasterizationSettings(**camera, **settings, **others))


def rendered_by_reference(**settings):
    return reference.rasterize(**SCENE, numerics=PRESETS["inria"], **settings)


@pytest.fixture
def mcmc(monkeypatch):
    """What 3dgs-mcmc imports; the rasterizer returns its values from then on."""
    monkeypatch.setattr(GaussianRasterizer, "default_generation", 2023)
    from tsplat.compat.inria import compute_relocation

    return compute_relocation


def test_mip_splatting():
    offset = torch.zeros(SIZE[1], SIZE[0], 2)
    image, radii = rasterizer(kernel_size=0.1, subpixel_offset=offset)(**MODEL)
    expected = rendered_by_reference(eps2d=0.1, rasterize_mode="antialiased")
    assert_exact("image", image, expected.colors[0].movedim(-1, 0))
    assert torch.equal(radii, expected.projection.radii[0, :, 0])


@pytest.mark.parametrize("size", [3.0, 0.2])
def test_ray_jitter_of_mip_splatting(size):
    """Against a loop over pixels, each at its offset, of all Gaussians whose box of radii touches the pixel's tile."""
    scene = scenes.make(dataclasses.replace(STRUCTURE, size=size, n=60))
    drawn = torch.rand(SIZE[1], SIZE[0], 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    leaves = {
        name: scene[name].clone().requires_grad_() for name in ("means", "quats", "scales", "opacities", "colors")
    }
    model = dict(
        means3D=leaves["means"], means2D=None, colors_precomp=leaves["colors"], scales=leaves["scales"],
        opacities=leaves["opacities"][:, None], rotations=leaves["quats"],
    )  # fmt: skip
    image, _ = rasterizer(scene, kernel_size=0.1, subpixel_offset=drawn - 0.5)(**model)
    found = torch.autograd.grad(image, list(leaves.values()), scenes.random_like((image,), 0)[0])
    projection = reference.rasterize(
        **{**scene, **leaves}, numerics=PRESETS["inria"], eps2d=0.1, rasterize_mode="antialiased"
    ).projection
    centers = (torch.arange(SIZE[0]) + drawn[..., 0], torch.arange(SIZE[1])[:, None] + drawn[..., 1])
    dx, dy = (center[..., None] - projection.means2d[0, :, axis] for axis, center in enumerate(centers))
    a, b, c = projection.conics[0].unbind(-1)
    near = torch.ones((), dtype=torch.bool)
    for axis, center in enumerate(centers):
        first = ((projection.means2d - projection.radii)[0, :, axis] / 16).floor()
        end = ((projection.means2d + projection.radii)[0, :, axis] / 16).ceil()
        tile = (center / 16).floor()[..., None]
        near = near & (tile >= first) & (tile < end)
    sigmas = torch.where(near, 0.5 * (a * dx * dx + c * dy * dy) + b * dx * dy, torch.inf)
    truth = reference.composite(
        projection.means2d, projection.conics, projection.opacities, leaves["colors"][None], scene["backgrounds"],
        torch.where(projection.visible, projection.depths, torch.inf).argsort(-1), projection.visible, *SIZE,
        numerics=PRESETS["inria"], sigmas=sigmas[None],
    )  # fmt: skip
    expected = truth.colors[0].movedim(-1, 0)
    assert_exact("image", image, expected)
    gradients = torch.autograd.grad(expected, list(leaves.values()), scenes.random_like((expected,), 0)[0])
    for name, one, other in zip(leaves, found, gradients, strict=True):
        assert_exact(name, one, other)


def test_offsets_beyond_the_pixel_are_refused():
    with pytest.raises(ArgumentError, match=r"subpixel_offset: expected offsets of at most 0\.5 pixels, found 0\.7"):
        rasterizer(subpixel_offset=torch.full((SIZE[1], SIZE[0], 2), -0.7))(**MODEL)


@pytest.mark.parametrize("scale_modifier", [1.0, 0.5])
def test_scaffold_gs(scale_modifier):
    visible = rasterizer()
    visible.raster_settings = visible.raster_settings._replace(scale_modifier=scale_modifier)
    radii = visible.visible_filter(
        means3D=SCENE["means"], scales=SCENE["scales"], rotations=SCENE["quats"], cov3D_precomp=None
    )
    _, expected = visible(**{**MODEL, "opacities": torch.ones_like(MODEL["opacities"])})
    assert torch.equal(radii, expected)
    assert 0 < (radii > 0).sum() < len(radii)


def test_mcmc(mcmc):
    _, radii, is_used = rasterizer()(**MODEL)
    weights = rendered_by_reference().weights[0].amax((0, 1))
    assert is_used[weights > 0].all()
    assert not is_used[radii == 0].any()
    assert len(rasterizer(antialiasing=True)(**MODEL)) == 3  # inverse depths, as the settings are those of 2024
    binoms = binomial_table().float()
    arguments = torch.rand(9), torch.rand(9, 3), torch.arange(9) % 4 + 1, binoms
    for one, other in zip(mcmc(*arguments, 51), strategies.relocation.compute_relocation(*arguments), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(mcmc(*arguments[:2], arguments[2] + 0.7, binoms, 51), mcmc(*arguments, 51), strict=True):
        assert torch.equal(one, other)


def test_other_programs_get_two_values(monkeypatch):
    monkeypatch.setattr(GaussianRasterizer, "default_generation", 2023)
    assert len(rasterizer()(**MODEL)) == 2
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = inria.other


def test_arguments_of_other_forks_are_refused():
    with pytest.raises(UnsupportedError, match="render_geo: an argument of the fork PGSR; tsplat replaces"):
        rasterizer(render_geo=True)
    with pytest.raises(UnsupportedError, match="other: an argument not of Inria's rasterizer but of a fork"):
        rasterizer()(**MODEL, other=1)
