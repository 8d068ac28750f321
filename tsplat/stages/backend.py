"""Which implementation of the launchers runs: Triton kernels or vectorized PyTorch, chosen by device.

`kernels` and `host` offer the same functions with the same signatures; :func:`launchers` returns one of them. Nothing
is imported before it is needed, so that `import tsplat` neither needs Triton nor compiles anything.
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
from ..errors import BackendError

Backend = Literal["auto", "triton", "torch", "reference"]
BACKENDS = ("auto", "triton", "torch", "reference")


@functools.cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def triton_is_interpreted() -> bool:
    """Whether Triton runs kernels in Python, on any device (TRITON_INTERPRET=1 when it was first imported)."""
    if not has_triton():
        return False
    import triton

    return bool(triton.knobs.runtime.interpret)


def choose(device: torch.device, backend: str = "auto") -> tuple[str, str]:
    """The backend that will run for tensors on a device, and why.

    Raises:
        BackendError: `backend="triton"` cannot run there.
    """
    check_choice("backend", backend, BACKENDS)
    if backend in ("torch", "reference"):
        return backend, "asked for"
    if backend == "triton":
        if not has_triton():
            raise BackendError(
                "backend: 'triton' needs the triton package; pip install triton (Linux), or backend='torch'"
            )
        if device.type != "cuda" and not triton_is_interpreted():
            raise BackendError(
                f"backend: 'triton' needs CUDA or ROCm tensors, found {device}; use .cuda() or backend='torch'"
            )
        return "triton", "asked for"
    if device.type != "cuda":
        return "torch", f"Triton kernels do not run on {device.type}"
    if not has_triton():
        return "torch", "the triton package is not installed, which is much slower"
    return "triton", "a GPU and Triton are there"


def launchers(device: torch.device, backend: str = "auto") -> ModuleType:
    """The module whose launchers run for tensors on a device."""
    chosen, reason = choose(device, backend)
    if chosen == "torch" and device.type == "cuda" and backend == "auto":
        warnings.warn(f"tsplat runs without kernels on {device}: {reason}", stacklevel=3)
    return importlib.import_module(
        f"{__package__.split('.')[0]}.{'kernels' if chosen == 'triton' else 'kernels_torch'}"
    )


def full_precision(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """A region that autocast leaves alone."""
    if not torch.amp.is_autocast_available(device.type):
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)
