"""Scenes around spinning lidars."""

import math

import torch

from tests.support import scenes
from tsplat import RowOffsetStructuredSpinningLidarModelParameters, SpinningDirection


def lidar(seed=0, *, rows=9, columns=40, span=None, offsets=0.2, unevenness=0.5, poles=False, dtype=torch.float64):
    """Returns a lidar with rows and columns at uneven angles, spinning clockwise if the seed is odd.

    Columns span 360 degrees if ``span`` is None. With ``poles``, rows range from the zenith to the nadir.
    """
    top, fall = (math.pi / 2, math.pi) if poles else (0.4, 0.9)
    generator = torch.Generator().manual_seed(seed)

    def steps(n, span):
        step = 1 + unevenness * (torch.rand(n - 1, generator=generator, dtype=torch.float64) - 0.5)
        return torch.cat([step.new_zeros(1), step.cumsum(0) / step.sum() * span])

    turns = (2 * torch.rand(rows, generator=generator, dtype=torch.float64) - 1) * offsets
    azimuths = 3 + (-1) ** seed * steps(columns, 2 * math.pi * (columns - 1) / columns if span is None else span)
    return RowOffsetStructuredSpinningLidarModelParameters(
        row_elevations_rad=(top - steps(rows, fall)).to(dtype),
        column_azimuths_rad=azimuths.to(dtype),
        row_azimuth_offsets_rad=turns.to(dtype),
        spinning_frequency_hz=10.0,
        spinning_direction=list(SpinningDirection)[1 - seed % 2],
    )


def make(seed=0, n=30, dtype=torch.float64, *, cameras=1, sweeps=False, size=1.0, channels=3, poles=False, **angles):
    """Returns arguments for rendering Gaussians around lidars, some at the seam and some around the lidars.

    With ``poles``, every third Gaussian is above or below the lidar.
    """
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    means = torch.randn(n, 3, generator=generator, dtype=torch.float64) * torch.tensor([1, 1, 0.4])
    if poles:
        means[::3, :2] *= 0.1
    means *= (0.3 + 5 * uniform(n, 1)) / means.norm(dim=-1, keepdim=True)
    viewmats = torch.eye(4, dtype=torch.float64).repeat(cameras, 1, 1)
    viewmats[:, :3, :3] = scenes._small_rotations(4 * uniform(cameras, 3) - 2)
    viewmats[:, :3, 3] = 0.5 * uniform(cameras, 3) - 0.25
    scene = dict(
        means=means, quats=torch.randn(n, 4, generator=generator, dtype=torch.float64),
        scales=size * (0.9 * torch.randn(n, 3, generator=generator, dtype=torch.float64) - 2).exp(),
        opacities=uniform(n), colors=uniform(n, channels), viewmats=viewmats, backgrounds=uniform(cameras, channels),
    )  # fmt: skip
    if sweeps:
        end = viewmats.clone()
        end[:, :3, :3] = scenes._small_rotations(0.3 * uniform(cameras, 3) - 0.15) @ end[:, :3, :3]
        end[:, :3, 3] += 0.4 * uniform(cameras, 3) - 0.2
        scene["viewmats_rs"] = end
    options = dict(Ks=None, width=1, height=1, camera_model="lidar", with_ut=True, with_eval3d=True)
    options["lidar_coeffs"] = lidar(seed, dtype=dtype, poles=poles, **angles)
    return {name: tensor.to(dtype) for name, tensor in scene.items()} | options


def angular_boxes(seed=0, n=60):
    """Returns boxes of projected Gaussians [2, n] of all sizes around a lidar, 1,024 per radian; some are culled."""
    generator = torch.Generator().manual_seed(seed)
    angles = torch.rand(2, n, 2, generator=generator) * torch.tensor([2 * torch.pi, 2.0]) - torch.tensor([0, 1.0])
    radii = (torch.rand(2, n, 2, generator=generator) * 6 - 7).exp() * torch.tensor([torch.pi, 1.0])
    radii = (1024 * radii).ceil().int()
    radii[:, ::7] = 0
    return dict(means2d=1024 * angles, radii=radii, depths=torch.rand(2, n, generator=generator))
