"""Gradients of cameras: one sum per block of Gaussians and image, added in a fixed order."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...config import CameraModel
from ...data import Cameras
from .lenses import LENSES
from .loaded_cameras import N_COEFFICIENTS, PATH_VALUES, POSE_VALUES


class CameraSums(NamedTuple):
    """Sums over blocks of Gaussians [blocks, I, ...] that a kernel writes; None where no gradient is needed.

    Attributes:
        poses: Rows of the view matrix but the last, [blocks, I, POSE_VALUES]; None with a rolling shutter.
        lens, shutter: Of the first values of a lens, which are its coefficients, [blocks, I, N_COEFFICIENTS], and
            of its path, [blocks, I, PATH_VALUES].
    """

    poses: Tensor | None
    lens: Tensor | None = None
    shutter: Tensor | None = None

    @classmethod
    def allocate(cls, means: Tensor, blocks: int, cameras: Cameras, needs: Cameras, model: CameraModel) -> CameraSums:
        """Allocates what the gradients that are needed take. What a kernel does not write is zero."""
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
        """Returns the gradients of cameras."""
        batch = cameras.viewmats.shape[:2]
        poses, lens, shutter = (None if sums is None else sums.sum(0).view(*batch, sums.shape[2]) for sums in self)
        if poses is not None:
            poses = torch.nn.functional.pad(poses.view(*batch, 3, 4), (0, 0, 0, 1))
        if lens is not None and cameras.lens is not None:
            lens = torch.nn.functional.pad(lens, (0, cameras.lens.shape[-1] - lens.shape[-1]))
        return type(cameras)(poses, None, lens, shutter)
