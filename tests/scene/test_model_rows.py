"""Models as rows: the same files as from memory, whatever is read at a time, and nothing left of temporary files."""

import contextlib
import shutil

import numpy as np
import pytest
import torch

from tests.support.model_files import assert_same_tensors, random_gaussians
from tsplat.scene import FileError, Gaussians, read_model, write_model, write_ply
from tsplat.scene import model_rows as module
from tsplat.scene.editing import levels
from tsplat.scene.formats import sog_writer
from tsplat.scene.formats.ply import open_ply_rows
from tsplat.scene.model_rows import MemoryRows, PassProgress, StoredRows, as_rows, morton_sorted
from tsplat.scene.quantization import valid_bounds

FORMATS = ["ply", "spz", "spz4", "sog", "streamed-sog"]


@pytest.fixture
def tiny(monkeypatch):
    """Ranges of a few rows, so that a small model has many."""
    monkeypatch.setattr(module, "CHUNK", 7)
    monkeypatch.setattr(module, "SORTED_ROWS", 32)


@pytest.fixture
def ply(tmp_path):
    """A PLY with values midway between the levels of formats, and its Gaussians."""
    gaussians = random_gaussians(300, 2)
    gaussians.log_scales[:50] = -1 / 32
    gaussians.sh0[100:200] = 0
    gaussians.shN[:] = (gaussians.shN * 40).round() / 40
    write_ply(tmp_path / "a.ply", gaussians)
    return tmp_path / "a.ply"


def content(path):
    files = [path] if path.is_file() else sorted(path.rglob("*.*"))
    return {str(file.relative_to(path)): file.read_bytes() for file in files if file.is_file()}


@pytest.mark.parametrize("format", FORMATS)
def test_files_are_those_of_the_model_in_memory(ply, tmp_path, monkeypatch, format):
    for name in {"spz4": ["zstandard"], "sog": ["PIL"], "streamed-sog": ["PIL", "scipy"]}.get(format, []):
        pytest.importorskip(name)
    monkeypatch.setattr(levels, "COARSEST", 100)
    monkeypatch.setattr(sog_writer, "EXACT_PALETTE", 64)  # clusters coefficients
    lost = write_model(tmp_path / "whole", read_model(ply), format=format)
    monkeypatch.setattr(module, "CHUNK", 7)
    monkeypatch.setattr(module, "SORTED_ROWS", 32)
    with open_ply_rows(ply) as rows:
        assert write_model(tmp_path / "parts", rows, format=format) == lost
    assert content(tmp_path / "parts") == content(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.ply", "parts", "whole"]


def test_palettes_and_codebooks_of_a_sample(ply, tmp_path, monkeypatch, tiny):
    """They depend on every k-th row, not on what is read at a time; few different values are exact."""
    pytest.importorskip("PIL")
    monkeypatch.setattr(sog_writer, "SAMPLE", 100)
    monkeypatch.setattr(sog_writer, "EXACT_PALETTE", 16)
    for chunk in (7, 50):
        monkeypatch.setattr(module, "CHUNK", chunk)
        with open_ply_rows(ply) as rows:
            write_model(tmp_path / f"{chunk}.sog", rows)
    assert (tmp_path / "7.sog").read_bytes() == (tmp_path / "50.sog").read_bytes()
    found, gaussians = read_model(tmp_path / "7.sog"), read_model(ply)
    assert torch.equal(found.shN.unique(), gaussians.shN.unique())  # fewer than 256 values
    assert 1e-6 < float((found.sh0.sort(0).values - gaussians.sh0.sort(0).values).abs().mean()) < 0.05


def test_sample_is_every_kth_row(ply, monkeypatch, tiny):
    gaussians = read_model(ply)
    with open_ply_rows(ply) as rows:
        for n, step in ((300, 1), (299, 2), (100, 3), (1, 300)):
            assert_same_tensors(rows.sample(n), gaussians.map(lambda tensor, step=step: tensor[::step]))


@pytest.mark.parametrize("surfels", [False, True])
def test_order_and_subsets(tmp_path, tiny, surfels):
    gaussians = random_gaussians(100, 1)
    gaussians = gaussians.as_surfels() if surfels else gaussians
    write_ply(tmp_path / "a.ply", gaussians)
    gaussians = read_model(tmp_path / "a.ply")
    generator = np.random.default_rng(0)
    with open_ply_rows(tmp_path / "a.ply") as rows:
        assert rows.properties == as_rows(gaussians).properties
        for order in (generator.permutation(100), generator.permutation(100)[:40], np.zeros(0, np.int64)):
            with rows.ordered(order, tmp_path) as found:
                assert len(found) == len(order)
                assert_same_tensors(found.read(0, len(found)), gaussians.map(lambda t, o=order: t[torch.from_numpy(o)]))
    assert [path.name for path in tmp_path.iterdir()] == ["a.ply"]


def test_merging_by_blocks_keeps_the_number_and_the_mass(ply, tmp_path, monkeypatch, tiny):
    pytest.importorskip("scipy")
    monkeypatch.setattr(levels, "BLOCK", 64)
    gaussians = read_model(ply)
    bounds = valid_bounds(as_rows(gaussians))
    for n in (299, 150, 97, 1):
        with levels.decimate_rows(open_ply_rows(ply), n, bounds, tmp_path) as found:
            merged = found.read(0, len(found))
        in_memory = levels.decimate_rows(as_rows(gaussians), n, bounds, tmp_path)
        assert isinstance(in_memory, MemoryRows)
        assert_same_tensors(merged, in_memory.read(0, len(in_memory)))
        assert len(merged) == n and bool(merged.valid.all())
        if n > 90:
            assert float((mass(merged) / mass(gaussians)).log().abs()) < 0.5


def mass(gaussians: Gaussians):
    return (gaussians.opacities * gaussians.log_scales.topk(2).values.sum(1).exp()).sum()


def test_too_little_disk(ply, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=1000))
    with open_ply_rows(ply) as rows, pytest.raises(FileError, match=r"needs 0\.00 GB of disk .* write to another disk"):
        write_model(tmp_path / "a.spz", rows)
    assert [path.name for path in tmp_path.iterdir()] == ["a.ply"]


def test_temporary_files_are_closed_after_errors(ply, tmp_path, monkeypatch, tiny):
    """An error in the middle of sorting or merging leaves no file open, and no file."""
    opened = []
    original = StoredRows.__init__

    def remember(self, *arguments):
        original(self, *arguments)
        opened.append(self)

    def fail(self, *arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(StoredRows, "__init__", remember)
    monkeypatch.setattr(StoredRows, "write", fail)
    with open_ply_rows(ply) as rows, contextlib.suppress(KeyboardInterrupt):
        morton_sorted(rows, lambda means: means, valid_bounds(rows), tmp_path)
    assert opened and all(file.closed for stored in opened for file in stored._files.values())
    assert [path.name for path in tmp_path.iterdir()] == ["a.ply"]


def test_passes_are_told(ply, tmp_path, tiny):
    """Also those over temporary files, each up to its end."""
    told = []
    with open_ply_rows(ply) as rows:
        rows.passes = PassProgress(lambda *values: told.append(values))
        write_model(tmp_path / "a.spz", rows)
    labels = list(dict.fromkeys(label for label, _, _ in told))
    assert labels == [f"pass {i + 1}" for i in range(len(labels))] and len(labels) > 6
    assert [(label, done) for label, done, total in told if done == total] == [(label, 300) for label in labels]


def test_ascii_and_compressed_files_are_read_whole(tmp_path):
    write_model(tmp_path / "a.compressed.ply", random_gaussians(3))
    assert open_ply_rows(tmp_path / "a.compressed.ply") is None
