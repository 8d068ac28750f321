"""Tests of undistortion: dots in distorted images have to move to their pinhole projections."""

import math

import pytest
import torch

from tests.support.captures import write_colmap, write_image, write_transforms
from tests.support.dots import assert_dots_at_sparse, dots, fisheye_points, grid_points, two_views
from tsplat import (
    ArgumentError,
    fully_fused_projection,
    fully_fused_projection_with_ut,
    rasterization,
)
from tsplat.scene import Camera, read_capture, read_colmap, read_transforms
from tsplat.scene.cameras import rasterization_arguments
from tsplat.scene.capture.lenses import Lens, panorama
from tsplat.scene.capture.undistortion import Undistortion

pytest.importorskip("pycolmap")

WIDTH, HEIGHT = 120, 90
F = (100.0, 104.0, 58.0, 47.0)
LENSES = [
    ("SIMPLE_RADIAL", (100.0, 58.0, 47.0, -0.15), (-0.15, 0, 0, 0)),
    ("SIMPLE_RADIAL", (100.0, 58.0, 47.0, 0.15), (0.15, 0, 0, 0)),
    ("RADIAL", (100.0, 58.0, 47.0, -0.2, 0.06), (-0.2, 0.06, 0, 0)),
    ("OPENCV", (*F, -0.12, 0.03, 0.01, -0.02), (-0.12, 0.03, 0.01, -0.02)),
]


def distort(x, y, k1, k2, p1, p2):
    """OpenCV's distortion of points at depth 1."""
    r2 = x * x + y * y
    radial = 1 + k1 * r2 + k2 * r2 * r2
    return (x * radial + 2 * p1 * x * y + p2 * (r2 + 2 * x * x), y * radial + p1 * (r2 + 2 * y * y) + 2 * p2 * x * y)


def intrinsics(params):
    """Focal lengths and principal point: both focal lengths are given with four coefficients, otherwise one."""
    return params[:4] if len(params) == 8 else (params[0], *params[:3])


def distorted_pixels(points, params, coefficients):
    fx, fy, cx, cy = intrinsics(params)
    x, y = distort(points[:, 0] / points[:, 2], points[:, 1] / points[:, 2], *coefficients)
    return torch.stack([fx * x + cx, fy * y + cy], -1)


@pytest.mark.parametrize(("model", "params", "coefficients"), LENSES)
def test_dots_are_at_their_pinhole_projections(tmp_path, model, params, coefficients):
    points = grid_points()
    image = dots(distorted_pixels(points, params, coefficients), WIDTH, HEIGHT)
    views = two_views(image)
    camera = f"{model} {WIDTH} {HEIGHT} {' '.join(map(str, params))}"
    capture = read_colmap(write_colmap(tmp_path, views, points, camera))
    view = capture.train[0]
    assert (view.width, view.height) == (WIDTH, HEIGHT)
    assert view.mask is None, "some pixels have no source"
    assert_dots_at_sparse(view, 12)
    torch.testing.assert_close(view.sparse[:, 2].sort().values, points[:, 2].float())
    # The distortion is large enough for the test to fail without undistortion.
    assert (view.sparse[:, :2] - distorted_pixels(points, params, coefficients)).norm(dim=-1).max() > 0.5


@pytest.mark.parametrize(("model", "params", "coefficients"), LENSES)
def test_native_cameras_have_the_distortion(tmp_path, model, params, coefficients):
    points = grid_points()
    image = dots(distorted_pixels(points, params, coefficients), WIDTH, HEIGHT)
    camera = f"{model} {WIDTH} {HEIGHT} {' '.join(map(str, params))}"
    folder = write_colmap(tmp_path, two_views(image), points, camera)
    view = read_capture(folder, cameras="native").train[0]
    assert torch.equal(view.image, image) and view.mask is None
    assert view.camera.distortion.tolist() == pytest.approx(coefficients)
    assert_native(view, points, distorted_pixels(points, params, coefficients))
    half = read_colmap(folder, 2, cameras="native").train[0]
    assert (half.width, half.height) == (WIDTH // 2, HEIGHT // 2)
    assert_native(half, points, 0.5 * distorted_pixels(points, params, coefficients))


def assert_native(view, points, pixels):
    """Sparse points, and what the rasterizer projects with the camera of the view, are at pixels."""
    torch.testing.assert_close(view.sparse[:, :2].sort(0).values, pixels.float().sort(0).values, rtol=0, atol=1e-3)
    arguments = rasterization_arguments([view.camera])
    assert arguments.pop("with_ut")
    _, means2d, _, _, _ = fully_fused_projection_with_ut(
        points.float(), torch.tensor([[1.0, 0, 0, 0]]).repeat(12, 1), torch.full((12, 3), 1e-4), None, **arguments
    )
    torch.testing.assert_close(means2d[0].sort(0).values, pixels.float().sort(0).values, rtol=0, atol=0.02)


@pytest.mark.parametrize("coefficients", [(-0.6, 0.1, 0.0, 0.0), (0.0, -0.3, 0.01, 0.0)])
def test_native_pixels_that_no_gaussian_reaches_are_masked_out(coefficients):
    """Gaussians everywhere cover all pixels but those."""
    lens = Lens(WIDTH, HEIGHT, 60.0, 60.0, 58.0, 47.0, coefficients)
    x, y = torch.meshgrid(torch.linspace(-2, 2, 150), torch.linspace(-2, 2, 150), indexing="xy")
    means = torch.stack([x.flatten(), y.flatten(), torch.ones(22500)], -1)
    camera = Camera(
        torch.eye(4), lens.intrinsics(WIDTH, HEIGHT).float(), WIDTH, HEIGHT, distortion=torch.tensor(coefficients)
    )
    alpha = rasterization(
        means, torch.tensor([[1.0, 0, 0, 0]]).repeat(22500, 1), torch.full((22500, 3), 0.01), torch.full((22500,), 0.9),
        torch.ones(22500, 3), eps2d=0.0, **rasterization_arguments([camera]),
    )[1][0, ..., 0]  # fmt: skip
    shown = lens.shown(WIDTH, HEIGHT)
    assert 0.15 < shown.float().mean() < 0.97
    assert ((alpha > 0.5) == shown).float().mean() > 0.97


FISHEYE_LENSES = [
    ("SIMPLE_FISHEYE", (70.0, 58.0, 47.0), (0.0, 0.0, 0.0, 0.0)),
    ("FISHEYE", (70.0, 74.0, 58.0, 47.0), (0.0, 0.0, 0.0, 0.0)),
    ("SIMPLE_RADIAL_FISHEYE", (70.0, 58.0, 47.0, -0.1), (-0.1, 0.0, 0.0, 0.0)),
    ("RADIAL_FISHEYE", (70.0, 58.0, 47.0, 0.1, -0.03), (0.1, -0.03, 0.0, 0.0)),
    ("OPENCV_FISHEYE", (70.0, 74.0, 58.0, 47.0, -0.1, 0.04, -0.03, 0.01), (-0.1, 0.04, -0.03, 0.01)),
]


@pytest.mark.parametrize(("model", "params", "coefficients"), FISHEYE_LENSES)
def test_dots_are_at_their_equidistant_projections(tmp_path, model, params, coefficients):
    """Those that the rasterizer computes with the camera of the view."""
    import pycolmap

    points = fisheye_points()
    lens = pycolmap.Camera(model=model, width=WIDTH, height=HEIGHT, params=list(params))
    pixels = torch.from_numpy(lens.img_from_cam(points.numpy()))
    image = dots(pixels, WIDTH, HEIGHT)
    views = two_views(image)
    camera = f"{model} {WIDTH} {HEIGHT} {' '.join(map(str, params))}"
    view = read_colmap(write_colmap(tmp_path, views, points, camera)).train[0]
    assert view.camera.model == "fisheye"
    assert view.mask is None, "some pixels have no source"
    assert_dots_at_sparse(view, 12)
    _, means2d, _, _, _ = fully_fused_projection(
        points.float(), None, torch.tensor([[1.0, 0, 0, 0]]).repeat(12, 1), torch.full((12, 3), 0.01),
        torch.eye(4)[None], view.camera.K[None], WIDTH, HEIGHT, camera_model="fisheye",
    )  # fmt: skip
    torch.testing.assert_close(means2d[0].sort(0).values, view.sparse[:, :2].sort(0).values, rtol=0, atol=1e-3)
    assert bool(any(coefficients)) == bool(
        (view.sparse[:, :2].sort(0).values - pixels.sort(0).values).abs().max() > 0.2
    )


@pytest.mark.parametrize(("model", "params", "coefficients"), FISHEYE_LENSES)
def test_native_fisheye_cameras_have_the_distortion(tmp_path, model, params, coefficients):
    import pycolmap

    points = fisheye_points()
    lens = pycolmap.Camera(model=model, width=WIDTH, height=HEIGHT, params=list(params))
    pixels = torch.from_numpy(lens.img_from_cam(points.numpy()))
    camera = f"{model} {WIDTH} {HEIGHT} {' '.join(map(str, params))}"
    folder = write_colmap(tmp_path, two_views(dots(pixels, WIDTH, HEIGHT)), points, camera)
    view = read_colmap(folder, cameras="native").train[0]
    assert (view.camera.distortion is None) == (not any(coefficients))
    if any(coefficients):
        assert_native(view, points, pixels)


def test_fisheye_pixels_beyond_90_degrees_are_masked_out(tmp_path):
    focal = 30.0  # 90 degrees are 47 pixels from the center
    image = torch.full((HEIGHT, WIDTH, 3), 200, dtype=torch.uint8)
    views = two_views(image)
    points = torch.tensor([[0.0, 0, 2], [0.1, 0.1, 2]])
    colmap = write_colmap(tmp_path / "colmap", views, points, f"OPENCV_FISHEYE 120 90 {focal} {focal} 60 45 0 0 0 0")
    keys = dict(fl_x=focal, fl_y=focal, cx=60, cy=45, w=WIDTH, h=HEIGHT)
    write_transforms(tmp_path / "json", views, camera_model="OPENCV_FISHEYE", **keys)
    write_transforms(tmp_path / "ngp", views, is_fisheye=True, **keys)
    captures = [read_colmap(colmap), read_transforms(tmp_path / "json"), read_transforms(tmp_path / "ngp")]
    captures += [read_colmap(colmap, cameras="native"), read_transforms(tmp_path / "ngp", cameras="native")]
    x, y = torch.arange(WIDTH) + 0.5 - 60, torch.arange(HEIGHT) + 0.5 - 45
    inside = torch.hypot(x[None], y[:, None]) < focal * math.pi / 2
    for capture in captures:
        view = capture.train[0]
        assert torch.equal(view.mask, inside)
        assert (view.image[inside] == 200).all()
        torch.testing.assert_close(view.camera.K, torch.tensor([[focal, 0, 60], [0, focal, 45], [0, 0, 1]]))


def test_fisheye_pixels_beyond_the_extremum_of_the_distortion_have_no_source():
    # theta - 0.3 theta^3 is largest at theta = 1 / sqrt(0.9), where it is 2/3 of it.
    undistortion = Undistortion(Lens(WIDTH, HEIGHT, 60, 60, 60, 45, (-0.3, 0.0, 0.0, 0.0), "fisheye"), WIDTH, HEIGHT)
    assert float(undistortion.K[0, 0]) == pytest.approx(40.0)
    x, y = torch.arange(WIDTH) + 0.5 - 60, torch.arange(HEIGHT) + 0.5 - 45
    assert torch.equal(undistortion.has_source, torch.hypot(x[None], y[:, None]) < 40 / math.sqrt(0.9))


def test_downscaled_images_are_undistorted(tmp_path):
    model, params, coefficients = LENSES[3]
    points = grid_points()
    camera = f"{model} {2 * WIDTH} {2 * HEIGHT} {' '.join(str(2 * p) for p in params[:4])} -0.12 0.03 0.01 -0.02"
    pixels = distorted_pixels(points, params, coefficients)
    large, small = dots(2 * pixels, 2 * WIDTH, 2 * HEIGHT, 3), dots(pixels, WIDTH, HEIGHT)
    views = two_views(large)
    write_colmap(tmp_path, views, points, camera)
    by_averaging = read_colmap(tmp_path, downscale=2).train[0]
    assert_dots_at_sparse(by_averaging, 12)
    for view in views:
        write_image(tmp_path / "images_2" / view.name, small)
    from_folder = read_colmap(tmp_path, downscale=2).train[0]
    assert_dots_at_sparse(from_folder, 12)
    torch.testing.assert_close(from_folder.camera.K, by_averaging.camera.K)


def test_transforms_and_colmap_are_undistorted_equally(tmp_path):
    _, params, coefficients = LENSES[3]
    points = grid_points()
    image = dots(distorted_pixels(points, params, coefficients), WIDTH, HEIGHT)
    views = two_views(image)
    keys = dict(zip(("fl_x", "fl_y", "cx", "cy", "k1", "k2", "p1", "p2"), params), w=WIDTH, h=HEIGHT)
    write_transforms(tmp_path / "json", views, **keys)
    one = read_transforms(tmp_path / "json").train[0]
    other = read_colmap(write_colmap(tmp_path / "colmap", views, points, f"OPENCV 120 90 {' '.join(map(str, params))}"))
    assert torch.equal(one.image, other.train[0].image)
    torch.testing.assert_close(one.camera.K, other.train[0].camera.K)


@pytest.mark.parametrize(
    ("camera_model", "border", "params", "coefficients"),
    [("pinhole", 3, *lens[1:]) for lens in LENSES] + [("fisheye", 2, *lens[1:]) for lens in FISHEYE_LENSES[2:]],
)
def test_camera_has_the_largest_field_of_view(camera_model, border, params, coefficients):
    """Every pixel has a source, and some of a white border remains visible."""
    undistortion = Undistortion(Lens(WIDTH, HEIGHT, *intrinsics(params), coefficients, camera_model), WIDTH, HEIGHT)
    assert undistortion.has_source.all()
    image = torch.full((HEIGHT, WIDTH, 1), 255, dtype=torch.uint8)
    image[border:-border, border:-border] = 0
    result = undistortion(image)
    assert result.max() == 255
    assert (result > 0).float().mean() < 0.2


def test_pixels_without_a_source_are_masked_out(tmp_path):
    # The distortion is monotonic up to a radius of sqrt(1 / 1.5) = 0.82, 49 pixels from the center.
    params = (60.0, 60.0, 60.0, 45.0, -0.5, 0.0, 0.0, 0.0)
    points = torch.tensor([[0.0, 0, 2], [0.1, 0.1, 2]])
    image = torch.full((HEIGHT, WIDTH, 3), 200, dtype=torch.uint8)
    image[:, :60] = 100
    views = two_views(image)
    view = read_colmap(write_colmap(tmp_path, views, points, f"OPENCV 120 90 {' '.join(map(str, params))}")).train[0]
    x = (torch.arange(WIDTH) + 0.5 - view.camera.K[0, 2]) / view.camera.K[0, 0]
    y = (torch.arange(HEIGHT) + 0.5 - view.camera.K[1, 2]) / view.camera.K[1, 1]
    radius = torch.hypot(x[None], y[:, None])
    assert not view.mask[radius > 0.85].any()
    assert view.mask[radius < 0.6].all()
    assert (view.image[view.mask & (x > 0.05)] == 200).all()
    assert (view.image[view.mask & (x < -0.05)] == 100).all()
    assert (view.image[~view.mask] == 0).all()


def test_sampling_in_chunks_gives_the_same_result(monkeypatch):
    lens = Lens(WIDTH, HEIGHT, *F, (-0.12, 0.03, 0.01, -0.02))
    image = torch.randint(0, 256, (HEIGHT, WIDTH, 4), dtype=torch.uint8)
    at_once = Undistortion(lens, WIDTH, HEIGHT)(image)
    monkeypatch.setattr("tsplat.scene.capture.undistortion.CHUNK_PIXELS", 7 * WIDTH)
    in_chunks = Undistortion(lens, WIDTH, HEIGHT)(image)
    assert (at_once.int() - in_chunks.int()).abs().max() <= 1
    assert (at_once != in_chunks).float().mean() < 1e-3


@pytest.mark.parametrize("values", [(-100, 100, 60, 45), (100, float("nan"), 60, 45)])
def test_invalid_lens_is_rejected(values):
    with pytest.raises(ArgumentError, match="K: "):
        Undistortion(Lens(WIDTH, HEIGHT, *values, (0.1, 0, 0, 0)), WIDTH, HEIGHT)
    with pytest.raises(ArgumentError, match="distortion"):
        Lens(WIDTH, HEIGHT, *F, (float("inf"), 0, 0, 0))


@pytest.mark.parametrize("camera_model", ["pinhole", "fisheye"])
def test_subnormal_distortion_is_none(camera_model):
    lens = Lens(40, 30, 50, 50, 20, 15, (0.1, 1e-320, 0.0, 0.0), camera_model)
    expected = Lens(40, 30, 50, 50, 20, 15, (0.1, 0.0, 0.0, 0.0), camera_model)
    assert torch.equal(Undistortion(lens, 40, 30).has_source, Undistortion(expected, 40, 30).has_source)


def test_large_images_need_no_stored_map(monkeypatch):
    lens = Lens(40, 30, 50, 50, 20, 15, (0.3, 0.1, 0.0, 0.0))
    image = torch.randint(0, 256, (30, 40, 3), dtype=torch.uint8)
    expected = Undistortion(lens, 40, 30)(image)
    monkeypatch.setattr("tsplat.scene.capture.undistortion.MAP_PIXELS_MAX", 100)
    assert torch.equal(Undistortion(lens, 40, 30)(image), expected)


@pytest.mark.parametrize(
    ("model", "params", "same"),
    [
        ("FULL_OPENCV", (*F, *8 * [0.0]), "PINHOLE 100 104 58 47"),
        ("FULL_OPENCV", (*F, -0.12, 0.03, 0.01, -0.02, 0, 0, 0, 0), "OPENCV 100 104 58 47 -0.12 0.03 0.01 -0.02"),
        ("FOV", (*F, 0), "PINHOLE 100 104 58 47"),
        ("SIMPLE_DIVISION", (100, 58, 47, 0), "PINHOLE 100 100 58 47"),
        ("DIVISION", (*F, 0), "PINHOLE 100 104 58 47"),
        ("EUCM", (*F, 0, 1.3), "PINHOLE 100 104 58 47"),
        ("THIN_PRISM_FISHEYE", (*F, *8 * [0.0]), "FISHEYE 100 104 58 47"),
        ("THIN_PRISM_FISHEYE", (*F, 0.1, 0.02, 0, 0, 0.01, 0, 0, 0), "OPENCV_FISHEYE 100 104 58 47 0.1 0.02 0.01 0"),
        ("RAD_TAN_THIN_PRISM_FISHEYE", (*F, *12 * [0.0]), "FISHEYE 100 104 58 47"),
        ("RAD_TAN_THIN_PRISM_FISHEYE", (*F, 0.1, 0, 0.01, *9 * [0.0]), "OPENCV_FISHEYE 100 104 58 47 0.1 0 0.01 0"),
    ],
)
@pytest.mark.parametrize("cameras", ["undistorted", "native"])
def test_lenses_without_other_coefficients_are_those_of_opencv(tmp_path, model, params, same, cameras):
    import pycolmap

    points = fisheye_points()
    lens = pycolmap.Camera(model=model, width=WIDTH, height=HEIGHT, params=list(params))
    pixels = torch.from_numpy(lens.img_from_cam(points.numpy()))
    views = two_views(dots(pixels, WIDTH, HEIGHT))
    camera = f"{model} {WIDTH} {HEIGHT} {' '.join(map(str, params))}"
    name, rest = same.split(" ", 1)
    one = read_colmap(write_colmap(tmp_path / "one", views, points, camera), cameras=cameras)
    other = write_colmap(tmp_path / "other", views, points, f"{name} {WIDTH} {HEIGHT} {rest}")
    other = read_colmap(other, cameras=cameras)
    assert not any("pycolmap" in note for note in (*one.notes, *other.notes))
    for a, b in zip(one.train, other.train):
        assert torch.equal(a.image, b.image) and torch.equal(a.camera.K, b.camera.K)
        assert torch.equal(a.sparse, b.sparse) and a.camera.model == b.camera.model
    if cameras == "native":
        for x, y, _ in one.train[0].sparse.tolist():
            assert (pixels - torch.tensor([x, y])).norm(dim=-1).min() < 1e-3


@pytest.mark.parametrize("more", [(0.1, 0, 0, 0), (0.1, -0.02, 0.01, 0.01)])
def test_radial_coefficients_are_undistorted_in_both_formats(tmp_path, more):
    points = grid_points()
    params = (*F, -0.12, 0.03, 0.01, -0.02, *more)
    image = torch.randint(0, 256, (HEIGHT, WIDTH, 3), dtype=torch.uint8)
    names = ("fl_x", "fl_y", "cx", "cy", "k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6")
    keys = dict(zip(names, params), w=WIDTH, h=HEIGHT, camera_model="FULL_OPENCV" if more[1] else "OPENCV")
    write_transforms(tmp_path / "json", two_views(image), **keys)
    one = read_transforms(tmp_path / "json")
    camera = f"FULL_OPENCV 120 90 {' '.join(map(str, params))}"
    other = read_colmap(write_colmap(tmp_path / "colmap", two_views(image), points, camera)).train[0]
    assert torch.equal(one.train[0].image, other.image) and torch.equal(one.train[0].camera.K, other.camera.K)
    assert not torch.equal(other.image, image) and "are undistorted to pinhole images" in one.notes[0]


def test_panoramas_show_points_where_colmap_does():
    import pycolmap

    points = torch.randn(200, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    positions, depths, rows = panorama(200, 100).project(torch.cat([points, torch.zeros(1, 3)]))
    assert torch.equal(rows, torch.arange(200))  # nothing shows a camera's center
    torch.testing.assert_close(depths, points.norm(dim=-1))
    K = panorama(200, 100).intrinsics(200, 100)
    camera = pycolmap.Camera(model="EQUIRECTANGULAR", width=200, height=100, params=[200, 100])
    expected = torch.from_numpy(camera.img_from_cam(points.numpy()))
    torch.testing.assert_close(positions * K.diagonal()[:2] + K[:2, 2], expected)
    # The left border of a part that looks back is at 150 degrees.
    part = Lens(60, 50, 60.0, 50.0, -150.0, 25.0, model="equirectangular")
    back = torch.tensor([[0.0, 0.0, -1.0]], dtype=torch.float64)
    assert part.project(back)[0][0, 0] * part.fx + part.cx == pytest.approx(60 * math.pi - 150)
    back = part.project(-torch.tensor([[0.02, 0.0, 1.0]], dtype=torch.float64))[0]
    assert back[0, 0] * part.fx + part.cx == pytest.approx(60 * (math.pi + 0.02) - 150, abs=0.01)
