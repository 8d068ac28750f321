"""Formats numbers for the report of a run; missing numbers, and numbers that are not finite, become a dash."""

from typing import Any

from ...scalars import to_float
from ...support import progress

MISSING = "\N{EN DASH}"


def fixed(value: Any, spec: str, scale: float = 1.0) -> str:
    """Formats a number, multiplied by `scale`."""
    number = to_float(value)
    return MISSING if number is None else format(scale * number, spec)


def decibels(value: Any, *, infinite: bool = True) -> str:
    """Formats a PSNR. None is the infinite PSNR of equal images in `metrics.json`; if not `infinite`, it is missing."""
    return "∞" if value is None and infinite else fixed(value, ".2f")


def duration(value: Any) -> str:
    """Formats seconds, with units."""
    seconds = to_float(value)
    return MISSING if seconds is None else progress.duration(seconds)


def size(value: int | None) -> str:
    """Formats a number of bytes, with units."""
    if value is None:
        return MISSING
    return f"{value / 1e6:.1f} MB" if value >= 100_000 else f"{value / 1e3:.1f} kB"
