"""Emitters of exp2, exp, log2, log and rsqrt.

Maximum errors over all fp32 arguments, and over 8 million fp64 arguments, on both levels of x86-64.
`tests/triton_cpu/sweep_math.py` prints them, and `test_emit_math.py` checks a part of them.

| function | fp32, ulp | fp64, ulp |
| --- | --- | --- |
| exp2 | 0.92 | 0.90 |
| exp | 0.99 | 0.97 |
| log2 | 0.99 | 0.98 |
| log | 0.85 | 0.81 |
| rsqrt | 1.50 | 1.50 |

Subnormal numbers, infinities and NaN follow IEEE 754. exp2 of an integer and log2 of a power of two are exact. Results
do not depend on the features of the CPU.
"""

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

from . import polynomials
from .code import Code
from .emit_arithmetic import FLAGS, map_float
from .emitter import Emitter, emits, intrinsic
from .halves import constant, shift
from .ttir import Operation
from .types import Type
from .values import Value


class Format(NamedTuple):
    """A floating-point format, and constants for argument reduction.

    2^x rounds to zero below `lowest`. ln 2 and 1 / ln 2 are split in two parts. `ln2_high` times an exponent is exact.
    """

    integer: str
    mantissa: int
    bias: int
    lowest: float
    ln2_high: float
    ln2_low: float
    log2e_high: float
    log2e_low: float


FORMATS = {
    "f32": Format(
        "i32", 23, 127, -151.0, 0.693145751953125, 1.428606765330187e-06, 1.4426950216293335, 1.925963033500011e-08
    ),
    "f64": Format(
        "i64", 52, 1023, -1076.0, 0.6931471803691238, 1.9082149292705877e-10, 1.4426950408889634, 2.0355273740931033e-17
    ),
}


@emits("math.exp2", "math.exp", "math.log2", "math.log", "math.rsqrt", attributes=FLAGS)
def emit_function(e: Emitter, operation: Operation) -> Value:
    functions = {"math.exp2": exp2, "math.exp": exp, "math.log2": log2, "math.log": log, "math.rsqrt": rsqrt}
    return map_float(e, operation, lambda t, x: functions[operation.name](e, t, x))


def rsqrt(e: Emitter, type: Type, x: str) -> str:
    one, root = constant(e.code, type, 1.0), intrinsic(e.code, "sqrt", type, x)
    return e.code.pure(f"fdiv {type.llvm} {one}, {root}")


def exp2(e: Emitter, type: Type, x: str) -> str:
    """Computes 2^x = 2^n (1 + f q(f)), where n is the integer closest to x, and f = x - n."""
    code, form = e.code, FORMATS[type.element]
    if not _has_scalef(e, type):
        x = _clamp(code, type, x, form.lowest, form.bias + 2.0)
    n = intrinsic(code, "nearbyint", type, x)
    f = code.pure(f"fsub {type.llvm} {x}, {n}")
    q = _polynomial(code, type, f, polynomials.EXP2[type.element])
    return _scale(e, type, _fma(code, type, q, f, constant(code, type, 1.0)), n)


def exp(e: Emitter, type: Type, x: str) -> str:
    """Computes e^x = 2^n (1 + r + r^2 q(r)), where n is the integer closest to x / ln 2, and r = x - n ln 2."""
    code, form = e.code, FORMATS[type.element]
    x = _clamp(code, type, x, form.lowest * math.log(2), (form.bias + 2.0) * math.log(2))
    n = intrinsic(code, "nearbyint", type, _multiply(code, type, x, constant(code, type, form.log2e_high)))
    r = _fma(code, type, n, constant(code, type, -form.ln2_high), x)
    r = _fma(code, type, n, constant(code, type, -form.ln2_low), r)
    q = _polynomial(code, type, r, polynomials.EXP[type.element])
    expm1 = _fma(code, type, _multiply(code, type, r, r), q, r)
    return _scale(e, type, code.pure(f"fadd {type.llvm} {expm1}, {constant(code, type, 1.0)}"), n)


def log2(e: Emitter, type: Type, x: str) -> str:
    """Computes log2(x) = n + log2(1 + t), where x = 2^n (1 + t), and 1 + t is between sqrt(1/2) and sqrt(2)."""
    code, form = e.code, FORMATS[type.element]
    n, t = _exponent_and_rest(code, type, x)
    q = _polynomial(code, type, t, polynomials.LOG2[type.element])
    square = _multiply(code, type, _multiply(code, type, t, t), q)
    small = _fma(code, type, t, constant(code, type, form.log2e_low), square)
    whole = _fma(code, type, t, constant(code, type, form.log2e_high), small)
    return _logarithm_of_special(code, type, x, code.pure(f"fadd {type.llvm} {whole}, {n}"))


def log(e: Emitter, type: Type, x: str) -> str:
    """Computes ln(x) = n ln 2 + ln(1 + t), with n and t as for log2."""
    code, form = e.code, FORMATS[type.element]
    n, t = _exponent_and_rest(code, type, x)
    q = _polynomial(code, type, t, polynomials.LOG[type.element])
    square = _multiply(code, type, t, t)
    small = _fma(code, type, square, q, _multiply(code, type, n, constant(code, type, form.ln2_low)))
    rest = code.pure(f"fadd {type.llvm} {t}, {small}")
    return _logarithm_of_special(code, type, x, _fma(code, type, n, constant(code, type, form.ln2_high), rest))


def _clamp(code: Code, type: Type, x: str, low: float, high: float) -> str:
    """Computes min(max(x, low), high). NaN stays NaN."""
    booleans = type.with_element("i1").llvm
    for predicate, bound in (("ogt", constant(code, type, high)), ("olt", constant(code, type, low))):
        beyond = code.pure(f"fcmp {predicate} {type.llvm} {x}, {bound}")
        x = code.pure(f"select {booleans} {beyond}, {type.llvm} {bound}, {type.llvm} {x}")
    return x


def _has_scalef(e: Emitter, type: Type) -> bool:
    """Returns whether one instruction computes x 2^n, for any n. With n = -inf or inf, it maps NaN to 0 or inf."""
    return e.target.avx512 and type.element == "f32" and type.lanes == 16 and type.shape is not None


def _scale(e: Emitter, type: Type, x: str, n: str) -> str:
    """Computes x 2^n for an integer n in the range that `exp2` clamps to, or with `_has_scalef` for any integer n. A
    subnormal result is rounded only once."""
    code, form = e.code, FORMATS[type.element]
    if _has_scalef(e, type):
        arguments = [(type.llvm, x), (type.llvm, n), (type.llvm, "zeroinitializer"), ("i16", "-1"), ("i32", "4")]
        return code.pure(code.call("llvm.x86.avx512.mask.scalef.ps.512", type.llvm, arguments))
    integers = type.with_element(form.integer)
    exponent = code.pure(f"fptosi {type.llvm} {n} to {integers.llvm}")
    # Two multiplications by powers of two. Only the second one can round.
    half = shift(code, "ashr", integers, exponent, 1)
    for part in (half, code.pure(f"sub {integers.llvm} {exponent}, {half}")):
        biased = code.pure(f"add {integers.llvm} {part}, {constant(code, integers, form.bias)}")
        shifted = shift(code, "shl", integers, biased, form.mantissa)
        x = _multiply(code, type, x, code.pure(f"bitcast {integers.llvm} {shifted} to {type.llvm}"))
    return x


def _exponent_and_rest(code: Code, type: Type, x: str) -> tuple[str, str]:
    """Returns n and t such that x = 2^n (1 + t) with 1 + t between sqrt(1/2) and sqrt(2), for positive finite x."""
    form = FORMATS[type.element]
    integers, booleans = type.with_element(form.integer), type.with_element("i1").llvm
    smallest_normal = constant(code, type, 2.0 ** (1 - form.bias))
    subnormal = code.pure(f"fcmp olt {type.llvm} {x}, {smallest_normal}")
    scaled = _multiply(code, type, x, constant(code, type, 2.0**form.mantissa))
    normal = code.pure(f"select {booleans} {subnormal}, {type.llvm} {scaled}, {type.llvm} {x}")
    bits = code.pure(f"bitcast {type.llvm} {normal} to {integers.llvm}")
    root = constant(code, integers, _bits(math.sqrt(0.5), type.element))
    above_root = code.pure(f"sub {integers.llvm} {bits}, {root}")
    exponent = shift(code, "ashr", integers, above_root, form.mantissa)
    moved = code.pure(f"sub {integers.llvm} {bits}, {shift(code, 'shl', integers, exponent, form.mantissa)}")
    rest = code.pure(f"fsub {type.llvm} " + code.pure(f"bitcast {integers.llvm} {moved} to {type.llvm}")
                     + f", {constant(code, type, 1.0)}")  # fmt: skip
    n = code.pure(f"sitofp {integers.llvm} {exponent} to {type.llvm}")
    less = code.pure(f"fsub {type.llvm} {n}, {constant(code, type, float(form.mantissa))}")
    return code.pure(f"select {booleans} {subnormal}, {type.llvm} {less}, {type.llvm} {n}"), rest


def _logarithm_of_special(code: Code, type: Type, x: str, result: str) -> str:
    """Returns ``result`` for positive finite x, -inf for 0, NaN for negative x, and x for infinity and NaN."""
    booleans = type.with_element("i1").llvm
    infinity, zero, less, nan = (constant(code, type, value) for value in (math.inf, 0.0, -math.inf, math.nan))
    for predicate, bound, value in (("oeq", zero, less), ("olt", zero, nan), ("ueq", infinity, x)):
        case = code.pure(f"fcmp {predicate} {type.llvm} {x}, {bound}")
        result = code.pure(f"select {booleans} {case}, {type.llvm} {value}, {type.llvm} {result}")
    return result


def _polynomial(code: Code, type: Type, x: str, coefficients: Sequence[float]) -> str:
    """Evaluates a polynomial by Horner's scheme with fused multiply-adds."""
    result = constant(code, type, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result = _fma(code, type, result, x, constant(code, type, coefficient))
    return result


def _fma(code: Code, type: Type, a: str, b: str, c: str) -> str:
    return intrinsic(code, "fma", type, a, b, c)


def _multiply(code: Code, type: Type, a: str, b: str) -> str:
    return code.pure(f"fmul {type.llvm} {a}, {b}")


def _bits(value: float, element: str) -> int:
    single = element == "f32"
    bits: int = struct.unpack("<i" if single else "<q", struct.pack("<f" if single else "<d", value))[0]
    return bits
