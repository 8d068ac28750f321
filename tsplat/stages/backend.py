"""Backend selection: Triton kernels, on a GPU or compiled for the CPU, or vectorized PyTorch.

The packages ``kernels`` and ``kernels_torch`` offer the same launchers with the same signatures; :func:`launchers`
returns one of them. They are imported on first use, so that ``import tsplat`` neither needs Triton nor compiles.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import math
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch

from ..arguments import check_choice
from ..config import BACKENDS, Backend
from ..errors import BackendError


@functools.cache
def has_triton() -> bool:
    """Returns whether the triton package is installed."""
    return importlib.util.find_spec("triton") is not None


def triton_is_interpreted() -> bool:
    """Returns whether Triton interprets kernels in Python (TRITON_INTERPRET=1 when it was first imported)."""
    if not has_triton():
        return False
    import triton

    return bool(triton.knobs.runtime.interpret)


@functools.cache
def cpu_compiler_problem() -> str | None:
    """Returns why Triton kernels cannot be compiled for this machine's CPU, or None if they can."""
    if not has_triton():
        return "the triton package is not installed"
    from ..triton_cpu import TritonCPUError, check_machine

    try:
        check_machine()
    except TritonCPUError as error:
        return str(error)
    return None


def choose(device: torch.device, backend: Backend = "auto") -> tuple[Literal["triton", "torch", "reference"], str]:
    """Returns the backend that runs tensors on a device, and the reason.

    Raises:
        ArgumentError: Unknown backend.
        BackendError: ``backend="triton"`` cannot run on the device.
    """
    check_choice("backend", backend, BACKENDS)
    if backend == "torch" or backend == "reference":
        return backend, "requested"
    problem = _triton_problem(device, backend)
    if backend == "triton":
        if problem:
            raise BackendError(f"backend: 'triton' cannot run on {device}: {problem}; or use backend='torch'")
        return "triton", "requested"
    if problem:
        return "torch", f"{problem}, so rendering is much slower"
    return "triton", "GPU and Triton found" if device.type == "cuda" else "Triton kernels are compiled for the CPU"


def _triton_problem(device: torch.device, backend: Backend) -> str | None:
    """Returns why Triton kernels do not run on a device, or None if they do."""
    if not has_triton():
        return "the triton package is not installed: pip install triton (Linux)"
    if device.type == "cuda":
        return None
    if device.type != "cpu":
        return f"Triton kernels run on CUDA, ROCm and CPU tensors, not on {device.type}"
    if triton_is_interpreted():
        return None if backend == "triton" else "TRITON_INTERPRET=1 is set, and the interpreter is slower still"
    return cpu_compiler_problem() or (_fallback_reason if backend == "auto" else None)


def set_kernel_threads() -> None:
    """Moves the number of threads from PyTorch's operators, which keep one, to kernels compiled for the CPU."""
    from .. import triton_cpu

    triton_cpu.set_num_threads(triton_cpu.get_num_threads())
    torch.set_num_threads(1)


def launchers(device: torch.device, backend: Backend = "auto") -> Any:
    """Returns the launchers that run tensors on a device, with the attributes of ``tsplat.kernels``."""
    found = _chosen.get((device.type, backend))
    if found is None:
        chosen, reason = choose(device, backend)
        if chosen == "torch" and device.type == "cuda" and backend == "auto":
            warnings.warn(f"tsplat runs without Triton kernels on {device}: {reason}", stacklevel=3)
        module = importlib.import_module("tsplat.kernels" if chosen == "triton" else "tsplat.kernels_torch")
        falls_back = chosen == "triton" and backend == "auto" and device.type == "cpu"
        found = _chosen[device.type, backend] = module, falls_back
    module, falls_back = found
    return _WithFallback(module) if falls_back else module


_chosen: dict[tuple[str, Backend], tuple[Any, bool]] = {}
"""By type of device and backend: the launchers, and whether others take their place if kernels cannot be compiled."""


SAME_BACKEND = {"composite_bwd": {"composite_fwd"}, "composite_gradients": {"composite_fwd", "composite_bwd"}}
"""Launchers that run in PyTorch once one of these does."""

_fallback_reason: str | None = None
"""Why a kernel could not be compiled for the CPU in this process; None if all could."""


class _WithFallback:
    """Launchers of compiled kernels. Those whose kernels cannot be compiled for the CPU run in PyTorch instead."""

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels
        self._fallen_back: set[str] = set()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        from ..triton_cpu import TritonCPUError

        compiled = getattr(self._kernels, name)

        def run(*args: Any, **kwargs: Any) -> Any:
            global _fallback_reason
            torch_kernels = importlib.import_module("tsplat.kernels_torch")
            if self._fallen_back & SAME_BACKEND.get(name, set()):
                return getattr(torch_kernels, name)(*args, **kwargs)
            try:
                return compiled(*args, **kwargs)
            except TritonCPUError as error:
                if _fallback_reason is None:
                    warnings.warn(f"tsplat falls back to backend='torch', which is slower: {error}", stacklevel=3)
                    _fallback_reason = str(error)
                    _chosen.clear()
                self._fallen_back.add(name)
                if name == "composite_bwd":
                    args = _with_counts_of_tiles(*args)
                if name == "composite_gradients":
                    args = _with_natural_slopes(*args)
                return getattr(torch_kernels, name)(*args, **kwargs)

        return run


def _with_counts_of_tiles(*args: Any) -> tuple[Any, ...]:
    """Arguments of composite_bwd in PyTorch after composite_fwd in Triton, which has other lists."""
    from ..kernels_torch.compositing import count_passed

    splats, backgrounds, intersections, transmittances, last_ids, v_colors, v_alphas, sums, settings, _ = args
    counts = count_passed(splats, intersections, last_ids, settings)
    return splats, backgrounds, intersections, transmittances, counts, v_colors, v_alphas, sums, settings, None


def _with_natural_slopes(*args: Any) -> tuple[Any, ...]:
    """Arguments of composite_gradients in PyTorch after composite_bwd in Triton, whose slopes are those of log2."""
    from ..kernels_torch import sum_columns

    sums, conics, opacities, n_features, settings = args
    sums = sums.clone()
    sums[:, sum_columns(n_features, absgrad=False) :] *= math.log(2.0)
    return sums, conics, opacities, n_features, settings


_nothing = contextlib.nullcontext()


def full_precision(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Returns a context in which autocast is off."""
    kind = device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return _nothing
    return torch.autocast(kind, enabled=False)
