"""Evaluation in 3D: every lens and shutter against the reference, rays of the caller, and closed forms."""

import itertools
import math
import os
import random

import pytest
import torch

import tsplat
from emulator.package import tsplat_emulated
from tests.emulator.targets import needs_emulator
from tests.kernels.compositing.test_part_lists import UNCUT
from tests.stages.test_unscented import images_and_gradients
from tests.support.backends import BACKENDS
from tests.support.closeness import assert_exact
from tests.support.lenses import CASES, PARAMETERS, make
from tests.support.slow import slow_after
from tsplat import config
from tsplat.config import PRESETS, CameraSettings, Unscented, UnscentedTransformParameters
from tsplat.data import Cameras, ProjectionSettings
from tsplat.stages.eval3d import camera_rays
from tsplat.stages.lens_models import LensArguments, add_lens

pytest.importorskip("triton")

SCENES = int(os.environ.get("TSPLAT_EVAL3D_SCENES", "8"))
NAMES = ["means", "quats", "scales", "opacities", "colors", "backgrounds"]


@pytest.mark.parametrize("seed", slow_after(1, [0, 1]))
@pytest.mark.parametrize(("kind", "readout"), PARAMETERS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_images_and_gradients_match_reference(backend, kind, readout, seed):
    scene = make(kind, readout, seed, batch=(2,) if seed else (), sh_degree=2 if seed else None) | {"with_eval3d": True}
    names = NAMES + ["viewmats"] * (readout == "GLOBAL")
    options = dict(rasterize_mode="antialiased" if seed else "classic", numerics=("gsplat-1.5", "gsplat-1.6")[seed])
    *found, meta = images_and_gradients(scene, names, backend=backend, packed=seed == 0, **options)
    *expected, _ = images_and_gradients(scene, names, backend="reference", packed=False, **options)
    assert (meta["radii"] > 0).all(-1).sum() > 3 and found[1].max() > 0.1
    for name, one, other in zip(["colors", "alphas", *names], found, expected):
        assert_exact(name, one, other)


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
def test_random_scenes_match_reference(backend):
    """`TSPLAT_EVAL3D_SCENES=500` tries more."""
    for seed in range(SCENES):
        r = random.Random(seed)
        kind, readout = r.choice(CASES)
        degree = r.choice([None, 0, 1, 3])
        scene = make(
            kind, readout, seed, n=r.choice([1, 5, 20, 60]), width=r.randint(4, 40),
            height=r.randint(4, 40), cameras=r.choice([1, 2, 3]), batch=r.choice([(), (), (2,), (1, 2)]),
            sh_degree=degree, channels=r.choice([1, 3, 4, 17]) if degree is None else 3, size=r.choice([1.0, 3.0]),
            backgrounds=r.random() < 0.5,
        )  # fmt: skip
        names = [name for name in NAMES if scene[name] is not None] + ["viewmats"] * (readout == "GLOBAL")
        options = dict(
            with_eval3d=True, rasterize_mode=r.choice(["classic", "antialiased"]), tile_size=r.choice([4, 8, 16]),
            numerics=r.choice(["gsplat-1.5", "gsplat-1.6", "inria"]), render_mode=r.choice(["RGB", "RGB+D", "RGB+ED"]),
        )  # fmt: skip
        *found, _ = images_and_gradients(scene, names, backend=backend, packed=r.random() < 0.5, **options)
        *expected, _ = images_and_gradients(scene, names, backend="reference", packed=False, **options)
        for name, one, other in zip(["colors", "alphas", *names], found, expected):
            assert_exact(f"{seed}: {name}", one, other)


def own_rays(scene):
    """The rays of a scene's cameras, [C, H, W, 6], with directions of any length."""
    cameras = Cameras(scene["viewmats"][None], scene["Ks"][None])
    rays = camera_rays(cameras, CameraSettings(scene["width"], scene["height"]))
    values = torch.cat([rays.origins[:, :, None, None].expand_as(rays.per_pixel), rays.per_pixel], 1).permute(
        0, 2, 3, 1
    )
    return values * torch.tensor([1.0, 1, 1, 3, 3, 3], dtype=torch.float64)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rays_of_the_caller_are_those_of_the_cameras(backend):
    scene = make("pinhole", seed=1) | {"with_eval3d": True, "backend": backend}
    found, expected = (
        tsplat.rasterization(**scene, **options)[0] for options in ({"rays": own_rays(scene)}, {})
    )  # fmt: skip
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
def test_directions_of_any_length_and_invalid_rays(backend):
    """Distances do not depend on lengths in fp32; pixels whose rays are invalid show no Gaussian."""
    scene = make("pinhole", seed=1, cameras=1, dtype=torch.float32)
    scene |= dict(with_eval3d=True, render_mode="RGB-d", backgrounds=None, backend=backend)
    rays = own_rays({n: t.double() if isinstance(t, torch.Tensor) else t for n, t in scene.items()}).float()
    expected, expected_alphas, _ = tsplat.rasterization(**scene, rays=rays)
    lengths = torch.logspace(-17, 11, rays.shape[-2])[:, None]
    changed = torch.cat([rays[..., :3], lengths * rays[..., 3:]], -1)
    invalid = torch.arange(rays.shape[-2]) % 3 == 0
    values = torch.tensor([torch.nan, torch.inf, 3e38, -2e12])
    changed[0, ::2, ::3, 4] = values[torch.arange(int(invalid.sum())) % 4]
    changed[0, 1::2, ::3, 3:] = 1e-19
    leaves = [scene[name].requires_grad_() for name in ("means", "quats", "scales", "opacities")]
    changed.requires_grad_()
    found, alphas, _ = tsplat.rasterization(**scene, rays=changed)
    assert not alphas[0, :, invalid].any() and expected_alphas[0, :, invalid].any()
    torch.testing.assert_close(found[0, :, ~invalid], expected[0, :, ~invalid], rtol=1e-4, atol=1e-4)
    gradients = torch.autograd.grad(found.sum(), [*leaves, changed])
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert gradients[0].any() and not gradients[-1][0, :, invalid].any()


@pytest.mark.parametrize("batch", [(), (2,)])
def test_rays_may_be_listed_pixel_by_pixel(batch):
    scene = make("pinhole", seed=1, batch=batch) | {"with_eval3d": True}
    n_cameras = scene["viewmats"].shape[-3]
    rays = torch.rand(
        n_cameras, scene["height"], scene["width"], 6, generator=torch.Generator().manual_seed(0)
    ).double()
    rays[..., 5] += 2
    expected = tsplat.rasterization(**scene, rays=rays)[0]
    for flat in (rays.flatten(1, 2), rays.flatten(1, 2).expand(*batch, -1, -1, -1), rays[None, None]):
        assert torch.equal(tsplat.rasterization(**scene, rays=flat)[0], expected)
    one = tsplat.rasterization(**scene, rays=rays[0])[0]
    assert torch.equal(tsplat.rasterization(**scene, rays=rays[0].flatten(0, 1))[0], one)


def test_options_of_gsplat_without_effect_change_nothing():
    """Means on the image plane have no gradient, and there is one kernel."""
    scene = make("pinhole", seed=1) | {"with_eval3d": True}
    expected, _, _ = tsplat.rasterization(**scene)
    for options in (
        dict(absgrad=True),
        dict(renderer_config=config.RendererConfig_MixedBatch()),
        dict(renderer_config=config.RendererConfig_ParallelBatch()),
    ):
        leaves = {name: scene[name].clone().requires_grad_() for name in ("means", "scales")}
        image, _, meta = tsplat.rasterization(**scene | leaves | options)
        assert torch.equal(image, expected)
        image.sum().backward()
        assert not hasattr(meta["means2d"], "absgrad") and leaves["means"].grad.any()
    without = scene | {"with_eval3d": False, "with_ut": False}
    image = tsplat.rasterization(**without, renderer_config=config.RendererConfig_MixedBatch())[0]
    assert torch.equal(image, tsplat.rasterization(**without)[0])


@pytest.mark.parametrize("chunk", [UNCUT, 2])
@pytest.mark.parametrize("channels", slow_after(1, [3, 17]))
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_rays_match_reference(backend, channels, chunk, cut_lists):
    """In lists that are cut into chunks, too. Pixels without a ray show the background."""
    counts = cut_lists(chunk)
    scene = make("pinhole", seed=1, n=30) | {"with_eval3d": True}
    generator = torch.Generator().manual_seed(0)
    rays = own_rays(scene)
    rays = rays + 0.01 * torch.randn(rays.shape, generator=generator, dtype=torch.float64)
    rays[:, 3, 4:7, 3:], rays[:, 5, 5, 1], rays[:, 6, 6, 4] = 0.0, torch.nan, torch.inf
    n, images = len(scene["means"]), len(rays)
    scene |= dict(
        rays=rays, sh_degree=None, colors=torch.rand(n, channels, generator=generator, dtype=torch.float64),
        backgrounds=torch.rand(images, channels, generator=generator, dtype=torch.float64),
    )  # fmt: skip
    *found, _ = images_and_gradients(scene, [*NAMES, "rays"], backend=backend)
    assert any(counts) == (chunk != UNCUT and backend == "triton")
    scene["rays"] = torch.where(rays.isfinite().all(-1, keepdim=True), rays, 0.0)
    *expected, _ = images_and_gradients(scene, [*NAMES, "rays"], backend="reference", packed=False)
    for name, one, other in zip(["colors", "alphas", *NAMES, "rays"], found, expected):
        assert_exact(name, one, other)
    missing = scene["rays"][..., 3:].abs().sum(-1) == 0
    assert missing.sum() == 5 * images
    assert not found[1][missing].any() and not found[-1][missing].any()
    backgrounds = scene["backgrounds"][:, None, None].expand_as(found[0])
    assert torch.equal(found[0][missing], backgrounds[missing])


def rays_of(scene):
    """The rays of a scene's cameras, with their lenses and shutters."""
    settings = CameraSettings(
        scene["width"], scene["height"], scene["camera_model"], readout=scene["rolling_shutter"].name
    )  # fmt: skip
    unscented = Unscented.of(UnscentedTransformParameters(), PRESETS["gsplat-1.5"])
    cameras = add_lens(
        Cameras(scene["viewmats"], scene["Ks"]), LensArguments(*(scene.get(name) for name in LensArguments._fields)),
        ProjectionSettings(settings, unscented=unscented), torch.Size(), len(scene["Ks"]),
    )  # fmt: skip
    return camera_rays(Cameras(*(None if t is None else t[None] for t in cameras)), settings)


@pytest.mark.parametrize(("kind", "readout"), PARAMETERS)
def test_rays_go_to_what_their_pixels_show(kind, readout):
    """A tiny Gaussian on the ray of a pixel's center is projected to that center."""
    scene = make(kind, readout)
    rays = rays_of(scene)
    y, x = 8, 12
    ray = rays.per_pixel[:, :, y, x]
    origin, direction = (rays.origins, ray) if rays.origins is not None else (ray[:, :3], ray[:, 3:])
    assert direction.norm(dim=-1).sub(1).abs().max() < 1e-12
    names = ("viewmats", "Ks", "width", "height", "camera_model", *LensArguments._fields)
    given = {name: scene[name] for name in names if name in scene}
    n = len(origin)
    radii, means2d, *_ = tsplat.fully_fused_projection_with_ut(
        origin + 4 * direction, torch.tensor([[1.0, 0, 0, 0]]).expand(n, 4), torch.full((n, 3), 1e-7), None, **given,
        rolling_shutter=readout,
    )  # fmt: skip
    own = torch.arange(n)
    assert (radii[own, own] > 0).all()
    expected = torch.tensor([x + 0.5, y + 0.5], dtype=torch.float64).expand(n, 2)
    torch.testing.assert_close(means2d[own, own], expected, rtol=0, atol=1e-6)


def test_pixels_that_a_lens_does_not_show_have_no_ray():
    """Barrel distortion ends at a radial factor of 0.8, before it folds back."""
    k1, focal = -0.35, 20.0
    Ks = torch.tensor([[[focal, 0, 20], [0, focal, 16], [0, 0, 1]]], dtype=torch.float64)
    lens = torch.zeros(1, 12, dtype=torch.float64)
    lens[0, 0] = k1
    rays = camera_rays(Cameras(torch.eye(4)[None, None].double(), Ks[None], lens[None]), CameraSettings(40, 32))
    y, x = torch.meshgrid(torch.arange(32).double() + 0.5, torch.arange(40).double() + 0.5, indexing="ij")
    reach = math.sqrt(0.2 / -k1)  # 1 + k1 r^2 = 0.8
    shown = torch.hypot((x - 20) / focal, (y - 16) / focal) < 0.8 * reach
    assert torch.equal((rays.per_pixel[0] != 0).any(0), shown)
    assert 0.3 < shown.double().mean() < 0.9


@pytest.mark.triton
def test_small_gaussians_in_3d_are_their_projection():
    """The difference is proportional to the size, if the focal length grows as the Gaussian shrinks."""
    mean = torch.tensor([[0.8, -0.5, 4.0]], dtype=torch.float64)
    errors = []
    for size in (0.4, 0.2, 0.1, 0.05):
        focal = 30 / size
        Ks = torch.tensor(
            [[focal, 0, 24 - 0.2 * focal], [0, focal, 24 + 0.125 * focal], [0, 0, 1]], dtype=torch.float64
        )
        given = dict(
            means=mean, quats=torch.tensor([[0.8, 0.1, -0.4, 0.3]]), scales=size * torch.tensor([[1.0, 0.3, 0.6]]),
            opacities=torch.tensor([0.9]), colors=torch.ones(1, 3), viewmats=torch.eye(4)[None], Ks=Ks[None],
            width=48, height=48, eps2d=0.0,
        )  # fmt: skip
        flat, solid = (tsplat.rasterization(**given, with_eval3d=with_eval3d)[1] for with_eval3d in (False, True))
        errors.append((solid - flat).abs().max())
    assert all(1.5 < large / small < 2.8 for large, small in itertools.pairwise(errors))
    assert errors[-1] < 0.01


@pytest.mark.triton
def test_a_sphere_in_3d_is_a_disc_of_its_distance():
    """Alpha of a pixel follows from the distance of the mean from its ray, off the axis too."""
    mean, scale, focal = torch.tensor([[1.5, -0.5, 3.0]], dtype=torch.float64), 0.3, 40.0
    Ks = torch.tensor([[[focal, 0, 32], [0, focal, 24], [0, 0, 1]]], dtype=torch.float64)
    alphas = tsplat.rasterization(
        mean, torch.tensor([[1.0, 0, 0, 0]]), torch.full((1, 3), scale, dtype=torch.float64),
        torch.tensor([0.7], dtype=torch.float64), torch.ones(1, 3),
        torch.eye(4)[None], Ks, 64, 48, with_eval3d=True,
    )[1][0, ..., 0]  # fmt: skip
    y, x = torch.meshgrid(torch.arange(48).double() + 0.5, torch.arange(64).double() + 0.5, indexing="ij")
    rays = torch.stack([(x - 32) / focal, (y - 24) / focal, torch.ones_like(x)], -1)
    distance = torch.linalg.cross(rays, mean.expand_as(rays)).norm(dim=-1) / rays.norm(dim=-1)
    expected = 0.7 * (-0.5 * (distance / scale) ** 2).exp()
    inside = expected > 1 / 255
    assert inside.sum() > 100
    torch.testing.assert_close(alphas[inside], expected[inside], rtol=1e-12, atol=0)
    assert not alphas[expected < 1 / 255 - 1e-9].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_fp32_is_close_to_fp64(backend):
    _assert_close_to_fp64(backend, 60, dict(width=60, height=50))


@needs_emulator
@pytest.mark.long
@pytest.mark.parametrize("target", ["cuda:80", "hip:gfx942"])
def test_fp32_on_a_gpu_is_close_to_fp64(target):
    """Walks of fp32 sum several blocks of pixels in the lanes of a warp."""
    with tsplat_emulated(target):
        _assert_close_to_fp64("triton", 20, dict(width=20, height=17))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_flat_gaussians_in_fp32_are_close_to_fp64(backend):
    _assert_close_to_fp64(backend, 20, dict(width=20, height=17), flat=1e-3)


def _assert_close_to_fp64(backend, n, size, flat=1.0):
    results = []
    for dtype, chosen in ((torch.float32, backend), (torch.float64, "reference")):
        scene = make("pinhole", dtype=dtype, n=n, **size) | {"with_eval3d": True, "packed": chosen != "reference"}
        scene["scales"] = scene["scales"] * torch.tensor([1, 1, flat], dtype=dtype)
        scene["rays"] = own_rays(make("pinhole", n=n, **size)).to(dtype)
        *found, _ = images_and_gradients(scene, [*NAMES, "rays"], backend=chosen)
        results.append(found)
    for name, one, other in zip(["colors", "alphas", *NAMES, "rays"], *results):
        error = (one.double() - other).abs() / other.abs().max()
        # Single pixels decide differently where alpha is within rounding of 1/255.
        assert error.flatten().sort().values[int(0.97 * (error.numel() - 1))] < 1e-4, name
        assert error.max() < 0.02, name


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values_are_finite(backend):
    scene = make("pinhole", n=40, sh_degree=None) | {"with_eval3d": True}
    centers = -(scene["viewmats"][:, :3, :3].mT @ scene["viewmats"][:, :3, 3:])[..., 0]
    scene["means"][0], scene["means"][1:3], scene["means"][3, 2] = centers[0], 1e30, -5.0
    scene["scales"][4], scene["scales"][5, 0], scene["scales"][6], scene["scales"][7] = 0.0, 0.0, 1e-30, 1e6
    scene["scales"][8] *= -1
    *found, _ = images_and_gradients(scene, [*NAMES, "viewmats"], backend=backend)
    assert all(tensor.isfinite().all() for tensor in found) and found[1].max() > 0.1
    assert not found[4][4:7].any()  # no gradients of scales: Gaussians without volume are not rendered


@pytest.mark.triton
@pytest.mark.parametrize("options", [dict(capacity=2000), dict(capacity="auto"), dict(memory_budget=True), dict(n=2)])
def test_capacities_bands_and_sparse_gradients_give_the_same_bits(options):
    scene = make("distorted pinhole", n=30, width=40, height=60) | {"with_eval3d": True, "packed": "n" in options}
    names = [*NAMES, "viewmats"]
    *expected, meta = images_and_gradients(scene, names, backend="triton", tile_size=8)
    if "memory_budget" in options:
        options = {"memory_budget": meta["memory"]["peak_bytes"] // 3}
    elif "n" in options:
        options = {"sparse_grad": True}
    *found, meta = images_and_gradients(scene, names, backend="triton", tile_size=8, **options)
    assert meta["memory"]["bands"] > 1 or "memory_budget" not in options
    for name, one, other in zip(["colors", "alphas", *names], found, expected):
        one = one.to_dense() if one.is_sparse else one
        assert torch.equal(one, other), name


@pytest.mark.long
@pytest.mark.triton
@pytest.mark.xdist_group("dynamo")
@pytest.mark.filterwarnings("ignore")  # of torch._dynamo about itself
def test_graphs_of_torch_compile_give_the_same_bits():
    scene = make("distorted pinhole", "GLOBAL", dtype=torch.float32) | dict(
        with_eval3d=True, packed=False, return_normals=True, render_mode="RGB-d"
    )
    leaves = {name: scene[name].requires_grad_() for name in [*NAMES, "viewmats"]}

    def loss(leaves):
        colors, alphas, meta = tsplat.rasterization(**scene | leaves, capacity=2000, backend="triton")
        return colors.square().sum() + alphas.sum() + meta["normals"].square().sum()

    run = torch.compile(loss, fullgraph=True, backend="aot_eager")
    expected, found = (torch.autograd.grad(function(leaves), [*leaves.values()]) for function in (loss, run))
    assert all(torch.equal(one, other) for one, other in zip(found, expected)) and found[0].any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("readout", ["ROLLING_TOP_TO_BOTTOM", "ROLLING_LEFT_TO_RIGHT"])
def test_calls_without_cameras_return_no_images(backend, readout):
    of_cameras = ("viewmats", "viewmats_rs", "Ks", "backgrounds", "radial_coeffs", "tangential_coeffs")
    scene = make("distorted pinhole", readout, dtype=torch.float32, n=6)
    scene = {name: value[:0] if name in of_cameras else value for name, value in scene.items()}
    scene["means"].requires_grad_()
    colors, alphas, _ = tsplat.rasterization(**scene | dict(with_eval3d=True, thin_prism_coeffs=None), backend=backend)
    assert colors.shape == (0, scene["height"], scene["width"], 3)
    (colors.sum() + alphas.sum()).backward()
    assert not scene["means"].grad.any()


def test_what_does_not_fit_is_refused():
    scene = make("pinhole")
    scene["with_ut"] = False
    with pytest.raises(tsplat.ArgumentError, match="rays: requires with_eval3d=True"):
        tsplat.rasterization(**scene, rays=torch.zeros(6))
    with pytest.raises(tsplat.ArgumentError, match=r"rays: expected a shape that broadcasts to .*, found \[7, 6\]"):
        tsplat.rasterization(**scene, with_eval3d=True, rays=torch.zeros(7, 6))
    covars = torch.eye(3).expand(len(scene["means"]), 3, 3)
    with pytest.raises(tsplat.ArgumentError, match="covars: expected None, as with_eval3d is True"):
        tsplat.rasterization(**scene | {"covars": covars}, with_eval3d=True)
