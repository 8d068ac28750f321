"""Renders depth frames: the z and the color of the first surface at each pixel of a camera."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from ...config import Backend, RenderMode
from ...errors import UnsupportedError
from ...ops.depth_maps import depth_to_normals, depth_to_points
from ..cameras import Camera
from ..culling import CulledModel
from ..gaussians import Gaussians
from ..option_types import DepthKind
from ..rendered_views import render_views

ALPHA_MIN, ALPHA_EMPTY = 0.5, 0.1
"""Alpha above which a pixel shows a surface, and alpha below which it shows empty space."""

SLABS = 12
"""Number of slabs with equal numbers of Gaussians for finding the median depth."""

SAME_DEPTH = 1e-3
"""Relative difference below which depths belong to one surface, however thin the slabs are."""

WEIGHT_MIN = 0.1
"""Minimum weight of a pixel that shows a surface; surfaces perpendicular to the ray have weight 1."""


@dataclasses.dataclass(frozen=True, eq=False)
class DepthFrame:
    """Depths and colors of the surface that a camera sees.

    Attributes:
        camera: A pinhole camera without distortion, on the device of the images.
        depths: [H, W] z in the camera frame, world units; infinity where there is no surface, and 0 where it is unknown
            whether there is one.
        colors: [H, W, 3] RGB.
        weights: [H, W] cosine of the angle between the ray and the normal of the depth map, at least 0.1; 0.1 where
            there is no surface.
    """

    camera: Camera
    depths: Tensor
    colors: Tensor
    weights: Tensor

    def points(self) -> Tensor:
        """Returns the positions [P, 3] of the pixels that show a surface, world frame."""
        points = depth_to_points(self.depths[..., None], self.pose, self.camera.K)
        return points[self.shown]

    @property
    def shown(self) -> Tensor:
        """[H, W] bool, True for pixels that show a surface."""
        return (self.depths > 0) & (self.depths < math.inf)

    @property
    def pose(self) -> Tensor:
        """The camera-to-world matrix [4, 4]."""
        pose: Tensor = torch.linalg.inv(self.camera.viewmat)
        return pose


def as_pinhole(camera: Camera) -> Camera:
    """Returns the pinhole camera with the pose and intrinsics of a camera, without its distortion.

    Raises UnsupportedError for models other than pinhole and fisheye.
    """
    if camera.model not in ("pinhole", "fisheye"):
        raise UnsupportedError(f"cameras: expected pinhole or fisheye cameras, found {camera.model!r}")
    return dataclasses.replace(camera, model="pinhole", distortion=None, viewmat_end=None, readout="GLOBAL")


class DepthRenderer:
    """Renders depth frames of a model, which must not change.

    Args:
        gaussians: Valid Gaussians on the device to render on.
        depth: ``"expected"``, the mean of z with the weights of colors; or ``"median"``, the mean of z around the depth
            at which the transmittance falls below one half. For 2D Gaussians, z is the depth at which the ray meets
            their planes.
        backend: As for :func:`tsplat.rasterization`.
    """

    def __init__(self, gaussians: Gaussians, depth: DepthKind, backend: Backend) -> None:
        self._model = CulledModel(gaussians)
        self._depth = depth
        self._backend = backend

    def render(self, camera: Camera) -> DepthFrame:
        """Renders the depth frame of a pinhole camera, which must have a near plane."""
        camera = camera.to(self._model.gaussians.means.device)
        gaussians = self._model.seen_by(camera, near=camera.near or 0.0)
        image, alphas = self._render(gaussians, camera, "RGB+ED")
        depths = self._find_medians(gaussians, camera) if self._depth == "median" else image[..., 3]
        shown = (alphas >= ALPHA_MIN) & (depths > 0)
        depths = torch.where(shown, depths, torch.where(alphas > ALPHA_EMPTY, 0, math.inf))
        return DepthFrame(camera, depths, image[..., :3].clamp(0, 1), _weights(camera, depths))

    def _render(self, gaussians: Gaussians, camera: Camera, render_mode: RenderMode) -> tuple[Tensor, Tensor]:
        """Renders channels [H, W, X], the last of which is expected depth, and alpha [H, W]."""
        options: dict[str, Any] = dict(background=None, render_mode=render_mode, backend=self._backend)
        if gaussians.surfels:
            options["depth_mode"] = "ray" if self._depth == "median" else "expected"
        images, alphas, _ = render_views(gaussians, [camera], **options)
        return images[0], alphas[0, ..., 0]

    def _find_medians(self, gaussians: Gaussians, camera: Camera) -> Tensor:
        """Returns the depth [H, W] around which the transmittance falls below one half; 0 where it stays above.

        The Gaussians are rendered in slabs of depth, front to back. The transmittances of the slabs show which slab
        contains the median. The result is the expected depth of this slab and of those neighbors that are no farther
        from it than slabs are thick. Without the neighbors, a surface that crosses two slabs would have a step.
        """
        z = gaussians.means @ camera.viewmat[2, :3] + camera.viewmat[2, 3]
        order = z.argsort()
        in_front = order[z[order] >= (camera.near or 0.0)]
        transmittance = torch.ones(camera.height, camera.width, dtype=torch.float32, device=z.device)
        sums, last = transmittance.new_zeros(2, *transmittance.shape), transmittance.new_zeros(2, 1, 1)
        was_crossed = torch.zeros_like(transmittance, dtype=torch.bool)
        last_depth, last_thickness = torch.zeros_like(transmittance), z.new_zeros(())
        for rows in in_front.chunk(SLABS) if len(in_front) else ():
            images, alphas = self._render(gaussians.select(rows.sort().values), camera, "ED")
            before, transmittance = transmittance, transmittance * (1 - alphas)
            depth, thickness = images[..., 0], z[rows[-1]] - z[rows[0]]
            is_close = (depth - last_depth).abs() <= (thickness + last_thickness) / 2 + SAME_DEPTH * depth
            weighted = before * alphas * torch.stack([depth, torch.ones_like(depth)])
            is_crossed = (before > 0.5) & (transmittance <= 0.5)
            sums += weighted * (is_crossed | (was_crossed & is_close)) + last * (is_crossed & is_close)
            last, was_crossed, last_depth, last_thickness = weighted, is_crossed, depth, thickness
        return sums[0] / sums[1].clamp_min(1e-12)


def _weights(camera: Camera, depths: Tensor) -> Tensor:
    """Returns the cosine [H, W] of the angle between rays and normals; border pixels repeat their neighbors."""
    if min(depths.shape) < 3:
        return torch.full_like(depths, WEIGHT_MIN)
    depths = torch.where(depths < math.inf, depths, 0)
    pose = torch.linalg.inv(camera.viewmat)
    points = depth_to_points(depths[..., None], pose, camera.K)
    normals = depth_to_normals(depths[..., None], pose, camera.K)[1:-1, 1:-1]
    rays = normalize(points[1:-1, 1:-1] - pose[:3, 3], dim=-1)
    cosines = (normals * rays).sum(-1).abs()
    cosines = pad(cosines[None], (1, 1, 1, 1), mode="replicate")[0].clamp(WEIGHT_MIN, 1)
    return torch.where(depths > 0, cosines, WEIGHT_MIN)


def surface_points(frames: Iterable[DepthFrame]) -> Tensor:
    """Returns the positions [P, 3] fp64 of the pixels of all frames that show a surface, on the CPU."""
    points = [frame.points().double().cpu() for frame in frames]
    return torch.cat(points) if points else torch.zeros(0, 3, dtype=torch.float64, device="cpu")
