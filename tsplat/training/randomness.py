"""The state of every generator that a process has, so that a run can go on as if it had not stopped."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """Of Python, NumPy, PyTorch, and PyTorch on each GPU, as JSON knows it."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "torch": _digits(torch.get_rng_state()),
        "cuda": [_digits(state) for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else [],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Goes back to a state; GPUs that are not there any more are passed over."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_bytes(state["torch"]))
    for device, digits in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(_bytes(digits), device)


def _digits(state: torch.Tensor) -> str:
    return bytes(state.numpy()).hex()


def _bytes(digits: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(digits), dtype=torch.uint8)
