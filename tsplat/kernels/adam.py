"""One step of Adam (Kingma and Ba, "Adam: a method for stochastic optimization", 2015), in place.

One lane a value: it reads parameter, gradient and both moments and writes all but the gradient, 28 bytes in fp32; the
59 values of a Gaussian with spherical harmonics of degree 3 are 1,652 bytes. A row that is not visible is not read.
"""

import triton
import triton.language as tl
from torch import Tensor

from .device_math import load_tuple
from .launch import guard, programs

BLOCK = 1024


@triton.jit
def _adam_kernel(
    parameter, gradient, average, average_square, constants, visible, n, width,
    BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = place < n
    if visible is not None:
        mask = mask & (tl.load(visible + place // width, mask=mask, other=0) != 0)
    share, keep_square, share_square, step_size, root_correction, eps = load_tuple(constants, 1, 6)
    g = tl.load(gradient + place, mask=mask, other=0.0)
    m = tl.load(average + place, mask=mask, other=0.0)
    v = tl.load(average_square + place, mask=mask, other=0.0)
    m = m + (g - m) * share
    v = v * keep_square + g * g * share_square
    tl.store(average + place, m, mask=mask)
    tl.store(average_square + place, v, mask=mask)
    p = tl.load(parameter + place, mask=mask, other=0.0)
    tl.store(parameter + place, p - step_size * (m / (tl.sqrt(v) / root_correction + eps)), mask=mask)


def adam_step(
    parameter: Tensor,
    gradient: Tensor,
    average: Tensor,
    average_square: Tensor,
    constants: Tensor,
    visible: Tensor | None,
) -> None:
    """Moves a parameter and its moments, [N, ...] contiguous.

    Args:
        constants: [6], 1 - beta1, beta2, 1 - beta2, lr / (1 - beta1^t), sqrt(1 - beta2^t), eps, of the parameter's
            type: rounded to fp32, beta2 would be too coarse to subtract from 1.
        visible: [N] bool, rows that are not are left as they are; or None.
    """
    n = parameter.numel()
    if n > 0:
        with guard(parameter):
            _adam_kernel[(programs(n, BLOCK),)](
                parameter, gradient, average, average_square, constants, visible, n, n // parameter.shape[0],
                BLOCK=BLOCK,
            )  # fmt: skip
