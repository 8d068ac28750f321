"""Adam steps for visible Gaussians."""

import torch
from torch import Tensor

from .... import ArgumentError, DtypeError
from ....arguments import BOOLS, check_devices, check_tensor, plain
from ....runtime.backend import launchers
from ....runtime.compilation import plain_all


@torch.no_grad()
def adam(
    param: Tensor, param_grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, valid: Tensor,
    lr: float, b1: float, b2: float, eps: float,
) -> None:  # fmt: skip
    """Updates the Gaussians selected by `valid` [N] bool with a step of Adam without bias correction, in place.

    The other tensors are [N, ...] in fp32 or fp64; the moments are contiguous. Raises `ArgumentError` before changing
    anything.
    """
    check_adam(param, param_grad, {"exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}, "valid", valid)
    # Without bias correction, both correction factors are 1. The step number only matters for moments in bf16.
    constants = [1 - b1, b2, 1 - b2, lr, 1.0, eps, 0.0]
    contiguous = param.contiguous()
    launchers(param.device).adam_step(
        [contiguous], [plain("param_grad", param_grad).contiguous()], [exp_avg], [exp_avg_sq], [constants],
        plain("valid", valid).contiguous(),
    )  # fmt: skip
    if contiguous is not param:
        param.copy_(contiguous)


def check_adam(
    param: Tensor, param_grad: Tensor, moments: dict[str, Tensor], name_of_valid: str, valid: Tensor
) -> None:
    """Raises an error if :func:`adam` cannot update these tensors; ``name_of_valid`` is the mask's name for
    messages."""
    if isinstance(param_grad, Tensor) and param_grad.layout != torch.strided:
        raise ArgumentError(
            f"param_grad: expected a dense gradient, found {param_grad.layout}; use torch.optim.SparseAdam"
        )
    check_tensor("param", param, [...], "[N, ...]")
    plain_all(["param", "param_grad", name_of_valid], [param, param_grad, valid])
    if param.dim() == 0 or param.dtype not in (torch.float32, torch.float64):
        raise DtypeError(f"param: expected fp32 or fp64 [N, ...], found {param.dtype} {list(param.shape)}")
    for name, tensor in {"param_grad": param_grad, **moments}.items():
        check_tensor(name, tensor, list(param.shape), "[N, ...] as param")
        if tensor.dtype != param.dtype:
            raise DtypeError(f"{name}: expected {param.dtype} as param, found {tensor.dtype}")
    if plain("param", param) is not param or 0 in param.stride():
        raise ArgumentError(f"param: expected a tensor with memory for each element, found strides {param.stride()}")
    for name, tensor in moments.items():
        if not tensor.is_contiguous() or plain(name, tensor) is not tensor:
            raise ArgumentError(f"{name}: expected a contiguous tensor, found a view with strides {tensor.stride()}")
    check_tensor(name_of_valid, valid, param.shape[:1], "[N] as param", dtypes=BOOLS)
    check_devices({"param": param, "param_grad": param_grad, name_of_valid: valid, **moments})
