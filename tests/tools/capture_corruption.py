"""Reads randomly damaged captures: `python -m tests.tools.capture_corruption colmap_binary --count 2000`.

A reader must reject a damaged file with a typed error that names a file, or return a capture with finite and plausible
values. It may take 5 seconds and allocate twice the file's size plus 200 MB.
"""

import struct
from pathlib import Path

import torch
from PIL import Image

from tests.support.captures import POINTS, sample_views, write_colmap, write_transforms
from tests.support.metashape_files import write_metashape
from tests.support.phone_files import write_polycam, write_record3d
from tests.support.realitycapture_files import write_realitycapture
from tests.support.scan_clouds import write_e57, write_las
from tests.tools.damage import Damage, DamagedFiles, inside, run
from tsplat.scene import Capture, read_capture

FORMATS = (
    *(
        "colmap_binary",
        "colmap_text",
        "transforms",
        "png",
        "jpeg",
        "mask",
        "point_cloud",
        "realitycapture",
        "metashape",
    ),
    *("polycam", "polycam_depth", "record3d", "las", "laz", "laz_layers", "e57", "e57_content"),
)
LENS = "OPENCV 40 30 50 50 20 15 0.05 0.01 0.001 0.001"
COORDINATE_MAX = 1e12


class Scene(DamagedFiles):
    """A small capture in one format whose files are damaged."""

    def __init__(self, folder: Path, kind: str) -> None:
        views = sample_views()[:4]
        images = folder / "images"
        if kind in ("las", "laz", "laz_layers", "e57", "e57_content"):
            name = f"points.{kind.partition('_')[0]}"
            write_transforms(folder, views, ply_file_path=name)
            points = POINTS.double().numpy()
            options = {"version": "1.4", "point_format": 7} if kind == "laz_layers" else {}
            (write_e57 if name.endswith("e57") else write_las)(folder / name, points, **options)
        elif kind in ("transforms", "point_cloud"):
            write_transforms(folder, views, k1=0.05, k2=0.01, ply_file_path="points.ply")
            header = "ply\nformat binary_little_endian 1.0\nelement vertex 3\n"
            header += "".join(f"property float {c}\n" for c in "xyz")
            header += "".join(f"property uchar {c}\n" for c in ("red", "green", "blue")) + "end_header\n"
            rows = b"".join(struct.pack("<3f3B", *point, 10, 20, 30) for point in POINTS.tolist())
            (folder / "points.ply").write_bytes(header.encode() + rows)
        elif kind.startswith("polycam"):
            write_polycam(folder, views)
        elif kind == "record3d":
            write_record3d(folder, views)
        elif kind == "metashape":
            write_metashape(folder, views)
        elif kind == "realitycapture":
            write_realitycapture(folder, views, k1=0.05, k2=0.01, k3=0.001, t1=0.001)
        else:
            write_colmap(folder, views, POINTS, camera=LENS if kind.startswith("colmap") else None)
        (folder / "masks").mkdir()
        for view in views:
            Image.new("L", (40, 30), 255).save(folder / "masks" / view.name)
        if kind == "jpeg":
            for view in views:
                Image.fromarray(view.image.numpy()).save(images / view.name, "JPEG")
        if kind == "colmap_binary":
            import pycolmap

            sparse = folder / "sparse" / "0"
            pycolmap.Reconstruction(str(sparse)).write_binary(str(sparse))
        patterns = {
            "colmap_binary": "sparse/0/[cip][amo]*.bin",
            "colmap_text": "sparse/0/*.txt",
            "transforms": "transforms.json",
            "mask": "masks/*",
            "point_cloud": "points.ply",
            "realitycapture": "cameras.csv",
            "metashape": "cameras.xml",
            "polycam": "keyframes/[cd]*/*[!g]",
            "polycam_depth": "keyframes/depth/*.png",
            "record3d": "metadata.json",
            **{name: f"points.{name}" for name in ("las", "laz", "e57")},
            "laz_layers": "points.laz",
            "e57_content": "points.e57",
        }
        super().__init__(folder, folder.glob(patterns.get(kind, "images/*")))
        if kind == "e57_content":
            self.damages = (inside,)

    def read(self) -> Capture:
        return read_capture(self.path, seed=1)

    def problem(self, found: Capture, damaged: bytes, damage: Damage) -> str | None:
        return _problem(found)


def _problem(capture: Capture) -> str | None:
    """Returns what is implausible in a capture, or None."""
    views = (*capture.train, *capture.test)
    if len(views) < 2 or len({view.name for view in views}) < len(views):
        return f"{len(views)} views"
    for view in views:
        rotation = view.camera.viewmat[:3, :3].double()
        if (rotation @ rotation.T - torch.eye(3)).abs().max() > 0.01 or view.camera.viewmat[
            :3, 3
        ].abs().max() > COORDINATE_MAX:
            return f"viewmat {view.camera.viewmat}"
        if not view.camera.K.isfinite().all() or view.camera.K.diag().min() <= 0 or view.camera.K.max() > 1e9:
            return f"K {view.camera.K}"
        if view.image.numel() > 10_000_000 or (view.sparse is not None and not view.sparse.isfinite().all()):
            return "an image or its sparse points"
    if not (capture.points.abs() <= COORDINATE_MAX).all() or len(capture.points) > 20_000:
        return "points"
    if not ((capture.colors >= 0) & (capture.colors <= 1)).all():
        return "colors"
    return None


if __name__ == "__main__":
    raise SystemExit(run(__doc__ or "", Scene, FORMATS))
