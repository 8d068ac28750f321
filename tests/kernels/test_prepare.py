"""Launches by a key: what is compiled once more, what is not, and what is still checked."""

import re
import sys
import threading
import types

import pytest
import torch

pytest.importorskip("triton")
import triton.language as tl

from tsplat import triton_cpu
from tsplat.errors import BackendError, UnsupportedError
from tsplat.gpu_driver import DriverError
from tsplat.kernels.launch import Int, kernel
from tsplat.kernels.prepare import Notice, prepare
from tsplat.runtime.backend import gpu_driver

pytestmark = pytest.mark.triton


@kernel(strided=("a",))
def _sum_kernel(
    a,  # two values, `step` apart
    b,  # [1] or None
    out,  # [1], output
    step: "Int", x: tl.float64,
    N: tl.constexpr, TWICE: tl.constexpr,
):  # fmt: skip
    total = (tl.load(a) + tl.load(a + step)).to(tl.float64) + x + N
    if b is not None:
        total += tl.load(b).to(tl.float64)
    if TWICE:
        total *= 2
    tl.store(out, total)


def total(a, b=None, x=0.0, n=0, twice=False, out=None, **options):
    out = torch.zeros(1, dtype=torch.float64) if out is None else out
    _sum_kernel.launch(1, a=a, b=b, out=out, step=a.stride(0), x=x, N=n, TWICE=twice, **options)
    return out.item()


@pytest.fixture
def prepared(monkeypatch):
    """What was prepared in the test."""
    found = {}
    monkeypatch.setattr("tsplat.kernels.launch.compiled", found)
    return found


def test_each_kind_of_launch_is_prepared_once(prepared):
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([10.0])
    for _ in range(2):
        assert total(a) == 3
        assert total(a, x=0.5) == 3.5  # a number is not part of the key
        assert total(a, b) == 13
        assert total(a.double(), b.half()) == 13
        assert total(a, n=1) == 4
        assert total(a, twice=True) == 6
        assert total(a, twice=1, num_warps=2) == 6  # options are for GPUs
    assert len(prepared) == 6


def test_unknown_arguments_are_refused(prepared):
    with pytest.raises(TypeError, match="_sum_kernel: unknown arguments \\['M'\\]"):
        total(torch.tensor([1.0, 2.0]), M=1)
    with pytest.raises(KeyError, match="TWICE"):
        _sum_kernel.launch(1, a=torch.ones(2), b=None, out=torch.zeros(1), step=1, x=0.0, N=0)


def test_each_launch_is_observed(prepared, monkeypatch):
    """By the kernel, the number of programs, and the arguments and options that differ from the defaults."""
    seen, prepare = [], triton_cpu.prepare
    monkeypatch.setattr("tsplat.kernels.launch.observer", lambda *launch: seen.append(launch))
    monkeypatch.setattr("tsplat.triton_cpu.prepare", lambda *arguments: (seen.append(None), prepare(*arguments))[1])
    a = torch.tensor([1.0, 2.0])
    assert total(a, num_warps=4) == total(a, num_warps=2) == 3
    (first, *arguments), compiled, (*second, options) = seen
    assert (first, compiled, second) == (_sum_kernel, None, [_sum_kernel, 1])
    assert arguments[0] == 1
    assert arguments[1].keys() == options.keys() - {"num_warps"} == {"a", "b", "out", "step", "x", "N", "TWICE"}


def test_values_follow_their_tensors(prepared):
    for value in range(5):
        assert total(torch.full((2,), float(value))) == 2 * value


@pytest.mark.parametrize("n_before", [0, 1])
def test_strides_are_checked_in_every_launch(prepared, n_before):
    a, out = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.zeros(2, 2, dtype=torch.float64)
    for _ in range(n_before):
        total(a[0], out=out[0, :1])
    assert total(a[:, 1]) == 6  # declared as strided
    with pytest.raises(ValueError, match=r"_sum_kernel: out \(2,\) has strides \(2,\)"):
        total(a[0], out=out[:, 0])


def test_other_devices_are_refused():
    with pytest.raises(TypeError, match="on the CPU"):
        total(torch.ones(2), out=torch.zeros(1, device="meta"))


@pytest.mark.parametrize("long", [True, False])
def test_long_compilation_is_said_once(long, prepared, monkeypatch, caplog):
    """While it lasts: the body of a compilation waits for the line."""
    monkeypatch.setattr("tsplat.kernels.prepare.PATIENCE", 0.0 if long else 60.0)
    notice, said = Notice(), threading.Event()
    monkeypatch.setattr("tsplat.kernels.prepare._notice", notice)
    caplog.handler.addFilter(lambda record: said.set() or True)
    prepare = triton_cpu.prepare

    def slowly(*arguments):
        assert said.wait(30 if long else 0) == long
        return prepare(*arguments)

    monkeypatch.setattr("tsplat.triton_cpu.prepare", slowly)
    a = torch.tensor([1.0, 2.0])
    assert total(a) == 3
    assert total(a, n=1) == 4
    assert total(a) == 3
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == long
    assert all(re.match("tsplat: compiling kernels for new settings, .* find them in /", line) for line in lines)


def test_later_compilation_is_said_briefly(caplog):
    notice = Notice()
    for _ in range(2):
        notice._watch(threading.Event(), 0.0)
        notice._said = False
    first, second = (record.getMessage() for record in caplog.records)
    assert "find them in /" in first
    assert second == "tsplat: compiling more kernels"


def test_a_cache_that_cannot_be_written_is_no_place_of_later_runs(prepared, monkeypatch, caplog, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "cache"))
    Notice()._watch(threading.Event(), 0.0)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "find them" not in line
    assert re.search(r"later runs compile again, as they cannot be saved: .*file.*; set TRITON_CACHE_DIR", line)


def test_launches_that_were_prepared_cost_no_timer(prepared, monkeypatch):
    a = torch.tensor([1.0, 2.0])
    total(a)
    monkeypatch.setattr("tsplat.kernels.prepare._notice", None)
    assert total(a) == 3


def test_time_of_a_call_adds_up(monkeypatch):
    """Kernels that are compiled one after another count together; after a pause, the next call counts from 0."""
    clock, delays = [0.0], []

    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr("tsplat.triton_cpu.start_thread", lambda _watch, arguments: delays.append(arguments[1]))
    notice = Notice()
    for took, waited in ((0.5, 1.0), (1.0, 1.0), (1.0, 60.0), (1.0, 0.0)):
        with notice.compiling():
            clock[0] += took
        clock[0] += waited
    assert delays == [2.0, 1.5, 0.5, 2.0]


def test_errors_of_the_gpus_driver_say_what_to_do(monkeypatch):
    def fail(*_):
        raise DriverError("the driver is too old; update it")

    monkeypatch.setattr("tsplat.gpu_driver.find", lambda _number: None)
    monkeypatch.setattr("tsplat.gpu_driver.prepare", fail)
    with pytest.raises(BackendError, match=r"^backend: 'triton' cannot run .* update it; or use backend='torch'"):
        prepare(_sum_kernel, 0, {})


def test_a_triton_without_what_gpus_need_is_said(monkeypatch):
    """It does not keep CPUs from running kernels."""
    monkeypatch.delattr("tsplat.gpu_driver")
    monkeypatch.setitem(sys.modules, "tsplat.gpu_driver", None)
    with pytest.raises(
        BackendError, match=r"Triton \S+ on a GPU \(.*gpu_driver.*\); install Triton 3\.5 to 3\.9, or use"
    ):
        prepare(_sum_kernel, 0, {})
    version, problem = gpu_driver()
    assert version is None and problem.startswith("tsplat cannot launch kernels of this version of Triton on GPUs")
    assert total(torch.tensor([1.0, 2.0])) == 3


def test_launches_of_more_threads_than_hip_has_are_refused(prepared, monkeypatch):
    launched = []
    monkeypatch.setattr("tsplat.kernels.launch.vendor", lambda _tensor: "amd")
    monkeypatch.setattr("tsplat.kernels.launch.current_gpu", lambda _tensor: 0)
    monkeypatch.setattr(
        "tsplat.kernels.launch.prepare", lambda *_: lambda n_programs, _values: launched.append(n_programs)
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: types.SimpleNamespace(warp_size=64))
    tensors = dict(a=torch.zeros(2), b=None, out=torch.zeros(1, dtype=torch.float64), step=1, x=0.0, N=0, TWICE=False)
    most = (2**32 - 1) // 64
    for options, limit in ((dict(num_warps=2), most // 2), (dict(num_warps=1), most), ({}, most // 4)):
        _sum_kernel.launch(limit, **tensors, **options)
        assert launched.pop() == limit
        with pytest.raises(
            UnsupportedError, match=r"^width: [\d,]+ programs of (64|128|256) threads are more than HIP"
        ):
            _sum_kernel.launch(limit + 1, **tensors, **options)
        assert not launched
