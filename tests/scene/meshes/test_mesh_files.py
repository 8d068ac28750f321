"""PLY, OBJ and glTF of meshes: what is written is read back, axes, colors, doubles, atomic writes."""

import json
import math

import numpy as np
import pytest
import torch

from tsplat import ArgumentError
from tsplat.scene import Georeference
from tsplat.scene.meshes import Mesh, mesh_files, write_mesh

TETRAHEDRON = Mesh(
    torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=torch.float64),
    torch.tensor([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]),
    torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 0.5, 0], [0.2, 0.4, 1]]),
    0.01,
)
FAR = Mesh(TETRAHEDRON.vertices + 500000.123, TETRAHEDRON.faces, TETRAHEDRON.colors, 0.01)


def test_normals_and_areas():
    assert torch.allclose(TETRAHEDRON.areas, torch.tensor([0.5, 0.5, 0.5, math.sqrt(3) / 2]).double())
    outward = torch.nn.functional.normalize(TETRAHEDRON.vertices - 0.25, dim=1)
    assert ((TETRAHEDRON.normals * outward).sum(1) > 0.9).all()
    assert torch.allclose(TETRAHEDRON.normals.norm(dim=1), torch.ones(4).double())


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_normals_point_outward_in_the_frame_of_the_files(tmp_path, sign):
    world = torch.diag(torch.tensor([0.5 * sign, 0.5, 0.5, 1.0], dtype=torch.float64))  # a reflection, if negative
    write_mesh(tmp_path / "a.obj", TETRAHEDRON, georeference=Georeference(world), frame="files")
    lines = [line.split() for line in (tmp_path / "a.obj").read_text().splitlines()]
    vertices, normals = (
        torch.tensor([[float(value) for value in line[1:4]] for line in lines if line[0] == kind], dtype=torch.float64)
        for kind in ("v", "vn")
    )
    assert torch.equal(vertices, TETRAHEDRON.vertices * torch.tensor([2 * sign, 2, 2]))
    assert ((vertices - vertices.mean(0)) * normals).sum(1).min() > 0.5
    faces = torch.tensor([[int(corner.split("//")[0]) - 1 for corner in line[1:]] for line in lines if line[0] == "f"])
    torch.testing.assert_close(Mesh(vertices, faces, TETRAHEDRON.colors).normals, normals, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("mesh", "code"), [(TETRAHEDRON, "<f4"), (FAR, "<f8")])
def test_ply(tmp_path, mesh, code):
    write_mesh(tmp_path / "a.ply", mesh)
    header, _, data = (tmp_path / "a.ply").read_bytes().partition(b"end_header\n")
    assert b"element vertex 4" in header and b"element face 4" in header
    assert (b"property double x" in header) == (code == "<f8")
    vertex = np.dtype([("p", code, 3), ("n", "<f4", 3), ("c", "u1", 3)])
    vertices = np.frombuffer(data, vertex, 4)
    np.testing.assert_allclose(vertices["p"], mesh.vertices)
    np.testing.assert_allclose(vertices["n"], mesh.normals, atol=1e-6)
    np.testing.assert_array_equal(vertices["c"][3], [51, 102, 255])
    faces = np.frombuffer(data, [("n", "u1"), ("f", "<i4", 3)], 4, 4 * vertex.itemsize)
    assert len(data) == 4 * vertex.itemsize + faces.nbytes
    assert (faces["n"] == 3).all()
    np.testing.assert_array_equal(faces["f"], mesh.faces)


def test_obj(tmp_path):
    write_mesh(tmp_path / "a.OBJ", FAR)
    lines = [line.split() for line in (tmp_path / "a.OBJ").read_text().splitlines()[1:]]
    points = torch.tensor([[float(word) for word in line[1:]] for line in lines if line[0] == "v"]).double()
    assert len(points) == 4
    vertices = [[float(word) for word in line[1:4]] for line in lines if line[0] == "v"]
    np.testing.assert_allclose(vertices, FAR.vertices, atol=1e-4, rtol=0)
    np.testing.assert_allclose(points[:, 3:], FAR.colors, atol=1e-4)
    faces = [[int(word.split("//")[0]) - 1 for word in line[1:]] for line in lines if line[0] == "f"]
    assert faces == FAR.faces.tolist()


@pytest.mark.parametrize("mesh", [TETRAHEDRON, FAR])
def test_glb(tmp_path, mesh):
    write_mesh(tmp_path / "a.glb", mesh)
    content = (tmp_path / "a.glb").read_bytes()
    magic, version, length = np.frombuffer(content, "<u4", 3)
    assert (bytes(content[:4]), version, length) == (b"glTF", 2, len(content)) and magic
    size = int(np.frombuffer(content, "<u4", 1, 12)[0])
    document = json.loads(content[20 : 20 + size])
    data = content[28 + size :]
    assert size % 4 == 0 and document["buffers"] == [{"byteLength": len(data)}]
    kinds = {5126: "<f4", 5123: "<u2", 5125: "<u4"}
    widths = {"VEC3": 3, "VEC4": 4, "SCALAR": 1}

    def values(index):
        accessor = document["accessors"][index]
        view = document["bufferViews"][accessor["bufferView"]]
        assert view["byteOffset"] % 4 == 0
        width, kind = widths[accessor["type"]], kinds[accessor["componentType"]]
        part = data[view["byteOffset"] : view["byteOffset"] + view["byteLength"]]
        return np.frombuffer(part, kind).reshape(accessor["count"], width)

    (primitive,) = document["meshes"][0]["primitives"]
    attributes = primitive["attributes"]
    assert ("translation" in document["nodes"][0]) == (mesh is FAR)
    moved = values(attributes["POSITION"]) + np.array(document["nodes"][0].get("translation", [0, 0, 0]))
    np.testing.assert_allclose(moved, mesh.vertices.numpy() * [-1, -1, 1], atol=1e-6, rtol=0)
    np.testing.assert_allclose(values(attributes["NORMAL"]), mesh.normals.numpy() * [-1, -1, 1], atol=1e-6)
    rgba = values(attributes["COLOR_0"]) / 65535
    assert rgba[2].tolist() == pytest.approx([0, 0.21404, 0, 1], abs=1e-4)  # linear light of 0.5
    np.testing.assert_array_equal(values(primitive["indices"]).reshape(-1, 3), mesh.faces)
    accessor = document["accessors"][attributes["POSITION"]]
    assert accessor["min"] == values(attributes["POSITION"]).min(0).tolist()


def test_other_suffixes_and_interrupted_writes(tmp_path, monkeypatch):
    with pytest.raises(ArgumentError, match=r"a\.stl: expected the name of a mesh that ends in \.ply, \.obj, \.glb"):
        write_mesh(tmp_path / "a.stl", TETRAHEDRON)
    write_mesh(tmp_path / "a.ply", TETRAHEDRON)
    before = (tmp_path / "a.ply").read_bytes()

    def interrupted(file, mesh):
        file.write(b"ply")
        raise KeyboardInterrupt

    monkeypatch.setitem(mesh_files.WRITERS, ".ply", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_mesh(tmp_path / "a.ply", FAR)
    assert (tmp_path / "a.ply").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.ply"]
