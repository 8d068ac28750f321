"""A loaded kernel: how its arguments lie in memory, and its launches."""

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
from .needs import Needs

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

FORMATS = {"i1": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u1": "?", "u8": "B", "u16": "H", "u32": "I"}
FORMATS |= {"u64": "Q", "fp16": "e", "fp32": "f", "f32": "f", "fp64": "d", "f64": "d"}
"""Formats that pack numbers, by their type in Triton's signature."""
POINTER = "Q"
ABSENT = "0s"
"""Format of b"", the value of an argument that is None: it takes no space."""
SCRATCH_POINTERS = 2
"""Triton appends two pointers to the arguments of each kernel: to its scratch memory, and to that of a profiler."""

PACK_GRID, PACK_WORD = struct.Struct("@III").pack_into, struct.Struct("@Q").pack_into

_runtime = triton.knobs.runtime


def are_launches_hooked() -> bool:
    """Returns whether a profiler hooks launches."""
    enter, leave = _runtime.launch_enter_hook, _runtime.launch_exit_hook
    try:
        return bool(enter.calls or leave.calls)
    except AttributeError:  # None, or a function in place of Triton's list of functions
        return enter is not None or leave is not None


class Frame:
    """The memory of a launch, and what launches a kernel with it. One launch at a time may use it.

    It has the head of the launch (``library.Launch``), pointers to all arguments, the two pointers to scratch memory,
    and arguments.

    Args:
        kernel: The kernel, whose ``template`` the memory has.
        memory: A ctypes array, and the byte where the frame begins.

    Attributes:
        launch: Launches the kernel, as long as the memory exists.
    """

    __slots__ = ("_begin", "_kernel", "_memory", "launch")

    def __init__(self, kernel: LoadedKernel, memory: Any, begin: int = 0) -> None:
        self._kernel, self._memory, self._begin = kernel, memory, begin
        address, driver = ctypes.addressof(memory) + begin, kernel.device.driver
        self.launch = driver.launcher(kernel.function, kernel.needs, address, address + kernel.pointers)

    def fill(self, grid: tuple[int, int, int], stream: int, values: Sequence[Any]) -> None:
        """Packs what differs between launches."""
        kernel, memory, begin = self._kernel, self._memory, self._begin
        x, y, z = grid
        PACK_GRID(memory, begin, x * kernel.needs.cluster, y, z)
        PACK_WORD(memory, begin + kernel.device.driver.STREAM, stream)
        kernel.layout.pack_into(memory, begin + kernel.arguments, *values)

    def set_scratch(self, which: int, address: int) -> None:
        """Passes scratch memory: 0 for that of the kernel, 1 for that of a profiler."""
        PACK_WORD(self._memory, self._begin + self._kernel.arguments + 8 * (which - SCRATCH_POINTERS), address)


class LoadedKernel:
    """A kernel on a GPU.

    Attributes:
        device: Where it was loaded.
        function: The driver's handle.
        needs: What its launches need; a launch with scratch memory allocates.
        types: Triton's type of each value, such as "*fp32", "i32", "i64" and "fp64"; "constexpr" for None.
        layout: Packs values.
        offsets: Where each value that is not None lies in what was packed.
        pointers, arguments: Where these begin in a frame.
        stream: Returns the current stream.
    """

    def __init__(self, device: Device, compiled: CompiledKernel) -> None:
        self.device, self.needs, self._compiled = device, Needs.of(compiled.metadata), compiled
        self.types = _types(compiled)
        formats = [_format(self.needs.name, kind) for kind in self.types]
        self.layout = struct.Struct("@" + "".join(formats))
        self.offsets = [
            struct.calcsize("@" + "".join(formats[: i + 1])) - struct.calcsize("@" + formats[i])
            for i in range(len(formats)) if formats[i] != ABSENT
        ]  # fmt: skip
        self.function = self._load(compiled)
        self._head, self._kept = device.driver.head(self.needs)
        self.pointers = len(self._head)
        self.arguments = self.pointers + 8 * (len(self.offsets) + 2 * SCRATCH_POINTERS)
        self.stream = functools.partial(device.current_stream, device.number)
        self._has_scratch = bool(self.needs.scratch[0] or self.needs.profile[0])
        self._frames: list[Frame] = []

    def _load(self, compiled: CompiledKernel) -> int:
        needs, driver, number = self.needs, self.device.driver, self.device.number
        most = driver.max_shared_bytes(number)
        if needs.shared_bytes > most:
            raise DriverError(f"{needs.name}: it needs {needs.shared_bytes:,} bytes of shared memory, and the GPU, "
                              f"{needs.target}, has {most:,} for a program")  # fmt: skip
        hooked = (needs.name, compiled.metadata_group, compiled.hash)
        if _runtime.kernel_load_start_hook is not None:
            _runtime.kernel_load_start_hook(None, None, *hooked)
        function = driver.load(compiled.kernel, needs, number)
        if needs.threads > (most := driver.max_threads(function)):
            raise DriverError(f"{needs.name}: it needs {needs.threads:,} threads, and the GPU, {needs.target}, has "
                              f"{most:,} for a program")  # fmt: skip
        if _runtime.kernel_load_end_hook is not None:
            _runtime.kernel_load_end_hook(None, function, *hooked)
        return function

    def __call__(self, n_programs: int, values: Sequence[Any], others: tuple[int, int] = (1, 1)) -> None:
        """Launches the programs of a grid on the current stream.

        Args:
            n_programs, others: Number of programs along the first axis of the grid, and along the others.
            values: The arguments that are not compiled in: addresses of tensors, b"" for None, and numbers.

        Raises:
            DriverError: The driver refuses the launch, or an earlier one has failed.
        """
        if not n_programs:
            return
        hooked = are_launches_hooked()
        enter, leave = _runtime.launch_enter_hook, _runtime.launch_exit_hook
        stream = self.stream()
        if hooked:
            launched = LazyDict({"name": self.needs.name, "function": self.function, "stream": stream})
            if enter is not None:
                enter(launched)
        # Frames wait in a list, whose operations are atomic: threads may launch at once.
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = self._frame(values)
        grid = n_programs, *others
        frame.fill(grid, stream, values)
        kept = self._allocate(frame, grid, stream) if self._has_scratch else None
        if code := frame.launch():
            self._launch_again(frame.launch, n_programs, code)
        self._frames.append(frame)
        del kept  # what is freed here is used again by later launches on this stream only
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
        """Returns the memory of a launch, in words of 8 bytes, for :meth:`bind`.

        Returns:
            The memory; the word of each address among the values, None for others; the words that point into this
            memory, with offsets from its start; and those that have the current stream.

        Raises:
            DriverError: The kernel needs scratch memory.
        """
        if self._has_scratch:
            raise DriverError(f"{self.needs.name}: it needs scratch memory, which each launch allocates")
        return self._template(n_programs, values)

    def _template(
        self, n_programs: int, values: Sequence[Any]
    ) -> tuple[bytes, list[int | None], dict[int, int], list[int]]:
        offsets = iter(self.offsets)
        value_offsets = [None if kind == "constexpr" else self.arguments + next(offsets) for kind in self.types]
        scratch = [self.arguments + 8 * (i - SCRATCH_POINTERS) for i in range(SCRATCH_POINTERS)]
        memory = bytearray(self._head).ljust(self.arguments, b"\0") + self.layout.pack(*values)
        memory += bytes(-len(memory) % 8)
        PACK_GRID(memory, 0, n_programs * self.needs.cluster, 1, 1)
        address_words = [
            offset // 8 if offset is not None and kind.startswith("*") else None
            for offset, kind in zip(value_offsets, self.types)
        ]
        present = [offset for offset in value_offsets if offset is not None]
        internal_pointers = {self.pointers // 8 + i: offset for i, offset in enumerate([*present, *scratch])}
        return bytes(memory), address_words, internal_pointers, [self.device.driver.STREAM // 8]

    def bind(self, n_programs: int, memory: Any, begin: int) -> tuple[Callable[[], int], Callable[[int], bool]]:
        """Binds launches of the kernel to the memory of :meth:`template`, from a byte of a ctypes array on.

        Returns:
            A function that launches; and one that is called with its result if that is not 0: it launches again or
            raises a DriverError, and returns False, as a launch copies the memory.
        """
        launch = Frame(self, memory, begin).launch
        return launch, functools.partial(self._launch_again, launch, n_programs)

    def _launch_again(self, launch: Callable[[], int], n_programs: int, code: int) -> bool:
        """Launches again what failed with an error from which the driver recovers; raises a DriverError for others."""
        if self.device.driver.recover(code, self.device.number):
            code = launch()
        self.device.driver.check(code, f"{self.needs.name}: launching {n_programs:,} programs")
        return False

    def _allocate(self, frame: Frame, grid: tuple[int, int, int], stream: int) -> list[Any]:
        """Gets scratch memory from the functions that Triton was given for that (``triton.set_allocator``)."""
        x, y, z = grid
        allocators = _allocation._allocator, _allocation._profile_allocator
        buffers = []
        for which, ((size, alignment), allocator) in enumerate(
            zip((self.needs.scratch, self.needs.profile), allocators)
        ):
            if size:
                try:
                    memory = allocator.get()(x * y * z * self.needs.cluster * size, alignment, stream)
                except RuntimeError as error:
                    raise DriverError(f"{self.needs.name}: it needs scratch memory: {error}") from error
                frame.set_scratch(which, memory.data_ptr())
                buffers.append(memory)
        return buffers


def _types(compiled: CompiledKernel) -> list[str]:
    """Returns the types of a kernel's arguments that are not constants of its source."""
    source = compiled.src
    pairs = zip(source.signature.values(), source.fn.params)
    return [leaf for kind, parameter in pairs if not parameter.is_constexpr for leaf in flat_arguments(kind)]


def flat_arguments(argument: Any) -> list[Any]:
    """Returns an argument, or its type, or the values of a bundle, or their types."""
    return [leaf for field in argument for leaf in flat_arguments(field)] if isinstance(argument, tuple) else [argument]


def _format(name: str, kind: Any) -> str:
    """Returns how values of a type are packed."""
    if kind == "constexpr":
        return ABSENT
    if isinstance(kind, str) and kind.startswith("*"):
        return POINTER
    if kind not in FORMATS:
        raise DriverError(f"{name}: arguments of Triton's type {kind!r} cannot be launched")
    return FORMATS[kind]
