"""Loads and launches kernels by libcuda, the library of NVIDIA's driver."""

from __future__ import annotations

import ctypes
import functools
import os
from typing import ClassVar

from .library import ADDRESS, DriverError, Launch, Library
from .metadata import LaunchMetadata

PATHS = ("nvcuda.dll",) if os.name == "nt" else ("libcuda.so.1", "libcuda.so")
ADVICE = "install NVIDIA's driver (580 or later for CUDA 13); in a container, pass the GPU on (docker run --gpus all)"
SHARED_DEFAULT = 49_152
"""Maximum bytes of shared memory that a kernel can use without an attribute."""

SHARED_MAX = 233_472
"""Maximum bytes of shared memory of a launch. More would require a launch attribute that older drivers lack."""

# Values of enumerations in cuda.h.
INVALID_CONTEXT = 201
MAX_THREADS, SHARED_SIZE, LOCAL_SIZE, REGISTERS, MAX_DYNAMIC_SHARED, NON_PORTABLE_CLUSTER = 0, 1, 3, 4, 8, 14
SHARED_PER_BLOCK_OPTIN = 97
PREFER_SHARED = 1
COOPERATIVE, CLUSTER_DIMENSION, CLUSTER_POLICY, STREAM_SERIALIZATION = 2, 4, 5, 6
SPREAD = 1

PORTABLE_CLUSTER = 8
"""Maximum number of programs in a cluster that all GPUs with clusters support."""


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
        ("stream", ADDRESS), ("attributes", ADDRESS), ("n_attributes", ctypes.c_uint),
    ]  # fmt: skip


class Attribute(ctypes.Structure):
    """CUlaunchAttribute: an id, and a union of 64 bytes."""

    _fields_ = [("id", ctypes.c_uint), ("unused", ctypes.c_uint), ("value", ctypes.c_uint * 16)]


class CudaDriver:
    """NVIDIA's driver: loads kernels, and creates their launch functions."""

    name: ClassVar[str] = "CUDA"
    STREAM: ClassVar[int] = Config.stream.offset

    def __init__(self, path: str | None = None) -> None:
        library = Library(PATHS if path is None else (path,), ADVICE)
        number, out = ctypes.c_int, ctypes.POINTER(ctypes.c_int)
        handle = ctypes.POINTER(ADDRESS)
        self._init = library.function("cuInit", [ctypes.c_uint])
        self._version = library.function("cuDriverGetVersion", [out])
        text = [number, ctypes.POINTER(ctypes.c_char_p)]
        self._error_name = library.function("cuGetErrorName", text)
        self._error_text = library.function("cuGetErrorString", text)
        self._device = library.function("cuDeviceGet", [out, number])
        self._device_attribute = library.function("cuDeviceGetAttribute", [out, number, number])
        self._context = library.function("cuCtxGetCurrent", [handle])
        self._set_context = library.function("cuCtxSetCurrent", [ADDRESS])
        self._retain = library.function("cuDevicePrimaryCtxRetain", [handle, number])
        self._load = library.function("cuModuleLoadData", [handle, ctypes.c_char_p])
        self._find = library.function("cuModuleGetFunction", [handle, ADDRESS, ctypes.c_char_p])
        self._attribute = library.function("cuFuncGetAttribute", [out, number, ADDRESS])
        self._set_attribute = library.function("cuFuncSetAttribute", [ADDRESS, number, number])
        self._set_cache = library.function("cuFuncSetCacheConfig", [ADDRESS, number])
        self.launch = library.function("cuLaunchKernelEx", [ADDRESS] * 4, quick=True)
        if code := self._init(0):
            raise DriverError(f"cuInit of {library.path} failed: {self.describe(code)}; {ADVICE}")

    @property
    def version(self) -> str:
        """The newest CUDA version that the driver supports."""
        number = ctypes.c_int()
        self.check(self._version(number), "cuDriverGetVersion")
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def describe(self, code: int) -> str:
        """Returns the name and the description of an error."""
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        self._error_name(code, name)
        self._error_text(code, text)
        return ": ".join(part.value.decode() for part in (name, text) if part.value) or f"error {code}"

    def check(self, code: int, function: str) -> None:
        """Raises a DriverError if a function returned an error."""
        if code:
            raise DriverError(f"{function} failed: {self.describe(code)}")

    def enter(self, number: int) -> None:
        """Sets the primary context of a GPU as the context of this thread, unless it has a context."""
        context, device = ADDRESS(), ctypes.c_int()
        self.check(self._context(context), "cuCtxGetCurrent")
        if not context.value:
            self.check(self._device(device, number), "cuDeviceGet")
            self.check(self._retain(context, device.value), "cuDevicePrimaryCtxRetain")
            self.check(self._set_context(context), "cuCtxSetCurrent")

    def recover(self, code: int, number: int) -> bool:
        """Returns whether to repeat a failed launch. If the thread had no context, it gets one."""
        if code != INVALID_CONTEXT:
            return False
        self.enter(number)
        return True

    def max_shared_bytes(self, number: int) -> int:
        """Returns the maximum bytes of shared memory of a program."""
        n_bytes, device = ctypes.c_int(), ctypes.c_int()
        self.check(self._device(device, number), "cuDeviceGet")
        self.check(self._device_attribute(n_bytes, SHARED_PER_BLOCK_OPTIN, device.value), "cuDeviceGetAttribute")
        return n_bytes.value

    def load(self, image: bytes, metadata: LaunchMetadata, number: int) -> int:
        """Loads a binary. Returns the handle of its kernel, with the attributes for shared memory and clusters set."""
        if metadata.shared_bytes > SHARED_MAX:
            raise DriverError(
                f"{metadata.name}: requires {metadata.shared_bytes:,} bytes of shared memory; launches with more than "
                f"{SHARED_MAX:,} are not implemented"
            )
        self.enter(number)
        module, function = ADDRESS(), ADDRESS()
        if code := self._load(module, image):
            raise DriverError(
                f"{metadata.name}: the driver (CUDA {self.version}) cannot load the binary that Triton compiled for "
                f"{metadata.target}: {self.describe(code)}; update NVIDIA's driver, or install PyTorch and Triton for "
                "this CUDA version"
            )
        self.check(self._find(function, module, metadata.name.encode()), "cuModuleGetFunction")
        if metadata.shared_bytes > SHARED_DEFAULT:
            static = self.attribute(function, SHARED_SIZE)
            self.check(self._set_cache(function, PREFER_SHARED), "cuFuncSetCacheConfig")
            dynamic = self.max_shared_bytes(number) - static
            self.check(self._set_attribute(function, MAX_DYNAMIC_SHARED, dynamic), "cuFuncSetAttribute")
        if metadata.cluster > PORTABLE_CLUSTER:
            self.check(self._set_attribute(function, NON_PORTABLE_CLUSTER, 1), "cuFuncSetAttribute")
        return function.value or 0

    def attribute(self, function: ctypes.c_void_p | int, which: int) -> int:
        """Returns an attribute of a loaded kernel."""
        value = ctypes.c_int()
        self.check(self._attribute(value, which, function), "cuFuncGetAttribute")
        return value.value

    def max_threads(self, function: int) -> int:
        """Returns the maximum number of threads of a program of a kernel."""
        return self.attribute(function, MAX_THREADS)

    def head(self, metadata: LaunchMetadata) -> tuple[bytes, object]:
        """Returns the head of a launch, see `Launch`, and an object that must stay alive while the head is used."""
        attributes = []
        if metadata.overlaps:
            attributes.append(Attribute(STREAM_SERIALIZATION, 0, (1,)))
        if metadata.cooperative:
            attributes.append(Attribute(COOPERATIVE, 0, (1,)))
        if metadata.cluster > 1:
            attributes.append(Attribute(CLUSTER_DIMENSION, 0, (metadata.cluster, 1, 1)))
            attributes.append(Attribute(CLUSTER_POLICY, 0, (SPREAD,)))
        array = (Attribute * max(len(attributes), 1))(*attributes)
        config = Config(
            grid=(1, 1, 1), block=(metadata.threads, 1, 1), shared_bytes=metadata.shared_bytes, stream=0,
            attributes=ctypes.addressof(array), n_attributes=len(attributes),
        )  # fmt: skip
        return bytes(config), array

    def launcher(self, function: int, _metadata: LaunchMetadata, head: int, parameters: int) -> Launch:
        """Returns the launch function of a kernel.

        Args:
            head: Address of the head of the launch.
            parameters: Address of the array of pointers to the arguments.
        """
        return functools.partial(self.launch, head, function, parameters, None)
