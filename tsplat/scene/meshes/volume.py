"""A truncated signed distance function on a grid, into which depth frames are fused (Curless and Levoy, 1996)."""

import dataclasses
import itertools
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import grid_sample

from ...errors import ArgumentError, MemoryBudgetError
from ...precision import fp64
from ...support.free_memory import LIMIT, available_bytes
from .depth_frames import WEIGHT_MIN, DepthFrame

BYTES_PER_VOXEL = 38
"""Peak memory per voxel in bytes, from fusion to marching cubes: six fp32 sums, and distances, masks and their
copies."""

COUNT_MAX = 1e9
"""Maximum number of voxels along an axis; more never fit into memory."""

BLOCK = 32
"""Edge length of the blocks that are fused at a time, so that they fit into the caches of a CPU."""

MAX_THREADS = 8
"""Maximum number of threads that fuse blocks."""

SUMS = 6
"""Number of sums per voxel: weighted distances and their weights; near the surface, weighted RGB and their weights."""


@dataclasses.dataclass(frozen=True)
class Grid:
    """A grid of voxels; values refer to voxel centers.

    Attributes:
        origin: [3] position of the first center, world frame.
        voxel: Distance between neighboring centers, world units.
        shape: Number of voxels along x, y and z.
        margin: Number of voxels added on each side of the box that the grid was created for.
    """

    origin: tuple[float, float, float]
    voxel: float
    shape: tuple[int, int, int]
    margin: int = 0

    @property
    def n_voxels(self) -> int:
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        """Memory in bytes for fusion and extraction."""
        return BYTES_PER_VOXEL * self.n_voxels

    def check_memory(self, device: torch.device) -> None:
        """Raises MemoryBudgetError if fusion takes more memory than is free on the device, or than the user allows."""
        limit = LIMIT.get()
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()
        free = free if limit is None or free is None else min(free, limit)
        if free is not None and self.n_bytes > free:
            fitting = self.fitting_voxel(free)
            status = "are free" if limit is None else "may be used"
            fits = "" if fitting is None else f"voxels of {fitting:.4g} fit; or "
            raise MemoryBudgetError(
                f"voxel: {'×'.join(map(str, self.shape))} voxels of {self.voxel:.4g} need {self.n_bytes / 1e9:.3g} GB "
                f"of memory, {free / 1e9:.3g} GB {status}; {fits}choose smaller bounds"
            )

    def fitting_voxel(self, n_bytes: int) -> float | None:
        """Returns a voxel size with two digits for which a grid of the same box takes at most `n_bytes`; None if there
        is none."""
        sides = [self.voxel * (n - 1 - 2 * self.margin) for n in self.shape]
        voxel = self.voxel
        while voxel < max(sides) < self.voxel * COUNT_MAX:
            digit = 10.0 ** (math.floor(math.log10(voxel)) - 1)
            rounded = digit * math.ceil(voxel / digit)
            counts = [math.ceil(side / rounded) + 1 + 2 * self.margin for side in sides]
            if BYTES_PER_VOXEL * math.prod(counts) <= n_bytes:
                return rounded if rounded < max(sides) else None
            voxel *= 1.05
        return None


def make_grid(low: Sequence[float], high: Sequence[float], voxel: float, margin: int) -> Grid:
    """Returns a grid for a box with two corners, extended by `margin` voxels on each side.

    Raises ArgumentError if the box is not longer than a voxel.
    """
    sides = [b - a for a, b in zip(low, high, strict=True)]
    if not max(sides) > voxel:
        size = " × ".join(f"{side:.4g}" for side in sides)
        raise ArgumentError(f"voxel: expected less than the extent of the surface, {size}, found {voxel:.4g}")
    counts = [math.ceil(min(side / voxel, COUNT_MAX)) + 1 for side in sides]
    x, y, z = ((a + b) / 2 - voxel * ((n - 1) / 2 + margin) for a, b, n in zip(low, high, counts))
    nx, ny, nz = (n + 2 * margin for n in counts)
    return Grid((x, y, z), voxel, (nx, ny, nz), margin)


class Volume:
    """A truncated signed distance function with colors, as weighted sums per voxel of a grid.

    Args:
        grid: The grid; memory for it is allocated.
        truncation: Truncation distance in world units: distances in front of a surface are clamped to it, and voxels
            farther behind a surface are unknown.
        device: Device of the frames.
    """

    def __init__(self, grid: Grid, truncation: float, device: torch.device) -> None:
        self.grid = grid
        self.truncation = truncation
        self.sums = torch.zeros(SUMS, *grid.shape, dtype=torch.float32, device=device)
        ranges = [[(i, min(i + BLOCK, n)) for i in range(0, n, BLOCK)] for n in grid.shape]
        self._blocks = list(itertools.product(*ranges))
        limits = torch.tensor(self._blocks, dtype=torch.float64, device=device)  # [B, 3, 2]
        origin = torch.tensor(grid.origin, dtype=torch.float64, device=device)
        self._centers = origin + grid.voxel * (limits.sum(-1) - 1) / 2
        self._radii = grid.voxel * (limits[..., 1] - limits[..., 0]).norm(dim=-1) / 2

    def fuse(self, frame: DepthFrame) -> None:
        """Fuses a frame: adds the distances of voxels to the surface along z, and near the surface its color."""
        near = self._find_blocks(frame).nonzero().flatten().tolist()
        images = torch.stack([frame.depths, frame.weights])[None]
        colored = torch.cat([frame.depths[None], frame.colors.permute(2, 0, 1)])[None].contiguous()
        rows = self._projection(frame)
        # If PyTorch's operators run on one thread, other threads fuse other blocks.
        is_single_threaded = torch.get_num_threads() == 1 and self.sums.device.type == "cpu"
        with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1) if is_single_threaded else 1) as pool:
            for _ in pool.map(lambda i: self._fuse_block(self._blocks[i], rows, images, colored), near):
                pass

    def _find_blocks(self, frame: DepthFrame) -> Tensor:
        """Returns a mask [B] bool of the blocks that a frame may change: in its frustum and not behind all its
        surfaces."""
        camera = frame.camera
        viewmat, K = camera.viewmat.double(), camera.K.double()
        x, y, z = (self._centers @ viewmat[:3, :3].T + viewmat[:3, 3]).unbind(-1)
        is_inside: Tensor = (z + self._radii > 0) & (z - self._radii < float(frame.depths.max()) + self.truncation)
        for axis, values, size in ((0, x, camera.width), (1, y, camera.height)):
            for sign, edge in ((1.0, -K[axis, 2]), (-1.0, size - K[axis, 2])):
                slope = edge / K[axis, axis]
                is_inside &= sign * (values - slope * z) / (1 + slope**2).sqrt() > -self._radii
        return is_inside

    def _projection(self, frame: DepthFrame) -> Tensor:
        """Returns the matrix [3, 4] fp64 that maps voxel indices to image coordinates from -1 to 1 times z, and to
        z."""
        camera, grid = frame.camera, self.grid
        viewmat, K = camera.viewmat.double(), camera.K.double()
        to_world = torch.eye(4, dtype=torch.float64, device=viewmat.device)
        to_world[:3, :3] *= grid.voxel
        to_world[:3, 3] = torch.tensor(grid.origin, dtype=torch.float64, device=viewmat.device)
        local = (viewmat @ to_world)[:3]
        sizes = K.new_tensor([camera.width, camera.height])[:, None]
        return torch.cat([2 / sizes * (K[:2] @ local) - local[2:], local[2:]])

    def _fuse_block(self, limits: Sequence[tuple[int, int]], rows: Tensor, images: Tensor, colored: Tensor) -> None:
        """Adds a frame to the voxels of a block."""
        indices = [torch.arange(*limit, dtype=torch.float64, device=rows.device) for limit in limits]
        # A projected coordinate is the sum of one term per axis.
        x, y, z = (
            ((row[0] * indices[0] + row[3])[:, None, None].float() + (row[1] * indices[1])[:, None].float())
            + (row[2] * indices[2]).float()
            for row in rows
        )
        inverse = 1 / z
        coordinates = torch.stack([x * inverse, y * inverse], -1).view(1, 1, -1, 2)
        nearest = grid_sample(images, coordinates, "nearest", "zeros", align_corners=False)[0, :, 0]
        z = z.flatten()
        distances = nearest[0] - z
        seen = ((nearest[0] > 0) & (z > 0) & (distances > -self.truncation)).nonzero().squeeze(1)
        if not len(seen):
            return
        distances, weights, z = distances[seen], nearest[1, seen], z[seen]
        weights = torch.where(distances < self.truncation, weights, WEIGHT_MIN)
        block = (slice(None), *(slice(*limit) for limit in limits))
        close = (distances < self.truncation).nonzero().squeeze(1)
        if len(close):
            sampled = grid_sample(colored, coordinates[:, :, seen[close]], "bilinear", "border", align_corners=False)
            depths, colors = sampled[0, 0, 0], sampled[0, 1:, 0]
            smooth = depths - z[close]
            # Do not interpolate between the depths of a surface and of the background behind it.
            is_smooth = (smooth - distances[close]).abs() <= self.truncation / 2
            distances[close] = torch.where(is_smooth, smooth, distances[close]).clamp_min(-self.truncation)
            sums = distances.new_zeros(4, x.numel())
            sums[:3, seen[close]] = colors * weights[close]
            sums[3, seen[close]] = weights[close]
            self.sums[2:][block] += sums.view(4, *x.shape)
        sums = distances.new_zeros(2, x.numel())
        sums[0, seen] = weights * (distances / self.truncation).clamp_max(1)
        sums[1, seen] = weights
        self.sums[:2][block] += sums.view(2, *x.shape)

    def distances(self) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Returns the signed distances in units of the truncation, and a mask of seen voxels, [X, Y, Z] each."""
        weights = self.sums[1].cpu()
        return (self.sums[0].cpu() / weights.clamp_min(1e-12)).numpy(), (weights > 0).numpy()

    def colors_at(self, positions: Tensor) -> Tensor:
        """Returns the colors [P, 3] at positions [P, 3] of the surface, fp64 world frame, on the CPU."""
        origin = fp64(self.grid.origin)
        shape = fp64(self.grid.shape)
        coordinates = 2 * (((positions - origin) / self.grid.voxel) / (shape - 1)) - 1
        coordinates = coordinates.flip(-1).float().to(self.sums.device).view(1, 1, 1, -1, 3)  # z, y, x
        sampled = grid_sample(self.sums[None, 2:], coordinates, "bilinear", "border", align_corners=True)[0, :, 0, 0]
        return (sampled[:3] / sampled[3].clamp_min(1e-12)).T.clamp(0, 1).cpu()
