"""Reads and writes ``.splat`` files (antimatter15/splat): 32 bytes per Gaussian, without a header.

A record has the position as 3 float32, scales after exp as 3 float32, RGBA as 4 bytes (opacity after the sigmoid), and
the quaternion wxyz as 4 bytes, each component (byte - 128) / 128.
"""

import os
import warnings

import numpy as np
import torch

from ...errors import FileError
from ...support.files import atomic_write
from ...support.reading import open_file
from ..gaussians import Gaussians
from ..quantization import check_valid, gaussians_from_activated, levels, sh0_from_colors
from ..sh_colors import sh0_to_colors
from .binary_records import read_records
from .foreign import Warn
from .model_memory import check_model_memory

NORM_TOLERANCE = 1 / 64
"""Quaternions whose norm differs from 1 by at most this value are not normalized, because files store rounded
components."""

RECORD = np.dtype([("means", "<f4", 3), ("scales", "<f4", 3), ("rgba", "u1", 4), ("quats", "u1", 4)])


def read_splat(path: str | os.PathLike[str], *, warn: Warn = warnings.warn) -> Gaussians:
    """Reads a ``.splat`` file. The Gaussians have SH degree 0.

    Args:
        path: Path of the file.
        warn: Called with a note about negative scales, which make Gaussians invalid.

    Raises:
        FileError: The file size is not a multiple of the record size, or most scales are negative and so look like
            logarithms.
        OSError: The file cannot be read.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size % RECORD.itemsize:
            raise FileError(
                f"{path}: expected a multiple of {RECORD.itemsize:,} bytes, found {size:,} bytes; "
                "the file is cut short or not a .splat file"
            )
        check_model_memory(str(path), size // RECORD.itemsize)
        records = read_records(file, path, RECORD, size // RECORD.itemsize)
    rgba = records["rgba"] / 255
    quats = (records["quats"].astype(np.float32) - 128) / 128
    sh = sh0_from_colors(rgba[:, None, :3])
    return gaussians_from_activated(str(path), records["means"], records["scales"], quats, rgba[:, 3], sh, warn)


def write_splat(path: str | os.PathLike[str], gaussians: Gaussians) -> list[str]:
    """Writes a ``.splat`` file atomically, sorted by decreasing volume times opacity for progressive viewers.

    The format stores colors, opacities and rotations with 8 bits per component. It has no view dependence (spherical
    harmonics above degree 0), no colors outside [0, 1], and no antialiased flag.

    Returns:
        Losses as in :func:`write_model`.

    Raises:
        ArgumentError: A Gaussian is invalid; the format cannot represent NaN.
        OSError: The file cannot be written.
    """
    check_valid(gaussians)
    tensors = {name: tensor.detach().double().cpu() for name, tensor in gaussians.tensors().items()}
    norms = tensors["quats"].norm(dim=1, keepdim=True)
    quats = tensors["quats"] / norms.where((norms - 1).abs() > NORM_TOLERANCE, 1).clamp_min(1e-30)
    colors = sh0_to_colors(tensors["sh0"][:, 0])
    rgba = torch.cat([colors, tensors["opacity_logits"].sigmoid()[:, None]], 1)
    records = np.empty(len(gaussians), RECORD)
    with np.errstate(over="ignore"):
        records["means"] = tensors["means"].numpy()
        records["scales"] = tensors["log_scales"].exp().numpy()
    records["rgba"] = levels(rgba.numpy() * 255)
    records["quats"] = (quats * 128 + 128).round().clamp(0, 255).numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        # Sort by the stored values, so that reading and writing the file again keeps the order.
        sizes = np.log(records["scales"].astype(np.float64)).sum(1) + np.log(records["rgba"][:, 3])
    with atomic_write(path) as file:
        file.write(records[np.argsort(-sizes, kind="stable")].tobytes())
    lost = {
        f"view dependence (SH degree {gaussians.sh_degree})": gaussians.sh_degree > 0,
        "the antialiased flag": gaussians.antialiased,
        "colors, opacities and rotations rounded to 8 bits": True,
    }
    return [description for description, is_lost in lost.items() if is_lost]
