"""`tsplat mesh`: cameras of a run, a file, a scene and around a model; what is refused; Ctrl-C."""

import json
import re
import sys

import pytest

from tests.support.captures import sample_views, write_colmap
from tests.support.shapes import cameras_on_sphere, sphere_of_gaussians
from tsplat import cli
from tsplat.cli import mesh_command
from tsplat.scene import write_ply
from tsplat.viewing.trajectories import describe_camera

pytest.importorskip("skimage", reason="needs scikit-image")

QUICK = ("--resolution", "16", "--size", "48", "--depth", "expected")


@pytest.fixture
def sphere(tmp_path):
    (tmp_path / "models").mkdir()
    write_ply(tmp_path / "models" / "a.ply", sphere_of_gaussians(600))
    return tmp_path / "models" / "a.ply"


def run(*words):
    return cli.main(["mesh", *map(str, words)])


@pytest.fixture
def cameras(tmp_path):
    found = [describe_camera(camera, i) for i, camera in enumerate(cameras_on_sphere(12, 60))]
    (tmp_path / "cameras.json").write_text(json.dumps(found))
    return tmp_path / "cameras.json"


@pytest.mark.parametrize("name", ["a.ply", "new/a.obj", "a.glb"])
def test_a_mesh_is_written(sphere, cameras, tmp_path, capsys, name):
    assert run(sphere, "--out", tmp_path / name, "--data", cameras, "--views", 6, *QUICK) == 0
    output = capsys.readouterr().out
    assert f"cameras: 6 of {cameras}" in output
    assert "fusing 6 views into" in output and "GB of memory besides the model" in output
    assert f"wrote {tmp_path / name}: " in output and " triangles" in output
    assert (tmp_path / name).stat().st_size > 1000


def test_a_grid_that_needs_more_memory_is_refused_with_what_fits(sphere, cameras, tmp_path, capsys):
    words = (sphere, "--out", tmp_path / "a.ply", "--data", cameras, "--views", 6, "--size", 48, "--depth", "expected")
    assert run(*words, "--resolution", 100, "--memory", 0.002) != 0
    found = capsys.readouterr()
    assert "GB of memory besides the model" in found.out
    voxel = re.search(r"need .* GB of memory, 0\.002 GB may be used; voxels of (\S+) fit; or", found.err)[1]
    assert not (tmp_path / "a.ply").exists()
    assert run(*words, "--voxel", voxel, "--memory", 0.002) == 0


def test_cameras_are_those_of_the_run_or_around_the_model(sphere, cameras, tmp_path, capsys):
    assert run(sphere, "--out", tmp_path / "a.ply", "--views", 8, *QUICK) == 0
    assert "cameras: 8 around the model" in capsys.readouterr().out
    (sphere.parent / "run.json").write_text("{}")
    cameras.rename(sphere.parent / "cameras.json")
    assert run(sphere.parent / "a.ply", "--out", tmp_path / "a.ply", "--views", 20, *QUICK) == 0
    assert "cameras: 12 of the run" in capsys.readouterr().out


def test_cameras_of_a_scene(tmp_path, monkeypatch, capsys):
    scene = tmp_path / "scene"
    write_colmap(scene, sample_views()[:4], sphere_of_gaussians(8).means)
    write_ply(tmp_path / "a.ply", sphere_of_gaussians(50))
    found = []
    monkeypatch.setattr(mesh_command, "extract_mesh", lambda *arguments, **_: found.append(arguments) or 1 / 0)
    assert run(tmp_path / "a.ply", "--out", tmp_path / "b.ply", "--data", scene, *QUICK) == 2
    assert f"cameras: 4 of {scene}" in capsys.readouterr().out
    assert len(found[0][1]) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--voxel", "9"), "voxel: expected less than the extent of the surface"),
        (("--voxel", "1e-7"), "fit; or choose smaller bounds"),
        (("--voxel", "1", "--resolution", "9"), "resolution: not with voxel"),
        (("--truncation", "1"), "truncation: expected a number of at least 2"),
        (("--data", "nothing"), "nothing: no such folder"),
        (("--bounds", *["500", "500", "500", "600", "600", "600"]), "bounds: the surface of no view crosses them"),
    ],
)
def test_errors_are_one_line_and_leave_nothing(sphere, tmp_path, capsys, options, message):
    words = QUICK[2:] if {"--voxel", "--resolution"} & {*options} else QUICK
    assert run(sphere, "--out", tmp_path / "new" / "b.ply", "--views", 4, *words, *options) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "new").exists()


def test_names_are_checked_before_the_model_is_read(sphere, tmp_path, capsys):
    assert run(sphere, "--out", tmp_path / "a.stl") == 2
    assert "that ends in .ply, .obj, .glb" in capsys.readouterr().err
    assert run(sphere, "--out", sphere) == 2
    assert "would replace the model that is read" in capsys.readouterr().err


def test_models_without_gaussians(tmp_path, capsys):
    write_ply(tmp_path / "a.ply", sphere_of_gaussians(50).select(slice(0)))
    assert run(tmp_path / "a.ply", "--out", tmp_path / "b.ply", *QUICK) == 2
    assert "gaussians: expected at least one" in capsys.readouterr().err


def test_ctrl_c_leaves_the_file_as_it_was(sphere, cameras, tmp_path, monkeypatch, capsys):
    (tmp_path / "b.ply").write_text("before")

    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("tsplat.scene.meshes.volume.Volume.fuse", interrupted)
    assert run(sphere, "--out", tmp_path / "b.ply", "--data", cameras, *QUICK) == 130
    assert (tmp_path / "b.ply").read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.ply", "cameras.json", "models"]


def test_the_extra_is_named_if_it_is_missing(sphere, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "skimage", None)
    assert run(sphere, "--out", tmp_path / "b.ply") == 2
    assert "pip install 'tsplat[mesh]'" in capsys.readouterr().err
