"""Tests of glTF and OpenUSD, with files written by hand, and with the validators of both formats where there are."""

import base64
import itertools
import json
import math
import os
import shutil
import struct
import subprocess

import numpy as np
import pytest
import torch

from tests.support.model_files import assert_same_rotations, random_gaussians, skip_without
from tests.support.round_trips import LINEAR, check_round_trip
from tsplat import UnsupportedError, spherical_harmonics
from tsplat.scene import FileError, merge_models, read_model, transform_gaussians, write_gltf, write_model
from tsplat.scene.rotation import axis_rotations, similarity
from tsplat.support import reading

EXTENSION = "KHR_gaussian_splatting"
TO_GLTF = torch.diag(torch.tensor([-1.0, -1, 1, 1], dtype=torch.float64))
"""Right, down, forward become left, up, forward: half a turn about z."""

TO_USD = torch.diag(torch.tensor([1.0, -1, -1, 1], dtype=torch.float64))
"""Right, down, forward become right, up, backward: half a turn about x."""


@pytest.mark.parametrize("format", LINEAR)
@pytest.mark.parametrize("count", [0, 1, 300])
def test_round_trip(tmp_path, format, count):
    skip_without(format)
    path = tmp_path / f"a.{format}"
    for degree in range(5 if format.startswith("usd") else 4):
        gaussians = random_gaussians(count, degree, antialiased=degree % 2 == 0)
        assert write_model(path, gaussians) == []
        check_round_trip(format, gaussians, read_model(path))


def document_of(path):
    return json.loads(path.read_text())


def arrays_of(document):
    """The attributes of the only primitive of a document, as float arrays by name."""
    data = base64.b64decode(document["buffers"][0]["uri"].partition(",")[2])
    found = {}
    for name, index in document["meshes"][0]["primitives"][0]["attributes"].items():
        accessor = document["accessors"][index]
        view = document["bufferViews"][accessor["bufferView"]]
        content = data[view["byteOffset"] : view["byteOffset"] + view["byteLength"]]
        type_ = {5126: "<f4", 5121: "u1"}[accessor["componentType"]]
        found[name] = np.frombuffer(content, type_).reshape(accessor["count"], -1)
    return found


def test_attributes_of_gltf(tmp_path):
    """The values of the specification: axes, rotations xyzw, scales and opacities after activation, colors."""
    gaussians = random_gaussians(40, 2)
    write_gltf(tmp_path / "a.gltf", gaussians)
    document = document_of(tmp_path / "a.gltf")
    arrays = {name.removeprefix(f"{EXTENSION}:"): torch.from_numpy(a.copy()) for name, a in arrays_of(document).items()}
    turned = transform_gaussians(gaussians, TO_GLTF)
    torch.testing.assert_close(arrays["POSITION"], turned.means)
    torch.testing.assert_close(arrays["SCALE"], gaussians.scales)
    torch.testing.assert_close(arrays["OPACITY"][:, 0], gaussians.opacities)
    wxyz = arrays["ROTATION"][:, [3, 0, 1, 2]]
    stored = gaussians.map(lambda t: wxyz if t is gaussians.quats else t)
    torch.testing.assert_close(covariances(stored), covariances(turned))
    names = [f"SH_DEGREE_{band}_COEF_{i}" for band in range(3) for i in range(2 * band + 1)]
    torch.testing.assert_close(torch.stack([arrays[name] for name in names], 1), turned.sh_coeffs(2))
    # The color of a viewer without the extension is linear: the middle of sRGB, 0.5, is 0.214.
    gray = gaussians.map(lambda t: torch.zeros_like(t) if t is gaussians.sh0 or t is gaussians.opacity_logits else t)
    write_gltf(tmp_path / "a.gltf", gray)
    assert arrays_of(document_of(tmp_path / "a.gltf"))["COLOR_0"][0].tolist() == [55, 55, 55, 128]
    accessor = document["accessors"][0]
    assert accessor["min"] == arrays["POSITION"].amin(0).tolist()
    assert accessor["max"] == arrays["POSITION"].amax(0).tolist()


def changed(path, change):
    document = document_of(path)
    change(document)
    path.write_text(json.dumps(document))
    return path


def covariances(gaussians):
    from tsplat import quat_scale_to_covar_preci

    return quat_scale_to_covar_preci(gaussians.quats, gaussians.scales, True, False, False)[0]


def assert_same_look(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found.means, expected.means, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(covariances(found), covariances(expected), rtol=1e-3, atol=tolerance)
    torch.testing.assert_close(found.opacities, expected.opacities, rtol=0, atol=1e-5)
    direction = torch.nn.functional.normalize(torch.tensor([[1.0, -2, 0.5]]), dim=-1).expand(len(found), 3)
    colors = (spherical_harmonics(g.sh_degree, direction, g.sh_coeffs(g.sh_degree)) for g in (found, expected))
    torch.testing.assert_close(*colors, rtol=0, atol=1e-4)


def test_nodes_place_gaussians(tmp_path):
    """Nested nodes, by a matrix and by translation, rotation and scale; two nodes show the same mesh."""
    gaussians = random_gaussians(30, 2)
    write_gltf(tmp_path / "a.gltf", gaussians)
    turn = axis_rotations([20, 40, 60])
    outer = similarity(turn, (1.0, 2.0, 3.0), 2.0)

    def change(document):
        half = math.sqrt(0.5)
        document["nodes"] = [
            {"children": [1, 2], "matrix": outer.T.flatten().tolist()},
            {"mesh": 0, "rotation": [0, half, 0, half], "scale": [0.5, 0.5, 0.5], "translation": [0, 0, 7]},
            {"mesh": 0},
        ]

    found = read_model(changed(tmp_path / "a.gltf", change))
    inner = similarity(axis_rotations([0, 90, 0]), (0, 0, 7), 0.5)
    expected = [transform_gaussians(gaussians, TO_GLTF @ outer @ m @ TO_GLTF) for m in (inner, torch.eye(4).double())]
    assert_same_look(found, merge_models(expected), 1e-4)


@pytest.mark.parametrize("suffix", ["gltf", "usda"])
def test_positions_that_single_precision_rounds_are_noted(tmp_path, suffix):
    """A node of another program, which has no origin of tsplat, with a translation as in UTM."""
    skip_without(suffix)
    path, notes = tmp_path / f"a.{suffix}", []
    write_model(path, random_gaussians(30))
    if suffix == "gltf":
        changed(path, lambda document: document["nodes"][0].update(translation=[448256.0, 5411840.0, 304.0]))
    else:
        head, prim, rest = path.read_text().partition('Splat "Gaussians"\n{\n')
        order = 'uniform token[] xformOpOrder = ["xformOp:translate"]\n'
        path.write_text(f"{head}{prim}double3 xformOp:translate = (448256, 5411840, 304)\n{order}{rest}")
    found = read_model(path, warn=notes.append)
    assert found.means[:, 1].max() < -5_411_000
    assert notes[0].startswith(f"{path}: its Gaussians are around (") and len(notes) == 1
    assert "single precision rounds positions by up to 0.25; to keep them, export relative" in notes[0]


def test_integer_attributes_of_gltf(tmp_path):
    """Normalized bytes and shorts, with a stride, in a file beside the document."""
    gaussians = random_gaussians(20).map(lambda t: t.clamp(-2, 2))
    write_gltf(tmp_path / "a.gltf", gaussians)
    arrays = arrays_of(document_of(tmp_path / "a.gltf"))
    rotations = np.zeros((20, 12), np.uint8)  # 8 bytes and 4 unused ones
    shorts = np.rint(arrays[f"{EXTENSION}:ROTATION"] * 32767).astype("<i2")
    rotations[:, :8] = shorts.view(np.uint8)
    opacities = np.rint(arrays[f"{EXTENSION}:OPACITY"] * 255).astype(np.uint8)
    (tmp_path / "the data.bin").write_bytes(rotations.tobytes() + opacities.tobytes())

    def change(document):
        document["buffers"].append({"byteLength": 260, "uri": "the%20data.bin"})
        views = [{"byteLength": 240, "byteStride": 12}, {"byteOffset": 240, "byteLength": 20}]
        for name, view, type_ in zip(("ROTATION", "OPACITY"), views, (5122, 5121)):
            index = document["meshes"][0]["primitives"][0]["attributes"][f"{EXTENSION}:{name}"]
            document["accessors"][index] |= {"bufferView": len(document["bufferViews"]), "normalized": True}
            document["accessors"][index]["componentType"] = type_
            document["bufferViews"].append({"buffer": 1, **view})

    found = read_model(changed(tmp_path / "a.gltf", change))
    assert_same_rotations(found, gaussians, 1e-3)
    assert (found.opacities - gaussians.opacities).abs().max() <= 0.5 / 255 + 1e-6
    assert torch.equal(found.means, gaussians.means)
    os.remove(tmp_path / "the data.bin")
    with pytest.raises(FileError, match=r"a\.gltf: its buffer 'the data\.bin' cannot be read"):
        read_model(tmp_path / "a.gltf")


def splat(document):
    return document["meshes"][0]["primitives"][0]["extensions"][EXTENSION]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda d: d["asset"].update(version="1.0"), UnsupportedError, "expected glTF version 2.0, found '1.0'"),
        (lambda d: d.update(extensionsRequired=["EXT_x"]), UnsupportedError, "requires EXT_x, which is not impl"),
        (lambda d: splat(d).update(extensions={"KHR_spz": {}}), UnsupportedError, "KHR_spz is not implemented"),
        (lambda d: splat(d).update(kernel="cube"), UnsupportedError, "expected points with the kernel 'ellipse'"),
        (lambda d: d["meshes"][0]["primitives"][0].pop("mode"), UnsupportedError, "found mode 4"),
        (lambda d: d["nodes"][0].update(scale=[1, 2, 1]), UnsupportedError, r"node 0: matrix: .*stretches by"),
        (lambda d: d["accessors"][1].update(sparse={}), UnsupportedError, "ROTATION: sparse accessors"),
        (lambda d: d["meshes"][0]["primitives"][0].pop("extensions"), FileError, "has no Gaussians"),
        (lambda d: d["nodes"][0].update(children=[0]), FileError, "node 0 has several parents"),
        (lambda d: d["nodes"][0].update(mesh=3), FileError, r"there is no meshes\[3\]"),
        (lambda d: d["accessors"][1].update(count=9), FileError, r"ROTATION: expected 5 vectors of 4 numbers"),
        (lambda d: d["accessors"][0].update(byteOffset=8), FileError, "POSITION: its data exceed their buffer"),
        (lambda d: d["bufferViews"][0].update(byteLength=10**12), FileError, "POSITION: its data exceed their buffer"),
        (lambda d: d["buffers"][0].update(uri="data:;base64,AA=="), FileError, "shorter than its byteLength"),
        (lambda d: d["buffers"][0].update(uri="data:;base64,?"), FileError, "data URI is damaged"),
        (
            lambda d: d["buffers"][0].update(uri="../a.bin"),
            FileError,
            r"expected a file beside it, found the URI '\.\.",
        ),
        (lambda d: d["buffers"][0].update(uri="http://x/a.bin"), FileError, "found the URI 'http://x/a.bin'"),
        (lambda d: d["buffers"][0].update(uri="/etc/passwd"), FileError, "found the URI '/etc/passwd'"),
        (
            lambda d: d["accessors"][0].update(count="5"),
            FileError,
            r"accessors\[0\]\.count to be a nonnegative integer",
        ),
    ],
)
def test_gltf_that_cannot_be_read(tmp_path, change, error, words):
    write_gltf(tmp_path / "a.gltf", random_gaussians(5, 1))
    with pytest.raises(error, match=rf"a\.gltf: .*{words}"):
        read_model(changed(tmp_path / "a.gltf", change), warn=str)


def test_damaged_glb_is_rejected(tmp_path):
    path = tmp_path / "a.glb"
    write_gltf(path, random_gaussians(5, 1))
    content = path.read_bytes()
    for damaged, error, words in [
        (content[:10], FileError, "within its header"),
        (content[:-1], FileError, "cut short"),
        (content[:4] + struct.pack("<I", 1) + content[8:], UnsupportedError, "expected glTF version 2, found 1"),
        (content[:12] + struct.pack("<I", 1 << 30) + content[16:], FileError, "exceeds the file"),
        (content[:16] + b"XXXX" + content[20:], FileError, "no JSON chunk"),
    ]:
        path.write_bytes(damaged)
        with pytest.raises(error, match=words):
            read_model(path)


def test_what_is_ignored_in_gltf_is_noted(tmp_path):
    write_gltf(tmp_path / "a.gltf", random_gaussians(5, 1))

    def change(document):
        primitives = document["meshes"][0]["primitives"]
        primitives[0]["attributes"] |= {"_OURS": 0, f"{EXTENSION}:OTHER": 0}
        primitives.append({"attributes": {"POSITION": 0}})
        splat(document).update(colorSpace="lin_rec709_display", sortingMethod="none")

    notes = []
    assert len(read_model(changed(tmp_path / "a.gltf", change), warn=notes.append)) == 5
    assert [note.partition(": ")[2] for note in notes] == [
        "ignored meshes: 1 primitives of meshes[0]; only 3D Gaussians are read",
        "its colors are not sRGB; they are read as they are, and look darker",
        "ignored the settings sortingMethod; only 3D Gaussians are read",
        f"ignored the attributes {EXTENSION}:OTHER; only 3D Gaussians are read",
    ]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_gltf_validator(tmp_path):
    """Khronos's validator finds nothing but that it does not know the extension and the names of its attributes.

    With names of application-specific attributes in their place, which it checks, it finds nothing.
    """
    root = os.environ.get("TSPLAT_GLTF_VALIDATOR")
    if root is None:
        pytest.skip("needs TSPLAT_GLTF_VALIDATOR, a folder where npm has installed gltf-validator")
    names = []
    for count in (0, 1, 50):
        for suffix in ("glb", "gltf"):
            write_model(tmp_path / f"{count}.{suffix}", random_gaussians(count, 3, antialiased=True))
            names.append(f"{count}.{suffix}")
    text = (tmp_path / "50.gltf").read_text().replace(f'"{EXTENSION}:', '"_')
    (tmp_path / "renamed.gltf").write_text(text)
    program = """
    const {validateBytes} = require('gltf-validator'), fs = require('fs');
    Promise.all(process.argv.slice(1).map((p) => validateBytes(new Uint8Array(fs.readFileSync(p)), {maxIssues: 0})))
      .then((reports) => console.log(JSON.stringify(reports.map((r) => r.issues.messages))));
    """
    paths = [str(tmp_path / name) for name in [*names, "renamed.gltf"]]
    run = subprocess.run(["node", "-e", program, *paths], cwd=root, capture_output=True, check=True)
    *reports, renamed = json.loads(run.stdout)
    assert {issue["code"] for issue in renamed} == {"UNSUPPORTED_EXTENSION"}
    assert reports[:2] == [[], []] and len(reports) == 6
    for issue in itertools.chain(*reports):
        is_name = issue["code"] == "MESH_PRIMITIVE_INVALID_ATTRIBUTE" and f"/{EXTENSION}:" in issue["pointer"]
        assert is_name or issue["code"] == "UNSUPPORTED_EXTENSION", issue


USD = """#usda 1.0
(
    defaultPrim = "World"
    metersPerUnit = 1
    upAxis = "%s"
)
def Xform "World"
{
    double3 xformOp:translate = (1, 2, 3)
    uniform token[] xformOpOrder = ["xformOp:translate"]
    def ParticleField3DGaussianSplat "Splats"
    {
        point3f[] positions = [(1, 0, 0), (0, 5, 0)]
        %s
    }
}
"""


def test_usd_written_by_hand(tmp_path):
    """Defaults of arrays that are missing or too short, half precision, both up axes, and transforms of the parents."""
    skip_without("usda")
    path = tmp_path / "a.usda"
    path.write_text(USD % ("Y", "half[] opacitiesh = [0.25, 0.5, 1]\n float3[] scales = [(2, 3, 4)]"))
    notes = []
    found = read_model(path, warn=notes.append)
    assert [note.partition("Splats: ")[2] for note in notes] == ["ignored scales: 1 values for 2 Gaussians"]
    assert found.means.tolist() == [[2, -2, -3], [1, -7, -3]]
    assert found.opacities.tolist() == pytest.approx([0.25, 0.5])
    assert found.log_scales.abs().max() == 0 and found.sh_degree == 0
    assert_same_rotations(found, found.map(lambda t: torch.eye(4)[:1].expand(2, 4) if t is found.quats else t), 1e-6)
    assert found.sh0.unique().tolist() == [0.5]
    path.write_text(USD % ("Z", "uniform int radiance:sphericalHarmonicsDegree = 9"))
    with pytest.raises(UnsupportedError, match=r"a\.usda: /World/Splats: expected an SH degree from 0 to 4, found 9"):
        read_model(path)
    path.write_text(USD % ("Z", "quatf[] orientations = [(0.6, 0.8, 0, 0), (1, 0, 0, 0)]"))
    found = read_model(path)
    assert found.means.tolist() == [[2, -3, 2], [1, -3, 7]]
    path.write_text(USD.replace("ParticleField3DGaussianSplat", "Points") % ("Y", ""))
    with pytest.raises(FileError, match=r"a\.usda: has no Gaussians; expected a prim of the type Part"):
        read_model(path)
    path.write_text("#usda 1.0\ndef {")
    with pytest.raises(FileError, match=r"a\.usda: USD cannot read it \(.*[a-z]"):
        read_model(path)


def test_usd_places_view_dependent_colors(tmp_path):
    """A model of a rotated stage looks like the model rotated."""
    skip_without("usda")
    from pxr import Gf, Usd, UsdGeom

    gaussians = random_gaussians(30, 3)
    write_model(tmp_path / "a.usda", gaussians)
    stage = Usd.Stage.CreateNew(str(tmp_path / "b.usda"))
    UsdGeom.SetStageUpAxis(stage, UsdGeom.Tokens.y)
    outer = similarity(axis_rotations([20, 40, 60]), (1.0, 2.0, 3.0), 2.0)
    xform = UsdGeom.Xform.Define(stage, "/World")
    xform.AddTransformOp().Set(Gf.Matrix4d(*outer.T.flatten().tolist()))
    stage.DefinePrim("/World/Inner").GetReferences().AddReference("a.usda")
    stage.Save()
    found = read_model(tmp_path / "b.usda")
    assert_same_look(found, transform_gaussians(gaussians, TO_USD @ outer @ TO_USD), 1e-4)


def test_usd_validators(tmp_path):
    """Every validator of usd-core accepts the stages."""
    skip_without("usda")
    from pxr import Usd, UsdValidation

    validators = UsdValidation.ValidationRegistry().GetOrLoadAllValidators()
    assert len(validators) > 10
    for format in ("usda", "usdc", "usdz"):
        for count in (0, 50):
            path = tmp_path / f"{count}.{format}"
            write_model(path, random_gaussians(count, 3, antialiased=True))
            context = UsdValidation.ValidationContext(validators)
            errors = context.Validate(Usd.Stage.Open(str(path)))
            assert not errors, [error.GetMessage() for error in errors]


def changed_gltf(tmp_path, change):
    """A glTF file of 40 Gaussians after a change of its document."""
    write_gltf(tmp_path / "a.gltf", random_gaussians(40, 1))
    document = document_of(tmp_path / "a.gltf")
    change(document)
    (tmp_path / "a.gltf").write_text(json.dumps(document))
    return tmp_path / "a.gltf"


def with_values(tmp_path, name, values):
    """A glTF file whose attribute has other values."""
    path = tmp_path / "a.gltf"
    write_gltf(path, random_gaussians(40))
    document = document_of(path)
    view = document["bufferViews"][document["meshes"][0]["primitives"][0]["attributes"][f"{EXTENSION}:{name}"]]
    head, _, data = document["buffers"][0]["uri"].partition(",")
    content = bytearray(base64.b64decode(data))
    content[view["byteOffset"] : view["byteOffset"] + view["byteLength"]] = values.astype("<f4").tobytes()
    document["buffers"][0]["uri"] = f"{head},{base64.b64encode(content).decode()}"
    path.write_text(json.dumps(document))
    return path


def repeat_primitives(document):
    document["meshes"][0]["primitives"] *= 500


def repeat_nodes(document):
    document["nodes"] *= 500
    document["scenes"][0]["nodes"] = list(range(500))


@pytest.mark.parametrize("change", [repeat_primitives, repeat_nodes])
def test_gaussians_that_are_named_many_times_are_counted_first(tmp_path, monkeypatch, change):
    path = changed_gltf(tmp_path, change)
    assert len(read_model(path)) == 20_000
    monkeypatch.setattr(reading, "UNCHECKED_BYTES_MAX", 0)
    monkeypatch.setattr(reading, "available_bytes", lambda: 1 << 20)
    monkeypatch.setattr("tsplat.scene.formats.interchange.gltf._Document._buffer", lambda *_: pytest.fail("was read"))
    with pytest.raises(FileError, match=r"a\.gltf: a model of 20,000 Gaussians needs 0\.0 GB of memory"):
        read_model(path)


@pytest.mark.parametrize(
    ("name", "size", "low", "words"),
    [("SCALE", 3, -5.0, "scales after exp, .* logarithms"), ("OPACITY", 1, 2.0, "after the sigmoid, .* logits")],
)
def test_values_before_activation_are_refused(tmp_path, name, size, low, words):
    values = np.full((40, size), low)
    with pytest.raises(FileError, match=f"a\\.gltf: expected .*{words}"):
        read_model(with_values(tmp_path, name, values))
    values[3:] = 0.5
    with pytest.warns(UserWarning, match="3 of 40 Gaussians have"):
        found = read_model(with_values(tmp_path, name, values))
    assert int((~found.valid).sum()) == (3 if name == "SCALE" else 0)
    values[:] = 0.5
    assert read_model(with_values(tmp_path, name, values)).valid.all()


def test_prims_that_name_the_same_arrays_are_counted_first(tmp_path, monkeypatch):
    skip_without("usda")
    write_model(tmp_path / "a.usda", random_gaussians(40))
    over = "\n".join(f'def "g{i}" (prepend references = @a.usda@) {{}}' for i in range(50))
    (tmp_path / "b.usda").write_text(f'#usda 1.0\n(upAxis = "Y")\n{over}\n')
    found = read_model(tmp_path / "b.usda")
    assert len(found) == 2000
    monkeypatch.setattr(reading, "UNCHECKED_BYTES_MAX", 0)
    for module in ("support.reading", "scene.formats.model_memory"):
        monkeypatch.setattr(f"tsplat.{module}.available_bytes", lambda: 1 << 18)
    with pytest.raises(FileError, match=r"b\.usda: a model of 2,000 Gaussians needs"):
        read_model(tmp_path / "b.usda")
