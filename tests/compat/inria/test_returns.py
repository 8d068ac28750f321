"""What forks of Inria's rasterizer return besides color and radii, against the reference."""

import pytest
import torch

from tests.compat.inria.clients import camera_settings
from tests.support import scenes
from tests.support.closeness import assert_exact
from tsplat import ArgumentError, rasterization, rasterization_2dgs, reference
from tsplat.compat.inria import GaussianRasterizationSettings, GaussianRasterizer, variants
from tsplat.config import PRESETS

STRUCTURE = scenes.Structure(n=25, cameras=1, sh_degree=1, width=40, height=30, size=3.0, seed=11)
SCENE = scenes.make(STRUCTURE)
LEAVES = ("means", "quats", "scales", "opacities", "colors")
MEASURES = ("weights", "count", "score", "max_count", "n_touched", "observed", "median_depth")


def settings_of(scene=SCENE, **others):
    camera = camera_settings(scene["viewmats"][0], scene["Ks"][0], scene["width"], scene["height"])
    values = dict(bg=scene["backgrounds"][0], scale_modifier=1.0, sh_degree=scene["sh_degree"]) | others
    return GaussianRasterizationSettings(**camera, **values)


def arguments_of(scene=SCENE, **others):
    values = dict(
        means3D=scene["means"], means2D=None, shs=scene["colors"], opacities=scene["opacities"][:, None],
        scales=scene["scales"], rotations=scene["quats"],
    )  # fmt: skip
    return values | others


def with_leaves():
    return SCENE | {name: SCENE[name].clone().requires_grad_() for name in LEAVES}


def rendered_by_reference(scene=SCENE):
    """The result, and the weights [H, W, N] front to back with the order of Gaussians [N]."""
    result = reference.rasterize(**scene, numerics=PRESETS["inria"])
    order = torch.where(result.projection.visible, result.projection.depths, torch.inf)[0].argsort()
    return result, result.weights[0], order


def test_images_and_their_gradients_match_the_reference():
    scene, own = with_leaves(), with_leaves()
    features = torch.rand(25, 4, dtype=torch.float64)
    rasterizer = GaussianRasterizer(settings_of(), returns=["alpha", "features", "depth", "color"])
    found = rasterizer(**arguments_of(scene, semantic_feature=features[:, None]))
    result, weights, _ = rendered_by_reference(own)
    depths = torch.where(result.projection.visible, result.projection.depths, 0.0)[0]
    expected = [
        result.alphas[0, ..., 0][None], (weights @ features).movedim(-1, 0), (weights @ depths)[None],
        result.colors[0].movedim(-1, 0),
    ]  # fmt: skip
    for name, one, other in zip(rasterizer.returns, found, expected, strict=True):
        assert_exact(name, one, other)
    v = scenes.random_like(found, 0)
    gradients = torch.autograd.grad(list(found), [scene[name] for name in LEAVES], v)
    for name, one, other in zip(LEAVES, gradients, torch.autograd.grad(expected, [own[n] for n in LEAVES], v)):
        assert_exact(name, one, other)


@pytest.mark.parametrize("size", [3.0, 12.0])
def test_measures_match_the_weights_of_the_reference(size):
    scene = scenes.make(scenes.Structure(n=60, cameras=1, sh_degree=1, width=40, height=30, size=size, seed=2))
    values = GaussianRasterizer(settings_of(scene), returns=MEASURES)(**arguments_of(scene))
    found = dict(zip(MEASURES, values, strict=True))
    result, weights, order = rendered_by_reference(scene)
    sorted_weights = weights[..., order]
    behind = torch.empty_like(weights)
    behind[..., order] = 1 - sorted_weights.cumsum(-1)
    front, reached = behind + weights, weights > 0
    assert_exact("weights", found["weights"], weights.sum((0, 1)))
    assert_exact("score", found["score"], ((front * reached).sum((0, 1)) * scene["opacities"]))
    for name, which in (
        ("count", reached), ("n_touched", reached & (behind > 0.5)), ("observed", reached & (front > 0.5)),
    ):  # fmt: skip
        assert torch.equal(found[name], which.sum((0, 1), dtype=torch.int32)), name
        assert found[name].any()
    largest = weights.amax(-1, keepdim=True)
    assert torch.equal(found["max_count"], ((weights == largest) & (largest > 0)).sum((0, 1)).double())
    crossing = reached & (front > 0.5) & (behind <= 0.5)
    medians = torch.where(crossing, result.projection.depths[0], 0.0).sum(-1)
    expected = torch.where(crossing.any(-1), medians, 15.0)[None]
    assert_exact("median_depth", found["median_depth"], expected)
    assert 0 < (expected == 15).sum() < expected.numel() or size == 12.0


def test_measures_of_nothing_are_zero():
    none = {name: value[:0] for name, value in arguments_of().items() if value is not None}
    values = GaussianRasterizer(settings_of(), returns=MEASURES)(means2D=None, **none)
    *counts, depth = values
    assert all(count.shape == (0,) for count in counts)
    assert (depth == 15).all()


def test_absolute_gradients_are_those_of_absgrad():
    scene = SCENE | {"sh_degree": None, "colors": torch.rand(25, 3, dtype=torch.float64)}
    scene["means"] = scene["means"].clone().requires_grad_()
    image, _, meta = rasterization(**scene, absgrad=True, packed=False, numerics="inria")
    v = scenes.random_like((image,), 0)[0]
    meta["means2d"].retain_grad()
    image.backward(v)
    half = torch.tensor([20.0, 15.0])
    absolute, plain = meta["means2d"].absgrad[0] * half, meta["means2d"].grad[0] * half
    means2D, densify, both = (torch.zeros(25, n, dtype=torch.float64, requires_grad=True) for n in (3, 3, 4))
    colors = dict(shs=None, colors_precomp=scene["colors"])
    color, _, _ = GaussianRasterizer(settings_of())(**arguments_of(**colors, means2D=means2D, means2D_densify=densify))
    color.backward(v[0].movedim(-1, 0))
    _, rasterizer = variants.CLASSES["diff_gaussian_rasterization_abs"]
    color, _, weights = rasterizer(settings_of())(**arguments_of(**colors, means2D=both))
    color.backward(v[0].movedim(-1, 0))
    assert_exact("means2D", means2D.grad[:, :2], plain)
    assert_exact("means2D_densify", densify.grad[:, :2], absolute)
    assert_exact("means2D of AbsGS", both.grad, torch.cat([plain, absolute], 1))
    assert not densify.grad[:, 2].any()
    assert weights.any()
    assert (absolute >= plain.abs() - 1e-12).all()


def skew(v):
    zero = torch.zeros_like(v[0])
    return torch.stack([zero, -v[2], v[1], v[2], zero, -v[0], -v[1], v[0], zero]).view(3, 3)


@pytest.mark.parametrize("shape", [(3,), (1, 3)])
def test_gradients_of_theta_and_rho_are_those_of_the_pose(shape):
    """Of a motion after the view matrix: Exp([rho, theta]) viewmat, with the camera center that follows."""
    given = settings_of()
    raw = torch.linalg.solve(given.viewmatrix, given.projmatrix)
    theta, rho = (torch.full(shape, value, dtype=torch.float64, requires_grad=True) for value in (0.3, torch.nan))
    names = ["color", "depth"]
    rasterizer = GaussianRasterizer(given._replace(projmatrix_raw=raw), returns=names)
    found = rasterizer(**arguments_of(theta=theta, rho=rho))
    plain = GaussianRasterizer(given, returns=names)(**arguments_of())
    for one, other in zip(found, plain, strict=True):
        assert torch.equal(one, other)
    v = scenes.random_like(found, 0)
    gradients = torch.autograd.grad(list(found), [rho, theta], v)
    tau = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    generator = torch.nn.functional.pad(torch.cat([skew(tau[3:]), tau[:3, None]], 1), (0, 0, 0, 1))
    view = torch.linalg.matrix_exp(generator) @ given.viewmatrix.T
    center = -view[:3, :3].T @ view[:3, 3]
    moved = given._replace(viewmatrix=view.T, projmatrix=view.T @ raw, campos=center)
    expected = GaussianRasterizer(moved, returns=names)(**arguments_of())
    (expected,) = torch.autograd.grad(list(expected), tau, v)
    assert_exact("pose", torch.cat([gradient.flatten() for gradient in gradients]), expected)
    assert gradients[0].shape == shape


def test_confidence_scales_gradients_of_gaussians():
    confidence = torch.rand(25, 1, dtype=torch.float64)
    v = None
    gradients = []
    for settings in (settings_of(confidence=confidence), settings_of()):
        scene = with_leaves()
        color = GaussianRasterizer(settings, returns=["color"])(**arguments_of(scene))[0]
        v = scenes.random_like((color,), 0) if v is None else v
        gradients.append(torch.autograd.grad(color, [scene[name] for name in LEAVES], v))
    for name, one, other in zip(LEAVES, *gradients):
        assert_exact(name, one, other * confidence.view(-1, *[1] * (other.ndim - 1)))


def test_planes_are_seen_at_the_depth_of_the_plane():
    """A single opaque plane through the Gaussians of PGSR: normal n and distance d give z = -d / (n . ray)."""
    settings, rasterizer = variants.CLASSES["diff_plane_rasterization"]
    normal, distance = torch.tensor([0.3, -0.2, -0.9], dtype=torch.float64), 2.0
    planes = torch.cat([normal, torch.tensor([1.0, distance], dtype=torch.float64)]).expand(25, 5)
    given = settings(**settings_of()._asdict(), render_geo=True)
    _, _, _, images, depth = rasterizer(given)(**arguments_of(all_map=planes))
    K = SCENE["Ks"][0]
    y, x = torch.meshgrid(torch.arange(30).double() + 0.5, torch.arange(40).double() + 0.5, indexing="ij")
    rays = torch.stack([(x - K[0, 2]) / K[0, 0], (y - K[1, 2]) / K[1, 1], torch.ones_like(x)], -1)
    seen = images[3] > 0.01
    assert seen.any()
    torch.testing.assert_close(depth[0][seen], (-distance / (rays @ normal))[seen], rtol=1e-5, atol=0)


def test_surfels_are_those_of_rasterization_2dgs():
    _, rasterizer = variants.CLASSES["diff_surfel_rasterization"]
    scene, own = with_leaves(), with_leaves()
    del own["covars"], own["camera_model"]
    points = torch.zeros(25, 3, dtype=torch.float64, requires_grad=True)
    color, radii, allmap = rasterizer(settings_of())(
        **arguments_of(scene, scales=scene["scales"][:, :2], means2D=points)
    )
    image, alpha, normals, _, _, median, meta = rasterization_2dgs(**own, render_mode="RGB+D", numerics="inria")
    to_camera = own["viewmats"][0, :3, :3]
    expected = torch.cat([image[0, ..., 3:], alpha[0], normals[0] @ to_camera.T, median[0]], -1).movedim(-1, 0)
    assert_exact("color", color, image[0, ..., :3].movedim(-1, 0))
    assert_exact("allmap", allmap[:6], expected)
    assert torch.equal(radii, meta["radii"][0].amax(-1))
    v = scenes.random_like((color, allmap[:6]), 0)
    gradients = torch.autograd.grad((color, allmap[:6]), [*(scene[name] for name in LEAVES), points], v)
    outputs = image[0, ..., :3].movedim(-1, 0), expected
    leaves = [*(own[name] for name in LEAVES), meta["gradient_2dgs"]]
    for name, one, other in zip([*LEAVES, "means2D"], gradients, torch.autograd.grad(outputs, leaves, v)):
        if name == "means2D":
            one, other = one[:, :2], other[0] * torch.tensor([20.0, 15.0])
        assert_exact(name, one, other)


def test_distortion_of_surfels_is_a_sum_over_all_two_gaussians():
    """Two discs that face the camera: w_1 w_2 (m_1 - m_2)^2 on the axis, with m of 2DGS."""
    _, rasterizer = variants.CLASSES["diff_surfel_rasterization"]
    scene = scenes.make(scenes.Structure(n=2, cameras=1, width=40, height=30))
    view = torch.eye(4, dtype=torch.float64)[None]
    scene |= dict(viewmats=view, Ks=torch.tensor([[[40.0, 0, 20], [0, 40, 15], [0, 0, 1]]], dtype=torch.float64))
    z, o = torch.tensor([2.0, 3.0], dtype=torch.float64), torch.tensor([0.6, 0.7], dtype=torch.float64)
    scene["means"] = torch.stack([0 * z, 0 * z, z], -1)
    settings = settings_of(scene | {"sh_degree": 0})
    _, _, allmap = rasterizer(settings)(
        means3D=scene["means"], means2D=None, colors_precomp=scene["colors"], opacities=o[:, None],
        scales=torch.full((2, 2), 50.0, dtype=torch.float64),
        rotations=torch.tensor([[1.0, 0, 0, 0]], dtype=torch.float64).repeat(2, 1),
    )  # fmt: skip
    m = 100 / 99.8 * (1 - 0.2 / z)
    weights = o[0], o[1] * (1 - o[0])
    expected = weights[0] * weights[1] * (m[0] - m[1]) ** 2
    assert float(allmap[6, 15, 20]) == pytest.approx(float(expected), rel=1e-3)


def test_choices_are_checked():
    with pytest.raises(ArgumentError, match="returns: expected comma-separated names, such as color,radii,depth, of"):
        GaussianRasterizer(settings_of(), returns=["rgbd"])
    with pytest.raises(ArgumentError, match=r"semantic_feature: expected \[N, ...\] as means3D, here \[25"):
        GaussianRasterizer(settings_of())(**arguments_of(semantic_feature=torch.rand(24, 1, 3)))
    features = torch.rand(25, 1, 3)
    with pytest.raises(ArgumentError, match="sh_objs: pass one of semantic_feature, sh_objs"):
        GaussianRasterizer(settings_of())(**arguments_of(semantic_feature=features, sh_objs=features))
    with pytest.raises(ArgumentError, match=r"theta: expected \[3\]"):
        GaussianRasterizer(settings_of())(**arguments_of(theta=torch.zeros(6)))
