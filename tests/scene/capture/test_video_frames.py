"""Tests of choosing frames of a video: which are chosen, and how they are read."""

import dataclasses
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from tests.support import panoramas
from tests.support.captures import PHOTO_FOV, video_of_walls, write_image, write_photos
from tsplat import ArgumentError
from tsplat.scene import Camera, FileError, MissingExtraError, intrinsics, prepare, read_colmap
from tsplat.scene.cameras import panorama_intrinsics
from tsplat.scene.capture.source_photographs import Source
from tsplat.scene.capture.structure_from_motion import _choose_model, _note_frames
from tsplat.scene.capture.video_frames import (
    STILL,
    ChosenFrames,
    _measure,
    choose_frames,
    extract_frames,
    is_marked_spherical,
)
from tsplat.scene.images import read_image_info
from tsplat.training import Trainer, evaluate, preset
from tsplat.training.runs.initial_gaussians import initial_gaussians
from tsplat.viewing import write_frames

WIDTH, HEIGHT = 96, 64


def measurements(motion, sharpness=None, difference=None):
    """As choose_frames takes them; the motion of the first frame is 0."""
    motion = np.asarray(motion, dtype=float)
    return np.stack([
        np.ones(len(motion)) if sharpness is None else np.asarray(sharpness),
        motion,
        np.full(len(motion), 0.01) if difference is None else np.asarray(difference),
    ], 1)  # fmt: skip


def test_the_sharpest_frame_of_each_stretch_is_chosen():
    sharpness = np.ones(40)
    sharpness[[2, 7, 13, 19, 21, 29, 34, 39]] = 2
    chosen = choose_frames(measurements([0] + [1] * 39, sharpness), 8)
    assert chosen.frames == (2, 7, 13, 19, 21, 29, 34, 39)
    assert chosen.n_frames == 40
    assert chosen.cuts == ()


def test_stretches_have_equal_motion():
    # The second half moves four times as fast.
    chosen = np.array(choose_frames(measurements([0] + [1] * 99 + [4] * 100), 50).frames)
    assert len(chosen) >= 45
    assert (chosen >= 100).mean() == pytest.approx(0.8, abs=0.05)


def test_camera_that_stands_still_gives_one_frame():
    moving = [0] + [1] * 19
    chosen = choose_frames(measurements([*moving, *[STILL / 1000] * 100]), 20)
    assert sum(frame >= 20 for frame in chosen.frames) <= 1
    assert choose_frames(measurements([0] * 50), 20).frames == (0,)


def test_number_is_a_limit():
    generator = np.random.default_rng(0)
    for count in (1, 2, 7, 60, 500):
        chosen = choose_frames(measurements([0, *generator.random(99)], generator.random(100)), count).frames
        assert 1 <= len(chosen) <= count
        assert list(chosen) == sorted(set(chosen))
    assert len(chosen) > 75


def test_frames_at_both_sides_of_a_cut_are_chosen():
    motion, difference = [0] + [0.5] * 39, [0.02] * 40
    motion[20], difference[20] = 30, 1.2
    chosen = choose_frames(measurements(motion, difference=difference), 10)
    assert chosen.cuts == (20,)
    # The jump does not take the place of motion: without its treatment, it would be nine of ten stretches.
    assert len(chosen.frames) >= 8
    assert sum(frame < 20 for frame in chosen.frames) >= 4
    assert sum(frame >= 20 for frame in chosen.frames) >= 4


def texture(shift=0.0, blur=1):
    """A gray frame [64, 96] of smooth noise, moved to the left by pixels, averaged over a path of `blur` pixels."""
    x, y = np.meshgrid(np.arange(WIDTH, dtype=np.float64), np.arange(HEIGHT, dtype=np.float64))
    generator = np.random.default_rng(0)
    waves = generator.normal(0, 0.25, (30, 2))
    phases = generator.random(30) * 6
    frames = [
        sum(np.sin(a * (x + shift + step) + b * y + phase) for (a, b), phase in zip(waves, phases))
        for step in range(blur)
    ]
    return (128 + 15 * np.mean(frames, 0)).clip(0, 255).astype(np.float32)


def test_measured_sharpness_and_motion():
    sharp, _, _ = _measure(texture(), None)
    blurred, _, _ = _measure(texture(blur=6), None)
    assert blurred < 0.75 * sharp
    still, near, far = (_measure(texture(shift), texture())[1] for shift in (0, 1, 2))
    assert still == 0
    assert 0.3 < near < 2
    assert near * 1.5 < far < near * 2.5
    assert _measure(texture()[::-1].copy(), texture())[2] > 1  # as different as a cut
    assert _measure(texture(1), texture())[2] < 0.3


@pytest.fixture
def play(monkeypatch):
    """A function that makes any video consist of frames [H, W, 3], 30 per second."""
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", SimpleNamespace(get_ffmpeg_exe=lambda: "ffmpeg"))

    def play(frames, is_spherical=False):
        def read(_video, codec, *_):
            yield from (frame if codec == "ppm" else frame.mean(-1).astype(np.uint8) for frame in frames)

        monkeypatch.setattr("tsplat.scene.capture.video_frames._count", lambda _: (len(frames), len(frames) / 30))
        monkeypatch.setattr("tsplat.scene.capture.video_frames._read", read)
        monkeypatch.setattr("tsplat.scene.capture.structure_from_motion.is_marked_spherical", lambda _: is_spherical)

    return play


def test_chosen_frames_are_written(play, tmp_path):
    image = pytest.importorskip("PIL.Image")
    grays = [texture(2.0 * i, blur=1 if i % 3 == 0 else 8) for i in range(30)]
    play([np.stack([gray, gray, np.full_like(gray, 8 * i)], -1).astype(np.uint8) for i, gray in enumerate(grays)])
    calls = []
    chosen = extract_frames(tmp_path / "a.mp4", tmp_path, 8, lambda *values: calls.append(values))
    assert len(chosen.frames) >= 7
    assert all(frame % 3 == 0 for frame in chosen.frames)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"frame_{i:06d}.jpg" for i in chosen.frames]
    for i in chosen.frames:
        pixels = np.asarray(image.open(tmp_path / f"frame_{i:06d}.jpg")).astype(int)
        assert pixels.shape == (HEIGHT, WIDTH, 3)
        assert abs(pixels[..., 2].mean() - 8 * i) < 3
    assert calls == sorted(calls)
    assert calls[-1] == (30, 30)


def test_video_needs_its_extra(monkeypatch, tmp_path):
    pytest.importorskip("pycolmap")
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    (tmp_path / "a.mp4").write_bytes(b"?")
    with pytest.raises(MissingExtraError, match=r"pip install 'tsplat\[video\]'"):
        prepare(tmp_path / "a.mp4", tmp_path / "new" / "scene")
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


@pytest.mark.slow
def test_video_becomes_a_scene(play, tmp_path):
    """Five photographs, each shown for six frames, as a video."""
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("pycolmap")
    files = sorted(write_photos(tmp_path / "photos").glob("*.png"))
    photos = [np.asarray(image.open(file).convert("RGB")) for file in files]

    play([photos[i // 6] for i in range(30)])
    (tmp_path / "a.mp4").write_bytes(b"?")
    stages = []
    found = prepare(tmp_path / "a.mp4", tmp_path / "scene", on_progress=lambda stage, *_: stages.append(stage))
    assert list(dict.fromkeys(stages)) == ["frames", "features", "matches", "cameras"]
    assert len(found.registered) == 5
    assert "chose 5 of 30 frames by sharpness and motion" in found.notes
    views = read_colmap(tmp_path / "scene", test_every=0).train
    assert [int(view.name[6:12]) // 6 for view in views] == [0, 1, 2, 3, 4]

    play(photos[:1] * 30)
    with pytest.raises(ArgumentError, match=r"a\.mp4: expected a camera that moves, found 1 different frame of 30"):
        prepare(tmp_path / "a.mp4", tmp_path / "still")
    assert not (tmp_path / "still").exists()


@pytest.mark.slow
def test_frames_of_a_360_degree_video_are_panoramas(play, tmp_path):
    """Without the metadata, a note says what to do."""
    pytest.importorskip("pycolmap")
    K = panorama_intrinsics(384, 192)
    frames = [
        panoramas.photograph(Camera(viewmat, K, 384, 192, "equirectangular"), panoramas.speckles_of).numpy()
        for viewmat in panoramas.poses(5)
    ]
    (tmp_path / "a.mp4").write_bytes(b"?")
    play([frames[i // 6] for i in range(30)], is_spherical=True)
    found = prepare(tmp_path / "a.mp4", tmp_path / "scene", max_size=384)
    assert len(found.registered) == 5 and "the metadata of the video says that its frames are panoramas" in found.notes
    assert all(view.camera.is_panorama for view in read_colmap(tmp_path / "scene", test_every=0).train)


@pytest.mark.parametrize(("is_spherical", "height", "model", "note"), [
    (True, 32, "EQUIRECTANGULAR", "the metadata of the video says that its frames are panoramas"),
    (False, 32, "SIMPLE_RADIAL", "all images are twice as wide as high: if they show 360 degrees, use camera_model "
                                 "EQUIRECTANGULAR"),
    (False, 48, "SIMPLE_RADIAL", None),
])  # fmt: skip
def test_the_camera_model_of_a_video(play, tmp_path, is_spherical, height, model, note):
    pytest.importorskip("PIL.Image")
    write_image(tmp_path / "a.png", torch.zeros(height, 64, 3, dtype=torch.uint8))
    play([], is_spherical)
    source = Source(tmp_path / "a.png", read_image_info(tmp_path / "a.png"))
    assert _choose_model([source], tmp_path / "a.mp4") == (model, [note] if note else [])


def test_metadata_of_spherical_videos(tmp_path):
    """A box of Google's Spherical Video, in the first track of a file whose index is at its end."""
    pytest.importorskip("imageio_ffmpeg", reason="videos need the extra video")
    path = tmp_path / "a: -b.mp4"
    frames = [torch.from_numpy(texture(2.0 * i))[..., None].expand(-1, -1, 3) / 255 for i in range(4)]
    write_frames(path, frames, fps=12)
    assert not is_marked_spherical(path)
    content = bytearray(path.read_bytes())
    xml = (
        b'<rdf:SphericalVideo xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" '
        b'xmlns:GSpherical="http://ns.google.com/videos/1.0/spherical/"><GSpherical:Spherical>true'
        b"</GSpherical:Spherical><GSpherical:Stitched>true</GSpherical:Stitched><GSpherical:StitchingSoftware>a"
        b"</GSpherical:StitchingSoftware><GSpherical:ProjectionType>equirectangular</GSpherical:ProjectionType>"
        b"</rdf:SphericalVideo>"
    )
    box = b"uuid" + bytes.fromhex("ffcc8263f8554a938814587a02521fdd") + xml
    box = (len(box) + 4).to_bytes(4, "big") + box
    moov, track = (content.rindex(kind) - 4 for kind in (b"moov", b"trak"))
    assert moov > content.index(b"mdat")  # so that no offset of a frame changes
    for start in (moov, track):
        content[start : start + 4] = (int.from_bytes(content[start : start + 4], "big") + len(box)).to_bytes(4, "big")
    end = track + int.from_bytes(content[track : track + 4], "big") - len(box)
    path.write_bytes(content[:end] + box + content[end:])
    assert is_marked_spherical(path)


@pytest.mark.slow
@pytest.mark.skipif("TSPLAT_SLOW" not in os.environ, reason="slow; set TSPLAT_SLOW=1")
def test_video_with_blur_and_a_cut(play, tmp_path):
    """At least 95 % of the chosen frames are registered. Training with their cameras is as good as with true ones."""
    pytest.importorskip("pycolmap")
    frames, viewmats = video_of_walls()
    play(frames)
    (tmp_path / "a.mp4").write_bytes(b"?")
    found = prepare(tmp_path / "a.mp4", tmp_path / "scene", frames=40)
    n = len(found.registered) + len(found.unregistered)
    assert n >= 36
    assert len(found.registered) >= 0.95 * n
    assert any("a cut at frame 160;" in note for note in found.notes)
    capture = read_colmap(tmp_path / "scene", downscale=2)
    true = with_true_cameras(capture, viewmats)
    places, expected = (torch.stack([view.camera.position for view in (*c.train, *c.test)]) for c in (capture, true))
    distances, expected = torch.pdist(places), torch.pdist(expected)
    scale = (distances * expected).sum() / distances.square().sum()
    assert (scale * distances - expected).abs().mean() < 0.02 * expected.mean()
    assert trained_psnr(capture) > trained_psnr(true) - 0.5


def with_true_cameras(capture, viewmats):
    """The capture in the world of the true view matrices, with these and the true focal length."""

    def corrected(view):
        K = intrinsics(view.camera.width, view.camera.height, PHOTO_FOV)
        camera = dataclasses.replace(view.camera, viewmat=viewmats[int(view.name[6:12])], K=K)
        return dataclasses.replace(view, camera=camera, sparse=None)

    train, test = (tuple(corrected(view) for view in views) for views in (capture.train, capture.test))
    found, true = (torch.stack([view.camera.position for view in views]).double() for views in (capture.train, train))
    middle, true_middle = found.mean(0), true.mean(0)
    rotation = Rotation.align_vectors((true - true_middle).numpy(), (found - middle).numpy())[0].as_matrix()
    scale = (true - true_middle).norm() / (found - middle).norm()
    points = scale * (capture.points.double() - middle) @ torch.from_numpy(rotation).T + true_middle
    return dataclasses.replace(capture, train=train, test=test, points=points.float())


def trained_psnr(capture):
    config = preset("standard", 300)
    trainer = Trainer(initial_gaussians(config, capture), capture.train, config)
    for _ in range(config.steps):
        trainer.advance()
    return evaluate(trainer.gaussians, capture.test).psnr


def test_frames_that_ffmpeg_reads(tmp_path):
    pytest.importorskip("imageio_ffmpeg", reason="videos need the extra video")
    frames = [torch.from_numpy(texture(2.0 * i))[..., None].expand(-1, -1, 3) / 255 for i in range(24)]
    write_frames(tmp_path / "a: -b.mp4", frames, fps=12)
    (tmp_path / "frames").mkdir()
    chosen = extract_frames(tmp_path / "a: -b.mp4", tmp_path / "frames", 6)
    assert chosen.n_frames == 24
    assert len(chosen.frames) == 6
    (tmp_path / "text.mp4").write_bytes(b"not a video")
    with pytest.raises(FileError, match=r"text\.mp4: ffmpeg cannot read it as a video: "):
        extract_frames(tmp_path / "text.mp4", tmp_path / "frames", 6)


def test_video_that_ends_early_gives_its_frames(tmp_path):
    pytest.importorskip("imageio_ffmpeg", reason="videos need the extra video")
    frames = [torch.from_numpy(texture(2.0 * i))[..., None].expand(-1, -1, 3) / 255 for i in range(24)]
    path = tmp_path / "a.webm"
    write_frames(path, frames, fps=12)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 6 // 10])
    (tmp_path / "frames").mkdir()
    chosen = extract_frames(path, tmp_path / "frames", 6)
    assert 2 <= chosen.n_frames < 24
    assert chosen.damage
    assert [path.name for path in sorted((tmp_path / "frames").iterdir())] == [
        f"frame_{i:06d}.jpg" for i in chosen.frames
    ]
    path.write_bytes(content)
    assert extract_frames(path, tmp_path / "frames", 6).damage == ""


def test_notes_on_a_video_that_ends_early():
    chosen = ChosenFrames((0, 4, 9), 13, (), "File ended prematurely")
    assert _note_frames("a.mkv", chosen) == [
        "the video is damaged or ends early (File ended prematurely); 13 frames of it can be read",
        "chose 3 of 13 frames by sharpness and motion",
    ]
    with pytest.raises(ArgumentError, match=r"found 1 different frame of 13; the video is damaged or ends early"):
        _note_frames("a.mkv", dataclasses.replace(chosen, frames=(0,)))
