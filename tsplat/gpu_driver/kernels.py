"""Kernels that are loaded on a GPU: packing of their arguments, and launches."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import triton
from triton.compiler.compiler import LazyDict
from triton.runtime import _allocation

from .gpus import Device
from .library import DriverError
from .metadata import LaunchMetadata

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

FORMATS = {"i1": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u1": "?", "u8": "B", "u16": "H", "u32": "I"}
FORMATS |= {"u64": "Q", "fp16": "e", "fp32": "f", "f32": "f", "fp64": "d", "f64": "d"}
"""``struct`` formats of numbers, by their type in Triton's signature."""
POINTER = "Q"
ABSENT = "0s"
"""Format of an argument that is None. It is passed as b"" and takes no space."""
SCRATCH_POINTERS = 2
"""Triton appends two pointers to the arguments of each kernel: to its scratch memory and to the profiler's."""

PACK_GRID, PACK_WORD = struct.Struct("@III").pack_into, struct.Struct("@Q").pack_into

_runtime = triton.knobs.runtime


def are_launches_hooked() -> bool:
    """Returns whether a profiler hooks launches."""
    enter, leave = _runtime.launch_enter_hook, _runtime.launch_exit_hook
    try:
        return bool(enter.calls or leave.calls)
    except AttributeError:  # None, or a function instead of Triton's list of functions
        return enter is not None or leave is not None


class Frame:
    """The memory that a launch reads its arguments from. Only one launch at a time may use a frame.

    It contains the head of the launch (``library.Launch``), pointers to all arguments, the two pointers to scratch
    memory, and the packed arguments.

    Args:
        kernel: The kernel. The memory was filled from its ``template``.
        memory: A ctypes array.
        begin: The byte at which the frame begins.

    Attributes:
        launch: Function that launches the kernel. The memory must still exist.
    """

    __slots__ = ("_begin", "_kernel", "_memory", "launch")

    def __init__(self, kernel: LoadedKernel, memory: Any, begin: int = 0) -> None:
        self._kernel, self._memory, self._begin = kernel, memory, begin
        address, driver = ctypes.addressof(memory) + begin, kernel.device.driver
        self.launch = driver.launcher(kernel.function, kernel.metadata, address, address + kernel.pointers)

    def fill(self, grid: tuple[int, int, int], stream: int, values: Sequence[Any]) -> None:
        """Packs the values that differ between launches."""
        kernel, memory, begin = self._kernel, self._memory, self._begin
        x, y, z = grid
        PACK_GRID(memory, begin, x * kernel.metadata.cluster, y, z)
        PACK_WORD(memory, begin + kernel.device.driver.STREAM, stream)
        kernel.layout.pack_into(memory, begin + kernel.arguments, *values)

    def set_scratch(self, which: int, address: int) -> None:
        """Sets the address of scratch memory, of the kernel (0) or the profiler (1)."""
        PACK_WORD(self._memory, self._begin + self._kernel.arguments + 8 * (which - SCRATCH_POINTERS), address)


class LoadedKernel:
    """A kernel that is loaded on a GPU.

    Attributes:
        device: The GPU.
        function: The driver's handle.
        metadata: Launch metadata.
        types: Triton's type of each value, such as "*fp32", "i32", "i64" and "fp64"; "constexpr" for None.
        layout: Packs the values.
        offsets: The offset in the packed values of each value that is not None.
        pointers, arguments: The bytes at which the pointers and the arguments begin in a frame.
        stream: Function that returns the current stream.
    """

    def __init__(self, device: Device, compiled: CompiledKernel) -> None:
        self.device, self.metadata, self._compiled = device, LaunchMetadata.of(compiled.metadata), compiled
        self.types = _types(compiled)
        formats = [_format(self.metadata.name, type_name) for type_name in self.types]
        self.layout = struct.Struct("@" + "".join(formats))
        self.offsets = [
            struct.calcsize("@" + "".join(formats[: i + 1])) - struct.calcsize("@" + formats[i])
            for i in range(len(formats)) if formats[i] != ABSENT
        ]  # fmt: skip
        self.function = self._load(compiled)
        self._head, self._head_owner = device.driver.head(self.metadata)
        self.pointers = len(self._head)
        self.arguments = self.pointers + 8 * (len(self.offsets) + 2 * SCRATCH_POINTERS)
        self.stream = functools.partial(device.current_stream, device.number)
        self._has_scratch = bool(self.metadata.scratch[0] or self.metadata.profile[0])
        self._frames: list[Frame] = []

    def _load(self, compiled: CompiledKernel) -> int:
        metadata, driver, number = self.metadata, self.device.driver, self.device.number
        available = driver.max_shared_bytes(number)
        if metadata.shared_bytes > available:
            raise DriverError(f"{metadata.name}: requires {metadata.shared_bytes:,} bytes of shared memory per "
                              f"program; the GPU ({metadata.target}) has {available:,}")  # fmt: skip
        hooked = (metadata.name, compiled.metadata_group, compiled.hash)
        if _runtime.kernel_load_start_hook is not None:
            _runtime.kernel_load_start_hook(None, None, *hooked)
        function = driver.load(compiled.kernel, metadata, number)
        if metadata.threads > (available := driver.max_threads(function)):
            raise DriverError(f"{metadata.name}: requires {metadata.threads:,} threads per program; the GPU "
                              f"({metadata.target}) allows {available:,}")  # fmt: skip
        if _runtime.kernel_load_end_hook is not None:
            _runtime.kernel_load_end_hook(None, function, *hooked)
        return function

    def __call__(self, n_programs: int, values: Sequence[Any], others: tuple[int, int] = (1, 1)) -> None:
        """Launches the programs of a grid on the current stream.

        Args:
            n_programs: Number of programs along the first axis of the grid.
            values: The arguments that are not constants: addresses of tensors, b"" for None, and numbers.
            others: Number of programs along the second and the third axis.

        Raises:
            DriverError: The driver rejects the launch, or an earlier launch has failed.
        """
        if not n_programs:
            return
        hooked = are_launches_hooked()
        enter, leave = _runtime.launch_enter_hook, _runtime.launch_exit_hook
        stream = self.stream()
        if hooked:
            launched = LazyDict({"name": self.metadata.name, "function": self.function, "stream": stream})
            if enter is not None:
                enter(launched)
        # Unused frames are kept in a list. Its operations are atomic, so several threads may launch at once.
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = self._frame(values)
        grid = n_programs, *others
        frame.fill(grid, stream, values)
        scratch = self._allocate(frame, grid, stream) if self._has_scratch else None
        if code := frame.launch():
            self._launch_again(frame.launch, n_programs, code)
        self._frames.append(frame)
        del scratch  # later launches on this stream may reuse the memory; other streams may not
        if hooked and leave is not None:
            leave(launched)

    def _frame(self, values: Sequence[Any]) -> Frame:
        template, _, internal_pointers, _ = self._template(1, values)
        memory = ctypes.create_string_buffer(template, len(template))
        for word, offset in internal_pointers.items():
            PACK_WORD(memory, 8 * word, ctypes.addressof(memory) + offset)
        return Frame(self, memory)

    def template(
        self, n_programs: int, values: Sequence[Any]
    ) -> tuple[bytes, list[int | None], dict[int, int], list[int]]:
        """Returns the initial memory of a launch, for :meth:`bind`. Positions are in words of 8 bytes.

        Returns:
            The memory; for each value its word if it is an address, else None; the words that hold pointers into this
            memory, with their offsets from its start in bytes; and the words that hold the current stream.

        Raises:
            DriverError: The kernel uses scratch memory.
        """
        if self._has_scratch:
            raise DriverError(f"{self.metadata.name}: uses scratch memory, which has to be allocated by each launch")
        return self._template(n_programs, values)

    def _template(
        self, n_programs: int, values: Sequence[Any]
    ) -> tuple[bytes, list[int | None], dict[int, int], list[int]]:
        offsets = iter(self.offsets)
        value_offsets = [None if name == "constexpr" else self.arguments + next(offsets) for name in self.types]
        scratch = [self.arguments + 8 * (i - SCRATCH_POINTERS) for i in range(SCRATCH_POINTERS)]
        memory = bytearray(self._head).ljust(self.arguments, b"\0") + self.layout.pack(*values)
        memory += bytes(-len(memory) % 8)
        PACK_GRID(memory, 0, n_programs * self.metadata.cluster, 1, 1)
        address_words = [
            offset // 8 if offset is not None and name.startswith("*") else None
            for offset, name in zip(value_offsets, self.types)
        ]
        present = [offset for offset in value_offsets if offset is not None]
        internal_pointers = {self.pointers // 8 + i: offset for i, offset in enumerate([*present, *scratch])}
        return bytes(memory), address_words, internal_pointers, [self.device.driver.STREAM // 8]

    def bind(self, n_programs: int, memory: Any, begin: int) -> tuple[Callable[[], int], Callable[[int], bool]]:
        """Binds launches of the kernel to memory from :meth:`template`, in a ctypes array from byte ``begin`` on.

        Returns:
            A function that launches and returns an error code; and a function to call with this code if it is not 0.
            The latter launches again or raises a DriverError. It returns False: the memory may change after a launch.
        """
        launch = Frame(self, memory, begin).launch
        return launch, functools.partial(self._launch_again, launch, n_programs)

    def _launch_again(self, launch: Callable[[], int], n_programs: int, code: int) -> bool:
        """Repeats a launch after an error from which the driver recovers. Raises a DriverError for other errors."""
        if self.device.driver.recover(code, self.device.number):
            code = launch()
        self.device.driver.check(code, f"{self.metadata.name}: launching {n_programs:,} programs")
        return False

    def _allocate(self, frame: Frame, grid: tuple[int, int, int], stream: int) -> list[Any]:
        """Allocates scratch memory by the allocators that were set in Triton (``triton.set_allocator``)."""
        x, y, z = grid
        allocators = _allocation._allocator, _allocation._profile_allocator
        buffers = []
        for which, ((size, alignment), allocator) in enumerate(
            zip((self.metadata.scratch, self.metadata.profile), allocators)
        ):
            if size:
                try:
                    memory = allocator.get()(x * y * z * self.metadata.cluster * size, alignment, stream)
                except RuntimeError as error:
                    raise DriverError(f"{self.metadata.name}: requires scratch memory: {error}") from error
                frame.set_scratch(which, memory.data_ptr())
                buffers.append(memory)
        return buffers


def _types(compiled: CompiledKernel) -> list[str]:
    """Returns the types of the arguments of a kernel that are not ``constexpr``. Tuples are flattened."""
    source = compiled.src
    pairs = zip(source.signature.values(), source.fn.params)
    return [leaf for types, parameter in pairs if not parameter.is_constexpr for leaf in flat_arguments(types)]


def flat_arguments(argument: Any) -> list[Any]:
    """Flattens an argument or its type: a list of the leaves of nested tuples."""
    return [leaf for field in argument for leaf in flat_arguments(field)] if isinstance(argument, tuple) else [argument]


def _format(kernel: str, type_name: Any) -> str:
    """Returns the ``struct`` format of a type of Triton."""
    if type_name == "constexpr":
        return ABSENT
    if isinstance(type_name, str) and type_name.startswith("*"):
        return POINTER
    if type_name not in FORMATS:
        raise DriverError(f"{kernel}: arguments of Triton's type {type_name!r} are not supported")
    return FORMATS[type_name]
