"""Names in the files of a capture do not lead out of its folder; links in it may."""

import contextlib
import json
import os
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.captures import POINTS, frame, sample_views, write_colmap, write_image, write_transforms
from tests.support.metashape_files import write_metashape
from tests.support.realitycapture_files import write_realitycapture
from tsplat.errors import ArgumentError, UnsupportedError
from tsplat.scene import FileError, read_capture
from tsplat.support.reading import path_inside, protect_inputs, raise_if_read

pytest.importorskip("pycolmap")

NAME = "test_000"
"""Stem of the photograph whose name is replaced."""

KINDS = ("file_path", "mask_path", "ply_file_path", "test_filenames", "colmap", "metashape", "realitycapture")
"""Keys of ``transforms.json``, and other readers that look up files by their names in a file."""

STEPS = ("..", ".", "", "images", "scene", "a")
ENDS = (f"{NAME}.png", NAME, "secret.png", "secret.ply", "points.ply", "mask.png", "..", "")


def views():
    return sample_views()[:4]


def write_scene(kind, folder, name):
    """Writes a capture in which one file, of the kind, has another name."""
    if kind == "colmap":
        file = write_colmap(folder, views(), POINTS) / "sparse" / "0" / "images.txt"
        file.write_text(file.read_text().replace(f"{NAME}.png", name))
    elif kind == "metashape":
        file = write_metashape(folder, views()) / "cameras.xml"
        file.write_text(file.read_text().replace(f"C:\\photos\\{NAME}", name))
    elif kind == "realitycapture":
        file = write_realitycapture(folder, views()) / "cameras.csv"
        file.write_text(file.read_text().replace(f"{NAME}.png", name))
    else:
        frames = [frame(view) for view in views()]
        values = {"ply_file_path": {kind: name}, "test_filenames": {kind: [name]}}.get(kind, {})
        if not values:
            frames[0][kind] = name
        write_transforms(folder, views(), frames=frames, **values)
    write_image(folder / "mask.png", 0 * views()[0].image + 255)
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with files that no capture in its folder ``scene`` may name."""
    root = tmp_path_factory.mktemp("root")
    for name in ("secret.png", f"{NAME}.png", "images/secret.png", f"images/{NAME}.png", "mask.png"):
        write_image(root / name, views()[0].image)
    for name in ("secret.ply", "points.ply"):
        rows = "".join(f"{i} {i} 1\n" for i in range(4))
        properties = "".join(f"property float {axis}\n" for axis in "xyz")
        (root / name).write_text(f"ply\nformat ascii 1.0\nelement vertex 4\n{properties}end_header\n{rows}")
    return root


def outside(root):
    return [path for path in root.rglob("*") if path.is_file() and root / "scene" not in path.parents]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(
    start=st.sampled_from(("", "", "/", "absolute")),
    steps=st.lists(st.sampled_from(STEPS), max_size=4),
    end=st.sampled_from(ENDS),
    slash=st.sampled_from("/\\"),
)
def test_no_file_outside_of_the_folder_is_read(root, kind, start, steps, end, slash):
    name = slash.join([*([os.fspath(root)] if start == "absolute" else []), *steps, end])
    name = "/" + name if start == "/" else name
    shutil.rmtree(root / "scene", ignore_errors=True)
    write_scene(kind, root / "scene", name)
    with protect_inputs():
        with contextlib.suppress(ArgumentError, UnsupportedError):
            read_capture(root / "scene", test_every=0)
        for path in outside(root):
            raise_if_read(path)


@pytest.mark.parametrize("name", ["../secret.png", "images/../../secret.png", "{root}/secret.png", "..\\secret.png"])
@pytest.mark.parametrize("kind", ["file_path", "mask_path", "ply_file_path", "test_filenames"])
def test_names_that_lead_out_of_the_folder_are_errors(root, tmp_path, kind, name):
    folder = write_scene(kind, tmp_path / "scene", name.format(root=root))
    shutil.copy(root / "secret.png", tmp_path)
    words = rf"transforms\.json: .*{kind}: expected a path inside the folder of this file, found '.*secret\.png'; move"
    with pytest.raises(FileError, match=words):
        read_capture(folder)


def test_absolute_paths_in_the_folder_are_read(tmp_path, monkeypatch):
    """Also where the folder is named by a link, or relative to the working directory."""
    folder = write_transforms(tmp_path / "scene", views())
    expected = read_capture(folder)
    (tmp_path / "link").symlink_to("scene")
    monkeypatch.chdir(tmp_path)
    path = folder / "transforms.json"
    for prefix in (folder, tmp_path / "link", "../scene", "images/.."):
        frames = [{**frame(view), "file_path": f"{prefix}/images/{view.name}"} for view in views()]
        path.write_text(json.dumps({**json.loads(path.read_text()), "frames": frames}))
        if prefix != "../scene":
            assert names(read_capture(tmp_path / "link")) == names(expected)
        if prefix != tmp_path / "link":
            assert names(read_capture("scene")) == names(expected)


@pytest.mark.parametrize("kind", ["transforms", "colmap", "metashape", "realitycapture"])
def test_links_in_the_folder_may_lead_out_of_it(tmp_path, kind):
    if kind == "transforms":
        folder = write_transforms(tmp_path / "scene", views())
    else:
        folder = write_scene(kind, tmp_path / "scene", NAME if kind == "metashape" else f"{NAME}.png")
    expected = read_capture(folder)
    (folder / "images").rename(tmp_path / "photographs")
    (folder / "images").symlink_to("../photographs")
    assert names(read_capture(folder)) == names(expected)
    photograph = tmp_path / "photographs" / views()[0].name
    photograph.rename(tmp_path / "elsewhere.png")
    photograph.symlink_to(tmp_path / "elsewhere.png")
    assert names(read_capture(folder)) == names(expected)


def names(capture):
    return [view.name for view in (*capture.train, *capture.test)]


def test_paths_are_resolved_by_their_names(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "link").symlink_to("/")
    inside = {"b": "b", "./b": "b", "c/../b": "b", "../a/b": "b", "link/etc": "link/etc", "link/../b": "b", ".": "."}
    for name, expected in {**inside, str(tmp_path / "a" / "b"): "b"}.items():
        assert path_inside(tmp_path / "a", name) == tmp_path / "a" / expected
    for name in ("..", "../b", "../ab", "link/../../b", "/", "/etc", str(tmp_path), str(tmp_path / "ab")):
        assert path_inside(tmp_path / "a", name) is None
