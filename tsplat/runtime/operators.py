"""Operators for graphs of ``torch.compile``: one per pass, which run the code of an eager call.

The operator of the forward pass runs the function with autograd enabled, and returns the tensors that autograd saves as
additional outputs. The autograd graph then holds no tensors, and depends on layouts and settings only. All calls with
the same layouts and settings share it: the operator of the backward pass runs it on the tensors that it gets.

The saved tensors of a function depend on the strides of its inputs. ``torch.compile`` does not preserve strides in the
backward pass, nor lazy views. Both operators therefore first convert their inputs to C order, see :func:`_lay_out`.
"""

import contextlib
import inspect
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks

from ..arguments import plain
from ..scalars import enum_name

Tensors = Sequence[Tensor | None]
Arguments = dict[str, Any]

LIBRARY = torch.library.Library("tsplat", "DEF")  # type: ignore[no-untyped-call]

SCHEMA_TYPES = {
    "Tensor": "Tensor", "Tensor | None": "Tensor", "bool": "bool", "int": "SymInt", "int | None": "SymInt?",
    "float": "float", "Capacity": "SymInt?", "Backend": "str", "CameraModel": "str", "NumericsName": "str",
    "Padding": "str", "RasterizeMode": "str", "RenderMode": "str", "RollingShutterType | str": "str", "Validate": "str",
}  # fmt: skip
"""Annotation of a parameter, as text -> its type in the schema of an operator. Parameters with other annotations must
have their default values."""

TENSOR_CLASSES = (Tensor, torch.nn.Parameter)
"""Classes of tensors that operators support."""

GRAPHS_MAX = 64
"""Maximum number of cached autograd graphs."""


class Results(NamedTuple):
    """Describes the results of a function to its operator. All fields are functions.

    Attributes:
        sizes_are_known: Returns whether the sizes of all outputs follow from the arguments, without waiting for the
            device.
        names: Returns the names of the differentiable outputs, and of the others.
        unpack: Returns the outputs by name, given the results of the function.
        pack: Returns the results of the function, given the outputs by name. Traced by ``torch.compile``.
        plain: Converts the results of a call outside of graphs to types that ``torch.compile`` supports.
    """

    sizes_are_known: Callable[[Arguments], bool]
    names: Callable[[Arguments], tuple[tuple[str, ...], tuple[str, ...]]]
    unpack: Callable[[Any], dict[str, Any]]
    pack: Callable[[dict[str, Tensor], Arguments], Any]
    plain: Callable[[Any], Any] = lambda result: result


class Operator:
    """The operators ``tsplat::NAME`` and ``tsplat::NAME_backward`` of a function NAME."""

    def __init__(self, function: Callable[..., Any], results: Results) -> None:
        self._function, self._results = function, results
        parameters = inspect.signature(function).parameters.values()
        schema_types = {p.name: SCHEMA_TYPES.get(p.annotation, "") for p in parameters}
        self._names = tuple(schema_types)
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._tensors = tuple([name for name, kind in schema_types.items() if kind == "Tensor"])
        self._settings = tuple([name for name, kind in schema_types.items() if kind not in ("", "Tensor")])
        self._texts = tuple([name for name, kind in schema_types.items() if kind == "str"])
        self._defaulted = tuple([name for name, kind in schema_types.items() if not kind])
        self._graphs: dict[Any, _AutogradGraph] = {}
        self._result_sizes: dict[Any, _ResultSizes] = {}
        name = function.__name__.strip("_")
        inputs = ", ".join(
            ["Tensor?[] tensors", "bool[] needs", *(f"{schema_types[setting]} {setting}" for setting in self._settings)]
        )
        for operator_name, schema, run, fake in (
            (name, inputs, self._forward, self._fake_forward),
            (f"{name}_backward", f"Tensor?[] v, Tensor[] outputs, {inputs}", self._backward, self._fake_backward),
        ):
            LIBRARY.define(f"{operator_name}({schema}) -> Tensor[]")  # type: ignore[no-untyped-call]
            LIBRARY.impl(operator_name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
            torch.library.register_fake(f"tsplat::{operator_name}", fake, lib=LIBRARY)
        self._operators = getattr(torch.ops.tsplat, name), getattr(torch.ops.tsplat, f"{name}_backward")
        self._apply = _differentiable(*self._operators)

    # Functions that torch.compile traces

    def bind(self, args: tuple[Any, ...], kwargs: Arguments) -> Arguments | None:
        """Returns all arguments by name; None if the call cannot be part of a graph."""
        arguments = {**self._defaults, **dict(zip(self._names, args)), **kwargs}
        if len(args) > len(self._names) or len(arguments) != len(self._names):
            return None
        for name in self._texts:  # operators take names of enum members
            arguments[name] = enum_name(arguments[name])
        fixed = all(arguments[name] is self._defaults[name] for name in self._defaulted)
        # Operators in graphs do not support subclasses of Tensor.
        are_tensors = all(arguments[name] is None or type(arguments[name]) in TENSOR_CLASSES for name in self._tensors)
        return arguments if fixed and are_tensors and self._results.sizes_are_known(arguments) else None

    def call(self, arguments: Arguments) -> Any:
        """Calls the function through its operators."""
        tensors = [arguments[name] for name in self._tensors]
        settings = tuple([arguments[name] for name in self._settings])
        enabled = torch.is_grad_enabled()
        needs = [enabled and tensor is not None and tensor.requires_grad for tensor in tensors]
        differentiable, others = self._results.names(arguments)
        if any(needs):
            outputs = self._apply((len(differentiable), needs, settings), *tensors)
        else:
            outputs = self._operators[0](tensors, needs, *settings)
        return self._results.pack(dict(zip(differentiable + others, outputs)), arguments)

    def call_outside(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function outside of graphs."""
        return self._results.plain(self._function(*args, **kwargs))

    # The operators

    def _forward(self, tensors: Tensors, needs: list[bool], *settings: Any) -> list[Tensor]:
        if any(needs):
            return self._build_graph(self._lay_out_all(tensors), needs, settings)[1]
        with torch.no_grad():
            differentiable, others = self._call(tensors, settings)
        return _Memory(_not_none(tensors)).outputs(differentiable + others)

    def _lay_out_all(self, tensors: Tensors) -> Tensors:
        """Applies :func:`_lay_out` to the tensors ``_tensors``."""
        return [None if t is None else _lay_out(name, t) for name, t in zip(self._tensors, tensors)]

    def _call(self, tensors: Tensors, settings: tuple[Any, ...]) -> tuple[list[Tensor], list[Tensor]]:
        """Calls the function. Returns the differentiable outputs, and the others."""
        arguments = dict(zip(self._settings, settings)) | dict(zip(self._tensors, tensors))
        results = self._results.unpack(self._function(**arguments))
        differentiable, others = self._results.names(arguments)
        return [results[name] for name in differentiable], [results[name] for name in others]

    def _build_graph(
        self, tensors: Tensors, needs: list[bool], settings: tuple[Any, ...]
    ) -> tuple["_AutogradGraph", list[Tensor]]:
        """Calls the function on laid out tensors. Returns the autograd graph, and outputs followed by saved tensors."""
        memory, graph = _Memory(_not_none(tensors)), _AutogradGraph()
        start = torch.zeros(0, requires_grad=True)
        with _autograd(), saved_tensors_hooks(memory.pack, graph.unpack):
            detached = [None if t is None else t.detach() for t in tensors]
            inputs = [_Input.apply(t, start) if need else t for t, need in zip(detached, needs)]  # type: ignore[no-untyped-call]
            differentiable, others = self._call(inputs, settings)
            # Until PyTorch 2.10, only edges of PyTorch's own functions have the metadata that gradients are checked by.
            edges = [get_gradient_edge(output.view_as(output)) for output in differentiable]
        graph.inputs = list(map(get_gradient_edge, _needed(inputs, needs)))
        graph.outputs = edges
        outputs = memory.outputs(differentiable + others)
        graph.locations, graph.sizes = memory.locations, _sizes([*_not_none(tensors), *outputs])
        if len(self._graphs) >= GRAPHS_MAX:
            self._graphs.clear()
        self._graphs.setdefault(_layout(tensors, needs, settings), graph)
        return graph, outputs

    def _backward(
        self, v: Tensors, outputs: list[Tensor], tensors: Tensors, needs: list[bool], *settings: Any
    ) -> list[Tensor]:
        tensors, outputs = self._lay_out_all(tensors), [_lay_out("outputs", t) for t in outputs]
        graph = self._graphs.get(_layout(tensors, needs, settings))
        if graph is None:
            graph = self._build_graph(tensors, needs, settings)[0]
        gradients = graph.run(v, [*_not_none(tensors), *outputs])
        results = self._fake_backward(v, outputs, tensors, needs, *settings)
        for result, gradient in zip(results, gradients, strict=True):
            result.zero_() if gradient is None else result.copy_(gradient.detach())
        return results

    def _find_sizes(self, tensors: Tensors, needs: list[bool], settings: tuple[Any, ...]) -> "_ResultSizes":
        """Returns the sizes of the results of the operators, from a call with example values."""
        device = _not_none(tensors)[0].device
        settings = tuple([int(value) if isinstance(value, torch.SymInt) else value for value in settings])
        shapes = [None if t is None else (tuple(map(int, t.shape)), t.dtype) for t in tensors]
        key = (tuple(shapes), tuple(needs), settings, device)
        if key not in self._result_sizes:

            def run() -> _ResultSizes:
                examples = [None if shape is None else _example(*shape, device) for shape in shapes]
                if not any(needs):
                    return _ResultSizes(_sizes(self._forward(examples, needs, *settings)), [])
                graph, outputs = self._build_graph(self._lay_out_all(examples), needs, settings)
                v = [torch.ones_like(output) for output in outputs[: len(graph.outputs)]]
                gradients = graph.run(v, [*_not_none(examples), *outputs])
                given = _needed(examples, needs)
                strides = [_strides(t if g is None else g.detach()) for g, t in zip(gradients, given)]
                return _ResultSizes(_sizes(outputs), strides)

            with ThreadPoolExecutor(1) as thread:  # a new thread has no tracing modes
                self._result_sizes[key] = thread.submit(run).result()
        return self._result_sizes[key]

    def _fake_forward(self, tensors: Tensors, needs: list[bool], *settings: Any) -> list[Tensor]:
        """Returns outputs with the sizes of an eager call. Sizes become constants of the graph."""
        device = _not_none(tensors)[0].device
        outputs = self._find_sizes(tensors, needs, settings).outputs
        return [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in outputs]

    def _fake_backward(
        self, _v: Tensors, _outputs: list[Tensor], tensors: Tensors, needs: list[bool], *settings: Any
    ) -> list[Tensor]:
        """Returns gradients with the strides of an eager call, as the order of PyTorch's sums depends on strides."""
        strides = self._find_sizes(tensors, needs, settings).strides
        return [
            torch.empty_strided(t.shape, of_gradient, dtype=t.dtype, device=t.device)
            for t, of_gradient in zip(_needed(tensors, needs), strides, strict=True)
        ]


class _ResultSizes(NamedTuple):
    """Sizes of the results of operators: shapes and dtypes of outputs, and strides of gradients."""

    outputs: list[tuple[torch.Size, torch.dtype]]
    strides: list[tuple[int, ...]]


class _Saved(NamedTuple):
    """A tensor that autograd saves, as a view of the storage at an address, with an offset in bytes."""

    address: int
    offset: int
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]


class _Memory:
    """The storages of the tensors of a call.

    Attributes:
        locations: Address of a storage -> index of a tensor in it, among inputs, outputs and saved tensors, and its
            offset in bytes.
    """

    def __init__(self, inputs: list[Tensor]) -> None:
        self._inputs = inputs
        self._saved: dict[int, Tensor] = {}
        self.locations: dict[int, tuple[int, int]] = {}

    def pack(self, t: Tensor) -> _Saved:
        """Replaces a tensor that autograd saves by its description."""
        t = t.detach()
        self._saved.setdefault(_address(t), t)
        return _Saved(_address(t), _offset(t), t.dtype, t.shape, t.stride())

    def outputs(self, outputs: list[Tensor]) -> list[Tensor]:
        """Returns outputs, then the storages of saved tensors that are in neither inputs nor outputs. None overlap."""
        taken = set(map(_address, self._inputs))
        owned: list[Tensor] = []
        for t in outputs:
            t = t.detach()
            is_whole = t.is_contiguous() and t.nbytes == t.untyped_storage().nbytes() and _address(t) not in taken
            owned.append(t if is_whole else _contiguous_copy(t))
            taken.add(_address(owned[-1]))
        for address, t in self._saved.items():
            if address not in taken:
                owned.append(torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage()))
        for i, t in enumerate([*self._inputs, *owned]):
            self.locations.setdefault(_address(t), (i, _offset(t)))
        self._inputs, self._saved = [], {}  # autograd keeps the hooks of what it saves
        return owned


class _AutogradGraph:
    """The autograd graph of a function, without tensors.

    Attributes:
        inputs, outputs: Gradient edges of inputs and outputs.
        locations: See :class:`_Memory`.
        sizes: Sizes of inputs, outputs and saved tensors.
    """

    def __init__(self) -> None:
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.locations: dict[int, tuple[int, int]] = {}
        self.sizes: list[tuple[torch.Size, torch.dtype]] = []
        self._tensors: list[Tensor] = []
        self._lock = threading.Lock()

    def unpack(self, saved: _Saved) -> Tensor:
        """Returns a saved tensor, as a view of a tensor of the running backward pass."""
        i, offset = self.locations[saved.address]
        t = self._tensors[i]
        first = (_offset(t) - offset + saved.offset) // saved.dtype.itemsize
        view = torch.empty(0, dtype=saved.dtype, device=t.device)
        return view.set_(t.untyped_storage(), first, saved.shape, saved.stride)

    def run(self, v: Tensors, tensors: list[Tensor]) -> tuple[Tensor | None, ...]:
        """Returns the gradients of inputs, given the gradients of outputs, and inputs, outputs and saved tensors."""
        given = [(output, t) for output, t in zip(self.outputs, v, strict=True) if t is not None]
        if not given:
            return (None,) * len(self.inputs)
        if _sizes(tensors) != self.sizes:  # would read wrong memory
            raise RuntimeError(
                f"torch.compile: expected tensors {self.sizes} in the backward pass, found {_sizes(tensors)}; call the "
                "function outside of torch.compile, and report this as a bug of tsplat"
            )
        outputs, v_outputs = zip(*given)
        with self._lock, _autograd():
            self._tensors = tensors
            try:
                return torch.autograd.grad(outputs, self.inputs, v_outputs, retain_graph=True, allow_unused=True)
            finally:
                self._tensors = []


class _Input(torch.autograd.Function):
    """The autograd node of an input. It does not hold the tensor."""

    @staticmethod
    def forward(_ctx: Any, tensor: Tensor, _start: Tensor) -> Tensor:
        return tensor.detach()

    @staticmethod
    def backward(_ctx: Any, v: Tensor) -> tuple[Tensor, None]:
        return v, None


def _differentiable(forward_operator: Any, backward_operator: Any) -> Callable[..., Any]:
    """Returns the forward operator, differentiable by the backward operator.

    Its arguments are (number of differentiable outputs, needs, settings), then the tensors.
    """

    class BothPasses(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, call: tuple[int, list[bool], tuple[Any, ...]], *tensors: Any) -> Any:
            n, needs, settings = call
            outputs = forward_operator(tensors, needs, *settings)
            ctx.save_for_backward(*tensors, *outputs)
            ctx.mark_non_differentiable(*outputs[n:])
            ctx.n, ctx.n_tensors, ctx.needs, ctx.settings = n, len(tensors), needs, settings
            return tuple(outputs)

        @staticmethod
        def backward(ctx: Any, *v: Any) -> Any:
            saved, n_tensors = ctx.saved_tensors, ctx.n_tensors
            gradients = backward_operator(v[: ctx.n], saved[n_tensors:], saved[:n_tensors], ctx.needs, *ctx.settings)
            rest = iter(gradients)
            return None, *[next(rest) if need else None for need in ctx.needs]

    apply: Callable[..., Any] = BothPasses.apply
    return apply


@contextlib.contextmanager
def _autograd() -> Iterator[None]:
    """Enables autograd, also inside of dispatch modes, which exclude it."""
    guard, keys = torch._C._SetExcludeDispatchKeyGuard, torch._C.DispatchKey
    with torch.enable_grad(), guard(keys.AutogradFunctionality, False), guard(keys.ADInplaceOrView, False):
        yield


def _example(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns valid example values: identity matrices for square matrices such as cameras, otherwise zeros."""
    if len(shape) > 1 and shape[-1] == shape[-2]:
        return torch.eye(shape[-1], dtype=dtype, device=device).expand(shape).contiguous()
    return torch.zeros(shape, dtype=dtype, device=device)


def _strides(gradient: Tensor) -> tuple[int, ...]:
    """Returns the strides of a gradient, or those of a copy if it is expanded."""
    is_expanded = any(stride == 0 and size > 1 for stride, size in zip(gradient.stride(), gradient.shape))
    return (gradient.clone() if is_expanded else gradient).stride()


def _lay_out(name: str, tensor: Tensor) -> Tensor:
    """Returns a plain tensor with the strides of C order, also for axes of size 1. Copies if necessary."""
    tensor = plain(name, tensor)
    strides = tuple(accumulate(tensor.shape[:0:-1], operator.mul, initial=1))[::-1]
    return tensor if tensor.stride() == strides[: tensor.dim()] else _contiguous_copy(tensor)


def _layout(tensors: Tensors, needs: list[bool], settings: tuple[Any, ...]) -> Any:
    """Returns the cache key of the autograd graph of laid out tensors, including the stream.

    If tensors share a storage, the key contains their distance in it: saved tensors are located by address.
    """
    given, firsts = _not_none(tensors), dict[int, tuple[int, int]]()
    shared = []
    for i, t in enumerate(given):
        first, offset = firsts.setdefault(_address(t), (i, _offset(t)))
        shared.append((first, _offset(t) - offset))
    metadata = tuple([None if t is None else (t.shape, t.dtype, t.device) for t in tensors])
    stream = torch.cuda.current_stream(given[0].device) if given[0].is_cuda else None
    return metadata, tuple(shared), tuple(needs), settings, stream


def _sizes(tensors: list[Tensor]) -> list[tuple[torch.Size, torch.dtype]]:
    """Returns shapes and dtypes."""
    return [(t.shape, t.dtype) for t in tensors]


def _not_none(tensors: Tensors) -> list[Tensor]:
    """Returns the tensors that are not None."""
    return [t for t in tensors if t is not None]


def _needed(tensors: Tensors, needs: list[bool]) -> list[Tensor]:
    """Returns the tensors that require a gradient."""
    return [t for t, need in zip(tensors, needs, strict=True) if need and t is not None]


def _contiguous_copy(t: Tensor) -> Tensor:
    return t.detach().clone(memory_format=torch.contiguous_format)


def _address(t: Tensor) -> int:
    """Returns the address of a tensor's storage."""
    return t.untyped_storage().data_ptr()


def _offset(t: Tensor) -> int:
    """Returns the offset of a tensor in its storage, in bytes."""
    return int(t.storage_offset()) * t.itemsize
