"""Tests of reading safetensors without mapping the files into memory, and of writing them without copies."""

import json
import os
import struct

import pytest
import torch

from benchmarks.shard_memory import forget_peak, memory
from tsplat.scene import FileError
from tsplat.scene.formats.safetensors_file import DTYPES, SafetensorsFile, write_safetensors

torch_files = pytest.importorskip("safetensors.torch")


def tensors():
    found = {str(dtype): torch.arange(12).reshape(4, 3).to(dtype) for dtype in DTYPES.values()}
    return {**found, "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3)}


def test_tensors_and_rows_are_those_that_were_written(tmp_path):
    torch_files.save_file(tensors(), tmp_path / "a", {"key": "value"})
    with SafetensorsFile(tmp_path / "a") as file:
        assert file.metadata == {"key": "value"} and file.entries.keys() == tensors().keys()
        for name, tensor in tensors().items():
            found = file.read(name)
            assert found.dtype == tensor.dtype and found.shape == tensor.shape
            assert torch.equal(found.double(), tensor.double())
            for rows in (slice(1, 3), slice(0, 0), slice(2, 9), slice(None, 2)):
                if tensor.dim():
                    assert torch.equal(file.read(name, rows).double(), tensor[rows].double())


def test_files_are_those_that_safetensors_reads(tmp_path):
    given = {**tensors(), "columns": torch.arange(12.0).reshape(3, 4).T, "rows": torch.arange(12.0).reshape(4, 3)[1:3]}
    given["parameter"] = torch.nn.Parameter(torch.ones(2))
    write_safetensors(tmp_path / "a", given)
    for found in (torch_files.load_file(tmp_path / "a"), {}):
        if not found:
            with SafetensorsFile(tmp_path / "a") as file:
                found = {name: file.read(name) for name in file.entries}
                assert all(start % dtype.itemsize == 0 for dtype, _, start in file.entries.values())
        assert found.keys() == given.keys()
        for name, tensor in given.items():
            assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
            assert torch.equal(found[name].double(), tensor.double())


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="measures memory on Linux")
def test_writing_copies_nothing(tmp_path):
    given = {name: torch.ones(2**22) for name in "abc"}
    forget_peak()
    before = memory("VmHWM")
    write_safetensors(tmp_path / "a", given)
    assert memory("VmHWM") - before < 2**22 < os.path.getsize(tmp_path / "a") // 8


def header(value, size=0):
    text = json.dumps(value).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size)


def entry(**values):
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **values}}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        struct.pack("<Q", 1 << 62),
        struct.pack("<Q", 4) + b"[[[[",
        header([]),
        header(entry()),
        header(entry(dtype="F33"), 8),
        header(entry(shape=[3]), 8),
        header(entry(shape=[-2]), 8),
        header(entry(shape=[1 << 60], data_offsets=[0, 1 << 62]), 8),
        header(entry(data_offsets=[-8, 0]), 8),
        header({"a": 1}, 8),
    ],
)
def test_damaged_files_are_errors(content, tmp_path):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(FileError, match="not a valid safetensors file"):
        SafetensorsFile(tmp_path / "a")


def test_a_file_that_is_truncated_while_it_is_open_is_an_error(tmp_path):
    torch_files.save_file({"a": torch.ones(100_000)}, tmp_path / "a")
    with SafetensorsFile(tmp_path / "a") as file:
        os.truncate(tmp_path / "a", 5000)
        with pytest.raises(FileError, match="truncated while it was read"):
            file.read("a")
