"""Renders a procedural scene without input files: ray-traced textured solids on a round table.

Solids are signed distance functions, intersected by sphere tracing (Hart, "Sphere tracing", 1996) within their bounding
spheres and boxes. The shading does not depend on the view: a sun with shadows, sky light and ambient occlusion. The
world frame has y down, as usual for structure-from-motion; the table top is at y = 0.

Vectors of R rays or points are [3, R], so that each coordinate is contiguous.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator

import torch
from einops import rearrange, reduce
from torch import Tensor
from torch.nn.functional import normalize

from ...precision import in_full_precision
from ...scalars import check_size
from ..cameras import Camera, intrinsics, orbit
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
"""Distance below which a ray hits a surface."""

STEPS = 64
"""Maximum number of sphere tracing steps; a ray that needs more counts as a miss."""

BATCH = 500_000
"""Number of rays to trace together; views are not split."""

Point = tuple[float, float, float]
Field = Callable[[Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class Solid:
    """A shape with a signed distance function, in a frame whose origin is its center.

    Attributes:
        radius, half: Radius of a bounding sphere, and half the side lengths of a bounding box, around the center.
        field: Signed distance [R] of points [3, R] in the solid's frame.
        color: RGB [3, R] of surface points [3, R] in the solid's frame.
        turn: Rotation of the solid about the vertical axis, in degrees.
    """

    center: Point
    radius: float
    half: Point
    field: Field
    color: Field
    turn: float = 0.0

    def local(self, points: Tensor) -> Tensor:
        """Transforms points [3, R] from the world frame to the solid's frame."""
        return self.rotated(points - points.new_tensor(self.center)[:, None])

    def rotated(self, directions: Tensor) -> Tensor:
        """Rotates directions [3, R] from the world frame to the solid's frame."""
        return self._rotation(directions) @ directions if self.turn else directions

    def rotated_back(self, directions: Tensor) -> Tensor:
        """Rotates directions [3, R] from the solid's frame to the world frame."""
        return self._rotation(directions).T @ directions if self.turn else directions

    def distance(self, points: Tensor) -> Tensor:
        """Returns the signed distance [R] of points [3, R], world frame."""
        return self.field(self.local(points))

    def _rotation(self, like: Tensor) -> Tensor:
        c, s = math.cos(math.radians(self.turn)), math.sin(math.radians(self.turn))
        return like.new_tensor(((c, 0.0, -s), (0.0, 1.0, 0.0), (s, 0.0, c)))


@in_full_precision
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
        n_train, n_test: Number of training views, and number of held-out views between them.
        n_points: Number of points.
        supersampling: The square root of the number of rays per pixel.
        position_noise: Standard deviation of the noise added to point coordinates, world units. The table is 3.5 wide.
        color_noise: Standard deviation of the noise added to the color channels of points, which are in [0, 1].
        seed: Random seed of the selected points and the noise.
        device: Device of the computation and of the result.

    Raises:
        ArgumentError: A size or number is not a positive int.

    Example::

        from tsplat.scene import Gaussians, procedural_capture

        capture = procedural_capture(48, 36, n_train=8, n_test=2, n_points=200)
        gaussians = Gaussians.from_points(capture.points, capture.colors)
    """
    sizes = dict(width=width, height=height, n_train=n_train, n_test=n_test, n_points=n_points)
    for argument, value in (sizes | dict(supersampling=supersampling)).items():
        check_size(argument, value)
    K = intrinsics(width, height, FOV)
    train = _ring(n_train, low=16.0, high=44.0, turn=0.0)
    test = _ring(n_test, low=22.0, high=38.0, turn=180.0 / n_train)

    def traced(poses: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yields 8-bit images, and the surface points of one ray per pixel with their colors, [R, 3] each."""
        for batch in torch.split(poses.to(device), max(1, BATCH // (width * height * supersampling**2))):
            images, *samples = trace(batch, K.to(device), width, height, supersampling)
            points, shades = (sample[:, :: supersampling**2].T.contiguous() for sample in samples)
            yield to_bytes(images), points, shades

    images, points, colors = (torch.cat(batches) for batches in zip(*traced(train)))
    images = torch.cat([images, *(batch for batch, _, _ in traced(test))])
    names = [f"train_{i:03d}" for i in range(n_train)] + [f"test_{i:03d}" for i in range(n_test)]
    views = tuple(
        View(image, Camera(viewmat, K.to(device), width, height, name=name))
        for name, viewmat, image in zip(names, torch.cat([train, test]).to(device), images, strict=True)
    )
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(points), generator=generator, device="cpu")[:n_points]
    points, colors = (
        values.cpu()[chosen]
        + noise * torch.randn(len(chosen), 3, generator=generator, dtype=torch.float32, device="cpu")
        for values, noise in ((points, position_noise), (colors, color_noise))
    )
    return Capture(views[:n_train], views[n_train:], points.to(device), colors.clamp(0, 1).to(device), SKY)


@in_full_precision
def trace(poses: Tensor, K: Tensor, width: int, height: int, supersampling: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Renders the scene from world-to-camera `poses` [C, 4, 4]; each pixel is the mean of ``supersampling``^2 rays.

    Returns the images [C, height, width, 3] in [0, 1]; the R surface points hit by rays, [3, R]; and their colors, [3,
    R].
    """
    xs, ys = (
        (torch.arange(size * supersampling, device=poses.device, dtype=torch.float32) + 0.5) / supersampling
        for size in (width, height)
    )
    y, x = torch.meshgrid(ys, xs, indexing="ij")
    directions = torch.stack([(x - K[0, 2]) / K[0, 0], (y - K[1, 2]) / K[1, 1], torch.ones_like(x)]).view(3, -1)
    rotations = poses[:, :3, :3].mT
    eyes = -rotations @ poses[:, :3, 3:]
    directions = rearrange(rotations @ (directions / _norm(directions)), "c d r -> d c r")
    origins = rearrange(eyes, "c d 1 -> d c 1").expand_as(directions).reshape(3, -1)
    directions = directions.reshape(3, -1)
    depths = torch.stack([_march(solid, origins, directions) for solid in SOLIDS])
    nearest, solid_ids = depths.min(0)
    hit = (nearest < torch.inf).nonzero().squeeze(1)
    points = torch.addcmul(*(values.index_select(-1, hit) for values in (origins, directions, nearest)))
    shades = _shade(points, solid_ids[hit])
    colors = directions.new_tensor(SKY)[:, None].repeat(1, directions.shape[1]).index_copy_(1, hit, shades)
    sizes = dict(c=len(poses), sy=supersampling, sx=supersampling, x=width)
    images = reduce(colors, "d (c y sy x sx) -> d c y x", "mean", **sizes)
    return rearrange(images, "d c y x -> c y x d").contiguous(), points, shades


def distance(points: Tensor) -> Tensor:
    """Returns the signed distance of points [3, R] to the nearest surface, [R]."""
    return torch.stack([solid.distance(points) for solid in SOLIDS]).amin(0)


def _ring(n: int, low: float, high: float, turn: float) -> Tensor:
    """Places cameras around the table, at alternating elevations. The first one is at azimuth `turn`."""
    azimuths = [turn + 360.0 * i / n for i in range(n)]
    return orbit(TARGET, ORBIT_RADIUS, azimuths, [high if i % 2 else low for i in range(n)])


def _march(solid: Solid, origins: Tensor, directions: Tensor) -> Tensor:
    """Returns the distance [R] along each ray to the solid, infinity for a miss; directions [3, R] are normalized."""
    offsets = origins - origins.new_tensor(solid.center)[:, None]
    along = -_dot(offsets, directions)
    half = (along * along - _dot(offsets, offsets)).add_(solid.radius**2)
    half = torch.where(half > 0, half, torch.nan).sqrt()
    active = (along + half > 0).nonzero().squeeze(1)
    depths = torch.full_like(along, torch.inf)
    start, direction = (solid.rotated(vectors.index_select(1, active)) for vectors in (offsets, directions))
    # Restrict each ray to the bounding sphere and box.
    extent = start.new_tensor(solid.half)[:, None] * direction.sign()
    t = torch.maximum((along - half)[active].clamp_min(0), ((-extent - start) / direction).amax(0))
    end = torch.minimum((along + half)[active], ((extent - start) / direction).amin(0))
    left = (t < end).nonzero().squeeze(1)
    for _ in range(STEPS):
        active, start, direction, t, end = (rays.index_select(-1, left) for rays in (active, start, direction, t, end))
        step = solid.field(torch.addcmul(start, direction, t))
        t = t + step
        hit = step < NEAREST
        depths[active[hit]] = t[hit]
        left = (~hit & (t < end)).nonzero().squeeze(1)
    return depths


def _shade(points: Tensor, solid_ids: Tensor) -> Tensor:
    """Returns the colors in [0, 1] of surface points [3, R], given the index [R] of their solids. [3, R]"""
    albedo, normals = torch.empty_like(points), torch.empty_like(points)
    for i, solid in enumerate(SOLIDS):
        on_solid = (solid_ids == i).nonzero().squeeze(1)
        local = solid.local(points.index_select(1, on_solid))
        albedo.index_copy_(1, on_solid, solid.color(local))
        with torch.enable_grad():
            local.requires_grad_()
            (gradient,) = torch.autograd.grad(solid.field(local).sum(), local)
        normals.index_copy_(1, on_solid, solid.rotated_back(gradient / _norm(gradient)))
    sun = normalize(points.new_tensor(SUN), dim=0)[:, None]
    sunlight = _dot(normals, sun).clamp_min(0)
    for solid in SOLIDS:
        facing = sunlight.nonzero().squeeze(1)
        # Offset from the surface to avoid self-shadowing.
        origins = points.index_select(1, facing) + 5e-3 * normals.index_select(1, facing)
        sunlight[facing[_march(solid, origins, sun.expand_as(origins)) < torch.inf]] = 0
    skylight = 0.5 - 0.5 * normals[1]
    # Ambient occlusion.
    for radius in (0.06, 0.18):
        skylight = skylight * (0.5 + 0.5 * (distance(points + radius * normals) / radius).clamp(0, 1))
    light = 0.2 + skylight * points.new_tensor(SKYLIGHT)[:, None] + sunlight * points.new_tensor(SUNLIGHT)[:, None]
    return (albedo * light).clamp(0, 1)


def _ball(center: Point, radius: float, color: Field) -> Solid:
    half = (radius, radius, radius)
    return Solid(
        center, 1.01 * radius, half, lambda points: _norm(points) - radius, lambda points: color(points / radius)
    )


def _box(center: Point, half: float, turn: float, color: Field) -> Solid:
    """Returns a cube with rounded edges, rotated by `turn` degrees about the vertical axis."""

    def field(points: Tensor) -> Tensor:
        return _rounded(points.abs() - half, edge=0.04)

    return Solid(center, 1.74 * half, (half, half, half), field, lambda points: color(points / half), turn)


def _torus(center: Point, radius: float, thickness: float, turn: float, color: Field) -> Solid:
    """Returns an upright ring, rotated by `turn` degrees about the vertical axis."""

    def field(points: Tensor) -> Tensor:
        x, y, z = points
        return torch.hypot(torch.hypot(x, y) - radius, z) - thickness

    outer = radius + thickness
    return Solid(center, 1.01 * outer, (outer, outer, thickness), field, color, turn)


def _cylinder(center: Point, radius: float, half: float, color: Field) -> Solid:
    """Returns an upright cylinder of height 2 `half` with rounded edges."""

    def field(points: Tensor) -> Tensor:
        x, y, z = points
        return _rounded(torch.stack([torch.hypot(x, z) - radius, y.abs() - half]), edge=0.03)

    return Solid(center, math.hypot(radius, half), (radius, half, radius), field, color)


def _rounded(beyond: Tensor, edge: float) -> Tensor:
    """Returns the signed distance [R] to a box with rounded edges, given the distances [D, R] beyond its faces."""
    q = beyond + edge
    return _norm(q.clamp_min(0)) + q.amax(0).clamp_max(0) - edge


def _norm(points: Tensor) -> Tensor:
    """Returns the norms [R] of vectors [D, R]."""
    return _dot(points, points).sqrt()


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Returns the dot products [R] of vectors [D, R]; faster than a sum of products over the first dimension."""
    products = a[0] * b[0]
    for i in range(1, len(a)):
        products.addcmul_(a[i], b[i])
    return products


def _mix(choice: Tensor, *colors: tuple[float, float, float]) -> Tensor:
    """Selects colors by index, modulo their number. [R] -> [3, R]"""
    return torch.tensor(colors, device=choice.device, dtype=torch.float32).T[:, choice.long() % len(colors)]


def _table(points: Tensor) -> Tensor:
    x, y, z = points
    checks = ((x / 0.35).floor() + (z / 0.35).floor()) % 2
    on_top = (torch.hypot(x, z) < TABLE_RADIUS - 0.12) & (y < -0.06)
    return _mix(torch.where(on_top, checks, 2), (0.93, 0.88, 0.78), (0.36, 0.55, 0.58), (0.55, 0.36, 0.24))


def _beach_ball(points: Tensor) -> Tensor:
    x, y, z = points
    red, white, yellow = (0.90, 0.22, 0.20), (0.97, 0.95, 0.90), (0.98, 0.75, 0.18)
    sector = (torch.atan2(z, x) / (math.pi / 4)).floor()
    return _mix(torch.where(y.abs() > 0.93, 0, sector), red, white, yellow, white)


def _dice(points: Tensor) -> Tensor:
    # The two smaller coordinates are the coordinates on the face.
    smallest, middle, _ = points.abs().sort(0).values
    dot = smallest**2 + middle**2 < 0.32**2
    corner = (smallest - 0.6) ** 2 + (middle - 0.6) ** 2 < 0.22**2
    return _mix(dot | corner, (0.20, 0.38, 0.78), (0.97, 0.95, 0.88))


def _rainbow(points: Tensor) -> Tensor:
    angle = torch.atan2(points[1], points[0])
    return 0.58 + 0.36 * torch.cos(angle + angle.new_tensor((0.0, 2.1, 4.2))[:, None])


def _pole(points: Tensor) -> Tensor:
    x, y, z = points
    return _mix((torch.atan2(z, x) / math.pi + y / 0.3).mul(2).floor(), (0.20, 0.58, 0.36), (0.95, 0.93, 0.85))


def _gold(points: Tensor) -> Tensor:
    return _mix((points[1] * 2.5).floor(), (0.95, 0.68, 0.20), (0.72, 0.30, 0.52))


SOLIDS = (
    _cylinder((0.0, 0.09, 0.0), TABLE_RADIUS, 0.09, _table),
    _ball((-0.72, -0.46, -0.28), 0.46, _beach_ball),
    _box((0.55, -0.38, 0.45), 0.38, 28.0, _dice),
    _torus((0.45, -0.5, -0.72), 0.34, 0.16, 24.0, _rainbow),
    _cylinder((-0.45, -0.55, 0.72), 0.21, 0.55, _pole),
    _ball((0.55, -0.98, 0.45), 0.22, _gold),
)
