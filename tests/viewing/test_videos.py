"""Frames of color, depth and alpha, and the videos written from them."""

import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from tsplat import ArgumentError
from tsplat.scene import Camera, Gaussians, MissingExtraError, intrinsics, look_at
from tsplat.viewing import render_frames, write_frames
from tsplat.viewing.videos import default_video, frame_size, map_writer, write_gif


def balls():
    """A white ball at the origin, and a red one behind it to the right."""
    gaussians = Gaussians.from_points(torch.tensor([[0.0, 0, 0], [1, 0, 2]]), torch.tensor([[1.0, 1, 1], [1, 0, 0]]), 0)
    values = gaussians.tensors() | dict(
        log_scales=torch.full((2, 3), math.log(0.3)), opacity_logits=torch.full((2,), 6.0)
    )
    return Gaussians(**values)


def camera(eye=(0.0, 0.0, -4.0)):
    return Camera(look_at(eye, (0, 0, 0)), intrinsics(48, 36, 50), 48, 36)


def test_render_frames_shows_color_depth_or_alpha():
    rgb, depth, alpha = (next(render_frames(balls(), [camera()], show=show)) for show in ("rgb", "depth", "alpha"))
    white = (18, 24)
    red = divmod(int((rgb[..., 0] - rgb[..., 1]).argmax()), 48)
    assert rgb[white].min() > 0.9
    assert rgb[red][0] > 0.5 > rgb[red][1]
    assert depth[white].mean() > depth[red].mean() > depth[2, 2].mean()
    assert alpha[white].min() > 0.9 > 0.1 > alpha[2, 2].max()


def test_render_frames_of_an_empty_view_is_finite():
    away = Camera(look_at((0, 0, 40.0), (0, 0, 80.0)), intrinsics(48, 36, 50), 48, 36)
    for show in ("rgb", "depth", "normals", "alpha"):
        frame = next(render_frames(balls(), [away], show=show))
        assert frame.isfinite().all()
        assert frame.max() < 0.05


def test_render_frames_uses_the_same_depth_limits_for_all_frames():
    first, second = render_frames(balls(), [camera(), camera((0.0, 0.0, -8.0))], show="depth")
    # The white ball is farther away in the second frame, and so less bright.
    assert second[18, 24].mean() < first[18, 24].mean()


def test_render_frames_rejects_an_unknown_show():
    with pytest.raises(ArgumentError, match="show"):
        next(render_frames(balls(), [camera()], show="curvature"))


@pytest.mark.parametrize("is_flat", [False, True])
def test_maps_of_a_wall_are_its_depth_and_normals(is_flat, tmp_path):
    """A wall of discs that is turned by 30 degrees about y, at depth 4 in the center."""
    angle = math.radians(30)
    x, y = (grid.flatten() for grid in torch.meshgrid(*[torch.linspace(-2, 2, 60)] * 2, indexing="xy"))
    points = torch.stack([math.cos(angle) * x, y, math.sin(angle) * x], -1)
    gaussians = Gaussians.from_points(points, torch.rand(len(points), 3), 0, opacity=0.95)
    log_scales = gaussians.log_scales + torch.tensor([0.0, 0.0, -4.0])
    quats = torch.tensor([math.cos(angle / 2), 0.0, -math.sin(angle / 2), 0.0]).expand(len(points), 4)
    gaussians = Gaussians(**gaussians.tensors() | dict(log_scales=log_scales, quats=quats))
    gaussians = gaussians.as_surfels() if is_flat else gaussians
    found = {}
    for show in ("rgb", "depth", "normals", "alpha"):
        (frame,) = render_frames(gaussians, [camera()], show=show, on_map=map_writer(tmp_path / f"{show}.png"))
        found[show] = torch.from_numpy(np.load(tmp_path / f"{show}.npy"))
        assert found[show].dtype == torch.float32 and found[show].shape[:2] == frame.shape[:2]
    covered = found["alpha"][..., 0] > 0.9
    slope = (torch.arange(48) + 0.5 - 24) / camera().K[0, 0]
    expected = (4 / (1 - math.tan(angle) * slope)).expand(36, 48)
    assert covered.sum() > 500
    torch.testing.assert_close(found["depth"][..., 0][covered], expected[covered], rtol=0.03, atol=0)
    normal = torch.tensor([math.sin(angle), 0.0, -math.cos(angle)])
    torch.testing.assert_close(found["normals"][covered], normal.expand(int(covered.sum()), 3), rtol=0, atol=1e-4)
    with pytest.raises(ArgumentError, match=r"--maps: not for a video; write .* such as a"):
        map_writer("a.mp4")


def test_write_frames_writes_pngs_or_a_gif(tmp_path):
    frames = list(render_frames(balls(), [camera(), camera((0.5, 0.0, -4.0))]))
    write_frames(tmp_path / "folder", frames)
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == ["00000.png", "00001.png"]
    with Image.open(tmp_path / "folder" / "00001.png") as image:
        assert np.abs(np.asarray(image) / 255 - frames[1].numpy()).max() <= 0.5 / 255 + 1e-6
    write_frames(tmp_path / "a.gif", frames, fps=20)
    with Image.open(tmp_path / "a.gif") as video:
        assert (video.n_frames, video.size, video.info["duration"]) == (2, (48, 36), 50)


def test_frames_of_a_longer_call_do_not_stay(tmp_path):
    frames = list(render_frames(balls(), [camera((0.1 * i, 0.0, -4.0)) for i in range(4)]))
    for i in range(4):
        np.save(tmp_path / f"{i:05d}.npy", i)
    others = ["00007.png", "notes.txt"]  # neither follows a frame
    for name in others:
        (tmp_path / name).write_text("keep")
    write_frames(tmp_path, frames)
    write_frames(tmp_path, frames[:2])
    kept = ["00000.npy", "00000.png", "00001.npy", "00001.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept + others)


@pytest.mark.parametrize("installed", [True, False])
def test_videos_are_mp4_where_the_encoder_is_installed(installed, tmp_path, monkeypatch):
    if installed:
        use_ffmpeg(tmp_path, monkeypatch, "exit 0")
    else:
        monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert default_video() == ("video.mp4" if installed else "video.gif")


@pytest.mark.parametrize(
    ("suffix", "size"), [(".mp4", (30, 32)), (".webm", (30, 32)), (".gif", (31, 33)), ("", (31, 33))]
)
def test_size_of_frames_is_that_which_is_written(suffix, size):
    assert frame_size(Path(f"a{suffix}"), 31, 33) == size


def test_frames_too_small_for_a_codec_are_refused():
    with pytest.raises(ArgumentError, match=r"at least 2×2 pixels for a \.mp4 video, found 1×40"):
        frame_size(Path("a.mp4"), 1, 40)


def test_frames_of_an_earlier_call_are_replaced_together(tmp_path):
    frames = list(render_frames(balls(), [camera()])) * 3
    write_frames(tmp_path / "a", frames)
    (tmp_path / "a" / "00007.png").write_text("not one of those")

    def fail():
        yield 0 * frames[0]
        raise ArithmeticError

    before = {path: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    with pytest.raises(ArithmeticError):
        write_frames(tmp_path / "a", fail())
    assert {path: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before
    write_frames(tmp_path / "a", frames[:2])
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["00000.png", "00001.png", "00007.png"]


def test_write_frames_rejects_other_suffixes(tmp_path):
    with pytest.raises(ArgumentError, match=r"ending in \.mp4"):
        write_frames(tmp_path / "a.avi", [])
    assert not list(tmp_path.iterdir())


def test_write_frames_names_the_missing_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(MissingExtraError, match=r"imageio-ffmpeg .* pip install 'tsplat\[video\]'"):
        write_frames(tmp_path / "a.mp4", [])


def test_depths_name_the_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"matplotlib .* pip install 'tsplat\[train\]'"):
        next(render_frames(balls(), [camera()], show="depth"))


@pytest.mark.parametrize("suffix", [".mp4", ".webm"])
def test_write_frames_writes_every_frame_of_a_video(tmp_path, suffix):
    ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="videos need the extra video")
    frames = render_frames(balls(), [camera((x, 0.0, -4.0)) for x in (0.0, 0.3, 0.6)])
    path = tmp_path / f"a{suffix}"
    write_frames(path, frames, fps=10)
    assert ffmpeg.count_frames_and_secs(str(path))[0] == 3
    with pytest.raises(ArgumentError, match="found none"):
        write_frames(tmp_path / f"b{suffix}", [])
    assert list(tmp_path.iterdir()) == [path]


def use_ffmpeg(folder, monkeypatch, script):
    """Lets a shell script take the place of ffmpeg."""
    program = folder / "ffmpeg"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", SimpleNamespace(get_ffmpeg_exe=lambda: str(program)))


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo '[mp4 @ 0x5] No space left on device' >&2; echo other >&2; exit 228", "No space left on device"),
        ("head -c 9 > /dev/null; echo Killed >&2; exit 1", "Killed"),
        ("cat > /dev/null; exit 3", "exit status 3"),
    ],
)
def test_failure_of_ffmpeg_keeps_what_was_there(tmp_path, monkeypatch, script, reason):
    use_ffmpeg(tmp_path, monkeypatch, script)
    path = tmp_path / "a.mp4"
    path.write_bytes(b"before")
    with pytest.raises(OSError, match=rf"ffmpeg cannot write the video: {reason}: .*a\.mp4"):
        write_frames(path, [torch.rand(96, 128, 3)] * 20)
    assert path.read_bytes() == b"before"
    assert sorted(found.name for found in tmp_path.iterdir()) == ["a.mp4", "ffmpeg"]


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
def test_ffmpeg_reads_every_frame_and_ends_with_a_failure_of_them(tmp_path, monkeypatch):
    use_ffmpeg(tmp_path, monkeypatch, """for out; do :; done; cat > "${out#file:}" """)
    frames = torch.rand(3, 7, 9, 3)
    write_frames(tmp_path / "a.webm", frames)
    assert (tmp_path / "a.webm").read_bytes() == (frames[:, :6, :8] * 255 + 0.5).byte().numpy().tobytes()

    def failing():
        yield frames[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_frames(tmp_path / "b.webm", failing())
    assert not (tmp_path / "b.webm").exists()


def test_write_gif_writes_an_endless_animation(tmp_path):
    frames = [torch.tensor([1.0, i / 4, 0.0]).expand(12, 16, 3) for i in range(5)]
    write_gif(tmp_path / "a.gif", iter(frames), milliseconds=50)
    with Image.open(tmp_path / "a.gif") as video:
        assert (video.n_frames, video.size, video.info["loop"], video.info["duration"]) == (5, (16, 12), 0, 50)
        for i in range(5):
            video.seek(i)
            mean = np.asarray(video.convert("RGB"), dtype=float).mean((0, 1))
            assert mean == pytest.approx([255, 255 * i / 4, 0], abs=6)
    with pytest.raises(ArgumentError, match="found none"):
        write_gif(tmp_path / "b.gif", [])
    assert [path.name for path in tmp_path.iterdir()] == ["a.gif"]


@pytest.mark.parametrize("name", ["a.gif", "frames"])
def test_folders_of_videos_are_created(name, tmp_path):
    path = tmp_path / "new" / "deep" / name
    write_frames(path, [torch.zeros(4, 6, 3)] * 2)
    assert path.is_file() if path.suffix else len(list(path.iterdir())) == 2
    with pytest.raises(ArgumentError, match="expected at least one, found none"):
        write_frames(tmp_path / "other" / "b.gif", [])
    assert not (tmp_path / "other").exists()
