"""Device selection."""

import os
from typing import Literal

import torch

from ..config import Backend
from ..errors import BackendError
from ..runtime.backend import choose, set_kernel_threads


def pick_device(
    backend: Backend = "auto", device_type: Literal["auto", "cpu", "cuda"] = "auto"
) -> tuple[torch.device, str]:
    """Selects the device to run on: the GPU of the local rank, if there is one, unless `device_type` says otherwise.

    Also returns a sentence about the backend on this device and the reason for its choice. Raises BackendError if the
    backend cannot run on the device, or the device does not exist.
    """
    if device_type == "cuda" and not torch.cuda.is_available():
        raise BackendError("device: PyTorch does not find a usable GPU; choose cpu, or run tsplat doctor")
    device = torch.device("cuda" if torch.cuda.is_available() and device_type != "cpu" else "cpu")
    if device.type == "cuda" and "LOCAL_RANK" in os.environ:
        # A launcher may make only one GPU visible to each rank.
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) if torch.cuda.device_count() > 1 else 0)
        torch.cuda.set_device(device)
    name, reason = choose(device, backend)
    return device, f"backend {name} on {device}: {reason}"


def reserve_threads(device: torch.device, backend: Backend) -> None:
    """Lets kernels compiled for the CPU use all of PyTorch's threads, while PyTorch's operators use one thread.

    PyTorch's OpenMP threads spin while they wait, which takes cores from other work on a busy machine. Does nothing for
    other backends, whose operators need these threads; see `OMP_WAIT_POLICY` in docs/howto/run_on_a_cpu.md.
    """
    if device.type == "cpu" and choose(device, backend)[0] == "triton":
        set_kernel_threads()
