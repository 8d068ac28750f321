"""A pass: the steps of a trace, done again on other memory."""

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
from ..runtime.tracing import Constant, Launch, Memory, OnArrays, Operator, Step, Zeros
from .arenas import SPECIALIZED_ALIGNMENT, Bases, View

Run = Callable[[], object]
"""Does a step that is no launch."""

Bind = Callable[[Sequence[Tensor], dict[int, Any]], Run]
"""Returns what does a step, given the bases of a call, and some of them, by number, as arrays of bytes."""

NUMBER, OWN, STREAM, FIRST = 0, 1, 2, 3
"""What words are relative to: nothing, the words themselves, the current stream, or a base, of which this is the first.
"""


def specializations(tensors: Sequence[Tensor]) -> list[Any] | None:
    """Returns what launches on tensors are specialized on besides their dtypes, shapes and strides; None if launches
    are not replayed, as they are interpreted, observed, captured, or on another GPU than the current one."""
    launch = sys.modules.get("tsplat.kernels.launch")  # which needs Triton
    if launch is None or launch.INTERPRETED or launch.observer is not None:
        return None
    vendor = launch.vendor(tensors[0])
    if vendor == "none":
        return []
    from ..gpu_driver import are_launches_hooked

    gpu = launch.current_gpu(tensors[0])
    if gpu is None or are_launches_hooked() or (tensors[0].is_cuda and torch.cuda.is_current_stream_capturing()):
        return None
    # The emulator has tensors on the CPU.
    key = [vendor, gpu, *[t.data_ptr() % SPECIALIZED_ALIGNMENT for t in tensors]]
    return key + [t.untyped_storage().nbytes() > launch.SMALL_STORAGE for t in tensors] if vendor == "amd" else key


def runs_on_gpu(tensor: Tensor) -> bool:
    """Returns whether kernels on a tensor run on a GPU, or an emulated one."""
    from ..kernels import launch

    return launch.vendor(tensor) != "none"


class Pass:
    """The steps of a trace, for bases at any addresses.

    What all launches read lies in one array of words, which one addition fills in: each word is relative to nothing, to
    the current stream, or to the address of a base.

    Args:
        steps: The steps.
        bases: Where their tensors are.
        order: The numbers of the bases in the order in which :meth:`run` takes these.
        on_gpu: Whether kernels run on a GPU, or an emulated one.
    """

    def __init__(self, steps: Sequence[Step], bases: Bases, order: Sequence[int], *, on_gpu: bool) -> None:
        self.order = order
        self._bases, self._places = bases, {base: i for i, base in enumerate(order)}
        self._others: list[Bind] = []
        self._launches: list[list[tuple[Any, int, int]]] = [[]]  # before, between and behind the others
        self._stream: Callable[[], int] = int  # 0
        self._free: list[_Words] = []
        self._arrays: set[int] = set()
        self._has_operators = False
        words, origins = bytearray(), []
        for step in steps:
            if isinstance(step, Launch):
                if step.n_programs:
                    memory, own_origins = self._memory(step, len(words))
                    self._launches[-1].append((step.run, step.n_programs, len(words)))
                    words += memory
                    origins += own_origins
                    if on_gpu:
                        self._stream = step.run.stream
            elif not isinstance(step, Zeros) or step.memory.shape.numel():
                self._others.append(self._other(step, on_gpu=on_gpu))
                self._launches.append([])
        self._words = np.frombuffer(bytes(words), np.int64)
        self._origins = np.array(origins, np.int64)
        del self._bases, self._places

    def run(self, bases: Sequence[Tensor]) -> None:
        """Does the steps on the bases of a call."""
        try:
            words = self._free.pop()
        except IndexError:
            words = _Words(len(self._words), self._launches)
        self._fill(words, self._addresses(words, bases))
        if not self._do(words, lambda: self._bind(bases)):
            self._free.append(words)  # not after an error, when threads may read them, too

    def bind(self, bases: Sequence[Tensor]) -> Callable[[], None]:
        """Returns what does the steps on these bases, which takes less time than :meth:`run`."""
        bound: list[Any] = []  # words, their addresses, and the other steps; empty before the first run and during runs

        def run() -> None:
            try:
                words, addresses, others = bound.pop()
            except IndexError:
                words = _Words(len(self._words), self._launches)
                addresses, others = self._addresses(words, bases), self._bind(bases)
            else:
                addresses[STREAM] = self._stream()
            self._fill(words, addresses)
            if not self._do(words, lambda: others):
                bound.append((words, addresses, others))

        return run

    def _addresses(self, words: _Words, bases: Sequence[Tensor]) -> Any:
        """Returns what words are relative to, int64, in the order of :data:`FIRST`: 0, the words, the stream, bases."""
        return np.array([0, words.address, self._stream(), *map(Tensor.data_ptr, bases)], np.int64)

    def _fill(self, words: _Words, addresses: Any) -> None:
        """Fills in words. Launches change them."""
        np.add(addresses[self._origins], self._words, out=words.array)

    def _bind(self, bases: Sequence[Tensor]) -> list[Run]:
        """Returns what does the steps that are no launches."""
        arrays = {i: bases[i].numpy() for i in self._arrays}
        return [bind(bases, arrays) for bind in self._others]

    def _do(self, words: _Words, bind: Callable[[], list[Run]]) -> bool:
        """Does the steps, given what binds those that are no launches. Returns whether other threads may read the
        words later."""
        if not self._has_operators:
            return words.launch(bind())
        with torch.no_grad(), full_precision():
            return words.launch(bind())

    def _view(self, tensor: Memory) -> View:
        """Returns the view of a tensor, whose base is numbered by its place in the order."""
        view = self._bases.view(tensor)
        return view._replace(base=self._places[view.base])

    def _memory(self, step: Launch, begin: int) -> tuple[bytearray, list[int]]:
        """Returns the memory of a launch that begins at a byte of the words, with offsets in place of addresses; and
        what each of its words is relative to."""
        views = [self._view(v) if isinstance(v, Memory) and v.shape.numel() else None for v in step.values]
        numbers = [0 if isinstance(v, Memory) else v for v in step.values]
        template, places, own, streams = step.run.template(step.n_programs, numbers)
        memory, origins = bytearray(template), [NUMBER] * (len(template) // 8)
        for place, offset in own.items():
            _set(memory, place, begin + offset)
            origins[place] = OWN
        for place in streams:
            origins[place] = STREAM
        for view, place in zip(views, places, strict=True):
            if view is not None:
                _set(memory, place, view.offset)
                origins[place] = FIRST + view.base
        return memory, origins

    def _other(self, step: Step, *, on_gpu: bool) -> Bind:
        """Returns what binds a step that is no launch."""
        if isinstance(step, Zeros) and not on_gpu and (n_bytes := _dense_bytes(view := self._view(step.memory))):
            return _clear(view, n_bytes)
        if isinstance(step, OnArrays):
            return self._on_arrays(step)
        self._has_operators = True
        if isinstance(step, Zeros):
            return _zero(self._view(step.memory))
        if isinstance(step, Constant):
            return _copy(self._view(step.memory), step.values)
        assert isinstance(step, Operator)
        return self._operator(step)

    def _operator(self, step: Operator) -> Bind:
        function, args, kwargs = step.function, self._views(step.args), self._views(step.kwargs)
        results = self._views(step.results)
        into = _writing_into(function, len(results)) if results else None
        if not results or into is not None:
            function, names = into or (function, [])

            def bind(bases: Sequence[Tensor], _arrays: dict[int, Any]) -> Run:
                outputs = {name: view.of(bases[view.base]) for name, view in zip(names, results)}
                return functools.partial(function, *_tensors(args, bases), **_tensors(kwargs, bases), **outputs)

            return bind

        def bind_with_copies(bases: Sequence[Tensor], _arrays: dict[int, Any]) -> Run:
            own_args, own_kwargs = _tensors(args, bases), _tensors(kwargs, bases)
            outputs = [view.of(bases[view.base]) for view in results]

            def run() -> None:
                values = function(*own_args, **own_kwargs)
                for output, new in zip(outputs, values if isinstance(values, tuple | list) else (values,), strict=True):
                    output.copy_(new)

            return run

        return bind_with_copies

    def _on_arrays(self, step: OnArrays) -> Bind:
        function, given = step.function, [self._array(tensor) for tensor in step.args]
        outputs = [self._array(tensor) for tensor in step.results]

        def bind(_bases: Sequence[Tensor], arrays: dict[int, Any]) -> Run:
            own, own_outputs = [array(arrays) for array in given], [output(arrays) for output in outputs]

            def run() -> None:
                values = function(*own)
                for output, new in zip(own_outputs, values if isinstance(values, tuple) else (values,), strict=True):
                    output[...] = new

            return run

        return bind

    def _array(self, tensor: Memory) -> Callable[[dict[int, Any]], np.ndarray]:
        """Returns the function of arrays of bytes that returns a tensor as an array."""
        view = self._view(tensor)
        self._arrays.add(view.base)
        return view.as_array()

    def _views(self, tree: Any) -> Any:
        """Returns arguments with views in place of tensors."""
        if isinstance(tree, Memory):
            return self._view(tree)
        if isinstance(tree, dict):
            return {name: self._views(value) for name, value in tree.items()}
        if isinstance(tree, list | tuple):
            return type(tree)([self._views(value) for value in tree])
        return tree


class _Words:
    """The words of a replay, and what launches kernels with them.

    Args:
        n_words: How many.
        launches: Lists of kernels with numbers of programs, and the bytes where their memory begins.
    """

    def __init__(self, n_words: int, launches: list[list[tuple[Any, int, int]]]) -> None:
        memory = (ctypes.c_int64 * n_words)()
        self.address = ctypes.addressof(memory)
        self.array: Any = np.frombuffer(memoryview(memory), np.int64) if n_words else np.zeros(0, np.int64)
        bound = [[kernel.bind(n, memory, begin) for kernel, n, begin in each] for each in launches]
        self._launches = [[launch for launch, _ in each] for each in bound]
        self._answers = dict(itertools.chain(*bound))

    def launch(self, others: list[Run]) -> bool:
        """Launches the kernels, and does another step between two lists of launches. Returns whether other threads may
        read the words later."""
        are_read = False
        for launches, other in zip(self._launches, [*others, _do_nothing]):
            for launch in launches:
                if result := launch():
                    are_read = self._answers[launch](result) or are_read
            other()
        return are_read


def _do_nothing() -> None:
    pass


def _set(memory: bytearray, word: int, value: int) -> None:
    memory[8 * word : 8 * word + 8] = value.to_bytes(8, "little", signed=True)


def _writing_into(function: Any, n_results: int) -> tuple[Any, list[str]] | None:
    """Returns the overload of an operator that writes its results into tensors, and the names of these arguments; None
    if there is none."""
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


def _clear(view: View, n_bytes: int) -> Bind:
    base, offset = view.base, view.offset
    return lambda bases, _arrays: functools.partial(ctypes.memset, bases[base].data_ptr() + offset, 0, n_bytes)


def _dense_bytes(view: View) -> int | None:
    """Returns the number of bytes of a tensor without gaps; None for other tensors."""
    expected = 1
    for stride, size in sorted(zip(view.strides, view.shape)):
        if size != 1 and stride != expected:
            return None
        expected *= size
    return expected * view.dtype.itemsize


def _copy(view: View, values: Tensor) -> Bind:
    return lambda bases, _arrays: functools.partial(view.of(bases[view.base]).copy_, values)


def _tensors(tree: Any, bases: Sequence[Tensor]) -> Any:
    """Returns arguments with tensors in place of views."""
    if isinstance(tree, View):
        return tree.of(bases[tree.base])
    if isinstance(tree, dict):
        return {name: _tensors(value, bases) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)([_tensors(value, bases) for value in tree])
    return tree
