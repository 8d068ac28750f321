"""Draws a block plan from above."""

import os
from typing import Any

import torch

from ...precision import fp64
from ...support.extras import require
from ...support.files import atomic_write
from .block_plans import BlockPlan, Corner
from .views import Capture

POINTS_MAX = 30_000

REACH = 0.04
"""Length of the drawn viewing directions as a fraction of the extent."""


def draw_plan(path: str | os.PathLike[str], plan: BlockPlan, capture: Capture) -> None:
    """Writes a PNG of a plan: points in their colors, cameras with their viewing directions, and blocks with their
    index, number of points and number of views. Dashed lines show the expanded box of block 0."""
    require("matplotlib")
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    cameras = [view.camera for view in (*capture.train, *capture.test)]
    sample = slice(None, None, 1 + len(capture.points) // POINTS_MAX)
    x, y = plan.ground(capture.points[sample]).T.cpu()
    centers = torch.stack([camera.position.cpu() for camera in cameras])
    directions = plan.ground(torch.stack([camera.viewmat[2, :3].double().cpu() for camera in cameras]))
    low, high = (fp64(corner) for corner in plan.extent)
    positions, size = plan.ground(centers), float((high - low).max())
    low, high = torch.minimum(low, positions.amin(0)), torch.maximum(high, positions.amax(0))

    figure = Figure(figsize=(10, 10), layout="constrained")
    axes = figure.subplots()
    axes.scatter(x, y, s=3, c=capture.colors[sample].cpu().clamp(0, 1).numpy(), linewidths=0, rasterized=True)
    ends = positions + REACH * size * directions
    axes.plot(*(torch.stack([positions[:, i], ends[:, i]]).numpy() for i in (0, 1)), color="#555", linewidth=0.8)
    axes.scatter(positions[:, 0], positions[:, 1], s=14, c="#222")

    def outline(low: Corner, high: Corner, **style: Any) -> None:
        size = (high[0] - low[0], high[1] - low[1])
        axes.add_patch(Rectangle(low, *size, fill=False, edgecolor="#c0182b", **style))

    for k, block in enumerate(plan.blocks):
        (left, bottom), (right, top) = plan.box(k, bounded=True)
        outline((left, bottom), (right, top), linewidth=2)
        label = f"{k}\n{block.n_points:,} points\n{len(block.views):,} views"
        box = dict(facecolor="white", alpha=0.75, edgecolor="none", pad=3)
        axes.text((left + right) / 2, (bottom + top) / 2, label, ha="center", va="center", fontsize=11, bbox=box)
    outline(*plan.box(0, expanded=True, bounded=True), linestyle="--", linewidth=1.2)
    margin = 0.05 * size
    (x0, y0), (x1, y1) = (low - margin).tolist(), (high + margin).tolist()
    title = f"{len(plan.blocks):,} blocks, {len(cameras):,} views, {len(capture.points):,} points, from above"
    axes.set(xlim=(x0, x1), ylim=(y0, y1), aspect="equal", xticks=[], yticks=[], title=title)
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=100)
