"""Checks and prints the largest errors of compiled functions: `python -m tests.triton_cpu.sweep_math [function ...]`.

Every fp32 argument, and a dense sample of fp64 arguments in long double (64 bits of mantissa on x86-64). Every CPU
level must give the same bits. Takes one to two minutes per function. `make scoreboard` runs it for exp2 and log2, the
functions of compositing.
"""

import os
import sys

import numpy as np

from tests.triton_cpu.test_emit_math import BOUNDS, EXACT, KERNELS, compute, every_fp32, fp64_sample, largest_error
from tsplat.triton_cpu.target import LEVELS, host_features

PART = 2**20
SAMPLES = 2**23


def error_on_all_levels(name, x):
    """Largest error in ulp over sorted fp32 arguments, or any fp64 arguments."""
    results = []
    for level in LEVELS:
        if host_features() >= LEVELS[level]:
            os.environ["TSPLAT_CPU"] = level
            results.append(compute(name, x))
    found = results[0]
    for other in results[1:]:
        assert np.array_equal(found, other, equal_nan=True), f"{name}: bits differ between CPU levels"
    with np.errstate(all="ignore"):
        ends = EXACT[name](x[[0, -1]].astype(np.float64)).astype(x.dtype)
    # The functions are monotonic: between ends that round to the same number, all results do.
    same = np.array_equal(ends[:1], ends[1:], equal_nan=True) and not np.isnan(x[[0, -1]]).any()
    if x.dtype == np.float32 and same and np.array_equal(found, np.broadcast_to(ends[:1], x.shape), equal_nan=True):
        return largest_error(name, x[[0, -1]], found[[0, -1]])
    return largest_error(name, x, found)


if __name__ == "__main__":
    assert np.finfo(np.longdouble).nmant >= 63, "long double has no more bits than fp64 here"
    for name in sys.argv[1:] or KERNELS:
        single = max(error_on_all_levels(name, every_fp32(start, start + PART)) for start in range(0, 2**32, PART))
        generator = np.random.default_rng(0)
        double = max(error_on_all_levels(name, fp64_sample(name, generator, PART)) for _ in range(SAMPLES // PART))
        print(f"{name}: largest error {single:.4f} ulp in fp32, {double:.4f} ulp in fp64", flush=True)
        assert max(single, double) <= BOUNDS[name], f"{name}: expected at most {BOUNDS[name]} ulp"
