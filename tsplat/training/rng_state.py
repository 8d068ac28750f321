"""Saving and restoring the state of random number generators, for bit-exact resume."""

import random
from typing import Any

import numpy as np
import torch


def get_rng_state() -> dict[str, Any]:
    """Returns the states of the global generators of Python, NumPy, PyTorch and each GPU, as JSON values."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "torch": _to_hex(torch.get_rng_state()),
        "cuda": [_to_hex(state) for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else [],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Restores the states that :func:`get_rng_state` returned. States of GPUs that do not exist here are ignored."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_from_hex(state["torch"]))
    for device, digits in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(_from_hex(digits), device)


def generator_state(generator: torch.Generator) -> str:
    """Returns the state of a generator, as hexadecimal digits."""
    return _to_hex(generator.get_state())


def set_generator_state(generator: torch.Generator, digits: str) -> None:
    """Restores a state that :func:`generator_state` returned."""
    generator.set_state(_from_hex(digits))


def _to_hex(state: torch.Tensor) -> str:
    return bytes(state.numpy()).hex()


def _from_hex(digits: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(digits), dtype=torch.uint8)
