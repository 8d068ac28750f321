"""A ray-traced room for comparisons of training recipes: textured walls, thin rods, a glossy ball, many test views.

Rays are intersected in closed form with the inside of a box, spheres and cylinders. One lamp casts shadows. The world
frame has y down. Vectors of R rays or points are [R, 3].
"""

import dataclasses
import math

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tsplat.scene import Camera, Capture, View, intrinsics, look_at

HALF = (2.2, 1.3, 2.2)
"""Half the extents of the room."""

LAMP = (0.5, -1.0, -0.4)
BALLS = (((0.0, 0.35, 0.1), 0.45), ((-0.75, 0.9, 0.5), 0.3), ((0.8, -0.1, -0.5), 0.2))
RODS = tuple(
    ((math.cos(a) * r, 1.3, math.sin(a) * r), (math.cos(a + 0.7) * r, -0.6, math.sin(a + 0.7) * r), 0.012 + 0.006 * r)
    for a, r in ((0.3, 0.7), (1.2, 1.3), (2.2, 0.9), (3.1, 1.3), (4.0, 0.7), (4.9, 1.3), (5.7, 1.0))
)
"""Two ends and the radius of each rod."""

FOV, POINT_NOISE, SPECULAR = 65.0, 0.01, 0.35


def room_capture(
    width: int = 200,
    height: int = 150,
    n_train: int = 36,
    n_test: int = 24,
    n_points: int = 8000,
    *,
    exposure: float = 0.0,
    sky: bool = False,
    rolling: float = 0.0,
    seed: int = 0,
) -> Capture:
    """Renders the room from a ring of cameras that look across it, and samples noisy points of visible surfaces.

    Held-out views lie between training views. Logarithms of the gains of training views have mean 0 and the standard
    deviation `exposure`, and a fifth of it for each channel in addition; held-out views have gain 1. With `sky`, there
    is a sky without points instead of a ceiling. With `rolling`, cameras move by this fraction of a turn around the
    ring while rows are read; the first row has the pose of a camera without it.
    """
    generator = torch.Generator().manual_seed(seed)
    K = intrinsics(width, height, FOV)
    gains = exposure * (
        torch.randn(n_train, 1, generator=generator) + 0.2 * torch.randn(n_train, 3, generator=generator)
    )
    gains = (gains - gains.mean(0)).exp() if n_train else gains
    train, hits, colors = [], [], []
    for i in range(n_train):
        level = i % 3 - 1.0
        viewmat, end = camera(i / n_train, level), camera(i / n_train + rolling, level) if rolling else None
        image, points, shades = trace(viewmat, K, width, height, sky=sky, end=end)
        train.append(view(image * gains[i], viewmat, K, f"train_{i:03d}", end))
        if sky:
            solid = points[:, 1] > 1e-3 - HALF[1]
            points, shades = points[solid], shades[solid]
        chosen = torch.randperm(len(points), generator=generator)[: math.ceil(n_points / n_train)]
        hits.append(points[chosen])
        colors.append(shades[chosen])
    test = []
    for i in range(n_test):
        turn, level = (i + 0.5) / n_test, 0.6 * math.sin(7 * i)
        viewmat, end = camera(turn, level), camera(turn + rolling, level) if rolling else None
        test.append(view(trace(viewmat, K, width, height, sky=sky, end=end)[0], viewmat, K, f"test_{i:03d}", end))
    points = torch.cat(hits)[:n_points]
    points = points + POINT_NOISE * torch.randn(points.shape, generator=generator)
    return Capture(tuple(train), tuple(test), points, torch.cat(colors)[:n_points].clamp(0, 1))


def camera(turn: float, level: float) -> Tensor:
    """Returns the view matrix [4, 4] of a camera on the ring, at a fraction of a turn, which looks across the room."""
    angle = 2 * math.pi * turn
    eye = 1.75 * math.cos(angle), 0.45 * level, 1.75 * math.sin(angle)
    target = 0.3 * math.sin(3 * angle), 0.2 - 0.2 * level, 0.3 * math.cos(2 * angle)
    return look_at(eye, target)


def view(image: Tensor, viewmat: Tensor, K: Tensor, name: str, end: Tensor | None = None) -> View:
    """Returns the view of an image [H, W, 3] in [0, 1]. `end` is the pose of its last row, for a rolling shutter."""
    pixels = (255 * image.clamp(0, 1)).round().to(torch.uint8)
    camera = Camera(viewmat, K, image.shape[1], image.shape[0], name=name)
    if end is not None:
        camera = dataclasses.replace(camera, viewmat_end=end, readout="ROLLING_TOP_TO_BOTTOM")
    return View(pixels, camera)


def poses_of_rows(viewmat: Tensor, end: Tensor, height: int) -> Tensor:
    """Returns the view matrix of each row, [height, 4, 4].

    Translations are interpolated linearly, and rotations around one axis.
    """
    turn = end[:3, :3] @ viewmat[:3, :3].T
    skew = (turn - turn.T) / 2
    sine = skew.square().sum().div(2).sqrt().clamp_max(1)
    log = skew * (torch.asin(sine) / sine.clamp_min(1e-12))
    times = torch.linspace(0, 1, height)[:, None, None]
    poses = torch.lerp(viewmat, end, times)
    poses[:, :3, :3] = torch.linalg.matrix_exp(times * log) @ viewmat[:3, :3]
    return poses


def trace(
    viewmat: Tensor, K: Tensor, width: int, height: int, supersampling: int = 2, *, sky: bool = False,
    end: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the image [height, width, 3]; and a surface point and its color for each pixel, [height width, 3].

    With `end`, the poses of rows are interpolated from `viewmat` for the first to `end` for the last.
    """
    xs, ys = ((torch.arange(size * supersampling) + 0.5) / supersampling for size in (width, height))
    y, x = torch.meshgrid(ys, xs, indexing="ij")
    rays = torch.stack([(x - K[0, 2]) / K[0, 0], (y - K[1, 2]) / K[1, 1], torch.ones_like(x)], -1).view(-1, 3)
    poses = viewmat[None] if end is None else poses_of_rows(viewmat, end, height)
    rows = normalize(rays, dim=-1).view(len(poses), -1, 3)
    centers = -poses[:, None, :3, 3] @ poses[:, :3, :3]
    directions, origins = (rows @ poses[:, :3, :3]).view(-1, 3), centers.expand_as(rows).reshape(-1, 3)
    depths, solids, normals = intersect(origins, directions)
    points = origins + depths[:, None] * directions
    colors = shade(points, normals, directions, solids)
    if sky:
        open_sky = (solids == 0) & (points[:, 1] < 1e-3 - HALF[1])
        colors = torch.where(open_sky[:, None], sky_color(directions), colors)
    grid = colors.view(height, supersampling, width, supersampling, 3)
    corners = points.view(height, supersampling, width, supersampling, 3)[:, 0, :, 0]
    return grid.mean((1, 3)), corners.reshape(-1, 3), grid[:, 0, :, 0].reshape(-1, 3)


def intersect(origins: Tensor, directions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the distance [R] to the first surface, the index of its solid [R], and its normal [R, 3]."""
    half = origins.new_tensor(HALF)
    signs = torch.where(directions < 0, -1.0, 1.0)
    depth, axis = ((half * signs - origins) / directions).min(-1)
    normal = -signs * torch.nn.functional.one_hot(axis, 3)
    solid = torch.zeros_like(axis)
    for i, (center, radius) in enumerate(BALLS, 1):
        offset = origins - origins.new_tensor(center)
        t = nearer_root((offset * directions).sum(-1), offset.square().sum(-1) - radius**2)
        hit = (t > 1e-4) & (t < depth)
        depth, solid = torch.where(hit, t, depth), torch.where(hit, i, solid)
        normal = torch.where(hit[:, None], (offset + t[:, None] * directions) / radius, normal)
    for i, (bottom, top, radius) in enumerate(RODS, 1 + len(BALLS)):
        start, axis_vector = origins.new_tensor(bottom), origins.new_tensor(top) - origins.new_tensor(bottom)
        length, unit = axis_vector.norm(), normalize(axis_vector, dim=0)
        # The parts of ray and offset across the rod.
        offset = origins - start
        d, o = directions - (directions @ unit)[:, None] * unit, offset - (offset @ unit)[:, None] * unit
        a = d.square().sum(-1).clamp_min(1e-12)
        t = nearer_root((o * d).sum(-1) / a, (o.square().sum(-1) - radius**2) / a)
        along = (offset + t[:, None] * directions) @ unit
        hit = (t > 1e-4) & (t < depth) & (along > 0) & (along < length)
        depth, solid = torch.where(hit, t, depth), torch.where(hit, i, solid)
        normal = torch.where(hit[:, None], (o + t[:, None] * d) / radius, normal)
    return depth, solid, normal


def nearer_root(b: Tensor, c: Tensor) -> Tensor:
    """Returns the smaller root of t² + 2 b t + c; infinite if there is none."""
    discriminant = b.square() - c
    root: Tensor = torch.where(discriminant > 0, -b - discriminant.clamp_min(0).sqrt(), torch.inf)
    return root


def shade(points: Tensor, normals: Tensor, directions: Tensor, solids: Tensor) -> Tensor:
    """Returns the colors [R, 3] of surface points for viewing directions."""
    to_lamp = points.new_tensor(LAMP) - points
    distance = to_lamp.norm(dim=-1)
    toward = to_lamp / distance[:, None]
    lit = (normals * toward).sum(-1).clamp_min(0)
    shadow_depth, _, _ = intersect(points + 2e-3 * normals, toward)
    lit = lit * (shadow_depth > distance) / (0.3 + 0.35 * distance.square())
    mirrored = directions - 2 * (directions * normals).sum(-1, keepdim=True) * normals
    gloss = SPECULAR * ((mirrored * toward).sum(-1).clamp_min(0) ** 20) * (solids == 1) * (lit > 0)
    colors: Tensor = texture(points, solids) * (0.3 + 0.8 * lit)[:, None] + gloss[:, None]
    return colors


def sky_color(directions: Tensor) -> Tensor:
    """Returns the colors [R, 3] of the sky, with clouds, for viewing directions."""
    x, y, z = directions.unbind(-1)
    clouds = 0.5 + 0.5 * torch.sin(5 * x + 2 * torch.sin(4 * z)) * torch.sin(6 * z + 3 * y)
    blue = directions.new_tensor([0.35, 0.55, 0.9]) + (1 + y)[:, None] * directions.new_tensor([0.4, 0.3, 0.1])
    colors: Tensor = torch.lerp(blue, directions.new_tensor(0.95), 0.7 * clouds[:, None] ** 2).clamp(0, 1)
    return colors


def texture(points: Tensor, solids: Tensor) -> Tensor:
    """Returns the albedo [R, 3]: a checked floor, papered and bricked walls with fine grain, striped solids."""
    x, y, z = points.unbind(-1)
    generator = torch.Generator().manual_seed(1)
    waves = torch.randn(24, 3, generator=generator) * torch.logspace(0.3, 1.5, 24)[:, None]
    tints = torch.rand(24, 3, generator=generator) - 0.5
    grain = torch.sin(points @ waves.T + 6 * torch.rand(24, generator=generator)) @ tints * 0.1
    checks = ((x / 0.4).floor() + (z / 0.4).floor()) % 2
    row = (y / 0.16).floor()
    across = torch.where((x.abs() - HALF[0]).abs() < 1e-3, z, x)
    mortar = ((y / 0.16 - row) < 0.12) | (((across / 0.36 + 0.5 * row) % 1) < 0.06)
    stripes = 0.5 + 0.5 * torch.sign(torch.sin(24 * (points @ points.new_tensor([1.0, 0.6, 0.3]))))
    wall = torch.where(mortar[:, None], points.new_tensor([0.8, 0.78, 0.72]), points.new_tensor([0.62, 0.35, 0.27]))
    floor = 0.25 + 0.55 * checks[:, None] * points.new_tensor([1.0, 0.95, 0.85])
    hue = solids[:, None] * points.new_tensor([1.3, 2.9, 4.1])
    solid = (0.55 + 0.35 * torch.sin(hue)) * (0.55 + 0.45 * stripes[:, None])
    room = torch.where((y > HALF[1] - 1e-3)[:, None], floor, wall)
    albedo: Tensor = torch.where((solids == 0)[:, None], room + grain, solid + 0.4 * grain).clamp(0.02, 1)
    return albedo
