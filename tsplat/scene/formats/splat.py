"""``.splat`` files (antimatter15/splat): 32 bytes a Gaussian and no header.

Position 3 float32, scales 3 float32 (after exp), RGBA 4 bytes (opacity after the sigmoid), quaternion 4 bytes, wxyz as
(byte - 128) / 128.
"""

from __future__ import annotations

import os

import numpy as np
import torch

from ...config import SH_NORMS
from ...errors import ArgumentError, FileError
from ...support.files import atomic_write
from ..gaussians import Gaussians
from .quantization import color_coefficients, logits

RECORD = np.dtype([("means", "<f4", 3), ("scales", "<f4", 3), ("rgba", "u1", 4), ("quats", "u1", 4)])


def read_splat(path: str | os.PathLike[str]) -> Gaussians:
    """Reads Gaussians without view dependence.

    Raises:
        FileError: The size is not a whole number of records.
        OSError: The file cannot be read.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size % RECORD.itemsize:
            raise FileError(
                f"{path}: {size} bytes are no whole number of Gaussians of {RECORD.itemsize}; "
                "the file is cut short or not a .splat"
            )
        records = np.fromfile(file, RECORD)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_scales = np.log(records["scales"])
    rgba = records["rgba"] / 255
    return Gaussians(
        means=torch.from_numpy(records["means"].astype(np.float32)),
        log_scales=torch.from_numpy(log_scales.astype(np.float32)),
        quats=torch.from_numpy((records["quats"].astype(np.float32) - 128) / 128),
        opacity_logits=torch.from_numpy(logits(rgba[:, 3])),
        sh0=torch.from_numpy(color_coefficients(rgba[:, :3]))[:, None],
        shN=torch.zeros(len(records), 0, 3),
    )


def write_splat(path: str | os.PathLike[str], gaussians: Gaussians) -> None:
    """Writes Gaussians by falling volume times opacity, which viewers that load bit by bit expect.

    Lost are view dependence (spherical harmonics above degree 0), colors outside [0, 1], whether Gaussians are
    antialiased, and all but 8 bits of colors, opacities and rotations.

    Raises:
        ArgumentError: A Gaussian is not sound, which bytes cannot say.
        OSError: The file cannot be written.
    """
    unsound = int((~gaussians.sound).sum())
    if unsound:
        raise ArgumentError(
            f"gaussians: {unsound} of {len(gaussians)} have values that are not numbers; leave them out with "
            "gaussians.map(lambda tensor: tensor[gaussians.sound])"
        )
    tensors = {name: tensor.detach().double().cpu() for name, tensor in gaussians.tensors().items()}
    logits = tensors["opacity_logits"]
    sizes = tensors["log_scales"].sum(1) + torch.nn.functional.logsigmoid(logits)
    order = torch.argsort(sizes, descending=True, stable=True)
    tensors = {name: tensor[order] for name, tensor in tensors.items()}
    quats = tensors["quats"] / tensors["quats"].norm(dim=1, keepdim=True).clamp_min(1e-30)
    colors = 0.5 + SH_NORMS[0][0] * tensors["sh0"][:, 0]
    rgba = torch.cat([colors, tensors["opacity_logits"].sigmoid()[:, None]], 1)
    records = np.empty(len(gaussians), RECORD)
    with np.errstate(over="ignore"):
        records["means"] = tensors["means"].numpy()
        records["scales"] = tensors["log_scales"].exp().numpy()
    records["rgba"] = (rgba * 255).round().clamp(0, 255).numpy()
    records["quats"] = (quats * 128 + 128).round().clamp(0, 255).numpy()
    with atomic_write(path) as file:
        file.write(records.tobytes())
