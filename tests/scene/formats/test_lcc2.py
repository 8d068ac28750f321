"""LCC2 of XGRIDS: leaves of trees, files of three formats, surroundings, axes, damage."""

import json

import pytest
import torch

from tests.support.lcc_files import write_lcc2
from tests.support.model_files import assert_same_tensors, random_gaussians
from tsplat import UnsupportedError
from tsplat.scene import FileError, read_georeference, read_model, transform_gaussians
from tsplat.scene.rotation import upright


@pytest.mark.parametrize("around", [0, 6])
def test_leaves_and_surroundings_are_read(tmp_path, around):
    own, notes = random_gaussians(41, 3), []
    found = read_model(write_lcc2(tmp_path, own, around=around), warn=notes.append)
    assert_same_tensors(found, transform_gaussians(own, upright((0, 0, 1))))
    assert "read the finest of 2 levels" in notes[0] and len(notes) == 1 + (around > 0)
    assert_same_tensors(read_model(tmp_path, warn=str), found)
    assert read_georeference(tmp_path) is None
    path = write_lcc2(tmp_path, own, offset=[5e5, 4e6, 0], epsg=25832)
    assert read_georeference(path).crs == "EPSG:25832"


@pytest.mark.parametrize("suffix", [".sog", ".spz"])
def test_compressed_files(tmp_path, suffix):
    own = random_gaussians(40, 1)
    found = read_model(write_lcc2(tmp_path, own, suffix), warn=str)
    expected = transform_gaussians(own, upright((0, 0, 1)))
    distances = torch.cdist(found.means, expected.means)
    assert sorted(distances.argmin(1).tolist()) == list(range(40)) and distances.amin(1).max() < 1e-3


def test_lists_of_children(tmp_path):
    path = write_lcc2(tmp_path, random_gaussians(20))
    expected = read_model(path, warn=str)
    meta = json.loads(path.read_text())
    meta["root"]["child"] = list(meta["root"]["child"].values())
    path.write_text(json.dumps(meta))
    assert_same_tensors(read_model(path, warn=str), expected)


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"version": "0.0.4"}, UnsupportedError, "LCC2 of version 0.0.3, found '0.0.4'"),
        ({"version": None, "total_splats": 3}, UnsupportedError, "LCC2 of version 0.0.3, found 'None'"),
        ({"scale": [2, 2, 2]}, UnsupportedError, "scale of 1 along all axes"),
        ({"root": {}}, FileError, "root.splatFiles to be a list of names"),
        ({"root": {"splatFiles": []}}, FileError, "no leaf has Gaussians"),
    ],
)
def test_values_that_cannot_be_read(tmp_path, values, error, words):
    with pytest.raises(error, match=rf"a\.lcc2: .*{words}"):
        read_model(write_lcc2(tmp_path, random_gaussians(9), **values))


@pytest.mark.parametrize(
    ("names", "error", "words"),
    [
        (["../a.ply"] * 3, FileError, "names of files in it"),
        (["data/3dgs/1.ply"] * 3, FileError, "which are the same file"),
        (["data/3dgs/1.ply"], FileError, "in file 1 of 1|in file 2 of 1"),
        (["a.bin", "b.bin", "c.bin"], UnsupportedError, r"files of \.sog, \.spz, \.ply, found 'b\.bin'"),
        (["a.ply", f"{400 * 'c'}.ply", "b.ply"], FileError, "its file 'c+' is missing"),
        (["a.ply", "b.ply", "c.ply"], FileError, r"its file 'b\.ply' is missing"),
        (["0.ply", "data/3dgs/2.ply", "data/3dgs/0.ply"], FileError, "overlap others, or it has only"),
    ],
)
def test_wrong_names(tmp_path, names, error, words):
    path = write_lcc2(tmp_path, random_gaussians(41))
    meta = json.loads(path.read_text())
    meta["root"]["splatFiles"] = names
    path.write_text(json.dumps(meta))
    with pytest.raises(error, match=rf"a\.lcc2: .*({words})"):
        read_model(path, warn=str)


def test_a_count_beyond_all_numbers(tmp_path):
    path = write_lcc2(tmp_path, random_gaussians(41))
    path.write_text(path.read_text().replace('"count": 10', f'"count": {"9" * 400}'))
    with pytest.raises(FileError, match=r"a\.lcc2: a model of .* needs"):
        read_model(path, warn=str)
