"""Asynchronous copies of small integer tensors from a GPU to the CPU."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def copy_async(values: Tensor) -> tuple[Tensor, Any]:
    """Starts to copy values from a GPU to pinned memory. Returns the copy, and the event after which it is valid."""
    pinned = torch.empty(values.shape, dtype=torch.int64, device="cpu", pin_memory=True)
    copy, copied = pinned.copy_(values, non_blocking=True), torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record(torch.cuda.current_stream(values.device))
    return copy, copied


def read_async(value: Tensor) -> Callable[[], int]:
    """Starts to copy a scalar, [] int64, from the device. Returns a function that waits for it and returns it."""
    if not value.is_cuda:
        return lambda: int(value)
    copy, copied = copy_async(value)

    def read() -> int:
        copied.synchronize()
        return int(copy)

    return read
