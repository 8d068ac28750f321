"""The driver library of emulated GPUs, which is loaded as libcuda or libamdhip64 and calls the functions here."""

import contextlib
import ctypes
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tsplat.gpu_driver.kernels import flat_arguments

from . import build
from .launch import KernelSource, LaunchRequest

MAX_PARAMETERS = 256
MAX_THREADS = 1024
# Status codes of both drivers.
SUCCESS, NOT_FOUND, LAUNCH_FAILED = 0, 500, 719


class Kernel(ctypes.Structure):
    """Mirrors Kernel of driver_core/driver.c."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in (
            "number", "n_parameters", "static_shared", "max_threads", "registers", "scratch"
        )),
        ("offset", ctypes.c_uint32 * MAX_PARAMETERS), ("size", ctypes.c_uint32 * MAX_PARAMETERS),
    ]  # fmt: skip


class Launch(ctypes.Structure):
    """Mirrors Launch of driver_core/driver.c."""

    _fields_ = [
        *((name, ctypes.c_uint32 * 3) for name in ("grid", "block", "cluster")),
        *((name, ctypes.c_uint32) for name in ("shared_bytes", "cooperative", "overlaps")),
        ("stream", ctypes.c_uint64), ("n_bytes", ctypes.c_uint32), ("arguments", ctypes.c_uint8 * (8 * MAX_PARAMETERS)),
    ]  # fmt: skip

    def request(self) -> LaunchRequest:
        return LaunchRequest(
            tuple(self.grid), tuple(self.block), self.shared_bytes, bytes(self.arguments[: self.n_bytes]),
            tuple(self.cluster), bool(self.cooperative), bool(self.overlaps), self.stream,
        )  # fmt: skip


class Answer(ctypes.Structure):
    """Mirrors Answer of driver_core/driver.c."""

    _fields_ = [
        ("launch", ctypes.c_uint64), ("parameter", ctypes.c_uint32), ("unused", ctypes.c_uint32),
        ("distance", ctypes.c_int64), ("size", ctypes.c_uint64), ("bytes", ctypes.c_void_p),
    ]  # fmt: skip


FIND = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_char_p, ctypes.POINTER(Kernel))
EXECUTE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.POINTER(Launch))


class Library:
    """The driver library, with the kernels that have been compiled for emulated GPUs.

    Attributes:
        execute: Function that executes launches; None while nothing is emulated.
        failure: Exception of the last failed launch, until it is raised.
    """

    def __init__(self) -> None:
        self._core = build.driver_library()
        assert [self._core.emulator_layout(i) for i in range(3)] == [
            ctypes.sizeof(structure) for structure in (Kernel, Launch, Answer)
        ]
        self.path = self._core._name
        self.execute: Callable[[KernelSource, LaunchRequest], None] | None = None
        self.failure: BaseException | None = None
        self._sources: list[KernelSource] = []
        self._by_binary: dict[bytes, KernelSource] = {}
        self._callbacks = FIND(self._find), EXECUTE(self._execute)
        self._core.emulator_connect(*self._callbacks)
        self._core.emulator_answer.argtypes = [ctypes.c_void_p, ctypes.c_uint64]

    def compiled(self, *, src: Any, metadata: Any, metadata_group: dict[str, str], **_: Any) -> None:
        """Stores a kernel that Triton has compiled, by its binary. This is a compilation listener of Triton."""
        from triton.backends.compiler import GPUTarget

        files = {Path(name).suffix[1:]: Path(path) for name, path in metadata_group.items()}
        binary = files.get("cubin") or files.get("hsaco")
        if binary is None:
            return
        target = metadata["target"]
        target = target if isinstance(target, GPUTarget) else GPUTarget(**target)
        known = _Metadata(metadata["name"], target)
        types = [leaf for kind in src.signature.values() for leaf in flat_arguments(kind) if leaf != "constexpr"]
        constants = {
            src.fn.arg_names[path[0]]: value for path, value in (src.constants or {}).items() if len(path) == 1
        }
        shown = ",".join(f"{name}={value}" for name, value in constants.items() if isinstance(value, (int, bool, str)))
        key = f"{known.name}[{shown}] #{metadata['hash'][:6]}"
        self._by_binary[_digest(binary.read_bytes())] = KernelSource(known, files, types, key, str(src.fn.module))

    @contextlib.contextmanager
    def answering(self, answers: list[tuple[int, int, int, bytes]]) -> Iterator[Callable[[], None]]:
        """Replaces launches inside of the block by writes of recorded results.

        An answer is the number of a launch, a parameter, a distance, and the bytes that the launch writes to the
        address in this parameter plus the distance. Yields a function that restarts the numbers of launches at 0.
        """
        array = (Answer * max(len(answers), 1))()
        kept = [ctypes.create_string_buffer(data, len(data)) for *_, data in answers]
        for answer, (launch, parameter, distance, data), buffer in zip(array, answers, kept):
            answer.launch, answer.parameter, answer.distance = launch, parameter, distance
            answer.size, answer.bytes = len(data), ctypes.addressof(buffer)

        def begin() -> None:
            self._core.emulator_answer(ctypes.addressof(array), len(answers))

        begin()
        try:
            yield begin
        finally:
            self._core.emulator_execute_again()

    def _find(self, image: int, size: int, name: bytes, kernel: Any) -> int:
        """Fills in the properties of the kernel of a binary; called by the library."""
        try:
            source = self._by_binary.get(_digest(ctypes.string_at(image, size)))
            if source is None or source.metadata.name != name.decode():
                return NOT_FOUND
            layout, static_shared = source.layout()
            kernel, (offsets, sizes) = kernel.contents, zip(*layout) if layout else ((), ())
            kernel.number, kernel.n_parameters, kernel.max_threads = len(self._sources), len(layout), MAX_THREADS
            kernel.offset[: len(layout)], kernel.size[: len(layout)] = offsets, sizes
            kernel.static_shared = static_shared
            self._sources.append(source)
        except BaseException as error:  # exceptions must not propagate through C
            return self._failed(error)
        return SUCCESS

    def _execute(self, number: int, launch: Any) -> int:
        """Executes a launch; called by the library."""
        try:
            if self.execute is None:
                raise RuntimeError("a kernel was launched on an emulated GPU that no longer exists")
            self.execute(self._sources[number], launch.contents.request())
        except BaseException as error:  # exceptions must not propagate through C
            return self._failed(error)
        return SUCCESS

    def _failed(self, error: BaseException) -> int:
        self.failure = error
        self._core.emulator_describe(f"{type(error).__name__}: {error}".encode()[:1000])
        return LAUNCH_FAILED


class _Metadata:
    """The metadata of a kernel that the emulator uses."""

    def __init__(self, name: str, target: Any) -> None:
        self.name, self.target = name, target


def _digest(binary: bytes) -> bytes:
    return hashlib.sha256(binary).digest()


_library: Library | None = None


def library() -> Library:
    """Returns the driver library; loads it on the first call."""
    global _library
    if _library is None:
        _library = Library()
    return _library
