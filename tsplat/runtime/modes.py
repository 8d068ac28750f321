"""Saves and restores PyTorch's modes, such as grad mode and autocast."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def restored_modes() -> Iterator[None]:
    """Restores PyTorch's modes at the end of a block.

    These are grad mode, autocast of each device type, multithreading of backward passes, and the stack of
    ``TorchFunctionMode``. An interrupt inside of PyTorch's context managers, such as at the end of ``torch.no_grad``,
    can leave them changed.
    """
    records_gradients = torch.is_grad_enabled()
    autocast = {t: torch.is_autocast_enabled(t) for t in torch._C._autocast_supported_devices()}
    multithreaded = torch._C._is_multithreading_enabled()
    observers = [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]
    try:
        yield
    finally:
        for _ in range(torch._C._len_torch_function_stack()):
            torch._C._pop_torch_function_stack()
        for observer in observers:
            torch._C._push_on_torch_function_stack(observer)
        for device_type, is_on in autocast.items():
            if torch.is_autocast_enabled(device_type) != is_on:
                torch.set_autocast_enabled(device_type, is_on)
        torch._C._set_multithreading_enabled(multithreaded)
        torch.set_grad_enabled(records_gradients)
