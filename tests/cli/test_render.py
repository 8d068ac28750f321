"""`tsplat render`: images and videos of models."""

import dataclasses
import math
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.paths import MODELS
from tsplat import cli
from tsplat.scene import Camera, View, intrinsics, look_at, read_ply, write_ply
from tsplat.scene.images import is_marked_panorama
from tsplat.support.files import write_json
from tsplat.training import Checkpoint, RunConfig, write_checkpoint
from tsplat.viewing import framing
from tsplat.viewing.trajectories import describe_cameras, spiral_at


def read_pixels(path):
    return np.asarray(Image.open(path), dtype=int)


def test_render_uses_eye_look_at_up_and_background(model, tmp_path):
    out = tmp_path / "images" / "a.png"
    eye = ["--eye", 0, 0, -4, "--look-at", 0, 0, 0]
    arguments = ["render", model, "--out", out, "--width", 90, "--height", 60, "--fov", 40, *eye]
    assert cli.main([str(a) for a in arguments]) == 0
    image = read_pixels(out)
    assert image.shape == (60, 90, 3)
    # A meter at this distance is 60 / 2 / tan(20 degrees) / 4 = 20.6 pixels.
    red, green, blue = (image[30, 45 + x] for x in (-21, 0, 21))
    assert red[0] > 100 > max(red[1:])
    assert green[1] > 100 > max(green[0], green[2])
    assert blue[2] > 100 > max(blue[:2])
    assert image[2, 2].max() == 0
    assert cli.main([str(a) for a in [*arguments, "--up", 0, 1, 0, "--background", 1, 0.5, 0]]) == 0
    upside_down = read_pixels(out)
    assert upside_down[30, 45 - 21, 2] > 100
    assert upside_down[2, 2].tolist() == [255, 128, 0]


def test_depths_without_matplotlib_are_an_error_before_anything_is_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (tmp_path / "none.ply").write_text("not a model")
    assert cli.main(["render", str(tmp_path / "none.ply"), "--out", str(tmp_path / "a.png"), "--show", "depth"])
    assert "matplotlib is not installed; run: pip install 'tsplat[train]'" in capsys.readouterr().err


def test_render_frames_the_model_by_default(model, tmp_path):
    assert cli.main(["render", str(model), "--out", str(tmp_path / "a.png"), "--width", "90", "--height", "60"]) == 0
    lit = read_pixels(tmp_path / "a.png").max(-1) > 60
    assert 0.1 < lit.mean() < 0.9
    columns = lit.any(0).nonzero()[0]
    assert columns.max() - columns.min() > 45


@pytest.mark.parametrize("out", [["a.png"], ["a", "--trajectory", "orbit", "--frames", "2"]])
def test_images_beyond_the_free_memory_are_an_error_of_one_line(model, tmp_path, capsys, monkeypatch, out):
    monkeypatch.setattr("tsplat.runtime.memory.free_memory", lambda device: 2**31)
    sizes = ["--width", "16384", "--height", "16384"]
    assert cli.main(["render", str(model), "--out", str(tmp_path / out[0]), *out[1:], *sizes]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("tsplat: error: width: images of 16384×16384 with 3 channels each need 5.37 GB of memory")
    assert not [path for path in tmp_path.rglob("*") if path.suffix == ".png"]


def test_render_completes_a_missing_eye_or_look_at(model, tmp_path):
    base = ["render", str(model), "--out", str(tmp_path / "a.png"), "--width", "90", "--height", "60"]
    assert cli.main([*base, "--look-at", "1", "0", "0"]) == 0
    blue = read_pixels(tmp_path / "a.png")[30, 45]
    assert blue[2] > 100 > max(blue[:2])
    assert cli.main([*base, "--eye", "0", "0.5", "-9"]) == 0
    green = read_pixels(tmp_path / "a.png")[30, 45]
    assert green[1] > 100 > max(green[0], green[2])


def test_render_leaves_out_invalid_gaussians(model, tmp_path, capsys):
    content = bytearray(model.read_bytes())
    content[-17 * 4 : -16 * 4] = b"\xff" * 4  # x of the blue ball
    model.write_bytes(content)
    assert cli.main(["render", str(model), "--out", str(tmp_path / "a.png"), "--width", "40", "--height", "30"]) == 0
    left_out, wrote = capsys.readouterr().out.splitlines()
    assert left_out == "left out 1 of 3 Gaussians that have invalid values"
    size = (tmp_path / "a.png").stat().st_size / 1e6
    assert re.fullmatch(rf"wrote .*a\.png: 40×30 pixels, {size:.2f} MB, in \d+\.\d s", wrote)
    assert read_pixels(tmp_path / "a.png").max() > 60


def test_render_antialiases_models_marked_so(model, tmp_path):
    # Balls of a hundredth of a pixel, which antialiasing makes faint.
    small = read_ply(model).map(lambda tensor: tensor)
    small.log_scales.fill_(-8)
    brightness = {}
    for antialiased in (False, True):
        write_ply(tmp_path / "a.ply", dataclasses.replace(small, antialiased=antialiased))
        out = tmp_path / "a.png"
        command = ["render", str(tmp_path / "a.ply"), "--out", str(out), "--width", "90", "--height", "60"]
        assert cli.main([*command, "--eye", "0", "0", "-4"]) == 0
        brightness[antialiased] = read_pixels(out).max()
    assert brightness[False] > 100
    assert brightness[True] < 20


@pytest.fixture
def run(model, tmp_path):
    """A run of the balls in a world with z up: blue above green above red, seen from all around and from above."""
    balls = read_ply(model)
    balls = dataclasses.replace(balls, means=balls.means[:, [1, 2, 0]].clone())
    path = tmp_path / "run"
    config = RunConfig()
    write_checkpoint(path / "checkpoints", Checkpoint(1, balls, {}, {}, config))
    views = []
    for i in range(8):
        eye = (6 * math.cos(i * math.pi / 4), 6 * math.sin(i * math.pi / 4), 3.0)
        image = torch.zeros(20 + i, 30, 3, dtype=torch.uint8)
        viewmat, K = look_at(eye, (0, 0, 0), (0, 0, 1)), intrinsics(30, 20 + i, 40)
        views.append(View(image, Camera(viewmat, K, 30, 20 + i, name=f"{i}.png")))
    write_json(path / "cameras.json", describe_cameras(views[:6], views[6:]))
    write_json(path / "config.json", {"background": [0.1, 0.2, 0.1]})
    return path


def rows_of_colors(image):
    """Mean rows of red, green and blue pixels."""
    lit = image.max(-1) > 60
    return [float((lit & (image.argmax(-1) == color)).nonzero()[0].mean()) for color in range(3)]


def test_runs_are_rendered_upright_as_their_cameras_see_them(run, tmp_path):
    out = tmp_path / "frames"
    size = ["--width", "64", "--height", "48"]
    assert cli.main(["render", str(run), *size, "--out", str(tmp_path / "a.png")]) == 0
    red, green, blue = rows_of_colors(read_pixels(tmp_path / "a.png"))
    assert blue < green < red
    orbit = ["--trajectory", "orbit", "--frames", "5"]
    assert cli.main(["render", str(run), *size, *orbit, "--out", str(out)]) == 0
    for path in sorted(out.iterdir()):
        red, green, blue = rows_of_colors(read_pixels(path))
        assert blue < green < red


def test_videos_of_a_run_follow_its_cameras(run, model, tmp_path, capsys):
    size = ["--width", "32", "--height", "24", "--frames", "3"]
    images = {}
    for name, source, options in (
        ("default", run, []),
        ("path", run, ["--trajectory", "path"]),
        ("orbit", run, ["--trajectory", "orbit"]),
        ("placed", run, ["--eye", "0", "-2", "4"]),
        ("file", model, []),
    ):
        out = tmp_path / f"{name}.gif"
        assert cli.main(["render", str(source), *size, *options, "--out", str(out)]) == 0, name
        images[name] = out.read_bytes()
    assert images["default"] == images["path"] != images["orbit"]
    assert len(set(images.values())) == 4
    capsys.readouterr()
    command = ["render", str(run), "--trajectory", "path", "--out", str(tmp_path / "a.gif")]
    assert cli.main([*command, "--eye", "0", "-2", "4"]) == 2
    assert "--eye: not with a path along cameras" in capsys.readouterr().err


def test_spirals_of_a_run_stay_inside_its_training_cameras(run, model, tmp_path, monkeypatch):
    found = []

    def spiral(*arguments, inside):
        found.append([camera.is_test for camera in inside])
        return spiral_at(*arguments, inside=inside)

    monkeypatch.setattr(framing, "spiral_at", spiral)
    spirals = [
        "--trajectory",
        "spiral",
        "--width",
        "32",
        "--height",
        "24",
        "--frames",
        "2",
        "--out",
        str(tmp_path / "a"),
    ]
    for words in ([str(run)], [str(run), "--eye", "0", "-2", "4"], [str(model)]):
        assert cli.main(["render", *words, *spirals]) == 0
    assert len(found[0]) > 1
    assert not any(found[0])
    assert found[1:] == [[], []]


def test_view_renders_a_view_of_a_run_at_its_own_size(run, model, tmp_path, capsys):
    out = tmp_path / "a.png"
    for view, height in (("3", 23), ("7.png", 27), ("7", 27)):
        assert cli.main(["render", str(run), "--view", view, "--out", str(out)]) == 0
        image = read_pixels(out)
        assert image.shape == (height, 30, 3)
        assert image[0, 0].tolist() == [26, 51, 26]
        red, green, blue = rows_of_colors(image)
        assert blue < green < red
    assert cli.main(["render", str(run), "--view", "3", "--width", "9", "--out", str(out)]) == 2
    assert "--width: not with --view" in capsys.readouterr().err
    assert cli.main(["render", str(model), "--view", "3", "--out", str(out)]) == 2
    assert "has no cameras.json of a run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("trajectory", "show", "n_colors"),
    [("orbit", "rgb", 2), ("spiral", "depth", 2), ("orbit", "normals", 2), ("orbit", "alpha", 1)],
)
def test_render_writes_the_frames_of_a_trajectory(trajectory, show, n_colors, model, tmp_path, capsys):
    out = tmp_path / "frames"
    size = ["--width", "32", "--height", "24", "--frames", "4"]
    assert cli.main(["render", str(model), *size, "--trajectory", trajectory, "--show", show, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "rendering 4/4" in printed
    size = sum(path.stat().st_size for path in out.iterdir()) / 1e6
    assert f"frames: 4 frames of 32×24 pixels, {size:.2f} MB, in " in printed
    frames = [read_pixels(path) for path in sorted(out.iterdir())]
    assert [frame.shape for frame in frames] == [(24, 32, 3)] * 4
    assert all(frame.max() > 100 for frame in frames)
    assert (frames[0] != frames[1]).any()
    # Alpha is gray; colors and the colormap of depth are not.
    assert (np.ptp(frames[0], axis=-1).max() > 20) == (n_colors > 1)


def test_render_writes_maps_beside_images(model, tmp_path, capsys):
    size = ["--width", "32", "--height", "24", "--frames", "2", "--maps"]
    call = ["render", str(model), *size, "--out"]
    assert cli.main([*call, str(tmp_path / "a.png"), "--show", "depth"]) == 0
    depth = np.load(tmp_path / "a.npy")
    assert depth.shape == (24, 32, 1) and depth.dtype == np.float32 and depth.max() > 1
    assert cli.main([*call, str(tmp_path / "b"), "--show", "normals", "--trajectory", "orbit"]) == 0
    names = ["00000.npy", "00000.png", "00001.npy", "00001.png"]
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == names
    lengths = np.linalg.norm(np.load(tmp_path / "b" / "00001.npy"), axis=-1)
    assert lengths.max() == pytest.approx(1, abs=1e-5)
    assert cli.main([*call, str(tmp_path / "a.gif")]) == 2
    assert "--maps: not for a video" in capsys.readouterr().err


def test_announced_size_of_a_video_is_that_of_its_file(model, tmp_path, capsys):
    ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="videos need the extra video")
    out = tmp_path / "a.mp4"
    call = ["render", str(model), "--frames", "2", "--out", str(out), "--height", "33", "--width"]
    assert cli.main([*call, "31"]) == 0
    assert "2 frames of 30×32 pixels" in capsys.readouterr().out
    described = subprocess.run([ffmpeg.get_ffmpeg_exe(), "-i", str(out)], capture_output=True, check=False).stderr
    assert b", 30x32" in described
    assert cli.main([*call, "1"]) == 2
    assert "expected frames of at least 2×2 pixels" in capsys.readouterr().err


def test_run_is_rendered_from_its_first_photograph(run, tmp_path):
    for options in ([], ["--view", "0.png"], ["--width", "60", "--height", "40"], ["--fov", "80"]):
        assert cli.main(["render", str(run), *options, "--out", str(tmp_path / "a.png")]) == 0
        pixels = read_pixels(tmp_path / "a.png")
        if not options:
            first = pixels
            assert pixels.shape == (20, 30, 3)
        elif options[0] == "--view":
            assert (pixels == first).all()
        elif options[0] == "--width":  # the same field of view, with four pixels for each
            assert pixels.shape == (40, 60, 3)
            smaller = pixels.reshape(20, 2, 30, 2, 3).mean((1, 3))
            assert abs(smaller - first).mean() < 2
        else:
            assert pixels.shape == (600, 800, 3)


def test_render_writes_a_panorama(model, tmp_path):
    out, size = tmp_path / "a.jpg", ["--width", "96"]
    place = ["--eye", "0", "0", "-1", "--look-at", "0", "-1", "-0.9", "--background", "0", "0", "0.3"]
    arguments = ["render", str(model), "--out", str(out), "--camera", "equirectangular", *place]
    assert cli.main([*arguments, *size]) == 0
    image = read_pixels(out)
    assert image.shape == (48, 96, 3)
    assert is_marked_panorama(out)
    # The balls are on the horizon, though the camera looks up: at -45, 0 and 45 degrees of longitude.
    for column, channel in ((36, 0), (48, 1), (60, 2)):
        assert image[24, column].argmax() == channel
        assert image[24, column, channel] > 100
    assert image[24, 4].max() < 100  # behind
    assert cli.main([*arguments, "--fov", "50"]) == 2
    assert cli.main([*arguments, "--width", "97"]) == 2


def test_render_writes_a_gif(model, tmp_path):
    out = tmp_path / "a.gif"
    size = ["--width", "32", "--height", "24", "--frames", "3", "--fps", "10"]
    assert cli.main(["render", str(model), *size, "--trajectory", "orbit", "--out", str(out)]) == 0
    with Image.open(out) as video:
        assert (video.n_frames, video.size, video.info["duration"]) == (3, (32, 24), 100)


@pytest.mark.slow
@pytest.mark.skipif(not MODELS.is_dir(), reason="the shared models are not beside this checkout")
@pytest.mark.parametrize("name", ["kettle.from_spz.ply", "playbot_3.from_sog.ply", "luma-seal.from_splat.ply"])
def test_render_frames_real_models(name, tmp_path):
    out = tmp_path / "a.png"
    assert cli.main(["render", str(MODELS / name), "--out", str(out), "--width", "120", "--height", "90"]) == 0
    image = read_pixels(out)
    lit = image.max(-1) > 40
    assert 0.15 < lit.mean() < 0.85
    rows, columns = lit.any(1).nonzero()[0], lit.any(0).nonzero()[0]
    assert (np.ptp(rows) / 90 > 0.7) or (np.ptp(columns) / 120 > 0.7)
    if name.startswith("kettle"):
        # The kettle stands on a blue cloth, which is at the bottom of an upright image.
        blue = (image[..., 2] - image[..., 0] > 60).nonzero()[0]
        assert blue.mean() > 60
