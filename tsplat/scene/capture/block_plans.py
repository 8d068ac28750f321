"""Block plans: divide a capture that is too large for one run into blocks that are trained one by one.

The ground plane is divided into boxes with about equal numbers of points; the outermost boxes are unbounded on the
outside. The run of a block trains on the views that show enough of its box, and keeps the Gaussians in the box. As in
VastGaussian (Lin et al., 2024), training expands the box by a margin, and also trains the surroundings that its views
show, with fewer points, so that Gaussians inside do not imitate the outside.
"""

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import ArgumentError, FileError
from ...precision import fp64, in_full_precision
from ...scalars import check_size
from ...support.files import write_json
from ...support.reading import read_json
from ..cameras import Camera, project_points
from ..gaussians import Gaussians
from .views import Capture

FORMAT, VERSION, PLAN = "tsplat blocks", 1, "plan.json"

POINTS_MAX = 200_000
"""Number of points from which borders and the views of blocks are computed."""

CELLS = 16
"""Number of cells along the width of an image. Each cell counts for the blocks of its nearest point."""

EXTENT = 0.01
"""Share of the points at either end of an axis that are ignored when the sizes of outer blocks are computed."""

IDENTITY = tuple(tuple(float(i == j) for j in range(4)) for i in range(4))

Corner = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Block:
    """A box on the ground plane, and the views that show it.

    Attributes:
        low, high: Corners in the coordinates of :meth:`BlockPlan.ground`; `low` belongs to the box, `high` does not.
            They are infinite where the block has no border.
        views: Names of the views that show the block, including held-out views.
        n_points: Number of points in the box.
    """

    low: Corner
    high: Corner
    views: tuple[str, ...]
    n_points: int


@dataclasses.dataclass(frozen=True)
class BlockPlan:
    """A partition of a capture into blocks; every point of the ground plane lies in exactly one block.

    Attributes:
        scene: The folder that the capture was read from.
        axes: Three orthonormal vectors in the frame of the plan: two in the ground plane, and up.
        extent: Corners of the bounding box of most points, on the ground.
        margin: Fraction of a box's size by which it is expanded on each side for training.
        blocks: The blocks, column by column.
        world: Similarity transform from the frame of the files to the frame of the plan and its models, as rows of a
            4×4 matrix: the identity, unless the files are too far from their origin for single precision.
    """

    scene: str
    axes: tuple[tuple[float, float, float], ...]
    extent: tuple[Corner, Corner]
    margin: float
    blocks: tuple[Block, ...]
    world: tuple[tuple[float, ...], ...] = IDENTITY

    def ground(self, points: Tensor) -> Tensor:
        """Projects points [P, 3] in the frame of the plan to coordinates on the ground, [P, 2] fp64."""
        return points.double() @ points.new_tensor(self.axes[:2], dtype=torch.float64).T

    def contains(self, block: int, points: Tensor, *, expanded: bool = False) -> Tensor:
        """Returns a mask [P] of the points [P, 3] in the frame of the plan that lie in a block, or if `expanded` in its
        margin."""
        low, high = (fp64(corner) for corner in self.box(block, expanded=expanded))
        coordinates = self.ground(points)
        return ((coordinates >= low.to(coordinates)) & (coordinates < high.to(coordinates))).all(-1)

    def box(self, block: int, *, expanded: bool = False, bounded: bool = False) -> tuple[Corner, Corner]:
        """Returns the corners of a block; with its margin if `expanded`; clipped to the extent if `bounded`."""
        low, high = self.blocks[block].low, self.blocks[block].high
        ends = [(max(a, c), min(b, d)) for a, b, c, d in zip(low, high, *self.extent, strict=True)]
        margins = [self.margin * max(end - start, 0.0) if expanded else 0.0 for start, end in ends]
        if bounded:
            low, high = (ends[0][0], ends[1][0]), (ends[0][1], ends[1][1])
        return (low[0] - margins[0], low[1] - margins[1]), (high[0] + margins[0], high[1] + margins[1])

    def check_block(self, block: int) -> int:
        """Returns a valid index of a block; raises ArgumentError for others."""
        if not 0 <= block < len(self.blocks):
            raise ArgumentError(f"block: expected 0 to {len(self.blocks) - 1}, the blocks of the plan, found {block}")
        return block


@in_full_precision
def plan_blocks(
    capture: Capture,
    blocks: int | tuple[int, int],
    *,
    margin: float = 0.2,
    min_share: float = 0.03,
    scene: str | os.PathLike[str] = "",
) -> BlockPlan:
    """Divides a capture into blocks with about equal numbers of points, on the plane in which the points are spread
    most.

    A view is assigned to each block that covers at least `min_share` of its image, and to the block that covers most of
    it. To measure this, the image is divided into cells. A block covers a cell if its expanded box contains the cell's
    nearest point. Distortion is ignored.

    Args:
        capture: Capture in the frame of the files, not normalized.
        blocks: Number of blocks, or numbers of columns and rows.
        margin: Fraction of a box's size by which it is expanded on each side for training.
        min_share: Share of its image that a block must cover for a view to be assigned to it, above 0.
        scene: Folder that the capture was read from.

    Raises:
        ArgumentError: A number is out of range, there are fewer points than blocks, or no view shows a block.
    """
    for value in (blocks,) if isinstance(blocks, int) else blocks:
        check_size("blocks", value)
    if not 0 <= margin < math.inf:
        raise ArgumentError(f"margin: expected a number of at least 0, found {margin}")
    if not 0 < min_share <= 1:
        raise ArgumentError(f"min_share: expected a number above 0 and up to 1, found {min_share}")
    views = (*capture.train, *capture.test)
    points = capture.points[:: 1 + len(capture.points) // POINTS_MAX].double().cpu()
    n = blocks if isinstance(blocks, int) else blocks[0] * blocks[1]
    if len(points) < n:
        raise ArgumentError(f"blocks: expected at most as many as points, found {n:,} and {len(points):,} points")
    axes = _ground_axes(points, [view.camera for view in views])
    coordinates = points @ axes[:2].T
    ordered = coordinates.sort(0).values
    low, high = (ordered[round(q * (len(points) - 1))].tolist() for q in (EXTENT, 1 - EXTENT))
    if isinstance(blocks, int):
        aspect = (high[0] - low[0]) / max(high[1] - low[1], 1e-9 * (high[0] - low[0]), math.ulp(0))
        columns = max(1, min(blocks, round(math.sqrt(blocks * aspect))))
        rows = [blocks * (i + 1) // columns - blocks * i // columns for i in range(columns)]
    else:
        rows = [blocks[1]] * blocks[0]
    boxes = []
    for left, right, count in zip(*_cut(coordinates[:, 0], rows), rows, strict=True):
        column = coordinates[(coordinates[:, 0] >= left) & (coordinates[:, 0] < right)]
        boxes += [((left, down), (right, up)) for down, up in zip(*_cut(column[:, 1], [1] * count), strict=True)]
    plan = BlockPlan(
        scene=os.fspath(scene),
        axes=tuple((x, y, z) for x, y, z in axes.tolist()),
        extent=((low[0], low[1]), (high[0], high[1])),
        margin=margin,
        blocks=tuple(Block(*box, (), 0) for box in boxes),
        world=tuple(map(tuple, capture.frame.world.tolist())),
    )
    return dataclasses.replace(plan, blocks=_assign(plan, capture, points, min_share))


def _assign(plan: BlockPlan, capture: Capture, points: Tensor, min_share: float) -> tuple[Block, ...]:
    """Returns the blocks of a plan with their views and numbers of points filled in."""
    indices = range(len(plan.blocks))
    members = torch.stack([plan.contains(k, points, expanded=True) for k in indices])
    views = (*capture.train, *capture.test)
    shares = torch.stack([_shares(view.camera, points, members) for view in views])
    assigned = (shares >= min_share) | ((shares == shares.amax(1, keepdim=True)) & (shares > 0))
    blocks = []
    for k in indices:
        names = sorted(view.name for view, shown in zip(views, assigned[:, k].tolist(), strict=True) if shown)
        if not names:
            raise ArgumentError(f"blocks: no view shows block {k}; plan fewer blocks, or a smaller min_share")
        n_points = int(plan.contains(k, capture.points).sum())
        blocks.append(dataclasses.replace(plan.blocks[k], views=tuple(names), n_points=n_points))
    return tuple(blocks)


def _ground_axes(points: Tensor, cameras: Sequence[Camera]) -> Tensor:
    """Returns two axes of the plane in which points [P, 3] are spread most, and up, as rows; ignores the farthest tenth
    of the points."""
    distances = (points - points.median(0).values).norm(dim=-1)
    near = points[distances <= distances.sort().values[int(0.9 * (len(points) - 1))]]
    centered = near - near.mean(0)
    right, _, up = torch.linalg.eigh(centered.T @ centered).eigenvectors.T.flip(0)
    # Cameras look down or straight ahead: up is opposite to their y axis, their z axis or both.
    rotations = torch.stack([camera.viewmat[:3, :3].double().cpu() for camera in cameras])
    up = up if float(rotations[:, 1:].sum((0, 1)) @ up) <= 0 else -up
    right = right if float(right[right.abs().argmax()]) > 0 else -right
    return torch.stack([right, up.cross(right, -1), up])


def _cut(values: Tensor, shares: Sequence[int]) -> tuple[list[float], list[float]]:
    """Divides values [P] into intervals with the given shares; returns their lower and upper borders, the outermost
    infinite."""
    ordered, total, borders = values.sort().values, sum(shares), []
    for i in range(1, len(shares)):
        rank = min(max(1, len(ordered) * sum(shares[:i]) // total), len(ordered) - 1)
        borders.append(float(ordered[rank - 1 : rank + 1].mean()))
    return [-math.inf, *borders], [*borders, math.inf]


def _shares(camera: Camera, points: Tensor, members: Tensor) -> Tensor:
    """Returns the share of the cells of an image whose nearest point belongs to each block. [B]

    Args:
        points: [P, 3] fp64, world frame.
        members: [B, P] bool, whether a block contains a point.
    """
    rows = max(1, round(CELLS * camera.height / camera.width))
    *pixels, depths, inside = project_points(camera, points)
    visible = inside.nonzero().squeeze(1)
    depths = depths[visible]
    x, y = ((p[visible] * factor).long() for p, factor in zip(pixels, (CELLS / camera.width, rows / camera.height)))
    cells = y.clamp_max(rows - 1) * CELLS + x.clamp_max(CELLS - 1)
    nearest = torch.full((CELLS * rows,), math.inf, dtype=depths.dtype, device="cpu").scatter_reduce(
        0, cells, depths, "amin"
    )
    shown = visible[depths == nearest[cells]]
    return members[:, shown].double().mean(1) if len(shown) else members.new_zeros(len(members), dtype=torch.float64)


def select_block(capture: Capture, plan: BlockPlan, block: int, *, seed: int = 0) -> Capture:
    """Returns a capture with the views and points that a block is trained on.

    The capture contains all points in the expanded box of the block. Of the other points that its training views show,
    it contains a random sample, which is at most as large as the number of points in the box.

    Args:
        capture: The capture of the plan, in the frame of the files or in a local one.
        plan: The plan.
        block: Index of the block.
        seed: Random seed for the points outside.

    Raises:
        ArgumentError: There is no such block, or all its views are held out.
        FileError: The capture lacks a view of the plan, or its models would be in another frame.
    """
    names = set(plan.blocks[plan.check_block(block)].views)
    missing = names.difference(view.name for view in (*capture.train, *capture.test))
    if missing:
        raise FileError(
            f"{plan.scene}: {len(missing):,} views of block {block} are not in the scene (first: {min(missing)}); plan "
            "the blocks again"
        )
    world = capture.frame.world
    if not torch.allclose(world, world.new_tensor(plan.world), rtol=0, atol=1e-9 * (1 + float(world.abs().max()))):
        raise FileError(
            f"{plan.scene}: the models of its blocks would not be in the frame of the plan, as the cameras have moved "
            "since; plan the blocks again"
        )
    train, test = (tuple(view for view in views if view.name in names) for views in (capture.train, capture.test))
    if not train:
        raise ArgumentError(f"block: all {len(test):,} views of block {block} are held out; plan fewer blocks")
    inside = plan.contains(block, capture.frame.points_of_model(capture.points), expanded=True)
    seen = torch.zeros_like(inside)
    for view in train:
        seen |= project_points(view.camera, capture.points)[-1]
    around = (seen & ~inside).nonzero().squeeze(1)
    order = torch.randperm(len(around), generator=torch.Generator().manual_seed(seed), device="cpu").to(around.device)
    n_inside = int(inside.sum())
    chosen = torch.cat([inside.nonzero().squeeze(1), around[order[:n_inside]]]).sort().values
    note = (
        f"block {block} of {len(plan.blocks)}: {len(names):,} of {len(capture.train) + len(capture.test):,} views; "
        f"{n_inside:,} points in it and its margin, and {len(chosen) - n_inside:,} of {len(around):,} around it "
        "that its views show"
    )
    points, colors, notes = capture.points[chosen], capture.colors[chosen], (*capture.notes, note)
    return dataclasses.replace(capture, train=train, test=test, points=points, colors=colors, notes=notes)


def crop_to_block(gaussians: Gaussians, plan: BlockPlan, block: int) -> Gaussians:
    """Returns the Gaussians whose centers, in the frame of the plan, lie in a block without its margin."""
    inside = plan.contains(block, gaussians.means)
    return gaussians.select(inside)


def write_plan(folder: str | os.PathLike[str], plan: BlockPlan) -> None:
    """Writes ``plan.json`` into a folder."""
    write_json(Path(folder) / PLAN, {"format": FORMAT, "version": VERSION, **_to_json(plan)})


def digest(plan: BlockPlan) -> str:
    """Returns a hash of a plan, without the path of the scene, which may change."""
    values = {name: value for name, value in _to_json(plan).items() if name != "scene"}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _to_json(plan: BlockPlan) -> dict[str, Any]:
    def finite(corner: Corner) -> list[float | None]:
        return [value if math.isfinite(value) else None for value in corner]

    blocks = [vars(block) | {"low": finite(block.low), "high": finite(block.high)} for block in plan.blocks]
    return {**vars(plan), "blocks": blocks}


def read_plan(folder: str | os.PathLike[str]) -> BlockPlan:
    """Reads the ``plan.json`` of a folder.

    Raises:
        FileError: The file is missing or damaged, or another version wrote it.
    """
    path = Path(folder) / PLAN
    try:
        values: Any = read_json(path)
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror}); make it with tsplat blocks plan") from error
    try:
        if (header := (values["format"], values["version"])) != (FORMAT, VERSION):
            raise FileError(f"{path}: expected {FORMAT!r} of version {VERSION}, found {header}; plan the blocks again")
        blocks = [
            Block(
                _corner(b["low"], -math.inf), _corner(b["high"], math.inf), tuple(map(str, b["views"])), b["n_points"]
            )
            for b in values["blocks"]
        ]
        axes = tuple((float(x), float(y), float(z)) for x, y, z in values["axes"])
        world = tuple(tuple(map(float, row)) for row in values.get("world", IDENTITY))
        low, high = map(_corner, values["extent"])
        if len(axes) != 3 or not blocks or [len(row) for row in world] != [4] * 4:
            raise ValueError("expected three axes, at least one block, and a world of 4×4 numbers")
        return BlockPlan(str(values["scene"]), axes, (low, high), float(values["margin"]), tuple(blocks), world)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path}: damaged ({type(error).__name__}: {error}); plan the blocks again") from error


def _corner(values: Sequence[float | None], missing: float = math.nan) -> Corner:
    """Returns the two numbers of a corner in a file; None becomes `missing`."""
    first, second = (missing if value is None else float(value) for value in values)
    return first, second
