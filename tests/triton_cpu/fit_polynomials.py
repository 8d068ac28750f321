"""Prints the coefficients in `tsplat/triton_cpu/polynomials.py`: `python -m tests.triton_cpu.fit_polynomials`.

Each polynomial interpolates its function at Chebyshev nodes; coefficients are rounded to the element type.
"""

import struct
from collections.abc import Callable

import mpmath
from mpmath import mp, mpf

mp.dps = 60

LN_2 = mpmath.log(2)
ROOT = mpmath.sqrt(2)

Function = Callable[[mpf], mpf]


def exp2_remainder(x: mpf) -> mpf:
    """(2^x - 1) / x."""
    return mpmath.expm1(x * LN_2) / x if x else LN_2


def exp_remainder(x: mpf) -> mpf:
    """(e^x - 1 - x) / x^2."""
    return (mpmath.expm1(x) - x) / x**2 if abs(x) > mpf(10) ** -20 else mpf(1) / 2


def log_remainder(x: mpf) -> mpf:
    """(ln(1 + x) - x) / x^2."""
    return (mpmath.log1p(x) - x) / x**2 if abs(x) > mpf(10) ** -20 else -mpf(1) / 2


def log2_remainder(x: mpf) -> mpf:
    """(log2(1 + x) - x / ln 2) / x^2."""
    return log_remainder(x) / LN_2


FITS: dict[str, tuple[Function, mpf, mpf, int, int]] = {
    "EXP2": (exp2_remainder, -mpf(1) / 2, mpf(1) / 2, 5, 11),
    "EXP": (exp_remainder, -LN_2 / 2, LN_2 / 2, 5, 10),
    "LOG": (log_remainder, 1 / ROOT - 1, ROOT - 1, 9, 23),
    "LOG2": (log2_remainder, 1 / ROOT - 1, ROOT - 1, 9, 23),
}
"""Function, interval, and degree in fp32 and fp64."""


def rounded(x: mpf, element: str) -> float:
    value = float(x)
    return struct.unpack("f", struct.pack("f", value))[0] if element == "f32" else value


def interpolate(function: Function, low: mpf, high: mpf, degree: int) -> list[mpf]:
    """Coefficients, constant term first, of the interpolant at Chebyshev nodes."""
    nodes = [mpmath.cos(mp.pi * (i + mpf(1) / 2) / (degree + 1)) for i in range(degree + 1)]
    nodes = [(high - low) / 2 * x + (high + low) / 2 for x in nodes]
    rows = mpmath.matrix([[x**k for k in range(degree + 1)] for x in nodes])
    return list(mpmath.lu_solve(rows, mpmath.matrix([function(x) for x in nodes])))


if __name__ == "__main__":
    for name, (function, low, high, *degrees) in FITS.items():
        for element, degree in zip(("f32", "f64"), degrees):
            coefficients = [rounded(c, element) for c in interpolate(function, low, high, degree)]
            points = [low + (high - low) * i / 500 for i in range(501)]
            error = max(abs(sum(c * x**k for k, c in enumerate(coefficients)) / function(x) - 1) for x in points)
            print(f"{name} {element}: relative error {mpmath.nstr(error, 3)}")
            print("    (" + ", ".join(repr(c) for c in coefficients) + "),")
