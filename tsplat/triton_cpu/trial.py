"""A small test kernel. It shows whether kernels of this Triton can be compiled by this LLVM for this CPU."""

import torch
import triton
import triton.language as tl

from .errors import TritonCPUError
from .launcher import launch


@triton.jit
def _double(x):
    return x + x


@triton.jit
def _sum_kernel(
    x,  # [n] fp32
    y,  # [1] fp32, output: twice the sum of x
    n,
    BLOCK: tl.constexpr,
):
    total = 0.0
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.sum(tl.where(i < n, _double(tl.load(x + i, mask=i < n, other=0.0)), 0.0))
    if n > 0:
        tl.store(y, total)


def check_compiler() -> None:
    """Compiles and runs the test kernel.

    Raises:
        TritonCPUError: The kernel cannot be compiled, or its result is wrong.
    """
    x, y = torch.arange(20, dtype=torch.float32), torch.zeros(1)
    launch(_sum_kernel, (1,), (x, y, x.numel(), 16))
    if y.item() != 380:
        raise TritonCPUError(f"a test kernel on the CPU returned {y.item():g} instead of 380")
