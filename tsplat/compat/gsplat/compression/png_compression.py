"""Compresses models as PNG images, in the file format of gsplat."""

import dataclasses
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from .... import ArgumentError, ShapeError
from ....scene.formats.png_images import read_png_images, write_png_images
from .sort import sort_splats

__all__ = ["PngCompression"]

REQUIRED = ("means", "quats", "opacities")


@dataclasses.dataclass
class PngCompression:
    """Writes and reads Gaussians as PNG images of n x n pixels, with clustered SH coefficients.

    Args:
        use_sort: Whether to sort Gaussians by similarity, which makes files smaller; see
            :func:`tsplat.compat.gsplat.compression.sort.sort_splats`.
        verbose: Whether to print the number of removed Gaussians and the progress of PLAS.
    """

    use_sort: bool = True
    verbose: bool = True

    @torch.no_grad()
    def compress(self, compress_dir: str, splats: Mapping[str, Tensor]) -> None:
        """Writes a folder with ``meta.json`` and one or two files for each parameter.

        Gaussians with the lowest opacities are left out until their number is a square. Quaternions are normalized.
        ``splats`` and its tensors are not modified.

        Args:
            compress_dir: The folder; it is created if it does not exist.
            splats: Parameters before activation: ``means`` [N, 3], ``scales`` [N, 3], ``quats`` [N, 4], ``opacities``
                [N] or [N, 1], ``sh0`` [N, 1, 3], ``shN`` [N, K - 1, 3], and any others, which are stored unchanged.

        Raises:
            ArgumentError: A parameter is missing, a shape is invalid, or a value is not finite.
            MissingExtraError: Pillow is not installed.
            OSError: A file cannot be written.
        """
        missing = [name for name in REQUIRED if name not in splats]
        if missing:
            raise ArgumentError(f"splats: expected at least {', '.join(REQUIRED)}; {', '.join(missing)} is missing")
        tensors = {name: tensor.detach() for name, tensor in splats.items()}
        n = len(tensors["means"])
        for name, tensor in tensors.items():
            if tensor.dim() == 0 or len(tensor) != n:
                raise ShapeError(f"splats: {name}: expected [{n}, ...] as means, found {list(tensor.shape)}")
        tensors["quats"] = torch.nn.functional.normalize(tensors["quats"], dim=-1)
        side = math.isqrt(n)
        if side**2 < n:
            logits = tensors["opacities"].reshape(n, -1)[:, 0]
            kept = logits.argsort(descending=True, stable=True)[: side**2].sort().values
            tensors = {name: tensor[kept] for name, tensor in tensors.items()}
            if self.verbose:
                print(f"removed {n - side**2} of {n} Gaussians, those of lowest opacity: {side}×{side} are left")
        if self.use_sort:
            tensors = sort_splats(tensors, verbose=self.verbose)
        write_png_images(compress_dir, tensors)

    def decompress(self, compress_dir: str) -> dict[str, Tensor]:
        """Reads a folder written by :meth:`compress` or by gsplat.

        Returns:
            The parameters by name, on the CPU.

        Raises:
            ArgumentError: A file is missing or damaged.
            MissingExtraError: Pillow is not installed.
        """
        return read_png_images(compress_dir)
