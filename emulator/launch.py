"""Compiled kernels, and launches of them as a driver receives them."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .amd import assembly, code_object
from .nvidia import ptx, sass, sass_text
from .program import Launch, Memory, Program
from .shadow import Shadow
from .storages import Storage, Storages

GUARD_BYTES = 64
"""Padding bytes after the last argument, as wide loads may read beyond it."""
Rewrite = Callable[[str], str] | None


@dataclasses.dataclass
class KernelSource:
    """A compiled kernel: Triton's metadata, its files by suffix, and properties of its source."""

    metadata: Any
    files: dict[str, Path]
    types: list[str]
    """Triton's type of each argument that is not a constant."""
    key: str
    """Key of its counters: the kernel's name and constants."""
    module: str
    """Python module of the kernel."""
    programs: dict[tuple[str, Rewrite], Program] = dataclasses.field(default_factory=dict)

    def program(self, code: str, rewrite: Rewrite) -> Program:
        """Returns the parsed PTX, SASS or AMD code of the kernel."""
        found = self.programs.get((code, rewrite))
        if found is None:
            found = self.programs[code, rewrite] = self._parse(code, rewrite or (lambda text: text))
        return found

    def _parse(self, code: str, rewrite: Callable[[str], str]) -> Program:
        name = self.metadata.name
        if code == "amdgcn":
            descriptor = code_object.load(self.files["hsaco"].read_bytes(), name)
            lanes = self.metadata.target.warp_size
            return assembly.translate(rewrite(self.files["amdgcn"].read_text()), descriptor, lanes)
        if code == "ptx":
            return ptx.translate(rewrite(self.files["ptx"].read_text()), name)
        binary = self.files["cubin"].read_bytes()
        text = rewrite(sass_text.listing(binary))
        constants = sass_text.compiler_constants(binary, name) if "c[0x2]" in text else b""
        program = sass.translate(text, name, self.metadata.target.arch, constants)
        program.parameters = self.program("ptx", None).parameters
        program.cubin = binary
        return program

    def layout(self) -> tuple[list[tuple[int, int]], int]:
        """Returns offset and size of each argument, and the bytes of static shared memory, as in the binary."""
        program = self.program("amdgcn" if self.metadata.target.backend == "hip" else "ptx", None)
        return program.parameters, program.static_shared_bytes


@dataclasses.dataclass(frozen=True)
class LaunchRequest:
    """A launch as a driver receives it."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: bytes
    cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False
    overlaps: bool = False
    stream: int = 0


def launch_of(
    source: KernelSource, program: Program, request: LaunchRequest, storages: Storages, shadow: Shadow
) -> Launch:
    """Returns a launch as the hardware receives it, with the memory to which its arguments point."""
    if request.cluster != (1, 1, 1) or request.cooperative:
        raise NotImplementedError(f"{program.name}: clusters and cooperative launches are not supported")
    size = max(program.argument_bytes, len(request.arguments))
    packed = bytearray(request.arguments.ljust(size, b"\0") + bytes(GUARD_BYTES))
    threads = request.block[0] * request.block[1] * request.block[2]
    for offset, data in program.hidden_arguments(request.grid, threads).items():
        packed[offset : offset + len(data)] = data
    launch = Launch(
        grid=request.grid, threads=threads, arguments=np.frombuffer(bytes(packed), np.uint8),
        memories=[_memory(storage, shadow) for storage in pointed_at(source, program, request, storages)],
        shared_bytes=request.shared_bytes + program.static_shared_bytes, key=source.key, module=source.module,
    )  # fmt: skip
    launch.memories += program.own_memories(launch)
    return launch


def pointers(source: KernelSource, program: Program, request: LaunchRequest) -> dict[int, int]:
    """Returns the pointer arguments of a launch: argument number -> address."""
    found = {}
    for number, (offset, size) in enumerate(program.parameters):
        is_scratch = number >= len(source.types)
        if is_scratch or source.types[number].startswith("*"):
            found[number] = int.from_bytes(request.arguments[offset : offset + size], "little")
    return found


def pointed_at(source: KernelSource, program: Program, request: LaunchRequest, storages: Storages) -> list[Storage]:
    """Returns the storages that a launch may access."""
    found = [storages.at(address) for address in pointers(source, program, request).values() if address]
    given = [storage for storage in found if storage is not None]
    return [each for storage in given for each in (storage, *storage.pointees)]


def _memory(storage: Storage, shadow: Shadow) -> Memory:
    """Returns the memory of a storage. All bytes of a table of addresses count as written."""
    written = None if storage.pointees else shadow.at(storage.address, storage.size)
    return Memory(storage.address, storage.size, storage.item_bytes, written)
