"""The public call on the host path: signature, meta, layouts, and what flows where."""

import inspect
import subprocess
import sys

import torch

import tsplat
from tests.support import scenes
from tests.support.closeness import assert_exact, run

REQUIRED = ["means", "quats", "scales", "opacities", "colors", "viewmats", "Ks", "width", "height"]
GSPLAT_DEFAULTS = dict(
    near_plane=0.01, far_plane=1e10, radius_clip=0.0, eps2d=0.3, sh_degree=None, packed=True, tile_size=16,
    backgrounds=None, render_mode="RGB", sparse_grad=False, absgrad=False, rasterize_mode="classic", channel_chunk=32,
    distributed=False, camera_model="pinhole", segmented=False, covars=None, with_ut=False, with_eval3d=False,
    radial_coeffs=None, tangential_coeffs=None, thin_prism_coeffs=None, ftheta_coeffs=None,
    rolling_shutter=tsplat.RollingShutterType.GLOBAL, viewmats_rs=None,
)  # fmt: skip


def test_signature_is_gsplats_and_then_keywords():
    parameters = inspect.signature(tsplat.rasterization).parameters
    positional = {name: p for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD}
    assert list(positional) == REQUIRED + list(GSPLAT_DEFAULTS)
    assert {name: p.default for name, p in positional.items() if name not in REQUIRED} == GSPLAT_DEFAULTS
    assert all(positional[name].default is inspect.Parameter.empty for name in REQUIRED)
    assert list(parameters)[len(positional) :] == ["backend", "numerics", "validate", "memory_budget", "group"]


def test_meta_when_packed():
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


def test_meta_when_not_packed_holds_the_same_rows_and_zeros():
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


def test_public_stages_compose_to_the_same_picture():
    """As code written for gsplat calls them, with rectangles in place of ellipses."""
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
    for found, own in zip(exact, (meta["tiles_per_gauss"], meta["isect_ids"], meta["flatten_ids"])):
        assert torch.equal(found, own)


def test_rectangles_are_gsplats():
    """Tile counts of mean +- radii with edges that just touch, worked out by hand."""
    means2d = torch.tensor([[[8.0, 8.0], [15.9, 8.0], [40.0, 8.0], [8.0, 8.0]]])
    radii = torch.tensor([[[8, 8], [1, 1], [3, 3], [0, 0]]], dtype=torch.int32)
    tiles, ids, flatten_ids = tsplat.isect_tiles(means2d, radii, torch.tensor([[3.0, 2.0, 1.0, 1.0]]), 16, 2, 1)
    assert tiles.tolist() == [[1, 2, 0, 0]]
    assert flatten_ids.tolist() == [1, 0, 1]
    assert (ids >> 32).tolist() == [0, 0, 1]
    assert tsplat.isect_offset_encode(ids, 1, 2, 1).tolist() == [[[0, 2]]]
    _, _, unsorted = tsplat.isect_tiles(means2d, radii, torch.tensor([[3.0, 2.0, 1.0, 1.0]]), 16, 2, 1, sort=False)
    assert unsorted.tolist() == [0, 1, 1]


def test_batch_equals_loop():
    structure = scenes.Structure(n=10, cameras=2, batch=(3,), sh_degree=1, seed=3)
    scene = scenes.make(structure)
    whole, _ = run(scene, render_mode="RGB+D")
    for b in range(3):
        own = {name: value[b] if isinstance(value, torch.Tensor) else value for name, value in scene.items()}
        colors, alphas, _ = tsplat.rasterization(**own, render_mode="RGB+D")
        assert_exact("colors", colors, whole["colors"][b])
        assert_exact("alphas", alphas, whole["alphas"][b])


def test_means2d_keeps_its_gradient():
    for packed in (True, False):
        scene = scenes.leaves(scenes.make(scenes.Structure(n=10, seed=2)))
        colors, _, meta = tsplat.rasterization(**scene, packed=packed, absgrad=True)
        meta["means2d"].retain_grad()
        colors.square().sum().backward()
        gradient, absolute = meta["means2d"].grad, meta["means2d"].absgrad
        assert gradient.shape == absolute.shape == meta["means2d"].shape
        assert gradient.any()
        assert (absolute >= gradient.abs() - 1e-12).all()


def test_gradients_come_back_in_each_inputs_own_type():
    scene = scenes.make(scenes.Structure(n=10, seed=2), torch.float32)
    inputs = scenes.leaves(scene | dict(colors=scene["colors"].bfloat16(), opacities=scene["opacities"].half()))
    colors, alphas, _ = tsplat.rasterization(**inputs)
    assert colors.dtype == alphas.dtype == torch.float32
    colors.sum().backward()
    for name in scenes.DIFFERENTIABLE:
        if inputs[name] is not None:
            assert inputs[name].grad.dtype == inputs[name].dtype, name


def test_autocast_changes_nothing():
    for dtype in (torch.bfloat16, torch.float16):
        results = []
        for enabled in (False, True):
            inputs = scenes.leaves(scenes.make(scenes.Structure(n=15, sh_degree=2, seed=9), torch.float32))
            with torch.autocast("cpu", dtype=dtype, enabled=enabled):
                colors, alphas, _ = tsplat.rasterization(**inputs, render_mode="RGB+ED", rasterize_mode="antialiased")
                (colors.sum() + alphas.sum()).backward()
            results.append([colors, alphas] + [t.grad for t in inputs.values() if isinstance(t, torch.Tensor)])
        for found, expected in zip(*results):
            assert found is expected is None or torch.equal(found, expected)


def test_inputs_may_be_strided_and_expanded():
    scene = scenes.make(scenes.Structure(n=10, cameras=2, seed=5))
    odd = dict(scene)
    odd["means"] = torch.stack([scene["means"], scene["means"]], -1)[..., 0]
    odd["viewmats"] = scene["viewmats"].transpose(-1, -2).contiguous().transpose(-1, -2)
    odd["opacities"] = torch.full((1,), 0.7, dtype=torch.float64).expand(10)
    odd["backgrounds"] = torch.full((3,), 0.2, dtype=torch.float64).expand(2, 3)
    plain = {name: t.contiguous() if isinstance(t, torch.Tensor) else t for name, t in odd.items()}
    found, _ = run(odd)
    expected, _ = run(plain)
    for name in expected:
        assert_exact(name, found[name], expected[name])


def test_no_graph_without_gradients():
    scene = scenes.leaves(scenes.make(scenes.Structure(n=5)))
    with torch.no_grad():
        colors, alphas, meta = tsplat.rasterization(**scene)
    assert not colors.requires_grad
    assert not alphas.requires_grad
    assert not meta["means2d"].requires_grad


def test_reference_backend_gives_the_same_picture():
    scene = scenes.make(scenes.Structure(n=10, seed=8))
    for mode in ("RGB", "RGB+ED"):
        a, _ = run(scene, backend="reference", render_mode=mode)
        b, _ = run(scene, render_mode=mode)
        for name in a:
            assert_exact(name, b[name], a[name])


def test_quat_scale_to_covar_preci():
    generator = torch.Generator().manual_seed(0)
    quats = torch.randn(4, 5, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    scales = torch.rand(4, 5, 3, generator=generator, dtype=torch.float64) + 0.1
    covars, precis = tsplat.quat_scale_to_covar_preci(quats, scales)
    eye = torch.eye(3, dtype=torch.float64).expand(4, 5, 3, 3)
    torch.testing.assert_close(covars @ precis, eye, rtol=0, atol=1e-11)
    torch.testing.assert_close(torch.linalg.eigvalsh(covars).sqrt(), scales.sort(-1).values, rtol=1e-10, atol=0)
    upper, none = tsplat.quat_scale_to_covar_preci(quats, scales, compute_preci=False, triu=True)
    assert none is None
    assert torch.equal(upper, covars[..., (0, 0, 0, 1, 1, 2), (0, 1, 2, 1, 2, 2)])
    assert torch.autograd.gradcheck(lambda q: tsplat.quat_scale_to_covar_preci(q, scales)[0], quats)


def test_import_needs_neither_triton_nor_extras():
    """`import tsplat` and a picture on the CPU, where everything else refuses to be imported."""
    code = """
import sys
for name in ("triton", "pycolmap", "PIL", "rich", "scipy", "matplotlib", "tyro"):
    sys.modules[name] = None
import torch, tsplat
colors, _, _ = tsplat.rasterization(
    torch.tensor([[0.0, 0.0, 2.0]]), torch.tensor([[1.0, 0, 0, 0]]), torch.full((1, 3), 0.1), torch.ones(1),
    torch.ones(1, 3), torch.eye(4)[None], torch.tensor([[[10.0, 0, 4], [0, 10, 4], [0, 0, 1]]]), 8, 8,
)
assert float(colors.max()) > 0.5
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_inria_preset_sees_nothing_nearer_than_a_fifth():
    scene = scenes.make(scenes.Structure(n=2, cameras=1, width=16, height=16), torch.float64)
    scene |= {"viewmats": torch.eye(4, dtype=torch.float64)[None], "opacities": torch.ones(2, dtype=torch.float64)}
    scene["means"] = torch.tensor([[0.0, 0.0, 0.15], [0.0, 0.0, 0.25]], dtype=torch.float64)
    for numerics, seen in (("gsplat-1.5", [True, True]), ("inria", [False, True])):
        _, _, meta = tsplat.rasterization(**scene, packed=False, numerics=numerics)
        assert (meta["radii"] > 0).all(-1)[0].tolist() == seen
        radii, *_ = tsplat.fully_fused_projection(
            scene["means"], None, *(scene[k] for k in ("quats", "scales", "viewmats", "Ks", "width", "height")),
            numerics=numerics,
        )  # fmt: skip
        assert (radii > 0).all(-1)[0].tolist() == seen
