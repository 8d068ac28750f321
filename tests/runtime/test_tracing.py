"""Traces. Calls that are traced are tested in tests/passes."""

import random
import signal
import subprocess
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


def test_a_trace_does_not_import_torch_dynamo():
    code = """import sys, torch
from tsplat.runtime.tracing import Trace
trace = Trace()
trace.record(lambda: torch.ones(2).sin())
assert [step.function.overloadpacket.__name__ for step in trace.steps if hasattr(step, "function")] == ["ones", "sin"]
assert "torch._dynamo" not in sys.modules"""
    subprocess.run([sys.executable, "-c", code], check=True)


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
