"""Draws docs/surfels.jpg: a held-out view and the normals of its depth, from runs with 3D and with 2D Gaussians.

    tsplat train SCENE --out RUN_3D --steps 1500
    tsplat train SCENE --out RUN_2D --steps 1500 --primitive 2dgs
    python -m benchmarks.surfel_image RUN_3D RUN_2D --view NAME

Views are rendered at the size of the training images, without their edges, which few photographs show.
"""

import argparse
from pathlib import Path

import torch
from PIL import Image

from benchmarks.sheets import draw_sheet
from tsplat import depth_to_normals
from tsplat.scene import Camera, Gaussians, open_model
from tsplat.scene.images import to_bytes
from tsplat.scene.rendered_views import render_views
from tsplat.viewing.run_cameras import find_cameras

EDGE = 0.1
"""Fraction of the width and height that is left out at each edge."""

IMAGE = Path(__file__).parents[1] / "docs" / "surfels.jpg"


def view_and_normals(gaussians: Gaussians, camera: Camera) -> list[Image.Image]:
    """Renders a view, and the normals of its depth as colors.

    Normals are in the frame of the camera: red points right, green up, and blue to the camera.
    """
    with torch.no_grad():
        images, _, _ = render_views(gaussians, [camera], render_mode="RGB+ED")
        normals = depth_to_normals(images[0, ..., 3:], camera.viewmat.inverse(), camera.K)
        normals = normals @ camera.viewmat[:3, :3].T * torch.tensor([1.0, -1.0, -1.0])
    rows, columns = (slice(round(EDGE * n), round((1 - EDGE) * n)) for n in (camera.height, camera.width))
    shown = (images[0, ..., :3].clamp(0, 1), (normals + 1) / 2)
    return [Image.fromarray(to_bytes(image[rows, columns]).numpy()) for image in shown]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", type=Path, nargs=2, metavar="RUN", help="with 3D, and with 2D Gaussians")
    parser.add_argument("--view", default="DSC_0423.JPG", help="name of a camera of the runs")
    options = parser.parse_args()
    camera = next(camera for camera in find_cameras(options.runs[0]) if camera.name == options.view)
    cells = []
    for column, (run, kind) in enumerate(zip(options.runs, ("3D", "2D"), strict=True)):
        names = (f"held-out view, {kind} Gaussians", f"normals of its depth, {kind} Gaussians")
        images = view_and_normals(open_model(run), camera)
        cells += [(column, row, name, image) for row, (name, image) in enumerate(zip(names, images, strict=True))]
    draw_sheet(cells, enlarged=1).save(IMAGE, quality=90)


if __name__ == "__main__":
    main()
