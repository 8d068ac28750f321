"""The function of ``gsplat._helper`` that gsplat's viewers import."""

import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ... import ArgumentError

__all__ = ["load_test_data"]

DATA = Path("assets", "test_garden.npz")
"""Path of the test scene in gsplat's repository."""


def load_test_data(
    data_path: str | os.PathLike[str] | None = None,
    device: torch.device | str = "cuda",
    scene_crop: tuple[float, float, float, float, float, float] = (-2, -2, -2, 2, 2, 2),
    scene_grid: int = 1,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int, int]:
    """Creates Gaussians with random scales up to 0.02, rotations and opacities at the points of gsplat's test scene.

    Args:
        data_path: Path of gsplat's ``test_garden.npz``. If None, it is searched in the folder ``assets`` of the
            repository of the running script.
        device: The device of the tensors.
        scene_crop: Minimum and maximum corner of a box; points outside are left out.
        scene_grid: Odd number of copies of the scene side by side, along x and along y.

    Returns:
        means [N, 3], unit quats [N, 4] wxyz, scales [N, 3], opacities [N], colors [N, 3], viewmats [C, 4, 4], Ks [C, 3,
        3], width and height.

    Raises:
        ArgumentError: `scene_grid` is even, or the file is missing.
    """
    if scene_grid % 2 != 1:
        raise ArgumentError(f"scene_grid: expected an odd number, found {scene_grid}")
    if data_path is None:
        paths = [Path(folder, DATA) for entry in sys.path for folder in (entry, Path(entry).parent)]
        data_path = next((path for path in paths if path.is_file()), None)
        if data_path is None:
            raise ArgumentError(f"data_path: {DATA} of gsplat's repository is not beside the script; pass its path")
    with np.load(data_path) as data:
        means, colors, viewmats, Ks = (
            torch.from_numpy(data[name]).to(device, torch.float32) for name in ("means3d", "colors", "viewmats", "Ks")
        )
        width, height = int(data["width"]), int(data["height"])
    low, high = torch.tensor(scene_crop, dtype=torch.float32, device=device).view(2, 3)
    inside = ((means >= low) & (means <= high)).all(-1)
    means, colors = means[inside], colors[inside] / 255
    steps = torch.arange(scene_grid, device=device) - scene_grid // 2
    shifts = torch.cat([torch.cartesian_prod(steps, steps), steps.new_zeros(scene_grid**2, 1)], -1) * (high - low)
    means, colors = (means + shifts[:, None]).reshape(-1, 3), colors.repeat(scene_grid**2, 1)
    n = len(means)
    scales = 1e-4 + (0.02 - 1e-4) * torch.rand(n, 3, device=device)
    quats = torch.nn.functional.normalize(torch.randn(n, 4, device=device), dim=-1)
    return means, quats, scales, torch.rand(n, device=device), colors, viewmats, Ks, width, height
