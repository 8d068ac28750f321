"""A synthetic, ray-traced town of any size, written as a scene folder: houses and trees on a ground with streets.

The world frame has y down; the ground is at y = 0. Houses are boxes with rows of windows, trees are spheres. They are
lit by the sun, with shadows, and by the sky; colors do not depend on the view.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.room import nearer_root
from tsplat.scene import Camera, intrinsics, look_at
from tsplat.scene.images import to_bytes, write_png

LOT = 4.0
"""Distance between the center lines of streets."""

STREET = 0.55
"""Half of the width of a street."""

SUN = (0.45, -0.8, 0.35)
SKY = (0.72, 0.82, 0.93)
FOV = 50.0


@dataclasses.dataclass(frozen=True)
class Town:
    """Houses and trees on the ground.

    Attributes:
        size: Edge of the square town, which is centered at the origin.
        boxes: [B, 2, 3] lower and upper corners of houses.
        spheres: [S, 4] centers and radii of trees.
        colors: [B + S, 3] colors of houses, then of trees.
    """

    size: float
    boxes: Tensor
    spheres: Tensor
    colors: Tensor


def make_town(lots: int, seed: int = 0) -> Town:
    """Returns a town with `lots` squared lots, each with up to four houses or trees."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    boxes, spheres, walls, leaves = [], [], [], []
    edge = -lots * LOT / 2
    for i in range(4 * lots * lots):
        column, row = i // 4 % lots, i // 4 // lots
        x, z = (edge + LOT * (n + 0.34 + 0.32 * side) for n, side in ((column, i % 2), (row, i // 2 % 2)))
        if draw(0, 1) < 0.7:
            half_x, half_z, height = draw(0.35, 0.58), draw(0.35, 0.58), draw(0.5, 2.2)
            boxes.append([[x - half_x, -height, z - half_z], [x + half_x, 0.0, z + half_z]])
            walls.append([draw(0.45, 0.95), draw(0.35, 0.8), draw(0.3, 0.7)])
        else:
            radius = draw(0.25, 0.5)
            spheres.append([x, -1.2 * radius, z, radius])
            leaves.append([draw(0.1, 0.3), draw(0.3, 0.55), draw(0.08, 0.2)])
    return Town(lots * LOT, torch.tensor(boxes), torch.tensor(spheres), torch.tensor(walls + leaves))


def town_cameras(town: Town, n: int, width: int, height: int) -> list[Camera]:
    """Returns n cameras in rows above the town, which look down by 40 to 60 degrees in varying directions."""
    columns = math.ceil(math.sqrt(n))
    rows = math.ceil(n / columns)
    K, cameras = intrinsics(width, height, FOV), []
    for i in range(n):
        column, row = i % columns, i // columns
        x, z = (((k + 0.5) / count - 0.5) * town.size for k, count in ((column, columns), (row, rows)))
        angle, pitch = 2.4 * i, math.radians(40 + 20 * (0.618 * i % 1))
        direction = (math.cos(angle) * math.cos(pitch), math.sin(pitch), math.sin(angle) * math.cos(pitch))
        # Cameras at the border look inwards.
        if x * direction[0] + z * direction[2] > 0 and max(abs(x), abs(z)) > 0.3 * town.size:
            direction = (-direction[0], direction[1], -direction[2])
        eye = (x, -5.0 - (i % 3), z)
        target = tuple(e + d for e, d in zip(eye, direction, strict=True))
        cameras.append(Camera(look_at(eye, target), K, width, height, name=f"{i:04d}.png"))
    return cameras


def render_town(town: Town, camera: Camera, supersampling: int = 2) -> tuple[Tensor, Tensor]:
    """Returns the image of a camera [H, W, 3], and the points that its pixels show [H, W, 3]; infinite for the sky."""
    offsets = [(i + 0.5) / supersampling for i in range(supersampling)]
    found = [_shade(town, *_rays(camera, dx, dy)) for dy in offsets for dx in offsets]
    colors, points = torch.stack([colors for colors, _ in found]).mean(0), found[len(found) // 2][1]
    return colors.view(camera.height, camera.width, 3), points.view(camera.height, camera.width, 3)


def write_town(folder: Path, town: Town, cameras: list[Camera], n_points: int, seed: int = 0) -> None:
    """Writes images, ``transforms.json`` and a PLY of noisy points of visible surfaces."""
    (folder / "images").mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    places, colors, frames = [], [], []
    for camera in cameras:
        image, points = render_town(town, camera)
        write_png(folder / "images" / camera.name, to_bytes(image))
        chosen = torch.randint(camera.width * camera.height, (math.ceil(n_points / len(cameras)),), generator=generator)
        found = points.view(-1, 3)[chosen]
        finite = found.isfinite().all(-1)
        places.append(found[finite])
        colors.append(to_bytes(image).view(-1, 3)[chosen][finite])
        pose = torch.linalg.inv(camera.viewmat.double()) @ torch.diag(torch.tensor([1.0, -1, -1, 1])).double()
        frames.append({"file_path": f"images/{camera.name}", "transform_matrix": pose.tolist()})
    fx, fy, cx, cy = (float(cameras[0].K[i]) for i in ((0, 0), (1, 1), (0, 2), (1, 2)))
    sizes = {"fl_x": fx, "fl_y": fy, "cx": cx, "cy": cy, "w": cameras[0].width, "h": cameras[0].height}
    content = {**sizes, "ply_file_path": "points.ply", "frames": frames}
    (folder / "transforms.json").write_text(json.dumps(content))
    xyz, rgb = torch.cat(places), torch.cat(colors)
    xyz = xyz + 0.02 * torch.randn(xyz.shape, generator=generator)
    types = [*(f"float {axis}" for axis in "xyz"), *(f"uchar {name}" for name in ("red", "green", "blue"))]
    header = "".join(f"property {name}\n" for name in types)
    lines = [f"{x:.5f} {y:.5f} {z:.5f} {r} {g} {b}" for (x, y, z), (r, g, b) in zip(xyz.tolist(), rgb.tolist())]
    start = f"ply\nformat ascii 1.0\nelement vertex {len(lines)}\n{header}end_header\n"
    (folder / "points.ply").write_text(start + "\n".join(lines) + "\n")


def _rays(camera: Camera, dx: float, dy: float) -> tuple[Tensor, Tensor]:
    """Returns the center of a camera [3], and directions [R, 3] through the offset (dx, dy) in each pixel."""
    y, x = torch.meshgrid(torch.arange(camera.height) + dy, torch.arange(camera.width) + dx, indexing="ij")
    K, rotation = camera.K, camera.viewmat[:3, :3]
    local = torch.stack([(x - K[0, 2]) / K[0, 0], (y - K[1, 2]) / K[1, 1], torch.ones_like(x)], -1)
    return camera.position.float(), normalize(local.view(-1, 3) @ rotation, dim=-1)


def _shade(town: Town, eye: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the colors of rays [R, 3], and the points that they hit [R, 3]; infinite for the sky."""
    origins = eye.expand_as(directions)
    depths, ids = _trace(town, origins, directions)
    points = origins + depths[:, None] * directions
    hit = depths.isfinite()
    colors = torch.tensor(SKY).repeat(len(directions), 1)
    places, found = points[hit], ids[hit]
    normals, albedo = _surface(town, places, found)
    sun = normalize(torch.tensor(SUN), dim=0)
    shadowed = _trace(town, places + 1e-3 * normals, sun.expand_as(places))[0].isfinite()
    light = (normals @ sun).clamp_min(0) * ~shadowed
    ambient = 0.5 - 0.2 * normals[:, 1]  # up is -y
    colors[hit] = (albedo * (0.75 * light + 0.6 * ambient)[:, None]).clamp(0, 1)
    return colors, points


def _trace(town: Town, origins: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """Returns distances along rays to the first hit [R], infinite for none, and its index [R]; -1 for the ground."""
    depths = torch.where(directions[:, 1] > 1e-6, -origins[:, 1] / directions[:, 1], torch.inf)
    depths = torch.where(depths > 1e-4, depths, torch.inf)
    ids = torch.full_like(depths, -1, dtype=torch.long)
    # With coordinates as [3, R], minima and maxima are several times as fast.
    columns, aims = origins.T.contiguous(), directions.T.contiguous()
    inverse = 1 / aims

    def update(index: int, found: Tensor) -> None:
        ids.masked_fill_(found < depths, index)
        torch.minimum(depths, found, out=depths)

    boxes, spheres = _reached(town, origins, directions)
    for i in boxes:
        low, high = town.boxes[i]
        first, second = ((corner[:, None] - columns) * inverse for corner in (low, high))
        enter = torch.minimum(first, second).amax(0)
        leave = torch.maximum(first, second).amin(0)
        update(i, torch.where((enter < leave) & (enter > 1e-4), enter, torch.inf))
    for i in spheres:
        sphere = town.spheres[i]
        offsets = columns - sphere[:3, None]
        near = nearer_root((offsets * aims).sum(0), offsets.square().sum(0) - sphere[3] ** 2)
        update(len(town.boxes) + i, torch.where(near > 1e-4, near, torch.inf))
    return depths, ids


def _reached(town: Town, origins: Tensor, directions: Tensor) -> tuple[list[int], list[int]]:
    """Returns the indices of the boxes and of the spheres that rays may hit: those near a cone around all rays."""
    if not len(origins):
        return [], []
    middle, aim = origins.mean(0), normalize(directions.mean(0), dim=0)
    spread = (origins - middle).norm(dim=-1).max()
    angle = (directions @ aim).min().clamp(-1, 1).acos()

    def near(centers: Tensor, radii: Tensor) -> list[int]:
        offsets = centers - middle
        distances = offsets.norm(dim=-1)
        around = ((radii + spread) / distances).clamp(max=1).asin() + angle + 1e-3
        found = (distances <= radii + spread) | ((offsets @ aim / distances).clamp(-1, 1).acos() <= around)
        indices: list[int] = found.nonzero()[:, 0].tolist()
        return indices

    low, high = town.boxes.unbind(1)
    return near((low + high) / 2, (high - low).norm(dim=-1) / 2), near(town.spheres[:, :3], town.spheres[:, 3])


def _surface(town: Town, points: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the normals [R, 3] and colors [R, 3] of surface points."""
    normals = torch.tensor([0.0, -1.0, 0.0]).repeat(len(points), 1)
    n_boxes = len(town.boxes)
    colors = torch.cat([town.colors, town.colors.new_tensor([[0.34, 0.5, 0.24]])])[ids]
    house = (ids >= 0) & (ids < n_boxes)
    low, high = town.boxes[ids[house]].unbind(1)
    inside = (2 * points[house] - low - high) / (high - low)
    axis = inside.abs().argmax(-1, keepdim=True)
    normals[house] = torch.zeros_like(inside).scatter(1, axis, inside.gather(1, axis).sign())
    tree = ids >= n_boxes
    normals[tree] = normalize(points[tree] - town.spheres[ids[tree] - n_boxes, :3], dim=-1)
    x, y, z = points.unbind(-1)
    # Walls have windows, streets have a broken center line, and everything has noise.
    across = torch.where(normals[:, 0].abs() > 0.5, z, x)
    window = ((across / 0.22 % 1 - 0.5).abs() < 0.3) & ((y / 0.3 % 1 - 0.5).abs() < 0.3) & (normals[:, 1].abs() < 0.5)
    colors = torch.where((window & house)[:, None], torch.tensor([0.16, 0.2, 0.28]), colors)
    sides = [((value + town.size / 2) / LOT + 0.5) % 1 - 0.5 for value in (x, z)]
    street = [LOT * side.abs() < STREET for side in sides]
    ground, inside_town = ids < 0, (x.abs() < town.size / 2 + STREET) & (z.abs() < town.size / 2 + STREET)
    asphalt = (street[0] | street[1]) & ground & inside_town
    colors = torch.where(asphalt[:, None], torch.tensor([0.33, 0.33, 0.35]), colors)
    lines = [(LOT * side.abs() < 0.05) & (other / 0.5 % 1 < 0.5) for side, other in zip(sides, (z, x), strict=True)]
    colors = torch.where(((lines[0] | lines[1]) & asphalt)[:, None], torch.tensor([0.9, 0.9, 0.82]), colors)
    noise = _noise(points / 0.2) + _noise(points / 0.7) - 1
    return normals, colors * (1 + 0.2 * noise[:, None])


def _noise(points: Tensor) -> Tensor:
    """Returns a random number from 0 to 1 for the cell that contains each point [R, 3]."""
    cells = points.floor().double() @ torch.tensor([127.1, 311.7, 74.7], dtype=torch.float64)
    return (cells.sin() * 43758.5453 % 1).float()
