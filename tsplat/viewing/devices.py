"""Device selection."""

from __future__ import annotations

import os
from typing import Literal

import torch

from ..config import Backend
from ..errors import BackendError
from ..stages.backend import choose, reserve_threads_for_kernels


def pick_device(
    backend: Backend = "auto", device_type: Literal["auto", "cpu", "cuda"] = "auto"
) -> tuple[torch.device, str]:
    """Selects the device to run on: a GPU if there is one, unless `device_type` says otherwise.

    With several ranks on one machine, each rank gets the GPU numbered by its local rank.

    Kernels compiled for the CPU get all threads, and PyTorch's own operators run on one: its OpenMP threads spin while
    they wait, which on a busy machine takes the cores from everything that has work to do.

    Returns:
        The device, and a sentence that names the backend that runs on it and why.

    Raises:
        BackendError: The backend cannot run on the device, or the device does not exist.
    """
    if device_type == "cuda" and not torch.cuda.is_available():
        raise BackendError("device: PyTorch finds no usable GPU; choose cpu, or run tsplat doctor")
    device = torch.device("cuda" if torch.cuda.is_available() and device_type != "cpu" else "cpu")
    if device.type == "cuda" and "LOCAL_RANK" in os.environ:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    name, reason = choose(device, backend)
    if name == "triton" and device.type == "cpu":
        reserve_threads_for_kernels()
    return device, f"backend {name} on {device}: {reason}"
