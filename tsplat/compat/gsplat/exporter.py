"""The names of ``gsplat.exporter``: encodes models in file formats."""

import pathlib
import tempfile
from typing import Literal

from torch import Tensor

from ...scalars import check_choice
from ...scene import Gaussians, read_ply, write_compressed_ply, write_ply, write_splat

__all__ = ["export_splats", "load_ply_to_splats"]

WRITERS = {"ply": write_ply, "splat": write_splat, "ply_compressed": write_compressed_ply}
OPACITY_MIN = 1 / 255
"""``"ply_compressed"`` leaves out Gaussians with at most this opacity, which would be stored as 0."""


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

    The writers are :func:`tsplat.scene.write_ply`, :func:`tsplat.scene.write_splat` and
    :func:`tsplat.scene.write_compressed_ply`. They do not write the same bytes as gsplat: PLY files have zero normals;
    ``.splat`` files are ordered by size and rounded to nearest; compressed PLY files are ordered in boxes; and the
    latter two omit Gaussians with a zero quaternion, which these formats cannot represent.

    Args:
        means: [N, 3], world frame.
        scales: [N, 3] logarithms.
        quats: [N, 4] wxyz, any nonzero norm.
        opacities: [N] logits.
        sh0: [N, 1, 3] spherical harmonics coefficients of degree 0.
        shN: [N, K - 1, 3] coefficients of the higher degrees.
        format: ``"ply"``; ``"splat"``, without view dependence; or ``"ply_compressed"``, PlayCanvas's compressed PLY,
            without Gaussians whose opacity is at most 1/255.
        save_to: Path of a file that is also written, atomically.

    Raises:
        ArgumentError: A shape is invalid, or the format is unknown.
        NotImplementedError: The format is PLY and the SH degree is above 3.
        OSError: The file cannot be written.
    """
    check_choice("format", format, tuple(WRITERS))
    gaussians = Gaussians(means, scales, quats, opacities, sh0, shN)
    kept = gaussians.finite & scales.isfinite().all(-1) & opacities.isfinite()
    if format != "ply":
        kept &= gaussians.has_rotation
    if format == "ply_compressed":
        kept &= gaussians.opacities > OPACITY_MIN
    gaussians = gaussians.map(lambda tensor: tensor.detach()[kept])
    write = WRITERS[format]
    if save_to:
        write(save_to, gaussians)
        return pathlib.Path(save_to).read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model"
        write(path, gaussians)
        return path.read_bytes()


def load_ply_to_splats(path: str) -> dict[str, Tensor]:
    """Reads the Gaussians of a PLY file with :func:`tsplat.scene.read_ply`.

    Returns:
        The arguments of :func:`export_splats`: ``means`` [N, 3], ``scales`` [N, 3], ``quats`` [N, 4], ``opacities``
        [N], ``sh0`` [N, 1, 3] and ``shN`` [N, K - 1, 3], before activation, fp32 on the CPU.

    Raises:
        FileError: The file is damaged or of another format.
        OSError: The file cannot be read.
    """
    model = read_ply(path)
    return dict(
        means=model.means, scales=model.log_scales, quats=model.quats, opacities=model.opacity_logits, sh0=model.sh0,
        shN=model.shN,
    )  # fmt: skip
