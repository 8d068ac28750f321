"""Adam for the parameters of Gaussians, with one kernel launch for all parameters."""

import ctypes
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from ..arguments import BOOLS, check_devices, check_tensor, plain
from ..config import Backend
from ..errors import ArgumentError, DtypeError, ShapeError, UnsupportedError
from ..runtime.backend import launchers
from ..runtime.compilation import plain_all
from ..runtime.spare_rows import zeros_like_with_spare_rows
from ..scalars import describe, equals

UNSUPPORTED = {"weight_decay": 0, "amsgrad": False, "maximize": False}
"""Options of :class:`torch.optim.Adam` that change its steps and are not implemented, with the value that disables
them."""
ALL_UNSUPPORTED = UNSUPPORTED | dict.fromkeys(
    ("foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay"), False
)
"""Also options that choose an implementation, which parameter groups of a loaded state may enable."""
MOMENTS = ("exp_avg", "exp_avg_sq")


class Adam(torch.optim.Adam):
    """Adam with the state dictionaries of :class:`torch.optim.Adam`, and optionally sparse steps.

    Args:
        params, lr, betas, eps: As for :class:`torch.optim.Adam`. Parameters must be contiguous and fp32 or fp64.
        backend: As in :func:`tsplat.rasterization`.
        moments_dtype: Dtype in which both moments are stored: None for the dtype of the parameters, or
            ``torch.bfloat16``, which saves 4 bytes per value compared with fp32. Steps are computed in the dtype of the
            parameters. Moments are rounded stochastically to bf16, which preserves their mean (Gupta et al., "Deep
            learning with limited numerical precision", 2015). Equal calls give equal bits: the random bits are a hash
            of the step and of the value's index in its parameter. A loaded state is converted; to bf16, it is rounded
            to nearest.
        options: Other options of :class:`torch.optim.Adam`, which must be off: 0, False or None.

    Attributes:
        moments_dtype: See above.

    Raises:
        DtypeError: ``moments_dtype`` is neither None nor ``torch.bfloat16``.
        NotImplementedError: Another option of :class:`torch.optim.Adam` is enabled, here or in a parameter group; the
            message names it.

    Example::

        import torch
        from tsplat.ops import Adam

        means = torch.randn(100, 3, requires_grad=True)
        optimizer = Adam([means], lr=1e-3, eps=1e-15)
        means.square().sum().backward()
        optimizer.step(visible=torch.arange(100) < 50)  # does not update the other Gaussians
    """

    moments_dtype: torch.dtype | None = None  # the default for pickles of earlier versions

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        backend: Backend = "auto",
        moments_dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        _check_off(options, ALL_UNSUPPORTED)
        if moments_dtype not in (None, torch.bfloat16):
            raise DtypeError(f"moments_dtype: expected None or torch.bfloat16, found {describe(moments_dtype)}")
        options = {name: value for name, value in options.items() if value is not None}
        super().__init__(params, lr=lr, betas=betas, eps=eps, **options)
        self._backend = backend
        self.moments_dtype = moments_dtype

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state that copies and pickles contain."""
        return {**super().__getstate__(), "_backend": self._backend, "moments_dtype": self.moments_dtype}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores the state of a copy, pickle or state dictionary. PyTorch has cast moments to the parameter's dtype,
        so they are converted back to `moments_dtype`."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if self.moments_dtype is not None:
            for moments in self.state.values():
                moments |= {name: moments[name].to(self.moments_dtype) for name in MOMENTS if name in moments}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a parameter group; see :meth:`torch.optim.Optimizer.add_param_group`."""
        _check_off(param_group, UNSUPPORTED)
        _without_importing_dynamo(super().add_param_group)(self, param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Resets the gradients; see :meth:`torch.optim.Optimizer.zero_grad`."""
        if not set_to_none or "torch._dynamo" in sys.modules:
            _without_importing_dynamo(super().zero_grad)(self, set_to_none)
            return
        # The base class's method is slower, as it records a profiler event.
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def step(  # type: ignore[override]
        self, closure: Callable[[], Tensor] | None = None, *, visible: Tensor | None = None
    ) -> Tensor | None:
        """Performs a step.

        Args:
            closure: Recomputes the loss and its gradients.
            visible: [N] bool, the Gaussians to update, in every parameter and its moments; None for all. This is
                cheaper, but differs from Adam, as moments of other Gaussians do not decay. All Gaussians share the
                step count.

        Raises:
            NotImplementedError: A loaded state enables an option that is not implemented; or the step is captured in a
                CUDA graph.
            ArgumentError: ``visible`` or a moment does not match a parameter, or a parameter is not contiguous.
                Parameters and state are unchanged.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        step_all([self], visible=visible)
        return loss

    def _with_gradients(self) -> Iterator[tuple[Tensor, Tensor, dict[str, Any], dict[str, Any]]]:
        """Yields parameters to update, with their gradients, groups and states; empty states before the first step."""
        for group in self.param_groups:
            _check_off(group, UNSUPPORTED)  # a loaded state may enable them
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is not None:
                    yield parameter, gradient, group, self.state.get(parameter, {})

    def _initialize(self, parameter: Tensor, state: dict[str, Any]) -> dict[str, Any]:
        """Creates the moments of a parameter if its state is empty, and returns the state."""
        if not state:
            self.state[parameter] = state
            state["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
            for name in MOMENTS:
                state[name] = zeros_like_with_spare_rows(parameter, self.moments_dtype)
        return state

    def _next_update(
        self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Any]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, list[float]]:
        """Counts a step of a parameter. Returns the parameter, its gradient, its moments and the step's constants."""
        constants = _next_constants(group, self._initialize(parameter, state))
        if gradient.dtype != parameter.dtype or not gradient.is_contiguous():
            gradient = gradient.to(parameter.dtype).contiguous()
        return parameter, gradient, state["exp_avg"], state["exp_avg_sq"], constants


@torch.no_grad()
def step_all(optimizers: Iterable[Adam], *, visible: Tensor | None = None) -> None:
    """Performs a step of several optimizers, with one kernel launch for all parameters of equal device and dtypes.

    Args:
        optimizers: Optimizers of different parameters.
        visible: See :meth:`Adam.step`, which raises the same errors.
    """
    entries = [(optimizer, *entry) for optimizer in optimizers for entry in optimizer._with_gradients()]
    if entries and entries[0][1].is_cuda and torch.cuda.is_current_stream_capturing():
        raise UnsupportedError(
            "step: not implemented in a CUDA graph, which would repeat the learning rates of one step; call it after "
            "replays, or use torch.optim.Adam(capturable=True)"
        )
    names, tensors = ["params", "gradient"] * len(entries), [tensor for entry in entries for tensor in entry[1:3]]
    visible, *resolved = plain_all(["visible", *names], [visible, *tensors])
    gradients = resolved[1::2]
    for (optimizer, parameter, *_, state), values in zip(entries, resolved[::2]):
        if values is not parameter:
            raise ArgumentError("params: expected tensors with memory of their own, found a lazily negated view")
        _check(parameter, optimizer.moments_dtype or parameter.dtype, state, visible)
    launches: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for (optimizer, parameter, _, group, state), gradient in zip(entries, gradients):
        key = parameter.device, optimizer._backend, parameter.dtype, optimizer.moments_dtype
        launches.setdefault(key, []).append(optimizer._next_update(parameter, gradient, group, state))
    for (device, backend, *_), updates in launches.items():
        mask = None if visible is None else visible.contiguous()
        launchers(device, backend).adam_step(*zip(*updates, strict=True), mask)


def _check(parameter: Tensor, moments_dtype: torch.dtype, state: dict[str, Any], visible: Tensor | None) -> None:
    """Raises unless a step can update a parameter, with moments of `moments_dtype`; see :meth:`Adam.step`."""
    dtype, device, shape = parameter.dtype, parameter.device, parameter.shape
    if dtype not in (torch.float32, torch.float64):
        raise UnsupportedError(f"params: {dtype} is not implemented; keep parameters in fp32")
    if not parameter.is_contiguous():
        raise ArgumentError(f"params: expected contiguous tensors, found strides {parameter.stride()}")
    if visible is not None:
        check_tensor("visible", visible, shape[:1], "[N] as the parameter", dtypes=BOOLS)
        check_devices({"params": parameter, "visible": visible})
    for name in MOMENTS:
        moment = state.get(name)
        if moment is None:
            continue
        if moment.dtype != moments_dtype or moment.device != device:
            reason = "as the parameter" if moments_dtype == dtype else "by moments_dtype"
            raise DtypeError(
                f"params: expected {name} {moments_dtype} on {device} {reason}, found {moment.dtype} on {moment.device}"
            )
        if moment.shape != shape or plain(name, moment) is not moment or not moment.is_contiguous():
            raise ShapeError(
                f"params: expected contiguous {name} {list(shape)} as the parameter, found "
                f"{list(moment.shape)} with strides {moment.stride()}"
            )


_Rows = Literal["all", "selected", "others"]
"""The rows that a table of a :class:`RepeatedStep` updates: those with gradients, or the others."""


class RepeatedStep:
    """A step of optimizers that can be replayed: tensors keep their addresses, and learning rates may change.

    It launches the Triton kernels of :func:`step_all`.

    Args:
        optimizers: Optimizers of parameters on one device. Gradients must be contiguous and have the parameters'
            dtypes. Parameters without a gradient are not updated.
        rows: [R] int64, the rows of parameters that have gradients, in any number if negative; None for all.
        row_gradients: With `rows`, the gradients of some parameters, [R, ...].
        updates_all: Whether the other rows of these parameters are updated, too, with gradients of zero.
    """

    def __init__(
        self,
        optimizers: Iterable[Adam],
        rows: Tensor | None = None,
        row_gradients: Mapping[Tensor, Tensor] | None = None,
        *,
        updates_all: bool = False,
    ) -> None:
        gradients = {} if row_gradients is None else row_gradients
        self._entries = [
            (optimizer, parameter, group, optimizer._initialize(parameter, optimizer.state.get(parameter, {})))
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter in gradients or parameter.grad is not None
        ]
        self._rows = rows
        self._tensors: list[tuple[Any, ...]] = [
            (parameter.detach(), gradients.get(parameter, parameter.grad), state["exp_avg"], state["exp_avg_sq"])
            for _, parameter, _, state in self._entries
        ]
        self._of_rows = [parameter in gradients for _, parameter, _, _ in self._entries]
        self._updates_all = updates_all and any(self._of_rows)
        kinds: dict[tuple[torch.dtype, torch.dtype, bool], list[int]] = {}
        for i, (parameter, _, exp_avg, _) in enumerate(self._tensors):
            kinds.setdefault((parameter.dtype, exp_avg.dtype, self._of_rows[i]), []).append(i)
        self._tables: list[tuple[Any, list[int], _Rows]] = []
        for (*_, of_rows), indices in kinds.items():
            self._add_table(indices, "selected" if of_rows else "all")
            if of_rows and updates_all:
                self._add_table(indices, "others")

    def _add_table(self, indices: list[int], rows: _Rows) -> None:
        parameters, gradients, *moments = zip(*[self._tensors[i] for i in indices])
        make_table = launchers(parameters[0].device, "triton").adam.AdamTable
        table = make_table(parameters, None if rows == "others" else gradients, *moments, [[0.0] * 7] * len(indices))
        self._tables.append((table, indices, rows))

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that it reads and writes."""
        return [
            *([] if self._rows is None else [self._rows]),
            *[table.words for table, _, _ in self._tables],
            *[tensor for tensors in self._tensors for tensor in tensors],
        ]

    def is_current(self) -> bool:
        """Returns whether the optimizers still have the parameters, gradients, moments and groups of this step.

        Gradients of rows are not compared.
        """
        return all(
            optimizer.param_groups[0] is group
            and group["params"][0] is parameter
            and (of_rows or parameter.grad is gradient)
            and optimizer.state.get(parameter) is state
            and state["exp_avg"] is exp_avg
            and state["exp_avg_sq"] is exp_avg_sq
            for (optimizer, parameter, group, state), (_, gradient, exp_avg, exp_avg_sq), of_rows in zip(
                self._entries, self._tensors, self._of_rows
            )
        )

    def advance(self) -> None:
        """Counts a step, and writes its constants, such as learning rates, for :meth:`launch`."""
        constants = [_next_constants(group, state) for _, _, group, state in self._entries]
        for table, indices, _ in self._tables:
            table.change([constants[i] for i in indices])

    def launch(self, visible: Tensor | None) -> None:
        """Updates parameters and moments, after :meth:`advance`.

        Args:
            visible: Gradients whose rows are updated, [N] bool, or [R] if they are of rows; None for all, and with
                `updates_all`.
        """
        rows, others = self._rows, None
        if rows is not None and self._updates_all:
            visible_rows = rows >= 0
            n = max(len(self._tensors[i][0]) for i, of_rows in enumerate(self._of_rows) if of_rows)
            others = torch.ones(n + 1, dtype=torch.bool, device=rows.device)
            others = others.index_fill_(0, rows.masked_fill(rows < 0, n), False)[:n]
        for table, _, kind in self._tables:
            if kind == "selected":
                table.step(visible if others is None else visible_rows, rows)
            else:
                table.step(others if kind == "others" else visible)


def _next_constants(group: dict[str, Any], state: dict[str, Any]) -> list[float]:
    """Counts a step of a parameter, and returns its constants, as :class:`.kernels.adam.AdamTable` takes them."""
    t = _count(state)
    beta1, beta2 = group["betas"]
    return [1 - beta1, beta2, 1 - beta2, group["lr"] / (1 - beta1**t), (1 - beta2**t) ** 0.5, group["eps"], t]


def _count(state: dict[str, Any]) -> float:
    """Adds 1 to the step count of a state, and returns it."""
    step = state["step"]
    if not step.is_cpu or step.dtype != torch.float32:
        step += 1
        return float(step)
    # Two PyTorch operators per parameter would take as long as a kernel launch.
    count = ctypes.c_float.from_address(step.data_ptr())
    count.value += 1
    return count.value


def _check_off(options: dict[str, Any], off: dict[str, Any]) -> None:
    """Raises UnsupportedError for an option that is neither None nor the value in `off`, which disables it."""
    for name, value in off.items():
        option = options.get(name)
        if option is not None and not equals(option, value):
            raise UnsupportedError(f"{name}: not implemented; pass {value!r}")


def _without_importing_dynamo(method: Any) -> Callable[..., None]:
    """Returns the function of a bound method of :class:`torch.optim.Optimizer`.

    PyTorch excludes such methods from compilation by a decorator that imports ``torch._dynamo``, which takes seconds.
    If it is not imported yet, nothing is being compiled, and the decorator can be omitted.
    """
    function: Callable[..., None] = method.__func__
    return function if "torch._dynamo" in sys.modules else inspect.unwrap(function)
