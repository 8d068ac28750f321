"""`render` and `render_views` against the reference."""

import dataclasses

import pytest
import torch

from tests.support import scenes
from tests.support.closeness import assert_exact
from tsplat import reference
from tsplat.errors import ArgumentError
from tsplat.scene import Camera, Gaussians
from tsplat.scene.rendered_views import render, render_views

STRUCTURE = scenes.Structure(n=15, cameras=2, sh_degree=2, width=24, height=18, seed=5)


def make_model(antialiased=False):
    """Gaussians in fp64, their two cameras, and the scene whose parameters they have."""
    scene = scenes.make(STRUCTURE)
    scene["opacities"] = scene["opacities"].clamp(0.05, 0.95)
    gaussians = Gaussians(
        means=scene["means"],
        log_scales=scene["scales"].log(),
        quats=scene["quats"],
        opacity_logits=scene["opacities"].logit(),
        sh0=scene["colors"][:, :1],
        shN=scene["colors"][:, 1:9],
        antialiased=antialiased,
    )
    cameras = [Camera(viewmat, K, 24, 18) for viewmat, K in zip(scene["viewmats"], scene["Ks"])]
    return gaussians, cameras, scene


@pytest.mark.parametrize("antialiased", [False, True])
def test_render_views_matches_reference(antialiased):
    gaussians, cameras, scene = make_model(antialiased)
    background = (0.1, 0.2, 0.3)
    images, alphas, _ = render_views(gaussians, cameras, background=background)
    backgrounds = torch.tensor(background, dtype=torch.float64).expand(2, 3)
    expected = reference.rasterize(
        **scene | {"backgrounds": backgrounds}, rasterize_mode="antialiased" if antialiased else "classic"
    )
    assert_exact("images", images, expected.colors)
    assert_exact("alphas", alphas, expected.alphas)


def test_render_views_with_a_depth_mode_has_no_background():
    gaussians, cameras, _ = make_model()
    depths, alphas, _ = render_views(gaussians, cameras, background=(1.0, 1.0, 1.0), render_mode="D")
    assert depths.shape == (2, 18, 24, 1)
    assert not depths[alphas == 0].any()


def test_render_views_limits_the_sh_degree():
    gaussians, cameras, _ = make_model()
    limited, _, _ = render_views(gaussians, cameras, sh_degree=0)
    flat, _, _ = render_views(dataclasses.replace(gaussians, shN=gaussians.shN[:, :0]), cameras)
    full, _, _ = render_views(gaussians, cameras)
    assert torch.equal(limited, flat)
    assert not torch.equal(limited, full)


def test_render_views_is_differentiable_in_the_raw_parameters():
    gaussians, cameras, _ = make_model()
    leaves = gaussians.map(lambda tensor: tensor.detach().requires_grad_())
    images, _, _ = render_views(leaves, cameras)
    images.square().sum().backward()
    for name, tensor in leaves.tensors().items():
        assert tensor.grad is not None, name
        assert tensor.grad.any(), name


def test_render_is_one_view_of_render_views():
    gaussians, cameras, _ = make_model()
    images, _, _ = render_views(gaussians, cameras)
    for camera, expected in zip(cameras, images):
        assert torch.equal(render(gaussians, camera), expected)


def test_cameras_of_a_call_have_one_size():
    gaussians, cameras, _ = make_model()
    with pytest.raises(ArgumentError, match="expected 24×18 pinhole cameras"):
        render_views(gaussians, [cameras[0], dataclasses.replace(cameras[1], width=25)])
    nothing, _, _ = render_views(gaussians, cameras[:1], n_cameras=0)
    assert nothing.shape == (0, 18, 24, 3)
