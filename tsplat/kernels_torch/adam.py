"""One step of Adam in vectorized PyTorch; see ``kernels/adam.py``."""

from collections.abc import Sequence

from torch import Tensor


def adam_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    constants: Sequence[Sequence[float]],
    visible: Tensor | None,
) -> None:
    for p, g, m, v, values in zip(parameters, gradients, exp_avgs, exp_avg_sqs, constants, strict=True):
        _update(p, g, m, v, p.new_tensor(values, device="cpu").tolist(), visible)


def _update(
    parameter: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    constants: Sequence[float],
    visible: Tensor | None,
) -> None:
    one_minus_beta1, beta2, one_minus_beta2, step_size, root_correction, eps = constants
    if visible is None:
        p, g, m, v = parameter, gradient, exp_avg, exp_avg_sq
    else:
        p, g, m, v = (tensor[visible] for tensor in (parameter, gradient, exp_avg, exp_avg_sq))
    m.lerp_(g, one_minus_beta1)
    v.mul_(beta2).addcmul_(g, g, value=one_minus_beta2)
    p.addcdiv_(m, (v.sqrt() / root_correction).add_(eps), value=-step_size)
    if visible is not None:
        parameter[visible], exp_avg[visible], exp_avg_sq[visible] = p, m, v
