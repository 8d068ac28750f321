"""The names of ``gsplat.exporter``: models as bytes of a file format."""

from __future__ import annotations

import pathlib
import tempfile
from typing import Literal

from torch import Tensor

from ... import UnsupportedError
from ...arguments import check_choice
from ...scene import Gaussians, write_ply, write_splat

__all__ = ["export_splats"]

FORMATS = ("ply", "splat", "ply_compressed")


def export_splats(
    means: Tensor,
    scales: Tensor,
    quats: Tensor,
    opacities: Tensor,
    sh0: Tensor,
    shN: Tensor,
    format: Literal["ply", "splat", "ply_compressed"] = "ply",
    save_to: str | None = None,
) -> bytes:
    """Encodes Gaussians, given before activation, as the bytes of a file. Rows with NaN or infinity are left out.

    The writers are :func:`tsplat.scene.write_ply` and :func:`tsplat.scene.write_splat`, which do not write the same
    bytes as gsplat: PLY files have normals of zero and all of ``f_rest_0`` to ``f_rest_44``, and ``.splat`` files are
    ordered by size and rounded to nearest.

    Args:
        means: [N, 3], world frame.
        scales: [N, 3] logarithms.
        quats: [N, 4] wxyz, any nonzero norm.
        opacities: [N] logits.
        sh0: [N, 1, 3] spherical harmonics coefficients of degree 0.
        shN: [N, K - 1, 3] coefficients of the higher degrees.
        format: ``"ply"``, or ``"splat"`` (without view dependence).
        save_to: A file to write as well, atomically.

    Raises:
        ArgumentError: A shape is invalid, or the format is unknown.
        NotImplementedError: ``"ply_compressed"``, or a degree of spherical harmonics above 3.
        OSError: The file cannot be written.
    """
    check_choice("format", format, FORMATS)
    if format == "ply_compressed":
        raise UnsupportedError("format: 'ply_compressed' is not implemented; use 'ply' or 'splat'")
    gaussians = Gaussians(means, scales, quats, opacities, sh0, shN)
    finite = gaussians.valid & scales.isfinite().all(-1) & opacities.isfinite()
    gaussians = gaussians.map(lambda tensor: tensor.detach()[finite])
    write = write_ply if format == "ply" else write_splat
    if save_to:
        write(save_to, gaussians)
        return pathlib.Path(save_to).read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model"
        write(path, gaussians)
        return path.read_bytes()
