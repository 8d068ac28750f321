"""LCC of XGRIDS, against datasets packed by hand: cells, levels, surroundings, axes, georeferences, damage."""

import json
import struct
import tracemalloc

import pytest
import torch

from tests.support.lcc_files import lcc_files
from tests.support.model_files import assert_same_rotations, random_gaussians, write_folder
from tsplat import UnsupportedError
from tsplat.scene import FileError, read_georeference, read_model, transform_gaussians
from tsplat.scene.rotation import upright


def write(folder, files):
    return write_folder(folder / "scene", files) / "a.lcc"


@pytest.mark.parametrize(("degree", "around", "levels"), [(0, 0, 1), (3, 0, 3), (0, 7, 2), (3, 9, 2)])
def test_the_finest_level_and_surroundings_are_read(tmp_path, degree, around, levels):
    own = random_gaussians(60, degree)
    notes = []
    found = read_model(write(tmp_path, lcc_files(own, levels=levels, around=around)), warn=notes.append)
    expected = transform_gaussians(own, upright((0, 0, 1)))
    assert torch.equal(found.means, torch.stack([own.means[:, 0], -own.means[:, 2], own.means[:, 1]], -1))
    for rows in (slice(60 - around), slice(60 - around, 60)):
        if len(scales := expected.scales[rows]):
            step = (scales.amax() - scales.amin()) / 65535
            torch.testing.assert_close(found.scales[rows], scales, rtol=1e-5, atol=float(step))
    assert_same_rotations(found, expected, 2e-3)
    assert (found.opacities - expected.opacities).abs().max() <= 0.5 / 255 + 1e-6
    colors = (0.5 + 0.28209479 * expected.sh0).clamp(0, 1)
    assert (0.5 + 0.28209479 * found.sh0 - colors).abs().max() <= 0.5 / 255 + 1e-6
    assert found.sh_degree == degree and (degree == 0 or (found.shN - expected.shN).abs().max() < 6e-3)
    assert [("levels" in note, "surroundings" in note) for note in notes] == [(True, False)] * (levels > 1) + [
        (False, True)
    ] * (around > 0)


def test_names_begin_with_capitals_and_the_first_versions_have_no_kind(tmp_path):
    files = lcc_files(random_gaussians(20, 3), levels=1, version="3.0", fileType=None)
    renamed = {name if name == "a.lcc" else name.capitalize(): content for name, content in files.items()}
    assert read_model(write(tmp_path, renamed)).sh_degree == 3
    (tmp_path / "scene" / "Shcoef.bin").unlink()
    assert read_model(tmp_path / "scene").sh_degree == 0


def test_no_gaussians(tmp_path):
    files = lcc_files(random_gaussians(2), levels=1) | {"index.bin": b"", "data.bin": b""}
    assert len(read_model(write(tmp_path, files))) == 0


def test_offsets_are_georeferences(tmp_path):
    own, offset = random_gaussians(9), (689605.68, 5338780.53, 565.62)
    path = write(tmp_path, lcc_files(own, levels=1, offset=offset, epsg=32632))
    found = read_georeference(path)
    assert found.crs == "EPSG:32632"
    torch.testing.assert_close(torch.tensor(found.origin), torch.tensor(offset))
    there = torch.linalg.inv(found.world) @ torch.cat([read_model(path).means, torch.ones(9, 1)], 1).double().T
    torch.testing.assert_close(there[:3].T, own.means.double() + torch.tensor(offset, dtype=torch.float64))
    assert read_georeference(write(tmp_path / "scene", lcc_files(own, levels=1))) is None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"version": "2.0"}, "version 3 to 5, found '2.0'"),
        ({"encoding": "RAW"}, "encoding COMPRESS, found 'RAW'"),
        ({"fileType": "Tiny"}, "fileType Portable or Quality, found 'Tiny'"),
        ({"shift": [0, 1, 0]}, "shift of 0 along all axes, found"),
        ({"scale": [1, 1, 2]}, "scale of 1 along all axes, found"),
    ],
)
def test_what_is_not_implemented_is_named(tmp_path, values, words):
    with pytest.raises(UnsupportedError, match=rf"a\.lcc: expected .*{words}"):
        read_model(write(tmp_path, lcc_files(random_gaussians(5), **values)))


@pytest.mark.parametrize(
    ("name", "offset", "layout", "value", "words"),
    [
        ("index.bin", 4, "<I", 2**32 - 1, "for each of 4,294,967,295 Gaussians from byte 0"),
        ("index.bin", 8, "<Q", 2**64 - 1, "from byte 18,446,744,073,709,551,615 on"),
        ("index.bin", 16, "<I", 31, "found 31 of"),
        ("index.bin", 36 + 8, "<Q", 0, "after others up to"),  # a cell twice
        ("a.lcc", None, "totalLevel", 10**30, "levels of detail"),
        ("a.lcc", None, "indexDataSize", 21, "an indexDataSize of 21"),
        ("a.lcc", None, "attributes", [{"name": {}}], "expected attributes to be a list with the bounds of scale"),
        ("data.bin", None, None, None, "a file is cut short or damaged"),
        ("shcoef.bin", None, None, None, "a file is cut short or damaged"),
        ("environment.bin", None, None, None, "expected records of 96 bytes, found 95 more"),
    ],
)
def test_damaged_files_are_errors_before_memory_is_taken(tmp_path, name, offset, layout, value, words):
    files = lcc_files(random_gaussians(50, 3), around=5)
    if offset is not None:
        files[name] = (
            files[name][:offset] + struct.pack(layout, value) + files[name][offset + struct.calcsize(layout) :]
        )
    elif layout is not None:
        files[name] = json.dumps(json.loads(files[name]) | {layout: value}).encode()
    else:
        files[name] = files[name][:-1]
    path = write(tmp_path, files)
    tracemalloc.start()
    with pytest.raises(FileError, match=words):
        read_model(path, warn=str)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_cells_that_name_more_than_there_is_are_errors(tmp_path):
    files = lcc_files(random_gaussians(50), cells=1, levels=1)
    with pytest.raises(FileError, match=r"index\.bin: .* damaged"):
        read_model(write(tmp_path, files | {"index.bin": 100_000 * files["index.bin"]}))


def test_an_index_that_ends_early_is_an_error_but_data_after_the_end_is_not(tmp_path):
    files = lcc_files(random_gaussians(50), levels=1)
    assert len(read_model(write(tmp_path, files | {"data.bin": files["data.bin"] + bytes(40)}))) == 50
    (tmp_path / "scene" / "index.bin").write_bytes(files["index.bin"][:-20])
    with pytest.raises(FileError, match=r"index\.bin: names 1,\d+ of 1,\d+ bytes of .*, 34 Gaussians"):
        read_model(tmp_path / "scene")
