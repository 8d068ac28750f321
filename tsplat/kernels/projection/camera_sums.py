"""Gradients of cameras: sums per block of Gaussians and image, added over blocks in a fixed order."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...config import CameraModel
from ...data import Cameras
from .lenses import LENSES
from .loaded_cameras import N_COEFFICIENTS, PATH_VALUES, POSE_VALUES


class CameraSums(NamedTuple):
    """Gradients of cameras, summed over each block of Gaussians. None if not needed.

    Attributes:
        poses: [blocks, I, POSE_VALUES], the first three rows of the view matrix; None with a rolling shutter.
        lens: [blocks, I, N_COEFFICIENTS], the coefficients of the lens.
        shutter: [blocks, I, PATH_VALUES], the path.
    """

    poses: Tensor | None
    lens: Tensor | None = None
    shutter: Tensor | None = None

    @classmethod
    def allocate(cls, means: Tensor, blocks: int, cameras: Cameras, needs: Cameras, model: CameraModel) -> CameraSums:
        """Allocates the sums of the needed gradients. Values that kernels do not write are zero."""
        n_images = cameras.viewmats.shape[0] * cameras.viewmats.shape[1]
        lens = shutter = None
        if needs.lens and LENSES[model].coefficients_vjp is not None:
            lens = means.new_empty(blocks, n_images, N_COEFFICIENTS.value)
        if needs.shutter:
            shutter = means.new_zeros(blocks, n_images, PATH_VALUES.value)
        has_poses = needs.viewmats and cameras.shutter is None
        poses = means.new_empty(blocks, n_images, POSE_VALUES.value) if has_poses else None
        return cls(poses, lens, shutter)

    def gradients(self, cameras: Cameras) -> Cameras:
        """Adds up the sums of all blocks. Returns the gradients of cameras."""
        batch = cameras.viewmats.shape[:2]
        poses, lens, shutter = (None if sums is None else sums.sum(0).view(*batch, sums.shape[2]) for sums in self)
        if poses is not None:
            poses = torch.nn.functional.pad(poses.view(*batch, 3, 4), (0, 0, 0, 1))
        if lens is not None and cameras.lens is not None:
            lens = torch.nn.functional.pad(lens, (0, cameras.lens.shape[-1] - lens.shape[-1]))
        return type(cameras)(poses, None, lens, shutter)
