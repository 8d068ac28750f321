"""From a compiled kernel and Python values to a program and its launch."""

import dataclasses
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .amd import assembly, code_object
from .nvidia import ptx, sass, sass_text
from .program import Launch, Memory, Program
from .shadow import Shadow

FORMATS = {
    "i1": "?", "u1": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
    "fp16": "e", "fp32": "f", "f32": "f", "fp64": "d",
}  # fmt: skip
"""Of scalar arguments, for struct.pack."""
GUARD_BYTES = 64
"""Behind the last argument, as wide loads may read beyond it."""


@dataclasses.dataclass
class KernelSource:
    """Triton's metadata of a compiled kernel, and its files by suffix."""

    metadata: Any
    files: dict[str, Path]

    def program(self, code: str, rewrite: Callable[[str], str] | None) -> Program:
        """Parses the kernel's code of a kind."""
        name, rewrite = self.metadata.name, rewrite or (lambda text: text)
        if code == "amdgcn":
            descriptor = code_object.load(self.files["hsaco"].read_bytes(), name)
            lanes = self.metadata.target.warp_size
            return assembly.translate(rewrite(self.files["amdgcn"].read_text()), descriptor, lanes)
        as_ptx = ptx.translate(rewrite(self.files["ptx"].read_text()), name)
        if code == "ptx":
            return as_ptx
        binary = self.files["cubin"].read_bytes()
        text = rewrite(sass_text.listing(binary))
        constants = sass_text.compiler_constants(binary, name) if "c[0x2]" in text else b""
        program = sass.translate(text, name, self.metadata.target.arch, constants)
        program.parameters = as_ptx.parameters
        program.cubin = binary
        return program


def launch_of(
    source: KernelSource,
    program: Program,
    grid: tuple[int, int, int],
    given: list[tuple[str, Any]],
    shadow: Shadow,
    key: str,
) -> Launch:
    """Packs the values of a launch as the hardware gets them.

    `given` has Triton's type and the value of each argument that is not a constant. If a tensor has addresses from the
    host, its attribute ``pointees`` has the tensors there.
    """
    metadata = source.metadata
    if getattr(metadata, "global_scratch_size", 0):
        raise NotImplementedError("kernels with scratch in global memory")
    slots = program.parameters
    packed = bytearray(program.argument_bytes + GUARD_BYTES)
    memories = []
    for (kind, value), (offset, size) in zip(given, slots):
        data = _pack(kind, value)
        assert len(data) <= size, (kind, size)
        packed[offset : offset + len(data)] = data
        if kind.startswith("*") and isinstance(value, torch.Tensor):
            pointees = getattr(value, "pointees", ())
            memories += [_memory(value, None if pointees else shadow), *(_memory(p, shadow) for p in pointees)]
    threads = metadata.num_warps * program.lanes
    for offset, data in program.hidden_arguments(grid, threads).items():
        packed[offset : offset + len(data)] = data
    launch = Launch(
        grid=grid, threads=threads, arguments=np.frombuffer(bytes(packed), np.uint8),
        memories=memories, shared_bytes=metadata.shared + program.static_shared_bytes, key=key,
    )  # fmt: skip
    launch.memories += program.own_memories(launch)
    return launch


def _memory(tensor: torch.Tensor, shadow: Shadow | None) -> Memory:
    """Returns the memory of a tensor; without a shadow, all of it was written."""
    storage = tensor.untyped_storage()
    written = None if shadow is None else shadow.of(tensor)
    return Memory(storage.data_ptr(), storage.nbytes(), tensor.element_size(), written)


def _pack(kind: str, value: Any) -> bytes:
    if kind.startswith("*"):
        return struct.pack("<Q", 0 if value is None else value.data_ptr())
    return struct.pack("<" + FORMATS[kind], value)
