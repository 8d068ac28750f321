"""2D Gaussians: images and gradients against the reference, closed forms, special values."""

import math
import os
import random

import pytest
import torch

import tsplat
from emulator.package import tsplat_emulated
from tests.emulator.targets import needs_emulator
from tests.kernels.compositing.test_part_lists import UNCUT
from tests.support import scenes
from tests.support.backends import BACKENDS
from tests.support.closeness import assert_exact
from tests.support.slow import slow_after
from tsplat.config import DEPTH_ALPHA_MIN, DISC_EXTENT, PRESETS, CameraSettings
from tsplat.data import (
    Cameras,
    CompositingSettings,
    GaussianMajor,
    Gaussians3D,
    Images,
    Intersections,
    ProjectedGradients,
    ProjectionSettings,
    SavedImages,
    Splats,
    TileGrid,
)
from tsplat.errors import UnsupportedError
from tsplat.output_maps import OF_SURFELS
from tsplat.reference import camera_centers, spherical_harmonics
from tsplat.reference.camera_formulas import Camera, intrinsics
from tsplat.reference.surfel_formulas import composite_surfels, project_surfels
from tsplat.strategies import DefaultStrategy

pytest.importorskip("triton")
from benchmarks import static_cost
from benchmarks.launches import recorded
from tsplat import kernels
from tsplat.kernels.compositing import part_lists, tuning

SCENES = int(os.environ.get("TSPLAT_SURFEL_SCENES", "8"))
IMAGES = ["colors", "alphas", "normals", "surf_normals", "distort", "median"]
NAMES = ["means", "quats", "scales", "opacities", "colors", "backgrounds", "viewmats"]


def make(seed=0, dtype=torch.float64, **structure):
    """A scene of surfels; some have a scale of a pixel, where the low-pass filter applies."""
    scene = scenes.make(scenes.Structure(**dict(n=20, seed=seed) | structure), dtype)
    scene["scales"][..., ::3, :2] *= 0.1
    del scene["covars"], scene["camera_model"]
    return scene


def render_reference(
    means, quats, scales, opacities, colors, viewmats, Ks, width, height, sh_degree, backgrounds, render_mode="RGB",
    numerics="gsplat-1.5", tile_size=16, depth_mode="expected", radius_clip=0.0,
):  # fmt: skip
    """What `rasterization_2dgs` returns, by the formulas of the reference."""
    preset = PRESETS[numerics]
    camera = Camera(viewmats[..., :3, :3], viewmats[..., :3, 3], intrinsics(Ks), None, None)
    settings = CameraSettings.of(width, height, "pinhole", 0.01, 1e10, preset)
    surfels = project_surfels(means, quats, scales, camera, settings, radius_clip=radius_clip, numerics=preset)
    leading = surfels.depths.shape
    n_batch = means.dim() - 2
    if colors.dim() == n_batch + (2 if sh_degree is None else 3):
        colors = colors.unsqueeze(n_batch)
    if sh_degree is not None:
        directions = means[..., None, :, :] - camera_centers(viewmats, preset)[..., None, :]
        colors = (spherical_harmonics(sh_degree, directions, colors) + 0.5).clamp_min(0)
    values = torch.cat([colors.expand(*leading, colors.shape[-1]), surfels.depths[..., None]], -1)
    if "RGB" not in render_mode:
        values = values[..., -1:]
    elif backgrounds is not None:
        backgrounds = torch.nn.functional.pad(backgrounds, (0, 1))
    images = composite_surfels(
        surfels, opacities[..., None, :].expand(leading), values, backgrounds, settings, numerics=preset,
        tile_size=tile_size, planes="ray" in depth_mode,
    )  # fmt: skip
    found = images.colors
    if "ED" in render_mode:
        found = torch.cat([found[..., :-1], found[..., -1:] / images.alphas.clamp_min(DEPTH_ALPHA_MIN)], -1)
    to_world = torch.linalg.inv(viewmats)
    normals = torch.einsum("...ij,...hwj->...hwi", to_world[..., :3, :3], images.normals)
    surface = None
    if "RGB" in render_mode and "D" in render_mode:
        depths = images.medians if "median" in depth_mode else found[..., -1:]
        surface = tsplat.depth_to_normals(depths, to_world, Ks).squeeze(0)
    found = found if "D" in render_mode else found[..., :-1]
    return found, images.alphas, normals, surface, images.distortions, images.medians, surfels


def images_and_gradients(render, scene, names, **options):
    """Images, gradients by names, and the last output of a renderer.

    Gradients leave out normals of depth maps, which amplify rounding where neighbors are not covered.
    """
    leaves = scene | {name: scene[name].clone().requires_grad_() for name in names}
    *images, last = render(**leaves, **options)
    outputs = tuple(image for name, image in zip(IMAGES, images) if name != "surf_normals")
    v = scenes.random_like(outputs, 0)
    gradients = torch.autograd.grad(outputs, [leaves[name] for name in names], v)
    return images, gradients, last


def assert_equal(found, expected, names, note=""):
    for name, one, other in zip([*IMAGES, *names], [*found[0], *found[1]], [*expected[0], *expected[1]], strict=True):
        assert_exact(f"{note}{name}", one, other)


@pytest.mark.parametrize("seed", slow_after(1, [0, 1, 2]))
@pytest.mark.parametrize("backend", BACKENDS)
def test_images_and_gradients_match_reference(backend, seed):
    scene = make(seed, batch=((), (2,), (1, 2))[seed], sh_degree=(None, 2, 1)[seed], cameras=(2, 2, 1)[seed])
    options = dict(
        render_mode=("RGB+D", "RGB+ED", "RGB")[seed], numerics=("gsplat-1.5", "gsplat-1.6", "gsplat-1.5")[seed],
        depth_mode=("expected", "median", "expected")[seed], tile_size=(16, 8, 4)[seed],
    )  # fmt: skip
    found = images_and_gradients(tsplat.rasterization_2dgs, scene, NAMES, backend=backend, packed=seed != 1, **options)
    expected = images_and_gradients(render_reference, scene, NAMES, **options)
    assert_equal(found, expected, NAMES)
    meta, surfels = found[2], expected[2]
    assert surfels.visible.sum() > 10 and found[0][1].max() > 0.1
    radii = surfels.radii[surfels.visible] if seed != 1 else surfels.radii
    assert torch.equal(meta["radii"], radii)


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
def test_random_scenes_match_reference(backend):
    """`TSPLAT_SURFEL_SCENES=500` tries more."""
    for seed in range(SCENES):
        r = random.Random(seed)
        degree = r.choice([None, 0, 1, 3])
        scene = make(
            seed, n=r.choice([1, 5, 20, 60]), width=r.randint(1, 40), height=r.randint(1, 40),
            cameras=r.choice([1, 2, 3]), batch=r.choice([(), (), (2,), (1, 2)]), sh_degree=degree,
            channels=r.choice([1, 3, 4, 9, 17]) if degree is None else 3, size=r.choice([1.0, 3.0, 10.0]),
            backgrounds=r.random() < 0.5, per_camera_colors=r.random() < 0.3,
        )  # fmt: skip
        names = [name for name in NAMES if scene[name] is not None]
        options = dict(
            tile_size=r.choice([4, 8, 16]), numerics=r.choice(["gsplat-1.5", "gsplat-1.6", "inria"]),
            render_mode=r.choice(["RGB", "RGB+D", "RGB+ED"]), radius_clip=r.choice([0.0, 0.0, 3.0]),
        )  # fmt: skip
        packed = r.random() < 0.5
        options["depth_mode"] = r.choice(["expected", "ray"])
        found = images_and_gradients(tsplat.rasterization_2dgs, scene, names, backend=backend, packed=packed, **options)
        expected = images_and_gradients(render_reference, scene, names, **options)
        found[0][3] = expected[0][3] = None
        assert_equal(found, expected, names, f"{seed}: ")


@pytest.mark.parametrize("chunk", [UNCUT, 2])
@pytest.mark.parametrize("channels", slow_after(1, [3, 7, 11, 12, 17]))
@pytest.mark.parametrize("backend", BACKENDS)
def test_many_channels_and_chunks_match_reference(backend, channels, chunk, cut_lists):
    """In one pass over the lists, in several, and by matrix products; lists that are cut into chunks, too."""
    counts = cut_lists(chunk)
    scene = make(3, n=40, channels=channels, cameras=1)
    found = images_and_gradients(tsplat.rasterization_2dgs, scene, NAMES, backend=backend)
    assert any(counts) == (chunk != UNCUT and backend == "triton")
    expected = images_and_gradients(render_reference, scene, NAMES)
    assert_equal(found, expected, NAMES)


@pytest.mark.parametrize(
    ("backend", "channels"), [pytest.param("triton", 3, marks=pytest.mark.triton), ("torch", 3), ("torch", 13)]
)
def test_depths_of_planes_match_reference(backend, channels):
    """With few channels, and with so many that they are composited apart from depth."""
    scene = make(2, channels=channels, cameras=2)
    options = dict(render_mode="RGB+ED", depth_mode="ray-median")
    found = images_and_gradients(tsplat.rasterization_2dgs, scene, NAMES, backend=backend, packed=True, **options)
    expected = images_and_gradients(render_reference, scene, NAMES, **options)
    assert_equal(found, expected, NAMES)
    centers = tsplat.rasterization_2dgs(**scene, render_mode="RGB+ED", backend=backend)
    for image in (0, 4, 5):
        assert (centers[image] - found[0][image]).abs().max() > 0.01
    for image in (1, 2):
        assert torch.equal(centers[image], found[0][image])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("depth_mode", ["ray", "ray-median"])
def test_depths_and_normals_of_a_tilted_plane_are_those_of_the_plane(backend, depth_mode):
    angle, focal, width, height = math.radians(50), 100.0, 40, 30
    u, v = (t.flatten().double() for t in torch.meshgrid(*[torch.arange(-2.2, 2.2, 0.25)] * 2, indexing="ij"))
    n, center = len(u), torch.tensor([0.0, 0, 4], dtype=torch.float64)
    normal = torch.tensor([0, -math.sin(angle), math.cos(angle)], dtype=torch.float64)
    means = center + torch.stack([u, v * math.cos(angle), v * math.sin(angle)], 1)
    quats = torch.tensor([[math.cos(angle / 2), math.sin(angle / 2), 0, 0]], dtype=torch.float64).expand(n, 4)
    Ks = torch.tensor([[[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]]], dtype=torch.float64)
    colors, alphas, _, surface, distort, median, _ = tsplat.rasterization_2dgs(
        means, quats, torch.full((n, 3), 0.3).double(), torch.full((n,), 0.9).double(), torch.ones(n, 3).double(),
        torch.eye(4).double()[None], Ks, width, height, render_mode="RGB+ED", depth_mode=depth_mode, backend=backend,
    )  # fmt: skip
    y, x = torch.meshgrid(torch.arange(height).double(), torch.arange(width).double(), indexing="ij")
    rays = torch.stack([(x + 0.5 - width / 2) / focal, (y + 0.5 - height / 2) / focal, torch.ones_like(x)], -1)
    expected = (normal @ center) / (rays @ normal)
    assert alphas.min() > 0.9 and expected.max() - expected.min() > 1
    for depths in (colors[0, ..., 3], median[0, ..., 0]):
        torch.testing.assert_close(depths, expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(surface[1:-1, 1:-1], (-normal).expand(height - 2, width - 2, 3), rtol=0, atol=1e-9)
    assert distort.abs().max() < 1e-9


@pytest.mark.parametrize(("mean", "scale"), [((0.03, 0.05, 4.0), 1e-3), ((0.0, -0.05, 1.0), 2.0)])
def test_a_disc_has_the_depth_of_its_center_where_rays_miss_it(mean, scale):
    """A tiny disc, which only the low-pass filter shows, and a large one, whose plane is met behind the camera, too."""
    angle, focal = math.radians(80), 20.0
    center = torch.tensor(mean, dtype=torch.float64)
    quats = torch.tensor([[math.cos(angle / 2), math.sin(angle / 2), 0, 0]], dtype=torch.float64)
    Ks = torch.tensor([[[focal, 0, 8], [0, focal, 8], [0, 0, 1]]], dtype=torch.float64)
    colors, alphas, *_, median, _ = tsplat.rasterization_2dgs(
        center[None], quats, torch.full((1, 3), scale, dtype=torch.float64), torch.full((1,), 0.9), torch.ones(1, 3),
        torch.eye(4).double()[None], Ks, 16, 16, render_mode="RGB+ED", depth_mode="ray", backend="torch",
    )  # fmt: skip
    y, x = torch.meshgrid(*[(torch.arange(16).double() + 0.5 - 8) / focal] * 2, indexing="ij")
    rays = torch.stack([x, y, torch.ones_like(x)], -1)
    normal = torch.tensor([0, -math.sin(angle), math.cos(angle)], dtype=torch.float64)
    z = (normal @ center) / (rays @ normal)
    is_met = (z > 0) & ((z[..., None] * rays - center).norm(dim=-1) <= DISC_EXTENT * scale)
    expected, shown = torch.where(is_met, z, center[2]), alphas[0, ..., 0] > 0
    assert (shown & ~is_met).any() and (shown & is_met).any() == (scale > 1)
    for depths in (colors[0, ..., 3], median[0, ..., 0]):
        torch.testing.assert_close(depths[shown], expected[shown])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_for_densification_is_that_of_projected_centers(backend, packed):
    scene = make(4)
    leaves = scene | {"means": scene["means"].requires_grad_()}
    *images, meta = tsplat.rasterization_2dgs(**leaves, backend=backend, packed=packed, render_mode="RGB+D")
    v = scenes.random_like(tuple(images), 0)
    torch.autograd.backward(images[0], v[0])
    *images, surfels = render_reference(**leaves, render_mode="RGB+D")
    (v_transforms,) = torch.autograd.grad(images[0], surfels.transforms, v[0])
    expected = v_transforms[..., :2, 2] * surfels.depths[..., None]
    found = meta["gradient_2dgs"].grad
    assert found.shape == meta["means2d"].shape and found.any()
    assert_exact("gradient_2dgs", found, expected[surfels.visible] if packed else expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_absolute_gradients_are_those_of_the_low_pass_filter(backend):
    scene = make(5, n=8, width=6, height=5, cameras=1)
    scene["scales"] *= 0.2
    found, expected = (
        lambda **options: tsplat.rasterization_2dgs(**scene | options, render_mode="RGB"),
        lambda **options: render_reference(**scene | options, render_mode="RGB"),
    )
    means = scene["means"].clone().requires_grad_()
    images = found(means=means, backend=backend, absgrad=True)
    v = scenes.random_like((images[0],), 0)[0]
    images[0].backward(v)
    *images, surfels = expected(means=means)
    total = torch.zeros_like(surfels.means2d)
    for y in range(5):
        for x in range(6):
            pixel = images[0][:, y, x]
            total += torch.autograd.grad(pixel, surfels.means2d, v[:, y, x], retain_graph=True)[0].abs()
    absgrad = found(means=means, backend=backend, absgrad=True)
    absgrad[0].backward(v)
    assert total.any()
    assert_exact("absgrad", absgrad[-1]["means2d"].absgrad, total)


def test_absolute_gradients_of_features_in_two_passes_are_refused():
    """Of each pass there are some; those of the one that was differentiated last were returned."""
    tsplat.rasterization_2dgs(**make(5, channels=11), backend="torch", absgrad=True)
    with pytest.raises(UnsupportedError, match=r"^absgrad: .* more than 12 channels of colors and depth, found 13; "):
        tsplat.rasterization_2dgs(**make(5, channels=12), backend="torch", absgrad=True)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_stages_give_what_the_pipeline_does(backend, packed):
    """Also masks, and distortion of any channel."""
    scene = make(6, channels=4)
    size = (scene["width"], scene["height"])
    *ids, radii, means2d, depths, transforms, normals = tsplat.fully_fused_projection_2dgs(
        scene["means"], scene["quats"], scene["scales"], scene["viewmats"], scene["Ks"], *size, packed=packed,
        backend=backend,
    )  # fmt: skip
    camera_ids, gaussian_ids = ids[1:] if packed else (None, None)
    tiles = (math.ceil(size[0] / 8), math.ceil(size[1] / 8))
    given = dict(packed=True, n_images=2, image_ids=camera_ids, gaussian_ids=gaussian_ids) if packed else {}
    _, isect_ids, flatten_ids = tsplat.isect_tiles(means2d, radii, depths, 8, *tiles, **given)
    offsets = tsplat.isect_offset_encode(isect_ids, 2, *tiles)
    if packed:
        opacities, colors = scene["opacities"][gaussian_ids], scene["colors"][gaussian_ids]
    else:
        opacities, colors = scene["opacities"].expand(2, -1), scene["colors"].expand(2, -1, -1)
    masks = torch.ones_like(offsets, dtype=torch.bool)
    masks[0, 1, 0] = False
    densify = torch.full_like(means2d, math.nan)  # values are not read
    images = tsplat.rasterize_to_pixels_2dgs(
        means2d, transforms, torch.cat([colors, depths[..., None]], -1), opacities, normals, densify, *size, 8, offsets,
        flatten_ids, packed=packed, masks=masks, backend=backend,
    )  # fmt: skip
    *expected, meta = tsplat.rasterization_2dgs(
        **scene | {"backgrounds": None}, packed=packed, render_mode="RGB+D", backend=backend, tile_size=8
    )
    expected[2] = torch.einsum("cij,chwj->chwi", scene["viewmats"][:, :3, :3], expected[2])
    del expected[3]
    hidden = [image.clone() for image in expected]
    for image in hidden:
        image[0, 8:16, :8] = 0.0
    for name, one, other in zip(["colors", "alphas", "normals", "distort", "median"], images, hidden, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12, msg=name)
    assert all(image.is_contiguous() for image in images)  # so that programs can call view
    keys = "camera_ids gaussian_ids radii depths opacities tile_width tile_height tiles_per_gauss isect_ids flatten_ids"
    keys += " means2d isect_offsets width height tile_size n_cameras render_distort gradient_2dgs"
    assert meta.keys() >= set(keys.split()) and "conics" not in meta
    assert torch.equal(meta["isect_offsets"], offsets) and torch.equal(meta["render_distort"], expected[3])
    assert torch.equal(transforms, meta["ray_transforms"]) and torch.equal(normals, meta["normals"])
    assert images[4].max() > 1.0


@pytest.mark.parametrize("render_mode", ["RGB", "D", "RGB+D", "RGB+ED"])
def test_images_are_contiguous_and_distortion_can_be_changed(render_mode):
    scene = make(3)
    scene["means"].requires_grad_()
    gradients = []
    for in_place in (False, True):
        colors, alphas, normals, _, distort, median, _ = tsplat.rasterization_2dgs(
            **scene | {"backgrounds": None}, render_mode=render_mode, backend="torch"
        )
        images = (colors, alphas, normals, distort, median)
        assert all(image.is_contiguous() for image in images)
        weighted = distort.mul_(3.0) if in_place else 3.0 * distort
        gradients.append(torch.autograd.grad(colors.sum() + weighted.sum(), scene["means"])[0])
    assert torch.equal(*gradients)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_disc_that_faces_the_camera_is_a_gaussian_on_the_image(backend):
    """Off the axis, too: the disc is parallel to the image plane."""
    mean, scales, focal = torch.tensor([[0.7, -0.4, 3.0]], dtype=torch.float64), (0.5, 0.2), 40.0
    Ks = torch.tensor([[[focal, 0, 32], [0, focal, 24], [0, 0, 1]]], dtype=torch.float64)
    colors, alphas, normals, _, distort, median, _ = tsplat.rasterization_2dgs(
        mean, torch.tensor([[1.0, 0, 0, 0]]), torch.tensor([[*scales, 7.0]], dtype=torch.float64),
        torch.tensor([0.7], dtype=torch.float64), torch.ones(1, 3), torch.eye(4)[None], Ks, 64, 48,
        render_mode="RGB+ED", backend=backend,
    )  # fmt: skip
    y, x = torch.meshgrid(torch.arange(48).double() + 0.5, torch.arange(64).double() + 0.5, indexing="ij")
    u, v = (x - 32) * 3 / focal - 0.7, (y - 24) * 3 / focal + 0.4
    expected = 0.7 * (-0.5 * ((u / scales[0]) ** 2 + (v / scales[1]) ** 2)).exp()
    inside = expected > 1 / 255
    assert inside.sum() > 300
    torch.testing.assert_close(alphas[0, ..., 0][inside], expected[inside], rtol=1e-10, atol=0)
    torch.testing.assert_close(colors[0, ..., 3][inside], torch.full_like(expected, 3.0)[inside])
    torch.testing.assert_close(normals[0][inside], expected[inside, None] * torch.tensor([0.0, 0, -1]).double())
    assert not distort.abs().max() > 1e-12 and torch.equal(median[0, ..., 0], 3.0 * (alphas[0, ..., 0] > 0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_distortion_of_two_discs_is_the_product_of_their_weights_and_distance(backend):
    n, focal = 2, 1000.0
    means = torch.tensor([[0.0, 0, 3], [0, 0, 5]], dtype=torch.float64)
    Ks = torch.tensor([[[focal, 0, 4], [0, focal, 4], [0, 0, 1]]], dtype=torch.float64)
    *_, distort, median, _ = tsplat.rasterization_2dgs(
        means, torch.tensor([[1.0, 0, 0, 0]] * n), torch.full((n, 3), 1e3).double(), torch.tensor([0.4, 0.5]).double(),
        torch.ones(n, 3), torch.eye(4)[None], Ks, 8, 8, backend=backend,
    )  # fmt: skip
    torch.testing.assert_close(distort, torch.full_like(distort, 2 * 0.4 * (0.6 * 0.5) * (5 - 3)), rtol=1e-6, atol=0)
    assert torch.equal(median, torch.full_like(median, 5.0))  # in front of it, 0.6 of the light is left


def test_fp32_projection_of_distant_discs_is_close_to_fp64():
    """Boxes do not suffer from the cancellation of squares of pixel coordinates."""
    scene = make(7, n=500, width=4000, height=3000, cameras=1, size=2.0)
    given = [scene[name] for name in ("means", "quats", "scales", "viewmats", "Ks")]
    exact = tsplat.fully_fused_projection_2dgs(*given, 4000, 3000)
    found = tsplat.fully_fused_projection_2dgs(*(t.float() for t in given), 4000, 3000)
    both = (exact[0] > 0).all(-1) & (found[0] > 0).all(-1)
    assert both.sum() > 200 and ((exact[0] - found[0])[both].abs() <= 1).all()
    assert (exact[0] == found[0])[both].double().mean() > 0.99
    assert (exact[1] - found[1])[both].abs().max() < 0.01


@pytest.mark.parametrize("backend", BACKENDS)
def test_fp32_is_close_to_fp64(backend):
    _assert_close_to_fp64(backend, dict(n=60, width=60, height=50))


@needs_emulator
@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda:80", "hip:gfx942"])
def test_fp32_on_a_gpu_is_close_to_fp64(target):
    """Walks of fp32 sum several blocks of pixels in the lanes of a warp."""
    with tsplat_emulated(target):
        _assert_close_to_fp64("triton", dict(n=20, width=20, height=17))


@needs_emulator
@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda:80", "hip:gfx942"])
def test_chunks_on_a_gpu_are_close_to_fp64(target, monkeypatch):
    for name in ("CHUNKS", "AMD_CHUNKS"):
        monkeypatch.setattr(tuning, name, {math.inf: 4})
    with tsplat_emulated(target):
        _assert_close_to_fp64("triton", dict(n=20, width=16, height=12))


def _assert_close_to_fp64(backend, structure):
    scene = make(1, cameras=1, **structure)
    exact = images_and_gradients(render_reference, scene, NAMES, render_mode="RGB+D")
    single = {name: t.float() if isinstance(t, torch.Tensor) else t for name, t in scene.items()}
    found = images_and_gradients(tsplat.rasterization_2dgs, single, NAMES, render_mode="RGB+D", backend=backend)
    results = zip([*IMAGES, *NAMES], [*found[0], *found[1]], [*exact[0], *exact[1]], strict=True)
    for name, one, other in results:
        if name == "surf_normals":
            continue
        error = (one.double() - other).abs() / other.abs().max()
        # Single pixels decide differently where alpha is within rounding of 1/255, and T of 1/2.
        assert error.flatten().sort().values[int(0.97 * (error.numel() - 1))] < 2e-4, name
        assert error.max() < 0.02 or name == "median", name


@pytest.mark.triton
@pytest.mark.parametrize("seed", slow_after(1, range(3)))
def test_parts_of_tiles_that_discs_reach_are_all_listed(seed, monkeypatch):
    """Discs that are tilted, close to the camera, thin and tiny: images are the same without the test of parts."""
    scene = make(seed, n=100, cameras=1, width=64, height=48, size=6.0, dtype=torch.float32)
    scene["means"][:30, 2] = 0.3
    scene["scales"][30:40, 0] *= 1e-3
    expected = tsplat.rasterization_2dgs(**scene, backend="torch")
    found = tsplat.rasterization_2dgs(**scene, backend="triton")
    error = (found[1] - expected[1]).abs()
    # 1/255 where the edge of a disc is within rounding of a pixel.
    assert (error > 1e-4).sum() <= 3 and error.max() < 0.005
    assert found[1].max() > 0.9


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values_are_finite(backend):
    scene = make(8, n=40, cameras=2)
    centers = -(scene["viewmats"][:, :3, :3].mT @ scene["viewmats"][:, :3, 3:])[..., 0]
    scene["means"][0], scene["means"][1:3], scene["means"][3, 2] = centers[0], 1e30, -5.0
    scene["scales"][4], scene["scales"][5, 0], scene["scales"][6], scene["scales"][7] = 0.0, 0.0, 1e-30, 1e6
    scene["scales"][8] *= -1
    scene["quats"][9] = torch.tensor([math.sqrt(0.5), 0, math.sqrt(0.5), 0])  # seen edge-on by the first camera
    scene["means"][9] = torch.tensor([0.0, 0, 4])
    scene["viewmats"][0] = torch.eye(4)
    scene["means"][10], scene["opacities"][11], scene["quats"][12] = torch.nan, torch.inf, 0.0
    found = images_and_gradients(tsplat.rasterization_2dgs, scene, NAMES, backend=backend, render_mode="RGB+ED")
    assert all(tensor.isfinite().all() for tensor in (*found[0], *found[1])) and found[0][1].max() > 0.1
    v_scales = found[1][2]
    assert not v_scales[4:6].any() and not v_scales[10:13].any() and not v_scales[..., 2].any()
    assert found[2]["n_invalid"] == 4 + 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_invalid_transforms_are_not_rendered(backend):
    """Those that the caller passes: NaN, infinity, a center in the plane of the camera, and a disc without area."""
    transforms = torch.tensor([[[8.0, 0, 16], [0, 8, 16], [0, 0, 4]]], dtype=torch.float64).repeat(5, 1, 1)
    transforms[0, 0, 0], transforms[1, 1, 1], transforms[2, 2, 2], transforms[3, :2, :2] = torch.nan, torch.inf, 0, 0
    transforms.requires_grad_()
    rows = torch.full((5, 2), 4.0).double(), transforms, torch.ones(5, 1).double(), torch.full((5,), 0.5).double()
    lists = 8, 8, 8, torch.zeros(1, 1, 1, dtype=torch.int32), torch.arange(5, dtype=torch.int32)
    images = tsplat.rasterize_to_pixels_2dgs(
        *rows, torch.zeros(5, 3), torch.zeros(5, 2), *lists, packed=True, backend=backend
    )
    expected = 0.5 * math.exp(-0.25 * 0.25)  # of one disc, at the pixels around its center
    assert abs(images[1].max() - expected) < 1e-12 and all(image.isfinite().all() for image in images)
    (v,) = torch.autograd.grad(images[0].sum(), transforms)
    assert v.isfinite().all() and not v[:4].any() and v[4].any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n", [0, 3])
def test_nothing_to_see(backend, n):
    scene = make(n=n)
    scene["means"][..., 2] = -4.0
    colors, alphas, normals, surf_normals, distort, median, meta = tsplat.rasterization_2dgs(
        **scene, backend=backend, render_mode="RGB+ED", distloss=True
    )
    backgrounds = scene["backgrounds"][:, None, None]
    assert torch.equal(colors[..., :3], backgrounds.expand_as(colors[..., :3])) and not colors[..., 3].any()
    assert not any(image.any() for image in (alphas, normals, surf_normals, distort, median))
    assert meta["gradient_2dgs"].shape == (2, n, 2)
    images = images_and_gradients(tsplat.rasterization_2dgs, scene, NAMES, backend=backend, packed=True)
    assert not any(v.any() for name, v in zip(NAMES, images[1]) if name != "backgrounds")


@pytest.mark.parametrize("backend", BACKENDS)
def test_modes_of_depth(backend):
    scene = make(9, cameras=1)
    *_, surf_normals, _, median, _ = tsplat.rasterization_2dgs(
        **scene, render_mode="RGB+ED", depth_mode="median", backend=backend
    )
    assert surf_normals.shape == (19, 21, 3)
    expected = tsplat.depth_to_normals(median, torch.linalg.inv(scene["viewmats"]), scene["Ks"])[0]
    torch.testing.assert_close(surf_normals, expected)
    both = tsplat.rasterization_2dgs(**scene, render_mode="RGB+ED", backend=backend)
    scene["backgrounds"] = torch.tensor([[9.0]], dtype=torch.float64)
    depth = tsplat.rasterization_2dgs(**scene, render_mode="D", backend=backend)
    assert depth[3] is None and depth[0].shape == (1, 19, 21, 1)
    alphas = both[1]
    torch.testing.assert_close(depth[0], both[0][..., 3:] * alphas.clamp_min(DEPTH_ALPHA_MIN) + (1 - alphas) * 9.0)
    torch.testing.assert_close(depth[4:6], both[4:6])


@pytest.mark.triton
def test_bands_and_sparse_gradients_give_the_same_bits():
    scene = make(10, n=30, cameras=1, width=40, height=60)
    run = images_and_gradients
    *expected, meta = run(tsplat.rasterization_2dgs, scene, NAMES, backend="triton", tile_size=4, packed=True)
    budget = meta["memory"]["peak_bytes"] // 3
    for options in (dict(memory_budget=budget), dict(sparse_grad=True)):
        *found, meta = run(
            tsplat.rasterization_2dgs, scene, NAMES, backend="triton", tile_size=4, packed=True, **options
        )
        assert meta["memory"]["bands"] > 1 or "sparse_grad" in options
        for name, one, other in zip(NAMES, found[1], expected[1]):
            assert one.is_sparse == ("sparse_grad" in options and name in ("means", "quats", "scales"))
            assert torch.equal(one.to_dense() if one.is_sparse else one, other), name
        for one, other in zip(found[0], expected[0]):
            assert one is other or torch.equal(one, other)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_capacity_changes_no_bit_and_raises_if_it_is_too_small(backend):
    scene, options = make(10, dtype=torch.float32), dict(backend=backend, render_mode="RGB+ED")
    expected = images_and_gradients(tsplat.rasterization_2dgs, scene, NAMES, **options)
    found = images_and_gradients(tsplat.rasterization_2dgs, scene, NAMES, capacity=1000, **options)
    for one, other in zip([*found[0], *found[1]], [*expected[0], *expected[1]], strict=True):
        assert (one is other is None) or torch.equal(one, other)
    with pytest.raises(tsplat.CapacityError, match="capacity: expected at most"):
        tsplat.rasterization_2dgs(**scene, capacity=1, **options)


@pytest.mark.slow
def test_the_reference_is_differentiable():
    """Weights, distortion and depths by autograd against finite differences."""
    scene = make(11, n=4, width=5, height=4, cameras=1)
    names = ["means", "quats", "scales", "opacities"]

    def run(*values):
        *images, _ = render_reference(**scene | dict(zip(names, values)), render_mode="RGB+D")
        return tuple(images[k] for k in (0, 1, 2, 4))

    assert torch.autograd.gradcheck(run, [scene[name].requires_grad_() for name in names], atol=1e-5)


def test_what_does_not_fit_is_refused():
    scene = make(cameras=1)
    with pytest.raises(tsplat.ArgumentError, match="render_mode: expected one with depth, as distloss is True"):
        tsplat.rasterization_2dgs(**scene, distloss=True)
    with pytest.raises(tsplat.ArgumentError, match="depth_mode: expected one of 'expected', 'median'"):
        tsplat.rasterization_2dgs(**scene, depth_mode="mean")
    with pytest.raises(tsplat.ArgumentError, match="backend: expected one of"):
        tsplat.rasterization_2dgs(**scene, backend="reference")
    with pytest.raises(tsplat.ArgumentError, match="sparse_grad: requires packed=True"):
        tsplat.rasterization_2dgs(**scene, sparse_grad=True)
    with pytest.raises(tsplat.ShapeError, match=r"backgrounds: expected .* as one channel is rendered"):
        tsplat.rasterization_2dgs(**scene, render_mode="D")
    given = [scene[name] for name in ("means", "quats", "scales", "viewmats", "Ks")]
    with pytest.raises(tsplat.ArgumentError, match="sparse_grad: requires packed=True"):
        tsplat.fully_fused_projection_2dgs(*given, 8, 8, sparse_grad=True)
    rows = torch.zeros(1, 3, 2), torch.zeros(1, 3, 3, 3), torch.zeros(1, 3, 4), torch.zeros(1, 3)
    lists = 8, 8, 8, torch.zeros(1, 1, 1, dtype=torch.int32), torch.zeros(0, dtype=torch.int32)
    with pytest.raises(tsplat.ShapeError, match=r"densify: expected .* as means2d"):
        tsplat.rasterize_to_pixels_2dgs(*rows, torch.zeros(1, 3, 3), torch.zeros(1, 3), *lists)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_strategy_densifies_by_the_gradient_of_projected_centers(backend):
    scene = make(12, n=30, cameras=1, dtype=torch.float32)
    params = {
        name: torch.nn.Parameter(scene[name] if name != "scales" else scene[name].log())
        for name in ("means", "quats", "scales")
    }
    params["opacities"] = torch.nn.Parameter(torch.logit(scene["opacities"].clamp(0.1, 0.9)))
    optimizers = {name: torch.optim.Adam([parameter], lr=1e-3) for name, parameter in params.items()}
    strategy = DefaultStrategy(
        key_for_gradient="gradient_2dgs", refine_start_iter=0, refine_every=1, reset_every=10, grow_grad2d=1e-3,
        pause_refine_after_reset=0,
    )  # fmt: skip
    state = strategy.initialize_state(scene_scale=1.0)
    given = {
        "means": params["means"], "quats": params["quats"], "scales": params["scales"].exp(),
        "opacities": params["opacities"].sigmoid(),
    }  # fmt: skip
    colors, *_, meta = tsplat.rasterization_2dgs(**scene | given, backend=backend)
    strategy.step_pre_backward(params, optimizers, state, 1, meta)
    colors.square().sum().backward()
    strategy.step_post_backward(params, optimizers, state, 1, meta)
    assert len(params["means"]) > 30


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda:80", "cuda:100", "hip:gfx942"])
def test_kernels_for_gpus_do_not_spill(target):
    if static_cost.kernels_are_interpreted():
        pytest.skip("kernels are interpreted in this process")
    n, size, vendor = 300, (64, 48), "nvidia" if target.startswith("cuda") else "amd"
    ones = torch.ones
    camera = CameraSettings(*size)
    projection = ProjectionSettings(camera, packed=True, surfels=True)
    gaussians = Gaussians3D(ones(1, n, 3), ones(1, n, 4), ones(1, n, 3), None, ones(1, n))
    cameras = Cameras(ones(1, 1, 4, 4), ones(1, 1, 3, 3))
    starts = torch.arange(n + 1, dtype=torch.int32)
    ids, image, pixel_ends = starts[:-1], ones(1, *size[::-1]), ones(1, *size[::-1], dtype=torch.int32)
    order = GaussianMajor(ids, starts, starts, ids, ids)
    offsets = torch.zeros(TileGrid.cover(1, *size, 16).n_tiles + 1, dtype=torch.int32)
    splats = Splats(ones(n, 2), ones(n, 9), ones(n), ones(n, 7), None)
    settings = CompositingSettings(camera, 16, 32, True, PRESETS["gsplat-1.5"], "triton", "surfel", OF_SURFELS)
    with recorded(vendor) as launches, pytest.MonkeyPatch.context() as patch:
        projected = kernels.projection_fwd(gaussians, cameras, projection)
        found = (projected.means2d, projected.depths, projected.shapes, None, projected.depths, projected.normals)
        v = ProjectedGradients(*found)
        needs = Cameras(True, False, False, False)
        kernels.projection_bwd(gaussians, cameras, projected.row_of, projected.radii, v, projection, needs)
        for cut in (part_lists.CUT, 0):
            patch.setattr(part_lists, "CUT", cut)
            intersections = Intersections(0, offsets, ones(n, dtype=torch.int32), order, ones(n, dtype=torch.int16))
            images = Images(ones(1, *size[::-1], 8), image, pixel_ends, pixel_ends)
            parts = kernels.composite_fwd(splats, None, None, intersections, images, settings)
            saved = SavedImages(image, pixel_ends, image)
            kernels.composite_bwd(splats, None, intersections, saved, images.colors, image, None, settings, parts)
    tested = {
        repr((call.kernel.__name__, call.signature, call.constants)): call
        for call in launches
        if any(name in call.kernel.__name__ for name in ("projection", "composite", "combine", "part_bits", "row_sum"))
    }
    assert len({call.kernel.__name__ for call in tested.values()}) == 7
    for call in tested.values():
        assert static_cost.cost("", call, target)["spill_bytes"] == 0, call.kernel.__name__
