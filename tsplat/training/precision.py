"""Mixed precision: the dtype that autocast uses. The rasterizer, the loss and Adam always compute in fp32."""

from __future__ import annotations

import torch

from ..errors import BackendError
from .configuration import Precision

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast_dtype(precision: Precision, device: torch.device) -> torch.dtype | None:
    """The dtype for autocast; None for fp32. "auto" is bf16 on GPUs that support it, and fp32 elsewhere.

    Raises:
        BackendError: PyTorch has no autocast for this device.
    """
    if precision == "auto":
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported(False) else None
    if precision == "fp32":
        return None
    if not torch.amp.is_autocast_available(device.type):
        raise BackendError(f"precision: {precision} needs autocast, which {device.type} does not support; use fp32")
    return DTYPES[precision]
