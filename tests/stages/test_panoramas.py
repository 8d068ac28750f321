"""Equirectangular cameras: seams, poles, turns by whole pixels, rays, and what is not rendered."""

import math

import pytest
import torch

import tsplat
from tests.stages.test_unscented import images_and_gradients
from tests.support.backends import BACKENDS
from tests.support.closeness import assert_exact
from tests.support.lenses import make
from tests.support.slow import slow_after
from tsplat.config import CameraSettings
from tsplat.data import Cameras
from tsplat.reference import quaternion_to_rotation
from tsplat.stages.eval3d import camera_rays

WIDTH, HEIGHT = 44, 22
PANORAMA = dict(Ks=None, width=WIDTH, height=HEIGHT, camera_model="equirectangular", with_ut=True)
"""The width is no multiple of the size of a tile."""

FULL = torch.tensor(
    [[[WIDTH / (2 * math.pi), 0, WIDTH / 2], [0, HEIGHT / math.pi, HEIGHT / 2], [0, 0, 1]]], dtype=torch.float64
)


def around(seed, n=40, dtype=torch.float64):
    """A scene in all directions: on both poles, beside them, across the seam, and a Gaussian around the camera."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    means *= (0.5 + 4 * torch.rand(n, 1, generator=generator, dtype=torch.float64)) / means.norm(dim=-1, keepdim=True)
    means[:5] = torch.tensor([[0, 2, 0], [0, -2, 0], [0.02, -2, 0.03], [0.01, 0.2, -3], [0.3, 1.5, 0.3]])
    scales = (0.8 * torch.randn(n, 3, generator=generator, dtype=torch.float64) - 2.5).exp()
    scales[:2], scales[5] = 0.2, 1.5
    scene = dict(
        means=means, quats=torch.randn(n, 4, generator=generator, dtype=torch.float64), scales=scales,
        opacities=torch.rand(n, generator=generator, dtype=torch.float64),
        colors=torch.rand(n, 3, generator=generator, dtype=torch.float64),
    )  # fmt: skip
    return {name: tensor.to(dtype) for name, tensor in scene.items()}


def turned(pixels, dtype=torch.float64):
    """The pose of a camera that is turned to the left, so that its image moves to the right."""
    angle = torch.tensor(2 * math.pi * pixels / WIDTH, dtype=torch.float64)
    viewmat = torch.eye(4, dtype=torch.float64)
    viewmat[0, 0] = viewmat[2, 2] = angle.cos()
    viewmat[0, 2], viewmat[2, 0] = angle.sin(), -angle.sin()
    return viewmat[None].to(dtype)


def alone(mean, scale, **options):
    """Alphas [H, W] of one opaque Gaussian, and ``meta``."""
    given = dict(
        means=torch.tensor([mean], dtype=torch.float64), quats=torch.tensor([[1.0, 0, 0, 0]]),
        scales=torch.full((1, 3), scale, dtype=torch.float64), opacities=torch.ones(1), colors=torch.ones(1, 3),
        viewmats=turned(0), packed=False,
    )  # fmt: skip
    _, alphas, meta = tsplat.rasterization(**given | PANORAMA | options)
    return alphas[0, ..., 0], meta


@pytest.mark.parametrize("with_eval3d", slow_after(1, [True, False]))
@pytest.mark.parametrize("backend", BACKENDS)
def test_images_and_gradients_match_reference(backend, with_eval3d):
    """In fp64, gradients of poses and backgrounds, too. Partial panoramas are among the lenses of test_unscented.py."""
    scene = make("equirectangular", seed=1, cameras=2, backgrounds=True) | {"with_eval3d": with_eval3d}
    names = ["means", "quats", "scales", "opacities", "colors", "backgrounds", "viewmats"]
    *found, meta = images_and_gradients(scene, names, backend=backend)
    *expected, _ = images_and_gradients(scene, names, backend="reference", packed=False)
    assert (meta["radii"] > 0).all(-1).sum() > 10 and found[1].max() > 0.1
    for name, one, other in zip(["colors", "alphas", *names], found, expected):
        assert_exact(name, one, other)


@pytest.mark.parametrize("with_eval3d", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_turns_by_whole_pixels_roll_the_image(backend, with_eval3d):
    options = PANORAMA | dict(backend=backend, with_eval3d=with_eval3d, render_mode="RGB+ED")
    for dtype, bound in ((torch.float64, 1e-7), (torch.float32, 1e-5)):
        start, *others = (
            tsplat.rasterization(**around(1, dtype=dtype), viewmats=turned(pixels, dtype), **options)[0]
            for pixels in (0, 1, 15, 29)
        )  # fmt: skip
        for pixels, image in zip((1, 15, 29), others):
            torch.testing.assert_close(image, start.roll(pixels, 2), rtol=bound, atol=bound)


@pytest.mark.parametrize("backend", BACKENDS)
def test_conics_of_large_images_are_precise_in_fp32(backend):
    """Those of differences between pixels of sigma points are off by up to 2e-3."""
    width, height = 4096, 2048
    fx, fy = width / (2 * math.pi), height / math.pi
    K = torch.tensor([[[fx, 0, width / 2], [0, fy, height / 2], [0, 0, 1]]])
    scene = around(2, n=200, dtype=torch.float32)
    scene["scales"] = scene["scales"] / 30
    names = ("means", "quats", "scales", "opacities")

    def conics(dtype):
        given = {name: scene[name].to(dtype) for name in names} | dict(viewmats=turned(7).to(dtype), Ks=K.to(dtype))
        options = dict(width=width, height=height, eps2d=0.0, camera_model="equirectangular", backend=backend)
        return tsplat.fully_fused_projection_with_ut(**given, **options)[3][0].double()

    exact, found = conics(torch.float64), conics(torch.float32)
    sizes = exact.abs().amax(-1)
    assert (sizes > 0).sum() > 150
    assert ((found - exact).abs().amax(-1) <= 1e-4 * sizes).all()


@pytest.mark.parametrize("tile_size", [16, 4])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_panorama_is_that_of_its_rays(backend, tile_size):
    """Also that of every Gaussian at every pixel: lists of tiles miss nothing at the seam and at the poles."""
    scene = around(2) | {"viewmats": turned(5)}
    settings = CameraSettings(WIDTH, HEIGHT, "equirectangular")
    rays = camera_rays(Cameras(scene["viewmats"][None], FULL[None]), settings)
    y, x = torch.meshgrid(*(torch.arange(n).double() + 0.5 for n in (HEIGHT, WIDTH)), indexing="ij")
    longitude, latitude = 2 * math.pi * x / WIDTH - math.pi, math.pi * y / HEIGHT - math.pi / 2
    own = torch.stack([latitude.cos() * longitude.sin(), latitude.sin(), latitude.cos() * longitude.cos()], -1)
    expected = own @ scene["viewmats"][0, :3, :3]
    torch.testing.assert_close(rays.per_pixel[0].permute(1, 2, 0), expected, rtol=0, atol=1e-12)
    given = torch.cat([torch.zeros_like(expected), 3 * expected], -1)
    options = PANORAMA | dict(backend=backend, with_eval3d=True, tile_size=tile_size)
    image, alphas, _ = tsplat.rasterization(**scene, **options)
    by_rays, _, _ = tsplat.rasterization(**scene, **options, rays=given)
    torch.testing.assert_close(image, by_rays, rtol=0, atol=1e-12)
    torch.testing.assert_close(alphas[0, ..., 0], _along_rays(scene, expected), rtol=0, atol=5e-3)


def _along_rays(scene, directions):
    """Alphas at rays from 0, of all Gaussians that are highest in front. [H, W]"""
    rotation = quaternion_to_rotation(scene["quats"])
    whiten = (rotation / scene["scales"][:, None, :]).mT
    o = -(whiten @ scene["means"][..., None])[..., 0]
    u = torch.einsum("nij,hwj->hwni", whiten, directions)
    t = -(u * o).sum(-1) / u.square().sum(-1)
    alpha = scene["opacities"] * (-0.5 * (o + t[..., None] * u).square().sum(-1)).exp()
    alpha = torch.where((t > 0) & (alpha >= 1 / 255), alpha.clamp_max(0.999), 0.0)
    return 1 - (1 - alpha).prod(-1)


@pytest.mark.parametrize("with_eval3d", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gaussian_across_the_seam_is_on_both_sides(backend, with_eval3d):
    alphas, meta = alone([0.05, 0.0, -2.0], 0.3, backend=backend, with_eval3d=with_eval3d)
    across, _ = alone([-0.05, 0.0, 2.0], 0.3, backend=backend, with_eval3d=with_eval3d)
    torch.testing.assert_close(alphas, across.roll(WIDTH // 2, 1), rtol=0, atol=1e-9)
    middle = alphas[HEIGHT // 2]
    assert middle[0] > 0.7 and middle[-1] > 0.7 and not middle[WIDTH // 4 : -WIDTH // 4].any()
    assert 0 <= meta["means2d"][0, 0, 0] <= WIDTH


@pytest.mark.parametrize("with_eval3d", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gaussian_that_holds_a_pole_covers_its_rows(backend, with_eval3d):
    """And not the equator; also one beside the pole. Radii are at most half a turn."""
    for mean in ([0.0, -2.0, 0.0], [0.0, 2.0, 0.0], [0.01, -2.0, -0.02], [0.2, 2.0, 0.1], [1e-9, -2.0, 0.0]):
        alphas, meta = alone(mean, 0.3, backend=backend, with_eval3d=with_eval3d)
        near, far = (0, -1) if mean[1] < 0 else (-1, 0)
        assert alphas[near].min() > (0.45 if with_eval3d or abs(mean[0]) < 0.1 else 0.05), mean
        assert not alphas[far].any() and not alphas[HEIGHT // 2].any()
        assert meta["means2d"].isfinite().all() and 0 <= meta["means2d"][0, 0, 0] <= WIDTH
        assert meta["radii"][0, 0, 0] == WIDTH // 2 and 0 < meta["radii"][0, 0, 1] <= HEIGHT
    alphas, _ = alone([0.0, -2.0, 0.0], 0.3, backend=backend, with_eval3d=with_eval3d)
    assert (alphas - alphas[:, :1]).abs().max() < 1e-6  # the same in all directions


@pytest.mark.parametrize("backend", BACKENDS)
def test_cameras_inside_of_gaussians(backend):
    """A ray sees what is in front of its origin, and not the mirror image of what is behind."""
    alphas, meta = alone([0.0, 0.0, 0.5], 1.0, backend=backend, with_eval3d=True)
    middle = alphas[HEIGHT // 2]
    assert middle[WIDTH // 2] > 0.99 and middle[WIDTH // 4 + 1 : 3 * WIDTH // 4 - 1].min() > 0.8
    assert not middle[: WIDTH // 4 - 1].any()
    flat, _ = alone([0.0, 0.0, 0.5], 1.0, backend=backend)
    assert flat.isfinite().all() and flat[HEIGHT // 2, WIDTH // 2] > 0.99
    assert meta["depths"].item() == 0.5
    behind, meta = alone([0.0, 0.0, -0.5], 1.0, backend=backend, render_mode="D")
    assert behind.max() > 0.99 and meta["depths"].item() == 0.5


@pytest.mark.parametrize("backend", BACKENDS)
def test_directions_of_few_pixels_may_cancel(backend):
    """The mean ray of four columns is exactly 0: it bounds nothing, and every Gaussian may be seen."""
    for height in (4, 8, 16):
        scene = around(1, dtype=torch.float32) | {"viewmats": turned(0, torch.float32)}
        options = PANORAMA | dict(width=4, height=height, with_eval3d=True)
        found, expected = (tsplat.rasterization(**scene, **options, backend=name)[1] for name in (backend, "reference"))
        assert expected.max() > 0.2
        torch.testing.assert_close(found, expected, rtol=0, atol=5e-3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gaussians_are_ordered_and_culled_by_distance(backend):
    scene = dict(
        means=torch.tensor([[0.0, 0, -1], [0, 0, -2]]).double(), quats=torch.tensor([[1.0, 0, 0, 0]]).repeat(2, 1),
        scales=torch.full((2, 3), 0.3), opacities=torch.full((2,), 0.9), colors=torch.eye(3)[:2],
        viewmats=torch.eye(4)[None],
    )  # fmt: skip
    image, _, meta = tsplat.rasterization(**scene, **PANORAMA, backend=backend, packed=False)
    pixel = image[0, HEIGHT // 2, 0]
    assert pixel[0] > 0.7 and 0 < pixel[1] < 0.2
    assert meta["depths"][0].tolist() == [1, 2]
    _, _, meta = tsplat.rasterization(**scene, **PANORAMA, backend=backend, packed=False, near_plane=1.5)
    assert (meta["radii"][0] > 0).all(-1).tolist() == [False, True]


@pytest.mark.parametrize("modes", [("D", "d"), ("RGB+ED", "RGB-Ed")])
@pytest.mark.parametrize("backend", BACKENDS)
def test_depths_along_rays_are_distances(backend, modes):
    scene = around(3) | {"viewmats": turned(0)}
    found, expected = (
        tsplat.rasterization(**scene, **PANORAMA, backend=backend, with_eval3d=True, render_mode=mode)[0]
        for mode in modes
    )  # fmt: skip
    assert torch.equal(found, expected) and found.std() > 0.1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_full_panorama_needs_no_intrinsics(backend):
    scene = around(4) | {"viewmats": turned(3).repeat(2, 1, 1)}
    found, expected = (
        tsplat.rasterization(**scene, **PANORAMA | {"Ks": Ks}, backend=backend)[0]
        for Ks in (None, FULL.repeat(2, 1, 1))
    )  # fmt: skip
    assert torch.equal(found, expected)
    with pytest.raises(tsplat.ArgumentError, match="Ks: expected a tensor"):
        tsplat.rasterization(**scene, **PANORAMA | {"camera_model": "fisheye"})


@pytest.mark.parametrize("backend", BACKENDS)
def test_single_stages_of_a_full_panorama_need_no_intrinsics(backend):
    scene = around(4) | {"viewmats": turned(3)}
    geometry = [scene[name] for name in ("means", "quats", "scales")]
    options = dict(camera_model="equirectangular", backend=backend)
    found, expected = (
        tsplat.fully_fused_projection_with_ut(
            *geometry, scene["opacities"], scene["viewmats"], Ks, WIDTH, HEIGHT, **options
        )
        for Ks in (None, FULL)
    )  # fmt: skip
    assert all(torch.equal(one, other) for one, other in zip(found[:4], expected[:4])) and (found[0] > 0).any()
    n, across, down = len(scene["means"]), -(-WIDTH // 16), -(-HEIGHT // 16)
    every = torch.arange(across * down, dtype=torch.int32).view(1, down, across) * n
    lists = every, torch.arange(n, dtype=torch.int32).repeat(across * down)
    rows = scene["colors"][None], scene["opacities"][None], scene["viewmats"]
    found, expected = (
        tsplat.rasterize_to_pixels_eval3d(*geometry, *rows, Ks, WIDTH, HEIGHT, 16, *lists, **options)
        for Ks in (None, FULL)
    )  # fmt: skip
    assert all(torch.equal(one, other) for one, other in zip(found, expected)) and found[1].max() > 0.5
    with pytest.raises(tsplat.ArgumentError, match="Ks: expected a tensor"):
        tsplat.rasterize_to_pixels_eval3d(
            *geometry, *rows, None, WIDTH, HEIGHT, 16, *lists, **options | {"camera_model": "fisheye"}
        )


def test_parts_of_a_panorama_are_cut_out_of_it():
    """Principal points may be anywhere, and turns away."""
    scene = around(5) | {"viewmats": turned(0)}
    whole = tsplat.rasterization(**scene, **PANORAMA, with_eval3d=True)[0]
    part = FULL.clone()
    part[0, 0, 2] += 14 - 2 * WIDTH
    part[0, 1, 2] -= 5
    size = dict(width=20, height=12)
    found, _, meta = tsplat.rasterization(**scene, **PANORAMA | size | {"Ks": part}, with_eval3d=True)
    expected = whole.roll(14, 2)[:, 5:17, :20]
    # Gaussians whose sigma points are beyond the margin are left out.
    off = (found - expected).abs().amax(-1) > 1e-6
    assert off.double().mean() < 0.5 and (found.std() > 0.1)
    assert (meta["means2d"][:, 0] >= 10 - WIDTH / 2).all() and (meta["means2d"][:, 0] < 10 + WIDTH / 2).all()


@pytest.mark.triton
def test_capacities_bands_and_layouts_give_the_same_bits():
    scene = around(6) | {"viewmats": turned(0)}
    expected, _, meta = tsplat.rasterization(**scene, **PANORAMA, backend="triton", tile_size=8)
    budget = 2 * meta["memory"]["peak_bytes"] // 3
    for options in (dict(capacity=4000), dict(memory_budget=budget), dict(packed=False), dict(segmented=True)):
        for _ in range(3):  # traced, and replayed if it can be
            found, _, meta = tsplat.rasterization(**scene, **PANORAMA, backend="triton", tile_size=8, **options)
            assert torch.equal(found, expected), options
        assert (meta["memory"]["bands"] > 1) == ("memory_budget" in options)
    assert meta["conics"].shape[-1] == 3 and meta["radii"].max() <= WIDTH


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(with_ut=False), "it requires the unscented transform: with_ut=True"),
        (dict(with_ut=False, with_eval3d=True), "it requires the unscented transform: with_ut=True"),
        (dict(render_mode="d"), "'d' requires with_eval3d=True"),
        (
            dict(radial_coeffs=torch.zeros(1, 4)),
            "radial_coeffs: expected None for equirectangular cameras; use camera_model 'fisheye' or 'pinhole'",
        ),
        (
            dict(tangential_coeffs=torch.zeros(1, 2)),
            "tangential_coeffs: expected None for equirectangular cameras; use camera_model 'pinhole'",
        ),
        (dict(ftheta_coeffs=object()), "ftheta_coeffs: expected None for equirectangular .* use camera_model 'ftheta'"),
        (
            dict(external_distortion_coeffs=tsplat.BivariateWindshieldModelParameters()),
            "external_distortion_coeffs: expected None for equirectangular cameras",
        ),
        (dict(width=0), "width: expected a positive int, found 0"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises((tsplat.ArgumentError, tsplat.UnsupportedError), match=message):
        tsplat.rasterization(**around(0) | {"viewmats": turned(0)} | PANORAMA | options)
