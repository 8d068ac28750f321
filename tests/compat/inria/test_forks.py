"""What forks of Inria's rasterizer have besides, called as their programs do."""

import pytest
import torch

from tests.compat.inria.clients import camera_settings
from tests.support import scenes
from tests.support.closeness import assert_exact
from tsplat import UnsupportedError, reference, strategies
from tsplat.compat import inria
from tsplat.compat.inria import GaussianRasterizationSettings, GaussianRasterizer
from tsplat.config import PRESETS
from tsplat.strategies.relocation import binomial_table

STRUCTURE = scenes.Structure(n=25, cameras=1, width=40, height=30, size=3.0, seed=11)
SCENE = scenes.make(STRUCTURE)
MODEL = dict(
    means3D=SCENE["means"], means2D=None, colors_precomp=SCENE["colors"], opacities=SCENE["opacities"][:, None],
    scales=SCENE["scales"], rotations=SCENE["quats"],
)  # fmt: skip


def rasterizer(**others):
    camera = camera_settings(SCENE["viewmats"][0], SCENE["Ks"][0], SCENE["width"], SCENE["height"])
    settings = dict(bg=SCENE["backgrounds"][0], scale_modifier=1.0, sh_degree=1, prefiltered=False, debug=False)
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
    offset = torch.zeros(SCENE["height"], SCENE["width"], 2)
    image, radii = rasterizer(kernel_size=0.1, subpixel_offset=offset)(**MODEL)
    expected = rendered_by_reference(eps2d=0.1, rasterize_mode="antialiased")
    assert_exact("image", image, expected.colors[0].movedim(-1, 0))
    assert torch.equal(radii, expected.projection.radii[0, :, 0])
    with pytest.raises(UnsupportedError, match="subpixel_offset: only zeros are implemented"):
        rasterizer(kernel_size=0.1, subpixel_offset=offset + 0.2)


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


def test_other_programs_get_two_values(monkeypatch):
    monkeypatch.setattr(GaussianRasterizer, "default_generation", 2023)
    assert len(rasterizer()(**MODEL)) == 2
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = inria.other


def test_arguments_of_other_forks_are_refused():
    with pytest.raises(UnsupportedError, match="render_geo: an argument of the fork PGSR; tsplat stands in"):
        rasterizer(render_geo=True)
    with pytest.raises(UnsupportedError, match="other: an argument not of Inria's rasterizer but of a fork"):
        rasterizer()(**MODEL, other=1)
