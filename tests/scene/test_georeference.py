"""Georeferences: models of UTM scenes in both frames and every format, the files beside them, and damaged ones."""

import json
import re

import numpy as np
import pytest
import torch

from tests.support.forked_usd import forked_usd
from tests.support.model_files import FILE_FORMATS, assert_same_tensors, random_gaussians, skip_without
from tsplat import ArgumentError
from tsplat.scene import FileError, Georeference, open_model, read_georeference, read_model, write_model, write_ply
from tsplat.scene.formats import models
from tsplat.scene.formats.models import ABSOLUTE
from tsplat.scene.georeference import georeference_path, written_georeference
from tsplat.scene.meshes import Mesh, mesh_files, write_mesh
from tsplat.scene.model_rows import MemoryRows
from tsplat.scene.rotation import axis_rotations, similarity

ORIGIN = (448_256.0, 5_411_840.0, 304.0)
SHIFTED = Georeference(similarity(translation=[-x for x in ORIGIN]), "EPSG:32633")
ROTATION = axis_rotations([20, 30, 40])
NORMALIZED = Georeference(
    similarity(ROTATION, (-0.125 * ROTATION @ torch.tensor(ORIGIN, dtype=torch.float64)).tolist(), 0.125)
)
TOLERANCES = {"compressed-ply": 0.01, "spz": 3e-4, "spz4": 3e-4, "sog": 5e-4, "streamed-sog": 5e-4}
"""Errors of means: those of the format, where it is not that of single precision."""

CASES = [(format, SHIFTED) for format in (*FILE_FORMATS, "streamed-sog")]
CASES += [(format, NORMALIZED) for format in ("ply", "compressed-ply", "spz", "glb", "usda")]


def survey_points(n=40):
    """Positions [N, 3] fp64 in meters, to the millimeter, within 20 m of the origin."""
    generator = np.random.default_rng(n)
    return torch.from_numpy(np.array(ORIGIN) + np.round(generator.uniform(-10, 10, (n, 3)), 3))


def model_of(points, world):
    """Gaussians at points, in the frame of a model."""
    means = (points @ world[:3, :3].T + world[:3, 3]).float()
    gaussians = random_gaussians(len(points), 1)
    gaussians.means.copy_(means)
    return gaussians


def distances(means, points):
    return (means[:, None] - points).norm(dim=-1).amin(1)


def read_quietly(path):
    """The model of a file, and the notes about it."""
    notes = []
    return read_model(path, warn=notes.append), notes


@pytest.mark.parametrize("frame", ["local", "files"])
@pytest.mark.parametrize(("format", "georeference"), CASES)
def test_models_overlay_survey_points(tmp_path, format, frame, georeference):
    skip_without(format)
    points, path = survey_points(), tmp_path / f"a{'.splat' if format == 'splat' else ''}"
    model = model_of(points, georeference.world)
    with forked_usd():
        write_model(path, model, format=format, georeference=georeference, frame=frame)
        found, notes = read_quietly(path)
    place = read_georeference(path)
    assert place.crs == georeference.crs
    assert (place.world[:3, :3] == torch.eye(3)).all() == (frame == "files" or georeference is SHIFTED)
    means = found.means.double() @ torch.linalg.inv(place.world)[:3, :3].T
    means += torch.tensor(place.origin, dtype=torch.float64)
    off = distances(means, points).max()
    assert off < place.scale * TOLERANCES.get(format, 1e-6)
    is_absolute = frame == "files" and format in ABSOLUTE
    assert json.loads(georeference_path(path).read_text())["absolute"] == is_absolute
    assert any("coordinates are relative to (448" in note for note in notes) == is_absolute
    np.testing.assert_allclose(place.origin, ORIGIN, rtol=0, atol=1e-6)


@pytest.mark.parametrize("format", ABSOLUTE)
def test_models_are_the_same_in_both_frames_of_the_same_axes(tmp_path, format):
    skip_without(format)
    model = model_of(survey_points(), SHIFTED.world)
    with forked_usd():
        for frame in ("local", "files"):
            write_model(tmp_path / frame, model, format=format, georeference=SHIFTED, frame=frame)
        one, other = (read_quietly(tmp_path / frame)[0] for frame in ("local", "files"))
    torch.testing.assert_close(one.means, other.means, rtol=0, atol=2e-9)
    other.means.copy_(one.means)
    assert_same_tensors(one, other)


def test_doubles_of_a_ply_are_coordinates_of_the_files(tmp_path):
    points = survey_points()
    write_model(tmp_path / "a.ply", MemoryRows(model_of(points, SHIFTED.world)), georeference=SHIFTED, frame="files")
    header, _, data = (tmp_path / "a.ply").read_bytes().partition(b"end_header\n")
    assert b"property double x\nproperty double y\nproperty double z\nproperty float nx" in header
    n_floats = header.count(b"property float")
    values = np.frombuffer(data, [("xyz", "<f8", 3), ("rest", "<f4", n_floats)])
    assert abs(values["xyz"] - points.numpy()).max() < 1e-6  # single precision within 10 m
    # What single precision would have lost.
    assert abs(points.float().double() - points).max() > 0.2


def test_doubles_of_other_programs_are_read_relative_to_an_origin(tmp_path):
    points, path = survey_points(), tmp_path / "a.ply"
    write_model(path, model_of(points, SHIFTED.world), georeference=SHIFTED, frame="files")
    comment, _, rest = path.read_bytes().partition(b"\nelement")
    path.write_bytes(comment.rpartition(b"\n")[0] + b"\nelement" + rest)
    georeference_path(path).unlink()
    found, notes = read_quietly(path)
    origin = read_georeference(path).origin
    assert [f"{value:.15g}" in notes[0] for value in origin] == [True] * 3
    assert notes[0].endswith("single precision would have rounded them by up to 0.25")
    assert distances(found.means.double() + torch.tensor(origin, dtype=torch.float64), points).max() < 2e-6
    write_model(tmp_path / "b.ply", found, georeference=read_georeference(path), frame="files")
    again, _ = read_quietly(tmp_path / "b.ply")
    assert torch.equal(again.means, found.means) and read_georeference(tmp_path / "b.ply").origin == origin
    georeference_path(tmp_path / "b.ply").unlink()
    assert read_georeference(tmp_path / "b.ply").origin == origin  # of its comment


@pytest.mark.parametrize("count", [0, 1, 100])
def test_doubles_that_single_precision_holds_stay_as_they_are(tmp_path, count):
    model = random_gaussians(count)
    write_ply(tmp_path / "a.ply", model, origin=(10.0, 0.0, -3.0))
    content = (tmp_path / "a.ply").read_bytes().replace(b"comment tsplat origin", b"comment other")
    (tmp_path / "a.ply").write_bytes(content)
    found, notes = read_quietly(tmp_path / "a.ply")
    assert notes == [] and read_georeference(tmp_path / "a.ply") is None
    assert torch.equal(found.means, (model.means.double() + torch.tensor([10.0, 0, -3], dtype=torch.float64)).float())


def test_a_node_of_gltf_has_the_origin(tmp_path):
    write_model(tmp_path / "a.gltf", model_of(survey_points(), SHIFTED.world), georeference=SHIFTED, frame="files")
    (node,) = json.loads((tmp_path / "a.gltf").read_text())["nodes"]
    assert node["translation"] == [-ORIGIN[0], -ORIGIN[1], ORIGIN[2]]


def test_a_prim_of_usd_has_the_origin(tmp_path):
    pytest.importorskip("pxr", reason="needs usd-core")
    write_model(tmp_path / "a.usda", model_of(survey_points(), SHIFTED.world), georeference=SHIFTED, frame="files")
    (place,) = re.findall(r"double3 xformOp:translate = \((.*)\)", (tmp_path / "a.usda").read_text())
    assert [float(word) for word in place.split(",")] == [ORIGIN[0], -ORIGIN[1], -ORIGIN[2]]


def test_files_of_models_in_other_places_are_removed(tmp_path):
    model = random_gaussians(5)
    write_model(tmp_path / "a.ply", model, georeference=SHIFTED)
    plain = (tmp_path / "a.ply").read_bytes()
    write_model(tmp_path / "a.ply", model)
    assert [file.name for file in tmp_path.iterdir()] == ["a.ply"]
    assert (tmp_path / "a.ply").read_bytes() == plain
    assert read_georeference(tmp_path / "a.ply") is None
    with pytest.raises(ArgumentError, match="georeference: expected that of the model for frame 'files', found None"):
        write_model(tmp_path / "a.ply", model, frame="files")
    with pytest.raises(ArgumentError, match="frame: expected"):
        write_model(tmp_path / "a.ply", model, georeference=SHIFTED, frame="utm")


def test_names_that_leave_no_room_for_a_file_beside_them(tmp_path):
    path = tmp_path / f"{'a' * 250}.ply"
    write_model(path, random_gaussians(5))
    assert len(read_model(path)) == 5
    assert read_georeference(path) is None


def test_that_of_a_run_is_its_world_json(tmp_path):
    (tmp_path / "world.json").write_text(json.dumps(NORMALIZED.world.tolist()))
    write_model(tmp_path / "point_cloud.ply", random_gaussians(5))
    for path in (tmp_path, tmp_path / "point_cloud.ply"):
        assert len(open_model(path)) == 5
        found = read_georeference(path)
        assert torch.equal(found.world, NORMALIZED.world)
        assert found.scale == pytest.approx(8)
        np.testing.assert_allclose(found.origin, ORIGIN, rtol=0, atol=1e-8)


def test_a_moved_model_stays_at_its_place():
    matrix = similarity(axis_rotations([10, 0, 90]), (1, 2, 3), 0.5)
    points, moved = survey_points(), SHIFTED.moved(matrix)
    local = points @ moved.world[:3, :3].T + moved.world[:3, 3]
    before = points @ SHIFTED.world[:3, :3].T + SHIFTED.world[:3, 3]
    torch.testing.assert_close(local, before @ matrix[:3, :3].T + matrix[:3, 3], rtol=0, atol=1e-8)


def test_transforms_are_checked_and_doubles():
    found = Georeference(similarity(translation=(1, 2, 3)).float()).moved(similarity(scale=2))
    assert found.world.dtype == torch.float64 and found.origin == (-1.0, -2.0, -3.0) and found.scale == 0.5
    with pytest.raises(ArgumentError, match=r"world: expected \[4, 4\], found \[3, 4\]"):
        Georeference(torch.eye(4)[:3])
    with pytest.raises(ArgumentError, match="world: expected a rotation or reflection times a positive factor"):
        Georeference(torch.diag(torch.tensor([1.0, 2, 1, 1])))


@pytest.mark.parametrize(
    "text",
    ["", "1", "[]", "{}", '{"world": [[1]]}', '{"world": 1e999}', json.dumps([[0] * 4] * 3 + [[0, 0, 0, 1]]),
     json.dumps([[1, 0, 0, 0], [0, 2, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]), json.dumps([[[1] * 4] * 4]),
     json.dumps({"world": np.eye(4).tolist(), "crs": 4326}), json.dumps([["a"] * 4] * 4),
     json.dumps(np.diag([1, 1, 1, 2]).tolist())],
)  # fmt: skip
def test_damaged_files_are_errors(tmp_path, text):
    with written_georeference(tmp_path / "a.ply", SHIFTED):
        pass
    georeference_path(tmp_path / "a.ply").write_text(text)
    with pytest.raises(FileError, match=r"a\.ply\.world\.json: "):
        read_georeference(tmp_path / "a.ply")


@pytest.mark.parametrize("kind", ["model", "mesh"])
def test_no_model_is_beside_the_georeference_of_another(tmp_path, monkeypatch, kind):
    """Not while it is written, when the process may be killed."""
    path, other = tmp_path / "a.ply", Georeference(similarity(translation=(1.0, 2.0, 3.0)))
    writers = models.WRITERS if kind == "model" else mesh_files.WRITERS
    name, seen = "ply" if kind == "model" else ".ply", []
    triangle = Mesh(torch.eye(3, dtype=torch.float64), torch.tensor([[0, 1, 2]]), torch.rand(3, 3), voxel=0.1)

    def write(georeference):
        if kind == "model":
            write_model(path, random_gaussians(3), georeference=georeference)
        else:
            write_mesh(path, triangle, georeference=georeference)

    def observed(*args, writer=writers[name]):
        seen.append(georeference_path(path).exists())
        return writer(*args)

    def failing(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(writers, name, observed)
    for georeference in (SHIFTED, SHIFTED, other, None):
        write(georeference)
    assert seen == [False, True, False, False]
    write(SHIFTED)
    monkeypatch.setitem(writers, name, failing)
    with pytest.raises(OSError, match="No space"):
        write(other)
    assert read_georeference(path).origin == SHIFTED.origin
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.ply", "a.ply.world.json"]


def test_what_a_killed_process_left_is_removed(tmp_path):
    path = tmp_path / "a.ply"
    write_model(path, random_gaussians(3), georeference=SHIFTED)
    for georeference in (SHIFTED, None):
        georeference_path(path).with_name("a.ply.world.json.old").write_text("{}")
        write_model(path, random_gaussians(3), georeference=georeference)
        assert not georeference_path(path).with_name("a.ply.world.json.old").exists()


@pytest.mark.parametrize("text", ["1 2", "1 2 3 4", "1 2 nan", "a b c", ""])
def test_damaged_origins_in_a_ply_are_errors(tmp_path, text):
    write_model(tmp_path / "a.ply", random_gaussians(5))
    content = (tmp_path / "a.ply").read_bytes()
    (tmp_path / "a.ply").write_bytes(content.replace(b"1.0\n", f"1.0\ncomment tsplat origin  {text}\n".encode(), 1))
    with pytest.raises(FileError, match=r"expected the comment 'tsplat origin' with three numbers"):
        read_model(tmp_path / "a.ply")
