"""Renders a room with textured walls, a pillar and a ball, as panoramas and as pinhole images."""

import dataclasses
import json
import math

import torch
from torch.nn.functional import grid_sample

from tests.support.captures import frame, write_image
from tsplat.scene import Camera, Capture, View, intrinsics, look_at
from tsplat.scene.cameras import panorama_intrinsics
from tsplat.scene.images import to_bytes

HALF = torch.tensor([2.0, 1.2, 2.6])
"""Half the width, height and length of the room, which is centered at the origin; y points down."""

PILLAR = ((1.1, 0.9), 0.25)
"""x and z of the pillar's axis, and its radius."""

BALL = ((-0.8, 0.75, 1.2), 0.45)


def rays_of(camera):
    """Returns the unit directions of pixels [H, W, 3], world frame."""
    x, y = (torch.arange(size) + 0.5 for size in (camera.width, camera.height))
    y, x = torch.meshgrid(y, x, indexing="ij")
    K = camera.K
    a, b = (x - K[0, 2]) / K[0, 0], (y - K[1, 2]) / K[1, 1]
    if camera.model == "equirectangular":
        rays = torch.stack([b.cos() * a.sin(), b.sin(), b.cos() * a.cos()], -1)
    else:
        rays = torch.nn.functional.normalize(torch.stack([a, b, torch.ones_like(a)], -1), dim=-1)
    return rays @ camera.viewmat[:3, :3]


def hits_of(origin, rays):
    """Returns the first points [..., 3] of the room that rays from a point inside hit."""
    walls = (HALF * rays.sign() - origin) / rays
    nearest = walls.nan_to_num(math.inf).amin(-1)
    for center, radius, axes in ((PILLAR[0], PILLAR[1], [0, 2]), (BALL[0], BALL[1], [0, 1, 2])):
        offset, along = origin[axes] - torch.tensor(center), rays[..., axes]
        a, b = along.square().sum(-1), (along * offset).sum(-1)
        root = b.square() - a * (offset.square().sum() - radius**2)
        t = (-b - root.clamp_min(0).sqrt()) / a
        nearest = torch.where((root > 0) & (t > 0) & (t < nearest), t, nearest)
    return origin + nearest[..., None] * rays


def colors_of(points):
    """Returns smooth colors of surface points, [..., 3] in [0, 1]: waves with several wavelengths in all directions."""
    generator = torch.Generator().manual_seed(3)
    waves = torch.randn(3, 16, 3, generator=generator) * torch.linspace(1, 6, 16)[:, None]
    phases = 2 * math.pi * torch.rand(3, 16, generator=generator)
    values = torch.einsum("...d,cwd->...cw", points, waves) + phases
    return (0.5 + 0.12 * (values.sin() / torch.linspace(1, 2, 16)).sum(-1)).clamp(0, 1)


def speckles_of(points):
    """Returns colors of surface points with details of several sizes, so that COLMAP finds features."""
    value = torch.full(points.shape, 0.5)
    for size, weight in ((8, 0.6), (24, 0.5), (64, 0.4)):
        noise = torch.rand(1, 3, size, size, size, generator=torch.Generator().manual_seed(size)) - 0.5
        sampled = grid_sample(noise, points.reshape(1, 1, 1, -1, 3) / 2.7, align_corners=False)
        value += weight * sampled.view(3, -1).T.reshape(points.shape)
    return value.clamp(0, 1)


def photograph(camera, colors=colors_of, supersampling=2):
    """Renders the room, [H, W, 3] uint8."""
    factor = supersampling
    K = camera.K * torch.tensor([[factor], [factor], [1.0]])
    fine = dataclasses.replace(camera, K=K, width=factor * camera.width, height=factor * camera.height)
    image = colors(hits_of(camera.position.float(), rays_of(fine)))
    return to_bytes(image.unflatten(0, (-1, factor)).unflatten(2, (-1, factor)).mean((1, 3)))


def poses(n):
    """Returns world-to-camera matrices of n upright cameras in the room that look in all directions."""
    matrices = []
    for i in range(n):
        turn, step = 2.4 * i, 2 * math.pi * i / n
        eye = torch.tensor([0.9 * math.cos(step) - 0.2, 0.35 * math.sin(3 * step), 1.4 * math.sin(step) - 0.4])
        ahead = eye + torch.tensor([math.sin(turn), 0.05, math.cos(turn)])
        matrices.append(look_at(eye.tolist(), ahead.tolist()))
    return matrices


def room_capture(n=12, width=64, n_points=600, held_out=2, **options):
    """Returns a capture with n panoramas, some of them held out, and points on the surfaces."""
    height = width // 2
    K = panorama_intrinsics(width, height)
    cameras = [Camera(pose, K, width, height, "equirectangular", f"{i:03d}.png") for i, pose in enumerate(poses(n))]
    views = [View(photograph(camera, **options), camera) for camera in cameras]
    every = max(1, n // held_out) if held_out else n + 1
    test = tuple(views[every // 2 :: every][:held_out])
    points = room_points(n_points)
    return Capture(tuple(view for view in views if view not in test), test, points, colors_of(points))


def room_points(n, seed=0):
    """Returns points [n, 3] on the surfaces of the room that are visible from its center."""
    generator = torch.Generator().manual_seed(seed)
    rays = torch.nn.functional.normalize(torch.randn(n, 3, generator=generator), dim=-1)
    return hits_of(torch.tensor([-0.2, 0.0, -0.4]), rays)


def pinhole_faces(view, size):
    """Returns six pinhole views [size, size] that together cover a panorama of the room."""
    turns = [(0, 0), (90, 0), (180, 0), (270, 0), (0, 90), (0, -90)]
    K = intrinsics(size, size, 90.0)
    faces = []
    for i, (yaw, pitch) in enumerate(turns):
        a, b = math.radians(yaw), math.radians(pitch)
        about_y = torch.tensor([[math.cos(a), 0, -math.sin(a)], [0, 1, 0], [math.sin(a), 0, math.cos(a)]])
        about_x = torch.tensor([[1, 0, 0], [0, math.cos(b), -math.sin(b)], [0, math.sin(b), math.cos(b)]])
        turn = torch.eye(4)
        turn[:3, :3] = about_x @ about_y
        camera = Camera(turn @ view.camera.viewmat, K, size, size, name=f"{i}_{view.name}")
        faces.append(View(photograph(camera), camera))
    return faces


def write_panoramas(folder, capture, **values):
    """Writes ``transforms.json`` and the images of panoramas; `values` are added to the file."""
    folder.mkdir(parents=True, exist_ok=True)
    views = sorted((*capture.train, *capture.test), key=lambda view: view.name)
    for view in views:
        write_image(folder / "images" / view.name, view.image)
    content = {"camera_model": "EQUIRECTANGULAR", "frames": [frame(view) for view in views], **values}
    (folder / "transforms.json").write_text(json.dumps(content))
    return folder
