"""PyTorch's modes are restored after interrupts inside of its own code."""

import torch
from torch.overrides import BaseTorchFunctionMode

from tsplat.runtime.modes import restored_modes


def modes():
    return (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch._C._is_multithreading_enabled(),
        torch._C._len_torch_function_stack(),
    )


def test_modes_are_restored():
    before = modes()
    with restored_modes():
        torch.set_grad_enabled(False)
        torch.set_autocast_enabled("cpu", True)
        torch._C._set_multithreading_enabled(False)
        BaseTorchFunctionMode().__enter__()
        assert modes() == (False, True, False, before[-1] + 1)
    assert modes() == before


def test_lost_modes_are_restored():
    with BaseTorchFunctionMode():
        before = modes()
        with restored_modes():
            torch._C._pop_torch_function_stack()
            assert modes() != before
        assert modes() == before
