"""Tests of COLMAP's lenses that are not OpenCV's: dots have to be where the formulas of each model show them."""

import math

import numpy as np
import pytest
import torch

from tests.support.captures import write_colmap
from tests.support.dots import assert_dots_at_sparse, dots, fisheye_points, grid_points, two_views
from tsplat import fully_fused_projection, fully_fused_projection_with_ut
from tsplat.errors import ArgumentError, FileError
from tsplat.scene import read_colmap
from tsplat.scene.cameras import rasterization_arguments
from tsplat.scene.capture import colmap_lenses
from tsplat.scene.capture.lens_conversions import colmap_lens
from tsplat.scene.capture.lenses import Lens
from tsplat.scene.capture.undistortion import Undistortion, coverage
from tsplat.scene.images import write_png

WIDTH, HEIGHT = 120, 90
F = (100.0, 104.0, 58.0, 47.0)
RATIONAL = (0.64272, 0.06358, 0.001, -0.002, 0.0005, 0.97509, 0.1924, 0.00574)
LENSES = [
    # What the photographs become, and with cameras="native".
    ("FULL_OPENCV", (*F, -0.12, 0.03, 0.01, -0.02, 0.05, 0.02, -0.01, 0.01), "pinhole", "pinhole"),
    ("FULL_OPENCV", (40.0, 40.0, 60.0, 45.0, *RATIONAL), "fisheye", None),
    ("FOV", (*F, 0.7), "pinhole", "fisheye"),
    ("FOV", (45.0, 44.0, 60.0, 45.0, 1.0), "fisheye", "fisheye"),
    ("SIMPLE_DIVISION", (100.0, 58.0, 47.0, -0.2), "pinhole", "fisheye"),
    ("SIMPLE_DIVISION", (44.0, 60.0, 45.0, -0.25), "fisheye", "fisheye"),
    ("DIVISION", (*F, 0.15), "pinhole", "fisheye"),
    ("DIVISION", (40.0, 42.0, 60.0, 45.0, -0.35), "fisheye", "fisheye"),
    ("EUCM", (*F, 0.6, 1.1), "pinhole", "fisheye"),
    ("EUCM", (48.0, 47.0, 60.0, 45.0, 0.65, 1.2), "fisheye", "fisheye"),
    ("THIN_PRISM_FISHEYE", (70.0, 74.0, 58.0, 47.0, -0.1, 0.04, 4e-3, -3e-3, -0.03, 0, 0.01, -5e-3), "fisheye", None),
    (
        "RAD_TAN_THIN_PRISM_FISHEYE",
        (70.0, 74.0, 58.0, 47.0, -0.1, 0.04, 0, 0.01, 0, 0.01, 0.01, 0, 0.01, 0, 0, -0.01),
        "fisheye",
        None,
    ),
    ("RAD_TAN_THIN_PRISM_FISHEYE", (42.0, 44.0, 58.0, 47.0, -0.03, 0.01, 0, 0, 1e-3, *7 * [0.0]), "fisheye", "fisheye"),
]  # fmt: skip
CASES = pytest.mark.parametrize(("model", "params", "kind", "native"), LENSES)


def shown_at(model, params, point):
    """The pixel of one point, by the equations of COLMAP's models of a point (u, v) at depth 1, or of its angles."""
    if model == "SIMPLE_DIVISION":
        model, params = "DIVISION", (params[0], *params)
    fx, fy, cx, cy, *k = params
    u, v = point[0] / point[2], point[1] / point[2]
    r = math.hypot(u, v)
    if model == "FULL_OPENCV":
        k1, k2, p1, p2, k3, k4, k5, k6 = k
        g = (1 + k1 * r**2 + k2 * r**4 + k3 * r**6) / (1 + k4 * r**2 + k5 * r**4 + k6 * r**6)
        x, y = u * g + 2 * p1 * u * v + p2 * (r**2 + 2 * u**2), v * g + p1 * (r**2 + 2 * v**2) + 2 * p2 * u * v
    elif model == "FOV":
        scale = math.atan(2 * r * math.tan(k[0] / 2)) / (r * k[0])
        x, y = u * scale, v * scale
    elif model == "DIVISION":  # r = d / (1 + k d^2), solved by bisection
        low, high = 0.0, 3.0 if k[0] > 0 else min(3.0, (1 - 1e-9) / math.sqrt(-k[0]))
        for _ in range(60):
            d = (low + high) / 2
            low, high = (d, high) if d / (1 + k[0] * d * d) < r else (low, d)
        x, y = u * d / r, v * d / r
    elif model == "EUCM":
        depth = k[0] * math.sqrt(k[1] * r * r + 1) + 1 - k[0]
        x, y = u / depth, v / depth
    else:
        a, b = u * math.atan(r) / r, v * math.atan(r) / r
        if model == "THIN_PRISM_FISHEYE":
            k1, k2, p1, p2, k3, k4, sx, sy = k
            q = a * a + b * b
            radial = k1 * q + k2 * q**2 + k3 * q**3 + k4 * q**4
            x = a + a * radial + 2 * p1 * a * b + p2 * (q + 2 * a * a) + sx * q
            y = b + b * radial + 2 * p2 * a * b + p1 * (q + 2 * b * b) + sy * q
        else:
            q = a * a + b * b
            radial = 1 + sum(c * q ** (i + 1) for i, c in enumerate(k[:6]))
            a, b = a * radial, b * radial
            p0, p1, s0, s1, s2, s3 = k[6:]
            q = a * a + b * b
            x = a + p0 * (3 * a * a + b * b) + 2 * p1 * a * b + s0 * q + s1 * q * q
            y = b + p1 * (3 * b * b + a * a) + 2 * p0 * a * b + s2 * q + s3 * q * q
    return fx * x + cx, fy * y + cy


def scene_of(kind, params):
    return fisheye_points(64 / params[0]) if kind == "fisheye" else grid_points()


def write_scene(folder, model, params, points):
    """A scene of two photographs of points; returns their pixels [P, 2], too."""
    pixels = torch.tensor([shown_at(model, params, point) for point in points.tolist()], dtype=torch.float64)
    camera = f"{model} {WIDTH} {HEIGHT} {' '.join(map(str, params))}"
    return write_colmap(folder, two_views(dots(pixels, WIDTH, HEIGHT)), points, camera), pixels


@CASES
def test_dots_are_where_undistorted_cameras_show_points(tmp_path, model, params, kind, native):
    points = scene_of(kind, params)
    folder, pixels = write_scene(tmp_path, model, params, points)
    capture = read_colmap(folder)
    view = capture.train[0]
    assert view.camera.model == kind and view.camera.distortion is None
    name = "DIVISION" if "DIV" in model else model
    by = "are resampled to equidistant fisheye images" if kind == "fisheye" else "are undistorted to pinhole images"
    assert f"cameras.txt: 2 photographs of 1 camera with the lens {name} (first: 0.png) {by}, which" in capture.notes[0]
    shown = coverage(colmap_lens(model, WIDTH, HEIGHT, params))
    assert f"show {100 * shown.share:.0f} % of their pixels at {shown.scale:.2f} of their scale" in capture.notes[0]
    assert_dots_at_sparse(view, 12)
    assert (view.sparse[:, :2].sort(0).values - pixels.sort(0).values).abs().max() > 0.2
    _, means2d, _, _, _ = fully_fused_projection(
        points.float(), None, torch.tensor([[1.0, 0, 0, 0]]).repeat(12, 1), torch.full((12, 3), 0.01),
        torch.eye(4)[None], view.camera.K[None], WIDTH, HEIGHT, camera_model=kind,
    )  # fmt: skip
    torch.testing.assert_close(means2d[0].sort(0).values, view.sparse[:, :2].sort(0).values, rtol=0, atol=1e-3)


@CASES
def test_native_cameras_show_points_where_the_lens_does(tmp_path, model, params, kind, native):
    points = scene_of(kind, params)
    folder, pixels = write_scene(tmp_path, model, params, points)
    capture = read_colmap(folder, cameras="native")
    view = capture.train[0]
    if native is None:  # no lens of the rasterizer
        assert view.camera.model == kind and view.camera.distortion is None
        assert "are resampled to equidistant fisheye images" in capture.notes[0]
        return
    assert view.camera.model == native and "are trained on as taken" in capture.notes[0]
    assert ("fisheye polynomial" in capture.notes[0]) == (native == "fisheye")
    assert torch.equal(view.image, dots(pixels, WIDTH, HEIGHT))
    _, means2d, _, _, _ = fully_fused_projection_with_ut(
        points.float(), torch.tensor([[1.0, 0, 0, 0]]).repeat(12, 1), torch.full((12, 3), 1e-4), None,
        **{k: v for k, v in rasterization_arguments([view.camera]).items() if k != "with_ut"},
    )  # fmt: skip
    torch.testing.assert_close(means2d[0], pixels.float(), rtol=0, atol=0.05)
    torch.testing.assert_close(view.sparse[:, :2].sort(0).values, pixels.float().sort(0).values, rtol=0, atol=0.05)


@CASES
def test_pixels_are_sampled_where_the_lens_shows_their_rays(model, params, kind, native):
    """In an image whose brightness is 16 times the number of the column or the row, modulo 256."""
    undistortion = Undistortion(colmap_lens(model, WIDTH, HEIGHT, params), WIDTH, HEIGHT)
    x, y = torch.meshgrid(torch.arange(WIDTH), torch.arange(HEIGHT), indexing="xy")
    sampled = undistortion((16 * torch.stack([x, y], -1) % 256).byte()).double() / 16 + 0.5
    K = undistortion.K
    a, b = (x.double() + 0.5 - K[0, 2]) / K[0, 0], (y.double() + 0.5 - K[1, 2]) / K[1, 1]
    chosen = undistortion.has_source & ((x + 7 * y) % 29 == 0)
    expected = []
    for i, j in zip(a[chosen].tolist(), b[chosen].tolist()):
        theta = math.hypot(i, j)
        tan = math.tan(theta) / theta if kind == "fisheye" else 1.0
        expected.append(shown_at(model, params, (i * tan, j * tan, 1.0)))
    expected = torch.tensor(expected, dtype=torch.float64)
    # The brightness falls from 240 to 0 at multiples of 16 columns or rows, and is constant at the border.
    inside = ((expected + 15.5) % 16 < 14.9) & (expected > 0.5) & (expected < torch.tensor([WIDTH, HEIGHT]) - 0.5)
    errors = (sampled[chosen] - expected + 8) % 16 - 8
    assert inside.sum() > 300
    assert errors[inside].abs().max() < 0.05
    assert ((expected > -0.01) & (expected < torch.tensor([WIDTH, HEIGHT]) + 0.01)).all()


@pytest.mark.parametrize(("model", "params"), [case[:2] for case in LENSES if case[2] == "fisheye"])
def test_wide_photographs_keep_most_pixels_that_have_a_direction(model, params):
    """At least 90 % of those within 90 degrees."""
    lens = colmap_lens(model, WIDTH, HEIGHT, params)
    x, y = np.meshgrid(np.arange(WIDTH) + 0.5, np.arange(HEIGHT) + 0.5)
    angles, found = colmap_lenses.invert(lens.colmap, np.stack([x, y], -1).reshape(-1, 2))
    K, share = Undistortion(lens, WIDTH, HEIGHT).K.numpy(), coverage(lens).share
    shown = angles * (K[0, 0], K[1, 1]) + (K[0, 2], K[1, 2])
    inside = found & ((shown > 0) & (shown < (WIDTH, HEIGHT))).all(-1)
    assert inside.sum() > 0.89 * found.sum()
    assert inside.mean() == pytest.approx(share, abs=0.02)


def test_masks_follow_their_photographs(tmp_path):
    model, params, kind, _ = LENSES[3]
    folder, _ = write_scene(tmp_path, model, params, scene_of(kind, params))
    mask = torch.zeros(HEIGHT, WIDTH, 3, dtype=torch.uint8)
    mask[:, :80] = 255
    for name in ("0.png", "1.png"):
        (folder / "masks").mkdir(exist_ok=True)
        write_png(folder / "masks" / name, mask)
    view = read_colmap(folder).train[0]
    undistortion = Undistortion(colmap_lens(model, WIDTH, HEIGHT, params), WIDTH, HEIGHT)
    columns = undistortion((2 * torch.arange(WIDTH)).byte().expand(HEIGHT, WIDTH)[..., None])[..., 0] / 2
    assert view.mask[undistortion.has_source & (columns < 78)].all()
    assert not view.mask[columns > 81].any() and not view.mask[~undistortion.has_source].any()


@pytest.mark.parametrize(("model", "params"), [(name, params) for name, params, *_ in LENSES])
def test_models_have_their_formulas_and_inverses(model, params):
    rays = np.random.default_rng(0).normal(size=(500, 3))
    rays[:, 2] = np.abs(rays[:, 2]) + 0.4
    lens = colmap_lens(model, WIDTH, HEIGHT, params)
    found = colmap_lenses.project(lens.colmap, rays)
    expected = np.array([shown_at(model, params, ray) for ray in rays])
    has_pixel = ~np.isnan(found).any(-1)
    np.testing.assert_allclose(found[has_pixel], expected[has_pixel], rtol=0, atol=1e-9)
    visible = has_pixel & (np.hypot(*(found - (60, 45)).T) < 50)
    angles, is_inverse = colmap_lenses.invert(lens.colmap, found[visible])
    assert is_inverse.all() and visible.sum() > 70
    directions = rays[visible] / np.linalg.norm(rays[visible], axis=-1, keepdims=True)
    np.testing.assert_allclose(colmap_lenses.directions_of(angles), directions, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "params"),
    [
        ("FULL_OPENCV", (*F, *4 * [0.0], -1e6, 0.0, 0.0, 0.0)),
        ("FOV", (*F, 6.0)),
        ("DIVISION", (*F, 1e6)),
        ("EUCM", (*F, 50.0, 1.0)),
        ("THIN_PRISM_FISHEYE", (*F, *4 * [0.0], 0.0, 0.0, 1e5, 0.0)),
        ("RAD_TAN_THIN_PRISM_FISHEYE", (*F, *5 * [0.0], -1e7, *6 * [0.0])),
        ("EUCM", (*F, 0.6, float("nan"))),
    ],
)
def test_damaged_coefficients_are_refused(tmp_path, model, params):
    camera = f"{model} {WIDTH} {HEIGHT} {' '.join(map(str, params))}"
    folder = write_colmap(tmp_path, two_views(dots(torch.zeros(0, 2), WIDTH, HEIGHT)), grid_points(), camera)
    for cameras in ("undistorted", "native"):
        with pytest.raises(FileError, match=r"cameras\.txt: camera 1: (distortion: )?expected (parameters|finite)"):
            read_colmap(folder, cameras=cameras)


def test_lenses_have_four_or_eight_coefficients():
    for values, model in ((8, "fisheye"), (5, "pinhole")):
        with pytest.raises(ArgumentError, match="distortion: expected 4 coefficients, or 8 of a pinhole lens"):
            Lens(WIDTH, HEIGHT, *F, values * (0.0,), model)


def test_opencv_lenses_have_one_formula():
    coefficients = (0.1, 0.02, 0.013, -0.017, 0.003, 0.04, 0.005, 0.0007)
    points = torch.rand(200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.5
    directions = np.concatenate([points.numpy(), np.ones((200, 1))], 1)
    expected = colmap_lenses.project(("FULL_OPENCV", (1.0, 1.0, 0.0, 0.0, *coefficients)), directions)
    found = Lens(10, 10, 1.0, 1.0, 0.0, 0.0, coefficients).distorted(points).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-15)


def test_rational_lenses_are_undistorted_as_those_of_colmap():
    image = torch.randint(0, 256, (HEIGHT, WIDTH, 3), dtype=torch.uint8)
    one = Undistortion(colmap_lens(*LENSES[0][:1], WIDTH, HEIGHT, LENSES[0][1]), WIDTH, HEIGHT)
    other = Undistortion(Lens(WIDTH, HEIGHT, *F, LENSES[0][1][4:]), WIDTH, HEIGHT)
    assert torch.equal(one(image), other(image)) and torch.equal(one.K, other.K)


def test_rational_lenses_show_pixels_up_to_where_their_factor_is_too_small():
    """Those of one without a denominator are those of the polynomial, up to the first of both limits."""
    for k1, k2 in ((-0.6, 0.1), (0.0, -0.3)):
        few = Lens(WIDTH, HEIGHT, 60.0, 60.0, 58.0, 47.0, (k1, k2, 0.0, 0.0))
        many = Lens(WIDTH, HEIGHT, 60.0, 60.0, 58.0, 47.0, (k1, k2, *6 * [0.0]))
        differ = (few.shown(WIDTH, HEIGHT) != many.shown(WIDTH, HEIGHT)).float().mean()
        assert 0.1 < few.shown(WIDTH, HEIGHT).float().mean() < 0.97 and differ < 2e-3
    assert Lens(WIDTH, HEIGHT, *F, LENSES[0][1][4:]).shown(WIDTH, HEIGHT).all()
