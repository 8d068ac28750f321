"""One step of Adam in vectorized PyTorch; see ``kernels/adam.py``."""

from collections.abc import Sequence

import torch
from torch import Tensor


def adam_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    constants: Sequence[Sequence[float]],
    visible: Tensor | None,
) -> None:
    for parameter, gradient, exp_avg, exp_avg_sq, values in zip(
        parameters, gradients, exp_avgs, exp_avg_sqs, constants, strict=True
    ):
        rounded = parameter.new_tensor(values, device="cpu").tolist()
        one_minus_beta1, beta2, one_minus_beta2, step_size, root_correction, eps, step = rounded
        rows = ... if visible is None else visible
        p, g, m, v = (tensor[rows] for tensor in (parameter, gradient, exp_avg, exp_avg_sq))
        m, v = m.to(p.dtype), v.to(p.dtype)
        m.lerp_(g, one_minus_beta1)
        v.mul_(beta2).addcmul_(g, g, value=one_minus_beta2)
        p.addcdiv_(m, (v.sqrt() / root_correction).add_(eps), value=-step_size)
        if exp_avg.dtype == torch.bfloat16:
            elements = torch.arange(parameter.numel(), device=parameter.device).view(parameter.shape)[rows]
            bits = _random_bits(elements, int(step))
            exp_avg[rows], exp_avg_sq[rows] = _to_bf16(m, bits), _to_bf16(v, bits >> 16)
        elif visible is not None:
            exp_avg[visible], exp_avg_sq[visible] = m, v
        if visible is not None:
            parameter[visible] = p


def _random_bits(elements: Tensor, step: int) -> Tensor:
    """Hashes element indices and the step to 32 random bits each, int64; see ``kernels/adam.py``."""
    x = (elements + step * 0x9E3779B9) & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


def _to_bf16(values: Tensor, random_bits: Tensor) -> Tensor:
    """Rounds values to bf16 stochastically, up or down; see ``kernels/adam.py``."""
    bits = values.float().view(torch.int32) + (random_bits & 0xFFFF).int()
    rounded = (bits >> 16).to(torch.int16).view(torch.bfloat16)
    return torch.where(values.isnan(), torch.nan, rounded)
