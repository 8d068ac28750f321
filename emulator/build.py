"""Compiles C code with gcc on first use, into the user's cache directory."""

import ctypes
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import filelock

CORE = Path(__file__).parent / "core"
FLAGS = (
    "-O2" if "EMULATE" in os.environ else "-O1",  # -O2 compiles twice as long: for `make emulate` only
    "-ftree-vectorize", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
    "-fno-strict-aliasing", "-shared", "-fPIC",
)  # fmt: skip


def cache_folder() -> Path:
    """Returns the folder of compiled cores and disassembled kernels; creates it if necessary."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tsplat-emulator"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def missing() -> str | None:
    """Returns why the emulator cannot be built here, or None."""
    if shutil.which("gcc") or all(_path(*parts).exists() for parts in _all()):
        return None
    return "needs gcc, or libraries that gcc has built before"


@functools.cache
def nvidia_operations() -> dict[str, int]:
    """Returns the number of each instruction of the NVIDIA core, by name."""
    main = (CORE / "nvidia.c").read_text()
    files = re.findall(r'#include "(nvidia_(?!labels)\w+\.inc)"', main)
    pattern = r"^(?:OP|UNARY|BINARY|TERNARY|COMPARE|SHIFT|PAIR)\((\w+)"
    names = [name for file in files for name in re.findall(pattern, (CORE / file).read_text(), flags=re.M)]
    return {name: number for number, name in enumerate(names)}


@functools.cache
def amd_operations() -> dict[str, int]:
    """Returns the number of each instruction of the AMD core, by name. Numbers start at 1."""
    text = "".join((CORE / file).read_text() for file in sorted(os.listdir(CORE)) if file.startswith("amd"))
    names = set(re.findall(r"\bcase OP_([a-z]\w+)", text)) - {"name", "s_"}
    names |= set(re.findall(r"\b(?:FLOAT|BITS|CARRY|DOUBLE|SCALAR32|SCALAR64|PLAIN)\(([vs]_\w+)", text))
    names |= {f"s_{name}_saveexec_b{bits}" for name in re.findall(r"\bSAVEEXEC\((\w+), ~?a", text) for bits in (32, 64)}
    return {name: number for number, name in enumerate(sorted(names), start=1)}


@functools.cache
def nvidia_core() -> ctypes.CDLL:
    """Returns the core for PTX and SASS."""
    return library(*_nvidia())


@functools.cache
def amd_core(lanes: int) -> ctypes.CDLL:
    """Returns the core for AMD code with 32 or 64 lanes per wave."""
    return library(*_amd(lanes))


@functools.cache
def driver_library() -> ctypes.CDLL:
    """Returns the library that replaces libcuda and libamdhip64."""
    return library(*_driver())


Parts = tuple[Path, dict[str, str], tuple[str, ...]]
"""A C file, its generated include files, and its compiler flags."""


def _nvidia() -> Parts:
    labels = "".join(f"&&L_{name},\n" for name in nvidia_operations())
    return CORE / "nvidia.c", {"nvidia_labels.inc": labels}, ()


def _amd(lanes: int) -> Parts:
    names = "".join(f"OP_{name} = {number},\n" for name, number in amd_operations().items())
    return CORE / "amd.c", {"amd_operations.h": f"enum {{\n{names}}};\n"}, (f"-DW={lanes}",)


def _driver() -> Parts:
    return CORE.parent / "driver_core" / "driver.c", {}, ()


def _all() -> list[Parts]:
    return [_nvidia(), _amd(32), _amd(64), _driver()]


def library(source: Path, generated: dict[str, str] | None = None, flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    """Compiles and loads a C file, once for all processes; processes that need the same file wait for the first.

    `generated` has the text of included files by name; `flags` are added to `FLAGS`.
    """
    generated = generated or {}
    library = _path(source, generated, flags)
    cache = library.parent
    with filelock.FileLock(library.with_suffix(".lock")):
        if not library.exists():
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                for name, text in generated.items():
                    (Path(folder) / name).write_text(text)
                built = Path(folder) / library.name
                includes = [f"-I{folder}", f"-I{source.parent}"]
                subprocess.run(["gcc", *FLAGS, *flags, *includes, str(source), "-o", str(built), "-lm"], check=True)
                built.replace(library)
    return ctypes.CDLL(str(library))


def _path(source: Path, generated: dict[str, str], flags: tuple[str, ...]) -> Path:
    """Returns the path of a compiled library, whose name is a hash of its sources, flags and processor."""
    digest = hashlib.sha256(repr((source.name, generated, flags, FLAGS, _processor())).encode())
    for file in sorted(source.parent.iterdir()):
        digest.update(file.read_bytes())
    return cache_folder() / f"{source.stem}-{digest.hexdigest()[:16]}.so"


def _processor() -> str:
    """Returns the CPU flags, on which -march=native depends."""
    info = Path("/proc/cpuinfo")
    return (
        next((line for line in info.read_text().splitlines() if line.startswith("flags")), "") if info.exists() else ""
    )
