"""Machine instructions that NVIDIA's compiler emits for sm_90 and not for sm_80."""

import torch
import triton
import triton.language as tl

from emulator.counters import total
from emulator.emulation import emulated


@triton.jit
def _adds(out, N: tl.constexpr):
    tl.atomic_add(out + tl.arange(0, N) % 3, 1.0)


def test_barrier_of_a_cluster_before_atomics():
    out = torch.zeros(3)
    with emulated("cuda:90", "sass") as gpu:
        _adds[(4,)](out, N=32)
    assert out.tolist() == [44.0, 44.0, 40.0]
    (counts,) = gpu.counts.values()
    assert any("CGAERRBAR" in statement for statement in counts.program.statements)
    assert total(gpu.counts)["atomic"] > 0
