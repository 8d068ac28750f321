"""Backend selection: Triton kernels or vectorized PyTorch.

The packages ``kernels`` and ``kernels_torch`` offer the same launchers with the same signatures; :func:`launchers`
returns one of them. They are imported on first use, so that ``import tsplat`` neither needs Triton nor compiles.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import warnings
from types import ModuleType
from typing import Literal

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


def choose(device: torch.device, backend: Backend = "auto") -> tuple[Literal["triton", "torch", "reference"], str]:
    """Returns the backend that runs tensors on a device, and the reason.

    Raises:
        ArgumentError: Unknown backend.
        BackendError: ``backend="triton"`` cannot run on the device.
    """
    check_choice("backend", backend, BACKENDS)
    if backend == "torch" or backend == "reference":
        return backend, "requested"
    if backend == "triton":
        if not has_triton():
            raise BackendError(
                "backend: 'triton' needs the triton package; pip install triton (Linux), or use backend='torch'"
            )
        if device.type != "cuda" and not triton_is_interpreted():
            raise BackendError(
                f"backend: 'triton' needs CUDA or ROCm tensors, found {device}; use .cuda() or backend='torch'"
            )
        return "triton", "requested"
    if device.type != "cuda":
        return "torch", f"Triton kernels do not run on {device.type}"
    if not has_triton():
        return "torch", "the triton package is not installed, which is much slower"
    return "triton", "GPU and Triton found"


def launchers(device: torch.device, backend: Backend = "auto") -> ModuleType:
    """Returns the package whose launchers run tensors on a device."""
    chosen, reason = choose(device, backend)
    if chosen == "torch" and device.type == "cuda" and backend == "auto":
        warnings.warn(f"tsplat runs without Triton kernels on {device}: {reason}", stacklevel=3)
    return importlib.import_module("tsplat.kernels" if chosen == "triton" else "tsplat.kernels_torch")


def full_precision(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Returns a context in which autocast is off."""
    if not torch.amp.is_autocast_available(device.type):
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)
