"""Damaged model files are read or rejected, with bounded memory.

``python -m tests.tools.corruption`` and ``python -m tests.tools.model_corruption all`` try more.
"""

import hashlib
import io
import json
import os
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch

from tests.support.forked_usd import forked_usd
from tests.support.model_files import (
    ply_bytes,
    ply_names,
    random_gaussians,
    sog_files,
    spz_bytes,
    write_folder,
    write_zip,
)
from tests.support.slow import slow_after
from tests.support.training_scenes import make_checkpoint
from tests.tools.corruption import DAMAGES, check_checkpoint, check_ply
from tests.tools.model_corruption import FORMATS, Model
from tsplat import UnsupportedError
from tsplat.scene import CheckpointError, FileError, open_model, read_model, read_ply, read_torch_checkpoint
from tsplat.scene.formats.checkpoints import manifest_digest
from tsplat.training import read_checkpoint, write_checkpoint

COUNT = int(os.environ.get("TSPLAT_CORRUPTIONS", "200"))


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_ply(tmp_path, kind):
    for seed in range(-(-COUNT // len(DAMAGES))):
        check_ply(tmp_path / "a.ply", kind, seed)


def test_damaged_torch_checkpoint(tmp_path):
    for seed in range(COUNT // 10):
        check_checkpoint(tmp_path / "a.pt", seed)


@pytest.mark.parametrize("kind", slow_after(2, FORMATS))
def test_damaged_model(tmp_path, kind):
    if kind == "spz_4":
        pytest.importorskip("zstandard")
    if kind.startswith("usd"):
        pytest.importorskip("pxr")
    with forked_usd():
        model = Model(tmp_path, kind)
        outcomes = {model.check(seed) for seed in range(COUNT // 3)}
    assert outcomes - {"read"}


def test_damaged_sog_and_spz(tmp_path):
    rng = np.random.default_rng(0)
    files, _, _ = sog_files()
    gaussians = random_gaussians(40, 2)
    contents = {
        "a.sog": write_zip(tmp_path / "a.sog", files).read_bytes(),
        "a.spz": spz_bytes(gaussians, 3),
        "b.spz": spz_bytes(gaussians, 4),
        "c.spz": spz_bytes(gaussians, 2, raw=True),
    }
    outcomes = set()
    for i in range(200):
        name = list(contents)[i % len(contents)]
        content = bytearray(contents[name])
        for _ in range(int(rng.integers(1, 6))):
            content[int(rng.integers(len(content)))] = int(rng.integers(256))
        (tmp_path / name).write_bytes(content[: int(rng.integers(len(content)))] if i % 3 == 0 else content)
        try:
            assert len(read_model(tmp_path / name, warn=str)) <= 40
            outcomes.add((name, "read"))
        except (FileError, UnsupportedError):
            outcomes.add((name, "rejected"))
    assert outcomes >= {(name, "rejected") for name in contents} | {("c.spz", "read")}


def test_damaged_length_in_a_checkpoint_allocates_little(tmp_path):
    # A pickled string with a length of 3 GB.
    (tmp_path / "a.pt").write_bytes(b"\x80\x02X\x00\x00\x00\xc0abc")
    tracemalloc.start()
    with pytest.raises(FileError, match=r"a\.pt"):
        read_torch_checkpoint(tmp_path / "a.pt")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize(("encoding", "count"), [("binary_big_endian", 100_000), ("ascii", 1_000)])
def test_reading_ply_allocates_little_more_than_the_gaussians(tmp_path, encoding, count):
    content = ply_bytes(ply_names(3), np.ones((count, 59), np.float32), encoding)
    (tmp_path / "a.ply").write_bytes(content)
    tracemalloc.start()
    found = read_ply(tmp_path / "a.ply")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found) == count
    assert peak < count * 59 * 4 + (20 << 20)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"means": torch.zeros(1, 3).expand(10**9, 3)}, r"means: expected a value for each entry, found \[10+, 3\]"),
        ({"means": torch.zeros(50, 1).expand(50, 3)}, "means: expected a value for each entry"),
        ({"scales": torch.zeros(50, 3).to(torch.float8_e4m3fn)}, "log_scales: expected a dense tensor of 16 to 64 bit"),
        ({"quats": torch.zeros(50, 4, dtype=torch.complex64)}, "quats: expected a dense tensor"),
        ({"sh0": torch.zeros(50, 1, 3, dtype=torch.bool)}, "sh0: expected a dense tensor"),
    ],
)
def test_tensors_that_are_no_values_of_gaussians_are_errors(tmp_path, changes, words):
    shapes = dict(means=(3,), scales=(3,), quats=(4,), opacities=(), sh0=(1, 3), shN=(15, 3))
    splats = {name: torch.zeros(50, *shape) for name, shape in shapes.items()} | changes
    torch.save({"step": 1, "splats": splats}, tmp_path / "a.pt")
    with pytest.raises(FileError, match=rf"a\.pt: {words}"):
        read_torch_checkpoint(tmp_path / "a.pt", force=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('"mins": [-1, NaN, -3]', "not JSON .found NaN"),
        ('"mins": [-1, -Infinity, -3]', "not JSON .found -Infinity"),
        ('"mins": [-1, 1e999, -3]', "mins to be a list of numbers in the range of a float"),
        ('"mins": [-1, 200, -3]', "logarithms of at most 88.7"),
        ('"mins": [-1, "2", -3]', "mins to be a list of 3 numbers"),
        ('"mins": ' + "[" * 5000, "not JSON"),
    ],
)
def test_values_that_are_not_finite_in_sog_are_errors(tmp_path, text, words):
    files, _, _ = sog_files()
    files["meta.json"] = files["meta.json"].replace(b'"mins": [-1, -2, -3]', text.encode())
    with pytest.raises(FileError, match=words):
        read_model(write_zip(tmp_path / "a.sog", files))


@pytest.mark.parametrize("name", ["/etc/passwd", "../means_l.webp", "a\0.webp", "\ud800.webp", "..", "a\\b.webp"])
def test_names_of_no_file_in_sog_are_errors(tmp_path, name):
    folder = write_folder(tmp_path / "a", sog_files(quats={"files": [name]})[0])
    with pytest.raises(FileError, match="files to be file names without a folder"):
        read_model(folder)


@pytest.mark.parametrize("name", ["meta.json", "quats.webp"])
def test_members_of_an_archive_that_inflate_are_errors(tmp_path, name):
    files, _, _ = sog_files()
    files[name] += bytes(40_000_000)
    tracemalloc.start()
    content = write_zip(tmp_path / "a.sog", files, zipfile.ZIP_DEFLATED)
    tracemalloc.reset_peak()
    with pytest.raises(FileError, match=rf"a\.sog: {name} .*its size of 40,.* is invalid"):
        read_model(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60_000_000


def test_an_array_of_png_images_that_inflates_is_an_error(tmp_path):
    from tsplat.scene.formats.png_images import PARAMETERS, read_png_images, write_png_images

    gaussians = random_gaussians(100, degree=1)
    write_png_images(tmp_path / "a", {name: getattr(gaussians, field) for name, field in PARAMETERS.items()})
    file = io.BytesIO()
    np.savez_compressed(file, centroids=np.zeros((4_000_000, 9), np.uint8), labels=np.zeros(100, np.uint16))
    (tmp_path / "a" / "shN.npz").write_bytes(file.getvalue())
    with pytest.raises(FileError, match=r"shN\.npz: centroids\.npy .* its size of 36,000,128 bytes is invalid"):
        read_png_images(tmp_path / "a")


def test_pipes_and_devices_in_a_folder_are_errors(tmp_path):
    folder = write_folder(tmp_path / "a", sog_files()[0])
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        (folder / "quats.webp").unlink()
        make(folder / "quats.webp")
        with pytest.raises(FileError, match=r"quats\.webp: expected a regular file"):
            read_model(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"files": []},
        {"files": {}},
        {"files": {"training.safetensors": {}}},
        {"files": {"scene.safetensors": 1, "training.safetensors": 2}},
        {"files": {"scene.safetensors": {}, "training.safetensors": {}, "../../secret": {}}},
        {"figures": None},
        {"config": []},
        {"n_gaussians": "7"},
        {"antialiased": 1},
        {"step": 1.5},
    ],
)
def test_manifests_with_values_of_other_types_are_errors(tmp_path, changes):
    folder = write_checkpoint(tmp_path / "run" / "checkpoints", make_checkpoint(7, 20))
    manifest = json.loads((folder / "checkpoint.json").read_text()) | changes
    del manifest["sha256"]
    (folder / "checkpoint.json").write_text(json.dumps(manifest | {"sha256": manifest_digest(manifest)}))
    with pytest.raises(CheckpointError, match=r"checkpoint\.json: expected"):
        open_model(folder)


def test_parameters_of_8_bits_in_a_checkpoint_are_errors(tmp_path):
    torch_files = pytest.importorskip("safetensors.torch")
    folder = write_checkpoint(tmp_path / "run" / "checkpoints", make_checkpoint(7, 20))
    tensors = torch_files.load_file(folder / "scene.safetensors")
    tensors["means"] = tensors["means"].to(torch.float8_e4m3fn)
    torch_files.save_file(tensors, folder / "scene.safetensors")
    manifest = json.loads((folder / "checkpoint.json").read_text())
    del manifest["sha256"]
    content = (folder / "scene.safetensors").read_bytes()
    manifest["files"]["scene.safetensors"]["sha256"] = hashlib.sha256(content).hexdigest()
    (folder / "checkpoint.json").write_text(json.dumps(manifest | {"sha256": manifest_digest(manifest)}))
    with pytest.raises(CheckpointError, match=r"means: expected floats of 16 to 64 bits, found torch\.float8_e4m3fn"):
        open_model(folder)


def test_a_checkpoint_that_was_read_is_written_byte_for_byte(tmp_path):
    first = write_checkpoint(tmp_path / "a", make_checkpoint(7, 20))
    second = write_checkpoint(tmp_path / "b", read_checkpoint(first))
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes(), path.name
