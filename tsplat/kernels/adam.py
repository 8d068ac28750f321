"""One step of Adam (Kingma and Ba, "Adam: a method for stochastic optimization", 2015), in place.

One lane per value, which reads parameter, gradient and both moments and writes all but the gradient: 28 bytes in fp32,
1,652 bytes for the 59 values of a Gaussian with spherical harmonics of degree 3. Invisible Gaussians are not read.
"""

import math

import triton.language as tl
from torch import Tensor

from .device_math import load_tuple
from .launch import Int, kernel, launch_elementwise

BLOCK = 1024


@kernel
def _adam_kernel(
    parameter,  # [N, width], updated
    gradient,  # [N, width]
    exp_avg,  # [N, width], updated
    exp_avg_sq,  # [N, width], updated
    constants,  # [6]
    visible,  # [N] bool or None
    n: "Int", width: "Int",
    BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = place < n
    if visible is not None:
        mask = mask & (tl.load(visible + place // width, mask=mask, other=0) != 0)
    one_minus_beta1, beta2, one_minus_beta2, step_size, root_correction, eps = load_tuple(constants, 1, 6)
    g = tl.load(gradient + place, mask=mask, other=0.0)
    m = tl.load(exp_avg + place, mask=mask, other=0.0)
    v = tl.load(exp_avg_sq + place, mask=mask, other=0.0)
    m = m + (g - m) * one_minus_beta1
    v = v * beta2 + g * g * one_minus_beta2
    tl.store(exp_avg + place, m, mask=mask)
    tl.store(exp_avg_sq + place, v, mask=mask)
    p = tl.load(parameter + place, mask=mask, other=0.0)
    tl.store(parameter + place, p - step_size * (m / (tl.sqrt(v) / root_correction + eps)), mask=mask)


def adam_step(
    parameter: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    constants: Tensor,
    visible: Tensor | None,
) -> None:
    """Updates a parameter and its moments, [N, ...] contiguous.

    Args:
        constants: [6], 1 - beta1, beta2, 1 - beta2, lr / (1 - beta1^t), sqrt(1 - beta2^t), eps, in the parameter's
            dtype: beta2 rounded to fp32 is too coarse to be subtracted from 1.
        visible: [N] bool; rows that are false stay as they are. None to update all.
    """
    n = parameter.numel()
    launch_elementwise(
        _adam_kernel,
        n,
        BLOCK,
        parameter=parameter,
        gradient=gradient,
        exp_avg=exp_avg,
        exp_avg_sq=exp_avg_sq,
        constants=constants,
        visible=visible,
        n=n,
        width=math.prod(parameter.shape[1:]),
    )
