"""One step of Adam in vectorized PyTorch; see `tsplat.kernels.adam`."""

from __future__ import annotations

from torch import Tensor


def adam_step(
    parameter: Tensor,
    gradient: Tensor,
    average: Tensor,
    average_square: Tensor,
    constants: Tensor,
    visible: Tensor | None,
) -> None:
    share, keep_square, share_square, step_size, root_correction, eps = constants.tolist()
    if visible is None:
        p, g, m, v = parameter, gradient, average, average_square
    else:
        p, g, m, v = (tensor[visible] for tensor in (parameter, gradient, average, average_square))
    m.lerp_(g, share)
    v.mul_(keep_square).addcmul_(g, g, value=share_square)
    p.addcdiv_(m, (v.sqrt() / root_correction).add_(eps), value=-step_size)
    if visible is not None:
        parameter[visible], average[visible], average_square[visible] = p, m, v
