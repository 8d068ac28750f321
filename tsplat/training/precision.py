"""What autocast is told; the rasterizer, the loss and Adam compute in fp32 whatever it is."""

from __future__ import annotations

import torch

from ..errors import BackendError
from .config import Precision

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast_dtype(precision: Precision, device: torch.device) -> torch.dtype | None:
    """The type for autocast, None for fp32; auto is bf16 on a GPU that has it.

    Raises:
        BackendError: Autocast knows no such device.
    """
    if precision == "auto":
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported(False) else None
    if precision == "fp32":
        return None
    if not torch.amp.is_autocast_available(device.type):
        raise BackendError(f"precision: {precision} needs autocast, which {device.type} has not; use fp32")
    return HALVES[precision]
