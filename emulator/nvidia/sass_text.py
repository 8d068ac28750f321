"""Disassembles cubins with cuobjdump and nvdisasm of Triton's wheel, and parses their output."""

import hashlib
import os
import re
import subprocess
import tempfile
from pathlib import Path

import triton

from emulator import build
from emulator.program import UnsupportedInstructionError

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def listing(cubin: bytes) -> str:
    """Returns the disassembly of all functions of a cubin."""
    return _run(["cuobjdump", "-sass"], cubin)


def function(text: str, name: str) -> list[tuple[int, str]]:
    """Returns address and text of each instruction of the function `name` in a listing."""
    parts = re.split(r"Function : (\S+)", text)
    for found, body in zip(parts[1::2], parts[2::2]):
        if found == name:
            pattern = r"/\*([0-9a-f]{4,6})\*/\s+(.*?);"
            return [(int(address, 16), text.strip()) for address, text in re.findall(pattern, body)]
    raise UnsupportedInstructionError(f"no function {name}")


def control_words(text: str, name: str) -> list[int]:
    """Returns the compiler's control bits of each instruction of the function `name` in a listing.

    Fields from the lowest bit on, with their number of bits: stall cycles (4), yield (1), scoreboard of the result (3),
    scoreboard of the operands (3), scoreboards to wait for (6). Scoreboard 7 means none.
    """
    body = text.partition(f"Function : {name}\n")[2].partition("Function : ")[0]
    words = re.findall(r"/\*[0-9a-f]{4,6}\*/\s+.*?;\s+/\* 0x[0-9a-f]{16} \*/\s+/\* (0x[0-9a-f]{16}) \*/", body)
    return [int(high, 16) >> 41 & 0x1FFFF for high in words]


def compiler_constants(cubin: bytes, name: str) -> bytes:
    """Returns the contents of constant bank 2 for a function."""
    section = _run(["nvdisasm"], cubin).partition(f"\n.nv.constant2.{name}:\n")[2].partition("\n//---")[0]
    return bytes(int(byte, 16) for byte in re.findall(r"\b0x([0-9a-f]{2})\b", section))


def registers(cubin: bytes, name: str) -> int:
    """Returns the number of registers per thread of a function."""
    usage = _run(["cuobjdump", "-res-usage"], cubin)
    match = re.search(rf"Function {re.escape(name)}:\s+REG:(\d+)", usage)
    assert match, usage
    return int(match[1])


def source_lines(cubin: bytes, name: str) -> dict[int, str]:
    """Returns address -> source line of the instructions of a function, as far as the cubin contains them."""
    section = _run(["nvdisasm", "-g", "-c"], cubin).partition(f".text.{name}:")[2]
    lines: dict[int, str] = {}
    current = ""
    for line in section.splitlines():
        if match := re.search(r'//## File "([^"]+)", line (\d+)', line):
            current = f"{Path(match[1]).name}:{match[2]}"
        elif match := re.search(r"/\*([0-9a-f]{4,6})\*/", line):
            lines.setdefault(int(match[1], 16), current)
    return lines


def _run(command: list[str], cubin: bytes) -> str:
    """Returns the output of a tool for a cubin. It is cached on disk, as the tools take seconds."""
    key = hashlib.sha256(cubin + repr((command, triton.__version__)).encode()).hexdigest()[:24]
    kept = build.cache_folder() / f"{command[0]}-{key}.txt"
    if not kept.exists():
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            full = [str(TOOLS / command[0]), *command[1:], file.name]
            text = subprocess.run(full, capture_output=True, text=True, check=True).stdout
        part = kept.with_suffix(f".{os.getpid()}")
        part.write_text(text)
        part.replace(kept)
    return kept.read_text()
