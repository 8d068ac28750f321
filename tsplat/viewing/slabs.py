"""Renders models larger than memory: only the Gaussians that a camera sees, and in slabs by depth if they are many."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..config import Backend
from ..errors import UnsupportedError
from ..rendering import render_views
from ..scene.cameras import Camera
from ..scene.extents import with_near_planes
from ..scene.gaussians import Gaussians, concatenate
from ..scene.model_rows import Rows
from ..scene.option_types import Color
from .videos import OnMap, Quantity, render_frames

SLAB = 1 << 20
"""Maximum number of Gaussians that are rendered at a time."""

SAMPLE = 1 << 14
"""Number of Gaussians from which the near plane is estimated."""

OPAQUE = 1e-4
"""Transmittance below which the rasterizer stops: Gaussians behind are not rendered."""


@torch.no_grad()
def render_large_frames(
    rows: Rows,
    cameras: Sequence[Camera],
    folder: str | os.PathLike[str],
    *,
    device: torch.device,
    show: Quantity = "rgb",
    background: Color = (0.0, 0.0, 0.0),
    backend: Backend = "auto",
    on_map: OnMap | None = None,
) -> Iterator[Tensor]:
    """Renders rows as :func:`render_frames`: one frame per camera, lazily. Invalid Gaussians are skipped.

    Each frame reads all rows to find those that the camera sees. Up to 1,048,576 visible rows are rendered as if the
    model were in memory. More are sorted by depth and rendered in slabs, whose images are composited front to back; the
    difference to the image of the whole model is less than the transmittance at which the rasterizer stops, 1e-4. The
    folder is for temporary files.

    Raises UnsupportedError if more rows are visible and `show` is not "rgb" or maps are written; and as
    :func:`render_frames` and :meth:`Rows.ordered`.
    """
    sample = rows.sample(SAMPLE) if any(camera.near is None for camera in cameras) else None
    cameras = cameras if sample is None else with_near_planes(cameras, sample.means)
    for i, camera in enumerate(cameras):
        ids, depths = _visible_rows(rows, camera, device, backend)
        if len(ids) <= SLAB:
            seen = _select(rows, ids).to(device)
            write = None if on_map is None else lambda _, values, i=i: on_map(i, values)
            yield from render_frames(seen, [camera], show=show, background=background, backend=backend, on_map=write)
        elif show != "rgb" or on_map is not None:
            raise UnsupportedError(
                f"show: expected 'rgb', without maps, for a view of more than {SLAB:,} Gaussians of a model larger "
                f"than memory, found {show!r} and {len(ids):,}; move the camera closer, or decimate the model first"
            )
        else:
            yield _composite(rows, ids[np.argsort(depths, kind="stable")], camera, folder, device, background, backend)


def _visible_rows(
    rows: Rows, camera: Camera, device: torch.device, backend: Backend
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns the ascending indices of the rows that a camera sees, and their depths."""
    ids, depths = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
    for start, stop in rows.ranges():
        chunk = rows.read(start, stop)
        valid = chunk.valid.nonzero().squeeze(1)
        # Colors are dropped, as only radii and depths are needed.
        plain = dataclasses.replace(chunk, shN=chunk.shN[:, :0]).select(valid)
        _, _, meta = render_views(plain.to(device), [camera], backend=backend)
        seen = (meta["radii"][0] > 0).all(-1).nonzero().squeeze(1)
        ids.append((valid[seen.cpu()] + start).numpy())
        depths.append(meta["depths"][0, seen].cpu().numpy())
    return np.concatenate(ids), np.concatenate(depths)


def _select(rows: Rows, ids: NDArray[np.int64]) -> Gaussians:
    """Returns the Gaussians of ascending indices."""
    parts = [rows.read(0, 0)]
    for start, stop in rows.ranges():
        first, last = np.searchsorted(ids, (start, stop))
        if last > first:
            parts.append(rows.read(start, stop).select(torch.from_numpy(ids[first:last] - start)))
    return concatenate(parts)


def _composite(
    rows: Rows,
    order: NDArray[np.int64],
    camera: Camera,
    folder: str | os.PathLike[str],
    device: torch.device,
    background: Color,
    backend: Backend,
) -> Tensor:
    """Renders rows, given their indices in order of depth, slab by slab. [H, W, 3] in [0, 1]"""
    image = torch.zeros(camera.height, camera.width, 3, device=device, dtype=torch.float32)
    transmittance = torch.ones(camera.height, camera.width, 1, device=device, dtype=torch.float32)
    with rows.ordered(order, folder) as ordered:
        for start in range(0, len(ordered), SLAB):
            slab = ordered.read(start, min(start + SLAB, len(ordered)))
            colors, alphas, _ = render_views(slab.to(device), [camera], backend=backend)
            image += transmittance * colors[0]
            transmittance *= 1 - alphas[0]
            if float(transmittance.max()) < OPAQUE:
                break
    return (image + transmittance * torch.tensor(background, device=device, dtype=torch.float32)).clamp(0, 1)
