"""A small scene that needs no data: textured solids on a round table, traced ray by ray.

Rays march along the distance to a solid (Hart, "Sphere tracing", 1996), solid by solid, within the ball around it. The
shading depends on the place alone, not on the camera: a sun with shadows, sky light, darker corners. World frame with
y down, as structure-from-motion leaves it; the table's top is at y = 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from einops import reduce
from torch import Tensor
from torch.nn.functional import normalize

from ...arguments import check_size
from ..cameras import intrinsics, orbit
from ..images import to_bytes
from .captures import Capture, View

SKY = (0.80, 0.88, 0.96)
TABLE_RADIUS = 1.75
TARGET = (0.0, -0.18, 0.0)
ORBIT_RADIUS = 4.3
FOV = 40.0
SUN = (-0.45, -0.8, -0.4)
"""Direction to the sun, before it is normalized."""

SUNLIGHT, SKYLIGHT = (0.72, 0.66, 0.58), (0.24, 0.28, 0.34)

NEAREST = 3e-4
"""A ray this close to a surface has hit it."""

STEPS = 64
"""A ray that has not hit by then has missed."""

Point = tuple[float, float, float]
Field = Callable[[Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class Solid:
    """A shape given by its distance.

    Attributes:
        center: World frame.
        reach: Radius of a ball around the center that holds the solid.
        field: Signed distance [R] of points [R, 3], relative to the center.
        color: RGB [R, 3] of surface points [R, 3], relative to the center.
    """

    center: Point
    reach: float
    field: Field
    color: Field

    def distance(self, points: Tensor) -> Tensor:
        """Signed distance [R] of points [R, 3], world frame."""
        return self.field(points - points.new_tensor(self.center))


def procedural_capture(
    width: int = 176,
    height: int = 132,
    n_train: int = 32,
    n_test: int = 4,
    n_points: int = 6000,
    *,
    supersampling: int = 3,
    position_noise: float = 0.03,
    color_noise: float = 0.1,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Capture:
    """Pictures of the scene from a low and a high orbit, and a coarse, noisy point cloud of what they see.

    Args:
        width, height: Picture size in pixels.
        n_train, n_test: Views to fit, and views held out, which lie between those.
        n_points: Points of the cloud.
        supersampling: Rays along each edge of a pixel.
        position_noise: Standard deviation of each coordinate of the points, world units; the table is 3.5 wide.
        color_noise: Standard deviation of each channel of the points' colors, which are in [0, 1].
        seed: Of the choice of points and the noise.
        device: Where to compute, and where the result lies.

    Raises:
        ArgumentError: A size or number that is not positive.
    """
    sizes = dict(width=width, height=height, n_train=n_train, n_test=n_test, n_points=n_points)
    for argument, value in (sizes | dict(supersampling=supersampling)).items():
        check_size(argument, value)
    K = intrinsics(width, height, FOV)
    train = _ring(n_train, low=16.0, high=44.0, turn=0.0)
    test = _ring(n_test, low=22.0, high=38.0, turn=180.0 / n_train)
    views, hits, colors = [], [], []
    for i, viewmat in enumerate([*train, *test]):
        name = f"train_{i:03d}" if i < n_train else f"test_{i - n_train:03d}"
        picture, points, shades = trace(viewmat.to(device), K.to(device), width, height, supersampling)
        views.append(View(name, to_bytes(picture), viewmat.to(device), K.to(device)))
        if i < n_train:
            hits.append(points[:: supersampling**2])
            colors.append(shades[:: supersampling**2])
    generator = torch.Generator().manual_seed(seed)
    seen, shown = torch.cat(hits).cpu(), torch.cat(colors).cpu()
    chosen = torch.randperm(len(seen), generator=generator)[:n_points]
    points = seen[chosen] + position_noise * torch.randn(len(chosen), 3, generator=generator)
    shades = shown[chosen] + color_noise * torch.randn(len(chosen), 3, generator=generator)
    return Capture(
        train=tuple(views[:n_train]),
        test=tuple(views[n_train:]),
        points=points.to(device),
        colors=shades.clamp(0, 1).to(device),
        background=SKY,
    )


def trace(viewmat: Tensor, K: Tensor, width: int, height: int, supersampling: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """A picture of the scene, each pixel the mean of a grid of rays.

    Returns:
        The picture [height, width, 3] in [0, 1]; where rays hit a surface, [R, 3]; and the colors there, [R, 3].
    """
    xs, ys = (
        (torch.arange(size * supersampling, device=viewmat.device) + 0.5) / supersampling for size in (width, height)
    )
    y, x = torch.meshgrid(ys, xs, indexing="ij")
    directions = torch.stack([(x - K[0, 2]) / K[0, 0], (y - K[1, 2]) / K[1, 1], torch.ones_like(x)], -1).view(-1, 3)
    directions = normalize(directions, dim=-1) @ viewmat[:3, :3]
    eye = -viewmat[:3, :3].T @ viewmat[:3, 3]
    depths = torch.stack([_march(solid, eye.expand_as(directions), directions) for solid in SOLIDS])
    nearest, owners = depths.min(0)
    hit = nearest < torch.inf
    points = eye + nearest[hit, None] * directions[hit]
    shades = _shade(points, owners[hit])
    colors = directions.new_tensor(SKY).repeat(len(directions), 1)
    colors[hit] = shades
    picture = reduce(colors, "(y sy x sx) c -> y x c", "mean", sy=supersampling, sx=supersampling, x=width)
    return picture, points, shades


def distance(points: Tensor) -> Tensor:
    """Signed distance of points [R, 3] to the nearest surface. [R]"""
    return torch.stack([solid.distance(points) for solid in SOLIDS]).amin(0)


def _ring(n: int, low: float, high: float, turn: float) -> Tensor:
    """Cameras around the table, low and high by turns."""
    azimuths = [turn + 360.0 * i / n for i in range(n)]
    return orbit(TARGET, ORBIT_RADIUS, azimuths, [high if i % 2 else low for i in range(n)])


def _march(solid: Solid, origins: Tensor, directions: Tensor) -> Tensor:
    """How far along each ray the solid is, infinity where it is missed. [R]"""
    offsets = origins - origins.new_tensor(solid.center)
    along = -(offsets * directions).sum(-1)
    within = solid.reach**2 - (offsets * offsets).sum(-1) + along * along
    half = within.clamp_min(0).sqrt()
    active = ((within > 0) & (along + half > 0)).nonzero().squeeze(1)
    depths = torch.full_like(along, torch.inf)
    start, way, t, end = (
        offsets[active],
        directions[active],
        (along - half)[active].clamp_min(0),
        (along + half)[active],
    )
    for _ in range(STEPS):
        step = solid.field(start + t[:, None] * way)
        t = t + step
        hit = step < NEAREST
        depths[active[hit]] = t[hit]
        going = ~hit & (t < end)
        active, start, way, t, end = active[going], start[going], way[going], t[going], end[going]
        if not len(active):
            break
    return depths


def _shade(points: Tensor, owners: Tensor) -> Tensor:
    """Colors in [0, 1] of surface points, given the index of the solid they lie on. [R, 3]"""
    albedo, normals = torch.empty_like(points), torch.empty_like(points)
    for i, solid in enumerate(SOLIDS):
        mine = owners == i
        local = points[mine] - points.new_tensor(solid.center)
        albedo[mine] = solid.color(local)
        with torch.enable_grad():
            local.requires_grad_()
            (slope,) = torch.autograd.grad(solid.field(local).sum(), local)
        normals[mine] = normalize(slope, dim=-1)
    sun = normalize(points.new_tensor(SUN), dim=0)
    sunlight = (normals @ sun).clamp_min(0)
    facing = sunlight.nonzero().squeeze(1)
    # A little off the surface, so that it does not shade itself.
    origins, way = points[facing] + 5e-3 * normals[facing], sun.expand(len(facing), 3)
    for solid in SOLIDS:
        sunlight[facing[_march(solid, origins, way) < torch.inf]] = 0
    skylight = 0.5 - 0.5 * normals[:, 1]
    for reach in (0.06, 0.18):
        skylight = skylight * (0.5 + 0.5 * (distance(points + reach * normals) / reach).clamp(0, 1))
    light = 0.2 + skylight[:, None] * points.new_tensor(SKYLIGHT) + sunlight[:, None] * points.new_tensor(SUNLIGHT)
    return (albedo * light).clamp(0, 1)


def _ball(center: Point, radius: float, color: Field) -> Solid:
    return Solid(
        center,
        reach=1.01 * radius,
        field=lambda points: points.norm(dim=-1) - radius,
        color=lambda points: color(points / radius),
    )


def _box(center: Point, half: float, turn: float, color: Field) -> Solid:
    """A cube with rounded edges, turned by degrees about the vertical."""
    edge = 0.04

    def field(points: Tensor) -> Tensor:
        return _rounded(_turned(points, turn).abs() - half, edge)

    return Solid(center, 1.74 * half, field, lambda points: color(_turned(points, turn) / half))


def _torus(center: Point, radius: float, thickness: float, turn: float, color: Field) -> Solid:
    """An upright ring, turned by degrees about the vertical."""

    def field(points: Tensor) -> Tensor:
        x, y, z = _turned(points, turn).unbind(-1)
        return torch.hypot(torch.hypot(x, y) - radius, z) - thickness

    return Solid(center, 1.01 * (radius + thickness), field, lambda points: color(_turned(points, turn)))


def _cylinder(center: Point, radius: float, half: float, color: Field) -> Solid:
    """An upright cylinder of height 2 `half` with rounded edges."""
    edge = 0.03

    def field(points: Tensor) -> Tensor:
        x, y, z = points.unbind(-1)
        return _rounded(torch.stack([torch.hypot(x, z) - radius, y.abs() - half], -1), edge)

    return Solid(center, math.hypot(radius, half), field, color)


def _rounded(beyond: Tensor, edge: float) -> Tensor:
    """Signed distance [R] to a box with rounded edges, given how far beyond its faces points are, [R, D]."""
    q = beyond + edge
    outside: Tensor = q.clamp_min(0).norm(dim=-1)
    return outside + q.amax(-1).clamp_max(0) - edge


def _turned(points: Tensor, degrees: float) -> Tensor:
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    x, y, z = points.unbind(-1)
    return torch.stack([c * x - s * z, y, s * x + c * z], -1)


def _mix(choice: Tensor, *colors: tuple[float, float, float]) -> Tensor:
    """Colors by index. [R] -> [R, 3]"""
    return torch.tensor(colors, device=choice.device)[choice.long() % len(colors)]


def _table(points: Tensor) -> Tensor:
    x, y, z = points.unbind(-1)
    checks = _mix((x / 0.35).floor() + (z / 0.35).floor(), (0.93, 0.88, 0.78), (0.36, 0.55, 0.58))
    rim = _mix(torch.zeros_like(x), (0.55, 0.36, 0.24))
    return torch.where(((torch.hypot(x, z) < TABLE_RADIUS - 0.12) & (y < -0.06))[:, None], checks, rim)


def _beach_ball(points: Tensor) -> Tensor:
    x, y, z = points.unbind(-1)
    sector = (torch.atan2(z, x) / (math.pi / 4)).floor()
    stripes = _mix(sector, (0.90, 0.22, 0.20), (0.97, 0.95, 0.90), (0.98, 0.75, 0.18), (0.97, 0.95, 0.90))
    return torch.where((y.abs() > 0.93)[:, None], _mix(sector * 0, (0.90, 0.22, 0.20)), stripes)


def _dice(points: Tensor) -> Tensor:
    order = points.abs().sort(-1).values
    dot = order[:, 0] ** 2 + order[:, 1] ** 2 < 0.32**2
    corner = (order[:, 0] - 0.6) ** 2 + (order[:, 1] - 0.6) ** 2 < 0.22**2
    return torch.where((dot | corner)[:, None], _mix(dot * 0, (0.97, 0.95, 0.88)), _mix(dot * 0, (0.20, 0.38, 0.78)))


def _rainbow(points: Tensor) -> Tensor:
    angle = torch.atan2(points[:, 1], points[:, 0])[:, None]
    return 0.58 + 0.36 * torch.cos(angle + angle.new_tensor((0.0, 2.1, 4.2)))


def _pole(points: Tensor) -> Tensor:
    x, y, z = points.unbind(-1)
    return _mix((torch.atan2(z, x) / math.pi + y / 0.3).mul(2).floor(), (0.20, 0.58, 0.36), (0.95, 0.93, 0.85))


def _gold(points: Tensor) -> Tensor:
    return _mix((points[:, 1] * 2.5).floor(), (0.95, 0.68, 0.20), (0.72, 0.30, 0.52))


SOLIDS = (
    _cylinder((0.0, 0.09, 0.0), TABLE_RADIUS, 0.09, _table),
    _ball((-0.72, -0.46, -0.28), 0.46, _beach_ball),
    _box((0.55, -0.38, 0.45), 0.38, 28.0, _dice),
    _torus((0.45, -0.5, -0.72), 0.34, 0.16, 24.0, _rainbow),
    _cylinder((-0.45, -0.55, 0.72), 0.21, 0.55, _pole),
    _ball((0.55, -0.98, 0.45), 0.22, _gold),
)
