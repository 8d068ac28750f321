"""Writes captures: COLMAP text models, ``transforms.json``, and photographs of a textured corner of a room."""

import dataclasses
import json
import math

import torch
from PIL import Image
from scipy.spatial.transform import Rotation
from torch.nn.functional import grid_sample, interpolate

from tsplat.scene import intrinsics, look_at, procedural_capture
from tsplat.scene.images import to_bytes, write_png

OPENGL_AXES = torch.diag(torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64))
POINTS = torch.tensor([[0.0, 0, 0], [0.3, -0.2, 0.1], [-0.4, 0.1, 0.2]])

PHOTO_WIDTH, PHOTO_HEIGHT, PHOTO_FOV = 320, 240, 45.0
PHOTO_EYES = [(1.9 + 0.25 * i, -1.6 - 0.1 * (i % 2), 3.4 - 0.3 * i) for i in range(5)]
"""Camera centers of the photographs of :func:`write_photos`."""


def sample_views():
    """Returns nine views of the procedural scene, 40 x 30 pixels, named like PNG files and sorted by name."""
    capture = procedural_capture(40, 30, n_train=7, n_test=2, n_points=40, supersampling=1)
    views = (changed(view, name=f"{view.name}.png") for view in (*capture.train, *capture.test))
    return sorted(views, key=lambda view: view.name)


def changed(view, **values):
    """Returns the view with changed values of its camera."""
    return dataclasses.replace(view, camera=dataclasses.replace(view.camera, **values))


def project(points, viewmat, K):
    """Projects points [N, 3] in fp64. Returns pixels [N, 2] and depths [N]."""
    camera = points.double() @ viewmat[:3, :3].double().T + viewmat[:3, 3].double()
    return (camera @ K.double().T)[:, :2] / camera[:, 2:], camera[:, 2]


def write_colmap(folder, views, points, camera=None, colors=None):
    """Writes a COLMAP scene with views and their images. Every view observes all points [P, 3]. Without colors [P, 3],
    the points are black.

    `camera` contains model, size and parameters of all cameras as in cameras.txt; by default PINHOLE with the views' K.
    """
    sparse = folder / "sparse" / "0"
    sparse.mkdir(parents=True)
    cameras, lines = [], []
    tracks = [[] for _ in points]
    for i, view in enumerate(views):
        fx, fy, cx, cy = (float(view.camera.K[j]) for j in ((0, 0), (1, 1), (0, 2), (1, 2)))
        cameras.append(f"{i + 1} {camera or f'PINHOLE {view.width} {view.height} {fx!r} {fy!r} {cx!r} {cy!r}'}")
        x, y, z, w = Rotation.from_matrix(view.camera.viewmat[:3, :3].double().numpy()).as_quat().tolist()
        translation = " ".join(repr(value) for value in view.camera.viewmat[:3, 3].tolist())
        lines.append(f"{i + 1} {w!r} {x!r} {y!r} {z!r} {translation} {i + 1} {view.name}")
        lines.append(" ".join(f"0 0 {j + 1}" for j in range(len(points))))
        for j, track in enumerate(tracks):
            track.append(f"{i + 1} {j}")
        write_image(folder / "images" / view.name, view.image)
    (sparse / "cameras.txt").write_text("\n".join(cameras) + "\n")
    (sparse / "images.txt").write_text("\n".join(lines) + "\n")
    rgb = [[0, 0, 0]] * len(points) if colors is None else (255 * colors).round().int().tolist()
    (sparse / "points3D.txt").write_text(
        "".join(
            f"{j + 1} {' '.join(repr(v) for v in point)} {' '.join(map(str, rgb[j]))} 0.1 {' '.join(tracks[j])}\n"
            for j, point in enumerate(points.tolist())
        )
    )
    return folder


def write_scene(folder, n=10, camera="1 PINHOLE 43 30 50 52 21 14.5", size=(43, 30), pose=None, points=5):
    """Writes a COLMAP scene with n cameras on a line along x that look along z, or have the rotation `pose`, wxyz as
    text.

    Images are not in the order of their names; pixel (x, y) of image i is (i, x, y).
    """
    (folder / "images").mkdir(parents=True)
    sparse = folder / "sparse" / "0"
    sparse.mkdir(parents=True)
    lines = []
    for i in range(n):
        name = f"{(7 * i) % n:02d}.png"
        lines += [f"{i + 1} {pose or '1 0 0 0'} {-0.5 * i} 0 2 1 {name}", ""]
        ramp = Image.new("RGB", size)
        ramp.putdata([(i, x, y) for y in range(size[1]) for x in range(size[0])])
        ramp.save(folder / "images" / name)
    (sparse / "cameras.txt").write_text(camera + "\n")
    (sparse / "images.txt").write_text("\n".join(lines) + "\n")
    (sparse / "points3D.txt").write_text("".join(f"{i + 1} {i} 0.5 3 255 {i} 51 0.1\n" for i in range(points)))
    return folder


def frame(view, **values):
    """Returns an entry of ``frames`` in ``transforms.json``: camera to world in OpenGL axes."""
    pose = torch.linalg.inv(view.camera.viewmat.double()) @ OPENGL_AXES
    return {"file_path": f"images/{view.name}", "transform_matrix": pose.tolist(), **values}


def intrinsics_keys(view):
    """Returns the keys of a pinhole camera in ``transforms.json``."""
    fx, fy, cx, cy = (float(view.camera.K[j]) for j in ((0, 0), (1, 1), (0, 2), (1, 2)))
    return {"fl_x": fx, "fl_y": fy, "cx": cx, "cy": cy, "w": view.width, "h": view.height}


def write_transforms(folder, views, **values):
    """Writes ``transforms.json`` and the images; `values` replace keys of the file."""
    folder.mkdir(parents=True, exist_ok=True)
    for view in views:
        write_image(folder / "images" / view.name, view.image)
    content = {**intrinsics_keys(views[0]), "frames": [frame(view) for view in views], **values}
    (folder / "transforms.json").write_text(json.dumps(content))
    return folder


def write_image(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_png(path, image)


def write_photos(folder):
    """Writes five overlapping photographs of three textured walls, for structure-from-motion, and a text file."""
    K, walls = intrinsics(PHOTO_WIDTH, PHOTO_HEIGHT, PHOTO_FOV), _wall_textures()
    for i, eye in enumerate(PHOTO_EYES):
        write_image(folder / f"{i}.png", to_bytes(_photograph(look_at(eye, (0.6, -0.7, 0.6)), K, walls)))
    (folder / "notes.txt").write_text("not a photograph")
    return folder


def video_of_walls(n=300, cut=160):
    """Renders a handheld video of the walls of :func:`write_photos`, with motion blur and a cut before frame `cut`.

    Returns n frames [240, 320, 3] uint8, and the view matrices [n, 4, 4] in the middle of each exposure.
    """
    K, walls = intrinsics(PHOTO_WIDTH, PHOTO_HEIGHT, PHOTO_FOV), _wall_textures()

    def pose(time):
        if time < cut - 0.5:
            part = time / cut
            viewmat = look_at((1.6 + 1.4 * part, -1.7, 3.3 - 1.2 * part), (0.6, -0.7, 0.6))
        else:
            part = (time - cut) / (n - cut)
            viewmat = look_at((2.6 - 1.5 * part, -1.0 - 0.4 * part, 2.2 + part), (0.5, -0.8, 0.5))
        shake = 0.015 * max(0.0, math.sin(0.45 * time)) ** 4
        turn = Rotation.from_rotvec([shake * math.sin(2.1 * time), shake * math.cos(1.7 * time), 0]).as_matrix()
        return torch.cat([torch.from_numpy(turn).float() @ viewmat[:3], viewmat[3:]])

    exposures = [[pose(i + step) for step in (-0.25, 0.0, 0.25)] for i in range(n)]
    frames = [to_bytes(sum(_photograph(viewmat, K, walls) for viewmat in steps) / 3).numpy() for steps in exposures]
    return frames, torch.stack([steps[1] for steps in exposures])


def _wall_textures():
    """Returns noise at several scales, one texture per wall, [3, 3, 512, 512]."""
    generator = torch.Generator().manual_seed(0)
    layers = [torch.rand(3, 3, size, size, generator=generator) for size in (8, 32, 128)]
    return sum(interpolate(layer, (512, 512), mode="bicubic") for layer in layers) / len(layers)


def _photograph(viewmat, K, walls):
    """Ray-traces the walls x = 0, y = 0 and z = 0 from inside the corner; each is 4 wide, and y points down."""
    x, y = torch.meshgrid(torch.arange(PHOTO_WIDTH) + 0.5, torch.arange(PHOTO_HEIGHT) + 0.5, indexing="xy")
    rays = torch.stack([(x - K[0, 2]) / K[0, 0], (y - K[1, 2]) / K[1, 1], torch.ones_like(x)], -1) @ viewmat[:3, :3]
    eye = -viewmat[:3, :3].T @ viewmat[:3, 3]
    distances = torch.where(rays * eye < 0, -eye / rays, torch.inf)
    nearest, wall = distances.min(-1)
    hits = eye + nearest[..., None] * rays
    image = torch.zeros(3, PHOTO_HEIGHT, PHOTO_WIDTH)
    for axis in range(3):
        others = [i for i in range(3) if i != axis]
        grid = hits[..., others].abs() / 2 - 1
        texture = grid_sample(walls[axis, None], grid[None], align_corners=False)[0]
        image = torch.where(wall == axis, texture, image)
    return image.permute(1, 2, 0)
