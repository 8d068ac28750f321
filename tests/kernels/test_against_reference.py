"""Kernels (in the interpreter) and host path in fp64 against the truth: the same code that ships, to 1e-9."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tsplat
from tests.support import scenes
from tests.support.closeness import assert_exact, assert_run_exact, run
from tsplat import reference

BACKENDS = [pytest.param("triton", marks=pytest.mark.interpreter), "torch"]
EXAMPLES = {"triton": 60, "torch": 300}

pytestmark = pytest.mark.filterwarnings("ignore:(divide by zero|invalid value|overflow) encountered:RuntimeWarning")


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_scenes(backend):
    """Structure, mode, layout and seed drawn; images and all gradients of a loss on color, depth and alpha."""
    small = dict(max_pixels=20, max_n=10) if backend == "triton" else dict(max_pixels=40, max_n=40)

    @settings(max_examples=EXAMPLES[backend])
    @given(scenes.structures(**small), scenes.modes(), scenes.layouts())
    def check(structure, mode, layout):
        assert_run_exact(scenes.make(structure), seed=structure.seed, backend=backend, **mode, **layout)

    check()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 8, 9, 17])
def test_any_number_of_channels(backend, channels):
    scene = scenes.make(scenes.Structure(n=8, cameras=1, channels=channels, width=10, height=9, seed=channels))
    assert_run_exact(scene, backend=backend, tile_size=8, channel_chunk=5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sh_degree", range(5))
def test_spherical_harmonics_in_a_picture(backend, sh_degree):
    structure = scenes.Structure(n=6, sh_degree=sh_degree, spare_bases=1, width=9, height=9, seed=sh_degree)
    assert_run_exact(scenes.make(structure), backend=backend, tile_size=16)


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_batches_of_two_cameras(backend):
    structure = scenes.Structure(n=7, cameras=2, batch=(2,), sh_degree=2, per_camera_colors=True, width=12, height=10)
    assert_run_exact(scenes.make(structure), backend=backend, render_mode="RGB+ED", rasterize_mode="antialiased")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("none", [dict(cameras=0), dict(batch=(0,)), dict(n=0)], ids=str)
@pytest.mark.parametrize("channels", [3, 17])
def test_none_of_something_is_no_mistake(backend, none, packed, channels):
    structure = scenes.Structure(**dict(n=5, sh_degree=1 if channels == 3 else None, channels=channels) | none)
    assert_run_exact(scenes.make(structure), backend=backend, packed=packed, render_mode="RGB+ED")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [(1, 1), (1, 17), (16, 16), (17, 15), (33, 4)])
@pytest.mark.parametrize("tile_size", [4, 16])
def test_image_sizes_off_the_tile_grid(backend, size, tile_size):
    structure = scenes.Structure(n=5, cameras=1, width=size[0], height=size[1], size=2.0, seed=1)
    assert_run_exact(scenes.make(structure), backend=backend, tile_size=tile_size)


@pytest.mark.parametrize("backend", BACKENDS)
def test_saturated_pixels(backend):
    """Many opaque Gaussians on one tile: clamp, stop rule and lists that end early."""
    scene = scenes.make(scenes.Structure(n=70, cameras=1, width=8, height=8, size=12.0, seed=2))
    scene["opacities"] = 0.6 + 0.4 * scene["opacities"]
    truth = reference.rasterize(**scene)
    assert (truth.alphas > 0.999).any()
    assert (truth.margins.clamp < 1).any()
    assert_run_exact(scene, backend=backend, tile_size=8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_of_gaussians_around_the_block(backend, monkeypatch):
    """N in {0, 1, block - 1, block, block + 1, 2 block + 1} for every kernel with one lane per Gaussian or row."""
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
@pytest.mark.parametrize("n_pairs", [0, 1, 15, 16, 17, 33])
def test_numbers_of_pairs_around_the_step(backend, n_pairs, monkeypatch):
    """M in {0, 1, step - 1, step, step + 1, 2 step + 1} pairs on one tile, through the public stage."""
    if backend == "torch":
        from tsplat.kernels_torch import compositing

        monkeypatch.setattr(compositing, "BLOCK", 16)
    generator = torch.Generator().manual_seed(n_pairs)

    def uniform(*shape, low, high):
        return low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)

    n = max(n_pairs, 1)
    inputs = dict(
        means2d=uniform(1, n, 2, low=-2.0, high=10.0),
        conics=torch.cat([uniform(1, n, 1, low=0.02, high=0.4), uniform(1, n, 1, low=-0.01, high=0.01),
                          uniform(1, n, 1, low=0.02, high=0.4)], -1),
        colors=uniform(1, n, 3, low=0.0, high=1.0),
        opacities=uniform(1, n, low=0.01, high=0.6),
        backgrounds=uniform(1, 3, low=0.0, high=1.0),
    )  # fmt: skip
    flatten_ids = torch.arange(n_pairs, dtype=torch.int32)
    offsets = torch.zeros(1, 1, 1, dtype=torch.int32)
    results = []
    for stage in (backend, "reference"):
        leaves = {name: t.clone().requires_grad_() for name, t in inputs.items()}
        if stage == "reference":
            listed = torch.arange(n)[None] < n_pairs
            picture = reference.composite(
                leaves["means2d"], leaves["conics"], leaves["opacities"], leaves["colors"], leaves["backgrounds"],
                torch.arange(n)[None], listed, 8, 7,
            )  # fmt: skip
            images = (picture.colors, picture.alphas[..., None])
        else:
            images = tsplat.rasterize_to_pixels(
                image_width=8, image_height=7, tile_size=8, isect_offsets=offsets, flatten_ids=flatten_ids,
                backend=backend, **leaves,
            )  # fmt: skip
        gradients = torch.autograd.grad(images, list(leaves.values()), scenes.random_like(images, 0))
        results.append((*images, *gradients))
    for name, found, truth in zip(("colors", "alphas", *inputs), *results):
        assert_exact(name, found, truth)


@pytest.mark.parametrize("backend", BACKENDS)
def test_absgrad_sums_absolute_gradients_over_pixels(backend):
    """For any number of channels, against one backward pass of the truth per pixel."""
    for channels in (3, 11):
        structure = scenes.Structure(n=4, cameras=1, channels=channels, width=6, height=5, size=1.5, seed=channels)
        scene = scenes.make(structure)
        for packed in (True, False):
            inputs = scenes.leaves(scene)
            colors, alphas, meta = tsplat.rasterization(
                **inputs, absgrad=True, packed=packed, backend=backend, tile_size=4
            )
            v_colors, v_alphas = scenes.random_like((colors, alphas), 0)
            torch.autograd.backward((colors, alphas), (v_colors, v_alphas))
            truth = reference.rasterize(**scenes.leaves(scene))
            loss = (truth.colors * v_colors).sum(-1) + (truth.alphas * v_alphas).sum(-1)
            expected = torch.zeros_like(truth.projection.means2d)
            for pixel in loss.flatten():
                (gradient,) = torch.autograd.grad(pixel, truth.projection.means2d, retain_graph=True)
                expected += gradient.abs()
            if packed:
                expected = expected[truth.projection.visible]
            assert_exact("absgrad", meta["means2d"].absgrad, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=15)
@given(seed=st.integers(0, 2**31), compensate=st.booleans(), covars=st.booleans(), packed=st.booleans())
def test_projection_stage(backend, seed, compensate, covars, packed):
    """Every output of `fully_fused_projection` is differentiable on its own."""
    scene = scenes.make(scenes.Structure(n=9, batch=(2,), seed=seed, covars=covars))
    triangle = ((0, 0, 0, 1, 1, 2), (0, 1, 2, 1, 2, 2))
    results = []
    for truth in (False, True):
        leaves = scenes.leaves(scene)
        upper = leaves["covars"][..., triangle[0], triangle[1]] if covars else None
        shape = (leaves["viewmats"], leaves["Ks"], leaves["width"], leaves["height"])
        if truth:
            full = reference.covariances(leaves["quats"], leaves["scales"]) if not covars else leaves["covars"]
            full = full.triu() + full.triu(1).transpose(-1, -2)
            p = reference.project(leaves["means"], full, None, *shape, compensate=compensate)
            outputs = [p.means2d, p.depths, p.conics, p.compensations]
            radii = p.radii
            if packed:
                outputs, radii = [t[p.visible] for t in outputs], radii[p.visible]
        else:
            *ids, radii, means2d, depths, conics, compensations = tsplat.fully_fused_projection(
                leaves["means"], upper, leaves["quats"], leaves["scales"], *shape,
                packed=packed, calc_compensations=compensate, backend=backend,
            )  # fmt: skip
            assert len(ids) == (3 if packed else 0)
            outputs = [means2d, depths, conics, compensations]
        outputs = outputs[: 4 if compensate else 3]
        wanted = [
            leaves[name] for name in ("means", "quats", "scales", "covars", "viewmats") if leaves[name] is not None
        ]
        gradients = torch.autograd.grad(outputs, wanted, scenes.random_like(tuple(outputs), seed), allow_unused=True)
        results.append((radii, *outputs, *gradients))
    assert torch.equal(results[0][0], results[1][0])
    for i, (found, expected) in enumerate(zip(results[0][1:], results[1][1:])):
        assert_exact(f"output or gradient {i}", found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("degree", range(5))
def test_spherical_harmonics_stage(backend, degree):
    generator = torch.Generator().manual_seed(degree)
    dirs = torch.randn(3, 5, 3, generator=generator, dtype=torch.float64)
    coeffs = torch.randn(3, 5, (degree + 1) ** 2 + 2, 3, generator=generator, dtype=torch.float64)
    masks = torch.rand(3, 5, generator=generator) < 0.7
    results = []
    for truth in (False, True):
        d, c = dirs.clone().requires_grad_(), coeffs.clone().requires_grad_()
        if truth:
            colors = reference.spherical_harmonics(degree, d, c) * masks[..., None]
        else:
            colors = tsplat.spherical_harmonics(degree, d, c, masks, backend=backend)
        gradients = torch.autograd.grad(colors, (d, c), scenes.random_like((colors,), 0), allow_unused=True)
        results.append((colors, *gradients))
    for name, found, expected in zip(("colors", "v_dirs", "v_coeffs"), *results):
        assert_exact(name, found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=20)
@given(structure=scenes.structures(max_n=12), tile_size=st.sampled_from([4, 8, 16]), opaque=st.booleans())
def test_exact_tiles_drop_nothing_that_is_seen(backend, structure, tile_size, opaque):
    """Tile lists hold exactly the pairs that a rectangle test keeps, less those below 1/255 at every pixel center."""
    scene = scenes.make(structure)
    if opaque:
        scene["opacities"] = scene["opacities"] + 0.5  # above 1, where the rectangle would be too small
    _, _, meta = tsplat.rasterization(**scene, packed=False, tile_size=tile_size, backend=backend)
    truth = reference.project(
        scene["means"], reference.covariances(scene["quats"], scene["scales"]) if scene["covars"] is None
        else scene["covars"], scene["opacities"], scene["viewmats"], scene["Ks"], scene["width"], scene["height"],
    )  # fmt: skip
    rows, columns = -(-structure.height // tile_size), -(-structure.width // tile_size)
    x = torch.arange(columns * tile_size, dtype=torch.float64) + 0.5
    y = torch.arange(rows * tile_size, dtype=torch.float64) + 0.5
    dx = x - truth.means2d[..., 0, None]
    dy = y - truth.means2d[..., 1, None]
    a, b, c = (t[..., None, None] for t in truth.conics.unbind(-1))
    sigma = 0.5 * (a * dx[..., None, :] ** 2 + c * dy[..., :, None] ** 2) + b * dx[..., None, :] * dy[..., :, None]
    alpha = truth.opacities[..., None, None] * torch.exp(-sigma) * truth.visible[..., None, None]
    tiles = alpha.unflatten(-1, (columns, tile_size)).unflatten(-3, (rows, tile_size)).amax((-1, -3))
    n_images = math.prod(structure.batch) * structure.cameras
    tiles = tiles.reshape(n_images, structure.n, rows * columns).transpose(1, 2)  # [I, tiles, N]
    listed = torch.zeros_like(tiles, dtype=torch.bool)
    offsets = torch.cat([meta["isect_offsets"].flatten().long(), torch.tensor([meta["flatten_ids"].numel()])])
    for image in range(n_images):
        for tile in range(rows * columns):
            at = image * rows * columns + tile
            ids = meta["flatten_ids"][offsets[at] : offsets[at + 1]].long()
            assert (ids // max(structure.n, 1) == image).all()
            listed[image, tile, ids % max(structure.n, 1)] = True
            depths = meta["depths"].flatten()[ids]
            assert (depths.diff() >= 0).all()
    seen = tiles >= 1 / 255
    assert (listed | ~seen).all(), f"{int((seen & ~listed).sum())} pairs are seen but not listed"
    # What is listed beyond that lies within the margin for rounding, or is near a tile that pixels just miss.
    assert int((listed & ~seen).sum()) <= 0.25 * int(seen.sum()) + 4
    assert int(meta["tiles_per_gauss"].sum()) == meta["flatten_ids"].numel()


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=20)
@given(
    structure=scenes.structures(max_n=8, max_pixels=18),
    mode=scenes.modes(),
    first=scenes.layouts(),
    second=scenes.layouts(),
)
def test_layout_leaves_the_picture_as_it_is(backend, structure, mode, first, second):
    scene = scenes.make(structure)
    a, _ = run(scene, **mode, **first, backend=backend)
    b, _ = run(scene, **mode, **second, backend=backend)
    for name in a:
        assert_exact(name, a[name], b[name])


@pytest.mark.parametrize("backend", BACKENDS)
def test_masked_tiles_show_the_background_and_get_no_gradient(backend):
    scene = scenes.make(scenes.Structure(n=20, cameras=1, seed=6), torch.float64)
    _, _, meta = tsplat.rasterization(**scene, packed=False, tile_size=8, backend=backend)
    masks = torch.ones(1, 3, 3, dtype=torch.bool)
    masks[0, 0, 1] = False
    inputs = {name: meta[name].clone().requires_grad_() for name in ("means2d", "conics", "opacities")}
    colors = scene["colors"][None].clone().requires_grad_()
    rendered, alphas = tsplat.rasterize_to_pixels(
        image_width=21, image_height=19, tile_size=8, isect_offsets=meta["isect_offsets"], colors=colors,
        flatten_ids=meta["flatten_ids"], backgrounds=scene["backgrounds"], masks=masks, backend=backend, **inputs,
    )  # fmt: skip
    assert torch.equal(rendered[0, :8, 8:16], scene["backgrounds"].expand(8, 8, 3))
    assert not alphas[0, :8, 8:16].any()
    assert alphas[0, :8, :8].any()
    gradients = torch.autograd.grad(rendered[0, :8, 8:16].sum(), [*inputs.values(), colors])
    assert not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_that_overflows_is_left_out_and_an_infinite_one_is_not(backend):
    scene = scenes.make(scenes.Structure(n=4, cameras=2, width=20, height=20, size=0.01, seed=1), torch.float32)

    def gradients(*v_depths_of_first):
        """Of means, quats, scales and viewmats, for a huge gradient of the first row's conic, and its depth's."""
        inputs = {name: scene[name].clone().requires_grad_() for name in ("means", "quats", "scales", "viewmats")}
        _, _, depths, conics, _ = tsplat.fully_fused_projection(
            covars=None, Ks=scene["Ks"], width=20, height=20, eps2d=1e-3, backend=backend, **inputs
        )
        v_conics, v_depths = torch.ones_like(conics), torch.ones_like(depths)
        if v_depths_of_first:
            v_conics[:, 0] = 1e38
            v_depths[:, 0] = v_depths_of_first[0]
        return torch.autograd.grad((depths, conics), tuple(inputs.values()), (v_depths, v_conics))

    clean, overflown, infinite = gradients(), gradients(1.0), gradients(math.inf)
    for name, one, other in zip(("means", "quats", "scales"), clean, overflown):
        assert not other[0].any(), name
        assert torch.equal(one[1:], other[1:]), name
    assert all(gradient.isfinite().all() for gradient in overflown)
    assert not infinite[0][0].isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_bands_list_the_same_pairs(backend):
    scene = scenes.make(scenes.Structure(n=10, cameras=2, width=9, height=18, size=4.0, seed=2), torch.float32)
    whole, meta = run(scene, backend=backend, tile_size=4)
    parts, banded = run(scene, backend=backend, tile_size=4, memory_budget=meta["memory"]["peak_bytes"] // 3)
    assert banded["memory"]["bands"] >= 3
    assert banded["memory"]["pairs"] == meta["memory"]["pairs"]
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bad_rows_are_found(backend):
    structure = scenes.Structure(n=5, cameras=2, per_camera_colors=True, width=8, height=8, seed=1)
    scene = scenes.make(structure, torch.float32)
    scene["quats"][1] = 0.0
    scene["quats"][2] = 1e-13
    scene["colors"][1, 3, 0] = math.nan
    found, meta = run(scene, backend=backend, packed=False)
    assert int(meta["n_invalid"]) == 3
    assert not meta["radii"][:, 1:4].any()
    assert not found["v_quats"][1:4].any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tile_height", [3, 250, 300])
def test_ids_of_pairs_whether_keys_are_short_or_long(backend, tile_height):
    """Up to 65,536 tiles fit into 16 bits."""
    generator = torch.Generator().manual_seed(0)
    size = torch.tensor([250.0, tile_height]) * 4
    means2d = torch.rand(1, 40, 2, generator=generator) * size
    means2d[0, 0] = size - 1
    radii = torch.full((1, 40, 2), 3, dtype=torch.int32)
    depths = 1 + torch.rand(1, 40, generator=generator)
    _, ids, flatten_ids = tsplat.isect_tiles(means2d, radii, depths, 4, 250, tile_height, backend=backend)
    assert torch.equal(ids, ids.sort().values)
    rows = flatten_ids.long()
    assert torch.equal((ids & 0xFFFFFFFF).int().view(torch.float32), depths[0, rows])
    tiles = ids >> 32
    x, y = tiles % 250, tiles // 250
    reach = (torch.stack([x, y], -1) * 4 + 2 - means2d[0, rows]).abs()
    assert (reach < 3 + 2).all()
    assert len(set(zip(tiles.tolist(), rows.tolist()))) == len(rows)
    offsets = tsplat.isect_offset_encode(ids, 1, 250, tile_height)
    assert offsets.flatten()[int(tiles[-1])] <= len(rows) - 1
