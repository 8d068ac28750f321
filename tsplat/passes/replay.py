"""A pass: runs the steps of a trace again on other memory."""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..precision import full_precision
from ..runtime.bundles import leaves, map_tree
from ..runtime.tracing import Constant, Launch, NumpyCall, Step, TorchCall, TracedTensor, Zeros
from .arenas import SPECIALIZED_ALIGNMENT, Bases, View

Run = Callable[[], object]
"""Runs a step that is not a launch."""

Bind = Callable[[Sequence[Tensor], dict[int, Any]], Run]
"""Binds a step to the bases of a call, some of which are also passed as arrays of bytes, by number."""

LITERAL, BUFFER, STREAM, FIRST_BASE = 0, 1, 2, 3
"""Relocations: what to add to a word of an argument buffer. 0: nothing; 1: the address of the buffer; 2: the current
stream; 3 + i: the address of base i."""


def specializations(tensors: Sequence[Tensor]) -> list[Any] | None:
    """Returns the part of a call's cache key that Triton specializes launches on, such as alignment.

    Returns None if launches cannot be replayed: they are interpreted, observed, captured, or not on the current GPU.
    """
    launch = sys.modules.get("tsplat.kernels.launch")  # not imported without Triton
    if launch is None or launch.INTERPRETED or launch.observer is not None:
        return None
    vendor = launch.vendor(tensors[0])
    if vendor == "none":
        return []
    gpu, driver = launch.current_gpu(tensors[0]), sys.modules.get("tsplat.gpu_driver")  # not imported before a launch
    is_hooked = driver is not None and driver.are_launches_hooked()
    if gpu is None or is_hooked or (tensors[0].is_cuda and torch.cuda.is_current_stream_capturing()):
        return None
    # The emulator of GPUs uses CPU tensors.
    key = [vendor, gpu, *[t.data_ptr() % SPECIALIZED_ALIGNMENT for t in tensors]]
    return key + [t.untyped_storage().nbytes() > launch.SMALL_STORAGE for t in tensors] if vendor == "amd" else key


def runs_on_gpu(tensor: Tensor) -> bool:
    """Returns whether kernels on a tensor run on a real or emulated GPU."""
    from ..kernels import launch

    return launch.vendor(tensor) != "none"


class Pass:
    """The steps of a trace, for bases at any addresses.

    One buffer of 8-byte words holds the arguments of all launches. A single vector addition relocates it: it adds 0,
    the current stream, or the address of the buffer or of a base to each word. The other steps, such as PyTorch
    operators, run between the launches.

    Args:
        steps: The steps.
        bases: The locations of their tensors.
        order: The numbers of the bases, in the order in which :meth:`run` takes them.
        on_gpu: Whether kernels run on a real or emulated GPU.

    Attributes:
        order: As given.
        stream: Returns the current stream, 0 on a CPU.
    """

    def __init__(self, steps: Sequence[Step], bases: Bases, order: Sequence[int], *, on_gpu: bool) -> None:
        self.order = order
        self._bases, self._indices = bases, {base: i for i, base in enumerate(order)}
        self._other_steps: list[Bind] = []
        self._launches: list[list[tuple[Any, int, int]]] = [[]]  # before, between and after the other steps
        self.stream: Callable[[], int] = int  # 0
        self._free_buffers: list[_ArgumentBuffer] = []
        self._array_bases: set[int] = set()
        self._has_float_operators = False
        words, relocations = bytearray(), []
        for step in steps:
            if isinstance(step, Launch):
                if step.n_programs:
                    arguments, relocated_by = self._arguments(step, len(words))
                    self._launches[-1].append((step.run, step.n_programs, len(words)))
                    words += arguments
                    relocations += relocated_by
                    if on_gpu:
                        self.stream = step.run.stream
            elif not isinstance(step, Zeros) or step.tensor.shape.numel():
                self._other_steps.append(self._other_step(step, on_gpu=on_gpu))
                self._launches.append([])
        self._words = np.frombuffer(bytes(words), np.int64)
        self._relocations = np.array(relocations, np.int64)
        del self._bases, self._indices

    def run(self, bases: Sequence[Tensor]) -> None:
        """Runs the steps on the bases of a call."""
        try:
            buffer = self._free_buffers.pop()
        except IndexError:
            buffer = _ArgumentBuffer(len(self._words), self._launches)
        self._relocate(buffer, self._addresses(buffer, bases))
        if not self._do(buffer, lambda: self._bind(bases)):
            self._free_buffers.append(buffer)  # not after an error, as threads may still read it

    def bind(self, bases: Sequence[Tensor]) -> Callable[[], None]:
        """Returns a function that runs the steps on fixed bases, which is faster than :meth:`run`."""
        bound: list[Any] = []  # (buffer, addresses, other steps); empty before the first run and during a run

        def run() -> None:
            try:
                buffer, addresses, other_steps = bound.pop()
            except IndexError:
                buffer = _ArgumentBuffer(len(self._words), self._launches)
                addresses, other_steps = self._addresses(buffer, bases), self._bind(bases)
            else:
                addresses[STREAM] = self.stream()
            self._relocate(buffer, addresses)
            if not self._do(buffer, lambda: other_steps):
                bound.append((buffer, addresses, other_steps))

        return run

    def _addresses(self, buffer: _ArgumentBuffer, bases: Sequence[Tensor]) -> Any:
        """Returns the summands of relocations, int64: 0, buffer, stream, and bases."""
        return np.array([0, buffer.address, self.stream(), *map(Tensor.data_ptr, bases)], np.int64)

    def _relocate(self, buffer: _ArgumentBuffer, addresses: Any) -> None:
        """Fills the buffer with relocated arguments. Launches may have changed it."""
        np.add(addresses.take(self._relocations), self._words, out=buffer.words)  # take is faster than indexing

    def _bind(self, bases: Sequence[Tensor]) -> list[Run]:
        """Binds the steps that are not launches to the bases of a call."""
        arrays = {i: bases[i].numpy() for i in self._array_bases}
        return [bind(bases, arrays) for bind in self._other_steps]

    def _do(self, buffer: _ArgumentBuffer, bind: Callable[[], list[Run]]) -> bool:
        """Runs the steps. ``bind`` returns the steps that are not launches.

        Returns whether other threads may still read the buffer.
        """
        if not self._has_float_operators:
            return buffer.launch(bind())
        with torch.no_grad(), full_precision():
            return buffer.launch(bind())

    def _view(self, tensor: TracedTensor) -> View:
        """Returns the view of a tensor, with the index of its base in ``order``."""
        view = self._bases.view(tensor)
        return view._replace(base=self._indices[view.base])

    def _arguments(self, step: Launch, begin: int) -> tuple[bytearray, list[int]]:
        """Returns the arguments of a launch, with offsets instead of addresses, and the relocation of each word.

        `begin` is the offset of the arguments in the buffer, in bytes.
        """
        views = [self._view(v) if isinstance(v, TracedTensor) and v.shape.numel() else None for v in step.values]
        numbers = [0 if isinstance(v, TracedTensor) else v for v in step.values]
        template, address_words, internal_pointers, stream_words = step.run.template(step.n_programs, numbers)
        words, relocations = bytearray(template), [LITERAL] * (len(template) // 8)
        for word, offset in internal_pointers.items():
            _set_word(words, word, begin + offset)
            relocations[word] = BUFFER
        for word in stream_words:
            relocations[word] = STREAM
        for view, word in zip(views, address_words, strict=True):
            if view is not None:
                _set_word(words, word, view.offset)
                relocations[word] = FIRST_BASE + view.base
        return words, relocations

    def _other_step(self, step: Step, *, on_gpu: bool) -> Bind:
        if isinstance(step, Zeros) and not on_gpu and (n_bytes := _dense_bytes(view := self._view(step.tensor))):
            return _clear_bytes(view, n_bytes)
        if isinstance(step, NumpyCall):
            return self._numpy_call(step)
        if isinstance(step, Zeros):
            return _zero(self._view(step.tensor))
        if isinstance(step, Constant):
            return _copy(self._view(step.tensor), step.values)
        assert isinstance(step, TorchCall)
        return self._operator(step)

    def _operator(self, step: TorchCall) -> Bind:
        function, results = step.function, self._views(step.results)
        # Neither gradients nor autocast concern operators on integers.
        self._has_float_operators |= any(
            v.dtype.is_floating_point for v in leaves((step.args, step.kwargs), TracedTensor)
        )
        args, kwargs = self._tensors(step.args), self._tensors(step.kwargs)
        out_overload = _out_overload(function, len(results)) if results else None
        if not results or out_overload is not None:
            function, names = out_overload or (function, [])

            def bind(bases: Sequence[Tensor], _arrays: dict[int, Any]) -> Run:
                outputs = {name: view.of(bases[view.base]) for name, view in zip(names, results)}
                return functools.partial(function, *args(bases), **kwargs(bases), **outputs)

            return bind

        def bind_with_copies(bases: Sequence[Tensor], _arrays: dict[int, Any]) -> Run:
            bound_args, bound_kwargs = args(bases), kwargs(bases)
            outputs = [view.of(bases[view.base]) for view in results]

            def run() -> None:
                values = function(*bound_args, **bound_kwargs)
                for output, new in zip(outputs, values if isinstance(values, tuple | list) else (values,), strict=True):
                    output.copy_(new)

            return run

        return bind_with_copies

    def _numpy_call(self, step: NumpyCall) -> Bind:
        function, args = step.function, [self._array(tensor) for tensor in step.args]
        results = [self._array(tensor) for tensor in step.results]

        def bind(_bases: Sequence[Tensor], arrays: dict[int, Any]) -> Run:
            bound_args, outputs = [array(arrays) for array in args], [array(arrays) for array in results]

            def run() -> None:
                values = function(*bound_args)
                for output, new in zip(outputs, values if isinstance(values, tuple) else (values,), strict=True):
                    output[...] = new

            return run

        return bind

    def _array(self, tensor: TracedTensor) -> Callable[[dict[int, Any]], np.ndarray]:
        """Returns a function that maps bases, as arrays of bytes, to a tensor as a NumPy array."""
        view = self._view(tensor)
        self._array_bases.add(view.base)
        return view.as_array()

    def _views(self, tree: Any) -> Any:
        """Replaces traced tensors in arguments by views."""
        return map_tree(tree, TracedTensor, self._view)

    def _tensors(self, tree: Any) -> Callable[[Sequence[Tensor]], Any]:
        """Returns a function that builds arguments with the tensors of a call from its bases."""
        views = self._views(tree)
        if not leaves(views, View):
            return lambda bases: views
        return lambda bases: map_tree(views, View, lambda view: view.of(bases[view.base]))


class _ArgumentBuffer:
    """Memory for the arguments of all launches of a pass.

    Args:
        n_words: The number of 8-byte words.
        launches: Lists of (kernel, number of programs, offset of its arguments in bytes).

    Attributes:
        address: The address of the memory.
        words: [n_words] int64, the memory as an array.
    """

    def __init__(self, n_words: int, launches: list[list[tuple[Any, int, int]]]) -> None:
        memory = (ctypes.c_int64 * n_words)()
        self.address = ctypes.addressof(memory)
        self.words: Any = np.frombuffer(memoryview(memory), np.int64) if n_words else np.zeros(0, np.int64)
        bound = [[kernel.bind(n, memory, begin) for kernel, n, begin in each] for each in launches]
        self._launches = [[launch for launch, _ in each] for each in bound]
        self._on_nonzero = dict(itertools.chain(*bound))

    def launch(self, other_steps: list[Run]) -> bool:
        """Runs the lists of launches, with one other step after each list.

        Returns whether other threads may still read the buffer.
        """
        is_read_later = False
        for launches, other_step in zip(self._launches, [*other_steps, _do_nothing]):
            for launch in launches:
                if result := launch():
                    is_read_later = self._on_nonzero[launch](result) or is_read_later
            other_step()
        return is_read_later


def _do_nothing() -> None:
    pass


def _set_word(words: bytearray, word: int, value: int) -> None:
    words[8 * word : 8 * word + 8] = value.to_bytes(8, "little", signed=True)


def _out_overload(function: Any, n_results: int) -> tuple[Any, list[str]] | None:
    """Returns the overload of an operator with ``out`` arguments, and the names of these; None if there is none."""
    expected = [(argument.name, str(argument.type)) for argument in function._schema.arguments]
    packet = function.overloadpacket
    for overload in (getattr(packet, name) for name in packet.overloads()):
        arguments = overload._schema.arguments
        outputs = [argument.name for argument in arguments if argument.is_out]
        others = [(argument.name, str(argument.type)) for argument in arguments if not argument.is_out]
        if len(outputs) == n_results and others == expected:
            return overload, outputs
    return None


def _zero(view: View) -> Bind:
    return lambda bases, _arrays: view.of(bases[view.base]).zero_


def _clear_bytes(view: View, n_bytes: int) -> Bind:
    base, offset = view.base, view.offset
    return lambda bases, _arrays: functools.partial(ctypes.memset, bases[base].data_ptr() + offset, 0, n_bytes)


def _dense_bytes(view: View) -> int | None:
    """Returns the number of bytes of a dense tensor, or None if it has gaps."""
    expected = 1
    for stride, size in sorted(zip(view.strides, view.shape)):
        if size != 1 and stride != expected:
            return None
        expected *= size
    return expected * view.dtype.itemsize


def _copy(view: View, values: Tensor) -> Bind:
    return lambda bases, _arrays: functools.partial(view.of(bases[view.base]).copy_, values)
