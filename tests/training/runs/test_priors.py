"""Maps of depth and normals as losses of a run."""

import dataclasses
import re
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.captures import write_scene
from tests.support.training_scenes import make_gaussians, make_views
from tsplat import ArgumentError, UnsupportedError, cli
from tsplat.errors import FileError, MissingExtraError
from tsplat.rendering import render_views
from tsplat.scene import Capture
from tsplat.scene.capture.local_frame import LocalFrame
from tsplat.scene.exr_maps import choose_channels
from tsplat.training import Config, RunConfig, Trainer
from tsplat.training.runs.priors import note_fits, read_priors


@pytest.fixture
def capture():
    """Views of 40×30 pixels, named 0.png to 3.png."""
    gaussians, views = make_gaussians(), []
    for view in make_views(gaussians, 4):
        camera = dataclasses.replace(view.camera, name=f"{view.name}.png")
        views.append(dataclasses.replace(view, camera=camera))
    return Capture(tuple(views[:3]), tuple(views[3:]), gaussians.means, torch.rand(60, 3))


def config(folder, **options):
    return RunConfig(**dict(depth_prior=str(folder), depth_weight=0.1) | options)


def test_maps_are_read_resized_and_normalized(capture, tmp_path):
    depth = np.linspace(0, 1, 60 * 80, dtype=np.float64).reshape(60, 80)
    np.save(tmp_path / "0.npy", depth)
    Image.fromarray(np.full((30, 40), 32768, np.uint16)).save(tmp_path / "1.png")
    found = read_priors(capture, config(tmp_path))
    first, second, third = (view.depth_prior for view in found.train)
    assert float(first[10:20, 10:30].mean()) == pytest.approx(depth[20:40, 20:60].mean(), abs=1e-4)
    assert first.shape == (30, 40) and third is None and (second - 0.5).abs().max() < 1e-4
    assert found.notes == ("1 of 3 training views have no depth_prior",) and found.test == capture.test
    assert found.train[0].files == (tmp_path / "0.npy",)
    normals = np.zeros((30, 40, 3), np.uint8)
    normals[..., 0] = 255
    Image.fromarray(normals).save(tmp_path / "2.png")
    (tmp_path / "0.npy").unlink(), (tmp_path / "1.png").unlink()
    options = dict(depth_prior="", normal_prior=str(tmp_path), normal_weight=0.1)
    prior = read_priors(capture, config(tmp_path, **options)).train[2].normal_prior
    torch.testing.assert_close(prior[3, 4], torch.tensor([3**-0.5, -(3**-0.5), -(3**-0.5)]))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((30, 30)), "expected the aspect ratio of the image, 40×30, found 30×30"),
        (np.zeros((30, 40, 3)), r"expected numbers \[H, W\], found float64 \[30, 40, 3\]"),
        (np.zeros((30, 40), bool), r"expected numbers .* found bool"),
        (np.zeros((0, 40)), "expected numbers"),
        (b"", "cannot be read as a map"),
        (b"damaged", "cannot be read as a map"),
        (np.full((30, 40), np.nan), r"expected maps of inverse depth.*all values are zero or not finite"),
        (None, r"has no file for any training view; for '0\.png', expected .*0\.npy, or \.exr or \.png there"),
    ],
)
def test_files_that_do_not_fit_are_errors(capture, tmp_path, values, message):
    if isinstance(values, bytes):
        (tmp_path / "1.npy").write_bytes(values)
    elif values is not None:
        np.save(tmp_path / "1.npy", values)
    with pytest.raises(FileError, match=message):
        read_priors(capture, config(tmp_path))


def test_priors_without_a_weight_are_refused(capture, tmp_path):
    for name, weight in (("depth_prior", "depth_weight"), ("normal_prior", "normal_weight")):
        with pytest.raises(ArgumentError, match=f"{name}: has no effect, as {weight} is 0"):
            read_priors(capture, RunConfig(**{name: str(tmp_path)}))


@pytest.mark.slow
@pytest.mark.parametrize("is_flat", [False, True])
@pytest.mark.parametrize("kind", ["depth_prior", "normal_prior"])
def test_training_follows_a_prior(capture, kind, is_flat):
    """Gaussians that were moved approach the depths of before, up to scale and shift; or a normal."""
    gaussians = make_gaussians()
    gaussians = gaussians.as_surfels() if is_flat else gaussians
    options = dict(render_mode="RGB+ED", backend="torch")
    views = []
    for view in capture.train:
        with torch.no_grad():
            images, _, _ = render_views(gaussians, [view.camera], **options)
        normal = torch.nn.functional.normalize(torch.tensor([0.2, 0.1, -1.0]), dim=0)
        depths = 3 / images[0, ..., 3].clamp_min(0.1) + 1
        views.append(dataclasses.replace(view, **{kind: depths if kind == "depth_prior" else normal.expand(30, 40, 3)}))
    generator = torch.Generator().manual_seed(1)
    start = dataclasses.replace(gaussians, means=gaussians.means + 0.1 * torch.randn(60, 3, generator=generator))
    weights = {"depth_weight" if kind == "depth_prior" else "normal_weight": 3.0}
    trainer = Trainer(start, views, Config(steps=200, means_rate=2e-3, quats_rate=1e-2, backend="torch", **weights))

    @torch.no_grad()
    def measure():
        (loss,) = trainer._view_gradients._active_losses(20)
        each = [loss(*render_views(trainer.gaussians, [v.camera], **options), v) for v in views]
        return sum(map(float, each))

    before = measure()
    for _ in range(40):
        trainer.advance()
    assert measure() < 0.9 * before


def test_normals_of_depth_maps_need_pinhole_cameras(capture):
    fisheye = dataclasses.replace(capture.train[0].camera, model="fisheye")
    view = dataclasses.replace(capture.train[0], camera=fisheye, normal_prior=torch.zeros(30, 40, 3))
    with pytest.raises(UnsupportedError, match="normal_prior: expected pinhole cameras"):
        Trainer(make_gaussians(), [view], Config(normal_weight=0.1))


def test_command_reads_priors(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scene = write_scene(tmp_path / "scene")
    maps = tmp_path / "maps"
    maps.mkdir()
    command = ["train", str(scene), "--out", str(tmp_path / "run"), "--steps", "2", "--backend", "torch"]
    command += ["--depth-prior", "maps", "--depth-weight", "0.1"]
    assert cli.main(command) == 2
    assert "has no file for any training view" in capsys.readouterr().err
    for path in (scene / "images").iterdir():
        with Image.open(path) as image:
            np.save(maps / f"{path.stem}.npy", np.random.default_rng(0).random((image.height, image.width)))
    assert cli.main(command) == 0
    monkeypatch.chdir(maps)
    assert cli.main(["train", "--resume", str(tmp_path / "run")]) == 0
    (maps / "02.npy").write_bytes((maps / "02.npy").read_bytes()[:-8] + bytes(8))
    assert cli.main(["train", "--resume", str(tmp_path / "run")]) == 2
    assert "02.png" in capsys.readouterr().err


def points_of(view, n=300):
    """Points at known depths that a view shows in all of its pixels, and its inverse depth, [H, W]."""
    y, x = torch.meshgrid(torch.arange(view.height) + 0.5, torch.arange(view.width) + 0.5, indexing="ij")
    depths = 2 + torch.sin(x / 9) * torch.cos(y / 7)
    sparse = torch.stack([x, y, depths], -1).view(-1, 3)[:: view.height * view.width // n]
    return sparse, 1 / depths


@pytest.fixture
def posed(capture):
    """The capture, whose views have sparse points of known depths."""
    return dataclasses.replace(
        capture, train=tuple(dataclasses.replace(view, sparse=points_of(view)[0]) for view in capture.train)
    )


@pytest.mark.parametrize("kind", ["inverse", "scaled", "depth", "millimeters", "one"])
def test_metric_depth_is_refused(posed, tmp_path, kind):
    for i, view in enumerate(posed.train):
        inverse = points_of(view)[1].numpy()
        inverse[:3] = 0
        depth = np.where(inverse > 0, 1 / np.where(inverse > 0, inverse, 1), 0)
        if kind == "millimeters":
            Image.fromarray((depth * 1000).astype(np.uint16)).save(tmp_path / f"{i}.png")
            continue
        values = {"inverse": inverse, "scaled": 7 * inverse - 90, "depth": depth, "one": inverse if i else depth}[kind]
        np.save(tmp_path / f"{i}.npy", values)
    if kind in ("inverse", "scaled", "one"):  # one map of three may be wrong
        assert all(view.depth_prior is not None for view in read_priors(posed, config(tmp_path)).train)
        return
    with pytest.raises(
        FileError,
        match=r"maps of inverse depth, .*; the maps of 3 of 3 views.*--depth-kind metric.* write 1 / depth, and 0",
    ):
        read_priors(posed, config(tmp_path))


@pytest.mark.parametrize("is_random", [False, True])
def test_metric_depth_is_compared_with_visible_points(capture, tmp_path, is_random):
    """Without observations, points of the capture are projected, and nearer ones hide those behind them."""
    from tsplat.scene.cameras import project_points

    generator = torch.Generator().manual_seed(0)
    near = torch.rand(5000, 3, generator=generator) * torch.tensor([2.0, 2.0, 0.5]) - torch.tensor([1.0, 1.0, 0.25])
    capture = dataclasses.replace(capture, points=near, random_points=is_random)
    for i, view in enumerate(capture.train):
        u, v, depths, inside = project_points(view.camera, near)
        shown = torch.full((view.height * view.width,), torch.inf)
        pixels = (v[inside].long() * view.width + u[inside].long(), depths[inside])
        shown = shown.scatter_reduce(0, *pixels, "amin").view(view.height, view.width)
        assert shown.isfinite().sum() > 50
        np.save(tmp_path / f"{i}.npy", np.where(shown.isfinite(), shown, 0))
    if is_random:
        read_priors(capture, config(tmp_path))
        return
    with pytest.raises(FileError, match="expected maps of inverse depth"):
        read_priors(capture, config(tmp_path))
    for path in tmp_path.glob("*.npy"):
        depth = np.load(path)
        np.save(path, 1 / np.where(depth > 0, depth, np.inf))
    read_priors(capture, config(tmp_path))


@pytest.mark.parametrize("unknown", [0.0, np.nan, np.inf])
@pytest.mark.parametrize("size", [(30, 40), (60, 80), (15, 20)])
def test_unknown_depths_are_not_averaged(capture, tmp_path, unknown, size):
    depth = np.full(size, 0.5, np.float32)
    depth[:, : size[1] // 2 + 1] = unknown
    np.save(tmp_path / "0.npy", depth)
    prior = read_priors(capture, config(tmp_path)).train[0].depth_prior
    known = prior.isfinite()
    assert torch.allclose(prior[known], torch.tensor(0.5), rtol=1e-6)
    assert not known[:, :19].any() and known[:, 23:].all()


def test_normals_of_another_frame_are_refused(capture, tmp_path):
    options = dict(depth_prior="", normal_prior=str(tmp_path), normal_weight=0.1)
    normals = np.tile(np.float32([0.1, 0.2, -0.9]), (30, 40, 1))
    for sign in (1, -1):
        for i in range(3):
            np.save(tmp_path / f"{i}.npy", normals * np.float32([1, sign, sign]))
        if sign > 0:
            assert all(
                view.normal_prior is not None for view in read_priors(capture, config(tmp_path, **options)).train
            )
            continue
        with pytest.raises(FileError, match="in 3 of 3 views, most normals point away; negate y and z"):
            read_priors(capture, config(tmp_path, **options))


def test_black_pixels_of_normals_are_unknown(capture, tmp_path):
    normals = np.full((30, 40, 3), (128, 128, 0), np.uint8)
    normals[:, :20] = 0
    normals[:, 30:] = 128
    Image.fromarray(normals).save(tmp_path / "0.png")
    options = dict(depth_prior="", normal_prior=str(tmp_path), normal_weight=0.1)
    prior = read_priors(capture, config(tmp_path, **options)).train[0].normal_prior
    assert not prior[:, :20].any() and not prior[:, 30:].any()
    torch.testing.assert_close(prior[:, 20:30].norm(dim=-1), torch.ones(30, 10))


def test_depth_that_fits_with_a_negative_scale_is_noted(capture, tmp_path):
    """Of a scene without sparse points, when training has ended."""
    gaussians, views = make_gaussians(), []
    for view in capture.train:
        with torch.no_grad():
            images, _, _ = render_views(gaussians, [view.camera], render_mode="RGB+ED", backend="torch")
        views.append(dataclasses.replace(view, depth_prior=images[0, ..., 3].clamp_min(0.1)))
    for inverse in (False, True):
        given = [dataclasses.replace(v, depth_prior=1 / v.depth_prior) if inverse else v for v in views]
        trainer = Trainer(gaussians, given, Config(steps=3, backend="torch", depth_weight=0.1))
        for _ in range(3):
            trainer.advance()
        notes = note_fits(trainer.prior_scales)
        assert len(trainer.prior_scales) == 3 and bool(notes) != inverse
        assert inverse or "maps of 3 of 3 views are small where the model is near" in notes[0]


def write_maps(folder, views, values):
    """Writes a map of inverse depths per view, after a function of the inverse depth and the cosine of the ray."""
    for i, view in enumerate(views):
        y, x = torch.meshgrid(torch.arange(view.height) + 0.5, torch.arange(view.width) + 0.5, indexing="ij")
        K = view.camera.K
        rays = torch.stack([(x - K[0, 2]) / K[0, 0], (y - K[1, 2]) / K[1, 1], torch.ones_like(x)], -1)
        np.save(folder / f"{i}.npy", values(points_of(view)[1], 1 / rays.norm(dim=-1), i).numpy())


METRIC, DISPARITY = dict(depth_kind="metric"), dict(depth_kind="disparity")


@pytest.mark.parametrize("unit", [0.0, 0.001])
@pytest.mark.parametrize("along", ["z", "ray"])
def test_metric_maps_become_inverse_depths_of_the_local_frame(posed, tmp_path, along, unit):
    frame = LocalFrame(origin=(1.0, 2.0, 3.0), unit=4.0)  # one unit here is 4 of the files
    posed = dataclasses.replace(posed, frame=frame)

    def millimeters(inverse, cosine, _):
        return torch.where(inverse > 0.4, 0.0, 4000 / inverse / (cosine if along == "ray" else 1))

    write_maps(tmp_path, posed.train, millimeters)
    found = read_priors(posed, config(tmp_path, **METRIC, depth_along=along, depth_unit=unit))
    for view in found.train:
        inverse = points_of(view)[1]
        assert torch.equal(view.depth_prior.isfinite(), inverse <= 0.4)
        known = inverse <= 0.4
        assert torch.allclose(view.depth_prior[known], inverse[known], rtol=1e-4 if unit else 2e-3)
    told = "depth_prior: one unit of the maps is 0.001 units of the scene's files, by the sparse points of 3 views"
    assert found.notes == (() if unit else (told,))


def test_the_unit_of_metric_maps_without_points_must_be_given(capture, tmp_path):
    capture = dataclasses.replace(capture, random_points=True)
    write_maps(tmp_path, capture.train, lambda inverse, *_: 1 / inverse)
    with pytest.raises(ArgumentError, match="depth_unit: the unit of the metric maps"):
        read_priors(capture, config(tmp_path, **METRIC))
    found = read_priors(capture, config(tmp_path, **METRIC, depth_unit=2.0)).train[1]
    assert torch.allclose(2 * found.depth_prior, points_of(found)[1], rtol=1e-5)
    Image.fromarray((5000 / points_of(found)[1]).numpy().astype(np.uint16)).save(tmp_path / "1.png")
    (tmp_path / "1.npy").unlink()
    found = read_priors(capture, config(tmp_path, **METRIC, depth_unit=2e-4)).train[1]
    assert torch.allclose(found.depth_prior, points_of(found)[1], rtol=1e-3)


@pytest.mark.parametrize(
    ("options", "values", "message"),
    [
        (METRIC, lambda inverse, *_: inverse, "expected maps of depth, small where .* large .*--depth-kind inverse"),
        (DISPARITY, lambda inverse, *_: 1 / inverse, "expected maps of disparity.*--depth-kind metric"),
        (METRIC, lambda inverse, cosine, i: 2.0**i / inverse, "units of views deviate.*--depth-kind disparity"),
        (METRIC, lambda inverse, cosine, _: 1 / inverse / cosine, "maps of 3 of 3 views.*--depth-along ray"),
        (METRIC | dict(depth_along="ray"), lambda inverse, *_: 1 / inverse, "3 of 3 views.*--depth-along z"),
        (METRIC, lambda inverse, *_: -1 / inverse, "expected maps of depth.* are zero, negative or not finite"),
        (METRIC | dict(depth_unit=1.0), lambda inverse, cosine, i: 2.0**i / inverse, "from the estimate by 69%"),
        (DISPARITY, lambda inverse, *_: inverse - 0.3, "differ from sparse points by.*--depth-kind inv"),
    ],
)  # fmt: skip
def test_maps_of_another_kind_are_said(posed, tmp_path, options, values, message):
    write_maps(tmp_path, posed.train, values)
    try:
        found = "\n".join(read_priors(posed, config(tmp_path, **options)).notes)
    except FileError as error:
        found = str(error)
    assert re.search(message, found), found


@pytest.mark.parametrize(
    ("unit", "told"),
    [
        (0.001, None),
        (0.0011, None),
        (1.0, "one unit of the maps is 0.001 units of the scene's files, .* but depth_unit is 1; leave it out"),
    ],
)
def test_another_unit_than_that_of_the_points_is_said(posed, tmp_path, unit, told):
    write_maps(tmp_path, posed.train, lambda inverse, *_: 1000 / inverse)
    found = read_priors(posed, config(tmp_path, **METRIC, depth_unit=unit))
    inverse = points_of(found.train[1])[1]
    assert torch.allclose(found.train[1].depth_prior, 0.001 / unit * inverse, rtol=1e-4)  # the given unit is used
    assert found.notes == () if told is None else len(found.notes) == 1 and re.search(told, found.notes[0])


@pytest.mark.parametrize("kind", ["metric", "disparity", "inverse"])
def test_maps_of_the_right_kind_have_no_note(posed, tmp_path, kind):
    values = {
        "metric": lambda inverse, *_: 1 / inverse,
        "disparity": lambda inverse, _, i: 7.0**i * inverse,
        "inverse": lambda inverse, _, i: 7.0**i * inverse - 90,
    }[kind]
    write_maps(tmp_path, posed.train, values)
    notes = read_priors(posed, config(tmp_path, depth_kind=kind)).notes
    assert [note for note in notes if "one unit of the maps is 1 units" not in note] == []


def test_confidences_weigh_the_differences(posed, tmp_path):
    (tmp_path / "depth").mkdir(), (tmp_path / "sure").mkdir()
    write_maps(tmp_path / "depth", posed.train, lambda inverse, *_: 1 / inverse)
    levels = np.tile(np.arange(40) // 14, (30, 1)).astype(np.uint8)  # 0, 1, 2
    Image.fromarray(levels).save(tmp_path / "sure" / "0.png")
    np.save(tmp_path / "sure" / "1.npy", np.full((60, 80), 0.25, np.float32))
    options = dict(depth_kind="metric", depth_confidence=str(tmp_path / "sure"))
    found = read_priors(posed, config(tmp_path / "depth", **options))
    first, second, third = (view.depth_confidence for view in found.train)
    assert torch.allclose(first, torch.from_numpy(levels) / 2) and third is None
    assert torch.allclose(second, torch.tensor(0.25))
    assert "1 of 3 training views have no depth_confidence" in found.notes
    np.save(tmp_path / "sure" / "1.npy", np.full((30, 40), 1.5))
    with pytest.raises(FileError, match=r"expected confidences from 0 to 1, found 1\.5 to 1\.5"):
        read_priors(posed, config(tmp_path / "depth", **options))


def test_rays_of_fisheye_lenses(posed, tmp_path):
    views = [
        dataclasses.replace(view, camera=dataclasses.replace(view.camera, model="fisheye")) for view in posed.train
    ]
    posed = dataclasses.replace(posed, train=tuple(views))
    camera = views[0].camera
    y, x = torch.meshgrid(torch.arange(30) + 0.5, torch.arange(40) + 0.5, indexing="ij")
    theta = torch.hypot((x - camera.K[0, 2]) / camera.K[0, 0], (y - camera.K[1, 2]) / camera.K[1, 1])
    write_maps(tmp_path, views, lambda inverse, *_: 1 / inverse / theta.cos())
    found = read_priors(posed, config(tmp_path, **METRIC, depth_along="ray")).train[0]
    assert torch.allclose(found.depth_prior, points_of(found)[1], rtol=2e-3)
    bent = dataclasses.replace(camera, distortion=torch.full((4,), 0.01))
    posed = dataclasses.replace(posed, train=(dataclasses.replace(views[0], camera=bent),))
    with pytest.raises(UnsupportedError, match=r"depth_along: not implemented for the distorted lens of '0\.png'"):
        read_priors(posed, config(tmp_path, **METRIC, depth_along="ray"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (dict(depth_kind="metric"), "depth_kind: has no effect without depth_prior"),
        (dict(depth_confidence="a"), "depth_confidence: has no effect without depth_prior"),
        (dict(depth_prior="a", depth_unit=2.0), "depth_unit: only for maps of the kind metric, found 'inverse'"),
        (dict(depth_prior="a", depth_kind="metric", depth_unit=-1.0), "depth_unit: expected a number of at least 0"),
        (dict(depth_prior="a", depth_along="ray"), "depth_along: inverse distances along rays up to a shift"),
        (dict(depth_prior="a", depth_kind="best"), "depth_kind: expected one of 'inverse', 'disparity', 'metric'"),
    ],
)
def test_settings_of_depth_that_do_not_fit_are_refused(values, message):
    with pytest.raises(ArgumentError, match=message):
        RunConfig(**values)


def test_maps_of_openexr_need_their_extra(capture, tmp_path, monkeypatch):
    (tmp_path / "0.exr").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "OpenEXR", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tsplat\[exr\]'"):
        read_priors(capture, config(tmp_path))


def test_maps_of_openexr_are_those_of_numpy(capture, tmp_path):
    OpenEXR = pytest.importorskip("OpenEXR", reason="needs OpenEXR")

    def write(path, channels):
        OpenEXR.File({"compression": OpenEXR.ZIP_COMPRESSION}, channels).write(str(path))

    draw = np.random.default_rng(0)
    depth = draw.uniform(0.5, 4, (30, 40)).astype(np.float16)
    normals = draw.normal(size=(30, 40, 3)).astype(np.float32) - (0, 0, 9)
    for folder in ("depth.exr", "depth.npy", "normal.exr", "normal.npy"):
        (tmp_path / folder).mkdir()
    np.save(tmp_path / "depth.npy" / "0.npy", depth)
    np.save(tmp_path / "normal.npy" / "0.npy", normals)
    write(tmp_path / "depth.exr/0.exr", {"ViewLayer.Depth.Z": depth, "ViewLayer.Combined.R": np.zeros_like(depth)})
    write(tmp_path / "normal.exr/0.exr", {name: normals[..., i].astype(np.float32) for i, name in enumerate("XYZ")})
    for kind, options in (("depth", {}), ("normal", dict(depth_prior="", normal_weight=0.1))):
        name = f"{kind}_prior"
        given = [options | {name: str(tmp_path / f"{kind}.{suffix}")} for suffix in ("exr", "npy")]
        one, other = (getattr(read_priors(capture, config(tmp_path, **each)).train[0], name) for each in given)
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
        assert one.std() > 0.1


@pytest.mark.parametrize("size", [0, 3, 200, -5])
def test_damaged_maps_of_openexr_are_errors(capture, tmp_path, size):
    OpenEXR = pytest.importorskip("OpenEXR", reason="needs OpenEXR")
    OpenEXR.File({}, {"Z": np.ones((30, 40), np.float32)}).write(str(tmp_path / "a.exr"))
    (tmp_path / "0.exr").write_bytes((tmp_path / "a.exr").read_bytes()[:size])
    with pytest.raises(FileError, match=r"0\.exr: cannot be read as a map"):
        read_priors(capture, config(tmp_path))


def test_cropped_maps_of_openexr_are_refused(capture, tmp_path):
    OpenEXR = pytest.importorskip("OpenEXR", reason="needs OpenEXR")
    windows = {"dataWindow": ((0, 0), (39, 29)), "displayWindow": ((0, 0), (79, 59))}
    header = {name: tuple(np.array(corner, np.int32) for corner in window) for name, window in windows.items()}
    OpenEXR.File(header, {"Z": np.ones((30, 40), np.float32)}).write(str(tmp_path / "0.exr"))
    with pytest.raises(FileError, match=r"whole image \[\[0, 0\], \[79, 59\]\], found those of .*; save it uncropped"):
        read_priors(capture, config(tmp_path))


@pytest.mark.parametrize(
    ("names", "n", "expected"),
    [
        (["B", "G", "R"], 1, ["R"]),
        (["R", "Z"], 1, ["Z"]),
        (["View.Depth.Z", "View.Combined.R"], 1, ["View.Depth.Z"]),
        (["a.Z", "b.Z"], 1, None),
        (["confidence"], 1, ["confidence"]),
        (["a", "b"], 1, None),
        ([], 1, None),
        (["B", "G", "R"], 3, ["R", "G", "B"]),
        (["N.X", "N.Y", "N.Z", "R", "G", "B"], 3, ["N.X", "N.Y", "N.Z"]),
        (["R", "G"], 3, None),
    ],
)
def test_channels_of_openexr_are_found_by_name(names, n, expected):
    assert choose_channels(names, n) == expected
