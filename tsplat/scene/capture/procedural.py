"""A procedural scene that needs no data: ray-traced textured solids on a round table.

Solids are signed distance functions, intersected by sphere tracing (Hart, "Sphere tracing", 1996) within their bounding
spheres. The shading does not depend on the view: a sun with shadows, sky light and ambient occlusion. The world frame
has y down, as usual for structure-from-motion; the table top is at y = 0.
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
from .views import Capture, View

SKY = (0.80, 0.88, 0.96)
TABLE_RADIUS = 1.75
TARGET = (0.0, -0.18, 0.0)
ORBIT_RADIUS = 4.3
FOV = 40.0
SUN = (-0.45, -0.8, -0.4)
"""Direction to the sun, not normalized."""

SUNLIGHT, SKYLIGHT = (0.72, 0.66, 0.58), (0.24, 0.28, 0.34)

NEAREST = 3e-4
"""Distance to a surface below which a ray has hit it."""

STEPS = 64
"""Maximum number of sphere tracing steps; a ray that needs more misses."""

UNROLL = 4
"""Steps after which rays that have ended are removed."""

Point = tuple[float, float, float]
Field = Callable[[Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class Solid:
    """A shape given by a signed distance function.

    Attributes:
        center: World frame.
        radius: Radius of a bounding sphere around the center.
        field: Signed distance [R] of points [R, 3], relative to the center.
        color: RGB [R, 3] of surface points [R, 3], relative to the center.
    """

    center: Point
    radius: float
    field: Field
    color: Field

    def distance(self, points: Tensor) -> Tensor:
        """Returns the signed distance [R] of points [R, 3], world frame."""
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
    """Renders the scene from a low and a high orbit, and samples a noisy point cloud of the visible surfaces.

    Args:
        width, height: Image size in pixels.
        n_train, n_test: Number of training views, and of held-out views between them.
        n_points: Number of points.
        supersampling: The square root of the number of rays per pixel.
        position_noise: Standard deviation of the noise added to point coordinates, world units. The table is 3.5 wide.
        color_noise: Standard deviation of the noise added to the color channels of points, which are in [0, 1].
        seed: Random seed of the selected points and the noise.
        device: Device of the computation and of the result.

    Raises:
        ArgumentError: A size or number is not a positive int.
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
        image, points, shades = trace(viewmat.to(device), K.to(device), width, height, supersampling)
        views.append(View(name, to_bytes(image), viewmat.to(device), K.to(device)))
        if i < n_train:
            hits.append(points[:: supersampling**2])
            colors.append(shades[:: supersampling**2])
    generator = torch.Generator().manual_seed(seed)
    all_points, all_colors = torch.cat(hits).cpu(), torch.cat(colors).cpu()
    chosen = torch.randperm(len(all_points), generator=generator)[:n_points]
    points = all_points[chosen] + position_noise * torch.randn(len(chosen), 3, generator=generator)
    shades = all_colors[chosen] + color_noise * torch.randn(len(chosen), 3, generator=generator)
    return Capture(
        train=tuple(views[:n_train]),
        test=tuple(views[n_train:]),
        points=points.to(device),
        colors=shades.clamp(0, 1).to(device),
        background=SKY,
    )


def trace(viewmat: Tensor, K: Tensor, width: int, height: int, supersampling: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Renders the scene; each pixel is the mean of ``supersampling``^2 rays.

    Returns:
        The image [height, width, 3] in [0, 1]; the R surface points hit by rays, [R, 3]; and their colors, [R, 3].
    """
    xs, ys = (
        (torch.arange(size * supersampling, device=viewmat.device) + 0.5) / supersampling for size in (width, height)
    )
    y, x = torch.meshgrid(ys, xs, indexing="ij")
    directions = torch.stack([(x - K[0, 2]) / K[0, 0], (y - K[1, 2]) / K[1, 1], torch.ones_like(x)], -1).view(-1, 3)
    directions = normalize(directions, dim=-1) @ viewmat[:3, :3]
    eye = -viewmat[:3, :3].T @ viewmat[:3, 3]
    depths = torch.stack([_march(solid, eye, directions) for solid in SOLIDS])
    nearest, solid_ids = depths.min(0)
    hit = nearest < torch.inf
    points = eye + nearest[hit, None] * directions[hit]
    shades = _shade(points, solid_ids[hit])
    colors = directions.new_tensor(SKY).repeat(len(directions), 1)
    colors[hit] = shades
    image = reduce(colors, "(y sy x sx) c -> y x c", "mean", sy=supersampling, sx=supersampling, x=width)
    return image, points, shades


def distance(points: Tensor) -> Tensor:
    """Returns the signed distance of points [R, 3] to the nearest surface, [R]."""
    return torch.stack([solid.distance(points) for solid in SOLIDS]).amin(0)


def _ring(n: int, low: float, high: float, turn: float) -> Tensor:
    """Places cameras around the table, at alternating elevations. The first one is at azimuth `turn`."""
    azimuths = [turn + 360.0 * i / n for i in range(n)]
    return orbit(TARGET, ORBIT_RADIUS, azimuths, [high if i % 2 else low for i in range(n)])


def _march(solid: Solid, origins: Tensor, directions: Tensor) -> Tensor:
    """Returns the distance along each ray to the solid, infinity for a miss. [R]

    Args:
        origins: [R, 3], or [3] if rays have the same origin.
        directions: [R, 3], normalized.
    """
    offsets = origins - origins.new_tensor(solid.center)
    along = -(directions @ offsets if offsets.dim() == 1 else (offsets * directions).sum(-1))
    within = solid.radius**2 - (offsets * offsets).sum(-1) + along * along
    half = within.clamp_min(0).sqrt()
    active = ((within > 0) & (along + half > 0)).nonzero().squeeze(1)
    depths = torch.full_like(along, torch.inf)
    start, direction, t, end = (
        offsets.expand_as(directions)[active],
        directions[active],
        (along - half)[active].clamp_min(0),
        (along + half)[active],
    )
    for _ in range(STEPS // UNROLL):
        hit = torch.zeros_like(active, dtype=torch.bool)
        for _ in range(UNROLL):
            step = solid.field(start + t[:, None] * direction)
            t = t + step.masked_fill(hit, 0)
            hit |= step < NEAREST
        depths[active[hit]] = t[hit]
        left = (~hit & (t < end)).nonzero().squeeze(1)
        active, start, direction, t, end = active[left], start[left], direction[left], t[left], end[left]
        if not len(active):
            break
    return depths


def _shade(points: Tensor, solid_ids: Tensor) -> Tensor:
    """Returns the colors in [0, 1] of surface points [R, 3], given the index [R] of their solids. [R, 3]"""
    albedo, normals = torch.empty_like(points), torch.empty_like(points)
    for i, solid in enumerate(SOLIDS):
        on_solid = solid_ids == i
        local = points[on_solid] - points.new_tensor(solid.center)
        albedo[on_solid] = solid.color(local)
        with torch.enable_grad():
            local.requires_grad_()
            (gradient,) = torch.autograd.grad(solid.field(local).sum(), local)
        normals[on_solid] = normalize(gradient, dim=-1)
    sun = normalize(points.new_tensor(SUN), dim=0)
    sunlight = (normals @ sun).clamp_min(0)
    facing = sunlight.nonzero().squeeze(1)
    # Offset from the surface to avoid self-shadowing.
    origins, directions = points[facing] + 5e-3 * normals[facing], sun.expand(len(facing), 3)
    for solid in SOLIDS:
        sunlight[facing[_march(solid, origins, directions) < torch.inf]] = 0
    skylight = 0.5 - 0.5 * normals[:, 1]
    # Ambient occlusion.
    for radius in (0.06, 0.18):
        skylight = skylight * (0.5 + 0.5 * (distance(points + radius * normals) / radius).clamp(0, 1))
    light = 0.2 + skylight[:, None] * points.new_tensor(SKYLIGHT) + sunlight[:, None] * points.new_tensor(SUNLIGHT)
    return (albedo * light).clamp(0, 1)


def _ball(center: Point, radius: float, color: Field) -> Solid:
    return Solid(
        center,
        radius=1.01 * radius,
        field=lambda points: points.norm(dim=-1) - radius,
        color=lambda points: color(points / radius),
    )


def _box(center: Point, half: float, turn: float, color: Field) -> Solid:
    """A cube with rounded edges, rotated by `turn` degrees about the vertical axis."""
    edge = 0.04

    def field(points: Tensor) -> Tensor:
        return _rounded(_turned(points, turn).abs() - half, edge)

    return Solid(center, 1.74 * half, field, lambda points: color(_turned(points, turn) / half))


def _torus(center: Point, radius: float, thickness: float, turn: float, color: Field) -> Solid:
    """An upright ring, rotated by `turn` degrees about the vertical axis."""

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
    """Returns the signed distance [R] to a box with rounded edges, given the distances [R, D] beyond its faces."""
    q = beyond + edge
    outside: Tensor = q.clamp_min(0).norm(dim=-1)
    return outside + q.amax(-1).clamp_max(0) - edge


def _turned(points: Tensor, degrees: float) -> Tensor:
    """Rotates points [R, 3] about the vertical axis."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    x, y, z = points.unbind(-1)
    return torch.stack([c * x - s * z, y, s * x + c * z], -1)


def _mix(choice: Tensor, *colors: tuple[float, float, float]) -> Tensor:
    """Selects colors by index, modulo their number. [R] -> [R, 3]"""
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
