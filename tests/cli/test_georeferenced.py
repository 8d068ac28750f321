"""Commands on a run whose scene is in UTM coordinates: exports, meshes, edits and cameras in both frames."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.shapes import cameras_on_sphere, sphere_of_gaussians
from tsplat import cli
from tsplat.scene import read_georeference, read_model, write_ply
from tsplat.scene.georeference import WORLD
from tsplat.scene.rotation import similarity
from tsplat.viewing.trajectories import describe_camera

ORIGIN = (448_256.0, 5_411_840.0, 304.0)
WORLD_MATRIX = similarity(translation=[-x for x in ORIGIN])


@pytest.fixture
def run_folder(tmp_path):
    """A run of a georeferenced scene: a sphere around the local origin."""
    folder = tmp_path / "run"
    folder.mkdir()
    write_ply(folder / "point_cloud.ply", sphere_of_gaussians(300))
    (folder / "run.json").write_text("{}")
    (folder / WORLD).write_text(json.dumps(WORLD_MATRIX.tolist()))
    cameras = [describe_camera(camera, i) for i, camera in enumerate(cameras_on_sphere(8, 48))]
    (folder / "cameras.json").write_text(json.dumps(cameras))
    return folder


def run(*words):
    return cli.main([*map(str, words)])


def distance(means):
    """The largest distance of points [N, 3] from the unit sphere around the origin in the files of the scene."""
    return ((means - torch.tensor(ORIGIN, dtype=torch.float64)).norm(dim=1) - 1).abs().max()


def test_exports_say_where_they_are(run_folder, tmp_path, capsys):
    assert run("export", run_folder, "--out", tmp_path / "a.spz", "--crs", "EPSG:32633") == 0
    printed = capsys.readouterr().out
    assert f"note: coordinates are relative to (448256, 5411840, 304); {tmp_path}/a.spz.world.json has" in printed
    # From file to file, with doubles.
    assert run("convert", tmp_path / "a.spz", tmp_path / "b.ply", "--frame", "files") == 0
    assert f"\nnote: {tmp_path}/b.ply.world.json has" in capsys.readouterr().out
    assert run("convert", tmp_path / "b.ply", tmp_path / "c.ply") == 0
    assert f"{tmp_path}/b.ply: coordinates are relative to (448256, 5411840, 304)" in capsys.readouterr().err
    assert b"property float x" in (tmp_path / "c.ply").read_bytes()
    for name in ("a.spz", "c.ply"):
        found = read_georeference(tmp_path / name)
        assert (found.crs, found.origin) == ("EPSG:32633", ORIGIN)
    means = read_model(tmp_path / "c.ply").means.double() + torch.tensor(found.origin, dtype=torch.float64)
    assert distance(means) < 2**-11


def test_the_frame_of_the_files_must_be_known(run_folder, tmp_path, capsys):
    (run_folder / WORLD).unlink()
    # The model of a run without the file is in the frame of the files.
    assert run("export", run_folder, "--out", tmp_path / "a.ply", "--frame", "files") == 0
    assert "note" not in capsys.readouterr().out
    assert not (tmp_path / "a.ply.world.json").exists()
    assert run("convert", tmp_path / "a.ply", tmp_path / "b.ply", "--frame", "files") == 2
    assert "--frame: the transform of" in capsys.readouterr().err
    assert run("export", run_folder, "--out", tmp_path / "a.html", "--frame", "files") == 2
    assert "--frame: not files for an output that ends in .html" in capsys.readouterr().err
    assert run("export", run_folder, "--out", tmp_path / "b.ply", "--frame", "files", "--up", 0, 0, 1) == 2
    assert "--up: not with --frame files" in capsys.readouterr().err


def test_edited_and_rotated_models_keep_their_place(run_folder, tmp_path, capsys):
    assert run("edit", run_folder, tmp_path / "a.ply", "--scale", 2, "--rotate", 0, 30, 60, "--translate", 5, 6, 7) == 0
    assert run("convert", run_folder, tmp_path / "b.ply", "--up", 0, 0, 1) == 0
    for name in ("a", "b"):
        assert run("convert", tmp_path / f"{name}.ply", tmp_path / f"{name}2.ply", "--frame", "files") == 0
        header, _, data = (tmp_path / f"{name}2.ply").read_bytes().partition(b"end_header\n")
        table = np.frombuffer(data, [("xyz", "<f8", 3), ("rest", "<f4", header.count(b"property float"))])
        assert distance(torch.from_numpy(table["xyz"].copy())) < 1e-5
    # Models in other frames are moved when they are merged.
    assert run("edit", tmp_path / "b.ply", tmp_path / "c.ply", "--merge", tmp_path / "a.ply") == 0
    assert "moved from its frame to that of the edited model" in capsys.readouterr().out
    merged = read_model(tmp_path / "c.ply")
    torch.testing.assert_close(merged.means[:300], merged.means[300:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("frame", ["local", "files"])
@pytest.mark.parametrize("suffix", [".ply", ".obj", ".glb"])
def test_meshes_in_both_frames(run_folder, tmp_path, suffix, frame, capsys):
    pytest.importorskip("skimage", reason="needs scikit-image")
    out = tmp_path / f"a{suffix}"
    quick = ("--resolution", "16", "--size", "48", "--depth", "expected")
    assert run("mesh", run_folder, "--out", out, "--frame", frame, *quick) == 0
    assert f"{out}.world.json has the transform from the frame of the scene's files" in capsys.readouterr().out
    content = out.read_bytes()
    if suffix == ".obj":
        rows = [line.split()[1:4] for line in content.decode().splitlines() if line.startswith("v ")]
        vertices = torch.tensor([[float(word) for word in row] for row in rows], dtype=torch.float64)
    elif suffix == ".ply":
        kind = "<f8" if frame == "files" else "<f4"
        n = int(content.partition(b"element vertex ")[2].split()[0])
        table = np.frombuffer(content.partition(b"end_header\n")[2], [("xyz", kind, 3), ("rest", "V15")], n)
        vertices = torch.from_numpy(table["xyz"].astype(np.float64))
    else:
        size = int.from_bytes(content[12:16], "little")
        document = json.loads(content[20 : 20 + size])
        place = document["nodes"][0].get("translation", [0, 0, 0])
        n = document["accessors"][0]["count"]
        points = np.frombuffer(content, "<f4", 3 * n, 28 + size).reshape(n, 3).astype(np.float64) + place
        vertices = torch.from_numpy(points * [-1, -1, 1])
    if frame == "local":
        vertices = vertices + torch.tensor(read_georeference(out).origin, dtype=torch.float64)
    else:
        assert read_georeference(out).origin == (0, 0, 0)
    assert len(vertices) > 50
    assert distance(vertices) < 0.2


def test_cameras_in_both_frames_show_the_same(run_folder, tmp_path):
    cameras = [describe_camera(camera, i) for i, camera in enumerate(cameras_on_sphere(2, 48))]
    for name, shift in (("local", np.zeros(3)), ("files", np.array(ORIGIN))):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps([{**one, "position": (shift + one["position"]).tolist()} for one in cameras]))
        words = ("--frame", name, "--out", tmp_path / name)
        assert run("render", run_folder, "--trajectory", path, *words) == 0
        eye, at = shift - (0, 1, 4), shift + np.array([0, 0.1, 0])
        words = ("--eye", *eye, "--look-at", *at, "--up", 0, -1, 0, "--width", 60, "--height", 40, "--frame", name)
        assert run("render", run_folder, "--out", tmp_path / f"{name}.png", *words) == 0
    names = ["{}/" + image.name for image in sorted((tmp_path / "local").iterdir())] + ["{}.png"]
    assert len(names) == 3
    for name in names:
        one, other = (np.asarray(Image.open(tmp_path / name.format(frame))).astype(int) for frame in ("local", "files"))
        assert one.max() > 100
        assert abs(one - other).max() <= 1
