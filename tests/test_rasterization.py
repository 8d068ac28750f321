"""rasterization(): images and gradients against the reference on both backends, signature, meta, layouts and dtypes."""

import inspect

import pytest
import torch
from hypothesis import given, settings

import tsplat
from tests.support import scenes
from tests.support.backends import BACKENDS
from tests.support.closeness import assert_exact, assert_run_exact, run, run_reference

REQUIRED = ["means", "quats", "scales", "opacities", "colors", "viewmats", "Ks", "width", "height"]
GSPLAT_DEFAULTS = dict(
    near_plane=0.01, far_plane=1e10, radius_clip=0.0, eps2d=0.3, sh_degree=None, packed=True, tile_size=16,
    backgrounds=None, render_mode="RGB", sparse_grad=False, absgrad=False, rasterize_mode="classic", channel_chunk=32,
    distributed=False, camera_model="pinhole", segmented=False, covars=None, with_ut=False, with_eval3d=False,
    radial_coeffs=None, tangential_coeffs=None, thin_prism_coeffs=None, ftheta_coeffs=None,
    rolling_shutter=tsplat.RollingShutterType.GLOBAL, viewmats_rs=None,
)  # fmt: skip
EXAMPLES = {"triton": 40, "torch": 80}
STRUCTURE = scenes.Structure(n=12, cameras=2, width=20, height=18, sh_degree=2, seed=7)


def test_signature_is_gsplats_with_additional_keywords():
    parameters = inspect.signature(tsplat.rasterization).parameters
    positional = {name: p for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD}
    assert list(positional) == REQUIRED + list(GSPLAT_DEFAULTS)
    assert {name: p.default for name, p in positional.items() if name not in REQUIRED} == GSPLAT_DEFAULTS
    assert all(positional[name].default is inspect.Parameter.empty for name in REQUIRED)
    assert list(parameters)[len(positional) :] == [
        "backend", "numerics", "validate", "memory_budget", "capacity", "group", "extra_signals",
        "extra_signals_sh_degree", "ut_params", "rays", "return_normals", "global_z_order", "lidar_coeffs",
        "external_distortion_coeffs", "renderer_config", "shN",
    ]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
def test_random_scenes_match_reference(backend):
    """Images and all gradients of a loss on color, depth and alpha, for random structures, modes and layouts."""
    small = dict(max_pixels=14, max_n=10) if backend == "triton" else dict(max_pixels=40, max_n=40)

    @settings(max_examples=EXAMPLES[backend])
    @given(scenes.structures(**small), scenes.modes(), scenes.layouts())
    def check(structure, mode, layout):
        assert_run_exact(scenes.make(structure), seed=structure.seed, backend=backend, **mode, **layout)

    check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_batches_of_cameras_match_reference(backend):
    structure = scenes.Structure(n=7, cameras=2, batch=(2,), sh_degree=2, per_camera_colors=True, width=12, height=10)
    assert_run_exact(scenes.make(structure), backend=backend, render_mode="RGB+ED", rasterize_mode="antialiased")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("camera_model", ["ortho", "fisheye"])
@pytest.mark.parametrize("render_mode", ["RGB", "D", "ED", "RGB+D", "RGB+ED"])
def test_camera_models_match_reference_in_every_mode(backend, camera_model, render_mode):
    """Depths are negative for half of the Gaussians."""
    structure = scenes.Structure(n=10, cameras=2, width=13, height=11, camera_model=camera_model, seed=3)
    options = dict(near_plane=-10.0, render_mode=render_mode, rasterize_mode="antialiased", packed=False)
    assert_run_exact(scenes.make(structure), backend=backend, **options)


@pytest.mark.parametrize("backend", BACKENDS)
def test_negative_depths_are_composited_in_order_of_value(backend):
    n = 5
    depths = torch.tensor([3.0, -1.0, 0.0, -4.0, 1.0])
    means = torch.cat([torch.zeros(n, 2), depths[:, None]], 1)
    colors, _, meta = tsplat.rasterization(
        means, torch.tensor([[1.0, 0, 0, 0]]).repeat(n, 1), torch.full((n, 3), 0.1), torch.full((n,), 0.5),
        torch.eye(n), torch.eye(4)[None], torch.tensor([[[40.0, 0, 4.5], [0, 40, 4.5], [0, 0, 1]]]), 9, 9,
        near_plane=-5.0, render_mode="RGB+ED", camera_model="ortho", backend=backend,
    )  # fmt: skip
    order = depths.argsort()
    weights = 0.5 ** torch.arange(1, n + 1)
    torch.testing.assert_close(colors[0, 4, 4, :n][order], weights)
    torch.testing.assert_close(colors[0, 4, 4, n], (weights * depths[order]).sum() / weights.sum())
    assert meta["flatten_ids"].tolist() == order.tolist()
    # Ids hold the bits of depths, and offsets can be found from them.
    bits = (meta["isect_ids"] & 0xFFFFFFFF).to(torch.int32).view(torch.float32)
    assert torch.equal(bits, depths[order])
    assert tsplat.isect_offset_encode(meta["isect_ids"], 1, 1, 1).tolist() == [[[0]]]
    assert (meta["isect_ids"] >> 32 == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("empty", [dict(cameras=0), dict(batch=(0,)), dict(n=0)], ids=str)
@pytest.mark.parametrize("channels", [3, 17])
def test_empty_inputs_match_reference(backend, empty, packed, channels):
    structure = scenes.Structure(**dict(n=5, sh_degree=1 if channels == 3 else None, channels=channels) | empty)
    assert_run_exact(scenes.make(structure), backend=backend, packed=packed, render_mode="RGB+ED")


@pytest.mark.parametrize("n", [0, 12])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("size", [(1, 1), (33, 1), (1, 33), (40, 16)])
def test_small_images_match_reference(n, packed, size):
    structure = scenes.Structure(n=n, cameras=2, width=size[0], height=size[1], seed=2)
    scene = scenes.make(structure)
    found, _ = run(scene, packed=packed, render_mode="RGB+ED")
    truth, _ = run_reference(scene, render_mode="RGB+ED")
    for name in truth:
        assert_exact(name, found[name], truth[name])


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_of_gaussians_around_the_block_size(backend, monkeypatch):
    """N in {0, 1, block - 1, block, block + 1, 2 block + 1} for every kernel with one lane per Gaussian."""
    if backend == "triton":
        from tsplat.kernels import intersection, projection
        from tsplat.kernels import spherical_harmonics as sh

        for module in (intersection, projection, sh):
            monkeypatch.setattr(module, "BLOCK", 8)
    for n in (0, 1, 7, 8, 9, 17):
        for sh_degree in (None, 1):
            structure = scenes.Structure(n=n, sh_degree=sh_degree, width=9, height=7, size=2.0, seed=n)
            assert_run_exact(scenes.make(structure), backend=backend, packed=n % 2 == 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_layout_does_not_change_results(backend):
    """Few scenes by kernels: test_properties.py compares packed and unpacked calls, and tile sizes."""

    @settings(max_examples=6 if backend == "triton" else 20)
    @given(scenes.structures(max_n=8, max_pixels=18), scenes.modes(), scenes.layouts(), scenes.layouts())
    def check(structure, mode, first, second):
        scene = scenes.make(structure)
        a, _ = run(scene, **mode, **first, backend=backend)
        b, _ = run(scene, **mode, **second, backend=backend)
        for name in a:
            assert_exact(name, a[name], b[name])

    check()


def test_torch_backend_matches_reference_backend():
    scene = scenes.make(scenes.Structure(n=10, seed=8))
    for mode in ("RGB", "RGB+ED"):
        a, _ = run(scene, backend="reference", render_mode=mode)
        b, _ = run(scene, backend="torch", render_mode=mode)
        for name in a:
            assert_exact(name, b[name], a[name])


def test_batch_matches_separate_calls():
    structure = scenes.Structure(n=10, cameras=2, batch=(3,), sh_degree=1, seed=3)
    scene = scenes.make(structure)
    whole, _ = run(scene, render_mode="RGB+D")
    for b in range(3):
        single = {name: value[b] if isinstance(value, torch.Tensor) else value for name, value in scene.items()}
        colors, alphas, _ = tsplat.rasterization(**single, render_mode="RGB+D")
        assert_exact("colors", colors, whole["colors"][b])
        assert_exact("alphas", alphas, whole["alphas"][b])


def test_equal_depths_are_composited_in_order_of_index():
    scene = scenes.make(STRUCTURE)
    scene["viewmats"] = torch.eye(4, dtype=torch.float64).repeat(2, 1, 1)
    scene["means"][:, 2] = 3.0
    found, _ = run(scene)
    truth, _ = run_reference(scene)
    for name in truth:
        assert_exact(name, found[name], truth[name])


def test_nothing_visible_gives_background_and_zero_gradients():
    scene = scenes.make(STRUCTURE)
    scene["means"] = scene["means"] - torch.tensor([0.0, 0.0, 100.0])
    found, meta = run(scene)
    assert torch.equal(found["colors"], scene["backgrounds"][:, None, None].expand_as(found["colors"]))
    assert not found["alphas"].any()
    assert meta["flatten_ids"].numel() == 0
    for name in ("means", "quats", "scales", "opacities", "colors", "viewmats"):
        assert found[f"v_{name}"].shape == scene[name].shape
        assert not found[f"v_{name}"].any()


@pytest.mark.slow
def test_8k_image_matches_crop():
    scene = scenes.make(scenes.Structure(n=30, cameras=1, width=7680, height=4320, size=20.0, seed=1), torch.float32)
    with torch.no_grad():
        colors, alphas, _ = tsplat.rasterization(**scene)
        # The same Gaussians, rendered into a crop of the image.
        crop = scene | dict(width=64, height=48, Ks=scene["Ks"].clone())
        at = (alphas[0, ..., 0] > 0.5).nonzero()[0]
        left, top = int(at[1]) // 16 * 16, int(at[0]) // 16 * 16
        crop["Ks"][..., 0, 2] -= left
        crop["Ks"][..., 1, 2] -= top
        cropped, _, _ = tsplat.rasterization(**crop)
    torch.testing.assert_close(colors[:, top : top + 48, left : left + 64], cropped, rtol=1e-3, atol=1e-3)


def test_1000_cameras_match_single_camera():
    scene = scenes.make(scenes.Structure(n=5, cameras=1000, width=8, height=8, seed=1), torch.float32)
    found, _ = run(scene)
    one, _ = run({k: t[777:778] if k in ("viewmats", "Ks", "backgrounds") else t for k, t in scene.items()})
    assert torch.equal(found["colors"][777:778], one["colors"])


def test_public_stages_match_rasterization():
    """The stages as called by code written for gsplat: tiles of rectangles, not ellipses."""
    scene = scenes.make(scenes.Structure(n=20, cameras=2, seed=4, backgrounds=True), torch.float64)
    expected, alphas, meta = tsplat.rasterization(**scene, packed=False, tile_size=8)
    size = (scene["width"], scene["height"])
    radii, means2d, depths, conics, compensations = tsplat.fully_fused_projection(
        scene["means"], None, scene["quats"], scene["scales"], scene["viewmats"], scene["Ks"], *size,
        opacities=scene["opacities"],
    )  # fmt: skip
    assert compensations is None
    assert torch.equal(radii, meta["radii"])
    tiles, ids, flatten_ids = tsplat.isect_tiles(means2d, radii, depths, 8, 3, 3)
    offsets = tsplat.isect_offset_encode(ids, 2, 3, 3)
    assert int(tiles.sum()) == ids.numel() >= meta["flatten_ids"].numel()
    assert (ids.diff() >= 0).all()
    colors = scene["colors"].expand(2, -1, -1)
    opacities = scene["opacities"].expand(2, -1)
    rendered, rendered_alphas = tsplat.rasterize_to_pixels(
        means2d, conics, colors, opacities, *size, 8, offsets, flatten_ids, backgrounds=scene["backgrounds"]
    )
    assert_exact("colors", rendered, expected)
    assert_exact("alphas", rendered_alphas, alphas)
    exact = tsplat.isect_tiles(means2d, radii, depths, 8, 3, 3, conics=conics, opacities=meta["opacities"])
    for found, expected in zip(exact, (meta["tiles_per_gauss"], meta["isect_ids"], meta["flatten_ids"])):
        assert torch.equal(found, expected)


def test_inria_preset_culls_depths_below_0_2():
    scene = scenes.make(scenes.Structure(n=2, cameras=1, width=16, height=16), torch.float64)
    scene |= {"viewmats": torch.eye(4, dtype=torch.float64)[None], "opacities": torch.ones(2, dtype=torch.float64)}
    scene["means"] = torch.tensor([[0.0, 0.0, 0.15], [0.0, 0.0, 0.25]], dtype=torch.float64)
    for numerics, visible in (("gsplat-1.5", [True, True]), ("inria", [False, True])):
        _, _, meta = tsplat.rasterization(**scene, packed=False, numerics=numerics)
        assert (meta["radii"] > 0).all(-1)[0].tolist() == visible
        radii, *_ = tsplat.fully_fused_projection(
            scene["means"], None, *(scene[k] for k in ("quats", "scales", "viewmats", "Ks", "width", "height")),
            numerics=numerics,
        )  # fmt: skip
        assert (radii > 0).all(-1)[0].tolist() == visible


def test_meta_packed():
    scene = scenes.make(scenes.Structure(n=15, cameras=3, batch=(2,), seed=4), torch.float32)
    colors, alphas, meta = tsplat.rasterization(**scene, tile_size=8)
    n, c = 15, 3
    assert colors.shape == (2, c, 19, 21, 3)
    assert alphas.shape == (2, c, 19, 21, 1)
    nnz = meta["gaussian_ids"].numel()
    assert 0 < nnz < 2 * c * n
    for name in ("batch_ids", "camera_ids", "gaussian_ids"):
        assert meta[name].dtype == torch.int64
        assert meta[name].shape == (nnz,)
    for name, shape in dict(radii=(nnz, 2), means2d=(nnz, 2), depths=(nnz,), conics=(nnz, 3), opacities=(nnz,)).items():
        assert meta[name].shape == shape
    flat = (meta["batch_ids"] * c + meta["camera_ids"]) * n + meta["gaussian_ids"]
    assert (flat.diff() > 0).all()
    assert meta["radii"].dtype == torch.int32
    assert (meta["radii"] > 0).all()
    assert (meta["tile_width"], meta["tile_height"], meta["tile_size"]) == (3, 3, 8)
    assert (meta["width"], meta["height"], meta["n_batches"], meta["n_cameras"]) == (21, 19, 2, 3)
    assert meta["isect_offsets"].shape == (2, c, 3, 3)
    assert meta["tiles_per_gauss"].shape == (nnz,)
    assert int(meta["tiles_per_gauss"].sum()) == meta["flatten_ids"].numel() == meta["isect_ids"].numel()
    assert meta["flatten_ids"].dtype == torch.int32


def test_meta_unpacked_matches_packed():
    scene = scenes.make(scenes.Structure(n=15, cameras=3, batch=(2,), seed=4), torch.float32)
    _, _, packed = tsplat.rasterization(**scene)
    _, _, dense = tsplat.rasterization(**scene, packed=False)
    assert dense["batch_ids"] is dense["camera_ids"] is dense["gaussian_ids"] is None
    visible = (dense["radii"] > 0).all(-1)
    assert visible.shape == (2, 3, 15)
    for name in ("radii", "means2d", "depths", "conics", "opacities", "tiles_per_gauss"):
        assert torch.equal(dense[name][visible], packed[name]), name
        assert not dense[name][~visible].any(), name
    assert torch.equal(dense["isect_offsets"], packed["isect_offsets"])
    assert torch.equal(dense["isect_ids"], packed["isect_ids"])
    rows = visible.flatten().nonzero().squeeze(1)
    assert torch.equal(dense["flatten_ids"].long(), rows[packed["flatten_ids"].long()])


def test_means2d_has_gradient_and_absgrad():
    for packed in (True, False):
        scene = scenes.leaves(scenes.make(scenes.Structure(n=10, seed=2)))
        colors, _, meta = tsplat.rasterization(**scene, packed=packed, absgrad=True)
        meta["means2d"].retain_grad()
        colors.square().sum().backward()
        gradient, absolute = meta["means2d"].grad, meta["means2d"].absgrad
        assert gradient.shape == absolute.shape == meta["means2d"].shape
        assert gradient.any()
        assert (absolute >= gradient.abs() - 1e-12).all()
