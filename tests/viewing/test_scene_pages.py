"""Scene pages: one HTML file with a model and a viewer."""

import base64
import dataclasses
import io
import json
import re
import struct
import sys
from urllib.parse import unquote_to_bytes

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.captures import changed
from tests.support.pages import Page
from tests.support.training_scenes import make_gaussians, make_views
from tests.tools.web_viewer import PATCHES
from tsplat import ArgumentError
from tsplat.errors import MissingExtraError, UnsupportedError
from tsplat.scene import FileError, Gaussians, look_at, read_model, write_ply
from tsplat.scene.formats.models import WRITERS
from tsplat.scene.gaussians import concatenate
from tsplat.scene.rotation import rotation_to_y
from tsplat.support.files import write_json
from tsplat.viewing import Annotation, PageExtras, StartView, export_page, render, write_page
from tsplat.viewing.page_parts import PageFrame
from tsplat.viewing.scene_pages import FILE_NAMES, FOLDER
from tsplat.viewing.trajectories import describe_cameras

GAUSSIANS = make_gaussians(sh_degree=1)
START = StartView((0.0, -1.0, -3.0), (0.0, 0.0, 0.0), (0.0, -1.0, 0.0), (0.4, 0.3))


def read_page(path):
    """Returns the parsed page, and what its script reads."""
    page = Page(path.read_text("utf-8"))
    ((_, _, scene),) = page.of("script", id="scene")
    return page, json.loads(scene)


def rotate(quat, vector):
    """Rotates a vector [3] by a quaternion xyzw."""
    axis, w, vector = np.array(quat[:3]), quat[3], np.asarray(vector, float)
    return vector + 2 * np.cross(axis, np.cross(axis, vector) + w * vector)


@pytest.mark.parametrize("format", ["sog", "compressed-ply"])
def test_page_contains_the_model(format, tmp_path):
    path = tmp_path / "scene.html"
    result = write_page(path, GAUSSIANS, START, format=format)
    page, scene = read_page(path)
    ((_, _, model),) = page.of("script", id="model")
    content = base64.b64decode(model, validate=True)
    assert (result.n_gaussians, result.size, result.model_size) == (60, path.stat().st_size, len(content))
    written, embedded = tmp_path / FILE_NAMES[format], tmp_path / scene["filename"]
    WRITERS[format](written, GAUSSIANS)
    assert content == written.read_bytes()
    assert written == embedded
    assert len(read_model(embedded)) == 60
    assert scene["antialiased"] is False


def test_page_loads_nothing(tmp_path):
    write_page(tmp_path / "scene.html", GAUSSIANS, START)
    page, _ = read_page(tmp_path / "scene.html")
    assert {tag for tag, _, _ in page.elements} == {
        "html", "head", "meta", "title", "link", "style", "body", "img", "noscript", "p", "script"
    }  # fmt: skip
    loaded = [attributes.get("src", attributes.get("href")) for _, attributes, _ in page.elements]
    loaded = [address for address in loaded if address is not None]
    assert len(loaded) == 2 and all(address.startswith("data:image/") for address in loaded)  # the preview and the icon
    for _, _, text in page.of("style"):
        assert not re.search(r"@import|url\((?!['\"]?data:)", text)


def test_page_has_the_viewer(tmp_path):
    write_page(tmp_path / "scene.html", GAUSSIANS, START)
    page, _ = read_page(tmp_path / "scene.html")
    assert page.of("style")[0][2] == (FOLDER / "viewer.css").read_text("utf-8")
    assert page.of("script")[2][2] == (FOLDER / "viewer.js").read_text("utf-8")


def test_viewer_is_patched():
    script = (FOLDER / "viewer.js").read_text("utf-8")
    assert [old for old, _ in PATCHES if old in script] == []
    assert [new for _, new in PATCHES if new not in script] == []


def test_page_has_the_licenses_of_the_viewer(tmp_path):
    write_page(tmp_path / "scene.html", GAUSSIANS, START)
    text = (tmp_path / "scene.html").read_text("utf-8")
    assert len(re.findall(r"Copyright \(c\) [\d-]+ PlayCanvas Ltd", text)) == 2
    assert text.count("The above copyright notice and this permission notice shall be included") == 2


@pytest.mark.parametrize("up", [(0, -1, 0), (0, 1, 0), (0, 0, 1), (0, 0, -3), (1, 0, 0), (0.3, -0.9, 0.2), (1, 1, 1)])
def test_model_is_rotated_so_that_up_is_y(up, tmp_path):
    eye, target = (1.0, 2.0, -3.0), (0.5, 0.0, 4.0)
    write_page(tmp_path / "scene.html", GAUSSIANS, StartView(eye, target, up, (0.4, 0.3)))
    _, scene = read_page(tmp_path / "scene.html")
    quat = scene["rotation"]
    assert np.linalg.norm(quat) == pytest.approx(1)
    assert rotate(quat, up) == pytest.approx([0, np.linalg.norm(up), 0], abs=1e-9)
    initial = scene["settings"]["cameras"][0]["initial"]
    assert initial["position"] == pytest.approx(rotate(quat, eye))
    assert initial["target"] == pytest.approx(rotate(quat, target))
    assert scene["slopes"] == [0.4, 0.3]


def test_rotation_to_y_of_random_directions():
    for up in np.random.default_rng(0).normal(size=(100, 3)):
        w, *xyz = rotation_to_y(up)
        assert rotate([*xyz, w], up) == pytest.approx([0, np.linalg.norm(up), 0], abs=1e-9)


def test_title_is_escaped(tmp_path):
    title = "</title></script><script>alert('x')</script>{{model}} & \u00e9\udcff"
    write_page(tmp_path / "scene.html", GAUSSIANS, START, title=title)
    page, _ = read_page(tmp_path / "scene.html")
    ((_, _, found),) = page.of("title")
    assert found == title.replace("\udcff", "\\xff")
    assert len(page.of("script")) == 4


def test_background_and_antialiasing(tmp_path):
    gaussians = dataclasses.replace(GAUSSIANS, antialiased=True)
    write_page(tmp_path / "scene.html", gaussians, START, background=(1.0, 0.5, 0.0))
    page, scene = read_page(tmp_path / "scene.html")
    assert scene["antialiased"] is True
    assert scene["settings"]["background"] == {"color": [1.0, 0.5, 0.0]}
    assert "background: rgb(255, 128, 0);" in page.of("style")[1][2]


@pytest.fixture
def run(tmp_path):
    """A folder that has what a run has: a model, cameras with z up, and a background color."""
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    views = [
        changed(view, viewmat=look_at(eye, (0, 0, 0), (0, 0, 1)))
        for view, eye in zip(make_views(GAUSSIANS, 3), [(3, 0, 1), (0, 3, 1), (0, -3, 1)])
    ]
    write_json(folder / "cameras.json", describe_cameras(views[1:], views[:1]))
    write_json(folder / "config.json", {"background": [0.25, 0.5, 1.0]})
    write_ply(folder / "point_cloud.ply", GAUSSIANS)
    return folder


def test_run_starts_with_its_first_view_and_its_background(run, tmp_path):
    out = tmp_path / "scene.html"
    export_page(run / "point_cloud.ply", out, warn=pytest.fail)
    page, scene = read_page(out)
    assert page.of("title")[0][2] == "point_cloud.ply"
    assert scene["settings"]["background"]["color"] == [0.25, 0.5, 1.0]
    assert rotate(scene["rotation"], (0, 0, 1)) == pytest.approx([0, 1, 0], abs=1e-6)
    initial = scene["settings"]["cameras"][0]["initial"]
    assert initial["position"] == pytest.approx(rotate(scene["rotation"], (3, 0, 1)), abs=1e-5)
    export_page(
        run / "point_cloud.ply", out, view="2", up=(0, -1, 0), background=(0, 0, 0), title="a", warn=pytest.fail
    )
    page, scene = read_page(out)
    assert page.of("title")[0][2] == "a"
    assert scene["settings"]["background"]["color"] == [0, 0, 0]
    assert scene["rotation"] == pytest.approx([1, 0, 0, 0])
    initial = scene["settings"]["cameras"][0]["initial"]
    assert initial["position"] == pytest.approx(rotate(scene["rotation"], (0, -3, 1)), abs=1e-5)


def test_invalid_gaussians_are_left_out(tmp_path):
    means = GAUSSIANS.means.clone()
    means[3] = torch.nan
    write_ply(tmp_path / "model.ply", dataclasses.replace(GAUSSIANS, means=means))
    notes = []
    result = export_page(tmp_path / "model.ply", tmp_path / "scene.html", warn=notes.append)
    assert result.n_gaussians == 59
    assert notes == [f"{tmp_path / 'model.ply'}: left out 1 of 60 Gaussians that have invalid values"]


def test_missing_pillow_is_reported_before_the_model_is_read(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(
        MissingExtraError, match=r"pip install 'tsplat\[train\]'; or choose the format 'compressed-ply'"
    ):
        export_page(tmp_path / "absent.ply", tmp_path / "scene.html", warn=pytest.fail)
    with pytest.raises(MissingExtraError):
        write_page(tmp_path / "scene.html", GAUSSIANS, START)
    write_page(tmp_path / "scene.html", GAUSSIANS, START, format="compressed-ply")
    page, _ = read_page(tmp_path / "scene.html")
    assert page.of("img") == []
    with pytest.raises(MissingExtraError):
        write_page(
            tmp_path / "scene.html",
            GAUSSIANS,
            START,
            format="compressed-ply",
            extras=PageExtras(url="https://example.org/"),
        )


def test_preview_is_what_tsplat_renders(tmp_path):
    write_page(tmp_path / "scene.html", GAUSSIANS, START, background=(0.0, 0.5, 1.0))
    page, _ = read_page(tmp_path / "scene.html")
    ((_, attributes, _),) = page.of("img")
    with Image.open(io.BytesIO(base64.b64decode(attributes["src"].partition("base64,")[2]))) as image:
        shown = np.array(image).astype(float)
    assert shown.shape == (720, 960, 3)  # slopes of 0.4 and 0.3
    expected = render(GAUSSIANS, START.camera(960, 720), background=(0.0, 0.5, 1.0)).clamp(0, 1).numpy() * 255
    assert np.abs(shown - expected).mean() < 2
    assert np.abs(shown[::-1] - expected).mean() > 4  # right side up
    assert attributes["alt"] == "An interactive 3D scene of 60 Gaussians."


def test_previews_of_links(tmp_path):
    path = tmp_path / "the page.html"
    write_page(path, GAUSSIANS, START, title="A <b>", extras=PageExtras('"quoted"', url="https://example.org/a/"))
    page, _ = read_page(path)
    tags = {
        attributes.get("property", attributes.get("name")): attributes.get("content")
        for _, attributes, _ in page.of("meta")
    }
    assert (tags["og:title"], tags["og:description"], tags["description"]) == ("A <b>", '"quoted"', '"quoted"')
    assert (tags["og:url"], tags["og:image"]) == ("https://example.org/a/", "https://example.org/a/the%20page.jpg")
    with Image.open(tmp_path / "the page.jpg") as image:
        assert image.size == (960, 720)
    with pytest.raises(
        ArgumentError, match=r"url: expected an address that starts with https:// or http://, found 'a'"
    ):
        write_page(path, GAUSSIANS, START, extras=PageExtras(url="a"))


def test_annotations_and_walking(tmp_path):
    annotations = [
        Annotation((0.1, 0.2, 0.3), "One </script>", "A <b>text</b>"),
        Annotation((0.4, -0.5, 0.0), "Two", eye=(0.0, -2.0, 1.0)),
    ]
    # The page is in meters: eyes 0.2 units above the floor are at the 1.5 m of the viewer. y points down in the model.
    floor = torch.cat([torch.rand(200, 1), 0.7 + 0.001 * torch.rand(200, 1), torch.rand(200, 1)], 1) - 0.5
    more = Gaussians.from_points(floor, torch.rand(200, 3), sh_degree=1)
    more = dataclasses.replace(more, opacity_logits=more.opacity_logits + 8, log_scales=more.log_scales + 1)
    write_page(
        tmp_path / "scene.html", concatenate([GAUSSIANS, more]), START, extras=PageExtras(None, annotations, 0.2)
    )
    page, scene = read_page(tmp_path / "scene.html")
    assert len(page.of("script")) == 4
    quat, scale = scene["rotation"], scene["scale"]
    assert scale == pytest.approx(7.5)
    one, two = scene["settings"]["annotations"]
    assert (one["title"], one["text"], two["text"]) == ("One </script>", "A <b>text</b>", "")
    assert one["position"] == pytest.approx(scale * rotate(quat, (0.1, 0.2, 0.3)))
    assert one["camera"]["initial"]["target"] == one["position"]
    assert one["camera"]["initial"]["position"] == pytest.approx(scale * rotate(quat, (0.05, -0.4, -1.35)))
    assert two["camera"]["initial"]["position"] == pytest.approx(scale * rotate(quat, (0.0, -2.0, 1.0)))
    head, _, content = scene["floor"].partition(",")
    assert head == "data:model/gltf-binary" and content.endswith(".glb")
    glb = unquote_to_bytes(content.removesuffix(".glb"))
    magic, version, size, n_json, _ = struct.unpack_from("<5I", glb)
    assert (magic, version, size) == (0x46546C67, 2, len(glb))
    corners = np.frombuffer(glb, np.float32, 12, 20 + n_json + 8).reshape(4, 3)
    eye = scene["settings"]["cameras"][0]["initial"]["position"]
    assert eye == pytest.approx(scale * rotate(quat, START.eye))
    assert corners[:, 1] == pytest.approx(-scale * 0.2, abs=0.1)
    write_page(tmp_path / "scene.html", GAUSSIANS, START)
    _, scene = read_page(tmp_path / "scene.html")
    assert (scene["scale"], scene["floor"], scene["settings"]["annotations"]) == (1.0, None, [])


def test_the_floor_is_where_most_of_the_surface_is():
    """Not where most of the Gaussians are: 20 large opaque ones below 400 small transparent ones."""
    n, is_floor = 420, torch.arange(420) < 20
    means = torch.rand(n, 3, generator=torch.Generator().manual_seed(0)) - 0.5
    means[:, 1] = torch.where(is_floor, 0.5, 0.1)  # y points down
    log_scales = torch.where(is_floor, 0.1, 0.005).log()[:, None].expand(n, 3)
    logits = torch.where(is_floor, 3.0, -3.0)
    quats = torch.tensor([[1.0, 0, 0, 0]]).expand(n, 4)
    gaussians = Gaussians(means, log_scales, quats, logits, torch.zeros(n, 1, 3), torch.zeros(n, 0, 3))
    frame = PageFrame(START, gaussians, walk=0.2)
    assert frame.floor == pytest.approx(frame.place((0.0, 0.5, 0.0))[1], abs=0.01)


@pytest.mark.parametrize(
    ("walk", "message"), [(0.0, "positive"), (np.nan, "finite"), (50.0, "too small for this height")]
)
def test_invalid_heights_of_walking(walk, message, tmp_path):
    with pytest.raises(ArgumentError, match=f"walk: .*{message}"):
        write_page(tmp_path / "scene.html", GAUSSIANS, START, extras=PageExtras(walk=walk))


def test_errors_leave_no_file(tmp_path):
    out = tmp_path / "new" / "scene.html"
    with pytest.raises(ArgumentError, match="format: expected"):
        write_page(out, GAUSSIANS, format="ply")
    with pytest.raises(UnsupportedError, match="sh_degree"):
        write_page(out, make_gaussians(sh_degree=4), START, format="compressed-ply")
    with pytest.raises(ArgumentError, match="no Gaussian is visible"):
        write_page(out, GAUSSIANS.map(lambda tensor: tensor[:0]))
    with pytest.raises(ArgumentError, match=r"--view: .* has no cameras.json of a run"):
        export_page(tmp_path / "absent.ply", out, view="0", warn=pytest.fail)
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="cannot write there"):
        write_page(tmp_path / "file" / "scene.html", GAUSSIANS, START)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
