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
    for parameter, gradient, exp_avg, exp_avg_sq, values in zip(
        parameters, gradients, exp_avgs, exp_avg_sqs, constants, strict=True
    ):
        rounded = parameter.new_tensor(values, device="cpu").tolist()
        one_minus_beta1, beta2, one_minus_beta2, step_size, root_correction, eps = rounded
        tensors = (parameter, gradient, exp_avg, exp_avg_sq)
        p, g, m, v = tensors if visible is None else (tensor[visible] for tensor in tensors)
        m.lerp_(g, one_minus_beta1)
        v.mul_(beta2).addcmul_(g, g, value=one_minus_beta2)
        p.addcdiv_(m, (v.sqrt() / root_correction).add_(eps), value=-step_size)
        if visible is not None:
            parameter[visible], exp_avg[visible], exp_avg_sq[visible] = p, m, v
