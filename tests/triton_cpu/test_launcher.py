"""Arguments of launches: constants, scalars, defaults, options, and errors."""

import math

import pytest
import torch
import triton
import triton.language as tl

from tsplat.triton_cpu import TritonCPUError, launch, launcher


@triton.jit
def _scalars_kernel(out, small, large, f, flag, nothing, N: tl.constexpr = 4, F: tl.constexpr = 0.5):
    tl.store(out, small.to(tl.float64))
    tl.store(out + 1, large.to(tl.float64))
    tl.store(out + 2, f.to(tl.float64))
    tl.store(out + 3, flag.to(tl.float64))
    tl.store(out + 4, N * 1.0)
    tl.store(out + 5, F)
    if nothing is not None:
        tl.store(out + 6, nothing)


@pytest.mark.parametrize("small", [0, 1, -1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("large", [16, 2**31, -(2**31) - 1, 2**53])
def test_scalars(small, large):
    out = torch.zeros(7, dtype=torch.float64)
    launch(_scalars_kernel, (1,), (out, small, large, 0.1, True, None))
    assert out.tolist() == [small, large, float(torch.tensor(0.1)), 1, 4, 0.5, 0]
    launch(_scalars_kernel, (1,), (out, small, large), {"f": -2.5, "flag": False, "nothing": 3.0, "N": 2, "F": 1.5})
    assert out.tolist() == [small, large, -2.5, 0, 2, 1.5, 3]


def test_integers_are_not_specialized_on_their_value():
    out = torch.zeros(7, dtype=torch.float64)
    launch(_scalars_kernel, (1,), (out, 1, 16, 0.1, True, None))
    n = len(launcher._launchers[id(_scalars_kernel)].compiled)
    for small, large in ((2, 17), (-5, 0), (1, 32)):
        launch(_scalars_kernel, (1,), (out, small, large, 0.1, True, None))
    assert len(launcher._launchers[id(_scalars_kernel)].compiled) == n


@triton.constexpr_function
def _inverse(x):
    return 1 / x if x else math.copysign(math.inf, x)


@triton.jit
def _constant_kernel(out, C: tl.constexpr):
    tl.store(out, _inverse(C))


def test_constants_that_compare_equal_are_told_apart():
    out = torch.zeros(1)
    for value, expected in ((0.0, math.inf), (-0.0, -math.inf), (1, 1.0), (1.0, 1.0), (2, 0.5)):
        launch(_constant_kernel, (1,), (out, value))
        assert out[0] == expected, value
    for _ in range(2):
        launch(_constant_kernel, (1,), (out, math.nan))
        assert out[0].isnan()


def test_pointer_types_are_told_apart():
    for dtype in (torch.float32, torch.float64, torch.float16):
        out = torch.zeros(1, dtype=dtype)
        launch(_constant_kernel, (1,), (out, 4))
        assert out[0] == 0.25


def test_grids():
    out = torch.zeros(6)
    launch(_count_kernel, (0,), (out,))
    launch(_count_kernel, (3, 0, 2), (out,))
    assert not out.any()
    launch(_count_kernel, [2], (out,))
    launch(_count_kernel, lambda arguments: (arguments["out"].numel(),), (out,))
    assert out.tolist() == [2, 2, 1, 1, 1, 1]


@triton.jit
def _count_kernel(out):
    i = tl.program_id(0)
    tl.store(out + i, tl.load(out + i) + 1)


def test_options_for_gpus_are_ignored():
    out = torch.zeros(1)
    launch(_constant_kernel, (1,), (out, 2), {"num_warps": 2, "num_stages": 1, "enable_fp_fusion": False})
    assert out[0] == 0.5


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((torch.zeros(1),), {}, "no value for parameter 'C'"),
        ((torch.zeros(1), 1, 2), {}, "3 arguments for 2 parameters"),
        ((torch.zeros(1), 1), {"color": 2}, "no parameter or option 'color'"),
        (("text", 1), {}, "arguments of type str are not supported"),
        ((torch.zeros(1, dtype=torch.complex64), 1), {}, "tensors of torch.complex64 are"),
        ((torch.zeros(1, device="meta"), 1), {}, "expected tensors on the CPU, found a tensor on meta"),
    ],
)
def test_invalid_arguments(args, kwargs, message):
    with pytest.raises(TypeError, match=message):
        launch(_constant_kernel, (1,), args, kwargs)


def test_functions_that_are_not_kernels():
    with pytest.raises(TypeError, match=r"decorated with triton\.jit"):
        launch(print, (1,))


FACTOR = tl.constexpr(3.0)


@triton.jit
def _global_kernel(out):
    tl.store(out, FACTOR * 2.0)


def test_a_global_that_changes_is_an_error(monkeypatch):
    out = torch.zeros(1)
    launch(_global_kernel, (1,), (out,))
    assert out[0] == 6
    monkeypatch.setitem(globals(), "FACTOR", tl.constexpr(4.0))
    with pytest.raises(TritonCPUError, match=r"global FACTOR was .*3\.0.* is .*4\.0"):
        launch(_global_kernel, (1,), (out,))


def test_modes_of_the_calling_thread_do_not_change_results():
    tiny = torch.full((16,), 1e-40)
    out = torch.zeros(16)
    torch.set_flush_denormal(True)
    try:
        launch(_double_kernel, (1,), (tiny, out))
        flushed = tiny * 2
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(out, tiny * 2)
    assert not flushed.any()


@triton.jit
def _double_kernel(a, out):
    i = tl.arange(0, 16)
    tl.store(out + i, tl.load(a + i) * 2.0)
