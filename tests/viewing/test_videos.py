"""Trajectories, and the pictures and films that are made along them."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from tsplat import ArgumentError, cli
from tsplat.scene import FileError, Gaussians, intrinsics, look_at, write_ply
from tsplat.viewing import Camera, orbit_around, read_cameras, render_frames, spiral_at, write_frames
from tsplat.viewing.videos import write_gif

UP = (0.0, -1.0, 0.0)


def center(viewmat):
    return -viewmat[:3, :3].T @ viewmat[:3, 3]


def balls():
    """A white ball in the middle and a red one behind it to the right."""
    gaussians = Gaussians.from_points(torch.tensor([[0.0, 0, 0], [1, 0, 2]]), torch.tensor([[1.0, 1, 1], [1, 0, 0]]), 0)
    values = gaussians.tensors() | dict(
        log_scales=torch.full((2, 3), math.log(0.3)), opacity_logits=torch.full((2,), 6.0)
    )
    return Gaussians(**values)


def shot(eye=(0.0, 0.0, -4.0)):
    return Camera(look_at(eye, (0, 0, 0)), intrinsics(48, 36, 50), 48, 36)


def test_an_orbit_goes_once_around_at_one_height_and_distance():
    eye = (0.3, -1.0, -3.0)
    viewmats = orbit_around(eye, (0.0, 0.5, 0.0), UP, 8)
    centers = torch.stack([center(viewmat) for viewmat in viewmats])
    assert torch.allclose(centers[0], torch.tensor(eye), atol=1e-5)
    assert torch.allclose(centers[:, 1], torch.full((8,), -1.0), atol=1e-5)
    distances = (centers - torch.tensor([0.0, 0.5, 0.0])).norm(dim=-1)
    assert torch.allclose(distances, distances[:1].expand(8), atol=1e-5)
    middles = viewmats[:, :3, :3] @ torch.tensor([0.0, 0.5, 0.0]) + viewmats[:, :3, 3]
    assert torch.allclose(middles[:, :2], torch.zeros(8, 2), atol=1e-5)
    steps = (centers - centers.roll(1, 0)).norm(dim=-1)
    assert torch.allclose(steps, steps[:1].expand(8), atol=1e-5)


def test_a_spiral_stays_near_and_looks_at_one_point():
    viewmats = spiral_at((0.0, 0.0, -4.0), (0.0, 0.0, 0.0), UP, 60)
    centers = torch.stack([center(viewmat) for viewmat in viewmats])
    offsets = centers - torch.tensor([0.0, 0.0, -4.0])
    assert 0.7 < float(offsets.norm(dim=-1).max()) < 1.0
    assert float(offsets[:, 0].min()) < -0.7 < 0.7 < float(offsets[:, 0].max())
    assert torch.allclose(viewmats[:, :2, 3], torch.zeros(60, 2), atol=1e-5)


def test_cameras_of_inria_s_code_are_read(tmp_path):
    viewmat = look_at((1, -2, -3), (0, 0, 0.5))
    camera = {
        "id": 0,
        "img_name": "a",
        "width": 40,
        "height": 30,
        "position": center(viewmat).tolist(),
        "rotation": viewmat[:3, :3].T.tolist(),
        "fx": 50.0,
        "fy": 51.0,
    }
    path = tmp_path / "cameras.json"
    path.write_text(json.dumps([camera]))
    (found,) = read_cameras(path)
    assert torch.allclose(found.viewmat, viewmat, atol=1e-5)
    assert found.K.tolist() == [[50, 0, 20], [0, 51, 15], [0, 0, 1]]
    assert (found.width, found.height) == (40, 30)
    for broken in ([], {}, [{}], [camera | {"fx": -1}], [camera | {"rotation": [1]}], [camera | {"width": "4"}], 3):
        path.write_text(json.dumps(broken))
        with pytest.raises(FileError, match=r"cameras\.json"):
            read_cameras(path)


def test_depth_and_alpha_are_shown(tmp_path):
    rgb, depth, alpha = (next(render_frames(balls(), [shot()], show=show)) for show in ("rgb", "depth", "alpha"))
    white, red = (18, 24), tuple((rgb[..., 0] - rgb[..., 1]).argmax().item() // n % m for n, m in ((48, 36), (1, 48)))
    assert rgb[white].min() > 0.9
    assert rgb[red][0] > 0.5 > rgb[red][1]
    assert depth[white].mean() > depth[red].mean() > depth[2, 2].mean()
    assert alpha[white].min() > 0.9 > 0.1 > alpha[2, 2].max()
    assert next(render_frames(balls(), [shot((0, 0, 40.0))], show="depth")).isfinite().all()
    with pytest.raises(ArgumentError, match="show"):
        next(render_frames(balls(), [shot()], show="normals"))


def test_frames_become_pictures_a_gif_or_a_film(tmp_path):
    frames = list(render_frames(balls(), [shot(), shot((0.5, 0.0, -4.0))]))
    write_frames(tmp_path / "folder", frames)
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == ["00000.png", "00001.png"]
    write_frames(tmp_path / "a.gif", frames, fps=20)
    with Image.open(tmp_path / "a.gif") as film:
        assert (film.n_frames, film.size, film.info["duration"]) == (2, (48, 36), 50)
    with pytest.raises(ArgumentError, match=r"ending in \.mp4"):
        write_frames(tmp_path / "a.avi", frames)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gif", "folder"]


def test_a_film_has_every_frame(tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="films need the extra video")
    frames = render_frames(balls(), [shot((x, 0.0, -4.0)) for x in (0.0, 0.3, 0.6)])
    write_frames(tmp_path / "a.mp4", frames, fps=10)
    assert ffmpeg.count_frames_and_secs(str(tmp_path / "a.mp4"))[0] == 3
    with pytest.raises(ArgumentError, match="found none"):
        write_frames(tmp_path / "b.mp4", [])
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


def test_the_command_makes_films(tmp_path, capsys):
    write_ply(tmp_path / "a.ply", balls())
    base = ["render", str(tmp_path / "a.ply"), "--width", "32", "--height", "24", "--frames", "4"]
    assert cli.main([*base, "--trajectory", "orbit", "--out", str(tmp_path / "orbit")]) == 0
    assert "rendering 4/4" in capsys.readouterr().out
    assert len(list((tmp_path / "orbit").iterdir())) == 4
    assert cli.main([*base, "--trajectory", "spiral", "--show", "depth", "--out", str(tmp_path / "a.gif")]) == 0
    assert cli.main([*base, "--show", "alpha", "--out", str(tmp_path / "a.png")]) == 0
    assert np.asarray(Image.open(tmp_path / "a.png")).max() > 200
    capsys.readouterr()
    assert cli.main([*base, "--trajectory", "missing.json", "--out", str(tmp_path / "b.gif")]) == 2
    assert cli.main([*base, "--out", str(tmp_path / "b.gif")]) == 2
    error = capsys.readouterr().err
    assert "missing.json: cannot be read" in error
    assert "films need --trajectory" in error
    assert not (tmp_path / "b.gif").exists()


def test_a_gif_has_its_frames_and_never_ends(tmp_path):
    frames = [torch.tensor([1.0, i / 4, 0.0]).expand(12, 16, 3) for i in range(5)]
    write_gif(tmp_path / "a.gif", iter(frames), milliseconds=50)
    with Image.open(tmp_path / "a.gif") as found:
        assert (found.n_frames, found.size, found.info["loop"], found.info["duration"]) == (5, (16, 12), 0, 50)
        for i in range(5):
            found.seek(i)
            mean = np.asarray(found.convert("RGB"), dtype=float).mean((0, 1))
            assert mean == pytest.approx([255, 255 * i / 4, 0], abs=6)
    with pytest.raises(ArgumentError, match="found none"):
        write_gif(tmp_path / "b.gif", [])
    assert [path.name for path in tmp_path.iterdir()] == ["a.gif"]
