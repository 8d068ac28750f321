"""What cannot be compiled is an error that names it, never a wrong number."""

import builtins
import re
import sys

import pytest
import torch
import triton
import triton.language as tl
from triton.compiler.errors import CompilationError, CompileTimeAssertionFailure

from tsplat.triton_cpu import (
    MissingDependencyError,
    TritonCPUError,
    UnsupportedMachineError,
    UnsupportedOperationError,
    launch,
    target,
)
from tsplat.triton_cpu.translate import translate

TTIR = """
module {
  tt.func public @kernel(%p: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %n: i32) attributes {noinline = false} {
    %0 = tt.load %p : !tt.ptr<f32>
    OPERATION
    tt.store %p, %0 : !tt.ptr<f32>
    tt.return
  }
}
"""


@triton.jit
def _atomic_kernel(out):
    tl.atomic_add(out, 1.0)


@triton.jit
def _sine_kernel(out):
    tl.store(out, tl.sin(tl.load(out)))


@pytest.mark.parametrize(("kernel", "operation"), [(_atomic_kernel, "tt.atomic_rmw"), (_sine_kernel, "math.sin")])
def test_unknown_operations(kernel, operation):
    with pytest.raises(UnsupportedOperationError) as caught:
        launch(kernel, (1,), (torch.zeros(1),))
    assert caught.value.operation == operation
    assert caught.value.kernel == kernel.__name__
    assert caught.value.triton_version == triton.__version__
    for part in (operation, kernel.__name__, triton.__version__):
        assert part in str(caught.value)
    assert isinstance(caught.value, TritonCPUError)


@pytest.mark.parametrize(
    ("line", "operation"),
    [
        ("%1 = tt.load %p cacheModifier = ca evictionPolicy = evict_last : !tt.ptr<f32>", None),
        ("%1 = tt.load %p zeroOut = true : !tt.ptr<f32>", "tt.load"),
        ("%1 = arith.addf %0, %0 fastmath<fast> : f32", None),
        ("%1 = arith.addf %0, %0 towardzero : f32", "arith.addf"),
        ("%1 = arith.newf %0, %0 : f32", "arith.newf"),
        ("%1 = arith.addf %0, %unknown : f32", "arith.addf"),
        ("%1 = tt.fp_to_fp %0, rounding = rtz : f32 -> f16", "tt.fp_to_fp"),
        ("%1 = tt.fp_to_fp %0, rounding = rtne : f32 -> f8E5M2", "(parser)"),
        ("%1, %2 = tt.pair %0 : f32", "tt.pair"),
        ("scf.for unsigned %i = %n to %n step %n : i32 {\n}", "scf.for"),
        ("%1:2 = tt.load %p : !tt.ptr<f32>", "tt.load"),
        ('cf.assert %n, "message"', "cf.assert"),
        ("cf.br ^bb7", "(blocks)"),
        ("scf.while : {\nscf.condition(%n)\n} do {\nscf.yield\n}", "(parser)"),
        ("}", "(blocks)"),
    ],
)
def test_unknown_forms_of_known_operations(line, operation):
    text = TTIR.replace("OPERATION", line)
    host = target.host_target()
    if operation is None:
        assert "define" in translate(text, "symbol", "kernel", "1.2", "x86_64", host)
        return
    with pytest.raises(UnsupportedOperationError, match=r"kernel kernel: .*Triton 1\.2") as caught:
        translate(text, "symbol", "kernel", "1.2", "x86_64", host)
    assert caught.value.operation == operation


def test_an_empty_module():
    with pytest.raises(
        UnsupportedOperationError, match=r"kernel kernel: cannot compile operation \(parser\)"
    ) as caught:
        translate("module {\n}\n", "symbol", "kernel", "1.2", "x86_64", target.host_target())
    assert isinstance(caught.value.__cause__, IndexError)


@triton.jit
def _assert_kernel(out, C: tl.constexpr):
    tl.static_assert(C > 0, "C must be positive")
    tl.store(out, tl.unknown(C))


def test_errors_of_the_frontend():
    """What the frontend raises is an error of the compiler, unless the kernel rejects its arguments."""
    with pytest.raises(UnsupportedOperationError, match=r"(?s)kernel _assert_kernel: .*unknown") as caught:
        launch(_assert_kernel, (1,), (torch.zeros(1), 1))
    assert triton.__version__ in str(caught.value)
    assert isinstance(caught.value.__cause__, CompilationError)
    with pytest.raises(CompileTimeAssertionFailure, match="C must be positive"):
        launch(_assert_kernel, (1,), (torch.zeros(1), 0))


def test_missing_llvmlite(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("llvmlite"):
            raise ModuleNotFoundError(name, name="llvmlite")
        return real(name, *args, **kwargs)

    for name in [name for name in sys.modules if name.startswith("llvmlite")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=r"pip install 'tsplat\[cpu\]'") as caught:
        target.import_llvm()
    assert caught.value.not_installed


@pytest.mark.parametrize(
    "error",
    [
        OSError("Could not find/load shared object file libllvmlite.so"),
        ImportError("undefined symbol"),
        ModuleNotFoundError("No module named 'llvmlite.binding.ffi'", name="llvmlite.binding.ffi"),
        AttributeError("function 'LLVMPY_Init' not found"),
        RuntimeError("LLVM is of another version"),
    ],
)
def test_llvmlite_that_cannot_be_loaded(monkeypatch, error):
    real = builtins.__import__

    def broken(name, *args, **kwargs):
        if name.startswith("llvmlite"):
            raise error
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", broken)
    expected = rf"(?s)cannot be loaded \({type(error).__name__}: {re.escape(str(error))}\); install it again"
    with pytest.raises(MissingDependencyError, match=expected) as caught:
        target.import_llvm()
    assert not caught.value.not_installed


def test_machines_that_are_not_supported(monkeypatch):
    monkeypatch.setenv("TSPLAT_CPU", "pentium")
    with pytest.raises(
        UnsupportedMachineError, match="TSPLAT_CPU: expected one of x86-64-v4, x86-64-v3, found 'pentium'"
    ):
        target.host_target()
    target._target.cache_clear()
    monkeypatch.delenv("TSPLAT_CPU")
    monkeypatch.setattr(target, "host_features", lambda: frozenset({"avx2"}))
    monkeypatch.setattr(target.platform, "machine", lambda: "x86_64")
    with pytest.raises(UnsupportedMachineError, match="needs bmi2, f16c, fma"):
        target.host_target()
    monkeypatch.setattr(target.platform, "machine", lambda: "riscv64")
    with pytest.raises(UnsupportedMachineError, match="found riscv64"):
        target.host_target()
    target._target.cache_clear()
