"""Traces. Calls that are traced are tested in tests/passes."""

import random
import signal
import sys

import pytest
import torch

from tsplat.kernels import launch
from tsplat.runtime import tracing
from tsplat.runtime.tracing import Trace


def state():
    return (
        torch.is_grad_enabled(),
        torch._C._is_multithreading_enabled(),
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
        getattr(tracing._state, "trace", None),
        tracing._lock.locked(),
        (launch.observer, launch.launch_hook, launch.slots_hook),
        signal.getsignal(signal.SIGINT),
    )


def compute():
    with torch.no_grad():
        return torch.ones(2).sin().cos() + 1


def interrupted(at):
    """Records with Ctrl-C at a call of a Python function or the end of one of C. Returns the number of these."""
    n = 0

    def count(_frame, event, _argument):
        nonlocal n
        if event in ("call", "c_return"):
            n += 1
            if n == at:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

    try:
        sys.setprofile(count)
        Trace().record(compute)
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    return n


@pytest.mark.triton
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of half-made objects of PyTorch
def test_an_interrupt_at_any_moment_leaves_nothing_that_records():
    interrupted(None)  # imports modules
    before, n_moments = state(), interrupted(None)
    for at in random.Random(0).sample(range(2, n_moments), 100):  # the first call is that of record() itself
        assert interrupted(at) == at
        assert state() == before, at
    trace = Trace()
    assert torch.equal(trace.record(compute), compute())
    assert len(trace.steps) == 4
