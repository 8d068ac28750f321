"""Largest errors of the compiled functions over every fp32 number: `python -m tests.triton_cpu.sweep_math`.

Takes some minutes per function. `TSPLAT_CPU` selects the CPU level.
"""

from tests.triton_cpu.test_emit_math import KERNELS, every_fp32, largest_error

PART = 2**24

if __name__ == "__main__":
    for name in KERNELS:
        worst = max(largest_error(name, every_fp32(start, start + PART)) for start in range(0, 2**32, PART))
        print(f"{name}: largest error {worst:.4f} ulp", flush=True)
