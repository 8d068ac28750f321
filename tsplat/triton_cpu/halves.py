"""Conversions between half precision (fp16, bf16) and fp32, with IEEE rounding to nearest even.

LLVM's conversions to bfloat call a library function or flush subnormals, and its conversions from fp64 to fp16 call a
library function. Here, bf16 is stored as i16 and converted by integer arithmetic. fp64 is first rounded to odd in fp32,
and then to half precision, which gives the correct result.
"""

import struct

import numpy as np

from .code import Code, float_constant
from .emitter import intrinsic
from .types import HALVES, Type


def widen(code: Code, type: Type, x: str) -> str:
    """Converts a chunk of half precision to fp32. Other types do not change."""
    if type.element not in HALVES:
        return x
    wide = type.with_element("f32").llvm
    if type.element == "f16":
        return code.pure(f"fpext {type.llvm} {x} to {wide}")
    integers = type.with_element("i32")
    bits = code.pure(f"zext {type.llvm} {x} to {integers.llvm}")
    return code.pure(f"bitcast {integers.llvm} {shift(code, 'shl', integers, bits, 16)} to {wide}")


def widened(type: Type) -> Type:
    """Returns the type with half precision replaced by fp32."""
    return type.with_element("f32") if type.element in HALVES else type


def narrow(code: Code, source: Type, type: Type, x: str) -> str:
    """Rounds a chunk of fp32 or fp64 to ``type`` if it is half precision; otherwise returns the chunk."""
    if type.element not in HALVES:
        return x
    if source.element == "f64":
        x = _round_to_odd(code, source, x)
        source = source.with_element("f32")
    if type.element == "f16":
        return code.pure(f"fptrunc {source.llvm} {x} to {type.llvm}")
    integers, booleans = source.with_element("i32"), source.with_element("i1").llvm
    bits = code.pure(f"bitcast {source.llvm} {x} to {integers.llvm}")
    # Round to nearest even: add 0x7FFF, plus the last bit that is kept, and truncate.
    last = code.pure(f"and {integers.llvm} {shift(code, 'lshr', integers, bits, 16)}, {constant(code, integers, 1)}")
    half = code.pure(f"add {integers.llvm} {last}, {constant(code, integers, 0x7FFF)}")
    nearest = code.pure(f"add {integers.llvm} {bits}, {half}")
    is_nan = code.pure(f"fcmp uno {source.llvm} {x}, {x}")
    quiet = code.pure(f"or {integers.llvm} {bits}, {constant(code, integers, 0x400000)}")
    chosen = code.pure(f"select {booleans} {is_nan}, {integers.llvm} {quiet}, {integers.llvm} {nearest}")
    return code.pure(f"trunc {integers.llvm} {shift(code, 'lshr', integers, chosen, 16)} to {type.llvm}")


def _round_to_odd(code: Code, source: Type, x: str) -> str:
    """Rounds fp64 to fp32, to odd: an inexact result is the neighbor whose last bit is set."""
    single, integers, booleans = source.with_element("f32"), source.with_element("i32"), source.with_element("i1").llvm
    nearest = code.pure(f"fptrunc {source.llvm} {x} to {single.llvm}")
    bits = code.pure(f"bitcast {single.llvm} {nearest} to {integers.llvm}")
    back = code.pure(f"fpext {single.llvm} {nearest} to {source.llvm}")
    inexact = code.pure(f"fcmp one {source.llvm} {back}, {x}")
    size, exact = intrinsic(code, "fabs", source, back), intrinsic(code, "fabs", source, x)
    above = code.pure(f"fcmp ogt {source.llvm} {size}, {exact}")
    minus, zero, one = (constant(code, integers, k) for k in (-1, 0, 1))
    # Truncate toward zero, then set the last bit.
    down = code.pure(f"select {booleans} {above}, {integers.llvm} {minus}, {integers.llvm} {zero}")
    odd = code.pure(f"or {integers.llvm} {code.pure(f'add {integers.llvm} {bits}, {down}')}, {one}")
    chosen = code.pure(f"select {booleans} {inexact}, {integers.llvm} {odd}, {integers.llvm} {bits}")
    return code.pure(f"bitcast {integers.llvm} {chosen} to {single.llvm}")


def constant(code: Code, type: Type, value: float) -> str:
    """Returns a constant of an integer, f32 or f64 type, equal in all lanes."""
    if type.is_float:
        scalar = float_constant(value, type.element)
        return scalar if type.shape is None else code.splat(scalar, type.element, type.lanes)
    return code.integers(type.element, [int(value)] * type.lanes, type.shape is None)


def shift(code: Code, direction: str, type: Type, x: str, bits: int) -> str:
    return code.pure(f"{direction} {type.llvm} {x}, {constant(code, type, bits)}")


def float_text(code: Code, text: str, element: str) -> str:
    """Converts the text of a scalar constant from MLIR (a decimal number or hexadecimal bits) to LLVM."""
    unsigned, signed = {"f64": ("<Q", "<d"), "f32": ("<I", "<f"), "f16": ("<H", "<e"), "bf16": ("<I", "<f")}[element]
    if text.startswith("0x"):
        bits = int(text, 16) << (16 if element == "bf16" else 0)
        value = struct.unpack(signed, struct.pack(unsigned, bits))[0]
    else:
        value = float(text)
    if element == "f16":
        return f"0xH{int(np.float16(value).view(np.uint16)):04X}"
    if element == "bf16":  # constants of bf16 are exact in fp32
        return code.integers("i16", [int(np.float32(value).view(np.uint32)) >> 16], scalar=True)
    return float_constant(value, element)
