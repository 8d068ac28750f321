"""The drop-in replacement for Inria's rasterizer, called as its users do, against the reference."""

import math

import pytest
import torch

from tests.support import scenes
from tests.support.closeness import assert_exact
from tsplat import ArgumentError, InvalidValueError, UnsupportedError, reference
from tsplat.compat.inria import GaussianRasterizationSettings, GaussianRasterizer
from tsplat.config import PRESETS

STRUCTURE = scenes.Structure(n=25, cameras=1, sh_degree=2, width=40, height=30, size=3.0, seed=11)


def camera(scene):
    """The attributes of Inria's camera class: transposed matrices and tangents of half the fields of view."""
    width, height = scene["width"], scene["height"]
    (fx, _, cx), (_, fy, cy), _ = scene["Ks"][0].tolist()
    near, far = 0.01, 100.0
    projection = torch.zeros(4, 4, dtype=torch.float64)
    projection[0, 0], projection[0, 2] = 2 * fx / width, 2 * cx / width - 1
    projection[1, 1], projection[1, 2] = 2 * fy / height, 2 * cy / height - 1
    projection[2, 2], projection[2, 3], projection[3, 2] = far / (far - near), -far * near / (far - near), 1
    view = scene["viewmats"][0]
    return dict(
        image_width=width,
        image_height=height,
        tanfovx=width / (2 * fx),
        tanfovy=height / (2 * fy),
        viewmatrix=view.T,
        projmatrix=(projection @ view).T,
        campos=torch.linalg.inv(view)[:3, 3],
    )


def render(scene, *, antialiasing=False, scale_modifier=1.0, colors=None, covariances=None, debug=False):
    """Renders as in Inria's training code; the tensors of the model are leaves."""
    model = {name: scene[name].clone().requires_grad_() for name in ("means", "quats", "scales", "opacities", "colors")}
    screenspace_points = torch.zeros_like(model["means"], requires_grad=True) + 0
    screenspace_points.retain_grad()
    rasterizer = GaussianRasterizer(
        raster_settings=GaussianRasterizationSettings(
            **camera(scene),
            bg=scene["backgrounds"][0],
            scale_modifier=scale_modifier,
            sh_degree=scene["sh_degree"],
            prefiltered=False,
            debug=debug,
            antialiasing=antialiasing,
        )
    )
    image, radii, invdepths = rasterizer(
        means3D=model["means"],
        means2D=screenspace_points,
        shs=model["colors"] if colors is None else None,
        colors_precomp=colors,
        opacities=model["opacities"][:, None],
        scales=model["scales"] if covariances is None else None,
        rotations=model["quats"] if covariances is None else None,
        cov3D_precomp=covariances,
    )
    return model, screenspace_points, image, radii, invdepths


def render_reference(scene, **settings):
    model = {name: scene[name].clone().requires_grad_() for name in ("means", "quats", "scales", "opacities", "colors")}
    result = reference.rasterize(**{**scene, **model}, numerics=PRESETS["inria"], **settings)
    # Inverse depth with the same weights.
    inverse = torch.where(result.projection.visible, 1 / result.projection.depths, 0.0)
    return model, result, (result.weights * inverse[..., None, None, :]).sum(-1)


@pytest.mark.parametrize("mode", ["classic", "antialiased"])
def test_image_and_gradients_match_reference(mode):
    scene = scenes.make(STRUCTURE)
    model, points, image, radii, invdepths = render(scene, antialiasing=mode == "antialiased")
    own, expected, inverse = render_reference(scene, rasterize_mode=mode)
    assert_exact("color", image, expected.colors[0].movedim(-1, 0))
    assert_exact("invdepths", invdepths, inverse)
    assert torch.equal(radii, expected.projection.radii[0, :, 0])
    v_image, v_inverse = scenes.random_like((image, invdepths), 0)
    points.retain_grad()
    torch.autograd.backward((image, invdepths), (v_image, v_inverse))
    names = list(own)
    outputs = (expected.colors, inverse)
    v = (v_image.movedim(0, -1)[None], v_inverse)
    *gradients, v_means2d = torch.autograd.grad(outputs, [*own.values(), expected.projection.means2d], v)
    for name, gradient in zip(names, gradients):
        assert_exact(name, model[name].grad, gradient)
    # Densification reads this gradient in units where the image spans -1 to 1.
    assert_exact("means2D", points.grad[:, :2], v_means2d[0] * torch.tensor([20.0, 15.0]))
    assert not points.grad[:, 2].any()


def test_scale_modifier_and_precomputed_values_match_reference():
    scene = scenes.make(STRUCTURE)
    _, _, image, _, _ = render(scene, scale_modifier=0.5)
    _, expected, _ = render_reference(scene | {"scales": 0.5 * scene["scales"]})
    assert_exact("color", image, expected.colors[0].movedim(-1, 0))
    colors = torch.rand(25, 3, dtype=torch.float64)
    full = reference.covariances(scene["quats"], scene["scales"])
    upper = full[:, (0, 0, 0, 1, 1, 2), (0, 1, 2, 1, 2, 2)]
    _, _, image, _, _ = render(scene, colors=colors, covariances=upper)
    _, expected, _ = render_reference(scene)
    plain = reference.rasterize(
        **{**scene, "colors": colors, "sh_degree": None, "quats": None, "scales": None, "covars": full},
        numerics=PRESETS["inria"],
    )
    assert_exact("color", image, plain.colors[0].movedim(-1, 0))


def test_mark_visible_uses_the_near_plane():
    scene = scenes.make(STRUCTURE)
    settings = GaussianRasterizationSettings(**camera(scene), bg=torch.zeros(3), scale_modifier=1.0, sh_degree=0)
    view = scene["viewmats"][0]
    points = torch.tensor([[0.0, 0, 0.1], [0, 0, 0.3], [0, 0, -1]], dtype=torch.float64)
    world = (points - view[:3, 3]) @ view[:3, :3]
    assert GaussianRasterizer(settings).markVisible(world).tolist() == [False, True, False]


def test_invalid_arguments_are_named():
    scene = scenes.make(STRUCTURE)
    settings = GaussianRasterizationSettings(
        **camera(scene), bg=scene["backgrounds"][0], scale_modifier=1.0, sh_degree=2
    )
    means, opacities = scene["means"], scene["opacities"][:, None]
    with pytest.raises(ArgumentError, match="shs: pass either shs or colors_precomp"):
        GaussianRasterizer(settings)(means, means, opacities, scales=scene["scales"], rotations=scene["quats"])
    with pytest.raises(ArgumentError, match="scales: pass either scales and rotations, or cov3D_precomp"):
        GaussianRasterizer(settings)(means, means, opacities, shs=scene["colors"], scales=scene["scales"])
    with pytest.raises(UnsupportedError, match="prefiltered: True is not implemented"):
        GaussianRasterizer(settings._replace(prefiltered=True))
    scene["scales"][3] = math.nan
    with pytest.raises(InvalidValueError, match=r"scales: 1 of 25 Gaussians are not finite \(first: Gaussian 3\)"):
        render(scene, debug=True)
