"""Inria's rasterizer of both generations, called as its users do, against the reference."""

import math

import pytest
import torch

from tests.compat.inria.clients import camera_settings
from tests.support import scenes
from tests.support.closeness import assert_exact
from tsplat import ArgumentError, InvalidValueError, reference
from tsplat.compat.inria import GaussianRasterizationSettings, GaussianRasterizer, rasterize_gaussians
from tsplat.config import PRESETS

STRUCTURE = scenes.Structure(n=25, cameras=1, sh_degree=2, width=40, height=30, size=3.0, seed=11)


def camera(scene):
    """The attributes of Inria's camera class: transposed matrices and tangents of half the fields of view."""
    return camera_settings(scene["viewmats"][0], scene["Ks"][0], scene["width"], scene["height"])


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


def test_gradient_of_a_pose_matches_reference():
    """As programs that optimize cameras call it: matrices and center are computed from the pose."""
    scene = scenes.make(STRUCTURE)
    view = scene["viewmats"].clone().requires_grad_()
    given = settings_of(scene)
    projection = torch.linalg.solve(given.viewmatrix, given.projmatrix)
    pose = view[0].T
    center = torch.linalg.inv(pose)[3, :3]
    settings = given._replace(viewmatrix=pose, projmatrix=pose @ projection, campos=center)
    image, _ = GaussianRasterizer(settings)(**arguments_of(scene))
    v_image = scenes.random_like((image,), 0)[0]
    (gradient,) = torch.autograd.grad(image, view, v_image)
    _, own, _ = render_reference(scene | {"viewmats": view})
    (expected,) = torch.autograd.grad(own.colors, view, v_image.movedim(0, -1)[None])
    # The inverse of the whole matrix depends on its last row, which is constant.
    assert_exact("viewmatrix", gradient[:, :3], expected[:, :3])


def settings_of(scene, **changes):
    """Settings as the programs of 2023 make them: without `antialiasing`."""
    values = dict(bg=scene["backgrounds"][0], scale_modifier=1.0, sh_degree=scene["sh_degree"], prefiltered=False)
    return GaussianRasterizationSettings(**camera(scene), **{**values, "debug": False, **changes})


def arguments_of(scene):
    return dict(
        means3D=scene["means"], means2D=None, opacities=scene["opacities"][:, None], shs=scene["colors"],
        colors_precomp=None, scales=scene["scales"], rotations=scene["quats"], cov3D_precomp=None,
    )  # fmt: skip


def test_settings_choose_the_generation():
    scene = scenes.make(STRUCTURE)
    image, radii = GaussianRasterizer(settings_of(scene))(**arguments_of(scene))
    recent = GaussianRasterizer(raster_settings=settings_of(scene, antialiasing=False))(**arguments_of(scene))
    assert len(recent) == 3
    assert torch.equal(image, recent[0])
    assert torch.equal(radii, recent[1])
    assert radii.dtype == torch.int32
    # Settings may be positional, as in `GaussianRasterizationSettings(*values)`.
    values = tuple(settings_of(scene, antialiasing=True))
    assert len(GaussianRasterizer(GaussianRasterizationSettings(*values[:12]))(**arguments_of(scene))) == 2
    assert len(GaussianRasterizer(GaussianRasterizationSettings(*values))(**arguments_of(scene))) == 3


def test_generation_can_be_given():
    scene = scenes.make(STRUCTURE)
    recent = GaussianRasterizer(settings_of(scene, antialiasing=True))(**arguments_of(scene))
    old = GaussianRasterizer(settings_of(scene, antialiasing=True), generation=2023)(**arguments_of(scene))
    assert len(old) == 2
    assert torch.equal(old[0], recent[0])
    plain = GaussianRasterizer(settings_of(scene), generation=2024)(**arguments_of(scene))
    assert len(plain) == 3
    assert not torch.equal(plain[0], recent[0])
    with pytest.raises(ArgumentError, match="generation: expected one of 2023, 2024, 'mcmc', found 2025"):
        GaussianRasterizer(settings_of(scene), generation=2025)


def test_separate_coefficients_equal_joined_ones():
    scene = scenes.make(STRUCTURE)
    joined = scene["colors"].clone().requires_grad_()
    separate = [joined.detach()[:, part].clone().requires_grad_() for part in (slice(1), slice(1, None))]
    rasterizer = GaussianRasterizer(settings_of(scene))
    image, _ = rasterizer(**arguments_of(scene) | dict(shs=joined))
    other, _ = rasterizer(**arguments_of(scene) | dict(dc=separate[0], shs=separate[1]))
    assert torch.equal(image, other)
    (v_image,) = scenes.random_like((image,), 0)
    (v_joined,) = torch.autograd.grad(image, joined, v_image)
    assert torch.equal(torch.cat(torch.autograd.grad(other, separate, v_image), 1), v_joined)
    assert v_joined.any()
    # A model of degree 0 has no coefficients of higher degrees.
    rasterizer = GaussianRasterizer(settings_of(scene, sh_degree=0))
    image, _ = rasterizer(**arguments_of(scene) | dict(shs=joined[:, :1]))
    other, _ = rasterizer(**arguments_of(scene) | dict(dc=joined[:, :1], shs=joined[:, :0]))
    assert torch.equal(image, other)


def test_function_takes_empty_tensors_for_none():
    scene = scenes.make(STRUCTURE)
    none = torch.Tensor([])
    settings = settings_of(scene)
    image, radii = rasterize_gaussians(
        scene["means"], none, scene["colors"], none, scene["opacities"][:, None], scene["scales"], scene["quats"],
        none, settings,
    )  # fmt: skip
    expected, expected_radii = GaussianRasterizer(settings)(**arguments_of(scene))
    assert torch.equal(image, expected)
    assert torch.equal(radii, expected_radii)


def test_no_gaussians_give_the_background():
    scene = scenes.make(STRUCTURE)
    none = {name: tensor[:0] for name, tensor in arguments_of(scene).items() if tensor is not None}
    image, radii, invdepths = GaussianRasterizer(settings_of(scene, antialiasing=False))(means2D=None, **none)
    assert torch.equal(image, scene["backgrounds"][0][:, None, None].expand_as(image))
    assert radii.shape == (0,)
    assert not invdepths.any()


def test_values_of_screenspace_points_are_not_read():
    """As where they are allocated by torch.empty_like."""
    scene = scenes.make(STRUCTURE)
    rasterizer, arguments = GaussianRasterizer(settings_of(scene)), arguments_of(scene)
    found = []
    for value in (0.0, math.nan):
        points = torch.full_like(scene["means"], value).requires_grad_()
        image, _ = rasterizer(**arguments | {"means2D": points})
        image.square().sum().backward()
        found.append((image, points.grad))
    (image, gradient), (other, other_gradient) = found
    assert torch.equal(image, other)
    assert torch.equal(gradient, other_gradient)
    assert gradient.any()


def test_results_are_contiguous():
    scene = scenes.make(STRUCTURE)
    rasterizer = GaussianRasterizer(settings_of(scene, antialiasing=False))
    image, radii, invdepths = rasterizer(**arguments_of(scene))
    filtered = rasterizer.visible_filter(scene["means"], scene["scales"], scene["quats"])
    assert all(tensor.is_contiguous() for tensor in (image, radii, invdepths, filtered))
    # As Inria's psnr reads images; operations on images keep the order of their strides.
    assert image.clamp(0, 1)[None].view(1, -1).shape == (1, 3 * 30 * 40)


def test_prefiltered_gaussians_are_in_front_of_the_camera():
    scene = scenes.make(STRUCTURE)
    view = scene["viewmats"][0]
    scene["means"][4] = (torch.tensor([0.0, 0, 0.1], dtype=torch.float64) - view[:3, 3]) @ view[:3, :3]
    image, radii = GaussianRasterizer(settings_of(scene))(**arguments_of(scene))
    rasterizer = GaussianRasterizer(settings_of(scene, prefiltered=True))
    kept = rasterizer.markVisible(scene["means"])
    assert not kept[4]
    n_culled = int((~kept).sum())
    with pytest.raises(ArgumentError, match=f"prefiltered: {n_culled} of 25 Gaussians are at most 0.2 in front"):
        rasterizer(**arguments_of(scene))
    filtered = {name: tensor[kept] for name, tensor in arguments_of(scene).items() if tensor is not None}
    other, other_radii = rasterizer(means2D=None, **filtered)
    assert torch.equal(image, other)
    assert torch.equal(radii[kept], other_radii)


def test_mark_visible_uses_the_near_plane():
    scene = scenes.make(STRUCTURE)
    settings = GaussianRasterizationSettings(**camera(scene), bg=torch.zeros(3), scale_modifier=1.0, sh_degree=0)
    view = scene["viewmats"][0]
    points = torch.tensor([[0.0, 0, 0.1], [0, 0, 0.3], [0, 0, -1]], dtype=torch.float64)
    world = (points - view[:3, 3]) @ view[:3, :3]
    assert GaussianRasterizer(settings).markVisible(world).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (dict(tanfovx=math.nan), "tanfovx: expected a finite number of at least 1e-06, found nan"),
        (dict(tanfovy=0.0), "tanfovy: expected a finite number of at least 1e-06, found 0"),
        (dict(scale_modifier=math.nan), "scale_modifier: expected a finite number of at least 0, found nan"),
        (dict(image_height=0), "image_height: expected a positive int, found 0"),
        (dict(campos=torch.zeros(4)), r"campos: expected \[3\]"),
        (dict(viewmatrix=torch.zeros(4, 4)), "viewmatrix: expected a matrix with an inverse, found a singular one"),
    ],
)
def test_invalid_settings_are_named(change, match):
    scene = scenes.make(STRUCTURE, torch.float32)
    with pytest.raises(ArgumentError, match=match):
        GaussianRasterizer(settings_of(scene)._replace(**change))(**arguments_of(scene))


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
    covariances = dict(cov3D_precomp=torch.rand(25, 6))
    with pytest.raises(ArgumentError, match="scales: pass either scales and rotations, or cov3D_precomp"):
        GaussianRasterizer(settings)(means, means, opacities, shs=scene["colors"], scales=means, **covariances)
    with pytest.raises(ArgumentError, match=r"colors_precomp: expected \[N, C\] as means3D, here \[25, \?\]"):
        GaussianRasterizer(settings)(means, means, opacities, colors_precomp=means[1:], **covariances)
    with pytest.raises(ArgumentError, match="dc: pass it with the shs"):
        GaussianRasterizer(settings)(means, means, opacities, colors_precomp=means, dc=means[:, None])
    scene["scales"][3] = math.nan
    with pytest.raises(InvalidValueError, match=r"scales: 1 of 25 Gaussians are not finite \(first: Gaussian 3\)"):
        render(scene, debug=True)
