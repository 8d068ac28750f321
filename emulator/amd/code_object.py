"""Reads kernel descriptors of AMD code objects: registers, memory and arguments.

LLVM's AMDGPUUsage describes the format: the ELF file, the 64 bytes of a kernel descriptor, and the metadata note.
"""

import dataclasses
import struct
from typing import Any

AMDGPU = 224
"""ELF machine."""
METADATA = 32
"""ELF note."""
SYMBOL_TABLES = (2, 11)


@dataclasses.dataclass(frozen=True)
class Descriptor:
    """Kernel descriptor, which the hardware reads before the first instruction."""

    shared_bytes: int
    scratch_bytes: int
    argument_bytes: int
    rsrc2: int
    """COMPUTE_PGM_RSRC2: number of user registers, and flags of the group coordinates that are passed."""
    properties: int
    """Flags of the values that user registers contain."""
    preload: int
    """First argument that is loaded into registers, and number of such arguments."""
    arguments: list[tuple[int, int]]
    """Offset and size of each argument."""
    hidden: dict[str, tuple[int, int]]
    """Offset and size of the arguments that the compiler adds, by name."""

    def user_registers(self, arguments: bytes, address: int) -> list[int]:
        """Returns the initial values of the first scalar registers, for arguments at an address."""
        words: list[int] = []
        for bit, values in enumerate(
            ([0] * 4, [0] * 2, [0] * 2, [address & 0xFFFFFFFF, address >> 32], [0] * 2, [0] * 2, [self.scratch_bytes])
        ):
            if self.properties >> bit & 1:
                words += values
        count, first = self.preload & 127, self.preload >> 7
        words += struct.unpack_from(f"<{count}I", arguments, 4 * first)
        expected = self.rsrc2 >> 1 & 31
        assert len(words) <= expected or expected == 0, (len(words), expected)
        return words + [0] * (expected - len(words))


def load(elf: bytes, name: str) -> Descriptor:
    """Returns the descriptor of the kernel `name` in a code object."""
    (machine,) = struct.unpack_from("<H", elf, 18)
    assert elf[:4] == b"\x7fELF" and machine == AMDGPU, "not an AMD code object"
    segments_at, sections_at = struct.unpack_from("<QQ", elf, 32)
    segment_bytes, n_segments, section_bytes, n_sections, _ = struct.unpack_from("<HHHHH", elf, 54)
    segments = [struct.unpack_from("<IIQQQQQQ", elf, segments_at + i * segment_bytes) for i in range(n_segments)]
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, sections_at + i * section_bytes) for i in range(n_sections)]
    address = _symbols(elf, sections)[name + ".kd"]
    at = next(
        offset + address - start for kind, _, offset, start, _, size, _, _ in segments
        if kind == 1 and start <= address < start + size
    )  # fmt: skip
    shared, scratch, argument_bytes = struct.unpack_from("<III", elf, at)
    _, _, rsrc2, properties, preload = struct.unpack_from("<IIIHH", elf, at + 44)
    kernels = _metadata(elf, segments)["amdhsa.kernels"]
    layout, hidden = [], {}
    for argument in next(kernel for kernel in kernels if kernel[".name"] == name).get(".args", []):
        place = argument[".offset"], argument[".size"]
        if argument[".value_kind"].startswith("hidden_"):
            hidden[argument[".value_kind"]] = place
        else:
            layout.append(place)
    return Descriptor(shared, scratch, argument_bytes, rsrc2, properties, preload, layout, hidden)


def _symbols(elf: bytes, sections: list[Any]) -> dict[str, int]:
    found = {}
    for _, kind, _, _, offset, size, link, _, _, entry_bytes in sections:
        if kind not in SYMBOL_TABLES:
            continue
        strings = sections[link][4]
        for at in range(offset, offset + size, entry_bytes):
            name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", elf, at)
            found[elf[strings + name : elf.index(b"\0", strings + name)].decode()] = value
    return found


def _metadata(elf: bytes, segments: list[Any]) -> Any:
    for kind, _, offset, *_ in segments:
        if kind == 4:
            name_bytes, size, note = struct.unpack_from("<III", elf, offset)
            if note == METADATA:
                at = offset + 12 + (name_bytes + 3 & ~3)
                return _unpacked(elf[at : at + size], 0)[0]
    raise ValueError("no metadata")


INTEGERS = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
SIZED = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}


def _unpacked(data: bytes, at: int) -> tuple[Any, int]:
    """Returns a MessagePack value and the index of its end."""
    kind = data[at]
    at += 1
    if kind < 0x80:
        return kind, at
    if kind < 0x90:
        return _map(data, at, kind & 15)
    if kind < 0xA0:
        return _list(data, at, kind & 15)
    if kind < 0xC0:
        return data[at : at + (kind & 31)].decode(), at + (kind & 31)
    if kind >= 0xE0:
        return kind - 256, at
    if kind in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[kind], at
    form = INTEGERS.get(kind) or SIZED[kind]
    (n,) = struct.unpack_from(form, data, at)
    at += struct.calcsize(form)
    if kind in INTEGERS:
        return n, at
    if kind <= 0xDB:
        return data[at : at + n].decode(), at + n
    return _list(data, at, n) if kind <= 0xDD else _map(data, at, n)


def _list(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    found = []
    for _ in range(count):
        value, at = _unpacked(data, at)
        found.append(value)
    return found, at


def _map(data: bytes, at: int, count: int) -> tuple[dict[Any, Any], int]:
    flat, at = _list(data, at, 2 * count)
    return dict(zip(flat[::2], flat[1::2])), at
