"""Distances along rays, normals of 3D Gaussians, and depth as a distance: the reference, closed forms, and errors."""

import itertools
import os
import random

import pytest
import torch

import tsplat
from emulator.package import tsplat_emulated
from tests.emulator.targets import needs_emulator
from tests.kernels.compositing.test_part_lists import UNCUT
from tests.stages.test_eval3d import own_rays
from tests.support import scenes
from tests.support.backends import BACKENDS
from tests.support.closeness import assert_exact
from tests.support.lenses import CASES, PARAMETERS, make
from tests.support.slow import slow_after

pytest.importorskip("triton")

SCENES = int(os.environ.get("TSPLAT_EVAL3D_SCENES", "2"))
NAMES = ("means", "quats", "scales", "opacities", "colors", "backgrounds", "viewmats", "rays")
HITS = ("d", "Ed", "RGB-d", "RGB-Ed")


def images_and_gradients(scene, **options):
    """Images and gradients by name, of all tensors that images depend on and that may have one."""
    call = scene | options
    if "RGB" not in call["render_mode"]:
        call |= dict(colors=None, sh_degree=None, backgrounds=None)
    rolls = str(getattr(call["rolling_shutter"], "name", call["rolling_shutter"])) != "GLOBAL"
    names = [name for name in NAMES if call.get(name) is not None and not (name == "viewmats" and rolls)]
    leaves = {name: call[name].clone().requires_grad_() for name in names}
    colors, alphas, meta = tsplat.rasterization(**call | leaves)
    images = {"render_colors": colors, "render_alphas": alphas}
    if call.get("return_normals"):
        images["normals"] = meta["normals"]
    outputs = tuple(images.values())
    gradients = torch.autograd.grad(outputs, [*leaves.values()], scenes.random_like(outputs, 0), allow_unused=True)
    return images | dict(zip(names, gradients))


def assert_matches_reference(scene, label="", **options):
    found = images_and_gradients(scene, **options)
    expected = images_and_gradients(scene | {"packed": False}, **options | {"backend": "reference"})
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert_exact(f"{label} {name}", value, expected[name])
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kind", "readout"), PARAMETERS)
def test_images_and_gradients_match_reference(backend, kind, readout):
    case = CASES.index((kind, readout))
    scene = make(kind, readout, seed=case) | dict(
        with_eval3d=True, render_mode=HITS[case % 2 + 2 * (case > 0)], return_normals=case > 0,
        global_z_order=case % 5 > 0, numerics=("gsplat-1.5", "gsplat-1.6")[case % 2],
    )  # fmt: skip
    found = assert_matches_reference(scene, backend=backend)
    assert found["render_alphas"].max() > 0.1 and found["quats"].abs().max() > 1e-3
    assert found["render_colors"][..., -1].max() > 0.1


@pytest.mark.long
@pytest.mark.parametrize("mode", [*HITS, "normals", "global_z_order"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_random_scenes_match_reference(backend, mode):
    """`TSPLAT_EVAL3D_SCENES=500` tries more."""
    for seed in range(SCENES):
        r = random.Random(f"{mode} {seed}")
        kind, readout = r.choice(CASES)
        scene = make(
            kind, readout, seed, n=r.choice([1, 5, 20, 60]), width=r.randint(4, 40),
            height=r.randint(4, 40), cameras=r.choice([1, 2, 3]), batch=r.choice([(), (), (2,), (1, 2)]),
            channels=r.choice([1, 3, 9, 17]), size=r.choice([1.0, 3.0]), backgrounds=r.random() < 0.5,
        )  # fmt: skip
        scene |= dict(
            rasterize_mode=r.choice(["classic", "antialiased"]), tile_size=r.choice([4, 8, 16]), with_eval3d=True,
            packed=r.random() < 0.5, return_normals=mode == "normals" or r.random() < 0.3,
            render_mode=mode if mode in HITS else r.choice(["RGB", "RGB+D", "D", "RGB-d"]),
            numerics=r.choice(["gsplat-1.5", "gsplat-1.6"]), global_z_order=mode != "global_z_order",
        )  # fmt: skip
        assert_matches_reference(scene, f"{mode} {seed}:", backend=backend)


@pytest.mark.parametrize("chunk", [UNCUT, 2])
@pytest.mark.parametrize("channels", slow_after(1, [3, 9, 20]))
@pytest.mark.parametrize("backend", BACKENDS)
def test_many_channels_and_chunks_match_reference(backend, channels, chunk, cut_lists):
    """In one pass over lists, in two, and apart from colors by matrix products; in lists that are cut, too."""
    counts = cut_lists(chunk)
    scene = make("pinhole", seed=1, n=30, channels=channels) | dict(with_eval3d=True, return_normals=True)
    scene["rays"] = own_rays(scene)
    scene["rays"][:, 3, 4:7, 3:] = 0.0
    found = assert_matches_reference(scene, backend=backend, render_mode="RGB-d")
    assert any(counts) == (chunk != UNCUT and backend == "triton")
    missing = scene["rays"][..., 3:].abs().sum(-1) == 0
    assert not found["normals"][missing].any() and not found["rays"][missing].any()


@pytest.mark.parametrize("channel_chunk", slow_after(1, [2, 1, 5]))
@pytest.mark.parametrize("backend", BACKENDS)
def test_passes_over_channels_do_not_change_the_image(backend, channel_chunk):
    scene = make("pinhole", n=20, channels=7) | dict(
        with_eval3d=True, return_normals=True, render_mode="RGB-d", backend=backend
    )
    found, expected = (images_and_gradients(scene | options) for options in (dict(channel_chunk=channel_chunk), {}))
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_those_of_finite_differences(backend):
    """Nothing of the reference: gradcheck of random sums of distances and normals, for what they depend on."""
    scene = make("pinhole", n=3, width=4, height=3, cameras=1, size=1.5) | dict(
        with_eval3d=True, return_normals=True, render_mode="RGB-d", backend=backend, tile_size=8
    )
    scene["rays"] = own_rays(scene)
    scene["opacities"] = torch.tensor([0.5, 0.7, 0.6], dtype=torch.float64)
    scene["scales"] = scene["scales"].clamp_min(0.3) * 3  # alpha is above its threshold at all pixels
    names = ("means", "quats", "scales", "opacities", "rays")
    weights = torch.randn(4, 3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def images(*leaves):
        colors, alphas, meta = tsplat.rasterization(**scene | dict(zip(names, leaves)))
        return torch.cat([colors[..., -1:], meta["normals"], alphas], -1)

    def render(*leaves):
        return (images(*leaves) * weights).sum((1, 2, 3))

    leaves = [scene[name].clone().requires_grad_() for name in names]
    assert images(*leaves)[..., -1].min() > 0.05
    assert torch.autograd.gradcheck(render, leaves, eps=1e-6, atol=1e-5, rtol=1e-4)


def _single(scale, quat=(1.0, 0, 0, 0), mean=(0.5, -0.2, 3.0), **options):
    """Images of a Gaussian, and the unit directions of the rays of pixels, [48, 64, 3]."""
    focal, double = 40.0, dict(dtype=torch.float64)
    Ks = torch.tensor([[[focal, 0, 32], [0, focal, 24], [0, 0, 1]]], **double)
    colors, alphas, meta = tsplat.rasterization(
        torch.tensor([mean], **double), torch.tensor([quat], **double), torch.tensor([scale], **double),
        torch.tensor([0.7], **double), torch.ones(1, 3), torch.eye(4)[None], Ks, 64, 48, with_eval3d=True, **options,
    )  # fmt: skip
    y, x = torch.meshgrid(torch.arange(48).double() + 0.5, torch.arange(64).double() + 0.5, indexing="ij")
    rays = torch.stack([(x - 32) / focal, (y - 24) / focal, torch.ones_like(x)], -1)
    return colors[0], alphas[0], meta, torch.nn.functional.normalize(rays, dim=-1)


@pytest.mark.triton
def test_a_sphere_is_hit_where_the_ray_is_nearest_to_its_center():
    colors, alphas, _, rays = _single((0.3, 0.3, 0.3), render_mode="RGB-Ed")
    shown = alphas[..., 0] > 0
    expected = rays @ torch.tensor([0.5, -0.2, 3.0], dtype=torch.float64)
    assert shown.sum() > 100
    torch.testing.assert_close(colors[..., 3][shown], expected[shown], rtol=1e-12, atol=0)
    accumulated = _single((0.3, 0.3, 0.3), render_mode="d")[0]
    torch.testing.assert_close(accumulated, alphas * expected[..., None], rtol=1e-12, atol=1e-15)
    assert not accumulated[~shown].any()


@pytest.mark.triton
def test_a_flat_gaussian_is_hit_in_its_plane_and_has_its_normal():
    """Thin enough, it is a surface: o + t d lies on it, and its normal is the axis that it is thin along."""
    axis = torch.tensor([0.6, 0.0, -0.8], dtype=torch.float64)
    turn = (0.3162277660168379, 0.0, 0.9486832980505138, 0.0)  # about y, z to (0.6, 0, -0.8)
    mean = torch.tensor([0.5, -0.2, 3.0], dtype=torch.float64)
    colors, alphas, meta, rays = _single((0.3, 0.4, 1e-5), turn, render_mode="RGB-Ed", return_normals=True)
    shown = alphas[..., 0] > 0
    distance = (mean @ axis) / (rays @ axis)
    assert shown.sum() > 100
    torch.testing.assert_close(colors[..., 3][shown], distance[shown], rtol=1e-6, atol=0)
    torch.testing.assert_close(meta["normals"][0], alphas * axis, rtol=1e-12, atol=1e-15)  # towards the camera
    away = _single((0.3, 0.4, 1e-5), (-turn[2], 0.0, turn[0], 0.0), return_normals=True)[2]["normals"]
    torch.testing.assert_close(away, meta["normals"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
def test_depth_is_a_distance_without_global_z_order(backend):
    """Order, depth and the planes of f-theta cameras are those of distances; other cameras cull by z."""
    means = torch.tensor([[2.0, 0, 2.0], [0.0, 0, 2.5]], dtype=torch.float64)
    given = dict(
        means=means, quats=torch.tensor([[1.0, 0, 0, 0]] * 2), scales=torch.full((2, 3), 2.0), Ks=torch.tensor(
            [[[8.0, 0, 8], [0, 8, 8], [0, 0, 1]]]
        ),
        opacities=torch.full((2,), 0.9), colors=torch.tensor([[1.0, 0], [0, 1]]), viewmats=torch.eye(4)[None],
        width=16, height=16, with_ut=True, packed=False, backend=backend,
        ut_params=tsplat.UnscentedTransformParameters(in_image_margin_factor=5.0),
    )  # fmt: skip
    for global_z_order, depths in ((True, means[:, 2]), (False, means.norm(dim=-1))):
        image, _, meta = tsplat.rasterization(**given, global_z_order=global_z_order)
        torch.testing.assert_close(meta["depths"][0], depths)
        in_front = image[0, 8, 12].argmax()
        assert in_front == depths.argmin()
    _, _, meta = tsplat.rasterization(**given, global_z_order=False, far_plane=2.6)
    assert (meta["radii"] > 0).all()  # of pinhole cameras, by z


@pytest.mark.parametrize(("kind", "readout"), [CASES[0], CASES[3]])
@pytest.mark.parametrize("backend", BACKENDS)
def test_depth_is_differentiable_without_global_z_order(backend, kind, readout):
    scene = make(kind, readout, seed=2)
    found = assert_matches_reference(scene, backend=backend, render_mode="RGB+D", global_z_order=False)
    assert found["render_colors"][..., -1].max() > 0.1


def test_planes_of_ftheta_cameras_cull_by_distance_without_global_z_order():
    scene = make("ftheta", n=40)
    options = {name: scene[name] for name in ("viewmats", "Ks", "width", "height", "camera_model", "ftheta_coeffs")}
    for backend in ("torch", "triton"):
        given = dict(
            **options, means=scene["means"], quats=scene["quats"], scales=scene["scales"] * 0.1, opacities=None
        )
        given["backend"] = backend
        radii, _, distances, _, _ = tsplat.fully_fused_projection_with_ut(**given, global_z_order=False)
        z = tsplat.fully_fused_projection_with_ut(**given)[2]
        middle = distances[distances > 0].median().item()
        culled = tsplat.fully_fused_projection_with_ut(**given, global_z_order=False, far_plane=middle)[0]
        assert torch.equal((culled > 0).all(-1), (radii > 0).all(-1) & (distances <= middle))
        assert ((z < middle) & (distances > middle)).any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_stage_is_that_of_rasterization(backend):
    """`rasterize_to_pixels_eval3d` replaces the last color, which then has no gradient, over any background."""
    scene = make("pinhole", seed=1, n=30) | dict(with_eval3d=True, return_normals=True, render_mode="RGB-d")
    scene |= dict(backend=backend, packed=False, backgrounds=None)
    expected, expected_alphas, meta = tsplat.rasterization(**scene)
    images, n = len(scene["Ks"]), len(scene["means"])
    colors = torch.cat([scene["colors"], torch.full((n, 1), 7.0, dtype=torch.float64)], -1).requires_grad_()
    backgrounds = torch.rand(images, 4, dtype=torch.float64, requires_grad=True)
    names = ("means", "quats", "scales", "viewmats", "Ks")

    def rasterize(colors, backgrounds):
        return tsplat.rasterize_to_pixels_eval3d(
            **{name: scene[name] for name in names}, colors=colors.expand(images, n, -1), backgrounds=backgrounds,
            opacities=meta["opacities"], image_width=scene["width"], image_height=scene["height"], tile_size=16,
            isect_offsets=meta["isect_offsets"], flatten_ids=meta["flatten_ids"], backend=backend,
            use_hit_distance=True, return_normals=True,
        )  # fmt: skip

    found, alphas, normals = rasterize(colors, backgrounds)
    torch.testing.assert_close(alphas, expected_alphas)
    torch.testing.assert_close(normals, meta["normals"])
    torch.testing.assert_close(found, expected + (1 - alphas) * backgrounds[:, None, None])
    v_colors, v_backgrounds = torch.autograd.grad(found, (colors, backgrounds), torch.ones_like(found))
    assert v_colors[:, :3].any() and not v_colors[:, 3].any()
    torch.testing.assert_close(v_backgrounds, (1 - alphas).sum((1, 2)).expand(images, 4))
    only, _, _ = rasterize(colors[:, 3:], backgrounds[:, 3:])
    torch.testing.assert_close(only, found[..., 3:])


@pytest.mark.parametrize("backend", BACKENDS)
def test_fp32_is_close_to_fp64(backend):
    _assert_close_to_fp64(backend, 0, 60, dict(width=60, height=50))


@needs_emulator
@pytest.mark.long
@pytest.mark.parametrize("target", ["cuda:80", "hip:gfx942"])
def test_fp32_on_a_gpu_is_close_to_fp64(target):
    """Walks of fp32 sum several blocks of pixels in the lanes of a warp. `TSPLAT_EVAL3D_EMULATED=100` tries more."""
    with tsplat_emulated(target):
        for seed in range(int(os.environ.get("TSPLAT_EVAL3D_EMULATED", "1"))):
            _assert_close_to_fp64("triton", seed, 20, dict(width=20, height=17))


def _assert_close_to_fp64(backend, seed, n, size):
    results = []
    for dtype, chosen in ((torch.float32, backend), (torch.float64, "reference")):
        scene = make("pinhole", seed=seed, dtype=dtype, n=n, **size) | dict(
            with_eval3d=True, return_normals=True, render_mode=HITS[2 + seed % 2], packed=chosen != "reference"
        )
        scene["rays"] = own_rays(make("pinhole", seed=seed, n=n, **size)).to(dtype)
        results.append(images_and_gradients(scene, backend=chosen))
    for name, one in results[0].items():
        other = results[1][name]
        if one is None or other is None:  # viewmats of rays that were given
            continue
        error = (one.double() - other).abs() / other.abs().max()
        # Single pixels decide differently where alpha is within rounding of 1/255.
        assert error.flatten().sort().values[int(0.97 * (error.numel() - 1))] < 1e-4, (seed, name)
        assert error.max() < 0.05, (seed, name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values_are_finite(backend):
    scene = make("pinhole", n=40) | dict(with_eval3d=True, return_normals=True)
    centers = -(scene["viewmats"][:, :3, :3].mT @ scene["viewmats"][:, :3, 3:])[..., 0]
    scene["means"][0], scene["means"][1:3], scene["means"][3, 2] = centers[0], 1e30, -5.0
    scene["scales"][4], scene["scales"][5, 0], scene["scales"][6], scene["scales"][7] = 0.0, 0.0, 1e-30, 1e6
    scene["scales"][8] *= -1
    scene["means"][9], scene["quats"][10], scene["opacities"][11] = torch.nan, 0.0, torch.inf
    for dtype, mode in itertools.product((torch.float64, torch.float32), ("RGB-d", "RGB-Ed")):
        cast = {k: v.to(dtype) if isinstance(v, torch.Tensor) else v for k, v in scene.items()}
        found = images_and_gradients(cast, backend=backend, render_mode=mode)
        assert all(tensor.isfinite().all() for tensor in found.values()) and found["render_alphas"].max() > 0.1
        assert not found["scales"][4:7].any() and not found["quats"][4:7].any()  # without volume: not rendered


def test_what_does_not_fit_is_refused():
    scene = make("pinhole")
    for mode in HITS:
        with pytest.raises(tsplat.ArgumentError, match=f"render_mode: '{mode}' requires with_eval3d=True"):
            tsplat.rasterization(**scene, render_mode=mode)
    with pytest.raises(tsplat.ArgumentError, match="return_normals: True requires with_eval3d=True"):
        tsplat.rasterization(**scene, return_normals=True)
    with pytest.raises(tsplat.ArgumentError, match="global_z_order: False requires with_ut=True"):
        tsplat.rasterization(**scene | {"with_ut": False, "global_z_order": False})
    with pytest.raises(tsplat.ArgumentError, match="render_mode: 'RGB-d' requires with_eval3d=True"):
        tsplat.rasterization_2dgs(
            *(scene[name] for name in ("means", "quats", "scales", "opacities", "colors", "viewmats", "Ks")), 20, 20,
            render_mode="RGB-d",
        )  # fmt: skip
