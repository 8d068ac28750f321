"""Captures in CUDA graphs, with a log of PyTorch's calls in place of a GPU."""

import contextlib
import gc
import signal
import types

import pytest
import torch

from tsplat.runtime import cuda_graphs
from tsplat.runtime.cuda_graphs import GraphRecorder


@pytest.fixture
def log(monkeypatch):
    """Returns what PyTorch is called for. Its graphs fail to be captured while ``log.fails`` is set."""

    class Log(list):
        fails = False

    calls = Log()

    class Graph:
        def capture_begin(self, pool=None, capture_error_mode="global"):
            calls.append("begin")

        def capture_end(self):
            calls.append("end")
            if calls.fails:
                calls.fails = False
                raise RuntimeError("operation failed due to a previous error during capture")

        def replay(self):
            pass

    def stream(name):
        return types.SimpleNamespace(wait_stream=lambda other: calls.append(f"{name} waits"))

    def note(name):
        return lambda *_args, **_options: calls.append(name)

    for name, value in {
        "CUDAGraph": Graph,
        "current_device": lambda: 0,
        "current_stream": lambda: stream("current"),
        "stream": lambda _stream: contextlib.nullcontext(),
        "graph_pool_handle": lambda: (0, 1),
        "empty_cache": note("empty"),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", note("end of allocations"), raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", note("release"), raising=False)
    monkeypatch.setattr(torch, "zeros", note("zeros"))
    monkeypatch.setattr(cuda_graphs, "_stream_of", lambda _device: stream("own"))
    return calls


def test_a_capture(log):
    results, _ = GraphRecorder().record(lambda: log.append("call") or 3)
    assert results == 3
    assert log[-5:] == ["own waits", "begin", "call", "end", "current waits"]


def test_memory_is_free_for_a_capture(log):
    """PyTorch frees what graphs that are gone had, and what calls of other streams had, only if memory is short outside
    of captures."""
    recorder = GraphRecorder()
    assert log == ["empty"]
    recorder.record(lambda: None)
    recorder.record(lambda: None)
    assert log.count("empty") == 1


def test_nothing_is_collected_in_a_capture(log):
    """What is collected may have graphs, and to destroy one invalidates a capture."""
    assert gc.isenabled()
    assert GraphRecorder().record(gc.isenabled)[0] is False
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        GraphRecorder().record(lambda: 1 / 0)
    assert gc.isenabled()
    gc.disable()
    try:
        GraphRecorder().record(gc.isenabled)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_failed_capture_says_why_and_is_ended(log):
    """PyTorch does not end it: no memory would be freed when it is short, and random numbers would raise an error."""

    def fail():
        log.fails = True
        raise RuntimeError("operation not permitted when stream is capturing")

    recorder = GraphRecorder()
    log.clear()
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        recorder.record(fail)
    ended = ["end", "end of allocations", "release"]
    assert log == ["own waits", "begin", *ended, "begin", "zeros", "end", "current waits"]
    log.clear()
    recorder.record(lambda: None)
    assert log == ["own waits", "begin", "end", "current waits"]


def test_a_capture_that_fails_at_its_end(log):
    def fail():
        log.fails = True

    with pytest.raises(RuntimeError, match="previous error during capture"):
        GraphRecorder().record(fail)
    assert "release" in log and log[-1] == "current waits"


def test_an_error_of_python_leaves_a_capture_intact(log):
    with pytest.raises(ZeroDivisionError):
        GraphRecorder().record(lambda: 1 / 0)
    assert log[-3:] == ["begin", "end", "current waits"]


def test_an_interrupt_at_the_end_of_a_capture_comes_after_it(log, monkeypatch):
    """Where it would skip the ends of the blocks."""

    @contextlib.contextmanager
    def interrupted(inner=cuda_graphs._without_collections):
        with inner():
            yield
            signal.raise_signal(signal.SIGINT)
            log.append("end of the block")

    monkeypatch.setattr(cuda_graphs, "_without_collections", interrupted)
    with pytest.raises(KeyboardInterrupt):
        GraphRecorder().record(lambda: None)
    assert log[-2:] == ["end of the block", "current waits"] and gc.isenabled()
