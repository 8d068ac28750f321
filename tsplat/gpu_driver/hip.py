"""Loads and launches kernels by libamdhip64, the HIP runtime of AMD's ROCm."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import struct
from typing import ClassVar

import triton

from .library import ADDRESS, DriverError, Launch, Library
from .metadata import LaunchMetadata

NAME = "libamdhip64.so"
ADVICE = "install AMD's ROCm, or PyTorch for ROCm, which includes it, or set TRITON_LIBHIP_PATH to the file"

# Values of enumerations in hip_runtime_api.h.
MAX_THREADS, SHARED_PER_BLOCK = 0, 74

HEAD = struct.Struct("@IIIxxxxQ")
"""The grid and the stream of a launch."""


def paths() -> list[str]:
    """Returns possible paths of the library. The one that PyTorch has loaded comes first, as only it may be used."""
    loaded = [triton.knobs.amd.libhip_path] if triton.knobs.amd.libhip_path else []
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        loaded += [path for line in maps if NAME in os.path.basename(path := line.split(maxsplit=5)[-1].strip())][:1]
    return [*loaded, NAME, f"{NAME}.7", f"{NAME}.6"]


class HipDriver:
    """AMD's HIP runtime: loads kernels, and creates their launch functions."""

    name: ClassVar[str] = "HIP"
    STREAM: ClassVar[int] = 16

    def __init__(self, path: str | None = None) -> None:
        library = Library(paths() if path is None else (path,), ADVICE)
        number, out = ctypes.c_int, ctypes.POINTER(ctypes.c_int)
        handle = ctypes.POINTER(ADDRESS)
        self._init = library.function("hipInit", [ctypes.c_uint])
        self._version = library.function("hipDriverGetVersion", [out])
        self._error_name = library.function("hipGetErrorName", [number], result=ctypes.c_char_p)
        self._error_text = library.function("hipGetErrorString", [number], result=ctypes.c_char_p)
        self._device_attribute = library.function("hipDeviceGetAttribute", [out, number, number])
        self._load = library.function("hipModuleLoadData", [handle, ctypes.c_char_p])
        self._find = library.function("hipModuleGetFunction", [handle, ADDRESS, ctypes.c_char_p])
        self._attribute = library.function("hipFuncGetAttribute", [out, number, ADDRESS])
        # No argument types: converting eleven arguments would take a microsecond.
        self.launch = library.function("hipModuleLaunchKernel", None, quick=True)
        self.launch_cooperative = library.function("hipModuleLaunchCooperativeKernel", None, quick=True)
        if code := self._init(0):
            raise DriverError(f"hipInit of {library.path} failed: {self.describe(code)}; {ADVICE}")

    @property
    def version(self) -> str:
        """The version of HIP."""
        number = ctypes.c_int()
        self.check(self._version(number), "hipDriverGetVersion")
        return f"{number.value // 10_000_000}.{number.value // 100_000 % 100}"

    def describe(self, code: int) -> str:
        """Returns the name and the description of an error."""
        texts = (self._error_name(code), self._error_text(code))
        return ": ".join(text.decode() for text in texts if text) or f"error {code}"

    def check(self, code: int, function: str) -> None:
        """Raises a DriverError if a function returned an error."""
        if code:
            raise DriverError(f"{function} failed: {self.describe(code)}")

    def recover(self, code: int, number: int) -> bool:
        """Returns False: a failed launch is never repeated, as HIP threads need no context."""
        return False

    def max_shared_bytes(self, number: int) -> int:
        """Returns the maximum bytes of shared memory of a program."""
        n_bytes = ctypes.c_int()
        self.check(self._device_attribute(n_bytes, SHARED_PER_BLOCK, number), "hipDeviceGetAttribute")
        return n_bytes.value

    def load(self, image: bytes, metadata: LaunchMetadata, number: int) -> int:
        """Loads a binary. Returns the handle of its kernel."""
        if metadata.cluster > 1:
            raise DriverError(f"{metadata.name}: clusters of programs (num_ctas) are not implemented for AMD GPUs")
        if metadata.overlaps:
            raise DriverError(f"{metadata.name}: AMD GPUs do not support programmatic dependent launch (launch_pdl)")
        module, function = ADDRESS(), ADDRESS()
        if code := self._load(module, image):
            raise DriverError(
                f"{metadata.name}: HIP {self.version} cannot load the binary that Triton compiled for "
                f"{metadata.target}: {self.describe(code)}; update ROCm, or install PyTorch and Triton for this ROCm "
                "version"
            )
        self.check(self._find(function, module, metadata.name.encode()), "hipModuleGetFunction")
        return function.value or 0

    def max_threads(self, function: int) -> int:
        """Returns the maximum number of threads of a program of a kernel."""
        n_threads = ctypes.c_int()
        self.check(self._attribute(n_threads, MAX_THREADS, function), "hipFuncGetAttribute")
        return n_threads.value

    def head(self, _metadata: LaunchMetadata) -> tuple[bytes, object]:
        """Returns the head of a launch, see `Launch`, and an object that must stay alive while the head is used."""
        return HEAD.pack(1, 1, 1, 0), None

    def launcher(self, function: int, metadata: LaunchMetadata, head: int, parameters: int) -> Launch:
        """Returns the launch function of a kernel.

        Args:
            head: Address of the head of the launch.
            parameters: Address of the array of pointers to the arguments.
        """
        call = self.launch_cooperative if metadata.cooperative else self.launch
        grid = [ctypes.c_uint.from_address(head + 4 * axis) for axis in range(3)]
        threads, shared, one = (ctypes.c_uint(value) for value in (metadata.threads, metadata.shared_bytes, 1))
        stream = ADDRESS.from_address(head + self.STREAM)
        array, none = ADDRESS(parameters), ADDRESS(0)
        return functools.partial(
            call, ADDRESS(function), *grid, threads, one, one, shared, stream, array, none
        )  # fmt: skip
