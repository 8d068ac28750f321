"""From photographs to a scene: of a painted corner of a room, where the cameras are known, and of a real thing."""

import os
import re
import shutil
import sys

import pytest
import torch
from torch.nn.functional import grid_sample, interpolate

from tests.support.captures import write_image
from tests.support.paths import SCENES
from tsplat import ArgumentError, cli
from tsplat.scene import FileError, MissingExtraError, intrinsics, look_at, read_colmap
from tsplat.scene.capture import prepare
from tsplat.scene.images import to_bytes

pytest.importorskip("pycolmap")

PHOTOS = SCENES / "banana/images"
WIDTH, HEIGHT = 320, 240
EYES = [(1.9 + 0.25 * i, -1.6 - 0.1 * (i % 2), 3.4 - 0.3 * i) for i in range(5)]


def paint():
    """Three walls' pictures: noise of all sizes. [3, 3, S, S]"""
    generator = torch.Generator().manual_seed(0)
    layers = [torch.rand(3, 3, size, size, generator=generator) for size in (8, 32, 128)]
    return sum(interpolate(layer, (512, 512), mode="bicubic") for layer in layers) / len(layers)


def photograph(viewmat, K, walls):
    """The walls x = 0, y = 0 and z = 0 from within the corner, each 4 wide; y points down."""
    x, y = torch.meshgrid(torch.arange(WIDTH) + 0.5, torch.arange(HEIGHT) + 0.5, indexing="xy")
    rays = torch.stack([(x - K[0, 2]) / K[0, 0], (y - K[1, 2]) / K[1, 1], torch.ones_like(x)], -1) @ viewmat[:3, :3]
    eye = -viewmat[:3, :3].T @ viewmat[:3, 3]
    distances = torch.where(rays * eye < 0, -eye / rays, torch.inf)
    nearest, wall = distances.min(-1)
    places = eye + nearest[..., None] * rays
    picture = torch.zeros(3, HEIGHT, WIDTH)
    for axis in range(3):
        others = [i for i in range(3) if i != axis]
        grid = places[..., others].abs() / 2 - 1
        shown = grid_sample(walls[axis, None], grid[None], align_corners=False)[0]
        picture = torch.where(wall == axis, shown, picture)
    return picture.permute(1, 2, 0)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    K, walls = intrinsics(WIDTH, HEIGHT, 45.0), paint()
    for i, eye in enumerate(EYES):
        picture = photograph(look_at(eye, (0.6, -0.7, 0.6)), K, walls)
        write_image(folder / f"{i}.png", to_bytes(picture))
    (folder / "notes.txt").write_text("not a photograph")
    return folder


def test_cameras_are_found_where_they_stood(photos, tmp_path):
    told = []
    out = tmp_path / "new" / "scene"
    found = prepare(photos, out, on_progress=lambda *values: told.append(values))
    assert found.registered == tuple(f"{i}.png" for i in range(5))
    assert found.left_out == ()
    assert found.n_points > 100
    assert 0 < found.error < 1
    assert sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file() and p.suffix == ".png") == [
        f"images/{i}.png" for i in range(5)
    ]
    assert [path.name for path in out.parent.iterdir()] == ["scene"]
    assert sorted(path.name for path in out.iterdir()) == ["images", "sparse"]
    for stage, total in (("features", 5), ("matches", 10), ("cameras", 5)):
        done = [values[1:] for values in told if values[0] == stage]
        assert done == sorted(done)
        assert done[-1] == (total, total)

    capture = read_colmap(out, test_every=2)
    views = sorted((*capture.train, *capture.test), key=lambda view: view.name)
    assert {view.camera_id for view in views} == {0}
    assert float(views[0].K[0, 0]) == pytest.approx(float(intrinsics(WIDTH, HEIGHT, 45.0)[0, 0]), rel=0.03)
    # Distances between cameras do not depend on the frame, up to one scale.
    centers = torch.stack([-view.viewmat[:3, :3].T @ view.viewmat[:3, 3] for view in views])
    ratios = torch.pdist(centers) / torch.pdist(torch.tensor(EYES))
    assert ratios.max() / ratios.min() < 1.06
    assert len(views[0].sparse) > 50


def test_nothing_is_left_of_what_was_interrupted(photos, tmp_path):
    for stage in ("features", "matches", "cameras"):

        def interrupt(now, _done, _total, stage=stage):
            if now == stage:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            prepare(photos, tmp_path / "new" / "scene", max_size=160, on_progress=interrupt)
        assert list(tmp_path.iterdir()) == []


def test_what_is_there_stays(photos, tmp_path):
    (tmp_path / "old.txt").write_text("mine")
    for out in (tmp_path, tmp_path / "old.txt"):
        with pytest.raises(FileError, match="is there already"):
            prepare(photos, out)
    assert [path.name for path in tmp_path.iterdir()] == ["old.txt"]


def test_photographs_without_overlap(photos, tmp_path):
    folder = tmp_path / "noise"
    for i in range(3):
        noise = torch.rand(96, 128, 3, generator=torch.Generator().manual_seed(i))
        write_image(folder / f"{i}.png", to_bytes(noise))
    (tmp_path / "scene").mkdir()
    with pytest.raises(ArgumentError, match="no two of the 3 photographs overlap"):
        prepare(folder, tmp_path / "scene")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["noise", "scene"]
    assert list((tmp_path / "scene").iterdir()) == []


def test_photographs_that_cannot_be_used(photos, tmp_path):
    with pytest.raises(FileError, match="lost: no such folder"):
        prepare(tmp_path / "lost", tmp_path / "scene")
    folder = tmp_path / "photos"
    folder.mkdir()
    shutil.copy(photos / "0.png", folder)
    with pytest.raises(FileError, match=r"at least two photographs .*found 1"):
        prepare(folder, tmp_path / "scene")
    write_image(folder / "b.png", torch.zeros(240, 200, 3))
    with pytest.raises(ArgumentError, match=r"1 of 320x240, 1 of 200x240.*single_camera=False"):
        prepare(folder, tmp_path / "scene")
    (folder / "b.png").write_bytes(b"no picture")
    with pytest.raises(FileError, match=r"b\.png: cannot be read"):
        prepare(folder, tmp_path / "scene")
    assert not (tmp_path / "scene").exists()


@pytest.mark.parametrize(
    ("values", "words"),
    [(dict(max_size=0), "max_size"), (dict(camera_model="FISHEYE"), "camera_model"), (dict(seed=-1), "seed")],
)
def test_arguments_without_a_meaning(photos, tmp_path, values, words):
    with pytest.raises(ArgumentError, match=words):
        prepare(photos, tmp_path / "scene", **values)


def test_the_command_says_what_it_found(photos, tmp_path, capsys):
    out = tmp_path / "scene"
    assert cli.main(["prepare", str(photos), "--out", str(out), "--max-size", "320", "--camera-model", "OPENCV"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^features  5/5  \d+ s$", said, re.MULTILINE)
    assert re.search(r"^cameras   5/5  \d+ s$", said, re.MULTILINE)
    assert re.search(r"registered 5 of 5 photographs; \d+ points, mean reprojection error 0\.\d\d px", said)
    assert len(said.splitlines()) <= 3 * 4 + 4
    assert cli.main(["prepare", str(photos), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert error == f"tsplat: error: {out}: is there already; choose another folder, or empty it\n"


@pytest.mark.parametrize("module", ["pycolmap", "PIL", "rich"])
def test_missing_extras_are_named(photos, tmp_path, monkeypatch, capsys, module):
    monkeypatch.setitem(sys.modules, module, None)
    assert cli.main(["prepare", str(photos), "--out", str(tmp_path / "new" / "scene")]) == 2
    assert "pip install 'tsplat[train]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    if module != "rich":
        with pytest.raises(MissingExtraError):
            prepare(photos, tmp_path / "scene")


@pytest.mark.skipif(not PHOTOS.is_dir(), reason="the shared scenes are not beside this checkout")
@pytest.mark.skipif("TSPLAT_SLOW" not in os.environ, reason="half a minute on two cores; set TSPLAT_SLOW=1")
def test_real_photographs(tmp_path):
    found = prepare(PHOTOS, tmp_path / "scene", max_size=800)
    assert len(found.registered) >= 13
    assert len(found.registered) + len(found.left_out) == 15
    assert found.error < 0.5
    capture = read_colmap(tmp_path / "scene", downscale=4)
    assert sum(len(view.sparse) for view in (*capture.train, *capture.test)) > 10_000
