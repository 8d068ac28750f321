"""Writes scenes that are moved, rotated or scaled, or have distant cameras and points."""

import json

import numpy as np

from tests.support.captures import frame, intrinsics_keys, write_image


def write_moved(folder, views, points, colors, *, unit=1.0, offset=(0, 0, 0), rotation=None, cameras=(), far_points=()):
    """Writes a transforms.json and returns its folder as text; the PLY of its points contains doubles.

    Every fourth view is held out. Positions are rounded to single precision before they are scaled, rotated and moved,
    so that sums may be exact.

    Args:
        rotation: [3, 3], applied between the unit and the offset.
        cameras: Distances of additional cameras with repeated photographs, inserted after the sixth view.
        far_points: Distances of additional points.
    """
    folder.mkdir(parents=True, exist_ok=True)
    turn, offset = np.eye(3) if rotation is None else np.asarray(rotation), np.asarray(offset, float)
    entries = []
    for i, view in enumerate(views):
        entries.append((f"{i:03}.png", view, np.array(frame(view)["transform_matrix"])))
    for i, distance in enumerate(cameras):
        pose = entries[1 + i][2].copy()
        pose[:3, 3] += distance * np.array([1, 0.2, -0.5 * (-1) ** i])
        entries.append((f"005_far_{i}.png", views[1 + i], pose))
    frames = []
    for name, view, pose in entries:
        moved = pose.copy()
        moved[:3, :3] = turn @ pose[:3, :3]
        moved[:3, 3] = unit * (turn @ pose[:3, 3].astype(np.float32).astype(float)) + offset
        frames.append({"file_path": name, "transform_matrix": moved.tolist()})
        write_image(folder / name, view.image)
    points = points.float().double().numpy()
    far = [distance * np.array([0.3, -0.5, 0.8 * (-1) ** i]) for i, distance in enumerate(far_points)]
    points = unit * (np.concatenate([points, np.reshape(far, (-1, 3))]) @ turn.T) + offset
    rgb = [*(255 * colors).round().int().tolist(), *([[255, 0, 0]] * len(far))]
    header = ["ply", "format ascii 1.0", f"element vertex {len(points)}", *(f"property double {n}" for n in "xyz")]
    header += [*(f"property uchar {n}" for n in ("red", "green", "blue")), "end_header"]
    rows = [" ".join(map(repr, p.tolist())) + " " + " ".join(map(str, c)) for p, c in zip(points, rgb, strict=True)]
    (folder / "points.ply").write_text("\n".join([*header, *rows]) + "\n")
    held_out = [name for name, *_ in entries[: len(views) : 4]]
    content = {
        **intrinsics_keys(views[0]), "frames": frames, "ply_file_path": "points.ply", "test_filenames": held_out,
        "train_filenames": [name for name, *_ in entries if name not in held_out],
    }  # fmt: skip
    (folder / "transforms.json").write_text(json.dumps(content))
    return str(folder)
