"""Trains on the same photographs in every supported layout: ``python -m tests.tools.imported_captures --out FOLDER``.

Writes photographs and cameras of the procedural scene in every supported layout of survey software, phone apps and
other trainers, with points as PLY, LAS, LAZ, E57 or depth maps. Then runs ``tsplat train`` on each layout and draws a
held-out photograph beside its rendering for each of them (``FOLDER/imports.png``). Requires the extras ``train``,
``colmap``, ``points`` and ``exr``.
"""

import argparse
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from scipy.spatial.transform import Rotation

from benchmarks.sheets import draw_sheet
from tests.support.captures import changed, frame, write_colmap, write_transforms
from tests.support.metashape_files import write_metashape
from tests.support.moved_scenes import write_moved
from tests.support.phone_files import write_polycam, write_record3d
from tests.support.realitycapture_files import OPENCV, REALITYSCAN, write_realitycapture
from tests.support.scan_clouds import write_e57, write_las
from tsplat.scene import procedural_capture
from tsplat.scene.capture.procedural import SKY

WIDTH, HEIGHT, N_VIEWS, N_POINTS = 160, 120, 40, 8000
N_COLUMNS = 3
UTM = (448_250.0, 5_411_840.0, 300.0)
TURN = Rotation.from_euler("xyz", (-80, 10, 35), degrees=True).as_matrix()
UNIT = 2.5
"""Origin, rotation and scale of a georeferenced frame."""


def make_scene(n_views=N_VIEWS, n_points=N_POINTS):
    """Returns views, sorted by name, and points [N, 3] with colors [N, 3]."""
    capture = procedural_capture(
        WIDTH, HEIGHT, n_views, 1, n_points, supersampling=2, position_noise=0.0, color_noise=0.0
    )
    views = [changed(view, name=f"{i:03d}.png") for i, view in enumerate(capture.train)]
    return views, capture.points, capture.colors


def write_ply(path, points, colors):
    rows = np.zeros(
        len(points), [(axis, "<f4") for axis in "xyz"] + [(name, "u1") for name in ("red", "green", "blue")]
    )
    for i in range(3):
        rows[rows.dtype.names[i]], rows[rows.dtype.names[3 + i]] = points[:, i], (255 * colors[:, i]).round()
    properties = [f"property {'float' if i < 3 else 'uchar'} {name}" for i, name in enumerate(rows.dtype.names)]
    header = ["ply", "format binary_little_endian 1.0", f"element vertex {len(points)}", *properties, "end_header", ""]
    path.write_bytes("\n".join(header).encode() + rows.tobytes())


def georeferenced(views, points):
    """Returns views and points in a frame with UTM coordinates, in fp64."""
    turn, origin = torch.from_numpy(TURN), torch.tensor(UTM, dtype=torch.float64)
    moved = []
    for view in views:
        viewmat = view.camera.viewmat.double().clone()
        position = -viewmat[:3, :3].T @ viewmat[:3, 3]
        rotation = Rotation.from_matrix(viewmat[:3, :3].numpy()).as_matrix()  # orthonormal in fp64, as COLMAP's
        viewmat[:3, :3] = torch.from_numpy(rotation) @ turn.T
        viewmat[:3, 3] = -viewmat[:3, :3] @ (UNIT * turn @ position + origin)
        moved.append(changed(view, viewmat=viewmat))
    return moved, UNIT * points.double() @ turn.T + origin


def in_order_of_names(views):
    """Reorders views whose files will be named by unpadded numbers, such that sorting by file name ("10" before "2")
    returns the order of `views`."""
    numbers = sorted(range(len(views)), key=str)
    return [view for _, view in sorted(zip(numbers, views, strict=True), key=lambda entry: entry[0])]


def survey(write, cloud, **options):
    """Returns a function that writes the files of survey software together with a point cloud."""

    def write_all(folder, views, points, colors):
        write(folder, views, **options)
        path = folder / cloud
        if path.suffix == ".ply":
            write_ply(path, points.numpy(), colors.numpy())
        elif path.suffix == ".e57":
            write_e57(path, points.double().numpy(), (255 * colors).round().numpy())
        else:
            write_las(path, points.double().numpy(), (257 * (255 * colors).round()).numpy())

    return write_all


def write_nerfstudio(folder, views, points, colors):
    """Writes a folder like ``ns-process-data``: COLMAP's world frame, rotated, and a PLY with the points."""
    turn = [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -1.0, 0.0]]
    applied = np.concatenate([turn, np.zeros((3, 1))], 1).tolist()
    frames = []
    for i, view in enumerate(views):
        pose = np.array(frame(view)["transform_matrix"])
        pose[:3] = turn @ pose[:3]
        frames.append({"file_path": f"images/{view.name}", "transform_matrix": pose.tolist(), "colmap_im_id": i + 1})
    values = dict.fromkeys(("k1", "k2", "p1", "p2"), 0.0) | {"camera_model": "OPENCV", "applied_transform": applied}
    write_transforms(folder, views, frames=frames, ply_file_path="sparse_pc.ply", **values)
    write_ply(folder / "sparse_pc.ply", points.numpy() @ np.transpose(turn), colors.numpy())


LAYOUTS = {
    "COLMAP": lambda folder, views, points, colors: write_colmap(folder, views, points, colors=colors),
    "COLMAP, UTM": lambda folder, views, points, colors: write_colmap(
        folder, *georeferenced(views, points), colors=colors
    ),
    "transforms.json, UTM, PLY": lambda folder, views, points, colors: write_moved(
        folder, views, points, colors, unit=UNIT, offset=UTM, rotation=TURN
    ),
    "nerfstudio, PLY": write_nerfstudio,
    "Metashape, E57": survey(write_metashape, "points.e57"),
    "RealityCapture 1, LAS": survey(write_realitycapture, "points.las"),
    "RealityScan 2, LAZ": survey(write_realitycapture, "points.laz", header=REALITYSCAN),
    "RealityScan's OpenCV, PLY": survey(write_realitycapture, "points.ply", header=OPENCV),
    "Polycam, depth": lambda folder, views, *_: write_polycam(folder, views),
    "Record3D, depth": lambda folder, views, *_: write_record3d(folder, in_order_of_names(views), depth=True),
}


def train(layout, folder, scene, steps):
    """Trains on the photographs in a layout. Returns the PSNR of the held-out photographs, and an image of one of them
    beside its rendering."""
    shutil.rmtree(folder, ignore_errors=True)
    LAYOUTS[layout](folder / "scene", *scene)
    options = {"steps": steps, "max-gaussians": N_POINTS, "test-every": 8, "sh-degree": 1}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "tsplat", "train", str(folder / "scene"), "--out", str(folder / "run"), *words]
    command += ["--background", *map(str, SKY)]
    output = subprocess.run(command, capture_output=True, text=True, check=False)
    if output.returncode:
        raise SystemExit(f"{layout}: {output.stdout}{output.stderr}")
    psnr = json.loads((folder / "run" / "metrics.json").read_text())["psnr"]
    images = sorted((folder / "run" / "held_out").iterdir())
    return psnr, Image.open(images[len(images) // 2]).convert("RGB")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the scenes, the runs and the image")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--only", nargs="+", choices=LAYOUTS, default=list(LAYOUTS), help="layouts (default: all)")
    options = parser.parse_args()
    scene, cells, first = make_scene(), [], math.nan
    for i, layout in enumerate(options.only):
        name = "".join(c if c.isalnum() else "_" for c in layout.lower())
        psnr, image = train(layout, options.out / name, scene, options.steps)
        first = first if i else psnr
        print(f"{layout}: {psnr:.3f} dB, {psnr - first:+.3f}", flush=True)
        cells.append((i % N_COLUMNS, i // N_COLUMNS, f"{layout}: {psnr:.2f} dB", image))
    draw_sheet(cells).save(options.out / "imports.png")
    print(f"wrote {options.out / 'imports.png'}")


if __name__ == "__main__":
    main()
