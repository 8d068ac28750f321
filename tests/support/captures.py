"""Captures written to disk: as a COLMAP model in text, and as transforms.json."""

import json

import torch
from scipy.spatial.transform import Rotation

from tsplat.scene.images import write_png

FLIP = torch.diag(torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64))


def write_colmap(folder, views, points, camera=None, images="images"):
    """Every view sees every point; colors of the points are black."""
    sparse = folder / "sparse" / "0"
    sparse.mkdir(parents=True)
    cameras, lines = [], []
    tracks = [[] for _ in points]
    for i, view in enumerate(views):
        fx, fy, cx, cy = (float(view.K[j]) for j in ((0, 0), (1, 1), (0, 2), (1, 2)))
        cameras.append(f"{i + 1} {camera or f'PINHOLE {view.width} {view.height} {fx!r} {fy!r} {cx!r} {cy!r}'}")
        x, y, z, w = Rotation.from_matrix(view.viewmat[:3, :3].double().numpy()).as_quat().tolist()
        shift = " ".join(repr(value) for value in view.viewmat[:3, 3].tolist())
        lines.append(f"{i + 1} {w!r} {x!r} {y!r} {z!r} {shift} {i + 1} {view.name}")
        lines.append(" ".join(f"0 0 {j + 1}" for j in range(len(points))))
        for j, track in enumerate(tracks):
            track.append(f"{i + 1} {j}")
        write_image(folder / images / view.name, view.image)
    (sparse / "cameras.txt").write_text("\n".join(cameras) + "\n")
    (sparse / "images.txt").write_text("\n".join(lines) + "\n")
    (sparse / "points3D.txt").write_text(
        "".join(
            f"{j + 1} {' '.join(repr(v) for v in point)} 0 0 0 0.1 {' '.join(tracks[j])}\n"
            for j, point in enumerate(points.tolist())
        )
    )
    return folder


def frame(view, **values):
    """An entry of ``frames``: the camera to world, x right, y up, z backwards."""
    pose = torch.linalg.inv(view.viewmat.double()) @ FLIP
    return {"file_path": f"images/{view.name}", "transform_matrix": pose.tolist(), **values}


def lens(view):
    """The keys of a pinhole camera."""
    fx, fy, cx, cy = (float(view.K[j]) for j in ((0, 0), (1, 1), (0, 2), (1, 2)))
    return {"fl_x": fx, "fl_y": fy, "cx": cx, "cy": cy, "w": view.width, "h": view.height}


def write_transforms(folder, views, name="transforms.json", **values):
    folder.mkdir(parents=True, exist_ok=True)
    for view in views:
        write_image(folder / "images" / view.name, view.image)
    content = {**lens(views[0]), "frames": [frame(view) for view in views], **values}
    (folder / name).write_text(json.dumps(content))
    return folder


def write_image(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_png(path, image)
