"""The unscented transform: every lens and shutter against the reference, COLMAP's cameras, and closed forms."""

import itertools
import math
import re

import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.backends import BACKENDS
from tests.support.closeness import assert_exact
from tests.support.lenses import CASES, PARAMETERS, make
from tests.support.slow import slow_after
from tsplat.config import RollingShutterType
from tsplat.stages.lens_models import LensArguments, add_lens


def images_and_gradients(scene, names, **options):
    leaves = scene | {name: scene[name].clone().requires_grad_() for name in names}
    colors, alphas, meta = tsplat.rasterization(**leaves, **options)
    outputs = (colors, alphas)
    gradients = torch.autograd.grad(outputs, [leaves[name] for name in names], scenes.random_like(outputs, 0))
    return *outputs, *gradients, meta


@pytest.mark.parametrize("seed", slow_after(1, [0, 1]))
@pytest.mark.parametrize(("kind", "readout"), PARAMETERS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_images_and_gradients_match_reference(backend, kind, readout, seed):
    scene = make(kind, readout, seed, batch=(2,) if seed else (), sh_degree=2 if seed else None)
    names = ["means", "quats", "scales", "opacities", "colors", "backgrounds"]
    if readout == "GLOBAL":
        names.append("viewmats")
    options = dict(rasterize_mode="antialiased" if seed else "classic", numerics=("gsplat-1.5", "gsplat-1.6")[seed])
    *found, meta = images_and_gradients(scene, names, backend=backend, packed=seed == 0, **options)
    *expected, dense = images_and_gradients(scene, names, backend="reference", packed=False, **options)
    assert (dense["radii"] > 0).all(-1).sum() > 3
    assert torch.equal(meta["radii"], dense["radii"] if seed else dense["radii"][(dense["radii"] > 0).all(-1)])
    for name, one, other in zip(["colors", "alphas", *names], found, expected):
        assert_exact(name, one, other)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", slow_after(2, ["distorted pinhole", "ftheta", "distorted fisheye", "inverse ftheta"]))
def test_fp32_is_close_to_fp64(backend, kind):
    """The weights amplify the rounding of pixels, 3e-5 of 1,000, about 100 times."""
    scene = make(kind, n=200, width=1000, height=800, size=8.0)
    del scene["colors"], scene["backgrounds"], scene["sh_degree"], scene["covars"]
    del scene["with_ut"], scene["rolling_shutter"]

    def project(dtype):
        cast = {name: t.to(dtype) if isinstance(t, torch.Tensor) else t for name, t in scene.items()}
        return tsplat.fully_fused_projection_with_ut(**cast, backend=backend)

    found, expected = project(torch.float32), project(torch.float64)
    both = (found[0] > 0).all(-1) & (expected[0] > 0).all(-1)
    assert both.sum() > 100
    distance = (found[1] - expected[1])[both].norm(dim=-1)
    assert distance.median() < 0.005 and distance.max() < 0.1
    relative = (found[3] - expected[3])[both].norm(dim=-1) / expected[3][both].norm(dim=-1)
    assert relative.median() < 1e-4 and relative.max() < 0.01


def tiny(points, **options):
    """Pixels of small Gaussians [N, 3] that a camera at the origin sees, and whether each is visible."""
    points = torch.as_tensor(points, dtype=torch.float64)
    n = len(points)
    Ks = torch.tensor([[[300.0, 0, 210], [0, 310, 190], [0, 0, 1]]], dtype=torch.float64)
    radii, means2d, *_ = tsplat.fully_fused_projection_with_ut(
        points, torch.tensor([[1.0, 0, 0, 0]]).expand(n, 4), torch.full((n, 3), 2e-7), None, torch.eye(4)[None], Ks,
        width=400, height=400, **options,
    )  # fmt: skip
    return means2d[0], (radii[0] > 0).all(-1)


def coefficients(*values):
    return torch.tensor([values], dtype=torch.float64)


@pytest.mark.parametrize(
    ("colmap", "numbers", "options"),
    [
        ("FULL_OPENCV", (0.1, -0.05, 0.002, -0.003, 0.01, 0.02, -0.01, 0.004), dict(
            radial_coeffs=coefficients(0.1, -0.05, 0.01, 0.02, -0.01, 0.004),
            tangential_coeffs=coefficients(0.002, -0.003),
        )),
        ("OPENCV_FISHEYE", (0.05, -0.02, 0.01, -0.002), dict(
            camera_model="fisheye", radial_coeffs=coefficients(0.05, -0.02, 0.01, -0.002),
        )),
    ],
)  # fmt: skip
def test_lenses_are_those_of_colmap(colmap, numbers, options):
    pycolmap = pytest.importorskip("pycolmap")
    points = torch.randn(200, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    points = points * torch.tensor([0.25, 0.25, 0.3]) + torch.tensor([0.0, 0.0, 1.5])
    camera = pycolmap.Camera(model=colmap, width=400, height=400, params=[300.0, 310, 210, 190, *numbers])
    expected = torch.tensor([camera.img_from_cam(point).tolist() for point in points.numpy()], dtype=torch.float64)
    pixels, visible = tiny(points, **options)
    assert visible.sum() > 100
    torch.testing.assert_close(pixels[visible], expected[visible], rtol=0, atol=1e-6)


def test_thin_prism():
    (pixel,), _ = tiny([[0.2, -0.1, 1.0]], thin_prism_coeffs=coefficients(0.1, 0.2, -0.3, 0.4))
    square = 0.2**2 + 0.1**2
    x, y = 0.2 + 0.1 * square + 0.2 * square**2, -0.1 - 0.3 * square + 0.4 * square**2
    torch.testing.assert_close(pixel, torch.tensor([300 * x + 210, 310 * y + 190], dtype=torch.float64))


def test_agrees_with_ewa_as_gaussians_shrink():
    """The error of the linearization is proportional to the square of the size."""
    scene = make("pinhole", n=100, size=2.0)
    names = ("means", "quats", "scales", "opacities", "viewmats", "Ks", "width", "height")
    errors = []
    for size in (0.4, 0.2, 0.1):
        given = {name: scene[name] for name in names} | {"scales": scene["scales"] * size, "eps2d": 0.0}
        _, means2d, _, conics, _ = tsplat.fully_fused_projection(covars=None, **given)
        radii, found2d, _, found, _ = tsplat.fully_fused_projection_with_ut(**given)
        inside = (radii > 0).all(-1) & (conics[..., 0] > 0)
        inside &= ((means2d > 0) & (means2d < torch.tensor([21, 19]))).all(-1)  # the Jacobian of EWA is not clamped
        assert inside.sum() > 30
        relative = (found - conics)[inside].norm(dim=-1) / conics[inside].norm(dim=-1)
        errors.append((relative.median(), (found2d - means2d)[inside].norm(dim=-1).median()))
    for large, small in itertools.pairwise(errors):
        assert all(3 < one / other < 5 for one, other in zip(large, small))


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_poses_of_a_rolling_shutter_equal_a_global_one(backend):
    scene = make("distorted pinhole", sh_degree=1)
    still = scene | dict(rolling_shutter="ROLLING_TOP_TO_BOTTOM", viewmats_rs=scene["viewmats"])
    found, expected = (tsplat.rasterization(**each, backend=backend)[0] for each in (still, scene))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("numerics", ["gsplat-1.5", "gsplat-1.6"])
@pytest.mark.parametrize(
    ("readout", "axis"),
    [("ROLLING_TOP_TO_BOTTOM", 1), ("ROLLING_BOTTOM_TO_TOP", 1), ("ROLLING_LEFT_TO_RIGHT", 0),
     ("ROLLING_RIGHT_TO_LEFT", 0)],
)  # fmt: skip
def test_rolling_shutter_shows_each_point_when_its_row_is_read(readout, axis, numerics):
    """The camera moves sideways and turns about its axis, so rows and columns are where a still camera has them."""
    points = torch.rand(50, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    points = torch.cat([0.8 * points[:, :2] - 0.4, points[:, 2:] + 1.5], -1)
    end = torch.eye(4, dtype=torch.float64)[None].clone()
    end[0, 1 - axis, 3] = 0.05  # across the direction of the readout
    pixels, visible = tiny(points, viewmats_rs=end, rolling_shutter=RollingShutterType[readout], numerics=numerics)
    still, _ = tiny(points)
    assert visible.all()
    along = still[:, axis]
    from_the_end = readout in ("ROLLING_BOTTOM_TO_TOP", "ROLLING_RIGHT_TO_LEFT")
    if numerics == "gsplat-1.6":
        along = along.floor() + 0.5  # the center of the line
    time = (399.5 - along if from_the_end else along - 0.5) / 399
    torch.testing.assert_close(pixels[:, axis], still[:, axis], rtol=0, atol=1e-6)
    moved = (300.0, 310.0)[1 - axis] * 0.05 * time / points[:, 2]
    torch.testing.assert_close(pixels[:, 1 - axis] - still[:, 1 - axis], moved, rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@pytest.mark.parametrize(("readout", "lines"), [("ROLLING_TOP_TO_BOTTOM", 190), ("ROLLING_BOTTOM_TO_TOP", 210)])
def test_borders_of_whole_lines_are_exposed_with_the_later_line(backend, readout, lines):
    """The mean is on the border of rows 189 and 190 of 400, and one of seven sigma points in the row read first.

    Its weight moves the Gaussian by much more than a line's motion, as in gsplat.
    """
    end = torch.eye(4, dtype=torch.float64)[None].clone()
    end[0, 0, 3] = 0.1
    scene = dict(
        means=torch.tensor([[0.0, 0, 1]], dtype=torch.float64), quats=torch.tensor([[1.0, 0, 0, 0]]),
        scales=torch.full((1, 3), 2e-7), opacities=torch.ones(1), colors=torch.ones(1, 1), viewmats_rs=end,
        viewmats=torch.eye(4, dtype=torch.float64)[None], width=400, height=400,
        Ks=torch.tensor([[[300.0, 0, 210], [0, 310, 190], [0, 0, 1]]], dtype=torch.float64),
    )  # fmt: skip
    options = dict(with_ut=True, rolling_shutter=readout, numerics="gsplat-1.6", packed=False, backend=backend)
    found = tsplat.rasterization(**scene, **options)[2]["means2d"][0, 0, 0]
    weight = 0.5 / (0.1**2 * 3)
    assert abs(found - (210 + 30 / 399 * (lines - weight))) < 1e-4


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
def test_points_that_are_not_seen_are_exposed_at_the_end_of_whole_lines(backend):
    """The mean is seen when its row is read; two of seven sigma points are outside of the image all the time."""
    end = torch.eye(4, dtype=torch.float64)[None].clone()
    end[0, 0, 3] = 0.1
    scene = dict(
        means=torch.tensor([[0.0, 0, 1]], dtype=torch.float64), quats=torch.tensor([[1.0, 0, 0, 0]]),
        scales=torch.tensor([[1e-3, 8.0, 1e-3]]), opacities=torch.ones(1), colors=torch.ones(1, 1), viewmats_rs=end,
        viewmats=torch.eye(4, dtype=torch.float64)[None], width=400, height=400,
        Ks=torch.tensor([[[300.0, 0, 210], [0, 310, 190.5], [0, 0, 1]]], dtype=torch.float64),
    )  # fmt: skip
    options = dict(with_ut=True, rolling_shutter="ROLLING_TOP_TO_BOTTOM", numerics="gsplat-1.6", packed=False)
    weight = 0.5 / (0.1**2 * 3)
    found = tsplat.rasterization(**scene, **options, backend=backend)[2]["means2d"][0, 0, 0]
    # Both are at 240 pixels, those of row 190 at 210 + 30 * 190 / 399.
    assert abs(found - (210 + 30 * 190 / 399 + 2 * weight * 30 * (1 - 190 / 399))) < 1e-3


def test_panoramas_have_no_whole_lines():
    scene = make("partial equirectangular", "ROLLING_TOP_TO_BOTTOM", n=30)
    found, expected = (
        tsplat.rasterization(**scene, packed=False, numerics=numerics)[2]["means2d"]
        for numerics in ("gsplat-1.6", "gsplat-1.5")
    )
    visible = (found != 0).any(-1) & (expected != 0).any(-1)
    assert visible.sum() > 20 and torch.equal(found[visible], expected[visible])


@pytest.mark.parametrize("first", [0.0, -1.8])
def test_rotation_during_the_readout_has_a_constant_rate(first):
    """A turn of 0.4 about the optical axis; the point is in the middle row of three when half of it is done."""
    start, middle, end = (
        scenes._small_rotations(torch.tensor([0.0, 0, first + angle], dtype=torch.float64)) for angle in (0.0, 0.2, 0.4)
    )
    poses = torch.eye(4, dtype=torch.float64).repeat(2, 1, 1)
    poses[0, :3, :3], poses[1, :3, :3] = start, end
    point = middle.T @ torch.tensor([1.0, 0, 10], dtype=torch.float64)
    Ks = torch.tensor([[[10.0, 0, 1.0], [0, 10, 1.5], [0, 0, 1]]], dtype=torch.float64)
    _, means2d, *_ = tsplat.fully_fused_projection_with_ut(
        point[None], torch.tensor([[1.0, 0, 0, 0]]), torch.full((1, 3), 1e-6), None, poses[:1], Ks, width=3, height=3,
        viewmats_rs=poses[1:], rolling_shutter="ROLLING_TOP_TO_BOTTOM",
    )  # fmt: skip
    torch.testing.assert_close(means2d[0, 0], torch.tensor([2.0, 1.5], dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_outside_of_the_domain_of_a_lens_is_culled(backend):
    barrel = dict(radial_coeffs=coefficients(-0.3, 0, 0, 0, 0, 0))
    _, visible = tiny([[0, 0.5, 1.0], [0, 0.85, 1.0], [0, 2.5, 1.0], [0, 0, -1.0]], backend=backend, **barrel)
    assert visible.tolist() == [True, False, False, False]  # 0.85 would be shown within the image
    folding = dict(camera_model="fisheye", radial_coeffs=coefficients(-0.2, 0, 0, 0))
    last = 1 / math.sqrt(0.6)  # where theta - 0.2 theta^3 stops to grow
    angles = torch.tensor([0.5, last - 0.02, last + 0.02, 1.5], dtype=torch.float64)
    points = torch.stack([torch.zeros_like(angles), angles.sin(), angles.cos()], -1)
    Ks = torch.tensor([[[100.0, 0, 200], [0, 100, 200], [0, 0, 1]]], dtype=torch.float64)
    radii, *_ = tsplat.fully_fused_projection_with_ut(
        points, torch.tensor([[1.0, 0, 0, 0]]).expand(4, 4), torch.full((4, 3), 1e-6), None, torch.eye(4)[None], Ks,
        width=400, height=400, backend=backend, **folding,
    )  # fmt: skip
    assert (radii[0] > 0).all(-1).tolist() == [True, True, False, False]


@pytest.mark.parametrize("backend", BACKENDS)
def test_numerics_decide_whether_flat_gaussians_are_culled(backend):
    """The fourth has a scale of 0 along one axis, the fifth one above the least of gsplat 1.6."""
    scene = make(*CASES[0], n=12, batch=(), cameras=2, dtype=torch.float32) | {"packed": False}
    scene["means"][3:5], scene["scales"][3:5] = scene["means"].mean(0), 0.3
    scene["scales"][3, 1], scene["scales"][4, 2] = 0.0, -2e-7
    flat = []
    for numerics in ("gsplat-1.5", "gsplat-1.6"):
        leaves = {name: scene[name].clone().requires_grad_() for name in ("means", "scales")}
        image, _, meta = tsplat.rasterization(**scene | leaves, numerics=numerics, backend=backend)
        expected, _, expected_meta = tsplat.rasterization(**scene, numerics=numerics, backend="reference")
        flat.append(meta["radii"][:, 3].any().item())
        assert torch.equal(meta["radii"][:, 3:5] > 0, expected_meta["radii"][:, 3:5] > 0)
        assert meta["radii"][:, 4].any() and int(meta["n_invalid"]) == 0
        torch.testing.assert_close(image, expected, rtol=0, atol=1e-4)
        image.sum().backward()
        assert leaves["scales"].grad.isfinite().all() and leaves["means"].grad[3].any() == flat[-1]
    assert flat == [True, False]


def test_sigma_points_outside_of_the_image():
    """One of seven is outside of the margin: culled, unless one valid point is enough."""
    given = dict(
        means=torch.tensor([[0.0, 0, 1]]), quats=torch.tensor([[1.0, 0, 0, 0]]), scales=torch.tensor([[4.0, 0.1, 0.1]]),
        opacities=None, viewmats=torch.eye(4)[None], Ks=torch.tensor([[[100.0, 0, 50], [0, 100, 50], [0, 0, 1]]]),
        width=100, height=100,
    )  # fmt: skip

    def sees(numerics="gsplat-1.5", **parameters):
        ut_params = tsplat.UnscentedTransformParameters(**parameters) if parameters else None
        return bool(tsplat.fully_fused_projection_with_ut(**given, ut_params=ut_params, numerics=numerics)[0].any())

    assert not sees() and sees("gsplat-1.6")
    assert sees(in_image_margin_factor=0.3) and sees(require_all_sigma_points_valid=False)
    assert not sees("gsplat-1.6", require_all_sigma_points_valid=True)
    assert sees(alpha=0.05)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kind", "readout"), slow_after(1, [CASES[6], CASES[3], CASES[-1]]))
def test_special_values_give_finite_images_and_gradients(backend, kind, readout):
    scene = make(kind, readout, n=12, dtype=torch.float32, cameras=1)
    means, scales = scene["means"], scene["scales"]
    means[0] = torch.linalg.inv(scene["viewmats"][0])[:3, 3]  # the center of the camera
    means[1], means[2], means[3] = 1e30, -means[3], torch.tensor([0.0, 0, 1e-20])
    scales[4], scales[5], scales[6], scales[7, 0] = 0.0, 1e6, 1e-30, 0.0
    *found, _ = images_and_gradients(scene, ["means", "quats", "scales", "opacities"], backend=backend)
    assert all(t.isfinite().all() for t in found)
    assert found[1].max() > 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("name", "n_own"), [("radial_coeffs", 1), ("viewmats_rs", 2)])
def test_invalid_cameras_see_nothing(backend, name, n_own):
    scene = make("distorted pinhole", "ROLLING_TOP_TO_BOTTOM")
    expected = tsplat.rasterization(**scene, backend=backend)[0]
    broken = scene[name].clone()
    broken[(1, *[0] * n_own)] = torch.nan
    colors, alphas, _ = tsplat.rasterization(**scene | {name: broken}, backend=backend)
    assert torch.equal(colors[0], expected[0]) and not alphas[1].any()
    remedy = "check the coefficients" if name == "radial_coeffs" else "check viewmats_rs"
    with pytest.raises(tsplat.InvalidValueError, match=f"1 of 2 cameras are not finite .*{remedy}"):
        tsplat.rasterization(**scene | {name: broken}, backend=backend, validate="error")


ROLLS = "ROLLING_TOP_TO_BOTTOM"
END = torch.eye(4, dtype=torch.float64).expand(2, 4, 4)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (dict(with_ut=False, radial_coeffs=torch.zeros(2, 6)), "Argument", "radial_coeffs: requires with_ut=True"),
        (dict(with_ut=False, rolling_shutter=ROLLS), "Argument", "rolling_shutter: requires with_ut=True"),
        (dict(with_ut=False, viewmats_rs=END), "Argument", "viewmats_rs: requires with_ut=True"),
        (dict(with_ut=False, ut_params=tsplat.UnscentedTransformParameters()), "Argument", "ut_params: requires"),
        (dict(rolling_shutter=ROLLS), "Argument", "viewmats_rs: expected the poses at the end of the readout"),
        (dict(viewmats_rs=END), "Argument", "viewmats_rs: expected None, as rolling_shutter is GLOBAL"),
        (dict(rolling_shutter="SIDEWAYS"), "Argument", "rolling_shutter: expected one of 'ROLLING_TOP_TO_BOTTOM'"),
        (dict(radial_coeffs=torch.zeros(2, 4)), "Shape", "radial_coeffs: expected [..., C, 6] as viewmats"),
        (dict(tangential_coeffs=torch.zeros(1, 2)), "Shape", "tangential_coeffs: expected [..., C, 2]"),
        (dict(thin_prism_coeffs=torch.zeros(2, 4, dtype=torch.int64)), "Dtype", "thin_prism_coeffs: expected"),
        (dict(camera_model="fisheye", tangential_coeffs=torch.zeros(2, 2)), "Argument",
         "tangential_coeffs: expected None for fisheye cameras"),
        (dict(camera_model="ortho", radial_coeffs=torch.zeros(2, 6)), "Argument", "radial_coeffs: expected None"),
        (dict(covars=torch.eye(3).expand(15, 3, 3), quats=None, scales=None), "Argument", "covars: expected None"),
        (dict(ut_params=tsplat.UnscentedTransformParameters(alpha=0.0)), "Argument", "ut_params: expected alpha^2"),
        (dict(ut_params=tsplat.UnscentedTransformParameters(beta=math.nan)), "Argument", "ut_params.beta: expected"),
        (dict(ut_params=0.1), "Argument", "ut_params.alpha: expected a finite number, found None"),
        (dict(ftheta_coeffs=object()), "Argument", "ftheta_coeffs: expected None for pinhole cameras"),
        (dict(camera_model="ftheta", with_ut=False), "Unsupported", "camera_model: 'ftheta' is not implemented"),
    ],
)  # fmt: skip
def test_errors(change, error, words):
    scene = make("pinhole") | change
    with pytest.raises(getattr(tsplat, f"{error}Error"), match=re.escape(words)):
        tsplat.rasterization(**scene)


def test_domain_of_fisheye_lenses():
    def largest(*values):
        cameras = tsplat.data.Cameras(torch.eye(4)[None], torch.eye(3)[None])
        settings = tsplat.data.ProjectionSettings(
            tsplat.config.CameraSettings(10, 10, "fisheye"),
            unscented=tsplat.config.Unscented.of(tsplat.UnscentedTransformParameters(), tsplat.config.DEFAULT_NUMERICS),
        )
        lens = add_lens(cameras, LensArguments(coefficients(*values)), settings, torch.Size(), 1).lens
        return lens[0, 4].item()

    assert largest(0, 0, 0, 0) == pytest.approx(math.pi)
    assert largest(0.1, 0, 0, 0) == pytest.approx(math.pi)
    assert largest(-0.1, 0, 0, 0) == pytest.approx(1 / math.sqrt(0.3))
    # 1 - 3 t^2 + 2.1 t^4 is 0 at two angles; the first counts.
    assert largest(-1, 0.42, 0, 0) == pytest.approx(math.sqrt((3 - math.sqrt(9 - 8.4)) / 4.2))
